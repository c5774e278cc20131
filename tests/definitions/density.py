"""The definitions behind the density of tuned random features, as double loops and by general solvers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar, nnls

Values = Callable[[np.ndarray, np.ndarray], float]


def rbf(length_scale: float) -> Values:
    return lambda w, v: math.exp(-float((w - v) @ (w - v)) / (2.0 * length_scale**2))


def matern_three_halves(length_scale: float) -> Values:
    def value(w: np.ndarray, v: np.ndarray) -> float:
        r = math.sqrt(3.0) * math.dist(w, v) / length_scale
        return (1.0 + r) * math.exp(-r)

    return value


def polynomial(degree: int, constant: float, length_scale: float) -> Values:
    return lambda w, v: (constant + float(w @ v) / length_scale**2) ** degree


def delta(w: np.ndarray, v: np.ndarray) -> float:
    return float(bool((w == v).all()))


def even(kernel: Values) -> Values:
    """kappa_e of section 3.1."""
    return lambda w, v: 0.5 * (kernel(w, v) + kernel(w, -v))


def gram(kernel: Values, W: np.ndarray, V: np.ndarray) -> np.ndarray:
    return np.array([[kernel(w, v) for v in V] for w in W])


def penalty_matrix(G: np.ndarray, gamma: float) -> np.ndarray:
    """H of equation (15)."""
    ridge = np.linalg.inv(G + gamma * len(G) * np.eye(len(G)))
    return ridge @ G @ ridge


def penalty_value(H: np.ndarray, u: np.ndarray, Lam: float, center: float) -> float:
    """Lam/2 (u - c)'H(u - c)."""
    total = 0.0
    for i, j in itertools.product(range(len(u)), range(len(u))):
        total += 0.5 * Lam * (u[i] - center) * H[i, j] * (u[j] - center)
    return total


def minus_conjugate(H: np.ndarray, p: np.ndarray, Lam: float, floor: float, center: float) -> tuple[float, np.ndarray]:
    """min over u >= floor of Lam/2 (u - c)'H(u - c) - u.p by an active-set solver: |R x - t|^2 / 2 over x >= 0."""
    R = np.linalg.cholesky(Lam * H).T
    lifted = p - Lam * H @ np.full(len(p), floor - center)
    x, _ = nnls(R, np.linalg.solve(R.T, lifted), maxiter=100 * len(p))
    u = floor + x
    return penalty_value(H, u, Lam, center) - float(u @ p), u


def eliminate(square: float, lam: float, curvature: float, floor: float, center: float) -> float:
    """The u >= floor that minimises lam |w|^2 / (2 u) + curvature/2 (u - c)^2, by golden sections."""
    found = minimize_scalar(
        lambda u: 0.5 * lam * square / u + 0.5 * curvature * (u - center) ** 2,
        bounds=(max(floor, 1e-9), 1e3),
        method="bounded",
        options={"xatol": 1e-12, "maxiter": 1_000},
    )
    return float(found.x)


def shift_kernel(shifts: np.ndarray, W: np.ndarray, density: np.ndarray) -> np.ndarray:
    """The mean of u_j exp(i w_j.delta), whose imaginary part an even density has not."""
    return np.array([np.mean([u * np.exp(1j * (w @ s)) for w, u in zip(W, density, strict=True)]).real for s in shifts])
