"""Runs the fits of a search: one after another in this process, in parallel threads, or each on one worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import dask

from dkl.errors import ClusterError
from dkl.kernels.threads import usable_cores
from dkl.model_selection.evaluation import Outcome, Scoring, judged
from dkl.model_selection.folds import ValidationFold
from dkl.passes.backends import current_client
from dkl.protocols.estimators import Estimator

if TYPE_CHECKING:
    from distributed import Client

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
    """Runs fits in any order, and yields each outcome when it is available."""

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """The outcomes; no fit begins after `deadline`, a time of `time.monotonic`."""
        ...


@dataclass(frozen=True, eq=False)
class InTurn:
    """One fit after another; each of its passes is spread over all workers or threads."""

    model: Estimator
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
                # A trial that fails on one fold has no score, so that its other folds are not fitted.
                failed |= {job.trial} if outcome.error else set()
                yield job, outcome


@dataclass(frozen=True, eq=False)
class SideBySide:
    """At most `most` fits at once, and no more than cores; the passes of each fit run in its own thread."""

    model: Estimator
    folds: Sequence[ValidationFold]
    scoring: Scoring
    most: int

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        # Each pass has one thread, since other fits use the other cores.
        workers = ThreadPoolExecutor(min(self.most, usable_cores()), "dkl-search")
        with advice_held_back(), dask.config.set(scheduler="synchronous"), workers as pool:
            futures = {pool.submit(self._judged, job, deadline): job for job in jobs}
            try:
                under_way = set(futures)
                while under_way:
                    ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    # A fit that raised an error comes last among those that ended together, so that the outcomes of the
                    # others are recorded before the error is raised here.
                    for future in sorted(ended, key=lambda future: future.exception() is not None):
                        if (outcome := future.result()) is not None:
                            yield futures[future], outcome
            finally:
                for future in futures:
                    future.cancel()

    def _judged(self, job: TrialFit, deadline: float) -> Outcome | None:
        """The outcome of one fit; None if the deadline passed before it began."""
        if time.monotonic() > deadline:
            return None
        return judged(self.model, job.parameters, self.folds[job.fold], self.scoring)


@dataclass(frozen=True, eq=False)
class OnWorkers:
    """Each fit is one task of the cluster; if its worker dies, another worker repeats it."""

    model: Estimator
    folds: Sequence[ValidationFold]
    scoring: Scoring
    client: Client

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        from distributed import KilledWorker, as_completed

        # Views of a store are small; rows in memory are copied to each worker once for all trials.
        folds = self.client.scatter(list(self.folds), broadcast=True, hash=False)
        futures = {
            self.client.submit(_judged_on_worker, folds, job, self.model, self.scoring, pure=False): job for job in jobs
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


def _judged_on_worker(folds: Sequence[ValidationFold], job: TrialFit, model: Estimator, scoring: Scoring) -> Outcome:
    """The task of one fit; its passes run in the task's own thread, since waiting for other tasks could deadlock."""
    with dask.config.set(scheduler="synchronous"):
        return judged(model, job.parameters, folds[job.fold], scoring)


@contextmanager
def advice_held_back() -> Iterator[None]:
    """Suppress warnings of the logger "dkl", which each fit of a search would repeat; the final fit logs them.

    Errors and progress are still logged.
    """

    def is_no_advice(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING

    LOG.addFilter(is_no_advice)
    try:
        yield
    finally:
        LOG.removeFilter(is_no_advice)


def runner_for(model: Estimator, folds: Sequence[ValidationFold], scoring: Scoring, parallel: int) -> Runner:
    """The runner for a search: on workers or in threads if `parallel` is above 1, else one fit after another.

    Fits run as tasks on workers only if the rows can be sent there.
    """
    if parallel == 1:
        return InTurn(model, folds, scoring)
    client = current_client()
    if client is None:
        return SideBySide(model, folds, scoring, parallel * len(folds))
    source = folds[0].train.source
    # Rows that a Dask graph computes cannot be used in a task, since a task cannot run another graph.
    is_graph = not source.stored_nbytes and dask.is_dask_collection(source.ticket(0))
    return InTurn(model, folds, scoring) if is_graph else OnWorkers(model, folds, scoring, client)
