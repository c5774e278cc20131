"""plan: what a learner will read, hold and compute, and the time that implies on this machine, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from dask.utils import format_bytes, format_time

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.exposure import Exposure, with_planned_rates
from dkl.data.together.rows import BesideFeatures
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import Device
from dkl.methods.room import PlannedLearner, planned_work
from dkl.methods.validation import check_target
from dkl.passes.devices import choose_device
from dkl.passes.memory import MemoryProjection, device_items, fit_limits, pass_name
from dkl.passes.room import Room
from dkl.protocols.records import Cost, RowSample

# Kinds of passes that a short plan names: those that take longest.
_NAMED = 4
# (m, n, k) of the product that is timed: large enough for full speed, and done in milliseconds.
_TRIAL_SHAPE = (512, 1_024, 512)


def check_planned(learner: object) -> None:
    """Raise TypeError for what is of another library, or a class."""
    if isinstance(learner, type) or not hasattr(learner, "planned_passes"):
        raise TypeError(f"learner is {learner!r}; expected a learner or machine of dkl, such as dkl.KernelClassifier()")


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
    device_bytes : int
        On the GPU of one process, at most; 0 where blocks are computed on the CPU.
    """

    name: str
    calls: int
    bytes_read: int
    flops: float
    seconds: float
    memory: MemoryProjection
    device_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """What fitting a learner on a dataset will take; print it, and `cells()` for every pass.

    Parameters
    ----------
    learner, rows : str
        What is planned, on what.
    passes : tuple of PassPlan
    slots : int
        Blocks that are computed on at once, over all processes.
    flops_per_second, bytes_per_second : float
        Measured on this machine: a matrix product on one thread, and one block read.
    held : mapping of str to int
        Bytes that the driver holds at most beside the passes, item by item: searched rows, Hessians.
    is_cluster : bool
        Passes run in other processes than the driver.
    device : str
        Where blocks are computed on, and why.
    in_files : int
        Bytes at most in Dask's `temporary_directory`: sums and tables of categories that do not fit in memory.
    room : Room or None
        What a process that runs passes holds already, and the lines that it stays below.
    """

    learner: str
    rows: str
    passes: tuple[PassPlan, ...]
    slots: int
    flops_per_second: float
    bytes_per_second: float
    held: Mapping[str, int] = field(default_factory=dict)
    is_cluster: bool = False
    device: str = ""
    in_files: int = 0
    room: Room | None = None

    @property
    def n_passes(self) -> int:
        return sum(kind.calls for kind in self.passes)

    @property
    def peak_bytes(self) -> int:
        """Of one process, above what its imports take."""
        passes, held = max((kind.memory.total for kind in self.passes), default=0), sum(self.held.values())
        # Passes and the driver share a process, unless workers run the passes.
        return max(passes, held) if self.is_cluster else passes + held

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
        return sum(kind.calls * kind.seconds for kind in self.passes)

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
            table.append(["held beside them", "", "", "", "", format_bytes(sum(self.held.values()))])
        if self.in_files:
            table.append(["in temporary files", "", "", "", "", format_bytes(self.in_files)])
        totals = [format_bytes(self.bytes_read), f"{self.flops:.1e}", format_time(self.seconds)]
        return [*table, ["in all", str(self.n_passes), *totals, format_bytes(self.peak_bytes)]]

    def _verbose_rows(self) -> list[list[str]]:
        """A row for each kind of pass; what it reads and takes is that of one of them."""
        rows = []
        for kind in self.passes:
            cost = [format_bytes(kind.bytes_read), f"{kind.flops:.1e}", format_time(kind.seconds)]
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
        longest = sorted(named.items(), key=lambda item: -sum(kind.calls * kind.seconds for kind in item[1]))
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
                [name, str(calls), format_bytes(reads), f"{flops:.1e}", format_time(seconds), format_bytes(peak)]
            )
        return rows

    @property
    def speed(self) -> str:
        return f"({self.slots} at once, each {self.flops_per_second / 1e9:.0f} GFLOP/s, measured on this machine)"

    def __repr__(self) -> str:
        table = self.cells(verbose=False)
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        # Columns are padded to their widest cell.
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        device = [f"computed on the {self.device}"] if self.device else []
        if self.device_bytes:
            device.append(f"at most {format_bytes(self.device_bytes)} on the GPU of a process")
        return "\n".join([f"plan of {self.learner}", f"on {self.rows}", *lines, self.speed, *device])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def plan(learner: PlannedLearner, dataset: object, y: object = None, *, exposure: object = None) -> Plan:
    """What fitting `learner` on `dataset` will take: peak bytes a process, bytes read, passes, flops and time.

    Nothing is fitted: a small matrix product is timed, and one block of a store is read to time it.

    Parameters
    ----------
    learner : feature learner or kernel machine
        Its parameters are checked, and its `memory_limit` holds for the plan as it would for the fit.
    dataset : Dataset, or rows as `fit` takes them
    y : array of shape (n,) or None
        Targets of rows that are no Dataset.
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
    rows, exposed = planned_rows(learner, dataset, y, exposure)
    # A plan of a fit that would be refused for want of a GPU says so, and is a plan all the same.
    where, device = _device(getattr(learner, "device", None))
    work = planned_work(learner, rows, where)
    whole, slots = work.rows, work.slots
    flops_per_second, bytes_per_second = product_rate(), _read_rate(rows)
    passes, stored = [], rows.source.stored_nbytes
    if exposed.name and stored:
        one_block = fit_limits(rows.source, (), n_threads=1, room=work.room, cached=False, ahead=0)
        passes.append(PassPlan("exposures", 1, stored, 0.0, stored / bytes_per_second, one_block))
    for (records, calls), memory in zip(work.kinds, work.memories, strict=True):
        # Drawing a sample is a hash of three rounds a row, and a comparison with the largest key so far.
        n, d = whole.n_rows, whole.n_columns
        costs = [Cost(50.0 * n) if isinstance(record, RowSample) else record.cost(n, d) for record in records]
        serial = sum(cost.serial_flops for cost in costs)
        # The steps of a fold follow each other, so that no second slot can shorten them: a pass takes at least their
        # time.
        flops = serial + sum(cost.flops for cost in costs)
        # Rows in memory are read for nothing; those of a store are read by every process at once.
        computing = max(flops / slots.total(), serial) / flops_per_second
        reading = stored / (bytes_per_second * len(slots)) if stored else 0.0
        there = 0 if where == "cpu" else sum(device_items(rows.source, records, memory.limits).values())
        passes.append(PassPlan(pass_name(records), calls, stored, flops, max(computing, reading), memory, there))
    return Plan(
        repr(learner),
        repr(rows),
        tuple(passes),
        slots.total(),
        flops_per_second,
        bytes_per_second,
        held=work.held,
        is_cluster=work.is_cluster,
        device=device,
        in_files=work.in_files,
        room=work.room,
    )


def planned_rows(
    learner: PlannedLearner, dataset: object, y: object, exposure: object = None
) -> tuple[Dataset, Exposure]:
    """The rows that a fit would have, for `plan` and `forecast` alike, and their exposure.

    Raises
    ------
    TypeError
        If the learner is of another library, or a class.
    ValueError
        If it learns from targets, and there are none.
    """
    check_planned(learner)
    beside = BesideFeatures(dataset)
    if getattr(learner, "drop_missing_target", False):
        beside, y, _ = beside.with_targets(y, None)
    exposed = Exposure(beside, exposure)
    categorical = getattr(learner, "categorical", None) or ()
    rows = as_dataset(beside.X, y, task=getattr(learner, "_task", "auto"), categorical=categorical)
    if getattr(learner, "_supervised", False):
        check_target(type(learner).__name__, rows)
    weighs = getattr(learner, "_exposure_weighs", None)
    rows = exposed.beside(rows, weighs is not None)
    return (rows if exposed.name is None else with_planned_rates(rows, weighs=bool(weighs))), exposed


def _device(wanted: str | None) -> tuple[Device, str]:
    """Where a learner computes, and that in words with what decided; words alone where it would be refused."""
    try:
        choice = None if wanted is None else choose_device(wanted)
    except RuntimeError as error:
        return "cpu", str(error)
    return ("cpu", "") if choice is None else (choice.device, str(choice))


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


def _read_rate(rows: Dataset) -> float:
    """Stored bytes a second of one process that reads a block."""
    source = rows.source
    if not source.stored_nbytes or not rows.n_rows:
        return float("inf")
    # The largest block: the last one may hold a few rows only, and say nothing about the rate.
    index = int(np.argmax(source.block_rows))
    reader, ticket = source.reader(), source.ticket(index)
    seconds = _timed(lambda: reader.load(ticket))
    # One block stands for all: the share of its rows in all rows is its share of the bytes.
    return source.stored_nbytes * (source.block_rows[index] / rows.n_rows) / seconds


def _timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a call takes, by a clock; at least a nanosecond, since rates divide by it."""
    started = clock()
    call()
    return max(clock() - started, 1e-9)
