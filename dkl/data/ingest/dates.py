"""Dates and times: days as a number, and what recurs (hour, weekday, day of the year) as a point on a circle."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DateKind = Literal["date", "time", "duration"]
"""Points in time (with or without a time of day), times of day, and lengths of time."""
DatePart = Literal["days", "hour", "weekday", "yearday"]

DATE_KINDS: tuple[DateKind, ...] = ("date", "time", "duration")
SPOKEN: dict[DatePart, str] = {
    "days": "days since 1970-01-01",
    "hour": "time of day",
    "weekday": "weekday",
    "yearday": "day of the year",
}
_DAY = 86_400_000_000
"""Microseconds of a day."""
# A cycle is told apart from a trend where the rows cover it twice.
_CYCLES: tuple[tuple[DatePart, float], ...] = (("hour", 1.0), ("weekday", 7.0), ("yearday", 365.25))
_STAGED: dict[DateKind, pa.DataType] = {
    "date": pa.timestamp("us"),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
}
# ISO 8601 as CSV files have it, whose readers take it for a date: a date, a date with a time, a time.
_ISO = (
    (r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?$", "date", pa.timestamp("us")),
    (r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})$", "date", pa.timestamp("us", "UTC")),
    (r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$", "time", pa.time64("us")),
)

FORMS = ("y/m/d", "d/m/y", "m/d/y", "y.m.d", "d.m.y", "d-m-y", "m-d-y")
"""How texts write dates beside ISO 8601. Nobody puts the month first before dots."""
_CLOCK = r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d{1,6})?))?(?: ?(?P<half>[AaPp][Mm]))?)?"


def date_kind(dtype: pa.DataType) -> DateKind | None:
    """What a type of Arrow is as a time; None where it is none."""
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return "date"
    if pa.types.is_time(dtype):
        return "time"
    return "duration" if pa.types.is_duration(dtype) else None


def staged_type(kind: DateKind) -> pa.DataType:
    """The one type in which times of a kind travel: microseconds, dates as the clock on the wall shows them."""
    return _STAGED[kind]


def staged(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column of times in its `staged_type`: a time zone is taken for where its clock hangs, and left out."""
    kind = date_kind(column.type)
    if kind is None:
        raise TypeError(f"a column of {column.type} holds no dates or times")
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = pc.local_timestamp(column)
    # Fractions of a microsecond are cut off.
    return column.cast(_STAGED[kind], safe=False)


