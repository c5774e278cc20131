"""The block functions of linear models: sums over targets and held-out rows, and minibatches for stochastic steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import (
    array_module,
    beside_rows,
    calibration_sums_on_gpu,
    in_float64,
    is_on_gpu,
    place,
    sums_on_host,
    with_targets,
)
from dkl.kernels.maps import cached_tile, map_rows, mapped_tiles, row_mapper
from dkl.kernels.moments import column_sums
from dkl.kernels.normal_equations import NewtonTargets, is_plain_sparse, model_scores, sparse_tiles
from dkl.kernels.sums import encode_targets
from dkl.kernels.tiles import spans
from dkl.linear.minibatches import HeldOut, Minibatch, RowTargets, fitted_rows, shuffled_rows
from dkl.linear.scores import values_where_rows_are
from dkl.protocols.arrays import as_columns
from dkl.protocols.block import Block
from dkl.solvers.losses import SOFTMAX, loss_of, namespace_of, newton_loss

# Inverse temperatures, in half octaves, at which calibration sums the loss: a range wide enough for any scale of
# decision values, and steps narrow enough to interpolate to 1e-4.
MULTIPLIERS: np.ndarray = 2.0 ** np.arange(-20.0, 20.5, 0.5)
# Upper bound of the loss of one row, so that sums of losses stay finite.
_INFINITE = 1e100


def target_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weighted sums of a block's targets (one-hot for classes), the number of its rows, and 1 if it has any.

    Operands: the parameters of `target_record`.
    """
    block, held_out, n_classes = with_targets(block), operands["held_out"], operands["n_classes"]
    if held_out is not None and held_out.share > 0.0:
        block = block.without_x(np.flatnonzero(~held_out.mask(block.held_with)))
    xp = namespace_of(block.y)
    if n_classes is None:
        values, weights = as_columns(xp.asarray(block.y, dtype=np.float64)), block.weights
    else:
        weighted = encode_targets(block, n_classes, operands["class_weight"])
        values, weights = (xp.asarray(block.y)[:, None] == xp.arange(n_classes)) * 1.0, weighted.sum(axis=1)
    counts = {"rows": np.array(float(block.n_rows)), "blocks": np.array(float(block.n_rows > 0))}
    return sums_on_host({**column_sums(values, weights), **counts})


def shuffled_minibatch(block: Block, operands: Mapping[str, Any], number: int) -> Minibatch | None:
    """Minibatch `number` of the rows of a block that are not held out, in a random order that all epochs share.

    Operands: "feature_map" (or None), "center" (or None), "dtype", "minibatch_rows", "seed", "held_out", "targets";
    "device", from the pass.
    """
    size = operands["minibatch_rows"]
    order = shuffled_rows(block, operands["held_out"], (operands["seed"], block.index))
    return _minibatch(block, order[number * size : (number + 1) * size], operands)


def stored_minibatch(block: Block, operands: Mapping[str, Any], number: int) -> Minibatch | None:
    """Minibatch `number` of the rows of a block that are not held out, in stored order.

    Operands: as in `shuffled_minibatch`.
    """
    size = operands["minibatch_rows"]
    return _minibatch(block, fitted_rows(block, operands["held_out"])[number * size : (number + 1) * size], operands)


def _minibatch(block: Block, rows_at: np.ndarray, operands: Mapping[str, Any]) -> Minibatch | None:
    """The given rows of a block, mapped, with targets and weights for the estimator; None if there are none."""
    if len(rows_at) == 0:
        return None
    feature_map, center, targets = operands["feature_map"], operands["center"], operands["targets"]
    rows = with_targets(place(block.rows(rows_at), operands.get("device", "cpu")))
    phi = rows.X if feature_map is None else _centred_features(rows.X, feature_map, operands["dtype"], center)
    return Minibatch(phi, targets.targets(rows), targets.weights(rows))


