"""Penalised least squares for a given density, the coefficients eliminated: value, gradient and curvature in u."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular

from dkl.solvers.cholesky import factorise

# of the mean of the diagonal: what rounding needs where lam alone leaves a matrix indefinite
_JITTER = 1e-15


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The best coefficients for a density.

    Attributes
    ----------
    value : float
        Of ``tr(w'Aw)/2 - tr(C'w) + lam/2 sum |w_j|^2/u_j`` at them.
    pulls : ndarray of shape (m, K)
        w / u, which has a limit where u is 0.
    factor : ndarray
        What the curvature needs.
    """

    value: float
    pulls: np.ndarray
    factor: np.ndarray


class Form(Protocol):
    """A data term as a convex function of the density."""

    lam: float

    def at(self, u: np.ndarray) -> Eliminated:
        """Eliminate the coefficients for a density of shape (D,)."""
        ...

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        """The second derivative by u at `point`, of shape (D, D)."""
        ...


class WholeForm:
    """(A + lam/u) w = C, scaled by sqrt(u) on both sides.

    Parameters
    ----------
    A : ndarray of shape (m, m)
        Symmetric, positive semidefinite: the covariance of m = parts D columns, those of one part together.
    C : ndarray of shape (m, K)
        In the range of A.
    lam : float
    """

    def __init__(self, A: np.ndarray, C: np.ndarray, lam: float) -> None:
        self.A, self.C, self.lam = A, C, lam

    def at(self, u: np.ndarray) -> Eliminated:
        root = np.sqrt(_columns(u, len(self.A)))[:, None]
        factor = _cholesky(self.A * root * root.T, self.lam)
        scaled = lapack.dpotrs(factor, self.C * root, lower=0)[0]
        w = root * scaled
        held = root > 0.0
        # at u = 0 the equation itself tells w / u
        pulls = scaled / root if held.all() else np.where(held, scaled / np.where(held, root, 1.0), self._rest(w))
        return Eliminated(-0.5 * float(np.sum(self.C * w)), pulls, factor)

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        # B M^-1 B' = (1 - lam (sqrt(u) A sqrt(u) + lam)^-1) / (sqrt(u) sqrt(u)')
        root = np.sqrt(np.maximum(_columns(u, len(self.A)), np.finfo(float).tiny))
        inner = lapack.dpotri(point.factor, lower=0)[0]
        inner = np.triu(inner) + np.triu(inner, 1).T
        inner *= -self.lam
        np.einsum("ii->i", inner)[:] += 1.0
        inner /= root
        inner /= root[:, None]
        inner *= point.pulls @ point.pulls.T
        D = len(u)
        parts = len(inner) // D
        return self.lam * inner.reshape(parts, D, parts, D).sum(axis=(0, 2))

    def _rest(self, w: np.ndarray) -> np.ndarray:
        return (self.C - self.A @ w) / self.lam


class ThinForm:
    """For a small rank r: with A = BB' and C = Bt, w / u = B (B'uB + lam)^-1 t, an r x r system.

    Parameters
    ----------
    B : ndarray of shape (m, r)
        For columns of rows, those of sqrt(s/N) (phi - mean) transposed.
    t : ndarray of shape (r, K)
    lam : float
    """

    def __init__(self, B: np.ndarray, t: np.ndarray, lam: float) -> None:
        self.B, self.t, self.lam = B, t, lam

    def at(self, u: np.ndarray) -> Eliminated:
        scaled = self.B * np.sqrt(_columns(u, len(self.B)))[:, None]
        factor = _cholesky(blas.dsyrk(1.0, scaled.T), self.lam)
        dual = lapack.dpotrs(factor, self.t, lower=0)[0]
        value = 0.5 * self.lam * float(np.sum(self.t * dual)) - 0.5 * float(np.sum(self.t**2))
        return Eliminated(value, self.B @ dual, factor)

    def curvature(self, u: np.ndarray, point: Eliminated) -> np.ndarray:
        D = len(u)
        spread = solve_triangular(np.triu(point.factor), self.B.T, trans="T", check_finite=False)
        total = np.zeros((D, D))
        for pull in point.pulls.T:
            moved = (spread * pull).reshape(len(spread), -1, D).sum(axis=1)
            total += moved.T @ moved
        return self.lam * total


def frequency_squares(values: np.ndarray, n_frequencies: int) -> np.ndarray:
    """sum over parts and outputs of the squares of (m, K) values, one a frequency: (D,)."""
    return np.einsum("pjk,pjk->j", *[values.reshape(-1, n_frequencies, values.shape[1])] * 2)


def _columns(u: np.ndarray, m: int) -> np.ndarray:
    """The density of every column."""
    return np.tile(u, m // len(u))


def _cholesky(M: Any, lam: float) -> np.ndarray:
    """The upper factor of M + lam (M is overwritten), with a growing diagonal where rounding needs one.

    Raises
    ------
    ValueError
        If M is not finite.
    """
    diagonal = np.einsum("ii->i", M)
    diagonal += lam
    if not np.isfinite(M).all():
        raise ValueError("the density or the sums of the mapped rows are not finite: give a larger Lam or lam")
    jitter = 0.0
    while True:
        factor = np.array(M, order="F")
        if factorise(factor):
            return factor
        more = max(_JITTER, 10.0 * jitter)
        diagonal += (more - jitter) * float(diagonal.mean())
        jitter = more
