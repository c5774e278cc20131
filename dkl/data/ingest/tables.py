"""Rows of table files (CSV, Parquet) as Arrow tables of one schema, checked across files, in pieces of a fixed size."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from dkl.data.checks import repeated, spoken_names
from dkl.data.columns.numbers import UsualMark
from dkl.data.ingest.columns import check_kinds, check_names_can_be_written, column_kind, plain, plain_type
from dkl.data.ingest.dates import zone_of
from dkl.data.ingest.paths import InputFile
from dkl.errors import Problems, located, users_level

_PIECE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Probe:
    """What the beginning of a file says about it.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns and the types that they seem to have.
    staged_bytes : int
        About how many bytes all rows of the file take as Arrow arrays.
    unnamed_index : tuple of str
        Columns that the file has and `schema` has not: the row index of a data frame that was written without a name.
    twice : mapping of str to (str, str)
        Two texts of one number, in columns of numbers.
    usual : {".", ";", ","}
        The decimal mark where texts leave it open; see `dkl.data.columns.numbers.UsualMark`.
    either_mark : tuple of str
        Columns of numbers whose points may stand between thousands, where semicolons delimit the values.
    said : str
        How the file is written, where nobody has said it and it is not as usual.
    """

    file: InputFile
    schema: pa.Schema
    staged_bytes: int
    unnamed_index: tuple[str, ...] = ()
    twice: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    usual: UsualMark = "."
    either_mark: tuple[str, ...] = ()
    said: str = ""


class NoRowsError(ValueError):
    """A file has the names of its columns and nothing else."""


class Retyped(ValueError):
    """Columns hold values that their types have no place for; they can be read as texts.

    Parameters
    ----------
    message : str
        The first such value, its place, and what to do where it cannot be read otherwise.
    names : tuple of str
    """

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def probed(files: list[InputFile], reader: TableFormat) -> list[Probe]:
    """The columns of every file, and behind them those that the names of its folders give.

    Files without rows are left out, unless all are: programs that write in parts leave some.

    Raises
    ------
    ValueError
        A file has a column of the name that one of its folders gives, or there are no rows.
    """
    probes: list[Probe] = []
    empty: NoRowsError | None = None
    for file in files:
        try:
            probe = reader.probe(file)
        except NoRowsError as error:
            empty = empty or error
            continue
        keys = [key for key, _ in file.partition]
        twice = [key for key in keys if key in probe.schema.names or keys.count(key) > 1]
        if twice:
            raise ValueError(
                f"'{file.name}' has the column '{twice[0]}' and stands in a folder '{twice[0]}=...', which would be a "
                "column of that name, too; rename the folder or the column"
            )
        fields = [pa.field(key, pa.array([value]).type) for key, value in file.partition]
        probes.append(replace(probe, schema=pa.schema([*probe.schema, *fields])))
    if empty is not None and not probes:
        raise empty
    return probes


class TableFormat(Protocol):
    """How files of one format are probed and read."""

    def probe(self, file: InputFile) -> Probe: ...

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """The columns of `schema` in its order and types, and how many of the file's bytes each table accounts for."""
        ...


def common_schema(
    probes: list[Probe],
    *,
    drop: Collection[str],
    as_text: Collection[str],
    are_texts: bool = False,
    further: Problems | None = None,
) -> pa.Schema:
    """The schema that all files are read with: the first one's columns, in types that hold the values of all files.

    Parameters
    ----------
    drop : collection of str
        Columns that are not read.
    as_text : collection of str
        Columns whose values are names, whatever their type.
    are_texts : bool
        Files of text say nothing of types: columns that look like numbers in one and not in another are read as texts.
    further : Problems or None
        Takes what is wrong with single columns, which are then left out, so that the rows can be looked at for more.

    Raises
    ------
    ValueError
        A file lacks a column, has one more, names one twice or not at all.
    TypeError
        A column is of one kind in one file and of another in another, or holds lists or bytes.
    """
    problems = Problems()
    for probe in probes:
        with problems.collected():
            _check_names(probe, probes[0])
    problems.raise_all()
    # Order and names are those of the first file; the others may have their columns in any order.
    names, texts = _without(probes[0].schema.names, drop), set(as_text)
    problems = Problems() if further is None else further
    with problems.collected():
        if "" in names:
            raise ValueError(
                f"column {names.index('') + 1} of '{probes[0].file.name}' has no name, as a row index written by "
                "pandas has none; leave it out with drop=[''], or name it"
            )
    for probe in probes:
        with problems.collected(), located(f"'{probe.file.name}'"):
            check_kinds(pa.schema([probe.schema.field(name) for name in names]))
    fields = []
    for name in names:
        types = [probe.schema.field(name).type for probe in probes]
        if all(map(column_kind, types)):
            with problems.collected():
                fields.append((name, _common_type(name, probes, name in texts, are_texts)))
    if further is None or not fields:
        problems.raise_all()
    return pa.schema(fields)


