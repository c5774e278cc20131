"""Runs the passes of a fit: the loop of a driver, one pass over all blocks, and what a task computes of its blocks.

`Run.drive` gets records from a driver, `run_pass` computes them in one read of the rows, and the driver steps on the
results, until it requests no more records. `run_pass` shares the blocks among tasks; each task calls `sum_blocks`,
which calls the block function of every record; sums are added in a tree over block numbers. `PlannedRun` records the
passes of a plan.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from scipy import sparse

from dkl.data.store.ledger import LEDGER
from dkl.data.view import NoColumns, View
from dkl.errors import StoreError, located
from dkl.events import Event, Kind, RequestKeeper, Subscriber, ignore
from dkl.kernels.device import Device, in_smaller_tiles, refuse_now
from dkl.kernels.threads import Crew
from dkl.passes.backends import current_client
from dkl.passes.chain import forget_pieces, run_fold
from dkl.passes.checkpoint import Checkpoint, decode_state, encode_state
from dkl.passes.dispatch import Job
from dkl.passes.lost_workers import Task
from dkl.passes.memory import pass_name, result_bytes
from dkl.passes.reading import LOADER, Kept, blocks_of
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, Session, open_session, stays_here
from dkl.passes.transport import aligned
from dkl.passes.tree_sum import Node, TreeSum, count_nodes, nodes_of_level, root, task_level
from dkl.passes.work import ReadCounts, StopFlag, Ticket, Work, computing, working
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.driver import Driver, Passes, largest_held
from dkl.protocols.records import (
    Accumulator,
    BlockSum,
    Cost,
    FewNumbers,
    Fold,
    Record,
    RowSample,
    no_cost,
    of_share,
    often,
)
from dkl.protocols.sampling import narrowed, sample_keys, smallest_keys, stays_first
from dkl.protocols.source import BlockSource, row_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P")
S = TypeVar("S", bound="DataclassInstance")
T = TypeVar("T")
# a key next to the state's own fields in a checkpoint; no field name contains a space
_VERSION = "row columns"
# Bytes of a node's results above which workers merge nodes, and the most nodes of that size that the driver receives in
# a pass.
DRIVER_BYTES = 1 << 20
MOST_LARGE_NODES = 16
# Operations that take some ten seconds of a core.
LONG_TASK_FLOPS = 1e12
# Tasks for each thread of a cluster, at least, into which longer tasks are cut, so that the last ones end at similar
# times.
TASKS_A_SLOT = 4

Sums = dict[str, np.ndarray | FewNumbers]
Values: TypeAlias = tuple[Any, ...]
"""One value a record of the pass: named arrays of a block sum, a Block of a sample."""


class Learns(Protocol):
    """The methods of a feature learner that the run of a machine calls."""

    def fit_within(self, dataset: Any, context: Any) -> Any:
        """The learner, fitted as a part of a machine's fit."""

    def planned(self, dataset: Any) -> tuple[Any, PlannedRun]:
        """A copy with a feature map as large as that of a fit may be, and the passes that lead to it."""


