"""The functions that run in workers (processes of a cluster, threads of this one): add up blocks, map a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from dkl.data.store.ledger import LEDGER
from dkl.errors import located
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import in_smaller_tiles, is_on_gpu, refuse_now, wait_for_rows
from dkl.passes.reading import LOADER, blocks_of
from dkl.passes.reductions import Reduction, reduction
from dkl.passes.tree_sum import Node, TreeSum
from dkl.passes.work import ReadCounts, Ticket, Work
from dkl.process import after_fork, keep_freed_memory
from dkl.protocols.block import Block

Values: TypeAlias = tuple[Any, ...]
"""One value a record of the pass: named arrays of a block sum, a Block of a sample."""


class PassStopped(RuntimeError):
    """The pass that a task belongs to has ended; nobody waits for its result."""


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
    """The sums of one node: a value a record (None where there were no rows) and what reading them came to."""

    values: Values | None
    reading: ReadCounts


class Gate:
    """Lets a limited number of tasks of this process hold blocks, however many threads the worker has."""

    def __init__(self) -> None:
        self._inside = 0
        self._changed = threading.Condition()

    @contextmanager
    def entered(self, most: int) -> Iterator[None]:
        with self._changed:
            # The limit comes with each task, since passes differ in how many blocks they may hold.
            self._changed.wait_for(lambda: self._inside < most)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()


GATE, ON_GPU = Gate(), Gate()
# Tasks that compute on a GPU at once: it works for one while the host prepares what the other asks for. More of them
# would only wait for each other, and for the interpreter's lock at every call; they read and decode meanwhile.
_AT_ONCE = 2
# The tasks inside are those of the parent: none of them goes on, or leaves the gate, in a process that it forked.
after_fork(GATE.__init__)  # type: ignore[misc]
after_fork(ON_GPU.__init__)  # type: ignore[misc]


@contextmanager
def computing(block: Block) -> Iterator[None]:
    """What holds while a task computes on a block where its rows are: those on their way to a GPU are waited for."""
    with ON_GPU.entered(_AT_ONCE) if is_on_gpu(block.X) else nullcontext():
        wait_for_rows(block)
        yield


@contextmanager
def working(work: Work) -> Iterator[None]:
    """What holds while a task is on its blocks: one BLAS thread, and no more tasks at once than the pass allows."""
    # BLAS with several threads sums in another order, so that one thread is a matter of bits; tasks fill the cores.
    keep_freed_memory()
    with GATE.entered(work.limits.tasks), one_blas_thread():
        yield


def sum_blocks(
    work: Work, node: Node, tickets: Sequence[Ticket], following: Sequence[Ticket], stop: StopFlag
) -> Partial:
    """All records of the pass over the blocks of `node`, added up in the node's own tree.

    `following` are blocks that this process is likely to need next: they are read while the last ones are worked on.
    """
    reductions = [reduction(record, work.limits.piece_bytes) for record in work.records]  # type: ignore[arg-type]

    # Rows that the GPU keeps are used there, unless a record sums on the host.
    on_host = [each.on_host for each in reductions]
    moves, as_kept = not all(on_host), not any(on_host)

    def values_of(block: Block) -> Values | None:
        """One value a record, or None for a block that a filter left without rows."""
        if block.n_rows == 0:
            return None
        with located(f"block {block.index} of {work.place}"):
            there = LOADER.placed(work, block) if moves else block
            with computing(there):
                return tuple(each.of_block(block if each.on_host else there, work.columns) for each in reductions)

    tree = TreeSum(partial(_merged, reductions), work.n_blocks, node)
    numbers = node.blocks(work.n_blocks)
    # Blocks without rows have no ticket; the tree is told of them all the same, since it waits for every sibling.
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
    """Two siblings of the tree become their parent."""
    reading = left.reading + right.reading
    if left.values is None or right.values is None:
        return Partial(right.values if left.values is None else left.values, reading)
    reductions = [reduction(record) for record in work.records]  # type: ignore[arg-type]
    return Partial(_merged(reductions, left.values, right.values), reading)


def apply_to_block(work: Work, ticket: Ticket, stop: StopFlag) -> Any:
    """What the one block sum of `work` returns for one block, whatever it is, and what reading the block came to."""
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
