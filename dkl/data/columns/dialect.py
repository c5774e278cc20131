"""Detects the encoding and the delimiter of delimited text from its first lines."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from typing import IO

import numpy as np

DELIMITERS = (",", ";", "\t", "|")
"""The delimiters that are detected, the preferred ones first."""
DELIMITER_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
# The line that Excel reads as the choice of a delimiter, ``sep=;``.
_SEP = re.compile(r"\s*\"?sep=(.)\"?(?:\r\n|\n|\r)", re.IGNORECASE)
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def encoding_of(start: bytes) -> str:
    """The encoding of a text by its byte order mark or by the zeros among its first bytes; empty for UTF-8.

    Encodings with one byte for each letter cannot be distinguished and count as UTF-8.
    """
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name
    zeros = np.frombuffer(start[: len(start) // 2 * 2], np.uint8).reshape(-1, 2) == 0
    if not len(zeros):
        return ""
    # in UTF-16 every second byte of Latin letters is 0
    first, second = zeros.mean(axis=0)
    if first < 0.05 and second > 0.5:
        return "utf-16-le"
    return "utf-16-be" if second < 0.05 and first > 0.5 else ""


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


def excel_delimiter(text: str) -> str | None:
    """The delimiter that the first line chooses, as Excel writes it: ``sep=;``; None without such a line."""
    found = _SEP.match(text)
    return None if found is None else found[1]


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


def columns_with_leading_zeros(chunk: bytes, delimiter: str, n_columns: int) -> np.ndarray | None:
    """The numbers of the columns that hold whole numbers such as 0123; None if quotes make that unclear.

    Parameters
    ----------
    chunk : bytes
        Whole rows.
    delimiter : str
    n_columns : int
    """
    text = np.frombuffer(chunk, np.uint8)
    is_digit = (text >= ord("0")) & (text <= ord("9"))
    ends = (text == ord(delimiter)) | (text == ord("\n")) | (text == ord("\r"))
    quotes = text == ord('"')
    # a value begins after a delimiter, a line end or a quote; a blank and a sign may precede its digits
    begins = np.append(True, (ends | quotes)[:-1])
    for sign in (b" ", b"+-"):
        begins |= np.append(False, (np.isin(text, list(sign)) & begins)[:-1])
    places = np.flatnonzero((text == ord("0")) & begins & np.append(is_digit[1:], False))
    if not len(places):
        return np.empty(0, np.int64)
    others = np.append(np.flatnonzero(~is_digit), len(text))
    after = others[np.searchsorted(others, places)]
    is_end = np.append(ends | quotes, True)[after]
    places = places[is_end]
    if not len(places):
        return np.empty(0, np.int64)
    if quotes.any() or b"\n" not in chunk:
        return None
    starts, cuts = np.flatnonzero(text == ord("\n")), np.flatnonzero(text == ord(delimiter))
    line = np.searchsorted(starts, places) - 1
    first = np.where(line >= 0, starts[np.maximum(line, 0)], 0) if len(starts) else np.zeros(len(places), np.int64)
    columns = np.searchsorted(cuts, places) - np.searchsorted(cuts, first)
    return np.unique(columns[columns < n_columns])
