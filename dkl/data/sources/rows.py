"""RowSource: the methods of a source that the data package needs in addition to those for passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from dkl.data.checks import check_rows, checked_weight
from dkl.data.counts import RowCounts
from dkl.data.given import GivenValues
from dkl.data.labels import block_targets
from dkl.data.schema import Schema, Task
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.source import PARTS, PARTS_WITHOUT_X, BaseSource, BlockSource


class RowSource(BlockSource, Protocol):
    """The methods of a source that the data package needs in addition to those for passes.

    Attributes
    ----------
    has_y : bool
    counts : RowCounts
    held_rule : dkl.data.together.rules.HeldTogether or None
        The rule by which rows are held out; None if neither groups nor times require one.
    version : int
        Version of the store; 0 for other rows.
    rows_a_block : int or None
        Rows of the blocks when these rows are written to a store; None uses the rule of stores.
    storage_facts : mapping
        Properties of the storage, for `describe`.
    """

    @property
    def has_y(self) -> bool: ...

    @property
    def counts(self) -> RowCounts: ...

    @property
    def held_rule(self) -> Any: ...

    @property
    def version(self) -> int: ...

    @property
    def rows_a_block(self) -> int | None: ...

    @property
    def storage_facts(self) -> Mapping[str, Any]: ...

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label, the selection of the rows of a block, or a row column changes."""
        ...

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        """Every block in order without its X, read in this process; `extra` names row columns for `Block.columns`."""
        ...


class BaseRows(BaseSource, ABC):
    """Default properties of a source that reads rows, mainly for rows outside stores; see `RowSource`."""

    held_rule: Any = None
    version: int = 0
    rows_a_block: int | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @property
    def storage_facts(self) -> Mapping[str, Any]:
        """Properties of the storage: only stores of dkl have checksums."""
        return {"checksums": "none: the rows are used where they are, unverified"}

    def reader(self) -> Any:
        """The reader of rows in memory or in a graph, whose tickets become the blocks."""
        return TicketReader()

    def block_identity(self, index: int) -> str:
        """The identity of a block, here from the fingerprint of all rows."""
        return f"block {index} of {self.fingerprint}"

    @property
    def block_rows(self: RowSource) -> np.ndarray:
        return self.counts.rows

    def blocks_without_x(self: RowSource, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        reader = self.reader()
        return (reader.load(self.ticket(index), (*PARTS_WITHOUT_X, *extra)) for index in range(self.n_blocks))


def schema_of(
    source: RowSource, task: Task | None, classes: np.ndarray | None, y_shape: tuple[int, ...] = ()
) -> Schema:
    """The schema for the rows of a source, with targets of shape (n,) or (n, t)."""
    return Schema(
        n_columns=source.n_columns,
        dtype=source.dtype,
        is_sparse=source.is_sparse,
        task=task,
        classes=classes,
        n_targets=y_shape[1] if len(y_shape) == 2 else None,
        has_weight=source.has_weight,
    )


def checked_block(
    index: int, first_row: int, X: Rows, y: GivenValues, weight: GivenValues, classes: np.ndarray | None
) -> Block:
    """A block of rows as they were given: y as codes of `classes`, or as numbers if these are None; all checked.

    Parameters
    ----------
    index : int
    first_row : int
        The number of the first row.
    X : ndarray or csr_array of shape (n, d)
        In the form of `dkl.data.checks.as_rows`; d is 0 for targets and weights alone.
    y, weight : array of shape (n, ...) or None
        Rows of weight 0 may have any values, and stay in the block.
    classes : ndarray of shape (K,) or None
    """
    n_rows = X.shape[0]
    weight = checked_weight(weight, n_rows, first_row=first_row)
    codes = None if y is None else block_targets(y, n_rows, classes, weight, first_row=first_row)
    check_rows(X, first_row=first_row, weight=weight)
    return Block(index, X, codes, weight, np.arange(first_row, first_row + n_rows, dtype=np.int64))


class TicketReader:
    """The reader of blocks that are their own tickets: rows in memory, or computed by Dask."""

    def block(self, ticket: Any) -> Block:
        """The block that a ticket stands for, from which no row of weight 0 was dropped yet."""
        block: Block = ticket
        return block

    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket` whose weight is not 0, with all parts but an X that is not asked for."""
        block = self.block(ticket)
        return drop_weightless(block if "X" in parts else block.without_x())


def drop_weightless(block: Block) -> Block:
    """The rows whose weight is not 0; the block itself if that is all of them."""
    # the common case only checks the weights, and copies nothing
    if block.weight is None or block.weight.all():
        return block
    return block.rows(np.flatnonzero(block.weight))
