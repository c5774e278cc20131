"""Text files as they come: no row is lost to a stray quote, and what cannot be read is named with its place."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dkl
from dkl.data.frames import encode_raw
from dkl.data.ingest import table_rows
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import learn_encoding
from dkl.data.ingest.formats import Buffers, open_rows
from dkl.data.ingest.ingest import plan_ingest, tables_to_encode
from dkl.data.ingest.paths import find_files
from dkl.data.ingest.quoted_text import QuotedText, QuoteRules
from dkl.data.ingest.table_rows import TableChoices
from dkl.data.ingest.text_chunks import text_chunks

ROWS = [f"{i},{'ab'[i % 2]},{'no' if i % 3 else 'yes'}" for i in range(1000)]


def written(path: Path, lines: list[str], *, end: str = "\n") -> Path:
    path.write_bytes(end.join(["x,c,y", *lines, ""]).encode())
    return path


def refusal(path: Path, **options: Any) -> str:
    """The message with which ingest refuses a file, having written nothing."""
    there = sorted(path.parent.iterdir())
    with pytest.raises((ValueError, TypeError)) as caught:
        dkl.ingest(path, path.parent / "refused.zarr", **({"target": "y"} | options))
    assert sorted(path.parent.iterdir()) == there
    return " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_quote_that_is_never_closed_is_refused_with_its_line(tmp_path, column, end):
    values = ROWS[499].split(",")
    values[column] = '"' + values[column]
    path = written(tmp_path / "rows.csv", [*ROWS[:499], ",".join(values), *ROWS[500:]], end=end)
    message = refusal(path)
    assert "rows.csv', line 501: the quote that opens here is never closed" in message
    assert 'written twice ("")' in message


@pytest.mark.parametrize("place", [10, 200_000])
def test_a_quote_left_open_in_a_long_file_takes_no_rows_with_it(tmp_path, place):
    rows = [f"{i % 7},{'no' if i % 3 else 'yes'}" for i in range(300_000)]
    rows[place] = '3,"yes'
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *rows, ""]))
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes(), 1))
    for path in (tmp_path / "rows.csv", packed):
        assert f"{path.name}', line {place + 2}: the quoted value that begins here holds line ends and is" in refusal(
            path
        )


@pytest.mark.parametrize(
    ("delimiter", "values"),
    [(",", ('"yes', '"no')), (",", ('"yes', '"maybe, or no')), (";", ('"yes', '"no'))],
)
def test_two_stray_quotes_do_not_make_one_value_of_the_rows_between(tmp_path, delimiter, values):
    lines = [row.replace(",", delimiter).split(delimiter) for row in ROWS]
    lines[100][2], lines[110][2] = values
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["x,c,y".replace(",", delimiter), *map(delimiter.join, lines), ""]))
    assert "line 102: the quoted value that begins here holds line ends, and text follows" in refusal(
        path, format=CsvFormat(delimiter=delimiter)
    )


def test_the_predict_path_refuses_a_quote_that_is_never_closed(tmp_path):
    path = written(tmp_path / "rows.csv", [*ROWS[:10], '1,"a,no', *ROWS[11:]])
    with pytest.raises(ValueError, match=r"rows.csv', line 12: the quote that opens here"):
        list(tables_to_encode(path)[0])
    with pytest.raises(ValueError, match=r"rows.csv', line 12: the quote that opens here"):
        plan_ingest(path, choices=TableChoices(target="y"))


def test_values_with_line_ends_are_kept_up_to_the_stated_length(tmp_path):
    text = 'line one, with a comma\r\nline ""two""\n' * 100
    rows = [*ROWS[:5], f'5,"{text}",no', *ROWS[6:], '1000,"",yes', '1001,5" pipe,no', '1002,"a" b,no']
    path = written(tmp_path / "rows.csv", rows)
    categorical = dkl.ingest(path, tmp_path / "rows.zarr", target="y", categorical=["c"], shuffle=False)
    assert categorical.n_rows == 1003
    assert f"c={text}".replace('""', '"') in categorical.column_names
    assert {'c=5" pipe', "c=a b"} <= set(categorical.column_names)
    assert f"longer than {len(text) - 1} bytes" in refusal(path, format=CsvFormat(longest_text=len(text) - 1))
    # a long value without a line end takes no row with it
    long = written(tmp_path / "long.csv", [*ROWS, f'1,"{"z" * 200_000}",no'])
    assert dkl.ingest(long, tmp_path / "long.zarr", target="y").n_rows == 1001


PIECES = st.lists(st.sampled_from(["a", '"', '"', '""', ";", "\n", "\r\n", "\r", 'b"']), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(PIECES, st.integers(1, 3))
def test_pieces_of_text_are_read_as_the_whole(parts, n_columns):
    """Against pyarrow's parser: cut anywhere, the pieces hold the rows of the whole, or the text is refused."""
    text = "".join(parts).lstrip("\r\n").encode()

    def parsed(piece: bytes) -> list[dict[str, str]]:
        names = [f"c{j}" for j in range(n_columns)]
        if not piece.strip(b"\r\n"):
            return []
        return pyarrow.csv.read_csv(
            pa.BufferReader(piece),
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(piece) + 1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=";", newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        ).to_pylist()

    try:
        whole = parsed(text)
        pieces = list(text_chunks(io.BytesIO(text), 3, quotes=QuoteRules(b";")))
    except ValueError:
        return
    assert b"".join(pieces).rstrip(b"\r\n") == text.rstrip(b"\r\n")
    assert [row for piece in pieces for row in parsed(piece)] == whole
    end = QuotedText(text, QuoteRules(b";")).first_row_end()
    assert parsed(text[:end]) == whole[:1] if end else len(whole) <= 1


