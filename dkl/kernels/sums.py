"""Block sums: weighted sums of features and of their squares over the rows of a block.

Fourier features are summed in tiles of angles that fit the cache, each reduced by one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import CombinedProjection, FeatureMap
from dkl.features.projections import ColumnProjection, SparseProjection, StructuredProjection, formed
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.few_entries import FewEntries, has_few_entries
from dkl.kernels.hadamard import HadamardPlan, structured_sums
from dkl.kernels.harmonic_tiles import harmonic_sums
from dkl.kernels.landmark_tiles import NYSTROM_ROWS
from dkl.kernels.maps import row_mapper
from dkl.kernels.products import Product, sparse_row_product
from dkl.kernels.refusals import refuse_later
from dkl.kernels.sincos import ELEMENTWISE, TURN, add_multiple, add_sums, cos_sin_rows, weighted_sum_of_two
from dkl.kernels.step_tiles import TILE_ROWS
from dkl.kernels.threads import product
from dkl.kernels.tiles import RowTiles, cache_tile, checked_dtype, checked_rows, checked_weights, even_step, spans
from dkl.protocols.arrays import Rows, as_columns
from dkl.protocols.block import Block
from dkl.solvers.losses import namespace_of

__all__ = ["encode_targets", "feature_squares", "feature_sums"]

# Frequencies of a tile of a dense product; most columns for which the kernel computes the product itself; rows at once
# in the sparse kernel, and frequencies of its tile.
_FREQUENCIES = 768
SMALL_COLUMNS = 4
_GROUP = 8
_SPARSE_FREQUENCIES = 512

AddTile = Callable[[Any, np.ndarray, np.ndarray], None]


def feature_sums(
    X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: DTypeLike = "float32", *, stay: bool = False
) -> np.ndarray:
    """sum_i S[i, k] phi_j(x_i), the sum that all methods are based on.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d), any real dtype
        Raw rows; the map's scaler is applied a tile at a time.
    S : array of shape (n, K) or (n,)
        Weight columns; on the host, or on the GPU of the rows.
    feature_map : FeatureMap
        m frequencies, with amplitudes.
    dtype : {"float32", "float64"}
        Precision inside a tile. Tiles are added in float64, in their order.
    stay : bool
        Leave sums of rows on a GPU there, so that the host can wait for several sums at once.

    Returns
    -------
    ndarray of shape (parts, m, K), float64
        Two parts (cosines, sines) for "cos-sin" maps, else one.

    Raises
    ------
    ValueError
        If X has other columns than the map, or S another number of rows; for spherical harmonics if a row is off the
        sphere.
    TypeError
        If X does not hold real numbers.

    Notes
    -----
    The error against float64 is below 1e-5 sqrt(n) max|S| for angles of ordinary size. An angle above 2^23 turns (2^52
    in float64) has lost its fraction: its cosine is then that of a whole turn, and the sums stay finite.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.sums import feature_sums
    >>> from dkl.features.families import Gaussian
    >>> X = np.zeros((3, 2))
    >>> feature_sums(X, np.ones(3), Gaussian(1.0).draw(4, n_columns=2, seed=0))[:, 0, 0]
    array([3., 0.])
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        return device.feature_sums(X, S, feature_map, dtype, stay=stay)  # type: ignore[no-any-return]
    S = checked_weights(S, checked_rows(X, feature_map).shape[0])
    if not feature_map.is_fourier:
        return _power_sums(X, S, feature_map, dtype, power=1)
    # a cosine with a phase is the real part of a wave; the imaginary part is computed and dropped
    sums = pair_sums(X, S, feature_map, dtype)[: feature_map.columns_a_frequency]
    return sums * feature_map.amplitudes[:, None]


