"""The passes of a fit: `Run` has the loop of every learner, and `PlannedRun` records the passes of a plan instead."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dkl.errors import StoreError
from dkl.events import Event, Kind, RequestKeeper, Subscriber, ignore
from dkl.passes.backends import current_client
from dkl.passes.chain import forget_pieces
from dkl.passes.checkpoint import Checkpoint, decode_state, encode_state
from dkl.passes.engine import PassResult, run_pass
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, stays_here
from dkl.protocols.arrays import Rows
from dkl.protocols.driver import Driver, Passes, largest_held
from dkl.protocols.records import Record, of_share, often
from dkl.protocols.source import BlockSource, row_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P")
S = TypeVar("S", bound="DataclassInstance")
T = TypeVar("T")
# a key next to the state's own fields in a checkpoint; no field name contains a space
_VERSION = "row columns"


@dataclass(frozen=True)
class ColumnStore:
    """The row columns that a driver needs, and their place.

    Parameters
    ----------
    store : str
        A local path or a URL that every worker process can access.
    columns : mapping of str to (str, tuple of int)
        The dtype and the shape of one row's value, by name; initially all zeros.
    start : RowColumns or None
        Columns of the same rows whose values replace the zeros; they are not changed.
    """

    store: str
    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    start: RowColumns | None = None

    def create(self, source: BlockSource) -> RowColumns:
        """New columns, which replace those of a run that was killed before its first checkpoint."""
        # overwritten: without a checkpoint there is no state that old columns could belong to
        made = RowColumns.create(self.store, source, self.columns, overwrite=True, start=self.start)
        self._check_reach(source)
        return replace(made, keeps_last=True)

    def open(self, source: BlockSource, version: int) -> RowColumns:
        """The columns at the version of a checkpoint."""
        self._check_reach(source)
        return replace(RowColumns.open(self.store, source).at(version), keeps_last=True)

    def _check_reach(self, source: BlockSource) -> None:
        if not stays_here(source, "cpu"):
            check_reach(self.store)


def check_reach(store: str) -> None:
    """Ask one worker on each host whether it sees a local folder, before a task fails because it does not.

    The folder is created if it does not exist.

    Raises
    ------
    StoreError
        If a worker does not see it: the folder is on a disk of the driver's machine alone.
    """
    client = current_client()
    if client is None or "://" in store:
        return
    os.makedirs(store, exist_ok=True)
    by_host = {address.rpartition(":")[0]: address for address in client.nthreads()}
    # a worker that is lost meanwhile answers with an error, which the pass handles
    answers = client.run(os.path.isdir, store, workers=list(by_host.values()), on_error="return")
    if blind := sorted(address for address, answer in answers.items() if answer is False):
        raise StoreError(
            f"the values that are kept for each row between passes lie in {store!r}, which the worker {blind[0]} does "
            "not see; pass checkpoint= a folder or URL that all workers reach, or set Dask's temporary_directory to a "
            "shared folder: dask.config.set(temporary_directory='/shared/tmp')"
        )


class Learns(Protocol):
    """A feature learner, as far as the run of a machine knows it."""

    def fit_within(self, dataset: Any, context: Any) -> Any:
        """The learner, fitted as a part of a machine's fit."""

    def planned(self, dataset: Any) -> tuple[Any, PlannedRun]:
        """A copy with a feature map as large as that of a fit may be, and the passes that lead to it."""


