"""Rounds for counts, sizes, outliers, quantiles and classes together end at the machine of their loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.base import clone

from dkl.features.dictionaries import Steps
from dkl.features.families import Gaussian, Matern
from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.dictionaries.landmarks import Landmarks
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.nystrom.learner import NystromFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.steps.learner import StepFeatures
from dkl.solvers.losses import loss_of
from dkl.solvers.round_losses import round_loss


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


LISTED = (Gaussian(), Steps(), Landmarks(Matern(0.5)))


def test_a_list_of_dictionaries_learns_counts_with_exposure_weights_and_several_at_once() -> None:
    X, y, weight = rows("poisson")
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.1, 3.0, len(y))
    counts = rng.poisson(exposure * np.exp(1.0 + np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1])).astype(float)
    listed = MarginFeatures(list(LISTED), n_features=40, loss="poisson", scaling="standard", random_state=0)
    train, test = slice(0, 1_000), slice(1_000, None)
    model = KernelRegressor(listed, loss="poisson", alpha=1e-3, random_state=0)
    model.fit(X[train], counts[train], weight[train], exposure=exposure[train])
    blind = clone(model).fit(X[train], counts[train], weight[train])
    assert model.score(X[test], counts[test], exposure=exposure[test]) > 0.5
    assert model.score(X[test], counts[test], exposure=exposure[test]) > blind.score(X[test], counts[test]) + 0.1
    both = clone(listed).fit(X[train], np.column_stack([y, counts])[train], weight[train])
    predicted = both.machine_.predict(X[test])
    assert predicted.shape == (500, 2)
    assert (predicted > 0.0).all()
    assert both.machine_.score(X[test], np.column_stack([y, counts])[test]) > 0.3


@pytest.mark.parametrize(
    "learner",
    [
        MarginFeatures(n_features=20),
        pytest.param(StepFeatures(n_features=20), marks=pytest.mark.slow),
        pytest.param(MarginFeatures(list(LISTED), n_features=20), marks=pytest.mark.slow),
    ],
    ids=["waves", "steps", "list"],
)
def test_rounds_have_the_quantiles_and_the_threshold_that_they_are_given(learner: Any) -> None:
    X, f, y = heavy_rows(900)
    fitted = clone(learner).set_params(loss="pinball", quantiles=(0.8, 0.25), random_state=0).fit(X, y)
    low, high = fitted.machine_.predict(X).T
    assert fitted.coef_.shape[0] == 2
    assert np.mean(y <= low) == pytest.approx(0.25, abs=0.06)
    assert np.mean(y <= high) == pytest.approx(0.8, abs=0.06)
    # where no error is beyond it, outliers mislead as they mislead squares
    wide, near = (
        clone(learner).set_params(loss="huber", epsilon=epsilon, random_state=0).fit(X, y).machine_.predict(X)
        for epsilon in (1e3, 0.1)
    )
    assert np.abs(near - f).mean() < 0.95 * np.abs(wide - f).mean()


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_no_row_asks_rounds_for_more_than_its_own_optimum(loss: str) -> None:
    """Newton's curvature where its step ends before log y, else that of the parabola whose lowest point is log y."""
    rng, table, plain = np.random.default_rng(0), round_loss(loss), loss_of(loss)
    y, f = rng.gamma(0.5, 4.0, 500), 3.0 * rng.standard_normal(500)
    y[:20] = 0.0 if loss == "poisson" else 1e-8
    y[20:40] = np.exp(f[20:40])
    found = table.curvature(y, f)
    for i in range(500):
        slope, expected = plain.slope(y[i : i + 1], f[i : i + 1])[0], plain.curvature(y[i : i + 1], f[i : i + 1])[0]
        best = np.log(y[i]) if y[i] > 0.0 else -np.inf
        if abs(best - f[i]) > 1e-5 and abs(slope / expected) > abs(best - f[i]):
            expected = slope / (f[i] - best)
        assert found[i] == pytest.approx(expected, rel=1e-9)
        assert f[i] - slope / found[i] <= max(best, f[i]) + 1e-6


