"""Messages about held-out rows: how they are chosen, and hints at columns by which they should be chosen."""

from __future__ import annotations

import re
import shlex

import dask
import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.ingest.column_rules import with_places
from dkl.data.schema import HeldBy
from dkl.errors import hint
from dkl.protocols.arrays import dense_rows

# Words in the names of columns that suggest ids, whose rows belong together, and times.
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
# Ranges of values that suggest times: years, dates as one number, and seconds to nanoseconds since 1970.
_RANGES = ((1900, 2100), (19000101, 21001231), (3e8, 4e18))
# Number of rows of the first block whose values are examined.
_EXAMINED_ROWS = 65_536


def kind_of_split(dataset: Dataset) -> str:
    """The rule by which rows of the dataset are held out, as a part of a sentence."""
    held_by = dataset.schema.held_by
    if held_by is None:
        return "single rows, drawn at random"
    name = dataset.schema.row_columns[held_by].name
    called = "" if name == held_by else f" by {name!r}"
    return f"whole groups{called}" if held_by == "group" else f"the newest rows{called}"


def warn_of_random_folds(dataset: Dataset, asking: str) -> None:
    """Issue a hint if rows are held out at random and a column looks like a time, or like an id shared by rows."""
    found = suspect(dataset)
    if found is None:
        return
    name, role = found
    what = "a time: rows of the future" if role == "time" else "an id with several rows each: rows of the same one"
    problem = (
        f"{asking} holds out single rows at random, and column {name!r} looks like {what} are then on both sides, "
    )
    quoted = shlex.quote(name)
    hint(
        f"{problem}and scores are too good. Pass {role}s={name!r} for a data frame, or {role}s=values; write a store "
        f"with dkl.ingest(..., {role}={name!r})",
        in_shell=f"{problem}and scores are too good. Pass --by-{role} {quoted}, or ingest with --{role} {quoted}",
    )


def suspect(dataset: Dataset) -> tuple[str, HeldBy] | None:
    """A column whose name and values suggest a time or an id; None without any, or if rows are held out by one."""
    if dataset.schema.held_by is not None:
        return None
    # raw columns with the position and the number of their encoded columns
    columns = [(str(name), place, 1) for place, name in enumerate(dataset.column_names or ())]
    if dataset.encoding is not None:
        columns = []
        for rule, start in with_places(dataset.encoding.rules):
            if rule.kind == "date":
                return rule.name, "time"
            columns.append((str(rule.name), start, max(rule.n_values, 1)))
    named: list[tuple[str, HeldBy, int, int]] = []
    for name, place, width in columns:
        # "visitDate" has the words of "visit_date"
        words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
        if words & (_TIMES | _IDS):
            named.append((name, "time" if words & _TIMES else "group", place, width))
    if not named:
        return None
    first = int(np.flatnonzero(dataset.source.block_rows)[0])
    (ticket,) = dask.compute(dataset.source.ticket(first), traverse=False)
    rows = dataset.source.reader().load(ticket).X[:_EXAMINED_ROWS]
    for name, role, place, width in named:
        part = dense_rows(rows[:, list(range(place, place + width))])
        # for one-hot columns, the position of the set one
        values = part[:, 0] if width == 1 else part.argmax(axis=1).astype(np.float64)
        different = len(np.unique(values))
        if role == "time":
            # in a range of times, or mostly distinct and ascending
            within = any(low <= values.min() and values.max() <= high for low, high in _RANGES)
            in_order = different > len(values) / 2 and bool(np.all(np.diff(values) >= 0))
            looks = different > 1 and (within or in_order)
        else:
            # repeated whole numbers or categories: at least ten distinct ones, with two rows or more on average
            looks = bool(np.all(values == np.trunc(values))) and 10 <= different <= len(values) / 2
        if looks:
            return name, role
    return None
