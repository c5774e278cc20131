"""Cuts text streams into chunks of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from dkl.data.ingest.quoted_text import QuotedText, QuoteRules

LONGEST_LINE = 64 * 2**20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The first bytes of files that are not UTF-8 text, with their format and a remedy.
_OTHER_KINDS = {
    b"\x1f\x8b": "gzip data; give the file a name that ends in .gz",
    b"PK\x03\x04": "a zip archive (or an Excel workbook); unpack it, or save its rows as CSV",
    b"\xfd7zXZ\x00": "xz data; give the file a name that ends in .xz",
    b"\x28\xb5\x2f\xfd": "zstd data; give the file a name that ends in .zst",
    b"\xff\xfe": "UTF-16 text; save the file as UTF-8",
    b"\xfe\xff": "UTF-16 text; save the file as UTF-8",
}


def text_chunks(
    stream: IO[bytes], chunk_bytes: int, *, name: str = "the text", quotes: QuoteRules | None = None
) -> Iterator[bytes]:
    """The text of a stream in chunks of about `chunk_bytes` bytes that end with a row.

    A byte order mark at the beginning is left out, and with `quotes` blank lines there, too.

    Parameters
    ----------
    stream : binary stream
    chunk_bytes : int
    name : str
        The file, for messages.
    quotes : QuoteRules or None
        The rules by which line ends within quotes do not end a row; None if each line is a row.

    Raises
    ------
    ValueError
        If the stream is not text, contains a NUL byte, an unclosed quote or a quoted value that is too long, or has no
        row end within `LONGEST_LINE` bytes; with file and line.
    """
    rest, line, at_start = b"", 1, True
    # the first chunk must contain the bytes that identify the format
    while data := stream.read(max(chunk_bytes, 16) if at_start else chunk_bytes):
        # other programs take a NUL byte for the end of a text
        if b"\0" in data:
            _check_kind(rest + data, name)
            raise ValueError(
                f"'{name}', line {line + _line_ends(rest + data[: data.index(0)])}: there is a NUL byte, which no text "
                "holds; is this a text file, and was it written to its end? Save it as UTF-8 text without NUL bytes"
            )
        data = rest + data
        if at_start:
            _check_kind(data, name)
            # the byte order mark would become a part of the first column's name
            text = data.removeprefix(_BYTE_ORDER_MARK)
            text = text if quotes is None else text.lstrip(b"\r\n")
            line += _line_ends(data[: len(data) - len(text)])
            data, at_start = text, not text
        if quotes is None:
            # what follows the last line end belongs to the next chunk; a carriage return at the end may be half of one
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        else:
            end = _checked(data, name, line, quotes, at_end=False).last_row_end()
        if not end and len(data) > LONGEST_LINE:
            raise ValueError(f"'{name}', line {line}: this line is longer than {LONGEST_LINE} bytes; is it text?")
        rest = data[end:]
        if end:
            line += _line_ends(data[:end])
            yield data[:end]
    if rest.strip(b"\r\n"):
        if quotes is not None:
            _checked(rest, name, line, quotes, at_end=True)
        yield rest


def _check_kind(data: bytes, name: str) -> None:
    """Raise ValueError for data that begin like a known format that is not UTF-8 text."""
    for beginning, kind in _OTHER_KINDS.items():
        if data.startswith(beginning):
            raise ValueError(f"'{name}' begins as no text does: it is {kind}")


def _checked(data: bytes, name: str, line: int, quotes: QuoteRules, *, at_end: bool) -> QuotedText:
    """The quoted values of the data; ValueError, with the line, for a value that is probably an unclosed quote."""
    text = QuotedText(data, quotes)
    fault = text.fault(at_end=at_end)
    if fault is not None:
        place, what = fault
        raise ValueError(f"'{name}', line {line + _line_ends(data[:place])}: {what}")
    return text


def _line_ends(data: bytes) -> int:
    """The number of line ends."""
    # old Macintosh files have only carriage returns
    return data.count(b"\n") or data.count(b"\r")
