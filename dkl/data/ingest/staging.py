"""Table rows on temporary disk, handed back in shuffled or input order through a bounded amount of memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from dkl.protocols.sampling import shuffle_keys

ROW = "__dkl_row__"
"""The name of the column that carries the number of each row in the input."""

BUFFER_BYTES = 64 * 2**20
# Buckets to a buffer: the finer they are, the closer reading comes to half a buffer, whatever n_bytes was.
_BUCKETS = 16
_MAX_BUCKETS = 4096


class Stage:
    """Rows of one schema, written as they come and read back in the order of `shuffle_keys`.

    Full buffers become *runs*: files whose record batches are buckets, ranges of the key. Reading a range of buckets
    from every run gives consecutive rows of the shuffled order, so files stay few and memory stays below a buffer.

    Parameters
    ----------
    folder : Path
        Holds the runs; the caller removes it.
    seed : int or None
        None keeps the order of the input.
    n_bytes : int
        About how much will be staged; a wrong guess costs memory or time, never the order.
    buffer_bytes : int
        Rows held before they are written; some three times as much is in use then, and half of it when reading.
    """

    def __init__(self, folder: Path, *, seed: int | None, n_bytes: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.n_rows = 0
        self.n_bytes = 0
        self._folder = folder
        self._buffer_bytes = buffer_bytes
        self._read_bytes = buffer_bytes // 2
        self._seed = seed
        # So many that one bucket of all runs fits into a fraction of a buffer.
        self._n_buckets = int(np.clip(math.ceil(_BUCKETS * n_bytes / buffer_bytes), 1, _MAX_BUCKETS))
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._runs: list[Path] = []

    def add(self, table: pa.Table) -> None:
        """Append rows; each gets the next number in the input, unless the table has the numbers as `ROW`."""
        if ROW not in table.column_names:
            rows = np.arange(self.n_rows, self.n_rows + table.num_rows)
            table = table.append_column(ROW, pa.array(rows))
        self.n_rows += table.num_rows
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= self._buffer_bytes:
            self._write_run()

    def clear(self) -> None:
        """Forget all rows, and remove what was written of them."""
        for run in self._runs:
            run.unlink()
        self._runs, self._pending = [], []
        self.n_rows = self.n_bytes = self._pending_bytes = 0

    def _write_run(self) -> None:
        # One copy in one piece: sorting a column that is in many pieces costs several times as much.
        table = pa.concat_tables(self._pending).combine_chunks()
        self._pending = []
        self._pending_bytes = 0
        self.n_bytes += table.nbytes
        bounds = np.array([0, table.num_rows])
        if self._seed is not None:
            buckets = self._buckets(table, self._seed)
            table = table.take(pa.array(np.argsort(buckets, kind="stable")))
            bounds = np.concatenate([[0], np.cumsum(np.bincount(buckets, minlength=self._n_buckets))])
        path = self._folder / f"run-{len(self._runs):05d}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            # One record batch a bucket, empty ones too: a bucket is found by its number.
            for start, stop in pairwise(bounds):
                batches = table.slice(start, stop - start).to_batches()
                writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))
        self._runs.append(path)

    def _buckets(self, table: pa.Table, seed: int) -> np.ndarray:
        """The bucket of each row: its key's share of 2^64 times the number of buckets, in integers of 64 bits."""
        top = shuffle_keys(table.column(ROW).to_numpy(), seed) >> np.uint64(32)
        return (top * np.uint64(self._n_buckets) >> np.uint64(32)).astype(np.uint16)

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in order, in tables of bounded size with the column `ROW`; nothing can be added afterwards."""
        if self._pending:
            self._write_run()
        if self._seed is None:
            yield from self._in_input_order()
        else:
            yield from self._in_shuffled_order(self._seed)

    def _in_input_order(self) -> Iterator[pa.Table]:
        for run in self._runs:
            table = _read(run, range(1))
            # In the order of the input a run is one batch, which is handed out in pieces of half a buffer.
            rows = max(1, math.ceil(table.num_rows * self._read_bytes / max(table.nbytes, 1)))
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)

    def _in_shuffled_order(self, seed: int) -> Iterator[pa.Table]:
        # So many buckets at a time as fill half a buffer: the rows of all runs are there beside their sorted copy.
        step = max(1, math.floor(self._read_bytes * self._n_buckets / max(self.n_bytes, 1)))
        for start in range(0, self._n_buckets, step):
            buckets = range(start, min(start + step, self._n_buckets))
            table = pa.concat_tables([_read(run, buckets) for run in self._runs])
            if table.num_rows:
                keys = shuffle_keys(table.column(ROW).to_numpy(), seed)
                yield table.take(pa.array(np.argsort(keys, kind="stable"))).combine_chunks()


def _read(run: Path, buckets: range) -> pa.Table:
    """The rows of some buckets of a run."""
    # Read, not memory-mapped: mapped pages would count as memory of the process.
    with pa.OSFile(str(run)) as source, pa.ipc.open_file(source) as reader:
        return pa.Table.from_batches([reader.get_batch(i) for i in buckets], schema=reader.schema)
