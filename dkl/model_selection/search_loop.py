"""The loop of a search: proposes a batch of trials, evaluates them, and repeats until the budget is used up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.events import Event, Kind, RequestKeeper
from dkl.model_selection.proposals import Proposer
from dkl.model_selection.running import Runner, TrialFit
from dkl.model_selection.trial_record import Record


@dataclass(frozen=True)
class Budget:
    """The limits of a search.

    Parameters
    ----------
    n_trials : int or None
    deadline : float
        Seconds on the clock of `time.monotonic`.
    """

    n_trials: int | None
    deadline: float = float("inf")

    def spent(self, n_trials: int) -> bool:
        """Whether no further trial may begin after `n_trials`."""
        return (self.n_trials is not None and n_trials >= self.n_trials) or time.monotonic() > self.deadline

    def room(self, n_trials: int, wanted: int) -> int:
        """How many of `wanted` further trials may begin after `n_trials`."""
        return wanted if self.n_trials is None else min(wanted, self.n_trials - n_trials)


@dataclass(eq=False)
class Journal:
    """Runs the fits of trials, records their outcomes and publishes progress, until a subscriber requests the end.

    Parameters
    ----------
    record : Record
    runner : Runner
    publish : RequestKeeper
    total : int
        The total number of trials; 0 if it is not known.
    """

    record: Record
    runner: Runner
    publish: RequestKeeper
    total: int = 0
    _begun: set[int] = field(default_factory=set, init=False)

    @property
    def ended(self) -> bool:
        """Whether a subscriber has requested the end, and a trial of this call has a score."""
        return bool(self.publish.request) and any(np.isfinite(self.record.score(trial)) for trial in self._begun)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Publish the start of the trials and, even after an error, their end."""
        self.tell("started")
        finished = False
        try:
            yield
            finished = True
        finally:
            self.tell("finished", **({} if finished else {"failed": True}))

    def judge(self, trials: Mapping[int, dict[str, Any]], deadline: float) -> bool:
        """Run the missing fits of these trials; False if the search should end, or some did not begin in time."""
        # A checkpoint may contain trials that this call has not reached; they do not count as begun.
        self._begun |= trials.keys()
        # Only folds without an outcome are fitted, so that an interrupted search continues where it was.
        jobs = [
            TrialFit(trial, fold, values) for trial, values in trials.items() for fold in self.record.missing(trial)
        ]
        announced: set[int] = set()
        # Closing the generator cancels the fits that are still running when a subscriber ends the search.
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
        """Publish the progress of the search, with the score of `trial` if it has just been completed."""
        record = self.record
        if trial is not None:
            detail = {"score": record.score(trial), "error": record.error(trial)}
        done = record.done
        # Every event has the best score so far, so that a progress bar need not store it.
        best = max((score for number in done if np.isfinite(score := record.score(number))), default=None)
        # A request to stop is only kept: `judge` ends the trials as soon as there is a score.
        self.publish(Event(kind, "trials", len(done), self.total, detail={**detail, "best": best}))


def search(proposer: Proposer, journal: Journal, budget: Budget, *, parallel: int) -> dict[int, dict[str, Any]]:
    """Propose and evaluate trials in batches until the budget is used up.

    Batch b has the trials from ``b parallel`` to ``(b + 1) parallel - 1`` and depends on the scores of all earlier
    batches alone. The trials are therefore the same for any number of workers, and in a search that is continued.

    Parameters
    ----------
    proposer : Proposer
    journal : Journal
    budget : Budget
    parallel : int
        The number of trials in a batch.

    Returns
    -------
    dict of int to dict
        The parameters of all trials that have begun, by number.

    Raises
    ------
    RuntimeError
        If the first trials all fail.
    """
    points: list[np.ndarray] = []
    record, space = journal.record, proposer.space
    while not budget.spent(len(points)):
        first, count = len(points), budget.room(len(points), parallel)
        scores = np.array([record.score(trial) for trial in range(first)])
        # Proposals depend on the scores of earlier batches alone, not on the order in which workers finish.
        points.extend(proposer.propose(np.reshape(points, (first, space.width)), scores, count))
        batch = {trial: space.decode(points[trial]) for trial in range(first, len(points))}
        if not journal.judge(batch, budget.deadline) or len(batch) < count:
            break
        errors = [record.error(trial) for trial in range(len(points))]
        # If all of the first trials fail, the cause is the model or the rows rather than the parameters.
        if len(errors) >= proposer.n_initial and all(errors):
            raise RuntimeError(
                f"the first {len(errors)} trials all failed, so the search was given up; the first error: {errors[0]}"
            )
    return {trial: space.decode(point) for trial, point in enumerate(points)}
