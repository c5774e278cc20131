"""One command from files to a model: what is read, used again, scored and refused."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dkl
from tests.commands import dkl_command, facts_of

pytestmark = pytest.mark.usefixtures("little_work")
SMALL = ("--learner", "random", "--features", "20", "--solver", "newton", "--alpha", "1e-3")
RNG = np.random.default_rng(0)
N = 300
TABLE = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "kind": RNG.choice(list("xyz"), N)})
TABLE["churned"] = np.where(TABLE.a + (TABLE.kind == "x") > 0.3, "yes", "no")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the rows as a file, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("data.csv", index=False)
    return tmp_path


def test_a_file_becomes_a_model_its_score_and_the_strengths_of_its_columns(folder: Path) -> None:
    facts = facts_of("fit", "data.csv", "model.zarr", "--target", "churned", *SMALL)
    assert facts["held_out"]["rows"] + facts["rows"] == N
    assert set(facts["importance"]) == {"a", "b", "kind"}
    assert facts["store"] == "model.rows.zarr"
    by_hand = dkl_command("ingest", "data.csv", "hand.zarr", "--target", "churned")
    assert by_hand.exit_code == 0
    assert facts_of("fit", "hand.zarr", "hand.model.zarr", *SMALL)["held_out"] == facts["held_out"]
    model = dkl.load_model("model.zarr")
    np.testing.assert_array_equal(model.predict(TABLE), dkl.load_model("hand.model.zarr").predict(TABLE))


@pytest.mark.parametrize("what", ["'refund_paid' alone gives", "'left' and 'right' together give"])
def test_fit_asks_about_columns_that_tell_the_target_nearly_perfectly(folder: Path, what: str) -> None:
    left, right = RNG.integers(0, 2, N), RNG.integers(0, 2, N)
    churned = left if "alone" in what else left ^ right
    columns = {"refund_paid": left} if "alone" in what else {"left": left, "right": right}
    rows = TABLE[["a"]].assign(**columns, churned=np.where(churned, "yes", "no"))
    rows.to_csv("known.csv", index=False)
    said = dkl_command("fit", "known.csv", "known.zarr", "--target", "churned", "--effort", "fast", "--quiet")
    assert said.exit_code == 0, said.output
    text = " ".join(said.output.split())
    assert what in text
    assert "known when you predict?" in text
    assert "--drop" in text


def test_rows_are_read_again_where_a_file_or_an_option_has_changed(folder: Path) -> None:
    fit = ("fit", "data.csv", "model.zarr", "--target", "churned", *SMALL, "--overwrite")
    assert "were read into model.rows.zarr" in facts_of(*fit)["read"]
    assert "were read before, into model.rows.zarr" in facts_of(*fit)["read"]
    assert "were read into" in facts_of(*fit, "--drop", "b")["read"]
    assert dkl.open_dataset("model.rows.zarr").encoding.column_names[0] == "a"
    assert "read before" in facts_of(*fit, "--drop", "b")["read"]
    TABLE[:200].to_csv("data.csv", index=False)
    assert dkl.open_dataset("model.rows.zarr").n_rows == N
    assert "were read into" in facts_of(*fit, "--drop", "b")["read"]
    assert dkl.open_dataset("model.rows.zarr").n_rows == 200
    os.utime("data.csv", ns=(1, 1))
    assert "were read into" in facts_of(*fit, "--drop", "b")["read"]


def test_another_store_of_that_name_is_not_replaced(folder: Path) -> None:
    dkl.create_dataset("model.rows.zarr", TABLE[["a", "b"]], TABLE.churned)
    found = dkl_command("fit", "data.csv", "model.zarr", "--target", "churned", *SMALL)
    assert found.exit_code == 1
    assert "model.rows.zarr" in found.output
    assert dkl.open_dataset("model.rows.zarr").n_columns == 2


@pytest.mark.parametrize("way", ["folder", "glob", "parquet", "semicolons"])
def test_folders_globs_and_other_formats_are_read_too(folder: Path, way: str) -> None:
    (folder / "parts").mkdir()
    options: tuple[str, ...] = ()
    if way == "parquet":
        data = "data.parquet"
        TABLE.to_parquet(data)
    elif way == "semicolons":
        data, options = "other.txt", ("--delimiter", ";", "--decimal", ",")
        TABLE.to_csv(data, index=False, sep=";", decimal=",")
    else:
        data = "parts" if way == "folder" else "parts/*.csv"
        TABLE[:100].to_csv("parts/1.csv", index=False)
        TABLE[100:].to_csv("parts/2.csv", index=False)
    facts = facts_of("fit", data, "model.zarr", "--target", "churned", *options, *SMALL)
    assert facts["columns"] == 5
    assert facts["held_out"]["rows"] + facts["rows"] == N


def test_the_command_that_suggest_prints_is_one_that_fits(folder: Path) -> None:
    facts = facts_of("suggest", "data.csv", "--target", "churned", "--drop", "kind", "--effort", "fast")
    assert shlex.split(facts["command"])[1:7] == ["fit", "data.csv", "model.zarr", "--target", "churned", "--drop"]
    said = facts_of(*shlex.split(facts["command"])[1:], *SMALL)["read"]
    assert "were read before" in said


def test_files_without_a_target_and_stores_with_one_are_refused(folder: Path) -> None:
    found = dkl_command("fit", "data.csv", "model.zarr")
    assert found.exit_code == 2
    assert "--target COLUMN names what to learn from data.csv; its columns are a, b, kind, churned" in plain(found)
    dkl.create_dataset("rows.zarr", TABLE[["a", "b"]], TABLE.churned)
    found = dkl_command("fit", "rows.zarr", "model.zarr", "--target", "churned")
    assert found.exit_code == 2
    assert "--target says how files are read, and 'rows.zarr' is a store" in plain(found)


def plain(found: object) -> str:
    """What a command printed, without the frame and the line ends of its width."""
    return " ".join(str(found.output).replace("│", " ").split())  # type: ignore[attr-defined]


def test_several_faults_are_told_at_once_and_that_of_the_target_first(folder: Path) -> None:
    TABLE.assign(mixed=["1", *["x1"] * (N - 1)]).to_csv("data.csv", index=False)
    found = dkl_command("fit", "data.csv", "model.zarr", "--target", "churnd", "--drop", "kin", *SMALL)
    assert found.exit_code == 1
    said = plain(found)
    assert said.index("did you mean 'churned'") < said.index("did you mean 'kind'")
    assert not (folder / "model.rows.zarr").exists()


def test_a_file_where_a_store_is_wanted_says_the_command_that_takes_it(folder: Path) -> None:
    found = dkl_command("info", "data.csv")
    assert found.exit_code == 1
    assert "dkl fit data.csv model.zarr --target COLUMN" in plain(found)
    assert "from_zarr" not in found.output


def test_whole_numbers_of_a_target_are_told_with_the_command_for_numbers_and_for_counts(folder: Path) -> None:
    TABLE.assign(visits=RNG.poisson(3.0, N)).to_csv("data.csv", index=False)
    found = dkl_command("fit", "data.csv", "model.zarr", "--target", "visits", *SMALL)
    assert found.exit_code == 0, found.output
    line = "dkl fit data.csv model.zarr --target visits --overwrite"
    assert f"{line} --task regression" in plain(found)
    assert f"{line} --loss poisson" in plain(found)
