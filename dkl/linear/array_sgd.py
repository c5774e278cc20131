"""scikit-learn's SGD estimators with `partial_fit` and decision values on a GPU's arrays, or any namespace's."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dkl.kernels.device import array_module, is_on_gpu, on_host
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sgd.steps import sgd_rows
from dkl.linear.minibatches import signs


def is_foreign(X: object) -> bool:
    """Whether rows are arrays that scikit-learn's compiled steps cannot take: CuPy's, or of another namespace."""
    return is_on_gpu(X) or (hasattr(X, "__array_namespace__") and not isinstance(X, np.ndarray))


# scikit-learn's estimators of stochastic steps; they keep their iterates under the same names.
SGDModel: TypeAlias = SGDClassifier | SGDRegressor


def take_steps(
    model: SGDModel,
    X: np.ndarray,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    class_weight: np.ndarray | None = None,
) -> SGDModel:
    """What `partial_fit` of a model that has coefficients does, on foreign rows; the coefficients stay on the host.

    Parameters
    ----------
    model : SGDClassifier or SGDRegressor
        With `coef_`, `intercept_`, `t_`, and `classes_` where there are; it is changed.
    X : CuPy array, or array of another namespace, of shape (n, m)
        Sparse rows of a GPU are written out: a few thousand at a time.
    y : array of shape (n,)
        Labels or targets.
    sample_weight : array of shape (n,) or None
    class_weight : ndarray of shape (K,) or None

    Returns
    -------
    the model

    Raises
    ------
    ValueError
        If the coefficients overflow, or the rows have not as many columns as the coefficients.
    """
    rows: Any = X
    is_sparse, before = hasattr(rows, "toarray"), _models(model)
    rows = rows.toarray() if is_sparse else rows
    # The kernel on a GPU checks no shapes.
    if X.shape[1] != before.coef.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features, but the model has {before.coef.shape[1]}")
    Y, S = rows_by_model(model.classes_ if is_classifier(model) else None, on_host(y), sample_weight, class_weight)
    after = sgd_rows(rows, Y, S, before, rule=rule_of(model, is_sparse=is_sparse))
    refuse_overflow(after, len(Y))
    _set(model, after)
    return model


def refuse_overflow(models: SGDModels, n_rows: int) -> None:
    """Raise ValueError where steps on so many rows have led to coefficients that are no numbers."""
    if not (np.isfinite(models.coef).all() and np.isfinite(models.intercept).all()):
        raise ValueError(
            f"coefficients overflow in steps on {n_rows} rows; scale the rows, or take a smaller eta0 or a larger alpha"
        )


def rule_of(model: SGDModel, *, is_sparse: bool = False) -> SGDRule:
    """The rule that the parameters of a model say."""
    names = ("loss", "penalty", "alpha", "learning_rate", "eta0", "power_t", "epsilon", "fit_intercept")
    return SGDRule(
        **{name: getattr(model, name) for name in names},
        l1_ratio=model.l1_ratio or 0.0,
        average=int(model.average),
        sparse=is_sparse,
    )


class ArraySGDClassifier(SGDClassifier):
    """scikit-learn's `SGDClassifier` whose `partial_fit` also takes CuPy arrays: on a GPU a call is one kernel launch.

    Parameters and attributes are those of `sklearn.linear_model.SGDClassifier`; fitted attributes are NumPy's. Rows on
    a GPU are gone through in the order given, whatever `shuffle` says.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.linear.array_sgd import ArraySGDClassifier
    >>> X = np.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> ArraySGDClassifier().partial_fit(X, ["a", "b"], classes=["a", "b"]).predict(X)
    array(['a', 'b'], dtype='<U1')
    """

    def partial_fit(
        self,
        X: np.ndarray,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> ArraySGDClassifier:
        """One epoch of steps; on NumPy's rows this is scikit-learn's own.

        Parameters
        ----------
        X : array of shape (n, m)
        y : array of shape (n,)
        classes : array-like of shape (K,)
            All labels, in the first call.
        sample_weight : array of shape (n,) or None
        """
        if not is_foreign(X):
            return super().partial_fit(X, y, classes=classes, sample_weight=sample_weight)
        # scikit-learn checks the parameters and makes room for the coefficients on a row of zeros, whose step is
        # undone.
        if not hasattr(self, "t_"):
            super().partial_fit(*_first_row(X, y), classes=classes)
            _forget(self)
        take_steps(self, X, y, sample_weight, self._expanded_class_weight)
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Decision values of shape (n,) or (n, K), NumPy's."""
        return _scores(self, X) if is_foreign(X) else super().decision_function(X)


