"""KernelMachine: what the classifier and the regressor share, from features to a fitted linear model."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.atomic import atomic, forget_fit
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.exposure import Exposure, exposure_of_fit, further_rates, with_exposure_of_fit, with_rates
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.telling import warn_of_random_folds
from dkl.documented import DocumentedMixin
from dkl.encodings.categories import WHY_NO_UPDATE, refuse_codes
from dkl.events import Event, StopRequested
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.linear.answers import Scorer
from dkl.linear.fitting import LinearFit, LinearProblem, Run, default_stopping, fit_by_epochs, fit_further
from dkl.linear.judge import PenaltyChoice, agreed, clear_gain, judging_folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import chosen_penalty, chosen_penalty_passes, fit_by_newton, head_memory, newton_passes
from dkl.machines.contest import JUDGING_SHARE
from dkl.machines.effort import Clock
from dkl.machines.feature_choice import ChoosingMixin
from dkl.machines.given_linear import EstimatorScorer, fit_given, given_passes
from dkl.machines.machine_plan import Passes, calibration_passes, epoch_passes
from dkl.machines.settings import joint_name
from dkl.machines.suggest import advise
from dkl.methods.base import FeatureLearner
from dkl.methods.callbacks import CallbackSupportMixin, calls_back
from dkl.methods.checkpoints import run_fingerprint, stage_checkpoint, stored_seed
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.fit_context import FitContext
from dkl.methods.parameters import Constraints, check_constraints
from dkl.methods.provenance import record_rows, recorded, recorded_device
from dkl.methods.refining import judging_share
from dkl.methods.room import check_plan, planned_driving
from dkl.methods.saving import SavingMixin
from dkl.methods.scoring import check_log_rows
from dkl.methods.updating import updatable
from dkl.methods.validation import (
    check_classes,
    check_columns,
    encoded_rows,
    one_dimensional,
    rows_to_fit,
    without_splits,
)
from dkl.methods.warm_start import has_begun, working_start
from dkl.passes.devices import check_device
from dkl.progress import resolve_progress
from dkl.protocols.driver import largest_held
from dkl.registry import learner_entry
from dkl.solvers.losses import LOG_LINK
from dkl.solvers.round_losses import ROUND_LOSSES
from dkl.uncertainty.conformal import ConformalMixin

# A pilot judges a penalty for the features; with so many it ranks penalties as all of them do.
_PILOT_FEATURES = 500
# The parameters that make a searching learner draw all of its features.
_DRAWN = {"plain_share": 1.0}


class KernelMachine(ChoosingMixin, ConformalMixin, SavingMixin, DocumentedMixin, CallbackSupportMixin, BaseEstimator):
    """What the classifier and the regressor share: features, then a linear model on them."""

    _parameter_constraints: ClassVar[Constraints]
    _task: ClassVar[Any]
    _supervised: ClassVar[bool] = True
    _fitted_by: ClassVar[str] = "linear_"

    features: Any
    features_: FeatureLearner
    linear: Any
    loss: str | None
    alpha: float | str | None
    epochs: int | None
    solver: str | None
    epsilon: float
    quantiles: Any
    early_stopping: bool
    validation_fraction: float
    patience: int
    conformal_fraction: float | None
    by_group: str | None
    by_time: Any
    categorical: Any
    drop_missing_target: bool
    device: str
    random_state: Any
    checkpoint: Any
    progress: Any
    memory_limit: Any

    @recorded
    @calls_back
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
        sample_weight : array of shape (n,) or None
            Frequency weights: weight 2 is the row twice, weight 0 a row that is not there.
        groups : str, array of shape (n,), or None
            What each row belongs to: rows of one group are held out together, wherever the fit holds rows out. A name
            is a column of a data frame, which is then no feature.
        times : str, array of shape (n,), or None
            Numbers or dates: the newest rows are held out. A column of a data frame stays a feature; pass its values
            and drop it from the frame where it shall be none.
        exposure : str, array of shape (n,), or None
            Of ``loss="poisson"`` and "gamma" alone: what each row's target was counted over (years, customers, area),
            above 0. The model is then one of the target for one unit of it. A name is a column of a data frame or
            of a Dataset, which is then no feature; the model remembers it, and reads it of further rows to score them.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the rows have no meaning; before any pass.
        RuntimeError
            If ``device="gpu"`` and there is none where blocks are computed on; before any row is read.
        """
        clock = Clock(self.time_limit)
        if not (goes_on := has_begun(self.features, getattr(self, "features_", None))):
            forget_fit(self)
        dataset = self._begun(X, y, sample_weight, groups, times, exposure)
        # going on, the rows held out stay the same, and a checkpoint of the last fit does not hold this one
        fingerprint = run_fingerprint(self, dataset) + (" after a fit" if goes_on else "")
        if not goes_on:
            self.seed_ = stored_seed(self.random_state, self.checkpoint, fingerprint)
        run = self._run(fingerprint)
        dataset, held_out = self._hold_out(dataset)
        # rows that are held out keep their counts, which intervals are of
        dataset = with_rates(self, dataset)
        if self.features is not None:
            check_plan(self, dataset, run.device, run.publish)
        weights = self._class_weights(dataset)
        dataset = self._with_chosen_columns(dataset, weights, run)
        choice: PenaltyChoice | None = None
        changes: dict[str, Any] = {}
        if self.features is None:
            # One pass and a sample decide on the features; machine parameters stay as they are given.
            advice = advise(dataset, run, self.seed_)
            self._advised, self.reasons_ = advice.features, advice.reasons_for(self)
        elif self._chooses:
            choice = self._choose_features(dataset, weights, run, clock)
        folds = self._judging_folds(dataset) if choice is None else []
        if choice is None:
            choice, changes = self._piloted_choice(folds, dataset, weights, run)
        # With several folds the penalty has been agreed on by pilots, and the features may see all rows.
        withheld = folds[0] if len(folds) == 1 else None
        learner = self._learner("features", self.features_ if goes_on and not changes else None).set_params(**changes)
        context = FitContext(withheld, for_machine=True, hints=not self._chooses, judging_seed=self._judging_seed)
        self.features_ = learner.fit_within(dataset, context)
        made = self.features_.feature_map_.n_features
        if self._chooses and isinstance(self.n_features, Integral) and made < self.n_features:
            self.reasons_ += (f"Features: {made:,}, of the {self.n_features:,} that n_features allows at most.",)
        problem = replace(self._problem_on(self.features_, dataset, weights), choice=choice)
        if changes:
            # drawn features saw no target, so that their learner's model is no place to start from
            problem = replace(problem, start=None)
        self._keep(self._fit_linear(problem, dataset, run))
        self._finish(problem, dataset, run)
        self._score_held_out(held_out)
        return self

    def _begun(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        groups: object = None,
        times: object = None,
        exposure: object = None,
    ) -> Dataset:
        """The rows of a fit, once parameters and rows have been checked and open parameters settled."""
        # All that can be refused is refused here, before the first pass over rows that may take hours to read.
        check_constraints(self)
        self._check_features()
        self._check_solver()
        check_device(self.device)
        beside = BesideFeatures(X, groups, times, self.by_group, self.by_time)
        exposed = Exposure(beside, exposure)
        if exposed.name and isinstance(X, Dataset):
            record_rows(X)  # as they are stored, with the column that is no feature
        y = one_dimensional(y)
        own_dates = self._chooses and (self.by_group, self.by_time) == (None, None)
        dataset = rows_to_fit(
            self, beside, y, sample_weight, supervised=self._supervised, task=self._task, own_dates=own_dates
        )
        # The learner inside would warn a second time that a store with splits is used whole.
        dataset = without_splits(dataset)
        self._settle(dataset)
        dataset = exposed.beside(dataset, self._exposure_weighs is not None, sample_weight)
        exposed.remember(self)
        self._pilot_temperature = self._pilot_shift = None
        self._check_targets(dataset)
        self.encoding_ = dataset.encoding
        return dataset

    def _chosen_on(self, X: object, y: object, groups: object, times: object) -> tuple[FeatureLearner, dict[str, Any]]:
        """Choose as `fit` does before it learns from all rows: the features, not fitted, and parameters that pin all.

        `reasons_` and the table of what was tried are the machine's from then on.
        """
        dataset = self._begun(X, y, groups=groups, times=times)
        # of these rows: a date of their own may already hold them out
        warn_of_random_folds(dataset, "suggest")
        self.seed_ = stored_seed(self.random_state, None, "")
        run, weights = self._run(""), self._class_weights(dataset)
        dataset = self._with_chosen_columns(dataset, weights, run)
        choice, settings = self._choose_features(dataset, weights, run, Clock(self.time_limit)), self._settings
        alpha = settings.alpha if choice is None else choice.alpha
        pinned: dict[str, Any] = {"solver": settings.solver, "loss": settings.loss, "alpha": alpha}
        # a Dataset that is given holds them as numbers, and no parameter changes that
        if (taken := getattr(dataset.encoding, "taken", ())) and not isinstance(X, Dataset):
            pinned["categorical"] = list(taken)
        return clone(self._advised), pinned

    @available_if(lambda self: self._settings.solver == "sgd")
    @atomic
    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None, *, exposure: Any = None
    ) -> Self:
        """Go on with the linear model for one epoch on further rows; the features stay. Only for ``solver="sgd"``.

        The first call is `fit` on its rows: they decide on the features, so let there be many of them. So does
        `dask_ml.wrappers.Incremental` work here; `fit` takes Dask arrays itself, and learns from all rows.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`. Labels must be among `classes_`.
        classes : array of shape (K,) or None
            Those of `fit`, if given at all; all that will come, where the rows of the first call lack some.
        exposure
            As of `fit`; None is the column that the fit had.

        Raises
        ------
        ValueError
            For a label that `fit` has not seen, another number of columns, or an exposure where the fit had none.
        """
        if not hasattr(self, "linear_"):
            if self._task == "classification" and classes is not None:
                named = {"task": self._task, "classes": classes, "categorical": self.categorical or ()}
                X, y, sample_weight = as_dataset(X, y, sample_weight, **named), None, None
            return self.fit(X, y, sample_weight, exposure=exposure)
        known = getattr(self, "classes_", None)
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), np.asarray(known)):
            raise ValueError(f"fit has found the classes {known}, not {np.asarray(classes)}; fit all rows again")
        dataset = further_rates(self, X, y, sample_weight, exposure)
        if self._settings.loss in LOG_LINK:
            check_log_rows(dataset, self._settings.loss, of_fit=False)
        # further rows are few: all of them are stepped on
        problem = self._problem_on(self.features_, dataset, self._class_weights(dataset))
        problem = replace(problem, classes=known, held_out=HeldOut())
        self._keep(fit_further(problem, self._fit, dataset.source, self._run("")))
        return self

    @recorded
    def update(self, dataset: Dataset) -> Self:
        """Take rows that were appended to the store of the fit or dropped from it.

        The features are updated by the blocks that changed (`AlignedFeatures.update`); the linear model is fitted
        anew on all rows.

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
            If the features keep no sums, the rows do not suit them, or exposures of the fit are no column of them.
        """
        check_is_fitted(self)
        # Candidates stay, so that sums of blocks that have not changed serve again; the linear model has no such sums.
        self.features_, held_out = updatable(self.features_, getattr(self.features, "sums", None)), None
        if isinstance(dataset, Dataset):
            refuse_codes(dataset, "update", WHY_NO_UPDATE)
            self._rows(dataset, None, None)
            record_rows(dataset)
            dataset = with_exposure_of_fit(self, dataset, exposure_of_fit(self))
            dataset = BesideFeatures(dataset, None, None, self.by_group, self.by_time).held(dataset)
            dataset, held_out = self._hold_out(dataset)
            dataset = with_rates(self, dataset)
        self.features_.update(dataset)
        self._check_targets(dataset)
        run, weights = self._run(""), self._class_weights(dataset)
        problem = self._problem_on(self.features_, dataset, weights)
        self._keep(self._fit_linear(problem, dataset, run))
        self._finish(problem, dataset, run)
        self._score_held_out(held_out)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # missing values are filled, as those of frames are
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def planned_stages(self, dataset: Dataset) -> list[tuple[Passes, dict[str, int]]]:
        """The stages of a fit on `dataset`, none of which holds what another does: what `dkl.plan` adds up.

        Returns
        -------
        list of (passes, held)
            The records of each kind of pass and how often it runs at most, and the bytes that the driver holds at most
            beside them, item by item. The features are chosen, then found, then the linear model is fitted.
        """
        check_constraints(self)
        self._check_features()
        self._check_solver()
        unfitted = self._unfitted()
        weights = unfitted._class_weights(dataset)
        loss = unfitted._settle(dataset).loss
        stages: list[tuple[Passes, dict[str, int]]] = []
        rows: dict[str, int] = {}
        if self._chooses:
            choosing, rows, others = unfitted._planned_choice(dataset, weights)
            stages += choosing
            # what they would take in place of the costliest is no further time, but has to have room
            for other in unfitted._learners_of(others):
                records = [(of_pass, 0) for of_pass, _ in other.planned_passes(dataset)]
                stages.append((records, {**other.planned_memory(dataset), **rows}))
        learner = unfitted._new_features("features")
        passes, held = [*learner.planned_passes(dataset)], {**learner.planned_memory(dataset), **rows}
        folds = unfitted._judging_folds(dataset)
        for changes in unfitted._rivals() if len(folds) > 1 else ():
            # each rival is searched for and judged on each fold by itself
            pilot = unfitted._pilot(str(folds[0]), changes)
            judging = chosen_penalty_passes(unfitted._planned_problem(pilot, dataset, weights), dataset.n_rows)
            passes += [(records, calls * len(folds)) for records, calls in (*pilot.planned_passes(dataset), *judging)]
        problem = unfitted._planned_last(unfitted._planned_problem(learner, dataset, weights), dataset)
        # features and linear models are fitted one after the other
        linear = unfitted._planned_linear(problem, dataset)
        # the log loss, of which there are most passes, is taken for features only that have room for its Hessians
        memory = head_memory(replace(problem, loss=loss), dataset.n_rows) if unfitted._is_exact else {}
        return [*stages, (passes, held), (linear, {**memory, **rows})]

    @property
    def _is_exact(self) -> bool:
        """Whether the linear model is fitted by Newton steps."""
        return self.linear is None and self._settings.solver == "newton"

    def _planned_linear(self, problem: LinearProblem, dataset: Dataset) -> Passes:
        """The passes of the linear model, and of what follows it."""
        calibration = calibration_passes(problem) if self._settings.calibrate else ()
        last = [*calibration, *self._planned_scores(problem)]
        n_rows, n_blocks = dataset.n_rows, dataset.source.n_blocks
        if self.linear is not None:
            return [*given_passes(problem, self.linear, n_blocks, epochs=self.epochs), *last]
        if self._is_exact:
            return [*newton_passes(problem, n_rows), *last]
        patience, _ = self._stopping(n_rows)
        epochs = epoch_passes(problem, n_rows=n_rows, n_blocks=n_blocks, epochs=self.epochs, patience=patience)
        return [*epochs, *last]

    def planned_passes(self, dataset: Dataset) -> Passes:
        """The records of each kind of pass over `dataset` and how often it runs at most, over all stages."""
        return [planned for passes, _ in self.planned_stages(dataset) for planned in passes if planned[1]]

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """Bytes that the driver holds at most beside the passes: of the stage that holds most."""
        return largest_held([held for _, held in self.planned_stages(dataset)])

    def planned_driving(self, dataset: Dataset) -> float:
        """Operations of a product of matrices that the driver takes as long as, beside the passes of its features."""
        if self._chooses:
            return 0.0
        unfitted = self._unfitted()
        unfitted._settle(dataset)
        return planned_driving(unfitted._new_features("features"), dataset)

    def _unfitted(self) -> Self:
        """An unfitted copy with some seed, which plans ask for problems; the machine itself stays as it is."""
        unfitted = clone(self)
        unfitted.seed_ = 0
        return unfitted

    @property
    def _fit(self) -> LinearFit:
        """The linear fit that the fitted attributes stand for, from which `partial_fit` goes on."""
        units = self.target_center_, self.target_scale_
        return LinearFit(self.linear_, *units, self.n_epochs_, self.validation_losses_, alpha=self._settings.alpha)

    def _keep(self, fit: LinearFit) -> None:
        """Leave a linear fit in the machine's fitted attributes."""
        self.linear_ = fit.model
        self.target_center_, self.target_scale_ = fit.target_center, fit.target_scale
        self.n_epochs_, self.validation_losses_, self.message_ = fit.epochs, fit.losses, fit.message
        self.alpha_ = fit.alpha
        self._forget_scores()
        if fit.choice is not None:
            self.alphas_, self.validation_scores_ = fit.choice.alphas, fit.choice.scores

    def _finish(self, problem: LinearProblem, dataset: Dataset, run: Run) -> None:
        """What is left to do after the linear model is fitted."""

    def _as_fitted(self, fit: LinearFit) -> Self:
        """This machine as it would be with a linear fit that is under way."""
        machine = copy.copy(self)
        machine._keep(fit)
        return machine

    def _fit_linear(self, problem: LinearProblem, dataset: Dataset, run: Run) -> LinearFit:
        """Fit the linear model by the machine's solver; subscribers may look at the machine under way."""
        # a machine that calibrates has no probabilities before its last pass, so that nobody is shown it under way
        run = replace(run, estimator=None if self._settings.calibrate else self._as_fitted)
        if self.linear is not None:
            return fit_given(problem, dataset.source, run, self.linear, epochs=self.epochs)
        if self._settings.solver == "newton":
            return fit_by_newton(problem, dataset.source, run)
        patience, _ = self._stopping(dataset.n_rows)
        return fit_by_epochs(problem, dataset.source, run, epochs=self.epochs, patience=patience)

    def _stopping(self, n_rows: int) -> tuple[int | None, float]:
        """The patience of stochastic epochs with held-out rows, None to go through all, and the share of these rows."""
        if self.linear is not None:
            return None, 0.0
        if self.early_stopping:
            return self.patience, self.validation_fraction
        return default_stopping(n_rows) if self._settings.solver == "sgd" and self.epochs is None else (None, 0.0)

    def _judging_rows(self, dataset: Dataset) -> HeldOut:
        """All rows that judge anything in this fit, here or in the features: a share that holds both of theirs."""
        shares = [self.validation_fraction, JUDGING_SHARE if self._chooses else 0.0]
        if self.features is not None and not self._chooses:
            shares.append(judging_share(self._new_features("features"), dataset.source))
        return HeldOut(max(shares), self.seed_)

    def _judging_folds(self, dataset: Dataset) -> list[HeldOut]:
        """The rows that the penalty of searched features is judged on: a share of many rows, five folds of few.

        Features that were searched for on all rows look too good on each of them, and a penalty chosen there is too
        light: those that judge are kept out of the search.
        """
        settings = self._settings
        if settings.alpha != "auto" or settings.solver != "newton" or not self._new_features("features")._searches:
            return []
        held_out, most = HeldOut(self.validation_fraction, self.seed_), dataset.source.most_folds
        return judging_folds(held_out, dataset.total_weight, most)

    def _piloted_choice(
        self, folds: list[HeldOut], dataset: Dataset, weights: np.ndarray | None, run: Run
    ) -> tuple[PenaltyChoice | None, dict[str, Any]]:
        """The penalty that the folds agree on, each with a search of its own, and what was changed of the features.

        On few rows a search may follow the noise: random draws of the same number take its place unless it gains
        something on the rows held out, and not by chance. (None, {}) for a single fold.
        """
        if len(folds) < 2:
            return None, {}
        # Each rival is searched for once a fold, without that fold's rows.
        choices, *rivals = (
            [self._judged(fold, changes, dataset, weights, run) for fold in folds] for changes in self._rivals()
        )
        if not rivals or clear_gain(choices, rivals[0]):
            return agreed(choices), {}
        searched, drawn = agreed(choices), agreed(rivals[0])
        message = (
            "features are drawn, since a search for them gains nothing on held-out rows: "
            f"{searched.score:.4f} with it, {drawn.score:.4f} without"
        )
        with suppress(StopRequested):
            run.publish(Event("note", "features", detail={"message": message}))
        return None, _DRAWN

    def _judged(
        self,
        fold: HeldOut,
        changes: dict[str, Any],
        dataset: Dataset,
        weights: np.ndarray | None,
        run: Run,
        prefix: str = "",
    ) -> PenaltyChoice:
        """How the penalties do on a fold that the features do not see."""
        # the stage names the folder of a checkpoint
        stage = prefix + (f"plain-{fold.first:g}" if changes else f"{fold.first:g}")
        context = FitContext(fold, for_machine=True, is_pilot=True, judging_seed=self._judging_seed)
        pilot = self._pilot(stage, changes).fit_within(dataset, context)
        problem = self._problem_on(pilot, dataset, weights)
        own = replace(run, checkpoint=stage_checkpoint(self.checkpoint, f"linear-{stage}"))
        return chosen_penalty(replace(problem, validation=fold, **self._judging_loss()), dataset.source, own)

    def _rivals(self) -> list[dict[str, Any]]:
        """Changes of the features that few rows choose from: none, or all of them drawn, where a search draws some.

        Features of few columns alone are asked for to be read: no draw takes their place.
        """
        # Learners without a share of drawn features have nothing to compare a search with.
        learner = self._new_features("features")
        given = {"plain_share": 0.0, **learner.get_params(deep=False)}
        draws = given["plain_share"] is None and given["solver"] == "corrective" and given["sparse_share"] < 1.0
        return [{}, _DRAWN] if draws and not isinstance(learner.family, FiniteFamily | list | tuple) else [{}]

    def _pilot(self, stage: str, changes: dict[str, Any]) -> FeatureLearner:
        """A learner with fewer features and no refinement, which is enough to judge a choice."""
        pilot = self._learner(f"pilot-{stage}").set_params(**changes)
        most = pilot.n_features if isinstance(pilot.n_features, Integral) else _PILOT_FEATURES
        pilot.set_params(n_features=min(_PILOT_FEATURES, int(most)))
        if "refine" in pilot.get_params(deep=False):
            pilot.set_params(refine=0)
        return pilot

    def _learner(self, stage: str, last: FeatureLearner | None = None) -> FeatureLearner:
        """A new learner of the features, or one that goes on from the last fit."""
        learner = self._new_features(stage)
        return learner if last is None else copy.copy(last).set_params(**learner.get_params(deep=False))

    def _new_features(self, stage: str) -> FeatureLearner:
        """An unfitted learner of the features, with the machine's own seed and checkpoint where it has none."""
        options = {name: getattr(self, name) for name in ("device", "progress", "memory_limit")}
        if isinstance(self.features, str) and not self._chooses:
            learner = learner_entry(self.features).learner_class(**options)
            if "scaling" in learner.get_params(deep=False):
                # a learner of one's own has the scaling that it says; of one by name nothing is said
                learner.set_params(scaling="auto")
        elif self.features is None or isinstance(self.features, str):
            learner = clone(self._advised_features()).set_params(**options)
        else:
            learner = clone(self.features)
        learner = self._knobs.turned(learner)
        given = learner.get_params(deep=False)
        if self._settings.loss in ROUND_LOSSES:
            # rounds that nobody has given a loss look for waves and steps of the machine's own
            parts = learner.named_learners() if isinstance(learner, CombinedFeatures) else []
            if not hasattr(self.features, "fit"):
                parts = [learner, *getattr(learner, "features", ())]
            for rounds in parts:
                if "features_per_round" in rounds.get_params(deep=False):
                    rounds.set_params(loss=self._settings.loss, epsilon=self.epsilon, quantiles=self.quantiles)
        if given.get("random_state") is None:
            learner.set_params(random_state=self.seed_)
        if self.checkpoint is not None and given.get("checkpoint") is None:
            learner.set_params(checkpoint=f"{str(self.checkpoint).rstrip('/')}/{stage}")
        return learner

    def _problem(
        self, feature_map: FeatureMap, dtype: str, dataset: Dataset, weights: np.ndarray | None
    ) -> LinearProblem:
        """The linear model to be fitted on the rows of a dataset, mapped by `feature_map`."""
        settings = self._settings
        calibrates = settings.calibrate and self._pilot_temperature is None
        _, share = self._stopping(dataset.n_rows)
        loss = joint_name(settings.loss, settings.solver, dataset.schema.n_classes)
        return LinearProblem(
            feature_map=feature_map,
            loss=loss,
            alpha=settings.alpha,
            classes=dataset.classes,
            n_targets=dataset.schema.n_targets or 1,
            class_weight=weights,
            epsilon=getattr(self, "epsilon", 0.1),
            quantiles=tuple(getattr(self, "quantiles", ())) if loss == "pinball" else (),
            held_out=HeldOut(max(share, self.validation_fraction if calibrates else 0.0), self.seed_),
            validation=HeldOut(self.validation_fraction, self.seed_),
            calibrated=self._calibrates_by_penalty,
            seed=self.seed_,
            dtype=dtype,
        )

    def _problem_on(self, features: FeatureLearner, dataset: Dataset, weights: np.ndarray | None) -> LinearProblem:
        """`_problem` on fitted features, starting from the linear model that they were learned with."""
        problem = self._problem(features.feature_map_, features.dtype, dataset, weights)
        return replace(problem, start=working_start(features, problem.n_models))

    def _planned_problem(self, features: FeatureLearner, dataset: Dataset, weights: np.ndarray | None) -> LinearProblem:
        """`_problem` on the largest map that features which are not fitted yet can come to."""
        return self._problem(features.planned_map(dataset), features.dtype, dataset, weights)

    def _run(self, fingerprint: str) -> Run:
        """How the passes of the linear model are run; without a fingerprint no checkpoint is kept."""
        return Run(
            publish=resolve_progress(self.progress),
            memory_limit=self.memory_limit,
            device=recorded_device(self.device),
            checkpoint=stage_checkpoint(self.checkpoint, "linear") if fingerprint else None,
            fingerprint=fingerprint,
        )

    @property
    def _scorer(self) -> Scorer:
        """What answers rows: the linear model with the feature map before it."""
        if not hasattr(self.linear_, "coef_"):
            n_outputs = (
                1 if len(getattr(self, "classes_", ())) == 2 else len(getattr(self, "classes_", self.target_center_))
            )
            units = self.target_center_, self.target_scale_
            given: Any = EstimatorScorer(self.feature_map_, self.linear_, self.features_.dtype, *units, n_outputs)
            return given
        coef, intercept = np.atleast_2d(self.linear_.coef_), np.atleast_1d(self.linear_.intercept_)
        return Scorer(self.features_.feature_map_, coef, intercept, self.features_.dtype)

    @property
    def feature_map_(self) -> FeatureMap:
        """The feature map of the fitted features."""
        return self.features_.feature_map_

    def _class_weights(self, dataset: Dataset) -> np.ndarray | None:
        """The factor of each class, (K,); None for none, and for targets that are numbers."""
        return None

    def _rows(self, X: object, y: object, sample_weight: object) -> Dataset:
        """Further rows, encoded as those of `fit`."""
        # Further rows may lack some of the classes of fit, and may not bring others.
        known = getattr(self, "classes_", None)
        dataset = as_dataset(encoded_rows(self, X), y, sample_weight, task=self._task, classes=known)
        check_classes(self, dataset)
        check_columns(self, dataset)
        return dataset

    def _advised_features(self) -> FeatureLearner:
        """The features that the rows have asked for, with ``features=None``."""
        if not hasattr(self, "_advised"):
            raise ValueError(
                f"features={self.features!r} asks the rows, which have not been read: ask dkl.suggest first, as in "
                "dkl.plan(dkl.suggest(dataset).estimator, dataset)"
            )
        return self._advised

    def _check_targets(self, dataset: Dataset) -> None:
        """Raise ValueError where the targets do not suit the loss."""
