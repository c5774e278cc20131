"""One pass over held-out rows that finds the temperature of a classifier's probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.linear.calibration_sums import calibration_sums
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.scores import decision_values, scoring_cost
from dkl.linear.temperature import MULTIPLIERS
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum


def calibration_record(
    feature_map: FeatureMap,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    held_out: HeldOut,
    targets: RowTargets,
    dtype: str,
) -> BlockSum:
    """The record of the pass; `dkl.linear.temperature.best_multiplier` takes its sums."""
    operands = {
        "feature_map": feature_map,
        "coef": coef,
        "intercept": intercept,
        "held_out": held_out,
        "targets": targets,
        "dtype": dtype,
    }
    shape = (3, len(MULTIPLIERS))
    accumulators = {"label": Accumulator(shape), "uniform": Accumulator(shape), "weight": Accumulator((1,))}
    cost = partial(scoring_cost, feature_map=feature_map, n_models=len(coef), share=held_out.share, dtype=dtype)
    return BlockSum("calibration", calibration_block, accumulators, operands, cost=cost)


def calibration_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`calibration_sums` of the held-out rows of a block, and their weight."""
    rows = block.rows(np.flatnonzero(operands["held_out"].mask(block.row_id)))
    scores = decision_values(
        rows.X, operands["feature_map"], operands["coef"], operands["intercept"], dtype=operands["dtype"]
    )
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    weight = operands["targets"].weights(rows)
    weight = np.ones(rows.n_rows) if weight is None else weight
    sums = calibration_sums(scores, np.asarray(rows.y), weight, MULTIPLIERS)
    return {**sums, "weight": np.array([weight.sum()])}
