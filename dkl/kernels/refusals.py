"""Errors that a GPU finds in rows, raised when the host waits for results anyway instead of by an extra wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

_pending = threading.local()


def refuse_later(flags: Any, explain: Callable[[], Exception]) -> None:
    """Raise the exception of `explain` if any of the flags is set, when this thread next waits for the GPU.

    Parameters
    ----------
    flags : CuPy array of any shape, bool
    explain : callable
        Returns the exception; it may wait for the GPU to read the rows it names.
    """
    if not flags.size:
        return
    # CuPy compiles `any` anew for some numbers of rows, in 7 s each (H200); the largest byte is compiled once
    flag = flags.view(np.int8).max()
    _pending.flags = [*getattr(_pending, "flags", []), (flag, explain)]


def take_refusals() -> list[tuple[Any, Callable[[], Exception]]]:
    """The flags that this thread was given since the last call, each with the function that makes its exception."""
    flags: list[tuple[Any, Callable[[], Exception]]] = getattr(_pending, "flags", [])
    _pending.flags = []
    return flags
