"""The exceptions that dkl raises beyond Python's own, and the one way to say where a failure happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StoreError(ValueError):
    """A store is absent, incomplete, of a newer format, or not of the kind that was asked for."""


class CorruptChunkError(StoreError):
    """A chunk of a store does not hold the bytes that were written there."""


class StoreReplacedError(StoreError):
    """A store was moved, deleted or replaced since it was opened; opening it again shows what is there now."""


class MemoryLimitError(MemoryError):
    """A computation cannot be kept below the memory it was allowed; the message holds the sum."""


class ClusterError(RuntimeError):
    """The Dask cluster lost what a pass needs (all workers, the scheduler) and did not recover in time."""


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add `place` to an exception that passes through, once: the innermost place stays.

    The exception keeps its type and message; the place is a note, so a traceback ends with it.

    >>> try:
    ...     with located("block 3 of 'rows.zarr'"):
    ...         raise ValueError("y[17] is NaN")
    ... except ValueError as error:
    ...     print(error.__notes__)
    ["at block 3 of 'rows.zarr'"]
    """
    try:
        yield
    except Exception as error:
        if not any(note.startswith("at ") for note in getattr(error, "__notes__", ())):
            error.add_note(f"at {place}")
        raise
