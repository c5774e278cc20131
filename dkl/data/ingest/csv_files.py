"""Reading delimited text files in parallel, a few megabytes at a time, into tables of a given schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dkl.data.checks import reads_as_number
from dkl.data.ingest.columns import plain_type, why_inexact
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.precision import EXACT
from dkl.data.ingest.quoted_text import LONGEST_TEXT, QuotedText, QuoteRules
from dkl.data.ingest.tables import Probe
from dkl.data.ingest.text_chunks import in_order, text_chunks

_PROBE_BYTES = 2**20
NULL_VALUES = tuple(pyarrow.csv.ConvertOptions().null_values)


@dataclass(frozen=True)
class CsvFormat:
    """How delimited text is written and how much of it is parsed at a time.

    Parameters
    ----------
    delimiter : str or None
        None: a tab in ``.tsv`` files, else a comma.
    column_names : sequence of str or None
        The names of the columns when the files have no header line.
    null_values : sequence of str
        Texts that mean "missing": the empty one, ``"NA"``, ``"NaN"``, ``"null"`` and their like.
    chunk_bytes, threads : int
        Text that one thread parses at a time; up to one chunk more than threads is in memory.
    longest_text : int
        Bytes that a quoted value with line ends may have; a longer one is refused, since a quote that was left open
        takes the rows after it for one value.

    Examples
    --------
    >>> import pathlib
    >>> import tempfile
    >>> import dkl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "rows.csv")
    ...     _ = table.write_text("1.5;yes\\n?;no\\n")
    ...     form = dkl.CsvFormat(delimiter=";", column_names=["size", "sold"], null_values=["?"])
    ...     ds = dkl.ingest(table, f"{folder}/rows.zarr", target="sold", format=form)
    >>> ds.classes.tolist()
    ['no', 'yes']
    """

    delimiter: str | None = None
    column_names: Sequence[str] | None = None
    null_values: Sequence[str] = NULL_VALUES
    chunk_bytes: int = 4 * 2**20
    threads: int = 2
    longest_text: int = LONGEST_TEXT

    def __post_init__(self) -> None:
        if self.delimiter is not None and not (len(self.delimiter) == 1 and self.delimiter.isascii()):
            raise ValueError(f"delimiter is {self.delimiter!r}; expected one ASCII character, such as ';' or '\\t'")

    def probe(self, file: InputFile) -> Probe:
        """The columns of a file and the types that its first megabyte suggests."""
        with file.open() as stream:
            names, chunks = self._header_and_rows(file, stream, _PROBE_BYTES)
            text = next(chunks, b"")
        if self.column_names is None and names and all(reads_as_number(name) for name in names):
            raise ValueError(
                f"the first line of '{file.name}' holds only numbers ({', '.join(names[:5])}, ...), not names; for "
                "files without a header line pass format=dkl.CsvFormat(column_names=[...])"
            )
        if not text:
            raise ValueError(f"'{file.name}' has a header line and no rows")
        try:
            table = self._parse(file, text, names, None)
        except pa.ArrowInvalid as error:
            raise ValueError(_explained(error, file, 0, names)) from error
        # Numbers are staged in the smaller type that holds them, which is not the one that the parser chose.
        plain_types = [plain_type(column.type) for column in table.columns]
        plain_bytes = [
            len(column) * (dtype.bit_width // 8) if pa.types.is_floating(dtype) else column.nbytes
            for column, dtype in zip(table.columns, plain_types, strict=True)
        ]
        staged_bytes = sum(plain_bytes) / len(text) * file.unpacked_size
        return Probe(file, table.schema, int(staged_bytes))

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables in the order of the file, and how many bytes of the file each covers."""
        with file.open() as stream, ThreadPoolExecutor(self.threads) as pool:
            # The compressed bytes that a chunk stands for are its share of the file, which is what progress is counted
            # in.
            names, chunks = self._header_and_rows(file, stream, self.chunk_bytes)
            packed = file.size / file.unpacked_size

            def parse(chunk: bytes) -> tuple[pa.Table, int]:
                table = self._parse(file, chunk, names, schema)
                self._check_exact(file, chunk, names, table)
                return table, int(len(chunk) * packed)

            rows = 0
            try:
                for table, n_bytes in in_order(pool, parse, chunks, self.threads + 1):
                    rows += table.num_rows
                    yield table, n_bytes
            except pa.ArrowInvalid as error:
                raise ValueError(_explained(error, file, rows, names)) from error
            except _InexactNumber as error:
                name, value, row = error.args
                place = f"in row {rows + row + 1} after the header of '{file.name}'"
                raise ValueError(why_inexact(name, value, place)) from None

    def _check_exact(self, file: InputFile, text: bytes, names: Sequence[str], table: pa.Table) -> None:
        """Refuse whole numbers that the float64 numbers of `table` do not hold, as their texts show it."""
        large = []
        for name in table.column_names:
            # The first whole number that is rounded as it is read becomes 2**53 itself.
            extremes = pc.min_max(table.column(name)) if pa.types.is_floating(table.column(name).type) else None
            if extremes is not None and max(-(extremes["min"].as_py() or 0.0), extremes["max"].as_py() or 0.0) >= EXACT:
                large.append(name)
        if not large:
            return
        # The parser has rounded by now, so the texts of these columns are read once more, as texts.
        written = self._parse(file, text, names, pa.schema([(name, pa.string()) for name in large]))
        for name in large:
            # Sixteen digits or more, and nothing else: fractions may be rounded, whole numbers may not.
            whole = pc.fill_null(pc.match_substring_regex(written.column(name), r"^[+-]?[0-9]{16,}$"), False)
            for row in np.flatnonzero(whole.to_numpy()).tolist():
                value = int(written.column(name)[row].as_py())
                if int(float(value)) != value:
                    raise _InexactNumber(name, value, row)

    def _header_and_rows(
        self, file: InputFile, stream: IO[bytes], chunk_bytes: int
    ) -> tuple[list[str], Iterator[bytes]]:
        """The names of the columns, and the text of the rows in pieces of whole rows that are not empty."""
        # Chunks end where rows do, and a line end within quotes ends no row.
        rules = QuoteRules(self._delimiter(file).encode(), self.longest_text)
        chunks = text_chunks(stream, chunk_bytes, name=file.name, quotes=rules)
        first = next(chunks, b"")
        if not first:
            raise ValueError(f"'{file.name}' is empty: all of its lines are blank; leave it out or write it again")
        if self.column_names is not None:
            names, start = list(self.column_names), 0
        else:
            start = QuotedText(first, rules).first_row_end() or len(first)
            names = self._header(file, first[:start])
        return names, (chunk for chunk in chain([first[start:]], chunks) if chunk.strip(b"\r\n"))

    def _header(self, file: InputFile, line: bytes) -> list[str]:
        try:
            # Arrow would name the byte, and neither the file nor what to do about it.
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"the header of '{file.name}' holds a byte that is not UTF-8 text, {line[error.start]:#04x} after "
                f"{line[: error.start].decode()[-20:]!r}; save the file as UTF-8 (iconv -f latin1 -t utf-8)"
            ) from error
        return self._parse(file, line, None, None).column_names

    def _delimiter(self, file: InputFile) -> str:
        return self.delimiter or ("\t" if file.suffix == ".tsv" else ",")

    def _parse(self, file: InputFile, text: bytes, names: Sequence[str] | None, schema: pa.Schema | None) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            # One thread and one block a call: then rows are counted in its errors. Calls run side by side instead.
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._delimiter(file), newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=schema,
                include_columns=None if schema is None else schema.names,
                null_values=list(self.null_values),
                strings_can_be_null=True,
            ),
        )


