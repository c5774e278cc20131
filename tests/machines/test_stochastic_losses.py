"""Stochastic steps of counts, sizes, quantiles and all classes together come to the optimum, on any workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import dkl
from dkl.linear.array_sgd import ArraySGDClassifier, ArraySGDRegressor
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.solvers.losses import LOG_LINK, loss_of

QUANTILES = (0.9, 0.1, 0.5)
LOSSES = ["poisson", "gamma", "pinball", "softmax"]


def features(n: int = 24) -> RandomFeatures:
    return RandomFeatures(n_features=n, dtype="float64", random_state=0)


def problem(loss: str, n: int = 1_500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, targets and whole weights, some of them 0."""
    rng = np.random.default_rng(0)
    X, mean = rng.standard_normal((n, 3)), 0.0
    mean = np.exp(1.0 + np.sin(X[:, 0]) + 0.3 * X[:, 1])
    y = {
        "poisson": lambda: rng.poisson(mean).astype(float),
        "gamma": lambda: mean * rng.gamma(2.0, 0.5, n),
        "softmax": lambda: (np.log(mean)[:, None] * [1.0, -1.0, 0.5] + rng.gumbel(size=(n, 3))).argmax(axis=1),
    }.get(loss, lambda: np.log(mean) + (0.3 + 0.2 * np.abs(X[:, 0])) * rng.standard_t(3, n))()
    return X, y, rng.integers(0, 3, n).astype(float)


def machine(loss: str, **options: Any) -> Any:
    if loss == "softmax":
        return KernelClassifier(features(), loss=loss, **{"solver": "sgd", "random_state": 0, **options})
    options = {"solver": "sgd", "random_state": 0, "quantiles": QUANTILES, **options}
    return KernelRegressor(features(), loss=loss, **options)


