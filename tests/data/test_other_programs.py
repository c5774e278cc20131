"""Files as other programs write them give the columns of the data frame that they hold."""

from __future__ import annotations

import csv
import gzip
import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import TableEncoding, learn_encoding

N = 120
RNG = np.random.default_rng(0)
AMOUNT = np.round(RNG.normal(size=N) * 900, 2)
AMOUNT[17] = np.nan
CITIES = np.array(["Köln", "St. Gallen", 'the "Hague"', "Lisboa; PT", "Paris, TX"], object)
FRAME = pd.DataFrame(
    {
        "amount": AMOUNT,
        "count": RNG.integers(0, 40, N),
        "city": CITIES[RNG.integers(0, 5, N)],
        "day": pd.date_range("2023-12-28", periods=N, freq="3D"),
        "at": pd.date_range("2024-03-01 05:30", periods=N, freq="7h", tz="UTC"),
        "paid": RNG.integers(0, 2, N) == 1,
        "y": RNG.normal(size=N),
    }
)
REFERENCE = learn_encoding([FRAME.drop(columns="y")])


@dataclass(frozen=True)
class Text:
    """How a program writes a table as text.

    Parameters
    ----------
    quotes : {"needed", "texts", "texts and dates"}
    day, at : str
        Formats of dates and of points in time.
    index : str
        The header of the column of row numbers that comes first; "none" where there is none.
    """

    delimiter: str = ","
    decimal: str = "."
    missing: str = ""
    quotes: str = "needed"
    day: str = "%Y-%m-%d"
    at: str = "%Y-%m-%d %H:%M:%S+00:00"
    truths: tuple[str, str] = ("true", "false")
    encoding: str = "utf-8"
    end: str = "\n"
    index: str = "none"
    amount: str = "{:.2f}"
    thousands: str = ""
    escape_backslash: bool = False

    def number(self, value: float) -> str:
        if np.isnan(value):
            return self.missing
        text = self.amount.format(value) if "{:" in self.amount else repr(float(value))
        return text.replace(",", "\0").replace(".", self.decimal).replace("\0", self.thousands)

    def rows(self, frame: pd.DataFrame) -> list[list[tuple[str, str]]]:
        """The values of each row as texts, with their kinds."""
        found = []
        for number, row in enumerate(frame.itertuples(index=False), 1):
            values = [(str(number), "text")] if self.index != "none" else []
            values += [
                (self.number(row.amount), "number"),
                (str(row.count_), "number"),
                (row.city, "text"),
                (row.day.strftime(self.day), "date"),
                (row.at.strftime(self.at), "date"),
                (self.truths[0] if row.paid else self.truths[1], "truth"),
                (repr(float(row.y)).replace(".", self.decimal), "number"),
            ]
            found.append(values)
        return found

    def cell(self, value: str, kind: str) -> str:
        needs = any(sign in value for sign in (self.delimiter, '"', "\n"))
        quoted = {
            "needed": needs,
            "texts": kind == "text" or needs,
            "texts and dates": kind in ("text", "date") or needs,
        }
        if value == self.missing and kind != "text":
            return value
        return '"' + value.replace('"', '""') + '"' if quoted[self.quotes] else value

    def bytes(self, frame: pd.DataFrame = FRAME, header: bool = True) -> bytes:
        names = [*([self.index] if self.index != "none" else []), *frame.columns]
        lines = [self.delimiter.join(self.cell(name, "text") for name in names)] if header else []
        for row in self.rows(frame.rename(columns={"count": "count_"})):
            lines.append(self.delimiter.join(self.cell(value, kind) for value, kind in row))
        return self.end.join([*lines, ""]).encode(self.encoding)


