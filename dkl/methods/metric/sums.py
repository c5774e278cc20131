"""Block functions of a learned metric: the system of a kernel model, and products of the model's gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.radial import radial_slope
from dkl.features.scaling import Scaler
from dkl.kernels import generic
from dkl.kernels.device import array_module, beside_rows, dense_tiles, in_float64, is_on_gpu, sums_on_host
from dkl.kernels.threads import product
from dkl.kernels.tiles import RowTiles
from dkl.protocols.block import Block

# Rows of a tile, whose similarities to all landmarks exist at once.
_TILE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class MetricModel:
    """A kernel model in a metric, f_k(x) = sum_l coef[k, l] k(|R'x - R'z_l|).

    Parameters
    ----------
    kernel : Gaussian or Matern
        With its bandwidth.
    scaler : Scaler or None
    landmarks : ndarray of shape (l, d), float64
        z, scaled, without the metric.
    metric : ndarray of shape (d,) or (d, d), float64
        R, the root of the metric.
    coefficients : ndarray of shape (K, l), float64
    """

    kernel: Any
    scaler: Scaler | None
    landmarks: np.ndarray
    metric: np.ndarray
    coefficients: np.ndarray

    def tiles(self, block: Block) -> Iterator[tuple[slice, Any]]:
        """The rows of a block, scaled, in float64, on their device."""
        projection = NystromProjection(self.kernel, self.landmarks, np.eye(len(self.landmarks)))
        own = FeatureMap("nystrom", projection, np.ones(len(self.landmarks)), scaler=self.scaler)
        dtype = np.dtype(np.float64)
        if is_on_gpu(block.X):
            for rows, tile in dense_tiles(block.X, own, dtype):
                yield rows, generic.scaled(array_module(tile), tile, self.scaler, dtype)
            return
        yield from RowTiles(block.X, own, dtype, dense=True, rows=_TILE_ROWS)


def _distances(rows: Any, Z: Any) -> Any:
    """|x - z| for rows (n, d) and landmarks (l, d), by one product, ten times as fast for many columns as differences.

    Near 0 half of the digits are lost, which does not affect a metric summed over all rows.
    """
    squares = (rows**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2.0 * (rows @ Z.T)
    return np.sqrt(np.maximum(squares, 0.0))


def _weighted_positions(weight: Any) -> Any:
    """The positions of rows with nonzero weight; on a GPU all rows, since finding them would wait for it."""
    return slice(None) if is_on_gpu(weight) else np.flatnonzero(weight)


def system_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The systems of the kernel model on training rows and on held-out rows.

    Operands: "targets" (a `HeldTargets`), "model" (a `MetricModel`, whose coefficients are not used).

    Returns
    -------
    dict of ndarray
        With k the similarities of a row: "gram" (l, l) and "gradient" (l, K) are sums of w k k^T and w k y over
        training rows; "held_gram", "held_gradient", "held_squares" (K,) and "held_weight" () are the same over held-out
        rows, with sum w y^2 and the total weight.
    """
    model: MetricModel = operands["model"]
    y, weight, held = in_float64(beside_rows(block, "metric", operands["targets"]))
    n_landmarks, K, xp = len(model.landmarks), y.shape[1], array_module(block.X)
    sums: dict[str, Any] = {name: xp.zeros((n_landmarks, n_landmarks)) for name in ("gram", "held_gram")}
    sums |= {name: xp.zeros((n_landmarks, K)) for name in ("gradient", "held_gradient")}
    Z, R = xp.asarray(in_metric(model.landmarks, model.metric)), xp.asarray(model.metric)
    for rows, tile in model.tiles(block):
        similarities = model.kernel.of_distances(_distances(in_metric(tile, R), Z) / float(model.kernel.sigma))
        for prefix, own in (("", weight[rows]), ("held_", held[rows])):
            used = _weighted_positions(own)
            # a matrix times its own transpose takes half of the operations of a general product
            roots = xp.sqrt(own[used, None])
            weighted = similarities[used] * roots
            sums[prefix + "gram"] += weighted.T @ weighted
            sums[prefix + "gradient"] += product(weighted.T, roots * y[rows][used])
    return sums_on_host({**sums, "held_squares": held @ y**2, "held_weight": xp.asarray(held.sum())})


def slope_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The average gradient outer product of a kernel model, in scaled columns. Operands: as in `system_block`.

    Returns
    -------
    dict of ndarray
        "products": the sum over training rows and models of w grad f grad f^T, (d, d); for a diagonal metric its
        diagonal, (d,).
    """
    model: MetricModel = operands["model"]
    (_, weight, _), xp = in_float64(beside_rows(block, "metric", operands["targets"])), array_module(block.X)
    Z, R = xp.asarray(in_metric(model.landmarks, model.metric)), xp.asarray(model.metric)
    coefficients, products = xp.asarray(model.coefficients), xp.zeros(R.shape)
    for rows, tile in model.tiles(block):
        used = _weighted_positions(weight[rows])
        x = in_metric(tile[used], R)
        slopes = radial_slope(model.kernel, _distances(x, Z))
        for coef in coefficients:
            # the gradient is sum_l s_l c_l (x - z_l) in the metric, and R' times it in scaled columns
            own = slopes * coef
            gradients = in_metric(x * own.sum(axis=1, keepdims=True) - own @ Z, R if R.ndim == 1 else R.T)
            w = weight[rows][used]
            products += w @ gradients**2 if R.ndim == 1 else (gradients * w[:, None]).T @ gradients
    return sums_on_host({"products": products})