def feature_squares(
    X: Rows, s: np.ndarray, feature_map: FeatureMap, dtype: DTypeLike = "float32", *, stay: bool = False
) -> np.ndarray:
    """sum_i s_i phi_j(x_i)^2, the diagonal, which an unbiased alignment subtracts from the potential.

    Parameters
    ----------
    X, feature_map, dtype, stay
        As in `feature_sums`.
    s : array of shape (n,)

    Returns
    -------
    ndarray of shape (parts, m), float64

    Notes
    -----
    cos^2 z = (1 + cos 2z) / 2: the squares of Fourier features are sums at twice the frequency.
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        squares = device.feature_squares(X, s, feature_map, dtype)
        return squares if stay else device.on_host(squares)
    S = checked_weights(s, checked_rows(X, feature_map).shape[0])
    if not feature_map.is_fourier:
        return _power_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    # cos^2 z = (1 + cos 2z) / 2 and sin^2 z = (1 - cos 2z) / 2, so that one sum at twice the angle gives both
    squares = squares_of_pair(S.sum(), pair_sums(X, S, feature_map, dtype, multiple=2.0)[0, :, 0])
    return squares[: feature_map.columns_a_frequency] * feature_map.amplitudes**2


def squares_of_pair(total: float, doubled: np.ndarray) -> np.ndarray:
    """Sums of cos^2 and sin^2, (2, m), from the sum of the weights and the cosine sums at twice the angle."""
    return np.stack([total + doubled, total - doubled]) / 2.0


def _power_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, *, power: int) -> np.ndarray:
    """sum_i S[i, k] phi_j(x_i)^power of features with amplitudes that are no waves: (parts, m, K)."""
    if feature_map.activation in ("landmarks", "steps", "nystrom"):
        return _mapped_sums(X, S, feature_map, dtype, power)
    if feature_map.activation == "harmonics":
        sums = harmonic_sums(X, S, feature_map, dtype, power=power)
    elif isinstance(feature_map.projection, CombinedProjection):
        of_part, K = feature_sums if power == 1 else feature_squares, S.shape[1]
        parts = [of_part(X, S, part, dtype).reshape(-1, K) for part in feature_map.projection.maps]
        sums = np.concatenate(parts)[None]
    elif isinstance(feature_map.projection, ColumnProjection):
        # for features that are columns, each column is summed once, even if it was drawn several times
        sums = _column_sums(X, S, feature_map, dtype, power)[feature_map.projection.columns][None]
    else:
        sums = _activated_sums(X, S, feature_map, dtype, power)
    return sums * feature_map.amplitudes[:, None] ** power


def _mapped_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, power: int) -> np.ndarray:
    """Sums of features, amplitudes included, that are mapped a tile at a time, and multiplied by the weights."""
    m, mapped = feature_map.n_frequencies, row_mapper(X, feature_map, dtype)
    step = mapped.step or NYSTROM_ROWS
    if feature_map.activation == "steps":
        step = cache_tile(TILE_ROWS, feature_map.n_columns, np.dtype(np.float64))
    total, buffer = np.zeros((1, m, S.shape[1])), np.empty((min(step, X.shape[0]), m), dtype)
    for rows in spans(X.shape[0], step):
        phi = mapped(rows, buffer)
        # tiles are added in float64; products within a tile are in the given dtype
        total[0] += product((phi if power == 1 else np.square(phi)).T, S[rows].astype(dtype))
    return total


def _activated_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, power: int) -> np.ndarray:
    """Sums of features without amplitudes: a tile of linear forms, their activation, a product with weights."""
    if feature_map.function is None:
        raise TypeError(f"features {feature_map.activation!r} are not a function of one linear form")
    product = Product(X, feature_map, dtype)
    total = np.zeros((feature_map.columns_a_frequency, feature_map.n_frequencies, S.shape[1]))
    for rows, tile in product.tiles:
        weights = S[rows].astype(dtype)
        for chosen in spans(feature_map.n_frequencies, product.step):
            for part, phi in enumerate(feature_map.function.values(np, product(tile, chosen))):
                total[part, chosen] += np.dot(phi.T if power == 1 else np.square(phi).T, weights)
    return total


def _column_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, power: int) -> np.ndarray:
    """Sums of the (scaled) columns or of their squares, of shape (d, K); sparse rows stay sparse."""
    tiles = RowTiles(X, feature_map, dtype)
    first = np.zeros((feature_map.n_columns, S.shape[1]))
    second = np.zeros_like(first)
    for rows, tile in tiles:
        weights = S[rows].astype(dtype)
        first += product(tile.T, weights)
        if power == 2:
            second += product((tile * tile).T, weights)
    if tiles.constant is None:
        return first if power == 1 else second
    # sparse rows were not centred: sum s (x - c) = sum s x - c sum s, and the squares likewise
    center, weight = tiles.constant[:, None], S.sum(axis=0)
    if power == 1:
        return first - center * weight
    return second - 2.0 * center * first + center**2 * weight


def pair_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, *, multiple: float = 1.0) -> np.ndarray:
    """sum_i S[i, k] exp(i multiple (w_j.x_i + b_j)): its real and its imaginary part, float64 of shape (2, m, K).

    Phases, and the centre of sparse rows, are applied to the sums at the end instead of to each row's angle.
    """
    projection = feature_map.projection
    structured = isinstance(projection, StructuredProjection)
    # tiles of scaled rows times multiple / (2 pi), so that W x is in turns
    tiles = RowTiles(X, feature_map, dtype, factor=multiple * TURN, dense=structured)
    total = np.zeros((2, S.shape[1], feature_map.n_frequencies))
    add_tile: AddTile  # adds the sums of a tile of rows with weights (K, n) to total (2, K, m)
    if isinstance(projection, StructuredProjection):
        plan = HadamardPlan(projection, dtype).arrays

        def add_tile(tile: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
            structured_sums(tile, weights, plan, total)

    elif isinstance(projection, SparseProjection) and has_few_entries(projection).any():
        add_tile = _FewEntriesAndOthers(projection, dtype, sparse=tiles.keeps_sparse)
    else:
        add_tile = _matrix_kernel(projection.dense().astype(dtype, copy=False), sparse=tiles.keeps_sparse)
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
            product = self._buffer(len(W), len(tile))
            np.dot(W, tile.T, out=product)
            # sums are computed while the product is in the cache: no matrix of n x m angles ever exists
            _reduce(product[: chosen.stop - chosen.start], weights, total, chosen.start)

    def _buffer(self, n_frequencies: int, n_rows: int) -> np.ndarray:
        # new memory for each tile would take as long as its reduction
        size = n_frequencies * n_rows
        if len(self.buffer) < size:
            self.buffer = np.empty(size, self.W.dtype)
        return self.buffer[:size].reshape(n_frequencies, n_rows)


@njit(nogil=True, fastmath=ELEMENTWISE)
def _reduce(product: np.ndarray, weights: np.ndarray, total: np.ndarray, first: int) -> None:
    """Add the sums of a product (F, n) of angles in turns to the frequencies from `first` on of total (2, K, m)."""
    buffer = np.empty((2, product.shape[1]), product.dtype)
    for j in range(product.shape[0]):
        add_sums(product[j], weights, buffer, total, first + j)


@njit(nogil=True, fastmath=ELEMENTWISE)
def _reduce_two(columns: np.ndarray, weights: np.ndarray, W: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of a tile of two columns (2, n) for one column of weights."""
    for j in range(W.shape[0]):
        cosines, sines = weighted_sum_of_two(columns[0], columns[1], W[j, 0], W[j, 1], weights[0])
        total[0, 0, j] += cosines
        total[1, 0, j] += sines


