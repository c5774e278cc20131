"""Cutting text streams at line ends, and parsing the pieces in parallel with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


LONGEST_LINE = 64 * 2**20


def text_chunks(stream: IO[bytes], chunk_bytes: int, *, quoted: bool = False) -> Iterator[bytes]:
    """The rest of a stream in pieces of about `chunk_bytes` that end with a line.

    With `quoted`, a line end between double quotes does not end a line. Where a quote stays open for several pieces, it
    is taken for a mere character, and the piece is cut at its last line end.

    Raises
    ------
    ValueError
        No line ends within `LONGEST_LINE` bytes.
    """
    patience = max(4 * chunk_bytes, 4096)
    rest = b""
    while data := stream.read(chunk_bytes):
        data = rest + data
        end = _balanced_end(data) if quoted else 0
        if not end and (not quoted or len(data) > patience):
            end = data.rfind(b"\n") + 1
        if not end and len(data) > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE} bytes; is this a text file?")
        rest = data[end:]
        if end:
            yield data[:end]
    if rest.strip():
        yield rest


def _balanced_end(data: bytes) -> int:
    """After the last line end that an even number of quotes precedes; 0 when there is none."""
    end = data.rfind(b"\n") + 1
    open_quotes = data.count(b'"', 0, end) % 2
    while end and open_quotes:
        before = data.rfind(b"\n", 0, end - 1) + 1
        open_quotes ^= data.count(b'"', before, end) % 2
        end = before
    return end


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
