"""View: the rows of a source after steps, such as chosen rows, kept columns, and columns added or made anew."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import dask
import numpy as np
from dask import delayed
from dask.delayed import Delayed

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import HeldRule, RowSource, without_x
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from dkl.protocols.source import PARTS, PARTS_WITHOUT_X, BlockReader

# keeps the order of a thinned sample apart from that of a shuffle with the same seed
_THIN_SALT = 0x5448_494E

Parts = tuple[str, ...]


class BlockStep:
    """What a step does to one block: small and picklable, since it travels to where the block is read."""

    def asks(self, parts: Parts) -> Parts:
        """The parts and row columns that must be there before, so that `parts` are there afterwards."""
        return parts

    def instead(self) -> Block | None:
        """A block that stands for the rows, which need not be read then; None where they are read."""
        return None

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        """The block afterwards, and the positions of those of its rows that are left, ascending.

        Parameters
        ----------
        block : Block
            All of its rows; those that an earlier step left out may have any values.
        chosen : ndarray of int64
            The positions of the rows that earlier steps left.
        parts : tuple of str
            The parts and row columns that are asked for afterwards.
        """
        return block, chosen


class RowChoice(BlockStep, ABC):
    """Leaves out rows of one block.

    Attributes
    ----------
    needs : tuple of str
        The parts and row columns that the choice looks at.
    """

    needs: Parts = ()

    @abstractmethod
    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        """Those of the positions `chosen` that stay, ascending."""

    def asks(self, parts: Parts) -> Parts:
        return tuple(dict.fromkeys([*parts, *self.needs]))

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        return block, self.choose(block, chosen)


class RowNote(BlockStep, ABC):
    """Adds a row column to one block, or changes its targets, its weights or what its rows are held out with.

    Attributes
    ----------
    needs : tuple of str
        The parts and row columns that the note is made of.
    provides : tuple of str
        The row columns that it adds.
    """

    needs: Parts = ()
    provides: Parts = ()

    @abstractmethod
    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with the note on its rows `chosen`; others may have any."""

    def asks(self, parts: Parts) -> Parts:
        return tuple(dict.fromkeys([*(name for name in parts if name not in self.provides), *self.needs]))

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        return self.note(block, chosen), chosen


class ColumnsMade(BlockStep, ABC):
    """Makes other columns of X; nothing is done where X is not asked for."""

    @abstractmethod
    def made(self, block: Block) -> Rows:
        """The rows of `block`, which has its X and row ids, with other columns."""

    def asks(self, parts: Parts) -> Parts:
        return tuple(dict.fromkeys([*parts, "row_id"])) if "X" in parts else parts

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        if "X" not in parts:
            return block, chosen
        block = rows_left(block, chosen)
        return replace(block, X=self.made(block)), np.arange(block.n_rows)


class Step(ABC):
    """One thing that is done to all blocks of a source. What a subclass does not define stays as it was `before`.

    Attributes
    ----------
    identity : str
        Says all of what is done; the fingerprint of the rows is made of it.
    of_rows : bool
        Whether rows are chosen, or something is noted of them: the rows of a block are copied once for several such
        steps in a row.
    varies : bool
        Whether blocks differ in what is done to them: it then travels with each ticket, and otherwise once with the
        reader.
    """

    of_rows: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    @property
    @abstractmethod
    def identity(self) -> str: ...

    def block_identity(self, index: int) -> str:
        """What is done to one block; empty where its rows stay what they are."""
        return self.identity

    def at(self, index: int) -> Any:
        """The `BlockStep` that is done to block `index`: the step itself where it is one."""
        return self

    def block_rows(self, before: RowSource) -> np.ndarray:
        return before.block_rows

    def counts(self, before: RowSource) -> RowCounts | None:
        """The counts afterwards; None where the blocks have to be read for them."""
        return before.counts

    def n_columns(self, before: RowSource) -> int:
        return before.n_columns

    def columns_along(self, before: RowSource) -> Parts:
        return before.columns_along

    def most_folds(self, before: RowSource) -> int | None:
        return before.most_folds

    def held_rule(self, before: RowSource) -> HeldRule | None:
        return before.held_rule

    def block_nbytes(self, before: RowSource) -> int:
        return before.block_nbytes

    def read_nbytes(self, before: RowSource) -> int:
        return before.read_nbytes


class RowStep(Step):
    """A step that chooses rows, or notes something of them."""

    of_rows = True

    def block_nbytes(self, before: RowSource) -> int:
        # The rows that are kept may be the fullest of a sparse block, so only those of dense rows take a known share.
        if before.is_sparse:
            return before.block_nbytes
        share = self.block_rows(before).max() / max(before.block_rows.max(), 1)
        return int(np.ceil(before.block_nbytes * share))

    def read_nbytes(self, before: RowSource) -> int:
        """The whole block is read first, and is there beside the copy of the rows that all such steps leave."""
        if before.steps and before.steps[-1].of_rows:
            return before.read_nbytes
        return before.read_nbytes + before.block_nbytes


