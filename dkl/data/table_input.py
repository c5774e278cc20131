"""Tables in memory and streams of record batches as input of ingest, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dask
import pyarrow as pa

from dkl.data.frames import check_names, is_frame
from dkl.data.given import GivenRows
from dkl.data.ingest.columns import as_table, plain
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.tables import Probe
from dkl.data.other_frames import arrow_batches, is_other_table, with_plain_texts
from dkl.errors import located

_BATCH_ROWS = 16_384


def is_table(given: object) -> bool:
    """Whether what ingest is given is a table or a stream of record batches rather than paths."""
    return is_frame(given) or is_other_table(given)


@dataclass(frozen=True, eq=False)
class GivenTable:
    """The reader of one table that the caller has in memory, or of a stream that can be read once.

    Parameters
    ----------
    batches : pyarrow.Table or pyarrow.RecordBatchReader
    """

    batches: pa.Table | pa.RecordBatchReader

    def probe(self, file: InputFile) -> Probe:
        """The columns, and their bytes: 0 of a stream, of which nobody knows."""
        return Probe(file, self.batches.schema.remove_metadata(), file.size)

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables of some thousand rows, and how many bytes of memory each takes."""
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
    """A table as the one input of ingest, and its reader.

    A pandas frame is converted whole, a lazy frame of Polars is computed a batch at a time, and a stream of record
    batches is never held.

    Raises
    ------
    TypeError
        A data frame of Dask, or a column that Arrow has no type for.
    ValueError
        Two columns have one name.
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
