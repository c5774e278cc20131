"""Dask data frames: each partition is read once a pass and never only to be counted, and its bytes are in the plan."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier

from dkl.data import frames
from dkl.data.coerce import as_dataset
from dkl.data.ingest.encoding import TableEncoding
from dkl.errors import TableDifferenceWarning
from dkl.explain.dependence import partial_dependence
from dkl.explain.importance import importance
from dkl.explain.model import rows_to_explain
from dkl.linear.incremental import BlockIncremental
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.random_features import RandomFeatures
from dkl.passes.loop import run_pass
from dkl.passes.memory import fit_limits, peak_bytes
from dkl.passes.room import own_room
from dkl.passes.session import origin_of, stand_alone
from dkl.planning import plan
from tests.passes.sources import moments

ROWS = 60
READ: list[int] = []


def partition(number: int) -> pd.DataFrame:
    """Rows of one partition, as if read from a file."""
    READ.append(number)
    draw = np.random.default_rng(number)
    numbers, names = draw.normal(size=(2, ROWS)), draw.choice(["u", "v", "w"], ROWS)
    return pd.DataFrame({"a": numbers[0], "b": names, "c": numbers[1]})


def lazy(n_partitions: int = 4) -> Any:
    found = dd.from_map(partition, range(n_partitions), meta=partition(0).head(0))
    READ.clear()
    return found


@pytest.fixture(autouse=True)
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.node.get_closest_marker("slow"):
        yield
        return
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 25)
    with dask.config.set(scheduler="synchronous"):
        yield


def test_a_pass_reads_a_partition_once_for_the_blocks_that_are_cut_from_it() -> None:
    rows = as_dataset(lazy(), np.arange(4 * ROWS) % 2)
    # the statistics of the columns count the rows, too
    assert sorted(READ) == [0, 1, 2, 3]
    READ.clear()
    assert rows.source.n_blocks == 10
    run_pass(rows.source, (moments(),))
    assert sorted(READ) == [0, 1, 2, 3]


def test_blocks_cut_from_partitions_are_those_of_the_frame_in_memory() -> None:
    whole = pd.concat([partition(number) for number in range(4)], ignore_index=True)
    targets = (whole["a"] > 0).astype(int)
    found = as_dataset(lazy(), dd.from_pandas(targets, npartitions=3, sort=False))
    expected = as_dataset(whole, targets)
    (sums,), (wanted,) = (run_pass(each.source, (moments(),)).results for each in (found, expected))
    assert sums["sums"].tobytes() == wanted["sums"].tobytes()
    np.testing.assert_array_equal(found.X.compute(), expected.X.compute())
    np.testing.assert_array_equal(found.y.compute(), expected.y.compute())


def test_tasks_of_a_cluster_read_the_partitions_by_themselves() -> None:
    rows = as_dataset(lazy())
    assert origin_of(rows.source) == "graph"
    assert stand_alone(rows.source)
    # three blocks of a partition and a part of a fourth are one task
    assert rows.source.blocks_sharing_chunks == 4


def test_partitions_that_share_a_task_are_left_to_dask() -> None:
    shared = dask.delayed(partition)(0)
    parts = [dask.delayed(lambda frame, at: frame.assign(a=frame["a"] + at))(shared, at) for at in range(3)]
    rows = as_dataset(dd.from_delayed(parts, meta=partition(0).head(0)), np.arange(3 * ROWS) % 2)
    assert not stand_alone(rows.source)
    (sums,) = run_pass(rows.source, (moments(),)).results
    assert np.isfinite(sums["sums"]).all()


def test_reading_a_partition_is_in_the_plan() -> None:
    """Reading floats from Parquet held 3.4 times the bytes of the partition; the plan had one time."""
    rows = as_dataset(lazy()[["a", "c"]])
    read = rows.source.read_nbytes
    assert read >= 3.4 * partition(0)[["a", "c"]].memory_usage(deep=True).sum()
    memory = fit_limits(rows.source, (moments(),), n_threads=1, room=own_room(None), ahead=0)
    assert memory.items["temporaries of reading"] == read


def test_texts_of_arrow_are_counted_once_beside_their_table() -> None:
    texts = pd.DataFrame({"b": pd.array(["name"] * 1_000, "string[pyarrow]")})
    nbytes = texts.memory_usage(index=False, deep=True).sum()
    assert 1.5 * nbytes <= frames._partition_bytes(texts)[0] < 1.6 * nbytes + 1_000


def test_workers_read_with_an_allocator_that_returns_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own kept 82 MiB of a worker after partitions of 16 MiB."""
    partition(0).to_parquet(tmp_path / "rows.parquet")
    frame = dd.read_parquet(tmp_path / "rows.parquet")
    before = pyarrow.default_memory_pool()
    frames._let_arrow_return_memory.cache_clear()
    try:
        (part,) = frames.partitions(frame)
        part.compute()
        # a process that is no worker keeps its allocator
        assert pyarrow.default_memory_pool().backend_name == before.backend_name
        monkeypatch.setattr(frames, "worker_of_task", object)
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mimalloc")
        part.compute()
        assert pyarrow.default_memory_pool().backend_name == before.backend_name
        monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL")
        frames._let_arrow_return_memory.cache_clear()
        pd.testing.assert_frame_equal(part.compute(), frame.compute())
        assert pyarrow.default_memory_pool().backend_name == "system"
    finally:
        pyarrow.set_memory_pool(before)
        frames._let_arrow_return_memory.cache_clear()


