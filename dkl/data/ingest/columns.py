"""Columns of Arrow tables: their kinds (numbers, texts, dates, ...), and their values as numbers or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import check_named_once, shown_value, spoken_names
from dkl.data.given import GivenRows
from dkl.data.ingest.dates import date_kind, days, staged, staged_type, zone_of
from dkl.data.ingest.precision import EXACT
from dkl.data.other_frames import as_pandas_rows
from dkl.errors import RowError
from dkl.plain_text import first_few

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal["number", "boolean", "category", "date", "time", "duration", "empty"]
"""An "empty" column has no value so far and is compatible with every other kind."""

_IS = pa.types
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], ColumnKind], ...] = (
    (_IS.is_null, "empty"),
    (_IS.is_boolean, "boolean"),
    (_IS.is_integer, "number"),
    (_IS.is_floating, "number"),
    (_IS.is_decimal, "number"),
    (_IS.is_string, "category"),
    (_IS.is_large_string, "category"),
    (_IS.is_string_view, "category"),
)
_NARROW = (pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.float16(), pa.float32())


def column_kind(dtype: pa.DataType) -> ColumnKind | None:
    """The kind of columns of an Arrow type, such as "number" or "date"; None for lists, bytes and the like."""
    # a dictionary column holds categories, whatever type they have
    if pa.types.is_dictionary(dtype):
        return "category" if _IS.is_temporal(dtype.value_type) or column_kind(dtype.value_type) else None
    return next((kind for is_type, kind in _KINDS if is_type(dtype)), date_kind(dtype))


def why_unusable(name: str, dtype: pa.DataType) -> str:
    """The error message for a column whose type has no `column_kind`."""
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return (
            f"column '{name}' holds bytes that are not UTF-8 text: save the file as UTF-8 (in a data frame "
            f"X['{name}'].str.decode('utf-8')), or drop=['{name}']"
        )
    return f"column '{name}' holds {dtype} values, which are neither numbers nor texts: leave it out, drop=['{name}']"


def check_kinds(schema: pa.Schema) -> None:
    """Raise a TypeError that lists every column of a type that cannot be encoded."""
    # all are listed, so that the user need not read the files once for each
    unusable = [field for field in schema if column_kind(field.type) is None]
    if unusable:
        raise TypeError(
            "; ".join(first_few(unusable, 10, "columns", lambda field: why_unusable(field.name, field.type)))
        )


def as_table(frame: GivenRows, *, only: Collection[str] | None = None) -> pa.Table:
    """A pandas, Polars or Arrow frame as an Arrow table; NaN in a pandas column is a missing value.

    Parameters
    ----------
    frame : DataFrame or Table
    only : collection of str or None
        The only columns of a pandas frame that are converted; None converts all.

    Raises
    ------
    TypeError
        If `frame` is not a data frame, or a column mixes types without a common one.
    ValueError
        If two columns have the same name.
    """
    frame = frame if isinstance(frame, pa.Table) else as_pandas_rows(frame)
    names = names_of_columns(frame)
    check_named_once(names)
    check_names_can_be_written(names)
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        chosen = names if only is None else [name for name in names if name in only]
        # other names, and a selection also of all columns, are copies of all values in older releases of pandas
        if list(frame.columns) != names:
            # names may be numbers, or tuples of several levels
            frame = frame.set_axis(names, axis=1)
        return _from_pandas(frame if chosen == names else frame[chosen])
    raise TypeError(f"expected a pandas DataFrame or an Arrow table with named columns, got {type(frame).__name__}")


def names_of_columns(frame: GivenRows) -> list[str]:
    """The names of the columns as texts; those of a pandas frame may be of any type."""
    if isinstance(frame, pa.Table):
        return frame.column_names
    return [str(name) for name in getattr(frame, "columns", ())]


def array_table(rows: np.ndarray) -> pa.Table:
    """The columns of an array (n, d) as a table with names such as "column 0"; NaN is a missing value."""
    return pa.table({f"column {place}": np.ascontiguousarray(column) for place, column in enumerate(rows.T)})


def check_names_can_be_written(names: Iterable[str]) -> None:
    """Raise a ValueError for a name with a NUL character, which truncates it in other programs, or an invalid text."""
    names = list(names)
    half = [name for name in names if any("\ud800" <= letter <= "\udfff" for letter in name)]
    nul = [name for name in names if "\0" in name]
    for wrong, what in ((nul, "a NUL character"), (half, "half of a pair of surrogates, which is no Unicode text")):
        if wrong:
            raise ValueError(f"column names hold {what}: {spoken_names(wrong)}; rename them")


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    """A pandas frame as an Arrow table; an error lists all columns that Arrow cannot convert."""
    odd: dict[str, pd.Series] = {}
    for name in frame.columns:
        series = frame[name]
        kind = type(series.dtype).__name__
        # Arrow has no sparse columns
        if kind == "SparseDtype":
            odd[name] = series.sparse.to_dense()  # type: ignore[attr-defined]
        elif kind == "PeriodDtype":
            # a period, such as a month, becomes the time of its beginning
            odd[name] = series.dt.to_timestamp()
        elif kind == "IntervalDtype":
            odd[name] = series.astype(str).where(series.notna(), None)
        elif kind == "CategoricalDtype":
            # categories of mixed types, or of a type that Arrow lacks, become texts
            categories = series.cat.categories
            is_mixed = categories.inferred_type in ("mixed", "mixed-integer")
            if is_mixed or type(categories.dtype).__name__ == "IntervalDtype":
                odd[name] = series.cat.rename_categories([str(category) for category in categories])
    frame = frame.assign(**odd) if odd else frame
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except _NOT_CONVERTED:
        # Arrow's error names only the first such column: each is tried alone
        columns = {name: _converted(name, frame[name]) for name in frame.columns}
    problems = [column for column in columns.values() if isinstance(column, str)]
    if problems:
        raise TypeError("; ".join(problems))
    return pa.table(columns)


_NOT_CONVERTED = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _converted(name: str, series: pd.Series) -> pa.Array | str:
    """A pandas column as an Arrow array, or an error message if Arrow cannot convert it."""
    try:
        return pa.array(series, from_pandas=True)
    except OverflowError:
        # integers beyond 64 bits become float64 if it represents them exactly
        for row, value in enumerate(series):
            if isinstance(value, int) and int(float(value)) != value:
                raise ValueError(why_inexact(name, value, f"in row {row}")) from None
        return pa.array(series.astype(float), from_pandas=True)
    except UnicodeError:
        texts = ((row, value) for row, value in enumerate(series) if isinstance(value, str))
        row, text = next((row, value) for row, value in texts if value.encode("utf-8", "ignore").decode() != value)
        return (
            f"column '{name}' holds {text!r} in row {row}, which is no Unicode text: half of a pair of surrogates "
            "stands alone, as after reading with another encoding; read it anew, or replace it"
        )
    except _NOT_CONVERTED:
        if series.dtype != object:
            return (
                f"column '{name}' holds {series.dtype} values, which are neither real numbers nor texts: leave it out"
            )
        kinds = Counter(type(value).__name__ for value in series if value is not None and value == value)
        rarest = min(kinds, key=lambda kind: kinds[kind])
        if len(kinds) == 1:
            return f"column '{name}' holds {rarest} values, which are neither real numbers nor texts: leave it out"
        row, value = next((row, value) for row, value in enumerate(series) if type(value).__name__ == rarest)
        return (
            f"column '{name}' holds values of several types ({', '.join(sorted(kinds))}); make it a column of numbers, "
            f"booleans or texts; row {row} is the first that holds a value of type {rarest}, {shown_value(value)}"
        )


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """The type in which values of `dtype` are staged on temporary disk.

    Text, bool, microseconds (with the time zone), or float32 if that holds all values of `dtype`, else float64.
    """
    kind = column_kind(dtype)
    if kind == "category":
        return pa.string()
    if kind in ("boolean", "empty"):
        return dtype
    if kind in ("date", "time", "duration"):
        return staged_type(kind, zone_of(dtype))
    return pa.float32() if dtype in _NARROW else pa.float64()


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The values as float64 of shape (n,), NaN where missing; times as days."""
    if date_kind(column.type) is not None:
        return days(column)
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def check_exact(name: str, column: pa.Array | pa.ChunkedArray, first_row: int = 0) -> None:
    """Raise a ValueError, with the row, for a whole number that float64 does not represent exactly."""
    dtype = column.type
    if not (pa.types.is_decimal(dtype) or dtype in (pa.int64(), pa.uint64())):
        return
    # float64 represents all integers up to 2**53, so that checking the extremes usually suffices
    extremes = pc.min_max(column).as_py()
    if extremes["min"] is None or -EXACT <= extremes["min"] <= extremes["max"] <= EXACT:
        return
    for row, value in enumerate(column.to_pylist()):
        if value is not None and abs(value) > EXACT and type(value)(float(value)) != value:
            raise RowError(why_inexact(name, value, f"in row {first_row + row}"), first_row + row)


