"""Names for what users give as rows and as values of rows: of so many kinds that no one type of Python covers them."""

from __future__ import annotations

from typing import Any, TypeAlias

GivenRows: TypeAlias = Any
"""X: an array, nested lists, a scipy sparse matrix, a Dask array, or a pandas, Polars, Arrow or Dask data frame."""

GivenValues: TypeAlias = Any
"""y, weights, labels, masks or row numbers: an array, a series, a list, a Dask array; None where there are none."""