def test_lazy_features_of_a_frame_read_each_partition_once() -> None:
    learner = RandomFeatures(n_features=6, random_state=0).fit(lazy())
    READ.clear()
    assert learner.transform(lazy()).compute().shape == (4 * ROWS, 6)
    assert sorted(READ) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba", "transform"])
def test_lazy_answers_encode_a_block_of_a_partition_at_a_time(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of names, texts and dates are many times as large as a partition: a worker of 500 MB was paused."""
    whole = pd.concat([partition(number) for number in range(4)], ignore_index=True)
    words = np.array(["ash", "birch", "elm", "fir", "oak", "yew"])
    drawn = np.random.default_rng(0).choice(words, (len(whole), 9))
    whole = whole.assign(text=[" ".join(row) for row in drawn], day=pd.Timestamp("2026-01-01"))
    whole["day"] += pd.to_timedelta(np.arange(len(whole)), "D")
    targets = (whole["a"] > 0).astype(int)
    features = RandomFeatures(n_features=10, random_state=0)
    machine = KernelClassifier(features, loss="log_loss", random_state=0)
    model: Any = features.fit(whole) if method == "transform" else machine.fit(whole, targets)
    expected = getattr(model, method)(whole)
    encoded: list[int] = []
    encode = TableEncoding.transform

    def counted(self: TableEncoding, frame: Any, **options: Any) -> Any:
        encoded.append(len(frame))
        return encode(self, frame, **options)

    monkeypatch.setattr(TableEncoding, "transform", counted)
    # blocks are of at most 25 rows here
    found = getattr(model, method)(dd.from_pandas(whole, npartitions=2, sort=False)).compute()
    np.testing.assert_array_equal(found, expected)
    assert sum(encoded) == len(whole)
    assert max(encoded) <= 25


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each table that is encoded."""
    found: list[int] = []
    encode = TableEncoding.transform

    def counted(self: TableEncoding, frame: Any, **options: Any) -> Any:
        found.append(len(frame))
        return encode(self, frame, **options)

    monkeypatch.setattr(TableEncoding, "transform", counted)
    return found


@pytest.mark.parametrize("measure", ["slope", "replacement"])
def test_explanations_encode_a_block_of_a_partition_at_a_time_in_tasks_that_read_it_once(
    measure: Any, encoded: list[int]
) -> None:
    """Dask computed whole encoded partitions before the tasks of the pass: workers of 500 MB were refused."""
    whole = pd.concat([partition(number) for number in range(4)], ignore_index=True)
    model = KernelClassifier(RandomFeatures(n_features=10), random_state=0).fit(whole, (whole["a"] > 0).astype(int))
    expected = importance(model, whole, measure=measure)
    encoded.clear()
    rows = rows_to_explain(model, lazy())
    assert origin_of(rows.source) == "graph"
    assert stand_alone(rows.source)
    # once to be counted
    assert sorted(READ) == [0, 1, 2, 3]
    assert not encoded
    READ.clear()
    found = importance(model, rows, measure=measure)
    assert sorted(READ) == [0, 1, 2, 3]
    assert sum(encoded) == 4 * ROWS
    assert max(encoded) <= 25
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5)
    curve, wanted = (partial_dependence(model, each, "a") for each in (lazy(), whole))
    np.testing.assert_allclose(curve.values, wanted.values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_predictions_of_any_estimator_encode_a_block_of_a_partition_at_a_time(method: str, encoded: list[int]) -> None:
    whole = pd.concat([partition(number) for number in range(4)], ignore_index=True)
    inner = SGDClassifier(loss="log_loss", random_state=0)
    model = BlockIncremental(inner, random_state=0).fit(whole, np.where(whole["a"] > 0, "yes", "no"))
    expected = getattr(model, method)(whole)
    encoded.clear()
    found = getattr(model, method)(lazy())
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if method == "predict":
        np.testing.assert_array_equal(found.compute(), expected)
    else:
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)
    assert sum(encoded) == 4 * ROWS
    assert max(encoded) <= 25


