"""Packs array rows of any dtype into a table column of raw bytes, so that wide tables are sorted as a single column."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from dask.utils import format_bytes


def fixed_rows(values: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> pa.Array:
    """A column whose entries are the bytes of the rows of `values`, each of `shape` and `dtype`.

    Raises
    ------
    ValueError
        If a row has 256 MiB or more: Arrow stores the size of such entries, in bits, in 32 bits.
    """
    width = dtype.itemsize * math.prod(shape)
    if 8 * width > np.iinfo(np.int32).max:
        raise ValueError(
            f"a row has {format_bytes(width)}, and rows of less than 256 MiB can be shuffled; pass shuffle=False, save "
            "the rows as a sparse matrix, or fewer of their columns"
        )
    dense = np.ascontiguousarray(values, dtype)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(dense), [None, pa.py_buffer(dense)])


def from_fixed_rows(column: pa.ChunkedArray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The rows that `fixed_rows` packed, read-only."""
    array = _one_chunk(column)
    count = math.prod(shape)
    # a slice of a column has the buffer of the whole column, and an offset in rows
    flat = np.frombuffer(array.buffers()[1], dtype, len(array) * count, array.offset * count * dtype.itemsize)
    return flat.reshape(len(array), *shape)


def ragged_rows(values: np.ndarray, indptr: np.ndarray) -> pa.Array:
    """A column whose entry i is the bytes of ``values[indptr[i]:indptr[i + 1]]``."""
    # Arrow's offsets are in bytes; they have 64 bits in its "large" types
    offsets = indptr.astype(np.int64) * values.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(indptr) - 1, buffers)


def from_ragged_rows(column: pa.ChunkedArray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The values that `ragged_rows` packed, read-only, and the row pointers, beginning with 0."""
    array = _one_chunk(column)
    _, offsets, values = array.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8) // dtype.itemsize
    n_values = int(bounds[-1] - bounds[0])
    flat = np.frombuffer(values, dtype, n_values, bounds[0] * dtype.itemsize) if n_values else np.empty(0, dtype)
    bounds = bounds - bounds[0]
    return flat, bounds.astype(np.int32) if bounds[-1] < 2**31 else bounds


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array; copied if it has several chunks."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


class NumberPacking:
    """Packs all float32 columns of a table into one column, and all float64 columns; missing numbers become NaN.

    The overhead of sorting, slicing and writing a table is proportional to its number of columns.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the tables to pack.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._types: dict[str, np.dtype] = {"__float32__": np.dtype(np.float32), "__float64__": np.dtype(np.float64)}
        arrow_types = {"__float32__": pa.float32(), "__float64__": pa.float64()}
        self._names = {key: [f.name for f in schema if f.type == dtype] for key, dtype in arrow_types.items()}
        self._packed = {name for names in self._names.values() for name in names}

    def pack(self, table: pa.Table) -> pa.Table:
        """The same rows with packed numbers; columns of texts and booleans stay as they are."""
        packed = table.select([name for name in table.column_names if name not in self._packed])
        for key, names in self._names.items():
            if names:
                rows = np.empty((table.num_rows, len(names)), self._types[key])
                for j, name in enumerate(names):
                    rows[:, j] = table.column(name).to_numpy()
                packed = packed.append_column(key, fixed_rows(rows, rows.dtype, rows.shape[1:]))
        return packed

    def unpack(self, table: pa.Table) -> pa.Table:
        """The inverse of `pack`; columns that were added since remain."""
        columns = {name: table.column(name) for name in table.column_names if name not in self._names}
        for key, names in self._names.items():
            if names:
                rows = from_fixed_rows(table.column(key), self._types[key], (len(names),))
                # Arrow needs contiguous columns
                columns |= {name: pa.array(values) for name, values in zip(names, rows.T.copy(), strict=True)}
        return pa.table(columns)
