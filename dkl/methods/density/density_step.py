"""The best density once coefficients are eliminated: data terms as functions of u, and Newton steps on u."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular

from dkl.solvers.density_term import LEAST_DENSITY, DensityTerm
from dkl.solvers.line_search import falling_step
from dkl.solvers.squared_sums import mirrored
from dkl.solvers.systems import factor_positive

# Addition to the diagonal, as a share of its mean, if rounding leaves a matrix indefinite in spite of lam.
_JITTER = 1e-15
# Relative difference of two objectives below which it counts as rounding.
_ROUNDING = 1e-15
# The most steps on a density; few suffice, see `tuned_density`.
_MOST_STEPS = 60


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The best coefficients w for a density u.

    Attributes
    ----------
    value : float
        ``tr(w'Aw)/2 - tr(C'w) + lam/2 sum |w_j|^2/u_j`` at these coefficients.
    ratios : ndarray of shape (m, K)
        w / u, which has a limit where u is 0.
    factor : ndarray
        The Cholesky factor of the linear system, which the curvature needs again.
    """

    value: float
    ratios: np.ndarray
    factor: np.ndarray


class Form(Protocol):
    """A data term as a convex function of the density: the minimum of penalised least squares for a given u."""

    lam: float

    def at(self, u: np.ndarray) -> Eliminated:
        """The best coefficients for a density of shape (D,)."""
        ...

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        """The second derivative in u at `point`, of shape (D, D)."""
        ...


class WholeForm:
    """(A + lam/u) w = C, scaled by sqrt(u) on both sides.

    Parameters
    ----------
    A : ndarray of shape (m, m)
        Symmetric, positive semidefinite: the covariance of m = parts D columns, ordered by part.
    C : ndarray of shape (m, K)
        In the range of A.
    lam : float
    """

    def __init__(self, A: np.ndarray, C: np.ndarray, lam: float) -> None:
        self.A, self.C, self.lam = A, C, lam

    def at(self, u: np.ndarray) -> Eliminated:
        # with w = sqrt(u) v the system is (sqrt(u) A sqrt(u) + lam) v = sqrt(u) C, whatever u is near to 0
        root = np.sqrt(on_columns(u, len(self.A)))[:, None]
        factor = ridge_factor(self.A * root * root.T, self.lam)
        scaled = lapack.dpotrs(factor, self.C * root, lower=0)[0]
        w = root * scaled
        positive = root > 0.0
        if positive.all():
            ratios = scaled / root
        else:
            # where u is 0 the equation itself determines w / u
            ratios = np.where(positive, scaled / np.where(positive, root, 1.0), (self.C - self.A @ w) / self.lam)
        return Eliminated(-0.5 * float(np.sum(self.C * w)), ratios, factor)

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        # B M^-1 B' = (1 - lam (sqrt(u) A sqrt(u) + lam)^-1) / (sqrt(u) sqrt(u)'), for A = BB' and M = B'uB + lam
        root = np.sqrt(np.maximum(on_columns(u, len(self.A)), np.finfo(float).tiny))
        inner = mirrored(lapack.dpotri(point.factor, lower=0)[0])
        inner *= -self.lam
        np.einsum("ii->i", inner)[:] += 1.0
        inner /= root
        inner /= root[:, None]
        inner *= point.ratios @ point.ratios.T
        # the cosine and the sine of a frequency share its density: their entries add
        D = len(u)
        parts = len(inner) // D
        return self.lam * inner.reshape(parts, D, parts, D).sum(axis=(0, 2))


class ThinForm:
    """For a small rank r: with A = BB' and C = Bt, w / u = B (B'uB + lam)^-1 t, an r x r system.

    Parameters
    ----------
    B : ndarray of shape (m, r)
        For columns of rows, the transpose of sqrt(s/N) (phi - mean).
    t : ndarray of shape (r, K)
    lam : float
    """

    def __init__(self, B: np.ndarray, t: np.ndarray, lam: float) -> None:
        self.B, self.t, self.lam = B, t, lam

    def at(self, u: np.ndarray) -> Eliminated:
        scaled = self.B * np.sqrt(on_columns(u, len(self.B)))[:, None]
        factor = ridge_factor(blas.dsyrk(1.0, scaled.T), self.lam)
        dual = lapack.dpotrs(factor, self.t, lower=0)[0]
        value = 0.5 * self.lam * float(np.sum(self.t * dual)) - 0.5 * float(np.sum(self.t**2))
        return Eliminated(value, self.B @ dual, factor)

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        D = len(u)
        whitened = solve_triangular(np.triu(point.factor), self.B.T, trans="T", check_finite=False)
        total = np.zeros((D, D))
        for ratio in point.ratios.T:
            moved = (whitened * ratio).reshape(len(whitened), -1, D).sum(axis=1)
            total += moved.T @ moved
        return self.lam * total


