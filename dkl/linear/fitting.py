"""Fits the linear model of a kernel machine on mapped rows: its problem, and the fits by Newton steps and by epochs.

`fit_by_newton` solves the problem exactly, by sums over the rows, with a given or a chosen penalty; `fit_by_epochs`
takes stochastic steps; `calibrate` finds the temperature of probabilities on held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.svm import LinearSVC

from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.errors import refuse_non_finite, warn_user
from dkl.features.feature_map import FeatureMap
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets, is_plain_sparse, sparse_rows
from dkl.kernels.threads import one_blas_thread
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
from dkl.linear.head import NewtonDriver, NewtonProblem, NewtonState, most_log_loss_features
from dkl.linear.judge import (
    Candidates,
    Folds,
    PenaltyChoice,
    SeenRows,
    gains,
    out_of_fold,
    penalty_candidates,
    scores_of_folds,
)
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.scores import TOO_LARGE
from dkl.linear.sgd import SGDState, StepSchedule, batch_rows, first_state, sgd_step, step_schedule
from dkl.linear.summary import SAMPLE_ROWS, Summary, TargetMoments, summarise, summarise_targets
from dkl.linear.sums import calibration_rows
from dkl.linear.target_statistics import TargetScale, target_record, task_targets
from dkl.linear.temperature import best_multiplier, slope_and_shifts
from dkl.passes.loop import PassResult, PlannedRun, Run
from dkl.protocols.records import BlockSum, Record, RowSample
from dkl.protocols.source import BlockSource
from dkl.registry import PENALTY_RULES, losses_for
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# Rows per feature, and the fewest rows, of the subsample whose optimum is where the fit to all rows starts.
_ROWS_A_FEATURE, _LEAST_SUBSAMPLED = 20, 20_000
# A subsample is used up to this share of the rows; a larger one costs more than it saves. With this many rows a
# feature, its Hessian leads to the optimum of all rows in five or six steps.
_MOST_SUBSAMPLED, _ROWS_OF_METRIC = 0.1, 200
# With fewer features a Hessian of all rows is cheap.
_LEAST_FEATURES = 200
# With fewer rows with curvature for each feature, a subsampled Hessian needs more steps than it saves; the second
# number is for fits that need few steps.
_CURVED_ROWS, _CURVED_ROWS_OF_FEW_STEPS = 50, 10
# Steps on the subsample end when the next one promises less than this share of the objective, since they only give a
# start.
_SUBSAMPLE_DECREMENT = 1e-2
# Losses that are quadratic wherever they have curvature, so that one step leads to the optimum or near it.
SQUARES = {"squared_hinge", "squared_error"}
NEWTON_LOSSES = {*losses_for("classification", "newton"), *losses_for("regression", "newton")}

# Sampled rows that estimate the mean squared length of mapped rows, if the map does not determine it: within some
# percent, which suffices since penalties differ by factors.
_SAMPLE_ROWS = 256
# Relative fall of the loss that a penalty of jointly fitted classes must bring for the next weaker
# one to be tried.
_JOINT_GAIN = 0.005
# The most Newton steps of the final fit, which starts from the best candidate.
_REFIT_STEPS = 50
# With a chosen penalty, the share of the objective at which the last step ends: for one model, and for several that do
# not start from zero, whose Hessians cost more (on ten digits .1, .2 and .3 gave an accuracy of 98.25, 98.20 and 98.19
# %).
_DECREMENT, _DECREMENT_OF_SEVERAL = 1e-2, 3e-1
# The same for the log loss: further steps change probabilities less than the choice of the penalty does.
_DECREMENT_OF_LOG_LOSS = 3e-4
# Factor on these shares if the Hessian was summed over a subsample, since its last step is less accurate.
_OF_METRIC = 0.1
# The same for the pinball loss, whose minimum is far above zero.
_DECREMENT_OF_PINBALL = 1e-7
# Relative length of the gradient at convergence, for losses with varying curvature.
_TOL_VARYING = 1e-9
# The same for steps by a Hessian of rounded rows, which end when they are short.
_TOL_CORRECTED = 1e-12
# The pinball loss is smoothed by a parabola, whose width (in standard deviations of the target) starts with the first
# number and is multiplied by the second, until the parabola adds at most the third as a share of the objective,
# estimated from the last two stages.
_FIRST_WIDTH, _NARROWER, _SMOOTHING = 1.0, 0.25, 5e-5
# The most stages; and the earlier ones end when a step promises less than this share of the objective, or after this
# many steps.
_MOST_WIDTHS, _DECREMENT_OF_STAGES, _STEPS_OF_STAGES = 10, 1e-5, 20

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
    alpha : float, a name in `PENALTY_RULES` of `dkl.registry`, or "evidence"
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


def fit_by_newton(
    problem: LinearProblem, source: BlockSource, run: Run, moments: TargetMoments | None = None
) -> LinearFit:
    """Fit by Newton steps on block sums: exact and deterministic.

    Parameters
    ----------
    problem : LinearProblem
        With ``alpha="auto"`` the penalty is chosen on the rows of `validation`, then all rows that are not held out are
        fitted, starting from the best candidate. With ``alpha="evidence"`` it follows from the sums of the first pass.
    source : BlockSource
    run : Run
    moments : TargetMoments or None
        Those of `target_moments`, if they are known; None takes a pass.

    Returns
    -------
    LinearFit
        Its model is a scikit-learn estimator with the coefficients at the optimum: a `LinearSVC`, a `Ridge`, a
        `LogisticRegression` or, for the squared error of classes, an `SGDClassifier`.
    """
    with one_blas_thread():
        # one BLAS thread, since the driver distributes its systems over the cores; the bits are those of one core
        summary, choice = moments or target_moments(problem, source, run, "targets"), None
        task = newton_problem(problem, summary)
        if problem.chooses_penalty:
            choice = problem.choice
            if choice is None:
                # rows held out by time have a single fold, the newest rows
                single = source.most_folds == 1
                candidates = _candidates_of(
                    problem, task, summary, mean_square_length(problem, source, run), single=single
                )
                choice = compare_penalties(candidates, source, run)
            # the best candidate is a start if it was fitted here, on all features
            is_start = problem.choice is None and choice.start.shape[1] == task.width
            start = choice.start if is_start else _start(problem, summary)
            task = replace(_refitted(replace(task, start=start)), alpha=choice.alpha)
        # if Hessians are costly, a fit to a subsample gives the start
        subsample = None if task.is_wide else subsample_problem(task, summary.n_rows, problem.seed, problem.held_out)
        if subsample is not None:
            # "rough" is the name of this stage in checkpoints
            rough = newton_state(subsample, source, run, "rough")
            task = replace(task, start=rough.solution(subsample), first_gradient=rough.first_gradient)
            task = _with_metric(task, subsample_metric(subsample, task, rough, summary.n_rows))
        last = _corrected(_joint(_after_wider_stages(task, source, run)), run)

        def fit(state: NewtonState) -> LinearFit:
            model, steps = _linear_model(problem, last, state, summary), int(state.counts.max())
            units, message = _units_of_steps(problem, summary), newton_message(state, last)
            return LinearFit(model, units, steps, (), message, _alpha(last, state), choice)

        state = newton_state(last, source, run, model=run.looked_at(fit))
    result = replace(fit(state), posterior=_posterior(last, state, summary))
    if not state.ended and not state.done(last).all():
        warn_user(result.message)
    return result


def _corrected(task: NewtonProblem, run: Run) -> NewtonProblem:
    """The problem with a Hessian by a GPU's tensor cores, if later steps can correct it and nothing else uses it."""
    # for regression the Hessian also gives variances of coefficients, and penalties by evidence
    if run.device != "gpu" or task.loss != "squared_error" or task.targets.n_classes is None or task.is_wide:
        return task
    if task.evidence or task.dtype != "float32" or task.metric is not None:
        return task
    return replace(task, rounded=True, tol=_TOL_CORRECTED, decrement=0.0)