@dataclass(frozen=True, eq=False)
class Run:
    """Runs the passes of a fit. `PlannedRun` replaces it if they are only planned.

    Parameters
    ----------
    publish : callable
    memory_limit, device
        As in `run_pass`.
    checkpoint : Checkpoint or None
        Keeps the state after each round. An interrupted run resumes with the same bits, a finished one returns at once.
    fingerprint : str
        Fingerprint of data, parameters and version; a checkpoint of another one raises an error.
    estimator : callable or None
        Makes the estimator from a fit (a `LinearFit`, an `AdamFit`), for subscribers that look at a running one.
    """

    publish: Subscriber = ignore
    memory_limit: int | str | None = None
    device: Any = "cpu"
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    estimator: Callable[[Any], Any] | None = None

    def looked_at(self, fit: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        """A function from a driver's state to the estimator so far; `fit` turns the state into a fit."""
        estimator = self.estimator
        return None if estimator is None else lambda state: estimator(fit(state))

    def at_stage(self, stage: str) -> Run:
        """This run for a stage before its last one, whose states are in a subfolder of the checkpoint."""
        if self.checkpoint is None:
            return self
        return replace(self, checkpoint=Checkpoint(f"{self.checkpoint.store}/{stage}"))

    def drive(
        self,
        driver: Driver[P, S],
        problem: P,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[S], Any] | None = None,
    ) -> tuple[S, list[PassStats]]:
        """Run a method to its end, resuming from its checkpoint.

        Subscribers get an event for every round (name "rounds", the driver's metrics as detail) and those of the passes
        within.

        Parameters
        ----------
        driver : Driver
            It may also have ``metrics(problem, state)``, numbers by name that describe the progress; and
            ``stopped(problem, state, why)``, the final state after a subscriber's request, or None if there is none
            yet: then it is called again after the next pass.
        problem : object
            First argument of the driver's functions.
        source : BlockSource
        columns : ColumnStore or None
            The place of the driver's row columns. The checkpoint stores the version of the columns for its state, and
            that version stays until the next state is saved: a kill at any moment leaves the two consistent.
        model : callable or None
            Makes the estimator from a final state; subscribers may ask for it after each round.

        Returns
        -------
        state : object
            The driver's last state. `RowColumns.open` opens its columns.
        stats : list of PassStats
            One for each pass of this call.
        """
        state, rounds = driver.init(problem), 0
        checkpoint = self.checkpoint
        saved = None if checkpoint is None else checkpoint.load(self.fingerprint)
        if saved is None:
            row_columns = None if columns is None else columns.create(source)
        else:
            values = dict(saved.values)
            version = values.pop(_VERSION, None)
            row_columns = None if columns is None or version is None else columns.open(source, version)
            state, rounds = decode_state(type(state), saved.arrays, values), saved.rounds
        stats: list[PassStats] = []
        started = time.perf_counter()
        # optional functions of a driver (see `dkl.protocols.driver`)
        metrics: Any = getattr(driver, "metrics", lambda problem, state: {})
        stopped: Any = getattr(driver, "stopped", lambda problem, state, why: None)

        def tell(kind: Kind, detail: Mapping[str, Any], model: Callable[[], Any] | None = None) -> None:
            heard(Event(kind, "rounds", rounds, seconds=time.perf_counter() - started, detail=detail, model=model))

        def so_far() -> Any:
            """The model of the current state, for subscribers that ask for it; None if there is none."""
            ended = stopped(problem, state, "a look at the model so far")
            return None if ended is None or model is None else model(ended)

        def save() -> None:
            if checkpoint is not None:
                arrays, values = encode_state(state)
                if row_columns is not None:
                    # If the process is killed between the commit of the columns and this save, the previous state uses
                    # the previous columns, which stay until then (`keeps_last`).
                    values = {**values, _VERSION: row_columns.version}
                checkpoint.save(arrays, values, fingerprint=self.fingerprint, rounds=rounds)

        # subscribers get the final event even if a round fails
        finished, shares_pieces, heard = False, False, RequestKeeper(self.publish, "rounds")
        tell("started", {})
        try:
            # the whole of a method: ask for records, read the rows once for them, step
            while records := driver.request(problem, state):
                shares_pieces |= any(getattr(record, "kept_as", "") != "" for record in records)
                result = run_pass(
                    source,
                    records,
                    publish=heard,
                    memory_limit=self.memory_limit,
                    device=self.device,
                    columns=row_columns,
                )
                state, row_columns = driver.step(problem, state, result.results), result.columns
                rounds += 1
                stats.append(result.stats)
                save()
                tell("advanced", metrics(problem, state), so_far)
                ended = stopped(problem, state, heard.request) if heard.request else None
                if ended is not None:
                    state = ended
                    save()
                    break
            finished = True
        finally:
            if shares_pieces:
                forget_pieces(source, self.device)
            tell("finished", {} if finished else {"failed": True})
        return state, stats

    def learn(self, learner: Learns, dataset: Any, context: Any) -> Any:
        """Fitted features: the learner after `fit_within`.

        A plan records the passes of that fit, and returns a copy with a feature map of the largest size.
        """
        return learner.fit_within(dataset, context)

    def ends(self, is_enough: bool) -> bool:
        """Whether a loop over fits ends before its last one, which the results of passes decide.

        A plan, which has no results, counts all of them.
        """
        return is_enough

    def holds(self, items: Mapping[str, int]) -> None:
        """Count bytes that the driver keeps during its passes, by item as in `Driver.memory`; only plans count them."""

    def read(
        self,
        source: BlockSource,
        records: Sequence[Record],
        taken: Callable[[PassResult], T],
        planned: T | None,
        *,
        stage: str = "",
        is_read_again: bool = True,
    ) -> T:
        """The value of `taken` for the result of one pass.

        A plan, which runs no pass, uses `planned` instead, a value of the same size; with None it ends there. With a
        `stage` the sums of the pass are kept in a subfolder of the checkpoint, where a resumed run finds them; its
        records are block sums, and `taken` uses the results alone. `is_read_again` is that of `run_pass`.
        """
        checkpoint = self.at_stage(stage).checkpoint if stage else None
        saved = None if checkpoint is None else checkpoint.load(self.fingerprint)
        if saved is not None:
            sums = [
                {name: saved.arrays[f"{number} {name}"] for name in names} for number, names in enumerate(saved.values)
            ]
            return taken(PassResult(tuple(sums), PassStats(pass_name(records))))
        passed = run_pass(
            source,
            records,
            publish=self.publish,
            memory_limit=self.memory_limit,
            device=self.device,
            is_read_again=is_read_again,
        )
        if checkpoint is not None:
            arrays = {f"{at} {name}": value for at, sums in enumerate(passed.results) for name, value in sums.items()}
            checkpoint.save(arrays, [list(sums) for sums in passed.results], fingerprint=self.fingerprint)
        return taken(passed)


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
        for job, sums in dispatcher.as_completed(jobs()):
            session.losses = dispatcher.losses
            session.advance(sums.reading)
            tree.add(job.subject, sums)
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
        level = max(level, min(source.blocks_sharing_chunks.bit_length() - 1, root(source.n_blocks).level))
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


