"""One pass over held-out rows that finds the temperature of a classifier's probabilities."""

from __future__ import annotations

from functools import partial

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.scores import scoring_cost
from dkl.linear.sums import calibration_block
from dkl.linear.temperature import MULTIPLIERS
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
    # loss, slope and curvature at each temperature of the grid
    shape = (3, len(MULTIPLIERS))
    accumulators = {"label": Accumulator(shape), "uniform": Accumulator(shape), "weight": Accumulator((1,))}
    cost = partial(scoring_cost, feature_map=feature_map, n_models=len(coef), share=held_out.share, dtype=dtype)
    return BlockSum("calibration", calibration_block, accumulators, operands, cost=cost)
