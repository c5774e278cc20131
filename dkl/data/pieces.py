"""Rows that are added in pieces of any size and taken in pieces of other sizes: arrays, or blocks."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from dkl.protocols.arrays import stacked
from dkl.protocols.block import Block

Rows = TypeVar("Rows", np.ndarray, Block)


class Pieces(Generic[Rows]):
    """A queue of rows from which any number is taken in order, without a copy if they were added together."""

    def __init__(self) -> None:
        self._pieces: deque[Rows] = deque()
        self.n_rows = 0

    def add(self, rows: Rows) -> None:
        """Append rows."""
        if _n_rows(rows):
            self._pieces.append(rows)
            self.n_rows += _n_rows(rows)

    def taken(self, n_rows: int) -> Rows:
        """Remove the first `n_rows` rows, at least one, from the queue, and return them."""
        self.n_rows -= n_rows
        found: list[Rows] = []
        while n_rows:
            piece = self._pieces.popleft()
            if _n_rows(piece) > n_rows:
                self._pieces.appendleft(_cut(piece, slice(n_rows, None)))
                piece = _cut(piece, slice(n_rows))
            found.append(piece)
            n_rows -= _n_rows(piece)
        if len(found) == 1:
            return found[0]
        whole: Any = joined_blocks if isinstance(found[0], Block) else np.concatenate
        return whole(found)


def joined_blocks(blocks: list[Block]) -> Block:
    """Consecutive blocks as one block with number 0; a single block keeps its arrays."""
    if len(blocks) == 1:
        return replace(blocks[0], index=0)
    columns = [[getattr(block, part) for block in blocks] for part in ("y", "weight", "row_id", "held")]
    y, weight, row_id, held = (None if column[0] is None else np.concatenate(column) for column in columns)
    X = stacked([block.X for block in blocks])
    named = {name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns}
    return Block(0, X, y, weight, np.asarray(row_id), named, held)


def _n_rows(rows: Any) -> int:
    return rows.n_rows if isinstance(rows, Block) else len(rows)


def _cut(rows: Any, part: slice) -> Any:
    return rows.rows(part) if isinstance(rows, Block) else rows[part]
