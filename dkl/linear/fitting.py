"""Fits the linear model of a kernel machine by stochastic epochs; defines the problem and result of both solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.svm import LinearSVC

from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.errors import refuse_non_finite, warn_user
from dkl.features.feature_map import FeatureMap
from dkl.linear.array_sgd import default_estimator, fitted_estimator, rules_of
from dkl.linear.epochs import (
    EpochDriver,
    EpochProblem,
    EpochState,
    Stopping,
    centred,
    epochs_message,
    held_out_record,
    uncentred,
)
from dkl.linear.judge import PENALTY_RULES
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.scores import TOO_LARGE
from dkl.linear.sgd import (
    SGDState,
    StepSchedule,
    batch_rows,
    first_state,
    sgd_step,
    step_schedule,
)
from dkl.linear.summary import SAMPLE_ROWS, Summary, TargetMoments, summarise
from dkl.linear.sums import calibration_rows
from dkl.linear.target_statistics import TargetScale, target_record
from dkl.linear.temperature import best_multiplier, slope_and_shifts
from dkl.passes.engine import PassResult
from dkl.passes.loop import PlannedRun, Run
from dkl.protocols.records import BlockSum, Record, RowSample
from dkl.protocols.source import BlockSource
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# If more than this share of the targets' variance lies between blocks, the rows look sorted: then each step mixes rows
# of up to 16 blocks, so that an epoch reads the data that many times.
_EVEN = 0.1
_MOST_MIXED = 16
# Epochs on few rows: enough for 200,000 steps in total, but at least 10 and at most 50.
_FEWEST_EPOCHS, _MOST_EPOCHS, _ENOUGH_ROWS = 10, 50, 200_000
# An epoch of more than a million rows has more than a million steps. There are at most five, and the first one that
# does not lower the loss of 50,000 held-out rows is the last.
_MANY_ROWS, _EPOCHS_OF_MANY, _JUDGING_ROWS = 1_000_000, 5, 50_000


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """The linear model to be fitted on mapped rows: its loss, penalty, classes, and rows held out.

    Parameters
    ----------
    feature_map : FeatureMap
    loss : str
        By scikit-learn's name.
    alpha : float, a name in `PENALTY_RULES`, or "evidence"
        The factor of the penalty ``alpha/2 |w|^2``, to which the mean loss is added; the two words need Newton steps.
    classes : ndarray of shape (K,) or None
    n_targets : int
        Columns of y, for regression.
    class_weight : ndarray of shape (K,) or None
    epsilon : float
    quantiles : tuple of float
        The quantiles of the loss "pinball": every target has a model for each, in consecutive places.
    held_out : HeldOut
        Rows left out of the fit for early stopping and calibration.
    validation : HeldOut
        Rows that judge the candidates for ``alpha="auto"``; the final fit includes them.
    start : ndarray of shape (K, m + 1) or None
        A model in units of the targets, the intercept last, from which Newton steps with ``alpha="auto"`` start.
    choice : PenaltyChoice or None
        The penalty that was already chosen for ``alpha="auto"``; if penalties are still to be compared, the choice on
        fewer features of the same kind, near which they are compared.
    calibrated : bool
        Whether the rows that judge ``alpha="auto"``, or the epochs, also calibrate the temperature of probabilities.
    seed : int
    dtype : {"float32", "float64"}
    """

    feature_map: FeatureMap
    loss: str
    alpha: Any
    classes: np.ndarray | None = None
    n_targets: int = 1
    class_weight: np.ndarray | None = None
    epsilon: float = 0.1
    quantiles: tuple[float, ...] = ()
    held_out: HeldOut = field(default_factory=HeldOut)
    validation: HeldOut = field(default_factory=HeldOut)
    start: np.ndarray | None = None
    choice: Any = None
    calibrated: bool = False
    seed: int = 0
    dtype: str = "float32"

    @property
    def chooses_penalty(self) -> bool:
        """Whether the penalty is chosen on held-out rows, by a rule of `PENALTY_RULES`."""
        return self.alpha in PENALTY_RULES

    @property
    def penalty_rule(self) -> str:
        """The rule by which penalties are chosen; "auto" where the user has given one and they are compared anyway."""
        return str(self.alpha) if self.chooses_penalty else "auto"

    @property
    def n_models(self) -> int:
        """Linear models: one for two classes, one a class for more, one a target or quantile."""
        if self.classes is None:
            return self.n_targets * (len(self.quantiles) or 1)
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def n_classes(self) -> int | None:
        """K; None without classes."""
        return None if self.classes is None else len(self.classes)

    @property
    def target_record(self) -> Record:
        """The record that sums the targets."""
        return target_record(self.n_classes or self.n_targets, self.n_classes, self.class_weight, self.held_out)

    def estimator(self, schedule: StepSchedule) -> Any:
        """The unfitted estimator of stochastic steps, `default_estimator`."""
        return default_estimator(
            self.loss,
            schedule,
            alpha=self.alpha,
            epsilon=self.epsilon,
            quantiles=self.quantiles,
            n_models=self.n_models,
        )

    def stopping(self, patience: int) -> Stopping:
        """The rule by which the held-out loss stops the epochs."""
        each = np.tile(self.quantiles, self.n_targets) if self.quantiles else self.epsilon
        return Stopping(self.loss, patience, each, self.calibrated)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A fitted linear model on mapped rows, and how its steps ended.

    Parameters
    ----------
    model : estimator
        A fitted scikit-learn estimator on mapped rows.
    units : TargetScale
        Center and scale of the targets that the steps have seen.
    epochs : int
        Epochs, or Newton steps of the slowest model.
    losses : tuple of float
        The mean held-out loss after each epoch, with early stopping.
    message : str
        A sentence on why the steps ended.
    alpha : float
    choice : PenaltyChoice or None
        With ``alpha="auto"`` the penalties compared, and their held-out scores.
    posterior : CoefficientPosterior or None
        The covariance of the coefficients; only for exact fits of the squared error.
    multiplier : float or None
        The inverse temperature of probabilities, if the rows that judged the fit calibrated it.
    """

    model: Any
    units: TargetScale
    epochs: int
    losses: tuple[float, ...] = ()
    message: str = ""
    alpha: Any = 0.0
    choice: Any = None
    posterior: CoefficientPosterior | None = None
    multiplier: float | None = None

    def __post_init__(self) -> None:
        refuse_non_finite(self.units.scale, "the standard deviation of target", TOO_LARGE)
        for name in ("coef_", "intercept_") if hasattr(self.model, "coef_") else ():
            part = "coefficient of feature" if name == "coef_" else "intercept of output"
            refuse_non_finite(getattr(self.model, name), f"the {part}", TOO_LARGE)


