"""Named splits that keep groups whole, or that follow each other in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.data.schema import HeldBy, RowColumn
from dkl.data.sources.rows import RowSource
from dkl.data.splits import NO_SPLIT, Assign, are_shares, by_fractions
from dkl.data.together.rules import counted_times, refuse_one
from dkl.protocols.block import Block
from dkl.protocols.held_together import MOST_ORDERED_GROUPS
from dkl.protocols.sampling import hash_rows, row_fractions

DEFAULT_SHARES = {"train": 0.8, "test": 0.2}

# keeps the draw of groups apart from the rows that a fit with the same seed holds out
_SALT = 0x4752_4F55


def split_rule_together(
    given: Any, source: RowSource, role: HeldBy, known: RowColumn, seed: int
) -> tuple[tuple[str, ...], Assign]:
    """The names and the rule of splits of whole groups, or of consecutive times, oldest first.

    Raises
    ------
    ValueError
        `given` is no mapping of shares, all rows are one group or of one time, or there are fewer groups than splits.
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
    # In the order of their names from the oldest rows on; rows of one time are in one split.
    times, counts = counted_times(block.columns[known.column] for block in source.blocks_without_x((known.column,)))
    refuse_one(len(times), known)
    older = np.cumsum(counts) - counts
    # where each split ends: at the time before which there are about as many rows as it and the older ones are due
    ends = np.cumsum(parts) * counts.sum()
    edges = [times[max(1, int(np.argmin(np.abs(older - end))))] if end < counts.sum() - 0.5 else None for end in ends]
    cuts = np.array([edge for edge in edges if edge is not None], np.int64)
    return names, _cut_at(cuts, len(parts), lambda block: block.columns[known.column])


def _cut_at(cuts: np.ndarray, n_splits: int, values_of: Assign) -> Assign:
    """The rule by which a row's value decides: split k has those from cuts[k - 1] up to below cuts[k]."""

    def rule(block: Block) -> np.ndarray:
        place = np.searchsorted(cuts, values_of(block), side="right")
        return np.where(place < n_splits, place, NO_SPLIT).astype(np.uint8)

    return rule


def _by_group(source: RowSource, known: RowColumn, names: tuple[str, ...], shares: np.ndarray, seed: int) -> Assign:
    """Each group in one split: few groups so that the rows come close to the shares, many by their hash."""
    groups, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for block in source.blocks_without_x((known.column,)):
        own, of_own = np.unique(block.columns[known.column], return_counts=True)
        merged, place = np.unique(np.concatenate([groups, own]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, of_own]), len(merged)).astype(np.int64)
        groups = merged
        if len(groups) > MOST_ORDERED_GROUPS:
            # Of many groups each falls where the hash of its code does; shares that sum to 1 leave none out.
            ends = np.cumsum(shares)
            ends[-1] = 1.0 if ends[-1] > 1.0 - 1e-9 else ends[-1]
            return _cut_at(ends, len(shares), lambda block: row_fractions(block.columns[known.column], seed))
    refuse_one(len(groups), known)
    if len(groups) < len(names):
        raise ValueError(
            f"{known.name!r} has {len(groups)} groups, too few for the splits {list(names)}: each needs one at least"
        )
    # Groups are dealt in the order of their hashes to the split that lacks most rows; none is left without a group.
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
