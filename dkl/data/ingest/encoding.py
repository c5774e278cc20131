"""TableEncoding: how the raw columns of tables become the encoded columns of a dataset, at ingest and at predict."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from dkl.data.checks import no_rows, reads_as_number, spoken_names
from dkl.data.differences import Differences
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import (
    ColumnRule,
    Missing,
    decide_rule,
    differs_in_every_row,
    why_no_dates,
    why_no_numbers,
)
from dkl.data.ingest.columns import (
    array_table,
    as_table,
    check_exact,
    check_kinds,
    column_kind,
    names_of_columns,
    numbers,
    texts,
    why_unusable,
)
from dkl.data.ingest.dates import (
    DATE_KINDS,
    date_kind,
    dates_in_form,
    dates_in_texts,
    days,
    encoded_days,
    spoken_form,
    written_dates,
)
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

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules for name in rule.output_names]

    @property
    def n_columns(self) -> int:
        return len(self.column_names)

    @property
    def has_codes(self) -> bool:
        """Whether some of the encoded columns hold codes of categories rather than numbers."""
        return any(rule.kind == "code" for rule in self.rules)

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
        for rule in self.rules:
            with problems.collected():
                if rule.name in there:
                    values.append(_encode(rule, table.column(rule.name), self.unknown, first_row, told))
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
        """Plain lists, texts and numbers, from which `from_json` makes an equal encoding."""
        rules = [asdict(rule) | {"categories": list(rule.categories), "parts": list(rule.parts)} for rule in self.rules]
        for rule in rules:
            # Written so by the releases that knew neither float64, codes nor dates: equal rules have equal texts.
            for name, usual in (("double", ""), ("outputs", ()), ("parts", []), ("unforeseen", None), ("form", "")):
                if rule[name] == usual:
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
    """Whether raw columns are the encoded ones: all of them numbers, and none filled in."""
    return all(rule.kind in ("number", "boolean") and rule.fill is None for rule in encoding.rules)


def learn_encoding(
    frames: Iterable[Any],
    *,
    categorical: Collection[str] = (),
    missing: Missing = "auto",
    unknown: Literal["zeros", "error"] = "zeros",
    layout: Layout = "auto",
    ignored: Collection[str] = (),
    without: str = "drop={}",
) -> TableEncoding:
    """Learn the encoding of tables that come in pieces (Arrow tables, pandas frames), read once.

    See `decide_encoding` for the rules and the errors; `without` is how the caller leaves columns out.
    """
    names = set(ignored)
    parts: list[TableStatistics] = []
    row, problems = 0, Problems()
    # Statistics of pieces are merged in their order, so that sums do not depend on how many pieces were in memory.
    for table in map(as_table, frames):
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
        )
    problems.raise_all()
    return encoding


def decide_encoding(
    statistics: TableStatistics,
    *,
    categorical: Collection[str] = (),
    missing: Missing = "auto",
    unknown: Literal["zeros", "error"] = "zeros",
    layout: Layout = "auto",
    ignored: Collection[str] = (),
    without: str = "drop={}",
) -> TableEncoding:
    """The encoding that follows from the statistics of all rows, by the rules of `decide_rule` and `worth_sparse`.

    `without` is how the caller leaves columns out, for a warning.

    Raises
    ------
    ValueError
        Columns that no rule fits (high cardinality, no value, out of range): all of them in one message; a name in
        `categorical` that is no column; no column at all.
    """
    rules, problems = [], Problems()
    absent = sorted(set(categorical) - {column.name for column in statistics.columns})
    if absent:
        names = [column.name for column in statistics.columns]
        problems.add(
            ValueError(f"categorical={absent} names columns that are not there; the columns are {spoken_names(names)}")
        )
    if not statistics.columns:
        problems.add(ValueError("no column is left to learn from"))
        problems.raise_all()
    # The user's own choice keeps even a column of texts that differ in every row.
    aside = [c for c in statistics.columns if c.name not in categorical and differs_in_every_row(c)]
    names_aside = [column.name for column in aside]
    for place, column in enumerate(statistics.columns):
        if column.name not in names_aside:
            with problems.collected():
                chosen = column.name in categorical
                rules.append(decide_rule(column, missing, statistics.why_double(place), chosen=chosen))
    problems.raise_all()
    for column in statistics.columns:
        for sentence in (why_no_dates(column), why_no_numbers(column)) if column.name not in categorical else ():
            if sentence:
                warnings.warn(sentence, UserWarning, stacklevel=3)
    if not rules:
        raise ValueError(
            f"no column is left to learn from: the texts of {spoken_names(names_aside)} differ in (almost) every row; "
            f"to use them all the same, name them: categorical={names_aside}"
        )
    if aside:
        warnings.warn(
            f"{spoken_names(names_aside)} set aside: texts that differ in (almost) every row are names of rows, from "
            f"which nothing can be learned. Leave them out, {without.format(names_aside)}, to hear no more of it; to "
            f"use them all the same, name them: categorical={names_aside}",
            UserWarning,
            stacklevel=3,
        )
    # In a row each raw column sets one encoded column, and its flag where the value is missing; every number is taken
    # for one that is not zero.
    width = sum(len(rule.output_names) for rule in rules)
    set_a_row = sum(rule.entries for rule in rules) + sum(rule.missing for rule in rules) / statistics.rows
    is_sparse = layout == "sparse" or (layout == "auto" and worth_sparse(width, set_a_row / width))
    return TableEncoding(tuple(rules), is_sparse, unknown, (*ignored, *names_aside))


@dataclass(frozen=True, eq=False)
class _Encoded:
    """One raw column after its rule: for each row the encoded column that it sets (-1: none), its value, its flag.

    Of times the values are those of all encoded columns, (n, k).
    """

    column: np.ndarray | int
    values: np.ndarray | float
    missing: np.ndarray | None


_HELD = {"number": "numbers", "boolean": "booleans", "category": "texts", "code": "texts"}
_HELD |= {kind: f"{kind}s" for kind in DATE_KINDS}


def _encode(rule: ColumnRule, column: pa.ChunkedArray, unknown: str, first_row: int, told: Differences) -> _Encoded:
    if column_kind(column.type) is None:
        raise TypeError(f"{why_unusable(rule.name, column.type).split(': ')[0]}, and held {_HELD[rule.kind]} before")
    if rule.kind == "category":
        return _encode_category(rule, column, unknown, first_row, told)
    if rule.kind == "code":
        codes = _encode_category(replace(rule, fill=0.0), column, unknown, first_row, told).column
        return _Encoded(0, np.asarray(codes) + 1.0, None)
    if rule.kind in DATE_KINDS:
        return _encode_times(rule, column, first_row, told)
    return _encode_number(rule, column, first_row, told)


def _encode_category(
    rule: ColumnRule, column: pa.ChunkedArray, unknown: str, first_row: int, told: Differences
) -> _Encoded:
    """The number of each row's category; -1, which sets no column, where it is missing or was never seen."""
    names = texts(column)
    missing = np.asarray(names.is_null().to_numpy())
    _check_missing(rule, missing, first_row, told)
    places = pc.index_in(names, value_set=pa.array(rule.categories, pa.string()), skip_nulls=True)
    codes = np.asarray(places.fill_null(-1).to_numpy())
    strange = np.flatnonzero((codes < 0) & ~missing)
    kind = column_kind(column.type)
    # Numbers or booleans where none of the categories looks like one: another column, most likely, under this name.
    was_of_texts = kind in ("number", "boolean", *DATE_KINDS) and not any(
        text in ("true", "false") or reads_as_number(text) or written_dates(pa.array([text]))
        for text in rule.categories
    )
    if len(strange) and (unknown == "error" or was_of_texts):
        what = "a category that was not there before" if kind == "category" else f"a {kind}, and held texts before"
        raise ValueError(
            f"column '{rule.name}' is '{names[int(strange[0])]}' in row {first_row + strange[0]}, {what}; known are "
            f"{list(rule.categories[:20])}"
        )
    if len(strange):
        example = names[int(strange[0])].as_py()
        told.add(rule.name, strange, first_row, f"holds categories that were not there, such as {example!r}", "unseen")
    return _Encoded(codes, 1.0, missing if rule.flags_missing else None)