CSV = "\n".join(["x,c,y", *ROWS, ""]).encode()


@pytest.mark.parametrize(
    ("text", "n_columns"),
    [
        (b"\n\r\n\n" + CSV, 3),
        (b"\xef\xbb\xbf" + CSV, 3),
        (b"\xef\xbb\xbf\n" + CSV.replace(b"x", b'"x"', 1), 3),
        (CSV.replace(b"x", b'"x\nin metres"', 1), 3),
        (CSV.replace(b"\n", b"\r"), 3),
        (CSV.replace(b"c", b"c" * 2_000_000, 1), 3),
        (CSV.replace(b",a,", b',"' + b"q" * 2_000_000 + b'",', 1), 4),
    ],
    ids=["blank lines", "BOM", "BOM and quotes", "line end in a name", "CR alone", "long header", "long first row"],
)
def test_valid_text_of_an_unusual_form_is_read(tmp_path, text, n_columns):
    (tmp_path / "rows.csv").write_bytes(text)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", shuffle=False)
    assert (ds.n_rows, ds.n_columns) == (1000, n_columns)
    np.testing.assert_array_equal(ds.X.compute()[:, 0], np.arange(1000))
    np.testing.assert_array_equal(ds.y.compute(), np.where(np.arange(1000) % 3, "no", "yes"))


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, CSV)
    return stream.getvalue()


