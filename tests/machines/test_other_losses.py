"""Machines of counts, sizes, quantiles and outliers have the coefficients of scikit-learn on the same features."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import GammaRegressor, PoissonRegressor, QuantileRegressor
from sklearn.metrics import (
    d2_pinball_score,
    d2_tweedie_score,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
)

import dkl
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.registry import losses_for, losses_with
from dkl.solvers.losses import LOG_LINK, loss_of
from tests.definitions import losses as definitions

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


@pytest.mark.parametrize(
    ("loss", "weighted", "alpha"),
    [("poisson", False, 1e-4), ("poisson", True, 1e-1), ("gamma", True, 1e-4), ("gamma", False, 1e-1)],
)
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
def test_coefficients_are_those_of_glum(loss: str) -> None:
    glum = pytest.importorskip("glum")
    X, y, weight, exposure = rows(loss)
    model = KernelRegressor(features(), loss=loss, alpha=1e-3).fit(X, y, weight + 1.0, exposure=exposure)
    theirs = glum.GeneralizedLinearRegressor(family=loss, alpha=1e-3, l1_ratio=0.0, gradient_tol=1e-12, max_iter=1_000)
    # a row of exposure e is one of the rate y / e: with e times the weight, of counts
    counted = (weight + 1.0) * (exposure if loss == "poisson" else 1.0)
    theirs.fit(model.features_.transform(X), y / exposure, sample_weight=counted)
    np.testing.assert_allclose(model.linear_.coef_, theirs.coef_, rtol=0, atol=1e-6)
    assert model.linear_.intercept_ == pytest.approx(theirs.intercept_, abs=1e-6)


@pytest.mark.parametrize("loss", POWER)
def test_coefficients_are_those_of_statsmodels_where_the_penalty_is_nothing(loss: str) -> None:
    models = pytest.importorskip("statsmodels.api")
    X, y, weight, exposure = rows(loss)
    model = KernelRegressor(features(6), loss=loss, alpha=1e-13).fit(X, y, weight + 1.0, exposure=exposure)
    family = models.families.Poisson() if loss == "poisson" else models.families.Gamma(models.families.links.Log())
    phi = models.add_constant(model.features_.transform(X))
    # its own way to the exposure: the logarithm as an offset
    theirs = models.GLM(y, phi, family, offset=np.log(exposure), freq_weights=weight + 1.0).fit(tol=1e-14)
    found = np.append(model.linear_.intercept_, model.linear_.coef_)
    np.testing.assert_allclose(found, theirs.params, rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("kinds", [pytest.param("none", marks=pytest.mark.slow), "codes", "sparse"])
def test_an_exposure_column_of_a_dataset_is_no_feature_and_is_remembered(tmp_path: Any, kinds: str) -> None:
    X, y, _, exposure = rows("poisson")
    # float32 holds these exposures as they are
    exposure = np.ceil(4.0 * exposure) / 4.0
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = frame.assign(years=exposure)[["a", "years", "b", "c"]]
    for place in range({"none": 0, "codes": 1, "sparse": 10}[kinds]):
        values = np.arange(len(X)) % (300 if kinds == "codes" else 32 - place % 2)
        named[f"kind {place}"] = values.astype(str)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", named, y, task="regression", rows_a_block=150)
    assert (stored.schema.has_codes, stored.source.is_sparse) == (kinds == "codes", kinds == "sparse")
    model = KernelRegressor(features(), loss="poisson", alpha=1e-3, random_state=0).fit(stored, exposure="years")
    assert "years" not in model.feature_names_in_
    assert model.exposure_ == "years"
    # the bits are those of rows that never had the column
    without = named.drop(columns="years")
    bare = dkl.create_dataset(tmp_path / "bare.zarr", without, y, task="regression", rows_a_block=150)
    again = KernelRegressor(features(), loss="poisson", alpha=1e-3, random_state=0).fit(bare, exposure=exposure)
    np.testing.assert_array_equal(model.linear_.coef_, again.linear_.coef_)
    by_name = model.predict(stored, exposure="years").compute()
    np.testing.assert_allclose(by_name, model.predict(without) * exposure, rtol=1e-5)
    np.testing.assert_allclose(model.predict(stored).compute(), model.predict(named), rtol=1e-5)
    loaded = pickle.loads(pickle.dumps(model))
    for estimator in (model, loaded):
        by_hand = estimator.score(without, y, exposure=exposure)
        assert estimator.score(stored) == pytest.approx(by_hand, rel=1e-5)
        assert estimator.score(named, y) == pytest.approx(by_hand, rel=1e-5)
        assert estimator.deviance(named, y) == pytest.approx(estimator.deviance(without, y, exposure=exposure))
    for refused in (lambda: model.score(without, y), lambda: model.conformalize(without, y)):
        with pytest.raises(ValueError, match="was fitted with exposure='years', and X has no such column"):
            refused()
    np.testing.assert_array_equal(
        model.conformalize(stored).conformal_.scores, model.conformalize(stored, exposure="years").conformal_.scores
    )
    # a fit without exposure remembers none, and one with values has no column
    assert not hasattr(model.fit(named, y), "exposure_")
    with pytest.raises(ValueError, match="exposures that were given as values"):
        model.fit(without, y, exposure=exposure).score(without, y)


def test_a_stored_exposure_is_refused_by_its_row(tmp_path: Any) -> None:
    X, y, _, exposure = rows("poisson")
    model = KernelRegressor(features(), loss="poisson", alpha=1e-3, random_state=0)
    for value, says in ((0.0, r"exposure\[170\] is 0.*above 0"), (np.nan, "exposure='years' is missing in 1 rows")):
        frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(years=exposure)
        frame.loc[170, "years"] = value
        stored = dkl.create_dataset(tmp_path / f"{value}.zarr", frame, y, task="regression", rows_a_block=150)
        with pytest.raises(ValueError, match=says):
            model.fit(stored, exposure="years")
    with pytest.raises(ValueError, match="exposure='months' names no column of X; the columns are"):
        model.fit(stored, exposure="months")


def test_an_update_takes_the_exposure_of_the_fit(tmp_path: Any) -> None:
    X, y, _, exposure = rows("poisson")
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(years=exposure)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", frame[:300], y[:300], task="regression", rows_a_block=100)
    learner = dkl.AlignedFeatures(
        dkl.Gaussian(2.0), n_candidates=50, n_features=20, scaling=None, random_state=0, sums=str(tmp_path / "sums")
    )
    model = KernelRegressor(learner, loss="poisson", alpha=1e-3, random_state=0).fit(stored, exposure="years")
    more = stored.append(frame[300:], y[300:])
    updated = model.update(more)
    fresh = KernelRegressor(learner, loss="poisson", alpha=1e-3, random_state=0).fit(more, exposure="years")
    np.testing.assert_allclose(updated.predict(X), fresh.predict(X), rtol=1e-5)
    assert updated.exposure_ == "years"
    with pytest.raises(ValueError, match="exposure='years' names no column of X"):
        model.update(dkl.create_dataset(tmp_path / "other.zarr", X, y, task="regression"))


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
    fitted = poisson.fit(X, y)
    with pytest.raises(ValueError, match=r"y\[3\] is -1"):
        fitted.score(X[:5], [1.0, 1.0, 1.0, -1.0, 1.0])


def noisy_rows(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose targets have heavy tails and a spread that changes, and weights."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 3))
    y = 50.0 + 8.0 * (np.sin(2.0 * X[:, 0]) + 0.3 * (1.0 + X[:, 1] ** 2) * rng.standard_t(2.0, n))
    return X, y, rng.integers(0, 3, n).astype(float)


def standardised(model: Any, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with a column of ones, targets and models (K, m + 1) in the units that the penalty is beside."""
    # labels are -1 and +1 in either case
    is_number = not hasattr(model, "classes_")
    center, scale = (float(model.target_center_[0]), float(model.target_scale_[0])) if is_number else (0.0, 1.0)
    coef, intercept = np.atleast_2d(model.linear_.coef_), np.atleast_1d(model.linear_.intercept_)
    models = np.column_stack([coef, intercept - center]) / scale
    return np.column_stack([model.features_.transform(X), np.ones(len(X))]), (y - center) / scale, models


