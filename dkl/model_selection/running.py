"""Runs the fits of a search: one after another in this process, in parallel threads, or each on one worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import dask

from dkl.errors import ClusterError
from dkl.kernels.threads import usable_cores
from dkl.model_selection.evaluation import Outcome, Scoring, judged
from dkl.model_selection.folds import ValidationFold
from dkl.passes.backends import current_client
from dkl.passes.lost_workers import TaskLost, counted_loss
from dkl.protocols.estimators import Estimator

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("dkl")


@dataclass(frozen=True, eq=False)
class Trial:
    """A model, which is never changed, and the parameters with which copies of it are fitted."""

    model: Estimator
    parameters: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class TrialFit:
    """One fit of a trial: to all folds but one."""

    number: int
    fold: int
    trial: Trial


Outcomes = Generator[tuple[TrialFit, Outcome], None, None]
Runner = Callable[[Sequence[TrialFit], float], Outcomes]
"""Runs fits in any order, and yields each outcome when it is available.

No fit begins after the second argument, a time of `time.monotonic`.
"""


def in_turn(folds: Sequence[ValidationFold], scoring: Scoring, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
    """A `Runner` of one fit after another; each of its passes is spread over all workers or threads."""
    failed: set[int] = set()
    with advice_held_back():
        for job in jobs:
            if time.monotonic() > deadline:
                return
            if job.number in failed:
                continue
            outcome = _outcome(job, folds, scoring)
            # A trial that fails on one fold has no score, so that its other folds are not fitted.
            failed |= {job.number} if outcome.error else set()
            yield job, outcome


def side_by_side(
    folds: Sequence[ValidationFold], scoring: Scoring, most: int, jobs: Sequence[TrialFit], deadline: float
) -> Outcomes:
    """A `Runner` of at most `most` fits at once, and no more than cores; the passes of each run in its own thread."""

    def in_time(job: TrialFit) -> Outcome | None:
        """The outcome of one fit; None if the deadline passed before it began."""
        return None if time.monotonic() > deadline else _outcome(job, folds, scoring)

    # Each pass has one thread, since other fits use the other cores.
    workers = ThreadPoolExecutor(min(most, usable_cores()), "dkl-search")
    with advice_held_back(), dask.config.set(scheduler="synchronous"), workers as pool:
        futures = {pool.submit(in_time, job): job for job in jobs}
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


def on_workers(
    folds: Sequence[ValidationFold], scoring: Scoring, client: Client, jobs: Sequence[TrialFit], deadline: float
) -> Outcomes:
    """A `Runner` where each fit is one task of the cluster; if its worker dies, another worker repeats it."""
    from distributed import KilledWorker, as_completed

    left, losses = dict.fromkeys(jobs), 0
    while left:
        limit = None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)
        # Views of a store are small; rows in memory are copied to each worker once for all trials.
        scattered = client.scatter(list(folds), broadcast=True, hash=False)
        futures = {client.submit(_on_worker, scattered, job, scoring, pure=False): job for job in left}
        try:
            for future in as_completed(list(futures), timeout=limit):
                outcome = future.result()
                del left[futures[future]]
                yield futures[future], outcome
        except TimeoutError:
            return
        except KilledWorker as lost:
            raise ClusterError(
                f"fits of the search take their workers with them ({lost}); lower memory_limit of the model or "
                "parallel=1, and call again: a checkpoint resumes"
            ) from lost
        except CancelledError as lost:
            # all workers that held the rows are gone, and so are the tasks that need them
            losses = counted_loss("the rows of the search", losses, TaskLost(str(lost)))
        finally:
            client.cancel(list(futures), force=True)


def _on_worker(folds: Sequence[ValidationFold], job: TrialFit, scoring: Scoring) -> Outcome:
    """The task of one fit; its passes run in the task's own thread, since waiting for other tasks could deadlock."""
    with dask.config.set(scheduler="synchronous"):
        return _outcome(job, folds, scoring)


def _outcome(job: TrialFit, folds: Sequence[ValidationFold], scoring: Scoring) -> Outcome:
    return judged(job.trial.model, job.trial.parameters, folds[job.fold], scoring)


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


def runner_for(folds: Sequence[ValidationFold], scoring: Scoring, parallel: int) -> Runner:
    """The runner for a search: on workers or in threads if `parallel` is above 1, else one fit after another.

    Fits run as tasks on workers only if the rows can be sent there.
    """
    client = current_client() if parallel > 1 else None
    if parallel > 1 and client is None:
        return partial(side_by_side, folds, scoring, parallel * len(folds))
    source = folds[0].train.source
    # Rows that a Dask graph computes cannot be used in a task, since a task cannot run another graph.
    if client is None or (not source.stored_nbytes and dask.is_dask_collection(source.ticket(0))):
        return partial(in_turn, folds, scoring)
    return partial(on_workers, folds, scoring, client)
