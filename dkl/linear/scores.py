"""Decision values of a linear model on mapped rows, tile by tile, so that the n x D features never exist at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import array_module, is_on_gpu, on_host
from dkl.kernels.maps import mapped_tiles, mapping_flops, row_mapper
from dkl.kernels.normal_equations import is_plain_sparse, model_scores, sparse_rows
from dkl.kernels.products import alike_dtype
from dkl.kernels.threads import Crew, one_blas_thread
from dkl.kernels.tiles import spans
from dkl.linear.minibatches import minibatch_rows
from dkl.protocols.records import Cost
from dkl.uncertainty.posterior import CoefficientPosterior

# The end of an error about coefficients that are not finite.
TOO_LARGE = (
    "rows or targets are so large, or so far from each other, that the fit overflows. Scale the columns "
    "(scaling='standard', or 'quantile' for outliers), and divide targets by a large number"
)

# BLAS uses other kernels for few rows, one column and ragged edges, whose last bits differ. Products of a single shape
# make the scores of a row independent of the rows around it (in float32 on AVX2 only up to rounding, unless `alike` is
# set: `dkl.kernels.products`).
_TILE = 256
_EDGE = 16
# Coefficients above it, or below its inverse, are scaled by a power of two, since their sums in float32 might overflow.
_UNUSUAL = 1e30
# Bytes of mapped rows that are still in the processor's cache when the product reads them.
_CACHED_BYTES = 1 << 20


def cached_rows(feature_map: FeatureMap, dtype: str) -> int:
    """Rows, in whole tiles, whose features stay in the cache, so that scoring them costs little more than the map."""
    fitting = _CACHED_BYTES // (feature_map.n_features * np.dtype(dtype).itemsize)
    return max(_TILE, min(minibatch_rows(feature_map, dtype), fitting // _TILE * _TILE))


def scoring_cost(
    rows: int, columns: int, *, feature_map: FeatureMap, n_models: int, share: float, dtype: str = "float32"
) -> Cost:
    """The cost of `decision_values` for a share of the rows."""
    tile = min(minibatch_rows(feature_map, dtype), rows)
    a_row = mapping_flops(columns, feature_map) + 2.0 * n_models * feature_map.n_features
    return Cost(share * rows * a_row, tile * feature_map.n_features * np.dtype(dtype).itemsize)


def decision_values(
    X: np.ndarray | sparse.csr_array,
    feature_map: FeatureMap,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    dtype: str = "float32",
    span: int | None = None,
    all_cores: bool = False,
    posterior: CoefficientPosterior | None = None,
    alike: bool = False,
) -> np.ndarray:
    """``phi(x) . w_k + b_k`` of each row and model; with a posterior also its `lengths`.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    feature_map : FeatureMap
        m features.
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    dtype : {"float32", "float64"}
        Of the features and products.
    span : int or None
        Rows mapped at once, in whole tiles, such as `cached_rows`; it changes no bit. None is a minibatch.
    all_cores : bool
        Whether all cores of this process may score; it changes no bit. False within tasks, which share the cores.
    posterior : CoefficientPosterior or None
    alike : bool
        Whether the scores of a row have the same bits on every processor, and whichever rows are scored with it.

    Returns
    -------
    ndarray of shape (n, K), float64
        With a posterior (n, K + 1), whose last column has the lengths.
    """
    if is_on_gpu(X) and posterior is None:
        return on_host(values_where_rows_are(X, feature_map, coef, intercept, dtype=dtype))
    out = np.empty((X.shape[0], len(coef) + (posterior is not None)))
    precision = alike_dtype(np.dtype(dtype)) if alike else np.dtype(dtype)
    weights = np.zeros((coef.shape[1], len(coef) + -len(coef) % _EDGE), precision)
    unit = _units(coef)
    weights[:, : len(coef)] = (coef / unit[:, None]).T
    step = minibatch_rows(feature_map, dtype) if span is None else span
    mapped = row_mapper(X, feature_map, dtype, alike=alike)
    if posterior is not None:
        posterior.prepared(precision)

    # sparse rows that are their own features are multiplied in sparse form; their zeros are never stored
    plain = posterior is None and is_plain_sparse(X, feature_map)

    def score(rows: slice) -> None:
        """Map a span of rows and write its decision values, tile by tile."""
        if plain:
            out[rows, : len(coef)] = (sparse_rows(X[rows], feature_map, precision.name) @ weights)[:, : len(coef)]
            return
        phi, start = on_host(mapped(rows)), rows.start
        for first in range(0, len(phi), _TILE):
            tile = phi[first : first + _TILE]
            rows_of_tile = slice(start + first, start + first + len(tile))
            tile = _whole_tile(tile).astype(precision, copy=False)
            out[rows_of_tile, : len(coef)] = (tile @ weights)[: len(phi) - first, : len(coef)]
            if posterior is not None:
                out[rows_of_tile, -1] = posterior.lengths(tile)[: len(phi) - first]

    if all_cores:
        Crew().map(score, spans(X.shape[0], step))
    else:
        with one_blas_thread():
            for rows in spans(X.shape[0], step):
                score(rows)
    out[:, : len(coef)] *= unit
    out[:, : len(coef)] += intercept
    return out


def values_where_rows_are(
    X: Any, feature_map: FeatureMap, coef: np.ndarray, intercept: np.ndarray, *, dtype: str = "float32"
) -> Any:
    """`decision_values`, computed and left on the GPU if the rows are there."""
    if not is_on_gpu(X):
        return decision_values(X, feature_map, coef, intercept, dtype=dtype)
    xp, models = array_module(X), np.column_stack([coef, intercept])
    # tiles of scores stay on the GPU and are joined at the end
    tiles = [model_scores(phi, models) for _, phi in mapped_tiles(X, feature_map, dtype)]
    return xp.concat([xp.zeros((0, len(coef))), *tiles])


def _whole_tile(phi: np.ndarray) -> np.ndarray:
    """A tile of mapped rows; the last one is padded by rows of zeros, so that its scores have a whole tile's bits."""
    missing = _TILE - len(phi)
    return np.concatenate([phi, np.zeros((missing, phi.shape[1]), phi.dtype)]) if missing else phi


def _units(coef: np.ndarray) -> np.ndarray:
    """A power of two for each model, (K,), that scales coefficients into the range of float32; 1 for usual ones."""
    largest = np.abs(coef).max(axis=1, initial=0.0)
    usual = (largest == 0.0) | ((largest > 1 / _UNUSUAL) & (largest < _UNUSUAL))
    return np.exp2(np.floor(np.log2(np.where(usual, 1.0, largest))))
