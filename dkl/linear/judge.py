"""Compares models on rows that they have not seen: folds, out-of-fold scores, and when a gain is significant.

`penalty_candidates` makes the models among which a penalty is chosen; these `Candidates` are fitted in the same passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from dkl.kernels.maps import mapping_flops, mapping_scratch, newton_tile
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.head import MOST_FEATURES, NewtonProblem, NewtonState, fold_sums
from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import MULTIPLIERS, held_out_block
from dkl.linear.temperature import best_multiplier
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.registry import PENALTY_RULES

# With fewer judging rows than the first number further folds judge, too; the most folds; and the most judging rows,
# since more do not make comparisons better. A sample of the automatic machine usually has the first number of rows for
# each of its folds.
ENOUGH_ROWS, MOST_FOLDS, _MOST_JUDGING_ROWS = 800, 5, 50_000
# Rows that compared models are fitted to, for each feature and at least: the best C hardly depends on their number. The
# automatic machine samples as many.
_SEEN_A_FEATURE, LEAST_SEEN = 20, 20_000
# Inverse temperatures for compared models: fitted to -1 and +1, their decision values have about that size.
JUDGED_MULTIPLIERS = MULTIPLIERS[(MULTIPLIERS >= 2.0**-4) & (MULTIPLIERS <= 2.0**10)][::2]
# Probability that a gain is called clear although there is none.
_BY_CHANCE = 0.025
# A difference of two losses up to this size counts as rounding.
_ROUNDING = 1e-12
# Folds of a cross-validation, and rows that a model holds out by itself, follow from the same hash, so they need
# different seeds: otherwise a model with the same seed would hold out a whole fold.
_FOLD_SALT = 0x464F_4C44

# C, the factor of the summed loss, for features of mean squared length 1, from the strongest penalty to the weakest.
PENALTIES = {
    "squared_hinge": (0.01, 0.1, 1.0, 10.0, 100.0),
    "squared_error": tuple(10.0 ** (0.5 * step) for step in range(-4, 9)),
}
OTHER_PENALTIES = tuple(10.0**step for step in range(-3, 5))
# The same for jointly fitted classes, in this order, since fits with strong penalties cost least.
_JOINT_PENALTIES = tuple(10.0**step for step in range(-2, 7))

# The most Newton steps of a candidate before it is judged: from a given start, with fixed Hessians, from zero, and for
# the squared error, whose first step is exact.
_STEPS_WARM, _STEPS_FIXED, _STEPS_COLD, _STEPS_SQUARE = 2, 2, 3, 1
# Steps of the squared hinge and the squared error end when the next one promises less than this share of the objective.
_DECREMENT = 0.01
# The same for all other losses, with the share of the objective at which steps end, smaller since even the best model
# lowers the objective by little.
_STEPS_OTHERS, _DECREMENT_OF_OTHERS = 6, 1e-4
# The same for jointly fitted classes, whose steps are cheap, and many with weak penalties.
_JOINT_STEPS, _JOINT_DECREMENT = 100, 5e-4
# On wide rows only every third penalty of the squared error is tried.
_WIDE_PENALTIES = 3
# Penalties that are compared around the best one of a smaller model.
NEIGHBOURS = 3
# The same for jointly fitted classes, at most: the stronger neighbour first, then weaker ones.
_MOST_JOINT = 4


def gains(loss: float, before: float, share: float = 0.0) -> bool:
    """Whether `loss` is lower than `before` by more than this share of `before`; any finite loss is below infinity.

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

    def within(self, numbers: Sequence[int], held_with: np.ndarray) -> np.ndarray:
        """A mask (n,) that is True for the rows whose fold is one of `numbers`."""
        return np.isin(self(held_with), numbers)

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
        A name in `PENALTY_RULES` of `dkl.registry`.
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
        return int(PENALTY_RULES[self.rule].function(self))

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
    if len(choices) == 1:
        return choices[0]
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
            f"penalties are compared on held-out rows, and validation_fraction={held_out.share:g} of so few rows holds "
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
    """The folds for a number of rows: enough of them for 800 judging rows, at most five, of at most 50,000 rows."""
    n_rows = max(n_rows, 1.0)
    share = min(held_out.share, _MOST_JUDGING_ROWS / n_rows)
    most = int(np.ceil(ENOUGH_ROWS / (share * n_rows)))
    count = max(1, min(most, MOST_FOLDS, int(1.0 / share)))
    # all candidates are fitted to rows outside the folds, but no more than 20 for each feature (or 20,000)
    return Folds(replace(held_out, share=share), count, max(_SEEN_A_FEATURE * n_features, LEAST_SEEN) / n_rows)


