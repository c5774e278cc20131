"""Cosine-sine pairs as a dictionary: frequencies at the peaks of the potential of the slopes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.methods.frequency_search.frequency_space import FourierSpace
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.protocols.arrays import Rows


@dataclass(frozen=True, eq=False)
class WaveDictionary:
    """Cosine-sine pairs, found by ascents of the potential of the slopes as in the rounds of one family.

    Parameters
    ----------
    space : FourierSpace
    free : ndarray of shape (d,), bool, or None
        The columns that frequencies may look at; None for all.
    """

    space: FourierSpace
    free: np.ndarray | None = None

    @property
    def columns_a_point(self) -> int:
        """A pair."""
        return 2

    @property
    def scaler(self) -> Scaler | None:
        return self.space.origin.scaler

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The pairs of these frequencies."""
        return self.space.feature_map(points.astype(np.float32))

    def unit(self, X: Rows) -> float:
        """Cosines and sines are as long as steps."""
        return 1.0

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """Peaks that differ from each other."""
        S = rows.s / max(float(np.abs(rows.s).sum()), np.finfo(np.float64).tiny)
        if self.free is None:
            points, _ = self.space.search(rows.X, S, count, seed)
            return points.astype(np.float64)
        # a column that is nothing but 0 moves no frequency, and an entry there is one of the start
        X = rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X
        points, _ = self.space.search(X.astype(np.float32) * self.free, S, count, seed)
        return points.astype(np.float64) * self.free
