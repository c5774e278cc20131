"""Work of the driver's own process shared by its cores: items are cut by the data alone, so that their bits do not
depend on how many cores there are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from dkl.kernels.blas import one_blas_thread, threads_at_work
from dkl.process import usable_cores, worker_of_task

T = TypeVar("T")
R = TypeVar("R")


class Crew:
    """Threads, one for each core, for functions that release the interpreter's lock; each with one BLAS thread.

    The calling thread is one of them; all crews of a process share the others, and leave the cores of Dask tasks to
    these. Each thread takes the next item when it is free, so that no item waits for a slow thread.
    """

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of each item, in their order; raises the error of an item."""
        items = list(items)
        with one_blas_thread():
            # cores without a thread that processes rows: none if every core runs a task of Dask, or another crew
            idle = _own_cores() - threads_at_work()
            helpers = min(idle, len(items) - 1)
            return [function(item) for item in items] if helpers < 1 else _map_on_threads(function, items, helpers)


def _own_cores() -> int:
    """The cores of this process; the threads of a Dask worker, which shares its machine with others."""
    worker = worker_of_task()
    return usable_cores() if worker is None else min(usable_cores(), worker.state.nthreads)


def _map_on_threads(function: Callable[[T], R], items: Sequence[T], helpers: int) -> list[R]:
    """`function` of each item, computed by this thread and `helpers` others."""
    results: dict[int, R] = {}
    waiting = deque(range(len(items)))

    def work() -> None:
        with one_blas_thread():
            try:
                while True:
                    try:
                        position = waiting.popleft()
                    except IndexError:
                        return
                    results[position] = function(items[position])
            finally:
                # all items are taken, or one has failed, so that the others are not needed
                waiting.clear()

    pool = _threads(os.getpid())
    helpers_started: list[Future[None]] = []
    try:
        for _ in range(helpers):
            helpers_started.append(pool.submit(work))
        work()
    finally:
        # all items are taken, or Ctrl-C has stopped this thread before that
        waiting.clear()
        # helpers that have not started are cancelled; the others are waited for, also after an error here
        begun = [helper for helper in helpers_started if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[position] for position in range(len(items))]


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked process creates its own."""
    return ThreadPoolExecutor(max(1, usable_cores() - 1), thread_name_prefix="dkl")
