"""The two synthetic examples of Sinha & Duchi 2016, sections 4.1 and 4.2: a poor prior is repaired by alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import Ridge

from dkl.features.families import Coordinates, Gaussian
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.random_features import RandomFeatures

TESTED = 2_000


def error_of(learner: Any, ridge: float, X: np.ndarray, y: np.ndarray) -> float:
    """The share of the last 2,000 rows that a ridge on the learned features of the others gets wrong."""
    Z = learner.transform(X)
    linear = Ridge(alpha=ridge).fit(Z[:-TESTED], y[:-TESTED])
    return float(np.mean((linear.predict(Z[-TESTED:]) > 0.0) != (y[-TESTED:] > 0)))


def test_aligned_features_learn_the_norm_where_the_gaussian_kernel_cannot() -> None:
    n, d, n_candidates = 5_000, 10, 20_000
    X = np.random.default_rng(0).standard_normal((n + TESTED, d))
    y = np.where(np.linalg.norm(X, axis=1) > np.sqrt(d), 1, -1)
    family, rho = Gaussian(1.0, pairing="phase"), 0.005 * n_candidates
    aligned = AlignedFeatures(family, n_candidates, None, rho, dtype="float64", random_state=0).fit(X[:n], y[:n])
    plain = RandomFeatures(family, aligned.feature_map_.n_features, dtype="float64", random_state=1).fit(X[:n])
    assert aligned.feature_map_.n_features < 400
    assert error_of(plain, 0.05, X, y) > 0.24
    assert error_of(aligned, 0.05, X, y) < 0.09


def test_aligned_features_find_the_columns_that_matter() -> None:
    n, d = 8_000, 1_000
    rng = np.random.default_rng(0)
    direction = np.concatenate([np.ones(100), 0.05 * rng.standard_normal(d - 100)])
    X = rng.standard_normal((n + TESTED, d))
    y = np.where(X @ direction > 0.0, 1, -1)
    aligned = AlignedFeatures(Coordinates(), None, None, 0.01 * d, dtype="float64", random_state=0).fit(X[:n], y[:n])
    kept = aligned.feature_map_.projection.columns
    plain = RandomFeatures(Coordinates(), len(kept), dtype="float64", random_state=1).fit(X[:n])
    assert np.isin(np.arange(100), kept).all()
    assert len(kept) < 115
    assert error_of(plain, 0.01, X, y) > 0.35
    assert error_of(aligned, 0.01, X, y) < 0.065
