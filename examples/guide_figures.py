"""Figures of the guide that no other script makes, each part by itself: `python examples/guide_figures.py PART`.

    python examples/guide_figures.py joint --data DIR        # weights and machine together, on adult
    python examples/guide_figures.py few-rows --data DIR     # 100 searched features beside 200 plain ones, few rows
    python examples/guide_figures.py narrow                  # aligned beside plain features, bandwidth too narrow
    python examples/guide_figures.py tuned                   # a density and the machine on it, a million rows
    python examples/guide_figures.py bounds --data DIR       # the bounds of learners on adult
    python examples/guide_figures.py explain                 # explanations of a million rows
    python examples/guide_figures.py serve                   # one answer at a time

`--quick` takes few rows and features: seconds, for a look at what is printed. Without DIR the rows of adult are those
of OpenML. Seconds are the processor's. The last line says the day, the commit and the versions.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_friedman1
from sklearn.model_selection import train_test_split

import dkl

sys.path.insert(0, str(Path(__file__).parent / "papers"))
from cells import circumstances, measured_when
from sets import Rows, rows_of

QUIET = {"random_state": 0, "progress": False}
NEWTON = {"loss": "squared_hinge", "solver": "newton", "alpha": "auto", "progress": False}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the processor's seconds that it takes."""
    started = time.process_time()
    return call(), time.process_time() - started


def wrong(model: Any, X: Any, y: np.ndarray) -> float:
    """Percent of the labels."""
    return 100.0 * float(np.mean(model.predict(X) != y))


def adult(options: argparse.Namespace) -> Rows:
    """Training and test rows; a few of breast cancer with `--quick`."""
    if not options.quick:
        return rows_of("adult", options.data)
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return Rows(X[::2], y[::2], X[1::2], y[1::2])


def joint(options: argparse.Namespace) -> Iterator[str]:
    """Learned together, beside as many plain features; with many candidates; with a bandwidth that is too narrow."""
    rows = adult(options)
    n_candidates, many, few = (50, 100, 100) if options.quick else (2_000, 20_000, 8_000)
    features, seconds = timed(lambda: dkl.JointFeatures(None, n_candidates, **QUIET).fit(rows.X, rows.y))
    columns, gap = features.feature_map_.n_features, 100.0 * features.duality_gap_ / features.objective_
    error = wrong(features.machine_, rows.X_test, rows.y_test)
    yield f"{n_candidates:,} candidates: {error:.2f} % wrong, {columns} columns, gap {gap:.2f} %, {seconds:.0f} s"
    plain = dkl.KernelClassifier(dkl.RandomFeatures(n_features=columns), **NEWTON, random_state=0)
    yield f"as many plain columns: {wrong(plain.fit(rows.X, rows.y), rows.X_test, rows.y_test):.2f} % wrong"
    wide, seconds = timed(lambda: dkl.JointFeatures(None, many, max_rows=few, **QUIET).fit(rows.X, rows.y))
    gap = 100.0 * wide.duality_gap_ / wide.objective_
    yield f"{many:,} candidates, {few:,} rows: gap {gap:.2f} %, {seconds:.0f} s"
    narrow = dkl.Gaussian(features.family_.sigma / 3.0)
    X, y, size = rows.X[:few], rows.y[:few], 20 if options.quick else 200
    learned = dkl.JointFeatures(narrow, n_candidates, size, **QUIET).fit(X, y)
    yield f"a third of the bandwidth, joint: {wrong(learned.machine_, rows.X_test, rows.y_test):.1f} % wrong"
    for name, other in (
        ("aligned", dkl.AlignedFeatures(narrow, n_features=size)),
        ("plain", dkl.RandomFeatures(narrow, size)),
    ):
        machine = dkl.KernelClassifier(other, **NEWTON, random_state=0).fit(X, y)
        yield f"a third of the bandwidth, {name}: {wrong(machine, rows.X_test, rows.y_test):.1f} % wrong"


