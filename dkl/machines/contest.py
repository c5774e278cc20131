"""Which features a machine without settings takes: kinds of them race on held-out rows, then variants of the best."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from sklearn.base import clone

from dkl.linear.judge import PenaltyChoice, agreed, gains, level_with_best
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

# The share of the sample that judges and that features do not see; of few rows five such shares judge in turn.
JUDGING_SHARE = 0.2
# Below so many rows no share of them could tell kinds of features apart.
FEWEST_ROWS = 60
# A metric is learned where another kind is ahead of kernels of all columns alike by this share of their loss, or where
# a trial takes no more than so much of the work.
_AHEAD_OF_KERNELS, _CHEAP = 0.05, 0.1
# Of kinds whose losses differ by less than this share the plainer one is taken, and no larger one is tried for less.
_LEVEL = 0.005
# A kernel that gains with more landmarks does so until each row is one: in the end it has as many, by steps of so much,
# as there is work left for.
_LAST_GROWTH = 1.1
# As soon as one has gained, so much of the work is kept for these.
_KEPT = 0.55
# Of the share of its loss that a kernel lost by more landmarks, so much is expected of still more.
_LASTING = 0.7
# Of a kernel so many landmarks, and bandwidths with them, are tried before anything else.
_FEW_LANDMARKS = 1_000
# Contenders that one is joined from.
_PAIR = 2
# Kinds whose loss is larger than the best one's by no more than this share are tried with more features, too: kernels,
# which gain for longer, and others.
_NEAR_KERNEL, _NEAR = 0.25, 0.03
# Kinds are joined with the best where their loss is larger by no more than this share, so often at most.
_USEFUL, MOST_JOINED = 0.5, 4
# By another loss no more than so many are compared with the one that won.
RIVALS = 3
# Further folds may take so much of the work: the rest is for variants of the best.
_SHARE_OF_FOLDS = 0.8
# After one fold, two, and more: kinds whose loss is larger than the best one's by more than this share are given up, of
# fewer held-out rows than so many, which tell less, by the share that grows as their errors do; of fewer than so many
# none is given up.
_BEHIND, ENOUGH_ROWS, _FEWEST_JUDGED = (0.15, 0.05, 0.02), 800, 100


@dataclass(frozen=True)
class Tried:
    """How a kind of features did in a race.

    Parameters
    ----------
    name : str
        As in the reasons.
    score : float or None
        One less the mean loss on the held-out rows; None where it was not tried, or failed.
    folds : int
        Shares of the rows that judged it.
    outcome : {"chosen", "level, less plain", "worse", "failed", "takes more work"}
        A kernel that gains with landmarks may be chosen beside one that is level with those it will have in the end.
    """

    name: str
    score: float | None
    folds: int
    outcome: str


@dataclass
class Race:
    """Contenders on held-out rows: all of them on one share, those not far behind on more, then variants of the best.

    It decides what is tried next from what was found and from counted work alone, so that the same rows give the same
    race anywhere.

    Parameters
    ----------
    contenders : list of Contender
        The plainest first; variants are added.
    n_folds : int
    allowed : float
        The work that all trials and the fit of the winner may take.
    judging, fitting : callable
        The work of one trial of a contender, and of its fit to all rows.
    vary : callable
        Variants of a contender, and whether it is the best one.
    join : callable or None
        A contender of two.
    joining : callable or None
        The work of one trial of it where the features of both were learned without the rows of that fold already.
    of_losses : callable or None
        The work of telling other losses apart on a contender's features, on so many folds, and of what a fit by them
        takes more: as much of it as variants are to leave.
    judging_rows : float
        That each fold has.
    most_landmarks : int
        Of a kernel in the last fit.
    plan : sequence of int or None
        The numbers of the contenders to try, one a trial, as `tried` was in another race.
    enough : float
        The loss up to which nothing is left to gain: no variants are tried.
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
    _last: int = 0

    def __post_init__(self) -> None:
        self.choices = [[] for _ in self.contenders]
        self._kinds = len(self.contenders)
        self._too_long: set[int] = set()
        # how many features searches found that ended early, at most
        self._found: dict[int, int] = {}
        self._needless: set[int] = set()
        self._preferred: dict[int, PenaltyChoice] = {}
        self._parents: dict[int, tuple[int, ...]] = {}
        self._joined: dict[int, set[int]] = {}

    def next(self) -> tuple[int, int] | None:
        """The contender and the fold of the next trial; None at the end."""
        if self.plan is not None and len(self.tried) >= len(self.plan):
            # rounds that the last trial has completed count, as where it was not the last one
            self._proposed()
            self.ended = "as was asked for"
            return None
        while (trial := self._proposed()) is not None:
            if self.plan is None or trial[0] == self.plan[len(self.tried)]:
                return trial
            self.leave_out(trial[0])
        return None

    def leave_out(self, number: int) -> None:
        """Do not try a contender again: there is no time for it."""
        self._too_long.add(number)

    def _proposed(self) -> tuple[int, int] | None:
        """The next trial by what was found and by counted work."""
        # The first kind is the cheapest: it is tried whatever it takes, so that there is one.
        waiting = [number for number in range(self._kinds) if not self._is_judged(number, 1)]
        for number in waiting:
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
            ahead = sum(self.trial_work(number) for number in waiting)
            # all that are alive do a further fold, or none does: their means are over the same rows
            if len(alive) < 2 or self._too_long & set(waiting) or self.spent + ahead > _SHARE_OF_FOLDS * self.allowed:
                break
            if waiting:
                return waiting[0], fold
            self.rounds = fold + 1
        return self._next_variant()

    def tell(self, number: int, choice: PenaltyChoice | None, n_features: int | None = None) -> None:
        """What a trial has found, on how many features; None where the features could not be fitted."""
        contender = self.contenders[number]
        given = contender.learner.get_params(deep=False)
        asked, bags = given.get("n_features"), given.get("bags", 1)
        if n_features is not None and asked is not None and n_features < bags * asked and not is_kernel(contender):
            self._found[number] = max(-(-n_features // bags), self._found.get(number, 0))
        self.tried.append(number)
        self.spent += self.trial_work(number)
        if choice is None:
            self.failed.add(number)
        else:
            self.choices[number].append(choice)

    def alive(self) -> list[int]:
        """The kinds that are not far behind on the folds that are done."""
        behind = _BEHIND[min(self.rounds, len(_BEHIND)) - 1]
        behind *= max(1.0, np.sqrt(ENOUGH_ROWS / self.judging_rows))
        able = [number for number in range(self._kinds) if self._is_judged(number, self.rounds, tried=True)]
        if self.rounds * self.judging_rows < _FEWEST_JUDGED:
            return able
        return self._level(able, behind)

    def loss(self, number: int) -> float:
        """The mean loss of a contender's best penalty over the folds that all have done."""
        return agreed(self.choices[number][: self.rounds]).loss

    def _level(self, able: list[int], share: float, best: int | None = None) -> list[int]:
        """Those of some contenders whose loss is above that of the best one by no more than a share of it."""
        least = None if best is None else self.loss(best)
        return [able[place] for place in level_with_best([self.loss(number) for number in able], share, least)]

    def accuracy(self, number: int) -> float | None:
        """The share of held-out rows that a contender gives their class; None for targets that are numbers."""
        done = self.choices[number]
        return agreed(done[: self.rounds] or done).accuracy

    def shown_score(self, number: int) -> float:
        """What a person is shown: the accuracy, else one less the loss."""
        accuracy = self.accuracy(number)
        return 1.0 - _loss_of(self.choices[number]) if accuracy is None else accuracy

    @property
    def leader(self) -> int | None:
        """The contender with the least loss on the folds that all have done; None before the first score."""
        rounds = max(self.rounds, 1)
        able = [n for n in range(len(self.contenders)) if self._is_judged(n, rounds, tried=True)]
        return min(able, key=lambda number: _loss_of(self.choices[number][:rounds]), default=None)

    def most_trials(self) -> int:
        """Trials at most, those done included: each takes as much work as the cheapest that may follow."""
        if self.plan is not None:
            return len(self.plan)
        waiting = self.alive() if self.rounds else range(len(self.contenders))
        works = [self.trial_work(number) for number in waiting if number not in self.failed]
        left = max(self.allowed - self.spent, 0.0)
        return len(self.tried) + int(left / max(min(works, default=np.inf), 1.0))

    def settled(self) -> tuple[int, Contender | None, float]:
        """The winner, the same with as many landmarks as there is work left for, if they gain, and the share of loss.

        The last is what is expected to stay of the winner's loss with these landmarks: 1 where there are no more.

        That they gain is known where a kernel won over one of fewer landmarks, alone or joined with another kind. What
        is near the best is then judged by the loss that it is expected to have in the end: with each multiple of its
        landmarks a kernel loses about the same share of its loss.
        """
        best = self.winner
        able = [n for n in range(len(self.contenders)) if self._is_judged(n, self.rounds, tried=True)]
        near = self._level(able, _BEHIND[1], best)
        ends = {number: self.end_of(number) for number in (best, *near)}
        growing = [number for number in near if ends[number][1] is not None]
        won = min((best, *growing), key=lambda number: ends[number][0])
        # what cannot grow stays unless the gain is worth it
        won = won if gains(ends[won][0], ends[best][0], _LEVEL) else best
        return won, ends[won][1], ends[won][0] / max(self.loss(won), np.finfo(float).tiny)

    def rivals(self, won: int) -> list[int]:
        """What is near the one that won, the nearest first: by another loss one of these may be ahead."""
        able = [n for n in range(len(self.contenders)) if n != won and self._is_judged(n, self.rounds, tried=True)]
        return sorted(self._level(able, _BEHIND[0], won), key=self.loss)[:RIVALS]

    def end_of(self, number: int) -> tuple[float, Contender | None]:
        """The loss that is expected of a contender after the last fit, and the contender with its last landmarks."""
        loss, pair = self.loss(number), self._fewer_landmarks(number)
        if pair is None:
            return loss, None
        (grew, size), (before, smaller) = pair
        end = self.largest(self.contenders[number], size)
        both = min(len(self.choices[grew]), len(self.choices[before]))
        share = _loss_of(self.choices[grew][:both]) / max(_loss_of(self.choices[before][:both]), np.finfo(float).tiny)
        if end is None:
            return loss, None
        expected = loss * share ** (_LASTING * np.log(landmarks_of(end) / size) / np.log(size / smaller))
        return (expected, end) if gains(expected, loss, _LEVEL) else (loss, None)

    def _fewer_landmarks(self, number: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Two contenders that differ in landmarks alone, with these, the larger one first; None where none tells.

        They tell what landmarks bring: of what is joined, the same with fewer of them where that was tried, else its
        kernel, which gains more by itself than beside another kind.
        """
        grew = self._grew(number)
        if grew is None:
            return None
        own, size = with_landmarks(self.contenders[number], 1).key, landmarks_of(self.contenders[number])
        fewer = {
            landmarks_of(contender): one
            for one, contender in enumerate(self.contenders)
            if self.choices[one] and has_kernel(contender) and with_landmarks(contender, 1).key == own
        }
        if max(fewer) > size:
            # more were tried: that one tells
            return None
        if smaller := [landmarks for landmarks in fewer if landmarks < size]:
            return (number, size), (fewer[max(smaller)], max(smaller))
        parent = self._parents[grew][0]
        return (grew, landmarks_of(self.contenders[grew])), (parent, landmarks_of(self.contenders[parent]))

    def largest(self, contender: Contender, size: int) -> Contender | None:
        """A contender with kernels of as many landmarks, above `size`, as there is work left for; None for no more."""
        found = None
        while (larger := min(int(_LAST_GROWTH * size), self.most_landmarks)) > size:
            grown = with_landmarks(contender, larger)
            if self.spent + self.fitting(grown) > self.allowed:
                break
            found, size = grown, larger
        return found

    @property
    def winner(self) -> int:
        """The plainest contender whose loss is level with the best.

        Raises
        ------
        ValueError
            If all failed.
        """
        self.rounds = max(self.rounds, 1)
        able = [n for n in range(len(self.contenders)) if self._is_judged(n, self.rounds, tried=True)]
        if not able:
            raise ValueError(f"no kind of features could be fitted to these rows. Of the first one: {self.why}")
        return self._level(able, _LEVEL)[0]

    def _next_variant(self) -> tuple[int, int] | None:
        """A variant that was not tried yet, on one fold after the other while it does better than the best.

        Kinds that are not far behind may only lack features: they get more of them.
        """
        if len(self.failed | self._too_long | self._needless) == len(self.contenders):
            return None
        best = self.winner
        if self.loss(best) <= self.enough:
            self.ended = "as there is no loss left"
            return None
        known = {contender.key for contender in self.contenders}
        near = [number for number in range(len(self.contenders)) if self._is_near(number, best)]
        found: list[tuple[Contender, tuple[int, ...], set[int]]] = [
            (contender, (number,), self._kinds_in(number))
            for number in (best, *near)
            for contender in self.vary(self.contenders[number], number == best)
        ]
        # a search that ended with fewer features than it might have had finds no more of them
        found = [one for one in found if not set(one[1]) & set(self._found) or not self._grows_from(*one[:2])]
        # a thousand landmarks gain most often: they come first, then what is joined, then the rest
        first = [self._comes_first(contender, of) for contender, of, _ in found]
        found = [*compress(found, first), *compress(found, [not one for one in first])]
        # what errs on other rows than the best does is of another kind
        other, n_joined = self._best_of_other_kinds(best), sum(len(kinds) > 1 for kinds in self._joined.values())
        if self.join is not None and other is not None and n_joined < MOST_JOINED:
            both = self.join(self.contenders[best], self.contenders[other])
            found.insert(sum(first), (both, (best, other), self._kinds_in(best) | self._kinds_in(other)))
        for contender, parents, kinds in found:
            if contender.key not in known:
                known.add(contender.key)
                self._parents[len(self.contenders)], self._joined[len(self.contenders)] = parents, kinds
                self.contenders.append(contender)
                self.choices.append([])
        for number in sorted(range(self._kinds, len(self.contenders)), key=self._comes_later):
            done = self.choices[number]
            if number in self.failed or number in self._too_long or len(done) >= self.rounds:
                continue
            if done and _loss_of(done) >= _loss_of(self.choices[best][: len(done)]):
                # behind on the folds so far
                continue
            # who has fewer folds than the others never wins: what cannot do all of them is not begun
            if self.affords(number, self.rounds - len(done)):
                return number, len(done)
            self._too_long.add(number)
        self.ended = "as the effort allows no more" if self._too_long else "as held-out rows gain no more"
        return None

    def _kinds_in(self, number: int) -> set[int]:
        """The kinds that a contender is of."""
        return self._joined.get(number, {number})

    def _best_of_other_kinds(self, best: int) -> int | None:
        """The contender with the least loss of kinds that are not in the best; None where nothing is near enough."""
        kinds = self._kinds_in(best)
        if any(is_kernel(self.contenders[kind]) for kind in kinds):
            # kernels with and without a learned metric err on the same rows
            kinds = kinds | {kind for kind in range(self._kinds) if is_kernel(self.contenders[kind])}
        others = [
            number
            for number in range(len(self.contenders))
            if number not in self.failed and self.choices[number] and not self._kinds_in(number) & kinds
        ]
        able = [number for number in others if self._ratio(number, best) <= 1.0 + _USEFUL]
        return min(able, key=lambda number: self._ratio(number, best), default=None)

    def _ratio(self, number: int, best: int) -> float:
        """A contender's loss over that of the best, on the folds that both have done."""
        both = min(len(self.choices[number]), len(self.choices[best]))
        return _loss_of(self.choices[number][:both]) / max(_loss_of(self.choices[best][:both]), np.finfo(float).tiny)

    def _is_near(self, number: int, best: int) -> bool:
        """Whether a contender's loss is not much larger than the best one's and, of a variant, below that of its kind.

        Both are compared on the folds that the contender has done.
        """
        done, parents = self.choices[number], self._parents.get(number, ())
        if number == best or number in self.failed or not done:
            return False
        if not all(gains(_loss_of(done), _loss_of(self.choices[parent][: len(done)]), _LEVEL) for parent in parents):
            return False
        near = _NEAR_KERNEL if is_kernel(self.contenders[number]) else _NEAR
        return _loss_of(done) <= (1.0 + near) * _loss_of(self.choices[best][: len(done)])

    def _is_needless(self, contender: Contender) -> bool:
        """Whether others tell that it is no better.

        A kernel in a learned metric is not, where kernels of all columns alike do as well as other kinds and learning
        it is no small part of the work; nor are searched waves of a kernel whose random waves do worse than those of
        another.
        """
        losses = {one: _loss_of(self.choices[one]) for one in range(self._kinds) if self.choices[one]}
        if is_searched(contender):
            drawn = {one: loss for one, loss in losses.items() if is_drawn(self.contenders[one])}
            best = self.contenders[min(drawn, key=lambda one: drawn[one])] if len(drawn) > 1 else contender
            return repr(best.learner.family) != repr(contender.learner.family)
        if not is_learned(contender) or self.judging(contender) <= _CHEAP * self.allowed:
            return False
        of_kernels = [loss for one, loss in losses.items() if is_kernel(self.contenders[one])]
        return bool(of_kernels) and not gains(min(losses.values()), min(of_kernels), _AHEAD_OF_KERNELS)

    def _grows_from(self, contender: Contender, parents: tuple[int, ...]) -> bool:
        """Whether it asks for more features than the contender that it is a variant of."""
        ours = (contender, *(self.contenders[parent] for parent in parents[:1]))
        sizes = [one.learner.get_params(deep=False).get("n_features") for one in ours]
        given, before = sizes[0], sizes[-1]
        return given is not None and before is not None and given > before

    def _comes_first(self, contender: Contender, parents: tuple[int, ...]) -> bool:
        """Whether it is a kernel of more landmarks than its parent, up to a thousand, or of another bandwidth there."""
        if not is_kernel(contender) or len(parents) != 1:
            return False
        size = int(contender.learner.get_params(deep=False)["n_features"])
        return size == _FEW_LANDMARKS or (size < _FEW_LANDMARKS and self._grows_from(contender, parents))

    def _comes_later(self, number: int) -> bool:
        """What variants are tried by, before their numbers."""
        return not self._comes_first(self.contenders[number], self._parents.get(number, ()))

    def _is_grown(self, number: int) -> bool:
        """Whether it is a kernel with more landmarks than the contender that it is a variant of."""
        parents, contender = self._parents.get(number), self.contenders[number]
        return parents is not None and is_kernel(contender) and self._grows_from(contender, parents)

    def _grew(self, number: int) -> int | None:
        """The kernel with more landmarks than its parent that a contender is, is a variant of, or is joined from."""
        line = [number]
        while line:
            if self._is_grown(first := line.pop(0)):
                return first
            line += self._parents.get(first, ())
        return None

    def affords(self, number: int, n_trials: int = 1) -> bool:
        """Whether so many trials of a contender, and its fit if it wins, are within what is allowed."""
        ahead = self.fitting(self.contenders[number])
        # Before a variant was tried nothing has grown. Of every kernel that is near it is asked how much it gains by a
        # thousand landmarks.
        kept = max(self.tried, default=0) >= self._kinds and self._comes_later(number)
        if kept and self._grew(best := self.winner) is not None:
            last = self.fitting(with_landmarks(self.contenders[best], self.most_landmarks))
            ahead = max(ahead, min(_KEPT * self.allowed, last))
        if self.of_losses is not None and number >= self._kinds:
            able = [self.contenders[one] for one in (number, self.winner)]
            ahead = max(ahead, *(self.fitting(one) + self.of_losses(one, self.rounds) for one in able))
        first = len(self.choices[number])
        trials = sum(self.trial_work(number, fold) for fold in range(first, first + n_trials))
        return self.spent + trials + ahead <= self.allowed

    def joined_of(self, number: int, fold: int) -> tuple[int, ...]:
        """The two contenders that one is joined from, if the features of both were learned for this fold; else none."""
        parents = self._parents.get(number, ())
        known = len(parents) == _PAIR and all(len(self.choices[parent]) > fold for parent in parents)
        return parents if known else ()

    def metric_of(self, number: int, fold: int) -> int | None:
        """The contender that has learned the metric, for this fold, that another would learn again; None for none."""
        parents = self._parents.get(number, ())
        if len(parents) != 1 or len(self.choices[parents[0]]) <= fold:
            return None
        return parents[0] if shares_metric(self.contenders[number], self.contenders[parents[0]]) else None

    def trial_work(self, number: int, fold: int | None = None) -> float:
        """The work of a trial of a contender: of the next one, unless the fold is given."""
        contender, fold = self.contenders[number], len(self.choices[number]) if fold is None else fold
        if self.joining is not None and self.joined_of(number, fold):
            return self.joining(contender)
        if self.metric_of(number, fold) is not None:
            contender = with_known_metric(contender)
        if number in self._found:
            # a search that ends early takes the work of one for as many features as it finds
            contender = Contender("", clone(contender.learner).set_params(n_features=self._found[number]))
        return self.judging(contender)

    def preferred(self, number: int) -> PenaltyChoice | None:
        """The penalty that the contender which this one is a variant of preferred at its first trial; None for a kind.

        It stays, so that all folds tell the same penalties apart.
        """
        choices = [self.choices[parent] for parent in self._parents.get(number, ()) if self.choices[parent]]
        if choices:
            self._preferred.setdefault(number, agreed(choices[0]))
        return self._preferred.get(number)

    def _is_judged(self, number: int, folds: int, *, tried: bool = False) -> bool:
        """Whether a contender has done so many folds; those that never will count unless they were to be `tried`."""
        if not tried and number in self.failed | self._too_long | self._needless:
            return True
        return number not in self.failed and len(self.choices[number]) >= folds

    def table(self, won: int | None = None) -> tuple[Tried, ...]:
        """Every kind that was tried, or left out for its work: the one that was chosen first, then by score."""
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
        """In plain sentences: what was chosen, how much worse others were, how the trials ended, what it grew to."""
        won = self.winner if won is None else won
        highest = "the best score" if won == self.winner else "nearly the best score, and gain with more landmarks,"
        others = ", ".join(
            f"{contender.name} {self._told(number)}"
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
        """What was chosen, how it does on held-out rows, and the next best on the same rows, in one sentence."""
        name = re.sub(r" \([^()]*\)", "", (grown or self.contenders[won]).name)
        able = [n for n in range(len(self.contenders)) if n != won and self._is_judged(n, self.rounds, tried=True)]
        n_tried = sum(bool(done) for done in self.choices)
        if able:
            second = min(able, key=self.loss)
            score, own = self.shown_score(second), self.shown_score(won)
            # kinds are compared by their loss, which tells more than the share of right rows
            which = "next best by its loss" if score > own and self.loss(second) > self.loss(won) else "next best"
            if self.loss(second) <= self.loss(won):
                # of level ones the plainer one is taken
                which = "level with"
            compared = f"{which} {short_score(score)} of {n_tried} tried"
        else:
            compared = f"{n_tried} tried"
        return f"Chose {name}: {measure} {short_score(self.shown_score(won))} on held-out rows ({compared}{stopped})."

    def _told(self, number: int) -> str:
        """The score of a contender on the folds that it has done."""
        done = self.choices[number]
        # folds differ by more than contenders do
        fewer = f" in the first {len(done)}" if len(done) < self.rounds else ""
        return "failed" if number in self.failed or not done else f"{1.0 - _loss_of(done):.4f}{fewer}"


def _loss_of(done: Sequence[PenaltyChoice]) -> float:
    return agreed(done).loss
