"""How versions of a store are kept beside it, each whole or absent, and read back.

Version 0 is the store itself. Version k is the folder ``versions/00000k``: a store of the blocks that were appended, or
a record of the rows that were dropped. Nothing that was written is changed, so a reader of an older version goes on.
The group ``versions`` notes the newest version that was finished, so that one that is lost is missed.
"""

from __future__ import annotations

import json
import re
import warnings
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
from dkl.data.store.manifest import read_arrays, write_arrays
from dkl.data.store.reader import FIRST_FORMAT, FORMAT, OpenStore
from dkl.data.store.sealed import Reading, check_sealed, is_sealed, read_marker, sealed, sealed_group
from dkl.errors import CorruptChunkError, StoreError, StoreReplacedError
from dkl.protocols.source import PARTS_WITHOUT_X

_ATTEMPTS = 5
_GROUP = "rows"
Record = dict[str, np.ndarray]


def open_version(location: Location, version: int | None = None) -> tuple[StoreSource | VersionSource, dict[str, Any]]:
    """The blocks of a version (None: the newest that is whole) and the sets of splits that it has.

    Raises
    ------
    StoreError
        There is no such version.
    CorruptChunkError
        A version is missing, is not what was written, or belongs to another store.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _opened_version(location, version)
        except StoreReplacedError:
            # Another writer replaced the store while it was being opened: what is there now is opened.
            continue
    return _opened_version(location, version)


def _opened_version(location: Location, version: int | None) -> tuple[StoreSource | VersionSource, dict[str, Any]]:
    """One attempt of `open_version`: version 0, and what each later one appended or dropped, in their order."""
    base = StoreSource(OpenStore(location))
    with Reading("the versions", location, {"token": base.token}):
        splits = base.read_splits()
        records = list(_records(location, version, base.token))
        if version is not None and version != len(records):
            raise StoreError(f"{location.place} has no version {version}; its newest is {len(records)}")
        source: StoreSource | VersionSource = base
        left_out: list[str] = []
        for number, (place, facts) in enumerate(records, start=1):
            # A folder that was copied in from another store would append rows that never belonged here.
            if facts["after"] != source.token:
                raise CorruptChunkError(
                    f"{place.place} does not follow version {number - 1}: it belongs to another store. "
                    + _remedy(location, number)
                )
            whole = source if isinstance(source, VersionSource) else VersionSource(source)
            lost = sorted(set(facts["splits"]) - set(splits)) if number == 1 else []
            if lost:
                raise CorruptChunkError(
                    f"the splits {', '.join(map(repr, lost))} of {location.place}, which its versions refer to, are "
                    f"missing. Restore the folder '{location.given}/splits/{lost[0]}' from a copy, or split as it was "
                    f"done before: dkl.open_dataset({location.given!r}, version=0).split(..., name={lost[0]!r}, "
                    "overwrite=True)"
                )
            # A set of splits that was made, or made anew, for version 0 when this version was there already says
            # nothing of its rows.
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
                source = whole.appended(part, number)
            else:
                dropped = _read_drop(place, facts)
                blocks = dropped["blocks"]
                splits = {n: split.recounted(blocks, dropped[f"split-{n}"]) for n, split in splits.items()}
                source = whole.without(dropped, number, facts["token"])
        # Looked at last: the store may have been replaced while its versions were read.
        location.check_token(base.token)
    if left_out:
        warnings.warn(
            f"the splits {', '.join(map(repr, left_out))} of {location.place} were made for version 0 after a later "
            "version was: this version does not have them; split it by itself",
            UserWarning,
            stacklevel=4,
        )
    return source, splits


def version_place(location: Location, version: int) -> Location:
    """The folder of a version."""
    return location.child(VERSIONS, f"{version:06d}")


def _numbers(location: Location) -> list[int]:
    """The versions that have a folder; folders of other names are none of ours."""
    return sorted(int(name) for name in location.child(VERSIONS).folders() if re.fullmatch(r"[0-9]{6,}", name))


def newest_version(location: Location, token: str) -> int:
    """The highest number that a version of the store whose token is given has, whole or not; 0 without versions."""
    return max([*_numbers(location), _noted(location, token)])


def check_newest(location: Location, token: str, version: int) -> None:
    """Refuse to add to a version when a later one was finished; the number of one that was lost is not given again.

    Raises
    ------
    FileExistsError
    """
    # A folder of the very next number is looked at by `staged`: a writer may have left it.
    later = max([0, *(number for number in _numbers(location) if number > version + 1), _noted(location, token)])
    if later > version:
        raise FileExistsError(f"{location.place} has the version {later}")


def _records(location: Location, version: int | None, token: str) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Folder and facts of each version up to `version`, from the first on.

    A version that a writer behind a URL has not finished, the last of all, is as if it were not there.
    """
    # Up to the newest that has a folder or was noted, so that one in the middle that is gone is missed.
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
    """Refuse a version without a whole marker, unless it is the last and a writer has left it, or is at work."""
    place, newest = version_place(location, number), newest_version(location, token)
    try:
        state = (place.read_marker() or {}).get("state")
    except ValueError:
        state = None
    if number > newest or (number == newest and state == "writing" and number > _noted(location, token)):
        return
    raise CorruptChunkError(
        f"version {number} of {location.place} is lost: '{place.given}/zarr.json' is missing or damaged, and the "
        f"rows that were appended or dropped then are not known without it. {_remedy(location, number)}"
    )


