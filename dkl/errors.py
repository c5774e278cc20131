"""The exceptions that dkl raises beyond Python's own, and the one way to say where a failure happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class StoreError(ValueError):
    """A store is absent, incomplete, of a newer format, or not of the kind that was asked for."""


class CorruptChunkError(StoreError):
    """A chunk of a store does not hold the bytes that were written there."""


class MemoryLimitError(MemoryError):
    """A computation cannot be kept below the memory it was allowed; the message holds the sum."""


class ClusterError(RuntimeError):
    """The Dask cluster lost what a pass needs (all workers, the scheduler) and did not recover in time."""


def refuse_non_finite(values: Any, what: str, cause: str) -> None:
    """Raise ValueError for NaN or infinity in what was computed: what and where it is, and what is likely behind it.

    >>> refuse_non_finite(np.array([1.0, np.inf]), "the scale of column", "its values are too large")
    Traceback (most recent call last):
        ...
    ValueError: the scale of column 1 is inf: its values are too large
    """
    values = np.asarray(values)
    if np.isfinite(values).all():
        return
    place = np.argwhere(~np.isfinite(values))[0]
    where = "".join(f" {index}" for index in place[-1:])
    raise ValueError(f"{what}{where} is {values[tuple(place)]}: {cause}")


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
