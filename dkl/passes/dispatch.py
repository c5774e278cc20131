"""A bounded number of jobs in flight on a backend, lost ones submitted again, none left behind however it ends."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dkl.passes.lost_workers import POLL_S, Task, TaskLost, counted_loss
from dkl.passes.room import ProcessMemory
from dkl.passes.tasks import StopFlag

# A job goes to another process at most so often: of processes that pause in turn, one ends it in the end.
MOST_MOVES = 3


class Backend(Protocol):
    """Runs functions and says when they are done. Tasks are futures: hashable, with `add_done_callback`."""

    is_cluster: bool
    is_inline: bool
    stop: StopFlag

    def slots(self) -> list[str]:
        """One entry a task that can run at once: the name of its process. Not to be changed."""
        ...

    def share(self, value: object) -> Any:
        """`value`, as the argument of many tasks."""
        ...

    def is_lost(self, handle: object) -> bool:
        """Whether what `share` returned can no longer be used."""
        ...

    def send_rows(self, value: object) -> Any:
        """The rows of a block in memory (or the graph that makes them) as the argument of one task."""
        ...

    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        """The memory of each process that works, once it has loaded what its tasks need."""
        ...

    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Task:
        """Start a task: best in the process `slot`, nowhere else with `pinned`; before others with `urgent`."""
        ...

    def bring(self, task: Task, here: Callable[[], None]) -> None:
        """Call `here` when the result of a finished task can be had without waiting for it."""
        ...

    def result(self, task: Task) -> Any:
        """The result of a finished task; raises its error, or `TaskLost`."""
        ...

    def look_after(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that will never end. Called while nothing happens.

        Raises
        ------
        ClusterError
            When nothing can happen any more.
        """
        ...

    def give_up_kept(self) -> None:
        """Let every process hand back what it keeps for further passes, and what it has freed."""
        ...

    def endings(self) -> str:
        """What is known of how workers ended since the pass began, as a sentence; an empty text where nothing is."""
        ...

    def held_up(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that wait for a process which starts none for now, while others do."""
        ...

    def cancel(self, tasks: Iterable[Task]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Job:
    """One thing to be done: `submit(losses)` starts it, for the `losses + 1`-th time, and returns its task."""

    label: str
    subject: Any
    submit: Callable[[int], Task]


class Dispatcher:
    """Runs jobs, as many at once as `window()` says; `losses` counts those that had to be submitted again.

    Results of `at_once` jobs come to the driver side by side: one after the other, each would wait for the network.
    """

    def __init__(self, backend: Backend, window: Callable[[], int], at_once: int = 1) -> None:
        self._backend = backend
        self._window = window
        self._at_once = at_once
        # Every change of a task's state is put here by whatever thread learns of it: (task, its result is here).
        self._news: queue.SimpleQueue[tuple[Task, bool]] = queue.SimpleQueue()
        # Tasks that have ended and whose results were not asked for yet; those whose results are on their way.
        self._ended: deque[Task] = deque()
        self._coming: set[Task] = set()
        # Each job under way, and how often it was lost before.
        self._live: dict[Task, tuple[Job, int]] = {}
        # How often a job was taken to another process from one that started no task.
        self._moves: Counter[Job] = Counter()
        # Results that `in_order` holds back until those before them are there: they take memory as live jobs do.
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
        """The same in the order of the jobs; a slow one holds the later ones back once the window is full."""
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
        """Start jobs until the window is full; whether any is under way."""
        while len(self._live) + self._held_back < self._window() and (job := next(jobs, None)) is not None:
            self._start(job, 0)
        return bool(self._live)

    def _start(self, job: Job, losses: int) -> None:
        task = job.submit(losses)
        self._live[task] = (job, losses)
        task.add_done_callback(lambda ended: self._news.put((ended, False)))

    def _start_again(self, job: Job, losses: int, why: TaskLost) -> None:
        """Submit a lost job once more. It computes the same from the same rows, so no bit of any sum depends on it."""
        losses = counted_loss(job.label, losses, why, self._backend.endings)
        self.losses += 1
        self._start(job, losses)

    def _taken_back(self, task: Task) -> tuple[Job, int]:
        """The job of a task that will not end, or not soon, and how often it was lost; the task is given up."""
        job, losses = self._live.pop(task)
        self._coming.discard(task)
        self._backend.cancel([task])
        return job, losses

    def _next_done(self) -> Task:
        """The next task whose result is here, or failed to come; lost ones are started again meanwhile."""
        while True:
            while self._ended and len(self._coming) < self._at_once:
                task = self._ended.popleft()
                if task in self._live:
                    self._coming.add(task)
                    self._backend.bring(task, partial(self._news.put, (task, True)))
            try:
                task, is_here = self._news.get(timeout=POLL_S)
            except queue.Empty:
                # Nothing happened for a while: there may be tasks that wait for workers which will not come back.
                for stranded in self._backend.look_after(list(self._live)):
                    self._start_again(*self._taken_back(stranded), TaskLost("all workers that knew of it have gone"))
                for waiting in self._backend.held_up([task for task in self._live if task not in self._coming]):
                    if self._moves[self._live[waiting][0]] < MOST_MOVES:
                        job, losses = self._taken_back(waiting)
                        self._moves[job] += 1
                        self._start(job, losses)
                continue
            if is_here:
                self._coming.discard(task)
            # News of a task that was cancelled meanwhile concern nobody.
            if task in self._live and is_here:
                return task
            if task in self._live:
                self._ended.append(task)
