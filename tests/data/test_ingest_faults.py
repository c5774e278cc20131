"""What ingest refuses, before anything is written, and what a killed or failing one leaves: nothing."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from sklearn.datasets import load_breast_cancer

import dkl
from dkl.data.ingest import ingest as ingest_module
from dkl.data.ingest import scratch
from dkl.data.ingest.formats import Buffers
from dkl.data.ingest.parquet_files import ParquetFormat
from dkl.data.ingest.paths import find_files
from dkl.data.sources import stored
from dkl.data.store.writer import DatasetWriter
from dkl.errors import MemoryLimitError, StoreError
from dkl.events import Event
from tests.forks import ended

GOOD = "x,c,y\n1,a,no\n2,b,yes\n3,a,no\n"


def refused(folder: Path, texts: dict[str, str], kind: type[Exception], message: str, **options: Any) -> None:
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(kind, match=message):
        dkl.ingest(folder, folder / "rows.zarr", **({"target": "y"} | options))
    assert sorted(path.name for path in folder.iterdir()) == sorted(texts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a.csv' is empty \(0 bytes\)"),
        ("\n\n", "a.csv'.*[Ee]mpty"),
        ("x,c,y\n", "a.csv' has a header line and no rows"),
        ("1,2,3\n4,5,6\n", "first line of '.*a.csv' holds only numbers"),
        ("x,c\n1,a\n", r"target='y' is no column of '.*csv'; the columns are \['x', 'c'\]"),
        ("x,x,y\n1,2,a\n", r"a.csv' has several columns named \['x'\]"),
        ("x,,y\n0,1,a\n1,2,b\n", r"column 2 of '.*a.csv' has no name.*drop=\[''\]"),
        (GOOD + "x,c,y\n1,a,no\n", "a.csv', row 4 after the header, is the header line once more"),
        ("# a note\n" + GOOD, "row 1 after the header: found 3 columns, and the first line, '# a note', names one; it"),
        (GOOD + "4,a\n", "a.csv', row 4 after the header: expected 3 columns and found 2"),
        (GOOD + "4,a,no,1\n", "a.csv', row 4 after the header: expected 3 columns and found 4"),
        (GOOD + "inf,a,no\n", "column 'x' is inf in row 3; numbers must be finite"),
        (GOOD + "4,a,\n", r"target 'y' is missing \(NaN\) in row 3"),
        ("x,y\n1,a\n2,a\n", "target 'y' has one class only, 'a', in 2 rows"),
        ("x,y\n1,0.5\n2,inf\n", "target 'y' is inf in row 1"),
        ("x,y\n1e39,0\n2,1\n", "column 'x' reaches from 2 to 1e\\+39, beyond what float32 holds"),
        ("x,y\n,0\n,1\n", r"column 'x' holds no value in 2 rows; leave it out: drop=\['x'\]"),
        ("x,y\n\xff,0\n\xfe,1\n", "column 'x' holds bytes that are not UTF-8 text"),
        ("y\n0\n1\n", "no column is left to learn from"),
        ("x,y\n" + "".join(f"{i},{i}\n" for i in range(60)), "'y' holds 60 .*whole numbers in 60 rows: say task="),
    ],
)
def test_a_file_that_cannot_be_learned_from_says_why(tmp_path, text, message):
    refused(tmp_path, {"a.csv": text}, (ValueError, TypeError), message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "kind", "message"),
    [
        ("x,y\n1,a\n", ValueError, r"b.csv' lacks the columns \['c'\], unlike '.*a.csv'"),
        ("x,c,z,y\n1,a,1,a\n", ValueError, r"b.csv' has columns of its own: \['z'\]"),
        ("x,c,y\n1,a,no\n2,b\n", ValueError, "b.csv', row 2 after the header: expected 3 columns"),
    ],
)
def test_files_that_differ_are_refused_by_file_and_column(tmp_path, second, kind, message):
    refused(tmp_path, {"a.csv": GOOD, "b.csv": second}, kind, message)


@pytest.mark.parametrize("row", ["one,a,no\n", "true,a,no\n", "1,2,no\n"])
def test_columns_of_another_kind_in_a_second_file_are_those_of_one_file_of_all_rows(tmp_path, row):
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text("x,c,y\n" + row)
    (tmp_path / "whole.txt").write_text(GOOD + row)
    parts = dkl.ingest(tmp_path / "*.csv", tmp_path / "parts.zarr", target="y")
    whole = dkl.ingest(tmp_path / "whole.txt", tmp_path / "whole.zarr", target="y", format="csv")
    assert parts.encoding.rules == whole.encoding.rules


def test_parquet_files_that_differ_are_refused_by_file_and_column(tmp_path):
    pd.DataFrame({"x": [1, 2], "y": [0, 1]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": ["1", "2"], "y": [0, 1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(TypeError, match=r"column 'x' holds texts in '.*b.parquet' and numbers in '.*a.parquet'"):
        dkl.ingest(tmp_path / "*.parquet", tmp_path / "rows.zarr", target="y")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=r"b.parquet' is not a whole Parquet file"):
        dkl.ingest(tmp_path / "*.parquet", tmp_path / "rows.zarr", target="y")


def test_a_flipped_byte_in_the_footer_of_a_parquet_file_is_said_with_its_name(tmp_path):
    """The notes of pandas are JSON there: a flipped byte makes them another text, or values of other types."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"x": range(6), "c": list("ababab"), "y": [0, 1] * 3}).to_parquet(path)
    whole = path.read_bytes()
    start = whole.rindex(b'{"index_columns')
    said = []
    for place in range(start, start + 700, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xC4]) + whole[place + 1 :])
        try:
            ParquetFormat().probe(find_files(path, None)[0])
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 3
    assert all("rows.parquet' is not a whole Parquet file" in message for message in said)


