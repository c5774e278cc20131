"""Block sums for tuned random features: squared errors by fold, steps on margin losses, dual weights of a model.

Joint models also sum the features of all candidates, weighted by the dual weights of a model on some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.kernels.device import array_module, beside_rows, in_float64, is_on_gpu, sums_on_host, with_targets
from dkl.kernels.gram import GramSum, finished, packed_size, rows_at
from dkl.kernels.maps import design_tiles, mapped_tiles
from dkl.kernels.normal_equations import NewtonTargets, TrialSteps, model_scores, weighted_sums
from dkl.kernels.sums import feature_sums
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of, namespace_of


@dataclass(frozen=True, eq=False)
class Smoothing:
    """The smoothing of the hinge, by a logistic function that starts from a prior for the rows' dual weights.

    With slack m = 1 - y f and prior z the hinge max(0, m) becomes ``h log((1 + exp(z + m/h)) / (1 + exp(z)))``, whose
    slope, the row's dual weight, is 1 / (1 + exp(-z - m/h)). With a constant z and a shrinking h, this is the usual
    smoothed hinge; if z follows the model, as z + m/h of the last one, its optimum is the hinge's own at any width.

    Parameters
    ----------
    width : float
        The width h of the losses at the steps.
    ahead : float
        The width h of the gradient and Hessian at the first step.
    past : ndarray of shape (K, m + 1)
        The prior of a row is ``reach - y f`` with f by this model, the sum of earlier models divided by their widths.
    reach : float
        The sum of the inverse widths of these models.
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
    columns : (int, int)
        The columns of the Hessians to sum.
    hessian_of : tuple of int
        The models whose Hessian is summed.
    first_order : bool
        Whether the pass sums values and gradients, too; otherwise it only sums further panels of the Hessians.
    dtype : {"float32", "float64"}
        The precision of the mapped rows and of the Hessians' products; scores and gradients are float64.
    """

    loss: TunedLoss
    columns: tuple[int, int]
    hessian_of: tuple[int, ...]
    first_order: bool = True
    dtype: str = "float32"


def squared_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    folds: np.ndarray,
    grams: Sequence[GramSum],
    out: dict[str, Any],
) -> None:
    """Add the sums of a linear model's squared loss to `out`, for each fold; on a GPU they stay there.

    Parameters
    ----------
    phi : array of shape (n, m), on the host or on a GPU
    targets : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
    folds : ndarray of shape (n,), int64
        Rows with folds below 0, or at least F, are left out.
    grams : sequence of F GramSum
        Sums of sum_i s_i (phi_i, 1)(phi_i, 1)^T.
    out : dict
        If present, "cross" (F, K, m + 1) gets sum_i s_i y_ik (phi_i, 1), and "squares" (F, K) sum_i s_i y_ik^2.
    """
    xp = array_module(phi)
    for fold, gram in enumerate(grams):
        # on a GPU, finding the rows with weight would wait for it, so all rows of the fold are multiplied
        rows = np.flatnonzero(folds == fold if is_on_gpu(weight) else (folds == fold) & (weight > 0.0))
        if len(rows) == 0:
            continue
        # copying rows costs as much as mapping them, so they are copied only if some are left out
        part = phi if len(rows) == len(phi) else rows_at(phi, rows)
        y, s = (targets, weight) if len(rows) == len(phi) else (rows_at(targets, rows), rows_at(weight, rows))
        gram.add(part, s)
        # the first panel of columns adds the sums of the targets, which are the same for all panels
        if "cross" in out:
            weighted = (y * s[:, None]).T
            out["squares"] = xp.asarray(out["squares"])
            out["squares"][fold] += xp.sum(weighted * y.T, axis=1)
            out["cross"] = xp.asarray(out["cross"])
            out["cross"][fold] += weighted_sums(xp.asarray(weighted), part.astype(np.float64))


def squared_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`squared_sums` of a block.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "folds" (row ids to folds, or None for a single one),
    "n_folds", "columns", "first" (whether this panel has the sums of the targets).
    """
    feature_map, columns = operands["feature_map"], operands["columns"]
    targets = [array_module(block.X).asarray(part) for part in operands["targets"](with_targets(block))]
    folds = np.zeros(block.n_rows, np.int64) if operands["folds"] is None else operands["folds"](block.held_with)
    F, K = operands["n_folds"], targets[0].shape[1]
    out: dict[str, Any] = {"gram": np.zeros((F, packed_size(*columns)))}
    if operands["first"]:
        out |= {"cross": np.zeros((F, K, feature_map.n_features + 1)), "squares": np.zeros((F, K))}
    grams = [GramSum(columns, of_fold) for of_fold in out["gram"]]
    # errors of float32 would stay in the optimum
    for rows, phi in mapped_tiles(block.X, feature_map, "float64"):
        y, s = in_float64(targets, rows)
        squared_sums(phi, y, s, folds[rows], grams, out)
    return finished(out, grams)


