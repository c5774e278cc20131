"""TableEncoding: the rules that turn raw table columns into the encoded columns of a dataset, in fit and in predict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from dkl.data.checks import did_you_mean, no_rows, spoken_names
from dkl.data.columns.deciding import Marks, decide_columns
from dkl.data.columns.encoded import Encoded, encoded
from dkl.data.columns.free_text import DIRECTION, TextDirections
from dkl.data.columns.numbers import Mark, NumberForm
from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import ColumnRule, Missing, with_places
from dkl.data.ingest.columns import array_table, as_table, check_kinds, column_kind, names_of_columns
from dkl.data.ingest.dates import staged, zone_of
from dkl.data.ingest.statistics import TableStatistics, statistics_of
from dkl.data.other_frames import as_pandas_rows
from dkl.errors import Problems

Layout = Literal["auto", "dense", "sparse"]


def worth_sparse(n_columns: int, density: float) -> bool:
    """Whether rows are stored as CSR: from 256 columns on, if at most 5 % of the values are nonzero.

    Up to that density products with CSR rows are no slower than dense ones, and the rows take a tenth of the space.
    """
    return n_columns >= 256 and density <= 0.05


@dataclass(frozen=True)
class TableEncoding:
    """The rules that turn raw table columns into encoded columns.

    Rows that differ from those of fit (a missing value in a column without any, a new category, additional columns,
    another order of the columns) are encoded too, with a `dkl.errors.TableDifferenceWarning` that counts them.

    Parameters
    ----------
    rules : tuple of ColumnRule
        One rule for each raw column, in the order of the encoded columns. Columns of a table may be in any order.
    is_sparse : bool
        Whether encoded rows are a ``csr_array`` instead of an ndarray.
    unknown : {"zeros", "error"}
        Whether a category that fit did not have sets no column, or is an error.
    ignored : tuple of str
        Columns that a table may have in addition (targets, weights, columns left out).
    array_dtype : str
        The dtype of the arrays of fit, whose columns are identified by position; empty for tables.
    directions : tuple of TextDirections
        The directions of the columns of free text, in the order of the columns.
    left_out : tuple of (str, str)
        Columns of the rows of a fit that the fit left out, with the reason in words; they are in `ignored`, too.

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
    left_out: tuple[tuple[str, str], ...] = ()

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules for name in rule.output_names]

    @property
    def n_columns(self) -> int:
        return len(self.column_names)

    @property
    def has_codes(self) -> bool:
        """Whether a fit replaces columns: codes of categories, and coordinates of free text."""
        return any(rule.kind == "code" for rule in self.rules) or self.has_texts

    @property
    def text_names(self) -> list[str]:
        """The columns of free text, in the order of `directions`."""
        return [rule.name for rule in self.rules if rule.kind == "text"]

    @property
    def has_texts(self) -> bool:
        """Whether it has free text whose columns no fit has replaced yet."""
        return any(rule.kind == "text" and rule.categories[0].startswith(DIRECTION) for rule in self.rules)

    def with_all_directions(self) -> TableEncoding:
        """The encoding as a store has it: coordinates along all directions of free text, which fits replace."""
        whole = {each.name: replace(each, mixing=None) for each in self.directions}
        rules = tuple(
            replace(rule, categories=whole[rule.name].column_names) if rule.name in whole else rule
            for rule in self.rules
        )
        return replace(self, rules=rules, directions=tuple(whole.values()))

    @cached_property
    def dtype(self) -> np.dtype:
        """dtype of encoded rows: that of arrays; for tables float64 if any column needs it, else float32."""
        if self.array_dtype:
            return np.dtype(self.array_dtype)
        return np.dtype(np.float64 if any(rule.double for rule in self.rules) else np.float32)

    @cached_property
    def passthrough(self) -> np.ndarray:
        """Whether scalers leave each encoded column unchanged (one-hot, booleans, flags): (n_columns,) bool."""
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
            With the columns of the rules, in any order; or an array with columns in the same order, if the encoding was
            learned from an array.
        first_row : int
            The number of the first row in messages.
        dtype : dtype or None
            dtype of the encoded rows; None is that of the encoding.
        differences : Differences or None
            Collects differences from the rows of fit, which the caller reports; None reports them here.

        Returns
        -------
        X : ndarray or csr_array of shape (n, n_columns)

        Raises
        ------
        ValueError
            For absent columns, infinite numbers, texts in place of numbers, missing values if the encoding was learned
            with ``missing="error"``, unknown categories with ``unknown="error"``. The message lists all errors.
        TypeError
            For a column of lists or bytes, or of times if fit had none in it.
        """
        found = Differences() if differences is None else differences
        if self.array_dtype and isinstance(frame, np.ndarray):
            frame = array_table(frame)
        frame = frame if isinstance(frame, pa.Table) else as_pandas_rows(frame)
        known = {rule.name for rule in self.rules}
        table = as_table(frame, only=known)
        found.see(table.num_rows)
        problems, values = Problems(), list[Encoded]()
        shape, dtype = (table.num_rows, self.n_columns), dtype or self.dtype
        dense = None if self.is_sparse else np.zeros(shape, dtype)
        with problems.collected():
            self._check_names(names_of_columns(frame), found)
        # absent columns are in the message already; errors of the others are added to it
        there = set(table.column_names)
        of_texts = {each.name: each for each in self.directions}
        for rule, start in with_places(self.rules):
            with problems.collected():
                if rule.name in there:
                    column = table.column(rule.name)
                    of_text = of_texts.get(rule.name)
                    value = encoded(rule, column, found, of_text, unknown=self.unknown, first_row=first_row)
                    # at once, since the float64 values of all columns would take twice the memory of the rows
                    values.append(value) if dense is None else _set_columns(dense, value, rule, start)
        problems.raise_all()
        if differences is None or found.strict:
            found.say()
        return _sparse_rows(values, self.rules, shape, dtype) if dense is None else dense

    def _check_names(self, names: list[str], differences: Differences) -> None:
        known = [rule.name for rule in self.rules]
        absent = sorted(set(known) - set(names))
        if absent:
            raise ValueError(
                f"the table lacks the columns {spoken_names(absent)}{did_you_mean(absent[0], names)}; expected "
                f"{spoken_names(known)}, got {spoken_names(names)}"
            )
        differences.add_names(known, names, self.ignored)

    def with_directions(self, directions: Sequence[TextDirections]) -> TableEncoding:
        """The encoding from `from_json` with the directions of free text, which JSON does not contain.

        Raises
        ------
        ValueError
            If they do not match its columns of free text.
        """
        widths = {rule.name: len(rule.categories) for rule in self.rules if rule.kind == "text"}
        # earlier releases wrote the directions of texts that a fit left out, too
        directions = [each for each in directions if each.name in widths or each.name not in self.ignored]
        given = {each.name: each.n_columns for each in directions}
        if list(widths.items()) != list(given.items()):
            raise ValueError(f"the directions of free text are of {given}; the rules ask for {widths}")
        return replace(self, directions=tuple(directions))

    def with_decimal(self, decimal: Mark | None, *, is_named: bool) -> TableEncoding:
        """The encoding for texts whose decimal mark is `decimal`, and in which the other mark groups thousands.

        If the rows that a column was learned from have the other mark, its texts are read in both forms: first with
        `decimal` if the user has named it; otherwise first with the learned mark, since a file may have columns of
        either mark. None changes nothing.
        """
        if decimal is None:
            return self
        rules = []
        for rule in self.rules:
            form = NumberForm.of(rule.form) if rule.kind == "number" else None
            if form is not None and form.decimal != decimal:
                first, second = form, form.with_decimal(decimal)
                if is_named:
                    first, second = second, first
                rule = replace(rule, form=str(replace(first, other=second)))
            rules.append(rule)
        return replace(self, rules=tuple(rules))

    def describe(self, *, brief: bool = False) -> str:
        """A text with one line for each run of columns that share a rule, and the layout of the encoded rows.

        Parameters
        ----------
        brief : bool
            Leave out what is filled in for values that are missing later alone, so that more columns share a line.
        """
        shared = attrgetter("brief_treatment" if brief else "treatment")
        runs = [(text, [rule.name for rule in run]) for text, run in groupby(self.rules, shared)]
        lines = [
            f"{', '.join(names)}: {text}"
            if len(names) < 4
            else f"{names[0]} to {names[-1]} ({len(names)} columns): {text}"
            for text, names in runs
        ]
        lines += [f"{name}: {why}" for name, why in self.left_out]
        layout = "CSR (wide and mostly zero)" if self.is_sparse else "dense"
        return "\n".join(
            [*lines, f"{len(self.rules)} columns become {self.n_columns} encoded ones, {layout}, {self.dtype}"]
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values from which `from_json` makes an equal encoding, except for `directions`."""
        rules = [asdict(rule) | {"categories": list(rule.categories), "parts": list(rule.parts)} for rule in self.rules]
        for rule in rules:
            # fields that older releases lack are omitted if they have their default, so that equal rules have equal
            # texts in all releases
            for name in ("double", "outputs", "parts", "unforeseen", "form", "zone", "unread", "why"):
                # an empty zone (no time zone) and 0.0 differ from the default, None
                if not rule[name] and (name, rule[name]) != ("zone", "") and (name, rule[name]) != ("unforeseen", 0.0):
                    del rule[name]
        plain = {"rules": rules, "is_sparse": self.is_sparse, "unknown": self.unknown, "ignored": list(self.ignored)}
        left_out = {"left_out": [list(pair) for pair in self.left_out]} if self.left_out else {}
        return plain | left_out | ({"array_dtype": self.array_dtype} if self.array_dtype else {})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TableEncoding:
        """The encoding that `to_json` wrote."""
        rules = tuple(
            ColumnRule(**(rule | {name: tuple(rule.get(name, ())) for name in ("categories", "parts", "outputs")}))
            for rule in plain["rules"]
        )
        array_dtype = str(plain.get("array_dtype", ""))
        left_out = tuple((str(name), str(why)) for name, why in plain.get("left_out", ()))
        ignored = tuple(plain["ignored"])
        return cls(rules, bool(plain["is_sparse"]), plain["unknown"], ignored, array_dtype, left_out=left_out)


