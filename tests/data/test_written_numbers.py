"""Numbers as people write them: with commas, blanks, units and marks for missing values, in features and targets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.coerce import as_dataset
from dkl.data.columns.deciding import Marks
from dkl.data.columns.numbers import NumberForm
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import TableEncoding, learn_encoding
from dkl.data.ingest.target_columns import TargetSummary
from dkl.errors import TableDifferenceWarning

N = 200
RNG = np.random.default_rng(0)
VALUES = np.round(RNG.normal(size=N) * 2_000, 2)
WHOLE = RNG.integers(1, 2_000_000, N)
SHUFFLED = {"shuffle": False, "progress": False}


def grouped(value: float, thousands: str, decimal: str, digits: int = 2) -> str:
    return f"{value:,.{digits}f}".replace(",", "\0").replace(".", decimal).replace("\0", thousands)


# How a program or a country writes a number: (values, one as a text, the form that is told).
FORMS: dict[str, tuple[np.ndarray, Callable[[Any], str], str]] = {
    "decimal comma": (VALUES, lambda v: f"{v:.2f}".replace(".", ","), "1234,56"),
    "Germany": (VALUES, lambda v: grouped(v, ".", ","), "1.234,56"),
    "France": (VALUES, lambda v: grouped(v, "\u202f", ","), "1 234,56"),
    "Sweden": (VALUES, lambda v: grouped(v, "\u00a0", ","), "1 234,56"),
    "Switzerland": (VALUES, lambda v: grouped(v, "'", "."), "1'234.56"),
    "Switzerland, typeset": (VALUES, lambda v: grouped(v, "’", "."), "1'234.56"),
    "United States": (VALUES, lambda v: grouped(v, ",", "."), "1,234.56"),
    "whole thousands": (WHOLE, lambda v: grouped(v, ",", ".", 0), "1,234.56"),
    "whole with blanks": (WHOLE, lambda v: grouped(v, " ", ",", 0), "1 234.56"),
    "SI, thin blank": (WHOLE, lambda v: grouped(v, "\u2009", ".", 0), "1 234.56"),
    "underscores": (WHOLE, lambda v: f"{v:_}", "1_234.56"),
    "percent": (VALUES, lambda v: f"{v:.2f}%", "1234.56%"),
    "percent, Germany": (VALUES, lambda v: f"{v:.2f} %".replace(".", ","), "1234,56%"),
    "dollars": (WHOLE, lambda v: f"${v}", "$1234.56"),
    "dollars, signed": (VALUES, lambda v: f"{'-' if v < 0 else ''}${abs(v):,.2f}", "$1,234.56"),
    "dollars, accounting": (VALUES, lambda v: f"(${-v:,.2f})" if v < 0 else f"${v:,.2f}", "$1,234.56"),
    "dollars, named": (VALUES, lambda v: f"US$ {v:.2f}", "US$1234.56"),
    "pounds": (VALUES, lambda v: f"£{v:,.2f}", "£1,234.56"),
    "euros behind": (VALUES, lambda v: grouped(v, ".", ",") + " €", "1.234,56 €"),
    "francs": (VALUES, lambda v: f"CHF {grouped(v, chr(39), '.')}", "CHF1'234.56"),
    "rupees": (WHOLE, lambda v: f"₹{v:,}", "₹1,234.56"),
    "kilograms": (VALUES, lambda v: f"{v:.2f} kg", "1234.56 kg"),
    "kilograms, close": (VALUES, lambda v: f"{v:.2f}kg", "1234.56 kg"),
    "degrees": (VALUES, lambda v: f"{v:.1f}".replace(".", ",") + " °C", "1234,56 °C"),
    "square metres": (VALUES, lambda v: f"{v:.2f} m²", "1234.56 m²"),
    "per hour": (VALUES, lambda v: f"{v:.2f} km/h", "1234.56 km/h"),
    "exponents, R": (VALUES, lambda v: f"{v:.4e}".replace(".", ","), "1234,56"),
    "minus behind, SAP": (VALUES, lambda v: f"{abs(v):.2f}{'-' if v < 0 else ''}".replace(".", ","), "1234,56"),
    "typeset minus": (VALUES, lambda v: f"{v:.2f}".replace("-", "−").replace(".", ","), "1234,56"),
    "blanks around": (VALUES, lambda v: f"  {v:.2f} ".replace(".", ","), "1234,56"),
}


def rounded(name: str) -> np.ndarray:
    """The numbers that the texts of a form write."""
    values, _, _ = FORMS[name]
    if name == "degrees":
        return np.array([float(f"{v:.1f}") for v in values])
    return np.array([float(f"{v:.4e}") for v in values]) if name == "exponents, R" else values


def texts(name: str) -> list[str]:
    values, write, _ = FORMS[name]
    return [write(value) for value in values]


def decided(folder: Path, frame: pd.DataFrame, way: str) -> TableEncoding:
    """The rules of a frame, or of the file that holds it, in which "target" has the column v as its target."""
    if way == "frame":
        return learn_encoding([frame])
    path = folder / ("rows.parquet" if way == "parquet" else "rows.csv")
    frame.to_parquet(path) if way == "parquet" else frame.to_csv(path, index=False)
    target = {"target": "v"} if way == "target" else {}
    return dkl.ingest(path, folder / "rows.zarr", **target, **SHUFFLED).encoding


@pytest.mark.parametrize("name", FORMS)
def test_numbers_are_read_as_they_are_meant_and_the_form_is_kept(name: str) -> None:
    frame = pd.DataFrame({"price": texts(name)})
    encoding = learn_encoding([frame[:70], frame[70:]])
    (rule,) = encoding.rules
    assert (rule.kind, rule.form, rule.missing) == ("number", FORMS[name][2], 0)
    np.testing.assert_array_equal(encoding.transform(frame)[:, 0], rounded(name).astype(np.float32))
    assert f"price: number written as {rule.form}" in encoding.describe()
    assert TableEncoding.from_json(encoding.to_json()) == encoding
    # whoever has numbers already may hand them over
    plain = encoding.transform(pd.DataFrame({"price": rounded(name)}))
    np.testing.assert_array_equal(plain[:, 0], rounded(name).astype(np.float32))
    assert str(NumberForm.of(rule.form)) == rule.form


ALL = pd.DataFrame({name: texts(name) for name in FORMS} | {"x": np.arange(N) / 3})


@pytest.mark.parametrize("way", ["parquet", ";"])
def test_a_file_of_all_forms_has_the_columns_of_the_numbers(tmp_path: Path, way: str) -> None:
    path = tmp_path / ("rows.parquet" if way == "parquet" else "rows.csv")
    ALL.to_parquet(path) if way == "parquet" else ALL.to_csv(path, sep=way, index=False)
    ds = dkl.ingest(path, tmp_path / "rows.zarr", **SHUFFLED)
    X = ds.X.compute()
    for place, (name, rule) in enumerate(zip(FORMS, ds.encoding.rules, strict=False)):
        assert (rule.name, rule.kind, rule.form, rule.missing) == (name, "number", FORMS[name][2], 0)
        np.testing.assert_array_equal(X[:, place], rounded(name).astype(np.float32), err_msg=name)


@pytest.mark.parametrize(("name", "way"), [(name, ("pieces", "frame")[k % 2]) for k, name in enumerate([*FORMS][::3])])
def test_targets_are_numbers_too(name: str, way: str) -> None:
    frame = pd.DataFrame({"x": np.arange(N) / 3, "price": texts(name)})
    if way == "frame":
        y = as_dataset(frame[["x"]], frame["price"], task="regression").y.compute()
    else:
        summary = TargetSummary("price", Marks(default=";"))
        column = pa.chunked_array([frame["price"].tolist()[:70], frame["price"].tolist()[70:]])
        for part in column.chunks:
            summary.add(pa.chunked_array([part]))
        y = summary.decide("regression").encode(column)
    np.testing.assert_allclose(y, rounded(name))


@pytest.mark.parametrize("way", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["Germany", "whole with blanks", "kilograms"])
def test_targets_of_files_are_numbers_too(tmp_path: Path, name: str, way: str) -> None:
    frame = pd.DataFrame({"x": np.arange(N) / 3, "price": texts(name)})
    path = tmp_path / f"rows.{way}"
    frame.to_csv(path, sep=";", index=False) if way == "csv" else frame.to_parquet(path)
    ds = dkl.ingest(path, tmp_path / "rows.zarr", target="price", task="regression", **SHUFFLED)
    np.testing.assert_allclose(ds.y.compute(), rounded(name))


def test_fractions_of_a_target_are_numbers_without_being_asked_for(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(N) / 3, "price": texts("Germany")})
    frame.to_csv(tmp_path / "rows.csv", sep=";", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="price", **SHUFFLED)
    assert ds.task == "regression"
    assert dkl.create_dataset(tmp_path / "f.zarr", frame[["x"]], frame["price"]).task == "regression"
    model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(frame[["x"]], frame["price"])
    plain = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(frame[["x"]], VALUES)
    np.testing.assert_array_equal(model.predict(frame[["x"]]), plain.predict(frame[["x"]]))
    assert model.score(frame[["x"]], frame["price"]) == plain.score(frame[["x"]], VALUES)


@pytest.mark.parametrize(
    ("value", "delimiter", "options", "number"),
    [
        ("1,234", ",", {}, 1234.0),
        ("1,234", ";", {}, 1.234),
        ("1,234", "\t", {}, 1234.0),
        ("1,234", ";", {"decimal": "."}, 1234.0),
        ("1,234", ",", {"decimal": ","}, 1.234),
        ("1.234", ",", {}, 1.234),
        ("1.234", ";", {"decimal": ","}, 1234.0),
        ("1.234", ",", {"decimal": ","}, 1234.0),
    ],
)
def test_one_mark_before_three_digits_is_what_the_delimiter_or_the_option_says(
    tmp_path: Path, value: str, delimiter: str, options: dict[str, Any], number: float
) -> None:
    pd.DataFrame({"v": [value] * 5, "x": range(5)}).to_csv(tmp_path / "rows.csv", sep=delimiter, index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        form = CsvFormat(**options) if options else None
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", format=form, **SHUFFLED)
    said = [str(warning.message) for warning in caught if "column 'v' holds numbers such as" in str(warning.message)]
    assert bool(said) == (not options and "," in value)
    assert all("decimal=" in sentence for sentence in said)
    assert ds.X.compute()[0, 0] == np.float32(number)


def test_a_warning_of_a_mark_shows_a_number_that_has_it(tmp_path: Path) -> None:
    lines = ["v,x", *(f'"{k:,}",{k}' for k in range(900, 1800, 7))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    said = r"'1,005', whose comma may be a decimal mark .* taken for a thousands mark: decimal=','"
    with pytest.warns(UserWarning, match=said):
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **SHUFFLED)
    assert ds.X.compute()[:, 0].tolist() == list(range(900, 1800, 7))


def test_a_point_groups_digits_where_another_column_has_decimal_commas(tmp_path: Path) -> None:
    lines = ["umsatz;preis"] + [f"{1 + k}.{100 + k};{k},25" for k in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match=r"'1\.100', whose point may be .* taken for a thousands mark: decimal='\.'"):
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **SHUFFLED)
    np.testing.assert_array_equal(ds.X.compute()[:3], [[1100, 0.25], [2101, 1.25], [3102, 2.25]])


MARKS = ["-", "--", "?", ".", "*", "n/a", "None", "<NA>", "\\N", "NaN", "#N/A", "—", "missing"]


@pytest.mark.parametrize(("mark", "way"), list(zip(MARKS, cycle(["csv", "frame"]))))
def test_marks_for_missing_values_are_missing(tmp_path: Path, mark: str, way: str) -> None:
    values = [mark if k % 3 == 0 else str(k) for k in range(90)]
    frame = pd.DataFrame({"v": values, "x": np.arange(90) / 7})
    rule = decided(tmp_path, frame, way).rules[0]
    assert (rule.kind, rule.form, rule.missing, rule.unread) == ("number", "", 30, 0)
    assert rule.fill == pytest.approx(np.mean([k for k in range(90) if k % 3]))


@pytest.mark.parametrize("way", ["csv", "frame", "parquet"])
@pytest.mark.parametrize("place", [3, 150])
def test_values_that_are_none_are_missing_counted_and_named(tmp_path: Path, way: str, place: int) -> None:
    values = [f"{v:.2f} kg" for v in VALUES]
    values[place], values[7] = "a lot", "145 lb"
    frame = pd.DataFrame({"v": values, "x": np.arange(N) / 7})
    with pytest.warns(UserWarning, match="taken for numbers") as caught:
        encoding = decided(tmp_path, frame, way)
    said = str(caught[0].message)
    assert "taken for numbers written as 1234.56 kg, and 2 of its 200 values are none" in said
    assert f"'a lot' in row {place}" in said
    assert "'145 lb' in row 7" in said
    assert "categorical=['v']" in said
    rule = encoding.rules[0]
    assert (rule.kind, rule.missing, rule.unread) == ("number", 2, 2)
    rows = encoding.transform(frame)
    assert rows[[place, 7], 1].tolist() == [1.0, 1.0]
    assert rows[:, 1].sum() == 2


def test_below_the_share_a_column_is_text_and_the_warning_names_rule_and_option() -> None:
    values = [f"{v:.2f} kg" for v in VALUES]
    values[:20] = [f"heavy {k}" for k in range(20)]
    frame = pd.DataFrame({"v": values * 2, "x": range(2 * N)})
    with pytest.warns(UserWarning, match="holds texts") as caught:
        (rule, _) = learn_encoding([frame]).rules
    said = str(caught[0].message)
    assert rule.kind == "code"
    assert "90 % of its values are numbers written as 1234.56 kg, fewer than the 95 %" in said
    assert "'heavy 0' in row 0" in said
    assert "na_values" in said
    assert "categorical=['v']" in said


@pytest.mark.parametrize(
    "values",
    [
        ["12", "7", "30"],
        ["v12", "v7", "v30"],
        ["Q1", "Q2", "Q3"],
        ["1st", "2nd", "3rd", "4th"],
        ["12-18", "19-30", "31-50"],
        ["192.168.0.1", "10.0.0.7"],
        ["1.2.3", "1.10.0"],
        ["5'11", "6'2"],
        ["12 Main Street 5", "3 High Street 7"],
        ["+49 171 2345678", "+49 30 1234567"],
        ["10:30 h", "11:15 h"],
        ["0x1F", "0x20"],
        ["A1", "B2"],
        ["<5", "5-10", ">10"],
    ],
)
def test_names_with_digits_in_them_stay_names(values: list[str]) -> None:
    (rule,) = learn_encoding([pd.DataFrame({"v": values * 4})]).rules
    assert rule.kind == "category"
    assert set(rule.categories) == set(values)


def test_a_text_that_is_no_number_later_is_an_error_unless_some_were_none_before() -> None:
    plain = pd.DataFrame({"v": ["28,70", "1,50"] * 10})
    encoding = learn_encoding([plain])
    with pytest.raises(
        ValueError, match=r"column 'v' is 'dear' in row 1, and held numbers before \(written as 1234,56\)"
    ):
        encoding.transform(pd.DataFrame({"v": ["3,20", "dear"]}))
    with pytest.warns(TableDifferenceWarning, match="column 'v' is missing, and never was"):
        assert encoding.transform(pd.DataFrame({"v": ["3,20", "-"]})).tolist() == [
            [np.float32(3.2)],
            [np.float32(15.1)],
        ]
    with pytest.warns(UserWarning, match="taken for numbers"):
        tolerant = learn_encoding([pd.DataFrame({"v": [*plain["v"], *plain["v"], "dear"]})])
    assert tolerant.transform(pd.DataFrame({"v": ["3,20", "cheap"]})).tolist() == [
        [np.float32(3.2), 0.0],
        [np.float32(15.1), 1.0],
    ]


def test_the_form_goes_with_the_model_to_predict_the_row_predictor_and_append(tmp_path: Path) -> None:
    frame = pd.DataFrame({"price": texts("Germany"), "x": np.arange(N) / 3})
    model = dkl.KernelRegressor("random", n_features=30, random_state=0).fit(frame, VALUES)
    model.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    expected = model.predict(frame)
    np.testing.assert_array_equal(loaded.predict(frame.assign(price=VALUES), strict=True), expected)
    for row in ({"price": frame["price"][3], "x": 1.0}, {"price": VALUES[3], "x": 1.0}):
        np.testing.assert_allclose(loaded.predictor().predict(row), expected[3], rtol=1e-4)
    frame.to_csv(tmp_path / "new.csv", sep=";", index=False)
    said = CliRunner().invoke(
        app,
        ["predict", str(tmp_path / "model.zarr"), str(tmp_path / "new.csv"), str(tmp_path / "a.parquet"), "--strict"],
    )
    assert said.exit_code == 0, said.output
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "a.parquet")["prediction"], expected)
    ds = dkl.create_dataset(tmp_path / "rows.zarr", frame[:100], VALUES[:100])
    whole = ds.append(frame[100:], VALUES[100:])
    np.testing.assert_array_equal(whole.X.compute()[:, 0], VALUES.astype(np.float32))
    info = CliRunner().invoke(app, ["info", str(tmp_path / "rows.zarr")])
    assert "price: number written as 1.234,56" in info.output


@pytest.mark.parametrize(
    ("pair", "way"),
    [
        (pair, way)
        for pair in (("1e5", "100000"), ("+49123", "49123"), ("1.10", "1.1"), ("5", "5.0"))
        for way in ("csv", "target")
    ]
    + [(("1.10", "1.1"), "frame"), (("1e5", "100000"), "frame")],
)
def test_one_number_in_two_ways_is_told_with_the_option(tmp_path: Path, pair: tuple[str, str], way: str) -> None:
    frame = pd.DataFrame({"v": [*pair, "7.25"] * 20, "x": np.arange(60) % 7})
    with pytest.warns(UserWarning, match=r"column 'v' writes one number in two ways, '.*' and '.*categorical=\['v'\]"):
        decided(tmp_path, frame, way)


def test_exponents_and_signs_alone_make_no_text(tmp_path: Path) -> None:
    """R writes 100000 as 1e+05."""
    (tmp_path / "rows.csv").write_text("v,w\n1e+05,+3\n99999,-2\n200000,7\n")
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **SHUFFLED)
    np.testing.assert_array_equal(ds.X.compute(), [[1e5, 3], [99999, -2], [2e5, 7]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e9, 1e9).map(lambda v: round(v, 2)), min_size=1, max_size=30),
    st.sampled_from([(".", ""), (".", ","), (".", " "), (".", "'"), (",", ""), (",", "."), (",", " "), (",", "'")]),
    st.sampled_from(["", "€", "kg", "%", "°C"]),
    st.sampled_from(["", "$", "US$", "€"]),
)
def test_whatever_a_form_writes_it_reads(values, marks, after, before) -> None:
    form = NumberForm(*marks, before, after)  # type: ignore[arg-type]
    written = [f"{before}{grouped(v, marks[1], marks[0])} {after}".strip() for v in values]
    np.testing.assert_array_equal(form.numbers(pa.array(written)), values)