def judging_folds(
    held_out: HeldOut, total_weight: float, most: int | None = None, n_rows: int | None = None
) -> list[HeldOut]:
    """The folds that judge penalties: one share of many rows, or folds of few, which judge every row once.

    These are five folds of equal size, or `most` of them, whatever the share is.

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


def comparing_loss(loss: str, *, has_classes: bool) -> str:
    """The loss on held-out rows that compares models which minimise `loss`: of classes by their margins.

    >>> comparing_loss("squared_error", has_classes=True), comparing_loss("log_loss", has_classes=True)
    ('squared_hinge', 'log_loss')
    """
    return "squared_hinge" if has_classes and loss == "squared_error" else loss


@dataclass(frozen=True, eq=False)
class Candidates:
    """Linear models for every output, penalty and fold: model ``(k * A + a) * F + f`` of a Newton problem.

    Parameters
    ----------
    problem : NewtonProblem
        The Newton problem of all models.
    folds : Folds
    alphas : ndarray of shape (A,)
        The penalties, from the strongest to the weakest.
    strengths : ndarray of shape (A,)
        The same as the C of summed losses, for features of mean squared length 1: comparable between feature maps.
    n_outputs : int
        K, the models for one penalty and fold.
    are_near : bool
        Whether these are the penalties near an earlier choice, which are the same in every fold.
    calibrated : bool
        Whether the held-out rows also calibrate the temperature of probabilities; only for classes.
    rule : str
        The name in `PENALTY_RULES` by which one is chosen.
    """

    problem: NewtonProblem
    folds: Folds
    alphas: np.ndarray
    strengths: np.ndarray
    n_outputs: int
    are_near: bool = False
    calibrated: bool = False
    rule: str = "auto"

    def judged(self, state: NewtonState) -> BlockSum:
        """The record that judges candidates on held-out rows, at their accepted points and after their next steps."""
        shape = self.n_outputs, len(self.alphas) * self.folds.count, -1
        versions = [version.reshape(shape) for version in self._versions(state)]
        models = versions[0][None] if len(versions) == 1 else np.stack(versions)
        return self._judging(models, self._judging_loss(), JUDGED_MULTIPLIERS if self.calibrated else np.zeros(0))

    def _versions(self, state: NewtonState) -> list[np.ndarray]:
        """The accepted points and those after the next steps; for squared errors only the latter, the optimum."""
        return [state.proposal] if self.problem.loss == "squared_error" else [state.coefficients, state.proposal]

    def judged_by_sums(self, state: NewtonState) -> dict[str, np.ndarray] | None:
        """The sums of `judged`, computed from the sums of each fold without a pass; None if they do not suffice.

        They do not for classes, which are judged by margins.
        """
        if state.by_fold is None or self.problem.targets.n_classes is not None:
            return None
        A, F = len(self.alphas), self.folds.count
        moves = state.directions.reshape(self.n_outputs, A, F, self.problem.width)
        _, *folds = fold_sums(state.by_fold)
        # a step from the start is a model of the residuals at the start
        losses = [each.losses(moves[:, :, fold], self.problem.dtype) for fold, each in enumerate(folds)]
        computed = [loss for loss in losses if loss is not None]
        if len(computed) < F:
            return None
        loss = np.stack(computed, axis=2).mean(axis=0).reshape(1, -1)
        return {"loss": loss, "weight": np.tile([each.weight for each in folds], A)}

    @property
    def is_joint(self) -> bool:
        """Whether the classes are fitted jointly, so that none is a problem of its own."""
        return self.problem.loss == "log_loss" and self.n_outputs > 1

    def joint_problems(self, alpha: float) -> list[NewtonProblem]:
        """The joint problem of all classes for each fold, on the rows outside it, with one penalty."""
        return [
            replace(
                self.problem.jointly(),
                targets=replace(self._outputs(), kept=SeenRows(self.folds, fold, self.problem.targets.kept)),
                alpha=alpha,
                max_steps=_JOINT_STEPS,
                decrement=_JOINT_DECREMENT,
                token=self.problem.token,
            )
            for fold in range(self.folds.count)
        ]

    def judged_jointly(self, models: np.ndarray) -> BlockSum:
        """The record that judges joint models, (K, folds, m + 1), by the log loss of all classes."""
        return self._judging(models[None], {"name": "softmax"}, np.zeros(0))

    def _outputs(self) -> NewtonTargets:
        """The targets of the models for one penalty and fold."""
        targets, copies = self.problem.targets, len(self.alphas) * self.folds.count
        return replace(targets, models=targets.models[::copies], folds=None, fold=None)

    def _judging(self, models: np.ndarray, loss: dict[str, Any], multipliers: np.ndarray) -> BlockSum:
        """The record that judges models (v, K, c, m + 1); c enumerates the folds of each penalty."""
        each, n_multipliers = models.shape[::2][:2], len(multipliers)
        shapes: dict[str, tuple[int, ...]] = {"loss": each, "weight": (models.shape[2],)}
        if self.problem.targets.n_classes is not None:
            shapes |= {"right": shapes["loss"], "rows": shapes["weight"]}
        if n_multipliers:
            shapes |= dict.fromkeys(("label", "uniform"), (*each, 3, n_multipliers))
        feature_map = self.problem.feature_map

        def cost(rows: int, columns: int) -> Cost:
            # rows that judge nothing are not mapped; each of the others calibrates the models that were fitted without
            # it, with about twenty operations for each temperature
            n_models, mapping = models[..., 0].size, mapping_flops(columns, feature_map)
            calibrating = 20.0 * n_multipliers / self.folds.count
            scores = (2.0 * feature_map.n_features + calibrating) * n_models
            judging = rows * min(1.0, self.folds.held_out.share * self.folds.count)
            # at most twelve numbers of every row while its fold is found; of each that judges its columns, targets and
            # two weights for each candidate; of the rows that are mapped at once the features, and six numbers for each
            # model
            beside = columns + self.n_outputs + 2 * models.shape[2] + 6
            m, dtype = feature_map.n_features, self.problem.dtype
            together = np.dtype(dtype).itemsize * m + 48 * n_models
            scratch = 8 * (12 * rows + judging * beside) + min(newton_tile(m, dtype), judging) * together
            return Cost(judging * (mapping + scores), math.ceil(scratch) + mapping_scratch(feature_map))

        return BlockSum(
            name="held-out scores",
            function=held_out_block,
            accumulators={name: Accumulator(shape) for name, shape in shapes.items()},
            operands={
                "feature_map": feature_map,
                "models": models,
                "targets": self._outputs(),
                "folds": self.folds,
                "fold": np.tile(np.arange(self.folds.count), models.shape[2] // self.folds.count),
                "dtype": self.problem.dtype,
                "loss": loss,
                "multipliers": multipliers,
            },
            cost=cost,
        )

    def _judging_loss(self) -> dict[str, Any]:
        """The arguments of `newton_loss` for the outputs."""
        problem = self.problem
        quantiles = None if problem.quantiles is None else problem.quantiles[:: problem.n_models // self.n_outputs]
        name = comparing_loss(problem.loss, has_classes=problem.targets.n_classes is not None)
        return {"name": name, "epsilon": problem.epsilon, "quantiles": quantiles}

    def choose(self, state: NewtonState, sums: dict[str, np.ndarray]) -> PenaltyChoice:
        """The scores of the penalties over all folds, each at the better of its accepted points and its next steps.

        Raises
        ------
        ValueError
            If no row is held out.
        """
        A, F = len(self.alphas), self.folds.count
        scores, accuracies, weight = out_of_fold(sums, (A, F), self.folds.held_out)
        # of equal versions the last one is used
        version_of, each = last_least(-scores), np.arange(A)
        accuracies = accuracies[version_of, each] if accuracies.size else np.zeros(0)
        choice = PenaltyChoice(
            self.alphas,
            scores.max(axis=0),
            np.zeros((0, 0)),
            self.strengths,
            accuracies,
            rule=self.rule,
            fold_scores=scores_of_folds(sums, (A, F))[version_of, each],
        )
        models = np.arange(self.problem.n_models).reshape(self.n_outputs, A, F)[:, choice.best]
        start = self._versions(state.of_models(models.ravel()))[version_of[choice.best]]
        start = start.reshape(self.n_outputs, F, -1).mean(axis=1)
        if not self.calibrated:
            return replace(choice, start=start)
        both = np.stack([sums["label"], sums["uniform"]], axis=2)
        calibration = both.reshape(-1, A, F, *both.shape[2:]).sum(axis=2)[version_of, each]
        return replace(choice, start=start, calibration=calibration, judging_weight=weight)


def penalty_candidates(
    base: NewtonProblem,
    held_out: HeldOut,
    *,
    n_rows: float,
    square_length: float,
    start: np.ndarray | None,
    single: bool = False,
    near: PenaltyChoice | None = None,
    calibrated: bool = False,
    rule: str = "auto",
) -> Candidates:
    """Models at the penalties of the loss, on folds of the rows of one problem.

    With `near` they are the three penalties nearest to the best one there, and of very many features every third
    penalty of the squared error. If the Hessians of several classes take more than 64 MiB, penalties are compared on
    the first features alone, as many as do not: each pass would otherwise serve one model, and the best penalty hardly
    depends on the number of features.

    Parameters
    ----------
    base : NewtonProblem
        Its alpha is ignored.
    held_out : HeldOut
        Its share must be positive.
    n_rows : float
    square_length : float
        The mean squared length of mapped rows, by which the penalties are scaled.
    start : ndarray of shape (K, m + 1) or None
        The model of all features from which all candidates start. It is ignored where they have fewer features.
    single : bool
        Use one fold only, however few rows it has.
    near : PenaltyChoice or None
        The choice on fewer features of the same kind: only its best penalty and the neighbours are candidates; for
        jointly fitted classes the stronger neighbour and weaker ones. A choice of one penalty has no neighbours.
    calibrated : bool
    rule : str
        As in `Candidates`.
    """
    if (first := _first_features(base)) is not None:
        # a model of all features does not fit the first ones
        base, start = first, None
    K, folds = base.n_models, folds_of(held_out, n_rows, base.feature_map.n_features)
    folds = replace(folds, count=1) if single else folds
    # features that are all zero have no length, and any penalty will do
    length = square_length if square_length > 0.0 else 1.0
    # of very wide rows the products of each penalty are costly, and steps finer than a decade and a half gain little
    is_costly = base.loss == "squared_error" and base.feature_map.n_features > MOST_FEATURES
    every = _WIDE_PENALTIES if is_costly else 1
    is_joint = base.loss == "log_loss" and K > 1
    others = _JOINT_PENALTIES if is_joint else OTHER_PENALTIES
    strengths = np.array(PENALTIES.get(base.loss, others))[::every]
    if near is not None and len(near.strengths):
        # the best penalty hardly changes with the number of features
        away = np.abs(np.log(strengths / near.strengths[near.best]))
        # of a single penalty only the nearest one is fitted
        nearest = np.sort(np.argsort(away, kind="stable")[: min(NEIGHBOURS, len(near.strengths))])
        # jointly fitted classes continue with weaker penalties while these gain
        is_path = is_joint and len(nearest) > 1
        strengths = strengths[nearest[0] : nearest[0] + _MOST_JOINT] if is_path else strengths[nearest]
    alphas = length / (strengths * base.total_weight)
    copies = len(alphas) * folds.count
    # a single output has cheap Hessians, and exact ones compare penalties slightly better
    fixed = start is not None and folds.count == 1 and K > 1 and base.loss == "squared_hinge"
    if base.loss not in PENALTIES:
        max_steps = _STEPS_OTHERS
    elif base.loss == "squared_error":
        max_steps = _STEPS_SQUARE
    elif start is None:
        max_steps = _STEPS_COLD
    else:
        max_steps = _STEPS_FIXED if fixed else _STEPS_WARM
    targets = replace(
        base.targets,
        models=np.repeat(base.targets.models, copies),
        folds=folds,
        fold=np.tile(np.arange(folds.count), K * len(alphas)),
    )
    problem = replace(
        base,
        targets=targets,
        alpha=np.tile(np.repeat(alphas, folds.count), K),
        decrement=_DECREMENT if base.loss in PENALTIES else _DECREMENT_OF_OTHERS,
        max_steps=max_steps,
        start=None if start is None else np.repeat(start, copies, axis=0),
        fixed=fixed,
        quantiles=None if base.quantiles is None else np.repeat(base.quantiles, copies),
    )
    return Candidates(problem, folds, alphas, strengths, K, are_near=near is not None, calibrated=calibrated, rule=rule)


def _first_features(base: NewtonProblem) -> NewtonProblem | None:
    """The problem on fewer features, if the Hessians of all models take more than 64 MiB; None if they do not."""
    whole = base.feature_map
    kept = max(1, base.most_features_with_hessians // whole.columns_a_frequency)
    has_few = base.loss in ("squared_error", "log_loss") or base.n_models == 1
    if base.is_wide or has_few or kept >= whole.n_frequencies:
        return None
    first = whole.take(np.arange(kept))
    longer = np.sqrt(np.sum(whole.amplitudes**2) / max(np.sum(first.amplitudes**2), np.finfo(np.float64).tiny))
    return replace(base, feature_map=replace(first, amplitudes=longer * first.amplitudes))
