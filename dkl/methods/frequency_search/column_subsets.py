"""Subsets of columns in which chains of a search move: the deviation of each column, and which columns correlate."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dkl.features.frequencies import stream
from dkl.kernels.device import array_module, on_host
from dkl.kernels.moments import dense_sums
from dkl.protocols.arrays import Rows

# The fewest and the most columns of a neighbourhood.
NARROWEST, WIDEST = 10, 150
# Rows with fewer columns that vary have no neighbourhoods.
LEAST_COLUMNS = 2 * WIDEST
# The most rows whose correlations define neighbourhoods.
_ROWS = 2_048
# A column whose standard deviation is a smaller share of the largest one belongs to no neighbourhood.
_LEAST_DEVIATION = 0.1
# Neighbourhoods are used if the median, over columns, of the correlation with the _NEIGHBOUR-th nearest column is at
# least _RELATED: pixels of digits have .7; histograms of gradients have .24, where neighbourhoods gained nothing clear,
# and one-hot columns .13, where they cost accuracy.
_NEIGHBOUR, _RELATED = 4, 0.4


def column_scales(X: Rows, weight: np.ndarray | None = None) -> np.ndarray:
    """Standard deviations of columns of (weighted) rows, (d,), float64; 0 for columns that vary only by rounding."""
    if isinstance(X, np.ndarray):
        weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
        mean, square = dense_sums(X, weight) / weight.sum()
    elif weight is not None:
        share = array_module(X).asarray(weight / weight.sum())
        squares = X.multiply(X) if hasattr(X, "multiply") else X * X
        mean, square = on_host(X.T @ share), on_host(squares.T @ share)
    elif sparse.issparse(X) or hasattr(X, "toarray"):
        mean = np.asarray(on_host(X.mean(axis=0)), dtype=np.float64).ravel()
        square = np.asarray(on_host(X.multiply(X).mean(axis=0)), dtype=np.float64).ravel()
    else:
        mean = on_host(X.mean(axis=0, dtype=np.float64))
        square = on_host((X * X).mean(axis=0, dtype=np.float64))
    # E x^2 - (E x)^2 has rounding errors of the size of either term; a column below these is constant
    variance = square - mean**2
    return np.sqrt(np.where(variance > 1e-7 * square, variance, 0.0))


def neighbourhoods(X: Rows, scales: np.ndarray, count: int, seed: int) -> np.ndarray | None:
    """Randomly drawn columns, each with the columns of the strongest correlation with it.

    Parameters
    ----------
    X : ndarray or CuPy array of shape (n, d)
    scales : ndarray of shape (d,)
        Deviations of its columns.
    count : int
        The number of columns to draw.
    seed : int

    Returns
    -------
    ndarray of shape (count, WIDEST), int64, or None
        The drawn column first, then its neighbours; -1 for no column. Sizes range from `NARROWEST` to `WIDEST`, evenly
        on a logarithmic scale. None if fewer than `LEAST_COLUMNS` columns vary, or correlations are weak.
    """
    free = np.flatnonzero(scales >= _LEAST_DEVIATION * scales.max(initial=0.0))
    if len(free) < LEAST_COLUMNS or scales[free[0]] == 0.0:
        return None
    generator = stream(seed, "neighbourhoods")
    centres = generator.choice(len(free), count)
    sizes = np.exp(generator.uniform(np.log(NARROWEST), np.log(WIDEST + 1), count)).astype(np.int64)
    rows = on_host(X[:: -(-X.shape[0] // _ROWS)])[:, free]
    # |covariance| with each column over that column's deviation: the correlation times the deviation of the centre
    at_centres = rows[:, centres]
    covariances = (at_centres - at_centres.mean(axis=0)).T @ rows / len(rows)
    strengths = np.abs(covariances) / scales[free]
    # the column itself comes first
    strengths[np.arange(count), centres] = np.inf
    order = np.argsort(-strengths, axis=1, kind="stable")[:, :WIDEST]
    fourth = strengths[np.arange(count), order[:, _NEIGHBOUR]] / scales[free[centres]]
    if np.median(fourth) < _RELATED:
        return None
    columns = free[order]
    columns[np.arange(WIDEST) >= sizes[:, None]] = -1
    return columns
