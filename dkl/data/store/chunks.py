"""DirectChunks: chunks of a local store, decoded straight into the rows: small ones cost zarr far more around it."""

from __future__ import annotations

import os
import sys
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import zstd
from zarr.storage import LocalStore

from dkl.plain_files import open_plain

# The checksum at the end of a chunk, and of the index of a shard; an entry of that index: where a chunk begins, and
# its bytes.
_CHECKSUM_BYTES = 4
_ENTRY = np.dtype([("start", "<u8"), ("nbytes", "<u8")])
_PLAIN, _COMPRESSED = ["bytes", "crc32c"], ["bytes", "zstd", "crc32c"]
_FILES = {"name": "default", "configuration": {"separator": "/"}}


class NotDirectError(Exception):
    """Something is not as this library writes it, or is damaged: zarr reads it, or says what is wrong."""


class DirectChunks:
    """Reads rows of one array of a local store without zarr.

    Only what `GrowingArray` writes is read so: chunks of whole rows with a crc32c, behind zstd or plain, in files of
    their own or in shards. For all else `of` gives None.

    Parameters
    ----------
    folder : str
        Of the array.
    array : zarr.Array
    compressed : bool
        By zstd.
    """

    def __init__(self, folder: str, array: zarr.Array, *, compressed: bool) -> None:
        self._folder = folder
        self._dtype, self._tail = array.dtype, array.shape[1:]
        self._chunk = array.chunks[0]
        self._chunk_nbytes = int(np.prod(array.chunks)) * array.dtype.itemsize
        # Chunks of a shard; None where each chunk is a file.
        self._in_a_shard = None if array.shards is None else array.shards[0] // array.chunks[0]
        self._compressed = compressed

    @classmethod
    def of(cls, array: zarr.Array) -> DirectChunks | None:
        """A reader of `array`, where all about it is as this library writes it."""
        store = array.store
        if not isinstance(store, LocalStore):
            return None
        metadata: Any = array.metadata.to_dict()
        codecs = metadata["codecs"]
        in_shards = len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed"
        if in_shards:
            shard = codecs[0]["configuration"]
            codecs = shard["codecs"]
            if shard["index_location"] != "end" or _names(shard["index_codecs"]) != _PLAIN:
                return None
        as_written = (
            _names(codecs) in (_PLAIN, _COMPRESSED)
            and metadata["chunk_key_encoding"] == _FILES
            and array.chunks[1:] == array.shape[1:]
            # Bytes are copied as they stand: a dtype of one byte has no order.
            and codecs[0].get("configuration", {}).get("endian", "little") == sys.byteorder == "little"
        )
        if not as_written:
            return None
        return cls(os.path.join(store.root, array.path), array, compressed=_names(codecs) == _COMPRESSED)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, in fresh memory; the caller compares them with their digest.

        Raises
        ------
        NotDirectError
            A chunk is not there, or not what was written.
        """
        rows = np.empty((stop - start, *self._tail), self._dtype)
        content = rows.reshape(-1).view(np.uint8)
        row_nbytes = self._chunk_nbytes // self._chunk
        try:
            for number in range(start // self._chunk, -(-stop // self._chunk)):
                first = number * self._chunk
                here = slice(max(start, first), min(stop, first + self._chunk))
                part = content[(here.start - start) * row_nbytes : (here.stop - start) * row_nbytes]
                if len(part) == self._chunk_nbytes:
                    self._decode(number, part)
                    continue
                # A chunk that ends or begins with rows of others.
                whole = np.empty(self._chunk_nbytes, np.uint8)
                self._decode(number, whole)
                part[:] = whole[(here.start - first) * row_nbytes :][: len(part)]
        except (OSError, ValueError, RuntimeError) as error:
            raise NotDirectError(str(error)) from error
        return rows

    def _decode(self, number: int, target: np.ndarray) -> None:
        """Chunk `number` into `target`, checked by its crc32c."""
        with open(self._path(number), "rb", buffering=0, opener=open_plain) as file:
            nbytes = self._seek(file, number) - _CHECKSUM_BYTES
            if not self._compressed and nbytes != len(target):
                raise NotDirectError(f"chunk {number} has {nbytes} bytes and not {len(target)}")
            stored = np.empty(nbytes, np.uint8) if self._compressed else target
            _read(file, stored)
            checksum = file.read(_CHECKSUM_BYTES)
        if int.from_bytes(checksum, "little") != google_crc32c.value(stored):
            raise NotDirectError(f"chunk {number} is not what its checksum says")
        if self._compressed:
            zstd.decompress(stored, target)

    def _path(self, number: int) -> str:
        file = number if self._in_a_shard is None else number // self._in_a_shard
        return "/".join([self._folder, "c", str(file), *("0" for _ in self._tail)])

    def _seek(self, file: Any, number: int) -> int:
        """Go to where a chunk begins in its file; returns its bytes, those of the checksum among them."""
        size = os.fstat(file.fileno()).st_size
        if self._in_a_shard is None:
            return size
        index = np.empty(self._in_a_shard, _ENTRY)
        file.seek(size - index.nbytes - _CHECKSUM_BYTES)
        _read(file, index.view(np.uint8))
        if int.from_bytes(file.read(_CHECKSUM_BYTES), "little") != google_crc32c.value(index.view(np.uint8)):
            raise NotDirectError("the index of a shard is not what its checksum says")
        entry = index[number % self._in_a_shard]
        # A chunk that was never written begins at the largest number that there is.
        if int(entry["start"]) + int(entry["nbytes"]) > size:
            raise NotDirectError(f"chunk {number} is not in its shard")
        file.seek(int(entry["start"]))
        return int(entry["nbytes"])


def direct_rows(chunks: DirectChunks | None, start: int, stop: int) -> np.ndarray | None:
    """Rows that are read without zarr; None where zarr must read them, or say what is wrong with them."""
    if chunks is None:
        return None
    try:
        return chunks.rows(start, stop)
    except NotDirectError:
        return None


def _names(codecs: Any) -> list[str]:
    return [codec["name"] for codec in codecs]


def _read(file: Any, target: np.ndarray) -> None:
    """Fill `target`: one call to the system hands out 2 GiB at most."""
    view = memoryview(target)  # type: ignore[arg-type]
    while len(view):
        n_bytes = file.readinto(view)
        if not n_bytes:
            raise NotDirectError("a file ends too early")
        view = view[n_bytes:]
