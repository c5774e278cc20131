"""The passes that fitting a kernel machine takes, as records with their shapes, before any of them ran."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.linear.calibration import calibration_record
from dkl.linear.epochs import EpochDriver, EpochProblem, Stopping
from dkl.linear.fitting import LinearProblem, default_epochs
from dkl.linear.minibatches import RowTargets
from dkl.linear.newton import head_memory, newton_passes
from dkl.linear.sgd import default_estimator, first_state, sgd_step, step_schedule
from dkl.linear.summary import summary_records
from dkl.protocols.records import Record

Passes = Sequence[tuple[Sequence[Record], int]]


def machine_passes(machine: Any, dataset: Dataset) -> Passes:
    """The passes of the features, then those of the linear model on a map of their largest size.

    Parameters
    ----------
    machine : KernelClassifier or KernelRegressor
        Fitted or not; it stays as it is.
    dataset : Dataset

    Returns
    -------
    sequence of (records, calls)
    """
    unfitted = clone(machine)
    unfitted.seed_ = 0
    weights = unfitted._class_weights(dataset)
    passes: list[Any] = []
    folds = unfitted._judging_folds(dataset)
    for changes in unfitted._rivals() if len(folds) > 1 else ():
        pilot = unfitted._pilot(folds[0], changes)
        once = [*pilot.planned_passes(dataset)]
        once += newton_passes(_problem(unfitted, pilot, dataset, weights), dataset.n_rows)
        passes.extend((records, calls * len(folds)) for records, calls in once)
    learner = unfitted._new_features("features")
    passes.extend(learner.planned_passes(dataset))
    problem = _problem(unfitted, learner, dataset, weights)
    if machine.solver == "newton":
        passes.extend(newton_passes(problem, dataset.n_rows))
    else:
        passes.extend([(_summary(problem), 1), *_epochs(machine, problem, dataset)])
    if getattr(machine, "calibrate", False):
        passes.append((_calibration(problem), 1))
    return passes


def machine_memory(machine: Any, dataset: Dataset) -> dict[str, int]:
    """What the driver holds at most beside the passes, item by item: of the features, or of Newton steps of a head."""
    unfitted = clone(machine)
    unfitted.seed_ = 0
    learner = unfitted._new_features("features")
    features = learner.planned_memory(dataset)
    if machine.solver != "newton":
        return features
    head = head_memory(_problem(unfitted, learner, dataset, unfitted._class_weights(dataset)), dataset.n_rows)
    return max(features, head, key=lambda items: sum(items.values()))


def _problem(machine: Any, learner: Any, dataset: Dataset, weights: np.ndarray | None) -> LinearProblem:
    """The linear problem on a map of the learner's largest size."""
    features: Any = SimpleNamespace(feature_map_=learner.planned_map(dataset), dtype=learner.dtype)
    return machine._problem(features, dataset.classes, dataset.schema.n_targets or 1, weights)


def _summary(problem: LinearProblem) -> Sequence[Record]:
    n_classes = None if problem.classes is None else len(problem.classes)
    columns = n_classes or problem.n_targets
    return summary_records(columns, n_classes, problem.class_weight, problem.held_out, problem.seed)


def _epochs(machine: Any, problem: LinearProblem, dataset: Dataset) -> Passes:
    schedule = step_schedule(problem.loss, alpha=problem.alpha, square_length=1.0, largest=2.0)
    estimator = default_estimator(problem.loss, schedule, alpha=problem.alpha, epsilon=problem.epsilon)
    width = problem.feature_map.n_features
    task = EpochProblem(
        step=sgd_step,
        step_operands={"estimator": estimator, "classes": problem.classes},
        first=first_state(problem.n_models, width, dtype=problem.dtype, clock=schedule.clock),
        feature_map=problem.feature_map,
        targets=RowTargets(problem.classes, problem.class_weight),
        n_blocks=dataset.source.n_blocks,
        epochs=machine.epochs or default_epochs(dataset.n_rows),
        center=np.zeros(width),
        held_out=problem.held_out,
        stopping=Stopping(problem.loss, machine.patience, problem.epsilon) if machine.early_stopping else None,
        dtype=problem.dtype,
    )
    return EpochDriver().plan(task)


def _calibration(problem: LinearProblem) -> Sequence[Record]:
    record = calibration_record(
        problem.feature_map,
        np.zeros((problem.n_models, problem.feature_map.n_features)),
        np.zeros(problem.n_models),
        held_out=problem.held_out,
        targets=RowTargets(problem.classes, problem.class_weight),
        dtype=problem.dtype,
    )
    return [record]
