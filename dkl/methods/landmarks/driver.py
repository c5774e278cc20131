"""Drivers for landmarks: their placement, by k-means or at random, and the losses of the candidates around each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.landmark_projection import LandmarkProjection, SharedLandmarkProjection
from dkl.features.projections import DenseProjection
from dkl.features.scaling import Scaler
from dkl.kernels.maps import map_rows
from dkl.kernels.products import Product
from dkl.kernels.scale import scale_rows
from dkl.kernels.tiles import spans
from dkl.methods.choice import drawn_positions
from dkl.methods.landmarks.kmeans_sums import Centers, cluster_record, cluster_sums, square_distances, square_lengths
from dkl.methods.posterior.weights import landmark_losses
from dkl.methods.potential_sums import PotentialProblem, potential_record, total_weight
from dkl.protocols.arrays import Rows, dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample

Placement = Literal["random", "kmeans", "kmeans-joint"]

# k-means ends when a round lowers the sum of squared distances by less than this share of it.
_LEAST_FALL = 1e-4
# The most rounds of k-means on the sample, which need no pass.
_SAMPLE_ROUNDS = 50
# Time of one distance in k-means, its part of the means included, in operations of a matrix product. It is multiplied
# by _SAMPLE_ROUNDS, of which a fit usually needs fewer.
_A_DISTANCE = 700.0
# The most bytes of the float64 frequencies of one tile of landmarks.
_ANGLE_BYTES = 1 << 25
# Numbers in memory for each candidate of a landmark: losses, angles, weights and intermediate results.
_NUMBERS_A_CANDIDATE = 8


def even_shares(n_landmarks: int, totals: np.ndarray) -> np.ndarray:
    """The number of landmarks of each class, as equal as possible among classes with weight: int64 of shape (K,)."""
    shares = np.zeros(len(totals), np.int64)
    present = np.flatnonzero(totals > 0.0)
    # as numpy.array_split: the first classes get one more if the number does not divide
    shares[present] = [len(part) for part in np.array_split(np.arange(n_landmarks), len(present))]
    return shares


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """The placement of landmarks: rule, numbers, and sample.

    Parameters
    ----------
    placement : {"random", "kmeans", "kmeans-joint"}
        Rows of each class; centroids of each class; centroids of all rows, with the class of most weight at each.
    shares : ndarray of shape (K,), int64
        The most landmarks of each class; for "kmeans-joint" only their sum matters.
    n_rows, n_columns : int
    sample_rows : int
        The size of the sample (for each class) from which centroids start.
    rounds : int
        The most rounds of k-means on all rows.
    scaler : Scaler or None
    class_weight : ndarray of shape (K,) or None
        Weights of the classes, which multiply the weights of rows.
    seed : int
    is_sparse : bool
        Whether the rows are sparse before scaling.
    """

    placement: Placement
    shares: np.ndarray
    n_rows: int
    n_columns: int
    sample_rows: int
    rounds: int
    scaler: Scaler | None
    class_weight: np.ndarray | None
    seed: int
    is_sparse: bool = False

    @property
    def by_class(self) -> bool:
        """Whether each class has its own landmarks."""
        return self.placement != "kmeans-joint"

    @property
    def n_sampled(self) -> int:
        """The most rows of the sample, over all classes."""
        return min(self.sample_rows * (len(self.shares) if self.by_class else 1), self.n_rows)

    def centers(self, points: np.ndarray, codes: np.ndarray) -> Centers:
        """A state's landmarks as the centres of a round."""
        # a centre of a class is the mean of rows of this class only
        own = codes if self.by_class else None
        return Centers(points, own, self.scaler, len(self.shares), self.class_weight)


