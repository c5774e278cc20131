"""A fit that is stopped, wherever and however, leaves the model of the last fit whole, or none."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier

import dkl
from dkl.events import Event
from dkl.registry import LEARNERS

pytestmark = pytest.mark.usefixtures("little_work")


class Stopper:
    """A subscriber that counts events, and raises at the event of a number."""

    def __init__(self, at: int | None = None, error: BaseException | None = None) -> None:
        self.at, self.error, self.heard = at, error or KeyboardInterrupt(), 0

    def __deepcopy__(self, memo: object) -> Stopper:
        return self

    def __call__(self, event: Event) -> None:
        self.heard += 1
        if self.at is not None and self.heard > self.at:
            raise self.error


def rows(seed: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose two fits have nothing in common: other labels, another scale."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(120, 3)) * (1.0 + 9.0 * seed) + seed
    order = np.argsort(np.argsort(X[:, 0] + X[:, 1] ** 2))
    return X, order * n_classes // len(X) + 10 * seed


def answers(model: Any, X: np.ndarray) -> list[np.ndarray]:
    methods = ("predict", "decision_function", "predict_proba", "transform")
    return [np.asarray(getattr(model, name)(X)) for name in methods if hasattr(model, name)]


def check_every_event(model: Any, refit: Callable[[Any], object], error: BaseException | None = None) -> None:
    """Stop `refit` at each of its events, or at four of more, and compare the model with what it was."""
    X = rows(0, 2)[0]
    before, said = dict(vars(model)), answers(model, X)
    counting = Stopper()
    other = clone(model)
    vars(other).update(before)
    other.progress = counting
    refit(other)
    assert counting.heard > 1, "nothing to stop at"
    # from the first to the last: a fit of n events takes n / 2 fits to stop it at each
    for at in np.unique(np.linspace(0, counting.heard - 1, 4).astype(int)):
        stopper = model.progress = Stopper(int(at), error)
        with pytest.raises(type(stopper.error)):
            refit(model)
        assert stopper.heard > at
        assert {**vars(model), "progress": before["progress"]} == before, f"at event {at}"
    for old, new in zip(said, answers(model, X), strict=True):
        np.testing.assert_array_equal(new, old)


SMALL: dict[str, dict[str, Any]] = {
    "random": {"n_features": 10},
    "aligned": {"n_candidates": 20, "n_features": 10},
    "posterior": {"n_candidates": 20, "n_features": 10},
    "landmarks": {"n_landmarks": 2, "n_candidates": 10},
    "leverage": {"n_candidates": 20, "n_features": 10},
    "peaks": {"n_features": 4, "chains": 4, "steps": 3},
    "margin": {"n_features": 4, "features_per_round": 4, "chains": 4, "steps": 2},
    "nystrom": {"n_features": 10, "landmarks": "kmeans"},
    "steps": {"n_features": 4},
    "joint": {"n_candidates": 3},
}


@pytest.mark.parametrize("entry", LEARNERS, ids=lambda entry: entry.key)
def test_a_learner_whose_refit_is_stopped_at_any_event_is_the_old_one(entry: Any) -> None:
    learner = entry.learner_class(**SMALL[entry.key], random_state=0, progress=False).fit(*rows(0, 2))
    check_every_event(learner, lambda model: model.fit(*rows(1, 3)))


MACHINES: dict[str, BaseEstimator] = {
    "stochastic": dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), epochs=2, random_state=0),
    "calibrated": dkl.KernelClassifier(
        dkl.RandomFeatures(n_features=10), loss="squared_hinge", solver="newton", calibrate=True, random_state=0
    ),
    "given": dkl.KernelClassifier(
        dkl.RandomFeatures(n_features=10), linear=SGDClassifier(random_state=0), epochs=2, random_state=0
    ),
    "searched": dkl.KernelClassifier(
        dkl.MarginFeatures(n_features=4, chains=4, steps=2), solver="newton", random_state=0
    ),
    "regressor": dkl.KernelRegressor(
        dkl.RandomFeatures(n_features=10), solver="newton", conformal_fraction=0.2, random_state=0
    ),
    "tuned": dkl.TunedClassifier(n_features=10, max_passes=3, tol=1.0, random_state=0),
    "tuned by sums": dkl.TunedRegressor(n_features=10, random_state=0),
    "incremental": dkl.BlockIncremental(SGDClassifier(random_state=0), epochs=2, random_state=0),
    "combined": dkl.CombinedFeatures(["random", dkl.StepFeatures(n_features=4)], n_features=10, random_state=0),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_machine_whose_refit_is_stopped_at_any_event_is_the_old_one(name: str) -> None:
    model: Any = clone(MACHINES[name]).set_params(progress=False)
    check_every_event(model.fit(*rows(0, 2)), lambda model: model.fit(*rows(1, 3)))


def test_the_machine_without_settings_survives_a_stop_at_events_all_through_its_fit() -> None:
    X, y = rows(0, 2)
    model = dkl.KernelClassifier(random_state=0, effort="fast", progress=False).fit(X, y)
    counting = Stopper()
    clone(model).set_params(progress=counting).fit(*rows(1, 3))
    before, said = dict(vars(model)), answers(model, X)
    for at in np.unique(np.linspace(0, counting.heard - 1, 4).astype(int)):
        model.progress = Stopper(int(at))
        with pytest.raises(KeyboardInterrupt):
            model.fit(*rows(1, 3))
        assert {**vars(model), "progress": before["progress"]} == before, f"at event {at}"
    for old, new in zip(said, answers(model, X), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("name", ["stochastic", "incremental"])
def test_partial_fit_that_is_stopped_leaves_the_model_it_went_on_from(name: str) -> None:
    X, y = rows(0, 2)
    model: Any = clone(MACHINES[name]).set_params(progress=False).fit(X, y)
    check_every_event(model, lambda model: model.partial_fit(X[:50], y[:50]))
    with pytest.raises(ValueError):
        model.set_params(progress=False).partial_fit(X[:50], y[:50] + 7)
    before = answers(model, X)
    model.partial_fit(X[:50], y[:50])
    assert any(not np.array_equal(old, new) for old, new in zip(before, answers(model, X), strict=True))


@pytest.mark.parametrize("machine", [False, True])
def test_update_that_is_stopped_leaves_the_model_and_its_features(tmp_path: Path, machine: bool) -> None:
    X, y = rows(0, 2)
    data = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, y, rows_a_block=40)
    learner = dkl.AlignedFeatures(
        n_candidates=20, n_features=10, sums=str(tmp_path / "sums"), random_state=0, progress=False
    )
    model: Any = dkl.KernelClassifier(learner, epochs=2, random_state=0, progress=False) if machine else learner
    model.fit(data)
    features = model.features_ if machine else model
    before = dict(vars(features))
    more = data.append(X + 0.5, y)
    check_every_event(model, lambda model: model.update(more))
    assert vars(features) == before | {"progress": features.progress}
    model.set_params(progress=False).update(more)
    assert model.provenance_.rows == 240


class Full(Stopper):
    """Not a subscriber: a checkpoint that finds its disk full at the n-th state."""

    def save(self, *given: Any, **named: Any) -> None:
        self.heard += 1
        if self.heard > (self.at or 0):
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_disk_that_is_full_in_a_refit_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    X, y = rows(0, 2)
    model = dkl.MarginFeatures(**SMALL["margin"], random_state=0, progress=False).fit(X, y)
    before, said = dict(vars(model)), answers(model, X)
    model.checkpoint = str(tmp_path / "states")
    monkeypatch.setattr("dkl.passes.checkpoint.Checkpoint.save", Full(at).save)
    with pytest.raises(OSError, match="No space left"):
        model.fit(*rows(1, 3))
    assert vars(model) == before | {"checkpoint": model.checkpoint}
    np.testing.assert_array_equal(answers(model, X)[0], said[0])


@pytest.mark.parametrize("wrong", ["a label is missing", "a parameter", "infinity"])
def test_rows_and_parameters_that_are_refused_leave_the_old_model(wrong: str) -> None:
    X, y = rows(0, 2)
    model = dkl.KernelClassifier(dkl.StepFeatures(n_features=8), random_state=0, progress=False).fit(X, y)
    before = dict(vars(model))
    other, labels = rows(1, 3)
    labels = labels.astype(float)
    if wrong == "a label is missing":
        labels[5] = np.nan
    elif wrong == "infinity":
        other[5, 1] = np.inf
    else:
        model.alpha = before["alpha"] = -1.0
    with pytest.raises(ValueError):
        model.fit(other, labels)
    assert vars(model) == before


@pytest.mark.parametrize("at", [0, 3])
def test_a_first_fit_that_is_stopped_leaves_a_model_that_is_not_fitted(at: int) -> None:
    X, y = rows(0, 2)
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), random_state=0, progress=Stopper(at))
    parameters = dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert vars(model) == parameters
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_a_callback_that_raises_leaves_the_old_model() -> None:
    pytest.importorskip("sklearn.callback")

    class Failing:
        def setup(self, estimator: Any, context: Any) -> None: ...

        def teardown(self, estimator: Any, context: Any) -> None: ...

        def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

        def on_fit_task_end(self, estimator: Any, context: Any, **named: Any) -> bool:
            raise RuntimeError("a callback fails")

    X, y = rows(0, 2)
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), random_state=0, progress=False).fit(X, y)
    before = dict(vars(model))
    model.set_callbacks(Failing())
    with pytest.raises(RuntimeError, match="a callback fails"):
        model.fit(*rows(1, 3))
    model.set_callbacks()
    assert vars(model) == before


def test_nothing_of_an_earlier_fit_stands_beside_a_later_one() -> None:
    X, y = rows(0, 2)
    model = dkl.KernelClassifier(random_state=0, effort="fast", progress=False).fit(X, y)
    assert model.reasons_
    model.set_params(features=dkl.RandomFeatures(n_features=10), alpha=1e-3, solver="newton").fit(*rows(1, 3))
    fresh = clone(model).fit(*rows(1, 3))
    assert {name for name in vars(model) if name.endswith("_")} == {name for name in vars(fresh) if name.endswith("_")}
    learner = dkl.AlignedFeatures(n_candidates=20, n_features=10, random_state=0, progress=False).fit(X, y)
    learner.fit(X, X[:, 0])
    assert not hasattr(learner, "classes_")


def test_other_threads_see_the_old_model_until_the_new_one_is_whole() -> None:
    X, y = rows(0, 2)
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), random_state=0, progress=False).fit(X, y)
    said = [model.predict(X)]
    model.progress = lambda event: said.append(model.predict(X))
    model.fit(*rows(1, 3))
    assert len(said) > 2
    assert all(np.array_equal(labels, said[0]) for labels in said)
    assert not np.array_equal(model.predict(X), said[0])
