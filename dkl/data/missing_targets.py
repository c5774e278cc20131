"""Finds rows whose target is missing, and drops them if the user asks for it."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.checks import plain_array
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import check_target_shape
from dkl.errors import warn_user


def has_target(y: GivenValues) -> np.ndarray:
    """Whether the target of each row, or each of several targets, is present: (n,) bool.

    None, NaN and the missing values of pandas are missing; infinity is not.
    """
    import pandas as pd

    values = y if hasattr(y, "iloc") else plain_array(y, "y")
    missing = np.asarray(pd.isna(values), dtype=bool)
    return np.logical_not(missing.any(axis=1) if missing.ndim == 2 else missing)


def kept_rows(X: GivenRows, y: GivenValues) -> np.ndarray | None:
    """Whether each row has a target, (n,) bool, with a warning that counts the others; None if all rows have one.

    Raises
    ------
    ValueError
        If no row has a target, or y and X have different numbers of rows.
    TypeError
        If the rows are computed by Dask.
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
    """Warn that rows without a target are left out.

    Parameters
    ----------
    dropped, rows : int
        The number of rows without a target, and of all rows.
    target : str
        The name of the target's column; empty if it has none.

    Raises
    ------
    ValueError
        If no row would remain.
    """
    named = f" '{target}'" if target else ""
    if dropped == rows:
        raise ValueError(f"the target{named} is missing in all {rows:,} rows, so that there is nothing to learn from")
    warn_user(f"{dropped:,} of {rows:,} rows have no target{named} and are left out")


def rows_of(values: Any, kept: np.ndarray) -> Any:
    """The rows of an array, a series, a frame or a list where `kept` is true; None and a single number unchanged."""
    if values is None or (np.ndim(values) == 0 and not sparse.issparse(values)):
        return values
    if sparse.issparse(values):
        return sparse.csr_array(values)[kept]
    if hasattr(values, "iloc"):
        return values.loc[kept]
    import pandas as pd

    # nullable arrays of pandas keep their type
    return (values if isinstance(values, pd.api.extensions.ExtensionArray) else np.asarray(values))[kept]
