"""Pieces of a fold: which there are, in what order, and how a process makes one of them by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dkl.errors import located
from dkl.passes.backends import current_client
from dkl.passes.reading import LOADER
from dkl.passes.tasks import StopFlag, working
from dkl.passes.work import ReadCounts, Ticket, Work
from dkl.process import after_fork
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


class PieceCache:
    """Pieces that the next fold makes alike, up to a number of bytes: the first ones that come.

    All pieces are needed again before any of them is needed twice, so that none gives way to another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._kept: dict[tuple[int, int], tuple[Any, int]] = {}
        self._left = 0

    def get(self, name: str, block: int, number: int) -> tuple[Any, int] | None:
        """The piece and the rows of its block; None where it is not kept."""
        with self._lock:
            return self._kept.get((block, number)) if name == self._name else None

    def put(self, name: str, cut: tuple[int, int], piece: Any, n_rows: int, *, nbytes: int, capacity: int) -> None:
        """Keep a piece of so many bytes if there is room; pieces of another name go."""
        with self._lock:
            if name != self._name:
                self._name, self._left = name, capacity
                self._kept.clear()
            if nbytes <= self._left and cut not in self._kept:
                self._kept[cut] = piece, n_rows
                self._left -= nbytes

    def clear(self) -> None:
        """Forget all pieces: the folds that share them are done."""
        with self._lock:
            self._name = ""
            self._kept.clear()


PIECES = PieceCache()
after_fork(PIECES.__init__)  # type: ignore[misc]


def forget_pieces() -> None:
    """Free the pieces that this process, and the workers of a cluster, have kept for further folds."""
    PIECES.clear()
    if (client := current_client()) is not None:
        client.run(_forget_here, on_error="return")


def _forget_here() -> None:
    PIECES.clear()


def make_piece(work: Work, ticket: Ticket, number: int, stop: StopFlag) -> Made:
    """Piece `number` of a block; the first that a process makes of the block reads it for all."""
    stop.check()
    fold = fold_of(work)
    if (kept := PIECES.get(fold.kept_as, ticket.number, number)) is not None:
        piece, rows = kept
        reading = ReadCounts() if number else ReadCounts(1, rows, cache_hits=1)
        with working(work):
            return Made(_arranged(fold, piece, ticket.number, number), reading)
    with working(work):
        block, reading = LOADER.share(work, ticket)
        # The block and its rows are counted by its first piece alone; every piece counts the bytes that it read.
        if number:
            reading = replace(reading, blocks=0, rows=0)
        with located(f"block {block.index} of {work.place}"):
            piece = fold.prepare(block, {**fold.operands, "device": work.device}, number)
            if fold.kept_as and piece is not None and work.device == "cpu":
                cut, room = (block.index, number), work.limits.piece_bytes
                PIECES.put(fold.kept_as, cut, piece, block.n_rows, nbytes=fold.piece_bytes, capacity=room)
            return Made(_arranged(fold, piece, block.index, number), reading)


def _arranged(fold: Fold, piece: Any, block: int, number: int) -> Any:
    """A piece as this fold steps through it."""
    if fold.arrange is None or piece is None:
        return piece
    return fold.arrange(piece, fold.operands, block, number)


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
