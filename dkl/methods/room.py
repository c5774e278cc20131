"""The memory of a fit, of its passes and its driver, computed before it starts; refuses a fit above the limit."""

from __future__ import annotations

import socket
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from dkl.kernels.maps import cached_tile
from dkl.kernels.threads import usable_cores
from dkl.methods.parameters import columns_a_frequency
from dkl.methods.validation import without_splits
from dkl.passes.kept_sums import source_of
from dkl.passes.loading import load
from dkl.passes.loop import PlannedRun
from dkl.passes.memory import (
    MemoryProjection,
    blocks_ahead,
    fit_limits,
    least_memory,
    narrowest_limits,
    refusal,
)
from dkl.passes.room import Room, modules_of, own_cores, own_room, room_of
from dkl.passes.session import backend_for, blocks_are_kept, least_ahead, origin_of, task_origin
from dkl.protocols.arrays import Rows
from dkl.protocols.driver import bytes_beside, with_passes
from dkl.protocols.records import BlockSum, Record, RowSample

# Bytes of a float64, and of an int64.
_NUMBER = 8
# Copies of the coefficients that exist while a linear model is fitted, at least: means, steps and gradients.
_COEFFICIENTS = 5
# Square matrices of the landmarks that exist while they are factored, at most.
_MATRICES = 4
# Candidates and coefficients of at most this many bytes are not refused here, whatever the memory, so that a plan can
# list the sums of each pass.
_DRAWN = 128 << 20
# Bytes of a structured frequency for each column: signs and a length.
_STRUCTURED = 3 + _NUMBER


class Drawing(Protocol):
    """A learner whose plan draws frequencies."""

    dtype: str
    memory_limit: int | str | None

    def _planned_family(self) -> Any: ...


def check_room(
    learner: Drawing, n_frequencies: int | None, n_columns: int, *, n_points: int = 0, n_mapped: int = 0
) -> None:
    """Raise an error if frequencies, or points of d columns, would exceed memory, before any is drawn.

    Parameters
    ----------
    learner : feature learner
        Its family, `dtype` and `memory_limit` are used.
    n_frequencies : int or None
        None for all features of a finite family, which are few.
    n_columns : int
        d.
    n_points : int
        Landmarks, or the starting points of a search.
    n_mapped : int
        Rows that are mapped by all frequencies; only as many as one tile has are in memory.

    Raises
    ------
    MemoryLimitError
        With the number of bytes.
    """
    family = learner._planned_family()
    entries = n_columns * np.dtype(learner.dtype).itemsize
    each = _STRUCTURED if getattr(family, "sampling", "") == "structured" else entries
    if hasattr(family, "share"):
        # each entry of sparse frequencies is stored with its column number
        each = 2 * round(entries * family.share)
    if isinstance(family, FiniteFamily):
        # a finite family stores the number of each feature
        each = _NUMBER
    drawn = 0 if n_frequencies is None else int(n_frequencies)
    # each frequency, its amplitude, and a coefficient for each of its features
    n_features = drawn * columns_a_frequency(family)
    frequencies = drawn * (each + _NUMBER) + n_features * _NUMBER
    n_mapped = min(n_mapped, cached_tile(n_features, learner.dtype)) if n_features else 0
    needed = frequencies + int(n_points) * n_columns * _NUMBER
    needed += n_mapped * n_features * np.dtype(learner.dtype).itemsize
    if needed <= _DRAWN:
        return
    room = own_room(learner.memory_limit)
    if needed > room.nbytes:
        items = [f"{drawn:,} frequencies"] * bool(drawn) + [f"{int(n_points):,} points"] * bool(n_points)
        mapped = f", and {n_mapped} mapped rows" * bool(n_mapped)
        raise MemoryLimitError(
            f"{type(learner).__name__} would hold {' and '.join(items)} of {n_columns:,} columns{mapped}: {needed:,} "
            f"bytes ({format_bytes(needed)}) in one process: {room.refusal(needed)}. Ask for fewer features, "
            "candidates or landmarks, or take sampling='structured'"
        )


