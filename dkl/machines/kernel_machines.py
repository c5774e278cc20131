"""KernelClassifier and KernelRegressor: `fit` learns the features, and fits a linear model on the mapped rows.

From `fit` to a sine, once the features are learned, in a last fit by exact steps (`tests/test_architecture.py` checks
that these functions exist):

    machines/kernel_machines.py: KernelMachine.fit, KernelMachine._learn_and_fit, KernelMachine._fit_linear
    linear/fitting.py: fit_by_newton, newton_state
    linear/head.py: NewtonDriver.request, NewtonDriver.step
    passes/loop.py: Run.drive, run_pass, sum_blocks
    kernels/normal_equations.py: newton_block, newton_sums
    kernels/maps.py: row_mapper
    kernels/sincos.py: write_waves

Before it, ``features="auto"`` settles loss, solver and rule of penalties (`machines/settings.py`: the squared error,
exact steps, "auto"), takes advice on scaling, bandwidth and size (`suggest.py`), and makes the kinds of features from
it (`contenders.py`). It tries them on held-out rows, by the same passes, within a budget of counted work (`effort.py`):
`Choice` (`choice.py`) asks `Race.trials` (`contest.py`) for the next candidate, and `Bench.trial` (`trials.py`) learns
its features, by their own `fit`, and compares the penalties of `linear/judge.py` on them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.atomic import atomic, forget_fit
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.exposure import (
    Exposure,
    exposure_for_scores,
    exposure_of_fit,
    exposure_values,
    exposures_of,
    further_rates,
    with_exposure_of_fit,
    with_rates,
)
from dkl.data.together.messages import warn_of_random_folds
from dkl.data.together.rows import GroupsAndTimes
from dkl.documented import DocumentedMixin
from dkl.encodings.categories import WHY_NO_UPDATE, refuse_codes
from dkl.encodings.texts import has_scores
from dkl.events import Event, StopRequested
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.linear.answers import Scorer, deviations_of, means_of, probabilities, shaped
from dkl.linear.fitting import (
    NEWTON_LOSSES,
    LinearFit,
    LinearProblem,
    calibrate,
    default_stopping,
    fit_by_epochs,
    fit_by_newton,
    fit_further,
    with_coefficients,
)
from dkl.linear.head import most_log_loss_features
from dkl.linear.judge import PenaltyChoice, clear_gain, judging_folds, mean_over_folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.target_statistics import TargetScale
from dkl.machines.choice import Chosen, PlannedChoice, choose
from dkl.machines.contenders import has_columns_alone
from dkl.machines.contest import FEWEST_ROWS
from dkl.machines.effort import JUDGING_SHARE, Clock
from dkl.machines.given_linear import EstimatorScorer, check_given, fit_given, loss_of_given, with_sgd_coefficients
from dkl.machines.settings import (
    SGD_ALPHA,
    Knobs,
    OpenParameters,
    Settings,
    joint_name,
    settled,
    squared_loss,
)
from dkl.machines.trials import Bench, Sample, Terms
from dkl.machines.usual_time import UsualTime, seems_linear, usual_time
from dkl.methods.base import FeatureLearner
from dkl.methods.callbacks import CallbackSupportMixin, called_back
from dkl.methods.checkpoints import run_fingerprint, run_of, run_parts, stored_seed
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.fit_context import FitContext
from dkl.methods.offered import offered_unless
from dkl.methods.parameters import (
    CLASSIFIER,
    REGRESSOR,
    ClassWeight,
    Constraints,
    Progress,
    RandomState,
    StorePath,
    check_constraints,
    check_quantiles,
    class_weights,
    estimator,
)
from dkl.methods.predicting import ClassPredictions, NumberPredictions, blockwise, output_names, score_rows, with_row_id
from dkl.methods.provenance import record_rows, recorded
from dkl.methods.refining import judging_share
from dkl.methods.room import PlannedMixin, check_plan
from dkl.methods.saving import SavingMixin
from dkl.methods.scoring import check_log_rows, explained, mean_loss, quantile_score
from dkl.methods.updating import updatable
from dkl.methods.validation import (
    check_classes,
    check_columns,
    check_whole_labels,
    dataset_like_fit,
    one_dimensional,
    rows_to_fit,
    rows_with_category_numbers,
    without_splits,
)
from dkl.methods.warm_start import has_begun, working_start
from dkl.passes.devices import check_device
from dkl.passes.loop import PlannedRun, Run
from dkl.protocols.block import Block
from dkl.registry import LOSSES, PENALTY_RULES, learner_entry, learner_keys, losses_for
from dkl.solvers.losses import LOG_LINK, PROBABLE, loss_of
from dkl.solvers.round_losses import ROUND_LOSSES
from dkl.uncertainty.conformal import ConformalIntervals, ConformalMixin, ConformalSets, no_probabilities
from dkl.uncertainty.posterior import CoefficientPosterior

# Features of a pilot fit, which compares penalties: they rank as with all features.
_PILOT_FEATURES = 500
# The temperature and the shift of the intercepts (K,) that a choice of features has found; None where it has none.
Calibration = tuple[float | None, np.ndarray | None]
# The parameters by which a searching learner draws all of its features at random.
_DRAWN = {"plain_share": 1.0}


@estimator
class MachineParameters:
    """The parameters that both machines share, documented at `KernelClassifier`."""

    features: FeatureLearner | str | Sequence[FeatureLearner | str] | None = "auto"
    _: KW_ONLY
    linear: Any = None
    n_features: int | str = "auto"
    scaling: str | None = "auto"
    sigma: float | str = "auto"
    effort: str = "balanced"
    time_limit: float | None = None
    trials: Sequence[int] | None = None
    loss: str | None = None
    alpha: float | str | None = None
    epochs: int | None = None
    solver: str | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 3
    conformal_fraction: float | None = None
    by_group: str | None = None
    by_time: str | Literal[False] | None = None
    categorical: Sequence[str] | None = None
    drop_missing_target: bool = False
    device: str = "auto"
    random_state: RandomState = None
    checkpoint: StorePath = None
    progress: Progress = None
    memory_limit: int | str | None = None


class KernelMachine(
    MachineParameters, PlannedMixin, ConformalMixin, SavingMixin, DocumentedMixin, CallbackSupportMixin, BaseEstimator
):
    """The base of the classifier and the regressor: features, then a linear model on them."""

    _parameter_constraints: ClassVar[Constraints]
    _task: ClassVar[Any]
    _supervised: ClassVar[bool] = True
    _fitted_by: ClassVar[str] = "linear_"

    epsilon: float
    quantiles: Sequence[float]
    features_: FeatureLearner
    seed_: int
    reasons_: tuple[str, ...]
    summary_: str
    # from the last choice of features; `update` keeps it
    _calibration: Calibration = (None, None)

    def fit(
        self,
        X: object,
        y: object = None,
        sample_weight: object = None,
        *,
        groups: object = None,
        times: object = None,
        exposure: object = None,
    ) -> Self:
        """Learn the features, then fit the linear model on them.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
            Data frames are raw rows and are encoded; everything else holds encoded rows.
        y : array of shape (n,) or None
            Labels or targets; those of a Dataset are its own.
        sample_weight : str, array of shape (n,), or None
            Frequency weights: weight 2 is the row twice, weight 0 a row that is not there. A name is a column of a data
            frame, which is then not used as a feature.
        groups : str, array of shape (n,), or None
            The group of each row. Rows of one group are held out together, wherever the fit holds rows out. A name is a
            column of a data frame, which is then not used as a feature.
        times : str, array of shape (n,), or None
            Numbers or dates: the newest rows are held out. A column of a data frame stays a feature; to exclude it,
            pass its values and drop it from the frame.
        exposure : str, array of shape (n,), or None
            Only for ``loss="poisson"`` and "gamma": the amount that each row's target was counted over (years,
            customers, area), above 0. The model then predicts the target per unit of it. A name is a column of a data
            frame or of a Dataset, which is then not used as a feature; the model remembers it, and reads it from
            further rows to score them.

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
        with recorded(self) as machine, called_back(machine, X, y, sample_weight):
            clock = Clock(machine.time_limit)
            if not (goes_on := has_begun(machine.features, getattr(machine, "features_", None))):
                forget_fit(machine)
            dataset = machine._checked_rows(X, y, sample_weight, groups, times, exposure)
            settings = machine._settled_for(dataset)
            # a warm start holds out the same rows, and has its own checkpoints
            fingerprint = run_fingerprint(machine, dataset) + (" after a fit" if goes_on else "")
            if not goes_on:
                machine.seed_ = stored_seed(
                    machine.random_state, machine.checkpoint, fingerprint, run_parts(machine, dataset)
                )
            run = machine._running(fingerprint)
            dataset, held_out = machine._without_conformal_rows(dataset)
            # rows held out for intervals keep their counts, which with_rates would divide by the exposure
            dataset = with_rates(machine, dataset)
            check_plan(machine, dataset, run.device, run.publish, expects=not machine._chooses)
            weights = machine._class_weights(dataset)
            choice: PenaltyChoice | None = None
            changes: dict[str, Any] = {}
            advised: FeatureLearner | None = None
            calibration: Calibration = (None, None)
            if machine._chooses:
                chosen = choose(machine._terms(settings), dataset, weights, run, clock)
                dataset, judging_seed = chosen.columns.dataset, chosen.columns.judging_seed
                advised, choice, calibration = chosen.features, chosen.penalty, (chosen.temperature, chosen.shift)
                settings = replace(settings, loss=chosen.loss)
                machine.encoding_ = dataset.encoding
                machine.reasons_, machine.summary_ = chosen.reasons, chosen.summary
            else:
                # numbers in place of categories are learned without the judging rows: only these may judge comparisons
                given, judges = dataset, machine._judging_rows(dataset)
                dataset = rows_with_category_numbers(machine, dataset, judges, run)
                judging_seed = machine.seed_ if dataset is not given or has_scores(dataset.encoding) else None
            template = machine._unfitted_features(advised)
            folds = machine._judging_folds(settings, template, dataset) if choice is None else []
            if choice is None:
                choice, changes = machine._penalty_of_folds(
                    machine._terms(settings), template, folds, dataset, weights, run, judging_seed=judging_seed
                )
            # Several folds chose the penalty on pilot fits without their rows, so the final features may use all rows.
            withheld = folds[0] if len(folds) == 1 else None
            context = FitContext(withheld, for_machine=True, hints=not machine._chooses, judging_seed=judging_seed)
            last = machine.features_ if goes_on and not changes else None
            learner = machine._learner_of_stage(template, "features", last).set_params(**changes)
            # drawn features have not seen the target, so their learner has no useful coefficients to start from
            machine._learn_and_fit(
                settings, learner, dataset, weights, run, context, calibration, choice=choice, from_learner=not changes
            )
            n_features = machine.features_.feature_map_.n_features
            if machine._chooses and isinstance(machine.n_features, Integral) and n_features < machine.n_features:
                most = f"{machine.n_features:,}"
                machine.reasons_ += (f"Features: {n_features:,}, of the {most} that n_features allows at most.",)
            machine._score_conformal_rows(held_out)
        return self

    def _checked_rows(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        groups: object = None,
        times: object = None,
        exposure: object = None,
    ) -> Dataset:
        """The rows of a fit, once parameters and rows have been checked."""
        # Everything that can be refused is refused here, before the first pass, which may take hours.
        check_constraints(self)
        self._check_features()
        self._check_solver()
        check_device(self.device)
        row_columns = GroupsAndTimes(X, groups, times, self.by_group, self.by_time)
        exposed, sample_weight = Exposure(row_columns, exposure), row_columns.weights(sample_weight)
        if exposed.name and isinstance(X, Dataset):
            record_rows(X)  # as they are stored, with the column that is no feature
        y = one_dimensional(y)
        own_dates = self._chooses and (self.by_group, self.by_time) == (None, None)
        dataset = rows_to_fit(
            self, row_columns, y, sample_weight, supervised=self._supervised, task=self._task, own_dates=own_dates
        )
        # The learner inside would warn again that a store with splits is used whole.
        dataset = without_splits(dataset)
        dataset = exposed.with_exposures(dataset, self._exposure_weighs is not None, sample_weight)
        exposed.remember(self)
        self._check_targets(dataset)
        self.encoding_ = dataset.encoding
        return dataset

    def _learn_and_fit(
        self,
        settings: Settings,
        learner: FeatureLearner,
        dataset: Dataset,
        weights: np.ndarray | None,
        run: Run,
        context: FitContext,
        calibration: Calibration = (None, None),
        *,
        choice: PenaltyChoice | None,
        from_learner: bool = True,
    ) -> LinearProblem:
        """Learn the features, and fit and finish the linear model on them; returns its problem.

        Parameters
        ----------
        settings : Settings
        learner : FeatureLearner
            Not fitted.
        dataset : Dataset
        weights : ndarray of shape (K,) or None
        run : Run
        context : FitContext
        calibration : Calibration
            As the choice of features has found it.
        choice : PenaltyChoice or None
            The penalty, if it has been chosen already.
        from_learner : bool
            Whether the linear model starts from the one that the learner has fitted.
        """
        self.features_ = run.learn(learner, dataset, context)
        problem = replace(self._problem_on(settings, self.features_, dataset, weights, calibration), choice=choice)
        if not from_learner:
            problem = replace(problem, start=None)
        self._fit_model(settings, problem, dataset, run, calibration)
        return problem

    def _fit_model(
        self, settings: Settings, problem: LinearProblem, dataset: Dataset, run: Run, calibration: Calibration
    ) -> None:
        """Fit the linear model on fitted features, store it with its settings, and calibrate it."""
        self._keep(self._fit_linear(settings, problem, dataset, run), settings)
        self._calibrate(settings, problem, dataset, run, calibration)

    def _chosen_on(self, X: object, y: object, groups: object, times: object) -> tuple[Chosen, dict[str, Any]]:
        """Choose as `fit` does, without the last fit to all rows; the choice, and parameters that reproduce it."""
        dataset = self._checked_rows(X, y, groups=groups, times=times)
        # checked after reading the rows, whose own dates may hold rows out
        warn_of_random_folds(dataset, "suggest")
        self.seed_ = stored_seed(self.random_state, None, "")
        run, weights = self._running(""), self._class_weights(dataset)
        settings = self._settled_for(dataset)
        chosen = choose(self._terms(settings), dataset, weights, run, Clock(self.time_limit))
        alpha = settings.alpha if chosen.penalty is None else chosen.penalty.alpha
        pinned: dict[str, Any] = {"solver": settings.solver, "loss": chosen.loss, "alpha": alpha}
        # the columns of a Dataset stay numbers, whatever `categorical` says
        if (categorical := getattr(chosen.columns.dataset.encoding, "taken", ())) and not isinstance(X, Dataset):
            pinned["categorical"] = list(categorical)
        return chosen, pinned

    def _terms(self, settings: Settings) -> Terms:
        """The parameters that bind the choice of features, with those that were settled for the rows."""
        loss_is_open = self.loss is None and self.alpha in (None, *PENALTY_RULES)
        return Terms(
            type(self).__name__,
            self.effort,
            self._knobs,
            settings,
            loss_is_open and settings.solver == "newton" and settings.calibrate,
            self.categorical is None,
            self.validation_fraction,
            self.seed_,
            self.time_limit,
            self.trials,
            self.checkpoint,
            new_learner=lambda advised, stage: self._learner_of_stage(self._unfitted_features(advised), stage),
            new_problem=partial(self._problem_on, settings),
        )

    @available_if(lambda self: self._settings.solver == "sgd")
    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None, *, exposure: Any = None
    ) -> Self:
        """Continue the linear model for one epoch on further rows, with the same features; only for ``solver="sgd"``.

        The first call is `fit` on its rows: they determine the features, so pass many of them.
        `dask_ml.wrappers.Incremental` uses this method; `fit` accepts Dask arrays itself, and learns from all rows.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Labels must be among `classes_`.
        classes : array of shape (K,) or None
            All classes that will occur, where the first rows lack some; in later calls those of `fit`, or None.
        exposure
            As in `fit`; None reads the column that the fit had.

        Raises
        ------
        ValueError
            For a label that `fit` has not seen, another number of columns, or a missing exposure where the fit had one.
        """
        if not hasattr(self, "linear_"):
            if self._task == "classification" and classes is not None:
                named = {"task": self._task, "classes": classes, "categorical": self.categorical or ()}
                rows = GroupsAndTimes(X)
                weights = rows.weights(sample_weight)
                X, y, sample_weight = rows.with_columns(as_dataset(rows.X, y, weights, **named)), None, None
            return self.fit(X, y, sample_weight, exposure=exposure)
        own_classes = getattr(self, "classes_", None)
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), np.asarray(own_classes)):
            raise ValueError(f"fit has found the classes {own_classes}, not {np.asarray(classes)}; fit all rows again")
        with atomic(self) as machine:
            dataset = further_rates(machine, X, y, sample_weight, exposure)
            settings = machine._settings
            if settings.loss in LOG_LINK:
                check_log_rows(dataset, settings.loss, of_fit=False)
            # further rows are few: the model steps on all of them, and holds none out
            problem = machine._problem_on(settings, machine.features_, dataset, machine._class_weights(dataset))
            problem = replace(problem, classes=own_classes, held_out=HeldOut())
            machine._keep(fit_further(problem, machine._fit, dataset.source, machine._running("")), settings)
        return self

    def update(self, dataset: Dataset) -> Self:
        """Update the fit after rows were appended to its store, or dropped from it.

        The features are updated from the blocks that changed (`AlignedFeatures.update`); the linear model is fitted
        again to all rows.

        Parameters
        ----------
        dataset : Dataset
            A version of the store, whole or a split of it.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the features store no sums, the rows do not match them, or the exposure of the fit is not a column of the
            store.
        """
        with recorded(self) as machine:
            check_is_fitted(machine)
            # Candidates stay the same, so that sums of unchanged blocks are reused; the linear model has no such sums.
            machine.features_, held_out = updatable(machine.features_, getattr(machine.features, "sums", None)), None
            if isinstance(dataset, Dataset):
                refuse_codes(dataset, "update", WHY_NO_UPDATE)
                machine._rows(dataset, None, None)
                record_rows(dataset)
                dataset = with_exposure_of_fit(machine, dataset, exposure_of_fit(machine))
                dataset = GroupsAndTimes(dataset, None, None, machine.by_group, machine.by_time).with_rule(dataset)
                dataset, held_out = machine._without_conformal_rows(dataset)
                dataset = with_rates(machine, dataset)
            machine.features_.update(dataset)
            machine._check_targets(dataset)
            settings, calibration, weights = machine._settings, machine._calibration, machine._class_weights(dataset)
            problem = machine._problem_on(settings, machine.features_, dataset, weights, calibration)
            machine._fit_model(settings, problem, dataset, machine._running(""), calibration)
            machine._score_conformal_rows(held_out)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # missing values are filled, as those of frames are
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def replayed(self, dataset: Dataset) -> PlannedRun:
        """The passes of `fit`, by an unfitted copy and a run that records them and reads no row.

        The stages choose the features, learn them, and fit the linear model.
        """
        check_constraints(self)
        self._check_features()
        self._check_solver()
        unfitted, plan = self._unfitted_copy(), PlannedRun(n_rows=dataset.n_rows)
        weights, settings = unfitted._class_weights(dataset), unfitted._settled_for(dataset)
        if self._chooses:
            unfitted._replay_choice(settings, dataset, weights, plan)
            return plan
        last = self.features_ if has_begun(self.features, getattr(self, "features_", None)) else None
        template = unfitted._unfitted_features()
        folds = unfitted._judging_folds(settings, template, dataset)
        context = FitContext(for_machine=True)
        for changes in unfitted._rivals(template) if len(folds) > 1 else ():
            # each rival is learned and judged on every fold
            pilot = PlannedRun(n_rows=dataset.n_rows)
            of_fold, terms = replace(context, withheld=folds[0]), unfitted._terms(settings)
            unfitted._fold_scores(terms, template, of_fold, changes, dataset, weights, pilot)
            plan.add(pilot, times=len(folds))
        # the most that they can lead to: searched features, and penalties compared on them
        learner = unfitted._learner_of_stage(template, "features", last)
        problem = unfitted._learn_and_fit(settings, learner, dataset, weights, plan, context, choice=None)
        plan.passes.extend(unfitted._planned_scores(problem))
        return plan

    def _replay_choice(
        self, settings: Settings, dataset: Dataset, weights: np.ndarray | None, plan: PlannedRun
    ) -> None:
        """Record the passes of a machine that chooses its features: of the choice, and of the last fit.

        Of all features and losses that may be chosen, those have their passes that take the most work. The others add
        no time, but their memory must suffice.
        """
        terms = self._terms(settings)
        settled, planned = settings.loss, PlannedChoice(terms, dataset, weights)
        plan.add(planned.trials(), beside=planned.rows_in_memory)
        loss = planned.loss
        *others, costliest = (
            self._learner_of_stage(self._unfitted_features(one), "features") for one in planned.may_win()
        )
        for other in others:
            plan.add(other.replayed(dataset), times=0, beside=planned.rows_in_memory)
        # the choice includes the penalty, so that the last fit chooses none; the plan does not depend on its value
        penalty = PenaltyChoice(np.ones(1), np.ones(1), np.zeros((0, 0)))
        chosen = penalty if dataset.total_weight >= FEWEST_ROWS else None
        if costliest.planned_map(dataset).n_features > most_log_loss_features(terms.shape(dataset).n_models):
            # the log loss is chosen only where its sums over these features fit in memory
            loss = settled
        for number, each in enumerate(dict.fromkeys((loss, settled))):
            last, context = PlannedRun(n_rows=dataset.n_rows), FitContext(for_machine=True)
            problem = self._learn_and_fit(
                replace(settings, loss=each), costliest, dataset, weights, last, context, choice=chosen
            )
            last.passes.extend(self._planned_scores(problem))
            plan.add(last, times=int(number == 0), beside=planned.rows_in_memory)

    def planned_features(self, dataset: Dataset) -> int:
        """The most features that a fit can have; 0 where the machine chooses them, which its effort bounds."""
        self._check_features()
        return 0 if self._chooses else self._unfitted_copy()._unfitted_features().planned_features(dataset)

    def usual_time(
        self, dataset: Dataset, block: Block | None, *, slots: int, flops_per_second: float
    ) -> UsualTime | None:
        """The usual time of a fit to these rows, from their number and one block; None where features are given.

        Parameters
        ----------
        dataset : Dataset
        block : Block or None
            None where no block was read; then more than a linear model is expected.
        slots : int
            Blocks that are computed at the same time.
        flops_per_second : float
            The speed of a matrix product on one thread.
        """
        if not self._chooses or dataset.total_weight < FEWEST_ROWS:
            return None
        unfitted, has_codes = self._unfitted_copy(), dataset.schema.has_codes
        terms = unfitted._terms(unfitted._settled_for(dataset))
        # whether categories matter is only known once they are encoded
        is_linear = block is not None and not has_codes and seems_linear(block, dataset.schema.n_classes)
        usual = usual_time(
            self.effort,
            terms.shape(dataset),
            sampled=terms.sample(dataset).rows.n_rows,
            is_linear=is_linear,
            is_sparse=dataset.source.is_sparse,
            slots=slots,
            flops_per_second=flops_per_second,
        )
        return usual if self.time_limit is None else replace(usual, seconds=min(usual.seconds, self.time_limit))

    def _unfitted_copy(self) -> Self:
        """An unfitted copy with a fixed seed, on which plans settle parameters; the machine itself stays unchanged."""
        unfitted = clone(self)
        unfitted.seed_ = 0
        return unfitted

    @property
    def _fit(self) -> LinearFit:
        """The linear fit behind the fitted attributes; `partial_fit` continues from it."""
        units = TargetScale(self.target_center_, self.target_scale_)
        return LinearFit(self.linear_, units, self.n_epochs_, self.validation_losses_, alpha=self._settings.alpha)

    def _keep(self, fit: LinearFit, settings: Settings) -> None:
        """Store a linear fit, with its loss and solver, in the machine's fitted attributes."""
        self.linear_, self.loss_, self.solver_ = fit.model, settings.loss, settings.solver
        self.target_center_, self.target_scale_ = fit.units.center, fit.units.scale
        self.n_epochs_, self.validation_losses_, self.message_ = fit.epochs, fit.losses, fit.message
        self.alpha_ = fit.alpha
        # scores of held-out rows are not valid after another fit
        if hasattr(self, "conformal_"):
            del self.conformal_
        if fit.choice is not None:
            self.alphas_, self.validation_scores_ = fit.choice.alphas, fit.choice.scores

    def _calibrate(
        self, settings: Settings, problem: LinearProblem, dataset: Dataset, run: Run, calibration: Calibration
    ) -> None:
        """Find what makes probabilities of the scores of the linear model, or store what the choice has found."""

    def _as_fitted(self, settings: Settings, fit: LinearFit) -> Self:
        """A copy of this machine with an unfinished linear fit, for subscribers to events."""
        machine = copy.copy(self)
        machine._keep(fit, settings)
        return machine

    def _fit_linear(self, settings: Settings, problem: LinearProblem, dataset: Dataset, run: Run) -> LinearFit:
        """Fit the linear model by the machine's solver; subscribers receive the unfinished machine."""
        # before calibration, in the last pass, a machine has no probabilities, so that none is shown
        run = replace(run, estimator=None if settings.calibrate else partial(self._as_fitted, settings))
        if self.linear is not None:
            return fit_given(problem, dataset.source, run, self.linear, epochs=self.epochs)
        if settings.solver == "newton":
            return fit_by_newton(problem, dataset.source, run)
        patience, _ = self._stopping(settings, dataset.n_rows)
        return fit_by_epochs(problem, dataset.source, run, epochs=self.epochs, patience=patience)

    def _stopping(self, settings: Settings, n_rows: int) -> tuple[int | None, float]:
        """The patience of stochastic epochs (None runs all of them) and the share of rows held out to stop them."""
        if self.linear is not None:
            return None, 0.0
        if self.early_stopping:
            return self.patience, self.validation_fraction
        return default_stopping(n_rows) if settings.solver == "sgd" and self.epochs is None else (None, 0.0)

    def _judging_rows(self, dataset: Dataset) -> HeldOut:
        """The rows held out for any decision of this fit: the larger share of the machine's and its features' own."""
        shares = [self.validation_fraction, JUDGING_SHARE if self._chooses else 0.0]
        if not self._chooses:
            shares.append(judging_share(self._learner_of_stage(self._unfitted_features(), "features"), dataset.source))
        return HeldOut(max(shares), self.seed_)

    def _judging_folds(self, settings: Settings, template: FeatureLearner, dataset: Dataset) -> list[HeldOut]:
        """The folds that choose the penalty of searched features: one fold of many rows, five of few.

        Features searched on all rows fit each of them too well, so that a penalty chosen there is too small. The search
        must therefore leave out the rows that judge.
        """
        if settings.alpha not in PENALTY_RULES or settings.solver != "newton" or not template._searches:
            return []
        held_out, most = HeldOut(self.validation_fraction, self.seed_), dataset.source.most_folds
        return judging_folds(held_out, dataset.total_weight, most, dataset.n_rows)

    def _penalty_of_folds(
        self,
        terms: Terms,
        template: FeatureLearner,
        folds: list[HeldOut],
        dataset: Dataset,
        weights: np.ndarray | None,
        run: Run,
        *,
        judging_seed: int | None,
    ) -> tuple[PenaltyChoice | None, dict[str, Any]]:
        """The penalty that all folds agree on, each with its own search, and changes of the features' parameters.

        On few rows a search may fit noise: random features of the same number replace it unless it clearly lowers the
        held-out loss. (None, {}) for a single fold.
        """
        if len(folds) < 2:
            return None, {}
        # each rival is learned once for each fold, without its rows
        context = FitContext(for_machine=True, is_pilot=True, judging_seed=judging_seed)
        choices, *rivals = (
            [
                self._fold_scores(terms, template, replace(context, withheld=fold), changes, dataset, weights, run)
                for fold in folds
            ]
            for changes in self._rivals(template)
        )
        if not rivals or clear_gain(choices, rivals[0]):
            return mean_over_folds(choices), {}
        searched, drawn = mean_over_folds(choices), mean_over_folds(rivals[0])
        message = (
            "features are drawn, since a search for them gains nothing on held-out rows: "
            f"{searched.score:.4f} with it, {drawn.score:.4f} without"
        )
        with suppress(StopRequested):
            run.publish(Event("note", "features", detail={"message": message}))
        return None, _DRAWN

    def _fold_scores(
        self,
        terms: Terms,
        template: FeatureLearner,
        context: FitContext,
        changes: dict[str, Any],
        dataset: Dataset,
        weights: np.ndarray | None,
        run: Run,
    ) -> PenaltyChoice:
        """The scores of all penalties on the fold of `context`, whose rows the features are learned without."""
        fold: Any = context.withheld
        # the stage names a folder of the checkpoint
        stage = f"plain-{fold.first:g}" if changes else f"{fold.first:g}"
        pilot = run.learn(self._pilot(template, stage, changes), dataset, context)
        return Bench(terms, weights, run).penalties(pilot, Sample(dataset, (fold,)), 0, stage, terms.judging_loss)

    def _rivals(self, template: FeatureLearner) -> list[dict[str, Any]]:
        """Parameter changes to compare: none, and drawing all features, where the learner searches for some of them.

        Features of few columns are requested for being readable, so random ones cannot replace them.
        """
        # a learner without a share of random features has no rival
        parameters = {"plain_share": 0.0, **template.get_params(deep=False)}
        draws = (
            parameters["plain_share"] is None
            and parameters["solver"] == "corrective"
            and parameters["sparse_share"] < 1.0
        )
        return [{}, _DRAWN] if draws and not isinstance(template.family, FiniteFamily | list | tuple) else [{}]

    def _pilot(self, template: FeatureLearner, stage: str, changes: dict[str, Any]) -> FeatureLearner:
        """A copy with fewer features and no refinement, cheaper and sufficient for comparing penalties."""
        pilot = self._learner_of_stage(template, f"pilot-{stage}").set_params(**changes)
        most = pilot.n_features if isinstance(pilot.n_features, Integral) else _PILOT_FEATURES
        pilot.set_params(n_features=min(_PILOT_FEATURES, int(most)))
        if "refine" in pilot.get_params(deep=False):
            pilot.set_params(refine=0)
        return pilot

    def _learner_of_stage(
        self, template: FeatureLearner, stage: str, last: FeatureLearner | None = None
    ) -> FeatureLearner:
        """A copy of the features for one stage of the fit, or one that continues the last fit.

        Features without their own checkpoint use a folder of the machine's, named after the stage.
        """
        learner = clone(template)
        if self.checkpoint is not None and learner.get_params(deep=False).get("checkpoint") is None:
            learner.set_params(checkpoint=f"{str(self.checkpoint).rstrip('/')}/{stage}")
        return learner if last is None else copy.copy(last).set_params(**learner.get_params(deep=False))

    def _unfitted_features(self, advised: FeatureLearner | None = None) -> FeatureLearner:
        """The features to fit, with the machine's options, and its seed unless they have one.

        Parameters
        ----------
        advised : FeatureLearner or None
            The features that the choice (``features="auto"``) has found.
        """
        options = {name: getattr(self, name) for name in ("device", "progress", "memory_limit")}
        if isinstance(self.features, str) and not self._chooses:
            learner = learner_entry(self.features).learner_class(**options)
            if "scaling" in learner.get_params(deep=False):
                # a learner given by name has the scaling that suits the rows
                learner.set_params(scaling="auto")
        elif isinstance(self.features, str):
            learner = clone(advised).set_params(**options)
        elif isinstance(self.features, list | tuple):
            learner = CombinedFeatures(clone(self.features, safe=False), **options)
        else:
            learner = clone(self.features)
        learner = self._knobs.with_pinned(learner)
        parameters = learner.get_params(deep=False)
        if self._settings.loss in ROUND_LOSSES:
            # learners by rounds that have no loss of their own minimise that of the machine
            parts = learner.named_learners() if isinstance(learner, CombinedFeatures) else []
            if isinstance(self.features, str):
                parts = [learner, *getattr(learner, "features", ())]
            for rounds in parts:
                if "features_per_round" in rounds.get_params(deep=False):
                    rounds.set_params(loss=self._settings.loss, epsilon=self.epsilon, quantiles=self.quantiles)
        if parameters.get("random_state") is None:
            learner.set_params(random_state=self.seed_)
        return learner

    def _problem_on(
        self,
        settings: Settings,
        features: FeatureLearner,
        dataset: Dataset,
        weights: np.ndarray | None,
        calibration: Calibration = (None, None),
    ) -> LinearProblem:
        """The linear problem on rows mapped by fitted features; its start is the model of their learner, if any.

        Unless the choice of features has calibrated the model, rows are held out for that.
        """
        calibrates = settings.calibrate and calibration[0] is None
        _, share = self._stopping(settings, dataset.n_rows)
        loss = joint_name(settings.loss, settings.solver, dataset.schema.n_classes)
        problem = LinearProblem(
            feature_map=features.feature_map_,
            loss=loss,
            alpha=settings.alpha,
            classes=dataset.classes,
            n_targets=dataset.schema.n_targets or 1,
            class_weight=weights,
            epsilon=getattr(self, "epsilon", 0.1),
            quantiles=tuple(getattr(self, "quantiles", ())) if loss == "pinball" else (),
            held_out=HeldOut(max(share, self.validation_fraction if calibrates else 0.0), self.seed_),
            validation=HeldOut(self.validation_fraction, self.seed_),
            calibrated=self._calibrates_while_judging(settings, dataset.n_rows),
            seed=self.seed_,
            dtype=features.dtype,
        )
        return replace(problem, start=working_start(features, problem.n_models))

    def _running(self, fingerprint: str) -> Run:
        """Settings for the passes of the linear model; an empty fingerprint means no checkpoint."""
        return run_of(self, "linear", fingerprint)

    @property
    def _scorer(self) -> Scorer:
        """The fitted feature map and linear model as one function of encoded rows."""
        if not hasattr(self.linear_, "coef_"):
            n_outputs = (
                1 if len(getattr(self, "classes_", ())) == 2 else len(getattr(self, "classes_", self.target_center_))
            )
            units = self.target_center_, self.target_scale_
            scorer: Any = EstimatorScorer(self.feature_map_, self.linear_, self.features_.dtype, *units, n_outputs)
            return scorer
        coef, intercept = np.atleast_2d(self.linear_.coef_), np.atleast_1d(self.linear_.intercept_)
        return Scorer(self.features_.feature_map_, coef, intercept, self.features_.dtype)

    @property
    def feature_map_(self) -> FeatureMap:
        """The feature map of the fitted features."""
        return self.features_.feature_map_

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        """The weight of each class, (K,); None for equal weights, and for regression."""
        return None

    def _rows(self, X: object, y: object, sample_weight: object) -> Dataset:
        """Further rows, encoded as those of `fit`."""
        # Further rows may lack some classes of the fit, but contain no others.
        own_classes = getattr(self, "classes_", None)
        dataset = dataset_like_fit(self, X, y, sample_weight, task=self._task, classes=own_classes)
        check_classes(self, dataset)
        check_columns(self, dataset)
        return dataset

    def _check_targets(self, dataset: Dataset) -> None:
        """Raise ValueError where the targets do not suit the loss."""

    @property
    def _settings(self) -> Settings:
        """Loss, penalty, solver and calibration with a value for each parameter that was left open.

        A fitted machine has the loss and the solver of its fit, which may depend on the number of rows; another one has
        those of few rows.
        """
        settings = settled(self._open_parameters(), self._task)
        if not hasattr(self, "solver_") or None not in (self.solver, self.loss):
            return settings
        solver = self.solver or self.solver_
        loss = joint_name(self.loss or self.loss_, solver)
        # stochastic steps cannot choose a penalty, and have a small fixed one
        alpha = SGD_ALPHA if solver == "sgd" and settings.alpha in PENALTY_RULES else settings.alpha
        return replace(settings, solver=solver, loss=loss, alpha=alpha)

    def _calibrates_while_judging(self, settings: Settings, n_rows: int = 0) -> bool:
        """Whether the passes that choose the penalty or the epochs fit the temperature, too (for given features)."""
        is_open = getattr(self, "calibrate", None) is None and not self._chooses
        if settings.solver == "newton":
            judges = settings.alpha in PENALTY_RULES
        else:
            judges = self._stopping(settings, n_rows)[0] is not None
        return self._task == "classification" and is_open and judges and settings.loss not in PROBABLE

    @property
    def _knobs(self) -> Knobs:
        """The parameters of features that the user has set at the machine."""
        return Knobs(self.n_features, self.scaling, self.sigma)

    @property
    def _chooses(self) -> bool:
        """Whether the machine chooses its features."""
        return isinstance(self.features, str) and self.features == "auto"

    def _open_parameters(self) -> OpenParameters:
        if self.linear is not None:
            # the user's model has stochastic steps, and its own loss and penalty
            loss, calibrate = loss_of_given(self.linear, self._task), bool(getattr(self, "calibrate", None))
            return OpenParameters(loss, SGD_ALPHA, "sgd", calibrate, chooses=self._chooses, stops_early=True)
        return OpenParameters(
            self.loss,
            self.alpha,
            self.solver,
            getattr(self, "calibrate", False),
            chooses=self._chooses,
            stops_early=self.early_stopping or self.epochs is not None,
        )

    def _settled_for(self, dataset: Dataset) -> Settings:
        """Values of the open parameters that suit these rows."""
        n_classes = dataset.schema.n_classes or 1
        is_wide = self._chooses and has_columns_alone(dataset, self._knobs)
        n_models = 1 if n_classes == 2 else n_classes
        return settled(self._open_parameters(), self._task, dataset.n_rows, n_models, is_wide=is_wide)

    @property
    def _exposure_weighs(self) -> bool | None:
        """Whether twice the exposure counts a row twice, as for counts; None for losses without exposure."""
        loss = LOG_LINK.get(self._settings.loss)
        return None if loss is None else loss.counts_exposure

    def _check_solver(self) -> None:
        """Raise ValueError for values of solver, loss, alpha and early stopping that exclude each other."""
        if self.linear is not None:
            name = type(self).__name__
            check_given(name, self.linear, self._task)
            own = {"loss": None, "alpha": None, "solver": None, "early_stopping": False}
            if pinned := [parameter for parameter, default in own.items() if getattr(self, parameter) != default]:
                raise ValueError(
                    f"{pinned[0]}={getattr(self, pinned[0])!r} is of the linear model that {name} fits by itself, and "
                    f"linear={self.linear!r} has its own; set it there, or leave {pinned[0]} out"
                )
            return
        # settled without rows, since an earlier fit must not influence the check
        settings = settled(self._open_parameters(), self._task)
        if settings.solver == "sgd" and settings.loss not in losses_for(self._task, "sgd"):
            of_classes = " of classes" if self._task == "classification" else ""
            raise ValueError(
                f"loss={settings.loss!r}{of_classes} has exact steps only: set solver='newton', or leave it out"
            )
        if settings.solver == "newton" and settings.loss not in NEWTON_LOSSES:
            raise ValueError(
                f"solver='newton' needs a loss with a Hessian: loss={squared_loss(self._task)!r}, got "
                f"loss={settings.loss!r}; or use solver='sgd'"
            )
        losses = {"squared_error"} if settings.alpha == "evidence" else {"softmax", *NEWTON_LOSSES}
        is_unlikely = settings.alpha == "evidence" and settings.loss not in losses
        if isinstance(settings.alpha, str) and (settings.solver != "newton" or is_unlikely):
            # an open loss adapts to the solver
            suits = self.loss is None or self.loss in losses
            loss = "" if suits else f" and loss={squared_loss(self._task)!r}"
            of_epochs = {"epochs": self.epochs is not None, "early_stopping": self.early_stopping}
            left = " and ".join(name for name, is_given in of_epochs.items() if is_given)
            raise ValueError(
                f"alpha={settings.alpha!r} is chosen by Newton steps: set solver='newton'{loss}"
                f"{left and f' and leave {left} out'}, got solver={settings.solver!r} and loss={settings.loss!r}; or "
                "give alpha a number"
            )
        if settings.solver == "newton" and self.early_stopping:
            raise ValueError("solver='newton' goes to the optimum: early_stopping has no meaning; set it to False")

    def _check_features(self) -> None:
        """Raise ValueError unless `features` is a learner, a learner's name, or a list of learners and names."""
        each: list[Any] = list(self.features) if isinstance(self.features, list | tuple) else [self.features]
        if not each or not all(isinstance(one, str | FeatureLearner) for one in each):
            raise ValueError(
                f"The 'features' parameter of {type(self).__name__} must be a feature learner such as "
                f"AlignedFeatures(), one of {sorted(learner_keys())}, or a list of these. Got {self.features!r} "
                "instead; other transformers go before the machine, in a pipeline"
            )
        if isinstance(self.features, FeatureLearner):
            self._knobs.check(self.features)
        elif isinstance(self.features, str) and not self._chooses:
            self._knobs.check(learner_entry(self.features).learner_class())
        holders: dict[str, str] = {}
        estimators: list[Any] = [self, *(one for one in each if isinstance(one, FeatureLearner))]
        for one in estimators:
            folder = one.get_params(deep=False).get("checkpoint")
            if folder is None:
                continue
            other = holders.get(str(folder).rstrip("/"))
            if other is not None:
                raise ValueError(
                    f"checkpoint={str(folder)!r} is the folder of {other} and of {type(one).__name__}, whose states "
                    "would take each other's places; leave it out of learners: they have parts of the machine's folder "
                    "then"
                )
            holders[str(folder).rstrip("/")] = type(one).__name__
        if getattr(self.features, "monotone", None):
            name = type(self.features).__name__
            raise ValueError(
                f"the coefficients of {type(self).__name__} are fitted without signs, and {name}(monotone=...) would "
                f"not keep its word; fit {name} itself and take its machine_"
            )


