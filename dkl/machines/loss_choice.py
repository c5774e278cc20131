"""Whether a machine without settings takes the log loss, and what its probabilities are worth on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.svm import LinearSVC

from dkl.data.dataset import Dataset
from dkl.linear import head
from dkl.linear.fitting import LinearProblem, Run, calibrate, calibrate_by_class, calibration_sums
from dkl.linear.judge import PenaltyChoice, agreed, gains
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import chosen_penalty
from dkl.linear.temperature import least_log_loss
from dkl.machines.contenders import GROWTH
from dkl.machines.contest import Race
from dkl.machines.settings import SettledMixin
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import stage_checkpoint

Judged = tuple[FeatureLearner, PenaltyChoice]
On = tuple[Dataset, np.ndarray | None, Run]
# How the penalties of the log loss do on each fold, and what the best one's probabilities are worth.
Told = tuple[list[PenaltyChoice], float]

# C of the log loss is told apart near so many times the one that the squared error prefers: its curvature is smaller.
_NEAR_SQUARES = 10.0
# So many folds tell the losses apart at most: these differ by more than kinds of features do.
_FOLDS = 2
# Variants leave so much of the work at most for telling the losses apart, and for the fit by the log loss: of two
# classes, and of several, where it takes more than it gains unless it is clearly better.
_OF_TWO, _OF_SEVERAL = 0.4, 0.15
# Before variants the losses are told apart, on features that are few yet, where that takes no more than so much of it.
_OF_ASKING = 0.15
# Share of the squared error's log loss that the probabilities of the log loss must gain to do more than variants can,
# which then all leave the work that it takes; of two classes, where that is little beside variants, and of several.
_CLEARLY_BETTER_OF_TWO, _CLEARLY_BETTER_OF_SEVERAL = 0.09, 0.15
# By the log loss what is near the best is told apart where each but the best takes no more than so much of the work.
_SHARE_OF_A_RIVAL = 0.06
# It is not asked for if on the features of a larger variant it would take more than so much of the work.
_OF_LARGER = 0.8


@dataclass(frozen=True)
class LossChoice:
    """Which loss does best.

    Parameters
    ----------
    work : float
        What telling took.
    choices : list of PenaltyChoice or None
        How penalties do by the log loss on the features of each fold; None if it is the squared error, which features
        were chosen by.
    reason : str
    """

    work: float
    choices: list[PenaltyChoice] | None = None
    reason: str = ""


class LossChoosingMixin(SettledMixin):
    """How a machine chooses its loss on features that were chosen; the machine makes learners and linear problems."""

    checkpoint: Any
    _advised: FeatureLearner
    # What the best kind of features has said of the log loss before it was varied: work is kept for a promising one.
    _log_loss: Literal["open", "declined", "promising", "clearly better"] = "open"
    # The temperature of the winner's pilot on rows that its features did not see, and what is added to intercepts.
    _pilot_temperature: float | None = None
    _pilot_shift: np.ndarray | None = None
    _problem_on: Any
    _shape: Any
    _allowed: Any

    def _may_take_log_loss(self, dataset: Dataset) -> bool:
        """Whether the log loss may be taken in place of the squared error: no, where the user has said what is."""
        settings, is_open = self._settings, self.loss is None and self.alpha in (None, "auto")
        return bool(is_open and settings.solver == "newton" and settings.calibrate and dataset.schema.n_classes)

    def _work_of_losses(self, learner: FeatureLearner, n_folds: int, dataset: Dataset, sample: Dataset) -> float:
        """What telling a promising log loss on a learner's features, and a fit by it, take of what may be kept."""
        if self._log_loss not in ("promising", "clearly better"):
            return 0.0
        work = self._work_of_log_loss(learner, n_folds, dataset, sample)
        most = _OF_TWO if dataset.schema.n_classes == 2 else _OF_SEVERAL
        is_kept = self._log_loss == "clearly better" or work <= most * self._allowed(dataset)
        return work if is_kept else 0.0

    def _work_of_log_loss(self, learner: FeatureLearner, n_folds: int, dataset: Dataset, sample: Dataset) -> float:
        """What telling the log loss on a learner's features takes, and a fit by it more than one by squares."""
        whole = self._shape(dataset)
        more = replace(whole, loss="log_loss").fitting(learner) - whole.fitting(learner)
        return self._work_of_telling(learner, n_folds, sample) + float(more)

    def _work_of_telling(self, learner: FeatureLearner, n_folds: int, sample: Dataset) -> float:
        """The work of telling the penalties of the log loss apart on a learner's features."""
        judged = replace(self._shape(sample), loss="log_loss")
        return min(n_folds, self._telling_folds) * judged.telling(learner, is_near=True)

    @property
    def _telling_folds(self) -> int:
        """The folds that tell the losses apart."""
        return 1 if self._log_loss == "clearly better" else _FOLDS

    def _ask_log_loss(
        self, learner: FeatureLearner, pilots: list[Judged], folds: list[HeldOut], on: On, dataset: Dataset
    ) -> float:
        """Set what the best kind says of the log loss before it is varied; what asking took.

        Classes that lie between others hardly ever have the largest score by the squared error: the log loss is worth
        more then than more features, for which its share of the work is kept. What takes too long to ask stays open.
        """
        # what is clearly better, which counts of several classes, a fold tells
        asked, allowed = _FOLDS if dataset.schema.n_classes == 2 else 1, self._allowed(dataset)
        pilots, folds = pilots[:asked], folds[:asked]
        size, larger = learner.get_params(deep=False).get("n_features"), clone(learner)
        if size is not None:
            larger.set_params(n_features=int(GROWTH * size))
        if not (self._may_take_log_loss(dataset) and self._has_hessian(learner, dataset)):
            return 0.0
        telling = self._work_of_telling(learner, len(pilots), on[0])
        ahead = self._work_of_log_loss(larger, 1, dataset, on[0])
        if telling > _OF_ASKING * allowed or ahead > _OF_LARGER * allowed:
            return 0.0
        _, least = self._told(pilots, folds, on, "asked")
        squared = self._probabilities(pilots, folds, on)
        clearly = _CLEARLY_BETTER_OF_TWO if dataset.schema.n_classes == 2 else _CLEARLY_BETTER_OF_SEVERAL
        is_clear, is_better = gains(least, squared, clearly), gains(least, squared)
        self._log_loss = "clearly better" if is_clear else "promising" if is_better else "declined"
        return telling

    def _has_hessian(self, learner: FeatureLearner, dataset: Dataset) -> bool:
        """Whether the features are not too many for one."""
        return bool(self._shape(dataset).features_of(learner) <= head.MOST_FEATURES)

    def _told(self, pilots: list[Judged], folds: list[HeldOut], on: On, stage: str) -> Told:
        """How the penalties of the log loss do on each fold, and what the best one's probabilities are worth."""
        self.loss_, near = "log_loss", near_squares([choice for _, choice in pilots])
        choices = [
            self._told_penalties(pilot, fold, on, f"{stage}-log_loss-{number}", near)
            for number, ((pilot, _), fold) in enumerate(zip(pilots, folds, strict=True))
        ]
        own = [(pilot, choice) for (pilot, _), choice in zip(pilots, choices, strict=True)]
        self.loss_ = "squared_error"
        return choices, self._probabilities(own, folds, on)

    def _ahead_by_log_loss(
        self,
        race: Race,
        won: int,
        pilots: dict[tuple[int, int], Judged],
        fold: HeldOut,
        on: On,
        dataset: Dataset,
    ) -> tuple[int, Told | None]:
        """Of what is near the best, the contender with the least log loss, where that loss is clearly better.

        By the squared error kinds of features are ranked in another way then. As many are told as there is work for;
        what was told of the one that is ahead comes with it, if any was.
        """
        if self._log_loss != "clearly better":
            return won, None
        found, kept, whole = dict[int, Told](), 0.0, replace(self._shape(dataset), loss="log_loss")
        for number in (won, *race.rivals(won)):
            learner = race.contenders[number].learner
            telling = self._work_of_telling(learner, 1, on[0])
            # any of them may be ahead and fitted
            fitting = max(kept, whole.fitting(learner))
            # the one that won is told in any case
            is_cheap = number == won or telling <= _SHARE_OF_A_RIVAL * race.allowed
            is_affordable = race.spent + telling + fitting <= race.allowed and self._has_hessian(learner, dataset)
            if is_cheap and is_affordable:
                found[number] = self._told([pilots[number, 0]], [fold], on, f"rival-{number}")
                race.spent, kept = race.spent + telling, fitting
            elif number == won:
                return won, None
        ahead = min(found, key=lambda number: found[number][1])
        return ahead, found[ahead]

    def _better_loss(
        self,
        pilots: list[Judged],
        folds: list[HeldOut],
        on: On,
        dataset: Dataset,
        left: float,
        expected: float,
        known: Told | None = None,
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
            The share of the squared error that is expected to stay if all of that goes into more landmarks: a log loss
            that leaves more of its own is not worth it.
        known : tuple or None
            What the log loss was found to do on the folds that tell, if that was told already.
        """
        pilots, folds, learner = pilots[: self._telling_folds], folds[: self._telling_folds], self._advised
        if not self._may_take_log_loss(dataset) or self._log_loss == "declined":
            return LossChoice(0.0)
        telling = 0.0 if known else self._work_of_telling(learner, len(pilots), on[0])
        fitting = replace(self._shape(dataset), loss="log_loss").fitting(learner)
        if not self._has_hessian(learner, dataset) or telling + fitting > left:
            return LossChoice(0.0)
        choices, least = known or self._told(pilots, folds, on, "told")
        squared = self._probabilities(pilots, folds, on)
        if not gains(least, squared, 1.0 - expected):
            return LossChoice(telling)
        self.loss_ = "log_loss"
        reason = (
            f"Loss: log loss; the log loss of probabilities on held-out rows is {least:.4f} then, {squared:.4f} with "
            "the squared error."
        )
        return LossChoice(telling, choices, reason)

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
        if self._settings.calibrate:
            self._pilot_temperature, self._pilot_shift = self._calibration_of(*pilot, fold, on)
        chosen, sample = agreed(choices), on[0]
        # C, beside the sum of the losses, is that of the sample: alpha is beside their mean
        share = sample.total_weight / dataset.total_weight
        return replace(chosen, alphas=chosen.alphas * share)

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


def near_squares(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The penalty near which those of the log loss are told apart, by that of the squared error."""
    squares = agreed(choices)
    return replace(squares, strengths=_NEAR_SQUARES * squares.strengths)


def _model_of(pilot: FeatureLearner, choice: PenaltyChoice) -> LinearSVC | None:
    """The linear model of the best penalty on a pilot's features; None if it has none."""
    coefficients = choice.start
    if coefficients.shape[1] != pilot.feature_map_.n_features + 1:
        return None
    model = LinearSVC()
    model.coef_, model.intercept_ = coefficients[:, :-1], coefficients[:, -1]
    return model
