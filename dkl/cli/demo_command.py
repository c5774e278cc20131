"""The command demo: the whole way on rows that ship with the dependencies, or on the user's own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command, stderr
from dkl.events import Event, Subscriber

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
    processes on this machine, and leaves a table here and a picture in the output folder. About half a minute.
    """
    if target is not None and data is None:
        raise typer.BadParameter("--target names a column of --data: give both")
    from dkl.demo import compare

    started = time.perf_counter()
    dataset = _rows(data, target, output)
    with ExitStack() as stack:
        where = compute if compute.scheduler or compute.workers else replace(compute, workers=2)
        stack.enter_context(computing_on(where))
        found = compare(
            dataset,
            n_features=tuple(sorted(set(features or SIZES))),
            seed=seed,
            publish=stack.enter_context(_bar(running)),
        )
    picture = _picture(found, output / "dkl-demo.png")
    facts = {
        "dataset": found.dataset,
        "store": str(dataset.store),
        "measure": found.measure,
        "scores": [asdict(score) for score in found.scores],
        "picture": picture,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return Result(facts, _view(found, facts))


def _rows(data: str | None, target: str | None, output: Path) -> Any:
    """The dataset, written into the output folder unless it is a store already; an earlier demo's is replaced."""
    from dkl.demo import digits_dataset, own_dataset

    output.mkdir(parents=True, exist_ok=True)
    return digits_dataset(output / "digits.zarr") if data is None else own_dataset(data, target, output / "rows.zarr")


def _picture(found: Any, path: Path) -> str | None:
    try:
        return str(found.display().save(path))
    except ImportError as error:
        stderr().print(Text.assemble(("No picture: ", "yellow"), str(error)))
        return None


def _bar(running: Running) -> Any:
    """A progress bar on standard error as a context manager that yields a subscriber."""
    return _Bar(visible=running.progress is not False)


class _Bar:
    def __init__(self, *, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=stderr(), transient=True, disable=not visible)

    def __enter__(self) -> Subscriber:
        self._progress.start()
        task = self._progress.add_task("learning and fitting", total=None)

        def publish(event: Event) -> None:
            self._progress.update(task, completed=event.done, total=event.total)

        return publish

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()


def _view(found: Any, facts: dict[str, Any]) -> Group:
    lines = [Text(f"{facts['dataset']}, {facts['seconds']:.1f} s in all")]
    if facts["picture"]:
        lines.append(Text(f"picture: {facts['picture']}"))
    return Group(*(_table(found, setting) for setting in found.display().scores), *lines)


def _table(found: Any, setting: str) -> Table:
    """One row a learner, one column a size; the best of each column in bold."""
    display = found.display()
    table = Table(title=f"test {found.measure}, {setting}", title_justify="left", title_style="bold")
    table.add_column("learner")
    for size in display.n_features:
        table.add_column(f"{size} features", justify="right")
    table.add_column("seconds", justify="right")
    lines = display.scores[setting]
    best = [max(values) for values in zip(*lines.values(), strict=True)]
    for learner, values in lines.items():
        seconds = sum(s.seconds for s in found.scores if s.learner == learner and s.setting == setting)
        cells = [Text(f"{v:.4f}", style="bold" if v == top else "") for v, top in zip(values, best, strict=True)]
        table.add_row(learner, *cells, f"{seconds:.1f}")
    return table
