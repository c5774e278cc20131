"""Fitting the linear model of a kernel machine on mapped rows: by stochastic epochs or by Newton steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from dkl.blocks.newton import NewtonLoss, NewtonTargets
from dkl.data.source import BlockSource
from dkl.events import Subscriber, ignore
from dkl.features.feature_map import FeatureMap
from dkl.linear.calibration import calibration_record
from dkl.linear.epochs import EpochProblem, Stopping, centred, uncentred
from dkl.linear.mixing import MixedSource
from dkl.linear.pieces import HeldOut, RowTargets
from dkl.linear.sgd import (
    SGDState,
    batch_rows,
    default_estimator,
    first_state,
    fitted_estimator,
    sgd_step,
    step_schedule,
)
from dkl.linear.summary import Summary, summarise, summary_records
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.engine import run_pass
from dkl.passes.loop import run_driver
from dkl.selection.calibration import best_multiplier
from dkl.selection.newton import NewtonDriver, NewtonProblem

NEWTON_LOSSES = {"squared_hinge", "squared_error"}

# blocks are read once an epoch when their targets differ by no more than this share of the variance
_EVEN = 0.1
_MOST_MIXED = 16
_FEWEST_EPOCHS, _MOST_EPOCHS, _ENOUGH_ROWS = 10, 50, 200_000


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """A linear model to be fitted on mapped rows.

    Parameters
    ----------
    feature_map : FeatureMap
    loss : str
        As scikit-learn names it.
    alpha : float
        Of the penalty ``alpha/2 |w|^2`` beside the mean loss.
    classes : ndarray of shape (K,) or None
    n_targets : int
        Columns of y, for regression.
    class_weight : ndarray of shape (K,) or None
    epsilon : float
    held_out : HeldOut
        Rows kept for early stopping and calibration.
    seed : int
    dtype : {"float32", "float64"}
    """

    feature_map: FeatureMap
    loss: str
    alpha: float
    classes: np.ndarray | None = None
    n_targets: int = 1
    class_weight: np.ndarray | None = None
    epsilon: float = 0.1
    held_out: HeldOut = field(default_factory=HeldOut)
    seed: int = 0
    dtype: str = "float32"

    @property
    def n_models(self) -> int:
        """Linear models: one for two classes, one a class for more, one a target."""
        if self.classes is None:
            return self.n_targets
        return 1 if len(self.classes) == 2 else len(self.classes)


@dataclass(frozen=True, eq=False)
class Run:
    """How passes are run.

    Parameters
    ----------
    publish : callable
    memory_limit : int, str or None
    device : {"cpu", "gpu"}
    checkpoint : Checkpoint or None
    fingerprint : str
    """

    publish: Subscriber = ignore
    memory_limit: int | str | None = None
    device: Any = "cpu"
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""


@dataclass(frozen=True, eq=False)
class LinearFit:
    """What fitting came to.

    Parameters
    ----------
    model : estimator
        A fitted scikit-learn estimator on mapped rows.
    target_center, target_scale : ndarray of shape (t,)
        Of regression targets.
    epochs : int
        Epochs, or Newton steps of the slowest model.
    losses : tuple of float
        Mean held-out loss after each epoch, with early stopping.
    message : str
        How it ended.
    """

    model: Any
    target_center: np.ndarray
    target_scale: np.ndarray
    epochs: int
    losses: tuple[float, ...] = ()
    message: str = ""


def default_epochs(n_rows: int) -> int:
    """10, and more on few rows: up to 50, until 200,000 rows are stepped through."""
    return int(np.clip(np.ceil(_ENOUGH_ROWS / max(n_rows, 1)), _FEWEST_EPOCHS, _MOST_EPOCHS))


def summarise_rows(problem: LinearProblem, source: BlockSource, run: Run) -> Summary:
    """One pass for what both solvers must know of the rows."""
    K = None if problem.classes is None else len(problem.classes)
    records = summary_records(K or problem.n_targets, K, problem.class_weight, problem.held_out, problem.seed)
    result = run_pass(source, records, publish=run.publish, memory_limit=run.memory_limit, device=run.device)
    return summarise(result.results, problem.feature_map, class_weight=problem.class_weight, dtype=problem.dtype)


def fit_by_epochs(
    problem: LinearProblem, source: BlockSource, run: Run, *, epochs: int | None, patience: int | None
) -> LinearFit:
    """Stochastic epochs by scikit-learn's `partial_fit`, averaged.

    Parameters
    ----------
    problem : LinearProblem
    source : BlockSource
    run : Run
    epochs : int or None
        None follows `default_epochs`.
    patience : int or None
        Of early stopping on the held-out rows; None goes through all epochs.

    Warns
    -----
    UserWarning
        If the order of the rows would bias the steps, so that several blocks are read for each.
    """
    summary = summarise_rows(problem, source, run)
    if patience is not None and summary.n_rows >= np.sum(source.block_rows):
        raise none_held_out(problem)
    mixed = mixed_source(source, summary.unevenness, problem.seed)
    targets = row_targets(problem, summary)
    schedule = step_schedule(
        problem.loss, alpha=problem.alpha, square_length=summary.square_length, largest=summary.largest
    )
    estimator = default_estimator(problem.loss, schedule, alpha=problem.alpha, epsilon=problem.epsilon)
    first = first_state(problem.n_models, problem.feature_map.n_features, dtype=problem.dtype, clock=schedule.clock)
    task = EpochProblem(
        step=sgd_step,
        step_operands={"estimator": estimator, "classes": problem.classes, "batch_rows": batch_rows(summary.n_rows)},
        first=first,
        feature_map=problem.feature_map,
        targets=targets,
        n_blocks=mixed.n_blocks,
        epochs=default_epochs(int(summary.n_rows)) if epochs is None else epochs,
        center=summary.center,
        seed=problem.seed,
        held_out=problem.held_out,
        stopping=None if patience is None else Stopping(problem.loss, patience, problem.epsilon),
        dtype=problem.dtype,
    )
    state = run_epochs(task, mixed, run)
    final = SGDState(**state.result)
    coef, intercept = in_original_units(*uncentred(final, summary.center), summary, problem.classes)
    model = fitted_estimator(estimator, coef, intercept, classes=problem.classes, clock=final.clock)
    return LinearFit(model, summary.target_center, summary.target_scale, state.epoch, state.losses)


def run_epochs(task: EpochProblem, source: BlockSource, run: Run) -> Any:
    """The last state of the epochs, through dask-ml's interface to incremental fitting."""
    from dkl.linear.incremental import BlockIncremental

    runner = BlockIncremental(
        task.step_operands["estimator"],
        feature_map=task.feature_map,
        epochs=task.epochs,
        memory_limit=run.memory_limit,
    )
    return runner.fit_epochs(
        task,
        source,
        publish=run.publish,
        checkpoint=run.checkpoint,
        fingerprint=run.fingerprint,
        device=run.device,
    )


