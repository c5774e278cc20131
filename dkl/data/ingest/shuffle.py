"""Shuffles array rows (dense or CSR) that do not fit in memory, using temporary disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from scipy import sparse

from dkl.data.ingest.packing import fixed_rows, from_fixed_rows, from_ragged_rows, ragged_rows
from dkl.data.ingest.scratch import check_free_space, scratch_folder
from dkl.data.ingest.staging import ROW, Stage

# A NumPy array or a scipy.sparse.csr_array.
Rows: TypeAlias = Any
Batch: TypeAlias = tuple[Rows, np.ndarray | None, np.ndarray | None]
NumberedBatch: TypeAlias = tuple[Rows, np.ndarray | None, np.ndarray | None, np.ndarray]


def shuffled_batches(
    batches: Iterable[Batch], *, n_bytes: int, seed: int | None, directory: str | Path | None = None
) -> Iterator[NumberedBatch]:
    """The rows of `batches` in shuffled order, each with its number in the input.

    Parameters
    ----------
    batches : iterable of (X, y, weight)
        X of shape (n, d), a NumPy array or CSR rows, with the same dtype and d in all batches; y of shape (n,) or
        (n, t), and weight of shape (n,), or None in all batches.
    n_bytes : int
        Estimate of the bytes of all rows: compared with the free disk space, and determines the number of buckets.
    seed : int or None
        The order depends only on the seed and the number of rows; None keeps the order of the input.
    directory : path or None
        Folder of the temporary folder; None is the system's.

    Yields
    ------
    (X, y, weight, row_id)
        Batches of about 32 MiB; row_id (n,) int64 is the number of each row in the input.

    Raises
    ------
    OSError
        If the disk of `directory` has fewer than `n_bytes` free.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> [(X_out, _, _, row_id)] = shuffled_batches([(X, None, None)], n_bytes=X.nbytes, seed=0)
    >>> bool((X_out == X[row_id]).all())
    True
    """
    with scratch_folder(directory, name="shuffle") as folder:
        check_free_space(folder, n_bytes, "the shuffle")
        stage = Stage(folder, seed=seed, n_bytes=n_bytes)
        layout: RowLayout | None = None
        for batch in batches:
            layout = layout or RowLayout(*batch)
            stage.add(layout.pack(*batch))
        if layout is not None:
            yield from map(layout.unpack, stage.tables())


class RowLayout:
    """Packs batches of array rows into tables with columns of raw bytes, and unpacks them in their dtypes.

    Parameters
    ----------
    X, y, weight : the first batch; all others must have its dtypes and widths
    """

    def __init__(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None) -> None:
        self.is_sparse = sparse.issparse(X)
        self.n_columns = X.shape[1]
        self.dtype = np.dtype(X.dtype)
        dense = {"y": y, "weight": weight} | ({} if self.is_sparse else {"X": X})
        # sparse rows have different lengths, and are packed as two columns of their own
        self._kinds = {name: (a.dtype, a.shape[1:]) for name, a in dense.items() if a is not None}

    def pack(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None) -> pa.Table:
        """The rows as a table."""
        given = {"X": X, "y": y, "weight": weight}
        columns = {name: fixed_rows(_check_compatible(given[name], *kind), *kind) for name, kind in self._kinds.items()}
        if self.is_sparse:
            columns["indices"] = ragged_rows(X.indices.astype(np.int32, copy=False), X.indptr)
            columns["data"] = ragged_rows(X.data.astype(self.dtype, copy=False), X.indptr)
        return pa.table(columns)

    def unpack(self, table: pa.Table) -> NumberedBatch:
        """The rows of a table from `Stage.tables`, with their numbers."""
        arrays = {name: from_fixed_rows(table.column(name), *kind) for name, kind in self._kinds.items()}
        row_id = table.column(ROW).to_numpy()
        X = self._sparse_rows(table) if self.is_sparse else arrays["X"]
        return X, arrays.get("y"), arrays.get("weight"), row_id

    def _sparse_rows(self, table: pa.Table) -> sparse.csr_array:
        indices, indptr = from_ragged_rows(table.column("indices"), np.dtype(np.int32))
        data, _ = from_ragged_rows(table.column("data"), self.dtype)
        return sparse.csr_array((data, indices, indptr), shape=(table.num_rows, self.n_columns))


def _check_compatible(values: Rows, dtype: np.dtype, shape: tuple[int, ...]) -> Rows:
    """The values; ValueError unless they have the row shape of the first batch and a dtype that casts to its dtype."""
    if values is None or values.shape[1:] != shape:
        raise ValueError(f"batches differ: expected rows of shape {shape}, got {getattr(values, 'shape', None)}")
    if not np.can_cast(values.dtype, dtype, "safe"):
        raise ValueError(f"batches differ: expected rows of dtype {dtype}, got {values.dtype}")
    return values
