"""What spreadsheets and typing errors add is no row: footnotes, lines of blanks, wrong values, with file and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.errors import DklHint

N = 40
RNG = np.random.default_rng(0)
A, B = np.round(RNG.normal(size=N), 3), RNG.integers(1_000, 9_999, N)
TOWN, Y = RNG.choice(["Rom", "Köln"], N), RNG.integers(0, 2, N)
ROWS = [f"{a},{b},{town},{y}" for a, b, town, y in zip(A, B, TOWN, Y, strict=True)]


def ingested(folder: Path, lines: list[str], **options: Any) -> dkl.Dataset:
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"target": "y", "progress": False, "shuffle": False, **options}
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", **settings)


def test_a_footnote_is_named_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"rows.csv', row {N + 1} after the header: expected 4 .* a total at the end"):
        ingested(tmp_path, ["a,b,town,y", *ROWS, "Source: the town hall"])


@pytest.mark.parametrize(("role", "text"), [("target", ""), ("weight", "-1"), ("weight", "inf"), ("splits", "")])
def test_the_file_and_the_row_of_a_wrong_value_are_named(tmp_path: Path, role: str, text: str) -> None:
    """Rows are counted over all files in the message, and in the file itself beside it."""
    rows = [f"{a},{b},s{b % 2},{y}" for a, b, y in zip(A, B, Y, strict=True)]
    for name, lines in (("a.csv", rows[:15]), ("b.csv", rows[15:])):
        (tmp_path / name).write_text("\n".join(["x,w,part,y", *lines]) + "\n")
    place = {"target": 3, "weight": 1, "splits": 2}[role]
    values = rows[19].split(",")
    values[place] = text
    (tmp_path / "b.csv").write_text("\n".join(["x,w,part,y", *rows[15:19], ",".join(values), *rows[20:]]) + "\n")
    column = {"target": {}, "weight": {"weight": "w"}, "splits": {"splits": "part"}}[role]
    with pytest.raises(ValueError, match="in row 19") as raised:
        dkl.ingest(tmp_path / "*.csv", tmp_path / "rows.zarr", target="y", progress=False, **column)
    assert any("b.csv', row 5 after the header" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("role", "text"),
    [("time", "01.02.2024"), ("time", '"1,700,000,000"'), ("time", ""), ("group", ""), ("feature", "inf")],
)
def test_the_file_of_a_wrong_time_group_or_feature_is_named(tmp_path: Path, role: str, text: str) -> None:
    rows = [f"{a},2024-01-{1 + place:02},{y}" for place, (a, y) in enumerate(zip(A[:20], Y[:20], strict=True))]
    values = rows[19].split(",")
    values[0 if role == "feature" else 1] = text
    for name, lines in (("a.csv", rows[:15]), ("b.csv", [*rows[15:19], ",".join(values)])):
        (tmp_path / name).write_text("\n".join(["x,at,y", *lines]) + "\n")
    column = {} if role == "feature" else {role: "at"}
    with pytest.raises(ValueError, match="in row 19") as raised:
        dkl.ingest(tmp_path / "*.csv", tmp_path / "rows.zarr", target="y", progress=False, **column)
    assert ["b.csv', row 5 after the header" in note for note in raised.value.__notes__] == [True]


@pytest.mark.parametrize("blank", ["", "\n", "\n\n\n", "\r\n\r\n", "  \n   \r\n", "\n   "])
def test_a_file_of_blank_lines_is_told(tmp_path: Path, blank: str) -> None:
    (tmp_path / "rows.csv").write_bytes(blank.encode())
    with pytest.raises(ValueError, match=r"rows\.csv' is empty"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", progress=False)


def test_blank_lines_around_the_rows_are_none(tmp_path: Path) -> None:
    ds = ingested(tmp_path, ["", "   ", "a,b,town,y", "", *ROWS, "", ""])
    assert (ds.n_rows, ds.encoding.column_names[:2]) == (N, ["a", "b"])


def test_the_form_of_a_target_of_percents_is_said_and_kept(tmp_path: Path) -> None:
    shares = np.round(10 * abs(A), 1)
    rows = [f"{a},{share}%" for a, share in zip(A, shares, strict=True)]
    with pytest.warns(DklHint, match=r"numbers in the target 'share' \(written as 1234.56%\), 15 for 15 %"):
        ds = ingested(tmp_path, ["a,share", *rows], target="share")
    np.testing.assert_array_equal(ds.y.compute(), shares)
    said = CliRunner().invoke(app, ["info", str(tmp_path / "rows.zarr")])
    assert "numbers written as 1234.56%" in said.output
    ds = ingested(tmp_path, ["a,share", *rows], target="share", overwrite=True, categorical=["share"])
    assert ds.classes is not None
    assert ds.classes[0].endswith("%")
