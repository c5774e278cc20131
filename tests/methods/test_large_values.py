"""Numbers that overflow: a fit works or is refused by name, and what is no number is an error where it arises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import dkl
from dkl.features.families import Gaussian
from dkl.features.scaling import Scaler
from dkl.linear.fitting import LinearFit
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.registry import learner_classes

X = np.random.default_rng(0).normal(size=(60, 3))
LABELS = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit", "quantile"])
@pytest.mark.parametrize("name", learner_classes())
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
        LinearFit(diverged, np.zeros(1), np.ones(1), 1)


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
def test_a_decision_value_that_is_no_number_names_its_row() -> None:
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