def test_blocks_do_not_carry_the_words_by_which_their_rows_are_encoded() -> None:
    """Tickets of 3.5 MB were not sent to tasks: Dask computed the blocks, two at once, beside those at work."""
    rows = as_dataset(lazy(), np.arange(4 * ROWS) % 2)
    assert b"TableEncoding" not in cloudpickle.dumps(rows.source.ticket(0))
    assert b"TableEncoding" in cloudpickle.dumps(rows.source.reader())


def with_weights(number: int) -> pd.DataFrame:
    """Rows of one partition with a column of weights; rows of weight 0 hold what is no number."""
    table = partition(number)
    table["w"] = np.where(np.arange(ROWS) % 7 == 3, 0.0, 1.0 + table["a"].abs())
    table.loc[table["w"] == 0.0, ["a", "c"]] = np.inf
    return table


def test_rows_with_a_column_of_weights_are_encoded_a_block_of_a_partition_at_a_time(encoded: list[int]) -> None:
    """Whole encoded partitions lay beside the blocks."""
    frame, whole = dd.from_map(with_weights, range(4)), pd.concat(map(with_weights, range(4)), ignore_index=True)
    found = as_dataset(frame[["a", "b", "c"]], frame["c"] > 0, frame["w"])
    expected = as_dataset(whole[["a", "b", "c"]], whole["c"] > 0, whole["w"])
    assert origin_of(found.source) == "graph"
    assert stand_alone(found.source)
    encoded.clear()
    (sums,) = run_pass(found.source, (moments(),)).results
    assert max(encoded) <= 25
    (wanted,) = run_pass(expected.source, (moments(),)).results
    assert sums["mass"].sum() == pytest.approx(wanted["mass"].sum())
    np.testing.assert_allclose(sums["sums"], wanted["sums"], rtol=1e-5, atol=1e-5)
    model = KernelClassifier(RandomFeatures(n_features=10), solver="newton", random_state=0, progress=False)
    encoded.clear()
    model.fit(frame, frame["c"] > 0, sample_weight="w")
    assert max(encoded) <= 25


