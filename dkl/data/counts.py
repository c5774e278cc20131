"""RowCounts: how many rows, and of which classes, each block has, known without reading X."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dkl.protocols.block import Block

# Blocks count as mixed while the part of a block's rows that would have to change their class, for the classes to be as
# frequent in it as in all rows, is below 0.1 plus four times what it would be of rows in a random order.
_TOLERATED, _NOISE = 0.1, 4.0


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Figures of each block; rows of weight 0 are not counted.

    For a set of splits each array has a second axis: ``rows`` and ``weights`` are (n_blocks, n_splits), and
    ``class_weights`` (n_blocks, n_splits, K).

    Parameters
    ----------
    rows : ndarray of shape (n_blocks,), int64
    weights : ndarray of shape (n_blocks,), float64
        Total weight; equal to `rows` where rows have no weights.
    class_weights : ndarray of shape (n_blocks, K), float64, or None
        Total weight of each class.
    """

    rows: np.ndarray
    weights: np.ndarray
    class_weights: np.ndarray | None = None

    @classmethod
    def of_blocks(cls, blocks: Iterable[Block], n_classes: int | None) -> RowCounts:
        """Count rows that were read (X is not looked at)."""
        # One entry a block; a block without rows counts too, so that positions are block numbers.
        rows, weights, classes = [], [], []
        for block in blocks:
            rows.append(block.n_rows)
            weights.append(block.weights.sum())
            if n_classes is not None:
                classes.append(class_weights(block, n_classes))
        return cls(
            np.array(rows, np.int64), np.array(weights, np.float64), None if n_classes is None else np.array(classes)
        )

    @classmethod
    def of_table(cls, table: np.ndarray, n_classes: int | None) -> RowCounts:
        """From a table whose last axis, of length 2 + K, holds rows, total weight and the weight of each class."""
        return cls(table[..., 0].astype(np.int64), table[..., 1], table[..., 2:] if n_classes else None)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> RowCounts:
        """The inverse of `arrays`; further names are ignored."""
        return cls(arrays["rows"], arrays["weights"], arrays.get("class_weights"))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are there, by the names of the parameters."""
        return {name: values for name, values in vars(self).items() if values is not None}

    @property
    def n_rows(self) -> int:
        return int(self.rows.sum())

    def followed_by(self, other: RowCounts) -> RowCounts:
        """These counts with the blocks of `other` appended; an array that one of the two lacks is left out."""
        theirs = other.arrays()
        pairs = {name: (values, theirs[name]) for name, values in self.arrays().items() if name in theirs}
        return RowCounts(**{name: np.concatenate(both) for name, both in pairs.items()})

    def recounted(self, blocks: np.ndarray, other: RowCounts) -> RowCounts:
        """A copy in which the counts of the blocks numbered `blocks`, (b,), are replaced by the b of `other`."""
        known, theirs = {name: values.copy() for name, values in self.arrays().items()}, other.arrays()
        for name, values in known.items():
            values[blocks] = theirs[name]
        return RowCounts(**known)

    def of_split(self, code: int) -> RowCounts:
        """The counts of the split with this code, (n_blocks,); for the counts of a set of splits."""
        return RowCounts(**{name: values[:, code] for name, values in self.arrays().items()})


def class_weights(block: Block, n_classes: int) -> np.ndarray:
    """The total weight of each class in a block: (K,) float64."""
    # Without weights `bincount` counts rows as integers; they are float64 everywhere, as sums of weights are.
    return np.bincount(np.asarray(block.y), weights=block.weight, minlength=n_classes).astype(np.float64)


def imbalance(counts: RowCounts) -> tuple[float, float]:
    """How much more often a class occurs in single blocks than in all rows, and what a random order would give.

    Returns
    -------
    distance, chance : float
        The part of a block's weight that would have to change its class for the classes to be as frequent there as in
        all rows, the mean over blocks: 0 where they are, near 1 where each block has a class of its own (the total
        variation distance of the two distributions). And its expectation, were the rows in a random order.
    """
    # The class table T has a row a block b and a column a class k: T[b, k] is the weight of class k in block b.
    table = counts.class_weights
    if table is None or not table.sum():
        return 0.0, 0.0
    weights = table.sum(axis=1)
    # Empty blocks have no shares, and say nothing.
    filled = weights > 0
    table, weights, rows = table[filled], weights[filled], np.maximum(counts.rows[filled], 1)
    overall = table.sum(axis=0) / table.sum()
    # What one class has too little of another has too much of: each difference of frequencies is counted twice.
    distance = np.abs(table / weights[:, None] - overall).sum(axis=1) / 2
    # A share p of n rows at random has the standard deviation sqrt(p (1 - p) / n), and the mean absolute value of a
    # normal number is sqrt(2 / pi) of that.
    spread = np.sqrt(2 / np.pi * overall * (1 - overall)).sum() / 2
    # Blocks count by their weight, as they do in every sum over the rows.
    share = weights / weights.sum()
    return float(share @ distance), float(share @ (spread / np.sqrt(rows)))


def warn_if_unmixed(counts: RowCounts, place: str, *, stacklevel: int) -> None:
    """Say that blocks differ in their labels by more than chance, and what to do."""
    distance, chance = imbalance(counts)
    if distance > _TOLERATED + _NOISE * chance:
        warnings.warn(
            f"the blocks of {place} are not mixed: {distance:.0%} of the rows of a block are of classes that it has "
            "too many of, on the average, which spoils stochastic fitting. Write it again with shuffle=True: "
            "dkl.create_dataset(new_store, ds, shuffle=True)",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
