"""plan: what a learner will read, hold and compute, and the time that implies on this machine, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import numpy as np
from dask.utils import format_bytes, format_time
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import normalize

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.exposure import Exposure, with_planned_rates
from dkl.data.labels import TaskChoice
from dkl.data.sources.tasks import culled
from dkl.data.together.rows import GroupsAndTimes
from dkl.errors import warn_user
from dkl.kernels.device import Device
from dkl.kernels.threads import one_blas_thread
from dkl.machines.usual_time import UsualTime
from dkl.methods.parameters import check_constraints
from dkl.methods.room import PlannedMixin, held_by_driver, planned_work, usual_calls
from dkl.methods.validation import check_target
from dkl.passes.devices import choose_device
from dkl.passes.kept_sums import source_of
from dkl.passes.memory import MemoryProjection, device_items, fit_limits, kept_bytes, pass_name, whole_bytes
from dkl.passes.room import Room
from dkl.passes.session import origin_of, stand_alone
from dkl.passes.timing import Seconds, TimedRows, seconds_counted, visited_share
from dkl.passes.tree_sum import count_nodes, task_level
from dkl.plain_text import Printed, in_columns
from dkl.process import waited_seconds
from dkl.progress import short_time
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.driver import with_passes
from dkl.protocols.records import BlockSum, Record
from dkl.protocols.source import BlockSource

# Kinds of passes that a short plan names: those that take longest.
_NAMED = 4
# Threads side by side share the bandwidth of the memory and wait for each other: passes take so much longer than their
# calls. A fit has so many seconds of its own.
_BESIDE, _BEGINS_S = 1.25, 0.2
# What the driver spends on a pass whatever its tasks (measured for rows in memory, of one block), and on each of them,
# by its own threads and by a cluster.
_PASS_S, _TASK_S, _CLUSTER_TASK_S = 8e-4, 1.3e-4, 2e-3
# Row columns of a block are files: what one takes that is read or written, and the array that is made for new ones.
_COLUMN_S, _NEW_COLUMNS_S = 5e-3, 1e-2
# Beyond so many seconds a plan names a cheaper way, if it takes at most such a share.
_LONG_S, _CHEAPER = 3_600.0, 0.5
# Blocks that a plan reads to measure the speed of reading: two, and up to four until a quarter of a second is over.
_LEAST_READS, _MOST_READS, _READING_S = 2, 4, 0.25
# Numbers of the rows that a search is timed on, 8 MiB, and these rows at most: it takes some tenths of a second.
_MADE_NUMBERS, _MADE_ROWS = 1 << 21, 8_192
# Sparse rows that it is timed on at least, since most of a row's columns cost them nothing.
_SPARSE_ROWS = 256
# (m, n, k) of the product that is timed: large enough for full speed, and done in milliseconds.
_TRIAL_SHAPE = (512, 1_024, 512)


@dataclass(frozen=True)
class PassPlan:
    """One kind of pass.

    Parameters
    ----------
    name : str
    calls : int
        How often it runs at most.
    bytes_read : int
        From the store, in one of them; 0 for rows in memory.
    flops : float
        In one of them.
    seconds : float
        Of one of them: computing or reading, whichever takes longer, since they overlap.
    memory : MemoryProjection
        Of one process.
    held : mapping of str to int
        Bytes that the driver holds at most beside it, item by item: searched rows, Hessians.
    device_bytes : int
        On the GPU of one process, at most; 0 where blocks are computed on the CPU.
    expected_calls : int
        How often it runs as a rule.
    serial_seconds : float
        The part of `seconds` that further slots do not shorten: the steps of a fold, and what the driver spends on
        tasks.
    """

    name: str
    calls: int
    bytes_read: int
    flops: float
    seconds: float
    memory: MemoryProjection
    held: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    expected_calls: int = 0
    serial_seconds: float = 0.0


@dataclass(frozen=True)
class Plan(Printed):
    """The time, memory and passes that a fit will take; print it, and `cells()` for every pass.

    Parameters
    ----------
    learner, rows : str
        What is planned, on what.
    passes : tuple of PassPlan
    slots : int
        Blocks that are computed on at once, over all processes, each by a core of its own.
    flops_per_second, bytes_per_second : float
        Measured on this machine: a matrix product on one thread, and blocks read one after the other.
    is_cluster : bool
        Passes run in other processes than the driver.
    device : str
        Where blocks are computed on, and why.
    in_files : int
        Bytes at most in Dask's `temporary_directory`: sums and tables of categories that do not fit in memory.
    room : Room or None
        What a process that runs passes holds already, and the lines that it stays below.
    driver_seconds : float
        Of the driver, beside the passes: searches on a sample of the rows.
    choice : UsualTime or None
        Of a machine that chooses its features: what choosing and fitting take, told from fits of its kind.
    cheaper : str
        Another way, with its time, where this one is long.
    n_rows : int
    """

    learner: str
    rows: str
    passes: tuple[PassPlan, ...]
    slots: int
    flops_per_second: float
    bytes_per_second: float
    is_cluster: bool = False
    device: str = ""
    in_files: int = 0
    room: Room | None = None
    driver_seconds: float = 0.0
    choice: UsualTime | None = None
    cheaper: str = ""
    n_rows: int = 0

    def at(self, n_rows: int, slots: int | None = None) -> Plan:
        """The same fit of more or fewer rows of the same kind, on another number of slots: times, bytes and operations.

        What a process holds stays as it is: passes hold as much of many rows as of few.

        Parameters
        ----------
        n_rows : int
        slots : int or None
            Blocks that are computed on at once; None for as many as now.
        """
        share, slots = n_rows / self.n_rows, slots or self.slots
        quicker = share * self.slots / slots
        passes = tuple(
            replace(
                kind,
                bytes_read=round(kind.bytes_read * share),
                flops=kind.flops * share,
                seconds=kind.serial_seconds * share + (kind.seconds - kind.serial_seconds) * quicker,
                serial_seconds=kind.serial_seconds * share,
            )
            for kind in self.passes
        )
        choice = None if self.choice is None else self.choice.at(quicker)
        return replace(self, passes=passes, choice=choice, n_rows=n_rows, slots=slots, cheaper="")

    @property
    def n_passes(self) -> int:
        """At most."""
        return sum(kind.calls for kind in self.passes)

    @property
    def expected_passes(self) -> int:
        """As a rule."""
        if self.choice is not None:
            return min(self.choice.passes, self.n_passes)
        return sum(kind.expected_calls for kind in self.passes)

    @property
    def peak_bytes(self) -> int:
        """Of one process, above what its imports take."""
        if self.is_cluster:
            return max((max(kind.memory.total, sum(kind.held.values())) for kind in self.passes), default=0)
        # passes and the driver share a process
        return max((with_passes(kind.held, kind.memory.total) for kind in self.passes), default=0)

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that the driver holds at most beside the passes, in the stage that holds most, item by item."""
        return max((kind.held for kind in self.passes), key=lambda held: sum(held.values()), default={})

    @property
    def device_bytes(self) -> int:
        """On the GPU of one process, at most."""
        return max((kind.device_bytes for kind in self.passes), default=0)

    @property
    def bytes_read(self) -> int:
        return sum(kind.calls * kind.bytes_read for kind in self.passes)

    @property
    def flops(self) -> float:
        return sum(kind.calls * kind.flops for kind in self.passes)

    @property
    def seconds(self) -> float:
        """At most."""
        passes = self.driver_seconds + sum(kind.calls * kind.seconds for kind in self.passes)
        return passes if self.choice is None else min(passes, self.choice.at_most)

    @property
    def expected_seconds(self) -> float:
        """As a rule."""
        if self.choice is not None:
            return min(self.choice.seconds, self.seconds)
        return self.driver_seconds + sum(kind.expected_calls * kind.seconds for kind in self.passes)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "learner": self.learner,
            "rows": self.rows,
            "passes": [
                {
                    "name": kind.name,
                    "calls": kind.calls,
                    "expected_calls": kind.expected_calls,
                    "bytes_read": kind.bytes_read,
                    "flops": kind.flops,
                    "seconds": kind.seconds,
                    "memory": dict(kind.memory.items),
                }
                for kind in self.passes
            ],
            "held": dict(self.held),
            "in_files": self.in_files,
            "n_passes": self.n_passes,
            "peak_bytes": self.peak_bytes,
            "device_bytes": self.device_bytes,
            "bytes_read": self.bytes_read,
            "flops": self.flops,
            "seconds": self.seconds,
            "expected_passes": self.expected_passes,
            "expected_seconds": self.expected_seconds,
            "driver_seconds": self.driver_seconds,
            "cheaper": self.cheaper,
            "slots": self.slots,
            "device": self.device,
        }

    def cells(self, *, verbose: bool = True) -> list[list[str]]:
        """A table as texts: the heads, a row for each kind of pass and one for what is held beside them, the sums.

        Parameters
        ----------
        verbose : bool
            Every kind of pass, in the order in which they run; else passes of one name are one row, of which the four
            that take longest are named.
        """
        table = [["pass", "times", "reads", "flops", "time", "peak a process"]]
        table += self._verbose_rows() if verbose else self._brief_rows()
        if self.held:
            # workers run the passes of a cluster, and hold nothing beside them
            whose = "held beside them, in your process" if self.is_cluster else "held beside them"
            table.append([whose, "", "", "", "", format_bytes(sum(self.held.values()))])
        if self.in_files:
            table.append(["in temporary files", "", "", "", "", format_bytes(self.in_files)])
        totals = [format_bytes(self.bytes_read), f"{self.flops:.1e}", format_time(self.seconds)]
        return [*table, ["in all", str(self.n_passes), *totals, format_bytes(self.peak_bytes)]]

    def _verbose_rows(self) -> list[list[str]]:
        """A row for each kind of pass; what it reads and takes is that of one of them."""
        rows = []
        for kind in (kind for kind in self.passes if kind.calls):
            cost = [format_bytes(kind.bytes_read), f"{kind.flops:.1e}", self._time(kind.seconds)]
            # A pass of many rounds is named after its first one, and stands for all of them here.
            name = kind.name if kind.calls == 1 else kind.name.removesuffix(" 1")
            rows.append([name, str(kind.calls), *cost, format_bytes(kind.memory.total)])
        return rows

    def _brief_rows(self) -> list[list[str]]:
        """A row for all passes of one name, the longest first, with the sums over them; the others are one row."""
        named: dict[str, list[PassPlan]] = {}
        for kind in self.passes:
            # A pass may answer several questions at once: the first one names it.
            named.setdefault(kind.name.split(" + ")[0].removesuffix(" 1"), []).append(kind)
        that_run = [item for item in named.items() if any(kind.calls for kind in item[1])]
        longest = sorted(that_run, key=lambda item: -sum(kind.calls * kind.seconds for kind in item[1]))
        groups = longest[:_NAMED]
        if rest := [kind for _, kinds in longest[_NAMED:] for kind in kinds]:
            groups.append((f"{len(longest) - _NAMED} other kinds", rest))
        rows = []
        for name, kinds in groups:
            reads, flops, seconds = (
                sum(kind.calls * getattr(kind, what) for kind in kinds) for what in ("bytes_read", "flops", "seconds")
            )
            peak = max(kind.memory.total for kind in kinds)
            calls = sum(kind.calls for kind in kinds)
            rows.append(
                [name, str(calls), format_bytes(reads), f"{flops:.1e}", self._time(seconds), format_bytes(peak)]
            )
        return rows

    def _time(self, seconds: float) -> str:
        """The time of a kind of passes; nothing where the effort bounds all of them together, and each far below."""
        return format_time(seconds) if self.choice is None else ""

    @property
    def summary(self) -> str:
        """The expected time and the most time and memory, in one sentence."""
        n_processes = 1 if self.room is None else self.room.n_processes
        where = f"on these {n_processes} workers" if self.is_cluster else "in this process"
        where = where.replace("these 1 workers", "this worker")
        peak = self.peak_bytes if self.room is None else self.room.held + self._added
        each = f"{format_bytes(peak)} each" if n_processes > 1 else format_bytes(peak)
        expected, most = (short_time(max(seconds, 1.0)) for seconds in (self.expected_seconds, self.seconds))
        time = f"about {expected} {where} (at most {most})"
        return f"{time}, {each}, {self.expected_passes} passes (at most {self.n_passes})"

    @property
    def _added(self) -> int:
        """Bytes at most that a process that runs passes holds more than now."""
        passes = max((kind.memory.total for kind in self.passes), default=0)
        return passes if self.is_cluster else self.peak_bytes

    @property
    def memory(self) -> str:
        """Bytes that a process holds, that the fit adds, and at which Dask or a limit acts, in one sentence."""
        beside = held_by_driver(kind.held for kind in self.passes) if self.is_cluster else 0
        return "" if self.room is None else self.room.adding(self._added, beside)

    @property
    def speed(self) -> str:
        return f"({self.slots} at once, each {self.flops_per_second / 1e9:.0f} GFLOP/s, measured on this machine)"

    def __repr__(self) -> str:
        lines = in_columns(self.cells(verbose=False))
        device = [f"computed on the {self.device}"] if self.device else []
        if self.device_bytes:
            device.append(f"at most {format_bytes(self.device_bytes)} on the GPU of a process")
        said = [self.summary, *filter(None, [self.cheaper]), f"for {self.learner}", f"on {self.rows}"]
        return "\n".join([*said, *filter(None, [self.memory]), *lines, self.speed, *device])


