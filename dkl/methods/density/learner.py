"""TunedClassifier and TunedRegressor: the spectral density of a kernel, learned jointly with a linear model."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, replace
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.bounds.certificate import Bounds
from dkl.bounds.tuned import inverse_eigenvalue_bound, schedules
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.errors import warn_user
from dkl.features.families import Family
from dkl.features.feature_map import FeatureMap
from dkl.linear.answers import Scorer
from dkl.linear.fitting import LinearProblem, newton_targets
from dkl.linear.minibatches import HeldOut
from dkl.linear.target_statistics import TargetScale, deviations, target_units
from dkl.methods.base import FeatureLearner
from dkl.methods.bounds_mixin import Certified
from dkl.methods.density.adam_fit import AdamFit, Descent, fit_by_adam
from dkl.methods.density.driver import driver_of
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.meta_kernels import DeltaMetaKernel, MetaKernel, as_meta_kernel
from dkl.methods.density.pass_records import judging_record
from dkl.methods.density.penalty import (
    MOST_BYTES,
    DensityPenalty,
    MetaSpectrum,
    check_density_size,
    density_bytes,
    meta_spectrum,
)
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import TunedSolution, judged
from dkl.methods.parameters import TUNED, TUNED_REGRESSOR, Constraints, estimator, family_of, weight_of
from dkl.methods.predicting import ClassPredictions, NumberPredictions
from dkl.methods.preparation.bandwidth import median_distance
from dkl.methods.room import check_room
from dkl.methods.updating import Updated
from dkl.methods.validation import check_whole_labels, one_dimensional
from dkl.methods.warm_start import goes_on
from dkl.passes.loop import PassResult
from dkl.passes.room import own_room
from dkl.protocols.driver import Driver

# Models (K, m + 1) with their intercepts, and densities (1, D) or (K, D), from which the solver starts.
Start = tuple[np.ndarray, np.ndarray]


@estimator
class TunedLearner(Updated, Certified, FeatureLearner):
    """Tuned random features (Shilton et al. 2022): a linear model and the density of its frequencies, learned jointly.

    The fit has three steps: `_prepare` finds scaling and bandwidth, and D frequencies are drawn (the reference kernel);
    `_solve` or `_descend` minimises equation (22) over the weights and the density u of the frequencies; `_keep`
    multiplies the amplitudes of the feature map by sqrt(u), so that its kernel is the learned one. Losses differ only
    by their rows in `dkl.methods.density.loss_table`.
    """

    _supervised: ClassVar[bool] = True
    _parts: ClassVar[tuple[str, ...]] = ("family", "meta_kernel")
    _fitted_by: ClassVar[str] = "coef_"

    n_features: int = 1_000
    _: KW_ONLY
    family: Family | None = None
    reference_scale: float | None = None
    loss: TunedLoss = "hinge"
    lam: float = 1e-4
    Lam: float = 0.1
    gamma: float = 0.1
    meta_kernel: str | MetaKernel = "rbf"
    length_scale: float | None = None
    density_floor: float = 1.0
    center: float = 1.0
    shared_density: bool = True
    solver: Literal["full", "adam"] = "full"
    tol: float = 1e-4
    max_passes: int = 100
    epochs: int | None = None
    learning_rate: float = 0.1
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 5
    sums: str | PathLike[str] | None = None
    warm_start: bool = False
    dtype: str = "float64"

    def _given_targets(self, y: object) -> object:
        """The targets, where a single column of them is a vector, as for other estimators that predict."""
        return one_dimensional(y)

    def kernel(self, X: object, Y: object = None) -> Any:
        """The learned kernel, mean_j u_j cos(w_j.(x - y)), between rows.

        Parameters
        ----------
        X, Y : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d) and (m, d)
            None is X.

        Returns
        -------
        ndarray of shape (n, m), float64
            Lazy if X or Y is.
        """
        check_is_fitted(self, self._fitted_by)
        left = self._mapped(X, "float64")
        return left @ (left if Y is None else self._mapped(Y, "float64")).T

    def bounds(self) -> Bounds:
        """A bound on how little the penalty may resist changes of the density, and scalings of parameters with n and D.

        Returns
        -------
        Bounds
            A `dkl.bounds.Bound`, and a `dkl.bounds.Schedule` for losses that the theory covers.

        References
        ----------
        Shilton et al. 2022, section 4.3 and figure 2.
        """
        eigenvalues = self._meta_spectrum(self.feature_map_).values
        bound = inverse_eigenvalue_bound(eigenvalues, gamma=self.gamma)
        # the rates in n and D do not apply to a single row or frequency
        if not TUNED_LOSSES[self.loss].has_schedules or min(self.total_weight_, len(eigenvalues)) < 2:
            return Bounds([bound])
        return Bounds([bound, schedules(self.total_weight_, len(eigenvalues), loss=self.loss)])

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A feature map of the size that `fit` learns, with the amplitudes of the reference kernel."""
        return self._reference(self._planned_family(), dataset.n_columns, seed=0)

    def _prior(self) -> Family:
        """The family of the reference kernel, with the bandwidth `reference_scale` if it is set."""
        family = family_of(self)
        return family if self.reference_scale is None else family.with_bandwidth(self.reference_scale)

    def _reference(self, family: Family, n_columns: int, *, seed: int) -> FeatureMap:
        """Frequencies of the reference kernel with amplitudes 1/sqrt(D); the density u is relative to it."""
        size = self._n_frequencies(family)
        check_room(self, size, n_columns)
        drawn = family.draw(size, n_columns, seed, self.dtype)
        return replace(drawn, amplitudes=np.full(size, 1.0 / np.sqrt(size)))

    def _check_rest(self) -> None:
        if self._planned_family().draw(1, 2, 0).activation != "cos-sin":
            raise ValueError(
                f"{type(self).__name__} learns the density of cosine-sine pairs, and {family_of(self)!r} has none; use "
                "a family such as Gaussian() with pairing='cos-sin'"
            )
        size = self._n_frequencies(self._planned_family())
        # an invalid penalty, or a matrix that does not fit in memory, raises an error before any pass
        if not self._planned_penalty(1).separable:
            check_density_size(size, min(MOST_BYTES, own_room(self.memory_limit).nbytes))
        self._check_sums(2 * size)
        if self.solver == "full" and self.early_stopping:
            raise ValueError(
                "solver='full' goes to the optimum, and early_stopping has no meaning; use solver='adam', or set "
                "early_stopping=False"
            )
        if self.warm_start and (TUNED_LOSSES[self.loss].takes_one_pass or self.solver == "adam"):
            raise ValueError(
                "warm_start=True starts the steps of solver='full' on a hinge; half squared error takes one pass, and "
                "none with sums= and update. Set warm_start=False"
            )

    def _without_sums(self) -> str:
        """The remedy in the error for a learner without stored sums."""
        if self.solver == "adam":
            return "solver='adam' keeps none; fit all rows again"
        if not TUNED_LOSSES[self.loss].takes_one_pass:
            return (
                f"loss={self.loss!r} needs more than sums; fit all rows again, with warm_start=True from the last model"
            )
        return super()._without_sums()

    def _check_sums(self, n_columns: int) -> None:
        """Raise ValueError if sums are to be stored that do not suffice for the model, or that are too large."""
        if self.sums is None:
            return
        if not TUNED_LOSSES[self.loss].takes_one_pass or self.solver != "full" or self.dtype != "float64":
            raise ValueError(
                f"sums={str(self.sums)!r} keeps what half squared error depends on: it needs loss='squared_error', "
                f"solver='full' and dtype='float64', got {self.loss!r}, {self.solver!r} and {self.dtype!r}; for others "
                "leave sums out"
            )
        self._check_gram(n_columns, "n_features")

    def _learn(self, dataset: Dataset) -> None:
        start = self._start(dataset)
        self._take_targets(dataset)
        # a new fit stores new sums, in units of its own targets
        self.__dict__.pop("target_units_", None)
        if start is None:
            scaler = self._prepare(dataset)
            drawn = self._reference(self.family_, dataset.n_columns, seed=self.seed_)
            self.feature_map_ = replace(drawn, scaler=scaler)
        if self._context.weighs:
            self._weigh(dataset, start)
        elif self.sums is not None:
            # sums of further rows are in the same units
            self._target_units(dataset)

    def _summing(self, dataset: Dataset) -> tuple[Driver[TunedProblem, TunedState], TunedProblem]:
        reference, penalty = self._reference_and_penalty()
        return driver_of(self.loss), self._tuned_problem(dataset, reference, penalty, self._target_units(dataset))

    def _reference_and_penalty(self) -> tuple[FeatureMap, DensityPenalty]:
        """The frequencies with amplitudes of the reference kernel, and the penalty of densities on them."""
        size = self.feature_map_.n_frequencies
        reference = replace(self.feature_map_, amplitudes=np.full(size, 1.0 / np.sqrt(size)))
        return reference, self._planned_penalty(size) if self._plan else self._penalty(self._meta_spectrum(reference))

    def _weigh(self, dataset: Dataset, start: Start | None = None) -> None:
        """Learn density and model on the present frequencies."""
        self.total_weight_ = dataset.total_weight
        reference, penalty = self._reference_and_penalty()
        if self.solver == "adam":
            self._descend(dataset, reference, penalty)
        else:
            self._solve(dataset, reference, penalty, start)

    def _solve(self, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty, start: Start | None) -> None:
        """The optimum by full gradients on block sums."""
        # lam is relative to the mean loss, so numeric targets are scaled to a variance of 1
        scale, driver = self._target_units(dataset), driver_of(self.loss)
        problem = replace(self._tuned_problem(dataset, reference, penalty, scale), start=start)

        def keep(learner: TunedLearner, state: TunedState) -> None:
            optimum = in_own_units(TunedSolution.of(problem, state), scale)
            learner._keep(reference, optimum, [dict(line) for line in state.history])

        # stored sums of unchanged blocks are read instead of computed
        if self.sums is not None:
            keep(self, self._state_of_sums(driver, problem, dataset, "solver"))
            return
        state = self._run(driver, problem, dataset, "solver", keep=keep)
        is_open = state.gap > problem.tol * state.objective and not state.was_stopped
        # the squared error is solved to rounding, whatever tol is
        if is_open and not problem.loss_row.takes_one_pass:
            warn_user(f"{type(self).__name__} ended above tol: {state.message}")

    def _descend(self, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty) -> None:
        """Epochs of Adam, and a last pass that bounds the distance of their model from the optimum."""
        problem = self._linear_problem(dataset, reference)
        patience = self.patience if self.early_stopping else None
        descent = Descent(self.epochs, self.learning_rate, patience, self.shared_density)

        def keep(learner: TunedLearner, fit: AdamFit, end: TunedSolution, scale: TargetScale | None) -> None:
            # models that share a density have a single row of it
            density = fit.model.density[0] if self.shared_density else fit.model.density
            end = replace(end, density=density, message=fit.message(end.objective, end.gap))
            learner._keep(reference, in_own_units(end, scale), fit.history())

        def so_far(fit: AdamFit) -> TunedLearner:
            """A copy with the current model: its objective is the mean of the last batches, and it has no bound."""
            learner, model, unknown = copy.copy(self), fit.model, float("nan")
            last = float(fit.trace[-1])
            unjudged = TunedSolution(model.coef, model.intercept, model.density, last, unknown, unknown, "")
            keep(learner, fit, unjudged, self._adam_units(dataset, fit))
            return learner

        # subscribers may request the model after each epoch
        run = replace(self._running("descent"), estimator=so_far)
        if not penalty.separable:
            # the driver has the matrix of the penalty during all epochs
            run.holds({"density": density_bytes(reference.n_frequencies)})
        fit, stats = fit_by_adam(problem, penalty, dataset.source, run, descent)
        scale = self._adam_units(dataset, fit)
        # Adam only knows the losses of minibatches, so one pass computes the objective and a bound of the optimum
        record = judging_record(reference, newton_targets(problem, scale), fit.model, self.loss, dtype=self.dtype)
        passed: PassResult = run.read(dataset.source, [record], lambda passed: passed, None)
        self.stats_.extend([*stats, passed.stats])
        keep(self, fit, judged(passed.results[0], fit.model, self.loss, self.lam, penalty), scale)

    def _adam_units(self, dataset: Dataset, fit: AdamFit) -> TargetScale | None:
        """The units in which the epochs have fitted numeric targets; None for labels."""
        return None if dataset.classes is not None else fit.units

    def _target_units(self, dataset: Dataset) -> TargetScale | None:
        """Mean and standard deviation of numeric targets, in whose units they are fitted; None for labels.

        With `sums` they stay those of the first fit, so that the stored sums of unchanged blocks can be used again.
        """
        if self.sums is not None and hasattr(self, "target_units_"):
            return TargetScale(*self.target_units_)
        units = target_units(dataset, self._running("targets"))
        if units is not None and self.sums is not None:
            self.target_units_: np.ndarray = np.stack([units.center, units.scale])
        return units

    def _meta_spectrum(self, reference: FeatureMap) -> MetaSpectrum:
        """The eigenvalues and vectors of the meta-kernel on the frequencies of `reference`."""
        # with the median distance, a density is smoothed over neither all frequencies nor none
        W, length = reference.projection.dense(), self.length_scale
        if length is None:
            length = median_distance(W) if len(W) > 1 else 1.0
        return meta_spectrum(W, self.meta_kernel, length_scale=length)

    def _penalty(self, spectrum: MetaSpectrum) -> DensityPenalty:
        """The penalty of the density, Lam/2 (u - c)'H(u - c) above the floor, from the parameters."""
        return DensityPenalty(spectrum, gamma=self.gamma, Lam=self.Lam, floor=self.density_floor, center=self.center)

    def _planned_penalty(self, n_frequencies: int) -> DensityPenalty:
        """A penalty of the right size with a spectrum of ones, since a plan must not compute the true one."""
        kernel = as_meta_kernel(self.meta_kernel, self.length_scale or 1.0)
        is_coupled = not isinstance(kernel, DeltaMetaKernel)
        vectors = np.broadcast_to(0.0, (n_frequencies, n_frequencies)) if is_coupled else None
        return self._penalty(MetaSpectrum(np.ones(n_frequencies), vectors))

    def _linear_problem(self, dataset: Dataset, reference: FeatureMap) -> LinearProblem:
        """The linear problem with targets, weights and held-out rows, for the stochastic solver."""
        return LinearProblem(
            feature_map=reference,
            loss=self.loss,
            alpha=self.lam,
            classes=dataset.classes,
            n_targets=dataset.schema.n_targets or 1,
            class_weight=self._class_weights(dataset),
            held_out=HeldOut(self.validation_fraction if self.early_stopping else 0.0, self.seed_),
            seed=self.seed_,
            dtype=self.dtype,
        )

    def _tuned_problem(
        self, dataset: Dataset, reference: FeatureMap, penalty: DensityPenalty, scale: TargetScale | None
    ) -> TunedProblem:
        """The problem of equation (22), for the full-gradient solver."""
        # stored sums may be those of other rows, whose number and units of targets are not known here
        keeps_sums = self.sums is not None
        return TunedProblem(
            reference,
            newton_targets(self._linear_problem(dataset, reference), scale),
            weight_of(dataset, self._class_weights(dataset)),
            self.loss,
            self.lam,
            penalty,
            tol=self.tol,
            max_passes=self.max_passes,
            shared=self.shared_density,
            dtype=self.dtype,
            n_rows=None if keeps_sums else dataset.n_rows,
            deviations=deviations if keeps_sums and dataset.classes is None else None,
        )

    def _start(self, dataset: Dataset) -> Start | None:
        """The model and density of the last fit, with `warm_start`, for the amplitudes of the reference kernel."""
        names = ("n_features", "family", "reference_scale", "scaling", "dtype", "shared_density")
        if not goes_on(self, dataset, names):
            return None
        # stored coefficients are for amplitudes sqrt(u / D), the solver's for 1 / sqrt(D), as in `_keep`
        root = np.sqrt(np.atleast_2d(self.density_).mean(axis=0))
        models = np.concatenate([self.coef_ * np.tile(root, 2), self.intercept_[:, None]], axis=1)
        return models, np.atleast_2d(self.density_)

    def _keep(self, reference: FeatureMap, solution: TunedSolution, history: list[dict[str, float]]) -> None:
        """Set the fitted attributes: the feature map at the learned amplitudes, and coefficients for these."""
        self.history_ = history
        self.density_ = solution.density
        # the kernel of the model is mean_j u_j cos(w_j.(x - y)), equation (5), so a pair's amplitude is sqrt(u_j / D);
        # all classes share a feature map, with the mean of their densities
        u = np.atleast_2d(solution.density).mean(axis=0)
        root = np.sqrt(u)
        self.feature_map_ = replace(reference, amplitudes=root * reference.amplitudes)
        # a frequency without density has no weight either
        self.coef_ = solution.coef * np.tile(np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0), 2)
        self.intercept_ = solution.intercept
        self.objective_, self.residual_, self.duality_gap_ = solution.objective, solution.residual, solution.gap
        self.message_ = solution.message

    @property
    def _scorer(self) -> Scorer:
        """The linear model on the learned features."""
        return Scorer(self.feature_map_, self.coef_, self.intercept_, self.dtype)


