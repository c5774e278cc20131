"""Learners on a GPU find what they find on the CPU: on a played one, as strict as CuPy, and on a real one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import numpy as np
import pytest
from dask.utils import format_bytes
from scipy import sparse
from sklearn.base import clone

from dkl.data.create import create_dataset
from dkl.encodings.sums import text_sums
from dkl.encodings.target_means import CategoryFolds
from dkl.explain.contributions import background_of
from dkl.explain.dependence import partial_dependence
from dkl.explain.importance import importance
from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.harmonics import SphericalHarmonics
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.projections import DenseProjection, SparseProjection
from dkl.features.step_projection import StepProjection
from dkl.kernels import device, generic
from dkl.kernels.device import rows_on
from dkl.kernels.explanations import left_out_sums
from dkl.kernels.generic import projected
from dkl.kernels.gram import GramSum, add_few, add_hessian, packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.moments import moments_record
from dkl.kernels.normal_equations import NewtonOptions, NewtonTargets, TrialSteps, newton_sums
from dkl.kernels.scale import scale_rows
from dkl.kernels.sgd.steps import sgd_rows
from dkl.kernels.slopes import squared_slopes
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.linear import head, sgd
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.learner import TunedClassifier
from dkl.methods.frequency_search.peak_search import SearchOptions, search_peaks
from dkl.methods.game.sums import GameTargets, gram_block
from dkl.methods.landmarks.kmeans_sums import Centers, cluster_record
from dkl.methods.leverage.sums import cross_gram_sums
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.potential_sums import PotentialProblem, potential_sums
from dkl.methods.random_features import RandomFeatures
from dkl.methods.rounds.loop import GramChange, RoundTask, round_sums
from dkl.passes.devices import computing_device
from dkl.passes.loop import SumReduction, run_pass
from dkl.passes.memory import blocks_ahead, fit_limits
from dkl.passes.reading import LOADER, gpu_row_bytes
from dkl.passes.room import ProcessMemory, own_cores
from dkl.passes.work import Limits
from dkl.planning import plan
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum
from dkl.solvers.losses import loss_of
from dkl.uncertainty.drift_sums import counts_record
from tests.gpu_counts import FEATURES, FITS, N_ROWS, ON_HOST, HostRows, as_counted, counted, table_of_page
from tests.kernels import cases
from tests.kernels.cuda_sources import played
from tests.linear.problems import dataset
from tests.passes.sources import Source, room_of_bytes

PLAYED = Path(__file__).parent / "played_gpu"
# a search climbs by other roundings on a real GPU, to other peaks
SEARCHES = {"peaks", "corrective", "game"}


@pytest.fixture(params=["played", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which GPU CuPy is of."""
    if request.param == "real":
        yield "real"
        return
    for needed, reason in ((shutil.which("g++"), "no g++"), (find_spec("cupy") is None, "the real CuPy is here")):
        if not needed:
            pytest.skip(f"nothing to play a GPU with: {reason}")
    monkeypatch.syspath_prepend(str(PLAYED))
    compiled = generic.compiled
    device.STAGING.__init__()  # type: ignore[misc]
    import cupy

    violations: list[str] = cupy.violations
    yield "played"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx")]:
        del sys.modules[name]
    compiled.cache_clear()
    device._claimed_gpu.cache_clear()
    # Its pieces and its stream are of the module that is gone.
    device.STAGING.__init__()  # type: ignore[misc]
    assert violations == []


def rows(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)


def test_a_gpu_is_strict(gpu: str) -> None:
    import cupy

    there = cupy.asarray(np.ones((2, 2)))
    assert device.why_no_gpu() is None
    assert device.is_on_gpu(there)
    for mixed in (lambda: there + np.ones(2), lambda: cupy.matmul(there, np.ones(2)), lambda: np.asarray(there)):
        with pytest.raises(TypeError):
            mixed()


def test_a_played_gpu_has_the_names_and_arguments_of_every_cupy_that_is_admitted(gpu: str) -> None:
    if gpu == "real":
        pytest.skip("the real CuPy has its own names")
    import cupy

    assert cupy.concat([cupy.asarray(np.ones(2)), cupy.asarray(np.ones(1))]).shape == (3,)
    with pytest.raises(AttributeError, match=r"CuPy 14\.0\.0 has no 'matrix_transpose'"):
        cupy.matrix_transpose(cupy.asarray(np.ones((2, 2))))
    # NumPy knows `where`, CuPy does not
    with pytest.raises(TypeError, match="'where'"):
        cupy.sum(cupy.asarray(np.ones(2)), where=True)


# the passes of the others are compared one by one in `test_every_pass_of_every_method_...` below
WHOLE_FITS = ("random", "by quantiles", "structured", "steps", "nystrom", "corrective")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in WHOLE_FITS else pytest.mark.slow) for one in FEATURES]
)
def test_features_are_those_of_the_cpu(name: str, gpu: str) -> None:
    if gpu == "real" and name in SEARCHES:
        pytest.skip("a search climbs by other roundings there")
    X, y = rows()
    options = {"dtype": "float64", "random_state": 0}
    learners = [clone(FEATURES[name]).set_params(device=where, **options) for where in ("gpu", "cpu")]
    found, expected = (learner.fit(X, y).transform(X) for learner in learners)
    assert isinstance(found, np.ndarray)
    # peaks are searched in float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 if name == "peaks" else 1e-8)


def test_a_search_on_columns_that_go_together_is_that_of_the_cpu(gpu: str) -> None:
    noise = np.random.default_rng(0).normal(size=(100, 320)).astype(np.float32)
    X = np.mean([noise[:, j : j + 310] for j in range(8)], axis=0)
    s = np.sign(X[:, 5]) / len(X)
    found, expected = (
        search_peaks(X, s, 8.0, SearchOptions(8, 2, near_share=0.5, near_steps=3, device=where), seed=0)  # type: ignore[arg-type]
        for where in ("gpu", "cpu")
    )
    np.testing.assert_allclose(found.frequencies, expected.frequencies, atol=1e-3 * np.abs(expected.frequencies).max())
    np.testing.assert_allclose(found.potentials, expected.potentials, rtol=1e-3)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("solver", ["sgd", "newton"])
