"""Progress as subscribers: one line that is rewritten in a terminal or notebook, lines in the log elsewhere."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from dkl.events import Event, Subscriber, fan_out

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

LOG = logging.getLogger("dkl")
# The line of `progress=` where nobody looks on.
PROGRESS_LOG = logging.getLogger("dkl.progress")
_LOGGED_EVERY_S, _REDRAWN_EVERY_S = 30.0, 0.25
# Seconds without an event after which a terminal shows the age of its line.
_SILENT_S = 5.0
# Work of more units than that (rows, bytes) is shown in per cent.
_IN_PERCENT = 1_000

Choice = bool | Subscriber | None

_LISTENERS: ContextVar[tuple[Subscriber, ...]] = ContextVar("listeners", default=())
# The line of the fit under way, once there is one; None outside of fits.
_SHARED: ContextVar[list[ProgressLine] | None] = ContextVar("line of the fit", default=None)


def resolve_progress(progress: Choice = None) -> Subscriber:
    """The subscriber that a `progress=` argument asks for; the log "dkl" hears everything besides.

    Parameters
    ----------
    progress : bool, callable or None
        None shows one line, which is rewritten, in a terminal and in a notebook; elsewhere the log "dkl.progress" has
        it every 30 s at level INFO. True shows the line anyhow, False never. A callable is handed every `Event`, and
        may raise `dkl.events.StopRequested` when rounds or trials have advanced.

    Raises
    ------
    TypeError
        If `progress` is anything else.

    Examples
    --------
    >>> seen = []
    >>> publish = resolve_progress(seen.append)
    >>> publish(Event("started", "potentials", total=8))
    >>> seen[0].total
    8
    """
    if progress is not None and not isinstance(progress, bool):
        if not callable(progress):
            raise TypeError(f"progress is {progress!r}; expected True, False, None or a function of one Event")
        return fan_out(progress, log_event, *_LISTENERS.get())
    shown = [] if progress is False else [_line(bool(progress))]
    return fan_out(*shown, log_event, *_LISTENERS.get())


def _line(anyhow: bool) -> ProgressLine:
    """The line of the fit under way, or one of its own where there is no fit."""
    shared = _SHARED.get()
    if shared:
        return shared[0]
    where: _Place = _Log()
    if in_notebook():
        where = _Notebook()
    elif anyhow or sys.stderr.isatty():
        where = _Terminal()
    line = ProgressLine(where, is_shared=shared is not None)
    if shared is not None:
        shared.append(line)
    return line


@contextmanager
def on_one_line() -> Iterator[Callable[[str], None]]:
    """Inside the block all work is shown on one line, which ends with the block; within another one it is that one's.

    Yields
    ------
    conclude : callable
        Sets the text that the line ends with.
    """
    conclusion: list[str] = []
    if _SHARED.get() is not None:
        yield conclusion.append
        return
    shared: list[ProgressLine] = []
    token = _SHARED.set(shared)
    try:
        yield conclusion.append
    finally:
        _SHARED.reset(token)
        for line in shared:
            line.end(*conclusion[-1:])


@contextmanager
def listening(listener: Subscriber) -> Iterator[None]:
    """Inside the block `listener` hears every event of this thread's work, whatever `progress` says there.

    Examples
    --------
    >>> tally = Tally()
    >>> with listening(tally):
    ...     resolve_progress(False)(Event("finished", "potentials", 8, 8, detail={"bytes": 4_096, "cache_hits": 2}))
    >>> tally.passes
    1
    """
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


class Tally:
    """Adds up what the passes read that it hears of.

    Attributes
    ----------
    passes : int
        That came to their end.
    bytes : int
        Of decoded blocks that were read; those of the cache cost nothing.
    cache_hits : int
        Blocks that were taken from the cache.
    projected_bytes : int
        The largest peak of one process that was projected for any of them.

    Examples
    --------
    >>> tally = Tally()
    >>> tally(Event("finished", "potentials", 8, 8, detail={"bytes": 4_096, "cache_hits": 2}))
    >>> tally.passes, tally.bytes, tally.cache_hits
    (1, 4096, 2)
    """

    def __init__(self) -> None:
        self.passes = 0
        self.bytes = 0
        self.cache_hits = 0
        self.projected_bytes = 0

    def __call__(self, event: Event) -> None:
        # Rounds and trials end with events too; only those of passes say what they read.
        if event.kind == "finished" and "cache_hits" in event.detail:
            self.passes += 1
            self.bytes += event.detail["bytes"]
            self.cache_hits += event.detail["cache_hits"]
            self.projected_bytes = max(self.projected_bytes, event.detail.get("projected_bytes", 0))


def log_event(event: Event) -> None:
    """Beginnings, endings and notes to the log "dkl" at level INFO, each step at level DEBUG."""
    # A log at INFO has a line for each stretch of work, not one for each block.
    level = logging.DEBUG if event.kind == "advanced" else logging.INFO
    if not LOG.isEnabledFor(level):
        return
    if event.kind == "note":
        LOG.log(level, "%s: %s", event.name, event.detail.get("message", ""))
        return
    metrics = " ".join(f"{name}={value}" for name, value in event.detail.items())
    of_all = f"{event.done}/{event.total}" if event.total else f"{event.done}"
    LOG.log(level, "%s %s: %s in %.2f s %s", event.name, event.kind, of_all, event.seconds, metrics)


def shown_metrics(detail: Mapping[str, Any]) -> str:
    """The real numbers of an event as text, three digits each: counts are in the event itself."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in detail.items() if type(value) is float)


