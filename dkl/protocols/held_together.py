"""The value by which a row is held out, which rows of a group or of a time share, and its place among all rows.

Each row has a place in [0, 1), and the rows below a share s are held out. The place follows from `Block.held_with`, one
int64 for each row. A value of at least 0 is an identity (of the row, or of one of thousands of groups), whose hash is
the place. A value below 0 encodes the place: that of one of a few groups, in an order that a seed decides, or that of a
time, the newest rows first. Rows with equal values are always held out together.
"""

from __future__ import annotations

import numpy as np

from dkl.protocols.sampling import hash_rows, row_fractions

MOST_ORDERED_GROUPS = 4096
"""The largest number of groups that get equal shares of [0, 1) in a seeded order; of more groups each has the place of
its hash, where shares are equal on average only."""
TIME_PLACES = 1024
"""The number of different places of times: a share of held-out rows is exact to one in 1,024."""

# a place in time is -1 - p; group g of G is -1 - (TIME_PLACES + G * 2^20 + g), so that the two never meet
_GROUP_BITS = 20
# The offset of a group's place above the lower boundary of its share, in shares of a group.
_BEYOND = 2.0**-10
# The round of the hash of row ids that holds rows out. Samples and splits hash with other rounds, so that rows held out
# under a seed are independent of the rows that a sample or a split takes under the same seed.
_HELD_OUT_ROUND = 0x484F


def of_groups(index: np.ndarray, n_groups: int) -> np.ndarray:
    """The `held_with` values of rows of group `index`, for at most `MOST_ORDERED_GROUPS` groups: (n,) int64.

    Parameters
    ----------
    index : ndarray of shape (n,), int64
        From 0 to n_groups - 1.
    n_groups : int
        At most `MOST_ORDERED_GROUPS`.
    """
    return -1 - (TIME_PLACES + (n_groups << _GROUP_BITS) + index.astype(np.int64))


def of_times(newer: np.ndarray, n_rows: int) -> np.ndarray:
    """The `held_with` values of rows held out by time, (n,) int64; `newer` counts the newer of all `n_rows` rows."""
    return -1 - np.minimum(TIME_PLACES * newer.astype(np.int64) // max(n_rows, 1), TIME_PLACES - 1)


def are_times(held_with: np.ndarray) -> bool:
    """Whether these `held_with` values are times; in a dataset either all are, or none is."""
    return bool(len(held_with)) and bool(-TIME_PLACES <= held_with[0] < 0)


def places(held_with: np.ndarray, seed: int) -> np.ndarray:
    """The place of each row in [0, 1), (n,) float64: the rows below s are about a share s of all.

    Parameters
    ----------
    held_with : ndarray of shape (n,), int64
    seed : int
        Seed of the hash of identities and of the order of groups; the places of times do not depend on it.
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
    # slightly above the group's lower boundary, so that rounding of a fold's boundary never splits a group
    return (rank[(own - TIME_PLACES) & ((1 << _GROUP_BITS) - 1)] + _BEYOND) / n_groups
