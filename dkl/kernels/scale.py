"""Applies a fitted Scaler to rows; sparse rows stay sparse for scalings that keep zeros."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse, special

from dkl.errors import ColumnError
from dkl.features.scaling import Scaler
from dkl.kernels.compiled import njit
from dkl.process import TwoForms
from dkl.protocols.arrays import Rows

__all__ = ["scale_rows"]

# Largest number of columns of sparse rows that are converted to dense ones, for scalings that do not keep zeros.
DENSIFY_COLUMNS = 4096


def scale_rows(X: Rows, scaler: Scaler | None, dtype: DTypeLike = "float32") -> Rows:
    """Rows scaled by `scaler`, computed in float64 and returned in `dtype`.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), any real dtype
    scaler : Scaler or None
        None only changes the dtype.
    dtype : {"float32", "float64"}

    Returns
    -------
    ndarray or csr_array of shape (n, d)
        Sparse rows stay sparse for scalings that keep zeros; they become dense if a centre must be subtracted, or for
        quantile scaling.

    Raises
    ------
    ValueError
        If X has another number of columns than the scaler, or would become dense and d is above 4,096.
    """
    check_columns(X, scaler)
    dtype = np.dtype(dtype)
    if not sparse.issparse(X):
        return scale_dense(np.asarray(X), scaler, dtype)
    X = sparse.csr_array(X)
    if scaler is None:
        return scale_columns(X, None, dtype)
    if is_written_out(scaler):
        return scale_dense(write_out(X, "scaling by quantiles"), scaler, dtype)
    if scaler.kind == "counts":
        return scale_sparse_counts(X, scaler, dtype)
    center, factors = linear_part(scaler)
    # subtracting a centre makes zeros nonzero
    if center.any():
        return scale_dense(write_out(X, f"scaling '{scaler.kind}'"), scaler, dtype)
    return scale_columns(X, factors, dtype)


def check_columns(X: Rows, scaler: Scaler | None) -> None:
    """Raise ValueError unless rows and scaler have the same number of columns."""
    if scaler is not None and X.shape[1] != scaler.n_columns:
        raise ValueError(f"rows have {X.shape[1]} columns, but the scaler was fitted on {scaler.n_columns}")


def linear_part(scaler: Scaler) -> tuple[np.ndarray, np.ndarray]:
    """(centre, factor) of a linear scaling ``(x - centre) * factor``; ValueError for other kinds."""
    if not scaler.is_linear:
        raise ValueError(f"scaling {scaler.kind!r} is no linear function of a column")
    if scaler.kind == "unit":
        # all rows are divided by the largest norm of a training row
        center, factor = np.zeros(scaler.n_columns), np.full(scaler.n_columns, 1.0 / scaler.scale[0])
    else:
        center, factor = scaler.center, 1.0 / scaler.scale
    return np.where(scaler.passthrough, 0.0, center), np.where(scaler.passthrough, 1.0, factor)


def scale_dense(X: np.ndarray, scaler: Scaler | None, dtype: np.dtype, *, factor: float = 1.0) -> np.ndarray:
    """Scaled dense rows times `factor`, in `dtype` and C order; numbers beyond `dtype` become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if scaler is None:
            rows = np.ascontiguousarray(X, dtype=dtype)
            return rows if factor == 1.0 else rows * dtype.type(factor)
        if scaler.kind == "quantile":
            knots, out = quantile_knots(scaler), np.empty(X.shape, dtype)
            scores = normal_scores(len(knots))
            for j, passes in enumerate(scaler.passthrough):
                x = X[:, j].astype(np.float64)
                out[:, j] = factor * (x if passes else _scores_of_column(x, knots[:, j], scores))
            return out
        if scaler.kind == "counts":
            return scale_dense_counts(X, scaler, dtype, factor=factor)
        center, factors = linear_part(scaler)
        out = np.empty(X.shape, dtype)
        # the compiled loop supports native integers, float32 and float64; others, such as float16, are converted
        is_supported = X.dtype.isnative and (X.dtype.kind != "f" or X.dtype.itemsize in (4, 8))
        _LINEAR(X.size, X if is_supported else X.astype(np.float64), center, factors * factor, out)
        return out


def quantile_knots(scaler: Scaler) -> np.ndarray:
    """The empirical quantiles of each column, (Q, d) float64, of a scaler of the kind "quantile"."""
    if scaler.knots is None:
        raise ValueError("a 'quantile' scaler needs knots, the empirical quantiles of each column; it has none")
    return np.asarray(scaler.knots, dtype=np.float64)


def scale_dense_counts(X: np.ndarray, scaler: Scaler, dtype: np.dtype, *, factor: float = 1.0) -> np.ndarray:
    """log(1 + x) of counts, scaled to rows of unit length, times `factor`; passthrough columns are only multiplied."""
    rows = np.array(X, dtype=np.float64, order="C")
    counted = ~scaler.passthrough
    own = rows[:, counted]
    if (own < 0.0).any():
        row, column = np.argwhere(own < 0.0)[0]
        raise negative_count(int(np.flatnonzero(counted)[column]), own[row, column])
    own = np.log1p(own)
    rows[:, counted] = own / _lengths(np.square(own).sum(axis=1))[:, None]
    return np.ascontiguousarray(rows * factor, dtype=dtype)


