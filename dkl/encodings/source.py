"""The rows of a source with numbers that were learned in place of columns, by the fold of each row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dkl.data.sources.rows import PARTS, RowReader, RowSource, WrappedRows
from dkl.encodings.row_matrices import AT_ONCE
from dkl.encodings.target_means import CategoryFolds
from dkl.protocols.block import Block


class Places(Protocol):
    """The columns of X whose codes or texts a fit replaces by numbers, and the numbers that stand in their place."""

    @property
    def n_columns(self) -> int:
        """Of X."""
        ...

    @property
    def n_made(self) -> int:
        """Columns afterwards."""
        ...

    def with_numbers(self, X: Any, learned: Any, fold: np.ndarray | None) -> Any:
        """Rows (n, d) with the numbers of their folds, (n, n_made), in their dtype; None is the first fold."""
        ...


@dataclass(frozen=True, eq=False)
class FoldedReader:
    """Reads a block and puts the numbers that were learned in place of its columns, each row by its fold."""

    base: RowReader
    places: Places
    learned: tuple[Any, ...]
    folds: CategoryFolds | None

    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket`; X has `places.n_made` columns."""
        if "X" not in parts:
            return self.base.load(ticket, parts)
        # The fold of a row follows from its identity, which is read with X in any case.
        block = self.base.load(ticket, tuple(dict.fromkeys([*parts, "row_id"])))
        fold = None if self.folds is None else self.folds(block.held_with)
        return replace(block, X=self.places.with_numbers(block.X, self.learned, fold))


class FoldedSource(WrappedRows):
    """Rows with numbers that were learned in place of columns; see `dkl.protocols.source.BlockSource`.

    Parameters
    ----------
    base : RowSource
    places : Places
    learned : tuple
        As `places.with_numbers` takes it.
    folds : CategoryFolds or None
        None for rows that nothing was learned from, which have one fold.
    """

    def __init__(self, base: RowSource, places: Places, learned: tuple[Any, ...], folds: CategoryFolds | None) -> None:
        super().__init__(base)
        self.places, self.learned, self.folds = places, learned, folds

    @property
    def most_folds(self) -> int | None:
        """One share of rows is kept out of all that was learned: penalties are judged on it alone."""
        return None if self.folds is None else 1

    @property
    def n_columns(self) -> int:
        return self.places.n_made

    @property
    def block_nbytes(self) -> int:
        added = int(self.block_rows.max(initial=0)) * (self.places.n_made - self.places.n_columns)
        # an entry of a sparse row has its value and its column
        return max(self.base.block_nbytes + added * (self.dtype.itemsize + 4 * self.is_sparse), 0)

    def reader(self) -> FoldedReader:
        return FoldedReader(self.base.reader(), self.places, self.learned, self.folds)

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        return self.base.blocks_without_x(extra)


class CategorySource(FoldedSource):
    """Rows whose codes are numbers: `places` are `CodePlaces`, and what was learned a table (`Rows`) a key of them."""

    @property
    def read_nbytes(self) -> int:
        """The block of codes, and the rows that are put together before their columns are in order."""
        return self.base.read_nbytes + self.base.block_nbytes + self.block_nbytes

    @cached_property
    def _identity(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr((self.places, self.folds)).encode())
        for table in self.learned:
            digest.update(repr((table.shape, table.dtype.str)).encode())
            for first in range(0, table.shape[0], AT_ONCE):
                digest.update(np.ascontiguousarray(table.read(first, min(first + AT_ONCE, table.shape[0]))).data)
        return digest.hexdigest()
