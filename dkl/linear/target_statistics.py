"""Means and deviations of numeric targets, and class shares, from one pass that reads no X."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dkl.data.dataset import Dataset
from dkl.events import ignore
from dkl.kernels.moments import moments_of, moments_record, refuse_lost_squares
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import target_sums
from dkl.passes.loop import PassResult, Run
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.protocols.source import BlockSource


@dataclass(frozen=True, eq=False)
class TargetScale:
    """Weighted mean and standard deviation of t targets, each of shape (t,); 1 for a constant target.

    Models (K, m) with intercepts (K,) are of standardised targets; a target has K / t consecutive ones, one for each of
    its quantiles.
    """

    center: np.ndarray
    scale: np.ndarray

    def in_own_units(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Models of standardised targets, as models of the targets; the shapes may have leading axes."""
        center, scale = self._of_models(intercept)
        return coef * scale[:, None], intercept * scale + center

    def standardised(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Models of the targets, as models of standardised targets."""
        center, scale = self._of_models(intercept)
        return coef / scale[:, None], (intercept - center) / scale

    def _of_models(self, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Center and scale of the target of each model, (K,)."""
        each = intercept.shape[-1] // len(self.center)
        return np.repeat(self.center, each), np.repeat(self.scale, each)


def target_scale(source: BlockSource, n_targets: int, run: Run | None = None) -> TargetScale:
    """Mean and standard deviation of the targets of all rows, from one pass over targets and weights."""

    def scale(passed: PassResult) -> TargetScale:
        moments = moments_of(passed.results[0])
        refuse_lost_squares(moments, "y")
        return TargetScale(moments.mean, deviations(moments.mean, moments.variance))

    some = TargetScale(np.ones(n_targets), np.ones(n_targets))
    # the pass reads a few numbers a row, so it shows no line of progress
    quiet = replace(run or Run(), publish=ignore)
    return quiet.read(source, [target_record(n_targets)], scale, planned=some)


def target_units(dataset: Dataset, run: Run) -> TargetScale | None:
    """`target_scale` of numeric targets; None for classes."""
    return None if dataset.classes is not None else target_scale(dataset.source, dataset.schema.n_targets or 1, run)


def model_targets(
    dataset: Dataset, scale: TargetScale | None, class_weight: np.ndarray | None, *, n_quantiles: int = 0
) -> NewtonTargets:
    """The targets of a dataset's linear models, as in `task_targets`; numeric ones centred and scaled."""
    schema = dataset.schema
    targets = task_targets(schema.n_classes, schema.n_targets or 1, class_weight, n_quantiles=n_quantiles)
    return targets if scale is None else replace(targets, center=scale.center, scale=scale.scale)


def task_targets(
    n_classes: int | None, n_columns: int, class_weight: np.ndarray | None = None, *, n_quantiles: int = 0
) -> NewtonTargets:
    """The target of each linear model of a task: a numeric column, or one class against the rest.

    Two classes have one model. With `n_quantiles` each numeric column has that many consecutive models.
    """
    models = np.arange(n_columns if n_classes is None else n_classes)
    if n_quantiles:
        models = np.repeat(models, n_quantiles)
    elif n_classes is not None and n_classes <= 2:
        models = np.array([1])
    return NewtonTargets(models=models, n_classes=n_classes, class_weight=class_weight)


def deviations(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The divisor of standardised targets: their standard deviation, but 1 for constant ones."""
    # Rounding gives a constant target a variance of about 1e-32 of its square; dividing by it would turn it into noise.
    scale = np.where(variance > 1e-20 * mean**2, np.sqrt(variance), 1.0)
    scale[scale == 0.0] = 1.0
    return scale


def target_record(
    n_columns: int,
    n_classes: int | None = None,
    class_weight: np.ndarray | None = None,
    held_out: HeldOut | None = None,
) -> BlockSum:
    """The record of the pass, which reads no X.

    Parameters
    ----------
    n_columns : int
        K for classes, else the number of targets.
    n_classes : int or None
    class_weight : ndarray of shape (K,) or None
    held_out : HeldOut or None
        Rows excluded from the sums.
    """
    # the moments of any columns, summed by a function that handles classes and held-out rows
    moments = moments_record(n_columns)

    def cost(rows: int, columns: int) -> Cost:
        # the pass reads no columns of X, only targets, and computes their squares
        return Cost(flops=8.0 * rows * n_columns, scratch_bytes=8 * 8 * rows * n_columns)

    return replace(
        moments,
        name="targets",
        cost=cost,
        function=target_sums,
        accumulators={**moments.accumulators, "rows": Accumulator(()), "blocks": Accumulator(())},
        operands={"n_classes": n_classes, "class_weight": class_weight, "held_out": held_out},
        needs_x=False,
    )
