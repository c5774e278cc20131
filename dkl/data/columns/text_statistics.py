"""TextStatistics: counts of numbers, dates and other values in a column of texts, computed in batches and merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.free_text import TextSample
from dkl.data.columns.numbers import (
    LEADING_ZERO,
    DefaultMark,
    Mark,
    NumberForm,
    NumberParts,
    Spelling,
    has_ambiguous_mark,
    means_missing,
    most_common_form,
)
from dkl.data.ingest.dates import CLOCK, NAIVE, SPAN, ZONED, days, written_times
from dkl.data.ingest.precision import EXACT, EXACT_FLOAT32

Key = TypeVar("Key")

SHARE_READ = 0.95
"""A column of texts is read as numbers (or dates) if at least this share of its values are written in one form."""
# Number of values that are neither numbers nor dates that messages show.
_MOST_NAMED = 3
SEVERAL_WORDS = 3
"""Smallest mean number of words of a value in free text."""
# Number of values that are checked for rounding before all others.
_FIRST_VALUES = 32
# A batch whose values have at least this mean number of words keeps a sample; `SEVERAL_WORDS` applies to all rows.
_SAMPLED_WORDS = 2


@dataclass(frozen=True)
class ValueStatistics:
    """Count, sum and range of the numbers (or days) in a column, or of those written as texts of one form.

    Parameters
    ----------
    count : int
    total, minimum, maximum : float
    is_whole, fits_float32 : bool
        Whether all numbers are integers of at most 2**53, and whether float32 represents each of them exactly.
    first : (int, str)
        Row and text of the first value, if the values were read from texts.
    """

    count: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    is_whole: bool = True
    fits_float32: bool = True
    first: tuple[int, str] = (0, "")

    @classmethod
    def of(
        cls, values: np.ndarray, counts: np.ndarray | None = None, first: tuple[int, str] = (0, "")
    ) -> ValueStatistics:
        """The statistics of finite `values` (n,), which occur once each, or `counts` (n,) times."""
        if not len(values):
            return cls()
        minimum, maximum = float(values.min()), float(values.max())
        largest = max(-minimum, maximum)
        # beyond 2**53 every float64 is a whole number, even a rounded measurement: such numbers do not count as whole
        is_whole = largest <= EXACT and _changes_none(np.rint, values)
        with np.errstate(over="ignore"):
            fits = (is_whole and largest <= EXACT_FLOAT32) or _changes_none(
                lambda part: part.astype(np.float32), values
            )
        count, total = (len(values), values.sum()) if counts is None else (counts.sum(), (values * counts).sum())
        return cls(int(count), float(total), minimum, maximum, is_whole, fits, first)

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)

    def merge(self, other: ValueStatistics) -> ValueStatistics:
        return ValueStatistics(
            self.count + other.count,
            self.total + other.total,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.is_whole and other.is_whole,
            self.fits_float32 and other.fits_float32,
            min(self.first, other.first),
        )

    def times_a_thousand(self) -> ValueStatistics:
        """The statistics if the only mark of each number, which was read as a decimal mark, is a thousands mark."""
        scaled = replace(self, total=1e3 * self.total, minimum=1e3 * self.minimum, maximum=1e3 * self.maximum)
        return replace(scaled, is_whole=True, fits_float32=True)


@dataclass(frozen=True)
class Reading:
    """The kind and the form in which most values of a column of texts can be read.

    Parameters
    ----------
    kind : {"number", "date", "time", "duration"}
    form : str
        For numbers, 1234.56 as `NumberForm` writes it, empty without any mark; for dates, one of
        `dkl.data.ingest.dates.FORMS`, empty for ISO 8601.
    statistics : ValueStatistics
        Of the values in this form.
    zone : str or None
        For dates, "UTC" if the texts have a time zone, else empty.
    unread : int
        Number of values in no such form, which count as missing; texts that mean "missing" are not counted.
    first_unread : tuple of (int, str)
        Rows and texts of the first unread values.
    first_ambiguous : tuple of (int, str)
        Row and text of the first number whose mark may be a decimal or a thousands mark, if another decimal mark would
        read as many values; else empty.
    zoneless : int
        Number of dates without a time zone if others have one.
    """

    kind: Literal["number", "date", "time", "duration"]
    form: str
    statistics: ValueStatistics
    zone: str | None = None
    unread: int = 0
    first_unread: tuple[tuple[int, str], ...] = ()
    first_ambiguous: tuple[tuple[int, str], ...] = ()
    zoneless: int = 0

    @property
    def is_ambiguous(self) -> bool:
        """Whether another decimal mark would read as many numbers."""
        return bool(self.first_ambiguous)


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of the values of a column of texts.

    Parameters
    ----------
    count : int
        Number of values that are not missing.
    digits_only : int
        Number of values that consist of digits alone, with or without a minus.
    missing_marks : int
        Number of values that mean "missing" where numbers or dates are expected.
    numbers : mapping of Spelling to ValueStatistics
        Statistics of the numbers in each spelling.
    dates : mapping of str to ValueStatistics
        Statistics of the dates and times in each form; a value may be a date in two forms.
    first_missing_mark : tuple of (int, str)
        Row and text of the first value that means "missing"; empty without any.
    other_values : int
        Number of values that are neither numbers nor dates nor mean "missing".
    first_other_values : tuple of (int, str)
        Rows and texts of the first of these.
    inexact : str
        A whole number that float64 does not represent exactly; empty without any.
    words : int
        Number of words in all `other_values`.
    sample : TextSample or None
        A sample of the values, if they have several words.
    """

    count: int
    digits_only: int = 0
    missing_marks: int = 0
    numbers: Mapping[Spelling, ValueStatistics] = field(default_factory=dict)
    dates: Mapping[str, ValueStatistics] = field(default_factory=dict)
    first_missing_mark: tuple[tuple[int, str], ...] = ()
    other_values: int = 0
    first_other_values: tuple[tuple[int, str], ...] = ()
    inexact: str = ""
    words: int = 0
    sample: TextSample | None = None

    @classmethod
    def of(cls, column: pa.ChunkedArray, counted: pa.StructArray, first_row: int) -> TextStatistics:
        """The statistics of a column whose distinct values were counted.

        Parameters
        ----------
        column : ChunkedArray of texts
        counted : StructArray
            The result of `pyarrow.compute.value_counts` without missing values: in the order of their first rows.
        first_row : int
            The number of the first row in the input.
        """
        texts, counts = counted.field("values"), counted.field("counts").to_numpy()
        if not len(texts):
            return cls(0)

        def first(places: np.ndarray) -> tuple[int, str]:
            """Row and text of the first of the distinct texts at these positions."""
            text = texts[int(places[0])]
            return first_row + pc.index(column, text).as_py(), text.as_py()

        is_mark = means_missing(texts)
        parts = NumberParts.of(texts)
        numbers: dict[Spelling, ValueStatistics] = {}
        read = np.full(len(texts), np.nan)
        for place, spelling in enumerate(parts.spellings):
            at = np.flatnonzero(parts.place == place)
            read[at] = parts.numbers(at, spelling.thousands)
            numbers[spelling] = ValueStatistics.of(read[at], counts[at], first(at))
        inexact = parts.inexact(read)
        dates = {}
        is_date = np.zeros(len(texts), bool)
        for form, times in written_times(texts).items():
            at = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
            is_date[at] = True
            dates[form] = ValueStatistics.of(days(times.take(pa.array(at))), counts[at], first(at))
        others = np.flatnonzero((parts.place < 0) & ~is_date & ~is_mark)
        spaces = pc.count_substring(pc.utf8_trim_whitespace(texts.take(pa.array(others))), " ").to_numpy()
        words = int(((spaces + 1) * counts[others]).sum())
        is_wordy = words >= _SAMPLED_WORDS * counts.sum()
        digits = pc.match_substring_regex(texts, r"^-?\d+$").to_numpy(zero_copy_only=False)
        return cls(
            count=int(counts.sum()),
            digits_only=int(counts[digits].sum()),
            missing_marks=int(counts[is_mark].sum()),
            numbers=numbers,
            dates=dates,
            first_missing_mark=(first(np.flatnonzero(is_mark)),) if is_mark.any() else (),
            other_values=int(counts[others].sum()),
            first_other_values=tuple(first(others[place:]) for place in range(min(len(others), _MOST_NAMED))),
            inexact=texts[int(inexact[0])].as_py() if len(inexact) else "",
            words=words,
            sample=TextSample.of(column, first_row) if is_wordy else None,
        )

    def merge(self, other: TextStatistics) -> TextStatistics:
        """The statistics of the rows of both."""
        samples = [part.sample for part in (self, other) if part.sample is not None]
        return TextStatistics(
            self.count + other.count,
            self.digits_only + other.digits_only,
            self.missing_marks + other.missing_marks,
            _merged(self.numbers, other.numbers),
            _merged(self.dates, other.dates),
            tuple(sorted(self.first_missing_mark + other.first_missing_mark)[:1]),
            self.other_values + other.other_values,
            tuple(sorted(self.first_other_values + other.first_other_values)[:_MOST_NAMED]),
            self.inexact or other.inexact,
            self.words + other.words,
            samples[0].merge(samples[1]) if len(samples) == 2 else samples[0] if samples else None,
        )

    @property
    def leading_zeros(self) -> ValueStatistics | None:
        """The whole numbers with a superfluous zero in front, 0123; None without any."""
        found = [statistics for spelling, statistics in self.numbers.items() if spelling.shape == LEADING_ZERO]
        return reduce(ValueStatistics.merge, found) if found else None

    @property
    def first_dates(self) -> list[tuple[int, str]]:
        """Row and text of the first date or time of each form, if nearly all values are dates or times; else empty.

        Dates whose day and month cannot be distinguished count. A text that is a date in two forms is listed once.
        """
        there = self.count - self.missing_marks
        numbers = sum(statistics.count for statistics in self.numbers.values())
        if not self.dates or there - self.other_values - numbers < SHARE_READ * there:
            return []
        return sorted({statistics.first for statistics in self.dates.values()})

    @property
    def holds_words(self) -> bool:
        """Whether a value has `SEVERAL_WORDS` words or more on average."""
        return self.words >= SEVERAL_WORDS * self.count

    def reading(
        self, decimal: Mark | None = None, default: DefaultMark = ".", share: float = SHARE_READ
    ) -> Reading | None:
        """A way to read at least this share of the values, not counting those that mean "missing"; None for none.

        None if all values are plain whole numbers: a user who stores them as texts means names.

        Parameters
        ----------
        decimal, default
            As of `dkl.data.columns.numbers.most_common_form`.
        share : float
        """
        there = self.count - self.missing_marks
        for found in (self._dates(there), self._numbers(decimal, default)):
            if found is not None and there and there - found.unread >= share * there:
                return found
        return None

    def _dates(self, there: int) -> Reading | None:
        """The form that reads most dates; None without dates, or if day and month cannot be distinguished."""
        counts = {form: statistics.count for form, statistics in self.dates.items()}
        if not counts:
            return None
        best = max(counts.values())
        zoneless = counts.get(NAIVE, 0) if ZONED in counts else 0
        if zoneless and counts[ZONED] + zoneless > max(best, SHARE_READ * there):
            # some dates have a time zone and some have none; a warning says that the latter are read as UTC
            statistics = self.dates[ZONED].merge(self.dates[NAIVE])
            return Reading(
                "date", "", statistics, "UTC", there - statistics.count, self._others((NAIVE, ZONED)), (), zoneless
            )
        if self.unclear_day is not None:
            return None
        form = next(form for form, count in counts.items() if count == best)
        unread = there - best, self._others((form,))
        if form == CLOCK:
            return Reading("time", "", self.dates[form], None, *unread)
        if form == SPAN:
            return Reading("duration", "", self.dates[form], None, *unread)
        return Reading("date", form.strip(ZONED), self.dates[form], "UTC" if form == ZONED else "", *unread)

    @property
    def unclear_day(self) -> ValueStatistics | None:
        """The dates if day and month cannot be distinguished in any of them; None otherwise, or if dates are few."""
        best = max((statistics.count for statistics in self.dates.values()), default=0)
        forms = [
            statistics
            for form, statistics in self.dates.items()
            if statistics.count == best and form.startswith(("d", "m"))
        ]
        is_clear = len(forms) < 2 or forms[0].first != forms[1].first
        return None if is_clear or best < SHARE_READ * (self.count - self.missing_marks) else forms[0]

    def _numbers(self, decimal: Mark | None, default: DefaultMark) -> Reading | None:
        """The column read as numbers, by the form that reads most of them; None if it is to be categories.

        It is without numbers, with one that has a leading zero or that float64 does not represent exactly, and if all
        values are plain digits.
        """
        if not self.numbers or self.leading_zeros or self.inexact or self.digits_only == self.count:
            return None
        form, is_ambiguous = most_common_form(
            {spelling: f.count for spelling, f in self.numbers.items()}, decimal, default
        )
        read = [spelling for spelling in self.numbers if form.reads(spelling)]
        if not read:
            # all numbers have a decimal mark other than `decimal`
            return None
        statistics = reduce(
            ValueStatistics.merge,
            (
                self.numbers[spelling].times_a_thousand()
                if has_ambiguous_mark(spelling) and form.thousands in spelling.shape and form.thousands
                else self.numbers[spelling]
                for spelling in read
            ),
        )
        unread = self.count - self.missing_marks - statistics.count
        written = "" if form == NumberForm() else str(form)
        either = [self.numbers[spelling].first for spelling in read if is_ambiguous and has_ambiguous_mark(spelling)]
        return Reading("number", written, statistics, None, unread, self._others(read), tuple(sorted(either)[:1]))

    def _others(self, read: Collection[object]) -> tuple[tuple[int, str], ...]:
        """Rows and texts of the first values that the forms or spellings in `read` do not read."""
        others = [
            statistics.first for key, statistics in (*self.numbers.items(), *self.dates.items()) if key not in read
        ]
        read_too = {statistics.first for key, statistics in self.dates.items() if key in read}
        return tuple(sorted({*self.first_other_values, *others} - read_too)[:_MOST_NAMED])


