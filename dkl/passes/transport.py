"""How objects are sent to other processes so that their arrays are aligned there.

An array that `distributed` sends by itself arrives inside a received message, at any address. NumPy then does not use
BLAS for it, and a product with one row differs in its last bit from the same product in the first process.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import cloudpickle
import numpy as np
from scipy import sparse

from dkl.process import after_fork
from dkl.protocols.block import Block

if TYPE_CHECKING:
    from typing_extensions import Buffer

# the shared object that this process has unpacked last, with its token
_lock = threading.Lock()
_last: tuple[str, Any] = ("", None)


@dataclass(frozen=True, eq=False)
class Shared:
    """An object for many tasks: each process unpacks it once, and keeps the last one.

    Parameters
    ----------
    token : str
    content : bytes or None
        None if it is in a file that all processes see.
    path : str
    """

    token: str
    content: bytes | None
    path: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.content or b"")

    def load(self) -> Any:
        global _last
        with _lock:
            if _last[0] != self.token:
                _last = (self.token, self._unpacked())
            return _last[1]

    def _unpacked(self) -> Any:
        if self.content is not None:
            return pickle.loads(self.content)
        with open(self.path, "rb") as file:
            return pickle.load(file)


@dataclass(frozen=True, eq=False)
class Carried:
    """An object that is not copied within a process, and whose arrays are aligned after a transfer."""

    value: Any

    def load(self) -> Any:
        return self.value

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable, tuple]:
        buffers: list[pickle.PickleBuffer] = []
        # arrays are buffers beside the pickle, which Dask sends without copying them
        head = cloudpickle.dumps(self.value, protocol=5, buffer_callback=buffers.append)
        # before protocol 5 pickles have no buffers
        return _received_object, (head, *(buffers if int(protocol) >= 5 else map(bytes, buffers)))


def _received_object(head: bytes, *buffers: Buffer) -> Carried:
    """The object in the receiving process: each array in memory of its own, which the allocator has aligned."""
    return Carried(pickle.loads(head, buffers=[bytearray(buffer) for buffer in buffers]))


@after_fork
def _open_lock() -> None:
    """A new lock for a forked child, where a lock that another thread of the parent held would never be released."""
    global _lock
    _lock = threading.Lock()


def shared(value: object) -> Shared:
    """The value as bytes that many tasks of a process unpack once."""
    return Shared(uuid.uuid4().hex, cloudpickle.dumps(value))


def shared_file(value: object, folder: str) -> Shared:
    """The value in a file of `folder` that many tasks of a process read once."""
    # every value has its own file, which is written once, so that readers get the whole of it
    token = uuid.uuid4().hex
    path = f"{folder}/{token}"
    with open(path, "wb") as file:
        cloudpickle.dump(value, file)
    return Shared(token, None, path)


def unpacking(function: Callable, *args: Any) -> Any:
    """`function` of the arguments after unpacking them."""
    return function(*map(unpacked, args))


def unpacked(value: object) -> Any:
    """The unpacked value of a shared or carried one; anything else unchanged."""
    return value.load() if isinstance(value, Shared | Carried) else value


def aligned(block: Block) -> Block:
    """The block with aligned arrays; the block itself if they are aligned already."""
    # arrays from a store or of this process are aligned, and cost only this check
    if all(array.flags.aligned for array in block.arrays):
        return block
    X = block.X
    X = X.copy() if isinstance(X, sparse.csr_array) else _realigned(X)
    y, weight, held = (None if array is None else _realigned(array) for array in (block.y, block.weight, block.held))
    return replace(block, X=X, y=y, weight=weight, row_id=_realigned(block.row_id), held=held)


def _realigned(array: np.ndarray) -> np.ndarray:
    return array if array.flags.aligned else array.copy()
