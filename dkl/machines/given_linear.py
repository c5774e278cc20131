"""Fits the user's own linear model, an estimator with `partial_fit`, on mapped blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone, is_classifier

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.linear.array_sgd import default_estimator, fitted_estimator
from dkl.linear.epochs import EpochDriver, EpochProblem, EstimatorState, estimator_step
from dkl.linear.fitting import LinearFit, LinearProblem
from dkl.linear.minibatches import RowTargets
from dkl.linear.sgd import step_schedule
from dkl.linear.target_statistics import TargetScale, target_scale
from dkl.machines.settings import SGD_ALPHA
from dkl.passes.loop import PlannedRun, Run
from dkl.protocols.records import Cost
from dkl.protocols.source import BlockSource
from dkl.registry import STORED, losses_for


def is_of_dask_ml(estimator: object) -> bool:
    """Whether an estimator is dask-ml's `Incremental`; found without importing dask-ml, which takes seconds."""
    return any(
        base.__module__.startswith("dask_ml.") and base.__name__ == "Incremental" for base in type(estimator).__mro__
    )


def wrapped(estimator: Any) -> Any:
    """The estimator within dask-ml's `Incremental`; any other estimator itself."""
    return estimator.estimator if is_of_dask_ml(estimator) else estimator


def loss_of_given(estimator: Any, task: str) -> str:
    """The loss of the user's estimator; where dkl does not have it, the one with the most similar predictions."""
    model = wrapped(estimator)
    loss = getattr(model, "loss", None)
    if task == "regression":
        return loss if loss in losses_for("regression", "sgd") else "squared_error"
    if hasattr(model, "predict_proba") and not hasattr(model, "decision_function"):
        return "softmax"  # the scores of such an estimator are the logarithms of its probabilities
    return loss if loss in losses_for("classification", "sgd") else "hinge"


def check_given(name: str, estimator: Any, task: str) -> None:
    """Raise an error for an estimator without `partial_fit`, or one for the other task.

    Parameters
    ----------
    name : str
        The machine's class, for the message.
    """
    inner = wrapped(estimator)
    if isinstance(estimator, type) or not hasattr(inner, "partial_fit"):
        raise TypeError(
            f"The 'linear' parameter of {name} must be an estimator with partial_fit, such as SGDClassifier(), or "
            f"dask_ml.wrappers.Incremental of one. Got {estimator!r} instead"
        )
    if is_classifier(inner) != (task == "classification"):
        kind = "a classifier" if task == "classification" else "a regressor"
        raise ValueError(f"The 'linear' parameter of {name} must be {kind}. Got {estimator!r} instead")


def given_epochs(
    problem: LinearProblem, estimator: Any, n_blocks: int, *, epochs: int | None, scale: TargetScale, has_weight: bool
) -> EpochProblem:
    """The epochs of the user's estimator: blocks in stored order for `Incremental`, shuffled for any other."""
    from dkl.linear.incremental import partial_fit_parameters

    accepted, takes_all = partial_fit_parameters(wrapped(estimator))
    options = (
        {"classes": problem.classes} if problem.classes is not None and (takes_all or "classes" in accepted) else {}
    )
    if (has_weight or problem.class_weight is not None) and not (takes_all or "sample_weight" in accepted):
        raise ValueError(
            f"these rows have weights, and {type(wrapped(estimator)).__name__}.partial_fit takes no sample_weight; "
            "leave the weights out"
        )
    one = len(scale.center) == 1
    targets = RowTargets(
        problem.classes,
        problem.class_weight,
        center=float(scale.center[0]) if one else scale.center,
        scale=float(scale.scale[0]) if one else scale.scale,
    )
    in_order = is_of_dask_ml(estimator)
    return EpochProblem(
        step=estimator_step,
        step_operands={"fit_options": options},
        first=EstimatorState(clone(estimator)),
        feature_map=problem.feature_map,
        targets=targets,
        n_blocks=n_blocks,
        epochs=epochs or 1,
        seed=problem.seed,
        shuffle_blocks=not in_order,
        shuffle_rows=not in_order,
        held_out=problem.held_out,
        dtype=problem.dtype,
    )


