"""The parts of a fitted model that explanations use: linear forms of features, waves, encoded rows, output names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.frames import weights_of
from dkl.features.feature_map import FeatureMap, combined_map
from dkl.features.landmark_projection import Similarities
from dkl.kernels.landmark_tiles import on_waves, wave_map
from dkl.linear.answers import Scorer
from dkl.methods.validation import check_columns, dataset_like_fit
from dkl.protocols.estimators import FittedModel


def model_of(estimator: Any) -> Scorer:
    """The decision values of a fitted estimator as a linear function of features of single linear forms w.x.

    Similarities to landmarks are replaced by the waves of which they are sums.

    Parameters
    ----------
    estimator : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If it makes no predictions.
    """
    # Feature learners make no predictions; only models have `_fitted_by`.
    if not hasattr(estimator, "_fitted_by"):
        raise TypeError(
            f"{type(estimator).__name__} predicts nothing that could be explained; fit a machine on it, such as "
            f"KernelClassifier({type(estimator).__name__}())"
        )
    check_is_fitted(estimator, estimator._fitted_by)
    scorer: Scorer = estimator._scorer
    if not isinstance(scorer.feature_map.projection, Similarities):
        return scorer
    # A similarity is a weighted sum of cosines, so that a linear function of similarities is one of cosines.
    return replace(scorer, feature_map=wave_map(scorer.feature_map), coef=on_waves(scorer.feature_map, scorer.coef))


def parts_of(scorer: Scorer) -> list[Scorer]:
    """A model as a sum of models on one kind of features each, for which explanations have formulas.

    All maps without a formula form one part, the last. The first part has the intercept.
    """
    parts, others = [], []
    for feature_map, coef in scorer.feature_map.split(scorer.coef):
        if feature_map.activation != "identity" and mixes_columns(feature_map):
            others.append((feature_map, coef))
        elif isinstance(feature_map.projection, Similarities):
            parts.append((wave_map(feature_map), on_waves(feature_map, coef)))
        elif feature_map.is_fourier or feature_map.activation in ("steps", "identity"):
            parts.append((feature_map, coef))
        else:
            others.append((feature_map, coef))
    if len(others) > 1:
        others = [(combined_map([part for part, _ in others]), np.concatenate([own for _, own in others], axis=1))]
    intercepts = [scorer.intercept] + [np.zeros_like(scorer.intercept)] * len(parts)
    return [
        replace(scorer, feature_map=part, coef=coef, intercept=intercept)
        for (part, coef), intercept in zip([*parts, *others], intercepts, strict=False)
    ]


def wave_amplitudes(scorer: Scorer) -> np.ndarray | None:
    """a (m, K), complex, such that decision values are sums of Re(a_j exp(i w_j.x)); None if features are no waves.

    Waves of rows whose scaling mixes columns are no products of waves of single columns, and count as none.
    """
    feature_map, m = scorer.feature_map, scorer.feature_map.n_frequencies
    # c cos z + s sin z = Re((c - i s) exp(i z)), and cos(z + b) = Re(exp(i b) exp(i z)).
    if mixes_columns(feature_map):
        return None
    if feature_map.activation == "cos-sin":
        a = scorer.coef[:, :m] - 1j * scorer.coef[:, m:]
    elif feature_map.activation == "cos":
        a = scorer.coef * np.exp(1j * (0.0 if feature_map.phases is None else feature_map.phases))
    else:
        return None
    return (a * feature_map.amplitudes).T


def mixes_columns(feature_map: FeatureMap) -> bool:
    """Whether a scaled column of these features depends on the other columns of its row."""
    return feature_map.scaler is not None and feature_map.scaler.mixes_columns


def rows_to_explain(estimator: FittedModel, X: object, sample_weight: object = None) -> Dataset:
    """Rows of any kind as a Dataset of encoded rows.

    Raises
    ------
    ValueError
        If the columns are not those of `fit`.
    """
    dataset = dataset_like_fit(estimator, X, None, weights_of(X, sample_weight))
    check_columns(estimator, dataset)
    return dataset


def unit_of(estimator: Any) -> str:
    """The name of the quantity that explanations of an output add up to, for the axes of pictures.

    "prediction" in the units of y, "log mean" for a loss with a log link, "decision value" of each of several classes,
    and for two classes "decision value of" the second.
    """
    classes = getattr(estimator, "classes_", None)
    if classes is not None:
        # of two classes there is one decision value, which is positive for the second
        return "decision value" if len(classes) > 2 else f"decision value of {classes[1]}"
    return "log mean" if getattr(estimator, "_link", "") == "log" else "prediction"


def output_labels(estimator: Any) -> tuple[str, ...]:
    """Names of the K outputs: classes if there are more than two, targets if there are several, else none.

    Explanations are in units of scores; with a log link these are logarithms of means, and are named so.
    """
    classes = getattr(estimator, "classes_", None)
    if classes is not None:
        return tuple(map(str, classes)) if len(classes) > 2 else ()
    n_outputs = len(estimator._scorer.coef)
    if getattr(estimator, "_link", "") == "log":
        return tuple(f"log mean of target {t}" for t in range(n_outputs)) if n_outputs > 1 else ("log mean",)
    if quantiles := getattr(estimator, "_quantiles", ()):
        if n_outputs == len(quantiles):
            return tuple(f"quantile {quantile:g}" for quantile in quantiles)
        targets = range(n_outputs // len(quantiles))
        return tuple(f"quantile {quantile:g} of target {t}" for t in targets for quantile in quantiles)
    return tuple(f"target {t}" for t in range(n_outputs)) if n_outputs > 1 else ()
