"""Fits the linear model of a kernel machine by Newton steps on block sums, with a given or a chosen penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.svm import LinearSVC

from dkl.errors import warn_user
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.maps import map_rows
from dkl.kernels.newton.gram import packed_size
from dkl.kernels.normal_equations import (
    NewtonTargets,
    is_plain_sparse,
    sparse_rows,
)
from dkl.linear.fitting import LinearFit, LinearProblem
from dkl.linear.head import NewtonDriver, NewtonProblem, NewtonState, most_log_loss_features
from dkl.linear.judge import Folds, PenaltyChoice, SeenRows, gains, out_of_fold, scores_of_folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.penalty_choice import Candidates, penalty_candidates
from dkl.linear.summary import TargetMoments, summarise_targets
from dkl.linear.target_statistics import TargetScale, task_targets
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.engine import PassResult
from dkl.passes.loop import Run
from dkl.protocols.records import BlockSum, RowSample
from dkl.protocols.source import BlockSource
from dkl.solvers.losses import LOG_LINK, losses_for
from dkl.uncertainty.posterior import CoefficientPosterior

# A subsample of this many rows a feature, but at least 20,000, has an optimum near that of all rows.
_ROWS_A_FEATURE, _LEAST_ROWS = 20, 20_000
# A subsample is used up to this share of the rows; a larger one costs more than it saves. With this many rows a
# feature, its Hessian leads to the optimum of all rows in five or six steps.
_MOST, _ROWS_OF_METRIC = 0.1, 200
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
_DECREMENT_OF_LOG_LOSS = 1e-4
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
        summary, choice = moments or target_moments(problem, source, run), None
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
        subsample = None if task.is_wide else subsample_problem(task, summary.n_rows, problem.seed)
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
        before, task = state.objective, replace(task, epsilon=_NARROWER * task.epsilon)
    return task


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
    return candidates.choose(state, _summed(candidates.judged(state), source, run) if sums is None else sums)


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
        sums = _summed(candidates.judged_jointly(models), source, run)
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
    """The last state of a Newton fit; stages before the last one have their checkpoints in subfolders."""
    if stage and run.checkpoint is not None:
        run = replace(run, checkpoint=Checkpoint(f"{run.checkpoint.store}/{stage}"))
    state: NewtonState = run.drive(NewtonDriver(), task, source, model=model)[0]
    return state


def _summed(record: BlockSum, source: BlockSource, run: Run) -> dict[str, np.ndarray]:
    """The sums of one record, by a pass over the rows."""
    return run.read(source, [record], lambda passed: passed.results[0], record.planned)


def target_moments(problem: LinearProblem, source: BlockSource, run: Run) -> TargetMoments:
    """The moments of the targets, from a pass that reads no X."""

    def moments(passed: PassResult) -> TargetMoments:
        return summarise_targets(passed.results[0], log_link=problem.loss in LOG_LINK)

    # no size in a plan depends on the moments, only on the number of rows
    n_rows, one = float(np.sum(source.block_rows)), np.ones(problem.n_targets)
    return run.read(source, [problem.target_record], moments, TargetMoments(n_rows, n_rows, one, one))


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
    """The problem of the Newton steps; an alpha that is still to be chosen is 1.

    Raises
    ------
    ValueError
        If the evidence of a penalty is requested for more features than a Gram matrix may have, or the log loss for so
        many classes and features that their gradients are no single sum.
    """
    targets = newton_targets(problem, _units_of_steps(problem, summary))
    # the default for losses that only stochastic steps have; for classes it is the squared error on -1 and +1
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
    """All candidates of a chosen penalty, scaled by the mean squared length of mapped rows."""
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


def subsample_problem(task: NewtonProblem, n_rows: float, seed: int) -> NewtonProblem | None:
    """The problem on a subsample of about 20 rows a feature, for a start; None if that is a large share of the rows.

    Parameters
    ----------
    task : NewtonProblem
        The problem on all rows. The squared error needs no start, since its first step is exact; some losses have their
        own.
    n_rows : float
    seed : int
    """
    m = task.feature_map.n_features
    rows = max(_ROWS_A_FEATURE * m, _LEAST_ROWS)
    if task.n_models == 1 and m >= _LEAST_FEATURES:
        # a single model also uses the Hessian of the subsample, which is more accurate with more rows
        rows = max(rows, min(_ROWS_OF_METRIC * m, int(_MOST * n_rows)))
    share = rows / max(n_rows, 1.0)
    has_own = task.loss in ("squared_error", "huber", "pinball") or (task.loss == "log_loss" and task.n_models > 1)
    if share > _MOST or has_own:
        return None
    sampled, models = Folds(HeldOut(share, seed), 0, share, samples=True), np.full(task.n_models, -1)
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