def objective(
    w: np.ndarray, phi: np.ndarray, z: np.ndarray, weight: np.ndarray, alpha: float, loss: Any
) -> tuple[float, np.ndarray]:
    """The penalised mean loss of a model (m + 1,), and its gradient."""
    f, penalised = phi @ w, np.append(w[:-1], 0.0)
    slope = phi.T @ (weight * loss.slope(z, f)) / weight.sum() + alpha * penalised
    return weight @ loss.value(z, f) / weight.sum() + 0.5 * alpha * penalised @ penalised, slope


@pytest.mark.parametrize(
    ("task", "loss"), [(task, loss) for task in ("classification", "regression") for loss in losses_for(task, "newton")]
)
def test_exact_steps_of_every_loss_end_where_a_general_solver_does(task: str, loss: str) -> None:
    """Or lower; with a smoothed kink, as that of quantiles, within a thousandth."""
    X, y, weight = noisy_rows(60)
    alpha = 1e-2
    if task == "classification":
        y = np.where(y > np.median(y), 1.0, -1.0)
        model: Any = KernelClassifier(features(8), loss=loss, alpha=alpha, solver="newton").fit(X, y, weight)
    else:
        y = np.exp(np.tanh(y)) if loss in LOG_LINK else y
        model = KernelRegressor(features(8), loss=loss, alpha=alpha, solver="newton").fit(X, y, weight)
    phi, z, models = standardised(model, X, y)
    has_quantiles = loss in losses_with("quantiles")
    for parameter, own in zip(model.quantiles if has_quantiles else (0.1,), models, strict=True):
        given = (phi, z, weight, alpha, definitions.loss_of(loss, parameter))
        best = minimize(objective, np.zeros(phi.shape[1]), given, jac=True, method="L-BFGS-B", options={"ftol": 1e-15})
        assert objective(own, *given)[0] <= best.fun * (1.001 if has_quantiles else 1.0 + 1e-9)


