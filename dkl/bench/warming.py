"""Compiling the kernels beforehand: small fits of every kind, and what was compiled while they ran."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from dkl.data.create import create_dataset
from dkl.errors import without_hints
from dkl.explain.contributions import contributions
from dkl.explain.dependence import partial_dependence
from dkl.explain.importance import importance
from dkl.features.families import ArcCosine, Cauchy, Gaussian, Laplacian, Matern
from dkl.features.harmonics import SphericalHarmonics
from dkl.features.sparse_frequencies import SparseFrequencies
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.process import Compiled, compiling, compiling_at_once
from dkl.registry import LEARNERS, learner_entry

# Rows enough for every kind of features to be tried, and blocks enough for a pass to have several.
_ROWS, _COLUMNS, _BLOCK = 300, 6, 120
_SIZE = 16

Job = Callable[[], object]


def warm_up(folder: str, said: Callable[[str, float], None] = lambda name, seconds: None) -> Compiled:
    """Fit, ask and explain a small model of every kind, so that Numba's cache has all kernels afterwards.

    Parameters
    ----------
    folder : str
        For a store of a few hundred rows.
    said : callable
        Called with the name and the seconds of each job when it is done.

    Returns
    -------
    Compiled
        What was not in the cache before.
    """
    # Rows so few would be left to NumPy where there is a form for it.
    with compiling() as compiled, compiling_at_once(), warnings.catch_warnings(), without_hints():
        # Fits so small stop early, and nobody relies on them.
        warnings.simplefilter("ignore")
        for name, job in _jobs(folder):
            started = time.perf_counter()
            job()
            said(name, time.perf_counter() - started)
    return compiled


def _rows(dtype: str = "float64") -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Random rows, with targets of every kind."""
    X = np.random.default_rng(0).normal(size=(_ROWS, _COLUMNS)).astype(dtype)
    value = X[:, 0] * X[:, 1] + X[:, 2]
    return X, {"two": value > 0, "three": np.digitize(value, [-0.5, 0.5]), "numbers": value.astype(np.float64)}


def _machine(target: str, features: Any = "auto", **given: Any) -> Any:
    """A machine for targets of this kind."""
    machine = KernelRegressor if target == "numbers" else KernelClassifier
    return machine(features, random_state=0, progress=False, **given)


def _asked(model: BaseEstimator, X: Any) -> None:
    """Every answer that a model gives, in every form."""
    model.predict(X)
    if hasattr(model, "predict_proba"):
        model.predict_proba(X)
    if not sparse.issparse(X):
        one = model.predictor()
        one.predict(X[:1])
        one.predict(X)


def _fitted_and_asked(model: BaseEstimator, rows: Any, y: np.ndarray) -> None:
    """A model fitted, and every answer that it gives."""
    _asked(model.fit(rows, y), rows)


def _explained(model: BaseEstimator, X: np.ndarray) -> None:
    """Every explanation of a model."""
    importance(model, X, progress=False)
    partial_dependence(model, X, [0, (0, 1)], resolution=5, progress=False)
    contributions(model, X[:2], X, progress=False)


def _jobs(folder: str) -> Iterator[tuple[str, Job]]:
    """Name and work of everything that is done once: what machines choose among first, since most fits begin so."""
    for dtype in ("float32", "float64"):
        X, targets = _rows(dtype)
        for target, y in targets.items():
            given = X, y, target, f"{folder}/{target}-{dtype}.zarr"
            yield f"auto on {dtype} rows, {target}", partial(_whole, *given)
    X, targets = _rows()
    few = sparse.random_array((_ROWS, 40), density=0.1, format="csr", random_state=0, dtype=np.float32)
    for target, y in targets.items():
        yield f"auto on sparse rows, {target}", partial(_fitted_and_asked, _machine(target), few, y)
        for entry in LEARNERS:
            if target == "numbers" and entry.needs_classes:
                continue
            # Steps are of dense columns alone.
            for rows in (X,) if entry.key == "steps" else (X, few):
                name = f"{entry.key} on {'sparse' if rows is few else 'dense'} rows, {target}"
                yield name, partial(_learned, rows, y, entry.key, target)
        tuned = TunedRegressor if target == "numbers" else TunedClassifier
        for rows in (X, few):
            machine = tuned(n_features=_SIZE, random_state=0, progress=False)
            yield f"tuned, {target}", partial(_fitted_and_asked, machine, rows, y)
    families: list[Any] = [Laplacian(), Cauchy(), Matern(1.5), ArcCosine(1), Gaussian(pairing="phase")]
    families += [Gaussian(sampling=sampling) for sampling in ("orthogonal", "structured")]
    families.append(SparseFrequencies(Gaussian(), share=0.5))
    for family in families:
        for rows in (X, few, few.toarray()):
            yield repr(family), partial(_of_family, rows, targets["two"], family)
    sphere = X / np.linalg.norm(X, axis=1, keepdims=True)
    yield "harmonics", partial(_of_family, sphere, targets["two"], SphericalHarmonics(2))
    for further in ({"refine": 2}, {"solver": "game"}, {"sparse_share": 1.0}):
        features: Any = MarginFeatures(n_features=_SIZE).set_params(**further)
        yield f"margin with {further}", partial(_machine("two", features).fit, X, targets["two"])
    for scaling in ("minmax", "unit", "quantile"):
        features = RandomFeatures(n_features=_SIZE, scaling=scaling)
        yield f"scaling {scaling}", partial(_machine("two", features).fit, X, targets["two"])
    joint = _machine("three", RandomFeatures(n_features=_SIZE), loss="softmax", solver="sgd", epochs=2)
    yield "all classes together by steps", partial(joint.fit, X, targets["three"])


def _whole(X: np.ndarray, y: np.ndarray, target: str, place: str) -> None:
    """The machine that chooses, from memory and from a store, asked and explained."""
    dataset = create_dataset(place, X, y, rows_a_block=_BLOCK, overwrite=True)
    for rows in ((X, y), (dataset,)):
        model = _machine(target).fit(*rows)
    _asked(model, X)
    model.score(dataset)
    _explained(model, X)


def _learned(rows: Any, y: np.ndarray, key: str, target: str) -> None:
    """A machine on the features of one learner, by exact and by stochastic steps."""
    learner = learner_entry(key).learner_class()
    size = "n_landmarks" if "n_landmarks" in learner.get_params() else "n_features"
    learner.set_params(**{size: _SIZE, "progress": False})
    if "n_candidates" in learner.get_params():
        learner.set_params(n_candidates=8 * _SIZE)
    model = None
    for solver in ("newton", "sgd"):
        exact = {"loss": "squared_error" if target == "numbers" else "squared_hinge", "alpha": "auto"}
        model = _machine(target, learner, solver=solver, **(exact if solver == "newton" else {"epochs": 2}))
        model.fit(rows, y)
    _asked(model, rows)
    if not sparse.issparse(rows):
        _explained(model, rows)


def _of_family(rows: Any, y: np.ndarray, family: Any) -> None:
    """Features of one family, drawn and chosen."""
    drawn = RandomFeatures(family, n_features=_SIZE, scaling=None)
    chosen = AlignedFeatures(family, n_candidates=8 * _SIZE, n_features=_SIZE)
    for features in (drawn, chosen):
        _asked(_machine("two", features, epochs=2).fit(rows, y), rows)