def _centred_features(X: Any, feature_map: FeatureMap, dtype: str, center: np.ndarray | None) -> Any:
    """The mapped rows minus the centre; on the host in pieces that stay in the processor's cache."""
    if center is None or is_on_gpu(X):
        phi = map_rows(X, feature_map, dtype)
        return phi if center is None else phi - array_module(phi).asarray(center)
    phi, mapped = np.empty((X.shape[0], feature_map.n_features), dtype), row_mapper(X, feature_map, dtype)
    for rows in spans(X.shape[0], cached_tile(feature_map.n_features, dtype)):
        mapped(rows, phi[rows])
        phi[rows] -= center
    return phi


def reordered_minibatch(minibatch: Minibatch, operands: Mapping[str, Any], block: int, number: int) -> Minibatch:
    """Minibatch `number` of a block with a random order of its rows for this epoch.

    Operands: "seed", "epoch".
    """
    seeds = operands["seed"], operands["epoch"], block, number
    order = np.random.default_rng(seeds).permutation(minibatch.phi.shape[0])
    return replace(minibatch, order=order)


def held_out_loss(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of the weighted loss over the held-out rows of a block, and of their weights.

    Operands: "feature_map", "coef", "intercept", "dtype", "held_out", "targets" (RowTargets), and "loss", "epsilon" and
    "calibrated" as in `dkl.linear.epochs.Stopping`. With "calibrated" the sums include "label" and "uniform", the
    `calibration_sums` of these rows by their own weights, and "counted", the sum of these weights.
    """
    targets, name = operands["targets"], operands["loss"]
    make = JudgedRows(operands["held_out"], targets, signed=name != "softmax")
    scores, y, signed, weight = _judged_scores(block, operands, make)
    xp = array_module(scores)
    if name == "softmax":
        losses = SOFTMAX.value(y, scores)
    else:
        # in an epoch that diverges a mean exp(f), and so its loss, may be infinite
        with np.errstate(over="ignore"):
            losses = loss_of(name, operands["epsilon"]).value(signed, scores).clip(None, _INFINITE)
        losses = losses.sum(axis=1)
    totals = {"loss": xp.reshape(weight @ losses, (1,)), "weight": xp.reshape(weight.sum(), (1,))}
    if operands.get("calibrated", False):
        counts = weight / targets.weight_scale
        totals |= calibration_sums(_of_each_class(scores), y, counts, MULTIPLIERS)
        totals["counted"] = xp.reshape(counts.sum(), (1,))
    return sums_on_host(totals)


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Selects the held-out rows of a block, with the targets and weights that judge models on them.

    Parameters
    ----------
    held_out : HeldOut
    targets : RowTargets
    signed : bool
        Whether to include one target for each model: -1 and +1 for classes, standardised values for regression.
    """

    held_out: HeldOut
    targets: RowTargets
    signed: bool = False

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray]:
        """The positions of the rows (k,), their y, targets by model (k, K) in float64 or None, and weights (k,)."""
        some = np.flatnonzero(self.held_out.mask(block.held_with))
        rows = block.without_x(some)
        weight = self.targets.weights(rows)
        xp = namespace_of(block.y)
        signed = xp.asarray(self.targets.signed(rows), dtype=np.float64) if self.signed else None
        return some, rows.y, signed, xp.ones(len(some)) if weight is None else weight


def _judged_scores(block: Block, operands: Mapping[str, Any], make: JudgedRows) -> tuple[Any, Any, Any, Any]:
    """Decision values (k, K), y, targets and weights of the rows that `make` selects, on the device of the block."""
    some, y, signed, weight = beside_rows(block, "held-out rows", make)
    map_and_models = (operands["feature_map"], operands["coef"], operands["intercept"])
    scores = values_where_rows_are(block.X[some], *map_and_models, dtype=operands["dtype"])
    signed, weight = (None if part is None else in_float64((part,))[0] for part in (signed, weight))
    return scores, y, signed, weight


