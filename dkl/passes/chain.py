"""A fold: pieces are prepared in parallel, a bounded number ahead; one worker, or this process, takes the steps.

The functions for the pieces, their order, and how a process makes one are at the end.
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
from dkl.kernels.device import Device, refuse_now
from dkl.kernels.threads import one_blas_thread
from dkl.passes.backends import current_client
from dkl.passes.dispatch import Dispatcher, Job
from dkl.passes.lost_workers import Task, TaskLost, counted_loss, wait_done
from dkl.passes.reading import LOADER, PIECES
from dkl.passes.session import Session, stays_here
from dkl.passes.transport import Carried, unpacked
from dkl.passes.work import ReadCounts, StopFlag, Ticket, Work, working
from dkl.protocols.records import Fold
from dkl.protocols.source import BlockSource

# Steps between two states that are copied to the driver, which limits the work that a lost chain repeats. A state may
# be large (the weights of a model and their averages), so that each copy costs a transfer.
KEEP_EVERY = 32
# Pieces that are moved ahead to the worker that steps: the current one and the next.
AT_HAND = 2


@dataclass(frozen=True, eq=False)
class Progress:
    """The state after a piece, and the reading counts since the last state that the driver has."""

    state: Any
    reading: ReadCounts


@dataclass(eq=False)
class Link:
    """A piece in progress: the worker and the task that make it, and the task that steps through it."""

    cut: Cut
    worker: str
    made: Task
    step: Task | None = None

    @property
    def tasks(self) -> list[Task]:
        return [task for task in (self.made, self.step) if task is not None]


def carried_piece(*args: Any) -> Carried:
    """`make_piece`, for a step that may run elsewhere."""
    return Carried(make_piece(*args))


def step_through(work: Work, before: object, cut: Cut, made: Made) -> Carried:
    """One step; `before` is the progress of the step before, or an initial state."""
    state, reading = (before.state, before.reading) if isinstance(before, Progress) else (before, ReadCounts())
    with one_blas_thread():
        state = stepped(work, state, cut, made)
    return Carried(Progress(state, reading + made.reading))


class Chain:
    """The pieces of a fold on a cluster, each stepped through when it and the state before it are available.

    The state stays on the first worker; all workers make pieces, a limited number ahead on each, which bounds their
    memory. Every task is pinned to its worker, as otherwise the scheduler might collect pieces on an idle worker. So
    the chain is lost with any worker that it needs; the state is copied to the driver at regular intervals, and a lost
    chain restarts from there, on the workers that exist then.
    """

    def __init__(self, session: Session, initial: object, cuts: Sequence[Cut]) -> None:
        self._session = session
        self._backend = session.backend
        self._cuts = cuts
        # number of steps up to the state that the driver holds, and that state
        self._kept: tuple[int, Any] = (0, initial)
        # pieces whose blocks were counted: a lost chain repeats steps, which are not counted again
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
        """Start from the state that the driver holds, with nothing in progress."""
        self._links: deque[Link] = deque()
        self._taken = self._kept[0]
        # the task of the newest step; None if the next one starts from the state of the driver
        self._state: Task | None = None
        # whether steps wait for pieces: then the worker that steps also makes some
        self._starved = True
        self._ticket: tuple[int, Ticket | None] = (-1, None)
        self._known: list[str] = []
        # the number of further pieces that each worker may hold before they are stepped through
        self._room: dict[str, int] = {}
        self._add_new_workers()
        # the worker that steps, and holds the state, is the first by address: any would do, if it is always the same
        self._home = min(self._known)

    def _add_new_workers(self) -> None:
        """Give new workers their share of pieces."""
        slots = self._backend.slots()
        # a backend returns the same list until its workers change
        if slots is self._known:
            return
        self._known, most = slots, self._session.limits.tasks
        for worker, threads in Counter(slots).items():
            self._room.setdefault(worker, self._session.limits.pieces * min(threads, most))

    def _map_ahead(self) -> None:
        """Submit pieces, in order, until every worker has its share of pieces that wait for their steps."""
        self._add_new_workers()
        while (number := self._taken + len(self._links)) < len(self._cuts) and (worker := self._worker_with_room()):
            cut = self._cuts[number]
            self._room[worker] -= 1
            work, ticket, stop = self._session.shared_work(), self._ticket_of(cut.block), self._backend.stop
            made = self._backend.submit(
                MAP_NAME, carried_piece, work, ticket, cut.number, stop, slot=worker, pinned=True
            )
            self._links.append(Link(cut, worker, made))

    def _worker_with_room(self) -> str | None:
        """The worker of the next piece: that of the last piece, which has the block, else the one with most room.

        While pieces are ready before their steps, the worker that steps makes fewer.
        """
        # room is the number of pieces that a worker may still make; the one that steps has a thread less for them
        room = {worker: self._room[worker] for worker in dict.fromkeys(self._known)}
        if len(room) > 1 and not self._starved:
            room[self._home] = room.get(self._home, 0) - self._session.limits.pieces
        if self._links and room.get(self._links[-1].worker, 0) > 0:
            return self._links[-1].worker
        # among equals not the worker that steps
        best = max(room, key=lambda worker: (room[worker], worker != self._home))
        return best if room[best] > 0 else None

    def _ticket_of(self, block: int) -> Ticket:
        """The ticket of a block; rows in memory are sent once for all pieces of their block."""
        if self._ticket[0] != block or self._ticket[1] is None:
            self._ticket = (block, self._session.ticket(block))
        return self._ticket[1]  # type: ignore[return-value]

    def _step_ahead(self) -> None:
        """Submit the next steps and move their pieces, but not beyond the step whose state the driver copies.

        Otherwise the chain would be recomputed from its start if the worker with its state dies.
        """
        for link in islice(self._links, min(AT_HAND, self._segment_end - self._taken)):
            if link.step is None:
                if link.worker != self._home:
                    # a task of its own, so that the piece is transferred during the step before
                    link.made = self._submit(MAP_NAME, Carried, link.made)
                # a step takes the state of the step before it on the same worker; only the first one of a segment is
                # sent its state
                before = self._backend.share(self._kept[1]) if self._state is None else self._state
                arguments = (self._session.shared_work(), before, link.cut, link.made)
                self._state = link.step = self._submit(self._session.name, step_through, *arguments)

    def _submit(self, name: str, function: Callable, *args: Any) -> Task:
        """A task on the worker that holds the state, before all pieces that it makes itself."""
        return self._backend.submit(name, function, *args, slot=self._home, urgent=True, pinned=True)

    @property
    def _segment_end(self) -> int:
        return min(self._kept[0] + KEEP_EVERY, len(self._cuts))

    def _take_oldest(self) -> None:
        """Wait for the step of the oldest piece, and copy its state to the driver if a segment ends."""
        link, reading = self._links[0], ReadCounts()
        needed = [task for one in self._links for task in one.tasks]
        wait_done(link.step, lambda: self._backend.look_after(needed), lambda: self._backend.held_up(needed))
        if self._backend.is_lost(link.step):
            # raises the error, which is `TaskLost` if a worker died
            self._backend.result(link.step)
        if self._taken + 1 == self._segment_end:
            progress = unpacked(self._backend.result(link.step))
            self._kept, self._state = (self._taken + 1, progress.state), None
            self._losses = 0
            reading = replace(progress.reading, blocks=0, rows=0)
        if link.cut.is_last and self._taken >= self._reported:
            # reported at once, so that progress shows every block; the other counts come with the state
            self._reported = self._taken + 1
            reading += ReadCounts(1, int(self._session.source.block_rows[link.cut.block]))
        if reading != ReadCounts():
            self._session.advance(reading)
        self._links.popleft()
        self._taken += 1
        # the worker that made this piece may make another one
        self._room[link.worker] += 1
        self._starved = not self._links or not self._links[0].made.done()

    def _restart(self, why: TaskLost) -> None:
        """Start again from the driver's state: the same pieces follow in the same order, with the same bits."""
        if why.is_counted:
            self._losses = counted_loss(repr(self._session.name), self._losses, why, self._backend.endings)
            self._session.losses += 1
        self._cancel()
        self._begin()

    def _cancel(self) -> None:
        self._backend.cancel([task for link in self._links for task in link.tasks])
        self._links.clear()


