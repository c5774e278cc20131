"""Similarities to landmarks as weighted sums of cosines, in the role of a projection; frequencies are shared or not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag

from dkl.features.projections import ArrayProjection, Projection


@dataclass(frozen=True, eq=False)
class LandmarkProjection(ArrayProjection):
    """n_L similarities: l is x -> sum_j weights[j] cos(w_j.x + phases[j]) over j = starts[l] .. starts[l + 1] - 1.

    With phases -w_j.x_l this is a function of x - x_l alone (Letarte, Morvant & Germain 2019, equation (13)). A
    similarity counts as one frequency of a feature map.

    Parameters
    ----------
    frequencies : Projection
        The m frequencies of all landmarks on d columns, one landmark after the other.
    phases : ndarray of shape (m,), float64
        Radians.
    weights : ndarray of shape (m,), float64
    starts : ndarray of shape (n_L + 1,), int64
        The place of each landmark's first frequency, and m; every landmark has at least one frequency.
    """

    frequencies: Projection
    phases: np.ndarray
    weights: np.ndarray
    starts: np.ndarray

    @property
    def n_frequencies(self) -> int:
        """Similarities."""
        return len(self.starts) - 1

    @property
    def n_columns(self) -> int:
        return self.frequencies.n_columns

    @cached_property
    def owners(self) -> np.ndarray:
        """The number of the similarity of each frequency, int64 of shape (m,)."""
        return np.repeat(np.arange(self.n_frequencies), np.diff(self.starts))

    def dense(self) -> np.ndarray:
        """The frequencies of all landmarks, one below the other, of shape (m, d)."""
        return self.frequencies.dense()

    def on_waves(self, coef: np.ndarray) -> np.ndarray:
        """Coefficients `coef` on similarities, (..., n_L), as coefficients on their weighted cosines, (..., m)."""
        return coef[..., self.owners]

    def take(self, index: np.ndarray) -> LandmarkProjection:
        lengths = np.diff(self.starts)[index]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # The places of each chosen landmark's frequencies: its first one, and on from there.
        own = np.repeat(self.starts[:-1][index] - starts[:-1], lengths) + np.arange(starts[-1])
        return LandmarkProjection(self.frequencies.take(own), self.phases[own], self.weights[own], starts)

    def joined(self, other: Projection) -> LandmarkProjection:
        """These similarities, then those of `other`.

        Raises
        ------
        ValueError
            If `other` holds no similarities.
        """
        if not isinstance(other, LandmarkProjection):
            raise ValueError("similarities to landmarks are joined with similarities to landmarks only")
        return LandmarkProjection(
            self.frequencies.joined(other.frequencies),
            np.concatenate([self.phases, other.phases]),
            np.concatenate([self.weights, other.weights]),
            np.concatenate([self.starts, self.starts[-1] + other.starts[1:]]),
        )


@dataclass(frozen=True, eq=False)
class SharedLandmarkProjection(ArrayProjection):
    """n_L similarities of the same frequencies: x -> mixing (cos(w_1.x), ..., cos(w_m.x), sin(w_1.x), ..., sin(w_m.x)).

    With weights q of landmark x_l the row of `mixing` is (q_j cos(w_j.x_l), ..., q_j sin(w_j.x_l)), by cos(a - b) =
    cos a cos b + sin a sin b. A row x needs m cosines and m sines, however many landmarks there are.

    Parameters
    ----------
    frequencies : Projection
        The m frequencies on d columns.
    mixing : ndarray of shape (n_L, 2 m)
    """

    frequencies: Projection
    mixing: np.ndarray

    @property
    def n_frequencies(self) -> int:
        """Similarities."""
        return len(self.mixing)

    @property
    def n_columns(self) -> int:
        return self.frequencies.n_columns

    def dense(self) -> np.ndarray:
        """The frequencies, of shape (m, d)."""
        return self.frequencies.dense()

    def on_waves(self, coef: np.ndarray) -> np.ndarray:
        """Coefficients `coef` on similarities, (..., n_L), as coefficients on cosines and sines, (..., 2 m)."""
        return coef @ self.mixing

    def take(self, index: np.ndarray) -> SharedLandmarkProjection:
        return SharedLandmarkProjection(self.frequencies, self.mixing[index])

    def joined(self, other: Projection) -> SharedLandmarkProjection:
        """These similarities, then those of `other`; both keep their own frequencies.

        Raises
        ------
        ValueError
            If `other` holds no similarities of shared frequencies.
        """
        if not isinstance(other, SharedLandmarkProjection):
            raise ValueError("similarities of shared frequencies are joined with others of their kind only")
        parts = [np.split(similarities.mixing, 2, axis=1) for similarities in (self, other)]
        # The mixing matrix is block diagonal, separately for cosines and for sines, which come after all cosines.
        mixing = np.concatenate([block_diag(*halves) for halves in zip(*parts, strict=True)], axis=1)
        return SharedLandmarkProjection(self.frequencies.joined(other.frequencies), mixing.astype(self.mixing.dtype))


Similarities = LandmarkProjection | SharedLandmarkProjection
