"""Blocks of one tree over several sites: a site's own rows under their agreed numbers, and sums instead of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from dkl.data.counts import RowCounts
from dkl.data.schema import Schema
from dkl.data.sources.rows import BaseRows
from dkl.protocols.block import Block


class SummedSource(BaseRows):
    """Sums instead of rows; see `dkl.protocols.source.BlockSource` for the attributes.

    The sum of a node of the tree is at the first block of the node, whose other blocks are empty: adding nothing
    changes no bit, so that the tree above the nodes has the same result as with the rows.

    Parameters
    ----------
    sums : mapping of int to mapping of str to ndarray
        The sums of each node, by the number of its first block.
    counts : RowCounts
        Counts of all blocks; those of a node are at its first block.
    schema : Schema
    place : str
        Name in messages.
    """

    has_weight = False
    stored_nbytes = 0
    read_nbytes = 0

    def __init__(
        self, sums: Mapping[int, Mapping[str, np.ndarray]], counts: RowCounts, schema: Schema, place: str
    ) -> None:
        self._sums, self.counts, self.schema, self.place = sums, counts, schema, place
        self.n_columns, self.dtype, self.is_sparse = schema.n_columns, schema.dtype, schema.is_sparse
        self.has_y = schema.task is not None

    @property
    def n_blocks(self) -> int:
        return len(self.counts.rows)

    @property
    def block_nbytes(self) -> int:
        return max(sum(array.nbytes for array in sums.values()) for sums in self._sums.values())

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.counts.rows.tolist()).encode())
        for number in sorted(self._sums):
            for name, array in sorted(self._sums[number].items()):
                digest.update(f"{number} {name} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def added(self) -> SummedSource:
        """The same sums with at most one row for each block, as passes need no memory for their rows."""
        counts = replace(self.counts, rows=np.minimum(self.counts.rows, 1))
        return SummedSource(self._sums, counts, self.schema, self.place)

    def ticket(self, index: int) -> Block:
        # blocks without rows are skipped, so that this one has one row; only kept sums use it
        return Block(index, np.empty((1, 0)), None, None, np.zeros(1, np.int64), self._sums[index])

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        raise ValueError(f"{self.place} hold no rows: what asks for targets or rows has to be done where these are")
