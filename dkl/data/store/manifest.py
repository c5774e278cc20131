"""Manifest: counts and digests of all blocks of a store, so that views need not read rows and reads are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dkl.data.counts import RowCounts, class_weights
from dkl.data.store.chunks import DirectChunks, direct_rows
from dkl.data.store.digests import arrays_digest, block_digest
from dkl.data.store.growing import chosen_codecs
from dkl.protocols.block import Block

GROUP = "manifest"
_DIGEST = "digest-"
# An array of more than `_CHECKED_BYTES` in memory is read only if its bytes are at most this multiple of those of its
# files: zstd compresses zeros by a factor of 32,700 at most, so that a larger shape in the metadata is damage.
_CHECKED_BYTES, _LARGEST_RATIO = 64 << 20, 40_000


@dataclass(frozen=True, eq=False)
class Manifest:
    """Counts and digests of all blocks.

    Parameters
    ----------
    counts : RowCounts
    stored_rows : ndarray of shape (n_blocks,), int64
        Stored rows of each block, including rows of weight 0.
    entries : ndarray of shape (n_blocks + 1,), int64, or None
        The first entry of each block of CSR rows and, last, the number of all entries; None for dense rows.
    digests : mapping of str to ndarray of shape (n_blocks,), uint32
        The digests of each array's blocks.
    """

    counts: RowCounts
    stored_rows: np.ndarray
    entries: np.ndarray | None
    digests: dict[str, np.ndarray]

    @classmethod
    def of_blocks(cls, blocks: Sequence[BlockFacts], *, is_sparse: bool) -> Manifest:
        """The manifest of blocks in their order."""
        table = np.array([facts.counts for facts in blocks])
        entries = np.cumsum([0, *(facts.entries for facts in blocks)], dtype=np.int64) if is_sparse else None
        digests = {name: np.array([f.digests[name] for f in blocks], np.uint32) for name in blocks[0].digests}
        stored_rows = np.array([facts.stored_rows for facts in blocks], np.int64)
        return cls(RowCounts.of_table(table, table.shape[1] - 2), stored_rows, entries, digests)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by their names in the store."""
        named = {**self.counts.arrays(), "stored_rows": self.stored_rows}
        if self.entries is not None:
            named["entries"] = self.entries
        # names of zarr arrays must not contain the slash of CSR parts
        return named | {_DIGEST + name.replace("/", "."): values for name, values in self.digests.items()}

    @property
    def digest(self) -> str:
        return arrays_digest(self.arrays())

    def write(self, group: zarr.Group) -> None:
        """Write it into a store."""
        write_arrays(group.create_group(GROUP), self.arrays())

    @classmethod
    def read(cls, group: zarr.Group, digest: str) -> Manifest:
        """The manifest of a store; ValueError if it is damaged."""
        arrays = read_arrays(group[GROUP], digest)
        digests = {
            name.removeprefix(_DIGEST).replace(".", "/"): values
            for name, values in arrays.items()
            if name.startswith(_DIGEST)
        }
        return cls(RowCounts.of_arrays(arrays), arrays["stored_rows"], arrays.get("entries"), digests)


def write_arrays(group: zarr.Group, arrays: dict[str, np.ndarray]) -> None:
    """Write small arrays, each in one chunk, as they are read completely when the store is opened."""
    for name, values in arrays.items():
        chunks = tuple(max(n, 1) for n in values.shape)
        group.create_array(name, data=values, chunks=chunks, compressors=chosen_codecs(values))


def read_arrays(group: zarr.Group | zarr.Array, digest: str) -> dict[str, np.ndarray]:
    """The arrays that `write_arrays` wrote.

    Raises
    ------
    ValueError
        If their digest differs, or their metadata has a shape that no writer has written.
    """
    named: Any = list(group.arrays())  # type: ignore[union-attr]
    for name, array in named:
        in_one = tuple(max(n, 1) for n in array.shape)
        if array.chunks != in_one or array.shards is not None:
            raise ValueError(f"the metadata of '{name}' has chunks of {array.chunks}; {in_one} were written")
        # only for large arrays, since listing their files takes a request to a remote store
        if array.nbytes > _CHECKED_BYTES and array.nbytes > _LARGEST_RATIO * array.nbytes_stored():
            raise ValueError(f"the metadata of '{name}' asks for {array.nbytes:,} bytes, and its files hold fewer")
    read = {name: direct_rows(DirectChunks.of(array), 0, array.shape[0]) for name, array in named}
    direct = {name: values for name, values in read.items() if values is not None}
    if arrays_digest(direct) == digest:
        return direct
    arrays = {name: np.asarray(array[...]) for name, array in named}
    # the digest covers names, shapes and bytes of all arrays, so that it also detects missing ones
    if arrays_digest(arrays) != digest:
        raise ValueError("its arrays are not what was written")
    return arrays


def nodes_of(group: str, arrays: Iterable[str]) -> list[str]:
    """The zarr nodes of a group that `write_arrays` has filled: the group, and the array of each name."""
    return [group, *(f"{group}/{name}" for name in arrays)]


@dataclass(frozen=True)
class BlockFacts:
    """The entries of a manifest for one block; see `Manifest`.

    Parameters
    ----------
    counts : ndarray of shape (2 + K,)
        Number of rows with positive weight, their total weight, and the total weight of each class.
    """

    counts: np.ndarray
    stored_rows: int
    entries: int
    digests: dict[str, int]

    @classmethod
    def of(cls, index: int, block: Block, parts: dict[str, np.ndarray], n_classes: int | None) -> BlockFacts:
        """Count block `index` as it is stored, with the digest of its part of each array."""
        of_classes = () if n_classes is None else class_weights(block, n_classes)
        return cls(
            # rows of weight 0 are stored and never returned
            np.array([np.count_nonzero(block.weights), block.weights.sum(), *of_classes]),
            block.n_rows,
            getattr(block.X, "nnz", 0),
            {name: block_digest(index, values) for name, values in parts.items()},
        )
