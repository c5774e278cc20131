"""Linear models of losses that bend by Newton steps on sums over the rows: exact, deterministic, a few passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import uuid4

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.kernels.newton.gram import packed_panels, packed_size
from dkl.kernels.normal_equations import (
    NewtonLoss,
    NewtonOptions,
    NewtonTargets,
    TrialSteps,
    newton_block,
    newton_tile,
)
from dkl.protocols.driver import BETWEEN_PASSES
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.line_search import SHORTEST, backtracked, trial_lengths
from dkl.solvers.losses import Loss, newton_loss
from dkl.solvers.secants import known_secants, secant_direction
from dkl.solvers.systems import PenalisedSystems, systems_at_once
from dkl.uncertainty.evidence import Evidence

# The Hessians of one pass are at most 64 MiB, the size to which accumulators are limited.
_HESSIAN_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class NewtonProblem:
    """Minimise ``alpha/2 |w|^2 + (1/N) sum_i s_i loss(y_i, w.phi(x_i) + b)`` for each of several models.

    N is the sum of the weights s; the intercept b is not penalised. The squared hinge ``max(0, 1 - y f)^2`` is solved
    class by class (one against the rest), the squared error ``(y - f)^2 / 2`` for all targets at once: these are the
    problems of ``LinearSVC(C=1/(alpha N))`` with a free intercept and of ``Ridge(alpha N)``. The other losses are those
    of `dkl.solvers.losses`, one model a target or quantile.

    Parameters
    ----------
    feature_map : FeatureMap
    targets : NewtonTargets
        Of all models; models may leave out the rows of a fold.
    total_weight : float
        N, with the rows of all folds.
    alpha : float or ndarray of shape (g,)
        Of all models, or of each.
    loss : {"squared_hinge", "squared_error", "log_loss", "huber", "pinball", "poisson", "gamma"}
    tol : float
        A model is done when its gradient has shrunk to `tol` of its length at the start.
    decrement : float
        A model is also done when the next step promises to lower the objective by no more than this share of it; that
        step is then the last, and is taken.
    max_steps : int
        Of each model.
    dtype : {"float32", "float64"}
        Of the mapped rows and the Hessian. Gradients are float64 unless a `decrement` of the squared hinge is enough,
        so float32 costs an extra step and no accuracy.
    start : ndarray of shape (g, m + 1) or None
        Where the models start, the intercept last; None is zero. Models of one target start at the same point.
    first_gradient : ndarray of shape (g,) or None
        The lengths of gradients that `tol` is relative to; None are those at the start.
    fixed : bool
        Hessians at the start serve all steps, where those of all targets and folds are within 64 MiB: penalties can be
        told apart by rougher steps than a model is fitted with.
    epsilon : float
        Of "huber"; of "pinball" the width of the parabola in place of its kink.
    quantiles : ndarray of shape (g,) or None
        Of "pinball".
    metric : ndarray of shape (1, size) or None
        A packed Hessian that serves all steps of a single model, as of a share of the rows times what they are short
        of; None where each step has its own. Steps add to it what gradients tell of the Hessian.
    evidence : bool
        The penalty of all models is the one with the largest evidence, found by the sums of the first pass; `alpha`
        does not count. Of the squared error, from zero, on all rows.
    token : str
        Names what its passes keep of mapped rows.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: Any
    loss: NewtonLoss = "squared_hinge"
    tol: float = 1e-6
    decrement: float = 0.0
    max_steps: int = 50
    dtype: str = "float32"
    start: np.ndarray | None = None
    first_gradient: np.ndarray | None = None
    fixed: bool = False
    epsilon: float = 0.1
    quantiles: np.ndarray | None = None
    metric: np.ndarray | None = None
    evidence: bool = False
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def table(self) -> Loss:
        """The loss."""
        return newton_loss(self.loss, self.epsilon, self.quantiles)

    @property
    def hessian_weight(self) -> float:
        """What summed Hessians are divided by: N over the loss's unit of curvature."""
        return self.total_weight / self.table.curvature_unit

    @property
    def n_models(self) -> int:
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """Coefficients of a model, the intercept included."""
        return self.feature_map.n_features + 1

    @property
    def exact(self) -> bool:
        """Whether scores and gradients are float64 whatever the rows are."""
        return self.decrement == 0.0 or self.loss != "squared_hinge"

    @property
    def alphas(self) -> np.ndarray:
        """The penalty of each model, of shape (g,)."""
        return np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), (self.n_models,))

    @property
    def keeps_hessians(self) -> bool:
        """Whether Hessians are summed once: they never change, or those of the start will do."""
        # The curvature of the squared error is the same everywhere; that of the squared hinge is the number of rows
        # with margin below 1, which changes with each step.
        if self.metric is not None:
            return True
        if self.loss == "squared_error" or not self.fixed:
            return self.loss == "squared_error"
        n_hessians = len(set(self._starting_keys()))
        return n_hessians == 1 or 8 * n_hessians * packed_size(0, self.width) <= _HESSIAN_BYTES

    @property
    def held_features(self) -> int:
        """The most features of which the Hessians of all models, one each, are within 64 MiB."""
        return int((np.sqrt(1.0 + _HESSIAN_BYTES / self.n_models) - 1.0) / 2.0) - 1

    def hessian_keys(self, fresh: np.ndarray) -> list[tuple[int, ...]]:
        """What tells the Hessian of each model from others': models that have not stepped share theirs.

        Parameters
        ----------
        fresh : ndarray of shape (g,), bool
            Which models are still at the start.
        """
        first = self._starting_keys()
        if self.keeps_hessians:
            return first
        return [key if new else (-2, model) for model, (key, new) in enumerate(zip(first, fresh, strict=True))]

    def _starting_keys(self) -> list[tuple[int, ...]]:
        # Models that see the same rows from the same point have the same Hessian. From zero all rows have margin 0, so
        # that the classes share theirs; from a given start each class has its own.
        folds = np.full(self.n_models, -1) if self.targets.fold is None else self.targets.fold
        if self.loss == "squared_error":
            return [(int(fold),) for fold in folds]
        # The parabolas of other losses lie elsewhere for each target, and from a start for each of its quantiles.
        outputs = self.targets.models
        if self.quantiles is not None and self.start is not None:
            outputs = np.unique(np.stack([outputs, self.quantiles]), axis=1, return_inverse=True)[1].ravel()
        if self.start is None and self.loss in ("squared_hinge", "log_loss"):
            outputs = np.zeros(self.n_models, np.int64)
        return [(int(fold), int(output)) for fold, output in zip(folds, outputs, strict=True)]


