"""FirstRows: the first rows of a delimited text, as typed values and as texts, from which column types follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.numbers import has_ambiguous_mark, two_spellings
from dkl.data.columns.text_statistics import TextStatistics

TRUE, FALSE = ("1", "true", "True", "TRUE"), ("0", "false", "False", "FALSE")
"""The texts that Arrow's CSV reader takes for true and false."""
# Number of first rows whose texts are examined for decimal and thousands marks.
_EXAMINED_ROWS = 2_000


@dataclass(frozen=True, eq=False)
class FirstRows:
    """The first rows of a file.

    Parameters
    ----------
    table : pyarrow.Table
        The columns in the types that Arrow infers.
    written : pyarrow.Table
        The same columns as texts.
    """

    table: pa.Table
    written: pa.Table

    def _number_columns(self) -> list[str]:
        return [f.name for f in self.table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]

    @cached_property
    def _statistics(self) -> dict[str, TextStatistics]:
        """The statistics of the texts of each column, in the first `_EXAMINED_ROWS` rows."""
        few = self.written.slice(0, _EXAMINED_ROWS)
        return {
            name: TextStatistics.of(column, pc.value_counts(column.drop_null()), 0)
            for name, column in zip(few.column_names, few.columns, strict=True)
        }

    @cached_property
    def with_leading_zeros(self) -> list[str]:
        """The columns of numbers that contain whole numbers with a leading zero, such as 0123."""
        return [
            name for name in self._number_columns() if is_zero_padded(self.written.column(name).combine_chunks()).any()
        ]

    @cached_property
    def two_spellings(self) -> dict[str, tuple[str, str]]:
        """For each column of numbers in which two texts write the same number, these two texts."""
        found = {}
        for name in self._number_columns():
            different = pc.utf8_trim_whitespace(self.written.column(name).drop_null().combine_chunks()).unique()
            if pair := two_spellings(different, different.cast(pa.float64()).to_numpy(zero_copy_only=False)):
                found[name] = pair
        return found

    @property
    def has_decimal_commas(self) -> bool:
        """Whether the numbers of some column contain a comma that must be a decimal mark."""
        readings = [statistics.reading() for statistics in self._statistics.values() if statistics.numbers]
        return any(
            found is not None and not found.is_ambiguous and found.form.partition("234")[2][:1] == ","
            for found in readings
        )

    def ambiguous_columns(self) -> list[str]:
        """The columns of numbers in which each point stands before three digits, so that it may be a thousands mark."""

        def is_ambiguous(statistics: TextStatistics) -> bool:
            marked = [spelling for spelling in statistics.numbers if "." in spelling.shape]
            return bool(marked) and all(map(has_ambiguous_mark, marked))

        types = self.table.schema
        return [
            name
            for name, statistics in self._statistics.items()
            if pa.types.is_floating(types.field(name).type) and is_ambiguous(statistics)
        ]

    def schema(self, as_text: Sequence[str]) -> pa.Schema:
        """The types of the columns: text for the columns `as_text` and for times with nanoseconds."""
        fields = []
        for column, field in zip(self.table.columns, self.table.schema, strict=True):
            # times are stored in microseconds; if they are read as texts, further digits are cut off
            is_finer = pa.types.is_timestamp(field.type) and field.type.unit == "ns" and _has_nanoseconds(column)
            fields.append(field.with_type(pa.string()) if is_finer or field.name in as_text else field)
        return pa.schema(fields)


def _has_nanoseconds(column: pa.ChunkedArray) -> bool:
    counts = column.cast(pa.int64())
    beyond = pc.subtract(counts, pc.multiply(pc.divide(counts, 1000), 1000))
    return bool(pc.any(pc.not_equal(beyond, 0)).as_py())


def is_zero_padded(texts: pa.Array) -> np.ndarray:
    """Whether each text is a whole number with a leading zero, such as 0123: (n,) bool."""
    found = pc.match_substring_regex(texts, r"^\s*[+-]?0\d+\s*$")
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False))
