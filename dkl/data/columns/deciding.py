"""Decides the encoding rule of each raw column of a table, and words the warnings about these decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dkl.data.checks import spoken_names
from dkl.data.columns.free_text import TextDirections
from dkl.data.columns.numbers import DefaultMark, Mark, NumberForm, two_spellings
from dkl.data.columns.text_statistics import SHARE_READ, Reading, TextStatistics
from dkl.data.ingest.column_rules import (
    FEW_CATEGORIES,
    MOST_ONE_HOT,
    ColumnRule,
    Missing,
    decide_rule,
    missing_fields,
)
from dkl.data.ingest.dates import form_in_words
from dkl.data.ingest.statistics import ColumnStatistics, TableStatistics
from dkl.errors import Problems, hint, warn_user

# Share of a column's values that must be numbers (or dates) for the warning that they were nearly read as such.
_MAJORITY = 0.5
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
        of_missing = missing_fields(column, missing)
        seen = column.texts
        if seen is None or seen.sample is None:
            raise ValueError(f"column '{column.name}' has no sample of its texts")
        directions = TextDirections.fitted(column.name, seen.sample)
        self.directions.append(directions)
        self.rules.append(ColumnRule(column.name, "text", directions.column_names, **of_missing))
        once = _share_occurring_once(column)
        if once is not None and once <= (1.0 + _SINGLE_SHARE) / 2:
            self.hints.append(
                f"column '{column.name}' holds several words, and {100 * once:.0f} % of its values occur once: it is "
                f"taken for free text, and for names where fewer than {100 * _SINGLE_SHARE:.0f} % do, as more rows may "
                f"show; categorical=['{column.name}'] takes it for names in any case"
            )

    def warn(self, without: str, with_names: str) -> None:
        """Issue the warnings and hints on all columns.

        Parameters
        ----------
        without, with_names : str
            As of `dkl.data.ingest.encoding.decide_encoding`.
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
    if reading.kind == "number":
        texts = pa.array(sorted(column.categories or ()), pa.string())
        if twice := two_spellings(texts, NumberForm.of(reading.form).numbers(texts)):
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
    if column.categories is not None and len(column.categories) <= MOST_ONE_HOT:
        return []
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