@dataclass(frozen=True, eq=False)
class Partial:
    """The sums of one node: a value for each record (None if there are no rows) and the counts of reading blocks."""

    values: Values | None
    reading: ReadCounts


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
    return Partial(tree.total, replace(reading, reads=LEDGER.new_reads()))


def _merged(reductions: Sequence[Reduction], left: Values, right: Values) -> Values:
    return tuple(each.merge(a, b) for each, a, b in zip(reductions, left, right, strict=True))


def merge_partials(work: Work, left: Partial, right: Partial) -> Partial:
    """Merge two siblings of the tree into their parent."""
    reading = left.reading + right.reading
    if left.values is None or right.values is None:
        return Partial(right.values if left.values is None else left.values, reading)
    reductions = [reduction(record) for record in work.records]  # type: ignore[arg-type]
    return Partial(_merged(reductions, left.values, right.values), reading)


class SumReduction:
    """The reduction of a `BlockSum`: accumulators of blocks are added, or their larger values taken."""

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
        # raises errors in rows on a GPU that the function found without waiting for the GPU
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
            value = returned[name]
            if not isinstance(value, FewNumbers):
                # in C order, as after a transfer between processes: NumPy's later sums over an axis depend on it
                value = np.asarray(value, dtype=accumulator.dtype, order="C")
            if value.shape != tuple(accumulator.shape):
                raise ValueError(
                    f"the block function of {self.record.name!r} returned {name!r} of shape {value.shape}; its "
                    f"accumulator has shape {tuple(accumulator.shape)}"
                )
            sums[name] = value
        return sums

    def merge(self, left: Sums, right: Sums) -> Sums:
        # always left with right, in the order of the blocks, as floating-point sums depend on it
        accumulators = self.record.accumulators
        return {name: _combined(accumulators[name], left[name], right[name]) for name in left}

    def finish(self, value: Sums | None) -> Sums:
        if value is None:
            return {name: accumulator.zero() for name, accumulator in self.record.accumulators.items()}
        # the sums of a single task may be in a received message; the driver needs aligned arrays, and some are large
        return dict(zip(value, Crew().map(np.array, value.values()), strict=True))


