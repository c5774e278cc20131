"""Block functions of candidate selection: sums of the candidates' features by class, over all rows or by fold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.kernels.device import array_module, together_on_host, with_targets
from dkl.kernels.sums import encode_targets, feature_squares, feature_sums
from dkl.protocols.block import Block

# Larger accumulators are cut into panels, since a pass sends each accumulator whole.
_ACCUMULATOR_BYTES = 64 << 20


def potential_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One block's sums of the candidates' features times targets, of the targets, and of squared features if needed.

    Operands: "problem" (a `PotentialProblem`).
    """
    problem = operands["problem"]
    targets, xp = encode_targets(with_targets(block), problem.n_classes, problem.class_weight), array_module(block.X)
    if problem.pivot is not None:
        targets[:, :-1] -= xp.asarray(problem.pivot) * targets[:, -1:]
    features = feature_sums(block.X, targets, problem.candidates, dtype=problem.dtype, stay=True)
    sums = {"targets": targets.sum(axis=0), **_cut("features", features)}
    if problem.needs_squares:
        # Squared features are weighted by class indicators, or by [y^2, y, 1] times the weights. The targets are weight
        # times y, so their square is divided by the weight once.
        weights = targets
        if problem.n_classes is None:
            weights = xp.concat([xp.square(targets[:, :-1]) / targets[:, -1:], targets], axis=1)
        columns = [
            feature_squares(block.X, xp.ascontiguousarray(column), problem.candidates, dtype=problem.dtype, stay=True)
            for column in weights.T
        ]
        sums |= _cut("squares", xp.stack(columns, axis=2))
    return together_on_host(sums)


def target_panels(parts: int, size: int, width: int) -> list[slice]:
    """Ranges of target columns such that no accumulator of sums exceeds 64 MiB."""
    step = max(1, _ACCUMULATOR_BYTES // (8 * parts * size))
    return [slice(start, min(start + step, width)) for start in range(0, width, step)]


def _cut(name: str, sums: Any) -> dict[str, Any]:
    """Sums of shape (parts, m, K), cut into the accumulators of the record."""
    return {f"{name}{panel.start}": sums[:, :, panel] for panel in target_panels(*sums.shape)}


def sums_by_fold(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`potential_sums` for the rows of each fold, stacked along a first axis.

    Operands: "problem" (a `PotentialProblem`), "folds" (row ids to folds).
    """
    folds = operands["folds"]
    number = folds(block.held_with)
    present = np.unique(number)
    sums_of = {fold: potential_sums(block.rows(number == fold), operands) for fold in present}
    zeros = {name: np.zeros_like(sums) for name, sums in sums_of[present[0]].items()}
    return {name: np.stack([sums_of.get(fold, zeros)[name] for fold in (*range(folds.count), -1)]) for name in zeros}