def with_byte(value: bytes, place: int) -> bytes:
    return CSV[:place] + value + CSV[place + 1 :]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv.gz", lambda: gzip.compress(CSV)[:-900], "not whole gzip data.*Write or copy the file again"),
        ("a.csv.gz", lambda: gzip.compress(CSV)[:-8] + bytes(8), "not whole gzip data: CRC"),
        ("a.csv.gz", lambda: CSV, "not whole gzip data.*if it is not compressed, rename it without '.gz'"),
        ("a.csv.gz", lambda: gzip.compress(b""), "is empty"),
        ("a.csv.bz2", lambda: bz2.compress(CSV)[:-40], "not whole bz2 data"),
        ("a.csv.bz2", lambda: CSV, "not whole bz2 data"),
        ("a.csv.xz", lambda: lzma.compress(CSV)[:-40], "not whole xz data"),
        ("a.csv.xz", lambda: CSV, "not whole xz data"),
        ("a.csv.zip", lambda: zipped("a.csv", "b.csv"), "holds 2 files"),
        ("a.csv.zip", lambda: CSV, "not whole zip data"),
        ("a.csv", lambda: gzip.compress(CSV), "it is gzip data; give the file a name that ends in .gz"),
        ("a.csv", lambda: zipped("a.csv"), "it is a zip archive"),
        ("a.svm", lambda: gzip.compress(b"1 1:2\n0 1:3\n"), "it is gzip data"),
        ("a.svm.gz", lambda: b"1 1:2\n0 1:3\n", "not whole gzip data"),
        ("a.svm", lambda: "1 1:2\n0 1:3\n".encode("utf-16"), "it is UTF-16 text; save the file as UTF-8"),
        ("a.csv", lambda: with_byte(b"\0", 5000), "line 5[0-9]+: there is a NUL byte"),
        ("a.csv", lambda: with_byte(b"\0", 0), "line 1: there is a NUL byte"),
        ("a.svm", lambda: b"1 1:2\n0 1:\0003\n", "line 2: there is a NUL byte"),
        ("a.csv", lambda: with_byte(b"\xe9", 2), "the header of .*0xe9.*save the file as UTF-8"),
        ("a.csv", lambda: CSV.replace(b",a,", b",\xe9,"), "column 'c' holds bytes that are not UTF-8"),
        ("a.csv", lambda: CSV + CSV[6:] * 200 + b"1,\xe9,no\n", "row 201001 after.*'c' holds bytes that are not UTF-8"),
    ],
)
def test_a_file_that_is_not_whole_text_is_named_with_the_place_and_the_remedy(
    tmp_path: Path, name: str, data: Callable[[], bytes], message: str
):
    path = tmp_path / name
    path.write_bytes(data())
    found = refusal(path, target=None if ".svm" in name else "y")
    assert name in found
    assert re.search(message, found), found


@pytest.mark.parametrize("value", ["1e999", "-1e400", "inf"])
@pytest.mark.parametrize("column", ["x", "y"])
def test_a_number_beyond_float64_is_refused_by_row_and_column(tmp_path, value, column):
    rows = [[str(i), str(i / 7)] for i in range(10)]
    rows[4]["xy".index(column)] = value
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *map(",".join, rows), ""]))
    message = refusal(tmp_path / "rows.csv")
    assert f"'{column}' is " in message
    assert "in row 4" in message


def test_a_malformed_number_far_down_is_missing_and_named_whole(tmp_path):
    values = ["1e5e", "0x1G", "1__000", "--1", "1+3", "1e", "1.2.3"]
    rows = [",".join([*(f"{i % 7}.5",) * len(values), "ab"[i % 2]]) for i in range(60_000)]
    # beyond the first megabyte, which tells the types, and in another piece of four than the rows before
    rows[57_000] = ",".join([*values, "a"])
    names = [f"x{place}" for place in range(len(values))]
    (tmp_path / "rows.csv").write_text("\n".join([",".join([*names, "y"]), *rows, ""]))
    with pytest.warns(UserWarning, match="far down|of its 60,000") as told:
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", shuffle=False)
    said = "\n".join(str(one.message) for one in told)
    for name, value in zip(names, values, strict=True):
        assert re.search(rf"column '{name}' .* 1 of its 60,000 .*'{re.escape(value)}' in row 57000", said), said
    assert [rule.missing for rule in ds.encoding.rules] == [1] * len(values)


@pytest.mark.parametrize("delimiter", ["", ",,", "€"])
def test_a_delimiter_is_one_character(delimiter):
    with pytest.raises(ValueError, match=r"delimiter is .*expected one ASCII character"):
        CsvFormat(delimiter=delimiter)


