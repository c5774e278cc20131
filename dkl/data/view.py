"""View: the rows of a source after steps, such as selected rows, selected columns, and new or added columns."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import dask
import numpy as np
from dask import delayed
from dask.delayed import Delayed

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import RowSource
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from dkl.protocols.source import PARTS, PARTS_WITHOUT_X, BlockReader

# makes the order of a thinned sample independent of a shuffle with the same seed
_THIN_SALT = 0x5448_494E

Parts = tuple[str, ...]


class BlockStep:
    """The operation of a step on one block; small and picklable, as it is sent to the process that reads the block.

    Attributes
    ----------
    needs : tuple of str
        The parts and row columns that it depends on.
    provides : tuple of str
        The row columns that it adds.
    """

    needs: Parts = ()
    provides: Parts = ()

    def needed_before(self, parts: Parts) -> Parts:
        """The parts and row columns that it needs so that `parts` are available afterwards."""
        return tuple(dict.fromkeys([*(name for name in parts if name not in self.provides), *self.needs]))

    def replacement(self) -> Block | None:
        """A block in place of the rows, which are then not read; None if they are read."""
        return None

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        """The block afterwards, and the ascending positions of its remaining rows.

        Parameters
        ----------
        block : Block
            All of its rows; those left out by an earlier step may have any values.
        chosen : ndarray of int64
            The positions of the rows that earlier steps kept.
        parts : tuple of str
            The parts and row columns that are needed afterwards.
        """
        return block, chosen


class RowChoice(BlockStep, ABC):
    """Leaves out rows of one block."""

    @abstractmethod
    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        """The ascending subset of the positions `chosen` that stays."""

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        return block, self.choose(block, chosen)


@dataclass(frozen=True)
class RowsByKey(RowChoice):
    """Keeps rows by the value with which they are held out.

    Parameters
    ----------
    identity : str
        The part of a fingerprint that identifies this choice of rows.
    keeps : callable
        ``keeps(held_with) -> mask``, picklable, of the values `Block.held_with`.
    """

    identity: str
    keeps: Callable[[np.ndarray], np.ndarray]
    needs = ("row_id",)

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        return chosen[self.keeps(block.held_with[chosen])]


class NewColumns(BlockStep, ABC):
    """Replaces the columns of X; does nothing if X is not needed.

    Attributes
    ----------
    is_by_row : bool
        Whether the bits of a row are independent of the other rows, so that it may follow later choices of rows.
    """

    is_by_row: ClassVar[bool] = False

    @abstractmethod
    def new_columns(self, block: Block) -> Rows:
        """The new X of a block that has its X and row ids."""

    def needed_before(self, parts: Parts) -> Parts:
        return tuple(dict.fromkeys([*parts, "row_id"])) if "X" in parts else parts

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        if "X" not in parts:
            return block, chosen
        block = rows_left(block, chosen)
        return replace(block, X=self.new_columns(block)), np.arange(block.n_rows)


class Step(ABC):
    """An operation on all blocks of a source. Methods that a subclass does not define return the values of `before`.

    Attributes
    ----------
    identity : str
        Describes the operation completely; it is part of the rows' fingerprint.
    of_rows : bool
        Whether it selects or changes rows without new columns: the rows of a block are copied once for several such
        steps in a row.
    varies : bool
        Whether the operation differs between blocks: it is then sent with each ticket, otherwise once with the reader.
    is_costly : bool
        Whether a pass takes longer to repeat it than to keep the blocks after it, also of rows in memory.
    """

    of_rows: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    is_costly: ClassVar[bool] = False

    @property
    @abstractmethod
    def identity(self) -> str: ...

    def block_identity(self, index: int) -> str:
        """The identity of the operation on one block; empty if its rows do not change."""
        return self.identity

    def at(self, index: int) -> Any:
        """The `BlockStep` for block `index`: the step itself if it is one."""
        return self

    def block_rows(self, before: RowSource) -> np.ndarray:
        return before.block_rows

    def counts(self, before: RowSource) -> RowCounts | None:
        """The counts afterwards; None if blocks must be read for them."""
        return before.counts

    def n_columns(self, before: RowSource) -> int:
        return before.n_columns

    def columns_along(self, before: RowSource) -> Parts:
        return before.columns_along

    def most_folds(self, before: RowSource) -> int | None:
        return before.most_folds

    def held_rule(self, before: RowSource) -> Any:
        return before.held_rule

    def block_nbytes(self, before: RowSource) -> int:
        return before.block_nbytes

    def read_nbytes(self, before: RowSource) -> int:
        return before.read_nbytes

    def left_nbytes(self, before: RowSource) -> int:
        return before.left_nbytes


class RowStep(Step):
    """A step that selects rows, or changes their targets, weights or row columns."""

    of_rows = True

    def block_nbytes(self, before: RowSource) -> int:
        # the selected rows of a sparse block may be those with the most entries; only for dense rows the share is known
        if before.is_sparse:
            return before.block_nbytes
        share = self.block_rows(before).max() / max(before.block_rows.max(), 1)
        return int(np.ceil(before.block_nbytes * share))

    def read_nbytes(self, before: RowSource) -> int:
        """The bytes of the whole block, which is read first, and of the copy of the rows that all such steps select."""
        if before.steps and before.steps[-1].of_rows:
            return before.read_nbytes
        return before.read_nbytes + before.block_nbytes

    def left_nbytes(self, before: RowSource) -> int:
        """The whole block is there until the columns of the selected rows are made."""
        if before.steps and before.steps[-1].of_rows:
            return before.left_nbytes
        return before.left_nbytes + before.block_nbytes


class View:
    """The rows of a source after one more step; a view of a view reads its base once for all steps.

    See `dkl.data.sources.rows.RowSource` for the attributes.

    Parameters
    ----------
    before : RowSource
        The rows that the step is applied to.
    step : Step
    n_classes : int or None
        Number of classes, so that `counts` can count the rows of each.
    """

    rows_a_block = None

    def __init__(self, before: RowSource, step: Step, *, n_classes: int | None = None) -> None:
        self.before, self.step = before, step
        self.base, self.steps = before.base, (*before.steps, step)
        self.n_blocks, self.blocks_sharing_chunks = before.n_blocks, before.blocks_sharing_chunks
        self.dtype, self.is_sparse, self.has_weight = before.dtype, before.is_sparse, before.has_weight
        self.has_y, self.version, self._n_classes = before.has_y, before.version, n_classes

    @property
    def block_rows(self) -> np.ndarray:
        return self.step.block_rows(self.before)

    @cached_property
    def counts(self) -> RowCounts:
        counts = self.step.counts(self.before)
        return RowCounts.of_blocks(self.blocks_without_x(), self._n_classes) if counts is None else counts

    @property
    def n_columns(self) -> int:
        return self.step.n_columns(self.before)

    @property
    def columns_along(self) -> Parts:
        return self.step.columns_along(self.before)

    @property
    def most_folds(self) -> int | None:
        return self.step.most_folds(self.before)

    @property
    def held_rule(self) -> Any:
        return self.step.held_rule(self.before)

    @cached_property
    def block_nbytes(self) -> int:
        return self.step.block_nbytes(self.before)

    @cached_property
    def read_nbytes(self) -> int:
        return self.step.read_nbytes(self.before)

    @property
    def left_nbytes(self) -> int:
        return self.step.left_nbytes(self.before)

    @property
    def stored_nbytes(self) -> int:
        return self.before.stored_nbytes

    @property
    def place(self) -> str:
        return self.before.place

    @property
    def storage_facts(self) -> Mapping[str, Any]:
        return self.before.storage_facts

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._identity.encode()).hexdigest()

    @property
    def _identity(self) -> str:
        """The text that the fingerprint is a hash of; consecutive steps on rows are hashed together."""
        if not self.step.of_rows:
            return f"{self.before.fingerprint} {self.step.identity}"
        joined = isinstance(self.before, View) and self.before.step.of_rows
        return f"{self.before._identity if joined else self.before.fingerprint}\n{self.step.identity}"  # type: ignore[attr-defined]

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label, the selection of the rows of a block, or a row column changes."""
        identity = self.step.block_identity(index)
        of_block = self.before.block_identity(index)
        return f"{of_block}\n{identity}" if identity else of_block

    def reader(self) -> ViewReader:
        shared = tuple(None if step.varies else step.at(0) for step in self.steps)
        return ViewReader(self.base.reader(), shared, self.columns_along)

    def ticket(self, index: int) -> Any:
        return self.ticket_on(index, self.base.ticket(index))

    def ticket_on(self, index: int, ticket: Any) -> Any:
        """The ticket of block `index`, whose ticket in the base is `ticket`."""
        own = tuple(step.at(index) if step.varies else None for step in self.steps)
        # if Dask computes the rows, it also computes the ticket: the steps are added to the base's graph
        if isinstance(ticket, Delayed):
            return delayed(partial(ViewTicket, own=own), pure=False)(ticket)
        return ViewTicket(ticket, own)

    def blocks_without_x(self, extra: Parts = ()) -> Iterator[Block]:
        parts = (*PARTS_WITHOUT_X, *extra)
        needed = _needed_parts(self._steps_at(0), parts)
        if "X" in needed[0]:
            reader = self.reader()
            for index in range(self.n_blocks):
                (ticket,) = dask.compute(self.ticket(index), traverse=False)
                yield reader.load(ticket, parts)
            return
        for block in self.base.blocks_without_x(tuple(sorted(set(needed[0]) - set(PARTS)))):
            yield _after(block, self._steps_at(block.index), needed)

    def _steps_at(self, index: int) -> tuple[BlockStep, ...]:
        return tuple(step.at(index) for step in self.steps)


