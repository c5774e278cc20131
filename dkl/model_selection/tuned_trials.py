"""Evaluates trials of TunedRegressor (lam, Lam, gamma, length scale) on the sums of one pass, at fixed frequencies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeGuard

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.judge import Folds
from dkl.linear.target_statistics import target_scale
from dkl.methods.density.learner import TunedRegressor
from dkl.methods.density.pass_records import FoldSums
from dkl.methods.density.penalty import MetaSpectrum
from dkl.methods.density.squared import cross_validate
from dkl.methods.fit_context import FitContext
from dkl.methods.parameters import check_parameters
from dkl.model_selection.evaluation import Outcome, Scoring, with_parameters
from dkl.model_selection.running import Outcomes, Runner, TrialFit
from dkl.solvers.squared_sums import Squared

# The parameters that change neither the frequencies nor the rows, so that trials need only the sums of one pass.
WITHOUT_PASS = frozenset(
    {"lam", "Lam", "gamma", "length_scale", "meta_kernel", "density_floor", "center", "shared_density"}
)
_SCORES = (None, "r2", "neg_mean_squared_error")


def needs_no_pass(
    model: object, dataset: Dataset, names: Iterable[str], scoring: Scoring, n_folds: int
) -> TypeGuard[TunedRegressor]:
    """Whether all trials can be evaluated on the sums of one pass.

    Parameters
    ----------
    model : estimator
    dataset : Dataset
    names : iterable of str
        The names of the searched parameters.
    scoring : str, callable or None
    n_folds : int
    """
    # `on_sums` fits models to all other folds; with times, models are fitted to older folds alone. Target means would
    # have to be learned again for each fold.
    suits = dataset.schema.held_by != "time" and not dataset.schema.has_codes and n_folds > 1
    return (
        suits
        and isinstance(model, TunedRegressor)
        and model.solver == "full"
        and model.max_rows is None
        and WITHOUT_PASS.issuperset(names)
        and scoring in _SCORES
    )


def on_sums(model: TunedRegressor, dataset: Dataset, folds: Folds, scoring: Scoring) -> Runner:
    """The runner of fits on sums by fold, after the pass that computes these.

    Parameters
    ----------
    model : TunedRegressor
    dataset : Dataset
    folds : Folds
    scoring : str or None
    """
    # a fit up to its first pass over the features, which draws frequencies and finds the units of the targets
    context = FitContext(for_machine=True, weighs=False)
    learner = with_parameters(model, {"checkpoint": None}).fit_within(dataset, context)
    run = learner._running("")
    n_targets = dataset.schema.n_targets or 1
    scale = target_scale(dataset.source, n_targets, run)
    # With standardised targets lam does not depend on their unit; `OnSums._scores` returns to the original unit.
    targets = NewtonTargets(np.arange(n_targets), None, center=scale.center, scale=scale.scale)
    reference, _ = learner._reference_and_penalty()
    wanted = FoldSums(reference, targets, folds, n_folds=folds.count, n_rows=dataset.n_rows)
    sums = run.read(dataset.source, wanted.records(), lambda passed: wanted.collect(passed.results), None)
    variances = np.array([of_fold.variances for of_fold in sums])
    return OnSums(learner, reference, sums, variances, scale.scale, scoring).run


@dataclass(frozen=True, eq=False)
class OnSums:
    """Evaluates trials on sums by fold.

    Frequencies and the scaling of columns and targets are those of all rows; densities and weights are learned without
    the fold on which they are scored.

    Parameters
    ----------
    model : TunedRegressor
        With the attribute `family_`.
    reference : FeatureMap
    sums : list of SquaredSums or of SquaredRows
        The sums of each fold for standardised targets.
    variances : ndarray of shape (F, K)
        The variances of the standardised targets in each fold.
    scales : ndarray of shape (K,)
        The scale by which targets were divided.
    scoring : str or None
    """

    model: TunedRegressor
    reference: FeatureMap
    sums: list[Squared]
    variances: np.ndarray
    scales: np.ndarray
    scoring: Scoring

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `dkl.model_selection.running.Runner`; all folds of a trial are evaluated together."""
        spectra: dict[str, MetaSpectrum] = {}
        for _, group in groupby(jobs, key=lambda job: job.number):
            if time.monotonic() > deadline:
                return
            of_trial = list(group)
            # One call computes the errors on all folds; its time is divided equally among them.
            outcomes = self._judged(of_trial[0].trial.parameters, spectra)
            yield from ((job, outcomes[job.fold]) for job in of_trial)

    def _judged(self, parameters: Mapping[str, Any], spectra: dict[str, MetaSpectrum]) -> list[Outcome]:
        """The outcomes of a trial by fold; `spectra` caches the last eigendecomposition."""
        started = time.perf_counter()
        try:
            model = with_parameters(self.model, parameters)
            model.family_ = self.model.family_
            check_parameters(model)
            # Trials with the same meta-kernel and length scale share the eigendecomposition of its matrix over all
            # pairs of frequencies. Only the last one is kept, since it takes D^2 numbers.
            key = repr((model.meta_kernel, model.length_scale))
            if key not in spectra:
                spectra.clear()
                spectra[key] = model._meta_spectrum(self.reference)
            penalty = model._penalty(spectra[key])
            errors = cross_validate(self.sums, penalty, model.lam, shared=model.shared_density)
            scores = self._scores(errors)
        except Exception as error:
            return [Outcome(float("nan"), 0.0, f"{type(error).__name__}: {error}")] * len(self.sums)
        seconds = (time.perf_counter() - started) / len(self.sums)
        return [Outcome(float(score), seconds) for score in scores]

    def _scores(self, errors: np.ndarray) -> np.ndarray:
        """The score of each fold, (F,), from the mean squared errors (F, K) of standardised targets."""
        if self.scoring == "neg_mean_squared_error":
            return -(errors * self.scales**2).mean(axis=1)
        # R^2 of a constant target is 1 without an error and 0 with one, as in scikit-learn.
        unexplained = np.divide(errors, self.variances, out=(errors > 0.0).astype(float), where=self.variances > 0.0)
        return np.mean(1.0 - unexplained, axis=1)
