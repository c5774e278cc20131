"""Splits by group and by time: no group in two of them, one time after the other, and stores keep the columns."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.schema import RowColumn
from dkl.data.together.codes import group_codes, time_codes
from dkl.data.together.rows import held_rows
from dkl.data.together.rules import counted_times, group_rule, time_rule
from dkl.linear.judge import Folds
from dkl.linear.minibatches import HeldOut
from dkl.protocols import held_together
from dkl.protocols.block import Block
from dkl.protocols.held_together import places

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
GROUPS = np.array([f"p{i}" for i in RNG.integers(0, 12, N)])
DAYS = np.datetime64("2026-01-01") + RNG.integers(0, 40, N).astype("timedelta64[D]")
GROUP = RowColumn("group", "group", "group")
TIME = RowColumn("time", "number", "time")


def rows_of(view: Any) -> np.ndarray:
    """The numbers of the rows of a view, as they were given."""
    return np.asarray(view.row_id)


def held_with(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and what the rows are held out with, block after block, by the reader that passes use."""
    source = held_rows(dataset).source
    reader = source.reader()
    tickets = dask.compute(*(source.ticket(index) for index in np.flatnonzero(source.block_rows)))
    blocks = [reader.load(ticket) for ticket in tickets]
    return np.concatenate([b.row_id for b in blocks]), np.concatenate([b.held_with for b in blocks])


def stored(folder: Path, **options: Any) -> Any:
    return dkl.create_dataset(str(folder / "rows.zarr"), X, Y, **{"rows_a_block": 64, **options})


@pytest.mark.parametrize("n_groups", [5, 12])
def test_no_group_is_in_two_splits(n_groups: int) -> None:
    groups = np.arange(N) ** 2 % n_groups
    ds = as_dataset(X, Y).split({"train": 0.6, "val": 0.2, "test": 0.2}, by_group=groups)
    found = [set(groups[rows_of(ds[name])]) for name in ds.splits]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found)) == len(set(groups))
    assert sum(ds[name].n_rows for name in ds.splits) == N


def test_splits_of_thousands_of_groups_come_close_to_their_shares() -> None:
    groups = np.repeat(np.arange(6_000), 2)
    ds = as_dataset(np.zeros((12_000, 1))).split(by_group=groups)
    train, test = (set(groups[rows_of(ds[name])]) for name in ("train", "test"))
    assert not train & test
    assert ds["test"].n_rows == pytest.approx(2_400, rel=0.1)


def test_splits_by_time_follow_each_other_and_ties_stay_together() -> None:
    ds = as_dataset(X, Y).split({"train": 0.5, "val": 0.25, "test": 0.25}, by_time=DAYS)
    parts = [DAYS[rows_of(ds[name])] for name in ds.splits]
    assert all(older.max() < newer.min() for older, newer in itertools.pairwise(parts))
    np.testing.assert_allclose([len(part) / N for part in parts], [0.5, 0.25, 0.25], atol=0.03)


def test_a_share_of_the_rows_by_time_leaves_the_newest_out() -> None:
    ds = as_dataset(X, Y).split({"train": 0.5}, by_time=DAYS)
    assert DAYS[rows_of(ds["train"])].max() <= np.median(DAYS.astype(int)).astype("datetime64[D]")


def test_a_store_keeps_its_groups_and_splits_by_them(tmp_path: Path) -> None:
    stored(tmp_path, groups=GROUPS, times=DAYS, shuffle=True)
    ds = dkl.open_dataset(tmp_path / "rows.zarr")
    assert ds.schema.held_by == "group"
    assert ds.verify() == []
    ds = ds.split({"train": 0.7, "test": 0.3})
    train, test = (set(GROUPS[rows_of(ds[name])]) for name in ("train", "test"))
    assert not train & test
    assert train | test == set(GROUPS)
    again = dkl.open_dataset(tmp_path / "rows.zarr")
    np.testing.assert_array_equal(rows_of(again["test"]), rows_of(ds["test"]))
    ids, held = held_with(again["train"])
    assert len({(GROUPS[i], h) for i, h in zip(ids, held, strict=True)}) == len(train) == len(set(held))


def test_a_store_with_both_can_be_split_by_time(tmp_path: Path) -> None:
    ds = stored(tmp_path, groups=GROUPS, times=DAYS).split(by_time="time")
    assert DAYS[rows_of(ds["train"])].max() < DAYS[rows_of(ds["test"])].min()
    assert ds["train"].schema.held_by == "time"
    assert ds.split({"a": 0.5}, by_time=False, name="other", write=False)["a"].schema.held_by is None


def test_memory_stores_and_dask_hold_rows_out_alike(tmp_path: Path) -> None:
    arrays = as_dataset(X, Y).split(by_group=GROUPS)["train"]
    lazy = as_dataset(da.from_array(X, chunks=(100, 3)), Y).split(by_group=GROUPS)["train"]
    ds = stored(tmp_path, groups=GROUPS).split()["train"]
    expected = dict(zip(*held_with(arrays), strict=True))
    assert expected == dict(zip(*held_with(lazy), strict=True)) == dict(zip(*held_with(ds), strict=True))


