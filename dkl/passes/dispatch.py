"""A bounded number of jobs in flight on a backend, lost ones submitted again, none left behind however it ends."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dkl.errors import ClusterError
from dkl.passes.tasks import StopFlag

MOST_LOSSES = 5
POLL_S = 0.2


class TaskLost(RuntimeError):
    """A task ended without a result through no fault of its own: it can be submitted again."""


class Backend(Protocol):
    """Runs functions and says when they are done. Tasks are futures: hashable, with `add_done_callback`."""

    is_cluster: bool
    is_inline: bool
    stop: StopFlag

    def slots(self) -> list[str]:
        """One entry a task that can run at once: the name of its process. Not to be changed."""
        ...

    def share(self, value: Any) -> Any:
        """`value`, as the argument of many tasks."""
        ...

    def is_lost(self, handle: Any) -> bool:
        """Whether what `share` returned can no longer be used."""
        ...

    def send_rows(self, value: Any) -> Any:
        """The rows of a block in memory (or the graph that makes them) as the argument of one task."""
        ...

    def process_bytes(self) -> int | None:
        """The memory limit of the process that works, where it has one."""
        ...

    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Any:
        """Start a task: best in the process `slot`, nowhere else with `pinned`; before others with `urgent`."""
        ...

    def bring(self, task: Any, here: Callable[[], None]) -> None:
        """Call `here` when the result of a finished task can be had without waiting for it."""
        ...

    def result(self, task: Any) -> Any:
        """The result of a finished task; raises its error, or `TaskLost`."""
        ...

    def look_after(self, tasks: Collection[Any]) -> Sequence[Any]:
        """Those of the live `tasks` that will never end. Called while nothing happens.

        Raises
        ------
        ClusterError
            When nothing can happen any more.
        """
        ...

    def cancel(self, tasks: Iterable[Any]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Job:
    """One thing to be done: `submit(losses)` starts it, for the `losses + 1`-th time, and returns its task."""

    label: str
    subject: Any
    submit: Callable[[int], Any]


class Dispatcher:
    """Runs jobs, as many at once as `window()` says; `losses` counts those that had to be submitted again.

    Results of `at_once` jobs come to the driver side by side: one after the other, each would wait for the network.
    """

    def __init__(self, backend: Backend, window: Callable[[], int], at_once: int = 1) -> None:
        self._backend = backend
        self._window = window
        self._at_once = at_once
        self._news: queue.SimpleQueue[tuple[Any, bool]] = queue.SimpleQueue()
        self._ended: deque[Any] = deque()
        self._coming: set[Any] = set()
        self._live: dict[Any, tuple[Job, int]] = {}
        self._held = 0
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
                    self._again(job, losses + 1, error)
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
                self._held = len(ready) - 1
                first = order.popleft()
                yield first, ready.pop(first)
            self._held = len(ready)

    def _fill(self, jobs: Iterator[Job]) -> bool:
        while len(self._live) + self._held < self._window() and (job := next(jobs, None)) is not None:
            self._start(job, 0)
        return bool(self._live)

    def _start(self, job: Job, losses: int) -> None:
        task = job.submit(losses)
        self._live[task] = (job, losses)
        task.add_done_callback(lambda ended: self._news.put((ended, False)))

    def _again(self, job: Job, losses: int, error: TaskLost) -> None:
        if losses > MOST_LOSSES:
            raise ClusterError(
                f"{job.label} was lost {losses} times with the workers that ran it ({error}); their logs say why: "
                "most often too little memory for a block (see dkl.plan) or a crash in native code"
            ) from error
        self.losses += 1
        self._start(job, losses)

    def _move(self, task: Any) -> None:
        """Submit a task again that waits for workers which will not come back."""
        job, losses = self._live.pop(task)
        self._coming.discard(task)
        self._backend.cancel([task])
        self._again(job, losses + 1, TaskLost("all workers that knew of it have gone"))

    def _next_done(self) -> Any:
        while True:
            self._bring()
            try:
                task, is_here = self._news.get(timeout=POLL_S)
            except queue.Empty:
                for stranded in self._backend.look_after(list(self._live)):
                    self._move(stranded)
                continue
            if is_here:
                self._coming.discard(task)
            if task in self._live and is_here:
                return task
            if task in self._live:
                self._ended.append(task)

    def _bring(self) -> None:
        while self._ended and len(self._coming) < self._at_once:
            task = self._ended.popleft()
            if task in self._live:
                self._coming.add(task)
                self._backend.bring(task, partial(self._news.put, (task, True)))


def wait_done(backend: Backend, task: Any, needed: Collection[Any]) -> None:
    """Until `task` has ended, one way or another; lost as soon as one of the `needed` tasks can never end."""
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    while not ended.wait(POLL_S):
        if backend.look_after(needed):
            raise TaskLost("a worker that it needs has gone")
