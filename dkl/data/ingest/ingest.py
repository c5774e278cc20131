"""ingest: stream files of rows into a dataset on zarr, shuffled, encoded and checked, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from dask.utils import parse_bytes

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.given import GivenRows
from dkl.data.ingest.column_rules import Missing
from dkl.data.ingest.columns import column_kind
from dkl.data.ingest.csv_files import CsvFormat
from dkl.data.ingest.encoding import Layout, TableEncoding, columns_as_texts
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
from dkl.data.ingest.table_rows import TableChoices, TableRows, decimal_of
from dkl.data.ingest.tables import MistypedColumnsError, common_schema, file_tables, probed
from dkl.data.other_rules import table_schema_like
from dkl.data.schema import HeldBy, Schema, Task
from dkl.data.sources.stored import StoreSource
from dkl.data.splits import by_fractions
from dkl.data.store.location import Location
from dkl.data.store.overwriting import check_output, is_store
from dkl.data.store.reader import OpenStore
from dkl.data.store.writer import DatasetWriter
from dkl.data.together.choosing import check_one_kind
from dkl.data.together.splitting import DEFAULT_SHARES
from dkl.errors import StoreError
from dkl.events import Event, ProgressStage, Subscriber
from dkl.progress import resolve_progress
from dkl.version import __version__

_ASSUMED_STREAM_BYTES = 16 * 2**30
"""Assumed bytes of a stream, which set the number of buckets on temporary disk; a longer one needs more memory."""
# Number of rows encoded at a time: encoded free text has about 1,000 bytes a row, of which several copies exist.
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
    like: Any = None,
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
    """Write the rows of files or of a table into a dataset, in bounded memory, completely or not at all.

    The input is read once; text files are read again if a column is not of the type that its first megabyte suggests.
    Rows are written to temporary disk while statistics of the columns are computed; then the encoding rules are
    decided, reported and stored, and the rows are encoded in their final order.

    Numbers stay as they are (float32), booleans become 0 and 1, texts and categories with up to 32 values become one
    column for each value, those with more become codes, which a fit replaces by target means. Missing values are filled
    and flagged. Dates and times, also in texts, become days since 1970 and, if the rows cover them twice, cosine and
    sine of the time of day, the weekday and the day of the year. Texts that differ in (almost) every row are left out,
    with a warning; a column without values is an error. Matrices (libsvm, npz) must be finite; npz rows keep their
    dtype.

    Parameters
    ----------
    paths : path, URL, glob or folder, or several of them
        CSV (also compressed), Parquet, libsvm / svmlight, or npz files with the same columns. Folders of tables named
        ``key=value``, as Hive writes them, give their rows a column ``key``. Instead of paths a table: a data frame
        (pandas, Polars, or another library that narwhals supports), an Arrow table, or a stream of record batches (a
        ``pyarrow.RecordBatchReader``, anything with ``__arrow_c_stream__``, a lazy frame of Polars), which is read a
        batch at a time.
    store : path or URL
        The place of the dataset.
    target, weight : str or None
        The columns of a table (arrays of an npz archive) with the target and the weight of each row. libsvm text
        contains its target.
    group, time : str or None
        The columns of a table with the group and the time of each row. `splits` given as shares, and every fit, hold
        out whole groups, or the newest rows if there are no groups. The group is not a feature; the time is one unless
        `drop` contains it.
    by_group, by_time : str or None
        Like `group` and `time`, and determines which of the two rows are held out by; without `splits` these are 80 %
        train and 20 % test.
    drop : collection of str
        Columns that are left out.
    task : {"auto", "classification", "regression"}
        "auto" is classification for texts, booleans and whole numbers, and regression for fractions.
    categorical : collection of str
        Columns (possibly the target) whose values are categories even if they look like numbers: postcodes, ids, with
        at most a million values.
    drop_missing_target : bool
        Whether to leave out rows of tables whose target is missing, with a warning that counts them; otherwise they are
        an error.
    missing : {"auto", "mean", "error"} or float
        Missing values are filled with the mean ("auto", "mean") or with a number, and a column flags them if the input
        has some; with "auto", `predict` warns of missing values in columns that had none here. "error" refuses them.
    unknown : {"zeros", "error"}
        Whether a category that is new in `predict` sets no column, or is an error.
    layout : {"auto", "dense", "sparse"}
        "auto" is CSR from 256 columns on if at most 5 % of the values are nonzero (npz files keep their layout).
    like : Dataset, path or URL of a store, fitted model, or None
        Encode the rows by the rules of that store, or of the model's fit, instead of by rules learned from them: with
        the columns, categories, units, time zones and fillings of the store or the fit, and its classes as the labels.
        `target`, `group` and `time` name its columns where the input has them. Columns and categories that the store
        or the fit does not have are accepted with a warning that counts them, as in `predict`.
    shuffle : bool
        Whether to store the rows in random order, which stochastic fitting needs; `row_id` has their original numbers.
    seed : int
        Seed of the order and of the splits; the same rows and seed give the same dataset from any format.
    splits : mapping of str to float, str, or None
        Shares of named splits, drawn by class: ``{"train": 0.8, "test": 0.2}``; or the column of a table with the name
        of each row's split.
    overwrite : bool
        Whether to replace an existing dataset.
    format : str, CsvFormat, LibsvmFormat or NpzFormat, or None
        None follows the suffix. The classes have options (delimiter, files without a header, names of arrays).
    memory_limit : int, str or None
        Limit on the memory, in bytes or as ``"512 MB"``, in addition to that of the process now; None is about 500 MB.
    temporary_directory : path or None
        Folder for temporary files, whose free space is checked first; None is beside a local store, else the system's.
    storage_options, source_options : mapping or None
        For the fsspec file systems of the store and of the input.
    progress : bool, callable or None
        Whether to show a progress bar, or a subscriber to `dkl.events.Event`; None shows a bar in interactive use.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError, FileExistsError
        If there is no input, or if `store` exists and `overwrite` is False.
    ValueError, TypeError
        For files with different columns, ragged rows, and values that cannot be used, with file, row and column.
    OSError
        If there is too little temporary disk space.
    MemoryLimitError
        If `memory_limit` is too small.

    Examples
    --------
    >>> import dkl
    >>> ds = dkl.ingest("part-*.csv", "rows.zarr", target="label")  # doctest: +SKIP
    """
    rules = None if like is None else table_schema_like(like)
    choices, splits = _table_choices(
        by_group,
        by_time,
        splits,
        like=rules,
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
        # wrong splits are an error now, though splits are drawn only after everything is written
        by_fractions(splits, seed=seed, n_classes=None)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    buffers = Buffers.within(limit)
    location = Location.of(store, storage_options)
    # checked before finding the input files, which may take long, and again with them
    check_output(location, "dataset", overwrite=overwrite)
    files, reader = _files_and_reader(paths, format, source_options)
    is_given = isinstance(reader, GivenTable)
    check_output(location, "dataset", overwrite=overwrite, inputs=[] if is_given else [file.name for file in files])
    rows, publish = open_rows(files, reader, choices, buffers, limit), resolve_progress(progress)
    directory = temporary_directory
    if directory is None and location.is_local:
        # the disk of the store must have space for the rows anyway; its folder may not exist yet
        directory = next(folder for folder in location.path.parents if folder.is_dir())
    with scratch_folder(directory, name=location.url.rpartition("/")[2]) as folder:
        n_bytes = rows.staged_bytes or _ASSUMED_STREAM_BYTES
        order = seed if shuffle else None
        stage = Stage(folder, seed=order, n_bytes=n_bytes, buffer_bytes=buffers.stage_bytes)
        # before the rows are read, so that a file that changes meanwhile is not taken for the one that was read
        inputs = "" if is_given or rules is not None else _inputs_digest(files, reader, choices, splits, seed, shuffle)

        def begin(rows: TableRows | MatrixRows) -> Callable[[pa.Table], object]:
            stage.clear()
            check_free_space(folder, rows.staged_bytes, "ingest")
            return stage.add

        rows = _read(rows, files, publish, begin)
        schema = replace(_described_schema(rows, files, inputs, publish), shuffle_seed=order)
        # empty splits are an error before anything is written
        for name, share in splits.items() if isinstance(splits, Mapping) else ():
            if share * stage.n_rows < 1:
                raise ValueError(
                    f"split {name!r} would have no rows: {share:g} of {stage.n_rows}; give it a larger share, or "
                    "write all rows as one: splits=None, in the shell dkl ingest --split ''"
                )
        undrawn: list[ValueError] = []

        def add_splits(written: OpenStore) -> None:
            """Draw and write the splits."""
            # the split of each row was recorded in the final order of the rows, as they were written
            given = rows.split.masks() if isinstance(rows, TableRows) and rows.split is not None else splits
            try:
                if given:
                    Dataset(StoreSource(written), written.schema).split(given, seed=seed)
            except ValueError as error:
                # few rows of each class, or few groups: the rows are kept, since reading them may have taken hours
                error.add_note(f"the rows are in {location.place}, without splits, which a fit takes whole")
                undrawn.append(error)

        with DatasetWriter(
            store,
            schema,
            n_rows=stage.n_rows,
            overwrite=overwrite,
            storage_options=storage_options,
            most_bytes=WRITTEN_BYTES,
            finish=add_splits,
        ) as writer:
            _write(rows, stage, writer, publish)
    if undrawn:
        raise undrawn[0]
    return open_dataset(store, **(storage_options or {}))


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
    """The dataset that `ingest` wrote with the same arguments if the files have not changed since; else None."""
    if not is_store(store):
        return None
    choices, splits = _table_choices(by_group, by_time, splits, **columns)
    inputs = _inputs_digest(find_files(paths, None), format, choices, splits, seed, shuffle)
    try:
        dataset = open_dataset(store)
    except StoreError:
        # a damaged or half-written store, or one of a newer release, is written again
        return None
    # an ingest that could not draw the splits is done again
    is_whole = bool(dataset.splits) or not splits
    return dataset if is_whole and dataset.schema.provenance.get("inputs") == inputs else None


def _inputs_digest(
    files: Sequence[InputFile], format: Any, choices: TableChoices, splits: Any, seed: int, shuffle: bool
) -> str:
    """A hash of the states of the input files and of the arguments of `ingest` that determine the dataset."""
    states = [(file.name, file.state) for file in files]
    of_columns = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(choices).items()}
    text = json.dumps([__version__, states, of_columns, repr(format), splits, seed if shuffle else None], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _table_choices(
    by_group: str | None, by_time: str | None, splits: Any, *, group: str | None, time: str | None, **columns: Any
) -> tuple[TableChoices, Any]:
    """The choices about columns, and the splits."""
    held_by, group, time, splits = _holdout_choices(group, time, by_group, by_time, splits)
    # `splits` is the name of a column, or a mapping of shares
    column = splits if isinstance(splits, str) else None
    return TableChoices(split=column, group=group, time=time, held_by=held_by, **columns), splits


def _files_and_reader(
    given: Any, format: Format | None, source_options: Mapping[str, Any] | None
) -> tuple[list[InputFile], Format | GivenTable | None]:
    """The input files and the chosen format; for a table a single input, and its reader."""
    if not is_table(given):
        return find_files(given, source_options), format
    if format is not None:
        raise ValueError(f"format={format!r} says how files are written, and the rows were given as a table")
    return given_table(given)


def _holdout_choices(
    group: str | None, time: str | None, by_group: str | None, by_time: str | None, splits: Any
) -> tuple[HeldBy | None, str | None, str | None, Any]:
    """Return "group", "time" or None (how rows are held out), the column of groups, that of times, and the splits.

    Splits that are not given are `DEFAULT_SHARES` if rows are held out by group or time, else None.
    """
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
    """The schema that `ingest` would write, with the encoding rules, from all rows of the input.

    Parameters
    ----------
    schema : Schema
    n_rows : int
    staged_bytes : int
        Estimate of the temporary disk space, in bytes.
    """

    schema: Schema
    n_rows: int
    staged_bytes: int

    @property
    def encoding(self) -> TableEncoding | None:
        """The encoding of raw columns; None for matrices."""
        return self.schema.encoding

    def describe(self) -> str:
        """The plan as text."""
        return f"{self.n_rows} rows; {described(self.schema)}"


def plan_ingest(
    paths: PathLike | Iterable[PathLike] | GivenRows,
    *,
    choices: TableChoices | None = None,
    format: Format | None = None,
    progress: Progress = None,
) -> IngestPlan:
    """Read the input without writing anything, and return how `ingest` would encode it.

    The parameters are those of `ingest`; `choices` has those about columns (``TableChoices(target="label")``).
    """
    files, reader = _files_and_reader(paths, format, None)
    rows = open_rows(files, reader, choices or TableChoices(), Buffers())
    counted: list[int] = []

    def begin(rows: TableRows | MatrixRows) -> Callable[[pa.Table], object]:
        counted.clear()
        return lambda table: counted.append(table.num_rows)

    rows = _read(rows, files, resolve_progress(progress), begin)
    return IngestPlan(rows.decide(), sum(counted), rows.staged_bytes)


def _read(
    rows: TableRows | MatrixRows,
    files: Sequence[InputFile],
    publish: Subscriber,
    begin: Callable[[TableRows | MatrixRows], Callable[[pa.Table], object]],
) -> TableRows | MatrixRows:
    """Read all rows, and call what `begin` returns with each table of them; returns the rows with their statistics.

    If columns that look like numbers or dates at the beginning of a file contain other values, all rows are read again
    with these columns as texts, whose encoding then depends on all of their values.
    """
    while True:
        use = begin(rows)
        try:
            with ProgressStage(publish, "reading", sum(file.size for file in files)) as stage_progress:
                for table, n_bytes in rows.tables():
                    use(table)
                    stage_progress.advance(n_bytes, table.num_rows, n_bytes)
            return rows
        except MistypedColumnsError as found:
            if not isinstance(rows, TableRows):
                raise
            rows = rows.with_texts(found.names)


def tables_to_encode(
    paths: PathLike | Iterable[PathLike],
    *,
    encoding: TableEncoding | None = None,
    ids: Collection[str] = (),
    format: Format | None = None,
) -> tuple[Iterator[pa.Table], TableEncoding | None]:
    """The raw rows of CSV or Parquet files, and the encoding that turns them into numbers.

    Rows come a few thousand at a time, with columns checked across files. The encoding is the given one; if the files
    write numbers with another decimal mark (a point or a comma) than those of the fit did, its copy reads theirs.

    Parameters
    ----------
    encoding : TableEncoding or None
        The encoding for these rows, whose categorical columns are read as texts even if they look like numbers.
    ids : collection of str
        Further columns to return, as texts if they are not features, so that no digit is lost.

    Raises
    ------
    ValueError
        If the files lack a column of `ids`, and as for `find_files` and the reader.
    """
    files = find_files(paths, None)
    reader = table_reader(files, format)
    is_text = isinstance(reader, CsvFormat)
    names = columns_as_texts(encoding, is_text=is_text)
    probes = probed(files, reader)
    if encoding is not None and not encoding.array_dtype:
        decimal, is_named = decimal_of(probes, reader)
        encoding = encoding.with_decimal(decimal, is_named=is_named)
    lacking = [name for name in ids if name not in probes[0].schema.names]
    if lacking:
        raise ValueError(
            f"'{files[0].name}' has no column {lacking[0]!r}; it has {spoken_names(probes[0].schema.names)}"
        )
    # as texts, long integers and codes keep every digit
    features = {rule.name for rule in encoding.rules} if encoding else set()
    names += [name for name in ids if name not in features]
    # columns that are not features may be of any type
    unused = {field.name for probe in probes for field in probe.schema if column_kind(field.type) is None}
    unused -= {rule.name for rule in encoding.rules} if encoding else unused
    schema = common_schema(probes, drop=unused, as_text=names, are_texts=is_text)
    return (table for table, _ in file_tables([probe.file for probe in probes], reader, schema)), encoding


def described(schema: Schema, *, brief: bool = False) -> str:
    """Lines of text for the user: what is predicted, then how columns become numbers, or how many numbers rows have.

    With `brief` the columns are named without what each missing value is filled with; see `TableEncoding.describe`.
    """
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
        return f"{target}\n{schema.encoding.describe(brief=brief)}"
    columns = f"{schema.n_columns} {'CSR' if schema.is_sparse else 'dense'} columns of {schema.dtype}"
    if schema.first_index == 0:
        return f"{target}\n{columns}; the text counts columns from 0"
    if schema.first_index == 1:
        return (
            f"{target}\n{columns}; the text counts columns from 1 (if it counts from 0: "
            "format=dkl.LibsvmFormat(zero_based=True), in the shell --zero-based)"
        )
    return f"{target}\n{columns}"


def _described_schema(
    rows: TableRows | MatrixRows, files: Sequence[InputFile], inputs: str, publish: Subscriber
) -> Schema:
    """The schema of rows that were read, with their origin, which is reported."""
    names = [file.name for file in files]
    provenance = {"from": names[:100], "n_files": len(names), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if inputs:
        provenance["inputs"] = inputs
    if rows.target_name:
        provenance["target"] = rows.target_name
    dialects = rows.detected_dialects if isinstance(rows, TableRows) else []
    if dialects:
        provenance["written"] = "; ".join(dialects)
    schema = rows.decide()
    publish(Event("note", "ingest", detail={"message": "\n".join([*dialects, described(schema, brief=True)])}))
    return replace(schema, provenance={**provenance, **schema.provenance})


def _write(rows: TableRows | MatrixRows, stage: Stage, writer: DatasetWriter, publish: Subscriber) -> None:
    """Encode and write the rows in their final order."""
    with ProgressStage(publish, "writing", stage.n_rows) as stage_progress:
        for staged in stage.tables():
            # a short text becomes about a hundred numbers, so that a staged table may be small and its rows not
            for first in range(0, staged.num_rows, _ENCODED_ROWS):
                table = staged.slice(first, _ENCODED_ROWS)
                writer.write(*rows.encode(table))
                stage_progress.advance(table.num_rows, table.num_rows, table.nbytes)
