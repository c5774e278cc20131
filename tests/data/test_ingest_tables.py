"""ingest of CSV and Parquet files: the same rows give the same dataset, however they come."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

import dkl
from dkl.data.dataset import Dataset
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.formats import Buffers, open_rows
from dkl.data.ingest.ingest import plan_ingest, tables_to_encode
from dkl.data.ingest.paths import find_files
from dkl.data.ingest.quoted_text import QuoteRules
from dkl.data.ingest.staging import Stage
from dkl.data.ingest.table_rows import TableChoices
from dkl.data.ingest.text_chunks import text_chunks
from dkl.events import Event
from dkl.protocols.sampling import shuffle_keys


def contents(ds: Dataset) -> dict[str, np.ndarray]:
    parts = {"X": ds.X, "y": ds.y, "weight": ds.sample_weight, "row_id": ds.row_id}
    values = {name: part.compute() for name, part in parts.items() if part is not None}
    if hasattr(values["X"], "toarray"):
        values["X"] = values["X"].toarray()
    return values


def assert_same_rows(one: Dataset, other: Dataset) -> None:
    first, second = contents(one), contents(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert one.encoding == other.encoding


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 3001
    frame = pd.DataFrame(
        {
            "income": np.round(rng.lognormal(10, 1, n), 2),
            "age": rng.integers(18, 90, n),
            "town": rng.choice(["Köln", "New York, NY", 'the "Hague"', "Ulm"], n),
            "note": rng.choice(["line\nbreak", "plain"], n),
            "member": rng.random(n) < 0.3,
            "label": rng.choice(["no", "yes"], n),
            "times": rng.integers(1, 4, n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "income"] = np.nan
    frame.loc[rng.random(n) < 0.1, "town"] = None
    return frame


@pytest.fixture(scope="module")
def reference(people, tmp_path_factory) -> Dataset:
    path = tmp_path_factory.mktemp("reference")
    people.to_csv(path / "rows.csv", index=False)
    return dkl.ingest(path / "rows.csv", path / "rows.zarr", target="label", weight="times")


@pytest.mark.parametrize("labels", [["a", "b", "zebra"], [1, 2, 9], [0.5, 3, 4]], ids=["texts", "numbers", "fraction"])
@pytest.mark.parametrize("archive", [False, True])
def test_a_label_of_rows_of_weight_0_alone_is_no_class(tmp_path, labels, archive):
    y, weight = np.array(labels)[np.arange(30) % 3], np.ones(30)
    gone = y == y[0 if 0.5 in labels else 2]
    weight[gone] = 0.0
    X = np.arange(60.0).reshape(30, 2)
    if archive:
        np.savez(tmp_path / "rows.npz", X=X, y=y, sample_weight=weight)
        ds = dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr")
    else:
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "w": weight}).to_csv(tmp_path / "rows.csv", index=False)
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", weight="w")
    np.testing.assert_array_equal(ds.classes, np.unique(y[~gone]))
    np.testing.assert_array_equal(ds.y.compute(), y[ds.row_id.compute()])
    assert ds.n_rows == 20


def test_rows_are_those_of_the_file_under_their_number(people, reference):
    found = contents(reference)
    rows = people.iloc[found["row_id"]]
    assert sorted(found["row_id"]) == list(range(len(people)))
    mean = people["income"].mean()
    names = reference.column_names
    assert names is not None
    np.testing.assert_array_equal(found["y"], rows["label"].to_numpy(str))
    np.testing.assert_array_equal(found["weight"], rows["times"])
    filled = rows["income"].fillna(mean).to_numpy()
    np.testing.assert_allclose(found["X"][:, names.index("income")], filled, rtol=6e-8)
    np.testing.assert_array_equal(found["X"][:, names.index("income=<missing>")], rows["income"].isna())
    for town in ("Köln", "New York, NY", 'the "Hague"', "Ulm"):
        np.testing.assert_array_equal(found["X"][:, names.index(f"town={town}")], rows["town"] == town)
    np.testing.assert_array_equal(found["X"][:, names.index("note=line\nbreak")], rows["note"] == "line\nbreak")
    assert reference.passthrough.tolist() == [name not in ("income", "age") for name in names]
    assert reference.classes is not None
    assert reference.classes.tolist() == ["no", "yes"]


def split_csv(people: pd.DataFrame, folder: Path) -> Any:
    people[:700].to_csv(folder / "part-0.csv", index=False)
    people[700:].to_csv(folder / "part-1.csv", index=False)
    return folder / "part-*.csv"


def packed_csv(people: pd.DataFrame, folder: Path) -> Any:
    people.to_csv(folder / "rows.csv.gz", index=False)
    return str(folder / "rows.csv.gz")


def tabbed(people: pd.DataFrame, folder: Path) -> Any:
    people.to_csv(folder / "rows.tsv", index=False, sep="\t", lineterminator="\r\n")
    return folder


def in_memory(people: pd.DataFrame, folder: Path) -> Any:
    with fsspec.open(f"memory://{folder.name}/rows.csv", "w") as stream:
        people.to_csv(stream, index=False)
    return f"memory://{folder.name}/*.csv"


def parquet(people: pd.DataFrame, folder: Path) -> Any:
    people.astype({"town": "category"})[:1000].to_parquet(folder / "a.parquet", row_group_size=300)
    people[1000:].to_parquet(folder / "b.parquet")
    return [folder / "a.parquet", folder / "b.parquet"]


def reordered(people: pd.DataFrame, folder: Path) -> Any:
    people[:50].to_csv(folder / "0.csv", index=False)
    people[50:][people.columns[::-1]].to_csv(folder / "1.csv", index=False)
    return folder / "?.csv"


@pytest.mark.parametrize("form", [split_csv, packed_csv, tabbed, in_memory, parquet, reordered])
def test_any_form_of_the_same_rows_gives_the_same_bits(people, reference, tmp_path, form: Callable[..., Any]):
    paths = form(people, tmp_path)
    assert_same_rows(
        dkl.ingest(paths, tmp_path / "rows.zarr", target="label", weight="times", memory_limit="300 MB"), reference
    )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_file_without_header_gets_its_names(people, reference, tmp_path):
    people.to_csv(tmp_path / "rows.txt", index=False, header=False, sep=";", na_rep="?")
    written = CsvFormat(delimiter=";", column_names=list(people.columns), null_values=["?"])
    ds = dkl.ingest(tmp_path / "rows.txt", tmp_path / "rows.zarr", target="label", weight="times", format=written)
    assert_same_rows(ds, reference)


def test_small_chunks_and_buffers_change_nothing(people, tmp_path):
    people.to_csv(tmp_path / "rows.csv", index=False)
    files = find_files(tmp_path / "rows.csv", None)

    def encoded(buffers: Buffers) -> list[np.ndarray]:
        rows = open_rows(files, None, TableChoices(target="label"), buffers)
        stage = Stage(tmp_path, seed=1, n_bytes=rows.staged_bytes, buffer_bytes=buffers.stage_bytes)
        for table, _ in rows.tables():
            stage.add(table)
        rows.decide()
        parts = [rows.encode(table) for table in stage.tables()]
        return [np.concatenate([part[i] for part in parts]) for i in (0, 1, 3)]

    large, small = encoded(Buffers()), encoded(Buffers(stage_bytes=2**13, chunk_bytes=2**10, threads=3))
    for one, other in zip(large, small, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("chunk_bytes", [1, 5, 17, 40, 1000])
def test_chunks_end_with_lines_and_not_inside_quotes(tmp_path, chunk_bytes):
    lines = [b"1,plain\n", b'2,"a\nb"\n', b'3,"say ""hi""\n\n"\n', b"4,x\n", b"5,no end"]
    path = tmp_path / "x"
    path.write_bytes(b"".join(lines))
    with path.open("rb") as stream:
        chunks = list(text_chunks(stream, chunk_bytes, quotes=QuoteRules()))
    assert b"".join(chunks) == b"".join(lines)
    ends = np.cumsum([len(line) for line in lines])
    assert set(np.cumsum([len(chunk) for chunk in chunks])) <= set(ends)


def test_an_odd_quote_does_not_swallow_the_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b'1,5" pipe\n' + b"2,x\n" * 5000)
    with path.open("rb") as stream:
        assert max(map(len, text_chunks(stream, 100, quotes=QuoteRules()))) <= 100


def test_shuffle_is_seeded_and_can_be_left_out(people, tmp_path):
    people.sort_values("label").to_csv(tmp_path / "rows.csv", index=False)

    def order(**options: Any) -> np.ndarray:
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="label", overwrite=True, **options)
        return ds.row_id.compute()

    np.testing.assert_array_equal(order(), np.argsort(shuffle_keys(np.arange(len(people)), 0)))
    assert not np.array_equal(order(seed=1), order(seed=0))
    np.testing.assert_array_equal(order(seed=1), order(seed=1))
    np.testing.assert_array_equal(order(shuffle=False), np.arange(len(people)))


def test_wide_categories_are_stored_sparse(tmp_path):
    texts = {f"c{j}": [f"v{(i + j) % 30}" for i in range(2000)] for j in range(15)}
    frame = pd.DataFrame({"x": np.arange(2000.0), "y": [0, 1] * 1000} | texts)
    frame.to_parquet(tmp_path / "rows.parquet")
    ds = dkl.ingest(tmp_path / "rows.parquet", tmp_path / "rows.zarr", target="y")
    assert ds.source.is_sparse
    row_id = ds.row_id.compute()
    np.testing.assert_array_equal(contents(ds)["X"], ds.encoding.transform(frame.drop(columns="y"))[row_id].toarray())


def test_splits_are_drawn_by_class(people, tmp_path):
    people.to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "r.zarr", target="label", splits={"train": 0.75, "test": 0.25})
    again = dkl.open_dataset(tmp_path / "r.zarr")
    assert again.splits == ds.splits == ("train", "test")
    yes = (people["label"] == "yes").mean()
    for name, share in (("train", 0.75), ("test", 0.25)):
        assert abs(again[name].n_rows - share * len(people)) <= 2
        assert abs(again[name].class_weights[1] / again[name].n_rows - yes) < 0.003


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["b", "a", "c", "a"], "classification", ["a", "b", "c"]),
        ([True, False, True, False], "classification", [False, True]),
        ([0, 1, 1, 0], "classification", [0, 1]),
        ([-1.0, 1.0, 1.0, -1.0], "classification", [-1, 1]),
        ([3, 1, 2, 1], "classification", [1, 2, 3]),
        ([0.5, 1.0, 2.0, 3.0], "regression", None),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_task_follows_from_the_target(tmp_path, labels, task, classes, suffix):
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": labels})
    path = tmp_path / f"rows.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    ds = dkl.ingest(path, tmp_path / "rows.zarr", target="y", shuffle=False)
    assert ds.task == task
    assert (ds.classes is None) == (classes is None)
    if ds.classes is not None:
        assert ds.classes.tolist() == classes
    assert ds.y.compute().tolist() == labels


def test_whole_numbers_can_be_quantities_and_names(tmp_path):
    frame = pd.DataFrame({"plz": ["01067", "50667", "01067", "1067"], "y": [3, 1, 2, 1]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(
        tmp_path / "rows.csv", tmp_path / "r.zarr", target="y", task="regression", categorical=["plz"], shuffle=False
    )
    assert (ds.task, ds.y.compute().tolist()) == ("regression", [3.0, 1.0, 2.0, 1.0])
    assert ds.column_names == ["plz=01067", "plz=1067", "plz=50667"]
    again = dkl.ingest(tmp_path / "rows.csv", tmp_path / "s.zarr", target="y", categorical=["plz", "y"])
    assert again.classes is not None
    assert again.classes.tolist() == ["1", "2", "3"]


def test_whole_numbers_with_a_few_rows_each_are_not_guessed(tmp_path):
    data = load_diabetes(as_frame=True).frame  # 214 different whole numbers in 442 rows
    data.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match="say task='regression' if they are quantities"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="target")
    assert dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="target", task="regression").n_rows == 442


def test_rows_without_a_target_can_be_stored(tmp_path):
    pd.DataFrame({"x": [1.0, 2.0]}).to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr")
    assert (ds.task, ds.y, ds.n_rows) == (None, None, 2)


def test_a_column_empty_at_first_takes_numbers_later(tmp_path):
    text = "x,z,y\n" + ",1,0\n" * 3 + "2.5,1,1\n"
    (tmp_path / "rows.csv").write_text(text)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", shuffle=False)
    np.testing.assert_array_equal(contents(ds)["X"], [[2.5, 1, 1]] * 3 + [[2.5, 0, 1]])


def test_the_rules_are_shown_before_they_are_applied(people, tmp_path, caplog):
    people.to_csv(tmp_path / "rows.csv", index=False)
    events: list[Event] = []
    with caplog.at_level(logging.INFO, "dkl"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="label", progress=events.append)
    kinds = [(event.name, event.kind) for event in events if event.kind != "advanced"]
    assert kinds == [
        ("reading", "started"), ("reading", "finished"), ("ingest", "note"), ("writing", "started"),
        ("writing", "finished"),
    ]  # fmt: skip
    message = next(event.detail["message"] for event in events if event.kind == "note")
    assert "2 classes: no, yes" in message
    assert "income: number; " in message
    assert message in caplog.text
    size = (tmp_path / "rows.csv").stat().st_size
    assert sum(e.rows for e in events if e.name == "reading") == len(people)
    assert 0.9 * size <= sum(e.bytes for e in events if e.name == "reading") <= size


def test_a_plan_writes_nothing_and_says_what_ingest_does(people, reference, tmp_path):
    people.to_csv(tmp_path / "rows.csv", index=False)
    plan = plan_ingest(tmp_path / "rows.csv", choices=TableChoices(target="label", weight="times"))
    assert plan.encoding == reference.encoding
    assert plan.n_rows == reference.n_rows
    assert "3001 rows; 2 classes" in plan.describe()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_raw_rows_are_read_as_they_were_at_ingest(tmp_path):
    frame = pd.DataFrame({"plz": ["01067", "50667"] * 3, "x": range(6), "y": [0, 1] * 3})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "r.zarr", target="y", categorical=["plz"], shuffle=False)
    later = pd.DataFrame({"x": [7.5, 0], "plz": ["01067", "50667"]})
    for name, write in (("new.csv", later.to_csv), ("new.parquet", later.to_parquet)):
        write(tmp_path / name, index=False)
        (table,) = tables_to_encode(tmp_path / name, encoding=ds.encoding)[0]
        assert ds.encoding.transform(table.select(["plz", "x"])).tolist() == [[1, 0, 7.5], [0, 1, 0]]


def test_paths_may_have_any_letters(tmp_path):
    folder = tmp_path / "Zürich [1] *"
    folder.mkdir()
    with gzip.open(folder / "ä b.csv.gz", "wt") as stream:
        stream.write("x,y\n1,a\n2,b\n")
    assert dkl.ingest(folder / "ä b.csv.gz", folder / "rows é.zarr", target="y").n_rows == 2


def test_a_column_can_name_the_splits(tmp_path):
    n = 300
    part = np.where(np.arange(n) % 3 == 0, "test", "train")
    frame = pd.DataFrame({"x": np.arange(n), "y": np.arange(n) % 2, "w": (np.arange(n) % 5 > 0) * 2, "part": part})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", weight="w", splits="part")
    assert ds.column_names == ["x"]
    assert dkl.open_dataset(tmp_path / "rows.zarr").splits == ("test", "train")
    for name in ("test", "train"):
        counted = frame[(frame["part"] == name) & (frame["w"] > 0)]
        assert sorted(ds[name].row_id.compute()) == counted.index.tolist()
        np.testing.assert_array_equal(ds[name].X.compute()[:, 0], ds[name].row_id.compute())


def test_a_row_without_the_name_of_its_split_is_refused(tmp_path):
    pd.DataFrame({"x": range(4), "y": [0, 1] * 2, "part": ["a", "b", None, "a"]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="split column 'part' is missing in row 2"):
        dkl.ingest(tmp_path / "rows.parquet", tmp_path / "rows.zarr", target="y", splits="part")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_a_store_behind_a_url_takes_the_same_rows(people, reference, tmp_path):
    people.to_parquet(tmp_path / "rows.parquet")
    store = f"memory://{tmp_path.name}/rows.zarr"
    assert_same_rows(dkl.ingest(tmp_path / "rows.parquet", store, target="label", weight="times"), reference)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        dkl.ingest(tmp_path / "rows.parquet", store, target="label")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_days_can_be_taken_as_names(tmp_path, suffix):
    days = pd.to_datetime(["2026-11-20", "2026-11-21", "2026-11-20"]).date
    frame = pd.DataFrame({"day": days, "y": [0, 1, 1]})
    path = tmp_path / f"rows.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    ds = dkl.ingest(path, tmp_path / "rows.zarr", target="y", categorical=["day"], shuffle=False)
    assert ds.column_names == ["day=2026-11-20", "day=2026-11-21"]
    assert ds.X.compute().tolist() == [[1, 0], [0, 1], [1, 0]]


def test_lists_in_a_parquet_file_are_refused(tmp_path):
    pd.DataFrame({"v": [[1.0], [2.0]], "y": [0, 1]}).to_parquet(tmp_path / "rows.parquet")
    for options in ({}, {"categorical": ["v"]}):
        with pytest.raises(TypeError, match=r"column 'v' holds list<.*neither numbers nor texts") as caught:
            dkl.ingest(tmp_path / "rows.parquet", tmp_path / "rows.zarr", target="y", **options)
        assert "rows.parquet" in caught.value.__notes__[0]


def test_what_ingest_says_names_columns_of_one_kind_together(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 30))).rename(columns="x{}".format)
    frame.assign(x9=np.where(np.arange(50) % 7, frame.x9, np.nan), y=1.0).to_csv(tmp_path / "rows.csv", index=False)
    said: list[Any] = []
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", task="regression", progress=said.append)
    (note,) = [event.detail["message"] for event in said if event.kind == "note"]
    lines = note.splitlines()
    assert lines[1] == "x0 to x8 (9 columns): number"
    assert lines[2].startswith("x9: number; 8 missing, filled with")
    assert lines[3] == "x10 to x29 (20 columns): number"
    # the rules themselves say what becomes of a later missing value
    assert "x0: number; none missing, a later one is filled with" in ds.encoding.describe()
