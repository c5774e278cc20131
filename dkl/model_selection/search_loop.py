"""The loop of a search: propose a batch of trials, judge them, learn from their scores, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.events import Event, Kind, StopRequested, Subscriber
from dkl.model_selection.proposals import Proposer
from dkl.model_selection.running import Runner, TrialFit
from dkl.model_selection.trial_record import Record


@dataclass(frozen=True)
class Budget:
    """How long a search goes on.

    Parameters
    ----------
    n_trials : int or None
    deadline : float
        On the clock of `time.monotonic`.
    """

    n_trials: int | None
    deadline: float = float("inf")

    def spent(self, n_trials: int) -> bool:
        """Whether no further trial may begin after `n_trials`."""
        return (self.n_trials is not None and n_trials >= self.n_trials) or time.monotonic() > self.deadline

    def room(self, n_trials: int, wanted: int) -> int:
        """How many of `wanted` trials may begin."""
        return wanted if self.n_trials is None else min(wanted, self.n_trials - n_trials)


@dataclass(eq=False)
class Journal:
    """Has trials judged and keeps what comes of them, until a subscriber asks for the end.

    Parameters
    ----------
    record : Record
    runner : Runner
    publish : Subscriber
    total : int
        Trials in all; 0 where it is not known.

    Attributes
    ----------
    request : str
        Why to stop; empty until somebody asks for it.
    """

    record: Record
    runner: Runner
    publish: Subscriber
    total: int = 0
    request: str = field(default="", init=False)
    _begun: set[int] = field(default_factory=set, init=False)

    @property
    def ended(self) -> bool:
        """Whether somebody has asked for the end, and there is a score to end with."""
        return bool(self.request) and any(np.isfinite(self.record.score(trial)) for trial in self._begun)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Tell that the trials begin, and that they have ended, however they do."""
        self.tell("started")
        finished = False
        try:
            yield
            finished = True
        finally:
            self.tell("finished", **({} if finished else {"failed": True}))

    def judge(self, trials: Mapping[int, dict[str, Any]], deadline: float) -> bool:
        """Fit what is still missing of these trials; False where there should be no more, or the time was up before."""
        # A checkpoint may hold trials that this call has not come to; they do not count yet.
        self._begun |= trials.keys()
        # Only folds without an outcome are fitted, so that a search which was broken off goes on where it was.
        jobs = [
            TrialFit(trial, fold, values) for trial, values in trials.items() for fold in self.record.missing(trial)
        ]
        announced: set[int] = set()
        # Closing the generator cancels the fits that are still under way when a subscriber ends the search.
        with closing(self.runner.run(jobs, deadline)) as outcomes:
            for job, outcome in outcomes:
                self.record.keep(job.trial, job.fold, outcome)
                if job.trial not in announced and not self.record.missing(job.trial):
                    announced.add(job.trial)
                    self.tell("advanced", job.trial)
                    if self.ended:
                        break
        return not self.ended and not any(self.record.missing(trial) for trial in trials)

    def tell(self, kind: Kind, trial: int | None = None, **detail: Any) -> None:
        """Publish where the search stands; the score of a trial where it has just been judged."""
        record = self.record
        if trial is not None:
            detail = {"score": record.score(trial), "error": record.error(trial)}
        done = record.done
        # Every event carries the best score so far, so that a progress bar needs no memory of its own.
        best = max((score for number in done if np.isfinite(score := record.score(number))), default=None)
        try:
            self.publish(Event(kind, "trials", len(done), self.total, detail={**detail, "best": best}))
        except StopRequested as request:
            # The request is only noted here: there may be no score yet, and `judge` ends the trials once there is one.
            self.request = str(request) or "a subscriber ended the trials"


def search(proposer: Proposer, journal: Journal, budget: Budget, *, parallel: int) -> dict[int, dict[str, Any]]:
    """Run the trials.

    Batch b holds the trials from ``b parallel`` to ``(b + 1) parallel - 1`` and follows from the scores of those
    before it, so that the trials are the same however many workers judge them and wherever a search is taken up again.

    Parameters
    ----------
    proposer : Proposer
    journal : Journal
    budget : Budget
    parallel : int
        Trials of a batch.

    Returns
    -------
    dict of int to dict
        The parameters of all trials that were begun, by number.

    Raises
    ------
    RuntimeError
        If the first trials all fail.
    """
    points: list[np.ndarray] = []
    record, space = journal.record, proposer.space
    while not budget.spent(len(points)):
        first, count = len(points), budget.room(len(points), parallel)
        known = np.array([record.score(trial) for trial in range(first)])
        # The proposals follow from the numbers and the scores of the trials before this batch, never from which worker
        # was the first to answer.
        points.extend(proposer.propose(np.reshape(points, (first, space.width)), known, count))
        batch = {trial: space.decode(points[trial]) for trial in range(first, len(points))}
        if not journal.judge(batch, budget.deadline) or len(batch) < count:
            break
        errors = [record.error(trial) for trial in range(len(points))]
        # Where every one of the first trials fails, the model or the rows are at fault and not the parameters.
        if len(errors) >= proposer.n_initial and all(errors):
            raise RuntimeError(
                f"the first {len(errors)} trials all failed, so the search was given up; the first said: {errors[0]}"
            )
    return {trial: space.decode(point) for trial, point in enumerate(points)}
