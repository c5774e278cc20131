"""ColumnRule: how one raw column is encoded; and `decide_rule`, which chooses the rule from the column's statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dkl.data.columns.free_text import DIRECTION
from dkl.data.ingest.dates import DATE_KINDS, PART_NAMES, DateKind, DatePart, form_in_words, names_of, parts_of
from dkl.data.ingest.statistics import MAX_CATEGORIES, ColumnStatistics
from dkl.errors import RowError

Missing = Literal["auto", "mean", "error"] | float
"""The treatment of missing values: see `decide_rule`."""

FEW_CATEGORIES = 20
"""A column with at most this many distinct texts is categorical, however few rows there are."""
MOST_ONE_HOT = 32
"""Largest number of categories that are encoded one-hot; more are stored as one column of codes."""

MISSING = "<missing>"


@dataclass(frozen=True)
class ColumnRule:
    """The encoding of one raw column.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "category", "code", "date", "time", "duration", "text"}
        Numbers keep their value, booleans become 0 and 1, categories become one-hot columns. A column of codes holds
        one plus the position of each value in `categories`, and 0 for missing and unknown values; a fit replaces it by
        numbers (`dkl.encodings`). Times become days, and cosine and sine for each cycle; free text becomes coordinates
        along directions (`dkl.data.columns.free_text`).
    categories : tuple of str
        Sorted; one column or one code each. For free text, the names of its encoded columns.
    fill : float or None
        Value for missing values (a missing category sets no column); None makes them an error.
    missing : int
        Number of missing values in the rows that the rule follows from; if positive, one more column flags them.
    double : str
        The reason why the column needs float64, in words; empty if float32 suffices.
    outputs : tuple of str
        Names of the columns by which a fit replaced a column of codes, or that it added to another one; empty before.
    parts : tuple of {"days", "hour", "weekday", "yearday"}
        The encoded parts of times.
    form : str
        For dates in texts, the order of their parts, such as "m/d/y"; empty for ISO 8601. For numbers in texts with
        marks or a unit, 1234.56 in their form, such as "1.234,56 €" (`dkl.data.columns.numbers.NumberForm`).
    unforeseen : float or None
        Value for missing values if `missing` is 0 (a category sets no column); None makes them an error.
    zone : str or None
        For dates, the time zone that they have or are converted to; empty without a time zone, None if unknown (rules
        of older releases).
    unread : int
        Number of the missing values that are texts not in `form`. If positive, such texts count as missing later, too;
        otherwise they are an error.
    why : str
        The reason why texts that look like numbers are categories.
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
    def value_names(self) -> list[str]:
        """Names of the encoded columns, without the flag and without those that a fit added."""
        if self.kind == "code":
            return list(self.outputs) or [self.name]
        if self.kind in ("category", "text"):
            sign = "=" if self.kind == "category" else ": "
            return [f"{self.name}{sign}{text}" for text in self.categories]
        return names_of(self.name, self.parts) if self.parts else [self.name]

    @property
    def n_values(self) -> int:
        """Encoded columns without the flag."""
        return len(self.value_names)

    @property
    def entries(self) -> int:
        """The number of encoded columns, without the flag, that a row sets: all for times and free text, else one."""
        return 1 if self.kind in ("category", "code") else self.n_values

    @property
    def output_names(self) -> list[str]:
        flag = [f"{self.name}={MISSING}"] if self.flags_missing else []
        return [*self.value_names, *flag, *(() if self.kind == "code" else self.outputs)]

    @property
    def passthrough(self) -> list[bool]:
        """Whether scalers leave each encoded column unchanged: all with values 0 and 1, and cosines and sines."""
        # shifting and scaling would make one-hot columns dense, and take a cosine and its sine off their circle
        if self.parts:
            values = [name != f"{self.name}.days" for name in names_of(self.name, self.parts)]
            return values + [True] * self.flags_missing
        values = [self.kind in ("boolean", "category")] * self.n_values + [True] * self.flags_missing
        return values if self.kind == "code" else values + [False] * len(self.outputs)

    @property
    def treatment(self) -> str:
        """A description of the rule, without the name of the column."""
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
    def brief_treatment(self) -> str:
        """`treatment` without what is filled in for later missing values where fit had none."""
        return self.treatment.partition("; none missing")[0]

    @property
    def _kept_of_times(self) -> str:
        """A description of the encoded parts of times."""
        if self.kind == "duration":
            return "duration in days"
        cycles = ", ".join(PART_NAMES[part] for part in self.parts if part != "days")
        kept = [PART_NAMES["days"]] if "days" in self.parts else []
        written = f" written {form_in_words(self.form)}" if self.form else ""
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
        """Value for missing values, whether or not fit had some; None makes them an error."""
        return self.unforeseen if self.fill is None else self.fill