def _encode_times(rule: ColumnRule, column: pa.ChunkedArray, first_row: int, told: Differences) -> _Encoded:
    """The days and the cycles of a column that held times, or texts of them."""
    kind, times = column_kind(column.type), column
    if column.null_count == len(column):
        times = pa.nulls(len(column), pa.timestamp("us"))
    elif kind == "category":
        written = _dates_of(rule, texts(column))
        times = column if written is None else written
        if written is None:
            for row, value in enumerate(texts(column)):
                if value.is_valid and _dates_of(rule, pa.array([value])) is None:
                    form = f" as {spoken_form(rule.form)}, or" if rule.form else ""
                    raise ValueError(
                        f"column '{rule.name}' is {value.as_py()!r} in row {first_row + row}, and held {rule.kind}s "
                        f"before; write it{form} as 2026-11-22 or 2026-11-22 17:30, or leave it empty"
                    )
    if date_kind(times.type) != rule.kind and times.null_count < len(times):
        raise TypeError(f"column '{rule.name}' holds {times.type} values, and held {rule.kind}s before")
    values = days(times)
    missing = np.isnan(values)
    _check_missing(rule, missing, first_row, told)
    return _Encoded(0, encoded_days(values, rule.parts, rule.filling), missing if rule.flags_missing else None)


def _dates_of(rule: ColumnRule, written: pa.Array | pa.ChunkedArray) -> Any:
    """Texts as dates, in the form of the rule or in ISO 8601; None where one of them is none."""
    dates = dates_in_form(written, rule.form)
    return dates_in_texts(written) if dates is None else dates


