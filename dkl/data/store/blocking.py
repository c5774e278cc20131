"""How rows are cut into blocks: a rule on bytes that depends on the data's shape alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.data.given import GivenRows

MAX_BLOCK_ROWS = 65_536
TARGET_BLOCK_BYTES = 32 * 2**20
# Rows in memory cost nothing to read: smaller blocks, so that few rows still keep all cores busy.
LEAST_BLOCK_BYTES = 8 * 2**20
_MEMORY_BLOCKS = 8


def block_rows(row_bytes: float, n_rows: int | None = None, target: int = TARGET_BLOCK_BYTES) -> int:
    """Rows of each block but the last.

    About `target` bytes of X (32 MiB), at most 65,536 rows, at least one; blocks are evened out when the number of rows
    is known.

    Parameters
    ----------
    row_bytes : float
        Bytes of one row of X (the mean, for sparse rows).
    n_rows : int or None
        None while rows are still streaming in.
    target : int
        Bytes of a block's X.

    Examples
    --------
    >>> block_rows(4 * 784)
    10699
    >>> block_rows(4 * 784, 12_000)
    6000
    """
    # Even blocks: with a last block of few rows, one worker would be done long before the others in every pass.
    most = int(np.clip(target // max(row_bytes, 1), 1, MAX_BLOCK_ROWS))
    if n_rows is None:
        return most
    return max(1, math.ceil(n_rows / max(1, math.ceil(n_rows / most))))


def memory_block_rows(row_bytes: float, n_rows: int) -> int:
    """Rows of each block but the last of rows in memory: 8 blocks of 8 to 32 MiB, and more of many rows."""
    target = np.clip(n_rows * row_bytes / _MEMORY_BLOCKS, LEAST_BLOCK_BYTES, TARGET_BLOCK_BYTES)
    return block_rows(row_bytes, n_rows, int(target))


def row_bytes(X: GivenRows, rows: np.ndarray | None = None) -> float:
    """Bytes of one row of `X`: dense (NumPy, Dask, zarr) or the mean of sparse rows (values, columns, pointer).

    `rows` are the numbers of those that count, where not all do once.
    """
    if sparse.issparse(X):
        if rows is None:
            return sparse_row_bytes(X.nnz, X.shape[0], X.dtype)
        return sparse_row_bytes(int(np.diff(X.indptr)[rows].sum()), len(rows), X.dtype)
    return X.shape[1] * np.dtype(X.dtype).itemsize


def sparse_row_bytes(nnz: int, n_rows: int, dtype: DTypeLike) -> float:
    """The mean bytes of a CSR row: its values, its int32 columns and one pointer."""
    return nnz / max(n_rows, 1) * (np.dtype(dtype).itemsize + 4) + 8


def block_bounds(n_rows: int, rows_a_block: int) -> np.ndarray:
    """The first row of each block and, last, the number of rows: (n_blocks + 1,) int64."""
    n_blocks = max(1, math.ceil(n_rows / rows_a_block))
    return np.minimum(np.arange(n_blocks + 1, dtype=np.int64) * rows_a_block, n_rows)
