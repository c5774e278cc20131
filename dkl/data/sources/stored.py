"""StoreSource: the blocks of a store, for passes and views."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import BaseRows
from dkl.data.splits import SplitSet, code_blocks
from dkl.data.store.commit import Home
from dkl.data.store.location import Location
from dkl.data.store.reader import OpenStore, StoreReader, keep_open, opened
from dkl.data.store.stored_splits import FOLDER, read_split, write_split


class StoreSource(BaseRows):
    """See `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    store : OpenStore
        The store, opened by this process.
    """

    def __init__(self, store: OpenStore) -> None:
        # the readers of this process share the open store: opening it reads the manifest and the metadata of every
        # array
        keep_open(store, store.token)
        self.location: Location = store.location
        self.schema = store.schema
        self._manifest = store.manifest
        self._facts = store.facts
        self.n_blocks = len(store.manifest.stored_rows)
        self.n_columns, self.dtype, self.is_sparse = store.schema.n_columns, store.schema.dtype, store.schema.is_sparse
        self.has_y, self.has_weight = store.schema.task is not None, store.schema.has_weight
        self.stored_nbytes: int = store.facts["stored_nbytes"]
        self.place = store.location.place

    @property
    def parts(self) -> tuple[StoreSource, ...]:
        """The stores with the blocks, as of a `VersionSource`: this one alone."""
        return (self,)

    @property
    def counts(self) -> RowCounts:
        return self._manifest.counts

    @cached_property
    def block_nbytes(self) -> int:
        return int((self._x_nbytes + self._manifest.stored_rows * self._row_nbytes_without_x).max())

    @property
    def _x_nbytes(self) -> np.ndarray:
        """Bytes of X in each block."""
        if self._manifest.entries is None:
            return self._manifest.stored_rows * self.n_columns * self.dtype.itemsize
        # for CSR rows a value and an int32 column for each entry, and an int32 pointer for each row
        return np.diff(self._manifest.entries) * (self.dtype.itemsize + 4) + 4 * (self._manifest.stored_rows + 1)

    @property
    def _row_nbytes_without_x(self) -> int:
        columns = 1 + self.has_weight + len(self.schema.row_columns)
        return 8 * (columns + (self.schema.n_targets or 1) * self.has_y)

    @cached_property
    def read_nbytes(self) -> int:
        """Bytes of the stored chunk and its decoded form, and of a filtered copy if rows have weight 0.

        Dense chunks of local stores are decoded into the rows themselves (see `DirectChunks`), and without compression
        they are read into them.
        """
        copies, codecs = 2, set(self._facts["arrays"].get("X", {}).get("codecs", ["of other arrays"]))
        if self.location.is_local and codecs <= {"ZstdCodec", "Crc32cCodec"}:
            copies = int("ZstdCodec" in codecs)
        filtered = bool((self.block_rows != self._manifest.stored_rows).any())
        return (copies + filtered) * int(self._x_nbytes.max())

    @cached_property
    def fingerprint(self) -> str:
        # the manifest's digest covers those of all blocks, so that no row is read
        facts = [self._facts["manifest"], self._facts["rows_a_block"], self._facts["schema"]["classes"]]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def stored_block_rows(self) -> int:
        """Rows of each block but the last."""
        return int(self._facts["rows_a_block"])

    @property
    def token(self) -> str:
        """Identity of the write; another store at the same place has another one."""
        return str(self._facts["token"])

    def block_identity(self, index: int) -> str:
        """Changes whenever a value or a label of this block changes, independently of other blocks."""
        # stored digests of the block's parts, its rows and the labels of its codes, but nothing of other blocks
        digests = sorted((name, int(values[index])) for name, values in self._manifest.digests.items())
        return repr((int(self._manifest.stored_rows[index]), digests, self._facts["schema"]["classes"]))

    @property
    def storage_facts(self) -> dict[str, Any]:
        """Properties of the storage, for `describe`."""
        codecs = {name: ", ".join(facts["codecs"]) for name, facts in self._facts["arrays"].items()}
        shards = next(iter(self._facts["arrays"].values()))["shards"]
        return {
            "checksums": "crc32c of every chunk and block",
            "codecs": codecs,
            "sharded": shards is not None,
            "format": self._facts["format"],
            "written by": f"dkl {self._facts['written_by']}",
        }

    def reader(self) -> StoreReader:
        return StoreReader(self.location, self.token)

    def ticket(self, index: int) -> int:
        return index

    def write_split(self, name: str, split: SplitSet, *, overwrite: bool) -> SplitSet:
        """Store a set of splits with the rows."""
        store = opened(self.location, self._facts["token"])
        # codes of all stored rows, including those of weight 0, since chunks of codes correspond to chunks of rows
        weights = (store.values("weight", i) if self.has_weight else None for i in range(self.n_blocks))
        codes = code_blocks(split, weights)
        chunk, shards = self._facts["rows_a_block"], self._facts["arrays"]["row_id"]["shards"]
        shard = 1 if shards is None else shards[0] // chunk
        home = Home(self.location, self.token)
        return write_split(home, name, split, codes, chunk, shard=shard, overwrite=overwrite)

    def read_splits(self) -> dict[str, SplitSet]:
        """The sets of splits in the store."""
        folder = self.location.child(FOLDER)
        names = sorted(folder.folders())
        # a set that is being written is not complete yet
        splits = {name: read_split(folder.child(name)) for name in names}
        return {name: split for name, split in splits.items() if split is not None}
