"""Moments and extremes of the columns, block by block, from which scalers are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from dkl.errors import ColumnError
from dkl.kernels.compiled import njit
from dkl.kernels.device import array_module, sums_on_host, tile_rows, with_targets
from dkl.kernels.tiles import spans
from dkl.process import TwoForms
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost

# Arrays of the size of a tile that exist at once on a GPU.
_ARRAYS = 3
# Numbers of a tile, whose float64 temporaries, three times its size, fit the second-level cache.
_TILE_VALUES = 1 << 18
# Below this a float64 square has fewer than 20 binary digits, and below 2^-537 it is 0.
LEAST_SQUARED = 2.0**-527


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted moments of d columns.

    Parameters
    ----------
    weight : float
        Sum of the rows' weights.
    mean, variance : ndarray of shape (d,), float64
        Population variance: squared differences over the weight.
    low, high : ndarray of shape (d,), float64
        Extremes.
    norm : float
        The largest Euclidean norm of a row over the scaled columns.
    """

    weight: float
    mean: np.ndarray
    variance: np.ndarray
    low: np.ndarray
    high: np.ndarray
    norm: float


def column_sums(X: Rows, weights: np.ndarray, scaled: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The sums and extremes of the columns of some rows, from which `moments_of` computes moments.

    Squares are split at the mean of the rows, into `within` (differences from it) and `between` (its own square), so
    that a column of large mean and small spread keeps its digits.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), or CuPy array
    weights : array of shape (n,)
        On the device of the rows.
    scaled : ndarray of shape (d,), bool, or None
        Columns for the norm of a row; None is all of them.

    Returns
    -------
    dict of ndarray
        weight (), sums, within, between, high, depth (the largest of -x), each of shape (d,), and norm (), on the
        device of the rows.
    """
    if X.shape[0] == 0:
        return {name: np.full(shape, start) for name, (shape, start) in _empty(X.shape[1]).items()}
    if sparse.issparse(X):
        return _sparse_sums(X, weights, scaled)
    xp = array_module(X)
    tile = max(1, _TILE_VALUES // X.shape[1]) if xp is np else tile_rows(_ARRAYS * X.shape[1], 8)
    tiles = [_dense_sums(X[rows], weights[rows], scaled) for rows in spans(X.shape[0], tile)]
    stacked = {name: xp.stack([sums[name] for sums in tiles]) for name in tiles[0]}
    return {
        name: parts.sum(axis=0) if _COMBINE[name] == "add" else parts.max(axis=0) for name, parts in stacked.items()
    }


@np.errstate(over="ignore", invalid="ignore")
def moments_of(sums: Mapping[str, np.ndarray]) -> Moments:
    """The moments from the sums of `column_sums` over all blocks."""
    weight = float(sums["weight"])
    mean = sums["sums"] / weight
    between = sums["between"] - weight * np.square(mean)
    # sum_b W_b m_b^2 - W m^2 is the variance between the means m_b of the blocks. Both terms are large if the mean is,
    # and a difference below the rounding errors of the squares counts as 0.
    noise = 16.0 * np.finfo(np.float64).eps * sums["between"]
    variance = (sums["within"] + np.where(between > noise, between, 0.0)) / weight
    return Moments(weight, mean, variance, -sums["depth"], sums["high"], float(sums["norm"]))


def refuse_lost_squares(moments: Moments, what: str, counted: np.ndarray | None = None) -> None:
    """Raise ValueError for a column whose differences are so small that their weighted squares underflow.

    Such a column would be treated as constant.

    Parameters
    ----------
    moments : Moments
    what : str
        Name of a column in messages; its number is appended if there are several.
    counted : ndarray of shape (d,), bool, or None
        The columns to check; None is all.
    """
    spread = moments.high - moments.low
    # squares are multiplied by weights, which are also small if the total is below 1
    lost = (spread > 0.0) & (spread * np.sqrt(min(moments.weight, 1.0)) < LEAST_SQUARED)
    places = np.flatnonzero(lost if counted is None else lost & counted)
    if len(places):
        place = int(places[0])
        named = what if len(spread) == 1 and what == "y" else f"{what} {place}"
        weighted = f", times weights that sum to {moments.weight:g}" if moments.weight < 1.0 else ""
        message = (
            f"{named} reaches from {moments.low[place]:g} to {moments.high[place]:g}: float64 does not hold the "
            f"squares of such small differences{weighted} (underflow). Multiply it by a power of ten, such as "
            f"1e{int(-np.floor(np.log10(spread[place])))}"
        )
        raise ColumnError(message, place) if what == "column" else ValueError(message)


def dense_sums(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted sums of the columns of dense rows, and of their squares, (2, d), float64."""
    total = np.zeros((2, X.shape[1]))
    _SUMMING(X.size, X, weights, total)
    return total


