"""What a block contributes to the margin game, against loops over its rows."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.methods.game.sums import GameLoss, GameTargets, Trials, breakpoint_sums, feasible, primal_losses, row_scores
from tests.definitions import game as definitions
from tests.kernels.cases import STORAGES, holey_rows, stored
from tests.methods.play import blocks_of

N, K = 29, 2


def dual_block() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    values = generator.normal(0.5, 1.0, (N, K))
    values[:5] = 0.25
    signs = generator.choice([-1.0, 1.0], (N, K))
    return values, signs, generator.integers(0, 3, N).astype(float)


@pytest.mark.parametrize("exact", [True, False])
def test_feasible_weights_are_their_definition(exact: bool) -> None:
    values, signs, _ = dual_block()
    shifts = np.array([[0.3, -0.2], [0.05, 0.1]])
    found = feasible(values, signs, 0.8, shifts, exact=exact)
    np.testing.assert_array_equal(found, definitions.feasible(values, signs, 0.8, shifts, exact=exact))


def test_breakpoint_sums_are_their_definition() -> None:
    values, signs, weight = dual_block()
    edges = np.sort(np.random.default_rng(1).normal(size=(K, 7)), axis=1)
    edges[0, 3] = 0.25
    found = breakpoint_sums(values, signs, weight, 0.8, edges)
    expected = definitions.breakpoint_sums(values, signs, weight, 0.8, edges)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-13, err_msg=name)


def test_breakpoint_sums_give_the_balance_at_every_edge() -> None:
    values, signs, weight = dual_block()
    edges = np.linspace(-2.0, 2.0, 31)[None].repeat(K, axis=0)
    sums = breakpoint_sums(values, signs, weight, 0.8, edges)
    heights = np.cumsum(sums["slopes"], axis=1)[:, :-1] * edges - np.cumsum(sums["moments"], axis=1)[:, :-1]
    for k in range(K):
        for mu, height in zip(edges[k], heights[k], strict=True):
            expected = definitions.balance(values[:, k], signs[:, k], weight, 0.8, mu)
            assert 0.8 * sums["positive"][k] - height == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("storage", STORAGES)
def test_row_scores_are_their_definition(storage: str) -> None:
    X = holey_rows(N, 5)
    feature_map = Gaussian(1.0).draw(6, 5, seed=0, dtype=np.float64)
    coefficients = np.random.default_rng(2).standard_normal((12, 3))
    found = row_scores(stored(X, storage), feature_map, coefficients, "float64")
    np.testing.assert_allclose(found, definitions.row_scores(X, feature_map, coefficients), rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_primal_losses_are_their_definition(loss: GameLoss) -> None:
    values, signs, weight = dual_block()
    trials = Trials(np.array([1.0, 0.5, 2.0]), np.array([[0.0, 0.3], [-0.4, 1.0]]))
    found = primal_losses(values, signs, weight, trials, loss=loss)
    expected = definitions.primal_losses(values, signs, weight, trials, loss=loss)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_two_classes_make_one_dual_block_and_more_make_one_each() -> None:
    y = np.array([0, 1, 1, 0])
    (block,) = blocks_of(np.zeros((4, 1)), y, np.array([1.0, 2.0, 3.0, 4.0]))
    signs, weight, held = GameTargets(2, class_weight=np.array([1.0, 0.5]), held_out=lambda ids: ids == 3)(block)
    assert signs.tolist() == [[-1.0], [1.0], [1.0], [-1.0]]
    assert weight.tolist() == [1.0, 1.0, 1.5, 0.0]
    assert held.tolist() == [0.0, 0.0, 0.0, 4.0]
    signs = GameTargets(3)(block)[0]
    assert signs.tolist() == [[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, 1.0, -1.0], [1.0, -1.0, -1.0]]