def default_epochs(n_rows: int) -> int:
    """Epochs: 10, up to 50 on few rows until 200,000 steps are done, and at most 5 of more than a million rows."""
    if n_rows > _MANY_ROWS:
        return _EPOCHS_OF_MANY
    return int(np.clip(np.ceil(_ENOUGH_ROWS / max(n_rows, 1)), _FEWEST_EPOCHS, _MOST_EPOCHS))


def default_stopping(n_rows: int) -> tuple[int | None, float]:
    """The default patience of early stopping and share of rows that judges it; (None, 0) up to a million rows."""
    return (1, _JUDGING_ROWS / n_rows) if n_rows > _MANY_ROWS else (None, 0.0)


def summarise_rows(problem: LinearProblem, source: BlockSource, run: Run) -> Summary:
    """The statistics for stochastic steps, from one pass."""
    columns = problem.n_classes or problem.n_targets
    is_log = problem.loss in LOG_LINK

    def summary(passed: PassResult) -> Summary:
        found = summarise(
            passed.results,
            problem.feature_map,
            class_weight=problem.class_weight,
            dtype=problem.dtype,
            log_link=is_log,
        )
        if not is_log:
            return found
        # targets with mean exp(f) are divided by their mean and not centred, so that f begins near 0
        zeros = np.zeros_like(found.target_center)
        return replace(found, target_center=zeros, target_scale=found.target_center)

    records = (problem.target_record, RowSample("sample for step lengths", SAMPLE_ROWS, problem.seed))
    # in a plan moments are unknown, and no size depends on them
    n_rows = float(np.sum(source.block_rows)) * (1.0 - problem.held_out.share)
    center = np.zeros(problem.feature_map.n_features)
    return run.read(
        source, records, summary, Summary(n_rows, n_rows, np.zeros(columns), np.ones(columns), center=center)
    )


