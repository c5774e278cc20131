"""scikit-learn's SGD estimators for arrays on a GPU or of any namespace, and for losses that scikit-learn lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone, is_classifier
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dkl.kernels.device import array_module, is_on_gpu, on_host
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sgd.steps import COMPILED_LOSSES
from dkl.linear.sgd import (
    POWER,
    StepSchedule,
    refuse_overflow,
    rows_by_model,
    steps_by_rule,
)
from dkl.registry import LOSSES, losses_for
from dkl.solvers.losses import LOG_LINK, answered

# Losses for which scikit-learn has no stochastic steps.
OWN_LOSSES = (*LOG_LINK, "pinball", "softmax")


def is_foreign(X: object) -> bool:
    """Whether scikit-learn's compiled steps cannot read these rows: CuPy's arrays, or those of another namespace."""
    return is_on_gpu(X) or (hasattr(X, "__array_namespace__") and not isinstance(X, np.ndarray))


def _readable(*values: Any) -> list[Any]:
    """Values that scikit-learn can read: copies of those that it cannot."""
    return [on_host(each) if is_foreign(each) else each for each in values]


def _has_steps(model: SGDModel) -> bool:
    """Whether `sgd_rows` has the steps: no machine offers the other losses, or passive-aggressive steps."""
    return model.loss in COMPILED_LOSSES and model.learning_rate not in ("pa1", "pa2")


# scikit-learn's estimators with stochastic steps; both store their iterates under the same names.
SGDModel: TypeAlias = SGDClassifier | SGDRegressor


def take_steps(
    model: SGDModel,
    X: np.ndarray,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    class_weight: np.ndarray | None = None,
) -> SGDModel:
    """`partial_fit` of a model that has coefficients, for rows on any device; the coefficients stay on the host.

    Parameters
    ----------
    model : SGDClassifier or SGDRegressor
        With `coef_`, `intercept_`, `t_`, and for classes `classes_`; changed in place.
    X : array of any namespace, or sparse, of shape (n, m)
        Sparse rows become dense, so pass a few thousand at a time.
    y : array of shape (n,) or (n, t)
        Labels or targets.
    sample_weight : array of shape (n,) or None
    class_weight : ndarray of shape (K,) or None

    Returns
    -------
    the model

    Raises
    ------
    ValueError
        If the coefficients overflow, or the columns of X do not match them.
    """
    rows: Any = X
    is_sparse, before = hasattr(rows, "toarray"), _models(model)
    rows = rows.toarray() if is_sparse else rows
    if isinstance(rows, np.ndarray) and rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    # the GPU kernel checks no shapes
    if X.shape[1] != before.coef.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features, but the model has {before.coef.shape[1]}")
    Y, S = rows_by_model(model.classes_ if is_classifier(model) else None, on_host(y), sample_weight, class_weight)
    rules = rules_of(model, len(before.coef), is_sparse=is_sparse)
    if Y.shape[1] < len(rules) and model.loss == "pinball":
        Y, S = (np.repeat(values, quantiles_of(model).size, axis=1) for values in (Y, S))
    if Y.shape[1] != len(rules):
        raise ValueError(f"y has {Y.shape[1]} columns, and the model has {len(rules)} outputs")
    after = steps_by_rule(rows, Y, S, before, rules)
    refuse_overflow(after, len(Y))
    _set(model, after)
    return model


def quantiles_of(model: SGDModel) -> np.ndarray:
    """The quantiles that the outputs of a pinball model predict for each target: (q,)."""
    return np.atleast_1d(np.asarray(model.epsilon, dtype=np.float64))


def rules_of(
    model: SGDModel, n_models: int, *, is_sparse: bool = False, unit: np.ndarray | None = None
) -> list[SGDRule]:
    """The step rules of `n_models` linear models, from the parameters of an estimator.

    Parameters
    ----------
    model : SGDClassifier or SGDRegressor
    n_models : int
        The number of targets times the quantiles of each; the quantiles of a target are consecutive.
    is_sparse : bool
    unit : ndarray of shape (n_models,) or None
        The penalty of each model is divided by it.

    Raises
    ------
    ValueError
        For a loss or a learning rate without steps here.
    """
    if not _has_steps(model):
        raise ValueError(
            f"loss={model.loss!r} with learning_rate={model.learning_rate!r} has steps in scikit-learn alone, if at "
            "all, and for one target"
        )
    names = ("loss", "penalty", "learning_rate", "eta0", "power_t", "fit_intercept")
    options = {name: getattr(model, name) for name in names}
    options |= {"l1_ratio": model.l1_ratio or 0.0, "average": int(model.average), "sparse": is_sparse}
    epsilons = np.resize(quantiles_of(model), n_models)
    alphas = np.full(n_models, float(model.alpha)) / (1.0 if unit is None else unit)
    return [SGDRule(**options, alpha=float(a), epsilon=float(e)) for a, e in zip(alphas, epsilons, strict=True)]


def _with_losses(constraints: dict[str, list[Any]], *losses: str) -> dict[str, list[Any]]:
    """scikit-learn's parameter constraints, with further losses, and with several quantiles in `epsilon`."""
    (loss_options,) = constraints["loss"]
    several = {"epsilon": [*constraints["epsilon"], tuple, list]} if "pinball" in losses else {}
    return {**constraints, "loss": [type(loss_options)({*loss_options.options, *losses})], **several}


