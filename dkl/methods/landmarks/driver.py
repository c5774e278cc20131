"""Landmarks: where they lie, the losses of each one's own candidates in one pass, and the map of the similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import LandmarkProjection, SharedLandmarkProjection
from dkl.features.projections import DenseProjection, Projection
from dkl.features.scaling import Scaler
from dkl.kernels.maps import map_rows
from dkl.kernels.products import Product
from dkl.kernels.scale import scale_rows
from dkl.methods.landmarks.kmeans import STILL, lloyd, moved_centers, spread_seeds
from dkl.methods.landmarks.kmeans_sums import Centers, cluster_record
from dkl.methods.posterior.weights import landmark_losses
from dkl.methods.potentials import PotentialProblem, joined_sums, potential_record, total_weight
from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample

Placement = Literal["random", "kmeans", "kmeans-joint"]

# rounds on the sample, which take no pass
_SAMPLE_ROUNDS = 50
_ANGLE_BYTES = 1 << 25


def even_shares(n_landmarks: int, totals: np.ndarray) -> np.ndarray:
    """Landmarks of each class, as equal as can be among those that have weight: int64 of shape (K,)."""
    shares = np.zeros(len(totals), np.int64)
    present = np.flatnonzero(totals > 0.0)
    shares[present] = [len(part) for part in np.array_split(np.arange(n_landmarks), len(present))]
    return shares


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Where landmarks are looked for.

    Parameters
    ----------
    placement : {"random", "kmeans", "kmeans-joint"}
        Rows of each class; centroids of each class; centroids of all rows, with the class that has most weight there.
    shares : ndarray of shape (K,), int64
        Landmarks of each class at most; together, for "kmeans-joint".
    n_rows, n_columns : int
    sample_rows : int
        Rows (of each class) that centroids start from.
    rounds : int
        Of k-means on all rows, at most.
    scaler : Scaler or None
    class_weight : ndarray of shape (K,) or None
        Factors of the rows' weights.
    seed : int
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

    @property
    def by_class(self) -> bool:
        return self.placement != "kmeans-joint"

    def centers(self, points: np.ndarray, codes: np.ndarray) -> Centers:
        """A state's landmarks as the centres of a round."""
        own = codes if self.by_class else None
        return Centers(points, own, self.scaler, len(self.shares), self.class_weight)


@dataclass(frozen=True, eq=False)
class PlacementState:
    """Where the landmarks are.

    Parameters
    ----------
    points : ndarray of shape (L, d), float64, or None
        In scaled coordinates; None before the first pass.
    codes : ndarray of shape (L,), int64, or None
        Their classes.
    inertia : tuple of float
        The sum of squared distances before each round on all rows.
    message : str
        How the search ended; empty before.
    """

    points: np.ndarray | None = None
    codes: np.ndarray | None = None
    inertia: tuple[float, ...] = ()
    message: str = ""


class PlacementDriver:
    """A row sample; for centroids k-means on it, and then on all rows, one pass a round."""

    def init(self, problem: PlacementProblem) -> PlacementState:
        return PlacementState()

    def request(self, problem: PlacementProblem, state: PlacementState) -> Sequence[Record] | None:
        if state.points is None or state.codes is None:
            return (_sample(problem),)
        return None if state.message else (cluster_record(problem.centers(state.points, state.codes)),)

    def step(self, problem: PlacementProblem, state: PlacementState, results: Sequence[Any]) -> PlacementState:
        if state.points is None or state.codes is None:
            return _started(problem, results[0])
        (sums,) = results
        inertia = (*state.inertia, float(sums["inertia"]))
        centers = moved_centers(problem.centers(state.points, state.codes), sums)
        codes = state.codes if problem.by_class else _majorities(sums["mass"])
        return PlacementState(centers.points, codes, inertia, _ended(problem, inertia))

    def stopped(self, problem: PlacementProblem, state: PlacementState, why: str) -> PlacementState | None:
        """The centroids so far; None before the sample."""
        if state.points is None:
            return None
        message = f"{why} after {len(state.inertia)} rounds of k-means on all rows"
        return replace(state, message=state.message or message)

    def plan(self, problem: PlacementProblem) -> Sequence[tuple[Sequence[Record], int]]:
        first: tuple[Sequence[Record], int] = ((_sample(problem),), 1)
        whole = problem.sample_rows * (len(problem.shares) if problem.by_class else 1) >= problem.n_rows
        if problem.placement == "random" or whole or not problem.rounds:
            return [first]
        points = np.zeros((int(problem.shares.sum()), problem.n_columns))
        return [first, ((cluster_record(problem.centers(points, np.zeros(len(points), np.int64))),), problem.rounds)]