def _check_names(probe: Probe, first: Probe) -> None:
    """Refuse a file whose columns are not those of the first one, in whatever order."""
    names = probe.schema.names
    twice = repeated(names)
    if twice:
        raise ValueError(f"'{probe.file.name}' has several columns named {twice}; rename them")
    with located(f"'{probe.file.name}'"):
        check_names_can_be_written(names)
    for description, columns in (
        ("lacks the columns", _without(first.schema.names, names)),
        ("has columns of its own:", _without(names, first.schema.names)),
    ):
        if columns:
            raise ValueError(
                f"'{probe.file.name}' {description} {spoken_names(columns)}, unlike '{first.file.name}' with "
                f"{spoken_names(first.schema.names)}; all files need the same columns (their order is free)"
            )


def _without(names: list[str], others: Collection[str]) -> list[str]:
    """The names that are not among the others, in their order."""
    known = set(others)
    return [name for name in names if name not in known]


def _common_type(name: str, probes: list[Probe], as_text: bool, are_texts: bool) -> pa.DataType:
    """The type in which a column of all files is read: the one that holds the values of each.

    It is text where `as_text` asks for that, and, if `are_texts`, where the files disagree on more than precision or
    time zone; a column without a value in any of them is float64.

    Raises
    ------
    TypeError
        The files disagree, and the column may not be read as text.
    """
    if as_text:
        return pa.string()
    common, where = pa.null(), ""
    for probe in probes:
        plain = plain_type(probe.schema.field(name).type)
        if pa.types.is_null(common) or plain == common:
            common, where = plain, where or probe.file.name
        # Float32 in one file and float64 in another.
        elif pa.types.is_floating(common) and pa.types.is_floating(plain):
            common = pa.float64()
        elif pa.types.is_timestamp(common) and pa.types.is_timestamp(plain):
            # Points in time are converted to the first zone; a clock without one is taken for a clock there, aloud.
            if not (zone_of(common) and zone_of(plain)):
                lacking = probe.file.name if zone_of(common) else where
                warnings.warn(
                    f"column '{name}' has a time zone in some files and none in '{lacking}', whose times are taken for "
                    f"those of a clock in {zone_of(common) or zone_of(plain)}; write the zone there, too",
                    UserWarning,
                    stacklevel=users_level(),
                )
                common = common if zone_of(common) else plain
        elif not pa.types.is_null(plain) and are_texts:
            return pa.string()
        elif not pa.types.is_null(plain):
            called = {"category": "texts", "boolean": "booleans", "date": "dates", "time": "times of day"}
            here, there = (called.get(str(column_kind(dtype)), "numbers") for dtype in (plain, common))
            raise TypeError(
                f"column '{name}' holds {here} in '{probe.file.name}' and {there} in '{where}'; make it one type, or "
                f"take its values as names: categorical=['{name}']"
            )
    # A column without any value yet: later rows, if they hold some, must be numbers.
    return pa.float64() if pa.types.is_null(common) else common


def pieces(tables: Iterable[tuple[pa.Table, int]], schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
    """The same rows in pieces whose size follows from the schema alone: sums over them do not depend on files' cuts."""
    # About 4 MiB of numbers, and at least 1,024 rows however many columns there are.
    rows = max(1024, min(65_536, _PIECE_BYTES // (8 * max(len(schema), 1))))
    pending: list[pa.Table] = []
    count = n_bytes = 0
    # Whole pieces are handed on as soon as there are any; what is left waits for the next table, of whatever file.
    for table, table_bytes in tables:
        pending.append(table)
        count += table.num_rows
        n_bytes += table_bytes
        if count >= rows:
            joined = pa.concat_tables(pending)
            whole = count - count % rows
            for start in range(0, whole, rows):
                yield joined.slice(start, rows), n_bytes if start == 0 else 0
            pending, count, n_bytes = [joined.slice(whole)], count - whole, 0
    if count:
        yield pa.concat_tables(pending), n_bytes


def file_tables(
    files: list[InputFile], reader: TableFormat, schema: pa.Schema, starts: list[tuple[int, str]] | None = None
) -> Iterator[tuple[pa.Table, int]]:
    """All rows of all files in their order, in `pieces`, with the bytes of input that each accounts for.

    The first row of each file and its name go to `starts` before any of its rows is handed out.
    """

    def partitioned() -> Iterator[tuple[pa.Table, int]]:
        """The rows of each file with the columns that the names of its folders give, in the order of `schema`."""
        row = 0
        for file in files:
            if starts is not None:
                starts.append((row, file.name))
            beside = dict(file.partition)
            stored = pa.schema([field for field in schema if field.name not in beside])
            for table, n_bytes in reader.read(file, stored):
                row += table.num_rows
                columns = {name: table.column(name) for name in stored.names}
                for name, value in beside.items():
                    if name in schema.names:
                        constant = pa.chunked_array([pa.repeat(pa.scalar(value), table.num_rows)])
                        columns[name] = plain(constant, schema.field(name))
                yield pa.table([columns[name] for name in schema.names], schema=schema), n_bytes

    return pieces(partitioned(), schema)
