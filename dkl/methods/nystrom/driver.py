"""The choice of landmarks of a kernel from a sample of the rows, in one pass, and the whitening of their kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import lapack
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from dkl.errors import refuse_non_finite
from dkl.features.nystrom_projection import in_metric
from dkl.features.scaling import Scaler
from dkl.kernels.landmark_tiles import KernelValues
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import one_blas_thread
from dkl.protocols.arrays import dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample
from dkl.solvers.systems import factor_positive

Landmarks = Literal["uniform", "kmeans", "leverage", "rpcholesky"]

# Added to the diagonal of the landmarks' kernel matrix, as a share of its mean; more if it has no Cholesky factor then.
_JITTER = 1e-8
# The most steps of k-means: few, since landmarks must be spread, not optimal.
_KMEANS_STEPS = 10
# Halvings, on a logarithmic scale, of the interval that holds the ridge of leverage scores; its lower end, as a share
# of the largest eigenvalue.
_HALVINGS, _LEAST_RIDGE = 60, 1e-12
# Pivots end when the residual of the kernel, in the mean over the rows, is below this: the rest is rounding.
_LEAST_RESIDUAL = 1e-12
# Part of the seed of the choice, so that it does not depend on other draws of the fit.
_STREAM = 0x4E59


@dataclass(frozen=True, eq=False)
class NystromProblem:
    """The choice of landmarks: kernel, number, and rule.

    Parameters
    ----------
    kernel : Family
        With its bandwidth.
    scaler : Scaler or None
    n_landmarks : int
    n_rows, sample_rows : int
        The number of all rows, and the size of the sample from which landmarks are chosen.
    how : {"uniform", "kmeans", "leverage", "rpcholesky"}
    seed : int
    metric : ndarray of shape (d,) or (d, d), or None
        The metric of the projection, in which landmarks are chosen and stored.
    """

    kernel: Any
    scaler: Scaler | None
    n_landmarks: int
    n_rows: int
    sample_rows: int
    how: Landmarks
    seed: int
    metric: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class NystromState:
    """The landmarks, scaled and in the metric, of shape (l, d); None before the pass."""

    landmarks: np.ndarray | None = None


class NystromDriver:
    """Chooses landmarks from one pass for a sample of the rows."""

    def init(self, problem: NystromProblem) -> NystromState:
        """The state before landmarks are chosen."""
        return NystromState()

    def request(self, problem: NystromProblem, state: NystromState) -> Sequence[Record] | None:
        """The sample; None once landmarks are chosen."""
        return None if state.landmarks is not None else [self._sample(problem)]

    def step(self, problem: NystromProblem, state: NystromState, results: Sequence[Any]) -> NystromState:
        """The state with the landmarks chosen from the sample."""
        sample: Block = results[0]
        weight = sample.drawn_from(problem.n_rows).weights
        rows = in_metric(dense_rows(scale_rows(sample.X, problem.scaler, "float64")), problem.metric)
        chosen = choose_landmarks(rows, weight, problem.n_landmarks, problem.kernel, problem.how, problem.seed)
        return NystromState(np.asarray(chosen, dtype=np.float64))

    def plan(self, problem: NystromProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """One pass."""
        return [([self._sample(problem)], 1)]

    def memory(self, problem: NystromProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sample, of its similarities to the landmarks, and of the landmarks' matrices."""
        rows = problem.sample_rows
        # landmarks are rows of the sample
        m = min(problem.n_landmarks, rows)
        similarities = 0 if problem.how == "uniform" else 2 * 8 * rows * m
        return {
            "sampled rows": 3 * rows * row_bytes,
            "similarities of sampled rows": similarities,
            "matrices of the landmarks": 4 * 8 * m**2,
        }

    def _sample(self, problem: NystromProblem) -> RowSample:
        return RowSample("rows to choose landmarks from", problem.sample_rows, problem.seed)


