"""How one record of a pass becomes a value of a block, how two values merge, and what the merged value is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from dkl.passes.row_columns import RowColumns
from dkl.passes.transport import aligned
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Record, RowSample
from dkl.protocols.sampling import sample_keys, smallest_keys, stays_first, sure_key
from dkl.protocols.source import BlockSource

Sums = dict[str, np.ndarray]


class Reduction(Protocol):
    on_host: bool

    def of_block(self, block: Block, columns: RowColumns | None) -> Any: ...

    def merge(self, left: Any, right: Any) -> Any: ...

    def finish(self, value: Any) -> Any: ...


def narrowed(record: Record, source: BlockSource) -> Record:
    """A sample without the rows that come too late to be among the first, as far as the number of all rows can tell.

    With weights it cannot. Each span then hands on its share of the sample instead of as many rows as all of it.
    """
    if not isinstance(record, RowSample) or record.n_classes is not None or source.has_weight:
        return record
    return replace(record, below=sure_key(record.k, int(source.block_rows.sum())))


class SumReduction:
    """Accumulators, added or the larger value kept."""

    def __init__(self, record: BlockSum) -> None:
        self.record = record
        # what reads no X has nothing to compute elsewhere
        self.on_host = not record.needs_x

    def of_block(self, block: Block, columns: RowColumns | None) -> Sums:
        if columns is not None:
            block = columns.read(self.record.reads, block)
        returned = self.record.function(block, self.record.operands)
        for name in self.record.writes:
            if columns is not None:
                columns.write(name, block.index, np.asarray(_returned(self.record, returned, name)))
        return {name: self._checked(name, returned) for name in self.record.accumulators}

    def _checked(self, name: str, returned: Any) -> np.ndarray:
        accumulator = self.record.accumulators[name]
        # C order as after a journey between processes: how NumPy sums an axis later depends on it
        value = np.asarray(_returned(self.record, returned, name), dtype=accumulator.dtype, order="C")
        if value.shape != tuple(accumulator.shape):
            raise ValueError(
                f"the block function of {self.record.name!r} returned {name!r} of shape {value.shape}; "
                f"its accumulator has shape {tuple(accumulator.shape)}"
            )
        return value

    def merge(self, left: Sums, right: Sums) -> Sums:
        combine = {"add": np.add, "max": np.maximum}
        accumulators = self.record.accumulators
        return {name: combine[accumulators[name].combine](left[name], right[name]) for name in left}

    def finish(self, value: Sums | None) -> Sums:
        if value is None:
            return {name: accumulator.zero() for name, accumulator in self.record.accumulators.items()}
        # a single span's sums may lie in a received message; what the driver computes with must be aligned
        return {name: np.array(total) for name, total in value.items()}


def _returned(record: BlockSum, returned: Any, name: str) -> Any:
    if name not in returned:
        raise ValueError(f"the block function of {record.name!r} returned no {name!r}; it returned {sorted(returned)}")
    return returned[name]


class SampleReduction:
    """The k rows that come first by their keys; samples merge by being sampled again and get their order at the end."""

    # the driver looks at samples as they were read, whatever computes
    on_host = True

    def __init__(self, record: RowSample) -> None:
        self.record = record

    def of_block(self, block: Block, columns: RowColumns | None) -> Block:
        if columns is not None:
            block = columns.read(self.record.reads, block)
        kept = {name: block.columns[name] for name in self.record.reads}
        return self._sample(replace(block, index=0, columns=kept))

    def merge(self, left: Block, right: Block) -> Block:
        record = self.record
        if record.n_classes is not None:
            return self._ordered(stack_rows(left, right, np.arange(left.n_rows), np.arange(right.n_rows)))
        stays = stays_first(left, right, record.k, record.seed, record.round)
        return stack_rows(left, right, *map(np.flatnonzero, stays))

    def finish(self, value: Block | None) -> Block:
        if value is None:
            raise ValueError(f"{self.record.name!r} asks for a sample of rows, but there are no rows")
        return aligned(self._ordered(value))

    def _sample(self, block: Block) -> Block:
        """The rows that come first: all of them, as they are, where there are no more than k."""
        if block.weight is None and self.record.below < np.inf:
            keys = sample_keys(block.row_id, None, self.record.seed, self.record.round)
            block = block.rows(np.flatnonzero(keys < self.record.below))
        return block if self.record.n_classes is None and block.n_rows <= self.record.k else self._ordered(block)

    def _ordered(self, block: Block) -> Block:
        record = self.record
        return smallest_keys(block, record.k, record.seed, record.round, each_class=record.n_classes is not None)


def stack_rows(left: Block, right: Block, above: np.ndarray, below: np.ndarray) -> Block:
    """The rows of two blocks at the positions `above` and `below`, one below the other, with their row columns."""

    def stacked(first: Any, second: Any) -> Any:
        if first is None or second is None:
            return None
        if sparse.issparse(first):
            return sparse.vstack([first[above], second[below]], format="csr")
        # rows are wide: each is copied once
        out = np.empty((len(above) + len(below), *first.shape[1:]), first.dtype)
        np.take(first, above, axis=0, out=out[: len(above)], mode="clip")
        np.take(second, below, axis=0, out=out[len(above) :], mode="clip")
        return out

    columns = {name: stacked(left.columns[name], right.columns[name]) for name in left.columns}
    parts = ((getattr(left, name), getattr(right, name)) for name in ("X", "y", "weight", "row_id", "held"))
    X, y, weight, row_id, held = (stacked(*part) for part in parts)
    return Block(left.index, X, y, weight, row_id, columns, held)


def reduction(record: BlockSum | RowSample) -> Reduction:
    """How the results of a record on single blocks become one."""
    return SumReduction(record) if isinstance(record, BlockSum) else SampleReduction(record)
