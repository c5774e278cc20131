"""What a GPU finds wrong with rows: raised when the host waits for their sums anyway, and not by a wait before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_found = threading.local()


def refuse_later(flag: Any, explain: Callable[[], Exception]) -> None:
    """Raise what `explain` makes, where the flag (on a GPU, of one number) is set, when this thread next waits.

    Parameters
    ----------
    flag : CuPy array of shape (), bool
    explain : callable
        Makes the exception; it may wait for what it tells of.
    """
    _found.flags = [*getattr(_found, "flags", []), (flag, explain)]


def take_refusals() -> list[tuple[Any, Callable[[], Exception]]]:
    """The flags that this thread was given since the last call, each with what makes its exception."""
    flags: list[tuple[Any, Callable[[], Exception]]] = getattr(_found, "flags", [])
    _found.flags = []
    return flags
