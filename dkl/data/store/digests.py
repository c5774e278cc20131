"""Digests of blocks: a crc32c of the block's number and its decoded bytes, so that no chunk passes for another."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c
import numpy as np

from dkl.protocols.block import Block


def _without_lock() -> Callable[[int, int, int], int] | None:
    """`crc32c_extend` of the C library that google_crc32c is linked with: of a checksum, an address and a length.

    The functions of google_crc32c hold the interpreter's lock, this one does not. In 16 threads that read blocks for an
    H200 they held it for two thirds of a pass, and the thread that asks the GPU for arithmetic waited for them.

    Returns
    -------
    callable or None
        None where google_crc32c is without its C library, or the system does not show the libraries behind it.
    """
    try:
        from google_crc32c import _crc32c

        function = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint32
    return function


_EXTEND = _without_lock()


def crc32c(values: np.ndarray, start: int = 0) -> int:
    """The crc32c of the bytes of an array in C order, which follow on those of the checksum `start`.

    It takes 1 s for 6 to 13 GB on one core, in which other threads go on.
    """
    values = np.ascontiguousarray(values)
    if _EXTEND is None:
        return int(google_crc32c.extend(start, _bytes(values)))
    return int(_EXTEND(start, values.ctypes.data, values.nbytes))


def block_digest(index: int, values: np.ndarray) -> int:
    """The digest of the values of one array in block `index`."""
    # It begins with the number of the block: a chunk that was copied to another place has another digest there.
    return crc32c(values, google_crc32c.value(struct.pack("<q", index)))


def _bytes(values: np.ndarray) -> Any:
    """The bytes of an array in C order, as the C extension takes them: it takes an array, but no memoryview."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def rows_digest(block: Block) -> bytes:
    """The digest of all arrays of a block."""
    X: Any = block.X
    arrays = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
    arrays += [values for values in (block.y, block.weight, block.row_id) if values is not None]
    return repr((block.n_rows, [block_digest(block.index, values) for values in arrays])).encode()


def json_digest(facts: Mapping[str, Any]) -> str:
    """The digest of JSON values, whatever the order of their keys."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{google_crc32c.value(text.encode()):08x}"


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of several named arrays."""
    crc = 0
    for name in sorted(arrays):
        crc = google_crc32c.extend(crc, f"{name} {arrays[name].shape} {arrays[name].dtype.str}".encode())
        crc = crc32c(arrays[name], crc)
    return f"{crc:08x}"
