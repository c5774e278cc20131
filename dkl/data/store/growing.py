"""GrowingArray: a zarr array to which one writer appends rows, in whole chunks or shards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numcodecs
import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.buffer.cpu import Buffer
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync

from dkl.data.in_threads import Backlog
from dkl.data.pieces import Pieces
from dkl.data.store.chunks import encoded_chunk, encoded_shard
from dkl.process import usable_cores

# Compression is tried on the first `_SAMPLE_BYTES` bytes, and used if at most this share of them remains.
_SAMPLE_BYTES = 4 * 2**20
_COMPRESSED_SHARE = 0.9
# Number of shards of an array, of about 64 MiB each, that are written while the next one is filled.
_SHARDS_AT_ONCE = 2


class WritingThreads:
    """The threads of a writer, one for each core; calls that have not begun are cancelled after the ``with`` block.

    Parameters
    ----------
    at_once : int or None
        Number of chunks of an array that are encoded at a time; None is one for each thread.
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
    """Cuts rows into whole chunks, which threads encode and write, alone or in shards, while rows are appended.

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
        self._chunks = Backlog(threads.pool, threads.at_once)
        self._shards = Backlog(threads.pool, _SHARDS_AT_ONCE)
        # the chunks of the shard that is being filled, encoded or being encoded
        self._encoded: list[Future[list[np.ndarray]]] = []
        self._n_chunks = 0
        self._length = 0

    def append(self, values: np.ndarray) -> None:
        """Append rows, which may be buffered; at least once, if only no rows."""
        # not a part of the rows, which would stay in memory
        self._like = np.empty((0, *values.shape[1:]), values.dtype)
        self._rows.add(values)
        # the codecs depend on the rows of the first file, or of several if they were appended at once
        if self._array is None and (n_files := self._rows.n_rows // (self.chunk * self.shard)):
            self._array = self._create(self._rows.first(n_files * self.chunk * self.shard))
        while self._array is not None and self._rows.n_rows >= self.chunk:
            self._add_chunk(self._array, self._rows.taken(self.chunk))

    def close(self) -> None:
        """Write buffered rows, and wait."""
        # an array without rows is created too, as readers and digests need all arrays of the schema
        if self._array is None:
            self._array = self._create(self._rows.first(self._rows.n_rows) if self._rows.n_rows else self._like)
        while self._rows.n_rows:
            self._add_chunk(self._array, self._rows.taken(min(self.chunk, self._rows.n_rows)))
        if self._encoded:
            self._add_shard(self._array)
        self._chunks.finish()
        self._shards.finish()
        if self._array.shape[0] < self._length:
            self._array.resize((self._length, *self._array.shape[1:]))

    def _add_chunk(self, array: zarr.Array, values: np.ndarray) -> None:
        """Encode the rows of one chunk, the last of which may be short, in a thread; write it unless in a shard."""
        self._length += len(values)
        if self.shard == 1:
            self._chunks.add(self._write_chunk, array, self._n_chunks, values)
        else:
            self._encoded.append(self._chunks.add(encoded_chunk, values, array))
        self._n_chunks += 1
        if len(self._encoded) == self.shard:
            self._add_shard(array)

    def _add_shard(self, array: zarr.Array) -> None:
        self._shards.add(self._write_shard, array, (self._n_chunks - 1) // self.shard, self._encoded)
        self._encoded = []

    def _write_chunk(self, array: zarr.Array, number: int, values: np.ndarray) -> None:
        self._write(array, number, encoded_chunk(values, array))

    def _write_shard(self, array: zarr.Array, number: int, encoded: list[Future[list[np.ndarray]]]) -> None:
        # chunks that are not encoded yet were submitted before, so that waiting for them cannot block
        self._write(array, number, encoded_shard([chunk.result() for chunk in encoded], self.shard))

    def _write(self, array: zarr.Array, number: int, pieces: list[np.ndarray]) -> None:
        """Write a file of an array."""
        key = array.metadata.encode_chunk_key((number, *(0 for _ in array.shape[1:])))  # type: ignore[union-attr]
        self._check()
        sync(array.store.set(f"{array.path}/{key}", Buffer.from_array_like(np.concatenate(pieces))))

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
