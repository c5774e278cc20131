"""Jobs in flight: results come side by side, no more of them than asked for; one lost on its way is made again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from dkl.errors import ClusterError
from dkl.passes.backends import ThreadBackend
from dkl.passes.dispatch import Dispatcher, Job
from dkl.passes.lost_workers import MOST_LOSSES


class Task:
    """Ends at once."""

    def __init__(self, value: int) -> None:
        self.value = value

    def add_done_callback(self, callback: Callable) -> None:
        callback(self)


class SlowNetwork:
    """A backend whose results arrive when nothing else happens; `lost` says how often each is lost before."""

    def __init__(self, lost: dict[int, int] | None = None) -> None:
        self.lost = dict(lost or {})
        self.on_the_way: dict[Task, Callable[[], None]] = {}
        self.most = 0

    def bring(self, task: Task, here: Callable[[], None]) -> None:
        self.on_the_way[task] = here
        self.most = max(self.most, len(self.on_the_way))

    def look_after(self, tasks: Collection[Task]) -> list[Task]:
        stranded = []
        for task, here in list(self.on_the_way.items()):
            if self.lost.get(task.value, 0):
                self.lost[task.value] -= 1
                stranded.append(task)
            else:
                del self.on_the_way[task]
                here()
        return stranded

    def give_up_kept(self) -> None: ...

    def endings(self) -> str:
        return ""

    def held_up(self, tasks: Collection[Task]) -> list[Task]:
        return []

    def cancel(self, tasks: Collection[Task]) -> None:
        for task in tasks:
            self.on_the_way.pop(task, None)

    def result(self, task: Task) -> int:
        return 10 * task.value


def jobs(n: int) -> Iterator[Job]:
    for number in range(n):
        yield Job(f"job {number}", number, lambda losses, number=number: Task(number))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.passes.dispatch.POLL_S", 0.001)


def run(network: Any, n: int, *, at_once: int) -> tuple[dict[int, int], Dispatcher]:
    dispatcher = Dispatcher(network, lambda: 8, at_once)
    return {job.subject: result for job, result in dispatcher.as_completed(jobs(n))}, dispatcher


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("most", [1, 3, 20])
def test_no_more_results_are_on_their_way_than_asked_for(most: int) -> None:
    network = SlowNetwork()
    found, _ = run(network, 30, at_once=most)
    assert found == {number: 10 * number for number in range(30)}
    assert network.most == min(most, 8)


@pytest.mark.usefixtures("quick")
def test_a_result_that_is_lost_on_its_way_is_made_again() -> None:
    found, dispatcher = run(SlowNetwork(lost={2: 1, 5: MOST_LOSSES}), 12, at_once=2)
    assert found == {number: 10 * number for number in range(12)}
    assert dispatcher.losses == 1 + MOST_LOSSES


@pytest.mark.usefixtures("quick")
def test_a_result_that_is_lost_again_and_again_is_an_error_that_names_its_job() -> None:
    network = SlowNetwork(lost={4: MOST_LOSSES + 1})
    with pytest.raises(ClusterError, match=f"job 4 was lost {MOST_LOSSES + 1} times"):
        run(network, 12, at_once=2)
    assert not network.on_the_way


def ended_pass(n_threads: int) -> ThreadPoolExecutor:
    """The threads of a pass that has ended."""
    backend = ThreadBackend(n_threads)
    backend.close()
    return backend._pool


def test_threads_of_a_pass_serve_the_next_one_and_never_two_at_once():
    first = ended_pass(2)
    backend, beside = ThreadBackend(2), ThreadBackend(2)
    assert backend._pool is first
    assert beside._pool is not first
    backend.close()
    assert ended_pass(3) is not first  # as many threads as are asked for
    beside.close()


def test_threads_end_when_no_pass_can_have_them_again():
    backend = ThreadBackend(2)
    thread = backend.submit("which thread", threading.current_thread).result(timeout=10)
    backend.close()
    del backend
    gc.collect()
    assert thread.is_alive()
    ended_pass(3)
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_threads_whose_task_failed_end_with_their_pass():
    backend = ThreadBackend(1)
    pool = backend._pool
    assert isinstance(backend.submit("failing", int, "no number").exception(timeout=10), ValueError)
    backend.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(int)
    assert ThreadBackend(1)._pool is not pool


class Paused(SlowNetwork):
    """A backend on which some tasks are held up for as long as they are asked about."""

    def __init__(self, held: set[int]) -> None:
        super().__init__()
        self.held = held
        self.submitted: list[int] = []

    def bring(self, task: Task, here: Callable[[], None]) -> None:
        if task.value not in self.held:
            super().bring(task, here)

    def give_up_kept(self) -> None: ...

    def endings(self) -> str:
        return ""

    def held_up(self, tasks: Collection[Task]) -> list[Task]:
        waiting = [task for task in tasks if task.value in self.held]
        self.held -= {task.value for task in waiting}
        return waiting


class Waiting(Task):
    """A task that does not end while its worker is paused."""

    def __init__(self, value: int, backend: Paused) -> None:
        super().__init__(value)
        self.backend = backend

    def add_done_callback(self, callback: Callable) -> None:
        if self.value not in self.backend.held:
            super().add_done_callback(callback)


@pytest.mark.usefixtures("quick")
def test_a_job_on_a_paused_worker_is_taken_elsewhere_and_counts_as_no_loss() -> None:
    backend = Paused({2, 5})

    def submit(losses: int, number: int) -> Task:
        backend.submitted.append(number)
        return Waiting(number, backend)

    jobs = (Job(f"job {number}", number, partial(submit, number=number)) for number in range(8))
    dispatcher = Dispatcher(backend, lambda: 3)  # type: ignore[arg-type]
    assert sorted(result for _, result in dispatcher.as_completed(jobs)) == [10 * number for number in range(8)]
    assert sorted(backend.submitted) == [0, 1, 2, 2, 3, 4, 5, 5, 6, 7]
    assert dispatcher.losses == 0
