"""The statistics of rows that stochastic steps need in advance, from one pass that maps only a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.moments import moments_of, refuse_lost_squares
from dkl.kernels.threads import one_blas_thread
from dkl.linear.target_statistics import TargetScale, deviations
from dkl.protocols.arrays import as_columns
from dkl.protocols.block import Block

# Rows sampled for the mean squared length of a mapped row, from which the first step length follows.
SAMPLE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """Mean, standard deviation and unevenness of the targets, from sums.

    Attributes
    ----------
    n_rows, total_weight : float
        Their number and total weight, class weights included.
    target_center, target_scale : ndarray of shape (t,)
        Weighted mean and standard deviation of regression targets; the scale of a constant target is 1.
    unevenness : float
        The share of the target's variance that lies between blocks: near 0 for shuffled rows, 1 if every block has one
        class.
    """

    n_rows: float
    total_weight: float
    target_center: np.ndarray
    target_scale: np.ndarray
    unevenness: float = 0.0

    @property
    def units(self) -> TargetScale:
        """The units of standardised targets."""
        return TargetScale(self.target_center, self.target_scale)


@dataclass(frozen=True, eq=False)
class Summary(TargetMoments):
    """The moments of the targets, and the centre and lengths of sampled mapped rows, which determine step lengths.

    Attributes
    ----------
    center : ndarray of shape (m,), float64
        The weighted mean feature vector of the sample.
    square_length : float
        The mean of ``weight^2 * squared length`` of its centred rows: the scale of the noise of stochastic steps.
    largest : float
        The largest ``weight * (squared length + 1)`` in the sample, for a mean weight of 1. With a log link it is
        multiplied by the target over its mean where that exceeds 1, a bound of the curvature of its loss.
    """

    center: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square_length: float = 1.0
    largest: float = 2.0


def summarise(
    results: tuple[Any, ...],
    feature_map: FeatureMap,
    *,
    class_weight: np.ndarray | None,
    dtype: str,
    log_link: bool = False,
) -> Summary:
    """The summary from the sums of `target_record` and a sample of rows; `log_link` is for targets with mean exp(f).

    Raises
    ------
    ValueError
        If all rows are held out.
    """
    sums, sample = results
    targets = summarise_targets(sums, log_link=log_link)
    mean_weight = targets.total_weight / targets.n_rows
    curvatures = np.ones(sample.n_rows)
    if log_link:
        rates = as_columns(np.asarray(sample.y)) / targets.target_center
        curvatures = np.maximum(1.0, rates.max(axis=1, initial=0.0))
    center, square_length, largest = _lengths(sample, feature_map, class_weight, (mean_weight, curvatures), dtype)
    return Summary(**vars(targets), center=center, square_length=square_length, largest=largest)


def summarise_targets(sums: Mapping[str, np.ndarray], *, log_link: bool = False) -> TargetMoments:
    """The moments of the targets from the sums of `target_record`.

    Raises
    ------
    ValueError
        If all rows are held out, or if targets that are to be standardised vary too little for their squares to show
        it.
    """
    weight, rows = float(sums["weight"]), float(sums["rows"])
    if weight == 0.0:
        raise ValueError("no row is left to fit on: all are held out; use a smaller validation_fraction, or more rows")
    moments = moments_of(sums)
    if not log_link:
        refuse_lost_squares(moments, "y")
    scale = deviations(moments.mean, moments.variance)
    between = np.maximum(sums["between"] / weight - moments.mean**2, 0.0)
    # The share of the variance between blocks. For B blocks of n shuffled rows it is (B - 1) / n by chance, which is
    # subtracted: otherwise many small blocks would look sorted.
    variance, chance = moments.variance.sum(), (float(sums["blocks"]) - 1.0) / rows
    unevenness = 0.0
    if variance > 0.0 and chance < 1.0:
        unevenness = float(max(0.0, (between.sum() / variance - chance) / (1.0 - chance)))
    return TargetMoments(rows, weight, moments.mean, scale, unevenness)


@one_blas_thread()
def _lengths(
    sample: Block,
    feature_map: FeatureMap,
    class_weight: np.ndarray | None,
    scales: tuple[float, np.ndarray],
    dtype: str,
) -> tuple[np.ndarray, float, float]:
    """Mean feature, mean ``weight^2 * squared length``, largest ``weight * (squared length + 1)`` of a sample.

    `scales` contains the mean weight, and a bound of the curvature of each row's loss.
    """
    mean_weight, curvatures = scales
    phi = map_rows(sample.X, feature_map, dtype).astype(np.float64)
    factors = np.ones(sample.n_rows) if class_weight is None else class_weight[np.asarray(sample.y)]
    weights = sample.weights * factors / mean_weight
    # Rows enter the sample with a probability that grows with their weight, so weights must not count twice; but where
    # the sample contains all rows, weights count.
    counted = weights if sample.n_rows < SAMPLE_ROWS else factors
    counted = counted / counted.sum() if counted.any() else np.full(sample.n_rows, 1.0 / sample.n_rows)
    center = counted @ phi
    square_lengths = np.sum((phi - center) ** 2, axis=1)
    return (
        center,
        float(counted @ (weights * square_lengths)),
        float(np.max(weights * curvatures * (square_lengths + 1.0))),
    )
