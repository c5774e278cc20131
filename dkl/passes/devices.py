"""The device of a pass: on a cluster its workers are asked for theirs, not the driver."""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dask

from dkl.kernels.device import NO_CUPY, Device, own_gpu, resolve_device, why_no_gpu
from dkl.passes.backends import ClusterBackend, current_client
from dkl.passes.lost_workers import hung_workers_restarted

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("dkl")
LOOK_NAME = "look for a GPU"
# The first import of CuPy on a node with a cold network disk has taken most of a minute.
ANSWER_TIMEOUT_S = 120.0
_POLL_S = 0.5
_TOO_LATE = "did not answer within {:g} s (dask.config 'dkl.device-timeout')"
# The answer of each worker; a worker that returns at the same address is on the same machine.
_known: dict[str, str | None] = {}
_last_logged = ""


@dataclass(frozen=True)
class DeviceChoice:
    """The device on which blocks are computed.

    Parameters
    ----------
    device : {"cpu", "gpu", "mixed"}
    why : str
        The reason in words; empty if nobody asked for a GPU and none was found.
    """

    device: Device
    why: str

    def __str__(self) -> str:
        return f"{self.device}: {self.why}" if self.why else self.device


def look_for_gpu() -> str | None:
    """`why_no_gpu` for the process of a worker, which also takes its own GPU before the driver takes one."""
    reason = why_no_gpu()
    if reason is None:
        own_gpu()
    return reason


def computing_device(device: str) -> Device:
    """The device for `device`; see `choose_device`."""
    return choose_device(device).device


def choose_device(device: str) -> DeviceChoice:
    """The device for `device`, on the workers of the current client, or in this process without one.

    Waits for workers as long as the first import of CuPy may take: `dkl.device-timeout` seconds of dask.config (120 by
    default). The decision and its reason are logged.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu", "mixed"}
        "auto" uses GPUs if every worker has one, so that all compute equally; with "mixed" each worker uses what it
        has, and results agree up to rounding.

    Raises
    ------
    ValueError
        If `device` is none of these.
    RuntimeError
        If `device` is "gpu" and a worker has none; the message names the worker and the reason.
    ClusterError
        If the cluster gets no workers in time.
    """
    client = current_client()
    if client is None or device not in ("auto", "gpu", "mixed"):
        here = resolve_device(device)
        lacks = why_no_gpu() if device in ("auto", "mixed") and here == "cpu" else None
        if device == "cpu" or (device == "auto" and lacks == NO_CUPY):
            return _logged(DeviceChoice(here, ""))
        return _logged(DeviceChoice(here, f"device={device!r}" + (f", and {lacks}" if lacks else "")))
    answers, silent = _answers(client)
    without = {name: reason for name, reason in answers.items() if reason is not None}
    if device == "gpu" and without:
        worker, reason = next(iter(without.items()))
        raise RuntimeError(
            f"device='gpu', but {len(without)} of {len(answers)} workers cannot use one: on {worker} {reason}; use "
            "device='mixed' to let each worker take what it has, or 'cpu'"
        )
    n_workers = len(answers) + len(silent)
    lacking = {**without, **dict.fromkeys(silent, _TOO_LATE.format(_timeout()))}
    if device == "gpu" or (answers and not lacking):
        why = f"device={device!r}, and no worker of {n_workers} has said that it has no GPU"
        return _logged(DeviceChoice("gpu", why))
    if not lacking:
        return _logged(DeviceChoice("cpu", f"device={device!r}, and there is no worker to ask"))
    if device == "auto" and set(answers.values()) == {NO_CUPY} and not silent:
        return _logged(DeviceChoice("cpu", ""))
    worker, reason = next(iter(lacking.items()))
    cannot = f"{len(lacking)} cannot use a GPU or are silent: {worker} {reason}"
    # a silent worker uses its GPU, if it has one, once it gets a block
    is_mixed = device == "mixed" and (silent or len(without) < len(answers))
    return _logged(
        DeviceChoice("mixed" if is_mixed else "cpu", f"device={device!r}, and of {n_workers} workers {cannot}")
    )


def _logged(choice: DeviceChoice) -> DeviceChoice:
    """The choice; it is logged if it differs from the last logged one, as each stage of a fit asks again."""
    global _last_logged
    if str(choice) != _last_logged:
        _last_logged = str(choice)
        LOG.info("blocks are computed on the %s", choice)
    return choice


def check_device(device: str) -> None:
    """Raise RuntimeError if device="gpu" is impossible, before rows are read."""
    if device == "gpu":
        computing_device(device)


def driving_device(device: str) -> Device:
    """The device for work in this process itself, which need not have a GPU if a cluster has them."""
    # the driver of a cluster may be a laptop without a GPU, whose own small work then uses its CPU
    return resolve_device("auto" if device != "cpu" and current_client() is not None else device)


def _answers(client: Client) -> tuple[dict[str, str | None], list[str]]:
    """Why no GPU can be used, for each worker that answers in time, and the workers that do not.

    Workers that leave are no longer waited for.
    """
    from distributed import wait

    backend = ClusterBackend(client)
    # keys are never used twice: Dask would cancel a key again that was cancelled while its worker loaded modules
    asked = {
        worker: client.submit(look_for_gpu, key=f"{LOOK_NAME}-{uuid.uuid4().hex}", workers=[worker], priority=100)
        for worker in sorted(set(backend.slots()) - _known.keys())
    }
    deadline = time.monotonic() + _timeout()
    # without this, a hung worker would be waited for as long as the first import of CuPy may take
    with backend.noticing_close(), hung_workers_restarted(client) if asked else nullcontext():
        while True:
            present = set(backend.slots())
            waiting = [worker for worker, task in asked.items() if task.status == "pending" and worker in present]
            if not waiting or time.monotonic() >= deadline:
                break
            with suppress(TimeoutError):
                wait([asked[worker] for worker in waiting], timeout=_POLL_S)
    # devices of workers do not change while they live, so that each is asked once in a process
    _known.update({worker: task.result() for worker, task in asked.items() if task.status == "finished"})
    client.cancel([task for task in asked.values() if task.status != "finished"])
    if waiting:
        LOG.warning(
            "%d workers did not say within %g s (dask.config 'dkl.device-timeout') whether they have a GPU: %s",
            *(len(waiting), _timeout(), ", ".join(waiting)),
        )
    return {worker: _known[worker] for worker in sorted(set(backend.slots())) if worker in _known}, waiting


def _timeout() -> float:
    return float(dask.config.get("dkl.device-timeout", ANSWER_TIMEOUT_S))
