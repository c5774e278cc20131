"""The rows that kinds of features are tried on: a sample that is read once, where that is worth its memory."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.rows import RowSource
from dkl.data.store.blocking import memory_block_rows, row_bytes
from dkl.linear.fitting import Run
from dkl.passes.engine import run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample

# Of more bytes than these, and of sparse rows, each pass reads the rows where they are.
_MOST_BYTES = 1 << 26


def gathered_bytes(sample: Dataset) -> int:
    """Bytes that rows to try features on take once they are gathered; 0 where each pass reads them where they are."""
    # arrays are in memory as they are
    stays = isinstance(sample.source, ArraySource) or sample.n_rows > most_gathered(sample)
    return 0 if stays else sample.n_rows * _row_bytes(sample)


def most_gathered(dataset: Dataset) -> int:
    """Rows of a store that can be gathered at most, 0 of sparse ones; of more each pass would read the whole store."""
    if isinstance(dataset.source, ArraySource):
        return dataset.n_rows
    return 0 if dataset.source.is_sparse else _MOST_BYTES // _row_bytes(dataset)


def _row_bytes(dataset: Dataset) -> int:
    """Bytes of a gathered row: its columns, target, weight, number and what it is held out with."""
    return dataset.n_columns * dataset.source.dtype.itemsize + 32


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
    (rows,) = result.results
    rows = rows.rows(np.argsort(rows.row_id, kind="stable"))
    return sample.with_rows(GatheredSource(rows, sample.source, sample.schema.n_classes), sample.schema)


def planned_gathering(sample: Dataset, seed: int) -> list[tuple[Any, int]]:
    """The pass that gathers the rows, if they are gathered."""
    return [([_record(sample, seed)], 1)] if gathered_bytes(sample) else []


def _record(sample: Dataset, seed: int) -> RowSample:
    return RowSample("rows to try features on", sample.n_rows, seed)


class GatheredSource(ArraySource):
    """Rows that were read from a source, in the order in which they are numbered there.

    Parameters
    ----------
    rows : Block
        As a pass has brought them.
    base : RowSource
        Where they are from: they are held out as they would be there.
    n_classes : int or None
    """

    def __init__(self, rows: Block, base: RowSource, n_classes: int | None) -> None:
        # in blocks that are no larger than those there, which plans go by
        fitting = memory_block_rows(row_bytes(rows.X), rows.n_rows)
        most = min(fitting, int(base.block_rows.max(initial=1)))
        super().__init__(rows.X, rows.y, rows.weight, n_classes=n_classes, row_id=rows.row_id, rows_a_block=most)
        self._held, self.held_rule, self.most_folds = rows.held, base.held_rule, base.most_folds
        self.place = base.place

    def ticket(self, index: int) -> Block:
        """The rows of block `index`, with what they are held out with."""
        block = super().ticket(index)
        if self._held is None:
            return block
        return replace(block, held=self._held[self._bounds[index] : self._bounds[index + 1]])

    @cached_property
    def fingerprint(self) -> str:
        held = b"" if self._held is None else np.ascontiguousarray(self._held).tobytes()
        return hashlib.sha256(super().fingerprint.encode() + held).hexdigest()
