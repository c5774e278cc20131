"""Where the fits of a search run: one after another here, side by side in threads, or each whole on a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import dask

from dkl.errors import ClusterError
from dkl.kernels.threads import usable_cores
from dkl.model_selection.evaluation import Outcome, Scoring, judged
from dkl.model_selection.folds import ValidationFold
from dkl.passes.backends import current_client

LOG = logging.getLogger("dkl")


@dataclass(frozen=True, eq=False)
class TrialFit:
    """One fit of a trial.

    Parameters
    ----------
    trial, fold : int
    parameters : dict
    """

    trial: int
    fold: int
    parameters: dict[str, Any]


Outcomes = Generator[tuple[TrialFit, Outcome], None, None]


class Runner(Protocol):
    """Judges jobs, in any order, and hands out each outcome as it is there."""

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """The outcomes; once the clock (`time.monotonic`) is past `deadline`, no further fit is begun."""
        ...


@dataclass(frozen=True, eq=False)
class InTurn:
    """One fit after another; each of its passes is spread over all workers or threads."""

    model: Any
    folds: Sequence[ValidationFold]
    scoring: Scoring

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        failed: set[int] = set()
        with advice_held_back():
            for job in jobs:
                if time.monotonic() > deadline:
                    return
                if job.trial in failed:
                    continue
                outcome = judged(self.model, job.parameters, self.folds[job.fold], self.scoring)
                failed |= {job.trial} if outcome.error else set()
                yield job, outcome


@dataclass(frozen=True, eq=False)
class SideBySide:
    """As many fits at once as there are cores, the passes of each in its own thread."""

    model: Any
    folds: Sequence[ValidationFold]
    scoring: Scoring
    most: int

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        workers = ThreadPoolExecutor(min(self.most, usable_cores()), "dkl-search")
        with advice_held_back(), dask.config.set(scheduler="synchronous"), workers as pool:
            futures = {pool.submit(self._judged, job, deadline): job for job in jobs}
            try:
                for future in _as_they_end(futures):
                    if (outcome := future.result()) is not None:
                        yield futures[future], outcome
            finally:
                for future in futures:
                    future.cancel()

    def _judged(self, job: TrialFit, deadline: float) -> Outcome | None:
        if time.monotonic() > deadline:
            return None
        return judged(self.model, job.parameters, self.folds[job.fold], self.scoring)


def _as_they_end(futures: Any) -> Iterator[Any]:
    """Those that were broken off come last of the ones that ended together: the others' outcomes are kept."""
    left = set(futures)
    while left:
        ended, left = wait(left, return_when=FIRST_COMPLETED)
        yield from sorted(ended, key=lambda future: future.exception() is not None)


@dataclass(frozen=True, eq=False)
class OnWorkers:
    """Each fit whole in one task of the cluster: a task that a dead worker takes along is run again elsewhere."""

    model: Any
    folds: Sequence[ValidationFold]
    scoring: Scoring
    client: Any

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        from distributed import KilledWorker, as_completed

        folds = self.client.scatter(list(self.folds), broadcast=True, hash=False)
        futures = {
            self.client.submit(_judged_on_worker, self.model, folds, self.scoring, job, pure=False): job for job in jobs
        }
        try:
            limit = None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)
            for future in as_completed(list(futures), timeout=limit):
                yield futures[future], future.result()
        except TimeoutError:
            return
        except KilledWorker as lost:
            raise ClusterError(
                f"fits of the search take their workers with them ({lost}); lower memory_limit of the model or "
                "parallel=1, and call again: a checkpoint resumes"
            ) from lost
        finally:
            self.client.cancel(list(futures), force=True)


def _judged_on_worker(model: Any, folds: Sequence[ValidationFold], scoring: Scoring, job: TrialFit) -> Outcome:
    with dask.config.set(scheduler="synchronous"):
        return judged(model, job.parameters, folds[job.fold], scoring)


@contextmanager
def advice_held_back() -> Iterator[None]:
    """Keep advice about the rows out of the log "dkl": each fit would give it again, and the last, of all rows, does.

    Errors and the course of the work are logged as ever.
    """

    def is_no_advice(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING

    LOG.addFilter(is_no_advice)
    try:
        yield
    finally:
        LOG.removeFilter(is_no_advice)


def runner_for(model: Any, folds: Sequence[ValidationFold], scoring: Scoring, parallel: int) -> Runner:
    """Where the fits run best: whole on workers, if several are wanted at once and the rows can travel there."""
    if parallel == 1:
        return InTurn(model, folds, scoring)
    client = current_client()
    if client is None:
        return SideBySide(model, folds, scoring, parallel * len(folds))
    return InTurn(model, folds, scoring) if _is_graph(folds[0]) else OnWorkers(model, folds, scoring, client)


def _is_graph(fold: ValidationFold) -> bool:
    """Whether rows are still to be computed by a Dask graph, which a task of the cluster cannot do."""
    source = fold.train.source
    return not source.stored_nbytes and dask.is_dask_collection(source.ticket(0))
