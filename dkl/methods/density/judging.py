"""How good given weights and a density are: objective, optimality conditions and duality gap, in one pass of sums."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets, design_tiles
from dkl.linear.scores import scoring_cost
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.penalty import DensityPenalty
from dkl.methods.density.problem import TunedLoss
from dkl.methods.density.solution import TunedSolution, largest, ridge_value, squared_weights
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.losses import loss_of

# of the hinge's slope, spread over a width: at the optimum rows at the kink have a share of it
_WIDTHS = (0.0, 0.03, 0.1, 0.3, 1.0)


def judging_record(
    feature_map: FeatureMap, targets: NewtonTargets, model: TunedModel, loss: TunedLoss, *, dtype: str
) -> BlockSum:
    """The record of the pass.

    Parameters
    ----------
    feature_map : FeatureMap
        At amplitudes 1/sqrt(D).
    targets : NewtonTargets
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    dtype : {"float32", "float64"}
        Of the mapped rows.
    """
    accumulators = {name: Accumulator(shape) for name, shape in _shapes(model, loss).items()}
    operands = {"feature_map": feature_map, "targets": targets, "model": model, "loss": loss, "dtype": dtype}
    cost = partial(_cost, feature_map=feature_map, n_models=len(model.coef) * (1 + 2 * len(_widths(loss))), dtype=dtype)
    return BlockSum("objective", judging_sums, accumulators, operands, cost=cost)


def judging_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `judged` needs of a block: losses, and sums over the duals a of either sign of |a|, a y, a^2 and a (phi, 1).

    Operands: "feature_map", "targets" (a `NewtonTargets`), "model" (a `TunedModel`), "loss", "dtype".
    """
    model, loss = operands["model"], operands["loss"]
    values, weight = operands["targets"](block)
    total = {name: np.zeros(shape) for name, shape in _shapes(model, loss).items()}
    total["weight"] += weight.sum()
    for rows, phi in design_tiles(block.X, operands["feature_map"], operands["dtype"]):
        wide, y, s = phi.astype(np.float64), values[rows], weight[rows]
        scores = wide[:, :-1] @ model.coef.T + model.intercept
        total["loss"] += s @ loss_of(loss).value(y, scores).sum(axis=1)
        for name, value in _dual_sums(wide, y, s[:, None], scores, loss).items():
            total[name] += value
    return total


def judged(
    sums: Mapping[str, np.ndarray], model: TunedModel, loss: TunedLoss, lam: float, penalty: DensityPenalty
) -> TunedSolution:
    """Objective, residual and gap of a model from the sums of the pass.

    The dual point is made of the slopes of the losses: those of each sign are scaled so that they sum to 0; of the
    hinge, whose slope jumps, the best of a few spreads over a width (see `dkl.methods.density.solution`).

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
    mass, linear, squares, pulls = (sums[name] / weight for name in ("mass", "linear", "squares", "pulls"))
    scale = np.divide(mass.min(axis=1, keepdims=True), mass, out=np.zeros_like(mass), where=mass > 0.0)
    feasible = np.einsum("wsk,wskj->wkj", scale, pulls[..., :-1])
    # minus the conjugates at the scaled duals, summed over the rows
    data = np.sum(scale * linear - loss_of(loss).conjugate_square * scale**2 * squares, axis=(1, 2))
    bounds = [
        value + penalty.conjugate(squared_weights(c, u) / (2.0 * lam)).value
        for value, c in zip(data, feasible, strict=True)
    ]
    return TunedSolution(
        coef=model.coef,
        intercept=model.intercept,
        density=u,
        objective=objective,
        residual=_residual(pulls[0].sum(axis=0), model.coef, u, (lam, penalty)),
        gap=max(0.0, objective - max(bounds)),
        message="",
    )


def _residual(pull: np.ndarray, coef: np.ndarray, u: np.ndarray, terms: tuple[float, DensityPenalty]) -> float:
    """The largest violation: of the gradients by w and b, and of that by u where u may move."""
    lam, penalty = terms
    columns = np.tile(np.atleast_2d(u), 2)
    # where u is 0 so is w, and w / u has the limit that makes the gradient vanish
    ratio = np.where(columns > 0.0, coef / np.where(columns > 0.0, columns, 1.0), pull[:, :-1] / lam)
    by_density = penalty.gradient(u) - 0.5 * lam * squared_weights(ratio, u)
    by_model = max(largest(pull[:, :-1] - lam * ratio), largest(pull[:, -1]))
    return max(by_model, penalty.residual(u, by_density))


def _shapes(model: TunedModel, loss: TunedLoss) -> dict[str, tuple[int, ...]]:
    """What `judging_sums` returns: the last four by spread of the slope, by sign and by model."""
    sides = (len(_widths(loss)), 2, len(model.coef))
    pulls = (*sides, model.coef.shape[1] + 1)
    return {"loss": (1,), "weight": (1,), "mass": sides, "linear": sides, "squares": sides, "pulls": pulls}


def _widths(loss: TunedLoss) -> tuple[float, ...]:
    return _WIDTHS if loss == "hinge" else (0.0,)


def _dual_sums(
    wide: np.ndarray, y: np.ndarray, s: np.ndarray, scores: np.ndarray, loss: TunedLoss
) -> dict[str, np.ndarray]:
    """Of rows with a last column of ones: sums by spread and by sign, each of shape (spreads, 2, K) and "pulls"."""
    found: dict[str, list[np.ndarray]] = {"mass": [], "linear": [], "squares": [], "pulls": []}
    for width in _widths(loss):
        spread = None if width == 0.0 else -y * np.clip((1.0 - y * scores) / width, 0.0, 1.0)
        slope = loss_of(loss).slope(y, scores) if spread is None else spread
        sides = np.stack([np.maximum(-slope, 0.0), np.minimum(-slope, 0.0)])
        found["mass"].append(np.abs(sides * s).sum(axis=1))
        found["linear"].append((sides * s * y).sum(axis=1))
        found["squares"].append((sides**2 * s).sum(axis=1))
        found["pulls"].append(np.einsum("sik,ij->skj", sides * s, wide, optimize=True))
    return {name: np.stack(values) for name, values in found.items()}


def _cost(rows: int, columns: int, *, feature_map: FeatureMap, n_models: int, dtype: str) -> Cost:
    return scoring_cost(rows, columns, feature_map=feature_map, n_models=n_models, share=1.0, dtype=dtype)