@dataclass(frozen=True, eq=False)
class Run:
    """Runs the passes of a fit. `PlannedRun` replaces it if they are only planned.

    Parameters
    ----------
    publish : callable
    memory_limit, device
        As in `dkl.passes.engine.run_pass`.
    checkpoint : Checkpoint or None
        Keeps the state after each round. An interrupted run resumes with the same bits, a finished one returns at once.
    fingerprint : str
        Fingerprint of data, parameters and version; a checkpoint of another one raises an error.
    estimator : callable or None
        Makes the estimator from a fit (a `LinearFit`, an `AdamFit`), for subscribers that look at a running one.
    """

    publish: Subscriber = ignore
    memory_limit: int | str | None = None
    device: Any = "cpu"
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    estimator: Callable[[Any], Any] | None = None

    def looked_at(self, fit: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        """A function from a driver's state to the estimator so far; `fit` turns the state into a fit."""
        estimator = self.estimator
        return None if estimator is None else lambda state: estimator(fit(state))

    def drive(
        self,
        driver: Driver[P, S],
        problem: P,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[S], Any] | None = None,
    ) -> tuple[S, list[PassStats]]:
        """Run a method to its end, resuming from its checkpoint.

        Subscribers get an event for every round (name "rounds", the driver's metrics as detail) and those of the passes
        within.

        Parameters
        ----------
        driver : Driver
            It may also have ``metrics(problem, state)``, numbers by name that describe the progress; and
            ``stopped(problem, state, why)``, the final state after a subscriber's request, or None if there is none
            yet: then it is called again after the next pass.
        problem : object
            First argument of the driver's functions.
        source : BlockSource
        columns : ColumnStore or None
            The place of the driver's row columns. The checkpoint stores the version of the columns for its state, and
            that version stays until the next state is saved: a kill at any moment leaves the two consistent.
        model : callable or None
            Makes the estimator from a final state; subscribers may ask for it after each round.

        Returns
        -------
        state : object
            The driver's last state. `RowColumns.open` opens its columns.
        stats : list of PassStats
            One for each pass of this call.
        """
        state, rounds = driver.init(problem), 0
        checkpoint = self.checkpoint
        saved = None if checkpoint is None else checkpoint.load(self.fingerprint)
        if saved is None:
            row_columns = None if columns is None else columns.create(source)
        else:
            values = dict(saved.values)
            version = values.pop(_VERSION, None)
            row_columns = None if columns is None or version is None else columns.open(source, version)
            state, rounds = decode_state(type(state), saved.arrays, values), saved.rounds
        stats: list[PassStats] = []
        started = time.perf_counter()
        # optional functions of a driver (see `dkl.protocols.driver`)
        metrics: Any = getattr(driver, "metrics", lambda problem, state: {})
        stopped: Any = getattr(driver, "stopped", lambda problem, state, why: None)

        def tell(kind: Kind, detail: Mapping[str, Any], model: Callable[[], Any] | None = None) -> None:
            heard(Event(kind, "rounds", rounds, seconds=time.perf_counter() - started, detail=detail, model=model))

        def so_far() -> Any:
            """The model of the current state, for subscribers that ask for it; None if there is none."""
            ended = stopped(problem, state, "a look at the model so far")
            return None if ended is None or model is None else model(ended)

        def save() -> None:
            if checkpoint is not None:
                arrays, values = encode_state(state)
                if row_columns is not None:
                    # If the process is killed between the commit of the columns and this save, the previous state uses
                    # the previous columns, which stay until then (`keeps_last`).
                    values = {**values, _VERSION: row_columns.version}
                checkpoint.save(arrays, values, fingerprint=self.fingerprint, rounds=rounds)

        # subscribers get the final event even if a round fails
        finished, shares_pieces, heard = False, False, RequestKeeper(self.publish, "rounds")
        tell("started", {})
        try:
            # the whole of a method: ask for records, read the rows once for them, step
            while records := driver.request(problem, state):
                shares_pieces |= any(getattr(record, "kept_as", "") != "" for record in records)
                result = run_pass(
                    source,
                    records,
                    publish=heard,
                    memory_limit=self.memory_limit,
                    device=self.device,
                    columns=row_columns,
                )
                state, row_columns = driver.step(problem, state, result.results), result.columns
                rounds += 1
                stats.append(result.stats)
                save()
                tell("advanced", metrics(problem, state), so_far)
                ended = stopped(problem, state, heard.request) if heard.request else None
                if ended is not None:
                    state = ended
                    save()
                    break
            finished = True
        finally:
            if shares_pieces:
                forget_pieces(source, self.device)
            tell("finished", {} if finished else {"failed": True})
        return state, stats

    def learn(self, learner: Learns, dataset: Any, context: Any) -> Any:
        """Fitted features: the learner after `fit_within`.

        A plan records the passes of that fit, and returns a copy with a feature map of the largest size.
        """
        return learner.fit_within(dataset, context)

    def ends(self, is_enough: bool) -> bool:
        """Whether a loop over fits ends before its last one, which the results of passes decide.

        A plan, which has no results, counts all of them.
        """
        return is_enough

    def holds(self, items: Mapping[str, int]) -> None:
        """Count bytes that are held beside the passes, item by item as in `Driver.memory`; a fit need not."""

    def read(
        self,
        source: BlockSource,
        records: Sequence[Record],
        taken: Callable[[PassResult], T],
        planned: T | None,
        *,
        is_read_again: bool = True,
    ) -> T:
        """The value of `taken` for the result of one pass.

        A plan, which runs no pass, uses `planned` instead, a value of the same size; with None it ends there.
        `is_read_again` is that of `run_pass`.
        """
        passed = run_pass(
            source,
            records,
            publish=self.publish,
            memory_limit=self.memory_limit,
            device=self.device,
            is_read_again=is_read_again,
        )
        return taken(passed)


