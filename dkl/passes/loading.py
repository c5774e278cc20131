"""Loads the libraries of a fit, before a process is measured, so that loading never takes much more than stays.

Workers load this module before anything of dkl, so that it imports little itself.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

from dkl.process import (
    compile_alone,
    compile_elsewhere,
    expect_compiling,
    expect_mapping,
    give_back_memory,
    map_in_pieces,
    will_compile,
)

if TYPE_CHECKING:
    from distributed import Worker

    from dkl.passes.room import ProcessMemory


def load(modules: Collection[str]) -> None:
    """Load modules and two compiled kernels, the first of which takes 45 MB, so that they count as held.

    A process that finds no such kernel in the cache, as on a new machine, will compile others in its passes.
    """
    # the compiler, whose library is the largest
    importlib.import_module("llvmlite.binding")
    map_in_pieces("llvmlite")

    import numpy as np

    from dkl.kernels.sincos import cos_sin_rows
    from dkl.passes.room import held_bytes, note_loading, own_memory

    is_first = not cos_sin_rows.signatures
    if all(name in sys.modules for name in modules) and not is_first:
        return
    # Freed memory is returned before and after each step, so that what the system maps of the compiler, of other
    # libraries and of the kernel is never there all at once: 366 MiB without this, 288 with it.
    give_back_memory()
    before = 0 if is_first else own_memory().held
    for name in modules:
        if name not in sys.modules:
            # a user's module may not exist under its name; its task then raises the error if it needs it
            importlib.import_module(name)
            give_back_memory()
    if is_first:
        compile_alone()
        cos_sin_rows(*np.zeros((3, 1)))
        # of what starts the compiler, the second kernel maps again what passes use, too
        give_back_memory()
        cos_sin_rows(*np.zeros((3, 1), np.float32))
        if will_compile(cos_sin_rows):
            expect_compiling(held_bytes())
        else:
            expect_mapping()
    note_loading(before)


def memory_when_loaded(name: str, modules: Collection[str], of_driver: tuple[str, str] | None = None) -> ProcessMemory:
    """The memory of this process after it has loaded modules.

    `of_driver` is the `kernel_cache` of the driver of its passes, which compiles the kernels of processes that have the
    same; None for a process that compiles its own.
    """
    from dkl.passes.room import own_memory

    load(modules)
    compile_elsewhere(of_driver == kernel_cache())
    return own_memory(name)


@cache
def kernel_cache() -> tuple[str, str]:
    """The machine of this process, and the folder of its compiled kernels there: processes that have both share it.

    The kernels of `load` are in the folder then.
    """
    load(())

    from dkl.kernels.sincos import cos_sin_rows

    return socket.gethostname(), cos_sin_rows.stats.cache_path or ""


async def memory_of_worker(modules: Collection[str], of_driver: tuple[str, str], dask_worker: Worker) -> ProcessMemory:
    """`memory_when_loaded` of a Dask worker, within its limit; runs on the worker."""
    # in a thread, so that the worker's event loop is not blocked
    own = await asyncio.to_thread(memory_when_loaded, f"the worker {dask_worker.address}", modules, of_driver)

    from dkl.passes.room import limited

    return limited(own, dask_worker)
