"""All tests and measurements that need a GPU, part by part, as one page of Markdown.

    python deploy/gpu_report.py [--minutes 5] [--only tests,rates] [--data DIR] [--output gpu_report.md] [--quick]

| part | answers |
|---|---|
| tests | do the GPU's results equal the CPU's? Named files, in parallel |
| rates | how near do sums, maps, products and the way of their results come to the card's own product and copy? |
| workers | do 4, 2 and 1 processes on the one card find the bits of one process without a cluster? |
| killed | do 4 processes on the card, of which one is killed in a pass, find the same bits? |
| beyond | does one process, and do two, find them where the card may keep 2 GB of more rows? |
| passes | how long do reading, decoding, copies, waits and arithmetic of a pass take, with 1 and 2 computing threads? |
| rows | how long do passes and fits over stores take, and how long each of their acts alone? |
| machine | how long does a machine without settings take, and how right is it, beside the CPU? (flights, with --data) |
| speeds | how many times as fast as the CPU are blocks and fits? |

The page is written anew after every line, so that a run that is cut off loses the line that it was at. A part may take
its share of the minutes and what earlier parts have left; what it has no time for, its section says. By itself each
part is meant to be done within 200 s (--only PART --minutes 3.3). With --only the other sections of a page that is
there stay as they are, each with its own date, commit and card. Exits with 1 if a test fails, a part fails or bits
differ, with 2 and a sentence where there is no GPU: no page is written then.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from threading import Lock, Timer
from typing import Any
from unittest.mock import patch

import dask
import dask.array
import numpy as np
from device_speed import DeviceLimits, device_limits, device_speeds

import dkl
from dkl.data.store import chunks
from dkl.events import Event
from dkl.features.families import Gaussian
from dkl.kernels import device as gpu
from dkl.kernels.device import on_host, packed_on_gpu, rows_on, why_no_gpu
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonOptions, NewtonTargets, TrialSteps, newton_block, newton_sums
from dkl.kernels.sums import feature_sums
from dkl.passes import loop, reading, work
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER
from dkl.protocols.records import Accumulator, BlockSum

ROOT = Path(__file__).parents[1]
N_COLUMNS = 12
# Of stores: a GPU takes as long to be asked for a few rows as for many.
BLOCK_ROWS = 1 << 19
# Of coefficients and their float64 solution, relative to its length.
MOST_APART = 1e-6


@dataclass(frozen=True)
class Sizes:
    """How large the measurements are.

    Parameters
    ----------
    tests : tuple of str
        Arguments of pytest: the files that compare a GPU with the CPU.
    at_once : int
        Tests that run at the same time.
    block : int
        Rows of a block whose rates are measured.
    columns, frequencies : tuple of int
        d and D of the sums whose rates are measured.
    features : tuple of int
        Of Gram matrices and kernels to landmarks; the first of them also of the fits.
    repeats : int
        Of a measurement, of which the least time counts.
    stored : int
        Rows of the first store.
    writing_s : float
        Seconds of writing that decide the rows of the second one.
    most_stored : int
        Rows of the second store at most.
    workers : tuple of int
        Processes on one card.
    shared : int
        Rows that these share.
    beyond : int
        Rows that are more than the card may keep.
    kept_bytes : int
        Of these rows that the card may keep.
    passed : int
        Rows of the passes whose acts are timed.
    tabled : int
        Rows of the machine without settings.
    speeds : dict
        Of `device_speed.device_speeds`.
    """

    tests: tuple[str, ...] = (
        *("tests/test_gpu.py", "tests/kernels/test_device.py"),
        *("tests/kernels/test_sgd.py", "tests/linear/test_array_sgd.py"),
    )
    at_once: int = len(os.sched_getaffinity(0))
    block: int = 65_536
    columns: tuple[int, ...] = (20, 100, 784)
    frequencies: tuple[int, ...] = (1_024, 4_096, 20_000)
    features: tuple[int, ...] = (1_000, 4_000)
    repeats: int = 3
    stored: int = 100_000_000
    writing_s: float = 90.0
    most_stored: int = 1_000_000_000
    workers: tuple[int, ...] = (4, 2, 1)
    shared: int = 4_000_000
    beyond: int = 60_000_000
    kept_bytes: int = 2_000_000_000
    passed: int = 100_000_000
    tabled: int = 500_000
    speeds: Any = None


QUICK = Sizes(
    tests=("tests/kernels/test_device.py", "-k", "gives_the_sums and gaussian and dense and float32"),
    at_once=1,
    block=512,
    columns=(9,),
    frequencies=(32,),
    features=(16,),
    repeats=1,
    stored=3_000,
    writing_s=0.1,
    most_stored=4_000,
    workers=(2,),
    shared=1_000,
    beyond=1_000,
    kept_bytes=10_000,
    passed=3_000,
    tabled=120,
    speeds={"n_rows": 120, "n_columns": 9, "n_frequencies": 32, "repeats": 1},
)


class WrongResult(Exception):
    """A line of the page that says what is wrong; the part goes on after it is written."""


Lines = Iterator["str | WrongResult"]


@dataclass(frozen=True)
class Asked:
    """What a part is told.

    Parameters
    ----------
    sizes : Sizes
    data : Path or None
        The folder of flights_3m.npz.
    left : callable
        Seconds that the part still has.
    """

    sizes: Sizes
    data: Path | None
    left: Callable[[], float]


def tests(asked: Asked) -> Lines:
    """The tests marked `gpu` in the named files, several at once, ended when their time is over."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-ra",
        "--tb=short",
        "-W",
        "default",
        "-m",
        "gpu",
        "-o",
        "addopts=",
    ]
    if importlib.util.find_spec("xdist") and asked.sizes.at_once > 1:
        command += ["-n", str(asked.sizes.at_once)]
    with subprocess.Popen(
        [*command, *asked.sizes.tests], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        ended_early = []

        def end() -> None:
            ended_early.append(True)
            os.killpg(running.pid, signal.SIGKILL)

        timer = Timer(max(1.0, asked.left()), end)
        timer.start()
        try:
            counts, messages = outcomes(running.stdout or iter(()))
        finally:
            timer.cancel()
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    if ended_early:
        said += "; ended when the time of this part was over"
    good = counts["passed"] > 0 and not counts["failed"] and not ended_early
    yield said if good else WrongResult(said)
    if messages:
        yield ""
    yield from (f"- {message}" for message in messages)


def outcomes(lines: Iterator[str] | Any) -> tuple[Counter[str], list[str]]:
    """The numbers of tests by outcome that verbose lines of pytest tell, and those that are no success."""
    counts: Counter[str] = Counter()
    messages = []
    named = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed", "SKIPPED": "skipped"}
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ", "SKIPPED ")):
            messages.append(line.rstrip())
        elif found := re.search(r"(?:^\[gw\d+\]|::\S+).*?\b(PASSED|FAILED|ERROR|SKIPPED)\b", line):
            counts[named[found[1]]] += 1
    return counts, messages


def rates(asked: Asked) -> Lines:
    """Sums, maps and products of one block that is on the device, beside the card's own product and copies."""
    sizes = asked.sizes
    limits = device_limits("gpu", size=min(8_192, 16 * sizes.frequencies[-1]), repeats=sizes.repeats)
    yield "| | s | TFLOP/s | of its own product | million pairs/s |"
    yield "|---|---|---|---|---|"
    yield f"| its own product, float32 | | {limits.flops_a_second / 1e12:.4g} | 1 | |"
    yield f"| rows to the device by CuPy, from ordinary memory: {limits.bytes_a_second / 1e9:.4g} GB/s | | | | |"
    generator = np.random.default_rng(0)
    X = generator.standard_normal((sizes.block, max(sizes.columns)), dtype=np.float32)
    for n_threads in sorted({1, 4, sizes.at_once}):
        with ThreadPoolExecutor(n_threads) as pool:
            seconds = timed(sizes.repeats, lambda pool=pool, n=n_threads: list(pool.map(staged, [X] * n)))
        said = f"by pinned pieces, {n_threads} threads: {n_threads * X.nbytes / seconds / 1e9:.4g} GB/s"
        yield f"| rows to the device {said} | | | | |"
    signs = np.sign(X[:, 0]).astype(np.float64)
    for d, D in product(sizes.columns, sizes.frequencies):
        there = rows_on(np.ascontiguousarray(X[:, :d]), "gpu")
        seconds = timed(sizes.repeats, feature_sums, there, signs, gaussian(d, D))
        yield rate(f"pair sums, d = {d}, D = {D:,}", seconds, 2.0 * d * D * sizes.block, limits, D * sizes.block)
    d = sizes.columns[0]
    there = rows_on(np.ascontiguousarray(X[:, :d]), "gpu")
    for m in sizes.features:
        pairs, waves = m * sizes.block, gaussian(d, m // 2)
        yield rate(f"map, m = {m:,}", timed(sizes.repeats, mapped, there, waves), d * pairs, limits, pairs)
        for how, rounded in (("", False), (" by tensor cores", True)):
            seconds = timed(sizes.repeats, ridge_sums, there, signs, waves, rounded)
            yield rate(f"Gram matrix{how}, m = {m:,}", seconds, (2.0 * m + d) * pairs, limits, pairs)
        landmarks = dkl.NystromFeatures(Gaussian(float(np.sqrt(d))), n_features=m, random_state=0, device="cpu")
        seconds = timed(sizes.repeats, mapped, there, landmarks.fit(X[: 4 * m, :d]).feature_map_)
        yield rate(f"kernel to landmarks, m = {m:,}", seconds, 2.0 * (d + m) * pairs, limits, pairs)
        matrix = rows_on(np.zeros((m, m)), "gpu")
        for how, brought in (("whole", on_host), ("packed", packed)):
            seconds = timed(sizes.repeats, brought, matrix)
            yield f"| a Gram matrix of m = {m:,} to the host, {how} | {seconds:.4g} | | | |"
    for m in sizes.features:
        yield from coefficient_errors(X[:, :d], m)
    steps = dkl.StepFeatures(n_features=sizes.features[0], random_state=0, device="cpu")
    steps = steps.fit(X[:2_000, :d], signs[:2_000] > 0).feature_map_
    seconds = timed(sizes.repeats, mapped, there, steps)
    yield rate(f"steps, m = {steps.n_features:,}", seconds, 0.0, limits, steps.n_features * sizes.block)


def mapped(there: Any, feature_map: Any) -> np.ndarray:
    """The features of rows on the device, of which one number comes to the host and says that all are there."""
    return on_host(map_rows(there, feature_map)[-1:, :1])


def staged(X: np.ndarray) -> np.ndarray:
    """One number of rows that came to the device by way of pinned memory, which says that all have arrived."""
    there, arrival = gpu.STAGING.send(X, gpu.staging_bytes(len(os.sched_getaffinity(0)), 1 << 40))
    arrival.wait()
    return on_host(there[-1:, :1])


def packed(matrix: Any) -> np.ndarray:
    """The lower triangle of a matrix on the device, packed there."""
    return on_host(packed_on_gpu(matrix, 0))


def coefficient_errors(X: np.ndarray, m: int) -> Lines:
    """Of a ridge on a rough and on a smooth kernel, beside a float64 solve on the same float32 columns."""
    import cupy

    labels = X[:, 0] * X[:, 1] > 0
    for width, alpha in ((1.0, 1e-4), (4.0, 1e-5)):
        family = Gaussian(width * float(np.sqrt(X.shape[1])))
        features = dkl.RandomFeatures(family, n_features=m, random_state=0, scaling=None)
        given = {"loss": "squared_error", "solver": "newton", "alpha": alpha, "calibrate": False, "random_state": 0}
        model = dkl.KernelClassifier(features, **given, device="gpu")
        started = time.perf_counter()
        model.fit(X, labels)
        seconds = time.perf_counter() - started
        phi = map_rows(rows_on(X, "gpu"), model.features_.feature_map_).astype(np.float64)
        design = cupy.concat([phi, cupy.ones((len(phi), 1))], axis=1)
        system = on_host(cupy.matmul(design.T, design)) / len(X) + alpha * np.diag(np.arange(m + 1) < m)
        targets = cupy.asarray(np.where(labels, 1.0, -1.0))
        exact = np.linalg.solve(system, on_host(cupy.matmul(targets, design)) / len(X))
        found = np.append(model.linear_.coef_, model.linear_.intercept_)
        apart = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        name = f"ridge, m = {m:,}, {width:g} widths, alpha {alpha:g}: coefficients differ by {apart:.1e}"
        line = f"| {name} | {seconds:.4g} | | | |"
        yield line if apart <= MOST_APART else WrongResult(line)


def ridge_sums(there: Any, targets: np.ndarray, feature_map: Any, rounded: bool = False) -> np.ndarray:
    """The Gram matrix of features, beside loss and gradient at zero, of rows on the device."""
    width = feature_map.n_features + 1
    trial = TrialSteps(np.zeros((1, width)), np.zeros((1, width)), np.zeros((1, 1)))
    options = NewtonOptions("squared_error", columns=(0, width), rounded=rounded)
    return newton_sums(there, targets[:, None], np.ones(len(targets)), feature_map, trial, options)["hessian"]


def gaussian(d: int, D: int) -> Any:
    """Frequencies of a kernel as wide as rows of d standard normal columns are long."""
    return Gaussian(float(np.sqrt(d))).draw(D, d, seed=0)


def timed(repeats: int, compute: Callable[..., Any], *given: Any) -> float:
    """The least seconds of the repetitions, after a first call that compiles and warms up; each ends on the host."""
    compute(*given)
    least = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        compute(*given)
        least = min(least, time.perf_counter() - started)
    return float(least)


def rate(name: str, seconds: float, flops: float, limits: DeviceLimits, pairs: float) -> str:
    """A line of the table: seconds, TFLOP/s, their share of the card's own product, pairs of rows and features."""
    speed = f"{flops / seconds / 1e12:.4g} | {flops / seconds / limits.flops_a_second:.2f}" if flops else " | "
    return f"| {name} | {seconds:.4g} | {speed} | {pairs / seconds / 1e6:.4g} |"


def rows(asked: Asked) -> Lines:
    """Passes and fits over a store of rows made on the spot, and a ridge over as many as the time of writing allows."""
    sizes, m = asked.sizes, asked.sizes.features[0]
    yield "| rows | | s | GB/s of rows |"
    yield "|---|---|---|---|"
    # What blocks hold beside the rows that stay on the card: targets and numbers of rows, 17 bytes a row.
    beside = {"dkl.cache-bytes": 20 * sizes.most_stored}
    with dask.config.set(beside), tempfile.TemporaryDirectory(prefix="dkl-gpu-") as folder:
        started = time.perf_counter()
        data = written(f"{folder}/first.zarr", sizes.stored)
        seconds = time.perf_counter() - started
        yield stored_line(sizes.stored, "writing the store", seconds)
        yield from alone(data, Path(folder) / "first.zarr", sizes)
        aligned = dkl.AlignedFeatures(n_candidates=4 * m, n_features=m, random_state=0, device="gpu")
        margin = dkl.MarginFeatures(n_features=m // 4, rounds=2, random_state=0, device="gpu")
        for name, fitted in ((f"aligned, {4 * m:,} candidates", aligned), ("margin, 2 rounds", margin)):
            yield stored_line(sizes.stored, name, fit_seconds(fitted, data))
        yield stored_line(sizes.stored, f"ridge on {m:,} features", fit_seconds(ridge(m), data))
        yield f"| {device_bytes()} | | | |"
        del data
        shutil.rmtree(f"{folder}/first.zarr")
        n_rows = min(sizes.most_stored, int(sizes.stored * min(sizes.writing_s, asked.left() / 2) / seconds))
        if n_rows > sizes.stored:
            started = time.perf_counter()
            data = written(f"{folder}/second.zarr", n_rows)
            yield stored_line(n_rows, "writing the store", time.perf_counter() - started)
            yield stored_line(n_rows, f"ridge on {m:,} features", fit_seconds(ridge(m), data))
            yield f"| {device_bytes()} | | | |"


def device_bytes() -> str:
    """What the device holds after a fit, and what it held at most."""
    import cupy

    pool = cupy.get_default_memory_pool()
    kept, most = LOADER._cache.gpu_bytes / 1e9, pool.total_bytes() / 1e9
    return f"on the device: {kept:.3g} GB of rows and targets are kept, {most:.3g} GB were taken at most"


def written(path: str, n_rows: int) -> Any:
    """A store of standard normal rows with classes that a product of two columns tells, the classes as int8."""
    at_once = min(n_rows, 1 << 20)
    X = dask.array.random.default_rng(0).standard_normal((n_rows, N_COLUMNS), dtype=np.float32, chunks=(at_once, -1))
    y = (X[:, 0] * X[:, 1] > 0).astype(np.int8)
    return dkl.create_dataset(path, X, y, task="classification", rows_a_block=min(n_rows, BLOCK_ROWS))


def ridge(m: int, device: str = "gpu") -> Any:
    """The squared error on m random features, by sums of one pass and what corrects them."""
    features = dkl.RandomFeatures(Gaussian(float(np.sqrt(N_COLUMNS))), n_features=m, random_state=0)
    options = {"loss": "squared_error", "solver": "newton", "alpha": 1e-6, "calibrate": False}
    return dkl.KernelClassifier(features, **options, random_state=0, device=device)


def fit_seconds(learner: Any, data: Any) -> float:
    """Seconds of a fit that finds nothing of an earlier one kept."""
    LOADER.clear()
    started = time.perf_counter()
    learner.fit(data)
    return time.perf_counter() - started


def alone(data: Any, path: Path, sizes: Sizes) -> Lines:
    """What a pass is made of, each by itself: reading files, decoding them too, copying rows, multiplying them."""
    files = [file for file in path.rglob("*") if file.is_file()]
    started = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        stored = sum(pool.map(lambda file: len(file.read_bytes()), files))
    yield stored_line(sizes.stored, f"reading {stored / 1e9:.4g} GB of files, alone", time.perf_counter() - started)
    LOADER.clear()
    record = BlockSum("rows", number_of_rows, {"n": Accumulator(())}, on_host=True)
    decoding = run_pass(data.source, (record,)).stats.seconds
    yield stored_line(sizes.stored, "reading and decoding blocks, alone", decoding)
    n, m = int(data.source.block_rows.max()), sizes.features[0]
    block = np.random.default_rng(0).standard_normal((n, N_COLUMNS), dtype=np.float32)
    copying = timed(sizes.repeats, copied, block)
    yield stored_line(sizes.stored, "copying rows to the device, alone", copying * sizes.stored / n)
    products = timed(sizes.repeats, ridge_sums, rows_on(block, "gpu"), block[:, 0], gaussian(N_COLUMNS, m // 2))
    yield stored_line(sizes.stored, f"sums of a ridge on {m:,} features, alone", products * sizes.stored / n)


def copied(block: np.ndarray) -> np.ndarray:
    """One number of rows that were copied to the device, which says that all have arrived."""
    return on_host(rows_on(block, "gpu")[-1:, :1])


def number_of_rows(block: Any, operands: Any) -> dict[str, np.ndarray]:
    """The number of rows, of a block that had to be read for it."""
    return {"n": np.array(float(block.X.shape[0]))}


def stored_line(n_rows: int, name: str, seconds: float) -> str:
    """A line of the table."""
    return f"| {n_rows:.4g} x {N_COLUMNS} | {name} | {seconds:.4g} | {4e-9 * n_rows * N_COLUMNS / seconds:.4g} |"


def workers(asked: Asked) -> Lines:
    """The same fit by this process, and by processes that share the card, without dask_cuda, which may be missing."""
    yield from BITS
    with shared_rows(asked.sizes.shared) as data:
        line, expected = by_this_process(asked, data)
        yield line
        for n in asked.sizes.workers:
            with cluster_of(n):
                yield same_bits(f"{n} worker{'s' * (n > 1)}", asked, data, expected)


def killed(asked: Asked) -> Lines:
    """The same fit by the most processes, of which one is ended by SIGKILL in the first pass."""
    yield from BITS
    n = max(asked.sizes.workers)
    with shared_rows(asked.sizes.shared) as data:
        line, expected = by_this_process(asked, data)
        yield line
        with cluster_of(n) as client:
            yield same_bits(f"{n} workers, one killed in a pass", asked, data, expected, client)


def beyond(asked: Asked) -> Lines:
    """The same fit where the card keeps all rows, and where it may keep fewer: by this process, and by two of them."""
    yield from BITS
    kept = f"{asked.sizes.kept_bytes / 1e9:g} GB of {4e-9 * asked.sizes.beyond * N_COLUMNS:.2g} stay on the card"
    with shared_rows(asked.sizes.beyond) as data:
        line, expected = by_this_process(asked, data)
        yield line
        with dask.config.set({"dkl.gpu-rows-bytes": asked.sizes.kept_bytes}):
            LOADER.clear()
            yield same_bits(f"this process, {kept}", asked, data, expected)
            LOADER.clear()
            with cluster_of(2):
                yield same_bits(f"2 workers, {kept}", asked, data, expected)


BITS = ("| | s | bits |", "|---|---|---|")


@contextmanager
def shared_rows(n_rows: int) -> Iterator[Any]:
    """A store of rows that a few processes share."""
    with tempfile.TemporaryDirectory(prefix="dkl-gpu-") as folder:
        yield written(f"{folder}/rows.zarr", n_rows)


@contextmanager
def cluster_of(n: int) -> Iterator[Any]:
    """The client of a cluster of so many processes on this machine."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(n_workers=n, **options) as cluster, Client(cluster) as client:
        yield client


def by_this_process(asked: Asked, data: Any) -> tuple[str, np.ndarray]:
    """The line of a fit without a cluster, and its coefficients."""
    LOADER.clear()
    started = time.perf_counter()
    expected = coefficients(asked.sizes.features[0], data)
    return f"| this process | {time.perf_counter() - started:.4g} | |", expected


def coefficients(m: int, data: Any, progress: Any = False) -> np.ndarray:
    """Of aligned features and a ridge on them."""
    features = dkl.AlignedFeatures(n_candidates=2 * m, n_features=m, random_state=0, progress=progress)
    return np.asarray(ridge(m).set_params(features=features).fit(data).linear_.coef_)


def same_bits(name: str, asked: Asked, data: Any, expected: np.ndarray, mortal: Any = None) -> str | WrongResult:
    """The line of a fit on the current cluster; of the client `mortal` a worker is killed in the first pass."""
    ended: list[int] = []

    def kill(event: Event) -> None:
        """One process is ended when the first task of the pass is done."""
        if mortal is not None and not ended and event.kind == "advanced" and event.name == "potentials":
            ended.append(min(mortal.run(os.getpid).values()))
            os.kill(ended[0], signal.SIGKILL)

    started = time.perf_counter()
    found = coefficients(asked.sizes.features[0], data, kill)
    seconds = time.perf_counter() - started
    if mortal is not None and not ended:
        return WrongResult(f"| {name} | {seconds:.4g} | no worker was killed: the pass told of no task |")
    if np.array_equal(found, expected):
        return f"| {name} | {seconds:.4g} | the same |"
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    return WrongResult(f"| {name} | {seconds:.4g} | differ by {apart:.1e} of the largest coefficient |")


def passes(asked: Asked) -> Lines:
    """A pass of a ridge over a store, with 1 and with 2 threads that compute: its seconds, and those of each act.

    The first pass reads, decodes and copies all rows; in the others they are on the device. A block is read and decoded
    in threads of its own, or in the one that waits for it.
    """
    m, names = asked.sizes.features[0], ("Hessian, rows come", "Hessian, rows are there", "gradient, rows are there")
    yield f"| pass | s | {' | '.join(Acts.NAMES)} |"
    yield "|---" * (2 + len(Acts.NAMES)) + "|"
    beside, computing = {"dkl.cache-bytes": 20 * asked.sizes.passed}, work.AT_ONCE_ON_GPU
    with dask.config.set(beside), shared_rows(asked.sizes.passed) as data:
        records = [newton_record(m, columns) for columns in ((0, m + 1), (0, m + 1), None)]
        # what is compiled, and the pinned memory, are there before anything is timed
        for record in records[1:]:
            run_pass(data.source, (record,), device="gpu")
        try:
            for at_once in (1, 2):
                work.AT_ONCE_ON_GPU = at_once
                LOADER.clear()
                for name, record in zip(names, records, strict=True):
                    with Acts() as acts:
                        seconds = run_pass(data.source, (record,), device="gpu").stats.seconds
                    said = f"{name}; {at_once} thread{'s' * (at_once > 1)} compute{'s' * (at_once == 1)}"
                    yield f"| {said} | {seconds:.4g} | {acts} |"
        finally:
            work.AT_ONCE_ON_GPU = computing


def newton_record(m: int, columns: tuple[int, int] | None) -> BlockSum:
    """What a ridge sums on m random features in a pass: loss, gradient and, of some columns, the Hessian."""
    trial = TrialSteps(np.zeros((1, m + 1)), np.full((1, m + 1), 1e-3), np.ones((1, 1)))
    operands = {
        "feature_map": gaussian(N_COLUMNS, m // 2),
        "trial": trial,
        "options": NewtonOptions("squared_error", columns=columns, rounded=True),
        "targets": NewtonTargets(np.array([1]), 2),
    }
    accumulators = {"loss": Accumulator((1, 1)), "gradient": Accumulator((1, m + 1))}
    if columns is not None:
        accumulators["hessian"] = Accumulator((1, packed_size(*columns)))
    return BlockSum("ridge", newton_block, accumulators, operands)


class Acts:
    """Seconds of the acts of passes within it, of all threads together; an act is timed where it is called."""

    NAMES = (
        *("reading", "decoding", "waits for a block", "copies", "waits for a turn"),
        *("asking for arithmetic", "waits for the device", "rest"),
    )

    def __init__(self) -> None:
        self._lock, self._seconds, self._undo = Lock(), Counter[str](), ExitStack()

    def __enter__(self) -> Acts:
        self._watch(chunks, "_read", "reading")
        self._watch(reading, "_read", "blocks")
        self._watch(gpu.STAGING, "send", "copies")
        self._watch(reading.LOADER, "fetch", "waits for a block")
        self._watch(work.ON_GPU, "_changed.wait_for", "waits for a turn")
        self._watch(gpu, "on_host", "waits for the device")
        self._watch(loop.SumReduction, "of_block", "functions")
        self._watch(loop, "sum_blocks", "tasks")
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _watch(self, owner: Any, path: str, act: str) -> None:
        """Time what an attribute, or one of an attribute, is called for."""
        *holders, name = path.split(".")
        for holder in holders:
            owner = getattr(owner, holder)
        call = getattr(owner, name)

        def timed_call(*given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                with self._lock:
                    self._seconds[act] += time.perf_counter() - started

        self._undo.enter_context(patch.object(owner, name, timed_call))

    def __str__(self) -> str:
        took = self._seconds
        named = {
            "decoding": took["blocks"] - took["reading"],
            "asking for arithmetic": took["functions"] - took["waits for the device"],
            # sums of blocks that are added up
            "rest": took["tasks"] - sum(took[name] for name in ("waits for a block", "copies", "waits for a turn")),
        }
        named["rest"] -= took["functions"]
        return " | ".join(f"{named.get(name, took[name]):.3g}" for name in self.NAMES)


def machine(asked: Asked) -> Lines:
    """A machine without settings, on the GPU and on the CPU, judged on a quarter of the rows."""
    X, y = flights(asked.data, asked.sizes.tabled) if asked.data else drawn(asked.sizes.tabled)
    test = np.arange(len(X)) % 4 == 0
    yield f"{'Flights' if asked.data else 'Rows that are drawn (--data names the folder of flights)'}: {len(X):,}"
    yield ""
    yield "| | s | right on held-out rows |"
    yield "|---|---|---|"
    for device in ("gpu", "cpu"):
        model, started = dkl.KernelClassifier(device=device, random_state=0), time.perf_counter()
        model.fit(X[~test], y[~test])
        seconds = time.perf_counter() - started
        yield f"| {device} | {seconds:.4g} | {model.score(X[test], y[test]):.4f} |"


def flights(folder: Path, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Hour, weekday, month, distance, origin and destination of flights, and whether they were 15 minutes late."""
    with np.load(folder / "flights_3m.npz") as raw:
        minutes = np.cumsum(raw["minute_diff"], dtype=np.int64)
        days = (np.datetime64(str(raw["start"]), "m") + minutes.astype("timedelta64[m]")).astype("datetime64[D]")
        month = days.astype("datetime64[M]").astype(int) % 12
        places = (raw["distance"], raw["origin"], raw["destination"])
        X = np.column_stack([minutes // 60 % 24, (days.astype(int) + 3) % 7, month, *places]).astype(np.float64)
        late = raw["delay"] >= 15
    some = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return X[some], late[some]


def drawn(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose class the sign of a product of two columns tells."""
    X = np.random.default_rng(0).standard_normal((n_rows, 6))
    return X, X[:, 0] * X[:, 1] > 0


def speeds(asked: Asked) -> Lines:
    """Blocks and fits on the GPU and on the CPU, and how far their results are apart."""
    yield "| | CPU, s | GPU, s | times as fast | difference | of the GPU's own limit |"
    yield "|---|---|---|---|---|---|"
    for one in device_speeds(**(asked.sizes.speeds or {})):
        times = f"{one.cpu_seconds:.4g} | {one.gpu_seconds:.4g} | {one.ratio:.1f} | {one.difference:.1e}"
        yield f"| {one.name} | {times} | {one.verdict} |"


# Each part with its share of the time.
PARTS: dict[str, tuple[Callable[[Asked], Lines], float]] = {
    "tests": (tests, 0.15),
    "rates": (rates, 0.1),
    "workers": (workers, 0.1),
    "killed": (killed, 0.05),
    "beyond": (beyond, 0.15),
    "passes": (passes, 0.15),
    "rows": (rows, 0.2),
    "machine": (machine, 0.05),
    "speeds": (speeds, 0.05),
}


@dataclass(frozen=True)
class Page:
    """The page as it is on disk: a heading, and a section a part.

    Parameters
    ----------
    path : Path
    sections : dict
        The lines of each part.
    """

    path: Path
    sections: dict[str, list[str]]

    @classmethod
    def of(cls, path: Path, *, kept: bool) -> Page:
        """The sections of a page that is there, or none."""
        sections: dict[str, list[str]] = {}
        for section in path.read_text(encoding="utf-8").split("\n## ")[1:] if kept and path.exists() else []:
            name, _, text = section.partition("\n")
            sections[name] = text.strip("\n").split("\n")
        return cls(path, sections)

    def write(self) -> None:
        """The file is replaced as a whole, so that whoever ends the process leaves a page behind."""
        parts = [f"## {name}\n\n" + "\n".join(self.sections[name]) for name in PARTS if name in self.sections]
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text("\n\n".join(["# dkl on a GPU", *parts]) + "\n", encoding="utf-8")
        beside.replace(self.path)


def provenance() -> str:
    """The date, the commit, and the machine that figures were taken on."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = None
    if shutil.which("git"):
        commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    runtime = f"CUDA {cupy.cuda.runtime.runtimeGetVersion()}, driver {cupy.cuda.runtime.driverGetVersion()}"
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit or 'unknown (no git checkout)'}; "
        f"dkl {version('dkl')}; {properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB, "
        f"{runtime}, CuPy {cupy.__version__}; {len(os.sched_getaffinity(0))} cores, "
        f"{platform.platform()}, NumPy {np.__version__}"
    )


def fill(page: Page, name: str, asked: Asked) -> bool:
    """Run one part, its lines written as they come; whether all went well."""
    lines, good = [provenance(), ""], True
    page.sections[name] = lines
    page.write()
    try:
        for line in PARTS[name][0](asked):
            good = good and not isinstance(line, WrongResult)
            lines.append(str(line))
            page.write()
            sys.stdout.write(f"{line}\n")
            if asked.left() <= 0:
                lines += ["", "What would follow was not measured: the time of this part was over."]
                break
    except Exception as error:  # whatever ends a part, the others are measured, and the page says what it was
        good = False
        lines += ["", f"failed: {type(error).__name__}: {error}"]
        traceback.print_exc()
    page.write()
    return good


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu_report.md"), help="the page that is written")
    parser.add_argument("--minutes", type=float, default=5.0, help="of all parts together")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--data", type=Path, help="folder of flights_3m.npz")
    parser.add_argument("--quick", action="store_true", help="measurements of seconds, to try the report itself")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--only: there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    reason = why_no_gpu()
    if reason is not None:
        sys.stderr.write(f"no GPU to report on: {reason}\n")
        return 2
    page, good = Page.of(given.output, kept=set(names) < set(PARTS)), True
    started, whole, until = time.monotonic(), sum(PARTS[name][1] for name in names), 0.0
    for name in [name for name in PARTS if name in names]:
        until += 60.0 * given.minutes * PARTS[name][1] / whole
        ends = started + until
        asked = Asked(QUICK if given.quick else Sizes(), given.data, lambda ends=ends: ends - time.monotonic())
        good = fill(page, name, asked) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
