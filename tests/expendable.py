"""Workers of a cluster that tests kill, and that come back."""

from __future__ import annotations

import time
from typing import Any


def bring_two_workers(client: Any) -> None:
    """Wait until both nannies have a live worker; a nanny that lost track of its own is replaced."""
    deadline = time.monotonic() + 5
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
