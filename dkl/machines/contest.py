"""The race of candidates: which one is tried next, within a budget of counted work, and which one wins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from sklearn.base import clone

from dkl.linear.judge import ENOUGH_ROWS, PenaltyChoice, gains, mean_over_folds, near_least
from dkl.machines.contenders import Contender
from dkl.machines.effort import MOST_SPENT
from dkl.machines.suggest import GROWTH
from dkl.methods.base import FeatureLearner

# The constants of the rule, which the page of the guide on how the machine chooses (`choosing.md`) explains. Unless a
# comment says otherwise, they were set by hand from splits 0 and 1 of the tables of
# `examples/benchmarks/tables/results.md`.

# Fewest rows for a comparison.
FEWEST_ROWS = 60
# Relative excess of a loss over the least above which a candidate is behind: a kind is given up, a variant is not made
# larger. With fewer held-out rows than ENOUGH_ROWS it is larger in inverse proportion, since one or two of few rows may
# make up most of a loss: with the root of that proportion four of 65 tables had 4 to 164 % more loss, the others the
# same within .1 %.
BEHIND = 0.1
# Share of the budget up to which a learned metric is tried though no other kind is ahead of the kernels: if it is never
# tried then, the log loss of car is 1.6 times as large; if always, five tables take 1.04 times the seconds.
_METRIC_SHARE = 0.1
# Relative difference of losses below which two candidates are equally good: the simpler one wins, and no larger one is
# tried.
EQUAL_LOSS = 0.005
# Largest share of the budget for a comparison outside the trials: of columns with and without categories, and of the
# log loss with the squared error.
SIDE_SHARE = 1.0 - MOST_SPENT


class Ended(Exception):
    """Ends the trials of a race; its text is the phrase for it in the reasons of the machine."""


@dataclass(eq=False)
class Candidate:
    """A contender in a race, and the results of its trials.

    Parameters
    ----------
    number : int
        Kinds come first, the simplest one at 0, and variants after them.
    contender : Contender
    parents : tuple of Candidate
        The candidate that it is a variant of, or the two that it is joined from; empty for a kind.
    choices : list of PenaltyChoice
        The scores of its penalties on each fold so far.
    pilots : list of FeatureLearner
        Its features, learned without each of these folds.
    left_out : {"", "failed", "takes more work", "takes more time", "not among the trials", "needless"}
        Why it is not tried again.
    """

    number: int
    contender: Contender
    parents: tuple[Candidate, ...] = ()
    choices: list[PenaltyChoice] = field(default_factory=list)
    pilots: list[FeatureLearner] = field(default_factory=list)
    left_out: Literal["", "failed", "takes more work", "takes more time", "not among the trials", "needless"] = ""
    # features per bag of a search that ended before it had as many as it was allowed
    found_features: int = 0
    # the best penalty of the parent when this was first tried, so that all folds compare the same penalties
    preferred: PenaltyChoice | None = None

    def loss(self, folds: int | None = None) -> float:
        """The mean loss of the best penalty over the first folds; None is all that it has been scored on."""
        return mean_over_folds(self.choices[:folds]).loss

    def ratio(self, other: Candidate) -> float:
        """Its loss over that of another one, on the folds that both have been scored on."""
        folds = min(len(self.choices), len(other.choices))
        return self.loss(folds) / max(other.loss(folds), np.finfo(float).tiny)

    @property
    def kinds(self) -> set[int]:
        """The numbers of the kinds that it is a variant of; of two or more if it is joined."""
        return set[int]().union(*(parent.kinds for parent in self.parents)) if self.parents else {self.number}

    @property
    def is_grown(self) -> bool:
        """Whether it has more features than the candidate that it is a variant of."""
        size, before = self.contender.size, self.parents[0].contender.size if self.parents else None
        return size is not None and before is not None and size > before

    @property
    def has_other_bandwidth(self) -> bool:
        """Whether it is a kernel with another bandwidth than the one that it is a variant of."""
        factors = [one.contender.given.get("sigma_factor") for one in (self, *self.parents)]
        return len(factors) == 2 and factors[0] != factors[1]

    @property
    def comes_first(self) -> bool:
        """Whether it is a kernel in another bandwidth than its kind, or one that is larger for the first time."""
        if not self.contender.is_kernel or len(self.parents) != 1:
            return False
        (parent,) = self.parents
        return parent.grown_kernel is None if self.is_grown else self.has_other_bandwidth and not parent.parents

    @property
    def grown_kernel(self) -> Candidate | None:
        """The kernel with more landmarks than its parent, among this candidate and its ancestors; None for none."""
        line = [self]
        while line:
            first = line.pop(0)
            if first.contender.is_kernel and first.is_grown:
                return first
            line += first.parents
        return None

    def learned_parts(self, fold: int) -> tuple[FeatureLearner, ...]:
        """The features of the two candidates that it is joined from, if both were learned for this fold; else ().

        None are either where it has fewer features of a kind, as it has of a pinned number of features.
        """
        if len(self.parents) < 2 or any(len(parent.pilots) <= fold for parent in self.parents):
            return ()
        sizes = [part.size for parent in self.parents for part in parent.contender.parts]
        has_all = [part.size for part in self.contender.parts] == sizes
        return tuple(parent.pilots[fold] for parent in self.parents) if has_all else ()

    def with_metric(self, fold: int) -> FeatureLearner | None:
        """The features of its parent whose metric, learned for this fold, it can use too; None for none."""
        if len(self.parents) != 1 or len(self.parents[0].pilots) <= fold:
            return None
        (parent,) = self.parents
        return parent.pilots[fold] if self.contender.shares_metric(parent.contender) else None


@dataclass
class Race:
    """Candidates on held-out rows: all on one fold, those not behind on further folds, then variants of the best.

    The next trial depends on the losses so far and on counted work alone, so that the same rows give the same race on
    any machine. `trials` has the rule of the trials, and `winner_after_growth` that of the winner.

    Parameters
    ----------
    contenders : list of Contender
        The kinds, the simplest first.
    n_folds : int
    allowed : float
        The budget: counted work of all trials and the last fit.
    judging : callable
        Counted work of a trial of a contender; the second argument is whether only penalties near a given one are
        compared.
    fitting : callable
        Counted work of a fit of a contender to all rows.
    vary : callable
        Returns the variants of a contender; the second argument is whether it is the best one.
    join : callable or None
        Combines the features of two contenders; None joins none.
    comparing : callable or None
        Counted work of a trial of a contender whose features are known; the second argument is that of `judging`.
    of_losses : callable or None
        Work to reserve for the log loss on a contender's features, beyond its fit by the squared error.
    judging_rows : float
        Held-out rows of each fold.
    plan : sequence of int or None
        The numbers of the candidates to try, in order, as in `tried` of another race; None for all that the budget
        allows.
    most_landmarks : int
        Most landmarks of a kernel in the last fit; 0 keeps those of the trial.
    enough : float
        The loss at which no variants are tried, because nothing is left to gain.
    spent : float
        Counted work so far.
    constants : tuple of float
        For each fold the mean held-out loss of predicting a constant, by which shown losses are divided; empty where
        losses are shown as they are.

    Attributes
    ----------
    candidates : list of Candidate
        The kinds and, after them, their variants.
    tried : list of int
        The number of the candidate of each trial so far.
    rounds : int
        Folds on which all remaining kinds have been scored.
    ended : str
        Why the trials ended, as a phrase of the reasons.
    why : str
        The error of the first candidate that failed.
    """

    contenders: list[Contender]
    n_folds: int
    allowed: float
    judging: Callable[[Contender, bool], float]
    fitting: Callable[[Contender], float]
    vary: Callable[[Contender, bool], list[Contender]]
    join: Callable[[Contender, Contender], Contender] | None = None
    comparing: Callable[[Contender, bool], float] | None = None
    of_losses: Callable[[Contender], float] | None = None
    judging_rows: float = ENOUGH_ROWS
    plan: Sequence[int] | None = None
    most_landmarks: int = 0
    enough: float = 0.0
    spent: float = 0.0
    constants: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.candidates = [Candidate(number, contender) for number, contender in enumerate(self.contenders)]
        self.tried: list[int] = []
        self.rounds, self.ended, self.why = 1, "", ""

    @property
    def kinds(self) -> list[Candidate]:
        """The candidates that are not variants."""
        return self.candidates[: len(self.contenders)]

    def trials(self) -> Iterator[tuple[Candidate, int]]:
        """The trials in order: every kind on one fold, those not behind on further folds, then variants of the best.

        Yields
        ------
        one : Candidate
            Before the next trial the caller passes the result of this one to `record`, or sets `left_out`.
        fold : int
        """
        try:
            for kind in self.kinds:
                # the first kind is tried at any cost, so that there is a winner
                if kind.number > 0 and self._is_needless(kind):
                    kind.left_out = "needless"
                elif kind.number == 0 or self.affords(kind):
                    yield from self._planned(kind)
                else:
                    kind.left_out = "takes more work"
            for fold in range(1, self.n_folds):
                while waiting := self._waiting(fold):
                    yield from self._planned(waiting[0])
                if waiting is None:
                    break
                self.rounds = fold + 1
            while True:
                yield from self._planned(self._next_variant())
        except Ended as ended:
            is_done = self.plan is not None and len(self.tried) >= len(self.plan)
            self.ended = "as was asked for" if is_done else str(ended)

    def _planned(self, one: Candidate) -> Iterator[tuple[Candidate, int]]:
        """The next trial of a candidate and its fold, unless the plan has another one in its place."""
        if self.plan is not None and len(self.tried) >= len(self.plan):
            raise Ended
        if self.plan is not None and one.number != self.plan[len(self.tried)]:
            one.left_out = "not among the trials"
            return
        if one.parents and not one.choices:
            one.preferred = mean_over_folds(one.parents[0].choices)
        yield one, len(one.choices)

    def _waiting(self, fold: int) -> list[Candidate] | None:
        """The kinds still to be scored on a further fold; None if no further fold is tried.

        All that remain are scored on it, or none is, so that their mean losses are over the same rows.
        """
        alive = self.alive()
        waiting = [kind for kind in alive if len(kind.choices) == fold]
        work = sum(self.trial_work(kind) for kind in waiting)
        is_too_much = any(kind.left_out for kind in waiting) or self.spent + work > MOST_SPENT * self.allowed
        return None if len(alive) < 2 or is_too_much else waiting

    def record(self, one: Candidate, choice: PenaltyChoice | None, pilot: FeatureLearner | None = None) -> None:
        """Store the result of a trial: the scores of all penalties, and the features; None if they cannot be fitted."""
        given = one.contender.given
        most, bags = given.get("n_features"), given.get("bags", 1)
        if pilot is not None and most is not None and not one.contender.is_kernel:
            n_features = pilot.feature_map_.n_features
            if n_features < bags * most:
                one.found_features = max(-(-n_features // bags), one.found_features)
        self.tried.append(one.number)
        self.spent += self.trial_work(one)
        if choice is None or pilot is None:
            one.left_out = "failed"
        else:
            one.choices.append(choice)
            one.pilots.append(pilot)

    def alive(self) -> list[Candidate]:
        """The kinds that are not behind on the folds that all have been scored on."""
        able = [one for one in self.scored() if not one.parents]
        return self._within(able, BEHIND * max(1.0, ENOUGH_ROWS / (self.rounds * self.judging_rows)))

    def scored(self) -> list[Candidate]:
        """The candidates that have been scored on the folds on which all remaining kinds have been."""
        return [one for one in self.candidates if one.left_out != "failed" and len(one.choices) >= self.rounds]

    def loss(self, one: Candidate) -> float:
        """The mean loss of a candidate's best penalty over the folds that all have been scored on."""
        return one.loss(self.rounds)

    def shown_loss(self, one: Candidate, folds: int | None = None) -> float:
        """The mean held-out loss of a candidate, divided by that of the best constant if `constants` are given.

        1 minus it is then R^2: 0 for a candidate that predicts no better than the mean of the held-out targets.
        """
        constant = float(np.mean(self.constants[: folds or len(one.choices)])) if self.constants else 1.0
        # held-out targets that are all equal have no variance to be explained
        return one.loss(folds) / (constant or 1.0)

    def _within(self, able: list[Candidate], share: float, best: Candidate | None = None) -> list[Candidate]:
        """The candidates of `able` whose loss exceeds the least, or that of `best`, by at most this ratio."""
        least = None if best is None else self.loss(best)
        return [able[place] for place in near_least([self.loss(one) for one in able], share, least)]

    @property
    def leader(self) -> Candidate | None:
        """The candidate with the least loss on the folds that all have been scored on; None before the first score."""
        return min(self.scored(), key=self.loss, default=None)

    @property
    def winner(self) -> Candidate:
        """The simplest candidate among those that are as good as the best: the first with the fewest kinds.

        Raises
        ------
        ValueError
            If all candidates failed.
        """
        able = self.scored()
        if self.plan is not None and not self.tried:
            raise ValueError(
                f"trials={list(self.plan)!r} begins with no candidate of these rows: it lists the numbers of "
                f"candidates, from 0 to {len(self.contenders) - 1} and then their variants, in the order in which they "
                "are tried, as reasons_ gives them after a time limit; or leave it out"
            )
        if not able:
            raise ValueError(f"no kind of features could be fitted to these rows. Of the first one: {self.why}")
        return min(self._within(able, EQUAL_LOSS), key=lambda one: len(one.kinds))

    def _is_needless(self, kind: Candidate) -> bool:
        """Whether a kind is skipped because the losses of other kinds show that it would not win.

        A kernel in a learned metric is skipped if its trial takes more than `_METRIC_SHARE` of the budget, and the best
        kernel without a metric has no more loss than the best kind by the share `BEHIND`: a metric gains where columns
        without effect put kernels behind other kinds.
        """
        able, contender = [one for one in self.kinds if one.choices], kind.contender
        if not contender.is_learned or self.judging(contender, False) <= _METRIC_SHARE * self.allowed:
            return False
        of_kernels = [one.loss() for one in able if one.contender.is_kernel]
        return bool(of_kernels) and not gains(min(one.loss() for one in able), min(of_kernels), BEHIND)

    def _next_variant(self) -> Candidate:
        """The next variant to try, on one fold after the other, while its loss is less than the best one's.

        Candidates near the best may only lack features; variants with more are tried.
        """
        if all(one.left_out for one in self.candidates):
            raise Ended(self._why_none_is_left())
        best = self.winner
        if self.loss(best) <= self.enough:
            raise Ended("as there is no loss left")
        found = [
            Candidate(0, contender, (one,))
            for one in (best, *(near for near in self.candidates if self._is_near(near, best)))
            for contender in self.vary(one.contender, one is best)
        ]
        # a search that found fewer features than it was allowed would find no more with a larger limit
        found = [one for one in found if not (one.parents[0].found_features and one.is_grown)]
        # bandwidths are compared before a kernel has more landmarks, where a trial takes least
        found = [one for one in found if not (one.parents[0].grown_kernel and one.has_other_bandwidth)]
        # candidates of other kinds make errors on other rows than the best
        other = self._best_of_other_kinds(best)
        if self.join is not None and other is not None:
            found.insert(0, Candidate(0, self.join(best.contender, other.contender), (best, other)))
        # bandwidths of a kernel and up to a thousand landmarks gain most often, so that they come first, then the join,
        # then the rest
        known = {one.contender.key for one in self.candidates}
        for one in sorted(found, key=_comes_later):
            if one.contender.key not in known:
                known.add(one.contender.key)
                one.number = len(self.candidates)
                self.candidates.append(one)
        for one in sorted(self.candidates[len(self.contenders) :], key=lambda one: not one.comes_first):
            folds = len(one.choices)
            is_behind = folds > 0 and one.loss() >= best.loss(folds)
            # where another bandwidth has gained, one in the other direction would not
            is_opposite = one.parents == best.parents and len(one.parents) == 1 and not (one.is_grown or best.is_grown)
            if one.left_out or folds >= self.rounds or is_behind or is_opposite or self._is_outdone(one):
                continue
            # a candidate cannot win without all folds of the others, and is not started if the budget does not allow
            # these
            if self.affords(one, self.rounds - folds):
                return one
            one.left_out = "takes more work"
        raise Ended(self._why_none_is_left())

    def _is_outdone(self, one: Candidate) -> bool:
        """Whether it is a larger kernel, and with as few landmarks as before another bandwidth is clearly better."""
        if not (one.comes_first and one.is_grown):
            return False
        rivals = [each for each in self.candidates if each.parents == one.parents and each.has_other_bandwidth]
        return any(each.choices and gains(each.ratio(one.parents[0]), 1.0, EQUAL_LOSS) for each in rivals)

    def _why_none_is_left(self) -> str:
        """The phrase for a race in which no further candidate can be tried."""
        if self.plan is not None:
            return "as no further candidate of these rows is among the given trials"
        is_short = any(one.left_out == "takes more work" for one in self.candidates)
        return "as the effort allows no more" if is_short else "as held-out rows gain no more"

    def _is_near(self, one: Candidate, best: Candidate) -> bool:
        """Whether a candidate may overtake the best with more features, by its loss on its own folds so far.

        It is near the least and, for a variant, clearly below that of its parents. Kernels gain most with more
        landmarks, so that one may be farther behind; they keep their order, so that only the best of them is near.
        """
        folds = len(one.choices)
        if one is best or one.left_out == "failed" or not folds:
            return False
        if not all(gains(one.loss(), parent.loss(folds), EQUAL_LOSS) for parent in one.parents):
            return False
        behind = BEHIND
        if one.contender.is_kernel and not one.parents:
            kernels = [kind for kind in self.kinds if kind.contender.is_kernel and kind.choices]
            if any(kernel.ratio(one) < 1.0 for kernel in kernels):
                return False
            behind *= GROWTH
        return one.loss() <= (1.0 + behind) * best.loss(folds)

    def _best_of_other_kinds(self, best: Candidate) -> Candidate | None:
        """The candidate with the least loss among kinds that the best does not contain."""
        kinds = best.kinds
        # kernels with and without a learned metric make errors on the same rows, as do waves, drawn or searched
        kernels = {kind.number for kind in self.kinds if kind.contender.is_kernel}
        waves = {kind.number for kind in self.kinds if kind.contender.is_searched or kind.contender.is_drawn}
        kinds = kinds.union(*(alike for alike in (kernels, waves) if kinds & alike))
        others = [one for one in self.candidates if one.left_out != "failed" and one.choices and not one.kinds & kinds]
        return min(others, key=lambda one: one.ratio(best), default=None)

    def affords(self, one: Candidate, n_trials: int = 1) -> bool:
        """Whether a number of trials of a candidate, and its last fit if it wins, are within the budget."""
        last_work = self.fitting(one.contender)
        if one.parents:
            # Nothing is reserved for more landmarks before the first variant, nor by a kernel near the best that has
            # not yet been tried with a thousand landmarks.
            has_varied = max(self.tried, default=0) >= len(self.contenders)
            if has_varied and not one.comes_first and self.winner.grown_kernel is not None:
                last = self.fitting(self.winner.contender.with_landmarks(self.most_landmarks))
                last_work = max(last_work, min(MOST_SPENT * self.allowed, last))
            if self.of_losses is not None:
                able = [one.contender, self.winner.contender]
                last_work = max(last_work, *(self.fitting(each) + self.of_losses(each) for each in able))
        first = len(one.choices)
        trials = sum(self.trial_work(one, fold) for fold in range(first, first + n_trials))
        return self.spent + trials + last_work <= self.allowed

    def trial_work(self, one: Candidate, fold: int | None = None) -> float:
        """The counted work of a candidate's next trial, or of its trial on `fold`."""
        contender, fold = one.contender, len(one.choices) if fold is None else fold
        # features that use no target are the same for all folds
        is_known = one.learned_parts(fold) or (one.pilots and not contender.learner._supervised)
        if self.comparing is not None and is_known:
            return self.comparing(contender, bool(one.parents))
        if one.with_metric(fold) is not None:
            contender = Contender("", clone(contender.learner).set_params(metric=None))
        if one.found_features:
            # a search that ends early is counted with the features that it found
            contender = Contender("", clone(contender.learner).set_params(n_features=one.found_features))
        return self.judging(contender, bool(one.parents))

    def most_trials(self) -> int:
        """An upper bound on the trials, past ones included: each further one takes the work of the cheapest."""
        if self.plan is not None:
            return len(self.plan)
        waiting = self.alive() if all(kind.choices or kind.left_out for kind in self.kinds) else self.candidates
        works = [self.trial_work(one) for one in waiting if one.left_out != "failed"]
        left = max(self.allowed - self.spent, 0.0)
        return len(self.tried) + int(left / max(min(works, default=np.inf), 1.0))

    def winner_after_growth(self) -> tuple[Candidate, Contender | None, float]:
        """The winner, its version with the most landmarks that the budget allows, and its expected loss over its loss.

        Candidates near the best are compared by the expected loss after the last fit: if a kernel, alone or joined, was
        tried with fewer and with more landmarks, each further multiple of these is expected to reduce the loss by a
        similar factor. The second value is None and the third 1 if no more landmarks are possible or expected to gain.
        """
        best = self.winner
        near = self._within(self.scored(), BEHIND, best)
        ends = {one: self.end_of(one) for one in (best, *near)}
        growing = [one for one in near if ends[one][1] is not None]
        won = min((best, *growing), key=lambda one: ends[one][0])
        # the best so far wins unless another one is expected to be clearly better
        won = won if gains(ends[won][0], ends[best][0], EQUAL_LOSS) else best
        return won, ends[won][1], ends[won][0] / max(self.loss(won), np.finfo(float).tiny)

    def end_of(self, one: Candidate) -> tuple[float, Contender | None]:
        """The expected loss of a candidate after the last fit, and its version with more landmarks or None."""
        loss, pair = self.loss(one), self._fewer_landmarks(one)
        if pair is None:
            return loss, None
        larger, fewer = pair
        size = larger.contender.landmarks
        factor = size / fewer.contender.landmarks
        end = self.largest(one.contender, size)
        if end is None:
            return loss, None
        expected = loss * larger.ratio(fewer) ** (np.log(end.landmarks / size) / np.log(factor))
        return (expected, end) if gains(expected, loss, EQUAL_LOSS) else (loss, None)

    def _fewer_landmarks(self, one: Candidate) -> tuple[Candidate, Candidate] | None:
        """Two candidates that differ in landmarks only, the larger first; None for no pair.

        The ratio of their losses shows the gain from landmarks. For a joined candidate the second is the same with
        fewer landmarks, if that was tried; else the pair is of its kernel alone, which gains more than the joined
        candidate.
        """
        grown = one.grown_kernel
        if grown is None:
            return None
        own, size = one.contender.with_landmarks(1).key, one.contender.landmarks
        same = {
            other.contender.landmarks: other
            for other in self.candidates
            if other.choices and other.contender.has_kernel and other.contender.with_landmarks(1).key == own
        }
        if max(same) > size:
            # a larger one was tried, so that its loss needs no forecast
            return None
        smaller = [landmarks for landmarks in same if landmarks < size]
        return (one, same[max(smaller)]) if smaller else (grown, grown.parents[0])

    def largest(self, contender: Contender, size: int) -> Contender | None:
        """A candidate with as many landmarks above `size` as a fit within the budget allows; None for no more."""

        def is_too_much(landmarks: int) -> bool:
            return self.spent + self.fitting(contender.with_landmarks(landmarks)) > self.allowed

        more = bisect_left(range(size + 1, self.most_landmarks + 1), True, key=is_too_much)
        return contender.with_landmarks(size + more) if more else None


def _comes_later(one: Candidate) -> int:
    """Sort key of new variants: bandwidths of a kernel, its larger version, the joined candidate, and then the rest."""
    if one.comes_first:
        return int(one.is_grown)
    return 2 if len(one.parents) > 1 else 3
