"""Decodes chunks of a store directly into rows, faster than zarr."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import zarr
from numcodecs import zstd
from zarr.buffer.cpu import NDBuffer
from zarr.storage import LocalStore

from dkl.data.store.digests import crc32c
from dkl.data.store.ledger import LEDGER, MeteredStore, Reads
from dkl.plain_files import open_plain

# Bytes of the checksum at the end of a chunk, and of a shard's index; and an entry of that index: the offset and the
# bytes of a chunk.
_CHECKSUM_BYTES = 4
_ENTRY = np.dtype([("start", "<u8"), ("nbytes", "<u8")])
_KNOWN_CODECS = (["bytes"], ["bytes", "zstd"], ["bytes", "crc32c"], ["bytes", "zstd", "crc32c"])
_FILES = {"name": "default", "configuration": {"separator": "/"}}


class NotDirectError(Exception):
    """A chunk cannot be read directly: zarr must read it, or raise an error if it is absent or damaged."""


class DirectChunks:
    """Reads rows of one array of a local store without zarr.

    Supports arrays of one or two dimensions, with chunks in files of their own or in shards, with or without zstd and
    crc32c; `of` returns None for other arrays.

    Parameters
    ----------
    folder : str
        The folder of the array.
    array : zarr.Array
    codecs : sequence of str
        The names of the codecs of its chunks.
    """

    def __init__(self, folder: str, array: zarr.Array, codecs: list[str]) -> None:
        self._folder = folder
        self._dtype, self._shape, self._chunks = array.dtype, array.shape, array.chunks
        self._nbytes = int(np.prod(array.chunks)) * array.dtype.itemsize
        # number of chunks in a shard along each axis; None if each chunk is a file
        self._in_a_shard = (
            None if array.shards is None else tuple(s // c for s, c in zip(array.shards, array.chunks, strict=True))
        )
        self._compressed, self._checked = "zstd" in codecs, "crc32c" in codecs
        # number of chunks along the columns
        self._n_beside = -(-array.shape[1] // array.chunks[1]) if len(array.shape) == 2 else 1

    @classmethod
    def of(cls, array: zarr.Array) -> DirectChunks | None:
        """A reader of `array`; None if its layout is not supported."""
        store = array.store
        if isinstance(store, MeteredStore):
            store = store._store
        if not isinstance(store, LocalStore) or len(array.shape) not in (1, 2) or array.dtype.kind not in "biufc":
            return None
        metadata: Any = array.metadata.to_dict()
        if metadata.get("zarr_format") != 3 or metadata["chunk_key_encoding"] != _FILES:
            return None
        codecs = metadata["codecs"]
        if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
            shard = codecs[0]["configuration"]
            codecs = shard["codecs"]
            if shard["index_location"] != "end" or _names(shard["index_codecs"]) != ["bytes", "crc32c"]:
                return None
        # bytes are copied unchanged, which needs little-endian values; types of one byte have no order
        is_native = codecs[0].get("configuration", {}).get("endian", "little") == sys.byteorder == "little"
        if _names(codecs) not in _KNOWN_CODECS or not is_native:
            return None
        return cls(os.path.join(store.root, array.path), array, _names(codecs))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, in new memory.

        Raises
        ------
        NotDirectError
            If a chunk is absent or damaged.
        """
        chunk = self._chunks[0]
        is_last = start < stop == self._shape[0] < start + chunk and start % chunk == 0
        try:
            if is_last and self._chunks[1:] == self._shape[1:]:
                # the last rows are the beginning of their chunk, so that no second array is needed
                whole = np.empty(self._chunks, self._dtype)
                self._decode((start // chunk, 0), whole.reshape(-1).view(np.uint8))
                return whole[: stop - start]
            rows = np.empty((stop - start, *self._shape[1:]), self._dtype)
            for number in range(start // chunk, -(-stop // chunk)):
                first = number * chunk
                here = slice(max(start, first), min(stop, first + chunk))
                part = rows[here.start - start : here.stop - start]
                if part.nbytes == self._nbytes:
                    # all rows of a chunk with all columns
                    self._decode((number, 0), part.reshape(-1).view(np.uint8))
                    continue
                for beside in range(self._n_beside):
                    whole = np.empty(self._chunks, self._dtype)
                    self._decode((number, beside), whole.reshape(-1).view(np.uint8))
                    wanted = whole[here.start - first : here.stop - first]
                    if len(self._chunks) == 1:
                        part[:] = wanted
                        continue
                    left = beside * self._chunks[1]
                    part[:, left : left + self._chunks[1]] = wanted[:, : part.shape[1] - left]
        except (OSError, ValueError, RuntimeError) as error:
            raise NotDirectError(str(error)) from error
        return rows

    def _decode(self, place: tuple[int, int], target: np.ndarray) -> None:
        """Decode the chunk at a position of the grid into `target`, after checking its crc32c if it has one."""
        tail = _CHECKSUM_BYTES if self._checked else 0
        with open(self._path(place), "rb", buffering=0, opener=open_plain) as file:
            nbytes = self._seek(file, place) - tail
            if not self._compressed and nbytes != len(target):
                raise NotDirectError(f"chunk {place} has {nbytes} bytes and not {len(target)}")
            stored = np.empty(nbytes, np.uint8) if self._compressed else target
            _fill_from_file(file, stored)
            checksum = file.read(tail)
        LEDGER.add(Reads(stored=nbytes + tail))
        if tail and int.from_bytes(checksum, "little") != crc32c(stored):
            raise NotDirectError(f"chunk {place} is not what its checksum says")
        if self._compressed:
            zstd.decompress(stored, target)

    def _path(self, place: tuple[int, int]) -> str:
        each = self._in_a_shard or (1,) * len(self._shape)
        return "/".join([self._folder, "c", *(str(number // n) for number, n in zip(place, each, strict=False))])

    def _seek(self, file: Any, place: tuple[int, int]) -> int:
        """Seek the beginning of a chunk in its file, which may be a shard; returns its bytes with the checksum."""
        size = os.fstat(file.fileno()).st_size
        if self._in_a_shard is None:
            return size
        index = np.empty(self._in_a_shard, _ENTRY)
        file.seek(size - index.nbytes - _CHECKSUM_BYTES)
        content = index.reshape(-1).view(np.uint8)
        _fill_from_file(file, content)
        if int.from_bytes(file.read(_CHECKSUM_BYTES), "little") != crc32c(content):
            raise NotDirectError("the index of a shard is not what its checksum says")
        entry = index[tuple(number % n for number, n in zip(place, self._in_a_shard, strict=False))]
        # a chunk that was not written has the largest possible offset
        if int(entry["start"]) + int(entry["nbytes"]) > size:
            raise NotDirectError(f"chunk {place} is not in its shard")
        file.seek(int(entry["start"]))
        return int(entry["nbytes"])


def direct_rows(chunks: DirectChunks | None, start: int, stop: int) -> np.ndarray | None:
    """Rows read without zarr; None if zarr must read them, or raise an error about them."""
    if chunks is None:
        return None
    try:
        return chunks.rows(start, stop)
    except NotDirectError:
        return None


def read_rows(array: zarr.Array, start: int, stop: int) -> np.ndarray:
    """Rows of a zarr array, decoded into new memory that zarr need not initialize, which is 1.5 times as fast."""
    rows = np.empty((stop - start, *array.shape[1:]), array.dtype)
    if len(rows):
        array.get_basic_selection(slice(start, stop), out=NDBuffer.from_numpy_array(rows))
    return rows


def _names(codecs: Any) -> list[str]:
    return [codec["name"] for codec in codecs]


def _fill_from_file(file: Any, target: np.ndarray) -> None:
    """Fill `target` from a file, in several reads, as one returns at most 2 GiB."""
    view = memoryview(target)  # type: ignore[arg-type]
    while len(view):
        n_bytes = file.readinto(view)
        if not n_bytes:
            raise NotDirectError("a file ends too early")
        view = view[n_bytes:]
