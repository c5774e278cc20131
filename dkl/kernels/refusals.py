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
    pending().append((flag, explain))


def pending() -> list[tuple[Any, Callable[[], Exception]]]:
    """The flags of this thread that nobody has looked at yet; whoever looks at them empties the list."""
    if not hasattr(_found, "flags"):
        _found.flags = []
    flags: list[tuple[Any, Callable[[], Exception]]] = _found.flags
    return flags
