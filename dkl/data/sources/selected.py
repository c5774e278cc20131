"""SelectedSource: some rows of a source (a split, a thinned sample), under the same absolute block numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from dask import delayed
from dask.delayed import Delayed

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import PARTS, RowReader, RowSource
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from dkl.protocols.source import WrappedSource

# keeps the order of a thinned sample apart from that of a shuffle with the same seed
_THIN_SALT = 0x5448_494E


class Chooser(Protocol):
    """Which of the rows of one block stay, or what is noted of them. Small and picklable."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        """Those of the positions `chosen` that stay, ascending."""
        ...


class Noting(Protocol):
    """A chooser that keeps all rows and notes something of them: a row column, or what they are held out with."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    @property
    def provides(self) -> tuple[str, ...]:
        """Names of the row columns that no base need be asked for."""
        ...

    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with a note of its rows `chosen`; others may have any."""
        ...


class Step(Protocol):
    """One narrowing of all blocks."""

    @property
    def identity(self) -> str: ...

    def block_identity(self, index: int) -> str:
        """What the choice among the rows of one block depends on."""
        ...

    def at(self, index: int) -> Chooser | Noting: ...


@dataclass(frozen=True)
class Fewest:
    """The `count` rows with the smallest hash of (seed, row id)."""

    count: int
    seed: int
    needs: tuple[str, ...] = ("row_id",)

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        if self.count >= len(chosen):
            return chosen
        # By row id, so that the sample is the same however the rows are cut into blocks within their share.
        keys = shuffle_keys(block.row_id[chosen], self.seed ^ _THIN_SALT)
        return np.sort(chosen[np.argpartition(keys, self.count)[: self.count]]) if self.count else chosen[:0]


@dataclass(frozen=True, eq=False)
class Thinned:
    """A sample of at most `max_rows` rows: each block gives its share, rounded so that the total is exact.

    Parameters
    ----------
    rows : ndarray of shape (n_blocks,)
        Rows of each block before thinning.
    """

    rows: np.ndarray
    max_rows: int
    seed: int

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

    def at(self, index: int) -> Fewest:
        return Fewest(int(self.kept[index]), self.seed)


@dataclass(frozen=True, eq=False)
class SelectedTicket:
    """The ticket of a block and what to keep of its rows; None stands for what the reader has for all blocks."""

    base: Any
    choosers: tuple[Chooser | Noting | None, ...]


@dataclass(frozen=True)
class SelectedReader:
    """Reads a block and keeps the chosen rows."""

    base: RowReader
    shared: tuple[Noting | None, ...]

    def load(self, ticket: SelectedTicket, parts: tuple[str, ...] = PARTS) -> Block:
        choosers: Any = tuple(own or shared for own, shared in zip(ticket.choosers, self.shared, strict=True))
        block = self.base.load(ticket.base, _asked_of_base(parts, choosers))
        return chosen_rows(block, choosers, [name for name in parts if name not in PARTS])


def _asked_of_base(parts: Iterable[str], choosers: tuple[Chooser | Noting, ...]) -> tuple[str, ...]:
    """The parts and the row columns that the choosers need, but for those that choosers note themselves."""
    needs = [name for chooser in choosers for name in chooser.needs]
    provided = {name for chooser in choosers for name in getattr(chooser, "provides", ())}
    return tuple(name for name in dict.fromkeys([*parts, *needs]) if name not in provided)


def chosen_rows(block: Block, choosers: tuple[Chooser | Noting, ...], columns: Iterable[str] = ()) -> Block:
    """The rows that all choosers keep, with the named columns alone; the block itself when that is all of them."""
    chosen = np.arange(len(block.row_id))
    for chooser in choosers:
        if hasattr(chooser, "note"):
            block = chooser.note(block, chosen)
        else:
            chosen = chooser.choose(block, chosen)
    kept = {name: block.columns[name] for name in columns}
    block = Block(block.index, block.X, block.y, block.weight, block.row_id, kept, block.held)
    return block if len(chosen) == len(block.row_id) else block.rows(chosen)


class PartOfBlocks:
    """What sources have in common that keep a part of each block: of its rows, or of its columns."""

    base: RowSource

    @property
    def one_fold(self) -> bool:
        """Whether rows can be held out in one way alone: the newest of them."""
        return most_folds(self) == 1

    @property
    def read_nbytes(self) -> int:
        """The whole block is read first, and is there beside the copy of what stays."""
        return self.base.read_nbytes + self.base.block_nbytes


class SelectedSource(PartOfBlocks, WrappedSource[RowSource]):
    """The rows of `base` that all `steps` keep; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    base : RowSource
    steps : tuple of Step
        Applied in turn.
    rows : ndarray of shape (n_blocks,)
        Rows that are left of each block.
    counts : RowCounts or None
        None has them counted from y and the weights when they are asked for.
    """

    def __init__(
        self,
        base: RowSource,
        steps: tuple[Step, ...],
        rows: np.ndarray,
        *,
        n_classes: int | None,
        counts: RowCounts | None = None,
    ) -> None:
        super().__init__(base)
        self.steps = steps
        self._rows = np.asarray(rows, np.int64)
        self._n_classes = n_classes
        self._counts = counts

    @property
    def has_y(self) -> bool:
        return self.base.has_y

    @property
    def block_rows(self) -> np.ndarray:
        return self._rows

    @cached_property
    def counts(self) -> RowCounts:
        return self._counts or RowCounts.of_blocks(self.blocks_without_x(), self._n_classes)

    @property
    def block_nbytes(self) -> int:
        # The rows that are kept may be the fullest of a sparse block, so only those of dense rows take a known share.
        if self.is_sparse:
            return self.base.block_nbytes
        share = self.block_rows.max() / max(self.base.block_rows.max(), 1)
        return int(np.ceil(self.base.block_nbytes * share))

    @property
    def fingerprint(self) -> str:
        steps = "\n".join(step.identity for step in self.steps)
        return hashlib.sha256(f"{self.base.fingerprint}\n{steps}".encode()).hexdigest()

    def block_identity(self, index: int) -> str:
        """Changes whenever a value, a label or the choice of the rows of a block changes."""
        of_base: Any = self.base
        steps = [step.block_identity(index) for step in self.steps]
        return "\n".join([of_base.block_identity(index), *filter(None, steps)])

    def reader(self) -> SelectedReader:
        return SelectedReader(self.base.reader(), tuple(getattr(step, "rule", None) for step in self.steps))

    def ticket(self, index: int) -> Any:
        base = self.base.ticket(index)
        choosers = tuple(None if hasattr(step, "rule") else step.at(index) for step in self.steps)
        # Where the rows are computed by Dask, so is the ticket: the choosers are added to what the base's graph makes.
        if isinstance(base, Delayed):
            return delayed(partial(SelectedTicket, choosers=choosers), pure=False)(base)
        return SelectedTicket(base, choosers)

    def _choosers(self, index: int) -> tuple[Chooser | Noting, ...]:
        return tuple(step.at(index) for step in self.steps)

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        asked = _asked_of_base(extra, self._choosers(0))
        for block in self.base.blocks_without_x(tuple(sorted({*asked} - {"row_id"}))):
            yield chosen_rows(block, self._choosers(block.index), extra)


def most_folds(source: Any) -> int | None:
    """How many folds there can be: one of rows held out by time, of few groups as many; None is any number.

    A source may say so itself: target means are made for one share of held-out rows.
    """
    own: int | None = getattr(source, "most_folds", None)
    if own is not None:
        return own
    rules = [rule for step in getattr(source, "steps", ()) if (rule := getattr(step, "rule", None)) is not None]
    if rules:
        return rules[-1].most_folds
    return most_folds(source.base) if hasattr(source, "base") else None


def holding_steps(source: Any) -> tuple[Step, ...]:
    """The last step in a chain of sources that says what rows are held out with, if there is one."""
    while source is not None:
        if steps := [step for step in getattr(source, "steps", ()) if hasattr(step, "rule")]:
            return (steps[-1],)
        source = getattr(source, "base", None)
    return ()


def narrowed(
    source: RowSource, step: Step, rows: np.ndarray, *, n_classes: int | None, counts: RowCounts | None = None
) -> SelectedSource:
    """`source` after one more step; steps on one base are kept in one list, so that rows are copied once."""
    # A view of a view: one list of steps, so that the rows of a block are copied once at the end.
    if isinstance(source, SelectedSource):
        return SelectedSource(source.base, (*source.steps, step), rows, n_classes=n_classes, counts=counts)
    return SelectedSource(source, (step,), rows, n_classes=n_classes, counts=counts)