def _encode_number(rule: ColumnRule, column: pa.ChunkedArray, first_row: int, told: Differences) -> _Encoded:
    """The numbers of a column that held numbers or booleans, filled where they are missing."""
    if date_kind(column.type) is not None:
        raise TypeError(f"column '{rule.name}' holds dates or times ({column.type}), and held {rule.kind}s before")
    check_exact(rule.name, column, first_row)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        # Texts that are numbers, read whole, are taken for them.
        values = numbers(column)
    except pa.ArrowInvalid:
        # Arrow names the value, but not its row: each is tried by itself up to the first that is no number.
        for row, value in enumerate(column):
            try:
                value.cast(pa.float64())
            except pa.ArrowInvalid:
                raise ValueError(
                    f"column '{rule.name}' is {value.as_py()!r} in row {first_row + row}, and held {rule.kind}s "
                    "before; correct it, or leave it empty where missing values are allowed"
                ) from None
        raise
    missing = np.isnan(values)
    _check_missing(rule, missing, first_row, told)
    with np.errstate(over="ignore"):
        # A number beyond float32 becomes infinite there, and would be refused by the kernels without its column's name.
        infinite = np.flatnonzero(np.isinf(values.astype(np.float32)))
    if len(infinite):
        raise ValueError(
            f"column '{rule.name}' is {values[infinite[0]]:g} in row {first_row + infinite[0]}; numbers must be finite "
            f"and within float32"
        )
    # Another number in a column of booleans is most likely another column under this name.
    strange = np.flatnonzero((values != 0) & (values != 1) & ~missing)
    if rule.kind == "boolean" and len(strange):
        raise ValueError(
            f"column '{rule.name}' is {values[strange[0]]:g} in row {first_row + strange[0]}, and held booleans "
            "before; expected true or false, or 1 or 0"
        )
    if rule.filling is not None:
        values = np.where(missing, rule.filling, values)
    return _Encoded(0, values, missing if rule.flags_missing else None)


def _check_missing(rule: ColumnRule, missing: np.ndarray, first_row: int, told: Differences) -> None:
    """Tell of missing values where the encoding was learned without any, or refuse them where nothing fills them."""
    if rule.fill is None and rule.unforeseen is not None and missing.any():
        filled = "all of its columns are 0" if rule.kind == "category" else f"filled with {rule.unforeseen:.6g}"
        what = f"is missing, and never was ({filled})"
        told.add(rule.name, np.flatnonzero(missing), first_row, what, "missing")
    if rule.filling is None and missing.any():
        row = first_row + int(np.flatnonzero(missing)[0])
        raise ValueError(
            f"column '{rule.name}' is missing (NaN) in row {row}, and no value of it was missing when the encoding was "
            f"learned; fill it, or learn with missing='mean'"
        )


def _dense_rows(
    values: list[_Encoded], rules: tuple[ColumnRule, ...], shape: tuple[int, int], dtype: np.dtype
) -> np.ndarray:
    """Dense rows: each raw column fills the encoded columns that are its own, which lie side by side."""
    X = np.zeros(shape, dtype)
    start = 0
    for encoded, rule in zip(values, rules, strict=True):
        if isinstance(encoded.column, np.ndarray):
            # Each row sets one of the one-hot columns; those of missing and unknown categories set none.
            rows = np.flatnonzero(encoded.column >= 0)
            X[rows, start + encoded.column[rows]] = 1.0
        elif isinstance(encoded.values, np.ndarray) and encoded.values.ndim == 2:
            X[:, start : start + rule.n_values] = encoded.values
        else:
            X[:, start] = encoded.values
        if encoded.missing is not None:
            X[:, start + rule.n_values] = encoded.missing
        start += len(rule.output_names)
    return X


def _sparse_rows(
    values: list[_Encoded], rules: tuple[ColumnRule, ...], shape: tuple[int, int], dtype: np.dtype
) -> sparse.csr_array:
    """CSR rows: every raw column offers one entry a row, and one for its flag; those that are zero are left out."""
    n_rows, n_slots = shape[0], sum(rule.entries + rule.flags_missing for rule in rules)
    # A slot is an entry that a row may have: one a raw column, several a time, and one a flag. Their number is the same
    # in all rows.
    columns = np.empty((n_rows, n_slots), np.int32)
    data = np.empty((n_rows, n_slots), dtype)
    start = slot = 0
    for encoded, rule in zip(values, rules, strict=True):
        if rule.entries > 1:
            columns[:, slot : slot + rule.entries] = start + np.arange(rule.entries)
            data[:, slot : slot + rule.entries] = encoded.values
        else:
            columns[:, slot] = start + encoded.column
            values_there = np.ravel(encoded.values)
            data[:, slot] = np.where(np.asarray(encoded.column) >= 0, values_there, 0.0)
        slot += rule.entries
        if encoded.missing is not None:
            columns[:, slot] = start + rule.n_values
            data[:, slot] = encoded.missing
            slot += 1
        start += len(rule.output_names)
    # Slots come in the order of the columns, so that what is left of them is CSR with sorted indices.
    there = data != 0
    indptr = np.zeros(n_rows + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=indptr[1:])
    return sparse.csr_array((data[there], columns[there], indptr), shape=shape)