def columns_as_texts(encoding: TableEncoding | None, *, is_text: bool) -> list[str]:
    """The columns that files are read as texts for an encoding; `is_text` says whether the files are texts.

    Values of a category may look like numbers in these files; of text files, which have no types, all columns are read
    as texts, which the rules parse.
    """
    known = () if encoding is None or encoding.array_dtype else encoding.rules
    return [rule.name for rule in known if is_text or rule.kind in ("category", "code")]


def takes_columns_as_they_are(encoding: TableEncoding) -> bool:
    """Whether encoding changes nothing: all columns are typed numbers or booleans without a value for missing ones."""
    return all(rule.kind in ("number", "boolean") and rule.fill is None and not rule.form for rule in encoding.rules)


def learn_encoding(
    frames: Iterable[Any],
    *,
    categorical: Collection[str] = (),
    ignored: Collection[str] = (),
    **options: Any,
) -> TableEncoding:
    """Learn the encoding of a table from its parts (Arrow tables or pandas frames), each read once.

    See `decide_encoding` for the rules, the errors and the `options`.
    """
    names, problems = set(ignored), Problems()

    def features() -> Iterator[pa.Table]:
        """The parts without columns that are no features."""
        rows, zones = 0, dict[str, str]()
        for table in map(as_table, frames):
            found = table.select([name for name in table.column_names if name not in names])
            if not rows:
                with problems.collected():
                    check_kinds(found.schema.remove_metadata())
                # columns with an error are left out, and the others are checked for further errors
                names.update(field.name for field in found.schema if column_kind(field.type) is None)
                found = found.select([name for name in found.column_names if name not in names])
            rows += table.num_rows
            yield _in_zones(found, zones)

    statistics = statistics_of(features(), categorical=categorical)
    if statistics is None or not statistics.rows:
        raise ValueError(no_rows((0, len(statistics.columns) if statistics else 0)))
    if problems and not statistics.columns:
        problems.raise_all()
    with problems.collected():
        encoding = decide_encoding(statistics, categorical=categorical, ignored=ignored, **options)
    problems.raise_all()
    return encoding


