"""Checks of the values in X, y and weights, whose errors have the row, the column and a remedy."""

from __future__ import annotations

import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np
from dask import is_dask_collection
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.precision import EXACT
from dkl.data.soundness import check_sound, check_structure, check_unmasked

_TOO_LARGE = "integers beyond 2**53 are not exact in float64: pass ids as strings in a data frame, or leave them out"
ALL_WEIGHTLESS = "sample_weight is zero for all rows, and rows of weight 0 are left out; at least one must count"
WITHOUT_TARGET = "drop_missing_target=True leaves rows without a target out"
"""The remedy in messages about missing targets; the shell replaces the parameter by its option."""


def stored_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype in which rows of `dtype` are stored: that of real numbers, uint8 for bool, in native byte order.

    Raises
    ------
    ValueError
        For complex numbers.
    TypeError
        For anything else that is not a real number (strings, objects, dates).
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X has dtype {dtype}; pass real and imaginary parts as columns")
    # kernels compute with 0 and 1; a boolean is one byte in memory, too
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "fiu":
        raise TypeError(
            f"X has dtype {dtype}; expected real numbers. Encode strings and dates first, or pass a data frame, "
            "whose string columns are encoded one-hot"
        )
    return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")


def whole_number(value: object, name: str, least: int = 0) -> int:
    """The argument `name` as an int; integers of NumPy are accepted.

    Raises
    ------
    ValueError
        If it is below `least`, or beyond 64 bits.
    TypeError
        If it is not an integer, or a boolean.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {shown_value(value)}; expected a whole number of at least {least}")
    if not least <= int(value) < 2**63:
        raise ValueError(f"{name} is {value}; expected a whole number of at least {least}, of at most 64 bits")
    return int(value)


def plain_array(values: GivenValues, name: str) -> np.ndarray:
    """The argument `name` as a NumPy array of numbers, texts or objects.

    Raises
    ------
    ValueError
        For rows of different lengths, or a value that is not a sequence.
    TypeError
        For a sparse matrix or a structured array.
    """
    check_unmasked(values, name)
    if sparse.issparse(values):
        raise TypeError(
            f"{name} is a sparse matrix of shape {values.shape}; expected an array: {name}.toarray(), and .ravel() for "
            "one value a row"
        )
    try:
        # NumPy's error for ragged lists, "inhomogeneous shape", is hard to understand
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is ragged, its rows have different lengths: {error}") from error
    if isinstance(values, str | os.PathLike):
        remedies = {
            "X": "open a store with dkl.open_dataset, read files with dkl.ingest or pandas",
            "y": f"pass the values, as in X[{shown_value(values)}], and leave the column out of X",
        }
        raise ValueError(
            f"{name} is {shown_value(values)}, of type {type(values).__name__}, which holds no rows; "
            f"{remedies.get(name, 'pass the values')}"
        )
    if isinstance(values, Mapping):
        raise ValueError(
            f"{name} is of type {type(values).__name__}; make a data frame of it, pandas.DataFrame([{name}]) "
            "if it is one row"
        )
    if array.ndim == 1 and len(array) and isinstance(array[0], Mapping):
        raise ValueError(
            f"{name} is a list of {type(array[0]).__name__}; make a data frame of it, pandas.DataFrame({name})"
        )
    if array.ndim == 0 and array.dtype.kind not in "biufc":
        raise ValueError(
            f"{name} is of type {type(values).__name__}, which holds no rows; expected an array, a data frame or a "
            "Dask array. Reshape your data where it is one row: X.reshape(1, -1)"
        )
    if array.dtype.names is not None:
        raise TypeError(
            f"{name} is a structured array with the fields {list(array.dtype.names)}; expected plain numbers: "
            f"pandas.DataFrame({name}), or numpy.lib.recfunctions.structured_to_unstructured({name})"
        )
    return array


def as_rows(X: GivenRows) -> np.ndarray | sparse.csr_array:
    """`X` as a C-contiguous array or as csr_array with sorted indices and no duplicates, in its `stored_dtype`.

    An array that has this form already is not copied.

    Raises
    ------
    ValueError
        If it is not two-dimensional, has no columns, or is complex.
    TypeError
        If it does not hold numbers.
    """
    # before any index is used: a damaged sparse matrix would read memory outside of its arrays
    check_sound(X)
    if not sparse.issparse(X):
        dense = plain_array(X, "X")
        if dense.ndim == 1 and hasattr(X, "to_frame"):
            raise ValueError(
                f"X is a {type(X).__name__} of shape {dense.shape}; expected 2D rows and columns. Reshape your data: "
                "X.to_frame() for one column, X.to_frame().T for one row"
            )
        check_two_dimensional(dense)
        if dense.dtype == object:
            dense = _objects_as_numbers(dense, "X")
        return np.ascontiguousarray(dense, dtype=stored_dtype(dense.dtype))
    check_two_dimensional(X)
    if X.shape[1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"X has {X.shape[1]:,} columns; at most {np.iinfo(np.int32).max:,} are numbered. Hash them to fewer, as "
            "sklearn.feature_extraction.FeatureHasher does"
        )
    # stores and kernels need int32 indices, sorted and without duplicates
    rows = sparse.csr_array(X).astype(stored_dtype(X.dtype), copy=False)
    if rows.indices.dtype != np.int32:
        rows = sparse.csr_array((rows.data, rows.indices.astype(np.int32), rows.indptr), shape=rows.shape)
    if X.format not in ("csr", "csc", "bsr", "coo"):
        # SciPy does not check the indices of matrices of lists or dictionaries when it converts them
        check_structure(rows)
    if len(rows.data) > rows.nnz:
        # entries after the last row are unused and may have any value
        parts = rows.data[: rows.nnz], rows.indices[: rows.nnz], rows.indptr
        rows = sparse.csr_array(parts, shape=rows.shape)
    if not rows.has_canonical_format:
        # a copy, since entries are sorted in place and these may be the user's arrays
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def check_two_dimensional(X: GivenRows) -> None:
    """Raise ValueError unless an array or a sparse matrix has two dimensions, and columns."""
    if len(X.shape) != 2:
        raise ValueError(
            f"X has shape {X.shape}; expected 2D rows and columns. Reshape your data: X.reshape(-1, 1) for one column, "
            "X.reshape(1, -1) for one row"
        )
    if X.shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required: X has no columns"
        )


def no_rows(shape: tuple[int, ...]) -> str:
    """The error message for arrays without rows."""
    return f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required: X has no rows"


def _objects_as_numbers(values: np.ndarray, name: str, first_row: int = 0) -> np.ndarray:
    """Python objects as float64; an error with the place of the first one that is not a number or not exact."""
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        place = next(p for p in np.ndindex(values.shape) if not reads_as_number(values[p]))
        kind = TypeError if isinstance(error, TypeError) else ValueError
        tables = "; a data frame may hold texts" if name == "X" else ""
        raise kind(
            f"{named_place(name, place, first_row)} is {shown_value(values[place])}, but {name} must hold real numbers "
            f"({error}){tables}"
        ) from error
    # large floats are rounded already, while large integers are ids, which must be exact
    for place in map(tuple, np.argwhere(np.abs(numbers) > EXACT)):
        value = values[place]
        if isinstance(value, Integral):
            raise ValueError(f"{named_place(name, place, first_row)} is {shown_value(value)}; {_TOO_LARGE}")
    return numbers


def named_place(name: str, place: tuple[int, ...], first_row: int = 0) -> str:
    """The place of a value in messages, ``X[17, 2]``, where the first row has the number `first_row`."""
    return f"{name}[{', '.join(str(int(p)) for p in (place[0] + first_row, *place[1:]))}]"


def reads_as_number(value: Any) -> bool:
    """Whether ``float(value)`` succeeds."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def shown_value(value: object) -> str:
    """A value of the user in messages: its repr, shortened if it is long."""
    return reprlib.repr(value.item() if isinstance(value, np.generic) else value)