def test_a_flipped_bit_of_a_parquet_file_is_said_where_its_pages_have_checksums(tmp_path):
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=500), "y": [0, 1] * 250})
    frame.to_parquet(path, compression=None, write_page_checksum=True)
    whole = path.read_bytes()
    value = whole.index(frame["x"].to_numpy()[400:401].tobytes())
    path.write_bytes(whole[:value] + bytes([whole[value] ^ 4]) + whole[value + 1 :])
    with pytest.raises(ValueError, match=r"rows.parquet' is not a whole Parquet file: .*checksum"):
        dkl.ingest(path, tmp_path / "rows.zarr", target="y", progress=False)


def test_half_of_a_pair_of_surrogates_is_said_with_its_row():
    # the texts of pandas 3 cannot hold it, objects can
    frame = pd.DataFrame({"x": range(6), "c": np.array(["a", "b\ud800", *"abab"], object)}, dtype=object)
    frame["x"] = frame["x"].astype(int)
    with pytest.raises(TypeError, match=r"column 'c' holds 'b\\ud800' in row 1, which is no Unicode text"):
        dkl.KernelClassifier(progress=False).fit(frame, [0, 1] * 3)


def test_a_text_far_down_in_a_column_of_numbers_is_named_and_missing(tmp_path):
    rows = [f"{i % 7},a,no\n" for i in range(200_000)]
    rows[190_000] = "seven,a,yes\n"
    (tmp_path / "a.csv").write_text("x,c,y\n" + "".join(rows))
    with pytest.warns(
        UserWarning, match=r"column 'x' is taken for numbers, and 1 of its 200,000.*'seven' in row 190000"
    ):
        ds = dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", shuffle=False)
    assert (ds.encoding.rules[0].kind, ds.encoding.rules[0].missing) == ("number", 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "z"}, r"target='z' is no column of '.*csv'; the columns are \['x', 'c', 'y'\]"),
        ({"weight": "z"}, "weight='z' is no column"),
        ({"weight": "c"}, "weight 'c' holds string values"),
        ({"weight": "y"}, r"target, weight, split, group and time are different columns; got \['y', 'y'\]"),
        ({"drop": ["z"]}, r"drop=\['z'\] names columns that are not there"),
        ({"drop": "x"}, "drop is the text 'x'; expected names in a list"),
        ({"drop": ["y"]}, "target='y' is also in drop"),
        ({"categorical": ["z"]}, r"categorical=\['z'\]"),
        ({"task": "regression"}, "target 'y' holds texts, and task='regression' needs numbers"),
        ({"target": "x", "task": "classification", "drop": ["y"], "format": "tsv"}, "format is 'tsv'; expected one of"),
        ({"splits": {"train": 0.8, "test": 0.3}}, "sum to 1.1"),
        ({"missing": "median"}, "missing is 'median'; expected 'auto', 'mean', 'error' or a number"),
        ({"splits": {"train": 0.8, "test": 0.2}}, "split 'test' would have no rows: 0.2 of 3"),
        ({"splits": "z"}, "split='z' is no column"),
        ({"splits": "y"}, r"different columns; got \['y', 'y'\]"),
        ({"task": "ranking"}, "task is 'ranking'; expected"),
        ({"unknown": "ignore"}, "unknown is 'ignore'; expected"),
        ({"layout": "csr"}, "layout is 'csr'; expected"),
        ({"paths": []}, "no input files"),
    ],
)
def test_choices_that_cannot_be_met_are_refused(tmp_path, options, message):
    (tmp_path / "a.csv").write_text(GOOD)
    paths = options.pop("paths", tmp_path / "a.csv")
    with pytest.raises((ValueError, TypeError), match=message):
        dkl.ingest(paths, tmp_path / "rows.zarr", **({"target": "y"} | options))
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1,-2,1", "weight 'w' is -2 in row 1"),
        ("1,,1", "weight 'w' is nan in row 1"),
        ("0,0,0", "weight 'w' is 0 in all 3 rows"),
        ("1,inf,1", "weight 'w' is inf in row 1"),
    ],
)
def test_weights_that_weigh_nothing_or_less_are_refused(tmp_path, weights, message):
    rows = [f"{i},{w},{label}\n" for i, (w, label) in enumerate(zip(weights.split(","), "aba", strict=True))]
    refused(tmp_path, {"a.csv": "x,w,y\n" + "".join(rows)}, ValueError, message, weight="w")


