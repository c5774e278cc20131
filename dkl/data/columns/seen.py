"""TextStatistics: what the values of a column of texts look like, gathered batch by batch and merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.free_text import TextSample
from dkl.data.columns.numbers import (
    LEADING_ZERO,
    Mark,
    NumberForm,
    NumberParts,
    Spelling,
    UsualMark,
    is_either_mark,
    means_missing,
    suiting_form,
)
from dkl.data.ingest.dates import CLOCK, NAIVE, SPAN, ZONED, days, has_short_year, written_times
from dkl.data.ingest.precision import EXACT

Key = TypeVar("Key")

SHARE_READ = 0.95
"""A column of texts is one of numbers, or of dates, where at least this share of its values are written in one form."""
# Values that are neither are named up to so many.
_MOST_NAMED = 3
SEVERAL_WORDS = 3
"""Words that free text has on average, at least."""
# A sample is kept of values with so many words on average.
_SAMPLED_WORDS = 2


@dataclass(frozen=True)
class Figures:
    """Sums of the numbers, or of the days, that texts of one form write.

    Parameters
    ----------
    count : int
    total, minimum, maximum : float
    is_whole, fits_float32 : bool
        All numbers are whole (and none is beyond 2**53); float32 holds each of them exactly.
    first : (int, str)
        The row of the first of them, and what stands there.
    """

    count: int
    total: float
    minimum: float
    maximum: float
    is_whole: bool
    fits_float32: bool
    first: tuple[int, str]

    @classmethod
    def of(cls, values: np.ndarray, counts: np.ndarray, first: tuple[int, str]) -> Figures:
        """Those of different values, and how often each occurs."""
        is_whole = bool((values == np.rint(values)).all() and np.abs(values).max() <= EXACT)
        with np.errstate(over="ignore"):
            fits = bool((values == values.astype(np.float32)).all())
        return cls(
            int(counts.sum()),
            float((values * counts).sum()),
            float(values.min()),
            float(values.max()),
            is_whole,
            fits,
            first,
        )

    def merge(self, other: Figures) -> Figures:
        return Figures(
            self.count + other.count,
            self.total + other.total,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.is_whole and other.is_whole,
            self.fits_float32 and other.fits_float32,
            min(self.first, other.first),
        )

    def times_a_thousand(self) -> Figures:
        """Those of the numbers whose only mark was a thousands mark, and was read as a decimal one."""
        scaled = replace(self, total=1e3 * self.total, minimum=1e3 * self.minimum, maximum=1e3 * self.maximum)
        return replace(scaled, is_whole=True, fits_float32=True)


@dataclass(frozen=True)
class Reading:
    """What a column of texts is one of, for at least `SHARE_READ` of its values.

    Parameters
    ----------
    kind : {"number", "date", "time", "duration"}
    form : str
        How they are written: of numbers as `NumberForm` writes 1234.56, empty without any mark; of dates as of
        `dkl.data.ingest.dates.FORMS`, empty for ISO 8601.
    figures : Figures
        Of the values that are read.
    zone : str or None
        Of dates: "UTC" for points in time, empty for those of a clock.
    unread : int
        Values that are not, and count as missing; what means "missing" is none of them.
    named : tuple of (int, str)
        The rows of the first of these, and what stands there.
    either : tuple of (int, str)
        Row and text of the first number whose mark may be a decimal or a thousands mark, where another decimal mark
        would read as many values.
    zoneless : int
        Points in time without a zone among those that have one.
    """

    kind: Literal["number", "date", "time", "duration"]
    form: str
    figures: Figures
    zone: str | None = None
    unread: int = 0
    named: tuple[tuple[int, str], ...] = ()
    either: tuple[tuple[int, str], ...] = ()
    zoneless: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the numbers could be read by another decimal mark as well."""
        return bool(self.either)


