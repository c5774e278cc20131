"""The margin game as data: its problem, its state, and the records of its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.methods.frequency_search.frequency_space import FrequencySpace
from dkl.methods.game.projection import N_EDGES, Multipliers, Projection, keep_found, narrow
from dkl.methods.game.sums import (
    DualStep,
    Feasible,
    GameLoss,
    GameTargets,
    Trials,
    balance_block,
    multiplier_block,
    start_block,
    step_block,
    verify_block,
)
from dkl.protocols.records import Accumulator, BlockSum, Cost, RowSample
from dkl.solvers.losses import loss_of

Phase = Literal["open", "resume", "project", "verify", "step", "done"]

# Scales and intercepts around the best ones so far: a pass computes the loss of every combination.
N_SCALES, N_INTERCEPTS = 5, 9
# Alternations between box and hyperplane in the paper's projection (Algorithm 3).
ALTERNATIONS = 10
# Limit on the passes of one exact projection, each over targets and dual weights alone. Usually two suffice: a pass
# divides the bracket of the multiplier by thousands.
MOST_REDUCTIONS = 8
_TILE_BYTES = 16 << 20


@dataclass(frozen=True)
class GameRules:
    """Length and steps of the game.

    Parameters
    ----------
    C : float
        |w|^2 / 2 + C sum of losses, like scikit-learn's linear SVMs.
    loss : {"hinge", "squared_hinge"}
        The loss of the dual problem.
    rounds : int
        T, the largest number of rounds.
    per_round : int
        Frequencies that the kernel player adds in one round, equally weighted.
    most : int
        Largest number of frequencies.
    rate : float or None
        Limits the step of the dual player to rate C / sqrt(t) in any coordinate. None takes the steps of theorem 4.1, D
        / (G sqrt(t)) for the hinge and C' / t for the squared hinge, which are far smaller.
    tol : float or None
        Stop at this relative duality gap.
    patience : int or None
        Stop after this number of rounds in a row without a lower loss on held-out rows.
    projection : {"exact", "alternating"}
    """

    C: float = 1.0
    loss: GameLoss = "hinge"
    rounds: int = 100
    per_round: int = 1
    most: int = 1_000_000
    rate: float | None = 0.3
    tol: float | None = None
    patience: int | None = None
    projection: Projection = "exact"

    @property
    def curvature(self) -> float:
        """C': the dual of the squared hinge subtracts |alpha|^2 / (2 C'); infinite for the hinge."""
        # the conjugate of C times the loss, at slope -alpha, has conjugate_square alpha^2 / C
        square = loss_of(self.loss).conjugate_square
        return self.C / (2.0 * square) if square else np.inf

    @property
    def ridge(self) -> float:
        """1 / C', the factor of |alpha|^2 / 2 in the dual; 0 for the hinge."""
        return 1.0 / self.curvature

    @property
    def unit(self) -> float:
        """The scale of a dual weight: C for the hinge, C' for the squared hinge."""
        return self.C if self.loss == "hinge" else self.curvature

    def upper(self, total: float) -> float:
        """The upper bound on dual weights: C; for the squared hinge C' sqrt(n), which the solution does not reach."""
        return self.C if self.loss == "hinge" else self.curvature * float(np.sqrt(total))


