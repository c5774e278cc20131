"""Encodes one raw column of a table by its rule, whether it holds typed values or texts that write them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.first_rows import FALSE, TRUE
from dkl.data.columns.free_text import TextDirections
from dkl.data.columns.numbers import LEADING_ZERO, Mark, NumberForm, NumberParts, means_missing
from dkl.data.differences import Differences
from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.columns import check_exact, column_kind, numbers, texts, why_inexact, why_unusable
from dkl.data.ingest.dates import (
    CLOCK,
    DATE_KINDS,
    NAIVE,
    SPAN,
    ZONED,
    date_kind,
    days,
    encoded_days,
    form_in_words,
    times_in_form,
    written_times,
    zone_of,
)

# The name of the values of each kind of rule in messages.
_VALUES_OF_KIND = {"number": "numbers", "boolean": "booleans", "category": "texts", "code": "texts", "text": "texts"}
_VALUES_OF_KIND |= {kind: f"{kind}s" for kind in DATE_KINDS}


@dataclass(frozen=True, eq=False)
class Encoded:
    """One encoded raw column.

    Parameters
    ----------
    column : ndarray of shape (n,), int64, or int
        The encoded column that each row sets, counted from the first one of the raw column; -1 for none.
    values : ndarray of shape (n,) or (n, k), float64, or float
        The values there; (n, k) for times and free text, which set all of their k encoded columns.
    missing : ndarray of shape (n,), bool, or None
        The values of the column that flags missing values; None without such a column.
    """

    column: np.ndarray | int
    values: np.ndarray | float
    missing: np.ndarray | None


def encoded(
    rule: ColumnRule,
    column: pa.ChunkedArray,
    differences: Differences,
    directions: TextDirections | None = None,
    *,
    unknown: str = "zeros",
    first_row: int = 0,
) -> Encoded:
    """The values of a column by its rule.

    Parameters
    ----------
    rule : ColumnRule
    column : ChunkedArray of n values
    differences : Differences
        Differences from the rows of fit are added to it.
    directions : TextDirections or None
        The directions of a column of free text.
    unknown : {"zeros", "error"}
        Whether an unknown category becomes 0 in all one-hot columns (code 0 in a column of codes), or raises an error.
    first_row : int
        The number of the first row in messages.

    Raises
    ------
    ValueError, TypeError
        For values that the rule cannot encode, with the row.
    """
    if column_kind(column.type) is None:
        raise TypeError(
            f"{why_unusable(rule.name, column.type).split(': ')[0]}, and held {_VALUES_OF_KIND[rule.kind]} before"
        )
    of_column = _Column(rule, column, differences, first_row)
    if rule.kind == "category":
        return of_column.category(unknown)
    if rule.kind == "text":
        return of_column.free_text(directions)
    if rule.kind == "code":
        codes = replace(of_column, rule=replace(rule, fill=0.0)).category(unknown).column
        return Encoded(0, np.asarray(codes) + 1.0, None)
    return of_column.times() if rule.kind in DATE_KINDS else of_column.number()


@dataclass(frozen=True, eq=False)
class _Column:
    """A raw column and its rule; see `encoded` for the parameters."""

    rule: ColumnRule
    column: pa.ChunkedArray
    differences: Differences
    first_row: int

    @property
    def _is_text(self) -> bool:
        return column_kind(self.column.type) == "category" and self.column.null_count < len(self.column)

    def _texts(self) -> pa.Array:
        """The values as texts, in one contiguous array."""
        return texts(self.column).combine_chunks()

    def _record(self, rows: np.ndarray, sentence: str, kind: str) -> None:
        self.differences.add(self.rule.name, rows, self.first_row, sentence, kind)

    def category(self, unknown: str) -> Encoded:
        """The position of each row's category in the rule; -1 if it is missing or unknown."""
        rule, kind, names = self.rule, column_kind(self.column.type), texts(self.column)
        missing = np.asarray(names.is_null().to_numpy())
        self._check_missing(missing)
        known = pa.array(rule.categories, pa.string())
        codes = np.asarray(pc.index_in(names, value_set=known, skip_nulls=True).fill_null(-1).to_numpy())
        strange = np.flatnonzero((codes < 0) & ~missing)
        is_typed = kind in ("number", "boolean", *DATE_KINDS)
        # numbers or booleans in a column whose categories do not look like them: probably the name of another column
        held_only_texts = is_typed and not _look_typed(known)
        if len(strange) and (unknown == "error" or held_only_texts):
            what = "a category that was not there before" if not is_typed else f"a {kind}, and held texts before"
            raise ValueError(
                f"column '{rule.name}' is '{names[int(strange[0])]}' in row {self.first_row + strange[0]}, {what}; "
                f"known are {list(rule.categories[:20])}"
            )
        if kind == "number" and rule.why:
            self._record(np.flatnonzero(~missing), f"holds numbers, and held names ({rule.why})", "typed")
        if len(strange):
            example = names[int(strange[0])].as_py()
            self._record(strange, f"holds categories that were not there, such as {example!r}", "unseen")
        return Encoded(codes, 1.0, missing if rule.flags_missing else None)

    def free_text(self, directions: TextDirections | None) -> Encoded:
        """The coordinates of free text along its directions, (n, K); zeros for missing texts."""
        rule = self.rule
        if directions is None:
            raise ValueError(f"column '{rule.name}' holds free text, and its directions are not with its rule")
        written = self._texts()
        missing = np.asarray(written.is_null().to_numpy(zero_copy_only=False))
        self._check_missing(missing)
        return Encoded(0, directions.numbers(written), missing if rule.flags_missing else None)

    def times(self) -> Encoded:
        """The days and cycles of a column of times, typed or written in texts."""
        rule = self.rule
        if self._is_text:
            values = self._days_of_texts()
        elif self.column.null_count == len(self.column):
            values = np.full(len(self.column), np.nan)
        else:
            # durations of less than a day may be read as times of day
            if date_kind(self.column.type) not in (rule.kind, "time" if rule.kind == "duration" else ""):
                raise TypeError(f"column '{rule.name}' holds {self.column.type} values, and held {rule.kind}s before")
            values = days(self.column, rule.zone or "")
            self._record_zone(np.flatnonzero(~np.isnan(values)), zone_of(self.column.type))
        missing = np.isnan(values)
        self._check_missing(missing)
        return Encoded(0, encoded_days(values, rule.parts, rule.filling), missing if rule.flags_missing else None)

    def _record_zone(self, rows: np.ndarray, zone: str) -> None:
        """Record rows whose dates have a time zone if those of fit had none, or the other way round."""
        # rules of older releases do not say whether dates had a time zone
        if self.rule.kind != "date" or self.rule.zone is None or bool(zone) == bool(self.rule.zone):
            return
        if zone:
            self._record(rows, f"has the time zone {zone}, and had none (its own clock is taken)", "zone")
        else:
            was = self.rule.zone
            self._record(rows, f"has no time zone, and was of {was} (it is taken for a clock of {was})", "zone")

    def _days_of_texts(self) -> np.ndarray:
        """The days that texts write in the form of the rule or in ISO 8601, (n,) float64; NaN for other texts."""
        rule, written = self.rule, self._texts()
        values = np.full(len(written), np.nan)
        forms = {"time": (CLOCK,), "duration": (SPAN,)}.get(rule.kind) or dict.fromkeys((rule.form, NAIVE, ZONED))
        for form in forms:
            left = np.flatnonzero(np.isnan(values) & written.is_valid().to_numpy(zero_copy_only=False))
            if not len(left):
                break
            found = days(times_in_form(written.take(pa.array(left)), form), rule.zone or "")
            values[left] = found
            self._record_zone(left[~np.isnan(found)], "UTC" if form == ZONED else "")
        self._check_unread(written, np.isnan(values))
        return values

    def number(self) -> Encoded:
        """The values of a column of numbers or booleans; missing ones are filled."""
        rule = self.rule
        if date_kind(self.column.type) is not None:
            raise TypeError(
                f"column '{rule.name}' holds dates or times ({self.column.type}), and held {rule.kind}s before"
            )
        values = self._numbers_of_texts() if self._is_text else self._typed_numbers()
        missing = np.isnan(values)
        self._check_missing(missing)
        with np.errstate(over="ignore"):
            # kernels would refuse a number beyond float32 without naming its column
            infinite = np.flatnonzero(np.isinf(values.astype(np.float32)))
        if len(infinite):
            raise ValueError(
                f"column '{rule.name}' is {values[infinite[0]]:g} in row {self.first_row + infinite[0]}; numbers must "
                "be finite and within float32"
            )
        # other numbers in a column of booleans: probably the name of another column
        strange = np.flatnonzero((values != 0) & (values != 1) & ~missing)
        if rule.kind == "boolean" and len(strange):
            raise ValueError(
                f"column '{rule.name}' is {values[strange[0]]:g} in row {self.first_row + strange[0]}, and held "
                "booleans before; expected true or false, or 1 or 0"
            )
        if rule.filling is not None:
            values = np.where(missing, rule.filling, values)
        return Encoded(0, values, missing if rule.flags_missing else None)

    def _typed_numbers(self) -> np.ndarray:
        column = self.column
        if column.null_count == len(column):
            return np.full(len(column), np.nan)
        check_exact(self.rule.name, column, self.first_row)
        return numbers(column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column)

    def _numbers_of_texts(self) -> np.ndarray:
        """The numbers that texts write in the form of the rule, (n,) float64; NaN for other texts.

        Numbers with a leading zero are recorded as differences.

        Raises
        ------
        ValueError
            For a text that is not a number, if all texts of fit were, or for a whole number that float64 does not
            represent exactly; with the row.
        """
        rule, written = self.rule, self._texts()
        parts = NumberParts.of(written)
        values = NumberForm.of(rule.form).numbers_of(parts)
        for words, value in ((TRUE, 1.0), (FALSE, 0.0)) if not rule.form else ():
            is_word = pc.fill_null(pc.is_in(written, value_set=pa.array(words, written.type)), False)
            values[is_word.to_numpy(zero_copy_only=False)] = value
        if len(inexact := parts.inexact(values)):
            row = int(inexact[0])
            value = int(re.sub("[^0-9-]", "", written[row].as_py()))
            raise ValueError(why_inexact(rule.name, value, f"in row {self.first_row + row}"))
        zeros = [place for place, spelling in enumerate(parts.spellings) if spelling.shape == LEADING_ZERO]
        rows = np.flatnonzero(np.isin(parts.place, zeros))
        if len(rows):
            example = written[int(rows[0])].as_py()
            self._record(rows, f"holds numbers with a zero in front, such as {example!r}, and held none", "zeros")
        self._check_unread(written, np.isnan(values))
        return values

    def _check_unread(self, written: pa.Array, unread: np.ndarray) -> None:
        """Raise ValueError for texts that the rule cannot read, unless fit had such texts.

        Parameters
        ----------
        written : pyarrow.Array of n texts
        unread : ndarray of shape (n,), bool
            Texts that could not be read, and missing ones, which are accepted.
        """
        rule = self.rule
        unread = unread & written.is_valid().to_numpy(zero_copy_only=False)
        if rule.unread or not unread.any():
            return
        rows = np.flatnonzero(unread)
        wrong = rows[~means_missing(written.take(pa.array(rows)))]
        if not len(wrong):
            return
        value = written[int(wrong[0])].as_py()
        held = (
            f"column '{rule.name}' is {value!r} in row {self.first_row + int(wrong[0])}, and held {rule.kind}s before"
        )
        if rule.kind in DATE_KINDS:
            form = f" as {form_in_words(rule.form)}, or" if rule.form else ""
            example = {"time": "17:30", "duration": "1 days 05:30:00"}.get(rule.kind, "2026-11-22 or 2026-11-22 17:30")
            raise ValueError(f"{held}; write it{form} as {example}, or leave it empty")
        as_before = f" (written as {' or '.join(rule.form.split('|'))})" if rule.form else ""
        number_form, say = NumberForm.of(rule.form), ""
        mark: Mark = "." if number_form.decimal == "," else ","
        if not np.isnan(number_form.with_decimal(mark).numbers(pa.array([value]))[0]):
            say = f"where '{mark}' is its decimal mark, say so, decimal='{mark}' (an argument of dkl.CsvFormat); else "
        raise ValueError(f"{held}{as_before}; {say}correct it, or leave it empty where missing values are allowed")

    def _check_missing(self, missing: np.ndarray) -> None:
        """Record missing values if fit had none; raise ValueError if the rule has no value to fill them with."""
        rule = self.rule
        if not missing.any():
            return
        rows = np.flatnonzero(missing)
        if rule.fill is None and rule.unforeseen is not None:
            zeros = rule.kind in ("category", "text")
            filled = "all of its columns are 0" if zeros else f"filled with {rule.unforeseen:.6g}"
            self._record(rows, f"is missing, and never was ({filled})", "missing")
        if rule.filling is None:
            raise ValueError(
                f"column '{rule.name}' is missing (NaN) in row {self.first_row + int(rows[0])}, and no value of it was "
                "missing when the encoding was learned; fill it, or learn with missing='mean'"
            )


def _look_typed(categories: Any) -> bool:
    """Whether some of the categories look like a number, a boolean or a date."""
    is_boolean = pc.any(pc.is_in(categories, value_set=pa.array(["true", "false"]))).as_py()
    return bool(is_boolean) or bool((NumberParts.of(categories).place >= 0).any()) or bool(written_times(categories))
