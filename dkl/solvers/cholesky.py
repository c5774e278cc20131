"""Cholesky factors on all cores of the driver, with the bits of one."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import DTypeLike

from dkl.kernels.blas import one_blas_thread
from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import spans

# Rows and columns of a tile: BLAS has its full rate on one, and there are enough of them for many cores.
_TILE = 384
# Up to so many rows one tile is faster than several of them on two cores.
_ALONE = 1_536
# Columns of an inverse that each core holds at a time.
_COLUMNS = 128
# Columns of R^-1 that rows are multiplied by at once: wide enough for the full rate of BLAS, narrow enough that few
# products with 0 are left.
_PANEL = 256


def factorise(matrix: np.ndarray) -> bool:
    """Overwrite a symmetric positive definite matrix by the factor R of R^T R, which is upper triangular.

    LAPACK rounds otherwise on several threads than on one. Here the tiles are cut by the size alone, and each is the
    work of one thread.

    Parameters
    ----------
    matrix : ndarray of shape (m, m), float64, Fortran order
        The upper triangle is read; the lower one is left with anything.

    Returns
    -------
    bool
        False if the matrix, now spoilt, is not positive definite to rounding.

    References
    ----------
    Golub & Van Loan 2013, Matrix Computations, section 4.2.6 (outer products, by blocks).
    """
    tiles = list(spans(len(matrix), _TILE if len(matrix) > _ALONE else _ALONE))
    with one_blas_thread():
        for number, tile in enumerate(tiles):
            corner = matrix[tile, tile]
            if _lapack("dpotrf", b"U", len(corner), corner, _leading(corner)) != 0:
                return False
            _eliminate(matrix, tile, tiles[number + 1 :])
    return True


def solve_factor(R: np.ndarray, B: np.ndarray) -> None:
    """Overwrite B by R^-T B; the interpreter's lock is released meanwhile.

    Parameters
    ----------
    R : ndarray of shape (m, m), float64, Fortran order
        Upper triangular; what is below the diagonal is not read.
    B : ndarray of shape (m, r), float64, Fortran order
    """
    _lapack("dtrtrs", b"U", b"T", b"N", *B.shape, R, _leading(R), B, _leading(B))


def inverse_diagonal(R: np.ndarray) -> np.ndarray:
    """The diagonal of (R^T R)^-1: the squared lengths of the rows of R^-1.

    Parameters
    ----------
    R : ndarray of shape (m, m), float64, Fortran order
        As `solve_factor`.

    Returns
    -------
    ndarray of shape (m,)
    """

    def lengths(columns: slice) -> np.ndarray:
        # The columns of R^-T are 0 above the diagonal, so that only the rows from there on are solved for.
        inverse = np.eye(len(R) - columns.start, columns.stop - columns.start, order="F")
        solve_factor(R[columns.start :, columns.start :], inverse)
        return np.einsum("ij,ij->j", inverse, inverse)

    return np.concatenate(Crew().map(lengths, spans(len(R), _COLUMNS)))


def inverse_panels(R: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, ...]:
    """R^-1, panel by panel: the columns of each, without the rows below them, which are 0.

    A product with the panels one after the other takes little more than half the operations of one with all of R^-1.

    Parameters
    ----------
    R : ndarray of shape (m, m), float64, Fortran order
        As `solve_factor`.
    dtype : dtype
        Of what is kept; it is solved for in float64.

    Returns
    -------
    tuple of ndarray
        The first is R^-1[:e, :e], the next R^-1[:f, e:f], and so on to f = m; C order.
    """

    def panel(columns: slice) -> np.ndarray:
        inverse = np.eye(columns.stop, columns.stop - columns.start, -columns.start, order="F")
        corner = R[: columns.stop, : columns.stop]
        _lapack("dtrtrs", b"U", b"N", b"N", *inverse.shape, corner, _leading(corner), inverse, _leading(inverse))
        return np.ascontiguousarray(inverse, dtype=dtype)

    return tuple(Crew().map(panel, spans(len(R), _PANEL)))


def inverse_bytes(size: int) -> int:
    """What `inverse_diagonal` of a factor of that size holds, at most."""
    return 8 * size * min(size, _COLUMNS * usable_cores())


def _eliminate(matrix: np.ndarray, tile: slice, later: list[slice]) -> None:
    """The rows of R beside a tile that has its factor, and what they take from the tiles to come."""

    def solve(right: slice) -> None:
        solve_factor(matrix[tile, tile], matrix[tile, right])

    def subtract(pair: tuple[slice, slice]) -> None:
        above, right = pair
        matrix[above, right] -= matrix[tile, above].T @ matrix[tile, right]

    # First the row of R beside the tile, R12 = R11^-T A12; then A22 - R12^T R12 for what is left, tile by tile.
    Crew().map(solve, later)
    Crew().map(subtract, combinations_with_replacement(later, 2))


def _leading(A: np.ndarray) -> int:
    """Numbers from one column to the next in memory."""
    return A.strides[1] // A.itemsize


def _lapack(name: str, *arguments: bytes | int | np.ndarray) -> int:
    """Call a routine of SciPy's LAPACK without the interpreter's lock, which `scipy.linalg` would hold; its info."""
    info = ctypes.c_int()
    _routine(name)(*map(_reference, arguments), ctypes.byref(info))
    return info.value


@cache
def _routine(name: str) -> Any:
    """A routine of LAPACK, of which SciPy hands out the address for Cython; ctypes calls it without the lock."""
    return ctypes.CFUNCTYPE(None)(get_cython_function_address("scipy.linalg.cython_lapack", name))


def _reference(argument: bytes | int | np.ndarray) -> object:
    """An argument as Fortran takes it: by its address."""
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return argument if isinstance(argument, bytes) else ctypes.byref(ctypes.c_int(argument))
