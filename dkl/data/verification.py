"""Reads everything that a dataset stores, and reports all faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import dask
import numpy as np
from dask.delayed import Delayed

from dkl.data.checks import check_rows
from dkl.data.sources.in_place import InPlaceSource, compare_reads
from dkl.data.sources.rows import RowSource
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.store.block_arrays import CSR_PARTS, array_names, row_column_names
from dkl.data.store.commit import VERSIONS
from dkl.data.store.ledger import LEDGER
from dkl.data.store.location import Location
from dkl.data.store.reader import OpenStore
from dkl.data.store.stored_splits import FOLDER, column_of, whole_split
from dkl.data.store.version_files import check_newest_record, check_version, newest_version, open_version, version_place
from dkl.errors import CorruptChunkError, StoreError


def faults(source: RowSource) -> Iterator[str]:
    """A sentence for each fault of the rows behind a source; whole blocks are read, also for a view of them."""
    base = source.base
    # rows outside stores have no checksums: their values are checked, and arrays in place are compared with their state
    # when they were opened and read before
    if not isinstance(base, StoreSource | VersionSource):
        changed = list(base.faults()) if isinstance(base, InPlaceSource) else []
        yield from dict.fromkeys([*changed, *row_faults(base)])
        return
    # several checks may find the same fault
    sentences = dict.fromkeys(_failures(_version_checks(base.location)))
    for part in base.parts:
        sentences |= dict.fromkeys(store_faults(part.location))
    yield from sentences


def _version_checks(location: Location) -> Iterator[Callable[[], object]]:
    """Checks of all versions of a store, also of those that were not opened."""
    yield partial(open_version, location)
    folder = location.child(VERSIONS)
    if not _is_used(folder):
        return
    yield partial(check_group, folder)
    yield partial(check_newest_record, location)
    token = (location.read_marker() or {}).get("token", "")
    for number in range(1, newest_version(location, token) + 1):
        yield partial(check_version, location, number, token)
        yield partial(check_group, version_place(location, number))


def store_faults(location: Location) -> Iterator[str]:
    """A sentence for each fault in a store's metadata, in the chunks of its arrays, and in its splits."""
    try:
        # opened again, as the copy of metadata in this process does not show damage on the disk
        store = OpenStore(location)
    except (ValueError, OSError) as error:
        yield str(error)
        return
    yield from _failures(_store_checks(store))


def _store_checks(store: OpenStore) -> Iterator[Callable[[], object]]:
    """The checks of a store; each raises an error for its first fault, so that it does not hide those of others."""
    location, blocks = store.location, range(len(store.manifest.stored_rows))

    def keep(name: str, index: int, parts: dict[str, np.ndarray]) -> None:
        """Read and check one array's part of a block, and add it to `parts` if it is undamaged."""
        parts[name] = store.values(name, index)

    yield partial(check_group, location)
    yield store.check_nodes
    if store.schema.is_sparse:
        yield store.check_csr
    for index in blocks:
        parts: dict[str, np.ndarray] = {}
        for name in (*array_names(store.schema), *row_column_names(store.schema)):
            yield partial(keep, name, index, parts)
        # undamaged parts may still be inconsistent
        if parts.keys() >= set(CSR_PARTS):
            yield partial(store.csr_rows, index, *(parts[name] for name in CSR_PARTS))
    folder = location.child(FOLDER)
    if _is_used(folder):
        yield partial(check_group, folder)
    for name in folder.folders():
        yield partial(check_group, folder.child(name))
        yield partial(whole_split, folder.child(name))
        token = (folder.child(name).read_marker() or {}).get("token", "")
        for index in blocks:
            yield partial(store.codes, column_of(name, token), index)


def _is_used(folder: Location) -> bool:
    """Whether a group exists: a killed writer may leave a folder with hidden files only."""
    return bool(folder.folders()) or folder.read("zarr.json") is not None


def check_group(location: Location) -> None:
    """Raise CorruptChunkError if the metadata of a zarr group, except its attributes, is not what zarr writes."""
    text = location.read("zarr.json")
    if text is None:
        raise CorruptChunkError(f"the metadata of the group {location.place} is missing: its file 'zarr.json'")
    try:
        node = json.loads(text)
    except ValueError as error:
        raise CorruptChunkError(f"the metadata of the group {location.place} is damaged: {error}") from error
    if not isinstance(node, dict):
        raise CorruptChunkError(f"the metadata of the group {location.place} is not what was written: {node}")
    wanted = {"zarr_format": 3, "node_type": "group"}
    rest = {name: value for name, value in node.items() if name not in ("attributes", "consolidated_metadata")}
    if rest != wanted or "attributes" not in node or node.get("consolidated_metadata") is not None:
        raise CorruptChunkError(f"the metadata of the group {location.place} is not what was written: {rest}")


def row_faults(source: RowSource) -> Iterator[str]:
    """A sentence for each block with invalid values, for rows without checksums."""
    try:
        reader = source.reader()
    except StoreError as error:
        yield str(error)
        return

    def check(index: int) -> None:
        """Read or compute one block, and check its values."""
        ticket = source.ticket(index)
        check_rows(reader.load(dask.compute(ticket)[0] if isinstance(ticket, Delayed) else ticket).X)
        compare_reads(LEDGER.new_reads())

    yield from _failures(partial(check, int(index)) for index in np.flatnonzero(source.block_rows))


def _failures(checks: Iterable[Callable[[], object]]) -> Iterator[str]:
    """The messages of the errors that the checks raise."""
    for check in checks:
        try:
            check()
        except (ValueError, OSError) as error:
            yield str(error)
