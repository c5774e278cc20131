"""Minimises a convex quadratic over x >= 0 by a primal-dual interior-point method, with a bound of the error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve

from dkl.solvers.systems import factor_positive

# The most steps of the method, which usually takes about 15.
_MOST_STEPS = 60
# A step goes at most this share of the way to the nearest bound, so that variables stay positive.
_TO_BOUND = 0.995
# The gap at which the method ends, relative to the sizes of the terms in the value: smaller gaps are rounding errors.
_TOL = 1e-15
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class BoundedMinimum:
    """The point at which the method ended, and a bound of how far its value is above the minimum.

    Parameters
    ----------
    point : ndarray of shape (m,)
        x >= 0.
    multipliers : ndarray of shape (m,)
        s >= 0, equal to the gradient at x up to rounding.
    value : float
        The quadratic at `point`.
    gap : float
        x.(s + |gradient - s|): the minimum is not below ``value - gap``.
    steps : int
        The number of steps of the method.
    """

    point: np.ndarray
    multipliers: np.ndarray
    value: float
    gap: float
    steps: int


def minimise_quadratic(A: np.ndarray, b: np.ndarray) -> BoundedMinimum:
    """Minimise ``x'A x / 2 - b.x`` over x >= 0 for a positive semidefinite A, in about 15 steps for any condition of A.

    Mehrotra's predictor-corrector method with one Cholesky factorisation (m x m) in each step; it ends when the gap is
    as small as rounding errors.

    Parameters
    ----------
    A : ndarray of shape (m, m)
    b : ndarray of shape (m,)

    Returns
    -------
    BoundedMinimum

    References
    ----------
    Mehrotra 1992, "On the implementation of a primal-dual interior point method".

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.interior_point import minimise_quadratic
    >>> minimise_quadratic(np.eye(2), np.array([3.0, -1.0])).point.round(6).tolist()
    [3.0, 0.0]
    """
    if np.all(b <= 0.0):
        return BoundedMinimum(np.zeros(len(b)), -b, 0.0, 0.0, 0)
    # The start: all x equal and of about the best size, and multipliers of the size of the gradient there.
    curvature = float(A.sum())
    x = np.full(len(b), float(np.abs(b).sum()) / curvature if curvature > 0.0 else 1.0)
    gradient = A @ x - b
    s = np.maximum(gradient, max(float(np.abs(gradient).mean()), float(np.finfo(np.float64).tiny)))
    best = _measured(A, b, x, s)
    for step in range(1, _MOST_STEPS + 1):
        if best.point @ best.multipliers == 0.0:
            # All products have underflowed to 0, so that no further step is possible.
            break
        better = replace(_stepped(A, b, best), steps=step)
        # The gap consists of rounding errors and no longer shrinks.
        stands = best.point @ best.multipliers <= _tolerance(A, b, best) and better.gap > 0.5 * best.gap
        if stands or not np.isfinite(better.gap):
            break
        best = better
        if best.gap <= _tolerance(A, b, best):
            break
    return best


def _tolerance(A: np.ndarray, b: np.ndarray, at: BoundedMinimum) -> float:
    """The rounding error of the value at a point; gaps cannot fall much below it."""
    return _TOL * float(0.5 * at.point @ (A @ at.point) + np.abs(b) @ at.point)


def _stepped(A: np.ndarray, b: np.ndarray, at: BoundedMinimum) -> BoundedMinimum:
    """One step of Mehrotra's method: a predictor that aims at products of 0, and a corrector with the same factor."""
    x, s = at.point, at.multipliers
    root = np.sqrt(x / s)
    factor = scaled_factor(A, root)
    residual = A @ x - b - s
    dx, ds = _direction(factor, root, residual, -x * s, at)
    # The mean product that the corrector aims at follows from the products that the predictor reaches.
    now, ahead = float(x @ s), float((x + share_to_bound(x, dx) * dx) @ (s + share_to_bound(s, ds) * ds))
    centring = now / len(x) * min(1.0, ahead / now) ** 3
    dx, ds = _direction(factor, root, residual, centring - x * s - dx * ds, at)
    # The same length for x and s: the residual is linear in (x, s), and shrinks by that share.
    length = min(share_to_bound(x, dx), share_to_bound(s, ds))
    return _measured(A, b, x + length * dx, s + length * ds)


def scaled_factor(A: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of I + R A R, R = diag(root); the diagonal is raised where rounding makes it indefinite."""

    def form() -> np.ndarray:
        scaled = root[:, None] * A
        scaled *= root
        np.einsum("ii->i", scaled)[:] += 1.0
        # The transpose of a symmetric matrix in C order is the matrix in Fortran order, which LAPACK needs.
        return scaled.T

    first = _EPS * len(root)
    refusal = FloatingPointError("the quadratic is not convex: its matrix has eigenvalues far below zero")
    return factor_positive(form, first=first, most=1e12 * first, refusal=refusal), False


def _direction(
    factor: tuple[np.ndarray, bool], root: np.ndarray, residual: np.ndarray, products: np.ndarray, at: BoundedMinimum
) -> tuple[np.ndarray, np.ndarray]:
    """The Newton direction (dx, ds) that solves A x - b = s and changes x s by `products`."""
    dx = root * cho_solve(factor, root * (products / at.point - residual), check_finite=False)
    return dx, (products - at.multipliers * dx) / at.point


def share_to_bound(values: np.ndarray, change: np.ndarray) -> float:
    """The longest share of `change`, at most 1, that keeps positive values positive."""
    falls = change < 0.0
    return min(1.0, _TO_BOUND * float(np.min(-values[falls] / change[falls], initial=np.inf)))


def _measured(A: np.ndarray, b: np.ndarray, x: np.ndarray, s: np.ndarray) -> BoundedMinimum:
    """The point (x, s) with its value and gap; any s >= 0 gives a valid lower bound."""
    Ax = A @ x
    return BoundedMinimum(x, s, float(0.5 * x @ Ax - b @ x), float(x @ (s + np.abs(Ax - b - s))), 0)
