"""Provenance of a fit: the rows and bytes that it read, its peak memory, and the versions of packages."""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TypeVar

import dask
from dask.utils import format_bytes

from dkl.atomic import atomic
from dkl.data.dataset import Dataset
from dkl.events import Event
from dkl.kernels.device import Device
from dkl.passes.devices import choose_device
from dkl.passes.memory import peak_bytes
from dkl.process import telling_of_compilation, this_process
from dkl.progress import Tally, listening, on_one_line, short_time
from dkl.version import __version__

M = TypeVar("M")

# the version of a package is read once, since its metadata is parsed for it
_version_of = functools.cache(version)
# Least seconds between two measurements of memory, as small passes have thousands of events a second.
_LOOK_EVERY_S = 0.005
# Packages whose versions may change the bits of a fit.
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "zarr")


@dataclass(frozen=True)
class Provenance:
    """The origin of a fitted model: rows, bytes, seconds, memory and versions.

    Parameters
    ----------
    place, view, store : str
        The source of the rows, the name of the split, and the path or URL of the store; empty for all rows, and without
        a store.
    fingerprint : str
        Of the rows; empty if only reading them all again could identify them (zarr arrays used in place).
    rows, columns : int
    total_weight : float
    task : str
        "classification", "regression", or empty.
    target : str
        The column of the files that held the targets; empty if unknown.
    targets : tuple of (str, float)
        Each class with its total weight.
    passes, bytes_read, cache_hits : int
        Of this run only; a resumed fit has read more before.
    promised_bytes : int
        The largest peak projected for one process in a pass: its blocks, operands, sums and caches, without code and
        without what the driver keeps between passes. 0 without passes.
    device : str
        The device that computed on blocks, and the reason.
    used_bytes : int
        The growth of this process's resident memory during the fit: passes, the driver, and the code that the first fit
        of a process loads and compiles. Workers are not counted.
    seconds : float
    finished : str
        The time of the end, in UTC.
    versions : mapping of str to str
        Of dkl, Python, the numerical packages, and the machine.
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
    """Collects the provenance of a running fit; the fit adds its rows and its device."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.rows = Provenance()
        self._process = this_process()
        self._resident = self._largest = self._process.memory_info().rss
        self._peak = peak_bytes()
        self._looked = 0.0
        self.device = ""
        self._started = time.perf_counter()

    def heard(self, event: Event) -> None:
        """Count an event, and measure memory unless that was done just before."""
        self.tally(event)
        now = time.perf_counter()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._largest = max(self._largest, self._process.memory_info().rss)

    @property
    def seconds(self) -> float:
        """Seconds since the start of the fit."""
        return time.perf_counter() - self._started

    def concluded(self) -> str:
        """A short text on passes, bytes and seconds of the fit."""
        read = f", {format_bytes(self.tally.bytes)} read" if self.tally.bytes else ""
        passes = "1 pass" if self.tally.passes == 1 else f"{self.tally.passes} passes"
        return f"{passes}{read}, {short_time(self.seconds)}"

    def ended(self) -> Provenance:
        """The provenance of the fit, which has ended."""
        # the system reports only the peak of the process's life; if that lies before the fit, the largest value
        # measured at an event must do
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


@contextmanager
def recorded(model: M) -> Iterator[M]:
    """A copy to fit, whose attributes the model takes over in the end (`atomic`), with the `provenance_` of the fit.

    A fit inside another one, such as that of a machine's features, sets no provenance: its rows, bytes and seconds are
    counted in that of the outer fit.
    """
    with atomic(model) as working:
        if _UNDER_WAY.get() is not None:
            yield working
            return
        recording = _Recording()
        token = _UNDER_WAY.set(recording)
        try:
            with on_one_line() as conclude, listening(recording.heard), telling_of_compilation():
                yield working
                conclude(summary_of(working, recording.seconds) or recording.concluded())
        except KeyboardInterrupt as stopped:
            if getattr(model, "checkpoint", None) is not None:
                stopped.add_note("run again with the same checkpoint, it goes on after the last finished pass")
            if not dask.config.get("dkl.interrupt-keeps-best", True):
                raise
            # another one, since the place in a pass where this one came is of no use to the user
            plain = type(stopped)(*stopped.args)
            for note in getattr(stopped, "__notes__", []):
                plain.add_note(note)
            raise plain from None
        finally:
            _UNDER_WAY.reset(token)
        vars(working)["provenance_"] = recording.ended()


def summary_of(model: object, seconds: float | None = None) -> str:
    """The sentence on a machine's choice, with the seconds of its fit; empty without a choice.

    Parameters
    ----------
    model : fitted estimator
    seconds : float or None
        None reads them from its provenance, if it has one.
    """
    summary, origin = str(getattr(model, "summary_", "")), getattr(model, "provenance_", None)
    if seconds is None and origin is not None:
        seconds = origin.seconds
    return summary if not seconds else re.sub(r"\)\.$", f"; {short_time(seconds)}).", summary)


def recorded_device(device: str) -> Device:
    """`dkl.passes.devices.computing_device`, recorded for the running fit."""
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
