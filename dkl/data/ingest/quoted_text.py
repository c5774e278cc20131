"""Finds the quoted values of delimited text by the rules of pyarrow's parser."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LONGEST_TEXT = 2**16
"""Default of the largest size, in bytes, of a quoted value with line ends; more is probably an unclosed quote."""

_QUOTE, _LINE_FEED, _CARRIAGE_RETURN = b'"\n\r'


@dataclass(frozen=True)
class QuoteRules:
    """The delimiter, and the limit on quoted values.

    Parameters
    ----------
    delimiter : bytes
        One byte.
    longest_text : int
        Largest size, in bytes, of a quoted value with line ends.
    """

    delimiter: bytes = b","
    longest_text: int = LONGEST_TEXT


class QuotedText:
    """A piece of delimited text that begins with a row, and the quoted values in it.

    A quote opens a quoted value only at the beginning of a value; within it two quotes mean one, and the next single
    quote closes it. Any other quote is an ordinary character. As these are the rules of pyarrow's parser, text that is
    cut by them is parsed like the whole.

    Parameters
    ----------
    data : bytes
    rules : QuoteRules
    """

    def __init__(self, data: bytes, rules: QuoteRules) -> None:
        self._data, self._rules = data, rules
        self._opens, self._closes = _quoted_values(data, rules.delimiter[0])

    def first_row_end(self) -> int:
        """The position after the first line end that is not quoted; 0 without any."""
        start = 0
        for place in range(len(self._opens) + 1):
            stop = self._opens[place] if place < len(self._opens) else len(self._data)
            ends = [position for end in (b"\n", b"\r") if (position := self._data.find(end, start, stop)) >= 0]
            if ends:
                end = min(ends) + 1
                # a carriage return with a line feed is one line end
                return end + (self._data[end - 1 : end + 1] == b"\r\n")
            start = self._closes[place] if place < len(self._opens) else start
        return 0

    def last_row_end(self) -> int:
        """The position after the last line end that is not quoted; 0 without any."""
        # a carriage return at the end may be the first half of a line end
        stop = len(self._data) - self._data.endswith(b"\r")
        # unquoted parts from last to first: after the last quoted value, between two, before the first
        for place in range(len(self._opens) - 1, -2, -1):
            start = self._closes[place] + 1 if place >= 0 else 0
            end = max(self._data.rfind(b"\n", start, stop), self._data.rfind(b"\r", start, stop))
            if end >= 0:
                return end + 1
            stop = self._opens[place] if place >= 0 else 0
        return 0

    def fault(self, *, at_end: bool) -> tuple[int, str] | None:
        """Position and error message of the first quoted value with line ends that is probably an unclosed quote.

        None without any.

        Parameters
        ----------
        at_end : bool
            Whether no text follows, so that a value without a closing quote is an error.
        """
        length = len(self._data)
        # an unclosed quote pairs with the next one, so that its value is long, or text follows the closing quote
        long = self._closes - self._opens > self._rules.longest_text
        after = np.frombuffer(self._data, np.uint8)[np.minimum(self._closes + 1, length - 1)]
        well_closed = np.isin(after, [self._rules.delimiter[0], _LINE_FEED, _CARRIAGE_RETURN])
        well_closed |= self._closes + 1 >= length
        for place in np.flatnonzero(long | ~well_closed).tolist():
            opened, closed = int(self._opens[place]), int(self._closes[place])
            if self._data.find(b"\n", opened, closed) < 0 and self._data.find(b"\r", opened, closed) < 0:
                continue
            if not well_closed[place]:
                return opened, (
                    "the quoted value that begins here holds line ends, and text follows its closing quote, as if the "
                    f"quote of a later value had closed it. {_REMEDY}"
                )
            limit = self._rules.longest_text
            return opened, (
                f"the quoted value that begins here holds line ends and is longer than {limit} bytes, as if its "
                f"closing quote were missing. {_REMEDY}; where texts are that long, pass "
                f"format=dkl.CsvFormat(longest_text={16 * limit})"
            )
        if at_end and length in self._closes[-1:]:
            return int(self._opens[-1]), (
                f"the quote that opens here is never closed, and the text ends inside its value. {_REMEDY}"
            )
        return None


_REMEDY = 'Remove the quote or close it; a quote within a quoted value is written twice ("")'


def _quoted_values(data: bytes, delimiter: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the quotes that open values, and of those that close them; an unclosed one closes at the text's end.

    Quotes form runs. A run of even length changes nothing: it is an empty value, or quotes within a value. A run of odd
    length closes an open value; otherwise it opens one at the beginning of a value, and is text elsewhere. So a value
    is open after a run if the number of odd runs at beginnings of values, since the last odd run elsewhere, is odd.
    """
    if b'"' not in data:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    # only runs of odd length matter
    begins = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(quotes))
    begins, lengths = begins[lengths % 2 == 1], lengths[lengths % 2 == 1]
    first = quotes[begins]
    last = first + lengths - 1
    # a value begins after a delimiter, a line end, or at the beginning of the text
    before = text[np.maximum(first - 1, 0)]
    may_open = (first == 0) | (before == delimiter) | (before == _LINE_FEED) | (before == _CARRIAGE_RETURN)
    # the number of runs that may open a value since the last one that may not, after which none is open
    count = np.cumsum(may_open)
    at_last_other = np.maximum.accumulate(np.where(may_open, 0, count))
    is_open = (count - at_last_other) % 2 == 1
    was_open = np.concatenate([[False], is_open[:-1]])
    opens, closes = first[is_open & ~was_open], last[was_open & ~is_open]
    return opens, np.append(closes, np.full(len(opens) - len(closes), len(data)))
