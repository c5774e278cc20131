"""Fully corrective rounds for a learner: its parameters as a problem, and what is left of the rounds in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.linear.target_statistics import TargetScale, target_scale
from dkl.methods.frequency_search.column_subsets import LEAST_COLUMNS
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool, FrequencySpace
from dkl.methods.frequency_search.learner import frequency_space_of, rows_within, weight_of
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.margin.driver import CorrectiveDriver
from dkl.methods.margin.problem import HISTORY, CorrectiveProblem, CorrectiveState, RoundSchedule, with_whole_losses
from dkl.methods.margin.sums import CorrectiveLoss, HeldTargets
from dkl.methods.parameters import kept_frequencies

FIRST_SAMPLE, SAMPLED_SHARE, MOST_SAMPLED = 10_000, 0.05, 400_000
_SAMPLE_BYTES = 64 << 20
AUTO_FEATURES, _AUTO_PATIENCE = 2_000, 5
_CHAINS, _CHAINS_A_CANDIDATE = 20, 2.0
_STEPS, _STRIDE = 5, 0.2
# most chains live on columns that go together once there are so many points: on rows kept out of the training rows of
# MNIST 1,000 features gain by it (4 v 9 0.1 %, ten digits 0.4 to 0.6), the first hundred do not
_NEAR_SHARE, _NEAR_STEPS, _NEAR_FROM = 0.85, 14, 50
# longer ascents pay where the rows are many
_LONG_STEPS, _MANY_ROWS = 20, 200_000
# an ascent follows the noise of few rows: there half of the features are plain draws, the searched ones are bounded by
# a share of the rows, and below the second number they are only the best of many starts
_FEW_ROWS, _VERY_FEW_ROWS = 5_000, 1_500
# in few columns there is little noise to follow: as many rows a column are enough there, and peaks lie further apart
_FEW_A_COLUMN, _VERY_FEW_A_COLUMN = 500, 150
_LEAST_STRIDE, _LOW_DIMENSION = 1.4, 10
_FEW_SHARE, _VERY_FEW_SHARE = 1 / 10, 1 / 20
# a number says more about a row than a label: on few rows of it the search may go on for longer
_NUMBERS_SHARE = 3 / 10
_STARTS = 200
# what a late round adds for several classes, which find as much in fewer and larger rounds; a single model does not
_LATE_GROWTH = 0.35
_ENOUGH_ROWS = 10_000
# The steps of the last rounds know a bound of the curvature only, under the log loss and for several classes: they are
# shorter than Newton's, and come to the model of `LogisticRegression` or `LinearSVC` by a part of the way each. They go
# on until one lowers the objective by less than this share of it, and for so many passes at most.
_SETTLING_STEPS = 30
_LEAST_GAIN = {"log_loss": 1e-7, "squared_hinge": 1e-6}
_C = 0.0125
# C multiplies the whole square of an error, as in `LinearSVR`, which is twice the loss of that name
_C_OF = {"squared_error": 2.0}


@dataclass(frozen=True, eq=False)
class CorrectiveResult:
    """How the rounds ended.

    Attributes
    ----------
    feature_map : FeatureMap
        Amplitudes 1 / sqrt(m); sqrt(c / m) for a feature of a finite set that was found c times.
    weights : ndarray of shape (m,)
        The share of each point in the working model: the length of its coefficients; sums to 1.
    coef, intercept : ndarray of shape (K, n_features) and (K,)
        The working model on `feature_map`, in the targets' own units.
    history : list of dict
        One line a round.
    duality_gap : float
        Of the last round, relative to the objective; estimated, since a search bounds potentials from below only.
    message : str
    points : ndarray of shape (m, ...)
        Frequencies, or their numbers in the pool of a finite family.
    certified : bool
        Never, for rounds.
    """

    feature_map: FeatureMap
    weights: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    history: list[dict[str, float]]
    duality_gap: float
    message: str
    points: np.ndarray
    certified: bool = False


def fit_correctively(learner: Any, dataset: Dataset, scaler: Any, start: np.ndarray | None = None) -> None:
    """Run the rounds on all rows of a dataset; their `CorrectiveResult` goes to ``learner._keep_result``.

    Parameters
    ----------
    learner : FeatureLearner
        Its parameters are read by name; `family_` has its bandwidth, `seed_` is drawn.
    dataset : Dataset
    scaler : Scaler or None
    start : ndarray or None
        Points that are there already.
    """
    scale = None if dataset.classes is not None else target_scale(dataset.source, dataset.schema.n_targets or 1)
    problem = corrective_problem(learner, dataset, scaler, scale=scale, start=start)
    learner._run(
        CorrectiveDriver(),
        problem,
        dataset,
        "rounds",
        keep=lambda learner, state: learner._keep_result(_result(problem, state, scale)),
    )


def corrective_problem(
    learner: Any, dataset: Dataset, scaler: Any, *, scale: TargetScale | None = None, start: np.ndarray | None = None
) -> CorrectiveProblem:
    """The rounds that a learner's parameters describe."""
    space = _frequency_space(learner, dataset, scaler)
    classes, held_out = dataset.classes, _held_out(learner)
    weights = learner._class_weights(dataset)
    total = weight_of(dataset, weights)
    n_models = (dataset.schema.n_targets or 1) if classes is None else (1 if len(classes) == 2 else len(classes))
    targets = NewtonTargets(
        models=np.array([1]) if classes is not None and n_models == 1 else np.arange(n_models),
        n_classes=None if classes is None else len(classes),
        class_weight=weights,
        center=None if scale is None else scale.center,
        scale=None if scale is None else scale.scale,
    )
    most = max(1_000, min(MOST_SAMPLED, rows_within(_SAMPLE_BYTES, dataset.source)))
    first = learner.search_rows or min(max(FIRST_SAMPLE, int(SAMPLED_SHARE * dataset.n_rows)), most)
    loss = _loss(learner, dataset)
    ridge = 1.0 / (_C_OF.get(loss, 1.0) * (_C if learner.C is None else learner.C))
    # heavy while features are looked for, since that keeps them diverse; on few rows too heavy to predict with
    light = ridge * (min(1.0, total / _ENOUGH_ROWS) if learner.C is None else 1.0)
    return CorrectiveProblem(
        space=space,
        targets=HeldTargets(targets, None if held_out is None else held_out.mask),
        n_models=n_models,
        n_points=_n_points(learner, space),
        total_weight=total * (1.0 - (0.0 if held_out is None else held_out.share)),
        loss=loss,
        ridge=light if learner.n_features == "auto" else ridge,
        last_ridge=light,
        schedule=_schedule(learner, space, dataset, n_models, loss),
        sample_rows=first,
        most_rows=max(first, most),
        seed=learner.seed_,
        dtype=learner.dtype,
        start=start,
    )