def _changes_none(rounded: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> bool:
    """Whether rounding changes no value; checks the first values alone before all."""
    return all(bool((part == rounded(part)).all()) for part in (values[:_FIRST_VALUES], values))


def numbers_in_any_form(texts: pa.Array) -> np.ndarray:
    """The numbers (or days) that texts write in any form, (n,) float64; NaN for texts that are neither."""
    coded = pc.dictionary_encode(texts)
    if len(coded.dictionary) < len(texts):
        # each distinct text is parsed once
        known = np.append(numbers_in_any_form(coded.dictionary), np.nan)
        return known[pc.fill_null(coded.indices, len(coded.dictionary)).to_numpy(zero_copy_only=False)]
    parts, values = NumberParts.of(texts), np.full(len(texts), np.nan)
    for times in reversed(written_times(texts).values()):
        is_there = times.is_valid().to_numpy(zero_copy_only=False)
        values[is_there] = days(times)[is_there]
    for place, spelling in enumerate(parts.spellings):
        at = np.flatnonzero(parts.place == place)
        values[at] = parts.numbers(at, spelling.thousands)
    return values


def _merged(first: Mapping[Key, ValueStatistics], second: Mapping[Key, ValueStatistics]) -> dict[Key, ValueStatistics]:
    """The merged statistics of each spelling or form."""
    both = dict(first)
    for key, statistics in second.items():
        both[key] = both[key].merge(statistics) if key in both else statistics
    return both
