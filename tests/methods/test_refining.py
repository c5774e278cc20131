"""The last stage of a learner with `refine`: its features descend, and what it answers with follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.methods.random_features import RandomFeatures
from dkl.methods.refining import refine_learner
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
    [("binary", None), ("binary", "log_loss"), ("binary", "hinge"), ("three", None), ("regression", None)],
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
