"""Small sources and records for the tests of passes: rows that are a function of the block's number alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dask
import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.passes.memory import MemoryProjection, fit_limits
from dkl.passes.room import Line, ProcessMemory, Room
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Fold, RowSample
from dkl.protocols.source import PARTS, BaseSource

COLUMNS = 5
CLASSES = 3


def make_block(index: int, rows: int, seed: int = 0) -> Block:
    """Rows of block `index`: float32 values whose sums depend on the order in which they are added."""
    random = np.random.default_rng([seed, index])
    X = random.standard_normal((rows, COLUMNS)).astype(np.float32)
    y = random.integers(0, CLASSES, rows)
    weight = random.uniform(0.1, 3.0, rows)
    return Block(index, X, y, weight, 1000 * index + np.arange(rows))


@dataclass(frozen=True)
class NumberReader:
    """Makes a block where it is asked for, as a store would read it."""

    block_rows: tuple[int, ...]

    def load(self, ticket: int, parts: tuple[str, ...] = PARTS) -> Block:
        return make_block(int(ticket), self.block_rows[ticket])


@dataclass(frozen=True)
class RowsReader:
    """For rows in memory: the ticket is the block."""

    def load(self, ticket: Block, parts: tuple[str, ...] = PARTS) -> Block:
        return ticket


@dataclass
class Source(BaseSource):
    """`kind` is "numbers" (as a store), "memory" (tickets are blocks), "delayed" or "joint" (tickets are graphs).

    In joint ones all blocks hang on one task.
    """

    rows: tuple[int, ...]
    kind: str = "numbers"
    own_reader: Any = None
    place: str = "'rows.zarr'"
    n_columns: int = COLUMNS
    dtype: np.dtype = field(default_factory=lambda: np.dtype("float32"))
    is_sparse: bool = False
    has_weight: bool = True
    read_nbytes: int = 0

    @property
    def stored_nbytes(self) -> int:
        return int(self.kind == "numbers")

    @property
    def fingerprint(self) -> str:
        return f"{self.kind} {self.rows} {self.own_reader}"

    @property
    def n_blocks(self) -> int:
        return len(self.rows)

    @cached_property
    def block_rows(self) -> np.ndarray:
        return np.asarray(self.rows, dtype=np.int64)

    @property
    def block_nbytes(self) -> int:
        return max(self.rows, default=0) * (COLUMNS * 4 + 24) + 4096

    def reader(self) -> Any:
        if self.own_reader is not None:
            return self.own_reader
        return NumberReader(self.rows) if self.kind == "numbers" else RowsReader()

    def ticket(self, index: int) -> Any:
        if self.kind == "numbers":
            return index
        if self.kind == "memory":
            return make_block(index, self.rows[index])
        rows = dask.delayed(tuple)(self.rows, dask_key_name="rows") if self.kind == "joint" else self.rows
        return dask.delayed(make_block)(index, rows[index])


def block_moments(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weighted sums and products of the projected rows, in float64."""
    Z = np.cos(block.X @ operands["W"].T)
    S = np.eye(CLASSES)[block.y] * block.weights[:, None]
    return {"sums": Z.T.astype(np.float64) @ S, "mass": S.sum(axis=0), "rows": np.array(block.n_rows)}


def moments(n_features: int = 7, function: Any = block_moments, **operands: Any) -> BlockSum:
    W = np.random.default_rng(3).standard_normal((n_features, COLUMNS)).astype(np.float32)
    accumulators = {
        "sums": Accumulator((n_features, CLASSES)),
        "mass": Accumulator((CLASSES,)),
        "rows": Accumulator((), "int64"),
    }
    return BlockSum("potentials", function, accumulators, {"W": W, **operands})


def sample(k: int = 11) -> RowSample:
    return RowSample("sample", k, seed=5)


def halves(block: Block, operands: Mapping[str, Any], number: int) -> tuple[int, np.ndarray] | None:
    """The two halves of a block; there is no third one."""
    middle = block.n_rows // 2
    return (block.index, block.X[(slice(0, middle), slice(middle, None))[number]]) if number < 2 else None


def chained(state: np.ndarray, piece: tuple[int, np.ndarray], operands: Mapping[str, Any]) -> np.ndarray:
    """Not associative and not commutative: any change of order or any repetition shows in the bits."""
    index, X = piece
    return np.tanh(0.7 * state + X.sum(axis=0, dtype=np.float64) + 0.01 * index)


def chain(order: np.ndarray | None = None, prepare: Any = halves, step: Any = chained) -> Fold:
    initial = np.zeros(COLUMNS)
    sizes = {"piece_bytes": 1 << 12, "state_bytes": initial.nbytes}
    return Fold("partial_fit", initial, step, prepare, lambda rows: 3 - rows % 2, order=order, **sizes)


def ragged(n_blocks: int, longest: int = 40) -> tuple[int, ...]:
    """Rows of each block, some of them empty."""
    return tuple(
        int(rows) for rows in np.random.default_rng(9).integers(0, longest, n_blocks) * (np.arange(n_blocks) % 7 > 0)
    )


def tree_by_definition(source: Source, record: BlockSum) -> dict[str, np.ndarray]:
    """Halving block numbers level by level: node (l, i) is node (l - 1, 2 i) plus node (l - 1, 2 i + 1)."""
    with one_blas_thread():
        level = [
            None if rows == 0 else dict(record.function(make_block(index, rows), record.operands))
            for index, rows in enumerate(source.rows)
        ]
    while len(level) > 1:
        level += [None] * (len(level) % 2)
        level = [_plus(level[place], level[place + 1]) for place in range(0, len(level), 2)]
    return level[0]


def _plus(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return {name: left[name] + right[name] for name in left}


def fold_by_definition(source: Source, fold: Fold) -> Any:
    state = fold.initial
    order = range(source.n_blocks) if fold.order is None else fold.order
    for index in order:
        if source.rows[index]:
            state = stepped_through(fold, state, make_block(int(index), source.rows[index]))
    return state


def stepped_through(fold: Fold, state: Any, block: Block) -> Any:
    """The state after all pieces of a block, one after the other."""
    for number in range(fold.pieces(block.n_rows)):
        piece = fold.prepare(block, fold.operands, number)
        if piece is not None and fold.arrange is not None:
            piece = fold.arrange(piece, fold.operands, block.index, number)
        if piece is not None:
            state = fold.step(state, piece, fold.operands)
    return state


def room_of_bytes(nbytes: int, compiler: int = 0) -> Room:
    """The room of a process that may take `nbytes` bytes, and whose compiler takes `compiler` bytes."""
    return Room(
        ProcessMemory("this process", 0, "here", nbytes, compiler=compiler),
        (Line(nbytes, "may take no more", 1.0, "{}"),),
    )


def project(source: Any, records: Any, n_threads: int, allowed: int = 1 << 30) -> MemoryProjection:
    """What a pass holds in a process of so many threads that also drives it."""
    cached = source.stored_nbytes > 0
    return fit_limits(source, records, n_threads=n_threads, room=room_of_bytes(allowed), cached=cached)