@dataclass(frozen=True, eq=False)
class ViewTicket:
    """The ticket of a block, and the operations on it; None refers to the reader's operation for all blocks."""

    base: Any
    own: tuple[BlockStep | None, ...]


@dataclass(frozen=True)
class ViewReader:
    """Reads a block and applies the steps of a view.

    Parameters
    ----------
    base : BlockReader
    shared : tuple of BlockStep or None
        The operations that are the same for all blocks.
    along : tuple of str
        The row columns that are read whenever X is.
    """

    base: BlockReader
    shared: tuple[BlockStep | None, ...]
    along: Parts

    def load(self, ticket: ViewTicket, parts: Parts = PARTS) -> Block:
        """The rows of `ticket`, with only the row columns of `parts`."""
        steps: Any = _choices_first([own or shared for own, shared in zip(ticket.own, self.shared, strict=True)])
        for step in steps:
            if (block := step.replacement()) is not None:
                return block
        needed = _needed_parts(steps, tuple(dict.fromkeys([*parts, *(self.along if "X" in parts else ())])))
        return _after(self.base.load(ticket.base, needed[0]), steps, needed)


def _choices_first(steps: list[Any]) -> list[Any]:
    """The steps of a block in an order in which columns are computed, row by row, of the chosen rows alone."""
    ordered: list[Any] = []
    for step in steps:
        place = len(ordered)
        while isinstance(step, RowChoice) and "X" not in step.needs and place > 0:
            if not (isinstance(ordered[place - 1], NewColumns) and ordered[place - 1].is_by_row):
                break
            place -= 1
        ordered.insert(place, step)
    return ordered


