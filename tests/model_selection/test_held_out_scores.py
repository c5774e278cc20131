"""Metrics on held-out rows are scikit-learn's, and their standard errors those of repeated samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

import dkl
from dkl.model_selection.held_out_scores import ClassAnswers, Metric, NumberAnswers, held_out_answers, scores_of


def class_answers(n_labels: int, n: int = 400, seed: int = 0) -> ClassAnswers:
    """Random answers that are better than chance, ties among the probabilities included."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, n_labels, n)
    shares = generator.dirichlet(np.ones(n_labels), n) + 0.5 * np.eye(n_labels)[truth] * generator.random((n, 1))
    shares = np.round(shares / shares.sum(axis=1, keepdims=True), 2) + 1e-3
    shares /= shares.sum(axis=1, keepdims=True)
    weights = generator.integers(1, 4, n).astype(float)
    return ClassAnswers(
        np.arange(n_labels), truth, shares.argmax(axis=1), weights, shares, np.arange(1.0, n_labels + 1)
    )


@pytest.mark.parametrize("n_labels", [2, 4])
def test_metrics_of_classes_are_those_of_scikit_learn(n_labels: int) -> None:
    answers = class_answers(n_labels)
    given = {"sample_weight": answers.weights}
    found = {metric.name: metric.value for metric in scores_of(answers)}
    shares = np.asarray(answers.shares)
    of_curve = shares[:, 1] if n_labels == 2 else shares
    curve = {} if n_labels == 2 else {"multi_class": "ovr", "average": "macro"}
    assert found == pytest.approx(
        {
            "accuracy": sk.accuracy_score(answers.truth, answers.answers, **given),
            "balanced_accuracy": sk.balanced_accuracy_score(answers.truth, answers.answers, **given),
            "log_loss": sk.log_loss(answers.truth, shares, **given),
            "roc_auc": sk.roc_auc_score(answers.truth, of_curve, **curve, **given),
        }
    )
    np.testing.assert_allclose(answers.confusion, sk.confusion_matrix(answers.truth, answers.answers, **given))
    accuracy, n = found["accuracy"], answers.weights.sum()
    assert answers.metric("accuracy").standard_error == pytest.approx(np.sqrt(accuracy * (1.0 - accuracy) / n))


def number_answers(seed: int = 0, n: int = 400) -> NumberAnswers:
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(n, 2)) + 5.0
    weights = generator.integers(1, 4, n).astype(float)
    return NumberAnswers(truth, truth + 0.3 * generator.standard_t(8, size=(n, 2)), weights, np.array([5.1, 4.8]))


def test_metrics_of_numbers_are_those_of_scikit_learn_and_have_the_mean_beside() -> None:
    answers = number_answers()
    literal = {"rmse": sk.root_mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}
    for metric in scores_of(answers):
        compute, weight = literal[metric.name], answers.weights
        assert metric.value == pytest.approx(compute(answers.truth, answers.answers, sample_weight=weight))
        guess = np.broadcast_to([5.1, 4.8], answers.truth.shape)
        assert metric.baseline == pytest.approx(compute(answers.truth, guess, sample_weight=weight))


def count_answers(seed: int = 0, n: int = 400, loss: str = "poisson") -> NumberAnswers:
    generator = np.random.default_rng(seed)
    exposure, weights = generator.uniform(0.5, 4.0, n), generator.integers(1, 4, n).astype(float)
    means = exposure[:, None] * generator.gamma(3.0, 1.0, (n, 2))
    truth = generator.poisson(means).astype(float) if loss == "poisson" else means * generator.gamma(2.0, 0.5, (n, 2))
    return NumberAnswers(truth, 1.1 * means, weights, None, loss, exposure)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_counts_and_sizes_have_the_deviance_of_scikit_learn_for_one_unit_of_exposure(loss: str) -> None:
    answers = count_answers(loss=loss)
    weight = answers.weights * (answers.exposure if loss == "poisson" else 1.0)
    deviance = {"poisson": sk.mean_poisson_deviance, "gamma": sk.mean_gamma_deviance}[loss]
    rates, means = (values / answers.exposure[:, None] for values in (answers.truth, answers.answers))
    each = [deviance(rates[:, t], means[:, t], sample_weight=weight) for t in range(2)]
    best = [np.full(400, np.average(rates[:, t], weights=weight)) for t in range(2)]
    without = [deviance(rates[:, t], best[t], sample_weight=weight) for t in range(2)]
    found = {metric.name: metric for metric in scores_of(answers)}
    assert list(found) == ["deviance", "d2", "rmse", "mae", "r2"]
    assert found["deviance"].value == pytest.approx(np.mean(each))
    assert found["deviance"].baseline == pytest.approx(np.mean(without))
    assert found["d2"].value == pytest.approx(1.0 - np.mean(each) / np.mean(without))
    one = NumberAnswers(answers.truth[:, 0], answers.answers[:, 0], answers.weights, None, loss)
    power = {"poisson": 1, "gamma": 2}[loss]
    expected = sk.d2_tweedie_score(one.truth, one.answers, sample_weight=one.weights, power=power)
    assert one.metric("d2").value == pytest.approx(expected)
    for name in ("deviance", "d2"):
        with pytest.raises(ValueError, match="is of counts and sizes: fit them with loss='poisson'"):
            number_answers().metric(name)


