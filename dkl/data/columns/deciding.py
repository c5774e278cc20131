"""Decides the encoding rule of each raw column of a table, and words the warnings about these decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import spoken_names
from dkl.data.columns.free_text import TextDirections
from dkl.data.columns.numbers import LEADING_ZERO, DefaultMark, Mark, NumberForm, NumberParts, two_spellings
from dkl.data.columns.text_statistics import SHARE_READ, Reading, TextStatistics
from dkl.data.ingest.column_rules import (
    DIRECTION,
    FEW_CATEGORIES,
    MOST_ONE_HOT,
    ColumnRule,
    Missing,
    decide_rule,
    zeros_for_missing,
)
from dkl.data.ingest.dates import form_in_words
from dkl.data.ingest.precision import EXACT
from dkl.data.ingest.statistics import ColumnStatistics, TableStatistics
from dkl.errors import Problems, hint, warn_user
from dkl.plain_text import first_few

# Share of a column's values that must be numbers (or dates) for the warning that they were nearly read as such.
_MAJORITY = 0.5
# Number of forms of numbers that the warning on mixed forms shows with an example; it only counts the others.
_SHOWN_FORMS = 4
# A column of texts is set aside as names of rows if its distinct values exceed this share of the rows.
_DISTINCT_SHARE = 0.9
# A column whose values hold several words is free text if at least this share of its values occurs once.
_SINGLE_SHARE = 0.5


@dataclass(frozen=True)
class Marks:
    """The decimal marks of the numbers in a table's texts, and how the caller changes what is assumed about them.

    Parameters
    ----------
    decimal : {".", ","} or None
        The decimal mark that the user chose; None if it follows from the values.
    default : {".", ";", ","}
        The decimal mark of values that allow both; see `dkl.data.columns.numbers.DefaultMark`.
    remedy : str
        The caller's option for another decimal mark, for messages; ``{}`` stands for the mark.
    nulls : str
        The caller's option for texts that mean "missing", for messages.
    """

    decimal: Mark | None = None
    default: DefaultMark = "."
    remedy: str = "pandas.read_csv(..., decimal={})"
    nulls: str = "pandas.read_csv(..., na_values=[...])"


@dataclass
class ColumnDecisions:
    """The rules of the columns of a table, and the warnings and hints about them.

    Parameters
    ----------
    rules : list of ColumnRule
    row_names : list of str
        Columns whose texts differ in (almost) every row; they have no rule.
    warnings : list of str
        Sentences on columns of texts.
    number_columns : list of str
        Columns of texts that are read as numbers, each with its form.
    hints : list of str
        Sentences on rules that other rows of the same table might change.
    directions : list of TextDirections
        The directions of the columns of free text, in the order of the columns.
    empty : list of str
        Columns without any value that are left out; they have no rule.
    """

    rules: list[ColumnRule] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    number_columns: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    directions: list[TextDirections] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def add_free_text(self, column: ColumnStatistics, missing: Missing) -> None:
        """Compute the directions of a column of free text from its sample, and add its rule."""
        of_missing = zeros_for_missing(column, missing)
        seen = column.texts
        if seen is None or seen.sample is None:
            raise ValueError(f"column '{column.name}' has no sample of its texts")
        directions = TextDirections.fitted(column.name, seen.sample)
        names = tuple(f"{DIRECTION}{number}" for number in range(1, directions.n_raw + 1))
        self.directions.append(directions)
        self.rules.append(ColumnRule(column.name, "text", names, **of_missing))
        self.hints += _free_text_hints(column)

    def warn(self, without: str, with_names: str) -> None:
        """Issue all warnings and hints.

        Parameters
        ----------
        without, with_names : str
            The caller's options to leave columns out, and to use names of rows as categories; ``{}`` stands for the
            list of columns.
        """
        warn_user(*self.warnings)
        if self.row_names:
            names = self.row_names
            warn_user(
                f"{spoken_names(names)} set aside: texts that differ in (almost) every row are names of rows, "
                f"from which nothing can be learned. Leave them out, {without.format(names)}, to hear no more of "
                f"it; to use them all the same, {with_names.format(names)}"
            )
        if self.empty:
            warn_user(
                f"{spoken_names(self.empty)} left out: no row has a value there. Leave them out, "
                f"{without.format(self.empty)}, to hear no more of it"
            )
        for sentence in self.hints:
            hint(sentence)
        if self.number_columns:
            hint(
                f"texts are taken for numbers in {', '.join(self.number_columns)}; where these are names, say so: "
                "categorical=[...]",
                f"texts as numbers: {self.number_columns}",
            )


def decide_columns(
    statistics: TableStatistics,
    categorical: Collection[str],
    missing: Missing,
    marks: Marks,
    problems: Problems,
    *,
    leave_out_empty: bool = False,
) -> ColumnDecisions:
    """The rules of all columns; errors of single columns are added to `problems`.

    Columns without any value are errors, or with `leave_out_empty` left out. If there are other errors, or no column
    remains, they are errors in any case, so that one message has all that is wrong with a table.
    """
    decided = ColumnDecisions()
    empty = {column.name: column for column in statistics.columns if leave_out_empty and column.missing == column.rows}
    for place, column in enumerate(statistics.columns):
        if column.name in empty:
            continue
        chosen = column.name in categorical
        # a column that the user named as categorical is kept even if its texts differ in every row
        reading = None if chosen or column.texts is None else column.texts.reading(marks.decimal, marks.default)
        if reading is None and not chosen and is_free_text(column):
            with problems.collected():
                decided.add_free_text(column, missing)
            continue
        if reading is None and not chosen and differs_in_every_row(column):
            decided.row_names.append(column.name)
            decided.warnings += _category_warnings(column, marks)
            continue
        with problems.collected():
            known = column if reading is None else column.read_as(reading)
            rule = decide_rule(known, missing, statistics.why_double(place, known), chosen=chosen)
            if reading is not None:
                rule = replace(rule, form=reading.form, unread=reading.unread)
                decided.warnings += _reading_warnings(column, reading, marks)
                if reading.form and reading.kind == "number":
                    decided.number_columns.append(f"{column.name!r} (written as {reading.form})")
            elif not chosen:
                rule = replace(rule, why=_why_no_number(column.texts))
                decided.warnings += _category_warnings(column, marks)
            if rule.kind in ("category", "code"):
                # no doubt about names if the user or the column's type calls them names, or if a warning on mixed
                # forms of numbers was added already
                are_meant = chosen or column.texts is None or bool(column.texts.mixed_forms)
                otherwise = f"or say that they do not: categorical=['{column.name}']"
                decided.warnings += similar_names_warnings(
                    f"column '{column.name}'", column.categories or {}, otherwise, are_meant=are_meant
                )
            decided.rules.append(rule)
    if problems or not decided.rules:
        for column in empty.values():
            with problems.collected():
                decide_rule(column, missing)
    decided.empty = list(empty)
    return decided


def is_free_text(column: ColumnStatistics) -> bool:
    """Whether the values of a column hold several words and rarely repeat: at least half of them occur once."""
    seen = column.texts
    if seen is None or seen.sample is None or not seen.holds_words:
        return False
    once = _share_occurring_once(column)
    if once is not None and (once < _SINGLE_SHARE or len(column.categories or ()) <= MOST_ONE_HOT):
        return False
    return seen.sample.holds_words


def _share_occurring_once(column: ColumnStatistics) -> float | None:
    """The share of the values that occur once; None if there are too many distinct values to count."""
    if column.categories is None:
        return None
    return sum(count == 1 for count in column.categories.values()) / max(column.rows - column.missing, 1)


def _free_text_hints(column: ColumnStatistics) -> list[str]:
    """A hint if the share of values that occur once is close to the limit between free text and categories."""
    once = _share_occurring_once(column)
    if once is None or once > (1.0 + _SINGLE_SHARE) / 2:
        return []
    return [
        f"column '{column.name}' holds several words, and {100 * once:.0f} % of its values occur once: it is taken for "
        f"free text, and for names where fewer than {100 * _SINGLE_SHARE:.0f} % do, as more rows may show; "
        f"categorical=['{column.name}'] takes it for names in any case"
    ]


def differs_in_every_row(column: ColumnStatistics) -> bool:
    """Whether a column of texts has a different value in (almost) every row, so that nothing can be learned from it."""
    if column.kind != "category":
        return False
    if column.categories is None:
        return True
    return len(column.categories) > max(FEW_CATEGORIES, _DISTINCT_SHARE * (column.rows - column.missing))


def _why_no_number(texts: TextStatistics | None) -> str:
    """The reason why the texts of a column are categories though they look like numbers; empty if they do not."""
    if texts is None or not texts.numbers:
        return ""
    zeros = texts.leading_zeros
    if zeros is not None:
        return f"names, since {zeros.first[1]!r} has a zero in front"
    return f"names, since float64 does not hold {texts.inexact}" if texts.inexact else ""


def _in_words(reading: Reading) -> str:
    """The kind and the form of the values of a column, for messages."""
    if reading.kind == "number":
        return f"numbers written as {reading.form}" if reading.form else "numbers"
    if reading.kind != "date":
        return "times of day" if reading.kind == "time" else "lengths of time"
    return f"dates written {form_in_words(reading.form)}" if reading.form else "dates in ISO 8601"


def _with_rows(values: Sequence[tuple[int, str]]) -> str:
    """A list of values with their rows, for messages."""
    return ", ".join(f"{text!r} in row {row}" for row, text in values)


def _reading_warnings(column: ColumnStatistics, reading: Reading, marks: Marks) -> list[str]:
    """Warnings about a column whose texts are read as numbers or dates: unread values, time zones, ambiguous marks."""
    name, found = f"column '{column.name}'", []
    there = column.rows - column.missing
    if reading.unread:
        more = ", ..." if reading.unread > len(reading.first_unread) else ""
        found.append(
            f"{name} is taken for {_in_words(reading)}, and {reading.unread:,} of its {there:,} values are none, which "
            f"count as missing: {_with_rows(reading.first_unread)}{more}. "
            f"Correct them, or say that all of its values are names: categorical=['{column.name}']"
        )
    if reading.zoneless:
        found.append(
            f"{name} has a time zone in {reading.statistics.count - reading.zoneless:,} of its values and none in "
            f"{reading.zoneless:,}, which are taken for times in UTC: write the zone of all of them"
        )
    if reading.is_ambiguous:
        found.append(ambiguous_mark_warning(name, reading, marks))
    if reading.kind == "number" and (twice := _two_spellings_in(column, reading)):
        found.append(two_spellings_warning(column.name, *twice))
    return found


def ambiguous_mark_warning(name: str, reading: Reading, marks: Marks) -> str:
    """The warning about numbers whose single mark may be a decimal or a thousands mark.

    Parameters
    ----------
    name : str
        Name of the column in messages.
    reading : Reading
        With `is_ambiguous`.
    marks : Marks
    """
    form = NumberForm.of(reading.form)
    ((_, example),) = reading.first_ambiguous
    mark = "," if "," in example else "."
    is_decimal = form.decimal == mark
    taken = "a decimal mark" if is_decimal else "a thousands mark"
    other = "." if (mark == ",") == is_decimal else ","
    return (
        f"{name} holds numbers such as {example!r}, whose {'comma' if mark == ',' else 'point'} may "
        f"be a decimal mark or stand between thousands, and is taken for {taken}: {marks.remedy.format(repr(other))} "
        "takes it for the other one"
    )


def two_spellings_warning(name: str, first: str, second: str) -> str:
    """The warning about a column in which two different texts write the same number."""
    return (
        f"column '{name}' writes one number in two ways, {first!r} and {second!r}, which are taken for the same; if "
        f"its values are names (codes, versions, telephone numbers), say so: categorical=['{name}']"
    )


def _two_spellings_in(column: ColumnStatistics, reading: Reading) -> tuple[str, str] | None:
    """Two texts of the column that write the same number; None if there are none."""
    texts = pa.array(sorted(column.categories or ()), pa.string())
    form = NumberForm.of(reading.form)
    return two_spellings(texts, form.numbers(texts))


def mixed_forms_warning(name: str, texts: TextStatistics, otherwise: str = "") -> str:
    """The warning about a column whose numbers have several forms, such as 5% and 5, 1 kg and 500 g, 5,5 and 5.5.

    Empty if they have one form, or if the values are not numbers.

    Parameters
    ----------
    name : str
        Name of the column in messages.
    texts : TextStatistics
    otherwise : str
        The caller's option to declare the values names, for the message; empty if there is none.
    """
    ways = texts.mixed_forms
    if not ways:
        return ""
    *first, last = [f"{of.first[1]!r} in row {of.first[0]} ({of.count:,} values)" for of in ways[:_SHOWN_FORMS]]
    shown = f"{', '.join(first)} and {last}" if len(ways) <= _SHOWN_FORMS else f"{', '.join([*first, last])}, ..."
    sentence = f"{name} writes its numbers in {len(ways)} ways, {shown}, which need not mean the same"
    if not otherwise:
        return f"{sentence}: write all of them in one way"
    return f"{sentence}; all are taken as names. Write all of them in one way to have numbers, {otherwise}"


def leading_zeros_warnings(name: str, texts: TextStatistics, otherwise: str = "") -> list[str]:
    """A warning if a few values with a leading zero, perhaps typing errors, make a column of numbers one of names.

    Parameters
    ----------
    name : str
        Name of the column in messages.
    texts : TextStatistics
    otherwise : str
        The caller's option to declare the values names, for the message; empty if there is none.
    """
    zeros = texts.leading_zeros
    numbers = sum(statistics.count for statistics in texts.numbers.values())
    if zeros is None or zeros.count > (1.0 - SHARE_READ) * texts.count or 2 * numbers < texts.count:
        return []
    return [
        f"{name} is taken for names, since {zeros.count:,} of its {texts.count:,} values have a zero in front, the "
        f"first is {_with_rows([zeros.first])}; write these as the others to have numbers"
        f"{otherwise and f', {otherwise}'}"
    ]


def similar_names_warnings(
    name: str, counts: Mapping[str, int], otherwise: str = "", *, are_meant: bool = False
) -> list[str]:
    """A warning about names that may mean the same: they differ by blanks, by case, or by the spelling of a number.

    Parameters
    ----------
    name : str
        Name of the column in messages.
    counts : mapping of str to int
        How often each of its names occurs.
    otherwise : str
        The caller's option to declare the names different, for the message; empty if there is none.
    are_meant : bool
        Whether the user has declared the values names. Then only blanks around them, which are invisible, are reported.
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
    by = [how for how in _WAYS_TO_DIFFER if any(_differ_by(group) == how for group in found)]
    remedy = " (of a frame: rows[column].str.strip() removes blanks)" if _WAYS_TO_DIFFER[0] in by else ""
    if otherwise and by != [_WAYS_TO_DIFFER[0]]:
        remedy += f", {otherwise}"

    def text_of(group: list[str]) -> str:
        return " and ".join(f"{text!r} ({counts[text]:,} rows)" for text in group)

    return [
        f"{name} holds names that differ by {' or by '.join(by)} alone, and are taken for different ones: "
        f"{'; '.join(first_few(found, 3, text_of=text_of))}. Where they mean the same, write them in one way{remedy}"
    ]


