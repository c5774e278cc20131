"""Texts that are written in several ways (units, short years, blanks) stay names, and are never names silently."""

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
PERCENTS = [f"{place % 50}%" if place % 3 else f"{place % 50}" for place in range(N)]


def encoded(folder: Path, values: list[str], way: str, **options: Any) -> TableEncoding:
    """The rules of a column `a` of a frame, or of a file."""
    frame = pd.DataFrame({"a": values, "b": np.arange(len(values)) / 7})
    if way == "frame":
        return learn_encoding([frame[:20], frame[20:]], **options)
    frame.to_csv(folder / "rows.csv", index=False)
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", shuffle=False, progress=False, **options).encoding


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize("different", [12, 36])
def test_numbers_with_a_unit_and_without_are_said_with_a_row_of_each(tmp_path: Path, way: str, different: int) -> None:
    values = [f"{place % different}%" if place % 3 else f"{place % different}" for place in range(N)]
    said = (
        r"column 'a' writes its numbers in 2 ways, '0' in row 0 \(20 values\) and '1%' in row 1 \(40 values\), which "
        r"need not .* in one way to have numbers, or say that they are names: categorical=\['a'\]"
    )
    with pytest.warns(UserWarning, match=said):
        encoding = encoded(tmp_path, values, way)
    assert encoding.rules[0].kind in ("category", "code")


@pytest.mark.parametrize(
    "values",
    [["1st", "2nd", "3rd", "11th"], ["9a", "9b", "10a", "10b"], ["2%", "3%", "x", "y"], ["1", "2", "red", "5"]],
)
def test_names_that_begin_with_numbers_are_silent(values: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_encoding([pd.DataFrame({"a": values * 10})])


def test_units_that_are_called_names_are_silent(tmp_path: Path) -> None:
    for way in ("frame", "file"):
        encoded(tmp_path, PERCENTS, way, categorical=["a"])


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize("form", ["%d/%m/%y", "%m-%d-%y", "%-d.%-m.%y", "%y-%m-%d", "%d/%m/%y %H:%M"])
def test_dates_of_two_digit_years_are_said(tmp_path: Path, way: str, form: str) -> None:
    days = pd.date_range("2010-02-01", periods=20, freq="13h")
    said = "column 'a' looks like dates whose year has two digits .* in row 0.*four digits.*pandas.to_datetime.*names"
    with pytest.warns(UserWarning, match=said):
        encoding = encoded(tmp_path, [*days.strftime(form)] * 3, way)
    assert encoding.rules[0].kind == "category"


@pytest.mark.parametrize("way", ["frame", "file"])
def test_names_that_differ_by_blanks_are_said_with_their_rows(tmp_path: Path, way: str) -> None:
    values = [" red", "red", "blue", "green "] * 10
    with pytest.warns(UserWarning, match=r"column 'a' holds names .*: 'red' \(10 rows\) and ' red' \(10 rows\)\."):
        encoding = encoded(tmp_path, values, way)
    assert encoding.rules[0].categories == (" red", "blue", "green ", "red")


def with_target(folder: Path, y: list[str], way: str, **options: Any) -> dkl.Dataset:
    rows = pd.DataFrame({"b": NUMBERS})
    if way == "frame":
        return dkl.create_dataset(folder / "rows.zarr", rows, np.array(y), **options)
    rows.assign(y=y).to_csv(folder / "rows.csv", index=False)
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", target="y", progress=False, **options)


@pytest.mark.parametrize("way", ["frame", "file"])
def test_labels_that_differ_by_blanks_are_said_with_their_rows(tmp_path: Path, way: str) -> None:
    y = [*(["yes", " yes", "no"] * (N // 3))]
    with pytest.warns(UserWarning, match=r"y'? holds names that differ by .*'yes' \(20 rows\) and ' yes' \(20 rows\)"):
        ds = with_target(tmp_path, y, way)
    assert len(ds.classes) == 3


@pytest.mark.parametrize("way", ["frame", "file"])
def test_targets_with_a_unit_and_without_are_said_and_are_no_numbers(tmp_path: Path, way: str) -> None:
    ways = r"y'? writes its numbers in 2 ways, '0' in row 0 \(20 values\) and '1%' in row 1 \(40 values\)"
    with pytest.warns(UserWarning, match=ways + ".*or say that they are labels"):
        ds = with_target(tmp_path, PERCENTS, way)
    assert ds.task == "classification"
    with pytest.raises(ValueError, match=ways + ".*write all of them in one way"):
        with_target(tmp_path, PERCENTS, way, task="regression", overwrite=True)


def test_a_classifier_says_which_labels_differ_by_blanks() -> None:
    y = np.array(["yes", " yes", "no"] * (N // 3))
    with pytest.warns(UserWarning, match=r"'yes' \(20 rows\) and ' yes' \(20 rows\)"):
        dkl.KernelClassifier("random", n_features=4).fit(NUMBERS[:, None], y)