def test_machines_look_for_waves_of_their_own_loss() -> None:
    model = KernelRegressor("margin", loss="gamma")
    model.seed_ = 0
    assert model._unfitted_features().loss == "gamma"
    assert KernelRegressor(MarginFeatures(), loss="gamma").set_params(random_state=0).features.loss is None
    given = {"loss": "pinball", "quantiles": (0.2, 0.7), "epsilon": 0.3}
    model = KernelRegressor("steps", **given)
    model.seed_ = 0
    assert given.items() <= model._unfitted_features().get_params().items()
    # of those that a machine sets side by side, each
    model = KernelRegressor(**given)
    model.seed_ = 0
    steps, _ = model._unfitted_features(CombinedFeatures([StepFeatures(), NystromFeatures()])).features
    assert given.items() <= steps.get_params().items()


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
    with pytest.raises(ValueError, match=r"y\[3\] of .* is -1.*loss='poisson'"):
        MarginFeatures([Steps()], loss="poisson").fit(X, bad)


def heavy_rows(n: int = 1_500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, what their targets scatter about, and targets with heavy tails."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
    return X, f, f + 0.3 * rng.standard_t(1.5, n)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("huber", {}),
        ("huber", {"epsilon": 1.0}),
        ("pinball", {}),
        ("pinball", {"quantiles": (0.3, 0.6)}),
        ("softmax", {}),
    ],
)
def test_rounds_end_at_the_penalised_optimum_of_losses_without_curvature_and_of_classes_together(
    loss: str, options: dict[str, Any]
) -> None:
    X, f, y = heavy_rows(600)
    C, table = 0.1, round_loss(loss, **options)
    labels = np.digitize(f, [-0.5, 0.5])
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0) if loss == "softmax" else y[:, None]
    learner = MarginFeatures(n_features=20, loss=loss, C=C, dtype="float64", random_state=0, **options)
    learner.fit(X, labels if loss == "softmax" else y)
    center, scale = (0.0, 1.0) if loss == "softmax" else (y.mean(), y.std())
    phi = np.column_stack([learner.transform(X), np.ones(len(X))])
    ours = np.column_stack([learner.coef_ / scale, (learner.intercept_ - center) / scale])
    standard = np.broadcast_to((targets - center) / scale, (len(X), len(ours)))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(ours.shape)
        scores, free = phi @ w.T, w * (np.arange(w.shape[1]) < w.shape[1] - 1)
        value = 0.5 * np.sum(free**2) + C * np.sum(table.value(standard, scores))
        return value, (free + C * table.slope(standard, scores).T @ phi).ravel()

    best = minimize(objective, np.zeros(ours.size), jac=True, method="L-BFGS-B", options={"maxiter": 20_000})
    assert objective(ours.ravel())[0] <= best.fun * (1.0 + 1e-3)
    # the machine that predicts is the same model
    machine = learner.machine_
    if loss == "softmax":
        np.testing.assert_allclose(machine.predict_proba(X), softmax(phi @ ours.T, axis=1), atol=1e-6)
    else:
        expected = np.sort(scale * (phi @ ours.T) + center, axis=1)
        np.testing.assert_allclose(np.reshape(machine.predict(X), expected.shape), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "learner",
    [
        pytest.param(MarginFeatures(n_features=30, random_state=0), marks=pytest.mark.slow),
        StepFeatures(n_features=60, random_state=0),
        pytest.param(MarginFeatures([Gaussian(), Steps()], n_features=40, random_state=0), marks=pytest.mark.slow),
    ],
)
def test_outliers_mislead_rounds_of_their_loss_less_than_squares(learner: Any) -> None:
    X, f, y = heavy_rows()
    errors = {}
    for loss in ("squared_error", "huber", "pinball"):
        found = clone(learner).set_params(loss=loss).fit(X, y).machine_.predict(X)
        errors[loss] = np.abs((found if found.ndim == 1 else found[:, 1]) - f).mean()
    assert max(errors["huber"], errors["pinball"]) < 0.75 * errors["squared_error"], errors
    assert found.shape == (1_500, 3)
    inside = np.mean((found[:, 0] <= y) & (y <= found[:, 2]))
    assert 0.65 < inside < 0.85
    classes = np.digitize(f, [-0.5, 0.5])
    machine = clone(learner).set_params(loss="softmax").fit(X, classes).machine_
    shares = machine.predict_proba(X)
    assert -np.mean(np.log(shares[np.arange(len(X)), classes])) < 0.5


