"""Products of steps and hinges for row tiles: values, sums, bins of rows, and histograms over bins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import StepProjection
from dkl.kernels.compiled import njit
from dkl.kernels.tiles import RowTiles
from dkl.protocols.arrays import Rows

# a row's atom takes the time of about 10 operations of a matrix product: two or three comparisons
STEP_FLOPS = 10
# rows of a tile: the values of a few hundred atoms fit the caches
TILE_ROWS = 1024
# rows processed at once: their columns, and the values of one atom, fit the first cache
_ROWS_AT_ONCE = 64
# sums of a bin before those of the models' s: weight and curvature h
SHARED_SUMS = 2
# the most rows that are collected for histograms: with these, each histogram is read for some 1,000 rows inside it
_COLLECTED_ROWS = 8192


def step_maps(X: Rows, feature_map: FeatureMap, dtype: np.dtype, buffer: np.ndarray | None = None) -> np.ndarray:
    """The atoms of each row with amplitudes, of shape (n, m); in the first rows and columns of `buffer`, if given."""
    out = np.empty((X.shape[0], feature_map.n_frequencies), dtype) if buffer is None else buffer[: X.shape[0]]
    for rows, tile in row_tiles(X, feature_map):
        write_atoms(tile, *_parts(feature_map), out[rows])
    return out[:, : feature_map.n_frequencies]


def step_tiles(X: Rows, feature_map: FeatureMap, dtype: DTypeLike) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Tiles of rows in float64 with their atoms (t, m), in memory that the next tile overwrites."""
    tiles = row_tiles(X, feature_map)
    buffer = np.empty((min(tiles.step, X.shape[0]), feature_map.n_frequencies), dtype)
    for rows, tile in tiles:
        phi = buffer[: len(tile)]
        write_atoms(tile, *_parts(feature_map), phi)
        yield rows, tile, phi


def row_tiles(X: Rows, feature_map: FeatureMap) -> RowTiles:
    """The rows in float64, which represents every stored value exactly, so that thresholds separate the same rows."""
    return RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=TILE_ROWS)


def _parts(feature_map: FeatureMap) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `write_atoms` for a map."""
    steps = feature_map.projection_as(StepProjection)
    return steps.columns, steps.thresholds, steps.kinds, steps.high, feature_map.amplitudes


@njit(nogil=True, error_model="numpy")
def write_atoms(
    X: np.ndarray,
    columns: np.ndarray,
    thresholds: np.ndarray,
    kinds: np.ndarray,
    high: np.ndarray,
    amplitudes: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write amplitude times the product of the factors of each row and atom to `out`, (n, m).

    Each atom is computed for some rows at a time, from contiguous copies of the columns: comparisons that select one of
    two values need no branches, and several rows are compared at once.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64, C order
    columns, thresholds, kinds, high
        As in `StepProjection`.
    amplitudes : ndarray of shape (m,), float64
    out : ndarray of shape (n, m), float32 or float64
    """
    n, d = X.shape
    x, values = np.empty((d, _ROWS_AT_ONCE)), np.empty(_ROWS_AT_ONCE)
    is_read = np.zeros(d, np.bool_)
    for a in range(len(columns)):
        for f in range(columns.shape[1]):
            if columns[a, f] >= 0:
                is_read[columns[a, f]] = True
    read = np.flatnonzero(is_read)
    for first in range(0, n, _ROWS_AT_ONCE):
        r = min(_ROWS_AT_ONCE, n - first)
        for i in range(r):
            for j in read:
                x[j, i] = X[first + i, j]
        for a in range(len(columns)):
            for i in range(r):
                values[i] = amplitudes[a]
            for f in range(columns.shape[1]):
                j = columns[a, f]
                if j < 0:
                    break
                t = thresholds[a, f]
                # a comparison with NaN is false, so that a missing value is on the lower side
                if kinds[a, f] == 1:
                    top = high[j]
                    for i in range(r):
                        upper = x[j, i] if x[j, i] < top else top
                        values[i] = values[i] * (upper - t) if x[j, i] > t else 0.0
                else:
                    for i in range(r):
                        values[i] = values[i] if x[j, i] > t else 0.0
            for i in range(r):
                out[first + i, a] = values[i]


@njit(nogil=True, error_model="numpy")
def write_codes(X: np.ndarray, edges: np.ndarray, n_edges: np.ndarray, out: np.ndarray) -> None:
    """The bin of each value: the number of edges of its column below it, so that ``x > edges[j, b]`` is ``code > b``.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
    edges : ndarray of shape (d, most), float64
        Ascending; column j has ``n_edges[j]`` of them.
    n_edges : ndarray of shape (d,), int64
    out : ndarray of shape (n, d), uint8
    """
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            low, high = 0, n_edges[j]
            while low < high:
                middle = (low + high) // 2
                if X[i, j] > edges[j, middle]:
                    low = middle + 1
                else:
                    high = middle
            out[i, j] = low


