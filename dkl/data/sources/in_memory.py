"""ArraySource: rows that are NumPy or CSR arrays in memory, handed out as views."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy import sparse

from dkl.data.counts import RowCounts
from dkl.data.sources.rows import TicketReader, drop_weightless, nbytes_of, without_x
from dkl.data.store.blocking import block_bounds, memory_block_rows, row_bytes
from dkl.data.store.digests import rows_digest
from dkl.protocols.block import Block


class ArraySource:
    """Rows in memory; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    X : ndarray of shape (n, d) or csr_array
    y : ndarray of shape (n,) or (n, t), or None
        int64 class codes or float64 targets.
    weight : ndarray of shape (n,), float64, or None
    n_classes : int or None
    row_id : ndarray of shape (n,), int64, or None
        None numbers the rows.
    rows_a_block : int or None
        None follows the rule of `dkl.data.store.blocking`.
    """

    stored_nbytes = 0
    blocks_together = 1

    def __init__(
        self,
        X: np.ndarray | sparse.csr_array,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        n_classes: int | None = None,
        row_id: np.ndarray | None = None,
        rows_a_block: int | None = None,
    ) -> None:
        # Not copied: the caller keeps these arrays as they are for as long as the source is in use.
        self._X, self._y, self._weight = X, y, weight
        self.row_id = np.arange(X.shape[0], dtype=np.int64) if row_id is None else row_id
        self._n_classes = n_classes
        self.rows_a_block = rows_a_block or memory_block_rows(row_bytes(X), X.shape[0])
        self._bounds = block_bounds(X.shape[0], self.rows_a_block)
        self.n_blocks = len(self._bounds) - 1
        self.n_columns = X.shape[1]
        self.dtype = np.dtype(X.dtype)
        self.is_sparse = sparse.issparse(X)
        self.has_y = y is not None
        self.has_weight = weight is not None
        self.place = "an array in memory"

    def numbered(self, row_id: np.ndarray) -> ArraySource:
        """The same rows under other numbers, (n,) int64."""
        return ArraySource(
            self._X,
            self._y,
            self._weight,
            n_classes=self._n_classes,
            row_id=row_id,
            rows_a_block=self.rows_a_block,
        )

    @property
    def block_rows(self) -> np.ndarray:
        return self.counts.rows

    @cached_property
    def counts(self) -> RowCounts:
        return RowCounts.of_blocks(self.blocks_without_x(), self._n_classes)

    @property
    def _numbers(self) -> range:
        return range(self.n_blocks)

    @cached_property
    def block_nbytes(self) -> int:
        return max(nbytes_of(self.ticket(i)) for i in self._numbers)

    @property
    def read_nbytes(self) -> int:
        """A filtered copy of a block, where a row has weight 0."""
        return self.block_nbytes if self._weight is not None and not np.all(self._weight) else 0

    @cached_property
    def fingerprint(self) -> str:
        # The shape and the cut are part of it: the same rows in other blocks give sums with other bits.
        digest = hashlib.sha256(repr((self._X.shape, self.dtype.str, self._n_classes, self.rows_a_block)).encode())
        for i in self._numbers:
            digest.update(rows_digest(self.ticket(i)))
        return digest.hexdigest()

    def reader(self) -> TicketReader:
        return TicketReader()

    def ticket(self, index: int) -> Block:
        """The rows of block `index`: views of the arrays, rows of weight 0 among them."""
        rows = slice(self._bounds[index], self._bounds[index + 1])
        y = None if self._y is None else self._y[rows]
        weight = None if self._weight is None else self._weight[rows]
        return Block(index, self._X[rows], y, weight, self.row_id[rows])

    def reordered(self, order: np.ndarray) -> Iterator[Block]:
        """Blocks of the rows in another order, each copied when it is asked for."""
        # Rows of one block of the result come from all over X, so that this is the one place where rows in memory are
        # copied.
        for index in self._numbers:
            rows = order[self._bounds[index] : self._bounds[index + 1]]
            y = None if self._y is None else self._y[rows]
            weight = None if self._weight is None else self._weight[rows]
            yield drop_weightless(Block(index, self._X[rows], y, weight, self.row_id[rows]))

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        return (drop_weightless(without_x(self.ticket(index))) for index in self._numbers)
