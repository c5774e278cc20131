"""Which of several models does best on rows that it has not seen: folds, out-of-fold scores, and when a gain counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import MULTIPLIERS
from dkl.linear.temperature import best_multiplier

# Judging rows below which further folds judge too, folds at most, and judging rows above which more judge no better.
_ENOUGH_ROWS, _MOST_FOLDS, _MOST_JUDGING_ROWS = 900, 5, 50_000
# Rows that models to be compared are fitted on: beside the sum of the losses the best C hardly depends on their number.
_SEEN_A_FEATURE, _LEAST_SEEN = 20, 20_000
# Inverse temperatures of models that are compared: fitted to -1 and +1, their decision values are of that size.
JUDGED_MULTIPLIERS = MULTIPLIERS[(MULTIPLIERS >= 2.0**-4) & (MULTIPLIERS <= 2.0**10)][::2]
# The chance that a gain is called clear where there is none.
_BY_CHANCE = 0.025
# A difference of two losses that is rounding, whatever their size.
_ROUNDING = 1e-12
# Folds of a cross-validation and rows that a model holds out by itself are chosen by the same hash, so they need
# different seeds: a model that holds rows out with the same seed must not hold out a whole fold.
_FOLD_SALT = 0x464F_4C44


def gains(loss: float, before: float, share: float = 0.0) -> bool:
    """Whether a held-out loss is lower than another by more than a share of it; any finite one is lower than infinity.

    Examples
    --------
    >>> from dkl.linear.judge import gains
    >>> gains(0.98, 1.0), gains(0.98, 1.0, share=0.05), gains(0.98, float("inf"), share=0.05)
    (True, False, True)
    """
    return bool(loss < (before - share * abs(before) if np.isfinite(before) else before))


def last_gain(losses: Sequence[float] | np.ndarray, share: float = 0.0) -> int:
    """The last round whose held-out loss `gains` on the lowest before it; 0 where none does, and NaN never does.

    Patience is the number of rounds that may follow it.

    Examples
    --------
    >>> from dkl.linear.judge import last_gain
    >>> last_gain([1.0, 0.5, 0.499, 0.6]), last_gain([1.0, 0.5, 0.499, 0.6], share=0.01)
    (2, 1)
    """
    lowest, at = np.inf, 0
    for number, loss in enumerate(losses):
        if gains(loss, lowest, share):
            lowest, at = loss, number
    return at


def level_with_best(losses: Sequence[float] | np.ndarray, share: float, least: float | None = None) -> list[int]:
    """The places of losses that are larger than the least one by no more than a share of it, in their order.

    Where candidates stand in the order of their plainness, the first of these is the one to take.

    Parameters
    ----------
    losses : sequence of float
    share : float
    least : float or None
        The loss that they are compared with; None for the least of them.

    Examples
    --------
    >>> from dkl.linear.judge import level_with_best
    >>> level_with_best([0.7, 0.502, 0.5], share=0.005)
    [1, 2]
    """
    least = min(losses, default=np.inf) if least is None else least
    return [place for place, loss in enumerate(losses) if loss <= least * (1.0 + share) + _ROUNDING]


def ranked(scores: Sequence[float] | np.ndarray) -> list[int]:
    """The places of scores from the best on, of equal ones in their order; those that are no number are left out.

    Examples
    --------
    >>> from dkl.linear.judge import ranked
    >>> ranked([0.5, float("nan"), 0.7, 0.7])
    [2, 3, 0]
    """
    # NaN is sorted to the end, and a stable sort leaves the first of equal scores in front.
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return [int(place) for place in order if np.isfinite(scores[place])]


def last_least(losses: np.ndarray) -> np.ndarray:
    """The place of the least loss along the first axis, of equal ones the last."""
    return len(losses) - 1 - np.argmin(losses[::-1], axis=0)


def mean_over_rows(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of scores (..., F) over folds, each by the weight (F,) of its rows, so that each row counts once."""
    return scores @ weights / weights.sum()


def others(numbers: Iterable[int], fold: int, in_time: bool = False) -> list[int]:
    """The folds that a model which `fold` judges is fitted to: all others, or the older ones, whose numbers are larger.

    Sums over their rows are those of each of them added up, never a difference from those of all rows: what is rounded
    there would still tell of the rows that judge.
    """
    return [other for other in numbers if (other > fold if in_time else other != fold)]


def score_error(score: float, n_rows: float, *, is_share: bool) -> float:
    """The standard error of a score on so many rows drawn at random, where the loss of each row is not known.

    Parameters
    ----------
    score : float
    n_rows : float
    is_share : bool
        Of right answers, p: sqrt(p (1 - p) / n), the mean of n Bernoulli variables. Else R^2 = r^2: a correlation r has
        the standard error (1 - r^2) / sqrt(n) (Fisher 1915), and R^2 changes by 2 r for each unit of r.
    """
    if is_share:
        return float(np.sqrt(score * (1.0 - score) / n_rows))
    # A model worse than the mean has a negative R^2, to which no correlation belongs: r counts as 0 there.
    return float(2.0 * np.sqrt(max(score, 0.0)) * (1.0 - score) / np.sqrt(n_rows))


