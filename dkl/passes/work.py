"""The records, reader and limits that all tasks of a pass share, sent once; and the turns of tasks in a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from dkl.data.store.ledger import Reads
from dkl.kernels.device import Device, is_on_gpu, wait_for_rows
from dkl.kernels.refusals import take_refusals
from dkl.kernels.threads import one_blas_thread
from dkl.passes.row_columns import RowColumns
from dkl.process import after_fork, keep_freed_memory
from dkl.protocols.block import Block
from dkl.protocols.records import Record
from dkl.protocols.source import BlockReader


@dataclass(frozen=True)
class Limits:
    """Limits on what one process holds.

    Parameters
    ----------
    tasks : int
        Blocks in progress at once.
    ahead : int
        Blocks that are read ahead of them.
    cache_bytes : int
        Bytes of blocks kept for the next pass.
    piece_bytes : int
        Bytes of prepared pieces kept for later folds with the same `kept_as`.
    staged : int
        Bytes of pinned memory through which rows are copied to the GPU; 0 leaves the copies to CuPy.
    gpu_rows : int or None
        Bytes of rows that each GPU keeps for the next pass; None for a share of its free memory.
    sharing : int
        Processes on one machine, which share the memory of its GPUs.
    processes : int
        Processes of the pass on all machines.
    pieces : int
        Pieces of a fold that each thread of a cluster makes ahead of their steps.
    """

    # limits change how much is in progress, but never a bit of the results
    tasks: int = 1
    ahead: int = 1
    cache_bytes: int = 0
    piece_bytes: int = 0
    staged: int = 0
    gpu_rows: int | None = None
    sharing: int = 1
    processes: int = 1
    pieces: int = 1


@dataclass(frozen=True, eq=False)
class Work:
    """The parts of a pass that all its tasks share.

    Parameters
    ----------
    token : str
        Identity of the pass.
    records : sequence of Record
    reader : BlockReader
    n_blocks : int
    fingerprint : str
        Fingerprint of the source, by which its blocks are kept; empty if none is (hashing rows in memory would take a
        read of them).
    place : str
        Place of the source.
    is_read : bool
        Whether tasks read (or compute) their blocks, so that reading ahead and caching save time; rows in memory are
        sent with the ticket.
    limits : Limits
    device : str
    columns : RowColumns or None
        The row columns that records read and write.
    """

    token: str
    records: Sequence[Record]
    reader: BlockReader
    n_blocks: int
    fingerprint: str
    place: str
    is_read: bool
    limits: Limits = field(default_factory=Limits)
    device: Device = "cpu"
    columns: RowColumns | None = None


class Ticket(NamedTuple):
    """One block to be read: its absolute number and the argument of `BlockReader.load`.

    A tuple, in which Dask replaces futures by their results.
    """

    number: int
    value: Any


@dataclass(frozen=True)
class ReadCounts:
    """Counts of reading some blocks; `reads` lists what the process read from stores meanwhile."""

    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    cache_hits: int = 0
    retries: int = 0
    reads: Reads = field(default_factory=Reads)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        # counts of two tasks, or of two siblings of the tree, are added field by field
        return ReadCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


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