def few_rows(options: argparse.Namespace) -> Iterator[str]:
    """Root mean squared errors in deviations of the targets, a mean over splits, where rows are few."""
    sets = {"Friedman 1": make_friedman1(400, noise=1.0, random_state=0), "diabetes": load_diabetes(return_X_y=True)}
    if not options.quick:
        sets |= {name: rows_of(name, options.data).pooled() for name in ("yacht", "boston", "auto_mpg")}
    for name, (X, y) in sets.items():
        errors: dict[str, list[float]] = {}
        for seed in range(1 if options.quick else 10):
            train, test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=seed)
            for arm, features in (
                ("100 searched", dkl.MarginFeatures(n_features=100, scaling="standard")),
                ("200 plain", dkl.RandomFeatures(n_features=200, scaling="standard")),
            ):
                machine = dkl.KernelRegressor(
                    features, solver="newton", alpha="auto", random_state=seed, progress=False
                )
                off = machine.fit(train, y_train).predict(test) - y_test
                errors.setdefault(arm, []).append(float(np.sqrt(np.mean(off**2)) / y_train.std()))
        yield f"{name}: " + ", ".join(f"{arm} {np.mean(each):.3f}" for arm, each in errors.items())


def narrow(options: argparse.Namespace) -> Iterator[str]:
    """How many points aligned and posterior features are ahead of plain ones on digits, mean and range over seeds."""
    X, y = load_digits(return_X_y=True)
    for factor in (1.0, 1.0 / 3.0):
        for size in (60, 150):
            gains: dict[str, list[float]] = {"aligned": [], "posterior": []}
            for seed in range(1 if options.quick else 6):
                train, test, y_train, y_test = train_test_split(X, y, random_state=seed)
                sigma = dkl.RandomFeatures(n_features=2, random_state=seed).fit(train).family_.sigma * factor
                count = 200 if options.quick else 4_000

                def points(features: Any, data: Any = (train, test, y_train, y_test), seed: int = seed) -> float:
                    machine = dkl.KernelClassifier(features, random_state=seed, progress=False)
                    return 100.0 * machine.fit(data[0], data[2]).score(data[1], data[3])

                plain = points(dkl.RandomFeatures(dkl.Gaussian(sigma), size))
                gains["aligned"].append(points(dkl.AlignedFeatures(dkl.Gaussian(sigma), count, size)) - plain)
                gains["posterior"].append(points(dkl.PosteriorFeatures(dkl.Gaussian(sigma), count, size)) - plain)
            for name, each in gains.items():
                spread = f"{np.mean(each):+.1f} points, {min(each):+.1f} to {max(each):+.1f}"
                yield f"{name}, {factor:.2g} of the median bandwidth, {size} columns: {spread}"


def tuned(options: argparse.Namespace) -> Iterator[str]:
    """Rows of 20 columns from a store, two classes that a few frequencies tell apart."""
    n_rows, n_features = (2_000, 40) if options.quick else (1_000_000, 1_600)
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 20), dtype=np.float32)
    score = np.sin(X[:, 0] + X[:, 1]) + np.cos(X[:, 2] - X[:, 3]) * X[:, 4] + 0.5 * generator.standard_normal(n_rows)
    with tempfile.TemporaryDirectory() as folder:
        labels = dkl.create_dataset(f"{folder}/labels.zarr", X, score > 0)
        numbers = dkl.create_dataset(f"{folder}/numbers.zarr", X, score)
        del X
        for rows, learner in (
            (numbers, dkl.TunedRegressor(n_features=n_features, **QUIET)),
            (labels, dkl.TunedClassifier(n_features=n_features, **QUIET)),
        ):
            promised = dkl.plan(learner, rows).peak_bytes / 2**30
            fitted, seconds = timed(partial(learner.fit, rows))
            said = f"residual {fitted.residual_:.1e}" if hasattr(fitted, "residual_") else fitted.message_
            yield f"{type(learner).__name__}, {n_rows:,} rows: {seconds:.0f} s, {said}; planned {promised:.1f} GiB"


def bounds(options: argparse.Namespace) -> Iterator[str]:
    """What learners say of their own expected loss, with their defaults and, of aligned ones, a smaller ball."""
    rows, size = adult(options), 100 if options.quick else 20_000
    for learner in (
        dkl.PosteriorFeatures(None, size, **QUIET),
        dkl.AlignedFeatures(None, size, **QUIET),
        dkl.AlignedFeatures(None, size, rho=1.0, **QUIET),
    ):
        yield f"{learner!r}\n{learner.fit(rows.X, rows.y).bounds_}"


def wide_model(options: argparse.Namespace) -> tuple[Any, np.ndarray]:
    """A fitted machine of 500 random features on 100 columns, and rows to ask it about."""
    n_rows, n_features = (1_000, 40) if options.quick else (1_000_000, 500)
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 100), dtype=np.float32)
    y = X[:, 0] * X[:, 1] + X[:, 2] > 0
    machine = dkl.KernelClassifier(dkl.RandomFeatures(n_features=n_features), solver="newton", alpha=1e-4, **QUIET)
    return machine.fit(X[:50_000], y[:50_000]), X