def _sample(problem: PlacementProblem) -> RowSample:
    n_classes = len(problem.shares) if problem.by_class else None
    return RowSample("landmarks", problem.sample_rows, problem.seed, n_classes=n_classes)


def _started(problem: PlacementProblem, sample: Block) -> PlacementState:
    rows = replace(sample, X=scale_rows(sample.X, problem.scaler, "float64"))
    # a sample that is all of the rows keeps their weights; in a smaller one the weights chose the rows
    whole = sample.n_rows == problem.n_rows
    rows = rows if whole else replace(rows, weight=None)
    if problem.placement == "random":
        return _random_rows(problem, rows)
    seeds = _seeds(problem, rows)
    centers = replace(problem.centers(_dense(rows.X[seeds]), np.asarray(rows.y)[seeds]), scaler=None)
    centers, mass, rounds = lloyd(centers, rows, _SAMPLE_ROUNDS)
    message = f"k-means on all {sample.n_rows} rows in memory, {rounds} rounds" if whole or not problem.rounds else ""
    codes = _majorities(mass) if centers.codes is None else centers.codes
    return PlacementState(centers.points, codes, message=message)


def _random_rows(problem: PlacementProblem, rows: Block) -> PlacementState:
    """The first of each class in the order of the sample."""
    codes = np.asarray(rows.y)
    kept = np.concatenate([np.flatnonzero(codes == code)[:share] for code, share in enumerate(problem.shares)])
    return PlacementState(_dense(rows.X[kept]), codes[kept], message=f"{len(kept)} rows drawn at random")


def _seeds(problem: PlacementProblem, rows: Block) -> np.ndarray:
    """The rows that k-means starts from."""
    codes, weights = np.asarray(rows.y), rows.weights
    if problem.class_weight is not None:
        weights = weights * problem.class_weight[codes]
    if not problem.by_class:
        return spread_seeds(rows.X, weights, int(problem.shares.sum()), problem.seed)
    found = []
    for code, share in enumerate(problem.shares):
        own = np.flatnonzero(codes == code)
        if share and len(own):
            name = f"k-means {code}"
            found.append(own[spread_seeds(rows.X[own], weights[own], int(share), problem.seed, name=name)])
    return np.concatenate(found)


def _majorities(mass: np.ndarray) -> np.ndarray:
    """The class that has most weight at each centre; of equal ones the first."""
    return np.argmax(mass, axis=1).astype(np.int64)


def _dense(rows: Any) -> np.ndarray:
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=np.float64)


def _ended(problem: PlacementProblem, inertia: tuple[float, ...]) -> str:
    """How k-means ended after these rounds; empty if it goes on."""
    if len(inertia) > 1 and inertia[-1] >= (1.0 - STILL) * inertia[-2]:
        return f"k-means changes little after {len(inertia)} rounds on all rows"
    if len(inertia) == problem.rounds:
        return f"k-means stopped after {len(inertia)} rounds on all rows; more rounds would move the centroids a little"
    return ""


@dataclass(frozen=True, eq=False)
class LandmarkProblem:
    """What the pass for the losses is asked.

    Parameters
    ----------
    potentials : PotentialProblem
        Of all candidates; those of one landmark are neighbours.
    points : ndarray of shape (L, d)
        The landmarks, in scaled coordinates.
    codes : ndarray of shape (L,), int64
    centroids : bool
        Whether the landmarks are none of the rows.
    shared : bool
        Whether every landmark has all of the candidates.
    """

    potentials: PotentialProblem
    points: np.ndarray
    codes: np.ndarray
    centroids: bool
    shared: bool = False


@dataclass(frozen=True, eq=False)
class LandmarkState:
    """`losses` is None before the pass; then losses and angles w.x_l (L, D), and `total`, the weight of all rows."""

    losses: np.ndarray | None = None
    angles: np.ndarray | None = None
    total: float = 0.0


class LandmarkDriver:
    """The losses of all candidates around their landmarks in one pass (Letarte, Morvant & Germain 2019, (10))."""

    def init(self, problem: LandmarkProblem) -> LandmarkState:
        return LandmarkState()

    def request(self, problem: LandmarkProblem, state: LandmarkState) -> Sequence[Record] | None:
        return None if state.losses is not None else (potential_record(problem.potentials),)

    def step(self, problem: LandmarkProblem, state: LandmarkState, results: Sequence[Any]) -> LandmarkState:
        (sums,) = results
        asked = problem.potentials
        features = joined_sums("features", asked.n_targets, asked, sums)
        features = features.reshape(2, 1 if problem.shared else len(problem.points), -1, asked.n_targets)
        angles = landmark_angles(problem.points, asked.candidates, shared=problem.shared)
        losses = landmark_losses(features, sums["targets"], angles, problem.codes, centroids=problem.centroids)
        return LandmarkState(losses, angles, total_weight(asked, sums))

    def plan(self, problem: LandmarkProblem) -> Sequence[tuple[Sequence[Record], int]]:
        return [((potential_record(problem.potentials),), 1)]