@pytest.mark.parametrize("make", [class_answers, number_answers, count_answers])
def test_a_standard_error_is_the_deviation_between_samples(make: Any) -> None:
    """Samples of the same law: their metrics scatter as the mean standard error says, within a sixth."""
    samples = [scores_of(make(3, seed=seed) if make is class_answers else make(seed)) for seed in range(300)]
    for of_one in zip(*samples, strict=True):
        scatter = np.std([metric.value for metric in of_one])
        # weights of 1 to 3 count as repeated rows, which scatter more than independent ones: by mean(w^2) / mean(w)
        expected = np.mean([metric.standard_error for metric in of_one]) * np.sqrt(14.0 / 6.0)
        assert scatter == pytest.approx(expected, rel=0.17), of_one[0].name


def test_the_area_under_the_curve_counts_pairs() -> None:
    answers = class_answers(2, n=40)
    scores = np.asarray(answers.shares)[:, 1]
    pairs = total = 0.0
    for i in np.flatnonzero(answers.truth == 1):
        for j in np.flatnonzero(answers.truth == 0):
            weight = answers.weights[i] * answers.weights[j]
            total += weight
            pairs += weight * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
    assert answers.metric("roc_auc").value == pytest.approx(pairs / total)


def test_calibration_counts_each_row_in_the_bin_of_its_probability() -> None:
    answers = class_answers(2)
    probability = np.asarray(answers.shares)[:, 1]
    for predicted, observed, weight in answers.calibration():
        inside = [k for k, p in enumerate(probability) if int(p * 10) == int(predicted * 10)]
        weights = answers.weights[inside]
        assert weight == pytest.approx(weights.sum())
        assert predicted == pytest.approx(np.average(probability[inside], weights=weights))
        assert observed == pytest.approx(np.average(answers.truth[inside] == 1, weights=weights))


def test_a_stored_split_is_scored_as_the_model_itself_does(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 3))
    y = np.where(X[:, 0] > 0.3, "yes", "no")
    rows = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=50).split({"train": 0.7, "test": 0.3})
    model = dkl.KernelClassifier("random", calibrate=True, random_state=0).fit(rows["train"])
    answers = held_out_answers(model, rows["test"])
    assert answers.metric("accuracy").value == pytest.approx(model.score(rows["test"]))
    truth = rows["test"].y.compute()
    usual = max(np.unique(y), key=lambda label: (rows["train"].y.compute() == label).sum())
    assert answers.metric("accuracy").baseline == pytest.approx(np.mean(truth == usual))
    shares = model.predict_proba(rows["test"].X.compute())
    assert answers.metric("log_loss").value == pytest.approx(sk.log_loss(truth, shares))


def test_labels_that_the_model_has_not_seen_count_as_wrong(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 2))
    y = np.where(X[:, 0] > 0.0, "b", "c")
    model = dkl.KernelClassifier("random", calibrate=True, random_state=0).fit(X, y)
    y[:20] = "a"
    answers = held_out_answers(model, dkl.create_dataset(tmp_path / "rows.zarr", X, y))
    assert answers.labels.tolist() == ["a", "b", "c"]
    assert answers.confusion[0, 0] == 0
    assert answers.confusion[0].sum() == 20
    assert answers.metric("log_loss").value > 0.1 * 36


def test_whole_numbers_that_were_stored_as_labels_are_scored_as_numbers(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.round(2.0 * X[:, 0]).astype(int)
    rows = dkl.create_dataset(tmp_path / "rows.zarr", X, y)
    assert rows.task == "classification"
    model = dkl.KernelRegressor("random", random_state=0).fit(rows)
    (found,) = scores_of(held_out_answers(model, rows), ["rmse"])
    assert found.value == pytest.approx(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


def test_what_has_no_meaning_is_refused_by_name(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    rows = dkl.create_dataset(tmp_path / "rows.zarr", X, X[:, 0])
    model = dkl.KernelRegressor("random", random_state=0).fit(rows)
    with pytest.raises(ValueError, match="'accuracy' is no metric of numbers; expected one of rmse, mae, r2"):
        scores_of(held_out_answers(model, rows), ["accuracy"])
    with pytest.raises(ValueError, match="labels such as 'no', not numbers"):
        held_out_answers(model, dkl.create_dataset(tmp_path / "texts.zarr", X, np.where(X[:, 0] > 0, "yes", "no")))
    dkl.create_dataset(tmp_path / "labels.zarr", X, X[:, 0] > 0)
    classifier = dkl.KernelClassifier("random", calibrate=False, random_state=0).fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="roc_auc needs probabilities"):
        scores_of(held_out_answers(classifier, dkl.open_dataset(tmp_path / "labels.zarr")), ["roc_auc"])
    assert str(Metric("r2", 0.5, 0.01, 0.0)) == "r2 0.5 ± 0.01 (baseline 0)"
