"""The driver that learns kernel weights in a divergence ball jointly with a linear model, with a gap over all.

Few candidates have weight if the ball is large. So rounds solve the problem of tuned random features on few working
candidates; then a pass over the features of all candidates bounds how much the others could still lower the objective,
and selects the next working candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import columns_of
from dkl.kernels.maps import mapping_flops
from dkl.kernels.threads import one_blas_thread
from dkl.methods.density.driver import driver_of
from dkl.methods.density.hinge_driver import from_subsample, square_of_duals
from dkl.methods.density.joint_problem import JointProblem, JointState
from dkl.methods.density.pass_records import tuned_cost
from dkl.methods.density.solution import balance_of_sides, ridge_value, squared_weights
from dkl.methods.density.sums import pricing_block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

# The problem on the working candidates is solved to this share of the gap over all candidates, then all are evaluated.
_NEARER = 0.2
# Working candidates for each candidate that has weight, in the model or at the dual point; and the fewest.
_SPARE = 1.5
_FEWEST = 32
# The most candidates that the dual point may add, as a multiple of those in use and of those that must have weight.
_GROWTH = 2
# Candidates are dropped once they exceed this multiple of the wanted number, since the driver's cost is cubic in it.
_KEPT = 1.2
# A round has stalled if its gap is above this share of the previous one: if it also ended early, new candidates will
# not help.
_STALLED = 0.99
# The most evaluations of all candidates.
_MOST_ROUNDS = 40


class JointDriver:
    """Solves equation (9) of Sinha & Duchi 2016 by sums over blocks, to a certified gap; no dual weight is stored."""

    def init(self, problem: JointProblem) -> JointState:
        """Zero weights, or those of the start, before any pass; the first pass evaluates all candidates."""
        working = np.zeros(1, np.int64) if problem.start is None else problem.start[0]
        on_these = problem.restricted_to(working, 1.0)
        if problem.start is not None:
            on_these = replace(on_these, start=problem.start[1:])
        first = driver_of(problem.loss).init(on_these)
        copied = {field.name: getattr(first, field.name) for field in fields(first)}
        return JointState(**copied | {"ended": True, "working": working})

    def request(self, problem: JointProblem, state: JointState) -> Sequence[Record] | None:
        """The next pass: over the features of all candidates, or for a step on the working ones; None when done."""
        if state.done:
            return None
        if state.ended:
            return [self._pricing_record(problem, state)]
        return driver_of(problem.loss).request(problem.restricted_to(state.working, state.goal), state)

    def step(self, problem: JointProblem, state: JointState, results: Sequence[Any]) -> JointState:
        """The state after the pass of `request`."""
        if not state.ended:
            # the driver of tuned features returns a copy of this state with changed fields, so it stays a JointState
            solved: Any = driver_of(problem.loss).step(problem.restricted_to(state.working, state.goal), state, results)
            return solved
        with one_blas_thread():
            return self._state_with_gap(problem, state, results[0])

    def metrics(self, problem: JointProblem, state: JointState) -> dict[str, float]:
        """The metrics of the last evaluation of all candidates."""
        return dict(state.rounds[-1]) if state.rounds else {}

    def stopped(self, problem: JointProblem, state: JointState, why: str) -> JointState | None:
        """The last model evaluated with all candidates, if a subscriber stops the fit; None before the first."""
        if state.done:
            return state
        is_evaluated = bool(state.rounds) and state.rounds[-1]["passes"] == state.passes
        if not is_evaluated or not state.coefficients.any():
            return None
        return replace(state, done=True, was_stopped=True, message=f"{why}: {state.standing}")

    def memory(self, problem: JointProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """The matrices of the largest working set, and the sums of all candidates."""
        parts, D = problem.feature_map.columns_a_frequency, problem.feature_map.n_frequencies
        matrices = driver_of(problem.loss).memory(
            problem.restricted_to(problem.largest_working, 1.0), n_rows, row_bytes
        )
        return {**matrices, "sums of all candidates": 4 * 8 * parts * D * problem.n_outputs}

    def plan(self, problem: JointProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes that price all candidates, and passes on the largest working set."""
        largest = self.init(problem).moved_to(problem.largest_working)
        solving = driver_of(problem.loss).plan(problem.restricted_to(problem.largest_working, 1.0))
        # max_passes bounds the total of steps; for the squared error each round has one pass
        rounds = _MOST_ROUNDS if problem.loss_row.takes_one_pass else 1
        return [
            ([self._pricing_record(problem, largest)], _MOST_ROUNDS),
            *((records, count * rounds) for records, count in solving),
        ]

    def _pricing_record(self, problem: JointProblem, state: JointState) -> BlockSum:
        """The record of the sums over rows of all candidates' features times the dual weights of the present model."""
        pool, K = problem.feature_map, problem.n_outputs
        working = pool.take(state.working)
        pools = {f"pool{k}": (pool.columns_a_frequency, pool.n_frequencies, 2) for k in range(K)}
        shapes = {"loss": (2, K), "mass": (2, K), "weight": (1,), **pools}
        operands = {
            "feature_map": working,
            "targets": problem.targets,
            "models": state.coefficients,
            # the dual weights that the last step was judged by; the width of its smoothing is the state's by now
            "smoothing": replace(state.smoothing, ahead=state.width, follows=False),
            "loss": problem.loss,
            "pool": pool,
            "dtype": problem.dtype,
        }
        accumulators = {name: Accumulator(shape) for name, shape in shapes.items()}

        def cost(rows: int, columns: int) -> Cost:
            # scores by the working candidates, then the features of all candidates
            scores, width = tuned_cost(rows, columns, feature_map=working, n_models=K, dtype=problem.dtype), 2 * K
            flops = mapping_flops(columns, pool) + 2.0 * width * pool.n_features
            scratch = 16 * pool.n_features * width + 24 * rows * width + pool.projection.nbytes
            return Cost(scores.flops + rows * flops, scores.scratch_bytes + scratch)

        return BlockSum("sums of all candidates", pricing_block, accumulators, operands, cost)

    def _state_with_gap(self, problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> JointState:
        """The state with the gap over all candidates: done if that is small or stays, else with further candidates.

        The best lower bound so far is kept. With further candidates the inner descent begins again; the first one
        begins on a subsample of the rows.
        """
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
        # near tol the rest is solved in one round, and slightly further, to reach it with certainty
        goal = goal if goal > 2.0 * problem.tol else 0.5 * problem.tol
        state, is_first = replace(state, goal=goal).moved_to(working), not state.coefficients.any()
        if is_first:
            # no candidate has weight yet, so the density is arbitrary
            density = problem.penalty.within(len(working)).inside(point.density[working])[None]
            state = replace(state, density=density)
        if problem.loss_row.takes_one_pass:
            return replace(state, ended=False, history=())
        state = replace(state, ended=False, step=1.0, promise=0.0, ahead=state.width, follows=False)
        restarted: Any = (
            from_subsample(problem.restricted_to(working, goal), state) if is_first else replace(state, share=1.0)
        )
        return restarted


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The objective of the present model, and the best dual point from its margins.

    Attributes
    ----------
    objective, dual : float
        The objective of the model, and that of the dual point: a lower bound of the minimum over all candidates.
    squares : ndarray of shape (D,)
        |c_m|^2 / (2 lam), with c_m the sum over rows of features times dual weights: v(alpha) of the paper.
    density : ndarray of shape (D,)
        The density in the divergence ball with the largest product with `squares`.
    """

    objective: float
    dual: float
    squares: np.ndarray
    density: np.ndarray


def dual_point(problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> DualPoint:
    """The dual point from the sums of all candidates: dual weights that sum to zero, and the best density for them.

    A block sums two columns of weights, which `mix` combines so that they sum to zero: for hinges the two classes, for
    the squared error the residuals and their mean.
    """
    weight = float(sums["weight"][0])
    losses, mass, pool = sums["loss"] / weight, sums["mass"] / weight, problem.feature_map
    is_squared = problem.loss_row.takes_one_pass
    mix = np.stack([np.ones_like(mass[0]), -mass[0] / mass[1]]) if is_squared else balance_of_sides(mass)
    # c_m = sum_i a_i z_im of every candidate, working or not
    duals = np.stack([(sums[f"pool{k}"] @ mix[:, k]).ravel() for k in range(problem.n_outputs)]) / weight
    squares = squared_weights(duals, np.empty(pool.n_frequencies)) / (2.0 * problem.lam)
    best = problem.penalty.minus_conjugate(squares)
    coef = state.coefficients[:, :-1]
    # before the first solution there is one candidate without weight, and no density
    ridge = ridge_value(coef, state.density[0], problem.lam) if coef.any() else 0.0
    if is_squared:
        # the optimal intercept subtracts the mean of the residuals
        data = float(losses.sum() - 0.5 * np.sum(mass[0] ** 2))
        columns = columns_of(state.working, pool.n_frequencies, pool.columns_a_frequency).ravel()
        linear = float(np.sum(duals[:, columns] * coef))
        return DualPoint(data + ridge, data + linear + best.value, squares, best.density)
    conjugate = square_of_duals(mix, losses, problem.loss)
    dual = 2.0 * float(mass.min(axis=0).sum()) - conjugate + best.value
    return DualPoint(float(losses.sum()) + ridge, dual, squares, best.density)


def why_done(problem: JointProblem, state: JointState, working: np.ndarray, inner_gap: float) -> str:
    """The reason to end; empty to continue.

    Parameters
    ----------
    problem : JointProblem
    state : JointState
        The state after an evaluation of all candidates.
    working : ndarray of shape (s,), int64
        The working candidates of the next round.
    inner_gap : float
        The gap on the working candidates at the end of the last round.
    """
    if state.gap <= problem.tol * state.objective or state.gap == 0.0:
        return "the duality gap is below tol"
    if state.passes >= problem.max_passes or len(state.rounds) >= _MOST_ROUNDS:
        return "max_passes is reached; a smaller C or a larger tol ends sooner"
    if len(state.rounds) == 1 or not state.coefficients.any():
        return ""
    has_new = not np.isin(working, state.working).all()
    stalls = state.gap > _STALLED * state.rounds[-2]["gap"]
    if inner_gap > state.goal * state.objective and (stalls or not has_new):
        return "no step lowers the objective any more; use dtype='float64' or a larger tol"
    is_full = len(working) == problem.most_working < problem.feature_map.n_frequencies
    if not has_new and is_full and state.gap > 2.0 * inner_gap:
        return "more than max_working candidates would have weight"
    return ""


def next_working(problem: JointProblem, state: JointState, point: DualPoint) -> np.ndarray:
    """The next working candidates: those in use, those with the largest dual values, and some former ones."""
    in_use = state.working[state.has_density | state.has_past]
    used = max(len(in_use), problem.penalty.least)
    # the first dual points have weight on many more candidates than the last
    wanted = min(int(np.count_nonzero(point.density)), _GROWTH * used)
    count = max(_FEWEST, int(np.ceil(_SPARE * max(wanted, used))))
    best = np.argsort(-point.squares, kind="stable")[:count]
    working = np.union1d(state.working, best) if state.coefficients.any() else np.sort(best)
    limit = min(problem.most_working, int(np.ceil(_KEPT * count)))
    if len(working) <= limit:
        return working
    # candidates in use rank before all others
    rank = point.squares.copy()
    rank[in_use] += 2.0 * point.squares.max()
    return np.sort(working[np.argsort(-rank[working], kind="stable")[:limit]])