def _facts(location: Location, number: int) -> dict[str, Any] | None:
    """The marker of a version, checked; None where it is not whole."""
    place, remedy = version_place(location, number), _remedy(location, number)
    facts = read_marker(place, place.place, remedy)
    if facts is None or facts.get("state") != "complete":
        return None
    check_sealed(facts, place.place, remedy)
    if facts["format"] > FORMAT:
        raise StoreError(f"{place.place} has the newer format {facts['format']}; upgrade dkl: pip install -U dkl")
    return facts


def _remedy(location: Location, number: int) -> str:
    """What to do when a version is lost: it cannot be made again from what is left."""
    return (
        f"Restore the folder '{version_place(location, number).given}' from a copy; or go on from the version before "
        f"it, in another store: dkl.create_dataset(other, dkl.open_dataset({location.given!r}, version={number - 1}))"
    )


def note_newest(location: Location, token: str, version: int) -> None:
    """Note beside the versions that one was finished: should it be lost, that is noticed.

    A writer that is killed before leaves the note of an older one, which is true as well.
    """
    note = {"of": token, "newest": version}
    for place in _notes(location):
        # The version is whole without the note, so that a failure to write it is none of the version.
        with suppress(OSError):
            if place.is_local:
                place.path.mkdir(exist_ok=True)
            place.write_marker(sealed(note))


def _notes(location: Location) -> tuple[Location, Location]:
    """Where the newest version is noted: beside the versions, and apart from them, since their folder may be lost."""
    return location.child(VERSIONS), location.child(".newest")


def _noted(location: Location, token: str) -> int:
    """The version that `note_newest` noted for this store; 0 where there is no such note, or a damaged one."""
    found = [0]
    for place in _notes(location):
        try:
            note = place.read_marker() or {}
        except ValueError:
            continue
        if is_sealed(note) and note.get("of") == token and isinstance(note.get("newest"), int):
            found.append(note["newest"])
    return max(found)


def check_note(location: Location) -> None:
    """Refuse a note of the newest version that is not what was written; there is none where an older dkl wrote.

    Raises
    ------
    CorruptChunkError
    """
    for place in _notes(location):
        try:
            node = json.loads(place.read("zarr.json") or b"{}")
        except ValueError as error:
            raise CorruptChunkError(f"the metadata of the group {place.place} is damaged: {error}") from error
        if isinstance(node, dict) and node.get("attributes") and not is_sealed(place.read_marker() or {}):
            raise CorruptChunkError(f"the note of the newest version in {place.place} is not what was written")


