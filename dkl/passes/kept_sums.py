"""Sums that are kept block by block, so that a later pass reads only the blocks that are new or have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dkl.passes.checkpoint import Checkpoint
from dkl.protocols.block import Block
from dkl.protocols.driver import Driver
from dkl.protocols.records import BlockSum, Cost, Record
from dkl.protocols.source import BlockReader, BlockSource, WrappedSource

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


class KeptTicket(NamedTuple):
    """A block of the source beneath, its number and the name that its sums are kept under."""

    base: Any
    number: int
    identity: str


@dataclass(frozen=True, eq=False)
class KeptReader:
    """Reads the sums of a block where they are kept, and its rows where not."""

    base: BlockReader
    sums: KeptSums

    def load(self, ticket: KeptTicket) -> Block:
        """The rows under their identity, or one row of no columns with the sums."""
        kept = self.sums.read(ticket.identity)
        if kept is None:
            return replace(self.base.load(ticket.base), columns={_KEPT: np.array(ticket.identity)})
        # A block without rows would be passed over, so this one has one; no function but the one below sees it.
        return Block(ticket.number, np.empty((1, 0)), None, None, np.zeros(1, np.int64), kept)


class KeptSource(WrappedSource[BlockSource]):
    """A source whose blocks are read only where their sums are not kept; the attributes are those of `BlockSource`.

    Parameters
    ----------
    base : BlockSource
        With a `block_identity`: stores of dkl, their versions and views have one.
    sums : KeptSums
    sums_nbytes : int
        Bytes of the sums of one block.
    """

    def __init__(self, base: BlockSource, sums: KeptSums, sums_nbytes: int) -> None:
        super().__init__(base)
        self.sums, self._sums_nbytes = sums, sums_nbytes

    @property
    def block_nbytes(self) -> int:
        # A block is either its rows or the sums over them, never both.
        return max(self.base.block_nbytes, self._sums_nbytes)

    @property
    def read_nbytes(self) -> int:
        return max(self.base.read_nbytes, _COPIES * self._sums_nbytes)

    @cached_property
    def fingerprint(self) -> str:
        return f"{self.sums} {self.base.fingerprint}"

    def reader(self) -> KeptReader:
        return KeptReader(self.base.reader(), self.sums)

    def ticket(self, index: int) -> KeptTicket:
        of_base: Any = self.base
        # The text may be long (it holds the digests of all arrays); a path of a file system may not.
        identity = hashlib.sha256(of_base.block_identity(index).encode()).hexdigest()[:32]
        return KeptTicket(self.base.ticket(index), index, identity)


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

    def _keeping(self, records: Sequence[Record]) -> tuple[BlockSum, ...]:
        """The records, of which each is a block sum: samples and folds have no sums that could be kept."""
        return tuple(kept_record(record, self.sums) for record in records)  # type: ignore[arg-type]


def source_of(base: BlockSource, records: Sequence[Record]) -> BlockSource:
    """What a pass for these records reads: of records whose sums are kept, blocks or what was summed over them."""
    # A pass has one such record: the sums of a block are kept under its identity alone.
    kept = [record.operands[_KEPT] for record in records if isinstance(record, BlockSum) and _KEPT in record.operands]
    return KeptSource(base, kept[0][1], kept[0][0].result_bytes) if kept else base


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
