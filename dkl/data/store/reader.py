"""Reading a store: what a process has open, the small reader that passes broadcast, and the checks on the way."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from scipy import sparse
from zarr.buffer.cpu import NDBuffer

from dkl.data.schema import RowColumn, Schema
from dkl.data.soundness import whole_csr
from dkl.data.sources.rows import drop_weightless
from dkl.data.store.abandoned import put_back
from dkl.data.store.block_arrays import CSR_PARTS, STORED_NAMES, row_column_names
from dkl.data.store.chunks import DirectChunks, direct_rows
from dkl.data.store.digests import block_digest
from dkl.data.store.ledger import LEDGER, MeteredStore, Noted
from dkl.data.store.location import Location
from dkl.data.store.manifest import Manifest, node_names, read_arrays
from dkl.data.store.sealed import Reading, check_sealed, read_marker
from dkl.data.store.stored_splits import StoredCodeReader
from dkl.errors import StoreError, StoreReplacedError, located
from dkl.process import after_fork
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS

FORMAT = 3
"""The newest version of the layout that this release reads."""
TEXT_FORMAT, CODE_FORMAT, FIRST_FORMAT = 3, 2, 1
"""Of stores with free text, and with codes, which older releases would take for numbers; and of all others."""
TEXTS = "texts"
"""The group of the directions of free text."""

_MOST_OPEN = 16


def read_facts(location: Location) -> dict[str, Any]:
    """The metadata of the whole dataset at `location`.

    Raises
    ------
    FileNotFoundError
        Nothing is there.
    StoreError
        It is no dataset of dkl, is not complete, is damaged, or is of a newer format.
    """
    facts = read_marker(location, location.place)
    if facts is None:
        put_back(location)
        facts = read_marker(location, location.place)
    if facts is None:
        if not (location.path.exists() if location.is_local else location.exists()):
            remedy = "write one with dkl.ingest or dkl.create_dataset"
            if location.is_in_memory:
                remedy = (
                    "only the process that wrote it sees memory://; use threads, or a folder or URL that workers can "
                    "read"
                )
            raise FileNotFoundError(f"no dataset at {location.place} ({location.url}); {remedy}")
        raise StoreError(_what_else(location))
    if facts.get("state") != "complete":
        raise StoreError(
            f"{location.place} is half-written: its writer was stopped or is at work; creating it again replaces it"
        )
    # Of a newer format nothing more is known: its digest, too, may be made in another way.
    newer = facts.get("format")
    if isinstance(newer, int) and newer > FORMAT:
        raise StoreError(
            f"{location.place} has the newer format {newer} of dkl {facts.get('written_by')}; this dkl reads formats "
            f"up to {FORMAT}. Upgrade dkl: pip install -U dkl"
        )
    if facts.get("kind") == "model":
        raise StoreError(f"{location.place} is a model, not a dataset; open it with dkl.load_model")
    check_sealed(facts, location.place, "create the dataset again", kind="dataset")
    return facts


def _what_else(location: Location) -> str:
    """What to do with something that is no store: files of rows are read into one, arrays stay where they are."""
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
    """The zarr nodes of a store as `sealed_group` takes them; groups, times and free text are apart from the others."""
    nodes = {"nodes": node_names(schema, manifest)}
    if schema.row_columns:
        nodes["row_column_nodes"] = list(row_column_names(schema))
    if has_texts:
        from dkl.data.columns.free_text import stored_arrays

        nodes["text_nodes"] = [TEXTS, *(f"{TEXTS}/{name}" for name in stored_arrays(schema.encoding.directions))]
    return nodes


class OpenStore:
    """A dataset that this process has open: metadata and manifest in memory, arrays opened when first used."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.facts = read_facts(location)
        self.token: str = self.facts["token"]
        self.rows_a_block: int = self.facts["rows_a_block"]
        with self.reading("the metadata"):
            codecs = [name for array in self.facts["arrays"].values() for name in array["codecs"]]
            counts = [self.facts[name] for name in ("format", "rows_a_block", "stored_nbytes")]
            nodes = self.facts.get("node_digests", {})
            has_texts = all(isinstance(text, str) for text in (self.token, *codecs, *nodes, *nodes.values()))
            if not has_texts or not all(type(count) is int and count > 0 for count in counts):
                raise ValueError("a fact is of another type, or smaller, than any writer leaves")
            # Stores without groups and times have no word of them.
            named = self.facts.get("row_columns", {})
            columns = {role: RowColumn(known["name"], known["kind"], role) for role, known in named.items()}
            schema = Schema.from_json(self.facts["schema"])
            # what is read is counted
            self.group = zarr.open_group(MeteredStore(location.store(read_only=True)), mode="r", zarr_format=3)
            if "texts" in self.facts:
                schema = replace(schema, encoding=self._with_directions(schema.encoding))
            self.schema = replace(schema, row_columns=columns, held_by=self.facts.get("held_by"))
            self.manifest = Manifest.read(self.group, self.facts["manifest"])
        self._arrays: dict[str, zarr.Array] = {}
        self._chunks: dict[str, DirectChunks | None] = {}
        self._codes: dict[str, StoredCodeReader] = {}

    def _with_directions(self, encoding: Any) -> Any:
        """The encoding with the directions of its columns of free text."""
        from dkl.data.columns.free_text import directions_from

        arrays = read_arrays(self.group[TEXTS], self.facts["texts"])
        return encoding.with_directions(directions_from(arrays, encoding.text_names))

    def reading(self, what: str) -> Reading:
        """What is read inside is not what was written, or is not there any more, where reading it fails."""
        return Reading(f"{what} of {self.location.place}", self.location, self.facts)

    def array(self, name: str) -> zarr.Array:
        """One array, compared with what was written."""
        if name not in self._arrays:
            with self.reading(f"the metadata of '{name}'"):
                array: Any = self.group[stored_path(name)]
                wanted = self.facts["arrays"][name]
                stored = {"dtype": array.dtype.str, "shape": list(array.shape), "chunks": list(array.chunks)}
                stored["shards"] = None if array.shards is None else list(array.shards)
                if any(stored[fact] != wanted.get(fact) for fact in stored):
                    raise ValueError(f"expected {wanted}, found {stored}")
            self._chunks[name] = DirectChunks.of(array)
            self._arrays[name] = array
        return self._arrays[name]

    def values(self, name: str, index: int) -> np.ndarray:
        """The part of an array that belongs to block `index`, checked.

        Raises
        ------
        CorruptChunkError
            It is not what was written.
        """
        array = self.array(name)
        start, stop = self._range(name, index)
        digest = self.manifest.digests[name][index]
        values = self._direct_values(name, start, stop)
        if values is not None and block_digest(index, values) == digest:
            LEDGER.note(Noted(decoded=values.nbytes))
            return values
        with self.reading(f"block {index} of '{name}'"):
            values = read_rows(array, start, stop)
            LEDGER.note(Noted(decoded=values.nbytes))
            # zarr's own checksum tells of a flipped bit; this one also of a chunk that is missing, old or in another's
            # place.
            if block_digest(index, values) != digest:
                raise ValueError("its digest is not the one in the manifest: a chunk is missing, damaged or misplaced")
        return values

    def _direct_values(self, name: str, start: int, stop: int) -> np.ndarray | None:
        """Rows of an array, decoded without zarr; None where zarr must read them, or say what is wrong with them."""
        return direct_rows(self._chunks[name], start, stop)

    def _range(self, name: str, index: int) -> tuple[int, int]:
        """Where the part of a block begins and ends in an array: by entries for CSR data, by rows for others."""
        if name in ("X/data", "X/indices") and self.manifest.entries is not None:
            return int(self.manifest.entries[index]), int(self.manifest.entries[index + 1])
        start = index * self.rows_a_block
        return start, start + int(self.manifest.stored_rows[index])

    def block(self, index: int, parts: tuple[str, ...]) -> Block:
        """Block `index` as stored; row ids and weights always, of the rest what `parts` names."""
        # Row ids and weights are read in any case: without them it is not known which rows there are.
        row_id = self.values("row_id", index)
        y = self._targets(index) if "y" in parts and self.schema.task is not None else None
        weight = self.values("weight", index) if self.schema.has_weight else None
        X = self._rows(index) if "X" in parts else np.empty((len(row_id), 0))
        columns = {name: self._column(name, index) for name in parts if name not in PARTS}
        return Block(index, X, y, weight, row_id, columns)

    def _column(self, name: str, index: int) -> np.ndarray:
        return self.values(name, index) if name in self.schema.row_columns else self.codes(name, index)

    def _targets(self, index: int) -> np.ndarray:
        # Codes are stored in 32 bits and handed out in 64, as NumPy indexes with them.
        y = self.values("y", index)
        return y.astype(np.int64) if self.schema.n_classes is not None else y

    def _rows(self, index: int) -> np.ndarray | sparse.csr_array:
        if not self.schema.is_sparse:
            return self.values("X", index)
        return self.csr_rows(index, *(self.values(name, index) for name in CSR_PARTS))

    def csr_rows(self, index: int, data: np.ndarray, indices: np.ndarray, starts: np.ndarray) -> sparse.csr_array:
        """The sparse rows of block `index` of their stored parts.

        Raises
        ------
        CorruptChunkError
            They point beyond their rows or columns, as a release wrote them that did not look.
        """
        first, last = self._range("X/data", index)
        indptr = np.append(starts, last) - first
        with self.reading(f"block {index} of 'X'"):
            rows = whole_csr(data, indices, indptr.astype(np.int32), self.schema.n_columns)
        # The writer has sorted and summed the entries; SciPy would look through all of them to find that out.
        rows.has_canonical_format = True
        return rows

    def check_nodes(self) -> None:
        """Compare the metadata of all zarr nodes with what was written.

        Raises
        ------
        CorruptChunkError
        """
        has_texts = "text_nodes" in self.facts
        self.reading("the metadata of the arrays").check_nodes(all_nodes(self.schema, self.manifest, has_texts))

    def check_csr(self) -> None:
        """Compare what only readers of the CSR layout use: its attributes and the last pointer.

        Raises
        ------
        CorruptChunkError
        """
        with self.reading("the layout of 'X'"):
            last = int(np.asarray(self.array("X/indptr")[-1:])[0])
            shape = self.group["X"].attrs["shape"]
            entries = 0 if self.manifest.entries is None else int(self.manifest.entries[-1])
            if last != entries or shape != [self.facts["n_rows"], self.schema.n_columns]:
                raise ValueError(f"its last pointer is {last} for {entries} entries, its shape {shape}")

    def codes(self, name: str, index: int) -> np.ndarray:
        """The split codes of the stored rows of a block, checked; `name` is that of `stored_splits.column_of`."""
        if name not in self._codes:
            self._codes[name] = StoredCodeReader(self.location, name, self.rows_a_block)
        return self._codes[name].codes(index, int(self.manifest.stored_rows[index]))