def _combined(
    accumulator: Accumulator, left: np.ndarray | FewNumbers, right: np.ndarray | FewNumbers
) -> np.ndarray | FewNumbers:
    """The sum, or the larger numbers, of two values of an accumulator; an array unless both have few numbers."""
    if accumulator.combine == "add" and isinstance(left, FewNumbers) and isinstance(right, FewNumbers):
        both = left.added(right)
        return both if both.are_few else np.asarray(both)
    combine = {"add": np.add, "max": np.maximum}
    return combine[accumulator.combine](np.asarray(left), np.asarray(right))


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


def map_blocks(
    source: BlockSource,
    function: Callable[[Block, Mapping[str, Any]], Any],
    operands: Mapping[str, Any],
    *,
    name: str = "map",
    cost: Callable[[int, int], Cost] = no_cost,
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
    cost : callable
        As of a `BlockSum`: its scratch bytes limit how many blocks are computed and read at once.
    publish, memory_limit
        As in `run_pass`.

    Yields
    ------
    (index, output) : (int, object)
    """
    # a block sum without accumulators: the result for each block is returned to the caller instead
    record = BlockSum(name, function, {}, operands, cost)
    with open_session(name, source, (record,), publish=publish, memory_limit=memory_limit, device="cpu") as session:

        def jobs() -> Iterator[Job]:
            filled, together = (int(index) for index in np.flatnonzero(source.block_rows)), source.blocks_sharing_chunks
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
            return output, replace(reading, reads=LEDGER.new_reads())


class PlanEndsError(Exception):
    """A plan has reached the last pass of a fit, on whose results no other pass depends."""


@dataclass(frozen=True, eq=False)
class PlannedRun(Run):
    """Records the passes of a fit instead of running them: a plan is the fit itself, with this run.

    A driver on whose state later passes depend has ``planned(problem)``, a state of the largest size; after one without
    it the plan is complete.

    Attributes
    ----------
    n_rows : int
        Rows of the plan. A pass over a sample of them costs its share.
    passes : list of (records, int)
        Each kind of pass, and how often it runs at most.
    held : list of dict of str to int
        Peak bytes of each driver in addition to its passes, by item.
    driving : list of callable
        ``(few, flops_per_second) -> float``: seconds of the drivers outside the passes, from their ``driving``.
    problems : list
        The problems of the drivers.
    stages : list of (passes, dict of int)
        The passes and the peak bytes of each stage that has ended and freed its memory, as `passes` and `held` have
        those of the present one.
    """

    n_rows: int = 0
    passes: list[tuple[Sequence[Record], int]] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    driving: list[Callable[[Rows, float], float]] = field(default_factory=list)
    problems: list[Any] = field(default_factory=list)
    stages: list[tuple[Passes, dict[str, int]]] = field(default_factory=list)

    def drive(
        self,
        driver: Driver[Any, Any],
        problem: object,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, list[PassStats]]:
        """Record the passes of a driver; returns its planned state, and no passes.

        Raises
        ------
        PlanEndsError
            If it has no planned state.
        """
        there: Any = driver
        self.problems.append(problem)
        self._note(source, driver.plan(problem))
        if hasattr(driver, "memory"):
            self.held.append(there.memory(problem, self.n_rows, row_bytes(source)))
        if hasattr(driver, "driving"):
            self.driving.append(partial(there.driving, problem, self.n_rows))
        if not hasattr(driver, "planned"):
            raise PlanEndsError
        return there.planned(problem), []

    def learn(self, learner: Learns, dataset: Any, context: Any) -> Any:
        """Record the passes of a fit of features, which is a stage of its own."""
        self.end_stage()
        features, plan = learner.planned(dataset)
        plan.end_stage()
        self.stages.extend(plan.stages)
        self.driving.extend(plan.driving)
        return features

    def end_stage(self) -> None:
        """Begin another stage, unless nothing has happened in the present one."""
        if self.passes or self.held:
            self.stages.append(([*self.passes], largest_held(self.held)))
        self.passes.clear()
        self.held.clear()

    def add(
        self, other: PlannedRun, times: int = 1, beside: Mapping[str, int] | None = None, share: float = 1.0
    ) -> None:
        """Append the stages of another plan.

        Parameters
        ----------
        other : PlannedRun
        times : int
            How often they run; 0 if they may run in place of others, so that only their memory counts.
        beside : mapping of str to int or None
            Further bytes that are held meanwhile, by item.
        share : float
            The most rows of one task, as a share of those of a block.
        """
        self.end_stage()
        other.end_stage()
        for passes, held in other.stages:
            repeated = [
                ([of_share(often(record, times), share) for record in records], calls * times)
                for records, calls in passes
            ]
            self.stages.append((repeated, {**held, **(beside or {})}))
        # what runs in place of others is not timed
        self.driving.extend(partial(_repeated, seconds, times) for seconds in other.driving if times)

    def ends(self, is_enough: bool) -> bool:
        """Whether a loop over fits ends before its last one: never."""
        return False

    def holds(self, items: Mapping[str, int]) -> None:
        """Record bytes that the driver keeps during its passes, by item."""
        self.held.append(dict(items))

    def read(
        self,
        source: BlockSource,
        records: Sequence[Record],
        taken: Callable[[PassResult], T],
        planned: T | None,
        *,
        stage: str = "",
        is_read_again: bool = True,
    ) -> T:
        """Record one pass; returns `planned` instead of the value for its results.

        Raises
        ------
        PlanEndsError
            If `planned` is None.
        """
        self._note(source, [(records, 1)])
        if planned is None:
            raise PlanEndsError
        return planned

    def _note(self, source: BlockSource, passes: Sequence[tuple[Sequence[Record], int]]) -> None:
        share = float(np.sum(source.block_rows)) / max(self.n_rows, 1)
        self.passes.extend(([of_share(record, share) for record in records], calls) for records, calls in passes)


def _repeated(seconds: Callable[[Rows, float], float], times: int, few: Rows, flops_per_second: float) -> float:
    return times * seconds(few, flops_per_second)


@dataclass(frozen=True)
class ColumnStore:
    """The row columns that a driver needs, and their place.

    Parameters
    ----------
    store : str
        A local path or a URL that every worker process can access.
    columns : mapping of str to (str, tuple of int)
        The dtype and the shape of one row's value, by name; initially all zeros.
    start : RowColumns or None
        Columns of the same rows whose values replace the zeros; they are not changed.
    """

    store: str
    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    start: RowColumns | None = None

    def create(self, source: BlockSource) -> RowColumns:
        """New columns, which replace those of a run that was killed before its first checkpoint."""
        # overwritten: without a checkpoint there is no state that old columns could belong to
        made = RowColumns.create(self.store, source, self.columns, overwrite=True, start=self.start)
        self._check_reach(source)
        return replace(made, keeps_last=True)

    def open(self, source: BlockSource, version: int) -> RowColumns:
        """The columns at the version of a checkpoint."""
        self._check_reach(source)
        return replace(RowColumns.open(self.store, source).at(version), keeps_last=True)

    def _check_reach(self, source: BlockSource) -> None:
        if not stays_here(source, "cpu"):
            check_reach(self.store)


def check_reach(store: str) -> None:
    """Ask one worker on each host whether it sees a local folder, before a task fails because it does not.

    The folder is created if it does not exist.

    Raises
    ------
    StoreError
        If a worker does not see it: the folder is on a disk of the driver's machine alone.
    """
    client = current_client()
    if client is None or "://" in store:
        return
    os.makedirs(store, exist_ok=True)
    by_host = {address.rpartition(":")[0]: address for address in client.nthreads()}
    # a worker that is lost meanwhile answers with an error, which the pass handles
    answers = client.run(os.path.isdir, store, workers=list(by_host.values()), on_error="return")
    if blind := sorted(address for address, answer in answers.items() if answer is False):
        raise StoreError(
            f"the values that are kept for each row between passes lie in {store!r}, which the worker {blind[0]} does "
            "not see; pass checkpoint= a folder or URL that all workers reach, or set Dask's temporary_directory to a "
            "shared folder: dask.config.set(temporary_directory='/shared/tmp')"
        )