def test_machines_are_those_of_the_cpu(solver: str, storage: Any, gpu: str) -> None:
    X, y = rows()
    features = RandomFeatures(Gaussian(2.0), n_features=20, dtype="float64")
    options: dict[str, Any] = {"solver": solver, "epochs": 3, "random_state": 0}
    for machine, targets in ((KernelClassifier, y), (KernelRegressor, X[:, 0] ** 2)):
        given = {**options, "loss": "squared_hinge"} if machine is KernelClassifier else options
        models = [machine(features, device=where, **given).fit(storage(X), targets) for where in ("gpu", "cpu")]
        found, expected = (np.atleast_2d(model.linear_.coef_) for model in models)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8 * np.abs(expected).max())
        np.testing.assert_allclose(models[0].predict(X), models[1].predict(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", ["poisson", "gamma", "pinball", "softmax"])
def test_steps_of_losses_that_scikit_learn_lacks_are_those_of_the_cpu(loss: str, gpu: str) -> None:
    X, _ = rows()
    features = RandomFeatures(Gaussian(2.0), n_features=20, dtype="float64")
    options: dict[str, Any] = {"solver": "sgd", "loss": loss, "epochs": 3, "random_state": 0}
    several = np.column_stack([1.0 + X[:, 0] ** 2, 30.0 + 10.0 * np.sin(X[:, 1])])
    machine, targets = KernelRegressor(features, **options), several
    if loss == "softmax":
        machine, targets = KernelClassifier(features, **options), np.digitize(X[:, 0], [-0.5, 0.5])
    models = [clone(machine).set_params(device=where).fit(X, targets) for where in ("gpu", "cpu")]
    found, expected = (model.linear_.coef_ for model in models)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(models[0].predict(X), models[1].predict(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("columns", [(0, 7), (0, 6), (2, 5), (4, 7), (6, 7)])
def test_products_of_rows_stay_on_the_gpu_until_all_tiles_are_added(columns: tuple[int, int], gpu: str) -> None:
    generator = np.random.default_rng(0)
    phi, weight = generator.normal(size=(30, 6)), generator.normal(size=30)
    expected = np.zeros(packed_size(*columns))
    add_hessian(phi, weight, columns, expected)
    found = np.zeros_like(expected)
    gram = GramSum(columns, found)
    for rows in (slice(0, 20), slice(20, 30)):
        gram.add(device.rows_on(phi[rows], "gpu"), weight[rows])
        assert not found.any()
    gram.finish()
    gram.finish()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("solver", ["full", "adam"])
def test_tuned_models_are_those_of_the_cpu(solver: str, gpu: str) -> None:
    X, y = rows()
    options: dict[str, Any] = {
        "n_features": 20,
        "random_state": 0,
        "dtype": "float64",
        "tol": 0.02,
        "epochs": 2,
        "solver": solver,
    }
    found, expected = (TunedClassifier(device=where, **options).fit(X, y > 0) for where in ("gpu", "cpu"))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("family", "storage"),
    [
        (Gaussian(2.0), np.asarray),
        (Gaussian(2.0, pairing="phase"), sparse.csr_array),
        (ArcCosine(2), sparse.csr_array),
        (Coordinates(), np.asarray),
    ],
)
def test_explanations_are_those_of_the_cpu(family: Any, storage: Any, gpu: str) -> None:
    X, y = rows()
    features = RandomFeatures(family, n_features=20, dtype="float64", scaling="unit", random_state=0)
    model = KernelClassifier(features, loss="squared_hinge", solver="newton", random_state=0, device="cpu").fit(X, y)

    def explained() -> list[np.ndarray]:
        found = partial_dependence(model, storage(X), [0, (1, 3)], resolution=4)
        background = background_of(model, storage(X), groups={"both": [1, 3]})
        return [importance(model, storage(X)).values, *(one.values for one in found), background.base]

    expected = explained()
    model.set_params(device="gpu")
    for one, other in zip(explained(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "is_there"),
    [
        *((kernel, True) for kernel in (Gaussian(2.0), Laplacian(3.0), *(Matern(nu, 2.0) for nu in (0.5, 1.5, 2.5)))),
        (Matern(0.8, 2.0), False),
        (Cauchy(2.0), False),
    ],
    ids=str,
)
def test_kernels_to_landmarks_are_made_on_the_gpu(
    kernel: Any, is_there: bool, dtype: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an offset that would take all digits of products; a row is its own landmark, whose distance is 0."""
    X = rows(400)[0] + 1_000.0
    whole = np.linalg.cholesky(kernel.kernel(X[:20], X[:20]) + 1e-3 * np.eye(20))
    for metric, columns in ((None, 4), (np.array([1.0, 2.0, 0.5, 1.0]), 4), (np.eye(4)[:, :3] * 1.5, 3)):
        landmarks = X[:20] if metric is None else in_metric(X[:20], metric)
        projection = NystromProjection(kernel, landmarks, np.linalg.inv(whole).T, metric)
        mapped_by = FeatureMap("nystrom", projection, np.linspace(1.0, 2.0, 20))
        assert landmarks.shape[1] == columns
        expected = kernel.kernel(projection.moved(X), landmarks) @ projection.whitening * mapped_by.amplitudes
        there = device.rows_on(X, "gpu")
        with monkeypatch.context() as patched:
            if is_there and gpu == "played":
                patched.setattr("cupy.ndarray.get", lambda x: pytest.fail("came to the host"))
            found = device.map_rows(there, mapped_by, dtype)
        assert found.dtype == dtype
        atol = 1e-11 if dtype == "float64" else 2e-4
        np.testing.assert_allclose(device.on_host(found), expected, rtol=0, atol=atol * np.abs(expected).max())


def test_rows_move_once_and_are_stepped_through_on_the_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece brings its own rows; what travels at its steps is the model."""
    seen: list[Any] = []
    moved: list[int] = []

    def watched(X: Any, *rest: Any, **options: Any) -> Any:
        seen.append(X)
        return sgd_rows(X, *rest, **options)

    def moving(X: Any, where: Any) -> Any:
        moved.append(X.shape[0])
        return rows_on(X, where)

    monkeypatch.setattr(sgd, "sgd_rows", watched)
    X, y = rows(5_000)
    machine = KernelClassifier(RandomFeatures(Gaussian(2.0), n_features=20), device="gpu", epochs=1, random_state=0)
    monkeypatch.setattr(device, "rows_on", moving)
    machine.fit(X, y)
    assert {device.is_on_gpu(piece) for piece in seen} == {True}
    assert sum(len(piece) for piece in seen) == sum(moved) == 5_000
    assert max(moved) < 5_000


@pytest.mark.gpu
def test_cuda_workers_make_the_fit_of_the_cpu() -> None:
    """One process a GPU."""
    from distributed import Client

    dask_cuda = pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")
    X, y = rows(4_000)
    machine = KernelClassifier(AlignedFeatures(Gaussian(2.0), n_features=20, dtype="float64"), epochs=2, random_state=0)
    expected = clone(machine).set_params(device="cpu").fit(dataset(X, y, rows_a_block=400)).decision_function(X)
    with dask_cuda.LocalCUDACluster(dashboard_address=None) as cluster, Client(cluster):
        assert computing_device("auto") == "gpu"
        found = machine.fit(dataset(X, y, rows_a_block=400)).decision_function(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@played
@pytest.mark.slow
@pytest.mark.skipif(device.why_no_gpu() is None, reason="all workers have a GPU")
def test_workers_with_and_without_a_gpu_share_a_fit() -> None:
    """One of two workers has the played GPU."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    X, y = rows(4_000)
    machine = KernelClassifier(AlignedFeatures(Gaussian(2.0), n_features=20, dtype="float64"), epochs=2, random_state=0)
    expected = clone(machine).set_params(device="cpu").fit(dataset(X, y, rows_a_block=400)).decision_function(X)
    # its folder on the path of one process is what a GPU is here
    with_gpu = [f"import sys; sys.path[:0] = {[str(PLAYED), str(PLAYED.parents[1])]}"]
    workers = {
        name: {"cls": Nanny, "options": {"nthreads": 1, "preload": with_gpu if name == "gpu" else []}}
        for name in ("gpu", "cpu")
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None, "dashboard": False}}
    with SpecCluster(workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        assert computing_device("auto") == "cpu"
        assert computing_device("mixed") == "mixed"
        with pytest.raises(RuntimeError, match="1 of 2 workers cannot use one"):
            machine.set_params(device="gpu").fit(dataset(X, y, rows_a_block=400))
        found = machine.set_params(device="mixed").fit(dataset(X, y, rows_a_block=400)).decision_function(X)
        assert sorted(client.run(lambda: "cupy" in sys.modules).values()) == [False, True]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_the_frequencies_go_to_the_gpu_once_and_leave_it_with_their_map(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = rows(600)
    feature_map = Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 14))
    there, before = device.rows_on(X, "gpu"), len(generic._placed)
    first = device.map_rows(there, feature_map, "float64")
    (sent,) = generic._placed[feature_map.projection].values()
    device.map_rows(there, feature_map, "float64")
    assert next(iter(generic._placed[feature_map.projection].values())) is sent
    np.testing.assert_allclose(first.get(), map_rows(X, feature_map, "float64"), rtol=1e-11, atol=1e-12)
    del feature_map
    assert len(generic._placed) == before


def test_of_frequencies_with_few_entries_these_alone_are_sent(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = rows()
    W = np.random.default_rng(0).normal(size=(30, 4))
    drawn = FeatureMap("cos-sin", SparseProjection.from_rows(W, np.abs(W) > 0.7), np.ones(30))
    expected = map_rows(X, drawn, "float64")
    monkeypatch.setattr(SparseProjection, "dense", lambda projection: pytest.fail("written out on the host"))
    np.testing.assert_allclose(
        device.map_rows(rows_on(X, "gpu"), drawn, "float64").get(), expected, rtol=1e-11, atol=1e-12
    )


def test_an_activation_of_an_extension_has_the_maps_and_sums_of_the_cpu(gpu: str) -> None:
    X, S = rows()[0], np.random.default_rng(1).normal(size=(300, 2))
    W = np.random.default_rng(2).normal(size=(5, 4))
    feature_map = FeatureMap(cases.Powers(), DenseProjection(W), np.linspace(0.5, 1.5, 5), np.arange(5.0))
    there = device.rows_on(X, "gpu")
    for found, expected in (
        (device.map_rows(there, feature_map, "float64").get(), map_rows(X, feature_map, "float64")),
        (feature_sums(there, S, feature_map, "float64"), feature_sums(X, S, feature_map, "float64")),
        (feature_squares(there, S[:, 0], feature_map, "float64"), feature_squares(X, S[:, 0], feature_map, "float64")),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_two_blocks_are_read_ahead_of_one_on_a_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    X, y = rows(500)
    source = create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100).source
    asked: list[int] = []
    monkeypatch.setattr("dkl.passes.room.usable_cores", lambda: 1)
    monkeypatch.setattr(LOADER, "read_ahead", lambda work, ticket: asked.append(ticket.number))
    with dask.config.set(scheduler="threads", num_workers=1):
        for where, expected in (("cpu", [1, 2, 3, 4]), ("gpu", [1, 2, 2, 3, 3, 4, 4])):
            run_pass(source, (BlockSum("n", _rows_of, {"n": Accumulator(())}),), device=where)  # type: ignore[arg-type]
            assert asked == expected
            asked.clear()


def _column_sums(block: Any, operands: Any) -> dict[str, np.ndarray]:
    return {"sums": device.on_host(block.X.sum(axis=0))}


COLUMN_SUMS = BlockSum("sums", _column_sums, {"sums": Accumulator((4,))})  # type: ignore[arg-type]


@pytest.fixture
def kept_rows(gpu: str, tmp_path: Path) -> Iterator[Any]:
    """A store of 5 blocks of 100 rows, of 400 bytes of integers each, and nothing that is kept of earlier passes."""
    if gpu == "real":
        pytest.skip("the copies of the real CuPy are not counted")
    X = np.random.default_rng(0).integers(-9, 9, size=(500, 4)).astype(np.int8)
    LOADER.clear()
    yield create_dataset(tmp_path / "rows.zarr", X, X[:, 0] > 0, rows_a_block=100).source
    LOADER.clear()


def _copied(source: Any, *records: BlockSum) -> tuple[Any, int]:
    """What a pass on the GPU returns for its first record, and the bytes that went there."""
    import cupy

    before = len(cupy.copied)
    results = run_pass(source, records or (COLUMN_SUMS,), device="gpu").results
    return results[0], sum(cupy.copied[before:])


@pytest.mark.parametrize(("budget", "again"), [(None, 0), (2_000, 0), (1_999, 400), (900, 1_200), (0, 2_000)])
def test_rows_stay_on_the_gpu_in_their_stored_precision_while_they_fit(
    kept_rows: Any, budget: int | None, again: int
) -> None:
    with dask.config.set({"dkl.gpu-rows-bytes": budget}):
        first, moved = _copied(kept_rows)
        assert moved == kept_rows.block_rows.sum() * 4
        for _ in range(2):
            found, moved = _copied(kept_rows)
            assert moved == again
            np.testing.assert_array_equal(found["sums"], first["sums"])
    np.testing.assert_array_equal(first["sums"], run_pass(kept_rows, (COLUMN_SUMS,)).results[0]["sums"])


def test_rows_that_the_gpu_keeps_are_not_read_again_and_sums_of_the_host_have_them(kept_rows: Any) -> None:
    _copied(kept_rows)
    stats = run_pass(kept_rows, (COLUMN_SUMS,), device="gpu").stats
    assert (stats.cache_hits, stats.bytes) == (5, 0)
    of_host = BlockSum("sums", _column_sums, {"sums": Accumulator((4,))}, on_host=True)  # type: ignore[arg-type]
    found, expected = (run_pass(kept_rows, (of_host,), device=where).results[0]["sums"] for where in ("gpu", "cpu"))
    np.testing.assert_array_equal(found, expected)


def test_processes_on_one_gpu_share_what_it_keeps(kept_rows: Any) -> None:
    assert [gpu_row_bytes(Limits(gpu_rows=3_000, sharing=n)) for n in (1, 2, 3)] == [3_000, 1_500, 1_000]
    # half of what is left and of what is kept already
    assert gpu_row_bytes(Limits(sharing=4), kept=1 << 20) == ((1 << 30) + (1 << 20)) // 2 // 4


def test_a_smaller_budget_counts_at_once(kept_rows: Any) -> None:
    _copied(kept_rows)
    assert LOADER._cache.gpu_bytes == 2_000
    with dask.config.set({"dkl.gpu-rows-bytes": "1 kB"}):
        _copied(kept_rows)
    assert LOADER._cache.gpu_bytes == 800


def test_rows_that_are_kept_give_way_before_tiles_become_smaller(kept_rows: Any) -> None:
    """The same bits: nothing is warned of."""
    sizes: list[int] = []

    def full(block: Any, operands: Any) -> dict[str, np.ndarray]:
        sizes.append(device.tile_rows(1, 8))
        if LOADER._cache.gpu_bytes > 1_200:
            raise MemoryError("out of memory")
        return _column_sums(block, operands)

    record = BlockSum("sums", full, {"sums": Accumulator((4,))})  # type: ignore[arg-type]
    with dask.config.set(scheduler="synchronous"):
        expected, _ = _copied(kept_rows)
        found, _ = _copied(kept_rows, record)
    np.testing.assert_array_equal(found["sums"], expected["sums"])
    assert len(sizes) == 6
    assert len(set(sizes)) == 1
    assert LOADER._cache.gpu_bytes == 0


def test_a_plan_counts_the_rows_that_a_gpu_keeps(gpu: str, tmp_path: Path) -> None:
    if gpu == "real":
        pytest.skip("what a real GPU has left changes")
    X, y = rows(400)
    data = create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100)
    learner, planned = AlignedFeatures(Gaussian(2.0), n_candidates=20, n_features=4, device="gpu"), []
    for budget in (0, 5_000):
        with dask.config.set({"dkl.gpu-rows-bytes": budget}):
            planned.append(plan(learner, data).device_bytes)
    assert planned[1] == planned[0] + 5_000


def _rows_of(block: Any, operands: Any) -> dict[str, np.ndarray]:
    return {"n": np.array(float(block.n_rows))}


@pytest.mark.parametrize("name", ["aligned", "newton", "tuned", "corrective"])
def test_a_plan_says_what_a_gpu_will_hold_at_most(name: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the bytes of all played arrays that are alive at once."""
    if gpu == "real":
        pytest.skip("the arrays of the real CuPy cannot be watched")
    import cupy

    X, y = rows(2_000)
    options: dict[str, Any] = {"device": "gpu", "random_state": 0, "dtype": "float64"}
    features = RandomFeatures(Gaussian(2.0), n_features=40, dtype="float64")
    learner: Any = {
        "aligned": lambda: AlignedFeatures(Gaussian(2.0), n_candidates=200, n_features=20, **options),
        "newton": lambda: KernelClassifier(features, solver="newton", alpha=1e-3, device="gpu", random_state=0),
        "tuned": lambda: TunedClassifier(n_features=40, tol=0.05, **options),
        "corrective": lambda: MarginFeatures(n_features=20, **options),
    }[name]()
    held = {"now": 0, "most": 0}
    begin = cupy.ndarray.__init__

    def counted(x: Any, values: np.ndarray) -> None:
        begin(x, values)
        if values.base is None:
            held["now"] += values.nbytes
            held["most"] = max(held["most"], held["now"])
            weakref.finalize(x, lambda nbytes: held.__setitem__("now", held["now"] - nbytes), values.nbytes)

    monkeypatch.setattr(cupy.ndarray, "__init__", counted)
    # the search of peaks is no pass: what it holds the driver's own item says
    monkeypatch.setattr("dkl.methods.frequency_search.peak_search.rows_on", lambda X, where: X)
    with dask.config.set(scheduler="synchronous"):
        planned = plan(learner, X, y > 0)
        learner.fit(X, y > 0)
    assert 0 < held["most"] <= planned.device_bytes
    assert planned.facts["device_bytes"] == planned.device_bytes
    assert f"at most {format_bytes(planned.device_bytes)} on the GPU of a process" in repr(planned)
    assert plan(learner.set_params(device="cpu"), X, y > 0).device_bytes == 0


@pytest.fixture
def three(gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with three GPUs, of which no process has one; its temporary folder."""
    if gpu == "real":
        pytest.skip("the GPUs of a real machine are as many as they are")
    monkeypatch.setenv("PLAYED_GPUS", "3")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in device._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    import cupy

    cupy.cuda.Device(0).use()


def waves() -> FeatureMap:
    return Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")


SUMS: dict[str, Any] = {
    "features": lambda X, S: feature_sums(X, S, waves(), "float64"),
    "features of landmarks": lambda X, S: feature_sums(X, S, landmark_map(), "float64"),
    "squares": lambda X, S: feature_squares(X, S[:, 0], waves(), "float64"),
    "slopes": lambda X, S: squared_slopes(X, S[:, 0], waves(), np.ones((3, 16)), "float64"),
    "left out": lambda X, S: left_out_sums(X, S[:, 0], waves(), [np.array([0]), np.array([1, 2])], "float64"),
}


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "squared_error", "huber", "poisson", "gamma"])
def test_the_host_waits_once_a_block_for_a_corrective_round(
    loss: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, slopes and curvatures of all rows stay there; sums are those of the CPU, of a block of several tiles."""
    if gpu == "real":
        pytest.skip("what is asked of the real CuPy is not counted")
    import cupy

    generator, feature_map = np.random.default_rng(0), Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    X, y = rows(600)
    held = generator.random(600) < 0.2
    targets = np.where(y[:, None] > 0, 1.0, -1.0 if loss not in ("poisson", "gamma") else 0.5)
    given = (targets, np.where(held, 0.0, 1.5), np.where(held, 1.0, 0.0))
    model, before = generator.normal(size=(2, 1, 17)) * 0.5
    old, new = np.append(np.arange(12), 16), np.arange(12, 16)
    for panels in (((0, 13),), ((0, 6), (6, 13))):
        task = corrective_task(loss, model, new, GramChange(old, before, panels), "float64")
        expected = round_sums(X, given, feature_map, task)
        monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 15))
        there, waits = device.rows_on(X, "gpu"), cupy.counts["waits"]
        found = round_sums(there, given, feature_map, task)
        assert cupy.counts["waits"] - waits == 1
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert isinstance(found[name], np.ndarray)
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("kind", ["standard", "minmax", "unit", "quantile"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_scaled_by_one_kernel(kind: str, dtype: str, gpu: str) -> None:
    """Also numbers beyond the knots, on them and between tied ones, and columns that keep their values."""
    X = np.round(8 * np.random.default_rng(0).normal(size=(500, 4))) / 8
    scaler = cases.scaler(kind, 4)
    import cupy

    there = device.rows_on(X, "gpu")
    generic.scaled(cupy, there, scaler, np.dtype(dtype))
    before = dict(cupy.counts) if gpu == "played" else {}
    found = generic.scaled(cupy, there, scaler, np.dtype(dtype))
    if gpu == "played":
        assert cupy.counts["launches"] - before["launches"] <= 4
    np.testing.assert_allclose(found.get(), scale_rows(X, scaler, dtype), rtol=1e-12 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_counts_are_those_of_the_host(dtype: str, gpu: str) -> None:
    X = cases.scalable(cases.holey_rows(500, 6), "counts")
    feature_map = cases.weighted_map(Gaussian(1.5), 20, 6, dtype, "counts")
    expected = map_rows(X, feature_map, dtype)
    for rows in (X, sparse.csr_array(X)):
        found = device.map_rows(device.rows_on(rows, "gpu"), feature_map, np.dtype(dtype))
        np.testing.assert_allclose(found.get(), expected, atol=1e-12 if dtype == "float64" else 1e-5)
    with pytest.raises(ValueError, match="column 2 holds -1: scaling='counts'"):
        feature_sums(device.rows_on(np.where(np.arange(6) == 2, -1.0, X), "gpu"), np.ones(500), feature_map, dtype)


LOSSES = ("squared_hinge", "log_loss", "squared_error", "huber", "pinball", "poisson", "gamma", "softmax")


@pytest.mark.parametrize(("loss", "weights"), list(zip(LOSSES, cycle(["of rows", "of rows and models", "all alike"]))))
def test_the_host_waits_once_a_block_for_a_newton_step(
    loss: Any, weights: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, losses, slopes and Hessians of a block of several tiles are made there, and are those of the CPU."""
    generator, feature_map = np.random.default_rng(0), Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    X, g = rows(400)[0], 3
    classes = generator.integers(0, g, 400)
    targets = np.where(classes[:, None] == np.arange(g), 1.0, -1.0)
    if loss in ("huber", "pinball", "poisson", "gamma"):
        targets = generator.gamma(2.0, size=(400, g))
    by_row = {"of rows": (400,), "of rows and models": (400, g), "all alike": ()}[weights]
    weight = np.broadcast_to(generator.choice([0.0, 1.0, 2.5], by_row) if by_row else np.ones(400), by_row or (400,))
    points, directions = generator.normal(size=(2, g, 17)) * 0.3
    lengths = np.array([[1.0, 0.5, 0.1]]) * (np.ones((1, 1)) if loss == "softmax" else np.ones((g, 1)))
    quantiles = (0.1, 0.5, 0.9) if loss == "pinball" else None
    models, at_zero, still = (points, directions), (0.0 * points, 0.0 * directions), (points, 0.0 * directions)
    whole = (0, 17)
    for (point, direction), columns, follows in (
        (models, whole, ()),
        (models, (5, 12), ()),
        (models, None, ()),
        (models, whole, (False, True)),
        (at_zero, whole, ()),
        (still, whole, ()),
    ):
        of = (0,) if loss == "softmax" or not follows else (0, 2)
        options = NewtonOptions(loss, columns, of, follows=follows[: len(of)], dtype="float64", quantiles=quantiles)
        given = (targets, weight, feature_map, TrialSteps(point, direction, lengths), options)
        expected = newton_sums(X, *given)
        monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 15))
        there = device.rows_on(X, "gpu")
        if gpu == "played":
            import cupy

            waits = cupy.counts["waits"]
        found = newton_sums(there, *given)
        if gpu == "played":
            assert cupy.counts["waits"] - waits == 1
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("sigma", "alpha", "again"), [(1.0, 1e-3, False), (6.0, 1e-4, False), (6.0, 1e-6, True)])
def test_coefficients_by_tensor_cores_are_those_of_float64(
    sigma: float, alpha: float, again: bool, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rough and of nearly singular kernels; where rounding costs too many digits, products are made anew."""
    X = rows(2_000)[0].astype(np.float32)
    y = X[:, 0] * X[:, 1] > 0
    features = RandomFeatures(Gaussian(sigma), n_features=60, random_state=0, scaling=None)
    given = {"loss": "squared_error", "solver": "newton", "alpha": alpha, "random_state": 0, "calibrate": False}
    asked: list[NewtonOptions] = []
    record = head._newton_record
    monkeypatch.setattr(head, "_newton_record", lambda *args: asked.append(args[3]) or record(*args))
    model = KernelClassifier(features, device="gpu", **given).fit(X, y)
    # of each Hessian whether its rows were rounded
    assert [options.rounded for options in asked if options.columns] == [True, False][: 1 + again]
    phi = map_rows(device.rows_on(X, "gpu"), model.features_.feature_map_).get().astype(np.float64)
    design = np.column_stack([phi, np.ones(len(phi))])
    system = design.T @ design / len(phi) + alpha * np.diag([1.0] * phi.shape[1] + [0.0])
    exact = np.linalg.solve(system, design.T @ np.where(y, 1.0, -1.0) / len(phi))
    found = np.append(model.linear_.coef_, model.linear_.intercept_)
    assert np.linalg.norm(found - exact) <= 1e-6 * np.linalg.norm(exact)


def test_a_block_of_which_no_row_counts_adds_nothing(gpu: str) -> None:
    feature_map = Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    trial = TrialSteps(np.ones((2, 17)), np.ones((2, 17)), np.ones((2, 3)))
    given = (np.ones((0, 2)), np.ones(0), feature_map, trial, NewtonOptions("log_loss", (0, 17), (0, 1)))
    expected, found = newton_sums(rows()[0][:0], *given), newton_sums(device.rows_on(rows()[0][:0], "gpu"), *given)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(found[name], np.zeros_like(value))


@pytest.mark.parametrize("columns", [(0, 7), (0, 6), (2, 5), (4, 7), (6, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_the_few_rows_that_count_are_those_of_all(columns: tuple[int, int], dtype: str, gpu: str) -> None:
    generator = np.random.default_rng(0)
    phi, weight = generator.normal(size=(30, 6)).astype(dtype), generator.normal(size=30)
    weight[generator.random(30) < 0.7] = 0.0
    expected, found = np.zeros(packed_size(*columns)), np.zeros(packed_size(*columns))
    add_hessian(phi.astype(np.float64), weight, columns, expected)
    twice = np.zeros_like(found)
    grams = [GramSum(columns, found), GramSum(columns, twice)]
    for rows in (slice(0, 20), slice(20, 30)):
        there = device.rows_on(weight[rows], "gpu")
        add_few(grams, device.rows_on(phi[rows], "gpu"), [there, -2.0 * there])
    for gram in grams:
        gram.finish()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)
    np.testing.assert_allclose(twice, -2.0 * expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


def test_what_the_host_computes_of_rows_is_counted() -> None:
    values = HostRows.of(np.arange(float(N_ROWS)))
    before = HostRows.operations
    with patch.object(np, "asarray", as_counted):
        for compute in (
            lambda x: x + 1,
            lambda x: np.where(x > 3, 1.0, -1.0),
            lambda x: np.asarray(x, dtype=np.float32) * 2,
            lambda x: x.astype(np.float32),
            lambda x: x.sum(),
            lambda x: x[3:9],
        ):
            compute(values)
    assert HostRows.operations - before == 1 + 2 + 1 + 1 + 1 + 0


def test_the_few_rows_whose_curvature_changes_are_picked_on_the_gpu(gpu: str) -> None:
    generator, feature_map = np.random.default_rng(0), Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    X, targets = rows(600)[0], generator.choice([-1.0, 1.0], (600, 2))
    points, directions = generator.normal(size=(2, 2, 17)) * 0.3
    options = NewtonOptions("squared_hinge", (0, 17), (0, 1), change=True, dtype="float64")
    given = (targets, generator.random(600), feature_map, TrialSteps(points, directions, np.ones((2, 1))), options)
    expected, there = newton_sums(X, *given), device.rows_on(X, "gpu")
    if gpu == "played":
        import cupy

        waits = cupy.counts["waits"]
    found = newton_sums(there, *given)
    assert gpu == "real" or cupy.counts["waits"] - waits == 1
    assert np.abs(expected["hessian"]).max() > 0
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def landmark_map() -> FeatureMap:
    return FeatureMap("nystrom", NystromProjection(Gaussian(2.0), rows(8)[0], np.eye(8)), np.ones(8))


@pytest.mark.parametrize("name", SUMS)
def test_the_host_waits_once_a_block_for_sums(name: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block of three tiles, by the sums of several weights, coefficients or groups."""
    if gpu == "real":
        pytest.skip("what is asked of the real CuPy is not counted")
    import cupy

    X, S = device.rows_on(rows(600)[0], "gpu"), np.random.default_rng(1).normal(size=(600, 3))
    expected = SUMS[name](X, S)
    monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 14))
    before = dict(cupy.counts)
    found = SUMS[name](X, S)
    assert cupy.counts["waits"] - before["waits"] == 1
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_the_host_waits_once_a_block_for_matrices_of_the_game_and_of_two_maps(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(600)
    there, maps = device.rows_on(X, "gpu"), [Gaussian(2.0).draw(m, 4, m, dtype="float64") for m in (6, 9)]
    block = Block(0, X, y, 0.5 + np.arange(600.0), np.arange(600))
    given = {"targets": GameTargets(3), "feature_map": maps[0], "dtype": "float64"}
    expected = gram_block(block, given)["gram"], cross_gram_sums(X, block.weights, *maps, "float64")
    monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 14))
    if gpu == "played":
        import cupy

        waits = cupy.counts["waits"]
    found = gram_block(replace(block, X=there), given)["gram"], cross_gram_sums(there, block.weights, *maps, "float64")
    if gpu == "played":
        assert cupy.counts["waits"] - waits == 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * np.abs(other).max())


@pytest.mark.parametrize("project", [False, True])
def test_rows_off_the_sphere_are_refused_when_their_sums_arrive(project: bool, gpu: str) -> None:
    """Without a wait of its own, and with the sentence of the CPU."""
    X = rows(100)[0]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    harmonics = SphericalHarmonics(max_degree=2, project=project).draw(5, 4, seed=0, dtype="float64")
    X[70] *= 0.0 if project else 2.0
    with pytest.raises(ValueError, match="row 70 has length") as expected:
        feature_sums(X, np.ones(100), harmonics)
    there = device.rows_on(X, "gpu")
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        feature_sums(there, np.ones(100), harmonics)
    with pytest.raises(ValueError, match=re.escape(str(expected.value))):
        device.on_host(map_rows(there, harmonics))
    X[70] = X[71]
    # what was refused is forgotten
    np.testing.assert_allclose(
        feature_sums(device.rows_on(X, "gpu"), np.ones(100), harmonics),
        feature_sums(X, np.ones(100), harmonics),
        rtol=1e-4,
    )


def test_codes_that_are_no_classes_are_refused_when_their_sums_arrive(gpu: str) -> None:
    X, codes = rows(100)
    codes[[40, 60]] = 7, -1
    problem = PotentialProblem(Gaussian(2.0).draw(8, 4, seed=0), 3)
    block = Block(5, device.rows_on(X, "gpu"), codes, None, np.arange(100))
    with pytest.raises(ValueError, match=r"y\[40\] of block 5 is the class code 7; codes run from 0 to 2"):
        potential_sums(block, {"problem": problem})


SMALL_PIECE = 256


@pytest.fixture
def staging(gpu: str, monkeypatch: pytest.MonkeyPatch) -> device.Staging:
    """Pieces of 256 bytes, so that a few rows take many of them."""
    monkeypatch.setattr(device, "_PIECE_BYTES", SMALL_PIECE)
    return device.Staging()


def test_rows_come_to_the_gpu_through_few_pieces_that_are_used_again(staging: device.Staging, gpu: str) -> None:
    """Also where whoever sent them has written over them since, and for blocks of several precisions and shapes."""
    generator, sent = np.random.default_rng(0), []
    for number in range(30):
        X = (100 * generator.normal(size=(40 + number, 3))).astype(("float32", "int8", "float64")[number % 3])
        sent.append((X.copy(), *staging.send(X, 2 * SMALL_PIECE)))
        X[:] = 0
    for expected, there, arrival in reversed(sent):
        arrival.wait()
        np.testing.assert_array_equal(device.on_host(there), expected)
    assert staging.nbytes == 2 * SMALL_PIECE
    if gpu == "played":
        import cupyx

        assert cupyx.pinned == [SMALL_PIECE] * 2
    staging.clear()
    assert staging.nbytes == 0


def test_threads_that_send_rows_share_one_piece(staging: device.Staging) -> None:
    def sent(number: int) -> bool:
        X = np.full((100, 4), float(number))
        there, arrival = staging.send(X, SMALL_PIECE)
        arrival.wait()
        return bool(np.array_equal(device.on_host(there), X))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(sent, range(100)))
    assert staging.nbytes == SMALL_PIECE


def test_a_machine_that_pins_no_more_makes_do_with_what_it_has(
    staging: device.Staging, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu == "real":
        pytest.skip("a real machine pins as much as it likes")
    import cupyx

    asked, pinned = [], cupyx.empty_pinned

    def some(*given: Any) -> np.ndarray:
        asked.append(given)
        if len(asked) > most:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        return pinned(*given)  # type: ignore[no-any-return]

    monkeypatch.setattr(cupyx, "empty_pinned", some)
    X, most = rows()[0], 3
    there, arrival = staging.send(X, 1 << 20)
    arrival.wait()
    np.testing.assert_array_equal(there.get(), X)
    assert staging.nbytes == 3 * SMALL_PIECE
    assert len(asked) == 4
    most = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        device.Staging().send(X, 1 << 20)


@pytest.mark.parametrize("fault", ["a piece used too early", "no wait", "memory still in use", "memory free too early"])
def test_a_played_gpu_notices_copies_that_nothing_waits_for(
    fault: str, staging: device.Staging, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu == "real":
        pytest.skip("a real GPU leaves it to chance")
    import cupy

    X = rows()[0]
    if fault == "a piece used too early":
        monkeypatch.setattr(cupy.cuda.Event, "done", True)
        there, arrival = staging.send(X, 2 * SMALL_PIECE)
        arrival.wait()
        assert not np.array_equal(there.get(), X)
    elif fault == "no wait":
        there, arrival = staging.send(X, 2 * SMALL_PIECE)
        for use in (lambda: there + 1, lambda: there.get(), lambda: there[:3].sum(), lambda: cupy.sum(there)):
            with pytest.raises(RuntimeError, match="nothing has waited for the copy"):
                use()
        arrival.wait()
        np.testing.assert_array_equal(there.get(), X)
    elif fault == "memory still in use":
        monkeypatch.setattr(cupy.cuda.Stream, "wait_event", lambda stream, event: None)
        # work that was asked for before the memory was given out
        cupy.ones(3)
        with pytest.raises(RuntimeError, match="memory that earlier work on the null stream may still use"):
            staging.send(X, 2 * SMALL_PIECE)
    else:
        there, arrival = staging.send(X, 2 * SMALL_PIECE)
        # Whoever forgets rows on their way does no harm while the pieces know of them.
        del there
        assert cupy.violations == []
        arrival._rows = None
        assert [said.endswith("a copy was on its way to it") for said in cupy.violations] == [True]
        cupy.violations.clear()


def test_passes_over_a_store_send_rows_through_pinned_memory(
    gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of four tasks at once, of which two compute; what they hold of it the memory of the pass counts."""
    monkeypatch.setattr(device, "_PIECE_BYTES", SMALL_PIECE)
    # the small pieces end with the test
    monkeypatch.setattr(device, "STAGING", device.Staging())
    X = np.random.default_rng(0).normal(size=(3_000, 4))
    source, sent = create_dataset(tmp_path / "rows.zarr", X, rows_a_block=100).source, []
    send, staged = device.STAGING.send, []

    def watched(X: np.ndarray, most_bytes: int) -> Any:
        staged.append(most_bytes)
        sent.append(len(X))
        return send(X, most_bytes)

    monkeypatch.setattr(device.STAGING, "send", watched)
    LOADER.clear()
    found = []
    for budget in (None, 0):
        with dask.config.set({"scheduler": "threads", "num_workers": 4, "dkl.gpu-rows-bytes": budget}):
            found += [run_pass(source, (COLUMN_SUMS,), device="gpu").results[0]["sums"] for _ in range(2)]
    # The first pass sends all rows, the second finds them there; without a budget both of the others do.
    assert sent == [100] * 90
    assert set(staged) == {8 * SMALL_PIECE}
    assert 0 < device.STAGING.nbytes <= 8 * SMALL_PIECE
    for sums in found:
        np.testing.assert_allclose(sums, X.sum(axis=0), rtol=1e-12)
    LOADER.clear()


def test_pinned_memory_is_a_part_of_the_memory_of_a_pass(gpu: str) -> None:
    """Two pieces a task, up to 256 MiB, and none where there is no room for one."""
    MiB = 1 << 20
    assert [device.staging_bytes(n, 1 << 40) // MiB for n in (1, 4, 8, 100)] == [32, 128, 256, 256]
    assert [device.staging_bytes(4, room * MiB) // MiB for room in (15, 16, 100)] == [0, 16, 96]
    source = Source((1_000,) * 8)
    for where, room, expected in (("gpu", 1 << 30, 32 * MiB), ("gpu", 10 * MiB, 0), ("cpu", 1 << 30, 0)):
        given: Any = {"n_threads": 1, "room": room_of_bytes(room), "device": where}
        projection = fit_limits(source, (COLUMN_SUMS,), **given)
        assert projection.items.get("pinned memory on the way to a GPU", 0) == projection.limits.staged == expected
        assert projection.fits


@pytest.mark.parametrize(("cores", "n_threads", "expected"), [(16, 1, 15), (16, 16, 2), (16, 4, 3), (1, 1, 2)])
def test_all_cores_of_a_process_decode_for_its_gpu(cores: int, n_threads: int, expected: int) -> None:
    given = {"is_inline": False, "cores": cores, "n_threads": n_threads}
    assert blocks_ahead("gpu", **given) == expected  # type: ignore[arg-type]
    assert blocks_ahead("cpu", **given) == 1  # type: ignore[arg-type]
    memories = [ProcessMemory(str(number), 0, "host", 1 << 30, cores=cores) for number in range(2)]
    assert own_cores(memories) == max(1, cores // 2)


COUNTED = Gaussian(2.0).draw(8, 6, seed=0)
ROWS_OF_A_BLOCK = 2_000


def sums_of_weights(n_weights: int) -> Any:
    return lambda X: feature_sums(X, np.ones((ROWS_OF_A_BLOCK, n_weights)), COUNTED)


def scaled_map(projected_by: FeatureMap, kind: str | None = None) -> Any:
    feature_map = replace(projected_by, scaler=cases.scaler(kind, 6))
    return lambda X: map_rows(X, feature_map)


def step_map() -> FeatureMap:
    columns = np.arange(10).reshape(5, 2) % 6
    projection = StepProjection(columns, np.full((5, 2), 0.1), np.zeros((5, 2), np.int8), np.full(6, 2.0))
    return FeatureMap("steps", projection, np.ones(5))


def newton_step(loss: Any, n_models: int, columns: tuple[int, int] | None) -> Any:
    targets = np.where(np.arange(ROWS_OF_A_BLOCK)[:, None] % 3 == np.arange(n_models), 1.0, -1.0)
    trial = TrialSteps(*np.full((2, n_models, 17), 0.1), np.ones((1 if loss == "softmax" else n_models, 1)))
    of = (0,) if loss == "softmax" else tuple(range(n_models))
    options = NewtonOptions(loss, columns, of if columns else ())
    return lambda X: newton_sums(X, targets, np.ones(len(targets)), COUNTED, trial, options)


def corrective_step(X: Any) -> Any:
    targets = (
        np.sign(np.arange(ROWS_OF_A_BLOCK) % 2 - 0.5)[:, None],
        np.ones(ROWS_OF_A_BLOCK),
        np.zeros(ROWS_OF_A_BLOCK),
    )
    old, new = np.append(np.arange(12), 16), np.arange(12, 16)
    task = corrective_task("squared_hinge", np.full((1, 17), 0.1), new, GramChange(old, None, ((0, 13),)))
    return round_sums(X, targets, COUNTED, task)


def corrective_task(
    loss: str, model: np.ndarray, new: np.ndarray, change: GramChange, dtype: str = "float32"
) -> RoundTask:
    """A pass that judges a model, verifies new columns, and brings the Gram matrix of old ones up to date."""
    options: Any = {"curvature_unit": loss_of(loss).largest_curvature, "has_intercept": True, "has_dual": True}
    return RoundTask(loss_of(loss), model[None], new, dtype, change=change, **options)


BLOCKS: dict[str, Any] = {
    "sums of waves, 1 weight a row": sums_of_weights(1),
    "sums of waves, 8 weights a row": sums_of_weights(8),
    "map to waves": scaled_map(COUNTED),
    "map to waves, scaled by quantiles": scaled_map(COUNTED, "quantile"),
    "kernel to landmarks": scaled_map(
        FeatureMap("nystrom", NystromProjection(Gaussian(2.0), np.arange(48.0).reshape(8, 6), np.eye(8)), np.ones(8))
    ),
    "steps": scaled_map(step_map()),
    "slopes of 1 model": lambda X: squared_slopes(X, np.ones(ROWS_OF_A_BLOCK), COUNTED, np.ones((1, 16))),
    "slopes of 10 models": lambda X: squared_slopes(X, np.ones(ROWS_OF_A_BLOCK), COUNTED, np.ones((10, 16))),
    "squared error, with its Hessian": newton_step("squared_error", 1, (0, 17)),
    "squared error, gradient": newton_step("squared_error", 1, None),
    "squared hinge, three classes, with Hessians": newton_step("squared_hinge", 3, (0, 17)),
    "log loss, with its Hessian": newton_step("log_loss", 1, (0, 17)),
    "softmax, three classes": newton_step("softmax", 3, (0, 17)),
    "corrective round": corrective_step,
}


def test_a_block_asks_no_more_of_a_gpu_than_the_page_says(gpu: str) -> None:
    """Calls that start work there, waits for it, and copies to it: of the second block, whose maps are there."""
    if gpu == "real":
        pytest.skip("what is asked of the real CuPy is not counted")
    import cupy

    page = (Path(__file__).parents[1] / "examples" / "benchmarks" / "gpu.md").read_text(encoding="utf-8")
    lines = [line.split(" | ") for line in page.partition("## What the host asks for")[2].splitlines()]
    said = {line[0].removeprefix("| "): line[-1].removesuffix(" |") for line in lines if len(line) == 3}
    most = {name: [int(number) for number in said[name].split(", ")] for name in BLOCKS}
    X = np.random.default_rng(0).normal(size=(ROWS_OF_A_BLOCK, 6)).astype(np.float32)
    there, found = device.rows_on(X, "gpu"), {}
    for name, compute in BLOCKS.items():
        compute(there)
        before, copies = dict(cupy.counts), len(cupy.copied)
        compute(there)
        calls, waits = (cupy.counts[what] - before[what] for what in ("launches", "waits"))
        found[name] = [calls, waits, len(cupy.copied) - copies]
    more = {name: asked for name, asked in found.items() if any(np.greater(asked, most[name]))}
    assert more == {}


ROUNDS: dict[str, Any] = {
    "corrective round": lambda: MarginFeatures(n_features=12, device="gpu", random_state=0),
    "newton step": lambda: KernelClassifier(
        RandomFeatures(Gaussian(2.0), n_features=16),
        loss="log_loss",
        solver="newton",
        alpha=1e-4,
        calibrate=False,
        device="gpu",
        random_state=0,
    ),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_after_the_first_pass_nothing_of_a_row_is_copied_or_computed_on_the_host(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where rows and targets fit on the GPU; of those that do not fit, both are sent again."""
    if gpu == "real":
        pytest.skip("the copies of the real CuPy are not counted")
    import cupy

    n, passes, models = 5_000, [], []
    X = np.random.default_rng(0).normal(size=(2 * n, 6)).astype(np.float32)
    data = create_dataset(tmp_path / "rows.zarr", X, (X[:, 0] * X[:, 1] > 0).astype(np.int8), rows_a_block=n)
    of_block, targets = SumReduction.of_block, NewtonTargets.__call__
    made: list[int] = []

    def counted(reduction: Any, block: Any, columns: Any) -> Any:
        before, targets_before = len(cupy.copied), len(made)
        found = of_block(reduction, block, columns)
        if reduction.record.name == name:
            passes.append((sum(cupy.copied[before:]), len(made) - targets_before))
        assert LOADER._cache.gpu_bytes <= (budget or 1 << 30)
        return found

    monkeypatch.setattr(SumReduction, "of_block", counted)
    monkeypatch.setattr(NewtonTargets, "__call__", lambda self, block: made.append(block.index) or targets(self, block))
    for budget in (None, X.nbytes):
        LOADER.clear()
        passes.clear()
        with dask.config.set({"scheduler": "synchronous", "dkl.gpu-rows-bytes": budget}):
            learner = ROUNDS[name]().fit(data)
        models.append(learner.linear_.coef_ if name == "newton step" else learner.transform(X[:50]))
        first, later = passes[:2], passes[2:]
        assert len(later) > 2
        assert min(nbytes for nbytes, _ in first) >= n
        assert [calls for _, calls in first] == [1, 1]
        if budget is None:
            # models and frequencies, of which a block of more rows has no more
            assert max(nbytes for nbytes, _ in later) < n
            assert {calls for _, calls in later} == {0}
        else:
            # one block stays with its targets, which leave no room for the other
            assert min(nbytes for nbytes, _ in later) < n <= max(nbytes for nbytes, _ in later)
            assert {calls for _, calls in later} == {0, 1}
    LOADER.clear()
    np.testing.assert_array_equal(*models)


def test_processes_side_by_side_take_different_gpus(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is opened again is locked against this process as against another one."""
    taken = []
    for _ in range(5):
        taken.append(device.own_gpu())
        assert device.own_gpu() == taken[-1]
        device._claimed_gpu.cache_clear()
    assert taken == [0, 1, 2, 0, 1]
    for rank, expected in (("2", 2), ("7", 1), ("no number", 0)):
        for lock in three.glob("*/*.lock"):
            lock.unlink()
        device._claimed_gpu.cache_clear()
        monkeypatch.setenv("SLURM_LOCALID", rank)
        assert device.own_gpu() == expected


def test_threads_that_begin_together_take_one_gpu(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, locked = threading.Barrier(8), device.locked

    def slowly(*given: Any) -> bool:
        time.sleep(0.01)
        return locked(*given)

    monkeypatch.setattr(device, "locked", slowly)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: (together.wait(), device.own_gpu())[1], range(8))) == {0}
    assert len(list(three.glob("*/*.lock"))) == 1


@pytest.mark.parametrize("how", ["a pipe", "a link", "a folder of others", "a file", "a link to a folder"])
def test_names_that_somebody_took_first_do_no_harm(three: Path, how: str) -> None:
    """Whoever may write to the machine's temporary folder could take any name there before us."""
    folder, target = three / f"dkl-{os.getuid()}", three / "target"
    if how == "a file":
        folder.write_text("not a folder")
    elif how == "a link to a folder":
        target.mkdir()
        folder.symlink_to(target)
    else:
        folder.mkdir(mode=0o700)
        for gpu in range(3):
            lock = folder / f"gpu-0000-{gpu:02d}-00.0-0.lock"
            if how == "a pipe":
                os.mkfifo(lock)
            elif how == "a link":
                lock.symlink_to(target)
        if how == "a folder of others":
            folder.chmod(0o777)
    started = time.monotonic()
    assert device.own_gpu() in range(3)
    assert time.monotonic() - started < 5.0
    assert not target.is_file()
    if how == "a link to a folder":
        assert not list(target.iterdir())


def test_a_process_that_has_ended_leaves_its_gpu_to_others(three: Path) -> None:
    script = (
        f"import sys, tempfile; sys.path[:0] = {[str(PLAYED), str(PLAYED.parents[1])]}; "
        f"tempfile.tempdir = {str(three)!r}; from dkl.kernels.device import own_gpu; "
        "print(own_gpu(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == 0
        assert device.own_gpu() == 1
        other.kill()
    device._claimed_gpu.cache_clear()
    assert device.own_gpu() == 0


def test_where_no_file_can_be_locked_there_is_a_gpu_all_the_same(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(three / "not there"))
    assert device.own_gpu() == os.getpid() % 3


def test_all_threads_of_a_process_compute_on_its_gpu(three: Path) -> None:
    """The played arrays refuse to be used on another device than their own."""
    held = [device.own_gpu(), device._claimed_gpu.cache_clear()]
    X, y = rows(600)
    machine = KernelClassifier(RandomFeatures(Gaussian(2.0), n_features=20, dtype="float64"), epochs=1, random_state=0)
    with dask.config.set(scheduler="threads", num_workers=2):
        found, expected = (
            clone(machine).set_params(device=where).fit(dataset(X, y, rows_a_block=100)).decision_function(X)
            for where in ("gpu", "cpu")
        )
    assert held[0] == 0
    assert device.own_gpu() == 1
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_rows_that_are_summed_on_the_host_do_not_move(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []
    monkeypatch.setattr(device, "rows_on", lambda X, where: moved.append(X) or rows_on(X, where))
    X, y = rows()
    run_pass(dataset(X, y, rows_a_block=100).source, (counts_record(np.zeros((4, 2)), np.full(4, 2)),), device="gpu")
    assert moved == []


@pytest.mark.parametrize("kind", ["numbers", "two numbers", "classes"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_products_of_directions_of_texts_are_those_of_the_cpu(kind: str, is_sparse: bool, gpu: str) -> None:
    """Of two texts, by fold, in tiles of few rows; the rows of one fold are missing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 9)).astype(np.float32)
    y = {"numbers": X[:, 0], "two numbers": X[:, :2].astype(np.float64), "classes": rng.integers(3, size=900)}[kind]
    folds = CategoryFolds(HeldOut(0.2, 3))
    ids = np.arange(1_100)[folds(np.arange(1_100)) != 4][: len(X)]
    n_classes = 3 if kind == "classes" else None
    operands = {"places": ((1, 5), (7, 2)), "folds": folds, "n_classes": n_classes}
    for weight in (None, rng.exponential(size=len(X))):
        block = Block(0, sparse.csr_array(X) if is_sparse else X, y, weight, ids)
        expected = text_sums(block, operands)
        for nbytes in (1 << 28, 1 << 14):
            with patch.object(device, "_tile_bytes", ContextVar("tile bytes", default=nbytes)):
                found = text_sums(device.place(block, "gpu"), operands)
            assert set(found) == set(expected)
            for name, value in expected.items():
                assert isinstance(found[name], np.ndarray)
                np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11, err_msg=name)
    assert not expected["gram 1"][4].any()


@pytest.mark.parametrize("codes", [None, [0, 1, 1]])
@pytest.mark.parametrize("kind", [None, "standard"])
def test_moments_and_rounds_of_k_means_are_those_of_the_cpu(codes: Any, kind: str | None, gpu: str) -> None:
    """Of three classes, of which one may have no centre; only some columns count for the norm of a row."""
    X, y = rows()
    scaler = None if kind is None else cases.scaler(kind, 4)
    centers = Centers(X[:3].copy(), None if codes is None else np.array(codes), scaler, 3, np.array([1.0, 2.0, 0.5]))
    records = (moments_record(4), moments_record(4, np.array([True, False, True, True])), cluster_record(centers))
    source = dataset(X, y, rows_a_block=100).source
    on_gpu, on_cpu = (run_pass(source, records, device=where).results for where in ("gpu", "cpu"))  # type: ignore[arg-type]
    for found, expected in zip(on_gpu, on_cpu, strict=True):
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11, err_msg=name)


def test_a_block_function_is_called_again_where_its_own_products_find_no_memory(gpu: str) -> None:
    """Not the map alone takes memory: what is copied and multiplied beside it does too."""
    X, y = rows(600)
    tried: list[int] = []

    def summed(block: Any, operands: Any) -> dict[str, np.ndarray]:
        tried.append(device.tile_rows(1, 8))
        if len(tried) < 3:
            raise RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED")
        return {"n": np.array(float(block.n_rows))}

    source, record = dataset(X, y, rows_a_block=600).source, BlockSum("a sum", summed, {"n": Accumulator(())})
    with pytest.warns(RuntimeWarning, match=r"memory does not suffice \(CUBLAS_STATUS_NOT_INITIALIZED\)"):
        (found,) = run_pass(source, (record,), device="gpu").results
    assert found["n"] == 600
    assert tried[0] > tried[1] > tried[2]


@pytest.mark.parametrize(
    "full",
    [
        MemoryError("out of memory"),
        RuntimeError("cudaErrorMemoryAllocation: out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
        RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED"),
        RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ],
    ids=str,
)
def test_a_block_too_large_for_the_gpu_is_taken_in_smaller_tiles(
    full: Exception, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = rows(600)
    feature_map = Gaussian(2.0).draw(8, 4, seed=0, dtype="float64")
    sizes: list[int] = []

    def angles(xp: Any, tile: Any, *rest: Any) -> Any:
        sizes.append(len(tile))
        if len(tile) > 300:
            raise full
        return projected(xp, tile, *rest)

    monkeypatch.setattr(device, "_tile_bytes", ContextVar("tile bytes", default=1 << 16))
    monkeypatch.setattr(device, "_LEAST_TILE_BYTES", 1 << 13)
    monkeypatch.setattr(device.generic, "projected", angles)
    with pytest.warns(RuntimeWarning, match=r"memory does not suffice \(.*\): this block again in tiles"):
        found = device.map_rows(device.rows_on(X, "gpu"), feature_map, "float64")
    np.testing.assert_allclose(found.get(), map_rows(X, feature_map, "float64"), rtol=1e-11, atol=1e-12)
    assert sizes == [600, 256, 256, 88]
    monkeypatch.setattr(device, "_LEAST_TILE_BYTES", 1 << 16)
    with pytest.raises(type(full)):
        device.map_rows(device.rows_on(X, "gpu"), feature_map, "float64")


def test_all_that_the_report_measures_is_that_of_the_cpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "deploy"))
    speeds = list(import_module("device_speed").device_speeds(n_rows=200, n_columns=9, n_frequencies=32, repeats=1))
    assert max(one.difference for one in speeds) < 1e-3


def is_in_float32(operands: Any) -> bool:
    """Whether some arithmetic of a block function is in float32."""
    return any(getattr(one, "dtype", one) == "float32" for one in operands.values() if not isinstance(one, np.ndarray))


# fits whose passes are those of another fit here, on other targets, of another loss or in another precision
ALIKE = {
    *("aligned, numbers", "corrective, numbers", "joint, numbers", "joint, squared hinge", "tuned, squared hinge"),
    *("tuned, float32", "newton, pinball", "newton, poisson", "newton, gamma"),
    *("penalty of two classes", "penalty of three", "newton, two targets", "sgd, log loss", "explained, ramps"),
}


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow if one in ALIKE else ()) for one in FITS])
def test_every_pass_of_every_method_waits_once_a_block_and_has_the_sums_of_the_cpu(
    name: str, gpu: str, tmp_path: Path
) -> None:
    """Of a row nothing comes to the host but columns that are written to files, and the host computes nothing of it."""
    if gpu == "real":
        pytest.skip("what is asked of the real CuPy is not counted")
    import cupy

    get = cupy.ndarray.get

    def compared(reduction: SumReduction, block: Any, columns: Any, found: Any) -> None:
        record, here = reduction.record, replace(block, X=get(block.X), arrival=None, beside=None)
        if columns is not None:
            here = columns.read(record.reads, here)
        expected = record.function(here, record.operands)
        # features in float32 err by a millionth each, those that tensor cores round by a thousandth
        rounded = getattr(record.operands.get("options"), "rounded", False)
        digits = 1e-2 if rounded else 1e-4 if is_in_float32(record.operands) else 1e-8
        for key, value in found.items():
            atol = digits * np.abs(expected[key]).max(initial=0.0)
            np.testing.assert_allclose(value, expected[key], rtol=0, atol=atol, err_msg=f"{record.name}: {key}")

    passes = counted(name, tmp_path, compared)
    assert passes
    for one in passes.values():
        assert one.waits <= 1, one
        assert one.bytes_back == 0, one
        assert one.operations == 0, one
    assert {one.name for one in passes.values() if one.is_on_host} <= ON_HOST


def test_the_page_has_every_row_of_the_table() -> None:
    """`python -m tests.gpu_counts` makes it anew."""
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table_of_page().splitlines()[2:]]
    assert set(rows) == set(FITS)
