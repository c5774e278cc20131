"""Block functions of explanations: sums of waves of some columns, of waves without a group of columns, and slopes.

They are here, since a worker that runs them loads their package: `dkl.explain` loads scikit-learn and pandas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection
from dkl.features.scaling import Scaler
from dkl.kernels.device import array_module, together_on_host, with_targets
from dkl.kernels.left_out import left_out_sums
from dkl.kernels.scale import scale_rows
from dkl.kernels.slopes import squared_slopes
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.protocols.block import Block


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
    return together_on_host({"sums": xp.stack(sums), "weight": of_rows.sum()})


def sums_without(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i s_i (cos, sin)(w.x_i over all columns outside a group), (G, 2, m), and the weight of the rows."""
    weights, groups = with_targets(block).weights, operands["groups"]
    sums = left_out_sums(block.X, weights, operands["feature_map"], groups, operands["dtype"], stay=True)
    return together_on_host({"sums": sums, "weight": weights.sum()})


def factor_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i s_i f_u(x_i) of functions of single columns, (U,), and the weight of the rows."""
    weights = with_targets(block).weights
    sums = feature_sums(block.X, weights, operands["factors"], "float64", stay=True)[0, :, 0]
    return together_on_host({"sums": sums, "weight": weights.sum()})


def columns_map(scaler: Scaler | None, d: int) -> FeatureMap:
    """The map whose features are the d scaled columns."""
    return FeatureMap("identity", ColumnProjection(np.arange(d), d), np.ones(d), scaler=scaler)


def slope_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of squared slopes in scaled columns, and the first two moments of scaled columns, for their variances."""
    machine, weights = operands["machine"], with_targets(block).weights
    itself = columns_map(machine.feature_map.scaler, machine.feature_map.n_columns)
    # A slope times the deviation of its column is the same for scaled and for raw columns.
    slopes = squared_slopes(block.X, weights, machine.feature_map, machine.coef, machine.dtype, stay=True)
    return together_on_host(
        {
            "weight": weights.sum(),
            "first": feature_sums(block.X, weights, itself, "float64", stay=True)[0, :, 0],
            "second": feature_squares(block.X, weights, itself, "float64", stay=True)[0],
            "slopes": slopes,
        }
    )
