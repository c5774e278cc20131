"""TableEncoding: how the raw columns of tables become the encoded columns of a dataset, at ingest and at predict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from dkl.data.checks import did_you_mean, no_rows, spoken_names
from dkl.data.columns.deciding import Marks, decided_columns
from dkl.data.columns.encoded import Encoded, encoded
from dkl.data.columns.free_text import TextDirections
from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import DIRECTION, ColumnRule, Missing
from dkl.data.ingest.columns import array_table, as_table, check_kinds, column_kind, names_of_columns
from dkl.data.ingest.dates import staged, zone_of
from dkl.data.ingest.statistics import TableStatistics, merged, table_statistics
from dkl.data.other_frames import as_known_rows
from dkl.errors import Problems

Layout = Literal["auto", "dense", "sparse"]


def worth_sparse(n_columns: int, density: float) -> bool:
    """The one rule for the layout of rows: CSR from 256 columns on when at most 5 % of the values are not zero.

    Below that density the products with CSR rows are no slower than dense ones, and the rows take a tenth of the space.
    """
    return n_columns >= 256 and density <= 0.05


@dataclass(frozen=True)
class TableEncoding:
    """How raw table columns become encoded columns.

    Rows that are unlike those that the rules were learned from (a value is missing in a column where none was, a
    category is new, there are further columns, or they come in another order) are encoded all the same, with one
    `dkl.errors.TableDifferenceWarning` that counts them.

    Parameters
    ----------
    rules : tuple of ColumnRule
        One a raw column, in the order of the encoded columns. Columns are found by name, in any order.
    is_sparse : bool
        Encoded rows are a ``csr_array`` rather than an ndarray.
    unknown : {"zeros", "error"}
        A category that was not seen when the encoding was learned sets none of its columns, or is an error.
    ignored : tuple of str
        Columns that a table may have beside the encoded ones (targets, weights, columns left out).
    array_dtype : str
        The dtype of the arrays that it was learned from, whose columns are found by position; empty for tables.
    directions : tuple of TextDirections
        Of the columns of free text, in their order.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"age": [31.0, None, 45.0], "colour": ["red", "blue", "red"]})
    >>> encoding = learn_encoding([rows])
    >>> encoding.column_names
    ['age', 'age=<missing>', 'colour=blue', 'colour=red']
    >>> encoding.transform(rows)
    array([[31.,  0.,  0.,  1.],
           [38.,  1.,  1.,  0.],
           [45.,  0.,  0.,  1.]], dtype=float32)
    """

    rules: tuple[ColumnRule, ...]
    is_sparse: bool = False
    unknown: Literal["zeros", "error"] = "zeros"
    ignored: tuple[str, ...] = ()
    array_dtype: str = ""
    directions: tuple[TextDirections, ...] = ()

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules for name in rule.output_names]

    @property
    def n_columns(self) -> int:
        return len(self.column_names)

    @property
    def has_codes(self) -> bool:
        """Whether a fit makes other columns of some: of codes of categories, and of directions of free text."""
        return any(rule.kind == "code" for rule in self.rules) or self.has_texts

    @property
    def text_names(self) -> list[str]:
        """The columns of free text, in the order of `directions`."""
        return [rule.name for rule in self.rules if rule.kind == "text"]

    @property
    def has_texts(self) -> bool:
        """Whether there is free text of which no fit has made anything yet."""
        return any(rule.kind == "text" and rule.categories[0].startswith(DIRECTION) for rule in self.rules)

    @cached_property
    def dtype(self) -> np.dtype:
        """Of encoded rows: that of arrays, and of tables float64 where one column needs it, else float32."""
        if self.array_dtype:
            return np.dtype(self.array_dtype)
        return np.dtype(np.float64 if any(rule.double for rule in self.rules) else np.float32)

    @cached_property
    def passthrough(self) -> np.ndarray:
        """bool (n_columns,): columns that scalers leave alone (one-hot, booleans, flags)."""
        return np.array([keep for rule in self.rules for keep in rule.passthrough], bool)

    def transform(
        self,
        frame: GivenRows,
        *,
        first_row: int = 0,
        dtype: np.dtype | None = None,
        differences: Differences | None = None,
    ) -> np.ndarray | sparse.csr_array:
        """Encode the rows of a pandas DataFrame or an Arrow table.

        Parameters
        ----------
        frame : DataFrame or pyarrow.Table of n rows
            Has the columns of the rules, in any order. An array, by the position of its columns, where the encoding was
            learned from one.
        first_row : int
            The number of the first row, for messages.
        dtype : dtype or None
            Of the encoded rows; None is the `dtype` of the encoding.
        differences : Differences or None
            Takes what is unlike the rows of fit, for the caller to say; None says it here.

        Returns
        -------
        X : ndarray or csr_array of shape (n, n_columns)

        Raises
        ------
        ValueError
            A column is missing, a number is infinite or no number; a value is missing in a column of an encoding of
            ``missing="error"``; a category is unknown and ``unknown="error"``. All that is wrong is listed.
        TypeError
            A column holds lists or bytes, or times where it held none.
        """
        told = Differences() if differences is None else differences
        if self.array_dtype and isinstance(frame, np.ndarray):
            frame = array_table(frame)
        frame = frame if isinstance(frame, pa.Table) else as_known_rows(frame)
        known = {rule.name for rule in self.rules}
        table = as_table(frame, only=known)
        told.see(table.num_rows)
        problems, values = Problems(), []
        with problems.collected():
            self._check_names(names_of_columns(frame), told)
        # Columns that are missing were named above; what is wrong with the others is said in the same message.
        there = set(table.column_names)
        of_texts = {each.name: each for each in self.directions}
        for rule in self.rules:
            with problems.collected():
                if rule.name in there:
                    column = table.column(rule.name)
                    of_text = of_texts.get(rule.name)
                    values.append(encoded(rule, column, told, of_text, unknown=self.unknown, first_row=first_row))
        problems.raise_all()
        if differences is None or told.strict:
            told.say()
        assemble = _sparse_rows if self.is_sparse else _dense_rows
        return assemble(values, self.rules, (table.num_rows, self.n_columns), dtype or self.dtype)

    def _check_names(self, names: list[str], told: Differences) -> None:
        known = [rule.name for rule in self.rules]
        absent = sorted(set(known) - set(names))
        if absent:
            raise ValueError(
                f"the table lacks the columns {spoken_names(absent)}; expected {spoken_names(known)}, "
                f"got {spoken_names(names)}"
            )
        told.add_names(known, names, self.ignored)

    def with_directions(self, directions: Sequence[TextDirections]) -> TableEncoding:
        """The encoding that `from_json` made, with what JSON has no place for.

        Raises
        ------
        ValueError
            They are not those of its columns of free text.
        """
        widths = {rule.name: len(rule.categories) for rule in self.rules if rule.kind == "text"}
        given = {each.name: each.n_columns for each in directions}
        if list(widths.items()) != list(given.items()):
            raise ValueError(f"the directions of free text are of {given}; the rules ask for {widths}")
        return replace(self, directions=tuple(directions))

    def describe(self) -> str:
        """The rules, a line for neighbouring columns that share one, and the layout that follows."""
        runs = [(text, [rule.name for rule in run]) for text, run in groupby(self.rules, attrgetter("treatment"))]
        lines = [
            f"{', '.join(names)}: {text}"
            if len(names) < 4
            else f"{names[0]} to {names[-1]} ({len(names)} columns): {text}"
            for text, names in runs
        ]
        layout = "CSR (wide and mostly zero)" if self.is_sparse else "dense"
        return "\n".join(
            [*lines, f"{len(self.rules)} columns become {self.n_columns} encoded ones, {layout}, {self.dtype}"]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain lists, texts and numbers, from which `from_json` makes an equal encoding, but for `directions`."""
        rules = [asdict(rule) | {"categories": list(rule.categories), "parts": list(rule.parts)} for rule in self.rules]
        for rule in rules:
            # Written so by the releases that knew neither float64, codes nor dates: equal rules have equal texts.
            for name in ("double", "outputs", "parts", "unforeseen", "form", "zone", "unread", "why"):
                # those that are not None, which is a zone that is not known, and an empty one is a clock
                if not rule[name] and (name, rule[name]) != ("zone", "") and (name, rule[name]) != ("unforeseen", 0.0):
                    del rule[name]
        plain = {"rules": rules, "is_sparse": self.is_sparse, "unknown": self.unknown, "ignored": list(self.ignored)}
        return plain | ({"array_dtype": self.array_dtype} if self.array_dtype else {})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TableEncoding:
        """The encoding that `to_json` wrote."""
        rules = tuple(
            ColumnRule(**(rule | {name: tuple(rule.get(name, ())) for name in ("categories", "parts", "outputs")}))
            for rule in plain["rules"]
        )
        array_dtype = str(plain.get("array_dtype", ""))
        return cls(rules, bool(plain["is_sparse"]), plain["unknown"], tuple(plain["ignored"]), array_dtype)


