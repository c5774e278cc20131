"""The planned passes of the linear model of a kernel machine: their records, and how often each runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkl.linear.array_sgd import rules_of
from dkl.linear.calibration import calibration_record
from dkl.linear.epochs import EpochDriver, EpochProblem
from dkl.linear.fitting import LinearProblem, default_epochs
from dkl.linear.minibatches import RowTargets
from dkl.linear.sgd import batch_rows, first_state, sgd_step, step_schedule
from dkl.linear.summary import summary_records
from dkl.protocols.records import Record

Passes = Sequence[tuple[Sequence[Record], int]]


def epoch_passes(
    problem: LinearProblem, *, n_rows: int, n_blocks: int, epochs: int | None, patience: int | None
) -> Passes:
    """The passes of stochastic steps: one for means and lengths of the mapped rows, then the epochs.

    Parameters
    ----------
    problem : LinearProblem
        On a map of the largest size that the features can have.
    n_rows, n_blocks : int
    epochs : int or None
        None follows `default_epochs`.
    patience : int or None
        Of early stopping; None goes through all epochs.

    Returns
    -------
    sequence of (records, calls)
    """
    n_classes = None if problem.classes is None else len(problem.classes)
    columns = n_classes or problem.n_targets
    summary = summary_records(columns, n_classes, problem.class_weight, problem.held_out, problem.seed)
    # the lengths of rows set the step lengths, not their cost: any will do
    schedule = step_schedule(problem.loss, alpha=problem.alpha, square_length=1.0, largest=2.0)
    estimator = problem.estimator(schedule)
    # Centre, coefficients and labels have the shapes of a fit, with zeros in them.
    width = problem.feature_map.n_features
    task = EpochProblem(
        step=sgd_step,
        step_operands={
            "rules": rules_of(estimator, problem.n_models),
            "classes": problem.classes,
            "batch_rows": batch_rows(n_rows),
        },
        first=first_state(problem.n_models, width, dtype=problem.dtype, clock=schedule.clock),
        feature_map=problem.feature_map,
        targets=RowTargets(problem.classes, problem.class_weight),
        n_blocks=n_blocks,
        epochs=epochs or default_epochs(n_rows),
        center=np.zeros(width),
        held_out=problem.held_out,
        stopping=None if patience is None else problem.stopping(patience),
        dtype=problem.dtype,
    )
    return [(summary, 1), *EpochDriver().plan(task)]


def calibration_passes(problem: LinearProblem) -> Passes:
    """The one pass over the held-out rows that finds the temperature of the probabilities."""
    record = calibration_record(
        problem.feature_map,
        np.zeros((problem.n_models, problem.feature_map.n_features)),
        np.zeros(problem.n_models),
        held_out=problem.held_out,
        targets=RowTargets(problem.classes, problem.class_weight),
        dtype=problem.dtype,
    )
    return [([record], 1)]
