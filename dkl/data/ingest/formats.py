"""Chooses the reader of input files by their format, and the sizes of buffers by a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import pyarrow as pa
from dask.utils import format_bytes

from dkl.data.frames import check_names, is_frame
from dkl.data.given import GivenRows
from dkl.data.ingest.columns import as_table, plain
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.libsvm_files import LibsvmFormat
from dkl.data.ingest.matrix_rows import MatrixRows
from dkl.data.ingest.npz_files import NpzFormat
from dkl.data.ingest.parquet_files import ParquetFormat
from dkl.data.ingest.paths import FileFormat, InputFile, file_format
from dkl.data.ingest.staging import BUFFER_BYTES
from dkl.data.ingest.table_rows import TableChoices, TableRows
from dkl.data.ingest.tables import Probe
from dkl.data.other_frames import arrow_batches, is_other_table, with_plain_texts
from dkl.errors import MemoryLimitError, located
from dkl.process import free_memory, usable_cores

_BATCH_ROWS = 16_384
Format = FileFormat | CsvFormat | ParquetFormat | LibsvmFormat | NpzFormat

_READERS: dict[FileFormat, type[CsvFormat | LibsvmFormat | NpzFormat | ParquetFormat]] = {
    "csv": CsvFormat,
    "libsvm": LibsvmFormat,
    "npz": NpzFormat,
    "parquet": ParquetFormat,
}
_CHUNK_BYTES = 4 * 2**20
_MAX_THREADS = 8
_NARROWER_ROWS = "Save the rows as a sparse matrix, or fewer of them or of their columns in a file"
# Bytes of the dataset's blocks that are encoded and compressed at a time.
WRITTEN_BYTES = 64 * 2**20
# Bytes of memory that ingest uses besides its buffers: those blocks and the one that is being filled, with copies.
_FIXED_BYTES = 192 * 2**20


@dataclass(frozen=True)
class Buffers:
    """Sizes of the buffers of `ingest`.

    Parameters
    ----------
    stage_bytes : int
        Bytes of rows collected before they are written to temporary disk.
    chunk_bytes : int
        Bytes of text that a thread parses at a time.
    threads : int
        Number of these threads.
    """

    stage_bytes: int = BUFFER_BYTES
    chunk_bytes: int = _CHUNK_BYTES
    threads: int = field(default_factory=lambda: min(_MAX_THREADS, usable_cores()))

    @property
    def peak_bytes(self) -> int:
        """Peak memory: for sorting a full stage, chunks as text and as columns, and blocks."""
        # sorting a stage takes about three times its bytes; a chunk, as text and as columns, four times
        return 3 * self.stage_bytes + 4 * (self.threads + 1) * self.chunk_bytes + _FIXED_BYTES

    @classmethod
    def within(cls, memory_limit: int | None) -> Buffers:
        """The largest buffers whose `peak_bytes` are within a limit on memory in addition to that of the process now.

        Raises
        ------
        MemoryLimitError
            If the smallest buffers exceed it.
        """
        # halved until they fit, at most to a 64th: with smaller ones nearly all memory is that of blocks
        buffers = cls()
        while memory_limit is not None and buffers.peak_bytes > memory_limit:
            if buffers.stage_bytes <= BUFFER_BYTES // 64:
                raise MemoryLimitError(
                    f"memory_limit is {format_bytes(memory_limit)}, ingest needs {format_bytes(buffers.peak_bytes)}: "
                    f"three buffers of {format_bytes(buffers.stage_bytes)}, {buffers.threads + 1} chunks of text of "
                    f"{format_bytes(4 * buffers.chunk_bytes)} with their columns, and {format_bytes(_FIXED_BYTES)} to "
                    "encode and write a block"
                )
            buffers = cls(buffers.stage_bytes // 2, max(2**18, buffers.chunk_bytes // 2), buffers.threads)
        return buffers


def open_rows(
    files: list[InputFile],
    chosen: Format | GivenTable | None,
    choices: TableChoices,
    buffers: Buffers,
    memory_limit: int | None = None,
) -> TableRows | MatrixRows:
    """The rows of `files` in the chosen format, or in that of their suffixes.

    Raises
    ------
    MemoryLimitError
        If a single row of an archive exceeds the limit, or free memory; nothing is read.
    ValueError
        If the format is unknown, files have different formats, or a choice does not apply to the format.
    """
    reader = chosen if isinstance(chosen, GivenTable) else _reader(files, chosen, buffers)
    if isinstance(reader, CsvFormat | ParquetFormat | GivenTable):
        return TableRows(files, reader, choices)
    # choices without an effect are errors, as users would expect one
    if choices.like is not None:
        raise ValueError("like= has rules for the columns of tables, and matrix files have none; leave it out")
    for name in ("drop", "categorical", "split", "group", "time"):
        if getattr(choices, name):
            raise ValueError(f"{name}={getattr(choices, name)} names columns of tables, and matrix files have none")
    if choices.drop_missing_target:
        raise ValueError("drop_missing_target=True is for rows of tables; leave rows without a target out of matrices")
    if isinstance(reader, NpzFormat):
        reader = replace(reader, target=choices.target or reader.target, weight=choices.weight or reader.weight)
        # without a limit, exceeding free memory would have the system kill the process
        most = free_memory() if memory_limit is None else memory_limit - buffers.peak_bytes
        for file in files:
            for what, n_bytes in reader.pieces(file):
                # three copies exist: as read, as staged, and as sorted
                if 3 * n_bytes > most:
                    has = f"{what} of '{file.name}' has {format_bytes(n_bytes)}, and is there three times"
                    if memory_limit is None:
                        raise MemoryLimitError(f"{has}; {format_bytes(most)} of memory are free. {_NARROWER_ROWS}")
                    needed = format_bytes(buffers.peak_bytes + 3 * n_bytes)
                    raise MemoryLimitError(
                        f"memory_limit is {format_bytes(memory_limit)}, ingest needs {needed}: {has} beside buffers; "
                        f"raise the limit. {_NARROWER_ROWS}"
                    )
    elif choices.not_features:
        raise ValueError(f"libsvm text carries its target and no other columns; leave out {choices.not_features}")
    return MatrixRows(files, reader, task=choices.task, layout=choices.layout)


def table_reader(files: list[InputFile], chosen: Format | None) -> CsvFormat | ParquetFormat:
    """The reader of files of tables; ValueError for other formats."""
    reader = _reader(files, chosen, Buffers())
    if not isinstance(reader, CsvFormat | ParquetFormat):
        raise ValueError(f"'{files[0].name}' is no table: expected CSV or Parquet")
    return reader


def _reader(
    files: list[InputFile], chosen: Format | None, buffers: Buffers
) -> CsvFormat | ParquetFormat | LibsvmFormat | NpzFormat:
    """The chosen reader, or the one for the chosen format's name or for the suffixes, with the given buffers."""
    reader = _READERS[file_format(files, chosen)]() if chosen is None or isinstance(chosen, str) else chosen
    if isinstance(reader, CsvFormat | LibsvmFormat):
        return replace(reader, chunk_bytes=buffers.chunk_bytes, threads=buffers.threads)
    return reader