def takes_columns_as_they_are(encoding: TableEncoding) -> bool:
    """Whether raw columns are the encoded ones: all of them numbers, none of them in texts, and none filled in."""
    return all(rule.kind in ("number", "boolean") and rule.fill is None and not rule.form for rule in encoding.rules)


def learn_encoding(
    frames: Iterable[Any],
    *,
    categorical: Collection[str] = (),
    missing: Missing = "auto",
    unknown: Literal["zeros", "error"] = "zeros",
    layout: Layout = "auto",
    ignored: Collection[str] = (),
    without: str = "drop={}",
    said: list[Callable[[], None]] | None = None,
) -> TableEncoding:
    """Learn the encoding of tables that come in pieces (Arrow tables, pandas frames), read once.

    See `decide_encoding` for the rules, the errors, `without` and `said`.
    """
    names = set(ignored)
    parts: list[TableStatistics] = []
    row, problems = 0, Problems()
    zones: dict[str, str] = {}
    # Statistics of pieces are merged in their order, so that sums do not depend on how many pieces were in memory.
    for table in map(as_table, frames):
        table = _in_zones(table, zones)
        features = table.select([name for name in table.column_names if name not in names])
        if not row:
            with problems.collected():
                check_kinds(features.schema.remove_metadata())
            # Columns that cannot be read were named once; the rows are looked at without them for what else is wrong.
            names |= {field.name for field in features.schema if column_kind(field.type) is None}
            features = features.select([name for name in features.column_names if name not in names])
        of_table = table_statistics(features, categorical=categorical, first_row=row)
        parts = [merged([*parts, of_table])]
        row += table.num_rows
    if not row:
        raise ValueError(no_rows((0, len(parts[0].columns) if parts else 0)))
    if problems and not parts[0].columns:
        problems.raise_all()
    with problems.collected():
        encoding = decide_encoding(
            parts[0],
            categorical=categorical,
            missing=missing,
            unknown=unknown,
            layout=layout,
            ignored=ignored,
            without=without,
            said=said,
        )
    problems.raise_all()
    return encoding


