"""Small rows and models of every kind, which exported forms are compared on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import dkl

_GENERATOR = np.random.default_rng(0)
X = np.column_stack(
    [
        _GENERATOR.normal(10.0, 3.0, 300),
        _GENERATOR.exponential(size=300),
        _GENERATOR.normal(size=300),
        np.arange(300) % 3,
    ]
).astype(np.float32)
TWO = (np.sin(X[:, 0]) * X[:, 2] > 0).astype(int)
THREE = np.array(["ape", "bee", "cat"])[np.digitize(X[:, 2], [-0.5, 0.5])]


def random_features(family: Any = None, scaling: Any = "standard") -> dkl.RandomFeatures:
    return dkl.RandomFeatures(family, n_features=40, scaling=scaling, random_state=0)


def classifier(features: Any = None, **parameters: Any) -> dkl.KernelClassifier:
    return dkl.KernelClassifier(features or random_features(), epochs=1, random_state=0, **parameters)


MAPS: dict[str, Callable[[], Any]] = {
    "laplacian": lambda: random_features(dkl.Laplacian()),
    "phases": lambda: random_features(dkl.Gaussian(pairing="phase")),
    "structured": lambda: random_features(dkl.Gaussian(sampling="structured")),
    "arc-cosine 0": lambda: random_features(dkl.ArcCosine(0)),
    "arc-cosine 1": lambda: random_features(dkl.ArcCosine(1)),
    "arc-cosine 2": lambda: random_features(dkl.ArcCosine(2)),
    "coordinates": lambda: random_features(dkl.Coordinates()),
    "few columns": lambda: random_features(dkl.SparseFrequencies(dkl.Gaussian())),
    "steps": lambda: dkl.StepFeatures(n_features=20, random_state=0),
    "nystrom": lambda: dkl.NystromFeatures(dkl.Gaussian(), 20, scaling="standard", random_state=0),
    "nystrom, laplacian": lambda: dkl.NystromFeatures(dkl.Laplacian(), 20, scaling="minmax", random_state=0),
    "nystrom, matern": lambda: dkl.NystromFeatures(n_features=20, scaling="quantile", random_state=0),
    "nystrom, smooth": lambda: dkl.NystromFeatures(dkl.Matern(2.5), 20, scaling="standard", random_state=0),
    "nystrom, diagonal metric": lambda: dkl.NystromFeatures(
        dkl.Gaussian(), 20, scaling="standard", metric="diagonal", random_state=0
    ),
    "nystrom, full metric": lambda: dkl.NystromFeatures(
        dkl.Gaussian(), 20, scaling="standard", metric="full", random_state=0
    ),
    "combined": lambda: dkl.CombinedFeatures(
        [
            dkl.StepFeatures(n_features=20),
            dkl.NystromFeatures(dkl.Gaussian(), 10, scaling="standard"),
            dkl.RandomFeatures(n_features=10, scaling="minmax"),
        ],
        random_state=0,
    ),
    "landmarks": lambda: dkl.LandmarkFeatures(n_landmarks=5, n_candidates=20, random_state=0),
    "shared landmarks": lambda: dkl.LandmarkFeatures(n_landmarks=5, n_candidates=20, pool="shared", random_state=0),
    "harmonics": lambda: dkl.AlignedFeatures(
        dkl.SphericalHarmonics(max_degree=4, project=True), n_features=20, random_state=0
    ),
}


def assert_agree(found: np.ndarray, expected: np.ndarray, largest: float = 1.0) -> None:
    """To 2e-5 of the largest value, or of `largest`: what answers of other rows come to, say.

    Both are in single precision, whose last bits differ by processor; between two knots of a scaling that are near each
    other, or at a threshold, a scaled value differs by many times as much.
    """
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(largest, np.abs(expected).max()))
