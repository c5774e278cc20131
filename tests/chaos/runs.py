"""Runs of fits that are struck at random moments, and what they came to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dask
import numpy as np

from dkl.errors import ClusterError
from tests.chaos.fits import drive, learned, make_rows
from tests.expendable import bring_two_workers

STRIKES = ("kill", "interrupt")
WORKER_STRIKES = ("kill", "stop", "hang", "leave", "join")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.chaos.warm"])


@dataclass
class Tally:
    """What the runs came to."""

    runs: Counter = field(default_factory=Counter)
    struck: Counter = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    slowest_end: float = 0.0

    def __str__(self) -> str:
        lines = [f"{sum(self.runs.values())} runs, {sum(self.struck.values())} strikes, "]
        lines[0] += f"{len(self.differences)} differences; slowest end after an interrupt {self.slowest_end:.2f} s"
        lines += [f"  {name}: {count} runs" for name, count in sorted(self.runs.items())]
        lines += [f"  {name}: {count} strikes" for name, count in sorted(self.struck.items())]
        return "\n".join([*lines, *self.differences])


class Drivers:
    """Runs whose driver is struck.

    Parameters
    ----------
    folder : str
        Where the rows are made.
    checkpoints : str
        A folder or a URL below which each run has its checkpoint.
    stores : mapping
        Options of fsspec by protocol, for such a URL.
    """

    def __init__(self, folder: str, checkpoints: str, stores: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.folder, self.checkpoints, self.stores, self.tally = folder, checkpoints, dict(stores), Tally()
        make_rows(f"{folder}/rows.zarr")
        self.peaceful = cache(self._peaceful)

    def run(self, kind: str, number: int) -> None:
        """One run; its strikes follow from its number."""
        random = np.random.default_rng(number)
        expected, seconds = self.peaceful(kind)
        checkpoint, answer = f"{self.checkpoints}/{kind}-{number}", Path(self.folder, f"{kind}-{number}")
        for _ in range(random.integers(1, 4)):
            process = self._started(kind, checkpoint, answer)
            process.join(random.uniform(0.0, seconds))
            if process.is_alive():
                self._strike(process, str(random.choice(STRIKES)))
        if not answer.exists():
            self._started(kind, checkpoint, answer).join()
        self.tally.runs[kind] += 1
        if not answer.exists() or answer.read_text() != expected:
            self.tally.differences.append(f"a driver of kind {kind!r} differs in run {number}")

    def _peaceful(self, kind: str) -> tuple[str, float]:
        answer = Path(self.folder, kind)
        begun = time.monotonic()
        self._started(kind, None, answer).join()
        return answer.read_text(), time.monotonic() - begun

    def _started(self, kind: str, checkpoint: str | None, answer: Path) -> Any:
        process = PROCESSES.Process(target=drive, args=(kind, self.folder, checkpoint, str(answer), self.stores))
        process.start()
        return process

    def _strike(self, process: Any, strike: str) -> None:
        begun = time.monotonic()
        os.kill(process.pid, signal.SIGKILL if strike == "kill" else signal.SIGINT)
        process.join()
        if process.exitcode in (130, -signal.SIGKILL):
            self.tally.struck[f"driver {strike}"] += 1
            self.tally.slowest_end = max(self.tally.slowest_end, time.monotonic() - begun)


class Workers:
    """Runs on two worker processes, of which one is struck.

    Parameters
    ----------
    folder : str
        Where the rows are made.
    client : distributed.Client
        Of a LocalCluster that may be harmed.
    checkpoints : str
        A folder or a URL below which each run has its checkpoint; "" for none.
    """

    def __init__(self, folder: str, client: Any, checkpoints: str = "") -> None:
        self.folder, self.client, self.checkpoints, self.tally = folder, client, checkpoints, Tally()
        make_rows(f"{folder}/rows.zarr")
        self.peaceful = cache(self._peaceful)

    def run(self, kind: str, number: int, strikes: tuple[str, ...] = WORKER_STRIKES) -> None:
        """One run; its strike follows from its number."""
        random = np.random.default_rng(number)
        expected = self.peaceful(kind)
        strike, after = str(random.choice(strikes)), random.uniform(0.0, 1.5)
        checkpoint = f"{self.checkpoints}/{kind}-{number}" if self.checkpoints else None
        bring_two_workers(self.client)
        pid = self._pids()[random.integers(2)]
        with _at(after, lambda: self._strike(strike, pid)), dask.config.set({"dkl.hung-worker-timeout": 9.0}):
            found = _learned_or_why_not(kind, self.folder, checkpoint)
        if strike == "hang":
            self._end(pid)
        self.client.cluster.scale(2)
        self.tally.runs[kind] += 1
        self.tally.struck[f"worker {strike}"] += 1
        if found != expected:
            self.tally.differences.append(f"kind {kind!r}, run {number}, {strike} after {after:.2f} s: {found}")

    def _peaceful(self, kind: str) -> str:
        """Computed without workers."""
        with dask.config.set(scheduler="synchronous"):
            return learned(kind, self.folder)

    def _pids(self) -> list[int]:
        return sorted(nanny.pid for nanny in self.client.cluster.workers.values() if nanny.pid)

    def _end(self, pid: int) -> None:
        """A fit that could do without a worker has left it stopped, and the next run would wait for it."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while pid in self._pids():
            time.sleep(0.05)

    def _strike(self, strike: str, pid: int) -> None:
        if strike in ("leave", "join"):
            self.client.cluster.scale(1 if strike == "leave" else 3)
            return
        os.kill(pid, signal.SIGKILL if strike == "kill" else signal.SIGSTOP)
        if strike == "stop":
            time.sleep(1.0)
            os.kill(pid, signal.SIGCONT)


def _learned_or_why_not(kind: str, folder: str, checkpoint: str | None) -> str:
    try:
        return learned(kind, folder, checkpoint)
    except ClusterError as error:
        return repr(error)


@contextmanager
def _at(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """`action` so long after the block began, in a thread of its own; over before the block is left."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def expendable_client() -> Iterator[Any]:
    """Two worker processes of one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
        dask.config.set({"dkl.local-bytes": 0}),
    ):
        yield client
