"""Pieces of a fold: which there are, in what order, and how a process makes one of them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dkl.errors import located
from dkl.passes.reading import LOADER
from dkl.passes.tasks import StopFlag, working
from dkl.passes.work import ReadCounts, Ticket, Work
from dkl.protocols.records import Fold
from dkl.protocols.source import BlockSource

MAP_NAME = "map rows"


class Cut(NamedTuple):
    """Which piece: `number` of a block that can have at most `of`."""

    block: int
    number: int
    of: int

    @property
    def is_last(self) -> bool:
        return self.number == self.of - 1


@dataclass(frozen=True, eq=False)
class Made:
    """A piece (None where the block has fewer), and what reading the block came to: counted once, by the first."""

    piece: Any
    reading: ReadCounts


def cuts(fold: Fold, source: BlockSource, order: Iterable[int]) -> Iterator[Cut]:
    """All pieces in the order of the fold; a block that has no rows has no pieces."""
    for block in order:
        # How many pieces there are must be known before a block is read: the order of the steps is fixed by it.
        rows = int(source.block_rows[block])
        of = fold.pieces(rows) if rows else 0
        yield from (Cut(int(block), number, of) for number in range(of))


def make_piece(work: Work, ticket: Ticket, number: int, stop: StopFlag) -> Made:
    """Piece `number` of a block; the first that a process makes of the block reads it for all."""
    stop.check()
    fold = fold_of(work)
    with working(work):
        block, reading = LOADER.share(work, ticket)
        # The block and its rows are counted by its first piece alone; every piece counts the bytes that it read.
        if number:
            reading = replace(reading, blocks=0, rows=0)
        with located(f"block {block.index} of {work.place}"):
            return Made(fold.prepare(block, {**fold.operands, "device": work.device}, number), reading)


def stepped(work: Work, state: object, cut: Cut, made: Made) -> Any:
    """The state after a piece; a block may turn out to have fewer pieces than were announced."""
    if made.piece is None:
        return state
    fold = fold_of(work)
    with located(f"block {cut.block} of {work.place}"):
        return fold.step(state, made.piece, fold.operands)


def fold_of(work: Work) -> Fold:
    """The one record of a fold's pass."""
    fold = work.records[0]
    if not isinstance(fold, Fold):
        raise TypeError(f"expected a fold, got {type(fold).__name__}")
    return fold
