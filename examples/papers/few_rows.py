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
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.sparse.linalg import LinearOperator, cg
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
# Exchanges of all wrong numbers that may not help before the end, which is then a step like any other.
_PATIENCE = 10
# The longest step beyond a Newton step, in lengths of it.
_FARTHEST = 128.0
# A meta-kernel is near the identity where the rest of each row adds up to less.
_NEAR = 0.5
# Densities above the floor by less than this share of the largest stand on it.
_FLOOR = 1e-10
# Conjugate gradients on a quadratic model end at this residual, relative to its right side.
_RESIDUAL = 1e-12
# Of support vector machines: the tolerance of libsvm on the gradient of the dual, and the share of C by which a dual
# weight must be off its bounds to count as free.
_SVM_TOL, _FREE = 1e-4, 1e-6


class Meta:
    """H = (G + c I)^-1 G (G + c I)^-1 with c = gamma D: G is the RBF meta-kernel on the frequencies.

    Of a short meta-kernel G is the identity and a few entries E for close pairs of frequencies: H is then applied by a
    series in E. Else its columns are solved for as they are asked for, each once.

    Parameters
    ----------
    W : ndarray of shape (D, d)
    length_scale, gamma : float
    """

    def __init__(self, W: np.ndarray, length_scale: float, gamma: float) -> None:
        self.n_frequencies = len(W)
        self.shift = gamma * len(W)
        gram = RBFMetaKernel(length_scale=length_scale).gram(W)
        # row sums bound the spectrum of E = G - I
        self.most = float((gram.sum(axis=1) - 1.0).max())
        self.is_near_identity = self.most < _NEAR
        if self.is_near_identity:
            gram[np.diag_indices_from(gram)] = 0.0
            gram[gram < np.finfo(float).eps ** 2] = 0.0
            self.close = sparse.csr_array(gram)
        else:
            gram[np.diag_indices_from(gram)] += self.shift
            self.factor = cho_factor(gram, overwrite_a=True, check_finite=False)
            self.kept = np.zeros(len(W), bool)
            self.columns_ = np.empty((len(W), len(W)), order="F")

    @property
    def diagonal(self) -> float:
        """H of frequencies far from each other, 1 / (1 + c)^2."""
        return 1.0 / (1.0 + self.shift) ** 2

    def columns(self, index: np.ndarray) -> np.ndarray:
        """H[:, index], (D, |index|), where G is not near the identity."""
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
        """H e for a vector (D,)."""
        if not self.is_near_identity:
            index = np.flatnonzero(e)
            return self.columns(index) @ e[index]
        once = self._solved(e)
        return self._solved(once + self.close @ once)

    def _solved(self, e: np.ndarray) -> np.ndarray:
        """(G + c I)^-1 e = sum_k (-E / (1 + c))^k e / (1 + c)."""
        term = e / (1.0 + self.shift)
        total = term.copy()
        # each term is _NEAR of the one before it, or less
        while self.close.nnz and np.abs(term).max() > np.finfo(float).eps * np.abs(total).max():
            term = self.close @ term / -(1.0 + self.shift)
            total += term
        return total


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
    """A density, the kernel matrix of the training rows with it, the model of these rows and the objective."""

    density: np.ndarray
    kernel: np.ndarray
    point: Point
    value: float
    steps: int


