"""Applies `by_group=` and `by_time=`: a row column, a feature that is a time, or one value for each row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.schema import HeldBy, Schema
from dkl.data.sources.lazy import lazy_x
from dkl.data.sources.rows import RowSource
from dkl.data.together.codes import group_codes, time_codes
from dkl.data.together.rules import with_column
from dkl.protocols.arrays import dense_rows

# Limits for holding out the newest rows without the user's choice: the number of rows, whose dates must be in memory
# (64 MiB), the number of distinct dates, and the share of the rows with the same date.
_MOST_DATED_ROWS = 2**23
_FEWEST_TIMES = 20
_LARGEST_SHARE = 0.1


def check_one_kind(by_group: Any, by_time: Any) -> None:
    """Raise ValueError if rows would be held out both by group and by time."""
    if _is_chosen(by_group) and _is_chosen(by_time):
        raise ValueError(
            "by_group and by_time were both given; rows are held out by one of them: whole groups, or the newest rows"
        )


def _is_chosen(value: Any) -> bool:
    return value is not None and value is not False


def with_held_by(
    source: RowSource, schema: Schema, by_group: Any = None, by_time: Any = None
) -> tuple[RowSource, Schema]:
    """The source and the schema with the user's choice as `held_by`; unchanged without a choice.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    by_group, by_time : str, array of shape (n_rows,), bool or None
        The name of a column; values; True for the existing row column; False for holding out single rows.

    Raises
    ------
    ValueError
        If both are given, no column has the name, or values are invalid.
    """
    check_one_kind(by_group, by_time)
    roles: tuple[tuple[HeldBy, Any], ...] = (("group", by_group), ("time", by_time))
    for role, given in roles:
        if given is False and schema.held_by == role:
            schema = replace(schema, held_by=None)
    for role, given in roles:
        if not _is_chosen(given):
            continue
        if not isinstance(given, str | bool):
            return with_values(source, schema, role, given)
        known = schema.row_columns.get(role)
        if known is not None and given in (True, known.name):
            return source, replace(schema, held_by=role)
        # a feature may be a time, but never a group
        if role == "time" and given in (schema.column_names or ()):
            place = (schema.column_names or []).index(str(given))
            codes, kind = time_codes(feature_values(source, place), int(source.block_rows.sum()), repr(given))
            return with_column(source, schema, "time", codes, (str(given), kind))
        raise ValueError(_unknown_column_message(source, schema, role, given))
    return source, schema


def with_values(
    source: RowSource,
    schema: Schema,
    role: HeldBy,
    values: Any,
    name: str | None = None,
    kept: np.ndarray | None = None,
    n_given: int | None = None,
) -> tuple[RowSource, Schema]:
    """The source and the schema with a row column of groups or times.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    role : {"group", "time"}
    values : array of shape (n,)
    name : str or None
        Name of the column; None is its role.
    kept : ndarray of bool or of row numbers, or None
        The positions in `values` of the rows of the source; None if each value is used once.
    n_given : int or None
        The required number of values, if `kept` has row numbers.

    Raises
    ------
    ValueError
        For a wrong length or a missing value.
    """
    n_rows, called = int(source.block_rows.sum()) if kept is None else n_given or len(kept), name or f"{role}s"
    kind: Any = "group"
    if role == "group":
        codes = group_codes(values, n_rows, called)
    else:
        codes, kind = time_codes(values, n_rows, called)
    return with_column(source, schema, role, codes if kept is None else codes[kept], (name or role, kind))


def feature_values(source: RowSource, place: int) -> np.ndarray:
    """One column of X, (n_rows,) float64."""
    parts = [dask.delayed(column_at, pure=False)(part, place) for part in lazy_x(source).to_delayed().ravel()]
    return np.concatenate(dask.compute(*parts))


def column_at(rows: Any, place: int) -> np.ndarray:
    """One column of dense or sparse rows, float64 of shape (n,)."""
    return np.asarray(dense_rows(rows[:, [place]]), dtype=np.float64).ravel()


def _unknown_column_message(source: RowSource, schema: Schema, role: HeldBy, given: Any) -> str:
    """The error message for a name that is not a column: the existing columns, and remedies."""
    known = schema.row_columns.get(role)
    has = f"its {role} column is {known.name!r}" if known is not None else f"it has no {role} column"
    # the names of raw columns, if there is an encoding
    raw = schema.column_names or () if schema.encoding is None else [rule.name for rule in schema.encoding.rules]
    if role == "group" and given in raw:
        return (
            f"by_group={given!r} is a feature of {source.place}, and a group is never one: write the rows with "
            f"dkl.ingest(..., group={given!r}), or create_dataset(..., groups=values), or pass one value a row"
        )
    features = f"; its features are {spoken_names(schema.column_names)}" if schema.column_names else ""
    return (
        f"by_{role}={given!r} names no column of {source.place}: {has}{features}. Write the rows with "
        f"dkl.ingest(..., {role}={given!r}) or create_dataset(..., {role}s=values), or pass one value a row"
    )


def held_by_own_dates(source: RowSource, schema: Schema) -> tuple[RowSource, Schema]:
    """The source and the schema that hold out the newest rows by their dates; unchanged if they are not suitable.

    Suitable rows have no groups or times, and a single column of dates without missing values, with at least 20
    distinct dates, none of which more than a tenth of the rows have.
    """
    dated = [rule for rule in getattr(schema.encoding, "rules", ()) if rule.kind == "date"]
    n_rows = int(source.block_rows.sum())
    if schema.row_columns or len(dated) != 1 or dated[0].missing or not 0 < n_rows <= _MOST_DATED_ROWS:
        return source, schema
    (rule,) = dated
    days = feature_values(source, (schema.column_names or []).index(f"{rule.name}.days"))
    _, counts = np.unique(days, return_counts=True)
    if len(counts) < _FEWEST_TIMES or counts.max() > _LARGEST_SHARE * n_rows:
        return source, schema
    codes, kind = time_codes(days, n_rows, repr(rule.name))
    return with_column(source, schema, "time", codes, (rule.name, kind))
