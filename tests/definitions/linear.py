"""The definitions behind the linear models' block sums and solvers, written as loops under the same names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from tests.definitions import losses


def loss_sums(phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Any, name: str) -> Any:
    """Loss at every step, gradient at the first, and which rows have curvature there."""
    models, steps = trial.steps.shape
    total, gradient = np.zeros((models, steps)), np.zeros(trial.coefficients.shape)
    active = np.zeros(targets.shape, bool)
    weight = np.broadcast_to(weight[:, None] if weight.ndim == 1 else weight, targets.shape)
    for i, row in enumerate(phi.astype(float)):
        for k in range(models):
            for t in range(steps):
                score = row @ (trial.coefficients[k] + trial.steps[k, t] * trial.directions[k])
                total[k, t] += weight[i, k] * losses.value(targets[i, k], score, name)
            score = row @ (trial.coefficients[k] + trial.steps[k, 0] * trial.directions[k])
            gradient[k] += weight[i, k] * losses.slope(targets[i, k], score, name) * row
            active[i, k] = losses.curvature(targets[i, k], score, name) > 0.0
    return total, gradient, active


def hessian_sum(phi: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The whole of sum_i weight_i phi_i phi_i^T."""
    total = np.zeros((phi.shape[1], phi.shape[1]))
    for i, row in enumerate(phi.astype(float)):
        total += weight[i] * np.outer(row, row)
    return total


def newton_sums(phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Any, name: str) -> dict[str, Any]:
    """All sums of a pass over rows that are mapped and end in a one."""
    losses, gradient, active = loss_sums(phi, targets, weight, trial, name)
    curvature = 2.0 if name == "squared_hinge" else 1.0
    weight = np.broadcast_to(weight[:, None] if weight.ndim == 1 else weight, targets.shape)
    hessian = [curvature * hessian_sum(phi, weight[:, k] * active[:, k]) for k in range(targets.shape[1])]
    return {"loss": losses, "gradient": gradient, "hessian": np.array(hessian)}


def linear_optimum(phi: np.ndarray, target: np.ndarray, weight: np.ndarray, alpha: float, name: str) -> np.ndarray:
    """Coefficients and intercept that minimise the penalised mean loss, by a general solver."""

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = phi @ w[:-1] + w[-1]
        rows = range(len(phi))
        value = sum(weight[i] * losses.value(target[i], scores[i], name) for i in rows) / weight.sum()
        pull = np.array([weight[i] * losses.slope(target[i], scores[i], name) for i in rows]) / weight.sum()
        gradient = np.append(phi.T @ pull + alpha * w[:-1], pull.sum())
        return value + 0.5 * alpha * w[:-1] @ w[:-1], gradient

    start = np.zeros(phi.shape[1] + 1)
    return minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2_000}).x


def log_loss(scores: np.ndarray, code: int, multiplier: float) -> float:
    """Minus the log probability of a row's class under softmax(multiplier * scores)."""
    z = [multiplier * score for score in scores]
    top = max(z)
    return top + math.log(sum(math.exp(one - top) for one in z)) - z[code]


def calibration_sums(
    scores: np.ndarray, codes: np.ndarray, weight: np.ndarray, multipliers: np.ndarray
) -> dict[str, np.ndarray]:
    """The log loss at each multiplier, against the rows' labels and against uniform ones."""
    K = scores.shape[1]
    label, uniform = np.zeros(len(multipliers)), np.zeros(len(multipliers))
    for t, multiplier in enumerate(multipliers):
        for i, row in enumerate(scores):
            label[t] += weight[i] * log_loss(row, codes[i], multiplier)
            uniform[t] += weight[i] * sum(log_loss(row, k, multiplier) for k in range(K)) / K
    return {"label": label, "uniform": uniform}


def best_multiplier(scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> float:
    """The multiplier of least log loss, where 2 / (N + 2) of each row's weight counts for all labels alike."""
    doubt = 2.0 / (weight.sum() + 2.0)

    def objective(log_a: float) -> float:
        sums = calibration_sums(scores, codes, weight, np.exp([log_a]))
        return float((1.0 - doubt) * sums["label"][0] + doubt * sums["uniform"][0])

    return float(np.exp(minimize_scalar(objective, bounds=(-13.0, 13.0), method="bounded", options={"xatol": 1e-9}).x))


def held_out_scores(phi: np.ndarray, y: np.ndarray, weight: np.ndarray, candidates: Any, state: Any) -> Any:
    """What the rows of each fold say of the candidates that have not seen them, where they stand and a step on."""
    K, A, F = candidates.n_outputs, len(candidates.alphas), candidates.folds.count
    folds = candidates.folds(np.arange(len(phi)))
    loss, total = np.zeros((2, A * F)), np.zeros(A * F)
    for i, row in enumerate(phi):
        for a in range(A):
            if folds[i] < 0:
                continue
            c = a * F + folds[i]
            total[c] += weight[i]
            for version, models in enumerate((state.coefficients, state.proposal)):
                scores = [float(row @ models[k * A * F + c]) for k in range(K)]
                if np.ndim(y[i]):
                    found = float(np.mean([(scores[k] - y[i, k]) ** 2 for k in range(K)]))
                else:
                    signs = [1.0 if y[i] == (1 if K == 1 else k) else -1.0 for k in range(K)]
                    found = float(np.mean([max(0.0, 1.0 - signs[k] * scores[k]) ** 2 for k in range(K)]))
                loss[version, c] += weight[i] * found
    return {"loss": loss, "weight": total}
