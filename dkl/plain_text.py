"""Texts that somebody else has written, names of columns and labels among them, as a terminal may show them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

# The most characters of the name of a column in a printed line or in a table: about half of a terminal's width.
LONGEST_NAME = 60
# The most items of a list or a mapping in a printed line.
_MOST_ITEMS = 12
# Marks that turn the direction of what follows: a terminal would show it in another order than it is written in.
_TURNS = frozenset(("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))


def plain_text(text: str) -> str:
    """A text that controls no terminal.

    Control characters but tabs and line feeds, line separators and marks that turn the direction of writing are written
    as Python writes them in source.

    Examples
    --------
    >>> print(plain_text("\\x1b[31mred"))
    \\x1b[31mred
    """
    return text if text.isprintable() else "".join(map(_shown, text))


class Printed:
    """A result that notebooks show as it is printed."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def in_columns(cells: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Lines of a table whose columns are as wide as their widest cells.

    Parameters
    ----------
    cells : sequence of sequence of str
        The rows, heads among them.
    left : int or None
        So many columns, the first ones, begin at the left of their width, and the others end at its right; None is all.

    Examples
    --------
    >>> in_columns([["town", "rows"], ["Rome", "12"]], left=1)
    ['town  rows', 'Rome    12']
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    n_left = len(widths) if left is None else left
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row[:n_left], widths, strict=False)]
        padded += [cell.rjust(width) for cell, width in zip(row[n_left:], widths[n_left:], strict=True)]
        lines.append("  ".join(padded).rstrip())
    return lines


def html_table(cells: Sequence[Sequence[str]], attributes: str = "") -> str:
    """Texts as a table of HTML, whose first row are the heads; all are escaped, since they may come from files."""
    head, *rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table{attributes}><tr>{head.replace('td>', 'th>')}</tr>{body}</table>"


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """A text of at most `most` characters: of a longer one the beginning and the end, where names differ.

    Examples
    --------
    >>> shortened("the year in which the house was built", 20)
    'the year in w… built'
    """
    name = plain_text(name)
    return name if len(name) <= most else f"{name[: most - most // 3 - 1]}…{name[-(most // 3) :]}"


def first_few(items: Collection[T], most: int, kind: str = "", text_of: Callable[[T], str] = str) -> list[str]:
    """The texts of the first `most` items, and one that counts the others, whose texts are not computed.

    Parameters
    ----------
    items : collection
    most : int
    kind : str
        What the items are, in the plural, where their count alone would not say it.
    text_of : callable
        The text of an item.

    Examples
    --------
    >>> first_few(["age", "town", "wage"], 1, "columns", repr)
    ["'age'", 'and 2 more columns']
    """
    more = [f"and {len(items) - most:,} more{kind and f' {kind}'}"] if len(items) > most else []
    return [*map(text_of, islice(items, most)), *more]


def value_text(value: Any) -> str:
    """A value of any type on one line: of lists and mappings the first twelve items, long names in them shortened.

    Examples
    --------
    >>> value_text({"rows": 12000, "is sparse": False})
    'rows: 12,000, is sparse: no'
    """
    if hasattr(value, "tolist"):
        # numbers and arrays of NumPy
        value = value.tolist()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(
            first_few(
                value.items(), _MOST_ITEMS, text_of=lambda each: f"{shortened(str(each[0]))}: {value_text(each[1])}"
            )
        )
    if isinstance(value, list | tuple):
        return ", ".join(
            first_few(
                value, _MOST_ITEMS, text_of=lambda item: shortened(item) if isinstance(item, str) else value_text(item)
            )
        )
    return str(value)


def _shown(char: str) -> str:
    kind = unicodedata.category(char)
    is_command = kind in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in _TURNS
    return char.encode("unicode_escape").decode() if is_command and char not in "\t\n" else char
