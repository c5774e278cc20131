"""The last stage of a learner with `refine`: its frequencies descend together with the weights of a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.linear.fitting import LinearProblem
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.newton import NEWTON_LOSSES, newton_passes
from dkl.linear.refinement import fit_and_refine
from dkl.linear.refinement_driver import RefineDriver, Refinement, RefineProblem

# of log_loss, where no Newton steps choose it: C = 1 on features of length 1
_C = 1.0


def refine_learner(learner: Any, dataset: Dataset) -> None:
    """Refine what a learner has found, in its fitted attributes.

    A linear model is fitted without the held-out rows, frequencies and weights descend together for at most `refine`
    epochs, and the best epoch on the held-out rows is kept: the features that were found, if no epoch is better. Sets
    `feature_map_`, `coef_`, `intercept_`, `weights_` and `refinement_`, the held-out loss of each epoch.

    Parameters
    ----------
    learner : fitted FeatureLearner
        With `feature_map_`, `seed_`, and the parameters `refine`, `loss`, `validation_fraction`.
    dataset : Dataset
        The rows that it was fitted on.

    Raises
    ------
    ValueError
        If the features are not cosines and sines, or no row is held out.
    """
    run = learner._running("refinement")
    problem = _problem(learner, dataset, learner.feature_map_)
    refined = fit_and_refine(problem, dataset.source, run, epochs=learner.refine)
    learner.feature_map_, learner.coef_, learner.intercept_ = refined.feature_map, refined.coef, refined.intercept
    learner.weights_ = _shares(refined.feature_map, refined.coef)
    learner.refinement_ = refined.history
    if refined.ended:
        learner.message_ += f"; {refined.ended} of their refinement after {len(refined.history) - 1} epochs"


def refining_passes(learner: Any, dataset: Dataset, feature_map: FeatureMap) -> list[tuple[Sequence[Any], int]]:
    """The records of each kind of pass and how often it runs at most, for a map of the size that is expected."""
    problem = _problem(learner, dataset, feature_map)
    fit = newton_passes(problem, dataset.n_rows) if problem.loss in NEWTON_LOSSES else []
    shape = (problem.n_models, feature_map.n_features)
    descent = RefineProblem(
        feature_map,
        np.zeros(shape),
        np.zeros(problem.n_models),
        RowTargets(dataset.classes),
        np.asarray(dataset.source.block_rows),
        Refinement(problem.loss, epochs=learner.refine),  # type: ignore[arg-type]
    )
    return [*fit, *RefineDriver().plan(descent)]


def _problem(learner: Any, dataset: Dataset, feature_map: FeatureMap) -> LinearProblem:
    """The squared hinge stands in for the hinge, which has no gradient."""
    default = "squared_error" if dataset.classes is None else "squared_hinge"
    loss = {None: default, "hinge": "squared_hinge"}.get(learner.loss, learner.loss)
    return LinearProblem(
        feature_map,
        loss,
        alpha="auto" if loss in NEWTON_LOSSES else 1.0 / (_C * dataset.total_weight),
        classes=dataset.classes,
        n_targets=dataset.schema.n_targets or 1,
        held_out=HeldOut(learner.validation_fraction, learner.seed_),
        # other rows than those that choose the epoch
        validation=HeldOut(learner.validation_fraction, learner.seed_ + 1),
        seed=learner.seed_,
        dtype=learner.dtype,
    )


def _shares(feature_map: FeatureMap, coef: np.ndarray) -> np.ndarray:
    """The length of each frequency's coefficients, amplitude included, as a share of all."""
    parts = coef.reshape(len(coef), feature_map.columns_a_frequency, -1) * feature_map.amplitudes
    lengths = np.sqrt(np.sum(parts**2, axis=(0, 1)))
    return lengths / max(float(lengths.sum()), np.finfo(np.float64).tiny)
