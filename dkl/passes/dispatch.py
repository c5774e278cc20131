"""A bounded number of jobs in progress on a backend; lost ones are submitted again, and none outlives the pass."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dkl.passes.lost_workers import POLL_S, Task, TaskLost, counted_loss
from dkl.passes.room import ProcessMemory
from dkl.passes.tasks import StopFlag

# Limits how often a job moves to another process: if processes pause in turn, one of them finishes it.
MOST_MOVES = 3


class Backend(ABC):
    """Runs functions and reports their end. Tasks are futures: hashable, with `add_done_callback`.

    What a backend does not define is that of threads and processes of this machine: values stay here, and no worker
    vanishes or is delayed.
    """

    is_cluster = False
    is_inline = False
    stop: StopFlag

    @abstractmethod
    def slots(self) -> list[str]:
        """One entry for each task that can run at once, the name of its process. The list must not be changed."""

    @abstractmethod
    def share(self, value: object) -> Any:
        """`value` in a form that many tasks can have as an argument."""

    def is_lost(self, handle: object) -> bool:
        """Whether a result of `share` can no longer be used."""
        return False

    def send_rows(self, value: object) -> Any:
        """The rows of a block in memory (or the graph that makes them) as the argument of one task."""
        return value

    @abstractmethod
    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        """The memory of each process that works, after it has loaded the modules of its tasks."""

    @abstractmethod
    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Task:
        """Start a task: preferably in the process `slot`, only there if `pinned`; before others if `urgent`."""

    def bring(self, task: Task, here: Callable[[], None]) -> None:
        """Call `here` when the result of a finished task is available without waiting."""
        here()

    @abstractmethod
    def result(self, task: Task) -> Any:
        """The result of a finished task; raises its error, or `TaskLost`."""

    def look_after(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that will never end. Called when nothing has happened for a while.

        Raises
        ------
        ClusterError
            If the pass cannot continue.
        """
        # threads do not vanish, and a process that dies breaks its pool, which ends its tasks
        return ()

    @abstractmethod
    def give_up_kept(self) -> None:
        """Let every process drop what it keeps for further passes, and return freed memory."""

    def endings(self) -> str:
        """What is known of how workers ended since the pass started, as a sentence; empty if nothing is."""
        return ""

    def held_up(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that wait for a process which starts none at present, while others do."""
        return ()

    def cancel(self, tasks: Iterable[Task]) -> None:
        """Give up tasks; those that run may end."""
        for task in tasks:
            task.cancel()

    @abstractmethod
    def close(self) -> None:
        """End the pass; no task is left."""


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
