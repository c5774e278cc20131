"""Copies the blocks of a source into a store, in their order or shuffled, with a few of them in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import dask
import numpy as np
import pyarrow as pa
from dask.delayed import Delayed, delayed

from dkl.data.in_threads import in_order
from dkl.data.ingest.packing import packed, packed_rows, unpacked, unpacked_rows
from dkl.data.ingest.scratch import check_free_space, scratch_folder
from dkl.data.ingest.staging import ROW, Stage
from dkl.data.pieces import Pieces
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.lazy import DaskSource
from dkl.data.sources.rows import RowSource
from dkl.data.store.writer import DatasetWriter
from dkl.events import ProgressStage, Subscriber
from dkl.process import free_memory, usable_cores
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from dkl.protocols.source import PARTS, BlockReader

Result = TypeVar("Result")

# Rows that are read or computed ahead may take one part in this many of the free memory.
_FREE_MEMORY_DIVISOR = 8
# The columns of a staged table that are no part of a block, or that `unpacked_rows` reads.
_OF_ROWS = ("X", "indices", "data", ROW)


def write_all(writer: DatasetWriter, blocks: Iterator[Block], n_rows: int, publish: Subscriber) -> None:
    """Pass blocks to a writer, and publish an event for each."""
    with ProgressStage(publish, "create", n_rows) as stage:
        for block in blocks:
            weight = block.weights if writer.schema.has_weight else None
            writer.write(block.X, block.y, weight, block.row_id, block.columns)
            stage.advance(block.n_rows, block.n_rows)


def blocks_in_order(source: RowSource, columns: Mapping[str, str] | None = None) -> Iterator[Block]:
    """All blocks that have rows; all cores read or compute further blocks while the caller uses one.

    Parameters
    ----------
    source : RowSource
    columns : mapping of str to str, or None
        Row columns of groups and times: their names in the returned blocks, and in those of the source.
    """
    named, reader = columns or {}, source.reader()
    parts = (*PARTS, *named.values())
    if isinstance(source.base, DaskSource):
        blocks = _dask_blocks(source, partial(reader.load, parts=parts))
    else:
        tickets = (source.ticket(int(index)) for index in np.flatnonzero(source.block_rows))
        blocks = chain.from_iterable(_ahead(tickets, source.block_nbytes, partial(_loaded, reader, parts)))
    for block in blocks:
        yield replace(block, columns={name: block.columns[column] for name, column in named.items()})


def _dask_blocks(source: Any, load: Callable[[Any], Block]) -> Iterator[Block]:
    """The blocks of a Dask source, or of a view of one; each chunk is computed once, whatever the blocks are."""
    base: DaskSource = source.base
    chunked = base.blocks_as_chunked(free_memory() // _FREE_MEMORY_DIVISOR)
    # Dask computes the rows, as it does tickets
    read = delayed(chunked.reader().block, pure=False)
    tickets = (read(chunked.ticket(index)) for index in range(chunked.n_blocks))
    rows: Pieces[Block] = Pieces()
    chunks = chain.from_iterable(_ahead(tickets, chunked.block_nbytes, lambda group: dask.compute(*group)))
    for index, n_rows in enumerate(base.rows_in_blocks):
        while rows.n_rows < n_rows:
            rows.add(next(chunks))
        block = replace(rows.taken(n_rows), index=index)
        block = load(block if source is base else source.ticket_on(index, block))
        if block.n_rows:
            yield block


def _loaded(reader: BlockReader, parts: tuple[str, ...], tickets: list[Any]) -> list[Block]:
    """The blocks of tickets; Delayed tickets are computed first."""
    if isinstance(tickets[0], Delayed):
        tickets = list(dask.compute(*tickets))
    with ThreadPoolExecutor(len(tickets)) as pool:
        return list(pool.map(partial(reader.load, parts=parts), tickets))


def _ahead(tickets: Iterable[Any], nbytes: int, load: Callable[[list[Any]], Result]) -> Iterator[Result]:
    """`load` of groups of tickets, one group ahead: a ticket for each core, fewer if two groups exceed the memory."""
    in_group = int(np.clip(free_memory() // (2 * _FREE_MEMORY_DIVISOR * max(nbytes, 1)), 1, usable_cores()))
    remaining = iter(tickets)
    groups = iter(lambda: list(islice(remaining, in_group)), [])
    # the other thread uses the current Dask client of this one
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        yield from in_order(pool, lambda group: context.run(load, group), groups, 2)


def shuffled_blocks(source: RowSource, seed: int, columns: Mapping[str, str] | None = None) -> Iterator[Block]:
    """All rows in the order of `dkl.protocols.sampling.shuffle_keys`, sorted in memory or on temporary disk."""
    if isinstance(source, ArraySource):
        yield from source.reordered(np.argsort(shuffle_keys(source.row_id, seed), kind="stable"))
        return

    blocks = blocks_in_order(source, columns)
    if source.has_weight:
        # a block of a source with weights may have none
        blocks = (replace(block, weight=block.weights) for block in blocks)
    yield from shuffled(blocks, n_bytes=source.block_nbytes * source.n_blocks, seed=seed)


def shuffled(blocks: Iterable[Block], *, n_bytes: int, seed: int) -> Iterator[Block]:
    """The rows of blocks in shuffled order, in blocks of about 32 MiB with number 0.

    Parameters
    ----------
    blocks : iterable of Block
        With the same parts, dtypes and columns in all of them.
    n_bytes : int
        Estimate of the bytes of all rows: compared with the free disk space, and determines the number of buckets.
    seed : int
        The order depends only on the seed and the number of rows.

    Raises
    ------
    OSError
        If the system's temporary folder has fewer than `n_bytes` free.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> [block] = shuffled([Block(0, X, None, None, np.arange(3))], n_bytes=X.nbytes, seed=0)
    >>> bool((block.X == X[block.row_id]).all())
    True
    """
    with scratch_folder(None, name="shuffle") as folder:
        check_free_space(folder, n_bytes, "the shuffle")
        stage = Stage(folder, seed=seed, n_bytes=n_bytes)
        n_columns, names = 0, tuple[str, ...]()
        for block in blocks:
            n_columns, names = block.X.shape[1], tuple(block.columns)
            beside = {"y": block.y, "weight": block.weight, "row_id": block.row_id, **block.columns}
            given = {name: packed(values) for name, values in beside.items() if values is not None}
            stage.add(pa.table({**packed_rows(block.X), **given}))
        for table in stage.tables() if stage.n_rows else ():
            parts = {name: unpacked(table.column(name)) for name in table.column_names if name not in _OF_ROWS}
            columns = {name: parts.pop(name) for name in names}
            yield Block(
                0, unpacked_rows(table, n_columns), parts.get("y"), parts.get("weight"), parts["row_id"], columns
            )
