"""The linear models of a head from sums over the rows: one Newton loop for all losses, outputs, penalties and folds."""

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
    JointLoss,
    NewtonLoss,
    NewtonOptions,
    NewtonTargets,
    TrialSteps,
    curvature_block,
    newton_block,
    newton_tile,
)
from dkl.protocols.driver import BETWEEN_PASSES
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.conjugate_gradients import conjugate_step
from dkl.solvers.line_search import SHORTEST, backtracked, trial_lengths
from dkl.solvers.losses import Loss, newton_loss
from dkl.solvers.secants import known_secants, secant_direction
from dkl.solvers.squared_sums import SquaredSums, without_each
from dkl.solvers.systems import PenalisedSystems, systems_at_once
from dkl.uncertainty.evidence import Evidence

# The Hessians of one pass are at most 64 MiB, the size to which accumulators are limited.
_HESSIAN_BYTES = 1 << 26
# Features of more than which no Hessian is formed: each would fill 800 MB.
MOST_FEATURES = 10_000
# Step lengths that one pass tries; of classes that are fitted together, since each costs K exponentials a row and the
# first is nearly always taken.
_TRIALS, _TRIALS_TOGETHER = 9, 3
# Share of the objective at zero of classes that are fitted together, below which what a step promises ends the steps of
# a problem with a decrement: of classes that can be told apart without error it falls for ever.
_FLOOR = 5e-6
# What the last step is of the coefficients, by Hessians of rounded rows: each step is shorter by what rounding leaves.
_LAST_STEP = 1e-6
# Steps whose secants correct a metric.
_SECANTS = 20
# Passes after the first that losses take as a rule, to the end and to a decrement, and by a metric, whose steps are
# shorter: counted in 64 fits of two and three classes, 30,000 to 1,000,000 rows and 60 to 300 features.
_USUAL_STEPS = {"squared_error": (1, 0), "squared_hinge": (5, 1), "log_loss": (4, 2), "softmax": (16, 3)}
_USUAL_OTHERS, _USUAL_BY_METRIC = (5, 2), {"log_loss": 8}
# Share of the gradient that conjugate gradients may leave, and products with the Hessian that they may take.
_LEFT, _MOST_PRODUCTS = 1e-2, 60


