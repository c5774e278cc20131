"""A column of points in time means the same instants whatever zone its values are written in, on every way in."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.ingest.encoding import TableEncoding, learn_encoding
from dkl.errors import TableDifferenceWarning

N = 240
INSTANTS = pd.date_range("2024-03-25", periods=N, freq="5h", tz="UTC")
ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "+05:30"]
SETTINGS: dict[str, Any] = {"features": "random", "n_features": 20, "random_state": 0}


def clock_of(zone: str) -> np.ndarray:
    """Days since 1970, and the point of the clock in a zone, by the definition."""
    local = INSTANTS.tz_convert(zone).tz_localize(None)
    days = (local - pd.Timestamp(0)) / pd.Timedelta("1D")
    return np.column_stack([days, np.cos(2 * np.pi * days), np.sin(2 * np.pi * days)])


def frame_in(zone: str | None) -> pd.DataFrame:
    return pd.DataFrame({"at": INSTANTS.tz_convert(zone) if zone else INSTANTS.tz_localize(None)})


def quiet(encoding: TableEncoding, frame: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.asarray(encoding.transform(frame, dtype=np.dtype(float)))


@pytest.mark.parametrize("zone", ZONES)
def test_the_rule_keeps_the_clock_of_the_zone_of_fit(zone):
    encoding = learn_encoding([frame_in(zone)])
    np.testing.assert_allclose(quiet(encoding, frame_in(zone))[:, :3], clock_of(zone), atol=1e-7)
    assert encoding.rules[0].zone == zone
    assert f"in the zone {zone}" in encoding.describe()
    assert TableEncoding.from_json(encoding.to_json()) == encoding


KINDS = ("pandas", "polars", "arrow", "text", "nanoseconds", "seconds")


@pytest.mark.parametrize(
    ("zone", "kind"), [(zone, KINDS[(place + row) % 6]) for place, zone in enumerate(ZONES) for row in (0, 2)]
)
def test_the_same_instants_in_another_zone_are_the_same_rows(zone, kind):
    encoding = learn_encoding([frame_in("UTC")])
    frame: Any = frame_in(zone)
    if kind == "polars" and not zone.startswith("+"):
        frame = pl.from_pandas(frame)
    elif kind == "arrow":
        frame = pa.Table.from_pandas(frame)
    elif kind == "text":
        frame = pd.DataFrame({"at": [moment.isoformat() for moment in frame["at"]]})
    elif kind == "nanoseconds":
        frame = frame.astype(f"datetime64[ns, {frame['at'].dt.tz}]")
    elif kind == "seconds":
        frame = pd.DataFrame({"at": frame["at"].dt.as_unit("s")})
    np.testing.assert_array_equal(quiet(encoding, frame), quiet(encoding, frame_in("UTC")))


@pytest.mark.parametrize(
    ("fitted", "given"), [("UTC", None), ("Asia/Tokyo", None), (None, "UTC"), (None, "Asia/Tokyo")]
)
def test_a_column_without_a_zone_after_one_with_it_is_told_and_refused_by_strict(fitted, given):
    model = dkl.KernelRegressor(**SETTINGS).fit(frame_in(fitted), np.arange(N) % 24 + 0.5)
    said = "has no time zone, and was of" if fitted else "has the time zone"
    with pytest.warns(TableDifferenceWarning, match=rf"column 'at' {said}.*{N} of {N} rows, the first is row 0"):
        answers = model.predict(frame_in(given))
    with pytest.raises(ValueError, match=rf"strict=True refuses.*\n.*'at' {said}"):
        model.predict(frame_in(given), strict=True)
    # the clock is taken as it is
    plain = frame_in(given)["at"].dt.tz_localize(None) if given else frame_in(None)["at"]
    expected = pd.DataFrame({"at": plain.dt.tz_localize(fitted)}) if fitted else pd.DataFrame({"at": plain})
    np.testing.assert_array_equal(answers, model.predict(expected))


def test_rules_of_older_releases_take_the_clock_as_it_is_and_say_nothing():
    plain = learn_encoding([frame_in("UTC")]).to_json()
    del plain["rules"][0]["zone"]
    old = TableEncoding.from_json(plain)
    np.testing.assert_allclose(quiet(old, frame_in("Asia/Tokyo"))[:, :3], clock_of("Asia/Tokyo"), atol=1e-7)
    quiet(old, frame_in(None))
    assert "zone" not in old.to_json()["rules"][0]


def test_pieces_in_several_zones_have_the_first_one():
    """Dask partitions, or frames of several months, may say their zones differently."""
    pieces = [frame_in("Asia/Tokyo")[:100], frame_in("UTC")[100:]]
    assert learn_encoding(pieces) == learn_encoding([frame_in("Asia/Tokyo")[:100], frame_in("Asia/Tokyo")[100:]])


def written(folder: Path, zone: str | None, suffix: str, rows: slice = slice(None)) -> Path:
    frame = frame_in(zone).assign(y=np.arange(N) % 24 + 0.5)[rows]
    path = folder / f"{(zone or 'none').replace('/', '-')}-{rows.start}.{suffix}"
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize(("suffix", "zone"), [("csv", "Asia/Tokyo"), ("parquet", "America/New_York")])
def test_predictions_of_files_and_rows_in_another_zone_are_those_of_fit(tmp_path, suffix, zone):
    stored = dkl.ingest(written(tmp_path, "UTC", suffix), tmp_path / "rows.zarr", target="y", shuffle=False)
    assert stored.encoding.rules == learn_encoding([frame_in("UTC")]).rules
    model = dkl.KernelRegressor(**SETTINGS).fit(stored)
    expected = model.predict(frame_in("UTC"), strict=True)
    np.testing.assert_array_equal(model.predict(frame_in(zone), strict=True), expected)
    row = model.predictor().predict({"at": frame_in(zone)["at"][7]})
    np.testing.assert_allclose(row, expected[7], rtol=1e-4)
    model.save(tmp_path / "model.zarr")
    for source in (zone, "UTC"):
        path, answers = written(tmp_path, source, suffix), tmp_path / f"answers-{source[:3]}.parquet"
        said = CliRunner().invoke(app, ["predict", str(tmp_path / "model.zarr"), str(path), str(answers), "--quiet"])
        assert said.exit_code == 0, said.output
        assert "unlike" not in said.output.replace("further columns are left out: ['y']", "").partition("unlike")[2]
        np.testing.assert_array_equal(pd.read_parquet(answers)["prediction"], expected)


def test_rows_in_another_zone_are_appended_as_the_instants_that_they_are(tmp_path):
    half = N // 2
    ds = dkl.create_dataset(tmp_path / "rows.zarr", frame_in("UTC")[:half], np.arange(half) + 0.5)
    whole = ds.append(frame_in("Asia/Tokyo")[half:], np.arange(half) + 0.5)
    np.testing.assert_array_equal(whole.X.compute(), ds.encoding.transform(frame_in("UTC")))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_in_two_zones_are_one_column_of_instants(tmp_path, suffix):
    paths = [written(tmp_path, "UTC", suffix, slice(0, 120)), written(tmp_path, "Asia/Tokyo", suffix, slice(120, N))]
    ds = dkl.ingest(paths, tmp_path / "rows.zarr", target="y", shuffle=False)
    np.testing.assert_array_equal(ds.X.compute(), learn_encoding([frame_in("UTC")]).transform(frame_in("UTC")))


def test_a_file_without_a_zone_among_files_with_it_is_told(tmp_path):
    paths = [written(tmp_path, "UTC", "parquet", slice(0, 120)), written(tmp_path, None, "parquet", slice(120, N))]
    with pytest.warns(
        UserWarning, match=r"'at' has a time zone in some files and none in '.*none-120.parquet'.*in UTC"
    ):
        ds = dkl.ingest(paths, tmp_path / "rows.zarr", target="y", shuffle=False)
    np.testing.assert_array_equal(ds.X.compute(), learn_encoding([frame_in("UTC")]).transform(frame_in("UTC")))


# As they write 2024-02-03 04:05:06 in UTC, or half past five hours later on the clock of India.
SPELLINGS = {
    "pandas": "2024-02-03 04:05:06+00:00",
    "JavaScript": "2024-02-03T04:05:06.000Z",
    "Spark": "2024-02-03T04:05:06.000+00:00",
    "PostgreSQL": "2024-02-03 04:05:06+00",
    "PostgreSQL in India": "2024-02-03 09:35:06+05:30",
    "ISO 8601, basic zone": "2024-02-03T09:35:06+0530",
    "nine digits": "2024-02-03T04:05:06.000000000Z",
    "Java": "2024-02-03T09:35:06+05:30[Asia/Kolkata]",
    "BigQuery": "2024-02-03 04:05:06 UTC",
    "polars": "2024-02-03T04:05:06.000000+0000",
}


@pytest.mark.parametrize("way", ["csv", "frame", "parquet"])
def test_every_program_writes_the_same_instant(tmp_path, way):
    expected = learn_encoding([pd.DataFrame({"at": pd.to_datetime(["2024-02-03T04:05:06Z"] * 3)})])
    frame = pd.DataFrame({name: [text] * 3 for name, text in SPELLINGS.items()})
    if way == "frame":
        encoding = learn_encoding([frame])
    else:
        path, whole = tmp_path / f"rows.{way}", frame.assign(y=[0, 1, 0])
        whole.to_csv(path, index=False) if way == "csv" else whole.to_parquet(path)
        encoding = dkl.ingest(path, tmp_path / "rows.zarr", target="y").encoding
    assert len(encoding.rules) == len(SPELLINGS)
    for rule in encoding.rules:
        assert (replace(rule, name="at"),) == tuple(expected.rules), rule.name


def test_times_with_and_without_a_zone_in_one_column_are_told():
    texts = ["2024-02-03T04:05:06Z", "2024-02-03 05:05:06"] * 20
    with pytest.warns(UserWarning, match=r"column 'at' has a time zone in 20 of its values and none in 20"):
        (rule,) = learn_encoding([pd.DataFrame({"at": texts})]).rules
    assert (rule.kind, rule.zone, rule.missing) == ("date", "UTC", 0)


def test_two_forms_of_dates_in_one_batch_are_named_with_rows_and_remedy():
    days = pd.date_range("2024-01-01", periods=100)
    texts = [day.strftime("%d.%m.%Y" if place % 4 else "%Y-%m-%d") for place, day in enumerate(days)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        encoding = learn_encoding([pd.DataFrame({"at": texts, "x": range(100)})])
    said = str(caught[0].message)
    assert "column 'at' writes its dates in several forms" in said
    assert "'2024-01-01' in row 0, '02.01.2024' in row 1" in said
    assert "categorical=['at']" in said
    fitted = learn_encoding([pd.DataFrame({"at": days.strftime("%d.%m.%Y")})])
    # ISO 8601 is plain in any case, a third form is not
    np.testing.assert_array_equal(
        fitted.transform(pd.DataFrame({"at": texts})), fitted.transform(pd.DataFrame({"at": days.strftime("%d.%m.%Y")}))
    )
    with pytest.raises(
        ValueError, match=r"column 'at' is '3/14/2024' in row 1, .*write it as day\.month\.year, or as 2026-"
    ):
        fitted.transform(pd.DataFrame({"at": ["13.03.2024", "3/14/2024"]}))
    assert encoding.column_names == ["x"]
