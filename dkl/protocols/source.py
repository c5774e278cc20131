"""BlockSource: what a pass needs to know of the rows, wherever they are (a zarr store, memory, a Dask array)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dkl.protocols.block import Block


class BlockReader(Protocol):
    """Turns a ticket into a block. Light and picklable: it is broadcast once a pass and opens its store lazily."""

    def load(self, ticket: Any) -> Block:
        """The rows behind `ticket`: verified, filtered (split, weight 0), in the dtype of the store."""
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
    stored_nbytes : int
        Bytes that one read of everything takes from the store; 0 in memory.
    fingerprint : str
        Changes whenever a value, the order of the rows or the cut into blocks changes.
    place : str
        How messages call it: ``"'rows.zarr'"``, ``"an array in memory"``.
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
    def stored_nbytes(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def place(self) -> str: ...

    def reader(self) -> BlockReader: ...

    def ticket(self, index: int) -> Any:
        """What `BlockReader.load` needs for block `index`: its number for a store, the rows themselves for arrays in
        memory, a `dask.delayed.Delayed` of the rows for Dask arrays (the pass has it computed where the task runs)."""
        ...