@estimator
class KernelClassifier(ConformalSets, ClassPredictions, KernelMachine):
    """A classifier on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss over the rows, one class against the rest, on rows mapped by the
    learned features; all rows are read block by block, never held at once.

    Parameters
    ----------
    features : "auto", feature learner, learner's name, or list of learners and names
        "auto" compares kinds of features on a sample of the rows (the columns themselves, random and refined waves,
        steps of columns, a kernel at landmarks), then larger ones and pairs of kinds, and uses those with the least
        loss on held-out rows; `reasons_` lists what was tried. A learner is cloned; a name ("margin", "steps",
        "nystrom", "aligned", ...) is that learner with its defaults; a list is the `CombinedFeatures` of its parts.
        A learner with ``warm_start=True`` continues from the features of the machine's last fit, with the same rows
        held out.
    class_weight : dict, "balanced" or None
    calibrate : bool or None
        Whether to fit a temperature on held-out rows, in one more pass, so that `predict_proba` exists for every loss.
        None is True where the machine chooses its features. With other features, None fits the temperature in passes
        that take place anyway: those that choose the penalty (``alpha="auto"``; the model is then fitted to all rows)
        or those that stop the epochs (``early_stopping=True``, or stochastic steps on more than a million rows, which
        stop early by default). Where the machine chooses and rows are held out by time, the newest rows also determine
        a shift of each intercept, if classes have become clearly rarer or more frequent; decision values and labels
        follow the probabilities.
    linear : estimator or None
        The linear model on the mapped rows; None is the machine's own, which all parameters below describe.
        ``dask_ml.wrappers.Incremental(SGDClassifier(...))`` is fitted by its own `partial_fit`, block by block in the
        stored order. Any other estimator with `partial_fit` (`dkl.BlockIncremental`) goes through blocks and rows in
        random order, `epochs` times. It has its own loss, penalty and steps.
    n_features : int or "auto"
        The largest number of features. "auto" adds features while the held-out loss falls; a learner that you pass
        keeps its own number.
    scaling : {"auto", "standard", "quantile", "minmax", "unit", "counts"} or None
        Scaling of the columns. "auto" is the scaling with the least held-out loss where the machine chooses its
        features, "standard" (none for sparse rows) for a learner given by name, and its own for a learner that you
        pass. Steps need no scaling.
    sigma : float, "median" or "auto"
        The bandwidth. If it is set, only features that have a bandwidth are tried.
    effort : {"fast", "balanced", "best"}
        How much work the choice of features may take. It is counted from rows and columns, never by a clock: about 1,
        3 to 4 and at most some hundred seconds of one core for usual tables. The same rows give the same bits anywhere.
    time_limit : float or None
        Seconds for the whole fit. The first trial is always made; no further one begins that is expected, with the last
        fit, to end later. Only this parameter reads the clock, between trials; `reasons_` then gives the `trials` that
        reproduce the model without it.
    trials : sequence of int or None
        The numbers of the candidates to try, one for each trial, as `reasons_` gives them after a fit with
        `time_limit`.
    loss : str or None
        A loss of labels in the table `LOSSES` of `dkl.registry`. None is "squared_hinge" for exact steps and "hinge"
        for stochastic ones. Where the machine chooses its features, None is "squared_error" (exact steps only), a
        regression on -1 and +1 whose one Hessian serves all classes and penalties, or "log_loss" where that improves
        the held-out probabilities. "softmax" is the log loss of all classes jointly; "log_loss" by stochastic steps
        fits one class against the rest, and by Newton steps it is the same as "softmax".
    alpha : float, str or None
        Strength of the penalty; liblinear's C is ``1 / (alpha n)``. A rule of the table `PENALTY_RULES` of
        `dkl.registry` (Newton only) chooses it by held-out rows: "auto" is the best of C = 0.01 to 100 for features of
        mean squared length 1, then all rows are fitted with it. Where `solver` is None and the fit takes stochastic
        steps (for `epochs`, `early_stopping`, a loss without exact ones or many rows), "auto" is 1e-5. None is "auto"
        where the machine chooses its features and takes exact steps, else 1e-5.
    epochs : int or None
        How often the fit goes through all rows (at most, with early stopping). None is 10, and up to 50 for fewer than
        20,000 rows: within 0.3 points of liblinear on MNIST and adult. For more than a million rows None is at most 5,
        and ends after the first epoch that does not lower the loss of 50,000 held-out rows.
    solver : {"sgd", "newton"} or None
        "sgd": scikit-learn's `partial_fit` on centred features, averaged. "newton": exact and deterministic, a few
        passes with D x D sums, for D up to a few thousand and ``loss="squared_hinge"``, "squared_error" or "log_loss"
        (with K classes fitted jointly, as by `LogisticRegression`, which takes more passes). None is "newton" where the
        machine chooses its features or alpha="auto" (for losses other than the squared error up to about 2.5 million
        rows), else "sgd".
    early_stopping : bool
        Hold rows out and stop when their loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for early stopping, for calibration and for ``alpha="auto"``, chosen by a hash of the
        row id. Where that is fewer than 1,000 rows, up to five such folds choose alpha, each on a model fitted without
        it.
    patience : int
    conformal_fraction : float or None
        Share of the rows, by another hash, that the whole fit leaves out: `predict_set` calibrates its coverage on
        their scores. None leaves out no rows; `conformalize` accepts rows that you have held out yourself.
    by_group : str or None
    by_time : str, False or None
        The column of a data frame, or of a Dataset, that decides which rows are held out, in place of the hash: whole
        groups, or the newest rows; alpha is then chosen on these. A group column is not used as a feature, a time
        column is. Pass values from an array to `fit`, as groups or times. With None, ``features="auto"`` holds out the
        newest rows if it finds exactly one column of dates, without gaps and with many different values, since the task
        is then most likely to predict later rows. False never does.
    categorical : list of str or None
        Columns of a data frame whose values are names, whatever they look like: postcodes, ids. Those with more than 32
        values become out-of-fold means of the target (a class each, less one) and the logarithm of their count.
        None, where the machine chooses its features, also tries whole numbers with many values, and crosses of columns
        with few values, as categories, on held-out rows: `reasons_` names those that it adopted. An empty list tries
        none.
    drop_missing_target : bool
        Leave out rows whose target is missing, with a warning that counts them. By default they are an error.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where the states of a fit are stored, so that an interrupted fit resumes.
    progress : bool, callable or None
        None shows one line on the progress of the fit in a terminal or notebook, False nothing. A function receives
        every `dkl.events.Event`. Ctrl-C (a notebook's stop) while features are chosen ends the trials, and the best
        candidate so far is fitted; a second one stops the fit.
    memory_limit : int, str or None
        Bytes that a process may use; a fit that needs more is refused.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        The features chosen and their score on held-out rows, in one sentence; only where the machine chose them.
    reasons_ : tuple of str
        Why these features were chosen, in sentences; only where the machine chose them.
    loss_, solver_ : str
        The loss and the solver of the fit.
    linear_ : SGDClassifier, LinearSVC or LogisticRegression
        The linear model on mapped rows; an `ArraySGDClassifier` for "softmax" by stochastic steps.
    classes_ : ndarray of shape (K,)
    n_epochs_ : int
        Epochs, or Newton steps.
    validation_losses_ : tuple of float
    message_ : str
        Why the steps of the linear model ended.
    alpha_ : float
        The penalty, as given or chosen.
    alphas_, validation_scores_ : ndarray of shape (A,)
        The penalties tried, and one minus the mean squared hinge on held-out rows of each; only where `alpha` is a
        rule.
    temperature_ : float
        Decision values are divided by it to become probabilities; only where it was fitted, see `calibrate`.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: the held-out scores on which `predict_set` bases its
        coverage.
    seed_, provenance_, n_features_in_
        As in `RandomFeatures`.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", (5) to (7).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.machines.kernel_machines import KernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = CLASSIFIER
    _task: ClassVar[Any] = "classification"

    _: KW_ONLY
    class_weight: ClassWeight = None
    calibrate: bool | None = None

    @offered_unless(no_probabilities)
    def predict_proba(self, X: object, *, strict: bool = False) -> Any:
        """Class probabilities, for "log_loss" and "softmax", and for any other loss with a calibrated temperature.

        The temperature is calibrated where the machine chooses its features, where ``alpha="auto"`` or
        ``early_stopping=True`` holds rows out anyway, and with ``calibrate=True``. Where nothing is held out there are
        no probabilities.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of warning about them.

        Returns
        -------
        ndarray of shape (n, K)
            Columns in the order of `classes_`; the largest probability is that of the predicted class. Lazy as in
            `predict`; for a Dataset a DataFrame indexed by row id, whose columns are the labels. Parquet has texts as
            names of columns: write numbered classes by ``.rename(columns=str).to_parquet(...)``.
        """
        check_is_fitted(self, "linear_")
        # Scores of lazy rows are lazy; probabilities are computed from them block by block.
        scores = self._scores(X, strict)
        shares = blockwise(
            partial(probabilities, multiplier=self._multiplier), scores, dtype=np.float64, columns=len(self.classes_)
        )
        return with_row_id(shares, X, self.classes_)

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        return class_weights(self.class_weight, np.asarray(dataset.classes), np.asarray(dataset.class_weights))

    def _check_targets(self, dataset: Dataset) -> None:
        classes = np.asarray(dataset.classes)
        check_whole_labels(classes, "KernelRegressor")
        # Classes are known before any pass, so that wrong class weights are refused early.
        self.classes_ = classes

    def _keep(self, fit: LinearFit, settings: Settings) -> None:
        super()._keep(fit, settings)
        multiplier = fit.multiplier if fit.choice is None else fit.choice.multiplier
        if multiplier is not None:
            self.temperature_ = 1.0 / multiplier

    def _calibrate(
        self, settings: Settings, problem: LinearProblem, dataset: Dataset, run: Run, calibration: Calibration
    ) -> None:
        self._calibration = temperature, shift = calibration
        if settings.calibrate and temperature is not None:
            self.temperature_ = temperature
            if shift is not None:
                # predicted labels follow the shifted probabilities
                self.linear_.intercept_ = self.linear_.intercept_ + shift
        elif settings.calibrate:
            self.temperature_ = 1.0 / calibrate(problem, self.linear_, dataset.source, run)


@estimator
class KernelRegressor(ConformalIntervals, NumberPredictions, KernelMachine):
    """A regressor on learned features: any feature learner, and a linear model by stochastic or Newton steps.

    Minimises ``alpha/2 |w|^2`` plus the mean loss of standardised targets on rows mapped by the learned features;
    predictions are in the targets' own units.

    Parameters
    ----------
    features : "auto", feature learner, learner's name, or list of learners and names
        As in `KernelClassifier`.
    epsilon : float
        The parameter of losses that have one, in standard deviations of y: of "huber" the error above which it is
        linear, of "epsilon_insensitive" the one up to which it is 0.
    quantiles : sequence of float
        The quantiles of "pinball", each predicted in its own column (a single one as a vector); with several targets
        all quantiles of the first come first.
    linear, n_features, scaling, sigma, effort, time_limit, trials
        As in `KernelClassifier`.
    loss : str or None
        A loss of numbers in the table `LOSSES` of `dkl.registry`. None is "squared_error", half the squared error.
        "huber" equals it up to an error of `epsilon` and is linear beyond; "pinball" predicts `quantiles`. "poisson"
        (counts, rates) and "gamma" (positive sizes) predict a mean exp(f); their targets are not standardised, and
        `fit` and `predict` accept an `exposure`.
    alpha : float, str or None
        Strength of the penalty; `Ridge`'s alpha is ``alpha n``. A rule of the table `PENALTY_RULES` of `dkl.registry`
        (Newton only) chooses it by held-out rows: "auto" is the one with the least loss among 100 to 1e-4, for features
        of mean squared length 1; then all rows are fitted with it.
        "evidence" (Newton only): the one that maximises the marginal likelihood of the targets, as `BayesianRidge`
        does, from the sums of all rows; suits features that were drawn without the target. None, and "auto" for
        stochastic steps, are as in `KernelClassifier`.
    epochs : int or None
        As in `KernelClassifier`.
    solver : {"sgd", "newton"} or None
        "newton": ridge, exact, for the losses whose `solvers` in the table name it: "epsilon_insensitive" has none.
        "sgd": stochastic steps, which `partial_fit` needs; they hold no products of all pairs of features in memory, so
        that there may be many more features. None is as in `KernelClassifier`; for "pinball", "poisson" and "gamma" it
        is "newton" unless `epochs` or `early_stopping` is set.
    early_stopping, validation_fraction, patience
        As in `KernelClassifier`.
    conformal_fraction : float or None
        As in `KernelClassifier`; `predict_interval` bases its coverage on these rows.
    by_group, by_time, categorical, drop_missing_target
        As in `KernelClassifier`.
    device, random_state, checkpoint, progress, memory_limit
        As in `KernelClassifier`.

    Attributes
    ----------
    features_ : fitted feature learner
    summary_ : str
        The features chosen and their score on held-out rows, in one sentence; only where the machine chose them.
    reasons_ : tuple of str
        Why these features were chosen, in sentences; only where the machine chose them.
    loss_, solver_ : str
        The loss and the solver of the fit.
    linear_ : SGDRegressor or Ridge
        The linear model on mapped rows, in the units of the targets; for "poisson" and "gamma" its scores are
        logarithms of means. By stochastic steps for these two, for "pinball" and for several targets it is an
        `ArraySGDRegressor`.
    target_center_, target_scale_ : ndarray of shape (t,)
        The fit subtracts the center from the targets and divides them by the scale; for "poisson" and "gamma" these are
        0 and 1, by stochastic steps 0 and the mean.
    n_epochs_ : int
    validation_losses_ : tuple of float
    message_ : str
    alpha_ : float
    alphas_, validation_scores_ : ndarray of shape (A,)
        As in `KernelClassifier`; the score is one minus the mean loss of the (standardised) targets, where the loss
        "squared_error" is the whole square.
    posterior_ : CoefficientPosterior
        Only of exact fits of the squared error: the part of the Gram matrix that ``predict(X, return_std=True)`` needs.
    noise_ : float or ndarray of shape (t,)
        The estimated standard deviation of the noise, in the units of y; only of such a fit.
    conformal_ : HeldOutScores
        With `conformal_fraction`, or after `conformalize`: the held-out scores on which `predict_interval` bases its
        coverage.
    exposure_ : str
        The column that held the exposure of the fit, or an empty string where values were passed.
    seed_ : int
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), alpha=1e-3, solver="newton").fit(X, y)
    >>> bool(model.score(X, y) > 0.4)
    True
    >>> middle = KernelRegressor(RandomFeatures(n_features=100, random_state=0), loss="pinball", alpha=1e-3).fit(X, y)
    >>> low, median, high = middle.predict(X[:1])[0]
    >>> bool(low < median < high)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = REGRESSOR
    _task: ClassVar[Any] = "regression"

    _: KW_ONLY
    epsilon: float = 0.1
    quantiles: Sequence[float] = (0.1, 0.5, 0.9)

    def predict(self, X: object, return_std: bool = False, *, exposure: object = None, strict: bool = False) -> Any:
        """The predicted target of each row, and on request the standard deviation of a new target around it.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        return_std : bool
            Return the standard deviation of a new target as well, its noise included: ``noise_ * sqrt(1 + h)``, where h
            of a row is ``phi^T (G + lam I)^-1 phi`` of its centred features. It assumes that the features suffice and
            that the noise is Gaussian and equal everywhere; `predict_interval` assumes neither. Only for exact fits of
            the squared error.
        exposure : str, array of shape (n,), or None
            Only for ``loss="poisson"`` and "gamma": the factor of each row's mean, or the column of a frame or Dataset
            that holds it. None predicts for one unit.
        strict : bool
            Refuse raw rows that are unlike those of `fit`, in place of warning about them.

        Returns
        -------
        prediction : ndarray of shape (n,), or (n, t) for several targets or quantiles, (n, t q) for several of both
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        std : the same
            With `return_std`, in a tuple (prediction, std).

        Raises
        ------
        ValueError
            With `return_std`, for a fit without a Gram matrix: by stochastic steps, or for another loss. With
            `exposure`, for a loss without one, and for values that are not positive.

        References
        ----------
        Bishop 2006, Pattern Recognition and Machine Learning, (3.59).

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from dkl.machines.kernel_machines import KernelRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = KernelRegressor("random", alpha="evidence", random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> mean.shape, bool(std.min() > model.noise_)
        ((442,), True)
        """
        check_is_fitted(self, self._fitted_by)
        if exposure is not None:
            self._check_exposure()
        if return_std:
            return self._with_deviations(X, strict)
        values = self._values(X, strict)
        if exposure is not None:
            values = values * exposures_of(values, X, exposure)
        return with_row_id(values, X, "prediction" if values.ndim == 1 else output_names(self, values.shape[1]))

    def _with_deviations(self, X: object, strict: bool) -> tuple[Any, Any]:
        """Predictions, and the standard deviations of new targets."""
        posterior, vector = self._checked_posterior(), self._has_one_target()
        # predictions and, last, the variance of each row's mean in units of the noise variance: (n, t + 1)
        scores = score_rows(self, replace(self._scorer, posterior=posterior), X, strict=strict)
        n_targets, answers = len(posterior.noise), []
        for name, function in (("prediction", means_of), ("std", partial(deviations_of, posterior))):
            columns = None if vector else n_targets
            values = blockwise(partial(shaped, function, vector), scores, dtype=np.float64, columns=columns)
            names = name if vector else [f"{name}_{target}" for target in range(n_targets)]
            answers.append(with_row_id(values, X, names))
        return answers[0], answers[1]

    @property
    def noise_(self) -> float | np.ndarray:
        """The standard deviation of the noise, in the units of y; (t,) for several targets.

        Its square is (sum_i v_i (y_i - f_i)^2 + n alpha |w|^2) / n, over the rows of the fit with weights v_i of total
        n, for the model f with the coefficients w. This maximises the marginal likelihood at this alpha. It is too
        small if the model overfits, since the rows are those that the model was fitted to.

        Raises
        ------
        AttributeError
            Before a fit, or if the fit had no Gram matrix. (Notebooks and `dir` read every attribute, and expect this
            error.)
        """
        try:
            noise = self._checked_posterior().noise
        except ValueError as error:
            raise AttributeError(str(error)) from error
        return float(noise[0]) if self._has_one_target() else noise

    def _checked_posterior(self) -> CoefficientPosterior:
        """The posterior of the coefficients.

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the fit has none.
        """
        check_is_fitted(self, self._fitted_by)
        posterior: CoefficientPosterior | None = getattr(self, "posterior_", None)
        if posterior is None:
            how = f"loss={getattr(self, 'loss_', None)!r} and solver={getattr(self, 'solver_', None)!r}"
            raise ValueError(
                f"this {type(self).__name__} has no deviations: these need the Gram matrix that an exact fit of the "
                f"squared error on at most 10,000 features leaves, and it was fitted with {how}, on more features, or "
                f"by a version that did not keep it. Fit {type(self).__name__}(loss='squared_error', solver='newton'); "
                "for intervals whatever the fit was, use conformalize and predict_interval"
            )
        return posterior

    def _keep(self, fit: LinearFit, settings: Settings) -> None:
        """Set the fitted attributes of the machine from a linear fit, with its posterior if it has one."""
        super()._keep(fit, settings)
        # the posterior of an earlier fit is not valid for these coefficients
        if fit.posterior is not None:
            self.posterior_ = fit.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_

    def score(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The relative improvement of the loss over that of the best constant; 1 for perfect predictions.

        This is R^2; for ``loss="poisson"`` and "gamma" it is D^2, the same for the deviance, as in scikit-learn's
        `PoissonRegressor`; for "pinball" it is the mean over the quantiles.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y : array of shape (n,) or None
        sample_weight : str, array of shape (n,), or None
            Weights, or the column of a data frame that has them. A Dataset has targets and weights of its own.
        exposure : str, array of shape (n,), or None
            As in `predict`; None reads the column that the fit had.

        Raises
        ------
        ValueError
            If the fit had an exposure and none is given here.
        """
        check_is_fitted(self, self._fitted_by)
        loss = self._settings.loss
        if loss in LOG_LINK:
            return explained(*self._losses(X, y, sample_weight, exposure))
        if exposure is not None:
            self._check_exposure()
        if loss == "pinball":
            values = self._values(X, weight=sample_weight)
            return quantile_score(values, X, y, sample_weight, quantiles=sorted(self.quantiles))
        return super().score(X, y, sample_weight)

    @available_if(lambda self: self._settings.loss in LOG_LINK)
    def deviance(self, X: object, y: object = None, sample_weight: object = None, *, exposure: object = None) -> float:
        """The mean deviance of rows, per unit of exposure where there is one; smaller is better.

        Parameters
        ----------
        X, y, sample_weight, exposure
            As in `score`.

        Returns
        -------
        float
            The value of scikit-learn's `mean_poisson_deviance` or `mean_gamma_deviance` for these predictions.
        """
        check_is_fitted(self, self._fitted_by)
        return 2.0 * self._losses(X, y, sample_weight, exposure)[0]

    def _losses(self, X: object, y: object, sample_weight: object, exposure: object) -> tuple[float, float]:
        """Half the mean deviance of the model, and half that of the best constant."""
        exposure = exposure_for_scores(self, X, exposure)
        if isinstance(exposure, str):
            exposure = exposure_values(X, exposure)
        values = self._values(X, weight=sample_weight)
        return mean_loss(values, X, y, sample_weight, loss=self._settings.loss, exposure=exposure)

    @property
    def _link(self) -> str:
        """The link from scores to predictions, as in `dkl.solvers.losses.answered`."""
        # the single quantile needs no sorting
        return "" if self._settings.loss == "pinball" and not self._quantiles else LOSSES[self._settings.loss].link

    @property
    def _quantiles(self) -> tuple[float, ...]:
        """The quantiles that each target's outputs predict, ascending; empty for a single one or another loss."""
        return tuple(self.quantiles) if self._settings.loss == "pinball" and len(self.quantiles) > 1 else ()

    def _has_one_target(self) -> bool:
        """Whether y had one dimension at `fit`."""
        # the user's own model may have no coefficients
        return self.linear_.coef_.ndim == 1 if hasattr(self.linear_, "coef_") else len(self.target_center_) == 1

    def _check_targets(self, dataset: Dataset) -> None:
        loss_of(self._settings.loss, self.epsilon).validate()
        if self._settings.loss == "pinball":
            check_quantiles(self.quantiles)
            if self.conformal_fraction is not None:
                # the interval score refuses a single quantile, which the fit would find out only at its end
                self._interval_score()
        elif self._settings.loss in LOG_LINK:
            check_log_rows(dataset, self._settings.loss)


def fitted_machine(learner: Any) -> KernelClassifier | KernelRegressor:
    """A machine that predicts with a learner's `coef_` and `intercept_`, on its features.

    Parameters
    ----------
    learner : fitted FeatureLearner
        With `coef_` of shape (K, n_features), `intercept_`, and `classes_` for labels.
    """
    coef, intercept = learner.coef_, learner.intercept_
    classes: np.ndarray | None = getattr(learner, "classes_", None)
    machine: KernelClassifier | KernelRegressor
    if classes is None:
        linked = learner.loss if learner.loss in (*LOG_LINK, "pinball") else None
        machine = KernelRegressor(learner, loss=linked, solver="newton")
        if linked == "pinball":
            machine.set_params(quantiles=learner.quantiles)
        linear = with_coefficients(Ridge(), coef, intercept, None)
    elif getattr(learner, "loss_", learner.loss) == "softmax":
        machine = KernelClassifier(learner, loss="log_loss", solver="newton")
        linear = with_coefficients(LogisticRegression(), coef, intercept, classes)
    elif getattr(learner, "loss_", learner.loss) == "log_loss":
        machine = KernelClassifier(learner, loss="log_loss")
        linear = with_sgd_coefficients("log_loss", coef, intercept, classes)
    else:
        machine = KernelClassifier(learner, loss="squared_hinge", solver="newton")
        linear = with_coefficients(LinearSVC(), coef, intercept, classes)
    machine.features_, machine.seed_, machine.encoding_ = learner, learner.seed_, learner.encoding_
    machine.n_features_in_, machine.linear_ = learner.n_features_in_, linear
    if classes is not None:
        machine.classes_ = classes
    if hasattr(learner, "feature_names_in_"):
        machine.feature_names_in_ = learner.feature_names_in_
    machine.n_epochs_, machine.validation_losses_, machine.message_ = len(learner.history_), (), learner.message_
    # the coefficients are in the units of the targets, so that no scale is needed
    n_targets = 1 if classes is not None else len(coef)
    machine.target_center_, machine.target_scale_ = np.zeros(n_targets), np.ones(n_targets)
    return machine
