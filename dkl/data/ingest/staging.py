"""Stage: table rows on temporary disk, read back in shuffled or input order in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from dkl.protocols.sampling import shuffle_keys

ROW = "__dkl_row__"
"""Name of the column with the number of each row in the input."""

BUFFER_BYTES = 64 * 2**20
# Number of buckets for each buffer's bytes of rows: with smaller buckets, reads are closer to half a buffer, even if
# the estimate of all bytes is wrong.
_BUCKETS_A_BUFFER = 16
_MAX_BUCKETS = 4096


class Stage:
    """Rows of one schema, written in the order of the input and read back in the order of `shuffle_keys`.

    Each full buffer becomes a *run*: a file whose record batches are buckets, which are ranges of the key. A range of
    buckets from all runs contains consecutive rows of the shuffled order, so that few files and less memory than a
    buffer suffice.

    Parameters
    ----------
    folder : Path
        Folder of the runs; the caller removes it.
    seed : int or None
        None keeps the order of the input.
    n_bytes : int
        Estimate of the bytes of all rows; it affects memory and time, but not the order.
    buffer_bytes : int
        Bytes of rows collected before they are written, which takes three times as much memory; reading takes half.
    """

    def __init__(self, folder: Path, *, seed: int | None, n_bytes: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.n_rows = 0
        self.n_bytes = 0
        self._folder = folder
        self._buffer_bytes = buffer_bytes
        self._read_bytes = buffer_bytes // 2
        self._seed = seed

        self._n_buckets = int(np.clip(math.ceil(_BUCKETS_A_BUFFER * n_bytes / buffer_bytes), 1, _MAX_BUCKETS))
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._runs: list[Path] = []

    def add(self, table: pa.Table) -> None:
        """Append rows, numbered consecutively unless the table has a column `ROW`."""
        if ROW not in table.column_names:
            rows = np.arange(self.n_rows, self.n_rows + table.num_rows)
            table = table.append_column(ROW, pa.array(rows))
        self.n_rows += table.num_rows
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= self._buffer_bytes:
            self._write_run()

    def clear(self) -> None:
        """Remove all rows, also from the disk."""
        for run in self._runs:
            run.unlink()
        self._runs, self._pending = [], []
        self.n_rows = self.n_bytes = self._pending_bytes = 0

    def _write_run(self) -> None:
        # sorting a column of many chunks takes several times as long
        table = pa.concat_tables(self._pending).combine_chunks()
        self._pending = []
        self._pending_bytes = 0
        self.n_bytes += table.nbytes
        bounds = np.array([0, table.num_rows])
        if self._seed is not None:
            # floor(key / 2^64 * number of buckets), in 64-bit integers
            top = shuffle_keys(table.column(ROW).to_numpy(), self._seed) >> np.uint64(32)
            buckets = (top * np.uint64(self._n_buckets) >> np.uint64(32)).astype(np.uint16)
            table = table.take(pa.array(np.argsort(buckets, kind="stable")))
            bounds = np.concatenate([[0], np.cumsum(np.bincount(buckets, minlength=self._n_buckets))])
        path = self._folder / f"run-{len(self._runs):05d}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            # one record batch for each bucket, also for empty ones, so that bucket numbers are batch numbers
            for start, stop in pairwise(bounds):
                batches = table.slice(start, stop - start).to_batches()
                writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))
        self._runs.append(path)

    def tables(self) -> Iterator[pa.Table]:
        """All rows in order, in tables of bounded size with the column `ROW`; no rows may be added afterwards."""
        if self._pending:
            self._write_run()
        if self._seed is None:
            yield from self._in_input_order()
        else:
            yield from self._in_shuffled_order(self._seed)

    def _in_input_order(self) -> Iterator[pa.Table]:
        for run in self._runs:
            table = _rows_of_buckets(run, range(1))
            # a run is one batch, which is returned in parts of half a buffer
            rows = max(1, math.ceil(table.num_rows * self._read_bytes / max(table.nbytes, 1)))
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)

    def _in_shuffled_order(self, seed: int) -> Iterator[pa.Table]:
        # as many buckets at a time as fill half a buffer, as their rows and a sorted copy are in memory
        step = max(1, math.floor(self._read_bytes * self._n_buckets / max(self.n_bytes, 1)))
        for start in range(0, self._n_buckets, step):
            buckets = range(start, min(start + step, self._n_buckets))
            table = pa.concat_tables([_rows_of_buckets(run, buckets) for run in self._runs])
            if table.num_rows:
                keys = shuffle_keys(table.column(ROW).to_numpy(), seed)
                yield table.take(pa.array(np.argsort(keys, kind="stable"))).combine_chunks()


def _rows_of_buckets(run: Path, buckets: range) -> pa.Table:
    """The rows of some buckets of a run."""
    # not memory-mapped, as mapped pages would count as memory of the process
    with pa.OSFile(str(run)) as source, pa.ipc.open_file(source) as reader:
        return pa.Table.from_batches([reader.get_batch(i) for i in buckets], schema=reader.schema)
