"""A run that records passes in the place of running them: what is recorded, and what a fit goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.methods.base import FeatureLearner, replayed_once
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.room import check_room
from dkl.passes.loop import PlanEndsError, PlannedRun, Run
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.protocols.source import row_bytes


@dataclass(frozen=True)
class Counted:
    """The weight of all rows, once it is known."""

    weight: float | None = None


class Counting:
    """One pass for the weight of the rows; the problem is the name of the record."""

    def init(self, problem: str) -> Counted:
        return Counted()

    def request(self, problem: str, state: Counted) -> Sequence[Record] | None:
        return None if state.weight is not None else (weight_of_rows(problem),)

    def step(self, problem: str, state: Counted, results: Sequence[Any]) -> Counted:
        return Counted(float(results[0]["weight"]))

    def plan(self, problem: str) -> Sequence[tuple[Sequence[Record], int]]:
        return [((weight_of_rows(problem),), 1)]


class First(Counting):
    """One whose result a later pass needs, and that says what it holds and how long it computes."""

    def planned(self, problem: str) -> Counted:
        return Counted(1.0)

    def memory(self, problem: str, n_rows: int, row_bytes: int) -> dict[str, int]:
        return {"rows": n_rows * row_bytes}

    def driving(self, problem: str, n_rows: int, few: np.ndarray, flops_per_second: float) -> float:
        return n_rows * len(few) / flops_per_second


def summed(block: Block, operands: Any) -> dict[str, np.ndarray]:
    return {"weight": block.weights.sum()}


def weight_of_rows(name: str) -> BlockSum:
    return BlockSum(name, summed, {"weight": Accumulator(())}, cost=lambda rows, columns: Cost(float(rows * columns)))


ROWS = as_dataset(np.arange(4_000.0).reshape(1_000, 4))


def test_a_fit_goes_on_with_planned_states_until_a_driver_has_none() -> None:
    run = PlannedRun(n_rows=1_000)
    state, stats = run.drive(First(), "first", ROWS.source)
    assert (state, stats) == (Counted(1.0), [])
    with pytest.raises(PlanEndsError):
        run.drive(Counting(), "last", ROWS.source)
    assert [(records[0].name, calls) for records, calls in run.passes] == [("first", 1), ("last", 1)]
    assert run.problems == ["first", "last"]
    assert run.held == [{"rows": 1_000 * row_bytes(ROWS.source)}]
    assert [seconds(np.zeros((5, 4)), 1e3) for seconds in run.driving] == [5.0]


def test_a_pass_is_answered_by_what_is_planned_for_it() -> None:
    run, record = PlannedRun(n_rows=1_000), weight_of_rows("one pass")
    assert run.read(ROWS.source, [record], lambda passed: float(passed.results[0]["weight"]), 7.0) == 7.0
    with pytest.raises(PlanEndsError):
        run.read(ROWS.source, [record], lambda passed: passed, None)
    assert run.passes == [([record], 1), ([record], 1)]


def test_a_pass_over_a_sample_of_the_rows_costs_its_share() -> None:
    run, sample = PlannedRun(n_rows=1_000), RowSample("sample", 10, 0)
    run.read(ROWS.thin(250).source, [weight_of_rows("of some"), sample], lambda passed: 0.0, 1.0)
    ((some, same), _) = run.passes[0]
    assert isinstance(some, BlockSum)
    assert some.cost(1_000, 4).flops == 250 * 4
    assert same is sample
    block = ROWS.source.reader().load(ROWS.source.ticket(0))
    assert some.function(block, {})["weight"] == np.ceil(block.n_rows / 4)


class Learned:
    """A learner whose fit has one pass, of five seconds of its driver."""

    def fit_within(self, dataset: Any, context: Any) -> Any:
        return "fitted", context

    def planned(self, dataset: Any) -> tuple[Any, PlannedRun]:
        run = PlannedRun(n_rows=dataset.n_rows)
        run.drive(First(), "features", dataset.source)
        return "planned", run


def test_features_are_a_stage_of_a_plan_whose_memory_is_free_afterwards() -> None:
    assert Run().learn(Learned(), ROWS, "context") == ("fitted", "context")
    run = PlannedRun(n_rows=1_000)
    run.drive(First(), "before", ROWS.source)
    run.holds({"more": 10**9})
    assert run.learn(Learned(), ROWS, None) == "planned"
    run.drive(First(), "after", ROWS.source)
    run.end_stage()
    names = [[records[0].name for records, _ in passes] for passes, _ in run.stages]
    assert names == [["before"], ["features"], ["after"]]
    rows = 1_000 * row_bytes(ROWS.source)
    assert [held for _, held in run.stages] == [{"more": 10**9}, {"rows": rows}, {"rows": rows}]
    assert sum(seconds(np.zeros((5, 4)), 1e3) for seconds in run.driving) == 15.0


@pytest.mark.parametrize("times", [0, 1, 3])
def test_stages_that_run_several_times_are_as_many_passes_and_those_in_place_of_others_none(times: int) -> None:
    usual = replace(weight_of_rows("usual"), usual_calls=2)
    trial, run = PlannedRun(n_rows=1_000), PlannedRun(n_rows=1_000)
    trial.drive(First(), "trial", ROWS.source)
    trial.passes.append(([usual, RowSample("sample", 10, 0)], 7))
    run.add(trial, times, {"sample": 5})
    ((passes, held),) = run.stages
    assert [calls for _, calls in passes] == [times, 7 * times]
    assert passes[1][0][0].usual_calls == 2 * times  # type: ignore[union-attr]
    assert held == {"rows": 1_000 * row_bytes(ROWS.source), "sample": 5}
    assert sum(seconds(np.zeros((5, 4)), 1e3) for seconds in run.driving) == 5.0 * times


def test_a_plan_counts_every_fit_of_a_loop_that_results_may_end() -> None:
    assert Run().ends(True)
    assert not PlannedRun().ends(True)
    assert not Run().ends(False)


def test_a_stage_whose_tasks_have_few_rows_costs_and_needs_their_share() -> None:
    trial, run = PlannedRun(n_rows=1_000), PlannedRun(n_rows=1_000)
    trial.drive(First(), "trial", ROWS.source)
    run.add(trial, share=0.25)
    (((of_trial, _),), _), (((of_run, _),), _) = trial.stages[0], run.stages[0]
    (whole,), (part,) = of_trial, of_run
    assert part.cost(1_000, 4) == whole.cost(250, 4)
    assert whole.cost(1_000, 4) != part.cost(1_000, 4)


def test_equal_learners_of_a_plan_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice joins the same features to many others, and replayed them for each: a third of the time of a plan."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    dataset, replayed, replay = as_dataset(X, (X[:, 0] > 0).astype(int)), [], FeatureLearner._replay

    def counted(self: Any, rows: Any) -> Any:
        replayed.append(type(self).__name__)
        return replay(self, rows)

    monkeypatch.setattr(FeatureLearner, "_replay", counted)
    one, again = (MarginFeatures(n_features=10, random_state=0) for _ in range(2))
    with replayed_once():
        (features, plan), (others, same) = one.planned(dataset), again.planned(dataset)
        assert features is not others
        assert plan is same
        assert MarginFeatures(n_features=12).planned(dataset)[1] is not plan
    n_inside = len(replayed)
    one.planned(dataset)
    again.planned(dataset)
    # the search for waves inside is a learner of its own
    assert len(replayed) == 2 * n_inside


def test_few_features_need_no_look_at_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan measured its process a hundred times, although features of some megabytes are never refused."""

    def unmeasured(*_: Any) -> Any:
        raise AssertionError("the memory was measured")

    monkeypatch.setattr("dkl.methods.room.own_room", unmeasured)
    check_room(RandomFeatures(n_features=10), 10, 3, n_mapped=100)
    with pytest.raises(AssertionError, match="measured"):
        check_room(RandomFeatures(n_features=10), 10**8, 3)