def _joint(task: NewtonProblem) -> NewtonProblem:
    """The joint problem of all classes, for the log loss of more than two; any other problem unchanged."""
    if task.loss != "log_loss" or task.n_models == 1:
        return task
    # exact steps must shrink the gradient at zero, so they do not begin at another start
    return replace(task.jointly(), start=task.start if task.decrement else None)


def _after_wider_stages(task: NewtonProblem, source: BlockSource, run: Run) -> NewtonProblem:
    """The last problem of a piecewise linear loss, with its start; any other problem unchanged.

    Where the loss is linear, a Newton step has no curvature. So the Huber loss starts from the fit of the squared
    error, and for the pinball loss the parabola becomes narrower in stages, each of which starts from the one before.
    """
    if task.loss == "huber":
        squares, last = replace(task, loss="squared_error"), task
        task = replace(task, start=newton_state(squares, source, run, "wide").solution(squares))
        for stage in reversed(range(1, _MOST_WIDTHS)):
            if (wider := last.epsilon / _NARROWER**stage) < _FIRST_WIDTH:
                # alpha is scaled so that large errors have the same weight relative to the penalty as in the last stage
                task = replace(task, epsilon=wider, alpha=last.alpha * wider / last.epsilon)
                task = replace(task, start=newton_state(task, source, run, f"wide-{stage}").solution(task))
        return replace(last, start=task.start)
    before = np.full(task.n_models, np.inf)
    for stage in range(_MOST_WIDTHS if task.loss == "pinball" else 0):
        wide = replace(task, decrement=_DECREMENT_OF_STAGES, max_steps=_STEPS_OF_STAGES)
        state = newton_state(wide, source, run, f"wide-{stage}")
        task = replace(task, start=state.solution(wide))
        # The number of rows on the parabola is proportional to its width, and it adds a share of its width to each: the
        # total falls with the square of the width.
        added = (before - state.objective) * _NARROWER**2 / (1.0 - _NARROWER**2)
        if run.ends(bool(np.all(added <= _SMOOTHING * state.objective))):
            break
        before, task = state.objective, _with_narrower_parabola(task, state.objective)
    return task


