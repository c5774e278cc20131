"""The margin game by definition: projections and values by general solvers, block functions as loops over rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dkl.features.feature_map import FeatureMap
from dkl.methods.game.sums import Trials
from dkl.protocols.block import Block
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


def signs_and_weights(block: Block, targets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y_ik = +1 at a row's class and -1 elsewhere; c_i of the rows that play, and of those held out."""
    assert block.y is not None
    classes = [1] if targets.n_classes == 2 else range(targets.n_classes)
    signs = [[1.0 if code == k else -1.0 for k in classes] for code in block.y]
    out = np.zeros(block.n_rows, bool) if targets.held_out is None else targets.held_out(block.row_id)
    weight, held = np.zeros(block.n_rows), np.zeros(block.n_rows)
    for i, code in enumerate(block.y):
        factor = 1.0 if targets.class_weight is None else targets.class_weight[code]
        (held if out[i] else weight)[i] = factor * (1.0 if block.weight is None else block.weight[i])
    return np.array(signs), weight, held


def dual_weights(block: Block, constraint: Any, signs: np.ndarray) -> np.ndarray:
    """alpha_ik that the stored numbers stand for."""
    return feasible(block.columns["dual"], signs, constraint.upper, constraint.shifts, exact=constraint.exact)


def features_under(
    block: Block, weight: np.ndarray, signs: np.ndarray, alpha: np.ndarray, operands: Mapping[str, Any]
) -> np.ndarray:
    """sum_i c_i y_ik alpha_ik phi_j(x_i)."""
    S = np.array([c * y * a for c, y, a in zip(weight, signs, alpha, strict=True)])
    return blocks.feature_sums(block.X, S, operands["candidates"])


def sums_of_weights(alpha: np.ndarray, weight: np.ndarray, upper: float, n_blocks: int) -> dict[str, np.ndarray]:
    """sum_i c_i alpha_ik, sum_i c_i alpha_ik^2; and of the first dual blocks c_i where alpha_ik is at either bound."""
    n, K = alpha.shape
    sums = {"alpha": np.zeros(K), "squares": np.zeros(K), "bounds": np.zeros(2)}
    for i in range(n):
        for k in range(K):
            sums["alpha"][k] += weight[i] * alpha[i, k]
            sums["squares"][k] += weight[i] * alpha[i, k] ** 2
            if k < n_blocks:
                sums["bounds"] += weight[i] * np.array([alpha[i, k] <= 0.0, alpha[i, k] >= upper])
    return sums


def errs(scores: np.ndarray, signs: np.ndarray) -> float:
    """1 for a row whose class is not the predicted one."""
    if len(scores) == 1:
        return float(signs[0] * scores[0] <= 0.0)
    return float(int(np.argmax(scores)) != int(np.argmax(signs)))


def start_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The same number everywhere, and its breakpoints."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    values = np.array([[operands["start"] for _ in row] for row in signs])
    sums = breakpoint_sums(values, signs, weight, operands["upper"], operands["edges"])
    return {"dual": values, "weight": math.fsum(weight), **sums}


def multiplier_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The breakpoints of the stored numbers."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    return breakpoint_sums(block.columns["dual"], signs, weight, operands["upper"], operands["edges"])


def balance_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """sum_i c_i y_ik clip(alpha_ik, 0, upper)."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    upper, alpha = operands["feasible"].upper, dual_weights(block, operands["feasible"], signs)
    columns = zip(alpha.T, signs.T, strict=True)
    return {"balance": np.array([balance(a, y, weight, upper, 0.0) for a, y in columns])}


def verify_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The candidates' sums under the dual weights, and under their means in further columns."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    alpha, K = dual_weights(block, operands["feasible"], signs), signs.shape[1]
    if operands["checks_mean"]:
        alpha = np.array([[*row, *mean] for row, mean in zip(alpha, block.columns["mean"], strict=True)])
        signs = np.array([[*row, *row] for row in signs])
    features = features_under(block, weight, signs, alpha, operands)
    return {"features": features, **sums_of_weights(alpha, weight, operands["feasible"].upper, K)}


def gram_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """sum_i c_i phi_a(x_i) phi_b(x_i) of all features, and sum_i c_i over the rows of either sign."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    features = blocks.map_rows(block.X, operands["feature_map"])
    D = features.shape[1]
    gram = [[math.fsum(weight * features[:, a] * features[:, b]) for b in range(D)] for a in range(D)]
    classes = [[math.fsum(c for c, y in zip(weight, row, strict=True) if y == s) for row in signs.T] for s in (-1, 1)]
    return {"gram": np.array(gram), "classes": np.array(classes)}


