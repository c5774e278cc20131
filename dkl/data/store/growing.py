"""GrowingArray: a zarr array to which one writer appends rows, in whole chunks or shards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numcodecs
import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import Crc32cCodec, ZstdCodec

from dkl.data.in_threads import Backlog
from dkl.data.pieces import Pieces
from dkl.process import usable_cores

# Compression is tried on the first `_SAMPLE_BYTES` bytes, and used if at most this share of them remains.
_SAMPLE_BYTES = 4 * 2**20
_COMPRESSED_SHARE = 0.9
# Number of shards of an array, of about 64 MiB each, that are written while the next one is filled: zarr encodes the
# chunks of a shard side by side, and holds them twice.
_SHARDS_AT_ONCE = 1


class WritingThreads:
    """The threads of a writer, one for each core; calls that have not begun are cancelled after the ``with`` block.

    Parameters
    ----------
    at_once : int or None
        Number of chunks of an array that are written at a time; None is one for each thread.
    check : callable
        Called before each file is written; an error prevents that.
    """

    def __init__(self, at_once: int | None = None, check: Callable[[], object] = lambda: None) -> None:
        self.at_once, self.check = at_once or usable_cores(), check
        self.pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="dkl-write")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)


class GrowingArray:
    """Cuts rows into whole files, chunks or shards, which threads write while rows are appended.

    Parameters
    ----------
    group : zarr.Group
    name : str
    threads : WritingThreads
    chunk : int
        Rows of a chunk.
    shard : int
        Chunks of a shard; 1 for no shards.
    n_rows : int or None
        Number of all rows; None if unknown.
    """

    def __init__(
        self,
        group: zarr.Group,
        name: str,
        threads: WritingThreads,
        *,
        chunk: int,
        shard: int = 1,
        n_rows: int | None = None,
    ) -> None:
        self.group, self.name, self.chunk, self.shard = group, name, chunk, shard
        self.n_rows = n_rows
        self._array: zarr.Array | None = None
        self._check = threads.check
        self._rows: Pieces[np.ndarray] = Pieces()
        self._files = Backlog(threads.pool, threads.at_once if shard == 1 else _SHARDS_AT_ONCE)
        self._length = 0

    def append(self, values: np.ndarray) -> None:
        """Append rows, which may be buffered; at least once, if only no rows."""
        # not a part of the rows, which would stay in memory
        self._like = np.empty((0, *values.shape[1:]), values.dtype)
        self._rows.add(values)
        each = self.chunk * self.shard
        if n_rows := self._rows.n_rows // each * each:
            self._add_files(self._rows.taken(n_rows))

    def close(self) -> None:
        """Write buffered rows, and wait."""
        if self._rows.n_rows:
            self._add_files(self._rows.taken(self._rows.n_rows))
        elif self._array is None:
            # an array without rows is created too, as readers and digests need all arrays of the schema
            self._array = self._create(self._like)
        self._files.finish()

    def _add_files(self, values: np.ndarray) -> None:
        """Write the rows of whole files, the last of which may be short, in a thread."""
        # the codecs depend on the rows of the first file, or of several if they were appended at once
        if self._array is None:
            self._array = self._create(values)
        array = self._array
        start, self._length = self._length, self._length + len(values)
        if array.shape[0] < self._length:
            array.resize((self._length, *array.shape[1:]))
        self._files.add(self._write, array, start, values)

    def _write(self, array: zarr.Array, start: int, values: np.ndarray) -> None:
        """Write rows from row `start` of the array on."""
        self._check()
        array[start : start + len(values)] = values

    def facts(self) -> dict[str, Any]:
        """The properties with which readers compare the array's metadata."""
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
            # otherwise a chunk of fill values would be omitted, like a lost one
            config={"write_empty_chunks": True},
        )


def unlikely_value(dtype: np.dtype) -> float | int:
    """The fill value, which a lost chunk reads as: one that rows do not have, or for unsigned integers rarely have."""
    # stored floats are finite, so that NaN means a lost chunk; integers may have any value, and digests detect the loss
    if dtype.kind == "f":
        return float("nan")
    return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max) - 1


def chosen_codecs(values: np.ndarray) -> tuple[BytesBytesCodec, ...]:
    """zstd level 1 if it reduces a first sample by a tenth, followed by a crc32c of the stored bytes."""
    # unlike floats, one-hot columns and codes are compressed to a fraction
    sample = np.ascontiguousarray(values).reshape(-1).view(np.uint8)[:_SAMPLE_BYTES]
    if len(sample) and len(numcodecs.zstd.compress(sample, 1)) > _COMPRESSED_SHARE * len(sample):
        return (Crc32cCodec(),)
    return (ZstdCodec(level=1), Crc32cCodec())
