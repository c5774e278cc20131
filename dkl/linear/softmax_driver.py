"""Multinomial logistic regression by Newton steps on sums over the rows: one system of all classes a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import lapack

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.kernels.newton.gram import packed_panels, packed_size
from dkl.kernels.normal_equations import (
    NewtonOptions,
    NewtonTargets,
    TrialSteps,
    newton_tile,
)
from dkl.linear.newton_driver import NewtonState
from dkl.linear.softmax_sums import class_pairs, softmax_block
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.positive_definite import solve_positive

# The Hessian blocks of one record are at most 64 MiB, the size to which accumulators are limited.
_HESSIAN_BYTES = 1 << 26
# How often one pass halves the step to try shorter ones, and the share of what the slope promises that a step has to
# gain (Armijo's rule).
_BACKTRACKS, _SUFFICIENT = 8, 1e-4


@dataclass(frozen=True, eq=False)
class SoftmaxProblem:
    """Minimise ``alpha/2 |W|^2 + (1/N) sum_i s_i (log sum_k exp f_ik - f_i,y_i)``, ``f_ik = w_k.phi(x_i) + b_k``.

    It is the problem of ``LogisticRegression(C=1/(alpha N))`` with K > 2 classes; the intercepts, which have no penalty
    and of which only differences count, add up to 0.

    Parameters
    ----------
    feature_map : FeatureMap
    targets : NewtonTargets
        Of all K classes.
    total_weight : float
        N.
    alpha : float
    tol, max_steps, dtype
        As of `NewtonProblem`.
    decrement : float
        As of `NewtonProblem`.
    start : ndarray of shape (K, m + 1) or None
        Where the steps begin; None is 0.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: float
    tol: float = 1e-9
    max_steps: int = 50
    dtype: str = "float32"
    decrement: float = 0.0
    start: np.ndarray | None = None

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """Coefficients of a class, the intercept included."""
        return self.feature_map.n_features + 1


