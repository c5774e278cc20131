"""Ridge and squared-hinge linear models by Newton steps on sums over the rows: exact, deterministic, a few passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy import linalg

from dkl.blocks.newton import NewtonLoss, NewtonOptions, NewtonTargets, Trial, newton_block
from dkl.blocks.records import Accumulator, BlockSum, Cost
from dkl.features.feature_map import FeatureMap

_HESSIAN_BYTES = 1 << 26
_BACKTRACKS = 8
_SUFFICIENT = 1e-4


@dataclass(frozen=True, eq=False)
class NewtonProblem:
    """Minimise ``alpha/2 |w|^2 + (1/N) sum_i s_i loss(y_i, w.phi(x_i) + b)`` for each of several models.

    N is the sum of the weights s; the intercept b is not penalised. The squared hinge ``max(0, 1 - y f)^2`` is solved
    class by class (one against the rest), the squared error ``(y - f)^2 / 2`` for all targets at once: these are the
    problems of ``LinearSVC(C=1/(alpha N))`` with a free intercept and of ``Ridge(alpha N)``.

    Parameters
    ----------
    feature_map : FeatureMap
    targets : NewtonTargets
        Of all models.
    total_weight : float
        N.
    alpha : float
    loss : {"squared_hinge", "squared_error"}
    tol : float
        A model is done when its gradient has shrunk to `tol` of its length at zero.
    max_steps : int
        Of each model.
    dtype : {"float32", "float64"}
        Of the mapped rows and the Hessian; gradients are always summed in float64, so float32 costs an extra step and
        no accuracy.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: float
    loss: NewtonLoss = "squared_hinge"
    tol: float = 1e-6
    max_steps: int = 50
    dtype: str = "float32"

    @property
    def n_models(self) -> int:
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """Coefficients of a model, the intercept included."""
        return self.feature_map.n_features + 1


@dataclass(frozen=True, eq=False)
class NewtonState:
    """Where each of K models stands.

    Attributes
    ----------
    coefficients, directions : ndarray of shape (K, m + 1)
        The accepted point and the direction from it; the intercept last.
    steps : ndarray of shape (K,)
        The step length that the next pass tries.
    objective, slope : ndarray of shape (K,)
        At the accepted point; the slope along the direction.
    gradient, first_gradient : ndarray of shape (K,)
        Lengths of the gradient there and at zero.
    counts : ndarray of shape (K,), int64
        Steps tried.
    stalled : ndarray of shape (K,), bool
        No step lowers the objective any more: rounding is reached.
    hessian : ndarray of shape (m + 1, m + 1) or None
        Of the squared error, which never changes.
    """

    coefficients: np.ndarray
    directions: np.ndarray
    steps: np.ndarray
    objective: np.ndarray
    slope: np.ndarray
    gradient: np.ndarray
    first_gradient: np.ndarray
    counts: np.ndarray
    stalled: np.ndarray
    hessian: np.ndarray | None = None

    @property
    def started(self) -> bool:
        return bool(np.isfinite(self.first_gradient).all())

    def converged(self, tol: float) -> np.ndarray:
        """Which models have reached the tolerance, or the limit of rounding."""
        return (self.gradient <= tol * self.first_gradient) | self.stalled


