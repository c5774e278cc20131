"""Fitting tuned random features for a learner: its parameters as a problem, solved wholly or by epochs of Adam."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.fitting import LinearProblem
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import newton_targets
from dkl.linear.target_statistics import TargetScale, deviations, target_record, target_scale
from dkl.methods.density.adam_fit import AdamFit, Descent, descent_passes, fit_by_adam
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.driver import TunedDriver, solution
from dkl.methods.density.judging import judged, judging_record
from dkl.methods.density.meta_kernels import DeltaMetaKernel, as_meta_kernel
from dkl.methods.density.penalty import (
    MOST_BYTES,
    DensityPenalty,
    MetaSpectrum,
    check_density_size,
    density_bytes,
    meta_spectrum,
)
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import TunedSolution
from dkl.methods.frequency_search.learner import row_bytes, weight_of
from dkl.methods.preparation.bandwidth import median_distance
from dkl.passes.engine import run_pass
from dkl.passes.memory import allowed_bytes

Passes = list[tuple[Sequence[Any], int]]
History = list[dict[str, float]]


def fit_tuned(learner: Any, dataset: Dataset, reference: FeatureMap, start: Any = None) -> None:
    """Learn density and model by a learner's parameters on all rows of a dataset.

    What is found goes to ``learner._keep(reference, solution, history)``: a `TunedSolution` on the features of
    `reference`, in the targets' own units (objective, residual and gap are those of standardised targets), and a line a
    round or epoch.

    Parameters
    ----------
    learner : TunedClassifier or TunedRegressor
        With `seed_`.
    dataset : Dataset
    reference : FeatureMap
        D cosine-sine pairs at amplitudes 1/sqrt(D).
    start : tuple of ndarray or None
        As of `TunedProblem`.
    """
    penalty = penalty_of(learner, meta_spectrum_of(learner, reference))
    if learner.solver == "adam":
        _descend(learner, dataset, reference, penalty)
    else:
        _solve(learner, dataset, reference, penalty, start)


def meta_spectrum_of(learner: Any, reference: FeatureMap) -> MetaSpectrum:
    """The spectrum of a learner's meta-kernel on the frequencies of `reference`."""
    W, length = reference.projection.dense(), learner.length_scale
    if length is None:
        length = median_distance(W) if len(W) > 1 else 1.0
    return meta_spectrum(W, learner.meta_kernel, length_scale=length)


def penalty_of(learner: Any, spectrum: MetaSpectrum) -> DensityPenalty:
    """The penalty of the density by a learner's parameters."""
    return DensityPenalty(spectrum, **_figures(learner))


def check_penalty(learner: Any, n_frequencies: int) -> None:
    """Raise an error for a penalty that has no meaning, or whose matrix does not fit into memory; before any pass."""
    if not _planned_penalty(learner, 1).separable:
        check_density_size(n_frequencies, min(MOST_BYTES, allowed_bytes(learner.memory_limit, None)))


def held_bytes(learner: Any, dataset: Dataset, reference: FeatureMap) -> dict[str, int]:
    """Bytes that are held at most beside the passes: by the driver of the solver, or the meta-kernel's matrices."""
    penalty = _planned_penalty(learner, reference.n_frequencies)
    if learner.solver == "full":
        problem = _tuned_problem(learner, dataset, reference, penalty, None)
        return TunedDriver().memory(problem, row_bytes(dataset.source))
    return {} if penalty.separable else {"density": density_bytes(reference.n_frequencies)}


def tuned_passes(learner: Any, dataset: Dataset, reference: FeatureMap) -> Passes:
    """The records of each kind of pass and how often it runs at most."""
    penalty = _planned_penalty(learner, reference.n_frequencies)
    if learner.solver == "adam":
        problem = _linear_problem(learner, dataset, reference)
        first = TunedModel.first(problem.n_models, 1, penalty)
        record = judging_record(reference, _targets(problem, None), first, learner.loss, dtype=learner.dtype)
        return [*descent_passes(problem, penalty, _descent(learner), dataset.source), ([record], 1)]
    passes = learner._kept(TunedDriver()).plan(_tuned_problem(learner, dataset, reference, penalty, None))
    scale = [] if dataset.classes is not None else [([target_record(dataset.schema.n_targets or 1)], 1)]
    return [*scale, *passes]


def _figures(learner: Any) -> dict[str, float]:
    return {
        "gamma": learner.gamma,
        "Lam": learner.Lam,
        "floor": learner.density_floor,
        "center": learner.center,
    }


def _planned_penalty(learner: Any, n_frequencies: int) -> DensityPenalty:
    """A penalty of the right size, of another meta-kernel: its spectrum takes longer than a plan may."""
    kernel = as_meta_kernel(learner.meta_kernel, learner.length_scale or 1.0)
    coupled = not isinstance(kernel, DeltaMetaKernel)
    vectors = np.broadcast_to(0.0, (n_frequencies, n_frequencies)) if coupled else None
    return penalty_of(learner, MetaSpectrum(np.ones(n_frequencies), vectors))


