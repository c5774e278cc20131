"""One pass over all blocks: a tuple of block sums and row samples fused into one read, or one fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dkl.data.sources.without_x import LightSource
from dkl.events import Subscriber, ignore
from dkl.kernels.device import Device
from dkl.passes.dispatch import Job
from dkl.passes.folding import run_fold
from dkl.passes.memory import pass_name, result_bytes
from dkl.passes.reductions import narrowed, reduction
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, Session, open_session
from dkl.passes.tasks import Partial, apply_to_block, merge_partials, sum_span
from dkl.passes.tree_sum import Node, TreeSum, count_nodes, root, span_level, spans
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Fold, Record, RowSample
from dkl.protocols.source import BlockSource

DRIVER_BYTES = 1 << 20
MOST_LARGE_NODES = 16
# some ten seconds of a core
LONG_TASK_FLOPS = 1e12
TASKS_A_SLOT = 4


@dataclass(frozen=True, eq=False)
class PassResult:
    """What a pass returns.

    Parameters
    ----------
    results : tuple
        One entry a record, in their order: a dict of arrays (BlockSum), a Block (RowSample), the last state (Fold).
    stats : PassStats
    columns : RowColumns or None
        The row columns at their new version, where the pass wrote some.
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
) -> PassResult:
    """Read every block once and compute all `records` of it, on whatever Dask offers.

    The workers of the current `distributed` client if there is one, else threads (or what `dask.config` says). The
    result has the same bits on each of them, and after a worker's death: sums combine in a binary tree over absolute
    block numbers, with one BLAS thread a task.

    Parameters
    ----------
    source : BlockSource
    records : sequence of Record
        Block sums and row samples in any number, or one fold.
    publish : callable
        Told when the pass starts, advances and ends.
    memory_limit : int, str or None
        Bytes that one process may hold (`"2 GiB"`); None is the worker's own limit, or what the machine has left.
    device : {"cpu", "gpu"}
    columns : RowColumns or None
        Where the records' row columns live.

    Returns
    -------
    PassResult

    Raises
    ------
    MemoryLimitError
        If the pass cannot be kept below the limit; before anything is read.
    ClusterError
        If the workers or the scheduler are lost and do not come back.
    """
    records = tuple(records)
    _check_records(records, columns)
    if all(isinstance(record, BlockSum) and not record.needs_x for record in records):
        source = LightSource(source)

    def passed(records: tuple[Record, ...]) -> tuple[tuple[Any, ...], PassStats]:
        with open_session(
            pass_name(records),
            source,
            records,
            publish=publish,
            memory_limit=memory_limit,
            device=device,
            columns=columns,
        ) as session:
            if isinstance(records[0], Fold):
                found: tuple[Any, ...] = (run_fold(session, records[0]),)
            else:
                found = _run_sums(session, columns)
        return found, session.stats()

    fewer = tuple(narrowed(record, source) for record in records)
    results, stats = passed(fewer)
    if _is_short(fewer, results, source):
        results, stats = passed(records)
    return PassResult(results, stats, _committed(records, columns))


def _is_short(records: tuple[Record, ...], results: tuple[Any, ...], source: BlockSource) -> bool:
    """Whether rows were left aside that a sample lacks: once in 1e15 passes, or where row ids are not unique."""
    n_rows = int(source.block_rows.sum())
    return any(
        isinstance(record, RowSample) and record.below < math.inf and found.n_rows < min(record.k, n_rows)
        for record, found in zip(records, results, strict=True)
    )


def map_blocks(
    source: BlockSource,
    function: Callable[[Block, Mapping[str, Any]], Any],
    operands: Mapping[str, Any],
    *,
    name: str = "map",
    publish: Subscriber = ignore,
    memory_limit: int | str | None = None,
    device: Device = "cpu",
) -> Iterator[tuple[int, Any]]:
    """`function(block, operands)` of each block with rows, in the order of the blocks, a bounded number ahead.

    Parameters
    ----------
    source : BlockSource
    function : callable
        Pure; its result should be no larger than the block.
    operands : mapping
        Broadcast once.
    name : str
        What a person sees on the dashboard.
    publish, memory_limit, device
        As in `run_pass`.

    Yields
    ------
    (index, output) : (int, object)
    """
    record = BlockSum(name, function, {}, operands)
    with open_session(name, source, (record,), publish=publish, memory_limit=memory_limit, device=device) as session:
        nodes = [node for node in spans(source.n_blocks, 0) if source.block_rows[node.index]]
        dispatcher = session.dispatcher()
        for job, (output, reading) in dispatcher.in_order(_block_jobs(session, nodes)):
            session.losses = dispatcher.losses
            session.advance(reading)
            yield job.subject.index, output


def _block_jobs(session: Session, nodes: Sequence[Node]) -> Iterator[Job]:
    for position, node in enumerate(nodes):

        def submit(losses: int, node: Node = node, slot: str = session.slot(position)) -> Any:
            work = session.shared_work()
            ticket = session.ticket(node.index)
            return session.backend.submit(session.name, apply_to_block, work, ticket, session.backend.stop, slot=slot)

        yield Job(f"block {node.index} of {session.source.place}", node, submit)


