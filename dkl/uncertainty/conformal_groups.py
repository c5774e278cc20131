"""Groups that intervals are promised for: values or the name of a column, and their places among those of scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.data.checks import shown_value
from dkl.data.dataset import Dataset
from dkl.data.frames import is_frame
from dkl.data.other_frames import as_known_rows
from dkl.data.schema import Schema
from dkl.data.sources.rows import RowSource
from dkl.data.together.choosing import chosen_rows_together, with_values
from dkl.data.together.codes import group_codes


def column_of(X: Any, groups: Any) -> Any:
    """Groups as values, where they name a column of a data frame."""
    X = as_known_rows(X)
    if not isinstance(groups, str) or isinstance(X, Dataset):
        return groups
    if not is_frame(X) or groups not in X.columns:
        raise ValueError(f"groups={groups!r} names no column of X; pass one value a row, or a data frame that has it")
    return X[groups]


def with_groups(
    source: RowSource, schema: Schema, groups: Any, kept: np.ndarray | None = None
) -> tuple[RowSource, Schema, str]:
    """The rows with a row column of group codes, and its name."""
    if isinstance(groups, str):
        source, schema = chosen_rows_together(source, schema, by_group=groups)
    else:
        source, schema = with_values(source, schema, "group", groups, None, kept)
    return source, schema, schema.row_columns["group"].column


def check_groups(codes: np.ndarray, dataset: Dataset) -> None:
    """Raise ValueError where a group has one row alone, which promises nothing of its next."""
    _, first, sizes = np.unique(codes, return_index=True, return_counts=True)
    if sizes.min() < 2:
        row = int(first[np.argmin(sizes)])
        raise ValueError(
            f"the group of row {row} of {dataset.source.place} has one row, which says nothing of further rows; merge "
            "small groups, or give more rows"
        )


def places_of(X: Any, groups: Any, known: np.ndarray) -> np.ndarray:
    """The place of each row's group among those of the held-out rows: (n,) int64.

    Raises
    ------
    ValueError
        A group that held-out rows did not have.
    """
    if isinstance(X, Dataset) and isinstance(groups, str):
        source, _, column = with_groups(X.source, X.schema, groups)
        codes = np.concatenate([block.columns[column] for block in source.blocks_without_x((column,))])
    else:
        codes = group_codes(groups, len(groups), "groups")
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    strange = np.flatnonzero(known[place] != codes)
    if len(strange):
        row = int(strange[0])
        value = "" if isinstance(groups, str) else f", {shown_value(np.asarray(groups).ravel()[row])},"
        raise ValueError(
            f"the group{value} of row {row} is none of those of conformalize, so that nothing is promised of it; "
            "conformalize with rows of it, or without groups"
        )
    return place