def _with_narrower_parabola(task: NewtonProblem, objective: np.ndarray) -> NewtonProblem:
    """The pinball problem of the next stage, whose start is the solution of a wider parabola, of this objective (g,).

    On a parabola of width h the error f - y of a row that the model can fit alone is 2 h (q - 1/2), with the loss
    h q (1 - q). The next parabola may be too narrow for all such errors, and without a row on it no step has a length.
    So the intercepts move as such errors do, by the share of the objective that these losses are.
    """
    q, width, narrower = np.asarray(task.quantiles), task.epsilon, _NARROWER * task.epsilon
    smoothing = width * q * (1.0 - q)
    start = np.array(task.start)
    start[:, -1] += smoothing / np.maximum(objective, smoothing) * 2.0 * (narrower - width) * (q - 0.5)
    return replace(task, epsilon=narrower, start=start)


def chosen_penalty(
    problem: LinearProblem, source: BlockSource, run: Run, summary: TargetMoments, square_length: float
) -> PenaltyChoice:
    """The penalty with the highest score on one share of the rows, `validation`, for these features.

    Parameters
    ----------
    problem : LinearProblem
    source : BlockSource
    run : Run
    summary : TargetMoments
        As in `target_moments`.
    square_length : float
        As in `mean_square_length`.
    """
    with one_blas_thread():
        task = newton_problem(problem, summary)
        candidates = _candidates_of(problem, task, summary, square_length, single=True)
        return compare_penalties(candidates, source, run)


def compare_penalties(candidates: Candidates, source: BlockSource, run: Run) -> PenaltyChoice:
    """Fit all candidates in the same passes, and judge each on the rows that it has not seen.

    Judging takes one more pass, unless the sums of each fold suffice.

    Parameters
    ----------
    candidates : Candidates
    source : BlockSource
    run : Run

    Raises
    ------
    ValueError
        If no row is held out.
    """
    if candidates.is_joint:
        return _choose_jointly(candidates, source, run)
    state = newton_state(candidates.problem, source, run, "penalty")
    sums = candidates.judged_by_sums(state)
    if sums is None:
        sums = _summed(candidates.judged(state), source, run, "judged")
    return candidates.choose(state, sums)


