"""Small fits of every kind, and one text for all that they have learned, bit by bit."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
from sklearn.base import BaseEstimator, clone

import dkl
from dkl.data.create import create_dataset
from dkl.data.dataset import open_dataset
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.density.learner import TunedClassifier

EXACT = {"solver": "newton", "loss": "squared_hinge", "alpha": 1e-3}
SMALL = {"scaling": "standard", "random_state": 0, "progress": False}
KINDS: dict[str, Callable[[], Any]] = {
    "aligned": lambda: on(dkl.AlignedFeatures(n_candidates=200, n_features=40, **SMALL), **EXACT),
    "posterior": lambda: on(dkl.PosteriorFeatures(n_candidates=200, n_features=40, **SMALL), **EXACT),
    "leverage": lambda: on(dkl.LeverageFeatures(n_candidates=100, n_features=40, **SMALL), **EXACT),
    "landmarks": lambda: on(dkl.LandmarkFeatures(n_landmarks=20, n_candidates=30, **SMALL), **EXACT),
    "peaks": lambda: on(dkl.PeakFeatures(n_features=20, search_rows=300, **SMALL), **EXACT),
    "margin": lambda: on(dkl.MarginFeatures(n_features=40, search_rows=300, **SMALL), **EXACT),
    "game": lambda: dkl.MarginFeatures(
        n_features=16, solver="game", features_per_round=2, chains=10, steps=5, search_rows=150, **SMALL
    ),
    "joint": lambda: dkl.JointFeatures(n_candidates=60, **SMALL),
    "tuned": lambda: TunedClassifier(n_features=40, solver="full", max_passes=40, tol=0.5, **SMALL),
    "adam": lambda: TunedClassifier(n_features=40, solver="adam", epochs=2, **SMALL),
    "epochs": lambda: on(
        dkl.RandomFeatures(n_features=60, **SMALL), epochs=6, early_stopping=True, calibrate=True, patience=6
    ),
}


def on(features: Any, **options: Any) -> Any:
    """A classifier on these features."""
    return KernelClassifier(features=features, random_state=0, progress=False, **options)


def make_arrays(n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes, some of whose rows weigh more."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 6)).astype(np.float32)
    y = (np.cos(2 * X[:, 0]) + X[:, 1] > 0).astype(int)
    return X, y, generator.integers(1, 3, n_rows)


def make_rows(path: str) -> None:
    """A store of 20 blocks."""
    X, y, weight = make_arrays(2_000)
    create_dataset(path, X, y, sample_weight=weight, rows_a_block=100)


def numbers_of(value: Any) -> Iterator[bytes]:
    """The bits of all arrays and numbers that a fit has learned, in the order of their names."""
    if isinstance(value, BaseEstimator):
        learned = {name: one for name, one in vars(value).items() if name.endswith("_") and name != "stats_"}
        for _, one in sorted(learned.items()):
            yield from numbers_of(one)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield value.tobytes()
    elif isinstance(value, int | float | np.number):
        yield repr(float(value)).encode()


def digest(estimator: Any, rows: Any) -> str:
    """One text that differs wherever one bit of the model or of its map does."""
    found = hashlib.sha256(b"".join(numbers_of(estimator)))
    found.update(np.asarray(getattr(estimator, "features_", estimator).transform(rows)).tobytes())
    return found.hexdigest()


def learned(kind: str, folder: str, checkpoint: str | None = None) -> str:
    """The digest of a fit of this kind on the rows of `folder`."""
    dataset = open_dataset(f"{folder}/rows.zarr")
    estimator = clone(KINDS[kind]()).set_params(checkpoint=checkpoint)
    return digest(estimator.fit(dataset), dataset.X[:50].compute(scheduler="synchronous"))


def drive(kind: str, folder: str, checkpoint: str | None, answer: str, stores: Mapping[str, Any]) -> None:
    """What the process of a driver does: fit on threads, and write the digest down; `stores` are options of fsspec."""
    fsspec.config.conf.update(stores)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it starts with &
    try:
        with dask.config.set(scheduler="threads", num_workers=2):
            found = learned(kind, folder, checkpoint)
    except KeyboardInterrupt:
        sys.exit(130)
    Path(answer).write_text(found)
