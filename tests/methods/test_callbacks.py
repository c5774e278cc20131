"""Callbacks hear the rounds of a fit and can end it; what is learned until then is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dkl
from dkl.events import Event, StopRequested, fan_out

LEARNER = dkl.MarginFeatures(n_features=40, features_per_round=4, random_state=0)


def rows(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 3))
    return X, X[:, 0] * X[:, 1] > 0.0


class Watching:
    """A callback of scikit-learn's protocol that notes tasks, and ends the rounds at so many features."""

    def __init__(self, most: float = np.inf) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.calls: list[str] = []
        self.most = most

    def setup(self, estimator: Any, context: Any) -> None:
        self.calls.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.calls.append("begin")

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        self.calls.append("end")
        self.heard.append((context.task_name, context.figures))
        return context.figures.get("n_features", 0) >= self.most


def test_a_callback_sees_every_round_and_changes_no_bit() -> None:
    pytest.importorskip("sklearn.callback")
    X, y = rows()
    watching = Watching()
    heard = clone(LEARNER).set_callbacks(watching).fit(X, y)
    sizes = [figures["n_features"] for _, figures in watching.heard if figures]
    assert sizes == [line["n_features"] for line in heard.history_]
    assert [watching.calls[0], watching.calls[-1]] == ["setup", "teardown"]
    assert watching.calls.count("begin") == watching.calls.count("end") == heard.provenance_.passes + 1
    assert np.array_equal(heard.transform(X), clone(LEARNER).fit(X, y).transform(X))


def test_a_callback_ends_the_rounds_and_keeps_what_they_found() -> None:
    pytest.importorskip("sklearn.callback")
    X, y = rows()
    learner = clone(LEARNER).set_callbacks(Watching(most=8)).fit(X, y)
    assert 8 <= learner.transform(X).shape[1] < 40
    assert learner.message_.startswith("a callback ended the rounds")
    scores = learner.transform(X) @ learner.coef_[0] + learner.intercept_[0]
    assert np.mean((scores > 0.0) == y) > 0.7


def stop_after(epochs: int) -> Any:
    def heard(event: Event) -> None:
        if event.name == "rounds" and event.kind == "advanced" and event.done >= epochs:
            raise StopRequested("enough")

    return heard


def test_a_function_that_hears_events_can_end_the_epochs() -> None:
    X, y = rows()
    features = dkl.RandomFeatures(n_features=10, random_state=0)
    model = dkl.KernelClassifier(features, epochs=9, random_state=0)
    stopped = clone(model).set_params(progress=stop_after(3)).fit(X, y)
    assert stopped.n_epochs_ == 3
    assert np.array_equal(stopped.linear_.coef_, clone(model).set_params(epochs=3).fit(X, y).linear_.coef_)


def test_a_request_at_every_event_ends_a_fit_as_soon_as_there_is_a_model() -> None:
    def always(event: Event) -> None:
        raise StopRequested

    X, y = rows()
    learner = clone(LEARNER).set_params(scaling="standard", progress=always)
    model = dkl.KernelClassifier(learner, loss="squared_hinge", solver="newton", alpha=1e-4, progress=always)
    model.fit(X, y)
    assert model.message_.startswith("a subscriber ended the rounds")
    assert 0 < model.feature_map_.n_features < 40


def test_a_fit_that_was_ended_comes_back_from_its_checkpoint_as_it_was(tmp_path: Any) -> None:
    X, y = rows()
    learner = clone(LEARNER).set_params(checkpoint=str(tmp_path / "run"))
    ended = clone(learner).set_params(progress=stop_after(3)).fit(X, y)
    assert np.array_equal(learner.fit(X, y).transform(X), ended.transform(X))