def _choose_jointly(candidates: Candidates, source: BlockSource, run: Run) -> PenaltyChoice:
    """The scores of penalties for jointly fitted classes, from the strongest to weaker ones.

    Each fit starts from the one before. The first penalty that no longer gains is the last, since fits with weaker
    penalties take longer.
    """
    F, K, width, n_tried = candidates.folds.count, candidates.n_outputs, candidates.problem.width, 0
    grams: list[np.ndarray | None] = [None] * F
    starts: list[Any] = [None] * F
    run.holds(
        {
            **NewtonDriver().memory(candidates.joint_problems(1.0)[0], 0, 0),
            "what folds keep": 8 * F * (packed_size(0, width) + K * width),
        }
    )
    scores, accuracies = np.full(len(candidates.alphas), -np.inf), np.zeros(len(candidates.alphas))
    of_folds, means = np.full((len(candidates.alphas), F), -np.inf), []
    for number, alpha in enumerate(candidates.alphas):
        for fold, problem in enumerate(candidates.joint_problems(float(alpha))):
            problem = replace(problem, start=starts[fold], metric=grams[fold])
            state = newton_state(problem, source, run, f"penalty-{fold}-{number}")
            starts[fold], grams[fold] = problem.by_function(state.coefficients)[0], state.hessian
        models = np.stack(starts, axis=1)
        sums = _summed(candidates.judged_jointly(models), source, run, f"judged-{number}")
        score, accuracy, _ = out_of_fold(sums, (1, F), candidates.folds.held_out)
        before, n_tried = scores.max(), number + 1
        scores[number], accuracies[number] = score[0, 0], accuracy[0, 0]
        of_folds[number] = scores_of_folds(sums, (1, F))[0, 0]
        means.append(models.mean(axis=1))
        if number > 0 and run.ends(not gains(1.0 - scores[number], 1.0 - before, _JOINT_GAIN)):
            break
    kept = slice(None if candidates.are_near else n_tried)
    choice = PenaltyChoice(
        candidates.alphas[kept],
        scores[kept],
        np.zeros((0, 0)),
        candidates.strengths[kept],
        accuracies[kept],
        rule=candidates.rule,
        fold_scores=of_folds[kept],
    )
    return replace(choice, start=means[choice.best])


def newton_state(
    task: NewtonProblem,
    source: BlockSource,
    run: Run,
    stage: str = "",
    model: Callable[[NewtonState], Any] | None = None,
) -> NewtonState:
    """The last state of a Newton fit, or of one of its `stage` before the last."""
    run = run.at_stage(stage) if stage else run
    state: NewtonState = run.drive(NewtonDriver(), task, source, model=model)[0]
    return state


def _summed(record: BlockSum, source: BlockSource, run: Run, stage: str) -> dict[str, np.ndarray]:
    """The sums of one record, by a pass over the rows; `stage` is that of `Run.read`."""
    return run.read(source, [record], lambda passed: passed.results[0], record.planned, stage=stage)


def target_moments(problem: LinearProblem, source: BlockSource, run: Run, stage: str = "") -> TargetMoments:
    """The moments of the targets, from a pass that reads no X; `stage` is that of `Run.read`."""

    def moments(passed: PassResult) -> TargetMoments:
        return summarise_targets(passed.results[0], log_link=problem.loss in LOG_LINK)

    # no size in a plan depends on the moments, only on the number of rows
    n_rows, one = float(np.sum(source.block_rows)), np.ones(problem.n_targets)
    return run.read(source, [problem.target_record], moments, TargetMoments(n_rows, n_rows, one, one), stage=stage)


def _refitted(task: NewtonProblem) -> NewtonProblem:
    """The problem of the final fit, whose steps end when the next one promises little."""
    if task.loss == "log_loss":
        return replace(task, decrement=_DECREMENT_OF_LOG_LOSS)
    if task.loss not in SQUARES:
        return task
    several = task.start is not None and task.loss == "squared_hinge" and task.n_models > 1
    return replace(task, decrement=_DECREMENT_OF_SEVERAL if several else _DECREMENT, max_steps=_REFIT_STEPS)


