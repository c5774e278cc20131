"""What values may be in X, y and weights; each refusal names the row, the column and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.soundness import check_sound, check_structure, check_unmasked

_EXACT = 2**53


def stored_dtype(dtype: Any, what: str = "X") -> np.dtype:
    """The dtype in which rows of `dtype` are kept: real numbers as they are, bool as uint8, in native byte order.

    Raises
    ------
    ValueError
        Complex numbers.
    TypeError
        Anything else that is not a real number (strings, objects, dates).
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {what} has dtype {dtype}; pass real and imaginary parts as columns"
        )
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "fiu":
        raise TypeError(
            f"{what} has dtype {dtype}; expected real numbers. Encode strings and dates first, or pass a data frame, "
            "whose string columns are encoded one-hot"
        )
    return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")


def as_rows(X: Any) -> np.ndarray | sparse.csr_array:
    """`X` as a C-contiguous array or as csr_array with sorted indices and no duplicates, in a dtype that is kept.

    An array that is so already is not copied.

    Raises
    ------
    ValueError
        Not two-dimensional, no columns, or complex.
    TypeError
        Not numbers.
    """
    check_sound(X)
    if sparse.issparse(X):
        return _as_csr(X)
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(
            f"X has shape {X.shape}; expected 2D rows and columns. Reshape your data: X.reshape(-1, 1) for one column, "
            "X.reshape(1, -1) for one row"
        )
    _check_width(X)
    if X.dtype == object:
        X = _objects_as_numbers(X)
    return np.ascontiguousarray(X, dtype=stored_dtype(X.dtype))


def _as_csr(X: Any) -> sparse.csr_array:
    _check_width(X)
    rows = sparse.csr_array(X).astype(stored_dtype(X.dtype), copy=False)
    if rows.indices.dtype != np.int32 and rows.shape[1] <= np.iinfo(np.int32).max:
        rows = sparse.csr_array((rows.data, rows.indices.astype(np.int32), rows.indptr), shape=rows.shape)
    if X.format not in ("csr", "csc", "bsr", "coo"):
        # made of lists or of a dictionary, whose indices SciPy takes as they are
        check_structure(rows)
    if len(rows.data) > rows.nnz:
        # entries behind the last row count for nothing, and may hold anything
        parts = rows.data[: rows.nnz], rows.indices[: rows.nnz], rows.indptr
        rows = sparse.csr_array(parts, shape=rows.shape)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _check_width(X: Any) -> None:
    if X.shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required: X has no columns"
        )


def _objects_as_numbers(X: np.ndarray) -> np.ndarray:
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        row, column = next(p for p in np.ndindex(X.shape) if not _is_number(X[p]))
        error.add_note(f"X[{row}, {column}] is {X[row, column]!r}; X must hold numbers. A data frame may hold strings")
        raise


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_rows(X: np.ndarray | sparse.csr_array, *, first_row: int = 0, names: Sequence[str] | None = None) -> None:
    """Refuse NaN, infinity, and integers that float64 cannot hold.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    first_row : int
        The number of the first row in messages.
    names : sequence of str or None
        Names of the columns.

    Raises
    ------
    ValueError
        Naming the first such row and its column.
    """
    rows: Any = X
    values: np.ndarray = rows.data if sparse.issparse(X) else rows
    if not len(values) or _all_fine(values):
        return
    position = int(np.flatnonzero(~_fine(values.reshape(-1)))[0])
    value = values.reshape(-1)[position]
    if sparse.issparse(X):
        row, column = int(np.searchsorted(rows.indptr, position, side="right")) - 1, int(rows.indices[position])
    else:
        row, column = divmod(position, X.shape[1])
    named = "" if names is None else f" (column {names[column]!r})"
    raise ValueError(f"X[{first_row + row}, {column}]{named} is {spoken(value)}; {_remedy(value)}")


def _all_fine(values: np.ndarray) -> bool:
    if values.dtype.kind == "f":
        # a sum is fifty times cheaper than a mask; it may overflow where every value is finite
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(values.sum(dtype=np.result_type(values, np.float32)))) or bool(_fine(values).all())
    return values.dtype.itemsize < 8 or bool(_fine(values).all())


def _fine(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isfinite(values)
    small = values <= _EXACT
    return small if values.dtype.kind == "u" else small & (values >= -_EXACT)


def spoken(value: Any) -> str:
    """A value that is not allowed, as messages call it."""
    return "NaN" if value != value else str(value)


def spoken_names(names: Sequence[str], most: int = 12) -> str:
    """Names of columns as messages list them, cut after the first few."""
    shown = ", ".join(repr(name) for name in names[:most])
    return f"[{shown}]" if len(names) <= most else f"[{shown}, ... ({len(names)} in all)]"


def _remedy(value: Any) -> str:
    if isinstance(value, np.integer):
        return "integers beyond 2**53 are not exact in float64: pass ids as strings in a data frame, or leave them out"
    return "rows must be finite: drop or fill them, or pass a data frame, whose missing numbers are filled by the mean"


def checked_weight(weight: Any, n_rows: int, *, first_row: int = 0) -> np.ndarray | None:
    """Weights as float64 of shape (n,).

    Raises
    ------
    ValueError
        Of another shape, NaN, infinite or negative; the first such row is named.
    """
    if weight is None:
        return None
    check_unmasked(weight, "sample_weight", first_row=first_row)
    values = np.asarray(weight)
    if values.ndim == 0:
        values = np.full(n_rows, values)
    if values.dtype.kind not in "fiub" and values.dtype != object:
        raise TypeError(f"sample_weight has dtype {values.dtype}; expected real numbers")
    values = np.ascontiguousarray(values, dtype=np.float64)
    if values.shape != (n_rows,):
        raise ValueError(f"sample_weight has shape {values.shape}; expected ({n_rows},), one weight a row of X")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight[{first_row + row}] is {spoken(values[row])}; weights must be finite and not negative"
        )
    return values
