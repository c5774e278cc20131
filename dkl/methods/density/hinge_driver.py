"""The driver of tuned features with losses of the margin: Newton steps; the hinge is smoothed over a shrinking width.

Each step replaces the data term by its second-order model at the accepted point, and keeps the penalties. The next
point is the minimum of both over weights, intercepts and density, or a shorter step towards it if the objective does
not fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.kernels.normal_equations import TrialSteps
from dkl.kernels.threads import one_blas_thread
from dkl.methods.density.density_step import WholeForm, tuned_density
from dkl.methods.density.pass_records import margin_records
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import balance_of_sides, optimality, ridge_value
from dkl.protocols.records import BlockSum
from dkl.protocols.sampling import row_fractions
from dkl.solvers.line_search import SHORTEST, backtracked, trial_lengths
from dkl.solvers.losses import loss_of
from dkl.solvers.squared_sums import unpacked

# The width of the smoothed hinge is multiplied by _SHRINK once a step has lowered the objective by nearly what its
# model promised (_KEPT_PROMISE), or promised little (_LITTLE, a share of the gap); but not while the gap has grown by
# more than the factor _WORSE.
_SHRINK, _KEPT_PROMISE, _LITTLE, _WORSE = 0.6, 0.9, 0.01, 2.0
# The least width, and the first one of a fit that starts from an earlier solution; others start at 1, the slack of a
# row with the score 0.
_LEAST_WIDTH, _NEAR_WIDTH = 1e-12, 0.1
# From this width, or this relative gap, on the prior of the rows' dual weights follows the model.
_FOLLOWED_WIDTH = 0.3
_FOLLOWED_GAP = 0.1
# A small lam is approached from _FIRST_LAM, multiplied by _WEAKER each time: Newton steps are long on a strongly convex
# objective, and short on one that hardly is.
_FIRST_LAM, _WEAKER = 1e-4, 0.1
# Relative difference of two objectives below which it counts as rounding.
_ROUNDING = 1e-12
# An absolute duality gap that ends the fit, since rows of a single class have an objective of 0.
_ZERO = 1e-12
# The usual passes of one model, and of several classes, where the slowest determines them.
_USUAL_PASSES, _USUAL_OF_SEVERAL = 10, 20
# Why a fit ended whose gap is still above tol.
_TOO_MANY = "max_passes is reached; a larger lam or tol ends sooner"
# Least curvature of the intercept, which no rows determine if none is near the kink.
_INTERCEPT = 1e-4
# Newton steps on the density end when the next one promises to lower the objective by less than this share of it.
_INNER = 1e-6
# A fit with at least _MANY times as many rows starts on a subsample: the fewest rows of it, its rows for each column,
# and the relative duality gap at which it ends.
_SAMPLE_ROWS, _SAMPLE_PER_COLUMN, _MANY = 20_000, 8, 4
_SAMPLE_GAP = 1e-2


@dataclass(frozen=True)
class SampledShare:
    """The rows of a random share, by a hash of their ids.

    Parameters
    ----------
    share : float
    """

    share: float

    def __call__(self, row_id: np.ndarray) -> np.ndarray:
        """The rows of the share, a mask (n,)."""
        return row_fractions(row_id, 0, 0x7E5) < self.share


class HingeDriver:
    """The optimum by damped Newton steps, one pass each, to a duality gap below `tol` of the objective.

    A pass judges the trial steps from the accepted point; sums the dual weights, which bound the minimum from below, at
    the end of the first one; and sums the gradient and Hessian there for the next step. A step that must be shortened
    costs one more pass, since its derivatives are those of another point.
    """

    def init(self, problem: TunedProblem) -> TunedState:
        """The state before any pass."""
        state = TunedState.begin(problem)
        if problem.start is not None:
            # near a solution neither a subsample nor a wide hinge helps
            return replace(state, width=_NEAR_WIDTH, ahead=_NEAR_WIDTH, lam=problem.lam)
        return from_subsample(problem, state)

    def request(self, problem: TunedProblem, state: TunedState) -> Sequence[BlockSum] | None:
        """The pass that judges a step and computes the derivatives at its end; None when done."""
        if state.ended:
            return None
        trial = TrialSteps(state.coefficients, state.moves, np.tile(trial_steps(state), (problem.n_outputs, 1)))
        # with zero weights the rows' curvature is the same for all models, which share one Hessian
        hessian_of = (0,) if state.fresh and problem.start is None else tuple(range(problem.n_outputs))
        return margin_records(
            problem.feature_map,
            problem.targets,
            trial,
            state.smoothing,
            SampledShare(state.share) if state.share < 1.0 else None,
            loss=problem.loss,
            hessian_of=hessian_of,
            dtype=problem.product_dtype,
        )

    def step(self, problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
        """Accept or shorten the step; at an accepted point, compute gap and next step."""
        with one_blas_thread():
            state, gap_before = replace(state, passes=state.passes + 1), state.gap
            sums: Mapping[str, np.ndarray] = results[0]
            weight = float(sums["weight"][0])
            length, kept_promise = line_search(problem, state, sums["smooth"].sum(axis=0) / weight)
            if length < state.step:
                return shortened(problem, state, length)
            state = judged_point(problem, accepted(problem, state), sums, weight)
            if state.ended:
                return state
            if state.share < 1.0 and state.gap <= _SAMPLE_GAP * state.objective:
                return on_all_rows(state)
            hessian = np.concatenate([result["hessian"] for result in results], axis=1)
            is_settled = state.step == 1.0 and kept_promise > _KEPT_PROMISE
            is_settled |= -state.promise <= _LITTLE * min(state.gap, state.objective)
            # if the dual objective has lost more than the primal has gained, it must recover first
            is_settled &= state.gap <= _WORSE * gap_before
            state = newton_step(problem, state, sums["dual_sums"].sum(axis=0) / weight, hessian / weight)
            return next_smoothing(problem, state, is_settled)

    def metrics(self, problem: TunedProblem, state: TunedState) -> dict[str, float]:
        """Objective and gap of the accepted point."""
        return state.metrics

    def stopped(self, problem: TunedProblem, state: TunedState, why: str) -> TunedState | None:
        """The accepted point as the final state, if a subscriber stops the fit; None at the start."""
        if state.ended:
            return state
        return replace(ended(state, why), was_stopped=True) if state.coefficients.any() else None

    def memory(self, problem: TunedProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Matrices of pairs of columns, one for each output, and of pairs of frequencies."""
        return problem.memory(problem.n_outputs)

    def plan(self, problem: TunedProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The pass of a step on all rows, at most `max_passes` times."""
        later = replace(self.init(problem), share=1.0, history=({},))
        usual = _USUAL_PASSES if len(problem.targets.models) == 1 else _USUAL_OF_SEVERAL
        passes = [replace(record, usual_calls=usual) for record in self.request(problem, later) or []]
        return [(passes, problem.max_passes)]


def from_subsample(problem: TunedProblem, state: TunedState) -> TunedState:
    """The start without an earlier solution: a subsample if rows are many, and a lam with long Newton steps."""
    rows = problem.n_rows or problem.total_weight
    wanted = max(_SAMPLE_ROWS, _SAMPLE_PER_COLUMN * problem.width)
    share = wanted / rows if rows > _MANY * wanted else 1.0
    return replace(state, share=share, lam=max(problem.lam, _FIRST_LAM))


def trial_steps(state: TunedState) -> np.ndarray:
    """The step lengths of a pass: the step, its halves, and 0, which gives the objective at the accepted point."""
    return np.append(trial_lengths(state.step), 0.0)


def line_search(problem: TunedProblem, state: TunedState, losses: np.ndarray) -> tuple[float, float]:
    """The step length to take or to try next, and the share of its promised decrease that the whole step achieves.

    Parameters
    ----------
    problem : TunedProblem
    state : TunedState
    losses : ndarray of shape (T,)
        The mean smoothed losses at the trial steps.
    """
    steps = trial_steps(state)
    values = losses + np.array(
        [
            penalties(problem, state.coefficients + step * state.moves, density_after(problem, state, step), state.lam)
            for step in steps
        ]
    )
    length = backtracked(steps[:-1], values[:-1], values[-1], state.promise, _ROUNDING)
    achieved = float((values[0] - values[-1]) / state.promise) if state.promise < 0.0 else 1.0
    return float(length), achieved


def density_after(problem: TunedProblem, state: TunedState, length: float) -> np.ndarray:
    """The density after a step of this length, but at least its floor, below which rounding might lead."""
    return np.maximum(state.density + length * state.density_moves, problem.penalty.floor)


def penalties(problem: TunedProblem, coefficients: np.ndarray, density: np.ndarray, lam: float) -> float:
    """lam/2 sum_j |w_j|^2/u_j and the penalty of the density: the objective without the losses."""
    u = problem.density_of(density)
    return ridge_value(coefficients[:, :-1], u, lam) + problem.penalty.value(u)


def shortened(problem: TunedProblem, state: TunedState, length: float) -> TunedState:
    """The state with a shorter step, and derivatives at the present width; ended if steps become too short."""
    if length < SHORTEST:
        return ended(state, "no step lowers the objective any more")
    if state.passes >= problem.max_passes:
        return ended(state, _TOO_MANY)
    return replace(state, step=length, ahead=state.width, follows=False)


def accepted(problem: TunedProblem, state: TunedState) -> TunedState:
    """The state after the step, with the prior of the rows' dual weights updated if it follows the model.

    The prior of a row is z = reach - y past(x): following the slack 1 - y f over the width h adds 1/h to `reach` and
    f/h to the model `past`. So no column of length n is stored.
    """
    point = state.coefficients + state.step * state.moves
    past, reach = state.smoothing.past, state.reach
    if state.follows:
        past, reach = past + point / state.width, reach + 1.0 / state.width
    density = density_after(problem, state, state.step)
    return replace(state, coefficients=point, density=density, past=past, reach=reach, width=state.ahead)


def judged_point(problem: TunedProblem, state: TunedState, sums: Mapping[str, np.ndarray], weight: float) -> TunedState:
    """Objective, residual and gap at the accepted point; ended if the gap is small enough.

    The rows' dual weights a_i are the slopes of the smoothed losses. The intercept requires sum_i a_i y_i = 0, so the
    weights of the two classes are scaled to the smaller of their sums: any such point is a lower bound of the minimum.
    """
    loss, mass, dual_sums = sums["loss"] / weight, sums["mass"] / weight, sums["dual_sums"] / weight
    scale = balance_of_sides(mass)
    # c_j = sum_i a_i z_ij of the feasible dual point
    feasible = np.einsum("sk,skj->jk", scale, dual_sums[:, :, :-1])
    conjugate = square_of_duals(scale, loss, problem.loss)
    coef = state.coefficients[:, :-1]
    data_gap = float(loss.sum() - 2.0 * mass.min(axis=0).sum() + np.sum(feasible.T * coef)) + conjugate
    u = problem.density_of(state.density)
    descent = dual_sums[:, :, :-1].sum(axis=0).T
    residual, gap = optimality(problem.penalty, problem.lam, (coef, u), (descent, feasible))
    state = replace(
        state,
        objective=float(loss.sum()) + penalties(problem, state.coefficients, state.density, problem.lam),
        residual=max(residual, float(np.abs(dual_sums[:, :, -1].sum(axis=0)).max())),
        gap=max(0.0, data_gap) + gap,
    ).with_history()
    if state.share == 1.0 and state.gap <= max(problem.tol * state.objective, _ZERO):
        return ended(state, "the duality gap is below tol")
    if state.passes >= problem.max_passes:
        return ended(state, _TOO_MANY)
    return state


def square_of_duals(scale: np.ndarray, losses: np.ndarray, loss: str) -> float:
    """The part of the conjugates that is quadratic in the dual weights, which are `scale` times the losses' slopes.

    For a squared loss this part of the conjugate at a slope equals the loss itself; for a piecewise linear one it is
    zero.

    Parameters
    ----------
    scale, losses : ndarray of shape (2, K)
        For the rows with targets -1 and +1; `losses` are sums over these.
    loss : {"hinge", "squared_hinge"}
    """
    return float(np.sum(scale**2 * losses)) if loss_of(loss).conjugate_square else 0.0


def on_all_rows(state: TunedState) -> TunedState:
    """The same point, to be evaluated on all rows by a step of length 0."""
    return replace(
        state,
        share=1.0,
        step=1.0,
        promise=0.0,
        ahead=state.width,
        follows=False,
        moves=np.zeros_like(state.moves),
        density_moves=np.zeros_like(state.density_moves),
    )


def ended(state: TunedState, why: str) -> TunedState:
    """The final state, with a message on its gap and on why it ended."""
    subsample = "" if state.share == 1.0 else f" on {100.0 * state.share:.2g} % of the rows"
    message = (
        f"{why}: after {state.passes} passes the gap is {state.gap:.1e} and the largest residual {state.residual:.1e} "
        f"at an objective of {state.objective:.6g}{subsample}"
    )
    return replace(state, ended=True, message=message)


def newton_step(problem: TunedProblem, state: TunedState, descent: np.ndarray, hessians: np.ndarray) -> TunedState:
    """The next step, to the minimum of second-order model and penalties, and the decrease that it promises.

    Parameters
    ----------
    problem : TunedProblem
    state : TunedState
    descent : ndarray of shape (K, m + 1)
        Minus the gradient of the mean loss at the accepted point.
    hessians : ndarray of shape (K or 1, P)
        Packed; a single one if it is the same for all models.
    """
    K = problem.n_outputs
    models = [QuadraticModel(hessian) for hessian in hessians]
    models = models * K if len(models) == 1 else models
    linear = [models[k].linear(descent[k], state.coefficients[k]) for k in range(K)]
    targets, density, promise = np.empty((K, problem.width - 1)), np.empty_like(state.density), 0.0
    # far from the optimum the density need not be more exact than the gap
    tol = min(_INNER, 1e-2 * state.gap / state.objective) if state.objective > 0.0 else _INNER
    # models that share a density form one problem, others one each
    for g, group in enumerate([range(K)] if problem.shared else [[k] for k in range(K)]):
        forms = [WholeForm(models[k].A, linear[k][:, None], state.lam) for k in group]
        coef = state.coefficients[list(group), :-1]
        before = sum(models[k].value(linear[k], state.coefficients[k, :-1]) for k in group)
        before += ridge_value(coef, state.density[g], state.lam) + problem.penalty.value(state.density[g])
        fit = tuned_density(forms, problem.penalty, state.density[g], offset=state.objective - before, tol=tol)
        density[g] = fit.density
        for k, weights in zip(group, fit.weights, strict=True):
            targets[k] = weights[:, 0]
        promise += fit.value - (state.objective - before) - before
    moves = np.empty_like(state.coefficients)
    moves[:, :-1] = targets - state.coefficients[:, :-1]
    for k, model in enumerate(models):
        fall, moves[k, -1] = model.intercept(descent[k], moves[k, :-1])
        promise -= fall
    return replace(state, moves=moves, density_moves=density - state.density, promise=min(promise, 0.0), step=1.0)


def next_smoothing(problem: TunedProblem, state: TunedState, is_settled: bool) -> TunedState:
    """The width, prior and lam of the next step, which change once the present smoothed problem is nearly solved."""
    is_smoothed = problem.loss_row.is_smoothed
    ahead = max(_SHRINK * state.width, _LEAST_WIDTH) if is_settled and is_smoothed else state.width
    if is_settled and state.lam > problem.lam:
        return replace(state, ahead=ahead, follows=False, lam=max(problem.lam, _WEAKER * state.lam))
    follows = state.width < _FOLLOWED_WIDTH or state.gap < _FOLLOWED_GAP * state.objective
    return replace(state, ahead=ahead, follows=is_settled and is_smoothed and follows)


class QuadraticModel:
    """The second-order model of an output's mean loss about a point, its intercept eliminated.

    Parameters
    ----------
    packed : ndarray of shape ((m + 1)(m + 2) / 2,)
        The upper triangle of the Hessian in (w, b), column by column.
    """

    def __init__(self, packed: np.ndarray) -> None:
        whole = unpacked(packed)
        self.border = whole[:-1, -1].copy()
        self.corner = max(float(whole[-1, -1]), _INTERCEPT)
        # the Schur complement of the intercept's curvature
        self.A = whole[:-1, :-1] - np.outer(self.border, self.border / self.corner)

    def linear(self, descent: np.ndarray, model: np.ndarray) -> np.ndarray:
        """C of the model w'Aw/2 - C'w, with `descent` (m + 1,) minus the gradient at `model`."""
        return self.A @ model[:-1] + descent[:-1] - self.border * (descent[-1] / self.corner)

    def value(self, linear: np.ndarray, w: np.ndarray) -> float:
        """w'Aw/2 - C'w."""
        return float(0.5 * w @ (self.A @ w) - linear @ w)

    def intercept(self, descent: np.ndarray, move: np.ndarray) -> tuple[float, float]:
        """The decrease of the quadratic model by the intercept alone, and its move for a move of the weights."""
        fall = 0.5 * float(descent[-1]) ** 2 / self.corner
        return fall, float(descent[-1] - self.border @ move) / self.corner
