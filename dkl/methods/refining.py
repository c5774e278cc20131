"""The last stage of a learner with `refine`: its frequencies descend together with the weights of a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from sklearn.base import BaseEstimator

from dkl.data.dataset import Dataset
from dkl.data.sources.rows import RowSource
from dkl.data.together.rules import second_share
from dkl.features.feature_map import FeatureMap
from dkl.linear.fitting import LinearProblem
from dkl.linear.minibatches import RowTargets
from dkl.linear.newton import SQUARES, newton_passes
from dkl.linear.refinement import fit_and_refine
from dkl.linear.refinement_driver import RefineDriver, Refinement, RefineProblem
from dkl.methods.fit_context import FitContext
from dkl.passes.loop import Run
from dkl.protocols.estimators import FittedFeatures

# The C of the log loss, on features of length 1; of the other losses Newton steps choose it.
_C = 1.0


class Refinable(FittedFeatures, Protocol):
    """A fitted learner whose frequencies can be refined by gradient descent together with a linear model."""

    coef_: np.ndarray
    intercept_: np.ndarray
    weights_: np.ndarray
    refinement_: list[dict[str, float]]
    message_: str
    refine: int
    loss: str | None
    validation_fraction: float
    dtype: str
    _context: FitContext

    def _running(self, stage: str) -> Run: ...


def judging_share(learner: BaseEstimator, source: RowSource) -> float:
    """The share of the rows that a learner's fit holds out: two shares if it refines its features at the end."""
    share = float(getattr(learner, "validation_fraction", 0.0))
    return share + second_share(source, share) if getattr(learner, "refine", 0) else share


def refine_learner(learner: Refinable, dataset: Dataset) -> None:
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
    # The weight of a frequency is the length of its coefficients, amplitude included, as a share of all.
    n_parts = refined.feature_map.columns_a_frequency
    parts = refined.coef.reshape(len(refined.coef), n_parts, -1) * refined.feature_map.amplitudes
    lengths = np.sqrt(np.sum(parts**2, axis=(0, 1)))
    learner.weights_ = lengths / max(float(lengths.sum()), np.finfo(np.float64).tiny)
    learner.refinement_ = refined.history
    if refined.ended:
        learner.message_ += f"; {refined.ended} of their refinement after {len(refined.history) - 1} epochs"


def refining_passes(learner: Refinable, dataset: Dataset, feature_map: FeatureMap) -> list[tuple[Sequence[Any], int]]:
    """The records of each pass and how often it runs at most, for a map of the expected size."""
    problem = _problem(learner, dataset, feature_map)
    fit = newton_passes(problem, dataset.n_rows) if problem.loss in SQUARES else []
    # A plan needs shapes alone.
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


def _problem(learner: Refinable, dataset: Dataset, feature_map: FeatureMap) -> LinearProblem:
    """The linear problem of the descent, with the learner's loss, or the squared hinge if that has no gradient."""
    loss = learner.loss or ("squared_error" if dataset.classes is None else "squared_hinge")
    loss = "squared_hinge" if loss == "hinge" else loss
    held_out = learner._context.held_out(learner.validation_fraction, learner.seed_)
    return LinearProblem(
        feature_map,
        loss,
        alpha="auto" if loss in SQUARES else 1.0 / (_C * dataset.total_weight),
        classes=dataset.classes,
        n_targets=dataset.schema.n_targets or 1,
        held_out=held_out,
        # other rows than those that choose the epoch: other groups where rows have some, and older ones by time
        validation=replace(held_out, first=second_share(dataset.source, held_out.share)),
        seed=learner.seed_,
        dtype=learner.dtype,
    )
