"""Intervals of quantiles, counts and sizes are those that sorting the scores of held-out rows finds, and cover."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.plots import CoverageDisplay
from dkl.uncertainty import conformal
from dkl.uncertainty.interval_scores import DevianceScore, QuantileScore
from tests.definitions import uncertainty as definitions
from tests.kernels.cases import assert_same_rows

FEATURES = RandomFeatures(n_features=20, dtype="float64", random_state=1)


def rows(loss: str, n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows, targets of that loss, and what they were counted over; noise of quantiles grows with a column."""
    rng = np.random.default_rng(seed)
    X, exposure = rng.normal(size=(n, 2)), rng.uniform(0.2, 5.0, n)
    mean = exposure * np.exp(0.5 + np.sin(X[:, 0]))
    if loss == "pinball":
        return X, X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=n), None
    return X, rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(2.0, 0.5, n), exposure


def regressor(loss: str, **parameters: Any) -> KernelRegressor:
    fixed = {"features": FEATURES, "alpha": 1e-3, "quantiles": (0.1, 0.9), "random_state": 0}
    return KernelRegressor(**{**fixed, "loss": loss, **parameters})


def inside(ends: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (ends[:, 0] <= y) & (y <= ends[:, 1])


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
@pytest.mark.parametrize("mean", [1e-3, 0.7, 1.0, 40.0, 1e6])
def test_ends_have_the_deviance_of_the_score(loss: str, mean: float) -> None:
    score, radii = DevianceScore(loss), np.array([1e-4, 0.5, 1.0, math.sqrt(2.0), 3.0])
    ends = score.ends(np.full((5, 1), math.log(mean)), radii[:, None])[:, 0]
    expected = [definitions.within_residual(mean, radius, loss) for radius in radii]
    np.testing.assert_allclose(ends, expected, rtol=1e-7, atol=2e-9 * mean)
    found = score(np.full((5, 1), math.log(mean)), ends[:, 1])
    np.testing.assert_allclose(found[1:, 0], radii[1:], rtol=1e-4)


def test_counts_at_the_end_of_an_interval_are_in_it() -> None:
    # whatever the rounding of the two ways is: many rows of one mean have the same score
    means, score = np.array([0.3, 1.0, 2.5, 17.0, 1e3, 1e8]), DevianceScore("poisson")
    for count in (0.0, 1.0, 2.0, 30.0, 1_050.0, 1e8 + 3e4):
        radii = score(np.log(means)[:, None], np.full(6, count))
        ends = score.ends(np.log(means)[:, None], radii)[:, 0]
        assert inside(ends, np.full(6, count)).all()


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_a_radius_without_end_leaves_every_target(loss: str) -> None:
    ends = DevianceScore(loss).ends(np.array([[0.0], [3.0]]), np.array([np.inf]))
    np.testing.assert_array_equal(ends[:, 0], [[0.0, np.inf], [0.0, np.inf]])


def test_quantiles_that_were_too_far_apart_move_together_up_to_their_middle() -> None:
    ends = QuantileScore(2).ends(np.array([[0.0, 4.0], [5.0, 4.0]]), np.array([-1.0]))
    np.testing.assert_array_equal(ends[:, 0], [[1.0, 3.0], [4.5, 4.5]])


@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("loss", ["pinball", "poisson", "gamma"])
def test_intervals_are_those_that_sorting_finds(loss: str, coverage: float) -> None:
    X, y, exposure = rows(loss)
    (held_X, held_y, held_exposure), (new, _, new_exposure) = rows(loss, 99, 1), rows(loss, 30, 2)
    model = regressor(loss).fit(X, y, exposure=exposure).conformalize(held_X, held_y, exposure=held_exposure)
    known, answers = model.predict(held_X, exposure=held_exposure), model.predict(new, exposure=new_exposure)
    if loss == "pinball":
        scores = [definitions.outside_quantiles(*pair) for pair in zip(held_y, known.tolist(), strict=True)]
        radius = definitions.order_statistic(np.array(scores), str(coverage))
        expected = np.column_stack([answers[:, 0] - radius, answers[:, 1] + radius])
    else:
        scores = [definitions.deviance_residual(*pair, loss) for pair in zip(held_y, known, strict=True)]
        radius = definitions.order_statistic(np.array(scores), str(coverage))
        expected = np.array([definitions.within_residual(mean, radius, loss) for mean in answers])
    found = model.predict_interval(new, coverage, exposure=new_exposure)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
    # the next larger score of a held-out row is outside, the one that counts and all smaller ones are inside
    ends = model.predict_interval(held_X, coverage, exposure=held_exposure)
    # the row that counts lies on its end, to rounding
    covered = inside(ends + np.array([-1e-9, 1e-9]), held_y)
    np.testing.assert_array_equal(covered, np.array(scores) <= radius + 1e-9)


@pytest.mark.parametrize("loss", ["pinball", "poisson", "gamma"])
def test_coverage_is_that_of_exchangeable_rows(loss: str) -> None:
    # of 39 held-out rows the 36th of 40 places: .9 exactly where no two scores are alike, and at least that for counts
    model, (X, y, exposure) = regressor(loss), rows(loss)
    model.fit(X, y, exposure=exposure)
    X, y, exposure = rows(loss, 4_000, 3)
    shares = []
    for draw in range(60):
        chosen = np.random.default_rng(draw).permutation(4_000)[:539]
        held, new = chosen[:39], chosen[39:]
        one, other = (None, None) if exposure is None else (exposure[held], exposure[new])
        model.conformalize(X[held], y[held], exposure=one)
        shares.append(inside(model.predict_interval(X[new], 0.9, exposure=other), y[new]).mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=3.0 * np.std(shares) / np.sqrt(60))


def test_intervals_of_quantiles_are_wide_where_the_noise_is() -> None:
    X, y, _ = rows("pinball", 3_000)
    model = regressor("pinball", quantiles=(0.05, 0.95), conformal_fraction=0.2).fit(X[:2_000], y[:2_000])
    ends = model.predict_interval(X[2_000:], coverage=0.9)
    width, is_noisy = ends[:, 1] - ends[:, 0], X[2_000:, 1] > 0.0
    assert width[is_noisy].mean() > 1.5 * width[~is_noisy].mean()
    covered = inside(ends, y[2_000:])
    for part in (is_noisy, ~is_noisy):
        assert covered[part].mean() == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("loss", ["poisson", "gamma", "pinball"])
def test_rows_held_out_of_a_fit_are_those_of_a_fit_without_them(loss: str) -> None:
    X, y, exposure = rows(loss, 400)
    model = regressor(loss, alpha="auto", conformal_fraction=0.25).fit(X, y, exposure=exposure)
    out = HeldOut(0.25, model.seed_ ^ conformal._SALT).mask(np.arange(400))
    assert model.conformal_.scores.shape == (out.sum(), 1)
    # whatever was counted in held-out rows, over whatever, the fit is the same
    moved = None if exposure is None else np.where(out, 77.0, exposure)
    other = regressor(loss, alpha="auto", conformal_fraction=0.25).fit(X, np.where(out, 1e3, y), exposure=moved)
    np.testing.assert_array_equal(other.linear_.coef_, model.linear_.coef_)
    by_itself = model.predict_interval(X, exposure=exposure)
    by_hand = model.conformalize(X[out], y[out], exposure=None if exposure is None else exposure[out])
    np.testing.assert_allclose(by_hand.predict_interval(X, exposure=exposure), by_itself, rtol=1e-8)


def test_rows_of_every_form_have_the_same_intervals(tmp_path: Path) -> None:
    X, y, exposure = rows("poisson", 300)
    assert exposure is not None
    model = regressor("poisson").fit(X, y, exposure=exposure).conformalize(X, y, exposure=exposure)
    expected = model.predict_interval(X, exposure=exposure)
    for form in (da.from_array(X, chunks=(130, -1)), as_dataset(X, y)):
        lazy = np.asarray(model.predict_interval(form, exposure=exposure).compute())
        assert_same_rows(lazy, expected, atol=1e-9)
    stored = dkl.create_dataset(tmp_path / "rows", X, y, rows_a_block=64, task="regression")
    np.testing.assert_allclose(
        model.conformalize(stored, exposure=exposure).predict_interval(X, exposure=exposure), expected, rtol=1e-9
    )
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_interval(X, exposure=exposure), expected, rtol=1e-9)
    # a column of a frame is no feature, and zero weights leave rows out with their exposure
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(years=exposure)
    weight = np.arange(300) % 3
    named = regressor("poisson", conformal_fraction=0.3).fit(frame, y, exposure="years")
    assert named.predict_interval(frame, exposure="years").shape == (300, 2)
    named.conformalize(frame, y, weight, exposure="years")
    repeated = frame.loc[np.repeat(np.arange(300), weight)]
    ends = named.predict_interval(frame, exposure="years")
    named.conformalize(repeated, np.repeat(y, weight), exposure="years")
    np.testing.assert_allclose(named.predict_interval(frame, exposure="years"), ends, rtol=1e-9)


