"""Named splits of rows, random by fractions or given, as one uint8 code for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dkl.data.checks import rows_named
from dkl.data.counts import RowCounts
from dkl.data.sources.rows import RowSource
from dkl.data.store.digests import crc32c
from dkl.data.view import RowChoice, RowStep, View
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys

# Code of rows in no split.
NO_SPLIT = 255
# Tolerance for rounding in sums of fractions.
_ROUNDING = 1e-9
# Makes the random numbers of a split independent of those of a shuffle with the same seed
_SPLIT_SALT = 0x5350_4C49_54

Assign = Callable[[Block], np.ndarray]


@dataclass(frozen=True, eq=False)
class RowsOfCode(RowChoice):
    """Selects the rows of one code.

    Parameters
    ----------
    codes : ndarray of shape (n,), str or int
        The codes of the rows, which are sent with the ticket; the column of the store that has them; or the code of all
        rows of the block.
    code : int
    """

    codes: np.ndarray | str | int
    code: int

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.codes,) if isinstance(self.codes, str) else ()

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        codes = block.columns[self.codes][chosen] if isinstance(self.codes, str) else self.codes
        return chosen[np.broadcast_to(codes, len(chosen)) == self.code]


@dataclass(frozen=True, eq=False)
class SplitSet:
    """Disjoint named subsets of the rows of a source.

    Parameters
    ----------
    names : tuple of str
        The split with code i is ``names[i]``.
    counts : RowCounts
        Counts of each block and split, (n_blocks, n_splits).
    digest : str
        Digest of all codes.
    column : str or None
        Name of the stored column of codes; None if they are not stored.
    codes : list of ndarray, or None
        The codes of each block's rows, if they are not stored.
    whole : mapping of int to int
        Blocks whose rows all have the same code, which is not stored.
    """

    names: tuple[str, ...]
    counts: RowCounts
    digest: str
    column: str | None = None
    codes: list[np.ndarray] | None = None
    whole: Mapping[int, int] = field(default_factory=dict)

    def select(self, source: RowSource, name: str) -> View:
        """A view of the rows of one split."""
        return View(source, SplitStep(self, self.names.index(name)))

    def joined_by(self, counts: RowCounts, name: str | None) -> SplitSet:
        """This set after another store is appended, whose rows all join the split `name` (None for none)."""
        code = NO_SPLIT if name is None else self.names.index(name)
        # all counts of the new blocks belong to this split, and those of the others are 0
        is_joined = np.arange(len(self.names)) == code
        joined = {
            name: values[:, None] * is_joined.reshape(-1, *[1] * (values.ndim - 1))
            for name, values in counts.arrays().items()
        }
        both = self.counts.followed_by(RowCounts(**joined))
        further = range(len(self.counts.rows), len(both.rows))
        return replace(self, counts=both, whole={**self.whole, **dict.fromkeys(further, code)})

    def recounted(self, blocks: np.ndarray, table: np.ndarray) -> SplitSet:
        """This set after rows were dropped from `blocks`, (b,); `table` has their new counts, as in `split_table`."""
        now = RowCounts.of_table(table, table.shape[-1] - 2)
        return replace(self, counts=self.counts.recounted(blocks, now))


@dataclass(frozen=True, eq=False)
class SplitStep(RowStep):
    """The step that selects one split."""

    split: SplitSet
    code: int
    varies = True

    @property
    def identity(self) -> str:
        whole = f" {sorted(self.split.whole.items())}" if self.split.whole else ""
        return f"split {self.split.digest} {self.code}{whole}"

    def block_identity(self, index: int) -> str:
        whole = self.split.whole.get(index)
        return f"split {self.split.digest} {self.code}" if whole is None else f"split {whole == self.code}"

    def block_rows(self, before: RowSource) -> np.ndarray:
        return self.split.counts.rows[:, self.code]

    def counts(self, before: RowSource) -> RowCounts:
        return RowCounts(**{name: values[:, self.code] for name, values in self.split.counts.arrays().items()})

    def at(self, index: int) -> RowsOfCode:
        split = self.split
        if index in split.whole:
            return RowsOfCode(split.whole[index], self.code)
        return RowsOfCode(str(split.column) if split.codes is None else split.codes[index], self.code)


def assign(
    source: RowSource, names: tuple[str, ...], rule: Assign, n_classes: int | None, columns: tuple[str, ...] = ()
) -> SplitSet:
    """Apply `rule` (from a block without X, with the named row columns, to a code for each row) to every block.

    Raises
    ------
    ValueError
        If a split gets no row.
    """
    codes: list[np.ndarray] = []
    tables: list[np.ndarray] = []
    crc = 0
    for block in source.blocks_without_x(columns):
        codes.append(rule(block).astype(np.uint8, copy=False))
        tables.append(split_table(block, codes[-1], len(names), n_classes))
        crc = crc32c(codes[-1], crc)
    counts = RowCounts.of_table(np.array(tables).reshape(source.n_blocks, len(names), -1), n_classes)
    in_all = counts.rows.sum(axis=0).tolist()
    for name, count in zip(names, in_all, strict=True):
        # a fit to, or a score on, a split without rows would fail later
        if not count:
            raise ValueError(f"split {name!r} would have no rows; give it a larger fraction or other rows")
    digest = f"{crc:08x} {in_all}"
    return SplitSet(names, counts, digest, codes=codes)


def split_table(block: Block, codes: np.ndarray, n_splits: int, n_classes: int | None) -> np.ndarray:
    """(n_splits, 2 + K): rows, total weight, weight of each class."""
    inside = codes < n_splits
    # rows of no split are not counted
    codes, weights = codes[inside].astype(np.int64), block.weights[inside]
    sums = [np.bincount(codes, minlength=n_splits), np.bincount(codes, weights, n_splits)]
    if n_classes:
        # one cell for each pair of split and class, so that one count fills the table
        cells = codes * n_classes + np.asarray(block.y)[inside]
        sums += list(np.bincount(cells, weights, n_splits * n_classes).reshape(n_splits, n_classes).T)
    return np.stack(sums, axis=1).astype(np.float64)


def split_rule(given: Any, n_rows: int, *, seed: int, n_classes: int | None) -> tuple[tuple[str, ...], Assign]:
    """The names and the rule of the splits that a user gave: fractions, masks or row numbers, or a value for each row.

    Raises
    ------
    ValueError
        As in `by_fractions`, `by_rows` and `by_values`, or if there is no split at all.
    """
    if not isinstance(given, Mapping):
        return by_values(given, n_rows)
    check_names(given)
    if all(isinstance(share, int | float | np.number | str | None) for share in given.values()):
        return by_fractions(given, seed=seed, n_classes=n_classes)
    return by_rows(given, n_rows)


def are_shares(given: Any) -> bool:
    """Whether splits are given as fractions of the rows, for a random draw."""
    if given is None:
        return True
    return isinstance(given, Mapping) and all(isinstance(share, float | int | np.number) for share in given.values())


def check_names(names: Iterable[Any]) -> None:
    """Raise an error for names that splits cannot have.

    Raises
    ------
    TypeError, ValueError
        For no names, a name that is not a text (or number), is empty or contains a slash or a NUL, or more names than
        codes.
    """
    names = list(names)
    for name in names:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise TypeError(f"{name!r} cannot name a split; expected a word such as 'train'")
        if isinstance(name, str) and (not name.strip() or "/" in name or "\0" in name):
            raise ValueError(
                f"{name!r} cannot name a split: a name is not empty and has no '/' and no NUL; expected a word such as "
                "'train'"
            )
    if not names:
        raise ValueError("no split was named; expected a mapping such as {'train': 0.8, 'test': 0.2}")
    if len(names) > NO_SPLIT - 1:
        raise ValueError(f"{len(names)} splits were named; a set of splits has at most {NO_SPLIT - 1}")
    texts = [str(name) for name in names]
    for name in texts:
        if texts.count(name) > 1:
            raise ValueError(f"two splits are named {name!r}; each needs a name of its own")


def by_fractions(fractions: Mapping[str, float], *, seed: int, n_classes: int | None) -> tuple[tuple[str, ...], Assign]:
    """The rule for random splits of given fractions, stratified if `n_classes` is given.

    Each split gets its fraction of each block (of each class if stratified), so that totals are exact up to one row for
    each class (`apportioned`). The rows of a block are selected by the seed and their row ids.

    Raises
    ------
    ValueError
        If a fraction is outside (0, 1], or the sum is above 1.
    """
    check_names(fractions)
    for name, given in fractions.items():
        if isinstance(given, bool) or not isinstance(given, int | float | np.number):
            raise TypeError(f"the fraction of split {name!r} is {given!r}; expected a number above 0 and at most 1")
    names, shares = tuple(fractions), np.array([float(f) for f in fractions.values()])
    for name, share in zip(names, shares, strict=True):
        if not 0 < share <= 1:
            raise ValueError(f"fraction {share:g} of split {name!r}; expected a number above 0 and at most 1")
    total = math.fsum(shares)
    if total > 1 + _ROUNDING:
        raise ValueError(f"the fractions of the splits {list(names)} sum to {total:g}; expected at most 1")
    return names, _FractionRule(shares, n_classes or 1, seed)


class _FractionRule:
    """Codes by fractions; it counts the rows of each class so far, so that blocks must come in order."""

    def __init__(self, shares: np.ndarray, n_groups: int, seed: int) -> None:
        # if fractions do not sum to 1, the remaining rows are in no split
        rest = 1 - math.fsum(shares)
        self.codes = np.arange(len(shares)) if rest < _ROUNDING else np.append(np.arange(len(shares)), NO_SPLIT)
        self.shares = shares if rest < _ROUNDING else np.append(shares, rest)
        self.given = np.zeros((n_groups, len(self.shares)), np.int64)
        self.seed = seed

    def __call__(self, block: Block) -> np.ndarray:
        n_groups = len(self.given)
        groups = np.zeros(block.n_rows, np.int64) if n_groups == 1 else np.asarray(block.y)
        # in the order of a hash of row ids within each group, so that the selection depends on nothing else
        order = np.lexsort((shuffle_keys(block.row_id, self.seed ^ _SPLIT_SALT), groups))
        codes = np.empty(block.n_rows, np.uint8)
        bounds = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=n_groups))])
        for group in np.flatnonzero(np.diff(bounds)):
            rows = order[bounds[group] : bounds[group + 1]]
            counts = apportioned(self.shares, self.given[group], len(rows))
            self.given[group] += counts
            codes[rows] = np.repeat(self.codes, counts)
        return codes


def apportioned(shares: np.ndarray, given: np.ndarray, n_rows: int) -> np.ndarray:
    """The number of the next `n_rows` rows that each split gets, so that its total is within one row of its share.

    Splits that would fall more than a row behind get rows first; the other rows go to those with the earliest
    deadlines. This is the schedule of Tijdeman (1980, "The chairman assignment problem"), taken several rows at a time.

    Parameters
    ----------
    shares : ndarray of shape (s,)
        Fractions that sum to 1.
    given : ndarray of shape (s,), int64
        Number of rows of each split so far.

    Examples
    --------
    >>> apportioned(np.array([0.8, 0.2]), np.array([0, 0]), 5)
    array([4, 1])
    """
    due = shares * (given.sum() + n_rows)
    counts = np.maximum(np.floor(due + _ROUNDING).astype(np.int64) - given, 0)
    waiting = np.flatnonzero(given + counts < np.ceil(due - _ROUNDING))
    deadlines = (given + counts + 1)[waiting] / shares[waiting]
    counts[waiting[np.argsort(deadlines, kind="stable")][: n_rows - counts.sum()]] += 1
    return counts


def by_rows(given: Mapping[str, Any], n_rows: int) -> tuple[tuple[str, ...], Assign]:
    """The rule for splits given as boolean masks or row numbers, in the order of the rows.

    Raises
    ------
    ValueError
        If masks have another length, row numbers are out of range, or a row is in two splits.
    """
    codes = np.full(n_rows, NO_SPLIT, np.uint8)
    for code, (name, values) in enumerate(given.items()):
        chosen = np.flatnonzero(rows_named(values, n_rows, f"split {name!r}"))
        assigned = chosen[codes[chosen] != NO_SPLIT]
        if len(assigned):
            raise ValueError(f"row {assigned[0]} is in two splits, {list(given)[codes[assigned[0]]]!r} and {name!r}")
        codes[chosen] = code
    return tuple(given), _in_order(codes)


def by_values(values: Any, n_rows: int) -> tuple[tuple[str, ...], Assign]:
    """The rule for a value for each row: rows with the same value are a split of this name.

    Raises
    ------
    ValueError
        If the length differs, or there are more than 254 values.
    """
    values = np.asarray(values)
    if values.shape != (n_rows,):
        raise ValueError(f"the split column has shape {values.shape}; expected ({n_rows},), one value a row")
    found, codes = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    if len(found) > NO_SPLIT - 1:
        raise ValueError(f"the split column has {len(found)} values; expected at most {NO_SPLIT - 1}")
    return tuple(str(value) for value in found.tolist()), _in_order(codes.astype(np.uint8))


def _in_order(codes: np.ndarray) -> Assign:
    """The rule that returns known codes block by block; blocks must come in their order."""
    position = 0

    def rule(block: Block) -> np.ndarray:
        nonlocal position
        position += block.n_rows
        return codes[position - block.n_rows : position]

    return rule


def code_blocks(split: SplitSet, weights: Iterator[np.ndarray | None]) -> Iterator[np.ndarray]:
    """The codes of all stored rows of each block, including rows of weight 0, which are in no split."""
    for codes, weight in zip(split.codes or [], weights, strict=True):
        if weight is None:
            yield codes
            continue
        full = np.full(len(weight), NO_SPLIT, np.uint8)
        full[weight != 0] = codes
        yield full