def with_places(rules: Iterable[ColumnRule]) -> Iterator[tuple[ColumnRule, int]]:
    """Each rule with the position of its first encoded column."""
    start = 0
    for rule in rules:
        yield rule, start
        start += len(rule.output_names)


def decide_rule(stats: ColumnStatistics, missing: Missing, double: str = "", *, chosen: bool = False) -> ColumnRule:
    """The rule for one column.

    Texts and categorical columns are one-hot if they have at most 32 distinct values and at most half as many as there
    are rows (20 are always allowed), else codes, up to a million. `dkl.data.ingest.dates.parts_of` chooses the parts of
    dates.

    Parameters
    ----------
    stats : ColumnStatistics
        For texts that write numbers or dates, the statistics of these (`dkl.data.columns.text_statistics`).
    missing : {"auto", "mean", "error"} or float
        "auto" and "mean" fill missing values with the mean, "auto" with a warning if fit had none; a number fills them
        with this number; "error" makes them an error. A flag column marks them if fit had some.
    double : str
        The reason why the column needs float64; empty if it does not.
    chosen : bool
        Whether the user named the column as categorical: up to 32 values are then one-hot however few the rows are.

    Raises
    ------
    ValueError
        For more than a million distinct values, no value at all, missing values with "error", an infinite value, or
        numbers beyond float32.
    """
    # infinity does not count as missing: it would make the mean infinite
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
    if stats.kind == "category":
        of_missing = missing_fields(stats, missing)
        if stats.categories is None:
            raise ValueError(
                f"column '{stats.name}' has more than {MAX_CATEGORIES:,} different values in {stats.rows:,} "
                f"rows; leave it out (drop=['{stats.name}']), or replace its values by coarser groups"
            )
        few = max(FEW_CATEGORIES, min(MOST_ONE_HOT, (stats.rows - stats.missing) // 2))
        if chosen:
            few = MOST_ONE_HOT
        names = tuple(sorted(stats.categories))
        return ColumnRule(stats.name, "category" if len(names) <= few else "code", names, **of_missing)
    _check_missing(stats, missing, "the mean")
    values = stats.values
    # a constant and "mean" fill missing values in any case, "auto" only if some are missing
    filled = None if isinstance(missing, str) else float(missing)
    if missing == "mean" or (missing == "auto" and stats.missing):
        filled = float(values.mean)
    # kernels compute in float32, so that float64 columns must stay in its range
    limit = float(np.finfo(np.float32).max)
    if max(abs(values.minimum), abs(values.maximum)) > limit:
        raise ValueError(
            f"column '{stats.name}' reaches from {values.minimum:g} to {values.maximum:g}, beyond what float32 holds "
            f"({limit:g}); divide it or take its logarithm"
        )
    parts: tuple[DatePart, ...] = ()
    if stats.kind in DATE_KINDS:
        parts = parts_of(stats.kind, values.minimum, values.maximum, has_times=not values.is_whole)
    # ten digits, since further digits of the mean depend on the order in which batches were added
    unforeseen = float(f"{values.mean:.10g}") if missing == "auto" and filled is None else None
    zone = stats.zone if stats.kind == "date" else None
    return ColumnRule(
        stats.name, stats.kind, (), filled, stats.missing, double, parts=parts, unforeseen=unforeseen, zone=zone
    )


def missing_fields(stats: ColumnStatistics, missing: Missing) -> dict[str, Any]:
    """The fields on missing values of a rule of categories or free text, whose one-hot columns are all 0 for these.

    Raises
    ------
    ValueError
        For missing values with "error".
    """
    _check_missing(stats, missing, "zeros")
    # `fill` is no value here: it says that missing values are allowed
    fill = 0.0 if stats.missing or missing not in ("auto", "error") else None
    unforeseen = 0.0 if missing == "auto" and fill is None else None
    return {"fill": fill, "missing": stats.missing, "unforeseen": unforeseen}


def _check_missing(stats: ColumnStatistics, missing: Missing, filled: str) -> None:
    if missing == "error" and stats.missing:
        raise ValueError(
            f"column '{stats.name}' has {stats.missing} missing values in {stats.rows} rows and missing='error'; fill "
            f"them, or use missing='auto' ({filled}, and a flag column)"
        )
