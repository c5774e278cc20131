"""Sums over a block for tuned random features: squared errors by fold, and smoothed hinges, and what judges a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np

from dkl.kernels.normal_equations import TrialSteps, add_hessian, design_tiles, mapped_tiles, packed_size
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of

__all__ = ["margin_sums", "misfit_sums", "squared_sums"]

MarginLoss = Literal["hinge", "squared_hinge"]
JudgedLoss = Literal["squared_error", "hinge", "squared_hinge"]

# rows whose curvature is this share of the steepest are left out of Hessians
_FLAT = 1e-4


@dataclass(frozen=True, eq=False)
class Smoothing:
    """How the hinge is made smooth: by dual weights that may move from where earlier models have led them.

    With slack m = 1 - y f and prior z the hinge max(0, m) becomes ``h log((1 + exp(z + m/h)) / (1 + exp(z)))``, whose
    slope, the row's dual weight, is 1 / (1 + exp(-z - m/h)). Where z stands still and h shrinks, this is the usual
    smoothed hinge; where z follows, z + m/h of the last model, it is the hinge's own optimum at any width.

    Parameters
    ----------
    width : float
        h of the losses at the steps.
    ahead : float
        h of the gradient and Hessian at the first step.
    past : ndarray of shape (K, m + 1)
        The prior of a row is ``reach - y f`` of this model: the models that it followed, each over its width.
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
    """What a pass for hinge losses computes.

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
        Of the mapped rows and of the Hessians' products; scores and gradients are float64.
    """

    loss: MarginLoss
    columns: tuple[int, int] | None = None
    hessian_of: tuple[int, ...] = (0,)
    first_order: bool = True
    dtype: str = "float32"


def squared_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    folds: np.ndarray,
    columns: tuple[int, int],
    out: Mapping[str, np.ndarray],
) -> None:
    """Add what the squared loss of linear models depends on, fold by fold, to `out`.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    folds : ndarray of shape (n,), int64
        Rows below 0, and those at or above F, are left out.
    columns : (int, int)
        Of the upper triangle of sum_i s_i (phi_i, 1)(phi_i, 1)^T.
    out : mapping
        "gram" (F, size), packed; and if there "cross" (F, K, m + 1) with sum_i s_i y_ik (phi_i, 1), "squares" (F, K)
        with sum_i s_i y_ik^2.
    """
    for fold in range(len(out["gram"])):
        rows = np.flatnonzero((folds == fold) & (weight > 0.0))
        if len(rows) == 0:
            continue
        part = phi if len(rows) == len(phi) else phi[rows]
        add_hessian(part, weight[rows], columns, out["gram"][fold])
        if "cross" in out:
            pulls = (targets[rows] * weight[rows, None]).T
            out["cross"][fold, :, :-1] += pulls @ part.astype(np.float64)
            out["cross"][fold, :, -1] += pulls.sum(axis=1)
            out["squares"][fold] += np.sum(pulls * targets[rows].T, axis=1)


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
    for rows, phi in mapped_tiles(block.X, feature_map, operands["dtype"]):
        squared_sums(phi, values[rows], weight[rows], folds[rows], columns, out)
    return out


def misfit_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, models: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """sum_i s_i (y_ik - f_k(x_i)) (phi_i, 1), (K, m + 1), and sum_i s_i (y_ik - f_k(x_i))^2, (K,), both float64.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    models : ndarray of shape (K, m + 1)
        The intercept last.
    """
    wide = phi.astype(np.float64)
    misfit = targets - wide @ models[:, :-1].T - models[:, -1]
    pull = (misfit * weight[:, None]).T
    return np.concatenate([pull @ wide, pull.sum(axis=1)[:, None]], axis=1), np.sum(pull * misfit.T, axis=1)


def misfit_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`misfit_sums` of a block. Operands: "feature_map", "targets", "models", "dtype"."""
    values, weight = operands["targets"](block)
    models = operands["models"]
    pulls, squares = np.zeros(models.shape), np.zeros(len(models))
    for rows, phi in mapped_tiles(block.X, operands["feature_map"], operands["dtype"]):
        more_pulls, more_squares = misfit_sums(phi, values[rows], weight[rows], models)
        pulls += more_pulls
        squares += more_squares
    return {"pulls": pulls, "squares": squares}


def margin_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    trial: TrialSteps,
    smoothing: Smoothing,
    options: MarginOptions,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What a step on hinge losses depends on, and the curvature of the rows.

    The squared hinge is max(0, 1 - y f)^2 and needs no smoothing; its dual weights are 2 s y max(0, 1 - y f).

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
        -1 or 1.
    weight : ndarray of shape (n,)
    trial : Trial
    smoothing : Smoothing
    options : MarginOptions

    Returns
    -------
    sums : dict of ndarray
        "smooth" (K, T), the smoothed losses at the steps; at the first one, separately over the rows with target -1
        and 1, "loss" (2, K), the losses themselves, "mass" (2, K), the sums of |dual weights|, and "pulls"
        (2, K, m + 1), those of the dual weights times (phi_i, 1).
    curvature : ndarray of shape (n, K)
        The second derivatives of the smoothed losses by f, times the weights; 0 where they hardly count.
    """
    wide = phi.astype(np.float64)
    smooth, loss, sides, curvature = sided_duals(wide, targets, weight, trial, smoothing, options.loss)
    pulls = np.concatenate([sides.transpose(0, 2, 1) @ wide, sides.sum(axis=1)[:, :, None]], axis=2)
    return {"smooth": smooth, "loss": loss, "mass": np.abs(sides).sum(axis=1), "pulls": pulls}, curvature


