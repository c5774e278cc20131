"""The count of features is enough over many draws, and is about features drawn by leverage; rates are as printed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.linalg import eigh

from dkl.bounds.leverage import coherence_ratio, feature_count, learning_rate
from dkl.features.families import Matern
from dkl.methods.leverage.driver import resample
from dkl.methods.leverage.learner import LeverageFeatures


@pytest.fixture(scope="module")
def pool() -> dict[str, Any]:
    """Features (rows over sqrt(n), columns over sqrt(M)) whose scores differ: few rows far from the others."""
    rng = np.random.default_rng(0)
    X = np.r_[rng.standard_normal((80, 2)), 8.0 * rng.standard_normal((40, 2))]
    angles = X @ Matern(1.5, 1.0).draw(300, 2, 0, np.float64).projection.dense().T
    features = np.stack([np.cos(angles), np.sin(angles)]) / math.sqrt(300 * 120)
    mu = 1e-2
    kernel = np.einsum("pim,pjm->ij", features, features)
    whole = np.linalg.inv(kernel + mu * np.eye(120))
    scores = np.einsum("pim,ij,pjm->m", features, whole, features)
    return {"features": features, "kernel": kernel, "scores": scores, "mu": mu}


def worst_error(pool: dict[str, Any], n_draws: int, seed: int) -> float:
    """max over the unit ball of the pool of min over b of (|f - Phi^ b|^2 + mu |b|^2) / mu, for one draw."""
    choice = resample(pool["scores"], np.arange(300), n_draws, seed)
    kept = pool["features"][:, :, choice.index] * choice.amplitudes * math.sqrt(300)
    drawn = sum(part @ part.T for part in kept) + pool["mu"] * np.eye(120)
    return float(eigh(pool["kernel"], drawn, eigvals_only=True)[-1])


def test_the_scores_of_the_simulation_are_the_degrees_of_freedom(pool: dict[str, Any]) -> None:
    values = np.linalg.eigvalsh(pool["kernel"])
    assert pool["scores"].sum() == pytest.approx(np.sum(values / (values + pool["mu"])))
    assert coherence_ratio(pool["scores"]) > 1.2


def test_so_many_features_fail_no_more_often_than_eps(pool: dict[str, Any]) -> None:
    """The error over the ball, with coefficients no longer than 2, is at most 4 mu (Bach 2017, proposition 1)."""
    eps = 0.1
    count = int(feature_count(pool["scores"].sum(), eps=eps).value)
    fails = sum(worst_error(pool, count, seed) > 4.0 for seed in range(60))
    assert fails <= eps * 60
    too_few = sum(worst_error(pool, max(1, count // 150), seed) > 4.0 for seed in range(60))
    assert too_few > eps * 60


def test_the_count_is_its_formula_and_grows_with_coherence() -> None:
    bound = feature_count(7.5, eps=0.01)
    assert bound.value == math.ceil(5 * 7.5 * math.log(16 * 7.5 / 0.01))
    assert feature_count(7.5, coherence=3.0, eps=0.01).value == pytest.approx(3 * bound.value, abs=3)
    assert not bound.is_vacuous
    assert feature_count(7.5, n_candidates=100).is_vacuous
    for part in ("Bach 2017, proposition 1", "d(mu) = 7.5", "does not cover"):
        assert part in repr(bound)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"degrees_of_freedom": 0.0}, "degrees_of_freedom is 0.0"),
        ({"degrees_of_freedom": 2.0, "coherence": 0.5}, "coherence is 0.5"),
        ({"degrees_of_freedom": 2.0, "eps": 1.0}, "probability of failure"),
    ],
)
def test_counts_without_a_meaning_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        feature_count(**parameters)


def test_a_fitted_learner_carries_its_counts() -> None:
    X = np.random.default_rng(0).standard_normal((200, 2))
    learner = LeverageFeatures(n_candidates=3_000, n_features=40, mu=0.1, random_state=0).fit(X)
    by_leverage, plain = learner.bounds_
    assert by_leverage.value == feature_count(learner.degrees_of_freedom_).value
    assert plain.terms["coherence"] == pytest.approx(learner.coherence_)
    assert by_leverage.vacuous_from == 3_000


def test_rates_are_as_printed_and_fall_with_the_rows() -> None:
    rate = learning_rate(1e6, "polynomial", decay=2.0, eps=0.05)
    assert rate.lam == pytest.approx(1e6**-0.5)
    assert rate.n_features == pytest.approx(10 * 1e3 * (math.log(32e3) + math.log(20)))
    assert rate.excess_risk == pytest.approx(1e-3 * (math.log(20) + math.log(1e6)))
    assert learning_rate(1e3, "plain").n_features == pytest.approx(100.0)
    assert learning_rate(1e3, "plain").excess_risk == pytest.approx(0.1)
    sub = learning_rate(1e4, "sub-exponential", decay=0.5, n_columns=2)
    assert sub.lam == 1e-4
    assert sub.holds_from == pytest.approx(math.exp(4.0))
    for case, rows in (("polynomial", 1e4), ("sub-exponential", 1e4), ("separated", 1e6), ("plain", 1e4)):
        risks = [learning_rate(n, case, n_columns=2).excess_risk for n in (rows, 10 * rows, 100 * rows)]
        assert risks == sorted(risks, reverse=True)


def test_rates_say_when_they_say_nothing() -> None:
    assert learning_rate(1e3, "sub-exponential", n_columns=10).is_vacuous
    assert learning_rate(1e3, "sub-exponential", n_columns=60).holds_from == math.inf
    assert "vacuous" in repr(learning_rate(100, "separated", n_columns=3))
    assert not learning_rate(1e9, "polynomial", decay=6.0).is_vacuous
    with pytest.raises(ValueError, match=r"decay=1\.0 above 1"):
        learning_rate(1e3, "polynomial", decay=1.0)
    with pytest.raises(ValueError, match="case is 'linear'"):
        learning_rate(1e3, "linear")  # type: ignore[arg-type]
