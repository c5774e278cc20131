"""Delimiters, decimal marks and encodings of CSV files are found, or named with the option that says them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import learn_encoding

N = 90
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "größe": np.round(RNG.normal(size=N) * 50, 2),
        "ort": np.array(["Köln", "Genève", "Łódź", "a; b, c"], object)[RNG.integers(0, 4, N)],
        "nr": RNG.integers(0, 9, N),
        "y": RNG.integers(0, 2, N),
    }
)
QUIET = {"shuffle": False, "progress": False}


def reference(frame: pd.DataFrame = FRAME) -> np.ndarray:
    return np.asarray(learn_encoding([frame.drop(columns="y")]).transform(frame.drop(columns="y")))


DIALECTS = [
    (",", ".", "utf-8-sig"),
    (",", ",", "utf-16"),
    (";", ",", "utf-8"),
    (";", ".", "utf-16"),
    ("\t", ",", "utf-8-sig"),
    ("|", ".", "utf-8"),
]


@pytest.mark.parametrize(("delimiter", "decimal", "encoding"), DIALECTS)
def test_the_delimiter_and_the_encoding_are_found_and_said(
    tmp_path: Path, delimiter: str, decimal: str, encoding: str
) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False, sep=delimiter, decimal=decimal, encoding=encoding)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference())
    said = str(ds.describe())
    words = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
    assert all(f"between {word}" in said for sign, word in words.items() if sign == delimiter)
    assert (f"in {encoding.upper()}" in said) == encoding.startswith("utf-16")
    assert [rule.name for rule in ds.encoding.rules] == ["größe", "ort", "nr"]


@pytest.mark.parametrize(("encoding", "packed"), [("latin-1", False), ("cp1252", True), ("iso-8859-2", False)])
def test_letters_of_one_byte_are_named_and_can_be_said(tmp_path: Path, encoding: str, packed: bool) -> None:
    frame = FRAME.replace({"ort": {"Łódź": "Málaga", "Genève": "Lüdenscheid" if "2" in encoding else "Genève"}})
    text = frame.to_csv(index=False, sep=";").encode(encoding)
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    with pytest.raises(ValueError, match=r"rows.csv.*not UTF-8 text.*encoding='cp1252'"):
        dkl.ingest(path, tmp_path / "rows.zarr", target="y", **QUIET)
    ds = dkl.ingest(path, tmp_path / "rows.zarr", target="y", format=CsvFormat(encoding=encoding), **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference(frame))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a\n1\n2\n", 1),
        ("a,b\n1,2\n", 2),
        ("a;b\n1,5;2,5\n3,5;1,5\n", 2),
        ('a|b\n"x|y"|2\n"z"|3\n', 2),
        ('a;b\n"x\ny;z";2\n"w";3\n', 2),
        ("a\tb\n1, 2\t3\n4, 5\t6\n", 2),
        ("a;b;\n1;2;\n3;4;\n", 2),
        (";a;b\n0;1;2\n1;3;4\n", 2),
        ('"","a","b"\n"1",3,4\n"2",5,6\n', 2),
    ],
)
def test_the_first_lines_tell_the_columns(tmp_path: Path, text: str, columns: int) -> None:
    (tmp_path / "rows.csv").write_text(text)
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **QUIET)
    assert len(ds.encoding.rules) == columns


def test_a_column_without_a_name_is_left_out_aloud_and_can_be_left_out_by_its_name(tmp_path: Path) -> None:
    """As `to_csv` of pandas writes the row index: a frame has no such column."""
    FRAME.to_csv(tmp_path / "rows.csv")
    for drop in ((), [""]):
        ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", drop=drop, overwrite=True, **QUIET)
        np.testing.assert_array_equal(ds.X.compute(), reference())
        assert "a column without a name is left out" in str(ds.describe())


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("first", ["", "\n\n"])
def test_carriage_returns_alone_end_lines_as_old_programs_write_them(tmp_path: Path, first: str, quoted: bool) -> None:
    text = first + FRAME.to_csv(index=False, sep=";", quoting=1 if quoted else 0)
    (tmp_path / "rows.csv").write_bytes(text.replace("\n", "\r").encode())
    ds = dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference())


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_header_line_among_the_rows_is_found_whatever_ends_lines(tmp_path: Path, end: str) -> None:
    text = FRAME.drop(columns="ort").to_csv(index=False)
    (tmp_path / "rows.csv").write_bytes((2 * text).replace("\n", end).encode())
    with pytest.raises(ValueError, match=rf"row {N + 1} after the header, is the header line once more"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", **QUIET)


@pytest.mark.parametrize(("suffix", "codec"), [("zst", "zstd"), ("lz4", "lz4"), ("gz", "gzip"), ("bz2", "bz2")])
def test_compressed_text_is_read_and_damage_is_named(tmp_path: Path, suffix: str, codec: str) -> None:
    path = tmp_path / f"rows.csv.{suffix}"
    with pa.CompressedOutputStream(str(path), codec) as packed:
        packed.write(FRAME.to_csv(index=False).encode())
    ds = dkl.ingest(path, tmp_path / "rows.zarr", target="y", **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference())
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], FRAME.to_csv(index=False).encode()):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"rows.csv.{suffix}' is not whole {codec} data.* without '.{suffix}'"):
            dkl.ingest(path, tmp_path / "rows.zarr", target="y", overwrite=True, **QUIET)


def test_files_of_two_delimiters_go_together(tmp_path: Path) -> None:
    FRAME[:40].to_csv(tmp_path / "a.csv", index=False)
    FRAME[40:].to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-16")
    ds = dkl.ingest(tmp_path / "?.csv", tmp_path / "rows.zarr", target="y", **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference())


def shell(*arguments: object) -> dict[str, Any]:
    said = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert said.exit_code == 0, said.output
    return json.loads(said.stdout)


def test_the_shell_says_all_of_it(tmp_path: Path) -> None:
    frame = FRAME.replace({"ort": {"Łódź": "Málaga"}}).astype(object)
    frame.iloc[5, 0] = None
    text = frame.to_csv(index=False, sep="~", decimal=",", na_rep="k.A.")
    (tmp_path / "rows.txt").write_bytes(text.encode("cp1252"))
    options = ("--delimiter", "~", "--decimal", ",", "--na", "k.A.", "--encoding", "cp1252")
    shell(
        "ingest",
        tmp_path / "rows.txt",
        tmp_path / "rows.zarr",
        "--target",
        "y",
        "--split",
        "",
        "--no-shuffle",
        *options,
    )
    ds = dkl.open_dataset(tmp_path / "rows.zarr")
    assert ds.encoding.rules[0].missing == 1
    expected = learn_encoding([frame.drop(columns="y").astype({"größe": float, "nr": int})])
    np.testing.assert_array_equal(
        ds.X.compute(), expected.transform(frame.drop(columns="y").astype({"größe": float, "nr": int}))
    )
    dkl.KernelClassifier("random", n_features=20, random_state=0).fit(ds).save(tmp_path / "model.zarr")
    shell("predict", tmp_path / "model.zarr", tmp_path / "rows.txt", tmp_path / "answers.csv", *options)
    assert len(pd.read_csv(tmp_path / "answers.csv")) == N


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delimiter", ";;"], "one ASCII character"),
        (["--encoding", "klingon"], "Python does not know"),
        (["--decimal", "!"], "'!' is not one of"),
        (["--delimiter", ";", "--format", "parquet"], "is for CSV files"),
        (["--na", "x", "--n-columns", "3"], "are for libsvm text"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    said = CliRunner().invoke(app, ["ingest", str(tmp_path / "rows.csv"), str(tmp_path / "r.zarr"), *options])
    assert said.exit_code == 2
    assert message in " ".join(said.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": "!"}, "decimal is '!'; expected '.' or ','"),
        ({"encoding": "klingon"}, "encoding is 'klingon', which Python does not know"),
        ({"null_values": "x"}, "expected texts in a list"),
    ],
)
def test_wrong_formats_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        CsvFormat(**options)


def test_bytes_that_are_no_text_in_the_encoding_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("a;b\n1;x\n2;y\n".encode("utf-16") + b"\x00\xd8\x00")
    with pytest.raises(ValueError, match=r"rows.csv', about line 4: the bytes .* are no text in utf-16"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", **QUIET)


@pytest.mark.parametrize("place", [1, 45])
def test_a_header_line_inside_a_file_is_named_with_its_row_and_what_to_do(tmp_path: Path, place: int) -> None:
    lines = FRAME.to_csv(index=False).splitlines()
    (tmp_path / "rows.csv").write_text("\n".join([*lines[:place], lines[0], *lines[place:]]) + "\n")
    with pytest.raises(
        ValueError, match=rf"rows.csv', row {place} after the header, is the header line once more.*remove"
    ):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="y", **QUIET)


def test_parts_without_rows_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    FRAME.to_csv(folder / "part-0.csv", index=False)
    FRAME[:0].to_csv(folder / "part-1.csv", index=False)
    (folder / "part-2.csv").write_text("")
    (folder / "_SUCCESS").write_text("")
    ds = dkl.ingest(folder, tmp_path / "rows.zarr", target="y", **QUIET)
    np.testing.assert_array_equal(ds.X.compute(), reference())
