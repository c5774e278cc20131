"""What a pass costs the driver and the scheduler when there are 1e5 to 1e6 blocks and 500 threads: blocks do no work.

    python deploy/simulate_scale.py [--blocks 100000 1000000] [--threads 500] [--output scale.json]

A real scheduler and real worker processes on this machine; their threads stand for the workers of a cluster. Rows that
a store holds go out as spans of blocks (at most 1,024 tasks a pass); rows of a Dask collection as one task a block;
steps of a linear model as a chain. Prints a Markdown table: wall time, CPU time of driver and scheduler, their growth
in memory, tasks, and the bytes that a task's message holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import psutil
from distributed import Client

from dkl.events import Event
from dkl.passes.loop import run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Fold, Record
from dkl.protocols.source import PARTS, BaseSource

PROCESSES = 4
LOOK_AT_EVERY = 20


@dataclass(frozen=True)
class EmptyReader:
    """Makes a block of two rows where it is asked for."""

    def load(self, ticket: int, parts: tuple[str, ...] = PARTS) -> Block:
        return Block(int(ticket), np.ones((2, 1), np.float32), None, None, np.arange(2))


@dataclass
class Blocks(BaseSource):
    """`n_blocks` blocks of two rows: in a store, or in a Dask collection."""

    n_blocks: int
    in_store: bool = True
    n_columns: int = 1
    dtype: Any = np.float32
    is_sparse: bool = False
    block_nbytes: int = 4096
    read_nbytes: int = 0
    place: str = "a simulation"

    @cached_property
    def block_rows(self) -> np.ndarray:
        return np.full(self.n_blocks, 2)

    @property
    def stored_nbytes(self) -> int:
        return self.n_blocks if self.in_store else 0

    @property
    def fingerprint(self) -> str:
        return f"{self.n_blocks} {self.in_store}"

    def reader(self) -> Any:
        return EmptyReader() if self.in_store else LoadedReader()

    def ticket(self, index: int) -> Any:
        return index if self.in_store else dask.delayed(EmptyReader().load)(index)


@dataclass(frozen=True)
class LoadedReader:
    """For rows that are there: the ticket is the block."""

    def load(self, ticket: Block, parts: tuple[str, ...] = PARTS) -> Block:
        return ticket


class CountingClient(Client):
    """Counts the tasks that go out, and looks at the size of some."""

    tasks = 0
    sizes: tuple[int, ...] = ()

    def submit(self, *args: Any, **options: Any) -> Any:
        if self.tasks % LOOK_AT_EVERY == 0:
            self.sizes += (len(cloudpickle.dumps(args)),)
        self.tasks += 1
        return super().submit(*args, **options)


def no_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The block function that does nothing."""
    return {"rows": np.array([block.n_rows])}


def same(block: Block, operands: Mapping[str, Any], number: int) -> int:
    """The piece of a fold that does nothing."""
    return block.n_rows


def counted(state: np.ndarray, piece: int, operands: Mapping[str, Any]) -> np.ndarray:
    """The step of a fold that does nothing."""
    return state + piece


def kinds() -> dict[str, tuple[Record, bool]]:
    """A record of each kind of pass, and whether its rows lie in a store."""
    sums = BlockSum("block sums", no_sums, {"rows": Accumulator((1,))})
    steps = Fold("steps", np.zeros(1), counted, same, lambda rows: 1, piece_bytes=64, state_bytes=64)
    return {"block sums of a store": (sums, True), "block sums of a collection": (sums, False), "steps": (steps, True)}


@dataclass(frozen=True)
class Cost:
    """What one pass took; CPU seconds and growth of memory in MB of the two processes that are not workers."""

    kind: str
    blocks: int
    tasks: int
    seconds: float
    driver_cpu_s: float
    scheduler_cpu_s: float
    driver_mb: float
    scheduler_mb: float
    bytes_a_task: float


