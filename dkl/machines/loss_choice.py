"""Which loss a machine without settings takes for classes, and what its probabilities are worth on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.svm import LinearSVC

from dkl.data.dataset import Dataset
from dkl.linear import wide_newton
from dkl.linear.fitting import LinearProblem, Run, calibrate, calibrate_by_class, calibration_sums
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import chosen_penalty
from dkl.linear.penalty_choice import PenaltyChoice, agreed
from dkl.linear.temperature import least_log_loss
from dkl.machines.contenders import GROWTH
from dkl.machines.settings import SettledMixin
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import stage_checkpoint

Judged = tuple[FeatureLearner, PenaltyChoice]
On = tuple[Dataset, np.ndarray | None, Run]

# What may do better than the squared error, by whose Hessian kinds of features were told apart: of two classes, and of
# more. The log loss of all classes together has a Hessian of each pair of them.
_OTHERS_OF_TWO, _OTHERS = ("log_loss",), ("squared_hinge", "log_loss")
# Of these losses C is told apart near so many times the one that the squared error prefers: their curvature is smaller.
_NEAR_SQUARES = {"log_loss": 10.0}
# So many folds tell losses apart at most: these differ by more than kinds of features do.
_FOLDS = 2
# Variants leave so much of the work at most for telling losses apart, and for the fit by another one; before variants
# losses are told apart, on features that are few yet, where that takes no more than so much of it.
_OF_LOSSES, _OF_ASKING = 0.4, 0.1
# A loss whose log loss is below so much of the squared error's does more than variants can: all of them leave its work.
_CLEARLY_BETTER = 0.85
# Of more classes than these, asking takes more than it gains.
_MOST_ASKED = 5
# A loss is not asked if on the features of a larger variant it would take more than so much of the work.
_OF_LARGER = 0.8
_SPOKEN = {"log_loss": "log loss", "squared_hinge": "squared hinge"}


@dataclass(frozen=True)
class LossChoice:
    """Which loss does best.

    Parameters
    ----------
    work : float
        What telling took.
    choices : list of PenaltyChoice or None
        How penalties do by it on the features of each fold; None if it is the squared error, which features were
        chosen by.
    reason : str
    """

    work: float
    choices: list[PenaltyChoice] | None = None
    reason: str = ""


class LossChoosingMixin(SettledMixin):
    """How a machine chooses its loss on features that were chosen; the machine makes learners and linear problems."""

    checkpoint: Any
    _advised: FeatureLearner
    # The loss that work is kept for, since it did better than the squared error on the best kind of features; whether
    # clearly; and the losses that did no better.
    _promising: str | None = None
    _is_clear: bool = False
    _declined: tuple[str, ...] = ()
    # The temperature of the winner's pilot on rows that its features did not see, and what is added to intercepts.
    _pilot_temperature: float | None = None
    _pilot_shift: np.ndarray | None = None
    _problem_on: Any
    _shape: Any
    _allowed: Any

    def _other_losses(self, dataset: Dataset) -> tuple[str, ...]:
        """The losses that may do better than the squared error; none where the user has said what is taken."""
        settings, is_open = self._settings, self.loss is None and self.alpha in (None, "auto")
        n_classes = dataset.schema.n_classes
        if not (is_open and settings.solver == "newton" and settings.calibrate and n_classes):
            return ()
        return _OTHERS_OF_TWO if n_classes == 2 else _OTHERS

    def _work_of_losses(self, learner: FeatureLearner, n_folds: int, dataset: Dataset, sample: Dataset) -> float:
        """What telling the promising loss on a learner's features, and a fit by it, take of what may be kept."""
        if self._promising is None:
            return 0.0
        work = self._work_by(self._promising, learner, n_folds, dataset, sample)
        return work if self._is_clear or work <= _OF_LOSSES * self._allowed(dataset) else 0.0

    def _work_by(self, loss: str, learner: FeatureLearner, n_folds: int, dataset: Dataset, sample: Dataset) -> float:
        """What telling a loss on a learner's features takes, and a fit by it more than one by the squared error."""
        whole = self._shape(dataset)
        more = replace(whole, loss=loss).fitting(learner) - whole.fitting(learner)
        return self._work_of_telling(loss, learner, n_folds, sample) + float(more)

    def _work_of_telling(self, loss: str, learner: FeatureLearner, n_folds: int, sample: Dataset) -> float:
        """The work of telling the penalties of a loss apart on a learner's features, on the folds that tell losses."""
        judged = replace(self._shape(sample), loss=loss)
        return min(n_folds, self._telling_folds) * judged.telling(learner, is_near=loss in _NEAR_SQUARES)

    @property
    def _telling_folds(self) -> int:
        """The folds that tell losses apart."""
        return 1 if self._is_clear else _FOLDS

    def _ask_losses(
        self, learner: FeatureLearner, pilots: list[Judged], folds: list[HeldOut], on: On, dataset: Dataset
    ) -> float:
        """Set which loss is promising, by the best kind before it is varied; what asking took.

        Classes that lie between others hardly ever have the largest score by the squared error: another loss is worth
        more then than more features, for which its share of the work is kept. What takes too long to ask stays open.
        """
        n_classes, work = dataset.schema.n_classes or 0, dict[str, float]()
        if n_classes > _MOST_ASKED:
            return 0.0
        # of several classes only what is clearly better is worth its work, which a fold tells
        several = n_classes > 2
        asked = 1 if several else _FOLDS
        pilots, folds = pilots[:asked], folds[:asked]
        size, larger, allowed = learner.get_params(deep=False).get("n_features"), clone(learner), self._allowed(dataset)
        if size is not None:
            larger.set_params(n_features=int(GROWTH * size))
        for loss in self._other_losses(dataset) if self._has_hessian(learner, dataset) else ():
            telling = self._work_of_telling(loss, learner, len(pilots), on[0])
            ahead = self._work_by(loss, larger, 1, dataset, on[0])
            if telling <= _OF_ASKING * allowed and ahead <= _OF_LARGER * allowed:
                work[loss] = telling
        found = {loss: self._told(loss, pilots, folds, on, "asked")[1] for loss in work}
        if found:
            self.loss_ = "squared_error"
            best = min(found, key=lambda loss: found[loss])
            squared = self._probabilities(pilots, folds, on)
            self._is_clear = found[best] < _CLEARLY_BETTER * squared
            self._promising = best if self._is_clear or (found[best] < squared and not several) else None
            self._declined = tuple(loss for loss in found if found[loss] >= squared)
        return sum(work.values())

    def _has_hessian(self, learner: FeatureLearner, dataset: Dataset) -> bool:
        """Whether the features are not too many for one."""
        return bool(self._shape(dataset).features_of(learner) <= wide_newton.MOST_FEATURES)

    def _told(
        self, loss: str, pilots: list[Judged], folds: list[HeldOut], on: On, stage: str
    ) -> tuple[list[PenaltyChoice], float]:
        """How the penalties of a loss do on the features of each fold, and what its best probabilities are worth."""
        self.loss_, near = loss, near_squares(loss, [choice for _, choice in pilots])
        choices = [
            self._told_penalties(pilot, fold, on, f"{stage}-{loss}-{number}", near)
            for number, ((pilot, _), fold) in enumerate(zip(pilots, folds, strict=True))
        ]
        own = [(pilot, choice) for (pilot, _), choice in zip(pilots, choices, strict=True)]
        return choices, self._probabilities(own, folds, on)

    def _better_loss(
        self, pilots: list[Judged], folds: list[HeldOut], on: On, dataset: Dataset, left: float, expected: float
    ) -> LossChoice:
        """Set the loss whose probabilities are best on held-out rows.

        Parameters
        ----------
        pilots : list of (FeatureLearner, PenaltyChoice)
            The features of each fold, and how penalties do by the squared error.
        folds : list of HeldOut
            As many.
        on : tuple
            The sample that judges, its weights, and how it is passed over.
        dataset : Dataset
            All rows, to which the last model is fitted.
        left : float
            The work that is left for telling the losses apart and for the last fit.
        expected : float
            The share of the squared error that is expected to stay if all of that goes into more landmarks: a loss
            that leaves more of its own is not worth it.
        """
        pilots, folds = pilots[: self._telling_folds], folds[: self._telling_folds]
        found, taken = dict[str, tuple[list[PenaltyChoice], float]](), 0.0
        able = [loss for loss in self._other_losses(dataset) if loss not in self._declined]
        if self._promising and self._is_clear:
            able = [self._promising]
        for loss in able if self._has_hessian(self._advised, dataset) else ():
            telling = self._work_of_telling(loss, self._advised, len(pilots), on[0])
            if taken + telling + replace(self._shape(dataset), loss=loss).fitting(self._advised) <= left:
                taken += telling
                found[loss] = self._told(loss, pilots, folds, on, "told")
        if not found:
            return LossChoice(0.0)
        squared = self._probabilities(pilots, folds, on)
        self.loss_ = min(found, key=lambda loss: found[loss][1])
        choices, least = found[self.loss_]
        if least >= expected * squared:
            self.loss_ = "squared_error"
            return LossChoice(taken)
        others = {"squared error": squared, **{_SPOKEN[loss]: figure for loss, (_, figure) in found.items()}}
        best = _SPOKEN[self.loss_]
        told = ", ".join(f"{figure:.4f} with the {name}" for name, figure in others.items() if name != best)
        reason = f"Loss: {best}; the log loss of probabilities on held-out rows is {least:.4f} then, {told}."
        return LossChoice(taken, choices, reason)

    def _probabilities(self, judged: Sequence[Judged], folds: Sequence[HeldOut], on: On) -> float:
        """The mean over folds of the log loss of calibrated probabilities."""
        return float(np.mean([self._calibrated_loss(*one, fold, on) for one, fold in zip(judged, folds, strict=True)]))

    def _settled_penalty(
        self,
        pilot: Judged,
        choices: list[PenaltyChoice],
        fold: HeldOut,
        on: On,
        dataset: Dataset,
    ) -> PenaltyChoice | None:
        """The penalty that the folds agree on, for all rows, and with it the temperature; None for stochastic steps."""
        if self._settings.solver != "newton":
            return None
        # the log loss of several classes is fitted for all of them together, and judged one against the rest
        is_joint = self._settings.loss == "log_loss" and (on[0].schema.n_classes or 0) > 2
        if self._settings.calibrate and not is_joint:
            self._pilot_temperature, self._pilot_shift = self._calibration_of(*pilot, fold, on)
        chosen, sample = agreed(choices), on[0]
        # C, beside the sum of the losses, is that of the sample: alpha is beside their mean
        share = sample.total_weight / dataset.total_weight
        return replace(chosen, alpha=chosen.alpha * share, alphas=chosen.alphas * share)

    def _told_penalties(
        self,
        pilot: FeatureLearner,
        fold: HeldOut,
        on: On,
        stage: str,
        near: PenaltyChoice | None = None,
    ) -> PenaltyChoice:
        """How the penalties do on a fold that the features have not seen."""
        sample, weights, run = on
        problem = self._problem_on(pilot, sample, weights)
        problem = replace(problem, validation=fold, choice=near, **self._judging_loss())
        own = replace(run, checkpoint=stage_checkpoint(self.checkpoint, f"linear-{stage}"))
        return chosen_penalty(problem, sample.source, own)

    def _calibration_of(
        self,
        pilot: FeatureLearner,
        choice: PenaltyChoice,
        fold: HeldOut,
        on: On,
    ) -> tuple[float | None, np.ndarray | None]:
        """The temperature of the winner's probabilities on rows that its features did not see; None if it has no model.

        The model itself may then be fitted to all rows. Where rows are held out by time, classes may have become rarer
        or more frequent: what is to be added to the intercepts (K models) is told too, where that is sure.
        """
        sample, _, run = on
        if (model := _model_of(pilot, choice)) is None:
            return None, None
        problem = self._calibration_problem(pilot, fold, on)
        if sample.schema.held_by == "time" and (found := calibrate_by_class(problem, model, sample.source, run)):
            slope, shifts = found
            # two classes have one model, whose score is that of the second one less that of the first
            shifts = shifts[1:] - shifts[:1] if len(shifts) == 2 else shifts
            return 1.0 / slope, shifts / slope
        return 1.0 / calibrate(problem, model, sample.source, run), None

    def _calibrated_loss(
        self,
        pilot: FeatureLearner,
        choice: PenaltyChoice,
        fold: HeldOut,
        on: On,
    ) -> float:
        """The log loss of the best penalty's probabilities on the rows of a fold; infinite if it has no model."""
        model = _model_of(pilot, choice)
        problem = self._calibration_problem(pilot, fold, on)
        return np.inf if model is None else least_log_loss(*calibration_sums(problem, model, on[0].source, on[2]))

    def _calibration_problem(self, pilot: FeatureLearner, fold: HeldOut, on: On) -> LinearProblem:
        """The linear problem of a pilot that rows of a fold calibrate."""
        problem: LinearProblem = self._problem_on(pilot, on[0], on[1])
        return replace(problem, held_out=fold)


def near_squares(loss: str, choices: Sequence[PenaltyChoice]) -> PenaltyChoice | None:
    """The penalty near which those of a loss are told apart, by that of the squared error; None tells all apart."""
    if loss not in _NEAR_SQUARES:
        return None
    squares = agreed(choices)
    return replace(squares, strengths=_NEAR_SQUARES[loss] * squares.strengths)


def _model_of(pilot: FeatureLearner, choice: PenaltyChoice) -> LinearSVC | None:
    """The linear model of the best penalty on a pilot's features; None if it has none."""
    coefficients = choice.start
    if coefficients.shape[1] != pilot.feature_map_.n_features + 1:
        return None
    model = LinearSVC()
    model.coef_, model.intercept_ = coefficients[:, :-1], coefficients[:, -1]
    return model