def held_out_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums over the held-out rows of a block for c candidates, each with a model for every output.

    Operands: "feature_map"; "models" (v, K, c, m + 1), v versions of each model, the intercept last; "targets", a
    `NewtonTargets` of the K outputs; "folds", row ids to the fold of each row (-1 for none); "fold" (c,), the fold that
    judges each candidate; "dtype"; "loss", the arguments of `newton_loss` for the K outputs; for classes whose
    candidates are calibrated "multipliers" (T,), inverse temperatures.

    Returns
    -------
    dict of ndarray
        "loss" (v, c): the weighted loss, a mean over the K outputs; "weight" (c,). For classes also "right" (v, c), the
        correctly classified rows, and "rows" (c,), all rows, both without class weights. With "multipliers" also
        "label" and "uniform" (v, c, 3, T), the `calibration_sums` of each candidate.
    """
    feature_map, models, targets = operands["feature_map"], operands["models"], operands["targets"]
    judging, folds, values, weight, own_weight = beside_rows(
        block, "rows of folds", FoldedRows(operands["folds"], targets)
    )
    multipliers = operands.get("multipliers", np.zeros(0))
    X, is_of_classes = block.X[judging], targets.n_classes is not None
    if is_on_gpu(X):
        of_rows = (folds, values, weight, own_weight, multipliers if is_of_classes else np.zeros(0))
        return _held_out_on_gpu(X, *of_rows, operands)
    judged = weight[:, None] * (folds[:, None] == operands["fold"])
    losses = np.zeros((models.shape[0], models.shape[2]))
    shape = *losses.shape, 3, len(multipliers)
    calibration = {"label": np.zeros(shape), "uniform": np.zeros(shape)} if len(multipliers) else {}
    right, counted = np.zeros_like(losses), own_weight[:, None] * (folds[:, None] == operands["fold"])
    tiles = sparse_tiles if is_plain_sparse(X, feature_map) else mapped_tiles
    for rows, phi in tiles(X, feature_map, operands["dtype"]):
        scores = candidate_scores(phi, models)
        each = candidate_losses(scores, values[rows], **operands["loss"])
        losses += np.einsum("vnc,nc->vc", each, judged[rows])
        if is_of_classes:
            right += np.einsum("vnc,nc->vc", _are_right(scores, values[rows]), counted[rows])
        for fold in np.unique(folds[rows]) if calibration else ():
            # a row is only counted for the candidates that were fitted without its fold
            of_fold, judging = folds[rows] == fold, operands["fold"] == fold
            chosen = candidate_scores(phi[of_fold], models[:, :, judging]).transpose(0, 1, 3, 2)
            own = values[rows][of_fold]
            if chosen.shape[-1] == 1:
                chosen = np.concatenate([np.zeros_like(chosen), chosen], axis=-1)
                own = np.hstack([-own, own])
            found = calibration_sums(chosen, own.argmax(axis=1), weight[rows][of_fold], multipliers)
            for name, sums in calibration.items():
                sums[:, judging] += found[name]
    totals = {"loss": losses, "weight": judged.sum(axis=0), **calibration}
    return totals | ({"right": right, "rows": counted.sum(axis=0)} if is_of_classes else {})


@dataclass(frozen=True, eq=False)
class FoldedRows:
    """Selects the rows of a block that belong to a judging fold, with their targets and weights.

    Parameters
    ----------
    folds : callable
        Maps row ids to the fold of each row, -1 for none.
    targets : NewtonTargets
    """

    folds: Callable[[np.ndarray], np.ndarray]
    targets: NewtonTargets

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The k rows of a block that belong to a fold: positions, folds, targets (k, K), and weights.

        The last two arrays are the weights with the factors of the classes and without them.
        """
        folds = self.folds(block.held_with)
        # rows of no fold are not mapped
        some = np.flatnonzero(folds >= 0)
        rows = block.without_x(some)
        values, weight = self.targets(rows)
        return some, folds[some], values, weight, rows.weights