def why_inexact(name: str, value: int | Decimal, place: str) -> str:
    """The error message for a whole number that float64 does not represent exactly."""
    return (
        f"column '{name}' is {value} {place}; beyond 2**53 float64 does not hold every whole number and would take "
        f"this one for {float(value):.0f}: leave the column out (drop=['{name}']), or turn its values into texts, "
        f"which count as names (categorical=['{name}'])"
    )


def texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values as texts, null if missing; 1 and 1.0 are both "1", so that whole numbers of any type are equal."""
    # NaN becomes null; all float types become float64, so that equal numbers have equal texts
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column.cast(pa.float64()))
    if pa.types.is_dictionary(column.type):
        # each value of a dictionary becomes a text once, and not in every row
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        found = [chunk.dictionary.cast(pa.string()).take(chunk.indices) for chunk in chunks]
        return pa.chunked_array(found, pa.string()) if isinstance(column, pa.ChunkedArray) else found[0]
    return column.cast(pa.string())


def plain(column: pa.ChunkedArray, field: pa.Field, first_row: int = 0) -> pa.ChunkedArray:
    """The values of a column in the type of `field` (`plain_type`); `first_row` is its first row's number in errors."""
    if column.type == field.type:
        return column
    if pa.types.is_string(field.type):
        return texts(column)
    if column_kind(column.type) == "number":
        check_exact(field.name, column, first_row)
        return pa.chunked_array([pa.array(numbers(column), field.type, from_pandas=True)])
    if date_kind(column.type) is not None:
        return staged(column, zone_of(field.type))
    return column.cast(field.type)
