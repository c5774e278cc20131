"""Statistics of table columns, gathered batch by batch and merged: all that the encoding rules are decided on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.seen import Reading, TextStatistics, loose_numbers
from dkl.data.ingest.columns import ColumnKind, check_exact, check_kinds, column_kind, numbers, plain_type, texts
from dkl.data.ingest.dates import DATE_KINDS, zone_of
from dkl.data.ingest.precision import EXACT, EXACT_FLOAT32, NumberSample, why_double

MAX_CATEGORIES = 1_000_000
"""So many different values of one column are told apart: each takes some 100 bytes while rows are read."""
# Of a column whose values hold several words and are different for the most part, which is free text.
_MOST_DIFFERENT_TEXTS = 100_000
# So many values are looked at before all others.
_FEW = 32


@dataclass(frozen=True)
class ColumnStatistics:
    """What was seen of one column.

    Parameters
    ----------
    total, minimum, maximum : float
        Of the values that are there (numbers, booleans, and times in days).
    categories : mapping of str to int, or None
        How often each text was seen; None once there were more than `max_categories`, or for numbers.
    infinite : (int, float) or None
        The first row that holds an infinite value, and that value.
    is_whole, fits_float32 : bool
        All numbers are whole (and none is beyond 2**53); float32 holds each of them exactly.
    zone : str or None
        Of dates: the time zone whose clock the days are of, empty where they have none.
    texts : TextStatistics or None
        Of texts that nobody has called names: what they look like.
    """

    name: str
    kind: ColumnKind
    rows: int
    missing: int
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    categories: Mapping[str, int] | None = None
    max_categories: int = MAX_CATEGORIES
    infinite: tuple[int, float] | None = None
    is_whole: bool = True
    fits_float32: bool = True
    zone: str | None = None
    texts: TextStatistics | None = None

    @property
    def mean(self) -> float:
        return self.total / max(self.rows - self.missing, 1)

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """The statistics of both stretches of rows.

        Raises
        ------
        TypeError
            The column was of one kind here and of another there.
        """
        if self.kind == "empty" or other.kind == "empty":
            # A stretch without any value says nothing of the kind.
            known = other if self.kind == "empty" else self
            return replace(known, rows=self.rows + other.rows, missing=self.missing + other.missing)
        if self.kind != other.kind:
            raise TypeError(
                f"column '{self.name}' holds {self.kind} values in some rows and {other.kind} values in others; make "
                f"it one type, or take all of its values as texts: categorical=['{self.name}']"
            )
        return replace(
            self,
            rows=self.rows + other.rows,
            missing=self.missing + other.missing,
            total=self.total + other.total,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            categories=self._merged_categories(other),
            infinite=self.infinite or other.infinite,
            is_whole=self.is_whole and other.is_whole,
            fits_float32=self.fits_float32 and other.fits_float32,
            texts=self.texts.merge(other.texts) if self.texts is not None and other.texts is not None else None,
        )

    def read_as(self, reading: Reading) -> ColumnStatistics:
        """The statistics of the numbers or dates that the texts of the column write."""
        figures = reading.figures
        return ColumnStatistics(
            self.name,
            reading.kind,
            self.rows,
            self.rows - figures.count,
            figures.total,
            figures.minimum,
            figures.maximum,
            is_whole=figures.is_whole,
            fits_float32=figures.fits_float32,
            zone=reading.zone,
        )

    def _merged_categories(self, other: ColumnStatistics) -> dict[str, int] | None:
        # Too many in one stretch are too many in both: their names were not kept.
        if self.categories is None or other.categories is None:
            return None
        counts = dict(self.categories)
        for text, count in other.categories.items():
            counts[text] = counts.get(text, 0) + count
        most = self.max_categories
        if self.texts is not None and self.texts.holds_words and 2 * len(counts) > sum(counts.values()):
            most = min(most, _MOST_DIFFERENT_TEXTS)
        return counts if len(counts) <= most else None


@dataclass(frozen=True)
class TableStatistics:
    """What was seen of every column of a table, in the order of the columns, and the numbers of some rows."""

    columns: tuple[ColumnStatistics, ...]
    rows: int
    sample: NumberSample

    def merge(self, other: TableStatistics) -> TableStatistics:
        """The statistics of both tables' rows; their columns must have the same names in the same order."""
        pairs = zip(self.columns, other.columns, strict=True)
        columns = tuple(mine.merge(theirs) for mine, theirs in pairs)
        return TableStatistics(columns, self.rows + other.rows, self.sample.merge(other.sample))

    def why_double(self, place: int, column: ColumnStatistics) -> str:
        """Why column number `place` needs float64, in words; an empty text where float32 holds what matters of it.

        `column` has its statistics, as numbers where it holds texts of them.
        """
        # One value in all rows needs no precision: it says nothing that could be learned.
        if column.kind not in ("number", *DATE_KINDS) or column.fits_float32 or column.minimum == column.maximum:
            return ""
        return why_double(self.sample.values[:, place], rounds_whole_numbers=column.is_whole)


