"""Symmetric positive systems from sums of float32 products, which rounding may leave a little indefinite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack

from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import spans
from dkl.solvers.cholesky import factorise

T = TypeVar("T")
R = TypeVar("R")

# Bytes of all systems that are written out at once: larger ones are solved one after another, each on all cores.
_AT_ONCE_BYTES = 1 << 26


def systems_at_once(count: int, width: int) -> int:
    """How many of `count` systems `map_systems` has written out at the same time."""
    return min(count, usable_cores(), max(_AT_ONCE_BYTES // (8 * width**2), 1))


def map_systems(function: Callable[[T], R], items: Iterable[T], width: int) -> list[R]:
    """`function`, which solves one system of `width` unknowns, of each item: on all cores where systems are small."""
    items = list(items)
    at_once = systems_at_once(len(items), width)
    if at_once < 2:
        return [function(item) for item in items]
    return [result for part in spans(len(items), at_once) for result in Crew().map(function, items[part])]


def solve_positive(form: Callable[[], np.ndarray], right: np.ndarray) -> np.ndarray:
    """The solution of a symmetric positive definite system by Cholesky; one that is not quite gets a growing diagonal.

    Parameters
    ----------
    form : callable
        As of `factor_positive`.
    right : ndarray of shape (m,) or (m, r)

    Returns
    -------
    ndarray of the shape of `right`

    Raises
    ------
    ValueError
        If the matrix is not finite.
    """
    return lapack.dpotrs(factor_positive(form), right, lower=0)[0]


class PenalisedSystems:
    """Solutions x of ``(G / N + penalty I) x = b`` for sums G of mapped rows, with no penalty on the intercept.

    Each pair of a matrix and a penalty is factored once a call. A later call with the same matrices starts from what
    the last one has learned: the factor itself where there was a single system, else what the diagonal of each had to
    be raised by before its factorisation succeeded. The bits are those of systems that are solved for the first time.
    """

    def __init__(self) -> None:
        self._grams: np.ndarray | None = None
        self._raised: dict[tuple[int, float], float] = {}
        self._factor: tuple[tuple[int, float], np.ndarray] | None = None

    def solve(
        self, grams: np.ndarray, weight: float, which: ArrayLike, penalties: ArrayLike, right: np.ndarray
    ) -> np.ndarray:
        """The solutions for g right sides.

        Parameters
        ----------
        grams : ndarray of shape (h, w (w + 1) / 2), float64
            Upper triangles, packed column by column; the intercept is the last column.
        weight : float
            N.
        which : int or ndarray of shape (g,)
            The matrix of each right side.
        penalties : float or ndarray of shape (g,)
        right : ndarray of shape (g, w)

        Returns
        -------
        ndarray of shape (g, w)

        Raises
        ------
        ValueError
            If a matrix is not finite.
        """
        if grams is not self._grams:
            self._grams, self._raised, self._factor = grams, {}, None
        # the systems are multiplied by N, which saves a copy of the sums
        penalties, right = weight * np.asarray(penalties), weight * right
        which, penalties = np.broadcast_to(which, len(right)), np.broadcast_to(penalties, len(right))
        systems = sorted(set(zip(which.tolist(), penalties.tolist(), strict=True)))
        if self._factor is not None and self._factor[0] not in systems:
            # another factor takes its place in memory
            self._factor = None
        solutions, width, known = np.empty(right.shape), right.shape[1], self._factor

        def solve_system(system: tuple[int, float]) -> None:
            number, penalty = system
            its_own = np.flatnonzero((which == number) & (penalties == penalty))
            if known is not None and known[0] == system:
                factor = known[1]
            else:
                form = partial(penalised_system, grams[number], width, penalty)
                factor, self._raised[system] = _factored(form, self._raised.get(system, 0.0))
                self._factor = (system, factor) if len(systems) == 1 else None
            solutions[its_own] = lapack.dpotrs(factor, right[its_own].T, lower=0)[0].T

        map_systems(solve_system, systems, width)
        return solutions


def penalised_system(gram: np.ndarray, width: int, penalty: float) -> np.ndarray:
    """G + penalty I but for the intercept, of a packed G: (width, width) in Fortran order, its upper triangle alone."""
    matrix, _ = lapack.dtpttr(width, gram)
    diagonal = np.einsum("ii->i", matrix)
    diagonal[:-1] += penalty
    # the intercept has no penalty: a little keeps the system positive definite where features add up to a constant
    diagonal[-1] += 1e-12 * diagonal.mean()
    return matrix


def factor_positive(form: Callable[[], np.ndarray]) -> np.ndarray:
    """The factor R of R^T R = A, for a symmetric positive definite A; one that is not quite gets a growing diagonal.

    Parameters
    ----------
    form : callable
        Makes the matrix (m, m), in Fortran order, of which the upper triangle counts and which is overwritten: again
        for each try, so that no copy is kept.

    Returns
    -------
    ndarray of shape (m, m), Fortran order
        Its upper triangle; below it lies anything.

    Raises
    ------
    ValueError
        If the matrix is not finite.
    """
    return _factored(form, 0.0)[0]


def _factored(form: Callable[[], np.ndarray], extra: float) -> tuple[np.ndarray, float]:
    """The factor, and what the diagonal got in the end, which is at least `extra`."""
    while True:
        system = np.asfortranarray(form(), dtype=np.float64)
        diagonal = np.einsum("ii->i", system)
        scale = diagonal.mean()
        if not np.isfinite(scale):
            raise ValueError(
                "the products of the mapped rows, times their weights, are not finite: the rows or the weights are too "
                "large. Scale rows (scaling='standard' of the feature learner), multiply all weights by one factor, or "
                "use dtype='float64'"
            )
        # Sums of float32 products are off by rounding, and where eigenvalues are smaller than that the factorisation
        # fails: a little more on the diagonal outweighs it, ten times as much each time until it succeeds.
        diagonal += extra
        if factorise(system):
            return system, extra
        # it is spoilt, and gives way to the next one
        del system, diagonal
        extra = 10.0 * extra if extra else 1e-9 * scale
