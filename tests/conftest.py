"""Fixtures that more than one area of the tests shares: in each test process a cluster to compute on, one to kill."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

# pytest rewrites hypothesis when its plugin imports it, at the end of a run that has not; CPython 3.11 may stumble
# there over finalizers ("AST constructor recursion depth mismatch")
import hypothesis
import pytest
from hypothesis import strategies as st

from dkl.kernels.device import why_no_gpu
from tests.expendable import bring_two_workers


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes run the whole quick set; what is asked for by name or mark runs in this one."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and config.getoption("markexpr") == "not slow"
    return 2 if whole else 0


def pytest_configure(config: pytest.Config) -> None:
    """Processes that run tests beside each other leave each other the cores, and compile a module once.

    Threads of OpenMP and BLAS that outnumber the cores wait for one another. Where PYTHONDONTWRITEBYTECODE is set, all
    processes that tests start would compile the package, and those that run tests would rewrite them, each for itself;
    Numba writes to the folders of byte code anyway.
    """
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are collected, and stay: no search for unreachable objects looks at them, then or later.

    Each search would go through the two million objects of modules and tests, for a quarter of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What is left after the last test of a file stays, too.

    Compiled kernels and what else thousands of tests leave would come to more than a second for each search that the
    library makes by itself, before it says that memory is short.
    """
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            gc.collect()
            gc.freeze()


# A number in twenty is one that stands in the sources of the package: they are read at the first such draw, for up to
# three seconds of a core, which would count as slow generation by the test that comes first. 180 numbers have several.
_READS_CONSTANTS = hypothesis.settings(
    max_examples=3, derandomize=True, database=None, deadline=None, phases=[hypothesis.Phase.generate]
)(hypothesis.given(st.lists(st.floats(), min_size=60, max_size=60))(lambda numbers: None))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` say why they are skipped; the sources that Hypothesis reads are read before its tests."""
    reason = why_no_gpu() if item.get_closest_marker("gpu") else None
    if reason is not None:
        pytest.skip(reason)
    if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
        _READS_CONSTANTS()


@pytest.fixture(autouse=True)
def hints_are_given_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own to the hints, which are given once a process."""
    monkeypatch.setattr("dkl.errors._HINTED", set())


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that choose for themselves try a few candidates: for tests of what is said and done around a choice.

    The budget counts work, not rows: a fit to few rows would spend all of it on more trials.
    """
    from dkl.machines.effort import EFFORTS

    for name in ("fast", "balanced"):
        monkeypatch.setitem(EFFORTS, name, replace(EFFORTS[name], work=1e8))


@pytest.fixture(scope="session", autouse=True)
def a_ctrl_c_is_heard() -> Iterator[None]:
    """A shell has what it starts with ``&`` or ``nohup`` ignore Ctrl-C, and processes of tests would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def files_are_not_forced_to_the_disk() -> Iterator[None]:
    """A store forces each of its files to the disk, so that it survives a power cut; files of tests need not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def forked_workers() -> Iterator[None]:
    """Workers are forked from a process that has imported what they need: each would import it anew, for seconds."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    from multiprocessing import forkserver

    import dask

    forkserver.set_forkserver_preload(["distributed", "dkl.machines.kernel_machines"])
    # Before Dask names modules of its own: a server that runs keeps to those that it has.
    forkserver.ensure_running()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


# What a scheduler, nannies and workers do all the time that nobody asks of them here: look at their own stacks, event
# loops and memory many times a second, for 9 % of a core to a cluster of two workers; 1 % with these settings. A
# cluster keeps those with which it was started.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
}


@pytest.fixture(scope="session")
def cluster(forked_workers: None) -> Iterator[object]:
    """Two worker processes of one thread each; started when the first test asks for them."""
    import dask
    from distributed import LocalCluster

    with dask.config.set(_QUIET):
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit="4 GiB"
        )
    with cluster:
        yield cluster


@pytest.fixture
def client(cluster: object) -> Iterator[object]:
    """A client of the shared cluster, the default one while the test runs; waits for both workers.

    Few rows in memory go to the workers, too, which a fit would keep to itself.
    """
    import dask
    from distributed import Client

    with Client(cluster) as client, dask.config.set({"dkl.local-bytes": 0}):
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="session")
def expendable(forked_workers: None) -> Iterator[Any]:
    """A client of two worker processes that tests kill; nannies bring new ones."""
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(_QUIET):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def mortal(expendable: Any) -> Iterator[Any]:
    """The expendable client as the current one, with both of its workers up."""
    import dask

    bring_two_workers(expendable)
    with expendable.as_current(), dask.config.set({"dkl.local-bytes": 0}):
        yield expendable
