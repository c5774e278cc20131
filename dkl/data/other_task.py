"""The target of a dataset for another task: numeric labels as numbers, whole numbers as labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dkl.data.checks import shown_value
from dkl.data.schema import Schema, Task
from dkl.data.sources.rows import RowSource
from dkl.data.view import BlockStep, Parts, RowStep, View
from dkl.protocols.block import Block

# Largest number of distinct values that may become labels; all of them are in memory, and more are hardly labels.
_MOST_CLASSES = 1000


def with_task(source: RowSource, schema: Schema, task: Task, place: str) -> tuple[RowSource, Schema]:
    """The rows and the schema with targets converted to `task` from the other one.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    task : {"classification", "regression"}
    place : str
        Name of the rows in messages.

    Raises
    ------
    ValueError
        If labels are not numbers, or numbers are not whole, have too many distinct values or several columns.
    """
    remedy = f"create it with task={task!r}, or take "
    if task == "regression":
        classes = schema.classes
        if classes is None or classes.dtype.kind not in "biuf":
            example = "none" if classes is None else shown_value(classes[0])
            raise ValueError(f"the targets of {place} are labels such as {example}, not numbers; take KernelClassifier")
        step = _RecodedTargets(np.asarray(classes, np.float64), to_codes=False)
        return View(source, step), replace(schema, task=task, classes=None)
    if schema.n_targets is not None:
        raise ValueError(f"{place} has {schema.n_targets} targets a row, and labels are one; take KernelRegressor")
    values = np.empty(0)
    for block in source.blocks_without_x():
        y = np.asarray(block.y)
        if len(fractions := y[y != np.trunc(y)]):
            raise ValueError(
                f"the target of {place} holds {fractions[0]:g}, and labels are whole numbers; {remedy}KernelRegressor"
            )
        values = np.union1d(values, y)
        if len(values) > _MOST_CLASSES:
            raise ValueError(
                f"the target of {place} has more than {_MOST_CLASSES:,} different numbers; {remedy}KernelRegressor"
            )
    if len(values) < 2:
        raise ValueError(f"the target of {place} has one value, {values[0]:g}; labels are two or more")
    classes = values.astype(np.int64)
    step = _RecodedTargets(values, to_codes=True)
    return View(source, step, n_classes=len(classes)), replace(schema, task=task, classes=classes)


@dataclass(frozen=True, eq=False)
class _RecodedTargets(RowStep, BlockStep):
    """The step that replaces codes by their numbers, or numbers by their codes; `values` are the sorted numbers."""

    values: np.ndarray
    to_codes: bool

    @property
    def identity(self) -> str:
        return f"{'labels' if self.to_codes else 'numbers'} {self.values.tolist()}"

    def counts(self, before: RowSource) -> None:
        """None: counts of the new classes must be computed."""

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        if block.y is None:
            return block, chosen
        y = np.searchsorted(self.values, block.y) if self.to_codes else self.values[block.y]
        return replace(block, y=y), chosen
