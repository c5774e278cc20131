"""FeatureMap: the frozen description of learned features, which learners return and all later stages use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from scipy import sparse

from dkl.errors import refuse_non_finite
from dkl.features.activations import Activation, function_of
from dkl.features.harmonic_projection import HarmonicProjection
from dkl.features.landmark_projection import Similarities
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.projections import ColumnProjection, Projection, StructuredProjection, formed
from dkl.features.scaling import Scaler, same_scaling
from dkl.features.step_projection import StepProjection

ActivationName = Literal[
    "cos-sin", "cos", "arc-cosine", "identity", "harmonics", "landmarks", "steps", "nystrom", "combined"
]
Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """x -> amplitudes * activation(W scaled(x) + phases).

    Parameters
    ----------
    activation : str or Activation
        A function of one linear form w.x + b, by its name in `dkl.features.activations.ACTIVATIONS` or as an
        `Activation` of an extension; or the name of a projection whose features are no such function. "cos-sin": two
        columns a frequency, all cosines first, then all sines. "cos": cos(w.x + b). "arc-cosine": H(w.x) (w.x)^order.
        "identity": w.x itself. "harmonics": a spherical harmonic, one column each. "landmarks": a similarity to a
        landmark, one column each. "steps": a product of thresholds of columns, one each. "nystrom": similarities to
        landmarks by a kernel in closed form, whitened. "combined": the columns of several maps, one after the other,
        each with its own scaler.
    projection : Projection
        m frequencies on d columns; for "harmonics" a HarmonicProjection, which holds multi-indices, for
        "landmarks" a LandmarkProjection or SharedLandmarkProjection, which hold those of each similarity; for "steps" a
        StepProjection, which holds columns and thresholds; for "combined" a CombinedProjection, which holds maps.
    amplitudes : ndarray of shape (m,), float64
        The factor of each frequency (of both columns of a pair).
    phases : ndarray of shape (m,), float64, or None
        The number b that is added to each linear form; in radians for waves.
    order : int
        For "arc-cosine" alone: 0, 1 or 2.
    scaler : Scaler or None
        Applied to raw rows first.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> drawn = dkl.RandomFeatures(n_features=20, random_state=0).fit(X).feature_map_
    >>> drawn.activation, drawn.n_frequencies, drawn.n_features
    ('cos-sin', 10, 20)
    """

    activation: ActivationName | Activation
    projection: Projection
    amplitudes: np.ndarray
    phases: np.ndarray | None = None
    order: int = 0
    scaler: Scaler | None = None

    def __post_init__(self) -> None:
        # Weights that overflowed while they were learned are refused here, since every learner makes a FeatureMap.
        refuse_non_finite(
            self.amplitudes,
            "the amplitude of feature",
            "the values of the rows or targets are so large that what was learned from them overflows. Scale the "
            "columns (scaling='standard'), and divide targets by a large number",
        )

    def projection_as(self, kind: type[Kind]) -> Kind:
        """The projection, for arithmetic that one class of them has; TypeError for a map of another class."""
        if not isinstance(self.projection, kind):
            raise TypeError(
                f"a map of {self.activation!r} features is needed that holds a {kind.__name__}, and this one holds a "
                f"{type(self.projection).__name__}"
            )
        return self.projection

    @property
    def n_frequencies(self) -> int:
        return self.projection.n_frequencies

    @property
    def function(self) -> Activation | None:
        """The function of one linear form that features are; None where they are no such function."""
        return function_of(self.activation, self.order)

    @property
    def is_fourier(self) -> bool:
        """Whether features are cosines, or pairs of cosines and sines."""
        return self.function is not None and self.function.is_wave

    @property
    def has_similarities(self) -> bool:
        """Whether some features are whitened similarities to landmarks, which take longer to compute than to read."""
        if isinstance(self.projection, CombinedProjection):
            return any(part.has_similarities for part in self.projection.maps)
        return isinstance(self.projection, NystromProjection)

    @property
    def n_angles(self) -> int:
        """The number of linear forms w.x that are computed for a row; a similarity needs several of them."""
        if isinstance(self.projection, Similarities):
            return self.projection.frequencies.n_frequencies
        return self.n_frequencies

    @property
    def n_columns(self) -> int:
        """The number of columns d of an input row."""
        return self.projection.n_columns

    @property
    def columns_a_frequency(self) -> int:
        function = self.function
        return 1 if function is None else len(function.names)

    @property
    def n_features(self) -> int:
        """The number of columns of a mapped row."""
        return self.columns_a_frequency * self.n_frequencies

    def names(self, columns: Sequence[str], prefix: str) -> list[str]:
        """Different names for all features.

        Features of at most three columns are named after these, as in ``cos(age, bmi)``, and numbered where there are
        several, ``cos(age, bmi) 2``; steps are ``age > 42.5``. Every other feature is `prefix` with its position.

        Parameters
        ----------
        columns : sequence of str
            Names of the d columns of an input row.
        prefix : str
        """
        parts = self.projection.maps if isinstance(self.projection, CombinedProjection) else (self,)
        described = [name for part in parts for name in part._described(columns)]
        # each name with the last number given to it, since thousands of features may share the name of one column
        found: dict[str, int] = {}
        for place, name in enumerate(described):
            own = free = name or f"{prefix}{place}"
            number = found.get(own, 1)
            while free in found:
                number += 1
                free = f"{own} {number}"
            found[free] = 1
            found[own] = number
        return list(found)

    def _described(self, columns: Sequence[str]) -> list[str]:
        """The name of each feature by the columns that it depends on; empty where it depends on more than three."""
        if isinstance(self.projection, StepProjection):
            return self.projection.described(list(columns))
        if self.function is None or isinstance(self.projection, StructuredProjection):
            return [""] * self.n_features
        # a copy, since zero entries are removed in place
        matrix = sparse.csr_array(formed(self.projection), copy=True)
        matrix.eliminate_zeros()
        named = [
            ", ".join(columns[j] for j in np.sort(row)) if 0 < len(row) <= 3 else ""
            for row in np.split(matrix.indices, matrix.indptr[1:-1])
        ]
        one_alone = isinstance(self.projection, ColumnProjection)
        return [
            (name if one_alone and not function else f"{function or 'sum'}({name})") if name else ""
            for function in self.function.names
            for name in named
        ]

    def split(self, coef: np.ndarray) -> Iterator[tuple[FeatureMap, np.ndarray]]:
        """The parts of a combined map, each with its part of `coef`; any other map is its own only part.

        Parameters
        ----------
        coef : ndarray of shape (..., n_features)
            Coefficients on the features. Those of a combined map are returned times its amplitudes.
        """
        if not isinstance(self.projection, CombinedProjection):
            yield self, coef
            return
        for part, columns in self.projection.places():
            yield part, coef[..., columns] * self.amplitudes[columns]

    @property
    def groups(self) -> np.ndarray:
        """The number of each frequency's group, int64 of shape (m,): frequencies of one group are chosen together."""
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
        """A map of the frequencies of this map, followed by those of `other`.

        Raises
        ------
        ValueError
            If activation, order, columns, presence of phases or scaler of the two maps differ.
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
        # Structured frequencies become a matrix when they are joined with others.
        amplitudes = np.concatenate([self.amplitudes, other.amplitudes])
        return replace(self, projection=self.projection.joined(other.projection), amplitudes=amplitudes, phases=phases)

    def _joins(self, other: FeatureMap) -> bool:
        # Only arc-cosine maps have an order; for other maps it is ignored.
        descriptions = [
            (part.activation, part.order if part.activation == "arc-cosine" else 0, part.n_columns, part.phases is None)
            for part in (self, other)
        ]
        return descriptions[0] == descriptions[1] and same_scaling(self.scaler, other.scaler)


@dataclass(frozen=True, eq=False)
class CombinedProjection:
    """Several maps of the same rows, in the role of the projection of a combined map.

    Each feature of the maps counts as one frequency.

    Parameters
    ----------
    maps : tuple of FeatureMap
        None of them is a combined map; each applies its own scaler to the raw rows.
    """

    maps: tuple[FeatureMap, ...]

    def validate(self) -> None:
        """Raise ValueError if there is no map, or their rows have different numbers of columns."""
        widths = {part.n_columns for part in self.maps}
        if len(widths) != 1:
            raise ValueError(f"maps to be combined take rows of the same columns; these take {sorted(widths)}")

    @property
    def n_frequencies(self) -> int:
        """The number of columns of a mapped row."""
        return sum(part.n_features for part in self.maps)

    @property
    def n_columns(self) -> int:
        return self.maps[0].n_columns

    @property
    def nbytes(self) -> int:
        return sum(part.projection.nbytes + part.amplitudes.nbytes for part in self.maps)

    def places(self) -> Iterator[tuple[FeatureMap, slice]]:
        """Each map with the slice of its columns in a mapped row."""
        start = 0
        for part in self.maps:
            yield part, slice(start, start + part.n_features)
            start += part.n_features

    def dense(self) -> np.ndarray:
        """The matrices `dense()` of the maps (frequencies, landmarks, columns of steps), one below the other."""
        return np.concatenate([part.projection.dense() for part in self.maps])

    def take(self, index: np.ndarray) -> Projection:
        """Not possible, since the columns of a cosine-sine pair, and whitened columns, belong together.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError("single columns of combined features cannot be taken; take them of its maps")

    def joined(self, other: Projection) -> CombinedProjection:
        """These maps, then those of `other`.

        Raises
        ------
        ValueError
            If `other` holds no maps, or maps of rows of other columns.
        """
        if not isinstance(other, CombinedProjection) or other.n_columns != self.n_columns:
            raise ValueError("combined features are joined with combined features of the same columns only")
        return CombinedProjection((*self.maps, *other.maps))


