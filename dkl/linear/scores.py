"""Decision values of a linear model on mapped rows, tile by tile: the n x D features are never held at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import array_module, is_on_gpu, on_host
from dkl.kernels.maps import mapping_flops, row_mapper
from dkl.kernels.normal_equations import is_plain_sparse, mapped_tiles, model_scores, sparse_rows
from dkl.kernels.products import alike_dtype
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.linear.minibatches import minibatch_rows
from dkl.protocols.records import Cost
from dkl.uncertainty.posterior import CoefficientPosterior

# What is behind coefficients that are no numbers, for the end of an error.
TOO_LARGE = (
    "rows or targets are so large, or so far from each other, that the fit overflows. Scale the columns "
    "(scaling='standard', or 'quantile' for outliers), and divide targets by a large number"
)

# BLAS takes other kernels for few rows, one column and ragged edges, and their last bits differ. Products of one shape
# only make the scores of a row the same whichever rows come with it (in float32 on AVX2 within rounding, unless they
# shall be `alike`: `dkl.kernels.products`).
_TILE = 256
_EDGE = 16
# Coefficients beyond it, or below its inverse, are scaled by a power of two: their sums in float32 might overflow.
_UNUSUAL = 1e30
# The bytes of mapped rows that the product still finds in the cache where their map has left them.
_CACHED_BYTES = 1 << 20


def cached_rows(feature_map: FeatureMap, dtype: str) -> int:
    """Rows, in whole tiles, whose features stay in the cache: scored in such spans they cost little more than a map."""
    room = _CACHED_BYTES // (feature_map.n_features * np.dtype(dtype).itemsize)
    return max(_TILE, min(minibatch_rows(feature_map, dtype), room // _TILE * _TILE))


def scoring_cost(
    rows: int, columns: int, *, feature_map: FeatureMap, n_models: int, share: float, dtype: str = "float32"
) -> Cost:
    """What `decision_values` of a share of the rows costs."""
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
    together: bool = False,
    posterior: CoefficientPosterior | None = None,
    alike: bool = False,
) -> np.ndarray:
    """``phi(x) . w_k + b_k`` of each row and model; with a posterior its `lengths` too.

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
        Rows that are mapped at once, whole tiles such as `cached_rows`, which change no bit; None is a minibatch.
    together : bool
        Whether idle cores of this process help, which changes no bit either: not in tasks, which share the cores.
    posterior : CoefficientPosterior or None
    alike : bool
        Whether the values of a row shall have the same bits whichever rows come with it, on every processor.

    Returns
    -------
    ndarray of shape (n, K), float64; (n, K + 1) with a posterior, whose lengths come last
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

    # rows whose features are their own stored values are multiplied as they are: d zeros a row are never written out
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

    if together:
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
    """`decision_values`, which stay on the GPU where the rows are there."""
    if not is_on_gpu(X):
        return decision_values(X, feature_map, coef, intercept, dtype=dtype)
    xp, models = array_module(X), np.column_stack([coef, intercept])
    # features stay there, and the values of all tiles come together
    tiles = [model_scores(phi, models) for _, phi in mapped_tiles(X, feature_map, dtype)]
    return xp.concat([xp.zeros((0, len(coef))), *tiles])


def _whole_tile(phi: np.ndarray) -> np.ndarray:
    """A tile of mapped rows; rows of zeros give the last one the shape of the others, and with it their bits."""
    missing = _TILE - len(phi)
    return np.concatenate([phi, np.zeros((missing, phi.shape[1]), phi.dtype)]) if missing else phi


def _units(coef: np.ndarray) -> np.ndarray:
    """Powers of two, (K,), 1 but for models whose coefficients float32 might not hold: targets may be of any size."""
    largest = np.abs(coef).max(axis=1, initial=0.0)
    usual = (largest == 0.0) | ((largest > 1 / _UNUSUAL) & (largest < _UNUSUAL))
    return np.exp2(np.floor(np.log2(np.where(usual, 1.0, largest))))