def _wide(phi: Any) -> Any:
    """Mapped rows in float64; on a GPU unchanged, since products with models are float64 there in any case."""
    return array_module(phi).ascontiguousarray(phi) if is_on_gpu(phi) else phi.astype(np.float64)


def _add(sums: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the sums of a tile; on a GPU they stay there."""
    for name, value in more.items():
        sums[name] = array_module(value).asarray(sums[name]) + value


def margin_sums(
    phi: Any,
    targets: Any,
    weight: Any,
    trial: TrialSteps,
    smoothing: Smoothing,
    loss: TunedLoss,
) -> tuple[dict[str, Any], Any]:
    """The sums of a Newton step on losses of the margin, and the curvature of each row.

    The squared hinge is max(0, 1 - y f)^2 and needs no smoothing; its dual weights are 2 s y max(0, 1 - y f).

    Parameters
    ----------
    phi : array of shape (n, m)
        On the host or on a GPU, together with the other arrays of rows.
    targets : array of shape (n, K)
        -1 or 1.
    weight : array of shape (n,)
    trial : TrialSteps
    smoothing : Smoothing
    loss : {"hinge", "squared_hinge"}

    Returns
    -------
    sums : dict of array
        "smooth" (K, T), the smoothed losses at the steps; and at the first step, separately over the rows with targets
        -1 and 1, "loss" (2, K), the losses themselves, "mass" (2, K), the sums of |dual weights|, and "dual_sums" (2,
        K, m + 1), sums of the dual weights times (phi_i, 1): both together are minus the gradient.
    curvature : array of shape (n, K)
        The second derivatives of the smoothed losses in f, times the weights; 0 where they are negligible.
    """
    wide = _wide(phi)
    # scores and dual weights are float64 for float32 features, too, since dual weights cancel at the optimum
    smooth, losses, sides, curvature = sided_duals(wide, targets, weight, trial, smoothing, loss)
    dual_sums = weighted_sums(sides.transpose(0, 2, 1), wide)
    return {"smooth": smooth, "loss": losses, "mass": abs(sides).sum(axis=1), "dual_sums": dual_sums}, curvature


def sided_duals(
    wide: Any,
    targets: Any,
    weight: Any,
    trial: TrialSteps,
    smoothing: Smoothing,
    loss: TunedLoss,
) -> tuple[Any, Any, Any, Any]:
    """The losses and dual weights of mapped rows: `margin_sums` before its sums over rows.

    Parameters
    ----------
    wide : array of shape (n, m)
        On the host in float64.
    targets : array of shape (n, K)
    weight : array of shape (n,)
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
    # scores of the point, of the direction and of the prior's model: every trial step and every row's prior follow from
    # these three products
    models, (n, K) = (trial.coefficients, trial.directions, smoothing.past), targets.shape
    widths, row = (smoothing.width, smoothing.ahead, smoothing.follows), TUNED_LOSSES[loss]
    if row.duals is None:
        raise ValueError(f"loss={loss!r} is no loss of a margin: its optimum follows from `squared_block`, in one pass")
    xp = array_module(wide)
    if is_on_gpu(wide):
        if row.duals_on_gpu is None:
            raise ValueError(f"loss={loss!r} has no `duals_on_gpu`; fit it with device='cpu'")
        scores = model_scores(wide, np.vstack(models))
        start, move, past = (scores[:, k * K : (k + 1) * K] for k in range(3))
        prior, steps = smoothing.reach - targets * past, xp.asarray(trial.steps)
        smooth, losses, dual, curvature = row.duals_on_gpu(
            (start, move, targets, weight[:, None]), prior, steps, widths
        )
    else:
        start, move, past = (model_scores(wide, model) for model in models)
        smooth, losses, dual, curvature = (np.zeros(shape) for shape in (trial.steps.shape, (2, K), (n, K), (n, K)))
        prior = smoothing.reach - targets * past
        row.duals((start, move, targets, weight), prior, trial.steps, widths, (smooth, losses, dual, curvature))
    # separately by class, since each is scaled to make the dual point sum to zero
    sides = xp.stack([xp.where(targets < 0.0, dual, 0.0), xp.where(targets > 0.0, dual, 0.0)])
    return smooth, losses, sides, curvature


@dataclass(frozen=True, eq=False)
class SampledTargets:
    """Selects the rows of a sample from a block, with their targets and weights.

    Parameters
    ----------
    targets : NewtonTargets
    sample : callable or None
        Maps row ids to a mask of the sampled rows; None for all rows.
    """

    targets: NewtonTargets
    sample: Any

    def __call__(self, block: Block) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        """The positions of these rows, None for all; their targets (k, K) and weights (k,); the sum of the weights."""
        some = None if self.sample is None else np.flatnonzero(self.sample(block.row_id))
        if some is not None:
            block = block.without_x(some)
        values, weight = self.targets(block)
        return some, values, weight, namespace_of(weight).reshape(weight.sum(), (1,))


def margin_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`margin_sums` of a block and its packed Hessians, with the sum of the weights.

    Operands: "feature_map", "targets" (a `NewtonTargets`), "trial", "smoothing", "options", "sample" (maps row ids to a
    mask of sampled rows, or None for all).
    """
    options, trial, feature_map = operands["options"], operands["trial"], operands["feature_map"]
    # the first Newton steps use a subsample, which is selected before rows are mapped
    some, *targets, total = beside_rows(block, "targets", SampledTargets(operands["targets"], operands["sample"]))
    X = block.X if some is None else block.X[some]
    out: dict[str, Any] = {name: np.zeros(shape) for name, shape in margin_shapes(trial, options).items()}
    if options.first_order:
        out["weight"] = total
    hessians = [GramSum(options.columns, own) for own in out["hessian"]]
    # losses of all steps and models are in memory at once
    for rows, phi in mapped_tiles(X, feature_map, options.dtype, trial.steps.size):
        y, s = in_float64(targets, rows)
        sums, curvature = margin_sums(phi, y, s, trial, operands["smoothing"], options.loss)
        if options.first_order:
            _add(out, sums)
        for model, hessian in zip(options.hessian_of, hessians, strict=True):
            if is_on_gpu(phi):
                # on a GPU, finding the rows with curvature would wait for it, so the others stay with weight 0
                hessian.add(phi, curvature[:, model])
                continue
            # most rows have no curvature for a narrow hinge, so the Hessian uses only the others
            curved = np.flatnonzero(curvature[:, model])
            if len(curved):
                hessian.add(phi if len(curved) == len(phi) else rows_at(phi, curved), curvature[curved, model])
    return finished(out, hessians)


def margin_shapes(trial: TrialSteps, options: MarginOptions) -> dict[str, tuple[int, ...]]:
    """The shapes of the accumulators of `margin_block`, by name."""
    K, width = trial.coefficients.shape
    shapes: dict[str, tuple[int, ...]] = {"hessian": (len(options.hessian_of), packed_size(*options.columns))}
    if options.first_order:
        shapes |= {
            "smooth": trial.steps.shape,
            "loss": (2, K),
            "mass": (2, K),
            "dual_sums": (2, K, width),
            "weight": (1,),
        }
    return shapes


def judging_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weighted sums of a block for `judged`: the loss of all models, and products of their dual weights a.

    The sums over the rows with a > 0, and those over the rows with a < 0, of |a|, a y, a^2 and a (phi, 1).

    Operands: "feature_map", "targets" (a `NewtonTargets`), "model" (a `TunedModel`), "loss", "dtype".
    """
    model, loss = operands["model"], loss_of(operands["loss"])
    _, *targets, weight = beside_rows(block, "targets", SampledTargets(operands["targets"], None))
    shapes = judging_shapes(model.coef, operands["loss"])
    total: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()} | {"weight": weight}
    models = np.concatenate([model.coef, np.reshape(model.intercept, (-1, 1))], axis=1)
    for rows, phi in design_tiles(block.X, operands["feature_map"], operands["dtype"]):
        xp, (y, s), wide = array_module(phi), in_float64(targets, rows), _wide(phi[:, :-1])
        scores = model_scores(wide, models)
        # the objective, and for each width of the slope the sums of a dual point
        tile: dict[str, Any] = {"loss": xp.reshape(s @ loss.value(y, scores).sum(axis=1), (1,))}
        slopes = []
        for width in TUNED_LOSSES[operands["loss"]].slope_widths:
            # a slope that jumps from 0 to -y at the margin 1 is spread over a width below it
            slopes.append(-y * ((1.0 - y * scores) / width).clip(0.0, 1.0) if width else loss.slope(y, scores))
        # dual weights a = -slope, positive and negative ones separately: by width, sign, row and model
        sides = xp.stack([xp.stack([(-slope).clip(0.0, None), (-slope).clip(None, 0.0)]) for slope in slopes])
        weighted = sides * s[:, None]
        tile |= {"mass": abs(weighted).sum(axis=2), "linear": (weighted * y).sum(axis=2)}
        tile |= {"squares": (sides * weighted).sum(axis=2)}
        _add(total, {**tile, "dual_sums": weighted_sums(weighted.transpose(0, 1, 3, 2), wide)})
    return sums_on_host(total)


def judging_shapes(coef: np.ndarray, loss: TunedLoss) -> dict[str, tuple[int, ...]]:
    """The shapes of the accumulators of `judging_sums`; the last four by width of the slope, sign and model."""
    sides = (len(TUNED_LOSSES[loss].slope_widths), 2, len(coef))
    dual_sums = (*sides, coef.shape[1] + 1)
    return {"loss": (1,), "weight": (1,), "mass": sides, "linear": sides, "squares": sides, "dual_sums": dual_sums}


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
        (y, s), wide = in_float64(targets, rows), _wide(phi)
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
    return sums_on_host({**sums, **{f"pool{k}": features[:, :, 2 * k : 2 * k + 2] for k in range(K)}})
