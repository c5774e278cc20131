"""Splits in a store: uint8 codes for all rows, in a group that is written atomically like a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.counts import RowCounts
from dkl.data.splits import SplitSet
from dkl.data.store.commit import Home, staged
from dkl.data.store.digests import arrays_digest, block_digest
from dkl.data.store.growing import GrowingArray, WritingThreads
from dkl.data.store.location import Location
from dkl.data.store.manifest import GROUP, nodes_of, read_arrays, write_arrays
from dkl.data.store.sealed import Reading, check_sealed, read_marker, sealed_group
from dkl.errors import CorruptChunkError, StoreReplacedError

FOLDER = "splits"
"""The group with one group for each set of splits."""


def column_of(name: str, token: str) -> str:
    """The name by which readers request the codes of a set of splits: its folder and the token of its writer."""
    return f"{FOLDER}/{name}#{token}"


def write_split(
    home: Home, name: str, split: SplitSet, codes: Iterable[np.ndarray], chunk: int, *, shard: int, overwrite: bool
) -> SplitSet:
    """Write a set of splits into a store.

    Parameters
    ----------
    home : Home
        The store as it was opened.
    name : str
    split : SplitSet
    codes : iterable of ndarray
        The codes of all stored rows, one array for each block.
    chunk, shard : int
        Rows of a block, and blocks of a shard.
    overwrite : bool
        Whether to replace an existing set.

    Raises
    ------
    FileExistsError
        If a set of this name exists and `overwrite` is False.
    StoreReplacedError
        If there is another store now.
    OSError
        If the store is not writable; nothing remains there.
    """
    place = home.location.child(FOLDER, name)
    try:
        with staged(place, "set of splits", overwrite=overwrite, home=home) as staging:
            # chunks have the length of those of rows, so that a block reads one chunk of codes
            digests = []
            with WritingThreads(check=staging.check_owner) as threads:
                array = GrowingArray(staging.group, "codes", threads, chunk=chunk, shard=shard)
                for index, values in enumerate(codes):
                    array.append(values)
                    digests.append(block_digest(index, values))
                array.close()
            arrays = {**split.counts.arrays(), "digests": np.array(digests, np.uint32)}
            write_arrays(staging.group.create_group(GROUP), arrays)
            facts: dict[str, Any] = {"kind": "splits", "names": list(split.names), "codes": split.digest}
            facts["set"] = name
            facts |= {"manifest": arrays_digest(arrays), "token": staging.token}
            staging.commit(sealed_group(facts, staging.location, _nodes(arrays)))
    except OSError as error:
        # the note does not apply to an existing set of this name
        if not isinstance(error, FileExistsError):
            error.add_note("splits need not be stored: ds.split(..., write=False) keeps them in memory")
        raise
    return replace(split, column=column_of(name, staging.token), codes=None)


def read_split(location: Location) -> SplitSet | None:
    """The set of splits at `location`; None while its writer is at work, and for ever if it was killed behind a URL.

    Raises
    ------
    CorruptChunkError
        If it is damaged.
    StoreReplacedError
        If it was replaced twice meanwhile.
    """
    facts = _facts(location)
    try:
        return None if facts is None else _split_set(location, facts)
    except StoreReplacedError:
        # another writer replaced it between the reads of the marker and the manifest
        now = _facts(location)
        return None if now is None else _split_set(location, now)


def _facts(location: Location) -> dict[str, Any] | None:
    """The marker of a set of splits, after a check; None if it is being written."""
    # unlike rows, splits can be drawn again
    remedy = "restore it from a copy, or remove that folder and split again (the same seed gives the same splits)"
    called = f"the splits {location.place}"
    facts = read_marker(location, called, remedy)
    if facts is None:
        raise CorruptChunkError(f"the metadata of {called} is missing or damaged; {remedy}")
    if facts.get("state") == "writing":
        return None
    check_sealed(facts, called, remedy, state="complete")
    # sets of the first releases do not have their name
    name = location.url.rpartition("/")[2]
    if facts.get("set", name) != name:
        raise CorruptChunkError(
            f"{called} were written as the set {facts['set']!r}: its folder has another name now; give it back its name"
        )
    return facts


def _split_set(location: Location, facts: dict[str, Any]) -> SplitSet:
    """The set of splits with a marker; its codes stay in the store."""
    arrays = _manifest(location, facts)
    return SplitSet(
        tuple(facts["names"]),
        RowCounts.of_arrays(arrays),
        facts["codes"],
        column=column_of(location.url.rpartition("/")[2], facts["token"]),
    )


def whole_split(location: Location) -> SplitSet:
    """The set of splits at `location`; CorruptChunkError if it is damaged or unfinished."""
    facts = _facts(location)
    if facts is None:
        raise CorruptChunkError(f"the splits {location.place} are half-written; split again with overwrite=True")
    Reading(f"the metadata of the splits {location.place}", location, facts).check_nodes(
        _nodes(_manifest(location, facts))
    )
    return _split_set(location, facts)


def _nodes(arrays: Iterable[str]) -> dict[str, list[str]]:
    """The zarr nodes of a set of splits, for `sealed_group`."""
    return {"nodes": ["codes", *nodes_of(GROUP, arrays)]}


def _manifest(location: Location, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """The counts of each block and the digests of its codes, after a check."""
    with Reading(f"the manifest of the splits {location.place}", location, facts):
        return read_arrays(location.group(read_only=True)[GROUP], facts["manifest"])


class StoredCodeReader:
    """Reads and checks the codes of one set of splits.

    Parameters
    ----------
    store : Location
    column : str
        From `column_of`.
    rows_a_block : int

    Raises
    ------
    StoreReplacedError
        If the set of splits was replaced since the dataset was opened.
    """

    def __init__(self, store: Location, column: str, rows_a_block: int) -> None:
        self._path, _, token = column.rpartition("#")
        self._location = store.child(*self._path.split("/"))
        # another set of the same name would silently select other rows
        self._location.check_token(token)
        self._facts = _facts(self._location) or {"token": token}
        self._digests = _manifest(self._location, self._facts)["digests"]
        self._rows = rows_a_block

    def codes(self, index: int, n_rows: int) -> np.ndarray:
        """The codes of block `index`.

        Raises
        ------
        StoreReplacedError
            If the set of splits was replaced.
        CorruptChunkError
            If they are damaged.
        """
        start = index * self._rows
        with Reading(f"block {index} of {self._path!r}", self._location, self._facts):
            codes = np.asarray(self._codes[start : start + n_rows])
            if block_digest(index, codes) != self._digests[index]:
                raise ValueError("its digest is not the one in the manifest: a chunk is missing, damaged or misplaced")
        return codes

    @cached_property
    def _codes(self) -> Any:
        # before any chunk is decoded, as damaged metadata may have huge shapes
        of_node = {name: digest for name, digest in self._facts.get("node_digests", {}).items() if name == "codes"}
        if self._location.damaged_nodes(of_node):
            raise ValueError("its metadata is damaged")
        return self._location.group(read_only=True)["codes"]
