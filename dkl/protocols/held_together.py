"""Which rows are held out together: the value by which a row is held out, and its place among all rows.

Rows are held out by `Block.held_with`, one int64 a row. A value of at least 0 is an identity (of the row, or of one of
thousands of groups): its hash is its place. A value below 0 says its place itself: one of a few groups, which a seed
puts in order, or a time, where the newest rows come first. Equal values are always held out together.
"""

from __future__ import annotations

import numpy as np

from dkl.protocols.sampling import hash_rows, row_fractions

MOST_ORDERED_GROUPS = 4096
"""So many groups have places in a seeded order, a share of the groups each; of more groups each has its hash."""
TIME_PLACES = 1024
"""Times are told apart at so many cut points: a share of the rows is right to one in 1,024."""

# a place in time is -1 - p; group g of G is -1 - (TIME_PLACES + G * 2^20 + g), so that the two never meet
_GROUP_BITS = 20
_BEYOND = 2.0**-10
# The round of the hash of row ids that holds rows out. Samples and splits hash with other rounds, so that rows held out
# under a seed are independent of the rows that a sample or a split takes under the same seed.
_HELD_OUT_ROUND = 0x484F


def of_groups(index: np.ndarray, n_groups: int) -> np.ndarray:
    """What rows of group `index` out of a few are held out with: (n,) int64.

    Parameters
    ----------
    index : ndarray of shape (n,), int64
        From 0 to n_groups - 1.
    n_groups : int
        At most `MOST_ORDERED_GROUPS`.
    """
    return -1 - (TIME_PLACES + (n_groups << _GROUP_BITS) + index.astype(np.int64))


def of_times(newer: np.ndarray, n_rows: int) -> np.ndarray:
    """What rows are held out with of which `newer` out of `n_rows` rows are newer: (n,) int64."""
    return -1 - np.minimum(TIME_PLACES * newer.astype(np.int64) // max(n_rows, 1), TIME_PLACES - 1)


def are_times(held_with: np.ndarray) -> bool:
    """Whether rows are held out by their time; all rows of a dataset are, or none is."""
    return bool(len(held_with)) and bool(-TIME_PLACES <= held_with[0] < 0)


def places(held_with: np.ndarray, seed: int) -> np.ndarray:
    """Where each row lies in [0, 1), (n,) float64: the rows below s are about a share s of all.

    Parameters
    ----------
    held_with : ndarray of shape (n,), int64
    seed : int
        Of the hash of identities and of the order of groups; places in time do not depend on them.
    """
    held_with = np.asarray(held_with, dtype=np.int64)
    if not len(held_with) or held_with[0] >= 0:
        return row_fractions(held_with, seed, _HELD_OUT_ROUND)
    own = -1 - held_with
    if own[0] < TIME_PLACES:
        return own / TIME_PLACES
    n_groups = int(own[0] - TIME_PLACES) >> _GROUP_BITS
    rank = np.empty(n_groups, np.int64)
    rank[np.argsort(hash_rows(np.arange(n_groups), seed, _HELD_OUT_ROUND), kind="stable")] = np.arange(n_groups)
    # a little beyond the beginning of the share: folds that meet there have no group in common, whatever is rounded
    return (rank[(own - TIME_PLACES) & ((1 << _GROUP_BITS) - 1)] + _BEYOND) / n_groups
