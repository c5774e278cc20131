"""The process that we run in: the CPUs and the memory that it may use, what it compiles, and what a fork leaves."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import logging
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

if TYPE_CHECKING:
    from distributed import Worker

LOG = logging.getLogger("dkl")
_COMPILATION_TOLD, _AT_ONCE = threading.Event(), threading.Event()
# Numbers that one step of NumPy processes in the time of a call of some steps.
_CALL_NUMBERS = 2_000
# KiB that a part of a library must hold to be given back: less is not worth a call.
_LEAST_GIVEN_KIB = 64
# Bytes of the pieces in which a library is mapped: a fit then maps as much of it as in pieces of half the size.
_PIECE_BYTES = 1 << 17
# Code and constants of libraries that a fit maps after it has loaded two kernels, which map most of them: 8 to 11 MiB
# were seen. And all that it maps, where this was not measured: 21 MiB, where Linux keeps files in small pieces.
_FURTHER_BYTES, _USED_BYTES = 12 << 20, 28 << 20
# What a process that compiles all its kernels keeps of it: 27 MiB for searched waves and stochastic steps; with 24 MiB,
# a later pass of the game, which compiles most, lacked 0.1 MiB. And what it takes while it compiles one, beyond the 28
# MiB above: its file mappings rose from 10 to 77 MiB.
_COMPILED_BYTES, _COMPILER_BYTES = 30 << 20, 40 << 20
# Seconds from the first time that a worker asks for a kernel until it compiles that kernel itself: the slowest takes
# the driver ten.
_ASKED_S = 60.0
# What nannies of Dask set; numbers of three settings of the GNU C library; bytes that a thread keeps of what it frees.
_TRIM_OF_NANNIES, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX, _KEPT_BYTES = 1 << 16, -1, -3, -8, 8 << 20
# Of Linux: nanoseconds that a thread ran, and that it waited for a processor.
_WAITED = Path("/proc/thread-self/schedstat")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores() -> int:
    """CPUs that this process may use at once, whatever the host has: its affinity and its container's quota decide.

    Of a quota the part of a CPU counts as one, as in Dask: with 1.5 CPUs two threads get a little more done than one.
    """
    quota = cpu_quota()
    allowed = _allowed_cores()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _allowed_cores() -> int:
    """CPUs that the scheduler of the operating system lets this process run on, or all where it does not say."""
    # This function exists from Python 3.13 on, and heeds PYTHON_CPU_COUNT too.
    counted = getattr(os, "process_cpu_count", None)
    if counted is not None:
        return counted() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@cache
def cpu_quota() -> float | None:
    """CPUs that the control groups of this process grant it, the least of all levels; None without a quota."""
    # The files are read once: a quota that is changed later is not noticed, and no pass has to read files.
    return min(_quotas(_CGROUPS, _OWN_CGROUPS), default=None)


def free_memory() -> int:
    """Bytes that this process may still take: of its machine, and of the control groups (containers) around it."""
    in_groups = (_free_in(group) for group in _limiting_groups(_CGROUPS, _OWN_CGROUPS))
    return min([psutil.virtual_memory().available, *(free for free in in_groups if free is not None)])


def waited_seconds() -> float:
    """Seconds that this thread could have run and other work had the processors; 0 where the system does not say.

    What is timed by the clock without them is what it would take on a quiet machine: computing, and waiting for a disk.
    """
    try:
        return int(_WAITED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _quotas(mounted: Path, own: Path) -> Iterator[float]:
    """The CPUs that each control group around this process grants, where it has a limit."""
    return (quota for group in _groups("cpu", mounted, own) if (quota := _quota_of(group)) is not None)


@cache
def _limiting_groups(mounted: Path, own: Path) -> tuple[Path, ...]:
    """The control groups around this process that limit memory: which ones do is looked up once."""
    machine = psutil.virtual_memory().total
    found = ((group, _free_in(group)) for group in _groups("memory", mounted, own))
    # Version 1 writes a huge number where there is no limit.
    return tuple(group for group, free in found if free is not None and free < machine)


def _groups(controller: str, mounted: Path, own: Path) -> Iterator[Path]:
    """The folders of each control group around this process, of version 1 and 2 of the kernel's interface.

    In a container the path of the group may be the host's, of which only the root is there: all levels are tried.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    except OSError:
        return
    for controllers, path in groups:
        # A line is "number:controllers:path"; version 2 has a single line without controllers.
        if controllers and controller not in controllers.split(","):
            continue
        for root in [mounted] if not controllers else [mounted / controllers, mounted / controller]:
            group = root / path.lstrip("/")
            # The limit of a group holds for all groups inside it, so each level up to the root may be the narrowest.
            yield from (level for level in (group, *group.parents) if level.is_relative_to(root))


