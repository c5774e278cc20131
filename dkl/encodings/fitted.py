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
from dkl.encodings.keys import CategoryKey, WholeNumbers, category_parts
from dkl.encodings.row_matrices import RowsInMemory


@dataclass(frozen=True, eq=False)
class FittedEncoding:
    """A table encoding whose columns of codes have become numbers; it is used as a `TableEncoding` is.

    Parameters
    ----------
    table : TableEncoding
        How raw columns become those of the dataset that was fitted on, codes among them.
    outputs : tuple of str
        What is learned of each value: the T names of means, and the count.
    tables : tuple of ndarray of shape (V + 1, T + 1 + centred numbers), float64
        One a column of codes, then one a number that is taken for a category too, then one a cross: the numbers of each
        code for new rows, those of an unknown value first.
    priors : tuple of ndarray of shape (T + centred numbers,)
        For each table the weight, in rows, of the mean of all rows in that of each value; empty in older models.
    centred : tuple of (str, str)
        Columns of codes, and encoded columns of numbers that become those less their mean in the row's category too.
    crosses : tuple of tuples of str
        Columns of categories whose pairs, or triples, of values have a table.
    numbers : tuple of WholeNumbers
        Columns of numbers whose values are taken for categories, by themselves or in crosses.
    taken : tuple of str
        Those of them that have a table of their own.
    """

    table: TableEncoding
    outputs: tuple[str, ...]
    tables: tuple[np.ndarray, ...]
    priors: tuple[np.ndarray, ...] = ()
    centred: tuple[tuple[str, str], ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[WholeNumbers, ...] = ()
    taken: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        places = self.places
        shapes = [(key.size, len(self.outputs) + len(places.centred_by(k))) for k, key in enumerate(places.keys)]
        if [np.shape(table) for table in self.tables] != shapes:
            raise ValueError(
                f"the tables of categories have the shapes {[np.shape(table) for table in self.tables]}; their columns "
                f"and values ask for {shapes}"
            )

    @property
    def made(self) -> Made:
        """What the fit made beside the numbers of codes."""
        return Made(self.centred, self.crosses, self.numbers, self.taken)

    @cached_property
    def tabled(self) -> tuple[tuple[str, ...], ...]:
        """The columns that each of the tables is of, by name: one, or those of a cross."""
        codes = [rule.name for rule in self.table.rules if rule.kind == "code"]
        return (*((name,) for name in (*codes, *self.taken)), *self.crosses)

    @cached_property
    def rules(self) -> tuple[ColumnRule, ...]:
        """Those of the table, with the names of the columns that codes became."""
        return named_rules(self.table, self.outputs, self.made)

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
        return code_places(self.table, len(self.outputs), self.made)

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

    @cached_property
    def stacked(self) -> tuple[RowsInMemory, ...]:
        """The tables as those of a single fold."""
        return tuple(RowsInMemory(table) for table in self.tables)

    def tables_for(self, other: TableEncoding) -> tuple[RowsInMemory, ...]:
        """The tables by the codes of another dataset, (V' + 1, ...) each: its values are found by their names.

        Raises
        ------
        ValueError
            A column of codes is none there.
        """
        ours = {rule.name: rule for rule in self.table.rules}
        theirs = {rule.name: rule for rule in other.rules}
        for name in [rule.name for rule in self.table.rules if rule.kind == "code"]:
            if name not in theirs or theirs[name].kind != "code":
                raise ValueError(
                    f"column {name!r} holds codes of {len(ours[name].categories):,} values in the rows of fit, and not "
                    "in these; ingest them together, or hand them over as a data frame, which the model encodes itself"
                )
        counts, made = {name: len(values) for name, values in self.numbers}, []
        for names, table in zip(self.tabled, self.tables, strict=True):
            if all(theirs[name].categories == ours[name].categories for name in names):
                made.append(RowsInMemory(table))
                continue
            # our code of each of their values, then of each pair of these, and so on; 0 is no value in either
            rows = np.zeros(1, np.int64)
            for place, name in enumerate(names):
                known: Mapping[str, int] = {text: 1 + code for code, text in enumerate(ours[name].categories)}
                own = np.array([0, *(known.get(text, 0) for text in theirs[name].categories)])
                size = counts.get(name, len(known))
                if name in counts:
                    # whole numbers are what they are in any rows
                    own = np.arange(size + 1)
                if place == 0:
                    rows = own
                else:
                    pairs = 1 + (rows[1:, None] - 1) * size + own[None, 1:] - 1
                    is_known = (rows[1:, None] > 0) & (own[None, 1:] > 0)
                    rows = np.append(0, np.where(is_known, pairs, 0).ravel())
            made.append(RowsInMemory(table[rows]))
        return tuple(made)

    def describe(self) -> str:
        """The rules of the table, and what became of codes."""
        return f"{self.table.describe()}\n{self.told}: {self.n_columns} columns"

    @property
    def told(self) -> str:
        """What became of codes, in words."""
        means = ", ".join(repr(name) for name in self.outputs)
        crosses = [" x ".join(cross) for cross in self.crosses]
        # the priors of the means of targets; those of centred numbers follow them
        shown = [
            f"{' x '.join(names)} {_spoken(prior[: len(self.outputs) - 1])}"
            for names, prior in zip(self.tabled, self.priors, strict=False)
        ]
        parts = [f"of {'codes' if self.table.has_codes else 'categories'} the fit made {means}"]
        if shown and len(self.outputs) > 1:
            parts.append(f"the mean of all rows counts as so many rows: {', '.join(shown)}")
        if crosses:
            parts.append(f"crosses that gain on held-out rows: {', '.join(crosses)}")
        if self.centred:
            less = [f"{number} by {name}" for name, number in self.centred]
            parts.append(f"numbers less their mean in a category, which gain: {', '.join(less)}")
        return "; ".join(parts)


def category_reasons(encoding: object) -> tuple[str, ...]:
    """What a fit made of codes, as a sentence among the reasons of a machine; nothing where no column holds codes."""
    return (f"Categories: {encoding.told}.",) if isinstance(encoding, FittedEncoding) else ()


def _spoken(priors: np.ndarray) -> str:
    """One number, or the least and the largest of several."""
    least, largest = priors.min(), priors.max()
    return f"{least:g}" if least == largest else f"{least:g} to {largest:g}"


@dataclass(frozen=True)
class Made:
    """What a fit makes beside the numbers of codes; see `FittedEncoding` for the parameters."""

    centred: tuple[tuple[str, str], ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[WholeNumbers, ...] = ()
    taken: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.centred or self.crosses or self.taken)


def named_rules(encoding: TableEncoding, outputs: tuple[str, ...], made: Made) -> tuple[ColumnRule, ...]:
    """The rules of a table encoding, with names for the columns that codes become, and for those that are added."""

    def names(rule: ColumnRule) -> tuple[str, ...]:
        own = [f"{rule.name}: {name}" for name in outputs if rule.kind == "code" or rule.name in made.taken]
        own += [f"{number} less its mean by {rule.name}" for by, number in made.centred if by == rule.name]
        crossed = [" x ".join(cross) for cross in made.crosses if cross[0] == rule.name]
        return (*own, *(f"{cross}: {name}" for cross in crossed for name in outputs))

    return tuple(replace(rule, outputs=names(rule)) for rule in encoding.rules)


def code_places(encoding: TableEncoding, width: int, made: Made) -> CodePlaces:
    """Where the columns of categories of a table encoding are, each of which becomes `width` columns and more.

    Raises
    ------
    ValueError
        A column of a cross, or one to be centred, is not there.
    """
    parts, columns = category_parts(encoding, made.numbers), encoding.column_names
    missing = [name for cross in (*made.crosses, made.taken) for name in cross if name not in parts]
    missing += [number for _, number in made.centred if number not in columns]
    if missing:
        raise ValueError(
            f"the columns {missing} are none of these rows; the model has crosses or centred numbers of them"
        )
    codes = [name for name, part in parts.items() if part.is_code]
    keys = [CategoryKey((parts[name],)) for name in (*codes, *made.taken)]
    keys += [CategoryKey(tuple(parts[name] for name in cross)) for cross in made.crosses]
    return CodePlaces(
        tuple(keys),
        len(columns),
        width,
        tuple((codes.index(name), columns.index(number)) for name, number in made.centred),
    )
