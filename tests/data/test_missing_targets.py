"""Rows without a target: an error that names the option, and with it rows that are not there."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app


def rows(n: int = 120, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A frame, targets of which a tenth is missing, and which are there."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"size": rng.normal(size=n), "town": rng.choice(["Rome", "Oslo", "Kyiv"], n)})
    y = np.where(frame["size"] > 0, "yes", "no").astype(object)
    there = rng.random(n) > 0.1
    y[~there] = None
    return frame, y, there


def test_a_fit_without_missing_targets_is_the_fit_on_the_other_rows():
    frame, y, there = rows()
    settings = {"features": "aligned", "random_state": 0, "progress": False}
    with pytest.warns(UserWarning, match=rf"^{(~there).sum()} of 120 rows have no target and are left out$"):
        model = dkl.KernelClassifier(drop_missing_target=True, **settings).fit(frame, y)
    other = dkl.KernelClassifier(**settings).fit(frame[there], y[there])
    np.testing.assert_array_equal(model.linear_.coef_, other.linear_.coef_)


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA])
def test_numbers_weights_groups_and_times_go_with_their_rows(tmp_path, missing):
    frame, _, there = rows()
    y = pd.Series(np.where(there, frame["size"] * 2, np.nan), dtype=object)
    y[~there] = missing
    weight, group = np.arange(1.0, 121), np.arange(120) % 7
    with pytest.warns(UserWarning, match="have no target and are left out"):
        ds = dkl.create_dataset(
            tmp_path / "a.zarr", frame, y, sample_weight=weight, groups=group, drop_missing_target=True
        )
    other = dkl.create_dataset(
        tmp_path / "b.zarr",
        frame[there],
        y[there].astype(float),
        sample_weight=weight[there],
        groups=group[there],
    )
    np.testing.assert_array_equal(ds.X.compute(), other.X.compute())
    np.testing.assert_array_equal(ds.y.compute(), other.y.compute())
    blocks = [next(store.source.blocks_without_x(("group",))) for store in (ds, other)]
    np.testing.assert_array_equal(blocks[0].columns["group"], blocks[1].columns["group"])
    np.testing.assert_array_equal(blocks[0].weight, weight[there])
    # the numbers of the rows are those that they had when they were given
    np.testing.assert_array_equal(ds.row_id.compute(), np.flatnonzero(there))


def test_ingest_leaves_rows_without_a_target_out_and_keeps_their_numbers(tmp_path):
    frame, y, there = rows()
    frame["y"] = y
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame[there].to_parquet(tmp_path / "there.parquet", index=False)
    with pytest.warns(UserWarning, match=rf"^{(~there).sum()} of 120 rows have no target 'y' and are left out$"):
        ds = dkl.ingest(
            tmp_path / "rows.csv",
            tmp_path / "a.zarr",
            target="y",
            drop_missing_target=True,
            shuffle=False,
            progress=False,
        )
    other = dkl.ingest(tmp_path / "there.parquet", tmp_path / "b.zarr", target="y", shuffle=False, progress=False)
    assert ds.encoding.to_json() == other.encoding.to_json()
    np.testing.assert_array_equal(ds.X.compute(), other.X.compute())
    np.testing.assert_array_equal(ds.y.compute(), other.y.compute())
    np.testing.assert_array_equal(ds.row_id.compute(), np.flatnonzero(there))


def test_the_error_names_the_option_in_the_language_of_the_caller(tmp_path):
    frame, y, _ = rows()
    for call in (
        lambda: dkl.KernelClassifier().fit(frame, y),
        lambda: dkl.create_dataset(tmp_path / "a.zarr", frame, y),
        lambda: dkl.ingest(tmp_path / "rows.csv", tmp_path / "a.zarr", target="y"),
    ):
        frame.assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
        with pytest.raises(ValueError, match="drop_missing_target=True"):
            call()
    asked = ["ingest", str(tmp_path / "rows.csv"), str(tmp_path / "a.zarr"), "--target", "y"]
    refused = CliRunner().invoke(app, asked)
    told = " ".join(refused.output.split())
    assert refused.exit_code == 1
    assert "--drop-missing-target" in told
    assert "drop_missing_target" not in told
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = CliRunner().invoke(app, [*asked, "--drop-missing-target"])
    assert done.exit_code == 0, done.output
    assert "of 120 rows have no target 'y'" in " ".join(done.output.split())


@pytest.mark.parametrize("y", [[None, None, None], [1.0, np.nan]])
def test_no_target_at_all_and_another_length_are_errors(tmp_path, y):
    with pytest.raises(ValueError, match=r"missing in all 3 rows|2 rows and X has 3"):
        dkl.create_dataset(tmp_path / "a.zarr", np.eye(3), y, drop_missing_target=True)


def test_rows_of_dask_are_refused_with_the_way_to_drop_them(tmp_path):
    import dask.array as da

    y = da.from_array(np.array([0.5, np.nan, 1.5]))
    with pytest.raises(TypeError, match="isnan"):
        dkl.create_dataset(tmp_path / "a.zarr", np.eye(3), y, drop_missing_target=True)


def test_an_option_without_a_meaning_is_refused(tmp_path):
    frame, _, _ = rows()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match="target names no column"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "a.zarr", drop_missing_target=True)


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string", "Float64"])
def test_nullable_arrays_of_pandas_say_which_target_is_missing_or_leave_it_out(dtype):
    X = np.random.default_rng(0).normal(size=(60, 3))
    values = pd.array([0, 1, None] * 20, dtype="Int64").astype(dtype)
    machine = dkl.KernelRegressor if dtype == "Float64" else dkl.KernelClassifier
    model = machine("random", n_features=10, random_state=0)
    with pytest.raises(ValueError, match=r"y\[2\] is (<NA>|NaN).*drop_missing_target=True"):
        model.fit(X, values)
    with pytest.warns(UserWarning, match="20 of 60 rows have no target"):
        found = model.set_params(drop_missing_target=True).fit(X, values)
    there = np.arange(60) % 3 < 2
    expected = machine("random", n_features=10, random_state=0).fit(X[there], values[there])
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
