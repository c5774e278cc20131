"""The race of candidates: which one is tried next, within a budget of counted work, and which one wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice

import numpy as np
from sklearn.base import clone

from dkl.linear.judge import PenaltyChoice, agreed, gains, near_least
from dkl.machines.contenders import (
    Contender,
    has_kernel,
    is_drawn,
    is_kernel,
    is_learned,
    is_searched,
    landmarks_of,
    shares_metric,
    with_known_metric,
    with_landmarks,
)
from dkl.progress import short_score

# The constants of the rule, in the order in which the page of the guide on how the machine chooses explains them. They
# were set by hand from splits 0 and 1 of the tables of `examples/benchmarks/tables/results.md`.

# Share of the sample that is held out for each trial (with few rows, for each of five folds); fewest rows for a
# comparison.
JUDGING_SHARE, FEWEST_ROWS = 0.2, 60
# Relative excess of a kind's held-out loss over the least, after one fold, two, and more, above which the kind is given
# up. From ENOUGH_ROWS held-out rows on they are constant; for fewer they grow like the standard error of a loss; below
# _FEWEST_JUDGED no kind is given up.
BEHIND, ENOUGH_ROWS, _FEWEST_JUDGED = (0.15, 0.05, 0.02), 800, 100
# Relative difference of losses below which two candidates are equally good: the plainer one wins, and no larger one is
# tried.
_EQUAL_LOSS = 0.005
# Largest relative excess of the loss of a kernel, and of another candidate, over the least at which larger variants are
# tried: kernels gain from more features for longer.
_NEAR_KERNEL, _NEAR = 0.25, 0.03
# Largest relative excess of the loss of another kind at which it is joined with the best; most joined candidates.
_NEAR_TO_JOIN, MOST_JOINED = 0.5, 4
# Number of candidates near the winner that are compared with it by the log loss.
RIVALS = 3
# Shares of the budget: for a trial that counts as cheap; largest share spent after trials on further folds; and share
# kept for the last fit once a kernel has gained from more landmarks.
_CHEAP, MOST_SPENT, _RESERVED = 0.1, 0.8, 0.55
# Landmarks up to which larger kernels, and their bandwidths, are tried before all other variants.
LARGE_KERNEL = 1_000
# Factor by which the landmarks of the last fit grow while the budget allows it; expected gain of a further multiple of
# the landmarks, relative to the gain of the last multiple.
_LAST_GROWTH, _LASTING_GAIN = 1.1, 0.7


@dataclass(frozen=True)
class Tried:
    """The score of a candidate on held-out rows.

    Parameters
    ----------
    name : str
        The name that the reasons use.
    score : float or None
        1 minus the mean loss on the held-out rows; None if it was not tried, or failed.
    folds : int
        Number of folds that it was scored on.
    outcome : {"chosen", "level, less plain", "worse", "failed", "takes more work"}
        "level, less plain": its loss is at most that of the chosen one, which is plainer or expected to gain from more
        landmarks.
    """

    name: str
    score: float | None
    folds: int
    outcome: str


@dataclass
class Race:
    """Candidates on held-out rows: all on one fold, those not behind on further folds, then variants of the best.

    The next trial depends on the losses so far and on counted work alone, so that the same rows give the same race on
    any machine. `next` returns a trial, `record` takes its result, `settled` returns the winner.

    Parameters
    ----------
    contenders : list of Contender
        The plainest first; variants are appended.
    n_folds : int
    allowed : float
        The budget: counted work of all trials and the last fit.
    judging, fitting : callable
        Counted work of a trial of a candidate, and of its fit to all rows.
    vary : callable
        Returns the variants of a candidate; the second argument is whether it is the best one.
    join : callable or None
        Combines the features of two candidates; None joins none.
    joining : callable or None
        Counted work of a trial of joined candidates if the features of both have been learned for that fold.
    of_losses : callable or None
        Work to reserve for comparing the log loss on a candidate's features, on a number of folds.
    judging_rows : float
        Held-out rows of each fold.
    plan : sequence of int or None
        The numbers of the candidates to try, in order, as in `tried` of another race; None for all that the budget
        allows.
    most_landmarks : int
        Most landmarks of a kernel in the last fit; 0 keeps those of the trial.
    enough : float
        The loss at which no variants are tried, because nothing is left to gain.
    choices : list of list of PenaltyChoice
        For each candidate the scores of its penalties on each fold so far.
    failed : set of int
        Candidates that could not be fitted.
    spent : float
        Counted work so far.
    tried : list of int
        The candidate of each trial so far.
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
    judging: Callable[[Contender], float]
    fitting: Callable[[Contender], float]
    vary: Callable[[Contender, bool], list[Contender]]
    join: Callable[[Contender, Contender], Contender] | None = None
    joining: Callable[[Contender], float] | None = None
    of_losses: Callable[[Contender, int], float] | None = None
    judging_rows: float = ENOUGH_ROWS
    plan: Sequence[int] | None = None
    most_landmarks: int = 0
    enough: float = 0.0
    choices: list[list[PenaltyChoice]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    spent: float = 0.0
    tried: list[int] = field(default_factory=list)
    rounds: int = 0
    ended: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        self.choices = [[] for _ in self.contenders]
        self._kinds = len(self.contenders)
        self._too_long: set[int] = set()
        # features per bag that a search found, for searches that ended early
        self._found_features: dict[int, int] = {}
        self._needless: set[int] = set()
        self._preferred: dict[int, PenaltyChoice] = {}
        self._parents: dict[int, tuple[int, ...]] = {}

    def next(self) -> tuple[int, int] | None:
        """The candidate and the fold of the next trial; None if there is none."""
        if self.plan is not None and len(self.tried) >= len(self.plan):
            # updates `rounds` for the folds that the last trial completed
            self._next_trial()
            self.ended = "as was asked for"
            return None
        while (trial := self._next_trial()) is not None:
            if self.plan is None or trial[0] == self.plan[len(self.tried)]:
                return trial
            self.leave_out(trial[0])
        return None

    def leave_out(self, number: int) -> None:
        """Never try a candidate again, because it takes too long."""
        self._too_long.add(number)

    def _next_trial(self) -> tuple[int, int] | None:
        """The next trial, a candidate's number and a fold, from the losses and the counted work; None at the end.

        Each kind is tried on the first fold, those that are not behind on further folds, and then variants of the best.
        """
        # the first kind is tried at any cost, so that there is a winner
        left_out = self.failed | self._too_long | self._needless
        for number in [one for one in range(self._kinds) if one not in left_out and not self.choices[one]]:
            if number > 0 and self._is_needless(self.contenders[number]):
                self._needless.add(number)
            elif number == 0 or self.affords(number):
                return number, 0
            else:
                self._too_long.add(number)
        self.rounds = max(self.rounds, 1)
        for fold in range(self.rounds, self.n_folds):
            alive = self.alive()
            waiting = [number for number in alive if len(self.choices[number]) == fold]
            further_work = sum(self.trial_work(number) for number in waiting)
            # all that remain are scored on a further fold, or none is, so that their mean losses are over the same rows
            if len(alive) < 2 or self._too_long & set(waiting) or self.spent + further_work > MOST_SPENT * self.allowed:
                break
            if waiting:
                return waiting[0], fold
            self.rounds = fold + 1
        return self._next_variant()

    def record(self, number: int, choice: PenaltyChoice | None, n_features: int | None = None) -> None:
        """Store the result of a trial.

        Parameters
        ----------
        number : int
            Number of the candidate.
        choice : PenaltyChoice or None
            None if the features could not be fitted.
        n_features : int or None
            Number of learned features, as a search may find fewer than it was allowed.
        """
        contender = self.contenders[number]
        given = contender.learner.get_params(deep=False)
        most, bags = given.get("n_features"), given.get("bags", 1)
        if n_features is not None and most is not None and n_features < bags * most and not is_kernel(contender):
            self._found_features[number] = max(-(-n_features // bags), self._found_features.get(number, 0))
        self.tried.append(number)
        self.spent += self.trial_work(number)
        if choice is None:
            self.failed.add(number)
        else:
            self.choices[number].append(choice)

    def alive(self) -> list[int]:
        """The kinds that are not behind on the folds that all have been scored on."""
        behind = BEHIND[min(self.rounds, len(BEHIND)) - 1]
        behind *= max(1.0, np.sqrt(ENOUGH_ROWS / self.judging_rows))
        able = [number for number in self._with_folds(self.rounds) if number < self._kinds]
        return able if self.rounds * self.judging_rows < _FEWEST_JUDGED else self._within(able, behind)

    def _with_folds(self, folds: int) -> list[int]:
        """The candidates that have been scored on at least `folds` folds."""
        return [n for n, done in enumerate(self.choices) if n not in self.failed and len(done) >= folds]

    def loss(self, number: int) -> float:
        """The mean loss of a candidate's best penalty over the folds that all have been scored on."""
        return agreed(self.choices[number][: self.rounds]).loss

    def _within(self, able: list[int], share: float, best: int | None = None) -> list[int]:
        """The candidates of `able` whose loss exceeds the least, or that of `best`, by at most this ratio."""
        least = None if best is None else self.loss(best)
        return [able[place] for place in near_least([self.loss(number) for number in able], share, least)]

    def shown_score(self, number: int) -> float:
        """The score in the summary: the accuracy on held-out rows, for numbers 1 minus the loss."""
        done = self.choices[number]
        accuracy = agreed(done[: self.rounds] or done).accuracy
        return 1.0 - _loss_of(done) if accuracy is None else accuracy

    @property
    def leader(self) -> int | None:
        """The candidate with the least loss on the folds that all have been scored on; None before the first score."""
        rounds = max(self.rounds, 1)
        return min(self._with_folds(rounds), key=lambda number: _loss_of(self.choices[number][:rounds]), default=None)

    def most_trials(self) -> int:
        """An upper bound on the trials, past ones included: each further one takes the work of the cheapest."""
        if self.plan is not None:
            return len(self.plan)
        waiting = self.alive() if self.rounds else range(len(self.contenders))
        works = [self.trial_work(number) for number in waiting if number not in self.failed]
        left = max(self.allowed - self.spent, 0.0)
        return len(self.tried) + int(left / max(min(works, default=np.inf), 1.0))

    def settled(self) -> tuple[int, Contender | None, float]:
        """The winner, its version with the most landmarks that the budget allows, and its expected loss over its loss.

        Candidates near the best are compared by the expected loss after the last fit: if a kernel, alone or joined, was
        tried with fewer and with more landmarks, each further multiple of these is expected to reduce the loss by a
        similar factor. The second value is None and the third 1 if no more landmarks are possible or expected to gain.
        """
        best = self.winner
        near = self._within(self._with_folds(self.rounds), BEHIND[1], best)
        ends = {number: self.end_of(number) for number in (best, *near)}
        growing = [number for number in near if ends[number][1] is not None]
        won = min((best, *growing), key=lambda number: ends[number][0])
        # the best so far wins unless another one is expected to be clearly better
        won = won if gains(ends[won][0], ends[best][0], _EQUAL_LOSS) else best
        return won, ends[won][1], ends[won][0] / max(self.loss(won), np.finfo(float).tiny)

    def rivals(self, won: int) -> list[int]:
        """The candidates whose loss is near the winner's, nearest first: one of them may have the least log loss."""
        able = [number for number in self._with_folds(self.rounds) if number != won]
        return sorted(self._within(able, BEHIND[0], won), key=self.loss)[:RIVALS]

    def end_of(self, number: int) -> tuple[float, Contender | None]:
        """The expected loss of a candidate after the last fit, and its version with more landmarks or None."""
        loss, pair = self.loss(number), self._fewer_landmarks(number)
        if pair is None:
            return loss, None
        (larger, size), (fewer, smaller) = pair
        end = self.largest(self.contenders[number], size)
        n_folds = min(len(self.choices[larger]), len(self.choices[fewer]))
        share = _loss_of(self.choices[larger][:n_folds]) / max(
            _loss_of(self.choices[fewer][:n_folds]), np.finfo(float).tiny
        )
        if end is None:
            return loss, None
        expected = loss * share ** (_LASTING_GAIN * np.log(landmarks_of(end) / size) / np.log(size / smaller))
        return (expected, end) if gains(expected, loss, _EQUAL_LOSS) else (loss, None)

    def _fewer_landmarks(self, number: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Two candidates that differ in landmarks only, with their landmarks, the larger first; None for no pair.

        The ratio of their losses shows the gain from landmarks. For a joined candidate the second is the same with
        fewer landmarks, if that was tried; else the pair is of its kernel alone, which gains more than the joined
        candidate.
        """
        grown = self._grown_kernel(number)
        if grown is None:
            return None
        own, size = with_landmarks(self.contenders[number], 1).key, landmarks_of(self.contenders[number])
        fewer = {
            landmarks_of(contender): one
            for one, contender in enumerate(self.contenders)
            if self.choices[one] and has_kernel(contender) and with_landmarks(contender, 1).key == own
        }
        if max(fewer) > size:
            # a larger one was tried, so that its loss needs no forecast
            return None
        if smaller := [landmarks for landmarks in fewer if landmarks < size]:
            return (number, size), (fewer[max(smaller)], max(smaller))
        parent = self._parents[grown][0]
        return (grown, landmarks_of(self.contenders[grown])), (parent, landmarks_of(self.contenders[parent]))

    def largest(self, contender: Contender, size: int) -> Contender | None:
        """A candidate with as many landmarks above `size` as a fit within the budget allows; None for no more."""
        found = None
        while (larger := min(int(_LAST_GROWTH * size), self.most_landmarks)) > size:
            grown = with_landmarks(contender, larger)
            if self.spent + self.fitting(grown) > self.allowed:
                break
            found, size = grown, larger
        return found

    def reachable(self) -> list[Contender]:
        """Every candidate that trials can reach within the budget, for any losses; plans count these."""

        def affordable(contender: Contender) -> bool:
            return self.judging(contender) + self.fitting(contender) <= self.allowed

        # the first kind is tried at any cost
        first, *others = self.contenders
        known = {contender.key: contender for contender in (first, *filter(affordable, others))}
        waiting = list(known.values())
        while waiting:
            for contender in self.vary(waiting.pop(), True):
                factor = contender.learner.get_params(deep=False).get("sigma_factor", 1.0)
                fits = affordable(contender) and 0.1 < factor < 10.0
                if fits and contender.key not in known:
                    known[contender.key] = contender
                    waiting.append(contender)
        if self.join is None:
            return list(known.values())
        # the costliest pairs represent all
        costliest = sorted(known.values(), key=lambda contender: self.fitting(contender))[::-1]
        pairs = (self.join(first, second) for second in costliest for first in costliest)
        return [*known.values(), *islice(filter(affordable, pairs), MOST_JOINED)]

    def grown(self, contenders: Sequence[Contender]) -> list[Contender]:
        """The candidates that have kernels, with the most landmarks that the last fit may use."""
        return [self.largest(one, 1) or one for one in contenders if has_kernel(one)]

    @property
    def winner(self) -> int:
        """The plainest candidate among those that are as good as the best.

        Raises
        ------
        ValueError
            If all candidates failed.
        """
        self.rounds = max(self.rounds, 1)
        if not (able := self._with_folds(self.rounds)):
            raise ValueError(f"no kind of features could be fitted to these rows. Of the first one: {self.why}")
        return self._within(able, _EQUAL_LOSS)[0]

    def _next_variant(self) -> tuple[int, int] | None:
        """The next trial of a variant: on one fold after the other, while its loss is less than the best one's.

        Candidates near the best may only lack features; variants with more are tried.
        """
        if len(self.failed | self._too_long | self._needless) == len(self.contenders):
            return None
        best = self.winner
        if self.loss(best) <= self.enough:
            self.ended = "as there is no loss left"
            return None
        known = {contender.key for contender in self.contenders}
        near = [number for number in range(len(self.contenders)) if self._is_near(number, best)]
        found: list[tuple[Contender, tuple[int, ...]]] = [
            (contender, (number,))
            for number in (best, *near)
            for contender in self.vary(self.contenders[number], number == best)
        ]
        # a search that found fewer features than it was allowed would find no more with a larger limit
        found = [one for one in found if one[1][0] not in self._found_features or not self._grows_from(*one)]
        # up to a thousand landmarks gain most often, so that they come first, then the joined candidate, then the rest
        comes_first = [self._comes_first(*one) for one in found]
        found = [*compress(found, comes_first), *compress(found, [not one for one in comes_first])]
        # candidates of other kinds make errors on other rows than the best
        other = self._best_of_other_kinds(best)
        n_joined = sum(len(self._kinds_in(number)) > 1 for number in self._parents)
        if self.join is not None and other is not None and n_joined < MOST_JOINED:
            joined_pair = self.join(self.contenders[best], self.contenders[other])
            found.insert(sum(comes_first), (joined_pair, (best, other)))
        for contender, parents in found:
            if contender.key not in known:
                known.add(contender.key)
                self._parents[len(self.contenders)] = parents
                self.contenders.append(contender)
                self.choices.append([])
        for number in sorted(self._parents, key=self._comes_later):
            done = self.choices[number]
            if number in self.failed or number in self._too_long or len(done) >= self.rounds:
                continue
            if done and _loss_of(done) >= _loss_of(self.choices[best][: len(done)]):
                # not better on the folds so far
                continue
            # a candidate cannot win without all folds of the others, and is not started if the budget does not allow
            # these
            if self.affords(number, self.rounds - len(done)):
                return number, len(done)
            self._too_long.add(number)
        self.ended = "as the effort allows no more" if self._too_long else "as held-out rows gain no more"
        return None

    def _kinds_in(self, number: int) -> set[int]:
        """The numbers of the kinds that a candidate is a variant of; of two or more if it is joined."""
        parents = self._parents.get(number, ())
        return set[int]().union(*map(self._kinds_in, parents)) if parents else {number}

    def _best_of_other_kinds(self, best: int) -> int | None:
        """The candidate with the least loss among kinds that the best does not contain; None if none is near enough."""
        kinds = self._kinds_in(best)
        if any(is_kernel(self.contenders[kind]) for kind in kinds):
            # kernels with and without a learned metric make errors on the same rows
            kinds = kinds | {kind for kind in range(self._kinds) if is_kernel(self.contenders[kind])}
        others = [
            number
            for number in range(len(self.contenders))
            if number not in self.failed and self.choices[number] and not self._kinds_in(number) & kinds
        ]
        able = [number for number in others if self._ratio(number, best) <= 1.0 + _NEAR_TO_JOIN]
        return min(able, key=lambda number: self._ratio(number, best), default=None)

    def _ratio(self, number: int, best: int) -> float:
        """A candidate's loss over that of the best, on the folds that both have been scored on."""
        n_folds = min(len(self.choices[number]), len(self.choices[best]))
        return _loss_of(self.choices[number][:n_folds]) / max(
            _loss_of(self.choices[best][:n_folds]), np.finfo(float).tiny
        )

    def _is_near(self, number: int, best: int) -> bool:
        """Whether a candidate's loss is near the least and, for a variant, clearly below that of its parents.

        Compares them on the folds that the candidate has been scored on.
        """
        done, parents = self.choices[number], self._parents.get(number, ())
        if number == best or number in self.failed or not done:
            return False
        if not all(
            gains(_loss_of(done), _loss_of(self.choices[parent][: len(done)]), _EQUAL_LOSS) for parent in parents
        ):
            return False
        near = _NEAR_KERNEL if is_kernel(self.contenders[number]) else _NEAR
        return _loss_of(done) <= (1.0 + near) * _loss_of(self.choices[best][: len(done)])

    def _is_needless(self, contender: Contender) -> bool:
        """Whether a kind is skipped because the losses of other kinds show that it would not win.

        They do for searched waves of a kernel whose random waves do worse than those of another kernel; and for a
        kernel in a learned metric that takes more than a small share of the budget, where no other kind is clearly
        ahead of the kernels of all columns alike.
        """
        losses = {one: _loss_of(self.choices[one]) for one in range(self._kinds) if self.choices[one]}
        if is_searched(contender):
            drawn = {one: loss for one, loss in losses.items() if is_drawn(self.contenders[one])}
            best = self.contenders[min(drawn, key=lambda one: drawn[one])] if len(drawn) > 1 else contender
            return repr(best.learner.family) != repr(contender.learner.family)
        if not is_learned(contender) or self.judging(contender) <= _CHEAP * self.allowed:
            return False
        of_kernels = [loss for one, loss in losses.items() if is_kernel(self.contenders[one])]
        return bool(of_kernels) and not gains(min(losses.values()), min(of_kernels), BEHIND[1])

    def _grows_from(self, contender: Contender, parents: tuple[int, ...]) -> bool:
        """Whether it has more features than the candidate that it is a variant of."""
        ours = (contender, *(self.contenders[parent] for parent in parents[:1]))
        sizes = [one.learner.get_params(deep=False).get("n_features") for one in ours]
        size, size_before = sizes[0], sizes[-1]
        return size is not None and size_before is not None and size > size_before

    def _comes_first(self, contender: Contender, parents: tuple[int, ...]) -> bool:
        """Whether it is a kernel with more landmarks than its parent, a thousand at most, or a bandwidth there."""
        if not is_kernel(contender) or len(parents) != 1:
            return False
        size = int(contender.learner.get_params(deep=False)["n_features"])
        return size == LARGE_KERNEL or (size < LARGE_KERNEL and self._grows_from(contender, parents))

    def _comes_later(self, number: int) -> bool:
        """Sort key of variants, before their numbers: those that come first have False."""
        return not self._comes_first(self.contenders[number], self._parents.get(number, ()))

    def _grown_kernel(self, number: int) -> int | None:
        """The kernel with more landmarks than its parent, among a candidate and its ancestors; None for none."""
        line = [number]
        while line:
            first = line.pop(0)
            parents, contender = self._parents.get(first, ()), self.contenders[first]
            if parents and is_kernel(contender) and self._grows_from(contender, parents):
                return first
            line += parents
        return None

    def affords(self, number: int, n_trials: int = 1) -> bool:
        """Whether a number of trials of a candidate, and its last fit if it wins, are within the budget."""
        last_work = self.fitting(self.contenders[number])
        # Nothing is reserved for more landmarks before the first variant, nor by a kernel near the best that has not
        # yet been tried with a thousand landmarks.
        reserves = max(self.tried, default=0) >= self._kinds and self._comes_later(number)
        if reserves and self._grown_kernel(best := self.winner) is not None:
            last = self.fitting(with_landmarks(self.contenders[best], self.most_landmarks))
            last_work = max(last_work, min(_RESERVED * self.allowed, last))
        if self.of_losses is not None and number >= self._kinds:
            able = [self.contenders[one] for one in (number, self.winner)]
            last_work = max(last_work, *(self.fitting(one) + self.of_losses(one, self.rounds) for one in able))
        first = len(self.choices[number])
        trials = sum(self.trial_work(number, fold) for fold in range(first, first + n_trials))
        return self.spent + trials + last_work <= self.allowed

    def joined_of(self, number: int, fold: int) -> tuple[int, ...]:
        """The two candidates that one is joined from, if both have learned their features for this fold; else ()."""
        parents = self._parents.get(number, ())
        are_learned = len(parents) > 1 and all(len(self.choices[parent]) > fold for parent in parents)
        return parents if are_learned else ()

    def metric_of(self, number: int, fold: int) -> int | None:
        """The candidate whose metric, learned for this fold, this one can use too; None for none."""
        parents = self._parents.get(number, ())
        if len(parents) != 1 or len(self.choices[parents[0]]) <= fold:
            return None
        return parents[0] if shares_metric(self.contenders[number], self.contenders[parents[0]]) else None

    def trial_work(self, number: int, fold: int | None = None) -> float:
        """The counted work of a candidate's next trial, or of its trial on `fold`."""
        contender, fold = self.contenders[number], len(self.choices[number]) if fold is None else fold
        if self.joining is not None and self.joined_of(number, fold):
            return self.joining(contender)
        if self.metric_of(number, fold) is not None:
            contender = with_known_metric(contender)
        if number in self._found_features:
            # a search that ends early is counted with the features that it found
            contender = Contender("", clone(contender.learner).set_params(n_features=self._found_features[number]))
        return self.judging(contender)

    def preferred(self, number: int) -> PenaltyChoice | None:
        """The best penalty of a variant's parent at the variant's first trial; None for a kind.

        It does not change later, so that all folds compare the same penalties.
        """
        choices = [self.choices[parent] for parent in self._parents.get(number, ()) if self.choices[parent]]
        if choices:
            self._preferred.setdefault(number, agreed(choices[0]))
        return self._preferred.get(number)

    def table(self, won: int | None = None) -> tuple[Tried, ...]:
        """Every candidate that was tried, or left out for its work: the chosen one first, then by score."""
        won, rows = self.winner if won is None else won, []
        for number, contender in enumerate(self.contenders):
            done = self.choices[number]
            if done:
                level = self._ratio(number, won) <= 1.0
                outcome = "chosen" if number == won else "level, less plain" if level else "worse"
                rows.append(Tried(contender.name, 1.0 - _loss_of(done), len(done), outcome))
            elif number in self.failed or number in self._too_long:
                rows.append(Tried(contender.name, None, 0, "failed" if number in self.failed else "takes more work"))
        return tuple(sorted(rows, key=lambda row: (row.outcome != "chosen", row.score is None, -(row.score or 0.0))))

    def reasons(
        self, judged_rows: int, won: int | None = None, grown: Contender | None = None, *, measure: str
    ) -> tuple[str, ...]:
        """Sentences on the winner, the scores of others, why the trials ended, and the landmarks of the last fit."""
        won = self.winner if won is None else won
        highest = "the best score" if won == self.winner else "nearly the best score, and gain with more landmarks,"
        others = ", ".join(
            f"{contender.name} {self._score_text(number)}"
            for number, contender in enumerate(self.contenders)
            if number != won and (self.choices[number] or number in self.failed)
        )
        untried = [self.contenders[number].name for number in sorted(self._too_long) if not self.choices[number]]
        more = f"; not tried, since that takes more work: {', '.join(untried)}" if untried else ""
        last = () if grown is None else (f"Fit: {grown.name}, since more landmarks gained and there was work left.",)
        folds = f" in {self.rounds} folds" if self.rounds > 1 else ""
        best = 1.0 - self.loss(won)
        return (
            f"Features: {self.contenders[won].name}, which have {highest} on held-out rows, {best:.4f}"
            f"{'; also tried: ' + others if others else ''} "
            f"({measure}, of the same linear model, on {judged_rows:,} rows{folds}{more}).",
            f"Choice: ended after {len(self.tried)} trials, {self.ended}.",
            *last,
        )

    def sentence(self, won: int, grown: Contender | None, measure: str, stopped: str = "") -> str:
        """The winner, its score on held-out rows, and the next best on the same rows, in one sentence."""
        name = re.sub(r" \([^()]*\)", "", (grown or self.contenders[won]).name)
        able = [number for number in self._with_folds(self.rounds) if number != won]
        n_tried = sum(bool(done) for done in self.choices)
        if able:
            second = min(able, key=self.loss)
            score, own = self.shown_score(second), self.shown_score(won)
            # candidates are compared by their loss, which is more precise than their accuracy
            which = "next best by its loss" if score > own and self.loss(second) > self.loss(won) else "next best"
            if self.loss(second) <= self.loss(won):
                # the plainer one of two equally good candidates wins
                which = "level with"
            compared = f"{which} {short_score(score)} of {n_tried} tried"
        else:
            compared = f"{n_tried} tried"
        return f"Chose {name}: {measure} {short_score(self.shown_score(won))} on held-out rows ({compared}{stopped})."

    def _score_text(self, number: int) -> str:
        """The score of a candidate on the folds that it has been scored on."""
        done = self.choices[number]
        # scores of different folds are not comparable: folds differ by more than candidates do
        fewer = f" in the first {len(done)}" if len(done) < self.rounds else ""
        return "failed" if number in self.failed or not done else f"{1.0 - _loss_of(done):.4f}{fewer}"


def _loss_of(done: Sequence[PenaltyChoice]) -> float:
    return agreed(done).loss
