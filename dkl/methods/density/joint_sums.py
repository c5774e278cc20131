"""Block sums of the features of all candidates, weighted by the dual weights of a model on some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.kernels.device import array_module, beside_rows, in_float64, is_on_gpu, together_on_host
from dkl.kernels.normal_equations import TrialSteps, mapped_tiles, model_scores
from dkl.kernels.sums import feature_sums
from dkl.methods.density.loss_table import TUNED_LOSSES
from dkl.methods.density.sums import SampledTargets, sided_duals
from dkl.protocols.block import Block


def pricing_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of a block for a dual point, and all candidates' features times two columns for each output.

    For hinges the columns are the dual weights times the targets of rows with target -1, and of those with 1; for half
    the squared error the residuals and ones, all times the rows' weights. Combinations of the two are dual weights that
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
    _, *targets, total = beside_rows(block, "targets", SampledTargets(operands["targets"], None))
    models, pool, loss = operands["models"], operands["pool"], operands["loss"]
    xp, K, takes_one_pass = array_module(block.X), len(models), TUNED_LOSSES[loss].takes_one_pass
    # the model itself is evaluated, not a step
    trial = TrialSteps(models, np.zeros_like(models), np.zeros((K, 1)))
    columns = xp.empty((block.n_rows, K, 2))
    sums: dict[str, Any] = {"loss": xp.zeros((2, K)), "mass": xp.zeros((2, K)), "weight": total}
    for rows, phi in mapped_tiles(block.X, operands["feature_map"], operands["dtype"]):
        (y, s), wide = in_float64(targets, rows), phi if is_on_gpu(phi) else phi.astype(np.float64)
        if takes_one_pass:
            misfit = y - model_scores(wide, models)
            columns[rows] = xp.stack([misfit, xp.ones_like(misfit)], axis=2) * s[:, None, None]
            sums["loss"][0] += 0.5 * (columns[rows][:, :, 0] * misfit).sum(axis=0)
            sums["mass"] += columns[rows].sum(axis=0).T
        else:
            _, losses, sides, _ = sided_duals(wide, y, s, trial, operands["smoothing"], loss)
            columns[rows] = sides.transpose(1, 2, 0)
            sums["loss"] += losses
            sums["mass"] += abs(sides).sum(axis=1)
    # the expensive product: the features of all candidates with two columns for each output
    features = feature_sums(block.X, columns.reshape(block.n_rows, 2 * K), pool, operands["dtype"], stay=True)
    return together_on_host({**sums, **{f"pool{k}": features[:, :, 2 * k : 2 * k + 2] for k in range(K)}})


def pricing_shapes(parts: int, n_candidates: int, n_outputs: int) -> dict[str, tuple[int, ...]]:
    """The accumulators that `pricing_block` returns, by name."""
    K = n_outputs
    pools = {f"pool{k}": (parts, n_candidates, 2) for k in range(K)}
    return {"loss": (2, K), "mass": (2, K), "weight": (1,), **pools}
