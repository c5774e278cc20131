"""Reading Parquet files into tables of a given schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dkl.data.columns import column_kind, numbers, texts
from dkl.data.paths import InputFile
from dkl.data.tables import Probe

_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files, read some thousand rows at a time."""

    def probe(self, file: InputFile) -> Probe:
        with _opened(file) as parquet:
            rows = parquet.metadata.num_rows
            first = next(parquet.iter_batches(1000), None)
            width = first.nbytes / first.num_rows if first is not None and first.num_rows else 0
            return Probe(file, parquet.schema_arrow.remove_metadata(), int(width * rows))

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        with _opened(file) as parquet:
            share = file.size / max(parquet.metadata.num_rows, 1)
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=schema.names):
                table = pa.Table.from_batches([batch])
                columns = [plain(table.column(field.name), field) for field in schema]
                yield pa.table(columns, schema=schema), int(share * batch.num_rows)


@contextmanager
def _opened(file: InputFile) -> Iterator[pq.ParquetFile]:
    with file.open() as stream:
        try:
            parquet = pq.ParquetFile(stream, pre_buffer=False)
        except pa.ArrowInvalid as error:
            raise ValueError(f"'{file.name}' is not a whole Parquet file: {error}") from error
        yield parquet


def plain(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The values of a column in the plain type that it travels in."""
    if column.type == field.type:
        return column
    if pa.types.is_string(field.type):
        return texts(column)
    if column_kind(column.type) == "number":
        return pa.chunked_array([pa.array(numbers(column), field.type, from_pandas=True)])
    return column.cast(field.type)
