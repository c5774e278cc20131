"""The rule by which rows are cut into blocks of a certain number of bytes; it depends only on the data's shape."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.data.given import GivenRows

MAX_BLOCK_ROWS = 65_536
TARGET_BLOCK_BYTES = 32 * 2**20
# Rows in memory are cut into about `MEMORY_BLOCKS` blocks of at least this size, so that few rows keep all cores busy;
# as reading them costs nothing, blocks may be smaller than those of stores.
LEAST_BLOCK_BYTES = 8 * 2**20
MEMORY_BLOCKS = 8


def block_rows(row_bytes: float, n_rows: int | None = None, target: int = TARGET_BLOCK_BYTES) -> int:
    """Rows of each block but the last.

    A block has about `target` bytes of X and at most 65,536 rows; if the number of rows is known, all blocks have about
    the same size.

    Parameters
    ----------
    row_bytes : float
        Bytes of one row of X (the mean for sparse rows).
    n_rows : int or None
        None if it is not known yet.
    target : int
        Bytes of a block's X.

    Examples
    --------
    >>> block_rows(4 * 784)
    10699
    >>> block_rows(4 * 784, 12_000)
    6000
    """
    # with a small last block, one worker would finish long before the others in every pass
    most = int(np.clip(target // max(row_bytes, 1), 1, MAX_BLOCK_ROWS))
    if n_rows is None:
        return most
    return max(1, math.ceil(n_rows / max(1, math.ceil(n_rows / most))))


def memory_block_rows(row_bytes: float, n_rows: int) -> int:
    """Rows of each block but the last, for rows in memory: 8 blocks of 8 to 32 MiB, or more of 32 MiB."""
    target = np.clip(n_rows * row_bytes / MEMORY_BLOCKS, LEAST_BLOCK_BYTES, TARGET_BLOCK_BYTES)
    return block_rows(row_bytes, n_rows, int(target))


def row_bytes(X: GivenRows, rows: np.ndarray | None = None) -> float:
    """Bytes of one row of `X`: of a dense one (NumPy, Dask, zarr), or the mean of CSR rows (values, columns, pointer).

    `rows` are the numbers of the used rows, possibly repeated; None if each is used once.
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
