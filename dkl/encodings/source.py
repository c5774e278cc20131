"""CategorySource: the rows of a source with numbers in place of codes, by the fold of each row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.sources.rows import PARTS, RowReader, RowSource, WrappedRows
from dkl.encodings.columns import CodePlaces
from dkl.encodings.row_matrices import AT_ONCE, Rows
from dkl.encodings.target_means import CategoryFolds
from dkl.protocols.block import Block


@dataclass(frozen=True, eq=False)
class CategoryReader:
    """Reads a block and puts numbers in place of codes."""

    base: RowReader
    places: CodePlaces
    tables: tuple[Rows, ...]
    folds: CategoryFolds | None

    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket`; X has `places.n_made` columns."""
        if "X" not in parts:
            return self.base.load(ticket, parts)
        # The fold of a row follows from its identity, which is read with X in any case.
        block = self.base.load(ticket, tuple(dict.fromkeys([*parts, "row_id"])))
        fold = None if self.folds is None else self.folds(block.held_with)
        return replace(block, X=self.places.with_numbers(block.X, self.tables, fold))


class CategorySource(WrappedRows):
    """Rows whose codes are numbers; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    base : RowSource
    places : CodePlaces
    tables : tuple of Rows
        One a key of `places`, of F V rows: see `CodePlaces.with_numbers`.
    folds : CategoryFolds or None
        None for rows that are new to the tables, which have one fold.
    """

    def __init__(
        self, base: RowSource, places: CodePlaces, tables: tuple[Rows, ...], folds: CategoryFolds | None
    ) -> None:
        super().__init__(base)
        self.places, self.tables, self.folds = places, tables, folds

    @property
    def most_folds(self) -> int | None:
        """One share of rows is kept out of all codes: penalties are judged on it alone."""
        return None if self.folds is None else 1

    @property
    def one_fold(self) -> bool:
        return self.most_folds == 1

    @property
    def n_columns(self) -> int:
        return self.places.n_made

    @property
    def block_nbytes(self) -> int:
        added = int(self.block_rows.max(initial=0)) * (self.places.n_made - self.places.n_columns)
        # an entry of a sparse row has its value and its column
        return self.base.block_nbytes + added * (self.dtype.itemsize + 4 * self.is_sparse)

    @property
    def read_nbytes(self) -> int:
        """The block of codes, and the rows that are put together before their columns are in order."""
        return self.base.read_nbytes + self.base.block_nbytes + self.block_nbytes

    @cached_property
    def _identity(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr((self.places, self.folds)).encode())
        for table in self.tables:
            digest.update(repr((table.shape, table.dtype.str)).encode())
            for first in range(0, table.shape[0], AT_ONCE):
                digest.update(np.ascontiguousarray(table.read(first, min(first + AT_ONCE, table.shape[0]))).data)
        return digest.hexdigest()

    def reader(self) -> CategoryReader:
        return CategoryReader(self.base.reader(), self.places, self.tables, self.folds)

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        return self.base.blocks_without_x(extra)
