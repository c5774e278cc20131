"""Numbers that overflow: a fit works or is refused by name, and what is no number is an error where it arises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge

import dkl
from dkl.features.families import Gaussian
from dkl.features.scaling import Scaler
from dkl.kernels import products
from dkl.linear.fitting import LinearFit
from dkl.linear.target_statistics import TargetScale
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.registry import learner_classes

X = np.random.default_rng(0).normal(size=(60, 3))
LABELS = (X[:, 0] > 0).astype(int)


# every learner without a scaling and with one, and every scaling
SCALED = [(name, scaling) for name in learner_classes() for scaling in (None, "minmax")]
SCALED += [("aligned", scaling) for scaling in ("standard", "unit", "quantile")]


@pytest.mark.parametrize(("name", "scaling"), SCALED)
def test_every_learner_works_on_huge_rows_or_refuses_them_by_name(name: str, scaling: str | None) -> None:
    small = {"n_features": 8, "n_candidates": 16}
    learner = learner_classes()[name](random_state=0)
    known = learner.get_params(deep=False)
    learner.set_params(**{key: value for key, value in {**small, "scaling": scaling}.items() if key in known})
    # thresholds need no scale
    if scaling in ("minmax", "quantile") or "scaling" not in known:
        assert np.isfinite(learner.fit(X * 1e200, LABELS).transform(X * 1e200)).all()
    else:
        with pytest.raises(ValueError, match=r"(scale of kind|median distance).* is (inf|nan): the squares"):
            learner.fit(X * 1e200, LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["center", "scale", "knots"])
def test_a_scale_that_is_no_number_is_refused_where_it_arises(name: str, value: float) -> None:
    good = Scaler("quantile", np.zeros(3), np.ones(3), np.zeros(3, bool), np.zeros((4, 3)))
    spoiled = getattr(good, name).copy()
    spoiled[..., 2] = value
    with pytest.raises(ValueError, match="column 2 is"):
        replace(good, **{name: spoiled})


def test_an_amplitude_or_coefficient_that_is_no_number_is_refused_where_it_arises() -> None:
    drawn = Gaussian(sigma=1.0).draw(4, 3, seed=0)
    with pytest.raises(ValueError, match=r"amplitude of feature 1 is nan: .*scaling='standard'"):
        replace(drawn, amplitudes=np.array([1.0, np.nan, 1.0, 1.0]))
    diverged = Ridge()
    diverged.coef_, diverged.intercept_ = np.array([1.0, np.inf]), 0.0
    with pytest.raises(ValueError, match="coefficient of feature 1 is inf: rows or targets are so large"):
        LinearFit(diverged, TargetScale(np.zeros(1), np.ones(1)), 1)


def spoiled(model: Any) -> Any:
    model.linear_.coef_ = np.full_like(model.linear_.coef_, np.nan)
    return model


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "score"])
def test_a_model_whose_coefficients_are_no_numbers_does_not_predict(method: str) -> None:
    features = RandomFeatures(n_features=8, random_state=0)
    model = spoiled(KernelClassifier(features, loss="log_loss", random_state=0).fit(X, LABELS))
    given = (X, LABELS) if method == "score" else (X,)
    with pytest.raises(ValueError, match="coefficient of feature 0 is nan"):
        getattr(model, method)(*given)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_decision_value_that_is_no_number_names_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    # where BLAS rounds a row by its place, scores are computed in double precision, which holds this one
    monkeypatch.setattr(products, "single_rows_are_alike", lambda: True)
    model = KernelRegressor(RandomFeatures(dkl.Coordinates(), random_state=0, scaling=None), random_state=0)
    model.fit(X, X[:, 0])
    rows = np.float32([[1, 2, 3], [1e38, 3e38, 3e38], [1, 2, 3]])
    model.linear_.coef_ = np.full_like(model.linear_.coef_, 1e5)
    with pytest.raises(ValueError, match="row 1 cannot be predicted: its decision value 0 is inf"):
        model.predict(rows)


@pytest.mark.parametrize("size", [1e-140, 1e-60, 1e60, 1e149])
def test_targets_of_any_size_are_fitted_and_predicted_alike(size: float) -> None:
    model = KernelRegressor(RandomFeatures(n_features=20, random_state=0), random_state=0)
    expected = model.fit(X, X[:, 0]).predict(X)
    np.testing.assert_allclose(model.fit(X, X[:, 0] * size).predict(X) / size, expected, rtol=1e-3, atol=1e-4)


UNDERFLOW = (
    r"column 0 reaches from .*: float64 does not hold the squares of such small differences \(underflow\). Multiply it|"
    r"median distance between rows, which is the bandwidth sigma, is 0 though the rows differ: float64 does not hold|"
    r"sigma is .*: float(32|64) does not hold rows of that size"
)


@pytest.mark.parametrize(("name", "scaling"), SCALED)
def test_every_learner_works_on_tiny_rows_or_refuses_them_by_name(name: str, scaling: str | None) -> None:
    small = {"n_features": 8, "n_candidates": 16, "scaling": scaling}
    learner = learner_classes()[name](random_state=0)
    known = learner.get_params(deep=False)
    learner.set_params(**{key: value for key, value in small.items() if key in known})
    if scaling in ("minmax", "quantile") or "scaling" not in known:
        expected = clone(learner).fit(X, LABELS).transform(X)
        np.testing.assert_allclose(learner.fit(X * 1e-165, LABELS).transform(X * 1e-165), expected, rtol=0, atol=1e-5)
    else:
        with pytest.raises(ValueError, match=UNDERFLOW):
            learner.fit(X * 1e-165, LABELS)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("features", ["auto", RandomFeatures(n_features=8, scaling="standard", random_state=0)])
def test_a_tiny_column_is_not_taken_for_a_constant(features: Any) -> None:
    rows = np.vstack([X, X + 0.1])
    rows[:, 1] *= 1e-165
    with pytest.raises(ValueError, match=r"column 1 reaches from .*e-165 to .*e-165: .* such as 1e165"):
        KernelClassifier(features, effort="fast", random_state=0).fit(rows, np.tile(LABELS, 2))
    expected = KernelClassifier(features, effort="fast", random_state=0).fit(rows * [1, 1e165, 1], np.tile(LABELS, 2))
    smaller = KernelClassifier(features, effort="fast", random_state=0).fit(rows * [1, 1e60, 1], np.tile(LABELS, 2))
    agree = smaller.predict(rows * [1, 1e60, 1]) == expected.predict(rows * [1, 1e165, 1])
    assert agree.all()


@pytest.mark.parametrize(
    "model",
    [
        KernelRegressor(RandomFeatures(n_features=8, random_state=0), solver="newton", random_state=0),
        KernelRegressor(RandomFeatures(n_features=8, random_state=0), epochs=1, random_state=0),
        KernelRegressor(RandomFeatures(n_features=8, random_state=0), loss="pinball", random_state=0),
        KernelRegressor(effort="fast", random_state=0),
        dkl.TunedRegressor(n_features=8, random_state=0),
        dkl.PeakFeatures(n_features=4, random_state=0),
        dkl.MarginFeatures(n_features=4, random_state=0),
        dkl.StepFeatures(n_features=4, random_state=0),
    ],
    ids=lambda model: f"{type(model).__name__}-{getattr(model, 'loss', None)}",
)
@pytest.mark.usefixtures("little_work")
def test_targets_whose_squares_underflow_are_no_constants(model: Any) -> None:
    rows, y = np.vstack([X, X + 0.1]), np.tile(X[:, 0], 2)
    with pytest.raises(ValueError, match=r"y reaches from .*e-162 to .*e-162: float64 does not hold the squares"):
        clone(model).fit(rows, y * 1e-162)
    assert np.isfinite(clone(model).fit(rows, y * 1e-150).feature_map_.amplitudes).all()


def test_squares_that_are_lost_for_the_sake_of_small_weights_are_refused_too() -> None:
    rows, learner = X * [1.0, 1e-148, 1.0], RandomFeatures(n_features=8, scaling="standard", random_state=0)
    weights = np.full(len(X), 1e-30)
    with pytest.raises(ValueError, match=r"column 1 reaches from .*e-148: .*, times weights that sum to 6e-29 \(under"):
        clone(learner).fit(rows, LABELS, weights)
    expected = clone(learner).fit(X, LABELS, 1e25 * weights).transform(X)
    found = clone(learner).fit(rows, LABELS, 1e25 * weights).transform(rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    regressor = KernelRegressor(RandomFeatures(n_features=8, random_state=0), solver="newton", random_state=0)
    with pytest.raises(ValueError, match=r"y reaches from .*e-156: .* times weights that sum to"):
        regressor.fit(X, X[:, 0] * 1e-156, 1e10 * weights)


def test_a_mean_that_is_an_exponential_needs_no_unit() -> None:
    model = KernelRegressor(RandomFeatures(n_features=8, random_state=0), loss="gamma", random_state=0)
    expected = clone(model).fit(X, np.exp(X[:, 0])).predict(X)
    found = clone(model).fit(X, np.exp(X[:, 0]) * 1e-162).predict(X)
    np.testing.assert_allclose(found / 1e-162, expected, rtol=1e-5)
