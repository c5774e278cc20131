"""RowCounts: how many rows, and of which classes, each block has, known without reading X."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dkl.protocols.block import Block


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Figures of each block; rows of weight 0 are not counted.

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

    @property
    def n_rows(self) -> int:
        return int(self.rows.sum())


def class_weights(block: Block, n_classes: int) -> np.ndarray:
    """The total weight of each class in a block: (K,) float64."""
    # Without weights `bincount` counts rows as integers; they are float64 everywhere, as sums of weights are.
    return np.bincount(np.asarray(block.y), weights=block.weight, minlength=n_classes).astype(np.float64)
