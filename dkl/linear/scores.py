"""Decision values of a linear model on mapped rows, tile by tile: the n x D features are never held at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.blocks.device import on_host
from dkl.blocks.maps import map_rows
from dkl.features.feature_map import FeatureMap
from dkl.linear.pieces import piece_rows


def decision_values(
    X: Any, feature_map: FeatureMap, coef: np.ndarray, intercept: np.ndarray, *, dtype: str = "float32"
) -> np.ndarray:
    """``phi(x) . w_k + b_k`` of each row and model.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    feature_map : FeatureMap
        m features.
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    dtype : {"float32", "float64"}
        Of the features and products.

    Returns
    -------
    ndarray of shape (n, K), float64
    """
    out = np.empty((X.shape[0], len(coef)))
    weights = np.ascontiguousarray(coef.T, dtype=dtype)
    step = piece_rows(feature_map, dtype)
    for start in range(0, X.shape[0], step):
        out[start : start + step] = on_host(map_rows(X[start : start + step], feature_map, dtype)) @ weights
    return out + intercept