def check_rows(
    X: np.ndarray | sparse.csr_array,
    *,
    first_row: int = 0,
    names: Sequence[str] | None = None,
    may_lack: bool = False,
    weight: np.ndarray | None = None,
) -> None:
    """Raise ValueError for NaN, infinity, and integers that float64 does not represent exactly, with row and column.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    first_row : int
        The number of the first row in messages.
    names : sequence of str or None
        Names of the columns.
    may_lack : bool
        Whether NaN is allowed, as a missing value.
    weight : ndarray of shape (n,) or None
        Rows of weight 0 may have any values.
    """
    rows: Any = X
    values: np.ndarray = rows.data if sparse.issparse(X) else rows
    if not len(values):
        return
    if values.dtype.kind == "f":
        # a sum takes a fiftieth of the time of a mask; if it is not finite it may have overflowed, and the mask decides
        with np.errstate(over="ignore", invalid="ignore"):
            fine = bool(np.isfinite(values.sum(dtype=np.result_type(values, np.float32)))) or bool(
                _is_allowed(values).all()
            )
    else:
        fine = values.dtype.itemsize < 8 or bool(_is_allowed(values).all())
    if fine:
        return
    # positions of wrong values among all values, or among the stored entries of sparse rows
    wrong = ~_is_allowed(values.reshape(-1))
    if may_lack:
        wrong &= ~np.isnan(values.reshape(-1))
    if weight is not None:
        wrong &= np.repeat(weight > 0.0, np.diff(rows.indptr) if sparse.issparse(X) else X.shape[1])
    if not wrong.any():
        return
    position = int(np.argmax(wrong))
    value = values.reshape(-1)[position]
    if sparse.issparse(X):
        row, column = int(np.searchsorted(rows.indptr, position, side="right")) - 1, int(rows.indices[position])
    else:
        row, column = divmod(position, X.shape[1])
    named = "" if names is None else f" (column {names[column]!r})"
    fill = "drop or fill them"
    if value != value:
        fill = (
            "missing values are filled by the mean where fit has seen some in dense rows, and in data frames always; "
            "drop or fill them"
        )
    remedy = _TOO_LARGE if isinstance(value, np.integer) else f"rows must be finite: {fill}"
    raise ValueError(f"X[{first_row + row}, {column}]{named} is {spoken(value)}; {remedy}")


