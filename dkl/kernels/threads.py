"""The threads of a process while it computes on rows: one of BLAS, and a crew of one for each idle core.

Products differ in their last bit between one BLAS thread and two, so it has one while rows are processed. BLAS threads
would also compete with those of Dask: each product of each task would wait, spinning, until all BLAS threads have
finished their part, and next to another busy process that takes longer than the product itself. A crew shares work of
the driver's own process among its cores; items are cut by the data alone, so that their bits do not depend on how many
cores there are.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

from dkl.process import after_fork, usable_cores, worker_of_task

# Reentrant, since the garbage collector may release a holder while its own thread is inside.
_lock = threading.RLock()
# The thread of each holder; the thread counts of each library before the first holder; the libraries found so far, and
# the number of loaded modules when they were looked up.
_holders: dict[object, int] = {}
_original_threads: list[tuple[LibController, int]] = []
_libraries: list[LibController] = []
_modules_seen = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this process until the last of the (nested, concurrent) holders has left.

    If each task set and restored a limit of its own, the first to finish would restore the original number while others
    still run. Here the first holder stores that number and the last one restores it.
    """
    holder = object()
    # Ctrl-C can interrupt any step, also inside `_leave`; the outer call then repeats what the inner one missed. If it
    # strikes before or after both, Python closes this generator when it drops the exception.
    try:
        try:
            _enter(holder)
            yield
        finally:
            _leave(holder)
    finally:
        _leave(holder)


def _enter(holder: object) -> None:
    """Register a holder of this thread; the first holder of a thread sets the limit."""
    with _lock:
        thread = threading.get_ident()
        is_first = thread not in _holders.values()
        _holders[holder] = thread
        if is_first:
            # libraries that were loaded after the first holder are stored here, and limited too
            loaded = _loaded_libraries()
            for library in loaded[len(_original_threads) :]:
                _original_threads.append((library, library.num_threads))
            # The first holder of each thread sets the limit: for BLAS with OpenMP the number of threads is a setting of
            # the calling thread.
            for library, _ in _original_threads:
                _set_threads(library, 1)


def _leave(holder: object) -> None:
    """Remove a holder if it is still registered; the last one restores the thread counts."""
    with _lock:
        _holders.pop(holder, None)
        if not _holders:
            _restore()


def threads_at_work() -> int:
    """The number of threads of this process that are holders at present, that is, that process rows."""
    return len(set(_holders.values()))


def _restore() -> None:
    """Reset every library to its number of threads before the first holder."""
    while _original_threads:
        _set_threads(*_original_threads[-1])
        _original_threads.pop()


@after_fork
def _forget_threads_of_parent() -> None:
    """Remove the holders of threads that do not exist in a forked child: all but the one that forked."""
    global _lock
    _lock = threading.RLock()
    for holder in [holder for holder, thread in _holders.items() if thread != threading.get_ident()]:
        del _holders[holder]
    if not _holders:
        _restore()


def _set_threads(library: LibController, number: int) -> None:
    """Set the number of threads from any thread.

    From version 3.7 on, threadpoolctl lets only the first thread that limited OpenBLAS change the limit, and silently
    ignores others; a task in another thread would run on all cores.
    """
    # the method of older versions, which newer ones call after their own check
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def _loaded_libraries() -> list[LibController]:
    """The BLAS libraries of this process, new ones last; searched again only after further modules were imported."""
    global _modules_seen
    # searching the libraries of a process takes about a millisecond, far too long for every block
    if not _libraries or len(sys.modules) != _modules_seen:
        loaded = len(sys.modules)
        known = {library.filepath for library in _libraries}
        for library in ThreadpoolController().lib_controllers:
            if library.user_api == "blas" and library.num_threads and library.filepath not in known:
                _libraries.append(library)
        _modules_seen = loaded
    return _libraries


def product(left: Any, right: Any) -> Any:
    """``left @ right`` of two matrices, or of a vector and a matrix, without blocking other threads.

    NumPy's `@` holds the interpreter's lock if the result has fewer than 500 numbers, however many rows are summed:
    passes on threads would wait for each other. `numpy.dot` makes the same BLAS call, with the same bits.
    """
    are_plain = all(isinstance(part, np.ndarray) and part.ndim <= 2 for part in (left, right))
    return np.dot(left, right) if are_plain else left @ right


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
