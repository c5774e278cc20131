"""The set that is searched for features: R^d, by ascents on sampled rows, or a finite pool, evaluated as a whole."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dkl.features.families import Family
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import in_metric
from dkl.features.projections import DenseProjection, Projection, SparseProjection
from dkl.features.scaling import Scaler
from dkl.kernels.maps import row_mapper
from dkl.kernels.sums import feature_sums
from dkl.methods.frequency_search.peak_search import SearchOptions, ascent_bytes, distinct_peaks, search_peaks
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.protocols.arrays import Rows

# Bytes of the tiles of scaled and of mapped rows while potentials are summed.
SUMS_BYTES = 16 << 20


class FrequencySpace(ABC):
    """A set of features in which those with a high potential are searched; also a dictionary for rounds.

    Its points are rows of an array, which states store and `feature_map` turns into features.
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
        """The scaler of the rows in `search` and `propose`; None for unscaled rows."""

    @abstractmethod
    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The features of points, with amplitudes 1."""

    @abstractmethod
    def start(self, count: int, seed: int) -> np.ndarray:
        """Points of the first pass, before any search."""

    @property
    def size(self) -> int | None:
        """The number of points, if all of them are evaluated; None if a search visits only some."""
        return None

    @property
    def draws_plainly(self) -> bool:
        """Whether random draws may join the points that a search finds."""
        return False

    def plain(self, count: int, seed: int) -> np.ndarray:
        """`count` points, drawn as by `RandomFeatures`; none in spaces from which nothing is drawn."""
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
        """At most `count` points with high potentials sum_k |sum_i S_ik phi(x_i)|^2 on scaled rows, and the potentials.

        A point of a finite set may be found again in a later round, which increases its weight.

        Parameters
        ----------
        X : ndarray or csr_array of shape (r, d)
            Scaled by `scaler`.
        S : ndarray of shape (r, K)
            Dual weights, already multiplied by the repetitions of the rows.
        count, seed : int
        room : int or None
            The most points that may still be added; see `distinct`.
        weight : ndarray of shape (r,), or None
            Repetitions of the rows; None is once each.
        """

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """At most `count` points with high potentials of the slopes, as rows (p, d), padded by zeros."""
        S = rows.s / max(float(np.abs(rows.s).sum()), np.finfo(np.float64).tiny)
        points = self.search(rows.X, S, count, seed)[0]
        points = points.reshape(len(points), -1) if len(points) else points.reshape(0, 0)
        return np.pad(points, ((0, 0), (0, rows.X.shape[1] - points.shape[1])))

    def unit(self, X: Rows) -> float:
        """The amplitude 1: cosines, sines and harmonics then deviate from their means about as much as steps do."""
        return 1.0

    def search_bytes(self, n_rows: int, count: int) -> int:
        """The most bytes that `search` allocates in addition to `n_rows` scaled rows."""
        return SUMS_BYTES

    @abstractmethod
    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        """Positions of the k distinct points with the highest potentials.

        Points of one block of a finite family are chosen together: the first block may have up to `room` points (None
        is k).
        """


@dataclass(frozen=True, eq=False)
class FourierSpace(FrequencySpace):
    """All frequencies of R^d, searched by ascents.

    Parameters
    ----------
    origin : FeatureMap
        Any pairs on the rows' columns, with their scaler; only its type is used.
    family : Family
        Distribution of random draws; its bandwidth is the scale of starts and steps.
    options : SearchOptions
        The number of `chains` in it is a lower bound.
    chains_a_peak : float
        Chains for each requested point.
    near_room : int
        Chains on correlated columns (see `options`) are used once at most this many points may still be added: the
        first points of a model are better when all columns are searched.
    metric : ndarray of shape (d,) or (d, d), or None
        A factor R of a metric: the search runs on rows R'x, for which w.(R'x) = (R w).x. It is 0 in columns that no
        frequency may depend on.
    cosine : float
        Verified points count as one if the cosine of the angle between them is larger, and their lengths are similar.
    """

    origin: FeatureMap
    family: Family
    options: SearchOptions
    chains_a_peak: float = 1.0
    near_room: int = 0
    metric: np.ndarray | None = None
    cosine: float = 0.9

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
        # the Fourier transform of a Gaussian kernel of bandwidth sigma, but narrower, since potentials are small far
        # out
        drawn = scale * generator.standard_normal((count, self.origin.n_columns))
        return self._moved(drawn)

    @property
    def draws_plainly(self) -> bool:
        return True

    def plain(self, count: int, seed: int) -> np.ndarray:
        if count == 0:
            return self.none
        drawn = self.family.draw(count, self.origin.n_columns, seed, np.float32)
        # a frequency that is too long is shortened in its direction
        frequencies = np.asarray(drawn.projection.dense(), dtype=np.float32)
        if self.options.max_norm is not None:
            norms = np.linalg.norm(frequencies, axis=1, keepdims=True)
            frequencies = frequencies * (self.options.max_norm / np.maximum(norms, self.options.max_norm))
        return self._moved(frequencies)

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
        # the first points of a model are better when all columns are searched than on correlated ones
        is_near = room is not None and room <= self.near_room
        share = self.options.near_share if is_near else 0.0
        options = replace(self.options, chains=self._chains(count), near_share=share)
        if self.metric is not None:
            X = X @ sparse.diags_array(self.metric) if sparse.issparse(X) else in_metric(X, self.metric)
            X = X.astype(np.float32)
        peaks = search_peaks(X, S, self._sigma, options, seed, weight=weight)
        best = distinct_peaks(peaks.frequencies, peaks.potentials, count)
        return self._moved(peaks.frequencies[best]), peaks.potentials[best]

    def search_bytes(self, n_rows: int, count: int) -> int:
        d, chains = self.origin.n_columns, self._chains(count)
        # a copy of the rows in column order
        columns = 4 * n_rows * d if self.near_room > 0 and self.options.near_share > 0.0 else 0
        return ascent_bytes(n_rows, d, chains) + columns

    def _moved(self, frequencies: np.ndarray) -> np.ndarray:
        """R w for each frequency w, float32."""
        return in_metric(frequencies, None if self.metric is None else self.metric.T).astype(np.float32)

    @property
    def _sigma(self) -> float:
        """The bandwidth, which every family of pairs has."""
        sigma: float = getattr(self.family, "sigma")  # noqa: B009
        return sigma

    def _chains(self, count: int) -> int:
        """The number of chains of a search for `count` points."""
        return max(self.options.chains, int(np.ceil(self.chains_a_peak * count)))

    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        return distinct_peaks(points, potentials, k, cosine=self.cosine)


@dataclass(frozen=True, eq=False)
class FrequencyPool(FrequencySpace):
    """A finite set of features, all evaluated; points are their numbers in the pool, int64 of shape (m,).

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
        # points from `propose` are rows with the number in the first column
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
        potentials = potentials_of(self.pool, X, S, self.dtype)
        best = self.distinct(np.arange(self.pool.n_frequencies), potentials, count, room=room)
        return best, potentials[best]

    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        _, groups = np.unique(self.pool.groups[points], return_inverse=True)
        if len(groups) == 0:
            return self.none
        sizes = np.bincount(groups)
        # the mean over a block is the potential of its kernel, which is 1 at x.x like the kernel of a single point
        heights = np.bincount(groups, weights=potentials) / sizes
        # whole blocks, highest first; blocks that are too large are skipped
        order = np.argsort(-heights, kind="stable")
        order = order[sizes[order] <= (k if room is None else room)]
        fits = np.cumsum(sizes[order]) <= k
        n_blocks = max(1, int(np.argmin(fits)) if not fits.all() else len(fits))
        return np.concatenate([np.flatnonzero(groups == group) for group in order[:n_blocks]] or [self.none])


