"""The one loop of every learner (ask the driver for records, run a pass, step, save, until it asks for none), and what
fits hand their passes to: `Run` runs them, `PlannedRun` records them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dkl.errors import StoreError
from dkl.events import Event, Kind, StopRequested, Subscriber, ignore
from dkl.kernels.device import Device
from dkl.passes.backends import current_client
from dkl.passes.chain import forget_pieces
from dkl.passes.checkpoint import Checkpoint, decode_state, encode_state
from dkl.passes.engine import PassResult, run_pass
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, stays_here
from dkl.protocols.arrays import Rows
from dkl.protocols.driver import Driver
from dkl.protocols.records import Record, of_share
from dkl.protocols.source import BlockSource, row_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P")
S = TypeVar("S", bound="DataclassInstance")
T = TypeVar("T")
# Stands beside the state's own fields in a checkpoint; no field's name has a space.
_VERSION = "row columns"


@dataclass(frozen=True)
class ColumnStore:
    """The row columns that a driver needs, and where they go.

    Parameters
    ----------
    store : str
        A local path or a URL that every worker process can reach.
    columns : mapping of str to (str, tuple of int)
        The dtype and the shape of one row's value, by name; all zeros at first.
    start : RowColumns or None
        Of the same rows: their values take the place of the zeros, and they stay as they are.
    """

    store: str
    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    start: RowColumns | None = None

    def create(self, source: BlockSource) -> RowColumns:
        """New columns, in the place of those of a run that was killed before its first checkpoint."""
        # Written over: without a checkpoint there is no state that the old columns could belong to.
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
    """Ask one worker on each host whether it sees a local folder, before the first task would fail for want of it.

    The folder is made if it is not there.

    Raises
    ------
    StoreError
        If a worker does not: the folder lies on a disk of the driver's machine alone.
    """
    client = current_client()
    if client is None or "://" in store:
        return
    os.makedirs(store, exist_ok=True)
    by_host = {address.rpartition(":")[0]: address for address in client.nthreads()}
    # A worker that is lost meanwhile answers with an error, which is for the pass to deal with.
    answers = client.run(os.path.isdir, store, workers=list(by_host.values()), on_error="return")
    if blind := sorted(address for address, answer in answers.items() if answer is False):
        raise StoreError(
            f"the values that are kept for each row between passes lie in {store!r}, which the worker {blind[0]} does "
            "not see; pass checkpoint= a folder or URL that all workers reach, or set Dask's temporary_directory to a "
            "shared folder: dask.config.set(temporary_directory='/shared/tmp')"
        )


def run_driver(
    driver: Driver[P, S],
    problem: P,
    source: BlockSource,
    *,
    publish: Subscriber = ignore,
    checkpoint: Checkpoint | None = None,
    fingerprint: str = "",
    memory_limit: int | str | None = None,
    device: Device = "cpu",
    columns: ColumnStore | None = None,
    model: Callable[[S], Any] | None = None,
) -> tuple[S, list[PassStats]]:
    """Run a method to its end, or on from its checkpoint.

    Parameters
    ----------
    driver : Driver
        May have a function ``metrics(problem, state)`` too: numbers by name that say where the method stands; and
        ``stopped(problem, state, why)``: the state to end with when a subscriber has asked for it, None while it has
        none: then it is asked again after the next pass.
    problem : object
        What the driver's functions take first.
    source : BlockSource
    publish : callable
        Told of every round (name "rounds", the driver's metrics as detail) and of the passes within.
    checkpoint : Checkpoint or None
        Where the state is kept after each round. A run that was broken off resumes with the same bits, a finished one
        returns at once.
    fingerprint : str
        Of data, parameters and version; a checkpoint of another one is refused.
    memory_limit, device
        As in `dkl.passes.engine.run_pass`.
    columns : ColumnStore or None
        Where the driver's row columns live. The checkpoint says which version of them its state belongs to, and that
        version stays until the next state is saved: a kill at any moment leaves the two consistent.
    model : callable or None
        The estimator that a state to end with makes; subscribers may ask for it after each round.

    Returns
    -------
    state : object
        The driver's last state. Its columns are what `RowColumns.open` opens.
    stats : list of PassStats
        One a pass that this call ran.
    """
    state, rounds = driver.init(problem), 0
    saved = None if checkpoint is None else checkpoint.load(fingerprint)
    if saved is None:
        row_columns = None if columns is None else columns.create(source)
    else:
        values = dict(saved.values)
        version = values.pop(_VERSION, None)
        row_columns = None if columns is None or version is None else columns.open(source, version)
        state, rounds = decode_state(type(state), saved.arrays, values), saved.rounds
    stats: list[PassStats] = []
    started = time.perf_counter()
    # What a driver may have beside its four functions (see `dkl.protocols.driver`).
    metrics: Any = getattr(driver, "metrics", lambda problem, state: {})
    stopped: Any = getattr(driver, "stopped", lambda problem, state, why: None)

    def tell(kind: Kind, detail: Mapping[str, Any], model: Callable[[], Any] | None = None) -> None:
        heard(Event(kind, "rounds", rounds, seconds=time.perf_counter() - started, detail=detail, model=model))

    def so_far() -> Any:
        """The model that the state at hand makes, for subscribers that ask for it; None while there is none."""
        ended = stopped(problem, state, "a look at the model so far")
        return None if ended is None or model is None else model(ended)

    def save() -> None:
        if checkpoint is not None:
            arrays, values = encode_state(state)
            if row_columns is not None:
                # After a kill between the commit of the columns and this save, the state before goes with the columns
                # before, which stay until then (`keeps_last`).
                values = {**values, _VERSION: row_columns.version}
            checkpoint.save(arrays, values, fingerprint=fingerprint, rounds=rounds)

    # Subscribers hear of the end of the rounds also when one of them fails.
    finished, shares_pieces, heard = False, False, _Heard(publish)
    tell("started", {})
    try:
        # The whole of a method: ask for records, read the rows once for them, step.
        while records := driver.request(problem, state):
            shares_pieces |= any(getattr(record, "kept_as", "") != "" for record in records)
            result = run_pass(
                source, records, publish=heard, memory_limit=memory_limit, device=device, columns=row_columns
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
            forget_pieces(source, device)
        tell("finished", {} if finished else {"failed": True})
    return state, stats


class _Heard:
    """A subscriber whose requests to stop are kept until there is a state to end with.

    Attributes
    ----------
    request : str
        Why to stop; empty until somebody asks for it.
    """

    def __init__(self, publish: Subscriber) -> None:
        self._publish = publish
        self.request = ""

    def __call__(self, event: Event) -> None:
        try:
            self._publish(event)
        except StopRequested as request:
            self.request = str(request) or "a subscriber ended the rounds"


@dataclass(frozen=True, eq=False)
class Run:
    """How passes are run: what a fit hands its passes to. `PlannedRun` takes its place where they are only planned.

    Parameters
    ----------
    publish : callable
    memory_limit : int, str or None
    device : {"cpu", "gpu"}
    checkpoint : Checkpoint or None
    fingerprint : str
    estimator : callable or None
        The estimator that a fit (a `LinearFit`, an `AdamFit`) makes: a look at those under way.
    """

    publish: Subscriber = ignore
    memory_limit: int | str | None = None
    device: Any = "cpu"
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    estimator: Callable[[Any], Any] | None = None

    def looked_at(self, fit: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        """How subscribers make the estimator so far of a driver's state: `fit` makes the state a fit."""
        estimator = self.estimator
        return None if estimator is None else lambda state: estimator(fit(state))

    def drive(
        self,
        driver: Driver[Any, Any],
        problem: object,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, list[PassStats]]:
        """The last state of a driver, and what each of its passes took: `run_driver`."""
        return run_driver(
            driver,
            problem,
            source,
            publish=self.publish,
            checkpoint=self.checkpoint,
            fingerprint=self.fingerprint,
            memory_limit=self.memory_limit,
            device=self.device,
            columns=columns,
            model=model,
        )

    def read(
        self, source: BlockSource, records: Sequence[Record], taken: Callable[[PassResult], T], planned: T | None
    ) -> T:
        """What `taken` makes of the result of one pass.

        A plan, which runs no pass, goes on with `planned` in its place, of the same size; with None it ends there.
        """
        return taken(
            run_pass(source, records, publish=self.publish, memory_limit=self.memory_limit, device=self.device)
        )


class PlanEndsError(Exception):
    """A plan has come to the last pass of a fit, on whose results no other pass depends."""


@dataclass(frozen=True, eq=False)
class PlannedRun(Run):
    """Records the passes that a fit hands to it, in the place of running them: a plan is the fit itself, over this.

    A driver on whose state later passes depend has ``planned(problem)``, a state of the largest size; after one that
    has none the plan is whole.

    Attributes
    ----------
    n_rows : int
        Of the plan. A pass over a sample of them costs its share.
    passes : list of (records, int)
        Each kind of pass, and how often it runs at most.
    held : list of dict of str to int
        Bytes that each driver holds at most in addition to its passes, item by item.
    driving : list of callable
        ``(few, flops_per_second) -> float``: seconds of the drivers outside the passes, as of their ``driving``.
    problems : list
        What the drivers solve.
    """

    n_rows: int = 0
    passes: list[tuple[Sequence[Record], int]] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    driving: list[Callable[[Rows, float], float]] = field(default_factory=list)
    problems: list[Any] = field(default_factory=list)

    def drive(
        self,
        driver: Driver[Any, Any],
        problem: object,
        source: BlockSource,
        columns: ColumnStore | None = None,
        model: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, list[PassStats]]:
        """Record the passes of a driver; its planned state, of no pass.

        Raises
        ------
        PlanEndsError
            If it has none.
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

    def read(
        self, source: BlockSource, records: Sequence[Record], taken: Callable[[PassResult], T], planned: T | None
    ) -> T:
        """Record one pass; `planned` in the place of what would be made of its results.

        Raises
        ------
        PlanEndsError
            If that is None.
        """
        self._note(source, [(records, 1)])
        if planned is None:
            raise PlanEndsError
        return planned

    def _note(self, source: BlockSource, passes: Sequence[tuple[Sequence[Record], int]]) -> None:
        share = float(np.sum(source.block_rows)) / max(self.n_rows, 1)
        if share < 1.0:
            passes = [([of_share(record, share) for record in records], calls) for records, calls in passes]
        self.passes.extend(passes)