def run_fold(session: Session, fold: Fold) -> Any:
    """The last state of the fold over the blocks that have rows."""
    # the order is part of the fold: stochastic steps shuffle blocks by a seed, independently of the timing
    order = np.arange(session.source.n_blocks) if fold.order is None else np.asarray(fold.order)
    pieces = list(cuts(fold, session.source, grouped(order, session.source.blocks_sharing_chunks)))
    if session.backend.is_cluster:
        # on a cluster the state would be sent to the driver and back with every step; so one worker holds it
        return Chain(session, fold.initial, pieces).run()
    return fold_here(session, fold, pieces)


def grouped(order: np.ndarray, together: int) -> np.ndarray:
    """The blocks of an order, moved so that those that are cut from the same stored chunk follow each other.

    A chunk holds `together` consecutive blocks. Chunks come in the order of their first blocks, so that a random order
    of blocks gives a random order of chunks, each of which is decoded once.
    """
    groups = order // together
    first = np.full(groups.max(initial=0) + 1, len(order))
    np.minimum.at(first, groups, np.arange(len(order)))
    return order[np.argsort(first[groups], kind="stable")]


def fold_here(session: Session, fold: Fold, pieces: Sequence[Cut]) -> Any:
    """Threads or processes of this machine prepare pieces; the calling thread steps, without moving the state."""
    backend = session.backend

    def jobs() -> Iterator[Job]:
        for cut in pieces:

            def submit(losses: int, cut: Cut = cut) -> Task:
                work, ticket = session.shared_work(), session.ticket(cut.block)
                return backend.submit(MAP_NAME, make_piece, work, ticket, cut.number, backend.stop)

            yield Job(f"block {cut.block} of {session.source.place}", cut, submit)

    state, reading = fold.initial, ReadCounts()
    # steps take pieces in order: enough are made ahead to keep threads busy, and no more wait in memory
    window = 1 if backend.is_inline else 2 * session.limits.tasks
    dispatcher = Dispatcher(backend, lambda: window)
    for job, made in dispatcher.in_order(jobs()):
        session.losses = dispatcher.losses
        # in the calling thread, so that the state is never copied, and steps follow the order of the pieces
        state = stepped(session.work, state, job.subject, made)
        reading += made.reading
        if job.subject.is_last:
            session.advance(reading)
            reading = ReadCounts()
    return state


