"""The race of features: what is tried, in which order and within which work, and who wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.penalty_choice import PenaltyChoice
from dkl.machines.contest import Contender, Race, contenders, usual_advice, variants
from dkl.machines.effort import EFFORTS, Shape
from dkl.machines.settings import Knobs


def tried_on(X: Any, **knobs: Any) -> list[Contender]:
    return contenders(as_dataset(X), usual_advice(), EFFORTS["balanced"], Knobs(**knobs))


def test_with_a_bandwidth_only_kinds_that_have_one_are_tried() -> None:
    names = [contender.name for contender in tried_on(np.zeros((20, 3)), sigma=2.0)]
    assert names == ["random waves", "a Matern kernel at landmarks", "searched waves"]


def test_sparse_rows_are_tried_with_their_columns_and_waves_alone() -> None:
    names = [contender.name for contender in tried_on(sparse.csr_array(np.eye(20)))]
    assert names == ["the columns themselves", "random waves", "searched waves"]


def judged(*scores: float) -> PenaltyChoice:
    return PenaltyChoice(1.0, np.arange(1.0, 1.0 + len(scores)), np.array(scores), start=np.zeros((1, 1)))


def race_of(n: int, *, folds: int = 1, allowed: float = 100.0, **settings: Any) -> Race:
    """A race of contenders that are told apart by their number; each trial and each fit is one unit of work."""
    made = [Contender(str(number), dkl.RandomFeatures(n_features=number + 1)) for number in range(n)]
    rules = {"judging": lambda _: 1.0, "fitting": lambda _: 1.0, "vary": lambda _: []}
    return Race(made, folds, allowed, **{**rules, **settings})


def run(race: Race, scores: Any) -> list[tuple[int, int]]:
    """The trials of a race whose contenders have these scores; None is one that fails."""
    trials = []
    while (trial := race.next()) is not None:
        trials.append(trial)
        score = scores(*trial)
        race.tell(trial[0], None if score is None else judged(score))
    return trials


def test_all_kinds_are_tried_once_and_those_far_behind_no_more() -> None:
    race = race_of(3, folds=3)
    trials = run(race, lambda number, fold: (0.5, 0.8, 0.79)[number])
    assert trials == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (2, 2)] or trials == [
        (0, 0),
        (1, 0),
        (2, 0),
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
    ]
    assert race.winner == 1


def test_of_contenders_that_are_level_the_plainest_wins() -> None:
    race = race_of(3)
    run(race, lambda number, fold: (0.7, 0.8, 0.8005)[number])
    assert race.winner == 1


def test_kinds_that_fail_are_left_out_and_nobody_wins_where_all_do() -> None:
    race = race_of(2)
    run(race, lambda number, fold: (None, 0.1)[number])
    assert race.winner == 1
    assert "0 failed" in race.reasons(10)[0]
    race = race_of(2)
    run(race, lambda number, fold: None)
    with pytest.raises(ValueError, match="give `features`, to see why it fails"):
        _ = race.winner


def test_a_race_stays_within_the_work_that_is_allowed_but_for_the_first_trial() -> None:
    for allowed in (0.0, 3.0, 5.0, 9.0):
        race = race_of(5, folds=4, allowed=allowed)
        run(race, lambda number, fold: 0.5)
        assert race.trials == 1 or race.spent + 1.0 <= allowed
    assert race.ended == "as held-out rows gain no more"


def test_variants_of_the_best_follow_while_they_gain() -> None:
    def larger(contender: Contender) -> list[Contender]:
        size = contender.learner.n_features
        return [contender.changed(f"up to {2 * size}", n_features=2 * size)]

    race = race_of(2, vary=larger)
    gains = iter([0.2, 0.5, 0.6, 0.7, 0.7, 0.7])
    trials = run(race, lambda number, fold: next(gains))
    assert trials == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    assert race.contenders[race.winner].name == "1 (up to 8)"


def test_variants_are_larger_wider_and_of_another_kernel_unless_that_is_pinned() -> None:
    kernel = next(one for one in tried_on(np.zeros((900, 3))) if "kernel" in one.name)
    effort = EFFORTS["balanced"]
    assert [one.name.partition(" (")[2] for one in variants(kernel, effort, Knobs(), 900)] == [
        "up to 900)",
        "bandwidth x 1)",
        "bandwidth x 0.25)",
        "Gaussian kernel)",
    ]
    assert variants(kernel, effort, Knobs(n_features=400, sigma=1.0), 900) == []


def test_greater_effort_allows_more_work_and_more_rows_and_columns_do_too() -> None:
    shape, wider = Shape(1_000, 10, 1, "squared_error"), Shape(1_000, 100, 1, "squared_error")
    allowed = [EFFORTS[effort].allowed(shape) for effort in ("fast", "balanced", "best")]
    assert allowed == sorted(allowed)
    assert EFFORTS["fast"].allowed(wider) > allowed[0]
    for contender in tried_on(np.zeros((300, 4))):
        assert wider.judging(contender.learner) >= shape.judging(contender.learner) > 0.0
        assert Shape(9_000, 10, 1, "squared_error").fitting(contender.learner) > shape.fitting(contender.learner)
