"""Workers that join, leave, stop, hang or are paused while a pass runs: all that are there work, no bit changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import dask
import numpy as np
import pytest

from dkl.errors import ClusterError
from dkl.events import Event, Subscriber, ignore
from dkl.passes import devices
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.loop import Run, run_pass
from dkl.protocols.records import Fold
from tests.passes.faults import slow_step, slow_sums
from tests.passes.sources import Source, block_moments, chain, fold_by_definition, moments, ragged, tree_by_definition
from tests.passes.test_loop import Descent, Problem, assert_same


def process_of_block(block: Any, operands: Any) -> dict[str, np.ndarray]:
    """Marks the process that computes, of at most 2^12 by the last bits of its number."""
    time.sleep(0.02)
    seen = np.zeros(4096)
    seen[os.getpid() % 4096] = 1
    return {"seen": seen, **block_moments(block, operands)}


def process_of_piece(block: Any, operands: Any, number: int) -> int:
    time.sleep(0.02)
    return os.getpid()


def joined(state: tuple[int, ...], pid: int, operands: Any) -> tuple[int, ...]:
    return tuple(sorted({*state, pid}))


def makers() -> Fold:
    """A fold whose state is who has made its pieces."""
    return Fold("makers", (), joined, process_of_piece, lambda rows: 1, piece_bytes=1 << 12, state_bytes=1 << 12)


class Scaling:
    """Scales the cluster when the pass has begun, and holds the driver until the workers have come or gone.

    One that goes is retired: it hands over what it holds, and ends.
    """

    def __init__(self, client: Any, n_workers: int) -> None:
        self.client, self.n_workers, self.done = client, n_workers, False

    def __call__(self, event: Event) -> None:
        if event.kind == "advanced" and not self.done:
            self.done = True
            self.client.cluster.scale(self.n_workers)
            stop = time.monotonic() + 60.0
            while len(self.client.nthreads()) != self.n_workers:
                assert time.monotonic() < stop
                time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sums", "fold"])
def test_a_worker_that_joins_a_pass_gets_work(mortal: Any, kind: str) -> None:
    source = Source((4,) * 300)
    record = moments(function=process_of_block)
    sums = replace(
        record, accumulators={**record.accumulators, "seen": replace(record.accumulators["mass"], shape=(4096,))}
    )
    try:
        (found,) = run_pass(source, (sums if kind == "sums" else makers(),), publish=Scaling(mortal, 3)).results
        workers = set(mortal.run(os.getpid).values())
    finally:
        mortal.cluster.scale(2)
    assert len(workers) == 3
    seen = set(np.flatnonzero(found["seen"])) if kind == "sums" else {pid % 4096 for pid in found}
    assert seen >= {pid % 4096 for pid in workers}


@pytest.mark.parametrize("kind", ["sums", pytest.param("fold", marks=pytest.mark.slow)])
def test_a_worker_that_is_retired_changes_no_bit(mortal: Any, kind: str) -> None:
    source, shrinking = Source(ragged(60, 8)), Scaling(mortal, 1)
    try:
        assert bits(source, kind, shrinking) == expected_bits(source, kind)
    finally:
        mortal.cluster.scale(2)
    assert shrinking.done


def expected_bits(source: Source, kind: str) -> list[bytes]:
    if kind == "fold":
        return [fold_by_definition(source, chain()).tobytes()]
    return [value.tobytes() for value in map(np.asarray, tree_by_definition(source, moments()).values())]


def bits(source: Source, kind: str, publish: Subscriber = ignore) -> list[bytes]:
    record = chain(step=slow_step) if kind == "fold" else moments(function=slow_sums)
    (found,) = run_pass(source, (record,), publish=publish).results
    return [found.tobytes()] if kind == "fold" else [value.tobytes() for value in found.values()]


@pytest.mark.parametrize("kind", [pytest.param("sums", marks=pytest.mark.slow), "fold"])
def test_a_worker_that_is_stopped_for_a_while_changes_no_bit(mortal: Any, kind: str) -> None:
    source = Source(ragged(60, 8))
    pid = min(mortal.run(os.getpid).values())
    os.kill(pid, signal.SIGSTOP)
    going_on = threading.Timer(0.8, os.kill, (pid, signal.SIGCONT))
    going_on.start()
    assert bits(source, kind) == expected_bits(source, kind)
    going_on.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sums", "fold"])
def test_a_worker_that_hangs_is_replaced(mortal: Any, kind: str) -> None:
    source = Source(ragged(60, 8))
    os.kill(min(mortal.run(os.getpid).values()), signal.SIGSTOP)
    with dask.config.set({"dkl.hung-worker-timeout": 3.0}):
        assert bits(source, kind) == expected_bits(source, kind)
    assert mortal.status == "running"


def test_a_worker_that_hangs_before_it_is_asked_for_its_gpu_is_not_waited_for(
    mortal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_known", {})
    os.kill(min(mortal.run(os.getpid).values()), signal.SIGSTOP)
    begun = time.monotonic()
    with dask.config.set({"dkl.hung-worker-timeout": 1.5}):
        devices.choose_device("auto")
    assert time.monotonic() - begun < 60.0  # 120 s are allowed for the first import of CuPy


def pause(dask_worker: Any) -> None:
    """As Dask does at a share of the memory limit; its monitor would resume a worker that holds less."""
    from distributed import Status

    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused


def resume(dask_worker: Any) -> None:
    from distributed import Status

    dask_worker.memory_manager.memory_pause_fraction = 0.8
    dask_worker.status = Status.running


class Pausing:
    """Pauses workers once a pass has advanced, and lets all go on a while later where `for_s` says so."""

    def __init__(self, client: Any, workers: list[str], for_s: float | None) -> None:
        self.client, self.workers, self.for_s, self.done = client, workers, for_s, False

    def __call__(self, event: Event) -> None:
        if event.kind == "advanced" and not self.done:
            self.done = True
            self.client.run(pause, workers=self.workers)
            if self.for_s is not None:
                threading.Timer(self.for_s, self.client.run, (resume,)).start()


@pytest.mark.parametrize(("kind", "which"), [pytest.param("fold", "one", marks=pytest.mark.slow), ("sums", "all")])
def test_a_paused_worker_is_waited_for_or_passed_over_and_never_restarted(
    mortal: Any, kind: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, workers = Source(ragged(60, 8)), mortal.run(os.getpid)
    # where one is paused it stays so: the other one ends the pass
    chosen = sorted(workers) if which == "all" else [min(workers)]
    pausing = Pausing(mortal, chosen, 5.0 if which == "all" else None)
    # a busy machine may hold a worker up for seconds, too
    with dask.config.set({"dkl.hung-worker-timeout": 4.0}):
        try:
            assert bits(source, kind, pausing) == expected_bits(source, kind)
        finally:
            mortal.run(resume)
    assert pausing.done
    assert mortal.run(os.getpid) == workers
    (message,) = {record.message for record in caplog.records if "has paused" in record.message}
    others = "the pass waits for them" if which == "all" else "the pass goes on on the others"
    assert f"Dask has paused {len(chosen)} of 2 workers" in message
    assert others in message
    assert "a larger memory_limit" in message


def test_a_pass_begins_on_the_workers_that_are_not_paused(mortal: Any) -> None:
    source, paused = Source(ragged(20, 8)), min(mortal.run(os.getpid))
    mortal.run(pause, workers=[paused])
    try:
        assert bits(source, "sums") == expected_bits(source, "sums")
    finally:
        mortal.run(resume)


def test_operands_reach_the_workers_that_are_left_when_one_dies_while_they_are_sent(mortal: Any) -> None:
    source = Source(ragged(12, 8))
    pid = min(mortal.run(os.getpid).values())
    os.kill(pid, signal.SIGSTOP)  # it takes what is sent, and never says so
    ending = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    ending.start()
    (found,) = run_pass(source, (moments(50_000),)).results
    ending.join()
    assert found["sums"].tobytes() == tree_by_definition(source, moments(50_000))["sums"].tobytes()


@pytest.mark.slow
def test_a_cluster_that_shrinks_to_nothing_and_grows_with_its_tasks_gives_the_same_bits() -> None:
    from distributed import Client, LocalCluster

    alone, _ = Run().drive(Descent(), Problem(3), Source(ragged(40)))
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)

        def wait_for_nobody(event: Event) -> None:
            while event.name == "rounds" and event.kind == "advanced" and client.nthreads():
                time.sleep(0.1)

        found, _ = Run(publish=wait_for_nobody).drive(Descent(), Problem(3), Source(ragged(40)))
        assert not client.nthreads()
    assert_same(found, alone)


class OwnCluster:
    """A scheduler and a worker that are processes of their own, the scheduler always at the same port."""

    def __init__(self, port: int) -> None:
        self.address = f"tcp://127.0.0.1:{port}"
        options = ["--no-dashboard", "--host", "127.0.0.1"]
        self.scheduler = self._start("scheduler", "--port", str(port), *options)
        self.worker = self._start("worker", self.address, *options, "--nthreads", "1", "--death-timeout", "20")

    def _start(self, program: str, *arguments: str) -> subprocess.Popen:
        started = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments]
        return subprocess.Popen(started, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        for process in (self.scheduler, self.worker):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_bits_when_its_scheduler_was_killed_and_comes_back(
    tmp_path: Any, unused_port: int
) -> None:
    from distributed import Client

    source, checkpoint = Source(ragged(40)), Checkpoint(tmp_path)
    alone, _ = Run().drive(Descent(), Problem(6), source)
    first = OwnCluster(unused_port)

    def kill(event: Event) -> None:
        if event.name == "rounds" and event.done == 2:
            first.scheduler.kill()

    with dask.config.set({"dkl.no-workers-timeout": 5.0}):
        try:
            with Client(first.address, timeout=60) as client:
                client.wait_for_workers(1, timeout=60)
                with pytest.raises(ClusterError, match="no longer answers"):
                    Run(publish=kill, checkpoint=checkpoint).drive(Descent(), Problem(6), source)
        finally:
            first.kill()
        second = OwnCluster(unused_port)
        try:
            with Client(second.address, timeout=60) as client:
                client.wait_for_workers(1, timeout=60)
                found, stats = Run(checkpoint=checkpoint).drive(Descent(), Problem(6), source)
        finally:
            second.kill()
    assert_same(found, alone)
    assert len(stats) == 4


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
