"""Digests of blocks: a crc32c of the block's number and decoded bytes, which detects damaged and misplaced chunks."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c
import numpy as np


def _without_lock() -> Callable[[int, int, int], int] | None:
    """`crc32c_extend` of the C library behind google_crc32c, a function of a checksum, an address and a length.

    It releases the interpreter's lock, unlike the functions of google_crc32c, which held it for two thirds of a pass in
    which 16 threads read blocks for an H200, while the thread that starts the GPU's kernels waited.

    Returns
    -------
    callable or None
        None if google_crc32c has no C library, or the library's functions are not accessible.
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
    """The crc32c of the bytes of an array in C order, appended to the bytes whose checksum is `start`.

    One core processes 6 to 13 GB/s; other threads can run meanwhile.
    """
    values = np.ascontiguousarray(values)
    if _EXTEND is None:
        return int(google_crc32c.extend(start, _bytes(values)))
    return int(_EXTEND(start, values.ctypes.data, values.nbytes))


def block_digest(index: int, values: np.ndarray) -> int:
    """The digest of the values of one array in block `index`."""
    # with the number of the block, so that the digest of a chunk differs at another place
    return crc32c(values, google_crc32c.value(struct.pack("<q", index)))


def _bytes(values: np.ndarray) -> Any:
    """The bytes of an array in C order as an array, since the C extension does not accept memoryviews."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


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
