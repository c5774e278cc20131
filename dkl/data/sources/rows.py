"""RowSource: a BlockSource that also knows its counts and can read single parts of a block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dkl.data.counts import RowCounts
from dkl.protocols.block import Block
from dkl.protocols.source import BlockSource, WrappedSource

PARTS = ("X", "y", "weight", "row_id")
PARTS_WITHOUT_X = PARTS[1:]


class RowReader(Protocol):
    """A BlockReader that can leave parts of a block unread (X then has no columns, y and weight are None)."""

    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block: ...


class RowSource(BlockSource, Protocol):
    """What the data package asks of a source beyond what a pass does."""

    @property
    def has_y(self) -> bool: ...

    @property
    def counts(self) -> RowCounts: ...

    def reader(self) -> RowReader: ...

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        """Every block in turn without its X, read here and now; `extra` names row columns for `Block.columns`."""
        ...


class WrappedRows(WrappedSource[RowSource]):
    """Rows of another source that come with more than they have there; `_identity` says what, in all detail."""

    _identity: str

    @property
    def has_y(self) -> bool:
        return self.base.has_y

    @property
    def counts(self) -> RowCounts:
        return self.base.counts

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.base.fingerprint} {self._identity}".encode()).hexdigest()

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label, the choice of the rows of a block or what comes with them changes."""
        of_base: Any = self.base
        return f"{of_base.block_identity(index)}\n{self._identity}"


class TicketReader:
    """The reader of blocks that are whole in their tickets: rows in memory, or such as Dask has computed."""

    def load(self, ticket: Block, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket` whose weight is not 0; all parts are there already, so none is left out."""
        return drop_weightless(ticket)


def drop_weightless(block: Block) -> Block:
    """The rows whose weight is not 0; the block itself when that is all of them."""
    # The common case costs one look at the weights, and no copy.
    if block.weight is None or block.weight.all():
        return block
    return block.rows(np.flatnonzero(block.weight))


def without_x(block: Block) -> Block:
    """The block with an X of no columns."""
    return replace(block, X=np.empty((len(block.row_id), 0)))


def nbytes_of(block: Block) -> int:
    """Bytes of all arrays of a block."""
    X = block.X
    arrays = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
    return sum(a.nbytes for a in (*arrays, block.y, block.weight, block.row_id) if a is not None)