@one_blas_thread()
def choose_landmarks(
    rows: np.ndarray, weight: np.ndarray, m: int, kernel: Any, how: Landmarks, seed: int
) -> np.ndarray:
    """m landmarks, or all distinct rows if these are fewer.

    Parameters
    ----------
    rows : ndarray of shape (n, d), float64
        Scaled rows of a sample, in the order in which it was drawn.
    weight : ndarray of shape (n,)
        The weights of the rows.
    m : int
    kernel : Family
    how : {"uniform", "kmeans", "leverage", "rpcholesky"}
        "uniform": the first rows of the sample. "kmeans": centroids of the rows. "leverage": rows drawn by their ridge
        leverage scores. "rpcholesky": rows drawn one after the other, by the residual of the kernel given the earlier
        ones.
    seed : int

    Returns
    -------
    ndarray of shape (at most m, d)
    """
    rng = np.random.default_rng([seed, _STREAM])
    _, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    # each row once, in the order of the sample, with the weight of all that equal it
    distinct, total = rows[first[order]], np.bincount(place.ravel(), weight)[order]
    if how == "uniform" or len(distinct) <= m:
        return distinct[:m]
    if how == "kmeans":
        means = KMeans(m, init=distinct[:m], n_init=1, max_iter=_KMEANS_STEPS, random_state=0)
        # threads add their own sums to the centroids in the order in which they end
        with threadpool_limits(1, user_api="openmp"):
            means.fit(rows, sample_weight=weight)
        return np.unique(means.cluster_centers_, axis=0)
    if how == "leverage":
        scores = leverage_scores(distinct, total, kernel, m)
        return distinct[np.sort(rng.choice(len(distinct), m, replace=False, p=scores / scores.sum()))]
    return distinct[np.sort(pivots(distinct, kernel, m, rng))]


def leverage_scores(rows: np.ndarray, weight: np.ndarray, kernel: Any, m: int) -> np.ndarray:
    """Approximate ridge leverage scores of rows, l_i = phi_i' (Phi'Phi + nu I)^-1 phi_i, of shape (n,).

    phi is the whitened kernel at the first m rows; nu is such that the scores sum to about m / 2, the degrees of
    freedom of the corresponding ridge model (El Alaoui & Mahoney 2015).
    """
    phi = KernelValues(kernel, rows[:m], np.dtype(np.float64))(rows) @ whitening_of(rows[:m], kernel)
    values, vectors = np.linalg.eigh((phi * weight[:, None]).T @ phi)
    values = np.maximum(values, 0.0)
    low, high = _LEAST_RIDGE * values.max(), values.sum()
    for _ in range(_HALVINGS):
        nu = np.sqrt(low * high)
        low, high = (nu, high) if np.sum(values / (values + nu)) > m / 2 else (low, nu)
    return np.sum((phi @ vectors) ** 2 / (values + nu), axis=1) + np.finfo(np.float64).tiny


def pivots(rows: np.ndarray, kernel: Any, m: int, rng: np.random.Generator) -> np.ndarray:
    """Rows chosen by randomly pivoted Cholesky, (m,) int64: each with probability proportional to its residual k(x, x).

    Chen, Epperly, Tropp & Webber 2023, algorithm 2.1.
    """
    left = np.array([kernel.kernel(row[None])[0, 0] for row in rows])
    factor, chosen = np.zeros((len(rows), m)), []
    for i in range(m):
        total = left.sum()
        if not total > _LEAST_RESIDUAL * len(rows):
            break
        pivot = int(rng.choice(len(rows), p=left / total))
        column = kernel.kernel(rows, rows[pivot][None])[:, 0] - factor[:, :i] @ factor[pivot, :i]
        if not column[pivot] > 0.0:
            left[pivot] = 0.0
            continue
        factor[:, i] = column / np.sqrt(column[pivot])
        left = np.maximum(left - factor[:, i] ** 2, 0.0)
        left[pivot] = 0.0
        chosen.append(pivot)
    return np.array(chosen, dtype=np.int64)


@one_blas_thread()
def whitening_of(landmarks: np.ndarray, kernel: Any) -> np.ndarray:
    """A = L^-T with L L^T = k(Z, Z) + e I, so that |k(x, Z) A|^2 is the kernel's own norm of x: (l, l) float64."""
    matrix = KernelValues(kernel, landmarks, np.dtype(np.float64))(landmarks)
    refuse_non_finite(matrix.diagonal(), "the kernel of landmark", "scale the rows (scaling='standard')")
    factor = factor_positive(lambda: np.array(matrix, order="F"), _JITTER * matrix.diagonal().mean())
    # the inverse of the upper factor R = L^T; what is below the diagonal of R is undefined
    return np.triu(lapack.dtrtri(factor, overwrite_c=1)[0])