def plan(
    learner: PlannedMixin,
    dataset: object,
    y: object = None,
    *,
    sample_weight: object = None,
    exposure: object = None,
) -> Plan:
    """The expected and the largest time and number of passes of fitting `learner` on `dataset`, and the most bytes.

    Nothing is fitted: two to four blocks are read, or computed by Dask, each kind of pass is timed on a few of its
    rows, and passes that end when they have settled are expected as often as fits of their kind needed them. Of a
    machine that chooses its features, the time follows from `effort`, from the size of the rows, and from a look at the
    first of the blocks: whether waves and thresholds tell its rows better than lines.

    Parameters
    ----------
    learner : feature learner or kernel machine
        Its parameters are checked, and its `memory_limit` holds for the plan as it would for the fit.
    dataset : Dataset, or rows as `fit` takes them
    y : array of shape (n,) or None
        Targets of rows that are no Dataset.
    sample_weight : str, array of shape (n,), or None
        As `fit` takes them: the weights of rows that are no Dataset, or their column of a data frame.
    exposure : str, array of shape (n,), or None
        As `fit` takes it. A column of a Dataset is read once more, by the driver, before the passes.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError
        If `learner` is of another library, or a class.
    ValueError
        If a parameter of the learner has no meaning, or it learns from targets and there are none.
    MemoryLimitError
        If a pass cannot be kept below the limit; the message holds the sum.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import dkl
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> planned = dkl.plan(dkl.AlignedFeatures(n_candidates=1_000), X, y)
    >>> planned.n_passes
    2
    """
    rows, exposed = planned_rows(learner, dataset, y, exposure, sample_weight)
    # A plan of a fit that would be refused for want of a GPU says so, and is a plan all the same.
    where, device = _device(getattr(learner, "device", None))
    work = planned_work(learner, rows, where)
    whole, slots, stored = work.rows, work.slots, rows.source.stored_nbytes
    flops_per_second = product_rate()
    computed = 0 if stored else _computed_bytes(whole.source)
    block, bytes_per_second = _one_block(whole, stored or computed)
    choice = usual_choice(learner, rows, block, work.cores, flops_per_second)
    reading = (stored or computed) / (bytes_per_second * min(len(slots), work.cores))
    passes = []
    if exposed.name and stored:
        one_block = fit_limits(rows.source, (), n_threads=1, room=work.room, cached=False, ahead=0)
        passes.append(PassPlan("exposures", 1, stored, 0.0, stored / bytes_per_second, one_block, expected_calls=1))
    n_blocks = whole.source.n_blocks
    n_tasks = count_nodes(n_blocks, task_level(n_blocks))
    tasks = _PASS_S + n_tasks * (_CLUSTER_TASK_S if work.is_cluster else _TASK_S)
    shape = whole.n_rows, whole.n_columns, flops_per_second
    timed = None if block is None or choice is not None or where != "cpu" else TimedRows(block, *shape)
    is_unread = True
    for kind, memory in zip(work.kinds, work.memories, strict=True):
        records, calls = kind.records, kind.calls
        counted = [seconds_counted(record, *shape) for record in records]
        taken = counted if timed is None else [timed.seconds(record) for record in records]
        kept = _kept_share(records, whole, memory, len(slots))
        computing = sum(_shared_seconds(one, calls, kept) for one in taken) / work.cores
        usual = usual_calls(records, calls)
        # blocks that stay in memory after the first pass are neither read nor computed by the later ones
        cached = min(memory.limits.cache_bytes * len(slots) / max(whole_bytes(whole.source), 1), 1.0)
        reading_each = reading * (1.0 - cached + (cached / max(usual, 1) if is_unread else 0.0))
        is_unread = is_unread and not calls
        serial = _BESIDE * sum(one.serial for one in taken) + tasks + n_blocks * _columns_seconds(records)
        # a core that computes blocks for Dask computes nothing else meanwhile; one waits for a store in few moments
        working = serial + _BESIDE * computing
        seconds = working + reading_each if computed else max(working, reading_each)
        there = 0 if where == "cpu" else sum(device_items(rows.source, records, memory.limits).values())
        name, flops = pass_name(records), sum(one.in_all for one in counted) * flops_per_second
        nbytes = round(max(map(visited_share, records), default=1.0) * stored)
        passes.append(PassPlan(name, calls, nbytes, flops, seconds, memory, kind.held, there, usual, serial))
    # the time of choosing features includes that of its drivers
    few = None if choice is not None else _made_rows(whole, block)
    driving = 0.0 if few is None else sum(seconds(few, flops_per_second) for seconds in work.driving)
    found = Plan(
        repr(learner),
        repr(rows),
        tuple(passes),
        work.cores,
        flops_per_second,
        bytes_per_second,
        is_cluster=work.is_cluster,
        device=device,
        in_files=work.in_files,
        room=work.room,
        driver_seconds=_BEGINS_S + driving,
        choice=choice,
        n_rows=whole.n_rows,
    )
    return replace(found, cheaper=_cheaper(learner, found, rows, block))


