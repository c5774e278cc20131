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
FORMS = ("y/m/d", "d/m/y", "m/d/y", "y.m.d", "d.m.y", "d-m-y", "m-d-y", "d b y", "b d y")
"""How texts write dates beside ISO 8601: b is the English name of a month, whatever stands between the parts. Nobody
puts the number of the month first before dots."""
NAIVE, ZONED, CLOCK, SPAN = "", "+", "t", "s"
"""Keys of the other readable texts: ISO 8601 dates without a time zone, with one, times of day, lengths of time."""
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?"
_ISO_DAY = r"(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})"
# The zone as databases, JavaScript, Java and Python write it: Z, UTC, +01, +0100, +01:00, +01:00[Europe/Berlin].
_OFFSET = r" ?(?:[Zz]|UTC|GMT|(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})?)(?:\[[\w/+-]+\])?"
_DIGITS = {"y": r"\d{4}", "m": r"\d{1,2}", "d": r"\d{1,2}"}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?i:(?P<b>{'|'.join(_MONTHS)})[a-z]{{0,6}})"
# 05JAN2023, 5-Jan-2023, Thu, 5 January 2023; Jan 5, 2023. A colon stands before the time of SAS.
_NAMED = {
    "d b y": rf"(?:\p{{L}}{{2,9}}\.?, ?)?(?P<d>\d{{1,2}})[ .-]{{0,2}}{_MONTH}[ .,-]{{0,2}}(?P<y>\d{{4}})",
    "b d y": rf"(?:\p{{L}}{{2,9}}\.?, ?)?{_MONTH}[ .-]{{1,2}}(?P<d>\d{{1,2}}),? ?(?P<y>\d{{4}})",
}
# Days, and a clock that goes beyond 24 hours: "1 days 05:30:00" and "-1 days +18:30:00" of pandas, "29:30:00".
_SPAN = (
    r"(?:(?P<span>-?\d{1,7}) days?,? )?(?P<minus>[+-]?)(?P<hour>\d{1,6}):(?P<minute>\d{2}):(?P<second>\d{2})"
    r"(?:[.,](?P<fraction>\d{1,9}))?"
)

# A day, a month and two digits of a year, in any order.
_SHORT_YEAR = (
    "^(?:"
    + "|".join(rf"\d{{1,2}}{sign}\d{{1,2}}{sign}\d{{2}}" for sign in ("/", "-", r"\."))
    + rf"|\d{{1,2}}[ .-]?{_MONTH}[ .-]?\d{{2}})"
)


def date_kind(dtype: pa.DataType) -> DateKind | None:
    """What a type of Arrow is as a time; None where it is none."""
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return "date"
    if pa.types.is_time(dtype):
        return "time"
    return "duration" if pa.types.is_duration(dtype) else None


def staged_type(kind: DateKind, zone: str | None = None) -> pa.DataType:
    """The one type in which times of a kind travel: microseconds; points in time keep their zone."""
    return pa.timestamp("us", zone) if zone else _STAGED[kind]


def zone_of(dtype: pa.DataType) -> str:
    """The time zone of a type of Arrow: "" where it has none."""
    return (dtype.tz or "") if pa.types.is_timestamp(dtype) else ""


def staged(column: pa.Array | pa.ChunkedArray, zone: str = "") -> pa.Array | pa.ChunkedArray:
    """A column of times in its `staged_type`; a point in time without a zone is one of the clock in `zone`.

    A clock that is put forward skips times, which are taken for the ones after them.
    """
    kind = date_kind(column.type)
    if kind is None:
        raise TypeError(f"a column of {column.type} holds no dates or times")
    own = zone_of(column.type)
    # Fractions of a microsecond are cut off.
    column = column.cast(staged_type(kind, own), safe=False)
    if not zone or kind != "date":
        return column
    if own:
        return column.cast(staged_type(kind, zone))
    return pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="latest")


def days(column: pa.Array | pa.ChunkedArray, zone: str = "") -> np.ndarray:
    """Times as float64 days (n,), NaN where missing: dates since 1970-01-01 by their clock, times since midnight.

    The clock is that of the column's own zone, or of `zone` where the column has one, too.
    """
    times = staged(column)
    if zone_of(times.type):
        times = pc.local_timestamp(times if not zone else times.cast(staged_type("date", zone)))
    counts = times.cast(pa.int64()).cast(pa.float64(), safe=False)
    return np.asarray(counts.to_numpy(zero_copy_only=False), np.float64) / _DAY


def written_times(texts: pa.Array) -> dict[str, pa.Array]:
    """The dates or times of day that texts write, by form; null where a text writes none in it.

    A form has the order of day, month and year and what stands between them ("m/d/y"). `NAIVE`, `ZONED` and `CLOCK`
    stand for ISO 8601, `SPAN` for lengths of time; points in time with a zone are in UTC. Texts of which no day is
    beyond 12 have two forms.

    Parameters
    ----------
    texts : pyarrow.Array of texts
        Some may be missing.
    """
    plain = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    found: dict[str, pa.Array] = {}
    if not pc.any(pc.match_substring_regex(plain, r"\d")).as_py():
        # all forms have digits
        return found
    # Texts begin as dates in few ways: only these are taken apart.
    for form in (NAIVE, ZONED, CLOCK, SPAN, *FORMS):
        start = _STARTS.get(form) or _start(form)
        may_be = pc.fill_null(pc.match_substring_regex(plain, start), False)
        if pc.any(may_be).as_py():
            found[form] = times_in_form(texts, form)
    return {form: times for form, times in found.items() if times.null_count < len(times)}