def _quota_of(group: Path) -> float | None:
    """The CPUs that one control group is granted: its quota of microseconds over the period; None without a limit."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        # Version 2 writes "max" for no limit, version 1 writes -1.
        return float(quota) / float(period) if quota != "max" and float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _free_in(group: Path) -> int | None:
    """Bytes left of the memory that one control group may take; None without a limit.

    Pages of files count as taken, although the kernel gives them up as soon as memory is asked for: those that were not
    used of late are added again.
    """
    limit, used = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    names = limit if (group / limit[0]).exists() else used
    try:
        most, taken = ((group / name).read_text().strip() for name in names)
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        pages = {name: int(nbytes) for name, nbytes in lines}
        given_up = pages.get("total_inactive_file", pages.get("inactive_file", 0))
        return None if most == "max" else max(0, int(most) - int(taken) + given_up)
    except (OSError, ValueError):
        return None


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Logs a message when the first kernel is compiled inside, once a process, since compilation delays a first fit."""
    if _COMPILATION_TOLD.is_set():
        yield
        return
    from numba.core import event

    class Telling(event.Listener):
        def on_start(self, event: Any) -> None:
            ours = event.data["dispatcher"].py_func.__module__.partition(".")[0] == "dkl"
            if ours and not _COMPILATION_TOLD.is_set():
                _COMPILATION_TOLD.set()
                # a log record, which is seen by default, and no warning: nothing could be done otherwise
                LOG.warning(
                    "dkl compiles kernels that no fit on this machine has used before: some seconds, and they are kept "
                    "for later ones. `dkl warmup` compiles all beforehand."
                )

        def on_end(self, event: Any) -> None:
            """Does nothing: the listener's interface requires it, and durations of compilations are not used."""

    with event.install_listener("numba:compile", Telling()):
        yield


@cache
def tell_of_no_folder() -> None:
    """Log that compiled kernels cannot be kept, in place of the message that they are."""
    _COMPILATION_TOLD.set()
    LOG.warning(
        "dkl finds no folder to keep compiled kernels in (its own and the home of the user are read-only): each "
        "process compiles its own, which takes some seconds. Set NUMBA_CACHE_DIR to a folder that can be written."
    )


@dataclass
class Compiled:
    """The kernels that were compiled while a block ran.

    Parameters
    ----------
    names : list of str
        ``module.function`` of each compilation that dkl asked for, one a signature.
    seconds : float
        Processor time of the compiler. The fits around it, and what they load from the cache, take longer than that.
    """

    names: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def compiling() -> Iterator[Compiled]:
    """Note what Numba compiles inside the block, in any thread of this process, and does not load from its cache."""
    from numba.core import event

    compiled, began = Compiled(), [0.0]

    class Noting(event.Listener):
        depth = 0

        def on_start(self, event: Any) -> None:
            if not self.depth:
                # A compilation begins and ends in one thread, of which Numba lets one compile at a time.
                began[0] = time.thread_time()
                function = event.data["dispatcher"].py_func
                compiled.names.append(f"{function.__module__}.{function.__name__}")
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if not self.depth:
                compiled.seconds += time.thread_time() - began[0]

    with event.install_listener("numba:compile", Noting()):
        yield compiled


