"""A uniform shuffle of array rows (dense or CSR) that do not fit in memory, through temporary disk."""

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

# A NumPy array or a scipy.sparse.csr_array, told apart by `sparse.issparse`.
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
        X of shape (n, d), a NumPy array or CSR rows, every batch of the same dtype and d; y of shape (n,) or (n, t) and
        weight of shape (n,), or None in every batch.
    n_bytes : int
        About the bytes of all rows: checked against the free disk, and decides how finely rows are scattered.
    seed : int or None
        The order is a function of seed and number of rows alone; None keeps the order of the input.
    directory : path or None
        Where the temporary folder goes (None: the system's temporary folder).

    Yields
    ------
    (X, y, weight, row_id)
        Batches of some 32 MiB; row_id (n,) int64 is the number of each row in the input.

    Raises
    ------
    OSError
        The disk of `directory` does not have `n_bytes` free.

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
    """How array rows travel as table columns: the raw bytes of each row, so that any dtype comes back as it went.

    Parameters
    ----------
    X, y, weight : the first batch of rows, whose dtypes and widths all others share
    """

    def __init__(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None) -> None:
        self.is_sparse = sparse.issparse(X)
        self.n_columns = X.shape[1]
        self.dtype = np.dtype(X.dtype)
        dense = {"y": y, "weight": weight} | ({} if self.is_sparse else {"X": X})
        # Sparse rows are ragged, and go as two columns of their own.
        self._kinds = {name: (a.dtype, a.shape[1:]) for name, a in dense.items() if a is not None}

    def pack(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None) -> pa.Table:
        """The rows as a table."""
        given = {"X": X, "y": y, "weight": weight}
        columns = {name: fixed_rows(_checked(given[name], *kind), *kind) for name, kind in self._kinds.items()}
        if self.is_sparse:
            # Both with the same bounds, so that indices and values of a row stay together.
            columns["indices"] = ragged_rows(X.indices.astype(np.int32, copy=False), X.indptr)
            columns["data"] = ragged_rows(X.data.astype(self.dtype, copy=False), X.indptr)
        return pa.table(columns)

    def unpack(self, table: pa.Table) -> NumberedBatch:
        """The rows of a table that `Stage` handed back."""
        arrays = {name: from_fixed_rows(table.column(name), *kind) for name, kind in self._kinds.items()}
        row_id = table.column(ROW).to_numpy()
        X = self._sparse_rows(table) if self.is_sparse else arrays["X"]
        return X, arrays.get("y"), arrays.get("weight"), row_id

    def _sparse_rows(self, table: pa.Table) -> sparse.csr_array:
        indices, indptr = from_ragged_rows(table.column("indices"), np.dtype(np.int32))
        data, _ = from_ragged_rows(table.column("data"), self.dtype)
        return sparse.csr_array((data, indices, indptr), shape=(table.num_rows, self.n_columns))


def _checked(values: Rows, dtype: np.dtype, shape: tuple[int, ...]) -> Rows:
    """Refuse rows that are not of the shape and type of the first batch: their bytes would be taken for others."""
    if values is None or values.shape[1:] != shape:
        raise ValueError(f"batches differ: expected rows of shape {shape}, got {getattr(values, 'shape', None)}")
    if not np.can_cast(values.dtype, dtype, "safe"):
        raise ValueError(f"batches differ: expected rows of dtype {dtype}, got {values.dtype}")
    return values
