"""Types of the rows, and of the values for rows, that users may give; they are more than Python's types can express."""

from __future__ import annotations

from typing import Any, TypeAlias

GivenRows: TypeAlias = Any
"""X: an array, nested lists, a scipy sparse matrix, a Dask array, or a pandas, Polars, Arrow or Dask data frame."""

GivenValues: TypeAlias = Any
"""y, weights, labels, masks or row numbers: an array, a series, a list, a Dask array; None where there are none."""
