"""The functions that run in workers (processes of a cluster, threads of this one): sum blocks, map a block.

A reduction computes the value of a record for a block, merges two values, and finishes the merged one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from dkl.data.store.ledger import LEDGER
from dkl.errors import located
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import in_smaller_tiles, is_on_gpu, refuse_now, wait_for_rows
from dkl.kernels.refusals import take_refusals
from dkl.passes.reading import LOADER, Kept, blocks_of
from dkl.passes.row_columns import RowColumns
from dkl.passes.transport import aligned
from dkl.passes.tree_sum import Node, TreeSum
from dkl.passes.work import ReadCounts, Ticket, Work
from dkl.process import after_fork, keep_freed_memory
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Record, RowSample
from dkl.protocols.sampling import sample_keys, smallest_keys, stays_first, sure_key
from dkl.protocols.source import BlockSource

Values: TypeAlias = tuple[Any, ...]
"""One value a record of the pass: named arrays of a block sum, a Block of a sample."""


class PassStopped(RuntimeError):
    """The pass of a task has ended, and its result is not needed."""


class StopFlag:
    """Tells the threads of this process that their pass is over. A copy in another process is never set."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise PassStopped

    def __reduce__(self) -> tuple[type[StopFlag], tuple[()]]:
        return StopFlag, ()


@dataclass(frozen=True, eq=False)
class Partial:
    """The sums of one node: a value for each record (None if there are no rows) and the counts of reading blocks."""

    values: Values | None
    reading: ReadCounts


class Gate:
    """Limits the tasks of this process that hold blocks, independently of the worker's number of threads."""

    def __init__(self) -> None:
        self._inside = 0
        self._changed = threading.Condition()

    @contextmanager
    def entered(self, most: int) -> Iterator[None]:
        with self._changed:
            # tasks bring the limit, as passes differ in the number of blocks that they may hold
            self._changed.wait_for(lambda: self._inside < most)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()


GATE, ON_GPU = Gate(), Gate()
# Tasks that compute on a GPU at once: it works for one while the host prepares the other. More of them would only wait
# for each other and for the interpreter's lock; meanwhile they read and decode.
AT_ONCE_ON_GPU = 2
# tasks of the parent that are inside do not continue in a forked process, and never leave its gate
after_fork(GATE.__init__)  # type: ignore[misc]
after_fork(ON_GPU.__init__)  # type: ignore[misc]


@contextmanager
def computing(block: Block) -> Iterator[None]:
    """A context in which a task computes on a block: waits for rows on their way to a GPU, and for a turn there."""
    with ON_GPU.entered(AT_ONCE_ON_GPU) if is_on_gpu(block.X) else nullcontext():
        wait_for_rows(block)
        yield


@contextmanager
def working(work: Work) -> Iterator[None]:
    """A context in which a task processes blocks: one BLAS thread, and as many tasks at once as the pass allows."""
    # several BLAS threads would sum in another order and change bits; the cores are used by tasks
    keep_freed_memory()
    with GATE.entered(work.limits.tasks), one_blas_thread():
        try:
            yield
        finally:
            # drop those of blocks that failed otherwise: the next task of this thread has other rows
            take_refusals()


def sum_blocks(
    work: Work, node: Node, tickets: Sequence[Ticket], following: Sequence[Ticket], stop: StopFlag
) -> Partial:
    """All records of the pass over the blocks of `node`, added in the node's own tree.

    `following` are blocks that this process will probably need next: they are read while the last ones are processed.
    """
    reductions = [reduction(record, work.limits.piece_bytes) for record in work.records]  # type: ignore[arg-type]

    # rows that a GPU keeps are used there, unless a record needs them on the host
    on_host = [each.on_host for each in reductions]
    moves, as_kept = not all(on_host), not any(on_host)

    def values_of(block: Block) -> Values | None:
        """One value for each record, or None for a block that a filter left without rows."""
        if block.n_rows == 0:
            return None
        with located(f"block {block.index} of {work.place}"):
            there = LOADER.placed(work, block) if moves else block
            with computing(there):
                return tuple(each.of_block(block if each.on_host else there, work.columns) for each in reductions)

    tree = TreeSum(partial(_merged, reductions), work.n_blocks, node)
    numbers = node.blocks(work.n_blocks)
    # blocks without rows have no ticket, but the tree waits for every sibling, so that they are added as None
    missing = numbers.start
    reading = ReadCounts()
    with working(work):
        for block, of_block in blocks_of(work, tickets, following, as_kept=as_kept):
            stop.check()
            reading += of_block
            for index in range(missing, block.index):
                tree.add(Node(0, index), None)
            tree.add(Node(0, block.index), values_of(block))
            missing = block.index + 1
    for index in range(missing, numbers.stop):
        tree.add(Node(0, index), None)
    return Partial(tree.total, replace(reading, noted=LEDGER.taken()))


