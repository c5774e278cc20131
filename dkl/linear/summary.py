"""What stochastic fitting must know of the rows beforehand, from one pass that maps a sample only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.blocks.block import Block
from dkl.blocks.maps import map_rows
from dkl.blocks.records import Accumulator, BlockSum, Record, RowSample
from dkl.blocks.targets import encode_targets
from dkl.features.feature_map import FeatureMap
from dkl.linear.pieces import HeldOut
from dkl.linear.targets import deviations

_SAMPLE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class TargetSummary:
    """Figures of the targets, from sums alone.

    Attributes
    ----------
    n_rows, total_weight : float
        Class weights included.
    target_center, target_scale : ndarray of shape (t,)
        Weighted mean and deviation of regression targets; the scale of a constant target is 1.
    unevenness : float
        The share of the target's variance that lies between blocks: near 0 when rows are shuffled, 1 when every block
        has one class.
    """

    n_rows: float
    total_weight: float
    target_center: np.ndarray
    target_scale: np.ndarray
    unevenness: float = 0.0


@dataclass(frozen=True, eq=False)
class Summary(TargetSummary):
    """Figures of the targets, and of a sample of mapped rows.

    Attributes
    ----------
    center : ndarray of shape (m,), float64
        The weighted mean feature of a sample of rows.
    square_length : float
        The mean of ``weight^2 * squared length`` of its rows after centring: what makes steps noisy.
    largest : float
        The largest ``weight * (squared length + 1)`` in the sample, where the mean weight is 1.
    """

    center: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square_length: float = 1.0
    largest: float = 2.0


def summary_records(
    n_columns_y: int, n_classes: int | None, class_weight: np.ndarray | None, held_out: HeldOut, seed: int
) -> tuple[Record, ...]:
    """The records of the pass: a row sample, and sums of the targets.

    Parameters
    ----------
    n_columns_y : int
        K for classes, else the number of targets.
    n_classes : int or None
    class_weight : ndarray of shape (K,) or None
    held_out : HeldOut
        Rows that are not counted.
    seed : int
    """
    sums = target_record(n_columns_y, n_classes, class_weight, held_out)
    return sums, RowSample("sample for step lengths", _SAMPLE_ROWS, seed)


def target_record(
    n_columns_y: int, n_classes: int | None, class_weight: np.ndarray | None, held_out: HeldOut
) -> BlockSum:
    """The record of the targets' sums, which reads no X."""
    accumulators = {
        "sum": Accumulator((n_columns_y,)),
        "squares": Accumulator((n_columns_y,)),
        "between": Accumulator((n_columns_y,)),
        "weight": Accumulator((1,)),
        "rows": Accumulator((1,)),
        "blocks": Accumulator((1,)),
    }
    operands = {"n_classes": n_classes, "class_weight": class_weight, "held_out": held_out}
    return BlockSum("targets", target_sums, accumulators, operands, light=True)


def target_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums over a block of w y, w y^2 (y one-hot for classes) and w, (sum w y)^2 / sum w, rows, and 1 for the block.

    Operands: "n_classes" (or None), "class_weight" (or None), "held_out".
    """
    block = block.rows(np.flatnonzero(~operands["held_out"].mask(block.row_id)))
    n_classes = operands["n_classes"]
    encoded = encode_targets(block, n_classes, operands["class_weight"])
    if n_classes is None:
        weight, targets = encoded[:, -1].sum(), np.asarray(block.y, dtype=np.float64).reshape(block.n_rows, -1)
        sums, squares = encoded[:, :-1].sum(axis=0), (encoded[:, :-1] * targets).sum(axis=0)
    else:
        weight, sums = encoded.sum(), encoded.sum(axis=0)
        squares = sums
    between = sums**2 / weight if weight > 0 else np.zeros_like(sums)
    return {
        "sum": sums,
        "squares": squares,
        "between": between,
        "weight": np.array([weight]),
        "rows": np.array([float(block.n_rows)]),
        "blocks": np.array([float(block.n_rows > 0)]),
    }


def summarise(
    results: tuple[Any, ...], feature_map: FeatureMap, *, class_weight: np.ndarray | None, dtype: str
) -> Summary:
    """The summary that the results of `summary_records` come to.

    Raises
    ------
    ValueError
        If no row is left to fit on.
    """
    sums, sample = results
    targets = summarise_targets(sums)
    mean_weight = targets.total_weight / targets.n_rows
    center, square_length, largest = _lengths(sample, feature_map, class_weight, mean_weight, dtype)
    return Summary(**vars(targets), center=center, square_length=square_length, largest=largest)


def summarise_targets(sums: Mapping[str, np.ndarray]) -> TargetSummary:
    """What the sums of `target_record` come to.

    Raises
    ------
    ValueError
        If no row is left to fit on.
    """
    weight, rows = float(sums["weight"][0]), float(sums["rows"][0])
    if weight == 0.0:
        raise ValueError("no row is left to fit on: all are held out; use a smaller validation_fraction, or more rows")
    center = sums["sum"] / weight
    variance = np.maximum(sums["squares"] / weight - center**2, 0.0)
    scale = deviations(center, variance)
    between = np.maximum(sums["between"] / weight - center**2, 0.0)
    spare_blocks = float(sums["blocks"][0]) - 1.0
    return TargetSummary(rows, weight, center, scale, _unevenness(between.sum(), variance.sum(), spare_blocks, rows))


def _unevenness(between: float, variance: float, spare_blocks: float, rows: float) -> float:
    """The share of the variance between blocks, less what chance gives to blocks of so few rows."""
    chance = spare_blocks / rows
    if variance <= 0.0 or chance >= 1.0:
        return 0.0
    return float(max(0.0, (between / variance - chance) / (1.0 - chance)))


def _lengths(
    sample: Block, feature_map: FeatureMap, class_weight: np.ndarray | None, mean_weight: float, dtype: str
) -> tuple[np.ndarray, float, float]:
    """Mean feature, mean ``weight^2 * squared length``, largest ``weight * (squared length + 1)`` of a sample."""
    phi = map_rows(sample.X, feature_map, dtype).astype(np.float64)
    factors = np.ones(sample.n_rows) if class_weight is None else class_weight[np.asarray(sample.y)]
    weights = sample.weights * factors / mean_weight
    # rows come into a sample by their weight, unless it has room for all of them
    counted = weights if sample.n_rows < _SAMPLE_ROWS else factors
    counted = counted / counted.sum() if counted.any() else np.full(sample.n_rows, 1.0 / sample.n_rows)
    center = counted @ phi
    square_lengths = np.sum((phi - center) ** 2, axis=1)
    return center, float(counted @ (weights * square_lengths)), float(np.max(weights * (square_lengths + 1.0)))
