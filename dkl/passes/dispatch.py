"""A bounded number of jobs in flight on a backend, lost ones submitted again, none left behind however it ends."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from dkl.errors import ClusterError
from dkl.passes.backends import Backend, TaskLost

MOST_LOSSES = 5
POLL_S = 0.2


@dataclass(frozen=True, eq=False)
class Job:
    """One thing to be done: `submit(losses)` starts it, for the `losses + 1`-th time, and returns its task."""

    label: str
    subject: Any
    submit: Callable[[int], Any]


class Dispatcher:
    """Runs jobs, as many at once as `window()` says; `losses` counts those that had to be submitted again."""

    def __init__(self, backend: Backend, window: Callable[[], int]) -> None:
        self._backend = backend
        self._window = window
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
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
        task.add_done_callback(self._done.put)

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
        self._backend.cancel([task])
        self._again(job, losses + 1, TaskLost("all workers that knew of it have gone"))

    def _next_done(self) -> Any:
        while True:
            try:
                task = self._done.get(timeout=POLL_S)
            except queue.Empty:
                for stranded in self._backend.look_after(list(self._live)):
                    self._move(stranded)
                continue
            if task in self._live:
                return task


def wait_done(backend: Backend, task: Any, needed: Collection[Any]) -> None:
    """Until `task` has ended, one way or another; lost as soon as one of the `needed` tasks can never end."""
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    while not ended.wait(POLL_S):
        if backend.look_after(needed):
            raise TaskLost("a worker that it needs has gone")