def _with_metric(task: NewtonProblem, metric: np.ndarray | None) -> NewtonProblem:
    """The problem with a subsampled Hessian for all steps, and a smaller decrement, for its last step is rougher."""
    return replace(task, metric=metric, decrement=task.decrement if metric is None else _OF_METRIC * task.decrement)


def mean_square_length(problem: LinearProblem, source: BlockSource, run: Run) -> float:
    """The mean squared length of mapped rows; for pairs it is known without rows, since cos^2 + sin^2 = 1."""
    if problem.feature_map.activation == "cos-sin":
        return float(np.sum(problem.feature_map.amplitudes**2))

    def mean(passed: PassResult) -> float:
        (sample,) = passed.results
        if is_plain_sparse(sample.X, problem.feature_map):
            return float((sparse_rows(sample.X, problem.feature_map, "float64") ** 2).sum() / sample.n_rows)
        return float(np.mean(np.sum(map_rows(sample.X, problem.feature_map, "float64") ** 2, axis=1)))

    return run.read(source, [RowSample("sample", _SAMPLE_ROWS, problem.seed)], mean, 1.0)


def newton_problem(problem: LinearProblem, summary: TargetMoments) -> NewtonProblem:
    """The problem of the Newton steps; its alpha is 1 if a rule still has to choose one.

    Raises
    ------
    ValueError
        If the evidence of a penalty is requested for more features than a Gram matrix may have, or the log loss for
        more than `most_log_loss_features`.
    """
    targets = newton_targets(problem, _units_of_steps(problem, summary))
    # losses that only stochastic steps offer become the squared error, of classes on targets -1 and +1
    loss = problem.loss if problem.loss in NEWTON_LOSSES else "squared_error"
    task = NewtonProblem(
        problem.feature_map,
        targets,
        summary.total_weight,
        1.0 if isinstance(problem.alpha, str) else problem.alpha,
        loss,
        dtype=problem.dtype,
        epsilon=problem.epsilon,
        n_rows=summary.n_rows,
        evidence=problem.alpha == "evidence",
        needs_hessian=problem.alpha == "evidence" or (loss == "squared_error" and problem.classes is None),
    )
    if task.evidence and task.is_wide:
        raise ValueError(
            f"alpha='evidence' needs the Gram matrix of all features, and {task.feature_map.n_features:,} are more "
            "than one is held of; use fewer features, or alpha='auto'"
        )
    most = most_log_loss_features(problem.n_models)
    if loss == "log_loss" and task.feature_map.n_features > most:
        raise ValueError(
            f"loss='log_loss' of {problem.n_models:,} classes is fitted to at most {most:,} features, and these are "
            f"{task.feature_map.n_features:,}: use fewer features, or loss='squared_error'"
        )
    if loss == "pinball":
        quantiles = np.tile(problem.quantiles, problem.n_targets)
        # the gradient of a piecewise linear loss cannot become smaller than its smoothing allows
        return replace(task, epsilon=_FIRST_WIDTH, quantiles=quantiles, decrement=_DECREMENT_OF_PINBALL)
    return replace(task, tol=_TOL_VARYING, start=_start(problem, summary)) if task.varies else task


def _units_of_steps(problem: LinearProblem, summary: TargetMoments) -> TargetScale:
    """Center and scale of the targets: 0 and 1 for a mean exp(f), which is not standardised."""
    units = summary.units
    return TargetScale(np.zeros_like(units.center), np.ones_like(units.scale)) if problem.loss in LOG_LINK else units


def newton_targets(problem: LinearProblem, units: TargetScale | None) -> NewtonTargets:
    """The targets of all models on the rows that are not held out; numeric ones in `units`."""
    n_quantiles = len(problem.quantiles)
    targets = task_targets(problem.n_classes, problem.n_targets, problem.class_weight, n_quantiles=n_quantiles)
    kept = SeenRows(Folds(problem.held_out, 1), 0) if problem.held_out.share > 0 else None
    targets = replace(targets, kept=kept)
    return targets if units is None else replace(targets, center=units.center, scale=units.scale)


