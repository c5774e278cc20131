"""The room of a pass: the memory that a process holds already, the limits that it must stay below, and the rest."""

from __future__ import annotations

import gc
import math
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from types import FunctionType
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.utils import format_bytes, parse_bytes

from dkl.data.store.foreign import SHARED
from dkl.kernels.device import STAGING
from dkl.passes.reading import LOADER, PIECES
from dkl.process import (
    KEPT,
    compiled_later,
    compiler_bytes,
    drop_kept,
    free_memory,
    give_back_memory,
    mapped_later,
    this_process,
    usable_cores,
    worker_of_task,
)
from dkl.protocols.records import Record, RowSample
from dkl.protocols.source import BlockReader

if TYPE_CHECKING:
    from distributed import Worker

# Sufficient limits are rounded up to a multiple of _STEP_BYTES, and exceed the need by _SPARE_BYTES, as processes of
# the same program differ by some megabytes.
_STEP_BYTES, _SPARE_BYTES = 10_000_000, 4 << 20
# Bytes by which a worker may grow in fits after it has loaded dkl: 2 to 35 MiB were measured for one fit. And what a
# further fit may still add in a worker that has grown so far already.
_GROWN_BYTES, _LEAST_GROWN_BYTES = 40 << 20, 12 << 20
KEPT.extend((LOADER, PIECES, SHARED, STAGING))


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of one process, which it measures before a pass.

    Parameters
    ----------
    name : str
        Name in messages: ``"this process"``, ``"the worker tcp://..."``.
    held : int
        Bytes that it holds, without the blocks and mapped rows that it keeps for the next pass, which it drops if
        needed, and with `later`.
    host : str
        Name of the machine, which it shares with other processes.
    free : int
        Free bytes of its machine, for all of its processes.
    limit : int or None
        The `memory_limit` of a Dask worker; None for a worker without one, and for other processes.
    spills_at, pauses_at, ends_at : int or None
        Bytes of the process from which on Dask moves results to disk, starts no further task, kills it.
    most_results : int or None
        Bytes of results from which on Dask moves some to disk, independently of the other memory of the process.
    cores : int
        Cores that it may use, with the other processes of its machine.
    later : int
        Bytes of `held` that the process does not hold yet: libraries that passes load, and code that they compile.
    compiler : int
        Bytes that the process takes while it compiles a kernel, and drops what it keeps for the next pass; 0 if it
        compiles none.
    grown : int
        Bytes of `held` by which it has grown in passes since it loaded the modules of dkl.
    n_fits : int
        Fits that it may run at once, which share what is left below the limits of a Dask worker evenly: its threads if
        this fit is one task of them.
    """

    name: str
    held: int
    host: str
    free: int
    limit: int | None = None
    spills_at: int | None = None
    pauses_at: int | None = None
    ends_at: int | None = None
    most_results: int | None = None
    cores: int = 1
    later: int = 0
    compiler: int = 0
    grown: int = 0
    n_fits: int = 1

    @property
    def has_outgrown_fits(self) -> bool:
        """Whether earlier fits, and libraries that tasks loaded, have made it larger than a single fit would."""
        return self.grown > _GROWN_BYTES

    def up_to_pause(self) -> ProcessMemory:
        """The same process, which may spill: small results on a worker's disk cost a fit less than its refusal."""
        return replace(self, spills_at=None) if self.pauses_at else self


@dataclass(frozen=True)
class Line:
    """A number of bytes that a process must stay below.

    Parameters
    ----------
    at : int
        Bytes of the whole process.
    why : str
        What happens at that size, as the second half of a sentence: ``"Dask pauses it at 381 MiB (...)"``.
    share : float
        The line as a fraction of the process's limit: 0.8 for the pausing of a Dask worker.
    remedy : str
        What to set, with a pair of braces for the bytes: the end of a sentence that begins with "Enough is".
    of_pass : bool
        Whether the line limits what a pass adds, independently of what the process holds.
    moves : bool
        Whether the line moves up when the process comes to hold more outside its passes.
    n_fits : int
        As of `ProcessMemory`: the line is at the part of the room that one of these fits may take.
    """

    at: int
    why: str
    share: float
    remedy: str
    of_pass: bool = False
    moves: bool = False
    n_fits: int = 1


