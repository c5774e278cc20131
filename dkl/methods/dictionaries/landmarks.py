"""Kernels at rows of the sample as a dictionary."""

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
from dkl.methods.rounds.candidates import greedy_points
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.protocols.arrays import Rows

# Rows that are tried as landmarks for each landmark that is proposed, their least number, and the rows that their
# scores are summed over.
_TRIED, _LEAST_TRIED, _JUDGES = 8, 200, 4_000


@dataclass(frozen=True)
class Landmarks(ListedDictionary):
    """Kernels k(., z) at landmarks z, which are rows of the fit, as a dictionary among others.

    Parameters
    ----------
    kernel : Family
        With a kernel in closed form.
    sigma_factor : float
        Multiplies a bandwidth that is "median": kernels at single landmarks want to be narrower than waves.

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
        """The median distance that the kernel's bandwidth is a share of."""
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
    """Kernels at rows of the sample.

    Parameters
    ----------
    kernel : Family
        With its bandwidth.
    scaler : Scaler or None
    metric : ndarray of shape (d,) or (d, d), float64, or None
        Scaled rows are multiplied by it before kernels see them: the root of a learned metric, 0 in columns that
        kernels must not look at.
    """

    kernel: Any
    scaler: Scaler | None
    metric: np.ndarray | None = None

    @property
    def columns_a_point(self) -> int:
        """A similarity."""
        return 1

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The similarities themselves: whitened are only those that stay."""
        projection = NystromProjection(self.kernel, points, np.eye(len(points)), self.metric)
        return FeatureMap("nystrom", projection, np.ones(len(points)), scaler=self.scaler)

    def unit(self, X: Rows) -> float:
        """Narrow kernels are small almost everywhere, and would hardly be taken against a ridge."""
        rows = self._seen(X[:_JUDGES])
        return _unit(self.kernel.kernel(rows, rows[:_LEAST_TRIED]))

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """Rows, among a random sample of them, whose kernels together lower the loss most, chosen one by one."""
        X = self._seen(rows.X)
        generator, n_tried = np.random.default_rng([seed, 0x1A4D]), max(_LEAST_TRIED, _TRIED * count)
        tried = np.unique(X[generator.choice(len(X), min(len(X), n_tried), replace=False)], axis=0)
        judges = slice(0, _JUDGES)
        Q = self.kernel.kernel(X[judges], tried)
        Q *= _unit(Q)
        weighted = Q * rows.h[judges, None]
        # what the constant explains already is no merit of a landmark
        total = max(float(rows.h[judges].sum()), np.finfo(np.float64).tiny)
        mean = weighted.sum(axis=0)
        system = weighted.T @ Q - np.outer(mean, mean) / total
        slopes = Q.T @ rows.s[judges] - np.outer(mean, rows.s[judges].sum(axis=0)) / total
        return tried[greedy_points(system, slopes, [np.arange(len(tried))[:, None]], count)]

    def _seen(self, X: Rows) -> np.ndarray:
        """Rows written out in float64, in the metric."""
        dense = X.toarray() if hasattr(X, "toarray") else X
        return in_metric(np.asarray(dense, dtype=np.float64), self.metric)


def _unit(Q: np.ndarray) -> float:
    """A half over the mean deviation of columns (n, m): steps of half of the rows deviate by a half."""
    deviation = float(np.sqrt(np.mean(np.var(Q, axis=0))))
    return 0.5 / deviation if deviation > 0.0 else 1.0