class HistogramSums:
    """Sums of rows by column and bin within each of P parents, from tiles of rows.

    The histograms of all parents take more memory than the caches hold, so that rows of several tiles are collected,
    and each histogram is read once for all of them. Fewer numbers are added than there are rows inside and columns:

    - If most of the collected rows are inside a parent, it gets the sums of all rows minus those outside.
    - Of a column with two bins only rows in the upper bin are added, and `finish` subtracts them from the sums of all
      rows: a one-hot column takes no time in the rows where it is 0. The same holds for constant columns.

    Parameters
    ----------
    parents : ndarray of shape (P,), int64
        Columns of the mapped rows; rows are inside a parent where it is positive.
    n_edges : ndarray of shape (d,), int64
        The number of edges of each column.
    out : ndarray of shape (P, d, bins, 2 + K), float64, zeros
        By column and bin: weight, h, then s of each model. It is complete after `finish`.
    """

    def __init__(self, parents: np.ndarray, n_edges: np.ndarray, out: np.ndarray) -> None:
        self._parents, self._is_binary, self._out = parents, n_edges <= 1, out
        most, (P, d, _, width) = collected_rows(out.shape[1]), out.shape
        self._n_rows, self._numbers = 0, np.empty((most, width))
        # Offsets into a flat histogram, one for each column in which a row is added; those of row i are
        # places[starts[i] : starts[i + 1]].
        self._places, self._starts = np.empty(most * d, np.int32), np.zeros(most + 1, np.int32)
        # whether each collected row is inside each parent, and last whether it has a positive weight
        self._inside = np.empty((P + 1, most), bool)

    def add(self, codes: np.ndarray, phi: np.ndarray, weight: np.ndarray, h: np.ndarray, S: np.ndarray) -> None:
        """Add the rows of positive weight of a tile of at most `TILE_ROWS` rows.

        Parameters
        ----------
        codes : ndarray of shape (n, d), uint8
            The bins of the rows.
        phi : ndarray of shape (n, m)
            The mapped rows.
        weight, h : ndarray of shape (n,), float64
            Frequency weight of each row, and the weighted curvature of its loss.
        S : ndarray of shape (n, K), float64
            Weighted negative slopes of the losses.
        """
        if self._n_rows + len(codes) > len(self._numbers):
            self._add_collected()
        first, stop = self._n_rows, self._n_rows + len(codes)
        self._n_rows, numbers = stop, self._numbers[first:stop]
        numbers[:, 0], numbers[:, 1], numbers[:, SHARED_SUMS:] = weight, h, S
        bins, width = self._out.shape[2:]
        columns = np.arange(codes.shape[1], dtype=np.int32)
        # a row in the lower of two bins has no place for this column
        has_place = (codes > 0) | ~self._is_binary
        self._starts[first + 1 : stop + 1] = self._starts[first] + np.cumsum(has_place.sum(axis=1))
        places = ((columns * bins + codes) * width)[has_place]
        self._places[self._starts[first] : self._starts[stop]] = places
        inside = self._inside[:, first:stop]
        inside[-1] = weight > 0.0
        np.logical_and(phi[:, self._parents].T > 0.0, inside[-1], out=inside[:-1])

    def _add_collected(self) -> None:
        """Add the collected rows to the histograms."""
        P, d, bins, width = self._out.shape
        of_rows = self._numbers, self._places, self._starts
        inside, of_all = self._inside[:, : self._n_rows], np.zeros(d * bins * width)

        def add(is_added: np.ndarray, sign: float, out: np.ndarray) -> None:
            _add_listed(np.flatnonzero(is_added), sign, of_rows, self._is_binary, (bins, width), out)

        counted, counts = inside[-1], np.count_nonzero(inside, axis=1)
        add(counted, 1.0, of_all)
        for own, is_inside, count in zip(self._out.reshape(P, -1), inside, counts, strict=False):
            if 2 * count <= counts[-1]:
                add(is_inside, 1.0, own)
            else:
                own += of_all
                add(counted & ~is_inside, -1.0, own)
        self._n_rows = 0

    def finish(self) -> None:
        """Add the rows that are still collected; no row is added afterwards."""
        self._add_collected()
        self._out[:, self._is_binary, 0] -= self._out[:, self._is_binary, 1]


def collected_rows(n_columns: int) -> int:
    """The number of rows that `HistogramSums` collects before it adds them to the histograms.

    Their offsets, 4 bytes for each row and column, take at most 4 MiB, so that they stay in the cache; with more than
    1,024 columns the rows of one tile are collected.
    """
    return int(np.clip((1 << 20) // n_columns, TILE_ROWS, _COLLECTED_ROWS))


def collected_bytes(n_parents: int, shape: tuple[int, int, int]) -> int:
    """Bytes that `HistogramSums` holds beside histograms of `shape` (d, bins, sums): its rows, and sums of all rows."""
    d, bins, width = shape
    collected = collected_rows(d) * (n_parents + 17 + 4 * (d + 1) + 8 * width)
    # of a tile its values in the parents' columns, and the places of its rows
    return collected + TILE_ROWS * (9 * n_parents + 14 * d) + 8 * d * bins * width


@njit(nogil=True, error_model="numpy")
def _add_listed(
    listed: np.ndarray,
    sign: float,
    of_rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    is_binary: np.ndarray,
    shape: tuple[int, int],
    out: np.ndarray,
) -> None:
    """Add `sign` times the numbers of rows at their places of a flat histogram of `shape` (bins, sums) by column.

    The lower of two bins gets the numbers of all listed rows.
    """
    numbers, places, starts = of_rows
    bins, width = shape
    total = np.zeros(width)
    for i in listed:
        w, h, s = sign * numbers[i, 0], sign * numbers[i, 1], sign * numbers[i, 2]
        for e in range(starts[i], starts[i + 1]):
            place = np.uintp(places[e])
            out[place] += w
            out[place + np.uintp(1)] += h
            out[place + np.uintp(2)] += s
        for k in range(3, width):
            s = sign * numbers[i, k]
            for e in range(starts[i], starts[i + 1]):
                out[np.uintp(places[e]) + np.uintp(k)] += s
        for k in range(width):
            total[k] += sign * numbers[i, k]
    for j in range(len(is_binary)):
        for k in range(width if is_binary[j] else 0):
            out[j * bins * width + k] += total[k]
