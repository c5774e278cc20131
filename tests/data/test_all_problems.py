"""All that is wrong with a table is one message, in the words of whoever called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.cli.command import in_the_shell
from dkl.methods.random_features import RandomFeatures

N = 40
TABLE = pd.DataFrame(
    {
        "fine": np.arange(N) / 7,
        "empty": [None] * N,
        "far": np.where(np.arange(N) == 4, np.inf, 1.0),
        "group": np.where(np.arange(N) == 3, np.nan, 1.0),
        "when": pd.Series([None, *["2026-01-01"] * (N - 1)], dtype=object),
    }
)
Y = np.where(np.arange(N) == 7, np.nan, np.arange(N) / 3)
WEIGHT = np.where(np.arange(N) == 5, -1.0, 1.0)


def lines_of(call: Any) -> list[str]:
    with pytest.raises(ValueError, match="\n") as caught:
        call()
    return str(caught.value).split("\n")


def given(folder: Path) -> dict[str, Any]:
    """Calls that take the table with all that is wrong with it."""
    told = {"groups": "group", "times": "when"}
    whole = TABLE.assign(y=Y, weight=WEIGHT)
    asked = {"target": "y", "weight": "weight", "group": "group", "time": "when"}
    return {
        "fit": lambda: dkl.KernelRegressor(categorical=["absent"]).fit(TABLE, Y, WEIGHT, **told),
        "learner": lambda: RandomFeatures().fit(TABLE, None, WEIGHT, **told),
        "create_dataset": lambda: dkl.create_dataset(folder / "a.zarr", TABLE, Y, sample_weight=WEIGHT, **told),
        "tune": lambda: dkl.tune(
            dkl.KernelRegressor(), TABLE, Y, space={"alpha": (1e-6, 1.0)}, sample_weight=WEIGHT, **told
        ),
        "ingest": lambda: dkl.ingest(whole, folder / "a.zarr", categorical=["absent"], **asked),
    }


@pytest.mark.parametrize("name", ["fit", "learner", "create_dataset", "tune", "ingest"])
def test_all_problems_of_a_table_are_lines_of_one_error(tmp_path, name):
    lines = "\n".join(lines_of(given(tmp_path)[name]))
    for words in ("'empty' holds no value", "'far' is inf in row 4", "is -1", "group", "when"):
        assert words in lines, words
    if name != "learner":
        assert "y[7] is NaN" in lines or "'y' is missing (NaN) in row 7" in lines
    assert ("categorical=['absent'] names columns that are not there" in lines) == (name in ("fit", "ingest"))
    # a frame has no parameter `drop`
    assert ("drop=['empty']" in lines) == (name == "ingest")
    assert ("X.drop(columns=['empty'])" in lines) == (name != "ingest")
    assert not list(tmp_path.iterdir())


def test_groups_and_times_that_are_no_columns_are_named_together():
    assert len(lines_of(lambda: dkl.KernelRegressor().fit(TABLE, Y, groups="a", times="b"))) == 2


def test_the_shell_has_all_problems_in_its_own_words(tmp_path):
    TABLE.assign(y=Y, weight=WEIGHT).to_csv(tmp_path / "rows.csv", index=False)
    asked = "--target y --weight weight --group group --time when --categorical absent --drop other"
    done = CliRunner().invoke(app, ["ingest", str(tmp_path / "rows.csv"), str(tmp_path / "a.zarr"), *asked.split()])
    assert done.exit_code == 1
    told = " ".join(done.output.split())
    for words in (
        "--drop other names columns that are not there",
        "--categorical absent names columns that are not there",
        "--drop empty",
        "--drop-missing-target",
        "'far' is inf in row 4",
        "weight 'weight' is -1 in row 5",
        "group column 'group' is missing in row 3",
        "time column 'when' is missing in row 0",
    ):
        assert words in told, words
    assert "=[" not in told


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("leave it out: drop=['a', 'b c']", "leave it out: --drop a --drop 'b c'"),
        ("task='regression' if they are", "--task regression if they are"),
        ("drop_missing_target=True leaves", "--drop-missing-target leaves"),
        ("use n_columns=7, or strict=True", "use --n-columns 7, or strict=True"),
        # values of the user's, code that is called, and what is no option stay as they are
        ("the column 'drop=[1]' and y=3", "the column 'drop=[1]' and y=3"),
        ("write dkl.ingest(..., drop=['a'])", "write dkl.ingest(..., drop=['a'])"),
        ("missing=0.5 fills", "--missing 0.5 fills"),
        ("names, say so: drop=[...]", "names, say so: --drop ..."),
    ],
)
def test_parameters_become_options_of_the_command(said, heard):
    options = {"drop", "task", "drop_missing_target", "n_columns", "missing"}
    assert in_the_shell(said, options) == heard
