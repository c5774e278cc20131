"""Type aliases for rows, and for values of rows, as users pass them; Python's types cannot express them precisely."""

from __future__ import annotations

from typing import Any, TypeAlias

GivenRows: TypeAlias = Any
"""X: an array, nested lists, a scipy sparse matrix, a Dask array, or a pandas, Polars, Arrow or Dask data frame."""

GivenValues: TypeAlias = Any
"""y, weights, labels, masks or row numbers: an array, a series, a list, a Dask array, or None."""