def _in_zones(table: pa.Table, zones: dict[str, str]) -> pa.Table:
    """A table with dates in the time zones of earlier tables, which `zones` has by column; new ones are added to it."""
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
    leave_out_empty: bool = False,
    deferred: list[Callable[[], None]] | None = None,
    problems: Problems | None = None,
) -> TableEncoding:
    """The encoding that follows from the statistics of all rows, by the rules of `decide_rule` and `worth_sparse`.

    Parameters
    ----------
    statistics : TableStatistics
    categorical, missing, unknown, layout
        As of `dkl.ingest`.
    ignored : collection of str
        Columns that tables may have in addition.
    without, with_names : str
        The caller's options to leave columns out, and to use texts that differ in (almost) every row as categories, for
        warnings; ``{}`` stands for the list of columns.
    marks : Marks or None
        The decimal marks of numbers in texts.
    leave_out_empty : bool
        Whether columns without any value are left out, with a warning; otherwise they are an error.
    deferred : list of callable, or None
        Receives a function that issues the warnings, for the caller to call if there is no error; None issues them now.
    problems : Problems or None
        Collects errors.

    Raises
    ------
    ValueError
        If columns have no rule (too many values, no value, out of range; the message lists all), `categorical` contains
        a name that is not a column, or no column remains.
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
    decided = decide_columns(
        statistics, categorical, missing, marks or Marks(), problems, leave_out_empty=leave_out_empty
    )
    problems.raise_all()
    if not decided.rules:
        raise ValueError(
            f"no column is left to learn from: the texts of {spoken_names(decided.row_names)} differ in (almost) every "
            f"row; to use them all the same, {with_names.format(decided.row_names)}"
        )
    if deferred is None:
        decided.warn(without, with_names)
    else:
        deferred.append(partial(decided.warn, without, with_names))
    rules = decided.rules
    # the mean number of nonzero values in a row, counting all numbers as nonzero
    width = sum(len(rule.output_names) for rule in rules)
    set_a_row = sum(rule.entries for rule in rules) + sum(rule.missing for rule in rules) / statistics.rows
    is_sparse = layout == "sparse" or (layout == "auto" and worth_sparse(width, set_a_row / width))
    ignored = (*ignored, *decided.row_names, *decided.empty)
    left_out = tuple((name, "left out, since no row has a value there") for name in decided.empty)
    directions = tuple(decided.directions)
    return TableEncoding(tuple(rules), is_sparse, unknown, ignored, directions=directions, left_out=left_out)


def _set_columns(X: np.ndarray, value: Encoded, rule: ColumnRule, start: int) -> None:
    """Write the encoded columns of one raw column, which are adjacent from `start` on, into dense rows of zeros."""
    if isinstance(value.column, np.ndarray):
        # each row sets one of the one-hot columns, or none for a missing or unknown category
        rows = np.flatnonzero(value.column >= 0)
        X[rows, start + value.column[rows]] = 1.0
    elif isinstance(value.values, np.ndarray) and value.values.ndim == 2:
        X[:, start : start + rule.n_values] = value.values
    else:
        X[:, start] = value.values
    if value.missing is not None:
        X[:, start + rule.n_values] = value.missing


def _sparse_rows(
    values: list[Encoded], rules: tuple[ColumnRule, ...], shape: tuple[int, int], dtype: np.dtype
) -> sparse.csr_array:
    """The CSR rows of encoded raw columns, without entries that are 0."""
    n_rows, n_slots = shape[0], sum(rule.entries + rule.flags_missing for rule in rules)
    # a slot is a potential entry of a row: one for each raw column and each flag, several for times and texts
    columns = np.empty((n_rows, n_slots), np.int32)
    data = np.empty((n_rows, n_slots), dtype)
    slot = 0
    for value, (rule, start) in zip(values, with_places(rules), strict=True):
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
    # slots are in the order of the columns, so that the indices of the remaining ones are sorted
    there = data != 0
    indptr = np.zeros(n_rows + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=indptr[1:])
    return sparse.csr_array((data[there], columns[there], indptr), shape=shape)
