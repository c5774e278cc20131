"""Groups and times as int64 codes: hashes of the groups' values, and integers in the order of the times."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import dask
import numpy as np

from dkl.errors import RowError

TimeKind = Literal["number", "datetime"]


def group_codes(values: Any, n_rows: int, name: str, *, first_row: int = 0) -> np.ndarray:
    """Groups as 63-bit hashes of their values, (n,) int64, which are equal for equal values in all datasets.

    3, 3.0 and "3" are the same group. Among a million groups two have the same hash with a probability of 5e-8; they
    would be held out together.

    Parameters
    ----------
    values : array of shape (n,), series or list
        Texts, numbers, dates, categories.
    n_rows : int
    name, first_row
        Name of the values, and number of the first row, in messages.

    Raises
    ------
    ValueError
        For another shape, or a missing value.
    """
    import pandas as pd

    given = _column(values, n_rows, name)
    codes, found = pd.factorize(given)
    if (codes < 0).any():
        row = first_row + int(np.flatnonzero(codes < 0)[0])
        raise RowError(
            f"{name} is missing in row {row}; every row needs its group: remove rows without one, or give each of them "
            "a group of its own",
            row,
        )
    hashes = np.empty(len(found), np.int64)
    for place, value in enumerate(np.asarray(found, dtype=object)):
        is_whole = isinstance(value, bool | np.bool_) or (isinstance(value, float | np.floating) and value % 1 == 0)
        text = str(int(value) if is_whole else value)
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        # 63 of the 64 bits, so that codes are not negative
        hashes[place] = int.from_bytes(digest, "little") >> 1
    return hashes[codes]


def time_codes(values: Any, n_rows: int, name: str, *, first_row: int = 0) -> tuple[np.ndarray, TimeKind]:
    """Times as int64 in the same order, (n,), and their kind: numbers, or dates in microseconds since 1970 in UTC.

    Parameters
    ----------
    values : array of shape (n,), series or list
        Numbers, dates, or texts of dates in ISO 8601.
    n_rows : int
    name, first_row
        Name of the values, and number of the first row, in messages.

    Raises
    ------
    ValueError
        For another shape, a missing or infinite time, or a text that is not a date.
    """
    import pandas as pd

    given = _column(values, n_rows, name)
    if (missing := np.asarray(pd.isna(given), dtype=bool)).any():
        row = first_row + int(np.flatnonzero(missing)[0])
        raise RowError(
            f"{name} is missing in row {row}; every row needs its time: remove rows without one, or fill them in", row
        )
    if pd.api.types.is_bool_dtype(given):
        raise ValueError(f"{name} holds booleans; times are numbers or dates")
    if pd.api.types.is_numeric_dtype(given) or pd.api.types.infer_dtype(given) in _NUMBERS:
        values = given.to_numpy(dtype=np.float64)
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            row = first_row + int(infinite[0])
            raise RowError(f"{name} is {values[infinite[0]]} in row {row}; times are finite", row)
        # the bits of floats, inverted for negative ones, are integers in the same order; + 0.0 turns -0.0 into 0.0
        bits = np.ascontiguousarray(values + 0.0).view(np.int64)
        return np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits), "number"
    dates = given if pd.api.types.is_datetime64_any_dtype(given) else _dates(given, name, first_row)
    if dates.dt.tz is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    return dates.to_numpy().astype("datetime64[us]").astype(np.int64), "datetime"


_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")


def _column(values: Any, n_rows: int, name: str) -> Any:
    """The values as a pandas series of the expected length."""
    import pandas as pd

    if dask.is_dask_collection(values):
        values = values.compute()
    if not isinstance(values, pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        shape = np.shape(values)
        if shape != (n_rows,):
            raise ValueError(f"{name} has shape {shape}; expected ({n_rows},), one value a row")
    if len(values) != n_rows:
        raise ValueError(f"{name} has {len(values)} values; expected {n_rows}, one a row")
    return pd.Series(values).reset_index(drop=True)


def _dates(given: Any, name: str, first_row: int) -> Any:
    """Texts and objects as dates."""
    import pandas as pd

    is_text = pd.api.types.infer_dtype(given) == "string"
    form: dict[str, Any] = {"format": "ISO8601"} if is_text else {}
    try:
        return pd.to_datetime(given.astype(object), utc=True, **form)
    except (ValueError, TypeError, OverflowError) as error:
        read = pd.to_datetime(given.astype(object), utc=True, errors="coerce", **form)
        wrong = np.flatnonzero(np.asarray(read.isna()))
        place = int(wrong[0]) if len(wrong) else 0
        where = f" in row {first_row + place}" if len(wrong) else ""
        raise RowError(
            f"{name} is {given.iloc[place]!r}{where}, which is no number and no date; expected numbers, dates, or "
            "texts such as '2026-11-23' or '2026-11-23T08:00'. Read other texts with "
            "pandas.to_datetime(..., format=...) before",
            first_row + place,
        ) from error
