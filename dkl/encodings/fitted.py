"""FittedEncoding: turns raw table columns into numbers after a fit, with the target means that the fit has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.columns.numbers import Mark
from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding
from dkl.encodings.keys import CategoryKey, WholeNumbers, category_parts, codes_of_keys, dense_columns
from dkl.encodings.row_matrices import Rows
from dkl.kernels.tiles import spans

# Rows whose columns are copied at once: a tile of 20 columns in single precision takes 640 KiB.
_ROWS_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class CodePlaces:
    """The places of the columns of codes in X, and of the numbers that replace them or are added.

    Numbers of a key follow the columns of its first part; those of codes replace them.

    Parameters
    ----------
    keys : tuple of CategoryKey
        The columns of codes in their order, then numbers treated as categories, then the crosses.
    n_columns : int
        The number of columns of X.
    width : int
        The number of means and counts of each key.
    centred : tuple of (int, int)
        Pairs of a column of codes, as a position in `keys`, and a column of X: a further column is that column of X
        minus its mean in the row's category.
    sloped : tuple of int
        Columns of codes, as positions in `keys`: one entry for each column of X whose slopes are numbers of the key, a
        slope for each mean.
    """

    keys: tuple[CategoryKey, ...]
    n_columns: int
    width: int
    centred: tuple[tuple[int, int], ...] = ()
    sloped: tuple[int, ...] = ()

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The columns of X that hold codes, ascending."""
        return tuple(key.parts[0].start for key in self.keys if len(key.parts) == 1 and key.parts[0].is_code)

    @property
    def n_made(self) -> int:
        """The number of columns after the replacement."""
        return len(self.source)

    @cached_property
    def kept(self) -> np.ndarray:
        """The columns of X that stay as they are."""
        return np.setdiff1d(np.arange(self.n_columns), self.columns)

    @cached_property
    def _order(self) -> list[tuple[int, slice, int]]:
        """(position, its numbers, the column of X that they follow) for each key, in the order of new columns."""
        order = []
        for k, key in enumerate(self.keys):
            first = key.parts[0]
            behind = first.start if first.last is None else first.last
            order.append((k, slice(self.n_numbers(k)), behind))
        return sorted(order, key=lambda made: made[2])

    @cached_property
    def source(self) -> np.ndarray:
        """For each column of the result its position in [kept columns of X, new numbers]: (n_made,) int."""
        place: list[int] = []
        n_kept, n_made, order = 0, 0, list(self._order)
        for column in range(self.n_columns):
            if column not in self.columns:
                place.append(n_kept)
                n_kept += 1
            while order and order[0][2] == column:
                _, numbers, _ = order.pop(0)
                place += range(len(self.kept) + n_made, len(self.kept) + n_made + numbers.stop)
                n_made += numbers.stop
        return np.array(place)

    @cached_property
    def _starts(self) -> dict[int, int]:
        """The place of the first number of each key among all new numbers, by the position of the key."""
        widths = [numbers.stop for _, numbers, _ in self._order]
        return {k: sum(widths[:place]) for place, (k, _, _) in enumerate(self._order)}

    def centred_by(self, key: int) -> list[int]:
        """The columns of X that are centred by the column of codes at position `key`."""
        return [column for by, column in self.centred if by == key]

    def n_learned(self, key: int) -> int:
        """The number of means, counts and slopes of the key at position `key`, which stand before its centred ones."""
        return self.width + self.sloped.count(key) * (self.width - 1)

    def n_numbers(self, key: int) -> int:
        """The number of columns that the key at position `key` adds: means, counts, slopes and centred numbers."""
        return self.n_learned(key) + len(self.centred_by(key))

    def with_numbers(self, X: Any, tables: Sequence[Rows], fold: np.ndarray | None) -> Any:
        """Rows (n, d) with the numbers of their codes: (n, n_made), dense or CSR as they come, in their dtype.

        Parameters
        ----------
        tables : sequence of Rows
            One for each key: the numbers of code c in fold f are row f V + c. Those of centred columns are the means
            that are subtracted.
        fold : ndarray of shape (n,) or None
            None takes the first fold of each table.
        """
        is_sparse, n_kept = sparse.issparse(X), len(self.kept)
        # of sparse rows the new numbers alone are dense; dense rows are in C order, as all others are
        place_of = np.arange(len(self.source)) if is_sparse else np.argsort(self.source)[n_kept:]
        out = np.empty((X.shape[0], self.n_made - n_kept * is_sparse), X.dtype)
        for k, (codes, table) in enumerate(zip(codes_of_keys(self.keys, X), tables, strict=True)):
            rows = codes if fold is None else fold * self.keys[k].size + codes
            first = place_of[self._starts[k]]
            of_key = out[:, first : first + self.n_numbers(k)]
            # NumPy takes rows of two numbers twenty times as fast by `take` as by an index
            of_key[...] = np.take(table, rows, axis=0) if isinstance(table, np.ndarray) else table[rows]
            for place, column in enumerate(self.centred_by(k), self.n_learned(k)):
                of_key[:, place] = dense_columns(X, column, column + 1)[:, 0] - of_key[:, place]
        if is_sparse:
            made = sparse.hstack([X[:, self.kept], sparse.csr_array(out)], format="csr")[:, self.source]
            made.sort_indices()
            return made
        where = np.argsort(self.source)[:n_kept]
        # without a copy of all columns
        for rows in spans(len(out), _ROWS_AT_ONCE):
            out[rows, where] = X[rows, self.kept]
        return out


