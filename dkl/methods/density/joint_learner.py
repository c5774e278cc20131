"""JointFeatures: weights of candidates in a divergence ball, learned jointly with a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import ClassVar

import numpy as np

from dkl.bounds.alignment import rademacher_bound
from dkl.bounds.certificate import Bounds
from dkl.data.dataset import Dataset
from dkl.errors import warn_user
from dkl.features.families import Family
from dkl.linear.target_statistics import TargetScale, model_targets, target_units
from dkl.methods.aligned.learner import RHO_SHARE
from dkl.methods.base import PoolLearner
from dkl.methods.bounds_mixin import Certified, why_no_waves
from dkl.methods.choice import choose_features
from dkl.methods.density.joint_driver import JointDriver
from dkl.methods.density.joint_problem import JointProblem, JointState
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.problem import matrix_bytes
from dkl.methods.modelled import WorkingModelMixin
from dkl.methods.parameters import JOINT, Constraints, check_finite_pool, estimator, family_of, weight_of
from dkl.methods.warm_start import goes_on
from dkl.solvers.divergence_ball import DivergenceBall
from dkl.solvers.kernel_alignment import divergence, effective_features

# A weight below this share of the largest one is a rounding error.
_NO_WEIGHT = 1e-7
# Bytes of the matrices of the working candidates' columns, for max_working=None.
_WORKING_BYTES = 2 << 30


@estimator
class JointFeatures(Certified, WorkingModelMixin, PoolLearner):
    """Features whose weights are learned jointly with the linear model on them, to a certified optimum.

    The minimum of ``sum_m |w_m|^2 / (2 q_m) + C sum loss`` over all weights q of the candidates with D_f(q || uniform)
    <= rho, f(t) = t^k - 1, and all linear models on them. This is the kernel machine with the best kernel of the ball.
    The problem is convex and uses all rows, and the duality gap bounds the distance from the optimum.

    Parameters
    ----------
    family : Family or None
        Distribution of the candidates; None is ``Gaussian()`` with the median bandwidth.
    n_candidates : int or None
        The number of candidates; None, for finite families, is each column or harmonic once. Each has its own weight.
    n_features : int or None
        The most output columns (a cosine-sine pair has two): if more candidates have weight, the largest weights are
        kept. None keeps them all.
    rho : float or None
        Radius of the divergence ball: 0 is plain sampling, larger values select more strongly. None is 0.005 times the
        number of candidates.
    k : float
        Order of the divergence, >= 2.
    C : float
        Factor of the summed loss, as in `sklearn.svm.SVC` and `LinearSVC`. For "squared_error" it is that of half the
        squared errors: `Ridge` then has ``alpha = 1/C``.
    loss : {"hinge", "squared_hinge", "squared_error"} or None
        One class against the rest, with common weights of candidates; for numbers half the squared error, of targets in
        units of their standard deviation. None is "hinge" for classes.
    tol : float
        The fit ends at this duality gap, relative to the objective.
    max_passes : int
        The most passes over the rows.
    max_working : int or None
        The most candidates that the driver solves for at once, with matrices of their columns. All that have weight
        must be among them, at least ``n_candidates / (1 + rho)`` for k = 2. None is as many as fit in 2 GiB: 3,000
        pairs for two classes, 1,200 for ten.
    warm_start : bool
        `fit` starts from the weights and the model of the last fit, with the same candidates, bandwidth and scaler; the
        optimum is the same.
    sigma_factors : sequence of float
        Candidates are spread evenly over the bandwidth times these factors.
    scaling, max_rows
        As in `RandomFeatures`; `max_rows` bounds the rows of all passes.
    class_weight : dict, "balanced" or None
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`. With `checkpoint`, an interrupted fit resumes after its last pass, to the same bits.

    Attributes
    ----------
    feature_map_ : FeatureMap
    candidates_ : ndarray, or csr_array for `Coordinates`, of shape (D, d)
    weights_ : ndarray of shape (D,)
        q.
    divergence_, effective_features_, rho_ : float
        D_f(q || 1/D), 1 / sum(q^2), and the radius.
    frequencies_ : ndarray of shape (m, d)
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        The linear model on the features, in units of the targets; K is 1 for two classes. `machine_` predicts with it,
        and a `KernelClassifier` with Newton steps starts from it.
    objective_, duality_gap_ : float
        The objective above, and an upper bound of its distance from the minimum.
    history_ : list of dict
        One line for each evaluation of all candidates: passes, objective, gap, working candidates, support.
    message_ : str
        Why the fit ended.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`; `classes_` for labels only.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", equation (9).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.density.joint_learner import JointFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = JointFeatures(n_candidates=100, scaling="quantile", random_state=0).fit(X, y)
    >>> bool(learner.duality_gap_ <= 1e-3 * learner.objective_)
    True
    >>> bool(learner.machine_.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = JOINT
    _supervised: ClassVar[bool] = True

    family: Family | None = None
    n_candidates: int | None = 2_000
    n_features: int | None = 1_000
    rho: float | None = None
    _: KW_ONLY
    k: float = 2
    C: float = 1.0
    loss: TunedLoss | None = None
    tol: float = 1e-3
    max_passes: int = 200
    max_working: int | None = None
    warm_start: bool = False
    sigma_factors: Sequence[float] = (1.0,)

    def bounds(self) -> Bounds:
        """Lemma 3 for models of the largest length of a minimum, sqrt(2 C n), which does not depend on the rows.

        With several classes it holds for each class against the rest.

        Returns
        -------
        Bounds
            Empty for numeric targets, `class_weight`, and features that are not bounded by 1.

        References
        ----------
        Sinha & Duchi 2016, lemma 3.
        """
        if why := self._why_no_bounds():
            return Bounds(why_none=why)
        n = self.total_weight_
        # zero weights have a loss of C for each row, so at a minimum half the squared length is at most C n
        norm = float(np.sqrt(2.0 * self.C * n))
        return Bounds([rademacher_bound(n, self.rho_, norm=norm, k=float(self.k))])

    def _why_no_bounds(self) -> str:
        """The theorem needs labels and Fourier features."""
        return why_no_waves(self) or super()._why_no_bounds()

    def _check_rest(self) -> None:
        family = family_of(self)
        check_finite_pool(self, family)
        if self.n_features is not None:
            self._n_frequencies(family)

    def _learn(self, dataset: Dataset) -> None:
        start = self._start(dataset)
        self._take_targets(dataset)
        if self._plan is None:
            # parameters that do not match these rows raise an error before any pass
            self.replayed(dataset)
        if start is None:
            self._draw_for(dataset)
        scale = target_units(dataset, self._running("targets"))
        problem = replace(self._problem(dataset, scale), start=start)
        state = self._run(
            JointDriver(),
            problem,
            dataset,
            "solver",
            keep=lambda learner, state: learner._keep_solution(problem, state, scale),
        )
        if state.gap > problem.tol * state.objective and not state.was_stopped:
            warn_user(f"{type(self).__name__} ended above tol: {state.message}")

    def _start(self, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The solution of the last fit, with `warm_start`; else None."""
        if not goes_on(self, dataset, ("family", "n_candidates", "sigma_factors", "scaling", "dtype", "rho", "k")):
            return None
        if not hasattr(self, "_solution"):
            raise ValueError(
                "warm_start=True starts from the last fit's solution on all candidates, which is not saved with a "
                "model; set warm_start=False"
            )
        return self._solution

    def _problem(self, dataset: Dataset, scale: TargetScale | None) -> JointProblem:
        """The problem, from the parameters.

        Raises
        ------
        ValueError
            If the loss does not match the targets, or more candidates must have weight than may be solved for at once.
        """
        pool, classes = self.pool_, dataset.classes
        D = pool.n_frequencies
        rho = RHO_SHARE * D if self.rho is None else float(self.rho)
        ball = DivergenceBall(D, rho, float(self.k))
        targets = model_targets(dataset, scale, self._class_weights(dataset))
        # |w|^2 / (2 q) + C sum loss is C N times the problem with the mean loss, u = D q and lam = 1 / (C N)
        loss, total = self._loss(classes), weight_of(dataset, targets.class_weight)
        amplitude = self.family_.feature_scale(pool.n_columns) / np.sqrt(D)
        return JointProblem(
            replace(pool, amplitudes=np.full(D, amplitude)),
            targets,
            total,
            loss,
            1.0 / (self.C * total),
            ball,
            tol=self.tol,
            max_passes=self.max_passes,
            most_working=self._most_working(
                ball, pool.columns_a_frequency, 1 if TUNED_LOSSES[loss].takes_one_pass else len(targets.models)
            ),
            dtype=self.dtype,
            n_rows=dataset.n_rows,
        )

    def _most_working(self, ball: DivergenceBall, parts: int, n_hessians: int) -> int:
        """The most candidates to solve for at once."""
        # the most columns whose matrices are within the bound, in whole frequencies
        most = self.max_working or int(np.sqrt(_WORKING_BYTES / matrix_bytes(1, n_hessians))) // parts
        if ball.least > most:
            raise ValueError(
                f"rho={ball.rho:g} gives at least {ball.least:,} of {ball.n_frequencies:,} candidates weight, and "
                f"max_working={most:,} are solved on at once; set a larger rho or max_working, or fewer n_candidates "
                "(rho=0 is RandomFeatures)"
            )
        return most

    def _loss(self, classes: Sequence[object] | np.ndarray | None) -> TunedLoss:
        """`loss`, or the default for these targets."""
        if classes is None and self.loss is not None and not TUNED_LOSSES[self.loss].takes_one_pass:
            raise ValueError(
                f"loss={self.loss!r} is for class labels, and these targets are numbers; use loss='squared_error'"
            )
        return self.loss or ("squared_error" if classes is None else "hinge")

    def _keep_solution(self, problem: JointProblem, state: JointState, scale: TargetScale | None) -> None:
        """Set the weights, and the model on the features at the learned amplitudes."""
        D = problem.feature_map.n_frequencies
        density = np.where(state.density[0] > _NO_WEIGHT * state.density.max(), state.density[0], 0.0)
        self.weights_, self._solution = np.zeros(D), (state.working, state.coefficients, state.density)
        self.weights_[state.working] = density / density.sum()
        self.divergence_, self.rho_ = divergence(self.weights_, problem.penalty.k), problem.penalty.rho
        self.effective_features_, self.total_weight_ = effective_features(self.weights_), problem.total_weight
        # if more candidates have weight than `n_features` allows, those with the largest weights are kept
        choice = choose_features(self.weights_, self._n_kept, self.seed_, estimator="support")
        self._keep(choice)
        model = state.moved_to(choice.index).coefficients
        # the solver has features of amplitude 1 / sqrt(D), the feature map those of the choice
        coef = model[:, :-1] / np.tile(np.sqrt(D) * choice.amplitudes, self.pool_.columns_a_frequency)
        self.coef_, self.intercept_ = coef, model[:, -1]
        if scale is not None:
            self.coef_, self.intercept_ = scale.in_own_units(coef, model[:, -1])
        self.objective_, self.duality_gap_ = state.objective / problem.lam, state.gap / problem.lam
        self.history_, self.message_ = [dict(line) for line in state.rounds], state.message