def _loss(learner: Any, dataset: Dataset) -> CorrectiveLoss:
    """The loss of the working model.

    Raises
    ------
    ValueError
        If it is not one for these targets.
    """
    allowed: tuple[CorrectiveLoss, ...] = (
        ("squared_error",) if dataset.classes is None else ("squared_hinge", "log_loss", "squared_error")
    )
    loss: CorrectiveLoss = allowed[0] if learner.loss is None else learner.loss
    if loss not in allowed:
        kind = "numbers" if dataset.classes is None else "class labels"
        remedy = "; the hinge is for solver='game'" if loss == "hinge" else ""
        raise ValueError(f"loss={loss!r} is not one of {allowed}, which solver='corrective' has for {kind}{remedy}")
    return loss


def _held_out(learner: Any) -> HeldOut | None:
    stops = learner.patience is not None or learner.n_features == "auto" or learner.refine > 0
    if learner._context.withheld is not None and not stops:
        return learner._context.withheld
    return HeldOut(learner.validation_fraction, learner.seed_) if stops else None


def _n_points(learner: Any, space: FrequencySpace) -> int:
    if learner.n_features == "auto":
        most = AUTO_FEATURES // space.columns_a_point
    else:
        most = kept_frequencies(type(learner).__name__, learner.n_features, learner.family_)
    return min(most, space.pool.n_frequencies) if isinstance(space, FrequencyPool) else most


def _are_few(dataset: Dataset) -> bool:
    return dataset.total_weight < min(_FEW_ROWS, _FEW_A_COLUMN * dataset.n_columns)


def _are_very_few(dataset: Dataset) -> bool:
    return dataset.total_weight < min(_VERY_FEW_ROWS, _VERY_FEW_A_COLUMN * dataset.n_columns)


def _searched_share(dataset: Dataset) -> float:
    """Of few rows, how many features are searched for at most, as a share of the rows."""
    if dataset.classes is None:
        return _NUMBERS_SHARE
    return _VERY_FEW_SHARE if _are_very_few(dataset) else _FEW_SHARE


