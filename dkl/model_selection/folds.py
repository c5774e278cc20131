"""The folds of a cross-validation as views of a dataset: by a hash of the row's identity, by group or by time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dkl.data.counts import RowCounts, class_weights
from dkl.data.dataset import Dataset
from dkl.data.together.rows import held_rows
from dkl.data.view import RowsByKey, RowsChosen, View
from dkl.linear.judge import Folds


@dataclass(frozen=True, eq=False)
class ValidationFold:
    """One fold: the rows to which a model is fitted, and the rows on which it is scored."""

    train: Dataset
    test: Dataset


def fold_views(dataset: Dataset, folds: Folds) -> list[ValidationFold]:
    """The folds as views; X is not read and no row is copied.

    Parameters
    ----------
    dataset : Dataset
    folds : Folds

    Raises
    ------
    ValueError
        If a fold, or the rows outside it, are empty.
    """
    dataset = held_rows(dataset)
    folds = folds.along_time() if dataset.schema.held_by == "time" else folds
    n_classes = dataset.schema.n_classes
    # One read of targets, weights and row ids, without X, counts for each block and fold the rows, their weight and
    # that of each class: (n_blocks, count + 1, 2 + K). The last entry is for rows in no fold.
    table: list[list[list[float]]] = []
    for block in dataset.source.blocks_without_x():
        fold_of_row = folds(block.held_with)
        of_block = []
        for number in (*range(folds.count), -1):
            rows = block.rows(fold_of_row == number)
            of_classes = [] if n_classes is None else class_weights(rows, n_classes).tolist()
            of_block.append([rows.n_rows, rows.weights.sum(), *of_classes])
        table.append(of_block)
    counts = np.array(table).reshape(dataset.source.n_blocks, folds.count + 1, -1)
    views = []
    for number in range(folds.count):
        test = _view(dataset, folds, number, True, counts[:, number])
        # The counts of other folds are added rather than subtracted from the total, which would lose digits of weights.
        others = counts[:, folds.outside(number)].sum(axis=1)
        train = _view(dataset, folds, number, False, others)
        views.append(ValidationFold(train, test))
    return views


def _view(dataset: Dataset, folds: Folds, number: int, inside: bool, counts: np.ndarray) -> Dataset:
    """The rows of a fold (`inside`), or those that train the model which it judges.

    Parameters
    ----------
    dataset : Dataset
    folds : Folds
    number : int
    inside : bool
    counts : ndarray of shape (n_blocks, 2 + K)
        Counts of the chosen rows by block, so that no pass has to count them.
    """
    name = f"fold {number}" if inside else f"all but fold {number}"
    by_block = RowCounts.of_table(counts, dataset.schema.n_classes)
    if by_block.n_rows == 0:
        raise ValueError(
            f"{name} of {folds.count} has no rows, of {dataset.n_rows} in all; use fewer folds (folds=), or a "
            "share of the rows such as folds=0.2"
        )
    numbers = [number] if inside else folds.outside(number)
    rule = RowsByKey(f"{folds} {number} {inside}", partial(folds.within, numbers))
    source = View(dataset.source, RowsChosen(rule, by_block.rows, by_block))
    return Dataset(source, dataset.schema, store=dataset.store, name=name)
