"""What a machine's fit will take, before any row is read: its passes and the memory of its driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.linear.fitting import LinearProblem
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import head_memory, newton_passes
from dkl.machines.contest import contenders, usual_advice
from dkl.machines.machine_plan import Passes, calibration_passes, epoch_passes
from dkl.machines.settings import SettledMixin
from dkl.methods.base import FeatureLearner
from dkl.methods.parameters import Constrained, check_constraints


class PlannedMixin(SettledMixin):
    """What `dkl.plan` asks of a machine; the parts of a fit that it asks about are the machine's own."""

    patience: int
    seed_: int
    _advised: FeatureLearner
    _check_features: Callable[[], None]
    _class_weights: Callable[[Dataset], np.ndarray | None]
    _judged_sample: Callable[[Dataset], tuple[Dataset, list[HeldOut]]]
    _judging_folds: Callable[[Dataset], list[HeldOut]]
    _new_features: Callable[[str], FeatureLearner]
    _pilot: Callable[[str, dict[str, Any]], FeatureLearner]
    _problem: Callable[..., LinearProblem]
    _rivals: Callable[[], list[dict[str, Any]]]

    def planned_passes(self, dataset: Dataset) -> Passes:
        """The records of each kind of pass over `dataset` and how often it runs at most; what `dkl.plan` adds up."""
        check_constraints(cast(Constrained, self))
        self._check_features()
        self._check_solver()
        unfitted = self._unfitted()
        weights = unfitted._class_weights(dataset)
        unfitted._settle(dataset)
        passes: list[Any] = unfitted._planned_choice(dataset, weights) if self._chooses else []
        folds = unfitted._judging_folds(dataset)
        for changes in unfitted._rivals() if len(folds) > 1 else ():
            # each rival is searched for and judged on each fold by itself
            pilot = unfitted._pilot(str(folds[0]), changes)
            judging = newton_passes(unfitted._planned_problem(pilot, dataset, weights), dataset.n_rows)
            passes += [(records, calls * len(folds)) for records, calls in (*pilot.planned_passes(dataset), *judging)]
        learner = unfitted._new_features("features")
        passes.extend(learner.planned_passes(dataset))
        problem = unfitted._planned_problem(learner, dataset, weights)
        if unfitted._settings.solver == "newton":
            passes.extend(newton_passes(problem, dataset.n_rows))
        else:
            patience = self.patience if self.early_stopping else None
            n_rows, n_blocks = dataset.n_rows, dataset.source.n_blocks
            passes += epoch_passes(problem, n_rows=n_rows, n_blocks=n_blocks, epochs=self.epochs, patience=patience)
        return [*passes, *(calibration_passes(problem) if unfitted._settings.calibrate else ())]

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """Bytes that the driver holds at most beside the passes: of the features, or of the linear model's steps."""
        unfitted = self._unfitted()
        unfitted._settle(dataset)
        if self._chooses:
            # Kinds of features are tried one after the other: the largest of them counts.
            tried = contenders(dataset, usual_advice())
            unfitted._advised = max(
                (contender.learner for contender in tried),
                key=lambda learner: sum(learner.planned_memory(dataset).values()),
            )
        learner = unfitted._new_features("features")
        features = learner.planned_memory(dataset)
        if unfitted._settings.solver != "newton":
            return features
        problem = unfitted._planned_problem(learner, dataset, unfitted._class_weights(dataset))
        # features and linear model are fitted one after the other: the larger of the two counts
        return max(features, head_memory(problem, dataset.n_rows), key=lambda items: sum(items.values()))

    def _unfitted(self) -> Self:
        """An unfitted copy with some seed, which plans ask for problems; the machine itself stays as it is."""
        unfitted = clone(self)
        unfitted.seed_ = 0
        return unfitted

    def _planned_choice(self, dataset: Dataset, weights: np.ndarray | None) -> list[Any]:
        """The passes that choosing the kind of features takes; leaves the costliest kind to be planned for."""
        sample, folds = self._judged_sample(dataset)
        passes: list[Any] = []
        tried = contenders(dataset, usual_advice())
        for contender in tried:
            self._advised = contender.learner
            pilot = self._pilot("0", {})
            problem = replace(self._planned_problem(pilot, sample, weights), **self._judging_loss())
            judging = newton_passes(problem, sample.n_rows)
            passes += [(records, calls * len(folds)) for records, calls in (*pilot.planned_passes(sample), *judging)]
        self._advised = max((c.learner for c in tried), key=lambda learner: learner.planned_map(dataset).n_features)
        return passes

    def _planned_problem(self, features: FeatureLearner, dataset: Dataset, weights: np.ndarray | None) -> LinearProblem:
        """`_problem` on the largest map that features which are not fitted yet can come to."""
        return self._problem(features.planned_map(dataset), features.dtype, dataset, weights)
