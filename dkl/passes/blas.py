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
_limiter: Any = None
_controller: ThreadpoolController | None = None
_modules_seen = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this process until the last of the (nested, concurrent) holders has left.

    A limit set and lifted by each task for itself is a race: the first to leave would restore what it found, under
    the feet of the others. Here the first holder sets the limit and the last one restores it.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _holders, _limiter
    with _lock:
        if _holders == 0:
            _limiter = _loaded_libraries().limit(limits=1, user_api="blas")
        _holders += 1


def _leave() -> None:
    global _holders, _limiter
    with _lock:
        _holders -= 1
        if _holders == 0:
            _limiter.restore_original_limits()
            _limiter = None


def _loaded_libraries() -> ThreadpoolController:
    """The BLAS libraries of this process; looked for again only after further modules were imported (milliseconds)."""
    global _controller, _modules_seen
    if _controller is None or len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        _controller = ThreadpoolController()
    return _controller