def _solve(learner: Any, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty, start: Any) -> None:
    scale = _units(learner, dataset)
    problem = replace(_tuned_problem(learner, dataset, reference, penalty, scale), start=start)

    def keep(learner: Any, state: TunedState) -> None:
        found = _in_own_units(solution(problem, state), scale)
        learner._keep(reference, found, [dict(line) for line in state.history])

    if learner.sums is not None:
        keep(learner, learner._sum(TunedDriver(), problem, dataset, "solver"))
        return
    state = learner._run(TunedDriver(), problem, dataset, "solver", keep=keep)
    if problem.loss != "squared_error" and state.gap > problem.tol * state.objective and not state.was_stopped:
        warnings.warn(f"{type(learner).__name__} stands where {state.message}", UserWarning, stacklevel=6)


def _units(learner: Any, dataset: Dataset) -> TargetScale | None:
    """What targets are standardised by; kept sums stay in the units that they were begun in."""
    if dataset.classes is not None:
        return None
    if learner.sums is None:
        return target_scale(dataset.source, dataset.schema.n_targets or 1)
    if not hasattr(learner, "target_units_"):
        found = target_scale(dataset.source, dataset.schema.n_targets or 1)
        learner.target_units_ = np.stack([found.center, found.scale])
    return TargetScale(*learner.target_units_)


def _in_own_units(found: TunedSolution, scale: TargetScale | None) -> TunedSolution:
    if scale is None:
        return found
    coef, intercept = found.coef * scale.scale[:, None], found.intercept * scale.scale + scale.center
    return replace(found, coef=coef, intercept=intercept)


def _tuned_problem(
    learner: Any, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty, scale: TargetScale | None
) -> TunedProblem:
    """The problem of a learner's parameters as the full-gradient solver takes it."""
    return TunedProblem(
        reference,
        _targets(_linear_problem(learner, dataset, reference), scale),
        weight_of(dataset, learner._class_weights(dataset)),
        learner.loss,
        learner.lam,
        penalty,
        tol=learner.tol,
        max_passes=learner.max_passes,
        shared=learner.shared_density,
        dtype=learner.dtype,
        n_rows=None if learner.sums is not None else dataset.n_rows,
        deviations=deviations if learner.sums is not None and dataset.classes is None else None,
    )


def _targets(problem: LinearProblem, scale: TargetScale | None) -> NewtonTargets:
    return newton_targets(problem, None, None) if scale is None else newton_targets(problem, scale.center, scale.scale)


def _descend(learner: Any, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty) -> None:
    problem = _linear_problem(learner, dataset, reference)

    def so_far(fit: AdamFit) -> Any:
        one = copy.copy(learner)
        _keep_descent(one, reference, fit, _unjudged(fit))
        return one

    run = replace(learner._running("descent"), estimator=so_far)
    fit, stats = fit_by_adam(problem, penalty, dataset.source, run, _descent(learner))
    learner.stats_.extend(stats)
    scale = _scale(learner, fit)
    record = judging_record(reference, _targets(problem, scale), fit.model, learner.loss, dtype=learner.dtype)
    result = run_pass(dataset.source, [record], publish=run.publish, memory_limit=run.memory_limit, device=run.device)
    learner.stats_.append(result.stats)
    found = judged(result.results[0], fit.model, learner.loss, learner.lam, penalty)
    _keep_descent(learner, reference, fit, found)


def _keep_descent(learner: Any, reference: FeatureMap, fit: AdamFit, found: TunedSolution) -> None:
    density = fit.model.density[0] if learner.shared_density else fit.model.density
    found = replace(found, density=density, message=_message(fit, found))
    learner._keep(reference, _in_own_units(found, _scale(learner, fit)), _history(fit))


def _scale(learner: Any, fit: AdamFit) -> TargetScale | None:
    return None if hasattr(learner, "classes_") else TargetScale(fit.target_center, fit.target_scale)


def _unjudged(fit: AdamFit) -> TunedSolution:
    """A model under way, whose objective is that of the last batches and has no bound."""
    model, unknown = fit.model, float("nan")
    return TunedSolution(
        model.coef, model.intercept, model.density, float(fit.trace[-1]), unknown, unknown, "under way"
    )


def _descent(learner: Any) -> Descent:
    patience = learner.patience if learner.early_stopping else None
    return Descent(learner.epochs, learner.learning_rate, patience, learner.shared_density)


def _linear_problem(learner: Any, dataset: Dataset, reference: FeatureMap) -> LinearProblem:
    return LinearProblem(
        feature_map=reference,
        loss=learner.loss,
        alpha=learner.lam,
        classes=dataset.classes,
        n_targets=dataset.schema.n_targets or 1,
        class_weight=learner._class_weights(dataset),
        held_out=HeldOut(learner.validation_fraction if learner.early_stopping else 0.0, learner.seed_),
        seed=learner.seed_,
        dtype=learner.dtype,
    )


def _message(fit: AdamFit, found: TunedSolution) -> str:
    share = found.gap / max(found.objective, np.finfo(np.float64).tiny)
    best = f", the best of which ({int(np.argmin(fit.losses)) + 1}) was kept," if fit.losses else ""
    bound = f"end at most {100.0 * share:.2g} % above the optimum" if share < 1.0 else "end where no bound is known"
    asked = f"{fit.ended}: " if fit.ended else ""
    return f"{asked}{len(fit.trace)} epochs of Adam{best} {bound}; more epochs, or solver='full', come nearer"


def _history(fit: AdamFit) -> History:
    lines = [{"epoch": float(epoch), "objective": float(value)} for epoch, value in enumerate(fit.trace, start=1)]
    return [line | ({"held_out_loss": fit.losses[place]} if fit.losses else {}) for place, line in enumerate(lines)]
