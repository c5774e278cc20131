"""Data frames (pandas, Dask) as encoded rows, by the rules of `dkl.data.ingest.encoding`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
from dask import delayed, is_dask_collection
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
from dkl.data.other_frames import as_known_rows
from dkl.data.sources.lazy import weights_beside

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
    if not isinstance(given, str) or not is_frame(X := as_known_rows(X)):
        return given
    return column_named(X, given, "sample_weight")


def no_column_message(name: str, argument: str, columns: list[Any]) -> str:
    """The error message for an argument that names none of the columns."""
    return (
        f"{argument}={name!r} names no column of X{did_you_mean(name, columns)}; the columns are "
        f"{spoken_names(columns)}"
    )


@dataclass(frozen=True, eq=False)
class RawParts:
    """Raw rows: the partitions of a Dask frame, the chunks of a Dask array, or all rows in memory as one part.

    Parameters
    ----------
    parts : list of (frame, ndarray, or Delayed of one)
    lengths : list of int
        The number of rows of each part.
    weights : list of (ndarray of shape (n,), Delayed of one, or None)
        Rows of weight 0 do not influence the encoding and may have any values.
    """

    parts: list[Any]
    lengths: list[int]
    weights: list[Any]

    @classmethod
    def of(cls, X: GivenRows, weight: GivenValues = None) -> RawParts:
        """The parts of a frame or of a dense array; rows of partitions are counted now."""
        if not is_dask_collection(X):
            parts, lengths = [X], [len(X)]
        elif isinstance(X, da.Array):
            X = _whole_rows(X)
            parts, lengths = list(X.to_delayed().ravel()), list(X.chunks[0])
        else:
            # Dask joins small partitions when it optimises a frame, how many depends on the columns that are read: so
            # that parts and lengths agree, it does so once
            parts = list(X.optimize().to_delayed(optimize_graph=False))
            # messages name rows by their numbers, and blocks need known sizes
            lengths = list(dask.compute(*(delayed(len)(part) for part in parts)))
        cut = weights_beside(weight, tuple(lengths))
        return cls(parts, lengths, [None] * len(parts) if cut is None else list(cut.to_delayed().ravel()))

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
            for part, of_part, first_row in zip(self.parts, self.weights, self.first_rows, strict=True):
                rows, weight = dask.compute(part, of_part)
                weight = checked_weight(weight, len(rows), first_row=first_row)
                counted = rows_that_count(rows, weight)
                left_out += len(rows) - len(counted)
                # a part without rows that count does not determine the types of its columns
                if len(counted) or not len(rows):
                    yield counted
            if left_out and left_out == sum(self.lengths):
                raise ValueError(ALL_WEIGHTLESS)

        try:
            return learn(parts_that_count())
        except (ValueError, TypeError) as error:
            _note_uncounted_rows(error, left_out)
            raise

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


def rows_that_count(rows: Any, weight: np.ndarray | None) -> Any:
    """Rows of a frame or an array in memory whose weight is not 0."""
    if weight is None or weight.all():
        return rows
    counted = np.flatnonzero(weight)
    return rows.iloc[counted] if hasattr(rows, "iloc") else rows[counted]


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

    Rows of weight 0 are not looked at, so that no value in them raises an error, and become rows of zeros.
    """
    weight = checked_weight(weight, len(rows), first_row=first_row)
    counted = rows_that_count(rows, weight)
    left_out = len(rows) - len(counted)
    try:
        found = encoding.transform(counted, first_row=first_row, dtype=dtype, differences=differences)
    except (ValueError, TypeError) as error:
        _note_uncounted_rows(error, left_out)
        raise
    return found if weight is None else _with_rows_of_zeros(found, weight)


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
    weights: Any = weights_beside(weight, X.chunks[0])
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
) -> tuple[GivenRows, TableEncoding]:
    """The encoded rows of a data frame, or of a dense array with missing values, and the rules that made them.

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
    return raw.encoded(encoding) if is_dask_collection(X) else encoded_by(encoding, X, weight=weight), encoding


def in_words_of_frames(message: str) -> str:
    """A message with the remedy of data frames, `X.drop(columns=...)`, in place of ``drop=...``."""
    return re.sub(r"\bdrop=(\[[^\[\]]*\])", r"X.drop(columns=\1)", message)


def in_words_of_arrays(message: str) -> str:
    """A message with the remedy of arrays, whose columns have numbers, in place of ``drop=...``."""
    return re.sub(r"\bdrop=\['column (\d+)'\]", r"np.delete(X, \1, axis=1)", message)


def lacks_values(X: GivenRows) -> bool:
    """Whether `X` is a dense array in memory of which some values are missing (NaN)."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    # a sum is much cheaper than a mask; it is NaN if a value is, but also for infinity minus infinity
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(X.sum())) and bool(np.isnan(X).any())


def may_lack_values(X: GivenRows) -> bool:
    """Whether `X` is a dense Dask array of floats, some of which may be missing (NaN)."""
    return isinstance(X, da.Array) and X.dtype.kind == "f" and not sparse.issparse(X._meta)


def _whole_rows(X: da.Array) -> da.Array:
    """The array with whole rows in each chunk, and chunks of known sizes."""
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
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
    (weight,) = dask.compute(weight)
    weight = checked_weight(weight, len(X))
    if encoding.array_dtype:
        X = as_rows(X)
        check_rows(X, may_lack=True, weight=weight)
    differences = Differences(bool(strict), "" if strict is None else "strict=True")
    rows = _encoded_part(encoding, X, weight, 0, dtype, differences)
    differences.say(model)
    return rows
