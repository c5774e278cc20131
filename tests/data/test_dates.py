"""Dates and times in tables: days and cycles against their definitions, whatever type or text they come in."""

from __future__ import annotations

import datetime
import json
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dkl
from dkl.data.ingest.encoding import TableEncoding, learn_encoding

CYCLES = ("hour", "weekday", "yearday")


def encoded_by_definition(moment: datetime.datetime) -> list[float]:
    """Days since 1970, and cosine and sine of the time of day, of the weekday and of the day of the year."""
    since = moment - datetime.datetime(1970, 1, 1)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    turns = [
        (moment - midnight) / datetime.timedelta(days=1),
        moment.weekday() / 7,
        (moment.timetuple().tm_yday - 1) / 365.25,
    ]
    circles = [function(2 * math.pi * turn) for turn in turns for function in (math.cos, math.sin)]
    return [since / datetime.timedelta(days=1), *circles]


def test_a_date_becomes_days_and_points_on_circles_as_defined():
    moments = pd.date_range("1967-11-02 03:15", "2024-03-01", periods=200).floor("s")
    encoding = learn_encoding([pd.DataFrame({"d": moments})])
    assert encoding.column_names == ["d.days"] + [f"d.{c}.{f}" for c in CYCLES for f in ("cos", "sin")]
    expected = [encoded_by_definition(moment.to_pydatetime()) for moment in moments]
    np.testing.assert_allclose(
        encoding.transform(pd.DataFrame({"d": moments}), dtype=np.dtype(float)), expected, atol=1e-9
    )
    assert encoding.passthrough.tolist() == [False] + [True] * 6
    assert "date as days since 1970-01-01, and cosine and sine of time of day, weekday, day of the year" in (
        encoding.describe()
    )


@pytest.mark.parametrize(
    ("first", "last", "step", "cycles"),
    [
        ("2026-01-01", "2026-01-10", "D", ()),
        ("2026-01-01", "2026-01-02", "h", ()),
        ("2026-01-01", "2026-01-04", "h", ("hour",)),
        ("2026-01-01", "2026-01-15", "D", ("weekday",)),
        ("2024-01-01", "2025-12-30", "D", ("weekday",)),
        ("2024-01-01", "2026-01-02", "D", ("weekday", "yearday")),
    ],
)
def test_a_cycle_is_kept_where_the_rows_cover_it_twice(first, last, step, cycles):
    (rule,) = learn_encoding([pd.DataFrame({"d": pd.date_range(first, last, freq=step)})]).rules
    assert rule.parts == ("days", *cycles)


def forms() -> dict[str, object]:
    """The same days as columns of every kind."""
    days = pd.date_range("2025-12-20", periods=40)
    return {
        "datetime64": days,
        "dates": [day.date() for day in days],
        "texts": days.strftime("%Y-%m-%d"),
        "texts with times": days.strftime("%Y-%m-%dT%H:%M:%S"),
        "seconds": days.astype("M8[s]"),
        "local": days.tz_localize("Europe/Berlin"),
        "periods": days.to_period("D"),
        "arrow": pd.Series(pa.array(days.to_pydatetime(), pa.date32()), dtype=pd.ArrowDtype(pa.date32())),
    }


@pytest.mark.parametrize("name", forms())
def test_dates_are_the_same_in_every_type_and_text(name):
    expected = learn_encoding([pd.DataFrame({"d": forms()["datetime64"]})])
    frame = pd.DataFrame({"d": forms()[name]})
    encoding = learn_encoding([frame[:7], frame[7:]])
    zone = "Europe/Berlin" if name == "local" else ""
    assert encoding == replace(expected, rules=(replace(expected.rules[0], zone=zone),))
    np.testing.assert_array_equal(encoding.transform(frame), expected.transform(pd.DataFrame({"d": forms()["dates"]})))


def test_times_of_day_and_lengths_of_time_have_one_part_each():
    frame = pd.DataFrame({"at": ["06:00", "18:30:00", None], "took": pd.to_timedelta([36, 12, 24], "h")})
    encoding = learn_encoding([frame])
    assert encoding.column_names == ["at.hour.cos", "at.hour.sin", "at=<missing>", "took.days"]
    half_past_six = 2 * math.pi * 18.5 / 24
    expected = [
        [0, 1, 0, 1.5],
        [math.cos(half_past_six), math.sin(half_past_six), 0, 0.5],
        [0, 0, 1, 1.0],
    ]
    np.testing.assert_allclose(encoding.transform(frame), expected, atol=1e-6)


