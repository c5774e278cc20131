"""The definitions behind tuned random features: sums as loops over rows, the objective, optima by general solvers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, minimize

from tests.definitions import losses


def smoothed_hinge(slack: float, width: float, prior: float) -> float:
    """width log((1 + exp(prior + slack/width)) / (1 + exp(prior)))."""
    return width * (float(np.logaddexp(0.0, prior + slack / width)) - float(np.logaddexp(0.0, prior)))


def smoothed_slope(slack: float, width: float, prior: float) -> float:
    """Its derivative."""
    return 1.0 / (1.0 + math.exp(-prior - slack / width))


def squared_sums(
    phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, folds: np.ndarray, n_folds: int
) -> dict[str, np.ndarray]:
    """Pairs of columns (whole matrices), columns with targets, and squares of targets, fold by fold."""
    m, K = phi.shape[1] + 1, targets.shape[1]
    out = {
        "gram": np.zeros((n_folds, m, m)),
        "cross": np.zeros((n_folds, K, m)),
        "squares": np.zeros((n_folds, K)),
    }
    for i, fold in enumerate(folds):
        if not 0 <= fold < n_folds:
            continue
        row = np.append(phi[i], 1.0)
        out["gram"][fold] += weight[i] * np.outer(row, row)
        for k in range(K):
            out["cross"][fold, k] += weight[i] * targets[i, k] * row
            out["squares"][fold, k] += weight[i] * targets[i, k] ** 2
    return out


def margin_sums(phi: np.ndarray, targets: np.ndarray, weight: np.ndarray, trial: Any, smoothing: Any, loss: str) -> Any:
    """Losses at steps; losses, dual weights and curvatures at the first, by side."""
    K, m = trial.coefficients.shape
    out = {
        "smooth": np.zeros(trial.steps.shape),
        "loss": np.zeros((2, K)),
        "mass": np.zeros((2, K)),
        "dual_sums": np.zeros((2, K, m)),
    }
    curvature = np.zeros(targets.shape)
    for i, k in itertools.product(range(len(phi)), range(K)):
        row, y, s = np.append(phi[i], 1.0), targets[i, k], weight[i]
        prior = smoothing.reach - y * (row @ smoothing.past[k])
        for t, step in enumerate(trial.steps[k]):
            slack = 1.0 - y * (row @ (trial.coefficients[k] + step * trial.directions[k]))
            if loss == "squared_hinge":
                out["smooth"][k, t] += s * max(0.0, slack) ** 2
            else:
                out["smooth"][k, t] += s * smoothed_hinge(slack, smoothing.width, prior)
        slack = 1.0 - y * (row @ (trial.coefficients[k] + trial.steps[k, 0] * trial.directions[k]))
        side = int(y > 0)
        if loss == "squared_hinge":
            size, curvature[i, k] = 2.0 * max(0.0, slack), 2.0 * s * (slack > 0.0)
            out["loss"][side, k] += s * max(0.0, slack) ** 2
        else:
            z = prior + slack / smoothing.width if smoothing.follows else prior
            size = smoothed_slope(slack, smoothing.ahead, z)
            curvature[i, k] = s * size * (1.0 - size) / smoothing.ahead
            out["loss"][side, k] += s * max(0.0, slack)
        out["mass"][side, k] += s * size
        out["dual_sums"][side, k] += s * size * y * row
    return out, curvature


def tuned_objective(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    model: tuple[np.ndarray, np.ndarray, np.ndarray],
    figures: dict[str, Any],
) -> float:
    """Equation (22), with Lambda before the second penalty: mean loss, ridge over the density, penalty of the density.

    `rows` are (phi, targets, weight), `model` is (coef (K, m), intercept (K,), density (D,)), `figures` hold "loss",
    "lam", "H", "Lam" and "center".
    """
    (phi, targets, weight), (coef, intercept, density), D = rows, model, len(model[2])
    total = 0.0
    for i, k in itertools.product(range(len(phi)), range(len(coef))):
        score = float(phi[i] @ coef[k] + intercept[k])
        total += weight[i] * losses.value(targets[i, k], score, figures["loss"]) / weight.sum()
    for k, j in itertools.product(range(len(coef)), range(coef.shape[1])):
        total += 0.5 * figures["lam"] * coef[k, j] ** 2 / density[j % D]
    e = density - figures["center"]
    return total + 0.5 * figures["Lam"] * float(e @ figures["H"] @ e)


def tuned_optimum(rows: tuple[np.ndarray, np.ndarray, np.ndarray], figures: dict[str, Any], floor: float) -> float:
    """The least objective of one output by a general solver on (w, b, u) and the slacks of hinges."""
    phi, targets, weight = rows
    (n, m), y, D, share = phi.shape, targets[:, 0], len(figures["H"]), weight / weight.sum()
    hinges = 0 if figures["loss"] == "squared_error" else n
    Z = np.hstack([phi, np.ones((n, 1))])

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        w, u, slack = x[: m + 1], x[m + 1 : m + 1 + D], x[m + 1 + D :]
        columns, e = np.tile(u, m // D), u - figures["center"]
        value = 0.5 * figures["lam"] * np.sum(w[:-1] ** 2 / columns) + 0.5 * figures["Lam"] * e @ figures["H"] @ e
        gradient = np.zeros_like(x)
        gradient[:m] = figures["lam"] * w[:-1] / columns
        squares = np.sum((w[:-1] ** 2).reshape(-1, D), axis=0)
        gradient[m + 1 : m + 1 + D] = figures["Lam"] * figures["H"] @ e - 0.5 * figures["lam"] * squares / u**2
        if not hinges:
            misfit = Z @ w - y
            gradient[: m + 1] += Z.T @ (share * misfit)
            return value + 0.5 * share @ misfit**2, gradient
        power = 2 if figures["loss"] == "squared_hinge" else 1
        gradient[m + 1 + D :] = power * share * slack ** (power - 1)
        return value + share @ slack**power, gradient

    bounds = Bounds(np.r_[np.full(m + 1, -np.inf), np.full(D, floor), np.zeros(hinges)], np.inf)
    margins = np.hstack([y[:, None] * Z, np.zeros((n, D)), np.eye(n)])
    constraints = [LinearConstraint(margins, 1.0, np.inf)] if hinges else []
    start = np.r_[np.zeros(m + 1), np.full(D, max(floor, 1.0)), np.ones(hinges)]
    options = {"maxiter": 3000, "ftol": 1e-14}
    found = minimize(
        objective, start, jac=True, method="SLSQP", bounds=bounds, constraints=constraints, options=options
    )
    return float(found.fun)


def signed_minimum(Q: np.ndarray, q: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Over all sets of numbers with a sign that are 0: the best stationary point of the others that keeps the signs."""
    best, lowest = np.zeros(len(q)), np.inf
    bound = np.flatnonzero(signs)
    for size in range(len(bound) + 1):
        for zeros in itertools.combinations(bound, size):
            kept = [j for j in range(len(q)) if j not in zeros]
            x = np.zeros(len(q))
            x[kept] = np.linalg.solve(Q[np.ix_(kept, kept)], -q[kept])
            value = float(x @ Q @ x / 2.0 + q @ x)
            if (signs * x >= -1e-12).all() and value < lowest:
                best, lowest = x, value
    return best


def bounded_minimum(Q: np.ndarray, q: np.ndarray, floor: float) -> np.ndarray:
    """The x >= floor that minimises x'Qx/2 + q'x: the best of the stationary points of all faces."""
    best, value = np.full(len(q), floor), np.inf
    for free in itertools.product([False, True], repeat=len(q)):
        x, chosen = np.full(len(q), floor), np.array(free)
        if chosen.any():
            rest = q[chosen] + Q[np.ix_(chosen, ~chosen)] @ x[~chosen]
            x[chosen] = -np.linalg.solve(Q[np.ix_(chosen, chosen)], rest)
        found = 0.5 * x @ Q @ x + q @ x
        if (x >= floor).all() and found < value:
            best, value = x, found
    return best
