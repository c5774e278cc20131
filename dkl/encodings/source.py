"""The step of a view that replaces columns of codes or texts by the numbers learned for the fold of each row."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dkl.data.sources.rows import RowSource
from dkl.data.view import NewColumns, Step
from dkl.encodings.row_matrices import AT_ONCE
from dkl.encodings.target_means import CategoryFolds
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block

if TYPE_CHECKING:
    from dkl.encodings.fitted import CodePlaces


class Places(Protocol):
    """The places of columns of codes or texts in X, and the replacement of these columns by learned numbers."""

    @property
    def n_columns(self) -> int:
        """The number of columns of X."""
        ...

    @property
    def n_made(self) -> int:
        """The number of columns after the replacement."""
        ...

    def with_numbers(self, X: Any, learned: Any, fold: np.ndarray | None) -> Any:
        """Rows (n, d) become (n, n_made), in the dtype of X, with the numbers of each row's fold (None: the first)."""
        ...


class LearnedNumbers(Step, NewColumns):
    """Learned numbers in place of columns: a row gets numbers that were learned from rows of other folds.

    Parameters
    ----------
    places : Places
    learned : tuple
        The argument `learned` of `places.with_numbers`.
    folds : CategoryFolds or None
        None for rows from which nothing was learned; these have one fold.
    """

    is_costly = True

    def __init__(self, places: Places, learned: tuple[Any, ...], folds: CategoryFolds | None) -> None:
        self.places, self.learned, self.folds = places, learned, folds

    def new_columns(self, block: Block) -> Rows:
        fold = None if self.folds is None else self.folds(block.held_with)
        made: Rows = self.places.with_numbers(block.X, self.learned, fold)
        return made

    def most_folds(self, before: RowSource) -> int | None:
        """1 in a fit: only one share of the rows is kept out of all learned numbers, so that no other can judge."""
        return before.most_folds if self.folds is None else 1

    def n_columns(self, before: RowSource) -> int:
        return self.places.n_made

    def block_nbytes(self, before: RowSource) -> int:
        added = int(before.block_rows.max(initial=0)) * (self.places.n_made - self.places.n_columns)
        # a stored entry of a sparse row takes its value and a column number of 4 bytes
        return max(before.block_nbytes + added * (before.dtype.itemsize + 4 * before.is_sparse), 0)

    def read_nbytes(self, before: RowSource) -> int:
        """Peak bytes beside the new rows: while the block of `before` is read, or while the new rows are made of it."""
        while_read = before.read_nbytes + before.block_nbytes - self.block_nbytes(before)
        return max(while_read, before.left_nbytes + before.block_nbytes + self.making_nbytes(before), 0)

    def making_nbytes(self, before: RowSource) -> int:
        """Bytes of temporaries while the new rows are made: these, in parts that are joined."""
        return self.block_nbytes(before)


class CategoryNumbers(LearnedNumbers):
    """Numbers in place of codes: `places` is a `CodePlaces`, and `learned` has a table (`Rows`) for each key."""

    is_by_row = True
    places: CodePlaces

    def making_nbytes(self, before: RowSource) -> int:
        """Of dense rows, which are written at once: the codes of all keys, and the numbers of one key."""
        if before.is_sparse:
            return super().making_nbytes(before)
        keys = self.places.keys
        widest = max((self.places.n_numbers(k) for k in range(len(keys))), default=0)
        parts = {part for key in keys for part in key.parts}
        return int(before.block_rows.max(initial=0)) * (8 * (len(parts) + 6) + before.dtype.itemsize * (widest + 2))

    @cached_property
    def identity(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr((self.places, self.folds)).encode())
        for table in self.learned:
            digest.update(repr((table.shape, table.dtype.str)).encode())
            for first in range(0, table.shape[0], AT_ONCE):
                digest.update(np.ascontiguousarray(table[first : first + AT_ONCE]).data)
        return digest.hexdigest()