class SoftmaxDriver:
    """Newton's method with a line search for all classes together, as a driver on block sums.

    The state is that of one model whose coefficients are those of the classes, one after the other. Newton steps end
    where those of each class alone do not: their Hessian knows that a row that one class gains is lost to others.
    """

    def init(self, problem: SoftmaxProblem) -> NewtonState:
        """The start, nothing read."""
        nothing, size = np.full(1, np.inf), problem.n_classes * problem.width
        return NewtonState(
            coefficients=np.zeros((1, size)) if problem.start is None else problem.start.reshape(1, size),
            directions=np.zeros((1, size)),
            steps=np.ones(1),
            objective=nothing,
            slope=np.zeros(1),
            gradient=nothing,
            first_gradient=nothing,
            counts=np.zeros(1, np.int64),
            stalled=np.zeros(1, bool),
        )

    def request(self, problem: SoftmaxProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """One pass, or None at the end: a record for each panel of Hessian columns, the first with the gradient."""
        if state.ended or state.converged(problem.tol, problem.decrement)[0] or state.counts[0] >= problem.max_steps:
            return None
        shape = K, width = problem.n_classes, problem.width
        trial = TrialSteps(state.coefficients.reshape(shape), state.directions.reshape(shape), _trial_steps(state))
        n_pairs = len(class_pairs(K))
        records: list[BlockSum] = []
        for panel in packed_panels(width, _HESSIAN_BYTES // n_pairs):
            options = NewtonOptions("log_loss", panel, first_order=not records, dtype=problem.dtype)
            accumulators = {"hessian": Accumulator((n_pairs, packed_size(*panel)))}
            if options.first_order:
                accumulators |= {"loss": Accumulator(trial.steps.shape), "gradient": Accumulator(shape)}
            operands = {"feature_map": problem.feature_map, "trial": trial, "options": options}
            records.append(
                BlockSum(
                    name="newton step",
                    function=softmax_block,
                    accumulators=accumulators,
                    operands={**operands, "targets": problem.targets},
                    cost=_SoftmaxCost(problem.feature_map, K, options),
                )
            )
        return records

    def step(self, problem: SoftmaxProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """Take the full step and find the next direction, or shorten the step."""
        sums, steps, counts = results[0], _trial_steps(state)[0], state.counts + 1
        trials = state.coefficients + steps[:, None] * state.directions
        penalised = trials.reshape(len(steps), problem.n_classes, problem.width)[..., :-1]
        objectives = 0.5 * problem.alpha * np.sum(penalised**2, axis=(1, 2)) + sums["loss"][0] / problem.total_weight
        # At the optimum differences of the objective drown in rounding, where the gradient still tells.
        bound = state.objective + _SUFFICIENT * steps * state.slope + 1e-12 * abs(objectives[0])
        good = np.flatnonzero(objectives <= bound)
        if len(good) == 0 or good[0] > 0:
            shorter = np.array([steps[good[0]] if len(good) else steps[-1] / 2])
            return replace(state, steps=shorter, counts=counts, stalled=shorter < 1e-10)
        coefficients = trials[:1]
        gradient = sums["gradient"] / problem.total_weight
        gradient[:, :-1] += problem.alpha * penalised[0]
        direction = -_solve(problem, np.concatenate([result["hessian"] for result in results], axis=1), gradient)
        length = np.array([np.linalg.norm(gradient)])
        return replace(
            state,
            coefficients=coefficients,
            directions=direction.reshape(1, -1),
            steps=np.ones(1),
            objective=objectives[:1],
            slope=np.array([np.sum(gradient * direction)]),
            gradient=length,
            first_gradient=np.where(state.fresh, length, state.first_gradient),
            counts=counts,
        )

    def stopped(self, problem: SoftmaxProblem, state: NewtonState, why: str) -> NewtonState | None:
        """The accepted point; None until it has left its start."""
        return replace(state, ended=why) if np.any(state.coefficients) else None

    def memory(self, problem: SoftmaxProblem, row_bytes: int) -> dict[str, int]:
        """The blocks of the Hessian as they are summed, and the system of all classes."""
        blocks = 8 * len(class_pairs(problem.n_classes)) * packed_size(0, problem.width)
        return {"Hessians": 2 * blocks + 8 * (problem.n_classes * problem.width) ** 2}

    def plan(self, problem: SoftmaxProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The same records in every pass, and an upper bound of their number."""
        return [(self.request(problem, self.init(problem)) or (), problem.max_steps)]


def _trial_steps(state: NewtonState) -> np.ndarray:
    """The steps that a pass tries, (1, T), the longest first."""
    return state.steps[:, None] * 0.5 ** np.arange(_BACKTRACKS + 1)


def _solve(problem: SoftmaxProblem, packed: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """(H/N + alpha I)^-1 of the gradient, (K, m + 1)."""
    K, width, N = problem.n_classes, problem.width, problem.total_weight

    def system() -> np.ndarray:
        """The upper triangle of N times the system, of which the blocks below the diagonal do not count."""
        matrix = np.zeros((K * width, K * width), order="F")
        for (k, other), block in zip(class_pairs(K), packed, strict=True):
            square, _ = lapack.dtpttr(width, block)
            if k != other:
                square = square + np.triu(square, 1).T
            matrix[k * width : (k + 1) * width, other * width : (other + 1) * width] = square
        diagonal = np.einsum("ii->i", matrix)
        diagonal += N * problem.alpha
        intercepts = slice(width - 1, None, width)
        diagonal[intercepts] -= N * problem.alpha
        # A number that is added to all intercepts changes no probability: this makes the step add none, and the system
        # positive definite.
        matrix[intercepts, intercepts] += diagonal.mean() / K
        diagonal[intercepts] += 1e-12 * diagonal.mean()
        return matrix

    return solve_positive(system, N * gradient.reshape(-1, 1)).reshape(K, width)


@dataclass(frozen=True, eq=False)
class _SoftmaxCost:
    """What `softmax_sums` of a block costs: mapping, scores and gradients, a product of mapped rows for each pair."""

    feature_map: FeatureMap
    n_classes: int
    options: NewtonOptions

    def __call__(self, rows: int, columns: int) -> Cost:
        width = self.feature_map.n_features + 1
        packed = 0 if self.options.columns is None else packed_size(*self.options.columns)
        hessians = 2.0 * packed * len(class_pairs(self.n_classes))
        flops = rows * (mapping_flops(columns, self.feature_map) + 12.0 * self.n_classes * width + hessians)
        itemsize = np.dtype(self.options.dtype).itemsize
        tile = newton_tile(width - 1, self.options.dtype) * width * (2 * itemsize + 8)
        return Cost(flops, tile + itemsize * width * min(width, 2 * packed // width + 1))
