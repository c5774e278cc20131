"""Cutting text streams at line ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from dkl.data.ingest.quoted_text import QuotedText, QuoteRules

LONGEST_LINE = 64 * 2**20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What a file begins with that is no text, and what to do with it.
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
    """The text of a stream in pieces of about `chunk_bytes` that end with a row.

    A byte order mark at the beginning is left out, and so are blank lines there when values may be quoted.

    Parameters
    ----------
    name : str
        The file, for messages.
    quotes : QuoteRules or None
        Given them, a line end between quotes does not end a row; else a row is a line.

    Raises
    ------
    ValueError
        The stream holds no text, a NUL byte, a quoted value without an end or beyond the rules, or no row ends within
        `LONGEST_LINE` bytes; the message has the file and the line.
    """
    rest, line, at_start = b"", 1, True
    # The first piece is long enough to tell what kind of file this is.
    while data := stream.read(max(chunk_bytes, 16) if at_start else chunk_bytes):
        # No text has one; what follows would be cut off by whoever takes it for the end of a text.
        if b"\0" in data:
            _check_kind(rest + data, name)
            raise ValueError(
                f"'{name}', line {line + _line_ends(rest + data[: data.index(0)])}: there is a NUL byte, which no text "
                "holds; is this a text file, and was it written to its end? Save it as UTF-8 text without NUL bytes"
            )
        data = rest + data
        if at_start:
            _check_kind(data, name)
            # The mark would become a part of the first column's name.
            text = data.removeprefix(_BYTE_ORDER_MARK)
            text = text if quotes is None else text.lstrip(b"\r\n")
            line += _line_ends(data[: len(data) - len(text)])
            data, at_start = text, not text
        if quotes is None:
            # What comes after the last line end waits for the next piece.
            end = data.rfind(b"\n") + 1
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
    """Refuse data that begins as a known kind of file does which is no text."""
    for beginning, kind in _OTHER_KINDS.items():
        if data.startswith(beginning):
            raise ValueError(f"'{name}' begins as no text does: it is {kind}")


def _checked(data: bytes, name: str, line: int, quotes: QuoteRules, *, at_end: bool) -> QuotedText:
    """The quoted text, unless a value in it cannot be meant: then the error names the line where it begins."""
    text = QuotedText(data, quotes)
    fault = text.fault(at_end=at_end)
    if fault is not None:
        place, what = fault
        raise ValueError(f"'{name}', line {line + _line_ends(data[:place])}: {what}")
    return text


def _line_ends(data: bytes) -> int:
    """Line ends as an editor counts them."""
    # Old Macintosh files end their lines with a carriage return alone.
    return data.count(b"\n") or data.count(b"\r")
