"""ArraySource: rows in NumPy or CSR arrays in memory, whose blocks are views."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

import dask
import numpy as np
from scipy import sparse

from dkl.data.counts import RowCounts
from dkl.data.given import GivenValues
from dkl.data.sources.rows import BaseRows, RowSource
from dkl.data.store.blocking import block_bounds, memory_block_rows, row_bytes
from dkl.data.store.digests import block_digest
from dkl.protocols.block import Block


class ArraySource(BaseRows):
    """Rows in memory; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    X : ndarray of shape (n, d) or csr_array
    y : ndarray of shape (n,) or (n, t), or None
        int64 class codes or float64 targets.
    weight : ndarray of shape (n,), float64, or None
        Rows of weight 0 are left out.
    n_classes : int or None
    row_id : ndarray of shape (n,), int64, or None
        None numbers the rows from 0.
    taken : ndarray of shape (n,), int64, or None
        The row of X for each row, ascending; None uses each row of X once. `y`, `weight` and `row_id` are of these
        rows.
    given : ndarray of shape (n,), int64, or None
        The position of each row among the rows that a user gave, if X contains other rows; None is `taken`.
    rows_a_block : int or None
        None uses the rule of `dkl.data.store.blocking`.
    """

    stored_nbytes = 0

    def __init__(
        self,
        X: np.ndarray | sparse.csr_array,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        n_classes: int | None = None,
        row_id: np.ndarray | None = None,
        taken: np.ndarray | None = None,
        given: np.ndarray | None = None,
        rows_a_block: int | None = None,
    ) -> None:
        n_rows = X.shape[0] if taken is None else len(taken)
        row_id = np.arange(n_rows, dtype=np.int64) if row_id is None else row_id
        if weight is not None and not weight.all():
            counted = np.flatnonzero(weight)
            taken, given = counted if taken is None else taken[counted], None if given is None else given[counted]
            y, weight, row_id, n_rows = (
                None if y is None else y[counted],
                weight[counted],
                row_id[counted],
                len(counted),
            )
        # X is not copied: the caller must not change these arrays while the source is in use
        self._X, self._y, self._weight, self.row_id = X, y, weight, row_id
        self._taken, self.given, self._n_rows = taken, taken if given is None else given, n_rows
        self._n_classes = n_classes
        self.rows_a_block = rows_a_block or memory_block_rows(row_bytes(X, taken), n_rows)
        self._bounds = block_bounds(n_rows, self.rows_a_block)
        self.n_blocks = len(self._bounds) - 1
        self.n_columns = X.shape[1]
        self.dtype = np.dtype(X.dtype)
        self.is_sparse = sparse.issparse(X)
        self.has_y = y is not None
        self.has_weight = weight is not None
        self.place = "an array in memory"

    def numbered(self, row_id: np.ndarray) -> ArraySource:
        """The same rows with other row ids: int64, one for each given row."""
        return ArraySource(
            self._X,
            self._y,
            self._weight,
            n_classes=self._n_classes,
            row_id=row_id if self.given is None else row_id[self.given],
            taken=self._taken,
            given=self.given,
            rows_a_block=self.rows_a_block,
        )

    @cached_property
    def counts(self) -> RowCounts:
        return RowCounts.of_blocks(self.blocks_without_x(), self._n_classes)

    @cached_property
    def block_nbytes(self) -> int:
        return max(self.ticket(index).nbytes for index in range(self.n_blocks))

    @property
    def read_nbytes(self) -> int:
        """The bytes of a copy of a block, if not each row of X is used once."""
        return 0 if self._taken is None else self.block_nbytes

    @cached_property
    def fingerprint(self) -> str:
        # includes the shape and the cut: the same rows in other blocks give sums with other bits
        shape = self._n_rows, self.n_columns
        digest = hashlib.sha256(repr((shape, self.dtype.str, self._n_classes, self.rows_a_block)).encode())
        for index in range(self.n_blocks):
            block = self.ticket(index)
            digests = [block_digest(index, values) for values in block.arrays]
            digest.update(repr((block.n_rows, digests)).encode())
        return digest.hexdigest()

    def ticket(self, index: int) -> Block:
        """The rows of block `index`, which are views of the arrays if each row of X is used once."""
        return self._block(index, slice(self._bounds[index], self._bounds[index + 1]))

    def _block(self, index: int, rows: slice | np.ndarray) -> Block:
        y = None if self._y is None else self._y[rows]
        weight = None if self._weight is None else self._weight[rows]
        X = self._X[rows if self._taken is None else self._taken[rows]]
        return Block(index, X, y, weight, self.row_id[rows])

    def reordered(self, order: np.ndarray) -> Iterator[Block]:
        """Blocks of the rows in another order, each copied when it is needed."""
        # rows of a block of the result come from all parts of X, so that this is the only method that copies rows
        for index in range(self.n_blocks):
            yield self._block(index, order[self._bounds[index] : self._bounds[index + 1]])


def positions_among_given(source: RowSource, sample_weight: GivenValues) -> tuple[np.ndarray, int] | None:
    """The positions of a source's rows among the rows that a user gave with weights, and the number of given rows.

    Rows of weight 0 are not in the source, and others may be repeated (`dkl.data.row_sources.counted_rows`). None if no
    row was left out or repeated.
    """
    if sample_weight is None:
        return None
    (weight,) = dask.compute(sample_weight)
    given = source.base.given if isinstance(source.base, ArraySource) else None
    if np.ndim(weight) == 0:
        # one weight for all rows
        return None if given is None else (given, int(given[-1]) + 1)
    weight = np.asarray(weight).ravel()
    return np.flatnonzero(weight) if given is None else given, len(weight)
