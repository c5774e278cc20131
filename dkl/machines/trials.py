"""One trial of a candidate: features are learned without a held-out fold, and penalties are compared on the fold.

Trials use a sample, which one pass reads into memory where it is small enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC

from dkl.data.dataset import Dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.rows import RowSource
from dkl.data.store.blocking import MEMORY_BLOCKS, memory_block_rows, row_bytes
from dkl.linear.fitting import (
    NEWTON_LOSSES,
    LinearProblem,
    Run,
    calibrate,
    calibrate_by_class,
    calibration_sums,
    chosen_penalty,
    mean_square_length,
    target_moments,
)
from dkl.linear.judge import ENOUGH_ROWS, PenaltyChoice, judging_folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.summary import TargetMoments
from dkl.linear.temperature import least_log_loss
from dkl.machines.contenders import Contender, contenders, has_columns_alone, usual_advice
from dkl.machines.effort import EFFORTS, JUDGING_SHARE, MOST_SPENT, Effort, Shape
from dkl.machines.settings import Knobs, Settings
from dkl.machines.suggest import Advice
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import stage_checkpoint
from dkl.methods.fit_context import FitContext
from dkl.passes.loop import PassResult
from dkl.protocols.block import Block
from dkl.protocols.records import LARGEST_ACCUMULATOR, RowSample
from dkl.solvers.losses import LOG_LINK

Judged = tuple[FeatureLearner, PenaltyChoice]
"""Features learned without the rows of a fold, and the held-out scores of each penalty on these rows."""


@dataclass(frozen=True)
class Terms:
    """The parameters of a machine that its choice of features depends on.

    Parameters
    ----------
    name : str
        The machine's class, for messages.
    effort : {"fast", "balanced", "best"}
    knobs : Knobs
        The size, scaling and bandwidth that the user has set.
    settings : Settings
        Loss, penalty, solver and calibration after open ones were settled for the rows.
    takes_log_loss : bool
        Whether the log loss may replace the squared error: the user has set neither loss nor penalty.
    finds_categories : bool
        Whether numbers and crosses may become categories: the user has not said which columns are categorical.
    validation_fraction : float
    seed : int
    time_limit : float or None
    trials : sequence of int or None
        The numbers of the candidates to try, in order; None tries all that the budget allows.
    checkpoint : str or None
    new_learner : callable
        Copies a feature learner with the machine's seed, device, progress and memory limit. Its second argument, the
        stage, names the folder of its checkpoint.
    new_problem : callable
        The machine's linear problem on fitted features, a dataset and class weights.
    """

    name: str
    effort: str
    knobs: Knobs
    settings: Settings
    takes_log_loss: bool
    finds_categories: bool
    validation_fraction: float
    seed: int
    time_limit: float | None
    trials: Sequence[int] | None
    checkpoint: Any
    new_learner: Callable[[FeatureLearner, str], FeatureLearner]
    new_problem: Callable[[FeatureLearner, Dataset, np.ndarray | None], LinearProblem]

    @property
    def judging_loss(self) -> str:
        """The loss that trials minimise: the machine's own if Newton steps minimise it, else the squared error.

        Held-out rows compare candidates by the same loss, but classes by the squared hinge where it is the squared
        error (`comparing_loss`).
        """
        return self.settings.loss if self.settings.loss in NEWTON_LOSSES else "squared_error"

    @property
    def budget(self) -> Effort:
        """The budget of the choice, and the sizes it begins with."""
        return EFFORTS[self.effort]

    def shape(self, dataset: Dataset, loss: str | None = None) -> Shape:
        """The numbers of rows, columns and linear models from which work is computed."""
        n_classes = dataset.schema.n_classes
        n_models = dataset.schema.n_targets or 1 if n_classes is None else 1 if n_classes == 2 else n_classes
        return Shape(dataset.n_rows, dataset.n_columns, n_models, loss or self.judging_loss)

    def allowed(self, dataset: Dataset, own_columns: int | None = None) -> float:
        """The budget of the whole fit; columns beyond `own_columns` (computed from categories) do not enlarge it."""
        shape = self.shape(dataset)
        n_columns = shape.n_columns if own_columns is None else min(own_columns, shape.n_columns)
        return self.budget.allowed(replace(shape, n_columns=n_columns))

    def contenders(self, dataset: Dataset, advice: Advice | None = None) -> list[Contender]:
        """The kinds of features that apply to a dataset, the simplest first; without advice those that plans assume."""
        return contenders(dataset, advice or usual_advice(), self.budget, self.knobs, loss=self.settings.loss)

    def advised_rows(self, dataset: Dataset) -> int:
        """The rows on which scalings and bandwidths are compared; 0 where there are only the columns themselves."""
        return 0 if has_columns_alone(dataset, self.knobs) else self.budget.advised_rows

    def sample(self, dataset: Dataset, own_columns: int | None = None, most_folds: int | None = None) -> Sample:
        """The rows that candidates are tried on (all of them if they are few), and the folds that judge them."""
        n_rows = self._sampled_rows(dataset, own_columns)
        rows = dataset if dataset.n_rows <= n_rows else dataset.thin(n_rows, self.seed)
        held_out = HeldOut(max(JUDGING_SHARE, self.validation_fraction), self.seed)
        folds = judging_folds(held_out, rows.total_weight, rows.source.most_folds, rows.n_rows)
        enough = int(np.ceil(ENOUGH_ROWS / (folds[0].share * rows.total_weight)))
        return Sample(rows, tuple(folds[: min(most_folds or self.budget.folds, enough)]))

    def _sampled_rows(self, dataset: Dataset, own_columns: int | None) -> int:
        """The size of the sample: the most rows, halved while trying every candidate once is not cheap.

        More rows matter, since some features rank last on few rows and first on many.
        """
        shape = self.shape(dataset)
        candidates = [one.learner for one in self.contenders(dataset) if not one.is_learned]
        left = self.allowed(dataset, own_columns) - max(shape.fitting(learner) for learner in candidates)
        n_rows = min(dataset.n_rows, self.budget.most_judged(dataset.n_rows, most_gathered(dataset)))
        while n_rows > self.budget.least_judged:
            judged = replace(shape, n_rows=n_rows)
            if sum(judged.trial_work(learner) for learner in candidates) <= MOST_SPENT * left:
                break
            n_rows = max(n_rows // 2, self.budget.least_judged)
        return n_rows


@dataclass(frozen=True)
class Sample:
    """Rows that candidates are tried on.

    Parameters
    ----------
    rows : Dataset
    folds : tuple of HeldOut
        Each fold judges candidates that were learned without its rows.
    judging_seed : int or None
        The seed of the folds where columns hold target means, which were computed without these folds: learners that
        hold rows out must use the same ones.
    """

    rows: Dataset
    folds: tuple[HeldOut, ...]
    judging_seed: int | None = None


class Bench:
    """Runs trials: every pass that compares candidates starts here; `weights` are class weights."""

    def __init__(self, terms: Terms, weights: np.ndarray | None, run: Run) -> None:
        self.terms, self.weights, self.run = terms, weights, run
        # Results that trials on the same rows share: scalers and bandwidths; the moments of the targets, by source and
        # loss; and the mean squared length of mapped rows, by source and feature map.
        self._prepared: dict[Any, Any] = {}
        self._moments: dict[Any, TargetMoments] = {}
        self._lengths: dict[Any, float] = {}

    def sample(
        self,
        dataset: Dataset,
        own_columns: int | None = None,
        most_folds: int | None = None,
        judging_seed: int | None = None,
    ) -> Sample:
        """`Terms.sample`, with its rows in memory where they are few enough."""
        found = self.terms.sample(dataset, own_columns, most_folds)
        return replace(found, rows=gathered(found.rows, self.run, self.terms.seed), judging_seed=judging_seed)

    def trial(
        self,
        learner: FeatureLearner,
        sample: Sample,
        fold: int,
        stage: str,
        *,
        near: PenaltyChoice | None = None,
        parts: Sequence[FeatureLearner] = (),
        known: FeatureLearner | None = None,
        drawn: FeatureLearner | None = None,
    ) -> Judged:
        """Learn features without the rows of a fold, and compare penalties on these rows.

        Parameters
        ----------
        learner : FeatureLearner
            Not fitted.
        sample : Sample
        fold : int
        stage : str
            The name of the trial's folder of checkpoints.
        near : PenaltyChoice or None
            If given, only penalties near the best one of this choice are compared.
        parts : sequence of FeatureLearner
            Fitted features of this fold, which are joined column by column in place of learning.
        known : FeatureLearner or None
            Fitted features of this fold whose learned metric is reused.
        drawn : FeatureLearner or None
            These features, fitted for another fold: features that use no target are the same for all folds.
        """
        pilot = drawn or self.terms.new_learner(learner, f"pilot-{stage}")
        if parts:
            pilot.put_together(parts)
        elif drawn is None:
            context = FitContext(
                sample.folds[fold],
                for_machine=True,
                is_pilot=True,
                hints=False,
                judging_seed=sample.judging_seed,
                prepared=self._prepared,
            )
            if known is not None and known.metric_ is not None:
                context = replace(context, metric=(known.metric_, known.family_.sigma / known.sigma_factor))
            pilot = self.run.learn(pilot, sample.rows, context)
        return pilot, self.penalties(pilot, sample, fold, stage, self.terms.judging_loss, near)

    def penalties(
        self,
        pilot: FeatureLearner,
        sample: Sample,
        fold: int,
        stage: str,
        loss: str,
        near: PenaltyChoice | None = None,
    ) -> PenaltyChoice:
        """The scores of all penalties of a loss on a fold that the features have not seen."""
        problem = self.terms.new_problem(pilot, sample.rows, self.weights)
        folds = sample.folds[fold]
        problem = replace(problem, validation=folds, choice=near, loss=loss, alpha=problem.penalty_rule)
        own = replace(self.run, checkpoint=stage_checkpoint(self.terms.checkpoint, f"linear-{stage}"))
        source = sample.rows.source
        targets, mapped = (source, loss in LOG_LINK), (source, problem.feature_map)
        if targets not in self._moments:
            self._moments[targets] = target_moments(problem, source, self.run)
        if mapped not in self._lengths:
            self._lengths[mapped] = mean_square_length(problem, source, self.run)
        return chosen_penalty(problem, source, own, self._moments[targets], self._lengths[mapped])

    def log_loss(self, judged: Sequence[Judged], sample: Sample) -> float:
        """The mean log loss of calibrated probabilities on held-out rows, over the first folds.

        Infinite if the best penalty of a fold has left no model.
        """
        losses = []
        for (pilot, choice), fold in zip(judged, sample.folds, strict=False):
            model = _model_of(pilot, choice)
            problem = replace(self.terms.new_problem(pilot, sample.rows, self.weights), held_out=fold)
            sums = None if model is None else calibration_sums(problem, model, sample.rows.source, self.run)
            losses.append(np.inf if sums is None else least_log_loss(*sums))
        return float(np.mean(losses))

    def calibration(self, judged: Judged, sample: Sample) -> tuple[float | None, np.ndarray | None]:
        """The temperature of probabilities on the first fold, which the features have not seen, and a shift.

        The model may afterwards be fitted to all rows. Where rows are held out by time, classes may have become rarer
        or more frequent: the shift is added to the intercepts of the K models, where it is significant.

        Returns
        -------
        temperature : float or None
            None where the best penalty has left no model.
        shift : ndarray of shape (K,) or None
        """
        pilot, rows = judged[0], sample.rows
        if (model := _model_of(*judged)) is None:
            return None, None
        problem = replace(self.terms.new_problem(pilot, rows, self.weights), held_out=sample.folds[0])
        if rows.schema.held_by == "time" and (found := calibrate_by_class(problem, model, rows.source, self.run)):
            slope, shifts = found
            # two classes have one model, whose intercept shifts by the difference of their shifts
            shifts = shifts[1:] - shifts[:1] if len(shifts) == 2 else shifts
            return 1.0 / slope, shifts / slope
        return 1.0 / calibrate(problem, model, rows.source, self.run), None


def _model_of(pilot: FeatureLearner, choice: PenaltyChoice) -> LinearSVC | None:
    """The linear model of the best penalty on fitted features; None if its coefficients do not match the features."""
    coefficients = choice.start
    if coefficients.shape[1] != pilot.feature_map_.n_features + 1:
        return None
    model = LinearSVC()
    model.coef_, model.intercept_ = coefficients[:, :-1], coefficients[:, -1]
    return model


def gathered_bytes(sample: Dataset) -> int:
    """Bytes of the sampled rows in memory; 0 if each pass reads them from their source."""
    # arrays are in memory already
    stays = isinstance(sample.source, ArraySource) or sample.n_rows > most_gathered(sample)
    return 0 if stays else sample.n_rows * _row_bytes(sample)


def most_gathered(dataset: Dataset) -> int:
    """The largest sample that one accumulator holds; 0 for sparse rows, which trials read from their source.

    It bounds the sample of an array in memory, too, so that the same rows in a store give the same model.
    """
    return 0 if dataset.source.is_sparse else LARGEST_ACCUMULATOR // _row_bytes(dataset)


def _row_bytes(dataset: Dataset) -> int:
    """Bytes of a row in memory: its columns, target, weight, number, and the hash key that holds it out."""
    return dataset.n_columns * dataset.source.dtype.itemsize + 32


def gathered(sample: Dataset, run: Run, seed: int) -> Dataset:
    """The sample in memory, after one pass: trials read its rows some hundred times."""
    if not gathered_bytes(sample):
        return sample

    def in_memory(passed: PassResult) -> Dataset:
        (rows,) = passed.results
        rows = rows.rows(np.argsort(rows.row_id, kind="stable"))
        return sample.with_rows(GatheredSource(rows, sample.source, sample.schema.n_classes), sample.schema)

    record = RowSample("rows to try features on", sample.n_rows, seed)
    return run.read(sample.source, [record], in_memory, sample)


class GatheredSource(ArraySource):
    """Rows that a pass has read into memory, in the order of their numbers in the source.

    Parameters
    ----------
    rows : Block
    base : RowSource
        The source that they were read from, whose rule holds rows out.
    n_classes : int or None
    """

    def __init__(self, rows: Block, base: RowSource, n_classes: int | None) -> None:
        # the few rows that a sample has of each of many blocks are put together, in as many blocks as rows in memory
        # have; none is larger than those of the source, from which plans count
        together = max(-(-rows.n_rows // MEMORY_BLOCKS), int(base.block_rows.max(initial=1)))
        fitting = memory_block_rows(row_bytes(rows.X), rows.n_rows)
        most = min(fitting, together, int(base.base.block_rows.max(initial=1)))
        super().__init__(rows.X, rows.y, rows.weight, n_classes=n_classes, row_id=rows.row_id, rows_a_block=most)
        self._held, self.held_rule, self.most_folds = rows.held, base.held_rule, base.most_folds
        self.place = base.place

    def ticket(self, index: int) -> Block:
        """The rows of block `index`, each with the hash key that holds it out."""
        block = super().ticket(index)
        if self._held is None:
            return block
        return replace(block, held=self._held[self._bounds[index] : self._bounds[index + 1]])

    @cached_property
    def fingerprint(self) -> str:
        held = b"" if self._held is None else np.ascontiguousarray(self._held).tobytes()
        return hashlib.sha256(super().fingerprint.encode() + held).hexdigest()
