"""The minimum of a convex quadratic over x >= 0 by a primal-dual interior-point method, with a lower bound of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve

from dkl.solvers.cholesky import factorise

_MOST_STEPS = 60
# The share of the way to the nearest bound that a step goes.
_TO_BOUND = 0.995
# The gap that is lost in rounding, as a share of the terms that make up the value.
_TOL = 1e-15
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class BoundedMinimum:
    """Where the quadratic is least, and how far below its value there the minimum can be.

    Parameters
    ----------
    point : ndarray of shape (m,)
        x >= 0.
    multipliers : ndarray of shape (m,)
        s >= 0; the gradient at x but for rounding.
    value : float
        At `point`.
    gap : float
        x.(s + |gradient - s|): the least value is not below ``value - gap``.
    steps : int
    """

    point: np.ndarray
    multipliers: np.ndarray
    value: float
    gap: float
    steps: int


def minimise_quadratic(A: np.ndarray, b: np.ndarray) -> BoundedMinimum:
    """The least ``x'A x / 2 - b.x`` over x >= 0, A positive semidefinite; some 15 steps whatever the condition of A.

    Mehrotra's predictor and corrector, one Cholesky factor of m x m a step; it ends when the gap is lost in rounding.

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
    # The start: all x equal, near the best such point, and multipliers as large as the gradient there.
    curvature = float(A.sum())
    x = np.full(len(b), float(np.abs(b).sum()) / curvature if curvature > 0.0 else 1.0)
    gradient = A @ x - b
    s = np.maximum(gradient, max(float(np.abs(gradient).mean()), float(np.finfo(np.float64).tiny)))
    best = _measured(A, b, x, s)
    for step in range(1, _MOST_STEPS + 1):
        if best.point @ best.multipliers == 0.0:
            # The numbers are so small that their products are 0: there is nothing left to centre.
            break
        better = replace(_stepped(A, b, best), steps=step)
        # A gap that is made of rounding alone does not shrink any more.
        stands = best.point @ best.multipliers <= _tolerance(A, b, best) and better.gap > 0.5 * best.gap
        if stands or not np.isfinite(better.gap):
            break
        best = better
        if best.gap <= _tolerance(A, b, best):
            break
    return best


def _tolerance(A: np.ndarray, b: np.ndarray, at: BoundedMinimum) -> float:
    """The rounding of the value at a point, of which the gap cannot fall much below."""
    return _TOL * float(0.5 * at.point @ (A @ at.point) + np.abs(b) @ at.point)


def _stepped(A: np.ndarray, b: np.ndarray, at: BoundedMinimum) -> BoundedMinimum:
    """One step of Mehrotra's method: a predictor with products of 0, and a corrector on one factor of the matrix."""
    x, s = at.point, at.multipliers
    root = np.sqrt(x / s)
    factor = scaled_factor(A, root)
    residual = A @ x - b - s
    dx, ds = _direction(factor, root, residual, -x * s, at)
    # The mean product that the corrector aims at, by how far the predictor gets.
    now, ahead = float(x @ s), float((x + share_to_bound(x, dx) * dx) @ (s + share_to_bound(s, ds) * ds))
    centring = now / len(x) * min(1.0, ahead / now) ** 3
    dx, ds = _direction(factor, root, residual, centring - x * s - dx * ds, at)
    # One length for both: the residual is linear in (x, s), so that it shrinks by the share of the step that is taken.
    length = min(share_to_bound(x, dx), share_to_bound(s, ds))
    return _measured(A, b, x + length * dx, s + length * ds)


def scaled_factor(A: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, bool]:
    """Cholesky of I + R A R, R = diag(root): no eigenvalue is below 1 but by rounding, which is outweighed."""
    for added in (0.0, *(_EPS * len(root) * 100.0**k for k in range(7))):
        scaled = root[:, None] * A
        scaled *= root
        diagonal = np.einsum("ii->i", scaled)
        diagonal += 1.0 + added * diagonal.max()
        # The transpose of a symmetric matrix in C order is the same matrix in LAPACK's order.
        if factorise(scaled.T):
            return scaled.T, False
    raise FloatingPointError("the quadratic is not convex: its matrix has eigenvalues far below zero")


def _direction(
    factor: tuple[np.ndarray, bool], root: np.ndarray, residual: np.ndarray, products: np.ndarray, at: BoundedMinimum
) -> tuple[np.ndarray, np.ndarray]:
    """The Newton direction of A x - b = s and of x s, which is to change by `products`."""
    dx = root * cho_solve(factor, root * (products / at.point - residual), check_finite=False)
    return dx, (products - at.multipliers * dx) / at.point


def share_to_bound(values: np.ndarray, change: np.ndarray) -> float:
    """The step that keeps positive values positive, at most 1."""
    falls = change < 0.0
    return min(1.0, _TO_BOUND * float(np.min(-values[falls] / change[falls], initial=np.inf)))


def _measured(A: np.ndarray, b: np.ndarray, x: np.ndarray, s: np.ndarray) -> BoundedMinimum:
    """A point with its value and its gap: any s >= 0 makes a lower bound, whatever residual it leaves."""
    Ax = A @ x
    return BoundedMinimum(x, s, float(0.5 * x @ Ax - b @ x), float(x @ (s + np.abs(Ax - b - s))), 0)
