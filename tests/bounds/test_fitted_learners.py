"""Fitted learners carry the bounds of their papers: of their own numbers, or they say why there are none."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.svm import SVC

import dkl
from dkl.bounds.certificate import Bounds

N = 300


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    return rng.standard_normal((N, 2)) + 1.5 * y[:, None], np.array(["no", "yes"])[y]


def pair_loss(features: np.ndarray, y: np.ndarray) -> float:
    """The mean of (1 - s k(x_i, x_j)) / 2 over i != j."""
    signs = np.where(y[:, None] == y, 1.0, -1.0)
    agreement = signs * (features @ features.T)
    return 0.5 - (agreement.sum() - np.trace(agreement)) / (2 * len(y) * (len(y) - 1))


def test_a_posterior_carries_three_bounds_on_the_loss_of_its_kernel(rows: Any, tmp_path: Path) -> None:
    X, y = rows
    learner = dkl.PosteriorFeatures(dkl.Gaussian(1.0), 100, 200, 2.0, estimator="support", random_state=0).fit(X, y)
    bounds = learner.bounds_
    assert [bound.theorem.split(", ")[1].split(" (")[0] for bound in bounds] == [
        "theorem 3",
        "corollary 2",
        "corollary 5",
    ]
    # the support keeps every weight: the map's kernel is the kernel of the theorems
    expected = pair_loss(learner.transform(X).astype(float), y)
    assert [bound.terms["loss"] for bound in bounds] == pytest.approx([expected] * 3, rel=1e-5)
    assert [bound.terms["t"] for bound in bounds[:2]] == pytest.approx([2 * math.sqrt(N), 4 * math.sqrt(N)])
    assert all(wide.value < tight.value for wide, tight in zip(learner.bounds(0.5), bounds, strict=True))
    assert "corollary 5 (as printed)" in repr(learner.bounds(as_printed=True))
    assert learner.with_beta(0.0).bounds_[0].terms["t"] == pytest.approx(math.sqrt(N))
    learner.save(tmp_path / "model")
    assert repr(dkl.load_model(tmp_path / "model").bounds_) == repr(bounds)


@pytest.mark.parametrize("pairing", ["cos-sin", "phase"])
@pytest.mark.parametrize("diagonal", [True, False])
def test_aligned_features_carry_what_the_ball_promises(rows: Any, pairing: str, diagonal: bool) -> None:
    X, y = rows
    family = dkl.Gaussian(1.0, pairing=pairing)
    learner = dkl.AlignedFeatures(family, 100, None, rho=2.0, k=3, diagonal=diagonal, random_state=0).fit(X, y)
    loss, deviation, gap, complexity = learner.bounds_
    features = learner.transform(X).astype(float) / family.feature_scale(2)
    expected = pair_loss(features, y)
    if pairing == "phase" and diagonal:
        # the pass has counted each row with itself: at most one each
        assert expected <= loss.terms["loss"] <= expected + 1.0 / (N - 1)
    else:
        assert loss.terms["loss"] == pytest.approx(expected, rel=1e-5)
    assert deviation.vacuous_from == pytest.approx(1.0 - 2.0 * loss.terms["loss"])
    assert loss.terms["mu"] == 3.0
    assert loss.terms["D_mu"] == pytest.approx(learner.divergence_)
    assert (deviation.terms["rho"], gap.terms["D"], complexity.terms["n"]) == (2.0, 100, N)
    assert "theorem 4 (as printed)" in repr(learner.bounds(as_printed=True))


def test_weights_of_an_order_below_two_carry_theorem_4_alone(rows: Any) -> None:
    X, y = rows
    learner = dkl.AlignedFeatures(dkl.Gaussian(1.0), 100, None, k=1.5, random_state=0).fit(X, y)
    (loss,) = learner.bounds_
    assert loss.terms["mu"] == 1.5
    assert loss.terms["D_mu"] == pytest.approx(learner.rho_) == pytest.approx(math.sqrt(1.5) - 1.0)
    expected = pair_loss(learner.transform(X).astype(float), y)
    assert loss.terms["loss"] == pytest.approx(expected, rel=1e-5)
    corrected = (2 * N) ** -(1 / 3) * (learner.divergence_ + 1.0) ** (2 / 3) * 0.05 ** -(1 / 3)
    assert loss.terms["excess"] == pytest.approx(corrected)


def test_leverage_scores_and_landmarks_have_theirs(rows: Any) -> None:
    X, y = rows
    by_leverage, plain = dkl.LeverageFeatures(n_candidates=50, n_features=10, mu=0.1, random_state=0).fit(X).bounds_
    assert by_leverage.value <= plain.value
    landmarks = dkl.LandmarkFeatures(n_landmarks=6, landmarks="random", random_state=0).fit(X, y)
    assert landmarks.bounds_[0].value.shape == (6,)
    assert "landmarks='kmeans'" in repr(clone(landmarks).set_params(landmarks="kmeans").fit(X, y).bounds_)


def test_a_joint_machine_is_no_longer_than_its_bound_takes_it_for(rows: Any, tmp_path: Path) -> None:
    X, y = rows
    learner = dkl.JointFeatures(dkl.Gaussian(1.0), 30, None, rho=2.0, C=0.5, dtype="float64", random_state=0).fit(X, y)
    (bound,) = learner.bounds_
    # features of length 1 times sqrt(q): the machine's own coefficients
    assert np.linalg.norm(learner.coef_) <= bound.terms["B"] == pytest.approx(math.sqrt(0.5 * 2 * N))
    assert bound.value == pytest.approx((3.0 * 3.0) ** 0.25 * bound.terms["B"] / math.sqrt(N))
    learner.save(tmp_path / "model")
    assert repr(dkl.load_model(tmp_path / "model").bounds_) == repr(learner.bounds_)


def test_a_fit_that_no_theorem_covers_says_why(rows: Any) -> None:
    X, y = rows
    weighted = dkl.PosteriorFeatures(dkl.Gaussian(1.0), 50, 20, class_weight="balanced", random_state=0).fit(X, y)
    assert not weighted.bounds_
    assert "class_weight='balanced'" in repr(weighted.bounds_)
    assert "class_weight" in weighted.bounds_._repr_html_()
    centred = dkl.AlignedFeatures(dkl.Gaussian(1.0), 50, 20, center=True, random_state=0).fit(X, y)
    assert "center=True" in repr(centred.bounds_)
    numbers = dkl.AlignedFeatures(dkl.Gaussian(1.0), 50, 20, random_state=0).fit(X, X[:, 0])
    assert "targets are numbers" in repr(numbers.bounds_)
    unbounded = dkl.AlignedFeatures(dkl.Coordinates(), None, 2, random_state=0).fit(X, y)
    assert "not bounded by 1" in repr(unbounded.bounds_)
    with pytest.raises(AttributeError, match="not fitted"):
        clone(weighted).bounds_  # noqa: B018


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_objective_on_the_features_of_a_game_is_below_its_bound(n_classes: int) -> None:
    """max F(., lambda) is the sum of the duals of the machines, one class against the rest, on the weighed features."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, n_classes, 120)
    X = rng.standard_normal((120, 2)) + 1.5 * np.eye(3, 2)[y]
    learner = dkl.MarginFeatures(
        dkl.Gaussian(1.0), 100, "game", C=0.1, rounds=12, features_per_round=2, chains=4, steps=5, random_state=0
    ).fit(X, y)
    features = learner.transform(X).astype(float)
    value = 0.0
    for label in range(1, n_classes) if n_classes == 2 else range(n_classes):
        machine = SVC(C=0.1, kernel="linear", tol=1e-8).fit(features, y == label)
        value += np.abs(machine.dual_coef_).sum() - 0.5 * float(machine.coef_[0] @ machine.coef_[0])
    bound = learner.bounds_[0]
    assert value <= bound.value
    assert bound.vacuous_from == pytest.approx(0.1 * 120 * (1 if n_classes == 2 else 3))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_game_carries_its_regret_and_the_shortfall_of_its_margin(rows: Any, loss: str) -> None:
    X, y = rows
    learner = dkl.MarginFeatures(
        dkl.Gaussian(1.0), 8, "game", loss=loss, rounds=4, chains=4, steps=5, max_norm=3.0, random_state=0
    ).fit(X, y)
    objective, shortfall = learner.bounds_
    last = learner.history_[-1]
    assert objective.value == pytest.approx(objective.terms["mean response"] + objective.terms["regret"])
    assert objective.value >= last["lower"]
    assert "an estimate" in repr(shortfall)
    assert shortfall.value == pytest.approx(1.0 - math.sqrt(max(0.0, last["lower"] / last["upper"])))
    bound = learner.error_bound(X, y, row_norm=float(np.linalg.norm(X, axis=1).max()))
    margins = np.where(y == "yes", 1.0, -1.0) * (learner.transform(X) @ learner.coef_[0])
    assert bound.terms["share below theta"] == pytest.approx(
        np.mean(margins / np.linalg.norm(learner.coef_) < bound.terms["theta"]), abs=0.01
    )
    assert bound.is_vacuous


