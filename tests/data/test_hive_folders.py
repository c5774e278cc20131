"""Folders named key=value give the rows of their files a column, as pyarrow's datasets read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest

import dkl
from dkl.data.ingest.ingest import tables_to_encode

MISSING = "__HIVE_DEFAULT_PARTITION__"


def write_tree(root: Path, folders: list[str], suffix: str = ".parquet", **columns: Any) -> Path:
    for place, folder in enumerate(folders):
        (root / folder).mkdir(parents=True)
        frame = pd.DataFrame({"x": [float(place), 0.5], "label": ["a", "b"], **columns})
        path = root / folder / f"part{suffix}"
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    return root


def read(paths: Any) -> pd.DataFrame:
    return pd.concat([table.to_pandas() for table in tables_to_encode(paths)[0]], ignore_index=True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    "folders",
    [
        ["k=1", "k=2", "k=-30"],
        ["k=1", "k=a", "k="],
        ["k=1/m=a b", "k=1/m=x%2Fy", f"k={MISSING}/m={MISSING}", "k=3/m=%C3%A9"],
        ["year=2025/deep/month=01", "year=2026/deep/month=02"],
    ],
    ids=["numbers", "texts", "nested", "between"],
)
def test_folders_give_their_columns_as_pyarrow_reads_them(tmp_path: Path, folders: list[str], suffix: str) -> None:
    root = write_tree(tmp_path / "top=9" / "root", folders, suffix)
    wanted = pyarrow.dataset.dataset(root, format=suffix[1:], partitioning="hive").to_table().to_pandas()
    found = read(root)
    assert list(found.columns) == list(wanted.columns)
    assert values(found) == values(wanted)


def values(frame: pd.DataFrame) -> list[Any]:
    """The rows in an order of their own, "?" for what is missing."""
    rows = frame.astype(object).where(frame.notna(), "?").to_numpy().tolist()
    return sorted(rows, key=repr)


def test_a_glob_and_a_list_of_files_give_what_the_folder_gives(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "top=9" / "root", ["k=1", "k=2"])
    wanted = read(root)
    assert wanted["k"].tolist() == [1, 1, 2, 2]
    pd.testing.assert_frame_equal(read(f"{root}/k=*/part.parquet"), wanted)
    pd.testing.assert_frame_equal(read([f"{root}/k=1/part.parquet", f"{root}/k=2/part.parquet"]), wanted)
    assert list(read(root / "k=1" / "part.parquet").columns) == ["x", "label"]


def test_the_column_of_a_folder_is_learned_from_and_found_again(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "root", ["k=1", "k=2", f"k={MISSING}"])
    ds = dkl.ingest(root, str(tmp_path / "rows.zarr"), target="label", shuffle=False)
    assert ds.column_names == ["x", "k", "k=<missing>"]
    np.testing.assert_array_equal(ds.X.compute()[:, 1:], [[1, 0], [1, 0], [2, 0], [2, 0], [1.5, 1], [1.5, 1]])
    assert dkl.ingest(root, str(tmp_path / "no.zarr"), target="label", drop=["k"]).column_names == ["x"]
    named = dkl.ingest(root, str(tmp_path / "named.zarr"), target="label", categorical=["k"])
    assert named.column_names == ["x", "k=1", "k=2", "k=<missing>"]


@pytest.mark.parametrize(
    ("folders", "columns", "message"),
    [
        (["k=1", "k=2"], {"k": 1}, r"part\.parquet' has the column 'k' and stands in a folder 'k=\.\.\.'"),
        (["k=1", "k=2", "other"], {}, r"other/part\.parquet' lacks the columns \['k'\]"),
        (["k=1/k=2", "k=2/k=3"], {}, "has the column 'k' and stands in a folder"),
    ],
    ids=["a column of that name", "a file in no such folder", "one key twice"],
)
def test_folders_that_fit_no_table_are_refused(tmp_path: Path, folders: list[str], columns: Any, message: str) -> None:
    root = write_tree(tmp_path / "root", folders, **columns)
    with pytest.raises(ValueError, match=message):
        dkl.ingest(root, str(tmp_path / "rows.zarr"), target="label")