R = {"missing": "NA", "quotes": "texts", "truths": ("TRUE", "FALSE")}
EXCEL_GERMAN = {"delimiter": ";", "decimal": ",", "day": "%d.%m.%Y", "end": "\r\n", "truths": ("WAHR", "FALSCH")}
TEXTS: dict[str, Text] = {
    "R, write.csv": Text(**R, index="", amount="repr"),
    "R, write.csv2": Text(**R, index="", delimiter=";", decimal=",", amount="repr"),
    "R, write.csv2 without row names": Text(**R, delimiter=";", decimal=","),
    "R, write.table": Text(**R, delimiter="\t"),
    "R, readr::write_csv": Text(missing="NA", truths=("TRUE", "FALSE"), at="%Y-%m-%dT%H:%M:%SZ"),
    "R, readr::write_csv2": Text(
        missing="NA", truths=("TRUE", "FALSE"), delimiter=";", decimal=",", at="%Y-%m-%dT%H:%M:%SZ"
    ),
    "R, readr::write_excel_csv": Text(
        missing="NA", truths=("TRUE", "FALSE"), encoding="utf-8-sig", at="%Y-%m-%dT%H:%M:%SZ"
    ),
    "R, data.table::fwrite": Text(truths=("TRUE", "FALSE"), at="%Y-%m-%dT%H:%M:%SZ"),
    "Excel, German, CSV": Text(**EXCEL_GERMAN, encoding="cp1252"),
    "Excel, German, CSV UTF-8": Text(**EXCEL_GERMAN, encoding="utf-8-sig"),
    "Excel, German, thousands": Text(**EXCEL_GERMAN, encoding="utf-8-sig", amount="{:,.2f}", thousands="."),
    "Excel, German, Unicode text": Text(**(EXCEL_GERMAN | {"delimiter": "\t"}), encoding="utf-16"),
    "Excel, French": Text(
        **(EXCEL_GERMAN | {"day": "%d/%m/%Y", "truths": ("VRAI", "FAUX")}), amount="{:,.2f}", thousands="\u202f"
    ),
    "Excel, United States": Text(day="%m/%d/%Y", end="\r\n", truths=("TRUE", "FALSE"), amount="{:,.2f}", thousands=","),
    "Google Sheets": Text(end="\r\n", truths=("TRUE", "FALSE"), amount="${:,.2f}", thousands=","),
    "PostgreSQL, COPY as CSV": Text(truths=("t", "f"), at="%Y-%m-%d %H:%M:%S+00"),
    "PostgreSQL, COPY as text": Text(delimiter="\t", missing="\\N", truths=("t", "f"), at="%Y-%m-%d %H:%M:%S+00"),
    "DuckDB, COPY": Text(at="%Y-%m-%d %H:%M:%S+00"),
    "SQLite": Text(end="\r\n", truths=("1", "0"), at="%Y-%m-%d %H:%M:%S.000Z"),
    "MySQL, INTO OUTFILE": Text(delimiter="\t", missing="\\N", truths=("1", "0"), at="%Y-%m-%dT%H:%M:%SZ"),
    "JavaScript": Text(missing="null", at="%Y-%m-%dT%H:%M:%S.000Z"),
    "Java": Text(missing="null", at="%Y-%m-%dT%H:%M:%SZ", truths=("true", "false")),
    "Julia, CSV.jl": Text(at="%Y-%m-%dT%H:%M:%S+00:00"),
    "SAS, PROC EXPORT": Text(missing=".", truths=("1", "0"), at="%Y-%m-%dT%H:%M:%S+00:00"),
    "BigQuery": Text(at="%Y-%m-%d %H:%M:%S UTC"),
    "Snowflake": Text(at="%Y-%m-%d %H:%M:%S.000 +0000", missing="\\N"),
}


def by_spark(folder: Path) -> Path:
    """A folder of parts, each with a header, among them one without rows, beside files that are no rows."""
    out, writes = folder / "out", Text(at="%Y-%m-%dT%H:%M:%S.000Z")
    out.mkdir()
    for part, rows in enumerate((slice(0, 50), slice(50, 50), slice(50, N))):
        name = f"part-0000{part}-6f0c3f2a-c000.csv"
        (out / name).write_bytes(writes.bytes(FRAME[rows]))
        (out / f".{name}.crc").write_bytes(b"crc\x00")
    (out / "_SUCCESS").write_bytes(b"")
    return out


