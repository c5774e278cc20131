"""The command `warmup`: compile the kernels beforehand, for images and continuous integration."""

from __future__ import annotations

import os
import tempfile
import time

import typer

from dkl.cli.command import Result, Running, command, stderr


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "warmup", epilog="Example: [bold]NUMBA_CACHE_DIR=/opt/cache dkl warmup[/bold]")(warmup)


def warmup(running: Running) -> Result:
    """Compile all kernels now, so that no fit waits for it: in an image, or before the tests of a project.

    Small models of every kind are fitted, asked and explained. What is compiled lies in Numba's cache, beside the
    modules of dkl, or in NUMBA_CACHE_DIR where that is set; it holds for this version of dkl and for such processors.
    Most of the time goes into the small fits: of the processor's seconds, those of the compiler are told by themselves.
    """
    from dkl.bench.warming import warm_up

    def said(name: str, seconds: float) -> None:
        # Minutes pass in a fresh environment: each job is a sign of life.
        if not (running.json or running.quiet):
            stderr().print(f"{seconds:6.1f} s  {name}", highlight=False)

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        compiled = warm_up(folder, said)
    facts = {
        "compiled": len(compiled.names),
        "seconds": round(time.perf_counter() - started, 1),
        # What a machine is charged for, and the part of it that a later process is spared.
        "processor_seconds": round(time.process_time(), 1),
        "compiling_seconds": round(compiled.seconds, 1),
        "cache": os.environ.get("NUMBA_CACHE_DIR", "beside the modules of dkl"),
    }
    return Result(facts)
