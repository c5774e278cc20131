"""What values may be in X, y and weights; each refusal names the row, the column and the remedy."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.data.given import GivenRows, GivenValues
from dkl.data.soundness import check_sound, check_structure, check_unmasked

# Float64 has 53 binary digits: it holds every whole number up to this one, and not the next.
_EXACT = 2**53
_TOO_LARGE = "integers beyond 2**53 are not exact in float64: pass ids as strings in a data frame, or leave them out"
ALL_WEIGHTLESS = "sample_weight is zero for all rows, and rows of weight 0 are left out; at least one must count"


def stored_dtype(dtype: DTypeLike, what: str = "X") -> np.dtype:
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
    # Kernels compute with 0 and 1; a boolean in memory is a byte already.
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "fiu":
        raise TypeError(
            f"{what} has dtype {dtype}; expected real numbers. Encode strings and dates first, or pass a data frame, "
            "whose string columns are encoded one-hot"
        )
    return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")


def whole_number(value: object, name: str, least: int = 0) -> int:
    """The argument `name` as an int, numpy's whole numbers among them.

    Raises
    ------
    ValueError
        It is below `least`, or beyond 64 bits.
    TypeError
        It is no whole number; a truth value is none.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {shown_value(value)}; expected a whole number of at least {least}")
    if not least <= int(value) < 2**63:
        raise ValueError(f"{name} is {value}; expected a whole number of at least {least}, of at most 64 bits")
    return int(value)


def plain_array(values: GivenValues, name: str) -> np.ndarray:
    """`values` as an array of plain values; what can be none is refused in words, as argument `name`.

    Raises
    ------
    ValueError
        Rows of different lengths, or no sequence at all.
    TypeError
        A sparse matrix, or an array whose values have fields.
    """
    check_unmasked(values, name)
    if sparse.issparse(values):
        raise TypeError(
            f"{name} is a sparse matrix of shape {values.shape}; expected an array: {name}.toarray(), and .ravel() for "
            "one value a row"
        )
    try:
        # NumPy says "inhomogeneous shape" of ragged lists, which tells only those who know it.
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is ragged, its rows have different lengths: {error}") from error
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
    """`X` as a C-contiguous array or as csr_array with sorted indices and no duplicates, in a dtype that is kept.

    An array that is so already is not copied.

    Raises
    ------
    ValueError
        Not two-dimensional, no columns, or complex.
    TypeError
        Not numbers.
    """
    # Before anything follows an index: a damaged sparse matrix would have foreign memory read.
    check_sound(X)
    if not sparse.issparse(X):
        dense = plain_array(X, "X")
        _check_two_dimensional(dense)
        if dense.dtype == object:
            dense = _objects_as_numbers(dense, "X")
        return np.ascontiguousarray(dense, dtype=stored_dtype(dense.dtype))
    _check_two_dimensional(X)
    if X.shape[1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"X has {X.shape[1]:,} columns; at most {np.iinfo(np.int32).max:,} are numbered. Hash them to fewer, as "
            "sklearn.feature_extraction.FeatureHasher does"
        )
    # Stores and kernels take one format: int32 columns, sorted, none of them twice.
    rows = sparse.csr_array(X).astype(stored_dtype(X.dtype), copy=False)
    if rows.indices.dtype != np.int32:
        rows = sparse.csr_array((rows.data, rows.indices.astype(np.int32), rows.indptr), shape=rows.shape)
    if X.format not in ("csr", "csc", "bsr", "coo"):
        # It is made of lists or of a dictionary, whose indices SciPy takes as they are.
        check_structure(rows)
    if len(rows.data) > rows.nnz:
        # Entries behind the last row count for nothing, and may hold anything.
        parts = rows.data[: rows.nnz], rows.indices[: rows.nnz], rows.indptr
        rows = sparse.csr_array(parts, shape=rows.shape)
    if not rows.has_canonical_format:
        # A copy, since the entries are put in order in place, and these may still be the user's own arrays.
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _check_two_dimensional(X: GivenRows) -> None:
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
    """The message where there is nothing to learn from or to score."""
    return f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required: X has no rows"


def _objects_as_numbers(values: np.ndarray, name: str, first_row: int = 0) -> np.ndarray:
    """Python objects as float64; the first that is no number, or that float64 cannot hold, is named with its place."""
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
    # Large floats are measurements, which float64 rounds as they were rounded before; large whole numbers are ids.
    for place in map(tuple, np.argwhere(np.abs(numbers) > _EXACT)):
        value = values[place]
        if isinstance(value, Integral):
            raise ValueError(f"{named_place(name, place, first_row)} is {shown_value(value)}; {_TOO_LARGE}")
    return numbers


def named_place(name: str, place: tuple[int, ...], first_row: int = 0) -> str:
    """The place of a value as messages name it, ``X[17, 2]``, the first row having the number `first_row`."""
    return f"{name}[{', '.join(str(int(p)) for p in (place[0] + first_row, *place[1:]))}]"