@dataclass(frozen=True, eq=False)
class PlacementState:
    """The present landmarks.

    Parameters
    ----------
    points : ndarray of shape (L, d), float64, or None
        In scaled coordinates; None before the first pass.
    codes : ndarray of shape (L,), int64, or None
        Their classes.
    inertia : tuple of float
        The sum of squared distances before each round on all rows.
    message : str
        Why the search ended; empty during it.
    """

    points: np.ndarray | None = None
    codes: np.ndarray | None = None
    inertia: tuple[float, ...] = ()
    message: str = ""


class PlacementDriver:
    """A sample, for rows as landmarks; for centroids k-means on it in memory, then on all rows, a pass a round."""

    def init(self, problem: PlacementProblem) -> PlacementState:
        """The state before the sample."""
        return PlacementState()

    def request(self, problem: PlacementProblem, state: PlacementState) -> Sequence[Record] | None:
        """The sample, or a round of k-means on all rows; None at the end."""
        if state.points is None or state.codes is None:
            return (self._sample(problem),)
        return None if state.message else (cluster_record(problem.centers(state.points, state.codes)),)

    def step(self, problem: PlacementProblem, state: PlacementState, results: Sequence[Any]) -> PlacementState:
        """The landmarks on the sample, or the centres after a round on all rows."""
        if state.points is None or state.codes is None:
            return self._placed_on_sample(problem, results[0])
        (sums,) = results
        inertia = (*state.inertia, float(sums["inertia"]))
        # Lloyd's step: each centre moves to the mean of the rows nearest to it
        centers = moved_centers(problem.centers(state.points, state.codes), sums)
        codes = state.codes if problem.by_class else majorities(sums["mass"])
        message, n_rounds = "", len(inertia)
        if n_rounds > 1 and inertia[-1] >= (1.0 - _LEAST_FALL) * inertia[-2]:
            message = f"k-means changes little after {n_rounds} rounds on all rows"
        elif n_rounds == problem.rounds:
            message = (
                f"k-means stopped after {n_rounds} rounds on all rows; more rounds would move the centroids a little"
            )
        return PlacementState(centers.points, codes, inertia, message)

    def stopped(self, problem: PlacementProblem, state: PlacementState, why: str) -> PlacementState | None:
        """The present centroids, if a subscriber stops the fit; None before the sample."""
        if state.points is None:
            return None
        message = f"{why} after {len(state.inertia)} rounds of k-means on all rows"
        return replace(state, message=state.message or message)

    def plan(self, problem: PlacementProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass of the sample, and the rounds of k-means if the sample does not have all rows."""
        first: tuple[Sequence[Record], int] = ((self._sample(problem),), 1)
        if problem.placement == "random" or problem.n_sampled == problem.n_rows or not problem.rounds:
            return [first]
        placed = replace(self.planned(problem), message="")
        return [first, (self.request(problem, placed) or (), problem.rounds)]

    def planned(self, problem: PlacementProblem) -> PlacementState:
        """Landmarks at arbitrary places."""
        points = np.zeros((int(problem.shares.sum()), problem.n_columns))
        return PlacementState(points, np.zeros(len(points), np.int64), message="planned")

    def memory(self, problem: PlacementProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sample, raw and scaled, and of the landmarks."""
        row, d = row_bytes if problem.is_sparse else 8 * problem.n_columns, problem.n_columns
        return {"rows and landmarks": 2 * row * problem.n_sampled + 16 * d * int(problem.shares.sum())}

    def driving(self, problem: PlacementProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of k-means on the sample."""
        if problem.placement == "random":
            return 0.0
        distances = _SAMPLE_ROUNDS * problem.n_sampled * float(problem.shares.max())
        return _A_DISTANCE * distances / flops_per_second

    def _sample(self, problem: PlacementProblem) -> RowSample:
        """The record of the sample, of each class or of all rows."""
        n_classes = len(problem.shares) if problem.by_class else None
        return RowSample("landmarks", problem.sample_rows, problem.seed, n_classes=n_classes)

    def _placed_on_sample(self, problem: PlacementProblem, sample: Block) -> PlacementState:
        """Landmarks on the sample: rows of it, or centroids by k-means with distant seeds."""
        rows = replace(sample, X=scale_rows(sample.X, problem.scaler, "float64")).drawn_from(problem.n_rows)
        codes, weights = np.asarray(rows.y), rows.weights
        members = [np.flatnonzero(codes == code) for code in range(len(problem.shares))]
        if problem.placement == "random":
            # the first rows of each class in the sample, whose order is random
            drawn = np.concatenate([own[:share] for own, share in zip(members, problem.shares, strict=True)])
            message = f"{len(drawn)} rows drawn at random"
            return PlacementState(dense_rows(rows.X[drawn]), codes[drawn], message=message)
        if problem.class_weight is not None:
            weights = weights * problem.class_weight[codes]
        if problem.by_class:
            seeds = np.concatenate(
                [
                    own[spread_seeds(rows.X[own], weights[own], int(share), problem.seed, name=f"k-means {code}")]
                    for code, (own, share) in enumerate(zip(members, problem.shares, strict=True))
                    if share and len(own)
                ]
            )
        else:
            seeds = spread_seeds(rows.X, weights, int(problem.shares.sum()), problem.seed)
        # the sampled rows are already scaled
        centers = replace(problem.centers(dense_rows(rows.X[seeds]), codes[seeds]), scaler=None)
        centers, mass, n_rounds = lloyd(centers, rows, _SAMPLE_ROUNDS)
        message = ""
        if sample.n_rows == problem.n_rows or not problem.rounds:
            message = f"k-means on all {sample.n_rows} rows in memory, {n_rounds} rounds"
        return PlacementState(
            centers.points, majorities(mass) if centers.codes is None else centers.codes, message=message
        )


def majorities(mass: np.ndarray) -> np.ndarray:
    """The class with most weight at each centre, from weights (L, K); on a tie the first."""
    return np.argmax(mass, axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LandmarkProblem:
    """The landmarks, and the candidates whose losses around them are needed.

    Parameters
    ----------
    potentials : PotentialProblem
        The sums of all candidates' features; the candidates of one landmark are consecutive.
    points : ndarray of shape (L, d)
        The landmarks, in scaled coordinates.
    codes : ndarray of shape (L,), int64
    centroids : bool
        Whether the landmarks are centroids rather than rows.
    shared : bool
        Whether all landmarks share the candidates.
    """

    potentials: PotentialProblem
    points: np.ndarray
    codes: np.ndarray
    centroids: bool
    shared: bool = False


@dataclass(frozen=True, eq=False)
class LandmarkState:
    """`losses` is None before the pass; then losses and angles w.x_l (L, D), and `total`, the rows' total weight."""

    losses: np.ndarray | None = None
    angles: np.ndarray | None = None
    total: float = 0.0


class LandmarkDriver:
    """The losses of all candidates around their landmarks in one pass (Letarte, Morvant & Germain 2019, (10))."""

    def init(self, problem: LandmarkProblem) -> LandmarkState:
        """The state before the pass."""
        return LandmarkState()

    def request(self, problem: LandmarkProblem, state: LandmarkState) -> Sequence[Record] | None:
        """The sums of the candidates' features by class; None after the pass."""
        return None if state.losses is not None else (potential_record(problem.potentials),)

    def step(self, problem: LandmarkProblem, state: LandmarkState, results: Sequence[Any]) -> LandmarkState:
        """Equation (10) of each candidate around its landmark."""
        (sums,) = results
        potentials = problem.potentials
        features = potentials.features_of(sums)
        # cosines and sines, by landmark, candidate and class
        features = features.reshape(2, 1 if problem.shared else len(problem.points), -1, potentials.n_targets)
        angles = landmark_angles(problem.points, potentials.candidates, shared=problem.shared)
        losses = landmark_losses(features, sums["targets"], angles, problem.codes, centroids=problem.centroids)
        return LandmarkState(losses, angles, total_weight(potentials, sums))

    def plan(self, problem: LandmarkProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """One pass."""
        return [((potential_record(problem.potentials),), 1)]

    def memory(self, problem: LandmarkProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the candidates and their map, and of class sums with losses."""
        pool, n_classes = problem.potentials.candidates, problem.potentials.n_targets
        # each candidate has sums of cosines and of sines for every class, stored twice, and some numbers for each
        # landmark
        around = pool.n_frequencies * (len(problem.points) if problem.shared else 1)
        sums = 8 * (4 * n_classes * pool.n_frequencies + _NUMBERS_A_CANDIDATE * around)
        return {"candidates": 2 * pool.projection.nbytes, "class sums and losses": sums}


def landmark_angles(points: np.ndarray, candidates: FeatureMap, *, shared: bool = False) -> np.ndarray:
    """w.x_l of each landmark's own candidates, float64 of shape (L, D).

    Parameters
    ----------
    points : ndarray of shape (L, d)
        In scaled coordinates.
    candidates : FeatureMap
        L times D frequencies, those of one landmark consecutive; or D shared ones.
    shared : bool
    """
    # angles are computed as the features of an identity activation
    forms = FeatureMap("identity", candidates.projection, candidates.amplitudes)
    if shared:
        return map_rows(points, forms, "float64")
    D = candidates.n_frequencies // len(points)
    projection = candidates.projection
    if isinstance(projection, DenseProjection):
        # stored frequencies: some landmarks at a time, each with its own candidates
        W = projection.matrix.reshape(len(points), D, -1)
        return np.concatenate(
            [
                np.einsum("ld,lmd->lm", points[part], W[part].astype(np.float64))
                for part in spans(len(points), max(1, _ANGLE_BYTES // (8 * D * points.shape[1])))
            ]
        )
    # structured frequencies: all angles of a tile are computed, and each landmark keeps those of its candidates
    product = Product(points, forms, np.dtype(np.float64))
    angles = np.empty((len(points), D))
    for rows, tile in product.tiles:
        for part in spans(forms.n_frequencies, product.step):
            z, columns = product(tile, part), np.arange(part.start, part.stop)
            own = columns // D
            inside = (own >= rows.start) & (own < rows.stop)
            angles[own[inside], columns[inside] % D] = z[own[inside] - rows.start, np.flatnonzero(inside)]
    return angles


def similarity_map(
    candidates: FeatureMap, angles: np.ndarray, weights: np.ndarray, dtype: str, *, shared: bool = False
) -> FeatureMap:
    """x -> (k_(Q^1)(x_1 - x), ..., k_(Q^L)(x_L - x)), each a weighted mean of cosines of its candidates.

    For each landmark, the smallest weights whose sum is below the rounding of `dtype` are left out (shared candidates
    if all landmarks leave them out), so that a selective posterior gives a map with few frequencies.

    Parameters
    ----------
    candidates : FeatureMap
        L times D frequencies, or D shared ones; the map has their scaler.
    angles, weights : ndarray of shape (L, D)
    dtype : {"float32", "float64"}
    shared : bool

    References
    ----------
    Letarte, Morvant & Germain 2019, equation (13).
    """
    # in ascending order; weights whose running sum is below the rounding of the result are left out
    order = np.argsort(weights, axis=1)
    kept = np.empty(weights.shape, bool)
    np.put_along_axis(kept, order, np.cumsum(np.take_along_axis(weights, order, 1), axis=1) > np.finfo(dtype).eps, 1)
    projection: LandmarkProjection | SharedLandmarkProjection
    if shared:
        # sum_m q_lm cos(w_m.x_l - w_m.x) as products of the cosines and sines of x with those at the landmarks
        used = np.flatnonzero(kept.any(axis=0))
        frequencies = candidates.projection if len(used) == len(kept.T) else candidates.projection.take(used)
        angles, weights = angles[:, used], weights[:, used]
        mixing = np.empty((len(angles), 2 * len(used)), dtype)
        np.multiply(weights, np.cos(angles), out=mixing[:, : len(used)], casting="same_kind")
        np.multiply(weights, np.sin(angles), out=mixing[:, len(used) :], casting="same_kind")
        projection = SharedLandmarkProjection(frequencies, mixing)
    else:
        starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int64)
        frequencies = candidates.projection if kept.all() else candidates.projection.take(np.flatnonzero(kept))
        # only the fraction of a turn matters, and a large angle would lose it in single precision
        phases = -np.remainder(angles[kept], 2.0 * np.pi)
        projection = LandmarkProjection(frequencies, phases, weights[kept], starts)
    return FeatureMap("landmarks", projection, np.ones(len(angles)), scaler=candidates.scaler)


def spread_seeds(X: Rows, weights: np.ndarray, count: int, seed: int, *, name: str = "k-means") -> np.ndarray:
    """Rows far from each other, as starts of k-means (greedy k-means++).

    Each further row is the best of 2 + log(count) candidates, drawn with probability proportional to weight times
    squared distance from the rows chosen so far.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), float64
    weights : ndarray of shape (n,)
    count : int
    seed : int
    name : str
        The name of the random stream.

    Returns
    -------
    ndarray of int64
        At most `count` positions; fewer if there are fewer distinct rows.

    References
    ----------
    Arthur & Vassilvitskii 2007, "k-means++: the advantages of careful seeding", and the greedy form of its section 5.
    """
    generator = stream(seed, name)
    trials = 2 + int(np.log(max(count, 1)))
    squares = square_lengths(X)

    def distances_to(rows: np.ndarray) -> np.ndarray:
        distances = square_distances(X, dense_rows(X[rows]), squares)
        # rounding would leave a row some distance from itself, so that it might be drawn again
        distances[rows, np.arange(len(rows))] = 0.0
        return distances

    seeds = [int(drawn_positions(weights, generator.random(1))[0])]
    closest = distances_to(np.array(seeds))[:, 0]
    while len(seeds) < count and weights @ closest > 0.0:
        drawn = drawn_positions(weights * closest, generator.random(trials))
        nearer = np.minimum(closest[:, None], distances_to(drawn))
        # of the candidates the one with the smallest sum of squared distances
        best = int(np.argmin(weights @ nearer))
        closest = nearer[:, best]
        seeds.append(int(drawn[best]))
    return np.array(seeds, dtype=np.int64)


def moved_centers(centers: Centers, sums: Mapping[str, np.ndarray]) -> Centers:
    """The centres at the means of their rows; one without rows stays."""
    # the sums come in panels of centres, named after their first centre
    points = np.concatenate([sums[f"points{panel.start}"] for panel in centers.panels])
    mass = sums["mass"].sum(axis=1)[:, None]
    return replace(centers, points=np.where(mass > 0.0, points / np.where(mass > 0.0, mass, 1.0), centers.points))


def lloyd(centers: Centers, rows: Block, most: int) -> tuple[Centers, np.ndarray, int]:
    """Rounds of k-means on rows in memory, until the sum of squared distances hardly falls.

    Parameters
    ----------
    centers : Centers
    rows : Block
    most : int
        The most rounds.

    Returns
    -------
    centers : Centers
    mass : ndarray of shape (L, K)
        The weight, by class, of the rows of each centre in the last round.
    rounds : int

    References
    ----------
    Lloyd 1982, "Least squares quantization in PCM".
    """
    before, mass = np.inf, np.zeros((len(centers.points), centers.n_classes))
    for number in range(1, most + 1):
        sums = cluster_sums(rows, {"centers": centers})
        centers, mass, inertia = moved_centers(centers, sums), sums["mass"], float(sums["inertia"])
        # the sum of squared distances never rises; once it hardly falls, further rounds gain little
        if inertia >= (1.0 - _LEAST_FALL) * before:
            return centers, mass, number
        before = inertia
    return centers, mass, most
