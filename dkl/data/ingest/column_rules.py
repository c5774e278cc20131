"""How one raw column becomes encoded columns, and the stated rules by which that is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.data.ingest.dates import DATE_KINDS, SPOKEN, DateKind, DatePart, names_of, parts_of
from dkl.data.ingest.statistics import MAX_CATEGORIES, ColumnStatistics

Missing = Literal["auto", "mean", "error"] | float
"""What becomes of missing values: see `decide_rule`."""

FEW_CATEGORIES = 20
"""So few distinct texts are categories however few the rows are."""

MISSING = "<missing>"


@dataclass(frozen=True)
class ColumnRule:
    """How one raw column is encoded.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "category", "date", "time", "duration"}
        Numbers keep their value, booleans become 0 and 1, categories become one-hot columns; of times come days, and
        cosine and sine of what recurs.
    categories : tuple of str
        Sorted; one column each.
    fill : float or None
        What a missing value becomes (a missing category has no column set); None: it is an error.
    missing : int
        How many values were missing when the rule was made; when any were, one more column flags them.
    double : str
        Why the column needs float64, in words; empty where float32 holds what matters of it.
    parts : tuple of {"days", "hour", "weekday", "yearday"}
        What is kept of times.
    unforeseen : float or None
        What a missing value becomes where none was missing when the rule was made (a category has no column set); None:
        it is an error.
    """

    name: str
    kind: Literal["number", "boolean", "category"] | DateKind
    categories: tuple[str, ...] = ()
    fill: float | None = None
    missing: int = 0
    double: str = ""
    parts: tuple[DatePart, ...] = ()
    unforeseen: float | None = None

    @property
    def flags_missing(self) -> bool:
        return self.missing > 0

    @property
    def n_values(self) -> int:
        """Encoded columns without the flag."""
        if self.kind == "category":
            return len(self.categories)
        return len(names_of(self.name, self.parts)) if self.parts else 1

    @property
    def entries(self) -> int:
        """How many of the encoded columns, without the flag, a row can set: one of the one-hot ones, all of a time."""
        return 1 if self.kind == "category" else self.n_values

    @property
    def output_names(self) -> list[str]:
        values = names_of(self.name, self.parts) if self.parts else [self.name]
        if self.kind == "category":
            values = [f"{self.name}={text}" for text in self.categories]
        return values + ([f"{self.name}={MISSING}"] if self.flags_missing else [])

    @property
    def passthrough(self) -> list[bool]:
        """For each encoded column whether scalers leave it alone: everything that is 0 or 1 by making."""
        # A one-hot column that is shifted and scaled would no longer be sparse, nor mean what its name says; a cosine
        # and its sine would no longer lie on a circle.
        if self.parts:
            return [name != f"{self.name}.days" for name in names_of(self.name, self.parts)] + [
                True
            ] * self.flags_missing
        return [self.kind != "number"] * self.n_values + [True] * self.flags_missing

    @property
    def treatment(self) -> str:
        """The rule in words, without the name of the column."""
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
        return f"{self.kind} as {', and '.join([*kept, *([f'cosine and sine of {cycles}'] if cycles else [])])}"

    @property
    def _filled(self) -> str:
        if self.parts and "days" not in self.parts:
            return "in the middle of its circle"
        return "all zeros" if self.kind == "category" else f"filled with {self.filling:.6g}"

    @property
    def filling(self) -> float | None:
        """What a missing value becomes, foreseen or not; None: it is an error."""
        return self.unforeseen if self.fill is None else self.fill


def decide_rule(stats: ColumnStatistics, missing: Missing, double: str = "") -> ColumnRule:
    """The rule for one column, which needs float64 where `double` says why.

    Texts and categorical columns are one-hot when they have at most 1,000 categories and no more than half as many as
    rows (20 are always allowed); the user's own choice of a column as categorical lifts both limits to 100,000.
    Texts that are all dates in ISO 8601 are dates, of which `dkl.data.ingest.dates.parts_of` says what is kept.
    Missing values: with "auto" the mean takes their place, and a later one is told of when none was missing here;
    "mean" and a number fill in any case; "error" never. A flag column says where values were missing.

    Raises
    ------
    ValueError
        A column of high cardinality, without any value, with missing values under "error", with an infinite value, or
        beyond float32.
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
        return decide_rule(stats.dates, missing, double)
    if stats.kind == "category":
        # The user named the column in `categorical`, which lifts the limits.
        is_insisted_on = stats.max_categories > MAX_CATEGORIES
        few = max(FEW_CATEGORIES, (stats.rows - stats.missing) // 2)
        if stats.categories is None or not (is_insisted_on or len(stats.categories) <= few):
            count = f"more than {stats.max_categories}" if stats.categories is None else str(len(stats.categories))
            insist = "" if is_insisted_on else f", or insist on one column each: categorical=['{stats.name}']"
            raise ValueError(
                f"column '{stats.name}' has {count} different texts in {stats.rows} rows, too many for one-hot columns"
                f"; leave it out (drop=['{stats.name}']), replace it by numbers or by coarser groups{insist}"
            )
        # A category that is missing sets none of its columns, so that its fill says only whether that is allowed.
        fill = 0.0 if stats.missing or missing not in ("auto", "error") else None
        names, unforeseen = tuple(sorted(stats.categories)), 0.0 if missing == "auto" and fill is None else None
        return ColumnRule(stats.name, "category", names, fill, stats.missing, unforeseen=unforeseen)
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
    return ColumnRule(stats.name, stats.kind, (), filled, stats.missing, double, parts, unforeseen)
