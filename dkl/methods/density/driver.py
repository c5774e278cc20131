"""The drivers of tuned problems: one pass for the squared error, Newton steps for losses of the margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.methods.density.hinge_driver import HingeDriver
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.pass_records import FoldSums
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.squared import solve_squared
from dkl.protocols.records import Record
from dkl.solvers.squared_sums import SquaredSums


def driver_of(loss: TunedLoss) -> SquaredErrorDriver | HingeDriver:
    """The driver of equation (22) of Shilton et al. 2022: one pass if the loss allows it, else Newton steps."""
    return SquaredErrorDriver() if TUNED_LOSSES[loss].takes_one_pass else HingeDriver()


class SquaredErrorDriver:
    """The optimum by normal equations: the sums of one pass serve every density, so no further pass is needed.

    Their products are float64 whatever the precision of features, since errors of float32 would stay in the optimum.
    """

    def init(self, problem: TunedProblem) -> TunedState:
        """Zero weights and the density of the reference kernel, before any pass."""
        return TunedState.begin(problem)

    def request(self, problem: TunedProblem, state: TunedState) -> Sequence[Record] | None:
        """The pass that sums pairs of features; None after it."""
        return None if state.ended else self._sums(problem).records()

    def step(self, problem: TunedProblem, state: TunedState, results: Sequence[Any]) -> TunedState:
        """The optimum from the sums of the pass."""
        with one_blas_thread():
            (sums,) = self._sums(problem).collect(results)
            center, scale = np.zeros(0), None
            if problem.deviations is not None and isinstance(sums, SquaredSums):
                # stored sums are in the units of the first fit's targets, while lam is in those of these rows
                sums, center, scale = sums.standardised(problem.deviations)
            optimum = solve_squared(sums, problem.penalty, problem.lam, shared=problem.shared)
        coef, intercept = optimum.coef, optimum.intercept
        if scale is not None:
            coef, intercept = coef * scale[:, None], intercept * scale + center
        return replace(
            state,
            coefficients=np.concatenate([coef, intercept[:, None]], axis=1),
            density=np.atleast_2d(optimum.density),
            objective=optimum.objective,
            residual=optimum.residual,
            gap=optimum.gap,
            message=optimum.message,
            passes=state.passes + 1,
            ended=True,
        ).with_history()

    def metrics(self, problem: TunedProblem, state: TunedState) -> dict[str, float]:
        """Objective and gap of the present model."""
        return state.metrics

    def stopped(self, problem: TunedProblem, state: TunedState, why: str) -> TunedState | None:
        """The solved state; None before its pass."""
        return state if state.ended else None

    def memory(self, problem: TunedProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Matrices of pairs of columns, the same for all outputs, and of pairs of frequencies."""
        return problem.memory(n_hessians=1)

    def plan(self, problem: TunedProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass of the sums."""
        return [(self._sums(problem).records(), 1)]

    def _sums(self, problem: TunedProblem) -> FoldSums:
        return FoldSums(problem.feature_map, problem.targets, n_rows=problem.n_rows)
