"""The command `warmup`: compile the kernels beforehand, for images and continuous integration."""

from __future__ import annotations

import os
import tempfile
import time

from dkl.cli.command import Result, Running, stderr


def warmup(running: Running) -> Result:
    """Compile all kernels, so that later fits need not: in a container image, or before the tests of a project.

    Small models of every kind are fitted, used and explained. The compiled code is in Numba's cache, beside the modules
    of dkl, or in NUMBA_CACHE_DIR if that is set; it is valid for this version of dkl and this type of processor. Most
    of the time is spent on the small fits: the result has the processor seconds of the compiler separately.
    """
    from dkl.bench.warming import warm_up

    def report(name: str, seconds: float) -> None:
        # without a cache this takes minutes, so that each job prints a line
        if not (running.json or running.quiet):
            stderr().print(f"{seconds:6.1f} s  {name}", highlight=False)

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        compiled = warm_up(folder, report)
    facts = {
        "compiled": len(compiled.names),
        "seconds": round(time.perf_counter() - started, 1),
        # all processor seconds, and the part that later processes save
        "processor_seconds": round(time.process_time(), 1),
        "compiling_seconds": round(compiled.seconds, 1),
        "cache": os.environ.get("NUMBA_CACHE_DIR", "beside the modules of dkl"),
    }
    return Result(facts)
