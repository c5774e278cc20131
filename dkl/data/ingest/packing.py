"""Rows of matrices as tables of a few columns, since the time to sort and write a table grows with their number."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from scipy import sparse

from dkl.protocols.arrays import Rows

Batch: TypeAlias = tuple[Any, np.ndarray | None, np.ndarray | None]
"""X, y and weights of consecutive rows of a matrix file."""


def packed(values: np.ndarray) -> pa.Array:
    """An array of shape (n,) or (n, k) as a column of a table, whose entries are numbers, or lists of k numbers."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def unpacked(column: pa.ChunkedArray) -> np.ndarray:
    """The array that `packed` made a column of, read-only."""
    array = _one_chunk(column)
    if not pa.types.is_fixed_size_list(array.type):
        return array.to_numpy()
    return array.flatten().to_numpy().reshape(len(array), array.type.list_size)


def packed_rows(X: Rows) -> dict[str, pa.Array]:
    """The columns of a table with rows of shape (n, d): one for dense rows, two for CSR rows."""
    if isinstance(X, np.ndarray):
        return {"X": packed(X)}
    bounds = pa.array(X.indptr.astype(np.int64))
    parts = {"indices": X.indices.astype(np.int32, copy=False), "data": X.data}
    return {name: pa.LargeListArray.from_arrays(bounds, pa.array(values)) for name, values in parts.items()}


def unpacked_rows(table: pa.Table, n_columns: int) -> Any:
    """The rows of a table with the columns of `packed_rows`, (n, n_columns), read-only."""
    if "X" in table.column_names:
        return unpacked(table.column("X"))
    indices, data = (_one_chunk(table.column(name)) for name in ("indices", "data"))
    # a slice of a column has the bounds of its rows among the entries of the whole column
    bounds = indices.offsets.to_numpy() - indices.offsets[0].as_py()
    indptr = bounds.astype(np.int32) if bounds[-1] < 2**31 else bounds
    parts = data.flatten().to_numpy(), indices.flatten().to_numpy(), indptr
    return sparse.csr_array(parts, shape=(table.num_rows, n_columns))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; Arrow's `combine_chunks` would copy a single chunk, too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
