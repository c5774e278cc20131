"""The last stage of a learner with `refine`: gradient descent on its frequencies and a linear model."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from sklearn.base import BaseEstimator

from dkl.data.dataset import Dataset
from dkl.data.sources.rows import RowSource
from dkl.data.together.rules import second_share
from dkl.features.feature_map import FeatureMap, shares_of_lengths
from dkl.linear.fitting import LinearProblem, fit_by_newton, target_moments
from dkl.linear.minibatches import RowTargets
from dkl.linear.refinement_driver import RefineDriver, Refinement, RefineProblem, check_refinable
from dkl.linear.refinement_sums import check_fourier
from dkl.linear.summary import TargetMoments
from dkl.methods.fit_context import FitContext
from dkl.passes.loop import Run
from dkl.protocols.estimators import FittedFeatures
from dkl.protocols.source import BlockSource
from dkl.solvers.losses import loss_of

# Most epochs of refine="auto": the least held-out loss of ten is within 2 % of that of fifteen on five of seven tables
# of 800 to 8,000 rows, and within 6 % on the others. Epochs in a row without a lower one that end it: where the descent
# gains, the first two may still be above the start. Rows of an epoch: of a million rows of a made law, the first epoch
# lowers the held-out loss from 0.682 to 0.660, and three more to 0.659.
_EPOCHS, _PATIENCE, _EPOCH_ROWS = 10, 3, 1_000_000


class Refinable(FittedFeatures, Protocol):
    """A fitted learner whose frequencies can be refined by gradient descent together with a linear model."""

    coef_: np.ndarray
    intercept_: np.ndarray
    weights_: np.ndarray
    refinement_: list[dict[str, float]]
    message_: str
    refine: int | str
    loss: str | None
    validation_fraction: float
    dtype: str
    _context: FitContext

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None: ...

    def _running(self, stage: str) -> Run: ...


def judging_share(learner: BaseEstimator, source: RowSource) -> float:
    """The share of the rows that a learner's fit holds out: two shares if it refines its features at the end."""
    share = float(getattr(learner, "validation_fraction", 0.0))
    return share + second_share(source, share) if getattr(learner, "refine", 0) else share