def _schedule(
    learner: Any, space: FrequencySpace, dataset: Dataset, n_models: int, loss: CorrectiveLoss
) -> RoundSchedule:
    few = _are_few(dataset)
    share = (0.5 if few else 0.0) if learner.plain_share is None else learner.plain_share
    schedule = RoundSchedule(rounds=learner.rounds, patience=learner.patience, tol=learner.tol, plain_share=share)
    # one model's steps on the squared hinge are Newton's own; and a machine fits a model of its own
    stands = loss == "squared_hinge" and (n_models == 1 or learner._context.for_machine)
    if loss in _LEAST_GAIN and not stands:
        schedule = replace(schedule, settling=_SETTLING_STEPS, least_gain=_LEAST_GAIN[loss])
    if few and learner.plain_share is None:
        schedule = replace(schedule, most_searched=max(1, int(_searched_share(dataset) * dataset.total_weight)))
    if learner.n_features == "auto" and learner.patience is None:
        schedule = replace(schedule, patience=_AUTO_PATIENCE)
    if learner._context.withheld is not None and schedule.patience is None:
        # the machine that withholds rows fits a model of its own
        schedule = replace(schedule, settling=0)
    if learner.features_per_round is not None:
        first = max(1, learner.features_per_round // space.columns_a_point)
        return replace(schedule, first=first, growth=0.0, late_growth=0.0)
    # where held-out rows end the rounds, these are counted
    several = dataset.classes is not None and n_models > 1 and not few
    return replace(schedule, late_growth=_LATE_GROWTH) if several and schedule.patience is None else schedule


def _frequency_space(learner: Any, dataset: Dataset, scaler: Any) -> FrequencySpace:
    d, very_few = dataset.n_columns, _are_very_few(dataset)
    options = SearchOptions(
        chains=(_STARTS if very_few else _CHAINS) if learner.chains is None else learner.chains,
        steps=_steps(dataset) if learner.steps is None else learner.steps,
        stride=max(_STRIDE, _LEAST_STRIDE / np.sqrt(d)) if learner.stride is None else learner.stride,
        noise=0.0 if learner.noise is None else learner.noise,
        sparse_share=learner.sparse_share,
        near_share=_NEAR_SHARE if _may_have_neighbours(dataset) else 0.0,
        near_steps=max(_NEAR_STEPS, _steps(dataset)) if learner.steps is None else learner.steps,
        max_norm=learner.max_norm,
    )
    spread = _CHAINS_A_CANDIDATE if learner.chains is None else 0.0
    space = frequency_space_of(learner, learner.family_, d, scaler, options, spread)
    if not isinstance(space, FourierSpace):
        return space
    return replace(space, near_room=max(0, _n_points(learner, space) - _NEAR_FROM))


def _may_have_neighbours(dataset: Dataset) -> bool:
    """Whether the rows are worth a look at which columns go together, which takes memory."""
    return not (_are_few(dataset) or dataset.source.is_sparse or dataset.n_columns < LEAST_COLUMNS)


def _steps(dataset: Dataset) -> int:
    if _are_very_few(dataset):
        return 1
    is_long = dataset.total_weight >= _MANY_ROWS or dataset.n_columns <= _LOW_DIMENSION
    return _LONG_STEPS if is_long else _STEPS


def _result(problem: CorrectiveProblem, state: CorrectiveState, scale: TargetScale | None) -> CorrectiveResult:
    state = with_whole_losses(problem, state)
    points = state.points
    first, place, counts = _repeats(points, problem.space)
    found = state.coefficients[:, :-1].reshape(problem.n_models, problem.parts, -1)[:, :, : len(points)]
    merged = np.zeros((len(first), problem.n_models, problem.parts))
    np.add.at(merged, place, found.transpose(2, 0, 1))
    coefficients = merged.transpose(1, 2, 0)
    lengths = np.sqrt(np.sum(coefficients**2, axis=(0, 1)))
    amplitudes = np.sqrt(counts / max(1, len(points)))
    feature_map = problem.space.feature_map(points[first])
    coef = (coefficients / amplitudes).reshape(problem.n_models, -1)
    intercept = state.coefficients[:, -1]
    if scale is not None:
        coef, intercept = coef * scale.scale[:, None], intercept * scale.scale + scale.center
    return CorrectiveResult(
        feature_map=replace(feature_map, amplitudes=amplitudes),
        weights=lengths / max(float(lengths.sum()), np.finfo(np.float64).tiny),
        coef=coef,
        intercept=intercept,
        history=[dict(zip(HISTORY, map(float, line), strict=True)) for line in state.history],
        duality_gap=float(state.history[-1, HISTORY.index("duality_gap")]),
        message=state.message,
        points=points,
    )


def _repeats(points: np.ndarray, space: FrequencySpace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first position of each point, whose repetition each position is, and how often each was found.

    A feature of a finite set that is found again is scaled, not appended (Bullins, Zhang & Zhang 2018, appendix A.3).
    """
    if isinstance(space, FourierSpace):
        every = np.arange(len(points))
        return every, every, np.ones(len(points))
    _, first, place, counts = np.unique(points, True, True, True, axis=0)
    order = np.argsort(first)
    return first[order], np.argsort(order)[place.reshape(-1)], counts[order].astype(np.float64)
