"""FeatureMap: the small frozen artefact that every learner produces and everything after it consumes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dkl.errors import refuse_non_finite
from dkl.features.harmonic_projection import HarmonicProjection
from dkl.features.landmark_projection import Similarities
from dkl.features.projections import Projection
from dkl.features.scaling import Scaler, same_scaling

Activation = Literal["cos-sin", "cos", "arc-cosine", "identity", "harmonics", "landmarks", "steps", "nystrom"]


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """x -> amplitudes * activation(W scaled(x) + phases).

    Parameters
    ----------
    activation : {"cos-sin", "cos", "arc-cosine", "identity", "harmonics", "landmarks", "steps", "nystrom"}
        "cos-sin": two columns a frequency, all cosines first, then all sines. "cos": cos(w.x + b).
        "arc-cosine": H(w.x) (w.x)^order. "identity": w.x itself. "harmonics": a spherical harmonic, one column each.
        "landmarks": a similarity to a landmark, one column each. "steps": a product of thresholds of columns, one each.
        "nystrom": similarities to landmarks by a kernel in closed form, whitened.
    projection : Projection
        m frequencies on d columns; for "harmonics" a HarmonicProjection, which holds multi-indices, for
        "landmarks" a LandmarkProjection or SharedLandmarkProjection, which hold those of each similarity; for "steps" a
        StepProjection, which holds columns and thresholds.
    amplitudes : ndarray of shape (m,), float64
        The factor of each frequency (of both columns of a pair).
    phases : ndarray of shape (m,), float64, or None
        For "cos" alone.
    order : int
        For "arc-cosine" alone: 0, 1 or 2.
    scaler : Scaler or None
        Applied to raw rows first.
    """

    activation: Activation
    projection: Projection
    amplitudes: np.ndarray
    phases: np.ndarray | None = None
    order: int = 0
    scaler: Scaler | None = None

    def __post_init__(self) -> None:
        # Weights that overflowed while they were learned are refused here, where every learner comes by, with the
        # remedy.
        refuse_non_finite(
            self.amplitudes,
            "the amplitude of feature",
            "the values of the rows or targets are so large that what was learned from them overflows. Scale the "
            "columns (scaling='standard'), and divide targets by a large number",
        )

    @property
    def n_frequencies(self) -> int:
        return self.projection.n_frequencies

    @property
    def is_fourier(self) -> bool:
        """Whether features are cosines, or pairs of cosines and sines."""
        return self.activation in ("cos-sin", "cos")

    @property
    def n_angles(self) -> int:
        """Linear forms of a row that are computed: a similarity takes several."""
        if isinstance(self.projection, Similarities):
            return self.projection.frequencies.n_frequencies
        return self.n_frequencies

    @property
    def n_columns(self) -> int:
        """d: columns of a row that goes in."""
        return self.projection.n_columns

    @property
    def columns_a_frequency(self) -> int:
        return 2 if self.activation == "cos-sin" else 1

    @property
    def n_features(self) -> int:
        """Columns of a row that comes out."""
        return self.columns_a_frequency * self.n_frequencies

    @property
    def groups(self) -> np.ndarray:
        """The number of each frequency's block, int64 of shape (m,): frequencies of one block are chosen together."""
        if isinstance(self.projection, HarmonicProjection):
            return self.projection.groups
        return np.arange(self.n_frequencies)

    def take(self, index: np.ndarray, amplitudes: np.ndarray | None = None) -> FeatureMap:
        """The chosen frequencies alone, in the order of `index`, with `amplitudes` (one an index) or their own."""
        return replace(
            self,
            projection=self.projection.take(index),
            amplitudes=self.amplitudes[index] if amplitudes is None else np.asarray(amplitudes, dtype=np.float64),
            phases=None if self.phases is None else self.phases[index],
        )

    def joined(self, other: FeatureMap) -> FeatureMap:
        """The frequencies of this map, then those of `other`, behind the same scaler.

        Raises
        ------
        ValueError
            If the two maps are not of one kind: activation, columns, phases and scaler must agree.
        """
        if not self._joins(other):
            raise ValueError(
                f"a {self.activation!r} map of {self.n_columns} columns cannot be joined with a {other.activation!r} "
                f"map of {other.n_columns}; both need the same activation, order, columns and scaler, and phases in "
                "both or in neither"
            )
        phases = None
        if self.phases is not None and other.phases is not None:
            phases = np.concatenate([self.phases, other.phases])
        # Structured frequencies are formed when they are joined with others; the amplitudes stay with their
        # frequencies.
        amplitudes = np.concatenate([self.amplitudes, other.amplitudes])
        return replace(self, projection=self.projection.joined(other.projection), amplitudes=amplitudes, phases=phases)

    def _joins(self, other: FeatureMap) -> bool:
        # The order of an arc-cosine map alone means something; of other maps it is ignored.
        kinds = [
            (part.activation, part.order if part.activation == "arc-cosine" else 0, part.n_columns, part.phases is None)
            for part in (self, other)
        ]
        return kinds[0] == kinds[1] and same_scaling(self.scaler, other.scaler)
