"""BlockSource: what a pass needs to know of the rows, wherever they are (a zarr store, memory, a Dask array)."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dkl.protocols.block import Block


class BlockReader(Protocol):
    """Turns a ticket into a block. Small and picklable: it is broadcast once a pass and opens its store lazily."""

    # A ticket is whatever the source of the same reader makes, so its type is known to that pair alone.
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
    blocks_together : int
        Blocks that are cut from the same stored chunks, a power of two: a task reads all of them, and each of the
        chunks once. 1 where every block has chunks of its own.
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

    @property
    def blocks_together(self) -> int: ...

    def reader(self) -> BlockReader: ...

    def ticket(self, index: int) -> Any:
        """What `BlockReader.load` needs for block `index`: its number for a store, the rows themselves for arrays in
        memory, a `dask.delayed.Delayed` of the rows for Dask arrays (the pass has it computed where the task runs)."""
        ...


B = TypeVar("B", bound=BlockSource)


class WrappedSource(Generic[B]):
    """A source made of another one: what a subclass does not define for itself is as it is in `base`.

    A subclass defines `reader` and `fingerprint` in any case, since it hands out other rows than its base does; and
    `ticket` where its reader needs more than the base's one. See `BlockSource` for the attributes.

    Parameters
    ----------
    base : BlockSource
    """

    def __init__(self, base: B) -> None:
        self.base = base

    @property
    def n_blocks(self) -> int:
        return self.base.n_blocks

    @property
    def block_rows(self) -> np.ndarray:
        return self.base.block_rows

    @property
    def n_columns(self) -> int:
        return self.base.n_columns

    @property
    def dtype(self) -> np.dtype:
        return self.base.dtype

    @property
    def is_sparse(self) -> bool:
        return self.base.is_sparse

    @property
    def has_weight(self) -> bool:
        return self.base.has_weight

    @property
    def block_nbytes(self) -> int:
        return self.base.block_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.base.read_nbytes

    @property
    def stored_nbytes(self) -> int:
        return self.base.stored_nbytes

    @property
    def place(self) -> str:
        return self.base.place

    @property
    def blocks_together(self) -> int:
        return self.base.blocks_together

    def ticket(self, index: int) -> Any:
        return self.base.ticket(index)