def is_table(given: object) -> bool:
    """Whether the input of ingest is a table or a stream of record batches instead of paths."""
    return is_frame(given) or is_other_table(given)


@dataclass(frozen=True, eq=False)
class GivenTable:
    """The reader of a table in memory, or of a stream of record batches, which can be read once.

    Parameters
    ----------
    batches : pyarrow.Table or pyarrow.RecordBatchReader
    """

    batches: pa.Table | pa.RecordBatchReader

    def probe(self, file: InputFile) -> Probe:
        """The columns, and the bytes of the table; 0 for a stream, whose size is unknown."""
        return Probe(file, self.batches.schema.remove_metadata(), file.size)

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables of at most 16,384 rows, and the bytes of each."""
        row = 0
        batches = self.batches.to_batches() if isinstance(self.batches, pa.Table) else self.batches
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                part = pa.Table.from_batches([batch.slice(start, _BATCH_ROWS)]).select(schema.names)
                table = with_plain_texts(part)
                with located(file.name):
                    columns = [plain(table.column(field.name), field, row) for field in schema]
                row += part.num_rows
                yield pa.table(columns, schema=schema), min(part.nbytes, file.size)


def given_table(table: GivenRows) -> tuple[list[InputFile], GivenTable]:
    """A table as a single input file of ingest, and its reader.

    A pandas frame is converted whole; a lazy frame of Polars and a stream are read a batch at a time.

    Raises
    ------
    TypeError
        For a Dask data frame, or a column of a type that Arrow lacks.
    ValueError
        If two columns have the same name.
    """
    kind = type(table)
    name = f"the {kind.__name__} of {kind.__module__.partition('.')[0]}"
    if dask.is_dask_collection(table):
        raise TypeError(
            "ingest reads files, tables in memory and streams; dkl.create_dataset(store, X, y) takes Dask data frames"
        )
    if is_frame(table) and hasattr(table, "iloc"):
        check_names(table)
        known: Any = as_table(table)
    else:
        known = arrow_batches(table)
    n_bytes = known.nbytes if isinstance(known, pa.Table) else 0
    return [InputFile(name, n_bytes, None, None, "")], GivenTable(known)
