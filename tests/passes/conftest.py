"""A cluster whose workers may be killed: not shared with tests that need theirs alive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dask
import pytest


@pytest.fixture(scope="module")
def expendable(forked_workers: None) -> Iterator[Any]:
    """A client of two worker processes that tests kill; nannies bring new ones."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def mortal(expendable: Any) -> Iterator[Any]:
    """The expendable client as the current one, with both of its workers up."""
    bring_two_workers(expendable)
    with expendable.as_current(), dask.config.set({"dkl.local-bytes": 0}):
        yield expendable


def bring_two_workers(client: Any) -> None:
    """Wait until both nannies have a live worker; a nanny that lost track of its own is replaced."""
    deadline = time.monotonic() + 10
    while [*map(is_up, client.cluster.workers.values())] != [True, True] or len(client.nthreads()) != 2:
        if time.monotonic() > deadline:
            client.cluster.scale(0)
            while client.nthreads():
                time.sleep(0.05)
            client.cluster.scale(2)
            deadline = time.monotonic() + 40
        time.sleep(0.05)


def is_up(nanny: Any) -> bool:
    worker = nanny.process
    return worker is not None and worker.status.name == "running" and worker.process.is_alive()
