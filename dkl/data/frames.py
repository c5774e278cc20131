"""Data frames (pandas, Dask) as encoded rows, by the rules of `dkl.data.ingest.encoding`."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
import pyarrow
from dask import delayed, is_dask_collection
from dask._task_spec import Task
from dask.delayed import Delayed
from dask.utils import ensure_dict
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.data.checks import (
    ALL_WEIGHTLESS,
    as_rows,
    check_named_once,
    check_rows,
    checked_weight,
    did_you_mean,
    spoken_names,
)
from dkl.data.differences import Differences
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.columns import array_table
from dkl.data.ingest.encoding import TableEncoding, learn_encoding
from dkl.data.other_frames import as_pandas_rows
from dkl.data.sources.lazy import Cut, weights_in_chunks, with_whole_rows
from dkl.data.sources.tasks import are_separate, culled, one_task
from dkl.data.store.blocking import block_bounds
from dkl.process import drop_kept, give_back_memory, return_freed_memory, worker_of_task

T = TypeVar("T")


def is_frame(X: object) -> bool:
    """Whether `X` is a pandas or a Dask data frame."""
    # by the name of its type, so that neither library is imported unless it is used
    return type(X).__name__ == "DataFrame" and hasattr(X, "dtypes") and hasattr(X, "columns")


def column_named(X: GivenRows, name: str, argument: str, otherwise: str = "") -> Any:
    """The column of a data frame whose name is the value of an argument, such as ``groups="town"``.

    Raises
    ------
    ValueError
        If X is no data frame (`otherwise` ends the message), or has no such column.
    """
    if not is_frame(X):
        raise ValueError(f"{argument}={name!r} names a column, and X is no data frame: pass one value a row{otherwise}")
    if name not in X.columns:
        raise ValueError(no_column_message(name, argument, list(X.columns)))
    return X[name]


def weights_of(X: GivenRows, given: GivenValues) -> Any:
    """The weights of rows: `given`, or the column of X that has this name if X is a data frame."""
    if not isinstance(given, str) or not is_frame(X := as_pandas_rows(X)):
        return given
    return column_named(X, given, "sample_weight")


def no_column_message(name: str, argument: str, columns: list[Any]) -> str:
    """The error message for an argument that names none of the columns."""
    return (
        f"{argument}={name!r} names no column of X{did_you_mean(name, columns)}; the columns are "
        f"{spoken_names(columns)}"
    )


# Whether this thread reads a partition for a pass, whose plan counts what the process keeps meanwhile.
_FOR_PASS: ContextVar[bool] = ContextVar("for a pass", default=False)


@dataclass(frozen=True)
class _Reading:
    """Computes one partition, a task of Dask without dependencies, such as the read of a file.

    A worker first drops the blocks that it keeps for later passes, unless a pass reads the partition: only the plan of
    a pass counts the bytes of both.
    """

    task: Any

    def __call__(self) -> Any:
        if worker_of_task() is None:
            return self.task()
        if not _FOR_PASS.get():
            drop_kept()
            return_freed_memory()
        _let_arrow_return_memory()
        rows = self.task()
        # Arrow reads in threads of its own, whose heaps keep some MiB each
        return_freed_memory()
        return rows


@cache
def _let_arrow_return_memory() -> None:
    """Have Arrow allocate from the C library in this process, and return what its libraries do not use.

    Arrow's own allocator keeps what it has freed: a worker that read partitions of 16 MiB held 82 MiB more afterwards,
    and reached 130 MiB more while it read, in place of 74. An allocator that a user has chosen is left alone.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    give_back_memory()


def partitions(X: GivenRows) -> list[Delayed]:
    """The partitions of a Dask frame; workers return freed memory before and after they read one (`_Reading`)."""
    # Dask joins small partitions when it optimises a frame, how many depends on the columns that are read: so that all
    # that is computed of a partition agrees, it does so once
    parts = X.optimize().to_delayed(optimize_graph=False)
    graph = ensure_dict(parts[0].dask)
    tasks = [graph[part.key] for part in parts]
    # under names of their own, since Dask must not see two tasks of one name
    return [
        one_task("dkl-partition", _Reading(task)) if isinstance(task, Task) and not task.dependencies else part
        for part, task in zip(parts, tasks, strict=True)
    ]


