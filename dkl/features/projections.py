"""The linear part of a feature map: what a row is multiplied with, stored as a matrix, a few signs, or column numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Projection(Protocol):
    """m linear forms on rows of d columns. `dense` and `take` form rows of W, the others need not."""

    @property
    def n_frequencies(self) -> int: ...

    @property
    def n_columns(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def dense(self) -> np.ndarray:
        """W, of shape (m, d)."""
        ...

    def take(self, index: np.ndarray) -> Projection:
        """The chosen frequencies alone, in the order of `index`."""
        ...


@dataclass(frozen=True, eq=False)
class DenseProjection:
    """z = x W^T for a stored W.

    Parameters
    ----------
    matrix : ndarray of shape (m, d), float32 or float64
    """

    matrix: np.ndarray

    @property
    def n_frequencies(self) -> int:
        return self.matrix.shape[0]

    @property
    def n_columns(self) -> int:
        return self.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    def dense(self) -> np.ndarray:
        return self.matrix

    def take(self, index: np.ndarray) -> DenseProjection:
        return DenseProjection(np.ascontiguousarray(self.matrix[index]))


@dataclass(frozen=True, eq=False)
class ColumnProjection:
    """z_j = x[columns[j]]: the coordinates themselves.

    Parameters
    ----------
    columns : ndarray of shape (m,), int64
    width : int
        d, the number of columns of a row.
    """

    columns: np.ndarray
    width: int

    @property
    def n_frequencies(self) -> int:
        return len(self.columns)

    @property
    def n_columns(self) -> int:
        return self.width

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes

    def dense(self) -> np.ndarray:
        matrix = np.zeros((self.n_frequencies, self.width))
        matrix[np.arange(self.n_frequencies), self.columns] = 1.0
        return matrix

    def take(self, index: np.ndarray) -> ColumnProjection:
        return ColumnProjection(self.columns[index], self.width)
