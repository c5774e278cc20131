"""Sums of waves over rows with some columns left out, for many choices of columns at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.sincos import ELEMENTWISE, TURN, add_multiple, add_sums
from dkl.kernels.tiles import RowTiles, checked_dtype, checked_rows, checked_weights, even_step, spans
from dkl.protocols.arrays import Rows

__all__ = ["left_out_sums"]

# Frequencies of a tile of the product with all columns.
_FREQUENCIES = 768


def left_out_sums(
    X: Rows,
    s: np.ndarray,
    feature_map: FeatureMap,
    groups: Sequence[np.ndarray],
    dtype: DTypeLike = "float32",
    *,
    stay: bool = False,
) -> np.ndarray:
    """sum_i s_i (cos, sin)(w_j.x_i minus the terms of a group of columns), for each group.

    The product of all columns is computed once; a group costs the product of its own columns and the waves.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d), any real dtype
        Raw rows; the map's scaler is applied a tile at a time.
    s : array of shape (n,)
    feature_map : FeatureMap
        Its frequencies and its scaler are used, but not amplitudes and phases.
    groups : sequence of ndarray of int
        G sets of columns; an empty one leaves nothing out.
    dtype : {"float32", "float64"}
        Precision inside a tile. Tiles are added in float64, in their order.
    stay : bool
        As in `dkl.kernels.sums.feature_sums`.

    Returns
    -------
    ndarray of shape (G, 2, m), float64
    """
    dtype = checked_dtype(dtype)
    groups = [np.asarray(columns, dtype=np.int64) for columns in groups]
    if device.is_on_gpu(X):
        sums = device.left_out_sums(X, s, feature_map, groups, dtype)
        return sums if stay else device.on_host(sums)
    weights = checked_weights(s, checked_rows(X, feature_map).shape[0]).T.astype(dtype)
    W, m = feature_map.projection.dense().astype(dtype, copy=False), feature_map.n_frequencies
    total = np.zeros((len(groups), 2, 1, m))
    # an angle beyond the range of float32 is infinite; the waves are finite nevertheless
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, tile in RowTiles(X, feature_map, dtype, factor=TURN, dense=True):
            own = np.ascontiguousarray(weights[:, rows])
            if len(tile) == 1:
                # a single row would be a matrix-vector product, whose bits depend on its address in memory
                tile, own = np.concatenate([tile, tile]), np.pad(own, ((0, 0), (0, 1)))
            by_column = np.ascontiguousarray(tile.T)
            for chosen in spans(m, even_step(m, _FREQUENCIES)):
                angles = W[chosen] @ by_column
                # w.x without a group's columns is the whole product minus the few terms of the group, which is far
                # cheaper than a product of the other columns
                for columns, sums in zip(groups, total, strict=True):
                    _add_without(angles, by_column[columns], W[chosen, columns], own, sums, chosen.start)
    return total[:, :, 0]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_without(
    angles: np.ndarray, columns: np.ndarray, entries: np.ndarray, weights: np.ndarray, total: np.ndarray, first: int
) -> None:
    """Add the sums of angles (F, n) minus entries (F, k) times columns (k, n) to total (2, 1, m), from `first` on."""
    z = np.empty(angles.shape[1], angles.dtype)
    room = np.empty((2, len(z)), z.dtype)
    for j in range(angles.shape[0]):
        z[:] = angles[j]
        for column in range(columns.shape[0]):
            add_multiple(columns[column], -entries[j, column], z)
        add_sums(z, weights, room, total, first + j)
