"""Groups encoded columns into the columns of the user's data, with their names and the values on their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.ingest.column_rules import MISSING
from dkl.data.ingest.dates import DatePart, written_time
from dkl.methods.validation import column_names_of
from dkl.protocols.estimators import FittedModel

# The quantiles of the rows at which an axis ends, since a model has learned little from the few rows beyond them.
_QUANTILES = (0.005, 0.995)
# The most values of a category on an axis; the most frequent ones are shown.
_MOST_PATTERNS = 200

Groups = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of the user's data in which a model is explained, and their encoded columns.

    Parameters
    ----------
    names : tuple of str
        The names of the G columns.
    members : tuple of ndarray of int
        The encoded columns of each: several for a category, or for a number with a flag of missing values.
    encoded : tuple of str
        The names of the d encoded columns.
    left_out : tuple of str
        The names of further columns of the user's data, which the fit left out; they have no position.
    times : mapping of str to tuple of DatePart
        The encoded parts of each column of dates or times of day.
    """

    names: tuple[str, ...]
    members: tuple[np.ndarray, ...]
    encoded: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    times: Mapping[str, tuple[DatePart, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def position(self, column: int | str) -> int:
        """The position of a column among the G columns, given its name or its number.

        Raises
        ------
        ValueError
            If there is no column of this name or number, or the fit left it out.
        """
        if isinstance(column, str):
            if column in self.names:
                return self.names.index(column)
            if column in self.left_out:
                raise ValueError(
                    f"column {column!r} was left out by the fit, so that no prediction depends on it "
                    f"(model.encoding_.describe() says why); the columns are {spoken_names(list(self.names))}"
                )
            # an encoded column is a part of a column, unless nothing is grouped
            part = " (groups={} has encoded columns by themselves)" if column in self.encoded else ""
            raise ValueError(f"there is no column {column!r}; the columns are {spoken_names(list(self.names))}{part}")
        if -len(self) <= column < len(self):
            return int(column) % len(self)
        raise ValueError(f"there is no column {column}; there are {len(self)}, from 0 to {len(self) - 1}")

    def folded(self, values: np.ndarray) -> np.ndarray:
        """The sums (G, ...) of values (d, ...) over the encoded columns of each column."""
        return np.stack([values[members].sum(axis=0) for members in self.members])

    def label(self, position: int, pattern: np.ndarray) -> str:
        """A label for the encoded values of a column: its number, date or category, or that it is missing."""
        name, members = self.names[position], self.members[position]
        if len(members) == 1 and name not in self.times:
            return f"{pattern[0]:g}"
        own = [self.encoded[member].removeprefix(f"{name}=") for member in members]
        # If the flag of missing values is set, the number is only a filled-in value.
        if MISSING in own and pattern[own.index(MISSING)]:
            return MISSING
        if name in self.times:
            return written_time(pattern, self.times[name])
        said = []
        for encoded, value in zip(own, pattern, strict=True):
            of_fit = encoded.removeprefix(f"{name}: ")
            if encoded == name:
                # The encoded column with the column's own name has its number.
                said.append(f"{value:g}")
            elif of_fit == "log count":
                said.append(f"{np.expm1(value):.0f} rows")
            elif of_fit != encoded:
                # target means of codes, as differences from that of all rows, and scores and directions of texts
                said.append(f"{of_fit} {value:+.3g}")
            elif value:
                said.append(encoded if value == 1.0 else f"{encoded}={value:g}")
        return ", ".join(said) or "none"


def encoded_names(estimator: FittedModel, names: Sequence[str] | None) -> list[str]:
    """The names of the encoded columns: the given ones, those of `fit`, or "column 0", "column 1", ...

    Raises
    ------
    ValueError
        If the number of names is not that of the columns.
    """
    encoding = getattr(estimator, "encoding_", None)
    width = estimator.n_features_in_ if encoding is None else encoding.n_columns
    if names is None:
        known = column_names_of(estimator)
        return [f"column {c}" for c in range(width)] if known is None else [str(name) for name in known]
    if len(names) != width:
        raise ValueError(f"names has {len(names)} entries for {width} columns; give one a column")
    return [str(name) for name in names]


def columns_of(estimator: FittedModel, names: Sequence[str] | None = None, groups: Groups | None = None) -> Columns:
    """The columns of a fitted estimator; encoded columns of the same original column are grouped.

    Parameters
    ----------
    estimator : fitted estimator
        Its encoding defines the default groups.
    names : sequence of str, or None
        Names of the encoded columns.
    groups : mapping of str to sequence of int or str, or None
        Encoded columns, by number or name, that form one column; all others are columns by themselves. None groups the
        columns as the encoding of a data frame did; an empty mapping groups nothing.

    Raises
    ------
    ValueError
        If the number of names is wrong, or a group has a column that does not exist or is in another group.
    """
    encoded = encoded_names(estimator, names)
    left_out: tuple[str, ...] = ()
    if groups is None:
        # The encoded columns of a frame's columns follow each other; their number is that of the rule's outputs.
        given, start, times = {}, 0, {}
        encoding = getattr(estimator, "encoding_", None)
        for rule in () if encoding is None else encoding.rules:
            given[rule.name] = list(range(start, start + len(rule.output_names)))
            start += len(rule.output_names)
            if rule.kind in ("date", "time"):
                times[rule.name] = rule.parts
        left_out = tuple(name for name, _ in getattr(encoding, "left_out", ()))
    else:
        times = {}
        given, alone = {}, Columns(tuple(encoded), (), tuple(encoded))
        for name, named in groups.items():
            if isinstance(named, str) or not len(named):
                raise ValueError(f"groups: {named!r} is no list of columns; give their numbers or names")
            given[str(name)] = [alone.position(member) for member in named]
    # An encoded column belongs to one group at most; columns in no group form their own, and all groups are ordered by
    # their first column.
    taken = [member for members in given.values() for member in members]
    if len(set(taken)) < len(taken):
        twice = next(member for member in taken if taken.count(member) > 1)
        raise ValueError(f"groups: column {encoded[twice]!r} is in two groups, or twice in one; name it once")
    every = given | {encoded[c]: [c] for c in range(len(encoded)) if c not in set(taken)}
    ordered = sorted(every.items(), key=lambda item: item[1][0])
    members = tuple(np.array(members) for _, members in ordered)
    return Columns(tuple(name for name, _ in ordered), members, tuple(encoded), left_out, times)


def axis_of(values: np.ndarray, resolution: int) -> np.ndarray:
    """Evenly spaced values over the range of a number in the rows; if it has at most two values, these."""
    distinct = np.unique(values)
    if len(distinct) <= 2:
        # A constant column gets a second value, larger by 1, so that the axis has a length.
        return np.linspace(distinct[0], distinct[-1] + (len(distinct) == 1), 2)
    low, high = np.quantile(values, _QUANTILES)
    if low == high:
        # If nearly all rows have the same value, the axis includes all other values.
        low, high = distinct[0], distinct[-1]
    return np.linspace(low, high, resolution)


def _numbers_among(values: np.ndarray) -> np.ndarray:
    """Whether each of the encoded columns (n, k) is a number, (k,) bool: it has more than two values."""
    return np.array([len(np.unique(column)) > 2 for column in values.T])


def has_axis(values: np.ndarray) -> bool:
    """Whether the values (n, k) of a column's encoded columns have one axis: that of one number, or of categories.

    A date is encoded as several numbers (days, and points on circles), which have no common axis.
    """
    return values.shape[1] == 1 or bool(_numbers_among(values).sum() <= 1)


def patterns_of(values: np.ndarray, resolution: int, name: str, encoded: Sequence[str] = ()) -> np.ndarray:
    """The values (g, k) on the axis of a column with k encoded columns: along its number, or each category once.

    Parameters
    ----------
    values : ndarray of shape (n, k)
        The encoded values in the rows.
    resolution : int
        The number of values on the axis of a number.
    name : str
        The name of the column in messages.
    encoded : sequence of str
        The names of its encoded columns in messages.

    Raises
    ------
    ValueError
        If several of the encoded columns are numbers, which have no common axis.
    """
    if values.shape[1] == 1:
        return axis_of(values[:, 0], resolution)[:, None]
    is_number = _numbers_among(values)
    if not has_axis(values):
        raise ValueError(
            f"{name!r} is a group of several numbers, which have no common axis; ask for one of them by itself with "
            f"groups={{}}: {spoken_names(list(encoded))}"
        )
    if is_number.any():
        # For a number with a flag of missing values, the axis is that of the rows where it is not missing.
        there = (values[:, ~is_number] == 0.0).all(axis=1)
        number = values[there if there.any() else slice(None), is_number.argmax()]
        return axis_of(number, resolution)[:, None] * is_number
    # For a category the axis has its most frequent encoded patterns, sorted.
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    return distinct[np.sort(np.argsort(-counts, kind="stable")[:_MOST_PATTERNS])][::-1]


@dataclass(frozen=True, eq=False)
class Axis:
    """The g values to which a column is set in a partial dependence.

    Parameters
    ----------
    name : str
    patterns : ndarray of shape (g, k)
        The values of its encoded columns, unscaled.
    labels : tuple of str
        A label for each value.
    rows : ndarray of shape (n, k)
        The encoded values in at most 10,000 rows.
    """

    name: str
    patterns: np.ndarray
    labels: tuple[str, ...]
    rows: np.ndarray

    @property
    def varying(self) -> np.ndarray:
        """The positions of the encoded columns that are not constant along the axis."""
        return np.flatnonzero(np.ptp(self.patterns, axis=0) > 0.0)

    @property
    def numbers(self) -> np.ndarray | None:
        """The values (g,) of a number; None for a category."""
        # The flag of missing values is 0 along the axis of a number; of a category several encoded columns vary.
        varying = self.varying
        return self.patterns[:, varying[0]] if len(varying) == 1 else None

    def nearest(self) -> np.ndarray:
        """The number of the nearest value on the axis for each of the rows, int64 (n,)."""
        numbers = self.numbers
        if numbers is None:
            return np.argmin([np.abs(self.rows - pattern).sum(axis=1) for pattern in self.patterns], axis=0)
        own = self.rows[:, self.varying[0]]
        # The nearest value changes half-way between neighbouring values.
        return np.searchsorted((numbers[1:] + numbers[:-1]) / 2.0, own)


def axis_on(known: Columns, position: int, rows: np.ndarray, resolution: int) -> Axis:
    """The axis of a column, from its encoded values (n, k) in some rows."""
    encoded = [known.encoded[member] for member in known.members[position]]
    patterns = patterns_of(rows, resolution, known.names[position], encoded)
    return Axis(known.names[position], patterns, tuple(known.label(position, pattern) for pattern in patterns), rows)