def fit_by_epochs(
    problem: LinearProblem, source: BlockSource, run: Run, *, epochs: int | None, patience: int | None
) -> LinearFit:
    """Fit by stochastic epochs with the step rule of scikit-learn's `partial_fit`, compiled and averaged.

    Parameters
    ----------
    problem : LinearProblem
    source : BlockSource
    run : Run
    epochs : int or None
        None follows `default_epochs`.
    patience : int or None
        Patience of early stopping on the held-out rows; None runs all epochs.

    Warns
    -----
    UserWarning
        If rows look sorted, so that steps would be biased unless several blocks are read for each.
    """
    summary, mixed = rows_of_epochs(problem, source, run, patience)
    # step lengths follow from the lengths of the centred rows, so that there is no learning rate to set
    unit = penalty_unit(problem, summary)
    alpha = problem.alpha if unit is None else float(np.mean(problem.alpha / unit))
    schedule = step_schedule(problem.loss, alpha=alpha, square_length=summary.square_length, largest=summary.largest)
    estimator = problem.estimator(schedule)
    first = first_state(problem.n_models, problem.feature_map.n_features, dtype=problem.dtype, clock=schedule.clock)
    task = epoch_problem(
        problem,
        summary,
        step=sgd_step,
        step_operands=step_operands(problem, estimator, summary),
        first=first,
        n_blocks=mixed.n_blocks,
        epochs=default_epochs(int(summary.n_rows)) if epochs is None else epochs,
        stopping=None if patience is None else problem.stopping(patience),
    )

    def fit(state: EpochState) -> LinearFit:
        final = SGDState(**state.result)
        # the model is one of centred features and standardised targets; both are undone, in this order
        coef, intercept = in_units_of_y(problem, uncentred(final, summary.center), summary)
        model = fitted_estimator(estimator, coef, intercept, classes=problem.classes, clock=final.clock)
        message, units = epochs_message(task, state), summary.units
        return LinearFit(model, units, state.epoch, state.losses, message, problem.alpha, multiplier=state.multiplier)

    return fit(run_epochs(estimator, task, mixed, run, fit))


def run_epochs(
    estimator: Any,
    task: EpochProblem,
    source: BlockSource,
    run: Run,
    fit: Callable[[EpochState], LinearFit] | None = None,
) -> EpochState:
    """The last state of the epochs, run through dask-ml's interface to incremental fitting."""
    model = None if fit is None else run.looked_at(fit)
    # importing dask-ml takes seconds, which plans need not wait for
    if isinstance(run, PlannedRun):
        return run.drive(EpochDriver(), task, source)[0]
    from dkl.linear.incremental import BlockIncremental

    runner = BlockIncremental(estimator, feature_map=task.feature_map, epochs=task.epochs)
    return runner.fit_epochs(task, source, run, model)


def rows_of_epochs(
    problem: LinearProblem, source: BlockSource, run: Run, patience: int | None
) -> tuple[Summary, BlockSource]:
    """The statistics that stochastic epochs need, and the source that they read, with mixed blocks for sorted rows.

    Raises
    ------
    ValueError
        If early stopping, by `patience`, has no rows to judge.
    """
    summary = summarise_rows(problem, source, run)
    # the summary omits held-out rows; if it has counted every row, none is held out
    if patience is not None and summary.n_rows >= np.sum(source.block_rows):
        raise none_held_out(problem)
    return summary, mixed_source(source, summary.unevenness, problem.seed)