def named_twice(folder: Path) -> list[Any]:
    """Ways to name two files more than once."""
    (folder / "link.csv").symlink_to(folder / "a.csv")
    os.link(folder / "b.csv", folder / "hard.csv")
    relative = os.path.relpath(folder / "a.csv")
    return [
        [folder / "a.csv", folder / "a.csv", folder / "b.csv"],
        [folder / "?.csv", folder / "a*.csv"],
        [folder / "a.csv", folder / "b.csv", folder / "link.csv", folder / "hard.csv"],
        [relative, folder / "?.csv", f"file://{folder}/b.csv"],
        [folder, folder / "." / "a.csv", folder / ".." / folder.name / "b.csv"],
    ]


def test_a_file_that_is_named_twice_is_read_once_with_a_warning(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    written(folder / "a.csv", ROWS[:600])
    written(folder / "b.csv", ROWS[600:])
    for paths in named_twice(folder):
        with pytest.warns(
            UserWarning, match=r"[12346] of the input files are there already .*read once: '.*csv' \(as '"
        ):
            ds = dkl.ingest(paths, tmp_path / "rows.zarr", target="y", shuffle=False, overwrite=True)
        np.testing.assert_array_equal(ds.X.compute()[:, 0], np.arange(1000))
        with pytest.warns(UserWarning, match="read once"):
            assert sum(table.num_rows for table in tables_to_encode(paths)[0]) == 1000


def test_a_file_behind_a_url_that_is_named_twice_is_read_once(tmp_path):
    with fsspec.open(f"memory://{tmp_path.name}/a.csv", "wb") as stream:
        stream.write(CSV)
    paths = [f"memory://{tmp_path.name}/a.csv", f"memory://{tmp_path.name}/*.csv"]
    with pytest.warns(UserWarning, match="read once"):
        assert dkl.ingest(paths, tmp_path / "rows.zarr", target="y").n_rows == 1000


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def test_work_grows_with_the_columns_and_not_with_their_square(tmp_path):
    def ingest_and_encode(n_columns: int) -> Callable[[], Any]:
        frame = pd.DataFrame(np.zeros((3, n_columns))).add_prefix("column_").assign(y=["a", "b", "a"])
        path = tmp_path / f"{n_columns}.csv"
        frame.to_csv(path, index=False)
        chosen = TableChoices(target="y", drop=frame.columns[:10])

        def work() -> None:
            rows = open_rows(find_files([path], None), None, chosen, Buffers(threads=1))
            for table, _ in rows.tables():
                assert table.num_rows == 3
            rows.decide()
            encode_raw(frame.drop(columns="y"))

        return work

    few, many = ingest_and_encode(250), ingest_and_encode(2_000)
    # 8 times the columns: 8 times the work, and 64 times where each column looks at all others
    assert seconds(many) < 24 * seconds(few)


def wrong_frame() -> pd.DataFrame:
    """A table in which nearly everything is wrong."""
    n = 3000
    return pd.DataFrame(
        {
            "ratio": np.where(np.arange(n) == 7, np.inf, 0.5),
            "other": np.where(np.arange(n) == 2999, -np.inf, 0.5),
            "name": [f"person {i}" for i in range(n)],
            "nothing": np.full(n, np.nan),
            "w": np.where(np.arange(n) == 5, -1.0, 1.0),
            "y": np.where(np.arange(n) == 11, None, np.arange(n) % 2),
        }
    )


WRONG = [
    "drop=['absent'] names columns that are not there",
    "column 'ratio' is inf in row 7",
    "column 'other' is -inf in row 2999",
    "column 'nothing' holds no value in 3000 rows",
    "weight 'w' is -1 in row 5",
    "target 'y' is missing (NaN) in row 11",
]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_all_that_is_wrong_with_a_table_is_one_error(tmp_path, suffix):
    frame = wrong_frame()
    path = tmp_path / f"rows.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    message = refusal(path, weight="w", drop=["absent"])
    assert all(part in message for part in WRONG), message
    assert message.count("\n") == len(WRONG) - 1
    message = refusal(path, target="label", categorical=["town"], drop=["name", "nothing"])
    for part in (
        "target='label' is no column",
        "categorical=['town'] names columns",
        "'ratio' is inf",
        "'other' is -inf",
    ):
        assert part in message


def test_all_that_is_wrong_with_a_data_frame_is_one_error():
    frame = wrong_frame().drop(columns=["w", "y"])
    y = np.where(np.arange(3000) == 11, np.nan, np.arange(3000) % 2)
    with pytest.raises(ValueError, match="is inf in row 7") as caught:
        dkl.RandomFeatures(n_features=10).fit(frame)
    with pytest.raises(ValueError, match="is inf in row 7") as with_target:
        dkl.create_dataset("memory://never", frame, y)
    for part in WRONG[1:4]:
        assert part in str(caught.value)
        assert part in str(with_target.value)
    assert "y[11]" in str(with_target.value)


def test_all_that_is_wrong_with_a_table_at_predict_is_one_error():
    good = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "z"], "c": [1.0, 3.0]})
    encoding = learn_encoding([good], unknown="error")
    bad = pd.DataFrame({"a": [1.0, np.inf], "b": ["x", "new"], "d": [1.0, 2.0]})
    with pytest.raises(ValueError, match="lacks the columns") as caught:
        encoding.transform(bad)
    for part in ("lacks the columns ['c']", "'a' is inf in row 1", "'b' is 'new' in row 1"):
        assert part in str(caught.value)


