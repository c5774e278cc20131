"""Where tasks run: threads or processes of this machine, or the workers of a `distributed` cluster."""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import dask
from dask.local import SynchronousExecutor
from dask.utils import format_bytes

from dkl.errors import ClusterError
from dkl.passes.loading import kernel_cache, load, memory_of_worker, memory_when_loaded
from dkl.passes.lost_workers import POLL_S, KernelCompiled, Task, TaskLost
from dkl.passes.reading import LOADER
from dkl.passes.room import (
    ProcessMemory,
    give_up_kept,
    memory_by_scheduler,
    own_memory,
)
from dkl.passes.transport import Carried, Shared, shared, shared_file, unpacking
from dkl.passes.work import StopFlag
from dkl.process import KernelMissing, after_fork, asking_for_kernels, leave_quickly, usable_cores, worker_of_task

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as ClusterFuture

LOG = logging.getLogger("dkl")
# A cluster without workers for so long raises an error: dask.config "dkl.no-workers-timeout".
NO_WORKERS_TIMEOUT_S = 30.0
# Interval between questions to the scheduler for its workers, and how long it has for an answer.
LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
# How long workers have to load the modules of a pass and to report their memory: a first import may be slow.
MEASURE_S = 60.0
# Interval between questions whether Dask has paused workers, while a pass waits for a result.
PAUSED_EVERY_S = 2.0
# Smaller values are sent with every task, as storing them in a worker's memory would cost more.
SMALL_BYTES = 1 << 16
MOST_SENDS = 6
STOP_WITHIN_S = 1.5
_CLOSED = ("closing", "closed")
REMEDY = "start workers, or close the client to work on threads, and call again: a checkpoint resumes at its last round"