def test_rows_of_weight_zero_take_their_groups_with_them() -> None:
    weight = (np.arange(N) % 3 > 0).astype(float)
    ids, held = held_with(dkl.create_dataset("memory://weighted.zarr", X, Y, sample_weight=weight, groups=GROUPS))
    assert len(ids) == int(weight.sum())
    assert len({(GROUPS[i], h) for i, h in zip(ids, held, strict=True)}) == len(set(GROUPS)) == len(set(held))


def test_append_and_drop_hold_rows_out_as_a_fresh_store_does(tmp_path: Path) -> None:
    first = stored(tmp_path, groups=GROUPS)
    grown = first.append(X[:50] + 1.0, Y[:50], groups=np.arange(50) % 4).drop(np.arange(30))
    together = np.concatenate([X, X[:50] + 1.0])[30:]
    groups = np.concatenate([GROUPS, (np.arange(50) % 4).astype(str)])[30:]
    fresh = dkl.create_dataset(str(tmp_path / "fresh.zarr"), together, np.concatenate([Y, Y[:50]])[30:], groups=groups)
    np.testing.assert_array_equal(held_with(grown)[1], held_with(fresh)[1])
    assert grown.verify() == []


def test_a_frame_that_is_appended_brings_its_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "patient": GROUPS})
    ds = dkl.create_dataset(str(tmp_path / "rows.zarr"), frame, Y, groups="patient")
    assert ds.column_names == ["a", "b"]
    grown = ds.append(frame[:20], Y[:20])
    assert grown.n_rows == N + 20
    ids, held = held_with(grown)
    assert len(set(held)) == len(set(GROUPS))
    assert len(ids) == N + 20


def test_a_store_without_groups_is_what_it_was_and_one_with_them_differs_in_further_facts_alone(tmp_path: Path) -> None:
    facts = []
    for options in ({}, {"groups": GROUPS}):
        dkl.create_dataset(str(tmp_path / "rows.zarr"), X, Y, overwrite=True, **options)
        facts.append(json.loads((tmp_path / "rows.zarr" / "zarr.json").read_text())["attributes"]["dkl"])
    plain, grouped = facts
    assert grouped["format"] == plain["format"] == 1
    assert set(grouped) - set(plain) == {"row_columns", "held_by", "row_column_nodes"}
    # releases that know of no groups compare these, and read the rows
    assert set(grouped["arrays"]) - set(plain["arrays"]) == {"group"}
    assert {name: grouped["schema"][name] for name in ("task", "n_columns")} == {
        "task": "classification",
        "n_columns": 3,
    }
    assert grouped["schema"].keys() == plain["schema"].keys()


def test_a_damaged_group_column_is_noticed(tmp_path: Path) -> None:
    ds = stored(tmp_path, groups=GROUPS)
    chunk = next(path for path in (tmp_path / "rows.zarr" / "group").rglob("*") if path.is_file() and "c" in path.parts)
    chunk.write_bytes(chunk.read_bytes()[:-3] + b"abc")
    assert any("group" in fault for fault in dkl.open_dataset(tmp_path / "rows.zarr").verify())
    assert ds.n_rows == N


def test_one_value_is_one_group_whatever_it_comes_as() -> None:
    codes = [
        group_codes(values, 3, "groups")
        for values in ([3, 4, 3], [3.0, 4.0, 3.0], ["3", "4", "3"], pd.Series(["3", "4", "3"], dtype="category"))
    ]
    assert all(np.array_equal(codes[0], other) for other in codes)
    assert codes[0][0] == codes[0][2] != codes[0][1]
    assert (codes[0] >= 0).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=20))
def test_times_keep_their_order(values: list[float]) -> None:
    codes, kind = time_codes(values, len(values), "times")
    assert kind == "number"
    np.testing.assert_array_equal(np.argsort(codes, kind="stable"), np.argsort(values, kind="stable"))


def test_dates_are_one_time_in_every_form() -> None:
    texts = ["2026-03-01", "2026-02-01T12:00"]
    forms = [texts, pd.to_datetime(texts, format="ISO8601"), np.array(texts, "datetime64[s]")]
    forms.append(pd.to_datetime(texts, format="ISO8601", utc=True).tz_convert("Asia/Tokyo"))
    found = [time_codes(form, 2, "times") for form in forms]
    assert all(kind == "datetime" and np.array_equal(codes, found[0][0]) for codes, kind in found)


def test_cut_points_in_time_are_those_of_the_definition() -> None:
    times = RNG.integers(0, 500, 4_000)
    rule = time_rule(np.array_split(times, 7), TIME)
    rows = Block(0, np.empty((4_000, 0)), None, None, np.arange(4_000), {"time": times})
    block, _ = rule.applied(rows, np.arange(4_000), ())
    newer = np.array([(times > time).sum() for time in times])
    np.testing.assert_array_equal(places(block.held_with, 0), np.floor(1024 * newer / 4_000) / 1024)


