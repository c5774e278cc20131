"""Pieces of a fold: which there are, in what order, and how a process makes one of them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dkl.data.store.ledger import LEDGER
from dkl.errors import located
from dkl.kernels.device import Device, refuse_now
from dkl.passes.backends import current_client
from dkl.passes.reading import LOADER, PIECES
from dkl.passes.session import stays_here
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


def forget_pieces(source: BlockSource, device: Device) -> None:
    """Free the pieces of a source that this process, or the workers of a cluster, have kept for further passes."""
    PIECES.clear()
    if (client := current_client()) is not None and not stays_here(source, device):
        client.run(_forget_here, on_error="return")


def _forget_here() -> None:
    PIECES.clear()


def make_piece(work: Work, ticket: Ticket, number: int, stop: StopFlag) -> Made:
    """Piece `number` of a block; the first that a process makes of the block reads it for all."""
    stop.check()
    fold = fold_of(work)
    if (kept := PIECES.get(fold.kept_as, (ticket.number, number))) is not None:
        piece, rows = kept
        reading = ReadCounts() if number else ReadCounts(1, rows, cache_hits=1)
        with working(work):
            return Made(_arranged(fold, piece, ticket.number, number), reading)
    with working(work):
        block, reading = LOADER.share(work, ticket)
        reading = replace(reading, noted=LEDGER.taken())
        # The block and its rows are counted by its first piece alone; every piece counts the bytes that it read.
        if number:
            reading = replace(reading, blocks=0, rows=0)
        with located(f"block {block.index} of {work.place}"):
            piece = fold.prepare(block, {**fold.operands, "device": work.device}, number)
            # steps are taken by another thread, which would not hear of it
            refuse_now()
            if fold.kept_as and piece is not None and work.device == "cpu":
                key, room = (block.index, number), work.limits.piece_bytes
                if PIECES.claim(fold.kept_as, fold.piece_bytes, room):
                    PIECES.put(fold.kept_as, key, (piece, block.n_rows))
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