@pytest.mark.parametrize("alpha", [1e-2, 1e-5])
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_the_huber_loss_ends_where_a_general_solver_does(alpha: float, epsilon: float) -> None:
    X, y, weight = noisy_rows()
    model = KernelRegressor(features(), loss="huber", epsilon=epsilon, alpha=alpha, solver="newton").fit(X, y, weight)
    phi, z, models = standardised(model, X, y)
    given = (phi, z, weight, alpha, loss_of("huber", epsilon))
    tight = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-11}
    best = minimize(objective, np.zeros(phi.shape[1]), given, jac=True, method="L-BFGS-B", options=tight)
    assert objective(models[0], *given)[0] <= best.fun * (1.0 + 1e-12)
    np.testing.assert_allclose(objective(models[0], *given)[1], 0.0, atol=1e-9)
    np.testing.assert_allclose(phi @ models[0], phi @ best.x, atol=1e-4)


def test_an_outlier_moves_the_huber_loss_less_than_the_squared_error() -> None:
    X, y, _ = noisy_rows()
    far = y.copy()
    far[0] += 1e4
    moved = []
    for loss in ("huber", "squared_error"):
        model = KernelRegressor(features(), loss=loss, alpha=1e-3, solver="newton")
        moved.append(np.abs(model.fit(X, far).predict(X) - model.fit(X, y).predict(X)).mean())
    assert moved[0] < 0.5 * moved[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_have_the_loss_of_a_linear_programme(weighted: bool) -> None:
    """With hardly any penalty, to 0.1 % of the pinball loss."""
    X, y, weight = noisy_rows()
    weight = weight if weighted else np.ones(len(y))
    model = KernelRegressor(features(12), loss="pinball", quantiles=(0.1, 0.5, 0.8), alpha=1e-8)
    phi, z, models = standardised(model.fit(X, y, weight if weighted else None), X, y)
    for quantile, w in zip(model.quantiles, models, strict=True):
        exact = QuantileRegressor(quantile=quantile, alpha=0.0).fit(phi[:, :-1], z, sample_weight=weight)
        ours, best = (
            mean_pinball_loss(z, f, sample_weight=weight, alpha=quantile) for f in (phi @ w, exact.predict(phi[:, :-1]))
        )
        assert best * (1.0 - 1e-9) <= ours <= 1.001 * best


@pytest.mark.parametrize("alpha", [1e-1, 1e-3])
def test_penalised_quantiles_are_within_two_thousandths_of_their_dual_optimum(alpha: float) -> None:
    X, y, weight = noisy_rows(90)
    X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    model = KernelRegressor(features(12), loss="pinball", alpha=alpha).fit(X, y, weight)
    phi, z, models = standardised(model, X, y)
    share = weight / weight.sum()
    for quantile, w in zip(model.quantiles, models, strict=True):
        primal = share @ loss_of("pinball", quantile).value(z, phi @ w) + 0.5 * alpha * w[:-1] @ w[:-1]

        def dual(s: np.ndarray) -> tuple[float, np.ndarray]:
            """Minus the dual objective at slopes s: sum_i s_i z_i and the penalty of w = -phi's/alpha."""
            pull = phi[:, :-1].T @ (share * s)
            return pull @ pull / (2.0 * alpha) + share @ (z * s), share * (phi[:, :-1] @ pull / alpha + z)

        best = minimize(
            dual,
            np.zeros(len(z)),
            jac=True,
            method="SLSQP",
            bounds=[(-quantile, 1.0 - quantile)] * len(z),
            # the intercept is free
            constraints={"type": "eq", "fun": lambda s: share @ s, "jac": lambda _: share},
            options={"maxiter": 500, "ftol": 1e-15},
        )
        assert best.success
        assert -best.fun - 1e-6 <= primal <= -1.002 * best.fun


def test_quantiles_come_in_order_and_cover_what_they_say() -> None:
    X, y, _ = noisy_rows(2_000)
    model = KernelRegressor(features(100), loss="pinball", quantiles=(0.9, 0.1, 0.5), alpha=1e-5).fit(X, y)
    predicted = model.predict(X)
    assert (np.diff(predicted, axis=1) >= 0.0).all()
    np.testing.assert_allclose((y[:, None] <= predicted).mean(axis=0), [0.1, 0.5, 0.9], atol=0.02)
    each = [d2_pinball_score(y, column, alpha=q) for column, q in zip(predicted.T, (0.1, 0.5, 0.9), strict=True)]
    assert model.score(X, y) == pytest.approx(np.mean(each), rel=1e-9)
    median = KernelRegressor(features(100), loss="pinball", quantiles=[0.5], alpha=1e-5).fit(X, y)
    assert median.predict(X).shape == y.shape
    stored = model.predict(da.from_array(X, chunks=(700, 3)))
    np.testing.assert_allclose(stored.compute(), predicted)


def test_the_penalty_of_quantiles_and_of_the_huber_loss_is_chosen_too() -> None:
    X, y, _ = noisy_rows(1_000)
    for loss in ("pinball", "huber"):
        model = KernelRegressor(features(200), loss=loss, alpha="auto", solver="newton", random_state=0).fit(X, y)
        assert model.alphas_[-1] < model.alpha_ <= model.alphas_[0]


@pytest.mark.parametrize("loss", losses_with("epsilon"))
def test_a_loss_refuses_a_parameter_without_meaning_before_the_fit(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(own: Any) -> None:
        if own.epsilon > 1.0:
            raise ValueError(f"epsilon={own.epsilon!r} is too large for loss={loss!r}")

    X, y, _ = noisy_rows(50)
    monkeypatch.setattr(type(loss_of(loss)), "validate", validate)
    KernelRegressor(features(), loss=loss, epsilon=1.0, epochs=1).fit(X, y)
    with pytest.raises(ValueError, match=r"epsilon=1\.5 is too large"):
        KernelRegressor(features(), loss=loss, epsilon=1.5, epochs=1).fit(X, y)


@pytest.mark.parametrize("quantiles", [(), (0.5, 0.5), (0.0, 0.5), (1.2,), ("half",)])
def test_quantiles_that_are_none_are_refused(quantiles: Any) -> None:
    X, y, _ = noisy_rows(50)
    with pytest.raises(ValueError, match="expected different numbers between 0 and 1"):
        KernelRegressor(features(), loss="pinball", quantiles=quantiles).fit(X, y)


LINKED = [("poisson", {}), ("gamma", {}), ("pinball", {"quantiles": (0.8, 0.2, 0.5)}), ("huber", {"solver": "newton"})]


@pytest.mark.parametrize(("loss", "options"), LINKED)
def test_models_that_leave_the_process_answer_alike(loss: str, options: Any, tmp_path: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    X, y, _, _ = rows("gamma")
    model = KernelRegressor(features(), loss=loss, alpha=1e-3, **options).fit(X, y)
    expected = model.predict(X)
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), expected)
    assert again.score(X, y) == model.score(X, y)
    predictor = again.predictor()
    np.testing.assert_allclose(predictor.predict(X), expected, rtol=1e-9)
    np.testing.assert_allclose(predictor.predict(X[0]), expected[0], rtol=1e-9)
    session = runtime.InferenceSession(model.to_onnx().SerializeToString())
    np.testing.assert_allclose(session.run(["prediction"], {"X": X})[0], expected, rtol=1e-9)
    if loss != "pinball":
        np.testing.assert_allclose(model.to_sklearn().predict(X), expected, rtol=1e-6)
        return
    with pytest.raises(TypeError, match="several quantiles in order"):
        model.to_sklearn()


def test_explanations_name_the_logarithm_of_the_mean() -> None:
    X, y, _, _ = rows("poisson")
    model = KernelRegressor(features(), loss="poisson", alpha=1e-3).fit(X, y)
    strongest, *_ = dkl.explain.effects(model, X)
    assert "on log mean: strength" in repr(strongest)
    assert dkl.explain.importance(model, X).outputs == ("log mean",)
    found = dkl.explain.contributions(model, X[:5], background=X)
    assert found.outputs == ("log mean",)
    np.testing.assert_allclose(np.exp(found.predictions[:, 0]), model.predict(X[:5]), rtol=1e-6)


@pytest.mark.parametrize("loss", ["poisson", pytest.param("pinball", marks=pytest.mark.slow)])
def test_machines_that_choose_their_features_take_these_losses(loss: str) -> None:
    X, y, _, exposure = rows("poisson", 400)
    model = KernelRegressor(loss=loss, effort="fast", random_state=0)
    if loss == "poisson":
        model.fit(X[:300], y[:300], exposure=exposure[:300])
        assert model.score(X[300:], y[300:], exposure=exposure[300:]) > 0.4
    else:
        assert model.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.05
    assert model.reasons_[0].startswith("Features: ")
    assert " on held-out rows, 0." in model.reasons_[0]


@pytest.mark.parametrize("loss", ["poisson", "pinball"])
def test_deviations_are_those_of_the_squared_error_alone(loss: str) -> None:
    X, y, _, _ = rows("poisson")
    with pytest.raises(ValueError, match="deviations"):
        KernelRegressor(features(), loss=loss, alpha=1e-3).fit(X, y).predict(X, return_std=True)


@pytest.mark.filterwarnings("ignore:stopped after 50 Newton steps:UserWarning")
@pytest.mark.parametrize("loss", [pytest.param("huber", marks=pytest.mark.slow), "gamma", "epsilon_insensitive"])
def test_a_machine_without_settings_fits_a_store_by_any_loss(loss: str, tmp_path: Any) -> None:
    """What waves cannot descend by is no candidate: the plan of a store, which has all of them, was refused."""
    rows = np.random.default_rng(0).normal(size=(120, 3))
    target = np.exp(np.sin(2.0 * rows[:, 0]))
    ds = dkl.create_dataset(tmp_path / "rows.zarr", rows, target, rows_a_block=40)
    machine = dkl.KernelRegressor(loss=loss, effort="fast", trials=[0, 1], random_state=0, progress=False)
    assert dkl.plan(machine, ds).n_passes > 0
    assert np.isfinite(machine.fit(ds).predict(rows)).all()
