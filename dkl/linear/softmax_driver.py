"""Multinomial logistic regression by secant steps on sums over the rows, which one Gram matrix serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.newton.gram import packed_panels, packed_size
from dkl.kernels.normal_equations import JointLoss, NewtonOptions, NewtonTargets, TrialSteps
from dkl.linear.newton_driver import NewtonState, newton_record
from dkl.protocols.records import BlockSum
from dkl.solvers.line_search import SHORTEST, backtracked, trial_lengths
from dkl.solvers.secants import known_secants, secant_direction
from dkl.solvers.systems import PenalisedSystems

# The panels of a Gram matrix in one pass are at most 64 MiB, the size to which accumulators are limited.
_GRAM_BYTES = 1 << 26
# Step lengths that one pass tries: fewer than for other losses, since the first is nearly always taken and each costs
# K exponentials a row.
_TRIALS = 3
# With a decrement, steps also end where they promise no more than such a share of what no model at all loses: classes
# that can be told apart without error have an objective that falls for ever.
_FLOOR = 5e-6
# Secants of so many steps tell the direction.
_SECANTS = 20


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
        The classes are also done when the next step promises to lower the objective by no more than this share of it.
    start : ndarray of shape (K, m + 1) or None
        Where the steps begin; None is 0.
    gram : ndarray of shape (1, size) or None
        ``sum_i s_i (phi_i, 1)(phi_i, 1)^T``, packed, where another fit on the same rows has summed it.
    token : str
        Names what its passes keep of mapped rows.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: float
    tol: float = 1e-9
    max_steps: int = 500
    dtype: str = "float32"
    decrement: float = 0.0
    start: np.ndarray | None = None
    gram: np.ndarray | None = None
    token: str = field(default_factory=lambda: uuid4().hex)
    loss: ClassVar[JointLoss] = "softmax"

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """Coefficients of a class, the intercept included."""
        return self.feature_map.n_features + 1

    @property
    def exact(self) -> bool:
        """Whether scores and gradients are float64 whatever the rows are."""
        return self.decrement == 0.0


class SoftmaxDriver:
    """Secant steps (limited-memory BFGS) for all classes together, as a driver on block sums.

    At zero all classes have the same probability, and the Hessian of class k by class l is ``(d_kl - 1/K)/K`` times
    the Gram matrix G of mapped rows. Gradients, and so steps, add up to zero over the classes, for which that is
    ``G/K``: one system of m + 1 unknowns in place of one of K (m + 1). It is the metric of all steps; how the gradient
    has changed along the last of them tells what has become of the Hessian since (Nocedal & Wright 2006, algorithm
    7.4). A pass takes the products of mapped rows with K models, where the Hessian of all classes would take those of
    all pairs of features for each pair of classes.

    The state is that of one model whose coefficients are those of the classes, one after the other.
    """

    def __init__(self) -> None:
        self._systems = PenalisedSystems()

    def init(self, problem: SoftmaxProblem) -> NewtonState:
        """The start, nothing read."""
        nothing, size = np.full(1, np.inf), problem.n_classes * problem.width
        # what all classes have in common changes no probability
        start = None if problem.start is None else problem.start - problem.start.mean(axis=0)
        return NewtonState(
            coefficients=np.zeros((1, size)) if start is None else start.reshape(1, size),
            directions=np.zeros((1, size)),
            steps=np.ones(1),
            objective=nothing,
            slope=np.zeros(1),
            gradient=nothing,
            first_gradient=nothing,
            counts=np.zeros(1, np.int64),
            stalled=np.zeros(1, bool),
            hessian=problem.gram,
        )

    def request(self, problem: SoftmaxProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """One pass, or None at the end; the first pass has a record for each panel of columns of the Gram matrix."""
        if state.ended or state.converged(problem.tol, problem.decrement)[0] or state.counts[0] >= problem.max_steps:
            return None
        shape, lengths = (problem.n_classes, problem.width), trial_lengths(state.steps, _TRIALS)
        trial = TrialSteps(state.coefficients.reshape(shape), state.directions.reshape(shape), lengths)
        is_known, models = state.hessian is not None, np.arange(problem.n_classes)
        panels: list[tuple[int, int] | None] = list(packed_panels(problem.width, _GRAM_BYTES))
        options = NewtonOptions(problem.loss, dtype=problem.dtype, exact=problem.exact)
        return [
            newton_record(problem, trial, models, replace(options, columns=panel, first_order=place == 0))
            for place, panel in enumerate([None] if is_known else panels)
        ]

    def step(self, problem: SoftmaxProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """Take the full step and find the next direction, or shorten the step."""
        gram = state.hessian
        if gram is None:
            gram = np.concatenate([result["hessian"] for result in results], axis=1)
            state = replace(state, hessian=gram)
        sums, lengths, counts = results[0], trial_lengths(state.steps, _TRIALS), state.counts + 1
        trials = state.coefficients + lengths.T * state.directions
        penalised = trials.reshape(_TRIALS, problem.n_classes, problem.width)[..., :-1]
        objectives = 0.5 * problem.alpha * np.sum(penalised**2, axis=(1, 2)) + sums["loss"] / problem.total_weight
        # At the optimum differences of the objective drown in rounding, where the gradient still tells.
        rounding = 1e-12 if problem.exact else 1e-7
        longest = backtracked(lengths, objectives, state.objective, state.slope, rounding)
        if longest < state.steps:
            return replace(state, steps=longest, counts=counts, stalled=longest < SHORTEST)
        gradient = sums["gradient"] / problem.total_weight
        gradient[:, :-1] += problem.alpha * penalised[0]
        flat, (moves, changes) = gradient.ravel(), state.secants
        if state.last_gradient is not None:
            moved = trials[0] - state.coefficients[0], flat - state.last_gradient
            moves, changes = known_secants(moves, changes, *moved, most=_SECANTS)
        direction = -secant_direction(flat, moves, changes, lambda right: self._solved(problem, gram, right))
        length, slope = np.array([np.linalg.norm(gradient)]), np.array([flat @ direction])
        return replace(
            state,
            coefficients=trials[:1],
            directions=direction[None],
            steps=np.ones(1),
            objective=objectives[0, :1],
            slope=slope,
            gradient=length,
            first_gradient=np.where(state.fresh, length, state.first_gradient),
            counts=counts,
            stalled=(problem.decrement > 0.0) & (-0.5 * slope <= _FLOOR * np.log(problem.n_classes)),
            moves=moves,
            changes=changes,
            last_gradient=flat,
        )

    def stopped(self, problem: SoftmaxProblem, state: NewtonState, why: str) -> NewtonState | None:
        """The accepted point; None until it has left its start."""
        return replace(state, ended=why) if np.any(state.coefficients) else None

    def memory(self, problem: SoftmaxProblem, row_bytes: int) -> dict[str, int]:
        """The Gram matrix as it was summed and as it becomes, and the steps that are known."""
        gram, vector = 8 * packed_size(0, problem.width), 8 * problem.n_classes * problem.width
        return {"Hessians": 2 * gram + 2 * 8 * problem.width**2, "steps": (4 * _SECANTS + 8) * vector}

    def plan(self, problem: SoftmaxProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The first pass, and an upper bound of the later ones."""
        state = self.init(problem)
        later = replace(state, hessian=np.zeros((1, 0)))
        return [
            (self.request(problem, state) or (), 1),
            (self.request(problem, later) or (), problem.max_steps - 1),
        ]

    def _solved(self, problem: SoftmaxProblem, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(G / (K N) + alpha I)^-1 of the vectors of all classes, one after the other."""
        weight, vectors = problem.n_classes * problem.total_weight, right.reshape(problem.n_classes, problem.width)
        return self._systems.solve(gram, weight, 0, problem.alpha, vectors).ravel()