def mixed_source(source: BlockSource, unevenness: float, seed: int) -> BlockSource:
    """The source, or one with mixed blocks if targets differ much between blocks."""
    n_filled = int(np.count_nonzero(source.block_rows))
    if unevenness <= _EVEN or n_filled < 2:
        return source
    # steps through sorted rows forget one class while they see the next; mixing blocks avoids this by more reads
    groups = min(n_filled, _MOST_MIXED)
    warn_user(
        f"{100 * unevenness:.0f} % of the targets' variance in {source.place} lies between its blocks: rows look "
        f"sorted. Each step mixes rows of {groups} blocks, so every epoch reads {groups} times as much; "
        "store them shuffled instead: dkl.create_dataset(..., shuffle=True)"
    )
    return mixed_blocks(source, groups, seed)


def mixed_blocks(source: BlockSource, groups: int, seed: int) -> RearrangedSource:
    """The rows of a source, each once, in blocks that consist of parts of `groups` blocks evenly spread over it.

    For sorted labels every mixed block has nearly the overall class shares. Each pass reads `groups` times as much.

    Parameters
    ----------
    source : BlockSource
    groups : int
        At most the number of blocks that contain rows.
    seed : int
        Determines which rows of a block go to which part.
    """
    filled = np.flatnonzero(source.block_rows)
    # groups strides of equal length, so that sorted classes meet in every mixed block: a block contributes its part i
    # to the mixed block i strides before it
    strides = np.arange(groups) * len(filled) // groups
    behind = filled[(np.arange(len(filled))[:, None] + strides) % len(filled)].tolist()
    parts_of = {
        index: tuple(BlockPart(block, number, groups, seed) for number, block in enumerate(blocks))
        for index, blocks in enumerate(behind)
    }
    return RearrangedSource(source, parts_of, len(filled))


def epoch_problem(problem: LinearProblem, summary: Summary, **steps: Any) -> EpochProblem:
    """The epochs that fit a linear model to centred rows and standardised targets.

    Parameters
    ----------
    problem : LinearProblem
    summary : Summary
    **steps
        The fields of `EpochProblem` that describe the steps: "step", "step_operands", "first", "n_blocks", "epochs",
        and optionally "stopping" and "row_flops".
    """
    return EpochProblem(
        **steps,
        feature_map=problem.feature_map,
        targets=row_targets(problem, summary),
        center=summary.center,
        seed=problem.seed,
        held_out=problem.held_out,
        dtype=problem.dtype,
    )


def row_targets(problem: LinearProblem, summary: Summary) -> RowTargets:
    """The conversion of y to labels with weights of mean 1, or to standardised targets."""
    scale = summary.n_rows / summary.total_weight
    # the mean loss is weighted; a mean weight of 1 makes alpha and the step lengths independent of the unit of weights
    if problem.classes is not None:
        return RowTargets(problem.classes, problem.class_weight, scale)
    center, deviation = summary.target_center, summary.target_scale
    return RowTargets(
        weight_scale=scale,
        center=center if len(center) > 1 else float(center[0]),
        scale=deviation if len(deviation) > 1 else float(deviation[0]),
        n_quantiles=len(problem.quantiles) or 1,
    )


def penalty_unit(problem: LinearProblem, summary: TargetMoments) -> np.ndarray | None:
    """The divisor of each model's penalty, (K,); None if the penalty does not depend on the unit of targets.

    The loss of counts divided by their mean c is 1/c times the loss of the counts, so the penalty is divided by c, too.
    """
    return summary.target_scale if problem.loss == "poisson" else None


def step_operands(problem: LinearProblem, estimator: Any, summary: TargetMoments) -> dict[str, Any]:
    """The operands of `sgd_step`."""
    return {
        "rules": rules_of(estimator, problem.n_models, unit=penalty_unit(problem, summary)),
        "classes": problem.classes,
        "batch_rows": batch_rows(summary.n_rows),
    }


