"""Groups that vouch for themselves: their marker holds facts, the digest of these, and those of metadata files."""

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
    """Whether facts are what was written: the state is noted when a group becomes whole, after the digest."""
    kept = {name: value for name, value in marker.items() if name not in ("digest", "state")}
    return json_digest(kept) == marker.get("digest")


def sealed_group(facts: Mapping[str, Any], location: Location, nodes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The sealed facts of a group, whose metadata files have no checksum of their own.

    Parameters
    ----------
    facts : mapping
        The token of the writer among them.
    location : Location
        Of the group, as it is written.
    nodes : mapping of str to sequence of str
        The zarr nodes of the group in sets; each has a digest under its name, which older releases compare.
    """
    of_sets = {name: location.nodes_digest(of_set) for name, of_set in nodes.items()}
    node_digests = location.node_digests(node for of_set in nodes.values() for node in of_set)
    return sealed({**facts, **of_sets, "node_digests": node_digests})


def read_marker(location: Location, called: str, remedy: str = "") -> dict[str, Any] | None:
    """The marker of the group at a location; None where there is none.

    Raises
    ------
    CorruptChunkError
        There is damaged metadata; the error says what it is `called`, and the `remedy`.
    """
    try:
        return location.read_marker()
    except ValueError as error:
        raise CorruptChunkError(f"the metadata of {called} is damaged: {error}. {remedy}".rstrip()) from error


def check_sealed(marker: Mapping[str, Any], called: str, remedy: str, **expected: str) -> None:
    """Refuse a marker that is not what was written, or does not say what is expected; see `read_marker`.

    Raises
    ------
    CorruptChunkError
    """
    if not is_sealed(marker) or any(marker.get(name) != value for name, value in expected.items()):
        raise CorruptChunkError(f"the metadata of {called} is not what was written; {remedy}")


class Reading:
    """Turns whatever decoding raises into a CorruptChunkError; failures of the disk or the network keep their type.

    Where the group was moved, deleted or replaced meanwhile, that is said instead; metadata files that are not what was
    written are named.

    Parameters
    ----------
    what : str
        What is read, for messages.
    location : Location
        Of the group.
    facts : mapping
        Its marker.
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
        # a codec that a chunk was not made by may say so with an OSError
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
            # The store is damaged or out of reach itself: then what was read is to be named.
            return

    def check_nodes(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Compare the metadata files of a group with what was written; `nodes` as for `sealed_group`.

        Raises
        ------
        CorruptChunkError
            One is another; groups of the first releases have digests of some sets of files alone, or of none.
        """
        with self:
            for name, of_set in nodes.items():
                if name in self.facts and self.location.nodes_digest(of_set) != self.facts[name]:
                    raise ValueError("a file 'zarr.json' is not what was written")