class _FurtherLosses:
    """`fit` for estimators with more losses than scikit-learn's; the further losses need `partial_fit`."""

    loss: str

    def fit(self, X: np.ndarray, y: ArrayLike, **options: Any) -> Self:
        """scikit-learn's `fit`, for its own losses.

        Parameters
        ----------
        X : array of shape (n, m)
        y : array of shape (n,)
        **options
            As in scikit-learn's `fit`.

        Raises
        ------
        ValueError
            For a further loss, which only `partial_fit` supports.
        """
        if self.loss in OWN_LOSSES:
            raise ValueError(
                f"loss={self.loss!r} is fitted by partial_fit, an epoch a call; "
                "dkl.BlockIncremental(model, epochs=...) calls it for all rows"
            )
        fitted: Self = super().fit(X, y, **options)  # type: ignore[misc]
        return fitted


class ArraySGDClassifier(_FurtherLosses, SGDClassifier):
    """scikit-learn's `SGDClassifier` whose `partial_fit` also takes CuPy arrays: on a GPU a call is one kernel launch.

    Parameters and attributes are those of `sklearn.linear_model.SGDClassifier`; fitted attributes are NumPy arrays.
    Rows on a GPU are used in the given order, whatever `shuffle` says. So are those of ``loss="softmax"``, the log loss
    of all classes jointly, whose probabilities are the softmax of the decision values. For two classes use the
    equivalent ``loss="log_loss"``.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.linear.array_sgd import ArraySGDClassifier
    >>> X = np.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> ArraySGDClassifier().partial_fit(X, ["a", "b"], classes=["a", "b"]).predict(X)
    array(['a', 'b'], dtype='<U1')
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = _with_losses(
        SGDClassifier._parameter_constraints, "softmax"
    )

    def partial_fit(
        self,
        X: np.ndarray,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> ArraySGDClassifier:
        """One epoch of steps; for NumPy rows and scikit-learn's losses, scikit-learn's own method.

        Other rows are copied for it if the loss is "perceptron" or a squared epsilon-insensitive one, or the learning
        rate passive-aggressive.

        Parameters
        ----------
        X : array of shape (n, m)
        y : array of shape (n,)
        classes : array-like of shape (K,)
            All labels, in the first call.
        sample_weight : array of shape (n,) or None
        """
        if self.loss != "softmax" and not (is_foreign(X) and _has_steps(self)):
            rows, labels, weight = _readable(X, y, sample_weight)
            return super().partial_fit(rows, labels, classes=classes, sample_weight=weight)
        if not hasattr(self, "t_"):
            own_loss = {"loss": "log_loss"} if self.loss == "softmax" else {}
            estimator = SGDClassifier.partial_fit(
                ArraySGDClassifier(**{**self.get_params(), **own_loss}), *_first_row(X, y), classes=classes
            )
            if own_loss and len(estimator.classes_) < 3:
                raise ValueError("loss='softmax' is of three classes or more; loss='log_loss' is the same for two")
            _begin(self, estimator, len(estimator.coef_))
        take_steps(self, X, y, sample_weight, self._expanded_class_weight)
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Decision values of shape (n,) or (n, K), as a NumPy array."""
        if not is_foreign(X):
            return super().decision_function(X)
        scores = _scores(self, X)
        return scores[:, 0] if scores.shape[1] == 1 else scores


