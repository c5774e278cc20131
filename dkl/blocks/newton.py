"""Loss, gradient and Hessian of a linear model on mapped rows, as sums over a block: what a Newton step needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import blas

from dkl.blocks.block import Block
from dkl.blocks.device import on_host
from dkl.blocks.maps import map_rows
from dkl.features.feature_map import FeatureMap

NewtonLoss = Literal["squared_hinge", "squared_error"]

# small enough that a tile of some thousand features stays far below 64 MiB, large enough for BLAS
_TILE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Trial:
    """Where a pass evaluates g linear models: at ``coefficients + steps[:, j] * directions`` for every j.

    Parameters
    ----------
    coefficients, directions : ndarray of shape (g, m + 1), float64
        One model a row; the last entry is the intercept.
    steps : ndarray of shape (g, T), float64
        Gradient and Hessian are taken at ``steps[:, 0]``, the loss at all of them.
    """

    coefficients: np.ndarray
    directions: np.ndarray
    steps: np.ndarray

    @property
    def point(self) -> np.ndarray:
        """The g models that gradient and Hessian belong to."""
        return self.coefficients + self.steps[:, :1] * self.directions


def design_tiles(X: Any, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, np.ndarray]]:
    """Row tiles of the design matrix: mapped rows with a last column of ones."""
    for start in range(0, X.shape[0], _TILE_ROWS):
        rows = slice(start, min(start + _TILE_ROWS, X.shape[0]))
        phi = np.ones((rows.stop - rows.start, feature_map.n_features + 1), dtype)
        phi[:, :-1] = on_host(map_rows(X[rows], feature_map, dtype))
        yield rows, phi


def loss_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Trial, loss: NewtonLoss
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums over rows of the loss at every step and of its gradient, and which rows have curvature.

    The squared hinge is ``max(0, 1 - y f)^2`` for targets in {-1, +1}, the squared error ``(y - f)^2 / 2``.

    Parameters
    ----------
    phi : ndarray of shape (n, m + 1)
    targets : ndarray of shape (n, g)
    weight : ndarray of shape (n,)
    trial : Trial
    loss : {"squared_hinge", "squared_error"}

    Returns
    -------
    loss : ndarray of shape (g, T), float64
    gradient : ndarray of shape (g, m + 1), float64
    active : ndarray of shape (n, g), bool
    """
    wide = phi.astype(np.float64)
    start, move = wide @ trial.coefficients.T, wide @ trial.directions.T
    scores = start[:, :, None] + move[:, :, None] * trial.steps
    slack = _slack(scores, targets[:, :, None], loss)
    curvature = _curvature(loss)
    losses = 0.5 * curvature * np.einsum("n,ngt->gt", weight, slack**2)
    pull = curvature * weight[:, None] * slack[:, :, 0] * (targets if loss == "squared_hinge" else 1.0)
    active = slack[:, :, 0] > 0 if loss == "squared_hinge" else np.ones(targets.shape, bool)
    return losses, -(pull.T @ wide), active


def hessian_sum(phi: np.ndarray, weight: np.ndarray, columns: slice) -> np.ndarray:
    """Rows `columns` of the upper triangle of sum_i weight_i phi_i phi_i^T, from its diagonal on.

    Returns
    -------
    ndarray of shape (columns.stop - columns.start, m + 1 - columns.start)
        Entry (0, 0) is the diagonal entry ``columns.start``; what lies below the diagonal is not filled when
        `columns` covers everything (half the work), and must not be read in any case.
    """
    weighted = phi * np.sqrt(weight).astype(phi.dtype)[:, None]
    if columns.start == 0 and columns.stop == phi.shape[1]:
        rank_k = blas.ssyrk if phi.dtype == np.float32 else blas.dsyrk
        return rank_k(1.0, weighted.T)
    return weighted[:, columns].T @ weighted[:, columns.start :]


