"""Which encoded columns belong to a column that a person knows, what it is called, and the values that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.ingest.column_rules import MISSING
from dkl.protocols.estimators import FittedModel

# An axis ends at these quantiles of the rows: beyond them lie too few rows for a model to have learned much.
_QUANTILES = (0.005, 0.995)
# The values of a category that have a place on an axis, the most frequent ones.
_MOST_PATTERNS = 200

Groups = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns that a model is explained by.

    Parameters
    ----------
    names : tuple of str
        G of them.
    members : tuple of ndarray of int
        The encoded columns behind each: several for a category, or for a number with a flag of missing values.
    encoded : tuple of str
        The names of the d encoded columns.
    """

    names: tuple[str, ...]
    members: tuple[np.ndarray, ...]
    encoded: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def position(self, column: int | str) -> int:
        """Where a column stands, by its name or its number.

        Raises
        ------
        ValueError
            If there is none of this name or number.
        """
        if isinstance(column, str):
            if column in self.names:
                return self.names.index(column)
            raise ValueError(f"there is no column {column!r}; the columns are {spoken_names(list(self.names))}")
        if -len(self) <= column < len(self):
            return int(column) % len(self)
        raise ValueError(f"there is no column {column}; there are {len(self)}, from 0 to {len(self) - 1}")

    def folded(self, values: np.ndarray) -> np.ndarray:
        """Values (d, ...) of the encoded columns, added up: (G, ...)."""
        return np.stack([values[members].sum(axis=0) for members in self.members])

    def label(self, position: int, pattern: np.ndarray) -> str:
        """What the encoded values of a column mean: its number, the category that is set, or that it is missing."""
        name, members = self.names[position], self.members[position]
        if len(members) == 1:
            return f"{pattern[0]:g}"
        own = [self.encoded[member].removeprefix(f"{name}=") for member in members]
        # The flag of missing values says that whatever number stands beside it was filled in.
        if MISSING in own and pattern[own.index(MISSING)]:
            return MISSING
        said = []
        for encoded, value in zip(own, pattern, strict=True):
            if encoded == name:
                # The encoded column that bears the column's own name holds its number.
                said.append(f"{value:g}")
            elif value:
                said.append(encoded if value == 1.0 else f"{encoded}={value:g}")
        return ", ".join(said) or "none"


def encoded_names(estimator: FittedModel, names: Sequence[str] | None) -> list[str]:
    """A name for each encoded column: those given, those of `fit`, or numbers.

    Raises
    ------
    ValueError
        If there is not one name a column.
    """
    encoding = getattr(estimator, "encoding_", None)
    width = estimator.n_features_in_ if encoding is None else encoding.n_columns
    if names is None:
        known = getattr(estimator, "feature_names_in_", None) if encoding is None else encoding.column_names
        return [f"column {c}" for c in range(width)] if known is None else [str(name) for name in known]
    if len(names) != width:
        raise ValueError(f"names has {len(names)} entries for {width} columns; give one a column")
    return [str(name) for name in names]


def columns_of(estimator: FittedModel, names: Sequence[str] | None = None, groups: Groups | None = None) -> Columns:
    """The columns of a fitted estimator, encoded ones folded back into the column that they came from.

    Parameters
    ----------
    estimator : fitted estimator
        Its encoding says which columns are one.
    names : sequence of str, or None
        Of the encoded columns.
    groups : mapping of str to sequence of int or str, or None
        Encoded columns, by number or name, that count as one; others stand by themselves. None folds as the encoding
        of a data frame did; an empty mapping folds nothing.

    Raises
    ------
    ValueError
        If there is not one name a column, or a group names a column that is not there or in another group.
    """
    encoded = encoded_names(estimator, names)
    if groups is None:
        # An encoding lays out the columns of a frame one after the other: each becomes as many as its rule has outputs.
        given, start = {}, 0
        encoding = getattr(estimator, "encoding_", None)
        for rule in () if encoding is None else encoding.rules:
            given[rule.name] = list(range(start, start + len(rule.output_names)))
            start += len(rule.output_names)
    else:
        given, alone = {}, Columns(tuple(encoded), (), tuple(encoded))
        for name, named in groups.items():
            if isinstance(named, str) or not len(named):
                raise ValueError(f"groups: {named!r} is no list of columns; give their numbers or names")
            given[str(name)] = [alone.position(member) for member in named]
    # An encoded column belongs to one group at most; those in none stand by themselves, and all are ordered by their
    # first column.
    taken = [member for members in given.values() for member in members]
    if len(set(taken)) < len(taken):
        twice = next(member for member in taken if taken.count(member) > 1)
        raise ValueError(f"groups: column {encoded[twice]!r} is in two groups, or twice in one; name it once")
    every = given | {encoded[c]: [c] for c in range(len(encoded)) if c not in set(taken)}
    ordered = sorted(every.items(), key=lambda item: item[1][0])
    members = tuple(np.array(members) for _, members in ordered)
    return Columns(tuple(name for name, _ in ordered), members, tuple(encoded))


