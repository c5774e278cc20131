"""Machines of every kind of features on a few rows of four columns, all in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

import dkl

FAMILIES: dict[str, Any] = {
    "waves": (dkl.Gaussian(1.5), "standard"),
    "phases": (dkl.Gaussian(1.5, pairing="phase"), "quantile"),
    "structured": (dkl.Gaussian(1.5, sampling="structured"), "unit"),
    "ramps": (dkl.ArcCosine(1), "minmax"),
    "half-spaces": (dkl.ArcCosine(0), None),
    "linear": (dkl.Coordinates(), "standard"),
    "harmonics": (dkl.SphericalHarmonics(3, project=True), None),
}
NAMES = (*FAMILIES, "landmarks", "tuned", "steps", "nystrom", "combined")
WAVES = ("waves", "phases", "structured", "landmarks", "tuned")
N = 60


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Normal columns, the last one 0 or 1 and mostly 0, on different scales, and numbers that depend on all."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)) * [1.0, 3.0, 0.5, 1.0] + [0.0, 1.0, 0.0, 0.0]
    X[:, 3] = rng.random(N) < 0.3
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + X[:, 3]


@cache
def machine(name: str, *, classes: int = 0) -> Any:
    """A machine fitted on `rows`; landmarks tell classes apart, as all do where `classes` are asked for."""
    X, y = rows()
    if name == "tuned":
        return dkl.TunedRegressor(40, scaling="standard", dtype="float64", random_state=0, progress=False).fit(X, y)
    if name == "landmarks":
        features: Any = dkl.LandmarkFeatures(n_landmarks=9, n_candidates=20, dtype="float64", random_state=0)
        classes = classes or 3
    elif name == "steps":
        features = dkl.StepFeatures(n_features=60, dtype="float64", random_state=0)
        # A step wants 20 rows on both sides of its threshold: products of three are not found on so few.
        X, y = np.repeat(X, 20, axis=0), np.repeat(y, 20)
    elif name == "nystrom":
        features = dkl.NystromFeatures(n_features=20, scaling="standard", dtype="float64", random_state=0)
    elif name == "combined":
        steps = dkl.StepFeatures(n_features=20, dtype="float64")
        linear = dkl.RandomFeatures(dkl.Coordinates(), 6, dtype="float64")
        waves = dkl.RandomFeatures(dkl.Gaussian(1.5), 20, scaling="standard", dtype="float64")
        kernel = dkl.NystromFeatures(n_features=10, scaling="standard", dtype="float64")
        ramps = dkl.RandomFeatures(dkl.ArcCosine(1), 6, dtype="float64")
        features = dkl.CombinedFeatures([steps, linear, waves, kernel, ramps], dtype="float64", random_state=0)
    else:
        family, scaling = FAMILIES[name]
        features = dkl.RandomFeatures(family, 40, scaling=scaling, dtype="float64", random_state=0)
    if classes:
        labels = np.argsort(np.argsort(y)) * classes // len(y)
        kernel = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", alpha=1e-3, progress=False)
        return kernel.fit(X, labels)
    return dkl.KernelRegressor(features, solver="newton", alpha=1e-3, progress=False).fit(X, y)


@cache
def mixed_machine() -> tuple[Any, pd.DataFrame]:
    """A machine on a number with gaps and a category, and its rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(40, 9, 200), "colour": rng.choice(list("rgb"), 200)})
    frame.loc[::9, "age"] = np.nan
    y = (frame["colour"] == "r") + 0.01 * frame["age"].fillna(0.0)
    features = dkl.RandomFeatures(dkl.Gaussian(2.0), 60, scaling="standard", dtype="float64", random_state=0)
    return dkl.KernelRegressor(features, solver="newton", alpha=1e-4, progress=False).fit(frame, y), frame


def decision_values(model: Any, X: Any) -> np.ndarray:
    """(n, K), as a user asks for them."""
    values = model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)
    return values.reshape(len(values), -1)
