"""What the first rows of a file of delimited text say of its columns, in their types and as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.numbers import is_either_mark, two_spellings
from dkl.data.columns.seen import TextStatistics

TRUE, FALSE = ("1", "true", "True", "TRUE"), ("0", "false", "False", "FALSE")
"""As Arrow's reader of CSV files has them."""
# Marks of numbers are looked for in so many rows.
_FEW_ROWS = 2_000


@dataclass(frozen=True, eq=False)
class FirstRows:
    """The first rows of a file.

    Parameters
    ----------
    table : pyarrow.Table
        In the types that Arrow takes them for.
    written : pyarrow.Table
        The same columns as texts.
    """

    table: pa.Table
    written: pa.Table

    def _of_numbers(self) -> list[str]:
        return [f.name for f in self.table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]

    @cached_property
    def _seen(self) -> dict[str, TextStatistics]:
        """What the texts of the columns look like in a few rows."""
        few = self.written.slice(0, _FEW_ROWS)
        return {
            name: TextStatistics.of(column, pc.value_counts(column.drop_null()), 0)
            for name, column in zip(few.column_names, few.columns, strict=True)
        }

    @cached_property
    def with_zeros(self) -> list[str]:
        """The columns of numbers with whole numbers such as 0123 among them."""
        return [name for name in self._of_numbers() if is_zero_padded(self.written.column(name).combine_chunks()).any()]

    @cached_property
    def twice(self) -> dict[str, tuple[str, str]]:
        """Two texts of one number, in columns of numbers that write one in two ways."""
        found = {}
        for name in self._of_numbers():
            different = pc.utf8_trim_whitespace(self.written.column(name).drop_null().combine_chunks()).unique()
            numbers = pc.if_else(pa.array(is_no(different, pa.float64())), None, different).cast(pa.float64())
            if pair := two_spellings(different, numbers.to_numpy(zero_copy_only=False)):
                found[name] = pair
        return found

    @property
    def has_decimal_commas(self) -> bool:
        """Whether some column writes numbers with a comma that can be nothing else."""
        readings = [seen.reading() for seen in self._seen.values() if seen.numbers]
        return any(
            found is not None and not found.is_open and found.form.partition("234")[2][:1] == "," for found in readings
        )

    def either_mark(self) -> list[str]:
        """The columns of numbers in which each point stands before three digits, as between thousands."""

        def is_open(seen: TextStatistics) -> bool:
            marked = [spelling for spelling in seen.numbers if "." in spelling.shape]
            return bool(marked) and all(map(is_either_mark, marked))

        types = self.table.schema
        return [
            name for name, seen in self._seen.items() if pa.types.is_floating(types.field(name).type) and is_open(seen)
        ]

    def schema(self, as_text: Sequence[str]) -> pa.Schema:
        """The types of the columns; text for those named in `as_text`, and for times finer than a microsecond."""
        fields = []
        for column, field in zip(self.table.columns, self.table.schema, strict=True):
            # Points in time are kept in microseconds; further digits are cut off where they are read as texts.
            is_finer = pa.types.is_timestamp(field.type) and field.type.unit == "ns" and _has_nanoseconds(column)
            fields.append(field.with_type(pa.string()) if is_finer or field.name in as_text else field)
        return pa.schema(fields)


def _has_nanoseconds(column: pa.ChunkedArray) -> bool:
    counts = column.cast(pa.int64())
    beyond = pc.subtract(counts, pc.multiply(pc.divide(counts, 1000), 1000))
    return bool(pc.any(pc.not_equal(beyond, 0)).as_py())


def is_zero_padded(texts: pa.Array) -> np.ndarray:
    """Which texts are whole numbers with a superfluous zero in front, such as 0123: bool (n,)."""
    found = pc.match_substring_regex(texts, r"^\s*[+-]?0\d+\s*$")
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False))


def is_no(texts: pa.Array, dtype: pa.DataType) -> np.ndarray:
    """Which texts write no value of a type, as Arrow's reader of CSV files takes them: bool (n,)."""
    plain = pc.utf8_trim_whitespace(texts)
    if pa.types.is_boolean(dtype):
        right = pc.fill_null(pc.is_in(plain, value_set=pa.array((*TRUE, *FALSE))), True)
        return np.asarray(pc.and_(texts.is_valid(), pc.invert(right)).to_numpy(zero_copy_only=False))

    def casts(part: pa.Array) -> bool:
        try:
            part.cast(dtype)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return False
        return True

    wrong = np.zeros(len(plain), bool)
    waiting = [(0, len(plain))]
    # Arrow says that a text is wrong, and not which: halves are tried, down to the texts that are.
    while waiting:
        first, last = waiting.pop()
        if first == last or casts(plain.slice(first, last - first)):
            continue
        if last - first == 1:
            wrong[first] = True
            continue
        middle = (first + last) // 2
        waiting += [(first, middle), (middle, last)]
    return wrong
