"""Splits name disjoint rows, exactly as many as asked for, the same ones everywhere, and copy nothing."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.data.splits import apportioned
from dkl.errors import StoreError

N = 1000


def dataset(n: int = N, n_classes: int = 3, rows_a_block: int = 70, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """A dataset of several blocks in memory and its class codes."""
    rng = np.random.default_rng(seed)
    y = rng.choice(n_classes, n, p=np.arange(1, n_classes + 1) / (n_classes * (n_classes + 1) / 2))
    y[:n_classes] = np.arange(n_classes)
    X = np.arange(float(n))[:, None]
    source = ArraySource(X, y, n_classes=n_classes, rows_a_block=rows_a_block)
    schema = Schema(n_columns=1, dtype=X.dtype, task="classification", classes=np.arange(n_classes))
    return Dataset(source, schema), y


def rows_of(view: Dataset) -> np.ndarray:
    return np.concatenate([block.row_id for block in view.source.blocks_without_x()])


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(100, 400),
    n_classes=st.integers(2, 4),
    rows_a_block=st.integers(1, 90),
    train=st.sampled_from([0.5, 0.6, 0.8]),
    test=st.sampled_from([0.1, 0.2]),
    seed=st.integers(0, 5),
)
def test_stratified_fractions_are_exact_to_one_row_a_class(
    n: int, n_classes: int, rows_a_block: int, train: float, test: float, seed: int
) -> None:
    ds, y = dataset(n, n_classes, rows_a_block)
    ds = ds.split({"train": train, "test": test}, seed=seed)
    chosen = {name: rows_of(ds[name]) for name in ds.splits}
    assert len(np.unique(np.concatenate(list(chosen.values())))) == sum(map(len, chosen.values()))
    for name, share in (("train", train), ("test", test)):
        for label in range(n_classes):
            assert abs(np.count_nonzero(y[chosen[name]] == label) - share * np.count_nonzero(y == label)) < 1 + 1e-9
        assert np.array_equal(ds[name].class_weights, np.bincount(y[chosen[name]], minlength=n_classes))
        assert ds[name].n_rows == len(chosen[name])


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.integers(1, 50), min_size=1, max_size=6), pieces=st.lists(st.integers(1, 9), max_size=60))
def test_apportioned_rows_never_stray_a_row_from_their_due(parts: list[int], pieces: list[int]) -> None:
    shares = np.array(parts) / sum(parts)
    given_so_far = np.zeros(len(parts), np.int64)
    for piece in pieces:
        counts = apportioned(shares, given_so_far, piece)
        assert counts.sum() == piece
        assert counts.min() >= 0
        given_so_far += counts
        assert np.abs(given_so_far - shares * given_so_far.sum()).max() < 1


def test_fractions_that_sum_to_one_leave_no_row_out() -> None:
    ds, _ = dataset()
    for shares in ({"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, {"all": 1.0}):
        split = ds.split(shares)
        assert sum(split[name].n_rows for name in shares) == N


def test_a_split_is_random_and_a_function_of_seed_and_row_alone() -> None:
    ds, _ = dataset()
    shares = {"train": 0.5, "test": 0.5}
    first, again, other = (rows_of(ds.split(shares, seed=seed)["test"]) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    overlap = len(np.intersect1d(first, other))
    assert abs(overlap - 250) < 5 * np.sqrt(1000 * 3 / 16)
    # no run of rows, no period: neighbours are chosen independently
    inside = np.isin(np.arange(N), first)
    assert abs(np.count_nonzero(inside[1:] & inside[:-1]) - 250) < 5 * np.sqrt(250)


def test_without_stratification_classes_fall_as_they_do() -> None:
    ds, y = dataset()
    plain = ds.split({"a": 0.5, "b": 0.5}, stratify=False)
    assert plain["a"].n_rows == 500
    assert not np.array_equal(rows_of(plain["a"]), rows_of(ds.split({"a": 0.5, "b": 0.5})["a"]))
    assert np.array_equal(plain["a"].class_weights, np.bincount(y[rows_of(plain["a"])], minlength=3))


def test_store_memory_and_dask_have_the_same_splits_and_the_store_keeps_them(tmp_path: Path) -> None:
    ds, y = dataset()
    X = np.arange(float(N))[:, None]
    stored = create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=70)
    lazy = as_dataset(da.from_array(X, chunks=70), da.from_array(y, chunks=33))
    chunks = lazy.source._X.rechunk({0: 70}).chunks[0]
    lazy.source.__init__(lazy.source._X, lazy.source._y, None, np.arange(3), chunks=chunks)
    shares = {"train": 0.8, "test": 0.2}
    expected = rows_of(ds.split(shares, seed=4)["test"])
    for other in (stored, lazy):
        assert np.array_equal(rows_of(other.split(shares, seed=4)["test"]), expected)
    reopened = open_dataset(tmp_path / "rows.zarr")
    assert reopened.splits == ("train", "test")
    assert np.array_equal(rows_of(reopened["test"]), expected)
    assert (tmp_path / "rows.zarr" / "splits" / "split").is_dir()


def test_masks_row_numbers_and_a_column_of_names_make_splits() -> None:
    ds, _ = dataset()
    mask = np.arange(N) % 3 == 0
    by_mask = ds.split({"train": ~mask, "test": mask})
    assert np.array_equal(rows_of(by_mask["test"]), np.flatnonzero(mask))
    by_number = ds.split({"few": np.array([5, 2, 999]), "one": [7]})
    assert rows_of(by_number["few"]).tolist() == [2, 5, 999]
    by_name = ds.split(np.where(mask, "test", "train"))
    assert np.array_equal(rows_of(by_name["train"]), np.flatnonzero(~mask))
    assert ds.split(np.arange(N) // 250).splits == ("0", "1", "2", "3")


def test_several_sets_of_splits_and_splits_of_splits_live_side_by_side(tmp_path: Path) -> None:
    X, y = np.arange(float(N))[:, None], np.arange(N) % 2
    ds = create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=130).split({"train": 0.8, "test": 0.2})
    ds = ds.split({"odd": np.arange(N) % 2 == 1}, name="parity")
    assert set(open_dataset(tmp_path / "rows.zarr").splits) == {"train", "test", "odd"}
    inner = ds["train"].split({"fit": 0.75, "valid": 0.25})
    fit, valid = rows_of(inner["fit"]), rows_of(inner["valid"])
    assert np.array_equal(np.sort(np.concatenate([fit, valid])), rows_of(ds["train"]))
    assert len(valid) == 200
    assert np.array_equal(inner["valid"].X.compute()[:, 0], valid)
    assert np.array_equal(inner["valid"].class_weights, np.bincount(valid % 2))
    assert open_dataset(tmp_path / "rows.zarr")["train"].splits == ()


def test_rows_of_weight_zero_are_in_no_split(tmp_path: Path) -> None:
    from dkl.data.store.writer import DatasetWriter

    weight = np.arange(N) % 3.0
    schema = Schema(n_columns=1, dtype=np.dtype("f4"), has_weight=True)
    with DatasetWriter(tmp_path / "rows.zarr", schema, rows_a_block=90) as writer:
        writer.write(np.ones((N, 1)), weight=weight)
    open_dataset(tmp_path / "rows.zarr").split({"a": 0.5, "b": 0.5})
    ds = open_dataset(tmp_path / "rows.zarr")
    rows = np.concatenate([rows_of(ds["a"]), rows_of(ds["b"])])
    assert np.array_equal(np.sort(rows), np.flatnonzero(weight))


def test_a_split_that_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((50, 2))).split({"a": 0.5, "b": 0.5})
    with pytest.raises(FileExistsError, match=r"ds\['a'\] is one of them\. Pass overwrite=True"):
        ds.split({"c": 1.0})
    with pytest.raises(FileExistsError, match="overwrite=True"):
        create_dataset(tmp_path / "other.zarr", np.ones((5, 2))).split({"a": 1.0}).split({"a": 1.0})
    assert ds.split({"c": 1.0}, overwrite=True).splits == ("c",)
    assert open_dataset(tmp_path / "rows.zarr").splits == ("c",)
    with pytest.raises(ValueError, match="already in the set 'split'"):
        open_dataset(tmp_path / "rows.zarr").split({"c": 1.0}, name="again")


def test_a_half_written_split_is_as_if_it_were_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((50, 2)))

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dkl.data.store.commit.Staging._put_in_place", fail)
        with pytest.raises(KeyboardInterrupt):
            ds.split({"a": 0.5, "b": 0.5})
    assert open_dataset(tmp_path / "rows.zarr").splits == ()
    assert open_dataset(tmp_path / "rows.zarr").verify() == []
    assert ds.split({"a": 0.5, "b": 0.5}).splits == ("a", "b")


def test_splits_can_be_kept_out_of_the_store(tmp_path: Path) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((50, 2))).split({"a": 0.5, "b": 0.5}, write=False)
    assert ds["a"].n_rows == 25
    assert open_dataset(tmp_path / "rows.zarr").splits == ()
    with pytest.raises(ValueError, match="write=False"):
        ds["a"].split({"c": 1.0}, write=True)


WRONG = [
    ({"train": 0.9, "test": 0.2}, ValueError, "sum to 1.1"),
    ({"train": 1.5}, ValueError, "above 0 and at most 1"),
    ({"train": 0.0}, ValueError, "above 0 and at most 1"),
    ({"train": 0.9999, "test": 0.0001}, ValueError, "'test' would have no rows"),
    ({"train": np.zeros(N, bool)}, ValueError, "'train' would have no rows"),
    ({"train": np.ones(5, bool)}, ValueError, r"shape \(5,\); expected \(1000,\)"),
    ({"train": np.array([1000])}, ValueError, "split 'train': row 1000 is not there; rows are numbered 0 to 999"),
    ({"train": [1, 2], "test": [2, 3]}, ValueError, "row 2 is in two splits, 'train' and 'test'"),
    ({"train": np.array([0.5, 0.2])}, TypeError, "a boolean mask or row numbers"),
    (np.arange(5), ValueError, r"shape \(5,\)"),
    (np.arange(N), ValueError, "at most 254"),
    ({}, ValueError, "no split was named"),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG)
def test_splits_that_make_no_sense_are_refused(given: object, kind: type[Exception], message: str) -> None:
    ds, _ = dataset()
    with pytest.raises(kind, match=message):
        ds.split(given)


def test_an_unknown_split_names_those_that_there_are() -> None:
    ds, _ = dataset()
    with pytest.raises(KeyError, match=r"no split 'train'.*ds\.split"):
        ds["train"]
    with pytest.raises(KeyError, match="it has 'a', 'b'"):
        ds.split({"a": 0.5, "b": 0.5})["train"]


def test_a_view_shares_the_rows_and_only_its_own_are_read(tmp_path: Path) -> None:
    ds, _ = dataset()
    view = ds.split({"all": 1.0})["all"]
    block = view.source.reader().load(view.source.ticket(2))
    assert np.shares_memory(block.X, ds.source.ticket(2).X)
    first = ds.split({"first": np.arange(N) < 100})["first"]
    assert first.source.block_rows.tolist() == [70, 30] + [0] * 13


@settings(max_examples=30, deadline=None)
@given(max_rows=st.integers(1, 1200), seed=st.integers(0, 9), rows_a_block=st.integers(1, 300))
def test_thinning_keeps_exactly_so_many_rows_and_each_block_gives_its_share(
    max_rows: int, seed: int, rows_a_block: int
) -> None:
    ds, y = dataset(rows_a_block=rows_a_block)
    thin = ds.thin(max_rows, seed)
    rows = rows_of(thin)
    assert thin.n_rows == len(np.unique(rows)) == min(max_rows, N)
    assert np.array_equal(thin.X.compute()[:, 0], rows)
    assert np.array_equal(thin.class_weights, np.bincount(y[rows], minlength=3))
    assert np.all(np.abs(thin.source.block_rows - ds.source.block_rows * min(max_rows, N) / N) < 1)


def test_thinned_rows_of_a_larger_sample_contain_those_of_a_smaller_one_in_one_block() -> None:
    ds, _ = dataset(rows_a_block=N)
    assert set(rows_of(ds.thin(50, 3))) < set(rows_of(ds.thin(200, 3)))
    assert set(rows_of(ds.thin(50, 3))) != set(rows_of(ds.thin(50, 4)))
    with pytest.raises(ValueError, match="at least 1"):
        ds.thin(0)


def test_fingerprints_tell_views_apart_and_are_the_same_again() -> None:
    ds, _ = dataset()
    split = ds.split({"a": 0.5, "b": 0.5})
    views = [ds, split["a"], split["b"], split["a"].thin(9, 1), split["a"].thin(9, 2), split["a"].thin(8, 1)]
    views.append(ds.split({"a": 0.5, "b": 0.5}, seed=1)["a"])
    assert len({view.fingerprint for view in views}) == len(views)
    assert dataset()[0].split({"a": 0.5, "b": 0.5})["a"].fingerprint == views[1].fingerprint


def test_damaged_codes_are_found(tmp_path: Path) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", np.ones((50, 2))).split({"a": 0.5, "b": 0.5})
    (codes,) = [p for p in (tmp_path / "rows.zarr/splits/split/codes/c").rglob("*") if p.is_file()]
    codes.unlink()
    with pytest.raises(StoreError, match="block 0 of 'splits/split'"):
        open_dataset(tmp_path / "rows.zarr")["a"].X.compute()
    assert len(ds.verify()) == 1