def refine_learner(learner: Refinable, dataset: Dataset) -> None:
    """Refine the features of a fitted learner, in its attributes.

    A linear model is fitted without the held-out rows, then frequencies and weights descend together for at most
    `refine` epochs. The best epoch on the held-out rows is kept; if none improves, that is the model before the
    descent. Sets `feature_map_`, `coef_`, `intercept_`, `weights_` and `refinement_`, the held-out loss of each epoch.

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
    problem = _problem(learner, dataset)
    # trials of one fold that refine other features share the moments of its targets
    factors = None if problem.class_weight is None else tuple(problem.class_weight)
    moments = learner._context.once(
        (dataset.source, problem.held_out, factors),
        lambda: target_moments(problem, dataset.source, run, "targets"),
    )
    refined = fit_and_refine(problem, dataset.source, run, descent(learner.refine, dataset.n_rows), moments)
    learner.feature_map_, learner.coef_, learner.intercept_ = refined.feature_map, refined.coef, refined.intercept
    n_parts = refined.feature_map.columns_a_frequency
    parts = refined.coef.reshape(len(refined.coef), n_parts, -1) * refined.feature_map.amplitudes
    learner.weights_ = shares_of_lengths(parts)
    learner.refinement_ = refined.history
    if refined.ended:
        learner.message_ += f"; {refined.ended} of their refinement after {len(refined.history) - 1} epochs"


def descent(refine: int | str, n_rows: int) -> Refinement:
    """The epochs, patience and rows of an epoch that a learner's `refine` stands for on n rows."""
    if refine != "auto":
        return Refinement(epochs=int(refine), patience=int(refine))
    epochs = int(np.clip(2 * _EPOCH_ROWS // n_rows, 2, _EPOCHS))
    return Refinement(epochs=epochs, patience=_PATIENCE, epoch_rows=_EPOCH_ROWS)


def _problem(learner: Refinable, dataset: Dataset) -> LinearProblem:
    """The linear problem of the descent, with the learner's loss, or the squared hinge if that has no gradient."""
    loss = learner.loss or ("squared_error" if dataset.classes is None else "squared_hinge")
    loss = "squared_hinge" if loss == "hinge" else loss
    held_out = learner._context.judging(learner.validation_fraction, learner.seed_)
    return LinearProblem(
        learner.feature_map_,
        loss,
        alpha="auto",
        classes=dataset.classes,
        n_targets=dataset.schema.n_targets or 1,
        class_weight=learner._class_weights(dataset),
        held_out=held_out,
        # other rows than those that choose the epoch: other groups where rows have groups, older rows where they have
        # times
        validation=replace(held_out, first=(held_out.first + second_share(dataset.source, held_out.share)) % 1.0),
        seed=learner.seed_,
        dtype=learner.dtype,
    )


class Refined(NamedTuple):
    """A refined feature map with its linear model, and the held-out loss of each epoch.

    Attributes
    ----------
    feature_map : FeatureMap
        With the refined frequencies; sparse ones keep their pattern.
    coef : ndarray of shape (K, n_features), float64
    intercept : ndarray of shape (K,), float64
    history : list of dict
        "epoch" and "held_out_loss" of each epoch; epoch 0 is the given model.
    ended : str
        Why the epochs ended early, if a subscriber stopped them; else empty.
    """

    feature_map: FeatureMap
    coef: np.ndarray
    intercept: np.ndarray
    history: list[dict[str, float]]
    ended: str = ""


def refine_features(
    feature_map: FeatureMap,
    coef: np.ndarray,
    intercept: np.ndarray,
    source: BlockSource,
    *,
    targets: RowTargets,
    options: Refinement | None = None,
    run: Run | None = None,
) -> Refined:
    """Optimise frequencies and weights by mini-batches of Adam, and keep the best epoch on held-out rows.

    Each epoch is one pass that folds the rows, followed by one over the held-out rows; the result is the same to the
    bit on any number of workers. The given model counts as epoch 0, so a descent that does not improve it changes
    nothing. It must be fitted without the held-out rows: otherwise its loss there is too low, and real improvements are
    not recognised.

    Parameters
    ----------
    feature_map : FeatureMap
        m cosine-sine pairs or phase features; phases and amplitudes do not change.
    coef : ndarray of shape (K, n_features)
        K is 1 for two classes, else one for each class or target.
    intercept : ndarray of shape (K,)
    source : BlockSource
        In random order.
    targets : RowTargets
        Classes, or the centre and scale of targets; coefficients are those for ``(y - center) / scale``.
    options : Refinement or None
    run : Run or None
        Progress, memory, device, checkpoint.

    Returns
    -------
    Refined
        With the best epoch's feature map and model.

    Raises
    ------
    ValueError
        If the features are not cosines and sines, the loss has no gradient or does not match the targets, the shapes do
        not match, or no row is held out.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.data.coerce import as_dataset
    >>> from dkl.features.families import Gaussian
    >>> from dkl.linear.minibatches import RowTargets
    >>> from dkl.methods.refining import Refinement, refine_features
    >>> X = np.random.default_rng(0).normal(size=(4000, 2))
    >>> y = np.sign(X[:, 0] * X[:, 1])
    >>> pairs = Gaussian(sigma=1.0).draw(4, 2, 0, "float32")
    >>> options = Refinement(epochs=20, rate=0.1)
    >>> refined = refine_features(
    ...     pairs, np.zeros((1, 8)), np.zeros(1), as_dataset(X, y).source,
    ...     targets=RowTargets(np.array([-1, 1])), options=options)
    >>> losses = [epoch["held_out_loss"] for epoch in refined.history]
    >>> bool(min(losses) < 0.8 * losses[0])
    True
    """
    options, run = options or Refinement(), run or Run()
    coef, intercept = np.atleast_2d(coef), np.atleast_1d(intercept)
    problem = RefineProblem(feature_map, coef, intercept, targets, np.asarray(source.block_rows), options)
    check_refinable(problem)
    state, _ = run.drive(RefineDriver(), problem, source)
    expansion = problem.model(state.result)
    # epoch 0 is the given model
    history = [{"epoch": float(epoch), "held_out_loss": loss} for epoch, loss in enumerate(state.losses)]
    refined = expansion.apply_to(feature_map)
    return Refined(refined, expansion.coef.astype(float), expansion.intercept.astype(float), history, state.ended)


def fit_and_refine(
    problem: LinearProblem,
    source: BlockSource,
    run: Run | None = None,
    options: Refinement | None = None,
    moments: TargetMoments | None = None,
) -> Refined:
    """Fit a linear model without the held-out rows, then refine it together with its frequencies.

    The model before the descent minimises the squared error, for classes with targets -1 and +1, since one Gram matrix
    then serves all classes and penalties. The penalty of the descent is that of this model times the ratio of the
    losses' largest curvatures.

    Parameters
    ----------
    problem : LinearProblem
        Its `held_out` rows choose the epoch; its loss must have a gradient. With ``alpha="auto"`` held-out rows choose
        the penalty of the squared error.
    source : BlockSource
    run : Run or None
        Its checkpoint has the states of the descent, and in a subfolder those of the model before it.
    options : Refinement or None
        Of the descent; its loss, penalty, held-out rows, seed and dtype are those of the problem.
    moments : TargetMoments or None
        Those of `target_moments`, if they are known; None takes a pass.

    Returns
    -------
    Refined
        Coefficients in units of y. Fitting the linear model again to all rows improves it slightly.

    Raises
    ------
    ValueError
        As in `refine_features`.
    """
    run = run or Run()
    start = run.at_stage("start")
    options = replace(
        options or Refinement(),
        loss=problem.loss,  # type: ignore[arg-type]
        held_out=problem.held_out,
        seed=problem.seed,
        dtype=problem.dtype,
    )
    check_fourier(problem.feature_map)
    curvature = loss_of(problem.loss).largest_curvature
    alpha = problem.alpha if isinstance(problem.alpha, str) else problem.alpha / curvature
    moments = moments or target_moments(problem, source, start, "targets")
    fit = fit_by_newton(replace(problem, loss="squared_error", alpha=alpha), source, start, moments)
    units = fit.units
    coef, intercept = np.atleast_2d(fit.model.coef_), np.atleast_1d(fit.model.intercept_)
    # weights of mean 1 and standardised targets, as in any stochastic fit
    weight_scale = moments.n_rows / moments.total_weight
    targets = RowTargets(problem.classes, problem.class_weight, weight_scale, center=units.center, scale=units.scale)
    if problem.classes is None:
        coef, intercept = units.standardised(coef, intercept)
    refined = refine_features(
        problem.feature_map,
        coef,
        intercept,
        source,
        targets=targets,
        options=replace(options, alpha=curvature * fit.alpha),
        run=run,
    )
    if problem.classes is not None:
        return refined
    coef, intercept = units.in_own_units(refined.coef, refined.intercept)
    return refined._replace(coef=coef, intercept=intercept)