def read_rows(array: zarr.Array, start: int, stop: int) -> np.ndarray:
    """Rows of a zarr array, decoded into fresh memory that zarr need not fill first (half as fast again)."""
    rows = np.empty((stop - start, *array.shape[1:]), array.dtype)
    if len(rows):
        # zarr decodes into this memory directly.
        array.get_basic_selection(slice(start, stop), out=NDBuffer.from_numpy_array(rows))
    return rows


def stored_path(name: str) -> str:
    """Where an array is in the group."""
    return STORED_NAMES.get(name, name)


# The stores that this process has open, by place and token; the one used longest ago goes first.
_open: OrderedDict[tuple[Any, str], OpenStore] = OrderedDict()
_lock = threading.Lock()


@after_fork
def _forget_open() -> None:
    """A connection to a remote store belongs to the process that made it."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


def opened(location: Location, token: str) -> OpenStore:
    """The store that a reader was made for; opened once a process.

    Raises
    ------
    StoreReplacedError
        Another dataset is there now.
    """
    key = (location.key, token)
    with _lock:
        store = _open.get(key)
        if store is not None:
            _open.move_to_end(key)
            return store
    return keep_open(OpenStore(location), token)


def keep_open(store: OpenStore, token: str) -> OpenStore:
    """Remember an opened store for the readers of this process."""
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
    """Reads blocks of a store by number; holds its address alone, so that it travels well."""

    url: str
    given: str
    options: Mapping[str, Any]
    token: str

    @property
    def location(self) -> Location:
        return Location(self.url, self.given, self.options)

    def load(self, ticket: int, parts: tuple[str, ...] = PARTS) -> Block:
        """Block `ticket`, verified, without rows of weight 0.

        Raises
        ------
        CorruptChunkError
            A chunk is not what was written; it is named.
        StoreReplacedError
            The store was moved, deleted or replaced since it was opened.
        StoreError
            It cannot be seen from here.
        """
        location = self.location
        with located(f"block {ticket} of {location.place}"):
            return drop_weightless(opened(location, self.token).block(ticket, parts))