@dataclass(eq=False)
class RawParts:
    """Raw rows: the partitions of a Dask frame, the chunks of a Dask array, or all rows in memory as one part.

    Parameters
    ----------
    parts : list of (frame, ndarray, or Delayed of one)
    weights : list of (ndarray of shape (n,), Delayed of one, or None)
        Rows of weight 0 do not influence the encoding and may have any values.
    known_lengths : list of int or None
        The number of rows of each part; None while partitions are not counted.
    most_nbytes : int
        Peak bytes of a process while it reads the largest partition of a Dask frame; 0 while none is counted.
    left_nbytes : int
        The bytes of the largest partition.
    """

    parts: list[Any]
    weights: list[Any]
    known_lengths: list[int] | None
    most_nbytes: int = 0
    left_nbytes: int = 0

    @classmethod
    def of(cls, X: GivenRows, weight: GivenValues = None) -> RawParts:
        """The parts of a frame or of a dense array; rows of partitions are counted now if there are weights."""
        if not is_dask_collection(X):
            parts, lengths = [X], [len(X)]
        elif isinstance(X, da.Array):
            X = _whole_rows(X)
            parts, lengths = list(X.to_delayed().ravel()), list(X.chunks[0])
        else:
            parts, lengths = partitions(X), None
        found = cls(parts, [None] * len(parts), lengths)
        cut = None if weight is None else weights_in_chunks(weight, tuple(found.lengths))
        return found if cut is None else replace(found, weights=list(cut.to_delayed().ravel()))

    @property
    def lengths(self) -> list[int]:
        """The number of rows of each part; partitions are read for it, unless they were before."""
        if self.known_lengths is None:
            # messages name rows by their numbers, and blocks need known sizes
            counts = dask.compute(*(delayed(_counted)(part) for part in self.parts))
            self.known_lengths = [n_rows for n_rows, _, _ in counts]
            self.most_nbytes, self.left_nbytes = (max(nbytes) for nbytes in list(zip(*counts, strict=True))[1:])
        return self.known_lengths

    @property
    def first_rows(self) -> list[int]:
        """The number of the first row of each part."""
        return [0, *np.cumsum(self.lengths).tolist()][: len(self.parts)]

    def learned(self, learn: Callable[[Iterator[Any]], T]) -> T:
        """The result of `learn` on an iterator over the parts, without their rows of weight 0.

        An error that `learn` raises gets a note with the number of rows left out, since the row numbers in its message
        do not count them.

        Raises
        ------
        ValueError
            All rows have a weight of 0.
        """
        left_out = 0

        def parts_that_count() -> Iterator[Any]:
            nonlocal left_out
            lengths: list[int] = []
            for part, of_part in zip(self.parts, self.weights, strict=True):
                rows, weight = dask.compute(part, of_part)
                weight = checked_weight(weight, len(rows), first_row=sum(lengths))
                lengths.append(len(rows))
                if isinstance(part, Delayed) and is_frame(rows):
                    most, left = _partition_bytes(rows)
                    self.most_nbytes, self.left_nbytes = max(self.most_nbytes, most), max(self.left_nbytes, left)
                counted = rows_that_count(rows, weight)
                left_out += len(rows) - len(counted)
                # a part without rows that count does not determine the types of its columns
                if len(counted) or not len(rows):
                    yield counted
            self.known_lengths = lengths
            if left_out and left_out == sum(lengths):
                raise ValueError(ALL_WEIGHTLESS)

        try:
            return learn(parts_that_count())
        except (ValueError, TypeError) as error:
            _note_uncounted_rows(error, left_out)
            raise

    def cut(self, encoding: TableEncoding) -> Cut | None:
        """The partitions of a frame, for tasks that encode the rows of their blocks.

        None for other rows, and partitions that share tasks or are held by a cluster.
        """
        if not self.most_nbytes:
            return None
        parts = [culled(part) for part in self.parts]
        if not are_separate(parts):
            return None
        chunks = [one_task("dkl-rows", _Raw(part)) for part in parts]
        nbytes = self.most_nbytes, self.left_nbytes
        return Cut(f"raw-{uuid.uuid4().hex}", chunks, self.lengths, _EncodeRows(encoding), *nbytes)

    def encoded(self, encoding: TableEncoding, dtype: np.dtype | None = None) -> da.Array:
        """The rows encoded by `encoding`, (n, columns), as a Dask array with one chunk for each part.

        Rows of weight 0 become rows of zeros, so that the row numbers of the others stay.
        """
        dtype = encoding.dtype if dtype is None else dtype
        empty = np.empty((0, encoding.n_columns), dtype)
        meta = sparse.csr_array(empty) if encoding.is_sparse else empty
        # The encoding is one node of the graph, not a copy in each task.
        encode, shared = delayed(_encoded_part, pure=False), delayed(encoding, pure=False)
        chunks = [
            da.from_delayed(encode(shared, part, weight, first_row, dtype), (n, encoding.n_columns), meta=meta)
            for part, n, weight, first_row in zip(self.parts, self.lengths, self.weights, self.first_rows, strict=True)
        ]
        return da.concatenate(chunks)