class Backend(ABC):
    """Runs functions and reports their end. Tasks are futures: hashable, with `add_done_callback`.

    What a backend does not define is that of threads and processes of this machine: values stay here, and no worker
    vanishes or is delayed.
    """

    is_cluster = False
    is_inline = False
    stop: StopFlag

    @abstractmethod
    def slots(self) -> list[str]:
        """One entry for each task that can run at once, the name of its process. The list must not be changed."""

    @abstractmethod
    def share(self, value: object) -> Any:
        """`value` in a form that many tasks can have as an argument."""

    def is_lost(self, handle: object) -> bool:
        """Whether a result of `share` can no longer be used."""
        return False

    def send_rows(self, value: object) -> Any:
        """The rows of a block in memory (or the graph that makes them) as the argument of one task."""
        return value

    @abstractmethod
    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        """The memory of each process that works, after it has loaded the modules of its tasks."""

    @abstractmethod
    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Task:
        """Start a task: preferably in the process `slot`, only there if `pinned`; before others if `urgent`."""

    def bring(self, task: Task, here: Callable[[], None]) -> None:
        """Call `here` when the result of a finished task is available without waiting."""
        here()

    @abstractmethod
    def result(self, task: Task) -> Any:
        """The result of a finished task; raises its error, or `TaskLost`: `KernelCompiled` if it is to run again."""

    def look_after(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that will never end. Called when nothing has happened for a while.

        Raises
        ------
        ClusterError
            If the pass cannot continue.
        """
        # threads do not vanish, and a process that dies breaks its pool, which ends its tasks
        return ()

    @abstractmethod
    def give_up_kept(self) -> None:
        """Let every process drop what it keeps for further passes, and return freed memory."""

    def endings(self) -> str:
        """The known causes of the ends of workers since the pass started, as a sentence; empty if none is known."""
        return ""

    def held_up(self, tasks: Collection[Task]) -> Sequence[Task]:
        """Those of the live `tasks` that wait for a process which starts none at present, while others do."""
        return ()

    def noticing_close(self) -> AbstractContextManager[None]:
        """A context in which errors become a `ClusterError` if the client of the cluster was closed meanwhile."""
        return nullcontext()

    def cancel(self, tasks: Iterable[Task]) -> None:
        """Give up tasks; those that run may end."""
        for task in tasks:
            task.cancel()

    @abstractmethod
    def close(self) -> None:
        """End the pass; no task is left."""


# The threads of the pass that ended last, with their number: a short pass takes no longer than starting threads.
# A pool that is dropped ends its threads.
IDLE: deque[tuple[int, ThreadPoolExecutor]] = deque(maxlen=1)
# a forked process has none of its parent's threads
after_fork(IDLE.clear)


def idle_threads(n_threads: int) -> ThreadPoolExecutor:
    """A pool of `n_threads` threads for the caller alone: the one in `IDLE` if it has as many."""
    with suppress(IndexError):
        n_idle, pool = IDLE.pop()
        if n_idle == n_threads:
            return pool
    return ThreadPoolExecutor(n_threads, "dkl-pass")


class ThreadBackend(Backend):
    """Threads of this process; rows and operands are not copied."""

    def __init__(self, n_threads: int, *, inline: bool = False) -> None:
        self.stop = StopFlag()
        self.is_inline = inline
        self._n_threads = n_threads
        self._pool: Executor = SynchronousExecutor() if inline else idle_threads(n_threads)
        self._running: set[Future] = set()
        # whether a task failed or was cancelled: the threads then end with the pass
        self._broken = False

    def slots(self) -> list[str]:
        return ["threads"] * self._n_threads

    def share(self, value: object) -> object:
        return value

    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        # modules that a pass loads take little memory here, and its threads share it
        return [own_memory()]

    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Future:
        # all threads are equal and take tasks in the order of submission, so that slots and priorities have no effect
        future = self._pool.submit(unpacking, function, *args)
        self._running.add(future)
        future.add_done_callback(self._note_end)
        return future

    def _note_end(self, future: Future) -> None:
        self._running.discard(future)
        if future.cancelled() or future.exception() is not None:
            self._broken = True

    def result(self, task: Future) -> Any:
        return task.result()

    def give_up_kept(self) -> None:
        give_up_kept()

    def close(self) -> None:
        """End the pass: running tasks stop at their next block, and are waited for only briefly."""
        self.stop.set()
        # tasks check the stop flag between two blocks; one in the middle of a long block ends later by itself
        unfinished = wait_for(set(self._running), timeout=STOP_WITHIN_S).not_done
        if isinstance(self._pool, ThreadPoolExecutor) and not unfinished and not self._broken:
            IDLE.append((self._n_threads, self._pool))
        else:
            self._pool.shutdown(wait=not unfinished, cancel_futures=True)
        LOADER.forget_pending()


def in_worker(function: Callable, *args: Any) -> Any:
    """`unpacking` in a process that runs nothing else and may therefore end by `leave_quickly`.

    A kernel that the driver is to compile is returned in place of a result: an error would be in the worker's log.
    """
    leave_quickly()
    if missing := next((value for value in args if isinstance(value, KernelMissing)), None):
        # the result of a task that this one depends on
        return missing
    try:
        with asking_for_kernels():
            return unpacking(function, *args)
    except KernelMissing as error:
        # another one, without the traceback, which holds a block
        return KernelMissing(*error.args)


def run_carried(call: Carried) -> Carried:
    """Runs in a process of a pool; functions are sent by cloudpickle."""
    function, args = call.load()
    return Carried(in_worker(function, *args))


class ProcessBackend(Backend):
    """Processes of this machine without a cluster: `dask.config.set(scheduler="processes")`."""

    def __init__(self, n_processes: int) -> None:
        self.stop = StopFlag()
        self._n_processes = n_processes
        self._folder = tempfile.TemporaryDirectory(prefix="dkl-pass-")
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        # not by fork, unless the user says so: the threads of BLAS and of Numba do not survive it
        context = multiprocessing.get_context(dask.config.get("multiprocessing.context", "spawn"))
        return ProcessPoolExecutor(self._n_processes, mp_context=context)

    def slots(self) -> list[str]:
        return [f"process {index}" for index in range(self._n_processes)]

    def share(self, value: object) -> Shared:
        return shared_file(value, self._folder.name)

    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        measured = self.submit("memory", memory_when_loaded, "a process of the pool", modules)
        return [self.result(measured)] * self._n_processes

    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> Future:
        call = Carried((function, args))
        try:
            return self._pool.submit(run_carried, call)
        except BrokenExecutor:
            # a process that died has broken the pool for good: all its tasks are lost, and later ones need another pool
            self._pool = self._new_pool()
            return self._pool.submit(run_carried, call)

    def result(self, task: Future) -> Any:
        try:
            return task.result().load()
        except BrokenExecutor as error:
            raise TaskLost("a process of the pool died") from error

    def give_up_kept(self) -> None:
        # the pool decides which process takes a task: as many are submitted as there are processes
        for task in [self.submit("give up", give_up_kept) for _ in range(self._n_processes)]:
            self.result(task)

    def close(self) -> None:
        # running tasks are not waited for: their results are not needed, and a block may take long
        self._pool.shutdown(wait=False, cancel_futures=True)
        # the pool has no public way to end processes that are working
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._folder.cleanup()


class ClusterBackend(Backend):
    """The workers of a `distributed` cluster, by its client."""

    is_cluster = True

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise ValueError("a pass needs a client made without asynchronous=True, or none (threads)")
        self.stop = StopFlag()
        self._client = client
        self._address = client.scheduler.address
        self._timeout = float(dask.config.get("dkl.no-workers-timeout", NO_WORKERS_TIMEOUT_S))
        # The number of threads of each worker by its address, from the scheduler's last answer.
        self._threads: dict[str, int] = {}
        self._slots: list[str] = []
        # Slots of workers that are not paused, or all slots if every worker is.
        self._open_slots: list[str] = []
        self._last_update = -LOOK_EVERY_S
        # Workers on which Dask starts no task because of their memory, and when this was last asked.
        self._paused: frozenset[str] = frozenset()
        self._last_paused_check = time.monotonic()
        # Keys of tasks that were found on such workers at the last check.
        self._found_waiting: frozenset[str] = frozenset()
        # When there was last a worker.
        self._had_workers = time.monotonic()
        self._start_time = time.time()
        self._numbers = itertools.count()
        self._token = uuid.uuid4().hex
        # For each task, by its key, the workers at the time of its submission, or the one that it is pinned to.
        self._submitted_to: dict[str, frozenset[str]] = {}
        # Every future that a caller may still hold, so that `close` can cancel those that an error left behind.
        self._futures: WeakSet[ClusterFuture] = WeakSet()
        # Results that are being transferred from a worker to this process.
        self._transfers: dict[ClusterFuture, Future] = {}

    def slots(self) -> list[str]:
        """One entry for each worker thread, in turns across the workers, so that consecutive tasks are spread.

        Waits for workers if there are none.
        """
        self._update_workers()
        if not self._threads:
            # the task does nothing, and its result is not used
            self._start_workers(int, until=lambda _: bool(self._threads))
        return self._open_slots

    def _start_workers(self, function: Callable, *args: Any, until: Callable[[ClusterFuture], bool]) -> None:
        """Submit a task and wait: an adaptive cluster starts workers while a task waits, and keeps them while it runs.

        Parameters
        ----------
        function, *args
            The task.
        until : callable
            Whether the wait ends, given the future of the task.

        Raises
        ------
        ClusterError
            If there have been no workers, or no scheduler, for too long.
        """
        with self._scheduler_errors():
            key = f"awaiting workers-{self._token}{next(self._numbers):08x}"
            task = self._registered(self._client.submit(function, *args, key=key, pure=False))
        while not until(task):
            self.look_after(())
            time.sleep(0.05)
        task.release()

    def share(self, value: object) -> Shared | ClusterFuture:
        """Small objects as arguments of tasks; large ones on a worker, from which those whose tasks need them copy.

        `scatter(broadcast=True)` is not used: it never returns if a worker dies meanwhile (the scheduler keeps trying
        to reach it, and blocks other replications). A value that is lost with its last worker is shared again.
        """
        as_bytes = shared(value)
        return as_bytes if as_bytes.nbytes <= SMALL_BYTES else self._scattered(as_bytes)

    def _scattered(self, value: object) -> ClusterFuture:
        """`value` on a worker; on another one if that worker dies during the transfer."""
        for _ in range(MOST_SENDS):
            try:
                with self._scheduler_errors():
                    return self._registered(self._client.scatter(value, hash=False))
            except OSError as error:
                # the worker that was to receive the value died: the next attempt uses one that exists then
                broken = error
                self.look_after(())
        raise ClusterError(f"{MOST_SENDS} times a worker was lost while operands were sent to it; {REMEDY}") from broken

    def is_lost(self, handle: object) -> bool:
        return getattr(handle, "status", "finished") in ("lost", "cancelled", "error")

    def _workers(self) -> Mapping[str, Any]:
        """The scheduler's record of each worker, by its address; empty if it does not answer in time."""
        known = self._answer(lambda: self._client.scheduler.identity(n_workers=-1))
        return {} if known is None else known["workers"]

    def _answer(self, question: Callable[[], Any], timeout: float = ANSWER_S) -> Any:
        """The answer of the scheduler; None if it does not answer in time, or the client is reconnecting to it."""
        loop: Any = self._client.loop
        with self._scheduler_errors():
            coming = asyncio.run_coroutine_threadsafe(question(), loop.asyncio_loop)
            deadline = time.monotonic() + timeout
            while not wait_for((coming,), POLL_S).done:
                if time.monotonic() > deadline or self._client.status == "connecting":
                    coming.cancel()
                    return None
            try:
                return coming.result()
            except OSError:
                if self._client.status in ("running", "connecting"):
                    return None
                raise

    def send_rows(self, value: object) -> ClusterFuture:
        if not dask.is_dask_collection(value):
            return self._scattered(value)
        with self._scheduler_errors():
            return self._registered(self._client.compute(value))

    def memories(self, modules: Collection[str]) -> list[ProcessMemory]:
        measuring = partial(self._client._run, memory_of_worker, modules, kernel_cache(), on_error="return")
        while True:
            # a stopped worker does not answer, and without its answer none is returned
            answers = self._answer(measuring, timeout=MEASURE_S) or {}
            known = self._workers()
            if known:
                break
            # an adaptive cluster has shrunk to nothing since its slots were counted
            self._start_workers(load, sorted(modules), until=lambda loading: loading.done())
        self._note_paused({address for address, facts in known.items() if facts["status"] == "paused"})
        return [
            answer if isinstance(answer := answers.get(address), ProcessMemory) else memory_by_scheduler(address, facts)
            for address, facts in known.items()
        ]

    def submit(
        self, name: str, function: Callable, *args: Any, slot: str = "", urgent: bool = False, pinned: bool = False
    ) -> ClusterFuture:
        # Dask's dashboard groups tasks by the part of the key before the hash; no key is used twice
        key = f"{name}-{self._token}{next(self._numbers):08x}"
        where: dict[str, Any] = {"workers": [slot], "allow_other_workers": True} if slot in self._threads else {}
        self._submitted_to[key] = frozenset(self._threads)
        if pinned:
            where, self._submitted_to[key] = {"workers": [slot]}, frozenset([slot])
        priority = 10 if urgent else 0
        with self._scheduler_errors():
            return self._registered(
                self._client.submit(in_worker, function, *args, key=key, pure=False, priority=priority, **where)
            )

    def _registered(self, future: ClusterFuture) -> ClusterFuture:
        self._futures.add(future)
        return future

    @contextmanager
    def noticing_close(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._client.status not in _CLOSED or isinstance(error, ClusterError):
                raise
            raise ClusterError(
                f"the client of {self._address} was closed, by the program or since the scheduler no longer answers, "
                f"while work ran on its workers; {REMEDY}"
            ) from error

    @contextmanager
    def _scheduler_errors(self) -> Iterator[None]:
        """Turns errors into a `ClusterError` if the scheduler does not answer, or the client was closed."""
        try:
            with self.noticing_close():
                yield
        except (RuntimeError, OSError) as error:
            # the client is connected to its scheduler: the error is one of the work, and keeps its type
            if self._client.status in ("running", *_CLOSED):
                raise
            raise ClusterError(f"the scheduler {self._address} no longer answers; {REMEDY}") from error

    def bring(self, task: ClusterFuture, here: Callable[[], None]) -> None:
        self._transfer_of(task).add_done_callback(lambda _: here())

    def _transfer_of(self, task: ClusterFuture) -> Future:
        """A transfer of the result; `task.result(timeout=...)` would drop what has arrived and ask for it again.

        Never cancelled: results that are asked for at about the same time share a request, and a client keeps a request
        that was cancelled before it was sent. All later requests of that client would then end as cancelled.
        """
        loop: Any = self._client.loop
        # one transfer for each task, however often it is asked for
        if task not in self._transfers:
            with self._scheduler_errors():
                self._transfers[task] = asyncio.run_coroutine_threadsafe(task._result(), loop.asyncio_loop)
        return self._transfers[task]

    def result(self, task: ClusterFuture) -> Any:
        """The result of a task; `dkl.passes.lost_workers` describes the handling of `TaskLost`."""
        from distributed import KilledWorker

        coming = self._transfer_of(task)
        try:
            while not wait_for((coming,), POLL_S).done:
                # the worker with the result died, and its new computation waits for workers that have left
                if task.status != "finished" and self.look_after((task,)):
                    raise TaskLost("the worker that held it died")
            result = coming.result()
        except (KilledWorker, CancelledError) as error:
            # Dask retried by itself and gave up (KilledWorker), or forgot the task with its worker
            raise TaskLost(str(error)) from error
        except OSError as error:
            # a task that ended with its own OSError (a store that cannot be read) is not lost: the error is real
            if task.status == "error":
                raise
            raise TaskLost(f"the connection broke: {error}") from error
        finally:
            self._transfers.pop(task, None)
        if isinstance(result, KernelMissing):
            result.compile()
            raise KernelCompiled(f"it needed the kernel {result.args[1]}")
        return result

    def look_after(self, tasks: Collection[ClusterFuture]) -> Sequence[ClusterFuture]:
        self._update_workers()
        without = time.monotonic() - self._had_workers
        if without > self._timeout and self._client.status == "connecting":
            raise ClusterError(f"the scheduler {self._address} no longer answers; {REMEDY}")
        if without > self._timeout:
            raise ClusterError(
                f"the cluster {self._address} has had no workers for {without:.0f} s (dask.config "
                f"'dkl.no-workers-timeout'); {REMEDY}"
            )
        # The scheduler suspends a task that prefers a worker while there are no workers at all, and does not resume it
        # when others come. If all workers from the time of its submission have left, it may be such a task.
        return [
            task for task in tasks if self._threads and not self._submitted_to[str(task.key)] & self._threads.keys()
        ]

    def _update_workers(self) -> None:
        """Ask the scheduler for its workers, unless that was done a moment ago; without an answer nothing changes."""
        now = time.monotonic()
        if now - self._last_update < LOOK_EVERY_S:
            return
        self._last_update = now
        if self._client.status == "connecting":
            return  # the client tries to reach its scheduler; a question would wait as long as it does
        answer = self._answer(lambda: self._client.scheduler.ncores())
        if answer is None:
            return
        threads = dict(answer)
        if threads:
            self._had_workers = now
        if threads and threads != self._threads:
            # the first thread of every worker, then the second of those that have one, and so on
            numbers = range(max(threads.values()))
            self._slots = [name for number in numbers for name in sorted(threads) if number < threads[name]]
            self._note_paused(self._paused & threads.keys())
        self._threads = threads

    def _note_paused(self, paused: Collection[str]) -> None:
        """Leave paused workers out of the slots while there are others."""
        self._paused = frozenset(paused)
        self._open_slots = [name for name in self._slots if name not in self._paused] or self._slots

    def give_up_kept(self, workers: list[str] | None = None, timeout: float = MEASURE_S) -> None:
        """As in `Backend`, on workers by their addresses, None for all; waits at most `timeout` seconds."""
        giving_up = partial(self._client._run, give_up_kept, workers=workers, on_error="ignore")
        self._answer(giving_up, timeout=timeout)

    def endings(self) -> str:
        restarts = self._answer(lambda: self._client.scheduler.events(topic="worker-restart-memory"))
        ended = [event for when, event in restarts or () if when >= self._start_time]
        if not ended:
            return ""
        said = ", ".join(sorted({f"{event['worker']} at {format_bytes(event['rss'])}" for event in ended}))
        return (
            f"Dask ended workers for their memory: {said}. Give each worker a larger limit (memory_limit of the "
            "cluster, --memory-limit of dask worker), or a pass less: dkl.plan says what it needs, and dask.config "
            "'dkl.pass-bytes' is the most that it may add"
        )

    def held_up(self, tasks: Collection[ClusterFuture]) -> Sequence[ClusterFuture]:
        """Tasks that were on a paused worker at this check and at the last one, while another worker is not paused.

        A worker that Dask has paused because of its memory answers, and ends its current task, but starts no other. It
        drops what it keeps for the next pass, and continues when it holds less. It is not restarted: another program
        may hold its memory, and a new process would come to hold as much.
        """
        now = time.monotonic()
        if now - self._last_paused_check < PAUSED_EVERY_S:
            return ()
        self._last_paused_check = now
        known = self._workers()
        paused = {address for address, worker in known.items() if worker["status"] == "paused"}
        if paused - self._paused:
            LOG.warning("%s", _paused_warning(known, paused))
            self.give_up_kept(sorted(paused), timeout=ANSWER_S)
        self._note_paused(paused)
        waiting: Mapping[str, Any] = {}
        if paused:
            waiting = self._answer(lambda: self._client.scheduler.processing(workers=sorted(paused))) or {}
        on_paused = {str(key) for keys in waiting.values() for key in keys if self._token in str(key)}
        # tasks pinned to paused workers wait at the scheduler
        pinned = {str(t.key) for t in tasks if not t.done() and self._submitted_to[str(t.key)] <= paused}
        ours = frozenset(on_paused | pinned)
        stays, self._found_waiting = ours & self._found_waiting, ours
        if not stays or len(paused) == len(known):
            return ()
        # a task that merges those of other workers is delayed with any of them
        return [task for task in tasks if str(task.key) in stays] or list(tasks)

    def cancel(self, tasks: Iterable[ClusterFuture]) -> None:
        live = list(tasks)
        # a transfer is no longer waited for, but not cancelled: see `_transfer_of`
        for task in self._transfers.keys() & set(live):
            del self._transfers[task]
        if live and self._client.status == "running":
            self._client.cancel(live, force=True)

    def close(self) -> None:
        """Cancel all futures: after an error a traceback may hold some for as long as somebody looks at it."""
        self.cancel(self._futures)


def _paused_warning(known: Mapping[str, Any], paused: Collection[str]) -> str:
    """The warning about workers that Dask has paused."""
    held = max(int(known[address]["metrics"].get("memory", 0)) for address in paused)
    limit = min(known[address]["memory_limit"] or 0 for address in paused)
    others = "the pass goes on on the others" if len(paused) < len(known) else "the pass waits for them"
    return (
        f"Dask has paused {len(paused)} of {len(known)} workers, which hold up to {format_bytes(held)} of a limit of "
        f"{format_bytes(limit)}: they start no task until they hold less, and {others}. Let other work there end, or "
        "start workers with a larger memory_limit and fit again (a checkpoint resumes): " + ", ".join(sorted(paused))
    )


def current_client() -> Client | None:
    """The `distributed` client that Dask would use here, or None. Never imports distributed by itself."""
    distributed = sys.modules.get("distributed")
    scheduler: Hashable = dask.config.get("scheduler", None)
    if distributed is None or scheduler not in (None, "dask.distributed", "distributed"):
        return None
    # inside a task of a cluster: waiting there for further tasks would block its worker
    if worker_of_task() is not None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def choose_backend(*, on_cluster: bool = True) -> Backend:
    """The current client's cluster, else by `dask.config` ("synchronous", "threads", "processes").

    If `on_cluster` is False, never a cluster.
    """
    client = current_client()
    if client is not None and on_cluster:
        return ClusterBackend(client)
    scheduler = str(dask.config.get("scheduler", None) or "threads").lower()
    n_workers = int(dask.config.get("num_workers", None) or usable_cores())
    if scheduler in ("sync", "synchronous", "single-threaded"):
        return ThreadBackend(1, inline=True)
    if scheduler in ("processes", "multiprocessing"):
        return ProcessBackend(n_workers)
    return ThreadBackend(n_workers)
