"""Where a command computes: threads of this process, worker processes of its own, or a cluster that is there."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from dkl.errors import ClusterError


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
    device: Annotated[Literal["auto", "cpu", "gpu"], typer.Option(help="Where the arithmetic is done.")] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Bytes that a process may hold, for example '2 GiB'; refused beforehand if it cannot be kept."
        ),
    ] = None


@contextmanager
def computing_on(compute: Compute) -> Iterator[None]:
    """The Dask client that the options ask for is the default one inside the block."""
    if compute.scheduler is not None and compute.workers is not None:
        raise typer.BadParameter("--scheduler names a cluster that is there, --workers starts one here: give one")
    if compute.scheduler is not None:
        with _client_of(compute.scheduler):
            yield
    elif compute.workers is not None:
        with local_processes(compute.workers):
            yield
    else:
        yield


@contextmanager
def local_processes(n_workers: int) -> Iterator[None]:
    """A cluster of worker processes on this machine, one thread each."""
    from distributed import Client, LocalCluster

    with warnings.catch_warnings():
        # without a dashboard it does not matter which port the scheduler's HTTP server takes
        warnings.filterwarnings("ignore", "Port .* is already in use", category=UserWarning)
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        )
    with cluster, Client(cluster):
        yield


@contextmanager
def _client_of(address: str) -> Iterator[None]:
    from distributed import Client

    try:
        client = Client(address, timeout="5s")
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with 'dask scheduler', or give --workers N"
        ) from error
    with client:
        yield
