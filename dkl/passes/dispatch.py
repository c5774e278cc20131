"""A bounded number of jobs in progress on a backend; lost ones are submitted again, and none outlives the pass."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from dkl.passes.backends import Backend
from dkl.passes.lost_workers import POLL_S, Task, TaskLost, counted_loss

# Limits how often a job moves to another process: if processes pause in turn, one of them finishes it.
MOST_MOVES = 3


@dataclass(frozen=True, eq=False)
class Job:
    """A unit of work: `submit(losses)` starts it for the `losses + 1`-th time, and returns its task."""

    label: str
    subject: Any
    submit: Callable[[int], Task]


class Dispatcher:
    """Runs jobs, up to `window()` at once; `losses` counts how often jobs had to be submitted again.

    Results of `at_once` jobs are transferred at the same time: one by one, each would wait for the network.
    """

    def __init__(self, backend: Backend, window: Callable[[], int], at_once: int = 1) -> None:
        self._backend = backend
        self._window = window
        self._at_once = at_once
        # changes of a task's state, from any thread: (task, whether its result is in this process)
        self._changes: queue.SimpleQueue[tuple[Task, bool]] = queue.SimpleQueue()
        # tasks that have ended and whose results were not asked for; those whose results are being transferred
        self._ended: deque[Task] = deque()
        self._in_transfer: set[Task] = set()
        # each job in progress, and how often it was lost before
        self._live: dict[Task, tuple[Job, int]] = {}
        # how often a job was moved to another process from one that started no task
        self._moves: Counter[Job] = Counter()
        # results that `in_order` holds back until earlier ones are available: they take memory like live jobs
        self._held_back = 0
        self.losses = 0

    def as_completed(self, jobs: Iterator[Job]) -> Iterator[tuple[Job, Any]]:
        """Each job with its result, in the order in which they finish."""
        try:
            while self._fill(jobs):
                task = self._next_done()
                job, losses = self._live[task]
                try:
                    result = self._backend.result(task)
                except TaskLost as error:
                    del self._live[task]
                    self._start_again(job, losses, error)
                    continue
                del self._live[task], task
                yield job, result
        finally:
            self._backend.cancel(list(self._live))
            self._live.clear()

    def in_order(self, jobs: Iterator[Job]) -> Iterator[tuple[Job, Any]]:
        """Each job with its result, in the order of the jobs.

        A slow job delays the later ones once the window is full.
        """
        order: deque[Job] = deque()
        ready: dict[Job, Any] = {}

        def noted() -> Iterator[Job]:
            for job in jobs:
                order.append(job)
                yield job

        for job, result in self.as_completed(noted()):
            ready[job] = result
            while order and order[0] in ready:
                self._held_back = len(ready) - 1
                first = order.popleft()
                yield first, ready.pop(first)
            self._held_back = len(ready)

    def _fill(self, jobs: Iterator[Job]) -> bool:
        """Start jobs until the window is full; returns whether any is in progress."""
        while len(self._live) + self._held_back < self._window() and (job := next(jobs, None)) is not None:
            self._start(job, 0)
        return bool(self._live)

    def _start(self, job: Job, losses: int) -> None:
        task = job.submit(losses)
        self._live[task] = (job, losses)
        task.add_done_callback(lambda ended: self._changes.put((ended, False)))

    def _start_again(self, job: Job, losses: int, why: TaskLost) -> None:
        """Submit a lost job again. It computes the same from the same rows, so that no bit of any sum changes."""
        if why.is_counted:
            losses = counted_loss(job.label, losses, why, self._backend.endings)
            self.losses += 1
        self._start(job, losses)

    def _withdraw(self, task: Task) -> tuple[Job, int]:
        """The job of a task that will not end, or not soon, and how often it was lost; cancels the task."""
        job, losses = self._live.pop(task)
        self._in_transfer.discard(task)
        self._backend.cancel([task])
        return job, losses

    def _next_done(self) -> Task:
        """The next task whose result is available or has failed to come; meanwhile restarts lost ones."""
        while True:
            while self._ended and len(self._in_transfer) < self._at_once:
                task = self._ended.popleft()
                if task in self._live:
                    self._in_transfer.add(task)
                    self._backend.bring(task, partial(self._changes.put, (task, True)))
            try:
                task, is_here = self._changes.get(timeout=POLL_S)
            except queue.Empty:
                # nothing has happened for a while: tasks may wait for workers that will not return
                for stranded in self._backend.look_after(list(self._live)):
                    self._start_again(*self._withdraw(stranded), TaskLost("all workers that knew of it have gone"))
                for waiting in self._backend.held_up([task for task in self._live if task not in self._in_transfer]):
                    if self._moves[self._live[waiting][0]] < MOST_MOVES:
                        job, losses = self._withdraw(waiting)
                        self._moves[job] += 1
                        self._start(job, losses)
                continue
            if is_here:
                self._in_transfer.discard(task)
            # ignores tasks that were cancelled meanwhile
            if task in self._live and is_here:
                return task
            if task in self._live:
                self._ended.append(task)
