"""Tuned random features as a driver: one pass for the squared error, Newton steps with a certificate for hinges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.kernels.blas import one_blas_thread
from dkl.methods.density.margin import margin_ended, margin_request, margin_start, margin_step
from dkl.methods.density.pass_records import FoldSums, misfit_record
from dkl.methods.density.problem import TunedLoss, TunedProblem, TunedState
from dkl.methods.density.row_summary import SquaredSums
from dkl.methods.density.solution import TunedSolution, certified, ridge_value
from dkl.methods.density.squared import solve_squared
from dkl.protocols.records import Record

__all__ = ["TunedDriver", "TunedLoss", "TunedProblem", "TunedSolution", "TunedState", "solution"]

# the residual that sums in float32 are corrected down to
_CORRECTED = 1e-9
_CORRECTIONS = 8
# m x m matrices that stand at once: packed sums, the matrix and its factor for each, and what one curvature takes; and
# D x D: the penalty's, the curvature's, and their factor
_MATRICES_EACH, _MATRICES_SHARED, _MATRICES_DENSITY = 4, 3, 5


class TunedDriver:
    """Shilton et al. 2022, equation (22), by sums over blocks: exact, deterministic, with a duality gap at the end."""

    def init(self, problem: TunedProblem) -> TunedState:
        """Weights 0 and the natural density, or those of the start; nothing read."""
        models = np.zeros((problem.n_outputs, problem.width))
        density = np.tile(problem.penalty.start(), (problem.n_densities, 1))
        if problem.start is not None:
            models, density = problem.start
        state = TunedState(models, density, np.zeros_like(models), np.zeros_like(density))
        if problem.loss == "squared_error":
            return state
        return margin_start(problem, state)

    def request(self, problem: TunedProblem, state: TunedState) -> Sequence[Record] | None:
        """The next pass, or None at the end."""
        if state.ended:
            return None
        if problem.loss != "squared_error":
            return margin_request(problem, state)
        if state.fresh:
            return _sums(problem).records()
        return [misfit_record(problem.feature_map, problem.targets, state.coefficients, problem.product_dtype)]

    def step(self, problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
        """The state after that pass."""
        with one_blas_thread():
            if problem.loss != "squared_error":
                return margin_step(problem, state, results)
            if state.fresh:
                return _solved(problem, state, results)
            return _corrected(problem, state, results[0])

    def metrics(self, problem: TunedProblem, state: TunedState) -> dict[str, float]:
        """Objective and gap of the accepted point."""
        return {} if state.fresh else {name: float(getattr(state, name)) for name in ("objective", "gap")}

    def stopped(self, problem: TunedProblem, state: TunedState, why: str) -> TunedState | None:
        """The accepted point; None while that is the start."""
        if state.ended:
            return state
        if not state.coefficients.any():
            return None
        if problem.loss != "squared_error":
            return replace(margin_ended(state, why), was_stopped=True)
        message = f"{why}: {state.message}"
        return replace(state, ended=True, was_stopped=True, message=message, gram=None, cross=None, squares=None)

    def memory(self, problem: TunedProblem, row_bytes: int) -> dict[str, int]:
        """Matrices of pairs of columns, one for each class where the loss is a hinge, and of pairs of frequencies."""
        m, D = problem.width - 1, problem.penalty.n_frequencies
        each = problem.n_outputs if problem.loss != "squared_error" else 1
        return {"matrices of columns": matrix_bytes(m, each), "matrices of frequencies": _MATRICES_DENSITY * 8 * D * D}

    def plan(self, problem: TunedProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """Each kind of pass, and how often it runs at most."""
        state = self.init(problem)
        if problem.loss != "squared_error":
            later = replace(state, share=1.0, history=({},))
            return [(margin_request(problem, later), problem.max_passes)]
        first: tuple[Sequence[Record], int] = (_sums(problem).records(), 1)
        if problem.product_dtype == "float64":
            return [first]
        again = misfit_record(problem.feature_map, problem.targets, state.coefficients, problem.product_dtype)
        return [first, ([again], _CORRECTIONS)]


def matrix_bytes(n_columns: int, n_hessians: int) -> int:
    """What the matrices of pairs of columns take at most: one Hessian a class for hinges, one in all otherwise."""
    return (_MATRICES_SHARED + _MATRICES_EACH * n_hessians) * 8 * n_columns**2


def solution(problem: TunedProblem, state: TunedState) -> TunedSolution:
    """The model where a driver has ended (or stands)."""
    return TunedSolution(
        coef=state.coefficients[:, :-1],
        intercept=state.coefficients[:, -1],
        density=state.density[0] if problem.shared else state.density,
        objective=state.objective,
        residual=state.residual,
        gap=state.gap,
        message=state.message,
    )


def _sums(problem: TunedProblem) -> FoldSums:
    return FoldSums(problem.feature_map, problem.targets, n_rows=problem.n_rows, dtype=problem.product_dtype)


def _solved(problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
    """The optimum by the sums of the first pass: the end, unless they are of float32 products."""
    (sums,) = _sums(problem).collect(results)
    if problem.deviations is not None and isinstance(sums, SquaredSums):
        sums, center, scale = sums.standardised(problem.deviations)
        found = solve_squared(sums, problem.penalty, problem.lam, shared=problem.shared)
        found = replace(found, coef=found.coef * scale[:, None], intercept=found.intercept * scale + center)
    else:
        found = solve_squared(sums, problem.penalty, problem.lam, shared=problem.shared)
    state = _placed(state, found)
    if problem.product_dtype == "float64" or not isinstance(sums, SquaredSums):
        return replace(state, ended=True, history=state.noted())
    return replace(state, history=state.noted(), gram=sums.gram, cross=sums.cross, squares=sums.squares)


def _placed(state: TunedState, found: TunedSolution) -> TunedState:
    return replace(
        state,
        coefficients=np.concatenate([found.coef, found.intercept[:, None]], axis=1),
        density=np.atleast_2d(found.density),
        objective=found.objective,
        residual=found.residual,
        gap=found.gap,
        passes=state.passes + 1,
        message=found.message,
    )


def _corrected(problem: TunedProblem, state: TunedState, sums: Mapping[str, np.ndarray]) -> TunedState:
    """Judge the models by exact gradients, and solve again with these unless products in float32 are good enough."""
    known = _known(state)
    pulls = sums["pulls"] / known.weight
    # the best intercept, on which the gradient of the rest is to be taken
    shift = pulls[:, -1:]
    models = state.coefficients.copy()
    models[:, -1:] += shift
    pulls = pulls - shift * known.means
    squares = sums["squares"] / known.weight - shift[:, 0] ** 2
    u = state.density[0] if problem.shared else state.density
    duals = pulls[:, :-1].T
    residual, gap = certified(problem.penalty, problem.lam, (models[:, :-1], u), (duals, duals))
    objective = 0.5 * float(squares.sum()) + ridge_value(models[:, :-1], u, problem.lam) + problem.penalty.value(u)
    state = replace(
        state, coefficients=models, objective=objective, residual=residual, gap=gap, passes=state.passes + 1
    )
    state = replace(state, history=state.noted())
    if residual <= _CORRECTED or state.passes > _CORRECTIONS:
        message = f"{state.message}, corrected in {state.passes - 1} further passes to a residual of {residual:.1e}"
        return replace(state, ended=True, message=message, gram=None, cross=None, squares=None)
    exact = replace(known, cross=known.weight * pulls + known.times(models))
    found = solve_squared(exact, problem.penalty, problem.lam, u, shared=problem.shared)
    return replace(_placed(state, found), cross=exact.cross, passes=state.passes)


def _known(state: TunedState) -> SquaredSums:
    """The sums of the first pass."""
    if state.gram is None or state.cross is None or state.squares is None:
        raise ValueError("the state of a corrected solution lacks the sums of its first pass")
    return SquaredSums(state.gram, state.cross, state.squares)
