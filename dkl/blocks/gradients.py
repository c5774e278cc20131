"""Gradient sums: what the derivative of a potential in each frequency needs of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.blocks.tiles import RowTiles, checked_dtype, checked_weights
from dkl.features.feature_map import FeatureMap


def gradient_sums(X: Any, S: Any, feature_map: FeatureMap, dtype: Any = "float32") -> np.ndarray:
    dtype = checked_dtype(dtype)
    tiles = RowTiles(X, feature_map, dtype, dense=True)
    S = checked_weights(S, tiles.X.shape[0])
    W = feature_map.projection.dense().astype(dtype, copy=False)
    total = np.zeros((2, feature_map.n_frequencies, S.shape[1], feature_map.n_columns))
    phases = np.zeros(len(W), dtype) if feature_map.phases is None else feature_map.phases.astype(dtype)
    for rows, tile in tiles:
        Z = tile @ W.T + phases
        for k, s in enumerate(S[rows].T.astype(dtype)):
            total[0, :, k] += (np.cos(Z) * s[:, None]).T @ tile
            total[1, :, k] += (np.sin(Z) * s[:, None]).T @ tile
    return total * feature_map.amplitudes[:, None, None]
