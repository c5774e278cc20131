"""Machines of counts, sizes, quantiles and outliers have the coefficients of scikit-learn on the same features."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, mean_gamma_deviance, mean_poisson_deviance

import dkl
from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods.random_features import RandomFeatures

POWER = {"poisson": 1, "gamma": 2}
THEIRS = {"poisson": PoissonRegressor, "gamma": GammaRegressor}


def features(n: int = 24) -> RandomFeatures:
    return RandomFeatures(n_features=n, dtype="float64", random_state=0)


def rows(loss: str, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows with targets of a log mean, whole weights, and exposures."""
    rng = np.random.default_rng(seed)
    X, exposure = rng.standard_normal((n, 3)), rng.uniform(0.2, 5.0, n)
    mean = exposure * np.exp(1.0 + np.sin(X[:, 0]) + 0.3 * X[:, 1])
    y = rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(2.0, 0.5, n)
    return X, y, rng.integers(0, 3, n).astype(float), exposure


def theirs(model: KernelRegressor, X: np.ndarray, y: np.ndarray, weight: Any, alpha: float) -> Any:
    """scikit-learn's estimator on the features of a fitted machine."""
    estimator = THEIRS[model.loss](alpha=alpha, solver="newton-cholesky", tol=1e-12, max_iter=1_000)
    return estimator.fit(model.features_.transform(X), y, sample_weight=weight)


@pytest.mark.parametrize("loss", POWER)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1e-1, 1e-4])
def test_coefficients_are_those_of_scikit_learn(loss: str, weighted: bool, alpha: float) -> None:
    X, y, weight, _ = rows(loss)
    given = weight if weighted else None
    model = KernelRegressor(features(), loss=loss, alpha=alpha).fit(X, y, given)
    expected = theirs(model, X, y, given, alpha)
    np.testing.assert_allclose(model.linear_.coef_, expected.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.linear_.intercept_, expected.intercept_, rtol=0, atol=1e-6)
    phi = model.features_.transform(X)
    np.testing.assert_allclose(model.predict(X), expected.predict(phi), rtol=1e-6)
    np.testing.assert_allclose(np.exp(model.linear_.predict(phi)), expected.predict(phi), rtol=1e-6)
    assert model.score(X, y, given) == pytest.approx(
        d2_tweedie_score(y, model.predict(X), sample_weight=given, power=POWER[loss]), rel=1e-12
    )
    assert model.solver_ == "newton"


@pytest.mark.parametrize("loss", POWER)
def test_exposure_is_the_offset_of_the_log_mean(loss: str) -> None:
    """Rates with the exposure as their weights have the same gradient as counts with its logarithm as an offset."""
    X, y, weight, exposure = rows(loss)
    alpha = 1e-3
    model = KernelRegressor(features(), loss=loss, alpha=alpha).fit(X, y, weight, exposure=exposure)
    counted = weight * exposure if loss == "poisson" else weight
    expected = theirs(model, X, y / exposure, counted, alpha)
    np.testing.assert_allclose(model.linear_.coef_, expected.coef_, rtol=0, atol=1e-6)
    # literally: sum_i s_i dL(y_i, f_i + log e_i)/df phi_i + alpha N w = 0
    phi = np.column_stack([model.features_.transform(X), np.ones(len(X))])
    w = np.append(model.linear_.coef_, model.linear_.intercept_)
    mean = np.exp(phi @ w + np.log(exposure))
    slope = mean - y if loss == "poisson" else 1.0 - y / mean
    penalty = alpha * counted.sum() * np.append(w[:-1], 0.0)
    np.testing.assert_allclose(phi.T @ (weight * slope) + penalty, 0.0, atol=1e-5)
    np.testing.assert_allclose(model.predict(X, exposure=exposure), mean, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X), mean / exposure, rtol=1e-9)
    deviance = {"poisson": mean_poisson_deviance, "gamma": mean_gamma_deviance}[loss]
    expected_deviance = deviance(y / exposure, mean / exposure, sample_weight=counted)
    assert model.deviance(X, y, weight, exposure=exposure) == pytest.approx(expected_deviance, rel=1e-9)


def test_exposure_comes_from_arrays_frames_dask_and_datasets_alike(tmp_path: Any) -> None:
    X, y, _, exposure = rows("poisson")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = KernelRegressor(features(), loss="poisson", alpha=1e-3)
    expected = model.fit(X, y, exposure=exposure).predict(X, exposure=exposure)
    named = frame.assign(years=exposure)
    model.fit(named, y, exposure="years")
    np.testing.assert_allclose(model.predict(named, exposure="years"), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(frame, exposure=exposure), expected, rtol=1e-6)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    score = model.score(named, y, exposure="years")
    lazy = da.from_array(X, chunks=(150, 3))
    model.fit(lazy, y, exposure=exposure)
    np.testing.assert_allclose(model.predict(lazy, exposure=exposure).compute(), expected, rtol=1e-6)
    assert model.score(lazy, y, exposure=exposure) == pytest.approx(score, rel=1e-6)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, task="regression", rows_a_block=150)
    model.fit(stored, exposure=exposure)
    predicted = model.predict(stored, exposure=exposure).compute()
    np.testing.assert_allclose(predicted.to_numpy(), expected, rtol=1e-6)
    assert model.score(stored, exposure=exposure) == pytest.approx(score, rel=1e-6)