def in_own_units(solution: TunedSolution, scale: TargetScale | None) -> TunedSolution:
    """A solution for standardised targets, converted to the units of the targets; for labels unchanged."""
    if scale is None:
        return solution
    coef, intercept = scale.in_own_units(solution.coef, solution.intercept)
    return replace(solution, coef=coef, intercept=intercept)


class TunedClassifier(ClassPredictions, TunedLearner):
    """A classifier with a learned kernel: random Fourier features with a learned density.

    Minimises, over the weights w of D cosine-sine pairs, an intercept b and the density u >= `density_floor` of the
    frequencies, the mean loss plus ``lam/2 sum_j |w_j|^2 / u_j + Lam/2 (u - c)' H (u - c)``, one class against the
    rest. The problem is convex. The model's kernel is ``k(x - y) = mean_j u_j cos(w_j.(x - y))``.

    Parameters
    ----------
    n_features : int
        The most output columns: each of the D frequencies has two.
    family : Family or None
        The reference kernel, whose frequencies are drawn; None is ``Gaussian()`` with the median bandwidth.
    reference_scale : float or None
        The bandwidth of the family; None keeps its own.
    loss : {"hinge", "squared_hinge", "squared_error"}
        The paper's problem is convex for every convex loss. Others (the log loss, epsilon-insensitive errors) are
        missing since the solver ends at a certified duality gap: they would need a sum of conjugates at scaled dual
        weights in each pass, and the log loss a Newton step with its own curvature; they would be rows of
        `dkl.methods.density.loss_table`.
    lam : float
        Strength of the penalty on the weights; search it, down to 1e-10 if targets have no noise.
    Lam : float
        Strength of the penalty on the density; search it from 1e-5 to 1. ``float("inf")`` gives plain random features.
    gamma : float
        Smoothing of the density; its scale is that of the meta-kernel's eigenvalues over D.
    meta_kernel : {"rbf", "matern", "polynomial", "delta"} or MetaKernel
        The kernel between frequencies that defines which densities are smooth; "delta" treats each separately.
    length_scale : float or None
        The length scale of a meta-kernel given by name, in units of frequencies; None is their median distance.
    density_floor : float
        The least density: 1 as in the paper's section 5.
    center : float
        The density without penalty: 1 is that of the reference kernel. 0 with ``meta_kernel="delta"`` and
        ``density_floor=0`` is Fourier kernel learning.
    shared_density : bool
        Whether all classes share one density.
    solver : {"full", "adam"}
        "full": to the optimum, by full gradients from block sums. "adam": minibatches, with one pass for each epoch
        (section 5).
    tol : float
        Only for "full": the relative duality gap at which the fit ends.
    max_passes : int
        Only for "full": the most passes over the rows. Where they end the solver above `tol`, a warning has the gap.
    epochs : int or None
        Only for "adam"; None is 10, and more on few rows.
    learning_rate : float
        Only for "adam": the initial learning rate.
    early_stopping : bool
        Only for "adam": stop when the held-out loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for it.
    patience : int
    sums : path, URL or None
        Only for half squared error in float64: a folder that stores the sums of each block of a Dataset, so that
        `update` reads only changed blocks; all workers must be able to write to it. A block has up to 64 MiB, so there
        may be at most 4,094 columns.
    warm_start : bool
        Only for "full" with a hinge: `fit` starts from the model of the last fit, with the same frequencies, bandwidth
        and scaler; the optimum is the same.
    scaling : {None, "auto", "standard", "minmax", "unit", "quantile", "counts"}
        How columns are scaled first; "unit", as in the paper, divides rows by the largest norm.
    max_rows : int or None
        Use at most this many rows.
    class_weight : dict, "balanced" or None
    dtype : {"float64", "float32"}
        Of frequencies and features.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where the states of a fit are stored, so that an interrupted fit resumes to the same bits.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may use; a fit that needs more is refused.

    Attributes
    ----------
    density_ : ndarray of shape (D,), or (K, D) with ``shared_density=False``
        u, the density of each frequency relative to the reference kernel's.
    feature_map_ : FeatureMap
        With the learned amplitudes sqrt(u_j / D): products of the features that `transform` returns are the learned
        kernel (with the mean density, if each class has its own).
    frequencies_ : ndarray of shape (D, d)
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        For these features; K is 1 for two classes.
    objective_, residual_, duality_gap_ : float
        The final objective, the largest violation of the optimality conditions, and an upper bound of the distance of
        the objective from its minimum.
    history_ : list of dict
        One line for each round or epoch.
    bounds_ : Bounds
        The eigenvalue bound of the penalty, and the schedules of its parameters, as in `bounds`.
    message_ : str
        Why the fit ended.
    classes_ : ndarray of shape (K,)
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Shilton, Gupta, Rana, Arun Kumar & Venkatesh 2022, "TRF: Learning kernels with tuned random features", (22).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.density.learner import TunedClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = TunedClassifier(n_features=100, scaling="standard", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = TUNED
    _task: ClassVar[TaskChoice] = "classification"

    def _check_targets(self, dataset: Dataset) -> None:
        if dataset.classes is not None:
            check_whole_labels(dataset.classes, "TunedRegressor")


@estimator
class TunedRegressor(NumberPredictions, TunedLearner):
    """A regressor with a learned kernel: random Fourier features with a learned density.

    The problem is that of `TunedClassifier` with half squared error, for standardised targets, one or several;
    predictions are in units of the targets. The full solver needs one pass.

    Parameters
    ----------
    n_features, family, reference_scale
        As in `TunedClassifier`.
    loss : {"squared_error"}
        Half the squared error, of targets in units of their standard deviation. Other losses, such as
        epsilon-insensitive errors, would be convex, too: see `TunedClassifier` for why they are missing.
    lam, Lam, gamma, meta_kernel, length_scale, density_floor, center, shared_density
        As in `TunedClassifier`; the density is shared by all targets, or there is one for each.
    solver, tol, max_passes, epochs, learning_rate, early_stopping, validation_fraction, patience, sums
        As in `TunedClassifier`.
    scaling, max_rows, dtype, device, random_state, checkpoint, progress, memory_limit
        As in `TunedClassifier`.

    Attributes
    ----------
    density_, feature_map_, frequencies_, coef_, intercept_, objective_, residual_, duality_gap_, history_, message_
        As in `TunedClassifier`, with K the number of targets; coefficients and intercepts are in units of the targets.
    target_units_ : ndarray of shape (2, t)
        The mean and deviation by which the targets of stored sums are standardised; with `sums` only.
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Shilton, Gupta, Rana, Arun Kumar & Venkatesh 2022, "TRF: Learning kernels with tuned random features", (22).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dkl.methods.density.learner import TunedRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TunedRegressor(n_features=100, lam=1e-2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.4)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = TUNED_REGRESSOR
    _task: ClassVar[TaskChoice] = "regression"

    loss: Literal["squared_error"] = "squared_error"
    warm_start: ClassVar[bool] = False  # type: ignore[misc]
    class_weight: ClassVar[None] = None  # type: ignore[misc]

    def _has_one_target(self) -> bool:
        """Whether predictions have no second axis."""
        return len(self.coef_) == 1
