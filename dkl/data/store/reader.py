"""Reads stores: the stores that a process has open, the small reader that passes broadcast, and checks of all reads."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from scipy import sparse

from dkl.data.schema import RowColumn, Schema
from dkl.data.soundness import whole_csr
from dkl.data.sources.rows import drop_weightless
from dkl.data.store.abandoned import put_back
from dkl.data.store.block_arrays import CSR_PARTS, STORED_NAMES, array_names, row_column_names
from dkl.data.store.chunks import DirectChunks, direct_rows, read_rows
from dkl.data.store.digests import block_digest
from dkl.data.store.ledger import LEDGER, MeteredStore, Reads
from dkl.data.store.location import Location
from dkl.data.store.manifest import GROUP, Manifest, nodes_of, read_arrays
from dkl.data.store.sealed import Reading, check_sealed, read_marker
from dkl.data.store.stored_splits import StoredCodeReader
from dkl.errors import StoreError, StoreReplacedError, located
from dkl.process import after_fork
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS

FORMAT = 3
"""The newest version of the layout that this release reads."""
TEXT_FORMAT, CODE_FORMAT, FIRST_FORMAT = 3, 2, 1
"""Formats of stores with free text, of those with codes, and of all others: older releases, which would take codes or
free text for numbers, refuse the newer formats."""
TEXTS = "texts"
"""The group with the directions of free text."""

# Number of stores that a process keeps open.
_MOST_OPEN = 16


def read_facts(location: Location) -> dict[str, Any]:
    """The metadata of the dataset at `location`.

    Raises
    ------
    FileNotFoundError
        If nothing exists there.
    StoreError
        If it is not a dataset of dkl, is incomplete or damaged, or has a newer format.
    """
    facts = read_marker(location, location.place)
    if facts is None:
        put_back(location)
        facts = read_marker(location, location.place)
    if facts is None:
        if not (location.path.exists() if location.is_local else location.exists()):
            remedy = "write one with dkl.ingest or dkl.create_dataset"
            if location.url.startswith("memory://"):
                remedy = (
                    "only the process that wrote it sees memory://; use threads, or a folder or URL that workers can "
                    "read"
                )
            raise FileNotFoundError(f"no dataset at {location.place} ({location.url}); {remedy}")
        raise StoreError(_not_a_dataset_message(location))
    if facts.get("state") != "complete":
        raise StoreError(
            f"{location.place} is half-written: its writer was stopped or is at work; creating it again replaces it"
        )
    # before the digest, which a newer format may compute in another way
    newer = facts.get("format")
    if isinstance(newer, int) and newer > FORMAT:
        raise StoreError(
            f"{location.place} has the newer format {newer} of dkl {facts.get('written_by')}; this dkl reads formats "
            f"up to {FORMAT}. Upgrade dkl: pip install -U dkl"
        )
    if facts.get("kind") == "model":
        raise StoreError(
            f"{location.place} is a model, not a dataset; open it with dkl.load_model, in the shell dkl report"
        )
    check_sealed(facts, location.place, "create the dataset again", kind="dataset")
    return facts


def _not_a_dataset_message(location: Location) -> str:
    """The error message for something that is not a store, with the remedy for files of rows, or for zarr arrays."""
    named = location.place
    is_zarr = location.is_local and any((location.path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))
    if location.is_local and not is_zarr:
        shown = location.given
        return (
            f"{named} is not a dataset of dkl: rows in files (CSV, Parquet, libsvm, npz) are read into one by "
            f"dkl.ingest({shown!r}, 'rows.zarr', target=COLUMN); in the shell dkl fit {shlex.quote(shown)} model.zarr "
            f"--target COLUMN reads them and fits a model, and dkl ingest {shlex.quote(shown)} rows.zarr --target "
            "COLUMN reads them alone"
        )
    return f"{named} is not a dataset of dkl (it has no mark of one); for arrays that exist use dkl.from_zarr"


def all_nodes(schema: Schema, manifest: Manifest, has_texts: bool) -> dict[str, list[str]]:
    """The zarr nodes of a store as needed by `sealed_group`, with separate sets for row columns and free text."""
    names = [STORED_NAMES.get(name, name) for name in array_names(schema)]
    nodes = {"nodes": [*names, *(["X"] if schema.is_sparse else []), *nodes_of(GROUP, manifest.arrays())]}
    if schema.row_columns:
        nodes["row_column_nodes"] = list(row_column_names(schema))
    if has_texts:
        from dkl.data.columns.free_text import stored_arrays

        nodes["text_nodes"] = nodes_of(TEXTS, stored_arrays(schema.encoding.directions))
    return nodes


class OpenStore:
    """An open dataset: metadata and manifest are in memory, arrays are opened at the first access.

    Parameters
    ----------
    location : Location
    facts : mapping or None
        The metadata, if its writer opens the store before others see it; None reads and checks it.
    """

    def __init__(self, location: Location, facts: dict[str, Any] | None = None) -> None:
        self.location = location
        self.facts = read_facts(location) if facts is None else facts
        self.token: str = self.facts["token"]
        self.rows_a_block: int = self.facts["rows_a_block"]
        with self.reading("the metadata"):
            codecs = [name for array in self.facts["arrays"].values() for name in array["codecs"]]
            counts = [self.facts[name] for name in ("format", "rows_a_block", "stored_nbytes")]
            nodes = self.facts.get("node_digests", {})
            has_texts = all(isinstance(text, str) for text in (self.token, *codecs, *nodes, *nodes.values()))
            if not has_texts or not all(type(count) is int and count > 0 for count in counts):
                raise ValueError("a fact is of another type, or smaller, than any writer leaves")
            # stores without groups and times lack this entry
            named = self.facts.get("row_columns", {})
            columns = {role: RowColumn(known["name"], known["kind"], role) for role, known in named.items()}
            schema = Schema.from_json(self.facts["schema"])
            # what is read is counted
            self.group = zarr.open_group(MeteredStore(location.store(read_only=True)), mode="r", zarr_format=3)
            if "texts" in self.facts:
                from dkl.data.columns.free_text import directions_from

                encoding: Any = schema.encoding
                directions = directions_from(read_arrays(self.group[TEXTS], self.facts["texts"]), encoding.text_names)
                schema = replace(schema, encoding=encoding.with_directions(directions))
            self.schema = replace(schema, row_columns=columns, held_by=self.facts.get("held_by"))
            self.manifest = Manifest.read(self.group, self.facts["manifest"])
        self._arrays: dict[str, zarr.Array] = {}
        self._chunks: dict[str, DirectChunks | None] = {}
        self._codes: dict[str, StoredCodeReader] = {}

    def reading(self, what: str) -> Reading:
        """A context in which errors of decoding are raised as damage of `what`, or as a removed store."""
        return Reading(f"{what} of {self.location.place}", self.location, self.facts)

    def array(self, name: str) -> zarr.Array:
        """One array, after comparing its metadata with the store's facts."""
        if name not in self._arrays:
            with self.reading(f"the metadata of '{name}'"):
                array: Any = self.group[STORED_NAMES.get(name, name)]
                wanted = self.facts["arrays"][name]
                stored = {"dtype": array.dtype.str, "shape": list(array.shape), "chunks": list(array.chunks)}
                stored["shards"] = None if array.shards is None else list(array.shards)
                if any(stored[fact] != wanted.get(fact) for fact in stored):
                    raise ValueError(f"expected {wanted}, found {stored}")
            self._chunks[name] = DirectChunks.of(array)
            self._arrays[name] = array
        return self._arrays[name]

    def values(self, name: str, index: int) -> np.ndarray:
        """The part of an array in block `index`, after comparing its digest; CorruptChunkError if it is damaged."""
        array = self.array(name)
        start, stop = self._range(name, index)
        digest = self.manifest.digests[name][index]
        values = direct_rows(self._chunks[name], start, stop)
        if values is not None and block_digest(index, values) == digest:
            LEDGER.add(Reads(decoded=values.nbytes))
            return values
        with self.reading(f"block {index} of '{name}'"):
            values = read_rows(array, start, stop)
            LEDGER.add(Reads(decoded=values.nbytes))
            # zarr's checksum detects flipped bits; this digest also detects missing, old and misplaced chunks
            if block_digest(index, values) != digest:
                raise ValueError("its digest is not the one in the manifest: a chunk is missing, damaged or misplaced")
        return values

    def _range(self, name: str, index: int) -> tuple[int, int]:
        """The first and the last position, exclusive, of a block in an array: entries of CSR data, else rows."""
        if name in ("X/data", "X/indices") and self.manifest.entries is not None:
            return int(self.manifest.entries[index]), int(self.manifest.entries[index + 1])
        start = index * self.rows_a_block
        return start, start + int(self.manifest.stored_rows[index])

    def block(self, index: int, parts: tuple[str, ...]) -> Block:
        """Block `index` as stored, with row ids, weights and `parts`."""
        # row ids and weights are always read, as they determine the rows
        row_id = self.values("row_id", index)
        y = self._targets(index) if "y" in parts and self.schema.task is not None else None
        weight = self.values("weight", index) if self.schema.has_weight else None
        X = self._rows(index) if "X" in parts else np.empty((len(row_id), 0))
        columns = {name: self._column(name, index) for name in parts if name not in PARTS}
        return Block(index, X, y, weight, row_id, columns)

    def _column(self, name: str, index: int) -> np.ndarray:
        return self.values(name, index) if name in self.schema.row_columns else self.codes(name, index)

    def _targets(self, index: int) -> np.ndarray:
        # codes are stored as int32 and returned as int64, NumPy's type of indices
        y = self.values("y", index)
        return y.astype(np.int64) if self.schema.n_classes is not None else y

    def _rows(self, index: int) -> np.ndarray | sparse.csr_array:
        if not self.schema.is_sparse:
            return self.values("X", index)
        return self.csr_rows(index, *(self.values(name, index) for name in CSR_PARTS))

    def csr_rows(self, index: int, data: np.ndarray, indices: np.ndarray, starts: np.ndarray) -> sparse.csr_array:
        """The sparse rows of block `index` from their stored parts.

        Raises
        ------
        CorruptChunkError
            If indices or pointers are out of range: older releases wrote such rows without a check.
        """
        first, last = self._range("X/data", index)
        indptr = np.append(starts, last) - first
        with self.reading(f"block {index} of 'X'"):
            rows = whole_csr(data, indices, indptr.astype(np.int32), self.schema.n_columns)
        # the writer has sorted and summed the entries; SciPy would check all of them
        rows.has_canonical_format = True
        return rows

    def check_nodes(self) -> None:
        """Raise CorruptChunkError if the metadata of a zarr node is damaged."""
        has_texts = "text_nodes" in self.facts
        self.reading("the metadata of the arrays").check_nodes(all_nodes(self.schema, self.manifest, has_texts))

    def check_csr(self) -> None:
        """Raise CorruptChunkError if the shape or the last pointer, which only other readers of CSR use, are wrong."""
        with self.reading("the layout of 'X'"):
            last = int(np.asarray(self.array("X/indptr")[-1:])[0])
            shape = self.group["X"].attrs["shape"]
            entries = 0 if self.manifest.entries is None else int(self.manifest.entries[-1])
            if last != entries or shape != [self.facts["n_rows"], self.schema.n_columns]:
                raise ValueError(f"its last pointer is {last} for {entries} entries, its shape {shape}")

    def codes(self, name: str, index: int) -> np.ndarray:
        """The split codes of the stored rows of a block, after a check; `name` is from `stored_splits.column_of`."""
        if name not in self._codes:
            self._codes[name] = StoredCodeReader(self.location, name, self.rows_a_block)
        return self._codes[name].codes(index, int(self.manifest.stored_rows[index]))


