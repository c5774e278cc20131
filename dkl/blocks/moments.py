"""Moments and extremes of the columns, block by block: what the scalers are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dkl.blocks.block import Block
from dkl.blocks.records import Cost, Fold

_TILE_VALUES = 1 << 20


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted moments of d columns.

    Parameters
    ----------
    weight : float
        Sum of the rows' weights.
    mean : ndarray of shape (d,), float64
    deviation : ndarray of shape (d,), float64
        Weighted sums of squared differences from the mean.
    low, high : ndarray of shape (d,), float64
        Extremes; +-infinity while there are no rows.
    norm : float
        The largest Euclidean norm of a row over the columns that are scaled.
    """

    weight: float
    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    norm: float

    @property
    def variance(self) -> np.ndarray:
        """Population variances, of shape (d,)."""
        return self.deviation / self.weight


def no_moments(n_columns: int) -> Moments:
    """The moments of no rows."""
    zeros = np.zeros(n_columns)
    return Moments(0.0, zeros, zeros, np.full(n_columns, np.inf), np.full(n_columns, -np.inf), 0.0)


def merge_moments(first: Moments, second: Moments) -> Moments:
    """The moments of both sets of rows together (Chan, Golub & LeVeque 1983): nothing cancels for large means."""
    if second.weight == 0.0:
        return first
    if first.weight == 0.0:
        return second
    weight = first.weight + second.weight
    step = second.mean - first.mean
    return Moments(
        weight,
        first.mean + step * (second.weight / weight),
        first.deviation + second.deviation + np.square(step) * (first.weight * second.weight / weight),
        np.minimum(first.low, second.low),
        np.maximum(first.high, second.high),
        max(first.norm, second.norm),
    )


def column_moments(X: Any, weights: np.ndarray, scaled: np.ndarray | None = None) -> Moments:
    """The moments of the columns of `X`.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    weights : ndarray of shape (n,)
    scaled : ndarray of shape (d,), bool, or None
        The columns that count for the norm of a row; None is all of them.

    Returns
    -------
    Moments
    """
    total = no_moments(X.shape[1])
    tile = max(1, _TILE_VALUES // max(X.shape[1], 1)) if not sparse.issparse(X) else max(X.shape[0], 1)
    one_tile = _sparse_moments if sparse.issparse(X) else _dense_moments
    for start in range(0, X.shape[0], tile):
        total = merge_moments(total, one_tile(X[start : start + tile], weights[start : start + tile], scaled))
    return total


def _dense_moments(X: np.ndarray, weights: np.ndarray, scaled: np.ndarray | None) -> Moments:
    rows = np.asarray(X, dtype=np.float64)
    weight = float(weights.sum())
    mean = (rows * weights[:, None]).sum(axis=0) / weight
    deviation = (np.square(rows - mean) * weights[:, None]).sum(axis=0)
    norms = np.square(rows if scaled is None else rows[:, scaled]).sum(axis=1)
    return Moments(weight, mean, deviation, rows.min(axis=0), rows.max(axis=0), float(np.sqrt(norms.max())))


def _sparse_moments(X: sparse.csr_array, weights: np.ndarray, scaled: np.ndarray | None) -> Moments:
    rows = X.astype(np.float64)
    columns, width = rows.indices, rows.shape[1]
    entry_weights = np.repeat(weights, np.diff(rows.indptr))
    weight = float(weights.sum())
    mean = np.bincount(columns, entry_weights * rows.data, minlength=width) / weight
    stored = np.bincount(columns, entry_weights, minlength=width)
    squares = np.bincount(columns, entry_weights * np.square(rows.data - mean[columns]), minlength=width)
    deviation = squares + np.maximum(weight - stored, 0.0) * np.square(mean)
    counted = rows if scaled is None else rows[:, np.flatnonzero(scaled)]
    norms = np.asarray(counted.power(2).sum(axis=1)).ravel()
    low, high = (np.asarray(extreme.todense()).ravel() for extreme in (rows.min(axis=0), rows.max(axis=0)))
    return Moments(weight, mean, deviation, low, high, float(np.sqrt(norms.max())))


def block_moments(block: Block, operands: Mapping[str, Any]) -> Iterator[Moments]:
    """The moments of one block, as the one piece of a Fold."""
    yield column_moments(block.X, block.weights, operands.get("scaled"))


def add_moments(state: Moments, piece: Moments, operands: Mapping[str, Any]) -> Moments:
    """One step of the Fold."""
    return merge_moments(state, piece)


def moments_record(n_columns: int, scaled: np.ndarray | None = None) -> Fold:
    """The record of the pass: a Fold, since extremes do not add up."""
    nbytes = 5 * 8 * n_columns
    return Fold(
        name="moments",
        initial=no_moments(n_columns),
        step=add_moments,
        prepare=block_moments,
        operands={} if scaled is None else {"scaled": scaled},
        piece_bytes=nbytes,
        state_bytes=nbytes,
        cost=_moments_cost,
    )


def _moments_cost(rows: int, columns: int) -> Cost:
    return Cost(flops=8.0 * rows * columns, scratch_bytes=4 * 8 * min(rows * columns, max(_TILE_VALUES, columns)))
