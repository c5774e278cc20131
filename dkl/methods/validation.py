"""Validates the input of `fit` and `transform`: arrays, frames, Dask collections and Datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from dkl.data.checks import as_rows, check_rows, check_total_weight, checked_weight, spoken_names
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.exposure import with_exposure_of_fit
from dkl.data.fewer_columns import left_out_of, without_columns
from dkl.data.frames import (
    check_names,
    encoded_by,
    is_frame,
    is_raw,
    lazy_zeros_for_weightless,
    map_raw,
    zeros_for_weightless,
)
from dkl.data.ingest.columns import names_of_columns
from dkl.data.labels import TaskChoice
from dkl.data.other_frames import as_pandas_rows
from dkl.data.other_rules import other_columns
from dkl.data.sources.lazy import as_dask_array, with_whole_rows
from dkl.data.together.choosing import held_by_own_dates
from dkl.data.together.rows import GroupsAndTimes, held_rows
from dkl.encodings.categories import rows_like_fit, with_categories
from dkl.linear.answers import answer_chunk, answer_raw, encoded_chunk
from dkl.linear.minibatches import HeldOut
from dkl.methods.provenance import record_rows
from dkl.passes.loop import Run


def rows_to_fit(
    estimator: BaseEstimator,
    beside: GroupsAndTimes,
    y: Any,
    sample_weight: Any,
    *,
    supervised: bool,
    task: TaskChoice = "auto",
    own_dates: bool = False,
) -> Dataset:
    """The rows as a Dataset; records `n_features_in_` and, where there are names, `feature_names_in_`.

    Rows that were read from libsvm text set `first_index_`, the number of their first column in the text, 0 or 1.

    Parameters
    ----------
    estimator : BaseEstimator
    beside : GroupsAndTimes
        The rows with their groups and times.
    y, sample_weight : array of shape (n,) or None
    supervised : bool
        Whether the estimator uses targets; others ignore `y`.
    task : {"auto", "classification", "regression"}
    own_dates : bool
        Hold rows out by time if one of their columns gives their dates.

    Raises
    ------
    ValueError
        If targets are needed and missing, a Dataset cannot hold the rows, or the sum of their weights is too large or
        too small for products with rows.
    """
    if getattr(estimator, "drop_missing_target", False):
        beside, y, sample_weight = beside.with_targets(y, sample_weight)
    X = beside.X
    if not supervised and not isinstance(X, Dataset):
        y = None
    # a machine has this parameter; learners recognise categorical columns of a frame by their type
    categorical = getattr(estimator, "categorical", None) or ()

    def unkeyed() -> Dataset:
        """The rows as a Dataset, without groups and times."""
        # scikit-learn's own validation would turn a Dask array into one NumPy array
        rows = X if isinstance(X, Dataset) or dask.is_dask_collection(X) else checked_rows(estimator, X)
        dataset = as_dataset(
            rows, y, sample_weight, task=task, categorical=categorical, finds_missing=True, repeats=True
        )
        if supervised:
            check_target(type(estimator).__name__, dataset)
        # recorded before groups and times are attached, which belong to the fit and not to the data
        record_rows(dataset)
        return dataset

    dataset = beside.with_columns_of(unkeyed, sample_weight)
    if own_dates:
        source, schema = held_by_own_dates(dataset.source, dataset.schema)
        dataset = dataset if schema is dataset.schema else dataset.with_rows(source, schema)
    dataset = held_rows(dataset)
    if dataset.source.has_weight:
        learner = getattr(estimator, "features", estimator)
        check_total_weight(dataset.source.counts.weights, getattr(learner, "dtype", np.float32))
    record_columns(estimator, dataset, X if is_frame(X) else None)
    vars(estimator).pop("first_index_", None)
    if dataset.schema.first_index is not None:
        estimator.first_index_ = dataset.schema.first_index
    return dataset


def rows_with_category_numbers(estimator: BaseEstimator, dataset: Dataset, held_out: HeldOut, run: Run) -> Dataset:
    """The rows of a fit with target means in place of codes of categories; sets `encoding_` where there are some.

    Parameters
    ----------
    estimator : BaseEstimator
    dataset : Dataset
    held_out : HeldOut
        The rows held out in this fit.
    run : Run
    """
    # the difference from the category's mean increases with the number, but its coefficient could have either sign
    monotone = getattr(estimator, "monotone", None) or getattr(getattr(estimator, "features", None), "monotone", None)
    numbered = with_categories(dataset, held_out, run, centres=not monotone)
    if numbered is not dataset:
        estimator.encoding_ = numbered.encoding
    return numbered


def without_splits(dataset: Dataset) -> Dataset:
    """The dataset without the names of its splits, after the warning that all of them are used."""
    return Dataset(dataset.source, dataset.schema, store=dataset.store, name=dataset.name)


def check_target(asking: str, dataset: Dataset) -> None:
    """Raise ValueError for rows without a target; `asking` is the name of the estimator."""
    if dataset.task is None:
        raise ValueError(f"{asking} requires y to be passed, but the target y is None")


def one_dimensional(y: Any) -> Any:
    """y in one dimension; a column gets scikit-learn's warning."""
    is_column = isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1
    return column_or_1d(y, warn=True) if is_column else y