@dataclass(frozen=True, eq=False)
class GameProblem:
    """The rows and the families of the game.

    Parameters
    ----------
    targets : GameTargets
    rules : GameRules
    total_weight : float
        Weight of all rows, including held-out ones; scales the box of the squared hinge and the first step.
    n_columns : int
    pool : FeatureMap or None
        The finite set of features that the kernel player chooses from, amplitudes 1; None if it searches R^d.
    space : FrequencySpace or None
        The frequencies of R^d to search; None for a pool.
    seed : int
    search_rows : int
        Rows of the first search.
    most_rows : int
        Limits the rows of later searches, whose samples grow.
    n_candidates : int
        Limits the peaks that one search returns.
    dtype : {"float32", "float64"}
    start : GameState or ExcessiveGapState, or None
        The last state of a game on the same rows, with their columns, which this one continues.
    """

    targets: GameTargets
    rules: GameRules
    total_weight: float
    n_columns: int
    pool: FeatureMap | None = None
    space: FrequencySpace | None = None
    seed: int = 0
    search_rows: int = 4_000
    most_rows: int = 100_000
    n_candidates: int = 100
    dtype: str = "float32"
    start: Any = None

    @property
    def n_blocks(self) -> int:
        """K, dual blocks."""
        return self.targets.n_blocks

    @property
    def upper(self) -> float:
        """Upper bound on the dual weights."""
        return self.rules.upper(self.total_weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundsState:
    """The fields that the states of both dynamics have.

    Attributes
    ----------
    phase : str
        Determines what the next pass computes.
    shifts : ndarray of shape (J, K)
        The multipliers of the projection of the column "dual".
    found : ndarray of shape (K,)
        Whether each of them is exact.
    edges : ndarray of shape (K, M)
        The brackets of the multipliers.
    intercepts, spread : ndarray of shape (K,)
        Those of the best machine so far, and the distance around them that the next pass tries.
    lower : float
        The largest lower bound on the value.
    total : float
        Weight of the training rows.
    history : tuple of dict
    message : str
    """

    phase: str
    edges: np.ndarray
    shifts: np.ndarray
    found: np.ndarray
    intercepts: np.ndarray
    spread: np.ndarray
    lower: float = -np.inf
    total: float = 0.0
    history: tuple[dict[str, float], ...] = ()
    message: str = ""


State = TypeVar("State", bound=RoundsState)


@dataclass(frozen=True, eq=False, kw_only=True)
class GameState(RoundsState):
    """The state of the game between two passes.

    Attributes
    ----------
    frequencies : ndarray of shape (m, d) or None
        Frequencies chosen so far, in R^d; None for a pool.
    played : float
        Sum over rounds of their weights p = t eta, with eta the step of round t.
    mass : ndarray of shape (m,)
        For each frequency (of the pool, or chosen so far) the sum of p / k over the rounds that chose it.
    pull : ndarray of shape (m, parts, K)
        The same sum of p / k times (C, Q), the frequency's sums at that round's dual weights: the gradient of the
        kernel player's objective in the frequency's weights.
    mean_sums : ndarray of shape (D, parts, K) or None
        Sums of the pool at the mean dual weights, times `played`; None in R^d.
    mean_dual : ndarray of shape (2,)
        Sums over rounds of p times sum alpha and of p times sum alpha^2.
    candidates : ndarray of shape (c, d) or None
        Found on the sample and not yet verified; `promised` (c,) are their potentials on the sample.
    chosen : ndarray of int
        Positions of this round's features among the candidates or in the pool.
    answer : ndarray of shape (k, parts, K)
        Feature sums of `chosen`.
    scale : float
        Of the coefficients of the best machine so far.
    sample_rows : int
    """

    phase: Phase
    mass: np.ndarray
    pull: np.ndarray
    sample_rows: int
    frequencies: np.ndarray | None = None
    played: float = 0.0
    mean_sums: np.ndarray | None = None
    mean_dual: np.ndarray = field(default_factory=lambda: np.zeros(2))
    candidates: np.ndarray | None = None
    promised: np.ndarray | None = None
    chosen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    answer: np.ndarray | None = None
    scale: float = 1.0
    step_size: float = 0.0
    step_weight: float = 0.0
    pending: dict[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> np.ndarray:
        """The dual measure, (m,), which sums to 1."""
        return self.mass / self.mass.sum()

    @property
    def coefficients(self) -> np.ndarray:
        """The mean response, (m, parts, K): coefficients on features of amplitude 1, not yet scaled."""
        return self.pull / self.played


def row_columns(problem: GameProblem, names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Row columns with one number for each dual block."""
    return dict.fromkeys(names, ("float64", (problem.n_blocks,)))


def candidate_map(problem: GameProblem, frequencies: np.ndarray) -> FeatureMap:
    """Cosine-sine pairs of these frequencies, amplitudes 1."""
    return searched_space(problem).feature_map(frequencies)


def searched_space(problem: GameProblem) -> FrequencySpace:
    """The frequencies that a game without a pool searches."""
    if problem.space is None:
        raise ValueError("a game in R^d needs a space to search; give GameProblem(space=...) or a pool")
    return problem.space


def opening_records(problem: GameProblem, state: GameState) -> list[Any]:
    """The records of the first pass: initial dual weights, to be projected; in R^d a sample of rows to search on."""
    # every row starts at `unit`, the dual weight of a row with score 0
    operands = {
        "targets": problem.targets,
        "upper": problem.upper,
        "start": problem.rules.unit,
        "edges": state.edges,
    }
    accumulators = {"weight": Accumulator(()), **break_accumulators(problem)}
    start = BlockSum(
        "game: start", start_block, accumulators, operands, writes={"dual": "float64"}, needs_x=problem.pool is None
    )
    return [start] if problem.pool is not None else [start, sample_record(problem, state, 0, reads=())]


def sample_record(
    problem: GameProblem, state: GameState, round: int, reads: tuple[str, ...] = ("dual", "mean")
) -> RowSample:
    """A new sample of rows for the search of a round, with their dual weights."""
    return RowSample("game: sample", state.sample_rows, problem.seed, round, reads=reads)


def projection_record(problem: GameProblem, state: GameState) -> BlockSum:
    """One reduction of the projection; reads no X."""
    if problem.rules.projection == "alternating":
        # an alternation needs one number for each dual block: the mean of y_i alpha_i after the box
        operands = {"targets": problem.targets, "feasible": feasible_of(problem, state)}
        accumulators = {"balance": Accumulator((problem.n_blocks,))}
        return BlockSum("game: balance", balance_block, accumulators, operands, reads=("dual",), needs_x=False)
    return multiplier_record(problem, state.edges)


def multiplier_record(problem: GameProblem, edges: np.ndarray) -> BlockSum:
    """One reduction of the exact projection of the column "dual"."""
    operands = {"targets": problem.targets, "upper": problem.upper, "edges": edges}
    accumulators = break_accumulators(problem)
    return BlockSum("game: multiplier", multiplier_block, accumulators, operands, reads=("dual",), needs_x=False)


def verify_record(problem: GameProblem, state: GameState) -> BlockSum:
    """The candidates' feature sums over all rows under the dual weights."""
    candidates = candidates_of(problem, state)
    # columns of weights: one for each dual block, and as many for the mean dual weights if these are checked
    K = problem.n_blocks * (1 + checks_mean(problem, state))
    operands = {
        "targets": problem.targets,
        "feasible": feasible_of(problem, state),
        "candidates": candidates,
        "dtype": problem.dtype,
        "checks_mean": checks_mean(problem, state),
    }

    def cost(rows: int, columns: int) -> Cost:
        return _map_cost(rows, columns, candidates, K)

    return BlockSum(
        "game: verify", verify_block, sum_accumulators(candidates, K), operands, cost, reads=("dual", "mean")
    )


def sum_accumulators(candidates: FeatureMap, K: int) -> dict[str, Accumulator]:
    """The accumulators of features under K columns of dual weights, and of these weights."""
    return {
        "features": Accumulator((candidates.columns_a_frequency, candidates.n_frequencies, K)),
        "alpha": Accumulator((K,)),
        "squares": Accumulator((K,)),
        "bounds": Accumulator((2,)),
    }


def step_record(problem: GameProblem, state: GameState) -> BlockSum:
    """The record of the dual step along the chosen features, with the losses of the mean machine."""
    answer, K = answer_map(problem, state), problem.n_blocks
    operands = {
        "targets": problem.targets,
        "feasible": feasible_of(problem, state),
        "step": dual_step(problem, state),
        "edges": state.edges,
        "trials": trials_of(state),
        "loss": problem.rules.loss,
    }

    def cost(rows: int, columns: int) -> Cost:
        mapped, machines = _map_cost(rows, columns, answer, K), 6.0 * K * N_SCALES * N_INTERCEPTS
        return Cost(mapped.flops + rows * machines, mapped.scratch_bytes + 160 * rows * K)

    accumulators = {
        "losses": Accumulator((K, N_SCALES, N_INTERCEPTS)),
        # the weight of misclassified training rows, of misclassified held-out rows, and of all held-out rows
        "errors": Accumulator((3,)),
        "held": Accumulator(()),
        "gradient": Accumulator((1,)),
        **break_accumulators(problem),
    }
    columns = ("dual", "mean", "score")
    return BlockSum(
        "game: step",
        step_block,
        accumulators,
        operands,
        cost,
        reads=columns,
        writes=dict.fromkeys(columns, "float64"),
    )


def checks_mean(problem: GameProblem, state: GameState) -> bool:
    """Whether this round also bounds the value by the mean dual weights, which takes a search of its own in R^d.

    A pool's sums are linear in the dual weights, so that its mean needs no check.
    """
    # the gap of theorem 4.1 is that of the mean, but its search costs as much as that of a round, so that only rounds
    # at which the game may end are checked
    is_last = len(state.history) + 1 >= problem.rules.rounds
    return problem.pool is None and len(state.history) > 0 and (is_last or problem.rules.tol is not None)


def feasible_of(problem: GameProblem, state: GameState) -> Feasible:
    """The projection of the column "dual" to feasible dual weights."""
    return Feasible(problem.upper, state.shifts, problem.rules.projection == "exact")


def candidates_of(problem: GameProblem, state: GameState) -> FeatureMap:
    """The features that the kernel player chooses from."""
    return candidate_map(problem, _required_array(state.candidates)) if problem.pool is None else problem.pool


def answer_map(problem: GameProblem, state: GameState) -> FeatureMap:
    """The features chosen in this round."""
    return candidates_of(problem, state).take(state.chosen)


def dual_step(problem: GameProblem, state: GameState) -> DualStep:
    """The step along the features of this round: all cosines, then all sines, equally weighted."""
    # f_i = mean over the chosen features of C cos(w.x_i) + Q sin(w.x_i); y_i f_i is the gradient of the potential / 2
    answer = _required_array(state.answer)
    coefficients = answer.transpose(1, 0, 2).reshape(-1, problem.n_blocks) / len(answer)
    share = state.step_weight / (state.played + state.step_weight)
    return DualStep(
        answer_map(problem, state), coefficients, state.step_size, share, problem.rules.ridge, problem.dtype
    )


def trials_of(state: GameState) -> Trials:
    """The machines that the next pass tries: the best one so far first, then others around it."""
    # one pass computes the losses of 5 scales times 9 intercepts; the best combination changes over rounds
    around = intercept_trials(state.intercepts, state.spread)
    return replace(around, scales=state.scale * np.array([1.0, 0.8, 1.25, 0.5, 1.6]))


def intercept_trials(intercepts: np.ndarray, spread: np.ndarray) -> Trials:
    """The intercepts that the next pass tries: the current one first, then others around it."""
    moves = np.array([0.0, -0.25, 0.25, -1.0, 1.0, -4.0, 4.0, -0.0625, 0.0625])
    return Trials(np.ones(1), intercepts[:, None] + spread[:, None] * moves)


def next_intercepts(state: RoundsState, best: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The intercepts around which the next pass tries others, those of the best machine, and their distance, (K,)."""
    moved = np.abs(best - state.intercepts)
    # the next pass tries intercepts further away if the best one has moved, and closer ones if it has not
    return best, np.clip(np.where(moved > 0.0, 1.5 * moved, 0.25 * state.spread), 1e-9, 1e9)


def after_reduction(
    problem: GameProblem, state: State, sums: Mapping[str, np.ndarray], reductions: int, following: str
) -> State:
    """The state with narrower edges around the multipliers of its exact projection.

    It is in the phase `following` once all multipliers are exact, or after the most reductions.

    Parameters
    ----------
    problem : GameProblem
    state : GameState or ExcessiveGapState
    sums : mapping of str to ndarray
        Of the last reduction.
    reductions : int
        The reductions of this projection so far, including the last one.
    following : str
    """
    known = Multipliers(state.edges, state.shifts[0], state.found)
    search = keep_found(narrow(state.edges, sums, problem.upper), known)
    done = bool(search.found.all()) or reductions > MOST_REDUCTIONS
    phase: Any = following if done else "project"
    return replace(state, edges=search.edges, shifts=search.values[None], found=search.found, phase=phase)


def round_entry(history: Sequence[dict[str, float]], upper: float, lower: float) -> dict[str, float]:
    """The number of the round after those in `history`, the bounds on the value after it, and their gap."""
    gap = upper - lower
    return {
        "round": float(len(history) + 1),
        "upper": upper,
        "lower": lower,
        "gap": gap,
        "relative_gap": gap / max(abs(upper), 1e-300),
    }


def least_value(problem: GameProblem, alpha: float, squares: float, potential: float) -> float:
    """The largest of min over lambda of F(s alpha, lambda), 0 <= s <= 1: scaled-down dual weights are feasible too.

    Parameters
    ----------
    problem : GameProblem
    alpha : float
        The sum of the dual weights.
    squares : float
        The sum of their squares, or an upper bound on it.
    potential : float
        max_t v_t, the largest potential.
    """
    # F(s alpha) = s sum alpha - s^2 / 2 (ridge |alpha|^2 + max_t v_t) is a parabola in s
    quadratic = problem.rules.ridge * squares + potential
    shrunk = min(1.0, alpha / quadratic) if quadratic > 0.0 else 1.0
    return shrunk * alpha - 0.5 * shrunk**2 * quadratic


def standing(history: Sequence[dict[str, float]]) -> str:
    """A phrase with the last gap, for messages."""
    return f"the duality gap is {100 * history[-1]['relative_gap']:.2g} % of the objective"


def last_metrics(history: Sequence[dict[str, float]]) -> dict[str, float]:
    """The values of the last round that progress reports show."""
    if not history:
        return {}
    last = history[-1]
    return {"round": last["round"], "objective": last["upper"], "duality_gap": last["relative_gap"]}


def _required_array(value: np.ndarray | None) -> np.ndarray:
    """The array; ValueError if no earlier phase has set it."""
    if value is None:
        raise ValueError("the sums of a game arrived before its candidates were drawn")
    return value


def break_accumulators(problem: GameProblem) -> dict[str, Accumulator]:
    """The accumulators of `dkl.methods.game.sums.breakpoint_sums`: bins before, between and after the edges."""
    K, size = problem.n_blocks, N_EDGES + 1
    sums = {name: Accumulator((K, size)) for name in ("slopes", "moments", "breaks")}
    return {**sums, "positive": Accumulator((K,)), "ends": Accumulator((2, K), combine="max")}


def _map_cost(rows: int, columns: int, feature_map: FeatureMap, K: int) -> Cost:
    """The cost of mapping rows, and of the product of the features with K columns of weights."""
    each = mapping_flops(columns, feature_map) + 2.0 * K * feature_map.n_features
    scratch = 16 * feature_map.n_features * K + 40 * rows * K + feature_map.projection.nbytes + _TILE_BYTES
    return Cost(rows * each, scratch)
