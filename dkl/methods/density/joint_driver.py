"""A kernel's weights in a divergence ball and the machine on it, learned together, with a gap over all weights.

Few candidates have weight where the ball is large. Rounds therefore solve the problem of tuned random features on a few
working candidates; then a pass over the features of all candidates bounds how much the others could still gain, and
says which of them to work on next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.maps import mapping_flops
from dkl.methods.density.driver import driver_of
from dkl.methods.density.hinge_driver import balance_of_sides, from_subsample, square_of_duals
from dkl.methods.density.joint_problem import JointProblem, JointState
from dkl.methods.density.joint_sums import pricing_block, pricing_shapes
from dkl.methods.density.pass_records import TunedCost
from dkl.methods.density.solution import ridge_value, squared_weights
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

# The problem on the working candidates is solved to this share of the gap over all, then all are looked at again.
_NEARER = 0.2
# Working candidates for each candidate in use or with weight at the dual point, and their least number.
_SPARE = 1.5
_FEWEST = 32
# Candidates that the dual point may add, as a multiple of those in use and of those that must have weight.
_GROWTH = 2
# Candidates are dropped once they are more than this multiple of the wanted number: the cost of the driver's matrices
# grows with the cube of it.
_KEPT = 1.2
# A round stands still where its gap is above this share of the gap before it: if it broke off there, new candidates
# will not change that.
_STANDS = 0.99
_MOST_ROUNDS = 40


class JointDriver:
    """Sinha & Duchi 2016, equation (9), by sums over blocks: no dual weight is kept, and the gap is certified."""

    def init(self, problem: JointProblem) -> JointState:
        """Weights of 0 or of the start, before any pass: the first pass prices all candidates."""
        working = np.zeros(1, np.int64) if problem.start is None else problem.start[0]
        on_these = problem.on(working, 1.0)
        if problem.start is not None:
            on_these = replace(on_these, start=problem.start[1:])
        first = driver_of(problem.loss).init(on_these)
        known = {field.name: getattr(first, field.name) for field in fields(first)}
        return JointState(**known | {"ended": True, "working": working})

    def request(self, problem: JointProblem, state: JointState) -> Sequence[Record] | None:
        """The next pass: over the features of all candidates, or for a step on the working ones; None at the end."""
        if state.done:
            return None
        if state.ended:
            return [self._pricing_record(problem, state)]
        return driver_of(problem.loss).request(problem.on(state.working, state.goal), state)

    def step(self, problem: JointProblem, state: JointState, results: Sequence[Any]) -> JointState:
        """The state after that pass."""
        if not state.ended:
            # the driver of tuned features replaces fields of the state that it is given, which stays a JointState
            solved: Any = driver_of(problem.loss).step(problem.on(state.working, state.goal), state, results)
            return solved
        with one_blas_thread():
            return self._priced(problem, state, results[0])

    def metrics(self, problem: JointProblem, state: JointState) -> dict[str, float]:
        """Where the last look at all candidates stood."""
        return dict(state.rounds[-1]) if state.rounds else {}

    def stopped(self, problem: JointProblem, state: JointState, why: str) -> JointState | None:
        """The model that was last priced with all candidates; None before the first time."""
        if state.done:
            return state
        looked = bool(state.rounds) and state.rounds[-1]["passes"] == state.passes
        if not looked or not state.coefficients.any():
            return None
        return replace(state, done=True, was_stopped=True, message=f"{why}: {state.standing}")

    def memory(self, problem: JointProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """The matrices of the largest working set, and the sums of all candidates."""
        parts, D = problem.pool.columns_a_frequency, problem.pool.n_frequencies
        matrices = driver_of(problem.loss).memory(problem.on(problem.largest_working, 1.0), n_rows, row_bytes)
        return {**matrices, "sums of all candidates": 4 * 8 * parts * D * problem.n_outputs}

    def plan(self, problem: JointProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes that price all candidates, and passes on the largest working set."""
        largest = self.init(problem).moved_to(problem.largest_working)
        solving = driver_of(problem.loss).plan(problem.on(problem.largest_working, 1.0))
        # max_passes bounds the steps of all rounds together; a round without steps takes its one pass each time
        rounds = _MOST_ROUNDS if problem.loss_row.takes_one_pass else 1
        return [
            ([self._pricing_record(problem, largest)], _MOST_ROUNDS),
            *((records, count * rounds) for records, count in solving),
        ]

    def _pricing_record(self, problem: JointProblem, state: JointState) -> BlockSum:
        """The record of all candidates' features, times the dual weights of the present model."""
        pool, K = problem.pool, problem.n_outputs
        working = pool.take(state.working)
        shapes = pricing_shapes(pool.columns_a_frequency, pool.n_frequencies, K)
        operands = {
            "feature_map": working,
            "targets": problem.targets,
            "models": state.coefficients,
            # the dual weights that the last step was judged by: its width has become the state's
            "smoothing": replace(state.smoothing, ahead=state.width, follows=False),
            "loss": problem.loss,
            "pool": pool,
            "dtype": problem.dtype,
        }
        accumulators = {name: Accumulator(shape) for name, shape in shapes.items()}
        cost = PricingCost(TunedCost(working, K, 0, problem.dtype), pool, K)
        return BlockSum("sums of all candidates", pricing_block, accumulators, operands, cost)

    def _priced(self, problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> JointState:
        """The gap over all candidates; done where it is small or cannot fall, else the next candidates to work on."""
        point, inner_gap = dual_point(problem, state, sums), state.gap
        bound = max(state.bound, point.dual)
        state = replace(
            state,
            objective=point.objective,
            gap=max(0.0, point.objective - bound),
            bound=bound,
            passes=state.passes + 1,
        )
        round_metrics = {
            "passes": float(state.passes),
            "objective": state.objective,
            "gap": state.gap,
            "working": float(len(state.working)),
            "support": float(np.count_nonzero(state.has_density)),
        }
        state = replace(state, rounds=(*state.rounds, round_metrics))
        working = next_working(problem, state, point)
        if why := why_done(problem, state, working, inner_gap):
            return replace(state, done=True, message=f"{why}: {state.standing}")
        goal = _NEARER * state.gap / state.objective
        # close to tol the rest is solved at once, and a little further, not to miss it
        goal = goal if goal > 2.0 * problem.tol else 0.5 * problem.tol
        state, is_first = replace(state, goal=goal).moved_to(working), not state.coefficients.any()
        if is_first:
            # no candidate has weight yet: any density will do
            density = problem.ball.within(len(working)).inside(point.density[working])[None]
            state = replace(state, density=density)
        if problem.loss_row.takes_one_pass:
            return replace(state, ended=False, history=())
        state = replace(state, ended=False, step=1.0, promise=0.0, ahead=state.width, follows=False)
        # a JointState again, as in `step`
        restarted: Any = from_subsample(problem.on(working, goal), state) if is_first else replace(state, share=1.0)
        return restarted


@dataclass(frozen=True, eq=False)
class PricingCost:
    """The cost of a block: scores by the working candidates, then the features of all candidates.

    Parameters
    ----------
    scores : TunedCost
    pool : FeatureMap
        Of all candidates.
    n_outputs : int
        K.
    """

    scores: TunedCost
    pool: FeatureMap
    n_outputs: int

    def __call__(self, rows: int, columns: int) -> Cost:
        scores, width = self.scores(rows, columns), 2 * self.n_outputs
        flops = mapping_flops(columns, self.pool) + 2.0 * width * self.pool.n_features
        scratch = 16 * self.pool.n_features * width + 24 * rows * width + self.pool.projection.nbytes
        return Cost(scores.flops + rows * flops, scores.scratch_bytes + scratch)


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The present model, compared with the best dual point that its margins give.

    Attributes
    ----------
    objective, dual : float
        Of the model, and of the dual point: a lower bound of the minimum over all candidates.
    squares : ndarray of shape (D,)
        |c_m|^2 / (2 lam), c_m the sums of the candidates' features by the dual weights: v(alpha) of the paper.
    density : ndarray of shape (D,)
        The density in the ball that is the best for these.
    """

    objective: float
    dual: float
    squares: np.ndarray
    density: np.ndarray


def dual_point(problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> DualPoint:
    """The dual point from the sums of all candidates: dual weights that sum to zero, and the best density for them.

    Of the two columns of weights that a block sums, `mix` says how much of each is taken so that they sum to zero: of
    hinges the two sides, of the squared error the residuals less their mean.
    """
    weight = float(sums["weight"][0])
    losses, mass, pool = sums["loss"] / weight, sums["mass"] / weight, problem.pool
    is_squared = problem.loss_row.takes_one_pass
    mix = np.stack([np.ones_like(mass[0]), -mass[0] / mass[1]]) if is_squared else balance_of_sides(mass)
    # c_m = sum_i a_i z_im of every candidate, whether it is a working one or not
    duals = np.stack([(sums[f"pool{k}"] @ mix[:, k]).ravel() for k in range(problem.n_outputs)]) / weight
    squares = squared_weights(duals, np.empty(pool.n_frequencies)) / (2.0 * problem.lam)
    best = problem.ball.conjugate(squares)
    coef = state.coefficients[:, :-1]
    # before anything was solved there is a weightless candidate and no density
    ridge = ridge_value(coef, state.density[0], problem.lam) if coef.any() else 0.0
    if is_squared:
        # the best intercept takes the mean of the residuals out of the loss
        data = float(losses.sum() - 0.5 * np.sum(mass[0] ** 2))
        linear = float(np.sum(duals[:, state.columns(pool.n_frequencies, pool.columns_a_frequency)] * coef))
        return DualPoint(data + ridge, data + linear + best.value, squares, best.density)
    conjugate = square_of_duals(mix, losses, problem.loss)
    dual = 2.0 * float(mass.min(axis=0).sum()) - conjugate + best.value
    return DualPoint(float(losses.sum()) + ridge, dual, squares, best.density)


def why_done(problem: JointProblem, state: JointState, working: np.ndarray, inner_gap: float) -> str:
    """Why no further round is of use; empty where one is.

    Parameters
    ----------
    problem : JointProblem
    state : JointState
        After all candidates were looked at.
    working : ndarray of shape (s,), int64
        The candidates that the next round would work on.
    inner_gap : float
        The gap among the working candidates that the last round ended at.
    """
    if state.gap <= problem.tol * state.objective or state.gap == 0.0:
        return "the duality gap is below tol"
    if state.passes >= problem.max_passes or len(state.rounds) >= _MOST_ROUNDS:
        return "max_passes is reached; a smaller C or a larger tol ends sooner"
    if len(state.rounds) == 1 or not state.coefficients.any():
        return ""
    has_new = not np.isin(working, state.working).all()
    stands = state.gap > _STANDS * state.rounds[-2]["gap"]
    if inner_gap > state.goal * state.objective and (stands or not has_new):
        return "no step lowers the objective any more; use dtype='float64' or a larger tol"
    is_full = len(working) == problem.most_working < problem.pool.n_frequencies
    if not has_new and is_full and state.gap > 2.0 * inner_gap:
        return "more than max_working candidates would have weight"
    return ""


def next_working(problem: JointProblem, state: JointState, point: DualPoint) -> np.ndarray:
    """The next working candidates: in use, with the most weight at the dual point, and a few of the former ones."""
    in_use = state.working[state.has_density | state.has_past]
    used = max(len(in_use), problem.ball.least)
    # the first dual points give weight to many more candidates than the last
    wanted = min(int(np.count_nonzero(point.density)), _GROWTH * used)
    count = max(_FEWEST, int(np.ceil(_SPARE * max(wanted, used))))
    best = np.argsort(-point.squares, kind="stable")[:count]
    working = np.union1d(state.working, best) if state.coefficients.any() else np.sort(best)
    limit = min(problem.most_working, int(np.ceil(_KEPT * count)))
    if len(working) <= limit:
        return working
    # those in use rank before all others
    rank = point.squares.copy()
    rank[in_use] += 2.0 * point.squares.max()
    return np.sort(working[np.argsort(-rank[working], kind="stable")[:limit]])
