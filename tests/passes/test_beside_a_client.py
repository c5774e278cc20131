"""Few rows in memory stay with their process while a client is current: the same bits, in the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import dask
import numba
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from numba.core import event
from sklearn.model_selection import GridSearchCV

import dkl
from dkl.data.sources.in_memory import ArraySource
from dkl.kernels import sincos
from dkl.passes.backends import ClusterBackend, in_worker
from dkl.passes.loop import run_pass
from dkl.passes.session import LOCAL_BYTES, stays_here
from dkl.process import KernelMissing, compile_alone, compile_elsewhere
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Fold
from tests.passes.sources import COLUMNS, moments


@pytest.fixture
def submitted(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tasks that passes submit to the cluster."""
    names: list[str] = []
    submit = ClusterBackend.submit

    def noted(self: ClusterBackend, name: str, *args: Any, **options: Any) -> Any:
        names.append(name)
        return submit(self, name, *args, **options)

    monkeypatch.setattr(ClusterBackend, "submit", noted)
    return names


def rows(n: int = 1_000) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 20)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def machine(**options: Any) -> Any:
    return dkl.KernelClassifier(dkl.MarginFeatures(n_features=20), random_state=0, progress=False, **options)


@pytest.mark.parametrize("solver", ["newton", pytest.param("sgd", marks=pytest.mark.slow)])
def test_few_rows_in_memory_are_fitted_here_with_the_bits_of_the_cluster(submitted: list[str], solver: str) -> None:
    with dask.config.set({"dkl.local-bytes": LOCAL_BYTES}):
        here = machine(solver=solver).fit(*rows())
    assert not submitted
    there = machine(solver=solver).fit(*rows())
    assert submitted
    assert here.linear_.coef_.tobytes() == there.linear_.coef_.tobytes()


def test_a_grid_search_beside_a_client_asks_nothing_of_it(submitted: list[str]) -> None:
    with dask.config.set({"dkl.local-bytes": LOCAL_BYTES}):
        GridSearchCV(machine(solver="newton"), {"alpha": [1e-3, 1e-4]}, cv=2).fit(*rows(500))
    assert not submitted


def test_many_rows_those_of_a_store_and_those_of_dask_go_to_the_workers(client: Any, tmp_path: Any) -> None:
    import dask.array as da

    X, y = rows()
    many = np.zeros((LOCAL_BYTES // 80 + 1, 20), np.float32)
    with dask.config.set({"dkl.local-bytes": LOCAL_BYTES}):
        assert stays_here(ArraySource(X), "cpu")
        assert not stays_here(ArraySource(many), "cpu")
        assert not stays_here(dkl.create_dataset(tmp_path / "rows.zarr", X, y).source, "cpu")
        assert not stays_here(dkl.data.coerce.as_dataset(da.from_array(X, chunks=1_000), y).source, "cpu")
        # a GPU that this process lacks is one that workers may have
        assert not stays_here(ArraySource(X), "gpu")


def test_rows_that_a_limit_keeps_out_of_this_process_go_to_the_workers(submitted: list[str]) -> None:
    """This process holds more than the limit already; the workers, fresh processes, hold less."""
    (X, y), filled = rows(), np.ones(1 << 26)
    source = ArraySource(X[:, :COLUMNS], y)
    with dask.config.set({"dkl.local-bytes": LOCAL_BYTES}):
        run_pass(source, [moments()])
        assert not submitted
        # what earlier tests left may be given back between the two readings, so that only a part of it is out of reach
        limit = psutil.Process().memory_info().rss - filled.nbytes // 4
        run_pass(source, [moments()], memory_limit=limit)
    assert submitted


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that compile two kernels of dkl, which no cache has; workers are threads, which see them, too."""
    compiled: list[str] = []

    class Noting(event.Listener):
        def on_start(self, event: Any) -> None:
            # without those that a kernel calls
            if event.data["dispatcher"].py_func in (doubled, summed):
                compiled.append(threading.current_thread().name)

        def on_end(self, event: Any) -> None:
            """Nothing: what is refused ends, too, and what begins here is compiled."""

    def doubled(X: np.ndarray) -> np.ndarray:
        return 2.0 * X

    def summed(X: np.ndarray) -> float:
        return X.sum()

    for function in (doubled, summed):
        function.__module__, function.__qualname__ = "dkl.kernels.sincos", function.__name__
        monkeypatch.setattr(sincos, function.__name__, numba.njit(function), raising=False)
    # its listener comes before the one here, which hears of no kernel that it refuses
    compile_alone()
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set({"dkl.local-bytes": 0}),
        LocalCluster(processes=False, **options) as cluster,
        Client(cluster),
        event.install_listener("numba:compile", Noting()),
    ):
        yield compiled
    compile_elsewhere(False)


def kernel_sums(block: Block, operands: Any) -> dict[str, Any]:
    return {"sum": sincos.summed(sincos.doubled(block.X))}


def kernel_pieces(block: Block, operands: Any, number: int) -> np.ndarray:
    return sincos.doubled(block.X)


def added_sums(state: float, piece: np.ndarray, operands: Any) -> float:
    return state + sincos.summed(piece)


@pytest.mark.parametrize(
    "record",
    [
        BlockSum("sums", kernel_sums, {"sum": Accumulator(())}),
        Fold("steps", 0.0, added_sums, kernel_pieces, lambda rows: 1, piece_bytes=1 << 16, state_bytes=8),
    ],
    ids=["sums", "fold"],
)
def test_kernels_that_workers_lack_are_compiled_in_the_calling_process(lacking: list[str], record: Any) -> None:
    """Workers that compiled them beside their blocks took 403 MiB where 343 were promised."""
    source = ArraySource(rows(5_000)[0], rows_a_block=300)
    passed = run_pass(source, [record])
    (found,) = passed.results
    assert np.isclose(found if isinstance(record, Fold) else found["sum"], 2.0 * rows(5_000)[0].sum(), rtol=1e-4)
    assert lacking == ["MainThread", "MainThread"]
    assert passed.stats.retries == 0


def test_a_worker_compiles_by_itself_outside_of_passes_and_what_its_driver_leaves_out(
    lacking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_elsewhere(True)
    assert in_worker(len, "ab") == 2
    missing = in_worker(sincos.doubled, np.ones(3))
    assert isinstance(missing, KernelMissing)
    assert in_worker(len, missing) is missing
    assert not lacking
    monkeypatch.setattr("dkl.process._ASKED_S", 0.0)
    np.testing.assert_array_equal(in_worker(sincos.doubled, np.ones(3)), [2.0, 2.0, 2.0])
    assert sincos.summed(np.ones(3)) == 3.0
    assert len(lacking) == 2
