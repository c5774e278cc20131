"""The folds of a cross-validation as views of a dataset: by a hash of the row's identity, by group or by time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dkl.data.counts import RowCounts, class_weights
from dkl.data.dataset import Dataset
from dkl.data.together.rows import held_rows
from dkl.data.view import RowChoice, RowsChosen, View
from dkl.linear.minibatches import HeldOut
from dkl.protocols.block import Block
from dkl.protocols.held_together import fold_numbers

# Folds and the rows that a machine holds out are chosen by the same hash, so they need different seeds:
# a model that holds rows out with the same seed must not hold out a whole fold
_FOLD_SALT = 0x464F_4C44


@dataclass(frozen=True)
class RowFolds:
    """Which fold each row is in: the same whatever the blocks are, and for rows that are appended later.

    Parameters
    ----------
    count : int
        The number of folds.
    parts : float
        One over the share of the rows that a fold holds: `count` for a cross-validation, 5.0 with one fold for a fifth
        of the rows held out once.
    seed : int
    forward : bool
        By time: a fold is judged by a model of older rows alone, so that the newest fold is number 0 and the oldest
        rows are in none; each of several folds holds one part less of the rows.
    """

    count: int
    parts: float
    seed: int
    # the rule of the rows is in the fingerprint of the rows already
    forward: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, folds: int | float, seed: int) -> RowFolds:
        """So many folds, or a single one of such a share.

        Raises
        ------
        ValueError
            If `folds` is neither a whole number of at least 2 nor a share between 0 and 1.
        """
        if isinstance(folds, int | np.integer) and not isinstance(folds, bool) and folds >= 2:
            return cls(int(folds), float(folds), seed)
        if isinstance(folds, float) and 0.0 < folds < 1.0:
            return cls(1, 1.0 / folds, seed)
        raise ValueError(
            f"folds is {folds!r}; expected a whole number of at least 2 (that many folds), or a share between 0 and 1 "
            "(so much of the rows held out once)"
        )

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """The fold of each row, (n,) int64; `count` for rows that no fold holds."""
        # by time the oldest rows are a part of their own
        parts = self.parts + (self.forward and self.count > 1)
        return fold_numbers(held_with, self.count, self.seed ^ _FOLD_SALT, parts=parts)

    def along(self, dataset: Dataset) -> RowFolds:
        """The folds of rows of this dataset, which follow each other in time where it holds rows out by time."""
        return replace(self, forward=dataset.schema.held_by == "time")

    @property
    def first_held_out(self) -> HeldOut:
        """The rows of fold 0 as a fit holds them out."""
        return HeldOut(1.0 / self.parts, self.seed ^ _FOLD_SALT)

    def outside(self, number: int) -> list[int]:
        """The folds whose rows a model is fitted to that fold `number` judges, `count` for the rows in none."""
        return [other for other in range(self.count + 1) if other > number or (other < number and not self.forward)]


@dataclass(frozen=True)
class FoldRows(RowChoice):
    """The rows of one fold, or all others.

    Parameters
    ----------
    folds : RowFolds
    number : int
    inside : bool
    """

    folds: RowFolds
    number: int
    inside: bool
    needs = ("row_id",)

    @property
    def identity(self) -> str:
        """What a fingerprint of the rows is made of."""
        return f"{self.folds} {self.number} {self.inside}"

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        """Those of the positions `chosen` that stay."""
        numbers = self.folds(block.held_with[chosen])
        return chosen[np.isin(numbers, self.number if self.inside else self.folds.outside(self.number))]


@dataclass(frozen=True, eq=False)
class ValidationFold:
    """One fold: what a model is fitted to, and what it is judged on."""

    train: Dataset
    test: Dataset


def fold_views(dataset: Dataset, folds: RowFolds) -> list[ValidationFold]:
    """The folds as views; X is not read and no row is copied.

    Parameters
    ----------
    dataset : Dataset
    folds : RowFolds

    Raises
    ------
    ValueError
        If a fold has no row, or leaves none to fit.
    """
    dataset = held_rows(dataset)
    folds = folds.along(dataset)
    n_classes = dataset.schema.n_classes
    # One pass over the targets, weights and row ids serves all folds; X, which is large, is not read for it. It counts
    # the rows, their weight and that of each class, (n_blocks, count + 1, 2 + K), the last of rows in no fold.
    table: list[list[list[float]]] = []
    for block in dataset.source.blocks_without_x():
        fold_of_row = folds(block.held_with)
        of_block = []
        for number in range(folds.count + 1):
            rows = block.rows(fold_of_row == number)
            of_classes = [] if n_classes is None else class_weights(rows, n_classes).tolist()
            of_block.append([rows.n_rows, rows.weights.sum(), *of_classes])
        table.append(of_block)
    counts = np.array(table).reshape(dataset.source.n_blocks, folds.count + 1, -1)
    views = []
    for number in range(folds.count):
        test = _view(dataset, FoldRows(folds, number, True), counts[:, number], f"fold {number}")
        # The counts of the others are added, not subtracted from the whole: so weights keep all of their digits.
        others = counts[:, folds.outside(number)].sum(axis=1)
        train = _view(dataset, FoldRows(folds, number, False), others, f"all but fold {number}")
        views.append(ValidationFold(train, test))
    return views


def _view(dataset: Dataset, rule: FoldRows, counts: np.ndarray, name: str) -> Dataset:
    """The rows of a rule as a Dataset that knows how many there are, from counts (n_blocks, 2 + K)."""
    n_classes = dataset.schema.n_classes
    known = RowCounts(counts[:, 0].astype(np.int64), counts[:, 1], counts[:, 2:] if n_classes else None)
    if known.n_rows == 0:
        raise ValueError(
            f"{name} of {rule.folds.count} has no rows, of {dataset.n_rows} in all; use fewer folds (folds=), or a "
            "share of the rows such as folds=0.2"
        )
    # The view knows how many rows each block has, so that no pass has to count them.
    source = View(dataset.source, RowsChosen(rule, known.rows, known))
    return Dataset(source, dataset.schema, store=dataset.store, name=name)