class View:
    """The rows of a source after one more step; a view of a view reads its base once, for all steps together.

    See `dkl.data.sources.rows.RowSource` for the attributes.

    Parameters
    ----------
    before : RowSource
    step : Step
    n_classes : int or None
        Of the rows, where they have to be counted.
    """

    rows_a_block = None

    def __init__(self, before: RowSource, step: Step, *, n_classes: int | None = None) -> None:
        self.before, self.step = before, step
        self.base, self.steps = before.base, (*before.steps, step)
        self.n_blocks, self.blocks_together = before.n_blocks, before.blocks_together
        self.dtype, self.is_sparse, self.has_weight = before.dtype, before.is_sparse, before.has_weight
        self.has_y, self.version, self._n_classes = before.has_y, before.version, n_classes

    @property
    def block_rows(self) -> np.ndarray:
        return self.step.block_rows(self.before)

    @cached_property
    def counts(self) -> RowCounts:
        known = self.step.counts(self.before)
        return RowCounts.of_blocks(self.blocks_without_x(), self._n_classes) if known is None else known

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
    def held_rule(self) -> HeldRule | None:
        return self.step.held_rule(self.before)

    @property
    def block_nbytes(self) -> int:
        return self.step.block_nbytes(self.before)

    @property
    def read_nbytes(self) -> int:
        return self.step.read_nbytes(self.before)

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
        """What the fingerprint is a hash of; steps on rows that follow each other are in one."""
        if not self.step.of_rows:
            return f"{self.before.fingerprint} {self.step.identity}"
        joined = isinstance(self.before, View) and self.before.step.of_rows
        return f"{self.before._identity if joined else self.before.fingerprint}\n{self.step.identity}"  # type: ignore[attr-defined]

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label, the choice of the rows of a block or what comes with them changes."""
        identity = self.step.block_identity(index)
        of_block = self.before.block_identity(index)
        return f"{of_block}\n{identity}" if identity else of_block

    def reader(self) -> ViewReader:
        shared = tuple(None if step.varies else step.at(0) for step in self.steps)
        return ViewReader(self.base.reader(), shared, self.columns_along)

    def ticket(self, index: int) -> Any:
        return self.ticket_on(index, self.base.ticket(index))

    def ticket_on(self, index: int, ticket: Any) -> Any:
        """The ticket of block `index`, where the base has `ticket` of it."""
        own = tuple(step.at(index) if step.varies else None for step in self.steps)
        # Where the rows are computed by Dask, so is the ticket: the steps are added to what the base's graph makes.
        if isinstance(ticket, Delayed):
            return delayed(partial(ViewTicket, own=own), pure=False)(ticket)
        return ViewTicket(ticket, own)

    def blocks_without_x(self, extra: Parts = ()) -> Iterator[Block]:
        parts = (*PARTS_WITHOUT_X, *extra)
        asked = _asked(self._steps_at(0), parts)
        if "X" in asked[0]:
            reader = self.reader()
            for index in range(self.n_blocks):
                (ticket,) = dask.compute(self.ticket(index), traverse=False)
                yield reader.load(ticket, parts)
            return
        for block in self.base.blocks_without_x(tuple(sorted(set(asked[0]) - set(PARTS)))):
            yield _after(block, self._steps_at(block.index), asked)

    def _steps_at(self, index: int) -> tuple[BlockStep, ...]:
        return tuple(step.at(index) for step in self.steps)


@dataclass(frozen=True, eq=False)
class ViewTicket:
    """The ticket of a block, and what is done to it; None stands for what the reader has for all blocks."""

    base: Any
    own: tuple[BlockStep | None, ...]


@dataclass(frozen=True)
class ViewReader:
    """Reads a block and does to it what the steps of a view say.

    Parameters
    ----------
    base : BlockReader
    shared : tuple of BlockStep or None
        What is done to all blocks alike.
    along : tuple of str
        The row columns that come whenever X does.
    """

    base: BlockReader
    shared: tuple[BlockStep | None, ...]
    along: Parts

    def load(self, ticket: ViewTicket, parts: Parts = PARTS) -> Block:
        """The rows of `ticket`, with the row columns of `parts` alone."""
        steps: Any = tuple(own or shared for own, shared in zip(ticket.own, self.shared, strict=True))
        for step in steps:
            if (block := step.instead()) is not None:
                return block
        asked = _asked(steps, tuple(dict.fromkeys([*parts, *(self.along if "X" in parts else ())])))
        return _after(self.base.load(ticket.base, asked[0]), steps, asked)


def _asked(steps: Sequence[BlockStep], parts: Parts) -> list[Parts]:
    """The parts that are asked for before each of the steps, so that `parts`, the last ones, are there in the end."""
    asked = [parts]
    for step in reversed(steps):
        asked.append(step.asks(asked[-1]))
    return asked[::-1]


def _after(block: Block, steps: Sequence[BlockStep], asked: Sequence[Parts]) -> Block:
    """A block of the base after the steps; the block itself where all of its rows are left and nothing is changed."""
    chosen = np.arange(len(block.row_id))
    for step, parts in zip(steps, asked[1:], strict=True):
        block, chosen = step.done(block, chosen, parts)
    columns = {name: block.columns[name] for name in asked[-1] if name not in PARTS}
    return rows_left(replace(block, columns=columns), chosen)


def rows_left(block: Block, chosen: np.ndarray) -> Block:
    """The chosen rows of a block; the block itself where that is all of them."""
    return block if len(chosen) == len(block.row_id) else block.rows(chosen)


@dataclass(frozen=True, eq=False)
class RowsChosen(RowStep):
    """One choice for all blocks, of which is known how many rows it leaves.

    Parameters
    ----------
    choice : RowChoice
        With an `identity`.
    rows : ndarray of shape (n_blocks,), int64
        Rows of each block that are left.
    known : RowCounts or None
        None has the rows counted when somebody asks.
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
        # By row id, so that the sample is the same however the rows are cut into blocks within their share.
        keys = shuffle_keys(block.row_id[chosen], self.seed ^ _THIN_SALT)
        return np.sort(chosen[np.argpartition(keys, self.count)[: self.count]]) if self.count else chosen[:0]


