"""The log loss of Newton steps is logistic regression: of two classes, and of all classes together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

import dkl
from dkl.kernels.normal_equations import NewtonOptions, TrialSteps, newton_sums
from dkl.linear.judge import folds_of
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.random_features import RandomFeatures
from dkl.solvers.losses import SOFTMAX
from tests.linear.problems import feature_map, rows


def machine(alpha: Any = 1e-3, **options: Any) -> KernelClassifier:
    features = RandomFeatures(n_features=24, dtype="float64", random_state=0)
    return KernelClassifier(features, loss="log_loss", solver="newton", alpha=alpha, **options)


def reference(model: KernelClassifier, X: np.ndarray, y: np.ndarray, weight: Any = None) -> Any:
    """scikit-learn's model of a fitted machine's features, and its probabilities."""
    total = len(y) if weight is None else weight.sum()
    exact = LogisticRegression(C=1.0 / (model.alpha_ * total), solver="newton-cg", tol=1e-12, max_iter=10_000)
    phi = model.features_.transform(X)
    exact.fit(phi, y, sample_weight=weight)
    return exact, exact.predict_proba(phi)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1e-1, 1e-4])
def test_coefficients_are_those_of_logistic_regression(n_classes: int, weighted: bool, alpha: float) -> None:
    X, y = rows(400, n_classes)
    weight = np.random.default_rng(1).integers(0, 3, 400).astype(float) if weighted else None
    model = machine(alpha).fit(X, y, weight)
    exact, probabilities = reference(model, X, y, weight)
    np.testing.assert_allclose(model.linear_.coef_, exact.coef_, rtol=0, atol=1e-6)
    # only differences of intercepts count
    ours, theirs = (linear.intercept_ - linear.intercept_.mean() * (n_classes > 2) for linear in (model.linear_, exact))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), probabilities, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(model.predict(X), exact.predict(model.features_.transform(X)))
    assert isinstance(model.linear_, LogisticRegression)


def test_class_weights_count_as_row_weights() -> None:
    X, y = rows(300, 3)
    model = machine(class_weight={0: 3.0, 1: 1.0, 2: 0.5}).fit(X, y)
    exact, _ = reference(model, X, y, np.array([3.0, 1.0, 0.5])[y])
    np.testing.assert_allclose(model.linear_.coef_, exact.coef_, atol=1e-6)


def test_gradients_are_those_of_the_loss_and_the_first_metric_is_its_hessian_at_zero() -> None:
    """Differences of losses, and of gradients along moves that add up to zero over the classes."""
    (X, codes), rng, phi, K = rows(60, 3), np.random.default_rng(0), feature_map(4), 3
    weight, signs = rng.integers(1, 4, 60).astype(float), 2.0 * np.eye(3)[codes] - 1.0

    def summed(point: np.ndarray) -> dict[str, np.ndarray]:
        trial = TrialSteps(point, np.zeros_like(point), np.ones((1, 1)))
        return newton_sums(X, signs, weight, phi, trial, NewtonOptions("softmax", (0, 17), dtype="float64"))

    point, move = rng.normal(size=(2, K, 17))
    move -= move.mean(axis=0)
    behind, ahead = summed(point - 1e-5 * move), summed(point + 1e-5 * move)
    slope = (ahead["loss"] - behind["loss"])[0, 0] / 2e-5
    assert np.sum(summed(point)["gradient"] * move) == pytest.approx(slope, rel=1e-7)
    behind, ahead = summed(-1e-5 * move), summed(1e-5 * move)
    gram = np.zeros((17, 17))
    gram.T[np.tril_indices(17)] = summed(point)["hessian"][0]
    gram = np.triu(gram) + np.triu(gram, 1).T
    np.testing.assert_allclose((ahead["gradient"] - behind["gradient"]) / 2e-5, move @ gram / K, atol=1e-6)


def test_slopes_and_conjugates_of_the_softmax_are_those_of_its_value() -> None:
    rng = np.random.default_rng(0)
    f, codes = 3.0 * rng.standard_normal((50, 4)), rng.integers(0, 4, 50)
    slope = SOFTMAX.slope(codes, f)
    for k in range(4):
        ahead, behind = f.copy(), f.copy()
        ahead[:, k] += 1e-5
        behind[:, k] -= 1e-5
        np.testing.assert_allclose(
            slope[:, k], (SOFTMAX.value(codes, ahead) - SOFTMAX.value(codes, behind)) / 2e-5, atol=1e-9
        )
    fenchel = np.sum(slope * f, axis=1) - SOFTMAX.value(codes, f)
    np.testing.assert_allclose(SOFTMAX.conjugate(codes, slope), fenchel, atol=1e-12)
    assert np.isinf(SOFTMAX.conjugate(codes, -slope)).any()
    far = SOFTMAX.value(np.array([0, 1]), np.array([[1e4, -1e4], [1e4, -1e4]]))
    np.testing.assert_allclose(far, [0.0, 2e4])


def test_panels_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(400, 3)
    whole = machine().fit(X, y).linear_.coef_
    monkeypatch.setattr("dkl.linear.head._HESSIAN_BYTES", 8 * 60)
    np.testing.assert_allclose(machine().fit(X, y).linear_.coef_, whole, atol=1e-9)
    lazy = machine().fit(da.from_array(X, chunks=(90, 4)), y)
    np.testing.assert_allclose(lazy.linear_.coef_, whole, atol=1e-9)


def test_rows_that_are_held_out_are_not_fitted() -> None:
    X, y = rows(600, 3)
    calibrated = machine(calibrate=True, random_state=0).fit(X, y)
    dataset = dkl.data.coerce.as_dataset(X, y)
    problem = calibrated._problem_on(calibrated._settings, calibrated.features_, dataset, None)
    kept = ~problem.held_out.mask(np.arange(600))
    exact, _ = reference(calibrated, X[kept], y[kept])
    np.testing.assert_allclose(calibrated.linear_.coef_, exact.coef_, atol=1e-6)
    assert 0.3 < calibrated.temperature_ < 3.0


def test_the_penalty_is_chosen_and_saved_models_answer_alike(tmp_path: Path) -> None:
    X, y = rows(900, 3)
    model = machine("auto", random_state=0).fit(X[:600], y[:600])
    assert model.alphas_[-1] <= model.alpha_ <= model.alphas_[0]
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    predictor = model.predictor()
    np.testing.assert_allclose(predictor.predict_proba(X[:5]), model.predict_proba(X[:5]), atol=1e-6)
    pipeline = model.to_sklearn()
    np.testing.assert_allclose(pipeline.predict_proba(X[:20]), model.predict_proba(X[:20]), atol=1e-5)


def test_a_plan_counts_the_steps_that_are_known() -> None:
    X, y = rows(400, 3)
    plan = dkl.plan(machine(), dkl.data.coerce.as_dataset(X, y))
    assert sum(plan.held.values()) >= 2 * 20 * 8 * 3 * 25


@pytest.mark.parametrize("n", [300, 9_500])
def test_the_penalty_is_chosen_by_the_loss_of_all_classes_together(n: int) -> None:
    """On few rows by folds, on many by one share: what `LogisticRegression` loses on the rows that it has not seen."""
    X, y = rows(n, 3)
    X = X + np.random.default_rng(2).normal(size=X.shape)
    model = machine("auto", random_state=0).fit(X, y)
    # the lightest that was tried is the first that gained no more
    before, last = 1.0 - max(model.validation_scores_[:-1]), 1.0 - model.validation_scores_[-1]
    assert 2 < len(model.alphas_) < 9
    assert last > 0.995 * before
    phi = model.features_.transform(X)
    folds = folds_of(HeldOut(0.1, model.seed_), n, phi.shape[1])
    fold = folds(np.arange(n))
    assert (folds.count == 1) == (n > 1_000)
    found = []
    for alpha in model.alphas_:
        losses = []
        for number in range(folds.count):
            seen, judging = (fold > -2) & (fold != number), fold == number
            exact = LogisticRegression(C=1.0 / (alpha * n), solver="newton-cholesky").fit(phi[seen], y[seen])
            scores = log_softmax(exact.decision_function(phi[judging]), axis=1)
            losses.append(-scores[np.arange(judging.sum()), y[judging]])
        found.append(1.0 - np.concatenate(losses).mean())
    np.testing.assert_allclose(model.validation_scores_, found, atol=2e-3)
    assert model.alpha_ == model.alphas_[np.argmax(model.validation_scores_)]
