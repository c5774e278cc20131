"""The command demo: the whole way on rows that ship with the dependencies, or on the user's own."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.compare_command import saved_picture, scores_table, written
from dkl.cli.output_checks import OutputFolder
from dkl.data.store.reader import is_store

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
    with computing_on(compute if compute.scheduler or compute.workers else replace(compute, workers=2)):
        found = compare(
            dataset,
            n_features=tuple(sorted(set(features or SIZES))),
            seed=seed,
            device=compute.device,
            memory_limit=compute.memory_limit,
            progress=running.progress,
        )
    picture = saved_picture(found.display(), output / "dkl-demo.png")
    facts = {
        "dataset": found.dataset,
        "store": str(dataset.store),
        "measure": found.measure,
        "scores": [{"setting": setting, **asdict(one)} for setting, of in found.settings.items() for one in of.results],
        "picture": picture,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return Result(facts, _view(found, facts))


def _rows(data: str | None, target: str | None, output: Path) -> Any:
    """The dataset, written into the output folder unless it is a store already; an earlier demo's is replaced."""
    from dkl.demo import digits_dataset, own_dataset

    if data is None:
        rows = ["digits.zarr"]
    else:
        rows = [] if data.rstrip("/").endswith(".zarr") or is_store(data) else ["rows.zarr"]
    OutputFolder(output, [*rows, "dkl-demo.png"], inputs=[data])
    return digits_dataset(output / "digits.zarr") if data is None else own_dataset(data, target, output / "rows.zarr")


def _view(found: Any, facts: dict[str, Any]) -> Group:
    tables = [scores_table(of, f"test {of.measure}, {setting}") for setting, of in found.settings.items()]
    return Group(*tables, Text(f"{facts['dataset']}, {facts['seconds']:.1f} s in all"), *written(facts))