def test_a_long_list_of_problems_is_cut_and_counted(tmp_path):
    pd.DataFrame(np.full((20, 25), np.inf)).add_prefix("c").assign(y=["a", "b"] * 10).to_csv(
        tmp_path / "rows.csv", index=False
    )
    message = refusal(tmp_path / "rows.csv")
    assert message.count("is inf in row 0") == 10
    assert message.endswith("and 15 more")


def test_a_broken_row_is_told_with_what_was_wrong_before_it(tmp_path):
    rows = [f"{i % 7}.50000000000,{'ab'[i % 2]}" for i in range(400_000)]
    rows[3], rows[350_000] = "inf,a", "1,2,3"
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *rows, ""]))
    message = refusal(tmp_path / "rows.csv")
    assert "column 'x' is inf in row 3" in message
    assert "row 350001 after the header: expected 2 columns and found 3" in message
    assert "the files were not read further" in message


def test_a_broken_row_alone_says_that_the_files_were_not_read_further(tmp_path):
    # rows beyond those that the columns' types are found from
    rows = [f"{i % 7}.50000000000,{'ab'[i % 2]}" for i in range(400_000)]
    rows[350_000] = "1,2,3"
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *rows, ""]))
    message = refusal(tmp_path / "rows.csv")
    assert "expected 2 columns and found 3" in message
    assert message.endswith("the files were not read further")


def test_little_more_is_read_once_something_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "_BYTES_AFTER_ERROR", 2**20)
    rows = [f"{i % 7}.5,{'ab'[i % 2]}" for i in range(400_000)]
    rows[399_999] = "inf,a"
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *rows, ""]))
    read: list[int] = []
    with pytest.raises(ValueError, match="target='z' is no column"):
        dkl.ingest(
            tmp_path / "rows.csv", tmp_path / "rows.zarr", target="z", progress=lambda event: read.append(event.rows)
        )
    assert 0 < sum(read) < 200_000


def test_a_label_with_a_nul_character_is_refused(tmp_path):
    # numpy takes "a" and "a\0" for one text
    pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": ["a", "a\0", "b"]}).to_parquet(tmp_path / "rows.parquet")
    assert "target 'y' holds a NUL character in the label 'a\\x00'" in refusal(tmp_path / "rows.parquet")
