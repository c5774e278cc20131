"""Progress as subscribers: a bar in terminal or notebook, lines in the log "dkl"."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dkl.events import Event, Subscriber, fan_out

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("dkl")
# So many lines of finished work stay on the screen: many epochs must not fill it.
MOST_ENDED_LINES = 3

Choice = bool | Subscriber | None

_LISTENERS: ContextVar[tuple[Subscriber, ...]] = ContextVar("listeners", default=())


def resolve_progress(progress: Choice = None) -> Subscriber:
    """The subscriber that a `progress=` argument asks for; the log "dkl" hears everything besides.

    Parameters
    ----------
    progress : bool, callable or None
        None shows a bar where a person looks on (a terminal, a notebook). True shows one anyhow, False never. A
        callable is handed every `Event`, and may raise `dkl.events.StopRequested` when rounds have advanced.

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
    # A bar in a log file or behind a pipe would be noise: by default it is for terminals and notebooks.
    shown = sys.stderr.isatty() or _in_notebook() if progress is None else progress
    return fan_out(*([ProgressBar()] if shown else []), log_event, *_LISTENERS.get())


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
    return "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in detail.items() if type(value) is float)


def _in_notebook() -> bool:
    """Whether the kernel of a notebook runs us; IPython is looked up only where somebody has imported it."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class ProgressBar:
    """One line for each stretch of work; the last lines stay when the last stretch has ended.

    Nothing is loaded or drawn before the first event.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bar: Any = None
        self._lines: dict[str, Any] = {}
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        # Side-by-side trials publish from several threads, and rich's tasks are not made for that.
        with self._lock:
            if event.kind == "note":
                self._say(event)
            elif event.kind == "finished":
                self._end(event)
            else:
                self._move(event)

    def _say(self, event: Event) -> None:
        """Print a note above the bar."""
        console = self._target() if self._bar is None else self._bar.console
        console.print(f"{event.name}: {event.detail.get('message', '')}", markup=False, highlight=False)

    def _move(self, event: Event) -> None:
        """Begin a line, or move it on."""
        bar = self._started()
        if event.name not in self._lines:
            # The oldest finished line makes room for the new one.
            finished = [name for name in self._lines if name not in self._under_way]
            if len(finished) >= MOST_ENDED_LINES:
                bar.remove_task(self._lines.pop(finished[0]))
            self._lines[event.name] = bar.add_task(event.name, total=event.total or None, metrics="")
        elif event.name not in self._under_way:
            # The same pass of the next round: its line starts anew.
            bar.reset(self._lines[event.name])
        self._under_way.add(event.name)
        # Work without a known end (rounds) keeps the lines of its passes together; its own line is shown once a round
        # is done.
        visible = bool(event.total or event.done)
        metrics = shown_metrics(event.detail)
        bar.update(
            self._lines[event.name],
            completed=event.done,
            total=event.total or None,
            visible=visible,
            **({"metrics": metrics} if metrics else {}),
        )

    def _end(self, event: Event) -> None:
        """End a line; the bar ends with the last one."""
        if event.name not in self._under_way:
            return
        self._under_way.discard(event.name)
        line = self._lines[event.name]
        # A stretch of work that was broken off stops where it stood, so that the bar shows how far it came.
        if event.detail.get("failed"):
            self._bar.stop_task(line)
        else:
            self._bar.update(line, completed=event.done, total=event.total or event.done)
        if not self._under_way:
            self._bar.stop()
            self._bar, self._lines = None, {}

    def _target(self) -> Console:
        """Where lines are drawn: standard output holds results alone, and a notebook shows nothing else."""
        from rich.console import Console

        return self._console or Console(stderr=not _in_notebook())

    def _started(self) -> Any:
        """The bar of rich, started with the first event: nothing is loaded for a fit without one."""
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("{task.fields[metrics]}", markup=False),
            )
            self._bar = Progress(*columns, console=self._target(), refresh_per_second=4)
            self._bar.start()
        return self._bar
