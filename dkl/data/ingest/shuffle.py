"""Shuffles blocks of rows that do not fit in memory, using temporary disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from dkl.data.ingest.packing import packed, packed_rows, unpacked, unpacked_rows
from dkl.data.ingest.scratch import check_free_space, scratch_folder
from dkl.data.ingest.staging import ROW, Stage
from dkl.protocols.block import Block


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


# The columns of a staged table that are no part of a block, or that `unpacked_rows` reads.
_OF_ROWS = ("X", "indices", "data", ROW)
