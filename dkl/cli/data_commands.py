"""Commands on datasets: ingest, info, verify."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.panel import Panel
from rich.text import Text

from dkl.cli.cluster import checked_bytes
from dkl.cli.command import Result, Running, facts_table
from dkl.cli.output_checks import check_before
from dkl.plain_text import first_few

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset

# Number of classes, and of columns, that `info` shows.
_MOST_SHOWN = 20
# The same as `dkl.data.ingest.paths.FileFormat`, whose import takes long.
FileFormat = Literal["csv", "parquet", "libsvm", "npz"]
ZeroBased = Annotated[
    bool | None,
    typer.Option(
        "--zero-based/--one-based", help="libsvm: whether the index of the first column is 0 or 1.", show_default=False
    ),
]
Store = Annotated[str, typer.Argument(help="Path or URL of a store that dkl wrote.", show_default=False)]


def base_option(zero_based: bool) -> str:
    """The option that says the index of the first column of libsvm text, as it is typed."""
    return "--zero-based" if zero_based else "--one-based"


def parse_splits(text: str) -> dict[str, float]:
    """``train=0.8,test=0.2`` as names and shares; empty for ``''``."""
    # a comma at the end is accepted
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        return {}
    from dkl.data.splits import by_fractions

    shares: dict[str, float] = {}
    try:
        for part in parts:
            name, _, share = (piece.strip() for piece in part.partition("="))
            # the dict would silently keep only the last of two equal names
            if name in shares:
                raise ValueError(f"two splits are named {name!r}")
            shares[name] = float(share)
        # checks the shares before the files are read
        by_fractions(shares, seed=0, n_classes=None)
    except ValueError as error:
        raise typer.BadParameter(
            f"--split takes NAME=SHARE,NAME=SHARE such as train=0.8,test=0.2, not {text!r}: {error}"
        ) from None
    return shares


def as_typed(options: Any) -> list[str]:
    """The options of a group that differ from their defaults, as words of a command line."""
    words = []
    for field in fields(options):
        value, flag = getattr(options, field.name), f"--{field.name.replace('_', '-')}"
        if value == field.default or value == []:
            continue
        if field.name == "zero_based":
            words.append(base_option(value))
            continue
        values = value if isinstance(value, list) else [value]
        words += [flag] if value is True else [word for each in values for word in (flag, str(each))]
    return words


@dataclass(frozen=True)
class RoleOptions:
    """Options that name the columns of targets, weights, groups and times, and those that are left out."""

    target: Annotated[str | None, typer.Option(help="Column of the labels or numbers to learn.")] = None
    weight: Annotated[str | None, typer.Option(help="Column of the weights of the rows.")] = None
    group: Annotated[
        str | None,
        typer.Option(help="Column of the groups of rows: groups are held out as a whole, and are not a feature."),
    ] = None
    time: Annotated[
        str | None,
        typer.Option(help="Column of times: the newest rows are held out; a feature unless --drop has it, too."),
    ] = None
    drop: Annotated[list[str] | None, typer.Option(help="Leave this column out. May be repeated.")] = None
    categorical: Annotated[
        list[str] | None, typer.Option(help="Treat the values of this column as categories. May be repeated.")
    ] = None
    missing: Annotated[
        Literal["auto", "mean", "error"],
        typer.Option(help="Missing numbers: the mean and a flag column, only the mean, or an error."),
    ] = "auto"
    drop_missing_target: Annotated[
        bool,
        typer.Option("--drop-missing-target", help="Leave out rows without a target, with a warning that counts them."),
    ] = False

    def choices(self) -> dict[str, Any]:
        """The arguments of `dkl.ingest`."""
        # the value of a repeatable option is a list, or None if it was not given
        return {**vars(self), "drop": tuple(self.drop or ()), "categorical": tuple(self.categorical or ())}


@dataclass(frozen=True)
class ColumnOptions(RoleOptions):
    """`RoleOptions` and the task."""

    task: Annotated[Literal["auto", "classification", "regression"], typer.Option(help="Task of the target.")] = "auto"


@dataclass(frozen=True)
class HeldOptions:
    """Options that choose how rows are held out."""

    by_group: Annotated[
        str | None, typer.Option(help="Hold out whole groups of this column.", show_default="the group of the rows")
    ] = None
    by_time: Annotated[
        str | None, typer.Option(help="Hold out the newest rows by this column.", show_default="the time of the rows")
    ] = None

    def of(self, dataset: Any) -> Any:
        """The dataset whose rows are held out as the options say."""
        from dkl.data.together.choosing import with_held_by

        source, schema = with_held_by(dataset.source, dataset.schema, self.by_group, self.by_time)
        return dataset if schema is dataset.schema else dataset.with_rows(source, schema)


@dataclass(frozen=True)
class CsvOptions:
    """Options for delimited text."""

    delimiter: Annotated[
        str | None,
        typer.Option(help="CSV: the delimiter, a character or 'tab'.", show_default="detected in the first lines"),
    ] = None
    decimal: Annotated[
        Literal[".", ","] | None,
        typer.Option(help="CSV: the decimal mark of numbers.", show_default="the mark in most values of each column"),
    ] = None
    na: Annotated[list[str] | None, typer.Option(help="CSV: another text that means missing. May be repeated.")] = None
    encoding: Annotated[
        str | None,
        typer.Option(help="CSV: the encoding, such as latin-1 or cp1252.", show_default="UTF-8, or UTF-16 if detected"),
    ] = None

    def csv_format(self) -> Any:
        """The options as `dkl.CsvFormat`; None if none is given."""
        if not self.given:
            return None
        from dkl.data.ingest.csv_files import NULL_VALUES, CsvFormat

        delimiter = {"tab": "\t", "\\t": "\t"}.get(self.delimiter or "", self.delimiter)
        nulls = (*NULL_VALUES, *(self.na or ()))
        try:
            return CsvFormat(delimiter, null_values=nulls, decimal=self.decimal, encoding=self.encoding)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    @property
    def given(self) -> list[str]:
        """The given options, as words of a command line."""
        return as_typed(CsvOptions(self.delimiter, self.decimal, self.na, self.encoding))


@dataclass(frozen=True)
class TextOptions(CsvOptions):
    """Options for the formats of files."""

    format: Annotated[FileFormat | None, typer.Option(help="Format of files without a known suffix.")] = None
    n_columns: Annotated[
        int | None, typer.Option(min=1, help="libsvm: number of columns (default: the highest index).")
    ] = None
    zero_based: ZeroBased = None

    def chosen(self, sources: list[str]) -> Any:
        """The argument `format` of `dkl.ingest` for these files."""
        if (csv := self.csv_format()) is not None:
            if self.format not in (None, "csv"):
                raise typer.BadParameter(f"{self.given[0]} is for CSV files, and --format says {self.format}")
            if self.n_columns is not None or self.zero_based is not None:
                raise typer.BadParameter("--n-columns, --zero-based and --one-based are for libsvm text")
            return csv
        if self.n_columns is None and self.zero_based is None:
            return self.format
        from dkl.data.ingest.libsvm_files import LibsvmFormat
        from dkl.data.ingest.paths import file_format, find_files

        # options without an effect are errors, as users would expect one
        if (self.format or file_format(find_files(sources, None), None)) != "libsvm":
            raise typer.BadParameter("--n-columns, --zero-based and --one-based are for libsvm text")
        return LibsvmFormat(self.n_columns, "auto" if self.zero_based is None else self.zero_based)


def ingest(
    files: Annotated[
        list[str],
        typer.Argument(
            help="CSV, Parquet, libsvm or npz files, folders, globs or URLs; then the store.", metavar="FILES STORE"
        ),
    ],
    columns: ColumnOptions,
    held: HeldOptions,
    text: TextOptions,
    running: Running,
    *,
    split: Annotated[str, typer.Option(help="Shares of named splits; '' for none.")] = "train=0.8,test=0.2",
    shuffle: Annotated[bool, typer.Option(help="Put the rows in a random order on disk.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the order and of the splits.")] = 0,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="STORE|MODEL",
            help="Use the columns, categories, units, time zones and fillings of this store, or of this model's fit, "
            "instead of rules learned from these rows.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(callback=checked_bytes, help="Memory limit, for example '500 MB'.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the rules for the columns without writing anything.")
    ] = False,
) -> Result:
    """Read rows from files into a store, once, in bounded memory.

    Text columns become one column for each value, missing numbers the mean with a flag column; the rules are shown,
    and stored with the rows and in models, so that predict accepts raw rows. The store appears when it is complete.
    """
    if len(files) < 2:
        raise typer.BadParameter("give the files and, last, the store to write: dkl ingest rows.csv rows.zarr")
    # as for cp and mv, the last path is the output
    *sources, store = files
    shares = parse_splits(split)
    from dkl.data.ingest.ingest import ingest as ingest_files
    from dkl.data.ingest.ingest import plan_ingest
    from dkl.data.ingest.table_rows import TableChoices

    rules = None if like is None else store_or_model(like)
    if plan:
        from dkl.data.other_rules import table_schema_like

        given = columns.choices() | {"like": None if rules is None else table_schema_like(rules)}
        given |= {"group": columns.group or held.by_group, "time": columns.time or held.by_time}
        choices = TableChoices(**given)
        planned = plan_ingest(sources, format=text.chosen(sources), choices=choices, progress=running.progress)
        facts = {"rows": planned.n_rows, "staged_bytes": planned.staged_bytes, "schema": planned.schema.to_json()}
        return Result(facts, Text(planned.describe()))
    if not shares and (held.by_group or held.by_time):
        raise typer.BadParameter("--by-group and --by-time draw the splits; without any give --group or --time")
    # before the files are read, which may take long
    check_before(store, "dataset", overwrite=overwrite)
    started = time.perf_counter()
    dataset = ingest_files(
        sources,
        store,
        **columns.choices(),
        **vars(held),
        like=rules,
        splits=shares or None,
        shuffle=shuffle,
        seed=seed,
        format=text.chosen(sources),
        memory_limit=memory_limit,
        overwrite=overwrite,
        progress=running.progress,
    )
    return description_of(dataset, seconds=round(time.perf_counter() - started, 3))


def store_or_model(path: str) -> Any:
    """The model that is saved at a path or URL, or else the dataset of the store there."""
    from dkl.data.store.location import Location
    from dkl.data.store.overwriting import what_is_at

    if what_is_at(Location.of(path)) == "model":
        from dkl.model_io import load_model

        return load_model(path)
    from dkl.data.dataset import open_dataset

    return open_dataset(path)


def info(
    store: Store,
    running: Running,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show blocks, checksums, codecs and rules.")
    ] = False,
) -> Result:
    """Show the target, the classes and the columns of a store, without reading its rows."""
    from dkl.data.dataset import open_dataset

    return description_of(open_dataset(store), verbose=verbose)


def verify(store: Store, running: Running) -> Result:
    """Read every byte of a store and list damaged chunks. Exit code 1 if there are any."""
    from dkl.data.dataset import open_dataset
    from dkl.errors import CorruptChunkError

    started = time.perf_counter()
    dataset = open_dataset(store)
    # all chunks are read, also after a fault, since it matters whether one or all are damaged
    faults = dataset.verify()
    if faults:
        raise CorruptChunkError("\n  ".join([f"{store!r} is damaged:", *faults, "write it again from its source"]))
    facts = {"store": store, "rows": dataset.n_rows, "blocks": dataset.source.n_blocks, "faults": 0}
    return Result(facts | {"seconds": round(time.perf_counter() - started, 3)})


def description_of(dataset: Dataset, *, verbose: bool = False, **more: object) -> Result:
    """The output of `info`; with --json, or `verbose`, it has all facts."""
    facts = {**dataset.describe().facts, **more}
    shown = facts if verbose else {**short_facts(dataset, facts), **more}
    return Result(facts, Panel(facts_table(shown), title=Text(str(dataset.store or dataset)), title_align="left"))


def short_facts(dataset: Dataset, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The most important facts: the number of rows, the target and its classes, the splits, the columns."""
    schema = dataset.schema
    encoding = schema.encoding
    width = schema.n_columns if encoding is None else len(encoding.rules)
    encoded = "" if width == schema.n_columns else f" ({schema.n_columns} encoded)"
    shown: dict[str, Any] = {"rows": f"{facts['rows']:,}", "columns": f"{width:,}{encoded}"}
    name = facts.get("target")
    if "written" in schema.provenance:
        shown["files"] = schema.provenance["written"]
    kind = {"classification": "classes", "regression": "numbers", None: "none"}[schema.task]
    if schema.may_be_counts:
        kind += " (if they are numbers: dkl fit --task regression; if they are counts: dkl fit --loss poisson)"
    if form := schema.provenance.get("target_form"):
        kind += f" written as {form}"
    shown["target"] = kind if name is None else f"{name}: {kind}"
    weights = facts.get("classes")
    if weights:
        total = sum(weights.values()) or 1

        def text_of(item: tuple[str, float]) -> str:
            return f"{item[0]} {item[1]:,} ({100 * item[1] / total:.0f} %)"

        shown["classes"] = ", ".join(first_few(weights.items(), _MOST_SHOWN, text_of=text_of))
    shown |= {label: value for label, value in facts.items() if label.startswith(("splits", "first index"))}
    shown |= {label: value for label, value in facts.items() if label in ("group column", "time column")}
    if encoding is not None:
        # without the last line, the layout
        rules = encoding.describe(brief=True).splitlines()[:-1]
        shown["what they are"] = "\n".join(first_few(rules, _MOST_SHOWN))
    elif schema.column_names is not None:
        shown["what they are"] = list(schema.column_names)
    return shown