def potentials_of(features: FeatureMap, X: Rows, S: np.ndarray, dtype: str) -> np.ndarray:
    """The potentials sum_k |sum_i S_ik phi(x_i)|^2 of features, (m,), on rows that are already scaled."""
    return np.asarray(np.sum(feature_sums(X, S, replace(features, scaler=None), dtype) ** 2, axis=(0, 2)))


def projection_of(frequencies: np.ndarray) -> Projection:
    """The projection by a matrix of frequencies, stored sparsely if some entries are zero."""
    if len(frequencies) and np.count_nonzero(frequencies, axis=1).min() < frequencies.shape[1]:
        return SparseProjection.from_rows(frequencies)
    return DenseProjection(frequencies)


def search_seconds(space: FrequencySpace, few: Rows, n_models: int, count: int) -> float:
    """Processor seconds of a search for each of its rows.

    Parameters
    ----------
    space : FrequencySpace
    few : ndarray or csr_array of shape (r, d), float32
    n_models : int
        The number of weight columns.
    count : int
        Points that the search returns.
    """
    S = np.random.default_rng(0).standard_normal((few.shape[0], n_models))
    S /= np.abs(S).sum()
    return _a_row(lambda: space.search(few, S, count, 0), few)


def forming_seconds(feature_map: FeatureMap, few: Rows) -> float:
    """Processor seconds of the features of one row.

    Parameters
    ----------
    feature_map : FeatureMap
        Without a scaler, or with a fitted one.
    few : ndarray or csr_array of shape (r, d), float32
    """
    mapped = row_mapper(few, feature_map, np.dtype(np.float32))
    return _a_row(lambda: mapped(slice(0, few.shape[0])), few)


def _a_row(call: Callable[[], object], few: Rows) -> float:
    """Processor seconds of a call for each row: the lesser of two calls, after a first one that compiles code."""
    call()
    seconds = []
    for _ in range(2):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds) / few.shape[0]
