"""Splits that a store keeps: uint8 codes beside the rows, committed like a dataset: whole or absent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from dkl.data.commit import staged
from dkl.data.digests import arrays_digest, block_digest, json_digest
from dkl.data.growing import GrowingArray
from dkl.data.location import Location
from dkl.data.manifest import read_arrays, write_arrays
from dkl.data.splits import SplitSet
from dkl.errors import CorruptChunkError

FOLDER = "splits"
"""The group that holds one group a set of splits."""


def write_split(
    store: Location, name: str, split: SplitSet, codes: Iterable[np.ndarray], chunk: int, *, shard: int, overwrite: bool
) -> SplitSet:
    """Keep a set of splits in the store at `store`.

    Parameters
    ----------
    codes : iterable of ndarray
        The codes of all stored rows, block by block.
    chunk, shard : int
        Rows of a block, and blocks of a shard.

    Raises
    ------
    FileExistsError
        A set of that name is there, and `overwrite` is False.
    OSError
        The store cannot be written to.
    """
    ensure_group(store.child(FOLDER))
    with staged(store.child(FOLDER, name), overwrite=overwrite) as staging:
        array = GrowingArray(staging.group, "codes", chunk=chunk, shard=shard)
        digests = []
        for index, values in enumerate(codes):
            array.append(values)
            digests.append(block_digest(index, values))
        array.close(np.empty(0, np.uint8))
        arrays = {"rows": split.rows, "weights": split.weights, "digests": np.array(digests, np.uint32)}
        if split.class_weights is not None:
            arrays["class_weights"] = split.class_weights
        write_arrays(staging.group.create_group("manifest"), arrays)
        facts = {"kind": "splits", "names": list(split.names), "codes": split.digest, "manifest": arrays_digest(arrays)}
        facts["token"] = staging.token
        facts["nodes"] = staging.location.nodes_digest(_nodes(arrays))
        staging.commit({**facts, "digest": json_digest(facts)})
    return replace(split, column=f"{FOLDER}/{name}", codes=None)


def ensure_group(location: Location) -> None:
    """An empty zarr group, where there is none yet."""
    if location.read("zarr.json") is None:
        zarr.create_group(location.store(read_only=False), zarr_format=3)


def read_split(location: Location) -> SplitSet | None:
    """The set of splits at `location`; None when it was never finished.

    Raises
    ------
    CorruptChunkError
        It is not what was written.
    """
    try:
        facts = location.read_marker()
    except ValueError as error:
        raise CorruptChunkError(f"the metadata of the splits {location.place} is damaged: {error}") from error
    if facts is None or facts.get("state") == "writing":
        return None
    kept = {name: value for name, value in facts.items() if name not in ("digest", "state")}
    if facts.get("state") != "complete" or json_digest(kept) != facts.get("digest"):
        raise CorruptChunkError(f"the metadata of the splits {location.place} is not what was written")
    arrays = _manifest(location, facts)
    return SplitSet(
        tuple(facts["names"]),
        arrays["rows"],
        arrays["weights"],
        arrays.get("class_weights"),
        facts["codes"],
        column="/".join(location.url.split("/")[-2:]),
    )


def whole_split(location: Location) -> SplitSet:
    """The set of splits at `location`.

    Raises
    ------
    CorruptChunkError
        It is not what was written, or was never finished.
    """
    split = read_split(location)
    facts = location.read_marker()
    if split is None or facts is None:
        raise CorruptChunkError(f"the splits {location.place} are half-written; split again with overwrite=True")
    if location.nodes_digest(_nodes(_manifest(location, facts))) != facts["nodes"]:
        raise CorruptChunkError(f"a file 'zarr.json' of the splits {location.place} is not what was written")
    return split


def _nodes(arrays: Iterable[str]) -> list[str]:
    return ["codes", "manifest", *(f"manifest/{name}" for name in arrays)]


def _manifest(location: Location, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    try:
        return read_arrays(location.group(read_only=True)["manifest"], facts["manifest"])
    except OSError:
        raise
    except Exception as error:
        raise CorruptChunkError(f"the manifest of the splits {location.place} is not what was written") from error


class StoredCodeReader:
    """Reads the codes of one set of splits, checked."""

    def __init__(self, location: Location, rows_a_block: int) -> None:
        facts = location.read_marker() or {}
        group = location.group(read_only=True)
        self._codes: Any = group["codes"]
        self._digests = read_arrays(group["manifest"], facts["manifest"])["digests"]
        self._rows = rows_a_block

    def codes(self, index: int, n_rows: int) -> np.ndarray:
        """The codes of block `index`.

        Raises
        ------
        ValueError
            They are not what was written.
        """
        start = index * self._rows
        codes = np.asarray(self._codes[start : start + n_rows])
        if block_digest(index, codes) != self._digests[index]:
            raise ValueError("its digest is not the one in the manifest: a chunk is missing, damaged or misplaced")
        return codes
