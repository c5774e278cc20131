"""Table files as rows of a dataset: what is staged, what is found on the way, and how staged rows are encoded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import did_you_mean, spoken_names
from dkl.data.columns.deciding import Marks, written_twice
from dkl.data.ingest.column_rules import Missing, decide_rule
from dkl.data.ingest.columns import column_kind
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import Layout, TableEncoding, decide_encoding
from dkl.data.ingest.packing import NumberPacking
from dkl.data.ingest.paths import InputFile
from dkl.data.ingest.staging import ROW
from dkl.data.ingest.statistics import ColumnStatistics, TableStatistics, table_statistics
from dkl.data.ingest.tables import Probe, Retyped, TableFormat, common_schema, file_tables, probed
from dkl.data.ingest.target_columns import (
    SplitColumn,
    Target,
    TargetSummary,
    TogetherColumn,
    WeightSummary,
)
from dkl.data.missing_targets import say_dropped
from dkl.data.schema import HeldBy, Schema, Task
from dkl.errors import Problems, RowError, hint, users_level

_FURTHER_BYTES = 64 * 2**20
"""Once something is wrong, so many bytes of further rows are looked at for what else is."""


@dataclass(frozen=True)
class TableChoices:
    """What the user says of the columns; see `dkl.ingest`."""

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

    def __post_init__(self) -> None:
        if self.drop_missing_target and self.target is None:
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
    def beside(self) -> list[str]:
        """The columns with a role that are no features; a time is one, unless it is left out."""
        return [name for name in self.roles if name != self.time or name in self.drop]

    @property
    def roles(self) -> list[str]:
        """The columns that have a role."""
        names = (self.target, self.weight, self.split, self.group, self.time)
        return [name for name in names if name is not None]


class TableRows:
    """Rows of table files.

    Parameters
    ----------
    files : list of InputFile
    reader : TableFormat
    choices : TableChoices
    as_text : tuple of str
        Columns that are read as texts, whatever their first rows look like.
    """

    def __init__(
        self, files: list[InputFile], reader: TableFormat, choices: TableChoices, as_text: tuple[str, ...] = ()
    ) -> None:
        probes = probed(files, reader)
        self._given = files, reader, choices, as_text
        self._problems = Problems(place=self._add_file)
        # an index without a name is never read, and may be left out by the name that the file gives it
        unread = {name for probe in probes for name in probe.unnamed_index}
        choices = replace(choices, drop=[name for name in choices.drop if name not in unread])
        choices = _possible(choices, probes[0].schema.names, self._problems, f" of '{files[0].name}'" if files else "")
        texts = (*choices.categorical, choices.split, choices.group, _text_time(choices.time, probes))
        self._marks = marks_of(probes, reader)
        # where points may stand between thousands, numbers are read as they are written
        open_points = {name for probe in probes for name in probe.either_mark} if self._marks.decimal == "," else set()
        self._schema = common_schema(
            probes,
            drop=[name for name in choices.drop if name != choices.time],
            as_text=[*as_text, *open_points, *(name for name in texts if name and name != choices.weight)],
            are_texts=isinstance(reader, CsvFormat),
            further=self._problems,
        )
        if self._problems:
            # rows are read on for what else is wrong, without the columns that cannot be read
            choices = _possible(choices, self._schema.names, Problems(), "")
        self._files, self._reader, self._choices = [probe.file for probe in probes], reader, choices
        self._probes = probes
        # categories travel as texts, and are names all the same
        self._names = {f.name for probe in probes for f in probe.schema if pa.types.is_dictionary(f.type)}
        self.target_name = choices.target
        self._packing = NumberPacking(self._schema)
        self.staged_bytes = sum(probe.staged_bytes for probe in probes)
        self._seen: TableStatistics | None = None
        named = choices.target in {*choices.categorical, *self._names}
        self._target = TargetSummary(choices.target, self._marks, is_named=named) if choices.target else None
        self._weight = WeightSummary(choices.weight) if choices.weight else None
        self.split = SplitColumn(choices.split) if choices.split else None
        self._together: list[TogetherColumn] = []
        if choices.group is not None:
            self._together.append(TogetherColumn(choices.group, "group"))
        if choices.time is not None:
            self._together.append(TogetherColumn(choices.time, "time"))
        self._refused: set[str] = set()
        self._dropped = self._weightless = 0
        # the first row of each file that was read so far, and the file
        self._starts: list[tuple[int, str]] = []
        self._cut_short = False
        self._decided: tuple[TableEncoding, Target | None] | None = None

    @property
    def _features(self) -> list[str]:
        return [name for name in self._schema.names if name not in self._choices.beside]

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """All rows as they are to be staged, with the bytes of input that each table accounts for.

        Where something is wrong, some more rows are read for what else is; `decide` raises one error for all of it.
        """
        row = further = 0
        try:
            for table, n_bytes in file_tables(self._files, self._reader, self._schema, self._starts):
                # rows that are left out are not there for what is learned of the others, which keep their numbers
                kept = self._counted(self._with_target(table, row), row)
                row += table.num_rows
                if not kept.num_rows:
                    continue
                self._look_at(kept, self._seen.rows if self._seen is not None else 0)
                yield self._packing.pack(kept), n_bytes
                if self._problems or self._infinite:
                    further += table.nbytes
                    if further > _FURTHER_BYTES:
                        self._cut_short = True
                        return
        except Retyped:
            raise
        except (ValueError, TypeError) as error:
            self._problems.add(error)
            self._cut_short = True
            self.decide()

    def with_texts(self, names: Collection[str]) -> TableRows:
        """The same rows, to be read anew with further columns as texts."""
        files, reader, choices, as_text = self._given
        return TableRows(files, reader, choices, (*as_text, *names))

    @property
    def said(self) -> list[str]:
        """How the files are written, where nobody has said it."""
        found: dict[str, list[str]] = {}
        for probe in self._probes:
            if probe.said:
                found.setdefault(probe.said, []).append(probe.file.name)
        more = {said: f" and {len(names) - 1} more" if len(names) > 1 else "" for said, names in found.items()}
        return [f"'{names[0]}'{more[said]}: {said}" for said, names in found.items()]

    def _with_target(self, table: pa.Table, row: int) -> pa.Table:
        """The rows that have a target, with their numbers as `ROW`, where others are to be left out; else all rows."""
        if not self._choices.drop_missing_target or self._target is None:
            return table
        there = pc.invert(pc.is_null(table.column(self._target.name), nan_is_null=True))
        kept = table.append_column(ROW, pa.array(np.arange(row, row + table.num_rows))).filter(there)
        self._dropped += table.num_rows - kept.num_rows
        return kept

    def _counted(self, table: pa.Table, row: int) -> pa.Table:
        """The rows whose weight is above 0, with their numbers as `ROW`; all rows where there are no weights."""
        weight = self._weight
        if weight is None or weight.name in self._refused:
            return table
        self._refused.add(weight.name)
        with self._problems.collected():
            counts = weight.add(table.column(weight.name))
            # a column is looked at up to the first thing that is wrong with it
            self._refused.remove(weight.name)
            self._weightless += int(np.count_nonzero(~counts))
            if ROW not in table.column_names:
                table = table.append_column(ROW, pa.array(np.arange(row, row + table.num_rows)))
            table = table.filter(pa.array(counts))
        return table

    @property
    def _left_out(self) -> str:
        """The rows that are not counted where an error names a row, as a part of a sentence."""
        left_out = {"have no target": self._dropped, "have a weight of 0": self._weightless}
        return " and ".join(f"the {n:,} that {why}" for why, n in left_out.items() if n)

    def _add_file(self, error: ValueError | TypeError) -> None:
        """Name the file of a row, and its number there, in an error that names a row of the input."""
        # rows that were left out are not counted in what errors name
        if not isinstance(error, RowError) or self._left_out or not self._starts or hasattr(error, "__notes__"):
            return
        first, name = max(start for start in self._starts if start[0] <= error.row)
        error.add_note(f"at '{name}', row {error.row - first + 1}{self._after}")

    @property
    def _after(self) -> str:
        return " after the header" if isinstance(self._reader, CsvFormat) else ""

    @property
    def _infinite(self) -> list[ColumnStatistics]:
        return [] if self._seen is None else [column for column in self._seen.columns if column.infinite is not None]

    def _look_at(self, table: pa.Table, row: int) -> None:
        features = table.select(self._features)
        seen = table_statistics(features, categorical=self._choices.categorical, names=self._names, first_row=row)
        self._seen = seen if self._seen is None else self._seen.merge(seen)
        for summary in (self._target, self.split, *self._together):
            if summary is None or summary.name in self._refused:
                continue
            self._refused.add(summary.name)
            with self._problems.collected():
                summary.add(table.column(summary.name))
                # a column is looked at up to the first thing that is wrong with it
                self._refused.remove(summary.name)

    def decide(self) -> Schema:
        """The schema of the dataset, once all rows were seen.

        Raises
        ------
        ValueError, TypeError
            Something is wrong with the columns or with values in them; all of it is listed.
        """
        try:
            schema = self._decided_schema(self._problems)
        except (ValueError, TypeError) as error:
            if self._left_out:
                error.add_note(f"rows are counted without {self._left_out}")
            raise
        if self._dropped:
            rows = self._dropped + self._weightless + (0 if self._seen is None else self._seen.rows)
            say_dropped(self._dropped, rows, str(self._choices.target))
        return schema

    def _decided_schema(self, problems: Problems) -> Schema:
        if self._cut_short:
            # of columns that were read in part no more is certain than what their values have shown
            for column in self._infinite:
                with problems.collected():
                    decide_rule(column, self._choices.missing)
            problems.raise_all("the files were not read further")
        if self._seen is None and self._dropped and not self._weightless:
            say_dropped(self._dropped, self._dropped, str(self._choices.target))
        if self._seen is None and self._weight is not None and self._weightless:
            self._weight.check()
        if self._seen is None:
            raise ValueError(f"the input has no rows: {[file.name for file in self._files]}")
        target = None
        if self._weight is not None and self._weight.name not in self._refused:
            with problems.collected():
                self._weight.check()
        if self._target is not None and self._target.name not in self._refused:
            with problems.collected():
                target = self._target.decide(self._choices.task)
        said: list[Callable[[], None]] = [partial(_say_form, target, self._target)] if target is not None else []
        said += [partial(_say_doubts, column) for column in (self.split, *self._together) if column is not None]
        if self._seen.columns or not problems:
            with problems.collected():
                encoding = self._encoding(self._seen, said)
        problems.raise_all()
        # what is said of columns comes when nothing is wrong any more
        self._say_spellings()
        for say in said:
            say()
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
            row_columns={column.role: column.known for column in self._together},
            held_by=self._choices.held_by or next((column.role for column in self._together), None),
            provenance={"target_form": target.form} if target and target.form else {},
        )

    def _say_spellings(self) -> None:
        """Warn of columns of numbers, the target among them, whose first rows write one number in two ways."""
        choices = self._choices
        names = [*self._features, *([choices.target] if choices.target else [])]
        for name in names:
            dtype = self._schema.field(name).type
            if name in choices.categorical or not pa.types.is_floating(dtype):
                continue
            twice = next((probe.twice[name] for probe in self._probes if name in probe.twice), None)
            is_open = any(name in probe.either_mark for probe in self._probes)
            sentences = [written_twice(name, *twice)] if twice else []
            if is_open:
                sentences.append(
                    f"column '{name}' holds numbers in which each point stands before three digits, and the values lie "
                    "between semicolons: the point is taken for a decimal mark; where it stands between thousands, say "
                    "so: decimal=',' (an argument of dkl.CsvFormat)"
                )
            for sentence in sentences:
                warnings.warn(sentence, UserWarning, stacklevel=users_level())

    def _encoding(self, seen: TableStatistics, said: list[Callable[[], None]]) -> TableEncoding:
        choices = self._choices
        return decide_encoding(
            seen,
            categorical=[name for name in choices.categorical if name not in choices.beside],
            missing=choices.missing,
            unknown=choices.unknown,
            layout=choices.layout,
            ignored=[*choices.beside, *choices.drop],
            marks=self._marks,
            said=said,
            problems=Problems(place=self._add_file),
        )

    def encode(self, table: pa.Table) -> tuple[Any, ...]:
        """The rows of a staged table as (X, codes or targets, weights, row numbers, groups and times by role)."""
        if self._decided is None:
            raise RuntimeError("decide() comes before encode()")
        encoding, target = self._decided
        table = self._packing.unpack(table)
        X = encoding.transform(table.select(self._features))
        y = target.encode(table.column(self._choices.target)) if target is not None else None
        weight = None
        if self._weight is not None:
            weight = table.column(self._weight.name).cast(pa.float64()).to_numpy()
        if self.split is not None:
            self.split.place(table.column(self.split.name))
        columns = {column.role: column.codes(table.column(column.name)) for column in self._together}
        return X, y, weight, table.column(ROW).to_numpy(), columns


def _say_form(target: Target, summary: TargetSummary | None) -> None:
    """Say by which rule the texts of a target became numbers, and what its labels leave open."""
    if summary is None:
        return
    for sentence in summary.doubts(target):
        warnings.warn(sentence, UserWarning, stacklevel=users_level())
    if not target.form:
        return
    hint(
        f"texts are taken for numbers in the target {summary.name!r} (written as {target.form}){_of_percents(target)}; "
        f"where these are labels, say so: categorical=['{summary.name}']",
        f"target as numbers: {summary.name} {target.form}",
    )


def _say_doubts(column: SplitColumn | TogetherColumn) -> None:
    for sentence in column.doubts():
        warnings.warn(sentence, UserWarning, stacklevel=users_level())


def _of_percents(target: Target) -> str:
    return ", 15 for 15 %" if target.form.endswith("%") else ""


def marks_of(probes: Sequence[Probe], reader: TableFormat) -> Marks:
    """How the texts of files write numbers, as far as the files or the user say it."""
    order = (".", ";", ",")
    usual = max((probe.usual for probe in probes), key=order.index)
    if not isinstance(reader, CsvFormat):
        return Marks(usual=usual)
    return Marks(
        reader.decimal,
        usual,
        "decimal={} (an argument of dkl.CsvFormat)",
        "null_values=[...] (an argument of dkl.CsvFormat; --na in the shell)",
    )


def _text_time(name: str | None, probes: list[Probe]) -> str | None:
    """The column of times where it travels as text: it holds neither numbers in all files nor dates without a zone."""
    types = [] if name is None else [probe.schema.field(name).type for probe in probes]
    kinds = {(column_kind(dtype), getattr(dtype, "tz", None)) for dtype in types}
    return None if kinds in ({("number", None)}, {("date", None)}) else name


def _possible(choices: TableChoices, names: list[str], problems: Problems, where: str) -> TableChoices:
    """The choices without what names no column, or one that is taken, which goes to `problems`.

    Messages say `where` the columns are, " of 'rows.parquet'", or nothing of rows that have no file.
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
