"""The passes of tuned random features as records: sums for squared errors, by fold or whole, and for margin losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import on_host
from dkl.kernels.gram import packed_panels, packed_size
from dkl.kernels.maps import map_rows, mapping_flops, newton_tile
from dkl.kernels.normal_equations import NewtonTargets, TrialSteps
from dkl.linear.scores import scoring_cost
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.sums import (
    MarginOptions,
    Smoothing,
    judging_shapes,
    judging_sums,
    margin_block,
    margin_shapes,
    squared_block,
)
from dkl.protocols.block import Block
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.squared_sums import Squared, SquaredRows, SquaredSums

RowFunction = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class FoldSums:
    """One pass that serves every lam, Lam, gamma and length at fixed frequencies, by folds of rows.

    Parameters
    ----------
    feature_map : FeatureMap
        With amplitudes 1/sqrt(D).
    targets : NewtonTargets
        Of all outputs.
    folds : callable or None
        From row ids (n,) to the fold of each row, int64; rows outside 0 .. F - 1 are left out. None is one fold.
    n_folds : int
        F.
    n_rows : int or None
        If there are at most half as many rows as columns, the driver gets the mapped rows instead of sums.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.normal_equations import NewtonTargets
    >>> from dkl.features.families import Gaussian
    >>> from dkl.methods.density.pass_records import FoldSums
    >>> folds = FoldSums(Gaussian(1.0).draw(8, 2, 0), NewtonTargets(np.arange(1), None), lambda ids: ids % 5, 5)
    >>> [record.result_bytes for record in folds.records()]
    [6840]
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    folds: RowFunction | None = None
    n_folds: int = 1
    n_rows: int | None = None

    @property
    def keeps_rows(self) -> bool:
        """Whether the driver gets the mapped rows instead of sums."""
        return self.n_rows is not None and 2 * self.n_rows <= self.feature_map.n_features

    def records(self) -> list[Record]:
        """The records of the pass."""
        # n rows of m features take n m numbers, their sums m^2 / 2: the smaller of the two goes to the driver
        if self.keeps_rows and self.n_rows is not None:
            return [RowSample("rows", self.n_rows, seed=0)]
        panels = packed_panels(self.feature_map.n_features + 1, LARGEST_ACCUMULATOR // self.n_folds)
        return [self._record(columns, first=number == 0) for number, columns in enumerate(panels)]

    def collect(self, results: Sequence[Any]) -> list[Squared]:
        """The sums of each fold from the results of the pass, or its mapped rows where there are few rows.

        Parameters
        ----------
        results : sequence
            As of `records`: one `Block` of all rows, or for each panel of columns its share of the Gram matrix of each
            fold.
        """
        if self.keeps_rows:
            rows: Block = results[0]
            values, weight = self.targets(rows)
            folds = np.zeros(rows.n_rows, np.int64) if self.folds is None else self.folds(rows.held_with)
            phi = on_host(map_rows(rows.X, self.feature_map, "float64"))
            by_fold = [np.flatnonzero((folds == f) & (weight > 0.0)) for f in range(self.n_folds)]
            return [SquaredRows(phi[index], values[index], weight[index]) for index in by_fold]
        # panels follow each other by columns, as the packed triangle does
        gram = np.concatenate([panel["gram"] for panel in results], axis=1)
        first: Mapping[str, np.ndarray] = results[0]
        return [SquaredSums(gram[f], first["cross"][f], first["squares"][f]) for f in range(self.n_folds)]

    def _record(self, columns: tuple[int, int], *, first: bool) -> BlockSum:
        """The sums of one panel of columns; the first panel also has the sums of the targets."""
        F, K, width = self.n_folds, len(self.targets.models), self.feature_map.n_features + 1
        accumulators = {"gram": Accumulator((F, packed_size(*columns)))}
        if first:
            accumulators |= {"cross": Accumulator((F, K, width)), "squares": Accumulator((F, K))}
        operands = {
            "feature_map": self.feature_map,
            "targets": self.targets,
            "folds": self.folds,
            "n_folds": F,
            "columns": columns,
            "first": first,
        }
        packed = packed_size(*columns)
        cost = partial(tuned_cost, feature_map=self.feature_map, n_models=K, packed=packed, dtype="float64")
        return BlockSum("sums of pairs of features", squared_block, accumulators, operands, cost)


def margin_records(
    feature_map: FeatureMap,
    targets: NewtonTargets,
    trial: TrialSteps,
    smoothing: Smoothing,
    sample: RowFunction | None,
    *,
    loss: TunedLoss,
    hessian_of: tuple[int, ...],
    dtype: str,
) -> list[BlockSum]:
    """Losses, gradients and Hessians of a step on margin losses, cut into panels of the Hessians' columns."""
    operands = {
        "feature_map": feature_map,
        "targets": targets,
        "trial": trial,
        "smoothing": smoothing,
        "sample": sample,
    }
    n_hessians, records = len(hessian_of), []
    for number, columns in enumerate(packed_panels(feature_map.n_features + 1, LARGEST_ACCUMULATOR // n_hessians)):
        options = MarginOptions(loss, columns, hessian_of, first_order=number == 0, dtype=dtype)
        accumulators = {name: Accumulator(shape) for name, shape in margin_shapes(trial, options).items()}
        packed, n_models = packed_size(*columns) * n_hessians, len(targets.models)
        cost = partial(tuned_cost, feature_map=feature_map, n_models=n_models, packed=packed, dtype=dtype)
        records.append(BlockSum("tuned step", margin_block, accumulators, {**operands, "options": options}, cost))
    return records


def tuned_cost(rows: int, columns: int, *, feature_map: FeatureMap, n_models: int, packed: int = 0, dtype: str) -> Cost:
    """The cost of a block: mapping, scores and gradients in float64, and `packed` products of columns for each row."""
    m, itemsize = feature_map.n_features, np.dtype(dtype).itemsize
    # scores, gradients and trial steps take some six products of a row with every model
    flops = mapping_flops(columns, feature_map) + 12.0 * n_models * m + 2.0 * packed
    tile = newton_tile(m, dtype) * m * (2 * itemsize + 8)
    return Cost(rows * flops, tile + 2 * itemsize * packed)


def judging_record(
    feature_map: FeatureMap, targets: NewtonTargets, model: TunedModel, loss: TunedLoss, *, dtype: str
) -> BlockSum:
    """The record of the pass that judges a given model.

    Parameters
    ----------
    feature_map : FeatureMap
        With amplitudes 1/sqrt(D).
    targets : NewtonTargets
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    dtype : {"float32", "float64"}
        Of the mapped rows.
    """
    accumulators = {name: Accumulator(shape) for name, shape in judging_shapes(model.coef, loss).items()}
    operands = {"feature_map": feature_map, "targets": targets, "model": model, "loss": loss, "dtype": dtype}
    # for each width the scores' slopes of both signs are multiplied with the rows again
    n_models = len(model.coef) * (1 + 2 * len(TUNED_LOSSES[loss].slope_widths))
    cost = partial(scoring_cost, feature_map=feature_map, n_models=n_models, share=1.0, dtype=dtype)
    return BlockSum("objective", judging_sums, accumulators, operands, cost=cost)