def by_spark_packed(folder: Path) -> Path:
    out, writes = folder / "out", Text(at="%Y-%m-%dT%H:%M:%S.000+00:00")
    out.mkdir()
    for part, rows in enumerate((slice(0, 70), slice(70, N))):
        (out / f"part-0000{part}-6f0c3f2a-c000.csv.gz").write_bytes(gzip.compress(writes.bytes(FRAME[rows])))
    (out / "_SUCCESS").write_bytes(b"")
    return out


def by_spark_parquet(folder: Path) -> Path:
    out = folder / "out"
    out.mkdir()
    for part, rows in enumerate((slice(0, 70), slice(70, 70), slice(70, N))):
        table = pa.Table.from_pandas(FRAME[rows], preserve_index=False).replace_schema_metadata()
        pq.write_table(
            table, out / f"part-0000{part}-6f0c3f2a-c000.snappy.parquet", use_deprecated_int96_timestamps=True
        )
    (out / "_SUCCESS").write_bytes(b"")
    (out / "._SUCCESS.crc").write_bytes(b"crc\x00")
    return out


def by_arrow_partitions(folder: Path) -> Path:
    table = pa.Table.from_pandas(FRAME.assign(year=FRAME["day"].dt.year), preserve_index=False)
    pyarrow.dataset.write_dataset(
        table, folder / "out", format="parquet", partitioning=["year"], partitioning_flavor="hive"
    )
    return folder / "out"


def by_pandas(suffix: str, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"rows.{suffix}"
        FRAME.to_parquet(path, **options) if suffix == "parquet" else FRAME.to_csv(path, **options)
        return path

    return write


def by_polars(suffix: str, **options: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path, frame = folder / f"rows.{suffix}", pl.from_pandas(FRAME, nan_to_null=True)
        frame.write_parquet(path, **options) if suffix == "parquet" else frame.write_csv(path, **options)
        return path

    return write


def by_arrow(folder: Path) -> Path:
    pyarrow.csv.write_csv(pa.Table.from_pandas(FRAME, preserve_index=False), folder / "rows.csv")
    return folder / "rows.csv"


def by_python(folder: Path) -> Path:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, dialect="excel-tab")
    writer.writerow(FRAME.columns)
    writer.writerows([["" if value != value else value for value in row] for row in FRAME.itertuples(index=False)])
    (folder / "rows.tsv").write_text(stream.getvalue(), newline="")
    return folder / "rows.tsv"


LIBRARIES: dict[str, Callable[[Path], Path]] = {
    "pandas": by_pandas("csv"),
    "pandas, without its index": by_pandas("csv", index=False),
    "pandas, semicolons": by_pandas("csv", index=False, sep=";", decimal=","),
    "pandas, semicolons and points": by_pandas("csv", index=False, sep=";"),
    "pandas, bars, NULL": by_pandas("csv", index=False, sep="|", na_rep="NULL"),
    "pandas, UTF-16": by_pandas("csv", index=False, encoding="utf-16"),
    "pandas, gzip": by_pandas("csv.gz", index=False),
    "pandas, all quoted": by_pandas("csv", index=False, quoting=csv.QUOTE_ALL),
    "pandas, Parquet": by_pandas("parquet"),
    "polars": by_polars("csv"),
    "polars, semicolons": by_polars("csv", separator=";", decimal_comma=True),
    "polars, NA": by_polars("csv", null_value="NA", quote_style="always"),
    "polars, Parquet": by_polars("parquet"),
    "Arrow": by_arrow,
    "Arrow, Hive partitions": by_arrow_partitions,
    "Python": by_python,
    "Spark, CSV": by_spark,
    "Spark, CSV, packed": by_spark_packed,
    "Spark, Parquet": by_spark_parquet,
}


def check(path: Path, folder: Path, zone: str = "UTC", **options: Any) -> TableEncoding:
    """Compare what ingest reads with the data frame, column by column."""
    ds = dkl.ingest(path, folder / "rows.zarr", target="y", shuffle=False, progress=False, **options)
    rules = {rule.name: rule for rule in ds.encoding.rules}
    assert ds.n_rows == N
    X, names = ds.X.compute(), ds.column_names
    expected = REFERENCE.transform(FRAME.drop(columns="y"))
    # the folders of partitions give the order of the rows, and a column of their own
    order = np.lexsort((FRAME["at"], FRAME["day"].dt.year)) if "year" in rules else np.arange(N)
    for place, name in enumerate(REFERENCE.column_names):
        kind = rules[name.partition(".")[0].partition("=")[0]].kind
        if name == "paid" and kind == "category":
            # truths in the words of another language are names
            assert len(rules["paid"].categories) == 2
            continue
        np.testing.assert_array_equal(X[:, names.index(name)], expected[order, place], err_msg=name)
    np.testing.assert_allclose(ds.y.compute(), FRAME["y"].to_numpy()[order], rtol=1e-12)
    assert rules["at"].zone == zone
    return ds.encoding


# The spelling of instants, marks of missing values and truths of each are also those of another program here, or of
# the spellings that tests/data/test_zones.py reads.
ALIKE = {"Java", "Julia, CSV.jl", "BigQuery", "Snowflake", "DuckDB, COPY", "R, data.table::fwrite"}
ALIKE |= {"R, readr::write_csv2", "R, readr::write_excel_csv", "R, write.csv2 without row names", "MySQL, INTO OUTFILE"}


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in TEXTS]
)
def test_text_of_other_programs_is_read_as_the_frame(tmp_path: Path, program: str) -> None:
    written = TEXTS[program]
    (tmp_path / "rows.csv").write_bytes(written.bytes())
    options: dict[str, Any] = {}
    if written.encoding == "cp1252":
        options["format"] = CsvFormat(encoding="cp1252")
    check(tmp_path / "rows.csv", tmp_path, **options)