def fit_given(
    problem: LinearProblem, source: BlockSource, run: Run, estimator: Any, *, epochs: int | None
) -> LinearFit:
    """Fit a clone of the user's estimator on mapped blocks by its own `partial_fit`.

    Parameters
    ----------
    problem : LinearProblem
    source : BlockSource
    run : Run
        No checkpoint is written between blocks, since an estimator can only be stored by pickling it.
    estimator : estimator
    epochs : int or None
        How often the fit goes through all rows; None is once.
    """
    scale = TargetScale(np.zeros(1), np.ones(1))
    if problem.classes is None:
        scale = target_scale(source, problem.n_targets, run)
    task = given_epochs(problem, estimator, source.n_blocks, epochs=epochs, scale=scale, has_weight=source.has_weight)
    state, _ = replace(run, checkpoint=None).drive(EpochDriver(), task, source)
    if isinstance(run, PlannedRun):
        # only the steps that are not taken would give the user's estimator coefficients
        coef, intercept = np.zeros((problem.n_models, problem.feature_map.n_features)), np.zeros(problem.n_models)
        return LinearFit(SimpleNamespace(coef_=coef, intercept_=intercept), scale, epochs=0)
    fitted = state.model["estimator"]
    model = fitted.estimator_ if is_of_dask_ml(fitted) else fitted
    message = f"{state.epoch} times through the rows by partial_fit of {type(estimator).__name__}"
    if hasattr(model, "coef_") and hasattr(model, "intercept_"):
        model = _storable(model, problem, scale)
    return LinearFit(model, scale, state.epoch, (), message, problem.alpha)


def _storable(model: Any, problem: LinearProblem, scale: TargetScale) -> Any:
    """The linear model in units of the targets, as an instance of a class that model files can store."""
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64))
    if problem.classes is None:
        coef, intercept = scale.in_own_units(coef, intercept)
    if type(model).__name__ in STORED and problem.classes is not None:
        return model
    # files cannot store other classes: their coefficients move to an estimator that predicts the same from them
    loss = loss_of_given(model, "regression" if problem.classes is None else "classification")
    return with_sgd_coefficients(loss, coef, intercept, problem.classes)


def with_sgd_coefficients(loss: str, coef: np.ndarray, intercept: np.ndarray, classes: np.ndarray | None) -> Any:
    """An estimator of stochastic steps with these coefficients; its step lengths matter only if its fit is continued.

    Parameters
    ----------
    loss : str
        How scores become probabilities follows from it.
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    classes : ndarray or None
        None for numbers.
    """
    schedule = step_schedule(loss, alpha=SGD_ALPHA, square_length=1.0, largest=2.0)
    estimator = default_estimator(loss, schedule, alpha=SGD_ALPHA, n_models=len(coef))
    return fitted_estimator(estimator, coef, intercept, classes=classes)


@dataclass(frozen=True, eq=False)
class EstimatorScorer:
    """Maps encoded rows to decision values by an estimator without coefficients; used in the place of `Scorer`.

    Parameters
    ----------
    feature_map : FeatureMap
    estimator : fitted estimator
    dtype : {"float32", "float64"}
    center, scale : ndarray of shape (t,)
        Center and scale of a regressor's targets: its predictions are multiplied by the scale, and the center is added.
    n_outputs : int
        Columns of the decision values; 1 for two classes.
    """

    feature_map: FeatureMap
    estimator: Any
    dtype: str
    center: np.ndarray
    scale: np.ndarray
    n_outputs: int

    def __call__(self, rows: np.ndarray | sparse.csr_array) -> np.ndarray:
        """Decision values of encoded rows: (n, n_outputs) float64."""
        return self.score(rows)

    def cost(self, rows: int, columns: int) -> Cost:
        """The cost of scoring a block, for a pass: all of its rows are mapped at once."""
        mapped = rows * self.feature_map.n_features * np.dtype(self.dtype).itemsize
        return Cost(rows * mapping_flops(columns, self.feature_map), mapped)

    def score(self, rows: np.ndarray | sparse.csr_array) -> np.ndarray:
        """Decision values from `decision_function`; without one log probabilities, else the predicted label."""
        phi, model = map_rows(rows, self.feature_map, self.dtype), self.estimator
        if not is_classifier(model):
            return np.asarray(model.predict(phi), np.float64).reshape(len(phi), -1) * self.scale + self.center
        if hasattr(model, "decision_function"):
            scores = np.asarray(model.decision_function(phi), np.float64).reshape(len(phi), -1)
        elif hasattr(model, "predict_proba"):
            scores = np.log(np.maximum(model.predict_proba(phi), np.finfo(np.float64).tiny))
        else:
            scores = (np.asarray(model.predict(phi))[:, None] == model.classes_) * 1.0
        return scores[:, 1:] - scores[:, :1] if self.n_outputs == 1 and scores.shape[1] == 2 else scores

    @property
    def coef(self) -> Any:
        """Raises TypeError, since this estimator has no coefficients."""
        raise TypeError(
            f"{type(self.estimator).__name__} has no coefficients: what reads a model by its coefficients "
            "(explanations, predictors, graphs, files) needs a linear one, such as SGDClassifier"
        )
