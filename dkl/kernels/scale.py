"""Applying a fitted Scaler to rows: dense rows stay dense, sparse rows stay sparse where that has a meaning."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse, special

from dkl.features.scaling import Scaler
from dkl.protocols.arrays import Rows

__all__ = ["scale_rows"]

# rows of a sparse block are written out (quantile scaling has no sparse form) up to this many columns
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
        Sparse rows stay sparse for scalings that keep zeros; they are written out if a centre must be subtracted or
        columns go through their quantiles.

    Raises
    ------
    ValueError
        If X has another number of columns than the scaler, or has to be written out and d is above 4,096.
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
    center, factors = linear_part(scaler)
    # A centre makes something other than 0 of entries that are not stored, so that rows would not stay sparse.
    if center.any():
        return scale_dense(write_out(X, f"scaling '{scaler.kind}'"), scaler, dtype)
    return scale_columns(X, factors, dtype)


def check_columns(X: Rows, scaler: Scaler | None) -> None:
    """Raise ValueError unless rows and scaler have the same columns."""
    if scaler is not None and X.shape[1] != scaler.n_columns:
        raise ValueError(f"rows have {X.shape[1]} columns, but the scaler was fitted on {scaler.n_columns}")


def linear_part(scaler: Scaler) -> tuple[np.ndarray, np.ndarray]:
    """(centre, factor) of a scaling that is ``(x - centre) * factor``: every kind but "quantile"."""
    if scaler.kind == "unit":
        # All rows divided by one number, the largest norm of a training row.
        center, factor = np.zeros(scaler.n_columns), np.full(scaler.n_columns, 1.0 / scaler.scale[0])
    else:
        center, factor = scaler.center, 1.0 / scaler.scale
    return np.where(scaler.passthrough, 0.0, center), np.where(scaler.passthrough, 1.0, factor)


def scale_dense(X: np.ndarray, scaler: Scaler | None, dtype: np.dtype, *, factor: float = 1.0) -> np.ndarray:
    """Scaled dense rows times `factor`, in `dtype` and C order. Too large numbers become infinite, silently."""
    with np.errstate(over="ignore", invalid="ignore"):
        if scaler is None:
            rows = np.ascontiguousarray(X, dtype=dtype)
            return rows if factor == 1.0 else rows * dtype.type(factor)
        if scaler.kind == "quantile":
            rows = np.ascontiguousarray(X, dtype=np.float64)
            out = np.empty(rows.shape, dtype)
            if scaler.knots is None:
                raise ValueError("a 'quantile' scaler needs knots, the empirical quantiles of each column; it has none")
            knots = np.ascontiguousarray(scaler.knots.T, dtype=np.float64)
            _quantile_scores(rows, knots, normal_scores(knots.shape[1]), scaler.passthrough, factor, out)
            return out
        center, factors = linear_part(scaler)
        out = np.empty(X.shape, dtype)
        # The compiled loop takes native numbers of four and eight bytes, and whole ones; others, such as half
        # precision, are converted first.
        known = X.dtype.isnative and (X.dtype.kind != "f" or X.dtype.itemsize in (4, 8))
        _scale_linearly(X if known else X.astype(np.float64), center, factors * factor, out)
        return out


@numba.njit(nogil=True, cache=True)
def _scale_linearly(X: np.ndarray, center: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """out = (X - center) * factors in float64, without a temporary."""
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            out[i, j] = (np.float64(X[i, j]) - center[j]) * factors[j]


def is_written_out(scaler: Scaler | None) -> bool:
    """Whether sparse rows must be written out before this scaling (it has no linear form)."""
    return scaler is not None and scaler.kind == "quantile"


def write_out(X: sparse.csr_array, purpose: str) -> np.ndarray:
    """Sparse rows as dense ones, unless they are too wide for that."""
    if X.shape[1] > DENSIFY_COLUMNS:
        raise ValueError(
            f"{purpose} needs every column of a row, and these sparse rows have {X.shape[1]} columns (at most "
            f"{DENSIFY_COLUMNS} are written out); use scaling='unit' or scaling=None for sparse rows"
        )
    return X.toarray()


def scale_columns(
    X: sparse.csr_array, factors: np.ndarray | None, dtype: np.dtype, rows: slice | None = None
) -> sparse.csr_array:
    """Sparse rows (some of them: to slice X first takes longer) with each column times its factor, in `dtype`."""
    start, stop = (0, X.shape[0]) if rows is None else (rows.start, rows.stop)
    # Entries of neighbouring rows are neighbours in memory, so that a span of rows is a slice of the entries.
    first, last = X.indptr[start], X.indptr[stop]
    data, indices = X.data[first:last], X.indices[first:last]
    with np.errstate(over="ignore"):
        data = data.astype(dtype) if factors is None else (data * factors[indices]).astype(dtype)
    return sparse.csr_array((data, indices, X.indptr[start : stop + 1] - first), shape=(stop - start, X.shape[1]))


@cache
def normal_scores(n_knots: int) -> np.ndarray:
    """The standard normal quantile at the level of each of so many knots, clipped at +-3; not to be written to."""
    return np.clip(special.ndtri(np.linspace(0.0, 1.0, n_knots)), -3.0, 3.0)


@numba.njit(nogil=True, cache=True)
def _quantile_scores(
    X: np.ndarray, knots: np.ndarray, scores: np.ndarray, passthrough: np.ndarray, factor: float, out: np.ndarray
) -> None:
    """Interpolate each number between the scores of its neighbouring knots; the mean score where knots are tied."""
    n = X.shape[0]
    # Column by column: each has knots of its own, which stay in the cache while all its numbers go through them.
    x, scaled = np.empty(n), np.empty(n)
    below, up_to = np.empty(n, np.int32), np.empty(n, np.int32)
    for j in range(X.shape[1]):
        _column(X, j, x)
        if passthrough[j]:
            scaled[:] = x
        else:
            _count(knots[j], x, False, below)
            if _any_tied(knots[j], x, below):
                _count(knots[j], x, True, up_to)
            else:
                up_to[:] = below
            _interpolate(x, knots[j], scores, below, up_to, scaled)
        for i in range(n):
            out[i, j] = scaled[i] * factor


@numba.njit(nogil=True, cache=True)
def _column(X: np.ndarray, j: int, x: np.ndarray) -> None:
    """Copy column j, whose numbers lie far apart in memory, to x."""
    for i in range(len(x)):
        x[i] = X[i, j]


# By halving, one step for all numbers of a column after the other: vector code, several times as fast as a search each.
@numba.njit(nogil=True, cache=True)
def _count(knots: np.ndarray, x: np.ndarray, with_tied: bool, count: np.ndarray) -> None:
    """How many knots lie below each number; with those at it, if asked for."""
    count[:] = 0
    length = np.int32(len(knots))
    while length > 1:
        half = length // np.int32(2)
        _skip(knots, x, half, with_tied, count)
        length -= half
    _skip(knots, x, np.int32(1), with_tied, count)


@numba.njit(nogil=True, cache=True)
def _skip(knots: np.ndarray, x: np.ndarray, half: np.int32, with_tied: bool, count: np.ndarray) -> None:
    """Skip `half` knots for every number that lies above the last of these: one step of all bisections."""
    # two loops: a choice inside one would keep it from vector code
    if with_tied:
        for i in range(len(x)):
            count[i] += half * (knots[count[i] + half - 1] <= x[i])
    else:
        for i in range(len(x)):
            count[i] += half * (knots[count[i] + half - 1] < x[i])


@numba.njit(nogil=True, cache=True)
def _any_tied(knots: np.ndarray, x: np.ndarray, below: np.ndarray) -> bool:
    """Whether any number equals a knot: for most columns none does, and the second count can be left out."""
    any_equal, last = False, len(knots) - 1
    for i in range(len(x)):
        any_equal |= knots[min(below[i], last)] == x[i]
    return any_equal


@numba.njit(nogil=True, cache=True)
def _interpolate(
    x: np.ndarray, knots: np.ndarray, scores: np.ndarray, below: np.ndarray, up_to: np.ndarray, out: np.ndarray
) -> None:
    """The score of each number, given how many knots lie below it and how many up to it."""
    last = len(knots) - 1
    for i in range(len(x)):
        low, high = max(below[i] - 1, 0), min(below[i], last)
        gap = knots[high] - knots[low]
        share = (x[i] - knots[low]) / (gap if gap > 0.0 else 1.0)
        score = scores[low] + share * (scores[high] - scores[low])
        score = 0.5 * (scores[high] + scores[max(up_to[i] - 1, 0)]) if up_to[i] > below[i] else score
        score = scores[0] if up_to[i] == 0 else score
        out[i] = scores[last] if below[i] > last else score
