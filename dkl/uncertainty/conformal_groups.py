"""The groups of conformal intervals: as values or the name of a column, and their positions among groups of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.data.checks import shown_value, spoken_names
from dkl.data.dataset import Dataset
from dkl.data.frames import is_frame
from dkl.data.other_frames import as_pandas_rows
from dkl.data.together.choosing import column_at
from dkl.data.together.codes import group_codes
from dkl.data.view import ColumnAlong, View
from dkl.protocols.arrays import dense_rows

# The name of the row column of groups that are read from a feature.
_STORED = "interval group"


def column_of(X: Any, groups: Any) -> Any:
    """The values of a column of a data frame, if `groups` is its name; else `groups`."""
    X = as_pandas_rows(X)
    if not isinstance(groups, str) or isinstance(X, Dataset):
        return groups
    if not is_frame(X) or groups not in X.columns:
        raise ValueError(f"groups={groups!r} names no column of X; pass one value a row, or a data frame that has it")
    return X[groups]


def with_stored_groups(dataset: Dataset, name: str) -> tuple[Dataset, str]:
    """The dataset with a row column of the codes of groups in one of its columns, and the name of this row column.

    Parameters
    ----------
    dataset : Dataset
    name : str
        Its group column, which is no feature, or a feature of names or whole numbers, which remains a feature.

    Raises
    ------
    ValueError
        If there is no such column, or if it holds dates.
    """
    own = dataset.schema.row_columns.get("group")
    if own is not None and own.name == name:
        column, read = own.column, None
    else:
        column, read = _STORED, _stored_groups(dataset, name)
    return dataset.with_rows(View(dataset.source, ColumnAlong(column, read)), dataset.schema), column


def _stored_groups(dataset: Dataset, name: str) -> _StoredGroups:
    """The reader of the groups in the encoded columns of a feature."""
    names, encoding = list(dataset.column_names or ()), dataset.encoding
    rules = {} if encoding is None else {rule.name: rule for rule in encoding.rules}
    if name not in rules and name not in names:
        raise ValueError(
            f"groups={name!r} names no column of {dataset.source.place}; the columns are "
            f"{spoken_names(list(rules) or names)}"
        )
    kind = rules[name].kind if name in rules else "number"
    if kind not in ("category", "code", "number", "boolean"):
        raise ValueError(
            f"groups={name!r} of {dataset.source.place} holds times, which are no groups; choose a column of names or "
            "of whole numbers"
        )
    categories = rules[name].categories if kind in ("category", "code") else ()
    first = names.index(rules[name].output_names[0] if name in rules else name)
    codes = group_codes(np.array(categories, dtype=object), len(categories), name) if categories else ()
    return _StoredGroups(name, kind, first, tuple(int(code) for code in codes))


@dataclass(frozen=True)
class _StoredGroups:
    """Computes the codes of the groups of rows from the encoded columns of a feature.

    Parameters
    ----------
    name : str
        The name of the feature.
    kind : {"category", "code", "number", "boolean"}
        The kind of its rule.
    first : int
        Its first encoded column.
    codes : tuple of int
        The group code of each category; empty for numbers.
    """

    name: str
    kind: str
    first: int
    codes: tuple[int, ...]

    def __call__(self, X: Any, row_id: np.ndarray) -> np.ndarray:
        if self.kind == "category":
            own = dense_rows(X[:, self.first : self.first + len(self.codes)])
            place = np.where(own.any(axis=1), own.argmax(axis=1), -1)
        else:
            values = column_at(X, self.first)
            # the code 0 is a missing or unknown value
            place = values.astype(np.int64) - 1 if self.kind == "code" else np.where(values == np.trunc(values), 0, -1)
        if (place < 0).any():
            row = int(row_id[np.argmax(place < 0)])
            what = "missing or unknown" if self.codes else "no whole number"
            raise ValueError(f"groups={self.name!r} is {what} in row {row}: every row needs its group")
        return np.array(self.codes, np.int64)[place] if self.codes else group_codes(values, len(values), self.name)


@dataclass(frozen=True, eq=False)
class GroupCodes:
    """Groups of the rows of a block, given as codes (n,) int64."""

    codes: np.ndarray


def row_codes(dataset: Dataset, column: str) -> np.ndarray:
    """The codes of groups in a row column, (n,) int64."""
    return np.concatenate([block.columns[column] for block in dataset.source.blocks_without_x((column,))])


def check_groups(codes: np.ndarray, dataset: Dataset) -> None:
    """Raise ValueError if a group has a single row, from which no coverage follows."""
    _, first, sizes = np.unique(codes, return_index=True, return_counts=True)
    if sizes.min() < 2:
        row = int(first[np.argmin(sizes)])
        raise ValueError(
            f"the group of row {row} of {dataset.source.place} has one row, which says nothing of further rows; merge "
            "small groups, or give more rows"
        )


def places_of(X: Any, groups: Any, known: np.ndarray) -> np.ndarray:
    """The position of each row's group in the sorted group codes `known` of the held-out rows: (n,) int64.

    Raises
    ------
    ValueError
        For a group that held-out rows did not have.
    """
    if isinstance(X, Dataset) and isinstance(groups, str):
        codes = row_codes(*with_stored_groups(X, groups))
    elif isinstance(groups, GroupCodes):
        codes = groups.codes
    else:
        codes = group_codes(groups, len(groups), "groups")
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    unseen = np.flatnonzero(known[place] != codes)
    if len(unseen):
        row = int(unseen[0])
        value = "" if isinstance(groups, str | GroupCodes) else f", {shown_value(np.asarray(groups).ravel()[row])},"
        raise ValueError(
            f"the group{value} of row {row} is none of those of conformalize, so that nothing is promised of it; "
            "conformalize with rows of it, or without groups"
        )
    return place
