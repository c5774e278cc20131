"""Work of the driver's own process shared by its cores: pieces are cut by the data alone, so the bits do not depend on
how many cores there are."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

from dkl.kernels.blas import one_blas_thread, threads_at_work
from dkl.process import usable_cores

T = TypeVar("T")
R = TypeVar("R")


class Crew:
    """As many threads as there are cores, for functions that release the interpreter's lock; one BLAS thread each.

    The caller is one of them; all crews of a process share the others, and those that tasks of Dask keep busy are not
    counted on. Each takes the next piece when it is free, so that a thread that wakes late, or is at work elsewhere,
    holds nobody up.
    """

    def map(self, function: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
        """`function` of each piece, in their order; an error of one is raised."""
        pieces = list(pieces)
        with one_blas_thread():
            helpers = min(_idle_cores(), len(pieces) - 1)
            return [function(piece) for piece in pieces] if helpers < 1 else _shared(function, pieces, helpers)


def _idle_cores() -> int:
    """Cores that no thread of ours works on: none is left over where each runs a task of Dask, or a crew's piece."""
    return _own_cores() - threads_at_work()


def _own_cores() -> int:
    """Those of the process; a worker of a cluster shares its machine with others and has as many as it has threads."""
    distributed = sys.modules.get("distributed")
    if distributed is not None:
        try:
            return min(usable_cores(), distributed.get_worker().state.nthreads)
        except ValueError:
            pass
    return usable_cores()


def _shared(function: Callable[[T], R], pieces: Sequence[T], helpers: int) -> list[R]:
    results: list[Any] = [None] * len(pieces)
    waiting = deque(range(len(pieces)))

    def work() -> None:
        with one_blas_thread():
            try:
                while True:
                    try:
                        place = waiting.popleft()
                    except IndexError:
                        return
                    results[place] = function(pieces[place])
            finally:
                # all are taken, or one failed and nobody needs the others
                waiting.clear()

    pool = _threads(os.getpid())
    helping = [pool.submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        # whoever has not begun has nothing left to do
        begun = [helper for helper in helping if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return results


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(max(1, usable_cores() - 1), thread_name_prefix="dkl")