def _start(problem: LinearProblem, summary: TargetMoments) -> np.ndarray | None:
    """The coefficients at the start, in units of standardised targets; None for zeros.

    They are those of `problem.start`. With a log link they are the constant model of the mean target.
    """
    if problem.loss in LOG_LINK:
        nothing = np.zeros((problem.n_models, problem.feature_map.n_features))
        return np.column_stack([nothing, np.log(summary.target_center)])
    start = problem.start
    if start is None or problem.classes is not None:
        return start
    return np.column_stack(summary.units.standardised(start[:, :-1], start[:, -1]))


def _candidates_of(
    problem: LinearProblem, task: NewtonProblem, summary: TargetMoments, square_length: float, *, single: bool = False
) -> Candidates:
    """The penalties to choose from, in units of the mean squared length of mapped rows."""
    start = _start(problem, summary)
    # at least half of the rows train
    validation = replace(problem.validation, share=min(problem.validation.share, 0.5))
    return penalty_candidates(
        replace(task, targets=replace(task.targets, kept=None), needs_hessian=False),
        validation,
        n_rows=summary.n_rows,
        square_length=square_length,
        start=start,
        single=single,
        near=problem.choice,
        calibrated=problem.calibrated,
        rule=problem.penalty_rule,
    )


def _linear_model(problem: LinearProblem, task: NewtonProblem, state: NewtonState, summary: TargetMoments) -> Any:
    """A fitted scikit-learn estimator on mapped rows."""
    # the coefficients of jointly fitted classes are stored in one row
    solution = state.solution(task).reshape(-1, task.width)
    coef, intercept = solution[:, :-1], solution[:, -1]
    if problem.classes is None:
        coef, intercept = _units_of_steps(problem, summary).in_own_units(coef, intercept)
    return estimator_of(problem, coef, intercept, alpha=_alpha(task, state), total_weight=summary.total_weight)


def estimator_of(
    problem: LinearProblem, coef: np.ndarray, intercept: np.ndarray, *, alpha: float, total_weight: float
) -> Any:
    """A scikit-learn estimator with coefficients (K, m), intercepts (K,) and an equivalent penalty.

    For regression it is a `Ridge`, with a log link one of the logarithm of the mean.
    """
    # alpha belongs to the mean loss; Ridge's strength, and 1/C of LinearSVC, belong to the sum over the rows
    strength = alpha * total_weight
    model: Any
    if problem.classes is None:
        model = Ridge(alpha=strength)
    elif problem.loss == "log_loss":
        model = LogisticRegression(C=1.0 / strength)
    elif problem.loss == "squared_hinge":
        model = LinearSVC(C=1.0 / strength)
    else:
        model = SGDClassifier(loss="squared_error", alpha=alpha)
    return with_coefficients(model, coef, intercept, problem.classes)


def with_coefficients(model: Any, coef: np.ndarray, intercept: np.ndarray, classes: np.ndarray | None) -> Any:
    """A scikit-learn estimator with these coefficients (K, m), intercepts (K,) and classes (None for numbers)."""
    one_target = classes is None and len(coef) == 1
    model.coef_, model.intercept_ = (coef[0], intercept[0]) if one_target else (coef, intercept)
    model.n_features_in_ = coef.shape[1]
    if classes is not None:
        model.classes_ = classes
    return model


def _posterior(task: NewtonProblem, state: NewtonState, summary: TargetMoments) -> CoefficientPosterior | None:
    """The covariance of the coefficients, from the Hessian of the squared error for regression; None otherwise.

    Other losses and labels have no Gaussian noise, and with very many features there is no Hessian.
    """
    if task.loss != "squared_error":
        return None
    if task.targets.n_classes is not None or state.hessian is None:
        return None
    # s^2 = (|y - f|^2 + lam |w|^2) / N of standardised targets maximises the marginal likelihood
    variance = 2.0 * state.least_objective(task)
    noise = np.sqrt(np.maximum(variance, 0.0)) * summary.target_scale
    return CoefficientPosterior.of_gram(state.hessian[0], _alpha(task, state) * task.total_weight, noise)


