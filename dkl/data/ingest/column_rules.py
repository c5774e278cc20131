"""How one raw column becomes encoded columns, and the stated rules by which that is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Literal

import numpy as np

from dkl.data.checks import reads_as_number
from dkl.data.ingest.dates import DATE_KINDS, SPOKEN, DateKind, DatePart, names_of, parts_of, spoken_form
from dkl.data.ingest.statistics import ColumnStatistics

Missing = Literal["auto", "mean", "error"] | float
"""What becomes of missing values: see `decide_rule`."""

FEW_CATEGORIES = 20
"""So few distinct texts are categories however few the rows are."""
MOST_ONE_HOT = 32
"""Columns with more values are kept as one column of codes, of which fit makes numbers."""
# Texts in that share of the rows differ (almost) everywhere; that share of texts which read as numbers is worth a word.
_DIFFERENT = 0.9
_READ = 0.9

MISSING = "<missing>"


@dataclass(frozen=True)
class ColumnRule:
    """How one raw column is encoded.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "category", "code", "date", "time", "duration"}
        Numbers keep their value, booleans become 0 and 1, categories become one-hot columns. A column of codes holds
        one plus the place of each value in `categories`, and 0 for values that are missing or unknown; a fit replaces
        it by numbers (`dkl.encodings`). Of times come days, and cosine and sine of what recurs.
    categories : tuple of str
        Sorted; one column each, or one code each.
    fill : float or None
        What a missing value becomes (a missing category has no column set); None: it is an error.
    missing : int
        How many values were missing when the rule was made; when any were, one more column flags them.
    double : str
        Why the column needs float64, in words; empty where float32 holds what matters of it.
    outputs : tuple of str
        Names of the columns that a fit has made of a column of codes, or has added to another one; empty before.
    parts : tuple of {"days", "hour", "weekday", "yearday"}
        What is kept of times.
    form : str
        How texts write the dates of the column, where not in ISO 8601: "m/d/y".
    unforeseen : float or None
        What a missing value becomes where none was missing when the rule was made (a category has no column set); None:
        it is an error.
    """

    name: str
    kind: Literal["number", "boolean", "category", "code"] | DateKind
    categories: tuple[str, ...] = ()
    fill: float | None = None
    missing: int = 0
    double: str = ""
    outputs: tuple[str, ...] = ()
    parts: tuple[DatePart, ...] = ()
    unforeseen: float | None = None
    form: str = ""

    @property
    def flags_missing(self) -> bool:
        return self.missing > 0 and self.kind != "code"

    @property
    def n_values(self) -> int:
        """Encoded columns without the flag."""
        if self.kind == "category":
            return len(self.categories)
        if self.parts:
            return len(names_of(self.name, self.parts))
        return (len(self.outputs) or 1) if self.kind == "code" else 1

    @property
    def entries(self) -> int:
        """How many of the encoded columns, without the flag, a row can set: one of the one-hot ones, all of a time."""
        return len(names_of(self.name, self.parts)) if self.parts else 1

    @property
    def output_names(self) -> list[str]:
        if self.kind == "code":
            return list(self.outputs) or [self.name]
        values = names_of(self.name, self.parts) if self.parts else [self.name]
        if self.kind == "category":
            values = [f"{self.name}={text}" for text in self.categories]
        return [*values, *([f"{self.name}={MISSING}"] if self.flags_missing else []), *self.outputs]

    @property
    def passthrough(self) -> list[bool]:
        """For each encoded column whether scalers leave it alone: everything that is 0 or 1 by making."""
        # A one-hot column that is shifted and scaled would no longer be sparse, nor mean what its name says; a cosine
        # and its sine would no longer lie on a circle.
        if self.parts:
            values = [name != f"{self.name}.days" for name in names_of(self.name, self.parts)]
            return values + [True] * self.flags_missing
        values = [self.kind in ("boolean", "category")] * self.n_values + [True] * self.flags_missing
        return values if self.kind == "code" else values + [False] * len(self.outputs)

    @property
    def treatment(self) -> str:
        """The rule in words, without the name of the column."""
        if self.kind == "code":
            return f"codes of {len(self.categories):,} values, of which fit makes target means and counts"
        if self.kind == "category":
            text = f"one-hot, {len(self.categories)} categories"
        else:
            text = {"number": "number", "boolean": "0 or 1"}.get(self.kind) or self._kept_of_times
            text += f", kept in double precision because {self.double}" if self.double else ""
        if self.flags_missing:
            text += f"; {self.missing} missing, {self._filled} and flagged in '{self.output_names[-1]}'"
        elif self.fill is None and self.unforeseen is None:
            text += "; a missing value is an error"
        else:
            text += f"; none missing, a later one is {self._filled}"
        return text

    @property
    def _kept_of_times(self) -> str:
        """What is kept of a column of times, in words."""
        if self.kind == "duration":
            return "duration in days"
        cycles = ", ".join(SPOKEN[part] for part in self.parts if part != "days")
        kept = [SPOKEN["days"]] if "days" in self.parts else []
        written = f" written {spoken_form(self.form)}" if self.form else ""
        return (
            f"{self.kind}{written} as {', and '.join([*kept, *([f'cosine and sine of {cycles}'] if cycles else [])])}"
        )

    @property
    def _filled(self) -> str:
        if self.parts and "days" not in self.parts:
            return "in the middle of its circle"
        return "all zeros" if self.kind == "category" else f"filled with {self.filling:.6g}"

    @property
    def filling(self) -> float | None:
        """What a missing value becomes, foreseen or not; None: it is an error."""
        return self.unforeseen if self.fill is None else self.fill


def decide_rule(stats: ColumnStatistics, missing: Missing, double: str = "", *, chosen: bool = False) -> ColumnRule:
    """The rule for one column, which needs float64 where `double` says why.

    Texts and categorical columns are one-hot when they have at most 32 values and no more than half as many as rows (20
    are always allowed), and codes above, up to a million. `chosen` says that the user named the column as categorical:
    it is then used however many of its values differ, see `differs_in_every_row`.
    Texts that are all dates, in ISO 8601 or in one of `dkl.data.ingest.dates.FORMS` alone, are dates, of which
    `dkl.data.ingest.dates.parts_of` says what is kept.
    Missing values: with "auto" the mean takes their place, and a later one is told of when none was missing here;
    "mean" and a number fill in any case; "error" never. A flag column says where values were missing.

    Raises
    ------
    ValueError
        A column of more than a million values, without any value, with missing values under "error", with an infinite
        value, or beyond float32.
    """
    # Infinite is not missing: a mean that took it in would be infinite, too.
    if stats.infinite is not None:
        row, value = stats.infinite
        raise ValueError(
            f"column '{stats.name}' is {value} in row {row}; numbers must be finite: correct it, or leave it empty so "
            f"that it counts as missing"
        )
    if stats.kind == "empty" or stats.missing == stats.rows:
        raise ValueError(
            f"column '{stats.name}' holds no value in {stats.rows} rows; leave it out: drop=['{stats.name}']"
        )
    if missing == "error" and stats.missing:
        raise ValueError(
            f"column '{stats.name}' has {stats.missing} missing values in {stats.rows} rows and missing='error'; fill "
            f"them, or use missing='auto' (the mean, and a flag column)"
        )
    if stats.dates is not None:
        return replace(decide_rule(stats.dates, missing, double), form=str(stats.form))
    if stats.kind == "category":
        if stats.categories is None:
            raise ValueError(
                f"column '{stats.name}' has more than {stats.max_categories:,} different values in {stats.rows:,} "
                f"rows; leave it out (drop=['{stats.name}']), or replace its values by coarser groups"
            )
        few = max(FEW_CATEGORIES, min(MOST_ONE_HOT, (stats.rows - stats.missing) // 2))
        if chosen:
            few = MOST_ONE_HOT
        # A category that is missing sets none of its columns, so that its fill says only whether that is allowed.
        fill = 0.0 if stats.missing or missing not in ("auto", "error") else None
        names, unforeseen = tuple(sorted(stats.categories)), 0.0 if missing == "auto" and fill is None else None
        kind: Literal["category", "code"] = "category" if len(names) <= few else "code"
        return ColumnRule(stats.name, kind, names, fill, stats.missing, unforeseen=unforeseen)
    # A constant fills missing values in any case, the mean only where some were missing here or it was asked for.
    filled = None if isinstance(missing, str) else float(missing)
    if missing == "mean" or (missing == "auto" and stats.missing):
        filled = float(stats.mean)
    # What is stored as float64 has to fit into float32 all the same: kernels compute in it.
    limit = float(np.finfo(np.float32).max)
    if max(abs(stats.minimum), abs(stats.maximum)) > limit:
        raise ValueError(
            f"column '{stats.name}' reaches from {stats.minimum:g} to {stats.maximum:g}, beyond what float32 holds "
            f"({limit:g}); divide it or take its logarithm"
        )
    parts: tuple[DatePart, ...] = ()
    if stats.kind in DATE_KINDS:
        parts = parts_of(stats.kind, stats.minimum, stats.maximum, has_times=not stats.is_whole)
    # Ten digits of the mean: the rule does not depend on the order in which pieces of the rows were added up.
    unforeseen = float(f"{stats.mean:.10g}") if missing == "auto" and filled is None else None
    return ColumnRule(stats.name, stats.kind, (), filled, stats.missing, double, parts=parts, unforeseen=unforeseen)


def why_no_dates(stats: ColumnStatistics) -> str:
    """What to say of texts that are taken as names though all of them look like dates; empty where they do not."""
    if len(stats.written) < 2 or stats.missing == stats.rows or not stats.categories:
        return ""
    example = next(iter(stats.categories))
    return (
        f"column '{stats.name}' looks like dates in which no day is beyond 12 ({example!r}), so that it cannot be told "
        f"from the month; its values are taken as names. Write them as 2014-03-27 to have dates (of a frame: "
        f"pandas.to_datetime with a format), or say that they are names: categorical=['{stats.name}']"
    )


def why_no_numbers(stats: ColumnStatistics) -> str:
    """What to say of many texts that are taken as names though almost all of them read as numbers with fractions."""
    if stats.kind != "category" or stats.dates is not None or len(stats.categories or ()) <= MOST_ONE_HOT:
        return ""
    # the first of them, in an order that is the same in every process
    looked_at = nsmallest(1_000, stats.categories or ())
    read = [text for text in looked_at if reads_as_number(text) and np.isfinite(float(text))]
    fractions = [text for text in read if not float(text).is_integer()]
    if not fractions or len(read) < _READ * len(looked_at):
        return ""
    return (
        f"column '{stats.name}' holds texts that read as numbers ({fractions[0]!r}), and they are taken as names. Make "
        "numbers of them (of a frame: pandas.to_numeric with errors='coerce'; of a file: leave empty what is none), "
        f"or say that they are names: categorical=['{stats.name}']"
    )


def differs_in_every_row(stats: ColumnStatistics) -> bool:
    """Whether a column of texts has another value in (almost) every row, so that nothing can be learned from them."""
    if stats.kind != "category" or stats.dates is not None:
        return False
    if stats.categories is None:
        return True
    there = stats.rows - stats.missing
    return len(stats.categories) > max(FEW_CATEGORIES, _DIFFERENT * there)
