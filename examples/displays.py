"""Every picture that `dkl.plots` draws, each by a function of a few lines, on small sets.

python examples/displays.py                           # writes a PNG a display into examples/pictures
python examples/displays.py --output FOLDER --only kernel,sphere

Seconds of fits are the processor's, of all threads together: other work on the machine does not change them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import repeat
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits

import dkl
from dkl.explain import contributions, importance, partial_dependence
from dkl.figure import Display, pyplot
from dkl.plots import (
    AnswersDisplay,
    ContributionsDisplay,
    CoverageDisplay,
    DecisionDisplay,
    DependenceDisplay,
    EffectsDisplay,
    HistoryDisplay,
    ImportanceDisplay,
    KernelDisplay,
    LandscapeDisplay,
    SphereDisplay,
    TrialsDisplay,
    WeightedRowsDisplay,
)
from dkl.testing.synthetic import windmill

DOTS = 72


def searched() -> tuple[dkl.MarginFeatures, np.ndarray, np.ndarray]:
    """Frequencies that were searched for on the windmill, and its rows."""
    X, y = windmill(1_000)
    return dkl.MarginFeatures(n_features=40, random_state=0).fit(X, y), X, y


def patients() -> tuple[dkl.KernelRegressor, dkl.explain.Importance, object, np.ndarray]:
    """A model of scikit-learn's diabetes, what it says of its columns, and the rows."""
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    features = dkl.RandomFeatures(n_features=100, scaling="standard", random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", alpha="auto", random_state=0).fit(X, y)
    return model, importance(model, X), X, y


def comparison() -> Display:
    X, y = load_digits(return_X_y=True)
    learners = ["random", "aligned", "margin"]
    # what the first fits load and compile is no part of anybody's seconds
    dkl.compare(X, y, learners=learners, n_features=(20,), random_state=0)
    return dkl.compare(X, y, learners=learners, n_features=(20, 50, 100), random_state=0).plot()


def decision() -> Display:
    X, y = windmill(1_000)
    model = dkl.KernelClassifier("margin", solver="newton", alpha="auto", random_state=0).fit(X, y)
    return DecisionDisplay.from_estimator(model, X, y)


def weighted_rows() -> Display:
    return WeightedRowsDisplay.from_estimator(*searched(), title="Rows near the margin weigh most")


def landscape() -> Display:
    return LandscapeDisplay.from_estimator(*searched(), limit=14.0)


def history() -> Display:
    return HistoryDisplay.from_estimator(searched()[0], title="MarginFeatures on the windmill")


def kernel() -> Display:
    generator = np.random.default_rng(0)
    X = generator.uniform(-3, 3, (400, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * generator.normal(size=400)
    model = dkl.TunedRegressor(n_features=300, lam=1e-4, Lam=1e-2, random_state=0).fit(X, y)
    return KernelDisplay.from_estimator(model)


def effects() -> Display:
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (1_000, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    features = dkl.StepFeatures(n_features=100, random_state=0)
    return EffectsDisplay.from_estimator(dkl.KernelRegressor(features, solver="newton", random_state=0).fit(X, y), X)


def importances() -> Display:
    return ImportanceDisplay(patients()[1])


def dependence() -> Display:
    model, found, X, _ = patients()
    first, second = (found.names[column] for column in found.order[:2])
    return DependenceDisplay(partial_dependence(model, X, [first, second, (first, second)]))


def row() -> Display:
    model, _, X, _ = patients()
    return ContributionsDisplay(contributions(model, X[:1], X))


def answers() -> Display:
    X, y = load_digits(return_X_y=True)
    held_out = np.arange(len(y)) % 4 == 0
    features = dkl.RandomFeatures(n_features=200, random_state=0)
    model = dkl.KernelClassifier(features, solver="newton", calibrate=True, random_state=0)
    return AnswersDisplay.from_estimator(model.fit(X[~held_out], y[~held_out]), X[held_out], y[held_out])


def coverage() -> Display:
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (3_000, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * generator.normal(size=3_000)
    features = dkl.RandomFeatures(n_features=100, random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", conformal_fraction=0.2, random_state=0)
    return CoverageDisplay.from_estimator(model.fit(X[:2_000], y[:2_000]), X[2_000:], y[2_000:])


def drift() -> Display:
    generator = np.random.default_rng(0)
    last_year, this_year = generator.normal(size=(2, 1_000, 5))
    this_year[:, 2] += 0.5
    return dkl.drift(last_year, this_year, random_state=0).plot()


def sphere() -> Display:
    return SphereDisplay.from_functions({"a harmonic": lambda X: X[:, 0] * X[:, 1] * X[:, 2]}, resolution=121)


def trials() -> Display:
    X, y = load_diabetes(return_X_y=True)
    model = dkl.KernelRegressor("random", solver="newton", random_state=0)
    found = dkl.tune(model, X, y, space={"alpha": (1e-6, 1e1, "log")}, n_trials=12, random_state=0)
    return TrialsDisplay.from_tuning(found)


DISPLAYS: dict[str, Callable[[], Display]] = {
    "comparison": comparison,
    "decision": decision,
    "weighted_rows": weighted_rows,
    "landscape": landscape,
    "history": history,
    "kernel": kernel,
    "effects": effects,
    "importance": importances,
    "dependence": dependence,
    "row": row,
    "answers": answers,
    "coverage": coverage,
    "drift": drift,
    "sphere": sphere,
    "trials": trials,
}


def seconds_of_one_answer() -> dict[str, float]:
    """The median seconds in which one row is answered, by the estimator and by its predictor."""
    X, y = load_digits(return_X_y=True)
    features = dkl.RandomFeatures(n_features=500, random_state=0)
    model = dkl.KernelClassifier(features, solver="newton", random_state=0).fit(X, y)
    answers = {"predict": partial(model.predict, X[:1]), "predictor()": partial(model.predictor().predict, X[0])}
    return {name: float(np.median(repeat(answer, number=1, repeat=200))) for name, answer in answers.items()}


def choose_explain_ship(path: Path) -> None:
    """The second picture of the README: a learner is chosen, a prediction explained, a model served."""
    figure, (choose, explain, ship) = pyplot().subplots(1, 3, figsize=(11, 3.1), layout="constrained")
    found = dkl.compare(
        *load_digits(return_X_y=True),
        learners=["random", "aligned", "margin"],
        n_features=(20, 50, 100),
        random_state=0,
    )
    for name, points in found.table.groupby("learner", sort=False):
        choose.plot(points["n_features"], points["score"], "o-", label=name)
    choose.set(title="Choose: digits", xlabel="features", ylabel="accuracy on held-out rows")
    choose.legend(frameon=False, fontsize=8)
    model, _, X, _ = patients()
    ContributionsDisplay(contributions(model, X[:1], X)).plot(explain)
    explain.set_title("Explain: one patient (diabetes)")
    seconds = seconds_of_one_answer()
    ship.barh(list(seconds), [1e6 * value for value in seconds.values()], color="#0072b2")
    ship.set(title="Ship: one row, 500 features", xlabel="microseconds of an answer")
    figure.savefig(path, dpi=DOTS)
    pyplot().close(figure)


def shrink(path: Path) -> None:
    """Keep 96 colours of a picture: a repository holds it for ever."""
    Image.open(path).convert("RGB").quantize(96).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "pictures")
    parser.add_argument("--only", help="names, separated by commas")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(",") if options.only else (*DISPLAYS, "choose_explain_ship"):
        path = options.output / f"{name}.png"
        if name in DISPLAYS:
            with patch("dkl.model_selection.evaluation.time", SimpleNamespace(perf_counter=time.process_time)):
                display = DISPLAYS[name]().plot()
            if name == "comparison":
                display.figure_.axes[-1].set_xlabel("processor seconds to learn and fit")
            display.figure_.savefig(path, dpi=DOTS)
            pyplot().close(display.figure_)
        else:
            choose_explain_ship(path)
        shrink(path)
        print(path, flush=True)


if __name__ == "__main__":
    main()
