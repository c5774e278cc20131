"""MixedSource: blocks made of parts of distant blocks, for rows whose order on disk would bias stochastic steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dask import delayed
from dask.delayed import Delayed
from scipy import sparse

from dkl.protocols.block import Block
from dkl.protocols.source import BlockReader, BlockSource, WrappedSource


@dataclass(frozen=True)
class BlockPart:
    """One of `of` parts of the rows of a block, in an order drawn from `seed`."""

    number: int
    of: int
    seed: int

    def rows(self, block: Block) -> Block:
        """The rows of the part, in the order that they have in the block."""
        # the order depends on seed and block alone, so that the parts of a block are disjoint and together all of it
        order = np.random.default_rng([self.seed, block.index]).permutation(block.n_rows)
        return block.rows(np.sort(order[self.number :: self.of]))

    def size(self, n_rows: int) -> int:
        """How many rows of a block of `n_rows` the part has."""
        return len(range(self.number, n_rows, self.of))


@dataclass(frozen=True, eq=False)
class MixedTicket:
    """The blocks behind a mixed one, and which part of each it has."""

    index: int
    parts: tuple[BlockPart, ...]
    tickets: tuple[Any, ...]

    @classmethod
    def of(cls, index: int, parts: tuple[BlockPart, ...], *tickets: object) -> MixedTicket:
        """The ticket with those of the blocks behind it one by one, as Dask computes them for a task."""
        return cls(index, parts, tickets)


@dataclass(frozen=True)
class MixedReader:
    """Reads the blocks behind a mixed one in turn and keeps its part of each."""

    base: BlockReader

    def load(self, mixed: MixedTicket) -> Block:
        """The rows of a mixed block."""
        parts = [part.rows(self.base.load(ticket)) for part, ticket in zip(mixed.parts, mixed.tickets, strict=True)]
        return _joined(parts, mixed.index)


class MixedSource(WrappedSource[BlockSource]):
    """The rows of `base`, each once, in blocks that hold a part of `groups` blocks spread evenly over it.

    With sorted labels every mixed block has nearly the classes' own shares. Each pass reads `groups` times as much.

    Parameters
    ----------
    base : BlockSource
    groups : int
        At most the number of blocks that have rows.
    seed : int
        Of the order in which a block's rows go to its parts.
    """

    blocks_together = 1

    def __init__(self, base: BlockSource, groups: int, seed: int = 0) -> None:
        super().__init__(base)
        self.groups, self.seed = groups, seed
        self._filled = np.flatnonzero(base.block_rows)

    @property
    def n_blocks(self) -> int:
        return len(self._filled)

    @cached_property
    def block_rows(self) -> np.ndarray:
        return np.array([self._size(index) for index in range(self.n_blocks)], np.int64)

    @cached_property
    def fingerprint(self) -> str:
        return f"{self.base.fingerprint} mixed {self.groups} {self.seed}"

    @property
    def stored_nbytes(self) -> int:
        return self.base.stored_nbytes * self.groups

    @property
    def read_nbytes(self) -> int:
        """A block that is read whole for a part of it, and the parts before they are joined."""
        return self.base.read_nbytes + 2 * self.base.block_nbytes

    def reader(self) -> MixedReader:
        return MixedReader(self.base.reader())

    def ticket(self, index: int) -> Any:
        """What the reader needs for a mixed block: lazy where the tickets of the blocks behind it are."""
        tickets = [self.base.ticket(int(block)) for block, _ in self._behind(index)]
        parts = tuple(part for _, part in self._behind(index))
        if any(isinstance(ticket, Delayed) for ticket in tickets):
            return delayed(MixedTicket.of, pure=False)(index, parts, *tickets)
        return MixedTicket.of(index, parts, *tickets)

    def _behind(self, index: int) -> list[tuple[int, BlockPart]]:
        """The blocks behind a mixed one: block b gives its part i to the mixed block i strides before it."""
        # groups strides of equal length, so that sorted classes meet in every block
        strides = np.arange(self.groups) * self.n_blocks // self.groups
        blocks = self._filled[(index + strides) % self.n_blocks]
        return [(int(block), BlockPart(number, self.groups, self.seed)) for number, block in enumerate(blocks)]

    def _size(self, index: int) -> int:
        """The rows of a mixed block, known without reading."""
        return sum(part.size(int(self.base.block_rows[block])) for block, part in self._behind(index))


def _joined(blocks: Sequence[Block], index: int) -> Block:
    """One block with the rows of several, in order."""
    rows = [block.X for block in blocks]
    X = sparse.csr_array(sparse.vstack(rows)) if sparse.issparse(rows[0]) else np.concatenate(rows)
    weights = None if blocks[0].weight is None else np.concatenate([block.weights for block in blocks])
    y = None if blocks[0].y is None else np.concatenate([np.asarray(block.y) for block in blocks])
    ids = np.concatenate([block.row_id for block in blocks])
    held = None if blocks[0].held is None else np.concatenate([block.held_with for block in blocks])
    return replace(blocks[0], index=index, X=X, y=y, weight=weights, row_id=ids, held=held)