@dataclass(frozen=True)
class Room:
    """Bytes that a pass may add to each process: those of the process that may add least.

    Parameters
    ----------
    process : ProcessMemory
        The memory of this process before the pass.
    lines : tuple of Line
    n_processes : int
        Number of processes that run the pass.
    """

    process: ProcessMemory
    lines: tuple[Line, ...]
    n_processes: int = 1

    @property
    def held(self) -> int:
        """Bytes that the process holds before the pass."""
        return self.process.held

    @property
    def lowest(self) -> Line:
        """The line that is reached first."""
        return min(self.lines, key=lambda line: line.at)

    @property
    def nbytes(self) -> int:
        """Bytes that a pass may add."""
        return max(0, self.lowest.at - self.held)

    def beside(self, nbytes: int) -> Room:
        """The room of passes while the process holds `nbytes` more."""
        lines = tuple(replace(line, at=line.at + nbytes) if line.moves else line for line in self.lines)
        return replace(self, process=replace(self.process, held=self.held + nbytes), lines=lines)

    def refusal(self, needed: int) -> str:
        """Why `needed` further bytes are too many, and the smallest sufficient limits."""
        would_do: dict[str, float] = {}
        for line in self.lines:
            if line.at < self.held + needed:
                most = (line.n_fits * (needed + _SPARE_BYTES) + (0 if line.of_pass else self.held)) / line.share
                would_do[line.remedy] = max(would_do.get(line.remedy, 0.0), most)
        remedies = " and ".join(remedy.format(_rounded_up(nbytes)) for remedy, nbytes in would_do.items())
        return (
            f"{self.process.name} holds {format_bytes(self.held)} already, and {self.lowest.why}. Enough is {remedies}"
        )

    def adding(self, nbytes: int, in_driver: int = 0) -> str:
        """A sentence on what a process holds, its nearest line, and what a fit adds at most.

        Parameters
        ----------
        nbytes : int
            What it adds to each process that runs passes.
        in_driver : int
            What it adds to the process that called it, if that runs no passes.
        """
        each = " to each" if self.n_processes > 1 else ""
        own = f", and {format_bytes(in_driver)} to your own process, which runs no passes" if in_driver else ""
        return f"{self}; the fit adds at most {format_bytes(nbytes)}{each}{own}"

    def __str__(self) -> str:
        process = self.process
        who = process.name if self.n_processes == 1 else f"each of {self.n_processes} processes"
        held = f"holds {format_bytes(process.held - process.later)} already"
        # in two numbers, since a monitor of the process shows the first until the fit
        later = (
            f", takes {format_bytes(process.later)} more for libraries and compiled kernels" if process.later else ""
        )
        return f"{who} {held}{later}, and {self.lowest.why}"


def _rounded_up(nbytes: float) -> str:
    """A round number of bytes, not less than `nbytes`, in a form that Dask reads."""
    return f"{math.ceil(nbytes / _STEP_BYTES) * (_STEP_BYTES // 1_000_000)} MB"


def room_of(memories: Sequence[ProcessMemory], memory_limit: int | str | None, *, for_whole_fit: bool = False) -> Room:
    """The room of a pass in processes whose memory was measured.

    A Dask worker must stay below the bytes at which Dask would move its results to disk, pause or kill it; any process
    below the free memory of its machine, which its processes share evenly, and below the user's `memory_limit`.

    Parameters
    ----------
    memories : sequence of ProcessMemory
        At least one.
    memory_limit : int, str or None
        Bytes that a process may use in total (`"2 GiB"`).
    for_whole_fit : bool
        Whether the processes hold already what they still grow by during a fit, so that no later pass of it fails.

    Raises
    ------
    ValueError
        If the limit is not a number of bytes.
    """
    given, sharing = checked_limit(memory_limit), Counter(memory.host for memory in memories)
    rooms = [Room(memory, tuple(_lines(memory, given, sharing[memory.host])), len(memories)) for memory in memories]
    if for_whole_fit:
        rooms = list(map(_grown, rooms))
    return min(rooms, key=lambda room: room.nbytes - room.process.compiler)