class ArraySGDRegressor(_FurtherLosses, SGDRegressor):
    """scikit-learn's `SGDRegressor` whose `partial_fit` also takes CuPy arrays; see `ArraySGDClassifier`.

    It has further losses, which use rows in the given order: "poisson" and "gamma", half the deviance of a mean exp(f),
    which `predict` returns; and "pinball" for the quantile `epsilon`, or for several such as ``(0.1, 0.5, 0.9)``, which
    `predict` returns in ascending order. With t targets and q quantiles `coef_` has shape (t q, m); the quantiles of a
    target are consecutive.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.linear.array_sgd import ArraySGDRegressor
    >>> model = ArraySGDRegressor(eta0=0.5, learning_rate="constant", alpha=0.0, shuffle=False)
    >>> model.partial_fit(np.eye(2), [2.0, 2.0]).coef_
    array([1. , 0.5])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = _with_losses(
        SGDRegressor._parameter_constraints, "pinball", *LOG_LINK
    )

    def partial_fit(self, X: np.ndarray, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ArraySGDRegressor:
        """One epoch of steps; for NumPy rows and one target with scikit-learn's losses, scikit-learn's own method.

        Parameters
        ----------
        X : array of shape (n, m)
        y : array of shape (n,) or (n, t)
        sample_weight : array of shape (n,) or None

        Raises
        ------
        ValueError
            For a target outside the domain of the loss, or another number of targets than before.
        """
        targets = on_host(y)
        is_own = self.loss in OWN_LOSSES
        if not is_own and targets.ndim == 1 and not (is_foreign(X) and _has_steps(self)):
            rows, y, weight = _readable(X, y, sample_weight)
            return super().partial_fit(rows, y, sample_weight=weight)
        if self.loss in LOG_LINK and (wrong := np.argwhere(LOG_LINK[self.loss].unknown(targets))).size:
            raise ValueError(
                f"y[{wrong[0, 0]}] is {targets[tuple(wrong[0])]}, of which loss={self.loss!r} has no deviance: counts "
                "are at least 0, and sizes above it"
            )
        if not hasattr(self, "t_"):
            own_loss = {"loss": "squared_error", "epsilon": 0.1} if is_own else {}
            estimator = SGDRegressor.partial_fit(
                ArraySGDRegressor(**{**self.get_params(), **own_loss}), *_first_row(X, np.zeros(1))
            )
            each = quantiles_of(self).size if self.loss == "pinball" else 1
            _begin(self, estimator, each * (targets.shape[1] if targets.ndim == 2 else 1))
        take_steps(self, X, targets, sample_weight)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predictions (n,), or (n, t), (n, q), (n, t q) for t targets and q quantiles, as a NumPy array."""
        if not is_foreign(X) and self.loss not in OWN_LOSSES and self.coef_.ndim == 1:
            return super().predict(X)
        n_quantiles = quantiles_of(self).size if self.loss == "pinball" else 0
        values = answered(_scores(self, X), LOSSES[self.loss].link, n_quantiles)
        return values[:, 0] if values.shape[1] == 1 else values