def check_matrices(learner: object, n_landmarks: int) -> None:
    """Raise MemoryLimitError if the matrices of `n_landmarks` landmarks exceed memory, before one is computed."""
    needed, room = _MATRICES * _NUMBER * n_landmarks**2, own_room(None)
    if needed > room.nbytes:
        raise MemoryLimitError(
            f"{type(learner).__name__} would hold {_MATRICES} matrices of {n_landmarks:,} landmarks: {needed:,} bytes "
            f"({format_bytes(needed)}) in one process: {room.refusal(needed)}. Ask for fewer features"
        )


class PlannedMixin:
    """Bounds on the memory and passes of a fit, from a replay of the fit that a subclass provides."""

    memory_limit: int | str | None

    def replayed(self, dataset: Dataset) -> PlannedRun:
        """The passes that a fit to these rows would run, with the memory and the seconds of their drivers."""
        raise TypeError(f"{type(self).__name__} does not say what it takes")

    def planned_features(self, dataset: Dataset) -> int:
        """The most features that a fit to these rows can have; 0 where their number is not known before."""
        return 0

    def planned_passes(self, dataset: Dataset) -> list[tuple[Sequence[Record], int]]:
        """The records of each kind of pass over `dataset` and how often it runs at most, over all stages."""
        return [(kind.records, kind.calls) for kind in planned_kinds(self.replayed(dataset), {}) if kind.calls]


@dataclass(frozen=True, eq=False)
class PlannedKind:
    """One kind of pass of a fit.

    Parameters
    ----------
    records : sequence of Record
    calls : int
        The most often it runs; 0 for a pass that may run in place of others, whose memory must suffice all the same.
    held : mapping of str to int
        Bytes that the driver keeps at most during the pass, item by item.
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
        The rows that the learner's own passes read: with target means in place of codes.
    kinds : sequence of PlannedKind
        Each kind of pass.
    memories : sequence of MemoryProjection
        The memory of one process in a pass of each kind.
    room : Room
        The memory available to a process that runs passes.
    slots : Counter of str
        Tasks that run at once in each process.
    cores : int
        How many of the slots have a core of their own: processes of this machine share its cores.
    in_files : int
        The most bytes in Dask's `temporary_directory`.
    is_cluster : bool
        Whether passes run in other processes than the driver.
    driving : sequence of callable
        ``(few, flops_per_second) -> float``, as in `PlannedRun`.
    """

    rows: Dataset
    kinds: Sequence[PlannedKind]
    memories: Sequence[MemoryProjection]
    room: Room
    slots: Counter[str]
    cores: int
    in_files: int
    is_cluster: bool
    driving: Sequence[Callable[[Rows, float], float]]

    @property
    def added(self) -> int:
        """The most bytes that the fit adds to a process that runs passes."""
        if self.is_cluster:
            return max((memory.total for memory in self.memories), default=0)
        of_kinds = zip(self.kinds, self.memories, strict=True)
        return max((with_passes(kind.held, memory.total) for kind, memory in of_kinds), default=0)


def held_by_driver(held: Iterable[Mapping[str, int]]) -> int:
    """The most bytes that the driver keeps during any kind of pass, given those during each, item by item."""
    return max((sum(items.values()) for items in held), default=0)


