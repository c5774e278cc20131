"""Matrices in a file, where they do not fit in memory, which are read and written a few rows at a time."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import TypeAlias

import dask
import numpy as np

AT_ONCE = 1 << 16
"""The most rows of a matrix in a file that are read into memory at once."""


class RowsInFile:
    """A matrix of zeros in a file of Dask's `temporary_directory`, which is deleted with the object.

    Ranges of its rows are read and set as those of an array: ``rows[3:5]``, ``rows[3:5] = values``, ``rows[places]``.

    Parameters
    ----------
    shape : tuple (n, k)
    dtype : dtype
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        number, self.path = tempfile.mkstemp(prefix="dkl-categories-", dir=dask.config.get("temporary_directory", None))
        weakref.finalize(self, _remove, self.path, os.getpid())
        with os.fdopen(number, "wb") as file:
            # a sparse file: zeros, which take no disk space until rows are written
            file.truncate(self.row_bytes * shape[0])

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def __setitem__(self, rows: slice, values: np.ndarray) -> None:
        first, last, _ = rows.indices(self.shape[0])
        with open(self.path, "r+b") as file:
            file.seek(first * self.row_bytes)
            file.write(np.ascontiguousarray(np.broadcast_to(values, (last - first, self.shape[1])), self.dtype).data)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            return self._read(*rows.indices(self.shape[0])[:2])
        # from the file in the order of their places, a part of it at a time
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        order = np.argsort(rows, kind="stable")
        ordered, start = rows[order], 0
        while start < len(order):
            first = int(ordered[start])
            stop = int(np.searchsorted(ordered, first + AT_ONCE))
            found[order[start:stop]] = self._read(first, int(ordered[stop - 1]) + 1)[ordered[start:stop] - first]
            start = stop
        return found

    def _read(self, first: int, last: int) -> np.ndarray:
        """Rows `first` to `last` - 1."""
        try:
            values = np.fromfile(self.path, self.dtype, (last - first) * self.shape[1], offset=first * self.row_bytes)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno,
                "sums of categories were written to a folder that this worker does not see; set Dask's "
                "temporary_directory to a shared folder: dask.config.set(temporary_directory='/shared/tmp')",
                self.path,
            ) from error
        return values.reshape(-1, self.shape[1])


Rows: TypeAlias = np.ndarray | RowsInFile
"""A matrix (n, k), in memory or in a file."""


def _remove(path: str, process: int) -> None:
    """Remove a file if it still exists; only in the process that created it, not in a fork of it."""
    if os.getpid() == process and os.path.exists(path):
        os.unlink(path)