def _merged(reductions: Sequence[Reduction], left: Values, right: Values) -> Values:
    return tuple(each.merge(a, b) for each, a, b in zip(reductions, left, right, strict=True))


def merge_partials(work: Work, left: Partial, right: Partial) -> Partial:
    """Merge two siblings of the tree into their parent."""
    reading = left.reading + right.reading
    if left.values is None or right.values is None:
        return Partial(right.values if left.values is None else left.values, reading)
    reductions = [reduction(record) for record in work.records]  # type: ignore[arg-type]
    return Partial(_merged(reductions, left.values, right.values), reading)


def apply_to_block(work: Work, ticket: Ticket, stop: StopFlag) -> Any:
    """The result of the only block sum of `work` for one block, of any type, and the counts of reading the block."""
    stop.check()
    with working(work):
        block, reading = LOADER.fetch(work, ticket, as_kept=True)
        record: Any = work.records[0]
        with located(f"block {block.index} of {work.place}"):
            there = LOADER.placed(work, block)
            with computing(there):
                output = in_smaller_tiles(record.function)(there, record.operands)
                refuse_now()
            return output, replace(reading, noted=LEDGER.taken())


Sums = dict[str, np.ndarray]


def narrowed(record: Record, source: BlockSource) -> Record:
    """A sample without rows that are surely not among its first k, as far as the number of all rows tells.

    With weights it does not. Each task then returns its part of the sample instead of as many rows as the whole.
    """
    if not isinstance(record, RowSample) or record.n_classes is not None or source.has_weight:
        return record
    # the key below which at least k of all rows lie, except once in 1e15 passes (see `sure_key`)
    return replace(record, below=sure_key(record.k, int(source.block_rows.sum())))


class SumReduction:
    """Accumulators, which are added, or of which the larger value is taken."""

    def __init__(self, record: BlockSum, kept_bytes: int = 0) -> None:
        self.record, self._kept_bytes = record, kept_bytes
        self.on_host = record.on_host

    def of_block(self, block: Block, columns: RowColumns | None) -> Sums:
        if columns is not None:
            block = columns.read(self.record.reads, block)
        # a block that does not fit a GPU's memory is computed again in smaller tiles
        operands = self.record.operands
        if self.record.kept_as and self._kept_bytes:
            operands = {**operands, "kept": Kept(self.record.kept_as, block.index, self._kept_bytes)}
        returned = in_smaller_tiles(self.record.function)(block, operands)
        # raises the errors that the function has found in rows on a GPU without waiting
        refuse_now()
        absent = [name for name in (*self.record.writes, *self.record.accumulators) if name not in returned]
        if absent:
            raise ValueError(
                f"the block function of {self.record.name!r} returned no {absent[0]!r}; it returned {sorted(returned)}"
            )
        for name in self.record.writes:
            if columns is not None:
                columns.write(name, block.index, np.asarray(returned[name]))
        sums: Sums = {}
        for name, accumulator in self.record.accumulators.items():
            # in C order, as after a transfer between processes: NumPy's later sums over an axis depend on it
            sums[name] = np.asarray(returned[name], dtype=accumulator.dtype, order="C")
            if sums[name].shape != tuple(accumulator.shape):
                raise ValueError(
                    f"the block function of {self.record.name!r} returned {name!r} of shape {sums[name].shape}; "
                    f"its accumulator has shape {tuple(accumulator.shape)}"
                )
        return sums

    def merge(self, left: Sums, right: Sums) -> Sums:
        # always left with right, in the order of the blocks, as floating-point sums depend on it
        combine = {"add": np.add, "max": np.maximum}
        accumulators = self.record.accumulators
        return {name: combine[accumulators[name].combine](left[name], right[name]) for name in left}

    def finish(self, value: Sums | None) -> Sums:
        if value is None:
            return {name: accumulator.zero() for name, accumulator in self.record.accumulators.items()}
        # the sums of a single task may be in a received message; the driver needs aligned arrays
        return {name: np.array(total) for name, total in value.items()}