def planned_work(learner: PlannedMixin, rows: Dataset, device: Device) -> PlannedWork:
    """The passes and the memory of fitting `learner` to `rows`, at most, in the running processes; reads no row.

    Parameters
    ----------
    learner : feature learner or kernel machine
    rows : Dataset
    device : {"cpu", "gpu", "mixed"}
        The device that computes on blocks.

    Raises
    ------
    MemoryLimitError
        If a pass or the driver needs more than the memory of a process; the error names the smallest sufficient limit,
        block size and number of features.
    """

    # further passes encode columns of codes; their tables stay in memory, or in files, for all other passes
    encoded_within = partial(planned_categories, without_splits(rows))

    def kinds_of(plan: PlannedRun, sums: Sequence[Record], tables: Mapping[str, int]) -> list[PlannedKind]:
        return [*(PlannedKind([record], 1, tables) for record in sums), *planned_kinds(plan, tables)]

    _check_coefficients(learner, rows)
    whole, sums, tables, in_files = encoded_within(sys.maxsize)
    plan = learner.replayed(whole)
    kinds = kinds_of(plan, sums, tables)
    backend = backend_for(whole.source, [kind.records for kind in kinds], device, learner.memory_limit)
    try:
        slots, reader = Counter(backend.slots()), whole.source.reader()
        # the memory of processes is measured once they have loaded the modules of the passes, as in the fit
        modules = {name for kind in kinds for name in modules_of(kind.records, reader)}
        if in_driver := not backend.is_cluster:
            load(modules)
        for gives_up in (False, True):
            if gives_up:
                # freed memory may still belong to a process, and what this plan has drawn does not belong to the fit
                del whole, plan, kinds, sums
                backend.give_up_kept()
                whole = encoded_within(sys.maxsize)[0]
                plan = learner.replayed(whole)
            processes, own = backend.memories(modules), own_room(learner.memory_limit)
            # the room in which passes keep blocks; up to a larger one of the plan they take as little as they can
            roomy = room_of(processes, learner.memory_limit, for_whole_fit=backend.is_cluster)
            if gives_up:
                # Above 70 % of its limit a worker writes results to its disk, which are small; above 80 % Dask pauses
                # it. Between the two, workers of a long session may repeat fits that they ran before, and those of 500
                # MB, which hold pandas and Arrow to compute the rows of Dask, fit at all.
                is_computed = origin_of(whole.source) == "graph"
                processes = [
                    each.up_to_pause() if is_computed or each.has_outgrown_fits else each for each in processes
                ]
            room = room_of(processes, learner.memory_limit, for_whole_fit=backend.is_cluster)
            _, sums, tables, in_files = encoded_within(room.nbytes)
            kinds = kinds_of(plan, sums, tables)
            error = _too_large(kinds, whole, room, own, in_driver=in_driver)
            if error is None:
                break
    finally:
        backend.close()
    if error is not None:
        most = _features_that_fit(learner, kinds, whole, room, own, in_driver=in_driver)
        raise error if most is None else MemoryLimitError(f"n_features={most:,} would do. {error}")
    n_threads = max(slots.values())
    ahead = blocks_ahead(device, is_inline=backend.is_inline, cores=own_cores(processes), n_threads=n_threads)
    origin = task_origin(whole.source, is_cluster=backend.is_cluster)
    waiting = least_ahead(origin, is_cluster=backend.is_cluster)

    def memory_of(kind: PlannedKind) -> MemoryProjection:
        source, held = source_of(whole.source, kind.records), bytes_beside(kind.held) if in_driver else 0
        with suppress(MemoryLimitError):
            return fit_limits(
                source,
                kind.records,
                n_threads=n_threads,
                room=roomy.beside(held),
                cached=blocks_are_kept(whole.source, origin),
                in_driver=in_driver,
                ahead=ahead,
                least_ahead=waiting,
                device=device,
            )
        return narrowest_limits(
            source, kind.records, room.beside(held), in_driver=in_driver, least_ahead=waiting, device=device
        )

    memories = [memory_of(kind) for kind in kinds]
    here = all(process.host == socket.gethostname() for process in processes)
    cores = min(slots.total(), usable_cores()) if here else slots.total()
    return PlannedWork(whole, kinds, memories, room, slots, cores, in_files, backend.is_cluster, plan.driving)


def _check_coefficients(learner: PlannedMixin, rows: Dataset) -> None:
    """Raise an error if the coefficients of a linear model on all features of a fit do not fit into memory."""
    n_features = learner.planned_features(rows)
    needed = _COEFFICIENTS * _NUMBER * n_features
    if needed <= _DRAWN:
        return
    room = own_room(learner.memory_limit)
    if needed > room.nbytes:
        raise MemoryLimitError(
            f"n_features={n_features:,} is more than memory holds: the coefficients of a linear model on these "
            f"features, their means and steps take {format_bytes(needed)} alone: {room.refusal(needed)}. Ask for fewer "
            "features"
        )


