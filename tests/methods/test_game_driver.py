"""The margin game against general solvers: its value, its gap, its steps; and how few passes a round takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.features.families import Coordinates, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.methods.frequency_search.frequency_space import FourierSpace
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.game.driver import GameDriver, dual_measure, machine_coefficients
from dkl.methods.game.problem import GameProblem, GameRules, GameState
from dkl.methods.game.sums import GameTargets
from tests.definitions.game import game_value
from tests.methods.play import Table, blocks_of, play

N, D = 36, 7


def rows(n_classes: int = 2, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(3).standard_normal((n, 2))
    return X, ((X[:, 0] * X[:, 1] > 0.0).astype(int) + (X[:, 0] > 0.5) * (n_classes > 2))


def pool() -> FeatureMap:
    return Gaussian(1.0).draw(D, 2, seed=0, dtype=np.float64)


def game(n_classes: int = 2, n: int = N, **rules: Any) -> GameProblem:
    targets = GameTargets(n_classes)
    return GameProblem(targets, GameRules(**rules), float(n), 2, pool=pool(), dtype="float64")


def signs_of(problem: GameProblem, y: np.ndarray) -> np.ndarray:
    return problem.targets(blocks_of(np.zeros((len(y), 1)), y, rows=len(y))[0])[0]


def features_of(X: np.ndarray) -> np.ndarray:
    """(2, n, D)."""
    phi = map_rows(X, pool(), "float64")
    return np.stack([phi[:, :D], phi[:, D:]])


def table_of(problem: GameProblem, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> Table:
    return Table(blocks_of(X, y, weight, rows=max(20, -(-len(y) // 3))), GameDriver().columns(problem))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_gap_encloses_the_value_of_the_game_and_closes(loss: str, n_classes: int) -> None:
    X, y = rows(n_classes, n=N if n_classes == 2 else 16)
    problem = game(n_classes, len(y), loss=loss, rounds=120)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    value = game_value(features_of(X), signs_of(problem, y), problem.rules.C, loss=loss)
    for entry in state.history:
        assert entry["lower"] <= value * (1 + 1e-7)
        assert entry["upper"] >= value * (1 - 1e-7)
    # a gradient with the printed factor of two (its lambda has mass 2) ends outside
    assert state.history[-1]["relative_gap"] < 0.04


def test_the_machine_has_the_primal_value_that_the_history_says() -> None:
    X, y = rows()
    problem = game(rounds=20)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    feature_map, weights = dual_measure(problem, state)
    coef, intercept = machine_coefficients(state)
    scores = map_rows(X, feature_map, "float64") @ coef[0] + intercept[0]
    slack = np.maximum(0.0, 1.0 - signs_of(problem, y)[:, 0] * scores)
    assert 0.5 * coef[0] @ coef[0] + slack.sum() == pytest.approx(state.history[-1]["upper"], rel=1e-10)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(feature_map.amplitudes**2, weights, rtol=1e-12)
    assert state.history[-1]["margin"] == pytest.approx(1.0 / np.linalg.norm(coef), rel=1e-10)


def by_definition(problem: GameProblem, X: np.ndarray, y: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 2 on a finite set, written out: the dual weights after so many rounds, and the dual measure."""
    from dkl.methods.game.projection import project_dual

    signs, phi, C = signs_of(problem, y)[:, 0], features_of(X), problem.rules.C
    ones = np.ones(len(y))

    def project(values: np.ndarray) -> np.ndarray:
        return project_dual(values[:, None], signs[:, None], ones, C)[0][:, 0]

    alpha, mass = project(np.full(len(y), C)), np.zeros(D)
    for t in range(1, rounds + 1):
        sums = np.array([[(signs * alpha * phi[part, :, j]).sum() for j in range(D)] for part in range(2)])
        best = int((sums**2).sum(axis=0).argmax())
        response = sums[0, best] * phi[0, :, best] + sums[1, best] * phi[1, :, best]
        eta = 0.3 * C / ((1.0 + np.sqrt((sums[:, best] ** 2).sum())) * np.sqrt(t))
        mass[best] += t * eta
        alpha = project(alpha + eta * (1.0 - signs * response))
    return alpha, mass / max(mass.sum(), 1e-300)