def in_units_of_y(
    problem: LinearProblem, model: tuple[np.ndarray, np.ndarray], summary: TargetMoments
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and intercepts for y, given those for the targets that stochastic steps see."""
    coef, intercept = model
    if problem.loss in LOG_LINK:
        # exp(f) is the mean of the target over this scale
        return coef, intercept + np.log(summary.target_scale)
    return model if problem.classes is not None else summary.units.in_own_units(coef, intercept)


def calibrate(problem: LinearProblem, model: SGDClassifier | LinearSVC, source: BlockSource, run: Run) -> float:
    """The inverse temperature that minimises the log loss of the held-out rows; one pass.

    Raises
    ------
    ValueError
        If no row is held out.
    """
    return best_multiplier(*calibration_sums(problem, model, source, run))


def calibration_sums(
    problem: LinearProblem, model: SGDClassifier | LinearSVC, source: BlockSource, run: Run
) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums of the held-out rows at each inverse temperature, the arguments of `best_multiplier`; one pass.

    Raises
    ------
    ValueError
        If no row is held out.
    """
    record = _calibration_record(problem, model.coef_, model.intercept_)
    sums = run.read(source, [record], lambda passed: passed.results[0], record.planned)
    weight = float(sums["counted"][0])
    if weight == 0.0:
        raise none_held_out(problem)
    return sums["label"], sums["uniform"], weight


def calibrate_by_class(
    problem: LinearProblem, model: SGDClassifier | LinearSVC, source: BlockSource, run: Run
) -> tuple[float, np.ndarray] | None:
    """`slope_and_shifts` of the held-out rows, from one pass that loads all rows of the source into memory.

    Parameters
    ----------
    source : BlockSource
        A sample of some thousand rows.
    """
    record = RowSample("rows to calibrate on", int(source.block_rows.sum()), problem.seed)
    operands = _calibration_record(problem, model.coef_, model.intercept_).operands

    def calibrated(passed: PassResult) -> Any:
        return slope_and_shifts(*calibration_rows(passed.results[0], operands))

    return run.read(source, [record], calibrated, planned=(1.0, np.zeros(problem.n_classes or 0)))


def none_held_out(problem: LinearProblem) -> ValueError:
    """The error if the held-out share contains no row."""
    return ValueError(
        f"no row is held out: validation_fraction={problem.held_out.share:g} of few rows; use a larger fraction"
    )


def fit_further(problem: LinearProblem, fit: LinearFit, source: BlockSource, run: Run) -> LinearFit:
    """One more epoch of stochastic steps from a fitted model, on these rows, with the next step lengths."""
    summary = summarise_rows(problem, source, run)
    # further rows have another mean and scale, so those of the first fit are used
    summary = replace(summary, target_center=fit.units.center, target_scale=fit.units.scale)
    coef, intercept = np.atleast_2d(fit.model.coef_), np.atleast_1d(fit.model.intercept_)
    if problem.loss in LOG_LINK:
        intercept = intercept - np.log(fit.units.scale)
    elif problem.classes is None:
        # steps use targets standardised as in the first fit
        coef, intercept = summary.units.standardised(coef, intercept)
    first = centred(coef, intercept, summary.center, dtype=problem.dtype, clock=fit.model.t_)
    task = epoch_problem(
        # an order of the rows that differs from those of the epochs before; all of them are for the steps
        replace(problem, seed=problem.seed + fit.epochs, held_out=HeldOut()),
        summary,
        step=sgd_step,
        step_operands=step_operands(problem, fit.model, summary),
        first=first,
        n_blocks=source.n_blocks,
        epochs=1,
    )
    final = SGDState(**run_epochs(fit.model, task, source, run).result)
    coef, intercept = in_units_of_y(problem, uncentred(final, summary.center), summary)
    model = fitted_estimator(fit.model, coef, intercept, classes=problem.classes, clock=final.clock)
    return replace(fit, model=model, epochs=fit.epochs + 1, message="one more epoch by partial_fit", posterior=None)


def _calibration_record(problem: LinearProblem, coef: np.ndarray, intercept: np.ndarray) -> BlockSum:
    """The record of a calibration pass, whose sums are the arguments of `dkl.linear.temperature.best_multiplier`."""
    record = held_out_record(
        problem.feature_map,
        coef,
        intercept,
        held_out=problem.held_out,
        targets=RowTargets(problem.classes, problem.class_weight),
        dtype=problem.dtype,
        # The pass also sums the loss of these rows, which is not used here: to map the rows takes far longer.
        stopping=Stopping(problem.loss, 0, calibrated=True),
    )
    return replace(record, name="calibration")
