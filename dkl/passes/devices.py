"""Where a pass computes: on a cluster its workers are asked what they have, not the process that drives them."""

from __future__ import annotations

import uuid
from typing import Any

from dkl.blocks.device import Device, resolve_device, why_no_gpu
from dkl.passes.backends import ClusterBackend, current_client

LOOK_NAME = "look for a GPU"
_ANSWER_S = 5.0
# what each worker answered; one that comes back to its address is on the same machine
_known: dict[str, str | None] = {}


def computing_device(device: str) -> Device:
    """What `device` comes to where the blocks are computed on: the workers of the current client, else this process.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu", "mixed"}
        "auto" takes GPUs if every worker has one, so that all compute alike; with "mixed" each worker takes what it
        has, and results are those of either within rounding.

    Raises
    ------
    ValueError
        If `device` is none of these.
    RuntimeError
        If "gpu" is asked for and a worker has none; the message says which one lacks what.
    ClusterError
        If the cluster gets no workers in time.
    """
    client = current_client()
    if client is None or device not in ("auto", "gpu", "mixed"):
        return resolve_device(device)
    answers = _answers(client)
    without = {name: reason for name, reason in answers.items() if reason is not None}
    if device == "gpu" and without:
        worker, reason = next(iter(without.items()))
        raise RuntimeError(
            f"device='gpu', but {len(without)} of {len(answers)} workers cannot use one: on {worker} {reason}; use "
            "device='mixed' to let each worker take what it has, or 'cpu'"
        )
    if device == "gpu" or (answers and not without):
        return "gpu"
    return "mixed" if device == "mixed" and len(without) < len(answers) else "cpu"


def check_device(device: str) -> None:
    """Raise RuntimeError if a GPU is asked for where there is none: before rows are read, not at the first block."""
    if device == "gpu":
        computing_device(device)


def driving_device(device: str) -> Device:
    """What `device` comes to for work of this process itself: beside a cluster it need not have a GPU."""
    return resolve_device("auto" if device != "cpu" and current_client() is not None else device)


def _answers(client: Any) -> dict[str, str | None]:
    """Why no GPU can be used, of each worker that answers in time: one that hangs holds nobody up."""
    from distributed import wait

    workers = set(ClusterBackend(client).slots())
    # keys are never used twice: one that was cancelled, since its worker still loaded modules, would be so again
    asked = {
        worker: client.submit(why_no_gpu, key=f"{LOOK_NAME}-{uuid.uuid4().hex}", workers=[worker], priority=100)
        for worker in sorted(workers - _known.keys())
    }
    try:
        if asked:
            wait(list(asked.values()), timeout=_ANSWER_S)
    except TimeoutError:
        pass
    _known.update({worker: task.result() for worker, task in asked.items() if task.status == "finished"})
    client.cancel([task for task in asked.values() if task.status != "finished"])
    return {worker: _known[worker] for worker in sorted(workers) if worker in _known}
