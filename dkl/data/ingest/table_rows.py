"""TableRows: rows of table files (CSV, Parquet) on their way to temporary disk and from there to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import did_you_mean, spoken_names
from dkl.data.columns.deciding import Marks, two_spellings_warning
from dkl.data.columns.numbers import Mark
from dkl.data.differences import Differences
from dkl.data.ingest.column_rules import Missing, decide_rule
from dkl.data.ingest.columns import column_kind
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import Layout, TableEncoding, columns_as_texts, decide_encoding
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.staging import ROW
from dkl.data.ingest.statistics import ColumnStatistics, TableStatistics, table_statistics
from dkl.data.ingest.tables import MistypedColumnsError, Probe, TableFormat, common_schema, file_tables, probed
from dkl.data.ingest.target_columns import (
    GroupOrTimeColumn,
    SplitColumn,
    Target,
    TargetSummary,
    WeightSummary,
)
from dkl.data.missing_targets import say_dropped
from dkl.data.other_rules import check_left_to_rules
from dkl.data.schema import HeldBy, Schema, Task
from dkl.errors import Problems, RowError, hint, warn_user
from dkl.plain_text import first_few

_BYTES_AFTER_ERROR = 64 * 2**20
"""Bytes of rows that are read after the first error, so that one message can list further errors."""


@dataclass(frozen=True)
class TableChoices:
    """The arguments of `dkl.ingest` about columns; of `like` it has the schema."""

    target: str | None = None
    weight: str | None = None
    drop: Collection[str] = ()
    task: Literal["auto"] | Task = "auto"
    categorical: Collection[str] = ()
    missing: Missing = "auto"
    unknown: Literal["zeros", "error"] = "zeros"
    layout: Layout = "auto"
    split: str | None = None
    group: str | None = None
    time: str | None = None
    held_by: HeldBy | None = None
    drop_missing_target: bool = False
    like: Schema | None = None

    def __post_init__(self) -> None:
        if self.like is not None:
            decided = {"drop": self.drop, "task": self.task, "categorical": self.categorical}
            check_left_to_rules(**decided, missing=self.missing, unknown=self.unknown, layout=self.layout)
        if self.drop_missing_target and self.target is None and self.like is None:
            raise ValueError("drop_missing_target=True asks for rows that have a target, and target names no column")
        for name, allowed in (
            ("task", ("auto", "classification", "regression")),
            ("unknown", ("zeros", "error")),
            ("layout", ("auto", "dense", "sparse")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")
        if isinstance(self.missing, str) and self.missing not in ("auto", "mean", "error"):
            raise ValueError(f"missing is {self.missing!r}; expected 'auto', 'mean', 'error' or a number")
        for name in ("drop", "categorical"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is the text {getattr(self, name)!r}; expected names in a list")

    @property
    def not_features(self) -> list[str]:
        """The columns with a role that are not features; a time is a feature unless `drop` contains it."""
        return [name for name in self.roles if name != self.time or name in self.drop]

    @property
    def roles(self) -> list[str]:
        """The columns of targets, weights, splits, groups and times."""
        names = (self.target, self.weight, self.split, self.group, self.time)
        return [name for name in names if name is not None]


class TableRows:
    """The rows of table files.

    Parameters
    ----------
    files : list of InputFile
    reader : TableFormat
    choices : TableChoices
    as_text : tuple of str
        Columns that are read as texts, whatever their types in the first rows.
    """

    def __init__(
        self, files: list[InputFile], reader: TableFormat, choices: TableChoices, as_text: tuple[str, ...] = ()
    ) -> None:
        probes = probed(files, reader)
        self._given = files, reader, choices, as_text
        self._problems = Problems(place=self._add_file)
        # an unnamed index is never read, so that `drop` may contain its name in the file
        unread = {name for probe in probes for name in probe.unnamed_index}
        choices = replace(choices, drop=[name for name in choices.drop if name not in unread])
        # filled for rows that are encoded like others
        self._differences, unknown = Differences(option=""), list[str]()
        if choices.like is not None:
            choices, unknown = self._like_others(choices, choices.like, probes[0].schema.names)
        choices = _valid_choices(
            choices, probes[0].schema.names, self._problems, f" of '{files[0].name}'" if files else ""
        )
        texts = [*choices.categorical, choices.split, choices.group, _text_time(choices.time, probes)]
        self._marks = marks_of(probes, reader)
        self._like: TableEncoding | None = None
        if choices.like is not None:
            decimal, is_named = decimal_of(probes, reader)
            # the rules of `like` for these files, whose numbers may have another decimal mark
            self._like = choices.like.encoding.with_decimal(decimal, is_named=is_named)
            # typed numbers are read ten times as fast as texts; a column that holds others is read again as texts
            typed = [rule.name for rule in self._like.rules if rule.kind == "number" and not (rule.form or decimal)]
            texts += set(columns_as_texts(self._like, is_text=isinstance(reader, CsvFormat))) - set(typed)
            texts += [choices.target] if choices.like.has_text_labels else []
        self._schema = common_schema(
            probes,
            drop=[*unknown, *(name for name in choices.drop if name != choices.time)],
            as_text=[*as_text, *(name for name in texts if name and name != choices.weight)],
            are_texts=isinstance(reader, CsvFormat),
            further=self._problems,
        )
        if self._problems:
            # reading goes on without the columns that have errors, to find further errors
            choices = _valid_choices(choices, self._schema.names, Problems(), "")
        self._files, self._reader, self._choices = [probe.file for probe in probes], reader, choices
        self._probes = probes
        # categorical columns are staged as texts, which must not be read as numbers
        self._names = {f.name for probe in probes for f in probe.schema if pa.types.is_dictionary(f.type)}
        self.target_name = choices.target
        self.staged_bytes = sum(probe.staged_bytes for probe in probes)
        self._statistics: TableStatistics | None = None
        named = choices.target in {*choices.categorical, *self._names}
        self._target = TargetSummary(choices.target, self._marks, is_named=named) if choices.target else None
        self._weight = WeightSummary(choices.weight) if choices.weight else None
        self.split = SplitColumn(choices.split) if choices.split else None
        self._row_columns: list[GroupOrTimeColumn] = []
        if choices.group is not None:
            self._row_columns.append(GroupOrTimeColumn(choices.group, "group"))
        if choices.time is not None:
            self._row_columns.append(GroupOrTimeColumn(choices.time, "time"))
        self._faulty: set[str] = set()
        self._dropped = self._weightless = 0
        # the number of the first row and the name of each file read so far
        self._file_starts: list[tuple[int, str]] = []
        self._cut_short = False
        self._decided: tuple[TableEncoding, Target | None] | None = None

    def _like_others(self, choices: TableChoices, like: Schema, names: list[str]) -> tuple[TableChoices, list[str]]:
        """The choices with the roles of columns as in `like`, and the columns that it does not know."""
        roles: dict[str, Any] = {role: known.name for role, known in like.row_columns.items()}
        roles["target"] = like.provenance.get("target")
        found = {role: name for role, name in roles.items() if getattr(choices, role) is None and name in names}
        known = [rule.name for rule in like.encoding.rules]
        for role in ("target", "weight", "group"):
            if getattr(choices, role) in known:
                raise ValueError(
                    f"{role}='{getattr(choices, role)}' names a column that is a feature by the rules of like=; name "
                    "another one"
                )
        choices = replace(choices, **found)
        self._differences.add_names(known, names, [*like.encoding.ignored, *choices.roles])
        return choices, [name for name in names if name not in {*known, *choices.roles}]

    @property
    def _features(self) -> list[str]:
        return [name for name in self._schema.names if name not in self._choices.not_features]

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """All rows as tables for staging, each with its number of input bytes.

        After an error some more rows are read to find further ones; `decide` raises one error that lists all.
        """
        row = further = 0
        try:
            for table, n_bytes in file_tables(self._files, self._reader, self._schema, self._file_starts):
                # statistics do not include rows that are left out; the other rows keep their numbers
                kept = self._with_positive_weight(self._with_target(table, row), row)
                row += table.num_rows
                if not kept.num_rows:
                    continue
                self._add_statistics(kept, self._statistics.rows if self._statistics is not None else 0)
                yield kept, n_bytes
                if self._problems or self._infinite:
                    further += table.nbytes
                    if further > _BYTES_AFTER_ERROR:
                        self._cut_short = True
                        return
        except MistypedColumnsError:
            raise
        except (ValueError, TypeError) as error:
            self._problems.add(error)
            self._cut_short = True
            self.decide()

    def with_texts(self, names: Collection[str]) -> TableRows:
        """The same rows with further columns read as texts."""
        files, reader, choices, as_text = self._given
        return TableRows(files, reader, choices, (*as_text, *names))

    @property
    def detected_dialects(self) -> list[str]:
        """The detected delimiters and encodings that are not the usual ones, with the files that have them."""
        files: dict[str, list[str]] = {}
        for probe in self._probes:
            if probe.dialect:
                files.setdefault(probe.dialect, []).append(f"'{probe.file.name}'")
        return [f"{' '.join(first_few(names, 1))}: {dialect}" for dialect, names in files.items()]

    def _with_target(self, table: pa.Table, row: int) -> pa.Table:
        """The rows with a target, numbered in `ROW`, if `drop_missing_target` is set; else the table itself."""
        if not self._choices.drop_missing_target or self._target is None:
            return table
        there = pc.invert(pc.is_null(table.column(self._target.name), nan_is_null=True))
        kept = table.append_column(ROW, pa.array(np.arange(row, row + table.num_rows))).filter(there)
        self._dropped += table.num_rows - kept.num_rows
        return kept

    def _with_positive_weight(self, table: pa.Table, row: int) -> pa.Table:
        """The rows with a positive weight, numbered in `ROW`; the table itself if there are no weights."""
        weight = self._weight
        if weight is None or weight.name in self._faulty:
            return table
        # after its first error a column is not checked any more
        self._faulty.add(weight.name)
        with self._problems.collected():
            counts = weight.add(table.column(weight.name))
            self._faulty.remove(weight.name)
            self._weightless += int(np.count_nonzero(~counts))
            if ROW not in table.column_names:
                table = table.append_column(ROW, pa.array(np.arange(row, row + table.num_rows)))
            table = table.filter(pa.array(counts))
        return table

    @property
    def _uncounted_rows(self) -> str:
        """The rows that row numbers in errors do not count, as a part of a sentence; empty if there are none."""
        left_out = {"have no target": self._dropped, "have a weight of 0": self._weightless}
        return " and ".join(f"the {n:,} that {why}" for why, n in left_out.items() if n)

    def _add_file(self, error: ValueError | TypeError) -> None:
        """Add a note to an error about a row of the input, with the file and the row's number there."""
        # if rows were left out, row numbers in errors are not numbers of the input
        if (
            not isinstance(error, RowError)
            or self._uncounted_rows
            or not self._file_starts
            or hasattr(error, "__notes__")
        ):
            return
        first, name = max(start for start in self._file_starts if start[0] <= error.row)
        error.add_note(f"at '{name}', row {error.row - first + 1}{self._after}")

    @property
    def _after(self) -> str:
        return " after the header" if isinstance(self._reader, CsvFormat) else ""

    @property
    def _infinite(self) -> list[ColumnStatistics]:
        return (
            []
            if self._statistics is None
            else [column for column in self._statistics.columns if column.infinite is not None]
        )

    def _add_statistics(self, table: pa.Table, row: int) -> None:
        features, like = table.select(self._features), self._like
        if like is not None and not self._problems:
            with self._problems.collected():
                # these rows are encoded again in their final order, where their numbers are no longer known
                like.transform(features, first_row=row, differences=self._differences)
        seen = table_statistics(
            features if like is None else features.select([]),
            categorical=self._choices.categorical,
            names=self._names,
            first_row=row,
        )
        self._statistics = seen if self._statistics is None else self._statistics.merge(seen)
        for summary in (self._target, self.split, *self._row_columns):
            if summary is None or summary.name in self._faulty:
                continue
            self._faulty.add(summary.name)
            with self._problems.collected():
                summary.add(table.column(summary.name))
                self._faulty.remove(summary.name)

    def decide(self) -> Schema:
        """The schema of the dataset, after all rows were read.

        Raises
        ------
        ValueError, TypeError
            For all errors in columns and values, in one message.
        """
        try:
            schema = self._decided_schema(self._problems)
        except (ValueError, TypeError) as error:
            if self._uncounted_rows:
                error.add_note(f"rows are counted without {self._uncounted_rows}")
            raise
        if self._dropped:
            rows = self._dropped + self._weightless + (0 if self._statistics is None else self._statistics.rows)
            say_dropped(self._dropped, rows, str(self._choices.target))
        return schema

    def _decided_schema(self, problems: Problems) -> Schema:
        if self._cut_short:
            # statistics are incomplete, so that only errors in values that were read are certain
            for column in self._infinite:
                with problems.collected():
                    decide_rule(column, self._choices.missing)
            problems.raise_all("the files were not read further")
        if self._statistics is None and self._dropped and not self._weightless:
            say_dropped(self._dropped, self._dropped, str(self._choices.target))
        if self._statistics is None and self._weight is not None and self._weightless:
            self._weight.check()
        if self._statistics is None:
            raise ValueError(f"the input has no rows: {[file.name for file in self._files]}")
        target = None
        if self._weight is not None and self._weight.name not in self._faulty:
            with problems.collected():
                self._weight.check()
        if self._target is not None and self._target.name not in self._faulty:
            with problems.collected():
                like = self._choices.like
                target = self._target.decide(self._choices.task) if like is None else self._target.decide_like(like)
        deferred: list[Callable[[], None]] = (
            [partial(_report_target_form, target, self._target)] if target is not None else []
        )
        if self._choices.like is not None:
            encoding: TableEncoding = self._choices.like.encoding
            deferred.append(self._differences.say)
        elif self._statistics.columns or not problems:
            with problems.collected():
                encoding = self._encoding(self._statistics, deferred)
        problems.raise_all()
        # warnings are issued only if there is no error
        self._warn_of_spellings()
        for warn in deferred:
            warn()
        self._decided = encoding, target
        return Schema(
            n_columns=encoding.n_columns,
            dtype=encoding.dtype,
            is_sparse=encoding.is_sparse,
            task=target.task if target else None,
            classes=target.classes if target else None,
            column_names=encoding.column_names,
            encoding=encoding,
            passthrough=encoding.passthrough,
            has_weight=self._weight is not None,
            row_columns={column.role: column.known for column in self._row_columns},
            held_by=self._choices.held_by or next((column.role for column in self._row_columns), None),
            provenance={"target_form": target.form} if target and target.form else {},
        )

    def _warn_of_spellings(self) -> None:
        """Warn of columns of numbers, including the target, with two spellings of a number."""
        choices = self._choices
        names = [*self._features, *([choices.target] if choices.target else [])]
        for name in names:
            dtype = self._schema.field(name).type
            if name in choices.categorical or not pa.types.is_floating(dtype):
                continue
            twice = next((probe.two_spellings[name] for probe in self._probes if name in probe.two_spellings), None)
            if twice is not None:
                warn_user(two_spellings_warning(name, *twice))

    def _encoding(self, seen: TableStatistics, deferred: list[Callable[[], None]]) -> TableEncoding:
        choices = self._choices
        return decide_encoding(
            seen,
            categorical=[name for name in choices.categorical if name not in choices.not_features],
            missing=choices.missing,
            unknown=choices.unknown,
            layout=choices.layout,
            ignored=[*choices.not_features, *choices.drop],
            marks=self._marks,
            deferred=deferred,
            problems=Problems(place=self._add_file),
        )

    def encode(self, table: pa.Table) -> tuple[Any, ...]:
        """The rows of a staged table as (X, codes or targets, weights, row numbers, groups and times by role)."""
        if self._decided is None:
            raise RuntimeError("decide() comes before encode()")
        encoding, target = self._decided
        # differences from the rules of `like` were recorded while the rows were read
        X = (self._like or encoding).transform(table.select(self._features), differences=Differences())
        y = target.encode(table.column(self._choices.target)) if target is not None else None
        weight = None
        if self._weight is not None:
            weight = table.column(self._weight.name).cast(pa.float64()).to_numpy()
        if self.split is not None:
            self.split.place(table.column(self.split.name))
        columns = {column.role: column.codes(table.column(column.name)) for column in self._row_columns}
        return X, y, weight, table.column(ROW).to_numpy(), columns


