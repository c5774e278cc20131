"""Few rows in memory stay with their process while a client is current: the same bits, in the same time."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import psutil
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.passes.backends import ClusterBackend
from dkl.passes.loop import run_pass
from dkl.passes.session import LOCAL_BYTES, compile_ahead, stays_here
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, RowSample
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


def test_kernels_are_compiled_here_before_workers_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that found none in the cache compiled them beside their blocks: 403 MiB where 343 were promised."""
    called: list[tuple[Any, ...]] = []

    def seen(block: Block, operands: Any) -> dict[str, Any]:
        called.append((type(block.X), block.X.dtype, block.n_rows, np.asarray(block.X.sum(axis=1)).min()))
        return {}

    records = BlockSum("seen", seen, {"weight": Accumulator(())}), RowSample("rows", 10, seed=0)
    X = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    source, of_sparse = (as_dataset(rows).source for rows in (X, sparse.csr_array(X)))
    compile_ahead(source, records, "cpu")
    monkeypatch.setattr("dkl.passes.session.current_client", object)
    with dask.config.set({"dkl.local-bytes": LOCAL_BYTES}):
        # passes over few rows in memory run here
        compile_ahead(source, records, "cpu")
    with dask.config.set({"dkl.local-bytes": 0}):
        compile_ahead(source, records, "gpu")
        assert not called
        compile_ahead(source, records, "cpu")
        compile_ahead(of_sparse, records, "cpu")
    assert called == [(kind, np.dtype(np.float32), 64, 1.0) for kind in (np.ndarray, sparse.csr_array)]