def objective(model: Any, X: np.ndarray, y: np.ndarray, weight: np.ndarray, alpha: float) -> float:
    """The mean loss of a model and its penalty, a sum over targets and quantiles, row by row by definition."""
    coef, b = np.atleast_2d(model.linear_.coef_), np.atleast_1d(model.linear_.intercept_)
    scores = model.features_.transform(X) @ coef.T + b
    if isinstance(model, KernelClassifier):
        losses = -log_softmax(scores, axis=1)[np.arange(len(y)), y]
        return float(np.average(losses, weights=weight) + 0.5 * alpha * np.sum(coef**2))
    total, outputs = 0.0, len(coef) // np.reshape(y, (len(y), -1)).shape[1]
    for k, score in enumerate(scores.T):
        target = np.reshape(y, (len(y), -1))[:, k // outputs]
        center, scale, level = 0.0, 1.0, 0.1
        if model.loss == "pinball":
            center, level = np.average(target, weights=weight), QUANTILES[k % outputs]
            scale = np.sqrt(np.average((target - center) ** 2, weights=weight))
        losses = loss_of(model.loss, level).value((target - center) / scale, (score - center) / scale)
        total += np.average(losses, weights=weight) + 0.5 * alpha * np.sum((coef[k] / scale) ** 2)
    return float(total)


@pytest.mark.parametrize(("loss", "alpha"), [*zip(LOSSES, (1e-3, 1e-1, 1e-3, 1e-1), strict=True), ("poisson", 1e-1)])
def test_steps_come_within_a_hundredth_of_the_newton_heads_optimum(loss: str, alpha: float) -> None:
    X, y, weight = problem(loss)
    # another target beside it, of other units
    y = y if loss == "softmax" else np.column_stack([y, 50.0 * y[::-1] + 1.0])
    ours, best = (
        objective(machine(loss, alpha=alpha, solver=solver).fit(X, y, weight), X, y, weight, alpha)
        for solver in ("sgd", "newton")
    )
    # Newton's quantiles have a parabola in place of the kink
    assert best * (1.0 - 1e-3 * (loss == "pinball") - 1e-9) <= ours <= 1.01 * best


def test_quantiles_by_steps_come_near_those_of_a_linear_programme() -> None:
    X, y, weight = problem("pinball", 600)
    kept = weight > 0
    X, y, weight = X[kept], y[kept], weight[kept]
    model = machine("pinball", alpha=1e-6, epochs=400).set_params(features=features(8)).fit(X, y, weight)
    phi = np.column_stack([model.features_.transform(X), np.ones(len(X))])
    for level, column in zip((0.1, 0.5, 0.9), model.predict(X).T, strict=True):
        # min s.(q u + (1 - q) v), phi w + u - v = y
        n, m = phi.shape
        costs = np.concatenate([np.zeros(m), level * weight, (1.0 - level) * weight])
        matrix = np.hstack([phi, np.eye(n), -np.eye(n)])
        best = linprog(costs, A_eq=matrix, b_eq=y, bounds=[(None, None)] * m + [(0, None)] * (2 * n)).fun
        assert best * (1.0 - 1e-9) <= weight @ loss_of("pinball", level).value(y, column) <= 1.02 * best


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_exposure_is_that_of_newton_steps(loss: str) -> None:
    X, y, weight = problem(loss)
    exposure = np.random.default_rng(1).uniform(0.2, 5.0, len(X))
    models = [
        machine(loss, alpha=1e-2, solver=solver).fit(X, y * np.ceil(exposure), weight, exposure=np.ceil(exposure))
        for solver in ("sgd", "newton")
    ]
    rates, counted = y, weight * (np.ceil(exposure) if loss == "poisson" else 1.0)
    ours, best = (objective(model, X, rates, counted, 1e-2) for model in models)
    assert best * (1.0 - 1e-9) <= ours <= 1.01 * best
    np.testing.assert_allclose(*(model.predict(X, exposure=exposure) for model in models), rtol=0.2)


class Interrupted(Exception):
    """What a test raises in the middle of a fit."""


@pytest.mark.parametrize("loss", ["pinball", "softmax"])
def test_workers_and_a_resumed_fit_give_the_bits_of_one_thread(
    loss: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    X, y, _ = problem(loss, 600)
    y = y if loss == "softmax" else np.column_stack([y, y[::-1]])
    options: dict[str, Any] = {"epochs": 3, "early_stopping": True, "alpha": 1e-3}
    task = "classification" if loss == "softmax" else "regression"
    store = dkl.create_dataset(tmp_path / "rows.zarr", X, y, task=task, rows_a_block=100)
    alone = machine(loss, **options).fit(store)
    assert len(alone.validation_losses_) == 3
    assert alone.validation_losses_[-1] < alone.validation_losses_[0]
    seen = []

    def stop(event: Any) -> None:
        if event.kind == "started" and event.name != "rounds":
            seen.append(event.name)
            if event.name == "epoch 2":
                raise Interrupted

    broken = machine(loss, checkpoint=str(tmp_path / "state"), **options)
    with pytest.raises(Interrupted):
        clone(broken).set_params(progress=stop).fit(store)
    assert "epoch 1" in seen
    resumed = clone(broken).fit(store)
    request.getfixturevalue("client")
    for other in (resumed, machine(loss, **options).fit(store)):
        np.testing.assert_array_equal(other.linear_.coef_, alone.linear_.coef_)
        np.testing.assert_array_equal(other.linear_.intercept_, alone.linear_.intercept_)
        assert other.validation_losses_ == alone.validation_losses_


@pytest.mark.parametrize("loss", LOSSES)
def test_partial_fit_goes_on_and_a_saved_model_does_so_alike(loss: str, tmp_path: Path) -> None:
    X, y, weight = problem(loss)
    y = y if loss == "softmax" else np.column_stack([y, 50.0 * y[::-1] + 1.0])
    alpha, first = 1e-2, slice(300)
    model = machine(loss, alpha=alpha, epochs=2).partial_fit(X[first], y[first], sample_weight=weight[first])
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    before = objective(model, X, y, weight, alpha)
    for _ in range(20):
        for each in (model, again):
            each.partial_fit(X[300:], y[300:], sample_weight=weight[300:])
    np.testing.assert_array_equal(again.linear_.coef_, model.linear_.coef_)
    after = objective(model, X, y, weight, alpha)
    best = objective(machine(loss, alpha=alpha, solver="newton").fit(X, y, weight), X, y, weight, alpha)
    assert after < before
    assert after - best < 0.02 * best


def test_partial_fit_takes_the_exposure_of_the_fit() -> None:
    X, y, _ = problem("poisson")
    exposure = np.random.default_rng(1).integers(1, 5, len(X)).astype(float)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(years=exposure)
    first, rest = slice(500), slice(500, None)
    by_name = machine("poisson", alpha=1e-2).fit(frame[first], (y * exposure)[first], exposure="years")
    by_value = machine("poisson", alpha=1e-2).fit(X[first], (y * exposure)[first], exposure=exposure[first])
    by_name.partial_fit(frame[rest], (y * exposure)[rest])
    by_value.partial_fit(X[rest], (y * exposure)[rest], exposure=exposure[rest])
    np.testing.assert_allclose(by_name.predict(X), by_value.predict(X), rtol=1e-5)
    assert abs(np.log(by_name.predict(frame).mean() / y.mean())) < 0.1
    with pytest.raises(ValueError, match="exposures that were given as values"):
        by_value.partial_fit(X[rest], (y * exposure)[rest])
    with pytest.raises(ValueError, match="was fitted without"):
        machine("poisson").fit(X, y).partial_fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match=r"is -1.*loss='poisson' is of counts"):
        machine("poisson").fit(X, y).partial_fit(X, np.where(np.arange(len(y)) == 7, -1.0, y))


def test_probabilities_of_the_softmax_are_those_of_its_scores_and_two_classes_have_the_log_loss() -> None:
    X, y, _ = problem("softmax")
    model = machine("softmax", alpha=1e-3).fit(X, y)
    scores = model.decision_function(X)
    np.testing.assert_allclose(np.log(model.predict_proba(X)), log_softmax(scores, axis=1), rtol=1e-9)
    np.testing.assert_allclose(model.predictor().predict_proba(X[:3]), model.predict_proba(X[:3]), rtol=1e-9)
    np.testing.assert_allclose(model.to_sklearn().predict_proba(X), model.predict_proba(X), atol=1e-6)
    exact = machine("softmax", alpha=1e-3, solver="newton")
    named = clone(exact).set_params(loss="log_loss").fit(X, y)
    np.testing.assert_array_equal(exact.fit(X, y).linear_.coef_, named.linear_.coef_)
    assert (exact.loss_, model.loss_) == ("log_loss", "softmax")
    two = y > 0
    ours, plain = (machine("softmax", alpha=1e-3).set_params(loss=loss).fit(X, two) for loss in ("softmax", "log_loss"))
    np.testing.assert_array_equal(ours.linear_.coef_, plain.linear_.coef_)
    np.testing.assert_array_equal(ours.predict_proba(X), plain.predict_proba(X))


@pytest.mark.parametrize("loss", [*LOG_LINK, "pinball"])
def test_far_targets_and_heavy_rows_overflow_nothing(loss: str) -> None:
    X, y, weight = problem(loss, 400)
    y[::50] *= 1e4
    weight[1::50] = 1e3
    model = machine(loss, alpha=1e-4, epochs=20).fit(1e3 * X, y, weight)
    assert np.isfinite(model.predict(1e3 * X)).all()


@pytest.mark.parametrize("loss", ["squared_error", "huber", "epsilon_insensitive"])
def test_several_targets_of_the_other_losses_are_fitted_each_as_alone(loss: str) -> None:
    X, y, weight = problem("huber")
    both = np.column_stack([y, 50.0 * y[::-1] + 1.0])
    model = machine(loss, alpha=1e-3, epochs=5).fit(X, both, weight)
    for t in range(2):
        alone = machine(loss, alpha=1e-3, epochs=5).fit(X, both[:, t], weight)
        np.testing.assert_allclose(model.predict(X)[:, t], alone.predict(X), rtol=1e-9, atol=1e-9)


def test_estimators_take_these_losses_by_partial_fit() -> None:
    X, counts, weight = problem("poisson", 400)
    model = ArraySGDRegressor("poisson", eta0=0.01, learning_rate="constant", alpha=1e-4)
    for _ in range(30):
        model.partial_fit(X, counts, weight)
    assert np.corrcoef(model.predict(X), counts)[0, 1] > 0.6
    assert (model.predict(X) > 0).all()
    assert model.t_ == 30 * 400 + 1
    with pytest.raises(ValueError, match=r"y\[3\] is -2.0, of which loss='poisson' has no deviance"):
        model.partial_fit(X[:5], [1.0, 1.0, 1.0, -2.0, 1.0])
    with pytest.raises(ValueError, match="y has 2 columns, and the model has 1 outputs"):
        model.partial_fit(X, np.column_stack([counts, counts]))
    whole = [ArraySGDRegressor("poisson").partial_fit(np.round(X).astype(kind), counts) for kind in (int, float)]
    np.testing.assert_array_equal(whole[0].coef_, whole[1].coef_)
    several = np.column_stack([counts, -3.0 * counts])
    levels = ArraySGDRegressor("pinball", epsilon=(0.9, 0.1), eta0=0.05, learning_rate="constant", alpha=1e-4)
    for _ in range(30):
        levels.partial_fit(X, several)
    found = levels.predict(X)
    assert (levels.coef_.shape, found.shape) == ((4, 3), (400, 4))
    assert (found[:, 0] <= found[:, 1]).all()
    np.testing.assert_allclose((np.repeat(several, 2, axis=1) <= found).mean(axis=0), [0.1, 0.9, 0.1, 0.9], atol=0.05)
    _, codes, _ = problem("softmax", 400)
    names = np.array(["a", "b", "c"])
    joint = ArraySGDClassifier("softmax", alpha=1e-3, learning_rate="constant", eta0=0.02, average=400)
    for _ in range(30):
        joint.partial_fit(X, names[codes], classes=names)
    exact = LogisticRegression(C=1.0 / (1e-3 * 400)).fit(X, names[codes])
    losses = [log_loss(names[codes], np.exp(log_softmax(m.decision_function(X), axis=1))) for m in (joint, exact)]
    assert losses[1] < losses[0] < 1.01 * losses[1]
    with pytest.raises(ValueError, match="fitted by partial_fit, an epoch a call"):
        joint.fit(X, names[codes])
    with pytest.raises(ValueError, match="three classes or more"):
        ArraySGDClassifier("softmax").partial_fit(X, names[np.minimum(codes, 1)], classes=["a", "b"])
    with pytest.raises(ValueError, match="The 'eta0' parameter of ArraySGDRegressor"):
        ArraySGDRegressor("gamma", eta0=-1.0).partial_fit(X, counts + 1.0)
    blocks = dkl.BlockIncremental(ArraySGDRegressor("poisson", eta0=0.01, alpha=1e-4), epochs=20, random_state=0)
    assert np.corrcoef(blocks.fit(X, counts).predict(X), counts)[0, 1] > 0.6
