"""The judge: what counts as a gain, which candidates are level, and which gains are more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dkl.linear.judge import (
    Folds,
    PenaltyChoice,
    SeenRows,
    gains,
    is_clear,
    last_gain,
    last_least,
    mean_over_rows,
    near_least,
    ranked,
    rounds_without_gain,
)
from dkl.linear.minibatches import HeldOut
from dkl.registry import PENALTY_RULES

LOSSES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12)


@given(LOSSES)
def test_without_a_share_the_last_gain_is_the_first_of_the_least_losses(losses: list[float]) -> None:
    assert last_gain(losses) == int(np.argmin(losses))


@given(LOSSES, st.floats(0.01, 0.5))
def test_a_round_gains_where_its_loss_is_below_the_one_before_by_a_share_of_it(
    losses: list[float], share: float
) -> None:
    lowest = losses[0]
    for loss in losses[1 : last_gain(losses, share) + 1]:
        lowest = loss if loss < (1.0 - share) * lowest else lowest
    at = last_gain(losses, share)
    assert lowest == losses[at]
    assert not any(gains(later, lowest, share) for later in losses[at + 1 :])


def test_losses_below_zero_gain_by_a_share_of_their_size() -> None:
    assert gains(-1.2, -1.0, share=0.1)
    assert not gains(-1.05, -1.0, share=0.1)


def test_a_loss_that_is_no_number_never_gains() -> None:
    assert last_gain([np.nan, 2.0, np.nan, np.inf]) == 1
    assert last_gain([np.nan, np.nan]) == 0


@given(LOSSES)
def test_patience_counts_the_rounds_since_the_best(losses: list[float]) -> None:
    assert rounds_without_gain(losses) == len(losses) - 1 - int(np.argmin(losses))
    assert rounds_without_gain([]) == 0


@given(LOSSES, st.floats(0.0, 0.5))
def test_the_best_is_level_with_itself_and_others_are_within_the_share(losses: list[float], share: float) -> None:
    level, least = near_least(losses, share), min(losses)
    assert int(np.argmin(losses)) in level
    assert level == sorted(level)
    for place, loss in enumerate(losses):
        assert (place in level) == (loss <= (1.0 + share) * least + 1e-12)


def test_no_candidate_is_level_with_none() -> None:
    assert near_least([], 0.1) == []


@pytest.mark.parametrize("n", [2, 5, 1_000])
def test_a_clear_gain_is_that_of_a_one_sided_test(n: int) -> None:
    generator = np.random.default_rng(n)
    for level in (-1.0, 0.5, 1.0, 2.0, 4.0):
        sample = generator.normal(level / np.sqrt(n), size=n)
        test = stats.ttest_1samp(sample, 0.0, alternative="greater")
        assert is_clear(sample) == (test.pvalue < 0.025)


def test_a_single_gain_is_never_clear() -> None:
    assert not is_clear(np.array([1.0]))


def test_the_rows_of_a_fold_are_seen_by_the_models_of_all_others_alone() -> None:
    rows, folds = np.arange(2_000), Folds(HeldOut(0.1, seed=3), 3, seen=0.5)
    numbers = folds(rows)
    for fold in range(3):
        seen = SeenRows(folds, fold)(rows)
        np.testing.assert_array_equal(seen, (numbers != fold) & (numbers != -2))
    # fold 0 holds the rows that a fit without folds keeps from its model
    np.testing.assert_array_equal(SeenRows(Folds(HeldOut(0.1, seed=3), 1), 0)(rows), numbers != 0)


@given(st.lists(st.one_of(st.floats(-2.0, 2.0), st.just(float("nan"))), max_size=12))
def test_scores_are_ranked_from_the_best_on_equal_ones_in_order_and_failures_left_out(scores: list[float]) -> None:
    able = [place for place, score in enumerate(scores) if score == score]
    assert ranked(scores) == sorted(able, key=lambda place: (-scores[place], place))


@given(LOSSES)
def test_of_equal_losses_the_last_is_the_least(losses: list[float]) -> None:
    place = int(last_least(np.array(losses)))
    assert losses[place] == min(losses)
    assert all(loss > losses[place] for loss in losses[place + 1 :])


def test_each_row_counts_once_in_the_mean_over_folds() -> None:
    rows = np.arange(10.0)
    folds = [rows[:2], rows[2:5], rows[5:]]
    scores, weights = (np.array([measure(fold) for fold in folds]) for measure in (np.mean, len))
    assert mean_over_rows(scores, weights) == pytest.approx(rows.mean(), rel=1e-15)


def test_folds_take_equal_shares_of_all_rows_and_a_single_one_its_share() -> None:
    rows = np.arange(40_000)
    assert np.bincount(Folds.of(5, 3)(rows)).tolist() == pytest.approx([8_000] * 5, rel=0.03)
    assert np.mean(Folds.of(0.3, 3)(rows) == 0) == pytest.approx(0.3, rel=0.03)
    # rows that a model holds out by itself, under the same seed, are of all folds
    own = Folds.of(5, 3)(rows[HeldOut(0.1, 3).mask(rows)])
    assert np.bincount(own).min() > 700


@pytest.mark.parametrize("folds", [1, 0, True, 1.0, 0.0, -0.2, "five", None])
def test_folds_that_are_neither_a_number_nor_a_share_are_refused(folds: object) -> None:
    with pytest.raises(ValueError, match=r"folds is .*; expected a whole number of at least 2"):
        Folds.of(folds, 0)  # type: ignore[arg-type]


def test_models_see_all_other_folds_or_by_time_the_older_ones() -> None:
    folds = Folds.of(4, 0)
    assert folds.outside(1) == [0, 2, 3, -1]
    assert folds.along_time().outside(1) == [2, 3, -1]
    # the oldest rows, of no fold, are as many as each fold has
    assert folds.along_time().held_out.share == pytest.approx(0.2)
    assert Folds.of(0.25, 0).along_time().held_out.share == 0.25


@pytest.mark.parametrize("rule", PENALTY_RULES)
@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(0, 3), st.sampled_from([0, 1, 5]))
def test_every_rule_of_the_table_chooses_a_penalty_that_was_tried(
    rule: str, seed: int, n_tried: int, n_untried: int, n_folds: int
) -> None:
    """Whether folds are several, a single one, or unknown."""
    rng = np.random.default_rng(seed)
    by_fold = np.full((n_tried + n_untried, max(n_folds, 1)), -np.inf)
    by_fold[:n_tried] = rng.normal(size=(n_tried, 1)) + 0.3 * rng.normal(size=(n_tried, by_fold.shape[1]))
    known = by_fold if n_folds else np.zeros((0, 0))
    alphas = 10.0 ** -np.arange(len(by_fold))
    choice = PenaltyChoice(alphas, by_fold.mean(axis=1), np.zeros((0, 0)), rule=rule, fold_scores=known)
    assert choice.best in range(n_tried)
    assert choice.alpha == alphas[choice.best]


def test_the_usual_rule_chooses_the_highest_score_and_of_equal_ones_the_strongest_penalty() -> None:
    scores = np.array([0.1, 0.7, 0.7, -np.inf])
    assert PenaltyChoice(np.array([8.0, 4.0, 2.0, 1.0]), scores, np.zeros((0, 0))).alpha == 4.0