@pytest.mark.parametrize("act", ["partial_fit", "conformalize", "estimator"])
def test_further_rows_are_encoded_a_block_of_a_partition_at_a_time(act: str, encoded: list[int]) -> None:
    """Whole encoded partitions lay beside the blocks; those of other estimators got rules of their own."""
    whole = pd.concat([partition(number) for number in range(4)], ignore_index=True)
    targets = (whole["a"] > 0).astype(int)
    options: dict[str, Any] = {"random_state": 0, "progress": False}
    model: Any = KernelClassifier(RandomFeatures(n_features=10), solver="sgd", loss="log_loss", **options)
    if act == "estimator":
        model = BlockIncremental(SGDClassifier(loss="log_loss", random_state=0), shuffle_blocks=False, **options)
    # the further rows lack one of the names
    further = whole.assign(b=whole["b"].replace("u", "w"))
    step = "conformalize" if act == "conformalize" else "partial_fit"
    here, there = (clone(model).fit(whole, targets) for _ in range(2))
    # arrays have encoded rows
    rows = da.from_array(here.encoding_.transform(further, dtype=np.dtype(np.float32)), chunks=(ROWS, -1))
    getattr(here, step)(rows, targets.to_numpy())
    encoded.clear()
    getattr(there, step)(dd.from_pandas(further, npartitions=4), targets.to_numpy())
    assert sum(encoded) >= 4 * ROWS
    assert max(encoded) <= 25
    if act == "conformalize":
        np.testing.assert_allclose(there.conformal_.scores, here.conformal_.scores, rtol=1e-6)
    else:
        # steps go through the blocks of a partition one after another, in another order than through those of an array
        decisions = [each.decision_function(whole.head(50)) for each in (here, there)]
        assert np.corrcoef(*decisions)[0, 1] > 0.999


def test_a_worker_that_reads_outside_of_a_pass_drops_what_passes_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted partitions lay beside the kept blocks of a fit: 348 MiB of a worker where 333 were promised."""

    class Cache:
        nbytes, cleared = 0, 0

        def clear(self) -> None:
            self.cleared += 1

    cache = Cache()
    monkeypatch.setattr("dkl.process.KEPT", [cache])
    monkeypatch.setattr(frames, "worker_of_task", object)
    monkeypatch.setattr(frames, "_let_arrow_return_memory", lambda: None)
    rows = as_dataset(lazy(), np.arange(4 * ROWS) % 2)
    cache.cleared = 0
    run_pass(rows.source, (moments(),))
    # the plan of a pass counts both
    assert cache.cleared == 0
    frames.partitions(lazy())[0].compute()
    assert cache.cleared == 1
    features = RandomFeatures(n_features=6)
    machine = KernelClassifier(features, solver="newton", random_state=0, progress=False).fit(
        lazy(), np.arange(4 * ROWS) % 2
    )
    cache.cleared = 0
    machine.score(lazy(), np.arange(4 * ROWS) % 2)
    # partitions are read to be counted, and to predict
    assert cache.cleared == 2 * 4


def test_lazy_answers_of_raw_arrays_encode_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(90, 3))
    rows[::7, 1] = np.nan
    model = KernelClassifier(RandomFeatures(n_features=10), random_state=0).fit(rows, np.arange(90) % 2)
    expected, encode = model.decision_function(rows), TableEncoding.transform
    encoded: list[int] = []

    def counted(self: TableEncoding, frame: Any, **options: Any) -> Any:
        encoded.append(len(frame))
        return encode(self, frame, **options)

    monkeypatch.setattr(TableEncoding, "transform", counted)
    found = model.decision_function(da.from_array(rows, chunks=(60, 2))).compute()
    np.testing.assert_array_equal(found, expected)
    assert max(encoded) <= 25


def test_errors_and_warnings_of_lazy_answers_count_the_rows_of_the_partition() -> None:
    whole = pd.concat([partition(0), partition(1)], ignore_index=True)
    model = RandomFeatures(n_features=6, random_state=0).fit(whole)
    strange = whole.copy()
    strange.loc[55, "a"] = np.inf
    with pytest.raises(ValueError, match="row 55") as raised:
        model.transform(dd.from_pandas(strange, npartitions=1)).compute()
    assert "first row" in "".join(raised.value.__notes__)
    strange = whole.copy()
    strange.loc[[30, 55, 80], "b"] = "x"
    # one warning counts the rows of all blocks
    with pytest.warns(TableDifferenceWarning, match=r"3 of 120 rows, the first is row 30"):
        model.transform(dd.from_pandas(strange, npartitions=1)).compute()
    rows = np.random.default_rng(0).normal(size=(60, 3))
    rows[7, 1], rows[:, 2] = np.nan, rows[:, 2] * 1e-6
    model.set_params(scaling="standard").fit(rows)
    rows[55, 2] = 3e38
    # blocks have 20 rows
    with pytest.raises(ValueError, match="row 15, column 3") as caught:
        model.transform(da.from_array(rows, chunks=60)).compute()
    assert "from whose row 40 the row is counted" in "".join(caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_rows"), [("numbers", 100_000), ("names", 100_000), ("numbers", 20_000)])
def test_workers_of_500_mb_that_read_parquet_keep_the_promise_of_the_plan(
    tmp_path: Path, kind: str, n_rows: int
) -> None:
    keep_promise(tmp_path, kind, n_rows)


@pytest.mark.slow
def test_a_first_fit_without_compiled_kernels_to_parquet_keeps_the_promise_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers compiled kernels beside their blocks, for which 127 MiB were needed and 88 left: it was refused."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    # the process that calls fit is a new one, too
    process = multiprocessing.get_context("spawn").Process(target=keep_promise, args=(tmp_path, "names", 100_000))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
def test_stochastic_steps_after_another_fit_stay_below_the_bytes_at_which_dask_warns(tmp_path: Path) -> None:
    """They were refused within the fit (111 MiB needed of 104), or ended at 352 MiB with Dask's warning of 334."""
    X, y = written(tmp_path, "names", 60_000)
    options: dict[str, Any] = {"random_state": 0, "progress": False}
    with small_workers() as client:
        KernelClassifier(RandomFeatures(n_features=100), solver="newton", alpha=1e-4, **options).fit(X, y)
        # minibatches of 8 MiB
        model = KernelClassifier(RandomFeatures(n_features=500), solver="sgd", epochs=2, **options).fit(X, y)
        model.partial_fit(X, y)
        peak = max(client.run(peak_bytes).values())
        assert peak <= 0.7 * 500_000_000


