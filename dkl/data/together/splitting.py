"""Named splits of whole groups, or of consecutive times."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.data.schema import HeldBy, RowColumn
from dkl.data.sources.rows import RowSource
from dkl.data.splits import NO_SPLIT, Assign, are_shares, by_fractions
from dkl.data.together.rules import check_several_values, counted_times, merged_counts
from dkl.protocols.block import Block
from dkl.protocols.held_together import MOST_ORDERED_GROUPS
from dkl.protocols.sampling import hash_rows, row_fractions

DEFAULT_SHARES = {"train": 0.8, "test": 0.2}

# Makes the draw of groups independent of the rows that a fit with the same seed holds out.
_SALT = 0x4752_4F55


def split_rule_by_column(
    given: Any, source: RowSource, role: HeldBy, known: RowColumn, seed: int
) -> tuple[tuple[str, ...], Assign]:
    """The names and the rule of splits of whole groups, or of consecutive times, oldest first.

    Raises
    ------
    ValueError
        If `given` is not a mapping of shares, all rows have the same group or time, or there are fewer groups than
        splits.
    """
    shares = DEFAULT_SHARES if given is None else given
    if not are_shares(shares):
        raise ValueError(
            f"splits by {role} are given as shares, such as {DEFAULT_SHARES}; rows that are named one by one are split "
            "as they are named: leave out by_group= and by_time="
        )
    names, _ = by_fractions(shares, seed=seed, n_classes=None)
    parts = np.array([float(share) for share in shares.values()])
    if role == "group":
        return names, _by_group(source, known, names, parts, seed ^ _SALT)
    # the first split has the oldest rows; rows with the same time are in the same split
    times, counts = counted_times(block.columns[known.column] for block in source.blocks_without_x((known.column,)))
    check_several_values(len(times), known)
    older = np.cumsum(counts) - counts
    # each split ends at the time before which the number of rows is closest to the sum of the shares so far
    ends = np.cumsum(parts) * counts.sum()
    edges = [times[max(1, int(np.argmin(np.abs(older - end))))] if end < counts.sum() - 0.5 else None for end in ends]
    cuts = np.array([edge for edge in edges if edge is not None], np.int64)
    return names, _cut_at(cuts, len(parts), lambda block: block.columns[known.column])


def _cut_at(cuts: np.ndarray, n_splits: int, values_of: Assign) -> Assign:
    """The rule that assigns rows by a value: split k has those from cuts[k - 1] to below cuts[k]."""

    def rule(block: Block) -> np.ndarray:
        place = np.searchsorted(cuts, values_of(block), side="right")
        return np.where(place < n_splits, place, NO_SPLIT).astype(np.uint8)

    return rule


def _by_group(source: RowSource, known: RowColumn, names: tuple[str, ...], shares: np.ndarray, seed: int) -> Assign:
    """The rule that assigns each group to one split: few groups by their numbers of rows, many by their hashes."""
    groups, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for block in source.blocks_without_x((known.column,)):
        groups, counts = merged_counts(groups, counts, block.columns[known.column])
        if len(groups) > MOST_ORDERED_GROUPS:
            # each group is assigned by the hash of its code; if the shares sum to 1, rounding must not leave any out
            ends = np.cumsum(shares)
            ends[-1] = 1.0 if ends[-1] > 1.0 - 1e-9 else ends[-1]
            return _cut_at(ends, len(shares), lambda block: row_fractions(block.columns[known.column], seed))
    check_several_values(len(groups), known)
    if len(groups) < len(names):
        raise ValueError(
            f"{known.name!r} has {len(groups)} groups, too few for the splits {list(names)}: each needs one at least"
        )
    # in the order of their hashes, groups are assigned to the split that lacks most rows; each split gets a group
    rest = 1.0 - shares.sum()
    due = np.append(shares, rest if rest > 1e-9 else 0.0) * counts.sum()
    code_of, waiting = np.empty(len(groups), np.uint8), set(range(len(shares)))
    for dealt, group in enumerate(np.argsort(hash_rows(groups, seed), kind="stable").tolist()):
        lacks = due.copy()
        if len(groups) - dealt <= len(waiting):
            lacks[[code for code in range(len(due)) if code not in waiting]] = -np.inf
        code = int(np.argmax(lacks))
        due[code] -= counts[group]
        waiting.discard(code)
        code_of[group] = code if code < len(shares) else NO_SPLIT
    return lambda block: code_of[np.searchsorted(groups, block.columns[known.column])]
