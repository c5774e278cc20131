"""The density that minimises data terms plus its own penalty: Newton steps on u among those that are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkl.methods.density.forms import Eliminated, Form, frequency_squares
from dkl.solvers.density_term import LEAST_DENSITY, DensityTerm

_SUFFICIENT = 1e-4
_SHORTEST = 1e-10
# relative: differences of objectives below this are rounding
_NOISE = 1e-15


@dataclass(frozen=True, eq=False)
class DensityFit:
    """Where Newton steps on the density have ended.

    Attributes
    ----------
    density : ndarray of shape (D,)
    points : tuple of Eliminated
        The best coefficients of each data term for it.
    value : float
        Data terms and penalty together.
    steps : int
    """

    density: np.ndarray
    points: tuple[Eliminated, ...]
    value: float
    steps: int


def tuned_density(
    forms: Sequence[Form], penalty: DensityTerm, start: np.ndarray, *, offset: float, tol: float, max_steps: int = 60
) -> DensityFit:
    """Minimise ``offset + sum of forms(u) + penalty(u)`` over the densities that the penalty allows.

    Each step goes to the minimum of the second-order model among these, found exactly, then as far towards it as
    lowers the objective: a handful of steps, as the data terms are smooth and convex in u once w is eliminated.

    Parameters
    ----------
    forms : sequence of Form
    penalty : DensityTerm
    start : ndarray of shape (D,)
    offset : float
        What the forms leave out of the objective: `tol` is relative to all of it.
    tol : float
        The last step is one that promises to lower the objective by no more than this share of it.
    max_steps : int
    """
    u = penalty.inside(np.asarray(start, dtype=np.float64))
    points, value = _evaluated(forms, penalty, u)
    if penalty.fixed:
        return DensityFit(u, points, value + offset, 0)
    for step in range(max_steps):
        gradient = density_gradient(forms, points, penalty, u)
        curvature = sum(form.curvature(u, point) for form, point in zip(forms, points, strict=True))
        move = penalty.quadratic_minimum(np.asarray(curvature), gradient, u) - u
        slope = float(gradient @ move)
        found = _shortened(forms, penalty, (u, points, value), (move, slope))
        if found is None:
            return DensityFit(u, points, value + offset, step)
        u, points, value = found
        if -0.5 * slope <= tol * abs(value + offset):
            return DensityFit(u, points, value + offset, step + 1)
    return DensityFit(u, points, value + offset, max_steps)


def density_gradient(
    forms: Sequence[Form], points: Sequence[Eliminated], penalty: DensityTerm, u: np.ndarray
) -> np.ndarray:
    """The gradient by u once w is eliminated: Lam H (u - c) - lam/2 |w_j|^2/u_j^2."""
    gradient = penalty.gradient(u)
    for form, point in zip(forms, points, strict=True):
        gradient = gradient - 0.5 * form.lam * frequency_squares(point.pulls, len(u))
    return gradient


def _evaluated(forms: Sequence[Form], penalty: DensityTerm, u: np.ndarray) -> tuple[tuple[Eliminated, ...], float]:
    points = tuple(form.at(u) for form in forms)
    return points, sum(point.value for point in points) + penalty.value(u)


def _shortened(
    forms: Sequence[Form],
    penalty: DensityTerm,
    where: tuple[np.ndarray, tuple[Eliminated, ...], float],
    step: tuple[np.ndarray, float],
) -> tuple[np.ndarray, tuple[Eliminated, ...], float] | None:
    """The longest of the halved steps that lowers the objective enough, or None where none does."""
    (u, _, value), (move, slope), length = where, step, 1.0
    while length > _SHORTEST:
        tried = np.maximum(u + length * move, max(penalty.floor, LEAST_DENSITY))
        points, found = _evaluated(forms, penalty, tried)
        if found <= value + _SUFFICIENT * length * slope + _NOISE * abs(value):
            return tried, points, found
        length *= 0.5
    return None
