"""Angles of frequencies with a few entries each: only the columns that these touch are looked at."""

from __future__ import annotations

import numba
import numpy as np

from dkl.features.projections import SparseProjection
from dkl.kernels.sincos import ELEMENTWISE, add_multiple, add_sums
from dkl.protocols.arrays import Rows

# An entry costs about as much as eight columns of a matrix product, and a frequency as much as one entry more.
_COLUMNS_AN_ENTRY = 8
# Frequencies whose angles are written to the rows together.
_LANES = 16


def has_few_entries(projection: SparseProjection) -> np.ndarray:
    """Which frequencies are cheaper from their entries than from a product with all columns: (m,) bool."""
    # Counted in columns of a product: what the entries cost, and the frequency itself, against what all columns cost.
    entries = np.diff(projection.indptr)
    return _COLUMNS_AN_ENTRY * (entries + 1) <= projection.width


class FewEntries:
    """Some frequencies of a sparse projection, laid out for the kernels.

    Parameters
    ----------
    projection : SparseProjection
    chosen : ndarray of int
        The frequencies, by number.
    dtype : dtype
    """

    def __init__(self, projection: SparseProjection, chosen: np.ndarray, dtype: np.dtype) -> None:
        part = projection.matrix[chosen]
        # Only the columns that some frequency touches are kept; entries are renumbered to their places among these.
        self.columns, indices = np.unique(part.indices, return_inverse=True)
        self._entries = part.data.astype(dtype), indices.astype(np.int64), part.indptr.astype(np.int64)
        self._places = chosen.astype(np.int64)
        # The place of each of the d columns among those that are kept, -1 for the others: sparse rows are read by it.
        self._position = np.full(projection.width, -1)
        self._position[self.columns] = np.arange(len(self.columns))

    def add(self, tile: Rows, weights: np.ndarray, total: np.ndarray) -> None:
        """Add a tile's sums, weights (K, n), to the frequencies' places in total (2, K, m)."""
        if len(self._places):
            _add(self._touched(tile), self._entries, weights, self._places, total)

    def write(self, tile: Rows, out: np.ndarray) -> None:
        """Write z of a tile to the frequencies' columns of out (n, m)."""
        if len(self._places):
            columns = self._touched(tile)
            # Room for the angles is made here: kernels that ask for memory take longer to compile.
            _write(columns, self._entries, self._places, np.empty((_LANES, columns.shape[1]), columns.dtype), out)

    def _touched(self, tile: Rows) -> np.ndarray:
        """The columns that a frequency touches, each contiguous: (columns, n)."""
        if isinstance(tile, np.ndarray):
            return np.ascontiguousarray(tile[:, self.columns].T)
        columns = np.zeros((len(self.columns), tile.shape[0]), tile.dtype)
        _scatter(tile.data, tile.indices, tile.indptr, self._position, columns)
        return columns


@numba.njit(nogil=True, cache=True)
def _scatter(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, position: np.ndarray, columns: np.ndarray
) -> None:
    """Add the entries of sparse rows to the columns (at `position`, or none) that are kept."""
    for i in range(len(indptr) - 1):
        for entry in range(indptr[i], indptr[i + 1]):
            kept = position[indices[entry]]
            if kept >= 0:
                columns[kept, i] += data[entry]


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _angles(columns: np.ndarray, entries: tuple[np.ndarray, np.ndarray, np.ndarray], j: int, z: np.ndarray) -> None:
    """z = the linear form of frequency j at all rows."""
    data, indices, indptr = entries
    # w.x is a sum over the few columns with an entry; each is a vector over the rows, so that the loop is vector code.
    for i in range(len(z)):
        z[i] = 0
    for entry in range(indptr[j], indptr[j + 1]):
        add_multiple(columns[indices[entry]], data[entry], z)


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _add(
    columns: np.ndarray,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    weights: np.ndarray,
    places: np.ndarray,
    total: np.ndarray,
) -> None:
    """Add the sums of a tile's columns (c, n), with weights (K, n), to the frequencies' `places` in total (2, K, m)."""
    z = np.empty(columns.shape[1], columns.dtype)
    room = np.empty((2, len(z)), z.dtype)
    for j in range(len(places)):
        _angles(columns, entries, j, z)
        add_sums(z, weights, room, total, places[j])


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _write(
    columns: np.ndarray,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    places: np.ndarray,
    z: np.ndarray,
    out: np.ndarray,
) -> None:
    """Sixteen frequencies at a time, so that what is written to a row lies close together; z (16, n) is overwritten."""
    for first in range(0, len(places), _LANES):
        width = min(_LANES, len(places) - first)
        for j in range(width):
            _angles(columns, entries, first + j, z[j])
        for i in range(len(out)):
            for j in range(width):
                out[i, places[first + j]] = z[j, i]
