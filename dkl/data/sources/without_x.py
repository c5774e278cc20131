"""SourceWithoutX: the blocks of a source without their X, for passes whose records look at everything else alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dkl.data.sources.rows import PARTS_WITHOUT_X, RowReader, without_x
from dkl.protocols.block import Block
from dkl.protocols.source import BlockSource, WrappedSource


@dataclass(frozen=True)
class ReaderWithoutX:
    """Reads everything of a block but its rows."""

    base: RowReader

    def load(self, ticket: object) -> Block:
        # The reader of a store leaves the chunks of X unread. Rows in memory, or from a graph, come with their X in the
        # ticket; `without_x` drops it, so that a block function never finds columns that another source would not have.
        return without_x(self.base.load(ticket, PARTS_WITHOUT_X))


class SourceWithoutX(WrappedSource[BlockSource]):
    """A source whose rows have no columns; see `dkl.protocols.source.BlockSource` for the attributes.

    `block_nbytes` stays that of whole rows: those in memory or in a graph come with their X.

    Parameters
    ----------
    base : BlockSource
        Its reader can leave parts of a block unread (`dkl.data.sources.rows.RowReader`).
    """

    n_columns = 0
    dtype = np.dtype(np.float64)
    is_sparse = False

    @cached_property
    def fingerprint(self) -> str:
        # Blocks are cached by the fingerprint of their source: one without X must not be taken for one that has it.
        return f"without X {self.base.fingerprint}"

    def reader(self) -> ReaderWithoutX:
        return ReaderWithoutX(self.base.reader())  # type: ignore[arg-type]