_WAYS_TO_DIFFER = ("the blanks around them", "capital letters", "the spelling of a number")


def _differ_by(group: list[str]) -> str:
    """How the names of a group differ: by blanks alone, else by case and blanks alone, else by spelling a number."""
    if len({text.strip() for text in group}) == 1:
        return _WAYS_TO_DIFFER[0]
    return _WAYS_TO_DIFFER[1] if len({text.strip().lower() for text in group}) == 1 else _WAYS_TO_DIFFER[2]


def _names_as_numbers(texts: pa.Array, counts: np.ndarray) -> np.ndarray:
    """The number that each text spells, such as 12.5 for "12.5", (n,) float64; NaN for texts that spell none.

    All are NaN unless nearly all values (`SHARE_READ` of them) spell numbers in the same unit.
    """
    parts = NumberParts.of(texts)
    values = np.full(len(texts), np.nan)
    is_number = parts.place >= 0
    # numbers with different units are not comparable: 5% is not 5
    if len({spelling.unit for spelling in parts.spellings}) != 1 or counts[is_number].sum() < SHARE_READ * counts.sum():
        return values
    for place, spelling in enumerate(parts.spellings):
        at = np.flatnonzero(parts.place == place)
        # with a leading zero it is a different name: 0123 is not 123
        values[at] = np.nan if spelling.shape == LEADING_ZERO else parts.numbers(at, spelling.thousands)
    # float64 would round larger whole numbers to the same value
    return np.where(np.abs(values) < EXACT, values, np.nan)