class PlanEndsError(Exception):
    """A plan has reached the last pass of a fit, on whose results no other pass depends."""


@dataclass(frozen=True, eq=False)
class PlannedRun(Run):
    """Records the passes of a fit instead of running them: a plan is the fit itself, with this run.

    A driver on whose state later passes depend has ``planned(problem)``, a state of the largest size; after one without
    it the plan is complete.

    Attributes
    ----------
    n_rows : int
        Rows of the plan. A pass over a sample of them costs its share.
    passes : list of (records, int)
        Each kind of pass, and how often it runs at most.
    held : list of dict of str to int
        Peak bytes of each driver in addition to its passes, by item.
    driving : list of callable
        ``(few, flops_per_second) -> float``: seconds of the drivers outside the passes, from their ``driving``.
    problems : list
        The problems of the drivers.
    stages : list of (passes, dict of int)
        The passes and the peak bytes of each stage that has ended and freed its memory, as `passes` and `held` have
        those of the present one.
    """

    n_rows: int = 0
    passes: list[tuple[Sequence[Record], int]] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    driving: list[Callable[[Rows, float], float]] = field(default_factory=list)
    problems: list[Any] = field(default_factory=list)
    stages: list[tuple[Passes, dict[str, int]]] = field(default_factory=list)

    def drive(
        self,
        driver: Driver[Any, Any],
        problem: object,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, list[PassStats]]:
        """Record the passes of a driver; returns its planned state, and no passes.

        Raises
        ------
        PlanEndsError
            If it has no planned state.
        """
        there: Any = driver
        self.problems.append(problem)
        self._note(source, driver.plan(problem))
        if hasattr(driver, "memory"):
            self.held.append(there.memory(problem, self.n_rows, row_bytes(source)))
        if hasattr(driver, "driving"):
            self.driving.append(partial(there.driving, problem, self.n_rows))
        if not hasattr(driver, "planned"):
            raise PlanEndsError
        return there.planned(problem), []

    def learn(self, learner: Learns, dataset: Any, context: Any) -> Any:
        """Record the passes of a fit of features, which is a stage of its own."""
        self.end_stage()
        features, plan = learner.planned(dataset)
        plan.end_stage()
        self.stages.extend(plan.stages)
        self.driving.extend(plan.driving)
        return features

    def end_stage(self) -> None:
        """Begin another stage, unless nothing has happened in the present one."""
        if self.passes or self.held:
            self.stages.append(([*self.passes], largest_held(self.held)))
        self.passes.clear()
        self.held.clear()

    def add(
        self, other: PlannedRun, times: int = 1, beside: Mapping[str, int] | None = None, share: float = 1.0
    ) -> None:
        """Append the stages of another plan.

        Parameters
        ----------
        other : PlannedRun
        times : int
            How often they run; 0 if they may run in place of others, so that only their memory counts.
        beside : mapping of str to int or None
            Further bytes that are held meanwhile, by item.
        share : float
            The most rows of one task, as a share of those of a block.
        """
        self.end_stage()
        other.end_stage()
        for passes, held in other.stages:
            repeated = [
                ([of_share(often(record, times), share) for record in records], calls * times)
                for records, calls in passes
            ]
            self.stages.append((repeated, {**held, **(beside or {})}))
        self.driving.extend(partial(_repeated, seconds, times) for seconds in other.driving)

    def ends(self, is_enough: bool) -> bool:
        """Whether a loop over fits ends before its last one: never."""
        return False

    def holds(self, items: Mapping[str, int]) -> None:
        """Record bytes that are held beside the passes."""
        self.held.append(dict(items))

    def read(
        self,
        source: BlockSource,
        records: Sequence[Record],
        taken: Callable[[PassResult], T],
        planned: T | None,
        *,
        is_read_again: bool = True,
    ) -> T:
        """Record one pass; returns `planned` instead of the value for its results.

        Raises
        ------
        PlanEndsError
            If `planned` is None.
        """
        self._note(source, [(records, 1)])
        if planned is None:
            raise PlanEndsError
        return planned

    def _note(self, source: BlockSource, passes: Sequence[tuple[Sequence[Record], int]]) -> None:
        share = float(np.sum(source.block_rows)) / max(self.n_rows, 1)
        self.passes.extend(([of_share(record, share) for record in records], calls) for records, calls in passes)


def _repeated(seconds: Callable[[Rows, float], float], times: int, few: Rows, flops_per_second: float) -> float:
    """The seconds of drivers that run `times` times; what runs in place of others is not timed."""
    return times * seconds(few, flops_per_second) if times else 0.0
