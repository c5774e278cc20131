"""Statistics of table columns, gathered batch by batch and merged: all that the encoding rules are decided on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns import ColumnKind, check_kinds, column_kind, numbers, texts

MAX_CATEGORIES = 1_000
"""More distinct texts than this make a column one of high cardinality, unless the user names it in `categorical`."""
MAX_CHOSEN_CATEGORIES = 100_000


@dataclass(frozen=True)
class ColumnStatistics:
    """What was seen of one column.

    Parameters
    ----------
    total, minimum, maximum : float
        Of the values that are there (numbers and booleans).
    categories : mapping of str to int, or None
        How often each text was seen; None once there were more than `max_categories`, or for numbers.
    infinite : (int, float) or None
        The first row that holds an infinite value, and that value.
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
        )

    def _merged_categories(self, other: ColumnStatistics) -> dict[str, int] | None:
        if self.categories is None or other.categories is None:
            return None
        counts = dict(self.categories)
        for text, count in other.categories.items():
            counts[text] = counts.get(text, 0) + count
        return counts if len(counts) <= self.max_categories else None


@dataclass(frozen=True)
class TableStatistics:
    """What was seen of every column of a table, in the order of the columns."""

    columns: tuple[ColumnStatistics, ...]
    rows: int

    def merge(self, other: TableStatistics) -> TableStatistics:
        """The statistics of both tables' rows; their columns must have the same names in the same order."""
        pairs = zip(self.columns, other.columns, strict=True)
        return TableStatistics(tuple(mine.merge(theirs) for mine, theirs in pairs), self.rows + other.rows)


def table_statistics(table: pa.Table, *, categorical: Collection[str] = (), first_row: int = 0) -> TableStatistics:
    """The statistics of one table.

    Parameters
    ----------
    categorical : collection of str
        Columns whose values are names, whatever their type.
    first_row : int
        The number of the table's first row in the input, for messages.

    Raises
    ------
    TypeError
        Columns hold dates, lists or bytes; all of them are listed.
    """
    check_kinds(table.schema.remove_metadata())
    chosen = set(categorical)
    seen = [_column(name, table.column(name), chosen, first_row) for name in table.column_names]
    return TableStatistics(tuple(seen), table.num_rows)


def merged(parts: Collection[TableStatistics]) -> TableStatistics:
    """The statistics of all parts, added in their order."""
    return reduce(TableStatistics.merge, parts)


def _column(name: str, column: pa.ChunkedArray, categorical: Collection[str], first_row: int) -> ColumnStatistics:
    kind = column_kind(column.type)
    if kind == "empty":
        return ColumnStatistics(name, "empty", len(column), len(column))
    if kind == "category" or name in categorical:
        return _category(name, column, MAX_CHOSEN_CATEGORIES if name in categorical else MAX_CATEGORIES)
    return _number(name, "boolean" if kind == "boolean" else "number", numbers(column), first_row)


def _category(name: str, column: pa.ChunkedArray, limit: int) -> ColumnStatistics:
    values = texts(column)
    counted = pc.value_counts(values.drop_null())
    categories = None
    if len(counted) <= limit:
        names, counts = (counted.field(key).to_pylist() for key in ("values", "counts"))
        categories = dict(zip(names, counts, strict=True))
    return ColumnStatistics(
        name, "category", len(values), values.null_count, categories=categories, max_categories=limit
    )


def _number(name: str, kind: ColumnKind, values: np.ndarray, first_row: int) -> ColumnStatistics:
    there = values[np.isfinite(values)]
    missing = int(np.isnan(values).sum())
    infinite = None
    if len(there) + missing < len(values):
        row = int(np.flatnonzero(np.isinf(values))[0])
        infinite = first_row + row, float(values[row])
    if not len(there):
        return ColumnStatistics(name, kind, len(values), missing, infinite=infinite)
    total, low, high = float(there.sum()), float(there.min()), float(there.max())
    return ColumnStatistics(name, kind, len(values), missing, total, low, high, infinite=infinite)
