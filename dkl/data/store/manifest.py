"""Manifest: what a store keeps of each of its blocks, so that views need not read rows and every read is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dkl.data.counts import RowCounts, class_weights
from dkl.data.schema import Schema
from dkl.data.store.block_arrays import STORED_NAMES, array_names
from dkl.data.store.chunks import DirectChunks, direct_rows
from dkl.data.store.digests import arrays_digest, block_digest
from dkl.data.store.growing import chosen_codecs
from dkl.protocols.block import Block

GROUP = "manifest"
_DIGEST = "digest-"
# An array of more than 64 MiB in memory is read only if its files hold a 40,000th of its bytes: zstd packs zeros, which
# it packs best, to a 32,700th, so that larger shapes than the files hold were written into the metadata by others.
_ALLOWED_BYTES, _ALLOWED_RATIO = 64 << 20, 40_000


@dataclass(frozen=True, eq=False)
class Manifest:
    """What is known of all blocks without reading them.

    Parameters
    ----------
    counts : RowCounts
    stored_rows : ndarray of shape (n_blocks,), int64
        Rows in the store, those of weight 0 among them.
    entries : ndarray of shape (n_blocks + 1,), int64, or None
        Where the entries of each block of CSR rows begin.
    digests : mapping of str to ndarray of shape (n_blocks,), uint32
        Of each array.
    """

    counts: RowCounts
    stored_rows: np.ndarray
    entries: np.ndarray | None
    digests: dict[str, np.ndarray]

    @classmethod
    def of_blocks(cls, blocks: Sequence[BlockFacts], *, is_sparse: bool) -> Manifest:
        """That of blocks in their order."""
        table = np.array([facts.figures for facts in blocks])
        entries = np.cumsum([0, *(facts.entries for facts in blocks)], dtype=np.int64) if is_sparse else None
        digests = {name: np.array([f.digests[name] for f in blocks], np.uint32) for name in blocks[0].digests}
        stored_rows = np.array([facts.stored_rows for facts in blocks], np.int64)
        return cls(RowCounts.of_table(table, table.shape[1] - 2), stored_rows, entries, digests)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array under its name in the store."""
        named = {**self.counts.arrays(), "stored_rows": self.stored_rows}
        if self.entries is not None:
            named["entries"] = self.entries
        # A zarr array cannot have a slash in its name, which those of CSR parts have.
        return named | {_DIGEST + name.replace("/", "."): values for name, values in self.digests.items()}

    @property
    def digest(self) -> str:
        return arrays_digest(self.arrays())

    def write(self, group: zarr.Group) -> None:
        """Keep it in a store."""
        write_arrays(group.create_group(GROUP), self.arrays())

    @classmethod
    def read(cls, group: zarr.Group, digest: str) -> Manifest:
        """The manifest of a store.

        Raises
        ------
        ValueError
            It is not what was written.
        """
        arrays = read_arrays(group[GROUP], digest)
        digests = {
            name.removeprefix(_DIGEST).replace(".", "/"): values
            for name, values in arrays.items()
            if name.startswith(_DIGEST)
        }
        return cls(RowCounts.of_arrays(arrays), arrays["stored_rows"], arrays.get("entries"), digests)


def write_arrays(group: zarr.Group, arrays: dict[str, np.ndarray]) -> None:
    """Small arrays, each in one chunk."""
    for name, values in arrays.items():
        # One chunk each: a manifest is small, and is read whole whenever the store is opened.
        chunks = tuple(max(n, 1) for n in values.shape)
        group.create_array(name, data=values, chunks=chunks, compressors=chosen_codecs(values))


def read_arrays(group: zarr.Group | zarr.Array, digest: str) -> dict[str, np.ndarray]:
    """The arrays that `write_arrays` wrote.

    Raises
    ------
    ValueError
        Their digest is another, or their metadata asks for more memory than any writer has filled.
    """
    named: Any = list(group.arrays())  # type: ignore[union-attr]
    for name, array in named:
        in_one = tuple(max(n, 1) for n in array.shape)
        if array.chunks != in_one or array.shards is not None:
            raise ValueError(f"the metadata of '{name}' has chunks of {array.chunks}; {in_one} were written")
        # looked at for large ones alone: their files are listed, which takes a request where they are far away
        if array.nbytes > _ALLOWED_BYTES and array.nbytes > _ALLOWED_RATIO * array.nbytes_stored():
            raise ValueError(f"the metadata of '{name}' asks for {array.nbytes:,} bytes, and its files hold fewer")
    read = {name: direct_rows(DirectChunks.of(array), 0, array.shape[0]) for name, array in named}
    direct = {name: values for name, values in read.items() if values is not None}
    if arrays_digest(direct) == digest:
        return direct
    arrays = {name: np.asarray(array[...]) for name, array in named}
    # One digest of names, shapes and bytes of all: an array that is missing shows as one that is damaged does.
    if arrays_digest(arrays) != digest:
        raise ValueError("its arrays are not what was written")
    return arrays


def node_names(schema: Schema, manifest: Manifest) -> list[str]:
    """Every zarr node of a store, its root and its splits left out."""
    names = [STORED_NAMES.get(name, name) for name in array_names(schema)]
    groups = [GROUP, *(["X"] if schema.is_sparse else [])]
    return [*names, *groups, *(f"{GROUP}/{name}" for name in manifest.arrays())]


@dataclass(frozen=True)
class BlockFacts:
    """What a manifest keeps of one block; see `Manifest`.

    Parameters
    ----------
    figures : ndarray of shape (2 + K,)
        Rows of weight above 0, their total weight, and that of each class.
    """

    figures: np.ndarray
    stored_rows: int
    entries: int
    digests: dict[str, int]

    @classmethod
    def of(cls, index: int, block: Block, parts: dict[str, np.ndarray], n_classes: int | None) -> BlockFacts:
        """Count block `index` as it is stored, with the digest of its part of each array."""
        of_classes = () if n_classes is None else class_weights(block, n_classes)
        return cls(
            # Rows of weight 0 are stored and never handed out: they are counted among the stored rows alone.
            np.array([np.count_nonzero(block.weights), block.weights.sum(), *of_classes]),
            block.n_rows,
            getattr(block.X, "nnz", 0),
            {name: block_digest(index, values) for name, values in parts.items()},
        )
