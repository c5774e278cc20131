"""Where features are looked for: all of R^d, by ascents on a row sample, or a finite pool, weighed as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dkl.features.families import Family
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import in_metric
from dkl.features.projections import DenseProjection, Projection, SparseProjection
from dkl.features.scaling import Scaler
from dkl.kernels.sums import feature_sums
from dkl.methods.frequency_search.landscape import ascent_bytes
from dkl.methods.frequency_search.peak_search import SearchOptions, distinct_peaks, search_peaks
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.protocols.arrays import Rows

# Bytes of the tiles of scaled and of mapped rows while potentials are summed.
SUMS_BYTES = 16 << 20


class FrequencySpace(ABC):
    """A set of features that is searched for those with a high potential; a dictionary of rounds, too.

    Its points are rows of an array, which a state keeps and `feature_map` understands.
    """

    @property
    @abstractmethod
    def columns_a_point(self) -> int:
        """Output columns of one point: two for a cosine-sine pair."""

    @property
    @abstractmethod
    def none(self) -> np.ndarray:
        """An empty array of points."""

    @property
    @abstractmethod
    def scaler(self) -> Scaler | None:
        """The scaler of the rows that `search` and `propose` take; None for rows as they come."""

    @abstractmethod
    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The features of points, amplitudes 1."""

    @abstractmethod
    def start(self, count: int, seed: int) -> np.ndarray:
        """Points of the first pass, before any search."""

    @property
    def size(self) -> int | None:
        """The number of points, where all of them are weighed at once; None where a search visits some of them."""
        return None

    @property
    def draws_plainly(self) -> bool:
        """Whether random draws may join the points that a search finds."""
        return False

    def plain(self, count: int, seed: int) -> np.ndarray:
        """`count` points as `RandomFeatures` draws them; none where `draws_plainly` is False."""
        return self.none

    @abstractmethod
    def search(
        self,
        X: Rows,
        S: np.ndarray,
        count: int,
        seed: int,
        *,
        room: int | None = None,
        weight: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` points with high potentials sum_k |sum_i S_ik phi(x_i)|^2 on scaled rows, and these.

        A point of a finite set may be found in several rounds: a repeated point has more weight.

        Parameters
        ----------
        X : ndarray or csr_array of shape (r, d)
            Scaled by `scaler`.
        S : ndarray of shape (r, K)
            Dual weights, multiplied by the repetitions of the rows already.
        count, seed : int
        room : int or None
            Points that may still join; see `distinct`.
        weight : ndarray of shape (r,), or None
            Repetitions of the rows; None for once each.
        """

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """At most `count` points with high potentials of the slopes, (p, d); the numbers of a point come first."""
        S = rows.s / max(float(np.abs(rows.s).sum()), np.finfo(np.float64).tiny)
        points = self.search(rows.X, S, count, seed)[0]
        points = points.reshape(len(points), -1) if len(points) else points.reshape(0, 0)
        return np.pad(points, ((0, 0), (0, rows.X.shape[1] - points.shape[1])))

    def unit(self, X: Rows) -> float:
        """1: cosines, sines and harmonics deviate about as much as steps."""
        return 1.0

    def search_bytes(self, n_rows: int, count: int) -> int:
        """The most bytes that `search` allocates in addition to `n_rows` scaled rows."""
        return SUMS_BYTES

    @abstractmethod
    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        """Positions of the k points with the highest potentials that differ from each other.

        Points of one block of a finite family come together: the first block may have up to `room` points (None is k).
        """


@dataclass(frozen=True, eq=False)
class FourierSpace(FrequencySpace):
    """All frequencies of R^d, searched by ascents.

    Parameters
    ----------
    origin : FeatureMap
        Any pairs of the rows' columns behind their scaler; only its kind counts.
    family : Family
        Law of random draws; its bandwidth is the scale of starts and steps.
    options : SearchOptions
        Its `chains` are a lower bound.
    chains_a_peak : float
        Chains for each wanted point.
    near_room : int
        Chains live on columns that go together, as `options` say, once no more points than these are missing: the first
        points do better over all columns.
    metric : ndarray of shape (d,) or (d, d), or None
        A factor R of a metric: starts, steps and draws are made for rows R'x, for which w.(R'x) = (R w).x. It is 0 in
        columns that no frequency may depend on.
    """

    origin: FeatureMap
    family: Family
    options: SearchOptions
    chains_a_peak: float = 1.0
    near_room: int = 0
    metric: np.ndarray | None = None

    @property
    def columns_a_point(self) -> int:
        return self.origin.columns_a_frequency

    @property
    def none(self) -> np.ndarray:
        return np.zeros((0, self.origin.n_columns), np.float32)

    @property
    def scaler(self) -> Scaler | None:
        return self.origin.scaler

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        projection = projection_of(points.astype(np.float32, copy=False))
        return replace(self.origin, projection=projection, amplitudes=np.ones(len(points)), phases=None)

    def start(self, count: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng([seed, 0])
        scale = np.sqrt(self.options.start) / self._sigma
        # the Fourier transform of a Gaussian kernel of bandwidth sigma, narrowed: potentials fall off far out
        drawn = scale * generator.standard_normal((count, self.origin.n_columns))
        return self._moved(drawn).astype(np.float32)

    @property
    def draws_plainly(self) -> bool:
        return True

    def plain(self, count: int, seed: int) -> np.ndarray:
        if count == 0:
            return self.none
        drawn = self.family.draw(count, self.origin.n_columns, seed, np.float32)
        # a frequency that is too long keeps its direction
        frequencies = np.asarray(drawn.projection.dense(), dtype=np.float32)
        if self.options.max_norm is not None:
            norms = np.linalg.norm(frequencies, axis=1, keepdims=True)
            frequencies = frequencies * (self.options.max_norm / np.maximum(norms, self.options.max_norm))
        return self._moved(frequencies).astype(np.float32)

    def search(
        self,
        X: Rows,
        S: np.ndarray,
        count: int,
        seed: int,
        *,
        room: int | None = None,
        weight: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        # the first points of a model do better over all columns than on those that go together
        is_near = room is not None and room <= self.near_room
        share = self.options.near_share if is_near else 0.0
        options = replace(self.options, chains=self._chains(count), near_share=share)
        if self.metric is not None:
            X = X @ sparse.diags_array(self.metric) if sparse.issparse(X) else in_metric(X, self.metric)
            X = X.astype(np.float32)
        peaks = search_peaks(X, S, self._sigma, options, seed, weight=weight)
        best = distinct_peaks(peaks.frequencies, peaks.potentials, count)
        return self._moved(peaks.frequencies[best]).astype(np.float32), peaks.potentials[best]

    def search_bytes(self, n_rows: int, count: int) -> int:
        d, chains = self.origin.n_columns, self._chains(count)
        # the rows again, column by column
        columns = 4 * n_rows * d if self.near_room > 0 and self.options.near_share > 0.0 else 0
        return ascent_bytes(n_rows, d, chains) + columns

    def _moved(self, frequencies: np.ndarray) -> np.ndarray:
        """R w of each frequency w."""
        return in_metric(frequencies, None if self.metric is None else self.metric.T)

    @property
    def _sigma(self) -> float:
        """The bandwidth, which every family of pairs has."""
        sigma: float = getattr(self.family, "sigma")  # noqa: B009
        return sigma

    def _chains(self, count: int) -> int:
        """Chains of a search for `count` points."""
        return max(self.options.chains, int(np.ceil(self.chains_a_peak * count)))

    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        return distinct_peaks(points, potentials, k)


@dataclass(frozen=True, eq=False)
class FrequencyPool(FrequencySpace):
    """Finitely many features, all weighed at once; points are their numbers in the pool, int64 of shape (m,).

    Parameters
    ----------
    pool : FeatureMap
        Features of one block (`FeatureMap.groups`) are chosen together.
    dtype : {"float32", "float64"}
    """

    pool: FeatureMap
    dtype: str = "float32"

    @property
    def columns_a_point(self) -> int:
        return self.pool.columns_a_frequency

    @property
    def none(self) -> np.ndarray:
        return np.zeros(0, np.int64)

    @property
    def scaler(self) -> Scaler | None:
        return self.pool.scaler

    @property
    def size(self) -> int:
        return self.pool.n_frequencies

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        # what `propose` returns has the number in its first column
        numbers = points if points.ndim == 1 else points[:, 0]
        return self.pool.take(numbers.astype(np.int64, copy=False))

    def start(self, count: int, seed: int) -> np.ndarray:
        return np.arange(min(count, self.pool.n_frequencies))

    def search(
        self,
        X: Rows,
        S: np.ndarray,
        count: int,
        seed: int,
        *,
        room: int | None = None,
        weight: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        # the rows of a search come scaled
        bare = replace(self.pool, scaler=None)
        potentials = np.sum(feature_sums(X, S, bare, self.dtype) ** 2, axis=(0, 2))
        best = self.distinct(np.arange(self.pool.n_frequencies), potentials, count, room=room)
        return best, potentials[best]

    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        _, groups = np.unique(self.pool.groups[points], return_inverse=True)
        if len(groups) == 0:
            return np.zeros(0, np.int64)
        sizes = np.bincount(groups)
        # the mean over a block is the potential of its kernel, which is 1 at x.x like the kernel of a single point
        heights = np.bincount(groups, weights=potentials) / sizes
        # whole blocks, highest first: those that are larger than there is room for never come
        order = np.argsort(-heights, kind="stable")
        order = order[sizes[order] <= (k if room is None else room)]
        fits = np.cumsum(sizes[order]) <= k
        n_blocks = max(1, int(np.argmin(fits)) if not fits.all() else len(fits))
        return np.concatenate(
            [np.flatnonzero(groups == group) for group in order[:n_blocks]] or [np.zeros(0, np.int64)]
        )


def projection_of(frequencies: np.ndarray) -> Projection:
    """Frequencies as a dense matrix, or by their entries if some have zeros."""
    if len(frequencies) and np.count_nonzero(frequencies, axis=1).min() < frequencies.shape[1]:
        return SparseProjection.from_rows(frequencies)
    return DenseProjection(frequencies)
