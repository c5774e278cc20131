"""A fold: pieces are prepared in parallel a bounded number ahead; one worker, or this process, steps through them.

Which pieces there are, in what order, and how a process makes one of them stands at the end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dkl.data.store.ledger import LEDGER
from dkl.errors import located
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import Device, refuse_now
from dkl.passes.backends import current_client
from dkl.passes.dispatch import Dispatcher, Job
from dkl.passes.lost_workers import Task, TaskHeldUp, TaskLost, counted_loss, wait_done
from dkl.passes.memory import PIECES_A_THREAD
from dkl.passes.reading import LOADER, PIECES
from dkl.passes.session import Session, stays_here
from dkl.passes.tasks import StopFlag, working
from dkl.passes.transport import Carried, unpacked
from dkl.passes.work import ReadCounts, Ticket, Work
from dkl.protocols.records import Fold
from dkl.protocols.source import BlockSource

# Steps between two states that come to the driver: what a lost chain has to do again at most. A state may be large (the
# weights of a model and their averages), so that each of them costs a journey.
KEEP_EVERY = 32
# Pieces that lie with the worker that steps before their turn: the one at work and the next.
AT_HAND = 2


@dataclass(frozen=True, eq=False)
class Progress:
    """The state after a piece, and what reading came to since the state was kept last."""

    state: Any
    reading: ReadCounts


@dataclass(eq=False)
class Link:
    """A piece under way: where it is made, the task that makes it, the one that steps through it."""

    cut: Cut
    worker: str
    made: Task
    step: Task | None = None

    @property
    def tasks(self) -> list[Task]:
        return [task for task in (self.made, self.step) if task is not None]


def carried_piece(*args: Any) -> Carried:
    """`make_piece`, for a step that may be elsewhere."""
    return Carried(make_piece(*args))


def at_hand(made: Made) -> Carried:
    """A piece of another worker; a task of its own, so that it travels while the piece before is stepped through."""
    return Carried(made)


def step_through(work: Work, before: object, cut: Cut, made: Made) -> Carried:
    """One step; `before` is the progress that the step before ended with, or a state to begin from."""
    state, reading = (before.state, before.reading) if isinstance(before, Progress) else (before, ReadCounts())
    with one_blas_thread():
        state = stepped(work, state, cut, made)
    return Carried(Progress(state, reading + made.reading))


class Chain:
    """The pieces of a fold on a cluster, each stepped through when it and the state before it are there.

    The state stays on the first worker; pieces are made by all workers, so many ahead on each that what it holds is
    bounded. Every task is pinned to its worker, which makes that a promise: no scheduler heaps up pieces on a worker
    that happens to be idle. So the chain is lost with any worker that it needs; every so many pieces the state comes
    to the driver, and a lost chain starts again from there, on the workers that are there by then.
    """

    def __init__(self, session: Session, initial: object, cuts: Sequence[Cut]) -> None:
        self._session = session
        self._backend = session.backend
        self._cuts = cuts
        # Pieces stepped through up to the state that the driver holds, and that state.
        self._kept: tuple[int, Any] = (0, initial)
        # Pieces whose blocks were counted: a lost chain steps through some of them again.
        self._reported = 0
        self._losses = 0
        self._begin()

    def run(self) -> Any:
        """The state after the last piece."""
        try:
            while self._kept[0] < len(self._cuts):
                self._map_ahead()
                self._step_ahead()
                try:
                    self._take_oldest()
                except TaskLost as error:
                    self._restart(error)
            return self._kept[1]
        finally:
            self._cancel()

    def _begin(self) -> None:
        """Nothing is under way; what is to come starts from the state that was kept."""
        self._links: deque[Link] = deque()
        self._taken = self._kept[0]
        # The task of the newest step; None where the next one begins from the state of the driver.
        self._state: Task | None = None
        # Whether the steps wait for pieces: then the worker that steps makes some, too.
        self._starved = True
        self._ticket: tuple[int, Ticket | None] = (-1, None)
        self._known: list[str] = []
        # Of each worker: how many further pieces it may hold before they are stepped through.
        self._room: dict[str, int] = {}
        self._welcome()
        # The worker that steps, and keeps the state, is the first by its address: any would do, as long as all agree.
        self._home = min(self._known)

    def _welcome(self) -> None:
        """Workers that are new get their share of pieces."""
        slots = self._backend.slots()
        # A backend hands out the same list until its workers change.
        if slots is self._known:
            return
        self._known, most = slots, self._session.limits.tasks
        for worker, threads in Counter(slots).items():
            self._room.setdefault(worker, PIECES_A_THREAD * min(threads, most))

    def _map_ahead(self) -> None:
        """Let pieces be made, in order, until every worker has its share of pieces that wait for their steps."""
        self._welcome()
        while (number := self._taken + len(self._links)) < len(self._cuts) and (worker := self._roomy()):
            cut = self._cuts[number]
            self._room[worker] -= 1
            work, ticket, stop = self._session.shared_work(), self._ticket_of(cut.block), self._backend.stop
            made = self._backend.submit(
                MAP_NAME, carried_piece, work, ticket, cut.number, stop, slot=worker, pinned=True
            )
            self._links.append(Link(cut, worker, made))

    def _roomy(self) -> str | None:
        """The worker of the next piece: the last one's, which has the block at hand, else the one with most room.

        The worker that steps has a thread less for pieces while pieces are there before their steps.
        """
        # Room is what a worker may still make ahead. The one that steps makes fewer pieces, since it has a thread less
        # for them.
        room = {worker: self._room[worker] for worker in dict.fromkeys(self._known)}
        if len(room) > 1 and not self._starved:
            room[self._home] = room.get(self._home, 0) - PIECES_A_THREAD
        if self._links and room.get(self._links[-1].worker, 0) > 0:
            return self._links[-1].worker
        # Among equals not the worker that steps: it has work enough.
        best = max(room, key=lambda worker: (room[worker], worker != self._home))
        return best if room[best] > 0 else None

    def _ticket_of(self, block: int) -> Ticket:
        """Rows that travel are sent once for all pieces of their block."""
        if self._ticket[0] != block or self._ticket[1] is None:
            self._ticket = (block, self._session.ticket(block))
        return self._ticket[1]  # type: ignore[return-value]

    def _step_ahead(self) -> None:
        """Submit the next steps and bring their pieces, but not beyond the step whose state the driver takes.

        A chain that ran on would be recomputed from its very start when the worker that holds its state dies.
        """
        for link in islice(self._links, min(AT_HAND, self._segment_end - self._taken)):
            if link.step is None:
                if link.worker != self._home:
                    link.made = self._submit(MAP_NAME, at_hand, link.made)
                # The step takes the state from the step before it, where it lies; only a segment's first one is sent
                # its state.
                before = self._backend.share(self._kept[1]) if self._state is None else self._state
                arguments = (self._session.shared_work(), before, link.cut, link.made)
                self._state = link.step = self._submit(self._session.name, step_through, *arguments)

    def _submit(self, name: str, function: Callable, *args: Any) -> Task:
        """A task on the worker that keeps the state, before all pieces that it makes itself."""
        return self._backend.submit(name, function, *args, slot=self._home, urgent=True, pinned=True)

    @property
    def _segment_end(self) -> int:
        return min(self._kept[0] + KEEP_EVERY, len(self._cuts))

    def _take_oldest(self) -> None:
        """Wait for the step of the oldest piece, and take its state to the driver where a segment ends."""
        link, reading = self._links[0], ReadCounts()
        needed = [task for one in self._links for task in one.tasks]
        wait_done(link.step, lambda: self._backend.look_after(needed), lambda: self._backend.held_up(needed))
        if self._backend.is_lost(link.step):
            # raises what went wrong, `TaskLost` where that was a worker's death
            self._backend.result(link.step)
        if self._taken + 1 == self._segment_end:
            progress = unpacked(self._backend.result(link.step))
            self._kept, self._state = (self._taken + 1, progress.state), None
            self._losses = 0
            reading = replace(progress.reading, blocks=0, rows=0)
        if link.cut.is_last and self._taken >= self._reported:
            # At once, so that somebody who watches sees every block; what was read comes with the state.
            self._reported = self._taken + 1
            reading += ReadCounts(1, int(self._session.source.block_rows[link.cut.block]))
        if reading != ReadCounts():
            self._session.advance(reading)
        self._links.popleft()
        self._taken += 1
        # A piece that was stepped through makes room for another one with the worker that made it.
        self._room[link.worker] += 1
        self._starved = not self._links or not self._links[0].made.done()

    def _restart(self, why: TaskLost) -> None:
        """Begin anew at the state that the driver holds: the same pieces follow in the same order, to the same bits."""
        if not isinstance(why, TaskHeldUp):
            self._losses = counted_loss(repr(self._session.name), self._losses, why, self._backend.endings)
            self._session.losses += 1
        self._cancel()
        self._begin()

    def _cancel(self) -> None:
        self._backend.cancel([task for link in self._links for task in link.tasks])
        self._links.clear()


def run_fold(session: Session, fold: Fold) -> Any:
    """The last state of the fold over the blocks that have rows."""
    # The order is data of the fold: stochastic steps shuffle blocks by a seed, never by who is ready first.
    order = np.arange(session.source.n_blocks) if fold.order is None else np.asarray(fold.order)
    pieces = list(cuts(fold, session.source, grouped(order, session.source.blocks_together)))
    if session.backend.is_cluster:
        # On a cluster the state would travel to the driver and back with every step; there one worker keeps it.
        return Chain(session, fold.initial, pieces).run()
    return fold_here(session, fold, pieces)


def grouped(order: np.ndarray, together: int) -> np.ndarray:
    """The blocks in an order in which those of one group of `together` blocks follow each other.

    They are cut from the same stored chunks. Groups come in the order of their first blocks, so that an order that was
    drawn for single blocks is one that was drawn for groups.
    """
    groups = order // together
    first = np.full(groups.max(initial=0) + 1, len(order))
    np.minimum.at(first, groups, np.arange(len(order)))
    return order[np.argsort(first[groups], kind="stable")]


def fold_here(session: Session, fold: Fold, pieces: Sequence[Cut]) -> Any:
    """Threads or processes of this machine prepare; the calling thread steps, which moves no state."""
    backend = session.backend

    def jobs() -> Iterator[Job]:
        for cut in pieces:

            def submit(losses: int, cut: Cut = cut) -> Task:
                work, ticket = session.shared_work(), session.ticket(cut.block)
                return backend.submit(MAP_NAME, make_piece, work, ticket, cut.number, backend.stop)

            yield Job(f"block {cut.block} of {session.source.place}", cut, submit)

    state, reading = fold.initial, ReadCounts()
    # Steps take their pieces in order: so many are made ahead that threads stay busy, and no more wait in memory.
    window = 1 if backend.is_inline else 2 * session.limits.tasks
    dispatcher = Dispatcher(backend, lambda: window)
    for job, made in dispatcher.in_order(jobs()):
        session.losses = dispatcher.losses
        # In the calling thread, so that the state is never copied, and steps follow each other in the order of the
        # pieces.
        state = stepped(session.work, state, job.subject, made)
        reading += made.reading
        if job.subject.is_last:
            session.advance(reading)
            reading = ReadCounts()
    return state


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