def sided_duals(
    wide: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    trial: TrialSteps,
    smoothing: Smoothing,
    loss: MarginLoss,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What hinges make of rows mapped in float64: `margin_sums` before its sums over rows.

    Parameters
    ----------
    wide : ndarray of shape (n, m), float64
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    trial : Trial
    smoothing : Smoothing
    loss : {"hinge", "squared_hinge"}

    Returns
    -------
    smooth : ndarray of shape (K, T)
        The sums of the smoothed losses at the steps.
    losses : ndarray of shape (2, K)
        Those of the losses at the first step, over the rows with target -1 and 1.
    sides : ndarray of shape (2, n, K)
        The dual weights of the rows times their targets, 0 on the other side.
    curvature : ndarray of shape (n, K)
    """
    models = (trial.coefficients, trial.directions, smoothing.past)
    start, move, past = (wide @ model[:, :-1].T + model[:, -1] for model in models)
    n, K = targets.shape
    smooth, losses, dual, curvature = (np.zeros(shape) for shape in (trial.steps.shape, (2, K), (n, K), (n, K)))
    rows, out = (start, move, targets, weight), (smooth, losses, dual, curvature)
    if loss == "squared_hinge":
        _squared_hinges(rows, trial.steps, out)
    else:
        widths = (smoothing.width, smoothing.ahead, smoothing.follows)
        _smoothed_hinges(rows, smoothing.reach - targets * past, trial.steps, widths, out)
    sides = np.stack([np.where(targets < 0.0, dual, 0.0), np.where(targets > 0.0, dual, 0.0)])
    return smooth, losses, sides, curvature


_Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@numba.njit(nogil=True, cache=True)
def _squared_hinges(rows: _Rows, steps: np.ndarray, out: _Rows) -> None:
    """Add losses at scores ``start + step * move``; write duals and curvatures at the first."""
    start, move, targets, weight = rows
    smooth, loss, dual, curvature = out
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w = targets[i, k], weight[i]
            for t in range(steps.shape[1]):
                smooth[k, t] += w * max(0.0, 1.0 - y * (start[i, k] + steps[k, t] * move[i, k])) ** 2
            slack = max(0.0, 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k]))
            loss[1 if y > 0.0 else 0, k] += w * slack * slack
            dual[i, k] = 2.0 * w * y * slack
            curvature[i, k] = 2.0 * w if slack > 0.0 else 0.0


@numba.njit(nogil=True, cache=True)
def _smoothed_hinges(
    rows: _Rows, prior: np.ndarray, steps: np.ndarray, widths: tuple[float, float, bool], out: _Rows
) -> None:
    """Add smoothed losses at scores ``start + step * move``, and hinges at the first; write duals and curvatures."""
    start, move, targets, weight = rows
    smooth, loss, dual, curvature = out
    width, ahead, follows = widths
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w, z = targets[i, k], weight[i], prior[i, k]
            for t in range(steps.shape[1]):
                slack = 1.0 - y * (start[i, k] + steps[k, t] * move[i, k])
                smooth[k, t] += w * width * (_log_one_plus(z + slack / width) - _log_one_plus(z))
            slack = 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k])
            loss[1 if y > 0.0 else 0, k] += w * max(0.0, slack)
            q = (z + slack / width if follows else z) + slack / ahead
            small = math.exp(-abs(q))
            dual[i, k] = w * y * (1.0 if q > 0.0 else small) / (1.0 + small)
            curvature[i, k] = w * small / (ahead * (1.0 + small) ** 2) if small > _FLAT else 0.0


@numba.njit(nogil=True, cache=True)
def _log_one_plus(q: float) -> float:
    """log(1 + exp(q))."""
    return max(0.0, q) + math.log1p(math.exp(-abs(q)))


def margin_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`margin_sums` of a block and its packed Hessians, with the sum of the weights.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "trial", "smoothing", "options", "sample" (row ids to a mask
    of the rows that count, or None for all).
    """
    options, trial, feature_map = operands["options"], operands["trial"], operands["feature_map"]
    if operands["sample"] is not None:
        block = block.rows(np.flatnonzero(operands["sample"](block.row_id)))
    values, weight = operands["targets"](block)
    out = _zeros(trial, options)
    if options.first_order:
        out["weight"] += weight.sum()
    for rows, phi in mapped_tiles(block.X, feature_map, options.dtype):
        sums, curvature = margin_sums(phi, values[rows], weight[rows], trial, operands["smoothing"], options)
        for name in sums if options.first_order else ():
            out[name] += sums[name]
        if options.columns is None:
            continue
        for model, hessian in zip(options.hessian_of, out["hessian"], strict=True):
            curved = np.flatnonzero(curvature[:, model])
            if len(curved):
                part = phi if len(curved) == len(phi) else phi[curved]
                add_hessian(part, curvature[curved, model], options.columns, hessian)
    return out


def _zeros(trial: TrialSteps, options: MarginOptions) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape) for name, shape in margin_shapes(trial, options).items()}


