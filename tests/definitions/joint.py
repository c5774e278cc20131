"""The definitions behind kernels and machines that are learned together: the ball, the primal and its optimum."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, minimize

from tests.definitions import losses

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def divergence_of(q: np.ndarray, k: float) -> float:
    """The mean of (D q)^k, less 1."""
    return sum((len(q) * one) ** k for one in q) / len(q) - 1.0


def quadratic_in_ball(Q: np.ndarray, q: np.ndarray, rho: float, k: float) -> float:
    """The least x'Qx/2 + q.x over x >= 0 of mean 1 with mean(x^k) - 1 <= rho, by a general solver."""
    n = len(q)
    found = minimize(
        lambda x: (0.5 * x @ Q @ x + q @ x, Q @ x + q),
        np.ones(n),
        jac=True,
        method="SLSQP",
        bounds=Bounds(np.zeros(n), np.inf),
        constraints=[_mean_of_one(n, 0, n), _ball(n, 0, n, rho, k)],
        options={"maxiter": 2_000, "ftol": 1e-15},
    )
    return float(found.fun)


def joint_objective(rows: Rows, model: tuple[np.ndarray, np.ndarray, np.ndarray], lam: float, loss: str) -> float:
    """Mean loss plus lam/2 sum_m |w_m|^2/q_m; `model` is (coef (K, m), intercept (K,), q (D,)), features unscaled."""
    (phi, targets, weight), (coef, intercept, q) = rows, model
    total = 0.0
    for i, k in itertools.product(range(len(phi)), range(len(coef))):
        total += weight[i] * losses.value(targets[i, k], float(phi[i] @ coef[k] + intercept[k]), loss) / weight.sum()
    for k, j in itertools.product(range(len(coef)), range(coef.shape[1])):
        if coef[k, j] != 0.0:
            total += 0.5 * lam * coef[k, j] ** 2 / q[j % len(q)]
    return total


def joint_optimum(rows: Rows, ball: tuple[int, float, float], lam: float, loss: str) -> float:
    """The least `joint_objective` by a general solver on (w, b, q) and the slacks of hinges; `ball` is (D, rho, k)."""
    (phi, targets, weight), (D, rho, order) = rows, ball
    (n, m), K, share = phi.shape, targets.shape[1], weight / weight.sum()
    Z, wide = np.hstack([phi, np.ones((n, 1))]), (m + 1) * K
    hinges = 0 if loss == "squared_error" else n * K
    places = np.arange(m) % D

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        W, u, slack = x[:wide].reshape(K, m + 1), x[wide : wide + D], x[wide + D :]
        columns, gradient = u[places] / D, np.zeros_like(x)
        by_w, value = np.zeros_like(W), 0.5 * lam * np.sum(W[:, :-1] ** 2 / columns)
        by_w[:, :-1] = lam * W[:, :-1] / columns
        np.add.at(gradient[wide : wide + D], places, -0.5 * lam * np.sum(W[:, :-1] ** 2, axis=0) / columns**2 / D)
        if not hinges:
            misfit = Z @ W.T - targets
            value += 0.5 * share @ np.sum(misfit**2, axis=1)
            by_w += (share[:, None] * misfit).T @ Z
        else:
            power, each = (2 if loss == "squared_hinge" else 1), np.repeat(share, K)
            value += each @ slack**power
            gradient[wide + D :] = power * each * slack ** (power - 1)
        gradient[:wide] = by_w.ravel()
        return value, gradient

    total = wide + D + hinges
    constraints: list[Any] = [_mean_of_one(total, wide, D), _ball(total, wide, D, rho, order)]
    if hinges:
        margins = np.zeros((hinges, total))
        for i, k in itertools.product(range(n), range(K)):
            margins[i * K + k, k * (m + 1) : (k + 1) * (m + 1)] = targets[i, k] * Z[i]
            margins[i * K + k, wide + D + i * K + k] = 1.0
        constraints.append(LinearConstraint(margins, 1.0, np.inf))
    bounds = Bounds(np.r_[np.full(wide, -np.inf), np.full(D, 1e-9), np.zeros(hinges)], np.inf)
    start = np.r_[np.zeros(wide), np.ones(D), np.ones(hinges)]
    options = {"maxiter": 3_000, "ftol": 1e-14}
    found = minimize(
        objective, start, jac=True, method="SLSQP", bounds=bounds, constraints=constraints, options=options
    )
    return float(found.fun)


def _mean_of_one(total: int, first: int, n: int) -> LinearConstraint:
    row = np.zeros((1, total))
    row[0, first : first + n] = 1.0 / n
    return LinearConstraint(row, 1.0, 1.0)


def _ball(total: int, first: int, n: int, rho: float, k: float) -> NonlinearConstraint:
    part = slice(first, first + n)

    def slope(x: np.ndarray) -> np.ndarray:
        row = np.zeros((1, total))
        row[0, part] = k * np.maximum(x[part], 0.0) ** (k - 1.0) / n
        return row

    return NonlinearConstraint(lambda x: np.mean(np.maximum(x[part], 0.0) ** k) - 1.0, -np.inf, rho, jac=slope)