@dataclass(frozen=True, eq=False)
class NewtonProblem:
    """Minimise ``alpha/2 |w|^2 + (1/N) sum_i s_i loss(y_i, w.phi(x_i) + b)`` for each of several models.

    N is the sum of the weights s; the intercept b is not penalised. The squared hinge ``max(0, 1 - y f)^2`` is solved
    class by class (one against the rest), the squared error ``(y - f)^2 / 2`` for all targets at once: these are the
    problems of ``LinearSVC(C=1/(alpha N))`` with a free intercept and of ``Ridge(alpha N)``. The "softmax" is that of
    all K > 2 classes together, ``log sum_k exp f_ik - f_i,y_i``: one model of K functions, the problem of
    ``LogisticRegression(C=1/(alpha N))``, whose intercepts add up to 0 since only their differences count. The other
    losses are those of `dkl.solvers.losses`, one model a target or quantile.

    Parameters
    ----------
    feature_map : FeatureMap
    targets : NewtonTargets
        Of all functions; models may leave out the rows of a fold.
    total_weight : float
        N, with the rows of all folds.
    alpha : float or ndarray of shape (g,)
        Of all models, or of each.
    loss : {"squared_hinge", "squared_error", "log_loss", "huber", "pinball", "poisson", "gamma", "softmax"}
    tol : float
        A model is done when its gradient has shrunk to `tol` of its length at the start.
    decrement : float
        A model is also done when the next step promises to lower the objective by no more than this share of it; that
        step is then the last, and is taken.
    max_steps : int
        Of each model.
    dtype : {"float32", "float64"}
        Of the mapped rows and the Hessian. Gradients are float64 unless a `decrement` of the squared hinge or the
        softmax is enough, so float32 costs an extra step and no accuracy.
    start : ndarray of shape (g, m + 1) or None
        Where the functions start, the intercept last; None is zero. Models of one target start at the same point.
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
        of; None where each step has its own. Steps add to it what gradients tell of the Hessian. Of the softmax it is
        ``sum_i s_i (phi_i, 1)(phi_i, 1)^T``, which the first pass sums where it is None.
    evidence : bool
        The penalty of all models is the one with the largest evidence, found by the sums of the first pass; `alpha`
        does not count. Of the squared error, from zero, on all rows.
    rounded : bool
        Of the squared error, on GPUs: the Hessian may be summed of rows rounded to 10 bits. Each further pass corrects
        the step by an exact gradient, until a step is a millionth of the coefficients; where a gradient does not fall
        to half, the Hessian is summed once more in `dtype`.
    token : str
        Names what its passes keep of mapped rows.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: Any
    loss: NewtonLoss | JointLoss = "squared_hinge"
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
    rounded: bool = False
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def usual_steps(self) -> int:
        """Passes after the first that such a problem takes as a rule."""
        to_the_end, to_a_decrement = _USUAL_STEPS.get(self.loss, _USUAL_OTHERS)
        if self.metric is not None:
            to_the_end = _USUAL_BY_METRIC.get(self.loss, to_the_end)
        # of several models the last one is waited for
        return to_a_decrement if self.decrement else to_the_end + (self.n_models > 1)

    @property
    def table(self) -> Loss:
        """The loss."""
        return newton_loss(self.loss, self.epsilon, self.quantiles)

    @property
    def is_joint(self) -> bool:
        """Whether all classes are one model."""
        return self.loss == "softmax"

    @property
    def is_wide(self) -> bool:
        """Whether the features are too many for Hessians, so that conjugate gradients find the directions."""
        return self.feature_map.n_features > MOST_FEATURES

    @property
    def varies(self) -> bool:
        """Whether the curvature is another number at each score."""
        return self.is_joint or self.table.varies

    @property
    def hessian_weight(self) -> float:
        """What summed Hessians are divided by: N over the loss's unit of curvature.

        At zero all K classes have the same probability, and the Hessian of class k by class l is ``(d_kl - 1/K)/K``
        times the Gram matrix G of mapped rows. Gradients, and so steps, add up to zero over the classes, for which that
        is ``G/K``: one system of m + 1 unknowns in place of one of K (m + 1).
        """
        return self.total_weight * (self.n_functions if self.is_joint else 1.0 / self.table.curvature_unit)

    @property
    def n_models(self) -> int:
        return 1 if self.is_joint else len(self.targets.models)

    @property
    def n_functions(self) -> int:
        """Linear functions of a model: K where all classes are one, else 1."""
        return len(self.targets.models) // self.n_models

    @property
    def width(self) -> int:
        """Coefficients of a function, the intercept included."""
        return self.feature_map.n_features + 1

    def together(self) -> NewtonProblem:
        """The problem of all classes as one model, from zero: of secant steps, which are cheap and may be many."""
        return NewtonProblem(
            self.feature_map,
            self.targets,
            self.total_weight,
            self.alpha,
            "softmax",
            tol=1e-9,
            decrement=self.decrement,
            max_steps=500,
            dtype=self.dtype,
        )

    def by_function(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients (..., K (m + 1)) of models as those of their functions, (..., K, m + 1)."""
        return coefficients.reshape(*coefficients.shape[:-1], self.n_functions, self.width)

    @property
    def trials(self) -> int:
        """Step lengths that a pass tries."""
        return _TRIALS_TOGETHER if self.is_joint else _TRIALS

    @property
    def exact(self) -> bool:
        """Whether scores and gradients are float64 whatever the rows are."""
        return self.decrement == 0.0 or self.loss not in ("squared_hinge", "softmax")

    @property
    def alphas(self) -> np.ndarray:
        """The penalty of each model, of shape (g,)."""
        return np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), (self.n_models,))

    @property
    def keeps_hessians(self) -> bool:
        """Whether Hessians are summed once: they never change, or those of the start will do."""
        # The curvature of the squared error is the same everywhere; that of the squared hinge is the number of rows
        # with margin below 1, which changes with each step.
        if self.metric is not None or self.loss in ("squared_error", "softmax"):
            return True
        if not self.fixed:
            return False
        n_hessians = len(set(self._starting_keys()))
        return n_hessians == 1 or 8 * n_hessians * packed_size(0, self.width) <= _HESSIAN_BYTES

    @property
    def parts(self) -> np.ndarray | None:
        """The numbers of the folds whose sums the first pass keeps apart, and -1 for the rows that are in no fold.

        The sums of all rows but those of a fold add up of the other parts, so that one pass serves the models of all
        folds. This is so for the squared error alone, whose sums are the same for all penalties. None for other losses,
        for fewer than two folds, and where the Hessians of all parts take more than 64 MiB.
        """
        fold = self.targets.fold
        if self.loss != "squared_error" or self.is_wide or fold is None or fold.min() < 0:
            return None
        folds = list(dict.fromkeys(fold.tolist()))
        fits = 8 * (1 + len(folds)) * packed_size(0, self.width) <= _HESSIAN_BYTES
        return np.array([-1, *folds]) if len(folds) > 1 and fits else None

    def in_parts(self, parts: np.ndarray) -> NewtonProblem:
        """The problem whose models, one a target and part, see the rows of that part alone."""
        targets, first = np.unique(self.targets.models, return_index=True)
        models, fold = np.repeat(targets, len(parts)), np.tile(parts, len(targets))
        return replace(
            self,
            targets=replace(self.targets, models=models, fold=fold, inside=True),
            alpha=1.0,
            start=None if self.start is None else np.repeat(self.start[first], len(parts), axis=0),
        )

    @property
    def held_features(self) -> int:
        """The most features of which the Hessians of all models, one each, are within 64 MiB."""
        return int((np.sqrt(1.0 + _HESSIAN_BYTES / self.n_models) - 1.0) / 2.0) - 1

    def hessian_keys(self, fresh: np.ndarray) -> list[tuple[int, ...]]:
        """A key for each model: models of equal keys have the same Hessian, as those have that took no step yet.

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
        if self.loss in ("squared_error", "softmax"):
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
    """Where each of g models stands, of w coefficients each: those of its functions, each with its intercept last.

    Attributes
    ----------
    coefficients, directions : ndarray of shape (g, w)
        The accepted point and the direction from it.
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
    by_fold : dict of ndarray or None
        Where the first pass has summed P parts apart, over the rows of each: "loss" (K, P) and "gradient" (K, P, w) of
        each of K targets at the start, and "hessian" (P, size).
    alphas : ndarray of shape (g,) or None
        The penalties that the sums of the first pass have led to; None for those of the problem.
    moves, changes : ndarray of shape (p, w) or None
        With a metric the steps that were taken, and by how much each has changed the gradient.
    gradients : ndarray of shape (g, w) or None
        With a metric and of wide problems the gradient at the accepted point.
    residuals, searches : ndarray of shape (g, w) or None
        Of wide problems, whose directions are still looked for: what is left of minus the gradient, and the vector
        whose product with the Hessian is asked for next.
    products : ndarray of shape (g,), int64, or None
        Products with the Hessian so far; -1 for a direction that is whole.
    rounded : bool
        Whether Hessians may still be those of rounded rows, of a problem that allows it.
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
    by_fold: dict[str, np.ndarray] | None = None
    alphas: np.ndarray | None = None
    moves: np.ndarray | None = None
    changes: np.ndarray | None = None
    gradients: np.ndarray | None = None
    residuals: np.ndarray | None = None
    searches: np.ndarray | None = None
    products: np.ndarray | None = None
    rounded: bool = True

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
        """Where the next steps lead, of shape (g, w)."""
        return self.coefficients + self.steps[:, None] * self.directions

    def solution(self, problem: NewtonProblem) -> np.ndarray:
        """The models, of shape (g, w): the accepted points, with the last step of those that a decrement ended."""
        if problem.loss in ("pinball", "softmax"):
            # so few rows have curvature, or the metric is so rough, that a step which nobody has looked at may lead
            # anywhere
            return self.coefficients
        return np.where(self._ended_early(problem)[:, None], self.proposal, self.coefficients)

    def least_objective(self, problem: NewtonProblem) -> np.ndarray:
        """The objective of each `solution`, (g,), where it is quadratic: of the squared error."""
        # J(w + d) = J(w) + g.d / 2 along the Newton direction d = -H^-1 g, whose slope is g.d
        return self.objective + np.where(self._ended_early(problem), 0.5 * self.slope, 0.0)

    def _ended_early(self, problem: NewtonProblem) -> np.ndarray:
        """Which models a decrement has ended, before their gradient was small: (g,) bool."""
        return ~self._at_tolerance(problem) & self.done(problem)

    def done(self, problem: NewtonProblem) -> np.ndarray:
        """Which models have reached a tolerance, or the limit of rounding, or are one last step away from their end."""
        small = np.zeros(len(self.slope), bool)
        if problem.decrement > 0.0:
            # Half the slope along the Newton direction is what the next step promises to gain (the Newton decrement).
            small = -0.5 * self.slope <= problem.decrement * self.objective
        if problem.rounded:
            lengths = [np.linalg.norm(vectors, axis=1) for vectors in (self.directions, self.proposal)]
            small |= (self.slope < 0.0) & (lengths[0] <= _LAST_STEP * lengths[1])
        return self._at_tolerance(problem) | (~self.fresh & small)

    def _at_tolerance(self, problem: NewtonProblem) -> np.ndarray:
        """Which models have a small gradient, or no step lowers their objective any more."""
        return ~self.fresh & ((self.gradient <= problem.tol * self.first_gradient) | self.stalled)


