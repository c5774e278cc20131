"""Reading everything that a dataset keeps, to report every fault at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed

from dkl.data.block_arrays import CSR_PARTS, array_names
from dkl.data.checks import check_rows
from dkl.data.location import Location
from dkl.data.reading import OpenStore
from dkl.data.rows import RowReader, RowSource
from dkl.data.selected import SelectedSource
from dkl.data.stored import StoreSource
from dkl.data.stored_splits import FOLDER, whole_split
from dkl.data.version_files import open_version
from dkl.data.versions import VersionSource
from dkl.errors import CorruptChunkError


def faults(source: RowSource) -> Iterator[str]:
    """A sentence for each thing that is wrong; whole blocks are read, whatever a view shows of them."""
    base = source.base if isinstance(source, SelectedSource) else source
    if isinstance(base, VersionSource):
        yield from version_faults(base)
    else:
        yield from store_faults(base.location) if isinstance(base, StoreSource) else row_faults(base)


def version_faults(source: VersionSource) -> Iterator[str]:
    """What is wrong with any of the stores of a version, or with its record of dropped rows."""
    yield from _failures([partial(open_version, source.location, source.version)])
    for part in source.parts:
        yield from store_faults(part.location)


def store_faults(location: Location) -> Iterator[str]:
    """What is wrong with a store: its metadata, every chunk of every array, its splits."""
    try:
        # opened anew: what this process remembers of the store says nothing about the disk
        store = OpenStore(location)
    except (ValueError, OSError) as error:
        yield str(error)
        return
    yield from _failures(_store_checks(store))


def _store_checks(store: OpenStore) -> Iterator[Callable[[], Any]]:
    location, blocks = store.location, range(len(store.manifest.rows))
    yield partial(check_group, location)
    yield store.check_nodes
    if store.schema.is_sparse:
        yield store.check_csr
    for index in blocks:
        parts: dict[str, np.ndarray] = {}
        for name in array_names(store.schema):
            yield partial(_read_part, store, name, index, parts)
        if parts.keys() >= set(CSR_PARTS):
            yield partial(store.csr_rows, index, *(parts[name] for name in CSR_PARTS))
    folder = location.child(FOLDER)
    for name in folder.folders():
        yield partial(check_group, folder)
        yield partial(check_group, folder.child(name))
        yield partial(whole_split, folder.child(name))
        for index in blocks:
            yield partial(store.codes, f"{FOLDER}/{name}", index)


def _read_part(store: OpenStore, name: str, index: int, parts: dict[str, np.ndarray]) -> None:
    """Read one array's part of a block, checked; what was whole is kept in `parts`."""
    parts[name] = store.values(name, index)


def check_group(location: Location) -> None:
    """Refuse metadata of a zarr group that is not what zarr writes, attributes aside.

    Raises
    ------
    ValueError
    """
    node = json.loads(location.read("zarr.json") or b"{}")
    known = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": None}
    found = {name: value for name, value in node.items() if name != "attributes"}
    if "attributes" not in node or any(name not in known or known[name] != found[name] for name in found):
        raise CorruptChunkError(f"the metadata of the group {location.place} is not what was written: {found}")


def row_faults(source: RowSource) -> Iterator[str]:
    """What is wrong with rows that have no checksums: values that no dataset may hold."""
    reader = source.reader()
    yield from _failures(partial(_check_block, source, reader, int(i)) for i in np.flatnonzero(source.block_rows))


def _check_block(source: RowSource, reader: RowReader, index: int) -> None:
    ticket = source.ticket(index)
    check_rows(reader.load(dask.compute(ticket)[0] if isinstance(ticket, Delayed) else ticket).X)


def _failures(checks: Any) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except (ValueError, OSError) as error:
            yield str(error)