class _InexactNumber(ValueError):
    """A whole number that float64 does not hold: (column, value, row of the chunk)."""


def _explained(error: pa.ArrowInvalid, file: InputFile, rows_before: int, names: Sequence[str]) -> str:
    """A parser's complaint with the file, the row counted from its first one, the column's name and what to do."""
    text = str(error)
    numbered = re.search(r"Row #(\d+): ", text)
    row = f", row {rows_before + int(numbered[1])} after the header" if numbered else ""
    place = f"'{file.name}'{row}"
    # Arrow's sentences are taken apart: a column number means little where there is a name.
    if ragged := re.search(r"Expected (\d+) columns, got (\d+)", text):
        return (
            f"{place}: expected {ragged[1]} columns and found {ragged[2]}; every line needs as many values as the "
            f"first (is the delimiter right, are texts with delimiters quoted?)"
        )
    column = re.search(r"CSV column #(\d+)", text)
    if column:
        name = names[int(column[1])]
        if "UTF8" in text:
            return (
                f"{place}: column '{name}' holds bytes that are not UTF-8 text; save the file as UTF-8 "
                f"(iconv -f latin1 -t utf-8), or leave the column out (drop=['{name}'])"
            )
        # The first megabyte suggested a type that a later value does not have.
        value = text.split("invalid value ")[-1]
        return (
            f"{place}: column '{name}' holds {value}, and other rows hold another type; correct it, add the text to "
            f"format=CsvFormat(null_values=...) if it means missing, take the values as names "
            f"(categorical=['{name}']), or leave it out (drop=['{name}'])"
        )
    return f"{place}: {text}"
