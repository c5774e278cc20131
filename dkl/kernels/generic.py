"""The block arithmetic in array-API operations: what a GPU runs where no kernel of its own is worth it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import Similarities
from dkl.features.projections import ColumnProjection, Projection, StructuredProjection
from dkl.features.scaling import Scaler
from dkl.features.step_projection import HINGE, StepProjection
from dkl.kernels.activations import activate, ramp
from dkl.kernels.harmonic_tiles import harmonic_values
from dkl.kernels.landmark_tiles import similarity_values, wave_map
from dkl.kernels.scale import linear_part, normal_scores


def mapped(xp: Any, X: Any, feature_map: FeatureMap, dtype: Any) -> list[Any]:
    """The parts of phi of dense rows, amplitudes included: one or two arrays (n, m).

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
    dtype : dtype object of `xp`
    """
    amplitudes = xp.asarray(feature_map.amplitudes, dtype=dtype)
    if feature_map.activation == "harmonics":
        rows = scaled(xp, X, feature_map.scaler, xp.float64)
        return [harmonic_values(xp, rows, feature_map, dtype) * amplitudes]
    if isinstance(feature_map.projection, StepProjection):
        rows = scaled(xp, X, feature_map.scaler, xp.float64)
        return [xp.asarray(step_values(xp, rows, feature_map.projection), dtype=dtype) * amplitudes]
    rows = scaled(xp, X, feature_map.scaler, dtype)
    if isinstance(feature_map.projection, Similarities):
        return [similarity_values(xp, angles(xp, rows, wave_map(feature_map), dtype), feature_map, dtype)]
    z = angles(xp, rows, feature_map, dtype)
    return [phi * amplitudes for phi in activate(xp, z, feature_map)]


def step_values(xp: Any, rows: Any, projection: StepProjection) -> Any:
    """The products of steps and hinges of scaled rows, of shape (n, m), float64."""
    values = xp.ones((rows.shape[0], projection.n_frequencies), dtype=xp.float64)
    for factor in range(projection.columns.shape[1]):
        column, t = projection.columns[:, factor], projection.thresholds[:, factor]
        x = xp.take(rows, xp.asarray(np.maximum(column, 0)), axis=1)
        above = xp.asarray(x > xp.asarray(t), dtype=xp.float64)
        is_hinge = projection.kinds[:, factor] == HINGE
        if is_hinge.any():
            high = xp.asarray(projection.high[np.maximum(column, 0)])
            length = xp.where(x > high, high, x) - xp.asarray(t)
            above = xp.where(xp.asarray(is_hinge), above * length, above)
        values = xp.where(xp.asarray(column >= 0), values * above, values)
    return values


def slopes(xp: Any, z: Any, feature_map: FeatureMap, outer: Any) -> Any:
    """The derivative of outer . phi in each angle or form z (n, m), for coefficients outer (parts, m): (n, m)."""
    if feature_map.activation == "arc-cosine":
        return xp.asarray(ramp(xp, z, feature_map.order - 1), dtype=z.dtype) * (feature_map.order * outer[0])
    down = outer[0] * xp.sin(z)
    return -down if len(outer) == 1 else outer[1] * xp.cos(z) - down


def angles(xp: Any, rows: Any, feature_map: FeatureMap, dtype: Any) -> Any:
    """W x + phases of scaled rows, of shape (n, m)."""
    z = projected(xp, rows, feature_map.projection, dtype)
    return z if feature_map.phases is None else z + xp.asarray(feature_map.phases, dtype=dtype)


def projected(xp: Any, rows: Any, projection: Projection, dtype: Any) -> Any:
    """W x of scaled rows, of shape (n, m)."""
    if isinstance(projection, ColumnProjection):
        return xp.take(rows, xp.asarray(projection.columns), axis=1)
    if isinstance(projection, StructuredProjection):
        return _structured(xp, rows, projection, dtype)
    return xp.matmul(rows, xp.asarray(projection.dense(), dtype=dtype).T)


def scaled(xp: Any, X: Any, scaler: Scaler | None, dtype: Any) -> Any:
    """Rows scaled in float64 and cast to `dtype`."""
    if scaler is None:
        return xp.asarray(X, dtype=dtype)
    X = xp.asarray(X, dtype=xp.float64)
    if scaler.kind == "quantile":
        return xp.asarray(_quantile_scores(xp, X, scaler), dtype=dtype)
    center, factor = linear_part(scaler)
    return xp.asarray((X - xp.asarray(center)) * xp.asarray(factor), dtype=dtype)


def _structured(xp: Any, rows: Any, projection: StructuredProjection, dtype: Any) -> Any:
    n, width, padded = rows.shape[0], projection.width, projection.padded
    rows = xp.concat([rows, xp.zeros((n, padded - width), dtype=dtype)], axis=1) if padded > width else rows
    outputs = []
    for signs in projection.signs:
        block = rows
        for diagonal in (2, 1, 0):
            block = _walsh_hadamard(xp, block * xp.asarray(signs[diagonal], dtype=dtype))
        outputs.append(block)
    chosen = xp.take(xp.concat(outputs, axis=1), xp.asarray(projection.numbers()), axis=1)
    return chosen * xp.asarray(projection.radii / padded**1.5, dtype=dtype)


def _walsh_hadamard(xp: Any, rows: Any) -> Any:
    n, length = rows.shape
    half = 1
    while half < length:
        pairs = xp.reshape(rows, (n, length // (2 * half), 2, half))
        even, odd = pairs[:, :, 0, :], pairs[:, :, 1, :]
        rows = xp.reshape(xp.stack([even + odd, even - odd], axis=2), (n, length))
        half *= 2
    return rows


def _quantile_scores(xp: Any, X: Any, scaler: Scaler) -> Any:
    """Each column through its empirical distribution to normal scores, columns in a loop."""
    if scaler.knots is None:
        raise ValueError("a 'quantile' scaler needs knots, the empirical quantiles of each column; it has none")
    scores = xp.asarray(normal_scores(len(scaler.knots)))
    columns = []
    for j in range(X.shape[1]):
        x = X[:, j]
        columns.append(x if scaler.passthrough[j] else _column_scores(xp, x, xp.asarray(scaler.knots[:, j]), scores))
    return xp.stack(columns, axis=1)


def _column_scores(xp: Any, x: Any, knots: Any, scores: Any) -> Any:
    last = knots.shape[0] - 1
    left = xp.clip(xp.searchsorted(knots, x, side="left"), 0, last)
    right = xp.clip(xp.searchsorted(knots, x, side="right") - 1, 0, last)
    below = xp.clip(left - 1, 0, last)
    gap = xp.take(knots, left) - xp.take(knots, below)
    share = (x - xp.take(knots, below)) / xp.where(gap > 0, gap, xp.ones_like(gap))
    low, high = xp.take(scores, below), xp.take(scores, left)
    between = low + xp.clip(share, 0.0, 1.0) * (high - low)
    tied = xp.take(knots, left) == x
    return xp.where(tied, 0.5 * (high + xp.take(scores, right)), between)
