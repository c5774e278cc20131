"""What is said of held-out rows: by what they were chosen, and which column looks as if it should have decided."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.dataset import Dataset
from dkl.data.schema import HeldBy
from dkl.data.store.copying import blocks_in_order
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
    hint(
        f"{asking} holds out single rows at random, and column {name!r} looks like {what} are then on both sides, and "
        f"scores are too good. Pass {role}s={name!r} for a data frame, or {role}s=values; write a store with "
        f"dkl.ingest(..., {role}={name!r})"
    )


def suspect(dataset: Dataset) -> tuple[str, HeldBy] | None:
    """A column whose name and values are those of a time or of an id; None for none, or where rows are held by one."""
    if dataset.schema.held_by is not None:
        return None
    dated = [rule.name for rule in getattr(dataset.encoding, "rules", ()) if rule.kind == "date"]
    if dated:
        return dated[0], "time"
    named = [(name, role, place) for name, place in _columns(dataset) if (role := _role_of(name)) is not None]
    if not named:
        return None
    rows = _first_rows(dataset)
    for name, role, places in named:
        values = _values(rows, places)
        looks = _is_time if role == "time" else _is_id
        if looks(values):
            return name, role
    return None


def _columns(dataset: Dataset) -> list[tuple[str, slice]]:
    """Raw columns with the encoded ones that they became."""
    encoding, found, start = dataset.encoding, [], 0
    if encoding is None:
        return [(str(name), slice(place, place + 1)) for place, name in enumerate(dataset.column_names or ())]
    for rule in encoding.rules:
        found.append((str(rule.name), slice(start, start + max(rule.n_values, 1))))
        start += len(rule.output_names)
    return found


def _role_of(name: str) -> HeldBy | None:
    """What a column's name says it is: a time, an id, or nothing of the kind."""
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    if words & _TIMES:
        return "time"
    return "group" if words & _IDS else None


def _first_rows(dataset: Dataset) -> Any:
    """X of the first block that has rows."""
    return next(block for block in blocks_in_order(dataset.source) if block.n_rows).X[:_LOOKED_AT]


def _values(rows: Any, places: slice) -> np.ndarray:
    """The values of a column; of one that became several, which of them is set."""
    part = rows[:, list(range(places.start, places.stop))]
    part = np.asarray(part.todense() if sparse.issparse(part) else part)
    return part[:, 0] if part.shape[1] == 1 else part.argmax(axis=1).astype(np.float64)


def _is_id(values: np.ndarray) -> bool:
    """Whether whole numbers, or categories, come again: ten different ones at least, two rows each or more."""
    different = len(np.unique(values))
    return bool(np.all(values == np.trunc(values))) and 10 <= different <= len(values) / 2


def _is_time(values: np.ndarray) -> bool:
    """Whether all values lie in a range of years, dates or seconds, or rows come in their order."""
    if len(np.unique(values)) < 2:
        return False
    within = any(low <= values.min() and values.max() <= high for low, high in _RANGES)
    return within or (len(np.unique(values)) > len(values) / 2 and bool(np.all(np.diff(values) >= 0)))
