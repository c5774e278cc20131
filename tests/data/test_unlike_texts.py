"""Dates of several forms are names, and said; targets of dates are refused; a wrong decimal mark makes names."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.ingest.encoding import TableEncoding, learn_encoding

N = 60
NUMBERS = np.arange(N) / 7


def encoded(folder: Path, values: list[str], way: str, **options: Any) -> TableEncoding:
    """The rules of a column `a` of a frame, or of a file."""
    frame = pd.DataFrame({"a": values, "b": np.arange(len(values)) / 7})
    if way == "frame":
        return learn_encoding([frame[:20], frame[20:]], **options)
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / "rows.csv", index=False)
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", shuffle=False, progress=False, **options).encoding


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%Y", "%H:%M"])
def test_dates_of_several_forms_are_said_however_few_they_are(tmp_path: Path, way: str, form: str) -> None:
    days = pd.date_range("2010-02-13 12:00", periods=6, freq="31h")
    values = [day.strftime(form if place % 2 else "%Y-%m-%d") for place, day in enumerate(days)] * 5
    said = (
        rf"column 'a' writes its dates in several forms \('2010-02-13' in row 0, '{days[1].strftime(form)}' in row 1\)"
        r".*pandas.to_datetime.*categorical=\['a'\]"
    )
    with pytest.warns(UserWarning, match=said):
        encoding = encoded(tmp_path, values, way)
    assert encoding.rules[0].kind == "category"


def with_target(folder: Path, y: list[str], way: str, **options: Any) -> dkl.Dataset:
    rows = pd.DataFrame({"b": NUMBERS})
    if way == "frame":
        return dkl.create_dataset(folder / "rows.zarr", rows, np.array(y), **options)
    rows.assign(y=y).to_csv(folder / "rows.csv", index=False)
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", target="y", progress=False, **options)


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize("form", ["%d.%m.%Y", "%Y-%m-%d", "%H:%M"])
def test_targets_that_write_dates_are_refused_unless_they_are_called_labels(
    tmp_path: Path, way: str, form: str
) -> None:
    y = [*pd.date_range("2014-03-27", periods=6, freq="31h").strftime(form)] * (N // 6)
    named = {"task": "classification"} if way == "frame" else {"categorical": ["y"]}
    remedy = "task='classification'" if way == "frame" else r"categorical=\['y'\]"
    for options in ({}, {"task": "regression"}):
        more = f".*{remedy}" if way == "file" or not options else ""
        with pytest.raises((ValueError, TypeError), match="y'? holds dates or times .*the days from a day" + more):
            with_target(tmp_path, y, way, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dkl.DklHint)
        ds = with_target(tmp_path, y, way, **named)
    assert ds.classes.tolist() == sorted(set(y))


@pytest.mark.parametrize("count", [3, 100])
def test_numbers_with_another_decimal_mark_than_the_one_given_are_names(count: int, tmp_path: Path) -> None:
    """However few they are; reading them ended in an error of Python's own."""
    rows = [f"{row % count},5;{row % 7};{'ab'[row % 2]}" for row in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["x;z;y", *rows]) + "\n")
    dataset = dkl.ingest(
        tmp_path / "rows.csv",
        tmp_path / "rows.zarr",
        target="y",
        format=dkl.CsvFormat(decimal="."),
        shuffle=False,
        progress=False,
    )
    assert dataset.encoding.rules[0].kind in ("category", "code")
