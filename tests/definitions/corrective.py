"""What a corrective round reads off rows: losses written out, slopes by differences, conjugates by search, loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from tests.definitions.blocks import map_rows


def loss_of(f: float, y: float, loss: str) -> float:
    if loss == "squared_hinge":
        return max(0.0, 1.0 - y * f) ** 2 / 2.0
    if loss == "log_loss":
        return math.log(1.0 + math.exp(-y * f))
    return (y - f) ** 2 / 2.0


def each(function: Any, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    pairs = zip(scores.ravel(), targets.ravel(), strict=True)
    return np.array([function(float(f), float(y)) for f, y in pairs]).reshape(scores.shape)


def row_losses(scores: np.ndarray, targets: np.ndarray, loss: str) -> np.ndarray:
    return each(lambda f, y: loss_of(f, y, loss), scores, targets)


def row_duals(scores: np.ndarray, targets: np.ndarray, loss: str, step: float = 1e-6) -> np.ndarray:
    """Minus the slope of the loss, by central differences."""
    return each(lambda f, y: (loss_of(f - step, y, loss) - loss_of(f + step, y, loss)) / (2 * step), scores, targets)


def row_curvatures(scores: np.ndarray, targets: np.ndarray, loss: str, step: float = 1e-4) -> np.ndarray:
    """The second difference of the loss; the score must not be within a step of a kink."""

    def second(f: float, y: float) -> float:
        return (loss_of(f - step, y, loss) - 2 * loss_of(f, y, loss) + loss_of(f + step, y, loss)) / step**2

    return each(second, scores, targets)


def dual_values(duals: np.ndarray, targets: np.ndarray, loss: str) -> np.ndarray:
    """The minimum over f of loss(f) + s f, which is -loss*(-s), by a search."""

    def lowest(s: float, y: float) -> float:
        bounds = (-40.0, 40.0)
        found = minimize_scalar(lambda f: loss_of(f, y, loss) + s * f, bounds=bounds, options={"xatol": 1e-10})
        return float(found.fun)

    return each(lowest, duals, targets)


def corrective_sums(X: Any, targets: tuple[np.ndarray, ...], feature_map: Any, round_: Any) -> dict[str, Any]:
    """One row after the other; the change of the Gram matrix of the old columns is one matrix, "change"."""
    rows = np.column_stack([map_rows(X, feature_map), np.ones(X.shape[0])])
    width, (y, weight, held) = rows.shape[1], targets
    K = y.shape[1]
    sums: dict[str, Any] = {name: np.zeros(K) for name in ("loss", "dual", "curvature", "absolutes", "squares")}
    sums |= {"support": np.zeros(K), "gradient": np.zeros((K, width)), "held_out": np.zeros(2)}
    sums |= {"cross": np.zeros((width, len(round_.new))), "change": np.zeros((len(round_.old),) * 2)}
    for i, phi in enumerate(rows):
        sums["held_out"][1] += held[i]
        curved = np.zeros(K)
        for k in range(K):
            f, t = math.fsum(round_.coefficients[k] * phi), float(y[i, k])
            value = loss_of(f, t, round_.loss)
            dual, curved[k] = slope_and_curvature(f, t, round_.loss)
            sums["held_out"][0] += held[i] * value
            sums["loss"][k] += weight[i] * value
            # what Fenchel's inequality leaves of the loss, with equality at the slope
            sums["dual"][k] += weight[i] * (value + dual * f)
            sums["curvature"][k] += weight[i] * curved[k]
            sums["absolutes"][k] += weight[i] * abs(dual)
            # a row of weight w is w rows
            sums["squares"][k] += weight[i] * dual**2
            sums["support"][k] += weight[i] * (dual != 0.0)
            sums["gradient"][k] += weight[i] * dual * phi
        now = curved[0] if round_.active else 1.0
        sums["cross"] += weight[i] * now * np.outer(phi, phi[round_.new])
        before = 0.0
        if round_.previous is not None:
            f = math.fsum(round_.previous[0] * phi)
            before = slope_and_curvature(f, float(y[i, 0]), round_.loss)[1]
        sums["change"] += weight[i] * (now - before) * np.outer(phi[round_.old], phi[round_.old])
    return sums


def slope_and_curvature(f: float, y: float, loss: str) -> tuple[float, float]:
    """-loss'(f) and loss''(f)."""
    if loss == "squared_hinge":
        return (y * (1.0 - y * f), 1.0) if y * f < 1.0 else (0.0, 0.0)
    if loss == "log_loss":
        share = 1.0 / (1.0 + math.exp(y * f))
        return y * share, share * (1.0 - share)
    return y - f, 1.0
