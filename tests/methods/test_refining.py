"""The last stage of a learner with `refine`: its features descend, and what it answers with follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.events import Event
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods import refining
from dkl.methods.fit_context import FitContext
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.refining import descent, refine_learner
from dkl.passes.loop import PlanEndsError, PlannedRun


def wavy_rows(task: str, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 3))
    f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2]
    if task == "regression":
        return X, 50.0 + 4.0 * f
    return X, np.where(f > 0.0, "b", "a") if task == "binary" else np.digitize(f, [-0.5, 0.5])


def fitted(task: str, loss: str | None) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """A learner with the parameters that refining reads."""
    X, y = wavy_rows(task)
    dataset = as_dataset(X, y, task="regression" if task == "regression" else "classification")
    learner: Any = RandomFeatures(n_features=40, random_state=0).fit(dataset)
    learner.refine, learner.loss, learner.validation_fraction = 8, loss, 0.2
    return learner, dataset, X, y


@pytest.mark.parametrize(
    ("task", "loss"),
    [("binary", None), ("binary", "hinge"), ("three", None), ("regression", None)],
)
def test_held_out_rows_have_a_lower_loss_after_it(task: str, loss: str | None) -> None:
    learner, dataset, X, y = fitted(task, loss)
    before = learner.feature_map_
    refine_learner(learner, dataset)
    losses = [epoch["held_out_loss"] for epoch in learner.refinement_]
    assert min(losses) < losses[0]
    assert learner.coef_.shape == (3 if task == "three" else 1, 40)
    np.testing.assert_allclose(learner.weights_.sum(), 1.0)
    assert np.abs(learner.feature_map_.projection.dense() - before.projection.dense()).max() > 0.01
    scores = learner.transform(X) @ learner.coef_.T + learner.intercept_
    if task == "regression":
        assert np.mean((scores[:, 0] - y) ** 2) < 0.4 * np.var(y)
    else:
        codes = np.searchsorted(dataset.classes, y)
        predicted = scores.argmax(axis=1) if task == "three" else scores[:, 0] > 0
        assert np.mean(predicted == codes) > (0.7 if task == "three" else 0.8)


@pytest.mark.parametrize(("task", "often"), [("three", 18), pytest.param("regression", 25, marks=pytest.mark.slow)])
def test_a_descent_that_is_stopped_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, task: str, often: int
) -> None:
    """A pass has 8 events, and what an attempt finds in the checkpoint up to 9: with 18 each gets a pass further."""
    X, y = wavy_rows(task, 600)
    rows = create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100)
    events: list[Event] = []
    options = {"n_features": 6, "rounds": 2, "refine": 2, "scaling": "standard", "random_state": 0}
    whole = MarginFeatures(**options, progress=events.append).fit(rows)
    n_passes = sum(event.kind == "finished" and event.name != "rounds" for event in events)

    def attempt() -> MarginFeatures | None:
        """The fitted learner, or None if it was stopped."""
        heard = 0

        def stop(event: Event) -> None:
            nonlocal heard
            heard += 1
            if heard > often:
                raise KeyboardInterrupt

        try:
            return MarginFeatures(**options, progress=stop, checkpoint=str(tmp_path / "states")).fit(rows)
        except KeyboardInterrupt:
            return None

    attempts = [attempt()]
    while attempts[-1] is None and len(attempts) <= n_passes:
        attempts.append(attempt())
    assert attempts[-1] is not None
    for name in ("coef_", "intercept_", "points_", "weights_"):
        assert getattr(attempts[-1], name).tobytes() == getattr(whole, name).tobytes(), name
    assert attempts[-1].refinement_ == whole.refinement_


def test_it_is_the_same_again() -> None:
    runs = []
    for _ in range(2):
        learner, dataset, _, _ = fitted("binary", None)
        refine_learner(learner, dataset)
        runs.append(learner.coef_.tobytes() + learner.feature_map_.projection.dense().tobytes())
    assert runs[0] == runs[1]


def test_a_plan_counts_the_fit_the_looks_and_the_epochs() -> None:
    learner, dataset, _, _ = fitted("binary", None)
    learner._plan = PlannedRun(n_rows=dataset.n_rows)
    with pytest.raises(PlanEndsError):
        refine_learner(learner, dataset)
    names = [(record.name, count) for records, count in learner._plan.passes for record in records]
    assert ("held-out loss", 9) in names
    assert ("refining, epoch 1", 8) in names
    assert any("newton" in name for name, _ in names)


@pytest.mark.parametrize(("n_rows", "epochs"), [(500, 10), (200_000, 10), (400_000, 5), (1_000_000, 2), (10**9, 2)])
def test_automatic_epochs_step_through_two_million_rows_at_most(n_rows: int, epochs: int) -> None:
    options = descent("auto", n_rows)
    assert options.epochs == epochs
    assert options.epochs * min(n_rows, options.epoch_rows or n_rows) <= 2_000_000
    given = descent(7, n_rows)
    assert (given.epochs, given.patience, given.epoch_rows) == (7, 7, None)


@pytest.mark.slow
def test_waves_that_are_far_from_the_true_ones_are_found_by_the_descent() -> None:
    """Twelve cosines of random directions among eight of 28 columns: a search alone comes near them, no more."""
    generator = np.random.default_rng(7)
    W = 0.7 * generator.standard_normal((8, 12))

    def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        X = np.random.default_rng(seed).standard_normal((n, 28))
        return X, np.cos(X[:, :8] @ W).sum(axis=1)

    (X, y), (X_test, y_test) = rows(20_000, 0), rows(5_000, 1)
    scores = []
    for refine in (0, "auto"):
        features = MarginFeatures(n_features=100, refine=refine, scaling="standard", random_state=0)
        scores.append(KernelRegressor(features, random_state=0).fit(X, y).score(X_test, y_test))
    assert scores[1] > 0.9 > scores[0]


@pytest.mark.slow
def test_class_weights_count_in_the_descent() -> None:
    """One row in ten is of the second class; weights that make up for it move the model towards that class."""
    generator = np.random.default_rng(5)
    X = generator.normal(size=(4000, 3))
    y = np.sin(2.0 * X[:, 0]) + 0.7 * generator.normal(size=4000) > 1.4
    found = {}
    for weight in (None, "balanced", {False: 1.0, True: 0.0}):
        learner = MarginFeatures(n_features=20, refine=3, class_weight=weight, scaling="standard", random_state=0)
        found[str(weight)] = learner.fit(X, y).machine_.predict(X)[y].mean()
    assert found["balanced"] > 0.7 > found["None"] >= found["{False: 1.0, True: 0.0}"] == 0.0


def test_class_weights_equal_weights_of_rows() -> None:
    learner, dataset, X, y = fitted("three", "log_loss")
    learner.class_weight = {0: 1.0, 1: 3.0, 2: 0.5}
    refine_learner(learner, dataset)
    other, _, _, _ = fitted("three", "log_loss")
    refine_learner(other, as_dataset(X, y, np.array([1.0, 3.0, 0.5])[y], task="classification"))
    np.testing.assert_allclose(learner.coef_, other.coef_, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", ["squared_error", "softmax"])
def test_a_loss_that_the_descent_has_not_is_refused_before_any_pass(loss: str) -> None:
    X, y = wavy_rows("three", 300)
    events: list[Any] = []
    learner = MarginFeatures(n_features=4, refine=2, loss=loss, progress=events.append)
    with pytest.raises(ValueError, match=rf"refine=2 descends on .* loss='{loss}' of classes is none of them"):
        learner.fit(X, y)
    assert not events


def test_rows_of_which_none_is_held_out_are_refused_with_the_remedy() -> None:
    X, y = wavy_rows("regression", 4)
    with pytest.raises(ValueError, match=r"share of 0\.1 of so few rows; use a larger validation_fraction"):
        MarginFeatures(n_features=4, refine=2, random_state=0).fit(X, y)


def test_each_fold_judges_epochs_and_penalty_on_rows_of_its_own() -> None:
    """A machine's folds begin anywhere among the rows; the penalty is judged on rows beside those of the epoch."""
    learner, dataset, X, _ = fitted("binary", None)
    held = np.arange(len(X))
    for number in range(5):
        learner._context = FitContext(HeldOut(0.2, 3, number / 5))
        problem = refining._problem(learner, dataset)
        epoch, penalty = problem.held_out.mask(held), problem.validation.mask(held)
        assert epoch.mean() == pytest.approx(0.2, abs=0.03)
        assert penalty.mean() == pytest.approx(0.2, abs=0.03)
        assert not (epoch & penalty).any()
