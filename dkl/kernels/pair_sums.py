"""Weighted sums of exp(i w.x) over rows on a CPU: products in tiles that fit the cache, each reduced by one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection, StructuredProjection, formed
from dkl.kernels.few_entries import FewEntries, has_few_entries
from dkl.kernels.hadamard import HadamardPlan, structured_sums
from dkl.kernels.sincos import ELEMENTWISE, TURN, add_multiple, add_sums, cos_sin_rows, weighted_sum_of_two
from dkl.kernels.tiles import RowTiles, even_step, spans
from dkl.protocols.arrays import Rows

# Frequencies of a tile of a dense product; most columns for which the kernel computes the product itself; rows at once
# in the sparse kernel, and frequencies of its tile.
_FREQUENCIES = 768
SMALL_COLUMNS = 4
_GROUP = 8
_SPARSE_FREQUENCIES = 512

AddTile = Callable[[Any, np.ndarray, np.ndarray], None]


def pair_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, *, multiple: float = 1.0) -> np.ndarray:
    """sum_i S[i, k] exp(i multiple (w_j.x_i + b_j)): its real and its imaginary part, float64 of shape (2, m, K).

    Phases, and the centre of sparse rows, are applied to the sums at the end instead of to each row's angle.
    """
    projection = feature_map.projection
    structured = isinstance(projection, StructuredProjection)
    tiles = RowTiles(X, feature_map, dtype, factor=multiple * TURN, dense=structured)
    total = np.zeros((2, S.shape[1], feature_map.n_frequencies))
    keeps_sparse = tiles.sparse and not tiles.written_out
    add_tile: AddTile  # adds the sums of a tile of rows with weights (K, n) to total (2, K, m)
    if isinstance(projection, StructuredProjection):
        plan = HadamardPlan(projection, dtype).arrays

        def add_tile(tile: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
            structured_sums(tile, weights, plan, total)

    elif isinstance(projection, SparseProjection) and has_few_entries(projection).any():
        add_tile = _FewEntriesAndOthers(projection, dtype, sparse=keeps_sparse)
    else:
        add_tile = _matrix_kernel(projection.dense().astype(dtype, copy=False), sparse=keeps_sparse)
    # a row beyond the range of float32 is infinite and its angles undefined; `cos_sin` returns finite values for these
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, tile in tiles:
            add_tile(tile, np.ascontiguousarray(S[rows].T, dtype=dtype), total)
    # the terms left out of each row's angle: the phase b_j, and w_j times the centre of sparse rows
    angles = None if feature_map.phases is None else multiple * feature_map.phases
    if tiles.constant is not None:
        shift = 2.0 * np.pi * (formed(projection) @ tiles.constant)
        angles = -shift if angles is None else angles - shift
    if angles is not None:
        # sum s exp(i (z + b)) = exp(i b) sum s exp(i z), in cosines and sines
        c, s = np.cos(angles), np.sin(angles)
        total = np.stack([c * total[0] - s * total[1], s * total[0] + c * total[1]])
    return total.transpose(0, 2, 1)


def _matrix_kernel(W: np.ndarray, *, sparse: bool) -> AddTile:
    """A function that adds a tile's sums for a matrix W (m, d), in turns; depends on the kind and width of rows."""
    if sparse:
        transposed = np.ascontiguousarray(W.T)
        return lambda tile, weights, total: add_sparse_sums(
            tile.data, tile.indices, tile.indptr, weights, transposed, total
        )
    if W.shape[1] <= SMALL_COLUMNS:
        # an odd number of columns is padded with one of zeros, so that loops over pairs serve one column too
        padded = np.ascontiguousarray(np.pad(W, ((0, 0), (0, W.shape[1] % 2))))

        def add_small(tile: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
            columns = np.zeros((padded.shape[1], len(tile)), tile.dtype)
            columns[: tile.shape[1]] = tile.T
            if padded.shape[1] == 2 and len(weights) == 1:
                _reduce_two(columns, weights, padded, total)
            else:
                _reduce_small(columns, weights, padded, total)

        return add_small
    return _DenseProduct(W)


class _FewEntriesAndOthers:
    """Adds a tile's sums: frequencies with few entries from these, the others by a product with all columns."""

    def __init__(self, projection: SparseProjection, dtype: np.dtype, *, sparse: bool) -> None:
        # most frequencies have entries in few columns; for the others one product with all columns is cheaper
        few = has_few_entries(projection)
        self.few = FewEntries(projection, np.flatnonzero(few), dtype)
        self.rest = np.flatnonzero(~few)
        W = projection.take(self.rest).dense().astype(dtype, copy=False)
        self.add_rest = _matrix_kernel(W, sparse=sparse) if len(self.rest) else None

    def __call__(self, tile: Rows, weights: np.ndarray, total: np.ndarray) -> None:
        self.few.add(tile, weights, total)
        if self.add_rest is not None:
            part = np.zeros((2, len(weights), len(self.rest)))
            self.add_rest(tile, weights, part)
            total[:, :, self.rest] += part


class _DenseProduct:
    """Adds a tile's sums for a matrix W, through a buffer of frequencies x rows that fits the cache."""

    def __init__(self, W: np.ndarray) -> None:
        self.n_frequencies = len(W)
        # a single row or frequency would be a matrix-vector product, whose bits depend on its address in memory
        self.W = W if len(W) > 1 else np.concatenate([W, W])
        self.buffer = np.empty(0, W.dtype)

    def __call__(self, tile: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
        if len(tile) == 1:
            tile, weights = np.concatenate([tile, tile]), np.pad(weights, ((0, 0), (0, 1)))
        for chosen in spans(self.n_frequencies, even_step(self.n_frequencies, _FREQUENCIES)):
            W = self.W[chosen] if self.n_frequencies > 1 else self.W
            product = self._room(len(W), len(tile))
            np.dot(W, tile.T, out=product)
            # sums are computed while the product is in the cache: no matrix of n x m angles ever exists
            _reduce(product[: chosen.stop - chosen.start], weights, total, chosen.start)

    def _room(self, n_frequencies: int, n_rows: int) -> np.ndarray:
        # new memory for each tile would take as long as its reduction
        size = n_frequencies * n_rows
        if len(self.buffer) < size:
            self.buffer = np.empty(size, self.W.dtype)
        return self.buffer[:size].reshape(n_frequencies, n_rows)


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _reduce(product: np.ndarray, weights: np.ndarray, total: np.ndarray, first: int) -> None:
    """Add the sums of a product (F, n) of angles in turns to the frequencies from `first` on of total (2, K, m)."""
    room = np.empty((2, product.shape[1]), product.dtype)
    for j in range(product.shape[0]):
        add_sums(product[j], weights, room, total, first + j)


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _reduce_two(columns: np.ndarray, weights: np.ndarray, W: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of a tile of two columns (2, n) for one column of weights."""
    for j in range(W.shape[0]):
        cosines, sines = weighted_sum_of_two(columns[0], columns[1], W[j, 0], W[j, 1], weights[0])
        total[0, 0, j] += cosines
        total[1, 0, j] += sines


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _reduce_small(columns: np.ndarray, weights: np.ndarray, W: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of a tile given by its columns (d, n), d small; angles stay in the first cache."""
    z = np.empty(columns.shape[1], columns.dtype)
    room = np.empty((2, len(z)), z.dtype)
    for j in range(W.shape[0]):
        z[:] = 0
        for column in range(W.shape[1]):
            add_multiple(columns[column], W[j, column], z)
        add_sums(z, weights, room, total, j)


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def add_sparse_sums(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, weights: np.ndarray, W: np.ndarray, total: np.ndarray
) -> None:
    """Add the sums of sparse rows to total (2, K, m); weights are (K, n), W is (d, m), in turns.

    Computes the angles of a few rows at a time, in the first cache.
    """
    n, m = len(indptr) - 1, W.shape[1]
    angles = np.empty(_SPARSE_FREQUENCIES, data.dtype)
    cosines = np.zeros((_GROUP, _SPARSE_FREQUENCIES), data.dtype)
    sines = np.zeros_like(cosines)
    partial = np.empty((2, weights.shape[0], _SPARSE_FREQUENCIES), data.dtype)
    group_weights = np.empty(_GROUP, data.dtype)
    # Frequencies in spans and rows in groups of eight, so that each sum is loaded and stored once for eight rows.
    for first in range(0, m, _SPARSE_FREQUENCIES):
        width = min(_SPARSE_FREQUENCIES, m - first)
        partial[:] = 0
        for start in range(0, n, _GROUP):
            stop = min(start + _GROUP, n)
            for i in range(start, stop):
                sparse_row_product(data, indices, indptr[i], indptr[i + 1], W, first, angles[:width])
                cos_sin_rows(angles[:width], cosines[i - start, :width], sines[i - start, :width])
            for k in range(weights.shape[0]):
                for i in range(_GROUP):
                    group_weights[i] = weights[k, start + i] if start + i < n else 0
                _add_group(group_weights, cosines, partial[0, k, :width])
                _add_group(group_weights, sines, partial[1, k, :width])
        for part in range(2):
            for k in range(weights.shape[0]):
                for j in range(width):
                    total[part, k, first + j] += partial[part, k, j]


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def sparse_row_product(
    data: np.ndarray, indices: np.ndarray, start: int, stop: int, W: np.ndarray, first: int, out: np.ndarray
) -> None:
    """out = the product of one sparse row (its entries start .. stop) with columns first .. of W (d, m).

    Indexes W itself: a view of each of its rows would cost more than a short row does.
    """
    out[:] = 0
    for entry in range(start, stop):
        factor, row = data[entry], indices[entry]
        for j in range(len(out)):
            # an index that may be negative would prevent vector code
            out[j] += W[row, np.uintp(first) + np.uintp(j)] * factor


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _add_group(w: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out += w . rows for eight rows: one load and one store of `out` for eight products."""
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    for j in range(len(out)):
        low = (w[0] * r0[j] + w[1] * r1[j]) + (w[2] * r2[j] + w[3] * r3[j])
        high = (w[4] * r4[j] + w[5] * r5[j]) + (w[6] * r6[j] + w[7] * r7[j])
        out[j] += low + high
