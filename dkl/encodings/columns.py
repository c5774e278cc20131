"""CodePlaces: where columns of codes lie among the columns of X, and rows with numbers in their place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dkl.encodings.sums import codes_of


@dataclass(frozen=True)
class CodePlaces:
    """Columns of codes, each of which becomes `width` columns in its place.

    Parameters
    ----------
    columns : tuple of int
        Those of X that hold codes, ascending.
    n_columns : int
        Of X.
    width : int
    """

    columns: tuple[int, ...]
    n_columns: int
    width: int

    @property
    def n_made(self) -> int:
        """Columns afterwards."""
        return self.n_columns + len(self.columns) * (self.width - 1)

    @cached_property
    def kept(self) -> np.ndarray:
        """The columns of X that stay as they are."""
        return np.setdiff1d(np.arange(self.n_columns), self.columns)

    @cached_property
    def source(self) -> np.ndarray:
        """For each column afterwards: its place where those that stay come first and the made ones follow."""
        widths = np.ones(self.n_columns, np.int64)
        widths[list(self.columns)] = self.width
        is_made = np.repeat(np.isin(np.arange(self.n_columns), self.columns), widths)
        place = np.empty(self.n_made, np.int64)
        place[~is_made] = np.arange(len(self.kept))
        place[is_made] = len(self.kept) + np.arange(is_made.sum())
        return place

    def with_numbers(self, X: Any, tables: tuple[np.ndarray, ...], fold: np.ndarray | None) -> Any:
        """Rows (n, d) with the numbers of their codes: (n, n_made), dense or CSR as they come, in their dtype.

        Parameters
        ----------
        tables : tuple of ndarray of shape (F, V, width)
            One a column of codes.
        fold : ndarray of shape (n,) or None
            None takes the first fold of each table.
        """
        codes = codes_of(X, self.columns)
        made = np.empty((X.shape[0], len(self.columns) * self.width), X.dtype)
        for c, table in enumerate(tables):
            numbers = table[0][codes[:, c]] if fold is None else table[fold, codes[:, c]]
            made[:, c * self.width : (c + 1) * self.width] = numbers
        if sparse.issparse(X):
            rows = sparse.hstack([X[:, self.kept], sparse.csr_array(made)], format="csr")[:, self.source]
            rows.sort_indices()
            return rows
        return np.hstack([X[:, self.kept], made])[:, self.source]
