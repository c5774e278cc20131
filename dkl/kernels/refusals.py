"""What a GPU finds wrong with rows: raised when the host waits for their sums anyway, and not by a wait before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_found = threading.local()


def refuse_later(flags: Any, explain: Callable[[], Exception]) -> None:
    """Raise what `explain` makes, where one of the flags (on a GPU) is set, when this thread next waits for the GPU.

    Parameters
    ----------
    flags : CuPy array of any shape, bool
    explain : callable
        Makes the exception; it may wait for what it tells of.
    """
    if not flags.size:
        return
    # CuPy compiles `any` anew for some other numbers of rows, in 7 s each (H200); the largest byte is compiled once.
    flag = flags.view("int8").max()
    _found.flags = [*getattr(_found, "flags", []), (flag, explain)]


def take_refusals() -> list[tuple[Any, Callable[[], Exception]]]:
    """The flags that this thread was given since the last call, each with what makes its exception."""
    flags: list[tuple[Any, Callable[[], Exception]]] = getattr(_found, "flags", [])
    _found.flags = []
    return flags
