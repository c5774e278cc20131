"""Calls in threads whose results are used in the order of the calls, with a limit on the calls in progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], window: int
) -> Iterator[Result]:
    """``map(function, items)`` on a pool, with at most `window` calls ahead of the result that is used."""
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            # results are used in order, so that the first call may delay the others, but memory stays bounded
            running.append(pool.submit(function, item))
            if len(running) >= window:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()


class Backlog:
    """Calls on a pool, at most `most` of them submitted and not finished.

    `add` and `finish` raise the errors of calls, in the order of the calls.

    Parameters
    ----------
    pool : Executor
    most : int
        Largest number of submitted calls; if there are that many, `add` waits for the first of them.
    taken : callable or None
        Called with each result, in the order of the calls and in the thread that adds calls.
    """

    def __init__(self, pool: Executor, most: int, taken: Callable[[Any], object] | None = None) -> None:
        self._pool, self._most, self._taken = pool, most, taken
        self._running: deque[Future[Any]] = deque()

    def add(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Submit a call to the pool; waits while `most` calls are in progress."""
        while len(self._running) >= self._most:
            self._take()
        future = self._pool.submit(function, *arguments)
        self._running.append(future)
        return future

    def finish(self) -> None:
        """Wait for all calls."""
        while self._running:
            self._take()

    def _take(self) -> None:
        result = self._running.popleft().result()
        if self._taken is not None:
            self._taken(result)
