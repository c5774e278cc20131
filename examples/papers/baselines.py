"""What the papers compare with: kernel mixtures by alignment or joint optimisation, RBF landmarks.

Kernels are scaled to mean square length 1 of the training rows, so that weights can be compared. Each machine answers
`predict(X)` with -1 and +1, and holds kernels of all training rows: give it a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from sklearn.metrics import pairwise
from sklearn.svm import SVC, LinearSVC

Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]
Weigh = Callable[[Sequence[np.ndarray], np.ndarray, float], np.ndarray]

# rows whose kernels with the training rows are held at once
_CHUNK = 1_000
# rows that tell the bandwidth
_SAMPLE = 1_000


def median_distance(X: np.ndarray) -> float:
    """Of pairs of up to 1,000 rows."""
    some = X[np.random.default_rng(0).permutation(X.shape[0])[:_SAMPLE]]
    distances = pairwise.euclidean_distances(some)
    return float(np.median(distances[np.triu_indices(some.shape[0], 1)]))


def matern(X: np.ndarray, Y: np.ndarray, *, length: float) -> np.ndarray:
    """The Matern kernel of smoothness 3/2."""
    r = np.sqrt(3.0) / length * pairwise.euclidean_distances(X, Y)
    return (1.0 + r) * np.exp(-r)


def kernels_of(X: np.ndarray) -> dict[str, Kernel]:
    """Linear, quadratic, Gaussian and Matern 3/2, the last two at the median distance."""
    length = median_distance(X)
    plain: dict[str, Kernel] = {
        "linear": pairwise.linear_kernel,
        "quadratic": partial(pairwise.polynomial_kernel, degree=2, gamma=1.0 / X.shape[1], coef0=1.0),
        "Gaussian": partial(pairwise.rbf_kernel, gamma=0.5 / length**2),
        "Matern 3/2": partial(matern, length=length),
    }
    return {name: _unit(kernel, X) for name, kernel in plain.items()}


def _unit(kernel: Kernel, X: np.ndarray) -> Kernel:
    """The kernel over the mean square length that it gives to rows of X."""
    some = X[:: max(1, X.shape[0] // _SAMPLE)]
    scale = 1.0 / float(np.mean(np.diagonal(kernel(some, some))))
    return lambda left, right: scale * kernel(left, right)


def ratio_weights(grams: Sequence[np.ndarray], y: np.ndarray, C: float) -> np.ndarray:
    """Each kernel's alignment with the signs over the sum of all alignments: (2) of Gonen & Alpaydin 2011."""
    alignments = np.array([(y @ gram @ y) / (len(y) * np.linalg.norm(gram)) for gram in grams])
    weights = np.maximum(alignments, 0.0)
    return weights / weights.sum()


def joint_weights(
    grams: Sequence[np.ndarray], y: np.ndarray, C: float, *, rounds: int = 30, tol: float = 1e-3
) -> np.ndarray:
    """Weights on the simplex whose mixture has the least soft-margin objective: (9) of Gonen & Alpaydin 2011.

    The primal objective sum_m |w_m|^2 / (2 d_m) + C sum hinge is convex in w and d together: SVMs, and weights in
    proportion to |w_m|, take turns (Xu et al. 2010). Ends where max_m a'K_m a, the dual bound, is within `tol` of the
    mixture's a'K a.
    """
    weights = np.full(len(grams), 1.0 / len(grams))
    for _ in range(rounds):
        machine = SVC(C=C, kernel="precomputed").fit(mixed(grams, weights), y)
        alpha, rows = machine.dual_coef_[0], machine.support_
        squares = np.array([alpha @ gram[np.ix_(rows, rows)] @ alpha for gram in grams])
        if squares.max() - weights @ squares <= tol * (weights @ squares):
            break
        lengths = weights * np.sqrt(np.maximum(squares, 0.0))
        weights = lengths / lengths.sum()
    return weights


def mixed(grams: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """sum_m d_m K_m."""
    total = np.zeros_like(grams[0])
    for gram, weight in zip(grams, weights, strict=True):
        total += weight * gram
    return total


class KernelMixture:
    """An SVM on a mixture of the kernels of `kernels_of`; `weigh` is `ratio_weights` or `joint_weights`."""

    def __init__(self, weigh: Weigh, C: float = 1.0) -> None:
        self.weigh = weigh
        self.C = C

    def fit(self, X: np.ndarray, y: np.ndarray) -> KernelMixture:
        self.kernels_ = kernels_of(X)
        grams = [kernel(X, X) for kernel in self.kernels_.values()]
        self.weights_ = self.weigh(grams, y, self.C)
        self.machine_ = SVC(C=self.C, kernel="precomputed").fit(mixed(grams, self.weights_), y)
        self.rows_ = X
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        found = []
        for part in _parts(X):
            grams = [kernel(part, self.rows_) for kernel in self.kernels_.values()]
            found.append(self.machine_.predict(mixed(grams, self.weights_)))
        return np.concatenate(found)


class RBFLandmarks:
    """A linear SVM on exp(-|x - x_l|^2 / (2 sigma^2)) for a share of the training rows, x_l, drawn at random."""

    def __init__(self, C: float = 1.0, share: float = 0.1) -> None:
        self.C = C
        self.share = share

    def fit(self, X: np.ndarray, y: np.ndarray) -> RBFLandmarks:
        self.gamma_ = 0.5 / median_distance(X) ** 2
        self.landmarks_ = X[np.random.default_rng(0).permutation(X.shape[0])[: round(self.share * X.shape[0])]]
        self.machine_ = LinearSVC(C=self.C, dual=False).fit(self._mapped(X), y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.concatenate([self.machine_.predict(self._mapped(part)) for part in _parts(X)])

    def _mapped(self, X: np.ndarray) -> np.ndarray:
        return pairwise.rbf_kernel(X, self.landmarks_, gamma=self.gamma_)


def _parts(X: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, X.shape[0], _CHUNK):
        yield X[start : start + _CHUNK]