def map_raw(
    function: Callable[..., Any],
    shared: tuple[Any, ...],
    X: Any,
    n_columns: int | None,
    dtype: DTypeLike,
    *,
    strict: bool | None,
    weight: Any = None,
    counts: bool = False,
) -> da.Array:
    """`function(*shared, rows, strict=strict, weight=weight)` of each partition of a Dask frame, or chunk of an array.

    Each of `shared` is one task for all of them. With `n_columns=None`, for a frame alone, results have one dimension.
    Partitions are read to be counted if there are weights or `counts` is set; else the numbers of rows are unknown.
    """
    shared = tuple(delayed(each, pure=True) for each in shared)
    if not is_frame(X):
        X = with_whole_rows(X if weight is None else lazy_zeros_for_weightless(X, weight))
        chunks, meta = (X.chunks[0], (n_columns,)), np.empty((0, 0), dtype)
        return da.map_blocks(function, *shared, X, strict=strict, chunks=chunks, meta=meta)
    check_names(X)
    task = delayed(function, pure=True)
    if weight is None and not counts:
        found = [(task(*shared, part, strict=strict), np.nan) for part in partitions(X)]
    else:
        raw = RawParts.of(X, weight)
        beside = zip(raw.parts, raw.weights, raw.lengths, strict=True)
        found = [(task(*shared, part, strict=strict, weight=of_part), n) for part, of_part, n in beside]
    wide = () if n_columns is None else (n_columns,)
    return da.concatenate([da.from_delayed(part, shape=(n, *wide), dtype=dtype) for part, n in found])


@dataclass(frozen=True)
class _Raw:
    """Computes the rows of a partition by its own tasks."""

    part: Delayed

    def __call__(self) -> _RawRows:
        before = _FOR_PASS.set(True)
        try:
            return _RawRows(dask.get(self.part.__dask_graph__(), self.part.key))
        finally:
            _FOR_PASS.reset(before)


@dataclass(frozen=True)
class _RawRows:
    """The rows of a partition, cut by their positions."""

    frame: Any

    def __getitem__(self, rows: slice) -> Any:
        return self.frame.iloc[rows]

    @property
    def nbytes(self) -> int:
        return int(self.frame.memory_usage().sum())


@dataclass(frozen=True)
class _EncodeRows:
    """Encodes rows, of which the first has the number `first_row`."""

    encoding: TableEncoding

    def __call__(self, rows: Any, first_row: int, weight: np.ndarray | None) -> np.ndarray | sparse.csr_array:
        return _encoded_part(self.encoding, rows, weight, first_row, self.encoding.dtype)


def _counted(part: Any) -> tuple[int, int, int]:
    """The number of rows of a partition, the peak bytes of a process while it reads it, and its bytes afterwards."""
    return len(part), *_partition_bytes(part)


def _partition_bytes(rows: Any) -> tuple[int, int]:
    """Peak bytes of a process while it reads a partition from Parquet, and bytes of the partition that stay.

    The peak is that of the file, the table of Arrow, and a frame and its copy with columns in order: 3.0 to 3.4 times
    the values of NumPy were seen. Texts of Arrow, 0.8 times, are in the frame what they are in the table.
    """
    import pandas as pd

    nbytes = rows.memory_usage(deep=True)
    of_arrow = [0, *(isinstance(dtype, pd.ArrowDtype | pd.StringDtype) for dtype in rows.dtypes)]
    return math.ceil(sum(nbytes * np.where(of_arrow, 1.5, 3.5))), int(nbytes.sum())


def rows_that_count(rows: Any, weight: np.ndarray | None) -> Any:
    """Rows of a frame or an array in memory whose weight is not 0."""
    if weight is None or weight.all():
        return rows
    return rows_at(rows, np.flatnonzero(weight))


