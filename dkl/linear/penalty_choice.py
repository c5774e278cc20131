"""The penalty of a Newton head chosen on held-out rows: all candidates in the same passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton_driver import NewtonProblem, NewtonState
from dkl.linear.softmax_driver import SoftmaxProblem
from dkl.linear.sums import MULTIPLIERS, held_out_block
from dkl.linear.temperature import best_multiplier
from dkl.linear.wide_newton import is_wide
from dkl.protocols.records import Accumulator, BlockSum, Cost

# C beside loss sums on features of squared length 1, from the strongest penalty to the weakest
PENALTIES = {
    "squared_hinge": (0.01, 0.1, 1.0, 10.0, 100.0),
    "squared_error": tuple(10.0 ** (0.5 * step) for step in range(-4, 9)),
}
_OTHER_PENALTIES = tuple(10.0**step for step in range(-3, 5))
# Of classes that are fitted together; the strongest of them cost least.
_JOINT_PENALTIES = tuple(10.0**step for step in range(-2, 7))

# With fewer held-out rows than this, further folds of rows judge, too; more rows than so many judge no better.
_ENOUGH_ROWS = 900
_MOST_FOLDS = 5
_MOST_JUDGING_ROWS = 50_000
# The rows that candidates are fitted on: beside the sum of the losses, the best C hardly depends on their number.
_SEEN_A_FEATURE, _LEAST_SEEN = 20, 20_000
# The passes that a candidate takes before it is judged: from a given start, by fixed Hessians, from zero, and for the
# squared error, whose first step is exact.
_STEPS_WARM, _STEPS_FIXED, _STEPS_COLD, _STEPS_SQUARE = 2, 2, 3, 1
_DECREMENT = 0.01
# The same of losses other than these two: even the best model may lower the objective by little.
_STEPS_OTHERS, _DECREMENT_OF_OTHERS = 6, 1e-4
# The same of all classes together, whose steps are cheap, and many under light penalties.
_STEPS_TOGETHER, _DECREMENT_TOGETHER = 100, 5e-4
# Of the penalties of the squared error every third one is tried on wide rows.
_WIDE_PENALTIES = 3
# Penalties that are told apart where one is known that fewer features prefer.
_NEIGHBOURS = 3
# The same of all classes together, at most: the stronger neighbour first, and then lighter ones.
_MOST_TOGETHER = 4
# Inverse temperatures of candidates, in octaves: fitted to -1 and +1, their decision values are of that size.
_MULTIPLIERS = MULTIPLIERS[(MULTIPLIERS >= 2.0**-4) & (MULTIPLIERS <= 2.0**10)][::2]


@dataclass(frozen=True)
class Folds:
    """Disjoint folds of rows, each a share of all, by the hash that holds rows out: fold 0 is what that holds out.

    Parameters
    ----------
    held_out : HeldOut
    count : int
    seen : float
        The share of all rows, beside the folds, that candidates are fitted on.
    """

    held_out: HeldOut
    count: int
    seen: float = 1.0

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
class Candidates:
    """Linear models for every output, penalty and fold: model ``(k * A + a) * F + f`` of a Newton problem.

    Parameters
    ----------
    problem : NewtonProblem
        Of all of them.
    folds : Folds
    alphas : ndarray of shape (A,)
        From the strongest to the weakest.
    strengths : ndarray of shape (A,)
        The same as C beside the sum of the losses, on features of squared length 1: what features of other sizes share.
    n_outputs : int
        K, the models of one penalty and fold.
    are_near : bool
        They are those near a penalty that is known: several choices have the same ones.
    calibrated : bool
        The rows held out also say which temperature turns decision values into probabilities; of classes alone.
    """

    problem: NewtonProblem
    folds: Folds
    alphas: np.ndarray
    strengths: np.ndarray
    n_outputs: int
    are_near: bool = False
    calibrated: bool = False

    def judged(self, state: NewtonState) -> BlockSum:
        """The record that judges where the candidates stand and where their next steps lead, on the rows held out."""
        shape = (self.n_outputs, len(self.alphas) * self.folds.count, self.problem.width)
        models = np.stack([state.coefficients.reshape(shape), state.proposal.reshape(shape)])
        return self._judging(models, self._judging_loss(), _MULTIPLIERS if self.calibrated else np.zeros(0))

    @property
    def is_joint(self) -> bool:
        """Whether the classes are fitted together, of which none is a problem of its own."""
        return self.problem.loss == "log_loss" and self.n_outputs > 1

    def together(self, alpha: float) -> list[SoftmaxProblem]:
        """The problem of all classes together on the rows that each fold leaves, under one penalty."""
        problem = self.problem
        return [
            SoftmaxProblem(
                problem.feature_map,
                replace(self._outputs(), kept=SeenRows(self.folds, fold, problem.targets.kept)),
                problem.total_weight,
                alpha,
                max_steps=_STEPS_TOGETHER,
                dtype=problem.dtype,
                decrement=_DECREMENT_TOGETHER,
                token=problem.token,
            )
            for fold in range(self.folds.count)
        ]

    def judged_together(self, models: np.ndarray) -> BlockSum:
        """The record that judges models of all classes together, (K, folds, m + 1), by their own loss."""
        return self._judging(models[None], {"name": "softmax"}, np.zeros(0))

    def _outputs(self) -> NewtonTargets:
        """The targets of one penalty and fold."""
        targets, copies = self.problem.targets, len(self.alphas) * self.folds.count
        return replace(targets, models=targets.models[::copies], folds=None, fold=None)

    def _judging(self, models: np.ndarray, loss: dict[str, Any], multipliers: np.ndarray) -> BlockSum:
        """The record that judges models (v, K, c, m + 1), where c counts the folds of each penalty in turn."""
        each, n_multipliers = models.shape[::2][:2], len(multipliers)
        shapes: dict[str, tuple[int, ...]] = {"loss": each, "weight": (models.shape[2],)}
        if self.problem.targets.n_classes is not None:
            shapes |= {"right": shapes["loss"], "rows": shapes["weight"]}
        if n_multipliers:
            shapes |= dict.fromkeys(("label", "uniform"), (*each, 3, n_multipliers))
        return BlockSum(
            name="held-out scores",
            function=held_out_block,
            accumulators={name: Accumulator(shape) for name, shape in shapes.items()},
            operands={
                "feature_map": self.problem.feature_map,
                "models": models,
                "targets": self._outputs(),
                "folds": self.folds,
                "fold": np.tile(np.arange(self.folds.count), models.shape[2] // self.folds.count),
                "dtype": self.problem.dtype,
                "loss": loss,
                "multipliers": multipliers,
            },
            cost=_JudgingCost(self.problem.feature_map, models[..., 0].size, self.folds, n_multipliers),
        )

    def _judging_loss(self) -> dict[str, Any]:
        """The arguments of `newton_loss` for the outputs."""
        problem = self.problem
        quantiles = None if problem.quantiles is None else problem.quantiles[:: problem.n_models // self.n_outputs]
        # classes are told apart by their margins, whichever square was fitted
        squares = problem.targets.n_classes is not None and problem.loss == "squared_error"
        name = "squared_hinge" if squares else problem.loss
        return {"name": name, "epsilon": problem.epsilon, "quantiles": quantiles}

    def nobody_judges(self) -> str:
        """What to do where no row is held out."""
        return (
            f"alpha='auto' is chosen on held-out rows, and validation_fraction={self.folds.held_out.share:g} of so few "
            "rows holds out none; use a larger fraction, or give alpha a number"
        )

    def choose(self, state: NewtonState, sums: dict[str, np.ndarray]) -> PenaltyChoice:
        """The penalty with the best score over all folds; of equals the strongest.

        Raises
        ------
        ValueError
            If no row is held out.
        """
        A, F = len(self.alphas), self.folds.count
        weight = sums["weight"].reshape(A, F).sum(axis=1)
        if weight[0] == 0.0:
            raise ValueError(self.nobody_judges())
        scores = 1.0 - sums["loss"].reshape(2, A, F).sum(axis=2) / weight
        if self.problem.loss == "squared_error":
            # one step leads to the optimum; where it starts is no candidate's
            scores[0] = -np.inf
        best = int(np.argmax(scores.max(axis=0)))
        taken = (scores[1] >= scores[0]).astype(int)
        version = state.proposal if taken[best] else state.coefficients
        accuracies = np.zeros(0)
        if "right" in sums:
            rows = np.maximum(sums["rows"].reshape(A, F).sum(axis=1), np.finfo(float).tiny)
            accuracies = sums["right"].reshape(2, A, F).sum(axis=2)[taken, np.arange(A)] / rows
        start = version.reshape(self.n_outputs, A, F, -1)[:, best].mean(axis=1)
        found = PenaltyChoice(
            float(self.alphas[best]), self.alphas, scores.max(axis=0), start, self.strengths, accuracies
        )
        if not self.calibrated:
            return found
        both = np.stack([sums["label"], sums["uniform"]], axis=2)
        # penalty by penalty those of the version that does better there
        calibration = both.reshape(2, A, F, *both.shape[2:]).sum(axis=2)[scores.argmax(axis=0), np.arange(A)]
        return replace(found, calibration=calibration, judging_weight=float(weight[0]))


@dataclass(frozen=True, eq=False)
class PenaltyChoice:
    """The penalty that held-out rows prefer.

    Attributes
    ----------
    alpha : float
    alphas : ndarray of shape (A,)
        All candidates, from the strongest to the weakest.
    scores : ndarray of shape (A,)
        One minus the mean loss on held-out rows; of standardised targets where these are numbers without a log link,
        and of the whole square for the squared error. Minus infinity where stronger penalties had gained no more.
    start : ndarray of shape (K, m + 1)
        Where the chosen models stand, on the features that penalties were told apart on.
    strengths : ndarray of shape (A,)
        As of `Candidates`; empty where they are not known.
    accuracies : ndarray of shape (A,)
        The share of held-out rows that are given their class; empty for targets that are numbers.
    calibration : ndarray of shape (A, 2, 3, T) or None
        For each penalty, of calibrated candidates, the sums of the rows held out that `best_multiplier` takes.
    judging_weight : float
        The weight of these rows.
    """

    alpha: float
    alphas: np.ndarray
    scores: np.ndarray
    start: np.ndarray
    strengths: np.ndarray = field(default_factory=lambda: np.zeros(0))
    accuracies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    calibration: np.ndarray | None = None
    judging_weight: float = 0.0

    @property
    def multiplier(self) -> float | None:
        """The inverse temperature at the best penalty; None where candidates were not calibrated."""
        if self.calibration is None:
            return None
        label, uniform = self.calibration[int(np.argmax(self.scores))]
        return best_multiplier(label, uniform, self.judging_weight, _MULTIPLIERS)

    @property
    def accuracy(self) -> float | None:
        """Of the penalty with the best score; None for targets that are numbers."""
        return float(self.accuracies[np.argmax(self.scores)]) if len(self.accuracies) else None


@dataclass(frozen=True, eq=False)
class _JudgingCost:
    """What scoring the held-out rows of a block by all candidates costs: those rows alone are mapped."""

    feature_map: FeatureMap
    n_models: int
    folds: Folds
    n_multipliers: int = 0

    def __call__(self, rows: int, columns: int) -> Cost:
        mapping = mapping_flops(columns, self.feature_map)
        # a row is calibrated for the models that have not seen it, with some twenty operations a temperature
        calibrating = 20.0 * self.n_multipliers / self.folds.count
        scores = (2.0 * self.feature_map.n_features + calibrating) * self.n_models
        judging = rows * min(1.0, self.folds.held_out.share * self.folds.count)
        return Cost(judging * (mapping + scores), int(judging * 8 * (self.feature_map.n_features + 2 * self.n_models)))


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
) -> Candidates:
    """All penalties for one problem, on folds of its rows.

    Of several classes they are told apart on the first features alone where the Hessians of all classes would not fit:
    each pass would then serve one model, and the best penalty hardly depends on the number of features.

    Parameters
    ----------
    base : NewtonProblem
        Its alpha does not count.
    held_out : HeldOut
        With a share above 0.
    n_rows : float
    square_length : float
        The mean squared length of mapped rows, which the penalties are relative to.
    start : ndarray of shape (K, m + 1) or None
        A model that all candidates start from.
    single : bool
        No further folds, however few rows are held out.
    near : PenaltyChoice or None
        What fewer features of the same kind have preferred: only that penalty and its neighbours are candidates; of
        classes that are fitted together the stronger one, and lighter ones.
    calibrated : bool
        As of `Candidates`.
    """
    if (first := _first_features(base)) is not None:
        # a model of all features is none of the first ones
        base, start = first, None
    K, folds = base.n_models, _folds(held_out, max(n_rows, 1.0), base.feature_map.n_features)
    folds = replace(folds, count=1) if single else folds
    # a map of zeros has no length; any penalty will do
    length = square_length if square_length > 0.0 else 1.0
    # in wide rows each penalty costs as many products, and a decade more or less tells little
    every = _WIDE_PENALTIES if is_wide(base) and base.loss == "squared_error" else 1
    is_joint = base.loss == "log_loss" and K > 1
    others = _JOINT_PENALTIES if is_joint else _OTHER_PENALTIES
    strengths = np.array(PENALTIES.get(base.loss, others))[::every]
    if near is not None and len(near.strengths):
        # from one number of features to another the best penalty hardly moves
        away = np.abs(np.log(strengths / near.strengths[np.argmax(near.scores)]))
        found = np.sort(np.argsort(away, kind="stable")[:_NEIGHBOURS])
        # all classes together go on to lighter ones while they gain
        strengths = strengths[found[0] : found[0] + _MOST_TOGETHER] if is_joint else strengths[found]
    alphas = length / (strengths * base.total_weight)
    copies = len(alphas) * folds.count
    # one output's Hessians are cheap, and tell penalties apart a little better
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
    return Candidates(problem, folds, alphas, strengths, K, are_near=near is not None, calibrated=calibrated)


def _first_features(base: NewtonProblem) -> NewtonProblem | None:
    """The problem on no more features than Hessians of all models are held of, as long as all; None where all are."""
    whole = base.feature_map
    kept = max(1, base.held_features // whole.columns_a_frequency)
    has_few = base.loss in ("squared_error", "log_loss") or base.n_models == 1
    if is_wide(base) or has_few or kept >= whole.n_frequencies:
        return None
    first = whole.take(np.arange(kept))
    longer = np.sqrt(np.sum(whole.amplitudes**2) / max(np.sum(first.amplitudes**2), np.finfo(np.float64).tiny))
    return replace(base, feature_map=replace(first, amplitudes=longer * first.amplitudes))


def judging_folds(held_out: HeldOut, n_rows: float, most: int | None = None) -> list[HeldOut]:
    """The rows that judge: one share of many rows, the five folds of a cross-validation of few, or at most `most`."""
    folds = _folds(held_out, max(n_rows, 1.0), 1)
    count = min(_MOST_FOLDS, most or _MOST_FOLDS)
    if folds.count == 1 or count == 1:
        return [folds.held_out]
    return [replace(held_out, share=1.0 / count, first=number / count) for number in range(count)]


def agreed(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The penalty with the best mean score over choices among the same candidates; of equals the strongest."""
    scores = np.mean([choice.scores for choice in choices], axis=0)
    best = int(np.argmax(scores))
    accuracies = np.mean([choice.accuracies for choice in choices], axis=0)
    found = replace(choices[0], alpha=float(choices[0].alphas[best]), scores=scores, accuracies=accuracies)
    if found.calibration is None:
        return found
    calibration = np.sum([choice.calibration for choice in choices if choice.calibration is not None], axis=0)
    return replace(found, calibration=calibration, judging_weight=sum(choice.judging_weight for choice in choices))


