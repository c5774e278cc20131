"""What a gradient in frequencies and weights means, written as loops over rows, models and frequencies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.definitions import losses


def expansion_gradient(
    X: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray | None,
    feature_map: Any,
    expansion: Any,
    *,
    loss: str,
    alpha: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of scaled rows X and a dense matrix of frequencies in `expansion.entries`."""
    W, coef, intercept = expansion.entries, expansion.coef, expansion.intercept
    m, n, pairs = len(W), len(X), feature_map.columns_a_frequency == 2
    dW, dcoef, dintercept = np.zeros(W.shape), alpha * coef, np.zeros(len(intercept))
    for i in range(n):
        share = (1.0 if weight is None else weight[i]) / n
        for k in range(len(intercept)):
            score, turns = float(intercept[k]), np.zeros(m)
            features = np.zeros(coef.shape[1])
            for j in range(m):
                a = feature_map.amplitudes[j]
                z = float(W[j] @ X[i]) + (0.0 if feature_map.phases is None else feature_map.phases[j])
                features[j] = a * math.cos(z)
                turns[j] = -coef[k, j] * a * math.sin(z)
                if pairs:
                    features[m + j] = a * math.sin(z)
                    turns[j] += coef[k, m + j] * a * math.cos(z)
            score += float(features @ coef[k])
            slope = losses.slope(float(targets[i, k]), score, loss)
            dcoef[k] += share * slope * features
            dintercept[k] += share * slope
            dW += share * slope * turns[:, None] * X[i]
    return dW, dcoef, dintercept


def adam_update(
    values: np.ndarray, moments: tuple[np.ndarray, np.ndarray], gradient: np.ndarray, rates: np.ndarray, *, step: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 1 of Kingma & Ba 2015, number by number: what the three arrays are after the step."""
    out = np.array([values, *moments], dtype=np.float64)
    for i, g in enumerate(gradient):
        m, v = 0.9 * moments[0][i] + 0.1 * g, 0.999 * moments[1][i] + 0.001 * g**2
        move = m / (1 - 0.9**step) / (math.sqrt(v / (1 - 0.999**step)) + 1e-8)
        out[:, i] = values[i] - rates[i] * move, m, v
    return out[0], out[1], out[2]
