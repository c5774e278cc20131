"""CategoryKey: the code of a row by the values of one column of categories, or of several together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.ingest.encoding import TableEncoding


@dataclass(frozen=True)
class CategoryPart:
    """A column of categories among the columns of X.

    Parameters
    ----------
    start : int
        Its first column.
    n_values : int
    is_code : bool
        One column of codes, 0 for no known value; else `n_values` one-hot columns.
    """

    start: int
    n_values: int
    is_code: bool

    def codes(self, X: np.ndarray | sparse.csr_array) -> np.ndarray:
        """The place of each row's value, from 1; 0 where it is missing or unknown: (n,) int64."""
        width = 1 if self.is_code else self.n_values
        values = dense_columns(X, self.start, self.start + width)
        if self.is_code:
            return values[:, 0].astype(np.int64)
        return np.where(values.any(axis=1), 1 + values.argmax(axis=1), 0)


@dataclass(frozen=True)
class CategoryKey:
    """The values of one column of categories, or what values of several columns come together.

    Parameters
    ----------
    parts : tuple of CategoryPart
        One to three; the first is a column of codes.
    """

    parts: tuple[CategoryPart, ...]

    def __str__(self) -> str:
        """The first columns of its parts, which no other key has."""
        return " x ".join(str(part.start) for part in self.parts)

    @property
    def size(self) -> int:
        """One more than the values, pairs or triples: code 0 is that of rows without one."""
        return 1 + prod(part.n_values for part in self.parts)

    def codes(self, X: np.ndarray | sparse.csr_array) -> np.ndarray:
        """(n,) int64; a pair (a, b) of values, counted from 1, is 1 + (a - 1) B + (b - 1); so is a pair and a third."""
        code, *others = (part.codes(X) for part in self.parts)
        for part, other in zip(self.parts[1:], others, strict=True):
            code = np.where((code > 0) & (other > 0), 1 + (code - 1) * part.n_values + other - 1, 0)
        return code


def dense_columns(X: np.ndarray | sparse.csr_array, first: int, last: int) -> np.ndarray:
    """Columns `first` to `last` of rows, without the last, dense."""
    part: Any = X[:, first:last]
    return np.asarray(part.toarray() if sparse.issparse(part) else part)


def category_parts(encoding: TableEncoding) -> dict[str, CategoryPart]:
    """Where the columns of categories of a table lie among the encoded columns, by name: codes and one-hot ones."""
    parts, start = {}, 0
    for rule in encoding.rules:
        if rule.kind in ("code", "category"):
            parts[rule.name] = CategoryPart(start, len(rule.categories), rule.kind == "code")
        start += len(rule.output_names)
    return parts
