"""The terms of a pass, measured here, and the time that they imply for a billion rows on 8, 64 and 512 workers.

    python deploy/measure_scaling.py [--rows 16384] [--columns 1000] [--candidates 1024] [--repeats 1]

Rates are of CPU seconds, so that other work on the machine disturbs them little: arithmetic of the potentials, reading
and decoding of the store, what one and two worker processes spend on the same pass, and what the driver spends on it.
"""

from __future__ import annotations

import argparse
import math
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client, LocalCluster

from dkl.data.create import create_dataset
from dkl.features.families import Gaussian
from dkl.methods.potential_sums import PotentialProblem, potential_record
from dkl.passes.loop import TASKS_A_SLOT, run_pass
from dkl.passes.tree_sum import count_nodes, task_level
from dkl.protocols.records import Accumulator, BlockSum
from dkl.protocols.source import BlockSource

TARGET_ROWS, TARGET_COLUMNS, TARGET_CANDIDATES, CLASSES = 10**9, 1_000, 20_000, 2
BLOCK_BYTES = 32 << 20
TINY_BLOCKS = 1_024


@dataclass(frozen=True)
class Terms:
    """What was measured: operations and bytes a CPU second of one core, CPU seconds of the driver."""

    flops_a_second: float
    read_a_second: float
    driver_s_a_task: float
    driver_s_a_byte: float


def nothing(block: Any, operands: Any) -> dict[str, np.ndarray]:
    """Reads a block and does no work on it."""
    return {"rows": np.array([float(block.n_rows)])}


def cpu_of(source: BlockSource, record: BlockSum) -> float:
    """CPU seconds of a pass in this thread."""
    with dask.config.set({"scheduler": "synchronous", "dkl.cache-bytes": 0}):
        started = time.process_time()
        run_pass(source, (record,))
        return time.process_time() - started


def on_workers(source: BlockSource, record: BlockSum, n_workers: int, threads: int = 1) -> tuple[float, float, float]:
    """Wall seconds of a pass, CPU seconds of the workers, and CPU seconds of this process (driver and scheduler)."""
    with (
        dask.config.set({"dkl.cache-bytes": 0}),
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        workers = [psutil.Process(nanny.process.pid) for nanny in cluster.workers.values()]
        run_pass(source, (record,))  # modules load, operands arrive
        before = [sum(worker.cpu_times()[:2]) for worker in workers]
        started, own = time.perf_counter(), time.process_time()
        run_pass(source, (record,))
        wall, own = time.perf_counter() - started, time.process_time() - own
        spent = sum(sum(worker.cpu_times()[:2]) - was for worker, was in zip(workers, before, strict=True))
    return wall, spent, own


def merging_seconds(n_bytes: int) -> float:
    """CPU seconds to receive and add up a result of so many bytes."""
    left, message = np.ones(n_bytes // 8), pickle.dumps(np.ones(n_bytes // 8), protocol=5)
    started = time.process_time()
    for _ in range(20):
        left = left + pickle.loads(message)
    return (time.process_time() - started) / 20


def implied(terms: Terms, threads: int) -> dict[str, float]:
    """Seconds of each part of the potentials' pass over the billion rows."""
    n_blocks = math.ceil(TARGET_ROWS * TARGET_COLUMNS * 4 / BLOCK_BYTES)
    level = task_level(n_blocks)
    while count_nodes(n_blocks, level) < TASKS_A_SLOT * threads:
        level -= 1
    tasks = count_nodes(n_blocks, level)
    flops = 2.0 * TARGET_ROWS * TARGET_COLUMNS * TARGET_CANDIDATES
    n_bytes = TARGET_ROWS * TARGET_COLUMNS * 4.0
    reduced = 2 * TARGET_CANDIDATES * CLASSES * 8
    rounds = math.ceil(tasks / threads) * threads / tasks
    work = (flops / terms.flops_a_second + n_bytes / terms.read_a_second) / threads
    serial = tasks * (terms.driver_s_a_task + reduced * terms.driver_s_a_byte)
    return {
        "arithmetic": flops / terms.flops_a_second / threads,
        "reading": n_bytes / terms.read_a_second / threads,
        "uneven end": work * (rounds - 1),
        "driver": serial,
        "all": work * rounds + serial,
    }


def table(terms: Terms, threads: int) -> str:
    """The parts in Markdown, and how much of the ideal speed is left."""
    alone = implied(terms, 1)["all"]
    lines = ["| workers | arithmetic | reading | uneven end | driver | all | efficiency |", "|---:" * 7 + "|"]
    for workers in (8, 64, 512):
        parts = implied(terms, workers * threads)
        cells = [f"{seconds / 60:,.1f} min" for seconds in parts.values()]
        lines.append(f"| {workers} | {' | '.join(cells)} | {100 * alone / parts['all'] / (workers * threads):.0f} % |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--columns", type=int, default=1_000)
    parser.add_argument("--candidates", type=int, default=1_024)
    parser.add_argument("--repeats", type=int, default=1, help="passes on one and on two workers in turn; medians")
    options = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    X = np.round(random.random((options.rows, options.columns), np.float32) * 255) / np.float32(255)
    candidates = Gaussian(sigma=10.0).draw(options.candidates, options.columns, seed=0, dtype="float32")
    record = potential_record(PotentialProblem(candidates, n_classes=CLASSES))
    reading = BlockSum("reading", nothing, {"rows": Accumulator((1,))})
    with tempfile.TemporaryDirectory() as folder:
        y, rows_a_block = random.integers(0, CLASSES, len(X)), max(1, options.rows // 32)
        source = create_dataset(f"{folder}/rows.zarr", X, y, rows_a_block=rows_a_block).source
        tiny = create_dataset(f"{folder}/tiny.zarr", X[:TINY_BLOCKS], y[:TINY_BLOCKS], rows_a_block=1).source
        read = min(cpu_of(source, reading) for _ in range(3))
        both = min(cpu_of(source, record) for _ in range(2))
        pairs = [(on_workers(source, record, 1), on_workers(source, record, 2)) for _ in range(options.repeats)]
        tasks = count_nodes(tiny.n_blocks, task_level(tiny.n_blocks))
        # many threads, so that messages hold many tasks, as they do on a cluster that keeps the driver busy
        own = on_workers(tiny, reading, 1, 64)[2] / tasks
    flops = 2.0 * options.rows * options.columns * options.candidates
    n_bytes = 2 * TARGET_CANDIDATES * CLASSES * 8
    terms = Terms(flops / (both - read), X.nbytes / read, own, merging_seconds(n_bytes) / n_bytes)
    rates = terms.flops_a_second / 1e9, terms.read_a_second / 1e6
    print(f"a core: arithmetic {rates[0]:.1f} GFLOP/s, reading {rates[1]:.0f} MB/s")
    print(f"driver {1e3 * terms.driver_s_a_task:.1f} ms a task, {1e9 * terms.driver_s_a_byte:.2f} ns a byte of results")
    one, two = (np.median(runs, axis=0) for runs in zip(*pairs, strict=True))
    work = np.median([on_two[1] / on_one[1] for on_one, on_two in pairs])
    print(f"1 worker: {one[0]:.2f} s (CPU {one[1]:.2f} s); 2 workers: {two[0]:.2f} s (CPU {two[1]:.2f} s)")
    print(f"speed-up {one[0] / two[0]:.2f}; work of two over that of one {work:.2f}\n")
    for threads in (1, 4):
        print(f"{threads} core(s) a worker:\n\n{table(terms, threads)}\n")


if __name__ == "__main__":
    main()
