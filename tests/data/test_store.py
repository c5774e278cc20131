"""Stores keep what was written, bit for bit, wherever they are and whatever kind of rows they hold."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path

import anndata
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, from_zarr, open_dataset
from dkl.data.schema import Schema
from dkl.data.store.blocking import MAX_BLOCK_ROWS, block_bounds, block_rows, row_bytes
from dkl.data.store.overwriting import is_store
from dkl.data.store.writer import DatasetWriter
from dkl.errors import StoreError
from dkl.testing.sources import check_source
from tests.forks import FORKS

REAL_DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int16", "uint32", "int64"]


def dense(X: object) -> np.ndarray:
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


def same(ds: Dataset, X: object, y: object = None, weight: object = None) -> bool:
    """Whether a dataset holds these rows, to the bit, in the dtype they had."""
    found = ds.X.compute()
    checks = [found.dtype == X.dtype, np.array_equal(dense(found), dense(X)), ds.verify() == []]
    if y is not None:
        checks.append(np.array_equal(ds.y.compute(), y))
    if weight is not None:
        checks.append(np.array_equal(ds.sample_weight.compute(), weight))
    return all(checks)


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_dense_rows_come_back_in_their_own_dtype(tmp_path: Path, dtype: str) -> None:
    X = np.random.default_rng(0).integers(0, 100, (50, 3)).astype(dtype)
    y = np.random.default_rng(1).standard_normal(50)
    assert same(create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=7), X, y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_sparse_rows_come_back_in_their_own_dtype(tmp_path: Path, dtype: str) -> None:
    X = sparse.random(50, 30, 0.2, format="coo", random_state=0, data_rvs=lambda n: np.arange(1, n + 1) % 99 + 1)
    X = X.astype(dtype)
    weight = np.arange(1, 51.0)
    assert same(create_dataset(tmp_path / "rows.zarr", X, sample_weight=weight, rows_a_block=7), X, None, weight)


def test_big_endian_rows_are_stored_in_native_order(tmp_path: Path) -> None:
    X = np.arange(12.0).reshape(4, 3)
    ds = create_dataset(tmp_path / "rows.zarr", X.astype(">f4"), np.arange(4).astype(">i8") % 2)
    assert ds.source.dtype == np.dtype("=f4")
    assert same(ds, X.astype("f4"), np.arange(4) % 2)


@pytest.mark.parametrize("labels", [["b", "a", "é"], [3, 1, -7], [True, False, True], [1.0, 2.0, 5.0]])
def test_labels_of_any_kind_come_back_sorted_and_with_their_counts(tmp_path: Path, labels: list) -> None:
    y = np.array(labels * 5)
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((15, 2)), y, rows_a_block=4)
    assert np.array_equal(ds.y.compute(), y)
    assert ds.y.dtype == y.dtype
    assert np.array_equal(ds.classes, np.unique(y))
    assert np.array_equal(ds.class_weights, [np.count_nonzero(y == label) for label in np.unique(y)])


def test_several_regression_targets_come_back(tmp_path: Path) -> None:
    y = np.random.default_rng(0).standard_normal((20, 3))
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((20, 2)), y, rows_a_block=6)
    assert ds.task == "regression"
    assert same(ds, np.ones((20, 2)), y)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_rows=st.integers(1, 40),
    n_columns=st.integers(1, 5),
    rows_a_block=st.integers(1, 45),
    pieces=st.lists(st.integers(0, 15), max_size=4),
    is_sparse=st.booleans(),
    known=st.booleans(),
    seed=st.integers(0, 5),
)
def test_rows_written_in_any_pieces_come_back(
    tmp_path: Path,
    n_rows: int,
    n_columns: int,
    rows_a_block: int,
    pieces: list,
    is_sparse: bool,
    known: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (n_rows, n_columns)).astype(np.float32)
    rows = sparse.csr_array(X) if is_sparse else X
    y, ids = rng.standard_normal(n_rows), rng.permutation(n_rows)
    schema = Schema(n_columns=n_columns, dtype=X.dtype, is_sparse=is_sparse, task="regression")
    bounds = [0, *(b for b in np.cumsum(pieces) if b < n_rows), n_rows]
    path = f"memory://pieces-{os.getpid()}"
    with DatasetWriter(
        path, schema, n_rows=n_rows if known else None, rows_a_block=rows_a_block, overwrite=True
    ) as writer:
        for start, stop in pairwise(bounds):
            writer.write(rows[start:stop], y[start:stop], row_id=ids[start:stop])
    ds = open_dataset(path)
    assert same(ds, rows, y)
    assert np.array_equal(ds.row_id.compute(), ids)
    assert ds.source.n_blocks == -(-n_rows // min(rows_a_block, n_rows))
    check_source(ds.source)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_stores_with_and_without_shards_and_known_length_hold_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sparse: bool
) -> None:
    monkeypatch.setattr("dkl.data.store.block_arrays._MANY_BLOCKS", 3)
    monkeypatch.setattr("dkl.data.store.block_arrays._LEAST_ENTRIES", 8)
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (400, 6)).astype(np.float32)
    rows = sparse.csr_array(X) if is_sparse else X
    schema = Schema(n_columns=6, dtype=X.dtype, is_sparse=is_sparse)
    for n_rows in (400, None):
        with DatasetWriter(tmp_path / f"{n_rows}.zarr", schema, n_rows=n_rows, rows_a_block=30) as writer:
            for start in range(0, 400, 130):
                writer.write(rows[start : start + 130])
    sharded, plain = open_dataset(tmp_path / "400.zarr"), open_dataset(tmp_path / "None.zarr")
    assert sharded.describe().facts["sharded"]
    assert not plain.describe().facts["sharded"]
    assert sharded.fingerprint == plain.fingerprint
    assert same(sharded, rows)
    assert same(plain, rows)
    check_source(sharded.source)


def test_anndata_reads_sparse_rows(tmp_path: Path) -> None:
    X = sparse.random_array((100, 40), density=0.1, format="csr", dtype=np.float32)
    create_dataset(tmp_path / "rows.zarr", X, rows_a_block=30)
    read = anndata.io.read_elem(zarr.open_group(str(tmp_path / "rows.zarr"), mode="r")["X"])
    assert abs(read - X).max() == 0
    assert read.shape == X.shape


def test_numbers_that_compress_are_compressed_and_others_are_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = create_dataset(tmp_path / "noise.zarr", rng.standard_normal((2000, 10)).astype(np.float32))
    digits = create_dataset(tmp_path / "digits.zarr", rng.integers(0, 3, (2000, 10), dtype=np.uint8))
    assert noise.describe().facts["codecs"]["X"] == "Crc32cCodec"
    assert digits.describe().facts["codecs"]["X"] == "ZstdCodec, Crc32cCodec"
    assert digits.source.stored_nbytes < noise.source.stored_nbytes / 4


def test_blocks_follow_the_rule_of_bytes_and_rows() -> None:
    assert block_rows(4 * 20) == MAX_BLOCK_ROWS
    assert block_rows(4 * 784) * 4 * 784 <= 32 * 2**20 < (block_rows(4 * 784) + 1) * 4 * 784
    assert block_rows(10**9) == 1
    assert block_rows(8, 65_537) == 32_769
    assert np.array_equal(block_bounds(10, 4), [0, 4, 8, 10])
    assert row_bytes(sparse.csr_array(np.eye(4, dtype=np.float32))) == 16


def test_arrays_in_memory_and_a_store_of_them_have_the_same_blocks(tmp_path: Path) -> None:
    from dkl.data.coerce import as_dataset

    for X in (np.ones((70_000, 3), np.float32), sparse.eye_array(70_000, 9, format="csr")):
        stored = create_dataset(tmp_path / "rows.zarr", X, overwrite=True)
        assert np.array_equal(stored.source.block_rows, as_dataset(X).source.block_rows)


def test_a_small_store_is_small(tmp_path: Path) -> None:
    create_dataset(tmp_path / "rows.zarr", np.random.default_rng(0).standard_normal((10, 4)))
    size = sum(f.stat().st_size for f in (tmp_path / "rows.zarr").rglob("*") if f.is_file())
    assert size < 20_000


def test_the_metadata_of_a_dataset_is_kept(tmp_path: Path) -> None:
    schema = Schema(
        n_columns=3,
        dtype=np.dtype(np.float32),
        task="classification",
        classes=np.array(["no", "yes"]),
        column_names=["a", "b c", "é"],
        passthrough=np.array([False, True, False]),
        has_weight=True,
        provenance={"files": ["x.csv"]},
        shuffle_seed=7,
    )
    with DatasetWriter(tmp_path / "rows.zarr", schema) as writer:
        writer.write(np.eye(3), np.array([0, 1, 1]), np.array([1.0, 2.0, 0.0]))
    ds = open_dataset(tmp_path / "rows.zarr")
    assert ds.schema.to_json() == schema.to_json()
    assert ds.column_names == ["a", "b c", "é"]
    assert ds.passthrough.tolist() == [False, True, False]
    assert ds.class_weights.tolist() == [1.0, 2.0]
    assert (ds.n_rows, ds.total_weight) == (2, 3.0)


def test_a_relative_path_stays_what_it_was_when_the_store_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ds = create_dataset("rows.zarr", np.eye(3))
    reader = pickle.loads(pickle.dumps(ds.source.reader()))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(ds.X.compute(), np.eye(3))
    assert np.array_equal(reader.load(0).X, np.eye(3))
    assert ds.store == str(tmp_path / "rows.zarr")


@pytest.mark.parametrize("name", ["my rows.zarr", "Zeilen äöü 行.zarr", "x" * 240, "a/b/c.zarr", "file:///{}/url.zarr"])
def test_paths_with_spaces_letters_of_any_script_and_great_length_work(tmp_path: Path, name: str) -> None:
    path = name.format(str(tmp_path).lstrip("/")) if "{}" in name else str(tmp_path / name)
    ds = create_dataset(path, np.eye(3), [0, 1, 1])
    assert same(create_dataset(path, np.eye(4), overwrite=True), np.eye(4))
    assert ds.n_rows == 3
    assert not list(tmp_path.rglob(".*"))


def test_a_link_to_a_store_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    create_dataset(tmp_path / "real" / "rows.zarr", np.eye(3))
    (tmp_path / "link.zarr").symlink_to(tmp_path / "real" / "rows.zarr")
    assert open_dataset(tmp_path / "link.zarr").n_rows == 3
    create_dataset(tmp_path / "link.zarr", np.eye(5), overwrite=True)
    assert (tmp_path / "link.zarr").is_symlink()
    assert open_dataset(tmp_path / "real" / "rows.zarr").n_rows == 5


def test_a_reader_travels_light_and_opens_its_store_once_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((300, 4)), np.arange(300) % 2, rows_a_block=3)
    assert len(pickle.dumps(ds.source.reader())) < 1000
    assert len(pickle.dumps(ds.source.ticket(17))) < 100
    opened = []
    monkeypatch.setattr("dkl.data.store.reader.read_facts", opened.append)
    readers = [pickle.loads(pickle.dumps(ds.source.reader())) for _ in range(3)]
    assert all(reader.load(17).n_rows == 3 for reader in readers)
    assert not opened


def test_a_reader_of_a_store_that_was_replaced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((30, 4)))
    create_dataset(tmp_path / "rows.zarr", np.zeros((30, 4)), overwrite=True)
    with pytest.raises(StoreError):
        ds.source.reader().load(0)
    # as in a process that opens the store for the first time
    monkeypatch.setattr("dkl.data.store.reader._open", type(open_stores())())
    with pytest.raises(StoreError, match="was replaced"):
        ds.source.reader().load(0)


def open_stores() -> object:
    from dkl.data.store import reader as reading

    return reading._open


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_process_that_cannot_see_a_memory_store_says_so() -> None:
    from concurrent.futures import ProcessPoolExecutor

    reader = create_dataset("memory://unseen/rows.zarr", np.eye(3), overwrite=True).source.reader()
    with (
        ProcessPoolExecutor(1, mp_context=FORKS) as pool,
        pytest.raises(FileNotFoundError, match="only the process that wrote"),
    ):
        pool.submit(reader.load, 0).result()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dataset_on_s3_is_written_split_read_replaced_and_refused(s3: dict) -> None:
    url = "s3://bucket/some folder/rows.zarr"
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 5)), rng.integers(0, 2, 80)
    with pytest.raises(FileNotFoundError, match="no dataset"):
        open_dataset(url, **s3)
    ds = create_dataset(url, X, y, rows_a_block=60, storage_options=s3).split({"train": 0.75, "test": 0.25})
    again = open_dataset(url, **s3)
    assert same(again, X, y)
    assert again["train"].n_rows == ds["train"].X.compute().shape[0]
    assert abs(ds["train"].n_rows - 60) < 2
    assert pickle.loads(pickle.dumps(ds.source.reader())).load(1).n_rows == 20
    with pytest.raises(FileExistsError, match="overwrite=True"):
        create_dataset(url, X, storage_options=s3)
    X = sparse.random_array((50, 20), density=0.3, format="csr", rng=rng)
    create_dataset(url, X, overwrite=True, storage_options=s3)
    again = open_dataset(url, **s3)
    assert same(again, X)
    assert (again.splits, again.version) == ((), 0)
    writer = DatasetWriter(url, Schema(n_columns=2, dtype=np.dtype("f4")), overwrite=True, storage_options=s3)
    writer.__enter__()
    with pytest.raises(StoreError, match="half-written"):
        open_dataset(url, **s3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dataset_on_s3_has_versions(s3: dict) -> None:
    url = "s3://bucket/versions/rows.zarr"
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 5)), rng.integers(0, 2, 200)
    ds = create_dataset(url, X, y, rows_a_block=60, storage_options=s3).split({"train": 0.75, "test": 0.25})
    grown = ds.append(X[:30], y[:30], split="test").drop(blocks=[1])
    left = np.r_[0:60, 120:200, 0:30]
    assert same(open_dataset(url, **s3), X[left], y[left])
    assert grown["train"].n_rows + grown["test"].n_rows == 170
    assert same(open_dataset(url, 0, **s3), X, y)


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    create_dataset(tmp_path / "rows.zarr", np.eye(3))
    group = zarr.open_group(str(tmp_path / "rows.zarr"), mode="r+")
    group.attrs["dkl"] = {**group.attrs["dkl"], "format": 99}
    with pytest.raises(StoreError, match=r"newer format 99.*pip install -U dkl"):
        open_dataset(tmp_path / "rows.zarr")


def test_what_is_no_store_is_refused_and_said_not_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no dataset at .*none\.zarr"):
        open_dataset(tmp_path / "none.zarr")
    zarr.create_group(str(tmp_path / "plain.zarr"))
    with pytest.raises(StoreError, match="from_zarr"):
        open_dataset(tmp_path / "plain.zarr")
    assert not is_store(tmp_path / "plain.zarr")
    assert not is_store(tmp_path / "none.zarr")
    with pytest.raises(TypeError, match="path or a URL"):
        open_dataset(42)
    with pytest.raises(TypeError, match="storage options"):
        open_dataset(tmp_path / "none.zarr", anon=True)


WRONG_WRITES = [
    ({"X": np.ones((2, 3))}, "3 columns; the store has 2"),
    ({"y": None}, "y is missing"),
    ({"weight": np.ones(2)}, "weight is given"),
    ({"y": np.array([0, 2])}, r"y\[6\] is 2; expected class codes, integers from 0 to 1"),
    ({"y": np.array([0.0, 1.0])}, "dtype float64; expected class codes"),
    ({"y": np.array([0, 1, 1])}, r"y has shape \(3,\)"),
    ({"X": np.array([[1, 2], [np.nan, 1]])}, r"X\[6, 0\] is NaN"),
    ({"X": np.array([[1, np.inf], [1, 1]])}, r"X\[5, 1\] is inf"),
    ({"row_id": np.arange(3)}, r"row_id has shape \(3,\)"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_WRITES)
def test_rows_that_do_not_fit_are_refused_by_number_and_leave_nothing(
    tmp_path: Path, wrong: dict, message: str
) -> None:
    schema = Schema(n_columns=2, dtype=np.dtype("f4"), task="classification", classes=np.array([1, 2]))
    good = {"X": np.ones((2, 2)), "y": np.array([0, 1])}
    writer = DatasetWriter(tmp_path / "rows.zarr", schema)
    with pytest.raises(ValueError, match=message):
        write_then(writer, good | wrong)
    assert os.listdir(tmp_path) == []


def write_then(writer: DatasetWriter, rows: dict) -> None:
    with writer:
        writer.write(np.ones((5, 2)), np.zeros(5, int))
        writer.write(**rows)


@pytest.mark.parametrize(("n_rows", "rows", "message"), [(None, 0, "no row was given"), (9, 5, "9 were announced")])
def test_no_rows_or_another_number_than_announced_is_refused(
    tmp_path: Path, n_rows: int | None, rows: int, message: str
) -> None:
    schema = Schema(n_columns=2, dtype=np.dtype("f4"))
    with pytest.raises(ValueError, match=message), DatasetWriter(tmp_path / "r.zarr", schema, n_rows=n_rows) as writer:
        writer.write(np.ones((rows, 2)))
    assert os.listdir(tmp_path) == []


def test_shuffled_rows_are_the_same_rows_from_memory_from_dask_and_from_a_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((500, 4)), np.arange(500) // 250, rng.integers(1, 3, 500).astype(float)
    plain = create_dataset(tmp_path / "plain.zarr", X, y, sample_weight=weight)
    lazy_X, lazy_y, lazy_weight = (da.from_array(values, chunks=77) for values in (X, y, weight))
    options = {"shuffle": True, "seed": 3, "rows_a_block": 90}
    stores = [
        create_dataset(tmp_path / "memory.zarr", X, y, sample_weight=weight, **options),
        create_dataset(tmp_path / "dask.zarr", lazy_X, lazy_y, sample_weight=lazy_weight, **options),
        create_dataset(tmp_path / "store.zarr", plain, **options),
    ]
    assert len({ds.fingerprint for ds in stores}) == 1
    order = stores[0].row_id.compute()
    assert np.array_equal(np.sort(order), np.arange(500))
    assert abs(np.corrcoef(order, np.arange(500))[0, 1]) < 0.2
    assert same(stores[0], X[order], y[order], weight[order])
    assert stores[0].schema.shuffle_seed == 3


def test_a_store_sorted_by_label_warns_and_names_the_remedy_and_a_mixed_one_does_not(tmp_path: Path) -> None:
    X, y = np.ones((1000, 2)), np.arange(1000) // 500
    with pytest.warns(UserWarning, match=r"not mixed.*shuffle=True"):
        ds = create_dataset(tmp_path / "sorted.zarr", X, y, rows_a_block=100)
    with pytest.warns(UserWarning, match="not mixed"):
        open_dataset(tmp_path / "sorted.zarr")
    create_dataset(tmp_path / "mixed.zarr", ds, shuffle=True, rows_a_block=100)
    few = np.random.default_rng(0).integers(0, 2, 60)
    create_dataset(tmp_path / "few.zarr", np.ones((60, 2)), few, rows_a_block=4)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_arrays_that_exist_are_used_in_place(tmp_path: Path, is_sparse: bool) -> None:
    X = np.random.default_rng(0).integers(0, 2, (100, 6)).astype(np.float32)
    y = np.array(["a", "b"])[np.arange(100) % 2]
    group = zarr.open_group(str(tmp_path / "theirs.zarr"), mode="w")
    if is_sparse:
        anndata.io.write_elem(group, "X", sparse.csr_matrix(X), dataset_kwargs={"shards": None})
    else:
        group.create_array("X", data=X, chunks=(30, 4))
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    ds = from_zarr(tmp_path / "theirs.zarr" / "X", y, sample_weight=np.ones(100))
    assert same(ds, X, y)
    assert "not checksummed" in repr(ds)
    assert "none" in ds.describe().facts["checksums"]
    check_source(ds.source)
    ds = ds.split({"train": 0.8, "test": 0.2})
    assert ds["train"].n_rows == 80
    check_source(ds["train"].source)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before
    assert same(create_dataset(tmp_path / "ours.zarr", from_zarr(group["X"], y)), X, y)


def test_values_in_place_are_checked_when_they_are_read(tmp_path: Path) -> None:
    X = np.ones((100, 6))
    X[57, 2] = np.nan
    array = zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(30, 6))
    ds = from_zarr(array)
    with pytest.raises(ValueError, match=r"X\[57, 2\] is NaN"):
        ds.X.compute()
    assert ["X[57, 2] is NaN" in fault for fault in ds.verify()] == [True]
    with pytest.raises(FileNotFoundError, match="no zarr array"):
        from_zarr(tmp_path / "none.zarr")


def test_100_rows_of_every_split_source_satisfy_what_passes_rely_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((100, 3)), rng.integers(0, 3, 100), rng.integers(0, 3, 100).astype(float)
    schema = Schema(n_columns=3, dtype=X.dtype, task="classification", classes=np.arange(3), has_weight=True)
    with DatasetWriter(tmp_path / "rows.zarr", schema, rows_a_block=17) as writer:
        writer.write(X, y, weight)
    ds = open_dataset(tmp_path / "rows.zarr").split({"train": 0.6, "test": 0.4})
    kept = weight > 0
    assert same(ds, X[kept], y[kept], weight[kept])
    for view in (ds, ds["train"], ds["test"], ds["train"].thin(20, 1), open_dataset(tmp_path / "rows.zarr")["test"]):
        check_source(view.source)
        ids = view.row_id.compute()
        assert np.array_equal(view.X.compute(), X[ids])
        assert np.allclose(view.class_weights, np.bincount(y[ids], weight[ids], 3))
        assert view.total_weight == pytest.approx(weight[ids].sum())
