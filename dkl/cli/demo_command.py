"""The command demo: compares the automatic machine with models of scikit-learn, on its digits or on the user's rows."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running
from dkl.cli.compare_command import saved_picture, score_facts, scores_table, written
from dkl.cli.output_checks import prepare_folder
from dkl.data.store.overwriting import means_store

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset
    from dkl.demo import Grown
    from dkl.figure import Display
    from dkl.model_selection.comparison import Compared

SIZES = (50, 100, 200)
_PICTURE = "dkl-demo.png"


def demo(
    compute: Compute,
    running: Running,
    *,
    data: Annotated[str | None, typer.Option(help="Your rows: a file, a glob or a store.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the labels or numbers in --data.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the store and the picture.", show_default="dkl-demo")] = Path(
        "dkl-demo"
    ),
    every: Annotated[
        bool, typer.Option("--all", help="Every learner at several sizes, in two worker processes: a minute or two.")
    ] = False,
    features: Annotated[
        list[int] | None, typer.Option(help="With --all: columns of the mapped rows. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
) -> Result:
    """Compare the automatic machine with a linear model, an SVM and boosted trees, and recommend one.

    Without --data: scikit-learn's handwritten digits, followed by a fit to 300,000 artificial rows in a process of
    400 MB; without network, in less than a minute. Writes the rows, the model and a picture into the output folder.
    With --all: every learner is compared with random features of the same size.
    """
    if target is not None and data is None:
        raise typer.BadParameter("--target names a column of --data: give both")
    if features and not every:
        raise typer.BadParameter("--features are those of --all: give both")
    return (
        _all(compute, running, (data, target, output), features, seed)
        if every
        else _beside_rivals(compute, running, (data, target, output), seed)
    )


def _say(running: Running, text: str) -> None:
    """Print a line at once, also into a pipe; nothing with --json."""
    if not running.json:
        typer.echo(text)


def _rows(data: str | None, target: str | None, output: Path, stored: str, *others: str) -> tuple[Dataset, str]:
    """The user's rows, or the digits of scikit-learn, once the output folder has been checked; and their store.

    Parameters
    ----------
    data, target : str or None
    output : Path
    stored : str
        The name of the store in the folder; a store of the user is used in place.
    *others : str
        The names of further outputs.
    """
    from dkl.demo import digits_dataset, own_dataset

    in_place = data if data is not None and means_store(data) else None
    prepare_folder(output, [*([] if in_place else [stored]), _PICTURE, *others], inputs=[data])
    store = str(output / stored)
    dataset = digits_dataset(store) if data is None else own_dataset(data, target, store)
    # as the user names it: the dataset knows its absolute path
    return dataset, in_place or store


def _beside_rivals(compute: Compute, running: Running, rows: tuple[str | None, str | None, Path], seed: int) -> Result:
    """Compare the machine with scikit-learn's models."""
    data, target, output = rows
    # before the imports, which take a second or two
    _say(running, f"rows of {data}" if data else "1,797 handwritten digits of 8 x 8 pixels: which of ten is it?")
    from dkl.demo import beside_rivals, verdict, verdict_on_many
    from dkl.methods.provenance import summary_of

    started = time.perf_counter()
    dataset, store = _rows(data, target, output, "rows.zarr", "model.zarr")
    measure = "accuracy" if dataset.task == "classification" else "R^2"
    train, test = dataset["train"], dataset["test"]
    _say(
        running,
        f"Fitted on {train.n_rows:,} of them, scored on the {test.n_rows:,} others ({measure}, seconds by the clock):",
    )

    def line(compared: Compared) -> None:
        _say(running, f"  {compared.learner:<18} {compared.score:.3f}   {compared.seconds:6.2f} s")

    with computing_on(compute):
        comparison, model = beside_rivals(dataset, seed=seed, said=line)
    model.save(str(output / "model.zarr"), overwrite=True)
    advice = verdict(comparison, type(model).__name__)
    display: Any = comparison.display(title=comparison.rows)
    fits: list[Grown] = []
    if data is None:
        _say(running, f"{advice}\n{summary_of(model)}")
        fits, display = _on_many_rows(running, seed)
    picture = saved_picture(display, output / _PICTURE)
    following = shlex.join(
        ["dkl", "report", str(output / "model.zarr"), store, "--output", str(output / "report.html")]
    )
    facts: dict[str, Any] = {
        "dataset": comparison.rows,
        "store": store,
        "measure": measure,
        "scores": score_facts(comparison),
        "advice": advice,
        "reasons": list(model.reasons_),
        "model": str(output / "model.zarr"),
        "made_rows": [asdict(fit) for fit in fits],
        "picture": picture,
        "next": following,
        "seconds": round(time.perf_counter() - started, 1),
    }
    ending = [verdict_on_many(fits)] if fits else [advice, summary_of(model)]
    lines = [*ending, *([f"picture: {picture}"] if picture else [])]
    view = Text.assemble("\n".join(lines), "\nNext: ", (following, "bold"))
    return Result(facts, view)


def _on_many_rows(running: Running, seed: int) -> tuple[list[Grown], Display]:
    """Fits to artificial rows, each printed when it is finished, and their picture."""
    from dkl.demo import MADE_ROWS, MEMORY_LIMITS, GrowthDisplay, grown

    _say(
        running,
        f"\nWhat dkl is for: more rows, here up to {MADE_ROWS[-1]:,} made ones of a smooth law (waves and noise).\n"
        f"dkl reads them from a store, the most in a process of at most {MEMORY_LIMITS[0]}.\n"
        "Rows, processor seconds of the fit, share of new rows whose class is wrong:",
    )
    fits: list[Grown] = []
    for fit in grown(seed):
        fits.append(fit)
        _say(running, f"  {fit.learner:<18} {fit.n_rows:>9,}   {fit.seconds:6.2f} s   {fit.error:.3f}")
    return fits, GrowthDisplay(fits)


def _all(
    compute: Compute,
    running: Running,
    rows: tuple[str | None, str | None, Path],
    features: list[int] | None,
    seed: int,
) -> Result:
    """Compare every learner with random features of the same size."""
    from dkl.demo import compare

    data, target, output = rows
    started = time.perf_counter()
    dataset, store = _rows(data, target, output, "digits.zarr" if data is None else "rows.zarr")
    # two worker processes show that fits run on a cluster, also on a laptop
    with computing_on(compute if compute.scheduler or compute.workers else replace(compute, workers=2)):
        result = compare(
            dataset,
            n_features=tuple(sorted(set(features or SIZES))),
            seed=seed,
            device=compute.device,
            memory_limit=compute.memory_limit,
            progress=running.progress,
        )

    picture = saved_picture(result.display(), output / _PICTURE)
    facts = {
        "dataset": result.rows,
        "store": store,
        "measure": result.measure,
        "scores": score_facts(result),
        "picture": picture,
        "seconds": round(time.perf_counter() - started, 1),
    }
    summary = Text(f"{result.rows}, {facts['seconds']:.1f} s in all")
    return Result(facts, Group(scores_table(result, f"test {result.measure}"), summary, *written(facts)))
