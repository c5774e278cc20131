"""A fitted model as a Pipeline of scikit-learn's own objects, which needs no dkl where it is used.

The cosines of a feature map are an `RBFSampler` with the learned frequencies; a sine is a cosine a quarter turn later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding, takes_columns_as_they_are
from dkl.explain.model import model_of
from dkl.export.predictor import Forms, linear_forms
from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import Similarities
from dkl.kernels.landmark_tiles import on_waves, wave_map
from dkl.kernels.scale import linear_part


def to_sklearn(model: Any) -> Pipeline:
    """The fitted model as a Pipeline; see `dkl.methods.saving.Saved.to_sklearn`."""
    check_is_fitted(model, getattr(model, "_fitted_by", None))
    _check_map(model.feature_map_)
    encoding = getattr(model, "encoding_", None)
    steps = _machine(model) if hasattr(model, "_fitted_by") else _transformers(model.feature_map_)
    if encoding is not None and not takes_columns_as_they_are(encoding):
        return Pipeline([("columns", _columns(encoding)), *steps])
    if hasattr(model, "feature_names_in_"):
        steps[0][1].feature_names_in_ = model.feature_names_in_
    return Pipeline(steps)


def _check_map(feature_map: FeatureMap) -> None:
    scaler = feature_map.scaler
    lacking = "scaling='quantile'" if scaler is not None and scaler.kind == "quantile" else None
    if feature_map.activation in ("arc-cosine", "harmonics"):
        lacking = f"{feature_map.activation} features"
    if lacking:
        raise TypeError(
            f"scikit-learn has no transformer that computes {lacking}; model.to_onnx(path) writes every model, and "
            "model.predictor() answers rows in this process"
        )


def _machine(model: Any) -> list[tuple[str, Any]]:
    """Features whose scaling and amplitudes are part of the others' numbers, and the linear model on them."""
    forms = Forms.of(model_of(model))
    if forms.activation == "identity":
        return [("linear", _linear(model, forms.matrix.T, forms.intercept + forms.offset))]
    matrix, offset = forms.matrix, forms.offset
    if forms.activation == "cos-sin":
        matrix, offset = _with_sines(matrix, offset)
    sampler = _sampler(matrix, offset)
    return [("waves", sampler), ("linear", _linear(model, forms.coef.T / _factor(sampler), forms.intercept))]


