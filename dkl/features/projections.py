"""The linear part of a feature map, z = x W^T: W as a dense or sparse matrix, signs and transforms, or columns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import sparse

# A selection of structured frequencies of up to this many bytes is stored as a matrix, since transforms would compute
# many frequencies that the selection does not contain.
FORMED_BYTES = 1 << 26


class Projection(Protocol):
    """m linear forms w.x on rows x of d columns; W need not be stored as a matrix."""

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

    def joined(self, other: Projection) -> Projection:
        """These frequencies, then those of `other`, on the same columns."""
        ...


class ArrayProjection:
    """Base class of projections that are dataclasses of arrays, and of other such projections."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of these arrays."""
        held = (getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
        return sum(value.nbytes for value in held if isinstance(value, np.ndarray | ArrayProjection))


def formed(projection: Projection) -> np.ndarray | sparse.csr_array:
    """W as a matrix of shape (m, d): a csr_array for sparse and column projections, else an ndarray."""
    return projection.matrix if isinstance(projection, SparseProjection | ColumnProjection) else projection.dense()


def _joined(first: Projection, second: Projection) -> Projection:
    """The rows of both as one matrix, sparse if either is."""
    parts = formed(first), formed(second)
    if any(sparse.issparse(part) for part in parts):
        return SparseProjection.from_matrix(sparse.vstack([sparse.csr_array(part) for part in parts], format="csr"))
    return DenseProjection(np.concatenate(parts))


@dataclass(frozen=True, eq=False)
class DenseProjection(ArrayProjection):
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

    def dense(self) -> np.ndarray:
        return self.matrix

    def take(self, index: np.ndarray) -> DenseProjection:
        return DenseProjection(np.ascontiguousarray(self.matrix[index]))

    def joined(self, other: Projection) -> Projection:
        return _joined(self, other)


@dataclass(frozen=True, eq=False)
class SparseProjection(ArrayProjection):
    """z = x W^T for a sparse W: most frequencies depend on one, two or three columns.

    Parameters
    ----------
    data : ndarray of shape (nnz,), float32 or float64
    indices : ndarray of shape (nnz,), int32 or int64
        Columns of the entries, ascending within a row.
    indptr : ndarray of shape (m + 1,), int32 or int64
        Row j has the entries ``indptr[j]:indptr[j + 1]``.
    width : int
        d, the number of columns of a row.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.features.projections import SparseProjection
    >>> supports = np.array([[True, False, False], [False, True, True]])
    >>> SparseProjection.from_rows(np.array([[2.0, 9.0, 9.0], [9.0, 0.5, 0.0]]), supports).matrix.toarray()
    array([[2. , 0. , 0. ],
           [0. , 0.5, 0. ]])
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    width: int

    @classmethod
    def from_matrix(cls, matrix: sparse.sparray) -> SparseProjection:
        """From a scipy sparse matrix W of shape (m, d); duplicate entries are added."""
        matrix = sparse.csr_array(matrix)
        # `dkl.kernels` needs ascending columns without duplicates; the given matrix is not changed.
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return cls(matrix.data, matrix.indices, matrix.indptr, matrix.shape[1])

    @classmethod
    def from_rows(cls, rows: np.ndarray, supports: np.ndarray | None = None) -> SparseProjection:
        """From frequencies `rows` (m, d): stores the entries where `supports` (m, d) is true.

        Without `supports` all entries that are not 0 are stored. Single rows may have all d entries.

        Raises
        ------
        ValueError
            If the two differ in shape.
        """
        rows = np.asarray(rows)
        supports = rows != 0 if supports is None else np.asarray(supports, dtype=bool)
        if rows.ndim != 2 or supports.shape != rows.shape:
            raise ValueError(f"frequencies have shape {rows.shape} and supports {supports.shape}; both must be (m, d)")
        # A stored entry may be 0, since a support lists the columns that a later search may change.
        _, columns = np.nonzero(supports)
        indptr = np.concatenate([[0], np.cumsum(supports.sum(axis=1))])
        return cls(rows[supports], columns.astype(np.int32), indptr.astype(np.int32), rows.shape[1])

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """W, of shape (m, d)."""
        return sparse.csr_array((self.data, self.indices, self.indptr), shape=(len(self.indptr) - 1, self.width))

    @cached_property
    def owners(self) -> np.ndarray:
        """The frequency of each entry, (nnz,) int64."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def n_frequencies(self) -> int:
        return len(self.indptr) - 1

    @property
    def n_columns(self) -> int:
        return self.width

    def dense(self) -> np.ndarray:
        return self.matrix.toarray()

    def take(self, index: np.ndarray) -> SparseProjection:
        return SparseProjection.from_matrix(self.matrix[index])

    def joined(self, other: Projection) -> Projection:
        return _joined(self, other)


@dataclass(frozen=True, eq=False)
class ColumnProjection(ArrayProjection):
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

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """W, of shape (m, d): a one in each row."""
        m = self.n_frequencies
        return sparse.csr_array((np.ones(m), self.columns, np.arange(m + 1)), shape=(m, self.width))

    def dense(self) -> np.ndarray:
        return self.matrix.toarray()

    def take(self, index: np.ndarray) -> ColumnProjection:
        return ColumnProjection(self.columns[index], self.width)

    def joined(self, other: Projection) -> Projection:
        if isinstance(other, ColumnProjection):
            return ColumnProjection(np.concatenate([self.columns, other.columns]), self.width)
        return _joined(self, other)


def padded_width(width: int) -> int:
    """The length of the transforms for rows of `width` columns: a power of two, at least 256.

    Shorter transforms have too few sign patterns for random directions: at 64, one entry in thirty is exactly 0.
    """
    return max(256, 1 << (width - 1).bit_length())


def walsh_hadamard(rows: np.ndarray) -> np.ndarray:
    """Multiply each row with the Hadamard matrix of its length (a power of two), unnormalised, in natural order."""
    n, length = rows.shape
    out = np.array(rows, dtype=np.float64)
    half = 1
    while half < length:
        # One stage of the fast transform: sums and differences of entries `half` apart.
        pairs = out.reshape(n, length // (2 * half), 2, half)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return out.reshape(n, length)


@dataclass(frozen=True, eq=False)
class StructuredProjection(ArrayProjection):
    """z = radii * (H S1 H S2 H S3 x) / p^(3/2) block by block: W is never formed.

    Row x is padded with zeros to p columns; each block of p frequencies has three diagonals of signs and H is the
    Walsh-Hadamard transform. Le, Sarlos & Smola 2013; Yu et al. 2016, section 4.

    Parameters
    ----------
    signs : ndarray of shape (n_blocks, 3, p), int8
        S1, S2, S3 of each block.
    radii : ndarray of shape (m,), float64
        The length of each frequency (over p columns).
    width : int
        d, the number of columns of a row.
    rows : ndarray of shape (m,), int64, or None
        The number of each frequency among the n_blocks * p that the signs define; None means the first m.
    dtype : dtype
        The dtype of rows of W when they are computed.
    """

    signs: np.ndarray
    radii: np.ndarray
    width: int
    rows: np.ndarray | None = None
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))

    @property
    def n_frequencies(self) -> int:
        return len(self.radii)

    @property
    def n_columns(self) -> int:
        return self.width

    @property
    def padded(self) -> int:
        """p, the length of the transforms."""
        return self.signs.shape[2]

    @property
    def shape(self) -> tuple[int, int]:
        """(m, d), the shape of the W that is not formed."""
        return self.n_frequencies, self.width

    def __len__(self) -> int:
        return self.n_frequencies

    def numbers(self) -> np.ndarray:
        """The number of each frequency among those that the signs define, int64 of shape (m,)."""
        return np.arange(self.n_frequencies) if self.rows is None else self.rows

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        """Computed rows of W; an integer index gives one row."""
        numbers = np.arange(self.n_frequencies)[index]
        formed = self._form(np.atleast_1d(numbers))
        return formed[0] if np.ndim(numbers) == 0 else formed

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self.dense().astype(self.dtype if dtype is None else dtype, copy=False)

    def dense(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        # A few rows at a time, since intermediate rows have the padded width in float64.
        step = max(1, (1 << 20) // self.padded)
        for start in range(0, self.n_frequencies, step):
            out[start : start + step] = self[start : start + step]
        return out

    def take(self, index: np.ndarray) -> Projection:
        """The chosen frequencies: as a matrix of at most `FORMED_BYTES`, else again as signs and lengths."""
        # Negative indices, slices and masks become positions first.
        index = np.arange(self.n_frequencies)[index]
        if len(index) * self.width * self.dtype.itemsize <= FORMED_BYTES:
            return DenseProjection(self[index])
        return replace(self, radii=self.radii[index], rows=self.numbers()[index])

    def joined(self, other: Projection) -> Projection:
        """The frequencies of both as a matrix."""
        return _joined(self, other)

    def _form(self, index: np.ndarray) -> np.ndarray:
        """The chosen rows of W: unit vectors multiplied by the transforms from the right."""
        block, position = np.divmod(self.numbers()[index], self.padded)
        rows = np.zeros((len(index), self.padded))
        # Row j of H S1 H S2 H S3 is e_j times these matrices: H is symmetric, and so is each diagonal of signs.
        rows[np.arange(len(index)), position] = 1.0
        for diagonal in range(3):
            rows = walsh_hadamard(rows) * self.signs[block, diagonal]
        scale = self.radii[index] / self.padded**1.5
        return (rows[:, : self.width] * scale[:, None]).astype(self.dtype)
