"""From weights to features: the draw of estimator (5), the support of estimator (6), and the rule between them."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.features.frequencies import stream
from dkl.methods import choice
from tests.definitions import selection as definition


def kernel_weights(chosen: choice.FeatureChoice, size: int) -> np.ndarray:
    """What each candidate adds to the kernel: its squared amplitude."""
    weights = np.zeros(size)
    weights[chosen.index] = chosen.amplitudes**2
    return weights


@pytest.fixture
def weights() -> np.ndarray:
    q = np.random.default_rng(0).dirichlet(np.full(40, 0.4))
    q[::5] = 0.0
    return q / q.sum()


def test_a_draw_merges_repeats_with_the_root_of_their_count(weights: np.ndarray) -> None:
    points = stream(3, "choice").random(25)
    chosen = choice.draw_features(weights, 25, seed=3)
    expected = definition.draw_features(weights, 25, points)
    np.testing.assert_allclose(kernel_weights(chosen, 40), expected, atol=1e-12)
    assert len(chosen.index) < 25
    assert np.all(np.diff(chosen.index) > 0)


def test_draws_never_take_a_candidate_without_weight(weights: np.ndarray) -> None:
    for seed in range(200):
        assert weights[choice.draw_features(weights, 50, seed).index].min() > 0.0


def test_draws_have_the_weights_as_their_mean(weights: np.ndarray) -> None:
    mean = np.mean([kernel_weights(choice.draw_features(weights, 30, seed), 40) for seed in range(2_000)], axis=0)
    # a binomial share over 60,000 draws
    assert np.all(np.abs(mean - weights) < 5.0 * np.sqrt(weights / 60_000) + 1e-12)


def test_the_support_is_kept_with_the_root_of_its_weights(weights: np.ndarray) -> None:
    chosen = choice.keep_support(3.0 * weights)
    np.testing.assert_allclose(kernel_weights(chosen, 40), definition.keep_support(weights), atol=1e-15)
    assert len(chosen.index) == 32


@pytest.mark.parametrize("n_kept", [10, 31, 32, 33, 100])
def test_the_papers_rule_draws_where_the_support_is_larger(weights: np.ndarray, n_kept: int) -> None:
    chosen = choice.choose_features(weights, n_kept, seed=1)
    drawn = choice.draw_features(weights, n_kept, seed=1)
    expected = drawn if definition.choose_features(weights, n_kept) == "(5)" else choice.keep_support(weights)
    np.testing.assert_array_equal(chosen.index, expected.index)
    np.testing.assert_array_equal(chosen.amplitudes, expected.amplitudes)
    assert len(chosen.index) <= n_kept


def test_a_named_estimator_is_taken_whatever_the_sizes(weights: np.ndarray) -> None:
    drawn = choice.choose_features(weights, 100, seed=1, estimator="draw")
    np.testing.assert_array_equal(drawn.index, choice.draw_features(weights, 100, seed=1).index)
    largest = choice.choose_features(weights, 7, seed=1, estimator="support")
    np.testing.assert_array_equal(largest.index, np.sort(np.argsort(-weights)[:7]))
    assert (largest.amplitudes**2).sum() == pytest.approx(1.0)
    assert len(choice.choose_features(weights, None, seed=1).index) == 32


def test_block_means_are_their_definition() -> None:
    groups = np.array([0, 1, 0, 2, 2, 2])
    values = np.random.default_rng(0).standard_normal(6)
    np.testing.assert_allclose(choice.block_means(values, groups), definition.block_means(values, groups), rtol=1e-15)


def test_blocks_of_one_candidate_are_chosen_as_candidates_are(weights: np.ndarray) -> None:
    singles = np.arange(len(weights))
    for estimator in ("auto", "draw", "support"):
        for kept in (None, 5, 12, 40):
            expected = choice.choose_features(weights, kept, 3, estimator=estimator)  # type: ignore[arg-type]
            found = choice.choose_features(weights, kept, 3, estimator=estimator, groups=singles)  # type: ignore[arg-type]
            np.testing.assert_array_equal(found.index, expected.index)
            np.testing.assert_allclose(found.amplitudes, expected.amplitudes, rtol=1e-14)


def test_blocks_are_kept_whole_and_fit() -> None:
    """The weights of the blocks are those of the draws or the support, divided evenly within a block."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), rng.integers(1, 7, 12))
    sizes, weights = np.bincount(groups), rng.dirichlet(np.ones(12))
    weights[3] = 0.0
    for room in range(int(sizes.max()), len(groups) + 3):
        for estimator in ("auto", "draw", "support"):
            found = choice.choose_features(weights, room, 1, estimator=estimator, groups=groups)  # type: ignore[arg-type]
            of_blocks = np.bincount(groups[found.index], minlength=12)
            assert set(zip(of_blocks, sizes, strict=True)) <= {(0, size) for size in sizes} | {(s, s) for s in sizes}
            assert len(found.index) <= room
            assert of_blocks[3] == 0
            assert np.sum(found.amplitudes**2) == pytest.approx(1.0)
            if estimator == "support":
                expected = definition.largest_blocks(weights, sizes, room)
                np.testing.assert_array_equal(np.flatnonzero(of_blocks), expected)
    with pytest.raises(ValueError, match="no block of candidates fits into 1 columns: the smallest that counts has 2"):
        choice.choose_features(np.ones(2), 1, 0, groups=np.array([0, 0, 1, 1, 1]))
