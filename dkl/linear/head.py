"""Fits the linear models of a head from sums over rows: one Newton loop for all losses, outputs, penalties, folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.gram import gram_scratch, packed_panels, packed_size
from dkl.kernels.maps import cached_tile, mapping_flops, newton_tile
from dkl.kernels.normal_equations import NewtonOptions, NewtonTargets, TrialSteps, curvature_block, newton_block
from dkl.kernels.threads import usable_cores
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import Rows
from dkl.protocols.driver import BETWEEN_PASSES
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost
from dkl.solvers.conjugate_gradients import conjugate_step
from dkl.solvers.line_search import SHORTEST, backtracked, trial_lengths
from dkl.solvers.losses import Loss, newton_loss
from dkl.solvers.secants import known_secants, secant_direction
from dkl.solvers.squared_sums import SquaredSums, without_each
from dkl.solvers.systems import PenalisedSystems, systems_at_once
from dkl.uncertainty.evidence import Evidence

# The most bytes of the Hessians of one pass, which are one accumulator, and of the gradients of all models, which are
# another.
_HESSIAN_BYTES = _GRADIENT_BYTES = LARGEST_ACCUMULATOR
# With more features no Hessian is formed: each would take 800 MB.
MOST_FEATURES = 10_000
# With fewer features the factor of a Hessian, of D^3 / 3 operations, takes less time than the passes of all products.
_FEATURES_BY_PRODUCTS = 2_000
# Step lengths that one pass tries. Jointly fitted classes have one, which is nearly always accepted: then a pass
# multiplies mapped rows by the K models at its end alone, and not by their directions as well.
_TRIALS, _JOINT_TRIALS = 9, 1
# Jointly fitted classes that are separable have a loss that falls for ever: with a decrement, their steps end when the
# next one promises less than this share of the objective at zero.
_FLOOR = 5e-6
# With Hessians of rounded rows, steps end when one is shorter than this share of the length of the coefficients: each
# step reduces the error by the relative precision of rounded rows.
_LAST_STEP = 1e-6
# Steps whose secants correct a metric.
_SECANTS = 20
# Usual numbers of passes after the first: to the tolerance, and to a decrement; and to the tolerance with a metric,
# whose steps are shorter. Counted in 64 fits of two and three classes, 30,000 to 1,000,000 rows and 60 to 300 features.
USUAL_STEPS = {"squared_error": (1, 0), "squared_hinge": (5, 1), "log_loss": (4, 2), "softmax": (16, 3)}
USUAL_OTHERS, _USUAL_BY_METRIC = (5, 2), {"log_loss": 8}
# Conjugate gradients end at this share of the gradient, or after this many products with the Hessian; they take about
# twenty (3 to 37 in 24 fits of 2,000 to 4,000 sparse rows of 3,000 to 15,000 columns).
_LEFT, _MOST_PRODUCTS, USUAL_PRODUCTS = 1e-2, 60, 20
# The rate of Cholesky factorisations in double precision divided by that of matrix products in float32, both in
# operations a second: .19 for 4,001 unknowns on two cores (measured). Plans expect seconds of linear systems by it.
_FACTORS = 0.2
# Seconds of the driver for each number of the trial points, whose squares are summed: 4 to 5 ns of one core (measured).
_TRIAL_NUMBER_S = 5e-9


def most_log_loss_features(n_classes: int) -> int:
    """The most features of a log loss of `n_classes` classes, such that one pass can sum all gradients."""
    return _GRADIENT_BYTES // (8 * n_classes) - 1


@dataclass(frozen=True, eq=False)
class NewtonProblem:
    """Minimise ``alpha/2 |w|^2 + (1/N) sum_i s_i loss(y_i, w.phi(x_i) + b)`` for each of several models.

    N is the sum of the weights s; the intercept b is not penalised. The squared hinge ``max(0, 1 - y f)^2`` is fitted
    class by class (one against the rest), the squared error ``(y - f)^2 / 2`` for all targets in the same pass: these
    are the problems of ``LinearSVC(C=1/(alpha N))`` with a free intercept and of ``Ridge(alpha N)``. "softmax" is the
    log loss of all K > 2 classes, ``log sum_k exp f_ik - f_i,y_i``: one model of K functions, the problem of
    ``LogisticRegression(C=1/(alpha N))``, whose intercepts add up to 0 since only their differences matter. The other
    losses are those of `dkl.solvers.losses`, with a model for each target or quantile.

    Parameters
    ----------
    feature_map : FeatureMap
    targets : NewtonTargets
        The targets of all functions; a model may leave out the rows of a fold.
    total_weight : float
        N, including the rows of all folds.
    alpha : float or ndarray of shape (g,)
        The penalty of all models, or of each.
    loss : str
        One with exact steps in the table `LOSSES` of `dkl.registry`, or "softmax".
    tol : float
        A model has converged when the length of its gradient is at most `tol` times its length at the start.
    decrement : float
        If positive, a model also ends when its next step promises to lower the objective by at most this share; that
        last step is taken without a further pass.
    max_steps : int
        The most steps of each model.
    dtype : {"float32", "float64"}
        Of the mapped rows and the Hessian. Gradients are float64 except for the squared hinge and the softmax with a
        `decrement`, so that float32 costs one more step and no accuracy.
    start : ndarray of shape (g, m + 1) or None
        The starting point of the functions, the intercept last; None is zero. Models of one target start at the same
        point.
    first_gradient : ndarray of shape (g,) or None
        The gradient lengths that `tol` is relative to; None are those at the start.
    fixed : bool
        Whether the Hessians at the start serve all steps, if those of all targets and folds take at most 64 MiB:
        comparing penalties needs less accuracy than the final fit.
    epsilon : float
        The width of "huber"; for "pinball" the width of the parabola that smooths its kink.
    quantiles : ndarray of shape (g,) or None
        The quantile of each model; only for "pinball".
    metric : ndarray of shape (1, size) or None
        A packed Hessian that serves all steps of a single model, such as that of a subsample times the ratio of the
        rows; the gradients of later steps correct it. None sums a Hessian for each step. For the softmax the metric is
        ``sum_i s_i (phi_i, 1)(phi_i, 1)^T``, which the first pass sums if it is None.
    evidence : bool
        Whether all models get the penalty with the largest evidence, computed from the sums of the first pass, in place
        of `alpha`. Only for the squared error on all rows, starting from zero.
    rounded : bool
        Only for the squared error on GPUs: whether the Hessian may be summed from rows rounded to 10 bits. Each further
        pass corrects the step by an exact gradient, until a step is a millionth of the coefficients. If a gradient is
        not halved, the Hessian is summed again in `dtype`.
    n_rows : float
        The number of rows, which decides between Hessians and products with them (`is_wide`).
    needs_hessian : bool
        Whether the Hessian is needed beside the coefficients, so that it is summed wherever memory allows: for the
        variances of coefficients, or the evidence.
    token : str
        Identifies the mapped rows that workers keep between the passes of this problem.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    alpha: Any
    loss: str = "squared_hinge"
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
    n_rows: float = np.inf
    needs_hessian: bool = False
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def usual_steps(self) -> int:
        """The usual number of passes after the first."""
        # steps by the whole Hessian are as many as those of two classes
        name = "log_loss" if self.is_joint and self.is_wide else self.loss
        to_the_end, to_a_decrement = USUAL_STEPS.get(name, USUAL_OTHERS)
        if self.metric is not None:
            to_the_end = _USUAL_BY_METRIC.get(self.loss, to_the_end)
        # the slowest of several models determines the number
        return to_a_decrement if self.decrement else to_the_end + (self.n_models > 1)

    @property
    def table(self) -> Loss:
        """Value, slope and curvature of the loss."""
        return newton_loss(self.loss, self.epsilon, self.quantiles)

    @property
    def is_joint(self) -> bool:
        """Whether one model has the functions of all classes."""
        return self.loss == "softmax"

    @property
    def is_wide(self) -> bool:
        """Whether conjugate gradients compute the directions, by products of Hessians with vectors, without a Hessian.

        More than `MOST_FEATURES` have no Hessian. The factor of a Hessian takes D^3 / 3 operations, and conjugate
        gradients take at most `_MOST_PRODUCTS` products, each of at most 4 n D operations for each function of a model
        on features that are columns, which need no mapping (eight classes of 1,875 sparse rows x 6,000 columns: 84 s of
        factors).
        """
        D, are_columns = self.feature_map.n_features, self.feature_map.activation == "identity"
        if self.needs_hessian or not are_columns or not _FEATURES_BY_PRODUCTS <= D <= MOST_FEATURES:
            return D > MOST_FEATURES
        return _MOST_PRODUCTS * 4.0 * self.n_rows * D * self.n_functions <= D**3 / 3.0

    @property
    def varies(self) -> bool:
        """Whether the curvature of the loss depends on the score."""
        return self.is_joint or self.table.varies

    @property
    def curvature_unit(self) -> float:
        """The unit of curvatures in products with Hessians."""
        return 1.0 if self.is_joint else self.table.curvature_unit

    @property
    def hessian_weight(self) -> float:
        """The divisor of summed Hessians: N over the loss's unit of curvature.

        At zero all K classes have equal probabilities, and the Hessian of class k and class l is ``(d_kl - 1/K)/K``
        times the Gram matrix G of mapped rows. Gradients, and so steps, add up to zero over the classes; for such
        vectors the Hessian is ``G/K``: one system of m + 1 unknowns in place of one of K (m + 1).
        """
        return self.total_weight * (self.n_functions if self.is_joint else 1.0 / self.table.curvature_unit)

    @property
    def n_models(self) -> int:
        return 1 if self.is_joint else len(self.targets.models)

    @property
    def n_functions(self) -> int:
        """Linear functions of a model: K for jointly fitted classes, else 1."""
        return len(self.targets.models) // self.n_models

    @property
    def width(self) -> int:
        """Coefficients of one function, including the intercept."""
        return self.feature_map.n_features + 1

    def jointly(self) -> NewtonProblem:
        """The problem of all classes as one model, from zero; secant steps are cheap, so many are allowed."""
        joint = NewtonProblem(
            self.feature_map,
            self.targets,
            self.total_weight,
            self.alpha,
            "softmax",
            tol=1e-9,
            decrement=self.decrement,
            max_steps=500,
            dtype=self.dtype,
            n_rows=self.n_rows,
        )
        return replace(joint, max_steps=self.max_steps) if joint.is_wide else joint

    def by_function(self, coefficients: np.ndarray) -> np.ndarray:
        """The coefficients (..., K (m + 1)) of models, reshaped to those of their functions, (..., K, m + 1)."""
        return coefficients.reshape(*coefficients.shape[:-1], self.n_functions, self.width)

    @property
    def trials(self) -> int:
        """Step lengths that one pass tries."""
        return _JOINT_TRIALS if self.is_joint else _TRIALS

    @property
    def exact(self) -> bool:
        """Whether scores and gradients are float64, whatever the dtype of mapped rows."""
        return self.decrement == 0.0 or self.loss not in ("squared_hinge", "softmax")

    @property
    def alphas(self) -> np.ndarray:
        """The penalty of each model, of shape (g,)."""
        return np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), (self.n_models,))

    @property
    def keeps_hessians(self) -> bool:
        """Whether Hessians are summed only once, because they are constant or those of the start suffice."""
        # The squared error has constant curvature; that of the squared hinge depends on which rows have a margin below
        # 1, which changes with each step.
        if self.metric is not None or self.loss in ("squared_error", "softmax"):
            return True
        if not self.fixed:
            return False
        n_hessians = len(set(self._starting_keys()))
        return n_hessians == 1 or 8 * n_hessians * packed_size(0, self.width) <= _HESSIAN_BYTES

    @property
    def parts(self) -> np.ndarray | None:
        """The folds whose rows the first pass sums separately, and -1 for the rows in no fold; None if it does not.

        The sums without a fold are the total of the other parts, so that one pass serves the models of all folds. This
        holds for the squared error only, whose sums do not depend on the penalty. None for other losses, for fewer than
        two folds, and if the Hessians of all parts take more than 64 MiB.
        """
        fold = self.targets.fold
        if self.loss != "squared_error" or self.is_wide or fold is None or fold.min() < 0:
            return None
        folds = list(dict.fromkeys(fold.tolist()))
        fits = 8 * (1 + len(folds)) * packed_size(0, self.width) <= _HESSIAN_BYTES
        return np.array([-1, *folds]) if len(folds) > 1 and fits else None

    def in_parts(self, parts: np.ndarray) -> NewtonProblem:
        """The problem with one model for each target and part, which uses the rows of this part only."""
        targets, first = np.unique(self.targets.models, return_index=True)
        models, fold = np.repeat(targets, len(parts)), np.tile(parts, len(targets))
        return replace(
            self,
            targets=replace(self.targets, models=models, fold=fold, inside=True),
            alpha=1.0,
            start=None if self.start is None else np.repeat(self.start[first], len(parts), axis=0),
        )

    @property
    def most_features_with_hessians(self) -> int:
        """The most features for which the Hessians of all models together take at most 64 MiB."""
        return int((np.sqrt(1.0 + _HESSIAN_BYTES / self.n_models) - 1.0) / 2.0) - 1

    def hessian_keys(self, fresh: np.ndarray) -> list[tuple[int, ...]]:
        """A key for each model; models with equal keys have the same Hessian and share its sum.

        Parameters
        ----------
        fresh : ndarray of shape (g,), bool
            Which models have not taken a step yet.
        """
        first = self._starting_keys()
        if self.keeps_hessians:
            return first
        return [key if new else (-2, model) for model, (key, new) in enumerate(zip(first, fresh, strict=True))]

    def _starting_keys(self) -> list[tuple[int, ...]]:
        # Models with the same rows at the same point have the same Hessian. At zero all margins are 0, so that all
        # classes share it; at any other start each class has its own.
        folds = np.full(self.n_models, -1) if self.targets.fold is None else self.targets.fold
        if self.loss in ("squared_error", "softmax"):
            return [(int(fold),) for fold in folds]
        # Other losses have a curvature that depends on the target, and away from zero on the quantile.
        outputs = self.targets.models
        if self.quantiles is not None and self.start is not None:
            outputs = np.unique(np.stack([outputs, self.quantiles]), axis=1, return_inverse=True)[1].ravel()
        if self.start is None and self.loss in ("squared_hinge", "log_loss"):
            outputs = np.zeros(self.n_models, np.int64)
        return [(int(fold), int(output)) for fold, output in zip(folds, outputs, strict=True)]


