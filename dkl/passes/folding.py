"""A fold: pieces prepared in parallel a bounded number ahead, and stepped through one by one in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dkl.passes.chain import Chain
from dkl.passes.cutting import MAP_NAME, Cut, cuts, make_piece, stepped
from dkl.passes.dispatch import Dispatcher, Job
from dkl.passes.lost_workers import Task
from dkl.passes.session import Session
from dkl.passes.work import ReadCounts
from dkl.protocols.records import Fold


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
