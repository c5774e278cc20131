"""Checks that arrays have no masked entries, and that the indices of sparse matrices are within their shape."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dkl.data.given import GivenRows, GivenValues


def check_unmasked(values: GivenValues, name: str) -> None:
    """Raise ValueError, with the first masked entry, if the argument `name` is a masked array with masked entries.

    The values below the mask are invalid and would be used.
    """
    # the nullable arrays of pandas also have masks, which mean missing values
    if not (isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)):
        return

    place = [int(part[0]) for part in np.nonzero(np.ma.getmaskarray(values))]

    raise ValueError(
        f"{name}[{', '.join(map(str, place))}] is masked; entries must be there: leave such rows out, or fill them "
        f"({name}.filled(value)). A data frame may lack numbers, which are filled by the mean of their column"
    )


def check_sound(X: GivenRows) -> None:
    """`check_unmasked` of rows, and `check_structure` of sparse ones."""
    check_unmasked(X, "X")
    if sparse.issparse(X):
        check_structure(X)


def check_structure(X: GivenRows) -> None:
    """Raise ValueError, with the place, if indices or pointers of a sparse matrix are out of range.

    SciPy does not check them, and would read or write memory outside of the arrays.

    Parameters
    ----------
    X : scipy sparse matrix
        CSR, CSC, BSR or COO; other formats are checked after their conversion to CSR.
    """
    if len(X.shape) != 2:
        return
    if X.format == "coo":
        for axis, (name, indices) in enumerate(zip(("row", "column"), (X.row, X.col), strict=True)):
            _check_lengths(len(indices), len(X.data), f"X.{name[:3]}")
            _check_range(indices, X.shape[axis], f"X.{name[:3]}", f"{name}s")
    if X.format not in ("csr", "csc", "bsr"):
        return
    # pointers delimit "lines": rows in CSR, columns in CSC, rows of blocks in BSR
    lines, width = ("column", "rows") if X.format == "csc" else ("row", "columns")
    n_lines, n_indices = X.shape[::-1] if X.format == "csc" else X.shape
    if X.format == "bsr":
        lines, width = "row of blocks", "columns of blocks"
        n_lines, n_indices = (size // side for size, side in zip(X.shape, X.blocksize, strict=True))
    check_pointers(X.indptr, n_lines, len(X.indices), lines=lines)
    _check_lengths(len(X.indices), len(X.data), "X.indices")
    _check_range(X.indices[: X.indptr[-1]], n_indices, "X.indices", width)


def check_pointers(
    indptr: np.ndarray, n_lines: int, n_entries: int, *, lines: str = "row", first_line: int = 0
) -> None:
    """Raise ValueError unless `indptr` has n_lines + 1 integers from 0 to at most n_entries that never fall."""
    if indptr.dtype.kind not in "iu":
        raise ValueError(f"X.indptr has dtype {indptr.dtype}; expected integers. {_REMEDY}")
    if len(indptr) != n_lines + 1:
        raise ValueError(
            f"X.indptr has {len(indptr)} entries; expected {n_lines + 1}, one more than X has {lines}s. {_REMEDY}"
        )
    if indptr[0] != 0:
        raise ValueError(f"X.indptr starts at {indptr[0]}; expected 0. {_REMEDY}")

    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        line = int(np.argmax(falls))
        raise ValueError(
            f"X.indptr falls from {indptr[line]} to {indptr[line + 1]} at {lines} {first_line + line}; it must not "
            f"decrease. {_REMEDY}"
        )
    if indptr[-1] > n_entries:
        raise ValueError(f"X.indptr ends at {indptr[-1]}, and X has {n_entries} entries. {_REMEDY}")


_REMEDY = "The sparse matrix is damaged, or was put together wrongly: make it anew, as X.tocoo() of sound parts"


def _check_lengths(n_indices: int, n_values: int, name: str) -> None:
    if n_indices != n_values:
        raise ValueError(f"{name} has {n_indices} entries and X.data {n_values}; expected one index a value. {_REMEDY}")


def _check_range(indices: np.ndarray, size: int, name: str, what: str) -> None:
    if not len(indices):
        return
    if indices.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {indices.dtype}; expected integers. {_REMEDY}")
    if indices.min() < 0 or indices.max() >= size:
        place = int(np.argmax((indices < 0) | (indices >= size)))
        raise ValueError(f"{name}[{place}] is {indices[place]}, and X has {size} {what}. {_REMEDY}")


def whole_csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n_columns: int) -> sparse.csr_array:
    """CSR rows from the arrays of a file or a store, checked like `check_structure`."""
    check_pointers(indptr, len(indptr) - 1, len(indices))
    _check_lengths(len(indices), len(data), "X.indices")
    _check_range(indices, n_columns, "X.indices", "columns")
    return sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_columns))