def days(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Times as float64 days (n,), NaN where missing: dates since 1970-01-01, times since midnight."""
    counts = staged(column).cast(pa.int64()).cast(pa.float64(), safe=False)
    return np.asarray(counts.to_numpy(zero_copy_only=False), np.float64) / _DAY


def dates_in_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Texts as the dates or times that all of them write in ISO 8601; None where one of them is something else.

    A column without any value is one of missing dates.
    """
    there = column.drop_null()
    for pattern, kind, dtype in _ISO:
        # The first few tell of most columns that their texts are no dates.
        few = there.slice(0, 16)
        if not all(pc.all(pc.match_substring_regex(part, pattern)).as_py() is not False for part in (few, there)):
            continue
        try:
            # A month 13 and a 30 February look like dates to the pattern.
            plain = column.cast(pa.string())
            if kind == "time":
                # Arrow reads points in time alone: these are those of one day.
                plain = pc.binary_join_element_wise("1970-01-01", plain, " ").cast(pa.timestamp("us"))
            return staged(plain.cast(dtype))
        except pa.ArrowInvalid:
            return None
    return None


def written_dates(column: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The dates or times that texts may write, by the form in which all of them do; none where one is something else.

    A form has the order of day, month and year and what stands between them ("m/d/y"); that of ISO 8601 is empty.
    Texts of which no day is beyond 12 have two forms.
    """
    if (iso := dates_in_texts(column)) is not None:
        return {"": iso}
    first = next((value for value in column.slice(0, 16).to_pylist() if value is not None), None)
    if first is None:
        first = next((value.as_py() for value in column if value.is_valid), None)
    separator = re.match(r"\d{1,4}([/.-])\d{1,2}\1\d{1,4}(?!\d)", first or "")
    forms = [] if separator is None else [form for form in FORMS if form[1:2] == separator.group(1)]
    found = {form: dates_in_form(column, form) for form in forms}
    return {form: dates for form, dates in found.items() if dates is not None}


def dates_in_form(column: pa.Array | pa.ChunkedArray, form: str) -> pa.Array | pa.ChunkedArray | None:
    """Texts as the dates that all of them write in a form, with or without a time of day; None where one does not."""
    if not form:
        return dates_in_texts(column)
    order, separator = form[::2], re.escape(form[1])
    digits = {"y": r"\d{4}", "m": r"\d{1,2}", "d": r"\d{1,2}"}
    pattern = rf"^{separator.join(f'(?P<{part}>{digits[part]})' for part in order)}{_CLOCK}$"
    there = column.drop_null()
    for part in (there.slice(0, 16), there):
        if pc.all(pc.match_substring_regex(part, pattern)).as_py() is False:
            return None
    found = pc.extract_regex(column.cast(pa.string()), pattern)
    fields = {name: pc.struct_field(found, name) for name in ("y", "m", "d", "hour", "minute", "second", "half")}
    clock = {name: pc.if_else(pc.equal(fields[name], ""), "0", fields[name]) for name in ("hour", "minute", "second")}
    hour = clock["hour"].cast(pa.int64())
    half = pc.utf8_upper(fields["half"])
    # 12 AM is midnight and 12 PM is noon.
    twelve = pc.if_else(pc.equal(hour, 12), 0, hour)
    hour = pc.if_else(pc.equal(half, ""), hour, pc.if_else(pc.equal(half, "PM"), pc.add(twelve, 12), twelve))
    padded = [pc.utf8_lpad(text, width=2, padding="0") for text in (fields["m"], fields["d"], hour.cast(pa.string()))]
    second = pc.if_else(pc.equal(clock["second"], "0"), "00", clock["second"])
    day = pc.binary_join_element_wise(fields["y"], padded[0], padded[1], "-")
    minute = pc.utf8_lpad(clock["minute"], width=2, padding="0")
    try:
        # A month 13, a 30 February and a 25th hour are none.
        return pc.binary_join_element_wise(day, pc.binary_join_element_wise(padded[2], minute, second, ":"), " ").cast(
            pa.timestamp("us")
        )
    except pa.ArrowInvalid:
        return None


def spoken_form(form: str) -> str:
    """A form in words: "month/day/year"."""
    words = {"y": "year", "m": "month", "d": "day"}
    return "".join(words.get(sign, sign) for sign in form)


def parts_of(kind: DateKind, first: float, last: float, *, has_times: bool) -> tuple[DatePart, ...]:
    """Which parts of the times a rule keeps.

    Days always; of dates also each cycle that the rows cover twice: the time of day (where there are times of day, on
    two days), the weekday (14 days) and the day of the year (two years). A time of day is a point of its cycle alone.

    Parameters
    ----------
    kind : {"date", "time", "duration"}
    first, last : float
        The range of the days.
    has_times : bool
        Not all dates are midnights.
    """
    if kind == "time":
        return ("hour",)
    if kind == "duration":
        return ("days",)
    cycles = [name for name, length in _CYCLES if last - first >= 2 * length and (has_times or name != "hour")]
    return ("days", *cycles)


def names_of(name: str, parts: tuple[DatePart, ...]) -> list[str]:
    """The encoded columns of a column of times: one for the days, cosine and sine for each cycle."""
    return [
        f"{name}.{part}" if part == "days" else f"{name}.{part}.{function}"
        for part in parts
        for function in (("",) if part == "days" else ("cos", "sin"))
    ]


def encoded_days(values: np.ndarray, parts: tuple[DatePart, ...], fill: float | None) -> np.ndarray:
    """The encoded columns of times, side by side: (n, k) float64.

    A missing time has the days `fill`, and lies in the middle of each circle: it has no hour and no weekday.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Days, NaN where missing.
    parts : tuple of {"days", "hour", "weekday", "yearday"}
    fill : float or None
    """
    missing = np.isnan(values)
    there = np.where(missing, 0.0, values)
    columns = []
    for part in parts:
        if part == "days":
            columns.append(values if fill is None else np.where(missing, fill, values))
            continue
        angle = 2 * np.pi * _turns(there, part)
        columns += [np.where(missing, 0.0, np.cos(angle)), np.where(missing, 0.0, np.sin(angle))]
    return np.column_stack(columns)


def _turns(values: np.ndarray, part: DatePart) -> np.ndarray:
    """How far times are in a cycle, from 0 to 1: weekdays count from Monday, days of the year from 1 January."""
    day = np.floor(values)
    if part == "hour":
        return values - day
    if part == "weekday":
        # 1970-01-01 was a Thursday, three days after a Monday.
        return np.mod(day + 3, 7) / 7
    dates = day.astype("M8[D]")
    return (dates - dates.astype("M8[Y]")).astype(np.float64) / 365.25
