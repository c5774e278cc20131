"""RowCounts: the number of rows of each block, in total and in each class, known without reading X."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dkl.errors import warn_user
from dkl.protocols.block import Block

# Blocks count as mixed if the fraction of a block's rows that would have to change their class, for the class
# frequencies of all rows, is below 0.1 plus four times its expectation for rows in random order.
_TOLERATED, _NOISE = 0.1, 4.0


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Counts of each block, without rows of weight 0.

    For a set of splits each array has a second axis: ``rows`` and ``weights`` are (n_blocks, n_splits), and
    ``class_weights`` (n_blocks, n_splits, K).

    Parameters
    ----------
    rows : ndarray of shape (n_blocks,), int64
    weights : ndarray of shape (n_blocks,), float64
        Total weight; equal to `rows` if rows have no weights.
    class_weights : ndarray of shape (n_blocks, K), float64, or None
        Total weight of each class.
    """

    rows: np.ndarray
    weights: np.ndarray
    class_weights: np.ndarray | None = None

    @classmethod
    def of_blocks(cls, blocks: Iterable[Block], n_classes: int | None) -> RowCounts:
        """Counts of the rows of each block; X is not used, so that the blocks may come without it."""
        # one entry for each block, also for empty ones, so that positions are block numbers
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
        """Counts from a table whose last axis, of length 2 + K, has rows, total weight and the weight of each class."""
        return cls(table[..., 0].astype(np.int64), table[..., 1], table[..., 2:] if n_classes else None)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> RowCounts:
        """The inverse of `arrays`; other names are ignored."""
        return cls(arrays["rows"], arrays["weights"], arrays.get("class_weights"))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}

    @property
    def n_rows(self) -> int:
        return int(self.rows.sum())

    def followed_by(self, other: RowCounts) -> RowCounts:
        """The counts of these blocks and, after them, of the blocks of `other`; only arrays that both have remain."""
        theirs = other.arrays()
        pairs = {name: (values, theirs[name]) for name, values in self.arrays().items() if name in theirs}
        return RowCounts(**{name: np.concatenate(both) for name, both in pairs.items()})

    def recounted(self, blocks: np.ndarray, other: RowCounts) -> RowCounts:
        """A copy in which the blocks numbered `blocks`, (b,) int64, have the counts of the b blocks of `other`."""
        known, theirs = {name: values.copy() for name, values in self.arrays().items()}, other.arrays()
        for name, values in known.items():
            values[blocks] = theirs[name]
        return RowCounts(**known)


def class_weights(block: Block, n_classes: int) -> np.ndarray:
    """The total weight of each class in a block: (K,) float64."""
    # without weights `bincount` returns integers; counts are float64 everywhere, like sums of weights
    return np.bincount(np.asarray(block.y), weights=block.weight, minlength=n_classes).astype(np.float64)


def imbalance(counts: RowCounts) -> tuple[float, float]:
    """The distance of class frequencies between blocks and all rows, and its expectation for a random order.

    Returns
    -------
    distance, chance : float
        The fraction of a block's weight that would have to change its class for the frequencies of all rows, averaged
        over blocks: 0 for equal frequencies, near 1 if each block has its own class (the total variation distance of
        the two distributions). And its expectation for rows in random order.
    """
    # row b, column k of the class table T is the weight of class k in block b
    table = counts.class_weights
    if table is None or not table.sum():
        return 0.0, 0.0
    weights = table.sum(axis=1)
    # empty blocks have no class frequencies
    filled = weights > 0
    table, weights, rows = table[filled], weights[filled], np.maximum(counts.rows[filled], 1)
    overall = table.sum(axis=0) / table.sum()
    # the excess of some classes equals the lack of others, so that the sum counts each difference twice
    distance = np.abs(table / weights[:, None] - overall).sum(axis=1) / 2
    # a share p of n rows at random has the standard deviation sqrt(p (1 - p) / n), and the mean absolute value of a
    # normal number is sqrt(2 / pi) times its deviation
    spread = np.sqrt(2 / np.pi * overall * (1 - overall)).sum() / 2
    # blocks count by their weight, as in every sum over the rows
    share = weights / weights.sum()
    return float(share @ distance), float(share @ (spread / np.sqrt(rows)))


def warn_if_unmixed(counts: RowCounts, place: str) -> None:
    """Warn if labels differ between blocks by more than chance, and say what to do."""
    distance, chance = imbalance(counts)
    if distance > _TOLERATED + _NOISE * chance:
        warn_user(
            f"the blocks of {place} are not mixed: {distance:.0%} of the rows of a block are of classes that it has "
            "too many of, on the average, which spoils stochastic fitting. Write it again with shuffle=True: "
            "dkl.create_dataset(new_store, ds, shuffle=True)"
        )
