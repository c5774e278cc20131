"""A pass in progress: its backend, what its tasks share, the graphs that they compute, and its events."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import cloudpickle
import dask
import numpy as np
from dask.utils import parse_bytes

from dkl.data.sources.in_place import compare_reads
from dkl.data.sources.tasks import culled, neighbours_and_ends, share_no_task
from dkl.data.store.ledger import LEDGER
from dkl.errors import MemoryLimitError
from dkl.events import Event, Kind, StopRequested, Subscriber
from dkl.kernels.device import Device, why_no_gpu
from dkl.kernels.threads import one_blas_thread
from dkl.passes.backends import Backend, choose_backend, current_client
from dkl.passes.dispatch import Dispatcher
from dkl.passes.lost_workers import hung_workers_restarted
from dkl.passes.memory import (
    MemoryProjection,
    blocks_ahead,
    fit_limits,
    gpu_rows_setting,
    least_memory,
    narrowest_limits,
    whole_bytes,
)
from dkl.passes.room import ProcessMemory, modules_of, own_cores, own_room, room_of
from dkl.passes.row_columns import RowColumns
from dkl.passes.transport import Carried
from dkl.passes.tree_sum import Node
from dkl.passes.work import Limits, ReadCounts, Ticket, Work
from dkl.protocols.records import Record
from dkl.protocols.source import BlockSource, are_kept

Origin: TypeAlias = Literal["store", "graph", "memory"]
LARGEST_GRAPH_BYTES = 1 << 16
# Rows in memory of at most as many bytes as the smallest block are processed in their own process: dask.config
# "dkl.local-bytes".
LOCAL_BYTES = 8 << 20
# Limits on the results that are transferred to the driver at once: bytes, and number.
RESULTS_AT_ONCE_BYTES = 16 << 20
MOST_RESULTS_AT_ONCE = 64


@dataclass(frozen=True)
class PassStats:
    """Statistics of a pass.

    Parameters
    ----------
    name : str
    blocks, rows : int
        Given to the records.
    bytes : int
        Bytes of the decoded blocks that were read (not taken from the cache).
    stored_bytes, decoded_bytes : int
        Bytes taken from the store, and bytes decoded from them: more than `bytes` if chunks hold rows of several blocks
        and were decoded for more than one of them.
    cache_hits : int
        Blocks taken from the cache.
    retries : int
        Reads and tasks that had to be repeated.
    seconds : float
    projected_bytes : int
        The projected peak memory of one process.
    """

    name: str
    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    cache_hits: int = 0
    retries: int = 0
    seconds: float = 0.0
    projected_bytes: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0


class Session:
    """The parts that `run_pass` and `map_blocks` share; created by `open_session`."""

    def __init__(self, name: str, source: BlockSource, backend: Backend, publish: Subscriber) -> None:
        self.name = name
        self.source = source
        self.backend = backend
        self.reading = ReadCounts()
        self.losses = 0
        self.work: Work
        self.projection: MemoryProjection
        self._publish = publish
        self._handle: Any = None
        self._started = time.perf_counter()
        self._block_rows = np.asarray(source.block_rows)
        self._origin = task_origin(source, is_cluster=backend.is_cluster)

    @property
    def slots(self) -> list[str]:
        """One entry for each task that can run at once, from the backend's current state, so that new workers count."""
        return self.backend.slots()

    def plan(
        self, records: Sequence[Record], memory_limit: int | str | None, device: Device, *, is_read_again: bool = True
    ) -> None:
        """Set `projection`, the memory and limits of one process in this pass; MemoryLimitError if it does not fit."""
        # the worker with the most threads holds the most blocks at once
        n_threads = max(Counter(self.slots).values())
        modules = modules_of(records, self.source.reader())
        waiting, in_driver = least_ahead(self._origin, is_cluster=self.backend.is_cluster), not self.backend.is_cluster

        def completed(projection: MemoryProjection, memories: Sequence[ProcessMemory]) -> MemoryProjection:
            limits = replace(
                projection.limits,
                gpu_rows=gpu_rows_setting(),
                sharing=max(Counter(memory.host for memory in memories).values()),
                processes=len(memories),
            )
            return replace(projection, limits=limits)

        def within() -> MemoryProjection:
            memories = self.backend.memories(modules)
            cores = own_cores(memories)
            projection = fit_limits(
                self.source,
                records,
                n_threads=n_threads,
                room=room_of(memories, memory_limit),
                cached=self.is_kept and is_read_again,
                # trials on a sample in memory run between passes over all rows, whose cached blocks stay
                others_stay=not self.is_kept,
                in_driver=in_driver,
                ahead=blocks_ahead(device, is_inline=self.backend.is_inline, cores=cores, n_threads=n_threads),
                least_ahead=waiting,
                device=device,
            )
            return completed(projection, memories)

        with suppress(MemoryLimitError):
            self.projection = within()
            return
        # processes may still hold freed memory of earlier passes: they return it, and are measured again
        self.backend.give_up_kept()
        try:
            self.projection = within()
        except MemoryLimitError:
            # A worker may have grown during a fit by more than was planned. Rather than end the fit, a pass takes one
            # block at a time, and up to the memory at which Dask pauses the worker, though Dask may spill results.
            memories = self.backend.memories(modules)
            room = room_of([memory.up_to_pause() for memory in memories], memory_limit)
            with suppress(MemoryLimitError):
                narrowest = narrowest_limits(
                    self.source, records, room, in_driver=in_driver, least_ahead=waiting, device=device
                )
                self.projection = completed(narrowest, memories)
                return
            raise

    @property
    def limits(self) -> Limits:
        return self.projection.limits

    @property
    def tickets_travel(self) -> bool:
        """Whether rows or graphs must be sent with a task on a cluster, so that a task has one block."""
        return self.backend.is_cluster and not self.is_read

    @property
    def is_read(self) -> bool:
        """Whether tasks read or compute their blocks."""
        return self._origin in ("store", "graph")

    @property
    def is_kept(self) -> bool:
        """Whether blocks stay in memory for the next pass, as far as there is room."""
        return blocks_are_kept(self.source, self._origin)

    def dispatcher(self, tasks_a_job: int = 1, result_bytes: int = RESULTS_AT_ONCE_BYTES) -> Dispatcher:
        """A dispatcher of jobs of `tasks_a_job` tasks with a block each; just enough run at once that no slot waits."""
        # results of a gigabyte are transferred one by one, small ones together
        at_once = min(max(RESULTS_AT_ONCE_BYTES // max(result_bytes, 1), 1), MOST_RESULTS_AT_ONCE)
        return Dispatcher(self.backend, lambda: max(2, -(-2 * len(self.slots) // tasks_a_job)), at_once)

    def slot(self, position: int) -> str:
        """The process that the task at `position` prefers, the same in every pass because of its cache."""
        # It depends on the number of the node, not on which process is free: in the next pass the same process has the
        # same blocks in its cache.
        slots = self.slots
        return slots[position % len(slots)]

    def tickets(self, node: Node) -> Any:
        """The blocks of a node that have rows, as an argument of its task."""
        blocks = node.blocks(self.source.n_blocks)
        filled = blocks.start + np.flatnonzero(self._block_rows[blocks.start : blocks.stop])
        tickets = [self.ticket(int(index)) for index in filled]
        # Dask would search every ticket of a plain list for futures, which is half the cost of submitting a long task
        return tickets if self.tickets_travel else Carried(tickets)

    def ticket(self, index: int) -> Ticket:
        value = self.source.ticket(index)
        if dask.is_dask_collection(value):
            # without the tasks of all other blocks, which are in the same graph
            value = culled(value)
        if self.tickets_travel:
            value = self.backend.send_rows(value)
        return Ticket(index, Carried(value) if self._origin == "graph" else value)

    def following(self, nodes: Sequence[Node], position: int) -> list[Ticket]:
        """The first blocks of the tasks that this task's process will probably start next, as far as it reads ahead."""
        if not self.is_read:
            return []
        found, a_task = [], -(-self.limits.ahead // self.limits.tasks)
        # tasks are assigned to slots in turn: this process probably gets those one round later, two, and so on
        for node in nodes[position + len(self.slots) :: len(self.slots)][:a_task]:
            blocks = node.blocks(self.source.n_blocks)
            with_rows = np.flatnonzero(self._block_rows[blocks.start : blocks.stop])
            found += [self.ticket(blocks.start + int(with_rows[0]))] if len(with_rows) else []
        return found

    def shared_work(self) -> Any:
        """The work as the argument of a task: sent once, and again if its last copy is lost."""
        if self._handle is None or self.backend.is_lost(self._handle):
            self._handle = self.backend.share(self.work)
        return self._handle

    def advance(self, reading: ReadCounts) -> None:
        """Count what a task has read and publish an event."""
        # raises an error if chunks of arrays in place have changed since an earlier pass read them
        compare_reads(reading.reads)
        self.reading += replace(reading, reads=replace(reading.reads, digests={}, absent=frozenset()))
        detail = {"cache_hits": self.reading.cache_hits}
        self.tell("advanced", rows=reading.rows, bytes=reading.bytes, detail=detail)

    def tell_finished(self, failed: bool) -> None:
        """Publish the event that the pass has ended, with what it has read."""
        read = {
            "bytes": self.reading.bytes,
            "cache_hits": self.reading.cache_hits,
            "projected_bytes": self.projection.total,
        }
        self.tell("finished", detail={"failed": True} if failed else read)

    def tell(self, kind: Kind, **fields: Any) -> None:
        """Publish an event of the pass."""
        total = int(np.count_nonzero(self._block_rows))
        # a request to end rounds is repeated when one has advanced; a single pass ignores it
        with suppress(StopRequested):
            self._publish(Event(kind, self.name, self.reading.blocks, total, seconds=self.seconds, **fields))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def stats(self) -> PassStats:
        reading = self.reading
        return PassStats(
            self.name,
            reading.blocks,
            reading.rows,
            reading.bytes,
            reading.cache_hits,
            reading.retries + self.losses,
            self.seconds,
            self.projection.total,
            reading.reads.stored,
            reading.reads.decoded,
        )


def origin_of(source: BlockSource) -> Origin:
    """The origin of the rows of a source: read from a store, computed by Dask, or in memory."""
    if source.stored_nbytes:
        return "store"
    # all blocks of a source have the same origin
    first = next(iter(np.flatnonzero(source.block_rows)), None)
    is_lazy = first is not None and dask.is_dask_collection(source.ticket(int(first)))
    return "graph" if is_lazy else "memory"


def task_origin(source: BlockSource, *, is_cluster: bool) -> Origin:
    """The origin of the rows of a task; graphs that a cluster should compute as a whole count as rows in memory."""
    origin = origin_of(source)
    return "memory" if origin == "graph" and is_cluster and not stand_alone(source) else origin


def blocks_are_kept(source: BlockSource, origin: Origin) -> bool:
    """Whether processes keep blocks for the next pass, as far as there is room, given the origin of a task's rows."""
    return origin != "memory" or are_kept(source)


def least_ahead(origin: Origin, *, is_cluster: bool) -> int:
    """Blocks that wait in a worker for each block in progress: one where rows are sent, or computed, before their task.

    The dispatcher has two jobs for each thread in progress, and Dask holds the rows of both.
    """
    return int(is_cluster and origin == "memory")


def stays_here(source: BlockSource, device: Device) -> bool:
    """Whether passes over a source run in this process even with a cluster: few rows that are in its memory.

    Sending them to the workers, and each pass through the scheduler, takes longer than computing. If a GPU is asked for
    that this process lacks, they go to the workers anyway.
    """
    most = parse_bytes(dask.config.get("dkl.local-bytes", LOCAL_BYTES))
    if whole_bytes(source) > most or origin_of(source) != "memory":
        return False
    return device == "cpu" or why_no_gpu() is None


def backend_for(
    source: BlockSource, kinds: Sequence[Sequence[Record]], device: Device, memory_limit: int | str | None
) -> Backend:
    """The backend for passes over a source: the current client's cluster, or this process, with the same bits.

    Parameters
    ----------
    source : BlockSource
    kinds : sequence of sequences of Record
        The records of each pass: if one of them does not fit into this process's memory, all run on the cluster.
    device, memory_limit
        As in `dkl.passes.loop.run_pass`.
    """
    if current_client() is None or not stays_here(source, device):
        return choose_backend()
    room = own_room(memory_limit)
    fits = all(least_memory(source, records, room, in_driver=True).fits for records in kinds)
    return choose_backend(on_cluster=not fits)


@contextmanager
def open_session(
    name: str,
    source: BlockSource,
    records: Sequence[Record],
    *,
    publish: Subscriber,
    memory_limit: int | str | None,
    device: Device,
    columns: RowColumns | None = None,
    is_read_again: bool = True,
) -> Iterator[Session]:
    """A session with the backend that Dask offers, planned for these records; no task is left at its end."""
    backend = backend_for(source, [records], device, memory_limit)
    failed = True
    try:
        session = Session(name, source, backend, publish)
        # earlier reads of this process are not part of this pass
        compare_reads(LEDGER.new_reads())
        client = current_client() if backend.is_cluster else None
        with backend.noticing_close(), nullcontext() if client is None else hung_workers_restarted(client):
            session.plan(records, memory_limit, device, is_read_again=is_read_again)
            session.work = Work(
                uuid.uuid4().hex,
                tuple(records),
                source.reader(),
                source.n_blocks,
                source.fingerprint if session.is_kept else "",
                source.place,
                session.is_read,
                session.limits,
                device,
                columns,
            )
            session.tell("started")
            try:
                # also one BLAS thread in the driver, whose merges must round like a worker's
                with one_blas_thread():
                    yield session
                failed = False
            finally:
                session.tell_finished(failed)
    finally:
        backend.close()


def stand_alone(source: BlockSource, *, of_ends: bool = False) -> bool:
    """Whether graphs can be sent with the tasks that need their blocks, judged from at most five of them.

    They must be small, contain no future of a cluster, and share no task: what blocks share (a mean of all rows, a
    chunk that is cut in two) would be computed again for each. With `of_ends` neighbours may share chunks: the first
    and the last block are looked at.
    """
    blocks = np.flatnonzero(source.block_rows)
    looked_at = {*blocks[:1], *blocks[-1:]} if of_ends else blocks[neighbours_and_ends(len(blocks))]
    tickets = [culled(source.ticket(int(index))) for index in looked_at]
    # a graph that holds rows as values would send them through the scheduler
    return share_no_task(tickets) and all(len(cloudpickle.dumps(ticket)) <= LARGEST_GRAPH_BYTES for ticket in tickets)