@njit(nogil=True, fastmath=ELEMENTWISE)
def _reduce_small(columns: np.ndarray, weights: np.ndarray, W: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of a tile given by its columns (d, n), d small; angles stay in the first cache."""
    z = np.empty(columns.shape[1], columns.dtype)
    buffer = np.empty((2, len(z)), z.dtype)
    for j in range(W.shape[0]):
        z[:] = 0
        for column in range(W.shape[1]):
            add_multiple(columns[column], W[j, column], z)
        add_sums(z, weights, buffer, total, j)


@njit(nogil=True, fastmath=ELEMENTWISE)
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


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_group(w: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out += w . rows for eight rows: one load and one store of `out` for eight products."""
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    for j in range(len(out)):
        low = (w[0] * r0[j] + w[1] * r1[j]) + (w[2] * r2[j] + w[3] * r3[j])
        high = (w[4] * r4[j] + w[5] * r5[j]) + (w[6] * r6[j] + w[7] * r7[j])
        out[j] += low + high


def encode_targets(block: Block, n_classes: int | None, class_weight: np.ndarray | None = None) -> np.ndarray:
    """The weight columns of a block: weighted one-hot rows of its classes, or weighted targets and the weights.

    Parameters
    ----------
    block : Block
    n_classes : int or None
        K for class codes 0 .. K-1; None for regression.
    class_weight : ndarray of shape (K,) or None
        Factor on the weights of each class.

    Returns
    -------
    ndarray of shape (n_b, K) or (n_b, t + 1), float64, where the targets are
        Classes: column k holds the weights of the rows of class k. Regression: the weight times each of the t targets,
        then the weight itself.

    Raises
    ------
    ValueError
        If the block has no targets, or a code is not in 0 .. K-1; on a GPU it is raised once the host waits for sums.
    """
    if block.y is None:
        raise ValueError("these rows have no target (y); supervised sums need one")
    xp = namespace_of(block.y)
    if n_classes is None:
        targets = as_columns(xp.asarray(block.y, dtype=np.float64))
        # from sums of y phi and of phi those of (y - mean) phi follow for any mean
        return xp.concat([targets, xp.ones((block.n_rows, 1))], axis=1) * block.weights[:, None]
    codes, K = block.y, n_classes

    def unknown() -> ValueError:
        on_host = np.asarray(device.on_host(codes))
        row = int(np.flatnonzero((on_host < 0) | (on_host >= K))[0])
        return ValueError(
            f"y[{row}] of block {block.index} is the class code {on_host[row]}; codes run from 0 to {K - 1}"
        )

    if xp is not np:
        refuse_later((codes < 0) | (codes >= K), unknown)
        weights = block.weights
        if class_weight is not None:
            weights = weights * xp.take(xp.asarray(class_weight), xp.clip(codes, 0, K - 1))
        return xp.where(codes[:, None] == xp.arange(K), weights[:, None], 0.0)
    if block.n_rows and not (codes.min() >= 0 and codes.max() < K):
        raise unknown()
    weights = block.weights if class_weight is None else block.weights * class_weight[codes]
    encoded = np.zeros((block.n_rows, K))
    # a column for each class, so that one product computes the sums of all classes
    encoded[np.arange(block.n_rows), codes] = weights
    return encoded
