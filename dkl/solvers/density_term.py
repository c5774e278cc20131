"""What an objective has of a density of frequencies alone: a penalty, or a set that it must lie in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

# No density falls lower, even where it may be 0: the curvatures there would be quotients of rounding errors.
LEAST_DENSITY = 1e-10


class Conjugate(NamedTuple):
    """The least penalty less a linear function, as `DensityTerm.conjugate` finds it.

    Parameters
    ----------
    value : float
        A lower bound of the minimum, `gap` below the value at `density`; added over the rows of p.
    density : ndarray of shape (D,) or (K, D)
        Where it is attained.
    gap : float
        Some 1e-15 of the terms that make up the value.
    """

    value: float
    density: np.ndarray
    gap: float


class DensityTerm(Protocol):
    """What an objective has of the density alone, a convex function on a convex set of u >= floor."""

    @property
    def n_frequencies(self) -> int:
        """D."""
        ...

    @property
    def floor(self) -> float:
        """The least density."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether one density alone is allowed."""
        ...

    def start(self) -> np.ndarray:
        """The natural first density, (D,)."""
        ...

    def inside(self, u: np.ndarray) -> np.ndarray:
        """A density near u (D,) that is allowed, and positive."""
        ...

    def value(self, u: np.ndarray) -> float:
        """The term itself."""
        ...

    def gradient(self, u: np.ndarray) -> np.ndarray:
        """Its derivative, of the shape of u."""
        ...

    def residual(self, u: np.ndarray, gradient: np.ndarray) -> float:
        """How far u is from being optimal where `gradient` is that of the whole objective; 0 at the optimum."""
        ...

    def conjugate(self, p: np.ndarray) -> Conjugate:
        """The least of the term less u.p, from below."""
        ...

    def quadratic_minimum(self, curvature: np.ndarray, gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Where the term and the second-order model about u of the rest of the objective are least together.

        Parameters
        ----------
        curvature : ndarray of shape (D, D)
            Of the rest.
        gradient : ndarray of shape (D,)
            Of the whole.
        u : ndarray of shape (D,)
        """
        ...