def version_facts(after: str, splits: Mapping[str, SplitSet], joins: Mapping[str, str | None]) -> dict[str, Any]:
    """The facts that a version keeps: the token and the sets of splits of the one before, and the split of new rows."""
    kept = {name: split for name, split in splits.items() if split.column is not None}
    return {
        "after": after,
        "splits": {name: {"digest": split.digest, "joins": joins.get(name)} for name, split in kept.items()},
    }


def drop_record(source: VersionSource, splits: Mapping[str, SplitSet], gone: Mapping[int, np.ndarray]) -> Record:
    """The record of a version that drops rows: for each block that loses some, the rows left and their counts by split.

    Parameters
    ----------
    source : VersionSource
    splits : mapping of str to SplitSet
        Those that a store keeps.
    gone : mapping of int to ndarray of bool
        Which of the rows that a block still has go.
    """
    # Which rows of these blocks are left, counted before any was dropped; nothing is noted where none is.
    left: dict[int, np.ndarray] = {}
    for index, lost in gone.items():
        left[index] = np.zeros(0, bool) if lost.all() else source.rows_left(index).copy()
        if not lost.all():
            # `lost` counts the rows that the block still had.
            left[index][np.flatnonzero(left[index])[lost]] = False
    record: Record = {
        "blocks": np.array(list(left), np.int64),
        "kept": np.concatenate(list(left.values())).astype(np.uint8),
    }
    # Counts of what is left, (b, n_splits, 2 + K), for each set of splits, and under an empty name for all rows.
    reader, n_classes = source.reader(), source.schema.n_classes
    columns = {name: str(split.column) for name, split in splits.items()}
    tables: dict[str, list[np.ndarray]] = {name: [] for name in ("", *splits)}
    for index, kept in left.items():
        block = reader.load(source.ticket(index)._replace(kept=kept), (*PARTS_WITHOUT_X, *columns.values()))
        # All rows together are as one split of the code 0.
        tables[""].append(split_table(block, np.zeros(len(block.row_id), np.uint8), 1, n_classes))
        for name, split in splits.items():
            joined = np.full(len(block.row_id), split.whole.get(index, NO_SPLIT), np.uint8)
            codes = joined if index in split.whole else block.columns[columns[name]]
            tables[name].append(split_table(block, codes, len(split.names), n_classes))
    record |= RowCounts.of_table(np.array(tables.pop(""))[:, 0], n_classes).arrays()
    return record | {f"split-{name}": np.array(table) for name, table in tables.items()}


def write_drop(home: Home, place: Location, record: Record, facts: Mapping[str, Any]) -> None:
    """Keep a record of dropped rows as the version at `place`."""
    with staged(place, "version", overwrite=False, home=home) as staging:
        write_arrays(staging.group.create_group(_GROUP), record)
        written = {"kind": "drop", "format": FIRST_FORMAT, "arrays": arrays_digest(record), "token": staging.token}
        staging.commit(sealed_group({**written, **facts}, staging.location, _drop_nodes(record)))


def _drop_nodes(record: Record) -> dict[str, list[str]]:
    """The zarr nodes of a record of dropped rows, as `sealed_group` takes them."""
    return {"nodes": [_GROUP, *(f"{_GROUP}/{name}" for name in record)]}


def _read_drop(place: Location, facts: Mapping[str, Any]) -> Record:
    """A record of dropped rows, checked against the digest in its facts."""
    with Reading(f"the dropped rows of {place.place}", place, facts):
        return read_arrays(place.group(read_only=True)[_GROUP], facts["arrays"])


def check_version(location: Location, number: int, token: str) -> None:
    """Refuse a version that is lost, or a record of dropped rows that is not what was written.

    Raises
    ------
    CorruptChunkError
    """
    place, facts = version_place(location, number), _facts(location, number)
    if facts is None:
        _check_unfinished(location, number, token)
    elif facts["kind"] == "drop":
        of_arrays = Reading(f"the metadata of the dropped rows {place.place}", place, facts)
        of_arrays.check_nodes(_drop_nodes(_read_drop(place, facts)))