def _with_sines(matrix: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([matrix, matrix], axis=1), np.concatenate([offset, offset - np.pi / 2])


def _sampler(matrix: np.ndarray, offset: np.ndarray) -> RBFSampler:
    """cos(x matrix + offset), times `_factor`."""
    sampler = RBFSampler(n_components=len(offset))
    sampler.random_weights_, sampler.random_offset_ = matrix, offset
    sampler.n_features_in_ = len(matrix)
    sampler._n_features_out = len(offset)
    return sampler


def _factor(sampler: RBFSampler) -> float:
    return (2.0 / sampler.n_components) ** 0.5


def _linear(model: Any, coef: np.ndarray, intercept: np.ndarray) -> Any:
    """The linear model whose predictions, decision values and probabilities are the model's."""
    classes = getattr(model, "classes_", None)
    linear: Any = _linear_class(model)()
    if isinstance(linear, LogisticRegression):
        coef, intercept = coef * model._multiplier, intercept * model._multiplier
    if isinstance(linear, SGDClassifier):
        linear.loss = "log_loss"
    one_target = classes is None and model._has_one_target()
    linear.coef_, linear.intercept_ = (coef[0], intercept[0]) if one_target else (coef, intercept)
    linear.n_features_in_ = coef.shape[1]
    if classes is not None:
        linear.classes_ = classes
    return linear


def _linear_class(model: Any) -> type:
    if not hasattr(model, "classes_"):
        return LinearRegression
    if not hasattr(model, "predict_proba"):
        return LinearSVC
    # log odds are normalised over the classes, calibrated scores go through a softmax
    return SGDClassifier if model._multiplier is None else LogisticRegression


def _transformers(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """The features themselves."""
    if feature_map.activation == "identity":
        scaler = feature_map.scaler
        center = np.zeros(feature_map.n_columns) if scaler is None else linear_part(scaler)[0]
        matrix, _, _ = linear_forms(feature_map)
        return [("columns kept", _linear_map(matrix * feature_map.amplitudes, center))]
    has_landmarks = isinstance(feature_map.projection, Similarities)
    waves = wave_map(feature_map) if has_landmarks else feature_map
    matrix, offset, _ = linear_forms(waves)
    if waves.activation == "cos-sin":
        matrix, offset = _with_sines(matrix, offset)
    sampler = _sampler(matrix, offset)
    amplitudes = np.tile(waves.amplitudes, waves.columns_a_frequency)
    if has_landmarks:
        weights = on_waves(feature_map, np.eye(feature_map.n_features)) * amplitudes / _factor(sampler)
        return [("waves", sampler), ("similarities", _linear_map(weights.T, np.zeros(len(offset))))]
    return [("waves", sampler), ("amplitudes", _divided(_factor(sampler), amplitudes))]


def _linear_map(matrix: np.ndarray, mean: np.ndarray) -> PCA:
    """(x - mean) matrix."""
    linear = PCA(n_components=matrix.shape[1])
    linear.components_, linear.mean_, linear.n_components_ = matrix.T, mean, matrix.shape[1]
    linear.n_features_in_ = linear.n_samples_ = len(matrix)
    linear.explained_variance_ = np.ones(matrix.shape[1])
    return linear


def _divided(factor: float, amplitudes: np.ndarray) -> StandardScaler:
    """Cosines times their amplitudes; an amplitude of 0 is a division by infinity."""
    scaler = StandardScaler(with_mean=False)
    with np.errstate(divide="ignore"):
        scaler.scale_ = factor / amplitudes
    scaler.mean_, scaler.var_, scaler.n_samples_seen_ = None, scaler.scale_**2, 1
    scaler.n_features_in_ = len(amplitudes)
    return scaler


def _columns(encoding: TableEncoding) -> ColumnTransformer:
    """The encoding of raw columns, fitted on a table made up of what each rule knows."""
    chosen = [
        (f"column {place}", _column_transformer(rule, strict=encoding.unknown == "error"), [rule.name])
        for place, rule in enumerate(encoding.rules)
    ]
    made_up = pd.DataFrame({rule.name: _made_up(rule) for rule in encoding.rules})
    return ColumnTransformer(chosen).fit(made_up)


def _made_up(rule: ColumnRule) -> list[Any]:
    if rule.kind == "category":
        return [rule.categories[0]] * 2
    return [0.0, np.nan if rule.flags_missing else 0.0]


def _column_transformer(rule: ColumnRule, *, strict: bool) -> Any:
    if rule.kind == "category":
        _check_categories(rule)
        unknown = "error" if strict and rule.fill is None else "ignore"
        return OneHotEncoder(categories=[np.array(rule.categories, dtype=object)], handle_unknown=unknown)
    if rule.fill is None:
        return "passthrough"
    return SimpleImputer(strategy="constant", fill_value=rule.fill, add_indicator=rule.flags_missing)


def _check_categories(rule: ColumnRule) -> None:
    """Raise TypeError for categories that OneHotEncoder would treat otherwise than the encoding, without a word."""
    if rule.flags_missing:
        raise TypeError(
            f"column {rule.name!r} has a flag for missing texts, which scikit-learn's encoders set by the kind of "
            "missing value; replace missing texts by one of your own before fit, or use model.to_onnx(path)"
        )
    if any(_is_numeric(text) for text in rule.categories):
        raise TypeError(
            f"the categories of column {rule.name!r} look like numbers or booleans, which scikit-learn's encoders find "
            "by their type; turn them into other texts before fit, or use model.to_onnx(path)"
        )


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("true", "false")
    return True
