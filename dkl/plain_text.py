"""Texts that somebody else has written, names of columns and labels among them, as a terminal may show them."""

from __future__ import annotations

import unicodedata

# The most characters of the name of a column in a printed line or in a table: about half of a terminal's width.
LONGEST_NAME = 60
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


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """A text of at most `most` characters: of a longer one the beginning and the end, where names differ.

    Examples
    --------
    >>> shortened("the year in which the house was built", 20)
    'the year in w… built'
    """
    name = plain_text(name)
    return name if len(name) <= most else f"{name[: most - most // 3 - 1]}…{name[-(most // 3) :]}"


def _shown(char: str) -> str:
    kind = unicodedata.category(char)
    is_command = kind in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in _TURNS
    return char.encode("unicode_escape").decode() if is_command and char not in "\t\n" else char
