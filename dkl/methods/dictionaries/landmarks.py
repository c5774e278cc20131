"""Kernels at sampled rows (landmarks), as a dictionary for rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.dictionaries import ListedDictionary
from dkl.features.families import Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.scaling import Scaler
from dkl.methods.rounds.dictionary import SampleSlopes, greedy_points
from dkl.protocols.arrays import Rows, dense_rows

# Rows tried as landmarks for each one that is proposed, the fewest tried, and the rows over which their scores are
# summed.
_TRIED, _LEAST_TRIED, _JUDGES = 8, 200, 4_000


@dataclass(frozen=True)
class Landmarks(ListedDictionary):
    """Kernels k(., z) at landmarks z, which are rows of the fit, as one dictionary among others.

    Parameters
    ----------
    kernel : Family
        A family whose kernel has a closed form.
    sigma_factor : float
        Factor of a bandwidth that is "median": kernels at single landmarks work best narrower than waves.

    Examples
    --------
    >>> import dkl
    >>> learner = dkl.MarginFeatures(family=[dkl.Steps(), dkl.Landmarks(dkl.Matern(0.5))])
    """

    kernel: Any = field(default_factory=lambda: Matern(0.5))
    sigma_factor: float = 0.5

    is_double: ClassVar[bool] = True

    @property
    def needs_bandwidth(self) -> bool:
        return bool(self.kernel.needs_bandwidth)

    @property
    def sigma(self) -> float:
        """The median distance of rows; `sigma_factor` times it is the kernel's bandwidth."""
        return float(self.kernel.sigma) / self.sigma_factor

    def with_bandwidth(self, sigma: float) -> Landmarks:
        return replace(self, kernel=self.kernel.with_bandwidth(sigma * self.sigma_factor))

    def draw(self, n_features: int, n_columns: int, dtype: DTypeLike) -> FeatureMap:
        landmarks, whitening = np.zeros((n_features, n_columns)), np.zeros((n_features, n_features))
        return FeatureMap("nystrom", NystromProjection(self.kernel, landmarks, whitening), np.ones(n_features))

    def searched(self, scaler: Scaler | None, metric: np.ndarray | None) -> LandmarkDictionary:
        return LandmarkDictionary(self.kernel, scaler, metric)

    def validate(self) -> None:
        if not hasattr(self.kernel, "kernel"):
            raise ValueError(f"Landmarks: kernel is {self.kernel!r}; it must be a family such as Matern(0.5)")
        if not (isinstance(self.sigma_factor, float | int) and 0.0 < self.sigma_factor < np.inf):
            raise ValueError(f"Landmarks: sigma_factor is {self.sigma_factor!r}; it must be a positive number")
        self.kernel.validate()


@dataclass(frozen=True, eq=False)
class LandmarkDictionary:
    """The dictionary of kernels at sampled rows.

    Parameters
    ----------
    kernel : Family
        With its bandwidth.
    scaler : Scaler or None
    metric : ndarray of shape (d,) or (d, d), float64, or None
        Scaled rows are multiplied by it before kernels are computed: the root of a learned metric, 0 in columns to
        ignore.
    """

    kernel: Any
    scaler: Scaler | None
    metric: np.ndarray | None = None

    # the kernel at the landmark
    columns_a_point: ClassVar[int] = 1

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The kernels without whitening, which only chosen landmarks get."""
        projection = NystromProjection(self.kernel, points, np.eye(len(points)), self.metric)
        return FeatureMap("nystrom", projection, np.ones(len(points)), scaler=self.scaler)

    def unit(self, X: Rows) -> float:
        """The amplitude of the columns; unscaled, narrow kernels would have small scores because of the ridge."""
        rows = self._in_metric(X[:_JUDGES])
        return _unit(self.kernel.kernel(rows, rows[:_LEAST_TRIED]))

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """Landmarks, among randomly sampled rows, whose kernels lower the loss most, chosen greedily."""
        X = self._in_metric(rows.X)
        generator, n_tried = np.random.default_rng([seed, 0x1A4D]), max(_LEAST_TRIED, _TRIED * count)
        tried = np.unique(X[generator.choice(len(X), min(len(X), n_tried), replace=False)], axis=0)
        judges = slice(0, _JUDGES)
        Q = self.kernel.kernel(X[judges], tried)
        Q *= _unit(Q)
        weighted = Q * rows.h[judges, None]
        # the part that the constant explains is subtracted from each column
        total = max(float(rows.h[judges].sum()), np.finfo(np.float64).tiny)
        mean = weighted.sum(axis=0)
        system = weighted.T @ Q - np.outer(mean, mean) / total
        slopes = Q.T @ rows.s[judges] - np.outer(mean, rows.s[judges].sum(axis=0)) / total
        return tried[greedy_points(system, slopes, [np.arange(len(tried))[:, None]], count)]

    def _in_metric(self, X: Rows) -> np.ndarray:
        """Dense rows in float64, multiplied by the metric."""
        return in_metric(np.asarray(dense_rows(X), dtype=np.float64), self.metric)


def _unit(Q: np.ndarray) -> float:
    """0.5 over the root mean square deviation of the columns (n, m); a step between two halves of the rows has 0.5."""
    deviation = float(np.sqrt(np.mean(np.var(Q, axis=0))))
    return 0.5 / deviation if deviation > 0.0 else 1.0
