"""The driver of Algorithm 1 out of core: what it verifies, when its sample grows, and how many passes it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.features.harmonics import SphericalHarmonics
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.peaks.driver import PeakDriver, PeakProblem, PeakState, PeakTargets, chosen_points, peak_sums
from dkl.passes.checkpoint import decode_state, encode_state
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum
from dkl.protocols.sampling import smallest_keys
from tests.definitions import selection as definition


def play(problem: PeakProblem, blocks: Sequence[Block]) -> tuple[PeakState, list[list[str]]]:
    """Run the driver to its end over blocks in memory, through a checkpoint after each pass."""
    driver, passes = PeakDriver(), []
    state = driver.init(problem)
    while records := driver.request(problem, state):
        state = driver.step(problem, state, [result_of(record, blocks) for record in records])
        state = decode_state(PeakState, *encode_state(state))
        passes.append([record.name for record in records])
    return state, passes


def result_of(record: Any, blocks: Sequence[Block]) -> Any:
    if isinstance(record, BlockSum):
        pieces = [record.function(block, record.operands) for block in blocks]
        sums = {name: sum(piece[name] for piece in pieces) for name in record.accumulators}
        shapes = {name: accumulator.shape for name, accumulator in record.accumulators.items()}
        assert {name: value.shape for name, value in sums.items()} == shapes
        return sums
    return smallest_keys(joined(blocks), record.k, record.seed, record.round)


def joined(blocks: Sequence[Block]) -> Block:
    weight = None if blocks[0].weight is None else np.concatenate([block.weights for block in blocks])
    X, y, row_id = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("X", "y", "row_id"))
    return Block(0, X, y, weight, row_id)


def blocks_of(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> list[Block]:
    parts = np.array_split(np.arange(len(X)), 3)
    return [Block(i, X[p], y[p], None if weight is None else weight[p], p) for i, p in enumerate(parts)]


def problem_of(
    d: int, targets: PeakTargets, n_rows: int, *, sample_rows: int, most_rows: int, **options: Any
) -> PeakProblem:
    space = FourierSpace(Gaussian(2.0).draw(1, d, 0), Gaussian(2.0), SearchOptions(chains=20, steps=10, **options), 0.0)
    return PeakProblem(space, targets, 3, 6, n_rows, sample_rows, most_rows)


def two_classes(share: float = 0.5) -> PeakTargets:
    return PeakTargets(2, None, np.array([1 - share, share]))


def pattern(n: int, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, d))
    return X, (np.sin(2 * X[:, 1]) > 0).astype(np.int64)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3, None])
def test_verified_potentials_are_their_definition_on_all_rows(n_classes: int | None, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    weight = rng.integers(1, 4, 30).astype(float) if weighted else None
    repeats = np.ones(30, int) if weight is None else weight.astype(int)
    if n_classes is None:
        y = rng.standard_normal((30, 2)) + 3.0
        center = np.average(y, axis=0, weights=repeats)
        targets = PeakTargets(None, None, center, np.array([2.0, 0.5]))
        S = (y - center) / [2.0, 0.5]
    else:
        y = np.arange(30) % n_classes
        center = np.bincount(y, weights=repeats) / repeats.sum()
        targets = PeakTargets(n_classes, None, center)
        S = (np.eye(n_classes)[y] - center)[:, : targets.n_columns]
    problem = problem_of(2, targets, 30, sample_rows=10, most_rows=10)
    state, _ = play(replace(problem, dtype="float64"), blocks_of(X, y, weight))
    points = problem.space.feature_map(state.points).projection.dense()
    for w, found in zip(points, state.verified, strict=True):
        expected = definition.pair_potentials(np.repeat(X @ w, repeats), np.repeat(S, repeats, axis=0))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_weights_sum_to_zero_over_all_rows_whatever_the_classes() -> None:
    rng = np.random.default_rng(0)
    y, weight, factors = rng.integers(0, 3, 50), rng.integers(1, 5, 50).astype(float), np.array([1.0, 0.0, 2.5])
    totals = np.bincount(y, weights=weight * factors[y])
    targets = PeakTargets(3, factors, totals / totals.sum())
    S = targets(Block(0, np.zeros((50, 1)), y, weight, np.arange(50)))
    np.testing.assert_allclose(S.sum(axis=0), 0.0, atol=1e-12)


def test_a_pattern_takes_two_passes_and_the_best_peak_is_its_frequency() -> None:
    X, y = pattern(4_000)
    problem = problem_of(3, two_classes(y.mean()), 4_000, sample_rows=1_000, most_rows=4_000, polish=10)
    state, passes = play(problem, blocks_of(X, y))
    assert passes == [["rows to search on"], ["verification", "rows to search on"]]
    assert state.sample_rows == 1_000
    best = state.points[chosen_points(problem, state)[0]]
    np.testing.assert_allclose(np.abs(best), [0.0, 2.0, 0.0], atol=0.2)


def test_noise_makes_the_sample_grow_until_all_rows_are_searched() -> None:
    X, _ = pattern(2_000, 20)
    y = np.random.default_rng(5).integers(0, 2, 2_000)
    problem = problem_of(20, two_classes(), 2_000, sample_rows=100, most_rows=1_500, sparse_share=0.0)
    state, passes = play(problem, blocks_of(X, y))
    assert state.sample_rows == 1_500
    assert len(passes) == 1 + problem.most_searches == 6
    # the last search has nothing larger to draw
    assert passes[-1] == ["verification"]
    assert len(state.verified) == len(state.points) > len(state.unverified)
    assert chosen_points(problem, state).max() < len(state.points)


def test_the_plan_counts_the_passes_that_may_be_needed() -> None:
    for most, searches in ((100, 1), (200, 2), (1_500, 5)):
        problem = problem_of(20, two_classes(), 2_000, sample_rows=100, most_rows=most)
        plan = PeakDriver().plan(problem)
        assert sum(calls for _, calls in plan) == 1 + searches
        for records, _ in plan:
            for record in records:
                if isinstance(record, BlockSum):
                    assert record.cost(100, 20).flops > 0


def test_a_finite_pool_is_weighed_as_a_whole_in_one_pass() -> None:
    X = np.random.default_rng(0).standard_normal((3_000, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)
    space = FrequencyPool(SphericalHarmonics(max_degree=4).pool(3))
    problem = PeakProblem(space, two_classes(y.mean()), 2, 25, 3_000, 1, 1)
    state, passes = play(problem, blocks_of(X, y))
    assert passes == [["verification"]]
    assert PeakDriver().plan(problem)[0][1] == 1
    # sin 2 phi, of degree 2
    best = space.pool.projection.dense()[chosen_points(problem, state)[0]]
    np.testing.assert_array_equal(best, [-2, 2])


def test_absolute_weights_and_squares_are_summed_as_of_repeated_rows() -> None:
    X, y = pattern(40)
    weight = np.random.default_rng(1).integers(1, 4, 40).astype(float)
    repeats = np.repeat(np.arange(40), weight.astype(int))
    operands = {
        "targets": two_classes(0.3),
        "feature_map": Gaussian(1.0).draw(5, 3, 0, np.float64),
        "dtype": "float64",
    }
    weighted = peak_sums(Block(0, X, y, weight, np.arange(40)), operands)
    repeated = peak_sums(Block(0, X[repeats], y[repeats], None, repeats), operands)
    for name, value in weighted.items():
        np.testing.assert_allclose(value, repeated[name], rtol=1e-10, atol=1e-12)
