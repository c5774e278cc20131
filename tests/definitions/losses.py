"""The losses of linear models for one row, by the names that scikit-learn has for them; conjugates by a search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar


def name_of(loss: Any) -> str:
    """What the losses that block sums are tested with are called."""
    return {"SquaredHingeLoss": "squared_hinge", "_LogLoss": "log_loss", "_SquaredErrorLoss": "squared_error"}[
        type(loss).__name__
    ]


def value(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    slack, error = max(0.0, 1.0 - y * f), abs(y - f)
    if name == "log_loss":
        return math.log1p(math.exp(-y * f)) if y * f > -30.0 else -y * f
    if name == "modified_huber":
        return -4.0 * y * f if y * f < -1.0 else slack**2
    if name == "huber":
        return error**2 / 2.0 if error <= epsilon else epsilon * (error - epsilon / 2.0)
    if name == "poisson":
        return math.exp(f) - y + (y * (math.log(y) - f) if y > 0.0 else 0.0)
    if name == "gamma":
        return f - math.log(y) + y / math.exp(f) - 1.0
    if name == "pinball":
        return epsilon * (y - f) if y > f else (epsilon - 1.0) * (y - f)
    return {
        "hinge": slack,
        "squared_hinge": slack**2,
        "squared_error": error**2 / 2.0,
        "epsilon_insensitive": max(0.0, error - epsilon),
    }[name]


def slope(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    """The derivative by f."""
    slack, beyond = max(0.0, 1.0 - y * f), math.copysign(max(0.0, abs(f - y) - epsilon), f - y)
    if name == "log_loss":
        return -y / (1.0 + math.exp(y * f))
    if name == "modified_huber":
        return -4.0 * y if y * f < -1.0 else -2.0 * y * slack
    if name in ("poisson", "gamma"):
        return math.exp(f) - y if name == "poisson" else 1.0 - y / math.exp(f)
    return {
        "pinball": -epsilon if y > f else 1.0 - epsilon,
        "hinge": -y if slack > 0.0 else 0.0,
        "squared_hinge": -2.0 * y * slack,
        "squared_error": f - y,
        "huber": min(epsilon, max(-epsilon, f - y)),
        "epsilon_insensitive": math.copysign(1.0, beyond) if beyond else 0.0,
    }[name]


def curvature(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    """The second derivative by f, from one side at a kink."""
    margin, is_near = y * f, abs(y - f) <= epsilon
    if name == "log_loss":
        share = 1.0 / (1.0 + math.exp(margin))
        return share * (1.0 - share)
    if name in ("poisson", "gamma"):
        return math.exp(f) if name == "poisson" else y / math.exp(f)
    return {
        "pinball": 0.0,
        "hinge": 0.0,
        "squared_hinge": 2.0 * (margin < 1.0),
        "modified_huber": 2.0 * (-1.0 <= margin < 1.0),
        "squared_error": 1.0,
        "huber": 1.0 * is_near,
        "epsilon_insensitive": 0.0,
    }[name]


def conjugate(y: float, s: float, name: str, epsilon: float = 0.1) -> float:
    """The largest s f - L(y, f), where the loss has slope s somewhere within 40 of 0."""

    def lost(f: float) -> float:
        return value(y, f, name, epsilon) - s * f

    return -float(minimize_scalar(lost, bounds=(-40.0, 40.0), options={"xatol": 1e-10}).fun)


@dataclass(frozen=True)
class Loss:
    """The same for each pair of numbers of two arrays."""

    name: str
    epsilon: float

    def value(self, y: Any, f: Any) -> np.ndarray:
        return self._each(value, y, f)

    def slope(self, y: Any, f: Any) -> np.ndarray:
        return self._each(slope, y, f)

    def curvature(self, y: Any, f: Any) -> np.ndarray:
        return self._each(curvature, y, f)

    def conjugate(self, y: Any, s: Any) -> np.ndarray:
        return self._each(conjugate, y, s)

    def _each(self, function: Any, y: Any, f: Any) -> np.ndarray:
        y, f = np.broadcast_arrays(y, f)
        numbers = [function(float(a), float(b), self.name, self.epsilon) for a, b in zip(y.flat, f.flat, strict=True)]
        return np.array(numbers, dtype=float).reshape(y.shape)


def loss_of(name: str, epsilon: float = 0.1) -> Loss:
    return Loss(name, epsilon)
