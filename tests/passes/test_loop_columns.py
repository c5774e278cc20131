"""Row columns and checkpoint stay one: a run that was broken off goes on from the version its state belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.errors import StoreError
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.loop import ColumnStore, Run
from dkl.passes.row_columns import RowColumns
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, RowSample

ROWS, ROUNDS = 60, 4


def grow(block: Block, operands: Any) -> dict[str, np.ndarray]:
    alpha = np.tanh(block.columns["alpha"] + block.X.sum(axis=1) + operands["shift"])
    return {"alpha": alpha, "total": np.array(alpha.sum())}


def look(block: Block, operands: Any) -> dict[str, np.ndarray]:
    return {"columns": np.array(float(block.X.shape[1])), "total": np.array(block.columns["alpha"] @ block.y)}


@dataclass(frozen=True)
class State:
    total: float = 0.0
    passes: int = 0
    seen: tuple[float, ...] = ()


class Growing:
    """Every other pass writes the column; the passes between read it without X, or bring a sample with it."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def init(self, problem: None) -> State:
        return State()

    def request(self, problem: None, state: State) -> Sequence[Any] | None:
        if state.passes == 2 * ROUNDS:
            return None
        if state.passes % 2:
            return [
                BlockSum(
                    "look", look, dict.fromkeys(("columns", "total"), Accumulator(())), reads=("alpha",), needs_x=False
                )
            ]
        record = BlockSum(
            "grow",
            grow,
            {"total": Accumulator(())},
            {"shift": state.total},
            reads=("alpha",),
            writes={"alpha": "float64"},
        )
        return [record, RowSample("sample", 5, seed=1, round=state.passes, reads=("alpha",))]

    def step(self, problem: None, state: State, results: Sequence[Any]) -> State:
        if state.passes == self.broken:
            raise KeyboardInterrupt
        seen = float(results[1].columns["alpha"].sum()) if len(results) > 1 else float(results[0]["columns"])
        return State(float(results[0]["total"]), state.passes + 1, (*state.seen, seen))


def rows() -> Any:
    X = np.random.default_rng(0).standard_normal((ROWS, 3))
    X = da.from_array(X, chunks=(17, 3))
    return as_dataset(X, (X[:, 0] > 0).astype(int)).source


def run(folder: Path, broken: int | None = None) -> tuple[State, np.ndarray]:
    source, store = rows(), ColumnStore(str(folder / "columns"), {"alpha": ("float64", ())})
    with dask.config.set(scheduler="threads"):
        state, _ = Run(checkpoint=Checkpoint(folder / "state"), fingerprint="f").drive(
            Growing(broken), None, source, columns=store
        )
    return state, np.concatenate(list(RowColumns.open(store.store, source).column("alpha")))


@pytest.mark.parametrize("broken", [0, ROUNDS, 2 * ROUNDS - 1])
def test_a_run_broken_off_between_its_columns_and_its_checkpoint_goes_on_to_the_same_bits(
    tmp_path: Path, broken: int
) -> None:
    """The step fails after the pass has committed its column: the state that is saved belongs to the version before."""
    whole, column = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", broken)
    again, same = run(tmp_path / "broken")
    assert again == whole
    np.testing.assert_array_equal(same, column)


def test_a_finished_run_returns_with_its_columns(tmp_path: Path) -> None:
    state, column = run(tmp_path)
    again, same = run(tmp_path)
    assert again == state
    np.testing.assert_array_equal(same, column)


def test_light_passes_see_no_columns_of_x_and_samples_bring_theirs(tmp_path: Path) -> None:
    state, _ = run(tmp_path)
    assert state.seen[1::2] == (0.0,) * ROUNDS
    assert state.seen[0] == 0.0
    assert all(seen != 0.0 for seen in state.seen[2::2])


def test_columns_of_another_run_are_refused(tmp_path: Path) -> None:
    run(tmp_path)
    RowColumns.create(str(tmp_path / "columns"), rows(), {"alpha": ("float64", ())}, overwrite=True)
    with pytest.raises(StoreError, match="belong to another run"):
        run(tmp_path)