def test_an_exposure_column_of_a_dataset_is_read_and_stays_a_feature(tmp_path: Any) -> None:
    X, y, _, exposure = rows("poisson")
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(years=exposure)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", frame, y, task="regression")
    model = KernelRegressor(features(), loss="poisson", alpha=1e-3).fit(stored, exposure="years")
    again = KernelRegressor(features(), loss="poisson", alpha=1e-3).fit(stored, exposure=exposure)
    np.testing.assert_allclose(model.linear_.coef_, again.linear_.coef_, atol=1e-6)  # stored in float32
    by_name = model.predict(stored, exposure="years").compute()
    np.testing.assert_allclose(by_name, model.predict(stored).compute() * exposure, rtol=1e-6)


@pytest.mark.parametrize("loss", POWER)
def test_several_targets_are_fitted_at_once(loss: str) -> None:
    X, y, weight, _ = rows(loss)
    both = np.column_stack([y, y[::-1]])
    model = KernelRegressor(features(), loss=loss, alpha=1e-2).fit(X, both, weight)
    alone = KernelRegressor(features(), loss=loss, alpha=1e-2).fit(X, y, weight)
    np.testing.assert_allclose(model.predict(X)[:, 0], alone.predict(X), rtol=1e-6)
    each = [
        d2_tweedie_score(both[:, t], model.predict(X)[:, t], sample_weight=weight, power=POWER[loss]) for t in range(2)
    ]
    assert min(each) <= model.score(X, both, weight) <= max(each)


@pytest.mark.parametrize("loss", POWER)
def test_the_penalty_is_chosen_by_held_out_deviance(loss: str) -> None:
    X, y, _, _ = rows(loss, 1_500)
    chosen = KernelRegressor(features(200), loss=loss, alpha="auto", random_state=0).fit(X[:1_000], y[:1_000])
    assert len(chosen.alphas_) == len(chosen.validation_scores_) == 8
    score = chosen.score(X[1_000:], y[1_000:])
    for alpha in (chosen.alphas_[0], chosen.alphas_[-1]):
        other = KernelRegressor(features(200), loss=loss, alpha=alpha, random_state=0).fit(X[:1_000], y[:1_000])
        assert score > other.score(X[1_000:], y[1_000:])


def test_targets_without_a_deviance_and_rows_without_exposure_are_refused() -> None:
    X, y, _, exposure = rows("poisson")
    poisson, gamma = (KernelRegressor(features(), loss=loss) for loss in ("poisson", "gamma"))
    bad = y.copy()
    bad[17] = -2.0
    with pytest.raises(ValueError, match=r"y\[17\] of .* is -2.*loss='poisson' is of counts"):
        poisson.fit(X, bad)
    bad[17] = 0.0
    with pytest.raises(ValueError, match=r"y\[\d+\] of .* is 0.*loss='gamma' is of sizes, which are above 0"):
        gamma.fit(X, bad)
    with pytest.raises(ValueError, match="nothing but 0"):
        poisson.fit(X, np.zeros(len(X)))
    for value in (0.0, -1.0, np.nan, np.inf):
        exposure[5] = value
        with pytest.raises(ValueError, match=r"exposure\[5\] is .*above 0"):
            poisson.fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match="one number a row"):
        poisson.fit(X, y, exposure=exposure[1:])
    with pytest.raises(ValueError, match=r"exposure='years' names a column, and X is no data frame"):
        poisson.fit(X, y, exposure="years")
    with pytest.raises(ValueError, match=r"exposure='years' names no column of X; the columns are"):
        poisson.fit(pd.DataFrame(X, columns=list("abc")), y, exposure="years")
    with pytest.raises(ValueError, match="loss='poisson' or loss='gamma'"):
        KernelRegressor(features()).fit(X, y, exposure=np.ones(len(X)))
    with pytest.raises(ValueError, match="solver='newton'"):
        KernelRegressor(features(), loss="poisson", solver="sgd").fit(X, y)
    fitted = poisson.fit(X, y)
    with pytest.raises(ValueError, match=r"y\[3\] is -1"):
        fitted.score(X[:5], [1.0, 1.0, 1.0, -1.0, 1.0])
