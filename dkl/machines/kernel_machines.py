"""KernelClassifier and KernelRegressor: learned features and a linear model on them, as one estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.exposure import exposure_beside_fit, exposure_values, multiplied
from dkl.linear.answers import probabilities
from dkl.linear.fitting import LinearFit, LinearProblem, calibrate
from dkl.machines.machine import KernelMachine
from dkl.methods.offered import offered_unless
from dkl.methods.parameters import (
    CLASSIFIER,
    REGRESSOR,
    ClassWeight,
    Constraints,
    check_quantiles,
    class_weights,
    estimator,
)
from dkl.methods.predicting import ClassPredictions, blockwise, output_names, with_row_id
from dkl.methods.scoring import check_log_rows, explained, mean_loss, quantile_score, r_squared
from dkl.methods.validation import check_labels
from dkl.passes.loop import Run
from dkl.solvers.losses import LOG_LINK, loss_of
from dkl.uncertainty.conformal import ConformalIntervals, ConformalSets, no_probabilities
from dkl.uncertainty.deviations import DeviatingPredictions


@estimator
class KernelClassifier(ConformalSets, ClassPredictions, KernelMachine):
    """A classifier on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss over the rows, one class against the rest, on rows mapped by the
    learned features; all rows are read block by block, never held at once.

    Parameters
    ----------
    features : "auto", feature learner, name of one, list of these, or None
        "auto" tries kinds of features on a sample of the rows - the columns themselves, random and searched waves,
        steps of columns, a kernel at landmarks - then larger ones and two together, and takes what does best on
        held-out rows; `reasons_` says what was tried. A learner is cloned; a name ("margin", "steps", "nystrom",
        "aligned", ...) is the learner with its defaults; a list is `CombinedFeatures` of its parts, side by side. None
        asks for searched waves of the kernel that suits the rows. A learner with ``warm_start=True`` goes on from the
        features of the machine's last fit, on the same held-out rows.
    class_weight : dict, "balanced" or None
    calibrate : bool or None
        Find a temperature on held-out rows in one more pass, so that `predict_proba` exists for every loss. None is
        True where the machine chooses its features; else the rows that judge the penalty (``alpha="auto"``, all rows
        are fitted) or the epochs (``early_stopping=True``, or stochastic steps of more than a million rows, which stop
        early by themselves) find the temperature in the same passes. Of rows that are held out by time, where the
        machine chooses, the newest ones also say what to add to each intercept, if classes have become clearly rarer or
        more frequent: decision values and labels follow the probabilities.
    linear : estimator or None
        The linear model on the mapped rows; None is the machine's own, which every other parameter below speaks of.
        ``dask_ml.wrappers.Incremental(SGDClassifier(...))`` is fitted by its own `partial_fit`, a block at a time, in
        the order in which blocks are stored; any other estimator with `partial_fit` on blocks and rows in an order that
        is drawn (`dkl.BlockIncremental`), `epochs` times. It brings its own loss, penalty and steps.
    n_features : int or "auto"
        Columns of the features at most; "auto" grows them while held-out rows gain, or leaves them to given features.
    scaling : {"auto", "standard", "quantile", "minmax", "unit", "counts"} or None
        Of the columns; "auto" is what held-out rows prefer where the machine chooses its features, "standard" (but for
        sparse rows) for features by name, in the shell too, and that of given features. Steps need none.
    sigma : float, "median" or "auto"
        The bandwidth; where it is given, only features that have one are tried.
    effort : {"fast", "balanced", "best"}
        How much work the choice of features may take. It is counted from rows and columns, never by a clock: about 1,
        5 and at most some hundred seconds on one core for usual tables. The same rows give the same bits anywhere.
    time_limit : float or None
        Seconds, from 10 on: no further trial begins that would not end in time. It alone reads the clock, between
        trials; `reasons_` then says which `trials` gives the same model without it.
    trials : sequence of int or None
        The numbers of the contenders to try, one a trial: what `reasons_` gives after a fit with `time_limit`.
    loss : {"hinge", "squared_hinge", "log_loss", "softmax", "modified_huber", "squared_error"} or None
        None is "squared_hinge" for exact steps, "hinge" for stochastic ones; where the machine chooses its features,
        "squared_error" (exact steps only), a regression on -1 and +1 whose one Hessian serves all classes and
        penalties, or "log_loss" where held-out probabilities are better then. "softmax" is the log loss of all classes
        together, of which stochastic steps of "log_loss" take one against the rest; Newton steps of both are the same.
    alpha : float, "auto" or None
        Strength of the penalty; liblinear's C is ``1 / (alpha n)``. "auto" (Newton only): the best on held-out rows of
        C = 0.1, 1 and 10 for features of mean squared length 1, then all rows are fitted with it. None is "auto" where
        the machine chooses its features and takes exact steps, else 1e-5.
    epochs : int or None
        Times that all rows are gone through (at most, with early stopping). None is 10, and up to 50 on fewer than
        20,000 rows: within 0.3 points of liblinear on MNIST and adult. Of more than a million rows None is at most 5,
        and ends after the first that lowers the loss of 50,000 held-out rows no further.
    solver : {"sgd", "newton"} or None
        "sgd": scikit-learn's `partial_fit` on centred features, averaged. "newton": exact, deterministic, a handful of
        passes with D x D sums, for D up to a few thousand, ``loss="squared_hinge"``, "squared_error" and "log_loss"
        (of K classes together, as `LogisticRegression`, which takes more passes). None is "newton" where the
        machine chooses its features or alpha="auto" (of losses other than the squared error: for at most some 2.5
        million rows), else "sgd".
    early_stopping : bool
        Hold rows out and stop when their loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for early stopping, for calibration and for ``alpha="auto"``, chosen by a hash of the
        row id. Where that is fewer than 1,000 rows, up to five such shares judge alpha, each fitted without.
    patience : int
    conformal_fraction : float or None
        Share of the rows, by another hash, that the whole fit does not see: by their scores `predict_set` promises its
        coverage. None holds out none; `conformalize` takes rows that you have held out yourself.
    by_group : str or None
    by_time : str, False or None
        The column of a data frame, or of a Dataset, by which rows are held out in place of the hash: whole groups, or
        the newest rows, which alone judge alpha then. A group is no feature, a time stays one. Values in an array go to
        `fit`, as groups or times. None takes the newest rows where ``features="auto"`` finds one column of dates,
        without gaps and of many different ones: later rows are to be predicted, most likely. False never does.
    categorical : list of str or None
        Columns of a data frame whose values are names, whatever they look like: postcodes, ids. Those with more than 32
        values become out-of-fold means of the target (a class each, less one) and the logarithm of their count.
        None, where the machine chooses its features, also suspects whole numbers of many values, and tries mean targets
        of their values, and of crosses of few values, on held-out rows: `reasons_` names them. An empty list does not.
    drop_missing_target : bool
        Leave rows out whose target is missing, with a warning that counts them; they are an error otherwise.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where states are kept, so that a broken-off fit resumes.
    progress : bool, callable or None
        None shows one line on how far the fit is, in a terminal or notebook; False nothing. A function is handed every
        `dkl.events.Event`. During the choice of features Ctrl-C (a notebook's stop) ends the trials, and the best
        so far is fitted; pressed again it stops the fit.
    memory_limit : int, str or None
        Bytes a process may use; what cannot be kept is refused.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        What was chosen, and how it does on held-out rows, in one sentence; where the machine chose its features.
    reasons_ : tuple of str
        Why these features, in sentences; where the machine chose them.
    loss_, solver_ : str
        What the fit worked with.
    linear_ : SGDClassifier, LinearSVC or LogisticRegression
        On mapped rows; of "softmax" by stochastic steps an `ArraySGDClassifier`.
    classes_ : ndarray of shape (K,)
    n_epochs_ : int
        Epochs, or Newton steps.
    validation_losses_ : tuple of float
    message_ : str
        How the linear model's steps ended.
    alpha_ : float
        As given, or as chosen.
    alphas_, validation_scores_ : ndarray of shape (A,)
        The penalties that were tried, and one minus their mean squared hinge on held-out rows; ``alpha="auto"`` only.
    temperature_ : float
        Decision values are divided by it; where held-out rows have found one, see `calibrate`.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: what `predict_set` promises its coverage by.
    seed_, provenance_, n_features_in_
        As of `RandomFeatures`.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", (5) to (7).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.machines.kernel_machines import KernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = CLASSIFIER
    _task: ClassVar[Any] = "classification"

    _: KW_ONLY
    class_weight: ClassWeight = None
    calibrate: bool | None = None

    @offered_unless(no_probabilities)
    def predict_proba(self, X: object, *, strict: bool = False) -> Any:
        """Class probabilities, of "log_loss" and "softmax", or where held-out rows have found a temperature.

        They do where the machine chooses its features, where ``alpha="auto"`` or ``early_stopping=True`` holds rows out
        anyway, and with ``calibrate=True``. Where nothing is held out there are none.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of answering them with a warning.

        Returns
        -------
        ndarray of shape (n, K)
            Columns in the order of `classes_`; the largest is that of `predict`. Lazy as `predict` is; for a Dataset a
            DataFrame indexed by row id.
        """
        check_is_fitted(self, "linear_")
        # Rows are scored lazily where they are lazy; probabilities follow block by block.
        scores = self._scores(X, strict)
        shares = blockwise(
            partial(probabilities, multiplier=self._multiplier), scores, dtype=np.float64, columns=len(self.classes_)
        )
        return with_row_id(shares, X, self.classes_)

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        return class_weights(self.class_weight, np.asarray(dataset.classes), np.asarray(dataset.class_weights))

    def _check_targets(self, dataset: Dataset) -> None:
        classes = np.asarray(dataset.classes)
        check_labels(classes, "KernelRegressor")
        # The classes are known before any pass, and class weights are checked against them.
        self.classes_ = classes

    def _keep(self, fit: LinearFit) -> None:
        super()._keep(fit)
        multiplier = fit.multiplier if fit.choice is None else fit.choice.multiplier
        if multiplier is not None:
            self.temperature_ = 1.0 / multiplier

    def _finish(self, problem: LinearProblem, dataset: Dataset, run: Run) -> None:
        temperature, shift = self._calibration
        if self._settings.calibrate and temperature is not None:
            self.temperature_ = temperature
            if shift is not None:
                # what is predicted follows the probabilities
                self.linear_.intercept_ = self.linear_.intercept_ + shift
        elif self._settings.calibrate:
            self.temperature_ = 1.0 / calibrate(problem, self.linear_, dataset.source, run)


@estimator
class KernelRegressor(ConformalIntervals, DeviatingPredictions, KernelMachine):
    """A regressor on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss of standardised targets on rows mapped by the learned features;
    predictions are in the targets' own units.

    Parameters
    ----------
    features : "auto", feature learner, name of one, list of these, or None
        As of `KernelClassifier`.
    epsilon : float
        Of "epsilon_insensitive" and "huber", in deviations of y.
    quantiles : sequence of float
        Of "pinball": predicted side by side, in order, a column each (of one alone a vector); of several targets those
        of the first, then those of the second.
    linear, n_features, scaling, sigma, effort, time_limit, trials
        As of `KernelClassifier`.
    loss : {"squared_error", "epsilon_insensitive", "huber", "pinball", "poisson", "gamma"} or None
        None is "squared_error", half the square. "huber" is it up to an error of `epsilon` and goes on straight;
        "pinball" is of `quantiles`. "poisson" (counts, rates) and "gamma" (sizes above 0) predict a mean exp(f); their
        targets are not standardised, and `fit` and `predict` take an `exposure`.
    alpha : float, "auto", "evidence" or None
        Strength of the penalty; `Ridge`'s alpha is ``alpha n``. "auto" (Newton only): the best on held-out rows of 10
        to 1e-4 for features of mean squared length 1, then all rows are fitted with it. "evidence" (Newton only): the
        one that makes the targets most likely, as `BayesianRidge` does, from the sums of all rows; it trusts features
        that saw no target. None as of `KernelClassifier`.
    epochs : int or None
        As of `KernelClassifier`.
    solver : {"sgd", "newton"} or None
        "newton": ridge, exact, for every loss but "epsilon_insensitive". "sgd": stochastic steps of every loss, for
        so many features that Newton steps have no room for the products of all pairs, and for `partial_fit`. None as
        of `KernelClassifier`; "pinball", "poisson" and "gamma" are by Newton steps unless `epochs` or `early_stopping`
        are given.
    early_stopping, validation_fraction, patience
        As of `KernelClassifier`.
    conformal_fraction : float or None
        As of `KernelClassifier`; what `predict_interval` promises its coverage by.
    by_group, by_time, categorical, drop_missing_target
        As of `KernelClassifier`.
    device, random_state, checkpoint, progress, memory_limit
        As of `KernelClassifier`.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        What was chosen, and how it does on held-out rows, in one sentence; where the machine chose its features.
    reasons_ : tuple of str
        Why these features, in sentences; where the machine chose them.
    loss_, solver_ : str
        What the fit worked with.
    linear_ : SGDRegressor or Ridge
        On mapped rows, in the targets' own units; for "poisson" and "gamma" coefficients are of the logarithm of the
        mean. By stochastic steps of these two, of "pinball" and of several targets it is an `ArraySGDRegressor`.
    target_center_, target_scale_ : ndarray of shape (t,)
        What the fit took off targets and divided them by; of "poisson" and "gamma" 0 and 1, by stochastic steps 0 and
        the mean.
    n_epochs_ : int
    validation_losses_ : tuple of float
    message_ : str
    alpha_ : float
    alphas_, validation_scores_ : ndarray of shape (A,)
        As of `KernelClassifier`; the score is one minus the mean loss, of standardised targets where they are: for
        "squared_error" the mean of whole squares.
    posterior_ : CoefficientPosterior
        Of exact fits of the squared error: what ``predict(X, return_std=True)`` needs of the Gram matrix.
    noise_ : float or ndarray of shape (t,)
        The standard deviation of the noise that such a fit finds, in the units of y.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: what `predict_interval` promises its coverage by.
    exposure_ : str
        Of a fit with `exposure`: the column that held it, empty where values were given.
    seed_ : int
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), alpha=1e-3, solver="newton").fit(X, y)
    >>> bool(model.score(X, y) > 0.4)
    True
    >>> middle = KernelRegressor(RandomFeatures(n_features=100, random_state=0), loss="pinball", alpha=1e-3).fit(X, y)
    >>> low, median, high = middle.predict(X[:1])[0]
    >>> bool(low < median < high)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = REGRESSOR
    _task: ClassVar[Any] = "regression"

    _: KW_ONLY
    epsilon: float = 0.1
    quantiles: Sequence[float] = (0.1, 0.5, 0.9)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # scikit-learn's checks fit several targets where this is set
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: object, return_std: bool = False, *, exposure: object = None, strict: bool = False) -> Any:
        """The target of each row, in its own units, and how far a new one may be off.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        return_std : bool
            The standard deviation of a new target too, its noise included: ``noise_ * sqrt(1 + h)``, where h of a row
            is ``phi^T (G + lam I)^-1 phi`` of its centred features. It trusts the features and Gaussian noise that is
            the same everywhere; `predict_interval` does not. Of exact fits of the squared error alone.
        exposure : str, array of shape (n,), or None
            Of ``loss="poisson"`` and "gamma": what means are multiplied by, or the column of a frame or Dataset that
            holds it. None answers for one unit.
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of answering them with a warning.

        Returns
        -------
        prediction : ndarray of shape (n,), or (n, t) for several targets or quantiles, (n, t q) for several of both
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        std : the same
            With `return_std`; the two are a tuple.

        Raises
        ------
        ValueError
            With `return_std`, for a fit that leaves no Gram matrix: stochastic steps, another loss. With `exposure`,
            for a loss that has none, and for values that are not above 0.

        References
        ----------
        Bishop 2006, Pattern Recognition and Machine Learning, (3.59).
        """
        check_is_fitted(self, self._fitted_by)
        if exposure is not None:
            self._check_exposure()
        if return_std:
            return super().predict(X, return_std, strict=strict)
        values = self._values(X, strict)
        if exposure is not None:
            values = multiplied(values, X, exposure)
        return with_row_id(values, X, "prediction" if values.ndim == 1 else output_names(self, values.shape[1]))

    def score(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The share of the loss of the best constant that the model takes away; 1 for a perfect one.

        That is R^2; for ``loss="poisson"`` and "gamma" D^2, the share of the deviance, as scikit-learn's
        `PoissonRegressor` scores; for "pinball" the mean over the quantiles.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y, sample_weight : array of shape (n,) or None
            Those of a Dataset are its own.
        exposure : str, array of shape (n,), or None
            As of `predict`; None is the column that the fit had.

        Raises
        ------
        ValueError
            If the fit had an exposure, and there is none here.
        """
        check_is_fitted(self, self._fitted_by)
        loss = self._settings.loss
        if loss in LOG_LINK:
            return explained(*self._losses(X, y, sample_weight, exposure))
        if exposure is not None:
            self._check_exposure()
        if loss == "pinball":
            return quantile_score(self._values(X), X, y, sample_weight, quantiles=sorted(self.quantiles))
        return r_squared(self._values(X), X, y, sample_weight)

    @available_if(lambda self: self._settings.loss in LOG_LINK)
    def deviance(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The mean deviance of rows, of those with an exposure per unit of it; smaller is better.

        Parameters
        ----------
        X, y, sample_weight, exposure
            As of `score`.

        Returns
        -------
        float
            What scikit-learn's `mean_poisson_deviance` and `mean_gamma_deviance` say of the predictions.
        """
        check_is_fitted(self, self._fitted_by)
        return 2.0 * self._losses(X, y, sample_weight, exposure)[0]

    def _losses(self, X: object, y: object, sample_weight: object, exposure: object) -> tuple[float, float]:
        """Half the mean deviance of the model, and of the best constant."""
        exposure = exposure_beside_fit(self, X, exposure)
        if isinstance(exposure, str):
            exposure = exposure_values(X, exposure)
        loss = self._settings.loss
        return mean_loss(self._values(X), X, y, sample_weight, loss=loss, exposure=exposure)

    @property
    def _link(self) -> str:
        """How scores become predictions, as of `dkl.solvers.losses.answered`."""
        # of one quantile there is nothing to put in order
        return "" if self._settings.loss == "pinball" and not self._quantiles else loss_of(self._settings.loss).link

    @property
    def _quantiles(self) -> tuple[float, ...]:
        """What the outputs of each target are quantiles of, in the order of their scores, where there are several."""
        return tuple(self.quantiles) if self._settings.loss == "pinball" and len(self.quantiles) > 1 else ()

    def _has_one_target(self) -> bool:
        """Whether y had one dimension at `fit`."""
        # a model that the user gave may have no coefficients
        return self.linear_.coef_.ndim == 1 if hasattr(self.linear_, "coef_") else len(self.target_center_) == 1

    def _check_targets(self, dataset: Dataset) -> None:
        if self._settings.loss == "huber" and not self.epsilon > 0.0:
            raise ValueError(f"epsilon={self.epsilon!r} leaves nothing of loss='huber'; give it a number above 0")
        if self._settings.loss == "pinball":
            check_quantiles(self.quantiles)
            if self.conformal_fraction is not None:
                # a single quantile is refused before the fit, which would find out in the end
                self._interval_score()
        elif self._settings.loss in LOG_LINK:
            check_log_rows(dataset, self._settings.loss)