def is_clear(gains: np.ndarray, errors: float | None = None) -> bool:
    """Whether paired gains, of the same rows or folds, are more than chance: by a one-sided t-test at 2.5 %.

    Parameters
    ----------
    gains : ndarray of shape (n,)
        How much larger the loss of the rival is on each of them. A single one is never clear.
    errors : float or None
        Standard errors by which their mean has to be above 0; None for those of the test.
    """
    if len(gains) < 2:
        return False
    errors = special.stdtrit(len(gains) - 1, 1.0 - _BY_CHANCE) if errors is None else errors
    return bool(gains.mean() > errors * gains.std(ddof=1) / np.sqrt(len(gains)))


@dataclass(frozen=True)
class Folds:
    """Disjoint folds of rows, each a share of all, by the hash that holds rows out: fold 0 is what that holds out.

    The fold of a row is the same whatever the blocks are, and for rows that are appended later.

    Parameters
    ----------
    held_out : HeldOut
    count : int
    seen : float
        The share of all rows, beside the folds, that candidates are fitted on.
    samples : bool
        Rows are drawn one by one, whatever they are held out with.
    in_time : bool
        A fold is judged by models of older rows alone: the newest rows are in fold 0.
    """

    held_out: HeldOut
    count: int
    seen: float = 1.0
    samples: bool = False
    # what rows are held out with is in the fingerprint of the rows already
    in_time: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, folds: int | float, seed: int) -> Folds:
        """The folds of a cross-validation: a whole number is the number of folds, a fraction the share of a single one.

        Raises
        ------
        ValueError
            If `folds` is neither a whole number of at least 2 nor a share between 0 and 1.
        """
        if isinstance(folds, int | np.integer) and not isinstance(folds, bool) and folds >= 2:
            return cls(HeldOut(1.0 / int(folds), seed ^ _FOLD_SALT), int(folds))
        if isinstance(folds, float) and 0.0 < folds < 1.0:
            return cls(HeldOut(folds, seed ^ _FOLD_SALT), 1)
        raise ValueError(
            f"folds is {folds!r}; expected a whole number of at least 2 (that many folds), or a share between 0 and 1 "
            "(so much of the rows held out once)"
        )

    def along_time(self) -> Folds:
        """The same of rows that are held out by time, the oldest of which judge nothing: they are one part more."""
        share = 1.0 / (self.count + 1) if self.count > 1 else self.held_out.share
        return replace(self, held_out=replace(self.held_out, share=share), in_time=True)

    def outside(self, fold: int) -> list[int]:
        """The folds whose rows a model is fitted to that `fold` judges, -1 for the rows in none."""
        return [*others(range(self.count), fold, self.in_time), -1]

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """The fold of each row, -1 for one that all candidates see, -2 for one that none does: (n,) int64."""
        fraction = self.held_out.fraction(held_with)
        fold = np.floor(fraction / self.held_out.share).astype(np.int64)
        return np.where(
            fold < self.count, fold, np.where(fraction < self.held_out.share * self.count + self.seen, -1, -2)
        )


@dataclass(frozen=True, eq=False)
class SeenRows:
    """Which rows the models of one fold see, of those that count at all.

    Parameters
    ----------
    folds : Folds
    fold : int
    kept : callable or None
        As of `NewtonTargets`.
    """

    folds: Folds
    fold: int
    kept: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """A mask (n,) of rows by what they are held out with."""
        folds = self.folds(held_with)
        seen = (folds > -2) & (folds != self.fold)
        return seen if self.kept is None else seen & np.asarray(self.kept(held_with), dtype=bool)


