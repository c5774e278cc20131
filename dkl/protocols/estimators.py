"""Protocols of estimators, for functions that receive one: lower layers need not import the classes themselves."""

from __future__ import annotations

from typing import Any, Protocol


class Estimator(Protocol):
    """scikit-learn's contract: parameters that can be read, set and fitted again."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter by its name."""
        ...

    def set_params(self, **params: Any) -> Any:
        """The estimator itself, with these parameters changed."""
        ...

    def fit(self, X: Any, y: Any = None) -> Any:
        """The estimator itself, fitted to the rows of X."""
        ...


class FittedFeatures(Estimator, Protocol):
    """A feature learner after its fit: rows of `n_features_in_` columns become the outputs of its feature map."""

    feature_map_: Any
    n_features_in_: int
    seed_: int

    def transform(self, X: Any) -> Any:
        """The mapped rows, of shape (n, n_features)."""
        ...


class FittedModel(Estimator, Protocol):
    """A model after its fit: a linear model on the outputs of a feature map."""

    feature_map_: Any
    coef_: Any
    intercept_: Any
    n_features_in_: int

    def predict(self, X: Any) -> Any:
        """Classes or numbers, one a row."""
        ...
