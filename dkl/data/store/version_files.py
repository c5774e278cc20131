"""Writes and reads the versions of a store, each atomically.

Version 0 is the store itself. Version k is the folder ``versions/00000k``: a store of appended blocks, or a record of
dropped rows. Written files never change, so that readers of older versions can go on. The group ``versions`` has the
number of the newest version, so that the loss of a version is detected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dkl.data.counts import RowCounts
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.splits import NO_SPLIT, SplitSet, split_table
from dkl.data.store.commit import VERSIONS, Home, staged
from dkl.data.store.digests import arrays_digest
from dkl.data.store.location import Location
from dkl.data.store.manifest import nodes_of, read_arrays, write_arrays
from dkl.data.store.reader import FIRST_FORMAT, FORMAT, OpenStore
from dkl.data.store.sealed import Reading, check_sealed, is_sealed, read_marker, sealed, sealed_group
from dkl.errors import CorruptChunkError, StoreError, StoreReplacedError, warn_user
from dkl.protocols.source import PARTS_WITHOUT_X

_ATTEMPTS = 5
_GROUP = "rows"
Record = dict[str, np.ndarray]


def open_version(location: Location, version: int | None = None) -> tuple[StoreSource | VersionSource, dict[str, Any]]:
    """The blocks of a version (None: the newest complete one) and its sets of splits.

    Raises
    ------
    StoreError
        If there is no such version.
    CorruptChunkError
        If a version is missing, damaged, or belongs to another store.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _opened_version(location, version)
        except StoreReplacedError:
            # another writer replaced the store meanwhile: the new one is opened
            continue
    return _opened_version(location, version)


def _opened_version(location: Location, version: int | None) -> tuple[StoreSource | VersionSource, dict[str, Any]]:
    """One attempt of `open_version`: version 0, followed by the appended and dropped rows of later versions."""
    base = StoreSource(OpenStore(location))
    with Reading("the versions", location, {"token": base.token}):
        splits = base.read_splits()
        records = list(_records(location, version, base.token))
        if version is not None and version != len(records):
            raise StoreError(f"{location.place} has no version {version}; its newest is {len(records)}")
        source = VersionSource(base)
        left_out: list[str] = []
        for number, (place, facts) in enumerate(records, start=1):
            # a folder that was copied from another store would append that store's rows
            if facts["after"] != source.token:
                raise CorruptChunkError(
                    f"{place.place} does not follow version {number - 1}: it belongs to another store. "
                    + _remedy(location, number)
                )
            lost = sorted(set(facts["splits"]) - set(splits)) if number == 1 else []
            if lost:
                raise CorruptChunkError(
                    f"the splits {', '.join(map(repr, lost))} of {location.place}, which its versions refer to, are "
                    f"missing. Restore the folder '{location.given}/splits/{lost[0]}' from a copy, or split as it was "
                    f"done before: dkl.open_dataset({location.given!r}, version=0).split(..., name={lost[0]!r}, "
                    "overwrite=True)"
                )
            # a set of splits that was written for version 0 after this version does not cover the version's rows
            left_out += [n for n, split in splits.items() if facts["splits"].get(n, {}).get("digest") != split.digest]
            splits = {name: split for name, split in splits.items() if name not in left_out}
            if facts["kind"] == "dataset":
                part = StoreSource(OpenStore(place))
                columns = sorted(set(base.schema.row_columns) - set(part.schema.row_columns))
                if columns:
                    raise StoreError(
                        f"{part.place} was appended by a release of dkl that knows no {columns[0]} column, and the "
                        "rows before have one; open the version before it, open_dataset(store, version=...), and "
                        "append the rows again"
                    )
                joins = {name: facts["splits"][name]["joins"] for name in splits}
                splits = {name: split.joined_by(part.counts, joins[name]) for name, split in splits.items()}
                source = source.appended(part, number)
            else:
                dropped = _read_drop(place, facts)
                blocks = dropped["blocks"]
                splits = {n: split.recounted(blocks, dropped[f"split-{n}"]) for n, split in splits.items()}
                source = source.without(dropped, number, facts["token"])
        # at the end, as the store may have been replaced while its versions were read
        location.check_token(base.token)
    if left_out:
        warn_user(
            f"the splits {', '.join(map(repr, left_out))} of {location.place} were made for version 0 after a later "
            "version was: this version does not have them; split it by itself"
        )
    return source if records else base, splits


