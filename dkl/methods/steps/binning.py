"""Bins of columns, whose edges are the possible thresholds, computed from a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dkl.kernels.threads import Crew
from dkl.protocols.arrays import Rows

# A value with at least this multiple of an average bin's weight gets its own bin, so that half of the bins are left for
# the other values.
_HEAVY = 2.0


@dataclass(frozen=True, eq=False)
class ColumnBins:
    """The bins of d columns.

    Attributes
    ----------
    edges : ndarray of shape (d, bins), float64
        Ascending; column j has ``n_edges[j]`` edges, followed by +inf.
    n_edges : ndarray of shape (d,), int64
    low, high : ndarray of shape (d,), float64
        The means of the first and of the last bin, where hinges begin and end.
    center, scale : ndarray of shape (d,), float64
        Mean and deviation of the values, clipped to `low` and `high`; 1 for the deviation of a constant column.
    values : ndarray of shape (d, bins), float64
        The mean of each bin, minus `center` and divided by `scale`; 0 beyond the last bin.
    """

    edges: np.ndarray
    n_edges: np.ndarray
    low: np.ndarray
    high: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    values: np.ndarray


def column_bins(X: Rows, weight: np.ndarray, bins: int) -> ColumnBins:
    """Bins of the columns of rows in memory.

    A value with more than an average bin's weight has its own bin; the other edges cut the rest into bins of equal
    weight. Each edge is in the middle between two neighbouring values.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    weight : ndarray of shape (n,), float64
        Positive.
    bins : int
        The most edges of a column, at most 255.
    """
    d = X.shape[1]
    low, high, center = np.zeros((3, d))
    edges, values = np.full((d, bins), np.inf), np.zeros((d, bins))
    out = ColumnBins(edges, np.zeros(d, np.int64), low, high, center, np.ones(d), values)
    by_column: Any = sparse.csc_array(X) if sparse.issparse(X) else X
    is_weighted = not np.all(weight == 1.0)

    def cut(j: int) -> None:
        """Write the bins of column j."""
        column = by_column[:, [j]].toarray().ravel() if sparse.issparse(by_column) else by_column[:, j]
        column = np.asarray(column, dtype=np.float64)
        if is_weighted:
            values, inverse = np.unique(column, return_inverse=True)
            counts = np.bincount(inverse, weight, len(values))
        else:
            # no place of each row among the values, which takes twenty times as long to find where there are two
            values, whole = np.unique(column, return_counts=True)
            counts = whole.astype(np.float64)
        cuts = _cuts(counts, bins)
        out.n_edges[j] = len(cuts)
        out.edges[j, : len(cuts)] = _midpoint(values[cuts], values[cuts + 1])
        first, last = (slice(None), slice(None)) if len(cuts) == 0 else (slice(cuts[0] + 1), slice(cuts[-1] + 1, None))
        out.low[j] = np.average(values[first], weights=counts[first])
        out.high[j] = np.average(values[last], weights=counts[last])
        inside = np.clip(values, out.low[j], out.high[j])
        out.center[j] = np.average(inside, weights=counts)
        # divided by the largest one first, since squares of numbers beyond 1e154 overflow
        apart = np.abs(inside - out.center[j])
        largest = apart.max()
        out.scale[j] = largest * np.sqrt(np.average((apart / largest) ** 2, weights=counts)) if largest > 0.0 else 1.0
        code = np.searchsorted(out.edges[j, : len(cuts)], values, side="left")
        totals = np.bincount(code, counts, bins)
        means = np.bincount(code, counts * (inside - out.center[j]), bins) / np.where(totals > 0.0, totals, 1.0)
        out.values[j] = means / out.scale[j]

    Crew().map(cut, range(d))
    return out


def _cuts(counts: np.ndarray, bins: int) -> np.ndarray:
    """The positions, in the sorted distinct values with these weights, after which there is an edge."""
    if len(counts) <= bins:
        return np.arange(len(counts) - 1)
    heavy = counts >= _HEAVY * counts.sum() / bins
    light = np.where(heavy, 0.0, counts)
    # each heavy value uses two edges
    left = max(1, bins - 2 * int(heavy.sum()))
    number = np.floor((np.cumsum(light) - light / 2.0) / max(light.sum(), np.finfo(np.float64).tiny) * left)
    return np.flatnonzero((number[1:] != number[:-1]) | heavy[1:] | heavy[:-1])[: bins - 1]


def _midpoint(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The middle of two values; the lower one if rounding would give the upper."""
    middle = lower + (upper - lower) / 2.0
    return np.where(middle < upper, middle, lower)