def check_whole_labels(classes: np.ndarray, regressor: str) -> None:
    """Raise ValueError for labels (K,) that are fractions, and name the regressor to use."""
    if classes.dtype.kind == "f" and (parts := classes[classes != np.floor(classes)]).size:
        raise ValueError(
            f"Unknown label type: continuous. y holds {parts[0]:g}, and labels are whole numbers, booleans or "
            f"texts; fit numbers with {regressor}"
        )


def record_columns(estimator: BaseEstimator, dataset: Dataset, frame: Any = None) -> None:
    """Set `n_features_in_` and, where the columns have names, `feature_names_in_`, both of the raw columns.

    Those of a data frame are all of its columns, also those that the encoding leaves out.
    """
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    encoding, names = dataset.encoding, dataset.column_names
    estimator.n_features_in_ = dataset.n_columns
    if encoding is not None:
        raw = [rule.name for rule in encoding.rules] if frame is None else names_of_columns(frame)
        names = None if encoding.array_dtype else raw
        estimator.n_features_in_ = len(raw)
    if names is not None:
        estimator.feature_names_in_ = np.asarray(names, dtype=object)


def column_names_of(estimator: BaseEstimator) -> Sequence[str] | None:
    """The names of the columns of a fitted estimator's rows after encoding; None if they have none."""
    encoding = getattr(estimator, "encoding_", None)
    return getattr(estimator, "feature_names_in_", None) if encoding is None else encoding.column_names


def encoded_width(estimator: BaseEstimator) -> int:
    """The number of columns of a fitted estimator's rows after encoding."""
    encoding = getattr(estimator, "encoding_", None)
    return int(estimator.n_features_in_) if encoding is None else int(encoding.n_columns)


def checked_rows(estimator: BaseEstimator, X: Any) -> Any:
    """Rows in memory for `fit`; frames stay frames, since they will be encoded."""
    if is_frame(X):
        check_names(X)
        return X
    rows = as_rows(X)
    validate_data(estimator, rows, reset=True, skip_check_array=True)
    return rows


def rows_like_those_of_fit(estimator: BaseEstimator, X: Any, *, strict: bool = False, weight: Any = None) -> Any:
    """Rows in memory as encoded columns: raw rows get the encoding of `fit`, encoded rows stay as they are.

    Encoded rows are checked like those of a Dataset, so that an error names the row and the column.

    Parameters
    ----------
    estimator : fitted BaseEstimator
    X : array, scipy sparse matrix or data frame
    strict : bool
        Raise an error for raw rows that differ from the rows of `fit`.
    weight : array of shape (n,) or None
        Rows of weight 0 may hold anything, and become rows of zeros.

    Raises
    ------
    ValueError
        If the number or the names of the columns differ from those of `fit`, or values are invalid.
    """
    X = as_pandas_rows(X)
    encoding = getattr(estimator, "encoding_", None)
    if is_frame(X):
        check_names(X)
    rows = X if is_frame(X) and encoding is not None else as_rows(X)
    if encoding is not None and is_raw(encoding, rows):
        return encoded_by(encoding, rows, strict=strict, weight=weight, model=estimator)
    if encoding is None:
        validate_data(estimator, X if is_frame(X) else rows, reset=False, skip_check_array=True)
    else:
        _check_width(estimator, rows.shape[1], encoding.n_columns)
    (weight,) = dask.compute(weight)
    weight = checked_weight(weight, rows.shape[0])
    check_rows(rows, weight=weight)
    return zeros_for_weightless(rows, weight)