# The stores that this process has open, by place and token, the least recently used first.
_open: OrderedDict[tuple[Any, str], OpenStore] = OrderedDict()
_lock = threading.Lock()


@after_fork
def _forget_open() -> None:
    """Close all stores in a forked process, which must not use the connections of its parent."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


def opened(location: Location, token: str) -> OpenStore:
    """The open store of a reader; opened if this process does not have it open.

    Raises
    ------
    StoreReplacedError
        If there is another dataset now.
    """
    key = (location.key, token)
    with _lock:
        store = _open.get(key)
        if store is not None:
            _open.move_to_end(key)
            return store
    return keep_open(OpenStore(location), token)


def keep_open(store: OpenStore, token: str) -> OpenStore:
    """Keep an open store for the readers of this process."""
    if store.token != token:
        raise StoreReplacedError(
            f"{store.location.place} was replaced by another dataset since it was opened. Open it again: "
            "dkl.open_dataset(store)"
        )
    with _lock:
        _open[(store.location.key, token)] = store
        while len(_open) > _MOST_OPEN:
            _open.popitem(last=False)
    return store


@dataclass(frozen=True, eq=False)
class StoreReader:
    """Reads blocks of a store by their numbers; it only contains the store's address, so that it is small to send."""

    location: Location
    token: str

    def load(self, ticket: int, parts: tuple[str, ...] = PARTS) -> Block:
        """Block `ticket`, verified, without rows of weight 0.

        Raises
        ------
        CorruptChunkError
            If a chunk is damaged, with its block.
        StoreReplacedError
            If the store was moved, deleted or replaced since it was opened.
        StoreError
            If it is not accessible from this process.
        """
        with located(f"block {ticket} of {self.location.place}"):
            return drop_weightless(opened(self.location, self.token).block(ticket, parts))
