"""Symmetric positive systems from sums of float32 products, which rounding may leave a little indefinite."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np
from scipy.linalg import lapack

from dkl.kernels.threads import Crew, usable_cores
from dkl.solvers.cholesky import factorise

T = TypeVar("T")
R = TypeVar("R")

# Larger systems are solved one after another: as many as there are cores would not fit into memory beside the data.
_AT_ONCE_BYTES = 1 << 26


def systems_at_once(count: int, width: int) -> int:
    """How many of `count` systems `map_systems` has written out at the same time."""
    return min(count, usable_cores()) if 8 * width**2 <= _AT_ONCE_BYTES else min(count, 1)


def map_systems(function: Callable[[T], R], items: Iterable[T], width: int) -> list[R]:
    """`function`, which solves one system of `width` unknowns, of each item: on all cores where systems are small."""
    items = list(items)
    if systems_at_once(len(items), width) < 2:
        return [function(item) for item in items]
    return Crew().map(function, items)


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


class KnownSystems:
    """What was found of systems that are solved again and again: their factors, and what their diagonals wanted.

    It changes no bit: a system that is new to it is factored as before. Of a single one the factor is kept, of several
    what had to be added to each of them, so that it is not found out again.
    """

    def __init__(self) -> None:
        self._matrices: object = None
        self._added: dict[Hashable, float] = {}
        self._factor: tuple[Hashable, np.ndarray] | None = None

    def solve(
        self, matrices: object, key: Hashable, form: Callable[[], np.ndarray], right: np.ndarray, *, is_only: bool
    ) -> np.ndarray:
        """As `solve_positive`, for the system `key` among those that are made of `matrices`."""
        if matrices is not self._matrices:
            self._matrices, self._added, self._factor = matrices, {}, None
        known = self._factor
        if known is not None and known[0] == key:
            return lapack.dpotrs(known[1], right, lower=0)[0]
        R, self._added[key] = _factored(form, self._added.get(key, 0.0))
        self._factor = (key, R) if is_only else None
        return lapack.dpotrs(R, right, lower=0)[0]


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
        extra = 10.0 * extra if extra else 1e-9 * scale
