"""BlockSource: the contract between passes and rows, wherever these are (a zarr store, memory, a Dask array)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dkl.protocols.block import Block

# The parts of a block that every source has; a row column is a further part, known by its name.
PARTS = ("X", "y", "weight", "row_id")
PARTS_WITHOUT_X = PARTS[1:]


class BlockReader(Protocol):
    """Turns a ticket into a block. Small and picklable: it is broadcast once a pass and opens its store lazily."""

    # The source and the reader agree on the type of a ticket; nobody else looks into it.
    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows behind `ticket`: verified, filtered (split, weight 0), in the dtype of the store.

        Parameters
        ----------
        ticket : object
        parts : tuple of str
            Of `PARTS`, and names of row columns (groups, times, exposures, codes of splits), which come in
            `Block.columns`. A part that is not named may be left unread: X then has no columns, y and weight are None.
        """
        ...


class BlockSource(Protocol):
    """Rows cut into numbered blocks.

    Attributes
    ----------
    n_blocks : int
        Absolute block numbers run from 0 to n_blocks - 1; a block may be empty after filtering.
    block_rows : ndarray of shape (n_blocks,), int64
        Rows of each block after filtering (known without reading).
    n_columns : int
    dtype : numpy dtype of X
    is_sparse : bool
    has_weight : bool
        Whether blocks may have weights.
    block_nbytes : int
        Bytes of the largest decoded block, y and weights included.
    read_nbytes : int
        Bytes of temporaries while one block is read (compressed chunk, rows that a filter drops).
    left_nbytes : int
        Those of them that are still there when the rows are read, and the steps of a view are applied to them.
    stored_nbytes : int
        Bytes that one read of everything takes from the store; 0 in memory.
    fingerprint : str
        Changes whenever a value, the order of the rows or the cut into blocks changes.
    place : str
        The name of the source in messages: ``"'rows.zarr'"``, ``"an array in memory"``.
    blocks_sharing_chunks : int
        The number of consecutive blocks that are cut from the same stored chunks, a power of two. One task reads all
        of them, so that each chunk is read once. 1 where every block has chunks of its own.
    base : BlockSource
        The source that reads the rows: for a view (`dkl.data.view`) the one that it is built on, else the source
        itself.
    steps : tuple
        The steps by which a view computes its blocks from those of `base`, in order; empty for a source that reads.
    columns_along : tuple of str
        Names of the row columns that every block contains whose X is read, requested or not.
    most_folds : int or None
        The largest number of folds of held-out rows: 1 where the newest rows are held out, the number of groups where
        there are few; None if there is no limit.
    """

    @property
    def n_blocks(self) -> int: ...

    @property
    def block_rows(self) -> np.ndarray: ...

    @property
    def n_columns(self) -> int: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def is_sparse(self) -> bool: ...

    @property
    def has_weight(self) -> bool: ...

    @property
    def block_nbytes(self) -> int: ...

    @property
    def read_nbytes(self) -> int: ...

    @property
    def left_nbytes(self) -> int: ...

    @property
    def stored_nbytes(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def place(self) -> str: ...

    @property
    def blocks_sharing_chunks(self) -> int: ...

    @property
    def base(self) -> Any: ...

    @property
    def steps(self) -> tuple[Any, ...]: ...

    @property
    def columns_along(self) -> tuple[str, ...]: ...

    @property
    def most_folds(self) -> int | None: ...

    def reader(self) -> BlockReader: ...

    def ticket(self, index: int) -> Any:
        """The argument of `BlockReader.load` for block `index`: its number for a store, the rows themselves for arrays
        in memory, a `dask.delayed.Delayed` of the rows for Dask arrays (computed on the worker that runs the task)."""
        ...


class BaseSource:
    """The defaults of a source that reads rows: no steps, no extra columns, any number of folds; see `BlockSource`."""

    steps: tuple[Any, ...] = ()
    columns_along: tuple[str, ...] = ()
    most_folds: int | None = None
    blocks_sharing_chunks: int = 1

    @property
    def base(self) -> Any:
        return self

    @property
    def left_nbytes(self) -> int:
        """All temporaries of reading, where a source does not say which of them it gives up."""
        source: Any = self
        return int(source.read_nbytes)


def are_kept(source: BlockSource) -> bool:
    """Whether a process keeps blocks for the next pass: of stores, and those whose X takes long to compute."""
    # also in a pass without X, which would drop the blocks of the passes around it
    return source.stored_nbytes > 0 or any(step.is_costly for step in source.steps)


def rows_within(nbytes: int, source: BlockSource) -> int:
    """The number of rows of a source that fit into `nbytes`."""
    return nbytes // row_bytes(source)


def row_bytes(source: BlockSource) -> int:
    """Bytes of one row of a source at most."""
    longest = max(1, int(np.max(source.block_rows, initial=1)))
    return max(1, source.block_nbytes // longest)
