"""The one loop of every learner: ask the driver for records, run a pass, step, save, until it asks for none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dkl.errors import StoreError
from dkl.events import Event, Kind, StopRequested, Subscriber, ignore
from dkl.kernels.device import Device
from dkl.passes.backends import current_client
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.cutting import forget_pieces
from dkl.passes.engine import run_pass
from dkl.passes.row_columns import RowColumns
from dkl.passes.session import PassStats, stays_here
from dkl.passes.states import decode_state, encode_state
from dkl.protocols.driver import Driver
from dkl.protocols.source import BlockSource

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P")
S = TypeVar("S", bound="DataclassInstance")
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
