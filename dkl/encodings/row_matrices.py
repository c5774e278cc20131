"""Matrices that are read and written a few rows at a time: in memory, or in a file where they do not fit."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Protocol

import dask
import numpy as np

AT_ONCE = 1 << 16
"""The most rows of a matrix in a file that are read into memory at once."""


class Rows(Protocol):
    """A matrix (n, k)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def write(self, first: int, rows: np.ndarray) -> None:
        """Set the rows from `first` on."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows `first` to `last` - 1."""

    def take(self, places: np.ndarray) -> np.ndarray:
        """The rows at the positions `places` (m,), in that order: (m, k)."""


class RowsInMemory:
    """A matrix in memory; see `Rows`."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def write(self, first: int, rows: np.ndarray) -> None:
        self.values[first : first + len(rows)] = rows

    def read(self, first: int, last: int) -> np.ndarray:
        return self.values[first:last]

    def take(self, places: np.ndarray) -> np.ndarray:
        return self.values[places]


class RowsInFile:
    """A matrix in a file of Dask's `temporary_directory`; see `Rows`. The file is deleted with the object.

    Parameters
    ----------
    shape : tuple (n, k)
    dtype : dtype
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        number, self.path = tempfile.mkstemp(prefix="dkl-categories-", dir=dask.config.get("temporary_directory", None))
        weakref.finalize(self, _remove, self.path, os.getpid())
        with os.fdopen(number, "wb") as file:
            # a sparse file: zeros, which take no disk space until rows are written
            file.truncate(self.row_bytes * shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def write(self, first: int, rows: np.ndarray) -> None:
        with open(self.path, "r+b") as file:
            file.seek(first * self.row_bytes)
            file.write(np.ascontiguousarray(rows, self.dtype).data)

    def read(self, first: int, last: int) -> np.ndarray:
        try:
            rows = np.fromfile(self.path, self.dtype, (last - first) * self.shape[1], offset=first * self.row_bytes)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno,
                "sums of categories were written to a folder that this worker does not see; set Dask's "
                "temporary_directory to a shared folder: dask.config.set(temporary_directory='/shared/tmp')",
                self.path,
            ) from error
        return rows.reshape(-1, self.shape[1])

    def take(self, places: np.ndarray) -> np.ndarray:
        rows = np.empty((len(places), self.shape[1]), self.dtype)
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        start = 0
        while start < len(order):
            first = int(ordered[start])
            last = min(first + AT_ONCE, self.shape[0])
            stop = int(np.searchsorted(ordered, last))
            of_file = self.read(first, int(ordered[stop - 1]) + 1)
            rows[order[start:stop]] = of_file[ordered[start:stop] - first]
            start = stop
        return rows


MakesRows = Callable[[tuple[int, int], np.dtype], Rows]


def rows_in_memory(shape: tuple[int, int], dtype: np.dtype) -> RowsInMemory:
    """A matrix of zeros in memory."""
    return RowsInMemory(np.zeros(shape, dtype))


def _remove(path: str, process: int) -> None:
    """Remove a file if it still exists; only in the process that created it, not in a fork of it."""
    if os.getpid() == process and os.path.exists(path):
        os.unlink(path)
