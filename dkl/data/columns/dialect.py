"""Detects the encoding and the delimiter of delimited text from its first lines."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from typing import IO

DELIMITERS = (",", ";", "\t", "|")
"""The delimiters that are detected, the preferred ones first."""
DELIMITER_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}


def encoding_of(start: bytes) -> str:
    """The encoding of a text: UTF-16 if it begins with that byte order mark; empty for UTF-8, which others count as."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""


def checked_encoding(name: str) -> str:
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


class Transcoded(io.RawIOBase):
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


def delimiter_of(text: str, default: str, names: Sequence[str] | None = None, *, is_whole: bool) -> str:
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
    for delimiter in dict.fromkeys((default, *DELIMITERS)):
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
