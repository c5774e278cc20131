"""Cholesky factorisation on all cores of the driver, with the same bits as on one core."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import DTypeLike

from dkl.kernels.threads import Crew, one_blas_thread, usable_cores
from dkl.kernels.tiles import spans

# Rows and columns of a tile: large enough for the full rate of BLAS, and small enough to occupy many cores.
_TILE = 384
# Up to this many rows a matrix is one tile, which was faster than several tiles on two cores.
_ALONE = 1_536
# The number of columns of an inverse that a core computes at once.
_COLUMNS = 128
# The number of columns of R^-1 in a panel: wide enough for the full rate of BLAS, narrow enough for few products with
# the zeros below the diagonal.
_PANEL = 256


def factorise(matrix: np.ndarray) -> bool:
    """Overwrite a symmetric positive definite matrix by the factor R of R^T R, which is upper triangular.

    LAPACK's own rounding depends on the number of threads. Here the tiles depend on the size of the matrix alone, and
    each is computed by one thread.

    Parameters
    ----------
    matrix : ndarray of shape (m, m), float64, Fortran order
        The upper triangle is read; the lower one is undefined afterwards.

    Returns
    -------
    bool
        False if the matrix is not positive definite within rounding; it is overwritten all the same.

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
    """Overwrite B by R^-T B, without Python's global interpreter lock.

    Parameters
    ----------
    R : ndarray of shape (m, m), float64, Fortran order
        Upper triangular; entries below the diagonal are not read.
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
        # The columns of R^-T are 0 above the diagonal, so that only the rows from the diagonal on are computed.
        inverse = np.eye(len(R) - columns.start, columns.stop - columns.start, order="F")
        solve_factor(R[columns.start :, columns.start :], inverse)
        return np.einsum("ij,ij->j", inverse, inverse)

    return np.concatenate(Crew().map(lengths, spans(len(R), _COLUMNS)))


def inverse_panels(R: np.ndarray, dtype: DTypeLike) -> tuple[np.ndarray, ...]:
    """R^-1 as panels of neighbouring columns, without the rows below the diagonal block, which are 0.

    Products with the panels take little more than half the operations of a product with the whole of R^-1.

    Parameters
    ----------
    R : ndarray of shape (m, m), float64, Fortran order
        As `solve_factor`.
    dtype : dtype
        The dtype of the panels, which are computed in float64.

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
    """An upper bound of the bytes that `inverse_diagonal` of a factor of `size` rows needs."""
    return 8 * size * min(size, _COLUMNS * usable_cores())


def _eliminate(matrix: np.ndarray, tile: slice, later: list[slice]) -> None:
    """Compute the rows of R right of a factorised diagonal tile, and subtract their products from `later` tiles."""

    def solve(right: slice) -> None:
        solve_factor(matrix[tile, tile], matrix[tile, right])

    def subtract(pair: tuple[slice, slice]) -> None:
        above, right = pair
        matrix[above, right] -= matrix[tile, above].T @ matrix[tile, right]

    # First R12 = R11^-T A12 to the right of the tile, then A22 - R12^T R12 for the remaining tiles.
    Crew().map(solve, later)
    Crew().map(subtract, combinations_with_replacement(later, 2))


def _leading(A: np.ndarray) -> int:
    """The leading dimension: the number of entries from one column to the next in memory."""
    return A.strides[1] // A.itemsize


def _lapack(name: str, *arguments: bytes | int | np.ndarray) -> int:
    """Call a LAPACK routine of SciPy without the global interpreter lock, which `scipy.linalg` holds; its `info`."""
    info = ctypes.c_int()
    _routine(name)(*map(_reference, arguments), ctypes.byref(info))
    return info.value


@cache
def _routine(name: str) -> Any:
    """A LAPACK routine for ctypes, by the address that SciPy exports for Cython; ctypes releases the lock in calls."""
    return ctypes.CFUNCTYPE(None)(get_cython_function_address("scipy.linalg.cython_lapack", name))


def _reference(argument: bytes | int | np.ndarray) -> object:
    """An argument in the form that Fortran expects: by reference."""
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return argument if isinstance(argument, bytes) else ctypes.byref(ctypes.c_int(argument))
