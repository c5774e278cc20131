"""The same rows as a data frame, as a Parquet file through `ingest`, and from the shell give the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app

N = 300
RNG = np.random.default_rng(0)
CODE = RNG.integers(0, 5, N)
LACKS = CODE == 0
START = pd.Timestamp("2024-01-01")
COLUMNS: dict[str, Any] = {
    "whole numbers as names": pd.Categorical(10 * CODE),
    "names with gaps": pd.Categorical([None if code == 0 else 10 * code for code in CODE.tolist()]),
    "fractions as names": pd.Categorical(CODE / 2),
    "truths as names": pd.Categorical(CODE > 2),
    "days as names": pd.Categorical(START + pd.to_timedelta(CODE, "D")),
    "names in an order": pd.Categorical(np.array(list("abcde"))[CODE], categories=list("zedcba"), ordered=True),
    "many names": pd.Categorical([f"v{number}" for number in RNG.integers(0, 60, N)]),
    "truths with gaps": [None if code == 0 else code > 2 for code in CODE.tolist()],
    "nullable truths": pd.array([None if code == 0 else code > 2 for code in CODE.tolist()], "boolean"),
    "nullable whole numbers": pd.array([None if code == 0 else code for code in CODE.tolist()], "Int64"),
    "whole numbers with gaps": pd.Series([None if code == 0 else code for code in CODE.tolist()], dtype=object),
    "texts with gaps": [None if code == 0 else "abcde"[code] for code in CODE.tolist()],
    "texts of numbers": [str(code) for code in CODE],
    "half precision": RNG.normal(size=N).astype(np.float16),
    "days": [day.date() for day in START + pd.to_timedelta(RNG.integers(0, 900, N), "D")],
    "times": pd.Series(START + pd.to_timedelta(RNG.integers(0, 10**8, N), "s")).mask(LACKS),
    "times of a zone": (START + pd.to_timedelta(RNG.integers(0, 10**8, N), "s")).tz_localize("UTC"),
    "months": pd.Series(pd.period_range("2000-01", periods=N, freq="M")).mask(LACKS),
    "durations": pd.to_timedelta(RNG.integers(0, 10**6, N), "s"),
    "5": RNG.normal(size=N),
}
FRAME = pd.DataFrame(COLUMNS)
TARGET = CODE + RNG.normal(size=N)
SETTINGS: dict[str, Any] = {"features": "random", "n_features": 20, "random_state": 0}


def from_parquet(folder: Path, frame: pd.DataFrame, **options: Any) -> dkl.Dataset:
    frame.assign(target=TARGET).to_parquet(folder / "rows.parquet")
    told: dict[str, Any] = {"target": "target", "shuffle": False, "progress": False, **options}
    return dkl.ingest(folder / "rows.parquet", folder / "rows.zarr", **told)


@pytest.mark.parametrize("name", FRAME.columns)
def test_a_column_means_the_same_in_a_frame_and_in_its_parquet_file(tmp_path: Path, name: str) -> None:
    frame = FRAME[[name]]
    machine = dkl.KernelRegressor(**SETTINGS).fit(frame, TARGET)
    stored = dkl.KernelRegressor(**SETTINGS).fit(from_parquet(tmp_path, frame))
    assert stored.encoding_.rules == machine.encoding_.rules
    np.testing.assert_array_equal(stored.predict(frame), machine.predict(frame))


def test_months_are_dates_whether_or_not_pandas_has_told_arrow_of_its_type(tmp_path: Path) -> None:
    frame = FRAME[["months"]]
    known = from_parquet(tmp_path, frame)
    kind = pq.read_schema(tmp_path / "rows.parquet").field("months").type
    pa.unregister_extension_type(kind.extension_name)
    try:
        ds = from_parquet(tmp_path, frame, overwrite=True)
    finally:
        pa.register_extension_type(kind)
    assert ds.encoding.rules == known.encoding.rules
    np.testing.assert_array_equal(ds.X.compute(), known.X.compute())


def test_the_shell_gives_the_predictions_of_the_frame(tmp_path: Path) -> None:
    frame = FRAME.iloc[::-1]
    machine = dkl.KernelRegressor(**SETTINGS).fit(frame, TARGET)
    frame.assign(target=TARGET).to_parquet(tmp_path / "rows.parquet")
    frame.iloc[:40].to_parquet(tmp_path / "new.parquet")
    for command in (
        "ingest {}/rows.parquet {}/rows.zarr --target target --no-shuffle --split=",
        "fit {}/rows.zarr {}/model.zarr --set features=random --features 20",
        "predict {}/model.zarr {}/new.parquet {}/answers.parquet --strict",
    ):
        said = CliRunner().invoke(app, [*command.replace("{}", str(tmp_path)).split(), "--quiet"])
        assert said.exit_code == 0, said.output
    answers = pd.read_parquet(tmp_path / "answers.parquet")["prediction"]
    np.testing.assert_array_equal(answers, machine.predict(frame.iloc[:40]))


def test_an_index_without_a_name_is_no_column(tmp_path: Path) -> None:
    """pandas writes the index of rows that were sorted or picked as a column; in the frame it is none."""
    frame = FRAME[["half precision", "5"]].sort_values("5")
    (tmp_path / "plain").mkdir()
    plain = from_parquet(tmp_path / "plain", frame.reset_index(drop=True))
    ds = from_parquet(tmp_path, frame, overwrite=True)
    assert ds.encoding.rules == plain.encoding.rules
    # who has left it out by its name may go on doing so
    ds = from_parquet(tmp_path, frame, overwrite=True, drop=["__index_level_0__"])
    assert ds.encoding.rules == plain.encoding.rules


def test_files_with_and_without_an_index_go_together(tmp_path: Path) -> None:
    frame = FRAME[["half precision", "5"]]
    frame.iloc[:200].to_parquet(tmp_path / "a.parquet")
    frame.iloc[200:].to_parquet(tmp_path / "b.parquet")
    ds = dkl.ingest(tmp_path / "*.parquet", tmp_path / "both.zarr", shuffle=False, progress=False)
    np.testing.assert_array_equal(ds.X.compute()[:, 1], frame["5"].to_numpy(np.float32))


def test_an_index_that_dask_makes_up_is_no_column(tmp_path: Path) -> None:
    dd.from_pandas(FRAME[["5", "texts of numbers"]], npartitions=2).to_parquet(tmp_path / "rows")
    ds = dkl.ingest(tmp_path / "rows", tmp_path / "rows.zarr", progress=False)
    assert [rule.name for rule in ds.encoding.rules] == ["5", "texts of numbers"]


def test_an_index_with_a_name_stays_a_column(tmp_path: Path) -> None:
    """Who reads the file without pandas sees an ordinary column, and may need it to split by time."""
    frame = FRAME[["5"]].set_index(pd.Index(np.arange(N) % 7, name="weekday"))
    assert [rule.name for rule in from_parquet(tmp_path, frame).encoding.rules] == ["5", "weekday"]