def newton_sums(
    X: Any, targets: np.ndarray, weight: np.ndarray, feature_map: FeatureMap, trial: Trial, options: NewtonOptions
) -> dict[str, np.ndarray]:
    """The sums of a Newton pass over rows X: "loss" and "gradient" (if asked for) and "hessian" (likewise).

    Returns
    -------
    dict of ndarray
        "loss" (g, T) and "gradient" (g, m + 1); "hessian" (h, rows, m + 1 - first row) with h = 1 for a Hessian that
        the models share (squared error, or the squared hinge where every row is active), else h = g.
    """
    sums: dict[str, np.ndarray] = {}
    for rows, phi in design_tiles(X, feature_map, options.dtype):
        for name, value in _tile_sums(phi, targets[rows], weight[rows], trial, options).items():
            if name in sums:
                sums[name] += value
            else:
                sums[name] = np.asarray(value, dtype=np.float64)
    return sums


@dataclass(frozen=True)
class NewtonOptions:
    """What a Newton pass computes beside the loss.

    Parameters
    ----------
    loss : {"squared_hinge", "squared_error"}
    columns : (int, int) or None
        The rows of the Hessian to sum, or None for no Hessian.
    shared : bool
        One Hessian for all models.
    first_order : bool
        Loss and gradient too (one record of a pass has them, the others are further tiles of the Hessian).
    dtype : {"float32", "float64"}
        Of the mapped rows and of the Hessian's products; scores and gradients are float64.
    """

    loss: NewtonLoss
    columns: tuple[int, int] | None = None
    shared: bool = True
    first_order: bool = True
    dtype: str = "float32"


def newton_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`newton_sums` of a block: the function of a Newton pass's records.

    Operands: "feature_map", "trial", "options", "targets" (callable Block -> (n_b, g) targets and (n_b,) weights).
    """
    targets, weight = operands["targets"](block)
    feature_map, trial, options = operands["feature_map"], operands["trial"], operands["options"]
    return newton_sums(block.X, targets, weight, feature_map, trial, options)


@dataclass(frozen=True, eq=False)
class NewtonTargets:
    """Targets and weights of a block for g linear models.

    Parameters
    ----------
    models : ndarray of shape (g,), int64
        Class codes set against the rest, or columns of regression targets.
    n_classes : int or None
        K for classes, None for regression.
    class_weight : ndarray of shape (K,) or None
    center, scale : ndarray of shape (t,) or None
        Regression targets become ``(y - center) / scale``.
    kept : callable or None
        Row ids to a mask of the rows that count; None for all.
    """

    models: np.ndarray
    n_classes: int | None
    class_weight: np.ndarray | None = None
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    kept: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        weight = block.weights
        if self.kept is not None:
            weight = weight * self.kept(block.row_id)
        if self.n_classes is not None:
            if self.class_weight is not None:
                weight = weight * self.class_weight[np.asarray(block.y)]
            return np.where(np.asarray(block.y)[:, None] == self.models, 1.0, -1.0), weight
        targets = np.asarray(block.y, dtype=np.float64).reshape(block.n_rows, -1)
        center = 0.0 if self.center is None else self.center
        scale = 1.0 if self.scale is None else self.scale
        return ((targets - center) / scale)[:, self.models], weight


def _tile_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Trial, options: NewtonOptions
) -> dict[str, np.ndarray]:
    losses, gradient, active = loss_sums(phi, targets, weight, trial, options.loss)
    sums = {"loss": losses, "gradient": gradient} if options.first_order else {}
    if options.columns is not None:
        sums["hessian"] = _tile_hessians(phi, weight, active, slice(*options.columns), options)
    return sums


def _tile_hessians(
    phi: np.ndarray, weight: np.ndarray, active: np.ndarray, columns: slice, options: NewtonOptions
) -> np.ndarray:
    curvature = _curvature(options.loss)
    if options.shared:
        return curvature * hessian_sum(phi, weight, columns)[None].astype(np.float64)
    return np.stack([curvature * hessian_sum(phi[rows], weight[rows], columns).astype(np.float64) for rows in active.T])


def _slack(scores: np.ndarray, targets: np.ndarray, loss: NewtonLoss) -> np.ndarray:
    return np.maximum(0.0, 1.0 - targets * scores) if loss == "squared_hinge" else targets - scores


def _curvature(loss: NewtonLoss) -> float:
    return 2.0 if loss == "squared_hinge" else 1.0