class SampleReduction:
    """The k rows with the smallest keys; samples are merged by sampling again, and sorted at the end."""

    # the driver uses samples on the host, on any device of the pass
    on_host = True

    def __init__(self, record: RowSample) -> None:
        self.record = record

    def of_block(self, block: Block, columns: RowColumns | None) -> Block:
        if columns is not None:
            block = columns.read(self.record.reads, block)
        kept = {name: block.columns[name] for name in self.record.reads}
        block = replace(block, index=0, columns=kept)
        if block.weight is None and self.record.below < np.inf:
            keys = sample_keys(block.row_id, None, self.record.seed, self.record.round)
            block = block.rows(np.flatnonzero(keys < self.record.below))
        # at most k rows all stay, unsorted until the end
        return block if self.record.n_classes is None and block.n_rows <= self.record.k else self._ordered(block)

    def merge(self, left: Block, right: Block) -> Block:
        record = self.record
        if record.n_classes is not None:
            return self._ordered(stack_rows(left, right, np.arange(left.n_rows), np.arange(right.n_rows)))
        # rows stay in their order; only the last sample is sorted by keys
        stays = stays_first(left, right, record.k, record.seed, record.round)
        return stack_rows(left, right, *map(np.flatnonzero, stays))

    def finish(self, value: Block | None) -> Block:
        if value is None:
            raise ValueError(f"{self.record.name!r} asks for a sample of rows, but there are no rows")
        return aligned(self._ordered(value))

    def _ordered(self, block: Block) -> Block:
        """The first k rows (of each class), in the order of their keys."""
        record = self.record
        return smallest_keys(block, record.k, record.seed, record.round, each_class=record.n_classes is not None)


def stack_rows(left: Block, right: Block, above: np.ndarray, below: np.ndarray) -> Block:
    """The rows of two blocks at the positions `above` and `below`, one below the other, with their row columns."""

    def stacked(first: Rows | None, second: Rows | None) -> Any:
        if first is None or second is None:
            return None
        if sparse.issparse(first):
            return sparse.vstack([first[above], second[below]], format="csr")
        # rows may be wide, so that each is copied once, directly to its place in the result
        out = np.empty((len(above) + len(below), *first.shape[1:]), first.dtype)
        np.take(first, above, axis=0, out=out[: len(above)], mode="clip")
        np.take(second, below, axis=0, out=out[len(above) :], mode="clip")
        return out

    columns = {name: stacked(left.columns[name], right.columns[name]) for name in left.columns}
    parts = ((getattr(left, name), getattr(right, name)) for name in ("X", "y", "weight", "row_id", "held"))
    X, y, weight, row_id, held = (stacked(*part) for part in parts)
    return Block(left.index, X, y, weight, row_id, columns, held)


Reduction: TypeAlias = SumReduction | SampleReduction
"""One record of a pass: computes the value of a block, merges two values, and finishes the last one. `on_host` says
whether it needs the block on the host, instead of on the device of the pass."""


def reduction(record: BlockSum | RowSample, kept_bytes: int = 0) -> Reduction:
    """The reduction of a record, in a process that may keep `kept_bytes` bytes of derived data."""
    return SumReduction(record, kept_bytes) if isinstance(record, BlockSum) else SampleReduction(record)
