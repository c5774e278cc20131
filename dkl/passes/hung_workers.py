"""Workers that no longer answer are ended while a pass waits for them; others take over their work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("dkl")
HUNG_WORKER_TIMEOUT_S = 30.0
LOOKS = 6


@contextmanager
def hung_workers_restarted(client: Client) -> Iterator[None]:
    """Inside the block, a worker that hangs is restarted by its nanny, or removed from the cluster where it has none.

    A worker hangs when the scheduler has heard nothing from it for `dkl.hung-worker-timeout` seconds (of dask.config;
    30 by default, 0 for never). Dask itself waits five minutes. One that is paused, for want of memory, still answers:
    it is no hung one, and goes on once it holds less (`ClusterBackend.held_up`).
    """
    timeout = float(dask.config.get("dkl.hung-worker-timeout", HUNG_WORKER_TIMEOUT_S))
    ended = threading.Event()

    def look_now_and_then() -> None:
        signs: dict[str, tuple[object, int]] = {}
        while not ended.wait(timeout / LOOKS):
            try:
                signs = _signs_of_life(client.scheduler_info(n_workers=-1)["workers"], signs)
                hung = [worker for worker, (_, looks) in signs.items() if looks > LOOKS]
                if hung and not ended.is_set():
                    names = ", ".join(sorted(hung))
                    LOG.warning("restarting workers that have not answered for %g s: %s", timeout, names)
                    client.restart_workers(hung, timeout=timeout, raise_for_error=False)
            except Exception as error:
                # A scheduler that is gone is for the pass to tell, a worker that went in the meantime for nobody.
                LOG.debug("could not look after the workers: %s", error)

    if timeout > 0:
        threading.Thread(target=look_now_and_then, name="dkl-hung-workers", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _signs_of_life(
    workers: Mapping[str, Any], before: Mapping[str, tuple[object, int]]
) -> dict[str, tuple[object, int]]:
    """The last sign of life of each worker, and how many looks have found it.

    Looks are counted, not seconds: a driver that slept itself has missed signs.
    """
    signs: dict[str, tuple[object, int]] = {}
    for address, worker in workers.items():
        last_sign, looks = before.get(address, (None, 0))
        sign = worker["last_seen"]
        signs[address] = (sign, looks + 1 if last_sign == sign else 1)
    return signs