def _alpha(task: NewtonProblem, state: NewtonState) -> Any:
    """The alpha of a fit: as given or chosen before it, or from the sums of its first pass."""
    return task.alpha if state.alphas is None else float(state.alphas[0])


def newton_message(state: NewtonState, task: NewtonProblem) -> str:
    """A sentence on how the Newton steps ended, with a remedy if they did not converge."""
    # the largest ratio of a model's gradient to its first one
    worst = float(np.max(state.gradient / np.maximum(state.first_gradient, np.finfo(float).tiny)))
    if state.done(task).all():
        return f"converged in {int(state.counts.max())} Newton steps: the gradient shrank to {worst:.1e} of its first"
    if state.ended:
        return (
            f"{state.ended} after {int(state.counts.max())} Newton steps: the gradient is at {worst:.1e} of its first"
        )
    return (
        f"stopped after {task.max_steps} Newton steps with the gradient at {worst:.1e} of its first length "
        f"(wanted {task.tol:.0e}); a larger alpha makes the problem better posed"
    )


def subsample_problem(task: NewtonProblem, n_rows: float, seed: int, held_out: HeldOut) -> NewtonProblem | None:
    """The problem on a subsample of about 20 rows a feature, for a start; None if that is a large share of the rows.

    Parameters
    ----------
    task : NewtonProblem
        The problem on all rows. The squared error needs no start, since its first step is exact; some losses have their
        own.
    n_rows : float
    seed : int
    held_out : HeldOut
        The rows that are not fitted.
    """
    m = task.feature_map.n_features
    rows = max(_ROWS_A_FEATURE * m, _LEAST_SUBSAMPLED)
    if task.n_models == 1 and m >= _LEAST_FEATURES:
        # a single model also uses the Hessian of the subsample, which is more accurate with more rows
        rows = max(rows, min(_ROWS_OF_METRIC * m, int(_MOST_SUBSAMPLED * n_rows)))
    share = rows / max(n_rows, 1.0)
    has_own = task.loss in ("squared_error", "huber", "pinball") or (task.loss == "log_loss" and task.n_models > 1)
    if share > _MOST_SUBSAMPLED or has_own:
        return None
    # The share of the fitted rows begins where the rows held out end: by the same seed it would lie within these.
    of_all = share * (1.0 - held_out.share)
    drawn = HeldOut(of_all, seed, first=held_out.first + held_out.share)
    sampled, models = Folds(drawn, 0, of_all, samples=True), np.full(task.n_models, -1)
    targets = replace(task.targets, folds=sampled, fold=models)
    return replace(task, targets=targets, total_weight=share * task.total_weight, decrement=_SUBSAMPLE_DECREMENT)


def subsample_metric(
    subsample: NewtonProblem, task: NewtonProblem, state: NewtonState, n_rows: float
) -> np.ndarray | None:
    """The subsampled Hessian of a single model, (1, size), scaled to all rows; None if it should not be used.

    It is not used for several models, which converge at different steps; for a model whose last step was not accepted;
    for few features, whose full Hessian is cheap; and with too few rows with curvature.
    """
    if task.n_models > 1 or task.feature_map.n_features < _LEAST_FEATURES:
        return None
    if state.hessian is None or len(state.hessian) != 1:
        return None
    # the last number belongs to the intercept: the total weight of the rows with curvature
    curved = 1.0 if task.varies else state.hessian[0, -1] / subsample.total_weight
    rows = curved * n_rows * subsample.total_weight / task.total_weight
    # an approximate last step tolerates an approximate Hessian, as do losses with varying curvature, whose steps are
    # many
    least = _CURVED_ROWS if task.decrement == 0.0 and not task.varies else _CURVED_ROWS_OF_FEW_STEPS
    if rows < least * task.feature_map.n_features:
        return None
    return state.hessian * (task.total_weight / subsample.total_weight)


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
