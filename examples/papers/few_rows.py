"""The minimum of `dkl.TunedRegressor`, and of `dkl.TunedClassifier` with the hinge, by algebra on few rows.

A search over hyper-parameters at fixed frequencies solves the same problem thousands of times, on some hundred rows and
up to 1,600 frequencies. With its coefficients eliminated the problem is one of the density u alone, and its data term
depends on u through the kernel matrix of the rows, K_u = sum_j u_j z_j z_j' (n x n): a ridge on it for squared errors,
a support vector machine for the hinge. Newton steps move the frequencies whose density is above its floor of 1 and
those that want to leave it, mostly few, and the meta-kernel needs Cholesky's factor instead of a spectrum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular
from sklearn.svm import SVC

from dkl.methods.density.meta_kernels import RBFMetaKernel
from dkl.solvers.block_pivoting import bounded_minimum

# A step that lowers the objective by less than this share of what its model promises is not taken: the model gets
# stiffer instead, by this factor, and after a good step softer again.
_KEPT, _GOOD, _STIFFER = 0.1, 0.7, 10.0
# The least stiffness, as a share of the curvature of sum_j |w_j|^2 / u_j at fixed weights, which bounds that of the
# data term from above. It keeps the quadratic model definite.
_LEAST_STIFFNESS, _MOST_STIFFNESS = 1e-6, 1e3
# Frequencies that may leave the floor in one step: so many, or twice those that have left it already.
_AT_ONCE = 128
_MOST_STEPS = 100
# Of support vector machines: the tolerance of libsvm on the gradient of the dual, and the share of C by which a dual
# weight must be off its bounds to count as free.
_SVM_TOL, _FREE = 1e-4, 1e-6


class Meta:
    """H = (G + c I)^-1 G (G + c I)^-1 with c = gamma D, by columns: G is the RBF meta-kernel on the frequencies.

    Parameters
    ----------
    W : ndarray of shape (D, d)
    length_scale, gamma : float
    rounding : float
        G counts as the identity where the rest of each row adds up to less. H is then wrong by three times this share
        at most, and so is the penalty.
    """

    def __init__(self, W: np.ndarray, length_scale: float, gamma: float, rounding: float = 1e-15) -> None:
        self.n_frequencies = len(W)
        self.shift = gamma * len(W)
        gram = RBFMetaKernel(length_scale=length_scale).gram(W)
        self.is_identity = bool((gram.sum(axis=1) - 1.0).max() < rounding)
        if not self.is_identity:
            gram[np.diag_indices_from(gram)] += self.shift
            self.factor = cho_factor(gram, overwrite_a=True, check_finite=False)
            self.kept = np.zeros(len(W), bool)
            self.columns_ = np.empty((len(W), len(W)), order="F")

    def columns(self, index: np.ndarray) -> np.ndarray:
        """H[:, index], (D, |index|); kept, so that each column is solved for once."""
        missing = index[~self.kept[index]]
        if len(missing):
            unit = np.zeros((self.n_frequencies, len(missing)), order="F")
            unit[missing, np.arange(len(missing))] = 1.0
            # with A = G + c I: A^-1 G A^-1 = A^-1 (I - c A^-1)
            once = cho_solve(self.factor, unit, check_finite=False)
            self.columns_[:, missing] = cho_solve(self.factor, unit - self.shift * once, check_finite=False)
            self.kept[missing] = True
        return self.columns_[:, index]

    def times(self, e: np.ndarray) -> np.ndarray:
        """H e for a vector (D,) that is 0 at most places."""
        if self.is_identity:
            return e / (1.0 + self.shift) ** 2
        index = np.flatnonzero(e)
        return self.columns(index) @ e[index]


@dataclass(frozen=True, eq=False)
class Point:
    """The best coefficients for a density, as weights of the training rows.

    Attributes
    ----------
    value : float
        The mean loss and the ridge at them.
    rows : ndarray of shape (n, K)
        Dual weights: w_j / u_j is their sum times the features of the rows.
    intercept : ndarray of shape (K,)
    whiten : callable
        From an output and features (n, F) of the training rows to a matrix M for which lam M'M, of the features times
        w / u, is the second derivative of `value`.
    """

    value: float
    rows: np.ndarray
    intercept: np.ndarray
    whiten: Callable[[int, np.ndarray], np.ndarray]


class DataTerm(Protocol):
    """A mean loss plus ridge as a function of the kernel matrix of its rows."""

    def at(self, kernel: np.ndarray) -> Point:
        """The best model for this (n, n) matrix."""
        ...


class SquaredErrors:
    """Half the mean squared error of targets (n, K), an intercept, and lam/2 |w|^2: kernel ridge regression."""

    def __init__(self, targets: np.ndarray, lam: float) -> None:
        self.targets, self.lam, self.n = targets, lam, len(targets)
        self.center = targets.mean(axis=0)
        self.t = (targets - self.center) / np.sqrt(self.n)

    def at(self, kernel: np.ndarray) -> Point:
        means = kernel.mean(axis=0)
        M = (kernel - means - means[:, None] + means.mean()) / self.n
        M[np.diag_indices_from(M)] += self.lam
        factor = np.linalg.cholesky(M)
        dual = cho_solve((factor, True), self.t, check_finite=False)
        rows = (dual - dual.mean(axis=0)) / np.sqrt(self.n)

        def whiten(output: int, features: np.ndarray) -> np.ndarray:
            centred = (features - features.mean(axis=0)) / np.sqrt(self.n)
            return solve_triangular(factor, centred, lower=True, check_finite=False)

        value = 0.5 * self.lam * float(np.sum(self.t * dual))
        return Point(value, rows, self.center - means @ rows, whiten)


class Hinge:
    """The mean hinge of signs (n, K), an intercept, and lam/2 |w|^2: support vector machines, one for each output."""

    def __init__(self, signs: np.ndarray, lam: float) -> None:
        self.signs, self.lam, self.n = signs, lam, len(signs)

    def at(self, kernel: np.ndarray) -> Point:
        C, value, rows, intercept, parts = 1.0 / (self.n * self.lam), 0.0, [], [], []
        for y in self.signs.T:
            machine = SVC(C=C, kernel="precomputed", tol=_SVM_TOL, cache_size=500).fit(kernel, y)
            weights = np.zeros(self.n)
            weights[machine.support_] = machine.dual_coef_[0]
            fitted = kernel @ weights
            # from below, by the dual: lam (sum_i a_i - w'w / 2)
            value += self.lam * (float(np.abs(weights).sum()) - 0.5 * float(weights @ fitted))
            size = np.abs(weights)
            free = np.flatnonzero((size > _FREE * C) & (size < (1.0 - _FREE) * C))
            rows.append(weights)
            intercept.append(float(machine.intercept_[0]))
            parts.append((free, kernel[np.ix_(free, free)]))

        def whiten(output: int, features: np.ndarray) -> np.ndarray:
            # only dual weights between their bounds move with the density, and their sum stays
            free, inner = parts[output]
            if len(free) < 2:
                return np.zeros((0, features.shape[1]))
            jitter = 1e-10 * float(np.trace(inner)) / len(free)
            factor = np.linalg.cholesky(inner + jitter * np.eye(len(free)))
            both = np.column_stack([np.ones(len(free)), features[free]])
            both = solve_triangular(factor, both, lower=True, check_finite=False)
            one = both[:, 0] / np.linalg.norm(both[:, 0])
            return both[:, 1:] - np.outer(one, one @ both[:, 1:])

        return Point(value, np.stack(rows, axis=1), np.array(intercept), whiten)


@dataclass(frozen=True, eq=False)
class Found:
    """A density, the kernel matrix of all rows with it, the model of the training rows and the objective."""

    density: np.ndarray
    kernel: np.ndarray
    point: Point
    value: float
    steps: int


def tuned(
    phi: np.ndarray,
    train: np.ndarray,
    data: DataTerm,
    meta: Meta,
    lam: float,
    Lam: float,
    *,
    start: Found | None = None,
    plain: np.ndarray | None = None,
    tol: float,
) -> Found:
    """Minimise mean loss + lam/2 sum_j |w_j|^2/u_j + Lam/2 (u - 1)'H(u - 1) over weights, intercepts and u >= 1.

    Parameters
    ----------
    phi : ndarray of shape (N, 2 D)
        All mapped rows, of amplitudes 1/sqrt(D): all cosines, then all sines.
    train : ndarray of int
        Places of the rows that `data` has the targets of.
    data : DataTerm
    meta : Meta
    lam, Lam : float
    start : Found or None
        Of a problem nearby; the problem is convex, so that it saves steps and changes nothing.
    plain : ndarray of shape (N, N) or None
        phi phi', where it is known.
    tol : float
        The last step is one that promises to lower the objective by no more than this share of it.

    References
    ----------
    Shilton et al. 2022, equation (22).
    """
    D = meta.n_frequencies
    plain = phi @ phi.T if plain is None else plain
    cosines_sines, of_train = phi.reshape(len(phi), 2, D), np.ix_(train, train)

    def kernel_of(e: np.ndarray) -> np.ndarray:
        index = np.flatnonzero(e)
        if not len(index):
            return plain
        half = (cosines_sines[:, :, index] * np.sqrt(e[index])).reshape(len(phi), -1)
        return plain + half @ half.T

    def model(e: np.ndarray, kernel: np.ndarray) -> tuple[Point, np.ndarray, float]:
        point, resisted = data.at(kernel[of_train]), meta.times(e)
        return point, resisted, point.value + 0.5 * Lam * float(e @ resisted)

    e = np.zeros(D) if start is None else start.density - 1.0
    kernel = plain if start is None else start.kernel
    point, resisted, value = model(e, kernel)
    stiffness = _LEAST_STIFFNESS
    for step in range(_MOST_STEPS):
        ratios = (point.rows.T @ phi[train]).reshape(-1, 2, D)
        squares = np.sum(ratios**2, axis=(0, 1))
        gradient = Lam * resisted - 0.5 * lam * squares
        moving, is_all = _moving(e, gradient, meta.is_identity)
        if not len(moving):
            break
        features = cosines_sines[train][:, :, moving]
        M = np.concatenate(
            [point.whiten(k, np.einsum("npf,pf->nf", features, of[:, moving])) for k, of in enumerate(ratios)]
        )
        bound = lam * squares[moving] / (1.0 + e[moving])
        while True:
            added = stiffness * bound
            if meta.is_identity:
                diagonal = added + Lam / (1.0 + meta.shift) ** 2
                target = _separable_minimum(diagonal, np.sqrt(lam) * M, gradient[moving], e[moving])
            else:
                Q = Lam * meta.columns(moving)[moving] + lam * (M.T @ M)
                Q[np.diag_indices_from(Q)] += added
                target = bounded_minimum(Q, gradient[moving] - Q @ e[moving], 0.0, e[moving] > 0.0)
            move = target - e[moving]
            slope = float(gradient[moving] @ move)
            tried = e.copy()
            tried[moving] = np.maximum(target, 0.0)
            # a Newton step lowers a quadratic by half its slope
            is_last = -0.5 * slope <= tol * value and is_all
            tried_kernel = kernel_of(tried)
            tried_point, tried_resisted, tried_value = model(tried, tried_kernel)
            kept = (value - tried_value) / (-0.5 * slope) if slope < 0.0 else 0.0
            if kept >= _KEPT:
                break
            # what is so little may be rounding, or what libsvm leaves
            if is_last or stiffness > _MOST_STIFFNESS:
                return Found(1.0 + e, kernel, point, value, step)
            stiffness = max(_STIFFER * stiffness, 1e-3)
        if kept > _GOOD:
            stiffness = max(stiffness / _STIFFER, _LEAST_STIFFNESS)
        e, kernel, point, resisted, value = tried, tried_kernel, tried_point, tried_resisted, tried_value
        if is_last:
            return Found(1.0 + e, kernel, point, value, step + 1)
    return Found(1.0 + e, kernel, point, value, _MOST_STEPS)


def predicted(found: Found, train: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Answers (n, K) of the model at other rows of `phi`."""
    return found.kernel[np.ix_(places, train)] @ found.point.rows + found.point.intercept


