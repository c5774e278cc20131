"""forecast: the processor seconds and the hours that a fit will take, from a pilot on few of its rows."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.utils import format_bytes, format_time
from sklearn.base import BaseEstimator, clone

from dkl.data.counts import RowCounts
from dkl.data.dataset import Dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.data.sources.selected import Fewest, narrowed
from dkl.encodings.categories import planned_categories
from dkl.events import Event
from dkl.methods.validation import without_splits
from dkl.passes.engine import run_pass
from dkl.passes.memory import cache_bytes
from dkl.passes.reading import block_bytes
from dkl.passes.room import own_room
from dkl.passes.tree_sum import count_nodes, task_level
from dkl.planning import PlannedLearner, planned_rows
from dkl.process import compiling
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, RowSample

# A pilot has so many rows at least, of so many blocks at least: rows are often in an order.
_PILOT_ROWS, _PILOT_BLOCKS = 300_000, 2
# Rows of the fit before it, which compiles.
_WARMING_ROWS = 2_000
# Blocks of one row each, whose pass tells what a task costs; reads of a pilot's block, of which the fastest counts.
_EMPTY_BLOCKS, _READS = 128, 3


@dataclass(frozen=True)
class Rates:
    """What this machine and the workers at hand were measured to do.

    Parameters
    ----------
    bytes_per_second : float
        Decoded bytes of rows a processor second of one thread; infinite for rows in memory.
    seconds_a_task, seconds_a_pass : float
        Processor seconds of the driver for each task, and for each pass beside its tasks.
    """

    bytes_per_second: float
    seconds_a_task: float
    seconds_a_pass: float


@dataclass(frozen=True)
class PassCost:
    """What one kind of pass was measured to cost in the pilot.

    Parameters
    ----------
    name : str
    calls : float
        How often it is expected to run.
    seconds_a_row : float
        Processor seconds of computing, without those of reading.
    bytes_a_row : float
        Decoded bytes that it reads.
    """

    name: str
    calls: float
    seconds_a_row: float
    bytes_a_row: float


@dataclass(frozen=True)
class Forecast:
    """What a fit is expected to take; print it. `at` gives that of more or fewer rows.

    Parameters
    ----------
    learner : str
    n_rows, rows_a_block : int
    passes : tuple of PassCost
    rates : Rates
    driver_seconds : float
        Processor seconds of the driver beside the passes, some of which go into samples of the rows that passes bring.
    cache_bytes : int
        Decoded rows that stay in memory from one pass to the next, of each process.
    """

    learner: str
    n_rows: int
    rows_a_block: int
    passes: tuple[PassCost, ...]
    rates: Rates
    driver_seconds: float
    cache_bytes: int

    @property
    def n_tasks(self) -> int:
        """Tasks of one pass."""
        n_blocks = -(-self.n_rows // self.rows_a_block)
        return count_nodes(n_blocks, task_level(n_blocks))

    def bytes_read(self, workers: int = 1) -> float:
        """Decoded bytes, over all passes: what the caches of the workers hold is read once."""
        whole = max((kind.bytes_a_row for kind in self.passes), default=0.0)
        kept = min(whole * self.n_rows, float(self.cache_bytes * workers))
        # Passes that read less than whole rows (targets alone) are not served from the cache.
        whole_passes = sum(kind.calls for kind in self.passes if kind.bytes_a_row == whole)
        read = sum(kind.calls * kind.bytes_a_row * self.n_rows for kind in self.passes)
        return read - max(0.0, whole_passes - 1.0) * kept

    def work_seconds(self, workers: int = 1) -> float:
        """Processor seconds that workers share: computing and reading, over all passes."""
        computing = sum(kind.calls * kind.seconds_a_row * self.n_rows for kind in self.passes)
        return computing + self.bytes_read(workers) / self.rates.bytes_per_second

    @property
    def serial_seconds(self) -> float:
        """Processor seconds that the driver alone takes."""
        a_pass = self.rates.seconds_a_pass + self.n_tasks * self.rates.seconds_a_task
        return self.driver_seconds + sum(kind.calls for kind in self.passes) * a_pass

    @property
    def processor_seconds(self) -> float:
        """Of the whole fit, on one thread."""
        return self.work_seconds() + self.serial_seconds

    def elapsed_seconds(self, workers: int = 1) -> float:
        """Expected time on so many idle cores, one a worker, from a store that gives what is asked of it.

        A pass ends with its last task: where tasks cannot be shared out evenly, some workers wait.
        """
        rounds = -(-self.n_tasks // workers)
        return self.work_seconds(workers) * rounds / self.n_tasks + self.serial_seconds

    def core_hours(self, workers: int = 1) -> float:
        """What so many cores for the whole time come to."""
        return workers * self.elapsed_seconds(workers) / 3_600.0

    def at(self, n_rows: int) -> Forecast:
        """The same fit of more or fewer rows of the same kind, with as many passes."""
        return replace(self, n_rows=n_rows)

    def __repr__(self) -> str:
        lines = [f"forecast of {self.learner}", f"on {self.n_rows:,} rows"]
        for kind in self.passes:
            seconds = kind.calls * kind.seconds_a_row * self.n_rows
            lines.append(f"{kind.name}: {kind.calls:.3g} times, computing {format_time(seconds)} in all")
        rate = (
            f" at {format_bytes(int(self.rates.bytes_per_second))}/s"
            if np.isfinite(self.rates.bytes_per_second)
            else ""
        )
        lines += [
            f"reading: {format_bytes(int(self.bytes_read()))}, decoded{rate}",
            f"driver: {format_time(self.serial_seconds)}, {self.n_tasks:,} tasks a pass",
            f"in all {format_time(self.processor_seconds)} of the processor",
        ]
        return "\n".join(lines)


def forecast(
    learner: PlannedLearner,
    dataset: object,
    y: object = None,
    *,
    exposure: object = None,
    pilot_rows: int = _PILOT_ROWS,
) -> Forecast:
    """The processor seconds that fitting `learner` on `dataset` will take, from a fit of few of its rows.

    `dkl.plan` says the most that a fit can take without fitting anything; how many passes a fit makes before it has
    converged, and what a row costs in each of them, only a fit can tell. So a copy of the learner is fitted to some
    blocks of the rows, in this process; each of its passes is timed; and the time of a pass grows with the rows::

        the sum over passes of
            rows x seconds a row + bytes read / bytes a second + seconds a pass + tasks x seconds a task,
        and the seconds of the driver beside the passes.

    What the driver does after passes that bring a sample of the rows, to search on them, grows with the sample. Where
    `dkl.plan` counts more passes of a kind on all rows than on those of the pilot, as many more are expected.

    Parameters
    ----------
    learner : feature learner or kernel machine
    dataset : Dataset, or rows as `fit` takes them
    y : array of shape (n,) or None
        Targets of rows that are no Dataset.
    exposure : str, array of shape (n,), or None
        As of `fit`: what each target was counted over.
    pilot_rows : int
        The pilot takes whole blocks, two of them or more, until it has so many rows.

    Returns
    -------
    Forecast

    Raises
    ------
    TypeError
        If `learner` is of another library, or a class.
    ValueError
        What the fit would raise on these rows.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import dkl
    >>> X, y = load_digits(return_X_y=True)
    >>> machine = dkl.KernelClassifier(dkl.RandomFeatures(n_features=50), solver="newton", loss="squared_error")
    >>> expected = dkl.forecast(machine, X, y)
    >>> expected.at(10**9).processor_seconds > expected.processor_seconds
    True
    """
    if pilot_rows < 1:
        raise ValueError(f"pilot_rows is {pilot_rows}; expected at least 1")
    rows, exposed = planned_rows(learner, dataset, y, exposure)
    rows = without_splits(rows)
    few = _some_blocks(rows, pilot_rows)
    rates = _rates(few)
    timed, between = _pilot(learner, few, rates)
    sampled, of_few = _sampled_rows(learner, rows), _sampled_rows(learner, few)
    driver_seconds = sum(seconds * (sampled[kind] / of_few[kind]) for kind, seconds in between.items())
    most, most_of_few = _calls(learner, rows), _calls(learner, few)
    passes = []
    for name in dict.fromkeys(one.name for one in timed):
        same = [one for one in timed if one.name == name]
        share = most[_kind(name)] / (most_of_few[_kind(name)] or 1) or 1.0
        a_row = float(np.mean([one.seconds_a_row for one in same]))
        passes.append(PassCost(name, len(same) * share, a_row, max(one.bytes_a_row for one in same)))
    if exposed.name and rows.source.stored_nbytes:
        # a fit reads the column of exposures once before all else, with the rows that it stands in
        passes.insert(0, PassCost("exposures", 1.0, 0.0, max((one.bytes_a_row for one in timed), default=0.0)))
    n_blocks = np.count_nonzero(rows.source.block_rows)
    limit = own_room(learner.memory_limit).nbytes
    kept = cache_bytes(limit) if rows.source.stored_nbytes else 0
    a_block = -(-rows.n_rows // max(int(n_blocks), 1))
    return Forecast(repr(learner), rows.n_rows, a_block, tuple(passes), rates, driver_seconds, kept)


def _kind(name: str) -> str:
    """What passes of one kind have in common: the name of the first record, without the number of a round or epoch."""
    return re.sub(r" \d+$", "", name.split(" + ")[0])


def _calls(learner: PlannedLearner, rows: Dataset) -> Counter[str]:
    """How often passes of each kind run at most."""
    numbered, sums, _, _ = planned_categories(rows, own_room(learner.memory_limit).nbytes)
    calls = Counter(_kind(record.name) for record in sums)
    for records, most in learner.planned_passes(numbered):
        calls[_kind(records[0].name)] += most
    return calls


def _sampled_rows(learner: PlannedLearner, rows: Dataset) -> defaultdict[str, int]:
    """The rows of the samples that passes of each kind bring, 1 where they bring none."""
    sampled: defaultdict[str, int] = defaultdict(lambda: 1)
    for records, _ in learner.planned_passes(rows):
        sizes = [min(record.most_rows, rows.n_rows) for record in records if isinstance(record, RowSample)]
        sampled[_kind(records[0].name)] = max(1, sampled[_kind(records[0].name)], *sizes)
    return sampled


@dataclass(frozen=True, eq=False)
class _WholeBlocks:
    """The step that keeps all rows of some blocks and none of the others."""

    kept: np.ndarray

    @property
    def identity(self) -> str:
        return f"blocks {np.flatnonzero(self.kept).tolist()}"

    def block_identity(self, index: int) -> str:
        return "" if self.kept[index] else "left out"

    def at(self, index: int) -> Fewest:
        return Fewest(int(self.kept[index]), 0)


def _some_blocks(rows: Dataset, least: int) -> Dataset:
    """Blocks from all over the rows, with so many rows at least."""
    sizes = rows.source.block_rows
    filled = np.flatnonzero(sizes)
    enough = max(_PILOT_BLOCKS, -(-least // max(int(sizes.max(initial=1)), 1)))
    kept = np.zeros_like(sizes)
    if len(filled):
        chosen = filled[np.unique(np.linspace(0, len(filled) - 1, enough).astype(int))]
        kept[chosen] = sizes[chosen]
    # Known of the whole: counted anew, the labels of all rows would be read.
    whole, stays = rows.source.counts, kept > 0
    classes = None if whole.class_weights is None else whole.class_weights * stays[:, None]
    counts = RowCounts(kept, whole.weights * stays, classes)
    source = narrowed(rows.source, _WholeBlocks(kept), kept, n_classes=rows.schema.n_classes, counts=counts)
    return Dataset(source, rows.schema, store=rows.store, name=rows.name)


def _pilot(learner: PlannedLearner, few: Dataset, rates: Rates) -> tuple[list[PassCost], dict[str, float]]:
    """What each pass of a fit to few rows cost, and the processor seconds after passes of each kind, the rest as ""."""
    passes: list[PassCost] = []
    begun: list[float] = []
    between: defaultdict[str, float] = defaultdict(float)
    ended: list[tuple[str, float]] = []

    def watch(event: Event) -> None:
        # Rounds hold passes; they are no passes themselves.
        if event.name == "rounds" or event.kind not in ("started", "finished"):
            return
        if event.kind == "started":
            begun.append(time.process_time())
            if ended:
                kind, at = ended.pop()
                between[kind] += begun[-1] - at
            return
        read = event.detail.get("bytes", 0)
        spent = time.process_time() - begun.pop() - rates.seconds_a_pass - read / rates.bytes_per_second
        passes.append(PassCost(event.name, 1.0, max(spent, 0.0) / few.n_rows, read / few.n_rows))
        ended[:] = [(_kind(event.name), time.process_time())]

    copy = clone(learner)
    _watched(copy, watch)
    # In this process and thread, whatever cluster there is: its clock tells what a pass takes. Nothing is cached, so
    # that each pass tells what it reads.
    with dask.config.set({"scheduler": "synchronous", "dkl.cache-bytes": 0}), warnings.catch_warnings():
        # What a fit has to say of its rows it will say of all of them.
        warnings.simplefilter("ignore")
        # Code that is loaded at its first use would be taken for time that grows with the rows. So few rows may lack a
        # class, and be refused: the pilot has more.
        with suppress(ValueError):
            clone(copy).fit(few.thin(_WARMING_ROWS))
        compiles = True
        while compiles:
            # Some kernels are for many rows: where they were not compiled yet, the next pilot tells what rows take.
            passes.clear()
            begun.clear()
            between.clear()
            ended.clear()
            started = time.process_time()
            with compiling() as compiled:
                clone(copy).fit(few)
            whole = time.process_time() - started
            compiles = bool(compiled.names)
    in_passes = sum(
        one.seconds_a_row * few.n_rows + one.bytes_a_row * few.n_rows / rates.bytes_per_second + rates.seconds_a_pass
        for one in passes
    )
    between[""] = max(0.0, whole - in_passes - sum(between.values()))
    return passes, between


def _watched(learner: BaseEstimator, watch: Any) -> None:
    """Let the learner and those within it tell `watch` of their passes, without checkpoints."""
    given = learner.get_params(deep=False)
    learner.set_params(**{name: value for name, value in (("progress", watch), ("checkpoint", None)) if name in given})
    for value in given.values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if hasattr(part, "planned_passes") and not isinstance(part, type):
                _watched(part, watch)


def _rates(few: Dataset) -> Rates:
    """Measure reading, tasks and passes."""
    source = few.source
    rate = float("inf")
    if source.stored_nbytes:
        reader, ticket = source.reader(), source.ticket(int(np.flatnonzero(source.block_rows)[0]))
        loads = []
        for _ in range(_READS):
            # Of all threads: chunks are decoded by those of zarr.
            started = time.process_time()
            block = reader.load(ticket)
            loads.append(time.process_time() - started)
        rate = block_bytes(block) / max(min(loads), 1e-9)
    record = BlockSum("empty", _no_sums, {"rows": Accumulator((1,))})
    seconds = []
    for n_blocks in (1, _EMPTY_BLOCKS):
        empty = ArraySource(np.zeros((n_blocks, 1), np.float32), rows_a_block=1)
        taken = []
        for _ in range(_READS):
            started = time.process_time()
            run_pass(empty, (record,))
            taken.append(time.process_time() - started)
        seconds.append(min(taken))
    a_task = max(0.0, seconds[1] - seconds[0]) / (count_nodes(_EMPTY_BLOCKS, task_level(_EMPTY_BLOCKS)) - 1)
    return Rates(rate, a_task, seconds[0])


def _no_sums(block: Block, operands: Any) -> dict[str, np.ndarray]:
    """The block function that does nothing."""
    return {"rows": np.array([block.n_rows])}
