"""Decides which columns need float64, by their whole numbers and by a sample of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dkl.protocols.sampling import shuffle_keys

EXACT = 2**53
"""float64 represents every whole number up to this one."""
EXACT_FLOAT32 = 2**24
SAMPLE_ROWS = 256
WHOLE = "float32 rounds whole numbers beyond 16,777,216"
CLOSE = "float32 would merge values that differ little for their size"

_SEED = 0
# Percentage of the distinct values in the sample that float32 may make equal; more need float64. In a sample of 256
# rows it is exceeded if the values of a column spread over fewer than about 2,500 neighbouring float32 numbers.
_MERGED_PERCENT = 5
# Number of rows below which neighbouring values may be chance, so that rows of a store are not checked for them.
_ENOUGH_ROWS = 20
# Values that agree in this many binary digits count as equal: they differ by rounding in float64, as 0.1 + 0.2 and 0.3.
_DIGITS = 46


@dataclass(frozen=True, eq=False)
class NumberSample:
    """The values of all columns in a sample of rows: those whose row numbers have the smallest hashes.

    As the sample depends on row numbers alone, the samples of parts of a table merge to that of the whole table,
    whatever the parts and their order.

    Parameters
    ----------
    keys : ndarray of shape (k,), uint64
        The hashes, ascending; k is at most `SAMPLE_ROWS`.
    values : ndarray of shape (k, n_columns), float64
        NaN for missing values, and in columns without numbers.
    """

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def rows_of(cls, first_row: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(keys, positions) of the sample of the `n_rows` rows from `first_row` on."""
        keys = shuffle_keys(np.arange(first_row, first_row + n_rows), _SEED)
        if n_rows > SAMPLE_ROWS:
            positions = np.argpartition(keys, SAMPLE_ROWS)[:SAMPLE_ROWS]
            positions = positions[np.argsort(keys[positions])]
        else:
            positions = np.argsort(keys)
        return keys[positions], positions

    def merge(self, other: NumberSample) -> NumberSample:
        """The sample of the rows of both."""
        if len(self.keys) == SAMPLE_ROWS and not (other.keys < self.keys[-1]).any():
            return self
        keys = np.concatenate([self.keys, other.keys])
        smallest = np.argsort(keys)[:SAMPLE_ROWS]
        return NumberSample(keys[smallest], np.concatenate([self.values, other.values])[smallest])


def why_double(sampled: np.ndarray, *, rounds_whole_numbers: bool) -> str:
    """The reason why a column needs float64, in words; empty if float32 suffices.

    Whole numbers may be ids, codes or counts of seconds, which float32 must represent exactly. Fractions are
    measurements, which float32 rounds by at most one part in 16 million; that is a loss if all are far from zero and
    close together: prices near 1e9 that differ by cents become equal. Counting equal values in a sample detects this
    also if a few values are elsewhere, such as a 0 for "unknown", unlike the range or the standard deviation.

    Parameters
    ----------
    sampled : ndarray of shape (k,), float64
        Sampled values of the column; NaN for missing ones.
    rounds_whole_numbers : bool
        Whether all values of the column are whole numbers, not all equal, and float32 changes some of them.
    """
    if rounds_whole_numbers:
        return WHOLE
    there = sampled[~np.isnan(sampled)]
    # values that differ only in the last digits of float64 count as equal
    mantissas, exponents = np.frexp(there)
    different = len(np.unique(np.ldexp(np.rint(np.ldexp(mantissas, _DIGITS)), exponents - _DIGITS)))
    with np.errstate(over="ignore"):
        different_float32 = len(np.unique(there.astype(np.float32)))
    return CLOSE if 100 * (different - different_float32) > _MERGED_PERCENT * different else ""


def stored_as(
    X: np.ndarray | sparse.csr_array, dtype: np.dtype, *, first_row: int, names: Sequence[str] | None
) -> np.ndarray | sparse.csr_array:
    """Rows in the dtype of the store to which they are added.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    dtype : dtype
    first_row : int
        The number of the first row in messages.
    names : sequence of str or None
        Names of the columns.

    Raises
    ------
    ValueError
        If the dtype cannot represent a value (a fraction as an integer, a number out of range, a whole number that
        float32 rounds), or float32 would make distinct values equal; with row and column.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = X.astype(dtype, copy=False)
    # a wider type represents every value of a narrower one
    if np.can_cast(X.dtype, dtype):
        return narrow
    is_sparse = sparse.issparse(X)
    parts: tuple[Any, Any] = (X.data, narrow.data) if is_sparse else (X, narrow)  # type: ignore[assignment]
    given, rounded = parts
    changed = rounded.astype(given.dtype) != given
    if dtype.kind == "f":
        # fractions may be rounded, but not whole numbers, unless they are so large that float64 has rounded them
        changed &= np.isinf(rounded) | ((given == np.rint(given)) & (np.abs(given) <= EXACT))
    if changed.any():
        place = np.flatnonzero(changed)[0]
        row, column = (part[place] for part in X.nonzero()) if is_sparse else divmod(place, X.shape[1])
        _refuse(int(row) + first_row, int(column), given.reshape(-1)[place], dtype, names)
    if dtype.kind == "f" and not is_sparse and len(given) >= _ENOUGH_ROWS:
        for column in range(given.shape[1]):
            if why_double(given[:SAMPLE_ROWS, column].astype(np.float64), rounds_whole_numbers=False):
                _refuse(first_row, column, given[0, column], dtype, names)
    return narrow


def _refuse(row: int, column: int, value: np.generic, dtype: np.dtype, names: Sequence[str] | None) -> None:
    """Raise the error for a value that the dtype of a store cannot represent."""
    named = "" if names is None else f" (column {names[column]!r})"
    raise ValueError(
        f"X[{row}, {column}]{named} is {value!s}, and the rows of the store are {dtype}, which would change it or take "
        f"its neighbours for one; write all rows anew in a type that holds them, or pass {dtype} rows if the rounding "
        "does no harm"
    )
