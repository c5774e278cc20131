"""Work of the driver's own process shared by its cores: pieces are cut by the data alone, so the bits do not depend on
how many cores there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from dkl.blocks.blas import one_blas_thread

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Crew:
    """As many threads as there are cores, for functions that release the interpreter's lock; one BLAS thread each.

    All crews of a process share their threads, which wait for the next piece of work.
    """

    def map(self, function: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
        """`function` of each piece, in their order; an error of one is raised."""
        pieces = list(pieces)
        with one_blas_thread():
            if usable_cores() == 1 or len(pieces) < 2:
                return [function(piece) for piece in pieces]
            return list(_threads(os.getpid()).map(function, pieces))


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="dkl")