def score_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """keep hat_ik + size (1 - y_ik f_ik), its breakpoints, the machine's losses, and its errors."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    smoothed, trials, n = operands["smoothed"], operands["trials"], block.n_rows
    scores = row_scores(block.X, operands["feature_map"], operands["coefficients"])
    values, errors = np.zeros(signs.shape), 0.0
    for i in range(n):
        for k, (y, f) in enumerate(zip(signs[i], scores[i], strict=True)):
            values[i, k] = smoothed.keep * block.columns["hat"][i, k] + smoothed.size * (1.0 - y * f)
        errors += weight[i] * errs(scores[i] + trials.intercepts[:, 0], signs[i])
    return {
        "dual": values,
        "losses": primal_losses(scores, signs, weight, trials, loss=operands["loss"]),
        "errors": errors,
        **breakpoint_sums(values, signs, weight, operands["upper"], operands["edges"]),
    }


def sum_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The projected weights' features; (1 - share) mean + share alpha, written to `target`, with its sums."""
    signs, weight, _ = signs_and_weights(block, operands["targets"])
    alpha, share = dual_weights(block, operands["feasible"], signs), operands["share"]
    for i, c in enumerate(weight):
        if c == 0.0:
            alpha[i] = 0.0
    means = block.columns["mean"]
    mixed = np.array([(1.0 - share) * m + share * a for m, a in zip(means, alpha, strict=True)])
    sums = sums_of_weights(mixed, weight, operands["feasible"].upper, signs.shape[1])
    return {"features": features_under(block, weight, signs, alpha, operands), operands["target"]: mixed, **sums}


def step_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """alpha + eta (1 - y f - ridge alpha), the means over the rounds, and what the mean machine loses."""
    signs, weight, held = signs_and_weights(block, operands["targets"])
    step, trials, loss, (n, K) = operands["step"], operands["trials"], operands["loss"], signs.shape
    alpha = dual_weights(block, operands["feasible"], signs)
    scores = row_scores(block.X, step.feature_map, step.coefficients)
    dual, mean, total = np.zeros((n, K)), np.zeros((n, K)), np.zeros((n, K))
    errors, held_loss, squares = np.zeros(3), 0.0, 0.0
    for i in range(n):
        machine = np.zeros(K)
        for k in range(K):
            slope = 1.0 - signs[i, k] * scores[i, k] - step.ridge * alpha[i, k]
            dual[i, k] = alpha[i, k] + step.size * slope
            played = alpha[i, k] if weight[i] > 0.0 else 0.0
            mean[i, k] = (1.0 - step.share) * block.columns["mean"][i, k] + step.share * played
            total[i, k] = (1.0 - step.share) * block.columns["score"][i, k] + step.share * scores[i, k]
            machine[k] = trials.scales[0] * total[i, k] + trials.intercepts[k, 0]
            held_loss += held[i] * losses.value(signs[i, k], machine[k], loss)
            squares += weight[i] * slope**2
        wrong = errs(machine, signs[i])
        errors += [weight[i] * wrong, held[i] * wrong, held[i]]
    return {
        "dual": dual,
        "mean": mean,
        "score": total,
        "losses": primal_losses(total, signs, weight, trials, loss=loss),
        "errors": errors,
        "held": held_loss,
        "gradient": np.array([squares]),
        **breakpoint_sums(dual, signs, weight, operands["feasible"].upper, operands["edges"]),
    }


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