def scale_sparse_counts(
    X: sparse.csr_array, scaler: Scaler, dtype: np.dtype, rows: slice | None = None, *, factor: float = 1.0
) -> sparse.csr_array:
    """`scale_dense_counts` for sparse rows, or for the slice `rows` of them; zeros stay zeros."""
    start, stop = (0, X.shape[0]) if rows is None else (rows.start, rows.stop)
    first, last = X.indptr[start], X.indptr[stop]
    data, indices = X.data[first:last].astype(np.float64), X.indices[first:last]
    indptr = X.indptr[start : stop + 1] - first
    counted = ~scaler.passthrough[indices]
    if (data[counted] < 0.0).any():
        place = int(np.flatnonzero(counted & (data < 0.0))[0])
        raise negative_count(int(indices[place]), data[place])
    row_of = np.repeat(np.arange(stop - start), np.diff(indptr))
    logs = np.log1p(np.where(counted, data, 0.0))
    lengths = _lengths(np.bincount(row_of, np.square(logs), minlength=stop - start))
    data = np.where(counted, logs / lengths[row_of], data) * factor
    return sparse.csr_array((data.astype(dtype), indices, indptr), shape=(stop - start, X.shape[1]))


def _lengths(squares: np.ndarray) -> np.ndarray:
    """Lengths of rows from their sums of squares; 1 for rows of zeros, to avoid a division by 0."""
    return np.where(squares > 0.0, np.sqrt(squares), 1.0)


def negative_count(column: int, value: float) -> ColumnError:
    """The error for a negative number with scaling='counts'."""
    return ColumnError(
        f"column {column} holds {value:g}: scaling='counts' takes the logarithms log(1 + x) of counts, which are not "
        "negative; use scaling=None, 'unit' or 'standard' for such rows",
        column,
    )


@njit(nogil=True)
def _scale_linearly(X: np.ndarray, center: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """out = (X - center) * factors in float64, without a temporary."""
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            out[i, j] = (np.float64(X[i, j]) - center[j]) * factors[j]


@np.errstate(over="ignore", invalid="ignore")
def _scale_few_linearly(X: np.ndarray, center: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """`_scale_linearly` in NumPy."""
    np.multiply(np.subtract(X, center, dtype=np.float64), factors, out=out, casting="same_kind")


# Size of X, in numbers, from which on the compiled form is used; compiling takes .2 s for each dtype.
_LINEAR = TwoForms(_scale_few_linearly, _scale_linearly, 10_000_000)


def is_written_out(scaler: Scaler | None) -> bool:
    """Whether sparse rows must become dense for this scaling, which changes zeros."""
    return scaler is not None and scaler.kind == "quantile"


def keeps_zeros(scaler: Scaler | None) -> bool:
    """Whether zeros stay zeros, so that scaled sparse rows are as sparse as before."""
    if scaler is None or scaler.kind == "counts":
        return True
    return scaler.is_linear and not linear_part(scaler)[0].any()


def write_out(X: sparse.csr_array, purpose: str) -> np.ndarray:
    """Sparse rows as dense ones; ValueError for more than `DENSIFY_COLUMNS` columns."""
    if X.shape[1] > DENSIFY_COLUMNS:
        raise ValueError(
            f"{purpose} needs every column of a row, and these sparse rows have {X.shape[1]} columns (at most "
            f"{DENSIFY_COLUMNS} are written out); use scaling='unit' or scaling=None for sparse rows"
        )
    return X.toarray()


def scale_columns(
    X: sparse.csr_array, factors: np.ndarray | None, dtype: np.dtype, rows: slice | None = None
) -> sparse.csr_array:
    """Sparse rows, or the slice `rows` of them, with each column times its factor, in `dtype`.

    This is faster than slicing X first, as the entries of consecutive rows are a slice of all entries.
    """
    start, stop = (0, X.shape[0]) if rows is None else (rows.start, rows.stop)
    first, last = X.indptr[start], X.indptr[stop]
    data, indices = X.data[first:last], X.indices[first:last]
    with np.errstate(over="ignore"):
        data = data.astype(dtype) if factors is None else (data * factors[indices]).astype(dtype)
    return sparse.csr_array((data, indices, X.indptr[start : stop + 1] - first), shape=(stop - start, X.shape[1]))


@cache
def normal_scores(n_knots: int) -> np.ndarray:
    """Standard normal quantiles at `n_knots` equidistant levels from 0 to 1, clipped at +-3; a shared array."""
    return np.clip(special.ndtri(np.linspace(0.0, 1.0, n_knots)), -3.0, 3.0)


def _scores_of_column(x: np.ndarray, knots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Numbers interpolated between the scores of their neighbouring knots; of tied knots the mean score."""
    found = np.interp(x, knots, scores)
    if np.any(knots[1:] == knots[:-1]):
        # `np.interp` takes the last of equal knots, and on the mirrored axis the first
        found = 0.5 * (found + np.interp(-x, -knots[::-1], scores[::-1]))
    return found
