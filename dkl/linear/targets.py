"""Mean and deviation of regression targets, from a pass that reads no X: models are fitted to standardised targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.blocks.block import Block
from dkl.blocks.moments import column_sums, moments_of, moments_record
from dkl.blocks.records import BlockSum
from dkl.data.source import BlockSource
from dkl.passes.engine import run_pass


@dataclass(frozen=True, eq=False)
class TargetScale:
    """Weighted mean and deviation of t targets, each of shape (t,); the deviation of a constant target is 1."""

    center: np.ndarray
    scale: np.ndarray


def target_scale(source: BlockSource, n_targets: int) -> TargetScale:
    """Of all rows of a source, in one pass over targets and weights."""
    moments = moments_of(run_pass(source, [target_record(n_targets)]).results[0])
    return TargetScale(moments.mean, deviations(moments.mean, moments.variance))


def deviations(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """What targets are divided by; 1 where they are constant, of which rounding leaves a little variance."""
    found = np.where(variance > 1e-20 * mean**2, np.sqrt(variance), 1.0)
    found[found == 0.0] = 1.0
    return found


def target_record(n_targets: int) -> BlockSum:
    """The record of the pass."""
    return replace(moments_record(n_targets), name="targets", function=target_sums, light=True)


def target_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`column_sums` of a block's targets."""
    return column_sums(np.asarray(block.y, dtype=np.float64).reshape(block.n_rows, -1), block.weights)
