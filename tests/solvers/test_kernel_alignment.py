"""Alignments from class sums, and the weights in a divergence ball that maximise them."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dkl.solvers import kernel_alignment as alignment
from tests.definitions import selection as definition

ORDERS = (1.05, 1.5, 2.0, 2.5, 3.0, 6.0)


def features_and_rows(seed: int, *, n_classes: int = 3, parts: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    n, size = 14, 5
    codes = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)])
    return rng.standard_normal((parts, n, size)), codes, rng.integers(1, 4, n).astype(float)


def sums_of(features: np.ndarray, S: np.ndarray) -> np.ndarray:
    return np.einsum("pnm,nk->pmk", features, S)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_class_sums_give_the_alignment_over_all_pairs_of_weighted_rows(n_classes: int, center: bool) -> None:
    features, codes, weights = features_and_rows(1, n_classes=n_classes)
    S = definition.indicators(codes, n_classes) * weights[:, None]
    v = alignment.class_alignments(sums_of(features, S), S.sum(axis=0), center=center)
    expected = definition.class_alignments(features, codes, weights, center=center)
    np.testing.assert_allclose(v, expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("center", [False, True])
def test_the_class_diagonal_is_the_pairs_of_a_row_with_itself(center: bool) -> None:
    features, codes, weights = features_and_rows(2, parts=1)
    S = definition.indicators(codes, 3) * weights[:, None]
    diagonal = alignment.class_diagonal(sums_of(features**2, S), S.sum(axis=0), center=center)
    expected = definition.class_diagonal(features, codes, weights, center=center)
    np.testing.assert_allclose(diagonal, expected, rtol=1e-12)


def test_two_classes_align_as_the_signed_sum_squared() -> None:
    features, codes, weights = features_and_rows(3, n_classes=2)
    S = definition.indicators(codes, 2) * weights[:, None]
    y = np.where(codes == 1, 1.0, -1.0)
    signed = np.einsum("pnm,n->pm", features, weights * y)
    v = alignment.class_alignments(sums_of(features, S), S.sum(axis=0))
    np.testing.assert_allclose(v, (signed**2).sum(axis=0), rtol=1e-12)
    centred = np.einsum("pnm,n->pm", features, weights * (y - np.average(y, weights=weights)))
    v = alignment.class_alignments(sums_of(features, S), S.sum(axis=0), center=True)
    np.testing.assert_allclose(v, (centred**2).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_regression_sums_give_the_alignment_and_its_diagonal(n_targets: int) -> None:
    features, _, weights = features_and_rows(4)
    y = np.random.default_rng(5).standard_normal((features.shape[1], n_targets)) + 7.0
    S = np.column_stack([y, np.ones(len(y))]) * weights[:, None]
    v = alignment.regression_alignments(sums_of(features, S), S.sum(axis=0))
    np.testing.assert_allclose(v, definition.regression_alignments(features, y, weights), rtol=1e-10)
    squares = np.column_stack([y**2, y, np.ones(len(y))]) * weights[:, None]
    diagonal = alignment.regression_diagonal(sums_of(features**2, squares), S.sum(axis=0))
    np.testing.assert_allclose(diagonal, definition.regression_diagonal(features, y, weights), rtol=1e-10)


@example(v=[0.0, 0.0, 0.0, 0.0, 0.0, 860813.0, -621640.0, -621640.0], share=0.4375, k=6.0)
@settings(max_examples=150, deadline=None)
@given(
    v=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    share=st.floats(1e-4, 2.0),
    k=st.sampled_from(ORDERS),
)
def test_weights_attain_the_dual_value_within_the_ball(v: list[float], share: float, k: float) -> None:
    values, rho = np.array(v), share * len(v)
    q = alignment.maximise_alignment(values, rho, k)
    assert q.min() >= 0.0
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    assert definition.divergence(q, k) <= rho * (1 + 1e-8) + 1e-12
    # lemma 4: weak duality makes every dual value a bound, so equality shows that nothing better exists
    assert q @ values == pytest.approx(
        definition.largest_alignment(values, rho, k), rel=1e-7, abs=1e-7 * np.ptp(values) + 1e-12
    )


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("rho", [0.01, 0.5, 3.0])
def test_weights_are_those_of_a_general_solver(rho: float, k: float) -> None:
    v = np.random.default_rng(6).standard_normal(8) ** 2
    q = alignment.maximise_alignment(v, rho, k)
    expected = definition.maximise_alignment(v, rho, k)
    assert q @ v >= expected @ v - 1e-9
    np.testing.assert_allclose(q, expected, atol=2e-4)


@pytest.mark.parametrize("k", [1.001, 1.2, 1.8])
def test_no_move_of_weight_raises_the_alignment_below_order_two(k: float) -> None:
    """Stationary within the ball, by finite differences: weight moved between two candidates gains nothing."""
    rng = np.random.default_rng(14)
    v, rho, length = rng.gamma(0.5, size=12), 0.3 * (12 ** (k - 1.0) - 1.0), 1e-5
    q = alignment.maximise_alignment(v, rho, k)
    for i, j in itertools.permutations(np.flatnonzero(q > 10.0 * length), 2):
        moved = q.copy()
        moved[i], moved[j] = moved[i] + length, moved[j] - length
        # back into the ball, along the line to its centre
        while definition.divergence(moved, k) > rho:
            moved = (1.0 - 1e-7) * moved + 1e-7 / 12
        assert moved @ v <= q @ v + 1e-9


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 5.0, 100.0])
def test_the_divergence_is_the_bound_to_eight_digits(rho: float, k: float) -> None:
    # no weights have a divergence above D^(k-1) - 1, which all weight on one candidate has
    rho = min(rho, 0.99 * (5_000 ** (k - 1.0) - 1.0))
    q = alignment.maximise_alignment(np.random.default_rng(7).gamma(0.5, size=5_000), rho, k)
    assert alignment.divergence(q, k) == pytest.approx(rho, rel=1e-8)


def test_the_sort_and_the_root_agree_at_order_two() -> None:
    v = np.random.default_rng(8).gamma(0.5, size=3_000)
    for rho in (0.01, 1.0, 30.0, 900.0):
        exact = alignment.maximise_alignment(v, rho, 2.0)
        np.testing.assert_allclose(alignment.maximise_alignment(v, rho, 2.0 + 1e-12), exact, atol=1e-9)


def test_a_radius_of_zero_and_constant_alignments_give_uniform_weights() -> None:
    v = np.random.default_rng(9).random(50)
    for k in ORDERS:
        np.testing.assert_array_equal(alignment.maximise_alignment(v, 0.0, k), np.full(50, 0.02))
        np.testing.assert_array_equal(alignment.maximise_alignment(np.full(50, -3.0), 7.0, k), np.full(50, 0.02))


@pytest.mark.parametrize("k", ORDERS)
def test_ties_at_the_top_share_all_weight_from_the_radius_where_the_bound_ends(k: float) -> None:
    v = np.array([5.0, 1.0, 5.0, 2.0, 5.0, 0.0, -1.0, 3.0, 4.0])
    ends = (9 / 3) ** (k - 1.0) - 1.0
    expected = np.where(v == 5.0, 1 / 3, 0.0)
    np.testing.assert_array_equal(alignment.maximise_alignment(v, ends * (1 + 1e-12), k), expected)
    np.testing.assert_array_equal(alignment.maximise_alignment(v, np.inf, k), expected)
    below = alignment.maximise_alignment(v, 0.9 * ends, k)
    assert np.count_nonzero(below) > 3
    assert alignment.divergence(below, k) == pytest.approx(0.9 * ends, rel=1e-8)


def test_scale_sign_and_order_of_the_alignments_do_not_matter() -> None:
    rng = np.random.default_rng(10)
    v = rng.standard_normal(200)
    q = alignment.maximise_alignment(v, 2.0)
    np.testing.assert_allclose(alignment.maximise_alignment(1e12 * v - 5e12, 2.0), q, atol=1e-9)
    np.testing.assert_allclose(alignment.maximise_alignment(1e-9 * v, 2.0), q, atol=1e-12)
    order = rng.permutation(200)
    np.testing.assert_allclose(alignment.maximise_alignment(v[order], 2.0), q[order], rtol=1e-12)


def test_a_million_candidates_are_weighed_in_well_under_a_second() -> None:
    v = np.random.default_rng(11).gamma(0.5, size=1_000_000)
    # of this process: other work on the machine takes time on the wall
    started = time.process_time()
    q = alignment.maximise_alignment(v, 5_000.0)
    assert time.process_time() - started < 1.0
    assert alignment.effective_features(q) == pytest.approx(1_000_000 / 5_001.0, rel=1e-9)


def test_effective_features_and_divergence_are_their_definitions() -> None:
    q = np.random.default_rng(12).dirichlet(np.full(30, 0.3))
    assert alignment.effective_features(q) == pytest.approx(definition.effective_features(q), rel=1e-12)
    for k in ORDERS:
        assert alignment.divergence(q, k) == pytest.approx(definition.divergence(q, k), rel=1e-11)


def test_the_support_is_at_least_what_the_radius_allows() -> None:
    v = np.random.default_rng(13).gamma(0.5, size=2_000)
    for k in ORDERS:
        q = alignment.maximise_alignment(v, 10.0, k)
        assert np.count_nonzero(q) >= 2_000 / 11.0 ** (1.0 / (k - 1.0))


@pytest.mark.parametrize(
    ("v", "rho", "k", "message"),
    [
        (np.array([1.0, np.nan]), 1.0, 2.0, "finite"),
        (np.empty(0), 1.0, 2.0, "at least one"),
        (np.ones((2, 2)), 1.0, 2.0, r"shape \(2, 2\)"),
        (np.ones(3), -0.1, 2.0, "rho must be a number >= 0.*-0.1"),
        (np.ones(3), np.nan, 2.0, "rho must be"),
        (np.ones(3), 1.0, 1.0, "k must be a number > 1.*1.0"),
    ],
)
def test_input_without_a_meaning_is_refused(v: np.ndarray, rho: float, k: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alignment.maximise_alignment(v, rho, k)
