"""RearrangedSource: blocks that are renumbered blocks of another source, or parts of several of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from dask import delayed
from dask.delayed import Delayed

from dkl.data.pieces import joined_blocks
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS, BaseSource, BlockReader, BlockSource


@dataclass(frozen=True)
class BlockPart:
    """One of `of` parts of the rows of a block, in random order by `seed`; with one part, the whole block."""

    block: int
    number: int = 0
    of: int = 1
    seed: int = 0

    def rows(self, block: Block) -> Block:
        """The rows of the part, in the order of the block."""
        if self.of == 1:
            return block
        # the random order depends on seed and block alone, so that the parts of a block are disjoint and complete
        order = np.random.default_rng([self.seed, block.index]).permutation(block.n_rows)
        return block.rows(np.sort(order[self.number :: self.of]))

    def size(self, n_rows: int) -> int:
        """The number of rows of the part, for a block of `n_rows`."""
        return len(range(self.number, n_rows, self.of))


@dataclass(frozen=True, eq=False)
class RearrangedTicket:
    """A block: its parts, and for each part the ticket of its block."""

    index: int
    parts: tuple[BlockPart, ...]
    tickets: tuple[Any, ...]

    @classmethod
    def of(cls, index: int, parts: tuple[BlockPart, ...], *tickets: object) -> Self:
        """A ticket from those of its parts as separate arguments, as Dask computes them for a task."""
        return cls(index, parts, tickets)


@dataclass(frozen=True)
class RearrangedReader:
    """Reads the blocks of the parts in turn, and keeps the part of each."""

    rows: BlockReader

    def load(self, ticket: RearrangedTicket, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of a block."""
        behind = zip(ticket.parts, ticket.tickets, strict=True)
        blocks = [part.rows(self.rows.load(own, parts)) for part, own in behind]
        return replace(joined_blocks(blocks), index=ticket.index)


class RearrangedSource(BaseSource):
    """Blocks made of parts of the blocks of another source; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    rows : BlockSource
    made_of : mapping of int to tuple of BlockPart
        The parts of each new block that has rows, by the number of the block.
    n_blocks : int
    """

    def __init__(self, rows: BlockSource, made_of: Mapping[int, tuple[BlockPart, ...]], n_blocks: int) -> None:
        self._rows, self._made_of, self.n_blocks = rows, made_of, n_blocks
        self.n_columns, self.dtype, self.is_sparse = rows.n_columns, rows.dtype, rows.is_sparse
        self.has_weight, self.place, self.most_folds = rows.has_weight, rows.place, rows.most_folds
        self.columns_along = rows.columns_along
        self.block_rows, of_blocks, self._n_read = np.zeros(n_blocks, np.int64), rows.block_rows, 0
        for index, parts in made_of.items():
            sizes = [part.size(int(of_blocks[part.block])) for part in parts]
            self.block_rows[index], self._n_read = sum(sizes), self._n_read + int(np.count_nonzero(sizes))

    @property
    def block_nbytes(self) -> int:
        return self._rows.block_nbytes

    @property
    def read_nbytes(self) -> int:
        """Bytes for reading the block that a part is from and, if blocks have several parts, for joining these."""
        is_joined = any(len(parts) > 1 for parts in self._made_of.values())
        return self._rows.read_nbytes + 2 * is_joined * self._rows.block_nbytes

    @property
    def stored_nbytes(self) -> int:
        """The mean stored bytes of a block with rows, times the number of parts, each of which reads a block."""
        return self._rows.stored_nbytes * self._n_read // max(int(np.count_nonzero(self._rows.block_rows)), 1)

    @cached_property
    def fingerprint(self) -> str:
        text = f"{self._rows.fingerprint} {self.n_blocks} blocks of {self._made_of}"
        return hashlib.sha256(text.encode()).hexdigest()

    def reader(self) -> RearrangedReader:
        return RearrangedReader(self._rows.reader())

    def ticket(self, index: int) -> Any:
        """The ticket of a block; a Delayed if the tickets of its parts are."""
        parts = self._made_of[index]
        tickets = [self._rows.ticket(part.block) for part in parts]
        if any(isinstance(ticket, Delayed) for ticket in tickets):
            return delayed(RearrangedTicket.of, pure=False)(index, parts, *tickets)
        return RearrangedTicket.of(index, parts, *tickets)
