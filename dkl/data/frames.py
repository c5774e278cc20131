"""Data frames (pandas, Dask) as encoded rows, by the rules of `dkl.data.ingest.encoding`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace

import dask.array as da
import numpy as np
from dask import delayed, is_dask_collection
from scipy import sparse

from dkl.data.checks import as_rows, check_named_once, check_rows
from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.columns import array_table
from dkl.data.ingest.encoding import TableEncoding, learn_encoding


def is_frame(X: object) -> bool:
    """Whether `X` is a pandas or a Dask data frame."""
    # By its name, so that neither library is imported where nobody uses it.
    return type(X).__name__ == "DataFrame" and hasattr(X, "dtypes") and hasattr(X, "columns")


def encode_frame(
    X: GivenRows, categorical: Collection[str] = (), said: list[Callable[[], None]] | None = None
) -> tuple[GivenRows, TableEncoding]:
    """The encoded rows of a data frame (ndarray, csr_array, or a Dask array of them) and the rules that made them.

    `categorical` names columns whose values are names whatever they look like. Warnings are given at once, or appended
    to `said` as functions that give them. A Dask frame is read once for the statistics of its columns, a partition at a
    time; its rows stay lazy.
    """
    check_names(X)
    parts = (part.compute() for part in X.partitions) if hasattr(X, "partitions") else [X]
    encoding = learn_encoding(parts, categorical=categorical, without="X.drop(columns={})", said=said)
    return encoded_by(encoding, X), encoding


def in_words_of_frames(message: str) -> str:
    """A message on columns for somebody who has them in a data frame: they are left out there."""
    return re.sub(r"\bdrop=(\[[^\[\]]*\])", r"X.drop(columns=\1)", message)


def lacks_values(X: GivenRows) -> bool:
    """Whether `X` is a dense array in memory of which some values are missing (NaN)."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    # A sum costs much less than a mask, and is NaN where a value is; also for infinity minus infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(X.sum())) and bool(np.isnan(X).any())


def may_lack_values(X: GivenRows) -> bool:
    """Whether `X` is a dense Dask array of floats, some of which may be missing (NaN)."""
    return isinstance(X, da.Array) and X.dtype.kind == "f" and not sparse.issparse(X._meta)


def encode_dask_array(X: da.Array) -> tuple[GivenRows, TableEncoding]:
    """`encode_array` of a Dask array, which is read once for the statistics of its columns; its rows stay lazy."""
    X = _whole_rows(X)
    tables = (array_table(as_rows(part.compute())) for part in X.to_delayed().ravel())
    encoding = replace(learn_encoding(tables, layout="dense"), array_dtype=X.dtype.newbyteorder("=").str)
    return encoded_by(encoding, X), encoding


def _whole_rows(X: da.Array) -> da.Array:
    """The array with whole rows in each chunk, and chunks of known sizes."""
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    return X.compute_chunk_sizes() if any(np.isnan(n) for n in X.chunks[0]) else X


def encode_array(rows: np.ndarray) -> tuple[np.ndarray, TableEncoding]:
    """Rows (n, d) with missing values as those of a frame are encoded, by position, and the rules that made them.

    Raises
    ------
    ValueError
        A value is infinite, or a column holds none.
    """
    check_rows(rows, may_lack=True)
    encoding = replace(learn_encoding([array_table(rows)], layout="dense"), array_dtype=rows.dtype.str)
    return encoding.transform(rows), encoding


def is_raw(encoding: TableEncoding | None, X: GivenRows) -> bool:
    """Whether rows are raw ones to an encoding: a frame, or an array like the one that it was learned from."""
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
) -> np.ndarray | sparse.csr_array | da.Array:
    """Raw rows by known rules, in their dtype or in `dtype`; those of a Dask frame or array stay lazy.

    Rows that are unlike those of the rules are refused where `strict` is set; None is where nobody can ask for that.
    """
    dtype = encoding.dtype if dtype is None else dtype
    if not is_dask_collection(X):
        if encoding.array_dtype:
            X = as_rows(X)
            check_rows(X, may_lack=True)
        told = Differences(bool(strict), "" if strict is None else "strict=True")
        rows = encoding.transform(X, dtype=dtype, differences=told)
        told.say()
        return rows
    # The lengths of the partitions are counted now: messages name rows by their numbers, and blocks need known sizes.
    if isinstance(X, da.Array):
        X = _whole_rows(X)
        lengths, parts = list(X.chunks[0]), X.to_delayed().ravel()
    else:
        lengths, parts = [int(n) for n in X.map_partitions(len, meta=(None, np.int64)).compute()], X.to_delayed()
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    empty = np.empty((0, encoding.n_columns), dtype)
    meta = sparse.csr_array(empty) if encoding.is_sparse else empty
    # The encoding is one node of the graph, not a copy in each task.
    encode = delayed(TableEncoding.transform, pure=False)
    shared = delayed(encoding, pure=False)
    chunks = [
        da.from_delayed(encode(shared, part, first_row=int(start), dtype=dtype), (n, encoding.n_columns), meta=meta)
        for part, n, start in zip(parts, lengths, starts, strict=True)
    ]
    return da.concatenate(chunks)
