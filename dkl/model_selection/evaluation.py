"""Evaluates a trial: fits a copy of the model with its parameters to all folds but one, and scores it on that fold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import get_scorer
from sklearn.utils.metaestimators import available_if

from dkl.data.dataset import Dataset
from dkl.errors import ClusterError, without_hints
from dkl.methods.saving import SavingMixin
from dkl.model_selection.folds import ValidationFold
from dkl.protocols.estimators import Estimator

Scoring = str | Callable[[Any, Dataset], float] | None


@dataclass(frozen=True)
class Outcome:
    """The result of one fit.

    Parameters
    ----------
    score : float
        NaN if it failed.
    seconds : float
        Duration of the fit, or until it failed.
    error : str
        The type and message of an error; empty if there was none.
    """

    score: float
    seconds: float
    error: str = ""


def judged(model: Estimator, parameters: Mapping[str, Any], fold: ValidationFold, scoring: Scoring) -> Outcome:
    """Fit and score the model with these parameters; an error of the fit is recorded in the outcome, not raised.

    Parameters
    ----------
    model : estimator
        Not changed; a copy is fitted.
    parameters : mapping
    fold : Fold
    scoring : str, callable or None

    Raises
    ------
    ClusterError
        If the cluster is lost, which is not due to the parameters.
    """
    # the time of the fit alone, without scoring
    started = time.perf_counter()
    try:
        with without_hints():
            fitted = fitted_to(with_parameters(model, parameters), fold.train)
        seconds = time.perf_counter() - started
        score = float(score_of(fitted, fold.test, scoring))
        if not np.isfinite(score):
            raise ValueError(f"the score is {score}")
    # A lost cluster is not due to the parameters: the search ends, and can continue from its checkpoint.
    except ClusterError:
        raise
    except Exception as error:
        # Any other error is the result of this trial: some parameters may have no solution, and the search goes on.
        return Outcome(float("nan"), time.perf_counter() - started, f"{type(error).__name__}: {error}")
    return Outcome(score, seconds)


def with_parameters(model: Estimator, parameters: Mapping[str, Any]) -> Any:
    """A copy of the model with these parameters; estimators among the values are copied too."""
    # Trials may run at the same time, and must not share an estimator that is a value of the space.
    values = {name: clone(value) if isinstance(value, BaseEstimator) else value for name, value in parameters.items()}
    return clone(model).set_params(**values)


def reads_blocks(model: object) -> bool:
    """Whether a model is one of dkl, which takes a Dataset and reads it block by block."""
    return isinstance(model, SavingMixin)


def fitted_to(model: Estimator, dataset: Dataset) -> Any:
    """The fitted model: models of dkl are fitted block by block, others to arrays in memory."""
    if reads_blocks(model):
        return model.fit(dataset)
    X, y, weight = in_memory(dataset)
    # Weights are passed only if there are any, since not every estimator takes them.
    fit: Callable[..., Any] = model.fit
    return fit(X, y) if weight is None else fit(X, y, sample_weight=weight)


def score_of(model: Any, dataset: Dataset, scoring: Scoring) -> float:
    """The score of a fitted model; larger is better.

    Parameters
    ----------
    model : fitted estimator
    dataset : Dataset
    scoring : str, callable or None
        None is the model's own `score`; a name is one of scikit-learn's scorers, applied to all predictions for these
        rows; a function is called with the model and the Dataset.
    """
    if callable(scoring):
        return scoring(model, dataset)
    blockwise = reads_blocks(model)
    if scoring is None and blockwise:
        return model.score(dataset)
    # Targets and predictions fit in memory even if the rows do not: models of dkl get the Dataset.
    X, y, weight = (dataset, *targets_in_memory(dataset)) if blockwise else in_memory(dataset)
    weights = {} if weight is None else {"sample_weight": weight}
    if scoring is None:
        return model.score(X, y, **weights)
    return get_scorer(scoring)(Gathered(model) if blockwise else model, X, y, **weights)


def in_memory(dataset: Dataset) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """X, y and the weights as arrays."""
    return (dataset.X.compute(), *targets_in_memory(dataset))


def targets_in_memory(dataset: Dataset) -> tuple[np.ndarray | None, np.ndarray | None]:
    """y and the weights as arrays, or None."""
    y, weight = dataset.y, dataset.sample_weight
    return None if y is None else np.asarray(y), None if weight is None else np.asarray(weight)


class Gathered(BaseEstimator):
    """A fitted model that returns its lazy predictions as arrays, as scikit-learn's scorers need them.

    Parameters
    ----------
    model : fitted estimator
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: object) -> np.ndarray:
        """The predictions as an array."""
        return np.asarray(self.model.predict(X))

    @available_if(lambda self: hasattr(self.model, "decision_function"))
    def decision_function(self, X: object) -> np.ndarray:
        """The decision values as an array."""
        return np.asarray(self.model.decision_function(X))

    @available_if(lambda self: hasattr(self.model, "predict_proba"))
    def predict_proba(self, X: object) -> np.ndarray:
        """The class probabilities as an array."""
        return np.asarray(self.model.predict_proba(X))

    @property
    def classes_(self) -> np.ndarray:
        """The sorted labels."""
        return self.model.classes_

    def __sklearn_tags__(self) -> Any:
        return self.model.__sklearn_tags__()
