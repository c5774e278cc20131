"""The target of a dataset for another task: numbers of labels that are numbers, labels of numbers that are whole."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dkl.data.checks import shown_value
from dkl.data.schema import Schema, Task
from dkl.data.sources.rows import RowSource
from dkl.data.view import RowNote, RowStep, View
from dkl.protocols.block import Block

# Of more different numbers nobody means labels; all of them would have to be held.
_MOST_CLASSES = 1000


def with_task(source: RowSource, schema: Schema, task: Task, place: str) -> tuple[RowSource, Schema]:
    """Rows whose targets are for `task`, of rows whose targets are for the other one.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    task : {"classification", "regression"}
    place : str
        How the rows are called.

    Raises
    ------
    ValueError
        Labels are texts, numbers are not whole, or there are too many different ones, or several targets.
    """
    remedy = f"create it with task={task!r}, or take "
    if task == "regression":
        classes = schema.classes
        if classes is None or classes.dtype.kind not in "biuf":
            told = "none" if classes is None else shown_value(classes[0])
            raise ValueError(f"the targets of {place} are labels such as {told}, not numbers; take KernelClassifier")
        step = _Retold(np.asarray(classes, np.float64), to_codes=False)
        made = replace(schema, task=task, classes=None)
        return View(source, step), made
    if schema.n_targets is not None:
        raise ValueError(f"{place} has {schema.n_targets} targets a row, and labels are one; take KernelRegressor")
    found = np.empty(0)
    for block in source.blocks_without_x():
        y = np.asarray(block.y)
        if len(parts := y[y != np.trunc(y)]):
            raise ValueError(
                f"the target of {place} holds {parts[0]:g}, and labels are whole numbers; {remedy}KernelRegressor"
            )
        found = np.union1d(found, y)
        if len(found) > _MOST_CLASSES:
            raise ValueError(
                f"the target of {place} has more than {_MOST_CLASSES:,} different numbers; {remedy}KernelRegressor"
            )
    if len(found) < 2:
        raise ValueError(f"the target of {place} has one value, {found[0]:g}; labels are two or more")
    classes = found.astype(np.int64)
    made = replace(schema, task=task, classes=classes)
    return View(source, _Retold(found, to_codes=True), n_classes=len(classes)), made


@dataclass(frozen=True, eq=False)
class _Retold(RowStep, RowNote):
    """Targets as numbers of their codes, or as codes of their numbers, by the sorted values that there are."""

    values: np.ndarray
    to_codes: bool

    @property
    def identity(self) -> str:
        return f"{'labels' if self.to_codes else 'numbers'} {self.values.tolist()}"

    def counts(self, before: RowSource) -> None:
        """Other classes are counted anew."""

    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with its targets for the other task."""
        if block.y is None:
            return block
        return replace(block, y=np.searchsorted(self.values, block.y) if self.to_codes else self.values[block.y])
