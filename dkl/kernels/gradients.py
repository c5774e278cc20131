"""Gradient sums: what the derivative of a potential in each frequency needs of the rows."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels import device
from dkl.kernels.products import Product
from dkl.kernels.sincos import ELEMENTWISE, TURN, cos_sin_rows
from dkl.kernels.tiles import checked_dtype, checked_rows, checked_weights, spans

__all__ = ["gradient_sums"]


def gradient_sums(X: Any, S: Any, feature_map: FeatureMap, dtype: Any = "float32") -> np.ndarray:
    """U = sum_i S[i, k] cos(z_ij) x_i and V = sum_i S[i, k] sin(z_ij) x_i, z the angle w_j.x_i (+ phase).

    With C, Q of `feature_sums`, the gradient of C^2 + Q^2 in w_j is 2 (Q U - C V): what Bullins, Zhang & Zhang 2018
    ("Not-so-random features"), Algorithm 1, climbs.

    Parameters
    ----------
    X, S, feature_map, dtype
        As of `dkl.kernels.sums.feature_sums`; the map must be a Fourier map. x_i is the scaled row.

    Returns
    -------
    ndarray of shape (2, m, K, d), float64
        U and V, amplitudes included.

    Raises
    ------
    ValueError
        If the features are not cosines and sines.
    """
    dtype = checked_dtype(dtype)
    check_fourier(feature_map)
    if device.is_on_gpu(X):
        return device.gradient_sums(X, S, feature_map, dtype)
    S = checked_weights(S, checked_rows(X, feature_map).shape[0])
    product = Product(X, feature_map, dtype, factor=TURN)
    total = np.zeros((2, feature_map.n_frequencies, S.shape[1], feature_map.n_columns))
    plain = np.zeros((2, feature_map.n_frequencies, S.shape[1]))
    for rows, tile in product.tiles:
        for chosen in spans(feature_map.n_frequencies, product.step):
            z = product(tile, chosen)
            waves = np.empty((2, *z.shape), dtype)
            _waves(z, waves)
            _add(waves, S[rows].astype(dtype), tile, (total[:, chosen], plain[:, chosen]))
    if product.tiles.constant is not None:
        total -= plain[..., None] * product.tiles.constant
    return total * (feature_map.amplitudes[:, None, None] / TURN)


def check_fourier(feature_map: FeatureMap) -> None:
    """Raise ValueError unless the features are cosines or sines."""
    if not feature_map.is_fourier:
        raise ValueError(
            f"gradients are defined for 'cos-sin' and 'cos' maps; this map's activation is {feature_map.activation!r}"
        )


def _add(waves: np.ndarray, weights: np.ndarray, tile: Any, totals: tuple[np.ndarray, np.ndarray]) -> None:
    """Add a tile's sums of wave times row to totals[0], and of the waves alone to totals[1]."""
    for part in range(2):
        totals[1][part] += np.dot(waves[part].T, weights)
        for k in range(weights.shape[1]):
            totals[0][part, :, k] += (tile.T @ (waves[part] * weights[:, k, None])).T


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _waves(z: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(z)):
        cos_sin_rows(z[i], out[0, i], out[1, i])
