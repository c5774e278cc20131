"""How versions of a store are kept beside it, each whole or absent, and read back.

Version 0 is the store itself. Version k is the folder ``versions/00000k``: a store of the blocks that were appended, or
a record of the rows that were dropped. Nothing that was written is changed, so a reader of an older version goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.commit import staged
from dkl.data.digests import arrays_digest, json_digest
from dkl.data.location import Location
from dkl.data.manifest import read_arrays, write_arrays
from dkl.data.reading import FORMAT, OpenStore
from dkl.data.rows import LIGHT_PARTS
from dkl.data.splits import NO_SPLIT, SplitSet, split_table
from dkl.data.stored import StoreSource
from dkl.data.versions import VersionSource
from dkl.errors import CorruptChunkError, StoreError

FOLDER = "versions"
Record = dict[str, np.ndarray]


def open_version(location: Location, version: int | None = None) -> tuple[StoreSource | VersionSource, dict[str, Any]]:
    """The blocks of a version (None: the newest that is whole) and the sets of splits that it has.

    Raises
    ------
    StoreError
        There is no such version.
    CorruptChunkError
        A version is not what was written, or belongs to another store.
    """
    base = StoreSource(OpenStore(location))
    splits = base.read_splits()
    records = list(_records(location, version))
    if version is not None and version != len(records):
        raise StoreError(f"{location.place} has no version {version}; its newest is {len(records)}")
    if not records:
        return base, splits
    source = VersionSource(base)
    for number, (place, facts) in enumerate(records, start=1):
        if facts["after"] != source.token:
            raise CorruptChunkError(f"{place.place} does not follow version {number - 1}: it belongs to another store")
        splits = _known_splits(splits, facts["splits"], location)
        if facts["kind"] == "dataset":
            part = StoreSource(OpenStore(place))
            splits = {name: _joined(split, part, facts["splits"][name]["joins"]) for name, split in splits.items()}
            source = source.appended(part, number)
        else:
            dropped = _read_drop(place, facts)
            splits = {name: _thinned(split, dropped, name) for name, split in splits.items()}
            source = source.without(dropped, number, facts["token"])
    return source, splits


def version_place(location: Location, version: int) -> Location:
    """The folder of a version."""
    return location.child(FOLDER, f"{version:06d}")


def _records(location: Location, version: int | None) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Folder and facts of each whole version up to `version`, from the first on."""
    newest = len(location.child(FOLDER).folders()) if version is None else version
    for number in range(1, newest + 1):
        place = version_place(location, number)
        try:
            facts = place.read_marker()
        except ValueError as error:
            raise CorruptChunkError(f"the metadata of {place.place} is damaged: {error}") from error
        if facts is None or facts.get("state") != "complete":
            return
        kept = {name: value for name, value in facts.items() if name not in ("digest", "state")}
        if json_digest(kept) != facts.get("digest"):
            raise CorruptChunkError(f"the metadata of {place.place} is not what was written")
        if facts["format"] > FORMAT:
            raise StoreError(f"{place.place} has the newer format {facts['format']}; upgrade dkl: pip install -U dkl")
        yield place, facts


def _known_splits(splits: dict[str, SplitSet], recorded: Mapping[str, Any], location: Location) -> dict[str, SplitSet]:
    """The sets of splits that a version was made with."""
    known = {n: split for n, split in splits.items() if n in recorded and recorded[n]["digest"] == split.digest}
    if len(known) < len(splits):
        lost = ", ".join(map(repr, sorted(set(splits) - set(known))))
        warnings.warn(
            f"the splits {lost} of {location.place} were made for version 0 after a later version was: this version "
            "does not have them; split it by itself",
            UserWarning,
            stacklevel=4,
        )
    return known


def _joined(split: SplitSet, part: StoreSource, name: str | None) -> SplitSet:
    """A set of splits whose split `name` (None: none) has all rows of a further store."""
    code = NO_SPLIT if name is None else split.names.index(name)
    n_old, counts = len(split.rows), part.counts
    place = np.arange(len(split.names)) == code
    classes = None
    if split.class_weights is not None and counts.class_weights is not None:
        classes = np.concatenate([split.class_weights, counts.class_weights[:, None, :] * place[:, None]])
    return replace(
        split,
        rows=np.concatenate([split.rows, counts.rows[:, None] * place]),
        weights=np.concatenate([split.weights, counts.weights[:, None] * place]),
        class_weights=classes,
        whole={**split.whole, **dict.fromkeys(range(n_old, n_old + part.n_blocks), code)},
    )


