"""What is made of the raw columns of a table: the one place where rules are decided, and said."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import spoken_names
from dkl.data.columns.free_text import TextDirections
from dkl.data.columns.numbers import LEADING_ZERO, Mark, NumberForm, NumberParts, UsualMark, two_spellings
from dkl.data.columns.seen import SHARE_READ, Reading, TextStatistics
from dkl.data.ingest.column_rules import (
    DIRECTION,
    FEW_CATEGORIES,
    MOST_ONE_HOT,
    ColumnRule,
    Missing,
    decide_rule,
)
from dkl.data.ingest.dates import spoken_form
from dkl.data.ingest.precision import EXACT
from dkl.data.ingest.statistics import ColumnStatistics, TableStatistics
from dkl.errors import Problems, hint, users_level

# From this share of values on that are written as numbers, or dates, a column of texts is told that most of them are.
_MOST_PART = 0.5
# So many ways of writing numbers are shown, the others counted.
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Marks:
    """How the texts of a table write numbers, as far as the user or the file has said it.

    Parameters
    ----------
    decimal : {".", ","} or None
        The decimal mark, where the user has said it.
    usual : {".", ";", ","}
        What decides where one point or comma may be either mark; see `dkl.data.columns.numbers.UsualMark`.
    remedy : str
        How the caller says another decimal mark.
    nulls : str
        How the caller says that a text means "missing".
    """

    decimal: Mark | None = None
    usual: UsualMark = "."
    remedy: str = "pandas.read_csv(..., decimal={})"
    nulls: str = "pandas.read_csv(..., na_values=[...])"


@dataclass
class Decided:
    """The rules of the columns of a table, and what is to be said of them.

    Parameters
    ----------
    rules : list of ColumnRule
    aside : list of str
        Columns of texts that are names of rows, from which nothing can be learned.
    said : list of str
        Sentences on columns of texts, for warnings.
    read : list of str
        Columns of texts that are numbers, with their form.
    hints : list of str
        What may be otherwise in other rows of the same table.
    directions : list of TextDirections
        Of the columns of free text, in their order.
    """

    rules: list[ColumnRule] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    directions: list[TextDirections] = field(default_factory=list)

    def take_text(self, column: ColumnStatistics, missing: Missing) -> None:
        """Take a column of free text: its directions, and the rule that follows."""
        if missing == "error" and column.missing:
            raise ValueError(
                f"column '{column.name}' has {column.missing} missing values in {column.rows} rows and "
                "missing='error'; fill them, or use missing='auto' (zeros, and a flag column)"
            )
        seen = column.texts
        if seen is None or seen.sample is None:
            raise ValueError(f"column '{column.name}' has no sample of its texts")
        directions = TextDirections.fitted(column.name, seen.sample)
        names = tuple(f"{DIRECTION}{number}" for number in range(1, directions.n_raw + 1))
        fill = 0.0 if column.missing or missing not in ("auto", "error") else None
        unforeseen = 0.0 if missing == "auto" and fill is None else None
        self.directions.append(directions)
        self.rules.append(ColumnRule(column.name, "text", names, fill, missing=column.missing, unforeseen=unforeseen))
        self.hints += _near_names(column)

    def say(self, without: str, with_names: str) -> None:
        """Warn of all of it; the caller leaves columns out, or takes names of rows for categories, by these words."""
        level = users_level()
        for sentence in self.said:
            warnings.warn(sentence, UserWarning, stacklevel=level)
        if self.aside:
            warnings.warn(
                f"{spoken_names(self.aside)} set aside: texts that differ in (almost) every row are names of rows, "
                f"from which nothing can be learned. Leave them out, {without.format(self.aside)}, to hear no more of "
                f"it; to use them all the same, {with_names.format(self.aside)}",
                UserWarning,
                stacklevel=level,
            )
        for sentence in self.hints:
            hint(sentence)
        if self.read:
            hint(
                f"texts are taken for numbers in {', '.join(self.read)}; where these are names, say so: "
                "categorical=[...]",
                f"texts as numbers: {self.read}",
            )


def decided_columns(
    statistics: TableStatistics, categorical: Collection[str], missing: Missing, marks: Marks, problems: Problems
) -> Decided:
    """The rules of all columns; what is wrong with any goes to `problems`."""
    decided = Decided()
    for place, column in enumerate(statistics.columns):
        chosen = column.name in categorical
        # the user's own choice keeps even a column of texts that differ in every row
        reading = None if chosen or column.texts is None else column.texts.reading(marks.decimal, marks.usual)
        if reading is None and not chosen and is_free_text(column):
            with problems.collected():
                decided.take_text(column, missing)
            continue
        if reading is None and not chosen and differs_in_every_row(column):
            decided.aside.append(column.name)
            decided.said += _why_names(column, marks)
            continue
        with problems.collected():
            known = column if reading is None else column.read_as(reading)
            rule = decide_rule(known, missing, statistics.why_double(place, known), chosen=chosen)
            if reading is not None:
                rule = replace(rule, form=reading.form, unread=reading.unread)
                decided.said += _said_of(column, reading, marks)
                if reading.form and reading.kind == "number":
                    decided.read.append(f"{column.name!r} (written as {reading.form})")
            elif not chosen:
                rule = replace(rule, why=_why_no_number(column.texts))
                decided.said += _why_names(column, marks)
            if rule.kind in ("category", "code"):
                # what came as categories was called names by its type; of numbers of several forms it was said
                are_meant = chosen or column.texts is None or bool(column.texts.ways)
                otherwise = f"or say that they do not: categorical=['{column.name}']"
                decided.said += alike_names(
                    f"column '{column.name}'", column.categories or {}, otherwise, are_meant=are_meant
                )
            decided.rules.append(rule)
    return decided


def is_free_text(column: ColumnStatistics) -> bool:
    """Whether the values of a column hold several words and rarely repeat: at least half of them occur once."""
    seen = column.texts
    if seen is None or seen.sample is None or not seen.holds_words:
        return False
    once = _share_once(column)
    if once is not None and (once < _ONCE or len(column.categories or ()) <= MOST_ONE_HOT):
        return False
    return seen.sample.holds_words


def _share_once(column: ColumnStatistics) -> float | None:
    """The share of the values that occur once; None where there are too many different ones to know."""
    if column.categories is None:
        return None
    return sum(count == 1 for count in column.categories.values()) / max(column.rows - column.missing, 1)


def _near_names(column: ColumnStatistics) -> list[str]:
    """A warning where a column is near the share of repeated values from which on its texts are names."""
    once = _share_once(column)
    if once is None or once > (1.0 + _ONCE) / 2:
        return []
    return [
        f"column '{column.name}' holds several words, and {100 * once:.0f} % of its values occur once: it is taken for "
        f"free text, and for names where fewer than {100 * _ONCE:.0f} % do, as more rows may show; "
        f"categorical=['{column.name}'] takes it for names in any case"
    ]


def differs_in_every_row(column: ColumnStatistics) -> bool:
    """Whether a column of texts has another value in (almost) every row, so that nothing can be learned from them."""
    if column.kind != "category":
        return False
    if column.categories is None:
        return True
    return len(column.categories) > max(FEW_CATEGORIES, _DIFFERENT * (column.rows - column.missing))


# Texts in that share of the rows differ (almost) everywhere; that share of free text occurs once.
_DIFFERENT, _ONCE = 0.9, 0.5


def _why_no_number(texts: TextStatistics | None) -> str:
    """Why the texts of a column are names though they look like numbers; empty where they do not."""
    if texts is None or not texts.numbers:
        return ""
    zeros = texts.leading_zeros
    if zeros is not None:
        return f"names, since {zeros.first[1]!r} has a zero in front"
    return f"names, since float64 does not hold {texts.inexact}" if texts.inexact else ""


def _spoken(reading: Reading) -> str:
    """What a column is read as, in words."""
    if reading.kind == "number":
        return f"numbers written as {reading.form}" if reading.form else "numbers"
    if reading.kind != "date":
        return "times of day" if reading.kind == "time" else "lengths of time"
    return f"dates written {spoken_form(reading.form)}" if reading.form else "dates in ISO 8601"


def _named(values: Sequence[tuple[int, str]]) -> str:
    """Values and their rows, as messages list them."""
    return ", ".join(f"{text!r} in row {row}" for row, text in values)


def _said_of(column: ColumnStatistics, reading: Reading, marks: Marks) -> list[str]:
    """Sentences on a column whose texts are read as numbers or dates, where there is anything to say."""
    name, said = f"column '{column.name}'", []
    there = column.rows - column.missing
    if reading.unread:
        said.append(
            f"{name} is taken for {_spoken(reading)}, and {reading.unread:,} of its {there:,} values are none, which "
            f"count as missing: {_named(reading.named)}{', ...' if reading.unread > len(reading.named) else ''}. "
            f"Correct them, or say that all of its values are names: categorical=['{column.name}']"
        )
    if reading.zoneless:
        said.append(
            f"{name} has a time zone in {reading.figures.count - reading.zoneless:,} of its values and none in "
            f"{reading.zoneless:,}, which are taken for times in UTC: write the zone of all of them"
        )
    if reading.is_open:
        said.append(open_mark(name, reading, marks))
    if reading.kind == "number" and (twice := _written_twice(column, reading)):
        said.append(written_twice(column.name, *twice))
    return said


def open_mark(name: str, reading: Reading, marks: Marks) -> str:
    """The sentence for numbers whose one mark may be a decimal or a thousands mark.

    Parameters
    ----------
    name : str
        How messages call the column.
    reading : Reading
        Of numbers that are open.
    marks : Marks
    """
    form = NumberForm.of(reading.form) if reading.form else NumberForm()
    ((_, example),) = reading.either
    mark = "," if "," in example else "."
    is_decimal = form.decimal == mark
    taken = "a decimal mark" if is_decimal else "a thousands mark"
    other = "." if (mark == ",") == is_decimal else ","
    return (
        f"{name} holds numbers such as {example!r}, whose {'comma' if mark == ',' else 'point'} may "
        f"be a decimal mark or stand between thousands, and is taken for {taken}: {marks.remedy.format(repr(other))} "
        "takes it for the other one"
    )


def written_twice(name: str, first: str, second: str) -> str:
    """The sentence for a column in which one number is written in two ways."""
    return (
        f"column '{name}' writes one number in two ways, {first!r} and {second!r}, which are taken for the same; if "
        f"its values are names (codes, versions, telephone numbers), say so: categorical=['{name}']"
    )


def _written_twice(column: ColumnStatistics, reading: Reading) -> tuple[str, str] | None:
    texts = pa.array(sorted(column.categories or ()), pa.string())
    form = NumberForm.of(reading.form) if reading.form else NumberForm()
    return two_spellings(texts, form.numbers(texts))


def several_ways(name: str, texts: TextStatistics, otherwise: str = "") -> str:
    """The sentence for a column whose numbers have several forms, such as 5% and 5, 1 kg and 500 g, 5,5 and 5.5.

    Empty where they have one, or are none.

    Parameters
    ----------
    name : str
        How messages call the column.
    texts : TextStatistics
    otherwise : str
        How the caller says that they are names; empty where they cannot be.
    """
    ways = texts.ways
    if not ways:
        return ""
    *first, last = [f"{of.first[1]!r} in row {of.first[0]} ({of.count:,} values)" for of in ways[:_MOST_SHOWN]]
    shown = f"{', '.join(first)} and {last}" if len(ways) <= _MOST_SHOWN else f"{', '.join([*first, last])}, ..."
    said = f"{name} writes its numbers in {len(ways)} ways, {shown}, which need not mean the same"
    if not otherwise:
        return f"{said}: write all of them in one way"
    return f"{said}; all are taken as names. Write all of them in one way to have numbers, {otherwise}"


def few_zeros(name: str, texts: TextStatistics, otherwise: str = "") -> list[str]:
    """A sentence on numbers that are names since few of them have a zero in front, which may be a slip.

    Parameters
    ----------
    name : str
        How messages call the column.
    texts : TextStatistics
    otherwise : str
        How the caller says that they are names, where that can be said.
    """
    zeros = texts.leading_zeros
    numbers = sum(figures.count for figures in texts.numbers.values())
    if zeros is None or zeros.count > (1.0 - SHARE_READ) * texts.count or 2 * numbers < texts.count:
        return []
    return [
        f"{name} is taken for names, since {zeros.count:,} of its {texts.count:,} values have a zero in front, the "
        f"first is {_named([zeros.first])}; write these as the others to have numbers{otherwise and f', {otherwise}'}"
    ]


def alike_names(name: str, counts: Mapping[str, int], otherwise: str = "", *, are_meant: bool = False) -> list[str]:
    """A sentence on names that may mean the same: they differ by blanks, by capitals, or by how they write a number.

    Parameters
    ----------
    name : str
        How messages call the column.
    counts : mapping of str to int
        How often each of its names occurs.
    otherwise : str
        How the caller says that they are different ones, where that can be said.
    are_meant : bool
        The user has said that the names are meant as they stand: those that differ by blanks, which nobody sees, are
        told of all the same.
    """
    texts = pa.array(list(counts), pa.string())
    keys = pc.utf8_trim_whitespace(texts)
    if not are_meant:
        numbers = _names_as_numbers(texts, np.fromiter(counts.values(), np.int64, len(counts)))
        keys = pc.coalesce(pa.array(numbers + 0.0, from_pandas=True).cast(pa.string()), pc.utf8_lower(keys))
    coded = pc.dictionary_encode(keys)
    if len(coded.dictionary) == len(texts):
        return []
    codes = coded.indices.to_numpy()
    alike: dict[int, list[str]] = {}
    for place in np.flatnonzero(np.bincount(codes)[codes] > 1).tolist():
        alike.setdefault(int(codes[place]), []).append(texts[place].as_py())
    # the name without blanks comes first
    found = [sorted(group, key=lambda text: (len(text), text)) for group in alike.values()]
    found.sort(key=lambda group: (group[0].strip(), group))
    by = [how for how in _ALIKE if any(_differ_by(group) == how for group in found)]
    shown = "; ".join(" and ".join(f"{text!r} ({counts[text]:,} rows)" for text in group) for group in found[:3])
    more = f"; and {len(found) - 3:,} more" if len(found) > 3 else ""
    remedy = " (of a frame: rows[column].str.strip() removes blanks)" if _ALIKE[0] in by else ""
    if otherwise and by != [_ALIKE[0]]:
        remedy += f", {otherwise}"
    return [
        f"{name} holds names that differ by {' or by '.join(by)} alone, and are taken for different ones: "
        f"{shown}{more}. Where they mean the same, write them in one way{remedy}"
    ]


_ALIKE = ("the blanks around them", "capital letters", "the spelling of a number")


def _differ_by(group: list[str]) -> str:
    """The way in which names that may mean the same differ, the plainest that tells all of them apart."""
    if len({text.strip() for text in group}) == 1:
        return _ALIKE[0]
    return _ALIKE[1] if len({text.strip().lower() for text in group}) == 1 else _ALIKE[2]


def _names_as_numbers(texts: pa.Array, counts: np.ndarray) -> np.ndarray:
    """The numbers that names write, (n,); NaN where one writes none, and everywhere unless nearly all of them do."""
    parts = NumberParts.of(texts)
    values = np.full(len(texts), np.nan)
    is_number = parts.place >= 0
    # 5% need not be 5
    if len({spelling.unit for spelling in parts.spellings}) != 1 or counts[is_number].sum() < SHARE_READ * counts.sum():
        return values
    for place, spelling in enumerate(parts.spellings):
        at = np.flatnonzero(parts.place == place)
        # a zero in front makes a name of its own: 0123 is not 123
        values[at] = np.nan if spelling.shape == LEADING_ZERO else parts.numbers(at, spelling.thousands)
    # of larger whole numbers several are one in float64
    return np.where(np.abs(values) < EXACT, values, np.nan)


def _why_names(column: ColumnStatistics, marks: Marks) -> list[str]:
    """Sentences on a column of texts that are taken for names though most of them look like numbers, or like dates."""
    texts, name = column.texts, f"column '{column.name}'"
    if texts is None or not texts.count:
        return []
    names = f"or say that they are names: categorical=['{column.name}']"
    if texts.unclear_day is not None:
        return [
            f"{name} looks like dates in which no day is beyond 12 ({texts.unclear_day.first[1]!r}), so that it cannot "
            "be told from the month; its values are taken as names. Write them as 2014-03-27 to have dates (of a "
            f"frame: pandas.to_datetime with a format), {names}"
        ]
    if len(texts.first_dates) > 1:
        return [
            f"{name} writes its dates in several forms ({_named(texts.first_dates)}); its values are taken as names. "
            f"Write all of them as 2014-03-27 to have dates (of a frame: pandas.to_datetime with a format), {names}"
        ]
    if texts.short_years >= _MOST_PART * (texts.count - texts.marks) and texts.short_years:
        return [
            f"{name} looks like dates whose year has two digits ({_named(texts.short_year)}), which does not tell the "
            "century, nor day, month and year apart; its values are taken as names. Write the year with four digits, "
            f"as in 2014-03-27, to have dates (of a frame: pandas.to_datetime with a format), {names}"
        ]
    if ways := several_ways(name, texts, names):
        return [ways]
    if marks.decimal is not None:
        other: Mark = "." if marks.decimal == "," else ","
        if (read := texts.reading(other, marks.usual)) is not None and read.kind == "number":
            return [
                f"{name} writes numbers such as {read.figures.first[1]!r}, whose decimal mark is not "
                f"{marks.decimal!r}; all are taken as names. {marks.remedy.format(repr(other))} takes them for "
                f"numbers, {names}"
            ]
    if column.categories is not None and len(column.categories) <= MOST_ONE_HOT:
        return []
    if texts.leading_zeros is not None:
        return few_zeros(name, texts, names)
    most = texts.reading(marks.decimal, marks.usual, share=_MOST_PART)
    if most is None:
        return []
    there = texts.count - texts.marks
    share = 100 * (there - most.unread) / there
    return [
        f"{name} holds texts, and {share:.0f} % of its values are {_spoken(most)}, fewer than the "
        f"{100 * SHARE_READ:.0f} % from which on the others count as missing: {_named(most.named)}; all are taken as "
        f"names. Correct these, say which texts mean missing, {marks.nulls}, {names}"
    ]
