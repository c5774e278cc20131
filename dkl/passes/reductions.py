"""How one record of a pass becomes a value of a block, how two values merge, and what the merged value is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from dkl.blocks.block import Block
from dkl.blocks.records import BlockSum, RowSample
from dkl.blocks.sampling import smallest_keys, stays_first
from dkl.passes.row_columns import RowColumns
from dkl.passes.transport import aligned

Sums = dict[str, np.ndarray]


class Reduction(Protocol):
    on_host: bool

    def of_block(self, block: Block, columns: RowColumns | None) -> Any: ...

    def merge(self, left: Any, right: Any) -> Any: ...

    def finish(self, value: Any) -> Any: ...


class SumReduction:
    """Accumulators, added or the larger value kept."""

    def __init__(self, record: BlockSum) -> None:
        self.record = record
        # what reads no X has nothing to compute elsewhere
        self.on_host = record.light

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
            return self._ordered(stack_rows(left, right))
        # rows that do not stay are left behind before anything is copied
        both = zip((left, right), stays_first(left, right, record.k, record.seed, record.round), strict=True)
        return stack_rows(*(block if stays.all() else block.rows(stays) for block, stays in both))

    def finish(self, value: Block | None) -> Block:
        if value is None:
            raise ValueError(f"{self.record.name!r} asks for a sample of rows, but there are no rows")
        return aligned(self._ordered(value))

    def _sample(self, block: Block) -> Block:
        """The rows that come first: all of them, as they are, where there are no more than k."""
        return block if self.record.n_classes is None and block.n_rows <= self.record.k else self._ordered(block)

    def _ordered(self, block: Block) -> Block:
        record = self.record
        return smallest_keys(block, record.k, record.seed, record.round, each_class=record.n_classes is not None)


def stack_rows(left: Block, right: Block) -> Block:
    """The rows of both blocks, one below the other, with the row columns that both have."""
    X = sparse.vstack([left.X, right.X], format="csr") if sparse.issparse(left.X) else np.concatenate([left.X, right.X])
    return Block(
        left.index,
        X,
        None if left.y is None or right.y is None else np.concatenate([left.y, right.y]),
        None if left.weight is None or right.weight is None else np.concatenate([left.weight, right.weight]),
        np.concatenate([left.row_id, right.row_id]),
        {name: np.concatenate([left.columns[name], right.columns[name]]) for name in left.columns},
    )


def reduction(record: BlockSum | RowSample) -> Reduction:
    """How the results of a record on single blocks become one."""
    return SumReduction(record) if isinstance(record, BlockSum) else SampleReduction(record)