@dataclass(frozen=True, eq=False)
class DensityFit:
    """The result of Newton steps on the density.

    Attributes
    ----------
    density : ndarray of shape (D,)
    points : tuple of Eliminated
        For each data term its best coefficients at this density.
    value : float
        The sum of data terms and penalty.
    steps : int
    """

    density: np.ndarray
    points: tuple[Eliminated, ...]
    value: float
    steps: int

    @property
    def weights(self) -> list[np.ndarray]:
        """w of each data term, (m, K): the ratios w / u times the density of each column."""
        return [on_columns(self.density, len(point.ratios))[:, None] * point.ratios for point in self.points]


def tuned_density(
    forms: Sequence[Form], penalty: DensityTerm, start: np.ndarray, *, offset: float, tol: float
) -> DensityFit:
    """Minimise ``offset + sum of forms(u) + penalty(u)`` over the densities that the penalty allows.

    Each step goes towards the exact minimum of the second-order model over these densities, as far as it lowers the
    objective: few steps suffice, since the data terms are smooth and convex in u once w is eliminated.

    Parameters
    ----------
    forms : sequence of Form
    penalty : DensityTerm
    start : ndarray of shape (D,)
    offset : float
        The constant that the forms omit from the objective, to which `tol` is relative.
    tol : float
        The last step is one that promises to lower the objective by at most this share of it.
    """

    def evaluated(u: np.ndarray) -> tuple[float, tuple[np.ndarray, tuple[Eliminated, ...]]]:
        points = tuple(form.at(u) for form in forms)
        return sum(point.value for point in points) + penalty.value(u), (u, points)

    def after(
        u: np.ndarray, move: np.ndarray, length: float
    ) -> tuple[float, tuple[np.ndarray, tuple[Eliminated, ...]]]:
        return evaluated(np.maximum(u + length * move, max(penalty.floor, LEAST_DENSITY)))

    value, (u, points) = evaluated(penalty.inside(np.asarray(start, dtype=np.float64)))
    if penalty.fixed:
        return DensityFit(u, points, value + offset, 0)
    for step in range(_MOST_STEPS):
        gradient = density_gradient(forms, points, penalty, u)
        curvature = sum(form.curvature(u, point) for form, point in zip(forms, points, strict=True))
        move = penalty.quadratic_minimum(np.asarray(curvature), gradient, u) - u
        slope = float(gradient @ move)
        lower = falling_step(partial(after, u, move), value, slope, _ROUNDING)
        if lower is None:
            return DensityFit(u, points, value + offset, step)
        value, (u, points) = lower
        # a Newton step lowers a quadratic by half its slope
        if -0.5 * slope <= tol * abs(value + offset):
            return DensityFit(u, points, value + offset, step + 1)
    return DensityFit(u, points, value + offset, _MOST_STEPS)


def density_gradient(
    forms: Sequence[Form], points: Sequence[Eliminated], penalty: DensityTerm, u: np.ndarray
) -> np.ndarray:
    """The gradient in u once w is eliminated: Lam H (u - c) - lam/2 |w_j|^2/u_j^2."""
    gradient = penalty.gradient(u)
    for form, point in zip(forms, points, strict=True):
        gradient = gradient - 0.5 * form.lam * frequency_squares(point.ratios, len(u))
    return gradient


def frequency_squares(values: np.ndarray, n_frequencies: int) -> np.ndarray:
    """The squares of (m, K) values, summed over outputs and over the columns of each frequency: (D,)."""
    return np.einsum("pjk,pjk->j", *[values.reshape(-1, n_frequencies, values.shape[1])] * 2)


def on_columns(u: np.ndarray, m: int) -> np.ndarray:
    """The density (D,) of each of m columns, of which all cosines come first, then all sines."""
    return np.tile(u, m // len(u))


def ridge_factor(M: np.ndarray, lam: float) -> np.ndarray:
    """The upper factor of M + lam (M is overwritten), with a larger diagonal if rounding makes it indefinite.

    Raises
    ------
    ValueError
        If M is not finite.
    """
    np.einsum("ii->i", M)[:] += lam
    refusal = ValueError("the density or the sums of the mapped rows are not finite: give a larger Lam or lam")
    return factor_positive(lambda: np.array(M, order="F"), first=_JITTER, refusal=refusal)
