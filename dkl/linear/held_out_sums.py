"""How well linear models predict rows that they have not seen, as sums over a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.kernels.normal_equations import mapped_tiles
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of


def held_out_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums over the held-out rows of a block for c candidates, each with a model for every output.

    Operands: "feature_map"; "models" (v, K, c, m + 1), v versions of each model, the intercept last; "targets", a
    `NewtonTargets` of the K outputs; "folds", row ids to the fold of each row (-1 for none); "fold" (c,), the fold that
    judges each candidate; "dtype".

    Returns
    -------
    dict of ndarray
        "loss" (v, c): the weighted squared hinge of classes, or squared errors of targets, a mean over the K outputs;
        "weight" (c,).
    """
    folds = operands["folds"](block.row_id)
    chosen = np.flatnonzero(folds >= 0)
    block, folds = block.rows(chosen), folds[chosen]
    feature_map, models, targets = operands["feature_map"], operands["models"], operands["targets"]
    values, weight = targets(block)
    judged = weight[:, None] * (folds[:, None] == operands["fold"])
    losses = np.zeros((models.shape[0], models.shape[2]))
    for rows, phi in mapped_tiles(block.X, feature_map, operands["dtype"]):
        found = candidate_losses(phi, values[rows], models, classes=targets.n_classes is not None)
        losses += np.einsum("vnc,nc->vc", found, judged[rows])
    return {"loss": losses, "weight": judged.sum(axis=0)}


def candidate_losses(phi: np.ndarray, targets: np.ndarray, models: np.ndarray, *, classes: bool) -> np.ndarray:
    """The loss of each candidate on a row, a mean over outputs: the squared hinge of classes, or the squared error.

    For classes it is the loss that the models minimise, not the share of rows given their class: that one jumps by a
    row, so that among a thousand rows it cannot tell penalties a decade apart.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    targets : ndarray of shape (n, K)
        For classes 1 at a row's class and -1 elsewhere; one column for two classes.
    models : ndarray of shape (v, K, c, m + 1)
    classes : bool

    Returns
    -------
    ndarray of shape (v, n, c), float64
    """
    v, K, c, width = models.shape
    flat = models.reshape(-1, width)
    scores = (phi @ flat[:, :-1].T.astype(phi.dtype) + flat[:, -1]).reshape(len(phi), v, K, c)
    known = targets[:, None, :, None]
    # one minus the whole square of an error of standardised targets is the share of their variance that is explained
    name, factor = ("squared_hinge", 1.0) if classes else ("squared_error", 2.0)
    losses = factor * loss_of(name).value(known, scores)
    return np.mean(losses, axis=2).transpose(1, 0, 2)
