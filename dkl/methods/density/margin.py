"""Tuned random features with hinge losses: Newton steps on a smoothed hinge whose width shrinks, down to the gap.

The data term is replaced by its second-order model at the accepted point, the penalties are kept as they are: the
minimum of both over weights, intercepts and density is the next point, or how far towards it the objective falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import lapack

from dkl.kernels.normal_equations import TrialSteps
from dkl.methods.density.density_step import tuned_density
from dkl.methods.density.forms import WholeForm
from dkl.methods.density.pass_records import margin_records
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import certified, ridge_value
from dkl.methods.density.sums import MarginLoss, MarginOptions
from dkl.protocols.records import BlockSum
from dkl.protocols.sampling import row_fractions
from dkl.solvers.losses import loss_of

# a width gives way to the next, smaller one when a step has done what it promised, or had little to promise
_SHRINK = 0.6
_LEAST_WIDTH = 1e-12
_NEAR_WIDTH = 0.1
_KEPT_PROMISE = 0.9
_LITTLE = 0.01
_WORSE = 2.0
# the prior of the rows' dual weights follows the model from this width or gap (of the objective) on
_FOLLOWED_WIDTH = 0.3
_FOLLOWED_GAP = 0.1
# where lam is smaller than the first, it comes down to it by this factor at a time
_FIRST_LAM, _WEAKER = 1e-4, 0.1
_BACKTRACKS = 7
_SUFFICIENT = 1e-4
_SHORTEST = 1e-7
_NOISE = 1e-12
# a gap that is as good as none: rows of one class have an objective of 0
_ZERO = 1e-12
_TOO_MANY = "max_passes is reached; a larger lam or tol ends sooner"
# the intercept's curvature is at least this: without rows near the kink nothing else holds it
_INTERCEPT = 1e-4
# of the objective: what the last inner step may promise
_INNER = 1e-6
# a sample comes first where there are so many times its rows, and ends at this gap (of the objective)
_SAMPLE_ROWS, _SAMPLE_PER_COLUMN, _MANY = 20_000, 8, 4
_SAMPLE_GAP = 1e-2


@dataclass(frozen=True)
class SampledShare:
    """The rows of a share, by a hash of their ids.

    Parameters
    ----------
    share : float
    """

    share: float

    def __call__(self, row_id: np.ndarray) -> np.ndarray:
        """Which rows count, (n,) bool."""
        return row_fractions(row_id, 0, 0x7E5) < self.share


def margin_start(problem: TunedProblem, state: TunedState) -> TunedState:
    """The state before any row was read; near a solution neither a sample nor a wide hinge is of use."""
    if problem.start is not None:
        return replace(state, width=_NEAR_WIDTH, ahead=_NEAR_WIDTH, lam=problem.lam)
    return replace(state, share=_first_share(problem), lam=max(problem.lam, _FIRST_LAM))


def _first_share(problem: TunedProblem) -> float:
    """The share of the rows that the first steps see."""
    rows = problem.n_rows or problem.total_weight
    wanted = max(_SAMPLE_ROWS, _SAMPLE_PER_COLUMN * problem.width)
    return wanted / rows if rows > _MANY * wanted else 1.0


def margin_request(problem: TunedProblem, state: TunedState) -> list[BlockSum]:
    """The pass that judges a step and looks ahead from where it leads."""
    steps = np.broadcast_to(_steps(state), (problem.n_outputs, _BACKTRACKS + 1))
    trial = TrialSteps(state.coefficients, state.moves, steps)
    # at the start the rows' curvature is the same for all models
    standing = (0,) if state.fresh and problem.start is None else tuple(range(problem.n_outputs))
    loss: MarginLoss = "squared_hinge" if problem.loss == "squared_hinge" else "hinge"
    options = MarginOptions(loss, hessian_of=standing, dtype=problem.product_dtype)
    sample = SampledShare(state.share) if state.share < 1.0 else None
    return margin_records(problem.feature_map, problem.targets, trial, state.smoothing, options, sample)


def margin_step(problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
    """Accept or shorten the step, and find the next."""
    state, gap = replace(state, passes=state.passes + 1), state.gap
    sums: Mapping[str, np.ndarray] = results[0]
    weight = float(sums["weight"][0])
    length, kept = _judged_step(problem, state, sums["smooth"].sum(axis=0) / weight)
    if length < state.step:
        return _shorter(problem, state, length)
    state = _judged(problem, _moved(problem, state), sums, weight)
    if state.ended:
        return state
    if state.share < 1.0 and state.gap <= _SAMPLE_GAP * state.objective:
        return _on_all_rows(state)
    hessian = np.concatenate([result["hessian"] for result in results], axis=1)
    quiet = state.step == 1.0 and kept > _KEPT_PROMISE
    quiet |= -state.promise <= _LITTLE * min(state.gap, state.objective)
    # the dual weights have lost more than the model has gained: they catch up first
    quiet &= state.gap <= _WORSE * gap
    state = _turned(problem, state, (sums["pulls"].sum(axis=0) / weight, hessian / weight))
    return _narrowed(problem, state, quiet)


def _steps(state: TunedState) -> np.ndarray:
    """The lengths that a pass tries: the step, shorter ones, and none."""
    return np.append(state.step * 0.5 ** np.arange(_BACKTRACKS), 0.0)


def _moved(problem: TunedProblem, state: TunedState) -> TunedState:
    """The step accepted, and the prior of the dual weights moved with it where it follows."""
    point = state.coefficients + state.step * state.moves
    past, reach = state.smoothing.past, state.reach
    if state.follows:
        past, reach = past + point / state.width, reach + 1.0 / state.width
    density = _moved_density(problem, state, state.step)
    return replace(state, coefficients=point, density=density, past=past, reach=reach, width=state.ahead)


def _narrowed(problem: TunedProblem, state: TunedState, quiet: bool) -> TunedState:
    """The next width, prior and lam: new ones where the model at hand is nearly solved."""
    hinge = problem.loss == "hinge"
    ahead = max(_SHRINK * state.width, _LEAST_WIDTH) if quiet and hinge else state.width
    if quiet and state.lam > problem.lam:
        return replace(state, ahead=ahead, follows=False, lam=max(problem.lam, _WEAKER * state.lam))
    follows = state.width < _FOLLOWED_WIDTH or state.gap < _FOLLOWED_GAP * state.objective
    return replace(state, ahead=ahead, follows=quiet and hinge and follows)


def _moved_density(problem: TunedProblem, state: TunedState, length: float) -> np.ndarray:
    return np.maximum(state.density + length * state.density_moves, problem.penalty.floor)


def _judged_step(problem: TunedProblem, state: TunedState, losses: np.ndarray) -> tuple[float, float]:
    """The longest of the tried steps that lowers the objective enough, 0 where none does, and the kept promise."""
    steps = _steps(state)
    points = [
        (state.coefficients + step * state.moves, _moved_density(problem, state, step), state.lam) for step in steps
    ]
    values = losses + np.array([_penalties(problem, *point) for point in points])
    bounds = values[-1] + _SUFFICIENT * steps * state.promise + _NOISE * abs(values[-1])
    good = np.flatnonzero(values[:-1] <= bounds[:-1])
    kept = float((values[0] - values[-1]) / state.promise) if state.promise < 0.0 else 1.0
    return (float(steps[good[0]]) if len(good) else 0.0), kept


def _penalties(problem: TunedProblem, coefficients: np.ndarray, density: np.ndarray, lam: float) -> float:
    u = density[0] if problem.shared else density
    return ridge_value(coefficients[:, :-1], u, lam) + problem.penalty.value(u)


def _shorter(problem: TunedProblem, state: TunedState, length: float) -> TunedState:
    """Look at a shorter step, with derivatives of the width at hand."""
    length = length or state.step * 0.5**_BACKTRACKS
    if length < _SHORTEST:
        return margin_ended(state, "no step lowers the objective any more")
    if state.passes >= problem.max_passes:
        return margin_ended(state, _TOO_MANY)
    return replace(state, step=length, ahead=state.width, follows=False)


def _judged(problem: TunedProblem, state: TunedState, sums: Mapping[str, np.ndarray], weight: float) -> TunedState:
    """Objective, residual and gap at the accepted point; ended where the gap is small enough."""
    loss, mass, pulls = sums["loss"] / weight, sums["mass"] / weight, sums["pulls"] / weight
    # duals of each side, scaled so that they sum to zero
    least, scale = mass.min(axis=0), share_of_sides(mass)
    duals = np.einsum("sk,skj->jk", scale, pulls[:, :, :-1])
    conjugate = square_of_duals(scale, loss, problem.loss)
    coef = state.coefficients[:, :-1]
    data_gap = float(loss.sum() - 2.0 * least.sum() + np.sum(duals.T * coef)) + conjugate
    u = state.density[0] if problem.shared else state.density
    residual, gap = certified(problem.penalty, problem.lam, (coef, u), (pulls[:, :, :-1].sum(axis=0).T, duals))
    state = replace(
        state,
        objective=float(loss.sum()) + _penalties(problem, state.coefficients, state.density, problem.lam),
        residual=max(residual, float(np.abs(pulls[:, :, -1].sum(axis=0)).max())),
        gap=max(0.0, data_gap) + gap,
    )
    state = replace(state, history=state.noted())
    if state.share == 1.0 and state.gap <= max(problem.tol * state.objective, _ZERO):
        return margin_ended(state, "the duality gap is below tol")
    if state.passes >= problem.max_passes:
        return margin_ended(state, _TOO_MANY)
    return state


def share_of_sides(mass: np.ndarray) -> np.ndarray:
    """What scales the dual weights of both sides, whose sums are `mass` (2, K), to the smaller of the two."""
    return np.where(mass > 0.0, mass.min(axis=0) / np.where(mass > 0.0, mass, 1.0), 0.0)


def square_of_duals(scale: np.ndarray, losses: np.ndarray, loss: str) -> float:
    """What the conjugates of a hinge loss have of the squares of the dual weights, which are `scale` times its slopes.

    Of a square, the square's part of the conjugate at a slope is the loss itself; a loss of straight lines has none.

    Parameters
    ----------
    scale, losses : ndarray of shape (2, K)
        For the rows with target -1 and +1; `losses` are their sums.
    loss : {"hinge", "squared_hinge"}
    """
    return float(np.sum(scale**2 * losses)) if loss_of(loss).conjugate_square else 0.0


def _on_all_rows(state: TunedState) -> TunedState:
    """The same point, looked at on all rows."""
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


def margin_ended(state: TunedState, why: str) -> TunedState:
    """The state that asks for no more, where it stands and why."""
    seen = "" if state.share == 1.0 else f" on {100.0 * state.share:.2g} % of the rows"
    message = (
        f"{why}: after {state.passes} passes the gap is {state.gap:.1e} and the largest residual {state.residual:.1e} "
        f"at an objective of {state.objective:.6g}{seen}"
    )
    return replace(state, ended=True, message=message)


def _turned(problem: TunedProblem, state: TunedState, sums: tuple[np.ndarray, np.ndarray]) -> TunedState:
    """The minimum of the second-order model and the penalties, as the next moves."""
    pulls, hessians = sums
    models = [_Quadratic(hessian, problem.width) for hessian in hessians]
    K = problem.n_outputs
    models = models * K if len(models) == 1 else models
    linear = [
        model.linear(pull, state.coefficients[k]) for k, (model, pull) in enumerate(zip(models, pulls, strict=True))
    ]
    targets, density, promise = np.empty((K, problem.width - 1)), np.empty_like(state.density), 0.0
    for g, group in enumerate([range(K)] if problem.shared else [[k] for k in range(K)]):
        forms = [WholeForm(models[k].A, linear[k][:, None], state.lam) for k in group]
        coef = state.coefficients[list(group), :-1]
        before = sum(models[k].value(linear[k], state.coefficients[k, :-1]) for k in group)
        before += ridge_value(coef, state.density[g], state.lam) + problem.penalty.value(state.density[g])
        fit = tuned_density(
            forms, problem.penalty, state.density[g], offset=state.objective - before, tol=_inner(state)
        )
        density[g] = fit.density
        columns = np.tile(fit.density, targets.shape[1] // len(fit.density))
        for k, point in zip(group, fit.points, strict=True):
            targets[k] = columns * point.pulls[:, 0]
        promise += fit.value - (state.objective - before) - before
    moves = np.empty_like(state.coefficients)
    moves[:, :-1] = targets - state.coefficients[:, :-1]
    for k, (model, pull) in enumerate(zip(models, pulls, strict=True)):
        drop, moves[k, -1] = model.intercept(pull, moves[k, :-1])
        promise -= drop
    return replace(state, moves=moves, density_moves=density - state.density, promise=min(promise, 0.0), step=1.0)


def _inner(state: TunedState) -> float:
    return min(_INNER, 1e-2 * state.gap / state.objective) if state.objective > 0.0 else _INNER


class _Quadratic:
    """The second-order model of a data term about a point, its intercept eliminated."""

    def __init__(self, packed: np.ndarray, width: int) -> None:
        whole = lapack.dtpttr(width, packed)[0]
        self.border = whole[:-1, -1].copy()
        self.corner = max(float(whole[-1, -1]), _INTERCEPT)
        upper = np.triu(whole[:-1, :-1])
        self.A = upper + np.triu(upper, 1).T - np.outer(self.border, self.border / self.corner)

    def linear(self, pull: np.ndarray, model: np.ndarray) -> np.ndarray:
        """C of the model w'Aw/2 - C'w, for minus the gradient (m + 1,) at `model`."""
        return self.A @ model[:-1] + pull[:-1] - self.border * (pull[-1] / self.corner)

    def value(self, linear: np.ndarray, w: np.ndarray) -> float:
        """w'Aw/2 - C'w."""
        return float(0.5 * w @ (self.A @ w) - linear @ w)

    def intercept(self, pull: np.ndarray, move: np.ndarray) -> tuple[float, float]:
        """What the best intercept lowers the model by at the point itself, and its move for a move of the weights."""
        return 0.5 * float(pull[-1]) ** 2 / self.corner, float(pull[-1] - self.border @ move) / self.corner