def in_notebook() -> bool:
    """Whether the kernel of a notebook runs us; IPython is looked up only where somebody has imported it."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def short_score(score: float) -> str:
    """A score with three digits and no zero before the point: .874."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{score:.3f}")


def short_time(seconds: float) -> str:
    """A time as a person says it: 5 s, 4.0 min, 25 h."""
    for unit, name in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.{int(seconds < 10.0 * unit)}f} {name}"
    return f"{max(seconds, 0.0):.0f} s"


class _Place(Protocol):
    """A terminal, notebook or log that shows a line of progress."""

    def show(self, text: str) -> None:
        """Write the text in place of the last one."""

    def say(self, note: str) -> None:
        """Write a note, which stays."""

    def end(self, text: str) -> None:
        """Write the last text, which stays."""


class ProgressLine:
    """One line that says how far the work is, rewritten as it goes on.

    During the choice of a machine it is the last trial, else the pass with the bytes read a second, and the time left
    where the number of passes is expected. Nothing is loaded or drawn before the first event.

    Parameters
    ----------
    place : object with the methods `show`, `say` and `end`
    is_shared : bool
        The line goes on until `end` is called; else it ends when no work is under way.
    clock : callable
        Seconds.
    """

    def __init__(
        self, place: _Place, *, is_shared: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._place, self._is_shared, self._clock = place, is_shared, clock
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        """Nothing has been done yet."""
        self._begun: float | None = None
        self._under_way: dict[str, Event] = {}
        self._trial: Event | None = None
        self._stage = self._metrics = self._text = ""
        self._passes, self._bytes, self._expected = 0, 0, 0

    def __call__(self, event: Event) -> None:
        # Side-by-side trials publish from several threads.
        with self._lock:
            if self._begun is None:
                self._begun = self._clock()
            if event.kind == "note":
                # a plan of the fit: its memory is for the log
                if "expected_passes" in event.detail:
                    self._expected = event.detail["expected_passes"]
                else:
                    self._place.say(f"{event.name}: {event.detail.get('message', '')}")
                return
            self._hear(event)
            self._text = self._status_text(event)
            if self._text:
                self._place.show(self._text)
            if not self._under_way and not self._is_shared:
                self._place.end(self._text)
                self._begin()

    def end(self, conclusion: str = "") -> None:
        """Leave the last text, or the conclusion, where it stands."""
        with self._lock:
            if self._begun is not None:
                self._place.end(conclusion or self._text)
                self._begin()

    def _hear(self, event: Event) -> None:
        """Take note of where a stretch of work is."""
        if event.kind == "finished":
            self._under_way.pop(event.name, None)
        else:
            self._under_way[event.name] = event
        if event.name == "choice":
            self._trial = event if event.kind == "advanced" else None
            if event.kind == "finished":
                # what follows the choice is counted anew
                self._stage, self._passes, self._bytes, self._begun = "fit of all rows: ", 0, 0, self._clock()
            return
        if event.name == "rounds":
            self._metrics = shown_metrics(event.detail) or self._metrics
        self._bytes += event.bytes
        # passes alone say how many blocks were in the cache
        self._passes += event.kind == "finished" and "cache_hits" in event.detail

    def _status_text(self, last: Event) -> str:
        """The state of the work after the last event, in one line."""
        elapsed = self._clock() - (self._begun or 0.0)
        if self._trial is not None:
            return _said_of_trial(self._trial)
        own = [event for name, event in self._under_way.items() if name not in ("choice", "rounds")]
        event = own[-1] if own else None
        if event is not None and event.total and "cache_hits" not in event.detail and event.kind == "advanced":
            share = event.done / event.total
            left = f", about {short_time(elapsed * (1.0 - share) / share)} left" if share else ""
            metrics = shown_metrics(event.detail)
            units = f"{event.done} of {event.total}" if event.total < _IN_PERCENT else f"{share:.0%}"
            return f"{event.name} {units}{left}{', ' + metrics if metrics else ''}"
        if event is None and last.kind == "finished" and last.total and "cache_hits" not in last.detail:
            return f"{last.name}: {'stopped after ' if last.detail.get('failed') else ''}{short_time(elapsed)}"
        part = event.done / event.total if event is not None and event.total else 0.0
        done, number = self._passes + part, self._passes + (event is not None)
        if not number:
            return self._text
        text = f"{self._stage}pass {number}"
        is_expected = number <= self._expected
        text += f" of about {self._expected}" if is_expected else ""
        if elapsed > 0.0 and self._bytes >= 1e6 * elapsed:
            rate = self._bytes / elapsed
            text += f", {rate / 1e9:.1f} GB/s".replace(" 0.", " .") if rate >= 1e8 else f", {rate / 1e6:.0f} MB/s"
        if is_expected and done >= 1.0:
            text += f", about {short_time(elapsed * (self._expected - done) / done)} left"
        return f"{text}, {self._metrics}" if self._metrics else text


def _said_of_trial(event: Event) -> str:
    """The last trial of a choice, the best so far and the time that the others and the last fit take at most."""
    # variants of a kind have their parameters in parentheses, which are for the reasons
    said = {**event.detail, **{name: re.sub(r" \([^()]*\)", "", event.detail[name]) for name in ("kind", "best")}}
    total = f" of at most {event.total}" if event.total else ""
    score = "failed" if said["score"] is None else short_score(said["score"])
    best = f" (best so far: {said['best']} {short_score(said['best_score'])})" if said["best"] != said["kind"] else ""
    left = f", at most {short_time(said['seconds_left'])} left" if "seconds_left" in said else ""
    return f"trial {event.done}{total}: {said['kind']} {score}{best} - {short_time(event.seconds)}{left}"


# Parts of a line and what stands in their place, one after the other, as long as it is too long for a terminal.
_SHORTER = (
    (r"\(best so far: [^()]* (\S+)\)", r"(best so far: \1)"),
    (r" of at most [0-9]+", ""),
    (r" \(best so far: [^()]*\)", ""),
    (r", n features [^,]*", ""),
    (r", [^,]*$", ""),
)


class _Terminal:
    """The last line of a terminal, on standard error: standard output holds results alone."""

    def __init__(self, console: Console | None = None) -> None:
        self._console, self._text, self._has_ended, self._shown = console, "", False, 0.0
        self._live: Live | None = None

    def show(self, text: str) -> None:
        self._text, self._has_ended, self._shown = text, False, time.monotonic()
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                console=self._target(), get_renderable=self._drawn, refresh_per_second=4, vertical_overflow="crop"
            )
            self._live.start()

    def say(self, note: str) -> None:
        self._target().print(note, markup=False, highlight=False)

    def end(self, text: str) -> None:
        self._text, self._has_ended = text, True
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _drawn(self) -> Text:
        from rich.text import Text

        if self._has_ended:
            return Text(self._text)
        text, silent = self._text, time.monotonic() - self._shown
        # the seconds in the text stand still while one trial takes long
        ago = f" ({short_time(silent)} ago)" if silent >= _SILENT_S else ""
        # the score of the best and the time that is left matter more than which one it is
        for more, less in _SHORTER:
            text = re.sub(more, less, text) if len(text + ago) > self._target().width else text
        return Text(text + ago, no_wrap=True, overflow="ellipsis")

    def _target(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True)
        return self._console


