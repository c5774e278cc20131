"""What is said of held-out rows: by what they were chosen, and which column looks as if it should have decided."""

from __future__ import annotations

import re
import shlex
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.dataset import Dataset
from dkl.data.schema import HeldBy
from dkl.errors import hint

_IDS = {
    "id",
    "ids",
    "uid",
    "uuid",
    "patient",
    "subject",
    "person",
    "user",
    "customer",
    "client",
    "household",
    "session",
}
_TIMES = {"date", "datetime", "timestamp", "time", "year", "yr"}
# years, dates written as one number, and seconds since 1970 up to nanoseconds
_RANGES = ((1900, 2100), (19000101, 21001231), (3e8, 4e18))
_LOOKED_AT = 65_536


def kind_of_split(dataset: Dataset) -> str:
    """By what rows of the dataset are held out, as a part of a sentence."""
    held_by = dataset.schema.held_by
    if held_by is None:
        return "single rows, drawn at random"
    name = dataset.schema.row_columns[held_by].name
    called = "" if name == held_by else f" by {name!r}"
    return f"whole groups{called}" if held_by == "group" else f"the newest rows{called}"


def warn_of_random_folds(dataset: Dataset, asking: str) -> None:
    """Hint where rows are held out at random and a column looks like a time, or like the id of what rows belong to."""
    found = suspect(dataset)
    if found is None:
        return
    name, role = found
    what = "a time: rows of the future" if role == "time" else "an id with several rows each: rows of the same one"
    said = f"{asking} holds out single rows at random, and column {name!r} looks like {what} are then on both sides, "
    quoted = shlex.quote(name)
    hint(
        f"{said}and scores are too good. Pass {role}s={name!r} for a data frame, or {role}s=values; write a store with "
        f"dkl.ingest(..., {role}={name!r})",
        in_shell=f"{said}and scores are too good. Pass --by-{role} {quoted}, or ingest with --{role} {quoted}",
    )


def suspect(dataset: Dataset) -> tuple[str, HeldBy] | None:
    """A column whose name and values are those of a time or of an id; None for none, or where rows are held by one."""
    if dataset.schema.held_by is not None:
        return None
    # Raw columns with the place of the encoded ones that they became.
    columns, start = [], 0
    if dataset.encoding is None:
        columns = [(str(name), place, 1) for place, name in enumerate(dataset.column_names or ())]
    else:
        for rule in dataset.encoding.rules:
            if rule.kind == "date":
                return rule.name, "time"
            columns.append((str(rule.name), start, max(rule.n_values, 1)))
            start += len(rule.output_names)
    named: list[tuple[str, HeldBy, int, int]] = []
    for name, place, width in columns:
        # the words of "visitDate" are those of "visit_date"
        words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
        if words & (_TIMES | _IDS):
            named.append((name, "time" if words & _TIMES else "group", place, width))
    if not named:
        return None
    first = int(np.flatnonzero(dataset.source.block_rows)[0])
    (ticket,) = dask.compute(dataset.source.ticket(first), traverse=False)
    rows = dataset.source.reader().load(ticket).X[:_LOOKED_AT]
    for name, role, place, width in named:
        part: Any = rows[:, list(range(place, place + width))]
        part = np.asarray(part.todense() if sparse.issparse(part) else part)
        # of a column that became several, which of them is set
        values = part[:, 0] if width == 1 else part.argmax(axis=1).astype(np.float64)
        different = len(np.unique(values))
        if role == "time":
            # years, dates or seconds, or rows that come in their order
            within = any(low <= values.min() and values.max() <= high for low, high in _RANGES)
            in_order = different > len(values) / 2 and bool(np.all(np.diff(values) >= 0))
            looks = different > 1 and (within or in_order)
        else:
            # whole numbers, or categories, that come again: ten different ones at least, two rows each or more
            looks = bool(np.all(values == np.trunc(values))) and 10 <= different <= len(values) / 2
        if looks:
            return name, role
    return None
