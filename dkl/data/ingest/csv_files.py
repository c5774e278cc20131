"""Reading delimited text files in parallel, a few megabytes at a time, into tables of a given schema."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dkl.data.checks import reads_as_number, repeated
from dkl.data.columns.first_rows import FirstRows, is_zero_padded
from dkl.data.columns.numbers import Mark
from dkl.data.in_threads import in_order
from dkl.data.ingest.columns import plain_type, why_inexact
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.precision import EXACT
from dkl.data.ingest.quoted_text import LONGEST_TEXT, QuotedText, QuoteRules
from dkl.data.ingest.tables import MistypedColumnsError, NoRowsError, Probe
from dkl.data.ingest.text_chunks import text_chunks

_PROBE_BYTES = 2**20
# Bytes at the beginning of a file from which its encoding and delimiter are detected.
_FIRST_BYTES = 2**16
# The delimiters that are detected, the preferred ones first.
_DELIMITERS = (",", ";", "\t", "|")
_DELIMITER_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_BLANK_LINES = re.compile(rb"\A(?:[ ]*(?:\r\n|\r|\n))*(?:[ ]*\Z)?")
# Texts that mean "missing": those of Arrow, and that of PostgreSQL and MySQL.
NULL_VALUES = (*pyarrow.csv.ConvertOptions().null_values, r"\N")


@dataclass(frozen=True)
class CsvFormat:
    """The syntax of delimited text, and the bytes of it that are parsed at a time.

    Parameters
    ----------
    delimiter : str or None
        None detects it: the one of comma, semicolon, tab and vertical bar that cuts all first lines into as many values
        as the header.
    column_names : sequence of str or None
        The names of the columns if the files have no header line.
    null_values : sequence of str
        Texts that mean "missing": the empty one, ``"NA"``, ``"NaN"``, ``"null"`` and their like.
    chunk_bytes, threads : int
        Bytes of text that one thread parses at a time; at most one chunk more than `threads` is in memory.
    longest_text : int
        Largest size, in bytes, of a quoted value with line ends; a longer one is an error, since it is probably an
        unclosed quote that makes the following rows one value.
    decimal : {".", ","} or None
        The decimal mark of numbers; the other one is the thousands mark. None uses the marks of most values of each
        column; an ambiguous comma is a decimal mark if semicolons separate the values, else a thousands mark.
    encoding : str or None
        Python's name for it: "utf-8", "latin-1", "cp1252". None is UTF-8, or UTF-16 if the text begins like that.

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
    decimal: Mark | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal is {self.decimal!r}; expected '.' or ','")
        if self.encoding is not None:
            _checked_encoding(self.encoding)
        if isinstance(self.null_values, str):
            raise TypeError(f"null_values is the text {self.null_values!r}; expected texts in a list")
        if self.delimiter is not None and not (len(self.delimiter) == 1 and self.delimiter.isascii()):
            raise ValueError(f"delimiter is {self.delimiter!r}; expected one ASCII character, such as ';' or '\\t'")

    def probe(self, file: InputFile) -> Probe:
        """The columns of a file with the types of its first megabyte, and an estimate of its size as a table.

        Raises
        ------
        ValueError
            If the header consists of numbers, or lines have different numbers of values.
        NoRowsError
            If there are no rows below the header.
        """
        dialect = self._dialect(file)
        with self._opened(file, dialect) as stream:
            names, chunks = self._header_and_rows(file, stream, _PROBE_BYTES, dialect)
            text = next(chunks, b"")
        if self.column_names is None and names and all(reads_as_number(name) for name in names):
            raise ValueError(
                f"the first line of '{file.name}' holds only numbers ({', '.join(names[:5])}, ...), not names; for "
                "files without a header line pass format=dkl.CsvFormat(column_names=[...])"
            )
        if not text:
            raise NoRowsError(f"'{file.name}' has a header line and no rows")
        try:
            table = self._parse(text, names, None, dialect)
            written = self._parse(text, names, pa.schema([(name, pa.string()) for name in names]), dialect)
        except pa.ArrowInvalid as error:
            raise ValueError(_explained(str(error), file, 0, names)) from error
        # a column without a name is the row index of a data frame, or comes from a delimiter at the end of all lines
        unnamed = [place for place, name in enumerate(names) if not name]
        left_out = [place for place in unnamed if place == 0 or pa.types.is_null(table.column(place).type)]
        kept = [place for place in range(len(names)) if place not in left_out]
        if repeated(names[place] for place in kept):
            # the check of names over all files will refuse it
            return Probe(file, table.select(kept).schema, 0)
        found = FirstRows(table.select(kept), written.select(kept))
        commas = self.decimal is None and dialect.delimiter == ";" and found.has_decimal_commas
        # a point before three digits is a thousands mark where others are decimal commas
        grouped = found.ambiguous_columns() if commas or self.decimal == "," else []
        schema = found.schema(as_text=(*found.with_leading_zeros, *grouped))
        # numbers are staged in `plain_type`, not in the type that the parser chose
        plain_types = [plain_type(dtype) for dtype in schema.types]
        plain_bytes = [
            len(column) * (dtype.bit_width // 8) if pa.types.is_floating(dtype) else column.nbytes
            for column, dtype in zip(table.select(kept).columns, plain_types, strict=True)
        ]
        return Probe(
            file,
            schema,
            int(sum(plain_bytes) / len(text) * file.unpacked_size),
            ("",) if left_out else (),
            two_spellings=found.two_spellings,
            default="," if commas else ";" if dialect.delimiter == ";" else ".",
            dialect=dialect.description(file, self, bool(left_out)),
        )

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables in the order of the file, and the number of the file's bytes that each covers.

        Raises
        ------
        MistypedColumnsError
            If columns contain values of another type than their first rows, so that they must be read as texts.
        """
        dialect = self._dialect(file)
        with self._opened(file, dialect) as stream, ThreadPoolExecutor(self.threads) as pool:
            # progress counts the bytes of the compressed file
            names, chunks = self._header_and_rows(file, stream, self.chunk_bytes, dialect)
            packed = file.size / file.unpacked_size
            typed = [field.name for field in schema if field.type != pa.string()]
            # the header in the middle of a file shows that files were joined; one of a single name may be a value
            is_checked = self.column_names is None and len(names) > 1
            header = dialect.delimiter.join(names).encode() if is_checked else None

            def parse(chunk: bytes) -> tuple[pa.Table, int]:
                if header is not None and (place := _line_of(chunk, header)) is not None:
                    row = self._parse(chunk[:place], names, None, dialect).num_rows if place else 0
                    raise _ChunkError(lambda before: ValueError(f"{_place(file, before + row)}{_HEADER_REPEATED}"))
                try:
                    table = self._parse(chunk, names, schema, dialect)
                except pa.ArrowInvalid as error:
                    mistyped, text = tuple(self._mistyped(error, chunk, names, schema, dialect)), str(error)
                    kind = partial(MistypedColumnsError, names=mistyped) if mistyped else ValueError
                    raise _ChunkError(lambda before: kind(_explained(text, file, before, names))) from error
                if zeros := self._with_leading_zeros(chunk, names, typed, dialect):
                    raise _ChunkError(lambda before: _as_texts(zeros, file, before))
                if inexact := self._inexact(chunk, names, table, dialect):
                    name, value, row_of_it = inexact
                    place_of_it = f"after the header of '{file.name}'"
                    raise _ChunkError(
                        lambda before: ValueError(
                            why_inexact(name, value, f"in row {before + row_of_it + 1} {place_of_it}")
                        )
                    )
                return table, int(len(chunk) * packed)

            rows = 0
            try:
                for table, n_bytes in in_order(pool, parse, chunks, self.threads + 1):
                    rows += table.num_rows
                    yield table, n_bytes
            except _ChunkError as fault:
                raise fault.after(rows) from fault.__cause__

    def _dialect(self, file: InputFile) -> _Dialect:
        """The delimiter and the encoding of a file: the chosen ones, else as detected."""
        with file.open() as stream:
            start = _first_bytes(stream)
        is_utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = _checked_encoding(self.encoding) if self.encoding is not None else "utf-16" if is_utf16 else ""
        text = start.decode(encoding or "utf-8", errors="replace").lstrip("\ufeff")
        is_whole = len(start) < _FIRST_BYTES
        default = "\t" if file.suffix == ".tsv" else ","
        delimiter = self.delimiter or _delimiter_of(text, default, self.column_names, is_whole=is_whole)
        return _Dialect(delimiter, encoding)

    @contextmanager
    def _opened(self, file: InputFile, dialect: _Dialect) -> Iterator[IO[bytes]]:
        """The bytes of a file, decompressed and converted to UTF-8."""
        with file.open() as stream:
            is_utf8 = dialect.encoding in ("", "utf-8", "ascii", "utf-8-sig")
            other: Any = stream if is_utf8 else _Transcoded(stream, dialect.encoding, file.name)
            yield other

    def _with_leading_zeros(
        self, chunk: bytes, names: Sequence[str], typed: Sequence[str], dialect: _Dialect
    ) -> dict[str, tuple[int, str]]:
        """The columns of numbers with leading zeros, such as 0123, each with the row and the text of the first one."""
        ends = re.escape(dialect.delimiter.encode()) + rb'\r\n"'
        if not typed or not re.search(rb"(?:\A|[%b])[ +-]{0,2}0[0-9]+ ?(?:[%b]|\Z)" % (ends, ends), chunk):
            return {}
        written = self._parse(chunk, names, pa.schema([(name, pa.string()) for name in typed]), dialect)
        found = {}
        for name in typed:
            texts = written.column(name).combine_chunks()
            if len(rows := np.flatnonzero(is_zero_padded(texts))):
                found[name] = int(rows[0]), texts[int(rows[0])].as_py()
        return found

    def _mistyped(
        self, error: pa.ArrowInvalid, chunk: bytes, names: Sequence[str], schema: pa.Schema, dialect: _Dialect
    ) -> list[str]:
        """The names of all columns of a chunk in which a value does not have the column's type in `schema`.

        The parser's error names the first one only, so that the chunk is parsed again, with it as texts, for the next.
        """
        message, found = str(error), list[str]()
        while (name := _unconverted(message, names)) is not None:
            found.append(name)
            schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
            try:
                self._parse(chunk, names, schema, dialect)
                break
            except pa.ArrowInvalid as further:
                message = str(further)
        return found

    def _inexact(
        self, text: bytes, names: Sequence[str], table: pa.Table, dialect: _Dialect
    ) -> tuple[str, int, int] | None:
        """Column, value and row of a whole number that `table` holds rounded, as float64; None without any."""
        large = []
        for name in table.column_names:
            # the smallest whole number that is rounded, 2**53 + 1, becomes 2**53
            extremes = pc.min_max(table.column(name)) if pa.types.is_floating(table.column(name).type) else None
            if extremes is not None and max(-(extremes["min"].as_py() or 0.0), extremes["max"].as_py() or 0.0) >= EXACT:
                large.append(name)
        if not large:
            return None
        # the parser has rounded the numbers, so that these columns are parsed again as texts
        written = self._parse(text, names, pa.schema([(name, pa.string()) for name in large]), dialect)
        for name in large:
            # whole numbers have at least 16 digits and no other character; fractions may be rounded
            whole = pc.fill_null(pc.match_substring_regex(written.column(name), r"^[+-]?[0-9]{16,}$"), False)
            for row in np.flatnonzero(whole.to_numpy()).tolist():
                value = int(written.column(name)[row].as_py())
                if int(float(value)) != value:
                    return name, value, row
        return None

    def _header_and_rows(
        self, file: InputFile, stream: IO[bytes], chunk_bytes: int, dialect: _Dialect
    ) -> tuple[list[str], Iterator[bytes]]:
        """The names of the columns, and the text of the rows in chunks of whole rows, none of them empty."""
        # a line end within quotes does not end a row
        rules = QuoteRules(dialect.delimiter.encode(), self.longest_text)
        chunks = text_chunks(stream, chunk_bytes, name=file.name, quotes=rules)
        first = next(chunks, b"")
        # lines of blanks before the header are skipped like empty ones
        while first and not (first := _BLANK_LINES.sub(b"", first, count=1)):
            first = next(chunks, b"")
        if not first:
            raise ValueError(f"'{file.name}' is empty: all of its lines are blank; leave it out or write it again")
        if self.column_names is not None:
            names, start = list(self.column_names), 0
        else:
            start = QuotedText(first, rules).first_row_end() or len(first)
            names = self._header(file, first[:start], dialect)
        return names, (chunk for chunk in chain([first[start:]], chunks) if chunk.strip(b"\r\n"))

    def _header(self, file: InputFile, line: bytes, dialect: _Dialect) -> list[str]:
        try:
            # Arrow's error would name neither the file nor a remedy
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"the header of '{file.name}' holds a byte that is not UTF-8 text, {line[error.start]:#04x} after "
                f"{line[: error.start].decode()[-20:]!r}; {_OTHER_ENCODING}"
            ) from error
        return self._parse(line, None, None, dialect).column_names

    def _parse(self, text: bytes, names: Sequence[str] | None, schema: pa.Schema | None, dialect: _Dialect) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            # errors contain row numbers only with one thread and one block; parallelism comes from concurrent calls
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=schema,
                include_columns=None if schema is None else schema.names,
                null_values=list(self.null_values),
                strings_can_be_null=True,
            ),
        )


_OTHER_ENCODING = (
    "save the file as UTF-8 (iconv -f latin1 -t utf-8), or say what it is written in: encoding='cp1252' (Windows) or "
    "encoding='latin-1', arguments of dkl.CsvFormat"
)


@dataclass(frozen=True)
class _Dialect:
    """The delimiter and the encoding of one file.

    Parameters
    ----------
    delimiter : str
    encoding : str
        Empty for UTF-8.
    """

    delimiter: str
    encoding: str

    def description(self, file: InputFile, chosen: CsvFormat, has_unnamed: bool) -> str:
        """The delimiter and encoding, unless usual or the user's, and that a column without a name is left out."""
        parts = []
        if chosen.delimiter is None and self.delimiter != ("\t" if file.suffix == ".tsv" else ","):
            parts.append(f"values between {_DELIMITER_NAMES.get(self.delimiter, repr(self.delimiter))}")
        if chosen.encoding is None and self.encoding:
            parts.append(f"in {self.encoding.upper()}")
        if has_unnamed:
            parts.append(
                "a column without a name is left out, as row numbers and a delimiter at the end of all lines make it"
            )
        return ", ".join(parts)


def _checked_encoding(name: str) -> str:
    """A name of an encoding that Python knows.

    Raises
    ------
    ValueError
    """
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise ValueError(
            f"encoding is {name!r}, which Python does not know; expected such as 'utf-8', 'utf-16', 'latin-1', "
            "'cp1252' (Windows)"
        ) from None


class _Transcoded(io.RawIOBase):
    """A stream of bytes as UTF-8.

    Parameters
    ----------
    stream : binary stream
    encoding : str
    name : str
        The file, for messages.
    """

    def __init__(self, stream: IO[bytes], encoding: str, name: str) -> None:
        self._stream, self._encoding, self._name = stream, encoding, name
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._lines = 1

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, as UTF-8; empty at the end."""
        while True:
            data = self._stream.read(size)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"'{self._name}', about line {self._lines}: the bytes "
                    f"{error.object[error.start : error.end].hex(' ')} "
                    f"are no text in {self._encoding}: {error.reason}; say another encoding, or save the file as UTF-8"
                ) from error
            self._lines += text.count("\n")
            if text or not data:
                return text.encode()


def _delimiter_of(text: str, default: str, names: Sequence[str] | None = None, *, is_whole: bool) -> str:
    """The delimiter that cuts all first lines of a text into as many values as its header, and into the most values.

    Parameters
    ----------
    text : str
        The first lines.
    default : str
        The result if no delimiter does: rows have one column, or different lengths, which are refused later.
    names : sequence of str or None
        The names of the columns if the text has no header.
    is_whole : bool
        Whether `text` is the whole text, so that its last line is complete.
    """
    best, most = default, 1
    for delimiter in dict.fromkeys((default, *_DELIMITERS)):
        try:
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
        except csv.Error:
            # a value is longer than the csv module's limit
            continue
        if not is_whole and len(rows) > 1:
            rows = rows[:-1]
        width = len(rows[0]) if rows and names is None else len(names or ())
        if width > most and all(len(row) == width for row in rows):
            best, most = delimiter, width
    return best


def _first_bytes(stream: IO[bytes]) -> bytes:
    """The first `_FIRST_BYTES` bytes of a stream, or all if there are fewer."""
    start = b""
    while len(start) < _FIRST_BYTES and (data := stream.read(_FIRST_BYTES - len(start))):
        start += data
    return start


def _line_of(chunk: bytes, line: bytes) -> int | None:
    """The position in a chunk of the first line that equals `line`; None without any."""
    # old Macintosh files have only carriage returns
    starts = (0, *(chunk.find(end + line) + 1 for end in (b"\n", b"\r")))
    ends = b"", b"\n", b"\r"
    places = [at for at in starts if chunk.startswith(line, at) and chunk[at + len(line) :][:1] in ends]
    return min(places, default=None)


class _ChunkError(Exception):
    """An error in a chunk, raised by a thread that does not know the number of rows before the chunk.

    Parameters
    ----------
    after : callable
        Makes the error from the number of rows before the chunk.
    """

    def __init__(self, after: Callable[[int], Exception]) -> None:
        super().__init__()
        self.after = after


_HEADER_REPEATED = ", is the header line once more, as where files were joined; remove the line"


def _place(file: InputFile, row: int) -> str:
    """The name of a row of a file, counted from 0, in messages."""
    return f"'{file.name}', row {row + 1} after the header"


def _as_texts(mistyped: Mapping[str, tuple[int, str]], file: InputFile, rows_before: int) -> MistypedColumnsError:
    """The error that has columns read as texts, with a message for callers that cannot do so."""
    name, (row, text) = min(mistyped.items(), key=lambda item: item[1][0])
    return MistypedColumnsError(
        f"{_place(file, rows_before + row)}: {_of_another_type(name, repr(text))}", tuple(mistyped)
    )


def _unconverted(text: str, names: Sequence[str]) -> str | None:
    """The column of a value that is not of its type, by a message of the parser; None for other faults."""
    column = re.search(r"CSV column #(\d+)", text)
    return None if column is None or "UTF8" in text else names[int(column[1])]


def _of_another_type(name: str, value: str) -> str:
    """The message for a value that is not of the type of its column's first rows."""
    return (
        f"column '{name}' holds {value}, and other rows hold another type; correct it, add the text to "
        f"format=CsvFormat(null_values=...) if it means missing, take the values as names (categorical=['{name}']), or "
        f"leave it out (drop=['{name}'])"
    )


def _explained(text: str, file: InputFile, rows_before: int, names: Sequence[str]) -> str:
    """A message of the parser with the file, the row in the file, the column's name and a remedy."""
    numbered = re.search(r"Row #(\d+): ", text)
    row = f", row {rows_before + int(numbered[1])} after the header" if numbered else ""
    place = f"'{file.name}'{row}"
    # Arrow's message is parsed, as it has the number of a column and not its name
    if (ragged := re.search(r"Expected (\d+) columns, got (\d+)", text)) and len(names) == 1:
        return (
            f"{place}: found {ragged[2]} columns, and the first line, {names[0]!r}, names one; it holds the "
            "names of the columns: remove what stands before them"
        )
    if ragged:
        return (
            f"{place}: expected {ragged[1]} columns and found {ragged[2]}; every line needs as many values as the "
            f"first (is the delimiter right, are texts with delimiters quoted, is it a note or a total at the end?)"
        )
    if (name := _unconverted(text, names)) is not None:
        # a value is not of the type that the first megabyte suggested
        return f"{place}: {_of_another_type(name, text.split('invalid value ')[-1])}"
    if column := re.search(r"CSV column #(\d+)", text):
        name = names[int(column[1])]
        return (
            f"{place}: column '{name}' holds bytes that are not UTF-8 text; {_OTHER_ENCODING}; or leave the column out "
            f"(drop=['{name}'])"
        )
    return f"{place}: {text}"
