"""Reading libsvm / svmlight text in parallel, a few megabytes at a time, as CSR rows with labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
from scipy import sparse

from dkl.data.checks import check_rows
from dkl.data.in_threads import in_order
from dkl.data.ingest.packing import Batch
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.text_chunks import text_chunks
from dkl.errors import located

MAX_WIDTH = 2**31 - 1
"""The number of columns of rows until all files are read and the highest index is known."""

_LABEL = -1
# Each token becomes a line "index,value", and each label "-1,label", so that a CSV parser can read them.
_TOKENS = bytes.maketrans(b" \t:", b"\n\n,")
_DIGITS = rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:nan|inf|infinity)"
_NUMBER = re.compile(_DIGITS)
_PAIR = re.compile(rb"([+-]?[0-9]+):(?:" + _DIGITS + rb")")


@dataclass(frozen=True)
class LibsvmFormat:
    """libsvm / svmlight text: ``label index:value index:value ...`` a line; comments after ``#`` are skipped.

    Parameters
    ----------
    n_columns : int or None
        Number of columns; None follows from the highest index.
    zero_based : bool or "auto"
        Whether the index of the first column is 0. "auto": 0 if any file has an index 0, else 1; with `n_columns` it is
        an error if the indices allow both.
    chunk_bytes, threads : int
        Bytes of text that one thread parses at a time; at most one chunk more than `threads` is in memory.

    Examples
    --------
    >>> import pathlib
    >>> import tempfile
    >>> import dkl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = pathlib.Path(folder, "rows.svm")
    ...     _ = text.write_text("+1 1:0.5 3:2.0\\n-1 2:1.0\\n")
    ...     ds = dkl.ingest(text, f"{folder}/rows.zarr", format=dkl.LibsvmFormat(n_columns=4, zero_based=False))
    >>> ds.n_rows, ds.n_columns
    (2, 4)
    """

    n_columns: int | None = None
    zero_based: Literal["auto"] | bool = "auto"
    chunk_bytes: int = 4 * 2**20
    threads: int = 2

    def width_and_base(self, lowest: int, highest: int) -> tuple[int, int]:
        """The number of columns and the index of the first one, from the lowest and highest index of all files.

        Raises
        ------
        ValueError
            For more columns than `n_columns`, an index 0 with ``zero_based=False``, no column at all, or indices that
            may start at 0 or at 1 since `n_columns` exceeds the highest one.
        """
        if self.zero_based == "auto" and 0 < lowest <= highest < (self.n_columns or 0):
            raise ValueError(
                f"the files hold indices from {lowest} to {highest} and n_columns={self.n_columns}, so the first "
                "column may be 0 or 1; say which, as the files of the training rows have it (ds.schema.first_index, "
                "'first index' in dkl info): format=dkl.LibsvmFormat(n_columns=..., zero_based=...), in the shell "
                "--zero-based or --one-based"
            )

        base = int(lowest > 0) if self.zero_based == "auto" else int(not self.zero_based)
        if lowest < base:
            raise ValueError(
                "the files hold an index 0, and the first column is said to be called 1 (zero_based is False, in the "
                "shell --one-based); leave that out"
            )
        n_columns = highest + 1 - base
        if self.n_columns is not None and n_columns > self.n_columns:
            raise ValueError(f"the files hold {n_columns} columns, more than n_columns={self.n_columns}")
        if not (self.n_columns or n_columns > 0):
            raise ValueError("the files hold no index:value pair, so there are no columns; pass n_columns=")
        return self.n_columns or n_columns, base

    def staged_bytes(self, file: InputFile) -> int:
        """Estimate of the bytes of all rows: a token of text is about as long as an index and a value in binary."""
        return file.unpacked_size

    def read(self, file: InputFile) -> Iterator[tuple[Batch, int]]:
        """Batches (CSR rows with `MAX_WIDTH` columns, labels, None), and the number of the file's bytes for each.

        Indices are as in the file, since their base is known only when all files are read.
        """
        packed = file.size / file.unpacked_size
        with file.open() as stream, ThreadPoolExecutor(self.threads) as pool:

            def parse(item: tuple[bytes, int]) -> tuple[Batch, int]:
                chunk, line = item
                try:
                    return libsvm_rows(chunk), int(len(chunk) * packed)
                except ValueError as error:
                    raise ValueError(f"'{file.name}', {_first_fault(chunk, line) or error}") from error

            def numbered() -> Iterator[tuple[bytes, int]]:
                """Each chunk with the number of its first line, for messages."""
                line = 1
                for chunk in text_chunks(stream, self.chunk_bytes, name=file.name):
                    if b"\r" in chunk:
                        # old Macintosh files have only carriage returns
                        chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                    yield chunk, line
                    line += chunk.count(b"\n")

            yield from in_order(pool, parse, numbered(), self.threads + 1)


def libsvm_batches(files: list[InputFile], n_columns: int, *, zero_based: bool) -> Iterator[sparse.csr_array]:
    """The rows of files without their labels, as CSR rows of `n_columns` columns, in order.

    Raises
    ------
    ValueError
        For an index beyond the columns, or a value that is not finite; with the file and the row.
    """
    base, first_row = int(not zero_based), 0
    for file in files:
        for (X, _, _), _ in LibsvmFormat().read(file):
            with located(f"'{file.name}'"):
                # the model cannot use columns that fit did not have
                beyond = np.flatnonzero((X.indices < base) | (X.indices - base >= n_columns))
                if len(beyond):
                    row = first_row + int(np.searchsorted(X.indptr, beyond[0], side="right")) - 1
                    raise ValueError(
                        f"row {row} has the index {X.indices[beyond[0]]}, and the {n_columns} columns of fit are "
                        f"counted from {base} to {n_columns - 1 + base}"
                    )
                rows = sparse.csr_array((X.data, X.indices - base, X.indptr), shape=(X.shape[0], n_columns))
                check_rows(rows, first_row=first_row)
            yield rows
            first_row += X.shape[0]


def libsvm_rows(text: bytes) -> Batch:
    """Whole lines of libsvm text as (CSR rows, float64 labels, None).

    Raises
    ------
    ValueError
        If a token is not ``index:value`` with a whole number and a number, or the indices of a row do not ascend.
    """
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    if b"qid:" in text:
        text = re.sub(rb"\bqid:\S+", b"", text)
    if b"+" in text:
        # the parser does not accept a leading plus; a plus elsewhere is an error and stays
        text = re.sub(rb"(?<![^\s:])\+(?=[0-9.])", b"", text)
    # blank lines, and lines with only a comment, are not rows
    lines = [b"-1:" + line for line in map(bytes.strip, text.split(b"\n")) if line]
    if not lines:
        return sparse.csr_array((0, MAX_WIDTH), dtype=np.float32), np.empty(0), None
    # the parser reads 0x1A as a number, unlike other readers of this format
    if b"x" in text or b"X" in text:
        raise ValueError("a hexadecimal number")
    tokens = b"\n".join(lines).translate(_TOKENS)
    table = pyarrow.csv.read_csv(
        pa.BufferReader(tokens),
        read_options=pyarrow.csv.ReadOptions(
            column_names=["index", "value"], use_threads=False, block_size=len(tokens) + 1
        ),
        parse_options=pyarrow.csv.ParseOptions(quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"index": pa.int32(), "value": pa.float64()}, null_values=[]
        ),
    )
    indices, values = table.column("index").to_numpy(), table.column("value").to_numpy()
    # within a row indices ascend; they decrease only at labels, whose index is -1
    starts = np.flatnonzero(indices == _LABEL)
    wrong = np.flatnonzero(np.diff(indices) <= 0) + 1
    if (indices[wrong] != _LABEL).any() or len(starts) != len(lines) or indices.max() >= MAX_WIDTH:
        raise ValueError("indices that do not ascend")
    kept = indices != _LABEL
    indptr = np.append(starts - np.arange(len(starts)), kept.sum()).astype(np.int32)
    # a value beyond float32 becomes infinite, which the check of the rows refuses
    with np.errstate(over="ignore"):
        data = values[kept].astype(np.float32)
    return sparse.csr_array((data, indices[kept], indptr), shape=(len(starts), MAX_WIDTH)), values[starts], None


def _first_fault(text: bytes, first_line: int) -> str | None:
    """A message about the first line of libsvm text that is not well formed; None if all are."""
    for number, raw in enumerate(text.split(b"\n"), first_line):
        tokens = re.sub(rb"\bqid:\S+", b"", raw.partition(b"#")[0]).split()
        last, shown = -1, raw[:80].decode(errors="replace")
        for place, token in enumerate(tokens):
            match = (_PAIR if place else _NUMBER).fullmatch(token)
            if match is None:
                what = "an index:value pair" if place else "the label"
                return (
                    f"line {number}: expected lines of numbers, 'label index:value index:value ...', and found "
                    f"'{token[:40].decode(errors='replace')}' in the place of {what}"
                )
            index = int(match[1]) if place else -1
            if place and not last < index < MAX_WIDTH:
                return (
                    f"line {number}: indices must ascend within a line from 0 or 1 to at most {MAX_WIDTH - 1}; found "
                    f"{index} in {shown!r}"
                )
            last = index
    return None
