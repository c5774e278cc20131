"""Codes such as 0123 are names, wherever they stand: in features, labels, ids, groups, times and splits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.ingest.encoding import learn_encoding
from dkl.errors import DklHint, TableDifferenceWarning

CODES = ["0123", "123", "07", "7"]
N = 400
RNG = np.random.default_rng(0)
PLACE = RNG.integers(0, 4, N)
X = RNG.normal(size=N)
FRAME = pd.DataFrame({"code": np.array(CODES, object)[PLACE], "x": X})
TARGET = np.array([3.0, -3.0, 1.0, -1.0])[PLACE] + 0.1 * X
SETTINGS: dict[str, Any] = {"features": "random", "n_features": 60, "random_state": 0}


def ingested(folder: Path, frame: pd.DataFrame, **options: Any) -> dkl.Dataset:
    frame.to_csv(folder / "rows.csv", index=False)
    told: dict[str, Any] = {"shuffle": False, "progress": False, "overwrite": True, **options}
    return dkl.ingest(folder / "rows.csv", folder / "rows.zarr", **told)


def test_a_column_of_codes_is_that_of_the_frame(tmp_path: Path) -> None:
    model = dkl.KernelRegressor(**SETTINGS).fit(FRAME, TARGET)
    ds = ingested(tmp_path, FRAME.assign(y=TARGET), target="y")
    assert ds.encoding.rules == model.encoding_.rules
    assert ds.encoding.rules[0].categories == tuple(sorted(CODES))
    first = next(code for code in FRAME["code"] if code[0] == "0")
    assert f"one-hot, 4 categories (names, since '{first}' has a zero in front)" in ds.encoding.describe()
    stored = dkl.KernelRegressor(**SETTINGS).fit(ds)
    np.testing.assert_array_equal(stored.predict(FRAME), model.predict(FRAME))
    assert stored.score(FRAME, TARGET) > 0.99


def test_labels_keep_their_zeros_from_the_file_to_the_predictions(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": TARGET, "z": X, "label": FRAME["code"]})
    ds = ingested(tmp_path, frame, target="label")
    assert ds.classes is not None
    assert ds.classes.tolist() == sorted(CODES)
    dkl.KernelClassifier(**SETTINGS).fit(ds).save(tmp_path / "model.zarr")
    frame.drop(columns="label").to_csv(tmp_path / "new.csv", index=False)
    arguments = [str(tmp_path / name) for name in ("model.zarr", "new.csv", "answers.csv")]
    said = CliRunner().invoke(app, ["predict", *arguments])
    assert said.exit_code == 0, said.output
    answers = pd.read_csv(tmp_path / "answers.csv", dtype=str)["prediction"]
    assert set(answers) == set(CODES)
    assert (answers == frame["label"]).mean() > 0.95


def test_one_superfluous_zero_makes_names_of_a_column(tmp_path: Path) -> None:
    codes = ["0123", "00", "007", "-07", "+07", "01"]
    frame = pd.DataFrame({f"code {code}": [code, "5", "17", "23"] * 5 for code in codes})
    rules = ingested(tmp_path, frame.assign(x=range(20))).encoding.rules
    assert [rule.name for rule in rules if rule.kind == "category"] == [f"code {code}" for code in codes]


def test_zeros_of_numbers_make_no_names(tmp_path: Path) -> None:
    texts = ["0", "-0", "0.5", "0.05", "00.5", "0e1", ".5", "10", "100", "1e05", "-10.0"]
    frame = pd.DataFrame({f"v {text}": [text, "5", "17.25", "23"] * 5 for text in texts})
    rules = ingested(tmp_path, frame).encoding.rules
    assert [(rule.name, rule.kind, rule.why) for rule in rules] == [(f"v {text}", "number", "") for text in texts]


@pytest.mark.parametrize(("quoted", "end"), [(False, "\r\n"), (True, "\n")])
def test_a_zero_far_down_makes_names_of_all_rows(tmp_path: Path, quoted: bool, end: str) -> None:
    """Beyond the first megabyte, of which the types are told, and among numbers that were read before."""
    rows = [f"{k % 50},{k % 7},{'ab'[k % 2]}" for k in range(250_000)]
    rows[240_000] = '"012",3,a' if quoted else "012,3,a"
    (tmp_path / "rows.csv").write_bytes(end.join(["code,x,y", *rows, ""]).encode())
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", shuffle=False, progress=False)
    codes, numbers = ds.encoding.rules
    assert (codes.kind, numbers.kind) == ("code", "number")
    assert codes.categories == tuple(sorted([*map(str, range(50)), "012"]))
    block = ds.X.blocks[-1].compute()
    assert ds.n_rows == 250_000
    assert block[240_000 - 250_000, 0] == 1 + codes.categories.index("012")


def test_ids_groups_and_splits_keep_their_zeros(tmp_path: Path) -> None:
    frame = FRAME.assign(y=TARGET, group=np.array(["01", "1", "02", "2"])[PLACE], part=np.array(["0", "00"])[PLACE % 2])
    ds = ingested(tmp_path, frame, target="y", group="group", splits="part")
    assert ds.splits == ("0", "00")
    codes = dkl.create_dataset(tmp_path / "f.zarr", FRAME, TARGET, groups=frame["group"])
    groups = [len(set(np.asarray(block.columns["group"]))) for block in codes.source.blocks_without_x(("group",))]
    assert groups == [4]
    dkl.KernelRegressor(**SETTINGS).fit(FRAME, TARGET).save(tmp_path / "model.zarr")
    FRAME.assign(id=frame["group"]).to_csv(tmp_path / "new.csv", index=False)
    arguments = [str(tmp_path / name) for name in ("model.zarr", "new.csv", "answers.csv")]
    said = CliRunner().invoke(app, ["predict", *arguments, "--id", "id"])
    assert said.exit_code == 0, said.output
    assert pd.read_csv(tmp_path / "answers.csv", dtype=str)["id"].tolist() == frame["group"].tolist()


def test_padded_hours_and_months_are_names_and_days_stay_dates(tmp_path: Path) -> None:
    days = pd.date_range("2023-01-01", periods=N, freq="37h")
    frame = pd.DataFrame({"hour": days.strftime("%H"), "day": days.strftime("%d/%m/%Y"), "at": days.strftime("%H:%M")})
    hour, day, at = ingested(tmp_path, frame).encoding.rules
    assert (hour.kind, day.kind, day.form, at.kind) == ("category", "date", "d/m/y", "time")


def test_numbers_where_names_with_zeros_were_are_told() -> None:
    encoding = learn_encoding([FRAME])
    with pytest.warns(TableDifferenceWarning, match=r"'code' holds numbers, and held names \(names, since '0"):
        encoding.transform(pd.DataFrame({"code": [123, 7], "x": [0.0, 1.0]}))


def test_a_zero_in_front_is_told_where_numbers_were(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": np.arange(N) / 2, "x": X})
    dkl.KernelRegressor(**SETTINGS).fit(frame, TARGET).save(tmp_path / "model.zarr")
    (tmp_path / "new.csv").write_text("v,x\n012,0.5\n7,1\n")
    arguments = [str(tmp_path / name) for name in ("model.zarr", "new.csv", "a.csv")]
    said = CliRunner().invoke(app, ["predict", *arguments])
    assert "holds numbers with a zero in front, such as '012', and held none: 1 of 2 rows" in " ".join(
        said.output.split()
    )
    assert CliRunner().invoke(app, ["predict", *arguments, "--strict", "--overwrite"]).exit_code == 1


@pytest.mark.parametrize("rows", [60, 600, N])
def test_parts_of_the_rows_have_the_kinds_of_all(rows: int) -> None:
    frame = pd.concat([FRAME] * 4, ignore_index=True).assign(
        price=[f"{v:.2f} €".replace(".", ",") for v in RNG.normal(size=4 * N)],
        at=pd.date_range("2024-01-01", periods=4 * N, freq="h", tz="UTC").astype(str),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DklHint)
        whole, part = learn_encoding([frame]), learn_encoding([frame[:rows]])
    assert [(r.kind, r.form, r.zone) for r in whole.rules] == [(r.kind, r.form, r.zone) for r in part.rules]
