"""Playing the cluster: a driver's passes on blocks in memory, row columns in a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, RowSample
from dkl.protocols.sampling import smallest_keys


def blocks_of(X: Any, y: np.ndarray, weight: np.ndarray | None = None, *, rows: int | None = None) -> list[Block]:
    """Rows cut into blocks: at most four of at least 17 rows where no size is given, as each costs a call a pass."""
    rows = max(17, len(y) // 4 + 1) if rows is None else rows
    starts = range(0, len(y), rows)
    cut = [slice(start, min(start + rows, len(y))) for start in starts]
    row_id = np.arange(len(y))
    return [
        Block(i, X[part], y[part], None if weight is None else weight[part], row_id[part]) for i, part in enumerate(cut)
    ]


class Table:
    """Blocks with row columns of zeros; counts the passes by name, and those that look at X."""

    def __init__(self, blocks: Sequence[Block], columns: dict[str, tuple[str, tuple[int, ...]]] | None = None) -> None:
        zeros = columns or {}
        self.blocks = [
            replace(b, columns={name: np.zeros((b.n_rows, *shape), dtype) for name, (dtype, shape) in zeros.items()})
            for b in blocks
        ]
        self.passes: list[str] = []
        self.readings = 0
        self._new: list[dict[str, np.ndarray]] = [{} for _ in blocks]

    def run(self, records: Sequence[Any]) -> tuple[Any, ...]:
        """One pass."""
        self.passes.append(" + ".join(record.name for record in records))
        without_x = all(isinstance(record, BlockSum) and not record.needs_x for record in records)
        self.readings += not without_x
        seen = [replace(b, X=np.empty((b.n_rows, 0))) if without_x else b for b in self.blocks]
        results = tuple(self._one(record, seen) for record in records)
        self.blocks = [replace(b, columns={**b.columns, **new}) for b, new in zip(self.blocks, self._new, strict=True)]
        return results

    def _one(self, record: Any, blocks: list[Block]) -> Any:
        if isinstance(record, RowSample):
            each_class = record.n_classes is not None
            return smallest_keys(joined(blocks), record.k, record.seed, record.round, each_class=each_class)
        returned = [record.function(block, record.operands) for block in blocks]
        self._new = [{name: one[name] for name in record.writes} for one in returned]
        combine = {"add": np.sum, "max": np.max}
        return {
            name: combine[accumulator.combine]([one[name] for one in returned], axis=0)
            for name, accumulator in record.accumulators.items()
        }

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([block.columns[name] for block in self.blocks])


def joined(blocks: Sequence[Block]) -> Block:
    """All rows as one block."""
    whole = [np.concatenate([getattr(b, name) for b in blocks]) for name in ("X", "y", "weights", "row_id")]
    columns = {name: np.concatenate([b.columns[name] for b in blocks]) for name in blocks[0].columns}
    return Block(0, whole[0], whole[1], whole[2], whole[3], columns)


def play(driver: Any, problem: Any, table: Table) -> Any:
    """The last state of a driver."""
    state = driver.init(problem)
    while records := driver.request(problem, state):
        state = driver.step(problem, state, table.run(records))
    return state