def test_millions_of_times_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.data.together.rules._MOST_TIMES", 64)
    times = RNG.permutation(5_000)
    found, counts = counted_times(np.array_split(times, 20))
    assert len(found) <= 64 + 5_000 / 20
    assert counts.sum() == 5_000
    assert (np.diff(found) > 0).all()
    assert set(found) <= set(times)
    assert found[0] == 0


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("n_groups", [5, 37])
def test_folds_take_shares_of_the_groups(count: int, n_groups: int) -> None:
    codes = group_codes(np.arange(n_groups), n_groups, "groups")
    rule = group_rule([codes], GROUP)
    rows = Block(0, np.empty((n_groups, 0)), None, None, codes, {"group": codes})
    block, _ = rule.applied(rows, np.arange(n_groups), ())
    sizes = np.bincount(Folds(HeldOut(1.0 / count, 3), count)(block.held_with), minlength=count)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == n_groups


def test_thousands_of_groups_are_held_out_by_their_hash() -> None:
    codes = group_codes(np.arange(held_together.MOST_ORDERED_GROUPS + 1), held_together.MOST_ORDERED_GROUPS + 1, "g")
    rule = group_rule([codes], GROUP)
    assert rule.groups is None
    rows = Block(0, np.empty((len(codes), 0)), None, None, codes, {"group": codes})
    block, _ = rule.applied(rows, np.arange(len(codes)), ())
    np.testing.assert_array_equal(block.held_with, codes)


def test_rows_by_themselves_are_held_out_as_ever() -> None:
    ids = np.arange(1_000)
    np.testing.assert_array_equal(Folds(HeldOut(0.25, 5), 4)(ids), (places(ids, 5) * 4).astype(int))


def test_ingest_keeps_groups_and_times_of_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "year": 2000 + np.arange(N) % 9, "day": DAYS, "patient": GROUPS, "y": Y})
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = dkl.ingest(tmp_path / "rows.parquet", tmp_path / "a.zarr", target="y", by_group="patient", time="day")
        other = dkl.ingest(tmp_path / "rows.csv", tmp_path / "b.zarr", target="y", by_group="patient", time="day")
    assert ds.column_names == ["a", "year", "day.days", "day.weekday.cos", "day.weekday.sin"]
    assert ds.splits == ("train", "test")
    train, test = (set(GROUPS[rows_of(ds[name])]) for name in ds.splits)
    assert not train & test
    np.testing.assert_array_equal(held_with(ds)[1], held_with(other)[1])
    by_year = dkl.ingest(
        tmp_path / "rows.csv", tmp_path / "c.zarr", target="y", by_time="year", drop=["day", "patient"]
    )
    assert by_year.column_names == ["a", "year"]
    years = 2000 + np.arange(N) % 9
    assert years[rows_of(by_year["train"])].max() < years[rows_of(by_year["test"])].min()


def test_a_feature_that_is_a_time_can_split() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "year": 2000 + np.arange(N) % 9})
    ds = as_dataset(frame, Y).split(by_time="year")
    years = frame["year"].to_numpy()
    assert years[rows_of(ds["train"])].max() < years[rows_of(ds["test"])].min()


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_a_time_stays_a_feature_unless_it_is_left_out(tmp_path: Path, kind: str) -> None:
    days = pd.date_range("2024-01-01", periods=900)
    when = days.strftime("%Y-%m-%d") if kind == "texts" else np.arange(900.0)
    frame = pd.DataFrame({"x": RNG.normal(size=900), "when": when})
    y = RNG.normal(size=900)
    made = ["when"] if kind == "numbers" else ["when.days", "when.weekday.cos"]
    model = dkl.KernelRegressor("aligned", by_time="when", random_state=0, progress=False).fit(frame, y)
    assert set(made) <= set(model.encoding_.column_names)
    assert len(model.predict(frame)) == 900
    ds = dkl.create_dataset(tmp_path / "a.zarr", frame, y, times="when")
    frame.assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    told = {"target": "y", "shuffle": False, "progress": False}
    other = dkl.ingest(tmp_path / "rows.csv", tmp_path / "b.zarr", by_time="when", **told)
    given = dkl.ingest(frame.assign(y=y), tmp_path / "c.zarr", time="when", **told)
    for store in (other, given):
        assert store.column_names == ds.column_names == model.encoding_.column_names
        np.testing.assert_array_equal(store.X.compute(), ds.X.compute())
    assert other["test"].row_id.compute().min() == 720
    without = dkl.ingest(tmp_path / "rows.csv", tmp_path / "d.zarr", by_time="when", drop=["when"], **told)
    assert without.column_names == ["x"]
    assert without["test"].row_id.compute().min() == 720
