"""Cutting text streams at line ends, and parsing the pieces in parallel with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def text_chunks(stream: IO[bytes], chunk_bytes: int, *, quoted: bool = False) -> Iterator[bytes]:
    """The rest of a stream in pieces of about `chunk_bytes` that end with a line.

    With `quoted`, a line end between double quotes does not end a line; a piece that holds an odd number of quotes
    wherever it is cut is cut at its last line end (quotes are then no quotes there).
    """
    rest = b""
    while data := stream.read(chunk_bytes):
        data = rest + data
        end = _last_line_end(data, quoted)
        rest = data[end:]
        if end:
            yield data[:end]
    if rest.strip():
        yield rest


def _last_line_end(data: bytes, quoted: bool) -> int:
    last = data.rfind(b"\n") + 1
    if not quoted:
        return last
    end, open_quotes = last, data.count(b'"', 0, last) % 2
    while end and open_quotes:
        before = data.rfind(b"\n", 0, end - 1) + 1
        open_quotes ^= data.count(b'"', before, end) % 2
        end = before
    return end or last


def in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], window: int
) -> Iterator[Result]:
    """``map(function, items)`` on a pool, with at most `window` items read ahead of the result that is asked for."""
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) >= window:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
