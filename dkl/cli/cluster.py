"""Where a command computes: in threads of this process, in worker processes that it starts, or on a running cluster."""

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

# Seconds that workers have to end after a Ctrl-C before they are killed.
END_WITHIN_S = 0.5


def checked_bytes(text: str | None) -> str | None:
    """The value of an option for a number of bytes, unchanged, after a check."""
    from dask.utils import parse_bytes

    try:
        if text is not None:
            # the text is passed on to the learner, which parses it in the same way
            parse_bytes(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of bytes; expected such as 500000000 or '2 GiB'") from None
    return text


@dataclass(frozen=True)
class Compute:
    """Options of commands that read all rows."""

    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a running Dask scheduler, for example tcp://10.0.0.5:8786."),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Start this many worker processes here; without it, threads of this process."),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "gpu", "mixed"],
        typer.Option(
            help="Device of the computation; auto: GPUs if all workers have one; mixed: a GPU where a worker has one."
        ),
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            callback=checked_bytes,
            help="Memory limit of a process, for example '2 GiB'; an error before the work if it is too small.",
        ),
    ] = None


@contextmanager
def computing_on(compute: Compute) -> Iterator[None]:
    """Make the Dask client that the options describe the default one inside the block.

    Raises
    ------
    ClusterError
        If no scheduler answers at the address, or it requires certificates.
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
        # Dask's own timeout is half a minute
        client = Client(address, timeout="5s")
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with 'dask scheduler', or give --workers N"
        ) from error
    except TypeError as error:
        # the address is encrypted (tls://), and this process has no certificates
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
        # the port of the scheduler's HTTP server is irrelevant without a dashboard
        warnings.filterwarnings("ignore", "Port .* is already in use", category=UserWarning)
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )

    async def end_workers() -> None:
        """End all workers without waiting for the blocks that they are computing."""
        await asyncio.gather(*(nanny.close(timeout=END_WITHIN_S) for nanny in cluster.workers.values()))

    with cluster, Client(cluster) as client:
        # the command raises errors of tasks itself, and messages of ending workers are irrelevant; a logger is pickled
        # by its name, so that this sets the level in the process of the worker
        client.run(logging.getLogger("distributed").setLevel, logging.CRITICAL)
        try:
            yield
        except KeyboardInterrupt:
            cluster.sync(end_workers)
            raise


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delay a Ctrl-C until the end of the block, and hide it from processes that are started inside.

    A terminal sends it to all processes of a command; workers would print tracebacks, and this process ends them
    anyway. Threads and processes, including workers that are restarted later, inherit the signal mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python would start the resource tracker with the first worker, and unblock the signal while it does
    resource_tracker.ensure_running()
    # Windows has no signal masks, so that its workers receive the Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
