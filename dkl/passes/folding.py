"""A fold: pieces prepared in parallel a bounded number ahead, and stepped through one by one in their order."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.blocks.records import Fold
from dkl.errors import ClusterError, located
from dkl.passes.backends import TaskLost
from dkl.passes.dispatch import MOST_LOSSES, wait_done
from dkl.passes.reading import LOADER
from dkl.passes.session import Session
from dkl.passes.tasks import PassStopped, StopFlag, placed, working
from dkl.passes.transport import packed, unpacked
from dkl.passes.work import Reading, Ticket, Work

PUT_PAUSE_S = 0.1
BLOCKS_A_RUN = 4
RUNS_AHEAD = 3
KEEP_EVERY = 8


@dataclass(frozen=True, eq=False)
class Progress:
    """The state after a block, and what reading the block came to."""

    state: Any
    reading: Reading


class PieceStream:
    """The pieces of one block, made in a thread of a pool; at most one waits while the next is being made."""

    def __init__(self, work: Work, fold: Fold, ticket: Ticket, stop: StopFlag) -> None:
        self._pieces: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._work, self._fold, self._ticket, self._stop = work, fold, ticket, stop
        self._future: Future
        self.reading = Reading()

    def start(self, pool: ThreadPoolExecutor) -> PieceStream:
        self._future = pool.submit(self._produce)
        return self

    def _produce(self) -> None:
        try:
            for piece in self.prepared():
                self._put((piece, None))
            self._put((None, None))
        except PassStopped:
            pass
        except Exception as error:
            self._put((None, error))

    def _put(self, item: Any) -> None:
        while True:
            self._stop.check()
            try:
                return self._pieces.put(item, timeout=PUT_PAUSE_S)
            except queue.Full:
                continue

    def prepared(self) -> Iterator[Any]:
        """The pieces made in the calling thread."""
        block, self.reading = LOADER.fetch(self._work, self._ticket)
        with located(f"block {block.index} of {self._work.place}"):
            yield from self._fold.prepare(placed(block, self._work.device), self._fold.operands)

    def __iter__(self) -> Iterator[Any]:
        while True:
            piece, error = self._pieces.get()
            if error is not None:
                raise error
            if piece is None:
                return
            yield piece


def fold_blocks(work: Work, state: Any, tickets: Iterable[Ticket], threads: int) -> Iterator[Progress]:
    """The state after each block. With `threads` 0 everything happens in the calling thread."""
    fold = _fold_of(work)
    stop = StopFlag()
    if threads == 0:
        for ticket in tickets:
            stream = PieceStream(work, fold, ticket, stop)
            state = _stepped(work, fold, state, ticket, stream.prepared())
            yield Progress(state, stream.reading)
        return
    pool = ThreadPoolExecutor(threads, "dkl-prepare")
    try:
        for ticket, stream in _streams(work, fold, tickets, stop, pool):
            state = _stepped(work, fold, state, ticket, iter(stream))
            yield Progress(state, stream.reading)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _streams(
    work: Work, fold: Fold, tickets: Iterable[Ticket], stop: StopFlag, pool: ThreadPoolExecutor
) -> Iterator[tuple[Ticket, PieceStream]]:
    """The streams in order, as many begun as the pool has threads."""
    begun: deque[tuple[Ticket, PieceStream]] = deque()
    for ticket in tickets:
        begun.append((ticket, PieceStream(work, fold, ticket, stop).start(pool)))
        if len(begun) >= pool._max_workers:
            yield begun.popleft()
    yield from begun


def _stepped(work: Work, fold: Fold, state: Any, ticket: Ticket, pieces: Iterator[Any]) -> Any:
    with located(f"block {ticket.number} of {work.place}"):
        for piece in pieces:
            state = fold.step(state, piece, fold.operands)
    return state


def _fold_of(work: Work) -> Fold:
    fold = work.records[0]
    if not isinstance(fold, Fold):
        raise TypeError(f"expected a fold, got {type(fold).__name__}")
    return fold


def run_fold(session: Session, fold: Fold) -> Any:
    """The last state of the fold over the blocks that have rows."""
    order = np.arange(session.source.n_blocks) if fold.order is None else np.asarray(fold.order)
    chosen = [int(index) for index in order if session.source.block_rows[index]]
    if session.backend.is_cluster:
        return fold_on_cluster(session, fold, chosen)
    return fold_here(session, fold, chosen)


def fold_here(session: Session, fold: Fold, order: Sequence[int]) -> Any:
    """In this process: pool threads prepare, the calling thread steps."""
    state = fold.initial
    tickets = (session.ticket(index) for index in order)
    for progress in fold_blocks(session.work, state, tickets, session.prepare_threads):
        state = progress.state
        session.advance(progress.reading)
    return state


def fold_on_cluster(session: Session, fold: Fold, order: Sequence[int]) -> Any:
    """On the workers: a chain of tasks, each a run of blocks."""
    length = 1 if session.tickets_travel else BLOCKS_A_RUN
    runs = [order[start : start + length] for start in range(0, len(order), length)]
    return Chain(session, fold.initial, runs).run()


def fold_run(work: Work, before: Any, tickets: Sequence[Ticket]) -> Progress:
    """A run of blocks in one task: `before` is the state, or the progress that the run before ended with."""
    state = unpacked(before.state if isinstance(before, Progress) else before)
    total = Reading()
    with working(work):
        for progress in fold_blocks(work, state, tickets, work.limits.tasks):
            state = progress.state
            total += progress.reading
    return Progress(packed(state), total)


def reading_of(progress: Progress) -> Reading:
    """What a run read, without its state."""
    return progress.reading


class Chain:
    """Runs of a fold on a cluster, each waiting for the state of the one before; the state stays on the workers.

    A run prepares and steps where it is: a mapped piece is many times as large as the rows it was made from, so moving
    it costs more than making it. A few runs are submitted ahead, so that workers never wait for the driver. Every
    so many runs the state comes to the driver, and a chain that was lost starts again from there.
    """

    def __init__(self, session: Session, initial: Any, runs: Sequence[Sequence[int]]) -> None:
        self._session = session
        self._backend = session.backend
        self._runs = runs
        self._kept = (0, initial)
        self._reported = 0
        self._losses = 0
        self._live: deque[tuple[int, Any, Any]] = deque()

    def run(self) -> Any:
        try:
            while self._kept[0] < len(self._runs):
                self._extend()
                try:
                    self._take_oldest()
                except TaskLost as error:
                    self._restart(error)
            return self._kept[1]
        finally:
            self._cancel()

    @property
    def _segment_end(self) -> int:
        return min(self._kept[0] + KEEP_EVERY, len(self._runs))

    def _extend(self) -> None:
        """Submit up to the window, but not beyond the run whose state the driver takes.

        A chain that ran on would be recomputed from its very start when the worker that holds its state dies.
        """
        if self._live:
            number, before = self._live[-1][0] + 1, self._live[-1][1]
        else:
            number, before = self._kept[0], self._backend.share(self._kept[1])
        while len(self._live) < RUNS_AHEAD and number < self._segment_end:
            before = self._submit(number, before)
            number += 1

    def _submit(self, number: int, before: Any) -> Any:
        session, backend = self._session, self._backend
        work = session.shared_work()
        tickets = [session.ticket(index) for index in self._runs[number]]
        task = backend.submit(session.name, fold_run, work, before, tickets, slot=session.slot(0))
        self._live.append((number, task, backend.submit(session.name, reading_of, task, urgent=True)))
        return task

    def _take_oldest(self) -> None:
        number, task, summary = self._live[0]
        wait_done(self._backend, summary)
        reading = self._backend.result(summary)
        if number + 1 == self._segment_end:
            self._kept = (number + 1, unpacked(self._backend.result(task).state))
        self._live.popleft()
        if number == self._reported:
            self._reported += 1
            self._session.advance(reading)

    def _restart(self, error: TaskLost) -> None:
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise ClusterError(
                f"{self._session.name!r} was lost {self._losses} times with its workers: {error}"
            ) from error
        self._session.losses += 1
        self._cancel()

    def _cancel(self) -> None:
        self._backend.cancel([task for _, *tasks in self._live for task in tasks])
        self._live.clear()
