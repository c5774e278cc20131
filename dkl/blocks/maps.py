"""Mapping rows: the features themselves, tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.blocks.activations import activate
from dkl.blocks.tiles import RowTiles, checked_dtype, row_tile
from dkl.features.feature_map import FeatureMap

__all__ = ["map_rows", "row_tile"]


def map_rows(X: Any, feature_map: FeatureMap, dtype: Any = "float32") -> np.ndarray:
    """phi(x) of each row with amplitudes: (n, n_features), all cosines first, then all sines."""
    dtype = checked_dtype(dtype)
    tiles = RowTiles(X, feature_map, dtype)
    m = feature_map.n_frequencies
    out = np.empty((tiles.X.shape[0], feature_map.n_features), dtype)
    W = feature_map.projection.dense().astype(dtype, copy=False)
    shift = None if tiles.constant is None else (W @ tiles.constant).astype(dtype)
    phases = None if feature_map.phases is None else feature_map.phases.astype(dtype)
    amplitudes = feature_map.amplitudes.astype(dtype)
    for rows, tile in tiles:
        Z = tile @ W.T
        if shift is not None:
            Z -= shift
        for part, phi in enumerate(activate(np, Z, feature_map, phases)):
            out[rows, part * m : (part + 1) * m] = phi * amplitudes
    return out
