"""Angles of frequencies with a few entries each, computed from the columns of these entries alone."""

from __future__ import annotations

import numpy as np

from dkl.features.projections import SparseProjection
from dkl.kernels.compiled import njit
from dkl.kernels.sincos import ELEMENTWISE, add_multiple, add_sums
from dkl.protocols.arrays import Rows

# An entry costs about as much as eight columns of a matrix product, and a frequency as much as one more entry.
_COLUMNS_AN_ENTRY = 8
# Number of frequencies whose angles are written to the rows at once.
_LANES = 16


def has_few_entries(projection: SparseProjection) -> np.ndarray:
    """Whether each frequency is cheaper from its entries than from a product with all columns: (m,) bool."""
    # compares the cost of the entries, plus one for the frequency, with that of all columns of a product
    entries = np.diff(projection.indptr)
    return _COLUMNS_AN_ENTRY * (entries + 1) <= projection.width


class FewEntries:
    """Some frequencies of a sparse projection in the layout of the kernels.

    Parameters
    ----------
    projection : SparseProjection
    chosen : ndarray of int
        Indices of the frequencies.
    dtype : dtype
    """

    def __init__(self, projection: SparseProjection, chosen: np.ndarray, dtype: np.dtype) -> None:
        part = projection.matrix[chosen]
        # only columns with an entry are stored; the indices of entries are positions among these
        self.columns, indices = np.unique(part.indices, return_inverse=True)
        self._entries = part.data.astype(dtype), indices.astype(np.int64), part.indptr.astype(np.int64)
        self._places = chosen.astype(np.int64)
        # the position of each of the d columns among the stored ones, -1 for the others, for sparse rows
        self._position = np.full(projection.width, -1)
        self._position[self.columns] = np.arange(len(self.columns))

    def add(self, tile: Rows, weights: np.ndarray, total: np.ndarray) -> None:
        """Add a tile's sums, for weights (K, n), to those of the frequencies in total (2, K, m)."""
        if len(self._places):
            _add(self._touched(tile), self._entries, weights, self._places, total)

    def write(self, tile: Rows, out: np.ndarray) -> None:
        """Write z of a tile to the frequencies' columns of out (n, m)."""
        if len(self._places):
            columns = self._touched(tile)
            # the buffer is allocated here: kernels that allocate memory take longer to compile
            _write(columns, self._entries, self._places, np.empty((_LANES, columns.shape[1]), columns.dtype), out)

    def _touched(self, tile: Rows) -> np.ndarray:
        """The columns of the tile that a frequency has an entry in, each contiguous: (columns, n)."""
        if isinstance(tile, np.ndarray):
            return np.ascontiguousarray(tile[:, self.columns].T)
        columns = np.zeros((len(self.columns), tile.shape[0]), tile.dtype)
        _scatter(tile.data, tile.indices, tile.indptr, self._position, columns)
        return columns


@njit(nogil=True)
def _scatter(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, position: np.ndarray, columns: np.ndarray
) -> None:
    """Add the entries of sparse rows to the stored columns (at `position`; -1 skips the entry)."""
    for i in range(len(indptr) - 1):
        for entry in range(indptr[i], indptr[i + 1]):
            place = position[indices[entry]]
            if place >= 0:
                columns[place, i] += data[entry]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _angles(columns: np.ndarray, entries: tuple[np.ndarray, np.ndarray, np.ndarray], j: int, z: np.ndarray) -> None:
    """z = the linear form of frequency j at all rows."""
    data, indices, indptr = entries
    # w.x is a sum over the few columns with an entry; a column is a vector over the rows, so that the loop vectorises
    for i in range(len(z)):
        z[i] = 0
    for entry in range(indptr[j], indptr[j + 1]):
        add_multiple(columns[indices[entry]], data[entry], z)


@njit(nogil=True, fastmath=ELEMENTWISE)
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


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write(
    columns: np.ndarray,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    places: np.ndarray,
    z: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write angles of sixteen frequencies at once, so that a row's writes are close together; overwrites z (16, n)."""
    for first in range(0, len(places), _LANES):
        width = min(_LANES, len(places) - first)
        for j in range(width):
            _angles(columns, entries, first + j, z[j])
        for i in range(len(out)):
            for j in range(width):
                out[i, places[first + j]] = z[j, i]
