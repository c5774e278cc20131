"""The one loop of every learner: ask the driver for records, run a pass, step, save, until it asks for none."""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeVar

from dkl.blocks.device import Device
from dkl.data.source import BlockSource
from dkl.events import Event, Kind, Subscriber, ignore
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.engine import run_pass
from dkl.passes.session import PassStats
from dkl.passes.states import decode_state, encode_state

P = TypeVar("P", contravariant=True)
S = TypeVar("S")


class Driver(Protocol[P, S]):
    """What the loop needs of a method; `dkl.selection.driver` says it in full (passes do not import selection)."""

    def init(self, problem: P) -> S: ...

    def request(self, problem: P, state: S) -> Any: ...

    def step(self, problem: P, state: S, results: Any) -> S: ...


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
) -> tuple[S, list[PassStats]]:
    """Run a method to its end, or on from its checkpoint.

    Parameters
    ----------
    driver : Driver
    problem : object
        What the driver's functions take first.
    source : BlockSource
    publish : callable
        Told of every round (name "rounds") and of the passes within.
    checkpoint : Checkpoint or None
        Where the state is kept after each round. A run that was broken off resumes with the same bits, a finished one
        returns at once.
    fingerprint : str
        Of data, parameters and version; a checkpoint of another one is refused.
    memory_limit, device
        As in `dkl.passes.engine.run_pass`.

    Returns
    -------
    state : object
        The driver's last state.
    stats : list of PassStats
        One a pass that this call ran.
    """
    state, rounds = _start(driver, problem, checkpoint, fingerprint)
    stats: list[PassStats] = []
    started = time.perf_counter()

    def tell(kind: Kind, **detail: Any) -> None:
        publish(Event(kind, "rounds", rounds, seconds=time.perf_counter() - started, detail=detail))

    finished = False
    tell("started")
    try:
        while records := driver.request(problem, state):
            result = run_pass(source, records, publish=publish, memory_limit=memory_limit, device=device)
            state = driver.step(problem, state, result.results)
            rounds += 1
            stats.append(result.stats)
            if checkpoint is not None:
                checkpoint.save(*encode_state(state), fingerprint=fingerprint, rounds=rounds)
            tell("advanced")
        finished = True
    finally:
        tell("finished", **({} if finished else {"failed": True}))
    return state, stats


def _start(driver: Driver[P, S], problem: P, checkpoint: Checkpoint | None, fingerprint: str) -> tuple[S, int]:
    state = driver.init(problem)
    saved = None if checkpoint is None else checkpoint.load(fingerprint)
    if saved is None:
        return state, 0
    return decode_state(type(state), saved.arrays, saved.values), saved.rounds