def test_what_is_no_loss_of_these_targets_is_refused() -> None:
    X, f, y = heavy_rows(100)
    for learner, targets, says in (
        (MarginFeatures(loss="softmax"), f > 0, "softmax' is not one of"),
        (StepFeatures(loss="softmax"), f > 0, "softmax' is not one of .* which rounds have for 2 classes"),
        (MarginFeatures(loss="huber"), f > 0, "huber' is not one of"),
        (MarginFeatures(loss="huber", refine=2), y, "set refine=0"),
        (StepFeatures(loss="pinball", quantiles=(0.2, 2.0)), y, r"quantiles is \(0.2, 2.0\)"),
    ):
        with pytest.raises(ValueError, match=says):
            learner.fit(X, targets)


@pytest.mark.parametrize("named", [None, ["steps", "nystrom"], ["margin", RandomFeatures(n_features=20)]])
def test_searches_inside_combined_features_by_name_have_the_loss_of_the_machine(named: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 3))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    features = CombinedFeatures(named, n_features=60)
    model = KernelRegressor(features, loss="poisson", random_state=0).fit(X, y)
    search, other = model.features_.learners_
    assert search.loss == "poisson"
    assert "loss" not in other.get_params()
    # what was given stays, the loss of a learner of one's own too
    assert features.features is named
    own = CombinedFeatures([StepFeatures(n_features=20), RandomFeatures(n_features=20)])
    assert KernelRegressor(own, loss="poisson", random_state=0).fit(X, y).features_.learners_[0].loss is None


def test_rounds_of_the_quantiles_of_two_targets_end_at_the_penalised_optimum() -> None:
    X, f, y = heavy_rows(600)
    Y, C, quantiles = np.column_stack([y, 100.0 + 30.0 * f**2 + X[:, 2]]), 0.1, (0.3, 0.8)
    learner = MarginFeatures(n_features=20, loss="pinball", quantiles=quantiles, C=C, dtype="float64", random_state=0)
    learner.fit(X, Y)
    center, scale = np.repeat(Y.mean(axis=0), 2), np.repeat(Y.std(axis=0), 2)
    phi = np.column_stack([learner.transform(X), np.ones(len(X))])
    ours = np.column_stack([learner.coef_ / scale[:, None], (learner.intercept_ - center) / scale])
    # of each target its quantiles, smoothed as the rounds smooth them
    for k, w in enumerate(ours):
        z, table = (Y[:, k // 2] - center[k]) / scale[k], round_loss("pinball", quantiles=[quantiles[k % 2]])

        def objective(w: np.ndarray, z: np.ndarray = z, table: Any = table) -> tuple[float, np.ndarray]:
            free = np.append(w[:-1], 0.0)
            slope = table.slope(z, phi @ w)
            return 0.5 * free @ free + C * np.sum(table.value(z, phi @ w)), free + C * slope @ phi

        best = minimize(objective, np.zeros(len(w)), jac=True, method="L-BFGS-B", options={"maxiter": 20_000})
        assert objective(w)[0] <= best.fun * (1.0 + 1e-3)
    predicted = learner.machine_.predict(X)
    expected = (scale * (phi @ ours.T) + center).reshape(-1, 2, 2)
    np.testing.assert_allclose(predicted, np.sort(expected, axis=2).reshape(-1, 4), rtol=1e-6, atol=1e-6)