def check_plan(
    learner: PlannedMixin, dataset: Dataset, device: Device, publish: Subscriber, *, expects: bool = True
) -> None:
    """Raise an error for a fit that exceeds memory, before it reads a row; otherwise publish its memory and passes.

    For rows in this process's memory only the number of features is checked, since passes over them need little further
    memory. A machine that chooses its features runs a small part of the passes that it may run: with `expects=False` no
    number of them is published as expected.

    Raises
    ------
    MemoryLimitError
    """
    _check_coefficients(learner, dataset)
    source = dataset.source
    if not source.stored_nbytes and not dask.is_dask_collection(source.ticket(0)):
        return
    work = planned_work(learner, dataset, device)
    message = work.room.adding(work.added, held_by_driver(kind.held for kind in work.kinds) if work.is_cluster else 0)
    expected = sum(usual_calls(kind.records, kind.calls) for kind in work.kinds) if expects else 0
    publish(Event("note", "memory", detail={"message": message, "expected_passes": expected}))


def usual_calls(records: Sequence[Record], calls: int) -> int:
    """The usual number of runs of a pass, which runs `calls` times at most."""
    usual = [record.usual_calls for record in records if not isinstance(record, RowSample)]
    return min(calls, max((each for each in usual if each is not None), default=calls))


def planned_kinds(plan: PlannedRun, tables: Mapping[str, int]) -> list[PlannedKind]:
    """Each kind of pass of a fit, with the bytes that the driver keeps during it, including tables of codes.

    Each stage frees its memory before the next one begins. A stage without passes is one kind without records, which
    has the bytes of its driver.
    """
    plan.end_stage()
    return [
        PlannedKind(records, calls, {**tables, **held})
        for passes, held in plan.stages
        for records, calls in (passes or [((), 0)])
    ]


def _too_large(
    kinds: Sequence[PlannedKind], rows: Dataset, room: Room, own: Room, *, in_driver: bool
) -> MemoryLimitError | None:
    """The error for passes or a driver that exceed memory; None if they do not."""
    sources = [source_of(rows.source, kind.records) for kind in kinds]
    waiting = least_ahead(task_origin(rows.source, is_cluster=not in_driver), is_cluster=not in_driver)
    try:
        least = [
            least_memory(source, kind.records, room, in_driver=in_driver, least_ahead=waiting)
            for source, kind in zip(sources, kinds, strict=True)
        ]
    except MemoryLimitError as error:
        # one sum is too large for any process
        return error
    # the pass that needs most determines the limit that suffices for all
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


def _features_that_fit(
    learner: PlannedMixin, kinds: Sequence[PlannedKind], rows: Dataset, room: Room, own: Room, *, in_driver: bool
) -> int | None:
    """The largest number of features, within a seventh, for which the fit is within memory; None if there is none.

    Only numbers below that of the planned passes `kinds` are tried, since these passes are not within memory.
    """
    estimator: Any = learner
    # explanations of a model are planned, too, and have no number of features
    n_features = estimator.get_params(deep=False).get("n_features") if hasattr(estimator, "get_params") else None
    if n_features is None:
        return None
    records = [record for kind in kinds for record in kind.records if isinstance(record, BlockSum)]
    maps = [record.operands["feature_map"] for record in records if "feature_map" in record.operands]
    planned = max((int(each.n_features) for each in maps), default=1 << 14)
    most = int(n_features) if isinstance(n_features, Integral) else planned
    sizes = sorted({int(size) for size in np.geomspace(2, most, 64)} - {most})

    def fits(size: int) -> bool:
        smaller = clone(estimator).set_params(n_features=size)
        try:
            kinds = planned_kinds(smaller.replayed(rows), {})
        except (MemoryError, ValueError):
            return False
        return _too_large(kinds, rows, room, own, in_driver=in_driver) is None

    # a smaller size fits if a larger one does
    n_fitting = bisect_left(sizes, True, key=lambda size: not fits(size))
    return sizes[n_fitting - 1] if n_fitting else None
