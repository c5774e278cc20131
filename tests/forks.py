"""Processes that tests start and kill, forked from one that has imported what they need (see `forked_workers`)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

# Only Windows has no server of forks: there each process imports everything anew, for seconds.
_IS_THERE = "forkserver" in multiprocessing.get_all_start_methods()
FORKS: Any = multiprocessing.get_context("forkserver" if _IS_THERE else "spawn")


def started(work: Callable[..., object], *given: object) -> Any:
    """A process that does `work`, once it has sent a first word through the connection that comes after `given`."""
    reader, writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=work, args=(*given, writer), daemon=True)
    process.start()
    writer.close()
    reader.recv()
    reader.close()
    return process


def ended(work: Callable[..., object], *given: object) -> int | None:
    """The exit code of a process that does `work`: the number of a signal, negative, where one has ended it."""
    process = FORKS.Process(target=work, args=given, daemon=True)
    process.start()
    process.join(120.0)
    return process.exitcode
