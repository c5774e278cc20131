"""Whether the labels are mixed over the blocks, told from the counts alone."""

from __future__ import annotations

import warnings

import numpy as np

from dkl.data.counts import RowCounts

_TOLERATED = 0.1
_NOISE = 4.0


def imbalance(counts: RowCounts) -> tuple[float, float]:
    """How far the class shares of the blocks are from those of all rows, and how far chance alone would put them.

    Returns
    -------
    distance, chance : float
        The mean total variation distance over blocks (0 when all shares are equal, near 1 when each block has a class
        of its own), and its expectation under a shuffle.
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
    # The total variation distance of a block's class shares from those of all rows: half the sum of the differences.
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
            f"the blocks of {place} are not mixed: their class shares are {distance:.2f} away from those of all rows "
            "(0 is mixed, 1 is sorted by label), which spoils stochastic fitting. Write it again with shuffle=True: "
            "dkl.create_dataset(new_store, ds, shuffle=True)",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
