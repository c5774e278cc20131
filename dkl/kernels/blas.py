"""One BLAS thread while rows are worked on: products differ in their last bit between one thread and two.

Nor do the threads of BLAS go together with those of Dask: each product of each task would wait, spinning, until all
threads of BLAS have done their share, and beside another busy process that wait takes longer than the product.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import LibController, ThreadpoolController

from dkl.process import after_fork

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
# How often each thread has entered; for each library the number of threads that it had before the first holder came;
# the libraries that were found, and how many modules were loaded when they were looked for.
_holders: dict[int, int] = {}
_before: list[tuple[LibController, int]] = []
_libraries: list[LibController] = []
_modules_seen = 0


@dataclass(frozen=True)
class OneBlasThread:
    """Limit BLAS to one thread in this process until the last of the (nested, concurrent) holders has left.

    A limit set and lifted by each task for itself is a race: the first to leave would restore what it found, under
    the feet of the others. Here the first holder notes what was there and the last one restores it.
    """

    def __enter__(self) -> None:
        with _lock:
            thread = threading.get_ident()
            depth = _holders.get(thread, 0)
            if not _holders:
                _before.clear()
            _holders[thread] = depth + 1
            if depth == 0:
                # A library that was loaded since the first holder came is noted here, and limited too.
                loaded = _loaded_libraries()
                for library in loaded[len(_before) :]:
                    _before.append((library, library.num_threads))
                # Every holder sets the limit for itself: where BLAS runs on OpenMP, the number of threads belongs to
                # the thread that calls.
                for library, _ in _before:
                    _set_threads(library, 1)

    def __exit__(self, *error: object) -> None:
        with _lock:
            thread = threading.get_ident()
            _holders[thread] -= 1
            if _holders[thread] == 0:
                del _holders[thread]
            if not _holders:
                _restore()


def one_blas_thread() -> OneBlasThread:
    """Holds BLAS of this process to one thread inside a ``with`` block; see `OneBlasThread`."""
    return _ONE


def in_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with one BLAS thread while it runs."""

    @wraps(function)
    def held(*args: P.args, **named: P.kwargs) -> R:
        with _ONE:
            return function(*args, **named)

    return held


def threads_at_work() -> int:
    """Threads of this process that hold BLAS to one thread at present: those that work on rows."""
    return len(_holders)


_ONE = OneBlasThread()


def _restore() -> None:
    """Give every library the number of threads back that it had before the first holder came."""
    for library, number in _before:
        _set_threads(library, number)


@after_fork
def _forget_threads_of_parent() -> None:
    """Correct the records in a forked child: of all holders, only the thread that forked exists there."""
    global _lock
    _lock = threading.Lock()
    own = _holders.get(threading.get_ident(), 0)
    # Whether BLAS is limited at the time of the fork is known from the parent's records, before they are cleared.
    limited = bool(_holders)
    _holders.clear()
    if own:
        _holders[threading.get_ident()] = own
    elif limited:
        _restore()


def _set_threads(library: LibController, number: int) -> None:
    """Set the number whichever thread asks.

    From version 3.7 on, threadpoolctl lets only the thread that was first to limit OpenBLAS do so, and drops what
    others ask for without a word; a task in another thread would run on all cores.
    """
    # The method of older versions, under the name that newer ones give it behind their own check.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def _loaded_libraries() -> list[LibController]:
    """The BLAS libraries of this process, new ones last; looked for only after further modules were imported."""
    global _modules_seen
    # Looking through the libraries of a process takes about a millisecond, far too long for every block.
    if not _libraries or len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        known = {library.filepath for library in _libraries}
        for library in ThreadpoolController().lib_controllers:
            if library.user_api == "blas" and library.num_threads and library.filepath not in known:
                _libraries.append(library)
    return _libraries