class TwoForms:
    """A kernel in two forms that give the same bits: NumPy for the first numbers of a process, compiled for all others.

    To compile takes as long as NumPy takes for millions of numbers, which a fit of few rows never comes to. What an
    earlier process has left in Numba's cache serves from the first number on.

    Parameters
    ----------
    plain, compiled : callable
        Write into their arguments.
    numbers : int
        Numbers that NumPy processes in about the time that the compiler takes for the kernel.
    """

    def __init__(self, plain: Callable[..., None], compiled: Callable[..., None], numbers: int) -> None:
        self.plain, self.compiled = plain, compiled
        self._left, self._has_looked = numbers, False

    def __call__(self, numbers: int, *arguments: Any) -> None:
        """Process `numbers` numbers, in compiled form if it is cached or worth compiling by now, else in plain form."""
        # Threads may count wrongly together: since either form gives the same bits, nothing but time depends on it.
        if not self._has_looked:
            self._has_looked = True
            self._left = 0 if _is_cached(self.compiled) else self._left
        if numbers > self._left or _AT_ONCE.is_set():
            self.compiled(*arguments)
            return
        # Calls count too: many small ones are what a server makes, and NumPy is slow to start.
        self._left -= numbers + _CALL_NUMBERS
        self.plain(*arguments)


def _is_cached(kernel: Any) -> bool:
    """Whether an earlier process has compiled a kernel of Numba, as it is now, and left it on disk."""
    # Numba tells of it by no public name before a call; without these names a process only compiles later
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    look = getattr(file, "_load_index", None)
    return look is not None and bool(look())


@contextmanager
def compiling_at_once() -> Iterator[None]:
    """Kernels of two forms are compiled inside, however few numbers they are for: caches are filled this way."""
    _AT_ONCE.set()
    try:
        yield
    finally:
        _AT_ONCE.clear()


@cache
def leave_quickly() -> None:
    """Have this process end without a last search for unreachable objects, which takes it two seconds.

    The interpreter would free the hundreds of thousands of objects of the compiled kernels and of the libraries one by
    one, a moment before the operating system takes their memory as a whole. A worker that needs more than four seconds
    to end is killed by its nanny. For processes that are ours alone: workers, and the commands of the shell.
    """
    atexit.register(gc.freeze)


# Caches of this process for the next pass (each with `nbytes` and `clear`), which it drops if their memory is needed.
KEPT: list[Any] = []


def drop_kept() -> None:
    """Drop what this process keeps for the next pass."""
    for kept in KEPT:
        kept.clear()


class _Given:
    """Bytes of files in the memory of this process, which are mostly code of libraries.

    Attributes
    ----------
    mapped : int
        What was there when libraries were last given back.
    expected : int
        What passes are expected to map beyond that.
    used : int
        The most that passes map of what was given back.
    """

    mapped, expected, used = 0, 0, _USED_BYTES


