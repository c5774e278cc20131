"""The rows that features are tried on: read once, the same as in the view of the source, held out as there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.data.together.rules import held_source
from dkl.events import Event
from dkl.linear.fitting import Run
from dkl.machines import effort, trials
from dkl.machines.choice import PlannedChoice
from dkl.machines.trials import GatheredSource, gathered, gathered_bytes
from dkl.methods.room import planned_kinds
from dkl.passes.loop import PlannedRun, run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, RowSample

N = 900


def rows_of(dataset: Dataset) -> Block:
    """All rows, by their numbers."""
    found: Block = run_pass(dataset.source, [RowSample("all", N, 0)]).results[0]
    return found.rows(np.argsort(found.row_id))


def dataset_of(kind: str) -> Dataset:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(N, 4)).astype(np.float32), generator.integers(3, size=N)
    if kind == "weighted":
        return as_dataset(X, y, generator.integers(0, 3, size=N).astype(float))
    if kind == "table":
        frame = pd.DataFrame({"a": X[:, 0], "b": generator.choice(list("xyz"), size=N)})
        return as_dataset(frame, np.array(["no", "yes"])[y % 2])
    if kind in ("groups", "times"):
        together = {"by_group" if kind == "groups" else "by_time": np.arange(N) // 30}
        return as_dataset(X, y).split({"train": 0.7, "test": 0.3}, **together)["train"]
    return as_dataset(X, y if kind == "classes" else np.column_stack([X[:, 0], X[:, 1]]))


def as_held(dataset: Dataset) -> Dataset:
    """The rows as a fit holds them out."""
    return dataset.with_rows(held_source(dataset.source, dataset.schema), dataset.schema)


@pytest.mark.parametrize("kind", ["classes", "targets", "weighted", "table", "groups", "times"])
def test_gathered_rows_are_those_of_the_view_and_are_held_out_as_there(kind: str) -> None:
    view = as_held(dataset_of(kind)).thin(400, 3)
    few = gathered(view, Run(), 5)
    assert isinstance(few.source, GatheredSource)
    assert (few.n_rows, few.total_weight) == (view.n_rows, view.total_weight)
    ours, theirs = rows_of(few), rows_of(view)
    for name in ("X", "y", "weights", "row_id", "held_with"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert few.source.most_folds == view.source.most_folds
    assert few.schema is view.schema
    # plans go by the blocks of the source
    assert few.source.block_rows.max() <= view.source.base.block_rows.max()
    # what looks for the rule that holds rows together finds it
    assert as_held(few).source is few.source


def test_few_rows_of_many_blocks_are_gathered_in_few_blocks(tmp_path: Path) -> None:
    """Each pass has a task for every block, whose start takes as long as some hundred rows do."""
    X = np.random.default_rng(0).normal(size=(3_000, 4)).astype(np.float32)
    rows = dkl.create_dataset(tmp_path / "rows.zarr", X, X[:, 0] > 0, rows_a_block=100)
    assert rows.source.n_blocks == 30
    few, more = (gathered(rows.thin(count), Run(), 0).source for count in (400, 2_000))
    assert few.block_rows.tolist() == [50] * 8
    # plans go by the blocks of the source
    assert more.block_rows.tolist() == [100] * 20


def test_arrays_sparse_rows_and_too_many_bytes_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of("classes")
    assert isinstance(dataset.source, ArraySource)
    assert gathered(dataset, Run(), 0) is dataset
    view = dataset.thin(400)
    assert gathered_bytes(view) == 400 * (4 * 4 + 32)
    plan = PlannedRun(n_rows=400)
    gathered(view, plan, 0)
    assert len(plan.passes) == 1
    monkeypatch.setattr(trials, "LARGEST_ACCUMULATOR", 1_000)
    assert gathered(view, Run(), 0) is view
    assert gathered(view, plan, 0) is view
    assert len(plan.passes) == 1


@pytest.mark.parametrize("is_sparse", [False, True])
def test_an_array_and_a_store_of_many_rows_have_the_same_sample(
    is_sparse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if these were ten million rows, of which more than the usual number may judge
    monkeypatch.setattr(effort, "LEAST_SEEN", 2_000)
    monkeypatch.setattr(effort, "_ROWS_A_JUDGED_ONE", 2)
    monkeypatch.setitem(effort.EFFORTS, "balanced", replace(effort.EFFORTS["balanced"], least_judged=1_000))
    monkeypatch.setattr(trials, "LARGEST_ACCUMULATOR", 3_000 * (4 * 4 + 32))
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(10_000, 4)).astype(np.float32), generator.normal(size=10_000)
    X = sparse.csr_array(X) if is_sparse else X
    samples = []
    for dataset in (as_dataset(X, y), dkl.create_dataset(tmp_path / "rows.zarr", X, y)):
        machine = dkl.KernelRegressor(random_state=0)._unfitted_copy()
        rows = machine._terms(machine._settled_for(dataset)).sample(dataset).rows
        samples.append(np.sort(np.concatenate([block.row_id for block in rows.source.blocks_without_x()])))
    assert len(samples[0]) == (2_000 if is_sparse else 3_000)
    np.testing.assert_array_equal(*samples)


@pytest.mark.slow
def test_a_store_is_read_by_few_passes_however_many_trials_there_are(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1_500, 6)).astype(np.float32)
    y = (np.sin(2.0 * X[:, 0]) + X[:, 1] > 0).astype(int)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=250)
    passes, reads = Counter[str](), Counter[str]()

    def note(event: Event) -> None:
        if event.kind == "finished":
            passes[event.name] += 1
            reads[event.name] += bool(event.detail.get("bytes"))

    with dask.config.set({"dkl.cache-bytes": 0}):
        # the log loss takes more passes for the last linear model
        machine = dkl.KernelClassifier(loss="squared_error", n_features=60, random_state=0, progress=note).fit(stored)
    trials = int(re.search(r"ended after (\d+) trials", " ".join(machine.reasons_))[1])
    # each trial judges penalties, on the rows that one pass has gathered; the last linear model is that of all rows,
    # whose waves, if refined, start from a model with a penalty of its own
    assert trials <= passes["held-out scores"]
    assert reads["held-out scores"] <= 1
    assert reads["rows to try features on"] == 1
    assert trials > 3 * reads["newton step"] > 0
    assert machine.score(stored) > 0.9


def test_the_plan_knows_of_the_rows_that_are_gathered() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30_000, 10)).astype(np.float32)
    machine = dkl.KernelRegressor(random_state=0)
    dataset = as_dataset(X, X[:, 0])
    names: list[Any] = [records[0].name for records, _ in machine.planned_passes(dataset)]
    assert "rows to try features on" in names
    kinds = planned_kinds(machine.replayed(dataset), {})
    held = max(kind.held.get("rows to try features on", 0) for kind in kinds)
    assert 5_000 * 72 <= held <= 20_000 * 72


def test_the_plan_calibrates_the_candidate_of_most_features_that_may_win() -> None:
    X = np.random.default_rng(0).standard_normal((6_000, 8)).astype(np.float32)
    dataset, machine = as_dataset(X, X[:, 0] > 0), dkl.KernelClassifier(random_state=0)._unfitted_copy()
    terms = machine._terms(machine._settled_for(dataset))
    largest, plan = Counter[str](), PlannedChoice(terms, dataset, None).trials()
    plan.end_stage()
    for passes, _ in plan.stages:
        for record in (record for records, _ in passes for record in records if isinstance(record, BlockSum)):
            if "feature_map" in record.operands:
                largest[record.name] = max(largest[record.name], record.operands["feature_map"].n_features)
    assert largest["calibration"] == largest["held-out scores"] > 1_000


@pytest.mark.usefixtures("little_work")
def test_candidates_that_cannot_be_fitted_are_left_out_of_a_plan_as_of_a_race(tmp_path: Path) -> None:
    """Waves that descend have no gradients of counts; the fit of a store is planned first."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((700, 4)).astype(np.float32)
    y = generator.poisson(np.exp(X[:, 0])).astype(float)
    machine = dkl.KernelRegressor(loss="poisson", effort="fast", random_state=0, progress=False)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=200)
    assert dkl.plan(machine, stored).n_passes > 0
    assert machine.fit(stored).score(stored) > 0.0
