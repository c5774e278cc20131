"""Records reads from stores for the whole process: bytes, the digest of each chunk, and absent chunks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zarr.storage import WrapperStore

from dkl.process import after_fork

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

Key = tuple[str, str, int]
"""Identifies a row of chunks: the token of its source, the name of its array, its number along the first axis."""


@dataclass(frozen=True)
class Reads:
    """A record of reads.

    Parameters
    ----------
    stored : int
        Bytes read from stores.
    decoded : int
        Bytes after decoding.
    digests : mapping of (token, name, number) to int
        The digest of each decoded row of chunks.
    absent : frozenset of (token, key)
        Requested objects that do not exist.
    """

    stored: int = 0
    decoded: int = 0
    digests: Mapping[Key, int] = field(default_factory=dict)
    absent: frozenset[tuple[str, str]] = frozenset()

    def __add__(self, other: Reads) -> Reads:
        return Reads(
            self.stored + other.stored,
            self.decoded + other.decoded,
            {**self.digests, **other.digests},
            self.absent | other.absent,
        )


class Ledger:
    """Adds up the reads of all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads = Reads()

    def add(self, reads: Reads) -> None:
        with self._lock:
            self._reads += reads

    def new_reads(self) -> Reads:
        """The reads since the last call."""
        with self._lock:
            reads, self._reads = self._reads, Reads()
        return reads


LEDGER = Ledger()
after_fork(LEDGER.__init__)  # type: ignore[misc]


class MeteredStore(WrapperStore):
    """A store that records the bytes that are read, and requested objects that do not exist."""

    def __init__(self, store: Any, token: str = "") -> None:
        super().__init__(store)
        self._token = token

    def _with_store(self, store: Any) -> MeteredStore:
        return type(self)(store, self._token)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The bytes of an object; None if it does not exist."""
        value = await self._store.get(key, prototype, byte_range)
        absent = frozenset([(self._token, key)]) if value is None else frozenset()
        LEDGER.add(Reads(stored=0 if value is None else len(value), absent=absent))
        return value