def margin_shapes(trial: TrialSteps, options: MarginOptions) -> dict[str, tuple[int, ...]]:
    """What `margin_block` returns."""
    K, width = trial.coefficients.shape
    shapes: dict[str, tuple[int, ...]] = {}
    if options.first_order:
        shapes = {"smooth": trial.steps.shape, "loss": (2, K), "mass": (2, K), "pulls": (2, K, width), "weight": (1,)}
    if options.columns is not None:
        shapes["hessian"] = (len(options.hessian_of), packed_size(*options.columns))
    return shapes


# of the hinge's slope, spread over a width: at the optimum rows at the kink have a share of it
_WIDTHS = (0.0, 0.03, 0.1, 0.3, 1.0)


def judging_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `judged` needs of a block: losses, and sums over the duals a of either sign of |a|, a y, a^2 and a (phi, 1).

    Operands: "feature_map", "targets" (a `NewtonTargets`), "model" (a `TunedModel`), "loss", "dtype".
    """
    model, loss = operands["model"], operands["loss"]
    values, weight = operands["targets"](block)
    total = {name: np.zeros(shape) for name, shape in judging_shapes(model.coef, loss).items()}
    total["weight"] += weight.sum()
    for rows, phi in design_tiles(block.X, operands["feature_map"], operands["dtype"]):
        wide, y, s = phi.astype(np.float64), values[rows], weight[rows]
        scores = wide[:, :-1] @ model.coef.T + model.intercept
        total["loss"] += s @ loss_of(loss).value(y, scores).sum(axis=1)
        for name, value in _dual_sums(wide, y, s[:, None], scores, loss).items():
            total[name] += value
    return total


def judging_shapes(coef: np.ndarray, loss: JudgedLoss) -> dict[str, tuple[int, ...]]:
    """What `judging_sums` returns: the last four by spread of the slope, by sign and by model."""
    sides = (len(slope_widths(loss)), 2, len(coef))
    pulls = (*sides, coef.shape[1] + 1)
    return {"loss": (1,), "weight": (1,), "mass": sides, "linear": sides, "squares": sides, "pulls": pulls}


def slope_widths(loss: JudgedLoss) -> tuple[float, ...]:
    """The widths that the slope of a loss is spread over: several where it jumps, else none."""
    return _WIDTHS if loss == "hinge" else (0.0,)


def _dual_sums(
    wide: np.ndarray, y: np.ndarray, s: np.ndarray, scores: np.ndarray, loss: JudgedLoss
) -> dict[str, np.ndarray]:
    """Of rows with a last column of ones: sums by spread and by sign, each of shape (spreads, 2, K) and "pulls"."""
    found: dict[str, list[np.ndarray]] = {"mass": [], "linear": [], "squares": [], "pulls": []}
    for width in slope_widths(loss):
        spread = None if width == 0.0 else -y * np.clip((1.0 - y * scores) / width, 0.0, 1.0)
        slope = loss_of(loss).slope(y, scores) if spread is None else spread
        sides = np.stack([np.maximum(-slope, 0.0), np.minimum(-slope, 0.0)])
        found["mass"].append(np.abs(sides * s).sum(axis=1))
        found["linear"].append((sides * s * y).sum(axis=1))
        found["squares"].append((sides**2 * s).sum(axis=1))
        found["pulls"].append(np.einsum("sik,ij->skj", sides * s, wide, optimize=True))
    return {name: np.stack(values) for name, values in found.items()}
