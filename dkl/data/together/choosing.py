"""What `by_group=` and `by_time=` name: a column that rows have, a feature that is a time, or one value a row."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.checks import spoken_names
from dkl.data.schema import HeldBy, Schema
from dkl.data.sources.lazy import lazy_part
from dkl.data.sources.rows import RowSource
from dkl.data.together.codes import group_codes, time_codes
from dkl.data.together.rules import with_column
from dkl.errors import users_level

# Rows whose dates alone are looked at: the dates of all of them are held, 64 MiB.
_MOST_DATED_ROWS = 2**23
_FEWEST_TIMES = 20
_LARGEST_SHARE = 0.1


def check_one_kind(by_group: Any, by_time: Any, names: tuple[str, str] = ("by_group", "by_time")) -> None:
    """Raise ValueError where rows are to be held out by their group and by their time."""
    if _is_given(by_group) and _is_given(by_time):
        raise ValueError(
            f"{names[0]} and {names[1]} were both given; rows are held out by one of them: whole groups, or the newest "
            "rows"
        )


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def chosen_rows_together(
    source: RowSource, schema: Schema, by_group: Any = None, by_time: Any = None
) -> tuple[RowSource, Schema]:
    """The source and the schema whose `held_by` is what the user has chosen; unchanged where nothing was.

    Parameters
    ----------
    by_group, by_time : str, array of shape (n_rows,), bool or None
        The name of a column; values; True for the one that rows have; False for each row by itself.

    Raises
    ------
    ValueError
        Both are given, no column has the name, or the values are none by which rows can be held out.
    """
    check_one_kind(by_group, by_time)
    roles: tuple[tuple[HeldBy, Any], ...] = (("group", by_group), ("time", by_time))
    for role, given in roles:
        if given is False and schema.held_by == role:
            schema = replace(schema, held_by=None)
    for role, given in roles:
        if not _is_given(given):
            continue
        if not isinstance(given, str | bool):
            return with_values(source, schema, role, given)
        known = schema.row_columns.get(role)
        if known is not None and given in (True, known.name):
            return source, replace(schema, held_by=role)
        # Times may be a feature as well, and a group never is.
        if role == "time" and given in (schema.column_names or ()):
            place = (schema.column_names or []).index(str(given))
            codes, kind = time_codes(feature_values(source, place), int(source.block_rows.sum()), repr(given))
            return with_column(source, schema, "time", codes, (str(given), kind))
        raise ValueError(_unknown(source, schema, role, given))
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
    """The source and the schema with a column of groups or times, one value a row.

    Parameters
    ----------
    role : {"group", "time"}
    values : array of shape (n,)
    name : str or None
        What the column is called; None is its role.
    kept : ndarray of bool or of row numbers, or None
        Which of the rows are those of the source, where not each of them is there once.
    n_given : int or None
        How many values there are, where `kept` holds numbers.

    Raises
    ------
    ValueError
        Another length, or a value is missing.
    """
    n_rows, called = int(source.block_rows.sum()) if kept is None else n_given or len(kept), name or f"{role}s"
    kind: Any = "group"
    if role == "group":
        values = values.compute() if dask.is_dask_collection(values) else values
        codes = group_codes(values, n_rows, called)
        _say_alike(values, called)
    else:
        codes, kind = time_codes(values, n_rows, called)
    return with_column(source, schema, role, codes if kept is None else codes[kept], (name or role, kind))


def _say_alike(groups: Any, name: str) -> None:
    """Warn of groups whose names may mean the same: rows of one would be held out and taught by rows of the other."""
    import pandas as pd

    counts = pd.Series(groups).value_counts()
    if pd.api.types.infer_dtype(counts.index) != "string":
        return
    # it brings pyarrow, which few rows in memory need
    from dkl.data.columns.deciding import similar_names_warnings

    for sentence in similar_names_warnings(name, {str(value): int(count) for value, count in counts.items()}):
        warnings.warn(sentence, UserWarning, stacklevel=users_level())


def feature_values(source: RowSource, place: int) -> np.ndarray:
    """One column of X, (n_rows,) float64."""
    empty = np.empty((0, source.n_columns), source.dtype)
    X = lazy_part(source, "X", sparse.csr_array(empty) if source.is_sparse else empty)
    parts = [dask.delayed(column_at, pure=False)(part, place) for part in X.to_delayed().ravel()]
    return np.concatenate(dask.compute(*parts))


def column_at(rows: Any, place: int) -> np.ndarray:
    """One column of dense or sparse rows, float64 of shape (n,)."""
    values = rows[:, [place]]
    return np.asarray(values.todense() if sparse.issparse(values) else values, dtype=np.float64).ravel()


def _unknown(source: RowSource, schema: Schema, role: HeldBy, given: Any) -> str:
    """What to say of a column that the rows do not have: what they have instead, and how to get there."""
    known = schema.row_columns.get(role)
    has = f"its {role} column is {known.name!r}" if known is not None else f"it has no {role} column"
    # The columns as the user knows them: before the encoding, where there was one.
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
    """The source and the schema whose rows are held out by their dates, the newest ones first.

    That needs one column of dates, in which none is missing, with at least 20 different ones of which none is that of
    more than a tenth of the rows, and rows that nothing keeps together yet; others stay as they are.
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
