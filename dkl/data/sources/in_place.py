"""InPlaceSource: zarr arrays that exist already, used where they are: not copied, and without checksums of ours."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from scipy import sparse

from dkl.data.checks import as_rows, check_rows, checked_weight, stored_dtype
from dkl.data.counts import RowCounts
from dkl.data.labels import (
    TaskChoice,
    as_targets,
    check_target_shape,
    check_targets,
    encode_labels,
    guess_task,
    labels_that_count,
    numeric_targets,
    sorted_classes,
)
from dkl.data.schema import Task
from dkl.data.soundness import check_pointers, whole_csr
from dkl.data.sources.rows import PARTS, PARTS_WITHOUT_X, drop_weightless
from dkl.data.store.blocking import block_bounds, block_rows, sparse_row_bytes
from dkl.data.store.digests import rows_digest
from dkl.data.store.location import Location
from dkl.errors import StoreError, located
from dkl.protocols.block import Block

_ROWS_AT_ONCE = 2**20


def open_in_place(values: Any, options: Mapping[str, Any] | None) -> Any:
    """The zarr array or group behind a path or URL; anything else as it is.

    Raises
    ------
    FileNotFoundError
        Nothing is there.
    """
    if not isinstance(values, str | os.PathLike):
        return values
    location = Location.of(values, options)
    if not location.exists():
        raise FileNotFoundError(f"no zarr array at {location.place} ({location.url})")
    return zarr.open(location.store(read_only=True), mode="r")


@dataclass(frozen=True, eq=False)
class CsrGroup:
    """CSR rows in a zarr group laid out as anndata does."""

    group: zarr.Group

    @property
    def shape(self) -> tuple[int, int]:
        n_rows, n_columns = self._attribute("shape")
        return int(n_rows), int(n_columns)

    @property
    def dtype(self) -> np.dtype:
        return self._array("data").dtype

    @property
    def nnz(self) -> int:
        return int(self._array("data").shape[0])

    def _array(self, name: str) -> Any:
        return self.group[name]

    def _attribute(self, name: str) -> Any:
        if self.group.attrs.get("encoding-type") != "csr_matrix":
            raise StoreError(
                f"{self.group} is a group and not CSR rows as anndata stores them (encoding-type 'csr_matrix'); "
                "pass one of its arrays"
            )
        return self.group.attrs[name]

    def __getitem__(self, rows: slice) -> sparse.csr_array:
        # One pointer more than there are rows: the end of the last row.
        indptr = np.asarray(self._array("indptr")[rows.start : rows.stop + 1])
        # Pointers count from the first row of the whole matrix; within a slice they are checked from its own first
        # entry.
        before = max(int(indptr[0]), 0) if rows.start and len(indptr) else 0
        check_pointers(indptr - before, rows.stop - rows.start, self.nnz - before, first_line=rows.start)
        # Only the entries of these rows are read.
        entries = slice(int(indptr[0]), int(indptr[-1]))
        data, indices = (np.asarray(self._array(name)[entries]) for name in ("data", "indices"))
        return whole_csr(data, indices, indptr - indptr[0], self.shape[1])


@dataclass(frozen=True)
class InPlaceTicket:
    """Rows start to stop, and the parts of arrays in memory that belong to them."""

    index: int
    start: int
    stop: int
    in_memory: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class InPlaceReader:
    """Reads rows of zarr arrays and checks them as new rows are checked.

    Parameters
    ----------
    arrays : mapping of str to zarr array or CsrGroup
        "X", and those of "y" and "weight" that are not in memory.
    classes : ndarray of shape (K,) or None
    place : str
    """

    arrays: Mapping[str, Any]
    classes: np.ndarray | None
    place: str

    def load(self, ticket: InPlaceTicket, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket` whose weight is not 0.

        Raises
        ------
        ValueError
            NaN, infinity or an unknown label; the row is named.
        """
        with located(f"block {ticket.index} of {self.place}"):
            n_rows = ticket.stop - ticket.start
            # Weights come first: they say which labels count and which rows stay.
            weight = checked_weight(self._part("weight", ticket), n_rows, first_row=ticket.start)
            X = self._rows(ticket) if "X" in parts else np.empty((n_rows, 0))
            y = self._targets(ticket, weight) if "y" in parts else None
            return drop_weightless(Block(ticket.index, X, y, weight, np.arange(ticket.start, ticket.stop)))

    def _part(self, name: str, ticket: InPlaceTicket) -> Any:
        if name in self.arrays:
            return np.asarray(self.arrays[name][ticket.start : ticket.stop])
        return ticket.in_memory.get(name)

    def _rows(self, ticket: InPlaceTicket) -> Any:
        rows = as_rows(self.arrays["X"][ticket.start : ticket.stop])
        check_rows(rows, first_row=ticket.start)
        return rows

    def _targets(self, ticket: InPlaceTicket, weight: np.ndarray | None) -> np.ndarray | None:
        given = self._part("y", ticket)
        if given is None:
            return None
        y = as_targets(given, ticket.stop - ticket.start, first_row=ticket.start)
        check_targets(y, first_row=ticket.start)
        if self.classes is None:
            return numeric_targets(y, first_row=ticket.start)
        return encode_labels(y, self.classes, first_row=ticket.start, weight=weight)


