"""GrowingArray: a zarr array that rows are appended to in whole chunks or shards by one writer."""

from __future__ import annotations

from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import Crc32cCodec, ZstdCodec

# Compression is tried on so many bytes, and used where it leaves at most this share of them.
_SAMPLE_BYTES = 4 * 2**20
_WORTH = 0.9


class GrowingArray:
    """Buffers rows to whole chunks (or shards) and writes each once.

    Parameters
    ----------
    group : zarr.Group
    name : str
    chunk : int
        Rows of a chunk.
    shard : int
        Chunks of a shard; 1 for none.
    n_rows : int or None
        Rows that will come, where that is known.
    """

    def __init__(self, group: zarr.Group, name: str, *, chunk: int, shard: int = 1, n_rows: int | None = None) -> None:
        self.group, self.name, self.chunk, self.shard = group, name, chunk, shard
        self.n_rows = n_rows
        self.length = 0
        self._array: zarr.Array | None = None
        self._pieces: list[np.ndarray] = []
        self._buffered = 0

    def append(self, values: np.ndarray) -> None:
        """Add rows; they may stay buffered."""
        self._pieces.append(values)
        self._buffered += len(values)
        unit = self.chunk * self.shard
        if self._buffered >= unit:
            joined = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)
            whole = len(joined) // unit * unit
            self._write(joined[:whole])
            # A copy, since a view would keep the whole buffer alive.
            self._pieces = [joined[whole:].copy()] if whole < len(joined) else []
            self._buffered = len(joined) - whole

    def close(self, like: np.ndarray) -> None:
        """Write what is buffered; `like` gives dtype and trailing shape where no row ever came."""
        joined = np.concatenate(self._pieces) if self._pieces else like[:0]
        self._pieces = []
        # An array without rows is made all the same: readers and digests count on each that the schema names.
        if len(joined) or self._array is None:
            self._write(joined)

    def _write(self, values: np.ndarray) -> None:
        array = self._array if self._array is not None else self._create(values)
        self._array = array
        stop = self.length + len(values)
        if array.shape[0] < stop:
            array.resize((stop, *array.shape[1:]))
        if len(values):
            array[self.length : stop] = values
        self.length = stop

    def facts(self) -> dict[str, Any]:
        """What a reader compares with the array that it finds."""
        array = self._array
        if array is None:
            return {}
        return {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "chunks": list(array.chunks),
            "shards": None if array.shards is None else list(array.shards),
            "codecs": [type(codec).__name__ for codec in array.compressors],
        }

    def _create(self, values: np.ndarray) -> zarr.Array:
        tail = values.shape[1:]
        return self.group.create_array(
            self.name,
            shape=(self.n_rows or len(values), *tail),
            dtype=values.dtype,
            chunks=(self.chunk, *(max(n, 1) for n in tail)),
            shards=None if self.shard == 1 else (self.chunk * self.shard, *(max(n, 1) for n in tail)),
            filters=None,
            compressors=chosen_codecs(values),
            fill_value=unlikely_value(values.dtype),
            # A chunk that holds nothing but the fill value must be there too, or a lost one would look like it.
            config={"write_empty_chunks": True},
        )


def unlikely_value(dtype: np.dtype) -> float | int:
    """What a lost chunk reads as: a value that rows do not have (floats, signed), or seldom have (unsigned)."""
    # Rows are finite, so that NaN says "lost". Of integers no value is impossible; there the digests alone tell.
    if dtype.kind == "f":
        return float("nan")
    return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max) - 1


def chosen_codecs(values: np.ndarray) -> tuple[BytesBytesCodec, ...]:
    """zstd level 1 where it takes off a tenth of a first sample, and a crc32c of what is stored in any case."""
    # Floats seldom compress; one-hot columns and codes do, many times over.
    sample = np.ascontiguousarray(values).reshape(-1).view(np.uint8)[:_SAMPLE_BYTES]
    if len(sample) and len(numcodecs.zstd.compress(sample, 1)) > _WORTH * len(sample):
        return (Crc32cCodec(),)
    return (ZstdCodec(level=1), Crc32cCodec())
