"""One BLAS thread while rows are worked on: products differ in their last bit between one thread and two."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_holders = 0
_before: list[tuple[Any, int]] = []
_libraries: list[Any] = []
_modules_seen = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this process until the last of the (nested, concurrent) holders has left.

    A limit set and lifted by each task for itself is a race: the first to leave would restore what it found, under
    the feet of the others. Here the first holder notes what was there and the last one restores it.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _holders, _before
    with _lock:
        if _holders == 0:
            _before = [(library, library.num_threads) for library in _loaded_libraries()]
        _holders += 1
        # by each holder: where BLAS runs on OpenMP, the number is the calling thread's own
        for library, _ in _before:
            _set_threads(library, 1)


def _leave() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            for library, number in _before:
                _set_threads(library, number)


def _set_threads(library: Any, number: int) -> None:
    """Set the number whichever thread asks.

    From version 3.7 on, threadpoolctl lets only the thread that was first to limit OpenBLAS do so, and drops what
    others ask for without a word; a task in another thread would run on all cores.
    """
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


def _loaded_libraries() -> list[Any]:
    """The BLAS libraries of this process; looked for again only after further modules were imported (milliseconds)."""
    global _libraries, _modules_seen
    if not _libraries or len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        controllers = ThreadpoolController().lib_controllers
        _libraries = [library for library in controllers if library.user_api == "blas" and library.num_threads]
    return _libraries