def checked_dataset(estimator: BaseEstimator, dataset: Dataset) -> Dataset:
    """A Dataset with the columns of `fit` (see `check_columns`), and target means in place of codes of categories.

    The column that held the exposures of the fit becomes a row column. Columns that the fit left out are removed.
    """
    encoding, dataset = getattr(estimator, "encoding_", None), with_exposure_of_fit(estimator, dataset)
    dataset = rows_like_fit(encoding, without_columns(dataset, left_out_of(encoding, dataset.encoding)))
    check_columns(estimator, dataset)
    return dataset


def check_columns(estimator: BaseEstimator, dataset: Dataset) -> None:
    """Raise an error if the columns of a Dataset differ from the columns of `fit`.

    Raises
    ------
    ValueError
        If their number, their names, their meaning or the order of names differ, or if one was read from libsvm text
        that counts columns from 0 and the other from 1.
    """
    encoding = getattr(estimator, "encoding_", None)
    others = other_columns(encoding, dataset.encoding)
    _check_width(estimator, dataset.n_columns, encoded_width(estimator), others)
    fitted, read = getattr(estimator, "first_index_", None), dataset.schema.first_index
    if fitted is not None and read is not None and fitted != read:
        raise ValueError(
            f"{dataset.source.place} was read from libsvm text as counting columns from {read}, but "
            f"{type(estimator).__name__} was fitted on rows read as counting from {fitted}, so all columns would be "
            f"shifted by one; ingest one of them again with format=dkl.LibsvmFormat(zero_based=...), in the shell "
            "--zero-based or --one-based"
        )
    names = column_names_of(estimator)
    other_names = dataset.column_names
    if names is not None and other_names is not None:
        for place, (expected, found) in enumerate(zip(names, other_names, strict=True)):
            if expected != found:
                raise ValueError(
                    f"column {place} of {dataset.source.place} is {found!r}, but {type(estimator).__name__} was fitted "
                    f"with {expected!r} there; the feature names should be those of fit, in their order"
                    f"{others and f': {others}'}"
                )
    if others:
        raise ValueError(
            f"{dataset.source.place} holds other columns than {type(estimator).__name__} was fitted on: {others}"
        )


def check_classes(estimator: BaseEstimator, dataset: Dataset) -> None:
    """Raise ValueError unless a Dataset has the classes of `fit`."""
    fitted = getattr(estimator, "classes_", dataset.classes)
    if not np.array_equal(fitted, dataset.classes):  # type: ignore[arg-type]
        found, expected = (np.asarray(classes).tolist() for classes in (dataset.classes, fitted))
        raise ValueError(
            f"{dataset!r} has the classes {found}, but fit has found {expected}; create it with classes= those of fit, "
            "or fit all rows again"
        )


def _check_width(estimator: BaseEstimator, found: int, expected: int, why: str = "") -> None:
    if found != expected:
        why = why or _columns_of_fit(estimator)
        raise ValueError(
            f"X has {found} features, but {type(estimator).__name__} is expecting {expected} features as input"
            f"{why and f': {why}'}"
        )


def _columns_of_fit(estimator: BaseEstimator) -> str:
    """The names of the columns that the rows of arrays, and those of frames, need to have; empty if they have none."""
    encoding = getattr(estimator, "encoding_", None)
    if encoding is None or encoding.array_dtype:
        return ""
    return (
        f"its rows were encoded as the columns {spoken_names(encoding.column_names)}; pass a data frame with the "
        f"columns {spoken_names([rule.name for rule in encoding.rules])}, which is encoded so"
    )


def encoded_rows(estimator: BaseEstimator, X: Any, weight: Any = None) -> Any:
    """Further rows, encoded as in `fit`; the columns of a Dataset are checked.

    Rows of weight 0 may hold anything; the caller ignores what they become.
    """
    X = as_pandas_rows(X)
    if isinstance(X, Dataset):
        return checked_dataset(estimator, X)
    if dask.is_dask_collection(X):
        return dask_rows(estimator, X, weight=weight)
    if is_frame(X) or is_raw(getattr(estimator, "encoding_", None), X):
        return rows_like_those_of_fit(estimator, X, weight=weight)
    # The caller checks the number of columns, as a picture of a plane says which picture has more.
    (weight,) = dask.compute(weight)
    rows = as_rows(X)
    check_rows(rows, weight=checked_weight(weight, rows.shape[0]))
    return rows