@pytest.mark.parametrize("library", LIBRARIES)
def test_files_of_libraries_are_read_as_the_frame(tmp_path: Path, library: str) -> None:
    # the older type of Spark's Parquet files says no zone
    check(LIBRARIES[library](tmp_path), tmp_path, "" if library == "Spark, Parquet" else "UTC")


def test_text_without_a_header_has_its_names_given(tmp_path: Path) -> None:
    """PostgreSQL's COPY, and MySQL's OUTFILE, as they are without options."""
    writes = TEXTS["PostgreSQL, COPY as text"]
    (tmp_path / "rows.tsv").write_bytes(writes.bytes(header=False))
    check(tmp_path / "rows.tsv", tmp_path, format=CsvFormat(column_names=list(FRAME.columns)))


@pytest.mark.parametrize("program", ["R, write.csv2", "polars, Parquet"])
def test_files_of_other_programs_are_learnt_from_as_the_frame(tmp_path: Path, program: str) -> None:
    """A model of the frame, of the ingested file and of the shell, which also predicts the file, answer alike."""
    if program in TEXTS:
        path = tmp_path / "rows.csv"
        path.write_bytes(TEXTS[program].bytes())
    else:
        path = LIBRARIES[program](tmp_path)
    settings: dict[str, Any] = {"features": "random", "n_features": 8, "random_state": 0}
    # truths in the words of another language are names
    rows = FRAME.drop(columns=["paid", "y"])
    known = dkl.KernelRegressor(**settings).fit(rows, FRAME["y"])
    how: dict[str, Any] = {"target": "y", "drop": ["paid"], "shuffle": False, "progress": False}
    stored = dkl.KernelRegressor(**settings).fit(dkl.ingest(path, tmp_path / "rows.zarr", **how))
    np.testing.assert_array_equal(stored.predict(rows), known.predict(rows))
    folder = tmp_path
    for command in (
        f"ingest {path} {folder}/shell.zarr --target y --drop paid --no-shuffle --split=",
        f"fit {folder}/shell.zarr {folder}/model.zarr --set features=random --features 8",
        f"score {folder}/model.zarr {folder}/shell.zarr",
        f"predict {folder}/model.zarr {path} {folder}/out.parquet",
    ):
        said = CliRunner().invoke(app, [*shlex.split(command), "--quiet"])
        assert said.exit_code == 0, said.output
    answers = pd.read_parquet(folder / "out.parquet")["prediction"]
    np.testing.assert_array_equal(answers, known.predict(rows))
