"""The part of an objective that depends on the density of frequencies alone: a penalty, or a set that contains it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

# A lower bound of all densities, even where 0 is allowed: curvatures below it would be quotients of rounding errors.
LEAST_DENSITY = 1e-10


class MinusConjugate(NamedTuple):
    """The minimum of P(u) - u.p over the densities u of a `DensityTerm` P: minus the conjugate of P at p.

    Parameters
    ----------
    value : float
        A lower bound of the minimum, `gap` below the value at `density`; summed over the rows of p.
    density : ndarray of shape (D,) or (K, D)
        The minimiser.
    gap : float
        The error of the bound, about 1e-15 of the sizes of the terms in the value.
    """

    value: float
    density: np.ndarray
    gap: float


class DensityTerm(Protocol):
    """A convex function of the density u on a convex set of densities u >= floor."""

    @property
    def n_frequencies(self) -> int:
        """The number of frequencies D."""
        ...

    @property
    def floor(self) -> float:
        """The lower bound of the density at each frequency."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether the set contains a single density."""
        ...

    def start(self) -> np.ndarray:
        """The density at which a descent starts, (D,)."""
        ...

    def inside(self, u: np.ndarray) -> np.ndarray:
        """A positive density of the set near u (D,)."""
        ...

    def value(self, u: np.ndarray) -> float:
        """The value of the function at u."""
        ...

    def gradient(self, u: np.ndarray) -> np.ndarray:
        """The gradient of the function at u, of the shape of u."""
        ...

    def residual(self, u: np.ndarray, gradient: np.ndarray) -> float:
        """A measure of how far u is from the optimum, given the gradient of the whole objective; 0 at the optimum."""
        ...

    def minus_conjugate(self, p: np.ndarray) -> MinusConjugate:
        """min P(u) - u.p over the densities u of the set, minus the conjugate of the function P at p (D,) or (K, D)."""
        ...

    def quadratic_minimum(self, curvature: np.ndarray, gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The density that minimises the term plus a second-order model, about u, of the rest of the objective.

        Parameters
        ----------
        curvature : ndarray of shape (D, D)
            The Hessian of the rest of the objective.
        gradient : ndarray of shape (D,)
            The gradient of the whole objective.
        u : ndarray of shape (D,)
        """
        ...