def landmark_angles(points: np.ndarray, candidates: FeatureMap, *, shared: bool = False) -> np.ndarray:
    """w.x_l of each landmark's own candidates, float64 of shape (L, D).

    Parameters
    ----------
    points : ndarray of shape (L, d)
        In scaled coordinates.
    candidates : FeatureMap
        L times D frequencies, those of one landmark neighbours; D, if they are shared.
    shared : bool
    """
    # frequencies that are not stored: all angles of a tile, of which each landmark keeps its own
    forms = FeatureMap("identity", candidates.projection, candidates.amplitudes)
    if shared:
        return map_rows(points, forms, "float64")
    D = candidates.n_frequencies // len(points)
    projection = candidates.projection
    if isinstance(projection, DenseProjection):
        step = max(1, _ANGLE_BYTES // (8 * D * points.shape[1]))
        parts = [slice(start, start + step) for start in range(0, len(points), step)]
        W = projection.matrix.reshape(len(points), D, -1)
        return np.concatenate([np.einsum("ld,lmd->lm", points[part], W[part].astype(np.float64)) for part in parts])
    product = Product(points, forms, np.dtype(np.float64))
    angles = np.empty((len(points), D))
    for rows, tile in product.tiles:
        for start in range(0, forms.n_frequencies, product.step):
            chosen = slice(start, min(start + product.step, forms.n_frequencies))
            z, columns = product(tile, chosen), np.arange(chosen.start, chosen.stop)
            own = columns // D
            inside = (own >= rows.start) & (own < rows.stop)
            angles[own[inside], columns[inside] % D] = z[own[inside] - rows.start, np.flatnonzero(inside)]
    return angles


def similarity_map(
    candidates: FeatureMap, angles: np.ndarray, weights: np.ndarray, dtype: Any, *, shared: bool = False
) -> FeatureMap:
    """x -> (k_(Q^1)(x_1 - x), ..., k_(Q^L)(x_L - x)), each a weighted mean of cosines of its candidates.

    The smallest weights of each landmark that sum to less than the rounding of `dtype` are left out (of shared
    candidates where no landmark keeps them): a selective posterior makes a map of few frequencies.

    Parameters
    ----------
    candidates : FeatureMap
        L times D frequencies, or D shared ones; its scaler is kept.
    angles, weights : ndarray of shape (L, D)
    dtype : {"float32", "float64"}
    shared : bool

    References
    ----------
    Letarte, Morvant & Germain 2019, equation (13).
    """
    order = np.argsort(weights, axis=1)
    kept = np.empty(weights.shape, bool)
    np.put_along_axis(kept, order, np.cumsum(np.take_along_axis(weights, order, 1), axis=1) > np.finfo(dtype).eps, 1)
    make = _of_shared if shared else _of_own
    projection = make(candidates.projection, angles, weights, kept, dtype)
    return FeatureMap("landmarks", projection, np.ones(len(angles)), scaler=candidates.scaler)


def _of_own(
    projection: Projection, angles: np.ndarray, weights: np.ndarray, kept: np.ndarray, dtype: Any
) -> LandmarkProjection:
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int64)
    frequencies = projection if kept.all() else projection.take(np.flatnonzero(kept))
    # the fraction of a turn is what counts: an angle of many turns would lose it in single precision
    phases = -np.remainder(angles[kept], 2.0 * np.pi)
    return LandmarkProjection(frequencies, phases, weights[kept], starts)


def _of_shared(
    projection: Projection, angles: np.ndarray, weights: np.ndarray, kept: np.ndarray, dtype: Any
) -> SharedLandmarkProjection:
    used = np.flatnonzero(kept.any(axis=0))
    frequencies = projection if len(used) == len(kept.T) else projection.take(used)
    angles, weights = angles[:, used], weights[:, used]
    mixing = np.empty((len(angles), 2 * len(used)), dtype)
    np.multiply(weights, np.cos(angles), out=mixing[:, : len(used)], casting="same_kind")
    np.multiply(weights, np.sin(angles), out=mixing[:, len(used) :], casting="same_kind")
    return SharedLandmarkProjection(frequencies, mixing)
