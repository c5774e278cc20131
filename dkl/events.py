"""The one vocabulary of what happens during long work; progress bars, logs and histories only subscribe to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

# Bars, logs, histories and scikit-learn's callbacks all read these four.
Kind = Literal["started", "advanced", "finished", "note"]


@dataclass(frozen=True)
class Event:
    """One thing that happened during long work, as `progress=` functions are told it.

    Parameters
    ----------
    kind : {"started", "advanced", "finished", "note"}
        A stretch of work began, moved on, ended, or has something to say (``detail["message"]``).
    name : str
        The stretch of work, as a person would name it: ``"potentials"``, ``"ingest"``, ``"epoch 3"``.
    done, total : int
        Units finished so far and in all (blocks, rows, rounds); ``total`` is 0 where it is not known.
    rows, bytes : int
        Rows and bytes handled since the last event of this name.
    seconds : float
        Since the start of this stretch of work.
    detail : mapping
        Metrics by name that a history keeps (objective, gap, cache hits, ...).
    model : callable or None
        After a round: forms the estimator as it would be if the rounds ended here, or None while there is none.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> events = []
    >>> learner = dkl.RandomFeatures(n_features=20, random_state=0, progress=events.append)
    >>> _ = learner.fit(np.random.default_rng(0).normal(size=(50, 3)))
    >>> events[0].kind, events[-1].kind
    ('started', 'finished')
    """

    kind: Kind
    name: str
    done: int = 0
    total: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)
    # A function and not the model: most subscribers never ask, and forming one costs time.
    model: Callable[[], Any] | None = field(default=None, compare=False, repr=False)


Subscriber = Callable[[Event], None]


class StopRequested(Exception):
    """Raised by a subscriber when a round or a trial has advanced: end them, and go on with what they have found.

    The request waits until there is a result: for the end of a round of several passes, for the first step of a
    solver, for the first score of `dkl.tune` and `dkl.compare`. A method that has none before its last pass goes on to
    it.

    Parameters
    ----------
    reason : str
        The first words of the model's `message_`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dkl
    >>> def at_most_two(event):
    ...     if event.name == "rounds" and event.done >= 2:
    ...         raise dkl.StopRequested("two are enough")
    >>> model = dkl.KernelClassifier("random", epochs=9, random_state=0, progress=at_most_two)
    >>> model.fit(*load_iris(return_X_y=True)).message_
    'two are enough after 2 of 9 epochs'
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


def ignore(event: Event) -> None:
    """Subscribe to nothing."""


def fan_out(*subscribers: Subscriber) -> Subscriber:
    """One subscriber that hands every event to all of `subscribers`, in order; a request to stop waits for the last."""

    def publish(event: Event) -> None:
        # Every subscriber hears the event, also when an earlier one asks for the end: a checkpoint must not miss the
        # last round.
        request = None
        for subscriber in subscribers:
            try:
                subscriber(event)
            except StopRequested as stop:
                request = stop
        if request is not None:
            raise request

    return publish


class RequestKeeper:
    """Passes events to a subscriber, and keeps its request to stop until there is a result.

    Parameters
    ----------
    publish : callable
        The subscriber.
    work : str
        What a request without a reason says that it ended: ``"rounds"``.

    Attributes
    ----------
    request : str
        The reason to stop; empty until the subscriber requests it.
    """

    def __init__(self, publish: Subscriber, work: str) -> None:
        self._publish, self._work, self.request = publish, work, ""

    def __call__(self, event: Event) -> None:
        try:
            self._publish(event)
        except StopRequested as request:
            self.request = str(request) or f"a subscriber ended the {self._work}"


class ProgressStage:
    """Publishes the events of one stage of work: its start, its progress, and its end, also after an error."""

    def __init__(self, publish: Subscriber, name: str, total: int) -> None:
        self._publish, self._name, self._total, self._done = publish, name, total, 0
        self._started = time.perf_counter()

    def _event(self, kind: Kind, rows: int = 0, n_bytes: int = 0, **detail: bool) -> None:
        seconds = time.perf_counter() - self._started
        self._publish(Event(kind, self._name, self._done, self._total, rows, n_bytes, seconds, detail))

    def __enter__(self) -> Self:
        self._event("started")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._event("finished", failed=True)
            return
        self._done = self._total
        self._event("finished")

    def advance(self, units: int, rows: int, n_bytes: int = 0) -> None:
        """Publish that `units` more are done, for some rows and bytes."""
        # sizes of compressed files are estimates, which must not exceed the total
        self._done = min(self._done + units, self._total)
        self._event("advanced", rows, n_bytes)
