"""One BLAS thread while rows are worked on: products differ in their last bit between one thread and two.

Nor do the threads of BLAS go together with those of Dask: each product of each task would wait, spinning, until all
threads of BLAS have done their share, and beside another busy process that wait takes longer than the product.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

from dkl.process import after_fork

# Reentrant: a holder that was left to the garbage collector may leave while its thread is inside.
_lock = threading.RLock()
# The thread of each holder; for each library the number of threads that it had before the first holder came; the
# libraries that were found, and how many modules were loaded when they were looked for.
_holders: dict[object, int] = {}
_before: list[tuple[LibController, int]] = []
_libraries: list[LibController] = []
_modules_seen = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this process until the last of the (nested, concurrent) holders has left.

    A limit set and lifted by each task for itself is a race: the first to leave would restore what it found, under
    the feet of the others. Here the first holder notes what was there and the last one restores it.
    """
    holder = object()
    # Ctrl-C raises between any two steps, those of leaving among them: the outer of the two leaves for the inner one.
    # Where it strikes before or after all of them, Python closes this generator when it drops the exception.
    try:
        try:
            _enter(holder)
            yield
        finally:
            _leave(holder)
    finally:
        _leave(holder)


def _enter(holder: object) -> None:
    """Note a holder of this thread; the first one of a thread sets the limit."""
    with _lock:
        thread = threading.get_ident()
        is_first = thread not in _holders.values()
        _holders[holder] = thread
        if is_first:
            # A library that was loaded since the first holder came is noted here, and limited too.
            loaded = _loaded_libraries()
            for library in loaded[len(_before) :]:
                _before.append((library, library.num_threads))
            # The first holder of each thread sets the limit: where BLAS runs on OpenMP, the number of threads belongs
            # to the thread that calls.
            for library, _ in _before:
                _set_threads(library, 1)


def _leave(holder: object) -> None:
    """Forget a holder, if that was not done before; the last one of all restores what was there."""
    with _lock:
        _holders.pop(holder, None)
        if not _holders:
            _restore()


def threads_at_work() -> int:
    """Threads of this process that hold BLAS to one thread at present: those that work on rows."""
    return len(set(_holders.values()))


def _restore() -> None:
    """Give every library the number of threads back that it had before the first holder came."""
    while _before:
        _set_threads(*_before[-1])
        _before.pop()


@after_fork
def _forget_threads_of_parent() -> None:
    """Correct the records in a forked child: of all holders, only the thread that forked exists there."""
    global _lock
    _lock = threading.RLock()
    for holder in [holder for holder, thread in _holders.items() if thread != threading.get_ident()]:
        del _holders[holder]
    if not _holders:
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
        loaded = len(sys.modules)
        known = {library.filepath for library in _libraries}
        for library in ThreadpoolController().lib_controllers:
            if library.user_api == "blas" and library.num_threads and library.filepath not in known:
                _libraries.append(library)
        _modules_seen = loaded
    return _libraries


def product(left: Any, right: Any) -> Any:
    """``left @ right`` of two matrices, or of a vector and a matrix, while other threads run.

    NumPy's `@` keeps the interpreter's lock where fewer than 500 numbers come out, however many rows are summed: passes
    on threads would wait for each other. `numpy.dot` makes the same call of BLAS, to the same bits.
    """
    are_plain = all(isinstance(part, np.ndarray) and part.ndim <= 2 for part in (left, right))
    return np.dot(left, right) if are_plain else left @ right
