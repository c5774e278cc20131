"""Peaks of the targets' potential: searched on a row sample, verified on all rows, on larger samples if they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import sums_on_host, with_targets
from dkl.kernels.maps import mapping_flops
from dkl.kernels.scale import scale_rows
from dkl.kernels.sums import encode_targets, feature_sums
from dkl.methods.frequency_search.frequency_space import FrequencySpace
from dkl.methods.frequency_search.peak_search import grown_sample, pair_potentials
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.losses import namespace_of

# Number of highest peaks whose verified potentials decide whether the sample was large enough.
_COMPARED_PEAKS = 10
# Bytes of the tiles of scaled and of mapped rows.
_SCRATCH_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class PeakTargets:
    """The weight columns S of rows, whose potential is searched for peaks; each sums to 0 over all rows.

    Parameters
    ----------
    n_classes : int or None
        None for regression.
    class_weight : ndarray of shape (K,) or None
        Factors of the rows' weights.
    center : ndarray of shape (K,) or (t,)
        The share of each class in the total weight, or the mean of each target.
    scale : ndarray of shape (t,) or None
        The standard deviation of each target; None divides by nothing.
    """

    n_classes: int | None
    class_weight: np.ndarray | None
    center: np.ndarray
    scale: np.ndarray | None = None

    @property
    def n_columns(self) -> int:
        """The number of columns of S: one for two classes, whose potentials are equal."""
        return 1 if self.n_classes == 2 else len(self.center)

    def __call__(self, block: Block) -> np.ndarray:
        """S of a block's rows, (n_b, K), including their weights, on the device of the block's targets."""
        encoded, xp = encode_targets(block, self.n_classes, self.class_weight), namespace_of(block.y)
        center = xp.asarray(self.center)
        if self.n_classes is None:
            centred = encoded[:, :-1] - center * encoded[:, -1:]
            return centred if self.scale is None else centred / xp.asarray(self.scale)
        # 1{y_i = k} minus the share of class k, so that the potential at frequency 0, which carries no information, is
        # 0
        centred = encoded - center * encoded.sum(axis=1, keepdims=True)
        return centred[:, : self.n_columns]


@dataclass(frozen=True, eq=False)
class PeakProblem:
    """A search for peaks of the targets' potential, as data.

    Parameters
    ----------
    space : FrequencySpace
        R^d, or a finite pool.
    targets : PeakTargets
    n_peaks : int
        Largest number of peaks to keep.
    n_candidates : int
        Largest number of points that one search returns.
    n_rows : int
    sample_rows, most_rows : int
        Rows of the first sample, and of the largest one.
    n_points : int
        Number of points to keep, including peaks: random draws are added to the peaks, as far as `n_plain` allows.
    n_plain : int
        Number of random draws, which are candidates too.
    seed : int
    dtype : {"float32", "float64"}
    start : ndarray of shape (s, d) or None
        More candidates than those of the searches; None adds none.
    """

    space: FrequencySpace
    targets: PeakTargets
    n_peaks: int
    n_candidates: int
    n_rows: int
    sample_rows: int
    most_rows: int
    n_points: int = 0
    n_plain: int = 0
    seed: int = 0
    dtype: str = "float32"
    start: np.ndarray | None = None

    @property
    def most_searches(self) -> int:
        """The largest number of searches, each on twice as many rows as the one before."""
        return 1 + max(0, int(np.ceil(np.log2(self.most_rows / self.sample_rows))))


@dataclass(frozen=True, eq=False)
class PeakState:
    """The state of the search between passes.

    Parameters
    ----------
    points : ndarray of shape (D, ...)
        Candidates of all searches.
    sampled : ndarray of shape (D,)
        Pair potentials on the sample that the candidate was found on; 0 for random and given points.
    verified : ndarray of shape (V,)
        Pair potentials of the first V candidates on all rows.
    sample_rows : int
        Rows of the next search, or of the last one.
    passes : int
    finished : bool
    ended : str
        Why the search was stopped early; empty if it was not.
    """

    points: np.ndarray
    sampled: np.ndarray
    verified: np.ndarray
    sample_rows: int
    passes: int = 0
    finished: bool = False
    ended: str = ""

    @property
    def unverified(self) -> np.ndarray:
        """The candidates of the last search."""
        return self.points[len(self.verified) :]


class PeakDriver:
    """Searches for peaks of the potential by Algorithm 1 of Bullins, Zhang & Zhang 2018, on any number of rows.

    A pass draws a row sample, on which peaks are searched. The next pass verifies them on all rows and draws a sample
    of twice the size, which is searched only if the verified potentials are well below the sampled ones: two passes if
    the first sample is large enough, one more for each larger sample. All points of a finite pool are verified in one
    pass.
    """

    def init(self, problem: PeakProblem) -> PeakState:
        """The state before any search: random draws and given points as candidates, or all points of a finite pool."""
        # random draws come first, where `filled` expects them
        none = np.zeros(0)
        if problem.space.size is not None:
            points = problem.space.start(problem.n_candidates, problem.seed)
            return PeakState(points, np.zeros(len(points)), none, problem.most_rows, passes=1)
        points = problem.space.plain(problem.n_plain, problem.seed)
        if problem.start is not None:
            points = np.concatenate([points, problem.start])
        return PeakState(points, np.zeros(len(points)), none, problem.sample_rows)

    def request(self, problem: PeakProblem, state: PeakState) -> Sequence[Record] | None:
        """The sample of the next search, the sums of the candidates of the last one, or both."""
        if state.finished:
            return None
        if state.passes == 0:
            return (_sample(problem, state.sample_rows, 0),)
        verification = verification_record(problem.targets, problem.space.feature_map(state.unverified), problem.dtype)
        # the next sample is drawn in the same pass, in case it is needed: a pass costs more than a sample
        larger = min(2 * state.sample_rows, problem.most_rows)
        if larger == state.sample_rows:
            return (verification,)
        return verification, _sample(problem, larger, state.passes)

    def step(self, problem: PeakProblem, state: PeakState, results: Sequence[Any]) -> PeakState:
        """Search the sample; or compare verified potentials with sampled ones, and search again if they differ."""
        if state.passes > 0:
            first = len(state.verified)
            state = replace(state, verified=np.concatenate([state.verified, verified_potentials(results[0])]))
            compared = first + problem.space.distinct(state.points[first:], state.verified[first:], _COMPARED_PEAKS)
            # random draws and given points count as 0 on the sample, so that none asks for a larger one
            potentials = state.sampled[compared], state.verified[compared]
            rows = grown_sample(state.sample_rows, *potentials, most=problem.most_rows)
            if len(results) == 1 or rows == state.sample_rows:
                return replace(state, passes=state.passes + 1, finished=True)
            state = replace(state, sample_rows=rows)
        # Search on the new sample.
        sample: Block = results[-1]
        weight = sample.drawn_from(problem.n_rows).weight
        repeats = np.ones((sample.n_rows, 1)) if weight is None else weight[:, None]
        # S contains the rows' weights, which the sample was drawn by: they are divided out, the class factors stay
        S = problem.targets(sample) * (repeats / sample.weights[:, None])
        # a row that repeats r times is paired with itself r times, each with (S / r)^2
        squares = np.sum(S**2 / repeats, axis=0)
        X = scale_rows(sample.X, problem.space.scaler, problem.dtype)
        scale = np.abs(S).sum() or 1.0
        seed = problem.seed + state.passes
        points, heights = problem.space.search(X, S / scale, problem.n_candidates, seed, weight=weight)
        normal = pair_potentials(heights * scale**2, np.abs(S).sum(axis=0), squares)
        return replace(
            state,
            points=np.concatenate([state.points, points]),
            sampled=np.concatenate([state.sampled, normal]),
            passes=state.passes + 1,
        )

    def stopped(self, problem: PeakProblem, state: PeakState, why: str) -> PeakState | None:
        """The state with the verified candidates alone; None before any was verified."""
        if state.finished or len(state.verified) == 0:
            return state if state.finished else None
        # candidates of an interrupted search have no potential on all rows
        verified = slice(len(state.verified))
        return replace(state, points=state.points[verified], sampled=state.sampled[verified], finished=True, ended=why)

    def memory(self, problem: PeakProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the last search's rows, stored and scaled, and of the ascent; nothing for a finite pool."""
        if problem.space.size is not None:
            return {}
        rows = min(problem.most_rows, n_rows)
        ascent = problem.space.search_bytes(rows, problem.n_candidates)
        return {"searched rows": 2 * rows * row_bytes, "chains that climb": ascent}

    def plan(self, problem: PeakProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes of the first sample, and of a verification for each possible search."""
        n_given = 0 if problem.start is None else len(problem.start)
        points = problem.space.start(problem.n_candidates + problem.n_plain + n_given, problem.seed)
        verification = verification_record(problem.targets, problem.space.feature_map(points), problem.dtype)
        if problem.space.size is not None:
            return [((verification,), 1)]
        first = _sample(problem, problem.sample_rows, 0)
        if problem.most_searches == 1:
            return [((first,), 1), ((verification,), 1)]
        last = _sample(problem, problem.most_rows, 1)
        return [((first,), 1), ((verification, last), problem.most_searches)]


def chosen_points(problem: PeakProblem, state: PeakState) -> np.ndarray:
    """Positions of the best distinct verified candidates, then of random draws up to `n_points`."""
    points = state.points[: len(state.verified)]
    peaks = problem.space.distinct(points, state.verified, problem.n_peaks)
    return filled(peaks, problem.n_plain, problem.n_points)


def filled(peaks: np.ndarray, n_plain: int, n_points: int) -> np.ndarray:
    """Positions of peaks, followed by random draws (the first `n_plain` points) up to `n_points` in total."""
    plain = np.setdiff1d(np.arange(n_plain), peaks)[: max(0, n_points - len(peaks))]
    return np.concatenate([peaks, plain])


def verification_record(targets: PeakTargets, candidates: FeatureMap, dtype: str) -> BlockSum:
    """The record of the sums for the candidates' potentials on all rows."""
    K = targets.n_columns
    shape = (candidates.columns_a_frequency, candidates.n_frequencies, K)
    accumulators = {"features": Accumulator(shape), "absolutes": Accumulator((K,)), "squares": Accumulator((K,))}
    operands = {"feature_map": candidates, "targets": targets, "dtype": dtype}

    def cost(rows: int, columns: int) -> Cost:
        product = mapping_flops(columns, candidates) + 2 * K * candidates.n_features
        scratch = 16 * candidates.n_features * K + 8 * rows * K + candidates.projection.nbytes
        return Cost(rows * product, scratch + _SCRATCH_BYTES)

    # usually the first sample is large enough, and one verification suffices
    return BlockSum("verification", peak_sums, accumulators, operands, cost, usual_calls=1)


def peak_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of the candidates' features with the weight columns S, and of |S| and of its squares, over a block.

    A row of weight w counts as w rows, each of which is paired with itself: its square is S^2 / w.
    """
    targets: PeakTargets = operands["targets"]
    targeted = with_targets(block)
    S = targets(targeted)
    features = feature_sums(block.X, S, operands["feature_map"], dtype=operands["dtype"], stay=True)
    squares = (S**2 / targeted.weights[:, None]).sum(axis=0)
    return sums_on_host({"features": features, "absolutes": abs(S).sum(axis=0), "squares": squares})


def verified_potentials(sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """Pair potentials of the candidates, from the sums of `verification_record`: v = sum_k C_k^2 + Q_k^2."""
    potentials = np.sum(sums["features"] ** 2, axis=(0, 2))
    return pair_potentials(potentials, sums["absolutes"], sums["squares"])


def _sample(problem: PeakProblem, rows: int, number: int) -> RowSample:
    """The record of a search's sample; different numbers draw different rows."""
    return RowSample("rows to search on", min(rows, problem.n_rows), problem.seed, number)