def reads_as_number(value: Any) -> bool:
    """Whether Python makes a float of a value: of a number, or of a text that is one."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def shown_value(value: object) -> str:
    """A value of the user's as messages show it: as Python writes it, cut where it is long."""
    return reprlib.repr(value.item() if isinstance(value, np.generic) else value)


def check_rows(
    X: np.ndarray | sparse.csr_array,
    *,
    first_row: int = 0,
    names: Sequence[str] | None = None,
    may_lack: bool = False,
    weight: np.ndarray | None = None,
) -> None:
    """Refuse NaN, infinity, and integers that float64 cannot hold, in rows that count.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    first_row : int
        The number of the first row in messages.
    names : sequence of str or None
        Names of the columns.
    may_lack : bool
        NaN is a missing value, which is allowed.
    weight : ndarray of shape (n,) or None
        Rows of weight 0 may hold anything.

    Raises
    ------
    ValueError
        Naming the first such row and its column.
    """
    rows: Any = X
    values: np.ndarray = rows.data if sparse.issparse(X) else rows
    if not len(values):
        return
    if values.dtype.kind == "f":
        # A sum is fifty times cheaper than a mask, and is not finite where a value is not. It may overflow where every
        # value is finite: then the mask decides.
        with np.errstate(over="ignore", invalid="ignore"):
            fine = bool(np.isfinite(values.sum(dtype=np.result_type(values, np.float32)))) or bool(_fine(values).all())
    else:
        fine = values.dtype.itemsize < 8 or bool(_fine(values).all())
    if fine:
        return
    # The first wrong value in the order of rows, counted over all values, or over the stored entries of sparse rows.
    wrong = ~_fine(values.reshape(-1))
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


def _fine(values: np.ndarray) -> np.ndarray:
    """Which values rows may hold: finite floats, whole numbers that float64 holds exactly."""
    if values.dtype.kind == "f":
        return np.isfinite(values)
    small = values <= _EXACT
    return small if values.dtype.kind == "u" else small & (values >= -_EXACT)


def spoken(value: object) -> str:
    """A value that is not allowed, as messages call it."""
    return "NaN" if value != value else str(value)


def spoken_names(names: Sequence[str], most: int = 12) -> str:
    """Names of columns as messages list them, cut after the first few."""
    shown = ", ".join(repr(name) for name in names[:most])
    return f"[{shown}]" if len(names) <= most else f"[{shown}, ... ({len(names)} in all)]"


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """The end of a message that nothing has this name: the name that is meant, where one is nearly the same."""
    known = {_bare(each): str(each) for each in names}
    near = get_close_matches(_bare(name), known, n=1, cutoff=0.7)
    return f"; did you mean '{known[near[0]]}'?" if near else ""


def _bare(name: object) -> str:
    """A name as people mix names up: without regard to case, blanks and signs between words."""
    return re.sub(r"[\W_]+", "", str(name)).lower()


def checked_weight(weight: GivenValues, n_rows: int, *, first_row: int = 0) -> np.ndarray | None:
    """Weights as float64 of shape (n,); one number stands for all rows.

    Raises
    ------
    ValueError
        Of another shape, NaN, infinite or negative; the first such row is named.
    TypeError
        No real numbers.
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
    # NaN is not >= 0 either; it is written out for whoever reads this.
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight[{first_row + row}] is {spoken(values[row])}; weights must be finite and not negative"
        )
    return values


def check_order(X: GivenRows, values: GivenValues, name: str) -> None:
    """Refuse a series of pandas whose labels are those of a data frame in another order: its rows are not those of X.

    Parameters
    ----------
    X : rows as given
    values : values of rows as given
    name : str
        What the caller calls the values.

    Raises
    ------
    ValueError
    """
    index, other = getattr(X, "index", None), getattr(values, "index", None)
    if not (hasattr(X, "iloc") and hasattr(values, "iloc")) or index is None or other is None:
        return
    if index is other or len(index) != len(other) or index.equals(other):
        return
    # Labels that both have, each as often, tell the rows apart; others are numbers that nobody has given.
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
    """Raise ValueError where no row counts, or the sum of the weights is so large or small that sums with it are lost.

    Parameters
    ----------
    weights : ndarray
    dtype : dtype
        Of the rows that are multiplied by them.
    """
    with np.errstate(over="ignore"):
        total = float(np.sum(weights))
    if total == 0.0:
        raise ValueError(ALL_WEIGHTLESS)
    if np.dtype(dtype) == np.float32:
        # Float32 ends at 3e38 and 1e-38: 1e30 leaves room for products of two features of up to 1e4 each.
        least, most, lost = 1e-30, 1e30, "products with rows in single precision"
    else:
        # Sums of squared weights, and products of two sums, must be numbers of float64, which end at about 1e308.
        least, most, lost = 1e-150, 1e150, "squares"
    if not least <= total <= most:
        raise ValueError(
            f"sample_weight sums to {total:g}; sums must lie between {least:g} and {most:g}, beyond which their {lost} "
            "are lost: multiply all weights by one factor"
        )
