"""Sums over a block for tuned random features: squared errors by fold, steps on margin losses, and a model's duals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.kernels.newton.gram import GramSum, packed_size, rows_at
from dkl.kernels.normal_equations import (
    TrialSteps,
    design_tiles,
    mapped_tiles,
    model_scores,
    weighted_sums,
)
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of


@dataclass(frozen=True, eq=False)
class Smoothing:
    """The smoothing of the hinge, by a logistic function that starts from a prior for the rows' dual weights.

    With slack m = 1 - y f and prior z the hinge max(0, m) becomes ``h log((1 + exp(z + m/h)) / (1 + exp(z)))``, whose
    slope, the row's dual weight, is 1 / (1 + exp(-z - m/h)). With a fixed z and a shrinking h, this is the usual
    smoothed hinge; with z that follows, z + m/h of the last model, it is the hinge's own optimum at any width.

    Parameters
    ----------
    width : float
        h of the losses at the steps.
    ahead : float
        h of the gradient and Hessian at the first step.
    past : ndarray of shape (K, m + 1)
        The prior of a row is ``reach - y f`` of this model, a sum of the models that it followed, each over its width.
    reach : float
        The sum of one over the widths of these models.
    follows : bool
        Whether the prior of gradient and Hessian follows the model at the first step.
    """

    width: float
    ahead: float
    past: np.ndarray
    reach: float = 0.0
    follows: bool = False


@dataclass(frozen=True, eq=False)
class MarginOptions:
    """Options of a pass for hinge losses.

    Parameters
    ----------
    loss : {"hinge", "squared_hinge"}
    columns : (int, int) or None
        The columns of the Hessians to sum, or None for no Hessian.
    hessian_of : tuple of int
        The models whose Hessian is summed.
    first_order : bool
        Values and gradients too: one record of a pass has them, the others are further panels of the Hessians.
    dtype : {"float32", "float64"}
        The precision of the mapped rows and of the Hessians' products; scores and gradients are float64.
    """

    loss: TunedLoss
    columns: tuple[int, int] | None = None
    hessian_of: tuple[int, ...] = (0,)
    first_order: bool = True
    dtype: str = "float32"


def squared_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    folds: np.ndarray,
    grams: Sequence[GramSum],
    out: Mapping[str, np.ndarray],
) -> None:
    """Add what the squared loss of linear models depends on, fold by fold, to `out`.

    Parameters
    ----------
    phi : array of shape (n, m), on the host or on a GPU
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    folds : ndarray of shape (n,), int64
        Rows below 0, and those at or above F, are left out.
    grams : sequence of F GramSum
        Of sum_i s_i (phi_i, 1)(phi_i, 1)^T.
    out : mapping
        If there, "cross" (F, K, m + 1) with sum_i s_i y_ik (phi_i, 1), "squares" (F, K) with sum_i s_i y_ik^2.
    """
    for fold, gram in enumerate(grams):
        rows = np.flatnonzero((folds == fold) & (weight > 0.0))
        if len(rows) == 0:
            continue
        # a copy of the rows costs as much as mapping them: only where some are left out
        part = phi if len(rows) == len(phi) else rows_at(phi, rows)
        gram.add(part, weight[rows])
        # one panel of columns brings the sums of the targets, the others would only repeat them
        if "cross" in out:
            weighted = (targets[rows] * weight[rows, None]).T
            out["cross"][fold] += weighted_sums(weighted, part.astype(np.float64))
            out["squares"][fold] += np.sum(weighted * targets[rows].T, axis=1)


def squared_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`squared_sums` of a block.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "folds" (row ids to folds, or None for one), "n_folds",
    "columns", "first" (whether this panel brings the sums of the targets), "dtype".
    """
    feature_map, columns = operands["feature_map"], operands["columns"]
    values, weight = operands["targets"](block)
    folds = np.zeros(block.n_rows, np.int64) if operands["folds"] is None else operands["folds"](block.held_with)
    F, K = operands["n_folds"], values.shape[1]
    out = {"gram": np.zeros((F, packed_size(*columns)))}
    if operands["first"]:
        out |= {"cross": np.zeros((F, K, feature_map.n_features + 1)), "squares": np.zeros((F, K))}
    grams = [GramSum(columns, of_fold) for of_fold in out["gram"]]
    for rows, phi in mapped_tiles(block.X, feature_map, operands["dtype"]):
        squared_sums(phi, values[rows], weight[rows], folds[rows], grams, out)
    for gram in grams:
        gram.finish()
    return out