def clear_gain(choices: Sequence[PenaltyChoice], rivals: Sequence[PenaltyChoice]) -> bool:
    """Whether models do better than rivals on the same folds, at the best penalty of either, and not by chance.

    The paired gains of the folds pass a one-sided t-test at 2.5 %: a smaller gain of the loss may well be none.
    """
    # scores of shape (folds, penalties), of which the penalty with the best mean is compared
    tables = [np.array([choice.scores for choice in judged]) for judged in (choices, rivals)]
    ours, theirs = (table[:, np.argmax(table.mean(axis=0))] for table in tables)
    gains = ours - theirs
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    return bool(gains.mean() > special.stdtrit(len(gains) - 1, 0.975) * error)


def _folds(held_out: HeldOut, n_rows: float, n_features: int) -> Folds:
    """As many folds as make enough judging rows, at most five, each a share of at most 50,000 rows."""
    share = min(held_out.share, _MOST_JUDGING_ROWS / n_rows)
    most = int(np.ceil(_ENOUGH_ROWS / (share * n_rows)))
    count = max(1, min(most, _MOST_FOLDS, int(1.0 / share)))
    # whatever is beside the folds is fitted on by all candidates, up to so many rows a feature
    return Folds(replace(held_out, share=share), count, max(_SEEN_A_FEATURE * n_features, _LEAST_SEEN) / n_rows)
