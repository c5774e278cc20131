"""Products of steps and hinges for row tiles: values, sums, bins of rows, and histograms over bins."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import StepProjection
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


def step_maps(X: Rows, feature_map: FeatureMap, dtype: np.dtype, room: np.ndarray | None = None) -> np.ndarray:
    """The atoms of each row with amplitudes, of shape (n, m); in the first rows and columns of `room`, if given."""
    out = np.empty((X.shape[0], feature_map.n_frequencies), dtype) if room is None else room[: X.shape[0]]
    for rows, tile in _row_tiles(X, feature_map):
        write_atoms(tile, *_parts(feature_map), out[rows])
    return out[:, : feature_map.n_frequencies]


def step_tiles(X: Rows, feature_map: FeatureMap, dtype: DTypeLike) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Tiles of rows in float64 with their atoms (t, m), in memory that the next tile overwrites."""
    tiles = _row_tiles(X, feature_map)
    room = np.empty((min(tiles.step, X.shape[0]), feature_map.n_frequencies), dtype)
    for rows, tile in tiles:
        phi = room[: len(tile)]
        write_atoms(tile, *_parts(feature_map), phi)
        yield rows, tile, phi


def _row_tiles(X: Rows, feature_map: FeatureMap) -> RowTiles:
    """The rows in float64, which represents every stored value exactly, so that thresholds separate the same rows."""
    return RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=TILE_ROWS)


def _parts(feature_map: FeatureMap) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `write_atoms` for a map."""
    steps = feature_map.projection
    if not isinstance(steps, StepProjection):
        raise TypeError(f"a map of steps holds a StepProjection, not {type(steps).__name__}")
    return steps.columns, steps.thresholds, steps.kinds, steps.high, feature_map.amplitudes


@numba.njit(cache=True, nogil=True, error_model="numpy")
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def add_histograms(
    codes: np.ndarray, rows: np.ndarray, weight: np.ndarray, h: np.ndarray, S: np.ndarray, out: np.ndarray
) -> None:
    """Add the sums of the chosen rows by column and bin to `out`.

    Three sums of a bin take 0.9 ns for each row and column, a tree of two leaves 0.57 (LightGBM, one thread); with sums
    of h z, h z^2 and s z it was 1.7, and a hinge on the bins' mean values does not need these.

    Parameters
    ----------
    codes : ndarray of shape (n, d), uint8
    rows : ndarray of shape (r,), int64
        The rows on which the parent is not zero.
    weight, h : ndarray of shape (n,), float64
        Frequency weight of each row, and the weighted curvature of its loss.
    S : ndarray of shape (n, K), float64
        Weighted negative slopes of the losses.
    out : ndarray of shape (d, bins, 2 + K), float64
        By column and bin: weight, h, then s of each model.
    """
    d, K = codes.shape[1], S.shape[1]
    if K == 1:
        for i in rows:
            w, hi, s = weight[i], h[i], S[i, 0]
            for j in range(d):
                cell = out[j, codes[i, j]]
                cell[0] += w
                cell[1] += hi
                cell[2] += s
        return
    for i in rows:
        w, hi = weight[i], h[i]
        for j in range(d):
            cell = out[j, codes[i, j]]
            cell[0] += w
            cell[1] += hi
            for k in range(K):
                cell[2 + k] += S[i, k]