@dataclass(frozen=True, eq=False)
class NewtonState:
    """Where each of g models stands.

    Attributes
    ----------
    coefficients, directions : ndarray of shape (g, m + 1)
        The accepted point and the direction from it; the intercept last.
    steps : ndarray of shape (g,)
        The step length that the next pass tries.
    objective, slope : ndarray of shape (g,)
        At the accepted point; the slope along the direction.
    gradient, first_gradient : ndarray of shape (g,)
        Lengths of the gradient there and at the start.
    counts : ndarray of shape (g,), int64
        Steps tried.
    stalled : ndarray of shape (g,), bool
        No step lowers the objective any more: rounding is reached.
    hessian : ndarray of shape (h, size) or None
        Packed, divided by the loss's unit of curvature: of the squared error, one a fold, which never change; of other
        losses those of the models `held` at their accepted points, of which the next pass sums the change alone.
    held : ndarray of shape (h,), int64, or None
    ended : str
        Who ended the steps before their time; empty while nobody did.
    alphas : ndarray of shape (g,) or None
        The penalties that the sums of the first pass have led to; None for those of the problem.
    moves, changes : ndarray of shape (p, w) or None
        With a metric the steps that were taken, and by how much each has changed the gradient.
    last_gradient : ndarray of shape (w,) or None
        With a metric the gradient at the accepted point.
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
    held: np.ndarray | None = None
    ended: str = ""
    alphas: np.ndarray | None = None
    moves: np.ndarray | None = None
    changes: np.ndarray | None = None
    last_gradient: np.ndarray | None = None

    def penalties(self, problem: NewtonProblem) -> np.ndarray:
        """The penalty of each model, (g,)."""
        return problem.alphas if self.alphas is None else self.alphas

    @property
    def secants(self) -> tuple[np.ndarray, np.ndarray]:
        """The steps that are known, and by how much each has changed the gradient, both (p, w)."""
        nothing = np.zeros((0, self.coefficients.shape[1]))
        return nothing if self.moves is None else self.moves, nothing if self.changes is None else self.changes

    @property
    def fresh(self) -> np.ndarray:
        """Which models have not been evaluated yet."""
        return ~np.isfinite(self.first_gradient)

    @property
    def proposal(self) -> np.ndarray:
        """Where the next steps lead, of shape (g, m + 1)."""
        return self.coefficients + self.steps[:, None] * self.directions

    def solution(self, problem: Any) -> np.ndarray:
        """The models, of shape (g, m + 1): the accepted points, with the last step of those that a decrement ended."""
        ended = ~self.converged(problem.tol) & self.converged(problem.tol, problem.decrement)
        if problem.loss in ("pinball", "softmax"):
            # so few rows have curvature, or the metric is so rough, that a step which nobody has looked at may lead
            # anywhere
            return self.coefficients
        return np.where(ended[:, None], self.proposal, self.coefficients)

    def least_objective(self, problem: NewtonProblem) -> np.ndarray:
        """The objective of each `solution`, (g,), where it is quadratic: of the squared error."""
        ended = ~self.converged(problem.tol) & self.converged(problem.tol, problem.decrement)
        # J(w + d) = J(w) + g.d / 2 along the Newton direction d = -H^-1 g, whose slope is g.d
        return self.objective + np.where(ended, 0.5 * self.slope, 0.0)

    def converged(self, tol: float, decrement: float = 0.0) -> np.ndarray:
        """Which models have reached a tolerance, or the limit of rounding."""
        # Half the slope along the Newton direction is what the next step promises to gain (the Newton decrement).
        small = -0.5 * self.slope <= decrement * self.objective if decrement > 0 else np.zeros(len(self.slope), bool)
        return ~self.fresh & ((self.gradient <= tol * self.first_gradient) | small | self.stalled)


class NewtonDriver:
    """Newton's method with a line search (Keerthi & DeCoste 2005 for the squared hinge) as a driver on block sums.

    One pass evaluates the loss at the full step and at shorter ones, and gradient and Hessian at the full step; when
    the full step does not lower the objective enough, the next pass takes the longest one that does. The squared
    hinge is piecewise quadratic, so a full step that leaves the rows with margin below 1 unchanged ends the search.
    """

    def __init__(self) -> None:
        self._systems = PenalisedSystems()

    def init(self, problem: NewtonProblem) -> NewtonState:
        """All models at the start, nothing read."""
        g = problem.n_models
        nothing = np.full(g, np.inf)
        start = np.zeros((g, problem.width)) if problem.start is None else np.array(problem.start, dtype=np.float64)
        return NewtonState(
            coefficients=start,
            directions=np.zeros((g, problem.width)),
            steps=np.ones(g),
            objective=nothing,
            slope=np.zeros(g),
            gradient=nothing,
            first_gradient=nothing,
            counts=np.zeros(g, np.int64),
            stalled=np.zeros(g, bool),
            hessian=problem.metric,
        )

    def request(self, problem: NewtonProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """One pass for the next models that are not done, or None."""
        models = _next_models(problem, state)
        return None if state.ended or len(models) == 0 else _records(problem, state, models)

    def step(self, problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """Accept or shorten the step of each model of the pass, and find the next direction."""
        models = _next_models(problem, state)
        _, hessian_of = _sharing(problem, state, models)
        # the Hessians (h, size) come in panels of packed columns, unless those that are known serve all steps
        panels = [result["hessian"] for result in results if "hessian" in result]
        hessians = np.concatenate(panels, axis=1) if state.hessian is None or panels else state.hessian
        if state.hessian is not None and state.held is not None and panels and _changes(problem, state, models):
            # the pass has summed by how much they change
            for place, model in enumerate(models):
                hessians[place] += state.hessian[int(np.flatnonzero(state.held == model)[0])]
        # the arrays are copied, since the steps below write to them; nobody writes to the Hessians
        shared = ("hessian", "held", "ended", "alphas", "moves", "changes", "last_gradient")
        own_arrays = {part.name: getattr(state, part.name) for part in fields(state) if part.name not in shared}
        state = replace(state, **{name: value.copy() for name, value in own_arrays.items()})
        sums = results[0]
        if problem.evidence and state.alphas is None:
            state = replace(state, alphas=_evident_penalties(problem, hessians[0], sums))
        before = state.coefficients.copy()
        accepted = take_steps(problem, state, models, sums["loss"])
        moved = models[accepted]
        gradients = set_gradients(problem, state, moved, sums["gradient"][accepted])
        if problem.metric is not None:
            if len(accepted) == 0:
                return state
            move = state.coefficients[0] - before[0]
            return _with_secant_step(problem, state, self._systems, move, gradients[0])
        which, alphas = hessian_of[accepted], state.penalties(problem)[moved]
        steps = self._systems.solve(hessians, problem.hessian_weight, which, alphas, gradients)
        state.directions[moved], state.slope[moved] = -steps, -np.einsum("gj,gj->g", gradients, steps)
        if problem.keeps_hessians:
            return replace(state, hessian=hessians)
        # Shared Hessians are not kept: after this pass the models stand at different points.
        own = accepted if len(hessians) == len(models) else accepted[:0]
        kept = hessians if len(own) == len(hessians) else hessians[own]
        return replace(state, hessian=kept, held=models[own])

    def stopped(self, problem: NewtonProblem, state: NewtonState, why: str) -> NewtonState | None:
        """The accepted points; None until every model has left its start."""
        moved = np.any(state.coefficients != self.init(problem).coefficients, axis=1)
        return replace(state, ended=why) if np.all(moved | state.converged(problem.tol, problem.decrement)) else None

    def memory(self, problem: NewtonProblem, row_bytes: int) -> dict[str, int]:
        """Hessians and a factor; between passes the Hessians that were summed, too, and systems written out."""
        hessian, system = 8 * packed_size(0, problem.width), 8 * problem.width**2
        keys = problem.hessian_keys(self.init(problem).fresh) if problem.keeps_hessians else range(problem.n_models)
        packed = min(len(set(keys)) * hessian, max(_HESSIAN_BYTES, hessian))
        solved = systems_at_once(problem.n_models, problem.width)
        items = {"Hessians": packed + system, BETWEEN_PASSES: 2 * packed + solved * system}
        # LAPACK works on a matrix of its own, of twice the size, beside the one that becomes the eigenvectors
        return {**items, "eigenvectors": 3 * system} if problem.evidence else items

    def plan(self, problem: NewtonProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The first pass, and an upper bound of the later ones."""
        state = self.init(problem)
        models = _next_models(problem, state)
        first = _records(problem, state, models)
        first_groups = -(-problem.n_models // len(models))
        # A state after the first pass, made up: nothing has converged, and each model has a Hessian of its own.
        ones = np.ones(problem.n_models)
        begun = replace(state, first_gradient=ones, gradient=ones, objective=ones, slope=-2.0 * ones)
        if problem.keeps_hessians:
            begun = replace(begun, hessian=np.zeros((len(set(problem.hessian_keys(state.fresh))), 0)))
        models = _next_models(problem, begun)
        groups = -(-problem.n_models // len(models))
        later = groups * (problem.max_steps - 1)
        passes = [(first, first_groups)]
        return [*passes, (_records(problem, begun, models), later)] if later else passes


def _next_models(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """The models that the next pass serves: not done, equally far, and with no more Hessians than 64 MiB hold."""
    waiting = np.flatnonzero(~state.converged(problem.tol, problem.decrement) & (state.counts < problem.max_steps))
    if problem.keeps_hessians or len(waiting) == 0:
        return waiting
    fresh = state.fresh
    # A pass serves models that are all at the start, where they share Hessians, or all beyond it.
    waiting = waiting[fresh[waiting] == fresh[waiting[0]]]
    keys = problem.hessian_keys(fresh)
    room = max(1, _HESSIAN_BYTES // (8 * packed_size(0, problem.width)))
    allowed = set(list(dict.fromkeys(keys[model] for model in waiting))[:room])
    return np.array([model for model in waiting if keys[model] in allowed])


def _sharing(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """The models, by their position in the pass, that stand for a Hessian each, and which Hessian each model has."""
    keys = problem.hessian_keys(state.fresh)
    order = list(dict.fromkeys(keys if problem.keeps_hessians else [keys[model] for model in models]))
    number = np.array([order.index(keys[model]) for model in models])
    standing = tuple(int(np.flatnonzero(number == hessian)[0]) for hessian in np.unique(number))
    return standing, number


def _records(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
    """One record for each panel of Hessian columns, the first of which sums losses and gradients, too."""
    trial = TrialSteps(state.coefficients[models], state.directions[models], trial_lengths(state.steps[models]))
    standing, _ = _sharing(problem, state, models)
    need_hessian = not problem.keeps_hessians or state.hessian is None
    panels: list[tuple[int, int] | None] = list(packed_panels(problem.width, _HESSIAN_BYTES // len(standing)))
    quantiles = None if problem.quantiles is None else tuple(problem.quantiles[models].tolist())
    options = NewtonOptions(
        problem.loss,
        None,
        standing,
        change=_changes(problem, state, models),
        follows=_following(problem, state, models[list(standing)]),
        dtype=problem.dtype,
        exact=problem.exact,
        epsilon=problem.epsilon,
        quantiles=quantiles,
    )
    return [
        newton_record(problem, trial, models, replace(options, columns=panel, first_order=position == 0))
        for position, panel in enumerate(panels if need_hessian else [None])
    ]


def _changes(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> bool:
    """Whether the Hessians of all these models are known at their accepted points, and few rows change them."""
    return not problem.table.varies and state.held is not None and bool(np.isin(models, state.held).all())


def _following(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[bool, ...]:
    """Which of these models, of a Hessian each, is of the same target as the one before, under another penalty."""
    if problem.table.varies or _changes(problem, state, models):
        return ()
    outputs = problem.targets.models[models]
    if problem.quantiles is not None:
        outputs = problem.quantiles[models]
    return (False, *(outputs[1:] == outputs[:-1]).tolist())


def newton_record(problem: Any, trial: TrialSteps, models: np.ndarray, options: NewtonOptions) -> BlockSum:
    """The record of the sums at the trial steps of some models of a problem that the options ask for."""
    accumulators = {}
    if options.first_order:
        accumulators = {"loss": Accumulator(trial.steps.shape), "gradient": Accumulator(trial.coefficients.shape)}
    if options.columns is not None:
        accumulators["hessian"] = Accumulator((len(options.hessian_of), packed_size(*options.columns)))
    targets = problem.targets
    fold = None if targets.fold is None else targets.fold[models]
    targets = replace(targets, models=targets.models[models], fold=fold)
    # waves are mapped about as fast as mapped rows are read, which pays where passes are many
    keeps = problem.feature_map.has_similarities or problem.loss == "softmax"
    return BlockSum(
        name="newton step",
        function=newton_block,
        accumulators=accumulators,
        operands={"feature_map": problem.feature_map, "trial": trial, "options": options, "targets": targets},
        cost=_NewtonCost(problem.feature_map, len(models), options),
        kept_as=f"{problem.token} {id(problem.feature_map)} {problem.dtype}" if keeps else "",
        kept_row_bytes=problem.feature_map.n_features * np.dtype(problem.dtype).itemsize,
    )


@dataclass(frozen=True, eq=False)
class _NewtonCost:
    """What `newton_sums` of a block costs: mapping, scores and gradients, Hessians over all rows."""

    feature_map: FeatureMap
    n_models: int
    options: NewtonOptions

    def __call__(self, rows: int, columns: int) -> Cost:
        width = self.feature_map.n_features + 1
        mapping = mapping_flops(columns, self.feature_map)
        scores = 6.0 * self.n_models * width * (2.0 if self.options.exact else 1.0)
        packed = 0 if self.options.columns is None else packed_size(*self.options.columns)
        hessians = 2.0 * packed * len(self.options.hessian_of)
        itemsize = np.dtype(self.options.dtype).itemsize
        # mapped rows, those with curvature and these by the roots of their weights; for each Hessian as many rows as
        # features wait, and two products are added
        tile = 3 * newton_tile(width - 1, self.options.dtype) * width
        waiting = 0 if self.options.columns is None else (len(self.options.hessian_of) + 1) * width**2
        products = 2 * width * min(width, 2 * packed // width + 1)
        return Cost(rows * (mapping + scores + hessians), itemsize * (tile + waiting + products))


def take_steps(problem: NewtonProblem, state: NewtonState, models: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Take the full steps that lower the objective enough, in `state` (a fresh copy), and shorten the others.

    Parameters
    ----------
    problem : NewtonProblem
    state : NewtonState
    models : ndarray of shape (g,), int
    losses : ndarray of shape (g, T)
        Their summed losses at the trial steps.

    Returns
    -------
    ndarray of int
        The places among `models` of those that have taken their full step.
    """
    lengths = trial_lengths(state.steps[models])
    squares = [
        np.sum((state.coefficients[model, :-1] + steps[:, None] * state.directions[model, :-1]) ** 2, axis=1)
        for model, steps in zip(models, lengths, strict=True)
    ]
    objectives = 0.5 * state.penalties(problem)[models, None] * np.array(squares) + losses / problem.total_weight
    # At the optimum differences of the objective drown in rounding, where the gradient still tells.
    rounding = 1e-12 if problem.exact else 1e-6
    longest = backtracked(lengths, objectives, state.objective[models], state.slope[models], rounding)
    taken = np.flatnonzero(longest == lengths[:, 0])
    moved = models[taken]
    state.coefficients[moved] += lengths[taken, :1] * state.directions[moved]
    state.objective[moved] = objectives[taken, 0]
    state.stalled[models] = longest < SHORTEST
    state.steps[models] = longest
    # the next direction is tried at full length again
    state.steps[moved] = 1.0
    state.counts[models] += 1
    return taken


def _evident_penalties(problem: NewtonProblem, hessian: np.ndarray, sums: dict[str, np.ndarray]) -> np.ndarray:
    """The penalty with the largest evidence, once for each of g models: (g,)."""
    # At zero the loss is sum_i s_i y_i^2 / 2 and the gradient -sum_i s_i y_i phi_i; alpha is beside the mean loss.
    evidence = Evidence.of_sums(hessian, -sums["gradient"], 2.0 * sums["loss"][:, 0])
    return np.full(problem.n_models, evidence.best_penalty(problem.dtype) / problem.total_weight)


def set_gradients(problem: NewtonProblem, state: NewtonState, models: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The gradients of the objectives at the accepted points, (g, m + 1); their lengths go into `state`."""
    # (1/N) sum_i s_i loss'(f_i) phi(x_i), and alpha w for the penalised coefficients
    gradients = sums / problem.total_weight
    gradients[:, :-1] += state.penalties(problem)[models, None] * state.coefficients[models, :-1]
    state.gradient[models] = np.linalg.norm(gradients, axis=1)
    first = models[state.fresh[models]]
    state.first_gradient[first] = (state.gradient if problem.first_gradient is None else problem.first_gradient)[first]
    return gradients


def _with_secant_step(
    problem: NewtonProblem, state: NewtonState, systems: PenalisedSystems, move: np.ndarray, gradient: np.ndarray
) -> NewtonState:
    """The state with the next direction of a single model by its metric and by what its steps have shown (BFGS).

    The last `move` has led to this `gradient`.
    """
    moves, changes = state.secants
    if state.last_gradient is not None:
        moves, changes = known_secants(moves, changes, move, gradient - state.last_gradient, most=problem.max_steps)

    def solved(right: np.ndarray) -> np.ndarray:
        metric: Any = problem.metric
        return systems.solve(metric, problem.hessian_weight, 0, state.penalties(problem), right[None])[0]

    direction = secant_direction(gradient, moves, changes, solved, scales=False)
    state.directions[0], state.slope[0] = -direction, -gradient @ direction
    return replace(state, moves=moves, changes=changes, last_gradient=gradient)