def test_counts_have_intervals_by_group_and_for_several_targets() -> None:
    X, y, exposure = rows("poisson", 300)
    assert exposure is not None
    both = np.column_stack([y, np.random.default_rng(5).poisson(3.0, 300)])
    model = regressor("poisson").fit(X, both, exposure=exposure)
    groups = np.arange(300) % 2
    found = model.conformalize(X, both, groups=groups, exposure=exposure).predict_interval(
        X, 0.8, groups=groups, exposure=exposure
    )
    mean = model.predict(X, exposure=exposure)
    for target in range(2):
        pairs = np.column_stack([both[:, target], mean[:, target]]).tolist()
        scores = [definitions.deviance_residual(one, other, "poisson") for one, other in pairs]
        for group in range(2):
            radius = definitions.order_statistic(np.array(scores)[groups == group], "0.8")
            expected = [definitions.within_residual(one, radius, "poisson") for one in mean[groups == group, target]]
            np.testing.assert_allclose(found[groups == group, target], expected, rtol=1e-7, atol=1e-8)


def test_what_has_no_interval_says_so() -> None:
    X, y, exposure = rows("poisson")
    with pytest.raises(ValueError, match=r"an interval lies between two quantiles, and quantiles=\(0.5,\) is one"):
        regressor("pinball", quantiles=(0.5,), conformal_fraction=0.2).fit(X, y)
    model = regressor("poisson").fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match=r"y\[3\].* is -1.0: loss='poisson' is of counts"):
        model.conformalize(X, np.where(np.arange(200) == 3, -1.0, y), exposure=exposure)
    with pytest.raises(ValueError, match=r"exposure\[2\] is 0.0"):
        model.conformalize(X, y, exposure=np.where(np.arange(200) == 2, 0.0, 1.0))
    with pytest.raises(ValueError, match="was fitted with exposures that were given as values"):
        model.conformalize(X, y)
    model.conformalize(X, y, exposure=exposure)
    with pytest.raises(ValueError, match=r"exposure has shape \(3,\), and there are 200 rows"):
        model.predict_interval(X, exposure=np.ones(3))
    plain = regressor("squared_error").fit(X, y).conformalize(X, y)
    for refused in (lambda: plain.predict_interval(X, exposure=exposure), lambda: plain.conformalize(X, y, exposure=y)):
        with pytest.raises(ValueError, match="exposure was given, and loss='squared_error' has none"):
            refused()
    labels = KernelClassifier(FEATURES, solver="newton", calibrate=True, random_state=0).fit(X, y > 2)
    with pytest.raises(ValueError, match="exposure was given, and loss='squared_hinge' has none"):
        labels.conformalize(X, y > 2, exposure=exposure)


def test_the_picture_of_coverage_takes_intervals_that_are_not_around_the_prediction() -> None:
    X, y, _ = rows("pinball", 400)
    model = regressor("pinball", conformal_fraction=0.3).fit(X[:300], y[:300])
    drawn = CoverageDisplay.from_estimator(model, X[300:], y[300:])
    ends = model.predict_interval(X[300:], 0.9)
    assert drawn.kept["conformal"][drawn.coverages.tolist().index(0.9)] == inside(ends, y[300:]).mean()
