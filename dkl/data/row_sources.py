"""Whatever rows a user gives, as a source of blocks and its schema: what `Dataset` is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.checks import as_rows, check_rows, check_total_weight, checked_weight, no_rows
from dkl.data.frames import (
    encode_array,
    encode_dask_array,
    encode_frame,
    in_words_of_frames,
    is_frame,
    lacks_values,
    may_lack_values,
    rows_that_count,
)
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.labels import TaskChoice, as_targets, target_codes
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.lazy import DaskSource, is_lazy, lazy_source
from dkl.data.store.blocking import MAX_BLOCK_ROWS
from dkl.errors import Problems

# Copies of rows a row, on average: a fit to copies takes as many times as long.
_MOST_COPIES = 4


def source_of(
    X: GivenRows,
    y: GivenValues = None,
    sample_weight: GivenValues = None,
    *,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    categorical: Collection[str] = (),
    looks: bool = False,
    repeats: bool = False,
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of rows that are no Dataset yet, and what is known of them; `dkl.data.coerce` documents the rest."""
    of_targets: dict[str, Any] = {"task": task, "classes": classes, "repeats": repeats}
    if looks and not categorical and may_lack_values(X):
        lazy, known, are_missing = lazy_source(X, y, sample_weight, **of_targets, looked=lacks_values)
        if not are_missing:
            return lazy, known
        rows, encoding = encode_dask_array(X, sample_weight)
        # what is known of the targets by now is not looked for again
        of_targets |= {"task": known.task or task, "classes": known.classes}
        return _with_rules(*_source_of_arrays(rows, y, sample_weight, **of_targets), encoding)
    if not is_frame(X):
        if categorical:
            raise ValueError(
                f"categorical={list(categorical)} names columns, and X has none by name: pass a data frame"
            )
        X = X if is_lazy(X) else as_rows(X)
        if not lacks_values(X) or _lacks_none_that_counts(X, sample_weight):
            return _source_of_arrays(X, y, sample_weight, **of_targets)
    # What is wrong with the columns, the targets and the weights of a frame in memory is said all at once.
    problems, weight, counted = Problems(in_words_of_frames), sample_weight, None
    in_memory = not is_lazy(X) and not is_lazy(y) and not is_lazy(sample_weight)
    said: list[Callable[[], None]] = []
    if in_memory:
        with problems.collected():
            weight = checked_weight(sample_weight, len(X))
            # rows of weight 0 teach no rule
            counted, _ = counted_rows(weight, repeats)
    with problems.collected():
        if in_memory:
            rows, encoding = _encoded(X, categorical, counted, said)
        else:
            rows, encoding = encode_frame(X, categorical, said, weight) if is_frame(X) else encode_array(X, weight)
    if problems and in_memory:
        with problems.collected():
            if y is not None:
                target_codes(as_targets(y, len(X), weight=weight), task, classes, weight)
    problems.raise_all()
    source, schema = _source_of_arrays(rows, y, weight, counted=counted, **of_targets)
    # what is said of columns comes when nothing is wrong with the targets
    for say in said:
        say()
    return _with_rules(source, schema, encoding)


def counted_rows(weight: np.ndarray | None, repeats: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Which of n rows in memory count, ascending, and their weights; None for each of them once.

    Parameters
    ----------
    weight : ndarray of shape (n,), float64, or None
    repeats : bool
        Whether rows of whole weights are there as often, and have no weights then. Draws of rows, and rows that are
        held out, are so those of a fit to repeated rows. Copies cost a fit as much as rows do: where there were more
        than a block of rows, or four a row, weights stay weights.
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
    """Whether an array in memory, of which some values are missing, lacks them in rows of weight 0 alone."""
    if weight is None:
        return False
    (weight,) = dask.compute(weight)
    weight = checked_weight(weight, len(X))
    return weight is not None and bool(weight.any()) and not lacks_values(rows_that_count(X, weight))


def _encoded(
    X: GivenRows, categorical: Collection[str], counted: np.ndarray | None, said: list[Callable[[], None]]
) -> tuple[GivenRows, TableEncoding]:
    """The encoded rows of a frame in memory, or of an array with gaps, and their rules: of the rows that count."""

    def encoded(rows: GivenRows) -> tuple[GivenRows, TableEncoding]:
        return encode_frame(rows, categorical, said) if is_frame(rows) else encode_array(rows)

    if counted is None:
        return encoded(X)
    try:
        return encoded(X.iloc[counted] if is_frame(X) else X[counted])
    except (ValueError, TypeError):
        # Said of the rows as they were given, whose numbers the user knows: a row of weight 0 becomes the next one that
        # counts, so that nothing of its own is said; behind the last one there are none.
        ahead = counted[np.searchsorted(counted, np.arange(counted[-1] + 1))]
        encoded(X.iloc[ahead] if is_frame(X) else X[ahead])
        raise


def _with_rules(
    source: ArraySource | DaskSource, schema: Schema, encoding: TableEncoding
) -> tuple[ArraySource | DaskSource, Schema]:
    """The source and its schema with the rules by which its columns were encoded."""
    # The schema of a frame keeps the rules by which its columns were encoded, for the rows that a model predicts later.
    names, passthrough = list(encoding.column_names), encoding.passthrough
    return source, replace(schema, encoding=encoding, column_names=names, passthrough=passthrough)


def _source_of_arrays(
    X: GivenRows,
    y: GivenValues,
    sample_weight: GivenValues,
    *,
    task: TaskChoice,
    classes: GivenValues,
    repeats: bool,
    counted: np.ndarray | None = None,
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of arrays: computed by Dask as soon as one of them is, views of the arrays where all are in memory.

    `counted` are the numbers of the rows of X where it holds those that count alone.
    """
    if is_lazy(X) or is_lazy(y) or is_lazy(sample_weight):
        return lazy_source(X, y, sample_weight, task=task, classes=classes, repeats=repeats)[:2]
    rows = as_rows(X)
    if not rows.shape[0]:
        raise ValueError(no_rows(rows.shape))
    n_given = rows.shape[0] if counted is None else len(sample_weight)
    weight = checked_weight(sample_weight, n_given)
    # of X that holds those rows alone that count, all are looked at
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
        # rows of weight 0 have numbers of their own, but where rows are numbered as if they were not there
        row_id=None if repeats else given,
        taken=given if counted is None else None,
        given=given,
    )
    schema = Schema(
        n_columns=rows.shape[1],
        dtype=rows.dtype,
        is_sparse=sparse.issparse(rows),
        task=decided,
        classes=labels,
        n_targets=codes.shape[1] if codes is not None and codes.ndim == 2 else None,
        has_weight=weight is not None,
    )
    return source, schema
