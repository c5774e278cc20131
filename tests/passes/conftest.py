"""A cluster whose workers may be killed: not shared with tests that need theirs alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def expendable() -> Iterator[Any]:
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
    expendable.wait_for_workers(2, timeout=60)
    with expendable.as_current():
        yield expendable
