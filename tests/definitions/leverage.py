"""What leverage scores mean, written as loops over rows and columns of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.definitions.blocks import map_rows


def gram_sums(X: Any, weight: np.ndarray, feature_map: Any, columns: tuple[int, int]) -> np.ndarray:
    """sum_i weight_i phi_a phi_b for a <= b, column b after column b; the last feature is 1."""
    features = [[*row, 1.0] for row in map_rows(X, feature_map).tolist()]
    return np.array(
        [
            sum(w * row[a] * row[b] for w, row in zip(weight, features, strict=True))
            for b in range(*columns)
            for a in range(b + 1)
        ]
    )


def cross_gram_sums(X: Any, weight: np.ndarray, first: Any, second: Any) -> np.ndarray:
    """sum_i weight_i phi_a(x_i) psi_b(x_i)."""
    phi, psi = map_rows(X, first), map_rows(X, second)
    out = np.zeros((phi.shape[1], psi.shape[1]))
    for i, w in enumerate(weight):
        for a in range(phi.shape[1]):
            for b in range(psi.shape[1]):
                out[a, b] += w * phi[i, a] * psi[i, b]
    return out


def gram_matrix(X: Any, weight: np.ndarray, feature_map: Any) -> np.ndarray:
    """Phi Phi^T with entries over the root of the total weight."""
    return cross_gram_sums(X, weight, feature_map, feature_map) / weight.sum()


def leverage_scores(X: Any, weight: np.ndarray, feature_map: Any, mu: float) -> np.ndarray:
    """diag(Phi Phi^T (Phi Phi^T + mu I)^-1) as it is printed, added up over the columns of a frequency."""
    gram = gram_matrix(X, weight, feature_map)
    m, parts = feature_map.n_frequencies, feature_map.columns_a_frequency
    whole = gram @ np.linalg.inv(gram + mu * np.eye(len(gram)))
    return np.array([sum(whole[part * m + j, part * m + j] for part in range(parts)) for j in range(m)])
