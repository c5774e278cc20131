"""The planned passes of the linear model of a kernel machine: their records, and how often each runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkl.linear.fitting import LinearProblem, calibration_record
from dkl.linear.minibatches import RowTargets
from dkl.protocols.records import Record

Passes = Sequence[tuple[Sequence[Record], int]]


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
