"""The blocks of a source on their way into a store: in their order or shuffled, a few of them in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed

from dkl.data.ingest.shuffle import shuffled_batches
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.rows import RowSource
from dkl.data.store.writer import DatasetWriter
from dkl.events import Event, Subscriber
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from dkl.protocols.source import PARTS

_DASK_BLOCKS_AT_ONCE = 2
# Weight and identity of a row, which travel with it through the shuffle as one column, beside its group and time.
_TAGS = [("weight", np.float64), ("row_id", np.int64)]


def write_all(writer: DatasetWriter, blocks: Iterator[Block], n_rows: int, publish: Subscriber) -> None:
    """Hand blocks to a writer, telling of each."""
    start = time.perf_counter()
    publish(Event("started", "create", total=n_rows))
    for block in blocks:
        weight = block.weights if writer.schema.has_weight else None
        writer.write(block.X, block.y, weight, block.row_id, block.columns)
        seconds = time.perf_counter() - start
        publish(Event("advanced", "create", writer.rows_written, n_rows, rows=block.n_rows, seconds=seconds))
    publish(Event("finished", "create", n_rows, n_rows, seconds=time.perf_counter() - start))


def blocks_in_order(source: RowSource, columns: Mapping[str, str] | None = None) -> Iterator[Block]:
    """Every block that has rows, read or computed a few at a time.

    Parameters
    ----------
    source : RowSource
    columns : mapping of str to str, or None
        Groups and times that go with the rows: what they are called in the new blocks, and in those of the source.
    """
    named = columns or {}
    reader = source.reader()
    filled = np.flatnonzero(source.block_rows)
    for start in range(0, len(filled), _DASK_BLOCKS_AT_ONCE):
        tickets = [source.ticket(int(index)) for index in filled[start : start + _DASK_BLOCKS_AT_ONCE]]
        if isinstance(tickets[0], Delayed):
            tickets = list(dask.compute(*tickets))
        for block in (reader.load(ticket, (*PARTS, *named.values())) for ticket in tickets):
            yield replace(block, columns={name: block.columns[column] for name, column in named.items()})


def shuffled_blocks(source: RowSource, seed: int, columns: Mapping[str, str] | None = None) -> Iterator[Block]:
    """All rows in the order of `dkl.protocols.sampling.shuffle_keys`: in memory, or through temporary disk."""
    if isinstance(source, ArraySource):
        yield from source.reordered(np.argsort(shuffle_keys(source.row_id, seed), kind="stable"))
        return

    def tagged() -> Iterator[tuple[Any, np.ndarray | None, np.ndarray]]:
        for block in blocks_in_order(source, columns):
            tags = np.empty(block.n_rows, [*_TAGS, *((name, np.int64) for name in block.columns)])
            tags["weight"], tags["row_id"] = block.weights, block.row_id
            for name, codes in block.columns.items():
                tags[name] = codes
            yield block.X, block.y, tags

    n_bytes = source.block_nbytes * source.n_blocks
    tags: Any
    for X, y, tags, _ in shuffled_batches(tagged(), n_bytes=n_bytes, seed=seed):
        # Copies, since a field of a structured array is a view with gaps, which writing would have to gather again.
        weight = tags["weight"].copy() if source.has_weight else None
        yield Block(0, X, y, weight, tags["row_id"].copy(), {name: tags[name].copy() for name in columns or {}})