def _held_out_on_gpu(
    X: Any, folds: Any, values: Any, weight: Any, own_weight: Any, multipliers: np.ndarray, operands: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """`held_out_block` for rows on a GPU: all is computed there, and the host waits once."""
    xp, models = array_module(X), operands["models"]
    v, K, c, _ = models.shape
    is_fold = xp.asarray(folds)[:, None] == xp.asarray(operands["fold"])
    judged, counted = (xp.asarray(each, dtype=np.float64)[:, None] * is_fold for each in (weight, own_weight))
    sums: dict[str, Any] = {"loss": xp.zeros((v, c)), "weight": judged.sum(axis=0)}
    is_of_classes = operands["targets"].n_classes is not None
    if is_of_classes:
        sums |= {"right": xp.zeros((v, c)), "rows": counted.sum(axis=0)}
    calibration: Any = xp.zeros((v, c, 2, 3, len(multipliers)))
    for rows, phi in mapped_tiles(X, operands["feature_map"], operands["dtype"], v * K * c):
        scores, y = candidate_scores(phi, models), xp.asarray(values[rows], dtype=np.float64)
        sums["loss"] += (candidate_losses(scores, y, **operands["loss"]) * judged[rows]).sum(axis=1)
        if is_of_classes:
            sums["right"] += (_are_right(scores, y) * counted[rows]).sum(axis=1)
        if len(multipliers):
            # (n, v, c, K); two classes get a score of 0 before their single one. A row is only counted for the
            # candidates that were fitted without its fold.
            each = scores.transpose(0, 1, 3, 2)
            each = xp.concat([xp.zeros_like(each), each], axis=3) if K == 1 else each
            codes = y[:, 0] > 0.0 if K == 1 else y.argmax(axis=1)
            by_model = (xp.asarray(weight[rows], dtype=np.float64)[:, None] * is_fold[rows])[:, None]
            by_model = xp.reshape(by_model + xp.zeros((1, v, 1)), (len(y), v * c))
            found = calibration_sums_on_gpu(xp.reshape(each, (len(y), v * c, -1)), codes, by_model, multipliers)
            calibration += xp.reshape(found, calibration.shape)
    if len(multipliers):
        sums |= {"label": calibration[:, :, 0], "uniform": calibration[:, :, 1]}
    return sums_on_host(sums)


def candidate_scores(phi: Any, models: np.ndarray) -> Any:
    """The scores (n, v, K, c) of mapped rows (n, m) by models (v, K, c, m + 1)."""
    return model_scores(phi, models.reshape(-1, models.shape[-1])).reshape(phi.shape[0], *models.shape[:-1])


def _are_right(scores: Any, targets: Any) -> Any:
    """Whether candidates classify each row correctly, (v, n, c); scores (n, v, K, c), targets (n, K) of -1 and 1."""
    if targets.shape[1] == 1:
        right = (scores[:, :, 0] > 0.0) == (targets[:, :1, None] > 0.0)
    else:
        right = scores.argmax(axis=2) == targets.argmax(axis=1)[:, None, None]
    return right.transpose(1, 0, 2)


def candidate_losses(
    scores: Any,
    targets: Any,
    *,
    name: str,
    epsilon: float = 0.1,
    quantiles: np.ndarray | None = None,
) -> Any:
    """The loss of each candidate on each row, a mean over outputs; for the squared error the whole square.

    For classes it is the loss that the models minimise, not the error rate: among a thousand rows the error rate is too
    coarse to distinguish penalties a decade apart.

    Parameters
    ----------
    scores : ndarray of shape (n, v, K, c)
    targets : ndarray of shape (n, K)
        For classes 1 in the column of a row's class and -1 elsewhere; a single column for two classes.
    name, epsilon, quantiles
        The loss, as in `newton_loss`; "softmax" is the log loss of all classes jointly.

    Returns
    -------
    array of shape (v, n, c), float64
        On the device of the scores.
    """
    xp = namespace_of(scores)
    if name == "softmax":
        own = xp.where(targets[:, None, :, None] > 0.0, scores, 0.0).sum(axis=2)
        top = scores.max(axis=2, keepdims=True)
        total = xp.log(xp.exp(scores - top).sum(axis=2)) + top[:, :, 0] if xp is not np else logsumexp(scores, axis=2)
        return (total - own).transpose(1, 0, 2)
    loss = newton_loss(name, epsilon, None if quantiles is None else xp.asarray(quantiles)[:, None])
    # the whole square, so that one minus the loss of standardised targets is the explained share of their variance
    factor = 2.0 if name == "squared_error" else 1.0
    # a candidate that diverges may have an infinite mean exp(f); its loss is clipped to a large finite number
    with np.errstate(over="ignore"):
        losses = (factor * loss.value(targets[:, None, :, None], scores)).clip(None, _INFINITE)
    return losses.mean(axis=2).transpose(1, 0, 2)


def calibration_rows(block: Block, operands: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Decision values (n, K), codes and weights of the held-out rows of a block, on its device.

    Operands: "feature_map", "coef", "intercept", "dtype", "held_out", "targets" (RowTargets).
    """
    make = JudgedRows(operands["held_out"], operands["targets"])
    scores, codes, _, weight = _judged_scores(block, operands, make)
    return _of_each_class(scores), codes, weight


def _of_each_class(scores: Any) -> Any:
    """Decision values (n, K) with one column for each class; two classes have a single one before."""
    # the softmax of 0 and a decision value is the logistic function of the latter
    xp = array_module(scores)
    return xp.concat([xp.zeros_like(scores), scores], axis=1) if scores.shape[1] == 1 else scores


def calibration_sums(scores: Any, codes: Any, weight: Any, multipliers: np.ndarray) -> dict[str, Any]:
    """Sums of the log loss of ``softmax(a * scores)`` and of its first two derivatives in log a, for each a.

    Parameters
    ----------
    scores : ndarray of shape (n, ..., K)
        Decision values; for two classes 0 and the decision value. Axes in between enumerate models.
    codes : ndarray of shape (n,), int64
    weight : ndarray of shape (n,)
    multipliers : ndarray of shape (T,)
        Inverse temperatures a.

    Returns
    -------
    dict
        "label" and "uniform", each of shape (..., 3, T), float64: loss, slope and curvature for the rows' own labels,
        and for labels drawn uniformly, which a prior on the temperature needs; on the device of the scores, which on a
        GPU must have shape (n, K).
    """
    if is_on_gpu(scores):
        found = calibration_sums_on_gpu(scores[:, None], codes, weight[:, None], multipliers)[0]
        return {"label": found[0], "uniform": found[1]}
    n, models = len(codes), scores.shape[1:-1]
    label, uniform = (np.zeros((*models, 3, len(multipliers))) for _ in range(2))
    own = np.take_along_axis(scores, codes.reshape(n, *(1 for _ in scores.shape[1:])), -1)[..., 0]
    # sums over the first axis go through whole arrays, those over a last one of two or three classes number by number
    by_class = np.ascontiguousarray(np.moveaxis(scores, -1, 0))
    for t, multiplier in enumerate(multipliers):
        z = multiplier * by_class
        top = z.max(axis=0)
        is_top, shares = z == top, np.exp(z - top)
        # log sum_k exp(z_k), with the largest terms apart, so that what the others add is not rounded away
        n_top = is_top.sum(axis=0)
        total = np.log1p(np.where(is_top, 0.0, shares).sum(axis=0) / n_top) + np.log(n_top) + top
        p = shares / shares.sum(axis=0)
        mean = (p * z).sum(axis=0)
        curvature = (p * (z - mean) ** 2).sum(axis=0)
        # d/dlog a of log sum_k exp(z_k) is the mean of z under p; its second derivative is this mean plus the variance
        for sums, expected in ((label, multiplier * own), (uniform, z.mean(axis=0))):
            slope = mean - expected
            each = np.stack([total - expected, slope, slope + curvature], axis=-1)
            sums[..., t] = (weight @ each.reshape(n, label[..., 0].size)).reshape(*models, 3)
    return {"label": label, "uniform": uniform}
