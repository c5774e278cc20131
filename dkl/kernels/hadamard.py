"""Structured projections by Walsh-Hadamard transforms of 64 rows at once: a butterfly is a vector instruction."""

from __future__ import annotations

import numpy as np

from dkl.features.projections import StructuredProjection
from dkl.kernels.compiled import njit
from dkl.kernels.sincos import ELEMENTWISE, add_sums

# Rows transformed at once (contiguous in memory), and the part of a transform that fits the first cache: 64 rows fill
# whole vector registers, and 64 vectors of them fill the first cache.
LANES = 64
_CHUNK = 64


class HadamardPlan:
    """A structured projection in the layout of the kernels: frequencies sorted by the block that they belong to.

    Attributes
    ----------
    signs : ndarray of shape (n_blocks, 3, p)
        In the order in which they are applied.
    order : ndarray of shape (m,), int64
        Indices of the frequencies; those of block b are at ``bounds[b]:bounds[b + 1]``.
    position : ndarray of shape (m,), int64
        Position of each frequency in the output of its block's transform (in the order of `order`).
    scale : ndarray of shape (m,)
        Length of each frequency over p^(3/2) (in the order of `order`).
    """

    def __init__(self, projection: StructuredProjection, dtype: np.dtype) -> None:
        # The chosen frequencies may belong to few of the blocks, in any order: sorted by block, each block is
        # transformed once for all of its frequencies.
        numbers = projection.numbers()
        n_blocks, _, padded = projection.signs.shape
        self.width = projection.width
        # H S1 H S2 H S3 x: the last diagonal of signs is applied to a row first
        self.signs = projection.signs[:, ::-1].astype(dtype)
        self.order = np.argsort(numbers, kind="stable")
        self.position = numbers[self.order] % padded
        self.bounds = np.searchsorted(numbers[self.order], padded * np.arange(n_blocks + 1))
        self.scale = (projection.radii[self.order] / padded**1.5).astype(dtype)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The operands of the kernels, in their order."""
        return self.signs, self.order, self.position, self.bounds, self.scale


@njit(nogil=True, fastmath=ELEMENTWISE)
def _first_stages(rows: np.ndarray, signs: np.ndarray) -> None:
    """Multiply each row by its sign and compute the first two stages, on groups of four neighbouring rows."""
    for i in range(rows.shape[0] // 4):
        s0, s1, s2, s3 = signs[4 * i], signs[4 * i + 1], signs[4 * i + 2], signs[4 * i + 3]
        x = rows[4 * i : 4 * i + 4].reshape(4 * LANES)
        for r in range(LANES):
            a, b, c, d = x[r] * s0, x[r + LANES] * s1, x[r + 2 * LANES] * s2, x[r + 3 * LANES] * s3
            e, f, g, h = a + b, a - b, c + d, c - d
            x[r], x[r + LANES], x[r + 2 * LANES], x[r + 3 * LANES] = e + g, f + h, e - g, f - h


@njit(nogil=True, fastmath=ELEMENTWISE)
def _two_stages(x: np.ndarray, n: int) -> None:
    """Two stages at once on four neighbouring runs of n numbers."""
    w, y, z, v = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n : 4 * n]
    for r in range(n):
        e, f, g, h = w[r] + y[r], w[r] - y[r], z[r] + v[r], z[r] - v[r]
        w[r], y[r], z[r], v[r] = e + g, f + h, e - g, f - h


@njit(nogil=True, fastmath=ELEMENTWISE)
def _one_stage(x: np.ndarray, n: int) -> None:
    """One stage on two neighbouring runs of n numbers: their sums and their differences."""
    w, y = x[:n], x[n : 2 * n]
    for r in range(n):
        a, b = w[r], y[r]
        w[r], y[r] = a + b, a - b


@njit(nogil=True, fastmath=ELEMENTWISE)
def _stages(x: np.ndarray, half: int, end: int) -> None:
    """The stages with strides from `half` up to (not including) `end`, counted in rows of LANES numbers."""
    # two stages at once load and store every number half as often
    while 4 * half <= end:
        n = half * LANES
        for i in range(0, len(x), 4 * n):
            _two_stages(x[i : i + 4 * n], n)
        half *= 4
    if half < end:
        n = half * LANES
        for i in range(0, len(x), 2 * n):
            _one_stage(x[i : i + 2 * n], n)


@njit(nogil=True, fastmath=ELEMENTWISE)
def signed_transform(rows: np.ndarray, signs: np.ndarray) -> None:
    """H diag(signs) in place on a (p, LANES) array, LANES vectors at once; p at least 64."""
    p = rows.shape[0]
    x = rows.reshape(p * LANES)
    # stages with short strides only mix nearby rows: all of them are computed on one part of the rows, which stays in
    # the cache, before the next part
    for i in range(0, p, _CHUNK):
        _first_stages(rows[i : i + _CHUNK], signs[i : i + _CHUNK])
        _stages(x[i * LANES : (i + _CHUNK) * LANES], 4, _CHUNK)
    _stages(x, _CHUNK, p)


@njit(nogil=True)
def _load(tile: np.ndarray, start: int, rows: np.ndarray) -> None:
    """Rows start .. start + LANES of a tile as the columns of `rows`; zeros beyond its rows and columns."""
    n = min(LANES, tile.shape[0] - start)
    # columns are padded with zeros to the length of the transform
    rows[:] = 0
    for i in range(n):
        for c in range(tile.shape[1]):
            rows[c, i] = tile[start + i, c]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _transform(loaded: np.ndarray, signs: np.ndarray, rows: np.ndarray) -> None:
    """The three signed transforms of one block of frequencies, from `loaded` to `rows`."""
    for c in range(rows.shape[0]):
        for i in range(LANES):
            rows[c, i] = loaded[c, i]
    # H S3, then H S2, then H S1: rounded three times; the scale is applied later, once
    for t in range(3):
        signed_transform(rows, signs[t])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _scaled(row: np.ndarray, factor: float, out: np.ndarray) -> None:
    """out = factor row."""
    for i in range(len(out)):
        out[i] = row[i] * factor


@njit(nogil=True, fastmath=ELEMENTWISE)
def structured_sums(tile: np.ndarray, weights: np.ndarray, plan: tuple[np.ndarray, ...], total: np.ndarray) -> None:
    """Add the pair sums of a tile (n, d) of rows in turns with weights (K, n) to total (2, K, m)."""
    signs, order, position, bounds, scale = plan
    loaded = np.empty((signs.shape[2], LANES), tile.dtype)
    rows = np.empty_like(loaded)
    z = np.empty(LANES, tile.dtype)
    buffer = np.empty((2, LANES), tile.dtype)
    loaded_weights = np.empty((weights.shape[0], LANES), tile.dtype)
    for start in range(0, tile.shape[0], LANES):
        _load(tile, start, loaded)
        # rows beyond the end of the tile have the weight 0, so that they add nothing at any angle
        n = min(LANES, tile.shape[0] - start)
        loaded_weights[:] = 0
        for k in range(weights.shape[0]):
            for i in range(n):
                loaded_weights[k, i] = weights[k, start + i]
        for b in range(signs.shape[0]):
            _transform(loaded, signs[b], rows)
            for i in range(bounds[b], bounds[b + 1]):
                _scaled(rows[position[i]], scale[i], z)
                add_sums(z, loaded_weights, buffer, total, order[i])


@njit(nogil=True, fastmath=ELEMENTWISE)
def structured_product(tile: np.ndarray, plan: tuple[np.ndarray, ...], out: np.ndarray) -> None:
    """Write the projections of a tile (n, d) to out (n, m)."""
    signs, order, position, bounds, scale = plan
    loaded = np.empty((signs.shape[2], LANES), tile.dtype)
    rows = np.empty_like(loaded)
    for start in range(0, tile.shape[0], LANES):
        n = min(LANES, tile.shape[0] - start)
        _load(tile, start, loaded)
        for b in range(signs.shape[0]):
            _transform(loaded, signs[b], rows)
            for i in range(bounds[b], bounds[b + 1]):
                row, factor, j = rows[position[i]], scale[i], order[i]
                for r in range(n):
                    out[start + r, j] = row[r] * factor
