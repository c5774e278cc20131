"""Provenance of a fit: the rows and bytes that it read, its peak memory, and the versions of packages."""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Concatenate, ParamSpec, TypeVar

import dask
import psutil
from dask.utils import format_bytes

from dkl.atomic import atomic
from dkl.data.dataset import Dataset
from dkl.events import Event
from dkl.kernels.device import Device
from dkl.passes.devices import choose_device
from dkl.passes.memory import peak_bytes
from dkl.process import telling_of_compilation
from dkl.progress import Tally, listening, on_one_line, short_time
from dkl.version import __version__

P = ParamSpec("P")
M = TypeVar("M")

# The files that say it are long.
_version_of = functools.cache(version)
_LOOK_EVERY_S = 0.005
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "zarr")


@dataclass(frozen=True)
class Provenance:
    """The origin of a fitted model: rows, bytes, seconds, memory and versions.

    Parameters
    ----------
    place, view, store : str
        Where the rows lie, the split, and the path or URL of their store; empty for all rows, and for no store.
    fingerprint : str
        Of the rows; empty where only reading them all again would tell (zarr arrays used in place).
    rows, columns : int
    total_weight : float
    task : str
        "classification", "regression", or empty.
    target : str
        The column of the files that the targets were read from; empty where it is not known.
    targets : tuple of (str, float)
        Each class with its total weight.
    passes, bytes_read, cache_hits : int
        Of this run: a fit that was resumed has read more before.
    promised_bytes : int
        The largest peak of one process that was projected for a pass: its blocks, operands, sums and caches. What the
        driver holds beside the passes, and code, is not in it. 0 for no pass.
    device : str
        Where blocks were computed on, and why.
    used_bytes : int
        By how much the resident memory of this process grew during the fit: what the passes hold, what the driver holds
        beside them, and the code that was loaded and compiled for the first fit of a process. Workers are not counted.
    seconds : float
    finished : str
        When, in UTC.
    versions : mapping of str to str
        Of dkl, Python, the packages that compute, and the machine.
    """

    place: str = ""
    view: str = ""
    store: str = ""
    fingerprint: str = ""
    rows: int = 0
    columns: int = 0
    total_weight: float = 0.0
    task: str = ""
    target: str = ""
    targets: tuple[tuple[str, float], ...] = ()
    passes: int = 0
    bytes_read: int = 0
    cache_hits: int = 0
    promised_bytes: int = 0
    device: str = ""
    used_bytes: int = 0
    seconds: float = 0.0
    finished: str = ""
    versions: Mapping[str, str] | None = None


class _Recording:
    """Provenance of a fit under way; the fit adds its rows and its device as soon as it knows them."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.rows = Provenance()
        self._process = psutil.Process()
        self._resident = self._largest = self._process.memory_info().rss
        self._peak = peak_bytes()
        self._looked = 0.0
        self.device = ""
        self._started = time.perf_counter()

    def heard(self, event: Event) -> None:
        """Measure memory at an event, at most once in 5 ms, since small passes have thousands of events a second."""
        self.tally(event)
        now = time.perf_counter()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._largest = max(self._largest, self._process.memory_info().rss)

    @property
    def seconds(self) -> float:
        """Since the beginning of the fit."""
        return time.perf_counter() - self._started

    def concluded(self) -> str:
        """The work of the fit, in a few words."""
        read = f", {format_bytes(self.tally.bytes)} read" if self.tally.bytes else ""
        passes = "1 pass" if self.tally.passes == 1 else f"{self.tally.passes} passes"
        return f"{passes}{read}, {short_time(self.seconds)}"

    def ended(self) -> Provenance:
        """The provenance of the fit, which has come to its end."""
        # The system knows the highest point of the process alone. Where that was before the fit, the highest that was
        # seen at an event has to do.
        peak = peak_bytes()
        highest = max(peak if peak > self._peak else self._largest, self._resident)
        packages = {name: _version_of(name) for name in _PACKAGES}
        machine = f"{platform.system()} {platform.machine()}"
        return replace(
            self.rows,
            passes=self.tally.passes,
            bytes_read=self.tally.bytes,
            cache_hits=self.tally.cache_hits,
            device=self.device,
            promised_bytes=self.tally.projected_bytes,
            used_bytes=highest - self._resident,
            seconds=self.seconds,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"dkl": __version__, "python": platform.python_version(), **packages, "machine": machine},
        )


_UNDER_WAY: ContextVar[_Recording | None] = ContextVar("recording", default=None)


def recorded(fit: Callable[Concatenate[M, P], M]) -> Callable[Concatenate[M, P], M]:
    """An atomic `fit` that leaves `provenance_`; one within another belongs to the outer one and leaves none."""

    @atomic
    @functools.wraps(fit)
    def run(self: M, /, *given: P.args, **named: P.kwargs) -> M:
        # The fit of features within a machine is part of the machine's.
        if _UNDER_WAY.get() is not None:
            return fit(self, *given, **named)
        recording = _Recording()
        token = _UNDER_WAY.set(recording)
        try:
            with on_one_line() as conclude, listening(recording.heard), telling_of_compilation():
                fit(self, *given, **named)
                conclude(summary_of(self, recording.seconds) or recording.concluded())
        except KeyboardInterrupt as stopped:
            if not dask.config.get("dkl.interrupt-keeps-best", True):
                raise
            # where in a pass it came says nothing to the person who pressed it
            raise stopped.with_traceback(None) from None
        finally:
            _UNDER_WAY.reset(token)
        vars(self)["provenance_"] = recording.ended()
        return self

    return run


def summary_of(model: object, seconds: float | None = None) -> str:
    """The sentence on what a machine has chosen, with the seconds of its fit; empty where it has chosen nothing.

    Parameters
    ----------
    model : fitted estimator
    seconds : float or None
        None is what its provenance says, if it has one.
    """
    summary, origin = str(getattr(model, "summary_", "")), getattr(model, "provenance_", None)
    if seconds is None and origin is not None:
        seconds = origin.seconds
    return summary if not seconds else re.sub(r"\)\.$", f"; {short_time(seconds)}).", summary)


def recorded_device(device: str) -> Device:
    """`dkl.passes.devices.computing_device`, said of the fit under way."""
    choice, recording = choose_device(device), _UNDER_WAY.get()
    if recording is not None:
        recording.device = str(choice)
    return choice.device


def record_rows(dataset: Dataset) -> None:
    """Record the rows of the current fit; the first recorded rows are those that the user gave."""
    recording = _UNDER_WAY.get()
    if recording is not None and not recording.rows.place:
        recording.rows = rows_of(dataset)


def rows_of(dataset: Dataset) -> Provenance:
    """The identity and the size of rows, before anything is fitted to them."""
    names = [] if dataset.classes is None else [str(label) for label in dataset.classes]
    weights = [] if dataset.class_weights is None else dataset.class_weights.tolist()
    return Provenance(
        place=dataset.source.place,
        view=dataset.name,
        store=dataset.store or "",
        fingerprint=dataset.fingerprint,
        rows=dataset.n_rows,
        columns=dataset.n_columns,
        total_weight=dataset.total_weight,
        task=dataset.task or "",
        target=str(dataset.schema.provenance.get("target", "")),
        targets=tuple(zip(names, weights, strict=True)),
    )