def tuned(
    phi: np.ndarray,
    data: DataTerm,
    meta: Meta,
    lam: float,
    Lam: float,
    *,
    plain: np.ndarray,
    start: tuple[np.ndarray, np.ndarray] | None = None,
    tol: float,
) -> Found:
    """Minimise mean loss + lam/2 sum_j |w_j|^2/u_j + Lam/2 (u - 1)'H(u - 1) over weights, intercepts and u >= 1.

    Parameters
    ----------
    phi : ndarray of shape (n, 2 D)
        Mapped training rows, of amplitudes 1/sqrt(D): all cosines, then all sines.
    data : DataTerm
        Of the targets of these rows.
    meta : Meta
    lam, Lam : float
    plain : ndarray of shape (n, n)
        phi phi'.
    start : pair of ndarray or None
        A density nearby and the kernel matrix of the rows with it; the problem is convex, so that they save steps and
        change nothing.
    tol : float
        The last step is one that promises to lower the objective by no more than this share of it.

    References
    ----------
    Shilton et al. 2022, equation (22).
    """
    D = meta.n_frequencies
    cosines_sines = phi.reshape(len(phi), 2, D)

    def kernel_of(e: np.ndarray) -> np.ndarray:
        index = np.flatnonzero(e)
        if not len(index):
            return plain
        half = (cosines_sines if len(index) == D else cosines_sines[:, :, index]) * np.sqrt(e[index])
        half = half.reshape(len(phi), -1)
        return plain + half @ half.T

    def model(e: np.ndarray, kernel: np.ndarray) -> tuple[Point, np.ndarray, float]:
        point, resisted = data.at(kernel), meta.times(e)
        return point, resisted, point.value + 0.5 * Lam * float(e @ resisted)

    e, kernel = (np.zeros(D), plain) if start is None else (start[0] - 1.0, start[1])
    point, resisted, value = model(e, kernel)
    stiffness = _LEAST_STIFFNESS
    for step in range(_MOST_STEPS):
        ratios = (point.rows.T @ phi).reshape(-1, 2, D)
        squares = np.sum(ratios**2, axis=(0, 1))
        gradient = Lam * resisted - 0.5 * lam * squares
        moving, share = _moving(e, gradient, meta.is_near_identity)
        if not len(moving):
            break
        features = cosines_sines if len(moving) == D else cosines_sines[:, :, moving]
        M = np.concatenate(
            [point.whiten(k, np.einsum("npf,pf->nf", features, of[:, moving])) for k, of in enumerate(ratios)]
        )
        bound = lam * squares[moving] / (1.0 + e[moving])
        while True:
            added = stiffness * bound
            if meta.is_near_identity:
                model_of_step = NearlySeparable(meta, moving, Lam, added, np.sqrt(lam) * M)
                target = model_of_step.minimum(gradient[moving], e[moving])
            else:
                Q = Lam * meta.columns(moving)[moving] + lam * (M.T @ M)
                Q[np.diag_indices_from(Q)] += added
                target = bounded_minimum(Q, gradient[moving] - Q @ e[moving], 0.0, e[moving] > 0.0)
            move = target - e[moving]
            slope = float(gradient[moving] @ move)
            tried = e.copy()
            # an interior-point method leaves what belongs on the floor a little above it
            tried[moving] = np.where(target > _FLOOR * target.max(), target, 0.0)
            # a Newton step lowers a quadratic by half its slope; frequencies that have to wait want no more than others
            is_last = -0.5 * slope <= share * tol * value
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
        rising = np.maximum(tried - e, 0.0)
        e, kernel, point, resisted, value = tried, tried_kernel, tried_point, tried_resisted, tried_value
        if is_last:
            return Found(1.0 + e, kernel, point, value, step + 1)
        if kept > 1.0:
            # the data term falls as 1 / u does, of which a quadratic model sees a part: the densities that rise go on
            # as long as the objective falls, along a line on which kernel and H e need no new sums
            more, resisted_more, length = kernel_of(rising) - plain, meta.times(rising), 1.0
            while length < _FARTHEST:
                farther, farther_kernel = e + length * rising, kernel + length * more
                farther_resisted = resisted + length * resisted_more
                farther_point = data.at(farther_kernel)
                farther_value = farther_point.value + 0.5 * Lam * float(farther @ farther_resisted)
                if farther_value >= value:
                    break
                e, kernel, resisted = farther, farther_kernel, farther_resisted
                point, value, length = farther_point, farther_value, 2.0 * length
    return Found(1.0 + e, kernel, point, value, _MOST_STEPS)