class InPlaceSource:
    """See `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    X : zarr array of shape (n, d) or CsrGroup
    y, weight : zarr array, ndarray, or None
    classes : ndarray of shape (K,) or None
    """

    def __init__(self, X: Any, y: Any, weight: Any, classes: np.ndarray | None) -> None:
        # What is a zarr array is read block by block; values in memory travel with the tickets.
        given = {"X": X, "y": y, "weight": weight}
        self._arrays = {n: a for n, a in given.items() if isinstance(a, zarr.Array | CsrGroup)}
        self._in_memory = {n: np.asarray(a) for n, a in given.items() if a is not None and n not in self._arrays}
        self._classes = classes
        self.is_sparse = isinstance(X, CsrGroup)
        self.n_columns, self.dtype = int(X.shape[1]), stored_dtype(X.dtype)
        self._bounds = block_bounds(X.shape[0], rows_in_place(X))
        self.n_blocks = len(self._bounds) - 1
        self.has_y, self.has_weight = y is not None, weight is not None
        node = X.group if isinstance(X, CsrGroup) else X
        self.place = f"'{str(node.store_path).removeprefix('file://')}' (in place, not checksummed)"

    @cached_property
    def counts(self) -> RowCounts:
        return RowCounts.of_blocks(self.blocks_without_x(), None if self._classes is None else len(self._classes))

    @property
    def block_rows(self) -> np.ndarray:
        return self.counts.rows if self.has_weight else np.diff(self._bounds)

    @property
    def _row_nbytes(self) -> float:
        X: Any = self._arrays["X"]
        if self.is_sparse:
            return sparse_row_bytes(X.nnz, X.shape[0], X.dtype)
        return self.n_columns * self.dtype.itemsize

    @property
    def block_nbytes(self) -> int:
        rows = int(np.diff(self._bounds).max())
        return int(np.ceil(rows * (self._row_nbytes + 8 * (1 + self.has_y + self.has_weight))))

    @property
    def read_nbytes(self) -> int:
        """The stored chunks that a block touches and what they are decoded to."""
        X: Any = self._arrays["X"]
        chunk = 0 if self.is_sparse else X.chunks[0] * self._row_nbytes
        return int(2 * (self.block_nbytes + chunk))

    @property
    def stored_nbytes(self) -> int:
        X = self._arrays["X"]
        return int(self._row_nbytes * X.shape[0])

    @cached_property
    def fingerprint(self) -> str:
        """Everything is read for it, since nothing else tells whether a value has changed."""
        reader = self.reader()
        digest = hashlib.sha256(repr((self._bounds.tolist(), self._classes)).encode())
        for index in range(self.n_blocks):
            digest.update(rows_digest(reader.load(self.ticket(index))))
        return digest.hexdigest()

    def reader(self) -> InPlaceReader:
        return InPlaceReader(self._arrays, self._classes, self.place)

    def ticket(self, index: int) -> InPlaceTicket:
        start, stop = int(self._bounds[index]), int(self._bounds[index + 1])
        return InPlaceTicket(index, start, stop, {name: values[start:stop] for name, values in self._in_memory.items()})

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        reader = self.reader()
        return (reader.load(self.ticket(index), PARTS_WITHOUT_X) for index in range(self.n_blocks))


def classes_in_place(y: Any, task: TaskChoice, classes: Any, weight: Any = None) -> tuple[Task, np.ndarray | None]:
    """The task of targets in place and its sorted classes, found by reading y once, a million rows at a time.

    Raises
    ------
    ValueError
        NaN or infinity, labels of two dimensions, or no dimension at all.
    """
    check_target_shape(np.shape(y))
    if task == "regression":
        return task, None
    if len(np.shape(y)) == 2 and np.shape(y)[1] > 1:
        if task == "classification" or classes is not None:
            raise ValueError(f"y has shape {np.shape(y)}; labels must be of one dimension: one class a row")
        return "regression", None
    if classes is not None:
        return "classification", sorted_classes(classes)
    labels = np.empty(0)
    for start in range(0, np.shape(y)[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        values = as_targets(y[rows], first_row=start)
        check_targets(values, first_row=start)
        # One fraction makes all of it a regression; what comes after it need not be looked at.
        if task == "auto" and guess_task(values) == "regression":
            return "regression", None
        counted = labels_that_count(values, None if weight is None else np.asarray(weight[rows]))
        labels = np.unique(np.concatenate([labels, counted]) if start else counted)
    return "classification", sorted_classes(labels)


def rows_in_place(X: Any) -> int:
    """Rows a block: whole chunks of X where they fit, else parts of one."""
    if isinstance(X, CsrGroup):
        return block_rows(sparse_row_bytes(X.nnz, X.shape[0], X.dtype), X.shape[0])
    # A chunk that two blocks share is read and decoded twice in every pass, so that blocks end where chunks do.
    rows, chunk = block_rows(X.shape[1] * X.dtype.itemsize), int(X.chunks[0])
    # A chunk larger than a block is cut into even parts; each block then reads the chunk that it lies in.
    if chunk > rows:
        return -(-chunk // -(-chunk // rows))
    return rows // chunk * chunk