def forecast(
    learner: PlannedMixin,
    dataset: object,
    y: object = None,
    *,
    exposure: object = None,
    pilot_rows: int | None = None,
) -> Plan:
    """The name that `plan` had for what is expected; it goes with the next release.

    Parameters
    ----------
    learner, dataset, y, exposure
        As of `plan`.
    pilot_rows : int or None
        Without a meaning: nothing is fitted any more.

    Examples
    --------
    >>> import dkl
    >>> planned = dkl.plan(dkl.RandomFeatures(n_features=10), [[0.0, 1.0], [1.0, 0.0]])  # in place of dkl.forecast
    >>> planned.expected_passes
    1
    """
    warn_user(
        "dkl.forecast is dkl.plan, which says what to expect by now: plan(...).expected_seconds, and of more rows and "
        "workers plan(...).at(n_rows, slots). The old name goes with the next release",
        category=FutureWarning,
    )
    return plan(learner, dataset, y, exposure=exposure)


def planned_rows(
    learner: PlannedMixin, dataset: object, y: object, exposure: object = None, sample_weight: object = None
) -> tuple[Dataset, Exposure]:
    """The rows that a fit would have, and their exposure.

    Raises
    ------
    TypeError
        If the learner is of another library, or a class.
    ValueError
        If it learns from targets, and there are none.
    """
    if isinstance(learner, type) or not hasattr(learner, "planned_passes"):
        raise TypeError(f"learner is {learner!r}; expected a learner or machine of dkl, such as dkl.KernelClassifier()")
    if hasattr(learner, "_parameter_constraints"):
        check_constraints(learner)  # type: ignore[arg-type]
    beside = GroupsAndTimes(dataset)
    sample_weight = beside.weights(sample_weight)
    if getattr(learner, "drop_missing_target", False):
        beside, y, sample_weight = beside.with_targets(y, sample_weight)
    exposed = Exposure(beside, exposure)
    categorical = getattr(learner, "categorical", None) or ()
    task: TaskChoice = getattr(learner, "_task", "auto")
    rows = as_dataset(beside.X, y, sample_weight, task=task, categorical=categorical, repeats=True)
    if getattr(learner, "_supervised", False):
        check_target(type(learner).__name__, rows)
    weighs = getattr(learner, "_exposure_weighs", None)
    rows = exposed.with_exposures(rows, weighs is not None, sample_weight)
    return (rows if exposed.name is None else with_planned_rates(rows, weighs=bool(weighs))), exposed