@dataclass(frozen=True, eq=False)
class Thinned(RowStep):
    """A sample of at most `max_rows` rows: each block gives its share, rounded so that the total is exact.

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
        # the rows wanted and n all rows: each within one row of its share, and w in all.
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
class KeptColumns(Step, ColumnsMade):
    """Rows without some of their columns.

    Parameters
    ----------
    kept : ndarray of int
        The columns of X that stay, ascending.
    of : int
        How many there were.
    """

    kept: np.ndarray
    of: int

    @property
    def identity(self) -> str:
        return f"columns {self.kept.tolist()} of {self.of}"

    def made(self, block: Block) -> Rows:
        return block.X[:, self.kept]

    def n_columns(self, before: RowSource) -> int:
        return len(self.kept)

    def read_nbytes(self, before: RowSource) -> int:
        """The whole block is there beside the copy of the columns that stay."""
        return before.read_nbytes + before.block_nbytes


class ReadOfX(Protocol):
    """What is read from rows; small, picklable, with a `repr` that says all of it."""

    def __call__(self, X: Rows, row_id: np.ndarray) -> np.ndarray:
        """One value a row, (n,); errors name rows by their ids."""
        ...


@dataclass(frozen=True, eq=False)
class ColumnAlong(Step, BlockStep):
    """A row column that comes whenever X does, read from X where the source has none of this name.

    Nothing of it is held: whoever asks for the column alone reads X, block by block.

    Parameters
    ----------
    column : str
        The name of the row column.
    read : ReadOfX or None
        None for a row column of the source.
    dropped : int or None
        The column of X that is taken out.
    """

    column: str
    read: ReadOfX | None
    dropped: int | None = None

    @property
    def identity(self) -> str:
        return f"{self.column} {self.read!r} {self.dropped}"

    def asks(self, parts: Parts) -> Parts:
        if self.read is None or not {"X", self.column} & set(parts):
            return parts
        return tuple(dict.fromkeys(["X", "row_id", *(part for part in parts if part != self.column)]))

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        if self.read is None or not {"X", self.column} & set(parts):
            return block, chosen
        # rows that are left out may hold no value that the column may have
        block = rows_left(block, chosen)
        chosen = np.arange(block.n_rows)
        if self.column in parts:
            block = replace(block, columns={**block.columns, self.column: self.read(block.X, block.row_id)})
        if "X" not in parts:
            return without_x(block), chosen
        if self.dropped is None:
            return block, chosen
        return replace(block, X=block.X[:, np.flatnonzero(np.arange(block.X.shape[1]) != self.dropped)]), chosen

    def columns_along(self, before: RowSource) -> Parts:
        return (*before.columns_along, self.column)

    def n_columns(self, before: RowSource) -> int:
        return before.n_columns - (self.dropped is not None)

    def block_nbytes(self, before: RowSource) -> int:
        return before.block_nbytes + 8 * int(before.block_rows.max(initial=0))

    def read_nbytes(self, before: RowSource) -> int:
        """The whole rows are there beside the copy without the column."""
        return before.read_nbytes + (0 if self.dropped is None else before.block_nbytes)


class NoColumns(Step, BlockStep):
    """Rows without their X, for passes whose records look at everything else alone.

    `block_nbytes` stays that of whole rows: those in memory or in a graph come with their X.
    """

    identity = "without X"

    def asks(self, parts: Parts) -> Parts:
        return tuple(name for name in parts if name != "X")

    def done(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        # Rows in memory, or from a graph, come with their X all the same: without it a block function never finds
        # columns that those of another source would not have.
        return without_x(block), chosen

    def columns_along(self, before: RowSource) -> Parts:
        return ()

    def n_columns(self, before: RowSource) -> int:
        return 0
