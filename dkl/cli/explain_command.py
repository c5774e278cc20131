"""The command `explain`: which columns a model answers by, how, and why it answers a row as it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.compare_command import saved_picture
from dkl.cli.model_commands import Model, Store, chosen_split, strengths
from dkl.cli.output_checks import OutputFolder

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset
    from dkl.explain.contributions import Contributions
    from dkl.explain.importance import Importance
    from dkl.plots.figure import Display
    from dkl.protocols.estimators import FittedModel

# Rows that the picture of dependence, and the base of a row's contributions, are averages over.
_ROWS = 1_000
# Columns whose dependence is drawn.
_DRAWN = 4


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "explain", epilog="Example: [bold]dkl explain model.zarr rows.zarr --row 17[/bold]")(explain)


def explain(
    model: Model,
    store: Store,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Rows to explain on (default: test where it is there).")] = None,
    row: Annotated[int | None, typer.Option(help="Explain the answer to the row of this row_id, too.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Columns that are shown.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Folder for pictures: importance.png, dependence.png, row.png.")
    ] = None,
) -> Result:
    """Say which columns the predictions change with, the most important first, in one pass over the rows.

    The strength of a column is how much the decision values change with it, a standard deviation; for numbers it is in
    units of the target. With --row: what each column adds to the answer to one row (Shapley values). With --output:
    pictures, of how the predictions depend on the most important columns, too.
    """
    from dkl.explain.contributions import contributions
    from dkl.methods.validation import checked_dataset
    from dkl.model_io import load_model

    names = ["importance.png", "dependence.png", *([] if row is None else ["row.png"])]
    if output is not None:
        OutputFolder(output, names, inputs=[model, store])
    dataset = chosen_split(store, split, "test")
    estimator = load_model(model)
    with computing_on(compute):
        found, ordered, shown = strengths(estimator, dataset, compute, running, most)
        parts = None
        if row is not None:
            (places,) = (dataset.row_id.compute() == row).nonzero()
            if not len(places):
                raise ValueError(
                    f"no row of {dataset!r} has the row_id {row}; each prediction of dkl predict carries its own"
                )
            # Codes of categories become numbers, as in the rows that the model answers.
            alone = checked_dataset(estimator, dataset).X[int(places[0]) : int(places[0]) + 1].compute()
            parts = contributions(estimator, alone, dataset.thin(_ROWS))
        pictures = [] if output is None else _pictures(estimator, dataset, found, parts, output)
    facts: dict[str, Any] = {"rows": dataset.n_rows, "measure": found.measure, "importance": ordered}
    if parts is not None:
        facts["row"], table = _row_facts(parts, row or 0, most)
        shown += [Text(""), table]
    if pictures:
        facts["pictures"] = pictures
        shown += [Text(f"picture: {picture}") for picture in pictures]
    return Result(facts, Group(*shown))


def _row_facts(parts: Contributions, row: int, most: int) -> tuple[dict[str, Any], Table]:
    """The contributions to one answer as JSON values, and the largest of them as a table."""
    # Of several outputs the one with the largest decision value is explained, which is the answer.
    output = int(parts.predictions[0].argmax())
    own = parts.values[0, :, output]
    order = (-abs(own)).argsort(kind="stable")
    of_class = f" of {parts.outputs[output]!r}" if parts.outputs else ""
    table = Table(
        box=None, padding=(0, 2, 0, 0), title=f"the decision value{of_class} of row {row}", title_justify="left"
    )
    table.add_column("column")
    table.add_column("adds", justify="right")
    table.add_row("the mean over rows", f"{parts.base[output]:.4g}")
    for g in order[:most]:
        table.add_row(Text(parts.label(0, int(g))), f"{own[g]:+.4g}")
    if len(order) > most:
        table.add_row(f"{len(order) - most} others", f"{own[order[most:]].sum():+.4g}")
    table.add_row("in all", f"{parts.predictions[0, output]:.4g}")
    facts = {
        "row_id": row,
        "base": float(parts.base[output]),
        "contributions": {parts.label(0, int(g)): float(own[g]) for g in order},
        "decision": float(parts.predictions[0, output]),
    }
    return facts, table


def _pictures(
    estimator: FittedModel, dataset: Dataset, found: Importance, parts: Contributions | None, output: Path
) -> list[str]:
    """The pictures, each written as it is drawn; none without matplotlib, which is said."""
    from dkl.explain.column_groups import columns_of, has_axis
    from dkl.plots.explanations import ContributionsDisplay, DependenceDisplay, ImportanceDisplay
    from dkl.plots.fitted_rows import in_memory_rows

    displays: dict[str, Display] = {"importance.png": ImportanceDisplay(found)}
    known, (rows, _) = columns_of(estimator, None, None), in_memory_rows(estimator, dataset)
    # Dates are several numbers at once, along which nothing can be drawn.
    drawn = [int(g) for g in found.order if has_axis(rows[:, known.members[g]])][:_DRAWN]
    if drawn:
        displays["dependence.png"] = DependenceDisplay.from_estimator(estimator, dataset, drawn)
    if parts is not None:
        displays["row.png"] = ContributionsDisplay(parts, output=int(parts.predictions[0].argmax()))
    saved = [saved_picture(display, output / name) for name, display in displays.items()]
    return [picture for picture in saved if picture is not None]
