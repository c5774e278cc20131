"""FeatureLearner, the scikit-learn transformer behind every feature learner: fits, checkpoints, plans, `transform`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, replace
from functools import cache, partial
from typing import Any, ClassVar, Self

import dask
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dkl.atomic import forget_fit
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.rows import GroupsAndTimes
from dkl.documented import DocumentedMixin
from dkl.errors import columns_named, refuse_non_finite
from dkl.features.families import Family, is_count
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.features.scaling import ScalingChoice
from dkl.kernels.maps import map_rows_on_all_cores
from dkl.linear.answers import map_chunk
from dkl.linear.minibatches import HeldOut
from dkl.linear.scores import TOO_LARGE
from dkl.methods.callbacks import CallbackSupportMixin, called_back
from dkl.methods.checkpoints import run_fingerprint, run_of, run_parts, stored_seed
from dkl.methods.choice import Estimator, FeatureChoice, choose_features
from dkl.methods.fit_context import FitContext
from dkl.methods.parameters import (
    ClassWeight,
    Constraints,
    Progress,
    RandomState,
    StorePath,
    bandwidth_factors,
    check_parameters,
    class_weights,
    columns_a_frequency,
    estimator,
    family_of,
    family_parameters,
    kept_frequencies,
    with_parameters,
)
from dkl.methods.potential_sums import PotentialProblem, PotentialState
from dkl.methods.preparation.driver import PreparationDriver, PreparationProblem
from dkl.methods.preparation.learner import draw_pool, preparation_problem, tell_of_heavy_tails
from dkl.methods.provenance import recorded, recorded_device
from dkl.methods.refining import judging_share
from dkl.methods.room import PlannedMixin, check_plan, check_room
from dkl.methods.saving import SavingMixin
from dkl.methods.updating import Updated
from dkl.methods.validation import (
    column_names_of,
    first_targets,
    lazy_answers,
    rows_like_those_of_fit,
    rows_to_fit,
    rows_with_category_numbers,
)
from dkl.passes.devices import check_device
from dkl.passes.loop import ColumnStore, PlanEndsError, PlannedRun, Run
from dkl.progress import resolve_progress
from dkl.protocols.driver import Driver
from dkl.solvers.losses import LOG_LINK

# Share of the rows held out for target means of categories, for learners that hold out no rows themselves.
_JUDGING_SHARE = 0.1
# Within `replayed_once`: the replayed copy of a learner and its plan, by class, rows and parameters.
_REPLAYED: ContextVar[dict[Any, Any] | None] = ContextVar("replayed", default=None)


@contextmanager
def replayed_once() -> Iterator[None]:
    """Replay equal learners once inside, and share their plans.

    The same features are parts of many candidates of a choice.
    """
    before = _REPLAYED.set({})
    try:
        yield
    finally:
        _REPLAYED.reset(before)


@estimator
class CommonParameters:
    """The parameters that all feature learners have; `RandomFeatures` documents them."""

    _: KW_ONLY
    scaling: ScalingChoice | None = None
    max_rows: int | None = None
    class_weight: ClassWeight = None
    dtype: str = "float32"
    device: str = "auto"
    random_state: RandomState = None
    checkpoint: StorePath = None
    progress: Progress = None
    memory_limit: int | str | None = None


class FeatureLearner(
    CommonParameters, PlannedMixin, SavingMixin, DocumentedMixin, CallbackSupportMixin, TransformerMixin, BaseEstimator
):
    """Base class of feature learners: validation, passes, `transform`; a subclass implements `_learn`."""

    _parameter_constraints: ClassVar[Constraints] = {}
    _supervised: ClassVar[bool] = False
    _task: ClassVar[TaskChoice] = "auto"
    # Parameters that are objects with parameters of their own, such as ``family__sigma``.
    _parts: ClassVar[tuple[str, ...]] = ("family",)
    # Whether frequencies are optimised on the rows. Such frequencies fit these rows too well to be judged on them,
    # while a draw from a pool depends on them so little that it may be.
    _searches: ClassVar[bool] = False
    # Settings of the last fit by a machine; `fit_within` replaces them.
    _context: FitContext = FitContext()
    # Records the passes of a plan; None in a fit.
    _plan: PlannedRun | None = None
    # Identifies the fit in its checkpoints; "" if states are not saved.
    _fingerprint: str = ""

    family: Any
    n_features: int | None
    seed_: int
    stats_: list[Any]

    def fit(
        self,
        X: object,
        y: object = None,
        sample_weight: object = None,
        *,
        groups: object = None,
        times: object = None,
    ) -> Self:
        """Learn the feature map.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
            Data frames are raw rows and are encoded; everything else holds encoded rows.
        y : array of shape (n,) or (n, t), or None
            Labels or targets; None for a Dataset, which has its own.
        sample_weight : str, array of shape (n,), or None
            Frequency weights: weight 2 is the row twice, weight 0 a row that is not there. A name is a column of a data
            frame, which is then not used as a feature.
        groups : str, array of shape (n,), or None
            The group of each row: rows of one group are held out together, wherever the fit holds rows out. A name is a
            column of a data frame, which is then not used as a feature.
        times : str, array of shape (n,), or None
            Numbers or dates: the newest rows are held out. A column of a data frame stays a feature; to exclude it,
            pass its values and drop it from the frame.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the rows are invalid; before any pass.
        RuntimeError
            If ``device="gpu"`` and a process that computes on blocks has no GPU; before any row is read.
        """
        with recorded(self) as learner, called_back(learner, X, y, sample_weight):
            check_parameters(learner)
            if not getattr(learner, "warm_start", False):
                forget_fit(learner)
            learner._check_rest()
            check_device(learner.device)
            row_columns = GroupsAndTimes(X, groups, times)
            sample_weight = row_columns.weights(sample_weight)
            # counts are whole numbers, which would be taken for labels otherwise
            task: TaskChoice = "regression" if getattr(learner, "loss", None) in LOG_LINK else learner._task
            y = learner._given_targets(y)
            dataset = rows_to_fit(learner, row_columns, y, sample_weight, supervised=learner._supervised, task=task)
            learner.encoding_ = dataset.encoding
            learner._fingerprint = run_fingerprint(learner, dataset, learner._context)
            learner.seed_ = stored_seed(
                learner.random_state, learner.checkpoint, learner._fingerprint, run_parts(learner, dataset)
            )
            if not learner._context.for_machine:
                check_plan(learner, dataset, recorded_device(learner.device), resolve_progress(learner.progress))
            dataset = rows_with_category_numbers(
                learner, dataset, learner._judging_rows(dataset), learner._running("categories")
            )
            learner.stats_ = []
            learner._learn(learner._used(dataset))
            # sums over huge values overflow; a model of NaN would predict the same for every row
            refuse_non_finite(getattr(learner, "coef_", 0.0), "the coefficient of feature", TOO_LARGE)
        return self

    def _used(self, dataset: Dataset) -> Dataset:
        """The rows that features are learned from: a sample of `max_rows`, or all."""
        return dataset if self.max_rows is None else dataset.thin(self.max_rows, self.seed_)

    def fit_within(self, dataset: Dataset, context: FitContext) -> Self:
        """Learn the feature map as a part of a machine's fit.

        Parameters
        ----------
        dataset : Dataset
        context : FitContext
            Settings of the machine for this fit, in addition to parameters.
        """
        self._context = context
        return self.fit(dataset)

    def transform(self, X: object, *, strict: bool = False) -> Any:
        """Map rows to their features.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Raise an error for raw rows that differ from the rows of `fit`, instead of mapping them with a warning.

        Returns
        -------
        ndarray of shape (n, n_features), or a lazy dask.array.Array for Dask collections and Datasets
            In the learner's `dtype`: all cosines, then all sines, for pairs.
        """
        check_is_fitted(self)
        return self._mapped(X, self.dtype, strict=strict)

    def _mapped(self, X: Any, dtype: str, *, strict: bool = False) -> Any:
        """The features of rows: an array for rows in memory, a lazy Dask array for Dask collections and Datasets."""
        feature_map = self.feature_map_
        if not isinstance(X, Dataset) and not dask.is_dask_collection(X):
            encoded = rows_like_those_of_fit(self, X, strict=strict)
            with columns_named(column_names_of(self)):
                return map_rows_on_all_cores(encoded, feature_map, dtype)
        map_rows = partial(map_chunk, feature_map=feature_map, precision=dtype)
        return lazy_answers(self, X, map_rows, feature_map.n_features, dtype, strict=strict)

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Parameter names from the signature of `__init__`, as in scikit-learn, read once, since that is slow."""
        return super()._get_param_names()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` the parameters of the family too, as ``family__sigma``."""
        parameters = super().get_params(deep=deep)
        for part in self._parts if deep else ():
            of_part = family_parameters(self._part(part))
            parameters.update({f"{part}__{name}": value for name, value in of_part.items()})
        return parameters

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters; ``family__sigma=2.0`` gives the learner a changed copy of its family.

        Raises
        ------
        ValueError
            For a name that is no parameter.
        """
        # Families are frozen, so that one may be shared by learners: a changed parameter makes a changed copy.
        own = dict(parameters)
        for part in self._parts:
            of_part = {name: own.pop(name) for name in parameters if name.startswith(f"{part}__")}
            if of_part:
                changed = {name.removeprefix(f"{part}__"): value for name, value in of_part.items()}
                own[part] = with_parameters(own.get(part) or self._part(part), changed)
        super().set_params(**own)
        return self

    def replayed(self, dataset: Dataset) -> PlannedRun:
        """The passes of `fit`: the same `_learn`, with a run that records them and reads no row."""
        return self._replay(dataset)[1]

    def _replay(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """A copy on which `_learn` has set what it sets without rows, and the passes that it would run."""
        check_parameters(self)
        self._check_rest()
        learner = copy.copy(self)
        # the plan does not depend on the seed, reuses nothing from other fits, and saves no state
        learner.seed_, learner._fingerprint, learner.stats_ = 0, "", []
        learner._context = replace(self._context, prepared=None, metric=None)
        learner._plan = plan = PlannedRun(n_rows=dataset.n_rows)
        with suppress(PlanEndsError):
            learner._learn(learner._used(dataset))
        learner._plan = None
        return learner, plan

    def planned(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """A copy with the feature map of `planned_map`, and the passes that lead to it, for plans of what follows.

        Within `replayed_once` equal learners share them.
        """
        known = _REPLAYED.get()
        if known is None or "_context" in vars(self):
            return self._planned(dataset)
        key = type(self), id(dataset), repr(sorted(self.get_params(deep=False).items()))
        if key not in known:
            known[key] = self._planned(dataset)
        learner, plan = known[key]
        return copy.copy(learner), plan

    def _planned(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        learner, plan = self._replay(dataset)
        learner.feature_map_ = self.planned_map(learner._used(dataset))
        for problem in (each for each in plan.problems if isinstance(each, PreparationProblem)):
            # scaling rows takes a part of the time of every pass
            scaler = PreparationDriver().planned(problem).scaler(problem)
            learner.feature_map_ = replace(learner.feature_map_, scaler=scaler)
        return learner, plan

    def planned_features(self, dataset: Dataset) -> int:
        """The most features that a fit to these rows can have; 0 where no parameter gives their number."""
        size: Any = getattr(self, "n_features", None)
        return int(size) if is_count(size) else 0

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A feature map of the largest size that `fit` can learn, with arbitrary frequencies, to plan later passes.

        A replay ends at the last driver, whose results alone would say how many features there are.
        """
        family = self._planned_family()
        size = self._n_frequencies(family)
        # the size is checked before anything is drawn, since a plan must not use the memory that it warns of
        check_room(self, size, dataset.n_columns, n_mapped=dataset.n_rows)
        return family.draw(size, dataset.n_columns, 0, self.dtype)

    @property
    def frequencies_(self) -> np.ndarray | sparse.csr_array:
        """The frequencies that the feature map keeps, of shape (m, d); a csr_array where most of them are sparse."""
        return formed(self.feature_map_.projection)

    @property
    def scaler_(self) -> Any:
        """The fitted scaler, or None."""
        return self.feature_map_.scaler

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """A name for each column of the mapped rows.

        Features of at most three columns are named after these: ``cos(age, bmi)``, ``bmi > 31.5``; several features of
        the same columns are numbered. The others have the learner's name and their number.

        Parameters
        ----------
        input_features : array-like of str or None
            Names of the columns of the rows, for a learner that was fitted on rows without names; None is
            ``x0, x1, ...``.

        Returns
        -------
        ndarray of shape (n_features,), str objects

        Raises
        ------
        ValueError
            If `input_features` are not the names of the columns of `fit`.
        """
        check_is_fitted(self, "feature_map_")
        # the checked names of the columns of X
        names = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        encoding = getattr(self, "encoding_", None)
        if encoding is not None and (not encoding.array_dtype or encoding.n_columns != len(names)):
            # encoded columns have names of their own: one column of a table, or of an array with missing values, may
            # become several
            names = encoding.column_names
        columns = [str(name) for name in names]
        return np.array(self.feature_map_.names(columns, type(self).__name__.lower()), dtype=object)

    @property
    def _n_features_out(self) -> int:
        return self.feature_map_.n_features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # missing values of arrays in memory are filled, as in frames
        tags.input_tags.allow_nan = True
        tags.target_tags.required = self._supervised
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _part(self, name: str) -> Any:
        """The object that is the value of a parameter in `_parts`."""
        return family_of(self) if name == "family" else getattr(self, name)

    def _prior(self) -> Any:
        """The law of the frequencies."""
        return family_of(self)

    def _n_frequencies(self, family: Family) -> int:
        """The number of frequencies that fit into `n_features` columns; raises ValueError if none does."""
        n_features: Any = self.n_features
        return kept_frequencies(type(self).__name__, n_features, family)

    def _planned_family(self) -> Any:
        """The family, with an arbitrary bandwidth where it needs one."""
        family = self._prior()
        return family.with_bandwidth(1.0) if family.needs_bandwidth else family

    def _judging_rows(self, dataset: Dataset) -> HeldOut:
        """The held-out rows of this fit, whose targets enter the numbers of no other row's categories."""
        withheld = self._context.withheld
        return withheld or HeldOut(judging_share(self, dataset.source) or _JUDGING_SHARE, self.seed_)

    def _given_targets(self, y: object) -> object:
        """The targets that were passed to `fit`, as the learner takes them."""
        return y

    def _check_rest(self) -> None:
        """Check parameters beyond their declared constraints, such as combinations of them."""

    def _learn(self, dataset: Dataset) -> None:
        """Run the passes over the rows, and set `feature_map_` and the other fitted attributes."""
        raise TypeError(f"{type(self).__name__} does not say how it learns")

    def _check_targets(self, dataset: Dataset) -> None:
        """Raise ValueError for targets that the method does not support."""

    def _take_targets(self, dataset: Dataset) -> None:
        """Check the targets, and set `classes_` if they are labels."""
        self._check_targets(dataset)
        if dataset.classes is not None:
            self.classes_ = dataset.classes

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        """The weight of each class, (K,); None for equal weights.

        Raises
        ------
        ValueError
            If weights are given for numeric targets.
        """
        if self.class_weight is None:
            return None
        # "balanced" needs the total weight of each class, for which a view must read its targets
        if dataset.classes is not None and dataset.class_weights is not None:
            return class_weights(self.class_weight, dataset.classes, np.asarray(dataset.class_weights))
        raise ValueError("class_weight has a meaning for class labels only; these targets are numbers")

    def _prepare(self, dataset: Dataset) -> Any:
        """Return the scaler and set `family_` with its bandwidth, by one pass if either depends on the rows."""
        family, problem = self._prior(), self._preparation(dataset)
        state = self._context.once(
            (dataset.source, problem.key), lambda: self._run(PreparationDriver(), problem, dataset, "preparation")
        )
        self.family_ = copy.copy(family) if state.sigma is None else family.with_bandwidth(state.sigma)
        if state.heavy is not None and self._context.hints and not self._context.is_pilot:
            tell_of_heavy_tails(state.heavy, dataset)
        return state.scaler(problem)

    def _preparation(self, dataset: Dataset) -> PreparationProblem:
        """The problem of finding scaler and bandwidth from the rows."""
        return preparation_problem(dataset, self._prior(), self.scaling, self.seed_)

    def _running(self, stage: str) -> Run:
        """Settings for passes, with the checkpoint of a stage; in a plan the run that records passes."""
        return self._plan or run_of(self, stage, self._fingerprint)

    def _run(
        self,
        driver: Driver[Any, Any],
        problem: object,
        dataset: Dataset,
        stage: str,
        columns: ColumnStore | None = None,
        *,
        keep: Callable[[Self, Any], None] | None = None,
    ) -> Any:
        """Run a driver and return its final state; the statistics of its passes are appended to `stats_`.

        `keep` stores a state in the fitted attributes of a learner: of this one at the end, and of copies for callbacks
        that need the unfinished model.
        """

        def learner_so_far(state: object) -> FeatureLearner:
            """A copy of this learner with the fitted attributes of an unfinished state."""
            learner = copy.copy(self)
            if keep is not None:
                keep(learner, state)
            return learner

        model = None if keep is None or self._context.is_pilot else learner_so_far
        with columns_named(dataset.column_names):
            state, stats = self._running(stage).drive(driver, problem, dataset.source, columns, model)
        self.stats_.extend(stats)
        if keep is not None and self._plan is None:
            keep(self, state)
        return state


class PoolLearner(FeatureLearner):
    """A learner that weights a pool of candidates, `pool_`, and keeps a few; a subclass computes the weights."""

    n_candidates: int | None
    sigma_factors: Any

    @property
    def candidates_(self) -> np.ndarray | sparse.csr_array:
        """All candidate frequencies, of shape (D, d), formed on access; a csr_array where most are sparse."""
        return formed(self.pool_.projection)

    @property
    def phases_(self) -> np.ndarray:
        """The phases of the candidates, of shape (D,), for families that have them."""
        if self.pool_.phases is None:
            raise AttributeError(f"{self.family_!r} has no phases")
        return self.pool_.phases

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A feature map of the largest size that `fit` can learn: the whole pool if it may keep all candidates."""
        family = self._planned_family()
        if self.n_features is None or self._pool_features(family, dataset) < self.n_features:
            return self._draw(family, dataset, seed=0)
        return super().planned_map(dataset)

    def _pool_features(self, family: Family, dataset: Dataset) -> int:
        """The number of features of all candidates."""
        size = self._pool_size(family)
        if size is None:
            return self._draw(family, dataset, seed=0).n_features
        return size * len(self._factors) * columns_a_frequency(family)

    @property
    def _factors(self) -> tuple[float, ...]:
        """The factors on the bandwidth, at each of which candidates are drawn."""
        return bandwidth_factors(type(self).__name__, self.sigma_factors)

    def _draw(self, family: Family, dataset: Dataset, *, seed: int) -> FeatureMap:
        """Draw the candidates from the family, at each bandwidth factor in turn, if they fit in memory."""
        size = self._pool_size(family)
        check_room(self, size, dataset.n_columns)
        return draw_pool(family, size, dataset.n_columns, seed=seed, dtype=self.dtype, factors=self._factors)

    def _draw_for(self, dataset: Dataset) -> None:
        """Set `pool_`, after the pass that finds the scaling of the rows and the bandwidth of the family."""
        scaler = self._prepare(dataset)
        self.pool_ = replace(self._draw(self.family_, dataset, seed=self.seed_), scaler=scaler)

    def _pool_size(self, family: Family) -> int | None:
        """The number of candidates to draw; None takes every feature of a finite family once."""
        return self.n_candidates

    @property
    def _n_kept(self) -> int | None:
        """The most candidates that the feature map keeps; None without a limit."""
        # a pair has two of the columns that `n_features` bounds
        return None if self.n_features is None else self.n_features // self.pool_.columns_a_frequency

    def _choose(self) -> None:
        """Set `feature_map_` from the stored weights of the candidates."""
        raise TypeError(f"{type(self).__name__} does not say how it chooses")

    def _keep(self, choice: FeatureChoice) -> None:
        """Set the feature map of a choice, with amplitudes scaled to the family's kernel."""
        # the family's factor c, for which c^2 phi(x).phi(y) is the kernel in expectation
        scale = self.family_.feature_scale(self.pool_.n_columns)
        self.feature_map_ = self.pool_.take(choice.index, scale * choice.amplitudes)

    def _chosen_again(self, **parameters: Any) -> Self:
        """A fitted copy with other parameters of the choice (None keeps one), without a pass."""
        check_is_fitted(self)
        changed = {name: value for name, value in parameters.items() if value is not None}
        # the values of all candidates are stored, so only the choice among them is repeated
        other = copy.copy(self).set_params(**changed)
        check_parameters(other)
        other._check_rest()
        other._choose()
        return other


class SelectingLearner(Updated, PoolLearner):
    """A learner that weights its candidates by class sums from one pass over the rows.

    A subclass names its driver, defines the problem of the pass, and turns its result into weights.
    """

    _supervised: ClassVar[bool] = True
    _driver: ClassVar[Driver[PotentialProblem, PotentialState]]

    estimator: Estimator

    def _learn(self, dataset: Dataset) -> None:
        self._take_targets(dataset)
        self._class_weights(dataset)
        self._draw_for(dataset)
        # float32 sums lose the variation of large targets, unless a number near their mean is subtracted first
        self.target_pivot_ = None if self._plan else first_targets(dataset)
        if self._context.weighs:
            self._weigh(dataset)

    def _summing(self, dataset: Dataset) -> tuple[Driver[PotentialProblem, PotentialState], PotentialProblem]:
        problem = self._problem(dataset)
        return self._driver, replace(problem, class_weight=self._class_weights(dataset), pivot=self.target_pivot_)

    def _weigh(self, dataset: Dataset) -> None:
        """Compute the value of each candidate in one pass over the rows, then choose."""
        state = self._state_of_sums(*self._summing(dataset), dataset, "potentials")
        self.total_weight_ = state.total
        self._keep_values(state)
        self._choose()

    def _problem(self, dataset: Dataset) -> PotentialProblem:
        """The sums that the pass over the rows computes."""
        schema = dataset.schema
        return PotentialProblem(self.pool_, schema.n_classes, n_outputs=schema.n_targets or 1, dtype=self.dtype)

    def chosen(self, weights: np.ndarray) -> FeatureChoice:
        """The choice of candidates by the weights of their blocks, (n_blocks,)."""
        groups = self.pool_.groups
        return choose_features(weights, self._n_kept, self.seed_, estimator=self.estimator, groups=groups)

    def _keep_values(self, state: PotentialState) -> None:
        """Store the values of the candidates (m,) under the method's attribute names."""
        raise TypeError(f"{type(self).__name__} does not say what the values of its pass are")
