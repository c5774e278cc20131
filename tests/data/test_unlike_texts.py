"""Texts that are written in several ways (units, short years, blanks) stay names, and are never names silently."""

from __future__ import annotations

import re
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
    folder.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize(
    "values",
    [
        ["5,5", "5.5", "6,1", "7.25"],
        ["1 kg", "500 g", "2 kg", "20 g"],
        ["12 km/h", "7 mph", "3 km/h", "9 mph"],
        ["5 m²", "3 ft2", "4 m²", "8 ft2"],
        ["5 EUR", "6 USD", "7 EUR", "8 USD"],
        ["1.2M", "3.4k", "5M", "7k"],
        ["5 pieces", "5", "6 pieces", "6"],
    ],
)
def test_numbers_of_several_forms_are_said_however_few_they_are(tmp_path: Path, way: str, values: list[str]) -> None:
    first, second = (re.escape(repr(values[place])) for place in (0, 1))
    said = rf"column 'a' writes its numbers in 2 ways, {first} in row 0 .* and {second} in row 1 .*categorical=\['a'\]"
    with pytest.warns(UserWarning, match=said):
        encoding = encoded(tmp_path, values * (N // 4), way)
    assert encoding.rules[0].categories == tuple(sorted(values))


@pytest.mark.parametrize(
    "values",
    [
        ["1st", "2nd", "3rd", "11th"],
        ["9a", "9b", "10a", "10b"],
        ["10", "10a", "12", "14a"],
        ["1234AB", "1234CD", "5678AB", "5678EF"],
        ["2%", "3%", "x", "y"],
        ["1", "2", "red", "5"],
        ["0123", "123", "07", "7"],
    ],
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
@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%y", "%d %b %Y", "%H:%M"])
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


@pytest.mark.parametrize("way", ["frame", "file"])
def test_names_that_differ_by_blanks_are_said_with_their_rows(tmp_path: Path, way: str) -> None:
    values = [" red", "red", "blue", "green "] * 10
    with pytest.warns(UserWarning, match=r"column 'a' holds names .*: 'red' \(10 rows\) and ' red' \(10 rows\)\."):
        encoding = encoded(tmp_path, values, way)
    assert encoding.rules[0].categories == (" red", "blue", "green ", "red")


@pytest.mark.parametrize("way", ["frame", "file"])
def test_names_that_differ_by_capitals_are_said_unless_they_are_called_names(tmp_path: Path, way: str) -> None:
    values = ["Yes", "yes", "No", "yes"] * 10
    said = r"column 'a' holds names that differ by capital letters alone, .*: 'Yes' \(10 rows\) and 'yes' \(20 rows\)\."
    with pytest.warns(UserWarning, match=said + r".*categorical=\['a'\]"):
        encoding = encoded(tmp_path, values, way)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoded(tmp_path / "named", values, way, categorical=["a"]).rules == encoding.rules


def with_target(folder: Path, y: list[str], way: str, **options: Any) -> dkl.Dataset:
    rows = pd.DataFrame({"b": NUMBERS})
    if way == "frame":
        return dkl.create_dataset(folder / "rows.zarr", rows, np.array(y), **options)
    rows.assign(y=y).to_csv(folder / "rows.csv", index=False)
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", target="y", progress=False, **options)


def classifier() -> dkl.KernelClassifier:
    return dkl.KernelClassifier("random", n_features=4)


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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["yes", " yes", "no"], r"differ by the blanks around them alone, .*'yes' \(20 rows\) and ' yes' \(20 rows\)"),
        (["Yes", "yes", "no"], r"differ by capital letters alone, .*'Yes' \(20 rows\) and 'yes' \(20 rows\)"),
        (["1.0", "1", "2"], r"differ by the spelling of a number alone, .*'1' \(20 rows\) and '1.0' \(20 rows\)"),
        (["5%", "5", "7"], r"writes its numbers in 2 ways, '5%' in row 0 \(20 values\) and '5' in row 1 \(40 values\)"),
        (["1 kg", "500 g", "2 kg"], "writes its numbers in 2 ways, '1 kg' in row 0 .* and '500 g' in row 1"),
        (["1", "2"] * 14 + ["3", "02"], "since 2 of its 60 values have a zero in front, the first is '02' in row 29"),
        (["27.03.2014", "01.04.2014"], "y holds dates or times, such as '27.03.2014' in row 0, .*labels.*regressor"),
    ],
)
def test_a_classifier_says_what_its_labels_leave_open(values: list[str], said: str) -> None:
    y = np.array(values * (N // len(values)))
    with pytest.warns(UserWarning, match=said):
        model = classifier().fit(NUMBERS[:, None], y)
    assert set(model.classes_) == set(values)


@pytest.mark.parametrize("values", [["a", "b", "c"], ["1", "2", "3"], ["v1", "v2", "V3"], ["0123", "123", "7"]])
def test_a_classifier_is_silent_of_labels_that_are_plain(values: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier().fit(NUMBERS[:, None], np.array(values * (N // 3)))


@pytest.mark.parametrize("way", ["frame", "file"])
@pytest.mark.parametrize("form", ["%d.%m.%Y", "%Y-%m-%d", "%d/%m/%y", "%H:%M"])
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


def test_groups_and_splits_that_differ_by_blanks_are_said_with_their_rows(tmp_path: Path) -> None:
    groups = np.array(["g1", " g1", "g2"] * (N // 3))
    rows = pd.DataFrame({"x": NUMBERS, "y": NUMBERS**2, "who": groups, "part": ["train", "test", "test "] * (N // 3)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    pairs = {"group column 'who'": "'g1' .* and ' g1'", "split column 'part'": "'test' .* and 'test '"}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        options: dict[str, Any] = {"target": "y", "group": "who", "splits": "part", "progress": False}
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **options)
    assert ds.splits == ("test", "test ", "train")
    for column, pair in pairs.items():
        said = rf"{column} holds names that differ by the blanks around them alone, .*{pair} \(20 rows\)"
        assert any(re.search(said, str(warning.message)) for warning in found), column
    said = r"groups holds names that differ by the blanks around them alone, .*'g1' \(20 rows\) and ' g1' \(20 rows\)"
    with pytest.warns(UserWarning, match=said):
        dkl.KernelRegressor("random", n_features=4).fit(rows[["x"]], rows["y"], groups=groups)


@pytest.mark.parametrize("count", [3, 100])
def test_numbers_with_another_decimal_mark_than_the_one_given_are_names_and_it_is_said(
    count: int, tmp_path: Path
) -> None:
    """However few they are; reading them ended in an error of Python's own."""
    rows = [f"{row % count},5;{row % 7};{'ab'[row % 2]}" for row in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["x;z;y", *rows]) + "\n")
    with pytest.warns(UserWarning, match=r"column 'x' writes numbers such as '0,5', whose decimal mark is not '\.'"):
        dataset = dkl.ingest(
            tmp_path / "rows.csv",
            tmp_path / "rows.zarr",
            target="y",
            format=dkl.CsvFormat(decimal="."),
            shuffle=False,
            progress=False,
        )
    assert dataset.encoding.rules[0].kind in ("category", "code")