def _needed_parts(steps: Sequence[BlockStep], parts: Parts) -> list[Parts]:
    """The parts that are needed before each of the steps so that `parts`, the last ones, are available at the end."""
    needed = [parts]
    for step in reversed(steps):
        needed.append(step.needed_before(needed[-1]))
    return needed[::-1]


def _after(block: Block, steps: Sequence[BlockStep], needed: Sequence[Parts]) -> Block:
    """A block of the base after the steps; the block itself if all rows are selected and nothing changes."""
    chosen = np.arange(len(block.row_id))
    for step, parts in zip(steps, needed[1:], strict=True):
        block, chosen = step.applied(block, chosen, parts)
    columns = {name: block.columns[name] for name in needed[-1] if name not in PARTS}
    return rows_left(replace(block, columns=columns), chosen)


def rows_left(block: Block, chosen: np.ndarray) -> Block:
    """The selected rows of a block; the block itself if that is all of them."""
    return block if len(chosen) == len(block.row_id) else block.rows(chosen)


@dataclass(frozen=True, eq=False)
class RowsChosen(RowStep):
    """The same selection for all blocks, with known numbers of rows.

    Parameters
    ----------
    choice : RowChoice
        It must have an `identity`.
    rows : ndarray of shape (n_blocks,), int64
        Remaining rows of each block.
    known : RowCounts or None
        Counts of the remaining rows; None counts them when they are needed.
    """

    choice: Any
    rows: np.ndarray
    known: RowCounts | None = None

    @property
    def identity(self) -> str:
        return str(self.choice.identity)

    def at(self, index: int) -> Any:
        return self.choice

    def block_rows(self, before: RowSource) -> np.ndarray:
        return self.rows

    def counts(self, before: RowSource) -> RowCounts | None:
        return self.known


