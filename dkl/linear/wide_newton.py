"""Newton steps on more features than a Hessian is held of: conjugate gradients find each, a pass a product with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dkl.kernels.maps import mapping_flops
from dkl.kernels.normal_equations import NewtonOptions, TrialSteps, curvature_block
from dkl.linear.newton_driver import NewtonDriver, NewtonProblem, NewtonState, newton_record, set_gradients, take_steps
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.line_search import trial_lengths
from dkl.solvers.losses import loss_of

# Hessians of so many features fill 800 MB each.
MOST_FEATURES = 10_000
# A direction is taken when this share of the gradient is left, or after so many products.
_LEFT, _MOST_PRODUCTS = 1e-2, 60


def is_wide(problem: NewtonProblem) -> bool:
    """Whether the features are too many for Hessians."""
    return problem.feature_map.n_features > MOST_FEATURES


@dataclass(frozen=True, eq=False)
class WideState(NewtonState):
    """Where each of g models stands, and how far its next direction is.

    Attributes
    ----------
    slopes, residuals, searches : ndarray of shape (g, m + 1) or None
        The gradient at the accepted point; what is left of it, and where the next product goes.
    products : ndarray of shape (g,), int64, or None
        Products with the Hessian so far; -1 for a direction that is whole.
    """

    slopes: np.ndarray | None = None
    residuals: np.ndarray | None = None
    searches: np.ndarray | None = None
    products: np.ndarray | None = None


class WideNewtonDriver(NewtonDriver):
    """The line search of `NewtonDriver` along directions of conjugate gradients: no Hessian is formed.

    From d = 0, r = p = -g, each pass sums H p for all models that still look for a direction, with H the sum over the
    rows with curvature of s phi phi^T; then, for the quadratic of the Newton step,
    ``a = r.r / p.Hp``, ``d += a p``, ``r' = r - a Hp``, ``p = r' + (r'.r' / r.r) p``. A truncated Newton method
    (Lin, Weng & Keerthi 2008, "Trust region Newton method for large-scale logistic regression", for sparse rows).
    """

    def init(self, problem: NewtonProblem) -> WideState:
        """All models at the start, nothing read."""
        first = super().init(problem)
        shape = first.coefficients.shape
        given: dict[str, Any] = {part.name: getattr(first, part.name) for part in fields(first)}
        given |= {name: np.zeros(shape) for name in ("slopes", "residuals", "searches")}
        return WideState(**given, products=np.full(shape[0], -1))

    def request(self, problem: NewtonProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """A product with the Hessian where a model wants one, else losses and gradients; None when all are done."""
        searching, waiting = _searching(problem, state), _waiting(problem, state)
        if state.ended or len(waiting) == 0:
            return None
        return [
            _product_record(problem, state, searching) if len(searching) else _point_record(problem, state, waiting)
        ]

    def step(self, problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """A step of the conjugate gradients, or of the line search."""
        searching = _searching(problem, state)
        models = searching if len(searching) else _waiting(problem, state)
        copied: dict[str, Any] = {
            part.name: value.copy()
            for part in fields(state)
            if isinstance(value := getattr(state, part.name), np.ndarray)
        }
        state = replace(state, **copied)
        (sums,) = results
        if len(searching):
            _conjugate_step(problem, state, models, sums["product"])
            return state
        accepted = take_steps(problem, state, models, sums["loss"])
        moved = models[accepted]
        gradients = set_gradients(problem, state, moved, sums["gradient"][accepted])
        slopes, residuals, searches, products = _parts(state)
        slopes[moved], residuals[moved], searches[moved] = gradients, -gradients, -gradients
        state.directions[moved], products[moved] = 0.0, 0
        # nothing is promised before the direction is known
        state.slope[moved] = -np.inf
        return state

    def memory(self, problem: NewtonProblem, row_bytes: int) -> dict[str, int]:
        """The vectors of all models, twice while a step is made."""
        return {"directions": 2 * 6 * 8 * problem.n_models * problem.width}

    def plan(self, problem: NewtonProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """Losses and gradients, and the products of all directions: an upper bound."""
        state, models = self.init(problem), np.arange(problem.n_models)
        point, product = _point_record(problem, state, models), _product_record(problem, state, models)
        return [([point], problem.max_steps + 1), ([product], problem.max_steps * _MOST_PRODUCTS)]


def driver_of(problem: NewtonProblem) -> NewtonDriver:
    """How the Newton steps of a problem are found: by Hessians, or by products with them."""
    return WideNewtonDriver() if is_wide(problem) else NewtonDriver()


def _waiting(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """The models that are not done."""
    done = state.converged(problem.tol, problem.decrement)
    return np.flatnonzero(~done & (state.counts < problem.max_steps + 1))


def _searching(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """The models whose direction wants another product."""
    waiting = _waiting(problem, state)
    return waiting[_parts(state)[3][waiting] >= 0]


def _parts(state: NewtonState) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients, residuals, searches and products of a state that `WideNewtonDriver` made."""
    return state.slopes, state.residuals, state.searches, state.products  # type: ignore[attr-defined]


