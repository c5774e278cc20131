"""What is checked of a model that was read from a file: its parts have their types, go together and are finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from sklearn.base import BaseEstimator

from dkl.errors import StoreError
from dkl.features.feature_map import FeatureMap
from dkl.methods.parameters import check_constraints

# attributes of estimators that go into predictions: a NaN among them would be in every answer
_PREDICTING = frozenset({"coef_", "intercept_", "weights_", "target_center_", "target_scale_", "temperature_"})


def check_finite(cls: type, fields: Mapping[str, Any]) -> None:
    """Refuse numbers of a feature map or scaler that are not finite, by the name of their field, before it is made.

    Raises
    ------
    StoreError
    """
    if cls.__module__.startswith("dkl.features."):
        for name, value in fields.items():
            _check_finite(f"{cls.__name__}.{name}", value)


def check_record(made: Any) -> None:
    """Refuse a dataclass with fields of other types than it declares (as far as these are plain), or of no meaning.

    Raises
    ------
    StoreError, ValueError
    """
    cls = type(made)
    if cls.__module__.startswith("dkl."):
        for name, hint in get_type_hints(cls).items():
            if not _fits(getattr(made, name), hint):
                raise StoreError(f"{cls.__name__}.{name} in the model file is {getattr(made, name)!r:.80}, not {hint}")
    if isinstance(made, FeatureMap):
        _check_map(made)
    if hasattr(made, "validate"):
        made.validate()


def _check_map(found: FeatureMap) -> None:
    """Refuse a map whose arrays do not have one entry a frequency, or one a column."""
    lengths = {
        "amplitudes": len(found.amplitudes),
        "phases": len(found.amplitudes if found.phases is None else found.phases),
    }
    wrong = {name: length for name, length in lengths.items() if length != found.n_frequencies}
    if wrong or (found.scaler is not None and found.scaler.n_columns not in (found.n_columns, 0)):
        raise StoreError(
            f"the feature map in the model file has {found.n_frequencies} frequencies on {found.n_columns} columns, "
            f"which do not go with its amplitudes, phases or scaling ({wrong or 'columns'}); the file is damaged"
        )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; annotations that say more than a type are taken as kept."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if hint is float:
        return isinstance(value, float | int | np.number) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    kind = origin or hint
    if kind in (str, bool, tuple, list, dict, Mapping, np.ndarray) or dataclasses.is_dataclass(kind):
        return isinstance(value, kind)
    return value is None if kind is type(None) else True


def _check_finite(name: str, value: Any) -> None:
    """Refuse an array of numbers, or a number, that would make every prediction NaN."""
    if isinstance(value, float | np.floating | np.ndarray) and np.asarray(value).dtype.kind == "f":
        wrong = np.argwhere(~np.isfinite(value))
        if len(wrong):
            at = f" at {wrong[0].tolist()}" if np.ndim(value) else ""
            raise StoreError(
                f"{name} of the model holds {np.asarray(value)[tuple(wrong[0])]}{at}; with numbers that are not finite "
                "a model has no answers: fit it again"
            )


def check_estimator(made: Any) -> None:
    """Refuse an estimator whose parameters have no meaning, or whose parts do not go together.

    Raises
    ------
    StoreError, ValueError
    """
    if hasattr(made, "_parameter_constraints"):
        check_constraints(made)
    for name in _PREDICTING & vars(made).keys():
        _check_finite(f"{type(made).__name__}.{name}", getattr(made, name))
    for name in {"features_", "linear_"} & vars(made).keys():
        if not isinstance(getattr(made, name), BaseEstimator):
            raise StoreError(f"{type(made).__name__}.{name} in the model file is no estimator; the file is damaged")
    feature_map = vars(made).get("feature_map_")
    if "feature_map_" in vars(made) and not isinstance(feature_map, FeatureMap):
        raise StoreError(f"{type(made).__name__}.feature_map_ in the model file is no feature map; it is damaged")
    linear = vars(made).get("linear_")
    if linear is not None and hasattr(made, "features_"):
        _check_linear(made, linear, made.features_.feature_map_.n_features)


def _check_linear(made: Any, linear: Any, n_features: int) -> None:
    """Refuse a linear model that does not take what the features give, or has not one output a class."""
    coef = np.atleast_2d(linear.coef_)
    classes = getattr(made, "classes_", None)
    n_outputs = len(coef) if classes is None else 1 if len(classes) == 2 else len(classes)
    if coef.shape != (n_outputs, n_features) or np.size(linear.intercept_) not in (1, n_outputs):
        raise StoreError(
            f"the linear model has coefficients of shape {coef.shape}; {n_features} features and {n_outputs} outputs "
            f"need {(n_outputs, n_features)}; the file is damaged"
        )