def mixed_source(source: BlockSource, unevenness: float, seed: int) -> BlockSource:
    """The source itself, or one of mixed blocks where targets differ much between blocks."""
    n_filled = int(np.count_nonzero(source.block_rows))
    if unevenness <= _EVEN or n_filled < 2:
        return source
    groups = min(n_filled, _MOST_MIXED)
    warnings.warn(
        f"{100 * unevenness:.0f} % of the targets' variance in {source.place} lies between its blocks: rows look "
        f"sorted. Each step mixes rows of {groups} blocks, so every epoch reads {groups} times as much; "
        "store them shuffled instead: dkl.create_dataset(..., shuffle=True)",
        UserWarning,
        stacklevel=6,
    )
    return MixedSource(source, groups, seed)


def row_targets(problem: LinearProblem, summary: Summary) -> RowTargets:
    """Labels with weights of mean 1, or standardised targets."""
    scale = summary.n_rows / summary.total_weight
    if problem.classes is not None:
        return RowTargets(problem.classes, problem.class_weight, scale)
    return RowTargets(weight_scale=scale, center=float(summary.target_center[0]), scale=float(summary.target_scale[0]))


def in_original_units(
    coef: np.ndarray, intercept: np.ndarray, summary: Summary, classes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """A model of standardised targets as one of the targets; that of classes as it is."""
    if classes is not None:
        return coef, intercept
    scale = summary.target_scale
    return coef * scale[:, None], intercept * scale + summary.target_center


def fit_by_newton(problem: LinearProblem, source: BlockSource, run: Run) -> LinearFit:
    """Newton steps on block sums: exact, deterministic.

    Returns
    -------
    LinearFit
        Its model is a `LinearSVC` or a `Ridge` with the coefficients that these have at their optimum.
    """
    summary = summarise_rows(problem, source, run)
    classes = problem.classes
    held_out = problem.held_out
    targets = NewtonTargets(
        models=np.array([1]) if problem.n_models == 1 and classes is not None else np.arange(problem.n_models),
        n_classes=None if classes is None else len(classes),
        class_weight=problem.class_weight,
        center=summary.target_center,
        scale=summary.target_scale,
        kept=Kept(held_out) if held_out.share > 0 else None,
    )
    loss: NewtonLoss = "squared_error" if classes is None else "squared_hinge"
    task = NewtonProblem(problem.feature_map, targets, summary.total_weight, problem.alpha, loss, dtype=problem.dtype)
    state, _ = run_driver(
        NewtonDriver(),
        task,
        source,
        publish=run.publish,
        checkpoint=run.checkpoint,
        fingerprint=run.fingerprint,
        memory_limit=run.memory_limit,
        device=run.device,
    )
    coef, intercept = in_original_units(state.coefficients[:, :-1], state.coefficients[:, -1], summary, classes)
    strength = problem.alpha * summary.total_weight
    model: Any = Ridge(alpha=strength) if classes is None else LinearSVC(C=1.0 / strength)
    one_target = classes is None and problem.n_models == 1
    model.coef_, model.intercept_ = (coef[0], intercept[0]) if one_target else (coef, intercept)
    model.n_features_in_ = coef.shape[1]
    if classes is not None:
        model.classes_ = classes
    message = newton_message(state, task)
    if not state.converged(task.tol).all():
        warnings.warn(message, UserWarning, stacklevel=6)
    return LinearFit(model, summary.target_center, summary.target_scale, int(state.counts.max()), (), message)


@dataclass(frozen=True)
class Kept:
    """The rows that are not held out."""

    held_out: HeldOut

    def __call__(self, row_id: np.ndarray) -> np.ndarray:
        return ~self.held_out.mask(row_id)


def newton_message(state: Any, task: NewtonProblem) -> str:
    """How the Newton steps ended, in a sentence with the remedy where one is needed."""
    worst = float(np.max(state.gradient / np.maximum(state.first_gradient, np.finfo(float).tiny)))
    if state.converged(task.tol).all():
        return f"converged in {int(state.counts.max())} Newton steps: the gradient shrank to {worst:.1e} of its first"
    return (
        f"stopped after {task.max_steps} Newton steps with the gradient at {worst:.1e} of its first length "
        f"(wanted {task.tol:.0e}); a larger alpha makes the problem better posed"
    )


def calibrate(problem: LinearProblem, model: Any, source: BlockSource, run: Run) -> float:
    """The inverse temperature that fits the held-out rows best; one pass.

    Raises
    ------
    ValueError
        If no row is held out.
    """
    record = calibration_record(
        problem.feature_map,
        model.coef_,
        model.intercept_,
        held_out=problem.held_out,
        targets=RowTargets(problem.classes, problem.class_weight),
        dtype=problem.dtype,
    )
    result = run_pass(source, [record], publish=run.publish, memory_limit=run.memory_limit, device=run.device)
    sums = result.results[0]
    weight = float(sums["weight"][0])
    if weight == 0.0:
        raise none_held_out(problem)
    return best_multiplier(sums["label"], sums["uniform"], weight)


def none_held_out(problem: LinearProblem) -> ValueError:
    """The error of a share so small that no row is in it."""
    return ValueError(
        f"no row is held out: validation_fraction={problem.held_out.share:g} of few rows; use a larger fraction"
    )


def fit_further(problem: LinearProblem, fit: LinearFit, source: BlockSource, run: Run) -> LinearFit:
    """One more epoch of stochastic steps from a fitted model, on these rows; the step length goes on where it was."""
    summary = summarise_rows(problem, source, run)
    summary = replace(summary, target_center=fit.target_center, target_scale=fit.target_scale)
    coef, intercept = np.atleast_2d(fit.model.coef_), np.atleast_1d(fit.model.intercept_)
    if problem.classes is None:
        coef, intercept = coef / fit.target_scale, (intercept - fit.target_center) / fit.target_scale
    first = centred(coef, intercept, summary.center, dtype=problem.dtype, clock=fit.model.t_)
    task = EpochProblem(
        step=sgd_step,
        step_operands={
            "estimator": fit.model,
            "classes": problem.classes,
            "batch_rows": batch_rows(summary.n_rows),
        },
        first=first,
        feature_map=problem.feature_map,
        targets=row_targets(problem, summary),
        n_blocks=source.n_blocks,
        epochs=1,
        center=summary.center,
        seed=problem.seed + fit.epochs,
        dtype=problem.dtype,
    )
    final = SGDState(**run_epochs(task, source, run).result)
    coef, intercept = in_original_units(*uncentred(final, summary.center), summary, problem.classes)
    model = fitted_estimator(fit.model, coef, intercept, classes=problem.classes, clock=final.clock)
    return replace(fit, model=model, epochs=fit.epochs + 1)