def columns_of(frequencies: np.ndarray, n_frequencies: int, parts: int) -> np.ndarray:
    """The columns of some frequencies in a map of `n_frequencies`, (parts, m): all cosines come first, then all sines.

    Parameters
    ----------
    frequencies : ndarray of shape (m,), int64
    n_frequencies, parts : int
        The number of frequencies of the map, and the columns of each.
    """
    return n_frequencies * np.arange(parts)[:, None] + frequencies


def shares_of_lengths(coef: np.ndarray) -> np.ndarray:
    """The length of the coefficients of each of m frequencies, as a share of the sum of all lengths: (m,).

    Parameters
    ----------
    coef : ndarray of shape (K, columns of a frequency, m)
        Multiplied by the amplitudes, so that lengths do not depend on these.
    """
    lengths = np.sqrt(np.sum(coef**2, axis=(0, 1)))
    return np.asarray(lengths / max(float(lengths.sum()), np.finfo(np.float64).tiny))


def combined_map(maps: Sequence[FeatureMap], factors: np.ndarray | None = None) -> FeatureMap:
    """A map with the columns of several maps side by side; combined maps are replaced by their parts.

    Parameters
    ----------
    maps : sequence of FeatureMap
        Maps of rows of the same columns.
    factors : ndarray of shape (len(maps),) or None
        A factor on all features of each map; None is 1.

    Raises
    ------
    ValueError
        If there is no map, or their rows have different numbers of columns.
    """
    parts, amplitudes = [], [np.zeros(0)]
    for part, factor in zip(maps, np.ones(len(maps)) if factors is None else factors, strict=True):
        for single, ones in part.split(np.ones(part.n_features)):
            parts.append(single)
            amplitudes.append(factor * ones)
    projection = CombinedProjection(tuple(parts))
    projection.validate()
    return FeatureMap("combined", projection, np.concatenate(amplitudes))
