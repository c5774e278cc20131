"""NystromProjection: landmarks and the matrix that whitens similarities to them, in the role of a projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.projections import ArrayProjection, Projection


def in_metric(rows: np.ndarray, metric: np.ndarray | None) -> np.ndarray:
    """Rows (n, d) times the root of a metric, (d,) or (d, d); for None the rows themselves."""
    if metric is None:
        return rows
    return rows * metric if metric.ndim == 1 else rows @ metric


@dataclass(frozen=True, eq=False)
class NystromProjection(ArrayProjection):
    """m features k(x, Z) A of a row x, with A = L^-T and L L^T the kernel matrix of the landmarks Z.

    The inner product of two rows' features is then k(x, Z) k(Z, Z)^-1 k(Z, y): the kernel k itself where x or y is a
    landmark, and its best approximation from these columns elsewhere (Williams & Seeger 2001).

    Parameters
    ----------
    kernel : Family
        A family with a closed-form kernel and a bandwidth.
    landmarks : ndarray of shape (l, d), float64
        Z, scaled like the rows and multiplied by the metric: (l, d') for a metric of shape (d, d').
    whitening : ndarray of shape (l, m), float64
        A, or some of its columns.
    metric : ndarray of shape (d,), (d, d) or (d, d'), float64, or None
        Scaled rows are multiplied by it before the kernel: M^(1/2) of a learned metric M, or a matrix that replaces the
        columns of a category's values by one number.
    """

    kernel: Any
    landmarks: np.ndarray
    whitening: np.ndarray
    metric: np.ndarray | None = None

    def moved(self, rows: np.ndarray) -> np.ndarray:
        """Scaled rows (n, d) times the metric."""
        return in_metric(rows, self.metric)

    @property
    def n_frequencies(self) -> int:
        """The number of columns of a mapped row."""
        return self.whitening.shape[1]

    @property
    def n_columns(self) -> int:
        return self.landmarks.shape[1] if self.metric is None else self.metric.shape[0]

    def dense(self) -> np.ndarray:
        """The landmarks, of shape (l, d)."""
        return self.landmarks

    def take(self, index: np.ndarray) -> NystromProjection:
        return NystromProjection(self.kernel, self.landmarks, self.whitening[:, index], self.metric)

    def joined(self, other: Projection) -> NystromProjection:
        """Not possible, since the whitening depends on all landmarks together.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError("whitened similarities to landmarks cannot be joined; fit NystromFeatures with more landmarks")
