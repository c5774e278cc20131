"""create_dataset: arrays, sparse matrices, Dask arrays and data frames written to a store, in bounded memory."""

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
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.store.copying import blocks_in_order, shuffled_blocks, write_all
from dkl.data.store.location import Location
from dkl.data.store.overwriting import check_output
from dkl.data.store.version_files import newest_version
from dkl.data.store.writer import DatasetWriter
from dkl.data.together.rows import BesideFeatures
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
    overwrite: bool = False,
    rows_a_block: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    publish: Subscriber = ignore,
) -> Dataset:
    """Write rows to a zarr store, whole or not at all, and open it.

    Rows of weight 0 are left out; `row_id` numbers the rows as they were given.

    Parameters
    ----------
    store : path or URL
        ``"rows.zarr"``, ``"s3://bucket/rows.zarr"``, ``"memory://rows.zarr"`` (seen by this process alone).
    X : array of shape (n, d), scipy sparse matrix, Dask array, pandas or Dask data frame, or Dataset
        Dask arrays are computed a few blocks at a time.
    y : array of shape (n,) or (n, t), or None
        Labels of any kind, or real numbers.
    sample_weight : array of shape (n,) or None
    groups : str, array of shape (n,), or None
        What each row belongs to (a patient, a user): rows of one group are held out together wherever rows are held
        out, and `Dataset.split` keeps them in one split. A name is a column of a data frame, which is then no feature.
    times : str, array of shape (n,), or None
        Numbers, dates, or texts of dates: the newest rows are held out, unless there are groups too. A column of a data
        frame stays a feature; pass its values and drop it from the frame where it shall be none.
    shuffle : bool
        Put the rows in random order; rows that are sorted (by label, by time) spoil stochastic fitting. Rows that are
        not in memory go through temporary disk of their own size.
    seed : int
        Of the shuffle; stored.
    task : {"auto", "classification", "regression"}
    classes : array of shape (K,) or None
        All labels, where y may lack some.
    column_names : list of str or None
        None takes those of a data frame.
    categorical : collection of str
        Columns of a data frame whose values are names, whatever they look like: postcodes, ids.
    drop_missing_target : bool
        Leave rows out whose target is missing, with a warning that counts them; they are an error otherwise.
    overwrite : bool
        Replace a dataset that is there: a local one stays whole until the new one is, one behind a URL goes first.
    rows_a_block : int or None
        None chooses about 32 MiB of X, at most 65,536 rows.
    storage_options : mapping or None
        For fsspec.
    publish : callable
        Receives an `Event` a block.

    Returns
    -------
    Dataset

    Raises
    ------
    FileExistsError
        The store exists and `overwrite` is False.
    ValueError
        NaN or infinity (row and column are named), shapes that do not fit, complex numbers, weights that are negative
        or all zero; a group or a time that is missing, or another number of them than rows.
    TypeError
        Values that are not numbers.
    OSError
        The disk is full or writing is not permitted; nothing is visible then.

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
    # Where the rows go is looked at before they are: checking a large array takes long, and would be for nothing.
    target = Location.of(store, storage_options)
    check_output(target, "dataset", overwrite=overwrite)
    beside = BesideFeatures(X, groups, times)
    if drop_missing_target:
        beside, y, sample_weight = beside.with_targets(y, sample_weight)

    def made() -> Dataset:
        """The rows without what keeps some of them together."""
        nonlocal rows_a_block
        dataset = as_dataset(
            beside.X, y, sample_weight, task=task, classes=classes, categorical=categorical, looks=True
        )
        if beside.row_id is not None and isinstance(dataset.source, ArraySource):
            dataset = dataset.with_rows(dataset.source.numbered(beside.row_id), dataset.schema)
        # The blocks of rows in memory stay what they are, whatever is noted of the rows.
        rows_a_block = rows_a_block or dataset.source.rows_a_block
        return dataset

    dataset = beside.noted_of(made, sample_weight)
    if overwrite:
        _check_own_rows(dataset, target)
    schema = dataset.schema
    # Names that are given here win over those of a frame, or of the dataset that the rows come from.
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
    # Blocks of the source need not be those of the store: the writer cuts them anew.
    columns = {role: known.column for role, known in dataset.schema.row_columns.items()}
    source = dataset.source
    blocks = shuffled_blocks(source, seed, columns) if shuffle else blocks_in_order(source, columns)
    with writer:
        write_all(writer, blocks, dataset.n_rows, publish)
    return open_dataset(store, **(storage_options or {}))


def _check_own_rows(dataset: Dataset, target: Location) -> None:
    """Refuse to replace a store by rows of its own that are not all that it holds by now.

    Raises
    ------
    StoreReplacedError, FileExistsError
        The dataset is not the newest version of the store any more.
    ValueError
        The store is behind a URL, where it is deleted before its rows could be read.
    """
    # Views read the store that they narrow.
    source = dataset.source.base
    if not isinstance(source, StoreSource | VersionSource) or source.location.key != target.key:
        return
    token = (source.parts[0] if isinstance(source, VersionSource) else source).token
    # Rows that were read from another store at the same place, which is gone by now, cannot be read any more.
    target.check_token(token)
    if newest_version(target, token) > source.version:
        raise FileExistsError(
            f"{target.place} has a newer version than {source.version}, which these rows are; replacing it would lose "
            "what was appended or dropped since. Open it again, or write to another store"
        )
    if not target.is_local:
        raise ValueError(f"{target.place} cannot be replaced by its own rows; write them to another store")
