"""Where a command computes: threads of this process, worker processes of its own, or a cluster that is there."""

from __future__ import annotations

import asyncio
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Annotated, Literal

import typer

from dkl.errors import ClusterError

# So long a worker may take to end after a Ctrl-C, before it is killed: a person waits.
END_WITHIN_S = 0.5


def checked_bytes(text: str | None) -> str | None:
    """An option that takes a number of bytes, as it was given."""
    from dask.utils import parse_bytes

    try:
        if text is not None:
            # The text itself goes on to the learner, which understands the same units; only its sense is checked here.
            parse_bytes(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of bytes; expected such as 500000000 or '2 GiB'") from None
    return text


@dataclass(frozen=True)
class Compute:
    """Options of commands that read all rows."""

    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a Dask scheduler that is running, for example tcp://10.0.0.5:8786."),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Start this many worker processes here; without it, threads of this process."),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "gpu", "mixed"],
        typer.Option(help="Where the arithmetic is done; auto: GPUs if all workers have one; mixed: what each has."),
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            callback=checked_bytes,
            help="Bytes that a process may hold, for example '2 GiB'; refused beforehand if it cannot be kept.",
        ),
    ] = None


@contextmanager
def computing_on(compute: Compute) -> Iterator[None]:
    """The Dask client that the options ask for is the default one inside the block.

    Raises
    ------
    ClusterError
        No scheduler answers at the address, or it asks for certificates; the message says how to start or reach one.
    """
    if compute.scheduler is not None and compute.workers is not None:
        raise typer.BadParameter("--scheduler names a cluster that is there, --workers starts one here: give one")
    if compute.scheduler is None:
        with nullcontext() if compute.workers is None else local_processes(compute.workers):
            yield
        return
    from distributed import Client

    address = compute.scheduler
    try:
        # Dask would wait half a minute for an address where nobody answers.
        client = Client(address, timeout="5s")
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with 'dask scheduler', or give --workers N"
        ) from error
    except TypeError as error:
        # The address is an encrypted one (tls://), and this process has no certificates.
        raise ClusterError(
            f"{address!r} asks for certificates ({error}); set DASK_CONFIG to the folder of the cluster's dask.yaml"
        ) from error
    with client:
        yield


@contextmanager
def local_processes(n_workers: int) -> Iterator[None]:
    """A cluster of worker processes on this machine, one thread each."""
    from distributed import Client, LocalCluster

    with _interrupts_held_back(), warnings.catch_warnings():
        # Without a dashboard it does not matter which port the scheduler's HTTP server takes.
        warnings.filterwarnings("ignore", "Port .* is already in use", category=UserWarning)
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )

    async def end_workers() -> None:
        """End all workers at once, without waiting for the blocks that they are computing on."""
        await asyncio.gather(*(nanny.close(timeout=END_WITHIN_S) for nanny in cluster.workers.values()))

    with cluster, Client(cluster) as client:
        # What fails in a task is raised by the command, and the last words of a worker that ends would only disturb.
        # The method of a logger travels by the logger's name, so it acts on the one of the worker's process.
        client.run(logging.getLogger("distributed").setLevel, logging.CRITICAL)
        try:
            yield
        except KeyboardInterrupt:
            cluster.sync(end_workers)
            raise


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A Ctrl-C waits until the end of the block, and processes that start inside never see one.

    A terminal sends it to all processes of a command: workers would each print a traceback, and this process ends them
    in any case. Threads and processes inherit the mask of signals, workers that are started again later too.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python starts this process with the first worker, and would let the signal through while it does.
    resource_tracker.ensure_running()
    # Windows has no masks of signals: there the workers see the Ctrl-C too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