def dataset_like_fit(
    estimator: BaseEstimator, X: Any, y: Any = None, sample_weight: Any = None, **of_targets: Any
) -> Dataset:
    """Further rows and targets as a Dataset, encoded as in `fit`, whose columns the caller checks.

    Partitions of a Dask frame are encoded by the tasks of each pass, a block at a time, as they are in a fit.

    Parameters
    ----------
    estimator : fitted BaseEstimator
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y, sample_weight : array of shape (n,) or None
    **of_targets
        `task` and `classes`, as of `dkl.data.coerce.as_dataset`.
    """
    X, encoding = as_pandas_rows(X), getattr(estimator, "encoding_", None)
    if dask.is_dask_collection(X) and is_frame(X) and encoding is not None:
        check_names(X)
        return as_dataset(X, y, sample_weight, encoding=encoding, **of_targets)
    return as_dataset(encoded_rows(estimator, X, sample_weight), y, sample_weight, **of_targets)


def dask_rows(estimator: BaseEstimator, X: Any, *, strict: bool = False, weight: Any = None) -> da.Array:
    """A Dask array of encoded rows; missing values are filled if `fit` filled them.

    With weights, rows of weight 0 may hold anything, and become rows of zeros.
    """
    encoding = getattr(estimator, "encoding_", None)
    if encoding is not None and is_raw(encoding, X):
        # without the model: a worker that loads its class loads scikit-learn, and holds some 60 MiB more
        dtype = np.float64 if is_frame(X) else encoding.dtype
        return map_raw(encoded_chunk, (encoding,), X, encoding.n_columns, dtype, strict=strict, weight=weight)
    if is_frame(X):
        check_names(X)
        _check_width(estimator, len(X.columns), width := estimator.n_features_in_)
        return map_raw(rows_like_those_of_fit, (estimator,), X, width, np.float64, strict=strict, weight=weight)
    X = as_dask_array(X, "X")
    return X if weight is None else lazy_zeros_for_weightless(X, weight)


def lazy_answers(
    estimator: BaseEstimator,
    X: Any,
    answer: Callable[..., np.ndarray],
    n_columns: int,
    dtype: DTypeLike,
    *,
    strict: bool = False,
    weight: Any = None,
) -> da.Array:
    """`answer` for the rows of a Dataset or a Dask collection, (n, n_columns), with a chunk for each chunk of rows.

    Parameters
    ----------
    estimator : fitted BaseEstimator
    X : Dataset or Dask collection of shape (n, d)
    answer : callable
        From encoded rows, and the number of their first row in the chunk, to `n_columns` numbers for each of them. They
        must not depend on the other rows, since raw rows are encoded and answered a slice at a time.
    n_columns : int
    dtype : dtype
        Of the answers.
    strict : bool
        Raise an error for raw rows that differ from the rows of `fit`.
    weight : array of shape (n,) or None
        Rows of weight 0 may hold anything, and become rows of zeros.

    Raises
    ------
    ValueError
        If the columns are not the columns of `fit`.
    """
    encoding = getattr(estimator, "encoding_", None)
    if isinstance(X, Dataset):
        rows = checked_dataset(estimator, X).X
    elif is_raw(encoding, X):
        return map_raw(answer_raw, (answer, encoding), X, n_columns, dtype, strict=strict, weight=weight)
    else:
        rows = dask_rows(estimator, X, strict=strict, weight=weight)
    if rows.ndim != 2:
        raise ValueError(f"X has {rows.ndim} dimensions, but {type(estimator).__name__} is expecting rows, of 2")
    _check_width(estimator, rows.shape[1], encoded_width(estimator))
    rows = with_whole_rows(rows)
    # one task holds the model for all blocks
    shared, chunks = dask.delayed(answer, pure=True), (rows.chunks[0], (n_columns,))
    return da.map_blocks(answer_chunk, shared, rows, dtype=dtype, chunks=chunks, meta=np.empty((0, 0), dtype))


def first_targets(dataset: Dataset) -> np.ndarray | None:
    """The mean of the regression targets of the first nonempty block, (t,); None for classes. X is not read."""
    if dataset.task != "regression":
        return None
    first = next(block for block in dataset.source.blocks_without_x() if block.n_rows)
    return np.atleast_1d(np.mean(np.asarray(first.y), axis=0, dtype=np.float64))