def _check_records(records: tuple[Record, ...], columns: RowColumns | None) -> None:
    if not records:
        raise ValueError("a pass needs at least one record")
    if len(records) > 1 and any(isinstance(record, Fold) for record in records):
        raise ValueError("a fold is a pass of its own: it goes through the blocks in order, sums in any order")
    for record in records:
        if columns is None and not isinstance(record, Fold) and (record.reads or _written((record,))):
            raise ValueError(f"{record.name!r} reads or writes row columns: pass columns=RowColumns.create(...)")


def _written(records: tuple[Record, ...]) -> dict[str, str]:
    writes: dict[str, str] = {}
    for record in records:
        writes.update(record.writes if isinstance(record, BlockSum) else {})
    return writes


def _committed(records: tuple[Record, ...], columns: RowColumns | None) -> RowColumns | None:
    return columns.commit() if columns is not None and _written(records) else columns


def _run_sums(session: Session, columns: RowColumns | None) -> tuple[Any, ...]:
    records = session.work.records
    if columns is not None and _written(tuple(records)):
        columns.prepare(_written(tuple(records)))
    made = [reduction(record) for record in records]  # type: ignore[arg-type]
    n_blocks = session.source.n_blocks
    tree = TreeSum(lambda left, right: merge_partials(session.work, left, right), n_blocks, root(n_blocks))
    span = _span_level(session)
    job_level = _job_level(session, span)
    task_level = min(job_level, 0 if session.tickets_travel else span)
    dispatcher = session.dispatcher(1 << (job_level - task_level), _node_bytes(session, job_level))
    for job, partial in dispatcher.as_completed(_sum_jobs(session, job_level, task_level)):
        session.losses = dispatcher.losses
        session.advance(partial.reading)
        tree.add(job.subject, Partial(partial.values, partial.reading))
    values = None if tree.total is None else tree.total.values
    return tuple(one.finish(None if values is None else values[place]) for place, one in enumerate(made))


def _span_level(session: Session) -> int:
    """The level of what one task sums.

    Lower on a cluster so large that most of it would wait long for the last tasks; short ones cost the driver more than
    that. No bit depends on it: whoever adds up a node, it is the sum of the same two.
    """
    source = session.source
    level = span_level(source.n_blocks)
    wanted = TASKS_A_SLOT * len(session.slots) if session.backend.is_cluster else 0
    rows = int(source.block_rows.max(initial=0))
    costs = [one.cost(rows, source.n_columns) for one in session.work.records if isinstance(one, BlockSum)]
    flops = sum(cost.flops for cost in costs)
    while level and count_nodes(source.n_blocks, level) < wanted and flops * (1 << level) > LONG_TASK_FLOPS:
        level -= 1
    return level


def _job_level(session: Session, level: int) -> int:
    """The level of the nodes that come to the driver.

    One span each while they are small. On a cluster, results above 1 MiB are merged by the workers, so that the
    driver sees 16 of them a pass, and the loss of a worker costs a sixteenth at most.
    """
    if session.backend.is_cluster and _node_bytes(session, level) > DRIVER_BYTES:
        level = max(level, root(session.source.n_blocks).level - (MOST_LARGE_NODES.bit_length() - 1))
    return level


def _node_bytes(session: Session, level: int) -> int:
    return sum(result_bytes(session.source, record, level) for record in session.work.records)


def _sum_jobs(session: Session, job_level: int, task_level: int) -> Iterator[Job]:
    n_blocks = session.source.n_blocks
    tasks = list(spans(n_blocks, task_level))
    for top in spans(n_blocks, job_level):

        def submit(losses: int, top: Node = top) -> Any:
            return _submit_node(session, top, tasks, careful=losses > 0)

        yield Job(f"{_label(top.blocks(n_blocks))} of {session.source.place}", top, submit)


def _label(blocks: range) -> str:
    return f"block {blocks.start}" if len(blocks) == 1 else f"blocks {blocks.start} to {blocks.stop - 1}"


def _submit_node(session: Session, top: Node, tasks: Sequence[Node], *, careful: bool) -> Any:
    """One task a span below `top`, and tasks that merge them on the workers; the last of these is returned.

    With `careful` (after a loss) nothing is read ahead: it may be another span's block that killed the worker.
    """
    n_blocks = session.source.n_blocks
    backend = session.backend
    work = session.shared_work()

    def merge(left: Any, right: Any) -> Any:
        return backend.submit(session.name, merge_partials, work, left, right, urgent=True)

    tree = TreeSum(merge, n_blocks, top)
    for node in top.descendants(tasks[0].level, n_blocks):
        slot = session.slot(node.index)
        following = None if careful else session.following(tasks, node.index)
        arguments = (work, node, session.tickets(node), following, backend.stop)
        tree.add(node, backend.submit(session.name, sum_span, *arguments, slot=slot))
    return tree.total
