"""Steps, hinges and their products by definition: one row, one atom, one factor at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.kernels.maps import map_rows
from dkl.protocols.block import Block
from tests.definitions import losses


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
        return map_rows(rows, feature_map, "float64")
    steps = feature_map.projection
    return np.array(
        [[a * atom(x, steps, i) for i, a in enumerate(feature_map.amplitudes)] for x in rows.astype(np.float64)]
    )


def code(x: float, edges: np.ndarray, n_edges: int) -> int:
    """How many of the first `n_edges` edges lie below x."""
    return sum(x > edges[b] for b in range(n_edges))


def refit_block(block: Block, operands: Any) -> dict[str, np.ndarray]:
    """sum h phi phi_new^T and sum s phi_new over the rows that are learned from."""
    task, phi = operands["task"], atoms(block.X, operands["feature_map"])
    y, weight, _ = operands["targets"](block)
    m, K, loss = phi.shape[1], y.shape[1], losses.name_of(task.loss)
    gram, gradient = np.zeros((m, m)), np.zeros((m, K))
    for i in range(len(phi)):
        f = [float(task.coefficients[k] @ phi[i]) for k in range(K)]
        # one system for all models
        h = weight[i] * max(losses.curvature(y[i, k], f[k], loss) for k in range(K))
        gram += h * np.outer(phi[i], phi[i])
        for k in range(K):
            gradient[:, k] -= weight[i] * losses.slope(y[i, k], f[k], loss) * phi[i]
    return {"gram": gram[:, task.new], "gradient": gradient[task.new]}


def search_block(block: Block, operands: Any) -> dict[str, np.ndarray]:
    """Held-out losses of the trials; sums by parent, column and bin, and of candidates, at the slopes of the last."""
    task, phi = operands["task"], atoms(block.X, operands["feature_map"])
    X = block.X.toarray() if hasattr(block.X, "toarray") else np.asarray(block.X)
    y, weight, held = operands["targets"](block)
    bins, K, loss = task.bins, y.shape[1], losses.name_of(task.loss)
    d, most = bins.edges.shape
    psi = np.zeros((len(phi), 0)) if task.candidates is None else atoms(block.X, task.candidates)
    cross, gradient = np.zeros((phi.shape[1] + psi.shape[1], psi.shape[1])), np.zeros((phi.shape[1] + psi.shape[1], K))
    histograms, judged = np.zeros((len(task.parents), d, most, 2 + K)), np.zeros(len(task.trials))
    for i in range(len(phi)):
        for number, trial in enumerate(task.trials):
            for k in range(K):
                judged[number] += held[i] * losses.value(y[i, k], float(trial[k] @ phi[i]), loss)
        if weight[i] == 0.0:
            continue
        f = [float(task.trials[-1, k] @ phi[i]) for k in range(K)]
        s = [-weight[i] * losses.slope(y[i, k], f[k], loss) for k in range(K)]
        curved = f if task.base is None else [float(task.base[k] @ phi[i]) for k in range(K)]
        h = weight[i] * max(losses.curvature(y[i, k], curved[k], loss) for k in range(K))
        both = np.append(phi[i], psi[i])
        cross += h * np.outer(both, psi[i])
        gradient += np.outer(both, s)
        for p, parent in enumerate(task.parents):
            if phi[i, parent] == 0.0:
                continue
            for j in range(d):
                b = code(float(X[i, j]), bins.edges[j], bins.n_edges[j])
                histograms[p, j, b] += [weight[i], h, *s]
    sums = {"held_out": judged, "weight": np.array(held.sum()), "histograms": histograms}
    return sums if task.candidates is None else {**sums, "cross": cross, "gradient": gradient}


def decrease(q: np.ndarray, p: np.ndarray, s: np.ndarray, h: np.ndarray, penalty: float) -> float:
    """(s'r)^2 / (r'Hr + nu) of r, what is left of column q beside its parent p in the inner product of h."""
    r = q - p * (np.sum(h * q * p) / np.sum(h * p * p))
    return float(sum(np.sum(s[:, k] * r) ** 2 for k in range(s.shape[1])) / (np.sum(h * r * r) + penalty))