@dataclass(frozen=True)
class Fewest(RowChoice):
    """The `count` rows with the smallest hash of (seed, row id)."""

    count: int
    seed: int
    needs = ("row_id",)

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        if self.count >= len(chosen):
            return chosen
        # by row id, so that the sample does not depend on how the rows are cut into blocks, within their share
        keys = shuffle_keys(block.row_id[chosen], self.seed ^ _THIN_SALT)
        return np.sort(chosen[np.argpartition(keys, self.count)[: self.count]]) if self.count else chosen[:0]


@dataclass(frozen=True, eq=False)
class Thinned(RowStep):
    """A sample of at most `max_rows` rows: each block contributes its share, rounded so that the total is exact.

    Parameters
    ----------
    rows : ndarray of shape (n_blocks,)
        Rows of each block before thinning.
    """

    rows: np.ndarray
    max_rows: int
    seed: int
    varies = True

    @cached_property
    def kept(self) -> np.ndarray:
        """Rows of each block after thinning."""
        # Block b keeps floor(B[b + 1] w / n) - floor(B[b] w / n) of its rows, where B are the rows before each block, w
        # the rows of the sample and n all rows: each within one row of its share, and w in total.
        before = np.concatenate([[0], np.cumsum(self.rows)])
        wanted = min(self.max_rows, int(before[-1]))
        return np.diff(before * wanted // max(int(before[-1]), 1))

    @property
    def identity(self) -> str:
        return f"thin {self.max_rows} {self.seed}"

    def block_identity(self, index: int) -> str:
        return f"thin {self.kept[index]} {self.seed}"

    def block_rows(self, before: RowSource) -> np.ndarray:
        return self.kept

    def counts(self, before: RowSource) -> None:
        return None

    def at(self, index: int) -> Fewest:
        return Fewest(int(self.kept[index]), self.seed)


@dataclass(frozen=True, eq=False)
class KeptColumns(Step, NewColumns):
    """Rows without some of their columns.

    Parameters
    ----------
    kept : ndarray of int
        The columns of X that stay, ascending.
    of : int
        Number of columns before.
    """

    kept: np.ndarray
    of: int

    @property
    def identity(self) -> str:
        return f"columns {self.kept.tolist()} of {self.of}"

    def new_columns(self, block: Block) -> Rows:
        return block.X[:, self.kept]

    def n_columns(self, before: RowSource) -> int:
        return len(self.kept)

    def read_nbytes(self, before: RowSource) -> int:
        """The bytes of the whole block, and of the copy of the selected columns."""
        return before.read_nbytes + before.block_nbytes


@dataclass(frozen=True, eq=False)
class ColumnAlong(Step, BlockStep):
    """A row column that is read whenever X is, computed from X if the source has none of this name.

    Nothing is cached: reading the column alone reads X, block by block.

    Parameters
    ----------
    column : str
        Name of the row column.
    read : callable or None
        From X and the ids of its rows to a value for each row; small, picklable, and with a `repr` that describes it
        completely. Its errors name rows by their ids. None for a row column of the source.
    """

    column: str
    read: Callable[[Rows, np.ndarray], np.ndarray] | None

    @property
    def identity(self) -> str:
        return f"{self.column} {self.read!r}"

    def needed_before(self, parts: Parts) -> Parts:
        if self.read is None or not {"X", self.column} & set(parts):
            return parts
        return tuple(dict.fromkeys(["X", "row_id", *(part for part in parts if part != self.column)]))

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        if self.read is None or not {"X", self.column} & set(parts):
            return block, chosen
        # left-out rows may have values that the column must not have
        block = rows_left(block, chosen)
        chosen = np.arange(block.n_rows)
        if self.column in parts:
            block = replace(block, columns={**block.columns, self.column: self.read(block.X, block.row_id)})
        return block if "X" in parts else block.without_x(), chosen

    def columns_along(self, before: RowSource) -> Parts:
        return (*before.columns_along, self.column)

    def block_nbytes(self, before: RowSource) -> int:
        return before.block_nbytes + 8 * int(before.block_rows.max(initial=0))


class NoColumns(Step, BlockStep):
    """Rows without X, for passes whose records need only the other parts.

    `block_nbytes` stays that of whole rows, as rows in memory or in a graph still include X.
    """

    identity = "without X"

    def needed_before(self, parts: Parts) -> Parts:
        return tuple(name for name in parts if name != "X")

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        # X is removed even from rows in memory or in a graph, so that block functions find the same parts for every
        # source.
        return block.without_x(), chosen

    def columns_along(self, before: RowSource) -> Parts:
        return ()

    def n_columns(self, before: RowSource) -> int:
        return 0