def _in_zones(table: pa.Table, zones: dict[str, str]) -> pa.Table:
    """A table whose points in time have the zones of the tables before it, which are noted in `zones`."""
    for place, field in enumerate(table.schema):
        zone = zone_of(field.type)
        if zone and zones.setdefault(field.name, zone) != zone:
            table = table.set_column(place, field.name, staged(table.column(place), zones[field.name]))
    return table


def decide_encoding(
    statistics: TableStatistics,
    *,
    categorical: Collection[str] = (),
    missing: Missing = "auto",
    unknown: Literal["zeros", "error"] = "zeros",
    layout: Layout = "auto",
    ignored: Collection[str] = (),
    without: str = "drop={}",
    with_names: str = "name them: categorical={}",
    marks: Marks | None = None,
    said: list[Callable[[], None]] | None = None,
    problems: Problems | None = None,
) -> TableEncoding:
    """The encoding that follows from the statistics of all rows, by the rules of `decide_rule` and `worth_sparse`.

    `without` is how the caller leaves columns out, and `with_names` how texts that differ in (almost) every row become
    categories all the same, for a warning; `marks` how the texts write numbers; `said` takes the
    warnings, for the caller to give them once nothing else is wrong; `problems` collects what is wrong.

    Raises
    ------
    ValueError
        Columns that no rule fits (high cardinality, no value, out of range): all of them in one message; a name in
        `categorical` that is no column; no column at all.
    """
    problems = Problems() if problems is None else problems
    absent = sorted(set(categorical) - {column.name for column in statistics.columns})
    if absent:
        names = [column.name for column in statistics.columns]
        problems.add(
            ValueError(
                f"categorical={absent} names columns that are not "
                f"there{''.join(did_you_mean(n, names) for n in absent)}"
                f"; the columns are {spoken_names(names)}"
            )
        )
    if not statistics.columns:
        problems.add(ValueError("no column is left to learn from"))
        problems.raise_all()
    decided = decided_columns(statistics, categorical, missing, marks or Marks(), problems)
    problems.raise_all()
    if not decided.rules:
        raise ValueError(
            f"no column is left to learn from: the texts of {spoken_names(decided.aside)} differ in (almost) every "
            f"row; to use them all the same, {with_names.format(decided.aside)}"
        )
    if said is None:
        decided.say(without, with_names)
    else:
        said.append(partial(decided.say, without, with_names))
    rules = decided.rules
    # In a row each raw column sets one encoded column, and its flag where the value is missing; every number is taken
    # for one that is not zero.
    width = sum(len(rule.output_names) for rule in rules)
    set_a_row = sum(rule.entries for rule in rules) + sum(rule.missing for rule in rules) / statistics.rows
    is_sparse = layout == "sparse" or (layout == "auto" and worth_sparse(width, set_a_row / width))
    ignored = (*ignored, *decided.aside)
    return TableEncoding(tuple(rules), is_sparse, unknown, ignored, directions=tuple(decided.directions))


