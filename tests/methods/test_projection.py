"""The projection onto the SVM dual's feasible set: nearest, feasible, the same however the rows are divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.methods.game.projection import first_edges, keep_found, narrow, project_dual
from dkl.methods.game.sums import breakpoint_sums, feasible
from tests.definitions import game as definitions


def dual_block(n: int = 24, K: int = 2, positives: float = 0.4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(n)
    values = generator.normal(0.6, 1.0, (n, K))
    signs = np.where(generator.random((n, K)) < positives, 1.0, -1.0)
    signs[0], signs[1] = 1.0, -1.0
    return values, signs, generator.integers(1, 4, n).astype(float)


@pytest.mark.parametrize("upper", [0.5, 1.0, 30.0])
def test_the_projection_is_the_nearest_feasible_point(upper: float) -> None:
    values, signs, weight = dual_block()
    alpha, _ = project_dual(values, signs, weight, upper)
    expected = definitions.project_dual(values, signs, weight, upper)
    np.testing.assert_allclose(alpha, expected, rtol=0, atol=2e-6)
    distance, other = (weight @ (found - values) ** 2 for found in (alpha, expected))
    assert np.all(distance <= other * (1 + 1e-9))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-2.0, 0.0, 0.3, 1.0, 1.0, 5.0]) | st.floats(-10, 10), min_size=2, max_size=12),
    signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=12, max_size=12),
    upper=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_the_projection_is_feasible_whatever_the_ties(values: list[float], signs: list[float], upper: float) -> None:
    a, y = np.array(values)[:, None], np.array(signs[: len(values)])[:, None]
    alpha, multiplier = project_dual(a, y, np.ones(len(a)), upper)
    assert alpha.min() >= 0.0
    assert alpha.max() <= upper
    assert abs((y * alpha).sum()) <= 1e-12 * len(a) * max(upper, np.abs(a).max())
    inside = (alpha > 0.0) & (alpha < upper)
    np.testing.assert_allclose(a[inside] - multiplier[0] * y[inside], alpha[inside], rtol=0, atol=1e-12)


def test_a_weight_of_two_is_the_row_twice() -> None:
    values, signs, weight = dual_block()
    alpha, _ = project_dual(values, signs, weight, 1.0)
    times = weight.astype(int)
    repeated, _ = project_dual(
        np.repeat(values, times, axis=0), np.repeat(signs, times, axis=0), np.ones(times.sum()), 1.0
    )
    np.testing.assert_allclose(repeated, np.repeat(alpha, times, axis=0), rtol=0, atol=1e-13)


def test_rows_of_weight_zero_have_no_say() -> None:
    values, signs, weight = dual_block()
    alone, multiplier = project_dual(values[6:], signs[6:], weight[6:], 1.0)
    weight[:6] = 0.0
    values[0] = 1e6
    alpha, same = project_dual(values, signs, weight, 1.0)
    np.testing.assert_allclose(same, multiplier, rtol=1e-12)
    np.testing.assert_allclose(alpha[6:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [1_000, 100_000])
def test_two_or_three_reductions_find_the_multiplier_of_many_rows(n: int) -> None:
    values, signs, weight = dual_block(n, K=1, positives=0.1)
    parts = np.array_split(np.arange(n), 7)
    search, reductions = None, 0
    edges = first_edges(np.zeros(1), np.full(1, 4.0))
    while search is None or not search.found.all():
        sums = [breakpoint_sums(values[p], signs[p], weight[p], 1.0, edges) for p in parts]
        total = {name: sum(one[name] for one in sums) for name in sums[0] if name != "ends"}
        total["ends"] = np.max([one["ends"] for one in sums], axis=0)
        found = narrow(edges, total, 1.0)
        search = found if search is None else keep_found(found, search)
        edges, reductions = search.edges, reductions + 1
    assert reductions <= 3
    balance = definitions.balance(values[:, 0], signs[:, 0], weight, 1.0, float(search.values[0]))
    assert abs(balance) <= 1e-12 * weight.sum()


def test_one_class_alone_leaves_nothing() -> None:
    alpha, _ = project_dual(np.ones((5, 1)), np.ones((5, 1)), np.ones(5), 1.0)
    np.testing.assert_allclose(alpha, 0.0, atol=1e-15)


def alternated(
    values: np.ndarray, signs: np.ndarray, weight: np.ndarray, rounds: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """The alternations that a game spreads over passes, with an upper bound of 1: weights, and what each subtracts."""
    shifts = np.zeros((0, values.shape[1]))
    for _ in range(rounds):
        alpha = np.clip(feasible(values, signs, 1.0, shifts, exact=False), 0.0, 1.0)
        shifts = np.vstack([shifts, (weight @ (signs * alpha))[None] / weight.sum()])
    return feasible(values, signs, 1.0, shifts, exact=False), shifts


def test_alternating_projections_are_algorithm_3() -> None:
    values, signs, weight = dual_block()
    alpha, shifts = alternated(values, signs, weight)
    assert shifts.shape == (10, 2)
    np.testing.assert_allclose(alpha, definitions.alternate_dual(values, signs, weight, 1.0), rtol=0, atol=1e-14)


def test_alternating_projections_end_feasible_but_not_at_the_projection() -> None:
    n = 2_000
    values = np.random.default_rng(0).normal(0.6, 1.0, (n, 1))
    signs = np.where(np.arange(n) < n // 10, 1.0, -1.0)[:, None]
    far, _ = alternated(values, signs, np.ones(n), rounds=200)
    nearest, _ = project_dual(values, signs, np.ones(n), 1.0)
    assert abs((signs * far).sum()) < 1e-9 * n
    assert far.min() > -1e-9
    assert far.max() < 1 + 1e-9
    distance, least = (np.linalg.norm(found - values) for found in (far, nearest))
    assert least < 0.999 * distance
