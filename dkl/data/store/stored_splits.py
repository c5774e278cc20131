"""Splits that a store keeps: uint8 codes beside the rows, committed like a dataset: whole or absent."""

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
from dkl.data.store.manifest import read_arrays, write_arrays
from dkl.data.store.sealed import Reading, check_sealed, read_marker, sealed_group
from dkl.errors import CorruptChunkError, StoreReplacedError

FOLDER = "splits"
"""The group that holds one group a set of splits."""


def column_of(name: str, token: str) -> str:
    """How readers ask for the codes of a set of splits: its folder, and the token of the writer who made them."""
    return f"{FOLDER}/{name}#{token}"


def write_split(
    home: Home, name: str, split: SplitSet, codes: Iterable[np.ndarray], chunk: int, *, shard: int, overwrite: bool
) -> SplitSet:
    """Keep a set of splits in a store.

    Parameters
    ----------
    home : Home
        The store as it was opened.
    codes : iterable of ndarray
        The codes of all stored rows, block by block.
    chunk, shard : int
        Rows of a block, and blocks of a shard.

    Raises
    ------
    FileExistsError
        A set of that name is there, and `overwrite` is False.
    StoreReplacedError
        Another store is there now.
    OSError
        The store cannot be written to; nothing is left there.
    """
    place = home.location.child(FOLDER, name)
    try:
        with staged(place, "set of splits", overwrite=overwrite, home=home) as staging:
            # Chunks as long as those of the rows: a block reads one chunk of codes.
            digests = []
            with WritingThreads(check=staging.check_owner) as threads:
                array = GrowingArray(staging.group, "codes", threads, chunk=chunk, shard=shard)
                for index, values in enumerate(codes):
                    array.append(values)
                    digests.append(block_digest(index, values))
                array.close(np.empty(0, np.uint8))
            arrays = {**split.counts.arrays(), "digests": np.array(digests, np.uint32)}
            write_arrays(staging.group.create_group("manifest"), arrays)
            facts: dict[str, Any] = {"kind": "splits", "names": list(split.names), "codes": split.digest}
            facts["set"] = name
            facts |= {"manifest": arrays_digest(arrays), "token": staging.token}
            staging.commit(sealed_group(facts, staging.location, _nodes(arrays)))
    except OSError as error:
        # Where splits cannot be written, they need not be; another set of that name is another matter.
        if not isinstance(error, FileExistsError):
            error.add_note("splits need not be stored: ds.split(..., write=False) keeps them in memory")
        raise
    return replace(split, column=column_of(name, staging.token), codes=None)


def read_split(location: Location) -> SplitSet | None:
    """The set of splits at `location`; None when its writer was stopped (behind a URL) or is at work.

    Raises
    ------
    CorruptChunkError
        It is not what was written.
    """
    facts = _facts(location)
    try:
        return None if facts is None else _split_set(location, facts)
    except StoreReplacedError:
        # Another writer replaced it between the marker and the manifest.
        now = _facts(location)
        return None if now is None else _split_set(location, now)


def _facts(location: Location) -> dict[str, Any] | None:
    """The marker of a set of splits, checked; None when it is being written."""
    # Splits can be made again, unlike rows.
    remedy = "restore it from a copy, or remove that folder and split again (the same seed gives the same splits)"
    called = f"the splits {location.place}"
    facts = read_marker(location, called, remedy)
    if facts is None:
        raise CorruptChunkError(f"the metadata of {called} is missing or damaged; {remedy}")
    if facts.get("state") == "writing":
        return None
    check_sealed(facts, called, remedy, state="complete")
    # Sets of the first releases do not say their name.
    name = location.url.rpartition("/")[2]
    if facts.get("set", name) != name:
        raise CorruptChunkError(
            f"{called} were written as the set {facts['set']!r}: its folder has another name now; give it back its name"
        )
    return facts


def _split_set(location: Location, facts: dict[str, Any]) -> SplitSet:
    """The set of splits whose marker is given; its codes stay in the store."""
    arrays = _manifest(location, facts)
    return SplitSet(
        tuple(facts["names"]),
        RowCounts.of_arrays(arrays),
        facts["codes"],
        column=column_of(location.url.rpartition("/")[2], facts["token"]),
    )


def whole_split(location: Location) -> SplitSet:
    """The set of splits at `location`.

    Raises
    ------
    CorruptChunkError
        It is not what was written, or was never finished.
    """
    facts = _facts(location)
    if facts is None:
        raise CorruptChunkError(f"the splits {location.place} are half-written; split again with overwrite=True")
    Reading(f"the metadata of the splits {location.place}", location, facts).check_nodes(
        _nodes(_manifest(location, facts))
    )
    return _split_set(location, facts)


def _nodes(arrays: Iterable[str]) -> dict[str, list[str]]:
    """The zarr nodes of a set of splits, as `sealed_group` takes them."""
    return {"nodes": ["codes", "manifest", *(f"manifest/{name}" for name in arrays)]}


def _manifest(location: Location, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """The counts of each block and the digests of its codes, checked."""
    with Reading(f"the manifest of the splits {location.place}", location, facts):
        return read_arrays(location.group(read_only=True)["manifest"], facts["manifest"])


class StoredCodeReader:
    """Reads the codes of one set of splits, checked.

    Parameters
    ----------
    store : Location
    column : str
        What `column_of` says.
    rows_a_block : int

    Raises
    ------
    StoreReplacedError
        The set of splits was replaced since the dataset was opened.
    """

    def __init__(self, store: Location, column: str, rows_a_block: int) -> None:
        self._path, _, token = column.rpartition("#")
        self._location = store.child(*self._path.split("/"))
        # The same name may hold other splits by now, whose codes would choose other rows without a word.
        self._location.check_token(token)
        self._facts = _facts(self._location) or {"token": token}
        self._digests = _manifest(self._location, self._facts)["digests"]
        self._rows = rows_a_block

    def codes(self, index: int, n_rows: int) -> np.ndarray:
        """The codes of block `index`.

        Raises
        ------
        StoreReplacedError
            As above.
        CorruptChunkError
            They are not what was written.
        """
        start = index * self._rows
        with Reading(f"block {index} of {self._path!r}", self._location, self._facts):
            codes = np.asarray(self._codes[start : start + n_rows])
            if block_digest(index, codes) != self._digests[index]:
                raise ValueError("its digest is not the one in the manifest: a chunk is missing, damaged or misplaced")
        return codes

    @cached_property
    def _codes(self) -> Any:
        # compared before any chunk is decoded: damaged metadata may ask for any memory
        of_node = {name: digest for name, digest in self._facts.get("node_digests", {}).items() if name == "codes"}
        if self._location.damaged_nodes(of_node):
            raise ValueError("its metadata is damaged")
        return self._location.group(read_only=True)["codes"]