def misfit_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, models: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the residuals e_ik = y_ik - f_k(x_i), which are the dual weights of half the squared error.

    ``sum_i s_i e_ik (phi_i, 1)``, (K, m + 1), is minus the gradient of the loss; ``sum_i s_i e_ik^2``, (K,), twice its
    value. Both are float64.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    models : ndarray of shape (K, m + 1)
        The intercept last.
    """
    # float64 whatever the features are in: the residuals correct what float32 has lost
    wide = phi.astype(np.float64)
    misfit = targets - model_scores(wide, models)
    duals = (misfit * weight[:, None]).T
    return weighted_sums(duals, wide), np.sum(duals * misfit.T, axis=1)


def misfit_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`misfit_sums` of a block. Operands: "feature_map", "targets", "models", "dtype"."""
    values, weight = operands["targets"](block)
    models = operands["models"]
    dual_sums, squares = np.zeros(models.shape), np.zeros(len(models))
    for rows, phi in mapped_tiles(block.X, operands["feature_map"], operands["dtype"]):
        more_duals, more_squares = misfit_sums(phi, values[rows], weight[rows], models)
        dual_sums += more_duals
        squares += more_squares
    return {"dual_sums": dual_sums, "squares": squares}


def margin_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    trial: TrialSteps,
    smoothing: Smoothing,
    options: MarginOptions,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The sums of a Newton step on losses of the margin, and the curvature of each row.

    The squared hinge is max(0, 1 - y f)^2 and needs no smoothing; its dual weights are 2 s y max(0, 1 - y f).

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
        -1 or 1.
    weight : ndarray of shape (n,)
    trial : TrialSteps
    smoothing : Smoothing
    options : MarginOptions

    Returns
    -------
    sums : dict of ndarray
        "smooth" (K, T), the smoothed losses at the steps; at the first one, separately over the rows with target -1
        and 1, "loss" (2, K), the losses themselves, "mass" (2, K), the sums of |dual weights|, and "dual_sums"
        (2, K, m + 1), sums of the dual weights times (phi_i, 1) for each side: together they are minus the gradient.
    curvature : ndarray of shape (n, K)
        The second derivatives of the smoothed losses by f, times the weights; 0 where they hardly count.
    """
    wide = phi.astype(np.float64)
    # Scores and dual weights are float64 for float32 features, too: at the optimum the dual weights cancel.
    smooth, loss, sides, curvature = sided_duals(wide, targets, weight, trial, smoothing, options.loss)
    dual_sums = weighted_sums(sides.transpose(0, 2, 1), wide)
    return {"smooth": smooth, "loss": loss, "mass": np.abs(sides).sum(axis=1), "dual_sums": dual_sums}, curvature


def sided_duals(
    wide: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    trial: TrialSteps,
    smoothing: Smoothing,
    loss: TunedLoss,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The losses and the dual weights of rows mapped in float64: `margin_sums` before its sums over rows.

    Parameters
    ----------
    wide : ndarray of shape (n, m), float64
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    trial : TrialSteps
    smoothing : Smoothing
    loss : {"hinge", "squared_hinge"}

    Returns
    -------
    smooth : ndarray of shape (K, T)
        The sums of the smoothed losses at the steps.
    losses : ndarray of shape (2, K)
        The losses at the first step, summed over the rows with target -1 and 1.
    sides : ndarray of shape (2, n, K)
        The dual weights of the rows times their targets, 0 on the other side.
    curvature : ndarray of shape (n, K)
    """
    # Scores of the point, of the direction and of the prior's model: every trial step and the prior of every row follow
    # from these three, so that a pass needs no more products however many steps it tries.
    models = (trial.coefficients, trial.directions, smoothing.past)
    start, move, past = (model_scores(wide, model) for model in models)
    n, K = targets.shape
    smooth, losses, dual, curvature = (np.zeros(shape) for shape in (trial.steps.shape, (2, K), (n, K), (n, K)))
    dual_loop = TUNED_LOSSES[loss].duals
    if dual_loop is None:
        raise ValueError(f"loss={loss!r} is no loss of a margin: its optimum follows from `squared_block`, in one pass")
    widths = (smoothing.width, smoothing.ahead, smoothing.follows)
    prior = smoothing.reach - targets * past
    dual_loop((start, move, targets, weight), prior, trial.steps, widths, (smooth, losses, dual, curvature))
    # apart by side: a dual point must sum to zero, and each side is scaled by itself to make it so
    sides = np.stack([np.where(targets < 0.0, dual, 0.0), np.where(targets > 0.0, dual, 0.0)])
    return smooth, losses, sides, curvature


