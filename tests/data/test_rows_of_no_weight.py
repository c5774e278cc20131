"""Rows of weight 0 in files are rows that are not there, whatever they hold; the others keep their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dkl

N = 40
I = np.arange(N)  # noqa: E741
ROWS = pd.DataFrame(
    {
        "size": I * 7 % 11 / 4,
        "colour": np.array(["red", "blue", "green"])[I % 3],
        "label": np.array(["no", "yes"])[I * 3 % 7 % 2],
        "part": np.array(["train", "test"])[I % 5 // 4],
        "who": I % 8,
        "weight": 1.0 + I % 2,
    }
)
# each would change what is learned of the columns: a gap, a category, an infinity, a class, a split
NOT_THERE = pd.DataFrame(
    {
        "size": [np.nan, 1e9, np.inf, 1.0],
        "colour": ["red", "violet", "blue", None],
        "label": ["no", "perhaps", "yes", "no"],
        "part": ["train", "validation", "test", "train"],
        "who": [1, 99, 2, 3],
        "weight": 0.0,
    }
)
PLACES = [0, 13, 14, N]  # of the rows among the others
COLUMNS = {"target": "label", "weight": "weight", "group": "who", "splits": "part"}


def with_rows_of_no_weight() -> tuple[pd.DataFrame, np.ndarray]:
    """The table with both, and the numbers in it of the rows that count."""
    order = np.insert(np.arange(N), PLACES, N + np.arange(len(PLACES)))
    return pd.concat([ROWS, NOT_THERE], ignore_index=True).iloc[order], np.flatnonzero(order < N)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_rows_of_weight_0_are_not_there(form: str, shuffle: bool, tmp_path: Path) -> None:
    mixed, numbers = with_rows_of_no_weight()
    given: dict[str, object] = {"alone": ROWS, "mixed": mixed}
    for name, table in list(given.items()):
        if form != "frame":
            given[name] = tmp_path / f"{name}.{form}"
            table.to_csv(given[name], index=False) if form == "csv" else table.to_parquet(given[name])
    alone, found = (
        dkl.ingest(rows, tmp_path / f"{name}.zarr", shuffle=shuffle, **COLUMNS) for name, rows in given.items()
    )
    assert found.column_names == alone.column_names
    assert found.encoding.to_json() == alone.encoding.to_json()
    assert found.classes.tolist() == alone.classes.tolist() == ["no", "yes"]
    ids = found.row_id.compute()
    assert sorted(ids) == numbers.tolist()
    # a shuffle orders rows by their numbers, which are others here
    place = np.argsort(ids) if shuffle else np.arange(N)
    place_alone = np.argsort(alone.row_id.compute()) if shuffle else np.arange(N)
    for part in ("X", "y", "sample_weight"):
        values, expected = (getattr(ds, part).compute() for ds in (found, alone))
        np.testing.assert_array_equal(values[place], expected[place_alone])
    assert {name: len(found[name]) for name in found.splits} == {name: len(alone[name]) for name in alone.splits}
    assert sorted(found["test"].row_id.compute()) == numbers[ROWS["part"] == "test"].tolist()
    assert found.verify() == []


def test_a_file_whose_rows_all_have_weight_0_says_so(tmp_path: Path) -> None:
    NOT_THERE.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match="weight 'weight' is 0 in all 4 rows"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="label", weight="weight")
    assert not (tmp_path / "rows.zarr").exists()


def test_an_error_of_a_row_says_which_rows_are_not_counted(tmp_path: Path) -> None:
    mixed, _ = with_rows_of_no_weight()
    mixed.assign(size=mixed["size"].where(mixed["who"] != 4, np.inf)).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="'size' is inf in row 4") as caught:
        dkl.ingest(tmp_path / "rows.parquet", tmp_path / "rows.zarr", target="label", weight="weight")
    assert "rows are counted without the 4 that have a weight of 0" in "".join(caught.value.__notes__)
