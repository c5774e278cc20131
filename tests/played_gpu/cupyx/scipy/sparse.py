"""Sparse rows of the played GPU."""

from __future__ import annotations

from typing import Any

import cupy
from scipy import sparse


class csr_matrix:
    """Sparse rows that only this device takes."""

    def __init__(self, rows: Any) -> None:
        self._rows = sparse.csr_array(rows)
        self.data = cupy.ndarray(self._rows.data)

    shape = property(lambda self: self._rows.shape)
    dtype = property(lambda self: self._rows.dtype)

    @property
    def device(self) -> cupy.Device:
        raise NotImplementedError

    def get(self) -> sparse.csr_array:
        return self._rows.copy()

    def toarray(self) -> cupy.ndarray:
        return cupy.ndarray(self._rows.toarray())

    def __getitem__(self, index: Any) -> csr_matrix:
        return csr_matrix(self._rows[cupy._inside(index, host=True)])
