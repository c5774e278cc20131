"""Raw rows as a service gets them, one at a time by the names of their columns, to encoded columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dkl.data.checks import shown_value, spoken_names
from dkl.data.frames import is_frame
from dkl.data.ingest.dates import DATE_KINDS
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.ingest.precision import EXACT
from dkl.data.other_frames import as_known_rows
from dkl.encodings.fitted import FittedEncoding
from dkl.explain.wave_pass import dense

_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
_WHOLE = (int, np.integer)


class _Rule(NamedTuple):
    """A raw column: where its number goes or its texts are, what a missing value becomes, where its flag is."""

    name: str
    kind: str
    places: int | dict[str, int]
    fill: float | None
    flag: int | None
    start: int


class RowEncoder:
    """What `TableEncoding.transform` makes of a table, for one row without a table: in microseconds.

    Parameters
    ----------
    encoding : TableEncoding or FittedEncoding

    Examples
    --------
    >>> import pandas as pd
    >>> from dkl.data.ingest.encoding import learn_encoding
    >>> from dkl.export.raw_rows import RowEncoder
    >>> encode = RowEncoder(learn_encoding([pd.DataFrame({"age": [31.0, 45.0], "colour": ["red", "blue"]})]))
    >>> encode({"age": 40, "colour": "red"})
    array([40.,  0.,  1.], dtype=float32)
    """

    def __init__(self, encoding: TableEncoding | FittedEncoding) -> None:
        self.encoding = encoding
        self._table = encoding.table if isinstance(encoding, FittedEncoding) else encoding
        self._rules, start = [], 0
        for rule in self._table.rules:
            # the column of each text of a one-hot rule, or its code
            first = 1 if rule.kind == "code" else start
            places = {text: first + place for place, text in enumerate(rule.categories)}
            flag = start + rule.n_values if rule.flags_missing else None
            place = places if rule.categories else start
            self._rules.append(_Rule(rule.name, rule.kind, place, rule.fill, flag, start))
            start += len(rule.output_names)

    def __call__(self, rows: object) -> np.ndarray:
        """The encoded columns of a mapping or Series, (d,), of several or of a frame, (n, d); other rows as they come.

        Raises
        ------
        ValueError, TypeError
            As `TableEncoding.transform`.
        """
        if isinstance(rows, pd.Series):
            rows = rows.to_dict()
        rows = as_known_rows(rows)
        if isinstance(rows, list | tuple) and rows and isinstance(rows[0], Mapping | pd.Series):
            rows = self._frame(rows)
        if isinstance(rows, Mapping):
            encoded = self._row(rows)
            # A table says in its error what is wrong with the row, and takes the few values that need more care.
            return dense(self.encoding.transform(pd.DataFrame([dict(rows)])))[0] if encoded is None else encoded
        return dense(self.encoding.transform(rows)) if is_frame(rows) else np.asarray(rows)

    def _frame(self, rows: Sequence[Any]) -> pd.DataFrame:
        """Several rows by the names of their columns as a frame.

        Raises
        ------
        ValueError, TypeError
            One lacks a column, or is no row by the names of its columns; the row is named.
        """
        known = [rule.name for rule in self._table.rules]
        plain = [row.to_dict() if isinstance(row, pd.Series) else row for row in rows]
        for place, row in enumerate(plain):
            if not isinstance(row, Mapping):
                raise TypeError(
                    f"row {place} is {shown_value(row)}; expected a mapping of column names to values, as row 0 is"
                )
            if absent := [name for name in known if name not in row]:
                raise ValueError(
                    f"row {place} lacks the columns {spoken_names(absent)}; give them, or None where missing"
                )
        return pd.DataFrame([dict(row) for row in plain])

    def _row(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """The encoded row, or None where it is not plain: the table knows what to do with it, or what to say."""
        out, is_strict = np.zeros(self._table.n_columns, self._table.dtype), self._table.unknown == "error"
        # Further or missing columns are for the table, which names them in its error.
        if len(row) != len(self._rules):
            return None
        for rule in self._rules:
            if rule.name not in row or not _is_set(out, rule, row[rule.name], is_strict):
                return None
        if isinstance(self.encoding, FittedEncoding):
            return self.encoding.places.with_numbers(out[None], self.encoding.stacked, None)[0]
        return out


def _is_set(out: np.ndarray, rule: _Rule, value: object, is_strict: bool) -> bool:
    """Write the columns of one value; False where it is not plain."""
    if rule.kind in DATE_KINDS or rule.kind == "text":
        return False
    # A missing value is None or NaN, the only number that differs from itself.
    if value is None or (isinstance(value, _NUMBERS) and value != value):
        if rule.flag is not None:
            out[rule.flag] = 1.0
        if isinstance(rule.places, int):
            out[rule.places] = rule.fill or 0.0
        return rule.fill is not None
    if isinstance(rule.places, int):
        # Numbers beyond float32, and whole ones that a double cannot hold exactly, are refused by the table.
        if not isinstance(value, _NUMBERS) or not -_LARGEST <= value <= _LARGEST:
            return False
        is_inexact = isinstance(value, _WHOLE) and not -EXACT <= value <= EXACT
        if is_inexact or (rule.kind == "boolean" and value not in (0, 1)):
            return False
        out[rule.places] = value
        return True
    if not isinstance(value, str) or (is_strict and value not in rule.places):
        return False
    if value in rule.places:
        place = rule.places[value]
        if rule.kind == "code":
            out[rule.start] = place
        else:
            out[place] = 1.0
    return True
