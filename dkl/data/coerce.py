"""What fit, transform and score are given (arrays, sparse matrices, Dask, frames, Datasets), as one Dataset."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from scipy import sparse

from dkl.data.checks import as_rows, check_rows, check_total_weight, checked_weight, no_rows
from dkl.data.dataset import Dataset
from dkl.data.frames import encode_frame, is_frame
from dkl.data.labels import TaskChoice, as_targets, target_codes
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.lazy import is_lazy, lazy_dataset
from dkl.errors import Problems


def as_dataset(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    task: TaskChoice = "auto",
    classes: Any = None,
) -> Dataset:
    """One Dataset of whatever rows come in; arrays in memory are neither copied nor read more than once.

    Parameters
    ----------
    X : array of shape (n, d), scipy sparse matrix, Dask array, pandas or Dask data frame, or Dataset
    y : array of shape (n,) or (n, t), or None
        Labels (strings, integers, booleans) or real numbers.
    sample_weight : array of shape (n,) or None
        Frequency weights; rows of weight 0 are left out.
    task : {"auto", "classification", "regression"}
        "auto" decides as scikit-learn does: real numbers that are not whole are regression.
    classes : array of shape (K,) or None
        All labels that y may hold, where they are known; else they are found in y.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        NaN or infinity (row and column are named), shapes that do not fit, complex numbers, a single class, a label
        that is not among `classes`, weights that are negative or all zero, `y` beside a Dataset that has its own.
    TypeError
        Values that are not numbers.
    """
    if task not in ("auto", "classification", "regression"):
        raise ValueError(f"task is {task!r}; expected 'auto', 'classification' or 'regression'")
    if isinstance(X, Dataset):
        return _pass_through(X, y, sample_weight, task)
    if not is_frame(X):
        return _of_arrays(X, y, sample_weight, task=task, classes=classes)
    problems = Problems()
    with problems.collected():
        rows, encoding = encode_frame(X)
    if problems and not is_lazy(X) and not is_lazy(y) and not is_lazy(sample_weight):
        with problems.collected():
            weight = checked_weight(sample_weight, len(X))
            if y is not None:
                target_codes(as_targets(y, len(X)), task, classes, weight)
    problems.raise_all()
    dataset = _of_arrays(rows, y, sample_weight, task=task, classes=classes)
    names, passthrough = list(encoding.column_names), encoding.passthrough
    schema = replace(dataset.schema, encoding=encoding, column_names=names, passthrough=passthrough)
    return Dataset(dataset.source, schema)


def _of_arrays(X: Any, y: Any, sample_weight: Any, *, task: TaskChoice, classes: Any) -> Dataset:
    if is_lazy(X) or is_lazy(y) or is_lazy(sample_weight):
        return lazy_dataset(X, y, sample_weight, task=task, classes=classes)
    return array_dataset(X, y, sample_weight, task=task, classes=classes)


def _pass_through(dataset: Dataset, y: Any, sample_weight: Any, task: str) -> Dataset:
    for name, given, own in (
        ("y", y, dataset.task is not None),
        ("sample_weight", sample_weight, dataset.source.has_weight),
    ):
        if given is not None:
            has = f"has its own {name}" if own else f"was created without {name}"
            raise ValueError(
                f"{name} was given beside a Dataset, which {has}; pass the Dataset alone, or create it with {name}="
            )
    if task != "auto" and dataset.task is not None and task != dataset.task:
        raise ValueError(
            f"the target of {dataset!r} is for {dataset.task}, not for {task}; create it with task={task!r}"
        )
    if dataset.splits:
        first = dataset.splits[0]
        warnings.warn(
            f"{dataset!r} has splits and is used whole, all of them together; pass ds[{first!r}] for one of them",
            UserWarning,
            stacklevel=3,
        )
    return dataset


def array_dataset(X: Any, y: Any, sample_weight: Any, *, task: TaskChoice, classes: Any) -> Dataset:
    """The Dataset of arrays in memory; `as_dataset` documents the rest."""
    rows = as_rows(X)
    if not rows.shape[0]:
        raise ValueError(no_rows(rows.shape))
    check_rows(rows)
    weight = checked_weight(sample_weight, rows.shape[0])
    if weight is not None:
        check_total_weight(weight)
    codes, labels, found = None, None, None
    if y is not None:
        codes, labels, found = target_codes(as_targets(y, rows.shape[0]), task, classes, weight)
    schema = Schema(
        n_columns=rows.shape[1],
        dtype=rows.dtype,
        is_sparse=sparse.issparse(rows),
        task=found,
        classes=labels,
        n_targets=codes.shape[1] if codes is not None and codes.ndim == 2 else None,
        has_weight=weight is not None,
    )
    return Dataset(ArraySource(rows, codes, weight, n_classes=schema.n_classes), schema)