class NewtonDriver:
    """Newton's method with a line search, for every loss and every kind of direction, as a driver on block sums.

    One pass evaluates the loss at the full step and at shorter ones, and the gradient at the full step; when the full
    step does not lower the objective enough, the next pass takes the longest one that does. The direction from there is

    - exact where the same pass sums the Hessian (Keerthi & DeCoste 2005 for the squared hinge, which is piecewise
      quadratic: a full step that leaves the rows with margin below 1 unchanged ends the search);
    - one of limited-memory BFGS where a metric serves all steps, which tell what has become of the Hessian since
      (Nocedal & Wright 2006, algorithm 7.4): of the softmax a pass then takes the products of mapped rows with K
      functions, where the Hessian would take those of all pairs of features for each pair of classes;
    - one of conjugate gradients where the features are too many for a Hessian: further passes sum its products with a
      vector a model, over the rows with curvature (Lin, Weng & Keerthi 2008, "Trust region Newton method for
      large-scale logistic regression").
    """

    def __init__(self) -> None:
        self._systems = PenalisedSystems()

    def init(self, problem: NewtonProblem) -> NewtonState:
        """All models at the start, nothing read."""
        g, size = problem.n_models, problem.n_functions * problem.width
        nothing, start = np.full(g, np.inf), np.zeros((g, size))
        if problem.start is not None:
            start = np.array(problem.start, dtype=np.float64).reshape(g, size)
        if problem.is_joint:
            # what all classes have in common changes no probability
            functions = problem.by_function(start)
            functions -= functions.mean(axis=1, keepdims=True)
        looks: dict[str, Any] = {}
        if problem.is_wide:
            looks = {name: np.zeros((g, size)) for name in ("gradients", "residuals", "searches")}
            looks["products"] = np.full(g, -1)
        return NewtonState(
            coefficients=start,
            directions=np.zeros((g, size)),
            steps=np.ones(g),
            objective=nothing,
            slope=np.zeros(g),
            gradient=nothing,
            first_gradient=nothing,
            counts=np.zeros(g, np.int64),
            stalled=np.zeros(g, bool),
            hessian=problem.metric,
            **looks,
        )

    def request(self, problem: NewtonProblem, state: NewtonState) -> Sequence[BlockSum] | None:
        """One pass for the next models that are not done, or None."""
        models = _next_models(problem, state)
        if state.ended or len(models) == 0:
            return None
        searching = _searching(state, models)
        return [_product_record(problem, state, searching)] if len(searching) else self._asked(problem, state, models)

    def _asked(self, problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
        """The records of a pass over trial steps; the first one may sum each fold apart."""
        if state.hessian is None and (parts := problem.parts) is not None:
            apart = problem.in_parts(parts)
            return _records(apart, self.init(apart), np.arange(apart.n_models))
        return _records(problem, state, models)

    def step(self, problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """Accept or shorten the step of each model of the pass, and find the next direction."""
        models = _next_models(problem, state)
        searching = _searching(state, models)
        if len(searching):
            changed = ("directions", "residuals", "searches", "products", "slope")
            state = replace(state, **{name: getattr(state, name).copy() for name in changed})
            _conjugate_step(problem, state, searching, results[0]["product"])
            return state
        hessians, (_, hessian_of), sums = _hessians(state, results), _sharing(problem, state, models), results[0]
        if state.hessian is None and (parts := problem.parts) is not None:
            by_fold = {name: sums[name].reshape(-1, len(parts), sums[name].shape[1]) for name in ("loss", "gradient")}
            by_fold = {"loss": by_fold["loss"][..., 0], "gradient": by_fold["gradient"], "hessian": hessians}
            state = replace(state, by_fold=by_fold)
            sums, hessians = _without_each_fold(problem, parts, by_fold)
        elif state.held is not None and _changes(problem, state, models):
            # the pass has summed by how much they change
            for place, model in enumerate(models):
                hessians[place] += np.asarray(state.hessian)[int(np.flatnonzero(state.held == model)[0])]
        # the arrays are copied, since the steps below write to them; nobody writes to the Hessians
        shared = ("hessian", "held", "ended", "by_fold", "alphas", "moves", "changes", "rounded")
        own = {part.name: getattr(state, part.name) for part in fields(state) if part.name not in shared}
        state = replace(state, **{name: value.copy() for name, value in own.items() if value is not None})
        if problem.evidence and state.alphas is None:
            state = replace(state, alphas=_evident_penalties(problem, hessians[0], sums))
        before, lengths = state.coefficients.copy(), state.gradient.copy()
        accepted = take_steps(problem, state, models, sums["loss"])
        moved = models[accepted]
        gradients = set_gradients(problem, state, moved, sums["gradient"].reshape(len(models), -1)[accepted])
        if problem.is_wide:
            _begin_search(state, moved, gradients)
            return state
        if problem.metric is not None or problem.is_joint:
            state = replace(state, hessian=hessians)
            return self._secant_step(problem, state, before, gradients) if len(accepted) else state
        if problem.rounded and state.rounded and state.hessian is not None:
            halved = np.isin(models, moved) & (state.gradient[models] <= 0.5 * lengths[models])
            if not np.all(halved | state.done(problem)[models]):
                # rounding has cost the Hessian the digits that count here: it is summed anew from where the models are
                begun = {name: getattr(state, name) for name in ("coefficients", "first_gradient", "counts")}
                return replace(self.init(problem), **begun, rounded=False)
        which, alphas = hessian_of[accepted], state.penalties(problem)[moved]
        steps = self._systems.solve(hessians, problem.hessian_weight, which, alphas, gradients)
        state.directions[moved], state.slope[moved] = -steps, -np.einsum("gj,gj->g", gradients, steps)
        if problem.keeps_hessians:
            return replace(state, hessian=hessians)
        # Shared Hessians are not kept: after this pass the models stand at different points.
        kept = accepted if len(hessians) == len(models) else accepted[:0]
        # all of them without a copy, which would be as large
        left = hessians if len(kept) == len(hessians) else hessians[kept]
        return replace(state, hessian=left, held=models[kept])

    def _secant_step(
        self, problem: NewtonProblem, state: NewtonState, before: np.ndarray, gradients: np.ndarray
    ) -> NewtonState:
        """The state of a single model with its next direction by its metric and by what its steps have shown (BFGS).

        The last step has led from `before` to a point with these `gradients`, both (1, w).
        """
        moves, changes = state.secants
        if state.gradients is not None:
            move, change = state.coefficients[0] - before[0], gradients[0] - state.gradients[0]
            moves, changes = known_secants(moves, changes, move, change, most=_SECANTS)
        penalties, metric = state.penalties(problem), np.asarray(state.hessian)

        def solved(right: np.ndarray) -> np.ndarray:
            vectors = right.reshape(problem.n_functions, problem.width)
            return self._systems.solve(metric, problem.hessian_weight, 0, penalties, vectors).ravel()

        # the Gram matrix is the Hessian of the softmax at zero alone; the last step tells by what factor it has changed
        direction = -secant_direction(gradients[0], moves, changes, solved, scales=problem.is_joint)
        state.directions[0], state.slope[0] = direction, gradients[0] @ direction
        if problem.is_joint and problem.decrement > 0.0:
            state.stalled[0] = -0.5 * state.slope[0] <= _FLOOR * np.log(problem.n_functions)
        return replace(state, moves=moves, changes=changes, gradients=gradients)

    def stopped(self, problem: NewtonProblem, state: NewtonState, why: str) -> NewtonState | None:
        """The accepted points; None until every model has left its start."""
        moved = np.any(state.coefficients != self.init(problem).coefficients, axis=1)
        return replace(state, ended=why) if np.all(moved | state.done(problem)) else None

    def memory(self, problem: NewtonProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Hessians and a factor; between passes those that were summed, systems written out, and vectors."""
        hessian, system = 8 * packed_size(0, problem.width), 8 * problem.width**2
        vectors = 8 * problem.n_models * problem.n_functions * problem.width
        if problem.is_wide:
            return {"directions": 2 * 6 * vectors}
        if problem.is_joint:
            return {"Hessians": 2 * hessian + 2 * system, "steps": (4 * _SECANTS + 8) * vectors}
        keys = problem.hessian_keys(self.init(problem).fresh) if problem.keeps_hessians else range(problem.n_models)
        n_hessians = len(set(keys)) + (0 if problem.parts is None else len(problem.parts))
        packed = min(n_hessians * hessian, max(_HESSIAN_BYTES, hessian))
        solved = systems_at_once(problem.n_models, problem.width)
        items = {"Hessians": packed + system, BETWEEN_PASSES: 2 * packed + solved * system}
        # LAPACK works on a matrix of its own, of twice the size, beside the one that becomes the eigenvectors
        return {**items, "eigenvectors": 3 * system} if problem.evidence else items

    def plan(self, problem: NewtonProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The first pass, and an upper bound of the later ones."""
        state = self.init(problem)
        models = _next_models(problem, state)
        first = self._asked(problem, state, models)
        if problem.is_wide:
            first = [replace(record, usual_calls=1 + problem.usual_steps) for record in first]
            product = _product_record(problem, state, models)
            return [(first, problem.max_steps + 1), ([product], problem.max_steps * _MOST_PRODUCTS)]
        first_groups = -(-problem.n_models // len(models))
        # A state after the first pass, made up: nothing has converged, and each model has a Hessian of its own.
        ones = np.ones(problem.n_models)
        begun = replace(state, first_gradient=ones, gradient=ones, objective=ones, slope=-2.0 * ones)
        if problem.keeps_hessians:
            begun = replace(begun, hessian=np.zeros((len(set(problem.hessian_keys(state.fresh))), 0)))
        models = _next_models(problem, begun)
        groups = -(-problem.n_models // len(models))
        later, usual = groups * (problem.max_steps - 1), groups * problem.usual_steps
        steps = [replace(record, usual_calls=usual) for record in _records(problem, begun, models)] if later else []
        return [(first, first_groups), (steps, later)] if later else [(first, first_groups)]


def _next_models(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """The models that the next pass serves: not done, equally far, and with no more Hessians than 64 MiB hold."""
    # a direction of conjugate gradients is known some passes after the point that it starts from
    most = problem.max_steps + problem.is_wide
    waiting = np.flatnonzero(~state.done(problem) & (state.counts < most))
    if problem.keeps_hessians or problem.is_wide or len(waiting) == 0:
        return waiting
    fresh = state.fresh
    # A pass serves models that are all at the start, where they share Hessians, or all beyond it.
    waiting = waiting[fresh[waiting] == fresh[waiting[0]]]
    keys = problem.hessian_keys(fresh)
    room = max(1, _HESSIAN_BYTES // (8 * packed_size(0, problem.width)))
    allowed = set(list(dict.fromkeys(keys[model] for model in waiting))[:room])
    return np.array([model for model in waiting if keys[model] in allowed])


def _searching(state: NewtonState, models: np.ndarray) -> np.ndarray:
    """Those of some models whose direction wants another product with the Hessian."""
    return models[:0] if state.products is None else models[state.products[models] >= 0]


def _sharing(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """The models, by their position in the pass, that stand for a Hessian each, and which Hessian each model has."""
    if problem.is_wide:
        return (0,), np.zeros(len(models), np.int64)
    keys = problem.hessian_keys(state.fresh)
    order = list(dict.fromkeys(keys if problem.keeps_hessians else [keys[model] for model in models]))
    number = np.array([order.index(keys[model]) for model in models])
    standing = tuple(int(np.flatnonzero(number == hessian)[0]) for hessian in np.unique(number))
    return standing, number


def _records(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
    """One record for each panel of Hessian columns, the first of which sums losses and gradients, too."""
    lengths = trial_lengths(state.steps[models], problem.trials)
    points, directions = (part[models].reshape(-1, problem.width) for part in (state.coefficients, state.directions))
    trial = TrialSteps(points, directions, lengths)
    standing, _ = _sharing(problem, state, models)
    need_hessian = not problem.is_wide and (not problem.keeps_hessians or state.hessian is None)
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
        rounded=problem.rounded and state.rounded,
        epsilon=problem.epsilon,
        quantiles=quantiles,
    )
    return [
        _newton_record(problem, trial, models, replace(options, columns=panel, first_order=position == 0))
        for position, panel in enumerate(panels if need_hessian else [None])
    ]


def _changes(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> bool:
    """Whether the Hessians of all these models are known at their accepted points, and few rows change them."""
    return not problem.varies and state.held is not None and bool(np.isin(models, state.held).all())


def _following(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[bool, ...]:
    """Which of these models, of a Hessian each, is of the same target as the one before, under another penalty."""
    if problem.varies or problem.is_wide or _changes(problem, state, models):
        return ()
    outputs = problem.targets.models[models]
    if problem.quantiles is not None:
        outputs = problem.quantiles[models]
    return (False, *(outputs[1:] == outputs[:-1]).tolist())


def _hessians(state: NewtonState, results: Sequence[Any]) -> Any:
    """The Hessians (h, size) that a pass has summed, or those that are known; None of a wide problem."""
    # they come in panels of packed columns, unless those that are known serve all steps
    panels = [result["hessian"] for result in results if "hessian" in result]
    return np.concatenate(panels, axis=1) if panels else state.hessian


def fold_sums(by_fold: dict[str, np.ndarray]) -> list[SquaredSums]:
    """The sums of each part of the rows, those of no fold first, for targets less what the start predicts.

    Parameters
    ----------
    by_fold : dict of ndarray
        As of `NewtonState`.
    """
    # the loss is half the square, and its gradient at the start minus the product of what is left with the features
    parts = zip(by_fold["hessian"], *(np.moveaxis(by_fold[name], 1, 0) for name in ("gradient", "loss")), strict=True)
    return [SquaredSums(hessian, -gradient, 2.0 * loss) for hessian, gradient, loss in parts]


def _without_each_fold(
    problem: NewtonProblem, parts: np.ndarray, by_fold: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The sums of each model without its fold, and the Hessians without each fold, added up of those of all parts."""
    # every model sees the rows of no fold, which come first
    _, *rest = without_each(fold_sums(by_fold))
    target = np.unique(problem.targets.models, return_inverse=True)[1].ravel()
    fold = [np.flatnonzero(parts[1:] == own)[0] for own in np.asarray(problem.targets.fold)]
    loss = np.array([0.5 * rest[f].squares[k] for f, k in zip(fold, target, strict=True)])
    gradient = np.array([-rest[f].cross[k] for f, k in zip(fold, target, strict=True)])
    # no direction is known yet: all trial steps are at the start
    sums = {"loss": np.tile(loss[:, None], problem.trials), "gradient": gradient}
    return sums, np.stack([each.gram for each in rest])


def _targets_of(problem: NewtonProblem, models: np.ndarray) -> NewtonTargets:
    """The targets of the functions of some models."""
    own, each = problem.targets, np.arange(problem.n_functions)
    functions = (problem.n_functions * models[:, None] + each).ravel()
    return replace(own, models=own.models[functions], fold=None if own.fold is None else own.fold[functions])


def _newton_record(problem: NewtonProblem, trial: TrialSteps, models: np.ndarray, options: NewtonOptions) -> BlockSum:
    """The record of the sums at the trial steps of some models of a problem that the options ask for."""
    accumulators = {}
    if options.first_order:
        accumulators = {"loss": Accumulator(trial.steps.shape), "gradient": Accumulator(trial.coefficients.shape)}
    if options.columns is not None:
        accumulators["hessian"] = Accumulator((len(options.hessian_of), packed_size(*options.columns)))
    targets = _targets_of(problem, models)
    # waves are mapped about as fast as mapped rows are read, which pays where passes are many
    keeps = problem.feature_map.has_similarities or problem.is_joint
    return BlockSum(
        name="newton step",
        function=newton_block,
        accumulators=accumulators,
        operands={"feature_map": problem.feature_map, "trial": trial, "options": options, "targets": targets},
        cost=_NewtonCost(problem.feature_map, len(targets.models), options),
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
    lengths = trial_lengths(state.steps[models], problem.trials)
    trials = [
        problem.by_function(state.coefficients[model] + steps[:, None] * state.directions[model])
        for model, steps in zip(models, lengths, strict=True)
    ]
    squares = [np.sum(points[..., :-1] ** 2, axis=(1, 2)) for points in trials]
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
    evidence = Evidence.of_sums(SquaredSums(hessian, -sums["gradient"], 2.0 * sums["loss"][:, 0]))
    return np.full(problem.n_models, evidence.best_penalty(problem.dtype) / problem.total_weight)


def set_gradients(problem: NewtonProblem, state: NewtonState, models: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The gradients of the objectives at the accepted points, (g, w); their lengths go into `state`."""
    # (1/N) sum_i s_i loss'(f_i) phi(x_i), and alpha w for the penalised coefficients
    gradients = sums / problem.total_weight
    penalised = problem.by_function(state.coefficients[models])[..., :-1]
    problem.by_function(gradients)[..., :-1] += state.penalties(problem)[models, None, None] * penalised
    state.gradient[models] = np.linalg.norm(gradients, axis=1)
    first = models[state.fresh[models]]
    state.first_gradient[first] = (state.gradient if problem.first_gradient is None else problem.first_gradient)[first]
    return gradients


def _begin_search(state: NewtonState, models: np.ndarray, gradients: np.ndarray) -> None:
    """Let conjugate gradients look for the directions of models that have moved, in `state` (a fresh copy).

    From d = 0 and r = p = -g they solve H d = -g for the quadratic of the Newton step.
    """
    looks: Any = state
    looks.gradients[models], looks.residuals[models], looks.searches[models] = gradients, -gradients, -gradients
    state.directions[models], looks.products[models] = 0.0, 0
    # nothing is promised before the direction is known
    state.slope[models] = -np.inf


def _conjugate_step(problem: NewtonProblem, state: NewtonState, models: np.ndarray, products: np.ndarray) -> None:
    """One step for the directions of some models, in `state` (fresh copies), by the products (g, w) with H."""
    looks: Any = state
    searches = looks.searches[models]
    # the penalty is on all but the intercept
    products = products * (problem.table.largest_curvature / problem.total_weight)
    products[:, :-1] += problem.alphas[models, None] * searches[:, :-1]
    directions, residuals, searches, moved = conjugate_step(
        state.directions[models], looks.residuals[models], searches, products
    )
    state.directions[models], looks.residuals[models], looks.searches[models] = directions, residuals, searches
    looks.products[models] += 1
    left = np.sqrt(np.einsum("gj,gj->g", residuals, residuals))
    whole = (left <= _LEFT * state.gradient[models]) | (looks.products[models] >= _MOST_PRODUCTS) | ~moved
    ended = models[whole]
    looks.products[ended] = -1
    state.slope[ended] = np.einsum("gj,gj->g", looks.gradients[ended], state.directions[ended])


def _product_record(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> BlockSum:
    """The product of each model's Hessian with the vector that its search goes along."""
    looks: Any = state
    operands = {
        "feature_map": problem.feature_map,
        "point": state.coefficients[models],
        "searches": looks.searches[models],
        "targets": _targets_of(problem, models),
        "loss": problem.loss,
        "dtype": problem.dtype,
    }
    shape = {"product": Accumulator((len(models), problem.width))}
    cost = _ProductCost(problem.feature_map, len(models))
    return BlockSum("product with the Hessian", curvature_block, shape, operands, cost=cost)


@dataclass(frozen=True, eq=False)
class _ProductCost:
    """Scores at the point and of the searches, and the sums, of rows as they are mapped."""

    feature_map: FeatureMap
    n_models: int

    def __call__(self, rows: int, columns: int) -> Cost:
        width = self.feature_map.n_features + 1
        each = mapping_flops(columns, self.feature_map) + 6.0 * self.n_models * width
        return Cost(rows * each, 8 * self.n_models * (2 * width + 3 * rows))