def _report_target_form(target: Target, summary: TargetSummary | None) -> None:
    """Report the form in which the texts of a target are read as numbers."""
    if summary is None or not target.form:
        return
    percents = ", 15 for 15 %" if target.form.endswith("%") else ""
    hint(
        f"texts are taken for numbers in the target {summary.name!r} (written as {target.form}){percents}; "
        f"where these are labels, say so: categorical=['{summary.name}']",
        f"target as numbers: {summary.name} {target.form}",
    )


def marks_of(probes: Sequence[Probe], reader: TableFormat) -> Marks:
    """The decimal marks of numbers in texts, as the user chose or the files suggest."""
    order = (".", ";", ",")
    default = max((probe.default for probe in probes), key=order.index)
    if not isinstance(reader, CsvFormat):
        return Marks(default=default)
    return Marks(
        reader.decimal,
        default,
        "decimal={} (an argument of dkl.CsvFormat)",
        "null_values=[...] (an argument of dkl.CsvFormat; --na in the shell)",
    )


def decimal_of(probes: Sequence[Probe], reader: TableFormat) -> tuple[Mark | None, bool]:
    """The decimal mark that the user named, or that columns of the files certainly have, and whether it was named."""
    marks = marks_of(probes, reader)
    return marks.decimal or ("," if marks.default == "," else None), marks.decimal is not None


