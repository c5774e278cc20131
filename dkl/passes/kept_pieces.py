"""What a process keeps of its blocks for further passes: mapped rows that the next pass would make alike."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from dkl.process import after_fork


class PieceCache:
    """Pieces that further passes of one name make alike, up to a number of bytes: the first ones that come.

    All pieces are needed again before any of them is needed twice, so that none gives way to another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._kept: dict[Hashable, Any] = {}
        self._left = 0

    def get(self, name: str, key: Hashable) -> Any:
        """The piece; None where it is not kept."""
        with self._lock:
            return self._kept.get(key) if name == self._name else None

    def claim(self, name: str, nbytes: int, capacity: int) -> bool:
        """Whether there is room for so many bytes, which are then taken; pieces of another name go."""
        with self._lock:
            if name != self._name:
                self._name, self._left = name, capacity
                self._kept.clear()
            if nbytes > self._left:
                return False
            self._left -= nbytes
            return True

    def put(self, name: str, key: Hashable, piece: Any) -> None:
        """Keep a piece whose room was claimed."""
        with self._lock:
            if name == self._name:
                self._kept[key] = piece

    def clear(self) -> None:
        """Forget all pieces: the passes that share them are done."""
        with self._lock:
            self._name = ""
            self._kept.clear()


PIECES = PieceCache()
after_fork(PIECES.__init__)  # type: ignore[misc]


@dataclass(frozen=True)
class Kept:
    """What a block function keeps of its block between passes: see `dkl.protocols.records.Keeper`.

    Parameters
    ----------
    name : str
        Of the passes that share it.
    block : int
        The number of the block.
    capacity : int
        Bytes that this process may keep of all blocks.
    key : bytes
        Which rows of the block, where these differ between passes.
    """

    name: str
    block: int
    capacity: int
    key: bytes = b""

    def at(self, key: bytes) -> Kept:
        return replace(self, key=key)

    def get(self) -> Any:
        return PIECES.get(self.name, (self.block, self.key))

    def claim(self, nbytes: int) -> bool:
        return PIECES.claim(self.name, nbytes, self.capacity)

    def put(self, value: Any) -> None:
        PIECES.put(self.name, (self.block, self.key), value)
