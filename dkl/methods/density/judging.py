"""Judges given weights and a density by one pass: objective, optimality conditions and duality gap."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.scores import scoring_cost
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.penalty import DensityPenalty
from dkl.methods.density.solution import TunedSolution, largest_size, ridge_value, squared_weights
from dkl.methods.density.sums import judging_shapes, judging_sums
from dkl.protocols.records import Accumulator, BlockSum
from dkl.solvers.losses import loss_of


def judging_record(
    feature_map: FeatureMap, targets: NewtonTargets, model: TunedModel, loss: TunedLoss, *, dtype: str
) -> BlockSum:
    """The record of the pass.

    Parameters
    ----------
    feature_map : FeatureMap
        With amplitudes 1/sqrt(D).
    targets : NewtonTargets
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    dtype : {"float32", "float64"}
        Of the mapped rows.
    """
    accumulators = {name: Accumulator(shape) for name, shape in judging_shapes(model.coef, loss).items()}
    operands = {"feature_map": feature_map, "targets": targets, "model": model, "loss": loss, "dtype": dtype}
    # for each width the scores' slopes of both signs are multiplied with the rows again
    n_models = len(model.coef) * (1 + 2 * len(TUNED_LOSSES[loss].slope_widths))
    cost = partial(scoring_cost, feature_map=feature_map, n_models=n_models, share=1.0, dtype=dtype)
    return BlockSum("objective", judging_sums, accumulators, operands, cost=cost)


def judged(
    sums: Mapping[str, np.ndarray], model: TunedModel, loss: TunedLoss, lam: float, penalty: DensityPenalty
) -> TunedSolution:
    """Objective, residual and gap of a model from the sums of the pass.

    The dual point has the slopes of the losses, with each sign scaled so that they sum to 0; for the hinge, whose slope
    jumps, it is the best of several widths over which the jump is spread (see `dkl.methods.density.solution`).

    Parameters
    ----------
    sums : mapping of str to ndarray
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    lam : float
    penalty : DensityPenalty
    """
    weight = float(sums["weight"][0])
    u = model.density[0] if len(model.density) == 1 else model.density
    objective = float(sums["loss"][0]) / weight + ridge_value(model.coef, u, lam) + penalty.value(u)
    mass, linear, squares, dual_sums = (sums[name] / weight for name in ("mass", "linear", "squares", "dual_sums"))
    scale = np.divide(mass.min(axis=1, keepdims=True), mass, out=np.zeros_like(mass), where=mass > 0.0)
    # c_j = sum_i a_i z_ij of the feasible dual point of each width, (W, K, m)
    feasible = np.einsum("wsk,wskj->wkj", scale, dual_sums[..., :-1])
    # minus the conjugates of the losses at the scaled duals, summed over the rows: a y - conjugate_square a^2
    data = np.sum(scale * linear - loss_of(loss).conjugate_square * scale**2 * squares, axis=(1, 2))
    bounds = [
        value + penalty.conjugate(squared_weights(c, u) / (2.0 * lam)).value
        for value, c in zip(data, feasible, strict=True)
    ]
    # the first width has the slope itself: both signs together are minus the gradient of the mean loss
    descent = dual_sums[0].sum(axis=0)
    columns = np.tile(np.atleast_2d(u), 2)
    # where u is 0, w is 0 too, and w / u has the limit for which the gradient vanishes
    ratios = np.where(columns > 0.0, model.coef / np.where(columns > 0.0, columns, 1.0), descent[:, :-1] / lam)
    by_density = penalty.gradient(u) - 0.5 * lam * squared_weights(ratios, u)
    by_model = max(largest_size(descent[:, :-1] - lam * ratios), largest_size(descent[:, -1]))
    return TunedSolution(
        coef=model.coef,
        intercept=model.intercept,
        density=u,
        objective=objective,
        residual=max(by_model, penalty.residual(u, by_density)),
        gap=max(0.0, objective - max(bounds)),
        message="",
    )