@dataclass(frozen=True, eq=False)
class NewtonState:
    """The state of g models with w coefficients each: those of all functions of a model, each with its intercept last.

    Attributes
    ----------
    coefficients, directions : ndarray of shape (g, w)
        The accepted point, and the direction of the next step.
    steps : ndarray of shape (g,)
        The step length that the next pass tries first.
    objective, slope : ndarray of shape (g,)
        At the accepted point; the slope is the derivative along the direction.
    gradient, first_gradient : ndarray of shape (g,)
        The length of the gradient at the accepted point, and at the start.
    counts : ndarray of shape (g,), int64
        Step trials so far.
    stalled : ndarray of shape (g,), bool
        No step lowers the objective any more, because of rounding errors.
    hessian : ndarray of shape (h, size) or None
        Packed, and divided by the loss's unit of curvature. For the squared error one for each fold, constant; for
        other losses those of the models `held` at their accepted points, to which the next pass only adds the change.
    held : ndarray of shape (h,), int64, or None
    ended : str
        Why the steps ended early, if a subscriber stopped them; else empty.
    by_fold : dict of ndarray or None
        If the first pass summed P parts separately: "loss" (K, P) and "gradient" (K, P, w) of each of K targets at the
        start, and "hessian" (P, size).
    alphas : ndarray of shape (g,) or None
        Penalties computed from the sums of the first pass; None uses those of the problem.
    moves, changes : ndarray of shape (p, w) or None
        With a metric: the last steps taken, and the change of the gradient along each.
    gradients : ndarray of shape (g, w) or None
        The gradient at the accepted point; with a metric, and for wide problems.
    residuals, searches : ndarray of shape (g, w) or None
        Only for wide problems, while a direction is computed by conjugate gradients: the residual of minus the
        gradient, and the vector whose product with the Hessian is needed next.
    products : ndarray of shape (g,), int64, or None
        Products with the Hessian so far; -1 if the direction is complete.
    rounded : bool
        Whether Hessians may still be summed from rounded rows, if the problem allows it.
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
        """The last steps, and the change of the gradient along each, both (p, w)."""
        nothing = np.zeros((0, self.coefficients.shape[1]))
        return nothing if self.moves is None else self.moves, nothing if self.changes is None else self.changes

    @property
    def fresh(self) -> np.ndarray:
        """Which models have not been evaluated yet."""
        return ~np.isfinite(self.first_gradient)

    def of_models(self, models: np.ndarray) -> NewtonState:
        """The points, directions and steps of some models alone."""
        points, directions = self.coefficients[models], self.directions[models]
        return replace(self, coefficients=points, directions=directions, steps=self.steps[models])

    @property
    def proposal(self) -> np.ndarray:
        """The points at the end of the next steps, (g, w)."""
        if not self.directions.any():
            # the state of a plan holds one number for all coefficients, and stays as small
            return self.coefficients
        return self.coefficients + self.steps[:, None] * self.directions

    def solution(self, problem: NewtonProblem) -> np.ndarray:
        """The fitted models, (g, w): the accepted points, plus the last step of models that a decrement ended."""
        if problem.loss in ("pinball", "softmax"):
            # with few rows of nonzero curvature, or an approximate metric, a step that no pass has evaluated may
            # increase the loss
            return self.coefficients
        return np.where(self._ended_early(problem)[:, None], self.proposal, self.coefficients)

    def least_objective(self, problem: NewtonProblem) -> np.ndarray:
        """The objective at each `solution`, (g,); only for the squared error, where it is quadratic."""
        # J(w + d) = J(w) + g.d / 2 along the Newton direction d = -H^-1 g, whose slope is g.d
        return self.objective + np.where(self._ended_early(problem), 0.5 * self.slope, 0.0)

    def _ended_early(self, problem: NewtonProblem) -> np.ndarray:
        """Which models a decrement ended before their gradient was small: (g,) bool."""
        return ~self._at_tolerance(problem) & self.done(problem)

    def done(self, problem: NewtonProblem) -> np.ndarray:
        """Which models have converged, can gain only by rounding errors, or need just one last step: (g,) bool."""
        small = np.zeros(len(self.slope), bool)
        if problem.decrement > 0.0:
            # Minus half the slope along the Newton direction is the decrease that the next step promises (Newton
            # decrement).
            small = -0.5 * self.slope <= problem.decrement * self.objective
        if problem.rounded:
            lengths = [np.linalg.norm(vectors, axis=1) for vectors in (self.directions, self.proposal)]
            small |= (self.slope < 0.0) & (lengths[0] <= _LAST_STEP * lengths[1])
        return self._at_tolerance(problem) | (~self.fresh & small)

    def _at_tolerance(self, problem: NewtonProblem) -> np.ndarray:
        """Which models have a small gradient, or no step that lowers their objective: (g,) bool."""
        return ~self.fresh & ((self.gradient <= problem.tol * self.first_gradient) | self.stalled)


class NewtonDriver:
    """Newton's method with a line search, for every loss and every kind of direction, as a driver on block sums.

    One pass evaluates the loss at the full step and at shorter ones, and the gradient at the full step. If the full
    step does not lower the objective enough, the next pass takes the longest one that does. The next direction is

    - exact, if the same pass sums the Hessian (Keerthi & DeCoste 2005 for the squared hinge, which is piecewise
    quadratic: a full step that does not change which rows have a margin below 1 ends the search);
    - that of limited-memory BFGS, if a metric serves all steps, corrected by the gradients since (Nocedal & Wright
    2006, algorithm 7.4): for the softmax a pass then multiplies mapped rows with K functions, where the Hessian would
    need the products of all pairs of features for each pair of classes;
    - that of conjugate gradients, if there are too many features for a Hessian, or far more of them than rows: further
    passes sum its product with one vector for each model, over the rows with curvature (Lin, Weng & Keerthi 2008,
    "Trust region Newton method for large-scale logistic regression").
    """

    def __init__(self) -> None:
        self._systems = PenalisedSystems()

    def init(self, problem: NewtonProblem) -> NewtonState:
        """All models at the start, before any pass."""
        g, size = problem.n_models, problem.n_functions * problem.width
        nothing, start = np.full(g, np.inf), np.zeros((g, size))
        if problem.start is not None:
            start = np.array(problem.start, dtype=np.float64).reshape(g, size)
        if problem.is_joint:
            # a term that all classes share changes no probability
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
        """One pass for the next models that have not converged, or None."""
        models = _next_models(problem, state)
        if state.ended or len(models) == 0:
            return None
        searching = _searching(state, models)
        return (
            [_product_record(problem, state, searching)]
            if len(searching)
            else self._pass_records(problem, state, models)
        )

    def _pass_records(self, problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
        """The records of a pass over trial steps; the first pass may sum each fold separately."""
        if state.hessian is None and (parts := problem.parts) is not None:
            apart = problem.in_parts(parts)
            return _records(apart, self.init(apart), np.arange(apart.n_models))
        return _records(problem, state, models)

    def step(self, problem: NewtonProblem, state: NewtonState, results: Sequence[Any]) -> NewtonState:
        """The state after a pass: each model's trial step is accepted, with a new direction, or shortened."""
        models = _next_models(problem, state)
        searching = _searching(state, models)
        if len(searching):
            changed = ("directions", "residuals", "searches", "products", "slope", "stalled")
            state = replace(state, **{name: getattr(state, name).copy() for name in changed})
            _conjugate_step(problem, state, searching, results[0]["product"])
            return state
        hessians, (_, hessian_of) = _hessians(state, results), _sharing(problem, state, models)
        sums = _first_order(results)
        if state.hessian is None and (parts := problem.parts) is not None:
            by_fold = {name: sums[name].reshape(-1, len(parts), sums[name].shape[1]) for name in ("loss", "gradient")}
            by_fold = {"loss": by_fold["loss"][..., 0], "gradient": by_fold["gradient"], "hessian": hessians}
            state = replace(state, by_fold=by_fold)
            sums, hessians = _without_each_fold(problem, parts, by_fold)
        elif state.held is not None and _changes(problem, state, models):
            # the pass has only summed the change of these Hessians
            for place, model in enumerate(models):
                hessians[place] += np.asarray(state.hessian)[int(np.flatnonzero(state.held == model)[0])]
        # the steps below write to these arrays, so they are copied; Hessians are never written to
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
                # the rounded Hessian is too inaccurate here, so an exact one is summed at the present points
                begun = {name: getattr(state, name) for name in ("coefficients", "first_gradient", "counts")}
                return replace(self.init(problem), **begun, rounded=False)
        which, alphas = hessian_of[accepted], state.penalties(problem)[moved]
        steps = self._systems.solve(hessians, problem.hessian_weight, which, alphas, gradients)
        state.directions[moved], state.slope[moved] = -steps, -np.einsum("gj,gj->g", gradients, steps)
        if problem.keeps_hessians:
            return replace(state, hessian=hessians)
        # a shared Hessian is dropped, since its models are at different points after this pass
        kept = accepted if len(hessians) == len(models) else accepted[:0]
        # no copy of all Hessians, which would double their memory
        left = hessians if len(kept) == len(hessians) else hessians[kept]
        return replace(state, hessian=left, held=models[kept])

    def _secant_step(
        self, problem: NewtonProblem, state: NewtonState, before: np.ndarray, gradients: np.ndarray
    ) -> NewtonState:
        """The state of a single model with the next direction, by its metric corrected by its last steps (BFGS).

        The last step has led from `before`, (1, w), to a point with these `gradients`, (1, w).
        """
        moves, changes = state.secants
        if state.gradients is not None:
            move, change = state.coefficients[0] - before[0], gradients[0] - state.gradients[0]
            moves, changes = known_secants(moves, changes, move, change, most=_SECANTS)
        penalties, metric = state.penalties(problem), np.asarray(state.hessian)

        def solved(right: np.ndarray) -> np.ndarray:
            vectors = right.reshape(problem.n_functions, problem.width)
            return self._systems.solve(metric, problem.hessian_weight, 0, penalties, vectors).ravel()

        # the Gram matrix is the Hessian of the softmax at zero only; the last step shows by what factor it has changed
        direction = -secant_direction(gradients[0], moves, changes, solved, scales=problem.is_joint)
        state.directions[0], state.slope[0] = direction, gradients[0] @ direction
        state.stalled[:] |= _promise_nothing(problem, state.slope)
        return replace(state, moves=moves, changes=changes, gradients=gradients)

    def stopped(self, problem: NewtonProblem, state: NewtonState, why: str) -> NewtonState | None:
        """The accepted points, if a subscriber stops the fit; None until every model has left its start."""
        moved = np.any(state.coefficients != self.init(problem).coefficients, axis=1)
        return replace(state, ended=why) if np.all(moved | state.done(problem)) else None

    def memory(self, problem: NewtonProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the Hessians and one factor; between passes of summed Hessians, dense systems, and vectors."""
        hessian, system = 8 * packed_size(0, problem.width), 8 * problem.width**2
        vectors = 8 * problem.n_models * problem.n_functions * problem.width
        if problem.is_wide:
            return {"directions": 2 * 6 * vectors}
        if problem.is_joint:
            return {"Hessians": 2 * hessian + 2 * system, "steps": (4 * _SECANTS + 8) * vectors}
        fresh = np.ones(problem.n_models, bool)
        keys = problem.hessian_keys(fresh) if problem.keeps_hessians else range(problem.n_models)
        n_hessians = len(set(keys)) + (0 if problem.parts is None else len(problem.parts))
        packed = min(n_hessians * hessian, max(_HESSIAN_BYTES, hessian))
        solved = systems_at_once(problem.n_models, problem.width)
        # points, directions and gradients, each of them with its copy of the step after
        items = {"Hessians": packed + system, "steps": 6 * vectors, BETWEEN_PASSES: 2 * packed + solved * system}
        # LAPACK computes eigenvectors in place, with a work matrix of twice the size
        return {**items, "eigenvectors": 3 * system} if problem.evidence else items

    def driving(self, problem: NewtonProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds between the passes of usual steps: of trial points on one core, of linear systems on all cores."""
        points = problem.trials * problem.n_models * problem.n_functions * problem.width
        trials = (1 + problem.usual_steps) * points * _TRIAL_NUMBER_S
        return trials + self.flops(problem) / (_FACTORS * usable_cores() * flops_per_second)

    def flops(self, problem: NewtonProblem) -> float:
        """The floating-point operations of Cholesky factors and solutions between the passes of usual steps."""
        if problem.is_wide:
            return 0.0
        n_systems, solved = problem.n_models, problem.n_models * problem.n_functions
        if problem.keeps_hessians and not problem.is_joint:
            keys = problem.hessian_keys(np.ones(problem.n_models, bool))
            n_systems = len(set(zip(keys, problem.alphas.tolist(), strict=True)))
        # the joint model of all classes has few right-hand sides
        times = 1 if problem.is_joint else 1 + problem.usual_steps
        # the factor of a single system is kept from step to step
        n_factors = 1 if problem.keeps_hessians and n_systems == 1 else times * n_systems
        return n_factors * problem.width**3 / 3.0 + 2.0 * times * solved * problem.width**2

    def plan(self, problem: NewtonProblem) -> Sequence[tuple[Sequence[BlockSum], int]]:
        """The first pass, and an upper bound of the later ones."""
        state = self.init(problem)
        models = _next_models(problem, state)
        first = self._pass_records(problem, state, models)
        first_groups = -(-problem.n_models // len(models))
        if problem.is_wide:
            usual = first_groups * (1 + problem.usual_steps)
            first = [replace(record, usual_calls=usual) for record in first]
            most = first_groups * problem.max_steps
            product = replace(_product_record(problem, state, models), usual_calls=usual * USUAL_PRODUCTS)
            return [(first, most + first_groups), ([product], most * _MOST_PRODUCTS)]
        # an assumed state after the first pass: no model has converged, and each has its own Hessian
        ones = np.ones(problem.n_models)
        begun = replace(state, first_gradient=ones, gradient=ones, objective=ones, slope=-2.0 * ones)
        if problem.keeps_hessians:
            begun = replace(begun, hessian=np.zeros((len(set(problem.hessian_keys(state.fresh))), 0)))
        models = _next_models(problem, begun)
        groups = -(-problem.n_models // len(models))
        later, usual = groups * (problem.max_steps - 1), groups * problem.usual_steps
        steps = [replace(record, usual_calls=usual) for record in _records(problem, begun, models)] if later else []
        return [(first, first_groups), (steps, later)] if later else [(first, first_groups)]

    def planned(self, problem: NewtonProblem) -> NewtonState:
        """A state in which all models have converged, with the Hessian of rows that all have curvature.

        Later problems that take this Hessian for their metric are then planned with its steps, the more numerous ones.
        Nothing takes that of the squared error but the variances of coefficients, which a plan does not compute.
        """
        g, hessian = problem.n_models, problem.metric
        if hessian is None and not problem.is_wide and problem.loss != "squared_error":
            hessian = np.broadcast_to(problem.total_weight, (1, packed_size(0, problem.width)))
        # one number for all coefficients, since a plan may have hundreds of such states
        nothing = np.broadcast_to(0.0, (g, problem.n_functions * problem.width))
        return NewtonState(
            coefficients=nothing,
            directions=nothing,
            steps=np.ones(g),
            objective=np.ones(g),
            slope=np.zeros(g),
            gradient=np.zeros(g),
            first_gradient=np.ones(g),
            counts=np.zeros(g, np.int64),
            stalled=np.zeros(g, bool),
            hessian=hessian,
        )


def _next_models(problem: NewtonProblem, state: NewtonState) -> np.ndarray:
    """Indices of unconverged models for the next pass, as many as the bounds on its Hessians or gradients allow."""
    # after its last trial, a model by conjugate gradients may still need passes to complete a direction
    most = problem.max_steps + problem.is_wide
    waiting = np.flatnonzero(~state.done(problem) & (state.counts < most))
    if problem.is_wide:
        # each model adds a gradient, or a product with its Hessian
        return waiting[: max(1, _GRADIENT_BYTES // (8 * problem.width))]
    if problem.keeps_hessians or len(waiting) == 0:
        return waiting
    fresh = state.fresh
    # models at the start share Hessians, so a pass serves either only these or only later ones
    waiting = waiting[fresh[waiting] == fresh[waiting[0]]]
    keys = problem.hessian_keys(fresh)
    most_hessians = max(1, _HESSIAN_BYTES // (8 * packed_size(0, problem.width)))
    allowed = set(list(dict.fromkeys(keys[model] for model in waiting))[:most_hessians])
    return np.array([model for model in waiting if keys[model] in allowed])


def _searching(state: NewtonState, models: np.ndarray) -> np.ndarray:
    """The models whose direction by conjugate gradients needs another product with the Hessian."""
    return models[:0] if state.products is None else models[state.products[models] >= 0]


def _sharing(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """For each distinct Hessian the position of one model that has it, and for each model the number of its Hessian."""
    if problem.is_wide:
        return (0,), np.zeros(len(models), np.int64)
    keys = problem.hessian_keys(state.fresh)
    order = list(dict.fromkeys(keys if problem.keeps_hessians else [keys[model] for model in models]))
    number = np.array([order.index(keys[model]) for model in models])
    standing = tuple(int(np.flatnonzero(number == hessian)[0]) for hessian in np.unique(number))
    return standing, number


def _records(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> list[BlockSum]:
    """A record for each panel of Hessian columns, the first of which also sums losses and gradients.

    Of more models than 64 MiB of gradients hold, the losses and gradients of the others have records of their own.
    """
    standing, _ = _sharing(problem, state, models)
    # the models that stand for a Hessian are among the first ones
    most = max(max(standing) + 1, _GRADIENT_BYTES // (8 * problem.n_functions * problem.width))
    need_hessian = not problem.is_wide and (not problem.keeps_hessians or state.hessian is None)
    panels: list[tuple[int, int] | None] = list(packed_panels(problem.width, _HESSIAN_BYTES // len(standing)))
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
    )
    first, *others = [models[rows] for rows in spans(len(models), most)]
    by_panel = [
        (first, replace(options, columns=panel, first_order=position == 0))
        for position, panel in enumerate(panels if need_hessian else [None])
    ]
    asked = [*by_panel, *((tile, options) for tile in others)]
    return [_newton_record(problem, state, tile, each) for tile, each in asked]


def _changes(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> bool:
    """Whether all these models have Hessians at their accepted points, so that a pass need only sum their change."""
    return not problem.varies and state.held is not None and bool(np.isin(models, state.held).all())


def _following(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> tuple[bool, ...]:
    """Whether each model has the same target as the one before it, under another penalty."""
    if problem.varies or problem.is_wide or _changes(problem, state, models):
        return ()
    outputs = problem.targets.models[models]
    if problem.quantiles is not None:
        outputs = problem.quantiles[models]
    return (False, *(outputs[1:] == outputs[:-1]).tolist())


def _hessians(state: NewtonState, results: Sequence[Any]) -> Any:
    """The Hessians (h, size) that a pass has summed, or else the earlier ones; None for a wide problem."""
    # a pass sums them in panels of packed columns, unless earlier ones serve all steps
    panels = [result["hessian"] for result in results if "hessian" in result]
    return np.concatenate(panels, axis=1) if panels else state.hessian


def fold_sums(by_fold: dict[str, np.ndarray]) -> list[SquaredSums]:
    """The sums of each part of the rows, first of those in no fold, for the residuals of the targets at the start.

    Parameters
    ----------
    by_fold : dict of ndarray
        As in `NewtonState`.
    """
    # the loss is half the square, and its gradient at the start is minus the product of residuals and features
    parts = zip(by_fold["hessian"], *(np.moveaxis(by_fold[name], 1, 0) for name in ("gradient", "loss")), strict=True)
    return [SquaredSums(hessian, -gradient, 2.0 * loss) for hessian, gradient, loss in parts]


def _without_each_fold(
    problem: NewtonProblem, parts: np.ndarray, by_fold: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The sums of each model without its fold, and the Hessians without each fold, as totals of the other parts."""
    # the rows in no fold come first, and every model uses them
    _, *rest = without_each(fold_sums(by_fold))
    target = np.unique(problem.targets.models, return_inverse=True)[1].ravel()
    fold = [np.flatnonzero(parts[1:] == own)[0] for own in np.asarray(problem.targets.fold)]
    loss = np.array([0.5 * rest[f].squares[k] for f, k in zip(fold, target, strict=True)])
    gradient = np.array([-rest[f].cross[k] for f, k in zip(fold, target, strict=True)])
    # before the first direction all trial steps are at the start
    sums = {"loss": np.tile(loss[:, None], problem.trials), "gradient": gradient}
    return sums, np.stack([each.gram for each in rest])


def _targets_of(problem: NewtonProblem, models: np.ndarray) -> NewtonTargets:
    """The targets of all functions of some models."""
    own, each = problem.targets, np.arange(problem.n_functions)
    functions = (problem.n_functions * models[:, None] + each).ravel()
    return replace(own, models=own.models[functions], fold=None if own.fold is None else own.fold[functions])


def _first_order(results: Sequence[Any]) -> Any:
    """The sums of losses and gradients of all models of a pass, which may come from several records."""
    parts = [result for result in results if "gradient" in result]
    if len(parts) < 2:
        return results[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in ("loss", "gradient")}


def _with_quantiles(problem: NewtonProblem, models: np.ndarray, options: NewtonOptions) -> NewtonOptions:
    """These options with the quantile of each model, where models have one."""
    if problem.quantiles is None:
        return options
    return replace(options, quantiles=tuple(problem.quantiles[models].tolist()))


def _newton_record(problem: NewtonProblem, state: NewtonState, models: np.ndarray, options: NewtonOptions) -> BlockSum:
    """The record that sums what `options` names at the trial steps of some models."""
    # without a copy where one follows on the other
    first, stop = int(models[0]), int(models[-1]) + 1
    own = slice(first, stop) if stop - first == len(models) else models
    points, directions = (part[own].reshape(-1, problem.width) for part in (state.coefficients, state.directions))
    lengths = trial_lengths(state.steps[models], problem.trials)
    if problem.trials == 1:
        points, directions = points + lengths * directions, np.zeros_like(directions)
    trial = TrialSteps(points, directions, lengths)
    options = _with_quantiles(problem, models, options)
    accumulators = {}
    if options.first_order:
        accumulators = {"loss": Accumulator(trial.steps.shape), "gradient": Accumulator(trial.coefficients.shape)}
    if options.columns is not None:
        accumulators["hessian"] = Accumulator((len(options.hessian_of), packed_size(*options.columns)))
    targets = _targets_of(problem, models)
    # waves are computed about as fast as kept rows are read, which only pays off over many passes
    keeps = problem.feature_map.has_similarities or problem.is_joint
    return BlockSum(
        name="newton step",
        function=newton_block,
        accumulators=accumulators,
        operands={"feature_map": problem.feature_map, "trial": trial, "options": options, "targets": targets},
        cost=partial(
            newton_cost,
            feature_map=problem.feature_map,
            n_models=len(targets.models),
            options=options,
            share=targets.share,
        ),
        kept_as=f"{problem.token} {id(problem.feature_map)} {problem.dtype}" if keeps else "",
        kept_row_bytes=problem.feature_map.n_features * np.dtype(problem.dtype).itemsize,
    )


def newton_cost(
    rows: int, columns: int, *, feature_map: FeatureMap, n_models: int, options: NewtonOptions, share: float = 1.0
) -> Cost:
    """The cost of `newton_sums` for the share of rows that some model sees: mapping, scores, gradients, Hessians."""
    m, itemsize = feature_map.n_features, np.dtype(options.dtype).itemsize
    # jointly fitted classes have no scores along their directions
    products = 2.0 if options.loss == "softmax" else 3.0
    scores = 2.0 * products * n_models * (m + 1) * (2.0 if options.exact else 1.0)
    packed = 0 if options.columns is None else packed_size(*options.columns)
    hessians = 2.0 * packed * len(options.hessian_of)
    # mapped rows whose losses are summed at once, in double precision, and six numbers for each of their scores
    scratch = 8 * cached_tile(m, options.dtype) * (m + 1 + 6 * n_models)
    tile = newton_tile(m, options.dtype)
    if options.columns is None:
        scratch += itemsize * tile * m
    else:
        signs = options.change or any(options.follows)
        sums = len(options.hessian_of)
        scratch += gram_scratch(m, options.columns, itemsize, tile=tile, n_sums=sums, has_both_signs=signs)
    return Cost(share * rows * (mapping_flops(columns, feature_map) + scores + hessians), scratch)


def take_steps(problem: NewtonProblem, state: NewtonState, models: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Accept the full steps that lower the objective enough, and shorten the others, in `state` (a fresh copy).

    Parameters
    ----------
    problem : NewtonProblem
    state : NewtonState
    models : ndarray of shape (g,), int
    losses : ndarray of shape (g, T)
        Summed losses at the trial steps.

    Returns
    -------
    ndarray of int
        The positions in `models` of those whose full step was accepted.
    """
    lengths = trial_lengths(state.steps[models], problem.trials)
    # one model at a time, since the trial points of all models take several times the memory of their coefficients
    trials = (
        problem.by_function(state.coefficients[model] + steps[:, None] * state.directions[model])
        for model, steps in zip(models, lengths, strict=True)
    )
    squares = [np.sum(points[..., :-1] ** 2, axis=(1, 2)) for points in trials]
    objectives = 0.5 * state.penalties(problem)[models, None] * np.array(squares) + losses / problem.total_weight
    # Near the optimum differences of the objective are rounding errors, while the gradient still has digits.
    rounding = 1e-12 if problem.exact else 1e-6
    longest = backtracked(lengths, objectives, state.objective[models], state.slope[models], rounding)
    accepted = np.flatnonzero(longest == lengths[:, 0])
    moved = models[accepted]
    state.coefficients[moved] += lengths[accepted, :1] * state.directions[moved]
    state.objective[moved] = objectives[accepted, 0]
    state.stalled[models] = longest < SHORTEST
    state.steps[models] = longest
    # the next direction starts again with a full step
    state.steps[moved] = 1.0
    state.counts[models] += 1
    return accepted


def _evident_penalties(problem: NewtonProblem, hessian: np.ndarray, sums: dict[str, np.ndarray]) -> np.ndarray:
    """The penalty with the largest evidence, repeated for each of g models: (g,)."""
    # at zero the loss is sum_i s_i y_i^2 / 2, the gradient -sum_i s_i y_i phi_i; alpha multiplies the mean loss's
    # penalty
    evidence = Evidence.of_sums(SquaredSums(hessian, -sums["gradient"], 2.0 * sums["loss"][:, 0]))
    return np.full(problem.n_models, evidence.best_penalty(problem.dtype) / problem.total_weight)


def set_gradients(problem: NewtonProblem, state: NewtonState, models: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The gradients of the objectives at the accepted points, (g, w); writes their lengths to `state`."""
    # (1/N) sum_i s_i loss'(f_i) phi(x_i), and alpha w for the penalised coefficients
    gradients = sums / problem.total_weight
    penalised = problem.by_function(state.coefficients[models])[..., :-1]
    problem.by_function(gradients)[..., :-1] += state.penalties(problem)[models, None, None] * penalised
    state.gradient[models] = np.linalg.norm(gradients, axis=1)
    first = models[state.fresh[models]]
    state.first_gradient[first] = (state.gradient if problem.first_gradient is None else problem.first_gradient)[first]
    return gradients


def _begin_search(state: NewtonState, models: np.ndarray, gradients: np.ndarray) -> None:
    """Start conjugate gradients for the directions of models that have moved, in `state` (a fresh copy).

    They solve H d = -g for the quadratic of the Newton step, from d = 0 and r = p = -g.
    """
    wide: Any = state
    wide.gradients[models], wide.residuals[models], wide.searches[models] = gradients, -gradients, -gradients
    state.directions[models], wide.products[models] = 0.0, 0
    # the direction, and so the promised decrease, is not known yet
    state.slope[models] = -np.inf


def _conjugate_step(problem: NewtonProblem, state: NewtonState, models: np.ndarray, products: np.ndarray) -> None:
    """One conjugate-gradient step for some models, in `state` (a fresh copy), by the products (g, w) with H."""
    wide: Any = state
    searches = wide.searches[models]
    products = products.reshape(searches.shape) * (problem.curvature_unit / problem.total_weight)
    # the intercept has no penalty
    penalised = problem.by_function(searches)[..., :-1]
    problem.by_function(products)[..., :-1] += problem.alphas[models, None, None] * penalised
    directions, residuals, searches, moved = conjugate_step(
        state.directions[models], wide.residuals[models], searches, products
    )
    state.directions[models], wide.residuals[models], wide.searches[models] = directions, residuals, searches
    wide.products[models] += 1
    left = np.sqrt(np.einsum("gj,gj->g", residuals, residuals))
    whole = (left <= _LEFT * state.gradient[models]) | (wide.products[models] >= _MOST_PRODUCTS) | ~moved
    ended = models[whole]
    wide.products[ended] = -1
    state.slope[ended] = np.einsum("gj,gj->g", wide.gradients[ended], state.directions[ended])
    state.stalled[ended] |= _promise_nothing(problem, state.slope[ended])


def _promise_nothing(problem: NewtonProblem, slopes: np.ndarray) -> np.ndarray:
    """Whether jointly fitted classes, whose loss may fall for ever, end because the next step gains too little."""
    floor = _FLOOR * np.log(problem.n_functions) if problem.is_joint and problem.decrement > 0.0 else -np.inf
    return np.asarray(-0.5 * slopes <= floor)


def _product_record(problem: NewtonProblem, state: NewtonState, models: np.ndarray) -> BlockSum:
    """The record that sums the product of each model's Hessian with its search vector."""
    wide: Any = state
    targets = _targets_of(problem, models)
    options = NewtonOptions(problem.loss, dtype=problem.dtype, epsilon=problem.epsilon)
    operands = {
        "feature_map": problem.feature_map,
        "point": state.coefficients[models].reshape(-1, problem.width),
        "searches": wide.searches[models].reshape(-1, problem.width),
        "targets": targets,
        "options": _with_quantiles(problem, models, options),
    }
    n_functions = len(targets.models)
    shape = {"product": Accumulator((n_functions, problem.width))}

    def cost(rows: int, columns: int) -> Cost:
        # mapping, scores at the point and along the search, and sums, for the rows that some model sees
        each = mapping_flops(columns, problem.feature_map) + 6.0 * n_functions * problem.width
        return Cost(targets.share * rows * each, 8 * n_functions * (2 * problem.width + 3 * rows))

    return BlockSum("product with the Hessian", curvature_block, shape, operands, cost=cost)
