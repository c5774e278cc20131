"""Probabilities: one positive temperature that fits held-out rows, and an order that never changes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from dkl.linear.answers import chosen_codes, probabilities
from dkl.linear.sums import calibration_sums
from dkl.linear.temperature import MULTIPLIERS, best_multiplier, least_log_loss, slope_and_shifts
from tests.definitions import linear as definition


def some_scores(K: int, scale: float, n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, K, n)
    scores = scale * (1.2 * np.eye(K)[codes] + generator.normal(size=(n, K)))
    return scores, codes, generator.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("K", [2, 4])
def test_sums_are_the_log_losses_of_all_rows(K: int) -> None:
    scores, codes, weight = some_scores(K, 1.0, n=15)
    multipliers = np.array([0.01, 0.7, 3.0])
    ours, theirs = calibration_sums(scores, codes, weight, multipliers), None
    theirs = definition.calibration_sums(scores, codes, weight, multipliers)
    for name in ("label", "uniform"):
        np.testing.assert_allclose(ours[name][0], theirs[name], rtol=1e-12)


@pytest.mark.parametrize("name", ["label", "uniform"])
def test_slopes_and_curvatures_are_those_of_the_loss(name: str) -> None:
    scores, codes, weight = some_scores(3, 1.0)
    h, at = 1e-4, np.log([0.3, 2.0])
    low, middle, high = (calibration_sums(scores, codes, weight, np.exp(at + shift))[name] for shift in (-h, 0.0, h))
    np.testing.assert_allclose(middle[1], (high[0] - low[0]) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(middle[2], (high[1] - low[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("K", [2, 5])
def test_the_temperature_is_the_one_of_least_loss(K: int, scale: float) -> None:
    scores, codes, weight = some_scores(K, scale)
    sums = calibration_sums(scores, codes, weight, MULTIPLIERS)
    found = best_multiplier(sums["label"], sums["uniform"], weight.sum())
    assert found == pytest.approx(definition.best_multiplier(scores, codes, weight), rel=2e-4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("K", [2, 5])
def test_the_least_loss_is_that_at_the_best_temperature(K: int, scale: float) -> None:
    scores, codes, weight = some_scores(K, scale)
    total = weight.sum()
    sums = calibration_sums(scores, codes, weight, MULTIPLIERS)
    best = np.array([definition.best_multiplier(scores, codes, weight)])
    there = definition.calibration_sums(scores, codes, weight, best)
    doubt = 2.0 / (total + 2.0)
    expected = ((1.0 - doubt) * there["label"] + doubt * there["uniform"]).item() / total
    assert least_log_loss(sums["label"], sums["uniform"], total) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_perfect_and_useless_scores_give_a_finite_positive_temperature(sign: float) -> None:
    codes = np.repeat([0, 1], 20)
    scores = sign * np.column_stack([np.zeros(40), np.where(codes == 1, 1.0, -1.0)])
    sums = calibration_sums(scores, codes, np.ones(40), MULTIPLIERS)
    found = best_multiplier(sums["label"], sums["uniform"], 40.0)
    assert 0.0 < found < 100.0


@pytest.mark.parametrize("multiplier", [None, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("K", [1, 3])
def test_the_largest_probability_is_that_of_the_predicted_class(K: int, multiplier: float | None) -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(300, K)) * 10.0 ** generator.uniform(-20.0, 3.0, size=(300, 1))
    shares = probabilities(scores, multiplier)
    assert shares.shape == (300, max(2, K))
    np.testing.assert_array_equal(shares.argmax(axis=1), chosen_codes(scores))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-12)
    assert ((shares >= 0.0) & (shares <= 1.0)).all()


def test_slope_and_shift_of_two_classes_are_a_logistic_regression_on_doubtful_labels() -> None:
    scores, codes, weight = some_scores(2, 1.0, n=400)
    scores = np.column_stack([np.zeros(400), scores[:, 1] - scores[:, 0] + 2.0])
    slope, shifts = slope_and_shifts(scores, codes, weight)
    # each row twice, of either class, with the share of doubt as its weight
    doubt = 1.0 / (weight.sum() + 2.0)
    rows, labels = np.tile(scores[:, 1:], (2, 1)), np.append(codes, 1 - codes)
    exact = LogisticRegression(C=np.inf, tol=1e-10).fit(rows, labels, np.append(weight * (1 - doubt), weight * doubt))
    assert slope == pytest.approx(exact.coef_[0, 0], rel=1e-4)
    assert shifts[1] - shifts[0] == pytest.approx(exact.intercept_[0], rel=1e-4)


def test_slope_and_shifts_of_several_classes_have_the_least_loss() -> None:
    scores, codes, weight = some_scores(4, 3.0, n=150)
    scores += np.array([4.0, 0.0, -5.0, 1.0])
    slope, shifts = slope_and_shifts(scores, codes, weight)

    def loss(at: np.ndarray) -> float:
        doubt, total = 2.0 / (weight.sum() + 2.0), 0.0
        for row, code, w in zip(scores, codes, weight, strict=True):
            z = at[0] * row + np.append(at[1:], 0.0)
            for k in range(4):
                share = (1.0 - doubt) * (k == code) + doubt / 4
                total += w * share * (np.log(np.exp(z).sum()) - z[k])
        return total

    found = np.append(slope, shifts[:3] - shifts[3])
    best = minimize(loss, found * 0.9, method="Nelder-Mead", options={"maxiter": 300})
    assert loss(found) <= best.fun + 1e-6 * abs(best.fun)
    assert shifts.mean() == pytest.approx(0.0, abs=1e-12)


def test_labels_that_scores_tell_as_they_are_get_no_shift() -> None:
    found = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        scores = np.column_stack([np.zeros(300), generator.normal(size=300)])
        codes = (generator.random(300) < 1.0 / (1.0 + np.exp(-2.0 * scores[:, 1]))).astype(np.int64)
        found.append(slope_and_shifts(scores, codes, np.ones(300)))
    # one of a hundred is expected by chance
    assert sum(each is not None for each in found) <= 3
