"""Sums over a block of the features of all candidates, weighed by the dual weights of a model on some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.kernels.normal_equations import TrialSteps, mapped_tiles
from dkl.kernels.sums import feature_sums
from dkl.methods.density.sums import Smoothing, sided_duals
from dkl.protocols.block import Block

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def pricing_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a dual point needs of the rows, and the sums of all candidates' features for two weight columns an output.

    For hinges the columns are the dual weights times the targets of rows with target -1, and of those with 1; for half
    the squared error the residuals and ones, all times the rows' weights: mixtures of the two are dual weights that
    sum to zero.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "models" (K, m + 1), "smoothing", "loss", "pool" (the map of
    all candidates), "dtype".

    Returns
    -------
    dict of ndarray
        "loss" (2, K) and "mass" (2, K): sums of the losses and of |dual weights| by side; for the squared error the
        losses with zeros, and sums of both columns. "pool0", "pool1", ... of shape (parts, D, 2), one an output.
        "weight" (1,).
    """
    targets, weight = operands["targets"](block)
    K, pool = targets.shape[1], operands["pool"]
    columns = np.empty((block.n_rows, K, 2))
    sums = {name: np.zeros(shape) for name, shape in pricing_shapes(0, 0, K).items() if not name.startswith("pool")}
    sums["weight"] += weight.sum()
    for rows, phi in mapped_tiles(block.X, operands["feature_map"], operands["dtype"]):
        loss, mass, columns[rows] = _dual_columns(phi.astype(np.float64), targets[rows], weight[rows], operands)
        sums["loss"] += loss
        sums["mass"] += mass
    features = feature_sums(block.X, columns.reshape(block.n_rows, 2 * K), pool, dtype=operands["dtype"])
    return sums | {f"pool{k}": features[:, :, 2 * k : 2 * k + 2] for k in range(K)}


def pricing_shapes(parts: int, n_candidates: int, n_outputs: int) -> dict[str, tuple[int, ...]]:
    """What `pricing_block` returns."""
    K = n_outputs
    pools = {f"pool{k}": (parts, n_candidates, 2) for k in range(K)}
    return {"loss": (2, K), "mass": (2, K), "weight": (1,), **pools}


def _dual_columns(wide: np.ndarray, targets: np.ndarray, weight: np.ndarray, operands: Mapping[str, Any]) -> Columns:
    """Losses and masses by side, (2, K) each, and the weight columns (n, K, 2)."""
    models: np.ndarray = operands["models"]
    if operands["loss"] == "squared_error":
        misfit = targets - wide @ models[:, :-1].T - models[:, -1]
        columns = np.stack([misfit, np.ones_like(misfit)], axis=2) * weight[:, None, None]
        losses = 0.5 * np.sum(columns[:, :, 0] * misfit, axis=0)
        return np.stack([losses, np.zeros_like(losses)]), columns.sum(axis=0).T, columns
    smoothing: Smoothing = operands["smoothing"]
    trial = TrialSteps(models, np.zeros_like(models), np.zeros((len(models), 1)))
    _, loss, sides, _ = sided_duals(wide, targets, weight, trial, smoothing, operands["loss"])
    return loss, np.abs(sides).sum(axis=1), sides.transpose(1, 2, 0)
