"""ColumnBesideX: a source whose blocks come with a row column, which may be read from X and taken out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import dask
import numpy as np

from dkl.data.sources.rows import PARTS, RowReader, RowSource, WrappedRows, without_x
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block


class ReadOfX(Protocol):
    """What is read from rows; small, picklable, with a `repr` that says all of it."""

    def __call__(self, X: Rows, row_id: np.ndarray) -> np.ndarray:
        """One value a row, (n,); errors name rows by their ids."""
        ...


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads a block, and the column from its X where nobody below has it."""

    base: RowReader
    column: str
    read: ReadOfX | None
    kept: np.ndarray | None

    def load(self, ticket: Any, parts: tuple[str, ...] = PARTS) -> Block:
        """The rows of `ticket`; the column comes whenever X does."""
        if "X" not in parts and self.column not in parts:
            return self.base.load(ticket, parts)
        if self.read is None:
            return self.base.load(ticket, tuple(dict.fromkeys([*parts, self.column])))
        asked = dict.fromkeys(["X", "row_id", *(part for part in parts if part != self.column)])
        block = self.base.load(ticket, tuple(asked))
        # a column that the base has under this name was asked for by name, and stays
        columns = {self.column: self.read(block.X, block.row_id), **block.columns}
        if "X" not in parts:
            return replace(without_x(block), columns=columns)
        return replace(block, X=block.X if self.kept is None else block.X[:, self.kept], columns=columns)


class ColumnBesideX(WrappedRows):
    """Rows that bring a column along; see `dkl.protocols.source.BlockSource` for the attributes.

    Nothing of it is held: whoever asks for the column alone reads X, block by block.

    Parameters
    ----------
    base : RowSource
    column : str
        The name of the row column.
    read : ReadOfX or None
        None for a row column of the base.
    dropped : int or None
        The column of X that is taken out.
    """

    def __init__(self, base: RowSource, column: str, read: ReadOfX | None, dropped: int | None = None) -> None:
        super().__init__(base)
        self.column, self.read = column, read
        self._identity = f"{column} {read!r} {dropped}"
        self._kept = None if dropped is None else np.flatnonzero(np.arange(base.n_columns) != dropped)

    @property
    def n_columns(self) -> int:
        return self.base.n_columns if self._kept is None else len(self._kept)

    @property
    def block_nbytes(self) -> int:
        return self.base.block_nbytes + 8 * int(self.block_rows.max(initial=0))

    @property
    def read_nbytes(self) -> int:
        """The whole rows are there beside the copy without the column."""
        return self.base.read_nbytes + (0 if self._kept is None else self.base.block_nbytes)

    def reader(self) -> _Reader:
        return _Reader(self.base.reader(), self.column, self.read, self._kept)

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        if self.column not in extra or self.read is None:
            yield from self.base.blocks_without_x(extra)
            return
        reader, parts = self.reader(), (*PARTS[1:], *extra)
        for index in range(self.n_blocks):
            (ticket,) = dask.compute(self.ticket(index), traverse=False)
            yield reader.load(ticket, parts)
