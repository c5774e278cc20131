"""Squared derivatives of linear models on features in each column, summed over the rows of a block."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection, formed
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.generic import slopes as slopes_of
from dkl.kernels.products import Product
from dkl.kernels.sincos import ELEMENTWISE, TURN, cos_sin
from dkl.kernels.tiles import checked_dtype, checked_rows, checked_weights, spans
from dkl.protocols.arrays import Rows

__all__ = ["squared_slopes"]


def squared_slopes(
    X: Rows,
    s: np.ndarray,
    feature_map: FeatureMap,
    coef: np.ndarray,
    dtype: DTypeLike = "float32",
    *,
    stay: bool = False,
) -> np.ndarray:
    """sum_i s_i (d f_k / d x_c)^2 at each row, for f_k(x) = coef_k . phi(x), in the scaled columns.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d), any real dtype
        Raw rows; the map's scaler is applied a tile at a time.
    s : array of shape (n,)
    feature_map : FeatureMap
        Of waves, ramps or linear forms: see `has_slopes`.
    coef : ndarray of shape (K, n_features)
    dtype : {"float32", "float64"}
        Precision inside a tile. Tiles are added in float64, in their order.
    stay : bool
        As in `dkl.kernels.sums.feature_sums`.

    Returns
    -------
    ndarray of shape (d, K), float64

    Raises
    ------
    ValueError
        If the features have no gradient, or shapes do not fit.
    """
    dtype = checked_dtype(dtype)
    if not has_slopes(feature_map):
        raise ValueError(
            f"{spoken_features(feature_map)} have no gradient that slopes are made of; take waves, linear forms, or "
            "ArcCosine(1) or ArcCosine(2)"
        )
    if feature_map.activation == "identity":
        total = s.sum()
        squares: np.ndarray = np.square(linear_slopes(feature_map, coef))
        return total * (device.array_module(s).asarray(squares) if stay else squares)
    if device.is_on_gpu(X):
        found = device.squared_slopes(X, s, feature_map, coef, dtype)
        return found if stay else device.on_host(found)
    weights = checked_weights(s, checked_rows(X, feature_map).shape[0])[:, 0]
    product = Product(X, feature_map, dtype, factor=TURN if feature_map.is_fourier else 1.0)
    # coefficients times amplitudes, (K, parts, m); for pairs those of cosines first
    parts = np.reshape(coef, (len(coef), feature_map.columns_a_frequency, feature_map.n_frequencies))
    outer = (parts * feature_map.amplitudes).astype(dtype)
    # structured frequencies are computed here, as a gradient is a sum of the frequencies themselves
    W = formed(feature_map.projection).astype(dtype, copy=False)
    total = np.zeros((feature_map.n_columns, len(coef)))
    for rows, tile in product.tiles:
        # the gradient of f_k at a row is sum_j (d f_k / d z_j) w_j; it is summed over frequencies before it is squared
        gradients = np.zeros((len(coef), rows.stop - rows.start, feature_map.n_columns), dtype)
        for chosen in spans(feature_map.n_frequencies, product.step):
            z = product(tile, chosen)
            for k, slopes in enumerate(_slopes(z, feature_map, outer[:, :, chosen])):
                gradients[k] += slopes @ W[chosen]
        total += np.einsum("i,kic->ck", weights[rows].astype(dtype), np.square(gradients))
    return total


def linear_slopes(feature_map: FeatureMap, coef: np.ndarray) -> np.ndarray:
    """The coefficients (d, K) of the scaled columns in a linear model with coefficients `coef` (K, m) of the features.

    The features must be linear forms of the scaled columns themselves (activation "identity"), which is not checked. A
    column may occur in several of them.
    """
    weights, projection = (coef * feature_map.amplitudes).T, feature_map.projection
    if not isinstance(projection, ColumnProjection):
        return formed(projection).T @ weights
    total = np.zeros((feature_map.n_columns, len(coef)))
    # adds the coefficients of columns that were drawn several times
    np.add.at(total, projection.columns, weights)
    return total


def has_slopes(feature_map: FeatureMap) -> bool:
    """Whether each feature is a differentiable function of one linear form, whose derivative is known."""
    return feature_map.function is not None and feature_map.function.slopes(np, np.zeros((0, 0))) is not None


def spoken_features(feature_map: FeatureMap) -> str:
    """The name of features in messages: their activation, and its order if it has one."""
    order = f" of order {feature_map.order}" if feature_map.activation == "arc-cosine" else ""
    return f"{feature_map.activation!r} features{order}"


def _slopes(z: np.ndarray, feature_map: FeatureMap, outer: np.ndarray) -> Iterable[np.ndarray]:
    """The derivative of f_k in the linear form of each frequency, (n, F), for one output k after the other."""
    if not feature_map.is_fourier:
        return (slopes_of(np, z, feature_map, coefficients) for coefficients in outer)
    # cosines with phases are pairs whose sines have the coefficient 0
    out = np.empty((len(outer), *z.shape), z.dtype)
    pairs = outer if outer.shape[1] == 2 else np.concatenate([outer, np.zeros_like(outer)], axis=1)
    _wave_slopes(z, pairs, out)
    return out


@njit(nogil=True, fastmath=ELEMENTWISE)
def _wave_slopes(z: np.ndarray, outer: np.ndarray, out: np.ndarray) -> None:
    """The derivative of outer_0 cos + outer_1 sin at angles z (n, F) in turns, for each of K outputs."""
    for i in range(z.shape[0]):
        for k in range(len(outer)):
            _write_slopes(z[i], outer[k, 0], outer[k, 1], out[k, i])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write_slopes(z: np.ndarray, of_cosine: np.ndarray, of_sine: np.ndarray, out: np.ndarray) -> None:
    """out = of_sine cos z - of_cosine sin z, z in turns."""
    for j in range(len(z)):
        c, s = cos_sin(z[j])
        out[j] = of_sine[j] * c - of_cosine[j] * s
