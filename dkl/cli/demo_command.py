"""The command demo: the whole way on rows that ship with the dependencies, or on the user's own."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.compare_command import saved_picture, scores_table, written
from dkl.cli.output_checks import OutputFolder
from dkl.data.store.reader import is_store

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset

SIZES = (50, 100, 200)


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(
        app,
        "demo",
        epilog="Examples: [bold]dkl demo[/bold], [bold]dkl demo --data rows.csv --target label[/bold]",
    )(demo)


def demo(
    compute: Compute,
    running: Running,
    *,
    data: Annotated[str | None, typer.Option(help="Your rows: a file, a glob or a store.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the labels or numbers in --data.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the store and the picture.", show_default="dkl-demo")] = Path(
        "dkl-demo"
    ),
    features: Annotated[list[int] | None, typer.Option(help="Columns of the mapped rows. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> Result:
    """Learn features with every learner, fit, and score against plain random features of the same size.

    Without --data: scikit-learn's handwritten digits, no network. Writes a zarr dataset, starts a cluster of two worker
    processes on this machine, and leaves a table here and a picture in the output folder. A minute or two.
    """
    if target is not None and data is None:
        raise typer.BadParameter("--target names a column of --data: give both")
    from dkl.demo import compare

    started = time.perf_counter()
    dataset = _rows(data, target, output)
    # Two worker processes show that fits run on a cluster, which is the point of the library, also on a laptop.
    with computing_on(compute if compute.scheduler or compute.workers else replace(compute, workers=2)):
        result = compare(
            dataset,
            n_features=tuple(sorted(set(features or SIZES))),
            seed=seed,
            device=compute.device,
            memory_limit=compute.memory_limit,
            progress=running.progress,
        )
    # Without matplotlib the table is still worth having.
    picture = saved_picture(result.display(), output / "dkl-demo.png")
    facts = {
        "dataset": result.dataset,
        "store": str(dataset.store),
        "measure": result.measure,
        "scores": [
            {"setting": setting, **asdict(compared)}
            for setting, comparison in result.settings.items()
            for compared in comparison.results
        ],
        "picture": picture,
        "seconds": round(time.perf_counter() - started, 1),
    }
    tables = [
        # One table for each bandwidth: the second one shows which learners mend a bad guess.
        scores_table(comparison, f"test {comparison.measure}, {setting}")
        for setting, comparison in result.settings.items()
    ]
    summary = Text(f"{facts['dataset']}, {facts['seconds']:.1f} s in all")
    return Result(facts, Group(*tables, summary, *written(facts)))


def _rows(data: str | None, target: str | None, output: Path) -> Dataset:
    """The dataset, written into the output folder unless it is a store already; an earlier demo's is replaced."""
    from dkl.demo import digits_dataset, own_dataset

    if data is None:
        # The digits ship with scikit-learn, so a first run needs no network.
        rows = ["digits.zarr"]
    else:
        rows = [] if data.rstrip("/").endswith(".zarr") or is_store(data) else ["rows.zarr"]
    # The user's own store is not written to, so only files that are ingested need a place in the folder.
    OutputFolder(output, [*rows, "dkl-demo.png"], inputs=[data])
    return digits_dataset(output / "digits.zarr") if data is None else own_dataset(data, target, output / "rows.zarr")
