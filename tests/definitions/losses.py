"""The losses of linear models for one row, by the names that scikit-learn has for them; conjugates by a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from dkl import registry

Function = Callable[[float, float, float], float]


@dataclass(frozen=True)
class Definition:
    """Value, slope and curvature of a loss, each a function of target, score and parameter, in plain numbers.

    `kinks` are errors f - y of numbers, or margins y f of classes, where value or slope bend, other than errors of 0
    and of plus or minus the parameter, and margins of -1, 0 and 1: tests stay away from all of these.
    """

    value: Function
    slope: Function
    curvature: Function
    kinks: tuple[float, ...] = ()


def slack(y: float, f: float) -> float:
    return max(0.0, 1.0 - y * f)


def beyond(y: float, f: float, e: float) -> float:
    """The part of the error f - y by which its size exceeds e."""
    return math.copysign(max(0.0, abs(f - y) - e), f - y)


def share(margin: float) -> float:
    return 1.0 / (1.0 + math.exp(margin))


# Of every loss in the registry's table but the softmax, which has several scores.
LOSSES = {
    "hinge": Definition(
        value=lambda y, f, e: slack(y, f),
        slope=lambda y, f, e: -y if slack(y, f) > 0.0 else 0.0,
        curvature=lambda y, f, e: 0.0,
    ),
    "squared_hinge": Definition(
        value=lambda y, f, e: slack(y, f) ** 2,
        slope=lambda y, f, e: -2.0 * y * slack(y, f),
        curvature=lambda y, f, e: 2.0 * (y * f < 1.0),
    ),
    "modified_huber": Definition(
        value=lambda y, f, e: -4.0 * y * f if y * f < -1.0 else slack(y, f) ** 2,
        slope=lambda y, f, e: -4.0 * y if y * f < -1.0 else -2.0 * y * slack(y, f),
        curvature=lambda y, f, e: 2.0 * (-1.0 <= y * f < 1.0),
    ),
    "log_loss": Definition(
        value=lambda y, f, e: math.log1p(math.exp(-y * f)) if y * f > -30.0 else -y * f,
        slope=lambda y, f, e: -y / (1.0 + math.exp(y * f)),
        curvature=lambda y, f, e: share(y * f) * (1.0 - share(y * f)),
    ),
    "squared_error": Definition(
        value=lambda y, f, e: abs(y - f) ** 2 / 2.0,
        slope=lambda y, f, e: f - y,
        curvature=lambda y, f, e: 1.0,
    ),
    "huber": Definition(
        value=lambda y, f, e: abs(y - f) ** 2 / 2.0 if abs(y - f) <= e else e * (abs(y - f) - e / 2.0),
        slope=lambda y, f, e: min(e, max(-e, f - y)),
        curvature=lambda y, f, e: 1.0 * (abs(y - f) <= e),
    ),
    "epsilon_insensitive": Definition(
        value=lambda y, f, e: max(0.0, abs(y - f) - e),
        slope=lambda y, f, e: math.copysign(1.0, beyond(y, f, e)) if beyond(y, f, e) else 0.0,
        curvature=lambda y, f, e: 0.0,
    ),
    "pinball": Definition(
        value=lambda y, f, e: e * (y - f) if y > f else (e - 1.0) * (y - f),
        slope=lambda y, f, e: -e if y > f else 1.0 - e,
        curvature=lambda y, f, e: 0.0,
    ),
    "poisson": Definition(
        value=lambda y, f, e: math.exp(f) - y + (y * (math.log(y) - f) if y > 0.0 else 0.0),
        slope=lambda y, f, e: math.exp(f) - y,
        curvature=lambda y, f, e: math.exp(f),
    ),
    "gamma": Definition(
        value=lambda y, f, e: f - math.log(y) + y / math.exp(f) - 1.0,
        slope=lambda y, f, e: 1.0 - y / math.exp(f),
        curvature=lambda y, f, e: y / math.exp(f),
    ),
}


def name_of(loss: Any) -> str:
    """The name of a loss of the library."""
    return {entry.class_name: name for name, entry in registry.LOSSES.items()}[type(loss).__name__]


def value(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    return LOSSES[name].value(y, f, epsilon)


def slope(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    """The derivative by f."""
    return LOSSES[name].slope(y, f, epsilon)


def curvature(y: float, f: float, name: str, epsilon: float = 0.1) -> float:
    """The second derivative by f, from one side at a kink."""
    return LOSSES[name].curvature(y, f, epsilon)


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