class _Notebook:
    """One output of a cell, which is updated in place: text, and the same as HTML; no widget."""

    def __init__(self) -> None:
        self._id = ""
        self._shown = -_REDRAWN_EVERY_S
        self._notes: list[str] = []

    def show(self, text: str) -> None:
        if time.monotonic() - self._shown >= _REDRAWN_EVERY_S:
            self._draw(text)

    def say(self, note: str) -> None:
        self._notes.append(note)

    def end(self, text: str) -> None:
        self._draw(text)

    def _draw(self, text: str) -> None:
        from IPython.display import display, update_display

        lines = [text, *self._notes]
        small = "".join(f"<br><small>{escape(note)}</small>" for note in self._notes)
        data = {"text/plain": "\n".join(lines), "text/html": f"<div>{escape(text)}{small}</div>"}
        self._shown = time.monotonic()
        if self._id:
            update_display(data, display_id=self._id, raw=True)
        else:
            self._id = uuid.uuid4().hex
            display(data, raw=True, display_id=self._id)


class _Log:
    """A line of the log every 30 s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._logged = clock, clock()

    def show(self, text: str) -> None:
        if self._clock() - self._logged >= _LOGGED_EVERY_S:
            self._logged = self._clock()
            PROGRESS_LOG.info("%s", text)

    def say(self, note: str) -> None:
        """The log "dkl" has it."""

    def end(self, text: str) -> None:
        """Write nothing: work that ended within 30 s needs no line, and the log "dkl" has every end."""
