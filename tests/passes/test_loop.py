"""The loop: rounds, events, resuming to the same bits wherever it was broken off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
import pytest

from dkl.errors import StoreError
from dkl.events import Event
from dkl.kernels.threads import threads_at_work
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.loop import Run
from tests.passes.faults import Killer
from tests.passes.sources import COLUMNS, Source, chain, chained, moments, ragged


@dataclass(frozen=True)
class Problem:
    rounds: int = 6
    seed: int = 1


@dataclass(frozen=True)
class State:
    w: np.ndarray
    history: tuple[float, ...] = ()


class Descent:
    """Each round's operands depend on the last round's sums; every third round is a fold."""

    def init(self, problem: Problem) -> State:
        return State(np.zeros(COLUMNS))

    def request(self, problem: Problem, state: State) -> Sequence[Any] | None:
        done = len(state.history)
        if done >= problem.rounds:
            return None
        if done % 3 == 2:
            return [replace(chain(), initial=state.w)]
        return [moments(COLUMNS, W=(np.eye(COLUMNS) + state.w).astype(np.float32))]

    def step(self, problem: Problem, state: State, results: Sequence[Any]) -> State:
        (result,) = results
        w = result if isinstance(result, np.ndarray) else np.tanh(state.w + result["sums"].sum(axis=1) / 50)
        return State(w, (*state.history, float(w.sum())))

    def plan(self, problem: Problem) -> Sequence[tuple[Sequence[Any], int]]:
        return [([moments(COLUMNS)], problem.rounds)]


class Failing(Descent):
    """Breaks off in the step of one round, once."""

    def __init__(self, round: int, error: type[BaseException]) -> None:
        self.round, self.error = round, error

    def step(self, problem: Problem, state: State, results: Sequence[Any]) -> State:
        if len(state.history) == self.round:
            raise self.error
        return super().step(problem, state, results)


SOURCE = Source(ragged(20))


@pytest.fixture(autouse=True)
def threads(request):
    if "client" in request.fixturenames or "mortal" in request.fixturenames:
        yield
        return
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def assert_same(left: State, right: State) -> None:
    assert left.w.tobytes() == right.w.tobytes()
    assert left.history == right.history


def test_the_loop_is_request_pass_step_until_none():
    from dkl.passes.loop import run_pass

    driver, problem = Descent(), Problem()
    state = driver.init(problem)
    while records := driver.request(problem, state):
        state = driver.step(problem, state, run_pass(SOURCE, records).results)
    got, stats = Run().drive(driver, problem, SOURCE)
    assert_same(got, state)
    assert [one.name for one in stats] == ["potentials", "potentials", "partial_fit"] * 2
    assert all(one.blocks == np.count_nonzero(SOURCE.block_rows) for one in stats)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("broken_off", range(6))
def test_a_run_that_was_broken_off_resumes_with_the_same_bits(tmp_path, broken_off, error):
    whole, _ = Run().drive(Descent(), Problem(), SOURCE)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(error):
        Run(checkpoint=checkpoint, fingerprint="f").drive(Failing(broken_off, error), Problem(), SOURCE)
    state, stats = Run(checkpoint=checkpoint, fingerprint="f").drive(Descent(), Problem(), SOURCE)
    assert_same(state, whole)
    assert len(stats) == 6 - broken_off


def test_a_finished_run_returns_without_a_pass(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    first, _ = Run(checkpoint=checkpoint).drive(Descent(), Problem(), SOURCE)
    again, stats = Run(checkpoint=checkpoint).drive(Descent(), Problem(), SOURCE)
    assert_same(again, first)
    assert stats == []


def test_a_checkpoint_of_another_run_is_refused_before_any_pass(tmp_path):
    Run(checkpoint=Checkpoint(tmp_path), fingerprint="mine").drive(Descent(), Problem(1), SOURCE)
    with pytest.raises(StoreError, match="another run"):
        Run(checkpoint=Checkpoint(tmp_path), fingerprint="other").drive(Descent(), Problem(1), SOURCE)


def test_rounds_on_two_worker_processes_have_the_bits_of_one_thread(client):
    on_cluster, _ = Run().drive(Descent(), Problem(), SOURCE)
    with dask.config.set(scheduler="synchronous"):
        here, _ = Run().drive(Descent(), Problem(), SOURCE)
    assert_same(on_cluster, here)


@pytest.mark.slow
def test_rounds_survive_a_killed_worker(mortal):
    with Killer(mortal.cluster, 0.05):
        got, _ = Run().drive(Descent(), Problem(12), SOURCE)
    with dask.config.set(scheduler="synchronous"):
        assert_same(got, Run().drive(Descent(), Problem(12), SOURCE)[0])


def test_subscribers_hear_rounds_and_passes_from_start_to_end():
    seen: list[Event] = []
    Run(publish=seen.append).drive(Descent(), Problem(2), SOURCE)
    rounds = [(event.kind, event.done) for event in seen if event.name == "rounds"]
    assert rounds == [("started", 0), ("advanced", 1), ("advanced", 2), ("finished", 2)]
    potentials = [event for event in seen if event.name == "potentials"]
    blocks = np.count_nonzero(SOURCE.block_rows)
    assert [event.kind for event in potentials].count("started") == 2
    assert {event.total for event in potentials} == {blocks}
    assert sum(event.rows for event in potentials) == 2 * sum(SOURCE.rows)
    assert potentials[-1].kind == "finished"
    assert potentials[-1].done == blocks


def test_a_pass_that_fails_tells_that_it_ended():
    seen: list[Event] = []
    with pytest.raises(RuntimeError):
        Run(publish=seen.append).drive(Failing(1, RuntimeError), Problem(), SOURCE)
    assert seen[-1].kind == "finished"
    assert seen[-1].detail == {"failed": True}
    assert threads_at_work() == 0


def test_no_step_of_a_fold_changes_the_state_that_it_is_given():
    first = np.zeros(COLUMNS)
    chained(first, (1, np.ones((2, COLUMNS))), {})
    assert not first.any()
