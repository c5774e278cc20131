"""A run that records passes in the place of running them: what is recorded, and what a fit goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.passes.loop import PlanEndsError, PlannedRun
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
