"""Dates and times: days as a number, and cycles (time of day, weekday, day of the year) as points on a circle."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DateKind = Literal["date", "time", "duration"]
"""Dates (with or without a time of day), times of day, and lengths of time."""
DatePart = Literal["days", "hour", "weekday", "yearday"]

DATE_KINDS: tuple[DateKind, ...] = ("date", "time", "duration")
PART_NAMES: dict[DatePart, str] = {
    "days": "days since 1970-01-01",
    "hour": "time of day",
    "weekday": "weekday",
    "yearday": "day of the year",
}
_DAY = 86_400_000_000
"""Microseconds of a day."""
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Lengths of the cycles, in days. A cycle is encoded if the rows cover it twice, as it is a trend otherwise.
_CYCLES: tuple[tuple[DatePart, float], ...] = (("hour", 1.0), ("weekday", 7.0), ("yearday", 365.25))
_STAGED: dict[DateKind, pa.DataType] = {
    "date": pa.timestamp("us"),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
}
FORMS = ("y/m/d", "d/m/y", "m/d/y", "y.m.d", "d.m.y", "d-m-y", "m-d-y")
"""The forms of dates in texts other than ISO 8601; none with dots has the month first, as nobody writes such dates."""
NAIVE, ZONED, CLOCK, SPAN = "", "+", "t", "s"
"""Names of the other forms: ISO 8601 dates without a time zone, with one, times of day, lengths of time."""
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?"
_ISO_DAY = r"(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})"
# The zone in the forms of databases, JavaScript, Java and Python: Z, UTC, +01, +0100, +01:00, +01:00[Europe/Berlin].
_OFFSET = r" ?(?:[Zz]|UTC|GMT|(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})?)(?:\[[\w/+-]+\])?"
_DIGITS = {"y": r"\d{4}", "m": r"\d{1,2}", "d": r"\d{1,2}"}
# Days, and hours that may exceed 24: "1 days 05:30:00" and "-1 days +18:30:00" of pandas, "29:30:00".
_SPAN = (
    r"(?:(?P<span>-?\d{1,7}) days?,? )?(?P<minus>[+-]?)(?P<hour>\d{1,6}):(?P<minute>\d{2}):(?P<second>\d{2})"
    r"(?:[.,](?P<fraction>\d{1,9}))?"
)


def date_kind(dtype: pa.DataType) -> DateKind | None:
    """The kind of times of an Arrow type; None for other types."""
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return "date"
    if pa.types.is_time(dtype):
        return "time"
    return "duration" if pa.types.is_duration(dtype) else None


def staged_type(kind: DateKind, zone: str | None = None) -> pa.DataType:
    """The type in which times of a kind are staged on temporary disk: microseconds, dates with their time zone."""
    return pa.timestamp("us", zone) if zone else _STAGED[kind]


def zone_of(dtype: pa.DataType) -> str:
    """The time zone of an Arrow type; empty without one."""
    return (dtype.tz or "") if pa.types.is_timestamp(dtype) else ""


def staged(column: pa.Array | pa.ChunkedArray, zone: str = "") -> pa.Array | pa.ChunkedArray:
    """A column of times in its `staged_type`, dates in the time zone `zone` if it is not empty.

    Dates without a time zone are local times there; those that a change to summer time skips become later ones.
    """
    kind = date_kind(column.type)
    if kind is None:
        raise TypeError(f"a column of {column.type} holds no dates or times")
    own = zone_of(column.type)
    # fractions of a microsecond are cut off
    column = column.cast(staged_type(kind, own), safe=False)
    if not zone or kind != "date":
        return column
    if own:
        return column.cast(staged_type(kind, zone))
    return pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="latest")


def days(column: pa.Array | pa.ChunkedArray, zone: str = "") -> np.ndarray:
    """Times in days, (n,) float64, NaN for missing ones: dates since 1970-01-01 in local time, times since midnight.

    Local time is that of the column's time zone; of `zone`, if that is not empty and the column has a time zone.
    """
    times = staged(column)
    if zone_of(times.type):
        times = pc.local_timestamp(times if not zone else times.cast(staged_type("date", zone)))
    counts = times.cast(pa.int64()).cast(pa.float64(), safe=False)
    return np.asarray(counts.to_numpy(zero_copy_only=False), np.float64) / _DAY


def written_times(texts: pa.Array) -> dict[str, pa.Array]:
    """The dates and times that texts write, for each form in which some text is one; null for texts in other forms.

    A form is one of `FORMS` (the order of day, month and year and the separator, "m/d/y"), `NAIVE`, `ZONED`, `CLOCK` or
    `SPAN`. Dates with a time zone are converted to UTC. A text whose day is at most 12 may have two forms.

    Parameters
    ----------
    texts : pyarrow.Array of texts
        Some may be missing.
    """
    plain = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    found: dict[str, pa.Array] = {}
    if not pc.any(pc.match_substring_regex(plain, r"\d")).as_py():
        # all forms contain digits
        return found
    # only forms whose beginning some text has are parsed
    for form in (NAIVE, ZONED, CLOCK, SPAN, *FORMS):
        start = _STARTS.get(form) or _start(form)
        may_be = pc.fill_null(pc.match_substring_regex(plain, start), False)
        if pc.any(may_be).as_py():
            found[form] = times_in_form(texts, form)
    return {form: times for form, times in found.items() if times.null_count < len(times)}


def times_in_form(texts: pa.Array, form: str) -> pa.Array:
    """Texts parsed as dates or times in a form; null for texts in other forms."""
    plain = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    if form in (NAIVE, ZONED):
        pattern = rf"^{_ISO_DAY}[T ]{_TIME}{_OFFSET}$" if form == ZONED else rf"^{_ISO_DAY}(?:[T ]{_TIME})?$"
    elif form in (CLOCK, SPAN):
        pattern = rf"^{_TIME}$" if form == CLOCK else rf"^{_SPAN}$"
    else:
        written = re.escape(form[1]).join(f"(?P<{part}>{_DIGITS[part]})" for part in form[::2])
        pattern = rf"^{written}(?:[ T]{_TIME}(?: ?(?P<half>[AaPp][Mm]))?)?$"
    fields = _Fields(pc.extract_regex(plain, pattern))
    clock, is_time = fields.clock()
    if form == SPAN:
        span, is_span = fields.span()
        return pa.array(span, pa.int64(), mask=~(fields.matched & is_span)).cast(pa.duration("us"))
    if form == CLOCK:
        return pa.array(clock, pa.time64("us"), mask=~(fields.matched & is_time))
    day, is_day = fields.day()
    moment = day * _DAY + clock - fields.offset()
    dtype = pa.timestamp("us", "UTC") if form == ZONED else pa.timestamp("us")
    return pa.array(moment, pa.int64(), mask=~(fields.matched & is_time & is_day)).cast(dtype)


# The beginnings of texts in a form: texts that begin otherwise are not parsed.
_STARTS = {
    NAIVE: r"^\d{4}-\d{2}-",
    ZONED: r"^\d{4}-\d{2}-",
    CLOCK: r"^(?:\d{2}:\d{2}|\d:\d{2}:\d{2})",
    SPAN: r"^[+-]?\d+(?: days?,? |:\d{2}:)",
}


def _start(form: str) -> str:
    """The beginning of texts in a numeric form, as a regular expression."""
    first, second = (_DIGITS[part] for part in form[:3:2])
    return rf"^{first}{re.escape(form[1])}{second}{re.escape(form[1])}"


class _Fields:
    """The parts of texts that matched a pattern, as whole numbers.

    Parameters
    ----------
    found : pyarrow.StructArray of n
        Null for texts that did not match.
    """

    def __init__(self, found: pa.StructArray) -> None:
        self._found = found
        self._names = {found.type.field(place).name for place in range(found.type.num_fields)}
        self.matched = np.asarray(found.is_valid().to_numpy(zero_copy_only=False))

    def texts(self, name: str) -> pa.Array:
        return pc.fill_null(pc.struct_field(self._found, name), "")

    def number(self, name: str, digits: int = 0) -> np.ndarray:
        """A part of each text as int64, 0 if it is absent; of fractions of a second the first `digits` digits."""
        if name not in self._names:
            return np.zeros(len(self._found), np.int64)
        texts = self.texts(name)
        if digits:
            texts = pc.utf8_slice_codeunits(pc.utf8_rpad(texts, digits, "0"), 0, digits)
        return pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64()).to_numpy()

    def clock(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds since midnight, and whether the time of day is valid."""
        hour, minute, second = (self.number(name) for name in ("hour", "minute", "second"))
        is_time = (hour < 24) & (minute < 60) & (second < 60)
        if "half" in self._names:
            half = pc.utf8_upper(self.texts("half"))
            tests = pc.not_equal(half, ""), pc.equal(half, "PM")
            has_half, is_later = (test.to_numpy(zero_copy_only=False) for test in tests)
            # 12 AM is midnight and 12 PM is noon
            is_time &= ~has_half | ((hour >= 1) & (hour <= 12))
            hour = np.where(has_half, hour % 12 + 12 * is_later, hour)
        return ((hour * 60 + minute) * 60 + second) * 1_000_000 + self.number("fraction", 6), is_time

    def day(self) -> tuple[np.ndarray, np.ndarray]:
        """Days since 1970-01-01, and whether the date exists."""
        year, month, day = (self.number(name) for name in ("y", "m", "d"))
        months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("M8[M]")
        days = months.astype("M8[D]") + (day - 1)
        is_day = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("M8[M]") == months)
        return days.astype(np.int64), is_day

    def span(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds of a length of time, and whether its minutes and seconds are below 60."""
        clock, _ = self.clock()
        is_negative = np.asarray(pc.equal(self.texts("minus"), "-").to_numpy(zero_copy_only=False))
        is_span = (self.number("minute") < 60) & (self.number("second") < 60)
        return self.number("span") * _DAY + np.where(is_negative, -clock, clock), is_span

    def offset(self) -> np.ndarray:
        """Microseconds by which local time is ahead of UTC."""
        ahead = (self.number("hours") * 60 + self.number("minutes")) * 60_000_000
        if "sign" not in self._names:
            return ahead
        return np.where(np.asarray(pc.equal(self.texts("sign"), "-").to_numpy(zero_copy_only=False)), -ahead, ahead)


def form_in_words(form: str) -> str:
    """A form in words: "month/day/year"."""
    words = {"y": "year", "m": "month", "d": "day"}
    return "".join(words.get(sign, sign) for sign in form)


def parts_of(kind: DateKind, first: float, last: float, *, has_times: bool) -> tuple[DatePart, ...]:
    """The parts of times that a rule encodes.

    Dates and durations have days; dates also have each cycle that the rows cover twice: the time of day (two days, if
    dates have one), the weekday (14 days) and the day of the year (two years). Times of day have only their cycle.

    Parameters
    ----------
    kind : {"date", "time", "duration"}
    first, last : float
        The range of the days.
    has_times : bool
        Whether some date is not a midnight.
    """
    if kind == "time":
        return ("hour",)
    if kind == "duration":
        return ("days",)
    cycles = [name for name, length in _CYCLES if last - first >= 2 * length and (has_times or name != "hour")]
    return ("days", *cycles)


def names_of(name: str, parts: tuple[DatePart, ...]) -> list[str]:
    """The names of the encoded columns of times: one for the days, cosine and sine for each cycle."""
    return [
        f"{name}.{part}" if part == "days" else f"{name}.{part}.{function}"
        for part in parts
        for function in (("",) if part == "days" else ("cos", "sin"))
    ]


def encoded_days(values: np.ndarray, parts: tuple[DatePart, ...], fill: float | None) -> np.ndarray:
    """The encoded columns of times, side by side: (n, k) float64.

    A missing time becomes `fill` days and the center (0, 0) of each circle.

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
        angle = 2 * np.pi * _cycle_positions(there, part)
        columns += [np.where(missing, 0.0, np.cos(angle)), np.where(missing, 0.0, np.sin(angle))]
    return np.column_stack(columns)


def written_time(encoded: np.ndarray, parts: tuple[DatePart, ...]) -> str:
    """The date, the time of day, or both, in minutes, of the encoded columns (k,) of one time.

    Without the days, which a fit may leave out, the weekday and the day of the year stand in place of the date, as in
    "Friday, day 113".

    >>> written_time(encoded_days(np.array([19_846.25]), ("days", "hour"), None)[0], ("days", "hour"))
    '2024-05-03 06:00'
    """
    names = names_of("", parts)

    def step_of_cycle(part: DatePart, n_steps: float) -> int:
        """The nearest of the steps into which a cycle is divided, from 0."""
        place = names.index(f".{part}.cos")
        cosine, sine = encoded[place : place + 2]
        return round(float(np.arctan2(sine, cosine)) / (2 * np.pi) % 1.0 * n_steps)

    place, minutes = (names.index(".hour.cos") if "hour" in parts else None), 0
    if place is not None:
        minutes = step_of_cycle("hour", 1_440) % 1_440
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}"
    if "days" not in parts:
        said = [_WEEKDAYS[step_of_cycle("weekday", 7) % 7]] if "weekday" in parts else []
        said += [f"day {step_of_cycle('yearday', 365.25) % 366 + 1}"] if "yearday" in parts else []
        return ", ".join([*said, *([clock] if place is not None else [])])
    # 20,000 days since 1970 in single precision are rounded to steps of 2.8 minutes: the minute comes from the columns
    # of the hour, and the number of days only says which day it is.
    number = float(encoded[names.index(".days")])
    day = np.datetime64(int(np.floor(number + 1 / 1_440) if place is None else round(number - minutes / 1_440)), "D")
    return f"{day}" if place is None else f"{day} {clock}"


def _cycle_positions(values: np.ndarray, part: DatePart) -> np.ndarray:
    """Positions of times in a cycle, from 0 to 1: weekdays count from Monday, days of the year from 1 January."""
    day = np.floor(values)
    if part == "hour":
        return values - day
    if part == "weekday":
        # 1970-01-01 was a Thursday, three days after a Monday.
        return np.mod(day + 3, 7) / 7
    dates = day.astype("M8[D]")
    return (dates - dates.astype("M8[Y]")).astype(np.float64) / 365.25
