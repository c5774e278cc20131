"""Rows of any kind that a user gives, as a source of blocks and its schema, from which a `Dataset` is made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import dask
import numpy as np

from dkl.data.checks import as_rows, check_rows, check_total_weight, checked_weight, lacks_values, no_rows
from dkl.data.frames import (
    RawParts,
    encode_raw,
    in_words_of_arrays,
    in_words_of_frames,
    is_frame,
    may_lack_values,
    rows_at,
    rows_that_count,
)
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.labels import TaskChoice, as_targets, target_codes
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.lazy import Cut, DaskSource, is_lazy, lazy_source
from dkl.data.sources.rows import schema_of
from dkl.data.store.blocking import MAX_BLOCK_ROWS
from dkl.errors import Problems

# Limits the average number of copies of a row, as a fit takes time in proportion.
_MOST_COPIES = 4


def source_of(
    X: GivenRows,
    y: GivenValues = None,
    sample_weight: GivenValues = None,
    *,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    categorical: Collection[str] = (),
    finds_missing: bool = False,
    repeats: bool = False,
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks and the schema of rows that are not yet a Dataset; the parameters are those of `dkl.data.coerce`."""
    of_targets: dict[str, Any] = {"task": task, "classes": classes, "repeats": repeats}
    if finds_missing and not categorical and may_lack_values(X):
        lazy, known, are_missing = lazy_source(X, y, sample_weight, **of_targets, finds_missing=True)
        if not are_missing:
            return lazy, known
        problems = Problems(in_words_of_arrays)
        with problems.collected():
            rows, encoding, _ = encode_raw(X, weight=sample_weight)
        problems.raise_all()
        # uses the task and the classes that were found already
        of_targets |= {"task": known.task or task, "classes": known.classes}
        source, schema = _source_of_arrays(rows, y, sample_weight, **of_targets)
        return source, schema.encoded_by(encoding)
    if not is_frame(X):
        if categorical:
            raise ValueError(
                f"categorical={list(categorical)} names columns, and X has none by name: pass a data frame"
            )
        X = X if is_lazy(X) else as_rows(X)
        if not lacks_values(X) or _lacks_none_that_counts(X, sample_weight):
            return _source_of_arrays(X, y, sample_weight, **of_targets)
    # problems of the columns, the targets and the weights of a frame in memory are reported together
    problems, counted = Problems(in_words_of_frames if is_frame(X) else in_words_of_arrays), None
    in_memory = not is_lazy(X) and not is_lazy(y) and not is_lazy(sample_weight)
    # targets are checked as unweighted ones if the weights are invalid
    weight = None if in_memory else sample_weight
    deferred: list[Callable[[], None]] = []
    raw: Cut | None = None
    if in_memory:
        with problems.collected():
            weight = checked_weight(sample_weight, len(X))
            # rows of weight 0 do not influence the encoding
            counted, _ = counted_rows(weight, repeats)
    with problems.collected():
        if in_memory:
            rows, encoding = _encoded(X, categorical, counted, deferred)
        else:
            rows, encoding, raw = encode_raw(X, categorical, deferred, weight)
    if problems and in_memory:
        with problems.collected():
            # without rows there are no targets either
            if y is not None and len(X):
                target_codes(as_targets(y, len(X), weight=weight), task, classes, weight)
    problems.raise_all()
    source, schema = _source_of_arrays(rows, y, weight, counted=counted, raw=raw, **of_targets)
    # warnings about columns are issued only if the targets are valid
    for warn in deferred:
        warn()
    return source, schema.encoded_by(encoding)


