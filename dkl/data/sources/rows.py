"""RowSource: a BlockSource that also knows its counts and can read single parts of a block, and its lazy arrays."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

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


def lazy_part(source: RowSource, part: str, meta: Any, *, classes: np.ndarray | None = None) -> da.Array:
    """One part of all rows as a Dask array with a chunk a block; nothing is read before it is computed.

    Parameters
    ----------
    source : RowSource
    part : {"X", "y", "weight", "row_id"}
    meta : ndarray or csr_array of shape (0, ...)
        What a chunk is like.
    classes : ndarray of shape (K,) or None
        y as these labels instead of as codes.
    """
    name = f"dkl-{part}-{uuid.uuid4().hex}"
    reader, tail = f"{name}-reader", (0,) * (meta.ndim - 1)
    # One node holds the reader for all chunks; each chunk is a node of its own, so that Dask reads only what is asked
    # for.
    graph: dict[Any, Any] = {reader: _Constant(source.reader())}
    # Dask arrays may have chunks without rows, but many functions on them fail there.
    filled = np.flatnonzero(source.block_rows)
    tickets = [source.ticket(int(index)) for index in filled]
    for position, ticket in enumerate(tickets):
        # The rows of a Dask source are nodes of another graph, to which this one refers.
        handed = ticket.key if isinstance(ticket, Delayed) else _Constant(ticket)
        graph[(name, position, *tail)] = (_read_part, reader, handed, part, _Constant(classes))
    if not tickets:
        graph[(name, 0, *tail)] = (_plain, _Constant(meta))
    chunks = (tuple(int(n) for n in source.block_rows[filled]) or (0,), *((n,) for n in meta.shape[1:]))
    dependencies: Any = [ticket for ticket in tickets if isinstance(ticket, Delayed)]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies), name, chunks, meta=meta)


class _Constant:
    """A value that Dask must hand over as it is, without looking for keys and tasks in it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Constant) else value


def _read_part(reader: Any, ticket: Any, part: str, classes: _Constant) -> Any:
    """One part of a block's rows, with class codes turned into labels where there are classes."""
    block = _plain(reader).load(_plain(ticket), (part,))
    values = block.weights if part == "weight" else getattr(block, part)
    return values if classes.value is None else classes.value[values]
