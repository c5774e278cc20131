"""Rows of table files (CSV, Parquet) as Arrow tables of one schema, the same for all files, in parts of fixed size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from dkl.data.checks import repeated, spoken_names
from dkl.data.columns.numbers import DefaultMark
from dkl.data.ingest.columns import check_kinds, check_names_can_be_written, column_kind, plain, plain_type
from dkl.data.ingest.dates import zone_of
from dkl.data.ingest.paths import InputFile
from dkl.errors import Problems, located, warn_user

_PIECE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Probe:
    """Properties of a file, from its beginning.

    Parameters
    ----------
    file : InputFile
    schema : pyarrow.Schema
        The columns and their presumable types.
    staged_bytes : int
        Estimate of the bytes of all rows as Arrow arrays.
    unnamed_index : tuple of str
        Columns of the file that are not in `schema`: the row index of a data frame, without a name.
    two_spellings : mapping of str to (str, str)
        Two texts that write the same number, for columns of numbers that have such.
    default : {".", ";", ","}
        The decimal mark where texts leave it open; see `dkl.data.columns.numbers.DefaultMark`.
    dialect : str
        The detected delimiter and encoding; empty if they are the usual ones or were chosen by the user.
    """

    file: InputFile
    schema: pa.Schema
    staged_bytes: int
    unnamed_index: tuple[str, ...] = ()
    two_spellings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    default: DefaultMark = "."
    dialect: str = ""


class NoRowsError(ValueError):
    """A file has a header and no rows."""


class MistypedColumnsError(ValueError):
    """Columns have values of another type than their first rows; reading them as texts avoids the error.

    Parameters
    ----------
    message : str
        The first such value, its place, and a remedy for callers that cannot read the files again.
    names : tuple of str
        The columns.
    """

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def probed(files: list[InputFile], reader: TableFormat) -> list[Probe]:
    """The columns of every file, followed by those from the names of its folders.

    Files without rows, which distributed programs write, are left out unless all files are such.

    Raises
    ------
    ValueError
        If a file has a column with the name of one of its folders' keys, or no file has rows.
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
    """A reader of table files of one format."""

    def probe(self, file: InputFile) -> Probe: ...

    def read(self, file: InputFile, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
        """Tables with the columns of `schema`, in its order and types, each with its number of the file's bytes."""
        ...


def common_schema(
    probes: list[Probe],
    *,
    drop: Collection[str],
    as_text: Collection[str],
    are_texts: bool = False,
    further: Problems | None = None,
) -> pa.Schema:
    """The schema with which all files are read: the columns of the first one, in types for the values of all files.

    Parameters
    ----------
    probes : list of Probe
    drop : collection of str
        Columns that are not read.
    as_text : collection of str
        Columns that are read as texts, whatever their type.
    are_texts : bool
        Whether the files are texts, which have no types: columns that look like numbers only in some files are then
        read as texts.
    further : Problems or None
        Collects errors of single columns, which are then left out, so that the rows can be checked for more errors.

    Raises
    ------
    ValueError
        If a file lacks a column, has an additional one, or has two with the same name or one without a name.
    TypeError
        If a column has different kinds of values in different files, or holds lists or bytes.
    """
    problems = Problems()
    for probe in probes:
        with problems.collected():
            _check_names(probe, probes[0])
    problems.raise_all()
    # the other files may have their columns in any order
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
    """Raise ValueError unless a file has the same columns as the first one, in any order."""
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
    """The names that are not in `others`, in their order."""
    known = set(others)
    return [name for name in names if name not in known]


def _common_type(name: str, probes: list[Probe], as_text: bool, are_texts: bool) -> pa.DataType:
    """The type in which a column is read from all files.

    With `as_text` it is text; with `are_texts` also if the files differ in more than precision or time zone. A column
    without any value is float64.

    Raises
    ------
    TypeError
        If the files differ and `are_texts` is False.
    """
    if as_text:
        return pa.string()
    common, where = pa.null(), ""
    for probe in probes:
        plain = plain_type(probe.schema.field(name).type)
        if pa.types.is_null(common) or plain == common:
            common, where = plain, where or probe.file.name
        # float32 in one file and float64 in another
        elif pa.types.is_floating(common) and pa.types.is_floating(plain):
            common = pa.float64()
        elif pa.types.is_timestamp(common) and pa.types.is_timestamp(plain):
            # dates are converted to the first time zone; those without one are read as local times there, with a
            # warning
            if not (zone_of(common) and zone_of(plain)):
                lacking = probe.file.name if zone_of(common) else where
                warn_user(
                    f"column '{name}' has a time zone in some files and none in '{lacking}': the times of that file "
                    f"are read as local times in {zone_of(common) or zone_of(plain)}; write the time zone into the file"
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
    # a column without any value so far is read as numbers
    return pa.float64() if pa.types.is_null(common) else common


def pieces(tables: Iterable[tuple[pa.Table, int]], schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
    """The same rows in tables whose sizes depend on the schema alone, so that sums do not depend on the files."""
    # about 4 MiB of numbers, and at least 1,024 rows
    rows = max(1024, min(65_536, _PIECE_BYTES // (8 * max(len(schema), 1))))
    pending: list[pa.Table] = []
    count = n_bytes = 0
    # the remaining rows of a table are joined with the next one, also from another file
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
    """All rows of all files in order, in `pieces`, each with its number of input bytes.

    The number of each file's first row, and its name, are appended to `starts` before its rows are read.
    """

    def partitioned() -> Iterator[tuple[pa.Table, int]]:
        """The rows of each file with the columns from the names of its folders, in the order of `schema`."""
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
