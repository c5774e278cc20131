"""The race of features: what is tried, in which order and within which work, and who wins."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.judge import PenaltyChoice
from dkl.machines.contenders import Contender, contenders, joined, usual_advice, variants
from dkl.machines.contest import BEHIND, Candidate, Race
from dkl.machines.effort import EFFORTS, ENOUGH_ROWS, Shape
from dkl.machines.reasons import reasons_of, sentence_of
from dkl.machines.settings import Knobs
from dkl.machines.suggest import GROWTH, Advice


def tried_on(X: Any, loss: str | None = None, **knobs: Any) -> list[Contender]:
    return contenders(as_dataset(X), usual_advice(), EFFORTS["balanced"], Knobs(**knobs), loss)


def test_with_a_bandwidth_only_kinds_that_have_one_are_tried() -> None:
    names = [contender.name for contender in tried_on(np.zeros((20, 3)), sigma=2.0)]
    assert names == [
        "random waves",
        "a Matern kernel at landmarks",
        "a Laplacian kernel at landmarks",
        "refined waves",
    ]


def test_waves_are_searched_without_a_descent_only_under_losses_by_which_none_descend() -> None:
    for loss, name in ((None, "refined waves"), ("poisson", "searched waves")):
        assert [one.name for one in tried_on(np.zeros((900, 3)), loss) if one.is_searched] == [name]


def test_a_metric_is_learned_where_some_of_many_columns_may_matter() -> None:
    named = [[contender.name for contender in tried_on(np.zeros((20, columns)))] for columns in (7, 8)]
    assert [name for name in named[1] if name not in named[0]] == ["a Laplacian kernel in a learned metric"]


def test_texts_with_an_order_are_tried_as_ranks() -> None:
    rows = pd.DataFrame({"size": list("SMLSML") * 10, "band": ["18-24", "25-40", "5-17"] * 20, "x": np.arange(60.0)})
    names = [contender.name for contender in tried_on(rows)]
    assert "a Laplacian kernel of ordered categories at landmarks" in names
    assert "a Laplacian kernel of ordered categories at landmarks" not in [one.name for one in tried_on(rows[["x"]])]


def test_variants_in_a_learned_metric_do_not_learn_it_again() -> None:
    learned = Contender("metric", dkl.NystromFeatures(dkl.Laplacian(), n_features=20, metric="diagonal"))
    more, scaled = learned.changed("up to 30", n_features=30), learned.changed("scaling quantile", scaling="quantile")
    assert more.shares_metric(learned)
    assert not scaled.shares_metric(learned)
    matern = Contender("metric", dkl.NystromFeatures(dkl.Matern(0.5), n_features=20, metric="diagonal"))
    assert not matern.changed("up to 30", n_features=30).shares_metric(matern)
    race = race_of(
        learned,
        judging=lambda one, near: 5.0 if one.learner.get_params().get("metric") else 1.0,
        vary=lambda one, is_best: [more, scaled],
    )
    run(race, lambda number, fold: 0.5 + 0.1 * number)
    # all learn it once for themselves, but for the one that finds it learned
    assert (race.tried, race.spent) == ([0, 1, 2], 5.0 + 1.0 + 5.0)


def test_sparse_rows_are_tried_with_their_columns_and_waves_alone() -> None:
    names = [contender.name for contender in tried_on(sparse.csr_array(np.eye(20)))]
    assert names == ["the columns themselves", "random waves", "searched waves"]
    # frequencies of very many columns take more memory than the rows, unless their bandwidth was asked for
    very_wide = sparse.csr_array((20, 20_000), dtype=float)
    assert [contender.name for contender in tried_on(very_wide)] == ["the columns themselves"]
    assert "random waves" in [contender.name for contender in tried_on(very_wide, sigma=2.0)]


@pytest.mark.slow
@pytest.mark.parametrize("d", [20_000, 300_000, 1_000_000])
def test_a_few_columns_that_matter_are_found_among_very_many_sparse_ones(d: int) -> None:
    rng = np.random.default_rng(0)
    n, matter = 2_000, 5
    flags = rng.random((n, matter)) < 0.4
    noise = sparse.random_array((n, d - matter), density=100 / d, format="csr", rng=rng)
    X = sparse.hstack([noise, sparse.csr_array(flags.astype(float))], format="csr")
    scores = flags @ np.array([3.0, -3.0, 2.0, 2.0, -2.0])
    y = (scores + 0.5 * rng.logistic(size=n) > np.median(scores)).astype(int)
    machine = dkl.KernelClassifier(random_state=0)
    begun = time.process_time()
    machine.fit(X[:1_500], y[:1_500])
    seconds = time.process_time() - begun
    linear = LogisticRegression(max_iter=300).fit(X[:1_500], y[:1_500])
    assert machine.score(X[1_500:], y[1_500:]) >= linear.score(X[1_500:], y[1_500:]) - 0.02
    # what the fit takes follows from the values that are stored, as scikit-learn's does, and not from the columns
    assert seconds < 60.0
    # a row has its own prediction, whichever rows come with it
    alone = machine.decision_function(X[[1_700]])
    np.testing.assert_array_equal(alone, machine.decision_function(X[1_600:1_800])[100:101])


def judged(*scores: float) -> PenaltyChoice:
    return PenaltyChoice(np.arange(1.0, 1.0 + len(scores)), np.array(scores), start=np.zeros((1, 1)))


def features(n_features: int = 1_000_000) -> Any:
    """Learned features, of which a race asks only how many they are."""
    return SimpleNamespace(feature_map_=SimpleNamespace(n_features=n_features))


def race_of(*kinds: Contender, n: int = 0, folds: int = 1, allowed: float = 100.0, **settings: Any) -> Race:
    """A race of these kinds, or of n that are told apart by their number; each trial and each fit is a unit of work."""
    made = [Contender(str(number), dkl.StepFeatures(n_features=number + 1)) for number in range(n)]
    rules = {"judging": lambda *_: 1.0, "fitting": lambda _: 1.0, "vary": lambda *_: []}
    return Race([*kinds, *made], folds, allowed, **{**rules, **settings})


def run(
    race: Race, scores: Any, left_out: Any = lambda number, fold: False, found: int = 1_000_000
) -> list[tuple[int, int]]:
    """The trials of a race whose candidates have these scores, and so many features; None is one that fails."""
    trials = []

    def trial(one: Candidate, fold: int) -> None:
        if left_out(one.number, fold):
            one.left_out = "takes more work"
            return
        trials.append((one.number, fold))
        score = scores(one.number, fold)
        race.record(one, None if score is None else judged(score), features(found))

    for one, fold in race.trials():
        trial(one, fold)
    return trials


def test_all_kinds_are_tried_once_and_those_far_behind_no_more() -> None:
    race = race_of(n=3, folds=3)
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
    assert race.winner.number == 1


def test_of_contenders_that_are_level_the_plainest_wins() -> None:
    race = race_of(n=3)
    run(race, lambda number, fold: (0.7, 0.8, 0.8005)[number])
    assert race.winner.number == 1


def test_a_variant_of_one_kind_is_plainer_than_two_kinds_together() -> None:
    wider = Contender("0 (wider)", dkl.RandomFeatures(n_features=10))
    race = race_of(n=2, join=joined, vary=lambda one, is_best: [wider] if one.name == "0" and is_best else [])
    # 2 is "0 with 1", 3 is "0 (wider)", which is level with it
    run(race, lambda number, fold: (0.7, 0.6, 0.8, 0.8002, 0.1, 0.1)[number])
    assert [race.candidates[number].contender.name for number in (2, 3)] == ["0 with 1", "0 (wider)"]
    assert race.winner.number == 3
    (sentence, *_) = reasons_of(race, 10, race.candidates[2], measure="R^2")
    assert "nearly the best score" in sentence


def test_the_plainest_of_those_that_are_level_is_not_called_the_best() -> None:
    race = race_of(n=3)
    run(race, lambda number, fold: (0.7, 0.8, 0.8005)[number])
    (sentence, *_) = reasons_of(race, 10, race.winner, measure="R^2")
    assert "which are the plainest of those whose score is level with the best on held-out rows, 0.8000" in sentence


def test_a_score_that_looks_better_than_the_chosen_one_is_level_by_the_loss() -> None:
    race = race_of(n=2)

    def judge(number: int, accuracy: float) -> PenaltyChoice:
        return replace(judged((0.8, 0.8005)[number]), accuracies=np.array([accuracy]))

    for one, _ in race.trials():
        race.record(one, judge(one.number, (0.54, 0.655)[one.number]), features(1_000))
    said = sentence_of(race, race.winner, None, "accuracy")
    assert said == "Chose 0: accuracy .540 on held-out rows (level by its loss with .655 of 2 tried)."


def test_kinds_that_fail_are_left_out_and_nobody_wins_where_all_do() -> None:
    race = race_of(n=2)
    run(race, lambda number, fold: (None, 0.1)[number])
    assert race.winner.number == 1
    assert "0 failed" in reasons_of(race, 10, race.winner, measure="R^2")[0]
    race = race_of(n=2)
    run(race, lambda number, fold: None)
    with pytest.raises(ValueError, match="no kind of features could be fitted to these rows"):
        _ = race.winner


def test_a_race_stays_within_the_work_that_is_allowed_but_for_the_first_trial() -> None:
    for allowed in (0.0, 3.0, 5.0, 9.0):
        race = race_of(n=5, folds=4, allowed=allowed)
        run(race, lambda number, fold: 0.5)
        assert race.tried == [0] or race.spent + 1.0 <= allowed
    assert race.ended == "as held-out rows gain no more"


def test_variants_of_the_best_follow_while_they_gain() -> None:
    def larger(contender: Contender, is_best: bool) -> list[Contender]:
        size = contender.learner.n_features
        return [contender.changed(f"up to {2 * size}", n_features=2 * size)]

    race = race_of(n=2, vary=larger)
    # the second kind gains twice; the first is too far behind to be tried again
    gains = {0: 0.2, 1: 0.5, 2: 0.6, 3: 0.7, 4: 0.7}
    assert run(race, lambda number, fold: gains[number]) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    assert race.winner.contender.name == "1 (up to 8)"
    assert race.ended == "as held-out rows gain no more"


def test_where_a_bandwidth_gains_none_in_the_other_direction_is_tried() -> None:
    def wider_and_narrower(contender: Contender, is_best: bool) -> list[Contender]:
        factor = contender.learner.sigma_factor
        return [contender.changed(f"bandwidth x {by * factor}", sigma_factor=by * factor) for by in (2.0, 0.5)]

    for gained, tried in ((0.6, [1.0, 2.0, 4.0]), (0.4, [1.0, 2.0, 0.5])):
        race = race_of(kernels(100), vary=wider_and_narrower)
        scores = {0: 0.5, 1: gained}
        trials = run(race, lambda number, fold, scores=scores: scores.get(number, 0.3))
        assert [race.candidates[number].contender.learner.sigma_factor for number, _ in trials] == tried


def test_the_best_bandwidth_of_a_kernel_is_found_before_it_has_more_landmarks() -> None:
    def varied(contender: Contender, is_best: bool) -> list[Contender]:
        size, factor = contender.learner.n_features, contender.learner.sigma_factor
        larger = contender.changed(f"up to {size + 100}", n_features=size + 100)
        wider = contender.changed(f"bandwidth x {2.0 * factor:g}", sigma_factor=2.0 * factor)
        return [larger, *([wider] if is_best else [])]

    for wider_score, bandwidth in ((0.6, 2.0), (0.501, 1.0), (0.4, 1.0)):
        race = race_of(kernels(100), vary=varied)
        # the kind, the same kernel with twice the bandwidth, and with more landmarks; nothing else does well
        scores = {0: 0.5, 1: wider_score, 2: 0.7, 3: 0.7}
        run(race, lambda number, fold, scores=scores: scores.get(number, 0.1))
        tried = [race.candidates[number].contender.learner for number in race.tried]
        assert [one.n_features for one in tried[:3]] == [100, 100, 200]
        assert {one.sigma_factor for one in tried if one.n_features > 100} == {bandwidth}


def test_kinds_that_are_near_may_only_lack_features() -> None:
    def larger(contender: Contender, is_best: bool) -> list[Contender]:
        size = contender.learner.n_features
        return [] if is_best else [contender.changed(f"up to {size + 10}", n_features=size + 10)]

    race = race_of(n=3, vary=larger)
    gains = {0: 0.2, 1: 0.49, 2: 0.5, 3: 0.6, 4: 0.5}
    # the second kind is near, and its variant wins; no other is near that one
    assert run(race, lambda number, fold: gains[number]) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert race.winner.contender.name == "1 (up to 12)"


def test_variants_are_larger_and_wider_unless_that_is_pinned() -> None:
    kernel = next(one for one in tried_on(np.zeros((900, 3))) if "kernel" in one.name)
    effort = EFFORTS["balanced"]
    assert [one.name.partition(" (")[2] for one in variants(kernel, effort, Knobs(), 900)] == [
        "up to 900)",
        "scaling quantile)",
        "bandwidth x 1.25)",
        "bandwidth x 0.2)",
    ]
    assert variants(kernel, effort, Knobs(n_features=400, sigma=1.0, scaling="standard"), 900) == []
    # one-hot columns are the same in any scaling
    unscaled = variants(kernel, effort, Knobs(n_features=400, sigma=1.0), 900, scalings=())
    assert unscaled == []
    waves = next(one for one in tried_on(np.zeros((900, 3)), "poisson") if one.name == "searched waves")
    assert [one.name.partition(" (")[2] for one in variants(waves, effort, Knobs(), 900)] == [
        "up to 1,000)",
        "scaling quantile)",
    ]
    assert [one.name for one in variants(waves, effort, Knobs(scaling=None, n_features=400), 900)] == []


def test_a_bandwidth_that_is_reached_in_two_ways_is_one_candidate() -> None:
    for kernel in (one for one in tried_on(np.zeros((900, 9))) if one.is_kernel):
        known, waiting = {kernel.key: kernel}, [kernel]
        while waiting:
            for one in variants(waiting.pop(), EFFORTS["balanced"], Knobs(n_features=400, scaling="standard"), 900):
                if 0.01 < one.given["sigma_factor"] < 100.0 and one.key not in known:
                    known[one.key] = one
                    waiting.append(one)
        factors = sorted(one.given["sigma_factor"] for one in known.values())
        assert len(factors) > 5
        np.testing.assert_allclose(np.diff(np.log(factors)), np.log(GROWTH))


def test_a_pinned_number_of_features_is_shared_by_the_kinds_that_are_joined() -> None:
    waves, steps, kernel = (
        next(one for one in tried_on(np.zeros((900, 3)), n_features=50) if word in one.name)
        for word in ("random waves", "steps", "kernel")
    )
    both = joined(waves, steps, 50)
    assert [part.size for part in both.parts] == [25, 25]
    assert [part.size for part in joined(both, kernel, 50).parts] == [16, 16, 16]
    # what is tried is what is fitted
    fitted = dkl.KernelRegressor(n_features=50)
    fitted.seed_ = 0
    assert [part.n_features for part in fitted._unfitted_features(both.learner)._new(0)] == [25, 25]
    # features of 50 columns each are not those of 25
    one = Candidate(2, both, tuple(Candidate(number, kind) for number, kind in enumerate((waves, steps))))
    for parent in one.parents:
        parent.pilots.append(features())
    assert one.learned_parts(0) == ()
    assert len(Candidate(2, joined(waves, steps), one.parents).learned_parts(0)) == 2


def test_steps_are_searched_for_again_with_other_rows_held_out_where_the_effort_allows_it() -> None:
    steps = next(one for one in tried_on(np.zeros((900, 3))) if "steps" in one.name)
    best = EFFORTS["best"]
    assert [one.name.partition(" (")[2] for one in variants(steps, best, Knobs(), 900)] == ["up to 1,000)", "bags 4)"]
    more = steps.changed("bags 4", bags=4)
    # a number of features that was asked for is kept
    assert variants(steps, best, Knobs(n_features=400), 900) == []
    first = next(
        one
        for one in contenders(as_dataset(np.zeros((900, 3))), usual_advice(), EFFORTS["fast"], Knobs())
        if "steps" in one.name
    )
    assert [one.name for one in variants(first, EFFORTS["fast"], Knobs(), 900)] == [f"{steps.name} (up to 400)"]
    # all bags together have no more features than one may have
    most = steps.changed("bags 16", bags=16, n_features=500)
    assert variants(most, best, Knobs(), 900) == []
    assert [one.learner.bags for one in variants(steps.changed("", n_features=4_000), best, Knobs(), 9_000)] == [1]
    shape = Shape(9_000, 10, 1, "squared_error")
    assert shape.features_of(more.learner) == 4 * shape.features_of(steps.learner)
    assert shape.learning(more.learner) == pytest.approx(4.0 * shape.learning(steps.learner))


def kernels(landmarks: int) -> Contender:
    return Contender("kernel", dkl.NystromFeatures(n_features=landmarks))


def more_landmarks(contender: Contender, is_best: bool) -> list[Contender]:
    size = contender.learner.n_features
    return [contender.changed(f"up to {2 * size}", n_features=2 * size)] if size < 400 else []


def test_a_kernel_that_gained_with_landmarks_has_in_the_end_as_many_as_there_is_work_left_for() -> None:
    def race_of_kernels(gains: dict[int, float]) -> Race:
        race = race_of(kernels(100), vary=more_landmarks, join=joined, allowed=20.0, most_landmarks=5_000)
        # a fit of D landmarks takes D / 100 units
        race.fitting = lambda contender: contender.learner.n_features / 100.0
        run(race, lambda number, fold: gains[number])
        return race

    race = race_of_kernels({0: 0.5, 1: 0.6, 2: 0.7})
    assert race.winner.contender.learner.n_features == 400
    won, grown, stays = race.winner_after_growth()
    assert won is race.winner
    assert grown is not None
    # with twice the landmarks three quarters of the loss stayed, as is expected of each further doubling
    assert stays == pytest.approx(0.75 ** np.log2(grown.learner.n_features / 400))
    assert race.spent + race.fitting(grown) <= race.allowed < race.spent + 1.01 * race.fitting(grown)
    race.most_landmarks = 450
    assert race.winner_after_growth()[1].learner.n_features == 450
    assert f"Fit: kernel (up to {grown.learner.n_features:,})" in reasons_of(race, 10, won, grown, measure="R^2")[2]
    # no gain, no growth, and so for one that is worth nothing
    level = race_of_kernels({0: 0.5, 1: 0.5})
    assert level.winner_after_growth() == (level.candidates[0], None, 1.0)
    slow = race_of_kernels({0: 0.5, 1: 0.504, 2: 0.5041})
    slow.most_landmarks = 260
    assert slow.winner_after_growth() == (slow.candidates[1], None, 1.0)


def test_a_kernel_that_gains_wins_over_what_is_a_little_better_and_cannot_grow() -> None:
    race = race_of(
        kernels(200),
        Contender("other", dkl.RandomFeatures(n_features=10)),
        vary=lambda contender, is_best: more_landmarks(contender, is_best) if is_best else [],
        fitting=lambda contender: contender.learner.n_features / 100.0,
        most_landmarks=1_600,
    )
    scores = {0: 0.5, 1: 0.49, 2: 0.6}
    run(race, lambda number, fold: scores[number])
    # from 200 to 400 landmarks the loss fell from .5 to .4; a rival came to .39
    _, rival, larger = race.candidates
    rival.choices = [judged(0.61)]
    assert race.winner is rival
    won, grown, _ = race.winner_after_growth()
    assert (won, grown.learner.n_features) == (larger, 1_600)
    told = reasons_of(race, 10, won, grown, measure="R^2")[0]
    assert "nearly the best score, and gain with more landmarks" in told
    race.most_landmarks = 400
    assert race.winner_after_growth() == (rival, None, 1.0)


def test_what_landmarks_bring_beside_another_kind_is_told_by_the_same_with_fewer_of_them() -> None:
    waves, few, more = Contender("waves", dkl.RandomFeatures(n_features=10)), kernels(100), kernels(400)
    race = race_of(few, waves, allowed=30.0, most_landmarks=1_600, fitting=lambda contender: 0.0)

    def add(contender: Contender, *parents: int) -> Candidate:
        own = tuple(race.candidates[parent] for parent in parents)
        race.candidates.append(Candidate(len(race.candidates), contender, own))
        return race.candidates[-1]

    add(more, 0)
    add(joined(waves, few), 1, 0)
    best = add(joined(waves, more), 1, 2)
    for one, score in zip(race.candidates, (0.5, 0.78, 0.7, 0.79, 0.8), strict=True):
        one.choices = [judged(score)]
    won, grown, stays = race.winner_after_growth()
    assert won is best
    assert grown is not None
    # a loss of .21 became .2 by four times the landmarks; by itself the kernel's fell from .5 to .3
    assert stays == pytest.approx(0.2 / 0.21)
    # of one that was tried with more landmarks these tell, not what came before
    add(joined(waves, kernels(800)), 1, 2).choices = [judged(0.8001)]
    assert race.winner_after_growth() == (best, None, 1.0)


def test_work_is_kept_for_the_landmarks_of_a_kernel_that_gained() -> None:
    def larger_or_other(contender: Contender, is_best: bool) -> list[Contender]:
        seed, larger = contender.learner.random_state or 0, more_landmarks(contender, is_best)
        return larger or [contender.changed(f"seed {seed + 1}", random_state=seed + 1)]

    # as much as a fit of all landmarks takes, at most a share of all work; nothing before the kernel has grown once
    for most, spent in ((10_000, 2.0), (400, 6.0)):
        race = race_of(kernels(100), vary=larger_or_other, allowed=10.0, most_landmarks=most)
        race.fitting = lambda contender: contender.learner.n_features / 100.0
        run(race, lambda number, fold: 0.5 + 0.01 * number)
        assert race.spent == spent
        assert race.ended == "as the effort allows no more"


def test_features_that_are_more_than_a_search_found_are_not_tried() -> None:
    def larger(contender: Contender, is_best: bool) -> list[Contender]:
        return [contender.changed("up to 50", n_features=50)] if is_best else []

    for found, tried in ((1, [0]), (2, [0, 1])):
        one = Contender("0", dkl.RandomFeatures(n_features=2))
        race = race_of(one, allowed=90.0, judging=lambda one, near: one.learner.n_features / 2.0, vary=larger)
        run(race, lambda number, fold: 0.5, found=found)
        assert race.tried == tried
        # what ended early took less work
        assert race.spent == (0.5 if found == 1 else 1.0 + 1.0)


def test_a_variant_knows_the_penalty_that_its_parent_preferred() -> None:
    race = race_of(kernels(200), vary=more_landmarks)
    preferred = []

    def trial(one: Candidate, fold: int) -> None:
        preferred.append(one.preferred and one.preferred.alpha)
        race.record(one, judged(0.1, 0.3, 0.2), features())

    for one, fold in race.trials():
        trial(one, fold)
    assert preferred == [None, 2.0]
    # other folds of its parent change nothing: the penalties of all folds are averaged one by one
    race.candidates[0].choices.append(judged(0.9, 0.1, 0.1))
    assert race.candidates[1].preferred.alpha == 2.0


@pytest.mark.parametrize(
    ("rival", "work", "tried"), [(0.51, 11.0, [0, 1]), (0.6, 11.0, [0, 1, 2]), (0.51, 10.0, [0, 1, 2])]
)
def test_a_metric_is_learned_where_another_kind_is_ahead_of_kernels_or_where_it_is_cheap(
    rival: float, work: float, tried: list[int]
) -> None:
    waves = Contender("waves", dkl.RandomFeatures(n_features=2))
    metric = Contender("metric", dkl.NystromFeatures(n_features=20, metric="diagonal"))
    race = race_of(kernels(20), waves, metric, judging=lambda one, near: work if one.name == "metric" else 1.0)
    run(race, lambda number, fold: (0.5, rival, 0.7)[number])
    assert race.tried == tried


def test_greater_effort_allows_more_work_and_more_rows_and_columns_do_too() -> None:
    # searches of up to ten columns climb longer
    shape, wider = Shape(1_000, 11, 1, "squared_error"), Shape(1_000, 100, 1, "squared_error")
    allowed = [EFFORTS[effort].allowed(shape) for effort in ("fast", "balanced", "best")]
    assert allowed == sorted(allowed)
    assert EFFORTS["fast"].allowed(wider) > allowed[0]
    for contender in tried_on(np.zeros((300, 4))):
        assert wider.trial_work(contender.learner) >= shape.trial_work(contender.learner) > 0.0
        assert Shape(9_000, 11, 1, "squared_error").fitting(contender.learner) > shape.fitting(contender.learner)


def test_scalings_are_judged_on_rows_that_take_a_small_share_of_the_budget_and_kinds_on_more_of_many() -> None:
    rows = [EFFORTS[name].advised_rows for name in ("fast", "balanced", "best")]
    assert rows == [246, 383, 1_000]
    balanced = EFFORTS["balanced"]
    few, many, more = (Shape(n_rows, 28, 1, "squared_error") for n_rows in (1_000_000, 2_000_000, 10_000_000))
    for shape in (few, many, more):
        assert balanced.advising(shape) < 0.07 * balanced.work
    judged = [balanced.most_judged(shape.n_rows, in_memory=460_000) for shape in (few, many, more)]
    assert judged == [20_000, 20_000, 50_000]
    # of a billion rows no kernel matrix fills the memory, and no trial reads a store for what would not stay
    billion = Shape(1_000_000_000, 28, 1, "squared_error")
    assert balanced.most_judged(billion.n_rows, in_memory=460_000) == 460_000
    assert balanced.most_judged(billion.n_rows, in_memory=0) == 20_000


def test_features_of_more_than_a_hessians_size_count_for_every_product_unless_they_are_the_columns() -> None:
    many = Shape(21_000, 6, 18, "squared_error")
    kernel, waves = dkl.NystromFeatures(dkl.Laplacian(), n_features=8_000), dkl.RandomFeatures(n_features=3_000)
    allowed = EFFORTS["best"].allowed(many)
    assert many.fitting(kernel) < allowed < many.fitting(dkl.CombinedFeatures([kernel, waves]))
    texts = Shape(4_000, 38_000, 1, "squared_error")
    columns = dkl.AlignedFeatures(dkl.Coordinates(), n_candidates=None, n_features=None, rho=0.0)
    assert texts.fitting(columns) < EFFORTS["balanced"].work


def test_what_a_race_has_tried_is_a_plan_of_the_same_race() -> None:
    def larger(contender: Contender, is_best: bool) -> list[Contender]:
        return [contender.changed(f"up to {size}", n_features=size) for size in (20, 30)]

    def scores(number: int, fold: int) -> float:
        return 0.5 + 0.01 * number

    race = race_of(n=4, folds=3, vary=larger)
    # the clock, say, has no time for two of them
    run(race, scores, lambda number, fold: number in (2, 5))
    assert set(race.tried) >= {0, 1, 3}
    assert not set(race.tried) & {2, 5}
    again = race_of(n=4, folds=3, vary=larger, plan=race.tried)
    run(again, scores)
    assert (again.tried, again.winner.number, again.rounds) == (race.tried, race.winner.number, race.rounds)
    # what the plan skips takes no more work than what it names
    of_features, of_choice = reasons_of(again, 10, again.winner, measure="R^2")
    assert "not tried, since not among the given trials: 2)" in of_features
    assert "work" not in of_features
    assert of_choice.endswith("as was asked for.")


def test_a_plan_with_a_number_that_no_candidate_has_says_why_it_ends() -> None:
    race = race_of(n=2, plan=[0, 9])
    run(race, lambda number, fold: 0.5)
    assert race.tried == [0]
    assert race.ended == "as no further candidate of these rows is among the given trials"


def test_a_contender_without_time_for_a_further_fold_keeps_its_place() -> None:
    race = race_of(n=2, folds=3)
    run(race, lambda number, fold: (0.5, 0.52)[number], lambda number, fold: (number, fold) == (1, 1))
    assert (race.winner.number, race.rounds) == (1, 1)


def test_a_variant_is_begun_only_where_all_folds_of_the_others_can_follow() -> None:
    """Judged on fewer folds it could not win, and its score would stand beside means of more."""

    def larger(contender: Contender, is_best: bool) -> list[Contender]:
        return [contender.changed("up to 50", n_features=50)] if is_best else []

    # two kinds on two folds take four units, a variant two more and its fit one; folds may take half of all
    for allowed, tried in ((8.0, [0, 1, 0, 1, 2, 2]), (6.9, [0, 1])):
        race = race_of(n=2, folds=2, allowed=allowed, vary=larger)
        run(race, lambda number, fold: (0.5, 0.51, 0.6)[number])
        assert race.tried[: len(tried)] == tried
        judged_on = [len(one.choices) for one in race.candidates if one.choices]
        assert min(judged_on) == race.rounds
    dear = race_of(n=2, folds=2, allowed=8.0, vary=larger)
    dear.judging = lambda contender, near: 1.0 if contender.learner.n_features < 50 else 2.0
    run(dear, lambda number, fold: (0.5, 0.51, 0.6)[number])
    # one fold of it would still have been within what is allowed
    assert dear.tried == [0, 1, 0, 1]
    assert "not tried, since that takes more work: 1 (up to 50)" in reasons_of(dear, 10, dear.winner, measure="R^2")[0]


def test_a_score_on_fewer_folds_says_so() -> None:
    race = race_of(n=3, folds=2)
    run(race, lambda number, fold: (0.9, 0.8, 0.89)[number])
    told = reasons_of(race, 10, race.winner, measure="R^2")[0]
    assert "1 0.8000 in the first 1" in told
    assert "in 2 folds" in told


def test_the_best_is_joined_with_the_best_of_another_kind_and_that_with_a_third() -> None:
    race = race_of(n=4, join=joined)
    # the fourth does not help
    scores = {0: 0.8, 1: 0.78, 2: 0.75, 3: 0.1, 4: 0.82, 5: 0.825, 6: 0.82}
    run(race, lambda number, fold: scores[number])
    assert [one.contender.name for one in race.candidates[4:]] == [
        "0 with 1",
        "0 with 1 with 2",
        "0 with 1 with 2 with 3",
    ]
    three = race.winner.contender.learner
    assert [learner.n_features for learner in three.features] == [1, 2, 3]


def test_what_both_found_on_a_fold_is_not_learned_again_where_they_are_joined() -> None:
    race = race_of(n=2, join=joined, comparing=lambda contender, is_near: 0.25, folds=2)
    parts = []

    def trial(one: Candidate, fold: int) -> None:
        parts.append((one.number, fold, len(one.learned_parts(fold))))
        # the second kind is given up after the first fold
        race.record(one, judged((0.8, 0.72, 0.9)[one.number]), features())

    for one, fold in race.trials():
        trial(one, fold)
    assert parts == [(0, 0, 0), (1, 0, 0), (2, 0, 2)]
    assert race.spent == 2.25
    # of a fold that one of them has not seen both are learned
    assert race.candidates[2].learned_parts(1) == ()
    assert race.trial_work(race.candidates[2], 1) == 1.0


def test_the_work_of_joined_features_is_that_of_each_and_of_one_model_on_all() -> None:
    shape = Shape(1_000, 4, 1, "squared_error")
    first, second = tried_on(np.zeros((300, 4)))[1:3]
    both = joined(first, second).learner
    assert shape.features_of(both) == shape.features_of(first.learner) + shape.features_of(second.learner)
    assert shape.fitting(both) > shape.fitting(first.learner) + shape.fitting(second.learner) - 1e8
    assert shape.learning(both) == shape.learning(first.learner) + shape.learning(second.learner)


def test_of_few_judging_rows_kinds_are_given_up_for_larger_differences() -> None:
    scores = [[0.9, 0.87], [0.9, 0.87]]

    def folds_of(judging_rows: float) -> list[tuple[int, int]]:
        return run(race_of(n=2, folds=2, judging_rows=judging_rows), lambda number, fold: scores[fold][number])

    # a loss of .13 beside .1 is too far behind on many rows, and stays on a few
    assert folds_of(800.0) == [(0, 0), (1, 0)]
    assert folds_of(70.0) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    # nine tenths above the least, where 10 % of 800 rows are nine tenths of 89
    scores[0][1] = 0.81
    assert folds_of(90.0) == [(0, 0), (1, 0)]
    assert folds_of(88.0) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_variants_leave_the_work_that_telling_losses_apart_takes() -> None:
    def tried(of_losses: float) -> list[int]:
        race = race_of(n=1, allowed=10.0, judging=lambda one, near: 2.0, fitting=lambda one: 1.0)
        race.vary = lambda one, is_best: [one.changed(f"up to {n}", n_features=n) for n in (500, 600, 700)]
        race.of_losses = lambda one: of_losses
        run(race, lambda number, fold: 0.5 + 0.1 * number)
        return race.tried

    assert tried(0.0) == [0, 1, 2, 3]
    assert tried(4.0) == [0, 1]


def test_beside_another_kernel_than_the_usual_one_random_waves_of_both_are_tried_and_the_usual_one_descends() -> None:
    advice = Advice(dkl.MarginFeatures(dkl.Laplacian(), n_features=40, scaling="standard"))
    kinds = contenders(as_dataset(np.zeros((60, 3))), advice, EFFORTS["balanced"], Knobs())
    waves = {kind.name: kind.learner for kind in kinds if "waves" in kind.name}
    assert list(waves) == ["random waves", "random waves of the Gaussian kernel", "refined waves"]
    # a descent leaves the kernel that it starts from
    assert repr(waves["refined waves"].family) == repr(dkl.Gaussian())
    # the usual kernel is compared with no other
    assert [kind.name for kind in tried_on(np.zeros((60, 3))) if "waves" in kind.name] == [*waves][::2]


def test_the_page_of_the_rule_has_the_numbers_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "examples" / "guide" / "choosing.md").read_text(encoding="utf-8")
    for name, effort in EFFORTS.items():
        budget = f"{effort.work / 1e9:g} s | {effort.work_a_value / 1e3:g} us"
        sizes = f"{effort.n_features:,}, {effort.most_features:,} | {effort.least_judged:,} | {effort.folds}"
        assert f'| `"{name}"` | {budget} | {sizes} | {effort.advised_rows:,} |' in page
    behind = f"larger than the best one's by {1e2 * BEHIND:.0f} %"
    said_so = (f"until {ENOUGH_ROWS} rows have been held out",)
    for said in (behind, *said_so, f"up to {GROWTH:g} times the features"):
        assert said in " ".join(page.split())