@dataclass(frozen=True, eq=False)
class FittedEncoding:
    """A table encoding with the numbers that replace its codes; it has the interface of `TableEncoding`.

    Parameters
    ----------
    table : TableEncoding
        Turns raw columns into the columns of the dataset of the fit, codes included.
    outputs : tuple of str
        Names of the numbers learned for each value: T means, and the logarithm of the count.
    tables : tuple of ndarray of shape (V + 1, T + 1 + T slopes for each sloped number + centred numbers), float64
        The numbers of each code for new rows; row 0 is for missing and unknown values. First one table for each column
        of codes, then one for each name in `taken`, then one for each cross.
    priors : tuple of ndarray of shape (T + T for each sloped number + centred numbers,)
        For each table the prior weight: how many rows the overall mean counts as in the mean of a value, and the
        overall slope in a slope. Empty in models of older versions.
    centred : tuple of (str, str)
        Pairs of a column of codes and an encoded column of numbers: a further column is the number minus its mean in
        the row's category.
    crosses : tuple of tuples of str
        Pairs or triples of columns of categories whose combinations of values have a table.
    numbers : tuple of WholeNumbers
        Columns of numbers whose values are treated as categories, by themselves or in crosses.
    taken : tuple of str
        The names of the `numbers` that have a table of their own.
    sloped : tuple of (str, str)
        Pairs of a column of codes and an encoded column of numbers: a further number of each value is the slope of the
        target in the number among the rows of the value, minus the slope over all rows; see `slope_deviations`.
    """

    table: TableEncoding
    outputs: tuple[str, ...]
    tables: tuple[np.ndarray, ...]
    priors: tuple[np.ndarray, ...] = ()
    centred: tuple[tuple[str, str], ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[WholeNumbers, ...] = ()
    taken: tuple[str, ...] = ()
    sloped: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        places = self.places
        shapes = [(key.size, places.n_numbers(k)) for k, key in enumerate(places.keys)]
        if [np.shape(table) for table in self.tables] != shapes:
            raise ValueError(
                f"the tables of categories have the shapes {[np.shape(table) for table in self.tables]}; their columns "
                f"and values ask for {shapes}"
            )

    @property
    def made(self) -> Made:
        """The crosses, centred and sloped numbers and numbers treated as categories that the fit added."""
        return Made(self.centred, self.crosses, self.numbers, self.taken, self.sloped)

    @cached_property
    def tabled(self) -> tuple[tuple[str, ...], ...]:
        """The names of the columns behind each table: one column, or the columns of a cross."""
        codes = [rule.name for rule in self.table.rules if rule.kind == "code"]
        return (*((name,) for name in (*codes, *self.taken)), *self.crosses)

    @cached_property
    def rules(self) -> tuple[ColumnRule, ...]:
        """The rules of the table encoding, with the names of the columns that replace codes."""
        return named_rules(self.table, self.outputs, self.made)

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules for name in rule.output_names]

    @property
    def array_dtype(self) -> str:
        """The `array_dtype` of the table encoding."""
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
    def left_out(self) -> tuple[tuple[str, str], ...]:
        return self.table.left_out

    @property
    def has_codes(self) -> bool:
        """False: the result has numbers in place of codes."""
        return False

    @cached_property
    def passthrough(self) -> np.ndarray:
        """bool (n_columns,): columns that scalers leave alone (one-hot, booleans, flags)."""
        return np.array([keep for rule in self.rules for keep in rule.passthrough], bool)

    @cached_property
    def learned(self) -> np.ndarray:
        """bool (n_columns,): columns of numbers that the fit learned, which differ by fold for rows of one value."""
        return self.places.source >= len(self.places.kept)

    @cached_property
    def places(self) -> CodePlaces:
        """The places of the codes in the encoded rows, and of the numbers that replace them."""
        return code_places(self.table, len(self.outputs), self.made)

    def transform(
        self,
        frame: GivenRows,
        *,
        first_row: int = 0,
        dtype: np.dtype | None = None,
        differences: Differences | None = None,
    ) -> np.ndarray | sparse.csr_array:
        """Encode the rows of a data frame; see `TableEncoding.transform` for the arguments and what is refused.

        Codes become the target means over all rows of the fit. The fit itself used, for each of its rows, means without
        the fold of this row, so that its rows are not encoded here as they were there.
        """
        rows = self.table.transform(frame, first_row=first_row, dtype=dtype, differences=differences)
        return self.places.with_numbers(rows, self.tables, None)

    def with_decimal(self, decimal: Mark | None, *, is_named: bool) -> FittedEncoding:
        """`TableEncoding.with_decimal` of the table."""
        return replace(self, table=self.table.with_decimal(decimal, is_named=is_named))

    def tables_for(self, other: TableEncoding) -> tuple[np.ndarray, ...]:
        """The tables for the codes of another encoding, (V' + 1, ...) each: values are matched by their names.

        Raises
        ------
        ValueError
            If a column of codes holds no codes in the other encoding.
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
                made.append(table)
                continue
            # our code of each of their values, then of each of their pairs, then triples; code 0 is a missing value
            rows = np.zeros(1, np.int64)
            for place, name in enumerate(names):
                codes: Mapping[str, int] = {text: 1 + code for code, text in enumerate(ours[name].categories)}
                own = np.array([0, *(codes.get(text, 0) for text in theirs[name].categories)])
                size = counts.get(name, len(codes))
                if name in counts:
                    # the values of numbers are listed in our encoding alone, so that their codes agree
                    own = np.arange(size + 1)
                if place == 0:
                    rows = own
                else:
                    pairs = 1 + (rows[1:, None] - 1) * size + own[None, 1:] - 1
                    is_known = (rows[1:, None] > 0) & (own[None, 1:] > 0)
                    rows = np.append(0, np.where(is_known, pairs, 0).ravel())
            made.append(table[rows])
        return tuple(made)

    def describe(self) -> str:
        """The rules of the table, and a line on the numbers that replace codes."""
        return f"{self.table.describe()}\n{self.summary}: {self.n_columns} columns"

    @property
    def summary(self) -> str:
        """A sentence on the numbers that replace codes: their names, priors, crosses, centred numbers and slopes."""
        means = ", ".join(repr(name) for name in self.outputs)
        crosses = [" x ".join(cross) for cross in self.crosses]
        # the priors of target means come first, those of centred numbers are not shown
        shown = [
            f"{' x '.join(names)} {_range_text(prior[: len(self.outputs) - 1])}"
            for names, prior in zip(self.tabled, self.priors, strict=False)
        ]
        parts = [f"of {'codes' if self.table.has_codes else 'categories'} the fit made {means}"]
        if shown and len(self.outputs) > 1:
            parts.append(f"weight of the overall mean in the mean of a value, in rows: {', '.join(shown)}")
        if crosses:
            parts.append(f"crosses that gain on held-out rows: {', '.join(crosses)}")
        if self.centred:
            less = [f"{number} by {name}" for name, number in self.centred]
            parts.append(f"numbers minus their mean in a category, which gain: {', '.join(less)}")
        if self.sloped:
            slopes = [f"{number} by {name}" for name, number in self.sloped]
            parts.append(f"slopes of the target in a number, which differ by category: {', '.join(slopes)}")
        return "; ".join(parts)


def category_reasons(encoding: object) -> tuple[str, ...]:
    """`FittedEncoding.summary` as one of the reasons of a machine; empty for other encodings."""
    return (f"Categories: {encoding.summary}.",) if isinstance(encoding, FittedEncoding) else ()


def _range_text(priors: np.ndarray) -> str:
    """One number, or the least and the largest of several."""
    least, largest = priors.min(), priors.max()
    return f"{least:g}" if least == largest else f"{least:g} to {largest:g}"


@dataclass(frozen=True)
class Made:
    """The columns that a fit adds to the numbers of codes; parameters as in `FittedEncoding`."""

    centred: tuple[tuple[str, str], ...] = ()
    crosses: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[WholeNumbers, ...] = ()
    taken: tuple[str, ...] = ()
    sloped: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.centred or self.crosses or self.taken or self.sloped)


def named_rules(encoding: TableEncoding, outputs: tuple[str, ...], made: Made) -> tuple[ColumnRule, ...]:
    """The rules of a table encoding, with names for the columns that replace codes and for those that are added."""

    def names(rule: ColumnRule) -> tuple[str, ...]:
        own = [f"{rule.name}: {name}" for name in outputs if rule.kind == "code" or rule.name in made.taken]
        slopes = [number for by, number in made.sloped if by == rule.name]
        own += [f"{rule.name}: slope of {name} in {number}" for number in slopes for name in outputs[:-1]]
        own += [f"{number} less its mean by {rule.name}" for by, number in made.centred if by == rule.name]
        crossed = [" x ".join(cross) for cross in made.crosses if cross[0] == rule.name]
        return (*own, *(f"{cross}: {name}" for cross in crossed for name in outputs))

    return tuple(replace(rule, outputs=names(rule)) for rule in encoding.rules)


def code_places(encoding: TableEncoding, width: int, made: Made) -> CodePlaces:
    """The places of the codes, added numbers and crosses of a table encoding; each gets `width` columns and more.

    Raises
    ------
    ValueError
        If a column of a cross, or a column that is centred or has slopes, is missing.
    """
    parts, columns = category_parts(encoding, made.numbers), encoding.column_names
    missing = [name for cross in (*made.crosses, made.taken) for name in cross if name not in parts]
    missing += [number for _, number in (*made.centred, *made.sloped) if number not in columns]
    if missing:
        raise ValueError(
            f"these rows lack the columns {missing}, from which the model computes crosses, centred numbers or slopes"
        )
    codes = [name for name, part in parts.items() if part.is_code]
    keys = [CategoryKey((parts[name],)) for name in (*codes, *made.taken)]
    keys += [CategoryKey(tuple(parts[name] for name in cross)) for cross in made.crosses]
    return CodePlaces(
        tuple(keys),
        len(columns),
        width,
        tuple((codes.index(name), columns.index(number)) for name, number in made.centred),
        tuple(codes.index(name) for name, _ in made.sloped),
    )
