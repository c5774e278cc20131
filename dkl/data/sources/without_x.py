"""LightSource: the blocks of a source without their X, for passes that look at targets and row columns alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.sources.rows import LIGHT_PARTS, RowReader, without_x
from dkl.protocols.block import Block
from dkl.protocols.source import BlockSource


@dataclass(frozen=True)
class LightReader:
    """Reads everything of a block but its rows."""

    base: RowReader

    def load(self, ticket: Any) -> Block:
        return without_x(self.base.load(ticket, LIGHT_PARTS))


class LightSource:
    """A source whose rows have no columns; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    base : BlockSource
        Its reader can leave parts of a block unread (`dkl.data.sources.rows.RowReader`).
    """

    n_columns = 0
    dtype = np.dtype(np.float64)
    is_sparse = False

    def __init__(self, base: BlockSource) -> None:
        self.base = base
        self.n_blocks, self.block_rows, self.place = base.n_blocks, base.block_rows, base.place
        self.has_weight = base.has_weight

    @property
    def block_nbytes(self) -> int:
        """As of the whole rows: those in memory or in a graph come with their X."""
        return self.base.block_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.base.read_nbytes

    @property
    def stored_nbytes(self) -> int:
        return self.base.stored_nbytes

    @cached_property
    def fingerprint(self) -> str:
        return f"light {self.base.fingerprint}"

    def reader(self) -> LightReader:
        return LightReader(self.base.reader())  # type: ignore[arg-type]

    def ticket(self, index: int) -> Any:
        return self.base.ticket(index)
