"""Block: the rows that one call of a block function sees."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse


@dataclass(frozen=True, eq=False)
class Block:
    """Up to 65,536 consecutive rows of a dataset.

    Parameters
    ----------
    index : int
        The absolute number of the block in its dataset, whatever subset of rows or blocks is in use.
    X : ndarray of shape (n_b, d) or scipy.sparse.csr_array
        Encoded rows, in the dtype of the store.
    y : ndarray of shape (n_b,) or None
        int64 class codes 0 .. K-1 (positions in the dataset's sorted `classes`) or float64 targets; (n_b, t) for
        several regression targets.
    weight : ndarray of shape (n_b,), float64, or None
        Frequency weights, all positive (rows of weight 0 never reach a block); None means one each.
    row_id : ndarray of shape (n_b,), int64
        The identity of each row, kept through shuffling; samples and splits hash it.
    columns : mapping of str to ndarray of shape (n_b, ...)
        Named row columns that a pass asked for.
    held : ndarray of shape (n_b,), int64, or None
        The value by which a row is held out, where groups or times decide it (`dkl.protocols.held_together`); None
        where each row is held out by its own `row_id`.
    """

    index: int
    X: np.ndarray | sparse.csr_array
    y: np.ndarray | None
    weight: np.ndarray | None
    row_id: np.ndarray
    columns: Mapping[str, Any] = field(default_factory=dict)
    held: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return self.X.shape[0]

    @property
    def weights(self) -> np.ndarray:
        """The weights of the rows, written out: float64 of shape (n_b,), where the targets are."""
        # For block functions that need one weight for each row; those that treat None apart read `weight`.
        if self.weight is not None:
            return self.weight
        # targets on a GPU are there when CuPy is
        xp: Any = sys.modules["cupy"] if type(self.y).__module__.partition(".")[0] == "cupy" else np
        ones: np.ndarray = xp.ones(self.n_rows)
        return ones

    def drawn_from(self, n_rows: int) -> Block:
        """A sample of `n_rows` rows with the weights by which its rows count.

        A sample that has all rows has their weights. A smaller one was drawn in proportion to the weights, so that each
        of its rows counts once.
        """
        return self if self.n_rows >= n_rows else replace(self, weight=None)

    @property
    def held_with(self) -> np.ndarray:
        """The value by which a row is held out, (n_b,) int64: rows with equal values are held out together."""
        return self.row_id if self.held is None else self.held

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays of all parts but row columns: X or the three arrays of its CSR form, y, weight, row_id, held."""
        X: Any = self.X
        parts = [X.data, X.indices, X.indptr] if isinstance(X, sparse.csr_array) else [X]
        return [array for array in (*parts, self.y, self.weight, self.row_id, self.held) if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of `arrays`."""
        return sum(array.nbytes for array in self.arrays)

    def without_x(self, index: np.ndarray | slice | None = None) -> Block:
        """All rows, or the chosen ones, with an X of no columns, for callers that need no X: it is not copied."""
        bare = replace(self, X=np.empty((self.n_rows, 0)))
        return bare if index is None else bare.rows(index)

    def rows(self, index: np.ndarray | slice) -> Block:
        """The chosen rows alone (a boolean mask, positions, or a slice)."""
        # Row columns are cut in the same way, or they would no longer match the rows.
        return Block(
            self.index,
            self.X[index],
            None if self.y is None else self.y[index],
            None if self.weight is None else self.weight[index],
            self.row_id[index],
            {name: column[index] for name, column in self.columns.items()},
            None if self.held is None else self.held[index],
        )
