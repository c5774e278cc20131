"""Solves symmetric positive definite systems of sums of float32 products, which rounding may make indefinite."""

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

# The most bytes (64 MiB) of the matrices of systems that are solved at the same time, one on each core; larger systems
# are solved one after another, each on all cores.
_AT_ONCE_BYTES = 1 << 26
# The first addition to the diagonal of sums of float32 products, as a share of its mean.
_FIRST = 1e-9


def systems_at_once(count: int, width: int) -> int:
    """The number of systems, out of `count`, whose matrices `map_systems` has in memory at the same time."""
    return min(count, usable_cores(), max(_AT_ONCE_BYTES // (8 * width**2), 1))


def map_systems(function: Callable[[T], R], items: Iterable[T], width: int) -> list[R]:
    """The results of `function`, which solves a system of `width` unknowns, for all items; small ones in parallel."""
    items = list(items)
    at_once = systems_at_once(len(items), width)
    if at_once < 2:
        return [function(item) for item in items]
    return [result for part in spans(len(items), at_once) for result in Crew().map(function, items[part])]


def solve_positive(form: Callable[[], np.ndarray], right: np.ndarray) -> np.ndarray:
    """The solution of a symmetric positive definite system; its diagonal is raised if rounding makes it indefinite.

    Parameters
    ----------
    form : callable
        See `factor_positive`.
    right : ndarray of shape (m,) or (m, r)

    Returns
    -------
    ndarray of the shape of `right`

    Raises
    ------
    ValueError
        If the matrix is not finite, or the mean of its diagonal is not positive.
    """
    return lapack.dpotrs(factor_positive(form), right, lower=0)[0]


class PenalisedSystems:
    """Solutions x of ``(G / N + penalty I) x = b`` for sums G of mapped rows, with no penalty on the intercept.

    Each pair of a matrix and a penalty is factorised once in a call. A later call with the same matrices reuses the
    factor if there was a single system, else the amounts by which diagonals had to be raised before their
    factorisation succeeded. The results have the bits of a first call.
    """

    def __init__(self) -> None:
        self._grams: np.ndarray | None = None
        self._raised: dict[tuple[int, float], float] = {}
        self._factor: tuple[tuple[int, float], np.ndarray] | None = None

    def solve(
        self, grams: np.ndarray, weight: float, which: ArrayLike, penalties: ArrayLike, right: np.ndarray
    ) -> np.ndarray:
        """The solutions for g right-hand sides.

        Parameters
        ----------
        grams : ndarray of shape (h, w (w + 1) / 2), float64
            Upper triangles, packed column by column; the intercept is the last column.
        weight : float
            N.
        which : int or ndarray of shape (g,)
            The number of the matrix of each right-hand side.
        penalties : float or ndarray of shape (g,)
        right : ndarray of shape (g, w)

        Returns
        -------
        ndarray of shape (g, w)

        Raises
        ------
        ValueError
            If a matrix is not finite, or the mean of its diagonal is not positive.
        """
        if grams is not self._grams:
            self._grams, self._raised, self._factor = grams, {}, None
        # both sides are multiplied by N, so that the sums need not be copied
        penalties, right = weight * np.asarray(penalties), weight * right
        which, penalties = np.broadcast_to(which, len(right)), np.broadcast_to(penalties, len(right))
        systems = sorted(set(zip(which.tolist(), penalties.tolist(), strict=True)))
        if self._factor is not None and self._factor[0] not in systems:
            # release the old factor before another is computed
            self._factor = None
        solutions, width, previous = np.empty(right.shape), right.shape[1], self._factor

        def solve_system(system: tuple[int, float]) -> None:
            number, penalty = system
            its_own = np.flatnonzero((which == number) & (penalties == penalty))
            if previous is not None and previous[0] == system:
                factor = previous[1]
            else:
                form = partial(penalised_system, grams[number], width, penalty)
                factor, self._raised[system] = _factored(form, self._raised.get(system, 0.0))
                self._factor = (system, factor) if len(systems) == 1 else None
            solutions[its_own] = lapack.dpotrs(factor, right[its_own].T, lower=0)[0].T

        map_systems(solve_system, systems, width)
        return solutions


def penalised_system(gram: np.ndarray, width: int, penalty: float) -> np.ndarray:
    """G + penalty I, without penalty on the intercept: the upper triangle of (width, width), in Fortran order."""
    matrix, _ = lapack.dtpttr(width, gram)
    diagonal = np.einsum("ii->i", matrix)
    diagonal[:-1] += penalty
    # a tiny penalty on the intercept keeps the system positive definite where features add up to a constant
    diagonal[-1] += 1e-12 * diagonal.mean()
    return matrix


def factor_positive(
    form: Callable[[], np.ndarray],
    raised: float = 0.0,
    *,
    first: float = _FIRST,
    most: float = np.inf,
    refusal: Exception | None = None,
) -> np.ndarray:
    """The factor R with R^T R = A, symmetric positive definite; the diagonal is raised if rounding makes A indefinite.

    Parameters
    ----------
    form : callable
        Returns the matrix (m, m), in Fortran order; its upper triangle is read, and it is overwritten. It is called
        again for each attempt, so that no copy is needed.
    raised : float
        What the first attempt adds to the diagonal. Each further one adds ten times as much.
    first : float
        What follows an attempt that added nothing, as a share of the mean of the diagonal.
    most : float
        The largest addition, as a share of that mean.
    refusal : Exception or None
        What to raise in place of a ValueError about mapped rows.

    Returns
    -------
    ndarray of shape (m, m), Fortran order
        R in the upper triangle; entries below it are undefined.

    Raises
    ------
    ValueError or `refusal`
        If the matrix is not finite, the mean of its diagonal is not positive and nothing is added to it, or it has no
        factor with the largest addition.
    """
    return _factored(form, raised, first, most, refusal)[0]


def _factored(
    form: Callable[[], np.ndarray],
    extra: float,
    first: float = _FIRST,
    most: float = np.inf,
    refusal: Exception | None = None,
) -> tuple[np.ndarray, float]:
    """The factor, and the amount (at least `extra`) that was added to the diagonal."""
    while True:
        system = np.asfortranarray(form(), dtype=np.float64)
        diagonal = np.einsum("ii->i", system)
        scale = diagonal.mean()
        # no matrix of this kind is positive definite, and a share of its diagonal would not raise it
        if scale <= 0.0 and extra <= 0.0:
            raise refusal or ValueError(
                f"the mean of a system's diagonal is {scale:.3g}, and a positive definite one has a mean above 0: the "
                "curvature of the loss, summed over the rows, is negative or 0 where no penalty is added. Take a loss "
                "whose second derivative is nowhere negative, or a larger alpha"
            )
        if not np.isfinite(scale) or extra > most * scale:
            raise refusal or ValueError(
                "the products of the mapped rows, times their weights, are not finite: the rows or the weights are too "
                "large. Scale rows (scaling='standard' of the feature learner), multiply all weights by one factor, or "
                "use dtype='float64'"
            )
        # The factorisation fails where eigenvalues are smaller than the rounding errors of float32 products: the
        # diagonal is raised, by ten times as much in each attempt, until it succeeds.
        diagonal += extra
        if factorise(system):
            return system, extra
        # the failed matrix is overwritten; release it before the next one is computed
        del system, diagonal
        extra = 10.0 * extra if extra else first * scale
