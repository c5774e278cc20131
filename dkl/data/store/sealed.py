"""Sealed groups: their marker has facts, a digest of the facts, and digests of the group's metadata files."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from dkl.data.store.digests import json_digest
from dkl.data.store.location import Location
from dkl.errors import CorruptChunkError, StoreError, StoreReplacedError


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with their digest."""
    return {**facts, "digest": json_digest(facts)}


def is_sealed(marker: Mapping[str, Any]) -> bool:
    """Whether the digest of a marker's facts is right; it excludes the state, which is written later."""
    kept = {name: value for name, value in marker.items() if name not in ("digest", "state")}
    return json_digest(kept) == marker.get("digest")


def sealed_group(facts: Mapping[str, Any], location: Location, nodes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The sealed facts of a group with digests of its metadata files, which have no checksums.

    Parameters
    ----------
    facts : mapping
        With the token of the writer.
    location : Location
        The place where the group is written.
    nodes : mapping of str to sequence of str
        Sets of zarr nodes of the group; the facts get the digest of each set under its name, for older releases.
    """
    of_sets = {name: location.nodes_digest(of_set) for name, of_set in nodes.items()}
    node_digests = location.node_digests(node for of_set in nodes.values() for node in of_set)
    return sealed({**facts, **of_sets, "node_digests": node_digests})


def read_marker(location: Location, called: str, remedy: str = "") -> dict[str, Any] | None:
    """The marker of the group at a location; None if there is none.

    Raises
    ------
    CorruptChunkError
        If the metadata is damaged; `called` is the group's name in the message, followed by the `remedy`.
    """
    try:
        return location.read_marker()
    except ValueError as error:
        raise CorruptChunkError(f"the metadata of {called} is damaged: {error}. {remedy}".rstrip()) from error


def check_sealed(marker: Mapping[str, Any], called: str, remedy: str, **expected: str) -> None:
    """Raise CorruptChunkError if a marker's digest is wrong, or facts differ from the `expected` ones.

    `called` and `remedy` are as in `read_marker`.
    """
    if not is_sealed(marker) or any(marker.get(name) != value for name, value in expected.items()):
        raise CorruptChunkError(f"the metadata of {called} is not what was written; {remedy}")


class Reading:
    """Turns errors of decoding inside a block into CorruptChunkError; those of the disk or the network keep their type.

    If the group was moved, deleted or replaced meanwhile, the error says so instead; damaged metadata files are listed.

    Parameters
    ----------
    what : str
        Name of what is read, for messages.
    location : Location
        The place of the group.
    facts : mapping
        The marker of the group.
    """

    def __init__(self, what: str, location: Location, facts: Mapping[str, Any]) -> None:
        self.what, self.location, self.facts = what, location, facts

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, StoreReplacedError | MemoryError):
            return
        self._check_still_there(error)
        # codecs may raise an OSError for damaged chunks
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | gzip.BadGzipFile):
            error.add_note(f"at {self.what}")
            return
        damaged = self.location.damaged_nodes(self.facts.get("node_digests", {}))
        if isinstance(error, StoreError) and not damaged:
            return
        raise CorruptChunkError(f"{self.what} cannot be read: {error}{damaged and f'; {damaged}'}") from error

    def _check_still_there(self, error: Exception) -> None:
        try:
            self.location.check_token(self.facts["token"])
        except StoreReplacedError as gone:
            raise gone from error
        except (StoreError, OSError):
            # the store itself is damaged or not accessible: the original error is reported
            return

    def check_nodes(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Raise CorruptChunkError if a metadata file of a group is damaged; `nodes` is as for `sealed_group`.

        Groups of the first releases have digests of some sets of files only, or of none.
        """
        with self:
            for name, of_set in nodes.items():
                if name in self.facts and self.location.nodes_digest(of_set) != self.facts[name]:
                    raise ValueError("a file 'zarr.json' is not what was written")