def _text_time(name: str | None, probes: list[Probe]) -> str | None:
    """The column of times if it is staged as text; None if all files have numbers, or dates without a time zone."""
    types = [] if name is None else [probe.schema.field(name).type for probe in probes]
    kinds = {(column_kind(dtype), getattr(dtype, "tz", None)) for dtype in types}
    return None if kinds in ({("number", None)}, {("date", None)}) else name


def _valid_choices(choices: TableChoices, names: list[str], problems: Problems, where: str) -> TableChoices:
    """The choices without names that are not columns or have two roles, which are added to `problems` as errors.

    `where` follows the word "column" in messages: " of 'rows.parquet'", or nothing for a table in memory.
    """
    there, found = set(names), spoken_names(names)
    kept: dict[str, Any] = {}
    for role in ("target", "weight", "split", "group", "time"):
        name = getattr(choices, role)
        if name is not None and name not in there:
            meant = did_you_mean(name, names)
            problems.add(ValueError(f"{role}='{name}' is no column{where}{meant or f'; the columns are {found}'}"))
            kept[role] = None
        elif name is not None and name in choices.drop and role != "time":
            problems.add(ValueError(f"{role}='{name}' is also in drop"))
            kept[role] = None
    if len(set(choices.roles)) < len(choices.roles):
        problems.add(ValueError(f"target, weight, split, group and time are different columns; got {choices.roles}"))
        kept |= {"weight": None, "split": None, "group": None, "time": None}
    for what in ("drop", "categorical"):
        given = getattr(choices, what)
        if absent := sorted(set(given) - there):
            meant = "".join(dict.fromkeys(did_you_mean(name, names) for name in absent))
            problems.add(
                ValueError(f"{what}={absent} names columns that are not there{meant or f'; the columns are {found}'}")
            )
            kept[what] = [name for name in given if name in there]
    return replace(choices, **kept) if kept else choices
