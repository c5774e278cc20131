"""Block functions of explanations: sums of waves of some columns, of waves without a group of columns, and slopes.

They are here, since a worker that runs them loads their package: `dkl.explain` loads scikit-learn and pandas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection
from dkl.features.scaling import Scaler
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.device import array_module, sums_on_host, with_targets
from dkl.kernels.scale import scale_rows
from dkl.kernels.sincos import ELEMENTWISE, TURN, add_multiple, add_sums
from dkl.kernels.slopes import squared_slopes
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.kernels.tiles import RowTiles, checked_dtype, checked_rows, checked_weights, even_step, spans
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block

# Frequencies of a tile of the product with all columns, in `left_out_sums`.
LEFT_OUT_FREQUENCIES = 768


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
            for chosen in spans(m, even_step(m, LEFT_OUT_FREQUENCIES)):
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


@dataclass(frozen=True, eq=False)
class ColumnWaves:
    """The waves exp(i w.x) of some encoded columns, as a feature map on these columns alone."""

    feature_map: FeatureMap
    columns: np.ndarray

    def angles(self, rows: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
        """w.x of unscaled rows (n, k) of these columns, for the chosen frequencies: radians, float64 (n, m)."""
        # in float64 for any dtype of the model, since there are few such rows
        scaled = scale_rows(rows, self.feature_map.scaler, "float64")
        return scaled @ self.feature_map.projection.dense()[chosen].T.astype(np.float64)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """exp(i w.x) of unscaled rows (n, k) of these columns: complex (n, m)."""
        return unit_waves(self.angles(rows))


def unit_waves(angles: np.ndarray) -> np.ndarray:
    """exp(i angle) as cosine and sine, several times as fast as the complex exponential."""
    out = np.empty(angles.shape, complex)
    out.real, out.imag = np.cos(angles), np.sin(angles)
    return out


def wave_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i s_i (cos, sin)(w.x_i) of each part, (parts, 2, m), and the weight of the rows."""
    sums, xp = [], array_module(block.X)
    of_rows = with_targets(block).weights
    # CSC format, since taking columns of a CSR matrix is slow
    by_column = sparse.csc_array(block.X) if sparse.issparse(block.X) else block.X
    for part in operands["parts"]:
        rows: Any = by_column[:, xp.asarray(part.columns)]
        weights = of_rows
        if sparse.issparse(rows):
            # Rows that are zero in all columns of the part are replaced by one row with their total weight.
            nonzero = np.unique(rows.indices)
            distinct = np.zeros((len(nonzero) + 1, len(part.columns)), block.X.dtype)
            distinct[:-1] = rows.tocsr()[nonzero].toarray()
            weights = np.append(weights[nonzero], weights.sum() - weights[nonzero].sum())
            rows = distinct
        sums.append(feature_sums(rows, weights, part.feature_map, operands["dtype"], stay=True)[:, :, 0])
    return sums_on_host({"sums": xp.stack(sums), "weight": of_rows.sum()})


def sums_without(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i s_i (cos, sin)(w.x_i over all columns outside a group), (G, 2, m), and the weight of the rows."""
    weights, groups = with_targets(block).weights, operands["groups"]
    sums = left_out_sums(block.X, weights, operands["feature_map"], groups, operands["dtype"], stay=True)
    return sums_on_host({"sums": sums, "weight": weights.sum()})


def factor_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i s_i f_u(x_i) of functions of single columns, (U,), and the weight of the rows."""
    weights = with_targets(block).weights
    sums = feature_sums(block.X, weights, operands["factors"], "float64", stay=True)[0, :, 0]
    return sums_on_host({"sums": sums, "weight": weights.sum()})


def columns_map(scaler: Scaler | None, d: int) -> FeatureMap:
    """The map whose features are the d scaled columns."""
    return FeatureMap("identity", ColumnProjection(np.arange(d), d), np.ones(d), scaler=scaler)


def slope_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of squared slopes in scaled columns, and the first two moments of scaled columns, for their variances."""
    machine, weights = operands["machine"], with_targets(block).weights
    itself = columns_map(machine.feature_map.scaler, machine.feature_map.n_columns)
    # A slope times the deviation of its column is the same for scaled and for raw columns.
    slopes = squared_slopes(block.X, weights, machine.feature_map, machine.coef, machine.dtype, stay=True)
    return sums_on_host(
        {
            "weight": weights.sum(),
            "first": feature_sums(block.X, weights, itself, "float64", stay=True)[0, :, 0],
            "second": feature_squares(block.X, weights, itself, "float64", stay=True)[0],
            "slopes": slopes,
        }
    )
