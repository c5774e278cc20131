"""The step of a view that replaces columns by learned numbers, by the fold of each row."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dkl.data.sources.rows import RowSource
from dkl.data.view import ColumnsMade, Step
from dkl.encodings.row_matrices import AT_ONCE
from dkl.encodings.target_means import CategoryFolds
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block


class Places(Protocol):
    """The columns of X whose codes or texts a fit replaces, and the numbers that replace them."""

    @property
    def n_columns(self) -> int:
        """The number of columns of X."""
        ...

    @property
    def n_made(self) -> int:
        """Columns afterwards."""
        ...

    def with_numbers(self, X: Any, learned: Any, fold: np.ndarray | None) -> Any:
        """Rows (n, d) with the numbers for their folds, (n, n_made), in their dtype; None is the first fold."""
        ...


class LearnedNumbers(Step, ColumnsMade):
    """Learned numbers in place of columns: a row gets the numbers that were learned without its own fold.

    Parameters
    ----------
    places : Places
    learned : tuple
        As `places.with_numbers` takes it.
    folds : CategoryFolds or None
        None for rows that nothing was learned from, which have one fold.
    """

    def __init__(self, places: Places, learned: tuple[Any, ...], folds: CategoryFolds | None) -> None:
        self.places, self.learned, self.folds = places, learned, folds

    def made(self, block: Block) -> Rows:
        fold = None if self.folds is None else self.folds(block.held_with)
        made: Rows = self.places.with_numbers(block.X, self.learned, fold)
        return made

    def most_folds(self, before: RowSource) -> int | None:
        """1, since one share of rows is kept out of all learned numbers, and penalties are judged on it alone."""
        return before.most_folds if self.folds is None else 1

    def n_columns(self, before: RowSource) -> int:
        return self.places.n_made

    def block_nbytes(self, before: RowSource) -> int:
        added = int(before.block_rows.max(initial=0)) * (self.places.n_made - self.places.n_columns)
        # an entry of a sparse row has its value and its column
        return max(before.block_nbytes + added * (before.dtype.itemsize + 4 * before.is_sparse), 0)

    def read_nbytes(self, before: RowSource) -> int:
        """Bytes of the block with its columns of codes or texts, and of the rows during their assembly."""
        return before.read_nbytes + before.block_nbytes + self.block_nbytes(before)


class CategoryNumbers(LearnedNumbers):
    """Numbers in place of codes: `places` is a `CodePlaces`, and `learned` has a table (`Rows`) for each key."""

    @cached_property
    def identity(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr((self.places, self.folds)).encode())
        for table in self.learned:
            digest.update(repr((table.shape, table.dtype.str)).encode())
            for first in range(0, table.shape[0], AT_ONCE):
                digest.update(np.ascontiguousarray(table.read(first, min(first + AT_ONCE, table.shape[0]))).data)
        return digest.hexdigest()
