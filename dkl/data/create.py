"""create_dataset: arrays, sparse matrices, Dask arrays and data frames, written to a store in bounded memory."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.checks import shown_value, whole_number
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import TaskChoice
from dkl.data.other_rules import check_left_to_rules, dataset_like, schema_like
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.store.copying import blocks_in_order, shuffled_blocks, write_all
from dkl.data.store.location import Location
from dkl.data.store.overwriting import check_output
from dkl.data.store.version_files import newest_version
from dkl.data.store.writer import DatasetWriter
from dkl.data.together.rows import GroupsAndTimes
from dkl.events import Subscriber, ignore


def create_dataset(
    store: str | os.PathLike[str],
    X: GivenRows | Dataset,
    y: GivenValues = None,
    *,
    sample_weight: GivenValues = None,
    groups: GivenValues = None,
    times: GivenValues = None,
    shuffle: bool = False,
    seed: int = 0,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    column_names: list[str] | None = None,
    categorical: Collection[str] = (),
    drop_missing_target: bool = False,
    like: Any = None,
    overwrite: bool = False,
    rows_a_block: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    publish: Subscriber = ignore,
) -> Dataset:
    """Write rows to a zarr store, completely or not at all, and open it.

    Rows of weight 0 are left out; `row_id` numbers the rows as they were given.

    Parameters
    ----------
    store : path or URL
        ``"rows.zarr"``, ``"s3://bucket/rows.zarr"``, ``"memory://rows.zarr"`` (visible in this process only).
    X : array of shape (n, d), scipy sparse matrix, Dask array, pandas or Dask data frame, or Dataset
        Dask arrays are computed a few blocks at a time.
    y : array of shape (n,) or (n, t), or None
        Labels of any type, or real numbers.
    sample_weight : str, array of shape (n,), or None
        The name of a column of a data frame removes this column from the features.
    groups : str, array of shape (n,), or None
        The group of each row (a patient, a user): rows of one group are always held out together, and `Dataset.split`
        keeps them in one split. The name of a column of a data frame removes this column from the features.
    times : str, array of shape (n,), or None
        Numbers, dates, or texts of dates: fits hold out the newest rows, unless there are groups too. A column of a
        data frame stays a feature; to avoid that, pass its values and drop it from the frame.
    shuffle : bool
        Whether to write the rows in random order; sorted rows (by label, by time) make stochastic fits worse. Rows that
        are not in memory need temporary disk space of their own size.
    seed : int
        Seed of the random order, which is stored.
    task : {"auto", "classification", "regression"}
    classes : array of shape (K,) or None
        All labels, if y may lack some.
    column_names : list of str or None
        Names of the columns of X. None takes those of a data frame; columns of other rows then have no names.
    categorical : collection of str
        Columns of a data frame whose values are categories even if they look like numbers: postcodes, ids.
    drop_missing_target : bool
        Whether to leave out rows without a target, with a warning that counts them; otherwise they are an error.
    like : Dataset, path or URL of a store, fitted model, or None
        Encode the rows by the rules of that store, or of the model's fit, instead of by rules learned from them: with
        the columns, categories, units, time zones and fillings of the store or the fit, and its classes as the labels.
    overwrite : bool
        Whether to replace an existing dataset: a local one stays until the new one is complete, one at a URL is deleted
        first.
    rows_a_block : int or None
        None is about 32 MiB of X, at most 65,536 rows.
    storage_options : mapping or None
        For fsspec.
    publish : callable
        Called with an `Event` for each block.

    Returns
    -------
    Dataset

    Raises
    ------
    FileExistsError
        If the store exists and `overwrite` is False.
    ValueError
        For NaN or infinity (with row and column), shapes that do not match, complex numbers, and weights that are
        negative or all zero; for a missing group or time, or another number of them than rows.
    TypeError
        For values that are not numbers.
    OSError
        If the disk is full or writing is not permitted; the store then does not exist.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ds = create_dataset(f"{folder}/rows.zarr", np.eye(4), ["a", "b", "a", "b"])
    ...     ds.y.compute().tolist()
    ['a', 'b', 'a', 'b']
    """
    if column_names is not None and (isinstance(column_names, str) or np.ndim(column_names) != 1):
        raise TypeError(f"column_names is {shown_value(column_names)}; expected a list of names, one a column of X")
    if not callable(publish):
        raise TypeError(f"publish is {shown_value(publish)}; expected a function of one Event")
    seed = whole_number(seed, "seed")
    rows_a_block = None if rows_a_block is None else whole_number(rows_a_block, "rows_a_block", 1)
    # the place is checked before the rows: checking a large array takes long, and would be useless
    target = Location.of(store, storage_options)
    check_output(target, "dataset", overwrite=overwrite)
    rules = None if like is None else schema_like(like)
    if rules is not None:
        check_left_to_rules(task=task, classes=classes, column_names=column_names, categorical=categorical)
    beside = GroupsAndTimes(X, groups, times) if rules is None else GroupsAndTimes.like(rules[0], X, groups, times)
    sample_weight = beside.weights(sample_weight)
    if drop_missing_target:
        beside, y, sample_weight = beside.with_targets(y, sample_weight)

    def without_row_columns() -> Dataset:
        """The dataset without groups and times."""
        nonlocal rows_a_block
        if rules is None:
            dataset = as_dataset(
                beside.X, y, sample_weight, task=task, classes=classes, categorical=categorical, finds_missing=True
            )
        else:
            dataset = dataset_like(*rules, beside.X, y, sample_weight)
        if beside.row_id is not None and isinstance(dataset.source, ArraySource):
            dataset = dataset.with_rows(dataset.source.numbered(beside.row_id), dataset.schema)
        # rows in memory keep their blocks, also after groups and times were added
        rows_a_block = rows_a_block or dataset.source.rows_a_block
        return dataset

    dataset = beside.with_columns_of(without_row_columns, sample_weight)
    if overwrite:
        _check_own_rows(dataset, target)
    schema = dataset.schema
    # the caller's `column_names` take precedence over those of the data frame or dataset that X is
    names = schema.column_names if column_names is None else list(column_names)
    schema = replace(
        schema,
        column_names=names,
        provenance={"from": dataset.source.place, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **schema.provenance},
        shuffle_seed=seed if shuffle else schema.shuffle_seed,
        row_columns={role: replace(known, column=role) for role, known in schema.row_columns.items()},
    )
    writer = DatasetWriter(
        store,
        schema,
        n_rows=dataset.n_rows,
        overwrite=overwrite,
        storage_options=storage_options,
        rows_a_block=rows_a_block,
    )
    # the writer cuts its own blocks, independently of those of the source
    columns = {role: known.column for role, known in dataset.schema.row_columns.items()}
    source = dataset.source
    blocks = shuffled_blocks(source, seed, columns) if shuffle else blocks_in_order(source, columns)
    with writer:
        write_all(writer, blocks, dataset.n_rows, publish)
    return open_dataset(store, **(storage_options or {}))


def _check_own_rows(dataset: Dataset, target: Location) -> None:
    """Raise an error if a store would be replaced by its own rows and lose some of them.

    Raises
    ------
    StoreReplacedError, FileExistsError
        If the dataset is not the newest version of the store.
    ValueError
        If the store is at a URL, where it would be deleted before its rows are read.
    """
    # a view reads the store that it selects from
    source = dataset.source.base
    if not isinstance(source, StoreSource | VersionSource) or source.location.key != target.key:
        return
    token = source.parts[0].token
    # rows from another store that was at the same place before can no longer be read
    target.check_token(token)
    if newest_version(target, token) > source.version:
        raise FileExistsError(
            f"{target.place} has a newer version than {source.version}, which these rows are; replacing it would lose "
            "what was appended or dropped since. Open it again, or write to another store"
        )
    if not target.is_local:
        raise ValueError(f"{target.place} cannot be replaced by its own rows; write them to another store")
