"""Mapping rows: the features themselves, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import CombinedProjection, FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.projections import SparseProjection
from dkl.kernels import device
from dkl.kernels.harmonic_tiles import HARMONIC_FLOPS, harmonic_maps
from dkl.kernels.landmark_tiles import KERNEL_FLOPS, NYSTROM_ROWS, NystromProduct, SimilarityProduct, wave_map
from dkl.kernels.products import Product
from dkl.kernels.sincos import write_waves
from dkl.kernels.step_tiles import STEP_FLOPS, step_maps
from dkl.kernels.threads import Crew, one_blas_thread
from dkl.kernels.tiles import checked_dtype, checked_rows, refuse_overflow, row_tile, spans
from dkl.protocols.arrays import Array, Rows
from dkl.protocols.records import SINCOS_FLOPS

__all__ = ["map_rows", "row_tile"]

# rows that a thread maps before it takes the next ones
_SHARED_ROWS = 2048
# Bytes of a tile of mapped rows whose products are formed at once, and bounds on its number of rows. Only rows with
# curvature enter a Hessian, and products are faster with many rows.
_TILE_BYTES = 1 << 24
_LEAST_ROWS, _MOST_ROWS = 1024, 8192
# Bytes of a tile of mapped rows that must stay in the cache of a core, and the unit of its number of rows.
_CACHED_BYTES, _LEAST_CACHED = 1 << 21, 256


def map_rows(X: Rows, feature_map: FeatureMap, dtype: DTypeLike = "float32") -> np.ndarray:
    """phi(x) of each row, with amplitudes.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d), any real dtype
        Raw rows; the map's scaler is applied a tile at a time.
    feature_map : FeatureMap
    dtype : {"float32", "float64"}
        Precision of the arithmetic and dtype of the result.

    Returns
    -------
    ndarray (CuPy array for rows on a GPU) of shape (n, n_features), C order
        All cosines, then all sines of cosine-sine pairs.

    Raises
    ------
    ValueError, TypeError
        As in `dkl.kernels.sums.feature_sums`.
    """
    mapped = row_mapper(X, feature_map, dtype)
    return mapped(slice(0, np.shape(X)[0]))


def map_rows_on_all_cores(X: Rows, feature_map: FeatureMap, dtype: DTypeLike = "float32") -> np.ndarray:
    """`map_rows` on all idle cores of this process: each core takes whole tiles.

    The bits of a row are independent of the other rows (`row_mapper`), and of how the work is shared.
    """
    mapped, n_rows = row_mapper(X, feature_map, dtype, alike=True), np.shape(X)[0]
    if mapped.step is None:
        with one_blas_thread():
            return mapped(slice(0, n_rows))
    # A span is a whole number of tiles: BLAS rounds a product by its shape, so that tiles must be cut as by one thread.
    out = np.empty((n_rows, feature_map.n_features), checked_dtype(dtype))
    parts = spans(n_rows, -(-_SHARED_ROWS // mapped.step) * mapped.step)
    Crew().map(lambda rows: mapped(rows, out[rows]), parts)
    return out


def map_spans(
    X: Rows, feature_map: FeatureMap, dtype: DTypeLike, step: int, buffer: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Spans of at most `step` rows and their `map_rows`; everything that depends on the map alone is computed once.

    `buffer`, an array of `step` rows and at least as many columns as there are features, is overwritten by each span:
    new memory for each would take a fifth of the time of a map.
    """
    mapped = row_mapper(X, feature_map, dtype)
    yield from ((rows, mapped(rows, buffer)) for rows in spans(X.shape[0], step))


def design_tiles(X: Rows, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, Any]]:
    """Row tiles of the design matrix, mapped rows with a last column of ones, on the device of the rows.

    On the host all tiles use the same memory; on a GPU a tile is as large as the memory allows.
    """
    if device.is_on_gpu(X):
        xp = device.array_module(X)
        for rows in spans(X.shape[0], device.tile_rows(feature_map.n_features + 1, np.dtype(dtype).itemsize)):
            phi = map_rows(X[rows], feature_map, dtype)
            yield rows, xp.concat([phi, xp.ones((phi.shape[0], 1), dtype=phi.dtype)], axis=1)
        return
    step = design_rows(feature_map.n_features, dtype)
    buffer = np.ones((min(step, X.shape[0]), feature_map.n_features + 1), dtype)
    for rows, _ in map_spans(X, feature_map, dtype, step, buffer):
        yield rows, buffer[: rows.stop - rows.start]


