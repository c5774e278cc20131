"""ForeignArray: a zarr array of another program; its chunks are decoded once a pass, and compared between passes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import google_crc32c
import numpy as np
import zarr
from zarr.storage import FsspecStore, LocalStore

from dkl.data.store.chunks import DirectChunks, direct_rows, read_rows
from dkl.data.store.digests import crc32c
from dkl.data.store.ledger import LEDGER, Key, MeteredStore, Reads
from dkl.errors import CorruptChunkError, located
from dkl.process import after_fork

_UNLISTED = ("http", "https")


class _Chunk:
    """The decoded rows of a chunk with rows of several blocks, and the ranges of rows that were used."""

    def __init__(self) -> None:
        self.rows: Future[np.ndarray] = Future()
        self._given: dict[int, int] = {}

    def give(self, start: int, stop: int) -> None:
        self._given[start] = max(stop, self._given.get(start, stop))

    def is_used_up(self, n_rows: int) -> bool:
        """Whether all rows were used."""
        at = 0
        for start, stop in sorted(self._given.items()):
            if start > at:
                return False
            at = max(at, stop)
        return at >= n_rows


class SharedChunks:
    """Decoded chunks with rows of several blocks: the first block decodes a chunk for all.

    A chunk is kept until all of its rows were used. At most as many chunks of an array are kept as blocks are read at
    once, since each block needs one chunk that it shares, and tasks read the blocks of a chunk in order. If a pass
    skips blocks (they are cached, or another process reads them), the least recently used chunk is removed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], OrderedDict[int, _Chunk]] = {}
        self._most = 1

    def begin_pass(self, most: int) -> None:
        """Remove all chunks, and keep at most `most` chunks of each array from now on."""
        with self._lock:
            self._kept.clear()
            self._most = most

    def get(self, key: Key, start: int, stop: int, n_rows: int, decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Rows `start` to `stop` of the `n_rows` rows of a chunk, read-only."""
        token, name, number = key
        with self._lock:
            of_array = self._kept.setdefault((token, name), OrderedDict())
            is_first = number not in of_array
            while is_first and len(of_array) >= self._most:
                of_array.popitem(last=False)
            chunk = of_array.setdefault(number, _Chunk())
            of_array.move_to_end(number)
            chunk.give(start, stop)
            if chunk.is_used_up(n_rows):
                del of_array[number]
        if is_first:
            try:
                rows = decode()
                if isinstance(rows, np.ndarray):
                    rows.flags.writeable = False
                chunk.rows.set_result(rows)
            except BaseException as error:
                with self._lock:
                    if of_array.get(number) is chunk:
                        del of_array[number]
                chunk.rows.set_exception(error)
        return chunk.rows.result()[start:stop]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows of chunks that are kept."""
        with self._lock:
            kept = [chunk.rows for of_array in self._kept.values() for chunk in of_array.values()]
        return sum(rows.result().nbytes for rows in kept if rows.done() and not rows.exception())

    def clear(self) -> None:
        """Remove all chunks."""
        with self._lock:
            self._kept.clear()


SHARED = SharedChunks()
after_fork(SHARED.__init__)  # type: ignore[misc]


@dataclass(frozen=True, eq=False)
class ForeignArray:
    """Rows of a zarr array.

    Parameters
    ----------
    name : str
        The role of the array in its source: "X", "y", "data".
    array : zarr.Array
        On a `MeteredStore`.
    token : str
        The token of the source.
    place : str
        Name of the array in messages.
    """

    name: str
    array: zarr.Array
    token: str
    place: str

    @classmethod
    def of(cls, name: str, array: zarr.Array, token: str) -> Self:
        """`array` opened again, so that its metadata are current, through a `MeteredStore`, which counts bytes read."""
        metered = zarr.open_array(MeteredStore(array.store, token), path=array.path, mode="r")
        return cls(name, metered, token, place_of(array))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def chunk_rows(self) -> int:
        """Rows of each row of chunks but the last."""
        return int(self.array.chunks[0])

    @property
    def n_chunks(self) -> int:
        """The number of rows of chunks."""
        return -(-self.shape[0] // self.chunk_rows)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`; a chunk that is needed in part is kept for the blocks with its other rows.

        Raises
        ------
        CorruptChunkError
            If a chunk cannot be decoded.
        """
        chunk, n = self.chunk_rows, self.shape[0]
        # rows of chunks from `whole` up to `end` are completely in the range
        whole, end = -(-start // chunk), self.n_chunks if stop == n else stop // chunk
        if whole >= end:
            touched = range(start // chunk, -(-stop // chunk))
            return self._joined([self._part(number, start, stop) for number in touched])
        parts = [self._part(whole - 1, start, stop)] if start < whole * chunk else []
        parts.append(self._decoded_rows(whole, end))
        if stop > end * chunk:
            parts.append(self._part(end, start, stop))
        return self._joined(parts)

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        if not parts:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, number: int, start: int, stop: int) -> np.ndarray:
        """The rows between `start` and `stop` of one row of chunks."""
        first, n_rows = number * self.chunk_rows, min(self.chunk_rows, self.shape[0] - number * self.chunk_rows)
        lowest, highest = max(start - first, 0), min(stop - first, n_rows)
        decode = partial(self._decoded_rows, number, number + 1)
        return SHARED.get((self.token, self.name, number), lowest, highest, n_rows, decode)

    def _decoded_rows(self, first: int, end: int) -> np.ndarray:
        """The decoded rows of chunks `first` to `end`, whose digests are recorded."""
        chunk = self.chunk_rows
        start, stop = first * chunk, min(end * chunk, self.shape[0])
        with located(f"rows {start} to {stop - 1} of {self.place}"):
            try:
                rows = self._values(start, stop)
            except OSError:
                raise
            except Exception as error:
                # codecs of other programs raise errors of many types
                raise CorruptChunkError(
                    f"the chunks of rows {start} to {stop - 1} of {self.place} cannot be decoded ({error}): the array "
                    "is damaged, or was written anew since it was opened; open it again"
                ) from error
        digests = {
            (self.token, self.name, number): digest(rows[(number - first) * chunk : (number - first + 1) * chunk])
            for number in range(first, end)
        }
        LEDGER.add(Reads(decoded=rows.nbytes, digests=digests))
        return rows

    @cached_property
    def _direct(self) -> DirectChunks | None:
        return DirectChunks.of(self.array)

    def _values(self, start: int, stop: int) -> np.ndarray:
        if (direct := direct_rows(self._direct, start, stop)) is not None:
            return direct
        if self.dtype.kind not in "biufc":
            return np.asarray(self.array[start:stop])
        return read_rows(self.array, start, stop)


def digest(values: np.ndarray) -> int:
    """A crc32c of the values of an array."""
    if values.dtype.hasobject or values.dtype.kind == "T":
        return int(google_crc32c.value("\0".join(map(str, values.reshape(-1).tolist())).encode()))
    return crc32c(values)


def place_of(node: zarr.Array | zarr.Group) -> str:
    """The name of an array or a group in messages."""
    return f"'{str(node.store_path).removeprefix('file://')}'"


def listed_objects(node: zarr.Array | zarr.Group) -> dict[str, tuple[int, str]] | None:
    """Bytes, and time of change or ETag, of each object of a zarr node by name; None if its store cannot list them.

    Names are relative to the root of the store, as in `MeteredStore`.
    """
    store, prefix = node.store, node.path.strip("/")
    if isinstance(store, MeteredStore):
        store = store._store
    if isinstance(store, LocalStore):
        root = store.root / prefix
        files = ((path, path.stat()) for path in root.rglob("*") if path.is_file())
        return {path.relative_to(store.root).as_posix(): (at.st_size, str(at.st_mtime_ns)) for path, at in files}
    if not isinstance(store, FsspecStore):
        return None
    fs = store.fs
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if set(protocols) & set(_UNLISTED):
        return None
    # zarr's stores use file systems in asynchronous mode; the objects are listed by one in synchronous mode
    plain = getattr(fs, "sync_fs", None) or type(fs)(
        *fs.storage_args, **{**fs.storage_options, "asynchronous": False, "skip_instance_cache": True}
    )
    base = store.path.strip("/")
    found = plain.find("/".join(filter(None, [base, prefix])), detail=True)
    marks = ("ETag", "etag", "LastModified", "last_modified", "mtime", "created")
    return {
        name.strip("/").removeprefix(base).strip("/"): (
            int(facts.get("size") or 0),
            str(next((facts[mark] for mark in marks if facts.get(mark) is not None), "")),
        )
        for name, facts in found.items()
    }


def metadata_of(node: zarr.Array | zarr.Group) -> str:
    """The present metadata of a zarr node, without attributes."""
    if isinstance(node, zarr.Group):
        opened: Any = zarr.open_group(node.store, path=node.path, mode="r")
        return repr([(name, metadata_of(array)) for name, array in sorted(opened.arrays())])
    array: Any = zarr.open_array(node.store, path=node.path, mode="r")
    facts = array.metadata.to_dict()
    return repr(sorted((str(name), repr(value)) for name, value in facts.items() if name != "attributes"))
