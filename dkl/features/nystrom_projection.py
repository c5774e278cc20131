"""NystromProjection: landmarks and what whitens their similarities, stored where other maps store frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.projections import Projection


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
        Z, scaled as rows are.
    whitening : ndarray of shape (l, m), float64
        A, or some of its columns.
    """

    kernel: Any
    landmarks: np.ndarray
    whitening: np.ndarray

    @property
    def n_frequencies(self) -> int:
        """Columns of a mapped row."""
        return self.whitening.shape[1]

    @property
    def n_columns(self) -> int:
        return self.landmarks.shape[1]

    @property
    def nbytes(self) -> int:
        return self.landmarks.nbytes + self.whitening.nbytes

    def dense(self) -> np.ndarray:
        """The landmarks, of shape (l, d)."""
        return self.landmarks

    def take(self, index: np.ndarray) -> NystromProjection:
        return NystromProjection(self.kernel, self.landmarks, self.whitening[:, index])

    def joined(self, other: Projection) -> NystromProjection:
        """Not possible: whitened columns belong to their landmarks.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError("whitened similarities to landmarks cannot be joined; fit NystromFeatures with more landmarks")
