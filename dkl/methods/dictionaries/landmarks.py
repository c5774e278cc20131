"""Kernels at rows of the sample as a dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.scaling import Scaler
from dkl.methods.rounds.candidates import greedy_points
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.protocols.arrays import Rows

# rows that are tried as landmarks for each that is proposed, so many at least, and the rows that judge them
_TRIED, _LEAST_TRIED, _JUDGES = 8, 200, 4_000


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
        """Of some of the rows those that together lower the loss most, one after the other."""
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
