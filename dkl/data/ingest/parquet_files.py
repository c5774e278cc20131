"""Reading Parquet files into tables of a given schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkl.data.ingest.columns import plain
from dkl.data.ingest.paths import InputFile, unreadable
from dkl.data.ingest.tables import Probe
from dkl.errors import located

_BATCH_ROWS = 16_384
_NO_NAME_IN_DASK = "__null_dask_index__"


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files, read 16,384 rows at a time."""

    def probe(self, file: InputFile) -> Probe:
        """The columns of a file, and its size as a table, estimated from its first rows."""
        with _opened(file) as parquet:
            rows = parquet.metadata.num_rows
            first = next(_batches(file, parquet, 1000, None), None)
            width = first.nbytes / first.num_rows if first is not None and first.num_rows else 0
            with _damage(file):
                schema, index = _columns(parquet.schema_arrow)
            return Probe(file, schema, int(width * rows), index)

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables in the order of the file, and the number of the file's bytes for each."""
        with _opened(file) as parquet:
            # the file is stored by columns, so that only the mean number of bytes of a row is known
            share, row = file.size / max(parquet.metadata.num_rows, 1), 0
            for batch in _batches(file, parquet, _BATCH_ROWS, schema.names):
                table = pa.Table.from_batches([batch])
                with located(f"'{file.name}'"):
                    columns = [plain(_column(table, field.name), field, row) for field in schema]
                row += batch.num_rows
                yield pa.table(columns, schema=schema), int(share * batch.num_rows)
            with _damage(file):
                if row != parquet.metadata.num_rows:
                    raise ValueError(f"it has {row:,} rows, and its footer says {parquet.metadata.num_rows:,}")


def _columns(written: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
    """The schema of the data frame that was written, without its unnamed index, and the names of the index's columns.

    Parquet stores categories of numbers, booleans or dates as plain values; only pandas' metadata says that they are
    categories. Periods become times.
    """
    metadata = written.pandas_metadata or {}
    columns = [note for note in metadata.get("columns", []) if note.get("field_name")]
    categories = {note["field_name"] for note in columns if note["pandas_type"] == "categorical"}
    unnamed = {note["field_name"] for note in columns if note["name"] in (None, _NO_NAME_IN_DASK)}
    # a RangeIndex is not a column of the file; its entry is a mapping, not a name
    index = {name for name in metadata.get("index_columns", []) if isinstance(name, str) and name in unnamed}
    fields = []
    for field in written.remove_metadata():
        if field.name in categories and not pa.types.is_dictionary(field.type):
            field = field.with_type(pa.dictionary(pa.int32(), field.type))
        elif _frequency(field):
            field = field.with_type(pa.timestamp("ns"))
        if field.name not in index:
            fields.append(field)
    return pa.schema(fields), tuple(sorted(index))


def _frequency(field: pa.Field) -> str | None:
    """The frequency of a column of periods of pandas ("M", "Q-DEC", ...); None for other columns.

    Arrow reads them as an extension type if pandas has registered it, else as integers with metadata.
    """
    if getattr(field.type, "extension_name", "") == "pandas.period":
        return str(field.type.freq)
    metadata = field.metadata or {}
    if metadata.get(b"ARROW:extension:name") != b"pandas.period":
        return None
    return str(json.loads(metadata[b"ARROW:extension:metadata"])["freq"])


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of a table; periods become the times at which they begin."""
    column, frequency = table.column(name), _frequency(table.schema.field(name))
    if frequency is None:
        return column
    import pandas as pd

    counted = pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min)
    began = pd.PeriodIndex.from_ordinals(counted.to_numpy(), freq=frequency).to_timestamp()  # type: ignore[attr-defined]
    return pa.chunked_array([pa.array(began, pa.timestamp("ns"), from_pandas=True)])


@contextmanager
def _opened(file: InputFile) -> Iterator[pq.ParquetFile]:
    with file.open() as stream:
        with _damage(file):
            # buffering ahead would load a whole row group of a remote file; page checksums are verified if present
            parquet = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        yield parquet


def _batches(file: InputFile, parquet: pq.ParquetFile, rows: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Batches of `rows` rows; errors in the middle of a file name it."""
    batches = parquet.iter_batches(rows, columns=names)
    while True:
        with _damage(file):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _damage(file: InputFile) -> AbstractContextManager[None]:
    """Errors of pyarrow inside the block name the file."""
    # damaged metadata of pandas, which is JSON, may cause errors of many types
    errors = pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError
    remedy = "write or copy it again, or say what it is with format="
    return unreadable(file, "Parquet file", remedy, *errors)
