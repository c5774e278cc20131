"""KernelClassifier and KernelRegressor; their `fit` is that of `KernelMachine` in `machine.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.exposure import exposure_beside_fit, exposure_values, multiplied
from dkl.linear.answers import deviations_of, means_of, probabilities, shaped
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
from dkl.methods.predicting import (
    ClassPredictions,
    NumberPredictions,
    blockwise,
    output_names,
    score_rows,
    with_row_id,
)
from dkl.methods.scoring import check_log_rows, explained, mean_loss, quantile_score
from dkl.methods.validation import check_whole_labels
from dkl.passes.loop import Run
from dkl.solvers.losses import LOG_LINK, loss_of
from dkl.uncertainty.conformal import ConformalIntervals, ConformalSets, no_probabilities
from dkl.uncertainty.posterior import CoefficientPosterior


@estimator
class KernelClassifier(ConformalSets, ClassPredictions, KernelMachine):
    """A classifier on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss over the rows, one class against the rest, on rows mapped by the
    learned features; all rows are read block by block, never held at once.

    Parameters
    ----------
    features : "auto", feature learner, name of one, list of these, or None
        "auto" compares kinds of features on a sample of the rows (the columns themselves, random and searched waves,
        steps of columns, a kernel at landmarks), then larger ones and pairs of kinds, and uses those with the least
        loss on held-out rows; `reasons_` lists what was tried. A learner is cloned; a name ("margin", "steps",
        "nystrom", "aligned", ...) is that learner with its defaults; a list is the `CombinedFeatures` of its parts.
        None searches waves of the kernel that suits the rows. A learner with ``warm_start=True`` continues from the
        features of the machine's last fit, with the same rows held out.
    class_weight : dict, "balanced" or None
    calibrate : bool or None
        Whether to fit a temperature on held-out rows, in one more pass, so that `predict_proba` exists for every loss.
        None is True where the machine chooses its features. With other features, None fits the temperature in passes
        that take place anyway: those that choose the penalty (``alpha="auto"``; the model is then fitted to all rows)
        or those that stop the epochs (``early_stopping=True``, or stochastic steps on more than a million rows, which
        stop early by default). Where the machine chooses and rows are held out by time, the newest rows also determine
        a shift of each intercept, if classes have become clearly rarer or more frequent; decision values and labels
        follow the probabilities.
    linear : estimator or None
        The linear model on the mapped rows; None is the machine's own, which all parameters below describe.
        ``dask_ml.wrappers.Incremental(SGDClassifier(...))`` is fitted by its own `partial_fit`, block by block in the
        stored order. Any other estimator with `partial_fit` (`dkl.BlockIncremental`) goes through blocks and rows in
        random order, `epochs` times. It has its own loss, penalty and steps.
    n_features : int or "auto"
        The largest number of features. "auto" adds features while the held-out loss falls; a learner that you pass
        keeps its own number.
    scaling : {"auto", "standard", "quantile", "minmax", "unit", "counts"} or None
        Scaling of the columns. "auto" is the scaling with the least held-out loss where the machine chooses its
        features, "standard" (none for sparse rows) for a learner given by name, and its own for a learner that you
        pass. Steps need no scaling.
    sigma : float, "median" or "auto"
        The bandwidth. If it is set, only features that have a bandwidth are tried.
    effort : {"fast", "balanced", "best"}
        How much work the choice of features may take. It is counted from rows and columns, never by a clock: about 1,
        5 and at most some hundred seconds on one core for usual tables. The same rows give the same bits anywhere.
    time_limit : float or None
        Seconds, at least 10: no trial begins that is expected to end later. Only this parameter reads the clock,
        between trials; `reasons_` then gives the `trials` that reproduce the model without it.
    trials : sequence of int or None
        The numbers of the candidates to try, one for each trial, as `reasons_` gives them after a fit with
        `time_limit`.
    loss : {"hinge", "squared_hinge", "log_loss", "softmax", "modified_huber", "squared_error"} or None
        None is "squared_hinge" for exact steps and "hinge" for stochastic ones. Where the machine chooses its features,
        None is "squared_error" (exact steps only), a regression on -1 and +1 whose one Hessian serves all classes and
        penalties, or "log_loss" where that improves the held-out probabilities. "softmax" is the log loss of all
        classes jointly; "log_loss" by stochastic steps fits one class against the rest, and by Newton steps it is the
        same as "softmax".
    alpha : float, "auto" or None
        Strength of the penalty; liblinear's C is ``1 / (alpha n)``. "auto" (Newton only): the best on held-out rows of
        C = 0.01 to 100 for features of mean squared length 1, then all rows are fitted with it. Where `solver` is None
        and the fit takes stochastic steps (for `epochs`, `early_stopping`, a loss without exact ones or many rows),
        "auto" is 1e-5. None is "auto" where the machine chooses its features and takes exact steps, else 1e-5.
    epochs : int or None
        How often the fit goes through all rows (at most, with early stopping). None is 10, and up to 50 for fewer than
        20,000 rows: within 0.3 points of liblinear on MNIST and adult. For more than a million rows None is at most 5,
        and ends after the first epoch that does not lower the loss of 50,000 held-out rows.
    solver : {"sgd", "newton"} or None
        "sgd": scikit-learn's `partial_fit` on centred features, averaged. "newton": exact and deterministic, a few
        passes with D x D sums, for D up to a few thousand and ``loss="squared_hinge"``, "squared_error" or "log_loss"
        (with K classes fitted jointly, as by `LogisticRegression`, which takes more passes). None is "newton" where the
        machine chooses its features or alpha="auto" (for losses other than the squared error up to about 2.5 million
        rows), else "sgd".
    early_stopping : bool
        Hold rows out and stop when their loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for early stopping, for calibration and for ``alpha="auto"``, chosen by a hash of the
        row id. Where that is fewer than 1,000 rows, up to five such folds choose alpha, each on a model fitted without
        it.
    patience : int
    conformal_fraction : float or None
        Share of the rows, by another hash, that the whole fit leaves out: `predict_set` calibrates its coverage on
        their scores. None leaves out no rows; `conformalize` accepts rows that you have held out yourself.
    by_group : str or None
    by_time : str, False or None
        The column of a data frame, or of a Dataset, that decides which rows are held out, in place of the hash: whole
        groups, or the newest rows; alpha is then chosen on these. A group column is not used as a feature, a time
        column is. Pass values from an array to `fit`, as groups or times. With None, ``features="auto"`` holds out the
        newest rows if it finds exactly one column of dates, without gaps and with many different values, since the task
        is then most likely to predict later rows. False never does.
    categorical : list of str or None
        Columns of a data frame whose values are names, whatever they look like: postcodes, ids. Those with more than 32
        values become out-of-fold means of the target (a class each, less one) and the logarithm of their count.
        None, where the machine chooses its features, also tries whole numbers with many values, and crosses of columns
        with few values, as categories, on held-out rows: `reasons_` names those that it adopted. An empty list tries
        none.
    drop_missing_target : bool
        Leave out rows whose target is missing, with a warning that counts them. By default they are an error.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where the states of a fit are stored, so that an interrupted fit resumes.
    progress : bool, callable or None
        None shows one line on the progress of the fit in a terminal or notebook, False nothing. A function receives
        every `dkl.events.Event`. Ctrl-C (a notebook's stop) while features are chosen ends the trials, and the best
        candidate so far is fitted; a second one stops the fit.
    memory_limit : int, str or None
        Bytes that a process may use; a fit that needs more is refused.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        The features chosen and their score on held-out rows, in one sentence; only where the machine chose them.
    reasons_ : tuple of str
        Why these features were chosen, in sentences; only where the machine chose them.
    loss_, solver_ : str
        The loss and the solver of the fit.
    linear_ : SGDClassifier, LinearSVC or LogisticRegression
        The linear model on mapped rows; an `ArraySGDClassifier` for "softmax" by stochastic steps.
    classes_ : ndarray of shape (K,)
    n_epochs_ : int
        Epochs, or Newton steps.
    validation_losses_ : tuple of float
    message_ : str
        Why the steps of the linear model ended.
    alpha_ : float
        The penalty, as given or chosen.
    alphas_, validation_scores_ : ndarray of shape (A,)
        The penalties tried, and one minus the mean squared hinge on held-out rows of each; only with ``alpha="auto"``.
    temperature_ : float
        Decision values are divided by it to become probabilities; only where it was fitted, see `calibrate`.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: the held-out scores on which `predict_set` bases its
        coverage.
    seed_, provenance_, n_features_in_
        As in `RandomFeatures`.

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
        """Class probabilities, for "log_loss" and "softmax", and for any other loss with a calibrated temperature.

        The temperature is calibrated where the machine chooses its features, where ``alpha="auto"`` or
        ``early_stopping=True`` holds rows out anyway, and with ``calibrate=True``. Where nothing is held out there are
        no probabilities.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of warning about them.

        Returns
        -------
        ndarray of shape (n, K)
            Columns in the order of `classes_`; the largest probability is that of the predicted class. Lazy as in
            `predict`; for a Dataset a DataFrame indexed by row id.
        """
        check_is_fitted(self, "linear_")
        # Scores of lazy rows are lazy; probabilities are computed from them block by block.
        scores = self._scores(X, strict)
        shares = blockwise(
            partial(probabilities, multiplier=self._multiplier), scores, dtype=np.float64, columns=len(self.classes_)
        )
        return with_row_id(shares, X, self.classes_)

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        return class_weights(self.class_weight, np.asarray(dataset.classes), np.asarray(dataset.class_weights))

    def _check_targets(self, dataset: Dataset) -> None:
        classes = np.asarray(dataset.classes)
        check_whole_labels(classes, "KernelRegressor")
        # Classes are known before any pass, so that wrong class weights are refused early.
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
                # predicted labels follow the shifted probabilities
                self.linear_.intercept_ = self.linear_.intercept_ + shift
        elif self._settings.calibrate:
            self.temperature_ = 1.0 / calibrate(problem, self.linear_, dataset.source, run)


@estimator
class KernelRegressor(ConformalIntervals, NumberPredictions, KernelMachine):
    """A regressor on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss of standardised targets on rows mapped by the learned features;
    predictions are in the targets' own units.

    Parameters
    ----------
    features : "auto", feature learner, name of one, list of these, or None
        As in `KernelClassifier`.
    epsilon : float
        The width of "epsilon_insensitive" and "huber", in standard deviations of y.
    quantiles : sequence of float
        The quantiles of "pinball", each predicted in its own column (a single one as a vector); with several targets
        all quantiles of the first come first.
    linear, n_features, scaling, sigma, effort, time_limit, trials
        As in `KernelClassifier`.
    loss : {"squared_error", "epsilon_insensitive", "huber", "pinball", "poisson", "gamma"} or None
        None is "squared_error", half the squared error. "huber" equals it up to an error of `epsilon` and is linear
        beyond; "pinball" predicts `quantiles`. "poisson" (counts, rates) and "gamma" (positive sizes) predict a mean
        exp(f); their targets are not standardised, and `fit` and `predict` accept an `exposure`.
    alpha : float, "auto", "evidence" or None
        Strength of the penalty; `Ridge`'s alpha is ``alpha n``. "auto" (Newton only): the one with the least loss on
        held-out rows among 100 to 1e-4, for features of mean squared length 1; then all rows are fitted with it.
        "evidence" (Newton only): the one that maximises the marginal likelihood of the targets, as `BayesianRidge`
        does, from the sums of all rows; suits features that were drawn without the target. None, and "auto" for
        stochastic steps, are as in `KernelClassifier`.
    epochs : int or None
        As in `KernelClassifier`.
    solver : {"sgd", "newton"} or None
        "newton": ridge, exact, for every loss but "epsilon_insensitive". "sgd": stochastic steps for every loss, for so
        many features that the products of all pairs do not fit in memory, and for `partial_fit`. None is as in
        `KernelClassifier`; for "pinball", "poisson" and "gamma" it is "newton" unless `epochs` or `early_stopping` is
        set.
    early_stopping, validation_fraction, patience
        As in `KernelClassifier`.
    conformal_fraction : float or None
        As in `KernelClassifier`; `predict_interval` bases its coverage on these rows.
    by_group, by_time, categorical, drop_missing_target
        As in `KernelClassifier`.
    device, random_state, checkpoint, progress, memory_limit
        As in `KernelClassifier`.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        The features chosen and their score on held-out rows, in one sentence; only where the machine chose them.
    reasons_ : tuple of str
        Why these features were chosen, in sentences; only where the machine chose them.
    loss_, solver_ : str
        The loss and the solver of the fit.
    linear_ : SGDRegressor or Ridge
        The linear model on mapped rows, in the units of the targets; for "poisson" and "gamma" its scores are
        logarithms of means. By stochastic steps for these two, for "pinball" and for several targets it is an
        `ArraySGDRegressor`.
    target_center_, target_scale_ : ndarray of shape (t,)
        The fit subtracts the center from the targets and divides them by the scale; for "poisson" and "gamma" these are
        0 and 1, by stochastic steps 0 and the mean.
    n_epochs_ : int
    validation_losses_ : tuple of float
    message_ : str
    alpha_ : float
    alphas_, validation_scores_ : ndarray of shape (A,)
        As in `KernelClassifier`; the score is one minus the mean loss of the (standardised) targets, where the loss
        "squared_error" is the whole square.
    posterior_ : CoefficientPosterior
        Only of exact fits of the squared error: the part of the Gram matrix that ``predict(X, return_std=True)`` needs.
    noise_ : float or ndarray of shape (t,)
        The estimated standard deviation of the noise, in the units of y; only of such a fit.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: the held-out scores on which `predict_interval` bases its
        coverage.
    exposure_ : str
        The column that held the exposure of the fit, or an empty string where values were passed.
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
        # scikit-learn's checks fit several targets if this is set
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: object, return_std: bool = False, *, exposure: object = None, strict: bool = False) -> Any:
        """The predicted target of each row, and on request the standard deviation of a new target around it.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        return_std : bool
            Return the standard deviation of a new target as well, its noise included: ``noise_ * sqrt(1 + h)``, where h
            of a row is ``phi^T (G + lam I)^-1 phi`` of its centred features. It assumes that the features suffice and
            that the noise is Gaussian and equal everywhere; `predict_interval` assumes neither. Only for exact fits of
            the squared error.
        exposure : str, array of shape (n,), or None
            Only for ``loss="poisson"`` and "gamma": the factor of each row's mean, or the column of a frame or Dataset
            that holds it. None predicts for one unit.
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of warning about them.

        Returns
        -------
        prediction : ndarray of shape (n,), or (n, t) for several targets or quantiles, (n, t q) for several of both
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        std : the same
            With `return_std`, in a tuple (prediction, std).

        Raises
        ------
        ValueError
            With `return_std`, for a fit without a Gram matrix: by stochastic steps, or for another loss. With
            `exposure`, for a loss without one, and for values that are not positive.

        References
        ----------
        Bishop 2006, Pattern Recognition and Machine Learning, (3.59).

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from dkl.machines.kernel_machines import KernelRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = KernelRegressor("random", alpha="evidence", random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> mean.shape, bool(std.min() > model.noise_)
        ((442,), True)
        """
        check_is_fitted(self, self._fitted_by)
        if exposure is not None:
            self._check_exposure()
        if return_std:
            return self._with_deviations(X, strict)
        values = self._values(X, strict)
        if exposure is not None:
            values = multiplied(values, X, exposure)
        return with_row_id(values, X, "prediction" if values.ndim == 1 else output_names(self, values.shape[1]))

    def _with_deviations(self, X: object, strict: bool) -> tuple[Any, Any]:
        """Predictions, and the standard deviations of new targets."""
        posterior, vector = self._checked_posterior(), self._has_one_target()
        # predictions and, last, the variance of each row's mean in units of the noise variance: (n, t + 1)
        scores = score_rows(self, replace(self._scorer, posterior=posterior), X, strict=strict)
        n_targets, answers = len(posterior.noise), []
        for name, function in (("prediction", means_of), ("std", partial(deviations_of, posterior))):
            columns = None if vector else n_targets
            values = blockwise(partial(shaped, function, vector), scores, dtype=np.float64, columns=columns)
            names = name if vector else [f"{name}_{target}" for target in range(n_targets)]
            answers.append(with_row_id(values, X, names))
        return answers[0], answers[1]

    @property
    def noise_(self) -> float | np.ndarray:
        """The standard deviation of the noise, in the units of y; (t,) for several targets.

        Its square is (sum_i v_i (y_i - f_i)^2 + n alpha |w|^2) / n, over the rows of the fit with weights v_i of total
        n, for the model f with the coefficients w. This maximises the marginal likelihood at this alpha. It is too
        small if the model overfits, since the rows are those that the model was fitted to.

        Raises
        ------
        AttributeError
            Before a fit, or if the fit had no Gram matrix. (Notebooks and `dir` read every attribute, and expect this
            error.)
        """
        try:
            noise = self._checked_posterior().noise
        except ValueError as error:
            raise AttributeError(str(error)) from error
        return float(noise[0]) if self._has_one_target() else noise

    def _checked_posterior(self) -> CoefficientPosterior:
        """The posterior of the coefficients.

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the fit has none.
        """
        check_is_fitted(self, self._fitted_by)
        posterior: CoefficientPosterior | None = getattr(self, "posterior_", None)
        if posterior is None:
            how = f"loss={getattr(self, 'loss_', None)!r} and solver={getattr(self, 'solver_', None)!r}"
            raise ValueError(
                f"this {type(self).__name__} has no deviations: these need the Gram matrix that an exact fit of the "
                f"squared error on at most 10,000 features leaves, and it was fitted with {how}, on more features, or "
                f"by a version that did not keep it. Fit {type(self).__name__}(loss='squared_error', solver='newton'); "
                "for intervals whatever the fit was, use conformalize and predict_interval"
            )
        return posterior

    def _keep(self, fit: LinearFit) -> None:
        """Set the fitted attributes of the machine from a linear fit, with its posterior if it has one."""
        super()._keep(fit)
        # the posterior of an earlier fit is not valid for these coefficients
        if fit.posterior is not None:
            self.posterior_ = fit.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_

    def score(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The relative improvement of the loss over that of the best constant; 1 for perfect predictions.

        This is R^2; for ``loss="poisson"`` and "gamma" it is D^2, the same for the deviance, as in scikit-learn's
        `PoissonRegressor`; for "pinball" it is the mean over the quantiles.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y, sample_weight : array of shape (n,) or None
            None for a Dataset, which has its own.
        exposure : str, array of shape (n,), or None
            As in `predict`; None reads the column that the fit had.

        Raises
        ------
        ValueError
            If the fit had an exposure and none is given here.
        """
        check_is_fitted(self, self._fitted_by)
        loss = self._settings.loss
        if loss in LOG_LINK:
            return explained(*self._losses(X, y, sample_weight, exposure))
        if exposure is not None:
            self._check_exposure()
        if loss == "pinball":
            values = self._values(X, weight=sample_weight)
            return quantile_score(values, X, y, sample_weight, quantiles=sorted(self.quantiles))
        return super().score(X, y, sample_weight)

    @available_if(lambda self: self._settings.loss in LOG_LINK)
    def deviance(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The mean deviance of rows, per unit of exposure where there is one; smaller is better.

        Parameters
        ----------
        X, y, sample_weight, exposure
            As in `score`.

        Returns
        -------
        float
            The value of scikit-learn's `mean_poisson_deviance` or `mean_gamma_deviance` for these predictions.
        """
        check_is_fitted(self, self._fitted_by)
        return 2.0 * self._losses(X, y, sample_weight, exposure)[0]

    def _losses(self, X: object, y: object, sample_weight: object, exposure: object) -> tuple[float, float]:
        """Half the mean deviance of the model, and half that of the best constant."""
        exposure = exposure_beside_fit(self, X, exposure)
        if isinstance(exposure, str):
            exposure = exposure_values(X, exposure)
        loss = self._settings.loss
        values = self._values(X, weight=sample_weight)
        return mean_loss(values, X, y, sample_weight, loss=loss, exposure=exposure)

    @property
    def _link(self) -> str:
        """The link from scores to predictions, as in `dkl.solvers.losses.answered`."""
        # the single quantile needs no sorting
        return "" if self._settings.loss == "pinball" and not self._quantiles else loss_of(self._settings.loss).link

    @property
    def _quantiles(self) -> tuple[float, ...]:
        """The quantiles that each target's outputs predict, ascending; empty for a single one or another loss."""
        return tuple(self.quantiles) if self._settings.loss == "pinball" and len(self.quantiles) > 1 else ()

    def _has_one_target(self) -> bool:
        """Whether y had one dimension at `fit`."""
        # the user's own model may have no coefficients
        return self.linear_.coef_.ndim == 1 if hasattr(self.linear_, "coef_") else len(self.target_center_) == 1

    def _check_targets(self, dataset: Dataset) -> None:
        loss_of(self._settings.loss, self.epsilon).validate()
        if self._settings.loss == "pinball":
            check_quantiles(self.quantiles)
            if self.conformal_fraction is not None:
                # the interval score refuses a single quantile, which the fit would find out only at its end
                self._interval_score()
        elif self._settings.loss in LOG_LINK:
            check_log_rows(dataset, self._settings.loss)