def test_a_missing_date_has_the_mean_of_the_days_and_no_weekday():
    frame = pd.DataFrame({"d": [*pd.date_range("2026-01-01", periods=20), pd.NaT]})
    encoding = learn_encoding([frame])
    mean = (pd.Timestamp("2026-01-01") - pd.Timestamp(0)).days + 9.5
    np.testing.assert_array_equal(encoding.transform(frame)[-1], np.array([mean, 0, 0, 1], np.float32))
    np.testing.assert_array_equal(
        replace(encoding, is_sparse=True).transform(frame).toarray(), encoding.transform(frame)
    )


def test_rules_of_dates_are_kept_as_json():
    encoding = learn_encoding([pd.DataFrame({"d": pd.date_range("2020-01-01", periods=900), "x": 1.5})])
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding
    assert "parts" not in encoding.to_json()["rules"][1]


@pytest.mark.parametrize("texts", [["2026-01-01", "later"], ["2026-02-30", "2026-01-01"]])
def test_texts_that_are_no_dates_stay_categories(texts):
    (rule,) = learn_encoding([pd.DataFrame({"d": texts * 3})]).rules
    assert rule.kind == "category"


def test_dates_can_be_insisted_on_as_names():
    (rule,) = learn_encoding([pd.DataFrame({"d": ["2026-01-01", "2026-02-01"]})], categorical=["d"]).rules
    assert rule.kind == "category"


def test_frames_files_and_stores_give_the_same_model(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "at": pd.date_range("2024-01-01", periods=300, freq="7h")})
    frame["y"] = frame["x"] + np.cos(2 * np.pi * frame["at"].dt.day_of_week / 7) + 0.5
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    X, y = frame[["x", "at"]], frame["y"].to_numpy()
    machine = dkl.KernelRegressor(dkl.RandomFeatures(n_features=40, random_state=0), random_state=0)
    expected = machine.fit(X, y).predict(X)
    assert machine.score(X, y) > 0.5
    machine.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict(X), expected)
    np.testing.assert_allclose(machine.predictor().predict(X.iloc[3]), expected[3], rtol=1e-3)
    for suffix in ("csv", "parquet"):
        ds = dkl.ingest(tmp_path / f"rows.{suffix}", tmp_path / f"{suffix}.zarr", target="y", shuffle=False)
        np.testing.assert_array_equal(machine.fit(ds).predict(X), expected)
    # days since 1970 are rounded to a thousandth in single precision, and pandas has double precision
    np.testing.assert_allclose(machine.to_sklearn().predict(X), expected, atol=2e-3)


def written(moments: pd.DatetimeIndex, form: str) -> pd.DataFrame:
    return pd.DataFrame({"d": moments.strftime(form)})


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("%m/%d/%Y", "m/d/y"),
        ("%d/%m/%Y", "d/m/y"),
        ("%d.%m.%Y", "d.m.y"),
        ("%Y/%m/%d %H:%M", "y/m/d"),
        ("%m/%d/%Y %I:%M:%S %p", "m/d/y"),
        ("%d-%m-%Y %H:%M:%S", "d-m-y"),
        ("%Y.%m.%d", "y.m.d"),
    ],
)
def test_dates_in_another_form_are_those_of_iso(form, kept):
    moments = pd.date_range("2013-12-28 11:30", periods=90, freq="17h").floor("min")
    moments = moments if "%M" in form else moments.normalize()
    texts = written(moments, form)
    encoding = learn_encoding([texts])
    iso = learn_encoding([pd.DataFrame({"d": moments})])
    assert encoding.rules[0].form == kept
    assert replace(encoding.rules[0], form="") == iso.rules[0]
    np.testing.assert_array_equal(encoding.transform(texts), iso.transform(pd.DataFrame({"d": moments})))
    stored = TableEncoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert stored == encoding
    # dates, and their texts in ISO 8601, are understood as well
    np.testing.assert_array_equal(stored.transform(pd.DataFrame({"d": moments})), encoding.transform(texts))
    with pytest.raises(ValueError, match=r"'27 March' in row 1.*write it as (day|month|year)"):
        encoding.transform(pd.DataFrame({"d": [texts["d"][0], "27 March"]}))


