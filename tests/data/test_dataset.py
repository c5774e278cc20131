"""A Dataset says what it holds without reading it, shows itself well, and finds what is wrong when it reads it all."""

from __future__ import annotations

import json
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.store.blocking import MAX_BLOCK_ROWS
from dkl.testing.sources import check_source

N = 400


@pytest.fixture
def stored(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    y = np.array(["no", "yes"])[rng.integers(0, 2, N)]
    weight = rng.integers(0, 4, N).astype(float)
    rows = rng.standard_normal((N, 3)).astype(np.float32)
    ds = create_dataset(
        tmp_path / "rows.zarr", rows, y, sample_weight=weight, rows_a_block=60, column_names=["a", "<b>", "c"]
    )
    return ds.split({"train": 0.8, "test": 0.2})


def test_what_a_user_imports_is_there() -> None:
    assert dkl.Dataset is Dataset
    assert dkl.create_dataset is create_dataset
    assert dkl.open_dataset is open_dataset
    assert callable(dkl.from_zarr)


def test_lazy_arrays_have_a_chunk_a_block_and_fit_together(stored: Dataset) -> None:
    for ds in (stored, stored["test"], stored["train"].thin(17)):
        assert ds.X.chunks[0] == ds.y.chunks[0] == ds.sample_weight.chunks[0] == ds.row_id.chunks[0]
        assert ds.X.shape == ds.shape == (ds.n_rows, 3)
        assert ds.X.dtype == np.float32
        assert ds.y.dtype == stored.classes.dtype
        X, y, weight = (values.compute() for values in (ds.X, ds.y, ds.sample_weight))
        assert X.shape == ds.shape
        assert weight.sum() == ds.total_weight
        assert [weight[y == label].sum() for label in ds.classes] == ds.class_weights.tolist()


def test_counts_of_stored_views_are_known_without_reading(stored: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stored["train"].y.compute()
    monkeypatch.setattr("dkl.data.store.reader.OpenStore.values", lambda *arguments: pytest.fail("a block was read"))
    train = open_dataset(stored.store)["train"]
    assert train.n_rows == len(expected)
    assert train.class_weights.shape == (2,)
    assert train.thin(10).n_rows == 10
    assert train.describe().facts["rows"] == len(expected)
    assert "train" in repr(train)


def test_dask_arithmetic_works_on_the_arrays(stored: Dataset) -> None:
    X = stored.X.compute()
    assert np.allclose((stored.X - stored.X.mean(axis=0)).std(axis=0).compute(), X.std(axis=0), rtol=1e-5)
    assert np.allclose((stored.X.T @ stored.X).compute(), X.T @ X, rtol=1e-4)


def test_an_empty_view_of_a_block_leaves_no_hole_in_the_arrays() -> None:
    ds = as_dataset(np.arange(8.0)[:, None], np.arange(8) % 2)
    assert ds.split({"few": [0, 7]})["few"].X.compute().tolist() == [[0.0], [7.0]]


def test_a_dataset_without_target_has_none() -> None:
    ds = as_dataset(np.eye(3))
    assert (ds.task, ds.classes, ds.class_weights, ds.y, ds.sample_weight) == (None,) * 5
    assert ds.total_weight == 3
    assert ds.store is None
    assert ds.column_names is None
    assert not ds.passthrough.any()


def test_the_description_prints_and_goes_into_json(stored: Dataset) -> None:
    facts = json.loads(json.dumps(stored.describe().facts))
    assert facts["rows"] == stored.n_rows
    assert facts["columns"] == 3
    assert facts["task"] == "classification"
    assert set(facts["classes"]) == {"no", "yes"}
    assert facts["splits (split)"] == {"train": stored["train"].n_rows, "test": stored["test"].n_rows}
    text = str(stored.describe())
    for word in ("rows.zarr", "float32", "yes", "train", "crc32c", "<b>"):
        assert word in text
    assert max(map(len, text.splitlines())) < 200


def test_the_html_is_a_table_with_names_escaped(stored: Dataset) -> None:
    html = stored._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_the_repr_is_one_line_that_says_what_it_is(stored: Dataset) -> None:
    assert repr(stored["train"]).startswith("<Dataset [train]: ")
    for ds in (
        stored,
        stored["test"],
        as_dataset(sparse.eye_array(3, format="csr")),
        as_dataset(np.eye(3), [0.5, 1, 2]),
    ):
        assert "\n" not in repr(ds)
        assert f"{ds.n_rows:,} rows x 3 columns" in repr(ds)
    assert "sparse float64" in repr(as_dataset(sparse.eye_array(3, format="csr")))
    assert "regression" in repr(as_dataset(np.eye(3), [0.5, 1, 2]))


def test_a_thousand_column_names_are_cut_in_print() -> None:
    ds = as_dataset(np.ones((2, 1000)))
    object.__setattr__(ds.schema, "column_names", [f"column {i}" for i in range(1000)])
    assert "and 988 more" in str(ds.describe())


def test_fingerprints_change_with_every_value_the_order_and_the_cut(tmp_path: Path) -> None:
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    changed = X.copy()
    changed[3, 1] += 1e-12
    variants = {
        "rows": (X, y, {}),
        "value": (changed, y, {}),
        "order": (X[::-1], y, {}),
        "label": (X, 1 - y, {}),
        "weights": (X, y, {"sample_weight": np.array([1, 1, 1, 1, 1, 2.0])}),
        "cut": (X, y, {"rows_a_block": 4}),
        "dtype": (X.astype("f4"), y, {}),
        "names": (X, np.array(["a", "b"])[y], {}),
    }
    prints = {
        name: create_dataset(tmp_path / f"{name}.zarr", X, y, **options).fingerprint
        for name, (X, y, options) in variants.items()
    }
    assert len(set(prints.values())) == len(variants)
    assert create_dataset(tmp_path / "again.zarr", X, y).fingerprint == prints["rows"]
    memory = [
        as_dataset(X, y, options.get("sample_weight")) for name, (X, y, options) in variants.items() if name != "cut"
    ]
    assert len({ds.fingerprint for ds in memory}) == len(memory)
    assert as_dataset(X.copy(), y.copy()).fingerprint == as_dataset(X, y).fingerprint


def test_the_bytes_of_a_block_are_not_understated(stored: Dataset) -> None:
    others = [as_dataset(sparse.random_array((500, 60), density=0.1, format="csr"), np.arange(500) % 2)]
    for ds in (stored, stored["test"], *others, others[0].split({"a": 0.5})["a"], stored.thin(30)):
        source = ds.source
        reader = source.reader()
        largest = max(reader.load(source.ticket(i)).nbytes for i in np.flatnonzero(source.block_rows))
        assert largest <= source.block_nbytes <= 4 * largest + 4096


def test_views_of_arrays_and_stores_satisfy_what_passes_rely_on(stored: Dataset) -> None:
    X, y = np.random.default_rng(0).standard_normal((100, 3)), np.arange(100) % 2
    for rows in (X, sparse.csr_array(X)):
        ds = as_dataset(rows, y, np.arange(100) % 3.0).split({"a": 0.5, "b": 0.4})
        for view in (ds, ds["a"], ds["b"].thin(7)):
            check_source(view.source)
    check_source(stored.source)
    check_source(stored["train"].thin(50).source)


def test_labels_can_be_compared_on_worker_processes(stored: Dataset, client: object) -> None:
    ds = stored["train"]
    X, y = (values.compute() for values in (ds.X, ds.y))
    assert np.array_equal(client.compute(ds.X).result(), X)
    assert np.array_equal(client.compute(ds.y).result(), y)
    assert client.compute((ds.y == "yes").mean()).result() == np.mean(y == "yes")


def test_five_thousand_blocks_are_counted_and_split_in_seconds() -> None:
    n_blocks = 5_000
    y = np.arange(n_blocks) % 2
    source = ArraySource(np.ones((n_blocks, 2), np.float32), y, n_classes=2, rows_a_block=1)
    schema = Schema(n_columns=2, dtype=source.dtype, task="classification", classes=np.arange(2))
    start = time.process_time()
    split = Dataset(source, schema).split({"train": 0.8, "test": 0.2})
    assert split["train"].class_weights.tolist() == [2_000, 2_000]
    assert time.process_time() - start < 5


def test_no_block_has_more_than_65536_rows() -> None:
    ds = as_dataset(np.ones((300_000, 1), np.uint8))
    assert ds.source.block_rows.max() <= MAX_BLOCK_ROWS
    assert ds.source.block_rows.sum() == 300_000
    lazy = as_dataset(da.ones((300_000, 1), chunks=-1))
    assert lazy.source.block_rows.max() <= MAX_BLOCK_ROWS
