"""Sums that are kept block by block, so that a later pass reads only the blocks that are new or have changed."""

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

# Under this name a record travels to the block function among its operands, and a block's identity among its columns.
_KEPT = "kept sums"
# A sum is there as it is read, checked and unpacked, or as it is packed and written.
_COPIES = 3
P = TypeVar("P")
S = TypeVar("S")


@dataclass(frozen=True)
class KeptSums:
    """Where the sums of blocks are kept.

    Parameters
    ----------
    store : str
        A folder or URL that every worker reaches.
    asked : str
        What was summed: two passes share sums where it is the same.
    """

    store: str
    asked: str

    def read(self, identity: str) -> Mapping[str, np.ndarray] | None:
        """The sums of a block, or None where none were written to their end."""
        # A checkpoint's own file format: whole or absent, and checked by its digest.
        saved = self._place(identity).load()
        return None if saved is None else saved.arrays

    def write(self, identity: str, sums: Mapping[str, np.ndarray]) -> None:
        """Keep the sums of a block; once more does no harm."""
        self._place(identity).save(sums)

    def _place(self, identity: str) -> Checkpoint:
        return Checkpoint(f"{self.store.rstrip('/')}/{self.asked}/{identity}")


@dataclass(frozen=True, eq=False)
class KeptBlock(BlockStep):
    """The sums of one block where they are kept, and its rows with the name to keep their sums under where not."""

    sums: KeptSums
    number: int
    identity: str

    def instead(self) -> Block | None:
        kept = self.sums.read(self.identity)
        # A block without rows would be passed over, so this one has one; no function but the one below sees it.
        return None if kept is None else Block(self.number, np.empty((1, 0)), None, None, np.zeros(1, np.int64), kept)

    def asks(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in parts if name != _KEPT)

    def done(self, block: Block, chosen: np.ndarray, parts: tuple[str, ...]) -> tuple[Block, np.ndarray]:
        block = rows_left(block, chosen)
        return replace(block, columns={_KEPT: np.array(self.identity)}), np.arange(block.n_rows)


@dataclass(frozen=True, eq=False)
class KeptBlocks(Step):
    """Has the blocks of a source read only where their sums are not kept.

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
        # The text may be long (it holds the digests of all arrays); a path of a file system may not.
        identity = hashlib.sha256(self.source.block_identity(index).encode()).hexdigest()[:32]
        return KeptBlock(self.sums, index, identity)

    def columns_along(self, before: RowSource) -> tuple[str, ...]:
        return (_KEPT,)

    def block_nbytes(self, before: RowSource) -> int:
        # A block is either its rows or the sums over them, never both.
        return max(before.block_nbytes, self.sums_nbytes)

    def read_nbytes(self, before: RowSource) -> int:
        return max(before.read_nbytes, _COPIES * self.sums_nbytes)


@dataclass(frozen=True, eq=False)
class KeepingDriver(Generic[P, S]):
    """A driver of block sums, the sums of each block being kept; they add up in the tree of any pass.

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
        """Of the driver, if it tells."""
        held: Any = getattr(self.driver, "memory", None)
        return {} if held is None else held(problem, n_rows, row_bytes)

    def _keeping(self, records: Sequence[Record]) -> tuple[BlockSum, ...]:
        """The records, of which each is a block sum: samples and folds have no sums that could be kept."""
        return tuple(kept_record(record, self.sums) for record in records)  # type: ignore[arg-type]


def source_of(base: RowSource, records: Sequence[Record]) -> RowSource:
    """What a pass for these records reads: of records whose sums are kept, blocks or what was summed over them."""
    # A pass has one such record: the sums of a block are kept under its identity alone.
    kept = [record.operands[_KEPT] for record in records if isinstance(record, BlockSum) and _KEPT in record.operands]
    return with_kept_sums(base, kept[0][1], kept[0][0].result_bytes) if kept else base


def with_kept_sums(source: RowSource, sums: KeptSums, sums_nbytes: int) -> View:
    """The source whose blocks are read only where their sums, of so many bytes, are not kept."""
    return View(source, KeptBlocks(source, sums, sums_nbytes))


def kept_record(record: BlockSum, sums: KeptSums) -> BlockSum:
    """The record, by a function that takes the sums of a block from where they are kept, or puts them there."""

    def cost(rows: int, columns: int) -> Cost:
        """The cost of the record by itself, and the copies of its sums on their way from and to where they are kept."""
        alone = record.cost(rows, columns)
        return replace(alone, scratch_bytes=alone.scratch_bytes + _COPIES * record.result_bytes)

    operands = {**record.operands, _KEPT: (record, sums)}
    return replace(record, function=_sums_of_block, operands=operands, cost=cost)


def _sums_of_block(block: Block, operands: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """The sums of a block: those that `KeptReader` found, or those of its rows, which are kept from now on."""
    if _KEPT not in block.columns:
        return block.columns
    record, sums = operands[_KEPT]
    returned = record.function(replace(block, columns={}), operands)
    accumulators: Mapping[str, Any] = record.accumulators
    # In the dtype and order of a pass, so that a sum which is read back has the bits of one that was computed.
    kept = {name: np.asarray(returned[name], accumulators[name].dtype, order="C") for name in accumulators}
    sums.write(str(block.columns[_KEPT]), kept)
    return kept