def test_rounds_and_unbounded_frequencies_say_what_they_lack(rows: Any) -> None:
    X, y = rows
    rounds = dkl.MarginFeatures(dkl.Gaussian(1.0), 8, chains=4, steps=2, random_state=0).fit(X, y)
    assert "solver='game'" in repr(rounds.bounds_)
    with pytest.raises(ValueError, match="fit with max_norm set"):
        rounds.error_bound(X, y, row_norm=5.0)
    short = clone(rounds).set_params(max_norm=2.0).fit(X, y)
    assert short.error_bound(X, y, row_norm=5.0).terms["R_w"] == 2.0
    with pytest.raises(ValueError, match="pass y"):
        short.error_bound(X, row_norm=5.0)
    with pytest.raises(ValueError, match="about two classes"):
        clone(rounds).fit(X, X[:, 0]).error_bound(X, y, row_norm=5.0)


def test_a_tuned_model_carries_its_eigenvalue_bound_and_schedules(rows: Any) -> None:
    X, y = rows
    learner = dkl.TunedClassifier(n_features=20, loss="hinge", tol=0.1, random_state=0).fit(X, y)
    eigenvalue, schedule = learner.bounds_
    assert eigenvalue.terms["gamma"] == learner.gamma
    assert (schedule.n_rows, schedule.n_frequencies, schedule.phi) == (N, 10, 0.1)
    assert "does not cover" in repr(schedule)
    assert len(clone(learner).set_params(loss="squared_hinge").fit(X, y).bounds_) == 1


def test_bounds_are_a_tuple_that_prints_and_pickles() -> None:
    none = Bounds(why_none="no rows")
    assert repr(none) == "no bounds: no rows"
    assert pickle.loads(pickle.dumps(none)).why_none == "no rows"