def _device(wanted: str | None) -> tuple[Device, str]:
    """The device on which a learner computes, and in words why; where it would be refused, the words say so."""
    try:
        choice = None if wanted is None else choose_device(wanted)
    except RuntimeError as error:
        return "cpu", str(error)
    # without a reason no GPU was in question
    return ("cpu", "") if choice is None else (choice.device, str(choice) if choice.why else "")


def product_rate() -> float:
    """Operations of a float32 matrix product a second of the processor, on one thread: the best of three."""
    m, n, k = _TRIAL_SHAPE
    # Ones, since denormal numbers would make the product slower than it is.
    left, right = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    with one_blas_thread():
        left @ right
        # The clock of this thread alone hardly moves when other work runs on the machine.
        seconds = min(_timed(lambda: left @ right, time.thread_time) for _ in range(3))
    return 2.0 * m * n * k / seconds


def _one_block(rows: Dataset, nbytes: int) -> tuple[Block | None, float]:
    """A block of the rows, and the bytes a second of one process that reads some blocks, or computes them for Dask.

    All rows have `nbytes`, stored or computed ones; with 0, of rows in memory, they are read in no time.
    """
    source = rows.source
    if not rows.n_rows:
        return None, float("inf")
    # The largest block: the last one may hold a few rows only, and say nothing about the rate.
    index = int(np.argmax(source.block_rows))
    reader = source.reader()
    if not nbytes:
        ticket = source.ticket(index)
        return (None if dask.is_dask_collection(ticket) else reader.load(ticket)), float("inf")
    # Others as far from each other as can be, since the system reads ahead; all are of about the same size.
    filled = np.flatnonzero(source.block_rows >= source.block_rows[index] / 2)
    others = [int(filled[-1 - place]) for place in np.arange(_MOST_READS) * len(filled) // _MOST_READS]
    block, spent = None, 0.0
    rates: list[float] = []
    # The first read loads code, and any may be held up once: the best of several of different blocks counts.
    for number in dict.fromkeys([index, *others]):
        if len(rates) >= _LEAST_READS and spent > _READING_S:
            break
        ticket = source.ticket(number)
        started = time.perf_counter() - waited_seconds()
        # by this thread, whose waits for a processor are known
        computed = culled(ticket).compute(scheduler="synchronous") if dask.is_dask_collection(ticket) else ticket
        read = reader.load(computed)
        # the clock is read last: a wait between the two must not be taken off a time that it is no part of
        seconds = max(-waited_seconds() + time.perf_counter() - started, 1e-9)
        block, spent = block or read, spent + seconds
        # One block stands for all: the share of its rows in all rows is its share of the bytes.
        rates.append(nbytes * (source.block_rows[number] / rows.n_rows) / seconds)
    return block, max(rates)


def _computed_bytes(source: BlockSource) -> int:
    """Bytes of all blocks if Dask computes them; 0 for rows in a store or in memory, and if all blocks share work."""
    return whole_bytes(source) if origin_of(source) == "graph" and stand_alone(source, of_ends=True) else 0


def _made_rows(rows: Dataset, block: Block | None) -> Rows:
    """A few made rows of length 1, float32, of as many columns as those of the dataset, and as sparse."""
    draw, d = np.random.default_rng(0), rows.n_columns
    n = min(max(_MADE_NUMBERS // max(d, 1), 1), _MADE_ROWS)
    if block is None or not sparse.issparse(block.X):
        return normalize(draw.standard_normal((n, d), dtype=np.float32), copy=False)
    some = sparse.csr_array(block.X)[: max(n, _SPARSE_ROWS)]
    values = draw.standard_normal(some.nnz, dtype=np.float32)
    return normalize(sparse.csr_array((values, some.indices, some.indptr), shape=some.shape), copy=False)


def _kept_share(records: Sequence[Record], rows: Dataset, memory: MemoryProjection, n_processes: int) -> float:
    """The share of what passes make of the rows, such as mapped rows, that stays in memory for the next one."""
    nbytes = kept_bytes(source_of(rows.source, records), records)
    return min(memory.limits.piece_bytes * n_processes / nbytes, 1.0) if nbytes else 0.0


def _shared_seconds(taken: Seconds, calls: int, kept: float) -> float:
    """Seconds of one of some passes, on the average: what stays in memory is made by the first alone."""
    later = kept * taken.again + (1.0 - kept) * taken.shared
    first = later if taken.found else taken.shared
    return (first + max(calls - 1, 0) * later) / max(calls, 1)


def _columns_seconds(records: Sequence[Record]) -> float:
    """Of a block: what reading and writing its row columns takes."""
    sums = [record for record in records if isinstance(record, BlockSum)]
    reads, writes = {name for each in sums for name in each.reads}, {name for each in sums for name in each.writes}
    return _COLUMN_S * (len(reads) + len(writes)) + _NEW_COLUMNS_S * bool(writes)


def usual_choice(
    learner: PlannedMixin, rows: Dataset, block: Block | None, slots: int, flops_per_second: float
) -> UsualTime | None:
    """The expected seconds of a machine that chooses its features; None for all other learners."""
    if not hasattr(learner, "usual_time"):
        return None
    usual: UsualTime | None = learner.usual_time(rows, block, slots=slots, flops_per_second=flops_per_second)
    return usual


def _cheaper(learner: Any, found: Plan, rows: Dataset, block: Block | None) -> str:
    """A cheaper way to fit such rows, with its time; empty where the plan is short or there is none."""
    if found.expected_seconds <= _LONG_S or not hasattr(learner, "effort"):
        return ""
    ways: dict[str, PlannedMixin] = {'effort="fast"': clone(learner).set_params(effort="fast")}
    if found.choice is None or learner.effort == "fast":
        ways = {'features="random"': clone(learner).set_params(features="random")}
    for name, other in ways.items():
        choice = usual_choice(other, rows, block, found.slots, found.flops_per_second)
        seconds = plan(other, rows).expected_seconds if choice is None else choice.seconds
        if seconds <= _CHEAPER * found.expected_seconds:
            return f"cheaper: {name} takes about {short_time(seconds)}"
    return ""


def _timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a call takes, by a clock; at least a nanosecond, since rates divide by it."""
    started = clock()
    call()
    return max(clock() - started, 1e-9)
