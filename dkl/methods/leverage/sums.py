"""Gram matrices of features over the rows of a block, from which the leverage scores of a pool are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import array_module, is_on_gpu, on_host, tile_rows, with_targets
from dkl.kernels.gram import GramSum, packed_size
from dkl.kernels.maps import map_rows, newton_tile
from dkl.kernels.sums import feature_squares
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block


def gram_sums(
    X: Rows, weight: np.ndarray, feature_map: FeatureMap, columns: tuple[int, int], dtype: str = "float32"
) -> np.ndarray:
    """Columns of the upper triangle of sum_i weight_i (phi_i, 1) (phi_i, 1)^T, packed.

    Parameters
    ----------
    X : array of shape (n, d)
    weight : array of shape (n,)
        On the host, or on the GPU of the rows.
    feature_map : FeatureMap
        The map to m columns, including amplitudes.
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1.
    dtype : {"float32", "float64"}
        Precision of the features. Their products are float64, since for a small mu a score is a small difference of
        them.

    Returns
    -------
    ndarray of shape (packed_size(start, stop),), float64
        The last number of the last column is the total weight.
    """
    out = np.zeros(packed_size(*columns))
    gram = GramSum(columns, out)
    for rows in spans(X.shape[0], newton_tile(feature_map.n_features, "float64")):
        # tiles of rows whose float64 copy stays in the cache
        gram.add(map_rows(X[rows], feature_map, dtype).astype(np.float64, copy=False), weight[rows])
    gram.finish()
    return out


def cross_gram_sums(
    X: Rows, weight: np.ndarray, first: FeatureMap, second: FeatureMap, dtype: str = "float32"
) -> np.ndarray:
    """sum_i weight_i phi(x_i) psi(x_i)^T of two maps.

    Parameters
    ----------
    X : array of shape (n, d)
    weight : ndarray of shape (n,)
    first, second : FeatureMap
        phi with m columns, psi with l.
    dtype : {"float32", "float64"}
        As in `gram_sums`.

    Returns
    -------
    ndarray of shape (m, l), float64
    """
    xp, width = array_module(X), first.n_features + second.n_features
    out = xp.zeros((first.n_features, second.n_features))
    step = tile_rows(width, out.itemsize) if is_on_gpu(X) else newton_tile(width, "float64")
    for rows in spans(X.shape[0], step):
        phi, psi = (map_rows(X[rows], features, dtype).astype(np.float64) for features in (first, second))
        # one of the two factors is multiplied by the weights
        phi *= xp.asarray(weight[rows])[:, None]
        out += phi.T @ psi
    return on_host(out)


def gram_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`gram_sums` of a block; operands "feature_map", "columns", "dtype"."""
    sums = gram_sums(
        block.X, with_targets(block).weights, operands["feature_map"], operands["columns"], operands["dtype"]
    )
    return {"gram": sums}


def cross_gram_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`cross_gram_sums` of a block; operands "first", "second", "dtype"."""
    sums = cross_gram_sums(
        block.X, with_targets(block).weights, operands["first"], operands["second"], operands["dtype"]
    )
    return {"cross": sums}


def squares_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weighted squares of all candidates' features over a block; operands "feature_map", "dtype"."""
    squares = feature_squares(block.X, with_targets(block).weights, operands["feature_map"], operands["dtype"])
    return {"squares": squares}