def table_statistics(
    table: pa.Table, *, categorical: Collection[str] = (), names: Collection[str] = (), first_row: int = 0
) -> TableStatistics:
    """The statistics of one table.

    Parameters
    ----------
    categorical : collection of str
        Columns whose values are names, whatever their type.
    names : collection of str
        Columns of texts that came as categories: they are names, whatever they look like.
    first_row : int
        The number of the table's first row in the input, for messages.

    Raises
    ------
    TypeError
        Columns hold lists or bytes, which have no encoding; all of them are listed.
    ValueError
        A number is whole and not held exactly by float64; the message has the column and the row.
    """
    check_kinds(table.schema.remove_metadata())
    named, categories = set(categorical), set(names)
    keys, rows = NumberSample.rows_of(first_row, table.num_rows)
    # A column at a time is written, so the values of one lie side by side.
    sampled = np.full((table.num_columns, len(rows)), np.nan).T
    columns = [
        _column(name, table.column(name), (named, categories), first_row, rows, sampled[:, place])
        for place, name in enumerate(table.column_names)
    ]
    return TableStatistics(tuple(columns), table.num_rows, NumberSample(keys, sampled))


def merged(parts: Collection[TableStatistics]) -> TableStatistics:
    """The statistics of all parts, added in their order."""
    return reduce(TableStatistics.merge, parts)


def _column(
    name: str,
    column: pa.ChunkedArray,
    names: tuple[set[str], set[str]],
    first_row: int,
    rows: np.ndarray,
    sampled: np.ndarray,
) -> ColumnStatistics:
    """The statistics of one column; its values at the positions `rows` are written into `sampled`, if they are numbers.

    So are texts that may be numbers. `sampled` keeps its NaN for booleans and for numbers that came as float32, which
    need no other precision. `names` are the columns that the user calls categorical, and those of texts that came as
    categories.
    """
    kind = column_kind(column.type)
    categorical, categories_of_type = names
    if kind == "empty":
        return ColumnStatistics(name, "empty", len(column), len(column))
    if kind == "category" or name in categorical:
        values = texts(column)
        counted = pc.value_counts(values.drop_null())
        categories = None
        # How often each occurs, as long as they are no more than the limit.
        if len(counted) <= MAX_CATEGORIES:
            labels, counts = (counted.field(key).to_pylist() for key in ("values", "counts"))
            categories = dict(zip(labels, counts, strict=True))
        # Whoever names a column as categorical has names, whatever they look like.
        is_named = name in categorical | categories_of_type or pa.types.is_dictionary(column.type)
        seen = None if is_named else TextStatistics.of(values, counted, first_row)
        if seen is not None:
            sampled[:] = loose_numbers(values.take(pa.array(rows)).combine_chunks())
        return ColumnStatistics(name, "category", len(values), values.null_count, categories=categories, texts=seen)
    check_exact(name, column, first_row)
    values = numbers(column)
    statistics = _number(name, "number" if kind is None else kind, values, first_row)
    if kind == "date":
        statistics = replace(statistics, zone=zone_of(column.type))
    if kind == "boolean" or plain_type(column.type) == pa.float32() or statistics.missing == statistics.rows:
        return statistics
    sampled[:] = values[rows]
    largest = max(-statistics.minimum, statistics.maximum)

    def is_unchanged(rounded: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Whether rounding changes no value; of most columns where it does, the first few tell."""
        return all(((part == rounded(part)) | np.isnan(part)).all() for part in (values[:_FEW], values))

    # Beyond 2**53 every float64 is whole, whatever it measures.
    is_whole = largest <= EXACT and is_unchanged(np.rint)
    with np.errstate(over="ignore"):
        fits = (is_whole and largest <= EXACT_FLOAT32) or is_unchanged(lambda part: part.astype(np.float32))
    return replace(statistics, is_whole=is_whole, fits_float32=fits)


def _number(name: str, kind: ColumnKind, values: np.ndarray, first_row: int) -> ColumnStatistics:
    """The sum and the range of the numbers that are there, and the first infinite one, which is refused later."""
    there = values[np.isfinite(values)]
    missing = int(np.isnan(values).sum())
    infinite = None
    if len(there) + missing < len(values):
        row = int(np.flatnonzero(np.isinf(values))[0])
        infinite = first_row + row, float(values[row])
    if not len(there):
        return ColumnStatistics(name, kind, len(values), missing, infinite=infinite)
    # Of the finite values; missing ones have no part in the mean that fills them.
    total, low, high = float(there.sum()), float(there.min()), float(there.max())
    return ColumnStatistics(name, kind, len(values), missing, total, low, high, infinite=infinite)