def times_in_form(texts: pa.Array, form: str) -> pa.Array:
    """Texts as the dates or times that they write in a form; null where one writes none."""
    plain = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    if form in (NAIVE, ZONED):
        pattern = rf"^{_ISO_DAY}[T ]{_TIME}{_OFFSET}$" if form == ZONED else rf"^{_ISO_DAY}(?:[T ]{_TIME})?$"
    elif form in (CLOCK, SPAN):
        pattern = rf"^{_TIME}$" if form == CLOCK else rf"^{_SPAN}$"
    else:
        written = _NAMED.get(form) or re.escape(form[1]).join(f"(?P<{part}>{_DIGITS[part]})" for part in form[::2])
        pattern = rf"^{written}(?:[ T{':' * (form in _NAMED)}]{_TIME}(?: ?(?P<half>[AaPp][Mm]))?)?$"
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


def has_short_year(texts: pa.Array) -> np.ndarray:
    """For each text whether it writes a date whose year has two digits, with or without a time: bool (n,)."""
    plain = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    found = pc.match_substring_regex(plain, _SHORT_YEAR + rf"(?:[ T]{_TIME}(?: ?[AaPp][Mm])?)?$")
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False))


# What begins otherwise is not taken apart.
_STARTS = {
    NAIVE: r"^\d{4}-\d{2}-",
    ZONED: r"^\d{4}-\d{2}-",
    CLOCK: r"^(?:\d{2}:\d{2}|\d:\d{2}:\d{2})",
    SPAN: r"^[+-]?\d+(?: days?,? |:\d{2}:)",
    "d b y": rf"^(?:\p{{L}}{{2,9}}\.?, ?)?\d{{1,2}}[ .-]{{0,2}}{_MONTH}",
    "b d y": rf"^(?:\p{{L}}{{2,9}}\.?, ?)?{_MONTH}[ .-]{{1,2}}\d",
}


def _start(form: str) -> str:
    """How texts of a form begin."""
    first, second = (_DIGITS[part] for part in form[:3:2])
    return rf"^{first}{re.escape(form[1])}{second}{re.escape(form[1])}"


class _Fields:
    """The parts of texts that were matched by a pattern, as whole numbers.

    Parameters
    ----------
    found : pyarrow.StructArray of n
        Null where a text was not matched.
    """

    def __init__(self, found: pa.StructArray) -> None:
        self._found = found
        self._names = {found.type.field(place).name for place in range(found.type.num_fields)}
        self.matched = np.asarray(found.is_valid().to_numpy(zero_copy_only=False))

    def texts(self, name: str) -> pa.Array:
        return pc.fill_null(pc.struct_field(self._found, name), "")

    def number(self, name: str, digits: int = 0) -> np.ndarray:
        """A part of each date as int64, 0 where it is not there; of fractions of a second the first `digits` digits."""
        if name not in self._names:
            return np.zeros(len(self._found), np.int64)
        texts = self.texts(name)
        if digits:
            texts = pc.utf8_slice_codeunits(pc.utf8_rpad(texts, digits, "0"), 0, digits)
        return pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64()).to_numpy()

    def clock(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds since midnight, and whether a clock shows such a time."""
        hour, minute, second = (self.number(name) for name in ("hour", "minute", "second"))
        is_time = (hour < 24) & (minute < 60) & (second < 60)
        if "half" in self._names:
            half = pc.utf8_upper(self.texts("half"))
            has_half, is_later = (np.asarray(test.to_numpy(zero_copy_only=False)) for test in _halves(half))
            # 12 AM is midnight and 12 PM is noon
            is_time &= ~has_half | ((hour >= 1) & (hour <= 12))
            hour = np.where(has_half, hour % 12 + 12 * is_later, hour)
        return ((hour * 60 + minute) * 60 + second) * 1_000_000 + self.number("fraction", 6), is_time

    def day(self) -> tuple[np.ndarray, np.ndarray]:
        """Days since 1970-01-01, and whether a calendar has such a day."""
        year, month, day = (self.number(name) for name in ("y", "m", "d"))
        if "b" in self._names:
            known = pa.array(_MONTHS, pa.string())
            places = pc.index_in(pc.utf8_lower(self.texts("b")), value_set=known)
            month = np.asarray(pc.fill_null(places, -1).to_numpy()).astype(np.int64) + 1
        months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("M8[M]")
        days = months.astype("M8[D]") + (day - 1)
        is_day = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("M8[M]") == months)
        return days.astype(np.int64), is_day

    def span(self) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds of a length of time, and whether a clock shows such minutes and seconds."""
        clock, _ = self.clock()
        is_negative = np.asarray(pc.equal(self.texts("minus"), "-").to_numpy(zero_copy_only=False))
        is_span = (self.number("minute") < 60) & (self.number("second") < 60)
        return self.number("span") * _DAY + np.where(is_negative, -clock, clock), is_span

    def offset(self) -> np.ndarray:
        """Microseconds by which the clock is ahead of UTC."""
        ahead = (self.number("hours") * 60 + self.number("minutes")) * 60_000_000
        if "sign" not in self._names:
            return ahead
        return np.where(np.asarray(pc.equal(self.texts("sign"), "-").to_numpy(zero_copy_only=False)), -ahead, ahead)


def _halves(half: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Whether AM or PM is said, and whether it is PM."""
    return pc.not_equal(half, ""), pc.equal(half, "PM")


def spoken_form(form: str) -> str:
    """A form in words: "month/day/year"."""
    words = {"y": "year", "m": "month", "d": "day", "b": "name of the month"}
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
