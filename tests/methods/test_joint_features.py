"""JointFeatures: the promises of every learner, the machine that comes with the features, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.utils.estimator_checks import check_estimator

import dkl
from dkl.features.families import ArcCosine, Coordinates, Gaussian
from dkl.methods.density.joint_learner import JointFeatures
from dkl.testing.learners import check_learner
from tests.definitions.joint import divergence_of


def learner_of(**parameters: Any) -> JointFeatures:
    given = {"n_candidates": 60, "rho": 2.0, "scaling": "standard", "random_state": 0, "progress": False}
    return JointFeatures(**{**given, **parameters})


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X[:300], np.array(["malignant", "benign"])[y[:300]]


@pytest.fixture(scope="module")
def fitted(cancer: Any) -> JointFeatures:
    return learner_of().fit(*cancer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_checks_of_scikit_learn_pass(loss: str) -> None:
    """In float64: a row of weight 2 and two rows agree to the rounding of the features, and the checks ask for 1e-7."""
    learner = JointFeatures(Gaussian(4.0), 40, loss=loss, dtype="float64", random_state=0)
    results = check_estimator(learner, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


def test_a_joint_learner_keeps_what_models_rely_on() -> None:
    check_learner(learner_of(n_candidates=12, n_features=16, scaling=None, loss="squared_error"), n_rows=100)


def test_the_attributes_are_those_of_the_stated_problem(fitted: JointFeatures, cancer: Any) -> None:
    X, y = cancer
    q = fitted.weights_
    assert q.shape == (60,)
    assert q.sum() == pytest.approx(1.0)
    assert fitted.divergence_ == pytest.approx(divergence_of(q, 2.0))
    assert fitted.divergence_ <= 2.0 * (1.0 + 1e-6)
    np.testing.assert_allclose(fitted.feature_map_.amplitudes**2, q[q > 0.0])
    np.testing.assert_array_equal(fitted.frequencies_, fitted.candidates_[q > 0.0])
    # sum |w|^2/q of features without amplitudes is the length of the coefficients on those with sqrt(q)
    f = fitted.transform(X).astype(np.float64) @ fitted.coef_.T + fitted.intercept_
    slack = np.maximum(0.0, 1.0 - np.where(y == "malignant", 1.0, -1.0) * f[:, 0])
    assert fitted.objective_ == pytest.approx(0.5 * np.sum(fitted.coef_**2) + slack.sum(), rel=1e-4)
    assert 0.0 <= fitted.duality_gap_ <= 1e-3 * fitted.objective_
    assert fitted.history_[-1]["support"] == np.count_nonzero(q)
    assert "below tol" in fitted.message_


def test_the_machine_that_was_learned_predicts_and_starts_others(fitted: JointFeatures, cancer: Any) -> None:
    X, y = cancer
    assert fitted.machine_.score(X, y) > 0.95
    expected = fitted.transform(X) @ fitted.coef_[0] + fitted.intercept_[0]
    np.testing.assert_allclose(fitted.machine_.decision_function(X), expected, atol=1e-5)
    machine = dkl.KernelClassifier(learner_of(), loss="squared_hinge", solver="newton").fit(X, y)
    assert machine.score(X, y) > 0.95


def test_weights_learned_with_the_machine_beat_plain_ones_at_its_objective(fitted: JointFeatures, cancer: Any) -> None:
    plain = learner_of(rho=0.0).fit(*cancer)
    np.testing.assert_allclose(plain.weights_, 1.0 / 60.0)
    assert fitted.objective_ < plain.objective_ - plain.duality_gap_


def test_classes_share_the_weights(cancer: Any) -> None:
    X, y = load_iris(return_X_y=True)
    learner = learner_of(loss="squared_hinge", C=10.0).fit(X, y)
    assert learner.coef_.shape == (3, learner.feature_map_.n_features)
    assert learner.machine_.score(X, y) > 0.95


@pytest.mark.parametrize("family", [Gaussian(pairing="phase"), ArcCosine(1), Coordinates()])
def test_numbers_and_features_of_one_column_are_learned_too(family: Any) -> None:
    X, y = load_diabetes(return_X_y=True)
    n_candidates = None if isinstance(family, Coordinates) else 60
    learner = learner_of(family=family, n_candidates=n_candidates).fit(X, y + 0.5)
    predicted = learner.transform(X).astype(np.float64) @ learner.coef_[0] + learner.intercept_[0]
    np.testing.assert_allclose(learner.machine_.predict(X), predicted, rtol=1e-4)
    assert learner.machine_.score(X, y + 0.5) > 0.4
    assert learner.duality_gap_ <= 1e-3 * learner.objective_


def test_few_columns_are_those_of_the_largest_weights(fitted: JointFeatures, cancer: Any) -> None:
    few = learner_of(n_features=8).fit(*cancer)
    np.testing.assert_array_equal(few.weights_, fitted.weights_)
    largest = np.sort(np.argsort(-fitted.weights_, kind="stable")[:4])
    np.testing.assert_array_equal(few.frequencies_, fitted.candidates_[largest])
    assert np.sum(few.feature_map_.amplitudes**2) == pytest.approx(1.0)
    # each feature keeps its part in the machine
    columns = np.flatnonzero(np.isin(np.flatnonzero(fitted.weights_), largest))
    columns = np.append(columns, columns + np.count_nonzero(fitted.weights_))
    part = fitted.transform(cancer[0])[:, columns] * fitted.coef_[0, columns]
    np.testing.assert_allclose(few.transform(cancer[0]) * few.coef_[0], part, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_worker_processes_give_the_bits_of_one_thread(cancer: Any, tmp_path: Path, client: Any) -> None:
    rows = dkl.create_dataset(str(tmp_path / "rows.zarr"), *cancer, rows_a_block=64)
    learners = [learner_of(tol=0.05), learner_of(tol=0.05)]
    learners[0].fit(rows)
    with dask.config.set(scheduler="synchronous"):
        learners[1].fit(rows)
    np.testing.assert_array_equal(learners[0].weights_, learners[1].weights_)
    np.testing.assert_array_equal(learners[0].coef_, learners[1].coef_)


def test_threads_and_a_fit_that_was_broken_off_end_with_the_bits_of_one_thread(cancer: Any, tmp_path: Path) -> None:
    passes = []

    def broken(event: Any) -> None:
        passes.append(event.name == "rounds" and event.kind == "advanced")
        if sum(passes) == 7:
            raise KeyboardInterrupt

    rows = dkl.create_dataset(str(tmp_path / "rows.zarr"), *cancer, rows_a_block=64)
    with dask.config.set(scheduler="synchronous"):
        whole = learner_of(tol=0.05).fit(rows)
    with pytest.raises(KeyboardInterrupt):
        learner_of(tol=0.05, progress=broken, checkpoint=str(tmp_path / "state")).fit(rows)
    with dask.config.set(num_workers=3):
        resumed = learner_of(tol=0.05, checkpoint=str(tmp_path / "state")).fit(rows)
    assert 0 < len(resumed.stats_) < len(whole.stats_) - 5
    np.testing.assert_array_equal(resumed.weights_, whole.weights_)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_sparse_rows_are_learned_as_dense_ones(cancer: Any) -> None:
    X, y = cancer[0] / cancer[0].max(axis=0), cancer[1]
    of_sparse, of_dense = (learner_of(n_candidates=20, scaling=None).fit(rows, y) for rows in (sparse.csr_array(X), X))
    assert of_sparse.objective_ == pytest.approx(of_dense.objective_, rel=1e-3)


def test_a_stored_learner_maps_and_predicts_the_same_bits(fitted: JointFeatures, cancer: Any, tmp_path: Path) -> None:
    fitted.save(str(tmp_path / "model"))
    loaded = dkl.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.transform(cancer[0]), fitted.transform(cancer[0]))
    np.testing.assert_array_equal(loaded.machine_.predict(cancer[0]), fitted.machine_.predict(cancer[0]))


def test_a_plan_bounds_the_passes_and_the_memory(fitted: JointFeatures, cancer: Any) -> None:
    planned = dkl.plan(learner_of(), *cancer)
    assert sum(times for _, times in learner_of().planned_passes(planned_rows(cancer))) >= len(fitted.stats_)
    assert "sums of all candidates" in str(planned)
    assert planned.held["matrices of columns"] >= 8 * 120**2


def planned_rows(rows: Any) -> Any:
    from dkl.data.coerce import as_dataset

    return as_dataset(*rows)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"C": 0.0}, "'C' parameter of JointFeatures"),
        ({"loss": "log_loss"}, "'loss' parameter of JointFeatures"),
        ({"n_candidates": None}, "'n_candidates' parameter of JointFeatures is None"),
        ({"n_features": 1}, "must be at least 2"),
        ({"max_working": 10, "rho": 1.0}, "rho=1 gives at least 30 of 60 candidates weight, and max_working=10"),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_pass(changed: Any, message: str, cancer: Any) -> None:
    learner = learner_of(**changed)
    with pytest.raises(ValueError, match=message):
        learner.fit(*cancer)
    assert not getattr(learner, "stats_", [])


def test_hinges_of_numbers_are_refused(cancer: Any) -> None:
    with pytest.raises(ValueError, match="loss='hinge' is for class labels"):
        learner_of(loss="hinge").fit(cancer[0], cancer[0][:, 0])


def test_a_fit_that_may_not_go_on_says_where_it_stands(cancer: Any) -> None:
    with pytest.warns(UserWarning, match=r"JointFeatures ended above tol: max_passes is reached.* % above the minimum"):
        learner = learner_of(max_passes=4).fit(*cancer)
    assert learner.duality_gap_ > 1e-3 * learner.objective_
