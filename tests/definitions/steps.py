"""Steps, hinges and their products by definition: one row, one atom, one factor at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.definitions.blocks import map_rows


def atom(x: np.ndarray, projection: Any, number: int) -> float:
    """The product of the factors of one atom at one row: 1[x_j > t], or max(0, min(x_j, high_j) - t)."""
    value = 1.0
    for j, t, kind in zip(
        projection.columns[number], projection.thresholds[number], projection.kinds[number], strict=True
    ):
        if j >= 0:
            x_j = float(x[j])
            value *= float(x_j > t) if kind == 0 else max(0.0, min(x_j, float(projection.high[j])) - t)
    return value


def atoms(X: Any, feature_map: Any) -> np.ndarray:
    """Amplitude times atom, (n, m); of several maps side by side, whose other features are those of `map_rows`."""
    rows = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    if feature_map.activation == "combined":
        return np.hstack([atoms(rows, part) for part in feature_map.projection.maps]) * feature_map.amplitudes
    if feature_map.activation != "steps":
        return map_rows(rows, feature_map)
    steps = feature_map.projection
    return np.array(
        [[a * atom(x, steps, i) for i, a in enumerate(feature_map.amplitudes)] for x in rows.astype(np.float64)]
    )


def code(x: float, edges: np.ndarray, n_edges: int) -> int:
    """How many of the first `n_edges` edges lie below x."""
    return sum(x > edges[b] for b in range(n_edges))


def decrease(q: np.ndarray, p: np.ndarray, s: np.ndarray, h: np.ndarray, penalty: float) -> float:
    """(s'r)^2 / (r'Hr + nu) of r, what is left of column q beside its parent p in the inner product of h."""
    r = q - p * (np.sum(h * q * p) / np.sum(h * p * p))
    return float(sum(np.sum(s[:, k] * r) ** 2 for k in range(s.shape[1])) / (np.sum(h * r * r) + penalty))
