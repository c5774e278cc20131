"""Sums kept for each block, so that a later pass reads only blocks that are new or have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from dkl.data.sources.rows import RowSource
from dkl.data.view import BlockStep, Step, View, rows_left
from dkl.passes.checkpoint import Checkpoint
from dkl.protocols.block import Block
from dkl.protocols.driver import Driver
from dkl.protocols.records import BlockSum, Cost, Record

# The name of a record among the operands of the block function, and of a block's identity among its columns.
_KEPT = "kept sums"
# Copies of a sum: while it is read, checked and unpacked, or packed and written.
_COPIES = 3
P = TypeVar("P")
S = TypeVar("S")


@dataclass(frozen=True)
class KeptSums:
    """The place where the sums of blocks are kept.

    Parameters
    ----------
    store : str
        A folder or URL that every worker can access.
    token : str
        An identity of the summed function: passes with the same one share sums.
    """

    store: str
    token: str

    def read(self, identity: str) -> Mapping[str, np.ndarray] | None:
        """The sums of a block, or None if no complete ones are stored."""
        # the file format of a checkpoint: complete or absent, and checked by its digest
        saved = self._place(identity).load()
        return None if saved is None else saved.arrays

    def write(self, identity: str, sums: Mapping[str, np.ndarray]) -> None:
        """Keep the sums of a block; it may be repeated."""
        self._place(identity).save(sums)

    def _place(self, identity: str) -> Checkpoint:
        return Checkpoint(f"{self.store.rstrip('/')}/{self.token}/{identity}")


@dataclass(frozen=True, eq=False)
class KeptBlock(BlockStep):
    """The kept sums of one block; else its rows, with the name to keep their sums under."""

    sums: KeptSums
    number: int
    identity: str

    def replacement(self) -> Block | None:
        kept = self.sums.read(self.identity)
        # a block without rows would be skipped, so that this one has one, which only `_sums_of_block` sees
        return None if kept is None else Block(self.number, np.empty((1, 0)), None, None, np.zeros(1, np.int64), kept)

    def needed_before(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in parts if name != _KEPT)

    def applied(self, block: Block, chosen: np.ndarray, parts: tuple[str, ...]) -> tuple[Block, np.ndarray]:
        block = rows_left(block, chosen)
        return replace(block, columns={_KEPT: np.array(self.identity)}), np.arange(block.n_rows)


@dataclass(frozen=True, eq=False)
class KeptBlocks(Step):
    """A source whose blocks are read only if their sums are not kept.

    Parameters
    ----------
    source : RowSource
    sums : KeptSums
    sums_nbytes : int
        Bytes of the sums of one block.
    """

    source: RowSource
    sums: KeptSums
    sums_nbytes: int
    varies = True

    @property
    def identity(self) -> str:
        return str(self.sums)

    def at(self, index: int) -> KeptBlock:
        # the text may be long (it contains the digests of all arrays), but a path must not be
        identity = hashlib.sha256(self.source.block_identity(index).encode()).hexdigest()[:32]
        return KeptBlock(self.sums, index, identity)

    def columns_along(self, before: RowSource) -> tuple[str, ...]:
        return (_KEPT,)

    def block_nbytes(self, before: RowSource) -> int:
        # a block holds either its rows or the sums over them, never both
        return max(before.block_nbytes, self.sums_nbytes)

    def read_nbytes(self, before: RowSource) -> int:
        return max(before.read_nbytes, _COPIES * self.sums_nbytes)


@dataclass(frozen=True, eq=False)
class KeepingDriver(Generic[P, S]):
    """A driver of block sums that keeps the sums of each block; they are added in the tree of any pass.

    Parameters
    ----------
    driver : Driver
    sums : KeptSums
    """

    driver: Driver[P, S]
    sums: KeptSums

    def init(self, problem: P) -> S:
        return self.driver.init(problem)

    def request(self, problem: P, state: S) -> Sequence[BlockSum] | None:
        records = self.driver.request(problem, state)
        return None if records is None else self._keeping(records)

    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        return self.driver.step(problem, state, results)

    def plan(self, problem: P) -> list[tuple[Sequence[BlockSum], int]]:
        return [(self._keeping(records), times) for records, times in self.driver.plan(problem)]

    def memory(self, problem: P, n_rows: int, row_bytes: int) -> dict[str, int]:
        """`memory` of the driver, or nothing if it has none."""
        held: Any = getattr(self.driver, "memory", None)
        return {} if held is None else held(problem, n_rows, row_bytes)

    def _keeping(self, records: Sequence[Record]) -> tuple[BlockSum, ...]:
        """The records, each a block sum, as samples and folds have no sums to keep."""
        return tuple(kept_record(record, self.sums) for record in records)  # type: ignore[arg-type]


def source_of(base: RowSource, records: Sequence[Record]) -> RowSource:
    """The source of a pass for these records: if their sums are kept, its blocks hold rows or kept sums."""
    # a pass has one such record: the sums of a block are kept under its identity alone
    kept = [record.operands[_KEPT] for record in records if isinstance(record, BlockSum) and _KEPT in record.operands]
    return with_kept_sums(base, kept[0][1], kept[0][0].result_bytes) if kept else base


def with_kept_sums(source: RowSource, sums: KeptSums, sums_nbytes: int) -> View:
    """A source whose blocks are read only if their sums, of `sums_nbytes` bytes, are not kept."""
    return View(source, KeptBlocks(source, sums, sums_nbytes))


def kept_record(record: BlockSum, sums: KeptSums) -> BlockSum:
    """The record with a function that returns the kept sums of a block, or computes and keeps them."""

    def cost(rows: int, columns: int) -> Cost:
        """The cost of the record itself, and of the copies of its sums while they are read or written."""
        alone = record.cost(rows, columns)
        return replace(alone, scratch_bytes=alone.scratch_bytes + _COPIES * record.result_bytes)

    operands = {**record.operands, _KEPT: (record, sums)}
    return replace(record, function=_sums_of_block, operands=operands, cost=cost)


def _sums_of_block(block: Block, operands: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """The sums of a block: the kept ones, or those of its rows, which are kept from now on."""
    if _KEPT not in block.columns:
        return block.columns
    record, sums = operands[_KEPT]
    returned = record.function(replace(block, columns={}), operands)
    accumulators: Mapping[str, Any] = record.accumulators
    # in the dtype and order of a pass, so that kept sums have the same bits as computed ones
    kept = {name: np.asarray(returned[name], accumulators[name].dtype, order="C") for name in accumulators}
    sums.write(str(block.columns[_KEPT]), kept)
    return kept
