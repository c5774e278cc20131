"""The excessive gap technique: its condition holds after every step, and its certificate closes on the game's value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels.maps import map_rows
from dkl.methods.game.excessive_gap import ExcessiveGapDriver, ExcessiveGapState, group_proximal, norm_machine
from dkl.methods.game.problem import GameProblem
from dkl.methods.game.projection import project_dual
from tests.definitions.game import game_value
from tests.methods.play import Table, blocks_of, play
from tests.methods.test_game_driver import features_of, game, rows, signs_of


def table_of(problem: GameProblem, X: np.ndarray, y: np.ndarray) -> Table:
    return Table(blocks_of(X, y, rows=20), ExcessiveGapDriver().columns(problem))


def test_the_proximal_map_is_the_maximum() -> None:
    pull = np.random.default_rng(0).standard_normal((6, 2, 1))

    def objective(w: np.ndarray) -> float:
        lengths = np.sqrt(np.square(w.reshape(6, 2)).sum(axis=1))
        return 0.5 * lengths.sum() ** 2 + 0.5 * 0.7 * (w @ w) - w @ pull.ravel()

    found = group_proximal(pull, 0.7).ravel()
    general = min(
        (
            minimize(objective, start, method="Powell", options={"xtol": 1e-9, "ftol": 1e-14})
            for start in (found, found + 0.1)
        ),
        key=lambda result: result.fun,
    )
    assert objective(found) <= general.fun + 1e-9
    assert not found.reshape(6, 2)[np.abs(pull[:, :, 0]).sum(axis=1).argmin()].any()


@pytest.mark.parametrize(("loss", "n_classes"), [("squared_hinge", 2), ("hinge", 3)])
def test_the_certificate_encloses_the_value_and_closes(loss: str, n_classes: int) -> None:
    X, y = rows(n_classes, n=30 if n_classes == 2 else 16)
    problem = game(n_classes, len(y), loss=loss, rounds=80)
    state = play(ExcessiveGapDriver(), problem, table_of(problem, X, y))
    value = game_value(features_of(X), signs_of(problem, y), 1.0, loss=loss)
    for entry in state.history:
        assert entry["lower"] <= value * (1 + 1e-7)
        assert entry["upper"] >= value * (1 - 1e-7)
    assert state.history[-1]["relative_gap"] < 0.03


def test_the_certificate_holds_on_the_harmonics_of_the_sphere() -> None:
    X = np.random.default_rng(1).standard_normal((40, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] * X[:, 2] > 0.05).astype(int)
    harmonics = SphericalHarmonics(max_degree=3).pool(3, "float64")
    problem = replace(game(n=40, rounds=150), n_columns=3, pool=harmonics)
    state = play(ExcessiveGapDriver(), problem, table_of(problem, X, y))
    value = game_value(map_rows(X, harmonics, "float64")[None], signs_of(problem, y), 1.0)
    for entry in state.history:
        assert entry["lower"] <= value * (1 + 1e-7)
        assert entry["upper"] >= value * (1 - 1e-7)
    assert state.history[-1]["relative_gap"] < 0.06
    assert state.history[-1]["gap"] < 0.6 * state.history[74]["gap"]
    assert "certified" in state.message
    # the target is a harmonic of degree 2 but for its threshold
    assert harmonics.projection.index[state.weights.argmax()].max() == 2
    whole = replace(problem, pool=SphericalHarmonics(max_degree=3, blocks="degree").pool(3, "float64"))
    with pytest.raises(ValueError, match="weighs single features"):
        ExcessiveGapDriver().init(whole)


def smoothed_values(problem: GameProblem, state: ExcessiveGapState, X: np.ndarray, y: np.ndarray, alpha: np.ndarray):
    """f_mu2(w) and phi_mu1(alpha) of the pair, by their definitions."""
    signs, ridge = signs_of(problem, y), problem.rules.ridge
    first, second = state.smoothing
    phi = features_of(X)
    scores = np.einsum("pnd,dpk->nk", phi, state.primal)
    lengths = np.sqrt(np.square(state.primal).sum(axis=(1, 2)))
    reply, _ = project_dual((1.0 - signs * scores) / (second + ridge), signs, np.ones(len(y)), problem.upper)
    f = 0.5 * lengths.sum() ** 2 + (reply * (1.0 - signs * scores)).sum() - 0.5 * (second + ridge) * (reply**2).sum()
    sums = np.einsum("pnd,nk->dpk", phi, signs * alpha)
    w = group_proximal(sums, first)
    answer = np.sqrt(np.square(w).sum(axis=(1, 2)))
    best = (w * sums).sum() - 0.5 * answer.sum() ** 2 - 0.5 * first * (w**2).sum()
    return f, alpha.sum() - 0.5 * ridge * (alpha**2).sum() - best


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_gap_of_the_smoothed_pair_stays_excessive(loss: str) -> None:
    X, y = rows(n=30)
    problem = game(n=30, loss=loss, rounds=12)
    table, driver = table_of(problem, X, y), ExcessiveGapDriver()
    state, checked = driver.init(problem), 0
    while records := driver.request(problem, state):
        moved = state.move
        state = driver.step(problem, state, table.run(records))
        # after a primal step ("respond" begins) and after a dual one ("primal" begins) the pair is whole
        if state.phase == "score" and (moved, state.move) in {
            ("start", "primal"),
            ("primal", "respond"),
            ("ascend", "primal"),
        }:
            f, phi = smoothed_values(problem, state, X, y, table.column("mean"))
            assert f <= phi + 1e-8 * abs(phi)
            checked += 1
    assert checked >= 24


def test_the_gap_falls_at_least_as_fast_as_one_over_the_rounds() -> None:
    X, y = rows(n=30)
    problem = game(n=30, rounds=80)
    gaps = [entry["gap"] for entry in play(ExcessiveGapDriver(), problem, table_of(problem, X, y)).history]
    assert gaps[79] < 0.25 * gaps[19]
    assert gaps[39] < 0.5 * gaps[19]


def test_the_machine_has_the_primal_value_of_the_certificate() -> None:
    X, y = rows(n=30)
    problem = game(n=30, rounds=20)
    state = play(ExcessiveGapDriver(), problem, table_of(problem, X, y))
    feature_map, weights, coef = norm_machine(problem, state)
    assert weights.sum() == pytest.approx(1.0)
    scores = map_rows(X, feature_map, "float64") @ coef[0]
    losses = [
        np.maximum(0.0, 1.0 - signs_of(problem, y)[:, 0] * (scores + b)).sum() for b in np.linspace(-3.0, 3.0, 6_001)
    ]
    assert 0.5 * coef[0] @ coef[0] + min(losses) <= state.upper * (1 + 1e-9)


def test_space_without_end_has_no_excessive_gap() -> None:
    problem: Any = replace(game(), pool=None)
    with pytest.raises(ValueError, match="needs a finite set of features"):
        ExcessiveGapDriver().init(problem)