def test_files_that_are_not_there_or_of_no_known_or_several_kinds(tmp_path):
    for path in ("none.csv", "none-*.csv"):
        with pytest.raises(FileNotFoundError, match=r"no input file at '.*none"):
            dkl.ingest(tmp_path / path, tmp_path / "rows.zarr")
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "a.dat").write_text(GOOD)
    (tmp_path / "a.svm").write_text("1 1:1\n")
    with pytest.raises(ValueError, match=r"a.dat' has no suffix that tells its format .* write others as Parquet"):
        dkl.ingest(tmp_path / "a.dat", tmp_path / "rows.zarr")
    with pytest.raises(ValueError, match=r"several formats.*csv.*libsvm"):
        dkl.ingest([tmp_path / "a.csv", tmp_path / "a.svm"], tmp_path / "rows.zarr")
    assert dkl.ingest(tmp_path / "a.dat", tmp_path / "rows.zarr", target="y", format="csv").n_rows == 3


def test_an_existing_dataset_is_refused_before_any_reading_and_replaced_on_request(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text(GOOD)
    first = dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y")
    with monkeypatch.context() as patched:
        patched.setattr(ingest_module, "find_files", lambda *_: pytest.fail("read the files first"))
        with pytest.raises(FileExistsError, match="overwrite=True"):
            dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y")
    assert dkl.open_dataset(tmp_path / "rows.zarr").fingerprint == first.fingerprint
    again = dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", seed=1, overwrite=True)
    assert again.fingerprint != first.fingerprint


def test_too_little_temporary_disk_is_refused_with_the_sum(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x,y\n" + "1.5,a\n2.5,b\n" * 1000)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    said = r"ingest needs about .* bytes\) of temporary disk in '.*', where 0\.98 kiB \(1000 bytes\) are free"
    with pytest.raises(OSError, match=said):
        dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", temporary_directory=elsewhere)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.csv", "elsewhere"]


@pytest.mark.parametrize(("columns", "factor"), [(1, 2.0), (20, 1.3)])
def test_the_estimate_of_temporary_disk_is_close(tmp_path, columns, factor):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, columns))).add_prefix("f").assign(y="ab"[0])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    staged = 20_000 * (8 * columns + 5)
    for name in ("a.csv", "a.parquet"):
        plan = ingest_module.plan_ingest(tmp_path / name)
        assert staged / factor < plan.staged_bytes < factor * staged


def test_a_memory_limit_is_kept_or_refused():
    assert Buffers.within(None) == Buffers()
    small = Buffers.within(300 * 2**20)
    assert small.peak_bytes <= 300 * 2**20 < Buffers().peak_bytes
    with pytest.raises(MemoryLimitError, match=r"memory_limit is 0.98 kiB, ingest needs [0-9.]+ MiB: three buffers"):
        Buffers.within(1000)