def sum_in_order(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """start + values[0] + values[1] + ..., added in this order, as in a loop: NumPy's sum may add in pairs."""
    return np.add.accumulate(np.concatenate([start[None], values]), axis=0)[-1]


@np.errstate(over="ignore", invalid="ignore")
def _few_dense_sums(X: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """`_many_dense_sums` in NumPy."""
    weighted = weights[:, None] * X.astype(np.float64)
    total[0] = sum_in_order(weighted, total[0])
    total[1] = sum_in_order(weighted * X, total[1])


@njit(nogil=True)
def _many_dense_sums(X: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of `dense_sums` to `total`, with one read and no temporaries."""
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            value = np.float64(X[i, j])
            total[0, j] += weights[i] * value
            total[1, j] += weights[i] * value * value


# Compiling takes 0.2 s for each dtype.
_SUMMING = TwoForms(_few_dense_sums, _many_dense_sums, 2_000_000)


# How each sum of two parts of the rows is combined.
_COMBINE: dict[str, Literal["add", "max"]] = {
    "weight": "add",
    "sums": "add",
    "within": "add",
    "between": "add",
    "high": "max",
    "depth": "max",
    "norm": "max",
}


def _empty(width: int) -> dict[str, tuple[tuple[int, ...], float]]:
    """The shape of each sum, and its value for no rows, which is minus infinity for extremes."""
    shapes = {name: () if name in ("weight", "norm") else (width,) for name in _COMBINE}
    return {name: (shape, -np.inf if name in ("high", "depth") else 0.0) for name, shape in shapes.items()}


def _dense_sums(X: np.ndarray, weights: np.ndarray, scaled: np.ndarray | None) -> dict[str, np.ndarray]:
    """`column_sums` of a tile of dense rows."""
    xp = array_module(X)
    rows = xp.asarray(X, dtype=np.float64)
    weight = weights.sum()
    sums = (rows * weights[:, None]).sum(axis=0)
    mean = sums / weight
    scaled_rows = (
        rows
        if scaled is None
        else rows[:, scaled]
        if xp is np
        else xp.take(rows, xp.asarray(np.flatnonzero(scaled)), axis=1)
    )
    norms = np.square(scaled_rows).sum(axis=1)
    return {
        "weight": weight,
        "sums": sums,
        "within": (np.square(rows - mean) * weights[:, None]).sum(axis=0),
        "between": weight * np.square(mean),
        "high": rows.max(axis=0),
        "depth": -rows.min(axis=0),
        "norm": xp.sqrt(norms.max()),
    }


def _sparse_sums(X: sparse.csr_array, weights: np.ndarray, scaled: np.ndarray | None) -> dict[str, np.ndarray]:
    """`column_sums` of sparse rows, computed from their stored entries."""
    rows = X.astype(np.float64)
    columns, width = rows.indices, rows.shape[1]
    entry_weights = np.repeat(weights, np.diff(rows.indptr))
    weight = weights.sum()
    sums = np.bincount(columns, entry_weights * rows.data, minlength=width)
    mean = sums / weight
    # Entries that are not stored are zeros, at distance |mean| from the mean: their weight in a column is the whole
    # weight minus that of the stored entries.
    stored = np.bincount(columns, entry_weights, minlength=width)
    stored_squares = np.bincount(columns, entry_weights * np.square(rows.data - mean[columns]), minlength=width)
    scaled_rows = rows if scaled is None else rows[:, np.flatnonzero(scaled)]
    norms = np.asarray(scaled_rows.power(2).sum(axis=1))
    high, low = (np.asarray(extreme.todense()).ravel() for extreme in (rows.max(axis=0), rows.min(axis=0)))
    return {
        "weight": weight,
        "sums": sums,
        "within": stored_squares + np.maximum(weight - stored, 0.0) * np.square(mean),
        "between": weight * np.square(mean),
        "high": high,
        "depth": -low,
        "norm": np.sqrt(norms.max(initial=0.0)),
    }


# Squares of large values may overflow without harm: "minmax" does not use them, and other scalings refuse the infinite
# deviation that results.
@np.errstate(over="ignore", invalid="ignore")
def block_moments(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`column_sums` of one block."""
    return sums_on_host(column_sums(block.X, with_targets(block).weights, operands.get("scaled")))


def moments_record(n_columns: int, scaled: np.ndarray | None = None, *, is_sparse: bool = False) -> BlockSum:
    """The record of the pass for moments.

    Parameters
    ----------
    n_columns : int
    scaled : ndarray of shape (d,), bool, or None
        Columns for the norm of a row; None is all of them.
    is_sparse : bool
        Whether rows are sparse, so that sums use stored entries alone.
    """

    def cost(rows: int, columns: int) -> Cost:
        if is_sparse:
            # a dozen arrays of the size of a row; copies of the entries are counted with the block
            return Cost(flops=16.0 * (rows + columns), scratch_bytes=12 * 8 * columns)
        # temporaries of one tile, and the seven sums of each tile before they are combined
        tile = 4 * 8 * max(_TILE_VALUES, columns)
        sums_of_tiles = 7 * 8 * columns * (2 + rows * columns // _TILE_VALUES)
        return Cost(flops=8.0 * rows * columns, scratch_bytes=tile + sums_of_tiles)

    accumulators = {name: Accumulator(shape, combine=_COMBINE[name]) for name, (shape, _) in _empty(n_columns).items()}
    return BlockSum(
        name="moments",
        function=block_moments,
        accumulators=accumulators,
        operands={} if scaled is None else {"scaled": scaled},
        cost=cost,
        on_host=is_sparse,
    )
