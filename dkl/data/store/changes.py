"""Appending rows to a store and dropping rows from it: the checks, and the version that is written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import dask
import numpy as np

from dkl.data.checks import as_rows, check_rows, checked_weight, rows_named
from dkl.data.frames import encoded_by, is_frame, is_raw
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import shown_classes
from dkl.data.row_sources import source_of
from dkl.data.schema import Schema
from dkl.data.sources.lazy import is_lazy
from dkl.data.sources.rows import RowSource
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.splits import SplitSet
from dkl.data.store.commit import Home
from dkl.data.store.copying import blocks_in_order, write_all
from dkl.data.store.location import Location
from dkl.data.store.version_files import (
    check_newest,
    drop_record,
    record_newest,
    version_facts,
    version_place,
    write_drop,
)
from dkl.data.store.writer import DatasetWriter
from dkl.events import Subscriber

FIRST_ID = 2**40
"""Row ids of version k begin at k times this number, so that ids of all versions differ."""


@dataclass(frozen=True, eq=False)
class StoredVersion:
    """An opened version of a store, to which the next version is added.

    Parameters
    ----------
    source : StoreSource or VersionSource
    schema : Schema
    splits : mapping of str to SplitSet
    called : str
        Name of the dataset in messages.
    """

    source: StoreSource | VersionSource
    schema: Schema
    splits: Mapping[str, SplitSet]
    called: str

    @contextmanager
    def writing_next_version(self) -> Iterator[tuple[Home, Location]]:
        """The store, and the place of its next version; FileExistsError if another writer has added that version."""
        location, number = self.source.location, self.source.version + 1
        # all versions are in the folder of version 0, whose token shows that it is still the same store
        home = Home(location, self.source.parts[0].token)
        home.check()
        try:
            check_newest(location, home.token, self.source.version)
            yield home, version_place(location, number)
        except FileExistsError as error:
            raise FileExistsError(
                f"{location.place} has a newer version than {self.source.version}, which this dataset is; nothing was "
                "changed. Open it again: dkl.open_dataset(store)"
            ) from error
        record_newest(location, home.token, number)


def append_rows(
    version: StoredVersion, rows: RowSource, schema: Schema, joins: Mapping[str, str | None], publish: Subscriber
) -> int:
    """Write a new version with further rows, and return its number; see `Dataset.append`.

    Parameters
    ----------
    version : StoredVersion
    rows : RowSource
    schema : Schema
        The schema of `rows`.
    joins : mapping of str to str or None
        The split that the new rows join in each set of splits; None for none.
    publish : callable
    """
    _check_alike(version, rows, schema)
    source, number = version.source, version.source.version + 1
    if schema.has_weight and not version.schema.has_weight:
        raise ValueError(
            f"sample_weight was given and {source.place} has no weights; leave it out, or write all rows anew with "
            "create_dataset(..., sample_weight=...)"
        )
    origin = {"from": rows.place, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **schema.provenance}
    n_rows = int(rows.block_rows.sum())
    with version.writing_next_version() as (home, place):
        writer = DatasetWriter(
            place.url,
            replace(version.schema, provenance=origin, held_by=source.schema.held_by),
            n_rows=n_rows,
            storage_options=place.options,
            # the only block of a store may be a partial one, which is no size for further blocks
            rows_a_block=source.stored_block_rows if source.n_blocks > 1 else None,
            further=version_facts(source.token, version.splits, joins),
            home=home,
        )
        # rows of different versions need different ids, as samples and splits depend on them
        first_id = number * FIRST_ID
        columns = {role: known.column for role, known in schema.row_columns.items()}
        numbered = (replace(block, row_id=block.row_id + first_id) for block in blocks_in_order(rows, columns))
        with writer:
            write_all(writer, numbered, n_rows, publish)
    return number


def drop_rows(version: StoredVersion, rows: GivenValues, blocks: GivenValues) -> int:
    """Write a new version without some rows, and return its number; see `Dataset.drop`."""
    source = VersionSource(version.source) if isinstance(version.source, StoreSource) else version.source
    if (rows is None) == (blocks is None):
        raise ValueError("pass the rows to drop (a mask or row numbers) or blocks=, one of the two")
    if rows is not None:
        gone = _rows_by_block(source, rows)
    else:
        numbers = np.unique(np.atleast_1d(np.asarray(blocks)))
        if numbers.dtype.kind not in "iu" or not len(numbers):
            raise ValueError(f"blocks is {blocks!r}; expected numbers of blocks, from 0 to {source.n_blocks - 1}")
        for number in numbers.tolist():
            if not 0 <= number < source.n_blocks or not source.block_rows[number]:
                why = "has no rows left" if 0 <= number < source.n_blocks else f"is not in 0 .. {source.n_blocks - 1}"
                raise ValueError(f"block {number} of {source.place} {why}; nothing was dropped")
        gone = {number: np.ones(int(source.block_rows[number]), bool) for number in numbers.tolist()}
    n_rows = int(source.block_rows.sum())
    if sum(int(lost.sum()) for lost in gone.values()) == n_rows:
        raise ValueError(f"all {n_rows} rows of {source.place} would go; a dataset has at least one")
    # versions refer only to stored splits
    splits = {name: split for name, split in version.splits.items() if split.column is not None}
    with version.writing_next_version() as (home, place):
        write_drop(home, place, drop_record(source, splits, gone), version_facts(source.token, splits, {}))
    return source.version + 1


def joined_splits(version: StoredVersion, split: str | Sequence[str] | None) -> dict[str, str | None]:
    """For each set of splits the split that new rows join, or None.

    Raises
    ------
    ValueError
        If there are splits and `split` is None, a name is unknown, or two names are of the same set.
    """
    known = [name for held in version.splits.values() for name in held.names]
    if split is None and known:
        raise ValueError(
            f"{version.called} has splits: say which one the rows join, split={known[0]!r}, or split=() for none"
        )
    names = [split] if isinstance(split, str) else list(split or ())
    for name in names:
        if name not in known:
            raise ValueError(f"split={name!r} is none of the splits {known} of {version.called}")
    joins: dict[str, str | None] = {}
    for label, held in version.splits.items():
        named = [name for name in names if name in held.names]
        if len(named) > 1:
            raise ValueError(f"a row is in one split of the set {label!r}, not in {named}")
        joins[label] = named[0] if named else None
    return joins


def encoded_like(schema: Schema, X: GivenRows, y: GivenValues, sample_weight: GivenValues) -> tuple[RowSource, Schema]:
    """Rows of any kind, encoded by the rules of `schema`, and their own schema."""
    if schema.encoding is None and not is_frame(X) and not is_lazy(X):
        # without an encoding missing values cannot be filled
        rows = as_rows(X)
        (weight,) = dask.compute(sample_weight)
        check_rows(rows, weight=checked_weight(weight, rows.shape[0]))
    if is_raw(schema.encoding, X):
        # in float64, so that the writer can check what the dtype of the store would round
        X = encoded_by(schema.encoding, X, np.dtype(np.float64), weight=sample_weight)
        rules = [rule for rule in schema.encoding.rules for _ in rule.output_names]
        texts = [place for place, rule in enumerate(rules) if rule.kind == "text"]
        if texts and not schema.is_sparse:
            # coordinates of free text are rounded as in the store, and need not be checked
            rounded = partial(_rounded, columns=texts, dtype=schema.dtype)
            X = X.map_blocks(rounded, dtype=X.dtype, meta=X._meta) if is_lazy(X) else rounded(X)
    return source_of(X, y, sample_weight, task=schema.task or "auto", classes=None if y is None else schema.classes)


def _rounded(rows: np.ndarray, columns: list[int], dtype: np.dtype) -> np.ndarray:
    """The rows with the given columns rounded to the precision of `dtype`."""
    rows = rows.copy()
    rows[:, columns] = rows[:, columns].astype(dtype)
    return rows


def _check_alike(version: StoredVersion, rows: RowSource, schema: Schema) -> None:
    """Raise ValueError for rows whose targets, classes, columns, groups or times do not match those of the store."""
    place, wanted = version.source.place, version.schema
    if schema.task != wanted.task:
        theirs = "have none" if schema.task is None else f"have one for {schema.task}"
        raise ValueError(f"{place} has a target for {wanted.task}, and the new rows {theirs}; pass y as it is stored")
    if wanted.classes is not None and not np.array_equal(np.asarray(schema.classes), wanted.classes):
        raise ValueError(
            f"the new rows have the classes {shown_classes(np.asarray(schema.classes))}, {place} has "
            f"{shown_classes(wanted.classes)}; create them with classes= these, or write all rows anew"
        )
    check_columns_alike(place, wanted, rows, schema)
    for role in ("group", "time"):
        known, given = wanted.row_columns.get(role), schema.row_columns.get(role)
        if known is not None and given is None:
            raise ValueError(f"{role}s is missing: the rows of {place} have the {role} {known.name!r}; pass {role}s=")
        if given is not None and known is None:
            raise ValueError(
                f"{role}s was given, and {place} has no {role} of its rows; leave it out, or write all rows anew with "
                f"create_dataset(..., {role}s=...)"
            )
        if known is not None and given is not None and known.kind != given.kind:
            called = {"number": "numbers", "datetime": "dates"}
            raise ValueError(f"times are {called[given.kind]}, and those of {place} are {called[known.kind]}")


def check_columns_alike(place: str, wanted: Schema, rows: RowSource, schema: Schema) -> None:
    """Raise ValueError for rows whose columns do not match those of `wanted`, the schema of the store at `place`."""
    if rows.n_columns != wanted.n_columns:
        raise ValueError(f"X has {rows.n_columns} columns; {place} has {wanted.n_columns}")
    if rows.is_sparse != wanted.is_sparse:
        kinds = {True: "sparse", False: "dense"}
        has, needs = kinds[rows.is_sparse], kinds[wanted.is_sparse]
        raise ValueError(f"X is {has} and the rows of {place} are {needs}; pass {needs} rows")
    bases = schema.first_index, wanted.first_index
    if None not in bases and bases[0] != bases[1]:
        raise ValueError(
            f"the new rows were read from libsvm text as counting columns from {bases[0]}, those of {place} as "
            f"counting from {bases[1]}, so their columns would be shifted by one; ingest the new rows with "
            f"format=dkl.LibsvmFormat(zero_based={bases[1] == 0})"
        )
    if None not in (schema.column_names, wanted.column_names) and schema.column_names != wanted.column_names:
        raise ValueError(f"the columns {schema.column_names} are not those of {place}: {wanted.column_names}")


def _rows_by_block(source: VersionSource, given: GivenValues) -> dict[int, np.ndarray]:
    """A mask of the dropped rows of each block that loses any, from a mask of all rows or from row numbers."""
    n_rows = int(source.block_rows.sum())
    (given,) = dask.compute(given)
    gone = rows_named(given, n_rows, "rows")
    if not gone.any():
        raise ValueError("no row was named, so there is nothing to drop")
    bounds = np.concatenate([[0], np.cumsum(source.block_rows)])
    parts = {index: gone[bounds[index] : bounds[index + 1]] for index in range(source.n_blocks)}
    return {index: lost for index, lost in parts.items() if lost.any()}
