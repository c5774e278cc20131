"""The handling of a worker's death: what counts as lost, what is started again, and when a pass gives up.

A worker that dies (killed, out of memory, its machine lost) loses its tasks and the results that it held.

- `dkl.passes.backends` notices it: `ClusterBackend.result` and `ProcessBackend.result` raise `TaskLost` if a result is
  no longer available, and `ClusterBackend.look_after` returns tasks that wait for workers which have left. A hung
  worker is ended by `hung_workers_restarted`, below, and then counts as dead.
- Lost work is started again: `Dispatcher` (`dkl.passes.dispatch`) submits the job of a lost sum or sample again;
  `Chain` (`dkl.passes.chain`) restarts a fold from the last state that the driver holds.
- `counted_loss`, below, alone decides whether there is another attempt.

An error that a block function or a reader raises is not a loss: it would occur again, and ends the pass at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import dask

from dkl.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

MOST_LOSSES = 5
POLL_S = 0.2

Task: TypeAlias = Any
"""The return type of a backend's `submit`: a future of `concurrent.futures` or `distributed`; both are hashable."""


class TaskLost(RuntimeError):
    """A task ended without a result, but not by an error of its own: it can be submitted again."""

    # whether a worker or a result was lost, as may happen at most `MOST_LOSSES` times
    is_counted: ClassVar[bool] = True


class TaskHeldUp(TaskLost):
    """A task waits for a worker that starts none at present; it is submitted again elsewhere."""

    is_counted = False


class KernelCompiled(TaskLost):
    """A task needed a kernel that is now in the cache; it is submitted again."""

    is_counted = False


def counted_loss(label: str, losses: int, why: TaskLost, endings: Callable[[], str] = str) -> int:
    """The number of losses including this one; the caller starts the lost work again.

    Without a limit, a block that kills every worker that reads it (by its memory, or by a crash in native code) would
    kill one worker after the other, as long as the cluster replaces them.

    Parameters
    ----------
    label : str
        The name of the lost work in messages.
    losses : int
        Number of earlier losses.
    why : TaskLost
    endings : callable
        Returns what is known of how workers ended, as a sentence; empty if nothing is.

    Raises
    ------
    ClusterError
        If it was lost more than `MOST_LOSSES` times.
    """
    losses += 1
    if losses > MOST_LOSSES:
        known = endings() or (
            "Their logs say why: most often too little memory for a block (see dkl.plan) or a crash in native code"
        )
        raise ClusterError(f"{label} was lost {losses} times with the workers that ran it ({why}). {known}") from why
    return losses


def wait_done(
    task: Task, stranded: Callable[[], Sequence[Task]], held_up: Callable[[], Sequence[Task]] = lambda: ()
) -> None:
    """Wait until `task` has ended, successfully or not.

    Parameters
    ----------
    task : future
    stranded, held_up : callable
        Return those of the tasks it needs which will never end, or which wait for a worker that starts none at present;
        called at intervals.

    Raises
    ------
    TaskLost, TaskHeldUp
        As soon as there is one, since the task itself would then wait as long.
    """
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    while not ended.wait(POLL_S):
        if stranded():
            raise TaskLost("a worker that it needs has gone")
        if held_up():
            raise TaskHeldUp("a worker that it needs is paused")


LOG = logging.getLogger("dkl")
HUNG_WORKER_TIMEOUT_S = 30.0
LOOKS = 6


@contextmanager
def hung_workers_restarted(client: Client) -> Iterator[None]:
    """Inside the block, a worker that hangs is restarted by its nanny, or removed from the cluster if it has none.

    A worker hangs if the scheduler has heard nothing from it for `dkl.hung-worker-timeout` seconds (of dask.config; 30
    by default, 0 for never). Dask itself waits five minutes. A worker that is paused because of its memory still
    answers: it does not hang, and continues once it holds less (`ClusterBackend.held_up`).
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
                # a lost scheduler is reported by the pass, and a worker that has left needs no report
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
    """The last sign of life of each worker, and the number of checks that have found the same one.

    Checks are counted instead of seconds: a driver that was suspended itself has missed signs.
    """
    signs: dict[str, tuple[object, int]] = {}
    for address, worker in workers.items():
        last_sign, looks = before.get(address, (None, 0))
        sign = worker["last_seen"]
        signs[address] = (sign, looks + 1 if last_sign == sign else 1)
    return signs
