"""Workers of ordinary limits are never paused: each stays below what the plan promised, or a fit is refused rightly."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from dkl.model_selection.held_out_scores import held_out_answers, scores_of
from dkl.process import compiling_at_once

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The script, whose workers are processes of their own, not forked from one that tests have filled; kernels are
    compiled, as they are from the second fit of a machine on.

    They lie in a folder of their own, so that other tests, which compile some kernels at the same time, change nothing.
    """
    spawned = dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})
    with pytest.MonkeyPatch.context() as patch, spawned:
        patch.setenv("NUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.syspath_prepend(str(DEPLOY))
        module = importlib.import_module("small_workers")
        compile_for("aligned")
        yield module


def compile_for(*learners: str, store: Path | None = None) -> None:
    """In a process started as workers are, since this one may have imported another copy of the package."""
    process = multiprocessing.get_context("spawn").Process(target=fit_all, args=(learners, store))
    process.start()
    process.join()
    assert process.exitcode == 0


def fit_all(learners: tuple[str, ...], store: Path | None) -> None:
    """Fit them to the rows of a store, or to a few rows."""
    module = importlib.import_module("small_workers")
    # As many rows in a block as workers read, and kernels of two forms at once: a worker uses NumPy for its first
    # numbers and compiles in a later pass, for which it takes 60 MB.
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(scheduler="synchronous"),
        compiling_at_once(),
    ):
        few = module.write_rows(Path(folder) / "few.zarr", 20_000, 30) if store is None else None
        for name in learners:
            module.LEARNERS[name]().fit(few or module.dkl.open_dataset(store))


@pytest.fixture(scope="module")
def compiled(script: Any, rows: Any) -> None:
    """The kernels of all learners are, also those for many rows alone."""
    compile_for(*script.LEARNERS, store=Path(rows.store))


@pytest.fixture(scope="module")
def rows(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Twice as many bytes as a worker of 500 MB may keep of them."""
    return script.write_rows(tmp_path_factory.mktemp("rows") / "rows.zarr", 270_000, 30)


@pytest.mark.slow
def test_a_refusal_names_the_limit_that_is_enough_and_a_worker_of_it_stays_below_its_promise(
    script: Any, rows: Any
) -> None:
    refused = script.run_cell(rows, "aligned", 1, "300MB")
    assert "a limit of '" in refused.refused
    assert refused.faults == []
    cell = script.run_cell(rows, "aligned", 1, refused.enough)
    assert not cell.refused, cell.refused
    assert cell.faults == [], cell


@pytest.mark.slow
def test_small_workers_score_and_predict_and_load_no_library_for_it(script: Any, rows: Any) -> None:
    """What a worker loads for a Series of Dask, pandas and Arrow, fits beside its rows; a score needs neither."""

    def heavy() -> list[str]:
        import sys

        return sorted({"pandas", "pyarrow", "sklearn"} & sys.modules.keys())

    options = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": "500MB", "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.wait_for_workers(1, timeout=60)
        client.run(script._listen)
        model = script.LEARNERS["aligned"]().fit(rows)
        n_right = model.score(rows) * rows.n_rows
        # as `dkl score`, `dkl predict` and the report do
        (accuracy,) = scores_of(held_out_answers(model, rows), ["accuracy"])
        assert abs(accuracy.value * rows.n_rows - n_right) < 0.5
        assert set(map(tuple, client.run(heavy).values())) == {()}
        predicted = model.predict(rows).compute()
        assert set(map(tuple, client.run(heavy).values())) <= {(), ("pandas", "pyarrow")}
        assert sum(client.run(script._heard).values()) == 0
    with dask.config.set(scheduler="synchronous"):
        assert abs((predicted.to_numpy() == rows.y.compute()).sum() - n_right) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["aligned", "posterior", "margin", "landmarks", "game"])
def test_workers_that_compile_keep_their_promise(
    script: Any, rows: Any, learner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cell(limit: str, cache: str) -> Any:
        cluster = partial(LocalCluster, env={"NUMBA_CACHE_DIR": str(tmp_path / cache)})
        monkeypatch.setattr(script, "LocalCluster", cluster)
        return script.run_cell(rows, learner, 1, limit)

    # the second fit finds the kernels with which the first one, which was refused, has measured its worker
    refused, again = (cell("300MB", "of refused fits") for _ in range(2))
    assert refused.refused
    assert refused.faults == again.faults == []
    for limit, cache in [(refused.enough, "new"), ("500MB", "another"), (again.enough, "of refused fits")]:
        fitted = cell(limit, cache)
        assert not fitted.refused, fitted.refused
        assert fitted.faults == [], fitted


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("n_workers", [1, 2, 4])
@pytest.mark.parametrize("learner", ["aligned", "peaks", "posterior", "landmarks", "margin", "game", "tuned"])
def test_every_learner_keeps_its_promise_on_workers_of_every_size(
    script: Any, rows: Any, learner: str, n_workers: int
) -> None:
    for cell in script.cells(rows, [learner], [n_workers], ["350MB", "500MB", "700MB", "1GB"]):
        assert cell.faults == [], cell


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("learner", ["stochastic", "without settings"])
def test_other_heads_and_the_machine_without_settings_keep_their_promise(script: Any, rows: Any, learner: str) -> None:
    for cell in script.cells(rows, [learner], [1, 2], ["500MB", "700MB", "1GB"]):
        assert cell.faults == [], cell
