"""The margin game by definition: projections and values by general solvers, block functions as loops over rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dkl.features.feature_map import FeatureMap
from dkl.methods.game.sums import Trials
from tests.definitions import blocks, losses


def feasible(
    values: np.ndarray, signs: np.ndarray, upper: float, shifts: np.ndarray, *, exact: bool = True
) -> np.ndarray:
    out = np.zeros(values.shape)
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            alpha = float(values[i, k])
            if exact:
                alpha = min(max(alpha - shifts[0][k] * signs[i, k], 0.0), upper)
            else:
                for shift in shifts:
                    alpha = min(max(alpha, 0.0), upper) - shift[k] * signs[i, k]
            out[i, k] = alpha
    return out


def balance(values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float, multiplier: float) -> float:
    """sum_i c_i y_i clip(values_i - mu y_i, 0, upper) of one dual block."""
    return math.fsum(
        c * y * min(max(a - multiplier * y, 0.0), upper) for a, y, c in zip(values, signs, weight, strict=True)
    )


def breakpoint_sums(
    values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float, edges: np.ndarray
) -> dict[str, np.ndarray]:
    K, size = values.shape[1], edges.shape[1] + 1
    sums: dict[str, np.ndarray] = {name: np.zeros((K, size)) for name in ("slopes", "moments", "breaks")}
    sums["positive"], sums["ends"] = np.zeros(K), np.full((2, K), -np.inf)
    for k in range(K):
        for a, y, c in zip(values[:, k], signs[:, k], weight, strict=True):
            low = a - upper if y > 0 else -a
            for point, change in ((low, c), (low + upper, -c)):
                place = sum(1 for edge in edges[k] if edge < point)
                sums["slopes"][k, place] += change
                sums["moments"][k, place] += change * point
                sums["breaks"][k, place] += c > 0
            if c > 0:
                sums["ends"][:, k] = np.maximum(sums["ends"][:, k], [-low, low + upper])
            sums["positive"][k] += c * (y > 0)
    return sums


def row_scores(X: Any, feature_map: FeatureMap, coefficients: np.ndarray, dtype: str = "float64") -> np.ndarray:
    features = blocks.map_rows(X, feature_map)
    return np.array([[math.fsum(row * column) for column in coefficients.T] for row in features])


def primal_losses(
    scores: np.ndarray, signs: np.ndarray, weight: np.ndarray, trials: Trials, *, loss: str
) -> np.ndarray:
    n, K = scores.shape
    total = np.zeros((K, len(trials.scales), trials.intercepts.shape[1]))
    for k in range(K):
        for s, scale in enumerate(trials.scales):
            for b, intercept in enumerate(trials.intercepts[k]):
                for i in range(n):
                    total[k, s, b] += weight[i] * losses.value(signs[i, k], scale * scores[i, k] + intercept, loss)
    return total


def project_dual(values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float) -> np.ndarray:
    """The nearest feasible point of each column, by a general solver."""
    columns = []
    for a, y in zip(values.T, signs.T, strict=True):
        found = minimize(
            lambda alpha, a=a: 0.5 * weight @ (alpha - a) ** 2,
            np.full(len(a), 0.5 * min(upper, 1.0)),
            jac=lambda alpha, a=a: weight * (alpha - a),
            bounds=[(0.0, upper)] * len(a),
            constraints=[
                {
                    "type": "eq",
                    "fun": lambda alpha, y=y: (weight * y) @ alpha,
                    "jac": lambda alpha, y=y: weight * y,
                }
            ],
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1_000},
        )
        columns.append(found.x)
    return np.stack(columns, axis=1)


def alternate_dual(
    values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float, rounds: int = 10
) -> np.ndarray:
    """Algorithm 3, one column after the other, on rows that are repeated by whole weights."""
    columns = []
    for a, y in zip(values.T, signs.T, strict=True):
        alpha, sign = np.repeat(a, weight.astype(int)), np.repeat(y, weight.astype(int))
        for _ in range(rounds):
            alpha = np.clip(alpha, 0.0, upper)
            alpha = alpha - (sign @ alpha) / len(alpha) * sign
        columns.append(alpha[np.cumsum(weight.astype(int)) - 1])
    return np.stack(columns, axis=1)


def game_value(features: np.ndarray, signs: np.ndarray, C: float, *, loss: str = "hinge") -> float:
    """The value of the game on a finite set: the best alpha against the worst of the kernels, by a general solver.

    `features` is (parts, n, D), `signs` (n, K): maximise sum alpha - s/2 (less |alpha|^2 / (4 C) for the squared hinge,
    whose dual has C' = 2 C) subject to s >= v_t(alpha) for every t.
    """
    parts, n, D = features.shape
    K = signs.shape[1]
    pulled = np.stack([signs[:, k, None] * features[part] for part in range(parts) for k in range(K)])
    pulled = pulled.reshape(parts, K, n, D)
    ridge = 0.0 if loss == "hinge" else 1.0 / (2.0 * C)

    def potentials(z: np.ndarray) -> np.ndarray:
        return np.square(np.einsum("pknd,nk->pkd", pulled, z[:-1].reshape(n, K))).sum(axis=(0, 1))

    def slopes(z: np.ndarray) -> np.ndarray:
        sums = np.einsum("pknd,nk->pkd", pulled, z[:-1].reshape(n, K))
        gradient = 2.0 * np.einsum("pkd,pknd->dnk", sums, pulled).reshape(D, n * K)
        return np.hstack([-gradient, np.ones((D, 1))])

    balances = np.zeros((K, n * K + 1))
    for k in range(K):
        balances[k, :-1].reshape(n, K)[:, k] = signs[:, k]
    found = minimize(
        lambda z: 0.5 * z[-1] - z[:-1].sum() + 0.5 * ridge * z[:-1] @ z[:-1],
        np.append(np.full(n * K, 0.1 * C), 1.0),
        jac=lambda z: np.append(ridge * z[:-1] - 1.0, 0.5),
        bounds=[(0.0, C if loss == "hinge" else None)] * (n * K) + [(0.0, None)],
        constraints=[
            {"type": "ineq", "fun": lambda z: z[-1] - potentials(z), "jac": slopes},
            {"type": "eq", "fun": lambda z: balances @ z, "jac": lambda z: balances},
        ],
        method="SLSQP",
        options={"ftol": 1e-9, "maxiter": 500},
    )
    assert found.success, found.message
    return -float(found.fun)
