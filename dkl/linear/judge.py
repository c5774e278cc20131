"""Compares models on rows that they have not seen: folds, out-of-fold scores, and when a gain is significant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import MULTIPLIERS
from dkl.linear.temperature import best_multiplier

# With fewer judging rows than the first number further folds judge, too; the most folds; and the most judging rows,
# since more do not make comparisons better.
_ENOUGH_ROWS, MOST_FOLDS, _MOST_JUDGING_ROWS = 900, 5, 50_000
# Rows that compared models are fitted to, for each feature and at least: the best C hardly depends on their number.
_SEEN_A_FEATURE, _LEAST_SEEN = 20, 20_000
# Inverse temperatures for compared models: fitted to -1 and +1, their decision values have about that size.
JUDGED_MULTIPLIERS = MULTIPLIERS[(MULTIPLIERS >= 2.0**-4) & (MULTIPLIERS <= 2.0**10)][::2]
# Probability that a gain is called clear although there is none.
_BY_CHANCE = 0.025
# A difference of two losses up to this size counts as rounding.
_ROUNDING = 1e-12
# Folds of a cross-validation, and rows that a model holds out by itself, follow from the same hash, so they need
# different seeds: otherwise a model with the same seed would hold out a whole fold.
_FOLD_SALT = 0x464F_4C44


def gains(loss: float, before: float, share: float = 0.0) -> bool:
    """Whether a held-out loss is lower than another by more than a share of it; a finite one is lower than infinity.

    Examples
    --------
    >>> from dkl.linear.judge import gains
    >>> gains(0.98, 1.0), gains(0.98, 1.0, share=0.05), gains(0.98, float("inf"), share=0.05)
    (True, False, True)
    """
    return bool(loss < (before - share * abs(before) if np.isfinite(before) else before))


def last_gain(losses: Sequence[float] | np.ndarray, share: float = 0.0) -> int:
    """The last round whose held-out loss `gains` on the lowest before it; 0 if none does; NaN never gains.

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


def rounds_without_gain(losses: Sequence[float] | np.ndarray, share: float = 0.0) -> int:
    """The number of rounds after the `last_gain`, which patience limits; 0 before the first round.

    Examples
    --------
    >>> from dkl.linear.judge import rounds_without_gain
    >>> rounds_without_gain([1.0, 0.5, 0.499, 0.6]), rounds_without_gain([1.0, 0.5, 0.499, 0.6], share=0.01)
    (1, 2)
    """
    return len(losses) - 1 - last_gain(losses, share) if len(losses) else 0


def near_least(losses: Sequence[float] | np.ndarray, share: float, least: float | None = None) -> list[int]:
    """The positions of losses that exceed the least one by at most a share of it, in ascending order.

    If candidates are ordered by plainness, the first of these is the one to choose.

    Parameters
    ----------
    losses : sequence of float
    share : float
    least : float or None
        The loss to compare with; None is the least of `losses`.

    Examples
    --------
    >>> from dkl.linear.judge import near_least
    >>> near_least([0.7, 0.502, 0.5], share=0.005)
    [1, 2]
    """
    least = min(losses, default=np.inf) if least is None else least
    return [place for place, loss in enumerate(losses) if loss <= least * (1.0 + share) + _ROUNDING]


def ranked(scores: Sequence[float] | np.ndarray) -> list[int]:
    """The positions of finite scores from the highest to the lowest, equal ones in order.

    Examples
    --------
    >>> from dkl.linear.judge import ranked
    >>> ranked([0.5, float("nan"), 0.7, 0.7])
    [2, 3, 0]
    """
    # NaN is sorted to the end, and a stable sort keeps equal scores in order
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return [int(place) for place in order if np.isfinite(scores[place])]


def last_least(losses: np.ndarray) -> np.ndarray:
    """The position of the least loss along the first axis; of equal ones the last."""
    return len(losses) - 1 - np.argmin(losses[::-1], axis=0)