def rows_at(rows: Any, which: slice | np.ndarray) -> Any:
    """Rows of a frame or an array in memory, by their positions."""
    return rows.iloc[which] if hasattr(rows, "iloc") else rows[which]


def _note_uncounted_rows(error: Exception, left_out: int) -> None:
    """Add a note to an error whose row numbers do not count `left_out` rows of weight 0."""
    if left_out:
        error.add_note(f"rows are counted without the {left_out:,} that have a weight of 0")


def _encoded_part(
    encoding: TableEncoding,
    rows: Any,
    weight: np.ndarray | None,
    first_row: int,
    dtype: np.dtype,
    differences: Differences | None = None,
) -> np.ndarray | sparse.csr_array:
    """The rows of one part encoded by `encoding`, (n, columns) in `dtype`, dense or CSR as the encoding is.

    Rows of weight 0 become rows of zeros; since their values are not read, none of them raises an error.
    """
    weight = checked_weight(weight, len(rows), first_row=first_row)
    counted = rows_that_count(rows, weight)
    left_out = len(rows) - len(counted)
    try:
        encoded = encoding.transform(counted, first_row=first_row, dtype=dtype, differences=differences)
    except (ValueError, TypeError) as error:
        _note_uncounted_rows(error, left_out)
        raise
    return encoded if weight is None else _with_rows_of_zeros(encoded, weight)


def zeros_for_weightless(
    rows: np.ndarray | sparse.csr_array, weight: np.ndarray | None
) -> np.ndarray | sparse.csr_array:
    """Rows in memory, (n, d), with rows of zeros in place of those of weight 0, whatever these hold."""
    return rows if weight is None else _with_rows_of_zeros(rows_that_count(rows, weight), weight)


def lazy_zeros_for_weightless(X: da.Array, weight: GivenValues) -> da.Array:
    """`zeros_for_weightless` of a Dask array, whose rows are then whole in each chunk; weights may be lazy, too."""
    if not is_dask_collection(weight) and np.all(np.asarray(weight) != 0.0):
        return X
    X = _whole_rows(X)
    weights: Any = weights_in_chunks(weight, X.chunks[0])
    return da.map_blocks(_chunk_of_zeros_for_weightless, X, weights[:, None], dtype=X.dtype, meta=X._meta)


def _chunk_of_zeros_for_weightless(rows: Any, weight: np.ndarray) -> np.ndarray | sparse.csr_array:
    return zeros_for_weightless(as_rows(rows), weight.ravel() != 0.0)


def _with_rows_of_zeros(counted: np.ndarray | sparse.csr_array, weight: np.ndarray) -> np.ndarray | sparse.csr_array:
    """The rows that count at their places among all rows, (n, d); those of weight 0 are zeros."""
    if counted.shape[0] == len(weight):
        return counted
    shape = (len(weight), counted.shape[1])
    if isinstance(counted, np.ndarray):
        whole = np.zeros(shape, counted.dtype)
        whole[weight != 0.0] = counted
        return whole
    entries = np.zeros(len(weight), counted.indptr.dtype)
    entries[weight != 0.0] = np.diff(counted.indptr)
    indptr = np.concatenate([[0], np.cumsum(entries)]).astype(counted.indptr.dtype)
    return sparse.csr_array((counted.data, counted.indices, indptr), shape=shape)


def encode_raw(
    X: GivenRows,
    categorical: Collection[str] = (),
    deferred: list[Callable[[], None]] | None = None,
    weight: GivenValues = None,
) -> tuple[GivenRows, TableEncoding, Cut | None]:
    """The encoded rows of a data frame, or of a dense array with missing values, and the rules that made them.

    The third value is `RawParts.cut`.

    Rows are an ndarray, a csr_array, or a Dask array of them. Columns of an array are found by position.

    `categorical` names columns of a frame whose values are names whatever they look like. A column of a frame without
    any value, such as a fold of a cross-validation may have, is left out with a warning. Warnings are given at once, or
    appended to `deferred` as functions that issue them. A Dask collection is read once for the statistics of its
    columns, a partition at a time; its rows stay lazy. Rows of weight 0 do not influence the encoding and become zeros.

    Raises
    ------
    ValueError
        For an infinite value, or a column of an array without values.
    """
    if is_frame(X):
        check_names(X)
    elif not is_dask_collection(X):
        check_rows(X, may_lack=True, weight=checked_weight(dask.compute(weight)[0], len(X)))
    raw = RawParts.of(X, weight)
    if is_frame(X):
        encoding = raw.learned(
            partial(
                learn_encoding,
                categorical=categorical,
                without="X.drop(columns={})",
                leave_out_empty=True,
                deferred=deferred,
            )
        )
    else:
        learned = raw.learned(lambda parts: learn_encoding(map(array_table, map(as_rows, parts)), layout="dense"))
        encoding = replace(learned, array_dtype=X.dtype.newbyteorder("=").str)
    if is_dask_collection(X):
        return raw.encoded(encoding), encoding, raw.cut(encoding)
    return encoded_by(encoding, X, weight=weight), encoding, None


