"""How one raw column becomes encoded columns, and the stated rules by which that is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.data.ingest.dates import DATE_KINDS, SPOKEN, DateKind, DatePart, names_of, parts_of, spoken_form
from dkl.data.ingest.statistics import ColumnStatistics
from dkl.errors import RowError

Missing = Literal["auto", "mean", "error"] | float
"""What becomes of missing values: see `decide_rule`."""

FEW_CATEGORIES = 20
"""So few distinct texts are categories however few the rows are."""
MOST_ONE_HOT = 32
"""Columns with more values are kept as one column of codes, of which fit makes numbers."""

MISSING = "<missing>"
DIRECTION = "direction "
"""How the numbers of free text are called, which are counted from 1."""


@dataclass(frozen=True)
class ColumnRule:
    """How one raw column is encoded.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "category", "code", "date", "time", "duration", "text"}
        Numbers keep their value, booleans become 0 and 1, categories become one-hot columns. A column of codes holds
        one plus the place of each value in `categories`, and 0 for values that are missing or unknown; a fit replaces
        it by numbers (`dkl.encodings`). Of times come days, and cosine and sine of what recurs; of free text numbers
        along directions (`dkl.data.columns.free_text`).
    categories : tuple of str
        Sorted; one column each, or one code each. Of free text what its numbers are called.
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
        How texts write the dates of the column, where not in ISO 8601: "m/d/y". How they write its numbers, where with
        marks of their own: the number 1234.56, as in "1.234,56 €" (`dkl.data.columns.numbers.NumberForm`).
    unforeseen : float or None
        What a missing value becomes where none was missing when the rule was made (a category has no column set); None:
        it is an error.
    zone : str or None
        Of dates: the time zone of points in time, to which later ones are converted; empty for those of a clock without
        a zone, None where it is not known (rules of older releases).
    unread : int
        How many of the missing values were texts that write no number, or no date, of the form; later ones are missing,
        too. They are errors where there was none.
    why : str
        Why texts that look like numbers are names.
    """

    name: str
    kind: Literal["number", "boolean", "category", "code", "text"] | DateKind
    categories: tuple[str, ...] = ()
    fill: float | None = None
    missing: int = 0
    double: str = ""
    outputs: tuple[str, ...] = ()
    parts: tuple[DatePart, ...] = ()
    unforeseen: float | None = None
    form: str = ""
    zone: str | None = None
    unread: int = 0
    why: str = ""

    @property
    def flags_missing(self) -> bool:
        return self.missing > 0 and self.kind != "code"

    @property
    def n_values(self) -> int:
        """Encoded columns without the flag."""
        if self.kind in ("category", "text"):
            return len(self.categories)
        if self.parts:
            return len(names_of(self.name, self.parts))
        return (len(self.outputs) or 1) if self.kind == "code" else 1

    @property
    def entries(self) -> int:
        """How many of the encoded columns, without the flag, a row can set: all of a time or a text, else one."""
        if self.kind == "text":
            return len(self.categories)
        return len(names_of(self.name, self.parts)) if self.parts else 1

    @property
    def output_names(self) -> list[str]:
        if self.kind == "code":
            return list(self.outputs) or [self.name]
        values = names_of(self.name, self.parts) if self.parts else [self.name]
        if self.kind in ("category", "text"):
            sign = "=" if self.kind == "category" else ": "
            values = [f"{self.name}{sign}{text}" for text in self.categories]
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
        if self.kind == "text":
            made = [name for name in self.categories if not name.startswith(DIRECTION)]
            kept = f"{len(self.categories) - len(made)} directions of its words"
            text = f"free text as {' and '.join([*([', '.join(made)] if made else []), kept])}"
            return f"{text}; {self.missing} missing, all zeros" if self.missing else text
        names = f" ({self.why})" if self.why else ""
        if self.kind == "code":
            return f"codes of {len(self.categories):,} values{names}, of which fit makes target means and counts"
        if self.kind == "category":
            text = f"one-hot, {len(self.categories)} categories{names}"
        else:
            text = {"number": "number", "boolean": "0 or 1"}.get(self.kind) or self._kept_of_times
            text += f" written as {self.form}" if self.form and self.kind == "number" else ""
            text += f", kept in double precision because {self.double}" if self.double else ""
        if self.flags_missing:
            otherwise = f" ({self.unread} of them written otherwise)" if self.unread else ""
            text += f"; {self.missing} missing{otherwise}, {self._filled} and flagged in '{self.output_names[-1]}'"
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
        written += f" in the zone {self.zone}" if self.zone else ""
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
    it is then used however many of its values differ, see
    `dkl.data.columns.deciding.differs_in_every_row`.
    Texts that write numbers or dates have the statistics of these, see `dkl.data.columns.seen`. Of dates
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
        raise RowError(
            f"column '{stats.name}' is {value} in row {row}; numbers must be finite: correct it, or leave it empty so "
            f"that it counts as missing",
            row,
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
    zone = stats.zone if stats.kind == "date" else None
    return ColumnRule(
        stats.name, stats.kind, (), filled, stats.missing, double, parts=parts, unforeseen=unforeseen, zone=zone
    )
