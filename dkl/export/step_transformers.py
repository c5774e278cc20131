"""Products of steps and hinges as scikit-learn's own transformers: thresholds, clipped ramps, clipped sums of both."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, StandardScaler

from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import HINGE, STEP, Factor, StepProjection


def step_transformers(feature_map: FeatureMap) -> tuple[list[tuple[str, Any]], np.ndarray]:
    """Transformers of scaled rows whose columns, times the sizes, are the features.

    A hinge between its threshold t and the value `high` where it ends is the size high - t times a ramp r in [0, 1]. A
    product of k steps and a ramp is then clip(step_1 + ... + step_k + r - k, 0, 1): r where all steps are 1, and 0
    where one of them is 0. So is a product of k steps alone clip(step_1 + ... + step_k - (k - 1), 0, 1).

    Returns
    -------
    transformers : list of (str, transformer)
        The factors, their sums, and the products in [0, 1].
    sizes : ndarray of shape (m,)

    Raises
    ------
    TypeError
        For maps that hold no steps, or products of several hinges.
    """
    steps = feature_map.projection
    if not isinstance(steps, StepProjection):
        raise TypeError(f"a map of steps holds a StepProjection, not {type(steps).__name__}")
    if (np.count_nonzero((steps.kinds == HINGE) & (steps.columns >= 0), axis=1) > 1).any():
        raise TypeError(
            "scikit-learn has no transformer that computes 'steps' features with a product of two hinges; "
            "model.to_onnx(path) writes every model of steps, and model.predictor() answers rows in this process"
        )
    atoms = steps.factors
    # Each distinct factor is one column, steps first.
    factors = sorted({factor for atom in atoms for factor in atom}, key=lambda factor: (factor[2], factor))
    place = {factor: number for number, factor in enumerate(factors)}
    of_steps = [factor for factor in factors if factor[2] == STEP]
    of_hinges = [factor for factor in factors if factor[2] == HINGE]
    parts: list[tuple[str, Any]] = []
    if of_steps:
        thresholds = np.array([t for _, t, _ in of_steps])
        # 1 where a number is above 0
        binarizer = Binarizer()
        binarizer.n_features_in_ = len(of_steps)
        above = [
            ("columns", _chosen(of_steps, feature_map.n_columns)),
            ("less thresholds", affine_scaler(thresholds, np.ones(len(thresholds)))),
            ("above", binarizer),
        ]
        parts.append(("steps", Pipeline(above)))
    if of_hinges:
        start, length = np.array([t for _, t, _ in of_hinges]), _lengths(of_hinges, steps)
        ramps = [("columns", _chosen(of_hinges, feature_map.n_columns)), ("ramps", _clipped(start, length))]
        parts.append(("hinges", Pipeline(ramps)))
    sums = np.zeros((len(factors), len(atoms)))
    for a, atom in enumerate(atoms):
        # A factor that is there twice counts twice here, as it does in the number of factors below.
        for factor in atom:
            sums[place[factor], a] += 1.0
    others = np.array([len(atom) - 1.0 for atom in atoms])
    lengths = np.array([np.prod(_lengths([f for f in atom if f[2] == HINGE], steps)) for atom in atoms])
    transformers = [
        ("factors", FeatureUnion(parts)),
        ("sums", linear_map(sums, np.zeros(len(factors)))),
        ("products", _clipped(others, np.ones(len(atoms)))),
    ]
    return transformers, lengths * feature_map.amplitudes


def _lengths(hinges: list[Factor], steps: StepProjection) -> np.ndarray:
    """high - t of each hinge: the most that it can be."""
    return np.array([steps.high[j] - t for j, t, _ in hinges])


def _chosen(factors: list[Factor], n_columns: int) -> PCA:
    """The column of each factor, in double precision, in which thresholds are."""
    matrix = np.zeros((n_columns, len(factors)))
    matrix[[j for j, _, _ in factors], np.arange(len(factors))] = 1.0
    return linear_map(matrix, np.zeros(n_columns))


def _clipped(start: np.ndarray, length: np.ndarray) -> MinMaxScaler:
    """clip((x - start) / length, 0, 1)."""
    scaler = MinMaxScaler(clip=True)
    scaler.scale_, scaler.min_ = 1.0 / length, -start / length
    scaler.data_min_, scaler.data_max_, scaler.data_range_ = start, start + length, length
    scaler.n_features_in_ = len(start)
    scaler.n_samples_seen_ = 1
    return scaler


def affine_scaler(mean: np.ndarray | None, scale: np.ndarray) -> StandardScaler:
    """(x - mean) / scale, column by column: a StandardScaler that was never fitted."""
    scaler = StandardScaler(with_mean=mean is not None)
    scaler.mean_, scaler.scale_, scaler.var_, scaler.n_samples_seen_ = mean, scale, scale**2, 1
    scaler.n_features_in_ = len(scale)
    return scaler


def linear_map(matrix: np.ndarray, mean: np.ndarray) -> PCA:
    """(x - mean) matrix, as the one transformer of scikit-learn that is an affine map: a PCA that was never fitted."""
    linear = PCA(n_components=matrix.shape[1])
    linear.components_, linear.mean_, linear.n_components_ = matrix.T, mean, matrix.shape[1]
    linear.n_features_in_ = linear.n_samples_ = len(matrix)
    # It is not used without whitening, and yet asked for by the check that a PCA is fitted.
    linear.explained_variance_ = np.ones(matrix.shape[1])
    return linear
