"""CodePlaces: where columns of categories lie among the columns of X, and rows with numbers in place of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dkl.encodings.keys import CategoryKey, dense_columns
from dkl.encodings.row_matrices import Rows


@dataclass(frozen=True)
class CodePlaces:
    """Columns of codes, in whose place come their numbers, then numbers centred by them, then those of their crosses.

    Numbers of other categories, and of crosses that start with them, come behind the columns that they have.

    Parameters
    ----------
    keys : tuple of CategoryKey
        The columns of codes in their order, then other columns, then the crosses.
    n_columns : int
        Of X.
    width : int
        Numbers of each key.
    centred : tuple of (int, int)
        Columns of codes, by their place among the keys, and columns of X whose numbers become those less the mean of
        the row's category.
    """

    keys: tuple[CategoryKey, ...]
    n_columns: int
    width: int
    centred: tuple[tuple[int, int], ...] = ()

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The columns of X that hold codes, ascending."""
        return tuple(key.parts[0].start for key in self.keys if len(key.parts) == 1 and key.parts[0].is_code)

    @property
    def n_made(self) -> int:
        """Columns afterwards."""
        return len(self.source)

    @cached_property
    def kept(self) -> np.ndarray:
        """The columns of X that stay as they are."""
        return np.setdiff1d(np.arange(self.n_columns), self.columns)

    @cached_property
    def _order(self) -> list[tuple[int, slice, int]]:
        """The numbers that are made, in the order of their columns: of which key, which of them, behind what."""
        order = []
        for k, key in enumerate(self.keys):
            first = key.parts[0]
            behind = first.start if first.last is None else first.last
            order.append((k, slice(self.width + len(self.centred_by(k))), behind))
        return sorted(order, key=lambda made: made[2])

    @cached_property
    def source(self) -> np.ndarray:
        """For each column afterwards: its place where those that stay come first and the made ones follow."""
        place: list[int] = []
        n_kept, n_made, order = 0, 0, list(self._order)
        for column in range(self.n_columns):
            if column not in self.columns:
                place.append(n_kept)
                n_kept += 1
            while order and order[0][2] == column:
                _, numbers, _ = order.pop(0)
                place += range(len(self.kept) + n_made, len(self.kept) + n_made + numbers.stop)
                n_made += numbers.stop
        return np.array(place)

    def centred_by(self, key: int) -> list[int]:
        """The columns of X that are centred by one column of codes."""
        return [column for by, column in self.centred if by == key]

    def with_numbers(self, X: Any, tables: Sequence[Rows], fold: np.ndarray | None) -> Any:
        """Rows (n, d) with the numbers of their codes: (n, n_made), dense or CSR as they come, in their dtype.

        Parameters
        ----------
        tables : sequence of Rows
            One a key: the numbers of code c in fold f are row f V + c; those of centred columns are means.
        fold : ndarray of shape (n,) or None
            None takes the first fold of each table.
        """
        numbers = []
        for k, (key, table) in enumerate(zip(self.keys, tables, strict=True)):
            codes = key.codes(X)
            # rows are float32 or float64, and so are the numbers that they get
            of_key = table.take(codes if fold is None else fold * key.size + codes).astype(X.dtype)
            for place, column in enumerate(self.centred_by(k), self.width):
                of_key[:, place] = dense_columns(X, column, column + 1)[:, 0] - of_key[:, place]
            numbers.append(of_key)
        made = np.hstack([numbers[k][:, part] for k, part, _ in self._order])
        if sparse.issparse(X):
            rows = sparse.hstack([X[:, self.kept], sparse.csr_array(made)], format="csr")[:, self.source]
            rows.sort_indices()
            return rows
        return np.hstack([X[:, self.kept], made])[:, self.source]