def mapped_tiles(X: Rows, feature_map: FeatureMap, dtype: str, width: int = 0) -> Iterator[tuple[slice, Any]]:
    """Row tiles of mapped rows, of a size for fast matrix products, on the device of the rows.

    On the host all tiles use the same memory; on a GPU a tile is as large as the memory allows if `width` float64
    numbers for each row are in memory, too.
    """
    if device.is_on_gpu(X):
        itemsize = np.dtype(dtype).itemsize
        for rows in spans(X.shape[0], device.tile_rows(max(feature_map.n_features, 8 * width // itemsize), itemsize)):
            yield rows, map_rows(X[rows], feature_map, dtype)
        return
    # new memory for each tile would take a fifth of the time of the map
    step = newton_tile(feature_map.n_features, dtype)
    buffer = np.empty((min(step, X.shape[0]), feature_map.n_features), dtype)
    yield from map_spans(X, feature_map, dtype, step, buffer)


def cached_tile(n_features: int, dtype: str) -> int:
    """Number of rows whose mapped form fits into the cache; depends only on dtype and the number of features."""
    rows = _CACHED_BYTES // (n_features * np.dtype(dtype).itemsize)
    return int(np.clip(rows // _LEAST_CACHED * _LEAST_CACHED, _LEAST_CACHED, _MOST_ROWS))


def design_rows(n_features: int, dtype: str) -> int:
    """Number of rows of a tile of the design matrix: `cached_tile`, but enough rows to outweigh the cost of calls."""
    return max(_LEAST_ROWS, cached_tile(n_features, dtype))


def newton_tile(n_features: int, dtype: str) -> int:
    """Number of rows of a tile for Hessians; depends only on dtype and the number of features."""
    rows = _TILE_BYTES // (n_features * np.dtype(dtype).itemsize)
    return int(np.clip(rows // _LEAST_ROWS * _LEAST_ROWS, _LEAST_ROWS, _MOST_ROWS))


@dataclass(frozen=True, eq=False)
class RowMapper:
    """``(span of rows, buffer=None) -> map_rows`` of the span, in `buffer` if it is given.

    Parameters
    ----------
    mapped : callable
    step : int or None
        Rows of a tile: spans that begin at multiples of it are tiled like all rows at once. None if rows should not be
        cut: on a GPU, and on the sphere, where error messages count rows from the first.
    """

    mapped: Callable[[slice, np.ndarray | None], Any]
    step: int | None = None

    def __call__(self, rows: slice, buffer: np.ndarray | None = None) -> Any:
        return self.mapped(rows, buffer)


def row_mapper(X: Rows, feature_map: FeatureMap, dtype: DTypeLike = "float32", *, alike: bool = False) -> RowMapper:
    """A mapper of spans of the rows, which threads may share; what depends on the map alone is computed once.

    With `alike` the bits of a row on the host are independent of the other rows, which takes longer on some processors.
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        # a GPU takes all rows of a span at once, in tiles of its own size
        return RowMapper(lambda rows, buffer: _in_buffer(device.map_rows(X[rows], feature_map, dtype), buffer))
    if feature_map.activation == "harmonics":
        X = checked_rows(X, feature_map)
        return RowMapper(lambda rows, buffer: _in_buffer(harmonic_maps(X[rows], feature_map, dtype), buffer))
    if feature_map.activation == "landmarks":
        similarities = SimilarityProduct(checked_rows(X, feature_map), feature_map, dtype, alike=alike)
        return RowMapper(lambda rows, buffer: _in_buffer(similarities(rows), buffer), similarities.product.tiles.step)
    if feature_map.activation == "nystrom":
        X, nystrom = checked_rows(X, feature_map), NystromProduct(feature_map, dtype, alike=alike)
        return RowMapper(lambda rows, buffer: nystrom(X[rows], buffer), NYSTROM_ROWS if alike else None)
    if feature_map.activation == "steps":
        X = checked_rows(X, feature_map)
        return RowMapper(lambda rows, buffer: step_maps(X[rows], feature_map, dtype, buffer), 1)
    if isinstance(feature_map.projection, CombinedProjection):
        parts = [
            (row_mapper(checked_rows(X, feature_map), part, dtype, alike=alike), columns)
            for part, columns in feature_map.projection.places()
        ]
        return _combined_mapper(parts, feature_map, dtype)
    product = Product(X, feature_map, dtype, alike=alike)
    function, m, amplitudes = feature_map.function, feature_map.n_frequencies, feature_map.amplitudes.astype(dtype)
    if function is None:
        raise TypeError(f"features {feature_map.activation!r} are not a function of one linear form")

    def mapped(rows: slice, buffer: np.ndarray | None) -> np.ndarray:
        n_rows, n_features = rows.stop - rows.start, feature_map.n_features
        out = np.empty((n_rows, n_features), dtype) if buffer is None else buffer[:n_rows]
        for part, tile in product.tiles.within(rows):
            if dtype == np.float32:
                refuse_overflow(tile, rows.start + part.start)
            for chosen in spans(m, product.step):
                # z = W x + b of scaled rows, (rows, chosen frequencies), in radians for waves
                z = product(tile, chosen)
                if function.is_wave:
                    # one loop over the angles computes cosine and sine, applies amplitudes, and writes the result
                    write_waves(z, amplitudes, chosen.start, out[part], len(function.names) == 2)
                    continue
                for value, phi in enumerate(function.values(np, z)):
                    columns = slice(value * m + chosen.start, value * m + chosen.stop)
                    np.multiply(phi, amplitudes[chosen], out=out[part, columns])
        return out[:, :n_features]

    return RowMapper(mapped, product.tiles.step)


def _combined_mapper(parts: Sequence[tuple[RowMapper, Any]], feature_map: FeatureMap, dtype: np.dtype) -> RowMapper:
    """A mapper that writes the columns of several maps side by side."""
    steps = [part.step for part, _ in parts]
    amplitudes = feature_map.amplitudes.astype(dtype)

    def mapped(rows: slice, buffer: np.ndarray | None) -> np.ndarray:
        n_rows, n_features = rows.stop - rows.start, feature_map.n_features
        out = np.empty((n_rows, n_features), dtype) if buffer is None else buffer[:n_rows]
        for part, columns in parts:
            np.multiply(part(rows), amplitudes[columns], out=out[:, columns])
        return out[:, :n_features]

    return RowMapper(mapped, None if None in steps else math.lcm(*(step or 1 for step in steps)))


def _in_buffer(mapped: Array, buffer: np.ndarray | None) -> Array:
    """Mapped rows, copied to `buffer` if it is given."""
    if buffer is None:
        return mapped
    out = buffer[: mapped.shape[0], : mapped.shape[1]]
    out[...] = device.on_host(mapped)
    return out


def mapping_flops(columns: int, feature_map: FeatureMap) -> float:
    """Operations of mapping one row with this number of columns."""
    if isinstance(feature_map.projection, CombinedProjection):
        return sum(mapping_flops(columns, part) for part in feature_map.projection.maps)
    if feature_map.activation == "harmonics":
        # the cost of the recurrences of harmonics hardly depends on the number of columns
        return HARMONIC_FLOPS * feature_map.n_features
    if isinstance(feature_map.projection, NystromProjection):
        # similarities and their product with the whitening, both in double precision
        landmarks = len(feature_map.projection.landmarks)
        metric = feature_map.projection.metric
        moving = 0.0 if metric is None else 4.0 * metric.size
        return moving + landmarks * (2.0 * columns + KERNEL_FLOPS) + 4.0 * landmarks * feature_map.n_features
    if feature_map.activation == "steps":
        return STEP_FLOPS * feature_map.n_features
    if feature_map.activation == "landmarks":
        waves = wave_map(feature_map)
        # shared frequencies are mixed by a product with a row of weights for each landmark
        mixing = 2.0 * waves.n_features * feature_map.n_features if waves.activation == "cos-sin" else 0.0
        return mapping_flops(columns, waves) + mixing
    projection = feature_map.projection
    # two operations for each entry of W, zeros of a dense one included, and the cost of a cosine for each feature
    entries = len(projection.data) if isinstance(projection, SparseProjection) else columns * projection.n_frequencies
    return 2.0 * entries + SINCOS_FLOPS * feature_map.n_features


def mapping_scratch(feature_map: FeatureMap) -> int:
    """Bytes that mapping rows takes at most beside the rows and their features: a tile that stays in the cache.

    Similarities to landmarks, their distances and powers are computed in double precision for more rows at once, and
    multiplied by a copy of the whitening.
    """
    if isinstance(feature_map.projection, CombinedProjection):
        return max(mapping_scratch(part) for part in feature_map.projection.maps)
    if not isinstance(feature_map.projection, NystromProjection):
        return _CACHED_BYTES
    landmarks = len(feature_map.projection.landmarks)
    return _CACHED_BYTES + 8 * landmarks * (3 * NYSTROM_ROWS + feature_map.n_features)
