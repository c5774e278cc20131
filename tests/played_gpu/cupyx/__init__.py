"""The part of cupyx that blocks use, played by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np

# The bytes of each piece of pinned memory that was asked for.
pinned: list[int] = []


def empty_pinned(shape: int, dtype: Any = float) -> np.ndarray:
    """As `numpy.empty`, of memory that a device reads by itself."""
    import cupy

    pinned.append(shape * np.dtype(dtype).itemsize)
    return np.frombuffer(cupy.PinnedMemory(pinned[-1]), dtype)
