"""What exact regressors answer beside a number: its deviation, the noise of a new target included."""

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
    """`predict` of a machine whose exact fit of the squared error leaves `posterior_`: how far off it may be."""

    loss_: str
    solver_: str
    posterior_: CoefficientPosterior

    def predict(self, X: object, return_std: bool = False, *, strict: bool = False) -> Any:
        """The target of each row, in its own units, and how far a new one may be off.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        return_std : bool
            The standard deviation of a new target too, its noise included: ``noise_ * sqrt(1 + h)``, where h of a row
            is ``phi^T (G + lam I)^-1 phi`` of its centred features. It trusts the features and Gaussian noise that is
            the same everywhere; `predict_interval` does not. Of exact fits of the squared error alone.
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of answering them with a warning.

        Returns
        -------
        prediction : ndarray of shape (n,), or (n, t) for several targets
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        std : the same
            With `return_std`; the two are a tuple.

        Raises
        ------
        ValueError
            With `return_std`, for a fit that leaves no Gram matrix: stochastic steps, another loss.

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
            The fit left no Gram matrix. Notebooks and `dir` ask for every attribute, and take no other error.
        """
        try:
            noise = self._checked_posterior().noise
        except ValueError as error:
            raise AttributeError(str(error)) from error
        return float(noise[0]) if self._has_one_target() else noise

    def _with_lengths(self, X: object, strict: bool = False) -> np.ndarray | da.Array:
        """(n, t + 1) predictions, and last the variance of each row's mean in units of the noise's."""
        return score_rows(self, replace(self._scorer, posterior=self._checked_posterior()), X, strict=strict)

    def _checked_posterior(self) -> CoefficientPosterior:
        """What the fit knows of its coefficients.

        Raises
        ------
        ValueError
            It knows nothing.
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
        """Leave a linear fit in the machine's fitted attributes, with its posterior where it has one."""
        super()._keep(fit)  # type: ignore[misc]
        # what a fit before this one knew does not belong to these coefficients
        if fit.posterior is not None:
            self.posterior_ = fit.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_
