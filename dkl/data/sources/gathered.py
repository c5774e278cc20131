"""GatheredSource: few rows of another source, read once and kept in memory for the many passes over them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property

import numpy as np

from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.rows import RowSource
from dkl.data.store.blocking import memory_block_rows, row_bytes
from dkl.protocols.block import Block


class GatheredSource(ArraySource):
    """Rows that were read from a source, in the order in which they are numbered there.

    Parameters
    ----------
    rows : Block
        As a pass has brought them.
    base : RowSource
        Where they are from: they are held out as they would be there.
    n_classes : int or None
    """

    def __init__(self, rows: Block, base: RowSource, n_classes: int | None) -> None:
        # in blocks that are no larger than those there, which plans go by
        fitting = memory_block_rows(row_bytes(rows.X), rows.n_rows)
        most = min(fitting, int(base.block_rows.max(initial=1)))
        super().__init__(rows.X, rows.y, rows.weight, n_classes=n_classes, row_id=rows.row_id, rows_a_block=most)
        self._held, self.held_rule, self.most_folds = rows.held, base.held_rule, base.most_folds
        self.place = base.place

    def ticket(self, index: int) -> Block:
        """The rows of block `index`, with what they are held out with."""
        block = super().ticket(index)
        if self._held is None:
            return block
        return replace(block, held=self._held[self._bounds[index] : self._bounds[index + 1]])

    @cached_property
    def fingerprint(self) -> str:
        held = b"" if self._held is None else np.ascontiguousarray(self._held).tobytes()
        return hashlib.sha256(super().fingerprint.encode() + held).hexdigest()


def in_order(rows: Block) -> Block:
    """The rows of a block by their numbers."""
    return rows.rows(np.argsort(rows.row_id, kind="stable"))
