"""Statistics of table columns, computed in batches and merged, from which the encoding rules follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.text_statistics import Reading, TextStatistics, ValueStatistics, numbers_in_any_form
from dkl.data.ingest.columns import ColumnKind, check_exact, check_kinds, column_kind, numbers, plain_type, texts
from dkl.data.ingest.dates import DATE_KINDS, zone_of
from dkl.data.ingest.precision import NumberSample, why_double

MAX_CATEGORIES = 1_000_000
"""Largest number of distinct values of a column that are counted; each takes about 100 bytes while rows are read."""
# The same for a column whose values have several words and are mostly distinct, which is free text.
_MOST_DISTINCT_TEXTS = 100_000


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of one column.

    Parameters
    ----------
    values : ValueStatistics
        Of the finite numbers, booleans, or times in days.
    categories : mapping of str to int, or None
        Count of each distinct text; None if there are more than `MAX_CATEGORIES`, and for numbers.
    infinite : (int, float) or None
        Row and value of the first infinite value.
    zone : str or None
        For dates, the time zone in which days are counted; empty without a time zone.
    texts : TextStatistics or None
        Statistics of texts that may be numbers or dates; None for values that are declared categories.
    """

    name: str
    kind: ColumnKind
    rows: int
    missing: int
    values: ValueStatistics = field(default_factory=ValueStatistics)
    categories: Mapping[str, int] | None = None
    infinite: tuple[int, float] | None = None
    zone: str | None = None
    texts: TextStatistics | None = None

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """The statistics of the rows of both.

        Raises
        ------
        TypeError
            If the column has different kinds of values in them.
        """
        if self.kind == "empty" or other.kind == "empty":
            # rows without any value do not determine the kind
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
            values=self.values.merge(other.values),
            categories=self._merged_categories(other),
            infinite=self.infinite or other.infinite,
            texts=self.texts.merge(other.texts) if self.texts is not None and other.texts is not None else None,
        )

    def read_as(self, reading: Reading) -> ColumnStatistics:
        """The statistics of the numbers or dates in the texts of the column."""
        missing = self.rows - reading.statistics.count
        return ColumnStatistics(self.name, reading.kind, self.rows, missing, reading.statistics, zone=reading.zone)

    def _merged_categories(self, other: ColumnStatistics) -> dict[str, int] | None:
        # if either has too many distinct values, their texts were not kept
        if self.categories is None or other.categories is None:
            return None
        counts = dict(self.categories)
        for text, count in other.categories.items():
            counts[text] = counts.get(text, 0) + count
        most = MAX_CATEGORIES
        if self.texts is not None and self.texts.holds_words and 2 * len(counts) > sum(counts.values()):
            most = min(most, _MOST_DISTINCT_TEXTS)
        return counts if len(counts) <= most else None


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of all columns of a table, in the order of the columns, and the numbers of a sample of rows."""

    columns: tuple[ColumnStatistics, ...]
    rows: int
    sample: NumberSample

    def merge(self, other: TableStatistics) -> TableStatistics:
        """The statistics of the rows of both; the columns must have the same names in the same order."""
        pairs = zip(self.columns, other.columns, strict=True)
        columns = tuple(mine.merge(theirs) for mine, theirs in pairs)
        return TableStatistics(columns, self.rows + other.rows, self.sample.merge(other.sample))

    def why_double(self, place: int, column: ColumnStatistics) -> str:
        """The reason why the column at position `place` needs float64, in words; empty if float32 suffices.

        `column` has its statistics, or those of the numbers in its texts.
        """
        # nothing can be learned from a constant column, whatever its precision
        values = column.values
        if column.kind not in ("number", *DATE_KINDS) or values.fits_float32 or values.minimum == values.maximum:
            return ""
        return why_double(self.sample.values[:, place], rounds_whole_numbers=values.is_whole)


def table_statistics(
    table: pa.Table, *, categorical: Collection[str] = (), names: Collection[str] = (), first_row: int = 0
) -> TableStatistics:
    """The statistics of one table.

    Parameters
    ----------
    categorical : collection of str
        Columns that the user declared categorical.
    names : collection of str
        Columns of texts whose type in the input was categorical.
    first_row : int
        The number of the table's first row in the input, for messages.

    Raises
    ------
    TypeError
        For columns of lists or bytes, which cannot be encoded; all are listed.
    ValueError
        For a whole number that float64 does not represent exactly, with column and row.
    """
    check_kinds(table.schema.remove_metadata())
    named, categories = set(categorical), set(names)
    keys, rows = NumberSample.rows_of(first_row, table.num_rows)
    # in column order, as columns are written one at a time
    sampled = np.full((table.num_columns, len(rows)), np.nan).T
    columns = [
        _column(name, table.column(name), (named, categories), first_row, rows, sampled[:, place])
        for place, name in enumerate(table.column_names)
    ]
    return TableStatistics(tuple(columns), table.num_rows, NumberSample(keys, sampled))


def statistics_of(tables: Iterable[pa.Table], *, categorical: Collection[str] = ()) -> TableStatistics | None:
    """The statistics of the rows of all tables; None without any table.

    They are merged in the order of the tables, so that rounding does not depend on how many are in memory.
    """
    found: TableStatistics | None = None
    for table in tables:
        of_table = table_statistics(table, categorical=categorical, first_row=0 if found is None else found.rows)
        found = of_table if found is None else found.merge(of_table)
    return found


def _column(
    name: str,
    column: pa.ChunkedArray,
    names: tuple[set[str], set[str]],
    first_row: int,
    rows: np.ndarray,
    sampled: np.ndarray,
) -> ColumnStatistics:
    """The statistics of one column; its numbers at the positions `rows` are written into `sampled`.

    Numbers in texts are written too. `sampled` remains NaN for booleans and float32, which do not need float64. `names`
    are the columns that the user declared categorical, and those of texts with a categorical type.
    """
    kind = column_kind(column.type)
    categorical, categories_of_type = names
    if kind == "empty":
        return ColumnStatistics(name, "empty", len(column), len(column))
    if kind == "category" or name in categorical:
        values = texts(column)
        counted = pc.value_counts(values.drop_null())
        categories = None

        if len(counted) <= MAX_CATEGORIES:
            labels, counts = (counted.field(key).to_pylist() for key in ("values", "counts"))
            categories = dict(zip(labels, counts, strict=True))
        # declared categories are not checked for numbers and dates
        is_named = name in categorical | categories_of_type or pa.types.is_dictionary(column.type)
        seen = None if is_named else TextStatistics.of(values, counted, first_row)
        if seen is not None:
            sampled[:] = numbers_in_any_form(values.take(pa.array(rows)).combine_chunks())
        return ColumnStatistics(name, "category", len(values), values.null_count, categories=categories, texts=seen)
    check_exact(name, column, first_row)
    values = numbers(column)
    there, missing = values[np.isfinite(values)], int(np.isnan(values).sum())
    infinite = None
    if len(there) + missing < len(values):
        row = int(np.flatnonzero(np.isinf(values))[0])
        infinite = first_row + row, float(values[row])
    if kind != "boolean" and plain_type(column.type) != pa.float32():
        sampled[:] = values[rows]
    return ColumnStatistics(
        name,
        kind or "number",
        len(values),
        missing,
        ValueStatistics.of(there),
        infinite=infinite,
        zone=zone_of(column.type) if kind == "date" else None,
    )