def default_estimator(
    loss: str,
    schedule: StepSchedule,
    *,
    alpha: float,
    epsilon: float = 0.1,
    quantiles: Sequence[float] = (),
    n_models: int = 1,
) -> SGDClassifier | SGDRegressor:
    """The unfitted estimator that a machine fits by default.

    Its own averaging is off, since scikit-learn's `partial_fit` mixes averaged and last intercepts; `sgd_step`
    averages.

    Parameters
    ----------
    loss : str
    schedule : StepSchedule
    alpha : float
    epsilon : float
        Only for "epsilon_insensitive" and "huber".
    quantiles : sequence of float
        Only for "pinball".
    n_models : int
        Linear models; more than one for several targets.
    """
    options: dict[str, Any] = {
        "loss": loss,
        "alpha": alpha,
        "learning_rate": "invscaling",
        "eta0": schedule.eta0,
        "power_t": POWER,
        "shuffle": False,
    }
    if loss in losses_for("regression", "sgd"):
        # scikit-learn's regressor predicts one number a row
        kind = ArraySGDRegressor if loss in OWN_LOSSES or n_models > 1 else SGDRegressor
        return kind(**options, epsilon=tuple(quantiles) if loss == "pinball" else epsilon)
    return (ArraySGDClassifier if loss in OWN_LOSSES else SGDClassifier)(**options)


def fitted_estimator(
    estimator: SGDClassifier | SGDRegressor,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    classes: np.ndarray | None = None,
    clock: float = 1.0,
) -> SGDClassifier | SGDRegressor:
    """A fitted copy of `estimator` with these coefficients; `clock` is the step count for its next step length."""
    model = clone(estimator)
    model.coef_ = coef if classes is not None or len(coef) > 1 else coef[0]
    model.intercept_ = intercept
    model.n_features_in_ = coef.shape[1]
    model.t_ = clock
    if classes is not None:
        model.classes_ = classes
    return model


def _first_row(X: np.ndarray, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """A row of zeros and its target, on which scikit-learn checks all parameters."""
    return np.zeros((1, X.shape[1]), "float32" if "float32" in str(X.dtype) else "float64"), on_host(y)[:1]


def _begin(model: SGDModel, started: SGDModel, n_models: int) -> None:
    """Initialise a model with zero coefficients and the fitted attributes of another estimator.

    That one is scikit-learn's with the same parameters, except a loss it does not have, after one step on a row of
    zeros: it has checked these parameters.
    """
    vars(model).update({name: value for name, value in vars(started).items() if name.endswith(("_", "_class_weight"))})
    zeros = np.zeros((n_models, started.n_features_in_), started.coef_.dtype)
    model.coef_ = zeros.reshape(started.coef_.shape) if n_models == 1 else zeros
    _set(model, SGDModels(zeros, np.zeros(n_models), zeros.copy(), np.zeros(n_models)))


def _scores(model: SGDModel, X: np.ndarray) -> np.ndarray:
    """Decision values (n, K) on the host; the product is computed on the device of the rows."""
    is_array_module = is_on_gpu(X) or not hasattr(X, "__array_namespace__")
    xp = array_module(X) if is_array_module else X.__array_namespace__()
    coef = xp.asarray(np.atleast_2d(model.coef_), dtype=X.dtype)
    return np.asarray(on_host(X @ coef.T) + np.atleast_1d(model.intercept_))


def _models(model: SGDModel) -> SGDModels:
    """The last iterates of a model and their averages, read from scikit-learn's attributes."""
    # while it averages, scikit-learn stores iterates and averages apart, and predicts by one of them
    last = (model._standard_coef, model._standard_intercept) if model.average else (model.coef_, model.intercept_)
    mean = (model._average_coef, model._average_intercept) if model.average else last
    return SGDModels(
        np.atleast_2d(last[0]), np.atleast_1d(last[1]), np.atleast_2d(mean[0]), np.atleast_1d(mean[1]), model.t_
    )


def _set(model: SGDModel, models: SGDModels) -> None:
    """Store iterates and averages in scikit-learn's attributes; once averaging has begun the averages predict."""
    shape = model.coef_.shape
    coef, mean = models.coef.reshape(shape), models.average_coef.reshape(shape)
    b, mean_b = models.intercept, models.average_intercept
    if model.average:
        model._standard_coef, model._standard_intercept = coef, b
        model._average_coef, model._average_intercept = mean, mean_b
    # `average=n` starts averaging after n rows
    averaged = 0 < model.average <= models.clock - 1
    model.coef_, model.intercept_ = (mean, mean_b) if averaged else (coef, b)
    model.t_ = models.clock
