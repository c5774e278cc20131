"""Nesterov's excessive gap technique for the margin game on a finite set of features, as a driver on block sums.

In norm form the game is bilinear between two convex terms (Nesterov 2005, "Excessive gap technique in nonsmooth convex
minimization"): min over w of |w|_(1,2)^2 / 2 + max over alpha of 1'alpha - <alpha, A w>, (A w)_i = y_i sum_t w_t.phi_t.
Both sides are smoothed by squared Euclidean terms, mu_1 |w|^2 / 2 and mu_2 |alpha|^2 / 2. Every step shrinks one of
them and maintains f_mu2(w) <= phi_mu1(alpha), so that the true gap is at most mu_1 D_1 + mu_2 D_2: O(1/T), while that
of no-regret play is O(1/sqrt(T)). The term |w|_(1,2)^2 / 2 is not smooth; its proximal map replaces the gradient
mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.methods.game.problem import (
    N_INTERCEPTS,
    GameProblem,
    RoundsState,
    after_reduction,
    break_accumulators,
    intercept_trials,
    last_metrics,
    least_value,
    multiplier_record,
    next_intercepts,
    round_entry,
    row_columns,
    standing,
    sum_accumulators,
)
from dkl.methods.game.projection import first_edges
from dkl.methods.game.sums import Feasible, Smoothed, gram_block, score_block, sum_block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

__all__ = ["ExcessiveGapDriver", "group_proximal"]

# limits the float64 Gram matrix of the pool to 64 MiB
_MOST_COLUMNS = 2_800


def group_proximal(gradient: np.ndarray, strength: float) -> np.ndarray:
    """The w that maximises <w, gradient> - |w|_(1,2)^2 / 2 - strength |w|_2^2 / 2, |w|_(1,2) the sum of all |w_t|.

    Parameters
    ----------
    gradient : ndarray of shape (D, ...)
        Each row is a group.
    strength : float
        Weight of the Euclidean term; positive.

    Returns
    -------
    ndarray of the shape of `gradient`
        The length of every group reduced by tau = |w|_(1,2), but to 0 at least, then divided by `strength`.
    """
    lengths = np.sqrt(np.square(gradient).reshape(len(gradient), -1).sum(axis=1))
    # if the m longest groups remain, tau = sum of their lengths / (strength + m); the largest of these is the right one
    ordered = np.sort(lengths)[::-1]
    levels = np.cumsum(ordered) / (strength + np.arange(1, len(ordered) + 1))
    tau = levels.max(initial=0.0)
    kept = np.maximum(lengths - tau, 0.0) / (strength * np.maximum(lengths, np.finfo(np.float64).tiny))
    return gradient * kept.reshape(-1, *(1,) * (gradient.ndim - 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class ExcessiveGapState(RoundsState):
    """The state of the technique between two passes.

    Attributes
    ----------
    phase : str
        "norm", "score", "project", "sum" or "done".
    move : str
        The step that the passes belong to: "start", "primal", "respond" (first half of a dual step), "ascend" (second
        half).
    point : ndarray of shape (D, parts, K)
        The w that the next pass scores rows with.
    primal : ndarray of shape (D, parts, K)
        w of the current pair, which satisfies the excessive gap condition with alpha.
    dual_sums : ndarray of shape (D, parts, K)
        A' alpha of the pair.
    smoothing : ndarray of shape (2,)
        mu_1 and mu_2.
    norm : float
        |A|^2, the largest eigenvalue of the Gram matrix.
    step : float
        tau, the relative size of the current step.
    upper : float
        The best upper bound on the value so far; `best` is its w.
    """

    move: str
    point: np.ndarray
    primal: np.ndarray
    dual_sums: np.ndarray
    best: np.ndarray
    smoothing: np.ndarray
    norm: float = 0.0
    step: float = 1.0
    upper: float = np.inf
    lower: float = 0.0
    reductions: int = 0
    error: float = 1.0
    bounds: np.ndarray = field(default_factory=lambda: np.zeros(2))

    @property
    def weights(self) -> np.ndarray:
        """The dual measure of the best machine: lambda_t proportional to |w_t|, (D,)."""
        lengths = _lengths(self.best)
        total = lengths.sum()
        return lengths / total if total > 0.0 else np.full(len(lengths), 1.0 / len(lengths))


class ExcessiveGapDriver:
    """A driver whose iteration is a primal and a dual step, six row reads; see `dkl.protocols.driver.Driver`."""

    def columns(self, problem: GameProblem) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The row columns: dual weights before their projection, alpha of the pair, alpha at the intermediate point."""
        return row_columns(problem, ("dual", "mean", "hat"))

    def init(self, problem: GameProblem) -> ExcessiveGapState:
        """The state before any pass, or the last state of a continued run, which starts the next iteration."""
        if problem.start is not None:
            more = len(problem.start.history) < problem.rules.rounds
            return replace(problem.start, phase="score", message="") if more else problem.start
        pool, K = _pool(problem), problem.n_blocks
        zero = np.zeros((pool.n_frequencies, pool.columns_a_frequency, K))
        edges = first_edges(np.zeros(K), np.full(K, 2.0 * problem.upper))
        return ExcessiveGapState(
            phase="norm",
            move="start",
            point=zero,
            primal=zero,
            dual_sums=zero,
            best=zero,
            smoothing=np.ones(2),
            edges=edges,
            shifts=np.zeros((1, K)),
            found=np.zeros(K, bool),
            intercepts=np.zeros(K),
            spread=np.full(K, 0.5),
        )

    def request(self, problem: GameProblem, state: ExcessiveGapState) -> Sequence[Record] | None:
        """The record of the next pass."""
        if state.phase == "done":
            return None
        if state.phase == "project":
            return [multiplier_record(problem, state.edges)]
        constructors = {"norm": _norm_record, "score": _score_record, "sum": _sum_record}
        return [constructors[state.phase](problem, state)]

    def step(self, problem: GameProblem, state: ExcessiveGapState, results: Sequence[Any]) -> ExcessiveGapState:
        """The state after the pass of the current phase, from its results."""
        after = {
            "norm": _smoothed_state,
            "score": _scored_state,
            "project": _with_narrower_edges,
            "sum": _state_after_sums,
        }
        return after[state.phase](problem, state, results[0])

    def metrics(self, problem: GameProblem, state: ExcessiveGapState) -> dict[str, float]:
        """Number, upper bound and relative gap of the last iteration."""
        return last_metrics(state.history)

    def stopped(self, problem: GameProblem, state: ExcessiveGapState, why: str) -> ExcessiveGapState | None:
        """The state after the last complete iteration; None before it, and in the middle of an iteration."""
        if state.phase == "done":
            return state
        if not state.history or (state.phase, state.move) != ("score", "primal"):
            return None
        return replace(
            state,
            phase="done",
            message=f"{why} after {len(state.history)} rounds: {standing(state.history)}, certified",
        )

    def memory(self, problem: GameProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the pool's Gram matrix, and of the computation of its largest eigenvalue."""
        return {"Gram matrices": 3 * 8 * _pool(problem).n_features ** 2}

    def plan(self, problem: GameProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The Gram matrix, then three pairs of reads for each iteration, with reductions between them."""
        state, T = self.init(problem), problem.rules.rounds
        return [
            ([_norm_record(problem, state)], 1),
            ([_score_record(problem, state)], 3 * T + 1),
            ([multiplier_record(problem, state.edges)], 3 * (3 * T + 1)),
            ([_sum_record(problem, state)], 3 * T + 1),
        ]


def _pool(problem: GameProblem) -> FeatureMap:
    """The finite set of features; ValueError if the technique does not apply to it."""
    if problem.rules.projection != "exact":
        raise ValueError("dynamics='excessive-gap' needs projection='exact': its condition does not survive another")
    if problem.pool is None:
        raise ValueError(
            "dynamics='excessive-gap' needs a finite set of features (SphericalHarmonics, Coordinates, ArcCosine); in "
            "R^d use dynamics='no-regret'"
        )
    if len(np.unique(problem.pool.groups)) < problem.pool.n_frequencies:
        raise ValueError(
            "dynamics='excessive-gap' weighs single features, and this pool has blocks of several; use blocks='single' "
            "or dynamics='no-regret'"
        )
    if problem.pool.n_features > _MOST_COLUMNS:
        raise ValueError(
            f"dynamics='excessive-gap' forms the Gram matrix of the whole pool, of at most {_MOST_COLUMNS} columns; "
            f"this one has {problem.pool.n_features}: take fewer, or dynamics='no-regret'"
        )
    return problem.pool


def _lengths(w: np.ndarray) -> np.ndarray:
    """|w_t| of each feature, (D,)."""
    return np.sqrt(np.square(w).sum(axis=(1, 2)))


def _columns(w: np.ndarray) -> np.ndarray:
    """(D, parts, K) as coefficients of mapped rows, (n_features, K)."""
    return w.transpose(1, 0, 2).reshape(-1, w.shape[2])


def _norm_record(problem: GameProblem, state: ExcessiveGapState) -> BlockSum:
    """The Gram matrix of the whole pool, whose largest eigenvalue is |A|^2."""
    pool = _pool(problem)
    width = pool.n_features
    operands = {"targets": problem.targets, "feature_map": pool, "dtype": problem.dtype}
    accumulators = {"gram": Accumulator((width, width)), "classes": Accumulator((2, problem.n_blocks))}

    def cost(rows: int, columns: int) -> Cost:
        return Cost(rows * (mapping_flops(columns, pool) + 1.0 * width * width), 8 * width * (2_048 + 2 * width))

    return BlockSum("game: norm", gram_block, accumulators, operands, cost)


def _score_record(problem: GameProblem, state: ExcessiveGapState) -> BlockSum:
    """The record of a pass that scores rows with `point`, and writes the dual weights to project next."""
    K, ridge = problem.n_blocks, problem.rules.ridge
    # the best alpha for w before its projection: it maximises 1'alpha - <alpha, A w> - (mu_2 + ridge) / 2 |alpha|^2
    smoothed = Smoothed(0.0, 1.0 / (state.smoothing[1] + ridge))
    if state.move == "ascend":
        # a gradient step from the intermediate point, at which the smoothed objective has curvature |A|^2 / mu_1
        steepness = state.norm / state.smoothing[0]
        smoothed = Smoothed(steepness / (steepness + ridge), 1.0 / (steepness + ridge))
    operands = {
        "targets": problem.targets,
        "upper": problem.upper,
        "feature_map": _pool(problem),
        "coefficients": _columns(state.point),
        "smoothed": smoothed,
        "edges": state.edges,
        "trials": intercept_trials(state.intercepts, state.spread),
        "loss": problem.rules.loss,
        "dtype": problem.dtype,
    }
    accumulators = {
        "losses": Accumulator((K, 1, N_INTERCEPTS)),
        "errors": Accumulator(()),
        **break_accumulators(problem),
    }
    cost = partial(_cost, problem=problem)
    return BlockSum(
        "game: scores", score_block, accumulators, operands, cost, reads=("hat",), writes={"dual": "float64"}
    )


def _sum_record(problem: GameProblem, state: ExcessiveGapState) -> BlockSum:
    """The record of a pass that projects, sums features, and mixes the projected weights into a column of alpha."""
    pool, K = _pool(problem), problem.n_blocks
    # the share of the projected weights in the column: 1, or tau, with 1 - tau for those of the pair
    share = {"start": 1.0, "primal": state.step, "respond": state.step, "ascend": 1.0}[state.move]
    target = "hat" if state.move == "respond" else "mean"
    operands = {
        "targets": problem.targets,
        "feasible": Feasible(problem.upper, state.shifts),
        "candidates": pool,
        "dtype": problem.dtype,
        "share": share,
        "target": target,
    }
    cost, writes, accumulators = partial(_cost, problem=problem), {target: "float64"}, sum_accumulators(pool, K)
    return BlockSum("game: sums", sum_block, accumulators, operands, cost, reads=("dual", "mean"), writes=writes)


def _cost(rows: int, columns: int, *, problem: GameProblem) -> Cost:
    """The cost of mapping rows to the whole pool, and of products of the features with a column for each dual block."""
    pool, K = _pool(problem), problem.n_blocks
    each = mapping_flops(columns, pool) + 2.0 * K * pool.n_features
    return Cost(rows * each, 16 * pool.n_features * (2_048 + K) + 200 * rows * K + pool.projection.nbytes)


def _smoothed_state(
    problem: GameProblem, state: ExcessiveGapState, sums: Mapping[str, np.ndarray]
) -> ExcessiveGapState:
    """The state with |A|^2 from the Gram matrix, and mu_1, mu_2 for which the first pair satisfies the condition."""
    # |A|^2 is the largest eigenvalue of A'A: the signs y_i do not change the Gram matrix of the features
    norm = max(float(np.linalg.eigvalsh(sums["gram"])[-1]), np.finfo(np.float64).tiny)
    classes = sums["classes"]
    total = float(classes[:, 0].sum())
    # The largest |alpha|^2, and |w|^2 of a machine with scores of 2 on features of mean length. Any ratio satisfies the
    # condition; a bound on |w| that holds for all rows would be hundreds of times too large.
    squares = problem.rules.unit**2 * total * problem.n_blocks
    length = float(np.trace(sums["gram"])) / (total * _pool(problem).n_frequencies)
    second = np.sqrt(norm * 4.0 * problem.n_blocks / max(length, np.finfo(np.float64).tiny) / squares)
    first = norm / (second + problem.rules.ridge)
    return replace(state, phase="score", norm=norm, total=total, smoothing=np.array([first, second]))


def _scored_state(problem: GameProblem, state: ExcessiveGapState, sums: Mapping[str, np.ndarray]) -> ExcessiveGapState:
    """The state with the upper bound of the scored machine, and the first reduction of the projection."""
    # |w|_(1,2)^2 / 2 + C sum of losses, at the best of the intercepts that were tried
    value = 0.5 * float(_lengths(state.point).sum()) ** 2 + problem.rules.C * float(sums["losses"].min(axis=2).sum())
    trials = intercept_trials(state.intercepts, state.spread).intercepts
    best = np.take_along_axis(trials, sums["losses"][:, 0].argmin(axis=1)[:, None], axis=1)[:, 0]
    if state.move == "respond" or value < state.upper:
        intercepts, spread = next_intercepts(state, best)
        state = replace(state, intercepts=intercepts, spread=spread)
    if value < state.upper:
        state = replace(state, upper=value, best=state.point, error=float(sums["errors"]) / state.total)
    state = replace(state, phase="project", found=np.zeros(problem.n_blocks, bool), reductions=0)
    return _with_narrower_edges(problem, state, sums)


def _with_narrower_edges(
    problem: GameProblem, state: ExcessiveGapState, sums: Mapping[str, np.ndarray]
) -> ExcessiveGapState:
    """The state with narrower edges around the multipliers, or in the phase of sums once all multipliers are exact."""
    state = replace(state, reductions=state.reductions + 1)
    return after_reduction(problem, state, sums, state.reductions, "sum")


def _state_after_sums(
    problem: GameProblem, state: ExcessiveGapState, sums: Mapping[str, np.ndarray]
) -> ExcessiveGapState:
    """The state after the pass of sums of the current step; if it ends an iteration, with its entry in the history."""
    # (D, parts, K): A' alpha of the projected weights
    answer = sums["features"].transpose(1, 0, 2)
    reach = np.maximum(2.0 * np.abs(state.shifts[0]), problem.rules.unit)
    state = replace(state, phase="score", edges=first_edges(np.zeros(problem.n_blocks), reach))
    move = state.move
    if move == "start":
        # the first pair: alpha is the best one for w = 0, and w is a step from there along the sums of alpha
        primal = group_proximal(answer, state.norm / (state.smoothing[1] + problem.rules.ridge))
        state = _toward_primal(problem, replace(state, primal=primal, dual_sums=answer))
    elif move == "primal":
        state = _after_primal(problem, state, answer)
    elif move == "respond":
        state = _after_response(problem, state, answer)
    else:
        # a dual step has reduced mu_2 by the factor 1 - tau; the next iteration begins
        smoothing = state.smoothing * np.array([1.0, 1.0 - state.step])
        state = _toward_primal(problem, replace(state, dual_sums=answer, smoothing=smoothing))
    if move != "respond":
        total, squares = float(sums["alpha"].sum()), float(sums["squares"].sum())
        lower = least_value(problem, total, squares, float(np.square(state.dual_sums).sum(axis=(1, 2)).max()))
        state = replace(state, bounds=sums["bounds"], lower=max(state.lower, lower))
    return _state_with_history(problem, state) if move == "ascend" else state


def _toward_primal(problem: GameProblem, state: ExcessiveGapState) -> ExcessiveGapState:
    """Start a primal step at the point between the pair's w and the best w for its alpha."""
    tau = _step(problem, state)
    # the best w for alpha: argmax <w, A' alpha> - |w|_(1,2)^2 / 2 - mu_1 |w|^2 / 2
    reply = group_proximal(state.dual_sums, state.smoothing[0])
    return replace(state, move="primal", step=tau, point=(1.0 - tau) * state.primal + tau * reply)


def _after_primal(problem: GameProblem, state: ExcessiveGapState, answer: np.ndarray) -> ExcessiveGapState:
    """Reduce mu_1, and start a dual step with the best alpha for the new w."""
    tau, steepness = state.step, state.norm / (state.smoothing[1] + problem.rules.ridge)
    # a proximal step from the intermediate point replaces the gradient mapping of a smooth term
    primal = group_proximal(steepness * state.point + answer, steepness)
    dual_sums = (1.0 - tau) * state.dual_sums + tau * answer
    smoothing = state.smoothing * np.array([1.0 - tau, 1.0])
    state = replace(state, primal=primal, dual_sums=dual_sums, smoothing=smoothing, point=primal, move="respond")
    return replace(state, step=_step(problem, state))


def _after_response(problem: GameProblem, state: ExcessiveGapState, answer: np.ndarray) -> ExcessiveGapState:
    """Compute the best w for the intermediate alpha, which the next pass takes an ascent step from."""
    tau = state.step
    # A' alpha is linear in alpha, so that the sums of a mixture are the mixture of the sums and need no pass
    hat_sums = (1.0 - tau) * state.dual_sums + tau * answer
    reply = group_proximal(hat_sums, state.smoothing[0])
    primal = (1.0 - tau) * state.primal + tau * reply
    return replace(state, move="ascend", point=reply, primal=primal)


def _step(problem: GameProblem, state: ExcessiveGapState) -> float:
    """The largest tau with tau^2 / (1 - tau) <= mu_1 (mu_2 + ridge) / |A|^2, which maintains the condition."""
    q = float(state.smoothing[0] * (state.smoothing[1] + problem.rules.ridge)) / state.norm
    return float(0.5 * (np.sqrt(q * q + 4.0 * q) - q))


def _state_with_history(problem: GameProblem, state: ExcessiveGapState) -> ExcessiveGapState:
    """The state with the iteration's entry in the history, finished if it was the last one."""
    rules, blocks = problem.rules, state.total * problem.n_blocks
    lengths = _lengths(state.best)
    entry = {
        **round_entry(state.history, state.upper, state.lower),
        "support": float(np.count_nonzero(lengths)),
        "potential": float(np.square(state.dual_sums).sum(axis=(1, 2)).max()),
        "margin": 1.0 / max(float(lengths.sum()), 1e-300),
        "error": state.error,
        "step": float(state.step),
        "at_zero": float(state.bounds[0]) / blocks,
        "at_bound": float(state.bounds[1]) / blocks,
    }
    state = replace(state, history=(*state.history, entry))
    share = f"{standing(state.history)}, certified"
    if rules.tol is not None and entry["relative_gap"] <= rules.tol:
        return replace(
            state, phase="done", message=f"reached the target gap after {len(state.history)} rounds: {share}"
        )
    if len(state.history) >= rules.rounds:
        message = f"all {rules.rounds} rounds are played: {share}; more rounds close it further"
        return replace(state, phase="done", message=message)
    return state


def norm_machine(problem: GameProblem, state: ExcessiveGapState) -> tuple[FeatureMap, np.ndarray, np.ndarray]:
    """The feature map with amplitudes sqrt(lambda), lambda of its features, and coef (K, n_features) of the machine."""
    # lambda_t = |w_t| / sum |w|: the kernel measure for which sum |w_t|^2 / lambda_t is |w|_(1,2)^2
    weights = state.weights
    used = np.flatnonzero(weights > 0.0)
    amplitudes = np.sqrt(weights[used])
    coef = state.best[used] / amplitudes[:, None, None]
    return _pool(problem).take(used, amplitudes), weights[used], _columns(coef).T
