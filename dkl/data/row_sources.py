"""Whatever rows a user gives, as a source of blocks and its schema: what `Dataset` is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from scipy import sparse

from dkl.data.checks import as_rows, check_rows, check_total_weight, checked_weight, no_rows
from dkl.data.frames import (
    dask_lacks_values,
    encode_array,
    encode_dask_array,
    encode_frame,
    in_words_of_frames,
    is_frame,
    lacks_values,
)
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.labels import TaskChoice, as_targets, target_codes
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.lazy import DaskSource, is_lazy, lazy_source
from dkl.errors import Problems


def source_of(
    X: GivenRows,
    y: GivenValues = None,
    sample_weight: GivenValues = None,
    *,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    categorical: Collection[str] = (),
    looks: bool = False,
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of rows that are no Dataset yet, and what is known of them; `dkl.data.coerce` documents the rest."""
    if looks and not categorical and dask_lacks_values(X):
        rows, encoding = encode_dask_array(X)
        return _with_rules(*_source_of_arrays(rows, y, sample_weight, task=task, classes=classes), encoding)
    if not is_frame(X):
        if categorical:
            raise ValueError(
                f"categorical={list(categorical)} names columns, and X has none by name: pass a data frame"
            )
        X = X if is_lazy(X) else as_rows(X)
        if not lacks_values(X):
            return _source_of_arrays(X, y, sample_weight, task=task, classes=classes)
    # What is wrong with the columns, the targets and the weights of a frame in memory is said all at once.
    problems = Problems(in_words_of_frames)
    said: list[Callable[[], None]] = []
    with problems.collected():
        rows, encoding = encode_frame(X, categorical, said) if is_frame(X) else encode_array(X)
    if problems and not is_lazy(X) and not is_lazy(y) and not is_lazy(sample_weight):
        weight = None
        with problems.collected():
            weight = checked_weight(sample_weight, len(X))
        with problems.collected():
            if y is not None:
                target_codes(as_targets(y, len(X)), task, classes, weight)
    problems.raise_all()
    source, schema = _source_of_arrays(rows, y, sample_weight, task=task, classes=classes)
    # what is said of columns comes when nothing is wrong with the targets
    for say in said:
        say()
    return _with_rules(source, schema, encoding)


def _with_rules(
    source: ArraySource | DaskSource, schema: Schema, encoding: TableEncoding
) -> tuple[ArraySource | DaskSource, Schema]:
    """The source and its schema with the rules by which its columns were encoded."""
    # The schema of a frame keeps the rules by which its columns were encoded, for the rows that a model predicts later.
    names, passthrough = list(encoding.column_names), encoding.passthrough
    return source, replace(schema, encoding=encoding, column_names=names, passthrough=passthrough)


def _source_of_arrays(
    X: GivenRows, y: GivenValues, sample_weight: GivenValues, *, task: TaskChoice, classes: GivenValues
) -> tuple[ArraySource | DaskSource, Schema]:
    """The blocks of arrays: computed by Dask as soon as one of them is, views of the arrays where all are in memory."""
    if is_lazy(X) or is_lazy(y) or is_lazy(sample_weight):
        return lazy_source(X, y, sample_weight, task=task, classes=classes)
    rows = as_rows(X)
    if not rows.shape[0]:
        raise ValueError(no_rows(rows.shape))
    check_rows(rows)
    weight = checked_weight(sample_weight, rows.shape[0])
    if weight is not None:
        check_total_weight(weight)
    codes, labels, decided = None, None, None
    if y is not None:
        codes, labels, decided = target_codes(as_targets(y, rows.shape[0]), task, classes, weight)
    schema = Schema(
        n_columns=rows.shape[1],
        dtype=rows.dtype,
        is_sparse=sparse.issparse(rows),
        task=decided,
        classes=labels,
        n_targets=codes.shape[1] if codes is not None and codes.ndim == 2 else None,
        has_weight=weight is not None,
    )
    return ArraySource(rows, codes, weight, n_classes=schema.n_classes), schema
