"""Checks of a model read from a file: its parts have their types, fit each other, and are finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from sklearn.base import BaseEstimator

from dkl.errors import StoreError
from dkl.features.feature_map import FeatureMap
from dkl.methods.parameters import Constrained, check_constraints

# The attributes of estimators that go into predictions: a NaN among them would be in every answer.
_PREDICTING = frozenset({"coef_", "intercept_", "weights_", "target_center_", "target_scale_", "temperature_"})


def check_finite(cls: type, fields: Mapping[str, Any]) -> None:
    """Raise an error for numbers of a feature map, scaler or posterior that are not finite; it names their field.

    Raises
    ------
    StoreError
    """
    if cls.__module__.startswith(("dkl.features.", "dkl.uncertainty.posterior")):
        for name, value in fields.items():
            _check_finite(f"{cls.__name__}.{name}", value)


def check_record(made: object) -> None:
    """Raise an error for a dataclass whose fields have other types than declared (if these are plain), or no meaning.

    Raises
    ------
    StoreError, ValueError
    """
    cls = type(made)
    # Classes of extensions may annotate what cannot be checked.
    if cls.__module__.startswith("dkl."):
        for name, hint in get_type_hints(cls).items():
            if not _fits(getattr(made, name), hint):
                raise StoreError(f"{cls.__name__}.{name} in the model file is {getattr(made, name)!r:.80}, not {hint}")
    if isinstance(made, FeatureMap):
        # amplitudes and phases have one entry a frequency, scalers one a column
        lengths = {
            "amplitudes": len(made.amplitudes),
            "phases": len(made.amplitudes if made.phases is None else made.phases),
        }
        wrong = {name: length for name, length in lengths.items() if length != made.n_frequencies}
        if wrong or (made.scaler is not None and made.scaler.n_columns not in (made.n_columns, 0)):
            raise StoreError(
                f"the feature map in the model file has {made.n_frequencies} frequencies on {made.n_columns} columns, "
                f"which do not go with its amplitudes, phases or scaling ({wrong or 'columns'}); the file is damaged"
            )
    if hasattr(made, "validate"):
        made.validate()


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; annotations that say more than a type are taken as kept."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    # Whole numbers are floats, too, as in Python; a truth value is neither.
    if hint is float:
        return isinstance(value, float | int | np.number) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    kind = origin or hint
    if kind in (str, bool, tuple, list, dict, Mapping, np.ndarray) or dataclasses.is_dataclass(kind):
        return isinstance(value, kind)
    return value is None if kind is type(None) else True


def _check_finite(name: str, value: object) -> None:
    """Raise an error for an array or a number that is not finite, which would make every prediction NaN."""
    if isinstance(value, float | np.floating | np.ndarray) and np.asarray(value).dtype.kind == "f":
        # The first place is named: it may tell which column was damaged.
        wrong = np.argwhere(~np.isfinite(value))
        if len(wrong):
            at = f" at {wrong[0].tolist()}" if np.ndim(value) else ""
            raise StoreError(
                f"{name} of the model holds {np.asarray(value)[tuple(wrong[0])]}{at}; with numbers that are not finite "
                "a model has no answers: fit it again"
            )


def check_estimator(made: object) -> None:
    """Raise an error for an estimator whose parameters have no meaning, or whose parts do not fit each other.

    Raises
    ------
    StoreError, ValueError
    """
    if isinstance(made, Constrained):
        check_constraints(made)
    name, fitted = type(made).__name__, vars(made)
    for attribute in _PREDICTING & fitted.keys():
        _check_finite(f"{name}.{attribute}", fitted[attribute])
    for attribute in {"features_", "linear_"} & fitted.keys():
        if not isinstance(fitted[attribute], BaseEstimator):
            raise StoreError(f"{name}.{attribute} in the model file is no estimator; the file is damaged")
    if "feature_map_" in fitted and not isinstance(fitted["feature_map_"], FeatureMap):
        raise StoreError(f"{name}.feature_map_ in the model file is no feature map; it is damaged")
    linear = fitted.get("linear_")
    if linear is None or "features_" not in fitted:
        return
    # the linear model has to take what the features give, and to have one output a class
    coef, n_features = np.atleast_2d(linear.coef_), fitted["features_"].feature_map_.n_features
    classes = fitted.get("classes_")
    n_outputs = len(coef) if classes is None else 1 if len(classes) == 2 else len(classes)
    if coef.shape != (n_outputs, n_features) or np.size(linear.intercept_) not in (1, n_outputs):
        raise StoreError(
            f"the linear model has coefficients of shape {coef.shape}; {n_features} features and {n_outputs} outputs "
            f"need {(n_outputs, n_features)}; the file is damaged"
        )
