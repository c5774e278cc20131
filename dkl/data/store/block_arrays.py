"""BlockArrays: the zarr arrays of a store (X dense or as anndata lays out CSR, y, ...), appended to by blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from dkl.data.schema import Schema
from dkl.data.store.growing import GrowingArray, WritingThreads
from dkl.protocols.block import Block

CSR_PARTS = ("X/data", "X/indices", "X/indptr")
# Number of blocks above which several are written into one file (shard) of about 64 MiB, at most `_MOST_IN_A_SHARD`:
# file systems are slow with a million small files.
_MANY_BLOCKS = 256
_SHARD_BYTES = 64 * 2**20
_MOST_IN_A_SHARD = 64
# Chunks of CSR data have an eighth of a block's entries, within these limits, so that reading a block decodes few
# entries of its neighbours.
_CHUNKS_A_BLOCK = 8
_LEAST_ENTRIES = 1024
_MOST_ENTRIES = 2**19


def array_names(schema: Schema) -> tuple[str, ...]:
    """Names of the arrays of X, y, weights and row ids."""
    rows = CSR_PARTS if schema.is_sparse else ("X",)
    y = () if schema.task is None else ("y",)
    return (*rows, *y, *(("weight",) if schema.has_weight else ()), "row_id")


def row_column_names(schema: Schema) -> tuple[str, ...]:
    """Names of the arrays of groups and times, which older releases ignore."""
    return tuple(sorted(schema.row_columns))


STORED_NAMES = {"weight": "sample_weight"}
"""Names of arrays in the store that differ from those in a block."""


class BlockArrays:
    """Appends blocks to the arrays of a store.

    Parameters
    ----------
    group : zarr.Group
    schema : Schema
    threads : WritingThreads
    rows_a_block : int
    n_rows : int or None
    """

    def __init__(
        self, group: zarr.Group, schema: Schema, threads: WritingThreads, rows_a_block: int, *, n_rows: int | None
    ) -> None:
        self._group, self._schema, self._threads, self._rows, self._n_rows = (
            group,
            schema,
            threads,
            rows_a_block,
            n_rows,
        )
        self._arrays: dict[str, GrowingArray] = {}
        self._entries = 0

    def append(self, block: Block) -> dict[str, np.ndarray]:
        """Write one block in threads; returns its part of each array."""
        parts = self._parts(block)
        if not self._arrays:
            self._open(parts)
        for name, values in parts.items():
            self._arrays[name].append(values)
        return parts

    def _parts(self, block: Block) -> dict[str, np.ndarray]:
        """The part of each array from one block; pointers of CSR rows continue from the entries written before."""
        parts: dict[str, np.ndarray] = {}
        if self._schema.is_sparse:
            X: Any = block.X
            parts["X/data"], parts["X/indices"] = X.data, X.indices.astype(np.int32, copy=False)
            parts["X/indptr"] = X.indptr[:-1].astype(np.int64) + self._entries
            self._entries += X.nnz
        else:
            parts["X"] = np.ascontiguousarray(block.X)
        optional = {"y": block.y, "weight": block.weight}
        parts |= {name: np.ascontiguousarray(values) for name, values in optional.items() if values is not None}
        return parts | {"row_id": block.row_id} | {name: block.columns[name] for name in row_column_names(self._schema)}

    def _open(self, parts: dict[str, np.ndarray]) -> None:
        """Create the arrays, with the types of the first block and chunks of a block's size."""
        group = self._group
        if self._schema.is_sparse:
            group.create_group("X")
        shard = self._blocks_a_shard(parts)
        for name, values in parts.items():
            target: Any = group["X"] if name in CSR_PARTS else group
            stored = STORED_NAMES.get(name, name).rpartition("/")[2]
            if name in ("X/data", "X/indices"):
                chunk = int(np.clip(len(values) // _CHUNKS_A_BLOCK, _LEAST_ENTRIES, _MOST_ENTRIES))
                in_shard = 1 if shard == 1 else _CHUNKS_A_BLOCK * shard
                grown = GrowingArray(target, stored, self._threads, chunk=chunk, shard=in_shard)
            else:
                # there is one pointer more than rows
                n_rows = None if self._n_rows is None else self._n_rows + (name == "X/indptr")
                grown = GrowingArray(target, stored, self._threads, chunk=self._rows, shard=shard, n_rows=n_rows)
            self._arrays[name] = grown

    def _blocks_a_shard(self, parts: dict[str, np.ndarray]) -> int:
        """The number of blocks in a shard; 1, for no shards, unless there are many blocks."""
        if self._n_rows is None or self._n_rows <= _MANY_BLOCKS * self._rows:
            return 1
        # bytes of the first block in all arrays
        size = sum(values.nbytes for values in parts.values())
        return int(np.clip(_SHARD_BYTES // max(size, 1), 1, _MOST_IN_A_SHARD))

    def close(self, n_rows: int) -> None:
        """Write buffered values, and the last pointer and the shape of sparse rows; `n_rows` rows were appended."""
        if self._schema.is_sparse:
            # the last pointer is the number of all entries
            self._arrays["X/indptr"].append(np.array([self._entries], np.int64))
            layout = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
            self._group["X"].attrs.put({**layout, "shape": [n_rows, self._schema.n_columns]})
        for array in self._arrays.values():
            array.close()

    def facts(self) -> dict[str, Any]:
        """dtype, shape and chunks of each array, with which readers compare its metadata."""
        return {name: array.facts() for name, array in self._arrays.items()}