def _conjugate_step(problem: NewtonProblem, state: NewtonState, models: np.ndarray, products: np.ndarray) -> None:
    """One step for the directions of some models, in `state` (a fresh copy), by the products (g, m + 1) with H."""
    slopes, residuals, searches, counts = _parts(state)
    p, r = searches[models], residuals[models]
    # the penalty is on all but the intercept
    Hp = products * (loss_of(problem.loss).largest_curvature / problem.total_weight)
    Hp[:, :-1] += problem.alphas[models, None] * p[:, :-1]
    square, curvature = np.einsum("gj,gj->g", r, r), np.einsum("gj,gj->g", p, Hp)
    length = np.where(curvature > 0.0, square / np.where(curvature > 0.0, curvature, 1.0), 0.0)
    state.directions[models] += length[:, None] * p
    residuals[models] = r - length[:, None] * Hp
    left = np.einsum("gj,gj->g", residuals[models], residuals[models])
    searches[models] = residuals[models] + (left / np.maximum(square, np.finfo(np.float64).tiny))[:, None] * p
    counts[models] += 1
    whole = (np.sqrt(left) <= _LEFT * state.gradient[models]) | (counts[models] >= _MOST_PRODUCTS) | (length == 0.0)
    ended = models[whole]
    counts[ended] = -1
    state.slope[ended] = np.einsum("gj,gj->g", slopes[ended], state.directions[ended])


def _point_record(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> BlockSum:
    """Losses along the directions, and gradients at the full steps."""
    trial = TrialSteps(state.coefficients[models], state.directions[models], trial_lengths(state.steps[models]))
    options = NewtonOptions(problem.loss, None, (0,), dtype=problem.dtype, exact=problem.exact)
    return newton_record(problem, trial, models, options)


def _product_record(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> BlockSum:
    """The product of each model's Hessian with where its search goes."""
    own = problem.targets
    targets = replace(own, models=own.models[models], fold=None if own.fold is None else own.fold[models])
    operands = {
        "feature_map": problem.feature_map,
        "point": state.coefficients[models],
        "searches": _parts(state)[2][models],
        "targets": targets,
        "loss": problem.loss,
        "dtype": problem.dtype,
    }
    width, g = problem.width, len(models)
    shape = {"product": Accumulator((g, width))}
    return BlockSum("product with the Hessian", curvature_block, shape, operands, cost=_ProductCost(problem, g))


@dataclass(frozen=True, eq=False)
class _ProductCost:
    """Scores at the point and of the searches, and the sums, of rows as they are mapped."""

    problem: NewtonProblem
    n_models: int

    def __call__(self, rows: int, columns: int) -> Cost:
        width = self.problem.width
        each = mapping_flops(columns, self.problem.feature_map) + 6.0 * self.n_models * width
        return Cost(rows * each, 8 * self.n_models * (2 * width + 3 * rows))