def in_words_of_frames(message: str) -> str:
    """A message with the remedy of data frames, `X.drop(columns=...)`, in place of ``drop=...``."""
    return re.sub(r"\bdrop=(\[[^\[\]]*\])", r"X.drop(columns=\1)", message)


def in_words_of_arrays(message: str) -> str:
    """A message with the remedy of arrays, whose columns have numbers, in place of ``drop=...``."""
    return re.sub(r"\bdrop=\['column (\d+)'\]", r"np.delete(X, \1, axis=1)", message)


def may_lack_values(X: GivenRows) -> bool:
    """Whether `X` is a dense Dask array of floats, some of which may be missing (NaN)."""
    return isinstance(X, da.Array) and X.dtype.kind == "f" and not sparse.issparse(X._meta)


def _whole_rows(X: da.Array) -> da.Array:
    """The array with whole rows in each chunk, and chunks of known sizes."""
    X = with_whole_rows(X)
    return X.compute_chunk_sizes() if any(np.isnan(n) for n in X.chunks[0]) else X


def is_raw(encoding: TableEncoding | None, X: GivenRows) -> bool:
    """Whether `encoding` applies to `X`: a frame, or an array with as many columns as the array of fit."""
    if encoding is None or is_frame(X):
        return encoding is not None
    is_dense = not sparse.issparse(getattr(X, "_meta", X)) and (isinstance(X, da.Array) or not hasattr(X, "dask"))
    return bool(encoding.array_dtype) and is_dense and np.shape(X)[1:] == (len(encoding.rules),)


def check_names(frame: GivenRows) -> None:
    """Raise ValueError for a data frame without columns, or with two of one name."""
    names = list(frame.columns)
    if not names:
        raise ValueError(
            "Found array with 0 feature(s) (a data frame without columns) while a minimum of 1 is required: X has no "
            "columns"
        )
    check_named_once(names)


def encoded_by(
    encoding: TableEncoding,
    X: GivenRows,
    dtype: np.dtype | None = None,
    *,
    strict: bool | None = None,
    weight: GivenValues = None,
    model: object = None,
) -> np.ndarray | sparse.csr_array | da.Array:
    """Raw rows encoded by `encoding`, in its dtype or in `dtype`; those of a Dask frame or array stay lazy.

    Differences from the rows of fit are an error if `strict`, else a warning, which mentions `strict=True` unless
    `strict` is None (a caller without this option), and which a `model` gives once. Rows of weight 0 may have any
    values, and become zeros.
    """
    dtype = encoding.dtype if dtype is None else dtype
    if is_dask_collection(X):
        return RawParts.of(X, weight).encoded(encoding, dtype)
    ((_, rows),) = encoded_slices(encoding, X, dtype, len(X), strict=strict, weight=weight, model=model)
    return rows


def encoded_slices(
    encoding: TableEncoding,
    X: GivenRows,
    dtype: np.dtype,
    most: int,
    *,
    strict: bool | None = None,
    weight: GivenValues = None,
    model: object = None,
) -> Iterator[tuple[int, np.ndarray | sparse.csr_array]]:
    """The first row and the encoded rows of each slice of at most `most` raw rows in memory; see `encoded_by`.

    Differences from the rows of fit are counted over all slices, and reported after the last one.
    """
    (weight,) = dask.compute(weight)
    weight = checked_weight(weight, len(X))
    if encoding.array_dtype:
        X = as_rows(X)
        check_rows(X, may_lack=True, weight=weight)
    differences = Differences(bool(strict), "" if strict is None else "strict=True")
    for start, stop in pairwise(block_bounds(len(X), max(most, 1)).tolist()):
        of_part = None if weight is None else weight[start:stop]
        yield start, _encoded_part(encoding, rows_at(X, slice(start, stop)), of_part, start, dtype, differences)
    differences.say(model)
