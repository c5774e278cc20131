"""Appended and dropped rows make a new version, whole or not at all, and whoever reads an older one is undisturbed."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, from_zarr, open_dataset
from dkl.data.store.writer import DatasetWriter
from dkl.errors import CorruptChunkError, StoreError
from dkl.methods.random_features import RandomFeatures
from dkl.testing import check_source
from tests.forks import started

RNG = np.random.default_rng(0)
X = RNG.integers(0, 5, (47, 4)).astype(np.float32)
Y = RNG.choice(["no", "yes"], 47)
WEIGHT = RNG.integers(1, 4, 47).astype(float)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "rows.zarr")
        return
    yield f"memory:/{tmp_path}/rows.zarr"
    fsspec.filesystem("memory").store.clear()


def make(store: str, *, is_sparse: bool = False, weighted: bool = False) -> Dataset:
    rows = sparse.csr_array(X) if is_sparse else X
    return create_dataset(store, rows, Y, sample_weight=WEIGHT if weighted else None, rows_a_block=10)


def contents(ds: Dataset) -> list[np.ndarray]:
    rows = ds.X.compute()
    weight = np.ones(len(ds)) if ds.sample_weight is None else ds.sample_weight.compute()
    return [rows.toarray() if sparse.issparse(rows) else rows, ds.y.compute(), weight]


def check_equal(ds: Dataset, *truth: np.ndarray) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(contents(ds), truth, strict=True))
    assert ds.verify() == []
    check_source(ds.source)
    assert ds.class_weights.tolist() == [truth[2][truth[1] == label].sum() for label in ("no", "yes")]


@pytest.mark.parametrize(
    ("store", "is_sparse", "weighted"), [("local", True, True), ("memory", False, False)], indirect=["store"]
)
def test_versions_hold_what_was_appended_less_what_was_dropped(store: str, is_sparse: bool, weighted: bool) -> None:
    weight = WEIGHT if weighted else np.ones(47)
    more = sparse.csr_array(X[:13]) if is_sparse else X[:13]
    first = make(store, is_sparse=is_sparse, weighted=weighted)
    second = first.append(more, Y[:13], sample_weight=weight[:13] if weighted else None)
    rows, y, w = (np.concatenate([values, values[:13]]) for values in (X, Y, weight))
    check_equal(second, rows, y, w)
    gone = np.zeros(60, bool)
    gone[[0, 3, 33, 47, 59]] = gone[10:20] = True
    third = second.drop(gone)
    assert third.source.block_rows.tolist() == [8, 0, 10, 9, 7, 9, 2]
    check_equal(third, rows[~gone], y[~gone], w[~gone])
    fourth = third.drop([0]).drop(blocks=[2])
    left = np.flatnonzero(~gone)[1:]
    left = left[(left < 20) | (left >= 30)]
    check_equal(fourth, rows[left], y[left], w[left])
    assert [open_dataset(store, number).n_rows for number in range(5)] == [47, 60, 45, 44, 34]
    assert open_dataset(store).fingerprint == fourth.fingerprint != third.fingerprint
    assert len(np.unique(second.row_id.compute())) == 60


def test_readers_of_an_older_version_are_undisturbed(store: str) -> None:
    first = make(store)
    held = [pickle.dumps((first.source.reader(), first.source.ticket(i))) for i in range(first.source.n_blocks)]
    second = first.append(X, Y)
    third = second.drop(blocks=[0, 7])
    for index, (reader, ticket) in enumerate(map(pickle.loads, held)):
        assert np.array_equal(reader.load(ticket).X, X[10 * index : 10 * index + 10])
    assert np.array_equal(second.X.compute(), np.concatenate([X, X]))
    assert (first.version, second.version, third.version, open_dataset(store).version) == (0, 1, 2, 3 - 1)


def test_splits_go_along_and_new_rows_join_the_one_that_is_named(store: str) -> None:
    first = make(store).split({"train": 0.6, "test": 0.4}).split({"few": [1, 2, 3], "rest": [30, 31]}, name="other")
    second = first.append(X[:10], Y[:10], split="train")
    train, test = (first[name].row_id.compute() for name in ("train", "test"))
    assert np.array_equal(second["train"].row_id.compute()[:-10], train)
    assert np.array_equal(second["test"].row_id.compute(), test)
    assert np.array_equal(second["rest"].row_id.compute(), [30, 31])
    gone = np.isin(second.row_id.compute(), [*train[:3], test[1], 31])
    third = open_dataset(store).drop(gone).append(X[:5], Y[:5], split=["test", "few"])
    assert np.array_equal(
        third["train"].row_id.compute(), np.setdiff1d(second["train"].row_id.compute(), [*train[:3], 31])
    )
    assert len(third["few"]) == len(third["few"].y.compute()) == 3 - np.isin([1, 2, 3], [*train[:3], test[1]]).sum() + 5
    for name in third.splits:
        counted = [np.sum(third[name].y.compute() == label) for label in ("no", "yes")]
        assert third[name].class_weights.tolist() == counted
        check_source(third[name].source)


def test_splits_made_of_an_old_version_afterwards_are_left_out_with_a_warning(store: str) -> None:
    first = make(store)
    first.append(X, Y)
    first.split({"train": 0.5, "test": 0.5})
    with pytest.warns(UserWarning, match="'split'.*were made for version 0 after a later version"):
        assert open_dataset(store).splits == ()


def test_frames_are_encoded_as_the_rows_of_the_store(tmp_path: Path) -> None:
    frame = pd.DataFrame({"colour": ["red", "blue", "red", "green"], "size": [1.0, 2.0, 3.0, 4.0]})
    ds = create_dataset(tmp_path / "rows.zarr", frame, [0, 1, 0, 1])
    more = ds.append(frame.iloc[[1]], [1])
    assert np.array_equal(more.X.compute()[4], ds.X.compute()[1])
    with pytest.raises(ValueError, match="columns"):
        ds.append(frame[["size"]], [1, 1, 0, 0])


def test_a_pass_over_a_version_has_the_bits_of_one_over_a_store_of_the_same_blocks(tmp_path: Path) -> None:
    grown = make(str(tmp_path / "rows.zarr")).drop(blocks=[4]).append(X[:20], Y[:20]).drop(blocks=[6])
    whole = create_dataset(
        tmp_path / "whole.zarr", np.concatenate([X[:40], X[:10]]), np.r_[Y[:40], Y[:10]], rows_a_block=10
    )
    fits = [RandomFeatures(n_features=6, scaling="standard", random_state=0).fit(ds).scaler_ for ds in (grown, whole)]
    assert np.array_equal(fits[0].center, fits[1].center)
    assert np.array_equal(create_dataset(tmp_path / "copy.zarr", grown).X.compute(), whole.X.compute())


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda ds: ds.append(X[:, :3], Y), ValueError, "X has 3 columns; .* has 4"),
        (lambda ds: ds.append(X, ["maybe", *Y[1:]]), ValueError, r"y\[0\] is 'maybe', which is not one of the 2 known"),
        (lambda ds: ds.append(X), ValueError, "target for classification, and the new rows have none; pass y"),
        (lambda ds: ds.append(sparse.csr_array(X), Y), ValueError, "X is sparse .* pass dense rows"),
        (lambda ds: ds.append(X, Y, sample_weight=WEIGHT), ValueError, "has no weights; leave it out"),
        (lambda ds: ds.append(np.full((1, 4), np.nan), ["no"]), ValueError, r"X\[0, 0\] is NaN"),
        (lambda ds: ds.append(X, Y, split="train"), ValueError, "none of the splits"),
        (lambda ds: ds.split({"a": 0.5}, write=False).append(X, Y), ValueError, "say which one the rows join"),
        (lambda ds: ds.thin(9).append(X, Y), ValueError, "is a view"),
        (lambda ds: from_zarr(np.asarray(X)), TypeError, "zarr"),
        (lambda ds: ds.drop(), ValueError, "one of the two"),
        (lambda ds: ds.drop([47]), ValueError, "row 47 is not there; rows are numbered 0 to 46"),
        (lambda ds: ds.drop(np.zeros(46, bool)), ValueError, r"shape \(46,\); expected \(47,\)"),
        (lambda ds: ds.drop(np.zeros(47, bool)), ValueError, "nothing to drop"),
        (lambda ds: ds.drop(np.ones(47, bool)), ValueError, "all 47 rows"),
        (lambda ds: ds.drop(blocks=[5]), ValueError, r"block 5 .* is not in 0 .. 4"),
        (lambda ds: ds.drop(blocks=[0]).drop(blocks=[0]), ValueError, "block 0 .* has no rows left"),
        (lambda ds: ds.drop([0.5]), TypeError, "boolean mask or row numbers"),
        (lambda ds: [ds.drop([0]), ds.append(X, Y)], FileExistsError, "newer version than 0"),
        (lambda ds: open_dataset(ds.store, 3), StoreError, "no version 3; its newest is 0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_nothing_is_written(tmp_path, change, kind, message) -> None:
    ds = make(str(tmp_path / "rows.zarr"))
    with pytest.raises(kind, match=message):
        change(ds)
    assert open_dataset(ds.store).version in ((1,) if kind is FileExistsError or "no rows left" in message else (0,))


@pytest.mark.parametrize("what", ["append", "drop"])
def test_damage_to_a_version_is_found(tmp_path: Path, what: str) -> None:
    ds = make(str(tmp_path / "rows.zarr"))
    changed = ds.append(X, Y) if what == "append" else ds.drop([5, 17])
    files = sorted(f for f in (tmp_path / "rows.zarr/versions/000001").rglob("*") if f.is_file())
    for file in files[:: 1 if what == "drop" else 4]:
        before = file.read_bytes()
        file.write_bytes(before[:-2])
        try:
            found = open_dataset(ds.store).verify()
        except StoreError:
            found = ["refused"]
        # an empty group's metadata says nothing; whatever holds values does
        assert found or file.parent.name == "rows", file
        file.write_bytes(before)
    assert changed.verify() == []


def test_a_version_of_another_store_is_refused(tmp_path: Path) -> None:
    ds = make(str(tmp_path / "rows.zarr")).append(X, Y)
    make(str(tmp_path / "other.zarr"))
    os.rename(tmp_path / "rows.zarr/versions", tmp_path / "other.zarr/versions")
    with pytest.raises(CorruptChunkError, match="does not follow version 0"):
        open_dataset(tmp_path / "other.zarr")
    assert ds.version == 1


def test_a_version_that_its_writer_left_behind_a_url_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    ds = make(f"memory:/{tmp_path}/rows.zarr")
    DatasetWriter(f"{ds.store}/versions/000001", ds.schema).__enter__()
    assert open_dataset(str(ds.store)).version == 0
    assert ds.append(X, Y).version == open_dataset(str(ds.store)).version == 1


def append_and_drop(store: str, ready: Any) -> None:
    ds = open_dataset(store)
    rows = np.tile(ds.X.compute(), (400, 1))
    ready.send("ready")
    while True:
        ds = ds.append(rows, np.tile(ds.y.compute()[:47], 400)).drop(blocks=[ds.source.n_blocks])


def kill_and_look(store: str, seconds: float) -> None:
    """Kill a process that appends and drops without end; what is open then is one of its versions, whole."""
    process = started(append_and_drop, store)
    time.sleep(seconds)
    process.kill()
    process.join()
    ds = open_dataset(store)
    appended, dropped = (ds.version + 1) // 2, ds.version // 2
    assert ds.n_rows == 47 + appended * 18_800 - 10 * dropped
    assert ds.verify() == []


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_writer_leaves_a_whole_version_and_the_next_one_goes_on(tmp_path: Path) -> None:
    ds = make(str(tmp_path / "rows.zarr"))
    kill_and_look(ds.store, 0.6)
    newest = open_dataset(ds.store)
    assert newest.append(X, Y).version == newest.version + 1
    assert not [f for f in (tmp_path / "rows.zarr/versions").iterdir() if f.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("forked_workers")
def test_writers_killed_at_twenty_moments_leave_whole_versions(tmp_path: Path) -> None:
    for moment in range(20):
        ds = make(str(tmp_path / f"rows{moment}.zarr"))
        kill_and_look(ds.store, 0.05 * moment)


@pytest.mark.parametrize("change", ["append", "drop"])
def test_a_store_whose_whole_folder_of_versions_is_gone_is_refused(tmp_path: Path, change: str) -> None:
    store = tmp_path / "rows.zarr"
    ds = make(str(store))
    ds = ds.append(X, Y) if change == "append" else ds.drop([0])
    shutil.rmtree(store / "versions")
    with pytest.raises(CorruptChunkError, match=r"version 1 of .* is lost"):
        open_dataset(store)
    assert open_dataset(store, version=0).version == 0
