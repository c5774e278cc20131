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

from dkl.data.paths import InputFile
from dkl.data.shuffle import Batch
from dkl.data.text_chunks import in_order, text_chunks

MAX_WIDTH = 2**31 - 1
"""The width of rows whose number of columns is not known yet."""

_LABEL = -1
# every token goes on a line of its own, "index,value", and a label as "-1,label": then one CSV parser reads it all
_TOKENS = bytes.maketrans(b" \t:", b"\n\n,")
_DROPPED = b"+\r"


@dataclass(frozen=True)
class LibsvmFormat:
    """libsvm / svmlight text: ``label index:value index:value ...`` a line; comments after ``#`` are skipped.

    Indices are handed on as written: whether they start at 0 or at 1 shows only when all files are read.

    Parameters
    ----------
    n_columns : int or None
        Columns of a row; None is the highest index found.
    zero_based : bool or "auto"
        Whether the first column is called 0; "auto" says so when an index 0 occurs in any file.
    chunk_bytes, threads : int
        Text that one thread parses at a time; up to one chunk more than threads is in memory.
    """

    n_columns: int | None = None
    zero_based: Literal["auto"] | bool = "auto"
    chunk_bytes: int = 4 * 2**20
    threads: int = 2

    def width_and_base(self, lowest: int, highest: int) -> tuple[int, int]:
        """The number of columns and what the first one is called, from the lowest and highest index of all files.

        Raises
        ------
        ValueError
            More columns than `n_columns`, an index 0 although the first column is called 1, or no column at all.
        """
        base = int(lowest > 0) if self.zero_based == "auto" else int(not self.zero_based)
        if lowest < base:
            raise ValueError("the files hold an index 0, and zero_based=False says that the first column is called 1")
        found = highest + 1 - base
        if self.n_columns is not None and found > self.n_columns:
            raise ValueError(f"the files hold {found} columns, more than n_columns={self.n_columns}")
        if not (self.n_columns or found > 0):
            raise ValueError("the files hold no index:value pair, so there are no columns; pass n_columns=")
        return self.n_columns or found, base

    def staged_bytes(self, file: InputFile) -> int:
        """About the bytes of all rows: a token of text is about as long as an index and a value."""
        return file.unpacked_size

    def read(self, file: InputFile) -> Iterator[tuple[Batch, int]]:
        """Batches (CSR rows of width `MAX_WIDTH`, labels, None), and how many bytes of the file each covers."""
        packed = file.size / file.unpacked_size
        rows = 0
        with file.open() as stream, ThreadPoolExecutor(self.threads) as pool:

            def parse(chunk: bytes) -> tuple[Batch, int]:
                return libsvm_rows(chunk), int(len(chunk) * packed)

            try:
                for batch, n_bytes in in_order(pool, parse, text_chunks(stream, self.chunk_bytes), self.threads + 1):
                    rows += batch[0].shape[0]
                    yield batch, n_bytes
            except pa.ArrowInvalid as error:
                raise ValueError(
                    f"'{file.name}', after row {rows}: expected lines of numbers, 'label index:value index:value ...', "
                    f"and found: {error}"
                ) from error


def libsvm_rows(text: bytes) -> Batch:
    """Whole lines of libsvm text as (CSR rows, float64 labels, None).

    Raises
    ------
    pyarrow.ArrowInvalid
        A token is not ``index:value``.
    ValueError
        Indices of a row do not ascend, or are negative.
    """
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    if b"qid:" in text:
        text = re.sub(rb"\bqid:\S+", b"", text)
    lines = [b"-1:" + line for line in map(bytes.strip, text.split(b"\n")) if line]
    if not lines:
        return sparse.csr_array((0, MAX_WIDTH), dtype=np.float32), np.empty(0), None
    indices, values = _parse_tokens(b"\n".join(lines).translate(_TOKENS, _DROPPED))
    starts = np.flatnonzero(indices == _LABEL)
    _check_indices(indices, starts, lines)
    kept = indices != _LABEL
    indptr = np.append(starts - np.arange(len(starts)), kept.sum()).astype(np.int32)
    X = sparse.csr_array((values[kept].astype(np.float32), indices[kept], indptr), shape=(len(starts), MAX_WIDTH))
    return X, values[starts], None


def _parse_tokens(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    tokens = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(
            column_names=["index", "value"], use_threads=False, block_size=len(text) + 1
        ),
        parse_options=pyarrow.csv.ParseOptions(quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"index": pa.int32(), "value": pa.float64()}, null_values=[]
        ),
    )
    return tokens.column("index").to_numpy(), tokens.column("value").to_numpy()


def _check_indices(indices: np.ndarray, starts: np.ndarray, lines: list[bytes]) -> None:
    wrong = np.flatnonzero(np.diff(indices) <= 0) + 1
    wrong = wrong[indices[wrong] != _LABEL]
    if len(wrong) or len(starts) != len(lines):
        row = int(np.searchsorted(starts, wrong[0], side="right")) - 1 if len(wrong) else 0
        raise ValueError(
            f"indices of libsvm text must ascend within a line and be at least 0; found {lines[row][3:83].decode()!r}"
        )
