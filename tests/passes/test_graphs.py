"""What of a Dask collection goes to a task: the graph of its block and no more, where blocks share no work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dkl.data.sources.lazy import DaskSource
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.random_features import RandomFeatures
from dkl.passes.loop import run_pass, sum_blocks
from dkl.passes.reading import LOADER
from dkl.passes.session import culled, stand_alone
from tests.passes.sources import Source, moments, tree_by_definition


def random_rows(chunk: int = 5, n_rows: int = 60) -> da.Array:
    return da.random.default_rng(0).random((n_rows, 3), chunks=(chunk, 3)).astype(np.float32)


def source_of(X: da.Array) -> DaskSource:
    return DaskSource(X, (X[:, 0] > 0.5).astype(int), None, np.array([0, 1]), chunks=X.chunks[0])


def test_a_culled_ticket_has_the_same_rows_and_a_graph_that_does_not_grow_with_the_blocks() -> None:
    few, many = (source_of(random_rows(n_rows=n)) for n in (60, 600))
    for index in range(few.n_blocks):
        ticket = few.ticket(index)
        found, expected = dask.compute(culled(ticket), ticket, scheduler="synchronous")
        assert found.X.tobytes() == expected.X.tobytes()
        assert found.y.tobytes() == expected.y.tobytes()
    assert len(culled(many.ticket(7)).__dask_graph__()) == len(culled(few.ticket(7)).__dask_graph__()) < 10


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        (lambda X: X, True),
        (lambda X: X.rechunk((15, 3)), True),
        (lambda X: X.rechunk((4, 3)), False),
        (lambda X: X - X.mean(axis=0), False),
        (lambda X: da.from_array(np.ones((60_000, 3), np.float32), chunks=(10_000, 3)), False),
    ],
    ids=["chunks", "chunks put together", "chunks cut in two", "less the mean", "rows within the graph"],
)
def test_graphs_that_share_work_or_hold_rows_do_not_stand_alone(change: Callable[[Any], Any], alone: bool) -> None:
    assert stand_alone(source_of(change(random_rows()))) is alone


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        (lambda: random_rows(chunk=30), 60),
        (lambda: random_rows(chunk=45), 60),
        (lambda: da.concatenate([da.from_delayed(dask.delayed(np.ones)((15, 3)), (15, 3), float)] * 4), 30),
        (lambda: random_rows(chunk=20), 20),
        (lambda: random_rows(chunk=10), 20),
        (lambda: da.from_array(np.ones((60, 3)), chunks=30), 20),
    ],
    ids=["cut in the middle", "of two lengths", "delayed", "whole blocks", "halves of blocks", "in memory"],
)
def test_chunks_that_a_block_is_cut_from_are_counted_as_a_whole(
    rows: Callable[[], da.Array], read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 20)
    source = DaskSource(rows(), None, None, None)
    assert source.rows_in_blocks == (20, 20, 20)
    assert source.read_nbytes == source.block_nbytes * read // 20


def test_what_the_cluster_holds_is_not_computed_within_a_task(client: Any) -> None:
    assert not stand_alone(source_of(random_rows().persist()))


@pytest.mark.parametrize(("kind", "blocks_a_task"), [("delayed", 2), ("joint", 1)])
def test_a_task_sums_several_blocks_whose_graphs_stand_alone(
    client: Any, kind: str, blocks_a_task: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    LOADER.clear()
    sent: list[Any] = []
    submit = client.submit
    monkeypatch.setattr(client, "submit", lambda *args, **named: sent.append(args) or submit(*args, **named))
    source = Source((4,) * (75 * blocks_a_task), kind)
    (found,) = run_pass(source, (moments(),)).results
    assert found["sums"].tobytes() == tree_by_definition(source, moments())["sums"].tobytes()
    assert len([args for args in sent if args[1] is sum_blocks]) == len(source.rows) // blocks_a_task


@pytest.mark.parametrize("kind", ["frame", pytest.param("numbers", marks=pytest.mark.slow)])
def test_no_two_tasks_of_a_fit_have_one_name(client: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A cluster may deadlock on them; the scheduler, a part of this process, warns."""
    generator = np.random.default_rng(0)
    rows = pd.DataFrame({"a": generator.normal(size=400), "b": generator.normal(size=400)})
    rows["y"] = (rows["a"] * rows["b"] > 0.0).astype(int)
    if kind == "frame":
        rows["c"] = generator.choice(["u", "v", "w"], 400)
    given = dd.from_pandas(rows, npartitions=4)
    logging.getLogger("distributed.scheduler").addHandler(caplog.handler)
    try:
        learner = RandomFeatures(n_features=8, random_state=0).fit(given.drop(columns="y"), given["y"])
        assert learner.transform(given.drop(columns="y")).compute().shape == (400, 8)
        KernelClassifier(learner, solver="newton", alpha=1e-3, random_state=0).fit(given.drop(columns="y"), given["y"])
    finally:
        logging.getLogger("distributed.scheduler").removeHandler(caplog.handler)
    assert "run_spec" not in caplog.text