class ArraySGDRegressor(SGDRegressor):
    """scikit-learn's `SGDRegressor` whose `partial_fit` also takes CuPy arrays; see `ArraySGDClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.linear.array_sgd import ArraySGDRegressor
    >>> model = ArraySGDRegressor(eta0=0.5, learning_rate="constant", alpha=0.0, shuffle=False)
    >>> model.partial_fit(np.eye(2), [2.0, 2.0]).coef_
    array([1. , 0.5])
    """

    def partial_fit(self, X: np.ndarray, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ArraySGDRegressor:
        """One epoch of steps; on NumPy's rows this is scikit-learn's own.

        Parameters
        ----------
        X : array of shape (n, m)
        y : array of shape (n,)
        sample_weight : array of shape (n,) or None
        """
        if not is_foreign(X):
            return super().partial_fit(X, y, sample_weight=sample_weight)
        if not hasattr(self, "t_"):
            super().partial_fit(*_first_row(X, y))
            _forget(self)
        take_steps(self, X, y, sample_weight)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predictions of shape (n,), NumPy's."""
        return _scores(self, X) if is_foreign(X) else super().predict(X)


def _first_row(X: np.ndarray, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """A row of zeros and its target: with them scikit-learn checks all parameters and makes room."""
    return np.zeros((1, X.shape[1]), "float32" if "float32" in str(X.dtype) else "float64"), on_host(y)[:1]


def _forget(model: SGDModel) -> None:
    """Take the models back to zeros, before the first step."""
    before = _models(model)
    coef, intercept = np.zeros_like(before.coef), np.zeros_like(before.intercept)
    _set(model, SGDModels(coef, intercept, coef.copy(), intercept.copy()))


def _scores(model: SGDModel, X: np.ndarray) -> np.ndarray:
    """Decision values of foreign rows, (n,) or (n, K), on the host; the product is made where the rows are."""
    xp = array_module(X) if is_on_gpu(X) else X.__array_namespace__()
    coef = xp.asarray(np.atleast_2d(model.coef_), dtype=X.dtype)
    scores = on_host(X @ coef.T) + np.atleast_1d(model.intercept_)
    return scores[:, 0] if coef.shape[0] == 1 else scores


def rows_by_model(
    classes: np.ndarray | None,
    y: np.ndarray,
    sample_weight: ArrayLike | None = None,
    class_weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and weights of each linear model, (n, K), for labels or (without classes) targets y (n,).

    Raises
    ------
    ValueError
        If a label is not among the classes.
    """
    if classes is None:
        Y = np.asarray(y, dtype=np.float64).reshape(-1, 1)
    else:
        codes = np.clip(np.searchsorted(classes, y), 0, len(classes) - 1)
        unknown = np.flatnonzero(classes[codes] != y)
        if len(unknown):
            raise ValueError(f"y[{unknown[0]}] is {y[unknown[0]]!r}, which is not among the classes {classes.tolist()}")
        Y = signs(codes, len(classes))
    S = np.ones_like(Y)
    if classes is not None and class_weight is not None:
        # One class against the rest leaves the rest at weight 1, as in scikit-learn.
        negative, positive = (class_weight[:1], class_weight[1:]) if len(classes) == 2 else (1.0, class_weight)
        S = np.where(Y > 0, positive, negative)
    return Y, S if sample_weight is None else S * on_host(sample_weight)[:, None]


def _models(model: SGDModel) -> SGDModels:
    """The iterates that a model holds, and their means where it averages: under scikit-learn's names."""
    # While it averages, scikit-learn keeps iterates and means apart, and answers by one of them.
    last = (model._standard_coef, model._standard_intercept) if model.average else (model.coef_, model.intercept_)
    mean = (model._average_coef, model._average_intercept) if model.average else last
    return SGDModels(
        np.atleast_2d(last[0]), np.atleast_1d(last[1]), np.atleast_2d(mean[0]), np.atleast_1d(mean[1]), model.t_
    )


def _set(model: SGDModel, models: SGDModels) -> None:
    """Leave iterates and means in a model as scikit-learn does: the means answer once averaging has begun."""
    shape = model.coef_.shape
    coef, mean = models.coef.reshape(shape), models.average_coef.reshape(shape)
    b, mean_b = models.intercept, models.average_intercept
    if model.average:
        model._standard_coef, model._standard_intercept = coef, b
        model._average_coef, model._average_intercept = mean, mean_b
    # `average=n` begins to average after n rows
    averaged = 0 < model.average <= models.clock - 1
    model.coef_, model.intercept_ = (mean, mean_b) if averaged else (coef, b)
    model.t_ = models.clock
