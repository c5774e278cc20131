"""Steps that add row columns of groups and times to blocks, and rules by which rows are held out together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.data.schema import HeldBy, RowColumn, Schema
from dkl.data.sources.rows import RowSource
from dkl.data.store.digests import crc32c
from dkl.data.view import BlockStep, Parts, RowStep, View
from dkl.protocols.block import Block
from dkl.protocols.held_together import MOST_ORDERED_GROUPS, of_groups, of_times, places

# Largest number of distinct times that are counted separately; with more, neighbours are merged.
_MOST_TIMES = 2**21


@dataclass(frozen=True, eq=False)
class ColumnOfBlock(BlockStep):
    """Adds a row column to one block; its values are sent with the ticket of the block."""

    column: str
    values: np.ndarray

    @property
    def provides(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.column,)

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        values = np.zeros(len(block.row_id), self.values.dtype)
        values[chosen] = self.values
        return replace(block, columns={**block.columns, self.column: values}), chosen


@dataclass(frozen=True, eq=False)
class GivenColumn(RowStep):
    """The step that adds a row column of values in memory.

    Parameters
    ----------
    column : str
    values : list of ndarray
        One array for each block: int64 codes, or float64 numbers such as exposures.
    """

    column: str
    values: list[np.ndarray]
    varies = True

    @property
    def identity(self) -> str:
        return f"column {self.column} {_digest(self.values)}"

    def block_identity(self, index: int) -> str:
        """Nothing: the rows of the block stay what they are."""
        return ""

    def at(self, index: int) -> ColumnOfBlock:
        return ColumnOfBlock(self.column, self.values[index])


@dataclass(frozen=True, eq=False)
class HeldTogether(RowStep, BlockStep):
    """The step that adds the values by which rows are held out together; the rows of a block stay what they are.

    Parameters
    ----------
    column : str
        The row column of groups or times.
    """

    column: str

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.column,)

    def block_identity(self, index: int) -> str:
        return ""

    def held_rule(self, before: RowSource) -> HeldTogether:
        return self


@dataclass(frozen=True, eq=False)
class HeldByGroup(HeldTogether):
    """Rows of a group are held out together.

    Parameters
    ----------
    column : str
        The row column of group codes.
    groups : ndarray of int64, or None
        All codes, sorted; None if there are more than `MOST_ORDERED_GROUPS`.
    """

    groups: np.ndarray | None

    @property
    def identity(self) -> str:
        return f"held by group {self.column} {'hashed' if self.groups is None else _digest([self.groups])}"

    def most_folds(self, before: RowSource) -> int:
        """Number of folds that can each have at least one group."""
        return MOST_ORDERED_GROUPS if self.groups is None else len(self.groups)

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        codes = block.columns[self.column]
        if self.groups is None:
            return replace(block, held=codes), chosen
        # rows that are not chosen may have unknown groups
        index = np.minimum(np.searchsorted(self.groups, codes), len(self.groups) - 1)
        return replace(block, held=of_groups(index, len(self.groups))), chosen


@dataclass(frozen=True, eq=False)
class HeldByTime(HeldTogether):
    """Rows are held out by their time, the newest first.

    Parameters
    ----------
    column : str
        The row column of times.
    first : ndarray of shape (p,), int64
        The oldest time of each interval, ascending.
    held_with : ndarray of shape (p,), int64
        The value of `Block.held` for rows of each interval, by which they are held out together.
    """

    first: np.ndarray
    held_with: np.ndarray

    @property
    def identity(self) -> str:
        return f"held by time {self.column} {_digest([self.first, self.held_with])}"

    @property
    def places(self) -> np.ndarray:
        """The place of each interval in [0, 1), (p,): the share of the rows that are newer."""
        return places(self.held_with, 0)

    def most_folds(self, before: RowSource) -> int:
        return 1

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        place = np.searchsorted(self.first, block.columns[self.column], side="right") - 1
        return replace(block, held=self.held_with[np.maximum(place, 0)]), chosen


def _digest(arrays: Iterable[np.ndarray]) -> str:
    crc = 0
    for values in arrays:
        crc = crc32c(values, crc)
    return f"{crc:08x}"


def with_column(
    source: RowSource, schema: Schema, role: HeldBy, values: np.ndarray, named: tuple[str, Any]
) -> tuple[RowSource, Schema]:
    """The source and the schema with a row column of codes in memory, by which rows are held out.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    role : {"group", "time"}
    values : ndarray of shape (n_rows,), int64
        The codes of the rows of the source, in order.
    named : tuple of (str, str)
        The user's name for the column, and its kind.
    """
    column = f"given {role}"
    step = GivenColumn(column, np.split(values, np.cumsum(source.block_rows)[:-1]))
    known = {**schema.row_columns, role: RowColumn(named[0], named[1], column)}
    return View(source, step), replace(schema, row_columns=known, held_by=role)


def held_source(source: RowSource, schema: Schema) -> RowSource:
    """The source with the rule by which rows are held out together; unchanged if `schema.held_by` is None.

    The row column is read once, without X, to find the groups or the intervals of time.

    Raises
    ------
    ValueError
        If all rows have the same group, or the same time.
    """
    last = source.steps[-1] if source.steps else None
    is_held = source.held_rule is not None and (last is None or isinstance(last, HeldTogether))
    if schema.held_by is None or is_held:
        return source
    known = schema.row_columns[schema.held_by]
    blocks = (block.columns[known.column] for block in source.blocks_without_x((known.column,)))
    rule_of = group_rule if schema.held_by == "group" else time_rule
    return View(source, rule_of(blocks, known))


def second_share(source: RowSource, share: float) -> float:
    """The beginning, as a fraction of the rows, of a second held-out share with other rows and groups than the first.

    0, the beginning of the first share, if there are too few groups, times or rows for two shares and a fit.
    """
    rule = source.held_rule
    groups = rule.groups if isinstance(rule, HeldByGroup) else None
    begin = share if groups is None else max(share, 1.0 / len(groups))
    if isinstance(rule, HeldByTime):
        # the rows of one time may be more than a share: then the second share begins with the next older time
        older = rule.places[rule.places >= share]
        begin = max(begin, older.min(initial=1.0)) if not np.any(older < begin + share) else begin
        if not np.any(older >= begin + share):
            return 0.0
    return begin if begin + share < 1.0 and (groups is None or len(groups) > 2) else 0.0


def group_rule(blocks: Iterable[np.ndarray], known: RowColumn) -> HeldByGroup:
    """The rule for the groups of all blocks."""
    groups = np.empty(0, np.int64)
    for codes in blocks:
        groups = np.union1d(groups, codes)
        if len(groups) > MOST_ORDERED_GROUPS:
            return HeldByGroup(known.column, None)
    check_several_values(len(groups), known)
    return HeldByGroup(known.column, groups)


def time_rule(blocks: Iterable[np.ndarray], known: RowColumn) -> HeldByTime:
    """The rule for the times of all blocks, with intervals of about 1/1,024 of the rows."""
    times, counts = counted_times(blocks)
    check_several_values(len(times), known)
    total = int(counts.sum())
    held_with = of_times(total - np.cumsum(counts), total)
    # the positions of the oldest time of each interval
    starts = np.flatnonzero(np.diff(held_with, prepend=held_with[0] - 1))
    return HeldByTime(known.column, times[starts], held_with[starts])


def counted_times(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct times, ascending, and the number of rows from each to before the next: (m,) int64 each.

    If there are millions of times, neighbours are merged, with the older one as their time, to limit memory; shares of
    the rows are then exact to one row in a million.
    """
    times, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for values in blocks:
        times, counts = merged_counts(times, counts, values)
        if len(times) > _MOST_TIMES:
            even = np.arange(0, len(times), 2)
            times, counts = times[even], np.add.reduceat(counts, even)
    return times, counts


def merged_counts(codes: np.ndarray, counts: np.ndarray, more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct codes, ascending, and their numbers of rows, (m,) int64 each, after adding the codes `more` of rows."""
    own, of_own = np.unique(more, return_counts=True)
    merged, place = np.unique(np.concatenate([codes, own]), return_inverse=True)
    return merged, np.bincount(place, np.concatenate([counts, of_own]), len(merged)).astype(np.int64)


def check_several_values(count: int, known: RowColumn) -> None:
    """Raise ValueError if all rows have the same group, or the same time; `count` is the number of distinct ones."""
    if count > 1:
        return
    what = "belong to one group" if known.kind == "group" else "are of one time"
    raise ValueError(
        f"{known.name!r} has the same value in all rows, so that all of them {what} and none can be held out; choose "
        "another column, or leave it out for folds of single rows"
    )
