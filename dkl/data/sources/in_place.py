"""InPlaceSource: existing zarr arrays, used in place: not copied, and without checksums of dkl."""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import zarr
from dask.utils import format_bytes
from scipy import sparse

from dkl.data.checks import as_rows, stored_dtype
from dkl.data.counts import RowCounts
from dkl.data.labels import (
    TaskChoice,
    check_target_shape,
    counted_labels,
    joined_classes,
    sorted_classes,
    task_without_values,
)
from dkl.data.schema import Task
from dkl.data.soundness import check_pointers, check_unmasked, whole_csr
from dkl.data.sources.rows import BaseRows, checked_block, drop_weightless
from dkl.data.store.blocking import block_bounds, block_rows, sparse_row_bytes
from dkl.data.store.foreign import ForeignArray, digest, listed_objects, metadata_of, place_of
from dkl.data.store.ledger import Reads
from dkl.data.store.location import Location
from dkl.errors import StoreError, located
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS

# Number of sets of rows whose digests of chunks are kept: the most recently used ones.
_REMEMBERED_DIGESTS = 16
# Number of chunks that a task decodes for sparse arrays: their rows end within chunks, so that the next task decodes
# the last one again.
_CHUNKS_A_TASK = 16


def open_in_place(values: Any, options: Mapping[str, Any] | None) -> Any:
    """The zarr array or group at a path or URL; anything else unchanged.

    Raises
    ------
    FileNotFoundError
        If nothing exists there.
    """
    if not isinstance(values, str | os.PathLike):
        return values
    location = Location.of(values, options)
    if not location.exists():
        raise FileNotFoundError(f"no zarr array at {location.place} ({location.url})")
    return zarr.open(location.store(read_only=True), mode="r")


@dataclass(frozen=True, eq=False)
class CsrRows:
    """CSR rows in three arrays, in the layout of anndata.

    Parameters
    ----------
    data, indices, indptr : ForeignArray
    shape : (int, int)
    """

    data: ForeignArray
    indices: ForeignArray
    indptr: ForeignArray
    shape: tuple[int, int]

    @classmethod
    def of(cls, group: zarr.Group, token: str) -> CsrRows:
        """The rows of a zarr group.

        Raises
        ------
        StoreError
            If it is not marked as CSR rows.
        """
        if group.attrs.get("encoding-type") != "csr_matrix":
            raise StoreError(
                f"{group} is a group and not CSR rows as anndata stores them (encoding-type 'csr_matrix'); "
                "pass one of its arrays"
            )
        parts: dict[str, Any] = {name: group[name] for name in ("data", "indices", "indptr")}
        n_rows, n_columns = (int(size) for size in group.attrs["shape"])  # type: ignore[union-attr, arg-type]
        return cls(
            **{name: ForeignArray.of(name, array, token) for name, array in parts.items()}, shape=(n_rows, n_columns)
        )

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def nnz(self) -> int:
        return int(self.data.shape[0])

    @property
    def row_nbytes(self) -> float:
        return sparse_row_bytes(self.nnz, self.shape[0], stored_dtype(self.dtype))

    def rows(self, start: int, stop: int) -> sparse.csr_array:
        """Rows `start` to `stop`; only their entries are read."""
        # one pointer more than rows, for the end of the last row
        indptr = self.indptr.rows(start, stop + 1)
        # pointers count from the first row of the whole matrix; within a slice they are checked from its first entry
        before = max(int(indptr[0]), 0) if start and len(indptr) else 0
        check_pointers(indptr - before, stop - start, self.nnz - before, first_line=start)
        entries = int(indptr[0]), int(indptr[-1])
        return whole_csr(self.data.rows(*entries), self.indices.rows(*entries), indptr - indptr[0], self.shape[1])

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the largest chunks that a block may need in part."""
        return sum(array.chunk_rows * array.dtype.itemsize for array in (self.data, self.indices))

    def parts(self, rows: int) -> int:
        """The number of blocks of `rows` rows for a task, so that two tasks decode the same chunk only rarely."""
        entries = max(1.0, rows * self.nnz / max(self.shape[0], 1))
        return _power_of_two(_CHUNKS_A_TASK * self.data.chunk_rows / entries)


@dataclass(frozen=True, eq=False)
class DenseRows(ForeignArray):
    """Rows of a two-dimensional zarr array."""

    @property
    def row_nbytes(self) -> float:
        return self.shape[1] * stored_dtype(self.dtype).itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a row of chunks."""
        return min(self.chunk_rows, self.shape[0]) * self.shape[1] * self.dtype.itemsize

    def parts(self, rows: int) -> int:
        """The number of blocks of `rows` rows in a row of chunks: a power of two, all for the same task."""
        return _power_of_two(self.chunk_rows / rows)


