"""The score that covers is the one that sorting finds, with weights as repeated rows and groups by themselves."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.uncertainty.order_statistics import HeldOutScores, rank
from tests.definitions import uncertainty as definitions

SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.0]) | st.floats(0.0, 1e6), min_size=1, max_size=40)
COVERAGES = st.integers(1, 99).map(lambda hundredths: f"0.{hundredths:02d}")


def of(scores: list[float], weight: np.ndarray | None = None, codes: np.ndarray | None = None) -> HeldOutScores:
    return HeldOutScores.of_rows(np.array(scores)[:, None], weight, codes, scaled=False)


@settings(max_examples=200, deadline=None)
@given(SCORES, COVERAGES)
def test_covering_score_is_the_one_that_sorting_finds(scores: list[float], coverage: str) -> None:
    found = of(scores).quantiles(float(coverage))
    assert found.shape == (1, 1)
    assert found[0, 0] == definitions.order_statistic(np.array(scores), coverage)


@settings(max_examples=100, deadline=None)
@given(SCORES, COVERAGES, st.integers(0, 10))
def test_weights_count_as_repeated_rows(scores: list[float], coverage: str, seed: int) -> None:
    weight = np.random.default_rng(seed).integers(1, 4, len(scores))
    found = of(scores, weight.astype(float)).quantiles(float(coverage))[0, 0]
    assert found == definitions.order_statistic(np.repeat(scores, weight), coverage)


@settings(max_examples=100, deadline=None)
@given(SCORES, COVERAGES, st.integers(0, 10))
def test_groups_and_targets_have_quantiles_by_themselves(scores: list[float], coverage: str, seed: int) -> None:
    columns = np.column_stack([scores, np.array(scores)[::-1] ** 2])
    codes = np.random.default_rng(seed).integers(-1, 2, len(scores)) * 10**15
    held = HeldOutScores.of_rows(columns, None, codes, scaled=True)
    held.validate()
    assert held.groups is not None
    for place, code in enumerate(held.groups):
        for target in range(2):
            expected = definitions.order_statistic(columns[codes == code, target], coverage)
            assert held.quantiles(float(coverage))[place, target] == expected


@settings(max_examples=100, deadline=None)
@given(SCORES, COVERAGES, st.integers(0, 10))
def test_importance_weights_put_the_rows_own_at_infinity(scores: list[float], coverage: str, seed: int) -> None:
    # whole weights and a share in halves, so that no sum is rounded
    rng = np.random.default_rng(seed)
    weight, own, share = rng.integers(1, 5, len(scores)) * 1.0, rng.integers(0, 5, 3) * 1.0, 0.5
    found = of(scores, weight).weighted_quantiles(share, own, np.zeros(3, np.int64))
    order = np.argsort(scores, kind="stable")
    for row in range(3):
        reached, expected = 0.0, math.inf
        for i in order:
            reached += weight[i]
            if reached >= share * (weight.sum() + own[row]):
                expected = scores[i]
                break
        assert found[row, 0] == expected


@pytest.mark.parametrize(
    ("coverage", "total", "expected"), [(0.55, 100, 55), (0.9, 10, 9), (0.7, 10, 7), (0.95, 20, 19)]
)
def test_rank_is_exact_where_binary_numbers_are_not(coverage: float, total: int, expected: int) -> None:
    assert rank(coverage, total) == expected == math.ceil(Fraction(str(coverage)) * total)


def test_a_coverage_that_the_rows_cannot_promise_is_infinite() -> None:
    assert of([1.0] * 8).quantiles(0.9)[0, 0] == math.inf
    assert of([1.0] * 9).quantiles(0.9)[0, 0] == 1.0
