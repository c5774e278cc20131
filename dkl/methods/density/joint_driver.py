"""A kernel's weights in a divergence ball and the machine on it, learned together, with a certificate for all weights.

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
from dkl.methods.density.driver import TunedDriver
from dkl.methods.density.joint_problem import JointProblem, JointState
from dkl.methods.density.joint_sums import pricing_block, pricing_shapes
from dkl.methods.density.margin import margin_start, share_of_sides, square_of_duals
from dkl.methods.density.pass_records import TunedCost
from dkl.methods.density.solution import ridge_value, squared_weights
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

# of the gap at hand: how far the problem on the working candidates is solved before all are looked at again
_NEARER = 0.2
# working candidates for each one in use, or that the dual point gives weight
_SPARE = 1.5
_FEWEST = 32
# of those in use, or that must have weight, what the dual point may ask for
_GROWTH = 2
# more than so many times them are dropped: what the driver's matrices cost grows with their cube
_KEPT = 1.2
# of the mean density: less is none
_NONE = 1e-7
# times the gap of the round before: a round that broke off there changes nothing, whatever candidates are new
_STANDS = 0.99
_MOST_ROUNDS = 40
_TUNED = TunedDriver()


class JointDriver:
    """Sinha & Duchi 2016, equation (9), by sums over blocks: no dual weight is kept, and the gap is certified."""

    def init(self, problem: JointProblem) -> JointState:
        """Weights 0 or those of the start, nothing read: the first pass looks at all candidates."""
        working = np.zeros(1, np.int64) if problem.start is None else problem.start[0]
        on_these = problem.on(working, 1.0)
        if problem.start is not None:
            on_these = replace(on_these, start=problem.start[1:])
        first = _TUNED.init(on_these)
        known = {each.name: getattr(first, each.name) for each in fields(first)}
        return JointState(**known | {"ended": True, "working": working})

    def request(self, problem: JointProblem, state: JointState) -> Sequence[Record] | None:
        """The next pass: over the features of all candidates, or of a step on the working ones."""
        if state.done:
            return None
        if state.ended:
            return [_pricing_record(problem, state)]
        return _TUNED.request(problem.on(state.working, state.goal), state)

    def step(self, problem: JointProblem, state: JointState, results: Sequence[Any]) -> JointState:
        """The state after that pass."""
        if not state.ended:
            solved: Any = _TUNED.step(problem.on(state.working, state.goal), state, results)
            return solved
        with one_blas_thread():
            return _priced(problem, state, results[0])

    def metrics(self, problem: JointProblem, state: JointState) -> dict[str, float]:
        """Where the last look at all candidates stood."""
        return dict(state.rounds[-1]) if state.rounds else {}

    def stopped(self, problem: JointProblem, state: JointState, why: str) -> JointState | None:
        """The model that was last looked at with all candidates; None until the next look."""
        if state.done:
            return state
        looked = bool(state.rounds) and state.rounds[-1]["passes"] == state.passes
        if not looked or not state.coefficients.any():
            return None
        return replace(state, done=True, was_stopped=True, message=f"{why}: {_standing(state)}")

    def memory(self, problem: JointProblem, row_bytes: int) -> dict[str, int]:
        """The matrices of the largest working set, and the sums of all candidates."""
        parts, D = problem.pool.columns_a_frequency, problem.pool.n_frequencies
        matrices = _TUNED.memory(problem.on(_largest_set(problem), 1.0), row_bytes)
        return {**matrices, "sums of all candidates": 4 * 8 * parts * D * problem.n_outputs}

    def plan(self, problem: JointProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """Looks at all candidates, and passes on the largest working set."""
        state = self.init(problem)
        working = _largest_set(problem)
        largest = state.moved_to(working)
        solving = _TUNED.plan(problem.on(working, 1.0))
        rounds = _MOST_ROUNDS if problem.loss == "squared_error" else 1
        return [
            ([_pricing_record(problem, largest)], _MOST_ROUNDS),
            *((records, count * rounds) for records, count in solving),
        ]


def _largest_set(problem: JointProblem) -> np.ndarray:
    return np.arange(min(problem.most_working, problem.pool.n_frequencies))


def _pricing_record(problem: JointProblem, state: JointState) -> BlockSum:
    """The features of all candidates, weighed by the dual weights of the model at hand."""
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
    cost = _PricingCost(TunedCost(working, K, 0, problem.dtype), pool, K)
    return BlockSum("sums of all candidates", pricing_block, accumulators, operands, cost)


@dataclass(frozen=True, eq=False)
class _PricingCost:
    """What a block costs: scores by the working candidates, then the features of all."""

    scores: TunedCost
    pool: FeatureMap
    n_outputs: int

    def __call__(self, rows: int, columns: int) -> Cost:
        scores, width = self.scores(rows, columns), 2 * self.n_outputs
        flops = mapping_flops(columns, self.pool) + 2.0 * width * self.pool.n_features
        scratch = 16 * self.pool.n_features * width + 24 * rows * width + self.pool.projection.nbytes
        return Cost(scores.flops + rows * flops, scores.scratch_bytes + scratch)


@dataclass(frozen=True, eq=False)
class _Judged:
    """The model against the best dual point that its margins give.

    Attributes
    ----------
    objective, dual : float
    squares : ndarray of shape (D,)
        |c_m|^2 / (2 lam), c_m the sums of the candidates' features by the dual weights: v(alpha) of the paper.
    density : ndarray of shape (D,)
        The best in the ball for them.
    """

    objective: float
    dual: float
    squares: np.ndarray
    density: np.ndarray


def _judged(problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> _Judged:
    weight = float(sums["weight"][0])
    losses, mass, pool = sums["loss"] / weight, sums["mass"] / weight, problem.pool
    squared = problem.loss == "squared_error"
    # of the two columns of weights, so much of each sums to zero
    mix = np.stack([np.ones_like(mass[0]), -mass[0] / mass[1]]) if squared else share_of_sides(mass)
    duals = np.stack([(sums[f"pool{k}"] @ mix[:, k]).ravel() for k in range(problem.n_outputs)]) / weight
    squares = squared_weights(duals, np.empty(pool.n_frequencies)) / (2.0 * problem.lam)
    best = problem.ball.conjugate(squares)
    coef = state.coefficients[:, :-1]
    # before anything was solved there is a weightless candidate and no density
    ridge = ridge_value(coef, state.density[0], problem.lam) if coef.any() else 0.0
    if squared:
        data = float(losses.sum() - 0.5 * np.sum(mass[0] ** 2))
        linear = float(np.sum(duals[:, state.columns(pool.n_frequencies, pool.columns_a_frequency)] * coef))
        return _Judged(data + ridge, data + linear + best.value, squares, best.density)
    conjugate = square_of_duals(mix, losses, problem.loss)
    dual = 2.0 * float(mass.min(axis=0).sum()) - conjugate + best.value
    return _Judged(float(losses.sum()) + ridge, dual, squares, best.density)


def _priced(problem: JointProblem, state: JointState, sums: Mapping[str, np.ndarray]) -> JointState:
    """The gap over all candidates; done where it is small, or the next candidates to work on."""
    found, inner = _judged(problem, state, sums), state.gap
    bound = max(state.bound, found.dual)
    state = replace(
        state, objective=found.objective, gap=max(0.0, found.objective - bound), bound=bound, passes=state.passes + 1
    )
    state = replace(state, rounds=(*state.rounds, _line(state)))
    working = _next_working(problem, state, found)
    why = _why_done(problem, state) or _why_stuck(problem, state, working, inner)
    if why:
        return replace(state, done=True, message=f"{why}: {_standing(state)}")
    goal = _NEARER * state.gap / state.objective
    # not to miss tol by a little
    goal = goal if goal > 2.0 * problem.tol else 0.5 * problem.tol
    return _restarted(problem, replace(state, goal=goal), working, found.density)


def _line(state: JointState) -> dict[str, float]:
    return {
        "passes": float(state.passes),
        "objective": state.objective,
        "gap": state.gap,
        "working": float(len(state.working)),
        "support": float(np.count_nonzero(_has_density(state))),
    }


def _has_density(state: JointState) -> np.ndarray:
    """Which working candidates have weight, (s,); none before anything was solved."""
    u = state.density[0]
    return (u > _NONE * u.mean()) & state.coefficients.any()


def _why_done(problem: JointProblem, state: JointState) -> str:
    if state.gap <= problem.tol * state.objective or state.gap == 0.0:
        return "the duality gap is below tol"
    if state.passes >= problem.max_passes or len(state.rounds) >= _MOST_ROUNDS:
        return "max_passes is reached; a smaller C or a larger tol ends sooner"
    return ""


def _why_stuck(problem: JointProblem, state: JointState, working: np.ndarray, inner: float) -> str:
    """Why another round would end where this one has, whose gap among its working candidates was `inner`."""
    if len(state.rounds) == 1 or not state.coefficients.any():
        return ""
    has_new = not np.isin(working, state.working).all()
    stands = state.gap > _STANDS * state.rounds[-2]["gap"]
    if inner > state.goal * state.objective and (stands or not has_new):
        return "no step lowers the objective any more; use dtype='float64' or a larger tol"
    if has_new:
        return ""
    full = len(working) == problem.most_working < problem.pool.n_frequencies
    return "more than max_working candidates would have weight" if full and state.gap > 2.0 * inner else ""


def _standing(state: JointState) -> str:
    support = int(state.rounds[-1]["support"])
    return (
        f"after {state.passes} passes {support} candidates have weight, and the objective is at most "
        f"{100.0 * state.gap / max(state.objective, 1e-300):.2g} % above the minimum"
    )


def _next_working(problem: JointProblem, state: JointState, found: _Judged) -> np.ndarray:
    """Those in use and those that the dual point gives the most, of which a few that were there before stay."""
    in_use = state.working[_has_density(state) | _has_past(state)]
    used = max(len(in_use), problem.ball.least)
    # the first dual points give weight to many more candidates than the last
    wanted = min(int(np.count_nonzero(found.density)), _GROWTH * used)
    count = max(_FEWEST, int(np.ceil(_SPARE * max(wanted, used))))
    best = np.argsort(-found.squares, kind="stable")[:count]
    chosen = np.union1d(state.working, best) if state.coefficients.any() else np.sort(best)
    limit = min(problem.most_working, int(np.ceil(_KEPT * count)))
    if len(chosen) <= limit:
        return chosen
    rank = found.squares.copy()
    rank[in_use] += 2.0 * found.squares.max()
    return np.sort(chosen[np.argsort(-rank[chosen], kind="stable")[:limit]])


def _has_past(state: JointState) -> np.ndarray:
    """Which working candidates the rows' priors depend on, (s,): without them dual weights would be found anew."""
    past = np.zeros_like(state.coefficients) if state.past is None else np.abs(state.past)
    largest = past[:, :-1].max(axis=0).reshape(-1, len(state.working)).max(axis=0)
    return largest > _NONE * largest.max(initial=0.0)


def _restarted(problem: JointProblem, state: JointState, working: np.ndarray, best: np.ndarray) -> JointState:
    """The same model as a start on other working candidates."""
    first = not state.coefficients.any()
    state = state.moved_to(working)
    if first:
        # no candidate has weight yet: any density will do
        state = replace(state, density=problem.ball.within(len(working)).inside(best[working])[None])
    if problem.loss == "squared_error":
        return replace(state, ended=False, history=())
    state = replace(state, ended=False, step=1.0, promise=0.0, ahead=state.width, follows=False)
    started: Any = margin_start(problem.on(working, state.goal), state) if first else replace(state, share=1.0)
    return started
