"""VersionSource: the blocks of a store and of later appended ones, without the dropped rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import BaseRows
from dkl.data.sources.stored import StoreSource
from dkl.data.store.reader import StoreReader
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS


class VersionTicket(NamedTuple):
    """The number of a block in the dataset, its part and number there, and its remaining rows (None for all)."""

    number: int
    part: int
    place: int
    kept: np.ndarray | None


@dataclass(frozen=True, eq=False)
class VersionReader:
    """Reads blocks of several stores without the dropped rows.

    Parameters
    ----------
    parts : tuple of StoreReader
        The first one has the codes of splits.
    empty : Block
        A block without rows.
    row_columns : tuple of str
        Columns that all parts have.
    """

    parts: tuple[StoreReader, ...]
    empty: Block
    row_columns: tuple[str, ...]

    def load(self, ticket: VersionTicket, parts: tuple[str, ...] = PARTS) -> Block:
        """The remaining rows of a block, verified."""
        number, part, place, kept = ticket
        columns = [name for name in parts if name not in PARTS]
        # a block without remaining rows is not read
        if kept is not None and not len(kept):
            return replace(self.empty, index=number, columns={name: np.empty(0, np.uint8) for name in columns})
        # only the first part has codes of splits; the rows of an appended block are all in the same split
        wanted = parts if part == 0 else tuple(name for name in parts if name in (*PARTS, *self.row_columns))
        # in its own store the block has another number; sums, samples and row columns use the one in the dataset
        block = replace(self.parts[part].load(place, wanted), index=number)
        return block if kept is None else block.rows(kept)


class VersionSource(BaseRows):
    """The blocks of a version; see `dkl.protocols.source.BlockSource` for the attributes.

    Absolute block numbers do not change: a dropped block has no rows, and appended blocks come last.

    Parameters
    ----------
    first : StoreSource
        Version 0 of the store.
    """

    def __init__(self, first: StoreSource) -> None:
        self.location, self.schema, self.place = first.location, first.schema, first.place
        self.n_columns, self.dtype, self.is_sparse = first.n_columns, first.dtype, first.is_sparse
        self.has_y, self.has_weight = first.has_y, first.has_weight
        # the number of rows of every block but the last
        self.stored_block_rows = first.stored_block_rows
        self.version, self.token = 0, first.token
        self.parts: tuple[StoreSource, ...] = (first,)
        # for each block with dropped rows, a mask of the remaining ones; an empty mask if none remains
        self.kept: dict[int, np.ndarray] = {}
        self.counts = first.counts
        # for each block of the dataset, the number of its part, and its block number within this part
        self._places = [(0, index) for index in range(first.n_blocks)]

    def appended(self, part: StoreSource, version: int) -> VersionSource:
        """This version and the blocks of one more store."""
        other = self._next(version, part.token)
        other.parts = (*self.parts, part)
        other.counts = self.counts.followed_by(part.counts)
        other._places = self._places + [(len(self.parts), index) for index in range(part.n_blocks)]
        return other

    def without(self, dropped: Mapping[str, np.ndarray], version: int, token: str) -> VersionSource:
        """This version without the rows of a record of `dkl.data.store.version_files.drop_record`."""
        other = self._next(version, token)
        blocks, rows = dropped["blocks"], dropped["rows"]
        # the record has the new counts of the blocks, so that nothing is subtracted (and rounded)
        other.counts = self.counts.recounted(blocks, RowCounts.of_arrays(dropped))
        # the masks of all these blocks are concatenated; a block without remaining rows has none
        start = 0
        for block, left in zip(blocks.tolist(), rows.tolist(), strict=True):
            size = self.part_rows(block) if left else 0
            other.kept[block] = dropped["kept"][start : start + size].astype(bool)
            start += size
        return other

    def _next(self, version: int, token: str) -> VersionSource:
        """A copy of this version with another number, to be changed."""
        other = VersionSource(self.parts[0])
        other.version, other.token = version, token
        other.parts, other.kept, other.counts = self.parts, dict(self.kept), self.counts
        other._places = self._places
        return other

    def part_rows(self, index: int) -> int:
        """Rows of a block before any was dropped."""
        part, own = self._places[index]
        return int(self.parts[part].block_rows[own])

    def rows_left(self, index: int) -> np.ndarray:
        """A mask of the remaining rows of a block: (part_rows,) bool."""
        kept = self.kept.get(index, np.ones(self.part_rows(index), bool))
        return kept if len(kept) else np.zeros(self.part_rows(index), bool)

    @property
    def n_blocks(self) -> int:
        return len(self._places)

    @property
    def block_nbytes(self) -> int:
        return max(part.block_nbytes for part in self.parts)

    @property
    def read_nbytes(self) -> int:
        # if rows were dropped, a block is read whole before the remaining rows are copied
        return max(part.read_nbytes for part in self.parts) + (self.block_nbytes if self.kept else 0)

    @property
    def stored_nbytes(self) -> int:
        return sum(part.stored_nbytes for part in self.parts)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr([self.block_identity(index) for index in range(self.n_blocks)]).encode()).hexdigest()

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label or the selection of the rows of a block changes."""
        part, own = self._places[index]
        # the remaining rows are part of the block's identity
        identity, kept = self.parts[part].block_identity(own), self.kept.get(index)
        return identity if kept is None else f"{identity} {hashlib.sha256(kept.tobytes()).hexdigest()}"

    @property
    def storage_facts(self) -> dict[str, Any]:
        """Properties of the storage, for `describe`."""
        dropped = int(sum(part.block_rows.sum() for part in self.parts) - self.block_rows.sum())
        return {**self.parts[0].storage_facts, "version": self.version, "rows dropped": dropped}

    def reader(self) -> VersionReader:
        # the block for blocks without remaining rows
        X: Any = np.empty((0, self.n_columns), self.dtype)
        y = None
        if self.has_y:
            y = np.empty(self.schema.y_shape(0), np.float64 if self.schema.n_classes is None else np.int64)
        weight = np.empty(0) if self.has_weight else None
        empty = Block(0, sparse.csr_array(X) if self.is_sparse else X, y, weight, np.empty(0, np.int64))
        return VersionReader(tuple(part.reader() for part in self.parts), empty, tuple(self.schema.row_columns))

    def ticket(self, index: int) -> VersionTicket:
        return VersionTicket(index, *self._places[index], self.kept.get(index))