@dataclass(frozen=True)
class TextStatistics:
    """What was seen of the values of a column of texts.

    Parameters
    ----------
    count : int
        Values that are there.
    whole : int
        Those that are digits alone, with or without a minus.
    marks : int
        Those that mean "missing" where numbers or dates are expected.
    numbers : mapping of Spelling to Figures
    dates : mapping of str to Figures
        By form: a value may be a date in two forms.
    marked : tuple of (int, str)
        Row and text of the first value that is such a mark.
    strange : int
        Values that are neither.
    strangers : tuple of (int, str)
        Row and text of the first values that are neither.
    short_years : int
        Values, among `strange`, that are dates whose year has two digits.
    short_year : tuple of (int, str)
        Row and text of the first date whose year has two digits.
    inexact : str
        A whole number that float64 does not hold; empty where there is none.
    words : int
        Of the values that are neither numbers nor dates.
    sample : TextSample or None
        Of a column whose values hold several words.
    """

    count: int
    whole: int = 0
    marks: int = 0
    numbers: Mapping[Spelling, Figures] = field(default_factory=dict)
    dates: Mapping[str, Figures] = field(default_factory=dict)
    marked: tuple[tuple[int, str], ...] = ()
    strange: int = 0
    strangers: tuple[tuple[int, str], ...] = ()
    short_years: int = 0
    short_year: tuple[tuple[int, str], ...] = ()
    inexact: str = ""
    words: int = 0
    sample: TextSample | None = None

    @classmethod
    def of(cls, column: pa.ChunkedArray, counted: pa.StructArray, first_row: int) -> TextStatistics:
        """Those of a column, whose different values were counted.

        Parameters
        ----------
        column : ChunkedArray of texts
        counted : StructArray
            As `pyarrow.compute.value_counts` of the values that are there has them, in the order of their first rows.
        first_row : int
            The number of the first row in the input.
        """
        texts, counts = counted.field("values"), counted.field("counts").to_numpy()
        if not len(texts):
            return cls(0)

        def first(places: np.ndarray) -> tuple[int, str]:
            """The row of the first of some texts, and the text."""
            text = texts[int(places[0])]
            return first_row + pc.index(column, text).as_py(), text.as_py()

        is_mark = means_missing(texts)
        parts = NumberParts.of(texts)
        numbers: dict[Spelling, Figures] = {}
        read = np.full(len(texts), np.nan)
        for place, spelling in enumerate(parts.spellings):
            at = np.flatnonzero(parts.place == place)
            read[at] = parts.numbers(at, spelling.thousands)
            numbers[spelling] = Figures.of(read[at], counts[at], first(at))
        inexact = parts.inexact(read)
        dates = {}
        is_date = np.zeros(len(texts), bool)
        for form, times in written_times(texts).items():
            at = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
            is_date[at] = True
            dates[form] = Figures.of(days(times.take(pa.array(at))), counts[at], first(at))
        strange = np.flatnonzero((parts.place < 0) & ~is_date & ~is_mark)
        short = strange[has_short_year(texts.take(pa.array(strange)))]
        spaces = pc.count_substring(pc.utf8_trim_whitespace(texts.take(pa.array(strange))), " ").to_numpy()
        words = int(((spaces + 1) * counts[strange]).sum())
        is_wordy = words >= _SAMPLED_WORDS * counts.sum()
        digits = pc.match_substring_regex(texts, r"^-?\d+$").to_numpy(zero_copy_only=False)
        return cls(
            count=int(counts.sum()),
            whole=int(counts[digits].sum()),
            marks=int(counts[is_mark].sum()),
            numbers=numbers,
            dates=dates,
            marked=(first(np.flatnonzero(is_mark)),) if is_mark.any() else (),
            strange=int(counts[strange].sum()),
            strangers=tuple(first(strange[place:]) for place in range(min(len(strange), _MOST_NAMED))),
            short_years=int(counts[short].sum()),
            short_year=(first(short),) if len(short) else (),
            inexact=texts[int(inexact[0])].as_py() if len(inexact) else "",
            words=words,
            sample=TextSample.of(column, first_row) if is_wordy else None,
        )

    def merge(self, other: TextStatistics) -> TextStatistics:
        """The statistics of both stretches of rows."""
        samples = [part.sample for part in (self, other) if part.sample is not None]
        return TextStatistics(
            self.count + other.count,
            self.whole + other.whole,
            self.marks + other.marks,
            _merged(self.numbers, other.numbers),
            _merged(self.dates, other.dates),
            tuple(sorted(self.marked + other.marked)[:1]),
            self.strange + other.strange,
            tuple(sorted(self.strangers + other.strangers)[:_MOST_NAMED]),
            self.short_years + other.short_years,
            tuple(sorted(self.short_year + other.short_year)[:1]),
            self.inexact or other.inexact,
            self.words + other.words,
            samples[0].merge(samples[1]) if len(samples) == 2 else samples[0] if samples else None,
        )

    @property
    def leading_zeros(self) -> Figures | None:
        """The whole numbers with a superfluous zero in front, 0123; None without any."""
        found = [figures for spelling, figures in self.numbers.items() if spelling.shape == LEADING_ZERO]
        return reduce(Figures.merge, found) if found else None

    @property
    def ways(self) -> list[Figures]:
        """Counts and first rows of the numbers, one entry for each form, if the column mixes several forms.

        Empty unless 95 % of the values are numbers and no single form reads all of them. Letters after a number make a
        form of its own (1 kg and 500 g; 5 pieces and 5) if they are a known measure or currency, or if the column has
        only one such word, of two letters or more. Other letters make names, which have no forms: 1st and 2nd, 10a.
        """
        count = sum(figures.count for figures in self.numbers.values())
        letters = {spelling.letters for spelling in self.numbers if spelling.letters}
        others = {spelling.letters for spelling in self.numbers if spelling.letters and not spelling.is_measure}
        are_names = len(others) > 0 and (len(letters) > 1 or len(max(others)) == 1)
        if are_names or not count or count < SHARE_READ * (self.count - self.marks):
            return []
        left, found = dict(self.numbers), []
        while left:
            form, _ = suiting_form({spelling: figures.count for spelling, figures in left.items()})
            # what no form reads is a way of its own
            read = [spelling for spelling in left if form.reads(spelling)] or list(left)
            found.append(reduce(Figures.merge, map(left.pop, read)))
        return sorted(found, key=lambda figures: figures.first) if len(found) > 1 else []

    @property
    def first_dates(self) -> list[tuple[int, str]]:
        """Row and text of the first date or time of each form, where nearly all values are such; else none.

        A year of two digits, and a day that cannot be told from the month, make a date as well. A text that is a date
        in two forms is there once.
        """
        there = self.count - self.marks
        numbers = sum(figures.count for figures in self.numbers.values())
        dated = there - self.strange - numbers + self.short_years
        if not (self.dates or self.short_year) or dated < SHARE_READ * there:
            return []
        return sorted({*self.short_year, *(figures.first for figures in self.dates.values())})

    @property
    def holds_words(self) -> bool:
        """Whether values hold several words."""
        return self.words >= SEVERAL_WORDS * self.count

    def reading(self, decimal: Mark | None = None, usual: UsualMark = ".", share: float = SHARE_READ) -> Reading | None:
        """What at least this share of the values is written as, those that mean "missing" left out; else None.

        Whole numbers alone are none: whoever makes texts of them has names.

        Parameters
        ----------
        decimal, usual
            As of `dkl.data.columns.numbers.suiting_form`.
        share : float
        """
        there = self.count - self.marks
        for found in (self._dates(there), self._numbers(decimal, usual)):
            if found is not None and there and there - found.unread >= share * there:
                return found
        return None

    def _dates(self, there: int) -> Reading | None:
        """The form of most of the dates; None where there are none, or the day cannot be told from the month."""
        counts = {form: figures.count for form, figures in self.dates.items()}
        if not counts:
            return None
        best = max(counts.values())
        zoneless = counts.get(NAIVE, 0) if ZONED in counts else 0
        if zoneless and counts[ZONED] + zoneless > max(best, SHARE_READ * there):
            # points in time and times of a clock: of the latter it is said what they are taken for
            figures = self.dates[ZONED].merge(self.dates[NAIVE])
            return Reading(
                "date", "", figures, "UTC", there - figures.count, self._others((NAIVE, ZONED)), (), zoneless
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
    def unclear_day(self) -> Figures | None:
        """The dates of a column in which the day cannot be told from the month; None where it can, or there are few."""
        best = max((figures.count for figures in self.dates.values()), default=0)
        forms = [
            figures for form, figures in self.dates.items() if figures.count == best and form.startswith(("d", "m"))
        ]
        is_clear = len(forms) < 2 or forms[0].first != forms[1].first
        return None if is_clear or best < SHARE_READ * (self.count - self.marks) else forms[0]

    def _numbers(self, decimal: Mark | None, usual: UsualMark) -> Reading | None:
        """The form of most of the numbers; None where some are none, whatever they look like."""
        if not self.numbers or self.leading_zeros or self.inexact or self.whole == self.count:
            return None
        form, is_open = suiting_form({spelling: f.count for spelling, f in self.numbers.items()}, decimal, usual)
        read = [spelling for spelling in self.numbers if form.reads(spelling)]
        if not read:
            # all have another decimal mark than the one that was given
            return None
        figures = reduce(
            Figures.merge,
            (
                self.numbers[spelling].times_a_thousand()
                if is_either_mark(spelling) and form.thousands in spelling.shape and form.thousands
                else self.numbers[spelling]
                for spelling in read
            ),
        )
        unread = self.count - self.marks - figures.count
        written = "" if form == NumberForm() else str(form)
        either = [self.numbers[spelling].first for spelling in read if is_open and is_either_mark(spelling)]
        return Reading("number", written, figures, None, unread, self._others(read), tuple(sorted(either)[:1]))

    def _others(self, read: Collection[object]) -> tuple[tuple[int, str], ...]:
        """The first of the values that are not read by a form of dates, or as numbers of some spellings."""
        others = [figures.first for key, figures in (*self.numbers.items(), *self.dates.items()) if key not in read]
        read_too = {figures.first for key, figures in self.dates.items() if key in read}
        return tuple(sorted({*self.strangers, *others} - read_too)[:_MOST_NAMED])


def loose_numbers(texts: pa.Array) -> np.ndarray:
    """The numbers, or the days, that texts write in whatever form, (n,); NaN where one writes none."""
    coded = pc.dictionary_encode(texts)
    if len(coded.dictionary) < len(texts):
        # each different text is taken apart once
        known = np.append(loose_numbers(coded.dictionary), np.nan)
        return known[pc.fill_null(coded.indices, len(coded.dictionary)).to_numpy(zero_copy_only=False)]
    parts, values = NumberParts.of(texts), np.full(len(texts), np.nan)
    for times in reversed(written_times(texts).values()):
        is_there = times.is_valid().to_numpy(zero_copy_only=False)
        values[is_there] = days(times)[is_there]
    for place, spelling in enumerate(parts.spellings):
        at = np.flatnonzero(parts.place == place)
        values[at] = parts.numbers(at, spelling.thousands)
    return values


def _merged(first: Mapping[Key, Figures], second: Mapping[Key, Figures]) -> dict[Key, Figures]:
    """The figures of both, by the way in which they are written."""
    both = dict(first)
    for key, figures in second.items():
        both[key] = both[key].merge(figures) if key in both else figures
    return both
