"""Block sums: weighted sums of features and of their squares over the rows of a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.blocks.activations import activate
from dkl.blocks.tiles import RowTiles, checked_dtype, checked_weights
from dkl.features.feature_map import FeatureMap


def feature_sums(X: Any, S: Any, feature_map: FeatureMap, dtype: Any = "float32") -> np.ndarray:
    dtype = checked_dtype(dtype)
    tiles = RowTiles(X, feature_map, dtype)
    S = checked_weights(S, tiles.X.shape[0])
    parts = feature_map.columns_a_frequency
    total = np.zeros((parts, feature_map.n_frequencies, S.shape[1]))
    W = feature_map.projection.dense().astype(dtype, copy=False)
    shift = None if tiles.constant is None else (W @ tiles.constant).astype(dtype)
    phases = None if feature_map.phases is None else feature_map.phases.astype(dtype)
    for rows, tile in tiles:
        Z = tile @ W.T
        if shift is not None:
            Z -= shift
        for part, phi in enumerate(activate(np, Z, feature_map, phases)):
            total[part] += phi.T @ S[rows].astype(dtype)
    return total * feature_map.amplitudes[:, None]


def feature_squares(X: Any, s: Any, feature_map: FeatureMap, dtype: Any = "float32") -> np.ndarray:
    dtype = checked_dtype(dtype)
    tiles = RowTiles(X, feature_map, dtype)
    S = checked_weights(s, tiles.X.shape[0])
    total = np.zeros((feature_map.columns_a_frequency, feature_map.n_frequencies))
    W = feature_map.projection.dense().astype(dtype, copy=False)
    shift = None if tiles.constant is None else (W @ tiles.constant).astype(dtype)
    phases = None if feature_map.phases is None else feature_map.phases.astype(dtype)
    for rows, tile in tiles:
        Z = tile @ W.T
        if shift is not None:
            Z -= shift
        for part, phi in enumerate(activate(np, Z, feature_map, phases)):
            total[part] += (phi * phi).T @ S[rows, 0].astype(dtype)
    return total * feature_map.amplitudes**2
