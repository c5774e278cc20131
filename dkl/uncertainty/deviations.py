"""Predicted standard deviations of exact regressors, including the noise of a new target."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.linear.answers import deviations_of, means_of, shaped
from dkl.linear.fitting import LinearFit
from dkl.methods.predicting import NumberPredictions, blockwise, score_rows, with_row_id
from dkl.uncertainty.posterior import CoefficientPosterior


class DeviatingPredictions(NumberPredictions):
    """The method `predict` of machines with `return_std`, which needs `posterior_` of an exact least-squares fit."""

    loss_: str
    solver_: str
    posterior_: CoefficientPosterior

    def predict(self, X: object, return_std: bool = False, *, strict: bool = False) -> Any:
        """The predicted target of each row in its own units, and with `return_std` its standard deviation.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        return_std : bool
            Also return the standard deviation of a new target, noise included: ``noise_ * sqrt(1 + h)``, with h =
            ``phi^T (G + lam I)^-1 phi`` for the centred features phi of a row. It assumes that the features are right
            and the noise is Gaussian and the same everywhere; `predict_interval` does not. For exact fits of the
            squared error only.
        strict : bool
            Raise an error for raw rows that are unlike those of `fit`, instead of a warning.

        Returns
        -------
        prediction : ndarray of shape (n,), or (n, t) for several targets
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        std : as `prediction`
            With `return_std`; the result is then the tuple (prediction, std).

        Raises
        ------
        ValueError
            With `return_std`, after a fit without a Gram matrix (stochastic steps, or another loss).

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
        if not return_std:
            return super().predict(X, strict=strict)
        posterior, n_targets = self._checked_posterior(), len(self.posterior_.noise)
        scores = self._with_lengths(X, strict)
        vector = self._has_one_target()
        answers = []
        for name, function in (("prediction", means_of), ("std", partial(deviations_of, posterior))):
            columns = None if vector else n_targets
            values = blockwise(partial(shaped, function, vector), scores, dtype=np.float64, columns=columns)
            names = name if vector else [f"{name}_{target}" for target in range(n_targets)]
            answers.append(with_row_id(values, X, names))
        return tuple(answers)

    @property
    def noise_(self) -> float | np.ndarray:
        """The standard deviation of the noise, in the units of y; (t,) for several targets.

        Raises
        ------
        AttributeError
            If the fit had no Gram matrix. (Notebooks and `dir` read every attribute, and expect this error.)
        """
        try:
            noise = self._checked_posterior().noise
        except ValueError as error:
            raise AttributeError(str(error)) from error
        return float(noise[0]) if self._has_one_target() else noise

    def _with_lengths(self, X: object, strict: bool = False) -> np.ndarray | da.Array:
        """Predictions and, last, the variance of each row's mean in units of the noise variance: (n, t + 1)."""
        return score_rows(self, replace(self._scorer, posterior=self._checked_posterior()), X, strict=strict)

    def _checked_posterior(self) -> CoefficientPosterior:
        """The posterior of the coefficients.

        Raises
        ------
        ValueError
            If the fit has none.
        """
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
        super()._keep(fit)  # type: ignore[misc]
        # the posterior of an earlier fit is not valid for these coefficients
        if fit.posterior is not None:
            self.posterior_ = fit.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_
