"""The median distance between sampled rows, which is the bandwidth for sigma='median'."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from scipy.spatial import distance

from dkl.protocols.arrays import Rows, dense_rows

Metric = Literal["euclidean", "cityblock"]

# Rows whose pairwise distances define the median, and the most bytes of sparse rows made dense.
MAX_ROWS = 1_000
_DENSE_BYTES = 64 << 20


def median_distance(X: Rows, weights: np.ndarray | None = None, *, metric: Metric = "euclidean") -> float:
    """The median distance between two different rows of a sample.

    If more than half of the pairs are equal rows, it is the median of the positive distances.

    Parameters
    ----------
    X : ndarray or csr_array of shape (m, d)
        Scaled rows; the first 1,000 are used.
    weights : ndarray of shape (m,) or None
        Frequency weights: a row of weight w counts as w equal rows.
    metric : {"euclidean", "cityblock"}

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If all rows are equal, or there is only one, or the squares of their differences underflow.
    """
    n_rows = min(X.shape[0], MAX_ROWS)
    if sparse.issparse(X) and metric != "euclidean":
        n_rows = min(n_rows, max(2, _DENSE_BYTES // (8 * X.shape[1])))
    lengths = pair_distances(X[:n_rows], metric)
    masses = None
    if weights is not None:
        w = np.asarray(weights[:n_rows], dtype=np.float64)
        first, second = np.triu_indices(n_rows, 1)
        # a row of weight w has w_i w_j pairs with another one, and w (w - 1) / 2 pairs of copies at distance 0
        repeats = np.maximum(weights[:n_rows] * (weights[:n_rows] - 1.0), 0.0).sum() / 2.0
        lengths, masses = np.append(lengths, 0.0), np.append(w[first] * w[second], repeats)
    median = _median(lengths, masses)
    # more than half of the pairs are equal rows
    if median == 0.0:
        positive = lengths > 0.0
        median = _median(lengths[positive], None if masses is None else masses[positive])
    if median == 0.0:
        if not sparse.issparse(X) and n_rows and np.ptp(X[:n_rows], axis=0).any():
            raise ValueError(
                "the median distance between rows, which is the bandwidth sigma, is 0 though the rows differ: float64 "
                "does not hold the squares of such small differences (underflow). Scale the columns "
                "(scaling='standard'), or multiply them by a power of ten"
            )
        raise ValueError(
            "sigma='median' is the median distance between rows, which needs at least two rows that differ "
            f"(n_samples = {X.shape[0]} sampled rows are equal); give sigma a number, such as Gaussian(sigma=1.0)"
        )
    return median


def pair_distances(X: Rows, metric: Metric) -> np.ndarray:
    """The distances of all pairs i < j, in the order of `scipy.spatial.distance.pdist`."""
    if metric != "euclidean":
        return distance.pdist(np.asarray(dense_rows(X), dtype=np.float64), metric)
    # |x - y|^2 = |x|^2 + |y|^2 - 2 x.y; dense rows are centred, which reduces the rounding error of the difference
    rows = X.astype(np.float64)
    if isinstance(rows, np.ndarray):
        rows -= rows.mean(axis=0)
        norms, products = np.einsum("ij,ij->i", rows, rows), rows @ rows.T
    else:
        norms, products = np.asarray(rows.power(2).sum(axis=1)).ravel(), (rows @ rows.T).toarray()
    n, end = len(norms), 0
    squares = np.empty(n * (n - 1) // 2)
    # row by row, since all sums at once would take three times the memory of the products
    for i in range(n - 1):
        sums = norms[i] + norms[i + 1 :]
        start, end = end, end + len(sums)
        of_row = np.subtract(sums, 2.0 * products[i, i + 1 :], out=squares[start:end])
        # distances below the rounding error are those of equal rows
        of_row[of_row < 1e-13 * sums] = 0.0
    return np.sqrt(squares, out=squares)


def pair_bytes(n_rows: int) -> int:
    """Bytes of computing the median distance of `n_rows` sampled rows: products, pairwise distances, and a copy."""
    return 16 * min(n_rows, MAX_ROWS) ** 2


def _median(values: np.ndarray, masses: np.ndarray | None) -> float:
    """The weighted median (masses None: equal weights), the mean of two values on a tie; 0 without values."""
    if len(values) == 0 or (masses is not None and masses.sum() == 0.0):
        return 0.0
    if masses is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    # the values at which the cumulative mass reaches one half, from below and from above
    reached = np.cumsum(masses[order])
    half = reached[-1] / 2.0
    lower, upper = np.searchsorted(reached, half, side="left"), np.searchsorted(reached, half, side="right")
    return float((values[order[lower]] + values[order[min(upper, len(values) - 1)]]) / 2.0)
