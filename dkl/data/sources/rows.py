"""RowSource: what the data package asks of a source beyond what a pass does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dkl.data.counts import RowCounts
from dkl.data.schema import Schema, Task
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS, BaseSource, BlockSource


class HeldRule(Protocol):
    """The rule by which rows are held out together: `dkl.data.together.rules` has that of groups and that of times."""

    @property
    def most_folds(self) -> int: ...


class RowSource(BlockSource, Protocol):
    """What the data package asks of a source beyond what a pass does.

    Attributes
    ----------
    has_y : bool
    counts : RowCounts
    held_rule : HeldRule or None
        The rule by which the rows are held out, where groups or times hold them together.
    version : int
        Of the store; 0 elsewhere.
    rows_a_block : int or None
        Rows of the blocks in which a store of these rows is written; None where the rule of stores decides.
    storage_facts : mapping
        How the rows are kept, for `describe`.
    """

    @property
    def has_y(self) -> bool: ...

    @property
    def counts(self) -> RowCounts: ...

    @property
    def held_rule(self) -> HeldRule | None: ...

    @property
    def version(self) -> int: ...

    @property
    def rows_a_block(self) -> int | None: ...

    @property
    def storage_facts(self) -> Mapping[str, Any]: ...

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label, the choice of the rows of a block or what comes with them changes."""
        ...

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        """Every block in turn without its X, read here and now; `extra` names row columns for `Block.columns`."""
        ...


class BaseRows(BaseSource, ABC):
    """What rows outside of stores say of themselves where they have nothing else to say; see `RowSource`."""

    held_rule: HeldRule | None = None
    version: int = 0
    rows_a_block: int | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @property
    def storage_facts(self) -> Mapping[str, Any]:
        """Stores of dkl say how they keep the rows; nobody checks others."""
        return {"checksums": "none: the rows are used where they are, unverified"}

    def block_identity(self, index: int) -> str:
        """The blocks of such rows are known by all rows alone."""
        return f"block {index} of {self.fingerprint}"


def schema_of(
    source: RowSource, task: Task | None, classes: np.ndarray | None, y_shape: tuple[int, ...] = ()
) -> Schema:
    """What is known of the rows of a source, whose targets have this shape, (n,) or (n, t)."""
    return Schema(
        n_columns=source.n_columns,
        dtype=source.dtype,
        is_sparse=source.is_sparse,
        task=task,
        classes=classes,
        n_targets=y_shape[1] if len(y_shape) == 2 else None,
        has_weight=source.has_weight,
    )


class TicketReader:
    """The reader of blocks that are whole in their tickets: rows in memory, or such as Dask has computed."""

    def load(self, ticket: Block, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket` whose weight is not 0; all parts are there already, so none is left out."""
        return drop_weightless(ticket)


def drop_weightless(block: Block) -> Block:
    """The rows whose weight is not 0; the block itself when that is all of them."""
    # The common case costs one look at the weights, and no copy.
    if block.weight is None or block.weight.all():
        return block
    return block.rows(np.flatnonzero(block.weight))


def without_x(block: Block) -> Block:
    """The block with an X of no columns."""
    return replace(block, X=np.empty((len(block.row_id), 0)))


def nbytes_of(block: Block) -> int:
    """Bytes of all arrays of a block."""
    X = block.X
    arrays = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
    return sum(a.nbytes for a in (*arrays, block.y, block.weight, block.row_id) if a is not None)
