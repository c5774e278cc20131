"""Reading npz archives (a dense X, or the parts of a CSR matrix) a few megabytes at a time."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from dkl.data.ingest.packing import Batch
from dkl.data.ingest.paths import InputFile, unreadable
from dkl.data.soundness import check_pointers, whole_csr
from dkl.protocols.arrays import Rows

_BATCH_BYTES = 8 * 2**20
_REMEDIES = {
    "rows": "pass format=dkl.NpzFormat(rows=...) with one of them",
    "target": "pass target= one of them",
    "weight": "pass weight= one of them",
}
_CSR_PARTS = ("data", "indices", "indptr", "shape")


@dataclass(frozen=True)
class NpzFormat:
    """npz archives with an array ``X``, or with the parts of a CSR matrix as `scipy.sparse.save_npz` writes them.

    Parameters
    ----------
    rows : str
        The array with the rows, if they are dense.
    target, weight : str or None
        The arrays with targets and weights; None is ``y`` and ``sample_weight`` if the archive has them.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> import dkl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/rows.npz", images=np.eye(4), digit=[0, 1, 0, 1])
    ...     form = dkl.NpzFormat(rows="images", target="digit")
    ...     ds = dkl.ingest(f"{folder}/rows.npz", f"{folder}/rows.zarr", format=form)
    >>> ds.n_rows, ds.classes.tolist()
    (4, [0, 1])
    """

    rows: str = "X"
    target: str | None = None
    weight: str | None = None

    def staged_bytes(self, file: InputFile) -> int:
        """The bytes of all arrays, decompressed."""
        with _members(file) as members:
            return sum(member.file_size for member in members.archive.infolist())

    def pieces(self, file: InputFile) -> Iterator[tuple[str, int]]:
        """The parts of a file that must be in memory as a whole, by name, with their bytes.

        For a dense array a row; for a CSR matrix the pointers of all rows, and the longest row. The pointers' size
        comes before they are read, so that a caller can refuse to go on.
        """
        with _members(file) as members:
            if not members.hold_csr:
                yield "a row", members.get(self.rows, "rows").row_bytes
                return
            data, indices, indptr = (members.get(name, "rows") for name in ("data", "indices", "indptr"))
            yield "the array 'indptr'", len(indptr) * indptr.row_bytes
            longest = int(np.diff(indptr.everything()).max(initial=0))
            # damaged pointers are refused when rows are read
            yield "a row", min(longest, len(data)) * (data.row_bytes + indices.row_bytes)

    def read(self, file: InputFile) -> Iterator[tuple[Batch, int]]:
        """Batches (X, y, weight), read in order from each array, and the number of the file's bytes for each."""
        with _members(file) as members:
            y = members.column(self.target, "y")
            weight = members.column(self.weight, "sample_weight")
            # `scipy.sparse.save_npz` writes these names; an archive that has all of them is taken for CSR.
            n_rows, batches = members.csr_rows() if members.hold_csr else members.dense_rows(self.rows)
            for name, column in (("target", y), ("weight", weight)):
                if column is not None and len(column) != n_rows:
                    raise ValueError(f"'{file.name}' holds {n_rows} rows and {len(column)} values of the {name}")
            for X in batches:
                n = X.shape[0]
                parts = (X, None if y is None else y.take(n), None if weight is None else weight.take(n))
                yield parts, file.size * n // n_rows


@contextmanager
def _members(file: InputFile) -> Iterator[_Members]:
    """The arrays of a file; errors of decompression inside the block become a ValueError with the file's name."""
    remedy = "write it again with numpy.savez or scipy.sparse.save_npz"
    errors = zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError
    with unreadable(file, "npz archive", remedy, *errors), file.open() as stream, ExitStack() as stack:
        yield _Members(stack.enter_context(zipfile.ZipFile(stream)), file, stack)


