"""Appending rows to a store and dropping rows from it: the checks, and the version that is written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dask
import numpy as np

from dkl.data.coerce import as_dataset
from dkl.data.create import blocks_in_order, write_all
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.frames import encoded_by, is_frame
from dkl.data.labels import shown_classes
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.store.commit import Home
from dkl.data.store.location import Location
from dkl.data.store.version_files import (
    check_newest,
    drop_record,
    note_newest,
    version_facts,
    version_place,
    write_drop,
)
from dkl.data.store.writer import DatasetWriter
from dkl.data.together.rows import BesideFeatures
from dkl.events import Subscriber
from dkl.protocols.block import Block

FIRST_ID = 2**40
"""Row ids of version k count from k times this on: no old id need be read to keep them apart."""


def append_rows(
    dataset: Dataset,
    given: tuple[Any, Any, Any],
    split: str | Sequence[str] | None,
    publish: Subscriber,
    *,
    groups: Any = None,
    times: Any = None,
) -> Dataset:
    """A new version with further rows (X, y, sample_weight); `Dataset.append` documents the rest."""
    source = _whole_source(dataset)
    joins = _joined_splits(dataset, split)
    beside = _beside(dataset, given[0], groups, times)
    rows = _like_stored(dataset, beside.X, *given[1:])
    rows = beside.noted(rows, given[2])
    _check_row_columns(dataset, rows)
    weighted = dataset.schema.has_weight
    if rows.schema.has_weight and not weighted:
        raise ValueError(
            f"sample_weight was given and {source.place} has no weights; leave it out, or write all rows anew with "
            "create_dataset(..., sample_weight=...)"
        )
    origin = {"from": rows.source.place, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **rows.schema.provenance}
    number = source.version + 1
    with _next_version(source) as (home, place):
        writer = DatasetWriter(
            place.url,
            replace(dataset.schema, provenance=origin, held_by=source.schema.held_by),
            n_rows=rows.n_rows,
            storage_options=place.options,
            rows_a_block=source.stored_block_rows if source.n_blocks > 1 else None,
            further=version_facts(source.token, dataset.split_sets, joins),
            home=home,
        )
        with writer:
            write_all(writer, _numbered(blocks_in_order(rows), number), rows.n_rows, publish)
    return open_dataset(source.location.url, number, **source.location.options)


def drop_rows(dataset: Dataset, rows: Any, blocks: Any) -> Dataset:
    """A new version without some rows; `Dataset.drop` documents the rest."""
    stored = _whole_source(dataset)
    source = VersionSource(stored) if isinstance(stored, StoreSource) else stored
    if (rows is None) == (blocks is None):
        raise ValueError("pass the rows to drop (a mask or row numbers) or blocks=, one of the two")
    gone = _rows_of_blocks(source, blocks) if rows is None else _rows_by_block(source, rows)
    if sum(int(lost.sum()) for lost in gone.values()) == dataset.n_rows:
        raise ValueError(f"all {dataset.n_rows} rows of {source.place} would go; a dataset has at least one")
    splits = {name: split for name, split in dataset.split_sets.items() if split.column is not None}
    with _next_version(source) as (home, place):
        write_drop(home, place, drop_record(source, splits, gone), version_facts(source.token, splits, {}))
    return open_dataset(source.location.url, source.version + 1, **source.location.options)


def _whole_source(dataset: Dataset) -> StoreSource | VersionSource:
    source = dataset.source
    if not isinstance(source, StoreSource | VersionSource):
        what = f"{dataset!r} is a view" if dataset.store is not None else f"{dataset!r} is not in a store of dkl"
        raise ValueError(f"{what}; rows are appended to, and dropped from, what dkl.open_dataset(store) opens")
    return source


@contextmanager
def _next_version(source: StoreSource | VersionSource) -> Iterator[tuple[Home, Location]]:
    """The store as it was opened, and where its next version goes; whoever comes second is told."""
    location, number = source.location, source.version + 1
    home = Home(location, (source.parts[0] if isinstance(source, VersionSource) else source).token)
    home.check()
    try:
        check_newest(location, home.token, source.version)
        yield home, version_place(location, number)
    except FileExistsError as error:
        raise FileExistsError(
            f"{location.place} has a newer version than {source.version}, which this dataset is; nothing was changed. "
            "Open it again: dkl.open_dataset(store)"
        ) from error
    note_newest(location, home.token, number)


def _joined_splits(dataset: Dataset, split: str | Sequence[str] | None) -> dict[str, str | None]:
    """For each set of splits the one that new rows join."""
    if split is None and dataset.splits:
        raise ValueError(
            f"{dataset!r} has splits: say which one the rows join, split={dataset.splits[0]!r}, or split=() for none"
        )
    names = [split] if isinstance(split, str) else list(split or ())
    for name in names:
        if name not in dataset.splits:
            raise ValueError(f"split={name!r} is none of the splits {list(dataset.splits)} of {dataset!r}")
    joins: dict[str, str | None] = {}
    for label, held in dataset.split_sets.items():
        chosen = [name for name in names if name in held.names]
        if len(chosen) > 1:
            raise ValueError(f"a row is in one split of the set {label!r}, not in {chosen}")
        joins[label] = chosen[0] if chosen else None
    return joins


def _like_stored(dataset: Dataset, X: Any, y: Any, sample_weight: Any) -> Dataset:
    """Further rows, encoded and checked as those of a store."""
    schema = dataset.schema
    if is_frame(X) and schema.encoding is not None:
        # in double precision, so that the writer sees what the dtype of the store would change
        X = encoded_by(schema.encoding, X, np.dtype(np.float64))
    if y is not None and schema.task is None:
        raise ValueError(f"y was given, and {dataset.source.place} was created without targets; leave it out")
    rows = as_dataset(X, y, sample_weight, task=schema.task or "auto", classes=None if y is None else schema.classes)
    if rows.task != schema.task:
        theirs = "have none" if rows.task is None else f"have one for {rows.task}"
        raise ValueError(
            f"{dataset.source.place} has a target for {schema.task}, and the new rows {theirs}; pass y as it is stored"
        )
    if schema.classes is not None and not np.array_equal(np.asarray(rows.classes), schema.classes):
        raise ValueError(
            f"the new rows have the classes {shown_classes(np.asarray(rows.classes))}, {dataset.source.place} has "
            f"{shown_classes(schema.classes)}; create them with classes= these, or write all rows anew"
        )
    _check_columns(dataset, rows)
    return rows


def _beside(dataset: Dataset, X: Any, groups: Any, times: Any) -> BesideFeatures:
    """The groups and times of further rows: as given, or the columns of a data frame that have their names."""
    given = {"group": groups, "time": times}
    for role, known in dataset.schema.row_columns.items():
        if given[role] is None and is_frame(X) and known.name in X.columns:
            given[role] = known.name
    return BesideFeatures(X, given["group"], given["time"])


def _check_row_columns(dataset: Dataset, rows: Dataset) -> None:
    """Refuse rows whose groups or times are not those that the store has."""
    place = dataset.source.place
    for role in ("group", "time"):
        known, given = dataset.schema.row_columns.get(role), rows.schema.row_columns.get(role)
        if known is not None and given is None:
            raise ValueError(f"{role}s is missing: the rows of {place} have the {role} {known.name!r}; pass {role}s=")
        if given is not None and known is None:
            raise ValueError(
                f"{role}s was given, and {place} has no {role} of its rows; leave it out, or write all rows anew with "
                f"create_dataset(..., {role}s=...)"
            )
        if known is not None and given is not None and known.kind != given.kind:
            kinds = {"number": "numbers", "datetime": "dates"}
            raise ValueError(f"times are {kinds[given.kind]}, and those of {place} are {kinds[known.kind]}")


def _check_columns(dataset: Dataset, rows: Dataset) -> None:
    if rows.n_columns != dataset.n_columns:
        raise ValueError(f"X has {rows.n_columns} columns; {dataset.source.place} has {dataset.n_columns}")
    if rows.source.is_sparse != dataset.source.is_sparse:
        kinds = {True: "sparse", False: "dense"}
        has, needs = kinds[rows.source.is_sparse], kinds[dataset.source.is_sparse]
        raise ValueError(f"X is {has} and the rows of {dataset.source.place} are {needs}; pass {needs} rows")
    bases = rows.schema.first_index, dataset.schema.first_index
    if None not in bases and bases[0] != bases[1]:
        raise ValueError(
            f"the new rows were read from libsvm text as counting columns from {bases[0]}, those of "
            f"{dataset.source.place} as counting from {bases[1]}, so their columns would be shifted by one; ingest the "
            f"new rows with format=dkl.LibsvmFormat(zero_based={bases[1] == 0})"
        )
    if None not in (rows.column_names, dataset.column_names) and rows.column_names != dataset.column_names:
        raise ValueError(
            f"the columns {rows.column_names} are not those of {dataset.source.place}: {dataset.column_names}"
        )


def _numbered(blocks: Iterator[Block], version: int) -> Iterator[Block]:
    return (replace(block, row_id=block.row_id + version * FIRST_ID) for block in blocks)


def _rows_of_blocks(source: VersionSource, blocks: Any) -> dict[int, np.ndarray]:
    numbers = np.unique(np.atleast_1d(np.asarray(blocks)))
    if numbers.dtype.kind not in "iu" or not len(numbers):
        raise ValueError(f"blocks is {blocks!r}; expected numbers of blocks, from 0 to {source.n_blocks - 1}")
    for number in numbers.tolist():
        if not 0 <= number < source.n_blocks or not source.block_rows[number]:
            why = "has no rows left" if 0 <= number < source.n_blocks else f"is not in 0 .. {source.n_blocks - 1}"
            raise ValueError(f"block {number} of {source.place} {why}; nothing was dropped")
    return {number: np.ones(int(source.block_rows[number]), bool) for number in numbers.tolist()}


def _rows_by_block(source: VersionSource, rows: Any) -> dict[int, np.ndarray]:
    """Which rows of each block go, for the blocks that lose any."""
    n_rows = int(source.block_rows.sum())
    gone = _as_mask(rows.compute() if dask.is_dask_collection(rows) else np.asarray(rows), n_rows)
    bounds = np.concatenate([[0], np.cumsum(source.block_rows)])
    parts = {index: gone[bounds[index] : bounds[index + 1]] for index in range(source.n_blocks)}
    return {index: lost for index, lost in parts.items() if lost.any()}


def _as_mask(rows: np.ndarray, n_rows: int) -> np.ndarray:
    if rows.dtype == bool:
        if rows.shape != (n_rows,):
            raise ValueError(f"the mask of rows has shape {rows.shape}; expected ({n_rows},), one value a row")
        mask = rows
    else:
        if rows.dtype.kind not in "iu" or rows.ndim != 1:
            raise TypeError(f"rows must be a boolean mask or row numbers, not {rows.dtype} {rows.shape}")
        outside = rows[(rows < 0) | (rows >= n_rows)]
        if len(outside):
            raise ValueError(f"row {outside[0]} is not there; rows are numbered 0 to {n_rows - 1}")
        mask = np.zeros(n_rows, bool)
        mask[rows] = True
    if not mask.any():
        raise ValueError("no row was named, so there is nothing to drop")
    return mask