def mean_over_rows(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of scores (..., F) over folds, by the weights (F,) of their rows, so that each row counts once."""
    return scores @ weights / weights.sum()


def others(numbers: Iterable[int], fold: int, in_time: bool = False) -> list[int]:
    """The folds that train a model which `fold` judges: all others, or the older ones, which have larger numbers.

    Sums over their rows must be added up from the folds, never subtracted from the sums of all rows: rounding errors of
    a difference would depend on the judging rows.
    """
    return [other for other in numbers if (other > fold if in_time else other != fold)]


def score_error(score: float, n_rows: float, *, is_share: bool) -> float:
    """The standard error of a score on n_rows rows drawn at random, if the losses of single rows are not known.

    Parameters
    ----------
    score : float
    n_rows : float
    is_share : bool
        Whether the score is the share p of correct predictions, the mean of n Bernoulli variables with standard error
        sqrt(p (1 - p) / n). Otherwise it is R^2 = r^2: a correlation r has the standard error (1 - r^2) / sqrt(n)
        (Fisher 1915), and R^2 changes by 2 r for each unit of r.
    """
    if is_share:
        return float(np.sqrt(score * (1.0 - score) / n_rows))
    # a negative R^2, of a model worse than the mean, belongs to no correlation; r counts as 0
    return float(2.0 * np.sqrt(max(score, 0.0)) * (1.0 - score) / np.sqrt(n_rows))


def is_clear(differences: np.ndarray, errors: float | None = None) -> bool:
    """Whether the mean of paired gains is significantly above 0, by a one-sided t-test at 2.5 %.

    Parameters
    ----------
    differences : ndarray of shape (n,)
        The gain on each row or fold: the rival's loss minus the own. A single one is never clear.
    errors : float or None
        Standard errors by which the mean must exceed 0; None uses the quantile of the test.
    """
    if len(differences) < 2:
        return False
    errors = special.stdtrit(len(differences) - 1, 1.0 - _BY_CHANCE) if errors is None else errors
    return bool(differences.mean() > errors * differences.std(ddof=1) / np.sqrt(len(differences)))


@dataclass(frozen=True)
class Folds:
    """Disjoint folds of rows, each with the same share, by the hash that holds rows out; fold 0 is `held_out` itself.

    The fold of a row does not depend on the blocks, nor on rows that are appended later.

    Parameters
    ----------
    held_out : HeldOut
    count : int
    seen : float
        The share of all rows, in addition to the folds, on which candidates are fitted.
    samples : bool
        Whether single rows are drawn, even where whole groups are held out together.
    in_time : bool
        Whether only models of older rows may be judged by a fold; the newest rows are in fold 0.
    """

    held_out: HeldOut
    count: int
    seen: float = 1.0
    samples: bool = False
    # the fingerprint of the rows already includes how they are held out
    in_time: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, folds: int | float, seed: int) -> Folds:
        """The folds of a cross-validation: an integer is the number of folds, a fraction the share of a single one.

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
        """The folds for rows held out by time: rows are cut into one part more, and the oldest part judges nothing."""
        share = 1.0 / (self.count + 1) if self.count > 1 else self.held_out.share
        return replace(self, held_out=replace(self.held_out, share=share), in_time=True)

    @property
    def share(self) -> float:
        """The share of all rows that are in a fold, or train all candidates."""
        return min(self.held_out.share * self.count + self.seen, 1.0)

    def outside(self, fold: int) -> list[int]:
        """The folds that train a model which `fold` judges, and -1 for the rows in no fold."""
        return [*others(range(self.count), fold, self.in_time), -1]

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """The fold of each row, (n,) int64: -1 for rows that train all candidates, -2 for rows that train none."""
        fraction = self.held_out.fraction(held_with)
        fold = np.floor(fraction / self.held_out.share).astype(np.int64)
        return np.where(
            fold < self.count, fold, np.where(fraction < self.held_out.share * self.count + self.seen, -1, -2)
        )


@dataclass(frozen=True, eq=False)
class SeenRows:
    """The rows on which the models of one fold are fitted.

    Parameters
    ----------
    folds : Folds
    fold : int
    kept : callable or None
        As in `NewtonTargets`.
    """

    folds: Folds
    fold: int
    kept: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """A mask (n,) of the rows that train, from their hash keys."""
        folds = self.folds(held_with)
        seen = (folds > -2) & (folds != self.fold)
        return seen if self.kept is None else seen & np.asarray(self.kept(held_with), dtype=bool)


def highest_score(choice: PenaltyChoice) -> int:
    """The position of the penalty with the highest score; of equal scores the strongest."""
    return int(np.argmax(choice.scores))


# The rules by which a penalty is chosen, by the word that `alpha` of a machine has for each: a function of a
# `PenaltyChoice` that returns the position of a penalty.
PENALTY_RULES: dict[str, Callable[[PenaltyChoice], int]] = {"auto": highest_score}


@dataclass(frozen=True, eq=False)
class PenaltyChoice:
    """The held-out scores of all penalties of a model.

    Attributes
    ----------
    alphas : ndarray of shape (A,)
        All penalties, from the strongest to the weakest.
    scores : ndarray of shape (A,)
        One minus the mean loss on held-out rows: of standardised targets for regression without a log link, and of the
        whole square for the squared error, which is the squared hinge for classes. Minus infinity for penalties that
        were not tried, since stronger ones had stopped gaining.
    start : ndarray of shape (K, m + 1)
        Coefficients at the best penalty, the mean over the folds, on the features on which penalties were compared.
    strengths : ndarray of shape (A,)
        The same penalties as the C of summed losses, for features of mean squared length 1: comparable between feature
        maps of any size. Empty if unknown.
    accuracies : ndarray of shape (A,)
        The share of correctly classified held-out rows; empty for regression.
    calibration : ndarray of shape (A, 2, 3, T) or None
        Only for calibrated candidates: for each penalty the sums over held-out rows that `best_multiplier` needs.
    judging_weight : float
        The total weight of these rows.
    rule : str
        A name in `PENALTY_RULES`.
    fold_scores : ndarray of shape (A, F)
        The scores on each fold of held-out rows, from which a rule may take their standard errors; minus infinity for
        penalties that were not tried. A single column for many rows and rows held out by time; empty if unknown.
    """

    alphas: np.ndarray
    scores: np.ndarray
    start: np.ndarray
    strengths: np.ndarray = field(default_factory=lambda: np.zeros(0))
    accuracies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    calibration: np.ndarray | None = None
    judging_weight: float = 0.0
    rule: str = "auto"
    fold_scores: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def best(self) -> int:
        """The position of the chosen penalty."""
        return PENALTY_RULES[self.rule](self)

    @property
    def alpha(self) -> float:
        """The best penalty."""
        return float(self.alphas[self.best])

    @property
    def score(self) -> float:
        """The score of the chosen penalty."""
        return float(self.scores[self.best])

    @property
    def loss(self) -> float:
        """The mean held-out loss at the best penalty."""
        return 1.0 - self.score

    @property
    def accuracy(self) -> float | None:
        """The share of correctly classified rows at the best penalty; None for regression."""
        return float(self.accuracies[self.best]) if len(self.accuracies) else None

    @property
    def multiplier(self) -> float | None:
        """The inverse temperature at the best penalty; None where candidates were not calibrated."""
        if self.calibration is None:
            return None
        label, uniform = self.calibration[self.best]
        return best_multiplier(label, uniform, self.judging_weight, JUDGED_MULTIPLIERS)


def mean_over_folds(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The plain mean of the scores over choices on different folds; the start is that of the first choice.

    All choices begin with the same penalties, and those that every fold has tried are compared: jointly fitted classes
    end in each fold after the first penalty that gains nothing.
    """
    tried = slice(min(len(choice.scores) for choice in choices))
    found = replace(
        choices[0],
        alphas=choices[0].alphas[tried],
        strengths=choices[0].strengths[tried],
        scores=np.mean([choice.scores[tried] for choice in choices], axis=0),
        accuracies=np.mean([choice.accuracies[tried] for choice in choices], axis=0),
        fold_scores=np.concatenate([choice.fold_scores[tried] for choice in choices], axis=1),
    )
    if found.calibration is None:
        return found
    calibration = np.sum([choice.calibration for choice in choices if choice.calibration is not None], axis=0)
    return replace(found, calibration=calibration, judging_weight=sum(choice.judging_weight for choice in choices))


def clear_gain(choices: Sequence[PenaltyChoice], rivals: Sequence[PenaltyChoice]) -> bool:
    """Whether models are clearly better than rivals on the same folds, each at its best mean penalty."""
    ours, theirs = ([choice.scores[mean_over_folds(judged).best] for choice in judged] for judged in (choices, rivals))
    return is_clear(np.subtract(ours, theirs))


def out_of_fold(
    sums: Mapping[str, np.ndarray], shape: tuple[int, int], held_out: HeldOut
) -> tuple[np.ndarray, np.ndarray, float]:
    """Scores and accuracies over all folds, from the sums of `held_out_block`.

    Parameters
    ----------
    sums : mapping of str to ndarray
        Sums for v versions of A F models; the folds of each penalty are consecutive.
    shape : (int, int)
        A penalties and F folds.
    held_out : HeldOut
        The rule of the folds, for the error.

    Returns
    -------
    scores : ndarray of shape (v, A)
        One minus the mean loss.
    accuracies : ndarray of shape (v, A)
        Of shape (v, 0) for regression.
    weight : float
        The total weight of the judging rows.

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


def scores_of_folds(sums: Mapping[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """The scores of `out_of_fold` on the rows of each fold, (v, A, F); 1 for a fold without rows."""
    weight = np.maximum(sums["weight"].reshape(shape), np.finfo(float).tiny)
    return 1.0 - sums["loss"].reshape(-1, *shape) / weight


def folds_of(held_out: HeldOut, n_rows: float, n_features: int) -> Folds:
    """The folds for a number of rows: enough of them for 900 judging rows, at most five, of at most 50,000 rows."""
    n_rows = max(n_rows, 1.0)
    share = min(held_out.share, _MOST_JUDGING_ROWS / n_rows)
    most = int(np.ceil(_ENOUGH_ROWS / (share * n_rows)))
    count = max(1, min(most, MOST_FOLDS, int(1.0 / share)))
    # all candidates are fitted to rows outside the folds, but no more than 20 for each feature (or 20,000)
    return Folds(replace(held_out, share=share), count, max(_SEEN_A_FEATURE * n_features, _LEAST_SEEN) / n_rows)


def judging_folds(
    held_out: HeldOut, total_weight: float, most: int | None = None, n_rows: int | None = None
) -> list[HeldOut]:
    """The folds that judge penalties: one share of many rows, or five folds of few, which judge every row once.

    Parameters
    ----------
    held_out : HeldOut
    total_weight : float
        Of all rows.
    most : int or None
        The largest number of folds that the rows allow, such as their number of groups; with 1, one share judges.
    n_rows : int or None
        The number of rows, whatever their weights; None is the total weight. A bound on judging rows by their weight
        would leave none of a few heavy ones.
    """
    folds = folds_of(held_out, total_weight, 1)
    count = min(MOST_FOLDS, most or MOST_FOLDS)
    if folds.count == 1 or count == 1:
        fewest = min(total_weight, total_weight if n_rows is None else n_rows)
        return [folds_of(held_out, fewest, 1).held_out]
    return [replace(held_out, share=1.0 / count, first=number / count) for number in range(count)]
