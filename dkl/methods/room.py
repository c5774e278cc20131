"""The memory of a fit before any of it ran: what its passes and its driver take, and a refusal with what would do."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import dask
import numpy as np
from dask.utils import format_bytes
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.encodings.categories import planned_categories
from dkl.errors import MemoryLimitError
from dkl.events import Event, Subscriber
from dkl.features.families import FiniteFamily
from dkl.kernels.device import Device
from dkl.kernels.normal_equations import cached_tile
from dkl.kernels.threads import usable_cores
from dkl.methods.parameters import columns_a_frequency
from dkl.methods.validation import without_splits
from dkl.passes.kept_sums import source_of
from dkl.passes.memory import MemoryProjection, blocks_ahead, fit_limits, least_memory, refusal
from dkl.passes.room import Room, load, modules_of, own_cores, own_room, room_of, room_to_grow
from dkl.passes.session import backend_for
from dkl.protocols.arrays import Rows
from dkl.protocols.driver import bytes_beside, with_passes
from dkl.protocols.records import Record, RowSample

_NUMBER = 8
# Copies of the coefficients in memory while a linear model is fitted, at least: means, steps and gradients.
_COEFFICIENTS = 5
# Square matrices of the landmarks in memory while they are factored, at most.
_MATRICES = 4
# Candidates and coefficients of at most these bytes are never refused, so that a plan can list the sums of each pass.
_DRAWN = 128 << 20
# Bytes of a structured frequency for each column, which is kept as signs and a length.
_STRUCTURED = 3 + _NUMBER


class Drawing(Protocol):
    """A learner whose plan draws frequencies."""

    dtype: str
    memory_limit: int | str | None

    def _planned_family(self) -> Any: ...


def check_room(
    learner: Drawing, n_frequencies: int | None, n_columns: int, *, n_points: int = 0, n_mapped: int = 0
) -> None:
    """Raise an error for more frequencies, or points of d columns, than memory allows, before anything is drawn.

    Parameters
    ----------
    learner : feature learner
        With its family, its `dtype` and its `memory_limit`.
    n_frequencies : int or None
        None is all of a finite family, which are few.
    n_columns : int
        d.
    n_points : int
        Landmarks, or the starting points of a search.
    n_mapped : int
        Rows that are mapped by all frequencies, of which those mapped at once count.

    Raises
    ------
    MemoryLimitError
        With the sum.
    """
    family = learner._planned_family()
    room = own_room(learner.memory_limit)
    entries = n_columns * np.dtype(learner.dtype).itemsize
    each = _STRUCTURED if getattr(family, "sampling", "") == "structured" else entries
    if hasattr(family, "share"):
        # sparse frequencies: each of their entries is kept with the number of its column
        each = 2 * round(entries * family.share)
    if isinstance(family, FiniteFamily):
        # the number of one of its features
        each = _NUMBER
    drawn = 0 if n_frequencies is None else int(n_frequencies)
    # the bytes of a frequency, its amplitude, and a coefficient of each of its features
    frequencies = drawn * (each + _NUMBER + _NUMBER * columns_a_frequency(family))
    n_features = drawn * columns_a_frequency(family)
    n_mapped = min(n_mapped, cached_tile(n_features, learner.dtype)) if n_features else 0
    needed = frequencies + int(n_points) * n_columns * _NUMBER
    needed += n_mapped * n_features * np.dtype(learner.dtype).itemsize
    if needed > max(room.nbytes, _DRAWN):
        what = [f"{drawn:,} frequencies"] * bool(drawn) + [f"{int(n_points):,} points"] * bool(n_points)
        mapped = f", and {n_mapped} mapped rows" * bool(n_mapped)
        raise MemoryLimitError(
            f"{type(learner).__name__} would hold {' and '.join(what)} of {n_columns:,} columns{mapped}: {needed:,} "
            f"bytes ({format_bytes(needed)}) in one process: {room.refusal(needed)}. Ask for fewer features, "
            "candidates or landmarks, or take sampling='structured'"
        )


def check_matrices(learner: object, n_landmarks: int) -> None:
    """Raise MemoryLimitError for more landmarks than this machine holds the matrices of, before one is made."""
    needed, room = _MATRICES * _NUMBER * n_landmarks**2, own_room(None)
    if needed > room.nbytes:
        raise MemoryLimitError(
            f"{type(learner).__name__} would hold {_MATRICES} matrices of {n_landmarks:,} landmarks: {needed:,} bytes "
            f"({format_bytes(needed)}) in one process: {room.refusal(needed)}. Ask for fewer features"
        )


class PlannedLearner(Protocol):
    """A learner that can be planned.

    A learner whose driver holds much memory also has ``planned_memory(dataset) -> dict of int``: the bytes at most,
    item by item. One that fits in stages, of which none holds what another does, has
    ``planned_stages(dataset) -> list of (passes, dict of int)`` in place of both. One that makes features has
    ``planned_features(dataset) -> int``: their number at most. One whose driver takes long has
    ``planned_driving(dataset, few, flops_per_second) -> float``: its seconds, told from a search on a few rows of the
    same kind, and from what a thread of this machine does of a product of matrices.
    """

    memory_limit: int | str | None

    def planned_passes(self, dataset: Dataset) -> Sequence[tuple[Sequence[Record], int]]:
        """The records of each kind of pass and how often it runs at most."""
        ...


@dataclass(frozen=True, eq=False)
class PlannedKind:
    """One kind of pass of a fit.

    Parameters
    ----------
    records : sequence of Record
    calls : int
        How often it runs at most; 0 for a pass that may run in place of others, and has to fit into memory.
    held : mapping of str to int
        Bytes that the driver holds at most in addition to the pass, item by item.
    """

    records: Sequence[Record]
    calls: int
    held: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class PlannedWork:
    """The passes of a fit and their memory, as planned before any pass.

    Parameters
    ----------
    rows : Dataset
        As the learner's own passes see them: with numbers in place of codes.
    kinds : sequence of PlannedKind
        Each kind of pass.
    memories : sequence of MemoryProjection
        Of one process in a pass of each kind.
    room : Room
        Of a process that runs passes.
    slots : Counter of str
        Tasks that run at once in each process.
    cores : int
        Of them those that have a core of their own: processes of this machine share its cores.
    in_files : int
        Bytes at most in Dask's `temporary_directory`.
    is_cluster : bool
        Passes run in other processes than the driver.
    """

    rows: Dataset
    kinds: Sequence[PlannedKind]
    memories: Sequence[MemoryProjection]
    room: Room
    slots: Counter[str]
    cores: int
    in_files: int
    is_cluster: bool

    @property
    def added(self) -> int:
        """Bytes that the fit adds at most to a process that runs passes."""
        if self.is_cluster:
            return max((memory.total for memory in self.memories), default=0)
        of_kinds = zip(self.kinds, self.memories, strict=True)
        return max((with_passes(kind.held, memory.total) for kind, memory in of_kinds), default=0)


def planned_work(learner: PlannedLearner, rows: Dataset, device: Device) -> PlannedWork:
    """Passes and memory of fitting `learner` to `rows` at most, in the running processes; no row is read.

    Parameters
    ----------
    learner : feature learner or kernel machine
    rows : Dataset
    device : {"cpu", "gpu", "mixed"}
        Where blocks are computed on.

    Raises
    ------
    MemoryLimitError
        If a pass, or what the driver holds, cannot be kept within the memory of a process: with the smallest limit,
        block and number of features that would do.
    """

    def of_process(nbytes: int) -> tuple[Dataset, list[PlannedKind], int]:
        # Columns of codes become numbers by further passes; their tables stay in memory, or in files, for the others.
        whole, sums, tables, in_files = planned_categories(without_splits(rows), nbytes)
        kinds = [PlannedKind([record], 1, tables) for record in sums]
        return whole, [*kinds, *planned_kinds(learner, whole, tables)], in_files

    _check_coefficients(learner, rows)
    whole, kinds, in_files = of_process(sys.maxsize)
    has_codes = rows.schema.has_codes
    backend = backend_for(whole.source, [kind.records for kind in kinds], device, learner.memory_limit)
    try:
        slots, reader = Counter(backend.slots()), whole.source.reader()
        # Once processes have loaded what the passes need, they hold what they will hold in the fit.
        modules = {name for kind in kinds for name in modules_of(kind.records, reader)}
        if in_driver := not backend.is_cluster:
            load(modules)
        for gives_up in (False, True):
            if gives_up:
                # what processes have freed may still be theirs, and what this plan has drawn is none of the fit's
                del whole, kinds
                backend.give_up_kept()
            processes, own = backend.memories(modules), own_room(learner.memory_limit)
            room = room_of(processes, learner.memory_limit)
            room = room_to_grow(room) if backend.is_cluster else room
            if gives_up or has_codes:
                whole, kinds, in_files = of_process(room.nbytes)
            error = _too_large(kinds, whole, room, own, in_driver=in_driver)
            if error is None:
                break
    finally:
        backend.close()
    if error is not None:
        most = _features_that_fit(learner, whole, room, own, in_driver=in_driver)
        raise error if most is None else MemoryLimitError(f"n_features={most:,} would do. {error}")
    n_threads = max(slots.values())
    ahead = blocks_ahead(device, is_inline=backend.is_inline, cores=own_cores(processes), n_threads=n_threads)
    memories = [
        fit_limits(
            source_of(whole.source, kind.records),
            kind.records,
            n_threads=n_threads,
            room=room.beside(bytes_beside(kind.held)) if in_driver else room,
            cached=bool(whole.source.stored_nbytes),
            in_driver=in_driver,
            ahead=ahead,
            device=device,
        )
        for kind in kinds
    ]
    here = all(process.host == socket.gethostname() for process in processes)
    cores = min(slots.total(), usable_cores()) if here else slots.total()
    return PlannedWork(whole, kinds, memories, room, slots, cores, in_files, backend.is_cluster)


def _check_coefficients(learner: PlannedLearner, rows: Dataset) -> None:
    """Raise an error if the coefficients of a linear model on all features of a fit do not fit into memory."""
    asked = learner.planned_features(rows) if hasattr(learner, "planned_features") else 0
    needed, room = _COEFFICIENTS * _NUMBER * asked, own_room(learner.memory_limit)
    if needed > max(room.nbytes, _DRAWN):
        raise MemoryLimitError(
            f"n_features={asked:,} is more than memory holds: the coefficients of a linear model on so many features, "
            f"their means and steps take {format_bytes(needed)} alone: {room.refusal(needed)}. Ask for fewer features"
        )


def check_plan(learner: PlannedLearner, dataset: Dataset, device: Device, publish: Subscriber) -> None:
    """Raise an error for a fit that exceeds memory, before it reads a row; else publish its memory and passes.

    Of rows in the memory of this process only the number of features is checked: passes over them take little further
    memory.

    Raises
    ------
    MemoryLimitError
    """
    _check_coefficients(learner, dataset)
    source = dataset.source
    if not source.stored_nbytes and not dask.is_dask_collection(source.ticket(0)):
        return
    work = planned_work(learner, dataset, device)
    message = work.room.adding(work.added)
    expected = sum(usual_calls(kind.records, kind.calls) for kind in work.kinds)
    publish(Event("note", "memory", detail={"message": message, "expected_passes": expected}))


def usual_calls(records: Sequence[Record], calls: int) -> int:
    """How often a pass usually runs, which runs `calls` times at most."""
    usual = [record.usual_calls for record in records if not isinstance(record, RowSample)]
    return min(calls, max((each for each in usual if each is not None), default=calls))


def planned_kinds(learner: PlannedLearner, rows: Dataset, tables: Mapping[str, int]) -> list[PlannedKind]:
    """Each kind of pass of a fit, with the bytes that the driver holds during it, tables of codes included.

    A stage without passes is one kind without records, for the bytes that the driver holds in it.
    """
    if hasattr(learner, "planned_stages"):
        stages = learner.planned_stages(rows)
    else:
        held = dict(learner.planned_memory(rows)) if hasattr(learner, "planned_memory") else {}
        stages = [(learner.planned_passes(rows), held)]
    return [
        PlannedKind(records, calls, {**tables, **held})
        for passes, held in stages
        for records, calls in (passes or [((), 0)])
    ]


def planned_driving(learner: PlannedLearner, dataset: Dataset, few: Rows, flops_per_second: float) -> float:
    """Seconds of the driver outside the passes; 0 for learners that do not count them.

    Parameters
    ----------
    learner : feature learner or kernel machine
    dataset : Dataset
    few : ndarray or csr_array of shape (r, d), float32
        A few made rows of the same kind, on which a search is timed.
    flops_per_second : float
        Of a product of matrices, on one thread.
    """
    return learner.planned_driving(dataset, few, flops_per_second) if hasattr(learner, "planned_driving") else 0.0


def _too_large(
    kinds: Sequence[PlannedKind], rows: Dataset, room: Room, own: Room, *, in_driver: bool
) -> MemoryLimitError | None:
    """The error for passes or a driver that do not fit into memory; None if they do."""
    sources = [source_of(rows.source, kind.records) for kind in kinds]
    least = [
        least_memory(source, kind.records, room, in_driver=in_driver)
        for source, kind in zip(sources, kinds, strict=True)
    ]
    # The pass that needs most says which limit would do for all.
    totals = [memory.total for memory in least]
    if totals and not least[worst := int(np.argmax(totals))].fits:
        return refusal(sources[worst], kinds[worst].records, least[worst])
    in_all = [with_passes(kind.held, total if in_driver else 0) for kind, total in zip(kinds, totals, strict=True)]
    if not in_all or (needed := max(in_all)) <= own.nbytes:
        return None
    held = kinds[int(np.argmax(in_all))].held
    items = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in held.items())
    return MemoryLimitError(
        f"the process that drives the fit needs {format_bytes(needed)} ({items}, and its passes), and may take "
        f"{format_bytes(own.nbytes)}: {own.refusal(needed)}"
    )


def _features_that_fit(learner: PlannedLearner, rows: Dataset, room: Room, own: Room, *, in_driver: bool) -> int | None:
    """The largest number of features, within a seventh, with which the fit would be kept; None where none would do."""
    given: Any = learner
    # an explanation of a model is planned, too, and has no size to choose
    asked = given.get_params(deep=False).get("n_features") if hasattr(given, "get_params") else None
    if asked is None:
        return None
    most = int(asked) if isinstance(asked, Integral) else 1 << 14
    sizes = sorted({int(size) for size in np.geomspace(2, most, 64)} - {most})

    def fits(size: int) -> bool:
        smaller = clone(given).set_params(n_features=size)
        try:
            kinds = planned_kinds(smaller, rows, {})
        except (MemoryError, ValueError):
            return False
        return _too_large(kinds, rows, room, own, in_driver=in_driver) is None

    low, high = 0, len(sizes)
    # sizes[:low] fit, sizes[high:] do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low - 1] if low else None