def worker_of_task() -> Worker | None:
    """The Dask worker whose task calls this; None outside of tasks. Never imports distributed by itself."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        worker: Worker = distributed.get_worker()
    except ValueError:
        return None
    return worker


def this_process() -> psutil.Process:
    """This process as psutil knows it; a new object would read when the process began, which takes psutil longest."""
    return _process(os.getpid())


@cache
def _process(number: int) -> psutil.Process:
    """The process of this number, which the child of a fork has another one of."""
    return psutil.Process(number)


def _mapped_bytes() -> int:
    """Bytes of files that this process has mapped and touched, such as libraries; 0 where the system reports none."""
    return getattr(this_process().memory_info(), "shared", 0)


def mapped_later() -> int:
    """Bytes of libraries that this process has given back, and is expected to map again."""
    return max(0, _Given.expected - max(0, _mapped_bytes() - _Given.mapped))


def expect_mapping() -> None:
    """Note that what was mapped since libraries were given back, and a little more, is what passes use of them.

    How much that is depends on the machine: Linux maps the whole piece of a file in which a byte is used, and keeps
    files in pieces of 4 KiB to 2 MiB, by the way in which they were read. The same fit has mapped 21 to 73 MiB.
    """
    _Given.used = _Given.expected = max(0, _mapped_bytes() - _Given.mapped) + _FURTHER_BYTES


class _Compiler:
    """What this process expects of the compiler.

    Attributes
    ----------
    held, expected : int
        Bytes that it held when it decided whether it will compile, and that it then expected to take.
    is_elsewhere : bool
        Whether the driver of its passes compiles for it.
    asked : dict of tuple to float
        When it first asked for each kernel.
    """

    held = expected = 0
    is_elsewhere = False
    asked: ClassVar[dict[tuple[str, str, Any], float]] = {}


class KernelMissing(Exception):
    """A task of a pass needs a kernel that no cache has: the driver compiles it, and the task runs again.

    Parameters
    ----------
    module, name : str
        Of the kernel.
    types : tuple of Numba types
        Of its arguments.
    """

    def __init__(self, module: str, name: str, types: tuple[Any, ...]) -> None:
        super().__init__(module, name, types)

    def compile(self) -> None:
        """Compile the kernel in this process, which leaves it in the cache."""
        module, name, types = self.args
        getattr(importlib.import_module(module), name).compile(types)


# Whether this thread runs a task of a pass, which may run again.
_IN_PASS: ContextVar[bool] = ContextVar("in a pass", default=False)


@contextmanager
def asking_for_kernels() -> Iterator[None]:
    """Inside the block a kernel that this process would compile raises `KernelMissing`, if the driver compiles it."""
    before = _IN_PASS.set(True)
    try:
        yield
    finally:
        _IN_PASS.reset(before)


def compile_elsewhere(is_elsewhere: bool) -> None:
    """Note whether the driver of the coming passes, which shares the cache, compiles kernels for this process.

    A worker that compiles takes 40 MiB meanwhile, and keeps 30.
    """
    _Compiler.is_elsewhere = is_elsewhere


def _ask_for(kernel: Any, types: tuple[Any, ...]) -> None:
    """Raise `KernelMissing` in a task of a pass, unless the driver has left the kernel out for `_ASKED_S` seconds."""
    module, name = kernel.py_func.__module__, kernel.py_func.__qualname__
    if not (_Compiler.is_elsewhere and _IN_PASS.get() and getattr(sys.modules[module], name, None) is kernel):
        return
    if time.monotonic() - _Compiler.asked.setdefault((module, name, types), time.monotonic()) <= _ASKED_S:
        raise KernelMissing(module, name, types)


def will_compile(kernel: Any) -> bool:
    """Whether this process will compile kernels in its passes, as on a new machine.

    Parameters
    ----------
    kernel : Numba dispatcher
        The only kernel that it has called so far. Others are compiled if this one was, or if the folder of its cache
        has no others, as after a fit that was refused.
    """
    stats = kernel.stats
    files = Path(stats.cache_path).glob("*.nbi") if stats.cache_path else ()
    return len(stats.cache_hits) < len(kernel.signatures) or len({file.name.partition("-")[0] for file in files}) < 2


def expect_compiling(held: int) -> None:
    """Note that this process will compile kernels; `held` are its bytes, with those of `mapped_later`."""
    _Compiler.held, _Compiler.expected = held, _COMPILED_BYTES


def compiler_bytes(held: int) -> int:
    """Bytes of the compiler, in place of what this process keeps for the next pass; 0 if it compiles no kernel.

    Also 0 once the process has grown by what its kernels were expected to keep: `held` is that of `compiled_later`.
    """
    return _COMPILER_BYTES if compiled_later(held) else 0


@cache
def compile_alone() -> None:
    """Have this process ask the driver for a kernel of dkl that it would compile in a pass, if they share a cache.

    Else it drops what it keeps before it compiles a kernel, and gives back the compiler after it: so the compiler, of
    which some 60 MiB are mapped, is never in memory beside what is kept for the next pass.
    """
    from numba.core import event

    class Alone(event.Listener):
        depth = 0

        def on_start(self, compilation: Any) -> None:
            is_own = self._is_own(compilation)
            # Numba calls on_end after an error, too
            self.depth += 1
            if is_own:
                _ask_for(compilation.data["dispatcher"], compilation.data["args"])
                drop_kept()

        def on_end(self, compilation: Any) -> None:
            self.depth -= 1
            if self._is_own(compilation):
                give_back_memory()

        def _is_own(self, compilation: Any) -> bool:
            # a kernel compiles those that it calls inside its own compilation; one thread compiles at a time
            module = compilation.data["dispatcher"].py_func.__module__
            return not self.depth and module.partition(".")[0] == "dkl"

    event.register("numba:compile", Alone())


def compiled_later(held: int) -> int:
    """Bytes by which this process is still expected to grow through kernels that it compiles; 0 if it reads them.

    Parameters
    ----------
    held : int
        Bytes that it holds, with those of `mapped_later`: what these have grown by is not expected any more.
    """
    return 0 if _Compiler.is_elsewhere else max(0, _Compiler.expected - max(0, held - _Compiler.held))


@cache
def map_in_pieces(library: str) -> None:
    """Hand back a library that was loaded, and have Linux map it anew in pieces of 128 KiB; elsewhere do nothing.

    Linux keeps a file in memory in pieces of 4 KiB to 2 MiB, by the way in which it was read. Since version 6.18 it
    maps the whole piece in which a byte is used, but nothing beyond the mapping of that byte. Mappings with different
    flags are different ones: here every second piece is left out where the memory of the process is dumped, where
    files are left out anyway. The same fit maps 21 MiB of all libraries so, instead of up to 73.

    Parameters
    ----------
    library : str
        Part of its path.
    """
    if sys.platform != "linux":
        return
    # other file systems may have no such files
    with suppress(AttributeError, OSError):
        mappings = [mapping for mapping in this_process().memory_maps(grouped=False) if library in mapping.path]
        for start, end in _unchanged_files(mappings):
            _advise(start, end, mmap.MADV_DONTNEED)
            # from one multiple of a piece to the next
            for piece in range(start - start % _PIECE_BYTES + _PIECE_BYTES, end, 2 * _PIECE_BYTES):
                _advise(piece, min(piece + _PIECE_BYTES, end), mmap.MADV_DONTDUMP)


def _advise(start: int, end: int, advice: int) -> None:
    """Call `madvise` for the memory from one address to another; a refusal changes nothing."""
    _c_library().madvise(start, end - start, advice)


@cache
def _c_library() -> ctypes.CDLL:
    """The C library, opened once; AttributeError where it has no `madvise`."""
    library = ctypes.CDLL(None)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def return_freed_memory() -> None:
    """Hand back what the C library keeps of freed memory, in each thread's heap; on Linux."""
    # other C libraries than GNU's may have no such call
    with suppress(AttributeError, OSError):
        _c_library().malloc_trim(0)


