"""CategoryKey: the code of each row for the values of one column of categories, or for a cross of up to three."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from scipy import sparse

from dkl.data.ingest.column_rules import with_places
from dkl.data.ingest.encoding import TableEncoding
from dkl.protocols.arrays import dense_rows

WholeNumbers = tuple[str, tuple[int, ...]]
"""A column of whole numbers that are treated as categories: its name, and the values, ascending."""


@dataclass(frozen=True)
class CategoryPart:
    """A column of categories among the columns of X.

    Parameters
    ----------
    start : int
        The first of its columns in X.
    n_values : int
    is_code : bool
        True for one column of codes, where 0 is a missing or unknown value; False for `n_values` one-hot columns or one
        column of numbers.
    values : tuple of int
        The values, ascending, of a column of numbers that are treated as categories; else empty.
    last : int or None
        The last of its columns in X, including a flag of missing values; new numbers follow this column.
    """

    start: int
    n_values: int
    is_code: bool
    values: tuple[int, ...] = ()
    last: int | None = None

    def codes(self, X: np.ndarray | sparse.csr_array) -> np.ndarray:
        """The code of each row's value, from 1; 0 where it is missing or unknown: (n,) int64."""
        width = 1 if self.is_code or self.values else self.n_values
        values = dense_columns(X, self.start, self.start + width)
        if self.values:
            known = np.asarray(self.values, np.float64)
            place = np.minimum(np.searchsorted(known, values[:, 0]), len(known) - 1)
            return np.where(known[place] == values[:, 0], place + 1, 0)
        if self.is_code:
            return values[:, 0].astype(np.int64)
        # at most one number of a row is 1 and all others are 0, so that float32 holds the sum
        places = np.arange(1, self.n_values + 1, dtype=np.result_type(values.dtype, np.float32))
        return np.asarray(values @ places).astype(np.int64)


@dataclass(frozen=True)
class CategoryKey:
    """The values of one column of categories, or the combinations of values of several columns.

    Parameters
    ----------
    parts : tuple of CategoryPart
        One to three.
    """

    parts: tuple[CategoryPart, ...]

    def __str__(self) -> str:
        """The first columns of its parts, which identify the key."""
        return " x ".join(str(part.start) for part in self.parts)

    @property
    def size(self) -> int:
        """The number of codes: one for each value, pair or triple, and code 0 for rows in which a value is missing."""
        return 1 + prod(part.n_values for part in self.parts)

    def codes(self, X: np.ndarray | sparse.csr_array) -> np.ndarray:
        """The codes of rows, (n,) int64. A pair (a, b) >= 1 has the code 1 + (a - 1) B + b - 1; triples continue so."""
        return next(codes_of_keys([self], X))


def codes_of_keys(keys: Iterable[CategoryKey], X: np.ndarray | sparse.csr_array) -> Iterator[np.ndarray]:
    """`CategoryKey.codes` of each key, one after the other; columns that several keys have are decoded once."""
    of_parts: dict[CategoryPart, np.ndarray] = {}
    for key in keys:
        of_parts |= {part: part.codes(X) for part in key.parts if part not in of_parts}
        code, *others = (of_parts[part] for part in key.parts)
        for part, other in zip(key.parts[1:], others, strict=True):
            code = ((code - 1) * part.n_values + other) * ((code > 0) & (other > 0))
        yield code


def dense_columns(X: np.ndarray | sparse.csr_array, first: int, last: int) -> np.ndarray:
    """Columns `first` to `last` - 1 of X as a dense array."""
    return np.asarray(dense_rows(X[:, first:last]))


def category_parts(encoding: TableEncoding, numbers: Sequence[WholeNumbers] = ()) -> dict[str, CategoryPart]:
    """The columns of categories of a table, by name: codes, one-hot columns, and the whole numbers in `numbers`."""
    parts, whole = {}, dict(numbers)
    for rule, start in with_places(encoding.rules):
        last = start + len(rule.output_names) - 1
        if rule.kind in ("code", "category"):
            parts[rule.name] = CategoryPart(start, len(rule.categories), rule.kind == "code", last=last)
        elif rule.name in whole:
            parts[rule.name] = CategoryPart(start, len(whole[rule.name]), False, whole[rule.name], last)
    return parts
