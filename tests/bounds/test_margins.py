"""Bounds of theorems 4.1 to 4.4: above what simulation finds, and not by more than they must be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from dkl.bounds.margins import (
    error_bound,
    guaranteed_regret,
    kernel_complexity,
    margin_shortfall,
    normalised_margins,
    played_regret,
    played_value,
    potential_deviation,
    uniform_sample_size,
)
from dkl.methods.frequency_search.peak_search import sample_size
from dkl.methods.game.driver import GameDriver
from tests.definitions.game import game_value
from tests.methods.play import play
from tests.methods.test_game_driver import D, features_of, game, rows, signs_of, table_of


def machine_value(weights: np.ndarray, X: np.ndarray, signs: np.ndarray, C: float, loss: str) -> float:
    """max over alpha of F(., lambda): the game of one kernel."""
    features = features_of(X) * np.sqrt(weights)
    # one kernel, all features of which are one group: the columns become parts of a single frequency
    return game_value(features.transpose(0, 2, 1).reshape(2 * D, len(X), 1), signs, C, loss=loss)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_regret_that_was_played_bounds_the_machine_on_the_features(loss: str) -> None:
    X, y = rows(n=20)
    problem = game(n=20, loss=loss, rounds=25)
    state = play(GameDriver(), problem, table_of(problem, X, y))
    steps, weights = (np.array([entry[name] for entry in state.history]) for name in ("step", "weight"))
    responses = [entry["response"] for entry in state.history]
    diameter = problem.upper * np.sqrt(20.0)
    regret = played_regret(steps, [entry["gradient"] for entry in state.history], diameter, weights)
    value = machine_value(state.weights, X, signs_of(problem, y), 1.0, loss)
    assert value <= played_value(responses, regret, weights=weights).value
    if loss == "hinge":
        assert regret < guaranteed_regret(1.0, 20, 25).value


def test_the_guaranteed_steps_keep_the_guarantee_and_the_printed_gradient_bound_does_not_hold() -> None:
    X, y = rows(n=20)
    problem = game(n=20, rounds=25, rate=None)
    table, driver = table_of(problem, X, y), GameDriver()
    state, counts = driver.init(problem), np.zeros(D)
    while records := driver.request(problem, state):
        if state.phase == "step":
            counts[state.chosen] += 1
        state = driver.step(problem, state, table.run(records))
    # the theorem weighs all rounds alike
    weights = counts / 25
    response = np.mean([entry["response"] for entry in state.history])
    value = machine_value(weights, X, signs_of(problem, y), 1.0, "hinge")
    assert value <= response + guaranteed_regret(1.0, 20, 25).value
    steps = [entry["step"] for entry in state.history]
    tighter = played_regret(steps, [entry["gradient"] for entry in state.history], np.sqrt(20.0))
    assert value <= response + tighter
    assert tighter < guaranteed_regret(1.0, 20, 25).value
    n = 50
    aligned = 1.0 - np.ones(n) * n
    assert np.linalg.norm(aligned) > (1 + 2 * 1.0) * np.sqrt(n)
    assert np.linalg.norm(aligned) <= (1 + n) * np.sqrt(n)


def test_margins_compare_by_the_root_of_hard_objectives() -> None:
    generator = np.random.default_rng(0)
    X, w = generator.standard_normal((10, 2)), np.array([1.0, -0.5])
    signs = np.where(X @ w > 0, 1.0, -1.0)
    machines = [SVC(kernel="linear", C=1e6, tol=1e-8).fit(size * X, signs) for size in (1.0, 0.5)]
    objectives = [0.5 * float(machine.coef_[0] @ machine.coef_[0]) for machine in machines]
    # features of half the size: half the margin, four times the objective
    assert margin_shortfall(*objectives).value == pytest.approx(0.5, rel=1e-4)
    assert margin_shortfall(-1.0, 2.0).is_vacuous


@pytest.mark.parametrize("radius", [0.5, 4.0])
def test_the_complexity_is_above_rademacher_averages(radius: float) -> None:
    """One column: the supremum over a fine grid of frequencies, averaged over signs."""
    generator = np.random.default_rng(0)
    n = 200
    x = generator.uniform(-1.0, 1.0, n)
    waves = np.exp(1j * np.linspace(-radius, radius, 801)[:, None] * x)
    suprema = [np.abs(waves @ generator.choice([-1.0, 1.0], n)).max() / n for _ in range(200)]
    bound = kernel_complexity(radius, 1.0, n)
    assert np.mean(suprema) <= bound
    assert np.mean(suprema) > 0.05 * bound


def test_without_the_constant_the_printed_complexity_fails() -> None:
    generator = np.random.default_rng(1)
    n, radius = 200, 0.01
    x = generator.uniform(-1.0, 1.0, n)
    waves = np.exp(1j * np.linspace(-radius, radius, 21)[:, None] * x)
    average = np.mean([np.abs(waves @ generator.choice([-1.0, 1.0], n)).max() / n for _ in range(200)])
    assert average > 3.0 * radius / np.sqrt(n)
    assert average <= kernel_complexity(radius, 1.0, n)


def test_the_error_bound_holds_for_machines_chosen_after_the_rows_and_says_something() -> None:
    """A class small enough: the best of some frequencies on one column, signs apart, a tenth of the labels wrong."""
    generator = np.random.default_rng(2)
    n, radius = 40_000, 2.0
    frequencies = np.linspace(0.1, radius, 10)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = generator.choice([-1.0, 1.0], size) * generator.uniform(0.5, 1.0, size)
        return x, np.sign(x) * np.where(generator.random(size) < 0.1, -1.0, 1.0)

    for _ in range(20):
        x, y = draw(n)
        best = frequencies[np.argmax([np.mean(y * np.sin(w * x)) for w in frequencies])]
        bound = error_bound(normalised_margins(np.sin(best * x), y, np.ones(1)), radius, 1.0)
        fresh, labels = draw(20_000)
        error = np.mean(np.sin(best * fresh) * labels <= 0.0)
        assert error <= bound.value
        assert not bound.is_vacuous


def test_the_error_bound_is_the_least_over_theta() -> None:
    margins = np.random.default_rng(0).uniform(0.4, 0.9, 300_000)
    bound = error_bound(margins, 2.0, 3.0)
    complexity = kernel_complexity(2.0, 3.0, 300_000)
    assert complexity == pytest.approx(19.0 / np.sqrt(300_000))
    grid = np.linspace(0.005, 1.0, 200)
    values = [
        np.mean(margins < theta)
        + 4 * complexity / theta
        + np.sqrt(max(0.0, np.log(np.log2(2 / theta))) / 300_000)
        + np.sqrt(np.log(2 / 0.05) / 600_000)
        for theta in grid
    ]
    assert bound.value <= min(values) + 1e-9
    assert bound.value == pytest.approx(min(values), abs=2e-3)
    assert not bound.is_vacuous
    names = ("share below theta", "complexity term", "uniform in theta", "confidence")
    assert bound.value == pytest.approx(sum(bound.terms[name] for name in names))


def test_potentials_of_a_sample_are_as_accurate_as_theorem_4_4_says() -> None:
    generator = np.random.default_rng(3)
    whole, m, failures = 100_000, 800, 0
    x = generator.standard_normal(whole)
    y = np.where(np.sin(2 * x) > 0, 1.0, -1.0)
    waves = np.exp(1j * np.linspace(0.1, 4.0, 30)[:, None] * x) * y
    truth = np.abs(waves.mean(axis=1)) ** 2
    accuracy = potential_deviation(m, 30).value
    for _ in range(60):
        chosen = generator.integers(0, whole, m)
        v = np.abs(waves[:, chosen].sum(axis=1)) ** 2
        failures += np.abs((v - m) / (m * (m - 1)) - truth).max() > accuracy
    assert failures <= 3
    assert sample_size(30, accuracy) == pytest.approx(m, abs=1)


def test_the_uniform_sample_size_solves_its_inequality_and_is_useless_in_many_columns() -> None:
    n = int(uniform_sample_size(2, 3.0, 2.0, accuracy=0.1).value)

    def needed(n: int) -> float:
        return 32 * (2 * np.log(1 + 16 * 2 * 3 / 0.1) + np.log(2 / 0.05)) / (0.1 - 2 / n) ** 2

    assert needed(n) <= n
    assert needed(n - 2) > n - 2
    assert uniform_sample_size(784, 3.0, 9.0).value > 5e7


def test_all_frequencies_at_once_are_as_accurate_as_the_uniform_size_says() -> None:
    generator = np.random.default_rng(4)
    accuracy = 0.6
    n = int(uniform_sample_size(1, 2.0, 1.0, accuracy=accuracy).value)
    grid = np.linspace(-2.0, 2.0, 401)
    u = np.linspace(-1.0, 1.0, 20_001)
    truth = np.abs((np.exp(1j * grid[:, None] * u) * np.sign(u)).mean(axis=1)) ** 2
    for _ in range(20):
        x = generator.uniform(-1.0, 1.0, n)
        v = np.abs((np.exp(1j * grid[:, None] * x) * np.sign(x)).mean(axis=1)) ** 2
        assert np.abs(v - truth).max() <= accuracy


def test_numbers_without_a_meaning_are_refused_and_what_says_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="rounds=0"):
        guaranteed_regret(1.0, 10, 0)
    with pytest.raises(ValueError, match="eps is a probability"):
        potential_deviation(100, 10, eps=1.0)
    assert potential_deviation(30, 1_000).is_vacuous
    assert guaranteed_regret(1.0, 1_000, 100).is_vacuous
    assert played_value([1.0], 2.0, largest=3.0).is_vacuous
    assert "does not cover" in repr(uniform_sample_size(2, 1.0, 1.0, accuracy=0.5))