def explain(options: argparse.Namespace) -> Iterator[str]:
    """Importance, dependence of all columns, and contributions to a row's prediction."""
    model, X = wide_model(options)
    _, seconds = timed(lambda: dkl.explain.importance(model, X))
    yield f"importance: {seconds:.1f} s"
    _, seconds = timed(lambda: dkl.explain.partial_dependence(model, X, list(range(100))))
    yield f"dependence of all columns: {seconds:.1f} s"
    background, seconds = timed(lambda: dkl.explain.background_of(model, X))
    yield f"background of contributions: {seconds:.1f} s"
    rows = X[:100]
    _, seconds = timed(lambda: dkl.explain.contributions(model, rows, background))
    yield f"contributions to a row: {1e3 * seconds / len(rows):.1f} ms"


def serve(options: argparse.Namespace) -> Iterator[str]:
    """One row at a time, of models of several kinds, and all rows at once."""
    model, X = wide_model(options)
    calls, few, size = (100, 500, 40) if options.quick else (20_000, 5_000, 500)
    rows, labels = X[:few], X[:few, 0] * X[:few, 1] + X[:few, 2] > 0
    harmonics = dkl.SphericalHarmonics(max_degree=2, project=True)
    models = {"random features": model}
    for name, features in {
        "scaling by quantiles": dkl.RandomFeatures(n_features=size, scaling="quantile"),
        "spherical harmonics": dkl.RandomFeatures(harmonics, size),
        "both": dkl.RandomFeatures(harmonics, size, scaling="quantile"),
        "landmarks with frequencies of their own": dkl.LandmarkFeatures(n_landmarks=size // 2),
        "landmarks with shared frequencies": dkl.LandmarkFeatures(n_landmarks=size // 2, pool="shared"),
        "steps": dkl.StepFeatures(n_features=size),
        "a Gaussian kernel at landmarks": dkl.NystromFeatures(n_features=size),
    }.items():
        machine = dkl.KernelClassifier(features, solver="newton", alpha=1e-4, loss="squared_error", **QUIET)
        models[name] = machine.fit(rows, labels)

    def microseconds(fitted: Any, row: Any) -> float:
        predictor = fitted.predictor()
        predictor.predict(row)
        return 1e6 * timed(lambda: [predictor.predict(row) for _ in range(calls)])[1] / calls

    for name, fitted in models.items():
        columns = fitted.features_.feature_map_.n_features
        yield f"one row, {columns} features, {name}: {microseconds(fitted, X[0]):.0f} us"
    table = pd.DataFrame(rows[:, :14], columns=[f"column {number}" for number in range(14)])
    named = dkl.KernelClassifier(dkl.RandomFeatures(n_features=size), solver="newton", alpha=1e-4, **QUIET)
    spent = microseconds(named.fit(table, labels), table.iloc[0].to_dict())
    yield f"one row of a table with 14 columns, as a dict: {spent:.0f} us"
    _, whole = timed(lambda: model.predict(X))
    _, bare = timed(lambda: mapped_and_multiplied(model, X))
    yield f"{len(X):,} rows: {whole:.1f} s, {whole / bare:.2f} times as long as map and product in pieces of 4,096 rows"


def mapped_and_multiplied(model: Any, X: np.ndarray) -> None:
    """What a prediction of many rows cannot do without."""
    for start in range(0, len(X), 4_096):
        model.features_.transform(X[start : start + 4_096]) @ model.linear_.coef_.T


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "joint": joint,
    "few-rows": few_rows,
    "narrow": narrow,
    "tuned": tuned,
    "bounds": bounds,
    "explain": explain,
    "serve": serve,
}


def run(arguments: list[str] | None = None) -> Iterator[str]:
    """The lines of the parts that are asked for, and what they were measured with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, help="folder with adult.npz, yacht.npz, boston.npz and auto_mpg.npz")
    parser.add_argument("--quick", action="store_true", help="few rows and features: seconds")
    options = parser.parse_args(arguments)
    for part in options.parts:
        yield f"## {part}"
        yield from PARTS[part](options)
    versions = ", ".join(f"{package} {version(package)}" for package in ("dkl", "numpy", "scikit-learn"))
    yield f"{measured_when([circumstances()])}, Python {platform.python_version()}, {versions}"


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