def _dense_rows(
    values: list[Encoded], rules: tuple[ColumnRule, ...], shape: tuple[int, int], dtype: np.dtype
) -> np.ndarray:
    """Dense rows: each raw column fills the encoded columns that are its own, which lie side by side."""
    X = np.zeros(shape, dtype)
    start = 0
    for value, rule in zip(values, rules, strict=True):
        if isinstance(value.column, np.ndarray):
            # Each row sets one of the one-hot columns; those of missing and unknown categories set none.
            rows = np.flatnonzero(value.column >= 0)
            X[rows, start + value.column[rows]] = 1.0
        elif isinstance(value.values, np.ndarray) and value.values.ndim == 2:
            X[:, start : start + rule.n_values] = value.values
        else:
            X[:, start] = value.values
        if value.missing is not None:
            X[:, start + rule.n_values] = value.missing
        start += len(rule.output_names)
    return X


def _sparse_rows(
    values: list[Encoded], rules: tuple[ColumnRule, ...], shape: tuple[int, int], dtype: np.dtype
) -> sparse.csr_array:
    """CSR rows: every raw column offers one entry a row, and one for its flag; those that are zero are left out."""
    n_rows, n_slots = shape[0], sum(rule.entries + rule.flags_missing for rule in rules)
    # A slot is an entry that a row may have: one a raw column, several a time, and one a flag. Their number is the same
    # in all rows.
    columns = np.empty((n_rows, n_slots), np.int32)
    data = np.empty((n_rows, n_slots), dtype)
    start = slot = 0
    for value, rule in zip(values, rules, strict=True):
        if rule.entries > 1:
            columns[:, slot : slot + rule.entries] = start + np.arange(rule.entries)
            data[:, slot : slot + rule.entries] = value.values
        else:
            columns[:, slot] = start + value.column
            values_there = np.ravel(value.values)
            data[:, slot] = np.where(np.asarray(value.column) >= 0, values_there, 0.0)
        slot += rule.entries
        if value.missing is not None:
            columns[:, slot] = start + rule.n_values
            data[:, slot] = value.missing
            slot += 1
        start += len(rule.output_names)
    # Slots come in the order of the columns, so that what is left of them is CSR with sorted indices.
    there = data != 0
    indptr = np.zeros(n_rows + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=indptr[1:])
    return sparse.csr_array((data[there], columns[there], indptr), shape=shape)