def lacks_values(X: GivenRows) -> bool:
    """Whether `X` is a dense array in memory of which some values are missing (NaN)."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    # a sum is much cheaper than a mask; it is NaN if a value is, but also for infinity minus infinity
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(X.sum())) and bool(np.isnan(X).any())


def _is_allowed(values: np.ndarray) -> np.ndarray:
    """Whether each value is allowed: finite floats, and integers up to 2**53."""
    if values.dtype.kind == "f":
        return np.isfinite(values)
    small = values <= EXACT
    return small if values.dtype.kind == "u" else small & (values >= -EXACT)


def spoken(value: object) -> str:
    """A number in messages; "NaN" for all missing values."""
    return "NaN" if value != value else str(value)


def spoken_names(names: Sequence[str]) -> str:
    """The first twelve names of columns as a list in messages."""
    shown = ", ".join(repr(name) for name in names[:12])
    return f"[{shown}]" if len(names) <= 12 else f"[{shown}, ... ({len(names)} in all)]"


def repeated(names: Iterable[object]) -> list[str]:
    """The names that occur more than once, as texts, sorted."""
    return sorted(str(name) for name, count in Counter(names).items() if count > 1)


def check_named_once(names: Iterable[object]) -> None:
    """Raise ValueError if two columns have the same name."""
    if twice := repeated(names):
        raise ValueError(f"column names must differ; found more than once: {twice}")


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """The end of a message about an unknown name: the most similar one of `names`; empty if none is similar."""
    known = {_normalized(each): str(each) for each in names}
    near = get_close_matches(_normalized(name), known, n=1, cutoff=0.7)
    return f"; did you mean '{known[near[0]]}'?" if near else ""


def _normalized(name: object) -> str:
    """A name in lower case without blanks, punctuation and underscores, for comparisons."""
    return re.sub(r"[\W_]+", "", str(name)).lower()


def checked_weight(weight: GivenValues, n_rows: int, *, first_row: int = 0) -> np.ndarray | None:
    """Weights as float64 of shape (n,); a single number is the weight of all rows.

    Raises
    ------
    ValueError
        For another shape, and for NaN, infinite or negative weights, with the first such row.
    TypeError
        If they are not real numbers.
    """
    if weight is None:
        return None
    values = plain_array(weight, "sample_weight")
    if values.dtype == object:
        values = _objects_as_numbers(values, "sample_weight", first_row)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"sample_weight has dtype {values.dtype}; expected real numbers")
    values = np.ascontiguousarray(np.full(n_rows, values) if values.ndim == 0 else values, dtype=np.float64)
    if values.shape == (n_rows, 1):
        values = values[:, 0]
    if values.shape != (n_rows,):
        raise ValueError(f"sample_weight has shape {values.shape}; expected ({n_rows},), one weight a row of X")

    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight[{first_row + row}] is {spoken(values[row])}; weights must be finite and not negative"
        )
    return values


def rows_named(values: GivenValues, n_rows: int, called: str) -> np.ndarray:
    """Whether each row is named by a mask or by row numbers, (n_rows,) bool; `called` begins messages.

    Raises
    ------
    ValueError
        If a mask has another length, or a row number is out of range.
    TypeError
        For other values.
    """
    rows = np.asarray(values)
    if rows.dtype == bool:
        if rows.shape != (n_rows,):
            raise ValueError(f"the mask of {called} has shape {rows.shape}; expected ({n_rows},), one value a row")
        return rows
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        raise TypeError(f"{called} must be a boolean mask or row numbers, not {rows.dtype} {rows.shape}")
    outside = rows[(rows < 0) | (rows >= n_rows)]
    if len(outside):
        raise ValueError(f"{called}: row {outside[0]} is not there; rows are numbered 0 to {n_rows - 1}")
    named = np.zeros(n_rows, bool)
    named[rows] = True
    return named


def check_order(X: GivenRows, values: GivenValues, name: str) -> None:
    """Raise ValueError for a pandas series with the index labels of a data frame in another order.

    Its values would be assigned to the wrong rows.

    Parameters
    ----------
    X : rows of any kind
    values : values for the rows, of any kind
    name : str
        Name of the values in messages.
    """
    index, other = getattr(X, "index", None), getattr(values, "index", None)
    if not (hasattr(X, "iloc") and hasattr(values, "iloc")) or index is None or other is None:
        return
    if is_dask_collection(index) != is_dask_collection(other):
        lazy, plain = (name, "X") if is_dask_collection(other) else ("X", name)
        raise TypeError(
            f"{lazy} is a Dask frame or series and {plain} is one of pandas, whose rows cannot be matched; make both "
            f"the same: {plain} = dask.dataframe.from_pandas({plain}, npartitions={lazy}.npartitions), or "
            f"{lazy}.compute()"
        )
    if index is other or len(index) != len(other) or index.equals(other):
        return
    # only equal sets of labels identify rows; different ones are default row numbers
    counts = index.value_counts()
    if (
        not index.isin(other).all()
        or (counts.to_numpy() != other.value_counts().reindex(counts.index).to_numpy()).any()
    ):
        return
    place = int(np.argmax(np.asarray(index != other)))
    align = f"{name} = {name}.loc[X.index]" if index.is_unique else f"X, {name} = X.sort_index(), {name}.sort_index()"
    raise ValueError(
        f"{name} has the labels of X in another order: row {place} of X has the label {spoken(index[place])}, row "
        f"{place} of {name} the label {spoken(other[place])}. Bring both into one order, {align}; or pass "
        f"{name}.to_numpy() where rows go by position"
    )


def check_total_weight(weights: np.ndarray, dtype: DTypeLike = np.float64) -> None:
    """Raise ValueError if all weights are 0, or their sum is so large or small that sums with them over- or underflow.

    Parameters
    ----------
    weights : ndarray
    dtype : dtype
        dtype of the rows that are multiplied by them.
    """
    with np.errstate(over="ignore"):
        total = float(np.sum(weights))
    if total == 0.0:
        raise ValueError(ALL_WEIGHTLESS)
    if np.dtype(dtype) == np.float32:
        # the range of float32 is 1e-38 to 3e38: 1e30 allows products with two features of up to 1e4 each
        least, most, lost = 1e-30, 1e30, "products with rows in single precision"
    else:
        # sums of squared weights, and products of two sums, must be in the range of float64, up to about 1e308
        least, most, lost = 1e-150, 1e150, "squares"
    if not least <= total <= most:
        raise ValueError(
            f"sample_weight sums to {total:g}; sums must lie between {least:g} and {most:g}, beyond which their {lost} "
            "are lost: multiply all weights by one factor"
        )
