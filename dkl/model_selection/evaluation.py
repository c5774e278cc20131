"""How a trial is judged: a copy of the model with its parameters is fitted to all but a fold and scored on the fold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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


class ScoredModel(Estimator, Protocol):
    """A fitted classifier or regressor of dkl or of scikit-learn."""

    def predict(self, X: Any) -> Any:
        """Classes or numbers, one a row."""
        ...

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy or R^2 of the predictions."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of one fit.

    Parameters
    ----------
    score : float
        NaN where it failed.
    seconds : float
        Of the fit; up to its end where it failed.
    error : str
        Empty where it did not fail.
    """

    score: float
    seconds: float
    error: str = ""


def judged(model: Estimator, parameters: Mapping[str, Any], fold: ValidationFold, scoring: Scoring) -> Outcome:
    """Fit and score; whatever goes wrong with these parameters is part of the outcome.

    Parameters
    ----------
    model : estimator
        Left as it is.
    parameters : mapping
    fold : Fold
    scoring : str, callable or None

    Raises
    ------
    ClusterError
        If the cluster is lost: no fault of the parameters.
    """
    # The clock stops before the score: what is compared is the time of a fit.
    started = time.perf_counter()
    try:
        with without_hints():
            fitted = fitted_to(with_parameters(model, parameters), fold.train)
        seconds = time.perf_counter() - started
        score = float(score_of(fitted, fold.test, scoring))
        if not np.isfinite(score):
            raise ValueError(f"the score is {score}")
    # A cluster that is lost says nothing about these parameters: the search has to end, and its checkpoint goes on from
    # here.
    except ClusterError:
        raise
    except Exception as error:
        # Anything else is a fact about the trial. One set of parameters out of many may well have no solution, and the
        # search must not end for it.
        return Outcome(float("nan"), time.perf_counter() - started, f"{type(error).__name__}: {error}")
    return Outcome(score, seconds)


def with_parameters(model: Estimator, parameters: Mapping[str, Any]) -> Any:
    """A copy of the model with these parameters; estimators among the values are copied too."""
    # Trials run at the same time: an estimator that is a value of the space would otherwise be fitted by several of
    # them.
    values = {name: clone(value) if isinstance(value, BaseEstimator) else value for name, value in parameters.items()}
    return clone(model).set_params(**values)


def reads_blocks(model: object) -> bool:
    """Whether a model takes a Dataset and reads it block by block, as all models of dkl do."""
    return isinstance(model, SavingMixin)


def fitted_to(model: Estimator, dataset: Dataset) -> Any:
    """The model, fitted: those of dkl block by block, any other of scikit-learn on arrays in memory."""
    if reads_blocks(model):
        return model.fit(dataset)
    X, y, weight = in_memory(dataset)
    # Weights are handed over only where there are any: not every estimator of scikit-learn takes them.
    fit: Callable[..., Any] = model.fit
    return fit(X, y) if weight is None else fit(X, y, sample_weight=weight)


def score_of(model: ScoredModel, dataset: Dataset, scoring: Scoring) -> float:
    """The score of a fitted model, the larger the better.

    Parameters
    ----------
    model : fitted estimator
    dataset : Dataset
    scoring : str, callable or None
        None is the model's own `score`; a name is one of scikit-learn's scorers, given all predictions of these rows;
        a function is called with the model and the Dataset.
    """
    if callable(scoring):
        return scoring(model, dataset)
    blockwise = reads_blocks(model)
    if scoring is None and blockwise:
        return model.score(dataset)
    # Predictions are as long as the targets, so they fit in memory where the rows do not: models of dkl still get the
    # Dataset.
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
    """A fitted model whose lazy predictions come as arrays, as scikit-learn's scorers need them.

    Parameters
    ----------
    model : fitted estimator
    """

    def __init__(self, model: ScoredModel) -> None:
        # The two methods below exist only where the model has them, which a protocol cannot say.
        self.model: Any = model

    def predict(self, X: object) -> np.ndarray:
        """Labels or numbers."""
        return np.asarray(self.model.predict(X))

    @available_if(lambda self: hasattr(self.model, "decision_function"))
    def decision_function(self, X: object) -> np.ndarray:
        """Decision values."""
        return np.asarray(self.model.decision_function(X))

    @available_if(lambda self: hasattr(self.model, "predict_proba"))
    def predict_proba(self, X: object) -> np.ndarray:
        """Class probabilities."""
        return np.asarray(self.model.predict_proba(X))

    @property
    def classes_(self) -> np.ndarray:
        """The sorted labels."""
        return self.model.classes_

    def __sklearn_tags__(self) -> Any:
        return self.model.__sklearn_tags__()