def version_place(location: Location, version: int) -> Location:
    """The folder of a version."""
    return location.child(VERSIONS, f"{version:06d}")


def _numbers(location: Location) -> list[int]:
    """The numbers of the versions that have a folder; folders with other names are ignored."""
    return sorted(int(name) for name in location.child(VERSIONS).folders() if re.fullmatch(r"[0-9]{6,}", name))


def newest_version(location: Location, token: str) -> int:
    """The highest number of a version, complete or not, of the store with this token; 0 without versions."""
    return max([*_numbers(location), _newest_recorded(location, token)])


def check_newest(location: Location, token: str, version: int) -> None:
    """Raise FileExistsError if a version later than `version` was finished, also if it was lost since."""
    # a folder of the next version may be that of a killed writer, which `staged` checks
    later = max(
        [0, *(number for number in _numbers(location) if number > version + 1), _newest_recorded(location, token)]
    )
    if later > version:
        raise FileExistsError(f"{location.place} has the version {later}")


def _records(location: Location, version: int | None, token: str) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Folder and facts of each version from 1 to `version`.

    If the last version is unfinished, by a writer behind a URL, it is left out.
    """
    # up to the newest with a folder or a record, so that missing ones in between are detected
    newest = newest_version(location, token)
    for number in range(1, (newest if version is None else min(version, newest)) + 1):
        place = version_place(location, number)
        facts = _facts(location, number)
        if facts is not None:
            yield place, facts
            continue
        _check_unfinished(location, number, token)
        return


def _check_unfinished(location: Location, number: int, token: str) -> None:
    """Raise CorruptChunkError for a version without a complete marker, unless it is the last and being written."""
    place, newest = version_place(location, number), newest_version(location, token)
    state = place.sound_marker().get("state")
    if number > newest or (number == newest and state == "writing" and number > _newest_recorded(location, token)):
        return
    raise CorruptChunkError(
        f"version {number} of {location.place} is lost: '{place.given}/zarr.json' is missing or damaged, and the "
        f"rows that were appended or dropped then are not known without it. {_remedy(location, number)}"
    )


def _facts(location: Location, number: int) -> dict[str, Any] | None:
    """The marker of a version, after a check; None if it is not complete."""
    place, remedy = version_place(location, number), _remedy(location, number)
    facts = read_marker(place, place.place, remedy)
    if facts is None or facts.get("state") != "complete":
        return None
    check_sealed(facts, place.place, remedy)
    if facts["format"] > FORMAT:
        raise StoreError(f"{place.place} has the newer format {facts['format']}; upgrade dkl: pip install -U dkl")
    return facts


def _remedy(location: Location, number: int) -> str:
    """The remedy for a lost version, which cannot be reconstructed."""
    return (
        f"Restore the folder '{version_place(location, number).given}' from a copy; or go on from the version before "
        f"it, in another store: dkl.create_dataset(other, dkl.open_dataset({location.given!r}, version={number - 1}))"
    )


def record_newest(location: Location, token: str, version: int) -> None:
    """Record the number of a finished version, so that its loss is detected.

    If the writer is killed before, the record of an older version remains, which is not wrong.
    """
    note = {"of": token, "newest": version}
    for place in _record_places(location):
        # the version is complete without the record, so that errors are ignored
        with suppress(OSError):
            if place.is_local:
                place.path.mkdir(exist_ok=True)
            place.write_marker(sealed(note))


def _record_places(location: Location) -> tuple[Location, Location]:
    """The places of the record: in the folder of versions, and outside of it, as that folder may be lost."""
    return location.child(VERSIONS), location.child(".newest")


def _newest_recorded(location: Location, token: str) -> int:
    """The version that `record_newest` recorded for this store; 0 without a record, or if it is damaged."""
    notes = [place.sound_marker() for place in _record_places(location)]
    sound = (note for note in notes if is_sealed(note) and note.get("of") == token)
    return max((note["newest"] for note in sound if isinstance(note.get("newest"), int)), default=0)


def check_newest_record(location: Location) -> None:
    """Raise CorruptChunkError if the record of the newest version is damaged; older releases do not write one."""
    for place in _record_places(location):
        try:
            node = json.loads(place.read("zarr.json") or b"{}")
        except ValueError as error:
            raise CorruptChunkError(f"the metadata of the group {place.place} is damaged: {error}") from error
        if isinstance(node, dict) and node.get("attributes") and not is_sealed(place.read_marker() or {}):
            raise CorruptChunkError(f"the note of the newest version in {place.place} is not what was written")


def version_facts(after: str, splits: Mapping[str, SplitSet], joins: Mapping[str, str | None]) -> dict[str, Any]:
    """The facts of a version about the one before, its token and its sets of splits, and the split of the new rows."""
    kept = {name: split for name, split in splits.items() if split.column is not None}
    return {
        "after": after,
        "splits": {name: {"digest": split.digest, "joins": joins.get(name)} for name, split in kept.items()},
    }


def drop_record(source: VersionSource, splits: Mapping[str, SplitSet], gone: Mapping[int, np.ndarray]) -> Record:
    """The record of dropped rows: for each block that loses some, the remaining rows and their counts in each split.

    Parameters
    ----------
    source : VersionSource
    splits : mapping of str to SplitSet
        The stored sets of splits.
    gone : mapping of int to ndarray of bool
        For each block that loses rows, a mask of the dropped ones among its present rows.
    """
    # masks of the remaining rows among all rows of the block before any was dropped; empty if none remains
    left: dict[int, np.ndarray] = {}
    for index, lost in gone.items():
        left[index] = np.zeros(0, bool) if lost.all() else source.rows_left(index).copy()
        if not lost.all():
            # `lost` is a mask of the present rows
            left[index][np.flatnonzero(left[index])[lost]] = False
    record: Record = {
        "blocks": np.array(list(left), np.int64),
        "kept": np.concatenate(list(left.values())).astype(np.uint8),
    }
    # counts of the remaining rows, (b, n_splits, 2 + K), for each set of splits and, with an empty name, for all rows
    reader, n_classes = source.reader(), source.schema.n_classes
    columns = {name: str(split.column) for name, split in splits.items()}
    tables: dict[str, list[np.ndarray]] = {name: [] for name in ("", *splits)}
    for index, kept in left.items():
        block = reader.load(source.ticket(index)._replace(kept=kept), (*PARTS_WITHOUT_X, *columns.values()))
        # all rows form one split with code 0
        tables[""].append(split_table(block, np.zeros(len(block.row_id), np.uint8), 1, n_classes))
        for name, split in splits.items():
            joined = np.full(len(block.row_id), split.whole.get(index, NO_SPLIT), np.uint8)
            codes = joined if index in split.whole else block.columns[columns[name]]
            tables[name].append(split_table(block, codes, len(split.names), n_classes))
    record |= RowCounts.of_table(np.array(tables.pop(""))[:, 0], n_classes).arrays()
    return record | {f"split-{name}": np.array(table) for name, table in tables.items()}


def write_drop(home: Home, place: Location, record: Record, facts: Mapping[str, Any]) -> None:
    """Write a record of dropped rows as the version at `place`."""
    with staged(place, "version", overwrite=False, home=home) as staging:
        write_arrays(staging.group.create_group(_GROUP), record)
        written = {"kind": "drop", "format": FIRST_FORMAT, "arrays": arrays_digest(record), "token": staging.token}
        staging.commit(sealed_group({**written, **facts}, staging.location, {"nodes": nodes_of(_GROUP, record)}))


def _read_drop(place: Location, facts: Mapping[str, Any]) -> Record:
    """A record of dropped rows, after comparing its digest with that in its facts."""
    with Reading(f"the dropped rows of {place.place}", place, facts):
        return read_arrays(place.group(read_only=True)[_GROUP], facts["arrays"])


def check_version(location: Location, number: int, token: str) -> None:
    """Raise CorruptChunkError if a version is lost, or its record of dropped rows is damaged."""
    place, facts = version_place(location, number), _facts(location, number)
    if facts is None:
        _check_unfinished(location, number, token)
    elif facts["kind"] == "drop":
        of_arrays = Reading(f"the metadata of the dropped rows {place.place}", place, facts)
        of_arrays.check_nodes({"nodes": nodes_of(_GROUP, _read_drop(place, facts))})
