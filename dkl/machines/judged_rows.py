"""The rows that kinds of features are tried on: a sample that is read once, where that is worth its memory."""

from __future__ import annotations

from typing import Any

from dkl.data.dataset import Dataset
from dkl.data.sources.gathered import GatheredSource, in_order
from dkl.data.sources.in_memory import ArraySource
from dkl.linear.fitting import Run
from dkl.passes.engine import run_pass
from dkl.protocols.records import RowSample

# Of more bytes than these, and of sparse rows, each pass reads the rows where they are.
_MOST_BYTES = 1 << 26


def gathered_bytes(sample: Dataset) -> int:
    """Bytes that rows to try features on take once they are gathered; 0 where each pass reads them where they are."""
    source = sample.source
    nbytes = sample.n_rows * (sample.n_columns * source.dtype.itemsize + 32)
    # arrays are in memory as they are
    stays = isinstance(source, ArraySource) or source.is_sparse or nbytes > _MOST_BYTES
    return 0 if stays else nbytes


def gathered(sample: Dataset, run: Run, seed: int) -> Dataset:
    """The same rows in memory, after one pass: trials go over them a hundred times, of a store without reading it."""
    if not gathered_bytes(sample):
        return sample
    result = run_pass(
        sample.source,
        [_record(sample, seed)],
        publish=run.publish,
        memory_limit=run.memory_limit,
        device=run.device,
    )
    rows = in_order(result.results[0])
    return sample.with_rows(GatheredSource(rows, sample.source, sample.schema.n_classes), sample.schema)


def planned_gathering(sample: Dataset, seed: int) -> list[tuple[Any, int]]:
    """The pass that gathers the rows, if they are gathered."""
    return [([_record(sample, seed)], 1)] if gathered_bytes(sample) else []


def _record(sample: Dataset, seed: int) -> RowSample:
    return RowSample("rows to try features on", sample.n_rows, seed)
