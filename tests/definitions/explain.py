"""What explanations mean, as loops: derivatives by differences, Shapley values over all sets of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from tests.definitions.blocks import map_rows, scale_rows

_STEP = 1e-5


def squared_slopes(X: Any, s: np.ndarray, feature_map: FeatureMap, coef: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Central differences of the decision values in each scaled column."""
    rows, plain = scale_rows(X, feature_map.scaler), replace(feature_map, scaler=None)
    total = np.zeros((rows.shape[1], len(coef)))
    for c in range(rows.shape[1]):
        step = np.zeros(rows.shape[1])
        step[c] = _STEP
        up, down = map_rows(rows + step, plain) @ coef.T, map_rows(rows - step, plain) @ coef.T
        total[c] = s @ np.square((up - down) / (2.0 * _STEP))
    return total


def left_out_sums(X: Any, s: np.ndarray, feature_map: FeatureMap, groups: Any, dtype: Any = None) -> np.ndarray:
    """The waves of scaled rows whose columns of a group are 0."""
    rows, W = scale_rows(X, feature_map.scaler), feature_map.projection.dense()
    total = np.zeros((len(groups), 2, len(W)))
    for g, columns in enumerate(groups):
        for i, row in enumerate(rows):
            kept = [c for c in range(len(row)) if c not in columns]
            for j, w in enumerate(W):
                z = sum(float(w[c]) * row[c] for c in kept)
                total[g, 0, j] += s[i] * np.cos(z)
                total[g, 1, j] += s[i] * np.sin(z)
    return total


def wave_contributions(angles: np.ndarray, psi: np.ndarray, amplitudes: np.ndarray, n_nodes: int = 0) -> np.ndarray:
    """Shapley values of the game in which the columns outside a set are at their means."""
    out = np.empty((*angles.shape[:2], amplitudes.shape[1]))
    for i, row in enumerate(np.exp(1j * angles)):

        def value(inside: tuple[int, ...], row: np.ndarray = row) -> np.ndarray:
            factors = np.array([row[g] if g in inside else psi[g] for g in range(len(psi))])
            return (factors.prod(axis=0) @ amplitudes).real

        out[i] = shapley_values(value, len(psi))
    return out


def product_contributions(factors: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Shapley values of each product by itself: the columns outside a set are at their means."""
    out = np.empty(factors.shape)
    for i, row in enumerate(factors):
        for a, product in enumerate(row):

            def value(
                inside: tuple[int, ...], product: np.ndarray = product, mean: np.ndarray = means[a]
            ) -> np.ndarray:
                return np.array([np.prod([product[g] if g in inside else mean[g] for g in range(3)])])

            out[i, a] = shapley_values(value, 3)[:, 0]
    return out


def shapley_values(value: Callable[[tuple[int, ...]], np.ndarray], n_players: int) -> np.ndarray:
    """The mean over all orders of what a player adds to those before it."""
    total = np.zeros((n_players, len(value(()))))
    for g in range(n_players):
        others = [player for player in range(n_players) if player != g]
        for size in range(n_players):
            weight = factorial(size) * factorial(n_players - size - 1) / factorial(n_players)
            for inside in combinations(others, size):
                total[g] += weight * (value((*inside, g)) - value(inside))
    return total