SMALL = {"random_state": 0, "progress": False}
# what ends, the rounds that the request comes after, and those that there would be
ENDED: dict[str, tuple[Any, int]] = {
    "game": (dkl.MarginFeatures(dkl.Gaussian(1.0), n_features=6, solver="game", features_per_round=2, **SMALL), 1),
    "excessive gap": (
        dkl.MarginFeatures(dkl.Coordinates(), n_features=6, solver="game", dynamics="excessive-gap", rounds=2, **SMALL),
        3,
    ),
    "joint": (dkl.JointFeatures(dkl.Gaussian(1.0), n_candidates=40, tol=1e-6, dtype="float64", **SMALL), 2),
    "hinge": (dkl.TunedClassifier(20, family=dkl.Gaussian(1.0), tol=1e-8, **SMALL), 4),
    "adam": (dkl.TunedClassifier(20, family=dkl.Gaussian(1.0), solver="adam", epochs=9, **SMALL), 3),
    "landmarks": (dkl.LandmarkFeatures(n_landmarks=4, landmarks="kmeans", rounds=9, **SMALL), 2),
    "Newton steps": (
        dkl.KernelClassifier(
            dkl.RandomFeatures(dkl.Gaussian(1.0), n_features=20, **SMALL),
            loss="squared_hinge",
            solver="newton",
            alpha=1e-6,
            **SMALL,
        ),
        2,
    ),
}


@pytest.mark.parametrize("case", ENDED)
def test_a_fit_ends_on_request_with_the_model_so_far_and_says_so(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.methods.landmarks.learner.SAMPLE_BYTES", 2_000)
    X, _ = rows(200)
    y = X[:, 0] * X[:, 1] + X[:, 2] > 0.0
    estimator, after = ENDED[case]
    rounds: dict[bool, int] = {}
    for stops in (True, False):
        heard: list[Event] = []
        subscribers = (heard.append, stop_after(after)) if stops else (heard.append,)
        fitted = clone(estimator).set_params(progress=fan_out(*subscribers)).fit(X, y)
        assert fitted.message_.startswith("enough") == stops
        rounds[stops] = sum(event.name == "rounds" and event.kind == "advanced" for event in heard)
        predicts = getattr(fitted, "machine_", fitted)
        assert predicts.score(X, y) > 0.65 if hasattr(predicts, "score") else np.isfinite(fitted.transform(X)).all()
    assert rounds[True] < rounds[False]


def test_the_callbacks_of_scikit_learn_work() -> None:
    callback = pytest.importorskip("sklearn.callback")
    X, y = rows()
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10, random_state=0), epochs=3, random_state=0)
    model.set_callbacks(monitor, callback.ProgressBar()).fit(X, y)
    scores = [line["accuracy"] for line in monitor.get_logs().data]
    assert len(scores) == 4
    # the whole fit, then its epochs
    assert scores[0] == scores[-1] == model.score(X, y)


@pytest.mark.parametrize("solver", ["full", "adam"])
def test_the_score_of_a_round_is_that_of_a_fit_that_ended_there(solver: str) -> None:
    callback = pytest.importorskip("sklearn.callback")
    X, y = rows()
    model = dkl.TunedClassifier(10, family=dkl.Gaussian(1.0), solver=solver, epochs=4, tol=0.05, **SMALL)
    monitor, heard = callback.ScoringMonitor(scoring="accuracy"), list[Event]()
    watched = clone(model).set_params(progress=heard.append).set_callbacks(monitor).fit(X, y)
    of_fit, *scores = (line["accuracy"] for line in monitor.get_logs().data)
    assert of_fit == watched.score(X, y)
    first = sum(event.kind == "advanced" for event in heard if event.name == "rounds") - len(scores) + 1
    ended = clone(model).set_params(progress=stop_after(first)).fit(X, y)
    assert ended.score(X, y) == scores[0]


def test_a_machine_is_scored_while_its_features_are_found() -> None:
    callback = pytest.importorskip("sklearn.callback")
    X, y = rows()
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = dkl.KernelClassifier(clone(LEARNER), loss="squared_hinge", solver="newton", alpha=1e-4, **SMALL)
    model.set_callbacks(monitor).fit(X, y)
    names = [line["task_name"] for line in monitor.get_logs().data]
    assert names.count("newton step") >= 2
    # a line of the history is of the features that its round began with
    begun = sum(line["n_features"] > 0.0 for line in model.features_.history_)
    assert sum(name.startswith("corrective round") for name in names) == begun + 1
