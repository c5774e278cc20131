"""The driver of a learned metric: rounds of a kernel model in the present metric, and products of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import distance

from dkl.features.nystrom_projection import in_metric
from dkl.features.scaling import Scaler
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import one_blas_thread
from dkl.linear.judge import rounds_without_gain
from dkl.methods.metric.sums import MetricModel, slope_block, system_block
from dkl.methods.rounds.loop import HeldTargets, WithHistory
from dkl.protocols.arrays import dense_rows
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.systems import solve_positive

# The ridges that held-out rows choose from: factors of the kernel's own norm in the objective.
_PENALTIES = 10.0 ** np.arange(-3.0, 3.1, 0.5)
# Factor on the chosen ridge for the model whose gradients define the metric. The best ridge of a first round smooths
# the effect of single columns away: on puma32h its gradients left the loss at .87 in two of eight draws, those of the
# smaller ridge reached .25 in all.
_LIGHTER = 1.0 / 300.0
# Multiple of the identity added to a metric of trace d, so that no column loses its effect for good.
_FLOOR = 1e-4
# Relative fall of the held-out loss below which a round counts as one without a gain.
_LEAST_GAIN = 1e-3
# The most landmarks whose median distance is the bandwidth, of which all pairs are computed.
_DISTANCES = 1_000
# Multiple of the identity added to the Gram matrix of a kernel model, so that rounding leaves its system definite: this
# share of the mean diagonal entry of the sum of that matrix and the landmarks' kernel matrix.
_JITTER = 1e-8


@dataclass(frozen=True, eq=False)
class MetricProblem:
    """The search for a metric: kernel, rows and limits.

    Parameters
    ----------
    kernel : Gaussian or Matern
        With its bandwidth for scaled columns; "median" is the median distance between landmarks.
    scaler : Scaler or None
    targets : HeldTargets
    n_models : int
    n_columns : int
    n_landmarks : int
        Landmarks of the kernel models.
    is_full : bool
        Whether the metric is a matrix, or else a factor for each column.
    rounds, patience : int
        The most rounds, and rounds without a gain after which the search ends.
    seed : int
    """

    kernel: Any
    scaler: Scaler | None
    targets: HeldTargets
    n_models: int
    n_columns: int
    n_landmarks: int
    is_full: bool
    rounds: int = 6
    patience: int = 2
    seed: int = 0


@dataclass(frozen=True, eq=False)
class MetricState(WithHistory):
    """The state of the rounds between passes.

    Attributes
    ----------
    phase : {"sample", "system", "slopes", "done"}
    landmarks : ndarray of shape (l, d)
        Scaled landmarks, without the metric.
    metrics : ndarray of shape (c, d) or (c, d, d)
        The roots R of the metrics that the next pass judges. A full metric competes with its diagonal, since its other
        entries are noise if few columns matter: on puma32h the diagonal reaches .25, the full one .44 and .55.
    sigmas : ndarray of shape (c,)
        The bandwidth in each metric: the same multiple of the median distance as the kernel's own in scaled columns.
    coefficients : ndarray of shape (K, l)
        The model whose gradients are summed.
    best_metric, best_sigma
        The metric and bandwidth of the last round that lowered the held-out loss.
    history : ndarray of shape (rounds, 2)
        A line for each round, with the columns `names`.
    """

    phase: str
    landmarks: np.ndarray
    metrics: np.ndarray
    sigmas: np.ndarray
    coefficients: np.ndarray
    best_metric: np.ndarray
    best_sigma: float
    history: np.ndarray

    names: ClassVar[tuple[str, ...]] = ("held_out_loss", "penalty")


class MetricDriver:
    """A pass for landmarks, then two for each round: the system of the kernel model, and products of its gradients.

    The metric is M = mean of grad f grad f' in scaled columns, normalised to trace d, plus a small multiple of the
    identity. M replaces the previous metric. (Radhakrishnan, Beaglehole, Pandit & Belkin 2024, "recursive feature
    machine".)
    """

    def init(self, problem: MetricProblem) -> MetricState:
        """No landmarks, and the identity as metric."""
        # the median distance is computed once landmarks are drawn
        d, sigma = problem.n_columns, 1.0 if problem.kernel.needs_bandwidth else float(problem.kernel.sigma)
        metric = np.eye(d) if problem.is_full else np.ones(d)
        return MetricState(
            phase="sample",
            landmarks=np.zeros((0, d)),
            metrics=metric[None],
            sigmas=np.array([sigma]),
            coefficients=np.zeros((problem.n_models, 0)),
            best_metric=metric,
            best_sigma=sigma,
            history=np.zeros((0, len(MetricState.names))),
        )

    def request(self, problem: MetricProblem, state: MetricState) -> Sequence[Record] | None:
        """The record of the landmarks, of a system, or of slopes; None after the last round."""
        if state.phase == "done":
            return None
        if state.phase == "sample":
            return [self._sample(problem)]
        return [_record(problem, state, number) for number in range(len(state.metrics))]

    @one_blas_thread()
    def step(self, problem: MetricProblem, state: MetricState, results: Sequence[Any]) -> MetricState:
        """The state after a pass."""
        if state.phase == "sample":
            rows = np.unique(dense_rows(scale_rows(results[0].X, problem.scaler, "float64")), axis=0)
            landmarks = np.random.default_rng(problem.seed).permutation(rows)
            sigma = _bandwidth(problem, landmarks)
            return replace(state, phase="system", landmarks=landmarks, sigmas=np.array([sigma]), best_sigma=sigma)
        return (
            _judged_state(problem, state, results)
            if state.phase == "system"
            else _state_with_metrics(problem, state, results[0])
        )

    def plan(self, problem: MetricProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass that draws landmarks, and the passes of all rounds."""
        state = replace(self.init(problem), landmarks=np.zeros((problem.n_landmarks, problem.n_columns)))
        system, slopes = (_record(problem, replace(state, phase=phase), 0) for phase in ("system", "slopes"))
        systems = [system] * (2 if problem.is_full else 1)
        return [([self._sample(problem)], 1), (systems, problem.rounds), ([slopes], problem.rounds)]

    def planned(self, problem: MetricProblem) -> MetricState:
        """The identity as metric, which has the size of any, and two different landmarks."""
        return replace(self.init(problem), landmarks=np.eye(2, problem.n_columns))

    def memory(self, problem: MetricProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the systems, their factors, and the metric with its root."""
        n_landmarks, d = problem.n_landmarks, problem.n_columns
        return {
            "landmarks of the metric": 3 * n_landmarks * row_bytes,
            "systems of the kernel model": (8 if problem.is_full else 6) * 8 * n_landmarks**2,
            "the metric": 6 * 8 * (d * d if problem.is_full else d),
        }

    def metrics(self, problem: MetricProblem, state: MetricState) -> dict[str, float]:
        """The held-out loss of the last round."""
        return {"held_out_loss": float(state.series("held_out_loss")[-1])} if len(state.history) else {}

    def _sample(self, problem: MetricProblem) -> RowSample:
        return RowSample("landmarks of the metric", problem.n_landmarks, problem.seed)


def _record(problem: MetricProblem, state: MetricState, number: int) -> BlockSum:
    """The record of the next pass for one of the metrics."""
    n_landmarks, K, d = len(state.landmarks), problem.n_models, problem.n_columns
    kernel, metric = problem.kernel.with_bandwidth(state.sigmas[number]), state.metrics[number]
    model = MetricModel(kernel, problem.scaler, state.landmarks, metric, state.coefficients)
    operands = {"targets": problem.targets, "model": model}
    if state.phase == "system":
        square, side = Accumulator((n_landmarks, n_landmarks)), Accumulator((n_landmarks, K))
        accumulators = {"gram": square, "held_gram": square, "gradient": side, "held_gradient": side}
        accumulators |= {"held_squares": Accumulator((K,)), "held_weight": Accumulator(())}
        function, products = system_block, 2.0 * n_landmarks * (n_landmarks + K)
    else:
        accumulators = {"products": Accumulator(metric.shape)}
        function, products = slope_block, 2.0 * K * (n_landmarks * d + metric.size)
    each = 2.0 * metric.size + 3.0 * n_landmarks * (d + 20) + products

    def cost(rows: int, columns: int) -> Cost:
        return Cost(rows * each, 8 * (4 * 1024 * n_landmarks + sum(a.nbytes // 8 for a in accumulators.values())))

    return BlockSum(f"metric: {state.phase}", function, accumulators, operands, cost=cost)


def _judged_state(problem: MetricProblem, state: MetricState, results: Sequence[dict[str, np.ndarray]]) -> MetricState:
    """The state with the metric and ridge of the lowest held-out loss, and the model for the next pass of gradients."""
    systems = [
        _RidgePath(problem.kernel.with_bandwidth(sigma).kernel(in_metric(state.landmarks, metric)), sums)
        for metric, sigma, sums in zip(state.metrics, state.sigmas, results, strict=True)
    ]
    # the best ridge hardly changes from round to round
    before = state.series("penalty")[-1] if len(state.history) else 1.0
    least = [system.best(int(np.argmin(np.abs(np.log(_PENALTIES / before))))) for system in systems]
    chosen = int(np.argmin([loss for loss, _ in least]))
    (loss, best), metric, sigma = least[chosen], state.metrics[chosen], float(state.sigmas[chosen])
    state = replace(state, history=np.concatenate([state.history, [[loss, _PENALTIES[best]]]]))
    n_stale = rounds_without_gain(state.series("held_out_loss"), _LEAST_GAIN)
    state = replace(
        state,
        metrics=metric[None],
        sigmas=np.array([sigma]),
        best_metric=metric if n_stale == 0 else state.best_metric,
        best_sigma=sigma if n_stale == 0 else state.best_sigma,
    )
    if n_stale >= problem.patience or len(state.history) >= problem.rounds:
        return replace(state, phase="done")
    return replace(state, phase="slopes", coefficients=systems[chosen].solved(_PENALTIES[best] * _LIGHTER).T)


class _RidgePath:
    """Ridge models (G + penalty K_ZZ) c = b on landmarks Z, in the kernel's own norm, with their held-out losses."""

    def __init__(self, own: np.ndarray, sums: dict[str, np.ndarray]) -> None:
        # in Fortran order, in which systems are factored
        self._own, self._sums, size = np.asfortranarray(own), sums, len(own)
        jitter = _JITTER * (np.trace(sums["gram"]) + np.trace(own)) / size
        self._gram = np.asfortranarray(sums["gram"] + jitter * np.eye(size))

    def solved(self, penalty: float) -> np.ndarray:
        """The coefficients c, (l, K)."""
        return solve_positive(lambda: self._gram + penalty * self._own, self._sums["gradient"])

    def best(self, place: int) -> tuple[float, int]:
        """The least held-out loss and the position of its ridge, by descent from a position to lower neighbours.

        The loss is assumed unimodal in the ridge, so that most ridges need not be solved.
        """
        losses = {place: self.loss(_PENALTIES[place])}
        for step in (-1, 1):
            while 0 <= place + step < len(_PENALTIES):
                if place + step not in losses:
                    losses[place + step] = self.loss(_PENALTIES[place + step])
                if losses[place + step] >= losses[place]:
                    break
                place += step
        return losses[place], place

    def loss(self, penalty: float) -> float:
        """The mean squared error on held-out rows, from their sums: sum y^2 - 2 c'b + c'Gc."""
        c, sums = self.solved(penalty), self._sums
        errors = sums["held_squares"] - 2.0 * np.sum(c * sums["held_gradient"], axis=0)
        errors = errors + np.sum(c * (sums["held_gram"] @ c), axis=0)
        return float(errors.sum() / max(float(sums["held_weight"]), np.finfo(np.float64).tiny))


def _state_with_metrics(problem: MetricProblem, state: MetricState, sums: dict[str, np.ndarray]) -> MetricState:
    """The state with new metrics from the products of gradients, and their bandwidths."""
    M, d = sums["products"], problem.n_columns
    trace = float(np.trace(M) if M.ndim == 2 else M.sum())
    if not trace > 0.0:
        return replace(state, phase="done")
    M = M * (d / trace)
    if M.ndim == 1:
        metrics = np.sqrt(M + _FLOOR)[None]
    else:
        values, vectors = np.linalg.eigh((M + M.T) / 2.0 + _FLOOR * np.eye(d))
        whole = (vectors * np.sqrt(np.maximum(values, _FLOOR))) @ vectors.T
        metrics = np.stack([np.diag(np.sqrt(np.diagonal(M) + _FLOOR)), whole])
    apart = np.array([_median_distance(in_metric(state.landmarks[:_DISTANCES], R)) for R in metrics])
    before = _median_distance(state.landmarks)
    if not (apart.min() > 0.0 and before > 0.0):
        return replace(state, phase="done")
    sigma = before if problem.kernel.needs_bandwidth else float(problem.kernel.sigma)
    return replace(state, phase="system", metrics=metrics, sigmas=sigma * apart / before)


def _bandwidth(problem: MetricProblem, landmarks: np.ndarray) -> float:
    """The kernel's bandwidth in scaled columns; 1 if all landmarks are equal, so that no round can learn."""
    if not problem.kernel.needs_bandwidth:
        return float(problem.kernel.sigma)
    return _median_distance(landmarks) or 1.0


def _median_distance(landmarks: np.ndarray) -> float:
    """The median distance between two of the first landmarks; 0 for fewer than two."""
    apart = distance.pdist(landmarks[:_DISTANCES])
    return float(np.median(apart)) if len(apart) else 0.0
