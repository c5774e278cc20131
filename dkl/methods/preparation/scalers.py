"""Scalers from moments or a sample of the columns, and the test for columns with heavy tails."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dkl.features.scaling import Scaler, ScalingKind
from dkl.kernels.moments import Moments, refuse_lost_squares
from dkl.kernels.scale import negative_count, normal_scores, write_out
from dkl.protocols.arrays import Rows

# The knots of a column's empirical distribution.
N_KNOTS = 256
# A column has heavy tails above this kurtosis, judged on at least _ENOUGH_VALUES values in _ENOUGH_ROWS sampled rows.
HEAVY_KURTOSIS = 15.0
_ENOUGH_VALUES = 100
_ENOUGH_ROWS = 2_000


def scaler_from_moments(
    kind: ScalingKind, moments: Moments, passthrough: np.ndarray, *, is_sparse: bool = False
) -> Scaler:
    """The "standard", "minmax", "unit" or "counts" scaler of rows with these moments.

    Sparse rows are not centred, so that they stay sparse: "standard" divides by the deviation and "minmax" by the
    largest absolute value. A constant column has a scale of 1.

    Parameters
    ----------
    kind : {"standard", "minmax", "unit", "counts"}
    moments : Moments
        Moments of d columns.
    passthrough : ndarray of shape (d,), bool
        Columns that keep their values.
    is_sparse : bool

    Returns
    -------
    Scaler

    Raises
    ------
    ValueError
        If the squares behind a scale overflow or underflow in float64, or a count is negative.
    """
    width = len(moments.mean)
    if kind == "counts":
        negative = np.flatnonzero((moments.low < 0.0) & ~passthrough)
        if len(negative):
            raise negative_count(int(negative[0]), moments.low[negative[0]])
        return Scaler(kind, np.zeros(width), np.ones(width), passthrough)
    if kind != "minmax":
        refuse_lost_squares(moments, "column", ~passthrough)
    if kind == "unit":
        # the largest norm, so that all rows lie in the unit ball, as in the paper on tuned features
        norm = moments.norm if moments.norm > 0.0 else 1.0
        return Scaler(kind, np.zeros(width), np.full(width, norm), passthrough)
    if kind == "standard":
        center, scale = moments.mean, np.sqrt(moments.variance)
    else:
        center, scale = moments.low, moments.high - moments.low
    if is_sparse:
        center = np.zeros(width)
        scale = scale if kind == "standard" else np.maximum(np.abs(moments.low), np.abs(moments.high))
    # equal extremes identify a constant column exactly, whose computed deviation may be a rounding error
    keeps_scale = passthrough | (moments.low == moments.high) | (scale == 0.0)
    return Scaler(kind, np.where(passthrough, 0.0, center), np.where(keeps_scale, 1.0, scale), passthrough)


def quantile_scaler(
    sample: Rows, passthrough: np.ndarray, weights: np.ndarray | None = None, learned: np.ndarray | None = None
) -> Scaler:
    """The scaler that maps each column by its empirical distribution to a standard normal, clipped at +-3.

    Columns that a fit learned from targets are standardised and clipped at +-3: rows of one category have a mean for
    each fold there, all nearly equal, and a step of their distribution would be stretched over a large part of the
    range, within which new rows, whose mean is of all folds, would have any place.

    Parameters
    ----------
    sample : ndarray or csr_array of shape (m, d)
    passthrough : ndarray of shape (d,), bool
        Columns that keep their values.
    weights : ndarray of shape (m,) or None
        Frequency weights of the sampled rows.
    learned : ndarray of shape (d,), bool, or None
        Columns that a fit learned from targets; None is none.

    Returns
    -------
    Scaler
        With 256 knots for each column.

    Raises
    ------
    ValueError
        If the sample is sparse and too wide to be made dense.
    """
    if sparse.issparse(sample):
        sample = write_out(sample, "scaling by quantiles")
    width = sample.shape[1]
    # knots at equal steps of probability, between which the distribution is interpolated linearly
    levels = np.linspace(0.0, 1.0, N_KNOTS)
    if weights is None:
        knots = np.quantile(sample, levels, axis=0)
    else:
        # a row of weight w counts as w equal rows, exactly so with the inverted distribution function
        knots = np.quantile(sample, levels, axis=0, weights=weights, method="inverted_cdf")
    if learned is not None and learned.any():
        own = np.asarray(sample, dtype=np.float64)[:, learned]
        center = np.average(own, axis=0, weights=weights)
        scale = np.sqrt(np.average(np.square(own - center), axis=0, weights=weights))
        # equal extremes identify a constant column exactly, whose computed deviation may be a rounding error
        scale[np.ptp(own, axis=0) == 0.0] = 1.0
        # the knots of a normal distribution, between which interpolation is linear
        knots[:, learned] = center + scale * normal_scores(N_KNOTS)[:, None]
    return Scaler(
        kind="quantile",
        center=np.zeros(width),
        scale=np.ones(width),
        passthrough=passthrough,
        knots=np.ascontiguousarray(knots, dtype=np.float64),
    )


def heavy_tailed_columns(sample: Rows, passthrough: np.ndarray) -> np.ndarray:
    """The columns of a sample whose values other than their median have a kurtosis above 15 (a normal has 3).

    Values equal to the median are excluded, so that a column that is mostly zero is judged by its other values. Columns
    with fewer than 100 other values in the first 2,000 sampled rows are never reported.

    Parameters
    ----------
    sample : ndarray or csr_array of shape (m, d)
    passthrough : ndarray of shape (d,), bool
        Columns that are not judged.

    Returns
    -------
    ndarray of int64, ascending
    """
    if sparse.issparse(sample):
        return np.empty(0, dtype=np.int64)
    values = np.asarray(sample[:_ENOUGH_ROWS], dtype=np.float64)
    others = values != np.median(values, axis=0)
    counts = np.maximum(others.sum(axis=0), 1)
    means = np.where(others, values, 0.0).sum(axis=0) / counts
    deviations = np.where(others, values - means, 0.0)
    largest = np.abs(deviations).max(axis=0)
    # the kurtosis does not depend on the unit, and fourth powers of large values would overflow
    deviations = np.divide(deviations, largest, out=np.zeros_like(deviations), where=largest > 0.0)
    variance = np.square(deviations).sum(axis=0) / counts
    fourth = np.square(np.square(deviations)).sum(axis=0) / counts
    heavy = (fourth > HEAVY_KURTOSIS * np.square(variance)) & (counts >= _ENOUGH_VALUES) & ~passthrough
    return np.flatnonzero(heavy)