class NewtonDriver:
    """Newton's method with a line search (Keerthi & DeCoste 2005 for the squared hinge) as a driver on block sums.

    One pass evaluates the loss at the full step and at shorter ones, and gradient and Hessian at the full step; when
    the full step does not lower the objective enough, the next pass takes the longest one that does. The squared
    hinge is piecewise quadratic, so a full step that leaves the rows with margin below 1 unchanged ends the search.
    """

    def init(self, problem: NewtonProblem) -> NewtonState:
        """All models at zero, nothing read."""
        K = problem.n_models
        nothing = np.full(K, np.inf)
        return NewtonState(
            coefficients=np.zeros((K, problem.width)),
            directions=np.zeros((K, problem.width)),
            steps=np.ones(K),
            objective=nothing,
            slope=np.zeros(K),
            gradient=nothing,
            first_gradient=nothing,
            counts=np.zeros(K, np.int64),
            stalled=np.zeros(K, bool),
        )

    def request(self, problem: NewtonProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """One pass for the next models that are not done, or None."""
        models = _next_models(problem, state)
        return None if len(models) == 0 else _records(problem, state, models)

    def step(self, problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """Accept or shorten the step of each model of the pass, and find the next direction."""
        models = _next_models(problem, state)
        hessians = _assemble(problem, state, results)
        state = _copied(state)
        for position, model in enumerate(models):
            own = hessians[position if len(hessians) > 1 else 0]
            _step_model(problem, state, model, (results[0]["loss"][position], results[0]["gradient"][position], own))
        return replace(state, hessian=hessians[0]) if problem.loss == "squared_error" else state

    def plan(self, problem: NewtonProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The first pass, and an upper bound of the later ones."""
        state = self.init(problem)
        first = _records(problem, state, np.arange(problem.n_models))
        begun = replace(state, first_gradient=np.ones(problem.n_models), hessian=np.zeros((0, 0)))
        models = _next_models(problem, begun)
        groups = -(-problem.n_models // len(models))
        return [(first, 1), (_records(problem, begun, models), groups * problem.max_steps)]


def _next_models(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """The models that the next pass serves: all at first and for the squared error, else as many as 64 MiB hold."""
    if not state.started:
        return np.arange(problem.n_models)
    waiting = np.flatnonzero(~state.converged(problem.tol) & (state.counts < problem.max_steps))
    if problem.loss == "squared_error":
        return waiting
    return waiting[: max(1, _HESSIAN_BYTES // (8 * problem.width**2))]


def _records(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
    steps = state.steps[models, None] * 0.5 ** np.arange(_BACKTRACKS + 1)
    trial = Trial(state.coefficients[models], state.directions[models], steps)
    shared = problem.loss == "squared_error" or not state.started
    need_hessian = problem.loss == "squared_hinge" or state.hessian is None
    panels: list[tuple[int, int] | None] = list(_panels(problem.width, 1 if shared else len(models)))
    return [
        _record(problem, trial, models, NewtonOptions(problem.loss, panel, shared, position == 0, problem.dtype))
        for position, panel in enumerate(panels if need_hessian else [None])
    ]


def _record(problem: NewtonProblem, trial: Trial, models: np.ndarray, options: NewtonOptions) -> BlockSum:
    g, width = trial.coefficients.shape
    accumulators = {}
    if options.first_order:
        accumulators = {"loss": Accumulator(trial.steps.shape), "gradient": Accumulator((g, width))}
    if options.columns is not None:
        start, stop = options.columns
        shape = (1 if options.shared else g, stop - start, width - start)
        accumulators["hessian"] = Accumulator(shape)
    hessian_flops = sum(accumulators["hessian"].shape) if "hessian" in accumulators else 0
    targets = replace(problem.targets, models=problem.targets.models[models])

    def cost(rows: int, columns: int) -> Cost:
        mapping = 2.0 * columns * problem.feature_map.n_frequencies
        return Cost(rows * (mapping + 4.0 * g * width + 1.0 * hessian_flops * width), 4 * 1024 * 8 * width)

    return BlockSum(
        name="newton step",
        function=newton_block,
        accumulators=accumulators,
        operands={"feature_map": problem.feature_map, "trial": trial, "options": options, "targets": targets},
        cost=cost,
    )


def _panels(width: int, n_hessians: int) -> list[tuple[int, int]]:
    """Rows of the Hessians cut so that no accumulator exceeds 64 MiB; rows get shorter, so later panels hold more."""
    panels, start = [], 0
    while start < width:
        rows = max(1, _HESSIAN_BYTES // (8 * n_hessians * (width - start)))
        panels.append((start, min(width, start + rows)))
        start = panels[-1][1]
    return panels


def _assemble(problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> np.ndarray:
    """The Hessians (h, m + 1, m + 1) of a pass, upper triangles, from their panels, or the one that never changes."""
    pieces = [result["hessian"] for result in results if "hessian" in result]
    if state.hessian is not None and not pieces:
        return state.hessian[None]
    hessians = np.zeros((pieces[0].shape[0], problem.width, problem.width))
    start = 0
    for piece in pieces:
        stop = start + piece.shape[1]
        hessians[:, start:stop, start:] = piece
        start = stop
    return hessians


def _copied(state: NewtonState) -> NewtonState:
    """With arrays of its own, but for the Hessian, which nobody writes to."""
    values = {field.name: getattr(state, field.name) for field in fields(state) if field.name != "hessian"}
    return replace(state, **{name: value.copy() for name, value in values.items()})


def _step_model(problem: NewtonProblem, state: NewtonState, model: int, sums: tuple[np.ndarray, ...]) -> None:
    """Update the rows of `state` (a fresh copy) that belong to one model, from its loss, gradient and Hessian."""
    losses, gradient, hessian = sums
    steps = state.steps[model] * 0.5 ** np.arange(_BACKTRACKS + 1)
    objectives = _objectives(problem, state, model, steps, losses)
    state.counts[model] += 1
    # at the optimum differences drown in rounding, where the gradient still tells
    bound = state.objective[model] + _SUFFICIENT * steps * state.slope[model] + 1e-12 * abs(objectives[0])
    good = np.flatnonzero(objectives <= bound)
    if len(good) == 0 or good[0] > 0:
        state.steps[model] = steps[good[0]] if len(good) else steps[-1] / 2
        state.stalled[model] = state.steps[model] < 1e-10
        return
    state.coefficients[model] += steps[0] * state.directions[model]
    state.objective[model] = objectives[0]
    gradient = gradient / problem.total_weight
    gradient[:-1] += problem.alpha * state.coefficients[model, :-1]
    state.gradient[model] = np.linalg.norm(gradient)
    if not np.isfinite(state.first_gradient[model]):
        state.first_gradient[model] = state.gradient[model]
    state.directions[model] = -_solve(problem, hessian, gradient)
    state.slope[model] = gradient @ state.directions[model]
    state.steps[model] = 1.0


def _objectives(
    problem: NewtonProblem, state: NewtonState, model: int, steps: np.ndarray, losses: np.ndarray
) -> np.ndarray:
    weights = state.coefficients[model, :-1] + steps[:, None] * state.directions[model, :-1]
    return 0.5 * problem.alpha * np.sum(weights**2, axis=1) + losses / problem.total_weight


def _solve(problem: NewtonProblem, hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """(H/N + alpha I)^-1 gradient by Cholesky; a float32 Hessian that is not positive gets a growing diagonal."""
    system = hessian / problem.total_weight
    diagonal = np.einsum("ii->i", system)
    diagonal[:-1] += problem.alpha
    scale = diagonal.mean()
    diagonal[-1] += 1e-12 * scale
    jitter = 1e-9 * scale
    while True:
        try:
            factor = linalg.cho_factor(system, lower=False, check_finite=False)
            return linalg.cho_solve(factor, gradient, check_finite=False)
        except linalg.LinAlgError:
            diagonal += jitter
            jitter *= 10
