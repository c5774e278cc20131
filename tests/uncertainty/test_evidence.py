"""The evidence of a penalty is the density of the targets, and its optimum is that of BayesianRidge."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.datasets import make_friedman1
from sklearn.linear_model import BayesianRidge

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.families import Coordinates, Gaussian
from dkl.kernels.gram import packed_size
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.methods.room import planned_kinds
from dkl.solvers.squared_sums import SquaredSums
from dkl.uncertainty.evidence import Evidence
from tests.definitions import uncertainty as definitions

PENALTIES = (1e-3, 0.1, 3.0, 200.0)


def rows(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(n, 5, noise=1.0, random_state=seed)


def regressor(n_features: int = 20, dtype: str = "float64") -> KernelRegressor:
    features = RandomFeatures(Gaussian(2.0), n_features=n_features, scaling=None, dtype=dtype, random_state=1)
    return KernelRegressor(features, alpha="evidence", random_state=0)


def evidence_of(phi: np.ndarray, y: np.ndarray) -> Evidence:
    wide = np.column_stack([phi, np.ones(len(phi))])
    gram = wide.T @ wide
    packed = np.concatenate([gram[: j + 1, j] for j in range(len(gram))])
    assert len(packed) == packed_size(0, len(gram))
    targets = y.reshape(len(y), -1)
    return Evidence.of_sums(SquaredSums(packed, targets.T @ wide, np.sum(targets**2, axis=0)))


@pytest.mark.parametrize("lam", PENALTIES)
def test_evidence_is_the_density_of_the_targets(lam: float) -> None:
    X, y = rows()
    phi = RandomFeatures(n_features=10, dtype="float64", random_state=0).fit(X).transform(X)
    evidence = evidence_of(phi, y)
    noise = float(np.sqrt(evidence.noise_variance(lam)[0]))
    assert evidence.log_density(lam) == pytest.approx(definitions.log_evidence(phi, y, lam, noise), rel=1e-10)
    # no other noise makes the targets more likely
    others = [definitions.log_evidence(phi, y, lam, factor * noise) for factor in (0.99, 1.01)]
    assert max(others) < evidence.log_density(lam)


@pytest.mark.parametrize("lam", PENALTIES)
def test_slope_is_the_difference_quotient(lam: float) -> None:
    X, y = rows()
    phi = RandomFeatures(n_features=10, dtype="float64", random_state=0).fit(X).transform(X)
    evidence, step = evidence_of(phi, np.column_stack([y, y**2])), 1e-4
    quotient = (evidence.log_density(lam * np.exp(step)) - evidence.log_density(lam * np.exp(-step))) / (2.0 * step)
    assert evidence.slope(lam) == pytest.approx(quotient, rel=1e-5, abs=1e-7)


def test_fit_is_the_fixed_point_of_bayesian_ridge() -> None:
    X, y = rows(200)
    model = regressor().fit(X, y)
    phi, new = model.features_.transform(X), model.features_.transform(rows(50, seed=1)[0])
    uninformed = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    ridge = BayesianRidge(max_iter=100_000, tol=1e-12, **uninformed).fit(phi, y)
    expected, expected_std = ridge.predict(new, return_std=True)
    found, std = model.predict(rows(50, seed=1)[0], return_std=True)
    assert model.alpha_ * len(y) == pytest.approx(ridge.lambda_ / ridge.alpha_, rel=1e-6)
    assert model.noise_ == pytest.approx(ridge.alpha_**-0.5, rel=1e-7)
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    np.testing.assert_allclose(std, expected_std, rtol=1e-7)
    assert model.solver_ == "newton"


def test_several_targets_share_the_penalty_that_suits_all_of_them() -> None:
    X, y = rows(150)
    targets = np.column_stack([y, np.sin(y), X[:, 0]])
    model = regressor().fit(X, targets)
    phi = model.features_.transform(X)
    scaled = (targets - targets.mean(axis=0)) / targets.std(axis=0)

    def negative(log_lam: float) -> float:
        lam, total = float(np.exp(log_lam)), 0.0
        for y in scaled.T:
            total += definitions.log_evidence(phi, y, lam, definitions.posterior(phi, y, np.ones(150), lam)[2])
        return -total

    best = minimize_scalar(negative, bounds=(-12.0, 6.0), method="bounded", options={"xatol": 1e-7})
    assert np.log(model.alpha_ * 150) == pytest.approx(best.x, abs=1e-3)
    assert np.shape(model.noise_) == (3,)


def test_weights_count_as_repeated_rows() -> None:
    X, y = rows(100)
    weight = np.arange(100) % 3
    weighted, repeated = regressor().fit(X, y, weight), regressor().fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    assert weighted.alpha_ == pytest.approx(repeated.alpha_, rel=1e-6)
    assert weighted.noise_ == pytest.approx(repeated.noise_, rel=1e-6)


def test_noise_is_found_again() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    model = regressor(60, "float32").fit(X, np.sin(X[:, 0]) + rng.normal(scale=0.3, size=len(X)))
    # the variance of n squares of normal numbers has the relative deviation sqrt(2 / n)
    assert model.noise_ == pytest.approx(0.3, rel=4.0 * np.sqrt(0.5 / 20_000))


@pytest.mark.parametrize(("y", "noise"), [(np.tile([1.0, -1.0], 100), 1.0), (np.full(200, 3.0), 0.0)])
def test_targets_that_the_features_say_nothing_of_are_noise(y: np.ndarray, noise: float) -> None:
    X = np.repeat(np.random.default_rng(0).normal(size=(100, 3)), 2, axis=0)
    model = regressor().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y.mean(), atol=1e-4)
    np.testing.assert_allclose(std, noise, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_without_noise_get_the_lightest_penalty_and_next_to_no_deviation(dtype: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 3))
    features = RandomFeatures(Gaussian(2.0), n_features=20, scaling=None, dtype=dtype, random_state=1)
    y = features.fit(X).transform(X) @ rng.normal(size=20)
    model = KernelRegressor(features, alpha="evidence").fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y, atol=2e-3)
    assert np.all(std < 2e-3)


def test_a_finished_checkpoint_and_a_file_keep_the_penalty(tmp_path: Path) -> None:
    X, y = rows(200)
    model = regressor().set_params(checkpoint=str(tmp_path / "state")).fit(X, y)
    again = regressor().set_params(checkpoint=str(tmp_path / "state")).fit(X, y)
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    assert model.alpha_ == again.alpha_ == loaded.alpha_
    np.testing.assert_array_equal(loaded.predict(X, return_std=True)[1], again.predict(X, return_std=True)[1])


def test_a_plan_counts_the_one_pass_and_the_memory_of_the_eigenvectors() -> None:
    X, y = rows(200)
    dataset = as_dataset(X, y)
    model = regressor(100)
    held = {kind.held.get("eigenvectors", 0) for kind in planned_kinds(model.replayed(dataset), {})}
    assert max(held) == 3 * 8 * 101**2
    assert dkl.plan(model, dataset)
    other = model.set_params(alpha="auto")
    assert not any("eigenvectors" in kind.held for kind in planned_kinds(other.replayed(dataset), {}))


@pytest.mark.parametrize("alpha", ["evidence", 1e-15])
def test_constant_features_leave_the_deviation_of_the_targets(alpha: Any) -> None:
    """Rounding leaves their sums of squares around the mean below 0, by more than such a penalty."""
    X, y = np.full((60, 3), 0.3), np.random.default_rng(0).normal(size=60)
    columns = RandomFeatures(Coordinates(), n_features=3, scaling=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "stopped after 50 Newton steps")
        model = KernelRegressor(columns, solver="newton", alpha=alpha, random_state=0).fit(X, y)
    mean, deviation = model.predict(X[:1], return_std=True)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-6)
    np.testing.assert_allclose(deviation, y.std(), rtol=1e-6)


def test_the_evidence_is_refused_where_it_has_no_meaning() -> None:
    X, y = rows()
    with pytest.raises(ValueError, match=r"The 'alpha' parameter of KernelClassifier must be .* Got 'evidence'"):
        KernelClassifier("random", alpha="evidence").fit(X, y > y.mean())
    for changes in ({"solver": "sgd"}, {"loss": "huber"}, {"epochs": 3}):
        with pytest.raises(ValueError, match="alpha='evidence' is chosen by Newton steps: set solver='newton'"):
            regressor().set_params(**changes).fit(X, y)
