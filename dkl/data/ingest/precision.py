"""Which number columns need double precision: told by their whole numbers and by a sample of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dkl.protocols.sampling import shuffle_keys

EXACT = 2**53
"""Float64 holds every whole number up to this one."""
EXACT_FLOAT32 = 2**24
SAMPLE_ROWS = 256
WHOLE = "float32 rounds whole numbers beyond 16,777,216"
CLOSE = "float32 would merge values that differ little for their size"

_SEED = 0
# Float32 may make so many of a hundred different values equal before it counts as a loss: as 256 rows show it, when
# the values of a column spread over fewer than some 2,500 neighbouring float32 numbers.
_MERGED_PERCENT = 5
# Fewer rows than these may hold neighbouring values by chance.
_ENOUGH_ROWS = 20
# Values that agree in so many binary digits differ by the rounding of float64 arithmetic (0.1 + 0.2 and 0.3) alone.
_DIGITS = 46


@dataclass(frozen=True, eq=False)
class NumberSample:
    """The numbers in the same few rows of every column: the rows whose numbers have the smallest hashes.

    Which rows these are depends on their numbers alone, so samples of pieces of a table merge to that of the whole
    table, however it was cut and in whatever order its pieces are merged.

    Parameters
    ----------
    keys : ndarray of shape (k,), uint64
        The hashes, ascending; k is at most `SAMPLE_ROWS`.
    values : ndarray of shape (k, n_columns), float64
        NaN where a value is missing, and in columns that hold no numbers.
    """

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def rows_of(cls, first_row: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(keys, positions) of the rows that a sample of rows `first_row` to ``first_row + n_rows`` holds."""
        # By the number of the row: every column is sampled in the same rows.
        keys = shuffle_keys(np.arange(first_row, first_row + n_rows), _SEED)
        if n_rows > SAMPLE_ROWS:
            positions = np.argpartition(keys, SAMPLE_ROWS)[:SAMPLE_ROWS]
            positions = positions[np.argsort(keys[positions])]
        else:
            positions = np.argsort(keys)
        return keys[positions], positions

    def merge(self, other: NumberSample) -> NumberSample:
        """The sample of both stretches of rows."""
        if len(self.keys) == SAMPLE_ROWS and not (other.keys < self.keys[-1]).any():
            return self
        keys = np.concatenate([self.keys, other.keys])
        smallest = np.argsort(keys)[:SAMPLE_ROWS]
        return NumberSample(keys[smallest], np.concatenate([self.values, other.values])[smallest])


def why_double(sampled: np.ndarray, *, rounds_whole_numbers: bool) -> str:
    """Why float32 cannot hold a column, in words; an empty text where it can.

    Whole numbers may be identities, codes or counts of seconds, of which neighbours differ: float32 must hold every one
    of them exactly. Fractions are measurements, which float32 rounds by one part in 16 million at most. That is a loss
    where all of them lie far from zero and close together: prices near 1e9 that differ by cents become equal. A sample
    of rows shows it without regard to a few rows that lie elsewhere, such as a 0 for "unknown", which would hide it
    from the standard deviation and from the range.

    Parameters
    ----------
    sampled : ndarray of shape (k,), float64
        Values of the column in some rows; NaN where missing.
    rounds_whole_numbers : bool
        The column holds different values, all of them whole, and float32 changes some of them.
    """
    if rounds_whole_numbers:
        return WHOLE
    there = sampled[~np.isnan(sampled)]
    # Values that differ in the last digits of float64 alone count as equal: they differ by the rounding of sums.
    mantissas, exponents = np.frexp(there)
    different = len(np.unique(np.ldexp(np.rint(np.ldexp(mantissas, _DIGITS)), exponents - _DIGITS)))
    with np.errstate(over="ignore"):
        different_float32 = len(np.unique(there.astype(np.float32)))
    return CLOSE if 100 * (different - different_float32) > _MERGED_PERCENT * different else ""


def stored_as(
    X: np.ndarray | sparse.csr_array, dtype: np.dtype, *, first_row: int, names: Sequence[str] | None
) -> np.ndarray | sparse.csr_array:
    """Rows in the dtype of the store that they join.

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
        The dtype cannot hold a value: no whole number in an integer type, or a number beyond its range; in float32 a
        whole number that it would round, or numbers that it would merge. The row and the column are named.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = X.astype(dtype, copy=False)
    # A wider type holds every value of a narrower one.
    if np.can_cast(X.dtype, dtype):
        return narrow
    is_sparse = sparse.issparse(X)
    parts: tuple[Any, Any] = (X.data, narrow.data) if is_sparse else (X, narrow)  # type: ignore[assignment]
    given, rounded = parts
    changed = rounded.astype(given.dtype) != given
    if dtype.kind == "f":
        # Fractions may be rounded; whole numbers may not, unless float64 itself has rounded them already.
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
    """Raise the error for a value that the rows of a store cannot hold."""
    named = "" if names is None else f" (column {names[column]!r})"
    raise ValueError(
        f"X[{row}, {column}]{named} is {value!s}, and the rows of the store are {dtype}, which would change it or take "
        f"its neighbours for one; write all rows anew in a type that holds them, or pass {dtype} rows if the rounding "
        "does no harm"
    )
