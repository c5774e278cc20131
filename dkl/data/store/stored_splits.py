"""Splits that a store keeps: uint8 codes beside the rows, committed like a dataset: whole or absent."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.splits import SplitSet
from dkl.data.store.commit import Home, staged
from dkl.data.store.digests import arrays_digest, block_digest, json_digest
from dkl.data.store.growing import GrowingArray, WritingThreads
from dkl.data.store.location import Location
from dkl.data.store.manifest import read_arrays, write_arrays
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
            arrays = {"rows": split.rows, "weights": split.weights, "digests": np.array(digests, np.uint32)}
            if split.class_weights is not None:
                arrays["class_weights"] = split.class_weights
            write_arrays(staging.group.create_group("manifest"), arrays)
            facts: dict[str, Any] = {"kind": "splits", "names": list(split.names), "codes": split.digest}
            facts["set"] = name
            facts |= {"manifest": arrays_digest(arrays), "token": staging.token}
            facts["nodes"] = staging.location.nodes_digest(_nodes(arrays))
            facts["node_digests"] = staging.location.node_digests(_nodes(arrays))
            staging.commit({**facts, "digest": json_digest(facts)})
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
    except CorruptChunkError:
        now = _facts(location)
        if facts is None or now is None or now["token"] == facts["token"]:
            raise
        # Another writer replaced it between the marker and the manifest.
        return _split_set(location, now)


def _facts(location: Location) -> dict[str, Any] | None:
    """The marker of a set of splits, checked; None when it is being written."""
    # Splits can be made again, unlike rows.
    remedy = "restore it from a copy, or remove that folder and split again (the same seed gives the same splits)"
    try:
        facts = location.read_marker()
    except ValueError as error:
        raise CorruptChunkError(
            f"the metadata of the splits {location.place} is damaged ({error}); {remedy}"
        ) from error
    if facts is None:
        raise CorruptChunkError(f"the metadata of the splits {location.place} is missing or damaged; {remedy}")
    if facts.get("state") == "writing":
        return None
    kept = {name: value for name, value in facts.items() if name not in ("digest", "state")}
    if facts.get("state") != "complete" or json_digest(kept) != facts.get("digest"):
        raise CorruptChunkError(f"the metadata of the splits {location.place} is not what was written; {remedy}")
    # Sets of the first releases do not say their name.
    name = location.url.rpartition("/")[2]
    if facts.get("set", name) != name:
        raise CorruptChunkError(
            f"the splits {location.place} were written as the set {facts['set']!r}: its folder has another name now; "
            "give it back its name"
        )
    return facts


def _split_set(location: Location, facts: dict[str, Any]) -> SplitSet:
    """The set of splits whose marker is given; its codes stay in the store."""
    arrays = _manifest(location, facts)
    return SplitSet(
        tuple(facts["names"]),
        arrays["rows"],
        arrays["weights"],
        arrays.get("class_weights"),
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
    split = _split_set(location, facts)
    if location.nodes_digest(_nodes(_manifest(location, facts))) != facts["nodes"]:
        damaged = location.damaged_nodes(facts.get("node_digests", {}))
        raise CorruptChunkError(damaged or f"a file 'zarr.json' of the splits {location.place} is not what was written")
    return split


def _nodes(arrays: Iterable[str]) -> list[str]:
    """The zarr nodes of a set of splits, whose metadata files have a digest in its marker."""
    return ["codes", "manifest", *(f"manifest/{name}" for name in arrays)]


def _manifest(location: Location, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """The counts of each block and the digests of its codes, checked; whatever decoding raises means damage."""
    try:
        return read_arrays(location.group(read_only=True)["manifest"], facts["manifest"])
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | gzip.BadGzipFile):
            raise
        fault = location.damaged_nodes(facts.get("node_digests", {})) or str(error)
        raise CorruptChunkError(f"the manifest of the splits {location.place} cannot be read: {fault}") from error


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
        path, _, self._token = column.rpartition("#")
        self._location = store.child(*path.split("/"))
        self._check_still_there()
        facts = _facts(self._location) or {}
        self._digests = _manifest(self._location, facts)["digests"]
        self._nodes: dict[str, str] = facts.get("node_digests", {})
        self._rows = rows_a_block

    def _check_still_there(self) -> None:
        # The same name may hold other splits by now, whose codes would choose other rows without a word.
        facts = _facts(self._location)
        if facts is None or facts["token"] != self._token:
            raise StoreReplacedError(
                f"the splits {self._location.place} were replaced since the dataset was opened. Open it again: "
                "dkl.open_dataset(store)"
            )

    def codes(self, index: int, n_rows: int) -> np.ndarray:
        """The codes of block `index`.

        Raises
        ------
        StoreReplacedError
            As above.
        ValueError
            They are not what was written.
        """
        start = index * self._rows
        try:
            codes = np.asarray(self._codes[start : start + n_rows])
            if block_digest(index, codes) == self._digests[index]:
                return codes
            fault = "its digest is not the one in the manifest: a chunk is missing, damaged or misplaced"
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | gzip.BadGzipFile):
                raise
            fault = str(error)
        self._check_still_there()
        raise ValueError(self._location.damaged_nodes(self._nodes) or fault)

    @cached_property
    def _codes(self) -> Any:
        # compared before any chunk is decoded: damaged metadata may ask for any memory
        if damaged := self._location.damaged_nodes({"codes": self._nodes["codes"]} if "codes" in self._nodes else {}):
            raise CorruptChunkError(damaged)
        return self._location.group(read_only=True)["codes"]
