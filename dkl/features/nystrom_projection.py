"""NystromProjection: landmarks and what whitens their similarities, stored where other maps store frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.projections import Projection


def in_metric(rows: np.ndarray, metric: np.ndarray | None) -> np.ndarray:
    """Rows (n, d) times the root of a metric, (d,) or (d, d); as they are for None."""
    if metric is None:
        return rows
    return rows * metric if metric.ndim == 1 else rows @ metric


@dataclass(frozen=True, eq=False)
class NystromProjection:
    """m features k(x, Z) A of a row x, with A = L^-T and L L^T the kernel matrix of the landmarks Z.

    The inner product of two rows' features is then k(x, Z) k(Z, Z)^-1 k(Z, y): the kernel k itself where x or y is a
    landmark, and its best approximation from these columns elsewhere (Williams & Seeger 2001).

    Parameters
    ----------
    kernel : Family
        Its `kernel` has a bandwidth.
    landmarks : ndarray of shape (l, d), float64
        Z, scaled as rows are, and in the metric: of shape (l, d') for one of shape (d, d').
    whitening : ndarray of shape (l, m), float64
        A, or some of its columns.
    metric : ndarray of shape (d,), (d, d) or (d, d'), float64, or None
        Scaled rows are multiplied by it before the kernel sees them: M^(1/2) of a learned metric M, or what makes one
        rank of d columns for the values of a category.
    """

    kernel: Any
    landmarks: np.ndarray
    whitening: np.ndarray
    metric: np.ndarray | None = None

    def moved(self, rows: np.ndarray) -> np.ndarray:
        """Scaled rows (n, d) in the metric."""
        return in_metric(rows, self.metric)

    @property
    def n_frequencies(self) -> int:
        """Columns of a mapped row."""
        return self.whitening.shape[1]

    @property
    def n_columns(self) -> int:
        return self.landmarks.shape[1] if self.metric is None else self.metric.shape[0]

    @property
    def nbytes(self) -> int:
        metric = 0 if self.metric is None else self.metric.nbytes
        return self.landmarks.nbytes + self.whitening.nbytes + metric

    def dense(self) -> np.ndarray:
        """The landmarks, of shape (l, d)."""
        return self.landmarks

    def take(self, index: np.ndarray) -> NystromProjection:
        return NystromProjection(self.kernel, self.landmarks, self.whitening[:, index], self.metric)

    def joined(self, other: Projection) -> NystromProjection:
        """Not possible: whitened columns belong to their landmarks.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError("whitened similarities to landmarks cannot be joined; fit NystromFeatures with more landmarks")
