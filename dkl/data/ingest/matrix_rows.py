"""MatrixRows: rows of matrix files (libsvm, npz) on their way to temporary disk and from there to a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from dkl.data.checks import as_rows, check_rows
from dkl.data.ingest.encoding import Layout, worth_sparse
from dkl.data.ingest.libsvm_files import MAX_WIDTH, LibsvmFormat
from dkl.data.ingest.npz_files import NpzFormat
from dkl.data.ingest.packing import packed_rows, unpacked_rows
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.staging import ROW
from dkl.data.ingest.target_columns import Target, TargetSummary, WeightSummary
from dkl.data.schema import Schema, Task
from dkl.errors import located
from dkl.protocols.arrays import Rows


class MatrixRows:
    """The rows of matrix files.

    Parameters
    ----------
    files : list of InputFile
    reader : LibsvmFormat or NpzFormat
    task : {"auto", "classification", "regression"}
    layout : {"auto", "dense", "sparse"}
    """

    target_name: str | None = None

    def __init__(
        self,
        files: list[InputFile],
        reader: LibsvmFormat | NpzFormat,
        *,
        task: Literal["auto"] | Task = "auto",
        layout: Layout = "auto",
    ) -> None:
        self._files, self._reader, self._task, self._chosen_layout = files, reader, task, layout
        self.staged_bytes = sum(reader.staged_bytes(file) for file in files)
        # no rows of the first file: the number of columns, dtype and layout that those of all files must have
        self._first: Any = None
        self._target = TargetSummary("y")
        self._weight = WeightSummary("sample_weight")
        self._given_parts: tuple[bool, bool] | None = None
        self._base = 0
        self._extent = IndexExtent()
        self._decided: tuple[Schema, Target | None] | None = None

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """All rows as tables for staging, each with its number of input bytes."""
        row = 0
        for file in self._files:
            with located(f"'{file.name}'"):
                for (X, y, weight), n_bytes in self._reader.read(file):
                    if not X.shape[0]:
                        continue
                    yield self._table(as_rows(X), y, weight, row), n_bytes
                    row += X.shape[0]

    def _table(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None, row: int) -> pa.Table:
        """Rows as a table for staging, after checking them and adding them to the summaries; `row` is the first one."""
        check_rows(X, first_row=row)
        self._check_consistent(X, y, weight)
        self._extent.add(X)
        columns: dict[str, pa.ChunkedArray] = {}
        for summary, values in ((self._target, y), (self._weight, weight)):
            if values is not None:
                # texts, booleans or float64, so that all files have the same type
                flat = values.reshape(len(values))
                if flat.dtype.kind in "SU":
                    column = pa.array(flat.astype(np.str_).tolist(), pa.string())
                else:
                    column = pa.array(flat if flat.dtype.kind == "b" else flat.astype(np.float64))
                columns[summary.name] = pa.chunked_array([column])
        # weights first, since labels of rows of weight 0 are not classes
        counted = self._weight.add(columns["sample_weight"]) if weight is not None else None
        if y is not None:
            self._target.add(columns["y"], counted)
        return pa.table({**packed_rows(X), **columns})

    def _check_consistent(self, X: Rows, y: np.ndarray | None, weight: np.ndarray | None) -> None:
        """Raise ValueError for rows with another width, type or other arrays than those of the first file."""
        parts = y is not None, weight is not None
        if self._first is None:
            self._first, self._given_parts = X[:0], parts
            return
        # libsvm rows have the width MAX_WIDTH until all files are read
        width, dtype = self._first.shape[1], self._first.dtype
        if X.shape[1] != width or X.dtype != dtype or type(X) is not type(self._first):
            raise ValueError(f"X has {X.shape[1]} columns of {X.dtype}, and the first file {width} columns of {dtype}")
        if parts != self._given_parts:
            raise ValueError("y and sample_weight must be in every file or in none")

    def decide(self) -> Schema:
        """The schema of the dataset, after all rows were read."""
        if self._first is None:
            raise ValueError(f"the input has no rows: {[file.name for file in self._files]}")
        has_target, has_weight = self._given_parts or (False, False)
        if has_weight:
            self._weight.check()
        target = self._target.decide(self._task) if has_target else None
        n_columns, self._base = self._first.shape[1], 0
        if isinstance(self._reader, LibsvmFormat):
            n_columns, self._base = self._reader.width_and_base(self._extent.lowest, self._extent.highest)
        schema = Schema(
            n_columns=n_columns,
            dtype=self._first.dtype,
            is_sparse=self._is_stored_sparse(n_columns),
            task=target.task if target else None,
            classes=target.classes if target else None,
            has_weight=has_weight,
            first_index=self._base if isinstance(self._reader, LibsvmFormat) else None,
        )
        self._decided = schema, target
        return schema

    def _is_stored_sparse(self, n_columns: int) -> bool:
        """Whether rows are stored as CSR: as the user chose, else as in npz files, or by `worth_sparse` for libsvm."""
        if self._chosen_layout != "auto":
            return self._chosen_layout == "sparse"
        if not isinstance(self._reader, LibsvmFormat):
            return sparse.issparse(self._first)
        return worth_sparse(n_columns, self._extent.values / (self._extent.rows * n_columns))

    def encode(self, table: pa.Table) -> tuple[Any, ...]:
        """The rows of a staged table as (X, codes or targets, weights, row numbers)."""
        if self._decided is None:
            raise RuntimeError("decide() comes before encode()")
        schema, target = self._decided
        X = unpacked_rows(table, self._first.shape[1])
        if sparse.issparse(X):
            # indices were staged as in the files, as the index of the first column was not known then
            X = sparse.csr_array((X.data, X.indices - self._base, X.indptr), shape=(X.shape[0], schema.n_columns))
        if sparse.issparse(X) != schema.is_sparse:
            X = sparse.csr_array(X) if schema.is_sparse else X.toarray()
        y = target.encode(table.column("y")) if target is not None else None
        weight = table.column("sample_weight").to_numpy() if schema.has_weight else None
        return X, y, weight, table.column(ROW).to_numpy()


class IndexExtent:
    """The lowest and highest column index and the numbers of rows and stored values of all rows read so far."""

    def __init__(self) -> None:
        self.lowest, self.highest, self.rows, self.values = MAX_WIDTH, -1, 0, 0

    def add(self, X: Any) -> None:
        self.rows += X.shape[0]
        if sparse.issparse(X) and X.nnz:
            self.lowest = min(self.lowest, int(X.indices.min()))
            self.highest = max(self.highest, int(X.indices.max()))
            self.values += X.nnz