def test_texts_without_leading_zeros_and_noon_and_midnight_are_dates():
    texts = pd.DataFrame({"d": ["3/7/2014 12:00 AM", "3/27/2014 12:05 PM", "12/1/2014 1:00 pm", None]})
    expected = pd.DataFrame({"d": pd.DatetimeIndex(["2014-03-07 00:00", "2014-03-27 12:05", "2014-12-01 13:00", None])})
    np.testing.assert_array_equal(
        learn_encoding([texts]).transform(texts), learn_encoding([expected]).transform(expected)
    )


def test_the_rows_of_all_pieces_tell_the_day_from_the_month():
    """One row beyond the 12th is enough, in whatever piece it is, and pieces without any value say nothing."""
    pieces = [
        written(pd.DatetimeIndex(["2014-02-01", "2014-03-05"]), "%m/%d/%Y"),
        pd.DataFrame({"d": pd.Series([None, None], dtype=object)}),
        written(pd.DatetimeIndex(["2014-03-27"]), "%m/%d/%Y"),
    ]
    for order in (pieces, pieces[::-1]):
        (rule,) = learn_encoding(order).rules
        assert (rule.kind, rule.form, rule.missing) == ("date", "m/d/y", 2)


def test_a_day_that_may_be_a_month_is_told_of_and_no_date():
    texts = pd.DataFrame({"d": ["03/04/2014", "05/06/2014"] * 30})
    with pytest.warns(UserWarning, match=r"no day is beyond 12 \('03/04/2014'\).*categorical=\['d'\]"):
        (rule,) = learn_encoding([texts]).rules
    assert rule.kind == "category"
    assert learn_encoding([texts], categorical=["d"]).rules[0].kind == "category"


@pytest.mark.parametrize(
    ("texts", "are_dates"),
    [
        (["27/03/2014", "03/27/2014"], True),
        (["30/02/2014", "01/03/2014"], False),
        (["27/03/2014", "27.03.2014"], True),
        (["27/03/2014", "2014-03-28"], True),
        (["27/03/2014", "unknown"], False),
        (["27/03/2014 25:00", "28/03/2014 11:00"], False),
    ],
)
def test_texts_of_several_forms_or_of_days_that_are_not_are_names(texts, are_dates):
    """Of dates of several forms it is said."""
    said = pytest.warns(UserWarning, match="'d' writes its dates in several forms") if are_dates else nullcontext()
    with said:
        (rule,) = learn_encoding([pd.DataFrame({"d": texts * 20})]).rules
    assert rule.kind == "category"


def test_lengths_of_time_are_those_of_the_frame_in_its_file(tmp_path):
    lengths = pd.to_timedelta(np.arange(-20, 70) * 977.25, unit="min")
    frame = pd.DataFrame({"wait": lengths, "x": np.arange(90) / 7})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", shuffle=False, progress=False)
    encoding = learn_encoding([frame])
    assert ds.encoding.rules == encoding.rules
    np.testing.assert_array_equal(ds.X.compute(), encoding.transform(frame))
    texts = frame.assign(wait=lengths.astype(str))
    np.testing.assert_array_equal(encoding.transform(texts), encoding.transform(frame))
    with pytest.raises(ValueError, match=r"column 'wait' is 'long' in row 1, .*write it as 1 days 05:30:00"):
        encoding.transform(texts.assign(wait=texts["wait"].where(texts.index != 1, "long")))


def test_a_clock_that_goes_beyond_24_hours_shows_lengths_of_time():
    texts = [f"{hour}:{hour % 60:02d}:07" for hour in range(1, 50)]
    encoding = learn_encoding([pd.DataFrame({"wait": texts})])
    assert encoding.rules[0].kind == "duration"
    days = [(hour * 3600 + hour % 60 * 60 + 7) / 86400 for hour in range(1, 50)]
    np.testing.assert_allclose(encoding.transform(pd.DataFrame({"wait": texts}))[:, 0], days, rtol=1e-6)
    # Arrow takes lengths below a day for times of day
    short = pa.table({"wait": pa.array([datetime.time(5, 30)])}).to_pandas()
    np.testing.assert_allclose(encoding.transform(short)[:, 0], [5.5 / 24], rtol=1e-6)