def _moving(e: np.ndarray, gradient: np.ndarray, every: bool) -> tuple[np.ndarray, bool]:
    """Frequencies above the floor, those that want to leave it first; and whether these are all that want to."""
    leaving = np.flatnonzero((e == 0.0) & (gradient < 0.0))
    above = np.flatnonzero(e > 0.0)
    most = max(_AT_ONCE, 2 * len(above))
    if every or len(leaving) <= most:
        return np.sort(np.concatenate([above, leaving])), True
    return np.sort(np.concatenate([above, leaving[np.argsort(gradient[leaving])[:most]]])), False


def _separable_minimum(diagonal: np.ndarray, M: np.ndarray, gradient: np.ndarray, e: np.ndarray) -> np.ndarray:
    """The z >= 0 that minimises g.(z - e) + (z - e)'(diag + M'M)(z - e)/2: pivoting, by systems of the rows of M."""
    linear = gradient - diagonal * e - M.T @ (M @ e)
    free, fewest, patience = (e > 0.0) | (gradient < 0.0), len(e) + 1, 10
    while True:
        z, index = np.zeros(len(e)), np.flatnonzero(free)
        scaled = M[:, index] / diagonal[index]
        # Woodbury: (d + M'M)^-1 q = (q - M' (1 + M d^-1 M')^-1 M d^-1 q) / d
        inner = np.eye(len(M)) + scaled @ M[:, index].T
        # without a row of M there is no system to solve
        solved = lapack.dposv(inner, scaled @ linear[index])[1] if len(M) else np.zeros(0)
        z[index] = -(linear[index] - M[:, index].T @ solved) / diagonal[index]
        wrong = np.where(free, z < 0.0, diagonal * z + M.T @ (M @ z) + linear < 0.0)
        count = int(wrong.sum())
        patience = 10 if count < fewest else patience - 1
        fewest = min(fewest, count)
        if count == 0 or patience == 0:
            return np.maximum(z, 0.0)
        free ^= wrong
