"""The drivers of tuned problems: one pass for the squared error, Newton steps for losses of the margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.kernels.blas import one_blas_thread
from dkl.methods.density.hinge_driver import HingeDriver
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.pass_records import FoldSums, misfit_record
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import TunedSolution, optimality, ridge_value
from dkl.methods.density.squared import solve_squared
from dkl.protocols.records import Record
from dkl.solvers.squared_sums import SquaredSums

# Sums of products in float32 are corrected by further passes until the residual of the optimality conditions is at most
# _CORRECTED, and by _CORRECTIONS passes at most.
_CORRECTED = 1e-9
_CORRECTIONS = 8


def driver_of(loss: TunedLoss) -> SquaredErrorDriver | HingeDriver:
    """The driver of equation (22) of Shilton et al. 2022: one pass if the loss allows it, else Newton steps."""
    return SquaredErrorDriver() if TUNED_LOSSES[loss].takes_one_pass else HingeDriver()


class SquaredErrorDriver:
    """The optimum by normal equations: the sums of one pass serve every density, so no further pass is needed.

    Sums of products in float32 are the exception. Their error would stay in the optimum, so further passes compute the
    exact gradient at the present model, from which the model is solved again (iterative refinement).
    """

    def init(self, problem: TunedProblem) -> TunedState:
        """Zero weights and the density of the reference kernel, before any pass."""
        return TunedState.begin(problem)

    def request(self, problem: TunedProblem, state: TunedState) -> Sequence[Record] | None:
        """The pass that sums pairs of features, or the residuals of the model; None at the end."""
        if state.ended:
            return None
        return self._sums(problem).records() if state.fresh else [self._residuals(problem, state)]

    def step(self, problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
        """The optimum from the sums of the first pass, or its correction by the exact gradient of a further one."""
        with one_blas_thread():
            return (
                self._first_optimum(problem, state, results)
                if state.fresh
                else self._corrected_optimum(problem, state, results[0])
            )

    def metrics(self, problem: TunedProblem, state: TunedState) -> dict[str, float]:
        """Objective and gap of the present model."""
        return state.metrics

    def stopped(self, problem: TunedProblem, state: TunedState, why: str) -> TunedState | None:
        """The present model as the final state, if a subscriber stops the fit; None before the first pass."""
        if state.ended:
            return state
        if not state.coefficients.any():
            return None
        message = f"{why}: {state.message}"
        return replace(state, ended=True, was_stopped=True, message=message, gram=None, cross=None, squares=None)

    def memory(self, problem: TunedProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Matrices of pairs of columns, the same for all outputs, and of pairs of frequencies."""
        return problem.memory(n_hessians=1)

    def plan(self, problem: TunedProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass of the sums, and the corrections where products are in float32."""
        # the number of corrections depends on the rows, so the plan counts the most
        first: tuple[Sequence[Record], int] = (self._sums(problem).records(), 1)
        if problem.product_dtype == "float64":
            return [first]
        return [first, ([self._residuals(problem, self.init(problem))], _CORRECTIONS)]

    def _sums(self, problem: TunedProblem) -> FoldSums:
        return FoldSums(problem.feature_map, problem.targets, n_rows=problem.n_rows, dtype=problem.product_dtype)

    def _residuals(self, problem: TunedProblem, state: TunedState) -> Record:
        return misfit_record(problem.feature_map, problem.targets, state.coefficients, problem.product_dtype)

    def _first_optimum(self, problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
        """The optimum from the sums of the first pass, which is final unless their products are in float32."""
        (sums,) = self._sums(problem).collect(results)
        center, scale = np.zeros(0), None
        if problem.deviations is not None and isinstance(sums, SquaredSums):
            # stored sums are in the units of the first fit's targets, while lam is in those of these rows
            sums, center, scale = sums.standardised(problem.deviations)
        optimum = solve_squared(sums, problem.penalty, problem.lam, shared=problem.shared)
        if scale is not None:
            intercept = optimum.intercept * scale + center
            optimum = replace(optimum, coef=optimum.coef * scale[:, None], intercept=intercept)
        state = self._accepted_state(optimum, replace(state, passes=state.passes + 1)).noted()
        if problem.product_dtype == "float64" or not isinstance(sums, SquaredSums):
            return replace(state, ended=True)
        return replace(state, gram=sums.gram, cross=sums.cross, squares=sums.squares)

    def _corrected_optimum(
        self, problem: TunedProblem, state: TunedState, sums: Mapping[str, np.ndarray]
    ) -> TunedState:
        """Judge the model by its exact gradient, and solve again with it unless the residual is small enough."""
        if state.gram is None or state.cross is None or state.squares is None:
            raise ValueError("the state of a corrected solution lacks the sums of its first pass")
        first = SquaredSums(state.gram, state.cross, state.squares)
        # minus the gradient in (w, b), after the intercept was moved to its best value
        descent = sums["dual_sums"] / first.weight
        shift = descent[:, -1:]
        models = state.coefficients.copy()
        models[:, -1:] += shift
        descent = descent - shift * first.means
        squares = sums["squares"] / first.weight - shift[:, 0] ** 2
        u = problem.density_of(state.density)
        # the dual weights are the residuals, so the gradient itself is the feasible dual point
        duals = descent[:, :-1].T
        residual, gap = optimality(problem.penalty, problem.lam, (models[:, :-1], u), (duals, duals))
        objective = 0.5 * float(squares.sum()) + ridge_value(models[:, :-1], u, problem.lam) + problem.penalty.value(u)
        passes = state.passes + 1
        state = replace(
            state, coefficients=models, objective=objective, residual=residual, gap=gap, passes=passes
        ).noted()
        if residual <= _CORRECTED or passes > _CORRECTIONS:
            message = f"{state.message}, corrected in {passes - 1} further passes to a residual of {residual:.1e}"
            return replace(state, ended=True, message=message, gram=None, cross=None, squares=None)
        # the right-hand side for which the rounded matrix gives the exact gradient at this model
        exact = replace(first, cross=first.weight * descent + first.times(models))
        optimum = solve_squared(exact, problem.penalty, problem.lam, u, shared=problem.shared)
        return replace(self._accepted_state(optimum, state), cross=exact.cross)

    @staticmethod
    def _accepted_state(optimum: TunedSolution, state: TunedState) -> TunedState:
        """The state with the model of a solution as the accepted point."""
        return replace(
            state,
            coefficients=np.concatenate([optimum.coef, optimum.intercept[:, None]], axis=1),
            density=np.atleast_2d(optimum.density),
            objective=optimum.objective,
            residual=optimum.residual,
            gap=optimum.gap,
            message=optimum.message,
        )
