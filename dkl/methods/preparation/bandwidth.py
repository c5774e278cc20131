"""The median distance between sampled rows, the bandwidth that sigma='median' stands for."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.spatial import distance

Metric = Literal["euclidean", "cityblock"]

MAX_ROWS = 1_000
_DENSE_BYTES = 64 << 20


def median_distance(X: Any, weights: np.ndarray | None = None, *, metric: Metric = "euclidean") -> float:
    """The median distance between two different rows of a sample.

    Where more than half of the pairs are equal rows, the median of the positive distances instead.

    Parameters
    ----------
    X : ndarray or csr_array of shape (m, d)
        Scaled rows; the first 1,000 are used.
    weights : ndarray of shape (m,) or None
        Frequency weights: a row of weight w stands for w equal rows.
    metric : {"euclidean", "cityblock"}

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If all rows are equal, or there is only one.
    """
    rows = _rows_used(X, metric)
    lengths = _distances(X[:rows], metric)
    masses = None
    if weights is not None:
        masses = _pair_masses(np.asarray(weights[:rows], dtype=np.float64))
        repeats = np.maximum(weights[:rows] * (weights[:rows] - 1.0), 0.0).sum() / 2.0
        lengths, masses = np.append(lengths, 0.0), np.append(masses, repeats)
    median = _median(lengths, masses)
    if median == 0.0:
        positive = lengths > 0.0
        median = _median(lengths[positive], None if masses is None else masses[positive])
    if median == 0.0:
        raise ValueError(
            "sigma='median' is the median distance between rows, which needs at least two rows that differ "
            f"(n_samples = {X.shape[0]} sampled rows are equal); give sigma a number, such as Gaussian(sigma=1.0)"
        )
    return median


def _rows_used(X: Any, metric: Metric) -> int:
    rows = min(X.shape[0], MAX_ROWS)
    if sparse.issparse(X) and metric != "euclidean":
        rows = min(rows, max(2, _DENSE_BYTES // (8 * X.shape[1])))
    return rows


def _distances(X: Any, metric: Metric) -> np.ndarray:
    """The distances of all pairs i < j, in the order of `scipy.spatial.distance.pdist`."""
    if metric != "euclidean":
        return distance.pdist(np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64), metric)
    rows = X.astype(np.float64)
    if sparse.issparse(rows):
        norms, products = np.asarray(rows.power(2).sum(axis=1)).ravel(), (rows @ rows.T).toarray()
    else:
        rows -= rows.mean(axis=0)
        norms, products = np.einsum("ij,ij->i", rows, rows), rows @ rows.T
    upper = np.triu_indices(len(norms), 1)
    sums = (norms[:, None] + norms)[upper]
    squares = sums - 2.0 * products[upper]
    # what is left of equal rows after cancellation is not a distance
    squares[squares < 1e-13 * sums] = 0.0
    return np.sqrt(squares)


def _pair_masses(weights: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(len(weights), 1)
    return weights[first] * weights[second]


def _median(values: np.ndarray, masses: np.ndarray | None) -> float:
    """The median, the mean of the two middle values where the mass (None: one each) splits evenly; 0 of nothing."""
    if len(values) == 0 or (masses is not None and masses.sum() == 0.0):
        return 0.0
    if masses is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(masses[order])
    half = reached[-1] / 2.0
    lower, upper = np.searchsorted(reached, half, side="left"), np.searchsorted(reached, half, side="right")
    return float((values[order[lower]] + values[order[min(upper, len(values) - 1)]]) / 2.0)