def _power_of_two(least: float) -> int:
    """The smallest power of two that is not below `least`, as required for blocks of a task (`dkl.passes.tree_sum`)."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))


@dataclass(frozen=True)
class InPlaceTicket:
    """Rows start to stop, and their parts of the arrays in memory."""

    index: int
    start: int
    stop: int
    in_memory: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class InPlaceReader:
    """Reads rows of zarr arrays and checks them like new rows.

    Parameters
    ----------
    X : DenseRows or CsrRows
    beside : mapping of str to ForeignArray
        The arrays "y" and "weight" that are not in memory.
    classes : ndarray of shape (K,) or None
    place : str
    """

    X: DenseRows | CsrRows
    beside: Mapping[str, ForeignArray]
    classes: np.ndarray | None
    place: str

    def load(self, ticket: InPlaceTicket, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket` whose weight is not 0.

        Raises
        ------
        ValueError
            For NaN, infinity or an unknown label, with the row.
        """
        with located(f"block {ticket.index} of {self.place}"):
            n_rows = ticket.stop - ticket.start
            X = as_rows(self.X.rows(ticket.start, ticket.stop)) if "X" in parts else np.empty((n_rows, 0))
            y = self.part("y", ticket) if "y" in parts else None
            # always, since the weights determine the rows
            weight = self.part("weight", ticket)
            return drop_weightless(checked_block(ticket.index, ticket.start, X, y, weight, self.classes))

    def part(self, name: str, ticket: InPlaceTicket) -> Any:
        """The values of y or of the weights for the rows of `ticket`, as they were given; None without any."""
        if name in self.beside:
            return self.beside[name].rows(ticket.start, ticket.stop)
        return ticket.in_memory.get(name)


