"""The pass of explanations over the rows: its records of wave sums, and the sample of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy import sparse

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection, formed
from dkl.features.scaling import Scaler
from dkl.kernels.explanations import (
    LEFT_OUT_FREQUENCIES,
    ColumnWaves,
    columns_map,
    factor_sums,
    sums_without,
    wave_sums,
)
from dkl.kernels.tiles import SCALED_BYTES, SUM_ROWS, spans
from dkl.passes.devices import computing_device
from dkl.passes.loop import run_pass
from dkl.progress import Choice, resolve_progress
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.estimators import FittedModel
from dkl.protocols.records import SINCOS_FLOPS, Accumulator, BlockSum, Cost, Record, RowSample

# The sample of rows for axes and plots, and for models that are no sums of waves.
ROWS = RowSample("rows", 10_000, seed=0)
# The most bytes (32 MiB) of dense rows in memory at once.
TILE_BYTES = 1 << 25


def read_rows(
    model: FittedModel,
    dataset: Dataset,
    records: Sequence[Record],
    *,
    progress: Choice,
    memory_limit: int | str | None,
) -> list[Any]:
    """The results of the records from one pass on the model's `device`; that of `ROWS` is a `SampledRows`."""
    where = computing_device(str(getattr(model, "device", "cpu")))
    publish = resolve_progress(progress)
    run = run_pass(dataset.source, records, publish=publish, memory_limit=memory_limit, device=where)
    return [
        SampledRows.of_block(result, dataset.n_rows) if isinstance(result, Block) else result for result in run.results
    ]


def part_of(feature_map: FeatureMap, columns: np.ndarray, frequencies: np.ndarray | slice = slice(None)) -> ColumnWaves:
    """The waves of the given columns, with amplitude 1 and without phases."""
    W: Any = formed(feature_map.projection)[frequencies][:, columns]
    # dense, since there are few columns
    own = DenseProjection(np.ascontiguousarray(W.toarray() if sparse.issparse(W) else W))
    scaler = chosen_scaler(feature_map.scaler, columns)
    return ColumnWaves(FeatureMap("cos-sin", own, np.ones(own.n_frequencies), scaler=scaler), columns)


def chosen_scaler(scaler: Scaler | None, columns: np.ndarray) -> Scaler | None:
    """The scaler of the given columns alone."""
    if scaler is None:
        return None
    # "unit" divides all columns by scale[0].
    scale = np.full(len(columns), scaler.scale[0]) if scaler.kind == "unit" else scaler.scale[columns]
    knots = None if scaler.knots is None else scaler.knots[:, columns]
    return replace(
        scaler, center=scaler.center[columns], scale=scale, passthrough=scaler.passthrough[columns], knots=knots
    )


def wave_record(parts: Sequence[ColumnWaves], dtype: str) -> BlockSum:
    """The record of the sums of waves of each part; its result is the argument of `wave_means`."""
    m = parts[0].feature_map.n_frequencies
    accumulators = {"sums": Accumulator((len(parts), 2, m)), "weight": Accumulator(())}

    def cost(rows: int, columns: int) -> Cost:
        widths = [len(part.columns) for part in parts]
        flops = rows * m * (2.0 * sum(widths) + SINCOS_FLOPS * len(parts))
        return Cost(flops, 8 * rows * max(widths) + 2 * SCALED_BYTES)

    return BlockSum("waves", wave_sums, accumulators, {"parts": tuple(parts), "dtype": dtype}, cost)


def left_out_record(feature_map: FeatureMap, groups: Sequence[np.ndarray], dtype: str) -> BlockSum:
    """The record of the sums of waves without each group of columns; its result is an argument of `wave_means`."""
    m = feature_map.n_frequencies
    accumulators = {"sums": Accumulator((len(groups), 2, m)), "weight": Accumulator(())}
    # the number of encoded columns in all groups, whose terms are subtracted from the angles of whole rows
    entries = sum(len(columns) for columns in groups)

    def cost(rows: int, columns: int) -> Cost:
        # float64: a tile of rows, what scaling makes of it, and its transpose; the angles of a tile, and a copy of them
        tile = 8 * min(rows, SUM_ROWS) * (3 * columns + 2 * min(m, LEFT_OUT_FREQUENCIES))
        flops = rows * m * (2.0 * (columns + entries) + SINCOS_FLOPS * len(groups))
        return Cost(flops, min(tile, 4 * SCALED_BYTES))

    operands = {"feature_map": feature_map, "groups": tuple(groups), "dtype": dtype}
    return BlockSum("dependence", sums_without, accumulators, operands, cost)


def column_record(scaler: Scaler | None, d: int) -> BlockSum:
    """The record of the sums of the scaled columns."""
    sums = {"sums": Accumulator((d,)), "weight": Accumulator(())}

    def cost(rows: int, columns: int) -> Cost:
        # three float64 arrays for a tile of rows: scaled, mapped to features, and multiplied by their weights
        return Cost(2.0 * rows * columns, 3 * min(8 * rows * columns, SCALED_BYTES))

    return BlockSum("columns", factor_sums, sums, {"factors": columns_map(scaler, d)}, cost)


def wave_means(result: Mapping[str, np.ndarray]) -> np.ndarray:
    """The mean of exp(i w.x) over the rows, for each part: complex (parts, m)."""
    sums = result["sums"]
    return (sums[:, 0] + 1j * sums[:, 1]) / result["weight"]


@dataclass(frozen=True, eq=False)
class SampledRows:
    """A random sample of rows.

    Parameters
    ----------
    rows : ndarray or csr_array of shape (n, d)
        In random order.
    shares : ndarray of shape (n,)
        The weights of the rows, of sum 1.
    """

    rows: Rows
    shares: np.ndarray

    @classmethod
    def of_block(cls, block: Block, n_rows: int) -> Self:
        """The sample from a block of rows drawn from that many rows."""
        shares = block.drawn_from(n_rows).weights
        return cls(block.X, shares / shares.sum())

    def first(self, n_rows: int) -> SampledRows:
        """At most the first `n_rows` rows."""
        shares = self.shares[:n_rows]
        return SampledRows(self.rows[:n_rows], shares / shares.sum())

    def columns(self, members: np.ndarray) -> np.ndarray:
        """The given columns as a dense array (n, k)."""
        return dense(self.rows[:, members])

    def mean(self, function: Callable[[np.ndarray, slice], np.ndarray]) -> np.ndarray:
        """The weighted mean over the rows of function(dense rows of a tile, slice of the tile): (K,)."""
        step = max(1, TILE_BYTES // (8 * self.rows.shape[1]))
        return sum(
            self.shares[part] @ function(dense(self.rows[part]), part) for part in spans(self.rows.shape[0], step)
        )


def dense(rows: Rows) -> np.ndarray:
    """The rows as a dense array, always a copy."""
    return np.array(rows) if isinstance(rows, np.ndarray) else rows.toarray()
