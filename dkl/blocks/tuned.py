"""Sums over a block for tuned random features: squared errors by fold, and hinges smoothed over a width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np

from dkl.blocks.block import Block
from dkl.blocks.device import on_host
from dkl.blocks.maps import map_rows
from dkl.blocks.newton import Trial, add_hessian, newton_tile, packed_size
from dkl.features.feature_map import FeatureMap

MarginLoss = Literal["hinge", "squared_hinge"]


@dataclass(frozen=True, eq=False)
class MarginOptions:
    """What a pass for hinge losses computes.

    Parameters
    ----------
    loss : {"hinge", "squared_hinge"}
    width : float
        Of the smoothed hinge whose values at the steps are summed: quadratic for 0 < 1 - y f < width.
    ahead : float
        Of the one whose gradient and Hessian at the first step are.
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
    width: float
    ahead: float
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
    folds = np.zeros(block.n_rows, np.int64) if operands["folds"] is None else operands["folds"](block.row_id)
    F, K = operands["n_folds"], values.shape[1]
    out = {"gram": np.zeros((F, packed_size(*columns)))}
    if operands["first"]:
        out |= {"cross": np.zeros((F, K, feature_map.n_features + 1)), "squares": np.zeros((F, K))}
    for rows, phi in _mapped(block.X, feature_map, operands["dtype"]):
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
    for rows, phi in _mapped(block.X, operands["feature_map"], operands["dtype"]):
        more_pulls, more_squares = misfit_sums(phi, values[rows], weight[rows], models)
        pulls += more_pulls
        squares += more_squares
    return {"pulls": pulls, "squares": squares}


def margin_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Trial, options: MarginOptions
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What a step on hinge losses depends on, and which rows have curvature.

    The hinge max(0, m), m = 1 - y f, is smoothed to m^2/(2 h) for 0 < m < h and m - h/2 above; the squared hinge is
    max(0, m)^2. The dual weights are minus the slopes by f: s y min(1, m/h), or 2 s y m.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
        -1 or 1.
    weight : ndarray of shape (n,)
    trial : Trial
    options : MarginOptions

    Returns
    -------
    sums : dict of ndarray
        "smooth" (K, T), the smoothed losses at the steps; at the first one, separately over the rows with target -1
        and 1, "loss" (2, K), the losses themselves, "mass" (2, K), the sums of |dual weights|, and "pulls"
        (2, K, m + 1), those of the dual weights times (phi_i, 1).
    curved : ndarray of shape (n, K), bool
        The rows between the kinks.
    """
    wide = phi.astype(np.float64)
    start, move = (wide @ models[:, :-1].T + models[:, -1] for models in (trial.coefficients, trial.directions))
    n, K = targets.shape
    smooth, loss, dual, curved = np.zeros(trial.steps.shape), np.zeros((2, K)), np.empty((n, K)), np.empty((n, K), bool)
    widths = (0.0, 0.0) if options.loss == "squared_hinge" else (options.width, options.ahead)
    _line_margins(start, move, targets, weight, trial.steps, widths, (smooth, loss, dual, curved))
    sides = np.stack([np.where(targets < 0.0, dual, 0.0), np.where(targets > 0.0, dual, 0.0)])
    pulls = np.concatenate([sides.transpose(0, 2, 1) @ wide, sides.sum(axis=1)[:, :, None]], axis=2)
    return {"smooth": smooth, "loss": loss, "mass": np.abs(sides).sum(axis=1), "pulls": pulls}, curved


@numba.njit(nogil=True, cache=True)
def _line_margins(
    start: np.ndarray,
    move: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    steps: np.ndarray,
    widths: tuple[float, float],
    out: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Add smoothed losses at scores ``start + step * move``, and losses at the first; write duals and curvatures."""
    smooth, loss, dual, curved = out
    width, ahead = widths
    for i in range(targets.shape[0]):
        w = weight[i]
        for k in range(targets.shape[1]):
            y = targets[i, k]
            for t in range(steps.shape[1]):
                slack = max(0.0, 1.0 - y * (start[i, k] + steps[k, t] * move[i, k]))
                if width == 0.0:
                    smooth[k, t] += w * slack * slack
                elif slack < width:
                    smooth[k, t] += w * 0.5 * slack * slack / width
                else:
                    smooth[k, t] += w * (slack - 0.5 * width)
            slack = max(0.0, 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k]))
            side = 1 if y > 0.0 else 0
            if width == 0.0:
                loss[side, k] += w * slack * slack
                dual[i, k] = 2.0 * w * y * slack
                curved[i, k] = slack > 0.0 and w > 0.0
            else:
                loss[side, k] += w * slack
                dual[i, k] = w * y * min(1.0, slack / ahead)
                curved[i, k] = 0.0 < slack < ahead and w > 0.0


def margin_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`margin_sums` of a block and the packed Hessians of its curved rows, with the sum of the weights.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "trial", "options", "sample" (row ids to a mask of the rows
    that count, or None for all).
    """
    options, trial, feature_map = operands["options"], operands["trial"], operands["feature_map"]
    if operands["sample"] is not None:
        block = block.rows(np.flatnonzero(operands["sample"](block.row_id)))
    values, weight = operands["targets"](block)
    out = _zeros(trial, options)
    if options.first_order:
        out["weight"] += weight.sum()
    for rows, phi in _mapped(block.X, feature_map, options.dtype):
        sums, curved = margin_sums(phi, values[rows], weight[rows], trial, options)
        for name in sums if options.first_order else ():
            out[name] += sums[name]
        if options.columns is None:
            continue
        for model, hessian in zip(options.hessian_of, out["hessian"], strict=True):
            chosen = np.flatnonzero(curved[:, model])
            if len(chosen):
                add_hessian(phi[chosen], weight[rows][chosen], options.columns, hessian)
    return out


def _zeros(trial: Trial, options: MarginOptions) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape) for name, shape in margin_shapes(trial, options).items()}


def margin_shapes(trial: Trial, options: MarginOptions) -> dict[str, tuple[int, ...]]:
    """What `margin_block` returns."""
    K, width = trial.coefficients.shape
    shapes: dict[str, tuple[int, ...]] = {}
    if options.first_order:
        shapes = {"smooth": trial.steps.shape, "loss": (2, K), "mass": (2, K), "pulls": (2, K, width), "weight": (1,)}
    if options.columns is not None:
        shapes["hessian"] = (len(options.hessian_of), packed_size(*options.columns))
    return shapes


def _mapped(X: Any, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, np.ndarray]]:
    step = newton_tile(feature_map.n_features, dtype)
    for start in range(0, X.shape[0], step):
        rows = slice(start, min(start + step, X.shape[0]))
        yield rows, on_host(map_rows(X[rows], feature_map, dtype))
