"""Sums over rows for the derivatives of a potential in its frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.products import Product
from dkl.kernels.sincos import ELEMENTWISE, TURN, cos_sin_rows
from dkl.kernels.tiles import checked_dtype, checked_rows, checked_weights, spans
from dkl.protocols.arrays import Rows

__all__ = ["gradient_sums"]


def gradient_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: DTypeLike = "float32") -> np.ndarray:
    """U = sum_i S[i, k] cos(z_ij) x_i and V = sum_i S[i, k] sin(z_ij) x_i, z the angle w_j.x_i (+ phase).

    With C, Q of `feature_sums`, the gradient of C^2 + Q^2 in w_j is 2 (Q U - C V), which Bullins, Zhang & Zhang 2018
    ("Not-so-random features"), Algorithm 1, ascends.

    Parameters
    ----------
    X, S, feature_map, dtype
        As in `dkl.kernels.sums.feature_sums`; the map must be a Fourier map. x_i is the scaled row.

    Returns
    -------
    ndarray of shape (2, m, K, d), float64
        U and V, with amplitudes.

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
    # sums of the waves alone, in addition to those of wave times row: at the end they centre sparse rows
    plain = np.zeros((2, feature_map.n_frequencies, S.shape[1]))
    for rows, tile in product.tiles:
        for chosen in spans(feature_map.n_frequencies, product.step):
            z = product(tile, chosen)
            # the waves cos z and sin z of the tile, which weight the rows in U and V
            waves = np.empty((2, *z.shape), dtype)
            _waves(z, waves)
            weights = S[rows].astype(dtype)
            for part in range(2):
                plain[part, chosen] += np.dot(waves[part].T, weights)
                for k in range(weights.shape[1]):
                    total[part, chosen, k] += (tile.T @ (waves[part] * weights[:, k, None])).T
    if product.tiles.constant is not None:
        # the centre c of sparse rows was not subtracted: sum s wave (x - c) = sum s wave x - c sum s wave
        total -= plain[..., None] * product.tiles.constant
    # rows in the product are in turns: the sums contain a factor of 1 / (2 pi)
    return total * (feature_map.amplitudes[:, None, None] / TURN)


def check_fourier(feature_map: FeatureMap) -> None:
    """Raise ValueError unless the features are cosines or sines."""
    if not feature_map.is_fourier:
        raise ValueError(
            f"gradients in the frequencies are defined for 'cos-sin' and 'cos' maps, and these are "
            f"{feature_map.activation!r} features; learn Fourier features, such as RandomFeatures(Gaussian())"
        )


@njit(nogil=True, fastmath=ELEMENTWISE)
def _waves(z: np.ndarray, out: np.ndarray) -> None:
    """Write cos and sin of turns z (n, F) to out (2, n, F)."""
    for i in range(len(z)):
        cos_sin_rows(z[i], out[0, i], out[1, i])