def margin_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`margin_sums` of a block and its packed Hessians, with the sum of the weights.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "trial", "smoothing", "options", "sample" (row ids to a mask
    of the rows that count, or None for all).
    """
    options, trial, feature_map = operands["options"], operands["trial"], operands["feature_map"]
    # the first Newton steps see a subsample: its rows are cut out before they are mapped
    if operands["sample"] is not None:
        block = block.rows(np.flatnonzero(operands["sample"](block.row_id)))
    values, weight = operands["targets"](block)
    out = {name: np.zeros(shape) for name, shape in margin_shapes(trial, options).items()}
    if options.first_order:
        out["weight"] += weight.sum()
    hessians = [] if options.columns is None else [GramSum(options.columns, own) for own in out["hessian"]]
    for rows, phi in mapped_tiles(block.X, feature_map, options.dtype):
        sums, curvature = margin_sums(phi, values[rows], weight[rows], trial, operands["smoothing"], options)
        for name in sums if options.first_order else ():
            out[name] += sums[name]
        # most rows of a narrow hinge have no curvature: the Hessian takes the others alone
        for model, hessian in zip(options.hessian_of if hessians else (), hessians, strict=True):
            curved = np.flatnonzero(curvature[:, model])
            if len(curved):
                hessian.add(phi if len(curved) == len(phi) else rows_at(phi, curved), curvature[curved, model])
    for hessian in hessians:
        hessian.finish()
    return out


def margin_shapes(trial: TrialSteps, options: MarginOptions) -> dict[str, tuple[int, ...]]:
    """The accumulators that `margin_block` returns, by name."""
    K, width = trial.coefficients.shape
    shapes: dict[str, tuple[int, ...]] = {}
    if options.first_order:
        shapes = {
            "smooth": trial.steps.shape,
            "loss": (2, K),
            "mass": (2, K),
            "dual_sums": (2, K, width),
            "weight": (1,),
        }
    if options.columns is not None:
        shapes["hessian"] = (len(options.hessian_of), packed_size(*options.columns))
    return shapes


def judging_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of a block for `judged`: losses, and |a|, a y, a^2 and a (phi, 1) summed over duals a of either sign.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "model" (a `TunedModel`), "loss", "dtype".
    """
    model, loss = operands["model"], loss_of(operands["loss"])
    values, weight = operands["targets"](block)
    total = {name: np.zeros(shape) for name, shape in judging_shapes(model.coef, operands["loss"]).items()}
    total["weight"] += weight.sum()
    models = np.concatenate([model.coef, np.reshape(model.intercept, (-1, 1))], axis=1)
    for rows, phi in design_tiles(block.X, operands["feature_map"], operands["dtype"]):
        wide, y, s = phi[:, :-1].astype(np.float64), values[rows], weight[rows][:, None]
        scores = model_scores(wide, models)
        # objective, and for each width of the slope the sums that make a dual point of it
        total["loss"] += weight[rows] @ loss.value(y, scores).sum(axis=1)
        for number, width in enumerate(TUNED_LOSSES[operands["loss"]].slope_widths):
            # a slope that jumps from 0 to -y at the margin 1 is spread over a width beyond it
            slope = -y * np.clip((1.0 - y * scores) / width, 0.0, 1.0) if width else loss.slope(y, scores)
            # dual weights a = -slope, those above and those below zero apart
            sides = np.stack([np.maximum(-slope, 0.0), np.minimum(-slope, 0.0)])
            total["mass"][number] += np.abs(sides * s).sum(axis=1)
            total["linear"][number] += (sides * s * y).sum(axis=1)
            total["squares"][number] += (sides**2 * s).sum(axis=1)
            total["dual_sums"][number] += weighted_sums((sides * s).transpose(0, 2, 1), wide)
    return total


def judging_shapes(coef: np.ndarray, loss: TunedLoss) -> dict[str, tuple[int, ...]]:
    """The accumulators that `judging_sums` returns: the last four by spread of the slope, by sign and by model."""
    sides = (len(TUNED_LOSSES[loss].slope_widths), 2, len(coef))
    dual_sums = (*sides, coef.shape[1] + 1)
    return {"loss": (1,), "weight": (1,), "mass": sides, "linear": sides, "squares": sides, "dual_sums": dual_sums}