def predicted(found: Found, phi: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Answers (m, K) of the model of the mapped rows `phi` (n, 2 D) at other mapped rows (m, 2 D)."""
    weights = np.tile(found.density, 2)[:, None] * (phi.T @ found.point.rows)
    return others @ weights + found.point.intercept


def _moving(e: np.ndarray, gradient: np.ndarray, every: bool) -> tuple[np.ndarray, float]:
    """Frequencies above the floor, and those that most want to leave it; and their share of all that want to."""
    leaving = np.flatnonzero((e == 0.0) & (gradient < 0.0))
    above = np.flatnonzero(e > 0.0)
    most = max(_AT_ONCE, 2 * len(above))
    if every or len(leaving) <= most:
        return np.sort(np.concatenate([above, leaving])), 1.0
    chosen = leaving[np.argsort(gradient[leaving])[:most]]
    return np.sort(np.concatenate([above, chosen])), most / len(leaving)


class NearlySeparable:
    """The quadratic form v'(Lam H + added + M'M)v / 2 of some frequencies, H nearly a multiple of the identity.

    Parameters
    ----------
    meta : Meta
    index : ndarray of int
        The frequencies, F of them.
    Lam : float
    added : ndarray of shape (F,)
    M : ndarray of shape (r, F)
    """

    def __init__(self, meta: Meta, index: np.ndarray, Lam: float, added: np.ndarray, M: np.ndarray) -> None:
        self.meta, self.index, self.Lam, self.added, self.M = meta, index, Lam, added, M
        self.diagonal = added + Lam * meta.diagonal

    def times(self, v: np.ndarray) -> np.ndarray:
        """The matrix times a vector (F,)."""
        whole = np.zeros(self.meta.n_frequencies)
        whole[self.index] = v
        return self.Lam * self.meta.times(whole)[self.index] + self.added * v + self.M.T @ (self.M @ v)

    def minimum(self, gradient: np.ndarray, e: np.ndarray) -> np.ndarray:
        """The z >= 0 that minimises gradient.(z - e) plus the form of z - e: block pivoting, nearly exact."""
        linear = gradient - self.times(e)
        free, fewest, patience = (e > 0.0) | (gradient < 0.0), len(e) + 1, _PATIENCE
        z = e
        while True:
            z = self._stationary(linear, free, z)
            wrong = np.where(free, z < 0.0, self.times(z) + linear < 0.0)
            count = int(wrong.sum())
            patience = _PATIENCE if count < fewest else patience - 1
            fewest = min(fewest, count)
            if count == 0 or patience == 0:
                return np.maximum(z, 0.0)
            free ^= wrong

    def _stationary(self, linear: np.ndarray, free: np.ndarray, start: np.ndarray) -> np.ndarray:
        """The point with no slope along the free numbers; the others are 0."""
        M, diagonal = self.M[:, free], self.diagonal[free]
        factor = np.linalg.cholesky(np.eye(len(M)) + (M / diagonal) @ M.T) if len(M) else None

        def separable(q: np.ndarray) -> np.ndarray:
            # Woodbury: (d + M'M)^-1 q = (q - M' (1 + M d^-1 M')^-1 M d^-1 q) / d
            if factor is None:
                return q / diagonal
            return (q - M.T @ cho_solve((factor, True), M @ (q / diagonal), check_finite=False)) / diagonal

        def product(v: np.ndarray) -> np.ndarray:
            whole = np.zeros(len(free))
            whole[free] = v
            return self.times(whole)[free]

        z, size = np.zeros(len(free)), int(free.sum())
        if not self.meta.close.nnz:
            z[free] = separable(-linear[free])
        elif size:
            operators = [LinearOperator((size, size), matvec=of, dtype=float) for of in (product, separable)]
            z[free], _ = cg(operators[0], -linear[free], x0=start[free], rtol=_RESIDUAL, maxiter=200, M=operators[1])
        return z
