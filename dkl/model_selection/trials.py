"""The trials of a search: their fits, their outcomes in memory and in a checkpoint, and the progress they publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.events import Event, Kind, RequestKeeper
from dkl.linear.judge import mean_over_rows
from dkl.model_selection.evaluation import Outcome
from dkl.model_selection.folds import ValidationFold
from dkl.model_selection.running import Runner, Trial, TrialFit
from dkl.passes.checkpoint import Checkpoint


@dataclass(eq=False)
class Trials:
    """Runs the fits of trials, keeps their outcomes, and publishes progress, until a subscriber requests the end.

    Parameters
    ----------
    runner : callable
        See `dkl.model_selection.running.Runner`.
    folds : sequence of ValidationFold
    publish : RequestKeeper
    checkpoint : Checkpoint or None
        Where all outcomes are saved after every fit.
    fingerprint : str
        A digest of the data, the models, their parameters and the seed.
    total : int
        The total number of trials; 0 if it is not known.
    deadline : float
        Seconds on the clock of `time.monotonic`, after which no fit begins.

    Attributes
    ----------
    weights : ndarray of shape (n_folds,)
        The weights of the folds; the score of a trial is the mean over all rows.
    outcomes : dict of (int, int) to Outcome
        The outcomes by trial and fold.
    begun : dict of int to Trial
        The trials that this call has reached, by number. A checkpoint may contain others.

    Raises
    ------
    StoreError
        If the checkpoint belongs to another search.
    """

    runner: Runner
    folds: Sequence[ValidationFold]
    publish: RequestKeeper
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    total: int = 0
    deadline: float = float("inf")
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict, init=False)
    begun: dict[int, Trial] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.weights = np.array([fold.test.total_weight for fold in self.folds])
        saved = None if self.checkpoint is None else self.checkpoint.load(self.fingerprint)
        for trial, fold, score, seconds, error in [] if saved is None else saved.values:
            self.outcomes[trial, fold] = Outcome(float("nan") if score is None else score, seconds, error)

    @property
    def n_folds(self) -> int:
        return len(self.folds)

    @property
    def done(self) -> set[int]:
        """The trials that have an outcome on all folds, or have failed."""
        return {trial for trial, _ in self.outcomes if not self.missing(trial)}

    @property
    def ended(self) -> bool:
        """Whether a subscriber has requested the end, and a trial of this call has a score."""
        return bool(self.publish.request) and any(np.isfinite(self.score(trial)) for trial in self.begun)

    def missing(self, trial: int) -> list[int]:
        """The folds on which a trial has not been evaluated; none if it has failed on any."""
        # A trial that failed on one fold has no mean score, so that its other folds are not fitted.
        return [] if self.error(trial) else [fold for fold in range(self.n_folds) if (trial, fold) not in self.outcomes]

    def scores(self, trial: int) -> np.ndarray:
        """The scores of a trial by fold, (n_folds,); NaN where there is none, and everywhere if it failed on any."""
        if self.error(trial):
            return np.full(self.n_folds, np.nan)
        unknown = Outcome(float("nan"), 0.0)
        return np.array([self.outcomes.get((trial, fold), unknown).score for fold in range(self.n_folds)])

    def score(self, trial: int) -> float:
        """The mean score of a trial over the rows of all folds; NaN if it failed."""
        return float(mean_over_rows(self.scores(trial), self.weights))

    def seconds(self, trial: int) -> float:
        """The total time of all fits of a trial."""
        return sum(each.seconds for (number, _), each in self.outcomes.items() if number == trial)

    def error(self, trial: int) -> str:
        """The error of the first fold that failed; empty if none did."""
        failed = (self.outcomes[trial, fold].error for fold in range(self.n_folds) if (trial, fold) in self.outcomes)
        return next((error for error in failed if error), "")

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Publish the start of the trials and, even after an error, their end."""
        self._tell("started")
        finished = False
        try:
            yield
            finished = True
        finally:
            self._tell("finished", **({} if finished else {"failed": True}))

    def judge(self, trials: Mapping[int, Trial]) -> bool:
        """Run the missing fits of these trials; False if the search should end, or some did not begin in time."""
        self.begun |= trials
        # Only folds without an outcome are fitted, so that an interrupted search continues where it was.
        jobs = [TrialFit(number, fold, trial) for number, trial in trials.items() for fold in self.missing(number)]
        announced: set[int] = set()
        # Closing the generator cancels the fits that are still running when a subscriber ends the search.
        with closing(self.runner(jobs, self.deadline)) as outcomes:
            for job, outcome in outcomes:
                self._keep(job, outcome)
                if job.number not in announced and not self.missing(job.number):
                    announced.add(job.number)
                    self._tell("advanced", score=self.score(job.number), error=self.error(job.number))
                    if self.ended:
                        break
        return not self.ended and not any(self.missing(trial) for trial in trials)

    def _keep(self, job: TrialFit, outcome: Outcome) -> None:
        """Record the outcome of one fit, and save all outcomes if there is a checkpoint."""
        self.outcomes[job.number, job.fold] = outcome
        if self.checkpoint is None:
            return
        rows = [
            # JSON has no NaN, so that the score of a failed fit is null on disk.
            [*place, each.score if np.isfinite(each.score) else None, each.seconds, each.error]
            for place, each in self.outcomes.items()
        ]
        # All outcomes, which are few, are written each time, so that the file is replaced atomically.
        self.checkpoint.save({}, rows, fingerprint=self.fingerprint, rounds=len(rows))

    def _tell(self, kind: Kind, **detail: Any) -> None:
        """Publish the progress of the search."""
        done = self.done
        # Every event has the best score so far, so that a progress bar need not store it.
        best = max((score for number in done if np.isfinite(score := self.score(number))), default=None)
        # A request to stop is only kept: `judge` ends the trials as soon as there is a score.
        self.publish(Event(kind, "trials", len(done), self.total, detail={**detail, "best": best}))