def give_back_memory() -> None:
    """Hand back what this process has freed, and what it has mapped of libraries and does not use; on Linux.

    The C library keeps freed memory below what is still in use. Of a library that is loaded, Linux maps far more code
    and constants than are used: 120 MB of LLVM, Arrow and others, which Dask counts against the limit of a worker. What
    is used is mapped anew, a few MB, from the memory in which the machine keeps files anyway.
    """
    if sys.platform != "linux":
        return
    mapped, later = _mapped_bytes(), mapped_later()
    return_freed_memory()
    # other file systems may have no such files
    with suppress(AttributeError, OSError):
        for start, end in _unchanged_files(this_process().memory_maps(grouped=False)):
            _advise(start, end, mmap.MADV_DONTNEED)
    _Given.mapped = _mapped_bytes()
    _Given.expected = min(_Given.used, later + max(0, mapped - _Given.mapped))


@cache
def keep_freed_memory() -> None:
    """Let this process use again at once what its arrays have freed, where Dask has told it to hand all of it back.

    Nannies start workers with `MALLOC_TRIM_THRESHOLD_`, of 64 KiB: the C library then returns each array to the system
    as soon as it is freed, and the system clears the pages of the next one, which takes a pass as long as its
    arithmetic. Here up to 8 MiB of each thread stay. Other values, which a user has chosen, are left alone.
    """
    chosen = os.environ.get("MALLOC_TRIM_THRESHOLD_"), os.environ.get("MALLOC_MMAP_THRESHOLD_")
    if sys.platform != "linux" or chosen != (str(_TRIM_OF_NANNIES), None):
        return
    # other C libraries than GNU's may have no such call
    with suppress(AttributeError, OSError):
        library = _c_library()
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 4)


