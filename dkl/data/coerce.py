"""Rows of any kind (arrays, sparse matrices, Dask, frames, Datasets) as one Dataset, for fit, transform and score."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dkl.data.checks import check_order
from dkl.data.dataset import Dataset
from dkl.data.frames import is_frame
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.labels import TaskChoice
from dkl.data.other_frames import as_pandas_rows
from dkl.data.row_sources import source_like_fit, source_of


def as_dataset(
    X: GivenRows | Dataset,
    y: GivenValues = None,
    sample_weight: GivenValues = None,
    *,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    categorical: Collection[str] = (),
    finds_missing: bool = False,
    repeats: bool = False,
    encoding: TableEncoding | None = None,
) -> Dataset:
    """A Dataset from rows of any kind; arrays in memory are neither copied nor read more than once.

    Parameters
    ----------
    X : array of shape (n, d), scipy sparse matrix, Dask array, data frame, or Dataset
        Frames of pandas, Dask, Polars, Arrow, or another library that narwhals supports.
    y : array of shape (n,) or (n, t), or None
        Labels (strings, integers, booleans) or real numbers.
    sample_weight : array of shape (n,) or None
        Frequency weights; rows of weight 0 are left out.
    task : {"auto", "classification", "regression"}
        "auto" decides like scikit-learn: real numbers that are not whole are regression.
    classes : array of shape (K,) or None
        All labels that y may hold; None finds them in y.
    categorical : collection of str
        Columns of a data frame whose values are categories even if they look like numbers; a Dataset has its own.
    finds_missing : bool
        Whether to read a dense Dask array once to find missing values, which are then filled and flagged as in arrays
        in memory; otherwise a missing value is an error when its block is computed.
    repeats : bool
        Whether rows are numbered as if a row of whole weight w were there w times, and a row of weight 0 were not.
        Samples and folds, which are drawn by row number, are then those of the repeated rows
        (`dkl.data.row_sources.counted_rows`).
    encoding : TableEncoding, FittedEncoding or None
        The rules of an earlier fit, by which the rows of a Dask frame are encoded; None learns rules from the rows.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        For NaN or infinity (with row and column), shapes that do not match, complex numbers, a single class, a series
        with the labels of the data frame in another order, a label that is not in `classes`, weights that are negative
        or all zero, `y` in addition to a Dataset with its own, or categorical columns that a Dataset holds as numbers.
    TypeError
        For values that are not numbers.
    """
    if task not in ("auto", "classification", "regression"):
        raise ValueError(f"task is {task!r}; expected 'auto', 'classification' or 'regression'")
    X = as_pandas_rows(X)
    for name, values in (("y", y), ("sample_weight", sample_weight)):
        check_order(X, values, name)
    if isinstance(X, Dataset):
        rules = () if X.encoding is None else X.encoding.rules
        known = {rule.name for rule in rules if rule.kind in ("category", "code")}
        if others := [name for name in categorical if name not in known]:
            raise ValueError(
                f"categorical names {others}, which {X.source.place} does not hold as categories; say so when it is "
                f"made: dkl.ingest(..., categorical={others}), or create_dataset(..., categorical={others}) of a frame"
            )
        return X.used_whole(y, sample_weight, task)
    of_targets: dict[str, Any] = {"task": task, "classes": classes, "repeats": repeats}
    if encoding is not None:
        source, schema = source_like_fit(X, y, sample_weight, encoding, **of_targets)
    else:
        source, schema = source_of(
            X, y, sample_weight, categorical=categorical, finds_missing=finds_missing, **of_targets
        )
    if name := _target_name(X, y):
        schema = replace(schema, provenance={**schema.provenance, "target": name})
    return Dataset(source, schema)


def _target_name(X: Any, y: Any) -> str:
    """The name of y, by which `dkl score` finds the target in files: that of a series, or of a frame's only column.

    The empty text if y has no name or several columns, or if a column of X has the same name: a file could not tell the
    target from this feature.
    """
    names = list(y.columns) if is_frame(y) else [y.name] if type(y).__name__ == "Series" else []
    if len(names) != 1 or not isinstance(names[0], str) or (is_frame(X) and names[0] in X.columns):
        return ""
    return names[0]