def _grown(room: Room) -> Room:
    """The room of a process once it has grown in a fit: by less if it has grown in earlier ones."""
    grows = max(_LEAST_GROWN_BYTES, _GROWN_BYTES - room.process.grown)
    grown = room.beside(grows)
    return replace(grown, process=replace(grown.process, later=grown.process.later + grows))


def _lines(memory: ProcessMemory, memory_limit: int | None, n_sharing: int) -> Iterable[Line]:
    """The limits in bytes that a process must stay below, with their reasons and remedies."""
    if memory_limit is not None:
        why = f"may use {format_bytes(memory_limit)} in all (memory_limit)"
        yield Line(memory_limit, why, 1.0, "memory_limit='{}'")
    if (most := dask.config.get("dkl.pass-bytes", None)) is not None:
        most = parse_bytes(most)
        why = f"a pass may add {format_bytes(most)} (dask.config 'dkl.pass-bytes')"
        yield Line(memory.held + most, why, 1.0, "'{}' there", of_pass=True, moves=True)
    if memory.limit is None:
        what = "its machine has" if n_sharing == 1 else f"its machine, which {n_sharing} processes share, has"
        why = f"{what} {format_bytes(memory.free)} left"
        at = memory.held + memory.free // n_sharing
        yield Line(at, why, 1.0, "a machine with {} left for each such process", of_pass=True)
        return
    of_limit = f"of its limit of {format_bytes(memory.limit)}"
    remedy = "a limit of '{}' for each worker (memory_limit of the cluster, --memory-limit of dask worker)"
    acts = [
        (memory.spills_at, "Dask moves its results to disk at"),
        (memory.pauses_at, "Dask pauses it at"),
        (memory.ends_at, "it is killed at"),
    ]
    lines = [(at, f"{act} {format_bytes(at)} ({at / memory.limit:.0%} {of_limit})") for at, act in acts if at]
    n_fits = memory.n_fits
    sharing = f", up to which it may run {n_fits} fits at once" if n_fits > 1 else ""
    # the limit itself, if all reactions of Dask are turned off
    for at, why in lines or [(memory.limit, f"has a limit of {format_bytes(memory.limit)}")]:
        own = memory.held + (at - memory.held) // n_fits
        yield Line(own, f"{why}{sharing}", at / memory.limit, remedy, n_fits=n_fits)
    if memory.most_results is not None:
        at, share = memory.held + memory.most_results, memory.most_results / memory.limit
        why = f"Dask moves results to disk from {format_bytes(memory.most_results)} on ({share:.0%} {of_limit})"
        yield Line(at, why, share, remedy, of_pass=True, moves=True)


def checked_limit(memory_limit: int | str | None) -> int | None:
    """A user's limit in bytes.

    Raises
    ------
    ValueError
        If it is not a number of bytes.
    """
    if memory_limit is None:
        return None
    try:
        # `parse_bytes` would read a text without digits as one of that unit, and an empty text as a single byte
        plain = memory_limit if isinstance(memory_limit, str) and memory_limit.strip() else int(memory_limit)
        limit = parse_bytes(plain)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"memory_limit is {memory_limit!r}; expected a number of bytes, or one with its unit: '2 GiB'"
        ) from error
    if limit < 1:
        raise ValueError(f"memory_limit is {memory_limit!r}; expected at least one byte")
    return limit


class _Loaded:
    """Bytes that this process held once it had loaded the modules of dkl; 0 before."""

    held = 0


def note_loading(held: int) -> None:
    """Count what this process came to hold beyond `held` bytes as loaded, and not as growth in passes."""
    _Loaded.held += own_memory().held - held


def own_memory(name: str = "this process") -> ProcessMemory:
    """The memory of this process, with what a pass will map again of libraries, and what its compiler will keep.

    In a task of a Dask worker, such as a fit of a search, its limits are those of the worker.
    """
    held = held_bytes()
    compiled = compiled_later(held)
    expected = max(0, held + compiled)
    memory = ProcessMemory(
        name,
        expected,
        socket.gethostname(),
        free_memory(),
        cores=usable_cores(),
        later=compiled + mapped_later(),
        compiler=compiler_bytes(held),
        grown=max(0, expected - (_Loaded.held or expected)),
    )
    worker = worker_of_task()
    if worker is None:
        return memory
    return replace(limited(memory, worker), name=f"the worker {worker.address}", n_fits=worker.state.nthreads)