@contextmanager
def cluster(threads: int) -> Iterator[tuple[CountingClient, psutil.Process]]:
    """A client, and the process of its scheduler."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        file = f"--scheduler-file={folder}/scheduler.json"
        scheduler = ["dask_scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard", file]
        worker = ["dask_worker", f"--nthreads={threads // PROCESSES}", "--no-nanny", "--no-dashboard", file]
        parts = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{command}", *options],
                env=environment,
                cwd=folder,
                stderr=subprocess.DEVNULL,
            )
            for command, *options in (scheduler, *[worker] * PROCESSES)
        ]
        try:
            while not Path(folder, "scheduler.json").exists():
                time.sleep(0.1)
            with CountingClient(scheduler_file=f"{folder}/scheduler.json") as client:
                client.wait_for_workers(PROCESSES, timeout=120)
                yield client, psutil.Process(parts[0].pid)
        finally:
            for part in reversed(parts):
                part.terminate()
                part.wait(30)


def measure(kind: str, n_blocks: int, client: CountingClient, scheduler: psutil.Process) -> Cost:
    """One pass of a kind."""
    record, in_store = kinds()[kind]
    source, driver = Blocks(n_blocks, in_store), psutil.Process()
    both = (driver, scheduler)
    peaks = [process.memory_info().rss for process in both]
    before = [(sum(process.cpu_times()[:2]), process.memory_info().rss) for process in both]
    client.tasks, client.sizes = 0, ()
    looked = time.perf_counter()

    def watch(event: Event) -> None:
        nonlocal looked
        if time.perf_counter() - looked > 0.25:
            looked = time.perf_counter()
            peaks[:] = [max(peak, process.memory_info().rss) for peak, process in zip(peaks, both, strict=True)]

    started = time.perf_counter()
    (result,) = run_pass(source, (record,), publish=watch, memory_limit="1 GiB").results
    seconds = time.perf_counter() - started
    rows = result["rows"] if isinstance(record, BlockSum) else result
    if int(rows[0]) != 2 * n_blocks:
        raise RuntimeError(f"{kind}: counted {rows[0]:.0f} rows of {2 * n_blocks}")
    cpu = [sum(process.cpu_times()[:2]) - was for process, (was, _) in zip(both, before, strict=True)]
    growth = [(peak - was) / 1e6 for peak, (_, was) in zip(peaks, before, strict=True)]
    return Cost(kind, n_blocks, client.tasks, seconds, *cpu, *growth, float(np.mean(client.sizes or [0])))


def table(costs: Sequence[Cost], threads: int) -> str:
    """The costs in Markdown."""
    head = [
        f"pass on {threads} threads",
        "blocks",
        "tasks",
        "seconds",
        "driver, us a block",
        "scheduler, us a block",
        "driver grows, MB",
        "scheduler grows, MB",
        "bytes a task",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for cost in costs:
        cpu = [f"{1e6 * seconds / cost.blocks:,.0f}" for seconds in (cost.driver_cpu_s, cost.scheduler_cpu_s)]
        memory = [f"{cost.driver_mb:,.0f}", f"{cost.scheduler_mb:,.0f}", f"{cost.bytes_a_task:,.0f}"]
        cells = [cost.kind, f"{cost.blocks:,}", f"{cost.tasks:,}", f"{cost.seconds:,.1f}", *cpu, *memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="*", default=[100_000, 1_000_000], help="in a store")
    parser.add_argument("--collection", type=int, nargs="*", default=[10_000], help="blocks of a Dask collection")
    parser.add_argument("--steps", type=int, nargs="*", default=[2_000], help="blocks of a chain of steps")
    parser.add_argument("--threads", type=int, default=500, help="of all workers together (default 500)")
    parser.add_argument("--output", type=Path, help="where to write the costs as JSON too")
    options = parser.parse_args(arguments)
    sizes = dict(zip(kinds(), (options.blocks, options.collection, options.steps), strict=True))
    with cluster(options.threads) as (client, scheduler):
        measure("block sums of a store", 1_000, client, scheduler)  # connections, and modules that load
        costs = []
        for kind, size in [(name, size) for name, own in sizes.items() for size in own]:
            costs.append(measure(kind, size, client, scheduler))
            print(f"{kind}, {size:,} blocks: {costs[-1].seconds:.1f} s", file=sys.stderr)
    print(table(costs, options.threads))
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    # by its name, as workers import a user's package: the code of a script would travel with every task
    import_module("simulate_scale").main()
