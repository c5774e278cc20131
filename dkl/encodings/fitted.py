"""FittedEncoding: how raw table columns become numbers after a fit, with the target means that it has learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding
from dkl.encodings.columns import CodePlaces


@dataclass(frozen=True, eq=False)
class FittedEncoding:
    """A table encoding whose columns of codes have become numbers; it is used as a `TableEncoding` is.

    Parameters
    ----------
    table : TableEncoding
        How raw columns become those of the dataset that was fitted on, codes among them.
    outputs : tuple of str
        What is learned of each value: the T names of means, and the count.
    tables : tuple of ndarray of shape (V + 1, T + 1), float64
        One a column of codes: the numbers of each code for new rows, those of an unknown value first.
    """

    table: TableEncoding
    outputs: tuple[str, ...]
    tables: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        sizes = [len(rule.categories) + 1 for rule in self.table.rules if rule.kind == "code"]
        shapes = [(size, len(self.outputs)) for size in sizes]
        if [np.shape(table) for table in self.tables] != shapes:
            raise ValueError(
                f"the tables of categories have the shapes {[np.shape(table) for table in self.tables]}; their columns "
                f"and values ask for {shapes}"
            )

    @cached_property
    def rules(self) -> tuple[ColumnRule, ...]:
        """Those of the table, with the names of the columns that codes became."""
        return named_rules(self.table, self.outputs)

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules for name in rule.output_names]

    @property
    def array_dtype(self) -> str:
        """Empty: categories come from tables, never from arrays."""
        return self.table.array_dtype

    @property
    def n_columns(self) -> int:
        return self.places.n_made

    @property
    def dtype(self) -> np.dtype:
        return self.table.dtype

    @property
    def is_sparse(self) -> bool:
        return self.table.is_sparse

    @property
    def unknown(self) -> str:
        return self.table.unknown

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.table.ignored

    @property
    def has_codes(self) -> bool:
        """No column holds codes any more."""
        return False

    @cached_property
    def passthrough(self) -> np.ndarray:
        """bool (n_columns,): columns that scalers leave alone (one-hot, booleans, flags)."""
        return np.array([keep for rule in self.rules for keep in rule.passthrough], bool)

    @cached_property
    def places(self) -> CodePlaces:
        """Where the columns of codes are."""
        return code_places(self.table, len(self.outputs))

    def transform(
        self,
        frame: GivenRows,
        *,
        first_row: int = 0,
        dtype: np.dtype | None = None,
        differences: Differences | None = None,
    ) -> np.ndarray | sparse.csr_array:
        """Encode the rows of a data frame; see `TableEncoding.transform` for the arguments and what is refused."""
        rows = self.table.transform(frame, first_row=first_row, dtype=dtype, differences=differences)
        return self.places.with_numbers(rows, self.stacked, None)

    @property
    def stacked(self) -> tuple[np.ndarray, ...]:
        """The tables as those of a single fold."""
        return tuple(table[None] for table in self.tables)

    def tables_for(self, other: TableEncoding) -> tuple[np.ndarray, ...]:
        """The tables by the codes of another dataset, (1, V' + 1, T + 1) each: its values are found by their names.

        Raises
        ------
        ValueError
            A column of codes is none there.
        """
        theirs = {rule.name: rule.categories for rule in other.rules if rule.kind == "code"}
        made = []
        for rule, table in zip((r for r in self.table.rules if r.kind == "code"), self.tables, strict=True):
            if rule.name not in theirs:
                raise ValueError(
                    f"column {rule.name!r} holds codes of {len(rule.categories):,} values in the rows of fit, and not "
                    "in these; ingest them together, or hand them over as a data frame, which the model encodes itself"
                )
            if theirs[rule.name] == rule.categories:
                made.append(table[None])
                continue
            known: Mapping[str, int] = {text: 1 + place for place, text in enumerate(rule.categories)}
            made.append(table[[0, *(known.get(text, 0) for text in theirs[rule.name])]][None])
        return tuple(made)

    def describe(self) -> str:
        """The rules of the table, and what became of codes."""
        learned = ", ".join(repr(name) for name in self.outputs)
        return f"{self.table.describe()}\nof codes the fit made {learned}: {self.n_columns} columns"


def named_rules(encoding: TableEncoding, outputs: tuple[str, ...]) -> tuple[ColumnRule, ...]:
    """The rules of a table encoding, with names for the columns that codes become."""
    return tuple(
        replace(rule, outputs=tuple(f"{rule.name}: {name}" for name in outputs)) if rule.kind == "code" else rule
        for rule in encoding.rules
    )


def code_places(encoding: TableEncoding, width: int) -> CodePlaces:
    """Where the columns of codes of a table encoding are, each of which becomes `width` columns."""
    columns, start = [], 0
    for rule in encoding.rules:
        if rule.kind == "code":
            columns.append(start)
        start += len(rule.output_names)
    return CodePlaces(tuple(columns), start, width)