def _unchanged_files(mappings: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """First address and end of each mapping that is code or constants of a file, byte for byte: nothing wrote to it."""
    for mapping in mappings:
        is_read = mapping.perms in ("r-xp", "r--p") and mapping.path.startswith("/")
        # A breakpoint of a debugger, or an address that the loader filled in before it forbade writing, makes a page
        # the process's own, "anonymous" as long as it is not swapped out.
        is_changed = mapping.anonymous or mapping.swap
        if is_read and not is_changed and mapping.rss >= 1024 * _LEAST_GIVEN_KIB:
            start, end = (int(address, 16) for address in mapping.addr.split("-"))
            yield start, end


def after_fork(reset: Callable[[], None]) -> Callable[[], None]:
    """Have `reset` called in the child of every fork, which has none of its parent's threads; returns `reset`.

    Locks that those threads held would never be opened there, and pools of them never do what is submitted.
    """
    # Windows has no forks.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
    return reset


@after_fork
def _forget_dask_of_parent() -> None:
    """Dask's pools of threads are the parent's, and so are its connections to clusters: the child makes its own."""
    threaded: Any = sys.modules.get("dask.threaded")
    if threaded is not None:
        # A thread of the parent may have held the lock at the fork; it would stay locked here forever.
        threaded.pools_lock = threading.Lock()
        threaded.pools.clear()
        threaded.default_pool = None
        threaded.main_thread = threading.current_thread()
    distributed: Any = sys.modules.get("distributed.client")
    if distributed is not None and distributed._get_global_client() is not None:
        # The event loop of a client runs in a thread of the parent. Without the client, collections are computed by
        # threads here.
        distributed._global_clients.clear()
        distributed._current_client.set(None)
        config = sys.modules["dask"].config
        if config.get("scheduler", None) in ("dask.distributed", "distributed"):
            config.set(scheduler=None)


def _share_one_heap() -> None:
    """Let threads of a Dask worker that start from now on share one heap, unless a user has chosen a number of heaps.

    Otherwise the C library makes a heap for each thread, up to eight a core, and what is free at the end of any heap
    but the first stays with the process, whatever it asks for. Dask, Arrow and passes read in threads of their own: a
    worker of one thread held up to 22 MiB more after a fit.
    """
    chosen = os.environ.get("MALLOC_TRIM_THRESHOLD_"), os.environ.get("MALLOC_ARENA_MAX")
    if sys.platform != "linux" or chosen != (str(_TRIM_OF_NANNIES), None):
        return
    # other C libraries than GNU's may have no such call
    with suppress(AttributeError, OSError):
        _c_library().mallopt(_M_ARENA_MAX, 1)


# A worker imports this module before the thread that runs its first task of dkl starts, which would make a heap.
_share_one_heap()