class InPlaceSource(BaseRows):
    """See `dkl.protocols.source.BlockSource` for the attributes.

    Before the first pass only metadata is read, and the names, sizes and times of the objects with chunks. Passes note
    the digests of chunks as they decode them, and every later pass is compared with these.

    Parameters
    ----------
    X : zarr array of shape (n, d), or group of CSR rows
    y, weight : zarr array, ndarray, or None
    classes : ndarray of shape (K,) or None
    """

    def __init__(self, X: zarr.Array | zarr.Group, y: Any, weight: Any, classes: np.ndarray | None) -> None:
        self.token = uuid.uuid4().hex
        self._rows: DenseRows | CsrRows = (
            CsrRows.of(X, self.token) if isinstance(X, zarr.Group) else DenseRows.of("X", X, self.token)
        )
        # zarr arrays are read block by block; values in memory are sent with the tickets
        given = {name: values for name, values in (("y", y), ("weight", weight)) if values is not None}
        nodes = {name: node for name, node in given.items() if isinstance(node, zarr.Array)}
        self._beside = {name: ForeignArray.of(name, node, self.token) for name, node in nodes.items()}
        for name in given.keys() - nodes.keys():
            check_unmasked(given[name], "y" if name == "y" else "sample_weight")
        self._in_memory = {name: np.asarray(values) for name, values in given.items() if name not in nodes}
        self._nodes: dict[str, zarr.Array | zarr.Group] = {"X": X, **nodes}
        self._metadata = {name: metadata_of(node) for name, node in self._nodes.items()}
        self._classes = classes
        self.is_sparse = isinstance(X, zarr.Group)
        self.n_columns, self.dtype = self._rows.shape[1], stored_dtype(self._rows.dtype)
        self._bounds, self.blocks_sharing_chunks = _cut(self._rows)
        self.n_blocks = len(self._bounds) - 1
        self.has_y, self.has_weight = y is not None, weight is not None
        self._keep: Callable[[Mapping[str, np.ndarray]], None] | None = None
        _OPEN[self.token] = self

    @cached_property
    def place(self) -> str:
        """The name of the rows in messages, with their properties."""
        facts = ["in place", "not checksummed", f"in chunks of {format_bytes(self._rows.chunk_nbytes)}"]
        if any(objects is None for objects in self._objects.values()):
            facts.append("known by its metadata alone, since its store lists no objects")
        return f"{place_of(self._nodes['X'])} ({', '.join(facts)})"

    @classmethod
    def labelled(
        cls, X: zarr.Array | zarr.Group, y: Any, weight: Any, task: TaskChoice, classes: Any
    ) -> tuple[InPlaceSource, Task | None, np.ndarray | None]:
        """The rows, their task and their sorted classes; y is read once if neither is given.

        Raises
        ------
        ValueError
            For NaN or infinity, labels of two dimensions, or targets without dimensions.
        """
        if y is None:
            return cls(X, y, weight, None), None, None
        shape = np.shape(y)
        check_target_shape(shape)
        if task_without_values(shape[:1] if shape[1:] == (1,) else shape, task, classes) == "regression":
            return cls(X, y, weight, None), "regression", None
        if classes is not None:
            known = sorted_classes(classes)
            return cls(X, y, weight, known), "classification", known
        source = cls(X, y, weight, None)
        if (found := source._found_classes(task)) is None:
            return source, "regression", None
        return source, "classification", found

    def _found_classes(self, task: TaskChoice) -> np.ndarray | None:
        """The sorted labels of all rows that count, whose weights are counted at the same time; None for numbers."""
        reader, tallies = self.reader(), []
        for ticket in map(self.ticket, range(self.n_blocks)):
            y, weight = (reader.part(name, ticket) for name in ("y", "weight"))
            # a single fraction makes it a regression, so that the remaining values need not be read
            if (found := counted_labels(y, weight, task, ticket.stop - ticket.start, first_row=ticket.start)) is None:
                return None
            tallies.append(found)
        rows = np.array([n_rows for *_, n_rows in tallies], np.int64)
        n_weightless = int(self._bounds[-1] - rows.sum())
        self._classes = classes = joined_classes((here for here, *_ in tallies), n_weightless=n_weightless)
        of_class = np.zeros((self.n_blocks, len(classes)))
        for index, (here, weights, _) in enumerate(tallies):
            of_class[index, np.searchsorted(classes, here)] = weights
        self.counts = RowCounts(rows, of_class.sum(axis=1), of_class)
        return classes

    @cached_property
    def counts(self) -> RowCounts:
        if self._classes is None and not self.has_weight:
            return RowCounts(np.diff(self._bounds), np.diff(self._bounds).astype(np.float64))
        return RowCounts.of_blocks(self.blocks_without_x(), None if self._classes is None else len(self._classes))

    @property
    def block_rows(self) -> np.ndarray:
        return self.counts.rows if self.has_weight else np.diff(self._bounds)

    @property
    def block_nbytes(self) -> int:
        rows = int(np.diff(self._bounds).max())
        return int(np.ceil(rows * (self._rows.row_nbytes + 8 * (1 + self.has_y + self.has_weight))))

    @property
    def read_nbytes(self) -> int:
        """The bytes of the chunks of a block, once as zarr decodes them and once as they are kept for other blocks."""
        beside = sum(min(array.chunk_rows, array.shape[0]) * array.dtype.itemsize for array in self._beside.values())
        return 2 * max(self._rows.chunk_nbytes, self.block_nbytes) + beside

    @cached_property
    def _objects(self) -> dict[str, dict[str, tuple[int, str]] | None]:
        """The objects with each array, at the time of the first call; None if a store cannot list them."""
        return {name: listed_objects(node) for name, node in self._nodes.items()}

    @cached_property
    def stored_nbytes(self) -> int:
        """Bytes of the objects with the arrays if their store lists them, else of the decoded rows."""
        listed = [objects for objects in self._objects.values() if objects is not None]
        stored = sum(nbytes for objects in listed for nbytes, _ in objects.values())
        decoded = int(self._rows.row_nbytes * self._rows.shape[0])
        return max(1, stored if len(listed) == len(self._objects) else decoded)

    @cached_property
    def identity(self) -> str:
        """A hash of everything but the values: rows with another shape, dtype or cut are other rows."""
        in_memory = {name: digest(values) for name, values in self._in_memory.items()}
        facts = (self._bounds.tolist(), self._classes, sorted(self._metadata.items()), in_memory)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @cached_property
    def known_as(self) -> str:
        """A hash that represents the stored values: names, sizes and times of the objects that hold them.

        If a store cannot list objects, values cannot be identified before they are read, and each handle differs.
        """
        if any(objects is None for objects in self._objects.values()):
            return self.token
        return hashlib.sha256(
            repr(sorted((n, sorted(o.items())) for n, o in self._objects.items() if o)).encode()
        ).hexdigest()

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.identity} {self.known_as}".encode()).hexdigest()

    def reader(self) -> InPlaceReader:
        """The reader of a pass.

        Raises
        ------
        StoreError
            If the arrays were resized, or written in another form, since they were opened.
        """
        for name, node in self._nodes.items():
            try:
                now = metadata_of(node)
            except (FileNotFoundError, ValueError):
                # nothing is there, or a node of another kind
                now = ""
            if now != self._metadata[name]:
                raise StoreError(
                    f"{place_of(node)} has other metadata than when it was opened: it was resized, written anew or "
                    "removed. Open it again with dkl.from_zarr, and fit again"
                )
        return InPlaceReader(self._rows, self._beside, self._classes, self.place)

    def ticket(self, index: int) -> InPlaceTicket:
        start, stop = int(self._bounds[index]), int(self._bounds[index + 1])
        return InPlaceTicket(index, start, stop, {name: values[start:stop] for name, values in self._in_memory.items()})

    @property
    def _digests(self) -> dict[tuple[str, int], int]:
        """The digest of each row of chunks that was read, by its array and its number."""
        return _digests_of(self.fingerprint)

    def expect(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add digests that another process computed, with which later reads are compared.

        Parameters
        ----------
        arrays : mapping of str to ndarray of shape (m, 2), int64
            The number and the digest of rows of chunks, by the name of their array.
        """
        for name, pairs in arrays.items():
            self._digests.update({(name, int(number)): int(value) for number, value in pairs})

    def keep_digests(self, keep: Callable[[Mapping[str, np.ndarray]], None]) -> None:
        """Call `keep` once every chunk of X was read, with the argument for `expect`."""
        self._keep = keep

    def _kept(self) -> None:
        """Pass on the digests once there is one of every chunk of X."""
        entries = self._rows if isinstance(self._rows, DenseRows) else self._rows.data
        n_chunks, name = entries.n_chunks, entries.name
        if self._keep is None or len(self._digests) < n_chunks:
            return
        if sum(array == name for array, _ in self._digests) < n_chunks:
            return
        by_name: dict[str, list[tuple[int, int]]] = {}
        for (array, number), value in sorted(self._digests.items()):
            by_name.setdefault(array, []).append((number, value))
        self._keep({array: np.array(pairs, np.int64) for array, pairs in by_name.items()})
        self._keep = None

    def compare(self, digests: Mapping[tuple[str, int], int], absent: Collection[str] = ()) -> None:
        """Add digests of chunks that were read; raises an error if they differ from earlier ones.

        Raises
        ------
        StoreError
            If a chunk has other values, or no longer exists.
        """
        for key in absent:
            # arrays that were never completely written lack some chunks, which read as the fill value
            if any(objects is not None and key in objects for objects in self._objects.values()):
                raise StoreError(
                    f"the chunk {key!r} of {self.place} was there when the array was opened, and is gone: its rows "
                    "read as the fill value. Restore it, or open the array again with dkl.from_zarr and fit again"
                )
        table = self._digests
        for (name, number), found in digests.items():
            known = table.setdefault((name, number), found)
            if known != found:
                raise StoreError(
                    f"{self._described(name, number)} of {self.place} is not what was read before: the array was "
                    "written to meanwhile. Open it again with dkl.from_zarr, and fit again"
                )
        self._kept()

    def _described(self, name: str, number: int) -> str:
        """A description of a row of chunks for messages."""
        array = {**self._beside, **vars(self._rows), "X": self._rows}[name]
        first = number * array.chunk_rows
        what = "entries" if name in ("data", "indices", "indptr") else "rows"
        last = min(first + array.chunk_rows, array.shape[0]) - 1
        return f"the chunk {number} of {name!r} ({what} {first} to {last})"

    def faults(self) -> Iterator[str]:
        """A sentence for each difference between the stored arrays and what was opened and read."""
        now = {name: listed_objects(node) for name, node in self._nodes.items()}
        for name, objects in self._objects.items():
            found = now[name]
            if objects is None or found is None:
                continue
            for key in sorted(objects.keys() | found.keys()):
                if key not in found:
                    yield f"{key!r} of {place_of(self._nodes[name])} was there when the array was opened, and is gone"
                elif objects.get(key) != found[key]:
                    yield f"{key!r} of {place_of(self._nodes[name])} was written since the array was opened"


# The sources of this process by their tokens, which passes return with digests of chunks.
_OPEN: WeakValueDictionary[str, InPlaceSource] = WeakValueDictionary()


@lru_cache(maxsize=_REMEMBERED_DIGESTS)
def _digests_of(fingerprint: str) -> dict[tuple[str, int], int]:
    """The digests for rows, shared by all handles on them, as cached blocks may come from another handle."""
    return {}


def compare_reads(reads: Reads) -> None:
    """Compare what a pass has read of arrays in place with earlier reads: `InPlaceSource.compare`."""
    found: dict[str, dict[tuple[str, int], int]] = {}
    for (token, name, number), value in reads.digests.items():
        found.setdefault(token, {})[name, number] = value
    gone: dict[str, set[str]] = {}
    for token, key in reads.absent:
        gone.setdefault(token, set()).add(key)
    for token in found.keys() | gone.keys():
        # a source that no longer exists has nothing to compare with
        if (source := _OPEN.get(token)) is not None:
            source.compare(found.get(token, {}), gone.get(token, set()))


def _cut(rows: DenseRows | CsrRows) -> tuple[np.ndarray, int]:
    """The bounds of blocks, from 0 to the number of rows, and how many blocks one task processes.

    Blocks end where chunks do. A row of chunks that is larger than a block is cut into a power of two of equal parts,
    which form a node of the tree of sums, so that a single task decodes the chunks for all.
    """
    n_rows, most = rows.shape[0], block_rows(rows.row_nbytes)
    if isinstance(rows, CsrRows):
        each = block_rows(rows.row_nbytes, n_rows)
        return block_bounds(n_rows, each), rows.parts(each)
    chunk = rows.chunk_rows
    if chunk <= most:
        return block_bounds(n_rows, most // chunk * chunk), 1
    parts = rows.parts(most)
    within = np.minimum(np.arange(parts) * -(-chunk // parts), chunk)
    starts = (np.arange(rows.n_chunks)[:, None] * chunk + within).ravel()
    return np.append(np.minimum(starts, n_rows), n_rows).astype(np.int64), parts
