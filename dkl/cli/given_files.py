"""Reads files that are given to a command into a store, which is used again as long as the files do not change."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dkl.cli.cluster import Compute
from dkl.cli.command import Running
from dkl.cli.data_commands import CsvOptions, HeldOptions, RoleOptions, ZeroBased, as_typed, base_option
from dkl.cli.output_checks import check_before

if TYPE_CHECKING:
    from dkl.data.ingest.csv_files import CsvFormat
    from dkl.data.ingest.libsvm_files import LibsvmFormat
    from dkl.data.labels import TaskChoice
    from dkl.protocols.estimators import FittedFeatures

Rows = Annotated[
    str,
    typer.Argument(
        help="A store that dkl wrote; or CSV, Parquet, libsvm or npz files, a folder or a glob of them, with --target.",
        show_default=False,
    ),
]
RowsLikeFit = Annotated[
    str,
    typer.Argument(
        help="A store that dkl wrote; or files, a folder or a glob of them, whose columns are encoded by the rules of "
        "the model's fit.",
        show_default=False,
    ),
]
# The model beside which commands keep the rows of files if they write none; `dkl fit FILES model.zarr` uses them again.
USUAL_MODEL = "model.zarr"
# The default splits of `dkl ingest`.
_SHARES = {"train": 0.8, "test": 0.2}


def store_of(
    data: str,
    model: str,
    roles: RoleOptions,
    text: CsvOptions,
    held: HeldOptions,
    *,
    compute: Compute,
    running: Running,
    seed: int = 0,
    task: TaskChoice = "auto",
) -> tuple[str, str]:
    """The store with the rows, and a sentence about the files that were read; empty if `data` is a store.

    Files are read into a store beside the model, with 80 % of the rows to fit and 20 % to score. A store that an
    earlier command wrote from the same, unchanged files with the same options is used again.

    Parameters
    ----------
    data : str
        A store, or files.
    model : str
        The path of the model.
    roles, text, held, compute, running
        The options of the command.
    seed : int
        Seed of the order of the rows, and of the splits.
    task : {"auto", "classification", "regression"}
    """
    if _is_store(data, [*as_typed(roles), *text.given]):
        return data, ""
    from dkl.data.dataset import open_dataset
    from dkl.data.ingest.ingest import ingest, stored_before
    from dkl.data.store.overwriting import is_store

    _check_target(data, roles.target, text)
    store = f"{model.rstrip('/').removesuffix('.zarr')}.rows.zarr"
    arguments: dict[str, Any] = {**roles.choices(), **vars(held), "task": task}
    arguments |= {"splits": _SHARES, "seed": seed, "format": text.csv_format()}
    found = stored_before(store, data, **arguments)
    if found is not None:
        return store, f"The rows of {data} were read before, into {store}, and are unchanged."
    is_of_these = is_store(store) and "inputs" in open_dataset(store).schema.provenance
    check_before(store, "dataset", overwrite=is_of_these, inputs=[data])
    written = ingest(
        data,
        store,
        **arguments,
        overwrite=is_of_these,
        memory_limit=compute.memory_limit,
        progress=running.progress,
    )
    splits = ", ".join(f"{written[name].n_rows:,} in {name}" for name in written.splits)
    format = written.schema.provenance.get("written")
    return store, (
        f"The rows of {data} were read into {store}{f' ({format})' if format else ''}: {written.n_rows:,}, {splits}. "
        "It is used again while the files are unchanged."
    )


@dataclass(frozen=True)
class LikeFitOptions(CsvOptions):
    """Options for files that are encoded as in the fit of a model."""

    target: Annotated[
        str | None,
        typer.Option(
            help="The column of files that holds the labels or numbers to compare predictions with.",
            show_default="the target column of the fit",
        ),
    ] = None
    weight: Annotated[str | None, typer.Option(help="Files: column of the weights of the rows.")] = None
    zero_based: ZeroBased = None


@contextmanager
def store_like_fit(
    data: str,
    model: str,
    estimator: FittedFeatures,
    options: LikeFitOptions,
    split: str | None = None,
    *,
    compute: Compute,
    running: Running,
    needs_target: bool = True,
) -> Iterator[str]:
    """The store with the rows for a fitted model: `data`, or a temporary one of files, which are encoded as in the fit.

    The temporary one is beside the model, where worker processes find it, or in the folder for temporary files if the
    model is at a URL or in a folder that cannot be written. Its rows are numbered, and stand, as in the files.

    Parameters
    ----------
    data : str
        A store, or files.
    model : str
        The path of the model.
    estimator : fitted estimator
    options, split, compute, running
        The options of the command.
    needs_target : bool
        Whether files without a target are an error.
    """
    if _is_store(data, as_typed(options)):
        yield data
        return
    if split:
        raise typer.BadParameter(f"--split {split} is of a store, and {data!r} are files, all of whose rows are read")
    from dkl.data.ingest.ingest import ingest
    from dkl.data.ingest.scratch import scratch_folder

    csv = options.csv_format()
    format = libsvm_like_fit(data, estimator, csv, options.zero_based) or csv
    of_fit = getattr(getattr(estimator, "provenance_", None), "target", "")
    if needs_target and not of_fit:
        _check_target(data, options.target, options, "the labels or numbers to compare predictions with, in")
    folder = os.path.dirname(os.path.abspath(model))
    with scratch_folder(folder if os.access(folder, os.W_OK) else None, name=os.path.basename(model)) as scratch:
        store = str(scratch / "rows.zarr")
        try:
            written = ingest(
                data,
                store,
                target=options.target,
                weight=options.weight,
                like=None if getattr(estimator, "encoding_", None) is None else estimator,
                format=format,
                shuffle=False,
                memory_limit=compute.memory_limit,
                progress=running.progress,
            )
        except ValueError as error:
            exposure = getattr(estimator, "exposure_", "")
            if exposure and repr(exposure) in str(error):
                error.add_note(f"the fit counted targets over {exposure!r}, the exposure of each row: add this column")
            raise
        if needs_target and written.task is None:
            raise typer.BadParameter(
                f"{data!r} has no column {of_fit!r}, the target of the fit, to compare with; name it by --target, or "
                "use dkl predict"
            )
        yield store


def libsvm_like_fit(
    data: str, estimator: FittedFeatures, csv: CsvFormat | None, zero_based: bool | None
) -> LibsvmFormat | None:
    """The format of libsvm text for a fitted model, with the columns of its fit; None if files are no libsvm text.

    libsvm text numbers its columns from 0 or from 1. It is read from the number that the text of the fit began with, or
    that the user names if the model was fitted on arrays: from the wrong one, all columns would be shifted by one.

    Parameters
    ----------
    data : str
        Files.
    estimator : fitted estimator
    csv : CsvFormat or None
        How the files are read as CSV, if options say so.
    zero_based : bool or None
        Whether the user says that the index of the first column is 0.

    Raises
    ------
    ValueError
        If neither the fit nor the user says whether columns are numbered from 0 or from 1, if the user says otherwise
        than the fit, if the user says it of files that are no libsvm text, or if the model was fitted on a table, whose
        columns have names.
    """
    from dkl.data.ingest.libsvm_files import LibsvmFormat
    from dkl.data.ingest.paths import file_format, find_files

    if csv is not None or file_format(find_files(data, None), None) != "libsvm":
        if zero_based is not None:
            raise ValueError(f"{base_option(zero_based)} is for libsvm text, and {data!r} holds none")
        return None
    if getattr(estimator, "encoding_", None) is not None:
        raise ValueError(f"{data!r} is libsvm text, and the model was fitted on a table; give it CSV or Parquet files")
    first_index = getattr(estimator, "first_index_", None)
    if zero_based is None and first_index is None:
        raise ValueError(
            f"the model was not fitted on libsvm text, so whether {data!r} calls the first column 0 or 1 is not known; "
            "say --zero-based or --one-based"
        )
    if zero_based is not None and first_index not in (None, int(not zero_based)):
        raise ValueError(
            f"the model was fitted on libsvm text that calls the first column {first_index}; leave out "
            f"{base_option(zero_based)}, or columns would be shifted by one"
        )
    return LibsvmFormat(estimator.n_features_in_, first_index == 0 if zero_based is None else zero_based)


def _is_store(data: str, given: Sequence[str]) -> bool:
    """Whether `data` is a store; raises BadParameter if options for files are given beside one."""
    from dkl.data.store.overwriting import means_store

    if not means_store(data):
        return False
    if given:
        raise typer.BadParameter(
            f"{given[0]} says how files are read, and {data!r} is a store, for which dkl ingest decided it"
        )
    return True


def _check_target(data: str, target: str | None, text: CsvOptions, what: str = "what to learn from") -> None:
    """Raise BadParameter, with the columns of the files, if the target is not given; `what` says what it is."""
    from dkl.data.ingest.formats import table_reader
    from dkl.data.ingest.paths import file_format, find_files
    from dkl.data.ingest.tables import probed

    files, csv = find_files(data, None), text.csv_format()
    kind = "csv" if csv is not None else file_format(files, None)
    # libsvm text contains its target
    if target is not None or kind == "libsvm":
        return
    columns = probed(files[:1], table_reader(files, csv))[0].schema.names if kind in ("csv", "parquet") else []
    there = f"; its columns are {', '.join(columns[:20])}{', ...' if len(columns) > 20 else ''}" if columns else ""
    raise typer.BadParameter(f"--target COLUMN names {what} {shlex.quote(data)}{there}")
