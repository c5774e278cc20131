"""One pass over all blocks: a tuple of block sums and row samples computed from one read, or one fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.data.view import NoColumns, View
from dkl.events import Subscriber, ignore
from dkl.kernels.device import Device
from dkl.passes.chain import run_fold
from dkl.passes.dispatch import Job
from dkl.passes.lost_workers import Task
from dkl.passes.memory import pass_name, result_bytes
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, Session, open_session
from dkl.passes.tasks import apply_to_block, merge_partials, narrowed, reduction, sum_blocks
from dkl.passes.tree_sum import Node, TreeSum, count_nodes, nodes_of_level, root, task_level
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Fold, Record, RowSample
from dkl.protocols.source import BlockSource

# Larger results of a node are merged by the workers, and so many of them are copied to the driver.
DRIVER_BYTES = 1 << 20
MOST_LARGE_NODES = 16
# Operations that take some ten seconds of a core.
LONG_TASK_FLOPS = 1e12
# Long tasks are cut until each thread of a cluster has so many, so that the last ones end at similar times.
TASKS_A_SLOT = 4


@dataclass(frozen=True, eq=False)
class PassResult:
    """The result of a pass.

    Parameters
    ----------
    results : tuple
        One entry for each record, in their order: a dict of arrays (BlockSum), a Block (RowSample), the last state
        (Fold).
    stats : PassStats
    columns : RowColumns or None
        The row columns at their new version, if the pass wrote some.
    """

    results: tuple[Any, ...]
    stats: PassStats
    columns: RowColumns | None = None


def run_pass(
    source: BlockSource,
    records: Sequence[Record],
    *,
    publish: Subscriber = ignore,
    memory_limit: int | str | None = None,
    device: Device = "cpu",
    columns: RowColumns | None = None,
    is_read_again: bool = True,
) -> PassResult:
    """Read every block once and compute all `records`, on the backend that Dask offers.

    It runs on the workers of the current `distributed` client if there is one, else on threads (or by `dask.config`).
    The result has the same bits on each of these, also after a worker's death: sums combine in a binary tree over
    absolute block numbers, with one BLAS thread for each task.

    Parameters
    ----------
    source : BlockSource
    records : sequence of Record
        Any number of block sums and row samples, or one fold.
    publish : callable
        Called with events when the pass starts, advances and ends.
    memory_limit : int, str or None
        Bytes that one process may use (`"2 GiB"`); None is the worker's own limit, or the free memory of the machine.
    device : {"cpu", "gpu"}
    columns : RowColumns or None
        The records' row columns.
    is_read_again : bool
        Whether blocks stay in memory for the next pass, as far as there is room.

    Returns
    -------
    PassResult

    Raises
    ------
    MemoryLimitError
        If the pass does not fit below the limit; raised before anything is read.
    ClusterError
        If the workers or the scheduler are lost and do not return.
    """
    records = tuple(records)
    if not records:
        raise ValueError("a pass needs at least one record")
    if len(records) > 1 and any(isinstance(record, Fold) for record in records):
        raise ValueError("a fold is a pass of its own: it goes through the blocks in order, sums in any order")
    writes = {
        name: dtype for record in records if isinstance(record, BlockSum) for name, dtype in record.writes.items()
    }
    for record in records:
        uses_columns = not isinstance(record, Fold) and (
            record.reads or (isinstance(record, BlockSum) and record.writes)
        )
        if columns is None and uses_columns:
            raise ValueError(f"{record.name!r} reads or writes row columns: pass columns=RowColumns.create(...)")
    if all(isinstance(record, BlockSum) and not record.needs_x for record in records):
        source = View(source, NoColumns())  # type: ignore[arg-type]

    def passed(records: tuple[Record, ...]) -> tuple[tuple[Any, ...], PassStats]:
        with open_session(
            pass_name(records),
            source,
            records,
            publish=publish,
            memory_limit=memory_limit,
            device=device,
            columns=columns,
            is_read_again=is_read_again,
        ) as session:
            if isinstance(records[0], Fold):
                results: tuple[Any, ...] = (run_fold(session, records[0]),)
            else:
                if columns is not None and writes:
                    columns.prepare(writes)
                results = _SumPass(session).run()
        return results, session.stats()

    # a block returns only rows that can be in the sample; see `dkl.protocols.sampling.sure_key`
    fewer = tuple(narrowed(record, source) for record in records)
    results, stats = passed(fewer)
    # a sample lacks rows that were left out: once in 1e15 passes, or if row ids are not unique
    n_rows = int(source.block_rows.sum())
    is_short = any(
        isinstance(record, RowSample) and record.below < math.inf and sample.n_rows < min(record.k, n_rows)
        for record, sample in zip(fewer, results, strict=True)
    )
    if is_short:
        results, stats = passed(records)
    return PassResult(results, stats, columns.commit() if columns is not None and writes else columns)


def map_blocks(
    source: BlockSource,
    function: Callable[[Block, Mapping[str, Any]], Any],
    operands: Mapping[str, Any],
    *,
    name: str = "map",
    publish: Subscriber = ignore,
    memory_limit: int | str | None = None,
) -> Iterator[tuple[int, Any]]:
    """`function(block, operands)` of each block with rows, in the order of the blocks, a bounded number ahead.

    Parameters
    ----------
    source : BlockSource
    function : callable
        Without side effects; its result should be no larger than the block.
    operands : mapping
        Sent to the workers once.
    name : str
        Name on the dashboard.
    publish, memory_limit
        As in `run_pass`.

    Yields
    ------
    (index, output) : (int, object)
    """
    # a block sum without accumulators: the result for each block is returned to the caller instead
    record = BlockSum(name, function, {}, operands)
    with open_session(name, source, (record,), publish=publish, memory_limit=memory_limit, device="cpu") as session:

        def jobs() -> Iterator[Job]:
            filled, together = (int(index) for index in np.flatnonzero(source.block_rows)), source.blocks_together
            for position, index in enumerate(filled):
                # blocks that are stored together go to one process, which decodes their chunks once
                def submit(losses: int, index: int = index, slot: str = session.slot(position // together)) -> Task:
                    arguments = (session.shared_work(), session.ticket(index), session.backend.stop)
                    return session.backend.submit(session.name, apply_to_block, *arguments, slot=slot)

                yield Job(f"block {index} of {source.place}", index, submit)

        dispatcher = session.dispatcher()
        for job, (output, reading) in dispatcher.in_order(jobs()):
            session.losses = dispatcher.losses
            session.advance(reading)
            yield job.subject, output


@dataclass(frozen=True, eq=False)
class _SumPass:
    """A pass of block sums and samples: tasks sum the blocks of a node, the driver sums the nodes."""

    session: Session

    def run(self) -> tuple[Any, ...]:
        """The results of the records, in their order."""
        session = self.session
        reductions = [reduction(record) for record in session.work.records]  # type: ignore[arg-type]
        n_blocks = session.source.n_blocks
        tree = TreeSum(lambda left, right: merge_partials(session.work, left, right), n_blocks, root(n_blocks))
        job_level, read_level = self._levels()
        tasks = list(nodes_of_level(n_blocks, read_level))

        def jobs() -> Iterator[Job]:
            for top in nodes_of_level(n_blocks, job_level):

                def submit(losses: int, top: Node = top) -> Task:
                    return self._submit(top, tasks, careful=losses > 0)

                blocks = top.blocks(n_blocks)
                label = f"block {blocks.start}" if len(blocks) == 1 else f"blocks {blocks.start} to {blocks.stop - 1}"
                yield Job(f"{label} of {session.source.place}", top, submit)

        # each task of a job holds a block: the more tasks a job has, the fewer jobs are in progress
        dispatcher = session.dispatcher(1 << (job_level - read_level), self._node_bytes(job_level))
        for job, partial in dispatcher.as_completed(jobs()):
            session.losses = dispatcher.losses
            session.advance(partial.reading)
            tree.add(job.subject, partial)
        total = None if tree.total is None else tree.total.values
        return tuple(each.finish(None if total is None else total[place]) for place, each in enumerate(reductions))

    def _levels(self) -> tuple[int, int]:
        """The level of the nodes that are copied to the driver, and of those that one task reads and sums.

        No bit depends on them: a node is always the sum of the same two nodes.
        """
        session, source, backend = self.session, self.session.source, self.session.backend
        level = task_level(source.n_blocks)
        # On a large cluster shorter tasks avoid that most of it waits for the last ones; on a small one the driver's
        # work for more tasks would cost more.
        wanted = TASKS_A_SLOT * len(session.slots) if backend.is_cluster else 0
        rows = int(source.block_rows.max(initial=0))
        sums = [record for record in session.work.records if isinstance(record, BlockSum)]
        flops = sum(record.cost(rows, source.n_columns).flops for record in sums)
        while level and count_nodes(source.n_blocks, level) < wanted and flops * (1 << level) > LONG_TASK_FLOPS:
            level -= 1
        # Results above 1 MiB are merged by the workers of a cluster, so that the driver gets 16 of them in a pass, and
        # a lost worker costs at most a sixteenth. One task reads the blocks that are stored together.
        level = max(level, min(source.blocks_together.bit_length() - 1, root(source.n_blocks).level))
        job_level = level
        if backend.is_cluster and self._node_bytes(level) > DRIVER_BYTES:
            job_level = max(level, root(source.n_blocks).level - (MOST_LARGE_NODES.bit_length() - 1))
        # rows in memory are sent with their task, one block at a time
        return job_level, min(job_level, 0 if session.tickets_travel else level)

    def _node_bytes(self, level: int) -> int:
        """Bytes of the results of all records for one node."""
        return sum(result_bytes(self.session.source, record, level) for record in self.session.work.records)

    def _submit(self, top: Node, tasks: Sequence[Node], *, careful: bool) -> Task:
        """Submit the tasks of the node `top`, and those that merge them on the workers; returns the last one.

        With `careful` (after a loss) nothing is read ahead, as another task's block may have killed the worker.
        """
        session, n_blocks = self.session, self.session.source.n_blocks
        backend, work = session.backend, session.shared_work()

        def merge(left: Task, right: Task) -> Task:
            return backend.submit(session.name, merge_partials, work, left, right, urgent=True)

        # the tree that adds arrays within a process; here its values are tasks, and merging submits another task
        tree: TreeSum[Task] = TreeSum(merge, n_blocks, top)
        for node in top.descendants(tasks[0].level, n_blocks):
            following = [] if careful else session.following(tasks, node.index)
            arguments = (work, node, session.tickets(node), following, backend.stop)
            tree.add(node, backend.submit(session.name, sum_blocks, *arguments, slot=session.slot(node.index)))
        return tree.total
