"""Workers that no longer work, stopped or paused for good, are ended while a pass waits for them; others take over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask

LOG = logging.getLogger("dkl")
HUNG_WORKER_TIMEOUT_S = 30.0
LOOKS = 6


@contextmanager
def watched(client: Any) -> Iterator[None]:
    """Inside the block, a worker that hangs is restarted by its nanny, or removed from the cluster where it has none.

    A worker hangs when the scheduler has heard nothing from it for `dkl.hung-worker-timeout` seconds (of dask.config;
    30 by default, 0 for never), or when it was paused for as long, for want of memory, without a task under way. Dask
    itself waits five minutes for the first and forever for the second.
    """
    timeout = float(dask.config.get("dkl.hung-worker-timeout", HUNG_WORKER_TIMEOUT_S))
    ended = threading.Event()
    if timeout > 0:
        threading.Thread(target=_watch, args=(client, timeout, ended), name="dkl-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(client: Any, timeout: float, ended: threading.Event) -> None:
    signs: dict[str, tuple[Any, int]] = {}
    while not ended.wait(timeout / LOOKS):
        try:
            signs = _signs(client.scheduler_info(n_workers=-1)["workers"], signs)
            hung = [worker for worker, (_, looks) in signs.items() if looks > LOOKS]
            if hung and not ended.is_set():
                LOG.warning("restarting workers that have not answered for %g s: %s", timeout, ", ".join(sorted(hung)))
                client.restart_workers(hung, timeout=timeout, raise_for_error=False)
        except Exception as error:
            # a scheduler that is gone is for the pass to tell, a worker that went in the meantime for nobody
            LOG.debug("could not look after the workers: %s", error)


def _signs(workers: Mapping[str, Any], before: Mapping[str, tuple[Any, int]]) -> dict[str, tuple[Any, int]]:
    """The last sign of life of each worker, and how many looks have found it.

    Looks are counted, not seconds: a driver that slept itself has missed signs.
    """
    signs = {}
    for address, worker in workers.items():
        idle = not worker["metrics"].get("task_counts", {}).get("executing")
        sign = "paused" if worker["status"] == "paused" and idle else worker["last_seen"]
        known, looks = before.get(address, (None, 0))
        signs[address] = (sign, looks + 1 if known == sign else 1)
    return signs