@pytest.mark.parametrize("error", [KeyboardInterrupt, pa.ArrowMemoryError])
@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_an_interruption_leaves_nothing(tmp_path, stage, error):
    (tmp_path / "a.csv").write_text(GOOD)

    events = []

    def interrupt(event):
        events.append((event.name, event.kind, event.detail.get("failed")))
        if (event.name, event.kind) == (stage, "advanced"):
            raise error

    with pytest.raises(error):
        dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", progress=interrupt)
    assert events[-1] == (stage, "finished", True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_store_that_cannot_be_written_leaves_no_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text(GOOD)

    def fail(self: DatasetWriter, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DatasetWriter, "write", fail)
    with pytest.raises(OSError, match="disk is full"):
        dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def ingest_and_die(folder: Path, point: int) -> None:
    """The process kills itself at an event of this number."""
    numbers = itertools.count(1)

    def kill(event: Event) -> None:
        if next(numbers) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    dkl.ingest(folder / "a.csv", folder / "rows.zarr", target="y", overwrite=True, seed=point, progress=kill)


UNTIL_KILLED = """
import sys
import dkl
for seed in range(1000):
    dkl.ingest(sys.argv[1] + "/a.csv", sys.argv[1] + "/rows.zarr", target="y", overwrite=True, seed=seed,
               progress=lambda event: event.kind == "started" and print(event.name, flush=True))
"""


@pytest.mark.usefixtures("forked_workers")
def test_a_kill_while_reading_or_writing_leaves_the_old_dataset_and_blocks_nothing(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    old = dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", seed=100)
    for point in (2, 6):
        assert ended(ingest_and_die, tmp_path, point) == -signal.SIGKILL
        assert dkl.open_dataset(tmp_path / "rows.zarr").fingerprint == old.fingerprint
    new = dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", seed=101, overwrite=True)
    assert dkl.open_dataset(tmp_path / "rows.zarr").fingerprint == new.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "rows.zarr"]


@pytest.mark.slow
def test_kills_at_random_moments_leave_old_new_or_nothing(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    frame = pd.DataFrame(np.tile(X, (200, 1))).assign(y=np.tile(y, 200))
    frame.columns = frame.columns.astype(str)
    frame.to_csv(tmp_path / "a.csv", index=False)
    rng = np.random.default_rng(0)
    for trial in range(20):
        with subprocess.Popen([sys.executable, "-c", UNTIL_KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 1.5))
            process.kill()
        if (tmp_path / "rows.zarr").exists():
            assert dkl.open_dataset(tmp_path / "rows.zarr").verify() == [], trial
    assert dkl.ingest(tmp_path / "a.csv", tmp_path / "rows.zarr", target="y", overwrite=True).n_rows == len(frame)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "rows.zarr"]


MEASURED = """
import resource, sys, time
import dkl
started = time.perf_counter()
ds = dkl.ingest(sys.argv[1], sys.argv[2], target="label")
seconds = time.perf_counter() - started
print(ds.n_rows, ds.n_columns, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, seconds)
"""


def write_tiled(path: Path, n_rows: int) -> None:
    """Breast cancer rows (20 of their columns, and the label) over and over, with noise."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    names = [f"f{j}" for j in range(20)]
    with path.open("wb") as stream:
        stream.write((",".join([*names, "label"]) + "\n").encode())
        for start in range(0, n_rows, 100_000):
            rows = rng.integers(len(X), size=min(100_000, n_rows - start))
            values = np.round(X[rows, :20] * (1 + 0.01 * rng.standard_normal((len(rows), 20))), 5)
            table = pa.table([*values.T, pa.array(np.where(y[rows], "benign", "malignant"))], names=[*names, "label"])
            pa.csv.write_csv(table, stream, pa.csv.WriteOptions(include_header=False))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_million_rows_of_twenty_columns_take_less_than_a_gigabyte(tmp_path):
    write_tiled(tmp_path / "rows.csv", 10_000_000)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "rows.csv"), str(tmp_path / "rows.zarr")]
    try:
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    finally:
        (tmp_path / "rows.csv").unlink()
        shutil.rmtree(tmp_path / "rows.zarr", ignore_errors=True)
    n_rows, n_columns, peak, seconds = map(float, out.split())
    assert (n_rows, n_columns) == (10_000_000, 20)
    assert peak < 1e9, f"{peak / 2**20:.0f} MiB at {n_rows / seconds:.0f} rows/s"


@pytest.mark.parametrize(
    ("place", "fails", "splits"),
    [
        ("folder", False, {"train": 0.5, "test": 0.5}),
        ("folder", True, "s"),
        ("url", False, "s"),
        ("url", True, {"train": 0.5, "test": 0.5}),
    ],
)
def test_a_reader_finds_rows_with_their_splits_or_no_dataset(
    place: str, fails: bool, splits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While splits are written, nothing can be opened; and nothing remains where they cannot be written."""
    (tmp_path / "a.csv").write_text("x,y,s\n" + "".join(f"{i},{'no' if i % 3 else 'yes'},{i % 2}\n" for i in range(40)))
    store = str(tmp_path / "rows.zarr") if place == "folder" else f"memory://{tmp_path.name}/rows.zarr"
    write, found = stored.write_split, []

    def looking(*given: Any, **named: Any) -> Any:
        with pytest.raises((FileNotFoundError, StoreError)) as caught:
            dkl.open_dataset(store)
        found.append(str(caught.value))
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*given, **named)

    monkeypatch.setattr(stored, "write_split", looking)
    if fails:
        with pytest.raises(OSError, match="the disk is full"):
            dkl.ingest(tmp_path / "a.csv", store, target="y", splits=splits)
        with pytest.raises(FileNotFoundError):
            dkl.open_dataset(store)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]
    else:
        written = dkl.ingest(tmp_path / "a.csv", store, target="y", splits=splits)
        assert sum(written[name].n_rows for name in written.splits) == 40
        again = dkl.open_dataset(store)
        assert again.splits == written.splits == (("train", "test") if splits != "s" else ("0", "1"))
        assert again[again.splits[0]].X.compute().shape[0] == 20
    assert len(found) == 1
    assert "no dataset at" in found[0] if place == "folder" else "half-written" in found[0]