MAP_NAME = "map rows"


class Cut(NamedTuple):
    """A piece: `number` of a block with at most `of` pieces."""

    block: int
    number: int
    of: int

    @property
    def is_last(self) -> bool:
        return self.number == self.of - 1


@dataclass(frozen=True, eq=False)
class Made:
    """A piece (None if the block has fewer), and the reading counts of its block, which only the first piece has."""

    piece: Any
    reading: ReadCounts


def cuts(fold: Fold, source: BlockSource, order: Iterable[int]) -> Iterator[Cut]:
    """All pieces in the order of the fold; a block without rows has no pieces."""
    for block in order:
        # the number of pieces must be known before a block is read, since it fixes the order of the steps
        rows = int(source.block_rows[block])
        of = fold.pieces(rows) if rows else 0
        yield from (Cut(int(block), number, of) for number in range(of))


def forget_pieces(source: BlockSource, device: Device) -> None:
    """Free the pieces of a source that this process, or the workers of a cluster, keep for further passes."""
    PIECES.clear()
    if (client := current_client()) is not None and not stays_here(source, device):
        client.run(_forget_here, on_error="return")


def _forget_here() -> None:
    PIECES.clear()


def make_piece(work: Work, ticket: Ticket, number: int, stop: StopFlag) -> Made:
    """Piece `number` of a block; a process reads the block once, for the first piece that it makes of it."""
    stop.check()
    fold = fold_of(work)
    if (kept := PIECES.get(fold.kept_as, (ticket.number, number))) is not None:
        piece, rows = kept
        reading = ReadCounts() if number else ReadCounts(1, rows, cache_hits=1)
        with working(work):
            return Made(_arranged(fold, piece, ticket.number, number), reading)
    with working(work):
        block, reading = LOADER.share(work, ticket)
        reading = replace(reading, reads=LEDGER.new_reads())
        # the first piece alone counts the block and its rows; every piece counts the bytes that it has read
        if number:
            reading = replace(reading, blocks=0, rows=0)
        with located(f"block {block.index} of {work.place}"):
            piece = fold.prepare(block, {**fold.operands, "device": work.device}, number)
            # raised here, as another thread takes the steps and would not see it
            refuse_now()
            if fold.kept_as and piece is not None and work.device == "cpu":
                key, room = (block.index, number), work.limits.piece_bytes
                if PIECES.claim(fold.kept_as, fold.piece_bytes, room):
                    PIECES.put(fold.kept_as, key, (piece, block.n_rows))
            return Made(_arranged(fold, piece, block.index, number), reading)


def _arranged(fold: Fold, piece: Any, block: int, number: int) -> Any:
    """A piece in the form that this fold steps through."""
    if fold.arrange is None or piece is None:
        return piece
    return fold.arrange(piece, fold.operands, block, number)


def stepped(work: Work, state: object, cut: Cut, made: Made) -> Any:
    """The state after a piece; unchanged if the block has fewer pieces than announced."""
    if made.piece is None:
        return state
    fold = fold_of(work)
    with located(f"block {cut.block} of {work.place}"):
        return fold.step(state, made.piece, fold.operands)


def fold_of(work: Work) -> Fold:
    """The only record of a fold's pass."""
    fold = work.records[0]
    if not isinstance(fold, Fold):
        raise TypeError(f"expected a fold, got {type(fold).__name__}")
    return fold
