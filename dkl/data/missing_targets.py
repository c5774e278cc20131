"""Rows whose target is missing: which they are, and what is left when they are dropped on demand."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.checks import plain_array
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import check_target_shape
from dkl.errors import users_level

REMEDY = "drop_missing_target=True leaves rows without a target out"
"""How a message about a missing target ends; the shell puts its own option in place of the parameter."""


def has_target(y: GivenValues) -> np.ndarray:
    """For each row whether its target is there: bool (n,); of several targets none may be missing.

    None, NaN and the missing values of pandas are missing, infinity is a value.
    """
    import pandas as pd

    values = y if hasattr(y, "iloc") else plain_array(y, "y")
    missing = np.asarray(pd.isna(values), dtype=bool)
    return np.logical_not(missing.any(axis=1) if missing.ndim == 2 else missing)


def kept_rows(X: GivenRows, y: GivenValues) -> np.ndarray | None:
    """Which rows have a target, bool (n,), said with their count; None where all of them have one.

    Raises
    ------
    ValueError
        No row has a target, or y has another number of rows than X.
    TypeError
        The rows are computed by Dask.
    """
    if y is None:
        return None
    if dask.is_dask_collection(X) or dask.is_dask_collection(y):
        raise TypeError(
            "drop_missing_target=True drops rows in memory, and these are computed by Dask: drop them there, "
            "X[y.notnull()] and y[y.notnull()] of data frames, X[~da.isnan(y)] and y[~da.isnan(y)] of arrays"
        )
    check_target_shape(np.shape(y), np.shape(X)[0])
    kept = has_target(y)
    if kept.all():
        return None
    say_dropped(len(kept) - int(kept.sum()), len(kept))
    return kept


def say_dropped(dropped: int, rows: int, target: str = "") -> None:
    """Warn of how many rows are left out.

    Parameters
    ----------
    dropped, rows : int
        The rows without a target, and all rows.
    target : str
        The name of the column of targets, where it has one.

    Raises
    ------
    ValueError
        No row would be left.
    """
    named = f" '{target}'" if target else ""
    if dropped == rows:
        raise ValueError(f"the target{named} is missing in all {rows:,} rows, so that there is nothing to learn from")
    warnings.warn(
        f"{dropped:,} of {rows:,} rows have no target{named} and are left out", UserWarning, stacklevel=users_level()
    )


def rows_of(values: Any, kept: np.ndarray) -> Any:
    """The rows of an array, a series, a frame or a list that are kept; None and a single number stay as they are."""
    if values is None or (np.ndim(values) == 0 and not sparse.issparse(values)):
        return values
    if sparse.issparse(values):
        return sparse.csr_array(values)[kept]
    if hasattr(values, "iloc"):
        return values.loc[kept]
    import pandas as pd

    # nullable arrays of pandas have their own type for what is left
    return (values if isinstance(values, pd.api.extensions.ExtensionArray) else np.asarray(values))[kept]