def test_the_rounds_are_algorithm_2() -> None:
    X, y = rows()
    problem = game(rounds=6)
    table = table_of(problem, X, y)
    state = play(GameDriver(), problem, table)
    alpha = by_definition(problem, X, y, 5)[0]
    np.testing.assert_allclose(state.weights, by_definition(problem, X, y, 6)[1], rtol=0, atol=1e-12)
    # the last column that was written is the sixth step's; what was projected before it is not kept
    five = replace(problem, rules=replace(problem.rules, rounds=7))
    table = table_of(five, X, y)
    driver, state = GameDriver(), GameDriver().init(five)
    while not (state.phase == "step" and len(state.history) == 5):
        state = driver.step(five, state, table.run(driver.request(five, state)))
    found = np.clip(table.column("dual") - state.shifts[0] * signs_of(problem, y), 0.0, 1.0)
    np.testing.assert_allclose(found[:, 0], alpha, rtol=0, atol=1e-12)


def test_the_mean_dual_is_that_of_the_rounds() -> None:
    X, y = rows()
    problem = game(rounds=5)
    table = table_of(problem, X, y)
    state = play(GameDriver(), problem, table)
    alphas = [by_definition(problem, X, y, t)[0] for t in range(5)]
    expected = np.average(alphas, axis=0, weights=[entry["weight"] for entry in state.history])
    np.testing.assert_allclose(table.column("mean")[:, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_weight_of_two_is_the_row_twice(loss: str) -> None:
    X, y = rows()
    times = np.random.default_rng(0).integers(1, 4, N)
    problem = game(n=int(times.sum()), loss=loss, rounds=30)
    weighted = play(GameDriver(), problem, table_of(problem, X, y, times.astype(float)))
    repeated = table_of(problem, np.repeat(X, times, axis=0), np.repeat(y, times))
    again = play(GameDriver(), problem, repeated)
    np.testing.assert_allclose(again.weights, weighted.weights, rtol=0, atol=1e-9)
    # The intercept is the multiplier of a constraint. With the hinge any number of an interval is one; rounding decides
    # which, and with it the upper bound at this intercept.
    within = 1e-6 if loss == "squared_hinge" else 1e-2
    assert again.history[-1]["gap"] == pytest.approx(weighted.history[-1]["gap"], rel=within)


def test_a_round_reads_the_rows_twice_and_reduces_once_or_twice() -> None:
    X, y = rows(n=4_000)
    problem = game(n=4_000, rounds=30)
    table = table_of(problem, X, y)
    play(GameDriver(), problem, table)
    assert table.readings == 2 * 30
    light = len(table.passes) - table.readings
    assert light <= 1 + 2 * 30


def test_alternating_projections_take_ten_reductions_and_play_nearly_the_same_game() -> None:
    X, y = rows()
    problem = game(rounds=40, projection="alternating")
    table = table_of(problem, X, y)
    state = play(GameDriver(), problem, table)
    assert table.passes.count("game: balance") == 10 * 40
    value = game_value(features_of(X), signs_of(problem, y), 1.0)
    assert state.history[-1]["upper"] >= value * (1 - 1e-7)
    assert state.history[-1]["upper"] < 1.1 * value


def test_the_guaranteed_steps_are_those_of_theorem_4_1() -> None:
    X, y = rows()
    problem = game(rounds=3, rate=None, C=0.5)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    diameter, steepest = 0.5 * np.sqrt(N), (1 + 0.5 * N) * np.sqrt(N)
    expected = [diameter / (steepest * np.sqrt(t)) for t in (1, 2, 3)]
    np.testing.assert_allclose([entry["step"] for entry in state.history], expected)


def test_a_target_gap_ends_the_game() -> None:
    X, y = rows()
    problem = game(rounds=500, tol=0.1)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    gaps = [entry["relative_gap"] for entry in state.history]
    assert gaps[-1] <= 0.1 < min(gaps[:-1])
    assert state.message.startswith(f"reached the target gap after {len(gaps)} rounds")


def test_rows_held_out_take_no_part_and_end_the_game() -> None:
    X = rows(n=300)[0]
    noise = np.random.default_rng(0).integers(0, 2, 300)
    problem = game(n=300, rounds=500, patience=5)
    problem = replace(problem, targets=GameTargets(2, held_out=_third))
    table = table_of(problem, X, noise)
    state = play(GameDriver(), problem, table)
    losses = [entry["held_out_loss"] for entry in state.history]
    assert len(losses) - 1 - int(np.argmin(losses)) == 5
    assert "no gain on the rows held out for 5 rounds" in state.message
    other = np.where(np.arange(300) % 3 == 0, 1 - noise, noise)
    again = play(
        GameDriver(),
        replace(problem, rules=replace(problem.rules, patience=None, rounds=8)),
        table_of(problem, X, other),
    )
    np.testing.assert_array_equal([e["upper"] for e in again.history], [e["upper"] for e in state.history[:8]])
    assert not table.column("mean")[::3].any()


def _third(row_id: np.ndarray) -> np.ndarray:
    return row_id % 3 == 0


def searching(n: int, **rules: Any) -> GameProblem:
    family, options = Gaussian(1.5), SearchOptions(chains=20, steps=20, polish=5)
    space = FourierSpace(family.draw(1, 2, seed=0), family, options, chains_a_peak=0.0)
    return GameProblem(
        GameTargets(2), GameRules(**rules), float(n), 2, space=space, search_rows=200, most_rows=400, n_candidates=20
    )


def test_in_all_of_space_the_value_is_estimated_from_both_sides() -> None:
    """With every frequency on offer the value is at most that of any finite set of them."""
    X, y = rows(n=240)
    problem = searching(240, rounds=40, per_round=1, most=40)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    assert len(state.mass) == 40
    assert state.message.startswith("all 40 frequencies are found")
    upper, lower = (state.history[-1][name] for name in ("upper", "lower"))
    assert 0.0 < lower < upper
    assert upper - lower < 0.6 * upper
    assert state.history[-1]["error"] < 0.05
    found, _ = dual_measure(problem, state)
    assert found.n_features == 80


def test_several_frequencies_a_round_are_distinct_and_stop_at_the_number_asked_for() -> None:
    X, y = rows(n=240)
    problem = searching(240, rounds=5, per_round=3, most=10)
    state: GameState = play(GameDriver(), problem, table_of(problem, X, y))
    assert len(state.mass) == 10
    assert len(state.history) == 4


def test_the_features_of_a_pool_need_no_pairs() -> None:
    X = np.random.default_rng(0).standard_normal((50, 3))
    y = (X[:, 1] > 0).astype(int)
    problem = replace(game(n=50, rounds=40), pool=Coordinates().draw(None, 3, 0), n_columns=3)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    value = game_value(X[None], signs_of(problem, y), 1.0)
    last = state.history[-1]
    assert last["lower"] <= value * (1 + 1e-7)
    assert value * (1 - 1e-7) <= last["upper"] < 1.2 * value
    assert state.weights.argmax() == 1


def test_a_plan_names_the_passes_that_a_game_runs() -> None:
    X, y = rows(n=240)
    for problem in (game(n=240, rounds=4), searching(240, rounds=4, per_round=1, most=4)):
        table = table_of(problem, X, y)
        play(GameDriver(), problem, table)
        planned = {
            " + ".join(record.name for record in records): times for records, times in GameDriver().plan(problem)
        }
        for name in set(table.passes) - {"game: step"}:
            assert table.passes.count(name) <= planned[name], name