def written(tmp_path: Path, kind: str, n_rows: int) -> tuple[Any, Any]:
    """Rows in three Parquet files, and their targets."""
    draw = np.random.default_rng(0)
    for number in range(3):
        table = pd.DataFrame(draw.normal(size=(n_rows, 20)), columns=[f"c{place}" for place in range(20)])
        targets = (np.cos(2.0 * table["c0"]) + table["c1"] > 0.5).astype(int)
        if kind == "names":
            names = np.char.add("name ", np.arange(20).astype(str))
            table = table.assign(c2=draw.choice(names, n_rows), c3=pd.Categorical(draw.choice(names, n_rows)))
        table.assign(y=targets).to_parquet(tmp_path / f"rows-{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    return frame.drop(columns="y"), frame["y"]


@contextmanager
def small_workers() -> Iterator[Client]:
    """Two workers of 500 MB."""
    spawned = dask.config.set({"distributed.worker.multiprocessing-method": "spawn", "scheduler": None})
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with spawned, LocalCluster(memory_limit="500MB", **options) as cluster, Client(cluster) as client:
        yield client


def keep_promise(tmp_path: Path, kind: str, n_rows: int) -> None:
    """Write rows to Parquet files, fit, predict and explain them on two workers of 500 MB, and measure these."""
    X, y = written(tmp_path, kind, n_rows)
    with small_workers() as client:
        features = RandomFeatures(n_features=100)
        model = KernelClassifier(features, solver="newton", alpha=1e-4, random_state=0, progress=False)
        planned = plan(model, X, y)
        assert planned.room is not None
        promised = planned.room.held + max(each.memory.total for each in planned.passes)
        model.fit(X, y)
        assert max(client.run(peak_bytes).values()) <= promised
        dd.from_dask_array(model.predict(X), columns="answer").to_frame().to_parquet(tmp_path / "answers")
        assert max(client.run(peak_bytes).values()) <= promised
        importance(model, X, measure="replacement")
        partial_dependence(model, X, ["c0", ("c0", "c1")])
        assert max(client.run(peak_bytes).values()) <= promised
