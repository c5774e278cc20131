"""A line of totals at the end of a file, as spreadsheets add it: it is no row, and is found by its sums or its word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import reads_as_number

# Fewer rows may add up to the last one by chance.
_FEWEST_ROWS = 10
# As spreadsheets and reports write it in their languages.
_WORDS = re.compile(
    r"\W*(grand |sub-?)?(totals?|sums?|average|totale?s?|summe|gesamt(summe|ergebnis)?|insgesamt|mittelwert|"
    r"durchschnitt|somme|total général|totaux|moyenne|media|suma|promedio|razem|итого|合計|总计)\W*",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class RowsAbove:
    """The rows of a file that were read so far, as far as they tell whether the last one adds them up.

    Parameters
    ----------
    sums : mapping of str to (float, float)
        Of each column of numbers the sum without the last row, and the largest magnitude.
    last : pyarrow.Table or None
        The last rows.
    n_rows : int
    """

    sums: Mapping[str, tuple[float, float]]
    last: pa.Table | None = None
    n_rows: int = 0

    def and_rows(self, table: pa.Table) -> RowsAbove:
        """With the next rows."""
        if not table.num_rows:
            return self
        sums = {}
        for name in table.column_names:
            dtype = table.schema.field(name).type
            if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
                continue
            before, largest = self.sums.get(name, (0.0, 0.0))
            # the last row of the table before is above these
            known = [self.last.column(name).slice(self.last.num_rows - 1)] if self.last is not None else []
            above = np.concatenate(
                [_numbers(part) for part in (*known, table.column(name).slice(0, table.num_rows - 1))]
            )
            # of numbers that are beyond float64 none is a total
            with np.errstate(over="ignore"):
                sums[name] = before + float(above.sum()), max(largest, float(np.abs(above).max(initial=0.0)))
        return RowsAbove(sums, table, self.n_rows + table.num_rows)

    def totals(self) -> str:
        """Why the last row is one of totals, in words; empty where it is a row like others."""
        if self.last is None or self.n_rows < _FEWEST_ROWS:
            return ""
        last = self.last
        row = last.slice(last.num_rows - 1).to_pylist()[0]
        added = [name for name in self.sums if row[name] is not None]
        if not all(self._is_sum(name, row[name]) for name in added):
            added = []
        word = next(
            (name for name, value in row.items() if isinstance(value, str) and _is_word(last.column(name), value)), None
        )
        has_gap = any(value is None for value in row.values())
        if word is not None and (has_gap or added or _is_of_numbers(last.column(word))):
            return f"column '{word}' holds {row[word]!r}"
        if added and (has_gap or len(added) > 1):
            return f"its {'value' if len(added) == 1 else 'values'} of {added} add up the rows above"
        return ""

    def _is_sum(self, name: str, value: float) -> bool:
        """Whether a number is the sum of those above it, and larger than each of them."""
        above, largest = self.sums[name]
        return abs(value) > largest and abs(value - above) <= 1e-6 * abs(above)


def _is_word(column: pa.ChunkedArray, value: str) -> bool:
    """Whether a text says that its row is a total, and no row near it has the same text."""
    return _WORDS.fullmatch(value) is not None and pc.sum(pc.equal(column, value)).as_py() == 1


def _is_of_numbers(column: pa.ChunkedArray) -> bool:
    """Whether most texts of a column are numbers, of which a total is none."""
    texts = column.drop_null().slice(0, 1_000).to_pylist()
    return sum(map(reads_as_number, texts)) > len(texts) / 2


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float64 values, 0 where one is missing."""
    return np.nan_to_num(pc.fill_null(column.cast(pa.float64(), safe=False), 0.0).to_numpy(), nan=0.0)