class _Member:
    """One array of an archive, read from front to back, so that it need not be in memory as a whole."""

    def __init__(self, archive: zipfile.ZipFile, file: InputFile, name: str, stack: ExitStack) -> None:
        self._stream = stack.enter_context(archive.open(f"{name}.npy"))
        self.place = f"array '{name}' of '{file.name}'"
        header = np.lib.format
        try:
            # the length field of version 2 headers has another size, for which NumPy has another function
            is_first = header.read_magic(self._stream) == (1, 0)
            read = header.read_array_header_1_0 if is_first else header.read_array_header_2_0
            self.shape, in_column_order, self.dtype = read(self._stream)
        except ValueError as error:
            raise ValueError(f"{self.place} has no readable header: {error}; write the archive again") from error
        most = np.iinfo(np.int64).max
        if any(isinstance(n, bool) or not 0 <= n <= most for n in self.shape) or self.row_bytes > most:
            raise ValueError(f"{self.place} has no readable header: its shape is {self.shape}; write the archive again")
        # objects are stored as pickles, and reading a pickle runs code
        if self.dtype.hasobject:
            raise TypeError(
                f"{self.place} holds Python objects, which are not read; save it as numbers or as fixed-length texts"
            )
        # in column order no row is complete before the whole array is read
        if in_column_order and len(self.shape) > 1:
            raise ValueError(f"{self.place} is stored by columns; save np.ascontiguousarray of it")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def row_bytes(self) -> int:
        return max(1, self.dtype.itemsize * math.prod(self.shape[1:]))

    def take(self, n: int) -> np.ndarray:
        """The next n rows."""
        n_bytes = n * self.row_bytes
        data = self._stream.read(n_bytes)
        if len(data) < n_bytes:
            raise ValueError(f"{self.place} ends early: the file is damaged")
        return np.frombuffer(data, self.dtype).reshape(n, *self.shape[1:])

    def everything(self) -> np.ndarray:
        return self.take(len(self)) if self.shape else np.frombuffer(self._stream.read(), self.dtype)[0]


class _Members:
    """The arrays of an archive by name."""

    def __init__(self, archive: zipfile.ZipFile, file: InputFile, stack: ExitStack) -> None:
        self.archive, self._file, self._stack = archive, file, stack
        self.names = sorted(name.removesuffix(".npy") for name in archive.namelist())

    @property
    def hold_csr(self) -> bool:
        """Whether they are the parts of a CSR matrix; ValueError for a sparse matrix in another form.

        A CSC matrix has arrays of the same names, and would be read as its transpose.
        """
        if {"data", "shape", "format"} <= set(self.names):
            form = np.asarray(self.get("format", "rows").everything()).astype(str).item()
            if form in ("csc", "bsr", "coo", "dia"):
                raise ValueError(
                    f"'{self._file.name}' holds a sparse matrix in the form {form!r}; expected 'csr': save it again by "
                    "scipy.sparse.save_npz(path, X.tocsr())"
                )
        return set(_CSR_PARTS) <= set(self.names)

    def get(self, name: str, role: str) -> _Member:
        if name not in self.names:
            raise ValueError(f"'{self._file.name}' has no array '{name}'; it has {self.names}: {_REMEDIES[role]}")
        return _Member(self.archive, self._file, name, self._stack)

    def column(self, chosen: str | None, default: str) -> _Member | None:
        if chosen is None and default not in self.names:
            return None
        member = self.get(chosen or default, "target" if default == "y" else "weight")
        if member.shape[1:] not in ((), (1,)) or not member.shape:
            raise ValueError(f"{member.place} has shape {member.shape}; expected one value a row")
        return member

    def dense_rows(self, name: str) -> tuple[int, Iterator[Rows]]:
        member = self.get(name, "rows")
        if len(member.shape) < 2 or 0 in member.shape[1:]:
            raise ValueError(f"{member.place} has shape {member.shape}; expected (rows, columns)")
        return len(member), self._dense_batches(member)

    def _dense_batches(self, member: _Member) -> Iterator[Rows]:
        step = max(1, _BATCH_BYTES // member.row_bytes)
        for start in range(0, len(member), step):
            X = member.take(min(step, len(member) - start))
            yield X.reshape(len(X), -1)

    def csr_rows(self) -> tuple[int, Iterator[Rows]]:
        shape = tuple(int(n) for n in self.get("shape", "rows").everything())
        indptr = self.get("indptr", "rows").everything()
        if len(shape) != 2 or len(indptr) != shape[0] + 1:
            raise ValueError(f"'{self._file.name}' holds no CSR matrix: shape {shape}, {len(indptr)} row bounds")
        check_pointers(indptr, shape[0], min(len(self.get(name, "rows")) for name in ("data", "indices")))
        return shape[0], self._csr_batches(shape[1], indptr)

    def _csr_batches(self, n_columns: int, indptr: np.ndarray) -> Iterator[Rows]:
        # both arrays are read from front to back, so that neither need be in memory as a whole
        data, indices = self.get("data", "rows"), self.get("indices", "rows")
        # as CSR rows differ in length, a batch is limited by its number of entries
        per_batch = _BATCH_BYTES // (data.row_bytes + indices.row_bytes)
        start = 0
        while start < len(indptr) - 1:
            stop = max(start + 1, int(np.searchsorted(indptr, indptr[start] + per_batch, side="right")) - 1)
            count = int(indptr[stop] - indptr[start])
            bounds = indptr[start : stop + 1] - indptr[start]
            parts = data.take(count), indices.take(count), bounds
            yield whole_csr(*parts, n_columns)
            start = stop
