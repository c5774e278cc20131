"""Trials of TunedRegressor on the sums of one pass: every lam, Lam, gamma and length at fixed frequencies, by fold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.target_statistics import target_scale
from dkl.methods.density.learner import TunedRegressor
from dkl.methods.density.pass_records import FoldSums
from dkl.methods.density.penalty import DensityPenalty, MetaSpectrum
from dkl.methods.density.row_summary import Squared, SquaredRows
from dkl.methods.density.squared import cross_validate
from dkl.methods.parameters import check_parameters, drawn_seed
from dkl.model_selection.evaluation import Outcome, Scoring, with_parameters
from dkl.model_selection.folds import RowFolds
from dkl.model_selection.running import Outcomes, TrialFit
from dkl.passes.devices import computing_device
from dkl.passes.engine import run_pass

# what does not change the features, so that it needs no further pass
WITHOUT_PASS = frozenset(
    {"lam", "Lam", "gamma", "length_scale", "meta_kernel", "density_floor", "center", "shared_density"}
)
_SCORES = (None, "r2", "neg_mean_squared_error")


def needs_no_pass(model: Any, names: Iterable[str], scoring: Scoring, n_folds: int) -> bool:
    """Whether all trials can be judged on sums that one pass finds.

    Parameters
    ----------
    model : estimator
    names : iterable of str
        Of the parameters that are searched.
    scoring : str, callable or None
    n_folds : int
    """
    return (
        isinstance(model, TunedRegressor)
        and model.solver == "full"
        and model.max_rows is None
        and n_folds > 1
        and WITHOUT_PASS.issuperset(names)
        and (scoring in _SCORES if not callable(scoring) else False)
    )


@dataclass(frozen=True, eq=False)
class OnSums:
    """Judges trials on sums by fold; see `dkl.model_selection.running.Runner`.

    Frequencies, the scaling of the columns and that of the targets are those of all rows; densities and weights are
    learned without the fold that they are judged on.

    Parameters
    ----------
    model : TunedRegressor
        With `family_`.
    reference : FeatureMap
    sums : list of SquaredSums or of SquaredRows
        Of each fold, of standardised targets.
    variances : ndarray of shape (F, K)
        Of the targets of each fold.
    scales : ndarray of shape (K,)
        What targets were divided by.
    scoring : str or None
    """

    model: TunedRegressor
    reference: FeatureMap
    sums: list[Squared]
    variances: np.ndarray
    scales: np.ndarray
    scoring: str | None

    @classmethod
    def of(cls, model: TunedRegressor, dataset: Dataset, folds: RowFolds, scoring: Any) -> OnSums:
        """Run the pass.

        Parameters
        ----------
        model : TunedRegressor
        dataset : Dataset
        folds : RowFolds
        scoring : str or None
        """
        learner = with_parameters(model, {"checkpoint": None})
        check_parameters(learner)
        learner._check_rest()
        learner.seed_, learner.stats_, learner._fingerprint = drawn_seed(model.random_state), [], ""
        scaler = learner._prepare(dataset)
        reference = learner._reference(learner.family_, dataset.n_columns, seed=learner.seed_)
        n_targets = dataset.schema.n_targets or 1
        scale = target_scale(dataset.source, n_targets)
        targets = NewtonTargets(np.arange(n_targets), None, center=scale.center, scale=scale.scale)
        wanted = FoldSums(replace(reference, scaler=scaler), targets, folds, n_folds=folds.count, n_rows=dataset.n_rows)
        found = run_pass(
            dataset.source,
            wanted.records(),
            memory_limit=model.memory_limit,
            device=computing_device(model.device),
        )
        sums = wanted.collect(found.results)
        variances = np.array([_variances(one) for one in sums])
        return cls(learner, reference, sums, variances, scale.scale, scoring)

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`: all folds of a trial are judged together."""
        spectra: dict[str, MetaSpectrum] = {}
        for _, group in groupby(jobs, key=lambda job: job.trial):
            if time.monotonic() > deadline:
                return
            of_trial = list(group)
            outcomes = self._judged(of_trial[0].parameters, spectra)
            yield from ((job, outcomes[job.fold]) for job in of_trial)

    def _judged(self, parameters: Mapping[str, Any], spectra: dict[str, MetaSpectrum]) -> list[Outcome]:
        started = time.perf_counter()
        try:
            model = with_parameters(self.model, parameters)
            model.family_ = self.model.family_
            check_parameters(model)
            penalty = self._penalty(model, spectra)
            errors = cross_validate(self.sums, penalty, model.lam, shared=model.shared_density).errors
            scores = self._scores(errors)
        except Exception as error:
            return [Outcome(float("nan"), 0.0, f"{type(error).__name__}: {error}")] * len(self.sums)
        seconds = (time.perf_counter() - started) / len(self.sums)
        return [Outcome(float(score), seconds) for score in scores]

    def _penalty(self, model: TunedRegressor, spectra: dict[str, MetaSpectrum]) -> DensityPenalty:
        """Trials that share a length share its eigendecomposition."""
        key = repr((model.meta_kernel, model.length_scale))
        if key not in spectra:
            # one matrix of all pairs of frequencies at a time
            spectra.clear()
            spectra[key] = model._meta_spectrum(self.reference)
        return model._penalty(spectra[key])

    def _scores(self, errors: np.ndarray) -> np.ndarray:
        if self.scoring == "neg_mean_squared_error":
            return -(errors * self.scales**2).mean(axis=1)
        # of a constant target all is explained or nothing, as in scikit-learn
        unexplained = np.divide(errors, self.variances, out=(errors > 0.0).astype(float), where=self.variances > 0.0)
        return np.mean(1.0 - unexplained, axis=1)


def _variances(rows: Squared) -> np.ndarray:
    """The weighted variance of each target, (K,)."""
    if isinstance(rows, SquaredRows):
        mean = rows.weights @ rows.targets / rows.weight
        return rows.weights @ (rows.targets - mean) ** 2 / rows.weight
    return np.maximum(rows.squares / rows.weight - (rows.cross[:, -1] / rows.weight) ** 2, 0.0)