def held_bytes() -> int:
    """Bytes of this process in memory and those of libraries that it will map again.

    Blocks and mapped rows that it keeps for the next pass are left out, since they are dropped if memory is needed.
    Memory that Arrow has freed, and keeps for its next table, is given back before.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        # its allocator releases nothing for a thread that has never allocated
        arrow.allocate_buffer(1)
        arrow.default_memory_pool().release_unused()
    return this_process().memory_info().rss - sum(kept.nbytes for kept in KEPT) + mapped_later()


def own_cores(memories: Sequence[ProcessMemory]) -> int:
    """Cores that a process has for itself if the processes of its machine share them; the smallest number of all."""
    sharing = Counter(memory.host for memory in memories)
    return min(max(1, memory.cores // sharing[memory.host]) for memory in memories)


def own_room(memory_limit: int | str | None) -> Room:
    """The room for work in this process itself, with or without a cluster."""
    return room_of([own_memory()], memory_limit)


class _Named(pickle.Pickler):
    """Notes the modules of all functions and classes in what it pickles; the values of arrays are left out."""

    def __init__(self) -> None:
        super().__init__(BytesIO(), protocol=5)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return np.empty, ((0,), value.dtype)
        if isinstance(value, type | FunctionType):
            self.modules.add(value.__module__)
        return NotImplemented


def modules_of(records: Sequence[Record], reader: BlockReader) -> list[str]:
    """The modules that a process loads for the tasks of a pass."""
    functions: list[Any] = [type(reader)]
    for record in records:
        if isinstance(record, RowSample):
            continue
        functions += [getattr(record, name, None) for name in ("function", "step", "prepare", "arrange")]
        functions += [type(value) for value in record.operands.values()]
    # a reader of a view has the steps by which it chooses and changes rows
    steps = _Named()
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        steps.dump(reader)
    # the first is that of the tasks themselves, `dkl.passes.loop.sum_blocks` and others
    names = {"dkl.passes.loop", *steps.modules, *(getattr(each, "__module__", None) for each in functions)}
    return sorted(name for name in names if name and name.startswith("dkl."))


def give_up_kept(dask_worker: Worker | None = None) -> None:
    """Drop what this process keeps for the next pass, and return freed memory to the machine.

    A Dask worker also drops the samples that it took of its calls for Dask's dashboard: it keeps those of an hour, and
    held 7 MiB more of them after each fit of a minute.
    """
    drop_kept()
    if dask_worker is not None:
        dask_worker.profile_history.clear()
        dask_worker.profile_keys_history.clear()
    gc.collect()
    give_back_memory()


def limited(memory: ProcessMemory, dask_worker: Worker) -> ProcessMemory:
    """The memory of a Dask worker with its limits; runs on the worker."""
    manager = dask_worker.memory_manager
    # the setting of its nanny, another process with the same configuration
    ends = dask.config.get("distributed.worker.memory.terminate") if dask_worker.nanny is not None else False
    fractions = manager.memory_spill_fraction, manager.memory_pause_fraction, ends, manager.memory_target_fraction
    return replace(memory, n_fits=1, **_limits_of(manager.memory_limit, *fractions))


def memory_by_scheduler(address: str, known: Any) -> ProcessMemory:
    """The memory of a worker that does not answer, from what the scheduler knows.

    Parameters
    ----------
    address : str
    known : mapping
        Its entry of `Client.scheduler_info()["workers"]`.
    """
    config = dask.config.get("distributed.worker.memory")
    ends = config["terminate"] if known.get("nanny") else False
    return ProcessMemory(
        name=f"the worker {address}",
        held=int(known["metrics"].get("memory", 0)),
        host=known["host"],
        free=free_memory(),
        **_limits_of(known["memory_limit"], config["spill"], config["pause"], ends, config["target"]),
    )


def _limits_of(limit: int | None, *fractions: float | None) -> dict[str, Any]:
    """A worker's limit, and the bytes at which Dask spills, pauses, ends it and moves results; None for never."""
    at = [int(limit * fraction) if limit and fraction else None for fraction in fractions]
    return dict(zip(("spills_at", "pauses_at", "ends_at", "most_results"), at, strict=True), limit=limit or None)