def _category_warnings(column: ColumnStatistics, marks: Marks) -> list[str]:
    """Warnings about a column of texts that are categories though most of them look like numbers or dates."""
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
            f"{name} writes its dates in several forms ({_with_rows(texts.first_dates)}); its values are taken as "
            "names. Write all of them as 2014-03-27 to have dates (of a frame: pandas.to_datetime with a format), "
            f"{names}"
        ]
    if texts.short_years >= _MAJORITY * (texts.count - texts.missing_marks) and texts.short_years:
        return [
            f"{name} looks like dates whose year has two digits ({_with_rows(texts.first_short_year)}), which does not "
            "tell the century, nor day, month and year apart; its values are taken as names. Write the year with four "
            f"digits, as in 2014-03-27, to have dates (of a frame: pandas.to_datetime with a format), {names}"
        ]
    if ways := mixed_forms_warning(name, texts, names):
        return [ways]
    if marks.decimal is not None:
        other: Mark = "." if marks.decimal == "," else ","
        if (read := texts.reading(other, marks.default)) is not None and read.kind == "number":
            return [
                f"{name} writes numbers such as {read.statistics.first[1]!r}, whose decimal mark is not "
                f"{marks.decimal!r}; all are taken as names. {marks.remedy.format(repr(other))} takes them for "
                f"numbers, {names}"
            ]
    if column.categories is not None and len(column.categories) <= MOST_ONE_HOT:
        return []
    if texts.leading_zeros is not None:
        return leading_zeros_warnings(name, texts, names)
    most = texts.reading(marks.decimal, marks.default, share=_MAJORITY)
    if most is None:
        return []
    there = texts.count - texts.missing_marks
    share = 100 * (there - most.unread) / there
    return [
        f"{name} holds texts, and {share:.0f} % of its values are {_in_words(most)}, fewer than the "
        f"{100 * SHARE_READ:.0f} % from which on the others count as missing: {_with_rows(most.first_unread)}; all are "
        f"taken as names. Correct these, say which texts mean missing, {marks.nulls}, {names}"
    ]