def source_like_fit(
    X: GivenRows, y: GivenValues, sample_weight: GivenValues, encoding: TableEncoding, **of_targets: Any
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of a Dask frame encoded by the rules of a fit, and their schema; partitions are read to be counted."""
    raw = RawParts.of(X, sample_weight)
    rows = raw.encoded(encoding)
    return _source_of_arrays(rows, y, sample_weight, raw=raw.cut(encoding), **of_targets)


def counted_rows(weight: np.ndarray | None, repeats: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Positions of the rows with positive weight, ascending, and their weights; None for all rows, or all weights 1.

    Parameters
    ----------
    weight : ndarray of shape (n,), float64, or None
    repeats : bool
        Whether a row of integer weight w becomes w rows of weight 1, so that samples and held-out rows are drawn as in
        a fit to repeated rows. Since a fit takes as long for a copy as for a row, weights stay weights if their sum
        exceeds `MAX_BLOCK_ROWS`, or `_MOST_COPIES` times the number of rows with positive weight.
    """
    if weight is None or not weight.any():
        return None, weight
    if repeats and weight.sum() <= min(MAX_BLOCK_ROWS, _MOST_COPIES * np.count_nonzero(weight)):
        copies = weight.astype(np.int64)
        if np.array_equal(copies, weight):
            return (None if (copies == 1).all() else np.repeat(np.arange(len(weight)), copies)), None
    if weight.all():
        return None, weight
    counted = np.flatnonzero(weight)
    return counted, weight[counted]


def _lacks_none_that_counts(X: GivenRows, weight: GivenValues) -> bool:
    """Whether an array in memory has missing values only in rows of weight 0."""
    if weight is None:
        return False
    (weight,) = dask.compute(weight)
    weight = checked_weight(weight, len(X))
    return weight is not None and bool(weight.any()) and not lacks_values(rows_that_count(X, weight))


def _encoded(
    X: GivenRows, categorical: Collection[str], counted: np.ndarray | None, deferred: list[Callable[[], None]]
) -> tuple[GivenRows, TableEncoding]:
    """The encoded rows of a frame in memory, or of an array with missing values, and the rules of counted rows."""
    if counted is None:
        return encode_raw(X, categorical, deferred)[:2]
    try:
        return encode_raw(rows_at(X, counted), categorical, deferred)[:2]
    except (ValueError, TypeError):
        # Errors refer to the rows as they were given, by numbers that the user knows: a row of weight 0 is replaced by
        # the next one that counts, so that it causes no error; rows after the last one that counts are dropped.
        ahead = counted[np.searchsorted(counted, np.arange(counted[-1] + 1))]
        encode_raw(rows_at(X, ahead), categorical, deferred)
        raise


def _source_of_arrays(
    X: GivenRows,
    y: GivenValues,
    sample_weight: GivenValues,
    *,
    task: TaskChoice,
    classes: GivenValues,
    repeats: bool,
    counted: np.ndarray | None = None,
    raw: Cut | None = None,
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of arrays: computed by Dask if one of them is lazy, else views of the arrays.

    `counted` are the numbers of the rows of X if it contains only rows that count; `raw` is as of `DaskSource`.
    """
    if is_lazy(X) or is_lazy(y) or is_lazy(sample_weight):
        of_rows: dict[str, Any] = {"repeats": repeats, "raw": raw}
        return lazy_source(X, y, sample_weight, task=task, classes=classes, **of_rows)[:2]
    rows = as_rows(X)
    if not rows.shape[0]:
        raise ValueError(no_rows(rows.shape))
    n_given = rows.shape[0] if counted is None else len(sample_weight)
    weight = checked_weight(sample_weight, n_given)
    # if X contains only the rows that count, all of them are checked
    check_rows(rows, weight=weight if counted is None else None)
    if weight is not None:
        check_total_weight(weight)
    codes, labels, decided = None, None, None
    if y is not None:
        codes, labels, decided = target_codes(as_targets(y, n_given, weight=weight), task, classes, weight)
    given, weight = counted_rows(weight, repeats)
    codes = codes if codes is None or given is None else codes[given]
    source = ArraySource(
        rows,
        codes,
        weight,
        n_classes=None if labels is None else len(labels),
        # rows are numbered as they were given, or without those of weight 0 if weights are repetitions
        row_id=None if repeats else given,
        taken=given if counted is None else None,
        given=given,
    )
    return source, schema_of(source, decided, labels, () if codes is None else codes.shape)
