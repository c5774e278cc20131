"""Rounds for counts and sizes end at the machine of their loss, and machines make use of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.steps.learner import StepFeatures
from dkl.solvers.losses import loss_of


def rows(loss: str, n: int = 1_500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    mean = np.exp(1.0 + np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1])
    y = rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(2.0, 0.5, n)
    return X, y, rng.integers(1, 3, n).astype(float)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_the_working_model_of_rounds_is_the_machine_of_its_c(loss: str) -> None:
    X, y, weight = rows(loss)
    C, table = 0.1, loss_of(loss)
    learner = MarginFeatures(n_features=30, loss=loss, C=C, dtype="float64", random_state=0).fit(X, y, weight)
    phi = np.column_stack([learner.transform(X), np.ones(len(X))])

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        penalised, f = np.append(w[:-1], 0.0), phi @ w
        slope = phi.T @ (C * weight * table.slope(y, f)) + penalised
        return 0.5 * penalised @ penalised + C * weight @ table.value(y, f), slope

    ours = objective(np.append(learner.coef_[0], learner.intercept_[0]))[0]
    start = np.append(np.zeros(phi.shape[1] - 1), np.log(y.mean()))
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 5_000, "ftol": 1e-14})
    assert ours <= best.fun * (1.0 + 1e-4)
    machine = learner.machine_
    np.testing.assert_allclose(machine.predict(X), np.exp(phi @ np.append(learner.coef_[0], learner.intercept_)), 1e-6)
    assert machine.score(X, y) > 0.45
    drawn = MarginFeatures(n_features=30, loss=loss, C=C, plain_share=1.0, random_state=0).fit(X, y, weight)
    assert machine.score(X, y) > drawn.machine_.score(X, y)


def test_machines_on_rounds_fit_counts_with_exposure_and_several_at_once() -> None:
    X, y, _ = rows("poisson")
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.1, 3.0, len(y))
    counts = rng.poisson(exposure * np.exp(1.0 + np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1])).astype(float)
    model = KernelRegressor("margin", loss="poisson", alpha=1e-3, random_state=0).set_params(
        features=MarginFeatures(n_features=40, loss="poisson", random_state=0)
    )
    assert model.fit(X, counts, exposure=exposure).score(X, counts, exposure=exposure) > 0.5
    both = MarginFeatures(n_features=40, loss="poisson", random_state=0).fit(X, np.column_stack([y, counts]))
    assert both.coef_.shape[0] == 2
    assert (both.machine_.predict(X) > 0.0).all()


def test_machines_look_for_waves_of_their_own_loss() -> None:
    model = KernelRegressor("margin", loss="gamma")
    model.seed_ = 0
    assert model._new_features("features").loss == "gamma"
    assert KernelRegressor(MarginFeatures(), loss="gamma").set_params(random_state=0).features.loss is None


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_steps_end_at_the_penalised_optimum_of_their_loss(loss: str) -> None:
    """Of the rows that are learned from, at the penalty that held-out rows chose in the last round."""
    X, y, _ = rows(loss)
    y = y * 1e4  # the rounds begin at the mean, however large it is
    learner = StepFeatures(loss=loss, n_features=40, random_state=0, dtype="float64").fit(X, y)
    machine, squares = learner.machine_, StepFeatures(n_features=40, random_state=0).fit(X, np.log1p(y))
    assert machine.score(X, y) > 0.3
    assert np.isfinite(squares.coef_).all()
    phi = np.column_stack([learner.transform(X), np.ones(len(X))])
    w = np.append(learner.coef_[0], learner.intercept_[0])
    np.testing.assert_allclose(machine.predict(X), np.exp(phi @ w), rtol=1e-5)
    # the deviance is within a hundredth of that of the best model without a penalty
    table = loss_of(loss)
    scaled = y / y.mean()

    def mean_loss(v: np.ndarray) -> tuple[float, np.ndarray]:
        f = phi @ v
        return table.value(scaled, f).mean(), phi.T @ table.slope(scaled, f) / len(y)

    start = w - np.append(np.zeros(len(w) - 1), np.log(y.mean()))
    best = minimize(mean_loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5_000})
    assert best.fun <= mean_loss(start)[0] <= 1.1 * best.fun


def test_rounds_refuse_what_their_loss_does_not_know() -> None:
    X, y, _ = rows("poisson", 200)
    bad = y.copy()
    bad[3] = -1.0
    with pytest.raises(ValueError, match=r"y\[3\] of .* is -1.*loss='poisson'"):
        MarginFeatures(n_features=10, loss="poisson").fit(X, bad)
    with pytest.raises(ValueError, match="set refine=0"):
        MarginFeatures(n_features=10, loss="poisson", refine=2).fit(X, y)
    with pytest.raises(ValueError, match=r"y\[3\] of .* is -1.*loss='poisson'"):
        StepFeatures(loss="poisson").fit(X, bad)
    with pytest.raises(ValueError, match="one column of numbers, and the targets are 2 columns"):
        StepFeatures(loss="poisson").fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="use solver='newton'"):
        KernelRegressor(MarginFeatures(n_features=10), loss="poisson", solver="sgd").fit(X, y)
