"""ingest: stream files of rows into a dataset on zarr, shuffled, encoded and checked, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
from dask.utils import parse_bytes

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import Missing
from dkl.data.ingest.columns import column_kind
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import Layout, TableEncoding
from dkl.data.ingest.formats import (
    WRITTEN_BYTES,
    Buffers,
    Format,
    GivenTable,
    given_table,
    is_table,
    open_rows,
    table_reader,
)
from dkl.data.ingest.matrix_rows import MatrixRows
from dkl.data.ingest.paths import InputFile, PathLike, find_files
from dkl.data.ingest.scratch import check_free_space, scratch_folder
from dkl.data.ingest.staging import Stage
from dkl.data.ingest.table_rows import TableChoices, TableRows
from dkl.data.ingest.tables import Retyped, common_schema, file_tables, probed
from dkl.data.schema import HeldBy, Schema, Task
from dkl.data.splits import by_fractions
from dkl.data.store.location import Location
from dkl.data.store.overwriting import check_output, is_store
from dkl.data.store.writer import DatasetWriter
from dkl.data.together.choosing import check_one_kind
from dkl.data.together.splitting import DEFAULT_SHARES
from dkl.errors import StoreError
from dkl.events import Event, Kind, Subscriber
from dkl.progress import resolve_progress
from dkl.version import __version__

_UNKNOWN_BYTES = 16 * 2**30
"""What a stream may hold: its rows are cut so finely on temporary disk that as many could be put in order."""
# Rows that are encoded at a time: of free text they are some 1,000 bytes each, and several copies on their way.
_ENCODED_ROWS = 1 << 13

Progress = bool | Callable[[Event], None] | None


def ingest(
    paths: PathLike | Iterable[PathLike] | GivenRows,
    store: PathLike,
    *,
    target: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    by_group: str | None = None,
    by_time: str | None = None,
    drop: Collection[str] = (),
    task: Literal["auto"] | Task = "auto",
    categorical: Collection[str] = (),
    drop_missing_target: bool = False,
    missing: Missing = "auto",
    unknown: Literal["zeros", "error"] = "zeros",
    layout: Layout = "auto",
    shuffle: bool = True,
    seed: int = 0,
    splits: Mapping[str, float] | str | None = None,
    overwrite: bool = False,
    format: Format | None = None,
    memory_limit: int | str | None = None,
    temporary_directory: PathLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
) -> Dataset:
    """Write the rows of files or of a table into a dataset, once, in bounded memory; it is visible when it is complete.

    The input is read once, files of texts once more where a column turns out to be none of the type that its first
    megabyte shows. The rows go to temporary disk while the columns are looked at; then the rules for
    encoding are decided, shown and stored, and the rows are encoded in their final order. Columns of tables: numbers
    stay (float32), booleans become 0 and 1, texts and categories of up to 32 values become one column a value, those
    of more become codes, of which a fit makes target means; missing values are filled and flagged. Dates and times
    (texts in ISO 8601 too) become days since 1970 and, where the rows cover it twice, cosine and sine of the time of
    day, the weekday and the day of the year. Texts that differ in (almost) every row are set aside, with a warning;
    columns without values are errors that say what to do. Matrices (libsvm, npz) must be finite; npz rows keep their
    dtype.

    Parameters
    ----------
    paths : path, URL, glob or folder, or several of them
        CSV (also compressed), Parquet, libsvm / svmlight, or npz files of the same columns. Folders of tables named
        ``key=value``, as Hive writes them, give their rows a column ``key``. In place of paths a table: a data frame
        (pandas, Polars, what narwhals knows), an Arrow table, or a stream of record batches (a
        ``pyarrow.RecordBatchReader``, anything with ``__arrow_c_stream__``, a lazy frame of Polars), of which no more
        is held than is being read.
    store : path or URL
        Where the dataset goes.
    target, weight : str or None
        Columns of a table (arrays of an npz archive) to learn and to weigh rows by. libsvm text carries its target.
    group, time : str or None
        Columns of a table that say what each row belongs to, and when it is from: rows are held out by whole groups,
        without groups the newest rows are, in `splits` that are given as shares and in every fit. The group is no
        feature; a time is one, unless `drop` names it too.
    by_group, by_time : str or None
        The same, and what rows are held out by where there are both; `splits` are 80 % train and 20 % test, by
        group or by time, where none are given.
    drop : collection of str
        Columns that are left out.
    task : {"auto", "classification", "regression"}
        "auto": classes for texts, booleans and whole numbers, regression for fractions.
    categorical : collection of str
        Columns (the target too) whose values are names whatever they look like: postcodes, ids of up to a million
        values.
    drop_missing_target : bool
        Leave rows of tables out whose target is missing, with a warning that counts them; they are an error otherwise.
    missing : {"auto", "mean", "error"} or float
        "auto": the mean and a flag column where values are missing, and an error at predict where none was; "mean" or a
        number: what fills them in any case; "error": they are refused.
    unknown : {"zeros", "error"}
        What a category that was never seen becomes at predict.
    layout : {"auto", "dense", "sparse"}
        "auto": CSR from 256 columns on when at most 5 % of the values are not zero (npz files keep theirs).
    shuffle : bool
        Store the rows in a uniformly random order, which stochastic fitting needs; `row_id` keeps their numbers.
    seed : int
        Of the order and of the splits; the same rows and seed give the same dataset from any format.
    splits : mapping of str to float, str, or None
        Shares of named splits, drawn by class: ``{"train": 0.8, "test": 0.2}``; or the column of a table that holds the
        name of each row's split.
    overwrite : bool
        Replace a dataset that is there.
    format : str, CsvFormat, LibsvmFormat or NpzFormat, or None
        None: by the suffix. The classes hold details (delimiter, files without header, names of arrays).
    memory_limit : int, str or None
        Bytes (or ``"512 MB"``) that ingest may take above what the process holds; None takes some 500 MB.
    temporary_directory : path or None
        Where rows are kept meanwhile; None is beside a local store, else the system's. It is checked for space first.
    storage_options, source_options : mapping or None
        For the fsspec file systems of the store and of the input.
    progress : bool, callable or None
        A progress bar, a subscriber to `dkl.events.Event`, or (None) a bar where somebody watches.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError, FileExistsError
        No input; a dataset is at `store` and `overwrite` is False.
    ValueError, TypeError
        Files whose columns differ, ragged rows, and values that cannot be used; the message has file, row and column.
    OSError
        Not enough temporary disk.
    MemoryLimitError
        `memory_limit` is too small.

    Examples
    --------
    >>> import dkl
    >>> ds = dkl.ingest("part-*.csv", "rows.zarr", target="label")  # doctest: +SKIP
    """
    choices, splits = _chosen(
        by_group,
        by_time,
        splits,
        target=target,
        weight=weight,
        drop=drop,
        task=task,
        categorical=categorical,
        missing=missing,
        unknown=unknown,
        layout=layout,
        group=group,
        time=time,
        drop_missing_target=drop_missing_target,
    )
    if splits and not isinstance(splits, str):
        # Refused now, if at all: the splits are drawn when everything is written.
        by_fractions(splits, seed=seed, n_classes=None)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    buffers = Buffers.within(limit)
    location = Location.of(store, storage_options)
    # Asked before the input is looked at, which may take long, and with its files once they are known.
    check_output(location, "dataset", overwrite=overwrite)
    files, reader = _found(paths, format, source_options)
    is_given = isinstance(reader, GivenTable)
    check_output(location, "dataset", overwrite=overwrite, inputs=[] if is_given else [file.name for file in files])
    job = _Job(
        open_rows(files, reader, choices, buffers, limit),
        files,
        seed if shuffle else None,
        buffers,
        resolve_progress(progress),
        "" if is_given else _inputs(files, reader, choices, splits, seed, shuffle),
    )
    directory = temporary_directory
    if directory is None and location.is_local:
        # The disk of the store has room for the rows in any case, and its folder may still have to be made.
        directory = next(folder for folder in location.path.parents if folder.is_dir())
    with scratch_folder(directory, name=location.url.rpartition("/")[2]) as folder:
        job, stage, schema = job.staged(folder)
        # Splits that would be empty are refused while nothing is written yet.
        for name, share in splits.items() if isinstance(splits, Mapping) else ():
            if share * stage.n_rows < 1:
                raise ValueError(
                    f"split {name!r} would have no rows: {share:g} of {stage.n_rows}; give it a larger share"
                )
        with DatasetWriter(
            store,
            schema,
            n_rows=stage.n_rows,
            overwrite=overwrite,
            storage_options=storage_options,
            most_bytes=WRITTEN_BYTES,
        ) as writer:
            job.write(stage, writer)
    dataset = open_dataset(store, **(storage_options or {}))
    # The codes were gathered in the final order of the rows, as they were written.
    given = job.rows.split.masks() if isinstance(job.rows, TableRows) and job.rows.split is not None else splits
    return dataset.split(given, seed=seed) if given else dataset


def stored_before(
    store: PathLike,
    paths: PathLike | Iterable[PathLike],
    *,
    by_group: str | None = None,
    by_time: str | None = None,
    splits: Mapping[str, float] | str | None = None,
    shuffle: bool = True,
    seed: int = 0,
    format: Format | None = None,
    **columns: Any,
) -> Dataset | None:
    """The store that `ingest` with these arguments wrote, where the files are unchanged since; else None."""
    if not is_store(store):
        return None
    choices, splits = _chosen(by_group, by_time, splits, **columns)
    inputs = _inputs(find_files(paths, None), format, choices, splits, seed, shuffle)
    try:
        dataset = open_dataset(store)
    except StoreError:
        # one that is damaged, half-written or of a newer release is written again
        return None
    return dataset if dataset.schema.provenance.get("inputs") == inputs else None


def _inputs(
    files: Sequence[InputFile], format: Any, choices: TableChoices, splits: Any, seed: int, shuffle: bool
) -> str:
    """Equal for equal states of files, and equal choices of what becomes of them."""
    states = [(file.name, file.state) for file in files]
    of_columns = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(choices).items()}
    text = json.dumps([__version__, states, of_columns, repr(format), splits, seed if shuffle else None], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _chosen(
    by_group: str | None, by_time: str | None, splits: Any, *, group: str | None, time: str | None, **columns: Any
) -> tuple[TableChoices, Any]:
    """What becomes of the columns, and the splits."""
    held_by, group, time, splits = _held_by(group, time, by_group, by_time, splits)
    # A text names the column that says which split a row is in; a mapping gives shares.
    column = splits if isinstance(splits, str) else None
    return TableChoices(split=column, group=group, time=time, held_by=held_by, **columns), splits


def _found(
    given: Any, format: Format | None, source_options: Mapping[str, Any] | None
) -> tuple[list[InputFile], Format | GivenTable | None]:
    """What ingest reads, and with what: files in the format that was chosen, or a table that the caller has."""
    if not is_table(given):
        return find_files(given, source_options), format
    if format is not None:
        raise ValueError(f"format={format!r} says how files are written, and the rows were given as a table")
    return given_table(given)


def _held_by(
    group: str | None, time: str | None, by_group: str | None, by_time: str | None, splits: Any
) -> tuple[HeldBy | None, str | None, str | None, Any]:
    """What rows are held out by, the columns of groups and of times, and the splits."""
    check_one_kind(by_group, by_time)
    for name, kept, by in (("group", group, by_group), ("time", time, by_time)):
        if kept is not None and by is not None and kept != by:
            raise ValueError(f"{name}={kept!r} and by_{name}={by!r} name two columns; rows have one {name}")
    held_by: HeldBy | None = "group" if by_group is not None else "time" if by_time is not None else None
    if held_by is not None and isinstance(splits, str):
        raise ValueError(
            f"splits={splits!r} names the split of each row, and by_{held_by} draws them: give {held_by}= in its place"
        )
    return held_by, group or by_group, time or by_time, splits or (None if held_by is None else DEFAULT_SHARES)


@dataclass(frozen=True)
class IngestPlan:
    """What `ingest` would write: its schema and the rules of encoding, from all rows of the input.

    Parameters
    ----------
    schema : Schema
    n_rows : int
    staged_bytes : int
        About the temporary disk that `ingest` takes.
    """

    schema: Schema
    n_rows: int
    staged_bytes: int

    @property
    def encoding(self) -> TableEncoding | None:
        """How raw columns become encoded ones; None for matrices."""
        return self.schema.encoding

    def describe(self) -> str:
        """The plan as text."""
        return f"{self.n_rows} rows; {described(self.schema)}"


def plan_ingest(
    paths: PathLike | Iterable[PathLike] | GivenRows,
    *,
    choices: TableChoices | None = None,
    format: Format | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
) -> IngestPlan:
    """Read the files once, write nothing, and say how `ingest` would encode them.

    The parameters are those of `ingest`; `choices` holds the ones on columns (``TableChoices(target="label")``).
    """
    files, reader = _found(paths, format, source_options)
    rows = open_rows(files, reader, choices or TableChoices(), Buffers())
    while True:
        n_rows = 0
        try:
            with _Counted(resolve_progress(progress), "reading", sum(file.size for file in files)) as counted:
                for table, n_bytes in rows.tables():
                    n_rows += table.num_rows
                    counted.advance(n_bytes, table.num_rows, n_bytes)
        except Retyped as found:
            if not isinstance(rows, TableRows):
                raise
            rows = rows.with_texts(found.names)
        else:
            return IngestPlan(rows.decide(), n_rows, rows.staged_bytes)


def read_tables(
    paths: PathLike | Iterable[PathLike],
    *,
    encoding: TableEncoding | None = None,
    ids: Collection[str] = (),
    format: Format | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.Table]:
    """The raw rows of CSV or Parquet files, a few thousand at a time, with columns checked across files.

    Parameters
    ----------
    encoding : TableEncoding or None
        Given the one that the rows are meant for, its categories are read as texts whatever they look like.
    ids : collection of str
        Columns that are carried along, as texts where they are no features, so that no digit is lost.

    Raises
    ------
    ValueError
        If the files lack a column of `ids`, or what else `find_files` and the reader refuse.
    """
    files = find_files(paths, source_options)
    # A postcode that looks like a number in these files was a text in those that the encoding was learned from; files
    # of texts say nothing of types, so that the rules of the encoding read all of their values.
    reader = table_reader(files, format)
    is_text = isinstance(reader, CsvFormat)
    known = () if encoding is None or encoding.array_dtype else encoding.rules
    names = [rule.name for rule in known if is_text or rule.kind in ("category", "code")]
    probes = probed(files, reader)
    lacking = [name for name in ids if name not in probes[0].schema.names]
    if lacking:
        raise ValueError(
            f"'{files[0].name}' has no column {lacking[0]!r}; it has {spoken_names(probes[0].schema.names)}"
        )
    # Long whole numbers, and texts that look like numbers, keep every digit as texts.
    features = {rule.name for rule in encoding.rules} if encoding else set()
    names += [name for name in ids if name not in features]
    # Columns that are no features may hold anything.
    unused = {field.name for probe in probes for field in probe.schema if column_kind(field.type) is None}
    unused -= {rule.name for rule in encoding.rules} if encoding else unused
    schema = common_schema(probes, drop=unused, as_text=names, are_texts=is_text)
    for table, _ in file_tables([probe.file for probe in probes], reader, schema):
        yield table


def described(schema: Schema) -> str:
    """What is to be written, and by which rules, as text."""
    if schema.classes is not None:
        labels = ", ".join(map(str, schema.classes[:10].tolist())) + (", ..." if len(schema.classes) > 10 else "")
        target = f"{len(schema.classes)} classes: {labels}"
        if schema.may_be_counts:
            target += (
                "; if these are numbers, task='regression' (in the shell --task) takes them so, and for counts there "
                "is loss='poisson' in the fit"
            )
    else:
        target = schema.task or "no target"
        form = schema.provenance.get("target_form")
        target += f" of numbers written as {form}" if form else ""
    if schema.encoding is not None:
        return f"{target}\n{schema.encoding.describe()}"
    columns = f"{schema.n_columns} {'CSR' if schema.is_sparse else 'dense'} columns of {schema.dtype}"
    if schema.first_index == 0:
        return f"{target}\n{columns}; the text counts columns from 0"
    if schema.first_index == 1:
        return (
            f"{target}\n{columns}; the text counts columns from 1 (if it counts from 0: "
            "format=dkl.LibsvmFormat(zero_based=True), in the shell --zero-based)"
        )
    return f"{target}\n{columns}"


class _Counted:
    """One stretch of work on the event stream, ended also when it fails."""

    def __init__(self, publish: Subscriber, name: str, total: int) -> None:
        self._publish, self._name, self._total, self._done = publish, name, total, 0
        self._started = time.perf_counter()

    def _event(self, kind: Kind, rows: int = 0, n_bytes: int = 0, **detail: bool) -> None:
        seconds = time.perf_counter() - self._started
        self._publish(Event(kind, self._name, self._done, self._total, rows, n_bytes, seconds, detail))

    def __enter__(self) -> Self:
        self._event("started")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._event("finished", failed=True)
            return
        self._done = self._total
        self._event("finished")

    def advance(self, units: int, rows: int, n_bytes: int) -> None:
        # Sizes of compressed files are estimates: a bar never goes beyond its end.
        self._done = min(self._done + units, self._total)
        self._event("advanced", rows, n_bytes)


@dataclass(frozen=True)
class _Job:
    """One run of `ingest` with everything settled but what the rows hold."""

    rows: TableRows | MatrixRows
    files: list[InputFile]
    seed: int | None
    buffers: Buffers
    publish: Subscriber
    inputs: str = ""

    def staged(self, folder: Path) -> tuple[_Job, Stage, Schema]:
        """All rows on temporary disk, and what they are to become.

        They are read once more where columns that looked like numbers or dates turn out to hold something else, which
        are texts then: what these are is decided on all of their values.
        """
        job = self
        while True:
            check_free_space(folder, job.rows.staged_bytes, "ingest")
            n_bytes = job.rows.staged_bytes or _UNKNOWN_BYTES
            stage = Stage(folder, seed=job.seed, n_bytes=n_bytes, buffer_bytes=job.buffers.stage_bytes)
            try:
                return job, stage, job.read(stage)
            except Retyped as found:
                if not isinstance(job.rows, TableRows):
                    raise
                stage.clear()
                job = replace(job, rows=job.rows.with_texts(found.names))

    def read(self, stage: Stage) -> Schema:
        """Move all rows to the stage, and show and return what they are to become."""
        with _Counted(self.publish, "reading", sum(file.size for file in self.files)) as counted:
            for table, n_bytes in self.rows.tables():
                stage.add(table)
                counted.advance(n_bytes, table.num_rows, n_bytes)
        names = [file.name for file in self.files]
        provenance = {"from": names[:100], "n_files": len(names), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        if self.inputs:
            provenance["inputs"] = self.inputs
        if self.rows.target_name:
            provenance["target"] = self.rows.target_name
        said = self.rows.said if isinstance(self.rows, TableRows) else []
        if said:
            provenance["written"] = "; ".join(said)
        decided = self.rows.decide()
        schema = replace(decided, provenance={**provenance, **decided.provenance}, shuffle_seed=self.seed)
        self.publish(Event("note", "ingest", detail={"message": "\n".join([*said, described(schema)])}))
        return schema

    def write(self, stage: Stage, writer: DatasetWriter) -> None:
        """Encode the rows in their final order."""
        with _Counted(self.publish, "writing", stage.n_rows) as counted:
            for staged in stage.tables():
                # A short text becomes a hundred numbers: of a table that fits, its encoded rows need not.
                for first in range(0, staged.num_rows, _ENCODED_ROWS):
                    table = staged.slice(first, _ENCODED_ROWS)
                    writer.write(*self.rows.encode(table))
                    counted.advance(table.num_rows, table.num_rows, table.nbytes)