@dataclass(frozen=True, eq=False)
class PenaltyChoice:
    """How the penalties of a model do on rows that it has not seen; of equal ones the strongest is the best.

    Attributes
    ----------
    alphas : ndarray of shape (A,)
        All candidates, from the strongest to the weakest.
    scores : ndarray of shape (A,)
        One minus the mean loss on held-out rows; of standardised targets where these are numbers without a log link,
        and of the whole square for the squared error. Minus infinity where stronger penalties had gained no more.
    start : ndarray of shape (K, m + 1)
        Where the models of the best penalty stand, on the features that penalties were told apart on.
    strengths : ndarray of shape (A,)
        The same penalties as C beside the sum of the losses, on features of squared length 1: comparable between maps
        of any size. Empty where they are not known.
    accuracies : ndarray of shape (A,)
        The share of held-out rows that are given their class; empty for targets that are numbers.
    calibration : ndarray of shape (A, 2, 3, T) or None
        For each penalty, of calibrated candidates, the sums of the rows held out that `best_multiplier` takes.
    judging_weight : float
        The weight of these rows.
    """

    alphas: np.ndarray
    scores: np.ndarray
    start: np.ndarray
    strengths: np.ndarray = field(default_factory=lambda: np.zeros(0))
    accuracies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    calibration: np.ndarray | None = None
    judging_weight: float = 0.0

    @property
    def best(self) -> int:
        """The place of the best penalty."""
        return int(np.argmax(self.scores))

    @property
    def alpha(self) -> float:
        """The best penalty."""
        return float(self.alphas[self.best])

    @property
    def score(self) -> float:
        """That of the best penalty."""
        return float(self.scores.max())

    @property
    def loss(self) -> float:
        """The mean loss at the best penalty."""
        return 1.0 - self.score

    @property
    def accuracy(self) -> float | None:
        """At the best penalty; None for targets that are numbers."""
        return float(self.accuracies[self.best]) if len(self.accuracies) else None

    @property
    def multiplier(self) -> float | None:
        """The inverse temperature at the best penalty; None where candidates were not calibrated."""
        if self.calibration is None:
            return None
        label, uniform = self.calibration[self.best]
        return best_multiplier(label, uniform, self.judging_weight, JUDGED_MULTIPLIERS)


def agreed(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The mean scores of choices among the same penalties, one of each fold; the start is that of the first."""
    found = replace(
        choices[0],
        scores=np.mean([choice.scores for choice in choices], axis=0),
        accuracies=np.mean([choice.accuracies for choice in choices], axis=0),
    )
    if found.calibration is None:
        return found
    calibration = np.sum([choice.calibration for choice in choices if choice.calibration is not None], axis=0)
    return replace(found, calibration=calibration, judging_weight=sum(choice.judging_weight for choice in choices))


def clear_gain(choices: Sequence[PenaltyChoice], rivals: Sequence[PenaltyChoice]) -> bool:
    """Whether models do clearly better than rivals on the same folds, each at the penalty that its folds agree on."""
    ours, theirs = ([choice.scores[agreed(judged).best] for choice in judged] for judged in (choices, rivals))
    return is_clear(np.subtract(ours, theirs))


def out_of_fold(
    sums: Mapping[str, np.ndarray], shape: tuple[int, int], held_out: HeldOut
) -> tuple[np.ndarray, np.ndarray, float]:
    """Scores and accuracies over all folds, from the sums of `held_out_block`.

    Parameters
    ----------
    sums : mapping of str to ndarray
        Of v versions of A F models: those of the folds of each penalty in turn.
    shape : (int, int)
        A penalties and F folds.
    held_out : HeldOut
        What the folds are made of, for the error.

    Returns
    -------
    scores : ndarray of shape (v, A)
        One minus the mean loss.
    accuracies : ndarray of shape (v, A)
        (v, 0) for targets that are numbers.
    weight : float
        Of the rows that judge.

    Raises
    ------
    ValueError
        If no row is held out.
    """
    weight = sums["weight"].reshape(shape).sum(axis=1)
    if weight[0] == 0.0:
        raise ValueError(
            f"alpha='auto' is chosen on held-out rows, and validation_fraction={held_out.share:g} of so few rows holds "
            "out none; use a larger fraction, or give alpha a number"
        )
    scores = 1.0 - sums["loss"].reshape(-1, *shape).sum(axis=2) / weight
    if "right" not in sums:
        return scores, np.zeros((len(scores), 0)), float(weight[0])
    rows = np.maximum(sums["rows"].reshape(shape).sum(axis=1), np.finfo(float).tiny)
    return scores, sums["right"].reshape(-1, *shape).sum(axis=2) / rows, float(weight[0])


def folds_of(held_out: HeldOut, n_rows: float, n_features: int) -> Folds:
    """As many folds as make enough judging rows, at most five, each a share of at most 50,000 rows."""
    n_rows = max(n_rows, 1.0)
    share = min(held_out.share, _MOST_JUDGING_ROWS / n_rows)
    most = int(np.ceil(_ENOUGH_ROWS / (share * n_rows)))
    count = max(1, min(most, _MOST_FOLDS, int(1.0 / share)))
    # whatever is beside the folds is fitted on by all candidates, up to so many rows a feature
    return Folds(replace(held_out, share=share), count, max(_SEEN_A_FEATURE * n_features, _LEAST_SEEN) / n_rows)


def judging_folds(held_out: HeldOut, n_rows: float, most: int | None = None) -> list[HeldOut]:
    """The folds that judge penalties: one held-out share of many rows, five folds of few that judge every row in turn.

    `most` is the number of folds that the rows allow, such as their number of groups; where it is 1, one share judges.
    """
    folds = folds_of(held_out, n_rows, 1)
    count = min(_MOST_FOLDS, most or _MOST_FOLDS)
    if folds.count == 1 or count == 1:
        return [folds.held_out]
    return [replace(held_out, share=1.0 / count, first=number / count) for number in range(count)]
