"""Linear machines of the squared hinge for many penalties: exact Newton steps on rows in memory, each from the last.

What scikit-learn's LinearSVC(dual=False) comes to, its intercept penalised too, in a fraction of the time where columns
are thousands or where penalties are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

_STEPS = 50


class LinearMachine:
    """The sign of Z w + b."""

    def __init__(self, classes: np.ndarray, weights: np.ndarray) -> None:
        self.classes_ = classes
        self.coef_, self.intercept_ = weights[:-1], weights[-1]

    def predict(self, Z: Any) -> np.ndarray:
        return self.classes_[(Z @ self.coef_.astype(Z.dtype) + self.intercept_ > 0.0).astype(int)]


def machines(Z: np.ndarray, y: np.ndarray, costs: Sequence[float]) -> Iterator[LinearMachine]:
    """The minimum of |w|^2 / 2 + C sum max(0, 1 - y w.z)^2 for one C after the other; y has two classes."""
    classes = np.unique(y)
    signs = np.where(y == classes[1], 1.0, -1.0)
    A = np.column_stack([np.asarray(Z, np.float64), np.ones(len(signs))]) * signs[:, None]
    best_of = _by_rows(A) if len(A) < A.shape[1] else _by_columns(A)
    w = np.zeros(A.shape[1])
    for cost in costs:
        w = _minimum(A, best_of, cost, w)
        yield LinearMachine(classes, w)


def _minimum(
    A: np.ndarray, best_of: Callable[[np.ndarray, float], np.ndarray], cost: float, w: np.ndarray
) -> np.ndarray:
    """From w on: the minimum for the rows inside the margin now, until these stay the same."""
    margins = A @ w
    for _ in range(_STEPS):
        active = margins < 1.0
        aim = best_of(active, cost)
        there = A @ aim
        if np.array_equal(there < 1.0, active):
            return aim
        step, now = 1.0, _objective(w, margins, cost)
        while step > 1e-3 and _objective(w + step * (aim - w), margins + step * (there - margins), cost) > now:
            step /= 2.0
        w, margins = w + step * (aim - w), margins + step * (there - margins)
    return w


def _objective(w: np.ndarray, margins: np.ndarray, cost: float) -> float:
    return float(w @ w / 2.0 + cost * np.square(np.maximum(0.0, 1.0 - margins)).sum())


def _by_columns(A: np.ndarray) -> Callable[[np.ndarray, float], np.ndarray]:
    """(A'A + I/2C)^-1 A'1 over active rows; A'A follows the rows that come and go, where these are the fewer."""
    gram, held = np.zeros((A.shape[1],) * 2), np.zeros(len(A), bool)

    def best_of(active: np.ndarray, cost: float) -> np.ndarray:
        if (active != held).sum() > active.sum():
            gram[:], held[:] = 0.0, False
        for rows, sign in ((active & ~held, 1.0), (held & ~active, -1.0)):
            part = A[rows]
            gram[:] += sign * (part.T @ part)
        held[:] = active
        matrix = gram.copy()
        matrix[np.diag_indices_from(matrix)] += 0.5 / cost
        return cho_solve(cho_factor(matrix, overwrite_a=True), A[active].sum(axis=0))

    return best_of


def _by_rows(A: np.ndarray) -> Callable[[np.ndarray, float], np.ndarray]:
    """A'(AA' + I/2C)^-1 1 over active rows: what is small where rows are fewer than columns."""
    kernel = A @ A.T

    def best_of(active: np.ndarray, cost: float) -> np.ndarray:
        rows = np.flatnonzero(active)
        matrix = kernel[np.ix_(rows, rows)]
        matrix[np.diag_indices_from(matrix)] += 0.5 / cost
        return A[rows].T @ cho_solve(cho_factor(matrix, overwrite_a=True), np.ones(len(rows)))

    return best_of
