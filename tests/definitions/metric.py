"""Rounds of a learned metric by definition: one row, one landmark, one column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.features.scaling import Scaler
from dkl.kernels.scale import scale_rows
from dkl.protocols.block import Block


def rows_of(block: Block, scaler: Scaler | None) -> np.ndarray:
    """Scaled rows, dense."""
    scaled = scale_rows(block.X, scaler, "float64")
    return scaled.toarray() if hasattr(scaled, "toarray") else np.asarray(scaled)


def moved(x: np.ndarray, R: np.ndarray) -> np.ndarray:
    """R'x."""
    return R * x if R.ndim == 1 else R.T @ x


def system_block(block: Block, operands: Any) -> dict[str, np.ndarray]:
    """Sums of k k', k y and y^2, of rows that are learned from and of those that judge."""
    model = operands["model"]
    y, weight, held = operands["targets"](block)
    n_landmarks, K = len(model.landmarks), y.shape[1]
    sums = {"gram": np.zeros((n_landmarks, n_landmarks)), "gradient": np.zeros((n_landmarks, K))}
    sums |= {f"held_{name}": np.zeros_like(value) for name, value in sums.items()}
    squares, judged = np.zeros(K), 0.0
    for i, x in enumerate(rows_of(block, model.scaler)):
        k = np.array(
            [
                model.kernel.kernel(moved(x, model.metric)[None], moved(z, model.metric)[None])[0, 0]
                for z in model.landmarks
            ]
        )
        for prefix, own in (("", weight[i]), ("held_", held[i])):
            sums[f"{prefix}gram"] += own * np.outer(k, k)
            sums[f"{prefix}gradient"] += own * np.outer(k, y[i])
        squares += held[i] * y[i] ** 2
        judged += held[i]
    return {**sums, "held_squares": squares, "held_weight": np.array(judged)}


def slope_block(block: Block, operands: Any) -> dict[str, np.ndarray]:
    """Sums of grad f grad f' by scaled columns, each gradient by central differences of the model."""
    model, step = operands["model"], 1e-5
    _, weight, _ = operands["targets"](block)
    Z = np.array([moved(z, model.metric) for z in model.landmarks])
    d = model.landmarks.shape[1]
    products = np.zeros((d, d))
    for i, x in enumerate(rows_of(block, model.scaler)):
        gradients = np.zeros((d, len(model.coefficients)))
        for c in range(d):
            ends = []
            for sign in (1.0, -1.0):
                at = x.copy()
                at[c] += sign * step
                ends.append(model.coefficients @ model.kernel.kernel(moved(at, model.metric)[None], Z)[0])
            gradients[c] = (ends[0] - ends[1]) / (2.0 * step)
        products += weight[i] * gradients @ gradients.T
    return {"products": np.diagonal(products).copy() if model.metric.ndim == 1 else products}