def _thinned(split: SplitSet, dropped: Mapping[str, np.ndarray], name: str) -> SplitSet:
    """A set of splits after rows were dropped."""
    table, blocks = dropped[f"split-{name}"], dropped["blocks"]
    rows, weights = split.rows.copy(), split.weights.copy()
    rows[blocks], weights[blocks] = table[:, :, 0].astype(np.int64), table[:, :, 1]
    classes = None if split.class_weights is None else split.class_weights.copy()
    if classes is not None:
        classes[blocks] = table[:, :, 2:]
    return replace(split, rows=rows, weights=weights, class_weights=classes)


def version_facts(after: str, splits: Mapping[str, SplitSet], joins: Mapping[str, str | None]) -> dict[str, Any]:
    """What a version notes of the one before: its token, its sets of splits, and which split the new rows join."""
    kept = {name: split for name, split in splits.items() if split.column is not None}
    return {
        "after": after,
        "splits": {name: {"digest": split.digest, "joins": joins.get(name)} for name, split in kept.items()},
    }


def drop_record(source: VersionSource, splits: Mapping[str, SplitSet], gone: Mapping[int, np.ndarray]) -> Record:
    """What is left of the blocks that lose rows: which rows, and their counts in all and in each split.

    Parameters
    ----------
    source : VersionSource
    splits : mapping of str to SplitSet
        Those that a store keeps.
    gone : mapping of int to ndarray of bool
        Which of the rows that a block still has go.
    """
    left = {index: _left_after(source, index, lost) for index, lost in gone.items()}
    record: Record = {
        "blocks": np.array(list(left), np.int64),
        "kept": np.concatenate(list(left.values())).astype(np.uint8),
    }
    tables = _left_tables(source, splits, left)
    whole = tables.pop("")[:, 0]
    record |= {"rows": whole[:, 0].astype(np.int64), "weights": whole[:, 1]}
    if source.schema.n_classes is not None:
        record["class_weights"] = whole[:, 2:]
    return record | {f"split-{name}": table for name, table in tables.items()}


def _left_after(source: VersionSource, index: int, lost: np.ndarray) -> np.ndarray:
    """Which rows of a block are left, counted before any was dropped; nothing where none is."""
    if lost.all():
        return np.zeros(0, bool)
    left = source.rows_left(index).copy()
    left[np.flatnonzero(left)[lost]] = False
    return left


def _left_tables(source: VersionSource, splits: Mapping[str, SplitSet], left: Mapping[int, np.ndarray]) -> Record:
    """Counts of what is left, for all rows (under an empty name) and for each set of splits: (b, n_splits, 2 + K)."""
    reader, n_classes = source.reader(), source.schema.n_classes
    columns = {name: str(split.column) for name, split in splits.items()}
    tables: dict[str, list[np.ndarray]] = {name: [] for name in ("", *splits)}
    for index, kept in left.items():
        block = reader.load(source.ticket(index)._replace(kept=kept), (*LIGHT_PARTS, *columns.values()))
        size = len(block.row_id)
        tables[""].append(split_table(block, np.zeros(size, np.uint8), 1, n_classes))
        for name, split in splits.items():
            joined = np.full(size, split.whole.get(index, NO_SPLIT), np.uint8)
            codes = joined if index in split.whole else block.columns[columns[name]]
            tables[name].append(split_table(block, codes, len(split.names), n_classes))
    return {name: np.array(table) for name, table in tables.items()}


def write_drop(place: Location, record: Record, facts: Mapping[str, Any]) -> None:
    """Keep a record of dropped rows as the version at `place`."""
    with staged(place, overwrite=False) as staging:
        write_arrays(staging.group.create_group("rows"), record)
        whole = {"kind": "drop", "format": FORMAT, "arrays": arrays_digest(record), "token": staging.token, **facts}
        staging.commit({**whole, "digest": json_digest(whole)})


def _read_drop(place: Location, facts: Mapping[str, Any]) -> Record:
    try:
        return read_arrays(place.group(read_only=True)["rows"], facts["arrays"])
    except OSError:
        raise
    except Exception as error:
        raise CorruptChunkError(f"the dropped rows of {place.place} are not what was written: {error}") from error
