"""The commands `suggest`, `explain`, `drift`, `report` and `export`: answers about rows and fitted models."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running
from dkl.cli.compare_command import saved_picture
from dkl.cli.data_commands import CsvOptions, HeldOptions, RoleOptions, as_typed
from dkl.cli.given_files import USUAL_MODEL, LikeFitOptions, Rows, RowsLikeFit, store_like_fit, store_of
from dkl.cli.model_commands import Model, chosen_split, strengths
from dkl.cli.output_checks import check_before, prepare_folder
from dkl.data.store.outputs import written_whole

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset
    from dkl.explain.importance import Importance
    from dkl.figure import Display
    from dkl.protocols.estimators import FittedModel

# Suffixes of the files that `export` writes.
_SUFFIXES = (".onnx", ".joblib")
# Number of columns in the picture of dependence.
_DRAWN = 4


def explain(
    model: Model,
    data: RowsLikeFit,
    files: LikeFitOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Split whose rows are used (default: test if it exists).")] = None,
    most: Annotated[int, typer.Option(min=1, help="Number of columns to show.")] = 20,
    output: Annotated[Path | None, typer.Option(help="Folder for pictures: importance.png, dependence.png.")] = None,
) -> Result:
    """Rank the columns by how much the predictions change with them, in one pass over the rows.

    The strength of a column is how much the decision values change with it, as a standard deviation; for numbers it is
    in units of the target. With --output: pictures, also of how the predictions depend on the most important columns.
    """
    from dkl.model_io import load_model

    if output is not None:
        prepare_folder(output, ["importance.png", "dependence.png"], inputs=[model, data])
    estimator = load_model(model)
    rows = store_like_fit(data, model, estimator, files, split, compute=compute, running=running, needs_target=False)
    with rows as store, computing_on(compute):
        dataset = chosen_split(store, split, "test")
        found, ordered, shown = strengths(estimator, dataset, compute, running, most)
        pictures = [] if output is None else _pictures(estimator, dataset, found, output)
    facts: dict[str, Any] = {"rows": dataset.n_rows, "measure": found.measure, "importance": ordered}
    if pictures:
        facts["pictures"] = pictures
        shown += [Text(f"picture: {picture}") for picture in pictures]
    return Result(facts, Group(*shown))


def _pictures(estimator: FittedModel, dataset: Dataset, found: Importance, output: Path) -> list[str]:
    """Draw and write the pictures; returns their paths, none without matplotlib, with a message."""
    from dkl.explain.column_groups import columns_of, has_axis
    from dkl.explain.dependence import DependenceDisplay
    from dkl.explain.importance import ImportanceDisplay
    from dkl.plots.fitted_rows import in_memory_rows

    displays: dict[str, Display] = {"importance.png": ImportanceDisplay(found)}
    known, (rows, _) = columns_of(estimator, None, None), in_memory_rows(estimator, dataset)
    # dates are several encoded columns, which are not an axis, and columns that the fit left out have none
    drawn = [int(g) for g in found.order if g < len(known) and has_axis(rows[:, known.members[g]])][:_DRAWN]
    if drawn:
        displays["dependence.png"] = DependenceDisplay.from_estimator(estimator, dataset, drawn)
    saved = [saved_picture(display, output / name) for name, display in displays.items()]
    return [picture for picture in saved if picture is not None]


def suggest(
    data: Rows,
    roles: RoleOptions,
    text: CsvOptions,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Split for the comparison (default: train if it exists).")] = None,
    effort: Annotated[
        Literal["fast", "balanced", "best"], typer.Option(help="Amount of work for the choice.")
    ] = "balanced",
    seed: Annotated[int, typer.Option(help="Seed of the comparison and of the model.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all trials and reasons.")] = False,
) -> Result:
    """Show what `dkl fit` without options chooses for these rows: the trials, their scores, and the parameters.

    Several kinds of features are compared on held-out rows. The last line is the command that makes the same comparison
    and fits the best model; --verbose also prints the scores and the parameters.
    Files are first read into the store model.rows.zarr, which that command uses again if they have not changed.
    """
    from dkl.suggestions import suggest as suggest_for

    store, read = store_of(data, USUAL_MODEL, roles, text, held, compute=compute, running=running, seed=seed)
    dataset = held.of(chosen_split(store, split, "train"))
    with computing_on(compute):
        suggestion = suggest_for(
            dataset, effort=effort, random_state=seed, progress=running.progress, memory_limit=compute.memory_limit
        )
    facts = {
        "rows": suggestion.rows,
        "tried": [asdict(kind) for kind in suggestion.tried],
        "summary": suggestion.summary,
        "reasons": list(suggestion.reasons),
        "estimator": repr(suggestion.estimator),
    }
    # the command can be pasted into a shell: names with spaces are quoted
    by = [*as_typed(held), *([*as_typed(roles), *text.given] if read else ())]
    where = [data, USUAL_MODEL, *([] if split is None else ["--split", split]), *by]
    line = shlex.join(["dkl", "fit", *where, "--effort", effort, "--seed", str(seed)])
    summary = repr(suggestion) if verbose else f"For {suggestion.rows}:\n{suggestion.summary}"
    return Result(
        facts | {"command": line}, Text.assemble(f"{read}\n\n" if read else "", f"{summary}\n\n", (line, "bold"))
    )


def drift(
    a: Annotated[str, typer.Argument(help="Path or URL of a store.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Path or URL of another store, or of the same one.", show_default=False)],
    compute: Compute,
    running: Running,
    *,
    split_a: Annotated[str, typer.Option(help="A split of the first store.", show_default="all rows")] = "",
    split_b: Annotated[str, typer.Option(help="A split of the second store.", show_default="all rows")] = "",
    features: Annotated[int, typer.Option(min=2, help="Number of columns of the feature map for the test.")] = 500,
    level: Annotated[float, typer.Option(help="Share of false alarms for samples of the same distribution.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of the frequencies and of the sampled rows.")] = 0,
) -> Result:
    """Test whether the rows of two stores have the same distribution, and show which columns differ.

    Each store is read once, and a few of its blocks before. Targets are not used. Differences have a p value and a
    size, since with many rows even irrelevant differences are significant.
    """
    from dkl.uncertainty.drifting import drift as drift_of

    samples = chosen_split(a, split_a, ""), chosen_split(b, split_b, "")
    with computing_on(compute):
        found = drift_of(
            *samples,
            n_features=features,
            alpha=level,
            random_state=seed,
            device=compute.device,
            progress=running.progress,
            memory_limit=compute.memory_limit,
        )
    return Result(found.facts, Text(repr(found)))


def report(
    model: Model,
    files: LikeFitOptions,
    compute: Compute,
    running: Running,
    *,
    data: Annotated[
        str | None,
        typer.Argument(
            help="Store whose splits are scored, or files, encoded as in the fit; without it no rows are read."
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write the page here: .html, .json or .txt.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing page.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the reasons of all choices.")] = False,
) -> Result:
    """Report on a model: scores with intervals and a baseline, errors, importance, and the reasons of its choices.

    --output report.html writes a single file with pictures, which needs no network; rows, settings, memory, bounds and
    versions are in folded sections. The hash of the fit is equal for fits of the same rows with the same settings that
    have the same bits.
    """
    from dkl.data.dataset import open_dataset
    from dkl.model_io import load_model
    from dkl.reporting import check_format, is_page
    from dkl.reporting import report as report_on

    if output is not None:
        # before the rows are scored
        check_format(output)
        check_before(output, "report", overwrite=overwrite, inputs=[model, data], is_own=is_page)
    estimator: Any = load_model(model)
    rows: AbstractContextManager[str | None] = nullcontext()
    if data is not None:
        rows = store_like_fit(data, model, estimator, files, compute=compute, running=running)
    with rows as store, computing_on(compute):
        # scores need a pass over the rows
        page = report_on(estimator, None if store is None else open_dataset(store))
    if output is not None:
        page.write(output)
    return Result(page.facts, Text(page.text(verbose=verbose)))


def export(
    model: Model,
    output: Annotated[str, typer.Argument(help="model.onnx or model.joblib.", show_default=False)],
    running: Running,
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing exported model.")] = False,
) -> Result:
    """Write a model as an ONNX graph, or as a Pipeline of scikit-learn; both predict without dkl.

    An ONNX graph accepts raw columns by their names, a pipeline (joblib) a data frame of raw rows. As with every
    pickle, load pipelines only from files that you trust.
    """
    from dkl.model_io import load_model

    suffix = Path(output).suffix
    if "://" in output or suffix not in _SUFFIXES:
        raise ValueError(f"the output is {output!r}; it must be a local path that ends in .onnx or .joblib")
    check_before(output, "exported model", overwrite=overwrite, inputs=[model], is_own=is_export)
    estimator = load_model(model)
    with written_whole(output) as hidden:
        if suffix == ".onnx":
            estimator.to_onnx(hidden)
        else:
            import joblib

            joblib.dump(estimator.to_sklearn(), hidden)
        size = Path(hidden).stat().st_size
    return Result({"model": model, "output": output, "bytes": size})


def is_export(path: Path) -> bool:
    """Whether a file was certainly written by this command: an ONNX graph has the name of its producer."""
    from dkl.export.onnx_graph import is_graph

    # the content of a pickle cannot be checked without running it
    return path.suffix == ".onnx" and is_graph(path)
