"""Loss, gradient and Hessian of the multinomial log loss on mapped rows, as sums over a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.kernels.newton.gram import GramSum, packed_size
from dkl.kernels.normal_equations import (
    NewtonOptions,
    TrialSteps,
    mapped_tiles,
    model_scores,
    weighted_sums,
)
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import SOFTMAX


def class_pairs(n_classes: int) -> list[tuple[int, int]]:
    """Pairs k <= l of classes: the blocks of the upper triangle of the Hessian, row after row."""
    return [(k, other) for k in range(n_classes) for other in range(k, n_classes)]


def softmax_sums(
    X: Rows, codes: np.ndarray, weight: np.ndarray, feature_map: Any, trial: TrialSteps, options: NewtonOptions
) -> dict[str, np.ndarray]:
    """The sums of a Newton pass over rows X for the log loss of K classes, whose scores are K models.

    Parameters
    ----------
    X : array of shape (n, d)
    codes : ndarray of shape (n,), int64
    weight : ndarray of shape (n,)
    feature_map : FeatureMap
        m features.
    trial : TrialSteps
        Of K models, which all take the same step: `steps` is (1, T).
    options : NewtonOptions

    Returns
    -------
    dict of ndarray
        "loss" (1, T) and "gradient" (K, m + 1), if asked for; "hessian" (P, size), likewise, with the packed columns of
        one symmetric block for each of the P pairs of `class_pairs`.
    """
    n_classes, width = trial.coefficients.shape
    pairs = class_pairs(n_classes)
    sums: dict[str, np.ndarray] = {}
    if options.first_order:
        sums = {"loss": np.zeros(trial.steps.shape), "gradient": np.zeros((n_classes, width))}
    if options.columns is not None:
        sums["hessian"] = np.zeros((len(pairs), packed_size(*options.columns)))
    hessians = [] if options.columns is None else [GramSum(options.columns, out) for out in sums["hessian"]]
    for rows, phi in mapped_tiles(X, feature_map, options.dtype):
        wide, own, labels = phi.astype(np.float64), weight[rows], codes[rows]
        start, move = (model_scores(wide, models) for models in (trial.coefficients, trial.directions))
        scores = start + trial.steps[0, 0] * move
        if options.first_order:
            for t, step in enumerate(trial.steps[0]):
                sums["loss"][0, t] += own @ SOFTMAX.value(labels, start + step * move)
            slope = own[:, None] * SOFTMAX.slope(labels, scores)
            sums["gradient"] += weighted_sums(slope.T, wide)
        # Every block of the Hessian is a weighted product of the same mapped rows, its weights of either sign.
        for (k, other), hessian in zip(pairs if hessians else (), hessians, strict=True):
            hessian.add(phi, own * SOFTMAX.curvature(scores, k, other))
    for hessian in hessians:
        hessian.finish()
    return sums


def softmax_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`softmax_sums` of a block: the function of a Newton pass's records.

    Operands: "feature_map", "trial", "options", "targets" (a `NewtonTargets`, for the weights).
    """
    _, weight = operands["targets"](block)
    counted = np.flatnonzero(weight)
    if len(counted) < block.n_rows:
        block, weight = block.rows(counted), weight[counted]
    codes, options = np.asarray(block.y), operands["options"]
    return softmax_sums(block.X, codes, weight, operands["feature_map"], operands["trial"], options)
