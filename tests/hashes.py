"""Fits every learner on small rows and prints a hash of all that each has learned: `python -m tests.hashes`.

A change that only moves or renames code leaves every line as it was; run it before and after, and compare.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import dask
import numpy as np

import dkl
from tests.chaos.fits import EXACT, KINDS, SMALL, digest, learned, make_arrays, make_rows, on

Fit = Callable[[np.ndarray], Any]


def numbers(rows: np.ndarray) -> np.ndarray:
    """A target of numbers: a wave in one column and a slope in another."""
    return np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1]


def regressor(features: Any, **options: Any) -> Any:
    """A regressor on these features."""
    return dkl.KernelRegressor(features=features, random_state=0, progress=False, **options)


def random(**options: Any) -> Any:
    """Plain random features."""
    return dkl.RandomFeatures(n_features=40, **{**SMALL, **options})


MARGIN = {"n_features": 20, "search_rows": 300, **SMALL}
# what the fits of the chaos tests leave out: numbers, three classes, other losses, families and solvers
IN_MEMORY: dict[str, Fit] = {
    "newton, numbers": lambda X: regressor(random(), solver="newton", alpha=1e-3).fit(X, numbers(X)),
    "newton, three classes": lambda X: on(random(), **EXACT).fit(X, X[:, :3].argmax(axis=1)),
    "penalty chosen": lambda X: on(random(), **{**EXACT, "alpha": "auto"}).fit(X, X[:, 0] > 0),
    "epochs, numbers": lambda X: regressor(random(), epochs=2).fit(X, numbers(X)),
    "epochs, hinge": lambda X: on(random(), epochs=2, loss="hinge").fit(X, X[:, :3].argmax(axis=1)),
    "orthogonal phases": lambda X: random(
        family=dkl.Laplacian(sampling="iid", pairing="phase"), scaling="quantile"
    ).fit(X),
    "structured": lambda X: random(family=dkl.Gaussian(sampling="structured")).fit(X),
    "margin, numbers": lambda X: dkl.MarginFeatures(**MARGIN).fit(X, numbers(X)),
    "margin, three classes": lambda X: dkl.MarginFeatures(**MARGIN).fit(X, X[:, :3].argmax(axis=1)),
    "margin, log loss": lambda X: dkl.MarginFeatures(loss="log_loss", **MARGIN).fit(X, X[:, 0] * X[:, 1] > 0),
    "margin, refined": lambda X: dkl.MarginFeatures(refine=1, **MARGIN).fit(X, X[:, 0] * X[:, 1] > 0),
    "peaks, grid": lambda X: dkl.PeakFeatures(n_features=8, method="grid", **SMALL).fit(X[:, :2], X[:, 0] > 0),
    "leverage, weighted": lambda X: dkl.LeverageFeatures(n_candidates=80, n_features=20, mu=1e-2, **SMALL).fit(X),
    "tuned, numbers": lambda X: dkl.TunedRegressor(n_features=20, **SMALL).fit(X, numbers(X)),
    "joint, numbers": lambda X: dkl.JointFeatures(n_candidates=40, **SMALL).fit(X, numbers(X)),
    "default classifier": lambda X: dkl.KernelClassifier(random_state=0, progress=False).fit(X, X[:, 0] > 0),
    "default regressor": lambda X: dkl.KernelRegressor(random_state=0, progress=False).fit(X, numbers(X)),
}


def tell(name: str, found: str) -> None:
    """A line of the answer."""
    sys.stdout.write(f"{name:24} {found[:16]}\n")
    sys.stdout.flush()


def main() -> None:
    """A line a fit: its name and the first sixteen digits of its hash."""
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="threads", num_workers=2):
        make_rows(f"{folder}/rows.zarr")
        for kind in KINDS:
            tell(kind, learned(kind, folder))
        X = make_arrays(2_000)[0]
        for name, fit in IN_MEMORY.items():
            fitted = fit(X)
            rows = X[:50, : fitted.n_features_in_]
            tell(name, digest(fitted, rows))


if __name__ == "__main__":
    main()
