"""Fitting the linear model of a kernel machine by Newton steps on block sums, its penalty given or chosen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.svm import LinearSVC

from dkl.errors import users_level
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.maps import map_rows
from dkl.kernels.newton.gram import packed_size
from dkl.kernels.normal_equations import (
    NewtonLoss,
    NewtonTargets,
    is_plain_sparse,
    sparse_rows,
)
from dkl.linear.fitting import LinearFit, LinearProblem, in_original_units, planned_fit
from dkl.linear.head import NewtonDriver, NewtonProblem, NewtonState
from dkl.linear.judge import Folds, PenaltyChoice, SeenRows
from dkl.linear.minibatches import HeldOut
from dkl.linear.penalty_choice import (
    Candidates,
    choose_penalty,
    penalty_candidates,
    penalty_memory,
    penalty_passes,
)
from dkl.linear.summary import TargetMoments, summarise_targets
from dkl.linear.target_statistics import target_record, task_targets
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.engine import run_pass
from dkl.passes.loop import PlannedRun, Run
from dkl.protocols.driver import largest_held
from dkl.protocols.records import Record, RowSample
from dkl.protocols.source import BlockSource
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# The optimum of 20 rows a feature is near that of all rows.
_ROWS_A_FEATURE, _LEAST_ROWS = 20, 20_000
# A larger share of the rows costs more than it saves. The Hessian of so many rows a feature leads to the optimum of all
# rows in five or six steps.
_MOST, _ROWS_OF_METRIC = 0.1, 200
# The Hessian of fewer features costs little.
_LEAST_FEATURES = 200
# With fewer rows with curvature a feature, steps by the Hessian of a share are more than it saves.
_CURVED_ROWS, _CURVED_ROWS_OF_FEW_STEPS = 50, 10
# The steps on the share end when the next one promises less than this share of the objective: they are a start only.
_SUBSAMPLE_DECREMENT = 1e-2
# The losses that are a square wherever they bend, of which a step leads to the optimum or near it.
SQUARES = {"squared_hinge", "squared_error"}
NEWTON_LOSSES = {*SQUARES, "log_loss", "huber", "pinball", "poisson", "gamma"}

# The rows of a sample that tells how long mapped rows are, where the map does not: within some percent, where penalties
# are factors apart.
_SAMPLE_ROWS = 256
# The most Newton steps from where the best candidate stands.
_REFIT_STEPS = 50
# With a chosen penalty, the share of the objective that a last step may still promise: of one model, and of several
# that do not start from zero, whose Hessians cost as much more (on ten digits an accuracy of 98.25, 98.20 and 98.19 %
# for .1, .2 and .3).
_DECREMENT, _DECREMENT_OF_SEVERAL = 1e-2, 3e-1
# The same of the log loss, whose last steps change no probability by anything that its penalty would not.
_DECREMENT_OF_LOG_LOSS = 1e-4
# Of these so much, where the Hessian is that of a share of the rows.
_OF_METRIC = 0.1
# The same of the pinball loss, of which even the best model has much left.
_DECREMENT_OF_PINBALL = 1e-7
# The gradient's length at the optimum, relative to that at the start, of losses whose curvature varies.
_TOL_VARYING = 1e-9
# The same of steps by a Hessian of rounded rows, which end when they are short.
_TOL_CORRECTED = 1e-12
# The widths of the parabola in the pinball loss, in deviations of the target: the first one, and what each is of the
# one before, until the parabola adds no more than this share to the objective, as the last two stages tell.
_FIRST_WIDTH, _NARROWER, _SMOOTHING = 1.0, 0.25, 5e-5
# The stages before the last one end when a step promises less than this share of the objective, or after so many.
_MOST_WIDTHS, _DECREMENT_OF_STAGES, _STEPS_OF_STAGES = 10, 1e-5, 20


def fit_by_newton(problem: LinearProblem, source: BlockSource, run: Run) -> LinearFit:
    """Newton steps on block sums: exact, deterministic.

    Parameters
    ----------
    problem : LinearProblem
        With ``alpha="auto"`` the penalty is chosen on the rows of `validation`, then all rows that are not held out are
        fitted again from where the best candidate stands. With ``alpha="evidence"`` all rows find it in the first pass.
    source : BlockSource
    run : Run

    Returns
    -------
    LinearFit
        Its model is an estimator of scikit-learn with the coefficients that it has at the optimum: a `LinearSVC`, a
        `Ridge`, a `LogisticRegression` or, for the squared error of classes, an `SGDClassifier`.
    """
    if isinstance(run, PlannedRun):
        # how many steps a fit takes, and from where, only its sums tell: its most are counted by themselves
        n_rows = int(np.sum(source.block_rows))
        run.passes.extend(newton_passes(problem, n_rows))
        run.held.append(head_memory(problem, n_rows))
        return planned_fit(problem)
    with one_blas_thread():
        # One BLAS thread: the driver's systems are spread over the cores one by one, with the bits of one core.
        summary, choice = target_moments(problem, source, run), None
        task = newton_problem(problem, summary)
        if problem.alpha == "auto":
            choice = problem.choice
            if choice is None:
                # rows that are held out by time are held out in one way alone: the newest of them judge
                single = source.most_folds == 1
                candidates = penalty_problem(
                    problem, task, summary, mean_square_length(problem, source, run), single=single
                )
                choice = _penalty(candidates, source, run)
            # the best candidate is a start where it was fitted here, on all features
            is_start = problem.choice is None and choice.start.shape[1] == task.width
            start = choice.start if is_start else _start(problem, summary)
            task = replace(_refitted(replace(task, start=start)), alpha=choice.alpha)
        # a start on a share of the rows serves those whose Hessians cost much
        subsample = None if task.is_wide else subsample_problem(task, summary.n_rows, problem.seed)
        if subsample is not None:
            # checkpoints know this stage as "rough"
            rough = _run(subsample, source, run, "rough")
            task = replace(task, start=rough.solution(subsample), first_gradient=rough.first_gradient)
            task = _with_metric(task, subsample_metric(subsample, task, rough, summary.n_rows))
        last = _corrected(_joint(_after_wider_stages(task, source, run)), run)

        def fit(state: NewtonState) -> LinearFit:
            model, steps = _linear_model(problem, last, state, summary), int(state.counts.max())
            units, message = target_units(problem, summary), newton_message(state, last)
            center, scale = units.target_center, units.target_scale
            return LinearFit(model, center, scale, steps, (), message, _alpha(last, state), choice)

        state = _run(last, source, run, model=run.looked_at(fit))
    result = replace(fit(state), posterior=_posterior(last, state, summary))
    if not state.ended and not state.done(last).all():
        warnings.warn(result.message, UserWarning, stacklevel=users_level())
    return result


def _corrected(task: NewtonProblem, run: Run) -> NewtonProblem:
    """The problem with a Hessian by the tensor cores of GPUs, where steps can correct it and nobody else reads it."""
    # of numbers the Hessian tells the variances of coefficients, and penalties by evidence, too
    if run.device != "gpu" or task.loss != "squared_error" or task.targets.n_classes is None or task.is_wide:
        return task
    if task.evidence or task.dtype != "float32" or task.metric is not None:
        return task
    return replace(task, rounded=True, tol=_TOL_CORRECTED, decrement=0.0)


def _joint(task: NewtonProblem) -> NewtonProblem:
    """The problem of all classes at once, for the log loss of more than two; others as they are."""
    if task.loss != "log_loss" or task.n_models == 1:
        return task
    # a start has its own first gradient, which exact steps would have to shrink as much as that at zero
    return replace(task.together(), start=task.start if task.decrement else None)


def _after_wider_stages(task: NewtonProblem, source: BlockSource, run: Run) -> NewtonProblem:
    """The last problem of a loss that is straight nearly everywhere, with its start; others as they are.

    Where the loss is straight, a Newton step knows nothing of the rows. So all errors are squared first for the Huber
    loss; for the pinball loss the parabola becomes narrower by stages, each of which starts where the last one ended.
    """
    if task.loss == "huber":
        squares, last = replace(task, loss="squared_error"), task
        task = replace(task, start=_run(squares, source, run, "wide").solution(squares))
        for stage in reversed(range(1, _MOST_WIDTHS)):
            if (wider := last.epsilon / _NARROWER**stage) < _FIRST_WIDTH:
                # Far errors weigh as much against the penalty as in the last stage.
                task = replace(task, epsilon=wider, alpha=last.alpha * wider / last.epsilon)
                task = replace(task, start=_run(task, source, run, f"wide-{stage}").solution(task))
        return replace(last, start=task.start)
    before = np.full(task.n_models, np.inf)
    for stage in range(_MOST_WIDTHS if task.loss == "pinball" else 0):
        wide = replace(task, decrement=_DECREMENT_OF_STAGES, max_steps=_STEPS_OF_STAGES)
        state = _run(wide, source, run, f"wide-{stage}")
        task = replace(task, start=state.solution(wide))
        # Rows below the parabola are as many as it is wide, and it adds a share of its width to each: what it adds at
        # all falls with the square of its width.
        added = (before - state.objective) * _NARROWER**2 / (1.0 - _NARROWER**2)
        if np.all(added <= _SMOOTHING * state.objective):
            break
        before, task = state.objective, replace(task, epsilon=_NARROWER * task.epsilon)
    return task


def chosen_penalty(
    problem: LinearProblem, source: BlockSource, run: Run, summary: TargetMoments, square_length: float
) -> PenaltyChoice:
    """The penalty that one share of the rows, `validation`, prefers for these features.

    Parameters
    ----------
    problem : LinearProblem
    source : BlockSource
    run : Run
    summary : TargetMoments
        As of `target_moments`.
    square_length : float
        As of `mean_square_length`.
    """
    with one_blas_thread():
        task = newton_problem(problem, summary)
        candidates = penalty_problem(problem, task, summary, square_length, single=True)
        return _penalty(candidates, source, run)


def _penalty(candidates: Candidates, source: BlockSource, run: Run) -> PenaltyChoice:
    """The choice among candidates by passes over the rows; their states are kept below the checkpoint."""
    return choose_penalty(
        candidates,
        lambda task, stage: _run(task, source, run, stage),
        lambda record: _pass_result(record, source, run),
    )


def target_moments(problem: LinearProblem, source: BlockSource, run: Run) -> TargetMoments:
    """The moments of the targets, from a pass that reads no X."""
    sums = _pass_result(newton_target_record(problem), source, run)
    return summarise_targets(sums, log_link=problem.loss in LOG_LINK)


def newton_passes(problem: LinearProblem, n_rows: int) -> list[tuple[Sequence[Record], int]]:
    """The records of each kind of pass and how often it runs at most, before any row was read."""
    summary = _planned_moments(problem, n_rows)
    task = newton_problem(problem, summary)
    passes: list[tuple[Sequence[Record], int]] = [([newton_target_record(problem)], 1)]
    wider = _MOST_WIDTHS if task.loss in ("huber", "pinball") else 0

    def fits(task: NewtonProblem) -> Sequence[tuple[Sequence[Record], int]]:
        started, begun = _planned_start(task, n_rows, problem.seed)
        last = _joint(begun)
        return [*started, *((records, calls * (1 + wider)) for records, calls in NewtonDriver().plan(last))]

    if problem.alpha != "auto":
        return [*passes, *fits(task)]
    if problem.choice is None:
        candidates = penalty_problem(problem, task, summary, square_length=1.0)
        passes = _penalty_passes(problem, candidates)
    return [*passes, *fits(_refitted(task))]


def chosen_penalty_passes(problem: LinearProblem, n_rows: int) -> list[tuple[Sequence[Record], int]]:
    """The same of `chosen_penalty`."""
    return _penalty_passes(problem, _planned_candidates(problem, n_rows))


def _planned_candidates(problem: LinearProblem, n_rows: int) -> Candidates:
    """The candidates of `chosen_penalty` before any row was read."""
    summary = _planned_moments(problem, n_rows)
    return penalty_problem(problem, newton_problem(problem, summary), summary, square_length=1.0, single=True)


def _planned_moments(problem: LinearProblem, n_rows: int) -> TargetMoments:
    """Moments of targets before any row was read: any mean and scale will do, since no shape depends on them."""
    return TargetMoments(n_rows, n_rows, np.ones(problem.n_targets), np.ones(problem.n_targets))


def _penalty_passes(problem: LinearProblem, candidates: Candidates) -> list[tuple[Sequence[Record], int]]:
    """The passes that fit and judge candidates."""
    passes: list[tuple[Sequence[Record], int]] = [([newton_target_record(problem)], 1)]
    record = length_record(problem)
    if record is not None:
        passes.append(([record], 1))
    return [*passes, *penalty_passes(candidates)]


def _planned_start(
    task: NewtonProblem, n_rows: int, seed: int
) -> tuple[Sequence[tuple[Sequence[Record], int]], NewtonProblem]:
    """The passes of the start on a share of the rows, where there is one, and the problem of all rows after it."""
    subsample = None if task.is_wide else subsample_problem(task, n_rows, seed)
    if subsample is None:
        return [], task
    driver = NewtonDriver()
    # as if every row had curvature: passes by a Hessian of the share are more than those by their own
    begun = np.broadcast_to(subsample.total_weight, (1, packed_size(0, task.width)))
    state = replace(driver.init(subsample), hessian=begun)
    return driver.plan(subsample), _with_metric(task, subsample_metric(subsample, task, state, n_rows))


def head_memory(problem: LinearProblem, n_rows: int) -> dict[str, int]:
    """What the driver of `newton_passes` holds at most beside them, item by item."""
    summary = _planned_moments(problem, n_rows)
    task = newton_problem(problem, summary)
    fit = NewtonDriver().memory(_joint(task), 0, 0)
    if problem.alpha != "auto" or problem.choice is not None:
        return fit
    # the penalty is chosen first, then the model is fitted: the larger of the two counts
    judging = penalty_memory(penalty_problem(problem, task, summary, square_length=1.0))
    return largest_held([judging, fit])


def chosen_penalty_memory(problem: LinearProblem, n_rows: int) -> dict[str, int]:
    """The same beside `chosen_penalty_passes`."""
    return penalty_memory(_planned_candidates(problem, n_rows))


def _refitted(task: NewtonProblem) -> NewtonProblem:
    """The problem of the last fit, whose steps end as soon as the next one promises little."""
    if task.loss == "log_loss":
        return replace(task, decrement=_DECREMENT_OF_LOG_LOSS)
    if task.loss not in SQUARES:
        return task
    several = task.start is not None and task.loss == "squared_hinge" and task.n_models > 1
    return replace(task, decrement=_DECREMENT_OF_SEVERAL if several else _DECREMENT, max_steps=_REFIT_STEPS)


def _with_metric(task: NewtonProblem, metric: np.ndarray | None) -> NewtonProblem:
    """The problem with the Hessian of a share of the rows: its last step is not as good as one of its own Hessian."""
    return replace(task, metric=metric, decrement=task.decrement if metric is None else _OF_METRIC * task.decrement)


def newton_target_record(problem: LinearProblem) -> Record:
    """The sums of the targets that the steps must know."""
    K = None if problem.classes is None else len(problem.classes)
    return target_record(K or problem.n_targets, K, problem.class_weight, problem.held_out)


def length_record(problem: LinearProblem) -> Record | None:
    """The sample that tells how long mapped rows are, or None where the map does."""
    return None if problem.feature_map.activation == "cos-sin" else RowSample("sample", _SAMPLE_ROWS, problem.seed)


def mean_square_length(problem: LinearProblem, source: BlockSource, run: Run) -> float:
    """The mean squared length of mapped rows, of which cos^2 + sin^2 = 1 needs no row."""
    record = length_record(problem)
    if record is None:
        return float(np.sum(problem.feature_map.amplitudes**2))
    sample = _pass_result(record, source, run)
    if is_plain_sparse(sample.X, problem.feature_map):
        return float((sparse_rows(sample.X, problem.feature_map, "float64") ** 2).sum() / sample.n_rows)
    return float(np.mean(np.sum(map_rows(sample.X, problem.feature_map, "float64") ** 2, axis=1)))


def _pass_result(record: Record, source: BlockSource, run: Run) -> Any:
    """What one pass over the rows returns for a record."""
    return run_pass(source, [record], publish=run.publish, memory_limit=run.memory_limit, device=run.device).results[0]


def newton_problem(problem: LinearProblem, summary: TargetMoments) -> NewtonProblem:
    """The problem of the Newton steps; an alpha that is still to be chosen stands at 1.

    Raises
    ------
    ValueError
        If the evidence of a penalty, or a loss other than squares, is asked for on more features than a Gram matrix is
        held of.
    """
    units = target_units(problem, summary)
    targets = newton_targets(problem, units.target_center, units.target_scale)
    # losses that stochastic steps alone have stand for squares; the squared error of classes is that of -1 and +1
    named: Any = problem.loss
    loss: NewtonLoss = named if problem.loss in NEWTON_LOSSES else "squared_error"
    task = NewtonProblem(
        problem.feature_map,
        targets,
        summary.total_weight,
        1.0 if isinstance(problem.alpha, str) else problem.alpha,
        loss,
        dtype=problem.dtype,
        evidence=problem.alpha == "evidence",
    )
    if task.evidence and task.is_wide:
        raise ValueError(
            f"alpha='evidence' needs the Gram matrix of all features, and {task.feature_map.n_features:,} are more "
            "than one is held of; use fewer features, or alpha='auto'"
        )
    if loss not in SQUARES and task.is_wide:
        raise ValueError(
            f"loss={loss!r} needs products of all pairs of features, and {problem.feature_map.n_features} are too many "
            "for these; use fewer features, solver='sgd', or loss='squared_error' ('squared_hinge' for classes)"
        )
    if loss == "pinball":
        quantiles = np.tile(problem.quantiles, problem.n_targets)
        # a straight line has no curvature by which the gradient could shrink further than the smoothing
        return replace(task, epsilon=_FIRST_WIDTH, quantiles=quantiles, decrement=_DECREMENT_OF_PINBALL)
    if loss == "huber":
        return replace(task, epsilon=problem.epsilon)
    return replace(task, tol=_TOL_VARYING, start=_start(problem, summary)) if task.varies else task


def target_units(problem: LinearProblem, summary: TargetMoments) -> TargetMoments:
    """The moments by which targets are standardised: 0 and 1 for a mean exp(f), which has no units of its own."""
    if problem.loss not in LOG_LINK:
        return summary
    return replace(
        summary, target_center=np.zeros_like(summary.target_center), target_scale=np.ones_like(summary.target_scale)
    )


def newton_targets(problem: LinearProblem, center: np.ndarray | None, scale: np.ndarray | None) -> NewtonTargets:
    """The targets of all models on the rows that are not held out, numbers less `center` in units of `scale`."""
    n_classes, held_out = None if problem.classes is None else len(problem.classes), problem.held_out
    targets = task_targets(n_classes, problem.n_targets, problem.class_weight, n_quantiles=len(problem.quantiles))
    kept = SeenRows(Folds(held_out, 1), 0) if held_out.share > 0 else None
    return replace(targets, center=center, scale=scale, kept=kept)


def _start(problem: LinearProblem, summary: TargetMoments) -> np.ndarray | None:
    """The coefficients that the steps start from, in units of the standardised targets; None for zeros.

    They are those of `problem.start`. With a log link the start is the constant model of the mean of all rows.
    """
    if problem.loss in LOG_LINK:
        nothing = np.zeros((problem.n_models, problem.feature_map.n_features))
        return np.column_stack([nothing, np.log(summary.target_center)])
    start = problem.start
    if start is None or problem.classes is not None:
        return start
    # f = w.phi + b in the targets' own units is (w.phi + b - center) / scale of standardised ones
    coef, intercept = start[:, :-1], start[:, -1] - summary.target_center
    return np.concatenate([coef, intercept[:, None]], axis=1) / summary.target_scale[:, None]


def penalty_problem(
    problem: LinearProblem, task: NewtonProblem, summary: TargetMoments, square_length: float, *, single: bool = False
) -> Candidates:
    """All penalties that ``alpha="auto"`` chooses from, for mapped rows of a mean squared length."""
    start = _start(problem, summary)
    # At least half of the rows are left to fit on.
    validation = replace(problem.validation, share=min(problem.validation.share, 0.5))
    return penalty_candidates(
        replace(task, targets=replace(task.targets, kept=None)),
        validation,
        n_rows=summary.n_rows,
        square_length=square_length,
        start=start,
        single=single,
        near=problem.choice,
        calibrated=problem.calibrated,
    )


def _run(
    task: NewtonProblem,
    source: BlockSource,
    run: Run,
    stage: str = "",
    model: Callable[[NewtonState], Any] | None = None,
) -> NewtonState:
    """The last state, a stage before the last being kept below the checkpoint."""
    if stage and run.checkpoint is not None:
        run = replace(run, checkpoint=Checkpoint(f"{run.checkpoint.store}/{stage}"))
    state: NewtonState = run.drive(NewtonDriver(), task, source, model=model)[0]
    return state


def _linear_model(problem: LinearProblem, task: NewtonProblem, state: NewtonState, summary: TargetMoments) -> Any:
    """A fitted scikit-learn estimator on mapped rows."""
    # the coefficients of classes that are fitted together stand in one row
    solution = state.solution(task).reshape(-1, task.width)
    units = target_units(problem, summary)
    coef, intercept = in_original_units(solution[:, :-1], solution[:, -1], units, problem.classes)
    return estimator_of(problem, coef, intercept, alpha=_alpha(task, state), total_weight=summary.total_weight)


def estimator_of(
    problem: LinearProblem, coef: np.ndarray, intercept: np.ndarray, *, alpha: float, total_weight: float
) -> Any:
    """A scikit-learn estimator that predicts by coefficients (K, m) and intercepts (K,), with the same penalty.

    All models of numbers are a `Ridge`, of a log link one of the logarithm of the mean.
    """
    one_target = problem.classes is None and problem.n_models == 1
    # alpha is beside the mean loss; Ridge's strength, and 1/C of LinearSVC, are beside the sum over the rows
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
    model.coef_, model.intercept_ = (coef[0], intercept[0]) if one_target else (coef, intercept)
    model.n_features_in_ = coef.shape[1]
    if problem.classes is not None:
        model.classes_ = problem.classes
    return model


def _posterior(task: NewtonProblem, state: NewtonState, summary: TargetMoments) -> CoefficientPosterior | None:
    """How far off the coefficients may be, from the Hessian of the squared error of numbers; None where there is none.

    Other losses have no Gaussian noise, labels neither, and of very many features no Hessian is formed.
    """
    if task.loss != "squared_error":
        return None
    if task.targets.n_classes is not None or state.hessian is None:
        return None
    # s^2 = (|y - f|^2 + lam |w|^2) / N of standardised targets: the noise with the largest marginal likelihood
    variance = 2.0 * state.least_objective(task)
    noise = np.sqrt(np.maximum(variance, 0.0)) * summary.target_scale
    return CoefficientPosterior.of_gram(state.hessian[0], _alpha(task, state) * task.total_weight, noise)


def _alpha(task: NewtonProblem, state: NewtonState) -> Any:
    """The alpha of a fit: as given or chosen before it, or as its first pass has found it."""
    return task.alpha if state.alphas is None else float(state.alphas[0])


def newton_message(state: NewtonState, task: NewtonProblem) -> str:
    """How the Newton steps ended, in a sentence with the remedy where one is needed."""
    # the largest gradient of a model, relative to its first one
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
    """The problem on 20 rows a feature, which ends near the optimum of all rows; None where these are not many more.

    Parameters
    ----------
    task : NewtonProblem
        On all rows. The squared error needs no start, since its first step is exact; others have one of their own.
    n_rows : float
    seed : int
    """
    m = task.feature_map.n_features
    rows = max(_ROWS_A_FEATURE * m, _LEAST_ROWS)
    if task.n_models == 1 and m >= _LEAST_FEATURES:
        # one model steps on with the Hessian of these rows, which is the nearer to that of all the more they are
        rows = max(rows, min(_ROWS_OF_METRIC * m, int(_MOST * n_rows)))
    share = rows / max(n_rows, 1.0)
    has_own = task.loss in ("squared_error", "huber", "pinball") or (task.loss == "log_loss" and task.n_models > 1)
    if share > _MOST or has_own:
        return None
    taken, models = Folds(HeldOut(share, seed), 0, share, samples=True), np.full(task.n_models, -1)
    targets = replace(task.targets, folds=taken, fold=models)
    return replace(task, targets=targets, total_weight=share * task.total_weight, decrement=_SUBSAMPLE_DECREMENT)


def subsample_metric(
    subsample: NewtonProblem, task: NewtonProblem, state: NewtonState, n_rows: float
) -> np.ndarray | None:
    """The last Hessian of a single model on the share of the rows, (1, size), times what they are short of all rows.

    None of several models, which are done at different steps; of one whose last step was not taken; where the Hessian
    of all rows costs little or that of the share tells too little: of few features, and of few rows with curvature.
    """
    if task.n_models > 1 or task.feature_map.n_features < _LEAST_FEATURES:
        return None
    if state.hessian is None or len(state.hessian) != 1:
        return None
    # the last number belongs to the intercept: the sum of the weights of the rows with curvature
    curved = 1.0 if task.varies else state.hessian[0, -1] / subsample.total_weight
    rows = curved * n_rows * subsample.total_weight / task.total_weight
    # a rough last step bears a rough Hessian, and where each step has another one, many steps by one of them are cheap
    least = _CURVED_ROWS if task.decrement == 0.0 and not task.varies else _CURVED_ROWS_OF_FEW_STEPS
    if rows < least * task.feature_map.n_features:
        return None
    return state.hessian * (task.total_weight / subsample.total_weight)