def axis_of(values: np.ndarray, resolution: int) -> np.ndarray:
    """Values of a number from one end of the rows to the other; where there are no more than two, these."""
    distinct = np.unique(values)
    if len(distinct) <= 2:
        # A constant column gets a second value, one further on, so that it has an axis at all.
        return np.linspace(distinct[0], distinct[-1] + (len(distinct) == 1), 2)
    low, high = np.quantile(values, _QUANTILES)
    if low == high:
        # Nearly all rows have one value: the axis goes on to the few that have another.
        low, high = distinct[0], distinct[-1]
    return np.linspace(low, high, resolution)


def _numbers_among(values: np.ndarray) -> np.ndarray:
    """Which of the encoded columns (n, k) of a column are numbers, (k,) bool."""
    # A flag or a category's column has the values 0 and 1; what has more is a number.
    return np.array([len(np.unique(column)) > 2 for column in values.T])


def has_axis(values: np.ndarray) -> bool:
    """Whether the encoded values (n, k) of a column lie along one axis: that of its one number, or of its categories.

    A date is several numbers (days, and places on circles), which have none.
    """
    return values.shape[1] == 1 or bool(_numbers_among(values).sum() <= 1)


def patterns_of(values: np.ndarray, resolution: int, name: str) -> np.ndarray:
    """Values (g, k) that a column of k encoded ones takes: along its number, or each category once.

    Parameters
    ----------
    values : ndarray of shape (n, k)
        Of the rows.
    resolution : int
        Values of a number.
    name : str
        Of the column, for messages.

    Raises
    ------
    ValueError
        If several of the encoded columns are numbers, which have no common axis.
    """
    if values.shape[1] == 1:
        return axis_of(values[:, 0], resolution)[:, None]
    is_number = _numbers_among(values)
    if not has_axis(values):
        raise ValueError(f"{name!r} is a group of several numbers, which have no common axis; ask for each by itself")
    if is_number.any():
        # A number beside its flag of missing values: its axis is that of the rows where nothing is missing.
        there = (values[:, ~is_number] == 0.0).all(axis=1)
        number = values[there if there.any() else slice(None), is_number.argmax()]
        return axis_of(number, resolution)[:, None] * is_number
    # A category takes each of its encoded patterns, the most frequent ones, in their sorted order.
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    return distinct[np.sort(np.argsort(-counts, kind="stable")[:_MOST_PATTERNS])][::-1]


@dataclass(frozen=True, eq=False)
class Axis:
    """The values that a column is set to.

    Parameters
    ----------
    name : str
    patterns : ndarray of shape (g, k)
        Of the encoded columns behind it, unscaled.
    labels : tuple of str
        Of each value.
    rows : ndarray of shape (n, k)
        Values of at most 10,000 rows.
    """

    name: str
    patterns: np.ndarray
    labels: tuple[str, ...]
    rows: np.ndarray

    @property
    def varying(self) -> np.ndarray:
        """The encoded columns that are not the same in all values."""
        return np.flatnonzero(np.ptp(self.patterns, axis=0) > 0.0)

    @property
    def numbers(self) -> np.ndarray | None:
        """The values (g,) of a number; None for a category."""
        # The flag beside a number is 0 along the whole axis, and the encoded columns of a category vary together.
        varying = self.varying
        return self.patterns[:, varying[0]] if len(varying) == 1 else None

    def nearest(self) -> np.ndarray:
        """The value that is nearest to each of the rows, int64 (n,)."""
        numbers = self.numbers
        if numbers is None:
            return np.argmin([np.abs(self.rows - pattern).sum(axis=1) for pattern in self.patterns], axis=0)
        own = self.rows[:, self.varying[0]]
        # Half-way between two neighbouring values the nearest one changes.
        return np.searchsorted((numbers[1:] + numbers[:-1]) / 2.0, own)


def axis_on(known: Columns, position: int, rows: np.ndarray, resolution: int) -> Axis:
    """The axis of a column by the values (n, k) that it has in some rows."""
    patterns = patterns_of(rows, resolution, known.names[position])
    return Axis(known.names[position], patterns, tuple(known.label(position, pattern) for pattern in patterns), rows)
