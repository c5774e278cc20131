"""KernelClassifier and KernelRegressor: learned features and a linear model on them, as one estimator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import dask
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.blocks.device import resolve_device
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.learners.aligned import AlignedFeatures
from dkl.learners.base import FeatureLearner
from dkl.learners.checkpoints import run_fingerprint, stage_checkpoint, stored_seed
from dkl.learners.machine_plan import Passes, machine_passes
from dkl.learners.parameters import CLASSIFIER, REGRESSOR, Constraints, check_constraints, class_weights
from dkl.learners.posterior import PosteriorFeatures
from dkl.learners.prediction import Scorer, blockwise, chosen_codes, probabilities, score_rows, with_row_id
from dkl.learners.random_features import RandomFeatures
from dkl.learners.rows import rows_to_fit
from dkl.learners.scoring import accuracy, r_squared
from dkl.linear.fitting import (
    NEWTON_LOSSES,
    LinearFit,
    LinearProblem,
    Run,
    calibrate,
    fit_by_epochs,
    fit_by_newton,
    fit_further,
)
from dkl.linear.pieces import HeldOut
from dkl.progress import resolve_progress

_LEARNERS: dict[str, type[FeatureLearner]] = {
    "random": RandomFeatures,
    "aligned": AlignedFeatures,
    "posterior": PosteriorFeatures,
}


class KernelMachine(BaseEstimator):
    """What the classifier and the regressor share: features, then a linear model on them."""

    _parameter_constraints: ClassVar[Constraints]
    _task: ClassVar[Any]

    features: Any
    loss: str
    alpha: float
    epochs: int | None
    solver: str
    early_stopping: bool
    validation_fraction: float
    patience: int
    device: str
    random_state: Any
    checkpoint: Any
    progress: Any
    memory_limit: Any

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the features, then fit the linear model on them.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
            Data frames are raw rows and are encoded; everything else holds encoded rows.
        y : array of shape (n,) or None
            Labels or targets; those of a Dataset are its own.
        sample_weight : array of shape (n,) or None
            Frequency weights: weight 2 is the row twice, weight 0 a row that is not there.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the rows have no meaning; before any pass.
        """
        check_constraints(self)
        self._check_solver()
        dataset = rows_to_fit(self, X, self._target(y), sample_weight, supervised=True, task=self._task)
        # the views of a store have been warned of once
        dataset = Dataset(dataset.source, dataset.schema, store=dataset.store, name=dataset.name)
        self._check_targets(dataset)
        weights = self._class_weights(dataset)
        self.encoding_ = dataset.encoding
        fingerprint = run_fingerprint(self, dataset)
        self.seed_ = stored_seed(self.random_state, self.checkpoint, fingerprint)
        self.features_ = self._new_features().fit(dataset)
        problem = self._problem(dataset.classes, dataset.schema.n_targets or 1, weights)
        run = self._run(fingerprint)
        self._keep(self._fit_linear(problem, dataset, run))
        self._finish(problem, dataset, run)
        return self

    @available_if(lambda self: self.solver == "sgd")
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on with the linear model for one epoch on further rows; the features stay. Only for ``solver="sgd"``.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`. Labels must be among `classes_`.
        classes : array of shape (K,) or None
            Those of `fit`, if given at all.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            For a label that `fit` has not seen, or another number of columns.
        """
        if not hasattr(self, "linear_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted: call fit first; partial_fit goes on with the linear model "
                "on the features that fit has learned"
            )
        known: Any = getattr(self, "classes_", None)
        if classes is not None and not np.array_equal(np.unique(classes), known):
            raise ValueError(f"classes is {list(classes)}, but fit has found the classes {known}; fit all rows again")
        dataset = self._rows(X, y, sample_weight)
        problem = replace(self._problem(known, 1, self._class_weights(dataset)), held_out=HeldOut())
        self._keep(fit_further(problem, self._fit, dataset.source, self._run("")))
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def save(self, store: Any, *, overwrite: bool = False) -> None:
        """Write the fitted model to a store; see `dkl.model_io.save`."""
        from dkl.model_io import save

        save(self, store, overwrite=overwrite)

    def planned_passes(self, dataset: Dataset) -> Passes:
        """The records of each kind of pass over `dataset` and how often it runs at most; what `dkl.plan` adds up."""
        check_constraints(self)
        self._check_solver()
        return machine_passes(self, dataset)

    @property
    def _fit(self) -> LinearFit:
        return LinearFit(self.linear_, self.target_center_, self.target_scale_, self.n_epochs_, self.validation_losses_)

    def _keep(self, fit: LinearFit) -> None:
        self.linear_ = fit.model
        self.target_center_, self.target_scale_ = fit.target_center, fit.target_scale
        self.n_epochs_, self.validation_losses_ = fit.epochs, fit.losses

    def _finish(self, problem: LinearProblem, dataset: Dataset, run: Run) -> None:
        """What is left to do after the linear model is fitted."""

    def _fit_linear(self, problem: LinearProblem, dataset: Dataset, run: Run) -> LinearFit:
        if self.solver == "newton":
            return fit_by_newton(problem, dataset.source, run)
        patience = self.patience if self.early_stopping else None
        return fit_by_epochs(problem, dataset.source, run, epochs=self.epochs, patience=patience)

    def _new_features(self) -> FeatureLearner:
        options = {name: getattr(self, name) for name in ("device", "progress", "memory_limit")}
        if isinstance(self.features, str):
            learner = _LEARNERS[self.features](**options)
        else:
            learner = clone(self.features)
        given = learner.get_params(deep=False)
        if given.get("random_state") is None:
            learner.set_params(random_state=self.seed_)
        if self.checkpoint is not None and given.get("checkpoint") is None:
            learner.set_params(checkpoint=f"{str(self.checkpoint).rstrip('/')}/features")
        return learner

    def _problem(self, classes: Any, n_targets: int, weights: np.ndarray | None) -> LinearProblem:
        holds_out = self.early_stopping or getattr(self, "calibrate", False)
        return LinearProblem(
            feature_map=self.features_.feature_map_,
            loss=self.loss,
            alpha=self.alpha,
            classes=classes,
            n_targets=n_targets,
            class_weight=weights,
            epsilon=getattr(self, "epsilon", 0.1),
            held_out=HeldOut(self.validation_fraction if holds_out else 0.0, self.seed_),
            seed=self.seed_,
            dtype=self.features_.dtype,
        )

    def _run(self, fingerprint: str) -> Run:
        return Run(
            publish=resolve_progress(self.progress),
            memory_limit=self.memory_limit,
            device=resolve_device(self.device),
            checkpoint=stage_checkpoint(self.checkpoint, "linear") if fingerprint else None,
            fingerprint=fingerprint,
        )

    def _scores(self, X: Any) -> Any:
        """(n, K) decision values, lazy for Dask collections and Datasets."""
        coef, intercept = np.atleast_2d(self.linear_.coef_), np.atleast_1d(self.linear_.intercept_)
        return score_rows(self, Scorer(self.features_.feature_map_, coef, intercept, self.features_.dtype), X)

    @property
    def feature_map_(self) -> Any:
        """The feature map of the fitted features."""
        return self.features_.feature_map_

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        return None

    def _target(self, y: Any) -> Any:
        """y in one dimension; a column gets scikit-learn's warning."""
        is_column = isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1
        return column_or_1d(y, warn=True) if is_column else y

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        """Further rows, encoded as those of `fit`."""
        if hasattr(X, "columns") and hasattr(X, "dtypes") and not dask.is_dask_collection(X):
            X = self.encoding_.transform(X) if self.encoding_ is not None else np.asarray(X)
        dataset = as_dataset(X, y, sample_weight, task=self._task, classes=getattr(self, "classes_", None))
        if dataset.n_columns != self.n_features_in_:
            raise ValueError(
                f"X has {dataset.n_columns} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return dataset

    def _check_solver(self) -> None:
        if self.solver == "newton" and self.loss not in NEWTON_LOSSES:
            loss = "squared_hinge" if self._task == "classification" else "squared_error"
            raise ValueError(
                f"solver='newton' needs a loss with a Hessian: loss={loss!r}, got loss={self.loss!r}; "
                "or use solver='sgd'"
            )
        if self.solver == "newton" and self.early_stopping:
            raise ValueError("solver='newton' goes to the optimum: early_stopping has no meaning; set it to False")

    def _check_targets(self, dataset: Dataset) -> None:
        """Raise ValueError where the targets do not suit the solver."""


class KernelClassifier(ClassifierMixin, KernelMachine):
    """A classifier on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss over the rows, one class against the rest, on rows mapped by the
    learned features; all rows are read block by block, never held at once.

    Parameters
    ----------
    features : feature learner or {"aligned", "posterior", "random"}
        A learner is cloned; a name is the learner with its defaults.
    loss : {"hinge", "squared_hinge", "log_loss", "modified_huber"}
    alpha : float
        Strength of the penalty; liblinear's C is ``1 / (alpha n)``.
    epochs : int or None
        Times that all rows are gone through (at most, with early stopping). None is 10, and up to 50 on fewer than
        20,000 rows: within 0.3 points of liblinear on MNIST and adult.
    solver : {"sgd", "newton"}
        "sgd": scikit-learn's `partial_fit` on centred features, averaged. "newton": exact, deterministic, a handful of
        passes with D x D sums, for D up to a few thousand and ``loss="squared_hinge"``.
    class_weight : dict, "balanced" or None
    early_stopping : bool
        Hold rows out and stop when their loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for early stopping and for calibration, chosen by a hash of the row id.
    patience : int
    calibrate : bool
        Find a temperature on held-out rows in one more pass, so that `predict_proba` exists for every loss.
    device : {"auto", "cpu", "gpu"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where states are kept, so that a broken-off fit resumes.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes a process may use; what cannot be kept is refused.

    Attributes
    ----------
    features_ : fitted feature learner
    linear_ : SGDClassifier or LinearSVC
        On mapped rows.
    classes_ : ndarray of shape (K,)
    n_epochs_ : int
        Epochs, or Newton steps.
    validation_losses_ : tuple of float
    temperature_ : float
        Decision values are divided by it; with `calibrate` only.
    seed_ : int
    n_features_in_ : int

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", (5) to (7).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.learners.kernel_machines import KernelClassifier
    >>> from dkl.learners.random_features import RandomFeatures
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(RandomFeatures(n_features=100, random_state=0), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = CLASSIFIER
    _task: ClassVar[Any] = "classification"

    def __init__(
        self,
        features: Any = "aligned",
        *,
        loss: str = "hinge",
        alpha: float = 1e-5,
        epochs: int | None = None,
        solver: str = "sgd",
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 3,
        calibrate: bool = False,
        device: str = "auto",
        random_state: Any = None,
        checkpoint: Any = None,
        progress: Any = None,
        memory_limit: Any = None,
    ) -> None:
        self.features = features
        self.loss = loss
        self.alpha = alpha
        self.epochs = epochs
        self.solver = solver
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress
        self.memory_limit = memory_limit

    def predict(self, X: Any) -> Any:
        """The label of each row.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series indexed by row id.
        """
        check_is_fitted(self, "linear_")
        return with_row_id(self._labels(X), X, "prediction")

    def decision_function(self, X: Any) -> Any:
        """Decision values.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)

        Returns
        -------
        ndarray of shape (n,) for two classes, else (n, K)
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame that is
            indexed by row id.
        """
        check_is_fitted(self, "linear_")
        scores = self._scores(X)
        if scores.shape[1] == 1:
            return with_row_id(blockwise(_first, scores, dtype=np.float64), X, "decision")
        return with_row_id(scores, X, self.classes_)

    @available_if(lambda self: self.calibrate or self.loss == "log_loss")
    def predict_proba(self, X: Any) -> Any:
        """Class probabilities; there is none for a loss other than "log_loss" unless `calibrate` is set.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)

        Returns
        -------
        ndarray of shape (n, K)
            Columns in the order of `classes_`; the largest is that of `predict`. Lazy as `predict` is; for a Dataset a
            DataFrame indexed by row id.
        """
        check_is_fitted(self, "linear_")
        multiplier = 1.0 / self.temperature_ if self.calibrate else None
        scores = self._scores(X)
        shares = blockwise(
            lambda part: probabilities(part, multiplier), scores, dtype=np.float64, columns=len(self.classes_)
        )
        return with_row_id(shares, X, self.classes_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy: the weighted share of rows whose label is predicted.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y, sample_weight : array of shape (n,) or None
            Those of a Dataset are its own.
        """
        check_is_fitted(self, "linear_")
        return accuracy(self._labels(X), X, y, sample_weight)

    def _labels(self, X: Any) -> Any:
        classes = self.classes_
        return blockwise(lambda part: classes[chosen_codes(part)], self._scores(X), dtype=classes.dtype)

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        return class_weights(self.class_weight, np.asarray(dataset.classes), np.asarray(dataset.class_weights))

    def _check_targets(self, dataset: Dataset) -> None:
        classes = np.asarray(dataset.classes)
        if classes.dtype.kind == "f" and (parts := classes[classes != np.floor(classes)]).size:
            raise ValueError(
                f"Unknown label type: continuous. y holds {parts[0]:g}, and labels are whole numbers, booleans or "
                "texts; fit numbers with KernelRegressor"
            )
        self.classes_ = classes

    def _finish(self, problem: LinearProblem, dataset: Dataset, run: Run) -> None:
        if self.calibrate:
            self.temperature_ = 1.0 / calibrate(problem, self.linear_, dataset.source, run)


class KernelRegressor(RegressorMixin, KernelMachine):
    """A regressor on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss of standardised targets on rows mapped by the learned features;
    predictions are in the targets' own units.

    Parameters
    ----------
    features : feature learner or {"aligned", "random"}
        A learner is cloned; a name is the learner with its defaults.
    loss : {"squared_error", "epsilon_insensitive", "huber"}
        "squared_error" is half the square.
    alpha : float
        Strength of the penalty; `Ridge`'s alpha is ``alpha n``.
    epsilon : float
        Of "epsilon_insensitive" and "huber", in deviations of y.
    epochs : int or None
        As of `KernelClassifier`.
    solver : {"sgd", "newton"}
        "newton": ridge, exact, for several targets too.
    early_stopping, validation_fraction, patience, device, random_state, checkpoint, progress, memory_limit
        As of `KernelClassifier`.

    Attributes
    ----------
    features_ : fitted feature learner
    linear_ : SGDRegressor or Ridge
        On mapped rows, in the targets' own units.
    target_center_, target_scale_ : ndarray of shape (t,)
    n_epochs_ : int
    validation_losses_ : tuple of float
    seed_ : int
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dkl.learners.kernel_machines import KernelRegressor
    >>> from dkl.learners.random_features import RandomFeatures
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), alpha=1e-3, solver="newton").fit(X, y)
    >>> bool(model.score(X, y) > 0.4)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = REGRESSOR
    _task: ClassVar[Any] = "regression"

    def __init__(
        self,
        features: Any = "aligned",
        *,
        loss: str = "squared_error",
        alpha: float = 1e-5,
        epsilon: float = 0.1,
        epochs: int | None = None,
        solver: str = "sgd",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 3,
        device: str = "auto",
        random_state: Any = None,
        checkpoint: Any = None,
        progress: Any = None,
        memory_limit: Any = None,
    ) -> None:
        self.features = features
        self.loss = loss
        self.alpha = alpha
        self.epsilon = epsilon
        self.epochs = epochs
        self.solver = solver
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress
        self.memory_limit = memory_limit

    def predict(self, X: Any) -> Any:
        """The target of each row, in its own units.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)

        Returns
        -------
        ndarray of shape (n,), or (n, t) for several targets
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        """
        check_is_fitted(self, "linear_")
        values = self._values(X)
        names = "prediction" if values.ndim == 1 else [f"prediction_{t}" for t in range(values.shape[1])]
        return with_row_id(values, X, names)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R^2, the share of the targets' variance that is predicted; its mean for several targets.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y, sample_weight : array of shape (n,) or None
            Those of a Dataset are its own.
        """
        check_is_fitted(self, "linear_")
        return r_squared(self._values(X), X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.solver == "newton"
        return tags

    def _values(self, X: Any) -> Any:
        scores = self._scores(X)
        return blockwise(_first, scores, dtype=np.float64) if self.linear_.coef_.ndim == 1 else scores

    def _check_targets(self, dataset: Dataset) -> None:
        several = dataset.schema.n_targets or 1
        if several > 1 and self.solver == "sgd":
            raise ValueError(
                f"solver='sgd' fits one target, y has {several} columns; use solver='newton', which fits all at once"
            )


def _first(scores: np.ndarray) -> np.ndarray:
    return scores[:, 0]
